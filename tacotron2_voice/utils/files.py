"""Read and write files safely: only regular files of limited size, with atomic writes and locks.

    lines = numbered_lines("metadata.csv", "no such file; check the corpus folder")
    write_json(folder / "lengths.json", lengths)  # replaces the whole file, or keeps the old one
    with folder_locked(folder, "another process is preparing this folder"): ...

Use these functions for files that users may write or edit: filelists, tables, caches, logs and run
folders.
"""

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import BaseFileLock, FileLock, Timeout

from tacotron2_voice.utils.errors import UserError

Record = TypeVar("Record")

# File in a run folder with one line for each start, epoch and validation of the run.
METRICS_FILE = "metrics.jsonl"
LOCK_FILE = ".lock"  # lock file in a folder that only one process may use at a time
# Maximum size of a filelist, table or log. A filelist of a million clips has 200 MB.
MAX_TEXT_BYTES = 2**30
MAX_JSON_BYTES = 2**26
NO_FILE = "no such file; check its path"
STANDARD_INPUT = "standard input"
STANDARD_INPUTS = {"-", "/dev/stdin"}
# The number of threads may exceed the number of CPU cores, because the threads mostly wait for the
# disk.
READING_THREADS = 8


class Identity(NamedTuple):
    """The size and the times of a file. If the file is changed or replaced, at least one of these
    values changes.

    Identity.of("a.wav") == Identity.of("a.wav")  # True until the file is written again
    """

    size: int = 0  # bytes
    modified: int = 0  # modification time in ns
    # Status change time in ns. It changes if the content, name, owner or mode of the file changes.
    changed: int = 0

    @classmethod
    def of(cls, file: str | Path | int) -> "Identity":
        """Return the size and the times of a file (path or descriptor). If the file is missing, all
        values are 0."""
        try:
            status = os.stat(file)
        except OSError:
            return cls()
        # Keep 63 bits of each time, so that it fits into an int64 array and is not negative, even if the
        # file is dated before 1970.
        modified = status.st_mtime_ns & (2**63 - 1)
        changed = status.st_ctime_ns & (2**63 - 1)
        return cls(status.st_size, modified, changed)


UNKNOWN = Identity()


# ---------------------------------------------------------------------------- reading


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add `path` to the messages of errors that are raised in the `with` block. Some errors, such
    as the error for a full disk, do not contain the path."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def open_file(path: str | Path, if_missing: str = NO_FILE) -> BufferedReader:
    """Open a regular file, or a link to a regular file, for reading bytes. Named pipes are
    rejected, because opening a named pipe could block.

    Raises:
        UserError: if the file is missing (with the message `if_missing`), is not a regular file, or
            cannot be opened. The error message does not contain the path.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a named pipe or a device"
            raise UserError(f"{kind} (expected a file)")
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(if_missing) from None
    except OSError as error:
        hint = "; raise the limit (ulimit -n)" if error.errno == errno.EMFILE else ""
        raise UserError(f"{error.strerror}{hint}") from None


def read_bytes(path: str | Path, at_most: int = MAX_TEXT_BYTES, if_missing: str = NO_FILE) -> bytes:
    """Return a file's content. Raise UserError if the file cannot be read or is too large."""
    try:
        with naming(path), open_file(path, if_missing) as file:
            size = os.fstat(file.fileno()).st_size
            if size > at_most:
                raise UserError(f"too large, {size:,} bytes (expected at most {at_most:,})")
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def read_stream(path: str | Path, at_most: int) -> bytes:
    """Read a file, a named pipe or standard input ("-") to its end.

    Raises:
        UserError: if the file cannot be read or is too large.
    """
    is_standard_input = str(path) in STANDARD_INPUTS
    name = STANDARD_INPUT if is_standard_input else str(path)
    try:
        with open(0 if is_standard_input else path, "rb", closefd=not is_standard_input) as file:
            content = file.read(at_most + 1)
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None
    if len(content) > at_most:
        raise UserError(f"{name}: too large (expected at most {at_most:,} bytes)")
    return content


def read_json(
    path: str | Path, if_missing: str = NO_FILE, if_none: str = "restore it or delete it"
) -> Any:
    """Return the content of a JSON file.

    Raises:
        UserError: if the file cannot be read, is too large, or is not JSON. If the file is not JSON,
            the error message ends with `if_none`.
    """
    content = read_bytes(path, MAX_JSON_BYTES, if_missing)
    try:
        return json.loads(content)
    # If brackets are nested too deeply, json raises RecursionError.
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); {if_none}") from None


def read_as(
    path: str | Path,
    expected: type[Record],
    if_missing: str = NO_FILE,
    fix: str = "delete it and make it again",
) -> Record:
    """Read a JSON file as an instance of the dataclass `expected`.

    Raises:
        UserError: if the file is invalid. The error message contains the file, the field and its
            value, and ends with `fix`.
    """
    from pydantic import TypeAdapter, ValidationError

    content = read_bytes(path, MAX_JSON_BYTES, if_missing)
    try:
        return TypeAdapter(expected).validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    raise UserError(f"{path}: {name:.60}={first['input']!r:.60}: {first['msg']:.200}; {fix}")


