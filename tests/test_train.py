"""The training loop: exact resumption, stops, failures, logs, validation, refusals."""

import contextlib
import copy
import errno
import functools
import io
import itertools
import json
import math
import multiprocessing
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import (
    HOP,
    ROOT,
    SAMPLING_RATE,
    SECONDS,
    Child,
    act_at,
    assert_same,
    assert_same_run,
    curves,
    draw_quickly,
    kill_self,
    load,
    make_corpus,
    metrics,
    newest,
    without_times,
)
from torch.utils._python_dispatch import TorchDispatchMode

import data_utils
import files
import model as model_module
import train
from audio import log_mel_spectrogram, mel_fingerprint, read_audio
from batching import STRATEGIES, LengthBatchSampler, plan_epoch
from data_utils import TextMelCollate, TextMelDataset, read_filelist
from errors import UserError
from hparams import create_hparams, hparams_from_dict
from model import Tacotron2
from training import checkpoint, skipping, stopping, trainer, validation
from training.distributed import ALONE
from training.logging import RunLogger, mend_metrics
from training.loop_state import LoopState
from training.memory_check import check_memory
from training.trainer import StepLosses, Trainer, learning_rate_at

# The run that the tests on stopping and resuming share: 4 epochs of 4 or 5 batches, checkpoints
# inside epochs and between them, validation after the second and the fourth.
LONG = {"epochs": 4, "iters_per_checkpoint": 3, "log_interval": 2, "n_frames_per_step": 4}


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch):
    """What `train.main` sets in its process, put back; one thread, and no GPU: the CPU's rules."""
    threads, hook = torch.get_num_threads(), threading.excepthook
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    draw_quickly(monkeypatch.setattr)
    yield
    torch.set_num_threads(threads)
    threading.excepthook = hook
    for number, handler in handlers.items():
        signal.signal(number, handler)


def flags(out: Path, hparams: str, *more) -> list[str]:
    return ["-o", str(out), "--hparams", hparams, *map(str, more)]


def run(out: Path, corpus, *more, **overrides) -> None:
    train.main(flags(out, corpus.hparams(**overrides), *more))


