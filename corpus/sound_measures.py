"""What is measured in the samples of a clip, in the reading that checks it."""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audio import read_checked
from hparams import HParams

WINDOW_SECONDS = 0.02  # the level of a sound is measured in windows of this length
SILENCE_DECIBELS = 40  # a window so far below the clip's loudest one is silent
SHORTEST_CLIPPED_RUN = 3  # samples; a peak that just reaches full scale has fewer


@dataclass(frozen=True)
class SoundMeasures:
    """Of one clip, all in samples but the checksum."""

    num_samples: int
    silence_before: int  # before speech
    silence_after: int  # after speech
    clipped: int  # at full scale, in runs of SHORTEST_CLIPPED_RUN or more
    checksum: tuple[int, int]  # number of samples and their CRC-32: equal for equal sounds


def measure_sound(path: Path, hparams: HParams) -> SoundMeasures:
    """Check a clip and measure it; errors as `audio.read_checked`."""
    samples = read_checked(path, hparams)
    before, after = silence_at_ends(samples, hparams.sampling_rate)
    # Sounds that differ agree in both hardly ever, and all that follows is a warning; SHA-256 would
    # take two seconds more for 24 hours of speech.
    checksum = len(samples), zlib.crc32(samples)
    return SoundMeasures(len(samples), before, after, count_clipped(samples), checksum)


def silence_at_ends(samples: np.ndarray, sampling_rate: int) -> tuple[int, int]:
    """Samples of silence before and after speech, in whole windows but for the last one's rest.

    A window of 20 ms is silent where the range of its samples, highest minus lowest, is more than
    40 dB below that of the clip's loudest window. That is the convention of
    `librosa.effects.trim(top_db=40)`, but for ranges in place of root mean squares: they cost a
    tenth of the time, and a constant offset changes nothing. Where the noise between words is
    louder than this, no silence is found.

    Args:
        samples: int16 or float32 [N], not all equal.
    """
    window = round(WINDOW_SECONDS * sampling_rate)
    whole = len(samples) // window
    windows, rest = samples[: whole * window].reshape(whole, window), samples[whole * window :]
    highest, lowest = windows.max(axis=1), windows.min(axis=1)
    if len(rest):
        highest, lowest = np.append(highest, rest.max()), np.append(lowest, rest.min())
    ranges = highest.astype(np.float32) - lowest  # two numbers of 16 bits can lie 17 bits apart
    loud = np.flatnonzero(ranges >= ranges.max() * 10 ** (-SILENCE_DECIBELS / 20))
    return int(loud[0]) * window, max(0, len(samples) - int(loud[-1] + 1) * window)


def count_clipped(samples: np.ndarray) -> int:
    """Samples at full scale that lie in runs of at least SHORTEST_CLIPPED_RUN.

    Full scale is 32767 of 32768, the largest positive value of 16 bits.

    Args:
        samples: int16 or float32 [N].
    """
    limit = 32767 if samples.dtype == np.int16 else 32767 / 32768
    if samples.max() < limit and samples.min() > -limit:  # almost all clips, and much faster
        return 0
    full = (samples >= limit) | (samples <= -limit)
    edges = np.flatnonzero(np.diff(full, prepend=False, append=False))
    runs = edges[1::2] - edges[::2]
    return int(runs[runs >= SHORTEST_CLIPPED_RUN].sum())
