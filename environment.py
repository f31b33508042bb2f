"""What every program sets before torch is imported. Programs import this first.

Idle OpenMP threads sleep instead of spinning, which on a busy machine slows each other down (a
decoder step took 72 ms instead of 7). OpenMP reads this when torch loads.

Ctrl-C ends a program with one line and exit code 130, at any moment from here on. During imports,
which take seconds, KeyboardInterrupt is not enough: raised while a library initialises in C, it may
be lost or become another error. A program whose output nobody reads any more (`| head`) ends as
other tools do: quietly, with exit code 141. A full disk is one line, and so is a package that is
not installed, with the requirements file that lists it. A descriptor that the caller closed (`>&-`)
leads to /dev/null: the next file opened would get its number, and terminal output.
"""

import atexit
import contextlib
import errno
import os
import select
import signal
import sys
from types import FrameType, TracebackType

EXIT_CODE_OF_CTRL_C = 128 + signal.SIGINT
EXIT_CODE_OF_CLOSED_PIPE = 128 + signal.SIGPIPE
MAIN_FILE = ("<module>", "__main__")  # the code and the module that run


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: {message}\n".encode())


def _imports(frame: FrameType | None) -> bool:
    """Whether the main file itself runs, or an import in it, and none of its functions yet."""
    inner = None
    while frame is not None and frame.f_back is not None:
        inner, frame = frame, frame.f_back
    if frame is None or (frame.f_code.co_name, frame.f_globals.get("__name__")) != MAIN_FILE:
        return False
    return inner is None or inner.f_code.co_filename.startswith("<frozen importlib")


def _ctrl_c(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        _say("interrupted")
        os._exit(EXIT_CODE_OF_CTRL_C)  # nothing is written yet, so nothing needs cleaning up
    raise KeyboardInterrupt


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
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
    sys.__excepthook__(kind, error, trace)


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
    waiting = select.poll()
    waiting.register(descriptor, 0)  # errors are reported always
    return any(event & select.POLLERR for _, event in waiting.poll(0))


def _print_rest() -> None:
    """Print the rest of the output, of which Python would complain at its end."""
    with contextlib.suppress(OSError, ValueError):  # a full disk, say: Python's complaint is right
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
