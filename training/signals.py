"""Handle signals that stop a run, and print the last messages of the process."""

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
OF_DEAD_WORKERS = "DataLoader worker (pid"  # torch may raise this error at any place in the code


# After a first Ctrl-C, the current optimizer step has this time to finish. On a CPU a step may take
# minutes.
SECONDS_FOR_STEP = 10
# After a second Ctrl-C, the main thread has this time to end the process with its own message.
SECONDS_TO_END = 2
STOPPED_BY_CTRL_C = 128 + signal.SIGINT  # exit code of a process that Ctrl-C ended


class StopRequest:
    """Remember SIGINT, SIGTERM or SIGHUP until the training loop can save.

        with StopRequest(SECONDS_FOR_STEP, lambda: "stopped without saving") as stop:
            train(run, stop)

    A SIGINT after another signal stops the process at once. A SIGHUP that nohup ignores stays
    ignored.

    Python calls signal handlers between two operations of the main thread. If torch computes for
    minutes, a handler would wait for minutes, so a second thread also reads the signals. It prints
    the message, and it ends the process if the main thread does not end it in time.

    Args:
        limit: seconds from the first SIGINT until the process ends without saving; None: no limit.
        resume: returns the message of a process that ends without saving.
    """

    def __init__(self, limit: float | None, resume: Callable[[], str]) -> None:
        self.signal: int | None = None
        self.saving = threading.Lock()  # locked while a checkpoint is written
        self._is_leaving = False  # whether the main thread is ending the process
        self._limit = limit
        self._resume = resume
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        threading.Thread(target=self._watch, daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._remember)
        # From now on, the interpreter sends the number of each signal to the second thread.
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def __enter__(self) -> "StopRequest":
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._sender.close()  # ends the second thread

    def leave(self) -> None:
        """Announce that the main thread ends the process, because everything is saved."""
        self._is_leaving = True

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:  # SIGTERM may come twice, for example from make.
            self.leave()
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Print the first signal, and end the process when its time is over."""
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
                message += f" Training also stops if the step takes more than {self._limit:g} s."
        _print_error(message)

    def _end(self) -> None:
        with self.saving:  # A checkpoint that is being written will contain the last step.
            if self._is_leaving:
                return
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            _print_error(f"\ntrain.py: {self._resume()}")
            os._exit(STOPPED_BY_CTRL_C)

    def exit(self, processes: Processes, resume_command: str) -> None:
        """End this process. Save a checkpoint before this call."""
        self.leave()
        if processes.is_first:
            print(f"stopped and saved; resume with: {resume_command}", flush=True)
        leave_at_exit()
        # torchrun would restart a process with another exit code.
        sys.exit(128 + (self.signal or signal.SIGTERM) if processes.world_size == 1 else 0)


def _print_error(message: str) -> None:
    """Print without `print`, because the main thread may be inside another `print`."""
    with contextlib.suppress(OSError):
        os.write(2, f"{message}\n".encode())


def stopped_without_saving(folder: Path, resume_command: str) -> str:
    """Return a message that says from which checkpoint the run in `folder` resumes."""
    checkpoints = checkpoint.list_checkpoints(folder)
    start = f"Training resumes from {checkpoints[-1][1].name}. " if checkpoints else ""
    return f"stopped without saving. {start}Resume with: {resume_command}"


@contextlib.contextmanager
def messages(resume_command: str = "", folder: Path | None = None) -> Iterator[None]:
    """End the program with a message instead of a traceback if an error is not a bug.

    Such errors are UserError, system errors, Ctrl-C, and the death of another process of the run or
    of a loader.

    Args:
        resume_command: this command is added to the message if the run can be resumed.
        folder: the run's folder, if the run can be resumed.
    """
    resume = f"resume with: {resume_command}" if resume_command else ""
    try:
        yield
    except AlreadyReported as error:
        leave_at_exit()
        sys.exit(f"train.py: {error}\n{resume}" if resume else 1)
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # The error does not come from the operating system.
        if isinstance(error, UserError):
            leave_at_exit()
        sys.exit(f"train.py: {explained(error)}\n{resume}".rstrip())
    except RuntimeError as error:
        is_from_gloo = any(words in str(error) for words in OF_DEAD_PROCESSES)
        if is_from_gloo or isinstance(error, torch.distributed.DistError):
            message = str(error).partition("\n")[0]  # torch adds a stack trace to some messages.
            sys.exit(f"train.py: another process of this run ended or does not answer: {message}")
        # The loader's processes exchange open files, so many workers need many file descriptors.
        if "Too many open files" in str(error):
            sys.exit(
                "train.py: too many open files. Raise ulimit -n, or set num_workers=0\n"
                f"{resume}".rstrip()
            )
        if not str(error).startswith(OF_DEAD_WORKERS):
            raise
        if "signal: Terminated" in str(error):
            # The signal also reached this process, which has saved a checkpoint.
            print(f"train.py: a loader's process was stopped; {resume}", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        sys.exit(
            f"train.py: a loader's process died, often because memory ran out: {error}\n"
            f"A smaller num_workers needs less memory; {resume}"
        )
    except KeyboardInterrupt:
        message = "interrupted before training"
        if folder is not None:
            message = stopped_without_saving(folder, resume_command)
        print(f"train.py: {message}", file=sys.stderr)
        sys.exit(STOPPED_BY_CTRL_C)
