"""The soak of resume, which runs by hand, and fast tests that it sees what was lost.

    .venv/bin/python -m pytest -m slow -s tests/test_soak.py     200 faults, 40 minutes on two cores

SOAK_STOPS, SOAK_SEED, SOAK_ONLY (one of soak_runs.KINDS) and SOAK_HPARAMS in the environment change
it. It prints its report, which is also soak.md in the test's folder (--basetemp).
"""

import json
import os
import signal
from types import SimpleNamespace

import pytest
import soak_runs
import torch
from helpers import metrics, newest
from same_run import compare_runs

from corpus.lengths import make_corpus, synthetic_lengths
from hparams import create_hparams


@pytest.mark.slow
def test_a_run_stopped_many_times_loses_nothing(tmp_path):
    ended, lost = soak_runs.soak(
        tmp_path / "soak",
        stops=int(os.environ.get("SOAK_STOPS", "200")),
        seed=int(os.environ.get("SOAK_SEED", "0")),
        only=os.environ.get("SOAK_ONLY", ""),
        overrides=os.environ.get("SOAK_HPARAMS", ""),
    )
    page = (tmp_path / "soak" / "soak.md").read_text(encoding="utf-8")
    print(page)
    assert lost == [], page
    assert [stop.fault for stop in ended if stop.fault] == [], page


@pytest.mark.thorough
def test_a_full_disk_keeps_the_last_words(tmp_path):
    """Where no file may grow beyond 2,000 bytes, and what is printed has more."""
    draw = SimpleNamespace(randrange=lambda *_: 2000, random=lambda: 1, uniform=lambda *_: 60)
    hparams = create_hparams(soak_runs.SETTINGS)
    filelist = make_corpus(tmp_path, synthetic_lengths(32, hparams, 0), hparams)
    settings = f"{soak_runs.SETTINGS},training_files={filelist},validation_files=none"
    arguments = soak_runs.command(tmp_path / "run", settings, 10, 0)
    stop = soak_runs.start_and_stop(soak_runs.FULL_DISK, arguments, draw, tmp_path / "log")
    assert stop == (soak_runs.FULL_DISK, "set-up", 1, None, False)
    assert (tmp_path / "log").stat().st_size > 2000


def test_every_difference_between_runs_is_seen(whole, copied):
    """A changed bit, a lost line and a lost file."""
    first, copy = whole, copied
    assert compare_runs(first, copy) == []
    checkpoint = newest(copy)
    saved = torch.load(checkpoint, weights_only=True)
    name, weights = next(iter(saved["state_dict"].items()))
    weights.view(-1)[0] = torch.nextafter(weights.view(-1)[0], torch.tensor(9.0))
    torch.save(saved, checkpoint)
    kept = [json.dumps(line) for line in metrics(copy) if line["kind"] != "validation"]
    (copy / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    (copy / "best.pt").unlink()
    assert compare_runs(copy, first) == [
        f"metrics.jsonl: {len(kept) - 1} entries, {len(metrics(first)) - 1}",
        f"{checkpoint.name}/state_dict/{name}",
        "best.pt: missing",
    ]


@pytest.mark.parametrize(
    ("by_itself", "code", "printed", "may_say", "fault"),
    [
        (False, 143, "stopped and saved", "", None),
        (False, 1, "Traceback (most recent call last):\n  ...", "", "a traceback"),
        (True, 1, "train.py: no such file", "", "it ended by itself, with code 1"),
        (True, 1, "could not be written: make room", "make room", None),
        (False, 143, "stopped and saved", "make room", None),
        (True, 120, "", "make room", "it ended by itself, with code 120"),
    ],
)
def test_how_a_start_may_end(by_itself, code, printed, may_say, fault):
    named = soak_runs.fault_of(by_itself, code, printed, may_say)
    assert named is None if fault is None else named.startswith(fault)


def test_the_summary_names_what_was_lost():
    stops = [
        soak_runs.Stop("SIGKILL", "training", -signal.SIGKILL, None),
        soak_runs.Stop("SIGKILL", "set-up", -signal.SIGKILL, "a traceback"),
    ]
    page = " ".join(soak_runs.summary(stops, ["best.pt: missing"], 3, 61.0, "seed 1").split())
    assert "one run stopped 2 times" in page
    assert "**NOT equal**. 1 faults." in page
    assert "| SIGKILL | training | -9 | 1 |" in page
    assert "- best.pt: missing - stop 2, SIGKILL: a traceback" in page
