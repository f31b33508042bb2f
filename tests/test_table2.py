"""Test the shell scripts in scripts/table2: settings, order, stops and failures."""

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

# STAND_IN is a program that replaces Python and records the arguments of each call.
# A training run takes $SECONDS_PER_RUN and writes metrics.jsonl.
# The file $OUT/status.<experiment> contains the exit code of the run (default: 0).
STAND_IN = """#!/usr/bin/env bash
name=$(basename "$(dirname "${3:-.}")")
[ "$1" != train.py ] || mkdir -p "$3"
printf '%s\\n' "$(printf '%s\\t' "$@")" >>"$CALLS"
case $1 in
  train.py)
    sleep "${SECONDS_PER_RUN:-0}"
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
    """Return a function that runs a script in a folder with a space in its name."""
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
    """Return the recorded arguments of every call of `program`."""
    lines = run.calls.read_text().splitlines() if run.calls.exists() else []
    start = "\t".join([*program.split(), ""])
    return [line.rstrip("\t").split("\t") for line in lines if line.startswith(start)]


def trained(run):
    """Return (experiment, seed folder, settings) for every training run."""
    found = []
    for call in calls(run, "train.py"):
        assert call[1] == "-o"
        assert call[3:5] == ["--resume", "--hparams"]
        folder = Path(call[2])
        found.append((folder.parent.name, folder.name, create_hparams(call[5])))
    return found


@pytest.mark.parametrize("name", [*ROWS, "all"])
def test_table_2_script_is_executable(name):
    assert os.access(TABLE2 / f"{name}.sh", os.X_OK)


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2_script_trains_with_the_strategy_in_its_file_name(run, name):
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


def test_table_2_script_reads_settings_from_the_environment(run):
    """The variable PYTHON can be a relative path."""
    settings = {"SEEDS": "3 5", "EPOCHS": 10, "EXTRA": "batch_size=8,precision=bf16"}
    status, output = run("sb.sh", PYTHON=Path("..") / "stand-in", **settings)
    assert status == 0, output
    found = [(*run, h.seed, h.epochs, h.batch_size, h.precision) for *run, h in trained(run)]
    assert found == [("sb", f"seed_{n}", n, 10, 8, "bf16") for n in (3, 5)]


def test_table_2_script_prepares_the_corpus_again_when_the_preparation_was_interrupted(run):
    for script in ("rand.sh", "sb.sh"):
        assert run(script)[0] == 0
    assert len(calls(run, "scripts/prepare.py")) == 1
    (run.here / "out" / "corpus.txt").unlink()
    assert run("sb.sh")[0] == 0
    assert len(calls(run, "scripts/prepare.py")) == 2


def test_table_2_script_does_not_train_when_the_corpus_is_missing(run):
    for script in ("rand.sh", "all.sh"):
        status, output = run(script, CORPUS="nowhere")
        assert status == 1
        assert "nowhere" in output
    assert trained(run) == []


def test_table_2_script_does_not_train_when_the_corpus_has_changed(run):
    assert run("rand.sh")[0] == 0
    (run.here / "other").mkdir()
    status, output = run("rand.sh", CORPUS="other")
    assert status == 1
    assert "OUT" in output
    assert len(trained(run)) == 1


def test_table_2_script_prints_one_line_when_python_or_torch_is_missing(run, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    for script, python in (("rand.sh", bare), ("all.sh", bare), ("rand.sh", "no-such-python")):
        status, output = run(script, PYTHON=python)
        assert status == 1
        assert output.count("\n") == 1
        assert f"{python}: " in output
        assert "PYTHON=" in output


@pytest.mark.parametrize("failing", [None, "sb"])
def test_script_for_all_rows_of_table_2_writes_the_report_when_a_row_fails(run, failing):
    out = run.here / "out"
    out.mkdir()
    (out / f"status.{failing}").write_text("1")
    status, output = run("all.sh", EPOCHS=4)
    assert status == bool(failing), output
    assert [row for row, _, _ in trained(run)] == ROWS
    report_command = ["-m", "scripts.table2.report", str(out), "-o", str(out / "report")]
    assert calls(run, "-m scripts.table2.report") == [report_command]
    last_line = output.splitlines()[-1]
    assert last_line.endswith(": sb") == bool(failing)


def test_script_for_all_rows_of_table_2_rejects_arguments(run):
    status, output = run("all.sh", "--small")
    assert status == 2
    assert "--small" in output
    assert not run.calls.exists()


@pytest.mark.parametrize("status", [2, 130])  # exit codes for invalid settings and for Ctrl-C
def test_script_for_all_rows_of_table_2_stops_when_settings_are_invalid_or_a_run_is_interrupted(
    run, status
):
    (run.here / "out").mkdir()
    (run.here / "out" / "status.ssb_br").write_text(str(status))
    assert run("all.sh")[0] == status
    assert [row for row, _, _ in trained(run)] == ROWS[:3]
    assert calls(run, "-m scripts.table2.report") == []


def test_script_for_all_rows_of_table_2_stops_when_it_receives_ctrl_c(run):
    process = run("all.sh", wait=False, SECONDS_PER_RUN=30)
    deadline = time.monotonic() + 60
    while not calls(run, "train.py") and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole process group
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert len(trained(run)) == 1


# ---------------------------------------------------------------------------- real programs


@pytest.mark.thorough
@pytest.mark.usefixtures("clean_process")
def test_programs_accept_the_arguments_of_the_table_2_scripts(run, monkeypatch):
    """The recorded arguments are passed to the real programs."""
    make_corpus(run.here / "a corpus", 12)
    tiny = TINY | {"win_time": None, "hop_time": None, "bucket_size": 6}
    del tiny["epochs"]
    extra = ",".join(f"{name}={value}" for name, value in tiny.items())
    status, output = run("ssb_dbs_br.sh", CORPUS="a corpus", EPOCHS=1, EXTRA=extra)
    assert status == 0, output
    shutil.rmtree(run.here / "out")  # the replacement program created this folder
    [prepared] = calls(run, "scripts/prepare.py")
    [trained] = calls(run, "train.py")
    prepare.main(prepared[1:])
    train.main(trained[1:])
    folder = run.here / "out" / "ssb_dbs_br" / "seed_0"
    assert [record["kind"] for record in metrics(folder)] == ["run", "epoch"]

    monkeypatch.chdir(run.here)
    report.main(["out", "-o", "report"])
    assert "SSB-DBS-BR" in (run.here / "report" / "report.md").read_text(encoding="utf-8")
