"""Process-wide settings. Every program imports this module first, before torch.

Idle OpenMP threads sleep instead of spinning. Ctrl-C ends a program with one line and exit code
130, during imports too, where KeyboardInterrupt may be lost in a library's C code. A closed output
pipe (`| head`) ends it silently with exit code 141. Errors that the user can fix are one line and
no traceback: a UserError, a system error, a full disk, a missing package with its requirements
file, a path that is no UTF-8. Closed descriptors (`>&-`) are opened on /dev/null: otherwise the
next file opened would get their number, and with it the terminal output.
"""

import atexit
import contextlib
import errno
import os
import select
import signal
import sys
from types import FrameType, TracebackType


def say(message: str) -> None:
    """Print a message on standard error, with the program's name."""
    message = "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in message)
    folder, name = os.path.split(sys.argv[0])
    if name == "__main__.py":  # of `python -m`
        name = os.path.basename(folder)
    with contextlib.suppress(OSError):
        os.write(2, f"{name}: {message}\n".encode())


def _imports(frame: FrameType | None) -> bool:
    """Whether the main file still runs its imports and has called none of its functions."""
    inner = None
    while frame is not None and frame.f_back is not None:
        inner, frame = frame, frame.f_back
    if frame is None or frame.f_code.co_name != "<module>":
        return False
    if frame.f_globals.get("__name__") != "__main__":
        return False
    return inner is None or inner.f_code.co_filename.startswith("<frozen importlib")


def _ctrl_c(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        say("interrupted")
        os._exit(128 + signal.SIGINT)  # nothing is written yet, so nothing needs cleaning up
    raise KeyboardInterrupt


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        say(str(error) or "interrupted")  # a program may have said what is done
        sys.exit(128 + signal.SIGINT)
    if isinstance(error, BrokenPipeError) and _has_no_reader(1):
        sys.exit(128 + signal.SIGPIPE)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        say(f"{error}; make room")  # on the disk of a file, or of what is printed
        sys.exit(1)
    kinds = {base.__name__ for base in kind.__mro__}  # by name: their modules import much
    if kinds & {"UserError", "BatchingError", "OSError"} and "BrokenPipeError" not in kinds:
        say(str(error))
        sys.exit(1)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Not of an argument, which are checked: of the working folder, or in a folder that is read.
        around = error.object[max(0, error.start - 40) : error.end + 20]
        named = ascii(around).replace("\\udc", "\\x")
        say(f"{named}: a path that is no UTF-8; rename it, or work in another folder")
        sys.exit(1)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0].replace("_", "-")
        from pathlib import Path  # not above, where Ctrl-C is not caught yet

        root = Path(__file__).resolve().parents[2]
        for path in (root / "requirements.txt", *root.glob("requirements/*.txt")):
            if path.is_file() and f"\n{package}==" in f"\n{path.read_text('utf-8')}":
                name = path.relative_to(root)
                say(f"{error.name} is not installed: pip install -r {name}")
                sys.exit(1)
    sys.__excepthook__(kind, error, trace)


def _has_no_reader(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # errors are reported always
    return any(event & select.POLLERR for _, event in waiting.poll(0))


def _print_rest() -> None:
    """Flush the output now; at exit Python would complain about a closed pipe."""
    with contextlib.suppress(OSError, ValueError):  # a full disk: Python's own complaint is right
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # unless the user has set it
os.environ["MPLBACKEND"] = "agg"  # matplotlib refuses to be imported with one that it lacks
for name in ("stdin", "stdout", "stderr"):
    if getattr(sys, name) is None:  # closed; the null device takes the lowest free number, its own
        descriptor = os.open(os.devnull, os.O_RDWR)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115
    elif name == "stdout" and sys.stdout.errors == "strict":  # ends a program where it is ASCII
        getattr(sys, name).reconfigure(errors="backslashreplace")
sys.excepthook = _uncaught
atexit.register(_print_rest)
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
    with contextlib.suppress(ValueError):  # imported in another thread, which may not set it
        signal.signal(signal.SIGINT, _ctrl_c)
