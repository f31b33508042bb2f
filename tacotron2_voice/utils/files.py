"""Safe file access: regular files only, size limits, atomic writes.

Use it for every file that somebody else may have put there: lists, tables, caches, logs, run
folders. Reading opens regular files only, never blocks, and refuses files above a size limit.
Writing replaces the whole file or leaves it as it was, and never follows a link.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from tacotron2_voice.utils.encodings import decoded
from tacotron2_voice.utils.errors import UserError

Record = TypeVar("Record")
METRICS_FILE = "metrics.jsonl"  # in a run's folder: a line for each start, epoch and validation
MAX_TEXT_BYTES = 2**30  # bytes of a list, table of lengths or log; a million clips have 200 MB
MAX_JSON_BYTES = 2**26
MAX_DIGITS = 25  # of a number in JSON; repr of a float has at most 24
EXPECTED = "expected a file; check its path, or move it away"
NO_FILE = "no such file; check its path"
STANDARD_INPUT = "standard input"  # as messages name these paths
STANDARD_INPUTS = {"-", "/dev/stdin"}
READING_THREADS = 8  # opening and reading wait for the disk, not for the processor
OTHER_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
ERRORS_OF_KINDS = {errno.ELOOP: "a link", errno.EISDIR: "a folder", errno.ENXIO: "a socket"}


class Identity(NamedTuple):
    """Size and times of a file: they change with its content, or if another file replaces it."""

    size: int = 0
    modified: int = 0  # ns
    changed: int = 0  # ns; also by a new name, owner or mode

    @classmethod
    def of(cls, file: str | Path | int) -> "Identity":
        """The identity of the file with this path or descriptor; zeros if there is none."""
        try:
            status = os.stat(file)
        except (OSError, ValueError):  # ValueError: a zero byte in the path
            return cls()
        # 63 bits: a file system may have times after 2262 or before 1970.
        times = (ns & (2**63 - 1) for ns in (status.st_mtime_ns, status.st_ctime_ns))
        return cls(status.st_size, *times)


UNKNOWN = Identity()


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Errors raised in this context name `path`. By itself a full disk's error names no path, and
    others name a temporary file."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def open_file(path: str | Path, if_missing: str = NO_FILE) -> BufferedReader:
    """Open a regular file, or a link to one, to read bytes. Never blocks.

    Raises:
        UserError: without the path: `if_missing`, or why the file cannot be opened.
    """
    return os.fdopen(_open(path, os.O_RDONLY, if_missing), "rb")


def _open(path: str | Path, flags: int, if_missing: str = NO_FILE) -> int:
    """The descriptor of a regular file; errors as `open_file`."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except PermissionError:
        raise UserError("permission denied; let your user use it (chmod, chown)") from None
    except (FileNotFoundError, ValueError):  # ValueError: a zero byte in the path
        broken = f"a link to {os.readlink(path)}, which is missing" if os.path.islink(path) else ""
        raise UserError(broken or if_missing) from None
    except OSError as error:
        problem = f"{error.strerror}; choose another path"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            problem = f"{error.strerror}; raise the limit (ulimit -n), or end other programs"
        if other_kind := ERRORS_OF_KINDS.get(error.errno or 0):
            problem = f"{other_kind}, {EXPECTED}"
        raise UserError(problem) from None
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    raise UserError(f"{OTHER_KINDS.get(kind, 'no file')}, {EXPECTED}")


def read_bytes(path: str | Path, at_most: int = MAX_TEXT_BYTES, if_missing: str = NO_FILE) -> bytes:
    """Read a whole file. UserError names it and its fault, also if it has over `at_most` bytes."""
    try:
        with naming(path), open_file(path, if_missing) as file:
            if (size := os.fstat(file.fileno()).st_size) > at_most:
                raise UserError(f"{size:,} bytes, expected at most {at_most:,}; check what it is")
            return file.read(size)  # whatever it has become
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror})") from None


def read_stream(path: str | Path, at_most: int, if_missing: str = NO_FILE) -> bytes:
    """Read a whole file, named pipe, terminal, or standard input ("-"), waiting for its end. Errors
    as `read_bytes`."""
    standard = str(path) in STANDARD_INPUTS
    if not standard:
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
        except (OSError, ValueError):
            kind = 0
        if kind not in (stat.S_IFIFO, stat.S_IFCHR):
            return read_bytes(path, at_most, if_missing)
    with naming(STANDARD_INPUT if standard else path):
        with open(0 if standard else path, "rb", closefd=not standard) as file:
            content = file.read(at_most + 1)
        if len(content) > at_most:
            raise UserError(f"more than {at_most:,} bytes; check what it is, or give it in parts")
    return content


def read_json(
    path: str | Path, if_missing: str = NO_FILE, if_none: str = "restore it or delete it"
) -> Any:
    """Read the value in a JSON file. Errors as `read_bytes`, and if the file is not JSON: `if_none`
    says what to do."""
    content = read_bytes(path, MAX_JSON_BYTES, if_missing)
    try:
        return parse_json(content)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); {if_none}") from None


