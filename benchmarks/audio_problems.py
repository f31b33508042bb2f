"""Add each audio problem at five strengths to clean clips, and count how often the problem is
detected.

    python -m benchmarks.audio_problems data/LJSpeech-1.1/wavs --clips 385 --csv problems.csv

The folder must contain clean recordings. For each problem and strength, the program prints the
percentage of changed clips in which the problem is detected. The program also prints the percentage
of unchanged clips in which the problem is detected (false alarms).
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.audio_problems")


import csv
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

from corpus.audio_quality import measure_quality, problems_of
from corpus.audio_search import audio_files
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import markdown_table, progress_bar
from tacotron2_voice.utils.files import map_in_threads
from tacotron2_voice.utils.program import run_program

# Strengths at which each audio problem is tested, from weakest to strongest. UNITS contains the
# units of the strengths.
STRENGTHS: dict[str, tuple[float, ...]] = {
    "noise": (25, 20, 15, 10, 5),
    "hum": (-30, -25, -20, -15, -10),
    "offset": (0.01, 0.02, 0.05, 0.1, 0.2),
    "narrow band": (16000, 12000, 10000, 8000, 6000),
    "cut": (0.03, 0.06, 0.1, 0.2, 0.4),
    "pause": (0.8, 1.0, 1.5, 2.0, 3.0),
}
UNITS = {
    "noise": "dB below speech",
    "hum": "dB relative to speech",
    "offset": "of full scale",
    "narrow band": "Hz sampling rate",
    "cut": "s of speech at each end",
    "pause": "s",
}
# Clips that are shorter than MIN_SECONDS are tested only without changes, because the longest cut
# may leave no audio.
MIN_SECONDS = 1.5


def add_noise(clip: np.ndarray, rate: int, decibels: float) -> np.ndarray:
    noise = np.random.default_rng(len(clip)).standard_normal(len(clip)).astype(np.float32)
    return clip + _speech_level(clip, rate) * 10 ** (-decibels / 20) * noise


def add_hum(clip: np.ndarray, rate: int, decibels: float) -> np.ndarray:
    """Add mains hum: the first three harmonics of 50 Hz or, for half of the clips (an odd number of
    samples), of 60 Hz."""
    base = 60 if len(clip) % 2 else 50
    times = np.arange(len(clip)) / rate
    hum = sum(np.sin(2 * np.pi * base * k * times + k) / k for k in (1, 2, 3))
    return clip + _speech_level(clip, rate) * 10 ** (decibels / 20) * hum / np.std(hum)


def add_offset(clip: np.ndarray, rate: int, offset: float) -> np.ndarray:
    return clip + np.float32(offset)


def narrow_band(clip: np.ndarray, rate: int, hertz: float) -> np.ndarray:
    """Resample the clip to a lower sampling rate and back."""
    return resample_poly(resample_poly(clip, int(hertz), rate), rate, int(hertz))


def cut(clip: np.ndarray, rate: int, seconds: float) -> np.ndarray:
    """Remove the silence and `seconds` of speech at both ends."""
    loud = np.flatnonzero(np.abs(clip) > np.abs(clip).max() / 20)
    samples = round(seconds * rate)
    return clip[loud[0] + samples : loud[-1] - samples]


def add_pause(clip: np.ndarray, rate: int, seconds: float) -> np.ndarray:
    """Insert a pause before the quietest 20 ms in the middle half of the clip. The inserted pause
    repeats the noise of the quietest 20 ms."""
    length = round(0.02 * rate)
    count = len(clip) // length
    windows = clip[: count * length].reshape(count, length)
    powers = np.square(windows - windows.mean(axis=1, keepdims=True)).mean(axis=1)
    quietest = count // 4 + int(powers[count // 4 : 3 * count // 4].argmin())
    period = np.concatenate([windows[quietest], windows[quietest][::-1]])
    pause = np.resize(period, round(seconds * rate))
    return np.concatenate([clip[: quietest * length], pause, clip[quietest * length :]])


CHANGES: dict[str, Callable[[np.ndarray, int, float], np.ndarray]] = {
    "noise": add_noise,
    "hum": add_hum,
    "offset": add_offset,
    "narrow band": narrow_band,
    "cut": cut,
    "pause": add_pause,
}


def _speech_level(clip: np.ndarray, rate: int) -> float:
    return 10 ** (measure_quality(clip, rate).level / 20)


def found_in(path: Path) -> dict[tuple[str, float], set[str]]:
    """Return the problems that are detected in each version of a clip, keyed by (problem,
    strength). For the unchanged clip, the key is ("clean", 0)."""
    channels, rate = soundfile.read(path, dtype="float32", always_2d=True)
    clip = channels.mean(axis=1)
    found = {("clean", 0.0): {*problems_of(measure_quality(clip, rate))}}
    if len(clip) < MIN_SECONDS * rate:
        return found
    for problem, strengths in STRENGTHS.items():
        for strength in strengths:
            changed = CHANGES[problem](clip, rate, strength).astype(np.float32)
            found[problem, strength] = {*problems_of(measure_quality(changed, rate))}
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="FOLDER", type=Path, help="folder of clean recordings")
    add("--clips", type=int, default=100, help="number of randomly chosen clips (default: 100)")
    add("--csv", metavar="FILE", type=Path, help="also write the table to this file")
    args = parser.parse_args(arguments)
    files = audio_files(args.folder)
    random.Random(0).shuffle(files)
    files = files[: args.clips]
    progress = progress_bar("Measuring", len(files), " clips", iterable=files)
    results = [found for _, found in zip(progress, map_in_threads(found_in, files), strict=True)]
    clean = [found["clean", 0.0] for found in results]
    rows = []
    for problem, strengths in STRENGTHS.items():
        alarms = 100 * np.mean([problem in found for found in clean])
        rates = [
            100 * np.mean([problem in found[problem, x] for found in results if len(found) > 1])
            for x in strengths
        ]
        named = ", ".join(f"{x:g}" for x in strengths)
        rows.append(
            [problem, f"{named} {UNITS[problem]}", *(f"{x:.0f}" for x in rates), f"{alarms:.1f}"]
        )
    any_alarm = 100 * np.mean([bool(found) for found in clean])
    titles = [
        "problem",
        "strengths",
        *(f"detected at strength {i} (%)" for i in range(1, 6)),
        "false alarms (%)",
    ]
    print(f"{len(files):,} clips of {args.folder}")
    print(markdown_table(titles, rows))
    print(f"clean clips with at least one false alarm: {any_alarm:.1f}%")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file).writerows([titles, *rows])
        print(f"Wrote {args.csv}")


if __name__ == "__main__":
    run_program(main)
