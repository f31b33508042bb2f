"""Describe the symbols of a text that are not in the model's table, for messages.

unknown = unknown_symbols(clean(text, cleaners, table), table)
in_words(unknown, table, text, cleaners)  # "'é' at column 7 (U+00E9, nearest: 'e')"
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from tacotron2_voice.text.cleaners import to_ascii
from tacotron2_voice.text.sequences import PHONES, clean
from tacotron2_voice.text.symbols import SymbolTable

_LETTERS, _PUNCTUATION = ("Ll", "Lu", "Lo"), ("Pd", "Po")  # Unicode categories
# Phones with a similar sound, the most similar phone first. They have the same manner of articulation
# and a neighboring place of articulation, or differ only in voice or rounding (chart of the
# International Phonetic Alphabet).
SIMILAR_SOUNDS = {
    **{"r": "ɹɾʁ", "ɹ": "rɾʁ", "ʁ": "ɹrɣ", "ɾ": "rɹd", "ʀ": "ʁrɹ", "ɽ": "ɾrd"},
    **{"x": "χçhk", "χ": "xçhk", "ç": "xʃh", "ɣ": "xhɡ", "ɦ": "h", "ħ": "h", "h": "xɦ"},
    **{"ʋ": "vw", "w": "ʋv", "β": "vb", "ɸ": "f", "θ": "sf", "ð": "zd", "ɕ": "ʃs", "ʑ": "ʒz"},
    **{"ʂ": "ʃs", "ʐ": "ʒz", "ɲ": "n", "ŋ": "n", "ɳ": "n", "ʎ": "l", "ɬ": "l", "ɭ": "l", "ɫ": "l"},
    **{"ʈ": "t", "ɖ": "d", "c": "k", "ɟ": "ɡ", "q": "k", "ɢ": "ɡ", "ɡ": "g"},
    **{"y": "ʏiu", "ʏ": "yɪ", "ø": "œɜə", "œ": "øɜʌ", "ɵ": "øʌə", "ɜ": "əœø", "ɚ": "ɜə"},
    **{"ɨ": "ɪi", "ʉ": "uʊ", "ɯ": "uʊ", "ɤ": "ʌo", "ɘ": "əɪ", "ɒ": "ɔɑ", "æ": "aɛ", "ɐ": "ʌəa"},
    **{"ʌ": "ɐa", "ə": "ɐɜ", "ɪ": "i", "ʊ": "u", "ɛ": "e", "ɔ": "o", "ɑ": "a", "ᵻ": "ɪi"},
}
_STRESS = "ˈ"  # only tables of phones contain this symbol
MAX_DESCRIBED = 10  # maximum number of symbols to describe in a message
MAX_COLUMNS = 5  # maximum number of columns to list per symbol


def unknown_symbols(cleaned: Iterable[str], table: SymbolTable) -> list[str]:
    """Return the distinct symbols that are not in `table`, in the order in which they occur in the
    text."""
    return [symbol for symbol in dict.fromkeys(cleaned) if symbol not in table.ids]


def nearest(symbol: str, table: SymbolTable) -> str:
    """Return text that can replace an unknown symbol, or "" if no such text exists.

    The replacement is a phone with a similar sound if the table contains phones, the same letter
    with other accents or in a different case, or a transliteration by unidecode. All symbols of the
    replacement are in `table`.
    """
    if _STRESS in table.ids:
        for phone in SIMILAR_SOUNDS.get(symbol, ""):
            if phone in table.ids:
                return phone
    plain = _plain(symbol)
    same_letter = [x for x in table.ids if plain and len(x) == 1 and _plain(x) == plain]
    # Prefer a letter that differs only in case, and then the letter with the fewest accents.
    if same_letter:
        folded = symbol.casefold()
        return min(
            same_letter,
            key=lambda x: (
                x.casefold() != folded,
                len(unicodedata.normalize("NFD", x)),
                x.islower() != symbol.islower(),
            ),
        )
    ascii_form = to_ascii(symbol).strip()
    # Many models have symbols for capital letters that no training text contains.
    for written in sorted({ascii_form, ascii_form.lower()}, reverse=symbol.islower()):
        if written and all(x in table.ids for x in written):
            return written
    return ""


def similar_phones(unknown: Iterable[str], table: SymbolTable) -> dict[str, str]:
    """Return {unknown symbol: similar symbols} for the phones and punctuation marks in `unknown`.

    Symbols without a similar symbol in the table are left out.

    A small corpus lacks rare phones of its language, such as the Dutch ɲ, which is similar to n.
    """
    # Stress and length marks, which have the category Lm, are not replaced.
    phones = [x for x in unknown if unicodedata.category(x[0]) in (*_LETTERS, *_PUNCTUATION)]
    similar = {phone: nearest(phone, table) for phone in phones}
    return {phone: other for phone, other in similar.items() if other}


def in_words(
    unknown: Iterable[str],
    table: SymbolTable,
    text: str,
    cleaner_names: Sequence[str],
    language: str = "",
) -> str:
    """Describe unknown symbols with their columns, code points and nearest known symbols."""
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
    """Return the columns, counted from 1, of the characters in a text that become `symbol`.

    In some texts, no single character becomes `symbol`, but a whole word does, for example if the
    cleaners convert words to phones. In this case, return the columns at which such words begin.
    """

    def makes_symbol(part: str) -> bool:
        return symbol in clean(part, cleaner_names, table, language)

    if PHONES not in cleaner_names:
        characters = {x for x in set(text) if makes_symbol(x)}
        if characters:
            return [i for i, x in enumerate(text, 1) if x in characters]
    return [word.start() + 1 for word in re.finditer(r"\S+", text) if makes_symbol(word[0])]


def at_columns(columns: Sequence[int]) -> str:
    """Format columns, for example as " at column 7" or " at column 7, 9, ...". Return "" if there
    are no columns."""
    if not columns:
        return ""
    shown = ", ".join(map(str, columns[:MAX_COLUMNS]))
    more = ", ..." if len(columns) > MAX_COLUMNS else ""
    return f" at column {shown}{more}"


def _plain(symbol: str) -> str:
    """Return a letter in lower case without accents, or "" if the symbol is not a letter."""
    letters = [x for x in unicodedata.normalize("NFD", symbol) if unicodedata.category(x)[0] == "L"]
    return "".join(letters).casefold()
