"""Text files read line by line; files written so that a reader never sees half of one."""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from errors import UserError

METRICS_FILE = "metrics.jsonl"  # in a run's folder: a line for each start, epoch and validation


def numbered_lines(path: str | Path, if_missing: str) -> list[tuple[int, str]]:
    """(number, text) of every line of a file that is not empty, without the blanks around it.

    Raises:
        UserError: saying `if_missing` where there is no such file, or where it is not UTF-8 text.
    """
    try:
        # Not splitlines, which breaks lines at odd characters inside a text too.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path}: {if_missing}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: not readable as UTF-8 text ({error.reason} in line {line}); convert it, for "
            f"example: iconv -f latin1 -t utf-8 {path}"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: not readable as UTF-8 text ({error.strerror})") from None
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in its place in one step.

    Whatever happens meanwhile, `path` is the old file or the whole new one. The temporary file's
    name ends in `.tmp` and starts with a dot; it is removed when `write` fails.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        write(temporary)
        with open(temporary, "rb+") as file:  # on the disk before the name points at it
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: object) -> None:
    """`value` as indented JSON, in one step."""
    text = json.dumps(value, indent=2) + "\n"
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


@contextlib.contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """A new folder to fill, which becomes `path` (absent or empty so far) once it is filled.

    When something fails meanwhile, nothing is left behind.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as building:
        folder = Path(building) / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)


def unused_name(path: Path) -> Path:
    """`path`, with as many `+` behind it as make it the name of no file."""
    return unused_name(path.with_name(path.name + "+")) if path.exists() else path


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files that a killed process left in `directory`."""
    for path in directory.glob(".*.tmp"):
        path.unlink()


def lock(directory: Path):
    """Keep other processes from `lock`ing `directory` while the returned file is open.

    The lock ends with the process, however that ends, and forked workers do not inherit it.

    Raises:
        BlockingIOError: if another process holds it.
    """
    file = open(directory / ".lock", "w")  # noqa: SIM115
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise BlockingIOError(f"{directory}: another process is training in this folder") from None
    except OSError:
        pass  # a file system without locks
    return file