def numbered_lines(
    path: str | Path, if_missing: str = "", content: bytes | None = None
) -> list[tuple[int, str]]:
    """Return the number and the text of every non-empty line, without whitespace at both ends.

    Args:
        if_missing: the message if the file is missing.
        content: the bytes of the file, if the file has already been read.

    Raises:
        UserError: if the file cannot be read, is too large, or is not UTF-8.
    """
    content = read_bytes(path, if_missing=if_missing) if content is None else content
    text = decode_utf8(path, content)
    # Do not use str.splitlines, which also splits at rare characters, such as U+2028, that may
    # occur in a text.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def decode_utf8(path: str | Path, content: bytes) -> str:
    """Decode UTF-8 and remove the byte-order mark.

    Raises:
        UserError: if the content is not UTF-8. The error message contains the line and the bytes.
    """
    start = content[:1000]
    # English text in UTF-16 is also valid UTF-8, but every second byte is zero.
    if start.count(0) > len(start) // 4:
        raise UserError(f"{path}: not UTF-8 but UTF-16; save the file as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        found = content[error.start : error.start + 10]
        raise UserError(f"{path}:{line}: not UTF-8: {found!r}; save the file as UTF-8") from None


def json_lines(path: Path, if_missing: str = NO_FILE) -> list[Any]:
    """Read a JSON Lines file.

    A last line that is not JSON is ignored, because a killed process may leave an incomplete line.

    Raises:
        UserError: if the file cannot be read, is too large or is not UTF-8, or if a line before the
            last line is not JSON.
    """
    lines = numbered_lines(path, if_missing)
    values = []
    for number, line in lines:
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                break
            raise UserError(f"{path}:{number}: not JSON: {line[:60]!r}") from None
    return values


def map_in_threads(
    function: Callable, items: Iterable, threads: int = READING_THREADS
) -> Generator:
    """Apply the function to the items in several threads, and yield the results in the order of
    the items.

    Only a few results are computed in advance, so that a caller that stops early does not wait long.
    """
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


# ---------------------------------------------------------------------------- writing


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary file next to `path`, then rename the temporary file to `path`.

    At any time, `path` contains either the previous content or the complete new content.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with naming(path):
            write(temporary)
            # The content must be on disk before the file is renamed.
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes | memoryview) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda file: file.write_bytes(content))


def write_json(path: str | Path, value: object) -> None:
    """Write a value as indented JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """Yield a new folder for the caller to fill, and rename it to `path` if no error occurs.

    `path` must be an empty folder or not exist.
    """
    path = path.resolve()  # the existing folder may be a link
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as building:
        folder = Path(building) / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)


def check_is_folder(path: Path, option: str) -> None:
    """Raise UserError if `path` or one of its parents is a file.

    The error message contains `option`, the command-line option that specifies the path.
    """
    for folder in (path, *path.parents):
        if os.path.lexists(folder):
            if not folder.is_dir():
                raise UserError(f"{folder}: not a folder; choose a different {option}")
            return


def make_folder(path: Path, option: str) -> None:
    """Create a folder and its parents. Raise UserError if the folder cannot be created.

    Args:
        option: the command-line option that specifies the path, for the error message.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: cannot create this folder ({error.strerror}); choose a different {option}"
        ) from None


def unused_name(path: Path) -> Path:
    """Append `+` to `path` until no file or folder has this name, and return the name."""
    return unused_name(path.with_name(path.name + "+")) if path.exists() else path


def remove_leftovers(directory: Path, pattern: str = ".*.tmp") -> None:
    """Delete the temporary files in `directory` that a killed process has left there."""
    for path in directory.glob(pattern):
        if path.is_file():
            path.unlink()


# ---------------------------------------------------------------------------- locks


def lock_path(path: Path, busy: str) -> BaseFileLock:
    """Lock the file `path` for this process until `release()` is called or the process exits.

    Forked worker processes do not inherit the lock.

    Raises:
        BlockingIOError: with the message `busy`, if another process holds the lock.
        UserError: if the lock file cannot be created.
    """
    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        if not path.exists():
            raise UserError(f"{path.parent}: no file can be created in this folder") from None
        raise BlockingIOError(busy) from None
    return file_lock


@contextlib.contextmanager
def folder_locked(directory: Path, busy: str) -> Iterator[None]:
    """Lock `directory` until the `with` block ends. Other processes cannot lock the directory at
    the same time.

    Raises:
        BlockingIOError: with the message `busy`, if another process has locked the folder.
    """
    with lock_path(directory / LOCK_FILE, f"{directory}: {busy}"):
        yield
