"""Store the checked clips of a filelist in a cache: an Arrow file next to the filelist.

    table = ClipTable.of("train.txt", enumerate(clips, 1), complete=True, made_from=key)
    table.write()  # train.txt.clips
    table = read_cache(cache_path("train.txt"), key)
    table.num_frames, table[0].text

To check a filelist, training opens every audio file. The results of the check are stored in
`NAME.clips`, so that later runs can skip the check. The cache file is mapped into memory. A new
process therefore reads only the lengths of clips and texts at first, and all processes on a machine
share the same memory pages. A new cache replaces the old file atomically, so that running processes
can continue to use the old file.
"""

import hashlib
import itertools
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpus.clips import Clip, clip_id
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity, naming, open_file, write_atomically

SUFFIX = ".clips"
VERSION = 7
CHUNK = 10_000  # number of clips to process at a time
LABELS = ("speaker",)  # fields of `Clip` for whose values a model can have embeddings
MAX_NAMES = 10_000  # maximum number of names per label; more names are probably texts or paths
COLUMNS = {
    "path": pa.large_binary(),  # stored as bytes, because a path may not be valid UTF-8
    "is_relative": pa.bool_(),  # whether `path` is relative to the filelist's folder
    "text": pa.large_string(),
    "symbols": pa.large_list(pa.uint16()),
    "line": pa.int64(),  # line number in the filelist
    "num_frames": pa.int64(),
    **dict.fromkeys(LABELS, pa.uint16()),  # index of the clip's name in `names[label]`
    **dict.fromkeys(Identity._fields, pa.int64()),
}
SCHEMA = pa.schema(list(COLUMNS.items()))


