"""Warnings about faults of a corpus that keep the alignment from forming (docs/own-data.md)."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hparams import HParams
from text import at_columns, clean, columns_of, symbols, text_to_sequence, unknown_symbols
from text.tags import without_pauses

if TYPE_CHECKING:  # the page with a voice starts without torch
    from corpus.clip_table import Clip

MAX_SILENCE_SECONDS = 0.3  # seconds before or after speech
WORST_SHOWN = 5
CONTEXT = 40  # characters on either side that decide how a character is read
# Never spoken, so they may be dropped silently: dashes, brackets and quotation marks; spaces and
# invisible characters; accents written after their letter.
_UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}
UNSPOKEN = {"english_cleaners_corrected": '"/'}  # it reads "and/or" as two words


def fault_warnings(clips: "Sequence[Clip]", hparams: HParams) -> list[str]:
    """One warning for each kind of fault that clips have, in a fixed order."""
    rate = hparams.sampling_rate
    silences = [max(clip.sound.silence_before, clip.sound.silence_after) for clip in clips]
    rates = symbol_rates(clips, rate)
    low, median, high = usual_rates(rates)
    english = hparams.table.is_english  # others refuse what they lack, or drop it if told so
    dropped = [dropped_symbols(clip.text, hparams) if english else {} for clip in clips]
    clipped = [clip.sound.clipped for clip in clips]
    lines = [Path(clip.where).name for clip in clips]

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
            f"fewer than {low:.1f} or more than {high:.1f} symbols per second (the median is "
            f"{median:.1f})",
            "Listen, then correct the text, cut the sound, or leave the clip out",
            [
                f"{lines[i]}: {clips[i].id} ({rates[i]:.1f})"
                for i in _worst(np.abs(np.log(rates / median)), np.log(high / median))
            ],
        ),
        (
            "clipping (three samples or more in a row at full scale)",
            "Record at a lower level, restore the clip with a declipper, or leave it out",
            [
                f"{clips[i].id} ({clipped[i]:,} samples, {1000 * clipped[i] / rate:.1f} ms)"
                for i in _worst(clipped, 0)
            ],
        ),
        (
            "characters or phones that the text cleaners drop, by their columns in the text,",
            "Write them as words, or choose other text_cleaners by --hparams",
            [f"{lines[i]}: {_with_columns(dropped[i])}" for i in _worst([*map(len, dropped)], 0)],
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
            warnings.append(f"warning: {summary}. {advice} (docs/own-data.md)")
    return warnings


def symbol_rates(clips: "Sequence[Clip]", sampling_rate: int) -> np.ndarray:
    """Symbols per second of each clip; silence before and after speech does not count."""
    return np.array([len(c.symbols) * sampling_rate / c.sound.speech_samples for c in clips])


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


def _duplicates(clips: "Sequence[Clip]") -> list[str]:
    first: dict[int, Clip] = {}
    pairs = [(clip, first.setdefault(clip.sound.checksum, clip)) for clip in clips]
    notes: dict[str, list[str]] = {"another": [], "the same": []}  # worst first
    for clip, before in pairs:
        if clip is not before:
            text = "the same" if clip.text == before.text else "another"
            notes[text].append(f"{clip.id} (that of {before.id}, {text} text)")
    return notes["another"] + notes["the same"]


def left_out(text: str, hparams: HParams) -> list[str]:
    """A warning for synthesis if the text has `dropped_symbols`; pauses do not count."""
    dropped = dropped_symbols(without_pauses(text), hparams)
    reason = "left out, because the model has no symbol for it: "
    return [reason + _with_columns(dropped)] if dropped else []


def _with_columns(dropped: dict[str, list[int]]) -> str:
    return ", ".join(f"{symbol!r}{at_columns(columns)}" for symbol, columns in dropped.items())


def dropped_symbols(text: str, hparams: HParams) -> dict[str, list[int]]:
    """Find what of `text` never reaches the model: {symbol: its columns}, in the order of the text.
    Columns count characters from 1.

    With a table that is not English these are symbols that the table lacks. In English they are
    characters whose removal leaves the symbols unchanged, spaces apart ("$", unless an amount
    follows), and phones in braces that are not in the ARPAbet. Quotation marks, brackets and dashes
    never count: LJSpeech has hundreds, and nobody speaks them."""
    cleaners, table, language = hparams.text_cleaners, hparams.table, hparams.language
    if not table.is_english:
        unknown = unknown_symbols(clean(text, cleaners, table, language), table)
        return {x: columns_of(x, text, cleaners, table, language) for x in unknown}

    def letters(text: str) -> list[int]:  # without spaces, which may replace what is dropped
        return [i for i in text_to_sequence(text, cleaners) if symbols[i] != " "]

    def is_silent(column: int) -> bool:  # where it is: "#5" is read, and "a # b" is not
        start = max(0, column - 1 - CONTEXT)
        before, after = text[start : column - 1], text[column : column + CONTEXT]
        return letters(before + text[column - 1] + after) == letters(f"{before} {after}")

    whole, dropped = letters(text), {}
    for character in dict.fromkeys(text):
        if character in symbols or character in UNSPOKEN.get(cleaners[-1], '"'):
            continue
        if unicodedata.category(character) in _UNSPOKEN_CATEGORIES or letters(character):
            continue
        columns = [i for i, x in enumerate(text, 1) if x == character]
        if whole != letters(text.replace(character, " ")):
            columns = [column for column in columns if is_silent(column)]
        if columns:
            dropped[character] = columns
    for span in re.finditer(r"\{(.+?)\}", text):
        for phone in re.finditer(r"\S+", span[1]):
            if f"@{phone[0]}" not in symbols:
                dropped.setdefault(phone[0], []).append(span.start(1) + phone.start() + 1)
    return dropped
