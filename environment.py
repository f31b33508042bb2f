"""What every program sets before torch is imported. Programs import this first.

An idle OpenMP thread waits for the next product at full speed, by default for a fifth of a second.
Where a machine has other work too, threads then mostly wait for one another: one step of the
decoder took 72 ms so, and 7 ms where they sleep. OpenMP reads the setting when torch loads it.

Ctrl-C ends a program with one line and exit code 130, at any moment from here on. While libraries
are being imported, which takes seconds, KeyboardInterrupt would not do: raised inside a library's
initialisation in C, it may be lost or become another error.

A descriptor that the caller closed (`>&-`) leads to /dev/null. Left free, the next file opened
would get its number, and text meant for the terminal would land in that file.
"""

import contextlib
import os
import signal
import sys
from types import FrameType

EXIT_CODE_OF_CTRL_C = 128 + signal.SIGINT


def _say_interrupted() -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: interrupted\n".encode())


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
        _say_interrupted()
        os._exit(EXIT_CODE_OF_CTRL_C)  # nothing is written yet, so nothing needs to be put in order
    raise KeyboardInterrupt


def _uncaught(kind: type[BaseException], error: BaseException, traceback) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _say_interrupted()
        sys.exit(EXIT_CODE_OF_CTRL_C)
    sys.__excepthook__(kind, error, traceback)


def _open_closed_descriptors() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # as Python marks it
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # unless the user has set it
_open_closed_descriptors()
sys.excepthook = _uncaught
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
    with contextlib.suppress(ValueError):  # imported in another thread, which may not set it
        signal.signal(signal.SIGINT, _ctrl_c)
