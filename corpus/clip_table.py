"""`Clip`, one clip from metadata.csv to training, and `ClipTable`, the clips of a filelist.

Checking a filelist opens every clip. The results are cached beside it in `NAME.clips`. Memory holds
18 bytes a clip, which every step needs. The rest is read from the file on demand: all processes of
a machine share it, and a file that is truncated during a run gives a message.

Format of the file: a line with the CRC-32 of all that follows, a line of JSON, for each clip the
bytes "path|text\\n" and its symbols (16 bits each), then for each clip a row of 64-bit integers
(`COLUMNS`). A path after a zero byte starts at the list's folder, wherever that is moved.
"""

import hashlib
import itertools
import json
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    MAX_JSON_BYTES,
    UNKNOWN,
    Identity,
    naming,
    open_file,
    parse_json,
    write_atomically,
)

SUFFIX = ".clips"  # of the file beside a filelist
VERSION = 6
CHUNK = 10_000  # clips that are decoded at a time
LABELS = ("speaker",)  # fields of a `Clip` that name what its model has a vector of
# For each clip: line in the list, lengths, where its content ends, numbers of its labels, identity
# of its file.
COLUMNS = ("line", "num_frames", "num_symbols", "end", *LABELS, *Identity._fields)
ROW = 8 * len(COLUMNS)
SYMBOL = np.dtype("<u2")
IN_LISTS_FOLDER = "\0"  # before a path in a table, which no path can have
MAX_NAMES = 10_000  # of a label; more are texts or paths in its place


@dataclass(frozen=True)
class Sound:
    """Measurements of a clip's samples, made by prepare. Its lengths are in samples."""

    num_samples: int = 0
    silence_before: int = 0  # before speech
    silence_after: int = 0  # after speech
    clipped: int = 0  # at full scale, in runs
    checksum: int = 0  # equal for equal sounds
    level: float = 0.0  # of the speech, in dB of full scale; measured where there are speakers

    @property
    def speech_samples(self) -> int:
        return self.num_samples - self.silence_before - self.silence_after


@dataclass(frozen=True)
class Clip:
    """One line of metadata.csv or of a filelist."""

    path: str  # sound file, or .npy log-mel with load_mel_from_disk
    text: str
    symbols: tuple[int, ...] = ()  # the text's symbol ids, below 2**16
    num_frames: int = 0  # length in training
    where: str = ""  # "file:line", for messages
    sound: Sound = Sound()  # of clips that prepare has checked
    identity: Identity = UNKNOWN  # of its file, from before it was checked
    is_relative: bool = False  # whether its filelist names it from the list's own folder
    speaker: str = ""  # the name, empty where the list has none

    @property
    def id(self) -> str:
        return clip_id(self.path)


def too_many_names(label: str, count: int) -> str:
    expected = f"expected at most {MAX_NAMES:,}"
    return f"{count:,} {label}s, {expected}; its field must name the {label} of each clip"


def clip_id(path: str) -> str:
    """The name of a clip's file without folder and suffix."""
    name = path.rpartition("/")[2]  # ten times faster than PurePath; called for every clip
    return name.rpartition(".")[0] or name


