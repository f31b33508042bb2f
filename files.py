"""Writing files so that a reader never sees half of one."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path


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
