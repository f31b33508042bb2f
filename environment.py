"""What every program sets before torch is imported. Programs import this first.

An idle OpenMP thread waits for the next product at full speed, by default for a fifth of a second.
Where a machine has other work too, threads then mostly wait for one another: one step of the
decoder took 72 ms so, and 7 ms where they sleep. OpenMP reads the setting when torch loads it.

Ctrl-C ends a program with one line and exit code 130, at any moment from here on. While libraries
are being imported, which takes seconds, KeyboardInterrupt would not do: raised inside a library's
initialisation in C, it may be lost or become another error.

A program whose output nobody reads any more (`| head`) ends as other tools do: quietly, with exit
code 141. A full disk is one line.

A package that is not installed is one line with the requirements file that lists it.

A descriptor that the caller closed (`>&-`) leads to /dev/null. Left free, the next file opened
would get its number, and text meant for the terminal would land in that file.
"""

import atexit
import contextlib
import errno
import os
import select
import signal
import sys
from types import FrameType

EXIT_CODE_OF_CTRL_C = 128 + signal.SIGINT
EXIT_CODE_OF_CLOSED_PIPE = 128 + signal.SIGPIPE


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: {message}\n".encode())


def _imports(frame: FrameType) -> bool:
    """Whether the main file itself runs, or an import in it, and none of its functions yet."""
    inner = None
    while frame.f_back is not None:
        inner, frame = frame, frame.f_back
    in_main_file = (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    )
    return in_main_file and (
        inner is None or inner.f_code.co_filename.startswith("<frozen importlib")
    )


def _ctrl_c(number: int, frame: FrameType) -> None:
    if _imports(frame):
        _say("interrupted")
        os._exit(EXIT_CODE_OF_CTRL_C)  # nothing is written yet, so nothing needs to be put in order
    raise KeyboardInterrupt


def _uncaught(kind: type[BaseException], error: BaseException, traceback) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(EXIT_CODE_OF_CTRL_C)
    if issubclass(kind, BrokenPipeError) and _has_no_reader(1):
        sys.exit(EXIT_CODE_OF_CLOSED_PIPE)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _say(f"{error}; make room")  # on the disk of a file, or of what is printed
        sys.exit(1)
    if isinstance(error, ModuleNotFoundError) and (file := requirements_file(error.name or "")):
        _say(f"{error.name} is not installed: pip install -r {file}")
        sys.exit(1)
    sys.__excepthook__(kind, error, traceback)


def requirements_file(module: str) -> str | None:
    """The requirements file that lists the package of a module, if any does."""
    package = module.partition(".")[0].replace("_", "-")
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in os.listdir(folder):
        if name.startswith("requirements"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                if any(line.startswith(f"{package}==") for line in file):
                    return name
    return None


def _has_no_reader(descriptor: int) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # errors are reported always
    return any(event & select.POLLERR for _, event in waiting.poll(0))


def _print_rest() -> None:
    """Print the rest of the output, of which Python would complain at its very end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (OSError, ValueError):  # a full disk, say: Python's complaint is right
        pass


def _open_closed_descriptors() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # as Python marks it
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # unless the user has set it
_open_closed_descriptors()
sys.excepthook = _uncaught
atexit.register(_print_rest)
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
    with contextlib.suppress(ValueError):  # imported in another thread, which may not set it
        signal.signal(signal.SIGINT, _ctrl_c)
