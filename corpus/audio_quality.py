"""Measure what is wrong with the audio of a clip: noise, hum, offset, band, cut ends, pauses.

    quality = measure_quality(samples, 22050)
    quality.signal_to_noise  # 36.1 dB
    problems_of(quality)     # {}

Every measure is a level in dB of the speech level or a time in seconds. `benchmarks/audio_problems.py`
adds each problem to clean clips in five strengths, and prints how often `problems_of` reports it.
"""

from dataclasses import dataclass

import numpy as np

WINDOW_SECONDS = 0.02  # windows in which levels are measured
SPECTRUM_SECONDS = 0.25  # windows in which spectra are measured, so that a bin has 4 Hz
EDGE_SECONDS = 0.01  # length of the first and the last part of a clip
SPEECH_DECIBELS = 30  # a window is speech if it is at most this far below the loudest window
SILENCE_DECIBELS = 40  # a window is a pause if it is more than this far below the loudest window
NOISE_SHARE = 1 / 40  # of the windows are quieter than the noise's level; speech has more pauses
SILENT_DECIBELS = -90  # windows below this level contain digital silence instead of noise
# A window is also a pause if it is less than this above the noise.
PAUSE_ABOVE_NOISE = 6
MAINS = (50, 60)  # Hz
HARMONICS = 5
# Hum is constant, so it is also in the quietest windows. Speech is not.
HUM_PERCENTILE = 20
MIN_PROMINENCE = 15  # dB of a harmonic of hum above its neighbors
VOICE_BAND = (300, 3400)  # Hz; telephones transmit this band
UPPER_BAND = (4500, 8000)  # Hz

# Limits of `problems_of`. At most 1 of 100 clean clips exceeds any of them.
MIN_SIGNAL_TO_NOISE = 19  # dB
MAX_HUM = -28  # dB
MAX_OFFSET = -20  # dB
MIN_UPPER_BAND = -36  # dB
MAX_EDGE = -10  # dB
MAX_PAUSE = 0.9  # seconds
TINY = 1e-20  # smallest power, so that its logarithm exists


@dataclass(frozen=True)
class Quality:
    """The measurements of a clip's audio. Levels are in dB of the level of its speech."""

    level: float = -20.0  # level of the speech, in dB of full scale
    signal_to_noise: float = 60.0  # level of the speech above the quietest windows
    hum: float = -100.0  # level of constant tones at multiples of 50 or 60 Hz
    offset: float = -100.0  # level of the samples' mean
    upper_band: float = 0.0  # 4.5 to 8 kHz compared with 300 to 3,400 Hz, per Hz
    start: float = -60.0  # level of the first 10 ms
    end: float = -60.0  # level of the last 10 ms
    longest_pause: float = 0.0  # seconds, inside the speech


UNMEASURED = Quality()


def measure_quality(samples: np.ndarray, sampling_rate: int) -> Quality:
    """Measure the audio of a clip.

    samples: float32 [N] in [-1, 1], or int16 [N]; not all equal.
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
    return Quality(
        level=level,
        signal_to_noise=level - noise,
        hum=max(_hum(spectra, frequencies, base) for base in MAINS) - level,
        offset=_decibels(mean**2) - level,
        upper_band=_upper_band(spectra, frequencies),
        start=_decibels(np.square(waves[:edge]).mean()) - level,
        end=_decibels(np.square(waves[-edge:]).mean()) - level,
        longest_pause=_longest_pause(levels, noise),
    )


def problems_of(quality: Quality) -> dict[str, str]:
    """Return the problems of a clip, with the value that each is about.

    problems_of(measure_quality(samples, 22050))  # {"noise": "12 dB above the noise"}
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
    """Return the level of each window of 20 ms, in dB, float64 [windows]."""
    length = round(WINDOW_SECONDS * sampling_rate)
    count = max(1, len(waves) // length)
    windows = np.square(waves[: count * length]).reshape(count, -1)
    return 10 * np.log10(np.maximum(windows.mean(axis=1, dtype=np.float64), TINY))


def _power_spectra(waves: np.ndarray, sampling_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power in each bin of windows of 0.25 s [windows, bins] and the bins'
    frequencies in Hz. The powers of a window add up to the mean square of its samples."""
    length = round(SPECTRUM_SECONDS * sampling_rate)
    if len(waves) < length:
        waves = np.pad(waves, (0, length - len(waves)))
    windows = np.lib.stride_tricks.sliding_window_view(waves, length)[:: length // 2]
    shape = np.hanning(length).astype(np.float32)
    transformed = np.fft.rfft(windows * shape)
    powers = np.square(np.abs(transformed)) / (np.square(shape).sum() * length / 2)
    return powers, np.fft.rfftfreq(length, 1 / sampling_rate)


def _hum(spectra: np.ndarray, frequencies: np.ndarray, base: int) -> float:
    """Return the level in dB of constant tones at the first harmonics of `base` Hz."""
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
    """Return how far 4.5 to 8 kHz are below the band of telephones, in dB per Hz, in loud windows;
    0 if the sampling rate is too low for this band."""
    if frequencies[-1] < UPPER_BAND[1]:
        return 0.0
    powers = spectra.sum(axis=1)
    loud = spectra[powers >= powers.max() * 10 ** (-SPEECH_DECIBELS / 10)].mean(axis=0)
    upper = loud[(frequencies >= UPPER_BAND[0]) & (frequencies < UPPER_BAND[1])].mean()
    voice = loud[(frequencies >= VOICE_BAND[0]) & (frequencies < VOICE_BAND[1])].mean()
    return _decibels(upper) - _decibels(voice)


def _longest_pause(levels: np.ndarray, noise: float) -> float:
    """Return the length in seconds of the longest pause between two windows of speech."""
    limit = max(levels.max() - SILENCE_DECIBELS, noise + PAUSE_ABOVE_NOISE)
    spoken = np.flatnonzero(levels >= limit)
    return (
        float(np.diff(spoken, prepend=spoken[0]).max() - 1) * WINDOW_SECONDS
        if len(spoken) > 1
        else 0.0
    )
