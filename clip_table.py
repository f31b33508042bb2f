"""A filelist's clips as arrays in one file, which every process maps into its memory.

Checking a filelist opens every clip. What came of it is kept beside the list, in `NAME.clips`: a
line of JSON that describes the arrays, and the arrays. Mapping them takes no time and no memory of
a process's own, whatever their number. Arrow would do the same with a library more to install:
nothing is looked for in a table, clips are only taken from it by their numbers.
"""

import hashlib
import json
import mmap
import os
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from errors import UserError
from files import open_file, write_atomically

SUFFIX = ".clips"  # of the file beside a filelist
VERSION = 1
ALIGNMENT = 64  # bytes: every array begins at a multiple of it
LONGEST_DESCRIPTION = 2**16  # bytes
CHUNK = 10_000  # clips, or 64 bytes of a file, to go through at a time
ARRAYS = {
    "lines": "<i8",
    "num_frames": "<i8",
    "path_hashes": "<u8",
    "path_ends": "<i8",
    "text_ends": "<i8",
    "symbol_ends": "<i8",
    "mel_folders": "|u1",
    "paths": "|u1",
    "symbols": "|u1",
    "texts": "|u1",  # last, for training seldom reads them: their pages stay unmapped
}


def clip_id(path: str) -> str:
    """The name of a clip's file without folder and ending, as Path.stem, but ten times as fast."""
    name = path.rpartition("/")[2]
    dot = name.rfind(".")
    return name[:dot] if 0 < dot < len(name) - 1 else name


@dataclass(frozen=True)
class Clip:
    """One line of a filelist, checked: `num_frames` is the clip's length in training."""

    path: str  # sound file, or .npy log-mel with load_mel_from_disk
    text: str
    symbols: bytes  # the text's symbol ids, one a byte
    num_frames: int
    where: str  # "filelist:line", for messages

    @property
    def id(self) -> str:
        return clip_id(self.path)