class ClipTable:
    """The clips of a filelist, stored as columns; `table[i]` creates a `Clip` on demand.

    Attributes:
        num_frames, num_symbols: number of frames and number of symbols of each clip, int64 [clips].
        names: {label: tuple of names}. The names are in order of first occurrence. The tuple is
            empty if no clip has a name.
        numbers: {label: uint16 [clips]}. Each number is the index of a clip's name in
            `names[label]`. If no clip has a name, all indices are 0.
        complete: whether the check read the whole clips, not only their headers.
        fingerprint: hash of file names, texts, lengths and labels. The hash does not depend on the
            folders of the clips.
        made_from: a JSON object with all settings and hashes that the table depends on. If any
            value in this JSON object changes, the cache is out of date.
        is_on_disk: whether the table was read from a cache file, which other processes can open.
    """

    def __init__(
        self,
        filelist: str,
        batch: pa.RecordBatch,
        names: Mapping[str, Sequence[str]],
        complete: bool = False,
        fingerprint: str = "",
        made_from: Mapping[str, Any] | None = None,
        is_on_disk: bool = False,
    ):
        self.filelist = filelist
        self.names = {label: tuple(names[label]) for label in LABELS}
        self.complete = complete
        self.made_from = made_from
        self.is_on_disk = is_on_disk
        self._batch = batch
        self._folder = os.path.dirname(filelist)
        self.num_frames = batch.column("num_frames").to_numpy()
        self._symbol_ends = batch.column("symbols").offsets.to_numpy()
        self.num_symbols = np.diff(self._symbol_ends)
        self.numbers = {label: batch.column(label).to_numpy() for label in LABELS}
        self.fingerprint = fingerprint or self._fingerprint()

    @classmethod
    def of(
        cls,
        filelist: str | Path,
        numbered: Iterable[tuple[int, Clip]],
        complete: bool = False,
        made_from: Mapping[str, Any] | None = None,
    ) -> "ClipTable":
        """Build a ClipTable from pairs of (line number, clip).

        Raises:
            UserError: if a label has more than MAX_NAMES names.
        """
        number_of: dict[str, dict[str, int]] = {label: {} for label in LABELS}
        folder = os.path.join(os.path.dirname(filelist), "")

        def row(line: int, clip: Clip) -> tuple:
            path = clip.path.removeprefix(folder) if clip.is_relative else clip.path
            symbols = np.array(clip.symbols, np.uint16)
            labels = [
                known.setdefault(getattr(clip, label), len(known))
                for label, known in number_of.items()
            ]
            content = (os.fsencode(path), clip.is_relative, clip.text, symbols)
            return (*content, line, clip.num_frames, *labels, *clip.identity)

        batches = [pa.RecordBatch.from_pylist([], schema=SCHEMA)]
        rows = (row(line, clip) for line, clip in numbered)
        while chunk := list(itertools.islice(rows, CHUNK)):
            for label, known in number_of.items():
                if len(known) > MAX_NAMES:
                    raise UserError(
                        f"{filelist}: contains {len(known):,} different {label}s, expected at most "
                        f"{MAX_NAMES:,}. Check that the fourth field contains the {label}"
                    )
            columns = zip(zip(*chunk, strict=True), COLUMNS.values(), strict=True)
            arrays = [pa.array(values, kind) for values, kind in columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        batch = pa.concat_batches(batches)
        names = {x: () if known.keys() <= {""} else (*known,) for x, known in number_of.items()}
        return cls(str(filelist), batch, names, complete, "", made_from)

    @property
    def speakers(self) -> tuple[str, ...]:
        return self.names["speaker"]

    @property
    def speaker_numbers(self) -> np.ndarray:
        return self.numbers["speaker"]

    def identities(self, first: int, stop: int) -> list[Identity]:
        """Return the size and the times of each clip's file before the check, for clips `first` to
        `stop` - 1."""
        return [Identity(*values) for values in self._rows(Identity._fields, first, stop)]

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        columns = self.paths_and_texts(), self.num_frames.tolist(), self.labels()
        for (path, text), frames, labels in zip(*columns, strict=True):
            digest.update(os.fsencode(f"{clip_id(path)}|{text}|{frames}{labels}\n"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, index: int) -> Clip:
        # Use `range` to convert the index, because indexing a range accepts negative indices and
        # raises IndexError if the index is out of range.
        i = range(len(self))[index]
        row = {name: self._batch.column(place)[i].as_py() for place, name in enumerate(COLUMNS)}
        labels: dict[str, Any] = {x: names[row[x]] for x, names in self.names.items() if names}
        return Clip(
            self._path(row["path"], row["is_relative"]),
            row["text"],
            tuple(row["symbols"]),
            row["num_frames"],
            f"{self.filelist}:{row['line']}",
            identity=Identity(*(row[name] for name in Identity._fields)),
            is_relative=row["is_relative"],
            **labels,
        )

    def __iter__(self) -> Iterator[Clip]:
        return (self[i] for i in range(len(self)))

    def _path(self, listed: bytes, is_relative: bool) -> str:
        path = os.fsdecode(listed)
        return os.path.join(self._folder, path) if is_relative else path

    def _rows(
        self, columns: Sequence[str], first: int = 0, stop: int | None = None
    ) -> Iterator[tuple]:
        """Yield the column values of clips `first` to `stop` - 1. The columns are read CHUNK clips
        at a time."""
        indices = range(len(self))[first:stop]
        for start in indices[::CHUNK]:
            chunk = self._batch.slice(start, min(CHUNK, indices.stop - start))
            yield from zip(*(chunk.column(name).to_pylist() for name in columns), strict=True)

    def paths(self, first: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the paths of clips `first` to `stop` - 1."""
        return itertools.starmap(self._path, self._rows(("path", "is_relative"), first, stop))

    def paths_and_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the path and text of each clip."""
        for path, is_relative, text in self._rows(("path", "is_relative", "text")):
            yield self._path(path, is_relative), text

    def symbols(self) -> Iterator[np.ndarray]:
        """Yield the symbol ids of each text, uint16 [symbols]."""
        ids = self._batch.column("symbols").values.to_numpy()
        return (ids[start:stop] for start, stop in itertools.pairwise(self._symbol_ends))

    def ids(self) -> Iterator[str]:
        return map(clip_id, self.paths())

    def names_of(self, label: str) -> Iterator[str]:
        """Yield the name that each clip has for a label, such as the name of its speaker.

        If no clip has a name, yield "" for every clip.
        """
        names = self.names[label] or ("",)
        return (names[number] for number in self.numbers[label].tolist())

    def labels(self) -> Iterator[str]:
        """Yield a string per clip that contains the clip's names, such as `|anna`."""
        columns = (self.names_of(label) for label in LABELS)
        for names in zip(*columns, strict=True):
            yield "".join(f"|{name}" for name in names if name)

    def __reduce__(self) -> tuple:
        # If the cache is on disk, pickle only the path of the cache. The other process then maps
        # the same file.
        if self.is_on_disk:
            return read_cache, (cache_path(self.filelist), self.made_from)
        known = self.names, self.complete, self.fingerprint, self.made_from
        return ClipTable, (self.filelist, self._batch, *known)

    def write(self) -> None:
        about = [VERSION, self.names, self.complete, self.fingerprint, self.made_from]
        schema = SCHEMA.with_metadata({"about": json.dumps(about)})

        def write(path: Path) -> None:
            with pa.ipc.new_file(str(path), schema) as file:
                file.write_batch(self._batch)

        write_atomically(cache_path(self.filelist), write)


def cache_path(filelist: str | Path) -> Path:
    return Path(f"{filelist}{SUFFIX}")


def read_cache(path: str | Path, made_from: Mapping[str, Any] | None = None) -> ClipTable:
    """Map a cache file into memory.

    Raises:
        UserError: if the file cannot be read, is not a cache of this version, or was made from a
            filelist or settings that differ from `made_from`.
    """
    with naming(path):
        file = open_file(path)
    try:
        with file:
            content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        reader = pa.ipc.open_file(content)
        version, names, complete, fingerprint, known = json.loads(reader.schema.metadata[b"about"])
        if version != VERSION:
            raise ValueError("made by a different version of this project")
        if made_from not in (None, known):
            raise ValueError("made from a different filelist or with different settings")
        if not reader.schema.equals(SCHEMA) or reader.num_record_batches != 1:
            raise ValueError("unexpected columns")
        batch = reader.get_batch(0)
        filelist = str(path).removesuffix(SUFFIX)
        return ClipTable(filelist, batch, names, complete, fingerprint, known, is_on_disk=True)
    except (ValueError, TypeError, KeyError, pa.ArrowException):
        raise UserError(
            f"{path}: not a filelist cache of this version. To create the cache again, run train.py "
            "with the filelist in the same folder"
        ) from None
