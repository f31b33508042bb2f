"""One clip, from metadata.csv to training, and the table of all clips of a filelist.

Checking a filelist opens every clip, so the results are kept beside it in `NAME.clips`. Processes
map that file into their memory: a million clips load within a second, and all share them.
"""

import hashlib
import os
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from errors import UserError
from files import open_file, write_atomically

SUFFIX = ".clips"  # of the file beside a filelist
VERSION = 2
CHUNK = 10_000  # clips that are decoded at a time


@dataclass(frozen=True)
class Sound:
    """What prepare measures in a clip's samples. All lengths are in samples."""

    num_samples: int = 0
    silence_before: int = 0  # before speech
    silence_after: int = 0  # after speech
    clipped: int = 0  # at full scale, in runs
    checksum: int = 0  # equal for equal sounds

    @property
    def speech_samples(self) -> int:
        return self.num_samples - self.silence_before - self.silence_after


@dataclass(frozen=True)
class Clip:
    """One line of metadata.csv or of a filelist."""

    path: str  # sound file, or .npy log-mel with load_mel_from_disk
    text: str
    symbols: bytes = b""  # the text's symbol ids, one a byte
    num_frames: int = 0  # length in training
    where: str = ""  # "file:line", for messages
    sound: Sound = Sound()  # of clips that prepare has checked

    @property
    def id(self) -> str:
        return clip_id(self.path)


def clip_id(path: str) -> str:
    """The name of a clip's file without folder and suffix."""
    return PurePath(path).stem


@dataclass(eq=False, repr=False)
class ClipTable:
    """The clips of a filelist as arrays; a `Clip` is made when it is asked for.

    `arrays` holds int64 [clips] "lines" (ascending), "num_frames", "num_symbols", "ends"; and uint8
    "content": the bytes "path|text\\n" and symbols of clip after clip, up to its end.
    """

    filelist: str
    arrays: Mapping[str, np.ndarray]
    complete: bool = False  # whether the clips' contents were checked too, not only their headers
    fingerprint: str = ""  # hash of file names, texts and lengths, whatever the files' folders
    time: int | None = None  # when the table was written, in ns; None if it is in no file

    def __post_init__(self) -> None:
        self.lines: np.ndarray = self.arrays["lines"]
        self.num_frames: np.ndarray = self.arrays["num_frames"]
        self.num_symbols: np.ndarray = self.arrays["num_symbols"]
        self.fingerprint = self.fingerprint or self._fingerprint()

    @classmethod
    def of(
        cls, filelist: str | Path, numbered: Iterable[tuple[int, Clip]], complete: bool = False
    ) -> "ClipTable":
        """The table of these clips, each with its line number."""
        numbers, content = array("q"), bytearray()
        for line, clip in numbered:
            content += _encoded(f"{clip.path}|{clip.text}\n") + clip.symbols
            numbers.extend((line, clip.num_frames, len(clip.symbols), len(content)))
        names = ("lines", "num_frames", "num_symbols", "ends")
        columns = np.array(numbers, np.int64).reshape(-1, len(names)).T
        arrays = {name: column.copy() for name, column in zip(names, columns, strict=True)}
        arrays["content"] = np.frombuffer(content, np.uint8)
        return cls(str(filelist), arrays, complete)

    def with_frames(self, frames: Mapping[int, int]) -> "ClipTable":
        """The table, in no file yet, with other lengths of the clips with these indices."""
        num_frames = self.num_frames.copy()
        num_frames[list(frames)] = list(frames.values())
        return ClipTable(self.filelist, {**self.arrays, "num_frames": num_frames}, self.complete)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        lengths = self.num_frames.tolist()
        for (path, text), frames in zip(self.paths_and_texts(), lengths, strict=True):
            digest.update(_encoded(f"{clip_id(path)}|{text}|{frames}\n"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, index: int) -> Clip:
        i = range(len(self))[index]  # negative ones too; IndexError beyond the end
        [content] = self._contents(i, i + 1)
        symbols_at = len(content) - int(self.num_symbols[i])
        path, text = _path_and_text(content[: symbols_at - 1])
        where = f"{self.filelist}:{self.lines[i]}"
        return Clip(path, text, content[symbols_at:], int(self.num_frames[i]), where)

    def __iter__(self) -> Iterator[Clip]:
        return (self[i] for i in range(len(self)))

    def _contents(self, first: int, stop: int) -> list[bytes]:
        """ "path|text\\n" and symbols of each clip, much faster than one by one."""
        start = int(self.arrays["ends"][first - 1]) if first else 0
        ends = (self.arrays["ends"][first:stop] - start).tolist()
        content = self.arrays["content"][start : start + ends[-1]].tobytes()
        return [content[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def paths_and_texts(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[str, str]]:
        """Those from `first` to before `stop`, faster than through clips."""
        for start in range(len(self))[first:stop:CHUNK]:
            end = min(start + CHUNK, stop or len(self))
            counts = self.num_symbols[start:end].tolist()
            for content, count in zip(self._contents(start, end), counts, strict=True):
                yield _path_and_text(content[: -count - 1])

    def paths(self, first: int = 0, stop: int | None = None) -> Iterator[str]:
        return (path for path, _ in self.paths_and_texts(first, stop))

    def ids(self) -> Iterator[str]:
        return map(clip_id, self.paths())

    def __reduce__(self) -> tuple:
        # A process that is not forked maps the table's file, where there is one.
        if self.time is not None:
            return read_table_file, (table_path(self.filelist),)
        return ClipTable, (self.filelist, self.arrays, self.complete, self.fingerprint)


def _path_and_text(content: bytes) -> tuple[str, str]:
    path, _, text = content.decode("utf-8", "surrogateescape").partition("|")
    return path, text


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a path need not be UTF-8


def table_path(filelist: str | Path) -> Path:
    return Path(f"{filelist}{SUFFIX}")


def write_table(table: ClipTable, key: dict[str, Any]) -> None:
    """Keep the table beside its filelist. `key` says what it was made from, in plain values."""
    content = {
        "version": VERSION,
        "made_from": key,
        "arrays": {name: torch.from_numpy(array) for name, array in table.arrays.items()},
        "complete": table.complete,
        "fingerprint": table.fingerprint,
    }
    write_atomically(table_path(table.filelist), lambda path: torch.save(content, path))


def read_table_file(path: str | Path, key: dict[str, Any] | None = None) -> ClipTable:
    """The table in a file, mapped into memory; UserError if the file holds none, or one made from
    something other than `key`."""
    try:
        # By reading, not mapping: pages that were mapped count as this process's memory.
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            time = os.fstat(file.fileno()).st_mtime_ns
            if archive.testzip() is not None:  # compares the checksum of every array
                raise ValueError("damaged")
        found = torch.load(path, mmap=True, weights_only=True)
        if found["version"] != VERSION or key not in (None, found["made_from"]):
            raise ValueError("another table")
        arrays = {name: tensor.numpy() for name, tensor in found["arrays"].items()}
        filelist = str(path).removesuffix(SUFFIX)
        return ClipTable(filelist, arrays, found["complete"], found["fingerprint"], time)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception:  # zipfile and unpickling raise many kinds, depending on the damage
        raise UserError(
            f"{path}: not a table of clips, damaged, or of another version; train.py makes it when "
            "it starts with the filelist beside it"
        ) from None