class ClipTable:
    """The clips of a filelist: `table[i]` makes a `Clip` on demand.

    Attributes:
        num_frames, num_symbols: int64 [clips].
        names: by label, its names in the order of their first clips; () if no clip has one.
        numbers: by label, uint16 [clips], indices into its names, 0 if there are none.
        complete: whether the clips' contents were checked too, not only their headers.
        fingerprint: hash of file names, texts, lengths and labels, independent of the files'
            folders.
        made_from: plain values; while they are the same, the table is current.

    Raises:
        UserError: on any access, if the table's file changed after it was opened.
    """

    def __init__(
        self,
        filelist: str,
        body: "Body",
        num_clips: int,
        names: Sequence[Sequence[str]],
        complete: bool = False,
        fingerprint: str = "",
        made_from: Mapping[str, Any] | None = None,
    ):
        self.filelist, self.complete, self.made_from = filelist, complete, made_from
        self.names = {label: tuple(x) for label, x in zip(LABELS, names, strict=True)}
        self._body, self._rows_at = body, body.size - ROW * num_clips
        self._folder = os.path.dirname(filelist)
        rows = self.rows(0, num_clips)
        self.num_frames, self.num_symbols = rows["num_frames"].copy(), rows["num_symbols"].copy()
        self.numbers = {label: rows[label].astype(np.uint16) for label in LABELS}
        self.fingerprint = fingerprint or self._fingerprint()

    @classmethod
    def of(
        cls,
        filelist: str | Path,
        numbered: Iterable[tuple[int, Clip]],
        complete: bool = False,
        made_from: Mapping[str, Any] | None = None,
    ) -> "ClipTable":
        """Make the table of these clips, given as (line number, clip). UserError for more than
        MAX_NAMES of a label."""
        rows, content = array("q"), bytearray()
        number_of: dict[str, dict[str, int]] = {label: {} for label in LABELS}  # of each name
        for line, clip in numbered:
            symbols = np.array(clip.symbols, SYMBOL).tobytes()
            path = clip.path
            if clip.is_relative:
                listed = path[len(os.path.join(os.path.dirname(filelist), "")) :]
                path = IN_LISTS_FOLDER + listed
            content += _encoded(f"{path}|{clip.text}\n") + symbols
            lengths = (clip.num_frames, len(clip.symbols), len(content))
            labels = [x.setdefault(getattr(clip, label), len(x)) for label, x in number_of.items()]
            rows.extend((line, *lengths, *labels, *clip.identity))
        for label, known in number_of.items():
            if len(known) > MAX_NAMES:
                raise UserError(f"{filelist}: {too_many_names(label, len(known))}")
        body = Body(bytes(content + rows.tobytes()))
        names = [() if known.keys() <= {""} else [*known] for known in number_of.values()]
        count = len(rows) // len(COLUMNS)
        return cls(str(filelist), body, count, names, complete, "", made_from)

    def with_clips(self, clips: Mapping[int, Clip]) -> "ClipTable":
        """Return a copy of the table, in memory, with new lengths and identities for the clips of
        these indices, which were checked again."""
        rows = self.rows(0, len(self)).copy()
        for index, clip in clips.items():
            rows[["num_frames", *Identity._fields]][index] = (clip.num_frames, *clip.identity)
        body = Body(self._body.read(0, self._rows_at) + rows.tobytes())
        known = [*self.names.values()], self.complete, "", self.made_from
        return ClipTable(self.filelist, body, len(self), *known)

    @property
    def speakers(self) -> tuple[str, ...]:
        return self.names["speaker"]

    @property
    def speaker_numbers(self) -> np.ndarray:
        return self.numbers["speaker"]

    @property
    def is_on_disk(self) -> bool:
        """Whether the table is read from its file, so that other processes can read it too."""
        return self._body.file is not None

    def rows(self, first: int, stop: int) -> np.ndarray:
        """The rows of COLUMNS from `first` to before `stop`."""
        content = self._body.read(self._rows_at + ROW * first, self._rows_at + ROW * stop)
        return np.frombuffer(content, [(name, np.int64) for name in COLUMNS])

    def check_rows(self) -> None:
        """Raise ValueError if the rows are inconsistent."""
        rows = self.rows(0, len(self))
        sizes = np.diff(rows["end"], prepend=0)
        sizes //= SYMBOL.itemsize  # in place: with a million clips each array takes 8 MB
        is_good = (rows["num_symbols"] > 0) & (rows["num_symbols"] < sizes)
        is_good &= rows["num_frames"] > 0
        for label, names in self.names.items():
            is_good &= (rows[label] >= 0) & (rows[label] < max(1, len(names)))
        if not len(rows) or rows["end"][-1] != self._rows_at or not is_good.all():
            raise ValueError("damaged")

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        columns = self.paths_and_texts(), self.num_frames.tolist(), self.labels()
        for (path, text), frames, labels in zip(*columns, strict=True):
            digest.update(_encoded(f"{clip_id(path)}|{text}|{frames}{labels}\n"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, index: int) -> Clip:
        i = range(len(self))[index]  # negative ones too; IndexError beyond the end
        [content] = self._contents(i, i + 1)
        line, num_frames, num_symbols, _, *others = self.rows(i, i + 1)[0].item()
        symbols_at = len(content) - num_symbols * SYMBOL.itemsize
        path, text = self._path_and_text(content[: symbols_at - 1])
        is_relative = content.startswith(IN_LISTS_FOLDER.encode())
        where, symbols = f"{self.filelist}:{line}", np.frombuffer(content[symbols_at:], SYMBOL)
        labels: dict[str, Any] = {
            x: names[self.numbers[x][i]] for x, names in self.names.items() if names
        }
        return Clip(
            path,
            text,
            tuple(symbols.tolist()),
            num_frames,
            where,
            identity=Identity(*others[len(LABELS) :]),
            is_relative=is_relative,
            **labels,
        )

    def __iter__(self) -> Iterator[Clip]:
        return (self[i] for i in range(len(self)))

    def _contents(self, first: int, stop: int) -> list[bytes]:
        """ "path|text\\n" and symbols of each clip, much faster than one by one."""
        ends = self.rows(max(first - 1, 0), stop)["end"].tolist()
        ends = ends if first else [0, *ends]
        content = self._body.read(ends[0], ends[-1])
        return [content[a - ends[0] : b - ends[0]] for a, b in itertools.pairwise(ends)]

    def paths_and_texts(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[str, str]]:
        """Those from `first` to before `stop`, faster than through clips."""
        for start in range(len(self))[first:stop:CHUNK]:
            end = min(start + CHUNK, stop or len(self), len(self))
            sizes = (self.num_symbols[start:end] * SYMBOL.itemsize).tolist()
            for content, size in zip(self._contents(start, end), sizes, strict=True):
                yield self._path_and_text(content[: -size - 1])

    def _path_and_text(self, content: bytes) -> tuple[str, str]:
        path, _, text = content.decode("utf-8", "surrogateescape").partition("|")
        if path.startswith(IN_LISTS_FOLDER):
            path = os.path.join(self._folder, path[len(IN_LISTS_FOLDER) :])
        return path, text

    def symbols(self) -> Iterator[np.ndarray]:
        """The ids of each clip's text, faster than through clips."""
        for start in range(len(self))[::CHUNK]:
            end = min(start + CHUNK, len(self))
            sizes = (self.num_symbols[start:end] * SYMBOL.itemsize).tolist()
            for content, size in zip(self._contents(start, end), sizes, strict=True):
                yield np.frombuffer(content[len(content) - size :], SYMBOL)

    def paths(self, first: int = 0, stop: int | None = None) -> Iterator[str]:
        return (path for path, _ in self.paths_and_texts(first, stop))

    def ids(self) -> Iterator[str]:
        return map(clip_id, self.paths())

    def names_of(self, label: str) -> Iterator[str]:
        """The name that each clip has as `label`, "" where the list has none."""
        names = self.names[label] or ("",)
        return (names[number] for number in self.numbers[label].tolist())

    def labels(self) -> Iterator[str]:
        """All names of each clip, as `|anna`; "" without any. Checksums of clips hold them."""
        columns = (self.names_of(label) for label in LABELS)
        for names in zip(*columns, strict=True):
            yield "".join(f"|{name}" for name in names if name)

    def __reduce__(self) -> tuple:
        # A process that is not forked opens the table's file, where there is one.
        if self.is_on_disk:
            return read_table_file, (table_path(self.filelist), self.made_from)
        known = [*self.names.values()], self.complete, self.fingerprint, self.made_from
        return ClipTable, (self.filelist, self._body, len(self), *known)

    def write(self) -> None:
        """Write the table beside its filelist."""
        known = [VERSION, len(self), *self.names.values()]
        known += [self.complete, self.fingerprint, self.made_from]
        content = json.dumps(known).encode() + b"\n" + self._body.read(0, self._body.size)
        first = b"%08x\n" % zlib.crc32(content)
        write_atomically(table_path(self.filelist), lambda path: path.write_bytes(first + content))


class Body:
    """The bytes of a table's clips and rows, in memory or from the current position of a file.

    The file is read on demand and not mapped: if a mapped file were truncated during a run, the
    process would end by a signal.
    """

    def __init__(
        self, content: bytes = b"", path: str | Path = "", file: BufferedReader | None = None
    ):
        self.path, self.file, self._content, self.size = path, file, content, len(content)
        if file:
            self._start, self._identity = file.tell(), Identity.of(file.fileno())
            self.size = self._identity.size - self._start

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to before `stop`. UserError if the file has changed."""
        if not self.file:
            return self._content[start:stop]
        descriptor, content = self.file.fileno(), b""
        while 0 <= start < stop <= self.size:
            # At most 2 GB in one call.
            block = os.pread(descriptor, stop - start, self._start + start)
            if not block:
                break
            content, start = content + block, start + len(block)
        if start != stop or Identity.of(descriptor)[:2] != self._identity[:2]:
            raise UserError(
                f"{self.path}: changed while it was in use; let no other program write to it. "
                "When training starts or resumes, it is made again"
            )
        return content


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a path need not be UTF-8


# ---------------------------------------------------------------------------- the file


def table_path(filelist: str | Path) -> Path:
    return Path(f"{filelist}{SUFFIX}")


def read_table_file(path: str | Path, made_from: Mapping[str, Any] | None = None) -> ClipTable:
    """Open the table in a file; the file stays open.

    Raises:
        UserError: if it holds no table, or one that was not made from `made_from`.
    """
    with naming(path):
        file = open_file(path)
    try:
        expected, checksum = int(file.readline(9), 16), 0
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
        if checksum != expected:
            raise ValueError("damaged")
        file.seek(9)
        version, *known = parse_json(file.readline(MAX_JSON_BYTES))
        if version != VERSION or made_from not in (None, known[-1]):
            raise ValueError("another table")
        num_clips, names, others = known[0], known[1 : 1 + len(LABELS)], known[1 + len(LABELS) :]
        each = [*itertools.chain(*names)]
        kinds = [type(value) for value in (*known[:-1], *each)]
        if kinds != [int, *[list] * len(LABELS), bool, str, *[str] * len(each)]:
            raise ValueError("damaged")
        body = Body(path=path, file=file)
        table = ClipTable(str(path).removesuffix(SUFFIX), body, num_clips, names, *others)
        table.check_rows()
        return table
    except (ValueError, TypeError, IndexError, OverflowError):
        raise UserError(
            f"{path}: not a table of clips, damaged, or of another version; train.py makes it when "
            "it starts with the filelist beside it"
        ) from None
