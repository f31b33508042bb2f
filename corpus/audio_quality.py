"""Detect problems in the audio of a clip.

The problems are noise, hum, a constant offset, a narrow frequency band, cut-off speech and long
pauses.

    quality = measure_quality(samples, 22050)
    quality.signal_to_noise  # 36.1 dB
    problems_of(quality)     # {}

`benchmarks/audio_problems.py` adds each problem to clean clips, in five strengths, and prints how
often `problems_of` reports the problem.
"""

from dataclasses import dataclass

import numpy as np

WINDOW_SECONDS = 0.02  # length in seconds of the windows in which levels are measured
SPECTRUM_SECONDS = 0.25  # length in seconds of the windows in which spectra are measured
EDGE_SECONDS = 0.01  # seconds at each end of a clip that are checked for cut-off speech
# A window contains speech if it is at most this many dB quieter than the loudest window of the clip.
SPEECH_DECIBELS = 30
# A window is a pause if it is more than this many dB quieter than the loudest window of the clip.
SILENCE_DECIBELS = 40
# The noise level of a clip is this quantile of the levels of its windows. Pauses fill more than
# 1/40 of most clips, so this quantile is the level of a pause.
NOISE_SHARE = 1 / 40
SILENT_DECIBELS = -90  # in dBFS; windows below this level contain digital silence, not noise
# A window is also a pause if its level is less than this many dB above the noise level.
PAUSE_ABOVE_NOISE = 6
MAINS = (50, 60)  # mains frequencies, in Hz
HARMONICS = 5  # number of harmonics of the mains frequency to search for hum
# For each frequency, the level of the hum is this percentile of the power in all windows. A low
# percentile selects quiet windows, which contain the hum but no speech.
HUM_PERCENTILE = 20
# Minimum difference in dB between a harmonic of the hum and the neighboring frequencies.
MIN_PROMINENCE = 15
VOICE_BAND = (300, 3400)  # frequencies that a telephone transmits, in Hz
UPPER_BAND = (4500, 8000)  # frequencies of speech that a telephone does not transmit, in Hz

# Thresholds for `problems_of`. With each threshold, `problems_of` reports at most 1 in 100 clean
# clips.
MIN_SIGNAL_TO_NOISE = 19  # in dB
MAX_HUM = -28  # level of the hum, in dB relative to the speech level
MAX_OFFSET = -20  # level of a constant offset, in dB relative to the speech level
# Power density from 4,500 to 8,000 Hz, in dB relative to the power density from 300 to 3,400 Hz.
MIN_UPPER_BAND = -36
MAX_EDGE = -10  # level at the ends of a clip, in dB relative to the speech level
MAX_PAUSE = 0.9  # in seconds
TINY = 1e-20  # lower limit for power values, so that every logarithm is finite


@dataclass(frozen=True)
class Quality:
    """The measurements of a clip's audio.

    Levels are in dB relative to the speech level of the clip, unless the comment of a field states
    a different reference.
    """

    level: float = -20.0  # speech level, in dBFS
    signal_to_noise: float = 60.0  # speech level relative to the noise level, in dB
    hum: float = -100.0  # level of the hum: constant tones at multiples of 50 or 60 Hz
    offset: float = -100.0  # level of the constant offset, which is the mean of all samples
    # Power density from 4.5 to 8 kHz, in dB relative to the power density from 300 to 3,400 Hz.
    upper_band: float = 0.0
    start: float = -60.0  # level of the first 10 ms after any leading zeros
    end: float = -60.0  # level of the last 10 ms before any trailing zeros
    longest_pause: float = 0.0  # longest pause inside the speech, in seconds


UNMEASURED = Quality()


def measure_quality(samples: np.ndarray, sampling_rate: int) -> Quality:
    """Measure the quality of a clip's audio.

    Args:
        samples: float32 [N] in [-1, 1] or int16 [N]; must not all be equal.
        sampling_rate: in Hz.
    """
    waves = samples.astype(np.float32)
    if samples.dtype == np.int16:
        waves /= 32768
    mean = float(waves.mean(dtype=np.float64))
    waves -= np.float32(mean)
    levels = _window_levels(waves, sampling_rate)
    loudest = levels.max()
    powers = 10 ** (levels / 10)
    level = _decibels(powers[levels >= loudest - SPEECH_DECIBELS].mean())
    recorded = np.sort(levels[levels > SILENT_DECIBELS])
    noise = float(recorded[int(NOISE_SHARE * len(recorded))]) if len(recorded) else loudest
    spectra, frequencies = _power_spectra(waves, sampling_rate)
    edge = max(1, round(EDGE_SECONDS * sampling_rate))
    first, last = np.flatnonzero(samples)[[0, -1]]
    return Quality(
        level=level,
        signal_to_noise=level - noise,
        hum=max(_hum(spectra, frequencies, base) for base in MAINS) - level,
        offset=_decibels(mean**2) - level,
        upper_band=_upper_band(spectra, frequencies),
        start=_decibels(np.square(waves[first : first + edge]).mean()) - level,
        end=_decibels(np.square(waves[max(0, last + 1 - edge) : last + 1]).mean()) - level,
        longest_pause=_longest_pause(levels, noise),
    )


