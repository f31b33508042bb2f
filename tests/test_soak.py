"""Test resuming with a run that is stopped 200 times, and test the comparison of runs.

Start the long test manually. The long test takes about 40 minutes on two cores:

    .venv/bin/python -m pytest -m slow -s tests/test_soak.py

You can configure the long test with the environment variables SOAK_STOPS, SOAK_SEED, SOAK_ONLY (one
of soak_runs.KINDS) and SOAK_HPARAMS. The test prints a report and writes it to soak.md in its
temporary folder (see --basetemp).
"""

import errno
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
import soak_runs
import torch
from helpers import metrics, newest
from same_run import compare_runs

from hparams import create_hparams
from tacotron2_voice.utils.errors import explained
from tacotron2_voice.utils.files import METRICS_FILE
from training.metrics import RunLogger


@pytest.mark.slow
def test_run_equals_an_uninterrupted_run_when_it_is_stopped_many_times(tmp_path):
    ended, lost = soak_runs.soak(
        tmp_path / "soak",
        stops=int(os.environ.get("SOAK_STOPS", "200")),
        seed=int(os.environ.get("SOAK_SEED", "0")),
        only=os.environ.get("SOAK_ONLY", ""),
        overrides=os.environ.get("SOAK_HPARAMS", ""),
    )
    report = (tmp_path / "soak" / "soak.md").read_text(encoding="utf-8")
    print(report)
    assert lost == [], report
    assert [stop.failure for stop in ended if stop.failure] == [], report


@pytest.mark.thorough
def test_log_contains_the_whole_output_of_a_run_when_the_disk_is_full(tmp_path):
    """The output is longer than 2,000 bytes, which is the file size limit that imitates a full
    disk."""
    draw = SimpleNamespace(randrange=lambda *_: 2000, random=lambda: 1, uniform=lambda *_: 60)
    hparams = create_hparams(soak_runs.SETTINGS)
    filelist = soak_runs.make_mels(tmp_path, hparams, 0)
    settings = f"{soak_runs.SETTINGS},training_files={filelist},validation_files=none"
    arguments = soak_runs.command(tmp_path / "run", settings, 10, 0)
    stop = soak_runs.start_and_stop(soak_runs.FULL_DISK, arguments, draw, tmp_path / "log")
    assert stop == (soak_runs.FULL_DISK, "set-up", 1, None, False)
    assert (tmp_path / "log").stat().st_size > 2000


def test_comparison_of_two_runs_detects_a_changed_bit_a_lost_line_and_a_lost_file(whole, copied):
    assert compare_runs(whole, copied) == []
    checkpoint = newest(copied)
    saved = torch.load(checkpoint, weights_only=True)
    name, weights = next(iter(saved["state_dict"].items()))
    weights.view(-1)[0] = torch.nextafter(weights.view(-1)[0], torch.tensor(9.0))
    torch.save(saved, checkpoint)
    kept = [json.dumps(line) for line in metrics(copied) if line["kind"] != "validation"]
    (copied / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    (copied / "best.pt").unlink()
    assert compare_runs(copied, whole) == [
        f"metrics.jsonl: {len(kept) - 1} entries, {len(metrics(whole)) - 1}",
        f"{checkpoint.name}/state_dict/{name}",
        "best.pt: missing",
    ]


@pytest.mark.parametrize(
    ("by_itself", "code", "printed", "accepted_message", "failure"),
    [
        (False, 143, "stopped and saved", "", None),
        (False, 1, "Traceback (most recent call last):\n  ...", "", "a traceback"),
        (True, 1, "train.py: no such file", "", "the start ended by itself, with exit code 1"),
        (True, 1, "a.pt: disk full: free some space", "free some space", None),
        (False, 143, "stopped and saved", "free some space", None),
        (
            True,
            120,
            "free some space",
            "free some space",
            "the start ended by itself, with exit code 120",
        ),
        (True, 1, "", "free some space", "the start ended by itself, with exit code 1"),
    ],
)
def test_start_of_a_run_counts_as_failed_when_it_ends_with_a_traceback_or_without_a_reason(
    by_itself, code, printed, accepted_message, failure
):
    found = soak_runs.failure_of(by_itself, code, printed, accepted_message)
    if failure is None:
        assert found is None
    else:
        assert found.startswith(failure)


def test_soak_patterns_match_the_messages_of_training(whole, tmp_path, capsys):
    assert soak_runs.TRAINING in whole.with_suffix(".log").read_text()
    (tmp_path / METRICS_FILE).write_text("changed\n")
    saved = {"logs": {METRICS_FILE: 8}, "metrics_checksum": 0}
    RunLogger(tmp_path, tmp_path / "logs", saved).close()
    assert re.search(soak_runs.LOST, capsys.readouterr().out)
    for number in (errno.ENOSPC, errno.EFBIG):
        message = explained(OSError(number, os.strerror(number), "/run/checkpoint_1.pt"))
        assert re.search(soak_runs.SAYS_FULL, message)


def test_soak_report_lists_stops_differences_and_failures():
    stops = [
        soak_runs.Stop("SIGKILL", "training", -signal.SIGKILL, None),
        soak_runs.Stop("SIGKILL", "set-up", -signal.SIGKILL, "a traceback"),
    ]
    report = soak_runs.summary(stops, ["best.pt: missing"], 3, 61.0, "seed 1")
    lines = [" ".join(line.split()) for line in report.splitlines()]
    assert "**NOT equal**" in report
    assert "| SIGKILL | training | -9 | 1 |" in lines
    assert lines[-2:] == ["- best.pt: missing", "- stop 2, SIGKILL: a traceback"]