def refused(arguments: list[str], capsys) -> str:
    """The message with which `train.main` ends; neither a success nor a traceback."""
    with pytest.raises(SystemExit) as stop:
        train.main(arguments)
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    """The shared run, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert Child(flags(out, corpus.hparams(**LONG))).end().code == 0
    return out


@pytest.fixture
def copied(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "copied")


def test_a_checkpoint_holds_the_length_of_the_longest_training_text(whole, corpus):
    lines = corpus.train.read_text(encoding="utf-8").splitlines()
    longest = max(len(line.split("|")[1]) for line in lines)  # no cleaner changes their lengths
    assert load(newest(whole))["longest_text"] == longest == 33


def watch_steps(patch, watch) -> None:
    """Have `watch(trainer, batch, make_step)` called in place of every step of one batch."""
    step = Trainer.step

    def watched(trainer, parts, *args, **options):
        [part] = parts = list(parts)
        return watch(trainer, part.batch, lambda: step(trainer, parts, *args, **options))

    patch.setattr(Trainer, "step", watched)


# ---------------------------------------------------------------------------- killed


def half_of_a_checkpoint(call: int) -> None:
    save, calls = torch.save, 0

    def half(state, path):
        nonlocal calls
        calls += 1
        save(state, path)
        if calls == call:
            os.truncate(path, os.path.getsize(path) // 2)
            kill_self()

    torch.save = half


def half_of_a_log_line(kind: str) -> None:
    def write(self, line_kind, record):
        if line_kind != kind:
            write_line(self, line_kind, record)
            return
        line = json.dumps({"kind": line_kind} | record) + "\n"
        self.metrics.write(line[: len(line) // 2])
        self.metrics.flush()
        kill_self()

    write_line, RunLogger._write = RunLogger._write, write


def kill_at(moment: str) -> None:
    match moment:
        case "before the first checkpoint":
            act_at(checkpoint, "save_checkpoint", kill_self)
        case "before the first step":
            act_at(Trainer, "step", kill_self)
        case "inside an epoch":
            act_at(Trainer, "step", kill_self, 8, after=True)
        case "with half of a checkpoint written":
            half_of_a_checkpoint(2)
        case "before a checkpoint has its name":
            act_at(files.os, "replace", kill_self, 3)  # lengths.csv is the first
        case "before older checkpoints are removed":
            act_at(checkpoint, "list_checkpoints", kill_self, 5)
        case "before the best is marked":
            act_at(checkpoint, "mark_best", kill_self)
        case "after the last checkpoint, before it is marked best":
            act_at(checkpoint, "mark_best", kill_self, 2)
        case "with half of an epoch line written":
            half_of_a_log_line("epoch")
        case "after an epoch line":
            act_at(RunLogger, "log_epoch", kill_self, 2, after=True)
        case "in validation":
            act_at(validation, "example_of", kill_self, 2)
        case "between validation and its checkpoint":
            act_at(RunLogger, "log_validation", kill_self, after=True)
        case "setting aside":
            act_at(checkpoint, "set_aside_newer", kill_self, after=True)
        case "cutting back":
            act_at(RunLogger, "_cut_back", kill_self, after=True)
        case "writing the run line":
            half_of_a_log_line("run")
        case "the second step":
            act_at(Trainer, "step", kill_self, 2, after=True)


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
def test_killed_run_resumed_with_other_workers_ends_bitwise_the_same(
    moment, workers, corpus, whole, tmp_path
):
    out = tmp_path / "out"
    first = corpus.hparams(**LONG, num_workers=workers[0])
    assert Child(flags(out, first), kill_at, moment).end().code == -signal.SIGKILL
    second = Child(flags(out, f"num_workers={workers[1]}", "--resume")).end()
    assert second.code == 0, second.output
    assert_same_run(out, whole)
    assert not list(out.glob(".*.tmp"))


def test_run_killed_again_while_it_resumes_ends_bitwise_the_same(corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped_inside_an_epoch(corpus, out)
    for moment in ("setting aside", "cutting back", "writing the run line", "the second step"):
        killed = Child(flags(out, "", "--resume"), kill_at, moment)
        assert killed.end().code == -9
    assert Child([*flags(out, ""), "--resume"]).end().code == 0
    assert_same_run(out, whole)


def test_the_fast_decoder_trains_like_the_reference_and_resumes_bitwise(corpus, whole, tmp_path):
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


def slow_checkpoints() -> None:
    save = torch.save

    def slow(state, path):
        save(state, path)
        os.truncate(path, os.path.getsize(path) // 3)
        time.sleep(60)

    torch.save = slow


def test_kill_9_from_outside_while_a_checkpoint_is_being_written(corpus, whole, tmp_path):
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
def test_signal_saves_and_says_how_to_go_on(number, place, call, corpus, whole, tmp_path):
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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_whole_group_saves_and_leaves_no_traceback_and_no_orphan(
    number, corpus, whole, tmp_path
):
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
    act_at(Trainer, "step", lambda: (os.kill(os.getpid(), signal.SIGINT),) * 2, 7)
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGINT), 7)


def terminated_twice() -> None:
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), 7)
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), 7)


def test_second_ctrl_c_stops_at_once_and_says_so(corpus, tmp_path):
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


def test_ctrl_c_on_a_terminal_command_piped_into_another(corpus, tmp_path):
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


# ---------------------------------------------------------------------------- going on


def test_resume_skips_a_truncated_newest_checkpoint_with_a_warning(copied, whole, capsys):
    broken = newest(copied)
    os.truncate(broken, 1000)  # best.pt is the same file, so it is damaged too
    train.main([*flags(copied, ""), "--resume"])
    assert f"warning: skipped {broken}: damaged" in capsys.readouterr().out
    assert_same_run(copied, whole)
    assert (copied / f"{broken.name}.superseded").stat().st_size == 1000


def test_resume_with_only_damaged_checkpoints_refuses_and_touches_nothing(copied, capsys):
    for path in copied.glob("*.pt"):
        path.write_bytes(b"nothing")
    before = snapshot(copied)
    message = refused(flags(copied, "", "--resume"), capsys)
    assert f"{copied} holds a run, but no good checkpoint is left" in message
    for path in copied.glob("*.pt"):
        assert f"{path}: damaged" in message
    assert "begin anew elsewhere: choose another -o" in message
    assert snapshot(copied) == before


def test_resume_of_a_run_without_checkpoints_refuses_and_touches_nothing(copied, capsys):
    for path in copied.glob("*.pt"):
        path.unlink()
    before = snapshot(copied)
    message = refused(flags(copied, "", "--resume"), capsys)
    assert f"{copied} holds metrics.jsonl of a run, but no checkpoint" in message
    assert "begin anew elsewhere: choose another -o" in message
    assert snapshot(copied) == before


def test_resume_of_a_run_killed_before_its_first_checkpoint_starts(corpus, whole, tmp_path):
    out = tmp_path / "out"
    killed = Child(flags(out, corpus.hparams(**LONG)), kill_at, "before the first checkpoint")
    assert killed.end().code == -signal.SIGKILL
    assert (out / "metrics.jsonl").stat().st_size == 0
    run(out, corpus, "--resume", **LONG)
    assert_same_run(out, whole)


UNREADABLE = {
    "permission": PermissionError(errno.EACCES, "Permission denied"),
    "disk": OSError(errno.EIO, "Input/output error"),
    "network": OSError(errno.ESTALE, "Stale file handle"),
    "memory": MemoryError(),
    "torch's memory": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 400000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
}


@pytest.mark.parametrize("failure", UNREADABLE)
@pytest.mark.parametrize("which", ["newest", "best"])
def test_a_checkpoint_that_cannot_be_read_stops_the_program_and_nothing_is_touched(
    which, failure, copied, monkeypatch, capsys
):
    """Where `best.pt` is read too: to see whether it is of a later step."""
    unreadable = newest(copied) if which == "newest" else copied / "best.pt"
    load_file = torch.load

    def fail(file, **options):
        if file.name == unreadable:
            raise UNREADABLE[failure]
        return load_file(file, **options)

    before = snapshot(copied)
    monkeypatch.setattr(torch, "load", fail)
    message = refused(flags(copied, "epochs=9", "--resume"), capsys)
    assert f"{unreadable}: cannot be read" in message
    assert "memory" in message or UNREADABLE[failure].strerror in message
    assert snapshot(copied) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_disk_that_fails_at_any_read_is_not_taken_for_damage(
    number, call, copied, monkeypatch, capsys
):
    """zipfile and torch both make errors of their own of a failure to read."""
    calls = 0

    class FailingDisk(io.FileIO):
        def readinto(self, buffer):
            nonlocal calls
            calls += 1
            if calls == call:
                raise OSError(number, os.strerror(number))
            return super().readinto(buffer)

    class FailingFile(checkpoint.ReadingFile, FailingDisk):
        pass

    before = snapshot(copied)
    monkeypatch.setattr(checkpoint, "ReadingFile", FailingFile)
    message = refused(flags(copied, "epochs=9", "--resume"), capsys)
    assert f"{newest(copied)}: cannot be read ({os.strerror(number)})" in message
    assert snapshot(copied) == before


def test_a_folder_that_cannot_be_looked_into_is_refused(copied, monkeypatch, capsys):
    def fail(path):
        raise OSError(errno.ESTALE, "Stale file handle")

    before = snapshot(copied)
    monkeypatch.setattr(os, "listdir", fail)
    assert "Stale file handle" in refused(flags(copied, "epochs=9", "--resume"), capsys)
    assert snapshot(copied) == before


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "emptied":
            path.write_bytes(b"")
        case "cut inside a line":
            os.truncate(path, len(content) * 2 // 3)
        case "a line is gone":
            path.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
        case "a block of zeros":
            path.write_bytes(content[:900] + bytes(300) + content[1200:])
        case "other text":
            path.write_bytes(b"x" * (len(content) + 7))
        case "a number is another":
            path.write_bytes(content.replace(b'"epoch": 2', b'"epoch": 1', 1))


@pytest.mark.parametrize(
    "how",
    [
        "missing",
        "emptied",
        "cut inside a line",
        "a line is gone",
        "a block of zeros",
        "other text",
        "a number is another",
    ],
)
def test_metrics_spoilt_since_the_checkpoint_are_told_kept_and_can_be_parsed(
    how, copied, capsys, monkeypatch
):
    path = copied / "metrics.jsonl"
    spoil(path, how)
    spoilt = path.read_bytes() if path.exists() else None
    monkeypatch.setattr(train, "train", stop_here)  # before the next checkpoint that is due
    with pytest.raises(StopHere):
        train.main(flags(copied, "epochs=5", "--resume"))
    assert capsys.readouterr().out.count(f"warning: {path}: not the ") == 1
    aside = copied / "metrics.jsonl.damaged"
    assert (aside.read_bytes() if aside.exists() else None) == spoilt
    *kept, last = path.read_bytes().splitlines()
    assert json.loads(last)["kind"] == "run"
    assert kept == [line for line in (spoilt or b"").splitlines() if is_json(line)]
    with pytest.raises(StopHere):
        train.main(flags(copied, "epochs=5", "--resume"))
    assert "warning: " not in capsys.readouterr().out
    assert path.read_bytes().splitlines()[:-1] == kept  # and another `run` line
    assert len(list(copied.glob("metrics.jsonl*"))) == 1 + (spoilt is not None)


def is_json(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return bool(json.loads(line))
    return False


def stop_here(*_) -> None:
    raise StopHere


def test_metrics_of_the_first_release_that_are_cut_are_told(tmp_path, capsys):
    """Its checkpoints hold no CRC-32: size, and whether lines can be parsed, decide."""
    loop = LoopState(iteration=8, epoch=3)
    lines = [
        {"kind": "run", "iteration": 0, "epoch": 1},
        {"kind": "epoch", "iteration": 4, "epoch": 1},
        {"kind": "epoch", "iteration": 8, "epoch": 2},
    ]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path, warnings = tmp_path / "metrics.jsonl", []

    def mend():
        return mend_metrics(path, len(content), None, loop, warnings.append)

    path.write_bytes(content + b"after the checkpoint")
    assert mend() is None
    assert warnings == []
    path.write_bytes(content.replace(b'{"kind": "epoch"', b"\0\0", 1) + bytes(16))
    assert mend() == path.stat().st_size > 0
    assert [json.loads(line) for line in path.read_text().splitlines()] == [lines[0], lines[2]]
    path.write_bytes(content[:-9])
    mend()
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines[:2]
    assert len(warnings) == 2
    assert {file.name for file in tmp_path.iterdir()} == {
        "metrics.jsonl",
        "metrics.jsonl.damaged",
        "metrics.jsonl.damaged+",
    }


def test_lines_after_the_checkpoint_do_not_stay_in_mended_metrics(copied):
    path, loop = copied / "metrics.jsonl", LoopState(iteration=8, epoch=3)
    size = len(path.read_bytes())
    assert mend_metrics(path, size, 0, loop, lambda _: None) < size
    assert max(record["epoch"] for record in metrics(copied)) == 2


def test_resume_falls_back_on_the_best_checkpoint(copied, whole, capsys):
    for path in copied.glob("checkpoint_*.pt"):
        path.unlink()
    train.main([*flags(copied, ""), "--resume"])
    assert "finished already" in capsys.readouterr().out


def test_resume_into_an_empty_folder_starts(corpus, whole, tmp_path):
    run(tmp_path / "out", corpus, "--resume", **LONG)
    assert_same_run(tmp_path / "out", whole)


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()
    }


def test_resume_of_a_finished_run_says_so_and_changes_no_byte(copied, capsys):
    before = snapshot(copied)
    train.main([*flags(copied, ""), "--resume"])
    assert "finished already: 4 epochs" in capsys.readouterr().out
    assert snapshot(copied) == before


def test_more_epochs_continue_as_if_they_had_been_asked_for_at_once(copied, corpus, tmp_path):
    train.main([*flags(copied, "epochs=5"), "--resume"])
    run(tmp_path / "out", corpus, **LONG | {"epochs": 5})
    assert_same_run(copied, tmp_path / "out")


def test_folder_that_holds_a_run_is_refused(copied, corpus, capsys):
    before = snapshot(copied)
    arguments = flags(copied, corpus.hparams())
    assert "holds a run: add --resume" in refused(arguments, capsys)
    assert "holds a run" in refused([*arguments, "-c", str(newest(copied)), "--warm_start"], capsys)
    assert snapshot(copied) == before


def test_going_on_from_an_earlier_checkpoint_cuts_logs_and_sets_later_ones_aside(
    corpus, whole, tmp_path, capsys
):
    out = tmp_path / "out"
    run(out, corpus, **LONG | {"keep_checkpoints": 20})
    steps = [int(path.stem.split("_")[1]) for path in out.glob("checkpoint_*.pt")]
    middle = sorted(steps)[2]
    arguments = flags(
        out, "epochs=3,epochs_per_validation=20", "-c", out / f"checkpoint_{middle}.pt"
    )
    train.main(arguments)
    printed = capsys.readouterr().out
    aside = {path.name for path in out.glob("*.superseded")}
    assert aside == {f"checkpoint_{s}.pt.superseded" for s in steps if s > middle} | {
        "best.pt.superseded"
    }
    assert "set aside a later or damaged checkpoint" in printed
    assert len(metrics(out, "epoch")) == 3
    assert not metrics(out, "validation")  # that of epoch 2 was cut, no other was due
    steps_drawn = [step for step, _ in curves(out)["training/loss"]]
    assert steps_drawn == sorted(set(steps_drawn))
    assert max(steps_drawn) <= metrics(out, "epoch")[-1]["iteration"]
    assert "checkpoint_" in printed.splitlines()[-1]  # there is no best one to name


def test_going_on_in_a_new_folder_leaves_the_old_one_alone(whole, corpus, tmp_path):
    out, before = tmp_path / "new", snapshot(whole)
    train.main(flags(out, "epochs=5", "-c", newest(whole)))
    assert snapshot(whole) == before
    assert [record["epoch"] for record in metrics(out, "epoch")] == [5]
    other = shutil.copytree(whole, tmp_path / "other")
    train.main([*flags(other, "epochs=5"), "--resume"])
    assert_same(load(newest(out))["state_dict"], load(newest(other))["state_dict"])
    assert metrics(out, "run")[0]["started_from"] == str(newest(whole))


@pytest.mark.parametrize("warm", [False, True])
def test_run_begun_from_a_checkpoint_and_killed_at_once_resumes_without_naming_it(
    warm, whole, corpus, tmp_path
):
    more = ["-c", newest(whole), *(["--warm_start"] if warm else [])]
    hparams = corpus.hparams(**LONG, seed=5) if warm else "epochs=6"
    train.main(flags(tmp_path / "one", hparams, *more))
    killed = Child(flags(tmp_path / "two", hparams, *more), kill_at, "before the first step")
    assert killed.end().code == -9
    train.main(flags(tmp_path / "two", "", "--resume"))
    assert_same_run(tmp_path / "one", tmp_path / "two")


def reference_style(path: Path, corpus) -> dict:
    """A checkpoint as the reference writes them: no loop, no settings."""
    torch.manual_seed(99)
    other = Tacotron2(create_hparams(corpus.hparams()))
    optimizer = torch.optim.Adam(other.parameters())
    state = {
        "iteration": 1500,
        "state_dict": other.state_dict(),
        "optimizer": optimizer.state_dict(),
        "learning_rate": 1e-3,
    }
    torch.save(state, path)
    return state["state_dict"]


def test_reference_checkpoint_needs_warm_start_which_keeps_ignored_layers_fresh(
    corpus, tmp_path, capsys
):
    path, out = tmp_path / "tacotron2.pt", tmp_path / "out"
    theirs = reference_style(path, corpus)
    arguments = flags(out, corpus.hparams(epochs=1), "-c", path)
    assert "--warm_start" in refused(arguments, capsys)
    assert not out.exists()
    train.main([*arguments, "--warm_start"])
    torch.manual_seed(create_hparams(corpus.hparams()).seed)
    fresh = Tacotron2(create_hparams(corpus.hparams())).state_dict()
    begun = load(out / "checkpoint_0.pt")["state_dict"]
    for name, tensor in begun.items():
        expected = fresh if name == "embedding.weight" else theirs
        assert torch.equal(tensor, expected[name]), name


def test_resume_finding_weights_of_another_recipe_says_so(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    reference_style(out / "checkpoint_1500.pt", corpus)
    message = refused(flags(out, corpus.hparams(), "--resume"), capsys)
    assert "weights of another recipe" in message


def test_checkpoint_lacking_a_newer_hyper_parameter_takes_its_default(copied):
    saved = load(newest(copied))
    del saved["hparams"]["keep_checkpoints"], saved["hparams"]["grad_clip_thresh"]
    torch.save(saved, newest(copied))
    train.main([*flags(copied, "epochs=5"), "--resume"])
    settings = load(newest(copied))["hparams"]
    assert settings["keep_checkpoints"] == 3
    assert settings["grad_clip_thresh"] == 1.0


@pytest.mark.parametrize("change", ["text", "another clip", "fewer clips"])
def test_changed_corpus_is_refused_and_nothing_is_touched(change, copied, corpus, tmp_path, capsys):
    lines = corpus.train.read_text().splitlines()
    match change:
        case "text":
            lines[3] = lines[3].replace("|", "|And ", 1)
        case "another clip":
            lines[3] = corpus.val.read_text().splitlines()[0]
        case "fewer clips":
            del lines[3]
    filelist = tmp_path / "changed.txt"
    filelist.write_text("\n".join(lines))
    before = snapshot(copied)
    arguments = flags(copied, f"epochs=9,training_files={filelist}", "--resume")
    assert "trained on other clips" in refused(arguments, capsys)
    assert snapshot(copied) == before


def stopped_inside_an_epoch(corpus, out: Path) -> Path:
    assert Child(flags(out, corpus.hparams(**LONG)), kill_at, "inside an epoch").end().code == -9
    assert load(newest(out))["loop"]["batches_trained"] > 0
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("batching_strategy=random", "batching options plan other batches"),
        ("batch_size=4", "batching options plan other batches"),
        ("seed=77", "batching options plan other batches"),
        ("prepare_trainset_per_epoch=False", "prepare_trainset_per_epoch cannot change inside"),
    ],
)
def test_changed_batching_inside_an_epoch_is_refused_and_nothing_is_touched(
    change, message, corpus, tmp_path, capsys
):
    out = stopped_inside_an_epoch(corpus, tmp_path / "out")
    before = snapshot(out)
    assert message in refused(flags(out, change, "--resume"), capsys)
    assert snapshot(out) == before


def test_changed_batching_between_epochs_is_allowed_and_said(copied, capsys):
    change = "epochs=5,batching_strategy=random,dynamic_batch_size=False,batch_size=7"
    train.main(flags(copied, change, "--resume"))
    assert "changed since the checkpoint: batch_size = 7, was 3" in capsys.readouterr().out
    assert metrics(copied, "epoch")[-1]["num_batches"] == 2


def test_changed_model_is_refused_naming_tensors_and_nothing_is_touched(copied, capsys):
    before = snapshot(copied)
    message = refused(flags(copied, "epochs=5,prenet_dim=9", "--resume"), capsys)
    assert (
        "decoder.prenet.layers.0.linear_layer.weight is [8, 40], the model's is [9, 40]" in message
    )
    assert snapshot(copied) == before


def test_precision_may_change_to_fp16_on_resume(copied):
    train.main(flags(copied, "epochs=5,precision=fp16", "--resume"))
    assert load(newest(copied))["scaler"]["scale"] > 1


# ---------------------------------------------------------------------------- checkpoints kept


def test_newest_checkpoints_and_the_best_are_kept(corpus, tmp_path, monkeypatch):
    """iters_per_checkpoint=3, validation after epochs 1, 2, 3; the second is made the best."""
    saved = []
    save = checkpoint.save_checkpoint

    def spy(directory, state, keep):
        saved.append((state["iteration"], state["loop"]["epoch"], state["loop"]["batches_trained"]))
        return save(directory, state, keep)

    def order(run, batches, should_stop):
        record, example = validate(run, batches, should_stop)
        return record | {
            "validation_loss_unpadded": {1: 3.0, 2: 1.0, 3: 2.0}[record["epoch"]]
        }, example

    validate = train.validate
    monkeypatch.setattr(checkpoint, "save_checkpoint", spy)
    monkeypatch.setattr(train, "validate", order)
    out = tmp_path / "out"
    run(out, corpus, epochs=3, epochs_per_validation=1, iters_per_checkpoint=3, keep_checkpoints=1)
    ends = [record["iteration"] for record in metrics(out, "epoch")]
    total = ends[-1]
    due = {step for step in range(1, total + 1) if step % 3 == 0} | set(ends)
    assert {iteration for iteration, _, _ in saved} == due | {0}
    assert saved[-1] == (total, 4, 0)
    assert [path.name for path in out.glob("checkpoint_*.pt")] == [f"checkpoint_{total}.pt"]
    assert load(out / "best.pt")["iteration"] == ends[1]


def test_checkpoints_are_written_at_the_end_without_validation(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    run(out, corpus, epochs=1, epochs_per_validation=9, iters_per_checkpoint=1000)
    saved = load(newest(out))
    assert saved["loop"]["epoch"] == 2
    assert saved["iteration"] == metrics(out, "epoch")[0]["iteration"]
    assert not (out / "best.pt").exists()
    assert f"--checkpoint {newest(out)}" in capsys.readouterr().out


# ---------------------------------------------------------------------------- not finite


def poison_mel(monkeypatch, clip_name: str) -> None:
    read = TextMelDataset._mel

    def poisoned(self, path):
        mel = read(self, path)
        return mel.fill_(math.nan) if Path(path).name == clip_name else mel

    monkeypatch.setattr(TextMelDataset, "_mel", poisoned)


def test_loss_not_finite_stops_naming_the_clips_and_keeps_the_good_checkpoint(
    copied, corpus, monkeypatch, capsys
):
    poison_mel(monkeypatch, "train09.wav")
    batches = []

    def watched(_, batch, make_step):
        batches.append(batch.clip_indices.tolist())
        return make_step()

    watch_steps(monkeypatch, watched)
    arguments = flags(copied, "epochs=9,log_interval=1000", "--resume")
    message = refused(arguments, capsys)
    assert "the loss became nan in step" in message
    [bad] = [batch for batch in batches if 9 in batch]
    for i in bad:
        assert f"{corpus.train}:{i + 1}: {corpus.folder / f'train{i:02d}.wav'}" in message
    assert message.count(str(corpus.train)) == len(bad)
    step_number = metrics(copied, "epoch")[-1]["iteration"] + batches.index(bad) + 1
    assert f"in step {step_number}," in message
    saved = load(newest(copied))
    assert saved["iteration"] < step_number
    assert all(torch.isfinite(tensor).all() for tensor in saved["state_dict"].values())


def test_validation_loss_not_finite_names_the_clips(corpus, tmp_path, monkeypatch, capsys):
    poison_mel(monkeypatch, "val02.wav")
    message = refused(flags(tmp_path / "out", corpus.hparams(epochs_per_validation=1)), capsys)
    assert "validation loss became nan" in message
    assert f"{corpus.val}:3: " in message


def allocate_on_the_cpu(*_, **__):
    torch.empty(2**60, dtype=torch.uint8)  # torch's own words for it


def allocate_with_numpy(*_, **__):
    np.empty(2**60, dtype=np.uint8)


@pytest.mark.parametrize("allocate", [allocate_on_the_cpu, allocate_with_numpy])
def test_too_little_memory_for_a_validations_sound_costs_the_sound_alone(
    allocate, corpus, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    monkeypatch.setattr(validation, "griffin_lim", allocate)
    run(out, corpus, **LONG)
    assert capsys.readouterr().out.count("warning: too little memory to make sound") == 2
    a, b = load(newest(out)), load(newest(whole))
    assert_same(a["state_dict"], b["state_dict"])
    assert without_times(metrics(out)) == without_times(metrics(whole))
    left, heard = curves(out), curves(whole)
    assert heard.keys() - left.keys() == {"predicted"}
    assert all(left[tag] == heard[tag] for tag in left)


def test_without_librosa_a_validation_goes_on_without_its_sound(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "librosa", None)  # as if it were not installed
    assert validation.sound_of(torch.zeros(80, 5), create_hparams()) is None
    assert capsys.readouterr().out == (
        "warning: without librosa there is no sound of a validation clip: "
        "training goes on without it\n"
    )


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug")])
def test_a_fault_in_making_a_validations_sound_keeps_its_traceback(
    error, corpus, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(validation, "griffin_lim", fail)
    with pytest.raises(type(error), match="a bug"):
        run(tmp_path / "out", corpus)


def state_of(trainer) -> dict:
    weights = dict(trainer.model.named_parameters())
    return copy.deepcopy({"weights": weights, "adam": trainer.optimizer.state_dict()["state"]})


def poison_gradients(monkeypatch, steps, value=math.inf) -> list[tuple[dict, dict]]:
    """Make one gradient value infinite in those steps; (state before, after) of each step."""
    compute, states = Trainer.compute_gradients_of_update, []

    def poisoned(trainer, *args):
        losses = compute(trainer, *args)
        if len(states) in steps:
            trainer.model.embedding.weight.grad[-1, -1] = value
        return losses

    def watched(trainer, _, make_step):
        before = state_of(trainer)
        losses = make_step()
        states.append((before, state_of(trainer)))
        return losses

    monkeypatch.setattr(Trainer, "compute_gradients_of_update", poisoned)
    watch_steps(monkeypatch, watched)
    return states


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_gradient_not_finite_skips_the_update_and_nothing_of_adam_moves(
    value, corpus, tmp_path, monkeypatch
):
    states = poison_gradients(monkeypatch, {0, 3}, value)
    run(tmp_path / "out", corpus, epochs=1, epochs_per_validation=9)
    assert float(states[0][1]["adam"][0]["step"]) == 0  # skipped, the very first
    assert not states[0][1]["adam"][0]["exp_avg"].any()
    assert_same(states[0][0]["weights"], states[0][1]["weights"])
    assert_same(*states[3])
    for before, after in (states[1], states[2]):
        assert (
            float(after["adam"][0]["step"]) == float(before["adam"].get(0, {"step": 0})["step"]) + 1
        )
        assert not torch.equal(
            before["weights"]["encoder.lstm.weight_hh_l0"],
            after["weights"]["encoder.lstm.weight_hh_l0"],
        )
    [record] = metrics(tmp_path / "out", "epoch")
    assert record["skipped_updates"] == 2
    assert math.isfinite(record["gradient_norm"])


def test_20_skips_in_a_row_stop_the_run_and_19_do_not(corpus, tmp_path, monkeypatch, capsys):
    options = {"batch_size": 1, "dynamic_batch_size": False, "epochs_per_validation": 9}
    with monkeypatch.context() as patch:
        poison_gradients(patch, {*range(1, 20), *range(21, 26)})
        run(tmp_path / "fine", corpus, **options)
    assert sum(record["skipped_updates"] for record in metrics(tmp_path / "fine", "epoch")) == 24
    poison_gradients(monkeypatch, range(1, 21))
    message = refused(flags(tmp_path / "bad", corpus.hparams(**options)), capsys)
    assert "gradients were not finite in 20 steps in a row, the last in step 21" in message
    assert f"{corpus.train}:" in message


def test_fp16_overflow_lowers_the_scale_and_skips(corpus, tmp_path, monkeypatch):
    """From a scale at which nothing but the poison overflows."""
    states = poison_gradients(monkeypatch, {1})
    scaler = functools.partial(torch.amp.GradScaler, init_scale=256.0)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    run(
        tmp_path / "out",
        corpus,
        epochs=1,
        precision="fp16",
        iters_per_checkpoint=1,
        keep_checkpoints=9,
    )
    scales = [load(tmp_path / "out" / f"checkpoint_{n}.pt")["scaler"]["scale"] for n in (1, 2, 3)]
    assert scales == [256.0, 128.0, 128.0]
    assert_same(*states[1])
    assert not torch.equal(*(state["weights"]["embedding.weight"] for state in states[2]))


# ---------------------------------------------------------------------------- disks and files


def limit_file_size(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def test_disk_full_at_a_checkpoint_is_a_clear_error_and_loses_nothing(corpus, tmp_path):
    """A file size limit stands for the full disk: the kernel refuses the write half-way."""
    out = tmp_path / "out"
    run(out, corpus, **LONG | {"epochs": 1})
    before = {path.name: path.read_bytes() for path in out.glob("*.pt")}
    size = newest(out).stat().st_size
    stopped = Child(flags(out, "epochs=4", "--resume"), limit_file_size, size // 2).end()
    assert stopped.code == 1
    assert "could not be written" in stopped.output
    assert "--resume" in stopped.output
    assert "Traceback" not in stopped.output
    assert {path.name: path.read_bytes() for path in out.glob("*.pt")} == before
    assert not list(out.glob(".*.tmp"))


@pytest.mark.parametrize("which", ["metrics.jsonl", "TensorBoard"])
def test_disk_full_at_a_log_is_a_clear_error_and_loses_nothing(which, corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG)), full_disk, which).end()
    assert stopped.code == 1, stopped.output
    assert f"writing to {out} failed" in stopped.output
    assert "No space left on device" in stopped.output
    assert "--resume" in stopped.output
    assert "Traceback" not in stopped.output
    assert "Exception ignored" not in stopped.output
    resumed = Child(flags(out, "", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def full_disk(which: str) -> None:
    """From the second epoch line on."""

    def fill() -> None:
        if which == "metrics.jsonl":
            opened[0].metrics = open("/dev/full", "a")  # noqa: SIM115
        else:
            from tensorboard.summary.writer.record_writer import RecordWriter

            def fail(self, data):
                raise OSError(28, "No space left on device")

            RecordWriter.write = fail

    opened, init = [], RunLogger.__init__

    def remember(self, *args):
        init(self, *args)
        opened.append(self)

    RunLogger.__init__ = remember
    act_at(RunLogger, "log_epoch", fill, 2)


def test_output_folder_that_cannot_be_made_is_a_clear_error(corpus, tmp_path, capsys):
    too_long = tmp_path / ("x" * 300)
    assert "File name too long" in refused(flags(too_long, corpus.hparams()), capsys)
    (tmp_path / "file").write_text("")
    message = refused(flags(tmp_path / "file" / "out", corpus.hparams()), capsys)
    assert str(tmp_path / "file") in message


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_unwritable_output_folder_is_a_clear_error(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir(mode=0o500)
    assert "Permission denied" in refused(flags(out, corpus.hparams()), capsys)


def test_second_run_in_the_same_folder_is_refused_while_the_first_lives(corpus, tmp_path):
    out = tmp_path / "out"
    first = Child(flags(out, corpus.hparams(**LONG)), stop_at_the_epochs_end)
    try:
        deadline = time.monotonic() + 60
        while not (out / "checkpoint_3.pt").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = snapshot(out)  # TensorBoard writes when it likes: its file may still grow
        second = Child([*flags(tmp_path / "log", ""), "-o", str(out), "--resume"]).end()
        after = snapshot(out)
    finally:
        first.process.kill()
        first.end()
    assert second.code == 1
    assert "another process is training in this folder" in second.output
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if not name.startswith("logs"))
    train.main(flags(out, "epochs=1", "--resume"))  # the lock died with the first


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def train_on_when_told(path: Path) -> None:
    act_at(train, "log_epoch", lambda: wait_for(path))


def let_the_other_end_once_the_checkpoint_is_found(told: Path, last: Path) -> None:
    act_at(train, "find_checkpoint_together", lambda: (told.touch(), wait_for(last)), after=True)


def test_a_run_that_trains_on_while_another_resumes_it_loses_nothing(corpus, whole, tmp_path):
    """The second found a checkpoint, the first trained on to its end, and the second set aside
    what had come since."""
    out, told = tmp_path / "out", tmp_path / "told"
    first = Child(flags(out, corpus.hparams(**LONG)), train_on_when_told, told)
    try:
        wait_for(out / "checkpoint_3.pt")
        second = Child(
            [*flags(tmp_path / "log", ""), "-o", str(out), "--resume"],
            let_the_other_end_once_the_checkpoint_is_found,
            told,
            out / "checkpoint_16.pt",
        ).end()
        told.touch()
        assert first.end().code == 0
    finally:
        first.process.kill()
    assert second.code == 1
    assert "another process is training in this folder" in second.output
    assert_same_run(out, whole)


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_run_begun_in_a_new_folder_while_another_sets_up_loses_nothing(
    more, corpus, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    arguments = flags(out, corpus.hparams(**LONG))
    act_at_patched(monkeypatch, train, "read_data", lambda: Child(arguments).end(), 1)
    assert "begun a run in this folder since" in refused([*arguments, *more], capsys)
    assert_same_run(out, whole)


def stop_at_the_epochs_end() -> None:
    act_at(train, "log_epoch", lambda: time.sleep(600))


def kill_a_worker() -> None:
    def kill() -> None:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        time.sleep(1)  # the loader's signal handler raises in here, in the middle of a step

    act_at(Trainer, "step", kill, 6)


def test_death_of_a_process_that_reads_clips_is_told_and_loses_nothing(corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG, num_workers=2)), kill_a_worker).end()
    assert stopped.code == 1
    assert "a process that reads clips died" in stopped.output
    assert "Traceback" not in stopped.output
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_clip_deleted_while_training_stops_with_a_checkpoint_and_names_it(
    workers, corpus, whole, tmp_path
):
    folder = tmp_path / "clips"
    moved = copied_corpus(corpus, folder)
    out = tmp_path / "out"
    hparams = corpus.hparams(**LONG, num_workers=workers, training_files=moved)
    stopped = Child(flags(out, hparams), delete_clip, folder / "train05.wav").end()
    assert stopped.code == 1, stopped.output
    assert f"{moved}:6: {folder / 'train05.wav'}: no such file" in stopped.output
    assert f"{newest(out)}" in stopped.output
    assert "Traceback" not in stopped.output
    shutil.copy(corpus.folder / "train05.wav", folder)
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)


def copied_corpus(corpus, folder: Path) -> Path:
    shutil.copytree(corpus.folder, folder)
    text = corpus.train.read_text().replace(str(corpus.folder), str(folder))
    (folder / "train.txt").write_text(text)
    return folder / "train.txt"


def stopped_at_a_clip(corpus, out: Path, folder: Path, seconds=True, **overrides) -> str:
    """Flags of a run that a clip, deleted in its second epoch, has stopped."""
    filelist = copied_corpus(corpus, folder)
    if not seconds:
        lines = [line.rpartition("|")[0] for line in filelist.read_text().splitlines()]
        filelist.write_text("\n".join(lines))
    hparams = corpus.hparams(**LONG | {"training_files": filelist} | overrides)
    stopped = Child(flags(out, hparams), delete_after_its_first_step, folder / "train05.wav").end()
    assert stopped.code == 1, stopped.output
    assert "add --resume --skip-clips train05\n" in stopped.output
    return stopped.output


def delete_after_its_first_step(path: Path) -> None:
    """Once the clip was trained in the first epoch."""
    seen = []

    def watched(_, batch, make_step):
        losses = make_step()
        seen.extend(batch.clip_indices.tolist())
        if len(seen) >= 14:
            path.unlink(missing_ok=True)
        return losses

    watch_steps(pytest.MonkeyPatch(), watched)


@pytest.mark.parametrize("seconds", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_run_goes_on_without_a_clip_in_the_batches_that_it_would_have_had(
    batch_size, seconds, corpus, tmp_path, monkeypatch, capsys
):
    """With one clip a batch, its batch is left empty and passed over."""
    folder, out = tmp_path / "clips", tmp_path / "out"
    sizes = {"batch_size": batch_size, "dynamic_batch_size": False, "epochs": 3}
    stopped_at_a_clip(corpus, out, folder, seconds, **sizes)
    before = snapshot(out)
    message = refused(flags(out, "", "--resume"), capsys)
    assert f"{folder / 'train05.wav'}: no such file" in message
    assert "add --resume --skip-clips ID,...; an id is the name of a clip's file" in message
    assert snapshot(out) == before

    saved = load(newest(out))["loop"]
    steps = Steps(monkeypatch)
    train.main(flags(out, "", "--resume", "--skip-clips", "train05"))
    assert "going on without 1 clips (--skip-clips): train05\n" in capsys.readouterr().out
    lengths = [1 + round(second * 22050) // HOP for second in SECONDS["train"]]
    plans = [
        plan_epoch(lengths, batch_size, "semi_sorted", seed=1234, epoch=i, batch_randomization=True)
        for i in range(3)
    ]
    plans = [[batch.tolist() for batch in plan] for plan in plans]
    assert saved["epoch"] == 2
    left = plans[1][saved["batches_trained"] :] + plans[2]
    kept = [[i for i in batch if i != 5] for batch in left]
    assert [clips for clips in steps.clips if clips] == [batch for batch in kept if batch]
    *_, second, third = metrics(out, "epoch")
    assert third["num_batches"] == len([batch for batch in plans[2] if batch != [5]])
    assert (second["skipped_updates"], third["skipped_updates"]) == (0, 0)
    assert metrics(out, "run")[-1]["skipped_clips"] == ["train05"]
    assert load(newest(out))["loop"]["skipped_clips"] == {"train05": 0}
    assert (out / "lengths.csv").read_bytes() == before["lengths.csv"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_run_without_a_clip_that_is_killed_goes_on_without_it_bitwise(
    batch_size, corpus, tmp_path
):
    one, other = tmp_path / "one", tmp_path / "other"
    stopped_at_a_clip(
        corpus, one, tmp_path / "clips", batch_size=batch_size, dynamic_batch_size=False, epochs=3
    )
    shutil.copytree(one, other)
    skip = ["--resume", "--skip-clips", "train05"]
    killed = Child(flags(other, "num_workers=1", *skip), kill_at, "the second step")
    assert killed.end().code == -signal.SIGKILL
    assert Child(flags(other, "num_workers=0", "--resume")).end().code == 0
    train.main(flags(one, "", *skip))
    assert_same_run(one, other)


def test_a_validation_clip_can_be_left_out_too(corpus, copied, tmp_path, capsys):
    lines = corpus.val.read_text().replace("val03", "gone03").splitlines()
    (tmp_path / "val.txt").write_text(
        "\n".join(lines)
        .replace("gone03", "val03")
        .replace(str(corpus.folder / "val03.wav"), str(tmp_path / "val03.wav"))
    )
    change = f"epochs=6,validation_files={tmp_path / 'val.txt'}"
    train.main(flags(copied, change, "--resume", "--skip-clips", "val03"))
    assert "going on without 1 clips (--skip-clips): val03" in capsys.readouterr().out
    assert [line["epoch"] for line in metrics(copied, "validation")] == [2, 4, 6]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("train5,val9", "no clip is named train5, val9; an id is the name of a clip's file"),
        (",".join(f"val{i:02}" for i in range(5)), "leaves none of the 5 clips of a filelist"),
    ],
)
def test_wrong_clips_to_skip_are_refused_and_nothing_is_touched(ids, message, copied, capsys):
    before = snapshot(copied)
    arguments = flags(copied, "epochs=6", "--resume", "--skip-clips", ids)
    assert f"--skip-clips: {message}" in refused(arguments, capsys)
    assert snapshot(copied) == before


def test_clips_are_skipped_only_in_a_run_that_goes_on(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    for more in ([], ["--resume"]):
        arguments = flags(out, corpus.hparams(), "--skip-clips", "train05", *more)
        assert "--skip-clips: there is no run to go on with" in refused(arguments, capsys)
    assert not out.exists()


def delete_clip(path: Path) -> None:
    act_at(Trainer, "step", path.unlink, 6)


def test_validation_clip_deleted_while_training_stops_with_a_checkpoint_and_names_it(
    corpus, whole, tmp_path, capsys, monkeypatch
):
    folder, out = tmp_path / "clips", tmp_path / "out"
    copied_corpus(corpus, folder)
    text = corpus.val.read_text().replace(str(corpus.folder), str(folder))
    (folder / "val.txt").write_text(text)
    act_at_patched(monkeypatch, Trainer, "step", (folder / "val03.wav").unlink, 6)
    arguments = flags(out, corpus.hparams(**LONG, validation_files=folder / "val.txt"))
    message = refused(arguments, capsys)
    assert f"{folder / 'val.txt'}:4: {folder / 'val03.wav'}: no such file" in message
    shutil.copy(corpus.folder / "val03.wav", folder)
    monkeypatch.undo()
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)


def act_at_patched(monkeypatch, owner, name, act, call) -> None:
    monkeypatch.setattr(owner, name, getattr(owner, name))  # to be put back
    act_at(owner, name, act, call)


# ---------------------------------------------------------------------------- validation


def recorded_validation(monkeypatch) -> list[tuple]:
    """(clips, prenet masks) of every validation batch from here on."""
    forward, seen = Tacotron2.forward, []

    def spy(self, batch, dropout_masks=None):
        if not self.training:
            seen.append((batch.clip_indices.tolist(), dropout_masks.prenet))
            assert dropout_masks.attention_hidden is dropout_masks.decoder_hidden is None
        return forward(self, batch, dropout_masks)

    monkeypatch.setattr(Tacotron2, "forward", spy)
    return seen


def test_validation_batches_and_masks_are_the_same_in_every_run(corpus, tmp_path, monkeypatch):
    seen = recorded_validation(monkeypatch)
    run(tmp_path / "one", corpus, epochs=2, epochs_per_validation=1)
    run(
        tmp_path / "two",
        corpus,
        epochs=1,
        epochs_per_validation=1,
        seed=5,
        batching_strategy="random",
        dynamic_batch_size=False,
        batch_size=4,
        num_workers=1,
    )
    assert len(seen) == 6  # three validations of 5 clips, 3 and 2 at a time
    for later in (seen[2:4], seen[4:6]):
        for (clips, masks), (later_clips, later_masks) in zip(seen[:2], later, strict=True):
            assert clips == later_clips
            assert all(torch.equal(*pair) for pair in zip(masks, later_masks, strict=True))
    assert sorted(seen[0][0] + seen[1][0]) == [0, 1, 2, 3, 4]
    assert [len(clips) for clips, _ in seen[:2]] == [3, 2]
    assert seen[0][0] + seen[1][0] != [0, 1, 2, 3, 4]  # the list is sorted by length: it is mixed
    assert 0.4 < seen[0][1][0].float().mean() < 0.6


def test_validation_comes_after_every_so_many_epochs_counted_from_1(corpus, tmp_path):
    run(tmp_path / "out", corpus, epochs=5, epochs_per_validation=2)
    assert [record["epoch"] for record in metrics(tmp_path / "out", "validation")] == [2, 4]


@pytest.mark.parametrize("r", [1, 2])
def test_validation_numbers_equal_those_of_the_saved_weights_by_hand(r, corpus, tmp_path):
    """Clip by clip in float64, without the loss of model.py, for the batches of 3 and 2 clips."""
    out = tmp_path / "out"
    run(
        out,
        corpus,
        epochs=1,
        epochs_per_validation=1,
        p_prenet_dropout=0,
        n_frames_per_step=r,
    )
    saved = load(out / "best.pt")
    hparams = hparams_from_dict(saved["hparams"])
    trained = Tacotron2(hparams)
    trained.load_state_dict(saved["state_dict"])
    trained.eval()
    clips = read_filelist(corpus.val, hparams)
    data = TextMelDataset(clips, hparams)
    padded, unpadded, sharpness, frames, steps = 0.0, 0.0, 0.0, 0, 0
    covered, symbols, diagonal = 0, 0, 0.0
    plan = plan_epoch([clip.num_frames for clip in clips], 3, "random", seed=0)
    for rows in plan:
        batch = TextMelCollate(r)([data[i] for i in rows])
        with torch.no_grad():
            outputs = trained(batch)
        all_mel, real_mel, all_gate, real_gate = [], [], [], []
        for b, i in enumerate(rows):
            length, num_steps = clips[i].num_frames, -(-clips[i].num_frames // r)
            target = torch.zeros_like(batch.mel[b])
            target[:, :length] = data[i][1]
            for mel in (outputs.mel, outputs.mel_postnet):
                error = (mel[b] - target).double() ** 2
                all_mel.append(error)
                real_mel.append(error[:, :length].sum())
            stop = torch.zeros(len(outputs.gate[b]), dtype=torch.float64)
            stop[num_steps - 1 :] = 1
            p = torch.sigmoid(outputs.gate[b].double()).clamp(1e-300, 1)
            error = torch.where(stop == 1, -p.log(), -(1 - p).clamp(1e-300).log())
            all_gate.append(error)
            real_gate.append(error[:num_steps].sum())
            best = outputs.alignments[b, :num_steps, : batch.text_lengths[b]].max(dim=1).values
            sharpness += float(best.sum())
            aligned = outputs.alignments[b, :num_steps, : batch.text_lengths[b]].double()
            places = [torch.arange(count) / count for count in aligned.shape]
            distance = places[1] - places[0][:, None]
            diagonal += float((aligned * torch.exp(-12.5 * distance**2)).sum())  # 1 / (2 * 0.2^2)
            covered += int((aligned.max(dim=0).values >= 0.1).sum())
            symbols += aligned.shape[1]
        batch_frames = sum(clips[i].num_frames for i in rows)
        batch_steps = sum(-(-clips[i].num_frames // r) for i in rows)
        padded += len(rows) * float(2 * torch.stack(all_mel).mean() + torch.stack(all_gate).mean())
        unpadded += batch_frames * float(
            sum(real_mel) / (batch_frames * hparams.n_mel_channels) + sum(real_gate) / batch_steps
        )
        frames, steps = frames + batch_frames, steps + batch_steps
    [record] = metrics(out, "validation")
    assert record["validation_loss"] == pytest.approx(padded / 5, rel=1e-5)
    assert record["validation_loss_unpadded"] == pytest.approx(unpadded / frames, rel=1e-5)
    assert record["alignment_sharpness"] == pytest.approx(sharpness / steps, rel=1e-5)
    assert record["alignment_coverage"] == pytest.approx(covered / symbols, rel=1e-5)
    assert record["alignment_diagonality"] == pytest.approx(diagonal / steps, rel=1e-5)
    assert record["iteration"] == saved["iteration"]


def test_an_alignment_that_has_not_formed_is_said_once_with_what_helps(
    corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(validation, "STEPS_TO_ALIGN", 9)  # of 4 or 5 an epoch
    out, settings = tmp_path / "out", {"epochs_per_validation": 1}
    run(out, corpus, **settings, epochs=1)
    assert "has not formed" not in capsys.readouterr().out
    run(out, corpus, "--resume", **settings, epochs=3)
    printed = capsys.readouterr().out
    sharpness = metrics(out, "validation")[-1]["alignment_sharpness"]
    assert printed.count("warning: the alignment has not formed after") == 1
    assert f"sharpness {sharpness:.2f} is below 0.3" in printed
    for setting in ("--trim-silence", "n_frames_per_step=2", "guided_attention_weight=5"):
        assert setting in printed
    run(out, corpus, "--resume", **settings, epochs=4)
    assert "has not formed" not in capsys.readouterr().out


def test_an_alignment_that_has_formed_needs_no_advice(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(validation, "STEPS_TO_ALIGN", 1)
    monkeypatch.setattr(validation, "FORMED", 0.0)
    run(tmp_path / "out", corpus, epochs=1, epochs_per_validation=1)
    assert "has not formed" not in capsys.readouterr().out


def test_guided_attention_is_logged_while_it_has_a_weight_and_a_killed_run_resumes_bitwise(
    corpus, tmp_path
):
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


def test_validation_leaves_no_trace_in_what_is_trained(corpus, tmp_path):
    for name, every in (("often", 1), ("never", 1000)):
        run(tmp_path / name, corpus, epochs=3, epochs_per_validation=every)
    often, never = (load(newest(tmp_path / name)) for name in ("often", "never"))
    for part in ("state_dict", "optimizer"):
        assert_same(often[part], never[part])
    assert without_times(metrics(tmp_path / "often", "epoch")) == without_times(
        metrics(tmp_path / "never", "epoch")
    )


# ---------------------------------------------------------------------------- what is trained


class Steps:
    """What every training step was given and made, recorded from outside."""

    def __init__(self, monkeypatch):
        self.clips, self.lengths, self.losses, self.norms, self.rates = [], [], [], [], []
        losses_of, compute = Trainer.losses_of, Trainer.compute_gradients_of_update

        def record_losses(trainer, *args):
            losses = losses_of(trainer, *args)
            self.losses.append((float(losses[1]), float(losses[2])))
            return losses

        def record_norm(trainer, *args):
            losses = compute(trainer, *args)
            squares = [float(p.grad.double().square().sum()) for p in trainer.model.parameters()]
            self.norms.append(math.sqrt(sum(squares)))
            return losses

        def record(trainer, batch, make_step):
            losses = make_step()
            self.clips.append(batch.clip_indices.tolist())
            self.lengths.append(batch.mel_lengths.tolist())
            self.rates.append(trainer.optimizer.param_groups[0]["lr"])
            return losses

        monkeypatch.setattr(Trainer, "losses_of", record_losses)
        monkeypatch.setattr(Trainer, "compute_gradients_of_update", record_norm)
        watch_steps(monkeypatch, record)


def test_epoch_line_holds_the_numbers_of_the_batches_that_were_trained(
    corpus, tmp_path, monkeypatch
):
    steps, out = Steps(monkeypatch), tmp_path / "out"
    run(out, corpus, epochs=1)
    [record] = metrics(out, "epoch")
    sizes = np.array([len(lengths) for lengths in steps.lengths])
    longest = np.array([max(lengths) for lengths in steps.lengths])
    frames = np.array([sum(lengths) for lengths in steps.lengths])
    losses = np.array(steps.losses)
    zero_padding = [1 - n / (b * t) for n, b, t in zip(frames, sizes, longest, strict=True)]
    assert sorted(itertools.chain(*steps.clips)) == list(range(14))
    expected = {
        "epoch": 1,
        "iteration": len(sizes),
        "num_batches": len(sizes),
        "skipped_updates": 0,
        "train_loss": losses[:, 0] @ sizes / 14,
        "train_loss_unpadded": losses[:, 1] @ frames / frames.sum(),
        "gradient_norm": np.mean(steps.norms),
        "learning_rate": 1e-3,
        "zero_padding_rate": np.average(zero_padding, weights=sizes),
        "average_batch_length": np.average(longest, weights=sizes),
        "decoder_steps": longest.sum(),
        "padded_to_original_rate": (sizes * longest - frames).sum() / frames.sum(),
        "padded_fraction": 1 - frames.sum() / (sizes * longest).sum(),
        "largest_batch_size": sizes.max(),
        "largest_batch_frames": (sizes * longest).max(),
    }
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    seconds = record["minutes"] * 60
    assert record["frames_per_second"] * seconds == pytest.approx(frames.sum())
    assert record["padded_frames_per_second"] * seconds == pytest.approx((sizes * longest).sum())
    assert record["clips_per_second"] * seconds == pytest.approx(14)
    assert 0 < record["prepare_seconds"] < seconds
    assert 0 < record["data_wait_seconds"] < seconds
    assert record["peak_memory_bytes"] > 1e8  # torch alone


def test_minutes_are_planning_waiting_and_training_but_not_validation_and_checkpoints(
    corpus, tmp_path, monkeypatch
):
    """A clock that only moves where it is told to."""
    now = 0.0

    def takes(owner, name, seconds):
        original = getattr(owner, name)

        def slow(*args, **kwargs):
            nonlocal now
            now += seconds
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    monkeypatch.setattr(train.time, "perf_counter", lambda: now)
    takes(LengthBatchSampler, "set_epoch", 0.001)
    takes(TextMelDataset, "__getitem__", 0.01)
    takes(Trainer, "step", 1)
    takes(train, "save", 1000)
    takes(train, "validate", 1e6)
    run(tmp_path / "out", corpus, epochs=2, epochs_per_validation=1, iters_per_checkpoint=2)
    for record in metrics(tmp_path / "out", "epoch"):
        assert record["prepare_seconds"] == pytest.approx(0.001)
        assert record["data_wait_seconds"] == pytest.approx(0.14)
        assert record["minutes"] * 60 == pytest.approx(0.141 + record["num_batches"])


def test_loss_selects_what_is_trained_and_both_are_logged(corpus, tmp_path, monkeypatch):
    """With mask_padding a batch's two gradients differ by a factor alone, its share of padding:
    clipping both to one norm would make them equal."""
    steps, options = Steps(monkeypatch), {"epochs_per_validation": 1, "grad_clip_thresh": 1000}
    for loss in ("padded", "unpadded"):
        run(tmp_path / loss, corpus, epochs=1, loss=loss, **options)
    half = len(steps.losses) // 2
    assert steps.losses[0] == steps.losses[half]  # before the first update
    assert steps.norms[0] != steps.norms[half]
    assert steps.losses[half - 1] != steps.losses[-1]
    for loss in ("padded", "unpadded"):
        [record] = metrics(tmp_path / loss, "epoch")
        assert record["train_loss"] < record["train_loss_unpadded"]
        [record] = metrics(tmp_path / loss, "validation")
        assert record["validation_loss"] < record["validation_loss_unpadded"]


def test_unpadded_loss_gives_its_own_gradient(corpus, tmp_path, monkeypatch):
    """The first step's gradient norm, against autograd on the loss written out."""
    norms = []

    def by_hand(trainer, parallel, batch, share):
        state, model = torch.get_rng_state(), trainer.model
        buffers = copy.deepcopy(dict(model.named_buffers()))
        outputs = model(batch)
        loss = 0.0
        for b, length in enumerate(batch.mel_lengths.tolist()):
            for mel in (outputs.mel, outputs.mel_postnet):
                error = (mel[b, :, :length] - batch.mel[b, :, :length]) ** 2
                loss = loss + error.sum() / (int(batch.mel_lengths.sum()) * 10)
            gate = F.binary_cross_entropy_with_logits(
                outputs.gate[b, :length], batch.gate[b, :length], reduction="sum"
            )
            loss = loss + gate / int(batch.mel_lengths.sum())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        torch.set_rng_state(state)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        return losses_of(trainer, parallel, batch, share)

    steps = Steps(monkeypatch)
    losses_of = Trainer.losses_of
    monkeypatch.setattr(Trainer, "losses_of", by_hand)
    run(tmp_path / "out", corpus, epochs=1, loss="unpadded")
    assert steps.norms == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ("", {0: 1e-3, 10**6: 1e-3}),
        ("learning_rate_warmup_steps=4", {0: 2.5e-4, 1: 5e-4, 3: 1e-3, 4: 1e-3}),
        (
            "learning_rate_schedule=exponential,learning_rate_decay_start=10,"
            "learning_rate_half_life=5",
            {0: 1e-3, 10: 1e-3, 15: 5e-4, 20: 2.5e-4, 12: 1e-3 * 0.5**0.4, 10**6: 1e-5},
        ),
        (
            "learning_rate_schedule=exponential,learning_rate_decay_start=0,"
            "learning_rate_half_life=2,learning_rate_warmup_steps=4",
            {0: 2.5e-4, 2: 0.75 * 5e-4, 4: 2.5e-4},
        ),
        (
            "learning_rate=1e-6,learning_rate_schedule=exponential,learning_rate_decay_start=0",
            {0: 1e-6, 10**6: 1e-6},  # never up to learning_rate_final
        ),
    ],
)
def test_learning_rate_schedule_by_hand(settings, rates):
    hparams = create_hparams(settings)
    for iteration, rate in rates.items():
        assert learning_rate_at(iteration, hparams) == pytest.approx(rate)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("threshold", [0.01, 1e6])
