"""A filelist's clips as arrays in one file, which every process maps into its memory.

Checking a filelist opens every clip. What came of it is kept beside the list, in `NAME.clips`:
arrays in numpy's own format, one after another. Reading them takes no time and no memory of a
process's own, whatever their number, and needs no library that is not here already, as Arrow would.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from errors import UserError
from files import open_file, write_atomically

SUFFIX = ".clips"  # of the file beside a filelist
VERSION = 1
LARGEST_KEY = 2**20  # bytes


@dataclass(frozen=True)
class Clip:
    """One line of a filelist, checked: `num_frames` is the clip's length in training."""

    path: str  # sound file, or .npy log-mel with load_mel_from_disk
    text: str
    symbols: bytes  # the text's symbol ids, one a byte: small in memory and on its way to a worker
    num_frames: int
    where: str  # "filelist:line", for messages


@dataclass(frozen=True)
class Column:
    """Byte strings one after another."""

    content: np.ndarray  # uint8, all of them
    ends: np.ndarray  # int64 [clips], where each ends

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> "Column":
        ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
        return cls(np.frombuffer(b"".join(strings), np.uint8), ends)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [clips]"""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.ends[index - 1]) if index else 0
        return self.content[start : int(self.ends[index])].tobytes()


class ClipTable(Sequence):
    """The clips of a filelist, made one by one as they are asked for.

    Attributes:
        num_frames: int32 [clips], lengths in training.
        num_symbols: int64 [clips]
        fingerprint: hash of file names, texts and lengths, whatever folder the files lie in.
    """

    def __init__(
        self,
        filelist: str,
        lines: np.ndarray,
        num_frames: np.ndarray,
        paths: Column,
        texts: Column,
        symbols: Column,
        fingerprint: str,
    ):
        self.filelist, self.lines, self.num_frames = filelist, lines, num_frames
        self.paths, self.texts, self.symbols = paths, texts, symbols
        self.fingerprint = fingerprint

    @classmethod
    def of(cls, filelist: str, clips: Sequence[Clip], lines: Sequence[int]) -> "ClipTable":
        """The table of clips that were checked, with the numbers of their lines."""
        digest = hashlib.sha256()
        for clip in clips:
            stem = Path(clip.path).stem
            digest.update(f"{stem}|{clip.text}|{clip.num_frames}\n".encode())
        return cls(
            filelist,
            np.array(lines, np.int64),
            np.array([clip.num_frames for clip in clips], np.int32),
            Column.of([os.fsencode(clip.path) for clip in clips]),
            Column.of([clip.text.encode() for clip in clips]),
            Column.of([clip.symbols for clip in clips]),
            digest.hexdigest(),
        )

    @property
    def num_symbols(self) -> np.ndarray:
        return self.symbols.lengths

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # negative ones, and those beyond the end
        return Clip(
            self.path(index),
            self.texts[index].decode(),
            self.symbols[index],
            int(self.num_frames[index]),
            self.where(index),
        )

    def __iter__(self) -> Iterator[Clip]:
        return (self[i] for i in range(len(self)))

    def path(self, index: int) -> str:
        return os.fsdecode(self.paths[index])

    def where(self, index: int) -> str:
        """ "filelist:line" """
        return f"{self.filelist}:{self.lines[index]}"


# ---------------------------------------------------------------------------- the file


def table_path(filelist: str | Path) -> Path:
    return Path(f"{filelist}{SUFFIX}")


def write_table(table: ClipTable, key: dict) -> None:
    """Keep the table beside its filelist. `key`: what it was made from, by name, for JSON."""
    described = {"version": VERSION, "fingerprint": table.fingerprint, "made_from": key}

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            for array in (
                np.frombuffer(json.dumps(described).encode(), np.uint8),
                table.lines,
                table.num_frames,
                *(table.paths.content, table.paths.ends),
                *(table.texts.content, table.texts.ends),
                *(table.symbols.content, table.symbols.ends),
            ):
                npy.write_array(file, array, allow_pickle=False)

    write_atomically(table_path(table.filelist), write)


def read_table(filelist: str | Path, key: dict) -> tuple[ClipTable, int] | None:
    """The table kept beside a filelist, mapped into memory, and when it was made, in nanoseconds.

    None where there is none, it was made from something else than `key`, or it is damaged: it is
    then made again.
    """
    try:
        with open_file(table_path(filelist)) as file:
            described = json.loads(_map(file, LARGEST_KEY).tobytes())
            if described["version"] != VERSION or described["made_from"] != key:
                return None
            lines, num_frames = _map(file), _map(file)
            columns = [Column(_map(file), _map(file)) for _ in range(3)]
            time = os.fstat(file.fileno()).st_mtime_ns
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None
    arrays = [lines, num_frames, *(column.ends for column in columns)]
    if len({len(array) for array in arrays}) != 1 or len(lines) == 0:
        return None
    if any(column.ends[-1] != len(column.content) for column in columns):
        return None
    return ClipTable(str(filelist), lines, num_frames, *columns, described["fingerprint"]), time


def _map(file: BinaryIO, largest: int | None = None) -> np.ndarray:
    """The array that begins here, mapped into memory; the file then stands after it."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    size = int(np.prod(shape)) * dtype.itemsize
    start, end = file.tell(), os.fstat(file.fileno()).st_size
    if len(shape) != 1 or dtype.hasobject or start + size > end or size > (largest or size):
        raise ValueError("no array of a table")
    found = np.memmap(file, dtype, "r", start, shape) if size else np.empty(0, dtype)
    file.seek(start + size)
    return found
