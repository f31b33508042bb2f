"""From a text to what is spoken of it, for a checkpoint and for a voice without torch."""

import re

import numpy as np

from errors import UserError
from hparams import HParams
from text import can_be_spoken, one_character_each, text_to_sequence
from text.splitting import Ending, split_sequence

LONGEST_TEXT = 20_000  # characters, some 20 minutes of speech, which are in memory together
LONGEST_JUMP_BACK = 4  # symbols; further back than this repeats words
FORMED = 0.3  # sharpness from which an alignment has formed; below, attention is blurred
PAUSE = 0.3  # seconds, after a sentence; PAUSES: shares of it after the parts of a text
PAUSES = {Ending.SENTENCE: 1.0, Ending.CLAUSE: 0.4, Ending.WORD: 0.0, Ending.INSIDE: 0.0}


def sequence_to_speak(text: str, hparams: HParams) -> list[int]:
    """The ids of a text's symbols; UserError if they leave nothing to speak."""
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if len(text) > LONGEST_TEXT:
        most = f"{len(text):,} characters, expected at most {LONGEST_TEXT:,}"
        raise UserError(f"{shown!r}: {most}; give its paragraphs as lines of --text-file")
    sequence = text_to_sequence(text, hparams.text_cleaners)
    if not can_be_spoken(sequence):
        raise UserError(f"{shown!r} leaves nothing to synthesize after cleaning")
    return sequence


def parts_to_speak(
    sequence: list[int], limit: float, pause: float, hparams: HParams
) -> list[tuple[list[int], int]]:
    """(ids, frames of silence that follow) of each part of at most `limit` symbols: `pause` seconds
    after a sentence, less after other endings (PAUSES), none at the end."""
    frames = round(pause * hparams.sampling_rate / hparams.hop_length)
    parts = split_sequence(sequence, limit)
    silent = [round(frames * PAUSES[part.ending]) for part in parts[:-1]]
    return [
        (sequence[part.start : part.end], after)
        for part, after in zip(parts, [*silent, 0], strict=True)
    ]


def alignment_warnings(alignment: np.ndarray, sequence: list[int]) -> list[str]:
    """What is broken in attention weights [steps, symbols] of these symbol ids: words blurred,
    missing or repeated. A word counts as reached from its middle on, for attention often skips
    silent letters at its end and the punctuation after it."""
    warnings = []
    sharpness = alignment.max(axis=1).mean()
    if sharpness < FORMED:
        warnings.append(
            f"alignment is blurred: sharpness {sharpness:.2f} is below {FORMED}; "
            "the model has not learnt to align yet, train longer"
        )
    focus = alignment.argmax(axis=1)  # the symbol attended most, at each step
    words = word_spans(sequence)
    reached = [start for start, end in words if focus.max() >= (start + end - 1) // 2]
    if len(reached) < len(words):
        warnings.append(
            f"words are missing at the end: attention reached word {len(reached)} of {len(words)} "
            f"(symbol {focus.max() + 1} of {alignment.shape[1]})"
        )
    jumps = focus[:-1] - focus[1:]
    if len(jumps) and jumps.max() > LONGEST_JUMP_BACK:
        warnings.append(
            f"attention jumps back {jumps.max()} symbols at step {jumps.argmax() + 1}: "
            "words may be repeated"
        )
    return warnings


def word_spans(sequence: list[int]) -> list[tuple[int, int]]:
    """(first, last + 1) of every word: letters, phones and apostrophes, none of these at first."""
    line = one_character_each(sequence)
    return [match.span() for match in re.finditer("[a-z@][a-z@']*", line)]
