"""Clips for the benchmarks: lengths read or made up, and noise as long as they are."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis import ljspeech
from analysis.lengths import count_symbols, read_lengths
from audio import frame_count, mel_fingerprint
from corpus.metadata import read_entries, read_split
from data_utils import MEL_SETTINGS_FILE, Batch, TextMelCollate, lines_refused
from errors import UserError
from hparams import HParams


@dataclass(frozen=True)
class Clips:
    """Lengths of a corpus."""

    frames: np.ndarray  # [clips] int64
    symbols: np.ndarray  # [clips] int64
    source: str  # what they are, in a sentence without its stop


# ---------------------------------------------------------------------------- lengths


def synthetic_clips(count: int, hparams: HParams, seed: int = 0) -> Clips:
    """Lengths distributed as LJSpeech's, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    seconds = ljspeech.seconds_at(rng.random(count))
    samples = (seconds * hparams.sampling_rate).astype(int)
    frames = np.array([frame_count(n, hparams) for n in samples.tolist()])
    source = f"made-up lengths of {count:,} clips, distributed as LJSpeech's"
    return Clips(frames, _synthetic_symbols(seconds, rng), source)


def _synthetic_symbols(seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rate = rng.normal(ljspeech.SYMBOLS_PER_SECOND, ljspeech.SYMBOLS_SPREAD, len(seconds))
    return np.maximum(seconds * np.maximum(rate, 1), 1).astype(int)


def clips_of_lengths_file(
    path: Path, hparams: HParams, metadata: Path | None = None, split: Path | None = None
) -> Clips:
    """Lengths from any file that `lengths.read_lengths` takes.

    Symbols come from the file, else from the texts of `metadata` (id|text or id|text|normalised
    text), else from those of a filelist, else they are made up. Of the clips, those that `split`
    (id,set) marks `train`, if it names them all.

    Raises:
        UserError: one message with every bad line of a file and its number.
    """
    clips = read_lengths(path, hparams)
    if split is not None:
        sets = read_split(split)
        if all(name in sets for name in clips.ids):
            clips = clips.take(np.flatnonzero([sets[name] == "train" for name in clips.ids]))
            if not len(clips):
                raise UserError(f"{path}: none of its clips is marked train in {split}")
    symbols, counted = clips.symbols, "their symbols"
    if symbols is None and metadata is not None:
        symbols = _symbols_of_texts(metadata, clips.ids, hparams)
        counted = f"the symbols of {metadata.name}"
    elif symbols is None and clips.texts is not None:
        symbols = count_symbols(clips.texts, hparams)
    elif symbols is None:
        seconds = clips.frames * hparams.hop_length / hparams.sampling_rate
        symbols = _synthetic_symbols(seconds, np.random.default_rng(0))
        counted = (
            f"made-up numbers of symbols, {ljspeech.SYMBOLS_PER_SECOND} a second as LJSpeech's"
        )
    return Clips(clips.frames, symbols, f"{len(clips):,} clips of {path.name}, {counted}")


def _symbols_of_texts(metadata: Path, names: list[str], hparams: HParams) -> np.ndarray:
    entries, problems = read_entries(metadata, "no such file; expected lines of id|text")
    if problems:
        raise lines_refused(metadata, problems, len(entries) + len(problems))
    texts = {entry.id: entry.text for entry in entries}
    missing = [name for name in names if not texts.get(name)]
    if missing:
        raise UserError(
            f"{metadata}: no text for {len(missing)} of {len(names)} clips, {missing[0]!r} first; "
            "expected a line of id|text for each"
        )
    return count_symbols([texts[name] for name in names], hparams)


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


def learnable_batches(count: int, hparams: HParams) -> list[Batch]:
    """`count` batches of sentences whose symbols each sound as one spectrum for some frames."""
    generator = torch.Generator().manual_seed(hparams.seed)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    num_symbols = 12
    spectra = torch.randn(num_symbols, hparams.n_mel_channels, generator=generator) * 1.5 - 5
    durations = draw(2, 7, num_symbols)
    collate = TextMelCollate(hparams.n_frames_per_step)
    batches = []
    for _ in range(count):
        items = []
        for length in draw(3, 9, hparams.batch_size).tolist():
            symbols = draw(0, num_symbols, length)
            mel = spectra[symbols].repeat_interleave(durations[symbols], dim=0).T
            noise = torch.randn(mel.shape, generator=generator)
            items.append((symbols + 1, mel + 0.1 * noise))  # symbol 0 is padding
        batches.append(collate(items))
    return batches


def make_corpus(folder: Path, clips: Clips, hparams: HParams) -> Path:
    """A filelist of cached mels of noise in `folder`, and the mels, as long as `clips`.

    Raises:
        UserError: if they cannot be written, for want of room say.
    """
    try:
        return _write_corpus(folder, clips, hparams)
    except OSError as error:
        raise UserError(
            f"{folder}: the made-up mels cannot be written ({error.strerror}); make room, or name "
            "another folder for temporary files in the variable TMPDIR"
        ) from None


def _write_corpus(folder: Path, clips: Clips, hparams: HParams) -> Path:
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
