"""scripts/demo.py: its arithmetic by hand, and the whole of it on a handful of clips."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import metrics, run_program

from scripts import demo

ROOT = Path(__file__).resolve().parent.parent


def run_metrics(*minutes: float, zpr: float, abl: float) -> SimpleNamespace:
    """What `read_metrics` gives, of a run with these minutes an epoch."""
    epochs = [
        SimpleNamespace(
            minutes=m,
            zero_padding_rate=zpr,
            average_batch_length=abl + 100 * i,
            num_batches=10,
            frames_per_second=1000 / m,
        )
        for i, m in enumerate(minutes)
    ]
    validation = SimpleNamespace(validation_loss=2.0, validation_loss_unpadded=3.0)
    return SimpleNamespace(epochs=epochs, validations=[validation])


def test_the_table_gives_medians_of_time_and_the_saving_against_random():
    summaries = {
        "RAND": demo.summarise(run_metrics(9.0, 2.0, 2.0, zpr=0.3, abl=700)),
        "SSB-DBS-BR": demo.summarise(run_metrics(1.0, 1.5, 99.0, zpr=0.1, abl=500)),
    }
    titles, random, ours = (line.split("  ") for line in demo.table(summaries).splitlines())
    assert [word.strip() for word in titles if word][-3:] == ["val. loss", "unpadded", "saving"]
    assert " ".join(random).split() == [
        "RAND", "30.00", "800.0", "10.0", "2.000", "500", "2.0000", "3.0000", "–",
    ]  # fmt: skip
    assert " ".join(ours).split()[4] == "1.500"
    assert " ".join(ours).split()[-1] == "25.0%"  # 1.5 against 2


class ForkedProgram:
    """A stand-in for Popen: the same command, in a fork that has torch loaded already."""

    returncode = None

    def __init__(self, command: list[str | Path], env: dict[str, str]):
        python, *self.arguments = map(str, command)
        assert (python, env["OMP_NUM_THREADS"]) == (sys.executable, "1")

    def wait(self) -> None:
        ended = run_program(Path.cwd(), self.arguments)
        print(ended.output)
        self.returncode = ended.code


def test_the_demo_runs_in_a_path_with_spaces_and_again_over_itself(tmp_path, monkeypatch, capsys):
    pytest.importorskip("espeakng_loader", reason="the demo speaks with espeakng-loader")
    folder = tmp_path / "where I work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(demo.subprocess, "Popen", ForkedProgram)
    # A tenth of the frames of clips as long as these, and speech that ends with its first frame.
    quick = f"{demo.TRAINING},hop_length=2560,filter_length=4096,gate_threshold=1e-9"
    monkeypatch.setattr(demo, "TRAINING", quick)

    out, printed = Path("a demo"), []
    for _ in range(2):
        demo.main(["--out", str(out), "--clips", "12", "--epochs", "1"])
        printed.append(capsys.readouterr().out)
    assert printed[0].count("\n$ python ") == 5
    assert "\n$ python train.py -o 'a demo/rand' --resume --hparams '@a demo/" in printed[0]
    assert "10 training clips, 2 for validation, 1,126,113 parameters" in printed[0]  # small_model
    for path in ("comparison.png", "comparison.txt", "speech/0001.wav", "speech/0001.png"):
        assert (out / path).stat().st_size > 0
    assert (out / "ssb-dbs-br" / "best.pt").is_file()
    comparison = (out / "comparison.txt").read_text(encoding="utf-8")
    assert comparison in printed[0]
    assert comparison in printed[1]  # finished runs are not trained again
    assert [epoch["epoch"] for epoch in metrics(out / "rand", "epoch")] == [1]
    assert "prepare_ljspeech.py data/LJSpeech-1.1 --download" in printed[0]  # the next command


def test_ctrl_c_lets_the_program_save_and_says_how_to_go_on(tmp_path):
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
    process = subprocess.Popen(
        [sys.executable, "-c", f"from scripts import demo; demo.run({str(program)!r})"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "$ python" in process.stdout.readline() + process.stdout.readline()
    assert process.stdout.readline() == "training\n"
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    output, errors = process.communicate(timeout=30)
    assert (output, process.returncode) == ("saved\n", 1)
    assert errors.startswith("the demo stopped at ")
    assert "Traceback" not in errors
