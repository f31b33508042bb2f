"""Warnings about faults of a corpus that keep the alignment from forming (docs/own-data.md)."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from corpus.clip_table import Clip
from corpus.filelist import OTHER_LANGUAGE, foreign_letters
from hparams import HParams
from tacotron2_voice.text import PHONES, sequence_to_text
from tacotron2_voice.text.spoken_numbers import WORDS
from tacotron2_voice.text.unspoken import dropped_symbols, with_columns
from tacotron2_voice.utils.errors import in_place

MAX_SILENCE_SECONDS = 0.3  # seconds before or after speech
WORST_SHOWN = 5
MANUAL = "docs/own-data.md"
TAG = "</?[A-Za-z][A-Za-z0-9]*>"  # a tag of HTML, without attributes
MARKUP = re.compile(rf"&#[0-9]+;|&#x[0-9a-fA-F]+;|&[A-Za-z]{{2,8}};|{TAG}")
MIN_CLIPS, MIN_SPREAD = 20, 0.15  # in fewer, or in clips of one length, nothing correlates
MIN_CORRELATION, FITTING = 0.3, 0.8  # of the logarithms of seconds and symbols
SHIFTS = (-3, -2, -1, 1, 2, 3)  # lines by which texts may be shifted
MAX_FOREIGN_SHARE = 0.05  # of the texts; names and foreign words in English are fewer
# 15 % of the words of LJSpeech; in few other languages is any of them a word.
COMMON_WORDS = ("the", "and", "that", "with", "you", "this", "it", "they")
MIN_WORDS, MIN_COMMON_SHARE = 200, 0.02


def fault_warnings(clips: Sequence[Clip], hparams: HParams) -> list[str]:
    """One warning for each kind of fault that clips have, in a fixed order."""
    rate = hparams.sampling_rate
    silences = [max(clip.sound.silence_before, clip.sound.silence_after) for clip in clips]
    rates = comparable_rates(clips, rate)
    low, median, high = usual_rates(rates)
    usual = f"fewer than {low:.1f} or more than {high:.1f} symbols per second (the median is "
    usual += f"{median:.1f})"
    if have_several_speakers(clips):
        usual = f"fewer than {low:.1f} or more than {high:.1f} times the symbols per second that "
        usual += "are their speaker's median"
    # Other tables refuse what they lack, or drop it if told so; but eSpeak drops without a word.
    may_drop = hparams.table.is_english or PHONES in hparams.text_cleaners
    facts = hparams.text_cleaners, hparams.table, hparams.language
    dropped = [dropped_symbols(clip.text, *facts) if may_drop else {} for clip in clips]
    clipped = [clip.sound.clipped for clip in clips]
    lines = [Path(clip.where).name for clip in clips]
    marks = [MARKUP.findall(clip.text) for clip in clips]

    faults = [  # what is wrong, what to do, and a note on each clip that has it, worst first
        (
            f"silence over {MAX_SILENCE_SECONDS:g} s before or after speech",
            "Trim it with --trim-silence DIR",
            [
                f"{clips[i].id} ({clips[i].sound.silence_before / rate:.2f} s before, "
                f"{clips[i].sound.silence_after / rate:.2f} s after)"
                for i in _worst(silences, MAX_SILENCE_SECONDS * rate)
            ],
        ),
        (
            usual,
            "Listen, then correct the text, cut the sound, or leave the clip out",
            [
                f"{lines[i]}: {clips[i].id} ({rates[i]:.1f})"
                for i in _worst(np.abs(np.log(rates / median)), np.log(high / median))
            ],
        ),
        (
            "clipping (three samples or more in a row at full scale, or often at the clip's peak)",
            "Record at a lower level, restore the clip with a declipper, or leave it out",
            [
                f"{clips[i].id} ({clipped[i]:,} samples, {1000 * clipped[i] / rate:.1f} ms)"
                for i in _worst(clipped, 0)
            ],
        ),
        (
            "characters or phones that the text cleaners drop, by their columns in the text,",
            "Write them as words, or choose other text_cleaners by --hparams",
            [f"{lines[i]}: {with_columns(dropped[i])}" for i in _worst([*map(len, dropped)], 0)],
        ),
        (
            "codes or tags of HTML, which are read letter by letter,",
            f"Write characters ({MANUAL}) by: {_without_html(clips)}" if any(marks) else "",
            [f"{lines[i]}: {' '.join(marks[i])}" for i in _worst([*map(len, marks)], 0)],
        ),
        (
            "the sound of another clip",
            "Keep the clip with the right text, remove the others",
            _duplicates(clips),
        ),
    ]
    warnings = []
    for what, advice, notes in faults:
        more = len(notes) - WORST_SHOWN
        listed = "; ".join(notes[:WORST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        summary = f"{what} in {len(notes):,} of {len(clips):,} clips: {listed}"
        if notes:
            more_on_it = "" if MANUAL in advice else f" ({MANUAL})"  # a command is the end
            warnings.append(f"warning: {summary}. {advice}{more_on_it}")
    return warnings


def _without_html(clips: Sequence[Clip]) -> str:
    """The shell's command that writes the characters in place of codes, and leaves out tags, in the
    file that the clips' texts are from."""
    tags = f"re.sub(r'{TAG}', '', html.unescape(sys.stdin.read()))"
    program = f"import html, re, sys; sys.stdout.write({tags})"
    return in_place(clips[0].where.rpartition(":")[0], f'python -X utf8 -c "{program}"')


