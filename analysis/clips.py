"""Clips for the benchmarks: lengths read or made up, and noise as long as they are."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from audio import frame_count, mel_fingerprint
from data_utils import MEL_SETTINGS_FILE, Batch, TextMelCollate, lines_refused
from hparams import HParams
from text import text_to_sequence

HEADERS = ("id,samples", "id,frames", "id,samples,symbols", "id,frames,symbols")
# LJSpeech's 13,100 clips: the shortest one's seconds, those that 1 %, 5 %, 10 %, 15 %, ... of the
# clips do not exceed, and the longest one's; mean and spread of a clip's symbols a second.
SHARES = (0, 0.01, *(0.05 * i for i in range(1, 21)))
SECONDS = (
    *(1.11, 1.66, 2.68, 3.42, 4.01, 4.52, 4.99, 5.38, 5.75, 6.11, 6.43, 6.76),
    *(7.11, 7.43, 7.75, 8.06, 8.39, 8.70, 9.03, 9.39, 9.72, 10.10),
)
SYMBOLS_PER_SECOND, SYMBOLS_SPREAD = 15.2, 1.6


@dataclass(frozen=True)
class Clips:
    """Lengths of a corpus."""

    frames: np.ndarray  # [clips] int64
    symbols: np.ndarray  # [clips] int64
    source: str  # what they are, in a sentence without its stop


# ---------------------------------------------------------------------------- lengths


def made_up_clips(count: int, hparams: HParams, seed: int = 0) -> Clips:
    """Lengths distributed as LJSpeech's, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    seconds = np.interp(rng.random(count), SHARES, SECONDS)
    samples = (seconds * hparams.sampling_rate).astype(int)
    frames = np.array([frame_count(n, hparams) for n in samples.tolist()])
    source = f"made-up lengths of {count:,} clips, distributed as LJSpeech's"
    return Clips(frames, _made_up_symbols(seconds, rng), source)


def _made_up_symbols(seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rate = rng.normal(SYMBOLS_PER_SECOND, SYMBOLS_SPREAD, len(seconds))
    return np.maximum(seconds * np.maximum(rate, 1), 1).astype(int)


def read_clips(
    path: Path, hparams: HParams, metadata: Path | None = None, split: Path | None = None
) -> Clips:
    """Lengths from a CSV with one of HEADERS as its first line.

    Where it has no symbols they come from the texts of `metadata` (id|...|text), else they are
    made up. Of the clips, those that `split` (id,set) marks `train`, if it names them all.

    Raises:
        ValueError: one message with every bad line of a file and its number.
    """
    header, rows = _read_lengths(path)
    if split is not None:
        sets = dict(csv.reader(split.read_text(encoding="utf-8").splitlines()))
        if all(name in sets for name, *_ in rows):
            rows = [row for row in rows if sets[row[0]] == "train"]
            if not rows:
                raise ValueError(f"{path}: none of its clips is marked train in {split}")
    frames = np.array([row[1] for row in rows])
    if header.startswith("id,samples"):
        frames = np.array([frame_count(n, hparams) for n in frames.tolist()])
    if header.endswith("symbols"):
        symbols, counted = np.array([row[2] for row in rows]), "their symbols"
    elif metadata is not None:
        symbols = _symbols_of_texts(metadata, [row[0] for row in rows], hparams)
        counted = f"the symbols of {metadata.name}"
    else:
        seconds = frames * hparams.hop_length / hparams.sampling_rate
        symbols = _made_up_symbols(seconds, np.random.default_rng(0))
        counted = f"made-up numbers of symbols, {SYMBOLS_PER_SECOND} a second as LJSpeech's"
    return Clips(frames, symbols, f"{len(rows):,} clips of {path.name}, {counted}")


def _lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ValueError(
            f"{path}: no such file; expected lines of id,samples or of id|text"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as UTF-8 text ({error})") from None
    return [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip()]


def _read_lengths(path: Path) -> tuple[str, list[tuple]]:
    """The header, and (id, number, ...) of every line."""
    lines = _lines(path)
    header = lines[0][1].replace(" ", "").lower() if lines else ""
    if header not in HEADERS:
        raise ValueError(f"{path}:1: {header[:60]!r}: expected one of {' and '.join(HEADERS)}")
    rows, problems = [], []
    for number, line in lines[1:]:
        name, *counts = (field.strip() for field in next(csv.reader([line])))
        whole = all(count.isdecimal() and int(count) > 0 for count in counts)
        if len(counts) != header.count(",") or not whole:
            problems.append(f"{path}:{number}: {line[:60]!r}: expected {header}, from 1 each")
        else:
            rows.append((name, *map(int, counts)))
    if problems:
        raise lines_refused(path, problems, len(lines) - 1)
    if not rows:
        raise ValueError(f"{path}: a header and no clip under it")
    return header, rows


def _symbols_of_texts(metadata: Path, names: list[str], hparams: HParams) -> np.ndarray:
    texts = {}
    for _, line in _lines(metadata):
        name, *fields = line.split("|")
        texts[name] = fields[-1] if fields else ""
    missing = [name for name in names if not texts.get(name)]
    if missing:
        raise ValueError(
            f"{metadata}: no text for {len(missing)} of {len(names)} clips, {missing[0]!r} first; "
            "expected a line of id|text for each"
        )
    counts = [len(text_to_sequence(texts[name], hparams.text_cleaners)) for name in names]
    return np.maximum(counts, 1)


# ---------------------------------------------------------------------------- batches and files


def noise(frames: int, hparams: HParams) -> np.ndarray:
    """A log-mel [n_mels, frames] of noise, always the same."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((hparams.n_mel_channels, frames), dtype=np.float32) - 5


def noise_batch(
    clips: Clips, chosen: np.ndarray, mel: np.ndarray, hparams: HParams, pinned: bool
) -> Batch:
    """The chosen clips as a batch; `mel` [n_mels, frames] is as long as the longest or longer."""
    rng = np.random.default_rng(0)
    items = [
        (
            torch.from_numpy(rng.integers(1, hparams.n_symbols, int(clips.symbols[i]))),
            torch.from_numpy(mel[:, : int(clips.frames[i])]),
        )
        for i in chosen
    ]
    batch = TextMelCollate(hparams.n_frames_per_step)(items)
    return batch.pin_memory() if pinned else batch


def make_corpus(folder: Path, clips: Clips, hparams: HParams) -> Path:
    """A filelist of cached mels of noise in `folder`, and the mels, as long as `clips`."""
    rng = np.random.default_rng(0)
    mel, lines = noise(int(clips.frames.max()), hparams), []
    for i, (frames, symbols) in enumerate(zip(clips.frames, clips.symbols, strict=True)):
        path = folder / f"{i:05d}.npy"
        np.save(path, mel[:, :frames])
        letters = rng.choice(list("aeioun"), symbols)  # that make no abbreviation, which grow
        letters[5:-1:6] = " "
        lines.append(f"{path}|{''.join(letters)}\n")
    settings = json.dumps(mel_fingerprint(hparams))
    (folder / MEL_SETTINGS_FILE).write_text(settings, encoding="utf-8")
    filelist = folder / "mels.txt"
    filelist.write_text("".join(lines), encoding="utf-8")
    return filelist
