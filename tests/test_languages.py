"""benchmarks/languages.py: what it reads of demos, and its means by hand."""

from dataclasses import asdict

from analysis.transcription import Intelligibility
from benchmarks import languages
from files import write_json


def write_demo(folder, seed, texts):
    """The measured parts of a demo; phones are aligned sooner and nearer to the sound."""
    phones = texts == "phones"
    (folder / "run").mkdir(parents=True)
    lines = (
        f'{{"kind": "validation", "epoch": {epoch}, "iteration": {100 * epoch}, '
        f'"alignment_sharpness": {sharpness}, "alignment_coverage": 0.75, '
        f'"validation_loss_unpadded": {loss}}}\n'
        for epoch, sharpness, loss in (
            (1, 0.4 if phones else 0.2, 3.0),
            (2, 0.6, 1.0 + 0.1 * seed - 0.5 * phones),
        )
    )
    (folder / "run" / "metrics.jsonl").write_text("".join(lines))
    rate = 1.0 if phones else (0.84, 0.88)[seed - 1]
    found = Intelligibility(None, None, None, 50, "best.pt", 2, [], rate)
    write_json(folder / "intelligibility.json", asdict(found))


def test_letters_and_phones_are_compared_by_seed(tmp_path, monkeypatch, capsys):
    made = []

    def make_demo(folder, language, texts, seed, epochs):
        if not folder.exists():
            made.append((language, texts, seed, epochs))
            write_demo(folder, seed, texts)

    monkeypatch.setattr(languages, "make_demo", make_demo)
    for seeds in ("1", "1,2"):
        languages.main([str(tmp_path), "--languages", "de", "--seeds", seeds, "--epochs", "2"])
        printed = capsys.readouterr().out
    assert sorted(made) == [("de", t, s, 2) for t in ("letters", "phones") for s in (1, 2)]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in printed.splitlines()[2:5]]
    cells = {texts: ", ".join(row) for _, texts, *row in rows}
    assert cells == {  # standard errors of two values: half their difference
        "letters": "2, 0.200 ± 0.000, 0.750 ± 0.000, 1.150 ± 0.050, 0.860 ± 0.020",
        "phones": "2, 0.400 ± 0.000, 0.750 ± 0.000, 0.650 ± 0.050, 1.000 ± 0.000",
        "phones - letters": "2, 0.200 ± 0.000, 0.000 ± 0.000, -0.500 ± 0.000, 0.140 ± 0.020",
    }
    lines = (tmp_path / "languages.csv").read_text("utf-8").splitlines()
    assert len(lines) == 5
    assert lines[1] == "de,letters,1,2,0.2,0.75,1.1,0.84"