def read_as(
    path: str | Path,
    expected: type[Record],
    if_missing: str = NO_FILE,
    fix: str = "delete it and make it again",
) -> Record:
    """Read the dataclass `expected` from a JSON file. UserError names file, field and fault, and
    says `fix`."""
    from pydantic import TypeAdapter, ValidationError

    content = read_bytes(path, MAX_JSON_BYTES, if_missing)
    try:
        return TypeAdapter(expected).validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    raise UserError(f"{path}: {name:.60}={first['input']!r:.60}, {first['msg']:.200}; {fix}")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. ValueError also for absurdly deep nesting or absurdly long numbers."""

    def number(digits: str) -> Any:
        value = float(digits)
        if len(digits) > MAX_DIGITS or not math.isfinite(value):
            raise ValueError(f"{digits[:MAX_DIGITS]}... is no number that is written here")
        return value if set(digits) & set(".eE") else int(digits)

    try:
        return json.loads(text, parse_int=number, parse_float=number)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def numbered_lines(
    path: str | Path, if_missing: str = "", content: bytes | None = None
) -> list[tuple[int, str]]:
    """Read (number, text) of every line that is not empty, stripped of blanks. `content` is the
    file's bytes if they were read before. Errors as `read_bytes`; if the encoding is not UTF-8, the
    message says how to convert the file."""
    content = read_bytes(path, if_missing=if_missing) if content is None else content
    text = decoded(path, content)
    # Not splitlines, which breaks lines at odd characters inside a text too.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def json_lines(path: Path, if_missing: str = NO_FILE) -> list[Any]:
    """Read the values of a file of JSON lines. An incomplete last line, as a killed run may leave,
    is ignored. Errors as `numbered_lines`."""
    lines, values = numbered_lines(path, if_missing), []
    for number, line in lines:
        try:
            values.append(parse_json(line))
        except ValueError:
            if number == lines[-1][0]:
                break
            raise UserError(f"{path}:{number}: not JSON: {line[:60]!r}; restore it") from None
    return values


def map_in_threads(
    function: Callable, items: Iterable, threads: int = READING_THREADS
) -> Generator:
    """Yield `function(item)` of every item, in order, computed in threads. Only a few results are
    computed ahead: a caller that stops early waits for those alone, and memory stays bounded."""
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
    """Call `write` on a temporary file beside `path`, `.NAME.PID.tmp`, then move it into place.
    `path` is always either the old file or the complete new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with naming(path):
            write(temporary)
            with open(temporary, "rb") as file:  # on the disk before the name points at it
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes | memoryview) -> None:
    write_atomically(path, lambda file: file.write_bytes(content))


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill; without an error it becomes `path`, which must be absent or
    empty."""
    path = path.resolve()  # an empty folder may be a link
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as building:
        folder = Path(building) / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)


def refuse_no_folder(path: Path, option: str) -> None:
    """Raise UserError if `path` or a parent of it is a file. `option` names its option."""
    for folder in (path, *path.parents):
        if os.path.lexists(folder):
            if not folder.is_dir():
                raise UserError(f"{folder}: not a folder; choose another {option}")
            return


def unused_name(path: Path) -> Path:
    """Append `+` to `path` until no file has that name."""
    return unused_name(path.with_name(path.name + "+")) if path.exists() else path


def remove_leftovers(directory: Path, pattern: str = ".*.tmp") -> None:
    """Delete the temporary files that a killed process left in `directory`."""
    for path in directory.glob(pattern):
        if path.is_file():
            path.unlink()


def lock(directory: Path) -> BinaryIO:
    """Lock `directory` for this process while the returned file is open.

    The lock ends with the process; forked workers do not inherit it.

    Raises:
        BlockingIOError: if another process holds it.
        UserError: if `.lock` is no regular file.
    """
    file = _open_to_append(directory / ".lock")
    busy = "another process is training in this folder; wait for it, or choose another -o"
    lock_file(file, f"{directory}: {busy}")
    return file


@contextlib.contextmanager
def folder_locked(directory: Path, busy: str) -> Iterator[None]:
    """Keep other processes that call this out of `directory`, without a file in it. BlockingIOError
    with the message `busy` if one is there."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(f"{directory}: {busy}") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(descriptor)


def lock_file(file: BinaryIO, busy: str) -> None:
    """Lock `file`, or raise BlockingIOError with the message `busy`. This process must not open the
    same file a second time: closing it there would release the lock."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise BlockingIOError(busy) from None
    except OSError:
        pass  # a file system without locks


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to append; it is created if missing. A file with other hard links is replaced by
    a copy first. UserError if it is a link or no regular file."""
    file = _open_to_append(path)
    if (status := os.fstat(file.fileno())).st_nlink == 1:
        return file
    file.close()
    cut(path, status.st_size)
    return _open_to_append(path)


def _open_to_append(path: Path) -> BinaryIO:
    with naming(path):
        return os.fdopen(_open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "rb+")


def cut(path: Path, size: int) -> None:
    """Truncate a file to its first `size` bytes, atomically. A new file takes its place, so the
    target of a link, and other hard links, stay as they are."""

    def write(temporary: Path) -> None:
        with open_file(path) as source, open(temporary, "wb") as target:
            while block := source.read(min(size - target.tell(), 2**20)):
                target.write(block)

    write_atomically(path, write)
