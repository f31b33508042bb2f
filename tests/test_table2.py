"""scripts/table2: what each experiment trains, in which order, and how it stops and fails."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import make_corpus
from helpers import TINY, metrics

import train
from hparams import HParams, create_hparams
from scripts import prepare
from scripts.table2 import report
from scripts.table2.published import SETTINGS, TABLE_2

ROOT = Path(__file__).resolve().parent.parent
TABLE2 = ROOT / "scripts" / "table2"
ROWS = [name.lower().replace("-", "_") for name in TABLE_2]
STRATEGY = {
    "RAND": "random",
    "SB": "sorted",
    "SSB": "semi_sorted",
    "BKT": "bucket",
    "ATS": "alternated_sort",
}

# Stands in for Python: writes down how it was called. A training then takes $SECONDS_A_RUN (at
# once, or bash may survive a Ctrl-C), leaves its metrics behind, and ends with the status that the
# file $OUT/status.<experiment> holds, if any.
STAND_IN = """#!/usr/bin/env bash
name=$(basename "$(dirname "${3:-.}")")
[ "$1" != train.py ] || mkdir -p "$3"
printf '%s\\n' "$(printf '%s\\t' "$@")" >>"$CALLS"
case $1 in
  train.py)
    sleep "${SECONDS_A_RUN:-0}"
    status=$(cat "$(dirname "$(dirname "$3")")/status.$name" 2>/dev/null || echo 0)
    [ "$status" = 2 ] || echo '{}' >"$3/metrics.jsonl"
    exit "$status" ;;
  scripts/prepare.py)
    [ -d "$2" ] || { echo "no such folder: $2" >&2; exit 1; }
    mkdir -p "$4" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script of scripts/table2 from a folder with a space in its name."""
    stand_in = tmp_path / "stand-in"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    here = tmp_path / "a folder"
    (here / "corpus").mkdir(parents=True)

    def start(script, *options, wait=True, **environment):
        given = {"PYTHON": stand_in, "CALLS": tmp_path / "calls"}
        given |= {"CORPUS": "corpus", "OUT": "out"}
        env = {**os.environ, **{k: str(v) for k, v in (given | environment).items()}}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = ["bash", str(TABLE2 / script), *options]
        process = subprocess.Popen(command, cwd=here, env=env, start_new_session=True, **output)
        if not wait:
            return process
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    start.here, start.calls = here, tmp_path / "calls"
    return start


def calls(run, program):
    """Return the arguments of every call of a program so far."""
    lines = run.calls.read_text().splitlines() if run.calls.exists() else []
    start = "\t".join([*program.split(), ""])
    return [line.rstrip("\t").split("\t") for line in lines if line.startswith(start)]


def trained(run):
    """(experiment, seed folder, hparams) of every training started so far."""
    found = []
    for call in calls(run, "train.py"):
        assert call[1] == "-o"
        assert call[3:5] == ["--resume", "--hparams"]
        folder = Path(call[2])
        found.append((folder.parent.name, folder.name, create_hparams(call[5])))
    return found


def test_every_row_of_the_paper_has_a_script():
    scripts = {path.stem: os.access(path, os.X_OK) for path in TABLE2.glob("*.sh")}
    assert scripts == dict.fromkeys([*ROWS, "all"], True) | {"settings": False, "python": False}


@pytest.mark.parametrize("name", TABLE_2)
def test_a_script_trains_the_row_of_its_name(run, name):
    row = name.lower().replace("-", "_")
    status, output = run(f"{row}.sh")
    assert status == 0, output
    [(experiment, folder, hparams)] = trained(run)
    assert (experiment, folder) == (row, "seed_0")
    assert hparams.batching_strategy == STRATEGY[name.split("-")[0]]
    assert hparams.dynamic_batch_size == ("DBS" in name)
    assert hparams.batch_randomization == name.endswith("BR")
    assert {key: getattr(hparams, key) for key in SETTINGS} == SETTINGS
    assert (hparams.epochs, hparams.seed, hparams.load_mel_from_disk) == (222, 0, True)
    model = ("encoder_embedding_dim", "decoder_rnn_dim", "attention_rnn_dim", "prenet_dim")
    assert all(getattr(hparams, key) == getattr(HParams(), key) for key in model)
    lists = run.here / "out" / "filelists"
    assert hparams.training_files == str(lists / "train_mel.txt")
    assert hparams.validation_files == str(lists / "val_mel.txt")


def test_settings_come_from_the_environment(run):
    """PYTHON may be a relative path."""
    settings = {"SEEDS": "3 5", "EPOCHS": 10, "EXTRA": "batch_size=8,precision=bf16"}
    status, output = run("sb.sh", PYTHON=Path("..") / "stand-in", **settings)
    assert status == 0, output
    found = [(*run, h.seed, h.epochs, h.batch_size, h.precision) for *run, h in trained(run)]
    assert found == [("sb", f"seed_{n}", n, 10, 8, "bf16") for n in (3, 5)]


def test_an_interrupted_preparation_is_repeated(run):
    for script in ("rand.sh", "sb.sh"):
        assert run(script)[0] == 0
    assert len(calls(run, "scripts/prepare.py")) == 1
    (run.here / "out" / "corpus.txt").unlink()
    assert run("sb.sh")[0] == 0
    assert len(calls(run, "scripts/prepare.py")) == 2


def test_a_missing_or_another_corpus_stops_before_training(run):
    for script in ("rand.sh", "all.sh"):
        status, output = run(script, CORPUS="nowhere")
        assert status == 1
        assert "no such folder" in output
    assert trained(run) == []
    assert run("rand.sh")[0] == 0
    (run.here / "other").mkdir()
    status, output = run("rand.sh", CORPUS="other")
    assert status == 1
    assert "choose another OUT" in output
    assert len(trained(run)) == 1


def test_a_missing_or_bare_python_is_refused(run, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    for script, python in (("rand.sh", bare), ("all.sh", bare), ("rand.sh", "no-such-python")):
        status, output = run(script, PYTHON=python)
        assert status == 1
        assert output.count("\n") == 1
        assert f"{python}: not a Python with torch" in output
        assert "PYTHON=.venv/bin/python" in output


@pytest.mark.parametrize("failing", [None, "sb"])
def test_all_trains_ten_rows_and_reports(run, failing):
    """A row that fails stops no other."""
    out = run.here / "out"
    out.mkdir()
    (out / f"status.{failing}").write_text("1")
    status, output = run("all.sh", EPOCHS=4)
    assert status == bool(failing), output
    assert [row for row, _, _ in trained(run)] == ROWS
    report_command = ["-m", "scripts.table2.report", str(out), "-o", str(out / "report")]
    assert calls(run, "-m scripts.table2.report") == [report_command]
    assert "10 of 10, ssb_dbs_br" in output
    assert output.endswith("left out of the report: sb\n") == bool(failing)


@pytest.mark.parametrize("options", [["--small"], ["3", "x"]])
def test_all_refuses_arguments(run, options):
    status, output = run("all.sh", *options)
    assert status == 2
    assert output.startswith(f"all.sh: {' '.join(options)}: it takes no arguments")
    assert not run.calls.exists()


@pytest.mark.parametrize("status", [2, 130])  # settings refused, Ctrl-C
def test_a_signal_or_wrong_settings_stop_all(run, status):
    (run.here / "out").mkdir()
    (run.here / "out" / "status.ssb_br").write_text(str(status))
    got, output = run("all.sh")
    assert got == status
    assert [row for row, _, _ in trained(run)] == ROWS[:3]
    assert calls(run, "-m scripts.table2.report") == []
    assert "the same command resumes" in output


def test_ctrl_c_stops_all_rows(run):
    process = run("all.sh", wait=False, SECONDS_A_RUN=30)
    deadline = time.monotonic() + 60
    while not calls(run, "train.py") and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert len(trained(run)) == 1


# --- with the real programs


@pytest.mark.thorough
@pytest.mark.usefixtures("clean_process")
def test_real_programs_take_what_the_scripts_give(run, monkeypatch):
    """The commands that a script gave to the stand-in prepare, train and report."""
    make_corpus(run.here / "a corpus", 12, text="A text.")
    tiny = TINY | {"win_time": None, "hop_time": None, "bucket_size": 6}
    del tiny["epochs"]
    extra = ",".join(f"{name}={value}" for name, value in tiny.items())
    status, output = run("ssb_dbs_br.sh", CORPUS="a corpus", EPOCHS=1, EXTRA=extra)
    assert status == 0, output
    shutil.rmtree(run.here / "out")  # what the stand-in left
    [prepared], [trained] = (calls(run, x) for x in ("scripts/prepare.py", "train.py"))
    prepare.main(prepared[1:])
    train.main(trained[1:])
    folder = run.here / "out" / "ssb_dbs_br" / "seed_0"
    assert [record["kind"] for record in metrics(folder)] == ["run", "epoch"]

    monkeypatch.chdir(run.here)
    report.main(["out", "-o", "report"])
    text = (run.here / "report" / "report.md").read_text(encoding="utf-8")
    assert "SSB-DBS-BR" in text
    assert "not a reproduction" in text
