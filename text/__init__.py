"""From text to the model's input ids and back.

    text_to_sequence("Turn left on {HH AW1 S S T AH0 N} Street.", ["english_cleaners"])

The symbols, the cleaning and the handling of braces are those of NVIDIA/tacotron2, so that its
checkpoints read a text as they were trained to.
"""

import re
from collections.abc import Iterable, Sequence

from text.cleaners import clean_pieces
from text.symbols import symbols

__all__ = ["can_be_spoken", "one_character_each", "sequence_to_text", "symbols", "text_to_sequence"]

_ARPABET_SPAN = re.compile(r"\{(.+?)\}")
_SYMBOL_IDS = {symbol: i for i, symbol in enumerate(symbols)}
_SPOKEN_IDS = {i for i, symbol in enumerate(symbols) if symbol[0] == "@" or symbol.isalpha()}


def text_to_sequence(text: str, cleaner_names: Sequence[str]) -> list[int]:
    """Ids, each from 0 to len(symbols) - 1, of a text; the empty list for an empty one.

    `{HH AH0 L OW1}` gives phones of the ARPAbet; the text around it is cleaned piece by piece.
    What has no symbol is dropped. Two quirks of NVIDIA's code are kept: an underscore becomes id 0,
    the padding's; and a phone span in the first line drops all further lines, so pass single lines.
    Errors as `clean_pieces`.
    """
    pieces = _ARPABET_SPAN.split(text.partition("\n")[0])  # text, phones, text, phones, …, text
    pieces = [text] if len(pieces) == 1 else pieces
    pieces[::2] = clean_pieces(pieces[::2], cleaner_names)

    sequence = []
    for i, piece in enumerate(pieces):
        candidates = piece if i % 2 == 0 else [f"@{phone}" for phone in piece.split()]
        sequence += [_SYMBOL_IDS[symbol] for symbol in candidates if symbol in _SYMBOL_IDS]
    return sequence


def can_be_spoken(sequence: Iterable[int]) -> bool:
    """Whether ids hold a letter or a phone."""
    return not _SPOKEN_IDS.isdisjoint(sequence)


def one_character_each(sequence: Iterable[int]) -> str:
    """Letters in lower case, "@" for every phone, other symbols as they are."""
    return "".join(symbols[i][0].lower() for i in sequence)


def sequence_to_text(sequence: Iterable[int]) -> str:
    """The text that ids from 0 to len(symbols) - 1 stand for: phones in braces, padding as "_"."""
    found = (symbols[int(i)] for i in sequence)
    text = "".join(f"{{{symbol[1:]}}}" if symbol[0] == "@" else symbol for symbol in found)
    return text.replace("}{", " ")
