"""Read the lengths of the clips of a corpus from a file, without opening the audio files.

frames = read_lengths("runs/mine/lengths.csv", hparams)  # int64 [clips]
"""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from audio import frame_count
from corpus.cache import SUFFIX, read_cache
from corpus.filelist import split_filelist_line
from hparams import HParams
from tacotron2_voice.utils.errors import UserError, lines_rejected
from tacotron2_voice.utils.files import numbered_lines

HEADERS = ("id,samples", "id,frames")
EXPECTED = " or ".join([*HEADERS, "path|text|seconds", f"a filelist cache (*{SUFFIX})"])
MAX_LENGTH = 10**10 - 1  # maximum number of samples or frames per clip (five days of audio)


def read_lengths(path: str | Path, hparams: HParams) -> np.ndarray:
    """Return the number of frames of each clip, int64 [clips].

    The file is a CSV with one of the headers in HEADERS, a filelist with seconds, or a filelist
    cache. Lengths in samples or seconds are converted to frames according to the settings.

    Raises:
        UserError: if any line is bad. The message lists every bad line with its number and the
            expected format.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return read_cache(path).num_frames
    lines = numbered_lines(path, f"no such file; expected lines of {EXPECTED}")
    header = lines[0][1] if lines else ""

    def frames_of_filelist(line: str) -> int:
        seconds = split_filelist_line(line).seconds
        if seconds is None:
            raise ValueError(
                "no length in seconds; scripts/prepare.py writes filelists with lengths"
            )
        samples = seconds * hparams.sampling_rate
        if not 0 < samples <= MAX_LENGTH:
            max_seconds = MAX_LENGTH / hparams.sampling_rate
            raise ValueError(
                f"seconds out of range, expected more than 0 and at most {max_seconds:,.0f}"
            )
        return frame_count(round(samples), hparams)

    def frames_of_csv(line: str) -> int:
        _, *counts = next(csv.reader([line]))
        if len(counts) != 1 or not re.fullmatch(r"0*[1-9]\d{0,9}", counts[0], re.ASCII):
            raise ValueError(
                f"invalid line, expected {header}, where the length is a whole number from 1 to "
                f"{MAX_LENGTH:,}"
            )
        count = int(counts[0])
        return frame_count(count, hparams) if header == "id,samples" else count

    if "|" in header:
        return _parsed(path, lines, frames_of_filelist)
    if header not in HEADERS or len(lines) == 1:
        found = f"unknown format, begins with {header[:60]!r}" if lines else "empty"
        if header in HEADERS:
            found = f"no lines after the header {header!r}"
        raise UserError(f"{path}: {found}; expected {EXPECTED}")
    return _parsed(path, lines[1:], frames_of_csv)


def _parsed(
    path: Path, lines: Sequence[tuple[int, str]], parse: Callable[[str], int]
) -> np.ndarray:
    """Parse every line. If any line cannot be parsed, raise a UserError that lists all such
    lines."""
    frames = []
    problems = []
    for number, line in lines:
        try:
            frames.append(parse(line))
        except (ValueError, csv.Error) as error:
            problems.append(f"{path}:{number}: {line[:60]!r}: {error}")
    if problems:
        raise lines_rejected(path, problems, len(lines))
    return np.array(frames)
