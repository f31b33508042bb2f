"""scripts/soak.py sees what was lost; the soak itself takes too long for the suite."""

import json
import signal

import pytest
import torch
from helpers import metrics, newest

from paper.same_run import compare_runs
from scripts import soak


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
    found = soak.fault_of(by_itself, code, printed, may_say)
    assert found is None if fault is None else found.startswith(fault)


def test_the_summary_names_what_was_lost():
    stops = [
        soak.Stop("SIGKILL", "training", -signal.SIGKILL, None),
        soak.Stop("SIGKILL", "set-up", -signal.SIGKILL, "a traceback"),
    ]
    page = " ".join(soak.summary(stops, ["best.pt: missing"], 3, 61.0).split())
    assert "one run stopped 2 times" in page
    assert "**NOT equal**. 1 faults." in page
    assert "| SIGKILL | training | -9 | 1 |" in page
    assert "- best.pt: missing - stop 2, SIGKILL: a traceback" in page