def problems_of(quality: Quality) -> dict[str, str]:
    """Return the problems of a clip as {name: measured value}.

    problems_of(measure_quality(samples, 22050))  # {"hum": "-20 dB"}
    """
    problems = {
        "noise": (
            quality.signal_to_noise < MIN_SIGNAL_TO_NOISE,
            f"speech is {quality.signal_to_noise:.0f} dB above the noise",
        ),
        "hum": (quality.hum > MAX_HUM, f"{quality.hum:.0f} dB"),
        "offset": (quality.offset > MAX_OFFSET, f"{quality.offset:.0f} dB"),
        "narrow band": (
            quality.upper_band < MIN_UPPER_BAND,
            f"{quality.upper_band:.0f} dB above 4.5 kHz",
        ),
        "cut": (max(quality.start, quality.end) > MAX_EDGE, _described_edges(quality)),
        "pause": (quality.longest_pause > MAX_PAUSE, f"{quality.longest_pause:.1f} s"),
    }
    return {name: value for name, (is_found, value) in problems.items() if is_found}


def _described_edges(quality: Quality) -> str:
    ends = {"start": quality.start, "end": quality.end}
    return " and ".join(name for name, level in ends.items() if level > MAX_EDGE)


def _decibels(power: float) -> float:
    return float(10 * np.log10(max(float(power), TINY)))


def _window_levels(waves: np.ndarray, sampling_rate: int) -> np.ndarray:
    """Return the level in dB of each 20 ms window [windows]."""
    length = round(WINDOW_SECONDS * sampling_rate)
    count = max(1, len(waves) // length)
    windows = np.square(waves[: count * length]).reshape(count, -1)
    return 10 * np.log10(np.maximum(windows.mean(axis=1, dtype=np.float64), TINY))


def _power_spectra(waves: np.ndarray, sampling_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power spectra of 0.25 s windows [windows, bins], and their frequencies [bins].

    The powers of all frequency bins of a window add up to the mean square of the window's samples.
    Frequencies are in Hz.
    """
    length = round(SPECTRUM_SECONDS * sampling_rate)
    if len(waves) < length:
        waves = np.pad(waves, (0, length - len(waves)))
    windows = np.lib.stride_tricks.sliding_window_view(waves, length)[:: length // 2]
    shape = np.hanning(length).astype(np.float32)
    transformed = np.fft.rfft(windows * shape)
    powers = np.square(np.abs(transformed)) / (np.square(shape).sum() * length / 2)
    return powers, np.fft.rfftfreq(length, 1 / sampling_rate)


def _hum(spectra: np.ndarray, frequencies: np.ndarray, base: int) -> float:
    """Return the total level in dB of constant tones at multiples of the frequency `base`."""
    constant = np.percentile(spectra, HUM_PERCENTILE, axis=0)
    total = 0.0
    for harmonic in range(1, HARMONICS + 1):
        distance = np.abs(frequencies - base * harmonic)
        tone = constant[distance <= 4]
        neighbors = constant[(distance >= 8) & (distance <= 20)]
        prominence = _decibels(tone.max()) - _decibels(float(np.median(neighbors)))
        if prominence >= MIN_PROMINENCE:
            total += float(tone.sum())
    return _decibels(total)


def _upper_band(spectra: np.ndarray, frequencies: np.ndarray) -> float:
    """Return the mean power from 4.5 to 8 kHz, in dB relative to the telephone band.

    The mean includes only windows that contain speech. The result is 0 if the sampling rate is too
    low for frequencies up to 8 kHz.
    """
    if frequencies[-1] < UPPER_BAND[1]:
        return 0.0
    powers = spectra.sum(axis=1)
    loud = spectra[powers >= powers.max() * 10 ** (-SPEECH_DECIBELS / 10)].mean(axis=0)
    upper = loud[(frequencies >= UPPER_BAND[0]) & (frequencies < UPPER_BAND[1])].mean()
    voice = loud[(frequencies >= VOICE_BAND[0]) & (frequencies < VOICE_BAND[1])].mean()
    return _decibels(upper) - _decibels(voice)


def _longest_pause(levels: np.ndarray, noise: float) -> float:
    """Return the length in seconds of the longest pause within the speech."""
    limit = max(levels.max() - SILENCE_DECIBELS, noise + PAUSE_ABOVE_NOISE)
    spoken = np.flatnonzero(levels >= limit)
    return (
        float(np.diff(spoken, prepend=spoken[0]).max() - 1) * WINDOW_SECONDS
        if len(spoken) > 1
        else 0.0
    )
