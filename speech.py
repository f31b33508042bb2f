"""From a text to speech, the same for a checkpoint (speaking.py) and for a voice without torch
(voice.py): what is spoken of a text, its parts, warnings of what is wrong, sound and files."""

import math
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError
from files import write_atomically
from hparams import HParams
from progress import progress_bar
from text import (
    ENGLISH,
    SymbolTable,
    can_be_spoken,
    clean,
    in_words,
    one_character_each,
    sequence_to_text,
    unknown_symbols,
)
from text.splitting import Ending, TextPart, split_sequence
from waveform import SILENCE, GriffinLim, windowed, write_mel, write_wav

LONGEST_TEXT = 20_000  # characters, some 20 minutes of speech, which are in memory together
LONGEST_JUMP_BACK = 4  # symbols; further back than this repeats words
FORMED = 0.3  # sharpness from which an alignment has formed; below, attention is blurred
PAUSE = 0.3  # seconds, after a sentence; PAUSES: shares of it after the parts of a text
PAUSES = {Ending.SENTENCE: 1.0, Ending.CLAUSE: 0.4, Ending.WORD: 0.0, Ending.INSIDE: 0.0}
VOCODER_CONTEXT = 32  # frames on either side that a vocoder's sample may depend on

Vocoder = Callable[[np.ndarray], np.ndarray]  # from log-mel [n_mels, T] to sound [T * hop_length]
# Pieces of log-mel [n_mels, frames]; then the attention weights [steps, symbols], and whether the
# gate ended them.
Part = Generator[np.ndarray, None, tuple[np.ndarray, bool]]


@dataclass(frozen=True)
class Speech:
    mel: np.ndarray  # [n_mels, frames], float32
    alignments: list[np.ndarray]  # [steps, symbols] of each part
    warnings: list[str]  # what is wrong with it, empty if it looks well
    parts: str = ""  # into how many parts the text was split, and why; empty for one


