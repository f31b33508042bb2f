"""Test that a killed or stopped run ends with the same results as an uninterrupted run."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import LONG, Child, act_at, assert_same_run, curves, flags, metrics, newest
from training_runs import kill_at, stopped_inside_an_epoch

import train
from training import validation
from training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        ("before the first checkpoint", (0, 0)),
        pytest.param("before the first optimizer step", (0, 1), marks=pytest.mark.thorough),
        ("in the middle of an epoch", (2, 0)),
        pytest.param("after half of a checkpoint is written", (0, 1), marks=pytest.mark.thorough),
        pytest.param("before a checkpoint gets its final name", (1, 0), marks=pytest.mark.thorough),
        pytest.param("before older checkpoints are removed", (0, 0), marks=pytest.mark.thorough),
        pytest.param("before best.pt is linked", (0, 0), marks=pytest.mark.thorough),
        pytest.param(
            "after the last checkpoint, before best.pt is linked",
            (0, 0),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "after half of an epoch record is written", (0, 2), marks=pytest.mark.thorough
        ),
        ("after an epoch record", (1, 2)),
        pytest.param("in the second validation", (2, 1), marks=pytest.mark.thorough),
        pytest.param(
            "after a validation record, before the checkpoint", (0, 0), marks=pytest.mark.thorough
        ),
    ],
)
def test_killed_run_resumes_with_bitwise_equal_results(moment, workers, corpus, whole, tmp_path):
    out = tmp_path / "out"
    first, second = (corpus.hparams(**LONG, num_workers=number) for number in workers)
    assert Child(flags(out, first), kill_at, moment).end().code == -signal.SIGKILL
    if moment == "in the second validation":  # a run saves its state before validation
        assert newest(out).name == newest(whole).name
    second = Child(flags(out, second, "--resume")).end()
    assert second.code == 0, second.output
    assert_same_run(out, whole)
    assert not list(out.glob(".*.tmp"))


@pytest.mark.thorough
def test_run_resumes_with_bitwise_equal_results_when_it_was_killed_while_resuming(
    corpus, whole, tmp_path
):
    out = tmp_path / "out"
    stopped_inside_an_epoch(corpus, out)
    for moment in (
        "after later checkpoints are renamed",
        "after the logs are truncated",
        "after half of the run record is written",
        "after the second optimizer step",
    ):
        killed = Child(flags(out, "", "--resume"), kill_at, moment)
        assert killed.end().code == -9
    assert Child([*flags(out, ""), "--resume"]).end().code == 0
    assert_same_run(out, whole)


def resumed_like_uninterrupted(hparams: str, folder: Path) -> Path:
    """Assert that a stopped and resumed run equals an uninterrupted run.

    Return the folder of the uninterrupted run.
    """
    uninterrupted, killed = folder / "uninterrupted", folder / "killed"
    assert Child(flags(uninterrupted, hparams)).end().code == 0
    assert (
        Child(flags(killed, hparams), kill_at, "in the middle of an epoch").end().code
        == -signal.SIGKILL
    )
    assert Child(flags(killed, "", "--resume")).end().code == 0
    assert_same_run(killed, uninterrupted)
    return uninterrupted


@pytest.mark.thorough
def test_run_with_fast_decoder_resumes_with_bitwise_equal_results(corpus, tmp_path):
    """The run has 16 to 20 optimizer steps. In the first 9 optimizer steps, the weight of the
    guided attention loss is positive, so this loss must be logged."""
    settings = LONG | {"guided_attention_weight": 5, "guided_attention_steps": 9, "log_interval": 1}
    settings["decoder"] = "fast"
    out = resumed_like_uninterrupted(corpus.hparams(**settings), tmp_path)
    logged, epochs = curves(out)["training/guided_attention"], metrics(out, "epoch")
    assert [step for step, _ in logged] == list(range(1, 10))
    assert ["train_guided_attention" in record for record in epochs] == [True, True, True, False]
    first = [value for step, value in logged if step <= epochs[0]["iteration"]]
    assert 0 < min(first) <= epochs[0]["train_guided_attention"] <= max(first) < 1


# ---------------------------------------------------------------------------- signals


PLACES = {
    "a step": (Trainer, "step"),
    "a validation": (validation, "example_of"),
    "the end of an epoch": (train, "log_epoch"),
}


def signal_at(number: int, place: str, call: int, to_group: bool, seconds: float = 0) -> None:
    def send() -> None:
        # Workers obey a SIGTERM from the parent process, so a separate process sends the signal.
        if to_group:
            code = "import os, sys; os.killpg(*map(int, sys.argv[1:]))"
            command = [sys.executable, "-c", code, str(os.getpgrp()), str(int(number))]
            subprocess.run(command, check=True, start_new_session=True)
        else:
            os.kill(os.getpid(), number)
        time.sleep(seconds)  # the loader has enough time to notice that a worker has died

    act_at(*PLACES[place], send, call)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "place", "call"),
    [
        (signal.SIGINT, "a validation", 1),
        (signal.SIGTERM, "the end of an epoch", 3),
    ],
)
def test_run_saves_a_checkpoint_and_prints_how_to_resume_when_it_receives_a_signal(
    number, place, call, corpus, whole, tmp_path
):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG)), signal_at, number, place, call, False).end()
    assert stopped.code == 128 + number
    assert f"python train.py -o {out} --resume" in stopped.output
    assert "Traceback" not in stopped.output
    resumed = Child(flags(out, "", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def session_members(leader: int) -> list[int]:
    """Return the processes of a session from /proc."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_leaves_no_orphan_processes_when_its_process_group_receives_a_signal(
    number, corpus, whole, tmp_path
):
    out = tmp_path / "out"
    hparams = corpus.hparams(**LONG, num_workers=2)
    child = Child(flags(out, hparams), signal_at, number, "a step", 7, True, 0.5)
    stopped = child.end()
    assert stopped.code == 128 + number, stopped.output
    assert "Traceback" not in stopped.output
    # No regular checkpoint was due, so the signal caused this checkpoint.
    assert newest(out).name == "checkpoint_7.pt"
    assert session_members(child.process.pid) == []
    resumed = Child(flags(out, "num_workers=0", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def signal_twice(number: int) -> None:
    for _ in range(2):
        signal_at(number, "a step", 7, False)


@pytest.mark.parametrize(("number", "saved"), [(signal.SIGINT, 6), (signal.SIGTERM, 7)])
def test_second_ctrl_c_stops_the_run_immediately(number, saved, corpus, tmp_path):
    """`make` may send SIGTERM twice, so a second SIGTERM must not prevent the checkpoint."""
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG)), signal_twice, number).end()
    assert stopped.code == 128 + number
    assert ("stopped without saving" in stopped.output) == (saved == 6)
    assert "Traceback" not in stopped.output
    assert newest(out).name == f"checkpoint_{saved}.pt"


