"""How training ends: a signal saves and stops, a user's mistake becomes a message."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator

import torch

from errors import UserError
from training.distributed import SaidElsewhere
from training.run import Run

DEFAULT_LOGS = "logs"  # inside the output folder
OF_DEAD_PROCESSES = ("gloo/transport", "Application timeout caused pair closure")


class StopRequest:
    """Remembers SIGINT, SIGTERM or SIGHUP until the loop can save; a SIGINT after it stops at once.

    A SIGHUP that is ignored already, by nohup, stays ignored.
    """

    def __init__(self):
        self.signal = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._remember)

    def _remember(self, number: int, _frame) -> None:
        if self.signal is None:
            self.signal = number
            message = f"\n{signal.Signals(number).name}: saving after this step ...\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # print may be what the signal interrupted
        elif number == signal.SIGINT:  # SIGTERM may well come twice, from make for one
            raise KeyboardInterrupt

    def agree(self, run: Run) -> None:
        """Let all processes stop if one was asked to; each calls this at the same moment."""
        run.must_stop = run.processes.any(self.signal is not None)

    def leave(self, run: Run) -> None:
        """End the process if the run must stop; the caller has saved."""
        if run.must_stop:
            self.signal = self.signal or signal.SIGTERM
            if run.processes.is_first:
                print(f"stopped and saved; go on with: {resume_command(run)}", flush=True)
            # torchrun would start again what ends with anything but 0.
            sys.exit(128 + self.signal if run.processes.world_size == 1 else 0)


def resume_command(run: Run) -> str:
    """What to type to go on; the log folder is named where it is not the default."""
    logs = os.path.relpath(run.logger.log_directory, run.output_directory)
    named = "" if logs == DEFAULT_LOGS else f" -l {shlex.quote(logs)}"
    output = shlex.quote(str(run.output_directory))
    return f"{run.processes.launcher} train.py -o {output}{named} --resume"


@contextlib.contextmanager
def messages(run: Run | None = None) -> Iterator[None]:
    """End the program with a message, and no traceback, on what is no fault of the recipe.

    That is a mistake of the user's, Ctrl-C, or the death of a process that reads clips. Once there
    is a `run`, the message says how to go on with it. Any other exception keeps its traceback.
    """
    first = run is not None and run.processes.is_first
    go_on = f"go on with: {resume_command(run)}" if first else ""
    try:
        yield
    except SaidElsewhere as error:
        sys.exit(f"train.py: {error}\n{go_on}" if go_on else 1)
    except UserError as error:
        sys.exit("\n".join(filter(None, [f"train.py: {error}", go_on])))
    except RuntimeError as error:
        if is_dead_process(error):
            sys.exit(f"train.py: another process of this run ended or does not answer: {error}")
        if not is_dead_worker(error):
            raise
        sys.exit(
            f"train.py: a process that reads clips died, often of too little memory: {error}\n"
            f"Fewer num_workers need less; {go_on}"
        )
    except KeyboardInterrupt:
        stopped = f"stopped without saving; {go_on}" if run else "interrupted before training began"
        print(f"train.py: {stopped}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def is_dead_process(error: RuntimeError) -> bool:
    """Whether this is what waiting for another process ends with when that is gone or silent."""
    said_by_gloo = any(words in str(error) for words in OF_DEAD_PROCESSES)
    return isinstance(error, torch.distributed.DistError) or said_by_gloo


def is_dead_worker(error: RuntimeError) -> bool:
    """Whether this is what torch raises, at any moment, when a loader's process has died."""
    return str(error).startswith("DataLoader worker (pid")
