"""Runs that are killed or asked to stop: resumed, they end bitwise as if never interrupted."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import LONG, ROOT, Child, act_at, assert_same_run, curves, flags, load, metrics, newest
from runs import kill_at, run, stopped_inside_an_epoch

import train
from training import validation
from training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("clean_process")


# ---------------------------------------------------------------------------- killed


@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        ("before the first step", (0, 1)),
        ("inside an epoch", (2, 0)),
        ("with half of a checkpoint written", (0, 1)),
        ("before a checkpoint has its name", (1, 0)),
        ("before older checkpoints are removed", (0, 0)),
        ("before the best is marked", (0, 0)),
        ("after the last checkpoint, before it is marked best", (0, 0)),
        ("with half of an epoch line written", (0, 2)),
        ("after an epoch line", (1, 2)),
        ("in validation", (2, 1)),
        ("between validation and its checkpoint", (0, 0)),
    ],
)
def test_killed_run_resumes_bitwise(moment, workers, corpus, whole, tmp_path):
    out = tmp_path / "out"
    first = corpus.hparams(**LONG, num_workers=workers[0])
    assert Child(flags(out, first), kill_at, moment).end().code == -signal.SIGKILL
    second = Child(flags(out, f"num_workers={workers[1]}", "--resume")).end()
    assert second.code == 0, second.output
    assert_same_run(out, whole)
    assert not list(out.glob(".*.tmp"))


def test_run_killed_while_resuming_resumes_bitwise(corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped_inside_an_epoch(corpus, out)
    for moment in ("setting aside", "cutting back", "writing the run line", "the second step"):
        killed = Child(flags(out, "", "--resume"), kill_at, moment)
        assert killed.end().code == -9
    assert Child([*flags(out, ""), "--resume"]).end().code == 0
    assert_same_run(out, whole)


def test_fast_decoder_trains_alike_and_resumes_bitwise(corpus, whole, tmp_path):
    fast, killed = tmp_path / "fast", tmp_path / "killed"
    hparams = corpus.hparams(**LONG, decoder="fast")
    assert Child(flags(fast, hparams)).end().code == 0
    assert Child(flags(killed, hparams), kill_at, "inside an epoch").end().code == -signal.SIGKILL
    assert Child([*flags(killed, ""), "--resume"]).end().code == 0
    assert_same_run(killed, fast)
    losses = [
        [line["train_loss"] for line in metrics(out) if line["kind"] == "epoch"]
        for out in (fast, whole)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_guided_attention_is_logged_and_resumes_bitwise(corpus, tmp_path):
    """It has one for the first 9 of 16 to 20 steps: two epochs and the beginning of the third."""
    settings = LONG | {"guided_attention_weight": 5, "guided_attention_steps": 9}
    hparams = corpus.hparams(**settings | {"log_interval": 1})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert Child(flags(whole, hparams)).end().code == 0
    assert Child(flags(killed, hparams), kill_at, "inside an epoch").end().code == -signal.SIGKILL
    assert Child(flags(killed, "", "--resume")).end().code == 0
    assert_same_run(killed, whole)
    logged = curves(whole)["training/guided_attention"]
    assert [step for step, _ in logged] == list(range(1, 10))
    epochs = metrics(whole, "epoch")
    assert ["train_guided_attention" in record for record in epochs] == [True, True, True, False]
    assert all(0 < value < 1 for _, value in logged)
    first = [value for step, value in logged if step <= epochs[0]["iteration"]]
    assert min(first) <= epochs[0]["train_guided_attention"] <= max(first)


def slow_checkpoints() -> None:
    save = torch.save

    def slow(state, path):
        save(state, path)
        os.truncate(path, os.path.getsize(path) // 3)
        time.sleep(60)

    pytest.MonkeyPatch().setattr(torch, "save", slow)  # in this process, to its end


def test_kill_while_a_checkpoint_is_written(corpus, whole, tmp_path):
    out = tmp_path / "out"
    run(out, corpus, **LONG | {"epochs": 1})  # some checkpoints to lose
    before = {path.name: path.read_bytes() for path in out.glob("*.pt")}
    child = Child(flags(out, corpus.hparams(**LONG), "--resume"), slow_checkpoints)
    deadline = time.monotonic() + 60
    while not list(out.glob(".*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.process.kill()
    assert child.end().code == -9
    assert {path.name: path.read_bytes() for path in out.glob("*.pt")} == before
    assert Child(flags(out, "epochs=4", "--resume")).end().code == 0
    assert_same_run(out, whole)


def test_run_killed_before_its_first_checkpoint_starts(corpus, whole, tmp_path):
    out = tmp_path / "out"
    killed = Child(flags(out, corpus.hparams(**LONG)), kill_at, "before the first checkpoint")
    assert killed.end().code == -signal.SIGKILL
    assert (out / "metrics.jsonl").stat().st_size == 0
    run(out, corpus, "--resume", **LONG)
    assert_same_run(out, whole)


# ---------------------------------------------------------------------------- asked to stop


PLACES = {
    "a step": (Trainer, "step"),
    "a validation": (validation, "example_of"),
    "an epoch's end": (train, "log_epoch"),
}


def signal_at(number: int, place: str, call: int, to_group: bool, seconds: float = 0) -> None:
    def send() -> None:
        if to_group:  # from outside, for a loader's processes end when their parent says so
            code = "import os, sys; os.killpg(*map(int, sys.argv[1:]))"
            command = [sys.executable, "-c", code, str(os.getpgrp()), str(int(number))]
            subprocess.run(command, check=True, start_new_session=True)
        else:
            os.kill(os.getpid(), number)
        time.sleep(seconds)  # in which the death of a loader's process would be noticed

    act_at(*PLACES[place], send, call)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("place", "call"), [("a step", 7), ("a validation", 1), ("an epoch's end", 3)]
)
def test_signal_saves_and_says_how_to_resume(number, place, call, corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG)), signal_at, number, place, call, False).end()
    assert stopped.code == 128 + number
    assert f"python train.py -o {out} --resume" in stopped.output
    assert "Traceback" not in stopped.output
    if place == "a step":
        assert newest(out).name == "checkpoint_7.pt"  # the very step, though none was due
    resumed = Child(flags(out, "", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def session_members(leader: int) -> list[int]:
    """Processes of a session, from /proc."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_group_leaves_no_orphan(number, corpus, whole, tmp_path):
    out = tmp_path / "out"
    hparams = corpus.hparams(**LONG, num_workers=2)
    child = Child(flags(out, hparams), signal_at, number, "a step", 7, True, 0.5)
    stopped = child.end()
    assert stopped.code == 128 + number, stopped.output
    assert "Traceback" not in stopped.output
    assert session_members(child.process.pid) == []
    resumed = Child(flags(out, "num_workers=0", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def ctrl_c_twice() -> None:
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGINT), 7)
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGINT), 7)


