"""Test scripts/demo.py: its calculations, its commands, and a complete small run."""

import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers import ROOT, call_alone, fork_server, metrics, run_program

from evaluation.results import Intelligibility, read_result
from scripts import commands, demo
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_json


def epochs(*minutes: float, zpr: float, abl: float) -> list[dict]:
    """Return one metrics record per epoch with these durations in minutes."""
    return [
        {
            "minutes": m,
            "zero_padding_rate": zpr,
            "average_batch_length": abl + 100 * i,
            "num_batches": 10,
            "frames_per_second": 1000 / m,
        }
        for i, m in enumerate(minutes)
    ]


def cells(line: str) -> list[str]:
    """Return the cells in a line of a Markdown table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_demo_comparison_shows_median_times_and_the_time_saving():
    random = epochs(9.0, 2.0, 2.0, zpr=0.3, abl=700)
    ours = epochs(1.0, 1.5, 99.0, 1.5, zpr=0.1, abl=500)
    lines = demo.compare(random + ours, 3).splitlines()
    assert cells(lines[2]) == ["RAND", "3", "30.00", "800.0", "10.0", "2.000", "500", "–"]
    expected = ["SSB-DBS-BR", "4", "10.00", "650.0", "10.0", "1.500", "667", "25.0%"]
    assert cells(lines[3]) == expected


class ForkedProgram:
    """Stand in for Popen: run the same command in a forked process that has already imported
    torch."""

    returncode = None

    def __init__(self, command: list[str | Path], env: dict[str, str]):
        python, *self.arguments = map(str, command)
        threads = "2" if Path(self.arguments[0]).name == "train.py" else "1"
        assert (python, env["OMP_NUM_THREADS"]) == (sys.executable, threads)

    def wait(self) -> None:
        ended = run_program(Path.cwd(), self.arguments)
        print(ended.output)
        self.returncode = ended.code


@pytest.mark.thorough
def test_demo_can_be_repeated_when_its_path_contains_spaces(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "where I work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(commands.subprocess, "Popen", ForkedProgram)
    monkeypatch.setattr(demo, "SMALL", demo.SMALL._replace(random_epochs=1))
    monkeypatch.setattr(demo, "UNSEEN", 1)
    monkeypatch.setattr(demo, "VALIDATION", 0.2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    out = Path("a demo")
    printed = []
    for _ in range(2):
        demo.main(["--out", str(out), "--clips", "12", "--epochs", "2"])
        printed.append(capsys.readouterr().out)
    assert printed[0].count("\n$ python ") == 6
    assert "\n$ python train.py -o 'a demo/run' --resume --hparams '@a demo/" in printed[0]
    assert "10 training clips" in printed[0]
    for path in ("learning.svg", "voice/voice.json", "speech/0001.wav", "speech/0001.png"):
        assert (out / path).stat().st_size > 0
    assert (out / "run" / "best.pt").is_file()
    comparison = (out / "comparison.txt").read_text(encoding="utf-8")
    assert comparison in printed[0]
    assert comparison in printed[1]  # the finished run was not trained again
    epochs = [cells(line)[:2] for line in comparison.splitlines()[2:]]
    assert epochs == [["RAND", "1"], ["SSB-DBS-BR", "1"]]
    assert [epoch["epoch"] for epoch in metrics(out / "run", "epoch")] == [1, 2]
    result = read_result(out / "intelligibility.json", Intelligibility)
    assert result.texts == 1
    assert f" {result.word_error_rate:.3f}\n" in printed[1]
    [line] = (out / "unseen" / "metadata.csv").read_text(encoding="utf-8").splitlines()
    text = line.split("|")[2]
    assert (out / "speech" / "index.csv").read_text("utf-8") == f"wav,text\n0001.wav,{text}\n"
    assert text not in (out / "corpus" / "metadata.csv").read_text(encoding="utf-8")
    assert 'make say-number TEXT="4,072"' in printed[0]


def test_learning_rate_decays_in_the_last_quarter_of_a_demo_run():
    """`updates` contains the numbers of optimizer steps per epoch with RAND and with SSB-DBS-BR."""
    for settings, updates in ((demo.SMALL, (119, 85)), (demo.FULL_SIZE, (60, 42.5))):
        later = (settings.epochs - settings.random_epochs) * updates[1]
        total = settings.random_epochs * updates[0] + later
        assert 0.7 < settings.decay_start / total < 0.8
        assert 3.5 < (total - settings.decay_start) / settings.half_life < 4.5
        assert (ROOT / "scripts" / settings.model).is_file()


def test_demo_fails_when_its_folder_is_a_file(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"notes\.txt.*--out"):
        demo.main(["--out", str(tmp_path / "notes.txt")])


def test_demo_transcribes_the_speech_again_when_the_checkpoint_is_newer_than_the_result(
    tmp_path, monkeypatch
):
    best = tmp_path / "best.pt"
    found = tmp_path / "intelligibility.json"
    runs = []

    def evaluate(*command, **_):
        runs.append(command)
        write_json(found, asdict(Intelligibility(0.25, 0.1, 0.125, 50, "best.pt", 12, [])))
        os.utime(found, (2000, 2000))

    monkeypatch.setattr(demo, "run_stage", evaluate)
    best.touch()
    for seconds, expected in ((1000, 1), (1000, 1), (3000, 2)):
        os.utime(best, (seconds, seconds))
        assert demo.speak(tmp_path, best).word_error_rate == 0.25
        assert len(runs) == expected


def test_demo_waits_for_the_last_checkpoint_when_it_receives_ctrl_c(tmp_path):
    program = tmp_path / "trains.py"
    program.write_text(
        "import sys, time\n"
        "try:\n"
        "    print('training', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.5)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(130)\n"
    )
    log = tmp_path / "log"
    process = fork_server().Process(target=call_alone, args=(log, commands.run_stage, program))
    process.start()
    deadline = time.monotonic() + 60
    while not log.exists() or "training\n" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole process group
    process.join(30)
    assert process.exitcode == 1
    assert str(program) in log.read_text().partition("\nsaved\n")[2]


def test_demo_folder_and_settings_depend_on_the_language(tmp_path, monkeypatch):
    commands = []

    def stop(program, *arguments, **_):
        commands.append([program, *map(str, arguments)])
        if program == "train.py":
            raise UserError("stopped")

    monkeypatch.setattr(demo, "run_stage", stop)
    monkeypatch.chdir(tmp_path)
    for given in ("", "--language de", "--language ko --phones", "--phones"):
        with pytest.raises(UserError, match="stopped"):
            demo.main(given.split())
    corpora = commands[::4]
    prepared = commands[2::4]
    assert [words[1] for words in corpora] == [
        f"{folder}/corpus" for folder in ("demo", "demo-de", "demo-ko-phones", "demo-phones")
    ]
    assert [words[4:] for words in corpora] == [[], ["--language", "de"], ["--language", "ko"], []]
    phones = "text_cleaners=[phones],language="
    letters = "symbols=corpus,text_cleaners=[basic_cleaners]"
    assert [words[8:] for words in prepared] == [
        [],
        *(["--hparams", x] for x in (letters, f"{phones}ko", f"{phones}en-us")),
    ]


@pytest.mark.parametrize("language", ["ja", "kok", "tet"])
def test_demo_fails_when_a_language_has_no_number_words(language, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{language}: "):
        demo.main(["--language", language])