class Column:
    """Byte strings one after another.

    Args:
        content: uint8, all of them.
        ends: int64 [clips], where each ends.
    """

    def __init__(self, content: np.ndarray, ends: np.ndarray):
        self.content, self.ends = content, ends

    @property
    def lengths(self) -> np.ndarray:
        """int64 [clips]"""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.ends[index - 1]) if index else 0
        return self.content[start : int(self.ends[index])].tobytes()

    def part(self, first: int, stop: int) -> list[bytes]:
        """Those from `first` to before `stop`, far sooner than one by one."""
        start = int(self.ends[first - 1]) if first else 0
        ends = (self.ends[first:stop] - start).tolist()
        content = self.content[start : start + ends[-1]].tobytes()
        return [content[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def __iter__(self) -> Iterator[bytes]:
        for first in range(0, len(self.ends), CHUNK):
            yield from self.part(first, first + CHUNK)


class ClipTable(Sequence):
    """The clips of a filelist, made one by one as they are asked for.

    Attributes:
        lines: int64 [clips], their lines in the list, in rising order.
        num_frames: int64 [clips], lengths in training.
        path_hashes: uint64 [clips], equal for equal paths.
        paths, texts, symbols: Column
        mel_folders: where cached mels lie; empty for a list of sounds.
        fingerprint: hash of file names, texts and lengths, whatever folder the files lie in.
        time: when the table was written, in nanoseconds; None until then.
        complete: whether all that a new run asks for was looked at: every sample or value, too.
    """

    def __init__(
        self,
        filelist: str,
        arrays: Mapping[str, np.ndarray],
        fingerprint: str,
        complete: bool,
        file: "TableFile | None" = None,
    ):
        self.filelist, self.arrays = filelist, arrays
        self.fingerprint, self.complete, self._file = fingerprint, complete, file
        self.lines, self.num_frames = arrays["lines"], arrays["num_frames"]
        self.path_hashes = arrays["path_hashes"]
        self.paths = Column(arrays["paths"], arrays["path_ends"])
        self.texts = Column(arrays["texts"], arrays["text_ends"])
        self.symbols = Column(arrays["symbols"], arrays["symbol_ends"])
        folders = arrays["mel_folders"].tobytes().split(b"\0")
        self.mel_folders = [decoded(folder) for folder in folders if folder]

    @classmethod
    def of(
        cls,
        filelist: str | Path,
        numbered: Iterable[tuple[int, Clip]],
        mel_folders: Collection[str | Path] = (),
        complete: bool = False,
    ) -> "ClipTable":
        """The table of clips that were checked, each with the number of its line.

        `mel_folders` is looked at once the clips are drawn.
        """
        numbers = {name: array("q") for name in ARRAYS if ARRAYS[name] == "<i8"}
        hashes, contents = array("Q"), {n: bytearray() for n in ("paths", "texts", "symbols")}
        for line, clip in numbered:
            path = _encoded(clip.path)
            numbers["lines"].append(line)
            numbers["num_frames"].append(clip.num_frames)
            hashes.append(int.from_bytes(hashlib.blake2b(path, digest_size=8).digest(), "little"))
            for name, string in (
                ("path", path),
                ("text", _encoded(clip.text)),
                ("symbol", clip.symbols),
            ):
                content = contents[f"{name}s"]
                content += string
                numbers[f"{name}_ends"].append(len(content))
        contents["mel_folders"] = b"\0".join(_encoded(str(folder)) for folder in mel_folders)
        found = numbers | {"path_hashes": hashes} | contents
        arrays = {name: np.frombuffer(found[name], kind) for name, kind in ARRAYS.items()}
        return cls(str(filelist), arrays, "", complete).with_frames({})

    def with_frames(self, frames: Mapping[int, int]) -> "ClipTable":
        """The table with other lengths of the clips with these indices; it is in no file yet."""
        num_frames = self.num_frames.copy()
        num_frames[list(frames)] = list(frames.values())
        arrays = {**self.arrays, "num_frames": num_frames}
        table = ClipTable(self.filelist, arrays, "", self.complete)
        digest = hashlib.sha256()
        for line in table.described():
            digest.update(line)
        table.fingerprint = digest.hexdigest()
        return table

    def described(self) -> Iterator[bytes]:
        """What fingerprints are made of: file name, text and length of every clip."""
        for name, text, n in zip(self.ids(), self.texts, self.num_frames, strict=True):
            yield b"%b|%b|%d\n" % (_encoded(name), text, n)

    @property
    def num_symbols(self) -> np.ndarray:
        """int64 [clips]"""
        return self.symbols.lengths

    @property
    def time(self) -> int | None:
        return self._file and self._file.time

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # negative ones, and those beyond the end
        return Clip(
            self.path(index),
            decoded(self.texts[index]),
            self.symbols[index],
            int(self.num_frames[index]),
            self.where(index),
        )

    def __iter__(self) -> Iterator[Clip]:
        return (self[i] for i in range(len(self)))

    def path(self, index: int) -> str:
        return decoded(self.paths[index])

    def where(self, index: int) -> str:
        """ "filelist:line" """
        return f"{self.filelist}:{self.lines[index]}"

    def ids(self) -> Iterator[str]:
        return (clip_id(decoded(path)) for path in self.paths)

    def __reduce__(self):
        # On its way to a process that is not forked, a table that lies in a file takes no room.
        if self._file is not None:
            return _map_again, (self.filelist, self._file)
        return ClipTable, (self.filelist, self.arrays, self.fingerprint, self.complete)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def decoded(content: bytes) -> str:
    """The path or text of which a table holds these bytes; a path need not be UTF-8."""
    return content.decode("utf-8", "surrogateescape")


# ---------------------------------------------------------------------------- the file


@dataclass(frozen=True)
class TableFile:
    """A file as it was when it was mapped."""

    path: str
    time: int  # ns
    inode: int
    size: int  # bytes


def table_path(filelist: str | Path) -> Path:
    return Path(f"{filelist}{SUFFIX}")


def write_table(table: ClipTable, key: dict) -> None:
    """Keep the table beside its filelist. `key`: what it was made from, by name, for JSON."""
    description = {
        "version": VERSION,
        "made_from": key,
        "fingerprint": table.fingerprint,
        "complete": table.complete,
        "sizes": {name: len(table.arrays[name]) for name in ARRAYS},
    }
    line = json.dumps(description).encode()
    line += b" " * (-(len(line) + 10) % ALIGNMENT) + b"\n"  # and 9 bytes of the checksum

    def parts() -> Iterator[bytes | memoryview]:
        yield line
        for name, kind in ARRAYS.items():
            content = np.ascontiguousarray(table.arrays[name], kind).view(np.uint8).data
            yield content
            yield b"\0" * (-len(content) % ALIGNMENT)

    checksum = 0
    for part in parts():
        checksum = zlib.crc32(part, checksum)

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            file.write(b"%08x\n" % checksum)
            file.writelines(parts())

    write_atomically(table_path(table.filelist), write)


def read_table(filelist: str | Path, key: dict) -> ClipTable | None:
    """The table kept beside a filelist, mapped into memory.

    None where there is none, it was made from something else than `key`, or it is damaged: it is
    then made again.
    """
    try:
        return _read(table_path(filelist), str(filelist), key)
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None


def read_table_file(path: str | Path) -> ClipTable:
    """The table in a file, whatever it was made from.

    Raises:
        UserError: if the file holds none.
    """
    try:
        return _read(Path(path), str(path).removesuffix(SUFFIX), None)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: no table of clips, or damaged, or of another version; it is made when a run "
            "starts with the filelist that it lies beside"
        ) from None


def _read(path: Path, filelist: str, key: dict | None) -> ClipTable:
    with open_file(path) as file:
        expected = int(file.read(9), 16)
        line = file.readline(LONGEST_DESCRIPTION)
        description = json.loads(line)
        if description["version"] != VERSION or key not in (None, description["made_from"]):
            raise ValueError("another table")
        # Read, not mapped: pages that were mapped count as this process's memory.
        checksum = zlib.crc32(line)
        while block := file.read(CHUNK * ALIGNMENT):
            checksum = zlib.crc32(block, checksum)
        if checksum != expected:
            raise ValueError("damaged")
        status = os.fstat(file.fileno())
        known = TableFile(str(path), status.st_mtime_ns, status.st_ino, status.st_size)
        return _mapped(file.fileno(), filelist, description, 9 + len(line), known)


def _mapped(
    descriptor: int, filelist: str, description: dict, start: int, known: TableFile
) -> ClipTable:
    memory, arrays = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), {}
    for name, kind in ARRAYS.items():
        arrays[name] = np.frombuffer(memory, kind, description["sizes"][name], start)
        start += arrays[name].nbytes + -arrays[name].nbytes % ALIGNMENT
    return ClipTable(filelist, arrays, description["fingerprint"], description["complete"], known)


def _map_again(filelist: str, known: TableFile) -> ClipTable:
    """In another process: the table that this file held, which was read to its end there."""
    with open_file(known.path) as file:
        status = os.fstat(file.fileno())
        found = TableFile(known.path, status.st_mtime_ns, status.st_ino, status.st_size)
        if found != known:
            raise UserError(f"{known.path}: changed underneath the run; start it again")
        file.seek(9)
        line = file.readline(LONGEST_DESCRIPTION)
        return _mapped(file.fileno(), filelist, json.loads(line), 9 + len(line), known)
