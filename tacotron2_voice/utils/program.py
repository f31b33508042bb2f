"""Run a program and report errors that the user can fix in one line.

if __name__ == "__main__":
    run_program(main)
"""

import contextlib
import errno
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tacotron2_voice.utils.errors import UserError

# requirements folder of the project; missing if only this library is installed
ROOT = Path(__file__).resolve().parents[2]
# compared by name, because length_batching does not import this library
USER_ERRORS = ("UserError", "BatchingError")


def run_program(main: Callable[[], object]) -> None:
    """Call `main` and end the process with the exit code that shells expect.

    - Ctrl-C: one line, exit code 130.
    - Closed output, such as with `| head`: no message, exit code 141.
    - UserError, system errors and missing packages: one line, exit code 1.
    - Everything else is a bug: a traceback, exit code 1.
    """
    # A terminal's encoding may lack characters of a path. The stream is None if the output is
    # closed (>&-).
    if sys.stdout is not None and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        _end(str(error) or "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        if not _has_no_reader(1):
            raise
        _end("", 128 + signal.SIGPIPE)
    except ModuleNotFoundError as error:
        file = requirements_file(error.name or "")
        if file is None:
            raise
        _end(f"error: {error.name} is not installed: pip install -r {file}", 1)
    except OSError as error:
        hint = ": free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        _end(f"error: {error}{hint}", 1)
    except ValueError as error:
        if type(error).__name__ not in USER_ERRORS and not isinstance(error, UserError):
            raise
        _end(f"error: {error}", 1)


def requirements_file(module: str) -> Path | None:
    """Return the requirements file that lists the package of `module`, or None."""
    package = module.partition(".")[0].replace("_", "-")
    for path in (ROOT / "requirements.txt", *sorted(ROOT.glob("requirements/*.txt"))):
        if path.is_file() and f"\n{package}==" in f"\n{path.read_text(encoding='utf-8')}":
            return path.relative_to(ROOT)
    return None


def _end(message: str, code: int) -> None:
    """Print `message` on standard error, with the program's name, and exit."""
    folder, name = os.path.split(sys.argv[0])
    if name == "__main__.py":  # of python -m
        name = os.path.basename(folder)
    # A name from a file could contain control characters, which a terminal would obey.
    shown = "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in message)
    with contextlib.suppress(OSError):
        if message:
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
    # Python flushes again at exit, and would print an error about the closed pipe or the full disk.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _has_no_reader(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in waiting.poll(0))
