"""The lengths of a corpus' clips, read from the files that hold them; no sound is opened."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audio import frame_count
from clip_table import SUFFIX, read_table_file
from data_utils import LENGTHS_FILE, lines_refused, numbered_lines, split_filelist_line
from errors import UserError
from hparams import HParams
from text import text_to_sequence

HEADERS = ("id,samples", "id,frames", "id,samples,symbols", "id,frames,symbols")
FILELIST = "path|text|seconds"
TABLE = f"a table of clips (*{SUFFIX})"
FORMATS = (*HEADERS, FILELIST, TABLE)
MOST_COUNTED = 10**10  # samples, frames or symbols of a clip: five days of sound


@dataclass(frozen=True)
class ClipLengths:
    """What a file says of its clips."""

    ids: list[str]
    frames: np.ndarray  # [clips] int64
    symbols: np.ndarray | None = None  # [clips] int64, where the file counts them
    texts: list[str] | None = None  # of a filelist

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, chosen: np.ndarray) -> "ClipLengths":
        """The clips with these indices."""
        return ClipLengths(
            [self.ids[i] for i in chosen],
            self.frames[chosen],
            None if self.symbols is None else self.symbols[chosen],
            None if self.texts is None else [self.texts[i] for i in chosen],
        )


def read_lengths(
    path: str | Path, hparams: HParams, formats: Sequence[str] = FORMATS
) -> ClipLengths:
    """A CSV that begins with one of HEADERS, a filelist with seconds, or the table beside a list.

    Samples and seconds become frames as `hparams` cuts them. Frames stay as they are, those of a
    table too, which were cut with the settings that it was made with. Empty lines, blanks around
    fields, a byte-order mark and CRLF are allowed.

    Args:
        formats: those of FORMATS that the caller takes.

    Raises:
        UserError: naming the file and what was expected, with every bad line and its number.
    """
    path, expected = Path(path), " or ".join(formats)
    if path.suffix == SUFFIX and TABLE in formats:
        table = read_table_file(path)
        return ClipLengths(list(table.ids()), table.num_frames, np.maximum(table.num_symbols, 1))
    lines = numbered_lines(path, f"no such file; expected lines of {expected}")
    if not lines:
        raise UserError(f"{path}: empty; expected lines of {expected}")
    number, first = lines[0]
    found = first.replace(" ", "").replace('"', "").lower()
    if "|" in first:
        found = FILELIST
    if found not in formats:
        raise UserError(
            f"{path}:{number}: {_shortened(first)!r}: expected {expected}; a CSV begins with that "
            "header"
        )
    if found == FILELIST:
        clips = _parsed(path, lines, lambda line: _filelist_clip(line, hparams))
        ids, frames, texts = zip(*clips, strict=True)
        return ClipLengths(list(ids), np.array(frames), texts=list(texts))
    if len(lines) == 1:
        raise UserError(f"{path}: a header and no clip under it; expected lines of {found}")
    ids, counts, *symbols = zip(
        *_parsed(path, lines[1:], lambda line: _csv_clip(line, found)), strict=True
    )
    frames = [frame_count(n, hparams) for n in counts] if "samples" in found else counts
    return ClipLengths(list(ids), np.array(frames), np.array(symbols[0]) if symbols else None)


def read_run_lengths(directory: Path, hparams: HParams) -> ClipLengths:
    """What a run trained on: frames from its lengths.csv, texts and symbols from its filelist.

    Args:
        hparams: the run's; its training_files counts from the current folder.

    Raises:
        UserError: as `read_lengths`, and if the filelist no longer holds the run's clips.
    """
    path, filelist = directory / LENGTHS_FILE, Path(hparams.training_files)
    clips = read_lengths(path, hparams, ["id,frames"])
    lines = numbered_lines(
        filelist, "no such filelist; its path counts from the folder in which the run was started"
    )
    parts = _parsed(filelist, lines, split_filelist_line)
    if [Path(sound).stem for sound, *_ in parts] != clips.ids:
        raise UserError(f"{filelist}: not the clips of {path}; it changed since the run")
    texts = [text for _, text, _ in parts]
    return ClipLengths(clips.ids, clips.frames, count_symbols(texts, hparams), texts)


def count_symbols(texts: Sequence[str], hparams: HParams) -> np.ndarray:
    """Symbols of each text after cleaning, [texts] int64, at least 1."""
    return np.array([max(1, len(text_to_sequence(t, hparams.text_cleaners))) for t in texts])


def _parsed(path: Path, lines: Sequence[tuple[int, str]], parse: Callable[[str], tuple]) -> list:
    """`parse` of every line; the lines for which it raises a ValueError are refused together."""
    rows, problems = [], []
    for number, line in lines:
        try:
            rows.append(parse(line))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise lines_refused(path, problems, len(lines))
    return rows


def _csv_clip(line: str, header: str) -> tuple:
    """(id, number, ...) of a line."""
    try:
        name, *counts = (field.strip() for field in next(csv.reader([line])))
    except csv.Error as error:
        raise ValueError(f"{_shortened(line)!r}: {error}; expected {header}") from None
    # Its digits are counted first: Python itself refuses to convert some thousand.
    whole = all(c.isascii() and c.isdecimal() and len(c.lstrip("0")) <= 11 for c in counts)
    in_range = whole and all(1 <= int(count) <= MOST_COUNTED for count in counts)
    if len(counts) != header.count(",") or not in_range:
        raise ValueError(
            f"{_shortened(line)!r}, expected {header} in whole numbers from 1 to {MOST_COUNTED:,}"
        )
    return name, *map(int, counts)


def _filelist_clip(line: str, hparams: HParams) -> tuple[str, int, str]:
    """(id, frames, text) of a line."""
    path, text, seconds = split_filelist_line(line)
    if seconds is None:
        raise ValueError(
            "path|text without seconds; scripts/prepare_ljspeech.py makes lists with them"
        )
    if not 0 < seconds * hparams.sampling_rate <= MOST_COUNTED:
        most = MOST_COUNTED / hparams.sampling_rate
        raise ValueError(f"seconds '{seconds:g}', expected a number above 0, at most {most:,.0f}")
    samples = round(seconds * hparams.sampling_rate)
    return Path(path).stem, frame_count(samples, hparams), text


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
