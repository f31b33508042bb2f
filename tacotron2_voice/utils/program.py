"""Run the `main` of a program. If the user can fix an error, print a single line instead of a
traceback.

if __name__ == "__main__":
    run_program(main)
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tacotron2_voice.utils.errors import UserError, with_fix

# Root folder of the project. If only the package tacotron2-voice is installed, this folder contains
# no requirements files.
ROOT = Path(__file__).resolve().parents[2]
# Environment variable that a program, such as my_voice.py, sets for the programs that it starts.
STAGE_VARIABLE = "TACOTRON2_STAGE"
# Compare exceptions by name, because length_batching does not depend on this library.
USER_ERRORS = ("UserError", "BatchingError")


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process at once and without a traceback, until `run_program` is called.

    A program calls this function before its slow imports, because Ctrl-C during the import of a C
    extension may have no effect, or cause an error in the extension. If SIGINT is ignored, as in a
    background process of a shell, SIGINT stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)


def _exit_at_once(number: int, _: object) -> None:
    os._exit(128 + number)


def run_program(main: Callable[[], object]) -> None:
    """Call `main`. If `main` raises an exception, exit with the code that shells expect.

    - After Ctrl-C, print one line, and exit with code 130.
    - If the output is closed, for example by `| head`, print nothing, and exit with code 141.
    - After a UserError or a system error, or if a package is missing, print one line, and exit with
      code 1.
    - After any other exception, which is a bug, print a traceback, and exit with code 1.
    """
    if signal.getsignal(signal.SIGINT) is _exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Escape unsupported characters, because the terminal's encoding may not support all characters
    # of a path. sys.stdout is None if the output is closed (>&-).
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
        _end(f"error: {with_fix(error)}", 1)
    except ValueError as error:
        if type(error).__name__ not in USER_ERRORS and not isinstance(error, UserError):
            raise
        _end(f"error: {error}", 1)


def is_stage() -> bool:
    """Return whether another program, such as my_voice.py, runs this program as one of its stages.

    A stage prints no command to resume the work. The program that started the stage prints this
    command.
    """
    return STAGE_VARIABLE in os.environ


def requirements_file(module: str) -> Path | None:
    """Return the requirements file that lists the package of a module, or None if there is no such
    file."""
    package = module.partition(".")[0].replace("_", "-")
    # Check frameworks.txt last, because it lists large packages that only tests need.
    optional = sorted(ROOT.glob("requirements/*.txt"), key=lambda x: (x.stem == "frameworks", x))
    for path in (ROOT / "requirements.txt", *optional):
        if path.is_file() and f"\n{package}==" in f"\n{path.read_text(encoding='utf-8')}":
            return path.relative_to(ROOT)
    return None


def install_command(extra: str) -> str:
    """Return the command that installs this library with the optional packages of `extra`."""
    is_repository = (ROOT / "tacotron2_voice" / "pyproject.toml").is_file()
    library = "./tacotron2_voice" if is_repository else "tacotron2-voice"
    return f'pip install "{library}[{extra}]"'


def _end(message: str, code: int) -> None:
    """Print the name of the program and `message` to standard error, and exit."""
    folder, name = os.path.split(sys.argv[0])
    if name == "__main__.py":  # the program was started with python -m
        name = os.path.basename(folder)
    # Escape control characters, because a file name may contain them, and a terminal would execute
    # them.
    shown = "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in message)
    with contextlib.suppress(OSError):
        if message:
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
    # Redirect standard output to the null device. Python flushes standard output again at exit, and
    # would print an error about a closed pipe or a full disk.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _has_no_reader(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # `poll` reports errors even if no event is selected
    return any(event & select.POLLERR for _, event in waiting.poll(0))
