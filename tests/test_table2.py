"""scripts/table2: what each experiment trains, in which order, and how it stops and fails."""

import os
import re
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
from analysis.published import SETTINGS, TABLE_2
from hparams import HParams, create_hparams
from scripts import prepare_ljspeech, quick_mode, report

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

# Stands in for Python: writes down how it was called. A training leaves its metrics behind, takes
# $SECONDS_A_RUN, and 15 s and 7 s an epoch on the clock that `date` reads here, and ends with the
# status that the file $OUT/status.<experiment> holds, if any.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$(printf '%s\\t' "$@")" >>"$CALLS"
case $1 in
  train.py)
    mkdir -p "$3" && name=$(basename "$(dirname "$3")")
    sleep "${SECONDS_A_RUN:-0}"
    [[ $6 =~ epochs=([0-9]+) ]]
    trained=$(cat "$3/epochs" 2>/dev/null || echo 0)
    new=$((BASH_REMATCH[1] > trained ? BASH_REMATCH[1] - trained : 0))
    echo $((trained + new)) >"$3/epochs"
    echo $(($(cat "$CLOCK") + 15 + 7 * new)) >"$CLOCK"
    status=$(cat "$(dirname "$(dirname "$3")")/status.$name" 2>/dev/null || echo 0)
    [ "$status" = 2 ] || echo '{}' >"$3/metrics.jsonl"
    exit "$status" ;;
  */quick_mode.py)
    exec REAL "$@" ;;
  scripts/prepare_ljspeech.py)
    [ -d "$2" ] || { echo "no such folder: $2" >&2; exit 1; }
    mkdir -p "$4" && yes 'a|b|1.0' | head -n 200 >"$4/train_mel.txt" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script of scripts/table2 from a folder with a space in its name."""
    stand_in, date, clock = (tmp_path / name for name in ("stand-in", "bin/date", "clock"))
    date.parent.mkdir()
    stand_in.write_text(STAND_IN.replace("REAL", f'"{sys.executable}"'))
    date.write_text('#!/bin/sh\ncat "$CLOCK"\n')
    clock.write_text("1000")
    for program in (stand_in, date):
        program.chmod(0o755)
    here = tmp_path / "a folder"
    (here / "corpus" / "wavs").mkdir(parents=True)
    (here / "corpus" / "metadata.csv").write_text(
        "".join(f"C{i}|Text.|Text.\n" for i in range(250))
    )

    def start(script, *options, wait=True, **environment):
        given = {"PYTHON": stand_in, "CALLS": tmp_path / "calls", "CLOCK": clock}
        given |= {"PATH": f"{date.parent}:{os.environ['PATH']}"}
        given |= {"CORPUS": "corpus", "OUT": "out"}
        env = {**os.environ, **{k: str(v) for k, v in (given | environment).items()}}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = ["bash", str(TABLE2 / script), *options]
        process = subprocess.Popen(command, cwd=here, env=env, start_new_session=True, **output)
        if not wait:
            return process
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    start.here, start.calls, start.clock = here, tmp_path / "calls", clock
    return start


def calls(run, program):
    """Arguments of every call of a program so far."""
    lines = run.calls.read_text().splitlines() if run.calls.exists() else []
    return [line.rstrip("\t").split("\t") for line in lines if line.startswith(f"{program}\t")]


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
    status, output = run("sb.sh", NAME="sb_small", PYTHON=Path("..") / "stand-in", **settings)
    assert status == 0, output
    found = [(*run, h.seed, h.epochs, h.batch_size, h.precision) for *run, h in trained(run)]
    assert found == [("sb_small", f"seed_{n}", n, 10, 8, "bf16") for n in (3, 5)]


def test_an_interrupted_preparation_is_repeated(run):
    for script in ("rand.sh", "sb.sh"):
        assert run(script)[0] == 0
    assert len(calls(run, "scripts/prepare_ljspeech.py")) == 1
    (run.here / "out" / "corpus.txt").unlink()
    assert run("sb.sh")[0] == 0
    assert len(calls(run, "scripts/prepare_ljspeech.py")) == 2


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
    report_command = ["scripts/report.py", str(out), "-o", str(out / "report")]
    assert calls(run, "scripts/report.py") == [report_command]
    assert "10 of 10, ssb_dbs_br" in output
    assert output.endswith("left out of the report: sb\n") == bool(failing)


@pytest.mark.parametrize(
    "options", [["--quik"], ["--minutes", "3"], ["--quick-gpu"], ["--quick-gpu", "--minutes", "0"]]
)
def test_all_refuses_unknown_options(run, options):
    status, output = run("all.sh", *options)
    assert status == 2
    assert output.startswith("all.sh: ")
    assert not run.calls.exists()


@pytest.mark.parametrize("status", [2, 130])  # settings refused, Ctrl-C
def test_a_signal_or_wrong_settings_stop_all(run, status):
    (run.here / "out").mkdir()
    (run.here / "out" / "status.ssb_br").write_text(str(status))
    got, output = run("all.sh")
    assert got == status
    assert [row for row, _, _ in trained(run)] == ROWS[:3]
    assert calls(run, "scripts/report.py") == []
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


def test_quick_scales_corpus_and_batching_down(run, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the settings file of the small model is found
    status, output = run("all.sh", "--quick", EXTRA="seed=7")
    assert status == 0, output
    runs = trained(run)
    assert [row for row, _, _ in runs] == ROWS
    part = run.here / "out" / "corpus"
    assert len((part / "metadata.csv").read_text().splitlines()) == quick_mode.MOST_CLIPS
    h = runs[0][2]
    scaled = {name: getattr(h, name) for name in ("batch_size", "bucket_size", "num_bins")}
    assert scaled == quick_mode.scaled_batching(200)  # the stand-in's filelist
    assert (h.epochs, h.seed, h.decoder_rnn_dim) == (6, 7, 128)
    assert re.search(r"reproduces no figure of the paper: batch_size=12,", output)


@pytest.mark.parametrize("minutes", [5, 25])
def test_quick_gpu_uses_the_minutes_in_equal_rounds(run, minutes):
    status, output = run("all.sh", "--quick-gpu", "--minutes", str(minutes))
    assert status == 0, output
    runs = trained(run)
    rounds = [runs[i : i + 10] for i in range(0, len(runs), 10)]
    assert all([row for row, _, _ in one] == ROWS for one in rounds)
    assert all(len({h.epochs for _, _, h in one}) == 1 for one in rounds)
    epochs = [one[0][2].epochs for one in rounds]
    assert epochs[0] == 1
    assert epochs == sorted(set(epochs))
    spent = int(run.clock.read_text()) - 1000
    assert spent <= 60 * minutes or len(rounds) == 1
    assert 60 * minutes - spent <= 2 * 10 * (15 + 7)  # or more had fitted
    assert (run.here / "out" / "epochs").read_text().strip() == str(epochs[-1])
    assert runs[0][2].decoder_rnn_dim == HParams().decoder_rnn_dim  # the full-size model


@pytest.mark.parametrize(("minutes", "epochs"), [(1, [4] * 10), (10, [4] * 10 + [5] * 10)])
def test_quick_gpu_completes_an_interrupted_round_first(run, minutes, epochs):
    (run.here / "out").mkdir()
    (run.here / "out" / "epochs").write_text("4\n")
    assert run("all.sh", "--quick-gpu", "--minutes", str(minutes))[0] == 0
    assert [h.epochs for _, _, h in trained(run)] == epochs


# --- what quick_mode.py scales


@pytest.mark.parametrize("clips", [8, 15, 33, 80, 192, 1600, 10_480])
def test_a_small_corpus_keeps_the_papers_proportions(clips):
    scaled = quick_mode.scaled_batching(clips)
    batches = clips / scaled["batch_size"]
    assert scaled["bucket_size"] % scaled["batch_size"] == 0
    assert scaled["bucket_size"] >= 2 * scaled["batch_size"]
    assert 2 <= scaled["num_bins"] <= -(-batches // 2)
    if clips >= 1600:
        assert scaled["bucket_size"] / clips == pytest.approx(1024 / 10_480, rel=0.05)
        assert scaled["num_bins"] / batches == pytest.approx(58 / 655, rel=0.05)
    settings = ",".join(f"{name}={value}" for name, value in scaled.items())
    assert create_hparams(f"batching_strategy=bucket,{settings}")
    with pytest.raises(ValueError, match="7 training clips: expected at least 8"):
        quick_mode.scaled_batching(7)


def test_part_of_a_corpus_links_its_clips(tmp_path):
    corpus = make_corpus(tmp_path / "all", 90)
    quick_mode.take_part(corpus, tmp_path / "out" / "part")
    part = tmp_path / "out" / "part"
    lines = (part / "metadata.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == quick_mode.MOST_CLIPS
    for line in lines:
        clip, _, text = line.split("|")
        assert text == f"Number {int(clip[1:])}."
        assert (part / "wavs" / f"{clip}.wav").samefile(corpus / "wavs" / f"{clip}.wav")
    assert len(list((part / "wavs").iterdir())) == quick_mode.MOST_CLIPS
    assert "already" in quick_mode.take_part(corpus, part)
    few = make_corpus(tmp_path / "few", 12)
    quick_mode.take_part(few, tmp_path / "whole")
    assert len((tmp_path / "whole" / "metadata.csv").read_text().splitlines()) == 12
    with pytest.raises(ValueError, match=r"holds clips of .*all, and CORPUS is .*few"):
        quick_mode.take_part(few, part)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="holds clips of another corpus"):
        quick_mode.take_part(few, tmp_path / "mine")


# --- with the real programs


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
    [prepared], [trained] = (calls(run, x) for x in ("scripts/prepare_ljspeech.py", "train.py"))
    prepare_ljspeech.main(prepared[1:])
    train.main(trained[1:])
    folder = run.here / "out" / "ssb_dbs_br" / "seed_0"
    assert [record["kind"] for record in metrics(folder)] == ["run", "epoch"]

    monkeypatch.chdir(run.here)
    report.main(["out", "-o", "report"])
    text = (run.here / "report" / "report.md").read_text(encoding="utf-8")
    assert "SSB-DBS-BR" in text
    assert "not a reproduction" in text
