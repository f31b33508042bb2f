"""Files opened without waiting, read line by line or several at a time, and written as a whole."""

import codecs
import contextlib
import fcntl
import json
import os
import shlex
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from errors import UserError

METRICS_FILE = "metrics.jsonl"  # in a run's folder: a line for each start, epoch and validation
READING_THREADS = 8  # opening and reading wait for the disk, not for the processor
OTHER_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | Path, if_missing: str = "no such file; check its path") -> BufferedReader:
    """A file, opened to read bytes. It never waits, as opening a named pipe would. UserError,
    without the path: `if_missing`, or why it cannot be opened."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind == stat.S_IFREG:
            return open(path, "rb")
    except PermissionError:
        raise UserError("permission denied; let your user read it (chmod, chown)") from None
    except (FileNotFoundError, ValueError):  # ValueError: a zero byte in the path
        raise UserError(if_missing) from None
    except OSError as error:  # such as a name that is too long
        raise UserError(f"{error.strerror}; check its path") from None
    raise UserError(f"{OTHER_KINDS.get(kind, 'no file')}, expected a file; check its path")


def numbered_lines(path: str | Path, if_missing: str) -> list[tuple[int, str]]:
    """(number, text) of every line of a file that is not empty, without the blanks around it.
    UserError: `if_missing`, or why it cannot be read; another encoding, and how to convert it."""
    try:
        with open_file(path, if_missing) as file:
            content = file.read()
        encoding, note = "LATIN1", " (if it is Latin-1)"
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if marked or b"\0" in content[:4]:  # the other half of an ASCII character
            encoding, note = "UTF-32" if b"\0\0" in content[:4] else "UTF-16", ""
            if encoding == "UTF-16" and not marked:
                encoding += "LE" if content[0] else "BE"
            raise UnicodeDecodeError("utf-8", content, 0, 1, f"{encoding} text")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        source, target = shlex.quote(str(path)), shlex.quote(f"{path}.utf8")
        raise UserError(
            f"{path}: not readable as UTF-8 text ({error.reason} in line {line}); convert it: "
            f"iconv -f {encoding} -t UTF-8 {source} > {target}{note}"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    # Not splitlines, which breaks lines at odd characters inside a text too.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def map_in_threads(
    function: Callable, items: Iterable, threads: int = READING_THREADS
) -> Generator:
    """`function` of every item, in order, computed several at a time, few of them ahead: a caller
    that stops early waits only for those, and a long list takes no more memory."""
    begun: deque[Future] = deque()
    with ThreadPoolExecutor(threads) as executor:
        try:
            for item in items:
                begun.append(executor.submit(function, item))
                if len(begun) > 4 * threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, `.NAME.PID.tmp`, then move it into place:
    `path` is the old file or the whole new one, whatever happens."""
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


def write_bytes(path: str | Path, content: bytes | memoryview) -> None:
    write_atomically(path, lambda file: file.write_bytes(content))


def write_json(path: str | Path, value: object) -> None:
    """`value` as indented JSON, in one step."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """A new folder to fill, which becomes `path` (absent or empty so far) unless that fails."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as building:
        folder = Path(building) / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)


def refuse_no_folder(path: Path, option: str) -> None:
    """Raise UserError if a file stands where a folder or its parent should; `option` names it."""
    for folder in (path, *path.parents):
        if os.path.lexists(folder):
            if not folder.is_dir():
                raise UserError(f"{folder}: not a folder; choose another {option}")
            return


def unused_name(path: Path) -> Path:
    """`path`, with as many `+` behind it as make it the name of no file."""
    return unused_name(path.with_name(path.name + "+")) if path.exists() else path


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files that a killed process left in `directory`."""
    for path in directory.glob(".*.tmp"):
        path.unlink()


def lock(directory: Path) -> TextIO:
    """Keep other processes from `lock`ing `directory` while the returned file is open; forked
    workers do not inherit the lock. BlockingIOError if another process holds it."""
    file = open(directory / ".lock", "w")  # noqa: SIM115
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise BlockingIOError(f"{directory}: another process is training in this folder") from None
    except OSError:
        pass  # a file system without locks
    return file
