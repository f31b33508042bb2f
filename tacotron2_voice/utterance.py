"""Makes a text ready to be spoken: the ids of its symbols, its pauses, its parts.

utterance = utterance_of("Wait. [pause 0.5] Now.", speaker.hparams)
speech = speaker.speak_text(utterance)
"""

from dataclasses import dataclass

from hparams import HParams
from tacotron2_voice.text import SymbolTable, can_be_spoken, clean, in_words, unknown_symbols
from tacotron2_voice.text.splitting import Ending, split_sequence
from tacotron2_voice.text.tags import Pause, split_tags
from tacotron2_voice.utils.errors import UserError

MAX_CHARACTERS = 20_000  # of a text: some 20 minutes of speech, which are in memory together
MAX_SYMBOLS = 40_000  # after cleaning, which makes sixteen of each "½"
MAX_PAUSES_SECONDS = 300.0  # of a text together, for they are in memory too
# Shares of `Synthesizer.mels`'s pause after the parts of a text, by what they end with.
PAUSES = {Ending.SENTENCE: 1.0, Ending.CLAUSE: 0.4, Ending.WORD: 0.0, Ending.INSIDE: 0.0}


@dataclass(frozen=True)
class Utterance:
    """A text that is ready to be spoken."""

    pieces: list[tuple[list[int], float | None]]  # ids of symbols, and seconds of silence after
    # them; None: what `Synthesizer.mels` gives their ending
    text: str = ""  # as it was given, to warn of what is left out

    def __len__(self) -> int:
        return sum(len(symbols) for symbols, _ in self.pieces)

    @property
    def pause_seconds(self) -> float:
        """Of the pauses that the text asks for."""
        return sum(seconds or 0 for _, seconds in self.pieces)


class NothingToSpeak(UserError):
    """A text of which cleaning leaves no letter, phone or digit, such as "* * *"."""

    def __init__(self, text: str):
        super().__init__(f"{_shortened(text)} leaves nothing to synthesize after cleaning")


class UnknownSymbols(UserError):
    """A text with `symbols` that the voice does not know."""

    def __init__(self, message: str, symbols: list[str]):
        super().__init__(message)
        self.symbols = symbols


def utterance_of(text: str, hparams: HParams, *, drop_unknown: bool = False) -> Utterance:
    """A text with pauses (tacotron2_voice/text/tags.py), ready to be spoken; UserError as `sequence_to_speak`, and
    for other tags."""
    _refuse_too_long(text)
    pieces: list[tuple[list[int], float | None]] = []
    for piece in split_tags(text):
        if isinstance(piece, Pause):
            symbols, before = pieces.pop() if pieces else ([], None)
            pieces.append((symbols, (before or 0) + piece.seconds))
        else:
            symbols = _symbols_of(piece, hparams, drop_unknown)
            if can_be_spoken(symbols, hparams.table):
                pieces.append((symbols, None))
    if not any(symbols for symbols, _ in pieces):
        raise NothingToSpeak(text)
    utterance = Utterance(pieces, text)
    for what, value, most in (
        ("symbols after cleaning", len(utterance), MAX_SYMBOLS),
        ("seconds of pauses", utterance.pause_seconds, MAX_PAUSES_SECONDS),
    ):
        if value > most:
            fix = "give it in several lines of --text-file"
            raise UserError(
                f"{_shortened(text)}: {value:,.9g} {what}, expected at most {most:,g}; {fix}"
            )
    return utterance


def sequence_to_speak(text: str, hparams: HParams, *, drop_unknown: bool = False) -> list[int]:
    """The ids of a text's symbols, tags unknown; UserError if they leave nothing to speak, or for
    symbols that the voice does not know, which are left out in English and with `drop_unknown`."""
    sequence = _symbols_of(text, hparams, drop_unknown)
    if not can_be_spoken(sequence, hparams.table):
        raise NothingToSpeak(text)
    return sequence


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _refuse_too_long(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        most = f"{len(text):,} characters, expected at most {MAX_CHARACTERS:,}"
        fix = "give its paragraphs as lines of --text-file"
        raise UserError(f"{_shortened(text)}: {most}; {fix}")


def _symbols_of(text: str, hparams: HParams, drop_unknown: bool) -> list[int]:
    _refuse_too_long(text)  # before cleaning, which takes long then
    table = hparams.table
    cleaned = clean(text, hparams.text_cleaners, table, hparams.language)
    unknown = unknown_symbols(cleaned, table)
    if unknown and not (table.is_english or drop_unknown):
        named = in_words(unknown, table, text, hparams.text_cleaners, hparams.language)
        fix = "write what it knows, or leave them out (--drop-unknown)"
        message = f"{_shortened(text)}: the voice does not know {named}; {fix}"
        raise UnknownSymbols(message, unknown)
    return [table.ids[symbol] for symbol in cleaned if symbol in table.ids]


def parts_of(
    utterance: Utterance, limit: float, table: SymbolTable, pause: float
) -> list[tuple[list[int], float]]:
    """The parts of a text, of at most `limit` symbols, and the seconds of silence after each."""
    parts: list[tuple[list[int], float]] = []
    for symbols, asked in utterance.pieces:
        for part in split_sequence(symbols, limit, table) if symbols else ():
            parts.append((symbols[part.start : part.end], pause * PAUSES[part.ending]))
        if asked is not None:
            parts = [*parts[:-1], (parts[-1][0], asked)] if symbols else [*parts, ([], asked)]
    if utterance.pieces[-1][1] is None:
        parts[-1] = (parts[-1][0], 0.0)  # nothing follows it
    return parts
