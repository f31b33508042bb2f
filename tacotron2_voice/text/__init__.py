"""Convert text to the model's input ids and back.

    text_to_sequence("Turn left on {HH AW1 S S T AH0 N} Street.", ["english_cleaners"])

The English symbols, the cleaning and the handling of braces are those of NVIDIA/tacotron2, so that
its checkpoints read texts as in their training. Other tables of symbols: tacotron2_voice/text/symbols.py.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from tacotron2_voice.text.cleaners import clean_pieces, to_ascii
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable, symbols

__all__ = [
    "ENGLISH",
    "IPA_SPAN",
    "PHONES",
    "SymbolTable",
    "at_columns",
    "can_be_spoken",
    "clean",
    "columns_of",
    "in_words",
    "nearest",
    "one_character_each",
    "sequence_to_text",
    "symbols",
    "text_to_sequence",
    "unknown_symbols",
]

PHONES = "phones"  # the cleaner that writes a text in the International Phonetic Alphabet
_ARPABET_SPAN = re.compile(r"\{(.+?)\}")
IPA_SPAN = re.compile(r"(?<!\w)/(\S(?:[^/\n]*\S)?)/(?!\w)")


def clean(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[str]:
    """Clean a text and return its symbols in Unicode's form NFC, also those that `table` lacks.

    `{HH AH0 L OW1}` stands for phones of the ARPAbet, if the table has them, and `/hɛlˈoʊ/` for
    the phones in it, if the cleaners make phones. The text around them is cleaned piece by piece.
    Two quirks of NVIDIA's code are kept: in English an underscore becomes the padding, and a phone
    span in the first line drops all further lines, so pass single lines. Errors as `clean_pieces`.
    """
    text, by_hand = unicodedata.normalize("NFC", text), None
    if PHONES in cleaner_names:
        by_hand = IPA_SPAN
    elif table.has_phones:
        by_hand = _ARPABET_SPAN
    pieces = [text]
    if by_hand is not None:  # text, phones, text, phones, …, text
        pieces = by_hand.split(text.partition("\n")[0] if by_hand is _ARPABET_SPAN else text)
        pieces = [text] if len(pieces) == 1 else pieces
    pieces[::2] = clean_pieces(pieces[::2], cleaner_names, language)

    symbols: list[str] = []
    for i, piece in enumerate(pieces):
        composed = unicodedata.normalize("NFC", piece)
        in_braces = i % 2 and by_hand is _ARPABET_SPAN
        symbols += [f"@{x}" for x in piece.split()] if in_braces else composed
    return symbols


def text_to_sequence(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[int]:
    """Clean a text with `clean` and return its ids, each from 0 to len(table) - 1. Symbols that the
    table lacks are dropped; `unknown_symbols` names them. Errors as `clean`."""
    cleaned = clean(text, cleaner_names, table, language)
    return [table.ids[symbol] for symbol in cleaned if symbol in table.ids]


def unknown_symbols(cleaned: Iterable[str], table: SymbolTable) -> list[str]:
    """The symbols that `table` lacks, in the order of the text, each once."""
    return [symbol for symbol in dict.fromkeys(cleaned) if symbol not in table.ids]


def nearest(symbol: str, table: SymbolTable) -> str:
    """Suggest a replacement from `table` for a symbol that it lacks: the same letter with another
    accent or case, or unidecode's transliteration. Empty if there is none."""
    plain = _plain(symbol)
    known = [x for x in table.ids if plain and len(x) == 1 and _plain(x) == plain]
    if known:  # the same letter in another case first, then the fewest accents
        folded, marks = symbol.casefold(), lambda x: len(unicodedata.normalize("NFD", x))
        return min(known, key=lambda x: (x.casefold() != folded, marks(x)))
    ascii_form = to_ascii(symbol).strip()
    for written in (ascii_form, ascii_form.lower()):
        if written and all(x in table.ids for x in written):
            return written
    return ""


def in_words(
    unknown: Iterable[str],
    table: SymbolTable,
    text: str,
    cleaner_names: Sequence[str],
    language: str = "",
) -> str:
    """Describe unknown symbols of a text: columns, code points and the nearest known symbol."""
    descriptions = []
    for symbol in list(unknown)[:10]:
        near = nearest(symbol, table)
        points = " ".join(f"U+{ord(x):04X}" for x in symbol)
        about = f"({points}, {f'nearest: {near!r}' if near else 'nothing near'})"
        columns = columns_of(symbol, text, cleaner_names, table, language)
        descriptions.append(f"{symbol!r}{at_columns(columns)} {about}")
    return ", ".join(descriptions)


def columns_of(
    symbol: str,
    text: str,
    cleaner_names: Sequence[str],
    table: SymbolTable,
    language: str = "",
) -> list[int]:
    """The columns in a text, in characters from 1, of the characters that become `symbol`. If it
    takes a word to make it, as with phones, the column is the word's first."""

    def makes_it(part: str) -> bool:
        return symbol in clean(part, cleaner_names, table, language)

    if PHONES not in cleaner_names:
        makers = {x for x in set(text) if makes_it(x)}
        if makers:
            return [i for i, x in enumerate(text, 1) if x in makers]
    return [word.start() + 1 for word in re.finditer(r"\S+", text) if makes_it(word[0])]


def at_columns(columns: Sequence[int]) -> str:
    """Format columns, as in " at column 7"; empty for none."""
    if len(columns) < 2:
        return f" at column {columns[0]}" if columns else ""
    *first, last = columns if len(columns) < 6 else [*columns[:4], f"{len(columns) - 4:,} more"]
    return f" at columns {', '.join(map(str, first))} and {last}"


def _plain(symbol: str) -> str:
    """A letter without case and accents."""
    letters = [x for x in unicodedata.normalize("NFD", symbol) if unicodedata.category(x)[0] == "L"]
    return "".join(letters).casefold()


def can_be_spoken(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> bool:
    """Whether ids hold a letter, a phone, or a digit where the table has digits."""
    return not table.spoken_ids.isdisjoint(sequence)


def one_character_each(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> str:
    """Letters in lower case, "@" for phones of the ARPAbet and for marks that are written with a
    letter, such as vowel signs; other symbols as they are."""
    symbols = (table.symbols[i] for i in sequence)
    return "".join(
        "@" if len(x) > 1 or unicodedata.category(x)[0] == "M" else x.lower()[0] for x in symbols
    )


def sequence_to_text(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> str:
    """The text that ids from 0 to len(table) - 1 stand for: ARPAbet phones in braces, padding as
    "_"."""
    symbols = (table.symbols[int(i)] for i in sequence)
    text = "".join(f"{{{symbol[1:]}}}" if len(symbol) > 1 else symbol for symbol in symbols)
    return text.replace("}{", " ")
