"""Get the lengths of a corpus's clips without audio: read them from a file, or draw them.

clips = read_lengths("runs/mine/lengths.csv", hparams)
clips = synthetic_lengths(13_100, hparams)
clips.frames  # int64 [clips]
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio import frame_count, mel_fingerprint
from corpus.cache import SUFFIX, read_cache
from corpus.clips import clip_id
from corpus.filelist import MEL_SETTINGS_FILE, split_filelist_line
from hparams import HParams, read_symbols
from tacotron2_voice.text import text_to_sequence
from tacotron2_voice.utils.errors import UserError, lines_rejected
from tacotron2_voice.utils.files import numbered_lines, write_json

HEADERS = ("id,samples", "id,frames")
EXPECTED = " or ".join([*HEADERS, "path|text|seconds", f"a filelist cache (*{SUFFIX})"])
MAX_LENGTH = 10**10 - 1  # samples or frames of a clip (five days of audio)
# The seconds that these fractions of LJSpeech-1.1's 13,100 clips do not exceed, from the shortest
# clip to the longest.
LJSPEECH_QUANTILES = (0, 0.01, *(0.05 * i for i in range(1, 21)))
LJSPEECH_SECONDS = (
    *(1.11, 1.66, 2.68, 3.42, 4.01, 4.52, 4.99, 5.38, 5.75, 6.11, 6.43, 6.76),
    *(7.11, 7.43, 7.75, 8.06, 8.39, 8.70, 9.03, 9.39, 9.72, 10.10),
)
# 1,309,270 symbols after english_cleaners in 86,117 s of speech; the spread is from clip to clip.
SYMBOLS_PER_SECOND, SYMBOLS_SPREAD = 15.2, 1.6


@dataclass(frozen=True)
class CorpusLengths:
    """The lengths of a corpus's clips, column by column."""

    ids: Sequence[str]
    frames: np.ndarray  # int64 [clips]
    symbols: Any = None  # int64 [clips], or None if they are not known
    texts: Sequence[str] | None = None  # of a filelist

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, chosen: np.ndarray) -> "CorpusLengths":
        """Return the clips with these indices."""
        return CorpusLengths(
            [self.ids[i] for i in chosen],
            self.frames[chosen],
            None if self.symbols is None else self.symbols[chosen],
            None if self.texts is None else [self.texts[i] for i in chosen],
        )


def synthetic_lengths(count: int, hparams: HParams, seed: int = 0) -> CorpusLengths:
    """Draw synthetic frames and symbols with the distribution of LJSpeech's."""
    rng = np.random.default_rng(seed)
    seconds = np.interp(rng.random(count), LJSPEECH_QUANTILES, LJSPEECH_SECONDS)
    samples = (seconds * hparams.sampling_rate).astype(int)
    frames = np.array([frame_count(n, hparams) for n in samples.tolist()])
    names = [f"{i:05d}" for i in range(count)]
    return CorpusLengths(names, frames, _synthetic_symbols(seconds, rng))


def _synthetic_symbols(seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rate = rng.normal(SYMBOLS_PER_SECOND, SYMBOLS_SPREAD, len(seconds))
    return np.maximum(seconds * np.maximum(rate, 1), 1).astype(int)


def read_lengths(path: str | Path, hparams: HParams) -> CorpusLengths:
    """Read a CSV with one of HEADERS, a filelist with seconds, or a filelist cache.

    Samples and seconds are converted to frames by the settings; frames are read unchanged.

    Raises:
        UserError: if lines are wrong. The message contains the file, the expected format, and every
            bad line with its number.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        table = read_cache(path)
        return CorpusLengths(list(table.ids()), table.num_frames, np.maximum(table.num_symbols, 1))
    lines = numbered_lines(path, f"no such file; expected lines of {EXPECTED}")
    header = lines[0][1] if lines else ""

    def filelist_clip(line: str) -> tuple[str, int, str]:
        name, text, seconds, *_ = split_filelist_line(line)
        if seconds is None:
            raise ValueError("no seconds; scripts/prepare.py makes lists with them")
        samples = seconds * hparams.sampling_rate
        if not 0 < samples <= MAX_LENGTH:
            max_seconds = MAX_LENGTH / hparams.sampling_rate
            raise ValueError(f"expected seconds above 0, at most {max_seconds:,.0f}")
        return clip_id(name), frame_count(round(samples), hparams), text

    def csv_clip(line: str) -> tuple[str, int]:
        name, *counts = next(csv.reader([line]))
        if len(counts) != 1 or not re.fullmatch(r"0*[1-9]\d{0,9}", counts[0], re.ASCII):
            raise ValueError(f"expected {header} in whole numbers from 1 to {MAX_LENGTH:,}")
        count = int(counts[0])
        return name, frame_count(count, hparams) if header == "id,samples" else count

    if "|" in header:
        names, frames, texts = zip(*_parsed(path, lines, filelist_clip), strict=True)
        return CorpusLengths(names, np.array(frames), texts=texts)
    if header not in HEADERS or len(lines) == 1:
        beginning = f"begins with {header[:60]!r} in {len(lines)} lines" if lines else "empty"
        raise UserError(f"{path}: {beginning}; expected {EXPECTED}")
    names, frames = zip(*_parsed(path, lines[1:], csv_clip), strict=True)
    return CorpusLengths(names, np.array(frames))


def with_symbols(clips: CorpusLengths, hparams: HParams) -> CorpusLengths:
    """Add the numbers of symbols after cleaning; without texts, draw numbers like LJSpeech's."""
    if clips.symbols is not None:
        return clips
    if clips.texts is not None:
        h = read_symbols(hparams)
        sequences = (text_to_sequence(t, h.text_cleaners, h.table, h.language) for t in clips.texts)
        counts = [max(1, len(sequence)) for sequence in sequences]
        return replace(clips, symbols=np.array(counts))
    seconds = clips.frames * hparams.hop_length / hparams.sampling_rate
    return replace(clips, symbols=_synthetic_symbols(seconds, np.random.default_rng(0)))


def _parsed(path: Path, lines: Sequence[tuple[int, str]], parse: Callable[[str], tuple]) -> list:
    """Parse every line. Raises a UserError that lists all lines that cannot be parsed."""
    rows = []
    problems = []
    for number, line in lines:
        try:
            rows.append(parse(line))
        except (ValueError, csv.Error) as error:
            problems.append(f"{path}:{number}: {line[:60]!r}: {error}")
    if problems:
        raise lines_rejected(path, problems, len(lines))
    return rows


def make_corpus(folder: Path, clips: CorpusLengths, hparams: HParams) -> Path:
    """Write a synthetic corpus: mels of noise with the lengths of `clips`, and their filelist."""
    rng = np.random.default_rng(0)
    lines = []
    mel = rng.standard_normal((hparams.n_mel_channels, int(clips.frames.max())), np.float32) - 5
    for i, (frames, symbols) in enumerate(zip(clips.frames, clips.symbols, strict=True)):
        np.save(folder / f"{i:05d}.npy", mel[:, :frames])
        # These letters form no abbreviation, which the cleaner would expand.
        letters = rng.choice(list("aeioun"), symbols)
        letters[5:-1:6] = " "
        lines.append(f"{folder / f'{i:05d}.npy'}|{''.join(letters)}\n")
    write_json(folder / MEL_SETTINGS_FILE, mel_fingerprint(hparams))
    (folder / "mels.txt").write_text("".join(lines), encoding="utf-8")
    return folder / "mels.txt"
