"""What in a corpus keeps the alignment of text and speech from forming: warnings, no refusals.

docs/own-data.md says why each matters.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clip_table import Clip
from corpus.dropped_symbols import dropped_symbols
from hparams import HParams

LONGEST_SILENCE = 0.3  # seconds before or after speech
WORST_SHOWN = 5
RATE_DEVIATIONS = 6  # robust standard deviations of the logarithm of the rate; and
LEAST_RATE_RATIO = 1.5  # at least this many times as fast or slow as the median


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and what is wrong with each clip that has it, worst first."""

    what: str
    advice: str
    notes: list[str]

    def warning(self, total: int) -> str:
        """A line about the worst of `total` clips; empty where none has the fault."""
        if not self.notes:
            return ""
        more = len(self.notes) - WORST_SHOWN
        listed = "; ".join(self.notes[:WORST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        count = f"{len(self.notes):,} of {total:,} clips"
        return f"warning: {self.what} in {count}: {listed}. {self.advice} (docs/own-data.md)"


def find_faults(clips: Sequence[Clip], hparams: HParams) -> list[Fault]:
    """The five kinds, always in the same order, of one clip or more."""
    rate = hparams.sampling_rate
    return [
        _silences(clips, rate),
        _unusual_rates(clips, rate),
        _clipping(clips, rate),
        _dropped(clips, hparams),
        _duplicates(clips),
    ]


def symbol_rates(clips: Sequence[Clip], sampling_rate: int) -> np.ndarray:
    """Symbols per second of each clip; silence before and after speech does not count."""
    return np.array([len(c.symbols) * sampling_rate / c.sound.speech_samples for c in clips])


def usual_rates(rates: np.ndarray) -> tuple[float, float, float]:
    """The lowest usual rate, the median and the highest usual rate.

    Unusual is what differs from the median by more than 6 robust standard deviations (1.4826
    times the median absolute deviation, all of the rates' logarithms), and by more than half.
    Of LJSpeech's 13,100 clips the rule names two.
    """
    logarithms = np.log(rates)
    middle = np.median(logarithms)
    deviation = 1.4826 * np.median(np.abs(logarithms - middle))
    furthest = max(RATE_DEVIATIONS * deviation, np.log(LEAST_RATE_RATIO))
    low, median, high = np.exp([middle - furthest, middle, middle + furthest])
    return float(low), float(median), float(high)


def _worst(
    clips: Sequence[Clip], badness: Sequence[float] | np.ndarray, limit: float
) -> list[Clip]:
    """The clips whose badness is above the limit, worst first."""
    order = np.argsort(-np.asarray(badness), kind="stable")
    return [clips[i] for i in order if badness[i] > limit]


def _silences(clips: Sequence[Clip], rate: int) -> Fault:
    longest = [max(clip.sound.silence_before, clip.sound.silence_after) for clip in clips]
    return Fault(
        f"silence over {LONGEST_SILENCE:g} s before or after speech",
        "Trim it with --trim-silence DIR",
        [
            f"{clip.id} ({clip.sound.silence_before / rate:.2f} s before, "
            f"{clip.sound.silence_after / rate:.2f} s after)"
            for clip in _worst(clips, longest, LONGEST_SILENCE * rate)
        ],
    )


def _unusual_rates(clips: Sequence[Clip], rate: int) -> Fault:
    rates = symbol_rates(clips, rate)
    low, median, high = usual_rates(rates)
    distances = np.abs(np.log(rates / median))
    return Fault(
        f"fewer than {low:.1f} or more than {high:.1f} symbols per second (the median is "
        f"{median:.1f})",
        "Listen, then correct the text, cut the sound, or leave the clip out",
        [
            f"{Path(clip.where).name}: {clip.id} ({symbol_rates([clip], rate)[0]:.1f})"
            for clip in _worst(clips, distances, np.log(high / median))
        ],
    )


def _clipping(clips: Sequence[Clip], rate: int) -> Fault:
    return Fault(
        "clipping (three samples or more in a row at full scale)",
        "Record at a lower level, restore the clip with a declipper, or leave it out",
        [
            f"{clip.id} ({clip.sound.clipped:,} samples, {1000 * clip.sound.clipped / rate:.1f} ms)"
            for clip in _worst(clips, [clip.sound.clipped for clip in clips], 0)
        ],
    )


def _dropped(clips: Sequence[Clip], hparams: HParams) -> Fault:
    dropped = {clip: dropped_symbols(clip.text, hparams.text_cleaners) for clip in clips}

    return Fault(
        "characters or phones that the text cleaners drop",
        "Write them as words, or choose other text_cleaners by --hparams",
        [
            f"{Path(clip.where).name}: {' '.join(map(repr, dropped[clip]))}"
            for clip in _worst(clips, [len(dropped[clip]) for clip in clips], 0)
        ],
    )


def _duplicates(clips: Sequence[Clip]) -> Fault:
    groups = defaultdict(list)
    for clip in clips:
        groups[clip.sound.checksum].append(clip)
    repeated = [group for group in groups.values() if len(group) > 1]
    repeated.sort(key=lambda group: (len({clip.text for clip in group}), len(group)), reverse=True)
    return Fault(
        "the sound of another clip",
        "Keep the clip with the right text, remove the others",
        [
            f"{clip.id} (that of {first.id}, {'the same' if clip.text == first.text else 'another'}"
            " text)"
            for first, *others in repeated
            for clip in others
        ],
    )
