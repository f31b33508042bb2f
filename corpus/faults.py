"""What in a corpus keeps the alignment of text and speech from forming: warnings, no refusals."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corpus.recordings import Recording

LONGEST_SILENCE = 0.3  # seconds before or after speech
WORST_SHOWN = 5
RATE_DEVIATIONS = 6  # robust standard deviations of the logarithm of the rate; and
LEAST_RATE_RATIO = 1.5  # at least this many times as fast or slow as the median


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and the clips that have it."""

    name: str  # for the picture
    ids: list[str]  # worst first
    warning: str  # a line, empty where no clip has the fault


def find_faults(clips: Sequence[Recording], sampling_rate: int, metadata: Path) -> list[Fault]:
    """The five kinds, always in the same order, of one clip or more."""
    return [
        _silences(clips, sampling_rate),
        _unusual_rates(clips, sampling_rate, metadata),
        _clipping(clips, sampling_rate),
        _dropped(clips, metadata),
        _duplicates(clips),
    ]


def symbol_rates(clips: Sequence[Recording], sampling_rate: int) -> np.ndarray:
    """Symbols a second of each clip; silence before and after speech does not count."""
    return np.array([clip.num_symbols * sampling_rate / clip.speech_samples for clip in clips])


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


def _fault(name: str, what: str, notes: dict[str, str], total: int, advice: str) -> Fault:
    """`notes` says of every faulty clip, by id and worst first, how bad it is."""
    if not notes:
        return Fault(name, [], "")
    shown, more = list(notes.values())[:WORST_SHOWN], len(notes) - WORST_SHOWN
    rest = f" and {more:,} more" if more > 0 else ""
    listed = "; ".join(shown) + rest
    warning = f"warning: {what} in {len(notes):,} of {total:,} clips: {listed}. {advice}"
    return Fault(name, list(notes), warning)


def _silences(clips: Sequence[Recording], sampling_rate: int) -> Fault:
    limit = LONGEST_SILENCE * sampling_rate

    def longer(clip: Recording) -> int:
        return max(clip.silence_before, clip.silence_after)

    notes = {
        clip.id: f"{clip.id} ({clip.silence_before / sampling_rate:.2f} s before, "
        f"{clip.silence_after / sampling_rate:.2f} s after)"
        for clip in sorted(clips, key=longer, reverse=True)
        if longer(clip) > limit
    }
    return _fault(
        f"silence over {LONGEST_SILENCE:g} s",
        f"silence over {LONGEST_SILENCE:g} s before or after speech",
        notes,
        len(clips),
        "There is nothing to read there, so the alignment forms later and the end of speech is "
        "learnt badly: cut it off with --trim-silence DIR",
    )


def _unusual_rates(clips: Sequence[Recording], sampling_rate: int, metadata: Path) -> Fault:
    rates = symbol_rates(clips, sampling_rate)
    low, median, high = usual_rates(rates)
    furthest_first = np.argsort(-np.abs(np.log(rates / median)), kind="stable")
    notes = {
        clips[i].id: f"{metadata.name}:{clips[i].line}: {clips[i].id} ({rates[i]:.1f})"
        for i in furthest_first
        if not low <= rates[i] <= high
    }
    return _fault(
        "unusual symbols a second",
        f"fewer than {low:.1f} or more than {high:.1f} symbols a second (the median is "
        f"{median:.1f})",
        notes,
        len(clips),
        "Where the text is not what is spoken, the alignment learns a wrong path: listen, then "
        "mend the text, cut the sound, or leave the clip out",
    )


def _clipping(clips: Sequence[Recording], sampling_rate: int) -> Fault:
    clipped = sorted(
        (clip for clip in clips if clip.clipped), key=lambda clip: clip.clipped, reverse=True
    )
    notes = {
        clip.id: f"{clip.id} ({clip.clipped:,} samples, {1000 * clip.clipped / sampling_rate:.1f} "
        "ms)"
        for clip in clipped
    }
    return _fault(
        "clipping",
        "clipping (three samples or more in a row at full scale)",
        notes,
        len(clips),
        "Clipping hides what tells one sound from another, so the alignment forms later, and the "
        "model learns to crackle: record at a lower level, restore the clip with a declipper, or "
        "leave it out",
    )


def _dropped(clips: Sequence[Recording], metadata: Path) -> Fault:
    affected = sorted(
        (clip for clip in clips if clip.dropped), key=lambda clip: len(clip.dropped), reverse=True
    )
    notes = {
        clip.id: f"{metadata.name}:{clip.line}: {' '.join(map(_shown, clip.dropped))}"
        for clip in affected
    }
    return _fault(
        "symbols dropped from texts",
        "characters or phones that the text cleaners drop",
        notes,
        len(clips),
        "Where it is spoken, the alignment finds no symbol for the sound: write it as words, or "
        "choose other text_cleaners by --hparams",
    )


def _shown(symbol: str) -> str:
    """What stands in a message: printable as it is, anything else escaped."""
    return repr(symbol) if symbol.isprintable() else ascii(symbol)


def _duplicates(clips: Sequence[Recording]) -> Fault:
    groups = defaultdict(list)
    for clip in clips:
        groups[clip.checksum].append(clip)
    repeated = [group for group in groups.values() if len(group) > 1]

    def texts(group: list[Recording]) -> int:
        return len({clip.text for clip in group})

    repeated.sort(key=lambda group: (texts(group), len(group)), reverse=True)
    notes = {}
    for group in repeated:
        first, *others = group
        for clip in others:
            where = "another text" if clip.text != first.text else "the same text"
            notes[clip.id] = f"{clip.id} (that of {first.id}, {where})"
    return _fault(
        "the same sound again",
        "the sound of another clip",
        notes,
        len(clips),
        "Under two texts it teaches that they sound alike, and a copy in the validation set makes "
        "its loss too good: keep the clip with the right text, take the others out",
    )
