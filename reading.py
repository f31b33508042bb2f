"""From a text to what is spoken of it, for a checkpoint and for a voice without torch."""

from errors import UserError
from hparams import HParams
from text import can_be_spoken, text_to_sequence
from text.splitting import Ending, split_sequence

LONGEST_TEXT = 20_000  # characters, some 20 minutes of speech, which are in memory together
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