class Speaker(ABC):
    """What speaks, of one text at a time. After `mels` has ended, `warnings`, `alignments` and
    `parts` are those of its text, as in `Speech`."""

    warnings: list[str]
    alignments: list[np.ndarray]
    parts: str
    vocoder: Vocoder | None = None  # in place of Griffin-Lim
    shows_progress = False

    def __init__(
        self, hparams: HParams, filters: np.ndarray, longest_text: int | None, epochs: int
    ):
        """`filters` as audio.mel_filters. Of the training: the longest text in symbols, None where
        it is not known, and the epochs, 0 where they are not."""
        self.hparams, self.longest_text, self.epochs = hparams, longest_text, epochs
        self.griffin_lim = GriffinLim(hparams, filters)

    @abstractmethod
    def speak_part(self, words: list[int], seed: int) -> Part:
        """Speak ids of symbols, with prenet dropout from `seed`."""

    def mels(
        self,
        sequence: list[int],
        seed: int = 0,
        max_symbols: int | None = None,
        pause: float = PAUSE,
    ) -> Iterator[np.ndarray]:
        """Log-mels [n_mels, frames] that follow one another, of a text in parts of at most
        `max_symbols` symbols (by default the longest training text's, if known), each as if it
        were alone. Silence joins them, so that Griffin-Lim smooths the joins: `pause` seconds after
        a sentence, less after other endings (PAUSES)."""
        h, self.warnings, self.alignments, self.parts = self.hparams, [], [], ""
        limit = max_symbols or self.longest_text or math.inf
        parts, silence = split_sequence(sequence, limit, h.table), 0
        if len(parts) > 1:
            self.parts = f"in {len(parts)} parts, to keep to {limit} symbols each"
        shown: Iterable[TextPart] = parts
        if self.shows_progress:
            shown = progress_bar("Speaking", len(parts), " parts", iterable=parts)
        for number, part in enumerate(shown, 1):
            if silence:
                yield np.full((h.n_mel_channels, silence), SILENCE, np.float32)
            words = sequence[part.start : part.end]
            alignment, ended = yield from self.speak_part(words, seed)
            found = alignment_warnings(alignment, words, h.table)
            if not ended:
                found.append(
                    f"no stop within {h.max_decoder_steps} steps, cut there: raise "
                    "max_decoder_steps, split the text with a lower --max-symbols, or train longer"
                )
            start = textwrap.shorten(sequence_to_text(words, h.table), 30, placeholder="...")
            where = f"part {number} of {len(parts)} ({start!r}): " if self.parts else ""
            self.warnings += [where + warning for warning in found]
            self.alignments.append(alignment)
            frames = round(pause * h.sampling_rate / h.hop_length)
            silence = round(frames * PAUSES[part.ending])

    def speak_text(self, sequence: list[int], *options: Any) -> Speech:
        """All that `mels` makes, with the same options."""
        mel = np.concatenate([*self.mels(sequence, *options)], axis=1)
        return Speech(mel, self.alignments, self.warnings, self.parts)

    def sound(self, mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Samples [N] in pieces, of log-mels [n_mels, frames] that follow one another."""
        if self.vocoder:
            return windowed(mels, self.vocoder, VOCODER_CONTEXT, self.hparams.hop_length)
        return self.griffin_lim.stream(mels)

    def write_speech(self, base: Path, speech: Speech, *, save_mel: bool = False) -> float:
        """Write `base`.wav, the alignment as `base`.png and, if asked, the mel as .npy. Returns the
        seconds of sound; UserError if a file cannot be written."""
        from pictures import draw_alignment

        samples, rate = np.concatenate([*self.sound([speech.mel])]), self.hparams.sampling_rate
        picture = draw_alignment(*speech.alignments)
        try:
            write_wav(base.with_suffix(".wav"), samples, rate)
            draw = lambda file: picture.savefig(file, format="png")  # noqa: E731
            write_atomically(base.with_suffix(".png"), draw)
            if save_mel:
                write_mel(base.with_suffix(".npy"), speech.mel)
        except OSError as error:
            raise UserError(
                f"the files {base}.* could not be written ({error}): make room, or choose another "
                "folder with -o; every file that is there is complete"
            ) from None
        return len(samples) / rate


def sequence_to_speak(text: str, hparams: HParams, *, drop_unknown: bool = False) -> list[int]:
    """The ids of a text's symbols; UserError if they leave nothing to speak, or for symbols that
    the voice does not know, which are left out in English and with `drop_unknown`."""
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if len(text) > LONGEST_TEXT:
        most = f"{len(text):,} characters, expected at most {LONGEST_TEXT:,}"
        raise UserError(f"{shown!r}: {most}; give its paragraphs as lines of --text-file")
    table = hparams.table
    cleaned = clean(text, hparams.text_cleaners, table, hparams.language)
    unknown = unknown_symbols(cleaned, table)
    if unknown and not (table.is_english or drop_unknown):
        named = in_words(unknown, table, text, hparams.text_cleaners, hparams.language)
        raise UserError(
            f"{shown!r}: the voice does not know {named}; write what it knows, or leave them out "
            "(--drop-unknown)"
        )
    sequence = [table.ids[symbol] for symbol in cleaned if symbol in table.ids]
    if not can_be_spoken(sequence, table):
        raise UserError(f"{shown!r} leaves nothing to synthesize after cleaning")
    return sequence


def alignment_warnings(
    alignment: np.ndarray, sequence: list[int], table: SymbolTable = ENGLISH
) -> list[str]:
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
    words = word_spans(sequence, table)
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


def word_spans(sequence: list[int], table: SymbolTable = ENGLISH) -> list[tuple[int, int]]:
    """(first, last + 1) of every word: letters, phones, digits where the table has them, and
    apostrophes, none of these at first."""
    line = one_character_each(sequence, table)
    return [match.span() for match in re.finditer(r"(?:[^\W_]|@)(?:[^\W_]|[@'])*", line)]
