"""Handle signals that stop a run, and print the last messages of the process."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import torch

from tacotron2_voice.utils.errors import UserError, explained
from training.distributed import AlreadyReported, Processes, leave_at_exit

OF_DEAD_PROCESSES = ("gloo/transport", "Application timeout caused pair closure")
OF_DEAD_WORKERS = "DataLoader worker (pid"  # torch may raise this error in any statement


class StopRequest:
    """Remember SIGINT, SIGTERM or SIGHUP until the loop can save.

    A SIGINT after another signal stops the process at once. A SIGHUP that nohup ignores stays
    ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            message = f"\n{signal.Signals(number).name}: saving after this step ...\n"
            with contextlib.suppress(OSError):
                # This does not use `print`, because the signal may have interrupted another
                # `print`.
                os.write(2, message.encode())
        elif number == signal.SIGINT:  # SIGTERM may come twice, for example from make.
            raise KeyboardInterrupt

    def exit(self, processes: Processes, resume_command: str) -> None:
        """End this process. Save a checkpoint before this call."""
        if processes.is_first:
            print(f"stopped and saved; resume with: {resume_command}", flush=True)
        leave_at_exit()
        # torchrun would restart a process with another exit code.
        sys.exit(128 + (self.signal or signal.SIGTERM) if processes.world_size == 1 else 0)


@contextlib.contextmanager
def messages(resume_command: str = "") -> Iterator[None]:
    """End the program with a message instead of a traceback on errors that are not bugs.

    These are UserError, system errors, Ctrl-C, and the death of a loader's process or of another
    process of the run.

    Args:
        resume_command: this command is added to the message if the run can be resumed.
    """
    resume = f"resume with: {resume_command}" if resume_command else ""
    try:
        yield
    except AlreadyReported as error:
        leave_at_exit()
        sys.exit(f"train.py: {error}\n{resume}" if resume else 1)
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # It does not come from the system.
        if isinstance(error, UserError):
            leave_at_exit()
        sys.exit(f"train.py: {explained(error)}\n{resume}".rstrip())
    except RuntimeError as error:
        is_from_gloo = any(words in str(error) for words in OF_DEAD_PROCESSES)
        if is_from_gloo or isinstance(error, torch.distributed.DistError):
            message = str(error).partition("\n")[0]  # torch adds a stack to some messages.
            sys.exit(f"train.py: another process of this run ended or does not answer: {message}")
        # The loader's processes exchange open files, so many workers need many descriptors.
        if "Too many open files" in str(error):
            sys.exit(
                "train.py: too many open files. Raise ulimit -n, or set num_workers=0\n"
                f"{resume}".rstrip()
            )
        if not str(error).startswith(OF_DEAD_WORKERS):
            raise
        if "signal: Terminated" in str(error):
            # The signal also reached this process, and it has saved.
            print(f"train.py: a loader's process was stopped; {resume}", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        sys.exit(
            f"train.py: a loader's process died, often because memory ran out: {error}\n"
            f"A smaller num_workers needs less memory; {resume}"
        )
    except KeyboardInterrupt:
        message = f"stopped without saving; {resume}" if resume else "interrupted before training"
        print(f"train.py: {message}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
