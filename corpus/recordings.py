"""Check and measure the sound files of a corpus in LJSpeech's layout."""

import math
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from audio import frame_count, read_checked
from corpus.clip_table import Clip, Sound
from corpus.filelist import symbols_of
from corpus.missing_sounds import KINDS, SoundsThere, for_all
from hparams import HParams
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity, map_in_threads

WINDOW_SECONDS = 0.02  # the level of a sound is measured in windows of this length
SILENCE_DECIBELS = 40  # a window so far below the clip's loudest one is silent
SPEECH_DECIBELS = 30  # a window at most so far below the loudest one counts for the level
MIN_CLIPPED_RUN = 3  # samples; a peak that just reaches full scale has fewer
# Of 87 real clips none has a run within 2 steps of its peak; clipped to 70 %, each has three.
MIN_FLAT_TOPS = 3
FLAT_STEPS, FLAT_SHARE = 2, 1e-3  # steps of 16 bits, as dither moves; share of the peak


def check_recordings(
    corpus: Path, clips: list[Clip], hparams: HParams
) -> tuple[list[Clip], list[str], list[str]]:
    """Check every clip's sound. Returns the good clips with their measurements, the problems of the
    others, and the sound files that no line names. UserError if the folder wavs is missing."""
    wavs = corpus / "wavs"
    if not wavs.is_dir():
        raise UserError(SoundsThere(corpus, hparams).without_wavs())
    files = [path for path in wavs.iterdir() if path.suffix in KINDS and path.name[0] != "."]
    sounds = {path.name: path for path in files}
    # macOS and some archives write é as e and an accent, metadata.csv as one letter.
    composed = {unicodedata.normalize("NFC", name): path for name, path in sounds.items()}

    def sound_of(clip: Clip) -> Path | None:
        names = [f"{clip.id}{kind}" for kind in KINDS]
        normal = [unicodedata.normalize("NFC", name) for name in names]
        candidates = [*map(sounds.get, names), *map(composed.get, normal)]
        return next(filter(None, candidates), None)

    def measured_or_problem(clip: Clip) -> Clip | str:
        path = paths[clip.where]
        if path is None:
            assert others is not None
            return f"{clip.path}: no such file, nor a .flac; {others.fix(clip, clip.id)}"
        clip = replace(clip, path=str(path), identity=Identity.of(path))  # before it is opened
        try:
            sound = measure_sound(path, hparams, bool(clip.speaker))
        except UserError as error:
            return f"{path}: {for_all(str(error), path, hparams)}"
        return replace(clip, num_frames=frame_count(sound.num_samples, hparams), sound=sound)

    paths = {clip.where: sound_of(clip) for clip in clips}
    others = (
        None if all(paths.values()) else SoundsThere(corpus, hparams, (clip.id for clip in clips))
    )
    good, problems = [], []
    progress = progress_bar("Checking", len(clips), " clips", iterable=clips)
    for clip, result in zip(progress, map_in_threads(measured_or_problem, clips), strict=True):
        # Not in a thread: inflect, which spells numbers, is not thread-safe.
        silent = ""
        try:
            clip_symbols = symbols_of(clip.text, hparams)
        except UserError as error:
            silent = f"{clip.where}: {clip.id}: normalized {error}"
        if isinstance(result, str):
            problems.append(f"{result}; and {silent}" if silent else result)
        elif silent:
            problems.append(silent)
        else:
            good.append(replace(result, symbols=clip_symbols))
    unnamed = set(sounds) - {path.name for path in paths.values() if path}
    return good, problems, sorted(unnamed)


def seconds_of(clips: Sequence[Clip], hparams: HParams) -> np.ndarray:
    return np.array([clip.sound.num_samples for clip in clips]) / hparams.sampling_rate


def measure_sound(path: Path, hparams: HParams, with_level: bool = False) -> Sound:
    """Check a clip and measure it; errors as `audio.read_checked`. The level, by
    which only speakers are compared, is 0 unless it is asked for."""
    samples = read_checked(path, hparams)
    before, after = silence_at_ends(samples, hparams.sampling_rate)
    # Enough for a warning; SHA-256 would take two seconds more for 24 hours of speech.
    checksum = zlib.crc32(samples.data) << 32 | len(samples)
    level = 0.0
    if with_level:
        full_scale = 32768 if samples.dtype == np.int16 else 1
        waves = (samples - samples.mean(dtype=np.float64)).astype(np.float32) / full_scale
        level = 20 * math.log10(speech_level(waves, hparams.sampling_rate))
    return Sound(len(samples), before, after, count_clipped(samples), checksum, level)


def silence_at_ends(samples: np.ndarray, sampling_rate: int) -> tuple[int, int]:
    """Samples of silence before and after speech, in int16 or float32 samples [N], not all equal.

    A window of 20 ms is silent where the range of its samples, highest minus lowest, is more than
    40 dB below that of the clip's loudest window: `librosa.effects.trim(top_db=40)` in a tenth of
    the time, with ranges in place of root mean squares, so that a constant offset is ignored.
    """
    window = round(WINDOW_SECONDS * sampling_rate)
    starts = np.arange(0, len(samples), window)
    # Two numbers of 16 bits can be 17 bits apart.
    highest = np.maximum.reduceat(samples, starts).astype(np.float32)
    ranges = highest - np.minimum.reduceat(samples, starts)
    loud = np.flatnonzero(ranges >= ranges.max() * 10 ** (-SILENCE_DECIBELS / 20))
    return int(loud[0]) * window, max(0, len(samples) - int(loud[-1] + 1) * window)


def speech_level(samples: np.ndarray, sampling_rate: int) -> float:
    """The root mean square of samples [N] in the windows that are at most SPEECH_DECIBELS below the
    loudest one, so that pauses do not count. P.56 finds pauses by an envelope."""
    window = round(WINDOW_SECONDS * sampling_rate)
    starts = np.arange(0, len(samples), window)
    energies = np.add.reduceat(np.square(samples), starts) / np.diff([*starts, len(samples)])
    loud = energies >= energies.max() * 10 ** (-SPEECH_DECIBELS / 10)
    return float(np.sqrt(energies[loud].mean()))


def count_clipped(samples: np.ndarray) -> int:
    """Count the int16 or float32 samples [N] in runs of at least MIN_CLIPPED_RUN at full scale or,
    if there are MIN_FLAT_TOPS runs, at the clip's highest or lowest value: clipped, then scaled.
    Full scale is 32767 of 32768, the largest positive value of 16 bits."""
    step = 1 if samples.dtype == np.int16 else 1 / 32768
    high, low = float(samples.max()), float(samples.min())
    peak, limit = max(high, -low), 32767 * step
    if peak >= limit:
        clipped = _runs((samples >= limit) | (samples <= -limit))
        if len(clipped):
            return int(clipped.sum())
    near = min(FLAT_STEPS * step, FLAT_SHARE * peak)
    top, bottom = high - near, low + near
    if samples.dtype == np.int16:  # whole numbers compare faster
        top, bottom = math.ceil(top), math.floor(bottom)
    flat = np.concatenate([_runs(samples >= top), _runs(samples <= bottom)])
    return int(flat.sum()) if len(flat) >= MIN_FLAT_TOPS else 0


def _runs(chosen: np.ndarray) -> np.ndarray:
    """The lengths of runs of at least MIN_CLIPPED_RUN True in booleans [N]."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    runs = edges[1::2] - edges[::2]
    return runs[runs >= MIN_CLIPPED_RUN]