def other_language(clips: Sequence[Clip], hparams: HParams) -> str | None:
    """A warning if texts that are read as English seem to be in another language, by their letters
    or words; a notice of letters that become others."""
    if not hparams.table.is_english:
        return None
    letters = [foreign_letters(clip.text) for clip in clips]
    indices = [i for i, x in enumerate(letters) if x]
    counts = Counter(letter for x in letters for letter in x)
    commonest = ", ".join(sorted(counts, key=lambda x: (-counts[x], x))[:WORST_SHOWN])
    example = clips[indices[0] if indices else 0]
    becomes = f"{example.text[:40]!r} becomes {sequence_to_text(example.symbols)[:60]!r}"
    have = f"{len(indices):,} of {len(clips):,} texts have letters that English lacks ({commonest})"
    texts = (re.findall("[a-z']+", clip.text.lower()) for clip in clips)
    words = Counter(word for text in texts for word in text if word not in WORDS)
    num_common = sum(words[word] for word in COMMON_WORDS)
    if len(indices) > MAX_FOREIGN_SHARE * len(clips):
        what = f"{have}, and"
    elif words.total() >= MIN_WORDS and num_common < MIN_COMMON_SHARE * words.total():
        what = f"only {num_common:,} of {words.total():,} words are {', '.join(COMMON_WORDS)}, "
        what += "of which English has many, and texts"
    else:
        return f"Notice: {have}, which are replaced: {becomes}" if indices else None
    return (
        f"warning: {what} are read as English: {becomes}. If they are in another language, prepare "
        f"with {OTHER_LANGUAGE}"
    )


def texts_of_other_clips(clips: Sequence[Clip]) -> str | None:
    """A warning if long clips have no longer texts than short ones: metadata.csv may have lost a
    line, or have texts that are none. In LJSpeech the correlation is 0.97, and 0.15 at most if the
    texts are shifted by some lines."""
    seconds = np.log([clip.sound.speech_samples for clip in clips])
    symbols = np.log([len(clip.symbols) for clip in clips])
    if len(clips) < MIN_CLIPS or seconds.std() < MIN_SPREAD:
        return None
    if (correlation := _correlation(seconds, symbols)) >= MIN_CORRELATION:
        return None
    fits = {shift: _correlation(seconds, np.roll(symbols, shift)) for shift in SHIFTS}
    best = max(fits, key=lambda shift: fits[shift])
    moved = f"{abs(best)} line{'s' * (abs(best) > 1)} {'down' if best > 0 else 'up'}"
    fit = f". Moved {moved}, the texts fit ({fits[best]:.2f})"
    return (
        f"warning: long clips have no longer texts than short ones (correlation {correlation:.2f}, "
        f"0.97 in LJSpeech): texts of other clips cannot be learnt"
        f"{fit if fits[best] >= FITTING else ''}. Listen to some, such as {clips[0].id}: "
        f"{clips[0].text[:60]!r} (docs/own-data.md)"
    )


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; 0 where one of them is constant."""
    if not (deviations := one.std() * other.std()):
        return 0.0
    return float(np.mean((one - one.mean()) * (other - other.mean())) / deviations)


def symbol_rates(clips: Sequence[Clip], sampling_rate: int) -> np.ndarray:
    """Symbols per second of each clip; silence before and after speech does not count."""
    return np.array([len(c.symbols) * sampling_rate / c.sound.speech_samples for c in clips])


def have_several_speakers(clips: Sequence[Clip]) -> bool:
    return len({clip.speaker for clip in clips}) > 1


def comparable_rates(clips: Sequence[Clip], sampling_rate: int) -> np.ndarray:
    """The symbol rates of clips [N]; of several speakers, each over its speaker's median: a slow
    speaker's clips are no faults."""
    rates = symbol_rates(clips, sampling_rate)
    if not have_several_speakers(clips):
        return rates
    names, numbers = np.unique([clip.speaker for clip in clips], return_inverse=True)
    medians = np.array([np.median(rates[numbers == i]) for i in range(len(names))])
    return rates / medians[numbers]


def usual_rates(rates: np.ndarray) -> tuple[float, float, float]:
    """Return the lowest usual rate, the median and the highest usual rate. A rate is unusual if it
    differs from the median by more than 6 robust standard deviations (of logarithms; 1.4826 times
    the median absolute deviation) and by more than half: two of LJSpeech's 13,100 clips."""
    logarithms = np.log(rates)
    middle = np.median(logarithms)
    deviation = 1.4826 * np.median(np.abs(logarithms - middle))
    furthest = max(6 * deviation, np.log(1.5))
    low, median, high = np.exp([middle - furthest, middle, middle + furthest])
    return float(low), float(median), float(high)


def _worst(badness: Sequence[float] | np.ndarray, limit: float) -> list[int]:
    """Indices of the values above the limit, worst first."""
    order = np.argsort(-np.asarray(badness), kind="stable")
    return [i for i in order.tolist() if badness[i] > limit]


def _duplicates(clips: Sequence[Clip]) -> list[str]:
    first: dict[int, Clip] = {}
    pairs = [(clip, first.setdefault(clip.sound.checksum, clip)) for clip in clips]
    notes: dict[str, list[str]] = {"another": [], "the same": []}  # worst first
    for clip, before in pairs:
        if clip is not before:
            text = "the same" if clip.text == before.text else "another"
            notes[text].append(f"{clip.id} (that of {before.id}, {text} text)")
    return notes["another"] + notes["the same"]