def test_gradients_are_clipped_to_the_threshold_by_hand(
    threshold, precision, corpus, tmp_path, monkeypatch
):
    """Adam's first moment after one step is a tenth of the gradient it was given."""
    compute, given, seen = Trainer.compute_gradients_of_update, {}, []

    def keep_gradients(trainer, *args):
        losses = compute(trainer, *args)
        scale = trainer.scaler.get_scale()  # 1 but for fp16
        for name, parameter in trainer.model.named_parameters():
            given[name] = parameter.grad.double() / scale
        return losses

    def check(trainer, _, make_step):
        before = copy.deepcopy(dict(trainer.model.named_parameters()))
        losses = make_step()
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in given.values()))
        assert float(losses.values[2]) == pytest.approx(norm, rel=1e-5)
        for name, parameter in trainer.model.named_parameters():
            expected = given[name] * min(1, threshold / norm) + 0.001 * before[name].detach()
            moment = trainer.optimizer.state[parameter]["exp_avg"]
            scale = float(expected.abs().max())
            torch.testing.assert_close(10 * moment.double(), expected, rtol=1e-4, atol=1e-5 * scale)
        seen.append(norm)
        raise StopHere

    monkeypatch.setattr(Trainer, "compute_gradients_of_update", keep_gradients)
    watch_steps(monkeypatch, check)
    scaler = functools.partial(torch.amp.GradScaler, init_scale=256.0)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    settings = {"grad_clip_thresh": threshold, "weight_decay": 0.001, "precision": precision}
    with pytest.raises(StopHere):
        run(tmp_path / "out", corpus, **settings)
    assert 0.01 < seen[0] < 1e6  # the one threshold clips, the other does not


