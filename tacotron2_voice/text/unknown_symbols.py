"""Describe symbols of a text that a model does not have, for messages.

unknown = unknown_symbols(clean(text, cleaners, table), table)
in_words(unknown, table, text, cleaners)  # "'é' at column 7 (U+00E9, nearest: 'e')"
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from tacotron2_voice.text.cleaners import to_ascii
from tacotron2_voice.text.sequences import PHONES, clean
from tacotron2_voice.text.symbols import SymbolTable

MAX_DESCRIBED = 10  # symbols in a message
MAX_COLUMNS = 5  # most columns of a symbol that a message lists


def unknown_symbols(cleaned: Iterable[str], table: SymbolTable) -> list[str]:
    """Return the different symbols of a text that are not in `table`, in the order of the text."""
    return [symbol for symbol in dict.fromkeys(cleaned) if symbol not in table.ids]


def nearest(symbol: str, table: SymbolTable) -> str:
    """Return a replacement from `table` for an unknown symbol, or "".

    The replacement is the same letter with another accent or case, or unidecode's transliteration.
    """
    plain = _plain(symbol)
    same_letter = [x for x in table.ids if plain and len(x) == 1 and _plain(x) == plain]
    # prefer a letter that only differs in case, then the letter with the fewest accents
    if same_letter:
        folded = symbol.casefold()
        return min(
            same_letter,
            key=lambda x: (x.casefold() != folded, len(unicodedata.normalize("NFD", x))),
        )
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
    for symbol in list(unknown)[:MAX_DESCRIBED]:
        near = nearest(symbol, table)
        points = " ".join(f"U+{ord(x):04X}" for x in symbol)
        suggestion = f"nearest: {near!r}" if near else "nothing similar"
        columns = columns_of(symbol, text, cleaner_names, table, language)
        descriptions.append(f"{symbol!r}{at_columns(columns)} ({points}, {suggestion})")
    return ", ".join(descriptions)


def columns_of(
    symbol: str,
    text: str,
    cleaner_names: Sequence[str],
    table: SymbolTable,
    language: str = "",
) -> list[int]:
    """Return the columns of a text, from 1, whose characters become `symbol`.

    If a whole word produces the symbol, such as a phone, the column is the first column of the
    word.
    """

    def makes_symbol(part: str) -> bool:
        return symbol in clean(part, cleaner_names, table, language)

    if PHONES not in cleaner_names:
        characters = {x for x in set(text) if makes_symbol(x)}
        if characters:
            return [i for i, x in enumerate(text, 1) if x in characters]
    return [word.start() + 1 for word in re.finditer(r"\S+", text) if makes_symbol(word[0])]


def at_columns(columns: Sequence[int]) -> str:
    """Format columns, such as " at column 7" and " at column 7, 9, ..."; "" without columns."""
    if not columns:
        return ""
    shown = ", ".join(map(str, columns[:MAX_COLUMNS]))
    more = ", ..." if len(columns) > MAX_COLUMNS else ""
    return f" at column {shown}{more}"


def _plain(symbol: str) -> str:
    """Return a letter without case and accents; "" for other symbols."""
    letters = [x for x in unicodedata.normalize("NFD", symbol) if unicodedata.category(x)[0] == "L"]
    return "".join(letters).casefold()
