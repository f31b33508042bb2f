"""scripts/demo.py: its arithmetic by hand, and the whole of it on a handful of clips."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo

ROOT = Path(__file__).resolve().parent.parent


def epoch(number: int, minutes: float, zpr: float, abl: float) -> dict:
    return {
        "kind": "epoch",
        "epoch": number,
        "minutes": minutes,
        "zero_padding_rate": zpr,
        "average_batch_length": abl,
        "num_batches": 10,
        "frames_per_second": 1000 / minutes,
        "padded_fraction": zpr,
    }


def test_the_table_gives_medians_of_time_and_the_saving_against_random():
    validation = {"validation_loss": 2.0, "validation_loss_unpadded": 3.0}
    rand = [epoch(1, 9.0, 0.3, 700), epoch(2, 2.0, 0.3, 800), epoch(3, 2.0, 0.3, 900)]
    ours = [epoch(1, 1.0, 0.1, 500), epoch(2, 1.5, 0.1, 500), epoch(3, 99.0, 0.1, 500)]
    summaries = {
        "RAND": demo.summarise(rand, [validation]),
        "SSB-DBS-BR": demo.summarise(ours, [validation]),
    }
    _, first, second = demo.table(summaries).splitlines()
    assert first.split() == [
        "RAND", "30.00", "800.0", "10.0", "2.000", "500", "2.0000", "3.0000", "–",
    ]  # fmt: skip
    assert second.split()[4] == "1.500"
    assert second.split()[-1] == "25.0%"  # 1.5 against 2


def test_the_demo_runs_from_a_path_with_spaces_and_again_over_itself(tmp_path):
    pytest.importorskip("espeakng_loader", reason="the demo speaks with espeakng-loader")
    out = tmp_path / "a demo"
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), "--out", str(out)]
    command += ["--clips", "12", "--epochs", "1"]
    first, second = (
        subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ}, check=False
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    for path in ("comparison.png", "comparison.txt", "speech/0001.wav", "speech/0001.png"):
        assert (out / path).stat().st_size > 0
    assert (out / "ssb-dbs-br" / "best.pt").is_file()
    comparison = (out / "comparison.txt").read_text(encoding="utf-8")
    assert comparison in first.stdout
    assert comparison in second.stdout  # finished runs are not trained again
    lines = [json.loads(line) for line in (out / "rand" / "metrics.jsonl").open()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1]
    assert "prepare_ljspeech.py" in first.stdout  # the next command


def test_ctrl_c_lets_the_script_save_and_says_how_to_go_on(tmp_path):
    script = tmp_path / "trains.py"
    script.write_text(
        "import sys, time\n"
        "try:\n"
        "    print('training', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(130)\n"
    )
    program = f"from scripts import demo; demo.run({str(script)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
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