class StopHere(Exception):
    """Ends a run inside a test."""


def test_learning_rate_of_every_step_is_the_schedules(corpus, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    run(tmp_path / "out", corpus, epochs=1, learning_rate_warmup_steps=4, log_interval=1)
    assert steps.rates[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])
    drawn = curves(tmp_path / "out")["training/learning_rate"]
    assert [step for step, _ in drawn] == list(range(1, len(steps.rates) + 1))
    assert [rate for _, rate in drawn] == pytest.approx(steps.rates)


def test_each_epoch_has_its_plan_and_dropout_unless_the_first_plan_is_to_repeat(
    corpus, tmp_path, monkeypatch
):
    plans, masks = {}, []
    draw = model_module.Decoder.draw_masks

    def spy(self, *args):
        drawn = draw(self, *args)
        masks.append(drawn.prenet[0].flatten()[:200].tolist())
        return drawn

    monkeypatch.setattr(model_module.Decoder, "draw_masks", spy)
    for again in (True, False):
        with monkeypatch.context() as patch:
            steps, out = Steps(patch), tmp_path / str(again)
            run(out, corpus, epochs=3, epochs_per_validation=9, prepare_trainset_per_epoch=again)
        ends = [0, *(record["iteration"] for record in metrics(out, "epoch"))]
        plans[again] = [steps.clips[a:b] for a, b in itertools.pairwise(ends)]
    first, second, third = plans[True]
    assert first != second != third != first
    assert plans[False] == [first, first, first]
    assert len({tuple(mask) for mask in masks[-len(first) * 3 :]}) == len(first) * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_every_clip_once_an_epoch(strategy, corpus, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    options = {"num_bins": 3, "num_buckets": 2, "bucket_size": 6, "epochs_per_validation": 9}
    run(tmp_path / "out", corpus, batching_strategy=strategy, epochs=2, **options)
    first = metrics(tmp_path / "out", "epoch")[0]["iteration"]
    for epoch in (steps.clips[:first], steps.clips[first:]):
        assert sorted(itertools.chain(*epoch)) == list(range(14))


@pytest.mark.parametrize(
    "settings",
    [
        {"n_frames_per_step": 2},
        {"precision": "bf16"},
        {"win_time": 50, "filter_length": 2048},
        {"mask_padding": False},
        {"batch_size": 64},  # more than there are clips
    ],
)
def test_settings_train_and_the_loss_falls(settings, corpus, tmp_path):
    out = tmp_path / "out"
    options = {"learning_rate": 0.01, "epochs": 4, "epochs_per_validation": 4}
    run(out, corpus, **options | settings)
    losses = [record["train_loss_unpadded"] for record in metrics(out, "epoch")]
    assert losses[-1] < 0.97 * losses[0]
    assert all(t.dtype != torch.bfloat16 for t in load(newest(out))["state_dict"].values())


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 1, "dynamic_batch_size": False},
        {"batch_capacity": 7},  # frames: the longest is a dynamic batch of its own
        {"batch_size": 1, "dynamic_batch_size": False, "n_frames_per_step": 2},
        {"batch_size": 1, "dynamic_batch_size": False, "decoder": "reference"},
    ],
)
def test_batches_of_one_clip_of_one_symbol_or_one_frame_train(settings, tmp_path):
    """Which clips are alone in a batch is an epoch's chance: none may stop a run at its turn."""
    one_frame = (HOP - 1) / SAMPLING_RATE
    corpus = make_corpus(
        tmp_path, {"train": (0.25, one_frame, one_frame, 0.2), "val": (one_frame,)}
    )
    for path in (corpus.train, corpus.val):
        path.write_text(path.read_text().replace("Ah.", "I").replace("A dog.", "O"))
    run(tmp_path / "out", corpus, **settings)
    for record in metrics(tmp_path / "out", "epoch"):
        assert record["num_batches"] >= 3
        assert math.isfinite(record["train_loss"])
    assert len((tmp_path / "out" / "lengths.csv").read_text().split()) == 5
    assert metrics(tmp_path / "out", "validation")


