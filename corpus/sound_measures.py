"""What is measured in the samples of a clip, in the reading that checks it."""

import hashlib
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
    """Of one clip, all in samples but the digest."""

    num_samples: int
    silence_before: int  # before speech
    silence_after: int  # after speech
    clipped: int  # at full scale, in runs of SHORTEST_CLIPPED_RUN or more
    digest: bytes  # SHA-256 of the samples: equal for equal sounds


def measure_sound(path: Path, hparams: HParams) -> SoundMeasures:
    """Check a clip and measure it; errors as `audio.read_checked`."""
    samples = read_checked(path, hparams)
    before, after = silence_at_ends(samples, hparams.sampling_rate)
    digest = hashlib.sha256(samples).digest()
    return SoundMeasures(len(samples), before, after, count_clipped(samples), digest)


def silence_at_ends(samples: np.ndarray, sampling_rate: int) -> tuple[int, int]:
    """Samples of silence before and after speech, in whole windows but for the last one's rest.

    A window of 20 ms is silent where its mean square is more than 40 dB below that of the clip's
    loudest window; a constant offset is taken away first. This is the convention of
    `librosa.effects.trim(top_db=40)`, with windows that do not overlap. Where the noise between
    words is louder than this, no silence is found.

    Args:
        samples: int16 or float32 [N], not all equal.
    """
    signal = samples.astype(np.float32)
    signal -= signal.mean()
    window = round(WINDOW_SECONDS * sampling_rate)
    whole = len(signal) // window
    windows, rest = signal[: whole * window].reshape(whole, window), signal[whole * window :]
    power = np.einsum("ij,ij->i", windows, windows) / window
    if len(rest):
        power = np.append(power, rest @ rest / len(rest))
    loud = np.flatnonzero(power >= power.max() * 10 ** (-SILENCE_DECIBELS / 10))
    return int(loud[0]) * window, max(0, len(signal) - int(loud[-1] + 1) * window)


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
