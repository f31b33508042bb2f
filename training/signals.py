"""Handle signals that stop a run, and print a message before the process exits."""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import torch

from tacotron2_voice.utils.errors import UserError, explained
from training import checkpoint
from training.distributed import AlreadyReported, Processes, leave_at_exit

OF_DEAD_PROCESSES = ("gloo/transport", "Application timeout caused pair closure")
# Beginning of PyTorch's error message when a DataLoader worker has died. PyTorch may raise this
# error anywhere in the code.
OF_DEAD_WORKERS = "DataLoader worker (pid"


# Time limit in seconds for the current optimizer step after the first Ctrl-C. On a CPU, an
# optimizer step may take minutes.
SECONDS_FOR_STEP = 10
# Seconds between the second Ctrl-C and the end of the process, if the main thread does not exit by
# itself.
SECONDS_TO_END = 2
STOPPED_BY_CTRL_C = 128 + signal.SIGINT  # exit code of a process stopped by Ctrl-C


class StopRequest:
    """Record that a stop signal (SIGINT, SIGTERM or SIGHUP) has arrived, so that the training loop
    can save a checkpoint and stop.

        with StopRequest(SECONDS_FOR_STEP, lambda: "stopped without saving") as stop:
            train(run, stop)

    If a SIGINT arrives after the first signal, the process stops at once. SIGHUP is ignored if the
    command was started with nohup.

    Python calls signal handlers only between two operations of the main thread. A PyTorch operation
    may take minutes and delay a signal handler. Therefore a second thread also reads the signals,
    prints a message, and ends the process if the main thread does not exit in time.

    Args:
        limit: time limit in seconds to save and exit, if the first signal is SIGINT. After this
            time, the process ends without saving. None: no limit.
        resume: a function that returns the message for a process that ends without saving.
    """

    def __init__(self, limit: float | None, resume: Callable[[], str]) -> None:
        self.signal: int | None = None
        self.saving = threading.Lock()  # locked while a checkpoint is being written
        self._is_leaving = False  # whether the main thread is ending the process
        self._limit = limit
        self._resume = resume
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        threading.Thread(target=self._watch, daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._remember)
        # Python writes the number of each signal to the socket `_sender`. The second thread reads
        # the number from the other socket.
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def __enter__(self) -> "StopRequest":
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._sender.close()  # closing this socket makes the second thread exit

    def leave(self) -> None:
        """Stop the second thread from ending the process. Call this method before the main thread
        exits."""
        self._is_leaving = True

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        # A second SIGINT ends the run at once. A second SIGTERM is ignored, because programs such
        # as make may send SIGTERM twice to stop a run.
        elif number == signal.SIGINT:
            self.leave()
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Print a message for the first signal, and end the process if the main thread does not
        exit before the deadline."""
        first: int | None = None
        deadline: float | None = None
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select([self._receiver], [], [], left)
            if not ready:
                self._end()
                return
            numbers = self._receiver.recv(64)
            if not numbers:
                return
            for number in numbers:
                if number not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    continue
                now = time.monotonic()
                if first is None:
                    first = number
                    self._print_first(number)
                    if number == signal.SIGINT and self._limit is not None:
                        deadline = now + self._limit
                elif number == signal.SIGINT:
                    deadline = now + SECONDS_TO_END

    def _print_first(self, number: int) -> None:
        message = f"\n{signal.Signals(number).name}: saving after this optimizer step ..."
        if number == signal.SIGINT:
            message += " Press Ctrl-C again to stop at once without saving."
            if self._limit is not None:
                message += (
                    " Training also stops without saving if this optimizer step takes more than "
                    f"{self._limit:g} s."
                )
        _print_error(message)

    def _end(self) -> None:
        with self.saving:  # Wait until the main thread has finished writing a checkpoint.
            if self._is_leaving:
                return
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            _print_error(f"\ntrain.py: {self._resume()}")
            os._exit(STOPPED_BY_CTRL_C)

    def exit(self, processes: Processes, resume_command: str) -> None:
        """Exit the process. Save a checkpoint before you call this method."""
        self.leave()
        if processes.is_first:
            resume = f"; resume with: {resume_command}" if resume_command else ""
            print(f"stopped and saved{resume}", flush=True)
        leave_at_exit()
        # Exit with code 0, because torchrun restarts processes that exit with another code.
        sys.exit(128 + (self.signal or signal.SIGTERM) if processes.world_size == 1 else 0)


def _print_error(message: str) -> None:
    """Write to stderr without `print`, because the main thread may be inside a `print` call."""
    with contextlib.suppress(OSError):
        os.write(2, f"{message}\n".encode())


class TrainingDiverged(UserError):
    """Raised if the loss or the gradients diverge. The message says how to continue."""


def stopped_without_saving(folder: Path, resume_command: str) -> str:
    """Return a message with the run's newest checkpoint and the command to resume the run."""
    checkpoints = checkpoint.list_checkpoints(folder)
    start = f". Training resumes from {checkpoints[-1][1].name}" if checkpoints else ""
    resume = f". Resume with: {resume_command}" if resume_command else ""
    return f"stopped without saving{start}{resume}"


@contextlib.contextmanager
def messages(resume_command: str = "", folder: Path | None = None) -> Iterator[None]:
    """In this context, exit with a message instead of a traceback if an error is not a bug.

    Errors that are not bugs are UserError, operating system errors, Ctrl-C, and the death of a
    DataLoader worker or another process of the run.

    Args:
        resume_command: the command that resumes the run; "" if the run cannot be resumed.
        folder: the folder of the run; None if the run cannot be resumed.
    """
    resume = f"resume with: {resume_command}" if resume_command else ""
    try:
        yield
    except TrainingDiverged as error:
        leave_at_exit()
        sys.exit(f"train.py: {error}")
    except AlreadyReported as error:
        leave_at_exit()
        sys.exit(f"train.py: {error}\n{resume}" if resume else 1)
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # not an operating system error, so show the traceback
        if isinstance(error, UserError):
            leave_at_exit()
        sys.exit(f"train.py: {explained(error)}\n{resume}".rstrip())
    except RuntimeError as error:
        is_from_gloo = any(words in str(error) for words in OF_DEAD_PROCESSES)
        if is_from_gloo or isinstance(error, torch.distributed.DistError):
            # Use only the first line of the message, because PyTorch appends a stack trace.
            message = str(error).partition("\n")[0]
            sys.exit(f"train.py: another process of this run exited or does not respond: {message}")
        # DataLoader workers exchange open files, so many workers need many file descriptors.
        if "Too many open files" in str(error):
            sys.exit(
                "train.py: too many open files. Increase the limit with ulimit -n, or set "
                "num_workers=0\n"
                f"{resume}".rstrip()
            )
        if not str(error).startswith(OF_DEAD_WORKERS):
            raise
        if "signal: Terminated" in str(error):
            # The main process also received SIGTERM, and has saved a checkpoint.
            message = f"train.py: a DataLoader worker was terminated; {resume}".rstrip("; ")
            print(message, file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        sys.exit(
            f"train.py: a DataLoader worker died, often because memory ran out: {error}\n"
            f"A smaller num_workers needs less memory; {resume}".rstrip("; ")
        )
    except KeyboardInterrupt:
        message = "interrupted before training"
        if folder is not None:
            message = stopped_without_saving(folder, resume_command)
        print(f"train.py: {message}", file=sys.stderr)
        sys.exit(STOPPED_BY_CTRL_C)