def test_times_in_milliseconds_set_window_and_hop(corpus, tmp_path):
    text = corpus.hparams(epochs=1).replace("hop_length=800", "win_time=50,hop_time=12.5")
    train.main(flags(tmp_path / "out", text))
    rows = (tmp_path / "out" / "lengths.csv").read_text().split()
    assert rows[0] == "id,frames"
    assert rows[1] == f"train00,{1 + round(0.2 * 22050) // 276}"
    assert rows[14] == f"train13,{1 + round(0.8 * 22050) // 276}"


def test_cached_mels_train_bitwise_as_the_sound_does(corpus, whole, tmp_path):
    hparams = create_hparams(corpus.hparams())
    lists = {}
    for name in ("train", "val"):
        folder = tmp_path / name
        folder.mkdir()
        fingerprint = json.dumps(mel_fingerprint(hparams))
        (folder / data_utils.MEL_SETTINGS_FILE).write_text(fingerprint)
        lines = []
        for line in (corpus.folder / f"{name}.txt").read_text().splitlines():
            path, text, seconds = line.split("|")
            mel = folder / f"{Path(path).stem}.npy"
            np.save(mel, log_mel_spectrogram(read_audio(path, hparams), hparams).numpy())
            lines.append(f"{mel}|{text}|{seconds}")
        lists[name] = folder / f"{name}.txt"
        lists[name].write_text("\n".join(lines))
    run(
        tmp_path / "out",
        corpus,
        **LONG,
        load_mel_from_disk=True,
        training_files=lists["train"],
        validation_files=lists["val"],
    )
    assert_same_run(tmp_path / "out", whole)