def terminated_twice() -> None:
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), 7)
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), 7)


def test_second_ctrl_c_stops_at_once(corpus, tmp_path):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG)), ctrl_c_twice).end()
    assert stopped.code == 130
    assert "stopped without saving" in stopped.output
    assert "Traceback" not in stopped.output
    assert newest(out).name == "checkpoint_6.pt"


def test_second_sigterm_lets_the_checkpoint_be_written(corpus, tmp_path):
    out = tmp_path / "out"
    assert Child(flags(out, corpus.hparams(**LONG)), terminated_twice).end().code == 143
    assert newest(out).name == "checkpoint_7.pt"


def test_ctrl_c_on_a_piped_command_saves(corpus, tmp_path):
    """The real program, its reader gone by the same Ctrl-C as with `| tee log`."""
    out = tmp_path / "out"
    never = ("epochs", "epochs_per_validation", "iters_per_checkpoint")  # so Ctrl-C alone saves
    hparams = corpus.hparams(**LONG | dict.fromkeys(never, 10_000))
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", *flags(out, hparams)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
        text=True,
    )
    while not (out / "metrics.jsonl").is_file() or not metrics(out, "epoch"):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    assert newest(out).name == "checkpoint_0.pt"
    process.stdout.close()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "SIGINT: saving after this step" in errors
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert load(newest(out))["loop"]["iteration"] > 3
