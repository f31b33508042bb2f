"""Test that programs continue with the same results when their output cannot be printed."""

import io
import multiprocessing
import os
import signal
import sys

import pytest
from helpers import LONG, Child, act_at, assert_same_run, flags

from tacotron2_voice.utils.console import UnfailingFile
from training.signals import messages
from training.trainer import Trainer


def print_to(file: int, descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.dup2(file, descriptor)


def print_into_pipe(writer) -> None:
    print_to(writer.fileno(), (1, 2))
    writer.close()
    # os.write writes the whole line at once. print() may write the line feed later.
    os.write(1, b"the first line\n")
    act_at(Trainer, "step", lambda: print("of a library", file=sys.stderr, flush=True), 4)


@pytest.mark.thorough
def test_program_continues_when_the_pipe_is_closed(corpus, whole, tmp_path):
    out, (reader, writer) = tmp_path / "out", multiprocessing.Pipe(duplex=False)
    hparams = corpus.hparams(**LONG, num_workers=2)
    child = Child(flags(out, hparams), print_into_pipe, writer)
    writer.close()
    assert os.read(reader.fileno(), 1000).startswith(b"the first line")
    reader.close()
    ended = child.end()
    assert ended.code == 0
    assert_same_run(out, whole)


def test_training_error_is_a_single_line_when_another_process_has_died():
    said = "Application timeout caused pair closure"
    with pytest.raises(SystemExit, match=f"{said}$"), messages():
        raise RuntimeError(f"{said}\n\nAt:\n  trainer.py(155): step")


def test_error_reports_the_cause_when_workers_fail():
    with pytest.raises(SystemExit, match="143"), messages():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. ")
    with (
        pytest.raises(SystemExit, match="too many open files"),
        messages(),
    ):
        raise RuntimeError("Too many open files. Communication with the workers is")


def print_into_full_file() -> None:
    print_to(os.open("/dev/full", os.O_WRONLY), (1, 2))


def print_into_terminal(hang_up_at_step: int) -> None:
    """Print to a terminal that hangs up at an optimizer step.

    The calling process must be a session leader.
    """
    terminal, slave = os.openpty()
    print_to(os.open(os.ttyname(slave), os.O_RDWR), (0, 1, 2))
    os.close(slave)
    os.set_blocking(terminal, False)

    def hang_up() -> None:
        os.read(terminal, 10**6)
        os.close(terminal)

    act_at(Trainer, "step", hang_up, hang_up_at_step)


def print_into_terminal_with_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print_into_terminal(4)


@pytest.mark.thorough
def test_training_output_is_dropped_when_it_cannot_be_printed(corpus, whole, tmp_path):
    out = tmp_path / "out"
    ended = Child(flags(out, corpus.hparams(**LONG)), print_into_terminal_with_nohup).end()
    assert (ended.code, ended.output) == (0, "")
    assert_same_run(out, whole)


def print_into_full_file_until_terminated() -> None:
    print_into_full_file()
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), 5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "hook"),
    [
        (signal.SIGHUP, (print_into_terminal, 5)),
        (signal.SIGTERM, (print_into_full_file_until_terminated,)),
    ],
)
def test_run_saves_a_checkpoint_when_it_receives_a_signal_and_output_cannot_be_printed(
    number, hook, corpus, whole, tmp_path
):
    out = tmp_path / "out"
    ended = Child(flags(out, corpus.hparams(**LONG)), *hook).end()
    assert (ended.code, ended.output) == (128 + number, "")
    # No regular checkpoint was due, so the signal caused this checkpoint.
    assert (out / "checkpoint_5.pt").exists()
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)


def test_log_keeps_text_before_and_after_a_failed_write_when_the_disk_is_full(tmp_path):
    path = tmp_path / "log"
    full, log = os.open("/dev/full", os.O_WRONLY), os.open(path, os.O_WRONLY | os.O_CREAT)
    shown = os.dup(log)
    stream = io.TextIOWrapper(io.BufferedWriter(UnfailingFile(shown, "w")), line_buffering=True)
    print("before", file=stream)
    os.dup2(full, shown)
    print("lost" * 10_000, file=stream)
    os.dup2(log, shown)
    print("after", file=stream)
    stream.close()
    os.close(full)
    os.close(log)
    assert path.read_text() == "before\nafter\n"