def compute_for_minutes(interrupts: int, limit: float) -> None:
    """Let optimizer step 7 compute for minutes, and send SIGINT `interrupts` times.

    Python does not run signal handlers during a long operation such as a backward pass.
    """
    vars(train)["SECONDS_FOR_STEP"] = limit

    def interrupt() -> None:
        for _ in range(interrupts):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

    def compute() -> None:
        threading.Thread(target=interrupt, daemon=True).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

    act_at(Trainer, "step", compute, 7)


@pytest.mark.thorough
@pytest.mark.parametrize(("interrupts", "limit"), [(1, 0.5), (2, 1000)])
def test_ctrl_c_stops_the_run_when_an_optimizer_step_takes_minutes(
    interrupts, limit, corpus, whole, tmp_path
):
    """After a single Ctrl-C, the run stops when a time limit expires. After a second Ctrl-C, the run stops
    immediately."""
    out = tmp_path / "out"
    hook = (compute_for_minutes, interrupts, limit)
    stopped = Child(flags(out, corpus.hparams(**LONG)), *hook).end(timeout=60)
    assert stopped.code == 128 + signal.SIGINT, stopped.output
    assert "Ctrl-C again" in stopped.output
    assert "stopped without saving" in stopped.output
    assert "checkpoint_6.pt" in stopped.output
    assert f"python train.py -o {out} --resume" in stopped.output
    assert newest(out).name == "checkpoint_6.pt"
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)