# ---------------------------------------------------------------------------- the device


class Reads(TorchDispatchMode):
    """Counts values that are read off floating and boolean tensors, which live on the device.
    Lengths and indices are integers, and stay on the CPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reading = function in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.masked_select.default,
            torch.ops.aten.equal.default,
        )
        self.count += reading and args[0].dtype != torch.int64
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_training_step_reads_nothing_off_the_device(precision, corpus, tmp_path, monkeypatch):
    counts, tolists, tolist = [], [], torch.Tensor.tolist

    def watched(_trainer, _batch, make_step):
        with Reads() as reads:
            losses = make_step()
        counts.append(reads.count)
        return losses

    def spy(self):
        tolists.append(self.dtype != torch.int64)
        return tolist(self)

    watch_steps(monkeypatch, watched)
    monkeypatch.setattr(torch.Tensor, "tolist", spy)
    hparams = {"epochs": 1, "log_interval": 2, "epochs_per_validation": 9, "precision": precision}
    run(tmp_path / "out", corpus, **hparams, iters_per_checkpoint=1000)
    assert counts == [0] * metrics(tmp_path / "out", "epoch")[0]["iteration"]
    assert sum(tolists) == math.ceil(len(counts) / 2)  # every log_interval steps, and at the end
    with Reads() as reads:  # it does count
        bool(torch.ones(1) > 0)
        torch.ones(1).item()
    assert reads.count == 2


def test_losses_are_read_only_when_copied_and_one_step_late(corpus, tmp_path, monkeypatch, capsys):
    """As on a GPU: the values are there once the event behind them is waited for, with all of the
    steps before it; so the device always has the newest step to work at."""
    read = train.read_pending
    waited, hidden, left = [], [], []

    def hiding(_trainer, _batch, make_step):
        losses = make_step()
        shown, number = torch.full_like(losses.values, math.nan), len(hidden) + 1

        def synchronize():
            waited.append(number)
            for known, values, real in hidden:
                if known <= number:
                    values.copy_(real)

        hidden.append((number, shown, losses.values))
        return StepLosses(shown, SimpleNamespace(synchronize=synchronize), None)

    def reading(run, but=0):
        read(run, but)
        left.append(len(run.pending))

    plain, out = tmp_path / "plain", tmp_path / "out"
    settings = {"epochs": 2, "batch_size": 1, "dynamic_batch_size": False, "log_interval": 4}
    settings |= {"epochs_per_validation": 9, "iters_per_checkpoint": 1000}
    run(plain, corpus, **settings)
    watch_steps(monkeypatch, hiding)
    monkeypatch.setattr(train, "read_pending", reading)
    run(out, corpus, **settings)
    # Of the two epochs of 14 steps, every fourth when the next is under way, and the last.
    assert waited == [4, 8, 12, 14, 16, 20, 24, 28]
    assert left == [1, 1, 1, 1, 0, 1, 1, 1, 0]  # the first, after step 1, has nothing to read
    assert without_times(metrics(out)) == without_times(metrics(plain))
    assert curves(out)["training/loss"] == curves(plain)["training/loss"]
    assert [number for number, _ in curves(out)["training/loss"]] == [4, 8, 12, 16, 20, 24, 28]


# ---------------------------------------------------------------------------- what is told


def test_run_line_says_what_was_run_on_what(corpus, whole):
    [record] = metrics(whole, "run")
    assert create_hparams(corpus.hparams(**LONG)) == hparams_from_dict(record["hparams"])
    assert record["corpus"]["training_clips"] == 14
    assert record["corpus"]["validation_clips"] == 5
    samples = np.round(SECONDS["train"] * 22050).astype(int)
    assert record["corpus"]["training_frames"] == int((1 + samples // HOP).sum())
    assert len(record["corpus"]["fingerprint"]) == 64
    assert record["machine"]["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__
    assert "commit" in record


@pytest.mark.parametrize(
    ("decoder", "precision"), [("reference", "fp32"), ("fast", "fp32"), ("fast", "bf16")]
)
def test_the_decoder_that_trains_is_told_and_rehearsed(
    decoder, precision, corpus, tmp_path, monkeypatch, capsys
):
    """In the first lines and in the run's record; the rehearsal runs the same one, so that its
    kernels are compiled and its memory is tried before training."""
    phrase = "reference, step by step"
    if decoder == "fast":
        pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
        import fast_decoder

        phrase = f"fast ({fast_decoder.describe(torch.device('cpu'))})"
    used, choose = [], trainer.choose_decoder

    def spied(name, device):
        inner, description = choose(name, device)

        def spy(*arguments):
            used.append(torch.is_grad_enabled())
            return inner(*arguments)

        return spy, description

    def rehearse_and_stop(run, *_):
        assert used == []
        check_memory(run.trainer, run.training_clips, run.validation_clips)
        # Forward and backward of the two costliest shapes, forward of the validation's.
        assert used == [True, True, False]
        raise StopHere

    monkeypatch.setattr(trainer, "choose_decoder", spied)
    monkeypatch.setattr(train, "train", rehearse_and_stop)
    out = tmp_path / "out"
    with pytest.raises(StopHere):
        run(out, corpus, decoder=decoder, precision=precision)
    assert f"\ndecoder: {phrase}\n" in capsys.readouterr().out
    [record] = metrics(out, "run")
    assert record["decoder"] == phrase
    assert record["hparams"]["decoder"] == decoder


def test_padding_and_its_cost_against_random_batches_are_told_before_the_first_step(
    corpus, tmp_path, monkeypatch, capsys
):
    printed = []
    act_at_patched(monkeypatch, Trainer, "step", lambda: printed.append(capsys.readouterr().out), 1)
    run(tmp_path / "out", corpus, epochs=1)
    lengths = [1 + round(s * 22050) // HOP for s in SECONDS["train"]]
    ours = plan_epoch(
        lengths, 3, "semi_sorted", seed=1234, dynamic_batch_size=True, batch_randomization=True
    )
    rand = plan_epoch(lengths, 3, "random", seed=1234)
    steps, frames = (
        [sum(max(lengths[i] for i in b) * power(b) for b in plan) for plan in (ours, rand)]
        for power in (lambda _: 1, len)
    )
    for name, (here, there) in (("decoder steps", steps), ("padded frames", frames)):
        saving = 100 * (1 - here / there)
        expected = f"{name} an epoch {here:,}, {saving:.1f} % fewer than random batches' {there:,}"
        assert expected in printed[0]
    assert "zero-padding rate" in printed[0]


def test_checkpoint_holds_hyper_parameters_and_the_reference_names(corpus, whole):
    saved = load(newest(whole))
    assert {"iteration", "state_dict", "optimizer", "learning_rate"} <= saved.keys()
    assert hparams_from_dict(saved["hparams"]) == create_hparams(corpus.hparams(**LONG))


def test_tensorboard_holds_curves_pictures_and_sound(whole):
    found = curves(whole)
    assert {"training/loss", "training/loss_unpadded", "training/gradient_norm"} <= found.keys()
    assert {"training/learning_rate", "epoch/train_loss", "epoch/zero_padding_rate"} <= found.keys()
    assert [step for step, _ in found["training/loss"]] == [2, 4, 6, 8, 10, 12, 14, 16]
    validations = [(record["iteration"],) for record in metrics(whole, "validation")]
    for tag in ("alignment", "mel", "gate", "predicted"):
        assert found[tag] == validations
    for record in metrics(whole, "validation"):
        value = dict(found["validation/loss"])[record["iteration"]]
        assert value == pytest.approx(record["validation_loss"], rel=1e-6)


# ---------------------------------------------------------------------------- refused at the start


@pytest.mark.parametrize(
    ("more", "hparams", "message"),
    [
        (["--n_gpus", "2"], {}, "--n_gpus 2"),
        (["--rank", "1"], {}, "--rank 1"),
        (["--warm_start"], {}, "name it with -c"),
        (["-c", "x.pt", "--resume"], {}, "leave out -c"),
        (["-c", "nowhere.pt"], {}, "nowhere.pt: no such checkpoint"),
        (["-c", "nowhere.pt", "--warm_start"], {}, "nowhere.pt: no such checkpoint"),
        (["-l", "../elsewhere"], {}, "must lie inside the output folder"),
        (["--frobnicate"], {}, "--frobnicate"),
        ([], {"batchsize": 3}, "did you mean batch_size?"),
        ([], {"precision": "fp61"}, "did you mean fp16?"),
        ([], {"training_files": "nowhere.txt"}, "nowhere.txt: no such filelist"),
        ([], {"validation_files": "nowhere.txt"}, "nowhere.txt: no such filelist"),
        ([], {"batch_capacity": 20}, "batch_capacity=20: expected a finite number of at least 23"),
        ([], {"n_symbols": 100}, "n_symbols=100: must be at least 148"),
        ([], {"batching_strategy": "alternated_sort", "num_bins": 99}, "num_bins=99"),
    ],
)
def test_wrong_settings_are_refused_and_no_folder_is_made(
    more, hparams, message, corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "new" / "out"
    assert message in refused(flags(out, corpus.hparams(**hparams), *more), capsys)
    assert list(tmp_path.iterdir()) == []


def test_several_bad_clips_are_listed_together(corpus, tmp_path, capsys):
    lines = corpus.train.read_text().splitlines()
    lines[2] = lines[2].replace("train02", "train99")
    lines[5] = lines[5].rpartition("|")[0] + "|9.5"
    lines[7] = lines[7].split("|")[0] + "|~~~|1"
    lines[9] = "only one field"
    filelist = tmp_path / "bad.txt"
    filelist.write_text("\n".join(lines))
    arguments = flags(tmp_path / "out", corpus.hparams(training_files=filelist))
    message = refused(arguments, capsys)
    assert "4 of 14 lines refused" in message
    for number in (3, 6, 8, 10):
        assert f"{filelist}:{number}: " in message
    assert not (tmp_path / "out").exists()


def test_a_clip_cut_off_is_refused_before_the_first_step_where_no_seconds_tell(
    corpus, tmp_path, capsys
):
    sound, text, _ = corpus.train.read_text().splitlines()[4].split("|")
    cut = tmp_path / "cut.wav"
    cut.write_bytes(Path(sound).read_bytes()[:-2000])
    filelist = tmp_path / "list.txt"
    filelist.write_text(f"{sound}|{text}\n{cut}|{text}\n{sound}|...\n")
    arguments = flags(tmp_path / "out", corpus.hparams(training_files=filelist))
    message = refused(arguments, capsys)
    assert f"{filelist}:2: {cut}: cut off, its header promises more" in message
    assert f"{filelist}:3: text '...' leaves nothing to say" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("resume", [True, False])
def test_clips_are_read_when_a_run_begins_and_not_when_it_goes_on(
    resume, copied, corpus, tmp_path, monkeypatch
):
    asked = []

    def read_no_clips(_, processes, *, new_run, skipped):
        asked.append(new_run)
        raise UserError("enough")

    monkeypatch.setattr(skipping, "read_clips", read_no_clips)
    hparams = corpus.hparams(**LONG | {"epochs": 9})
    with pytest.raises(SystemExit):
        train.main(
            flags(copied, hparams, "--resume") if resume else flags(tmp_path / "out", hparams)
        )
    assert asked == [not resume]


@pytest.mark.parametrize("more", [[], ["--resume"]])
@pytest.mark.parametrize("out", ["file", "file/out"])
def test_an_output_folder_that_is_a_file_is_refused_before_anything_is_read(
    more, out, corpus, tmp_path, capsys
):
    (tmp_path / "file").write_text("mine")
    arguments = flags(tmp_path / out, corpus.hparams(training_files="gone.txt"), *more)
    message = refused(arguments, capsys)
    assert f"{tmp_path}/file: not a folder; choose another -o" in message
    assert "gone.txt" not in message
    assert (tmp_path / "file").read_text() == "mine"


def test_validation_clips_that_are_trained_on_are_warned_of(corpus, tmp_path, capsys):
    run(tmp_path / "out", corpus, epochs=1, validation_files=corpus.train)
    assert "warning: 14 validation clips are trained on too" in capsys.readouterr().out


@pytest.mark.parametrize("logs", ["logs", "my logs"])
def test_the_command_to_go_on_names_the_folders_of_the_run_whatever_their_names(logs, tmp_path):
    output = tmp_path / "a run; with signs"
    folders = SimpleNamespace(log_directory=output / logs)
    run_of_one = SimpleNamespace(output_directory=output, logger=folders, processes=ALONE)
    command = stopping.resume_command(run_of_one)
    python, script, *arguments = shlex.split(command)
    assert (python, script) == ("python", "train.py")
    args = train.parse_arguments(arguments)
    assert (args.output_directory, args.log_directory, args.resume) == (output, logs, True)


# ---------------------------------------------------------------------------- faults of the recipe


@pytest.mark.parametrize("error", [ValueError, KeyError, OSError, RuntimeError, TypeError])
@pytest.mark.parametrize("place", ["Trainer", "learning_rate_at"])  # in set-up, in the loop
def test_a_fault_of_the_recipe_keeps_its_traceback(error, place, corpus, tmp_path, monkeypatch):
    def fail(*_):
        raise error("a bug")

    monkeypatch.setattr(train, place, fail)
    with pytest.raises(error, match="a bug"):
        run(tmp_path / "out", corpus)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_in_reading_keeps_its_traceback_and_what_was_trained(
    workers, corpus, tmp_path, monkeypatch, capsys
):
    def fail(self, path):
        if Path(path).name == "train05.wav":
            raise RuntimeError("a bug")
        return read(self, path)

    read, out = TextMelDataset._mel, tmp_path / "out"
    monkeypatch.setattr(TextMelDataset, "_mel", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(out, corpus, num_workers=workers, batch_size=1, dynamic_batch_size=False)
    trained = load(newest(out))["loop"]["batches_trained"]
    assert trained > 0
    assert f"everything until here is in {newest(out)}" in capsys.readouterr().out


def test_the_progress_line_shows_loss_and_alignment_once_there_are_such():
    state = SimpleNamespace(batches_trained=1, epoch=1)
    settings = SimpleNamespace(epochs=2)
    begun = SimpleNamespace(state=state, hparams=settings, recent_loss=None, recent_sharpness=None)
    assert train.time_left(begun, 10.0, 40.0, 2.0) == "epoch 6 s left, run 14 s left"
    begun.recent_loss, begun.recent_sharpness = 1.5, 0.734
    shown = train.time_left(begun, 10.0, 40.0, 2.0)
    assert shown.startswith("loss 1.5000, alignment 0.73, epoch 6 s left")


# ---------------------------------------------------------------------------- earlier releases


NEWER = {  # than the first release
    "alignment_coverage",
    "alignment_diagonality",
    "processes",
    "step_imbalance",
}


def test_a_run_of_the_first_release_goes_on_inside_its_epoch(tmp_path):
    """tests/data/first_release was written by that release, which was killed after step 8 of the
    run on these very clips; uninterrupted.jsonl is what it logged of the whole run."""
    (tmp_path / "clips").mkdir()
    seconds = {"train": np.linspace(0.3, 1.5, 14), "val": (0.35, 0.5, 0.7, 0.9, 1.3)}
    corpus = make_corpus(tmp_path / "clips", seconds)
    saved = ROOT / "tests" / "data" / "first_release"
    out = shutil.copytree(saved, tmp_path / "out")
    expected = [
        json.loads(line) for line in (out / "uninterrupted.jsonl").read_text().split("\n")[:-1]
    ]
    files = f"training_files={corpus.train},validation_files={corpus.val}"
    train.main(flags(out, files, "--resume"))
    ours, theirs = without_times(metrics(out)), without_times(expected)
    assert len(ours) == len(theirs) == 6
    for record, other in zip(ours, theirs, strict=True):
        assert record.pop("kind") == other.pop("kind")
        record = {name: value for name, value in record.items() if name not in NEWER}
        # Dropout is drawn as it was until the epoch ends, and not after it, nor in validation.
        # Bitwise only on one and the same machine.
        as_before = record["epoch"] == 2 and "train_loss" in record
        assert record == pytest.approx(other, rel=1e-4 if as_before else 0.05)
    assert [step for step, _ in curves(out)["training/loss"]] == [2, 4, 6, 8, 10, 12, 14, 16]
