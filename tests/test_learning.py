"""analysis/learning.py: raw values, and what runs have learnt at equal budgets."""

import json
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from records import epoch_line, run_line, validation_line, write_lines

from common.errors import UserError
from paper import learning
from paper.transcription import Intelligibility, Transcript

POINTS, RATE = (2, 4), "word_error_rate"


def made_up(name, seed, *, updates, steps, factor=1.0, epochs=4):
    """A run whose loss halves with every 100 updates, times `factor` and a factor of its seed."""
    epoch = np.arange(1, epochs + 1)
    frame = pd.DataFrame(
        {"epoch": epoch, "updates": updates * epoch, "decoder_steps": steps * epoch}
    )
    loss = factor * (1 + seed / 10) * 0.5 ** (frame["updates"] / 100)
    frame = frame.assign(name=name, seed=seed, validation_loss_unpadded=loss, words=500)
    frame["word_error_rate"] = loss.where(epoch % 2 == 0)
    return frame.reindex(columns=learning.COLUMNS)


@pytest.fixture
def values():
    """RAND, and a batching with half the updates and steps, whose loss is 1.5 times as high."""
    runs = [made_up("rand", seed, updates=100, steps=40) for seed in (1, 2, 3)]
    runs += [made_up("ssb", s, updates=50, steps=20, factor=1.5) for s in (1, 2, 3)]
    return pd.concat(runs, ignore_index=True)


@pytest.mark.parametrize("quantity", ["validation_loss_unpadded", "word_error_rate"])
def test_changes_are_at_equal_budgets(values, quantity):
    """By hand: after as many epochs RAND has twice the updates; at equal ones the factor is 1.5."""
    minutes = {"rand": ([2.0] * 4, 0.01), "ssb": ([1.0] * 4, 0.01)}
    timed = learning.with_minutes(values, minutes)
    for spent, budget, ratio in (
        ("epoch", 4, 1.5 * 0.5 ** (200 / 100) / 0.5 ** (400 / 100)),
        ("updates", 200, 1.5),
        ("decoder_steps", 80, 1.5),
        ("minutes", 4, 1.5),
    ):
        found = learning.compared(timed, quantity, spent, budget, ["rand", "ssb"])
        assert found.loc["ssb", "ours"] == pytest.approx(100 * (ratio - 1))
        assert found.loc["ssb", "runs"] == 3
    # A clock that is 1 % wrong moves both losses by 0.5 updates a minute, 100 % x 4 minutes x ...
    moved = math.log(2) * 0.01 * 4 * 50 / 100
    error = 100 * ratio * math.hypot(moved, moved)
    assert found.loc["ssb", "standard_error"] == pytest.approx(error, rel=1e-3)


def test_budgets_are_those_of_the_cheapest(values):
    """What no run has reached is left out."""
    assert learning.compared(values, RATE, "updates", 60, ["rand", "ssb"])["ours"].isna().all()
    assert learning.budgets(values, "epoch", POINTS) == [2, 4]
    assert learning.budgets(values, "updates", POINTS) == [100, 200]


def test_p_values_are_holms(values, monkeypatch):
    """The smaller of two counts twice, and the larger is no less."""
    p = iter([0.03, 0.02])
    monkeypatch.setattr(learning, "paired_change", lambda *_, **__: {"p": next(p)})
    found = learning.compared(values, RATE, "epoch", 4, ["rand", "ssb", "other"])
    assert found["p"].tolist() == pytest.approx([0.04, 0.04])


def test_perfect_speech_counts_as_half_a_word(values):
    values.loc[values["name"] == "ssb", "word_error_rate"] *= 0
    found = learning.reached(values, "word_error_rate", "epoch", 4)
    assert found["value"][found["label"] == "ssb"].tolist() == pytest.approx([0.5 / 500] * 3)


def test_raw_values_are_those_of_the_run(tmp_path):
    lines = [run_line()]
    for epoch in (1, 2):
        lines.append(epoch_line(epoch, gradient_norm=epoch / 2))
        lines.append(validation_line(epoch, 3.0 / epoch, alignment_sharpness=epoch / 4))
    write_lines(tmp_path, lines)
    transcripts = [Transcript("nine hundred", "nine"), Transcript("two", "two")]
    heard = Intelligibility(1 / 3, 0.0, 0.0, 2, "epoch_2.pt", 2, transcripts)
    (tmp_path / "heard.json").write_text(json.dumps(asdict(heard)))
    found = learning.values_of(tmp_path, "rand", 7, {2: tmp_path / "heard.json"})
    learning.write_values(tmp_path / "values.csv", found)
    kept = learning.read_values(tmp_path / "values.csv")
    assert kept["updates"].tolist() == [12, 24]
    assert kept["decoder_steps"].tolist() == [1501, 3003]
    assert kept["validation_loss_unpadded"].tolist() == [6, 3]
    assert kept["gradient_norm"].tolist() == [0.5, 1]
    assert kept["alignment_sharpness"].tolist() == [0.25, 0.5]
    assert kept["minutes"].isna().all()  # the run's own are of a busy machine
    assert kept["word_error_rate"].tolist()[1] == pytest.approx(1 / 3, rel=1e-5)
    assert kept["words"].tolist()[1] == 3
    assert learning.is_complete(kept, "rand", 7, 2, [2])
    assert not learning.is_complete(kept, "rand", 7, 2, [1, 2])


def test_another_file_is_no_raw_values(tmp_path):
    path = tmp_path / "values.csv"
    assert learning.read_values(path).empty
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(UserError, match=r"values.csv: not the raw values of a study: .*delete it"):
        learning.read_values(path)


def test_plateau_counts_sharp_lines_that_do_not_learn():
    ends = [(0.29, 1.0), (0.2, 9.0), (0.31, 5.1), (0.6, 4.9)]  # sharpness, gradient norm
    rows = [
        {"name": "rand", "seed": seed, "epoch": 3, "alignment_sharpness": a, "gradient_norm": b}
        for seed, (a, b) in enumerate(ends)
    ]
    early = {"name": "rand", "seed": 3, "epoch": 2, "alignment_sharpness": 0.6, "gradient_norm": 9}
    table = learning.plateau_table(pd.DataFrame([*rows, early]), ["rand"])
    assert table.splitlines()[-1].split() == "| rand | 4 | 2 | 1 |".split()


def test_the_report_has_tables_and_a_picture(values, tmp_path):
    values[["alignment_sharpness", "gradient_norm"]] = 0.5, 1.0
    settings = {"rand": "rand.sh", "ssb": "ssb.sh", "not_run": "sb.sh"}
    learning.write_report(values, POINTS, settings, tmp_path, "# A study")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Loss against rand" in text
    assert "## Alignment" not in text
    assert "not_run" not in text
    assert "+50 ± " in text
    learning.write_report(values, (), settings, tmp_path, "# A study")
    assert "## Alignment" in (tmp_path / "report.md").read_text(encoding="utf-8")
    one = learning.changes_table(
        values[values["seed"] == 1], RATE, "epoch", POINTS, ["rand", "ssb"]
    )
    assert one.splitlines()[-1].split("|")[2].strip() == "+200"
    assert (tmp_path / "learning.svg").stat().st_size > 10_000
