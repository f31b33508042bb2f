"""Characters and phones of a text that vanish before the model reads it."""

import re
import unicodedata
from functools import lru_cache

from text import symbols, text_to_sequence

_ARPABET_SPAN = re.compile(r"\{(.+?)\}")
_SYMBOLS = set(symbols)
_SPACE_ID = symbols.index(" ")
# Nobody speaks them: dashes, brackets and quotation marks; spaces and invisible characters;
# accents written after their letter. Any of them may vanish.
_UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}


def dropped_symbols(text: str, cleaner_names: tuple[str, ...]) -> list[str]:
    """What of `text` reaches the model in no form, in the order of the text, each once.

    A character counts as dropped where the symbols stay the same, spaces apart, when it is
    replaced by a space: "%" is dropped by english_cleaners and becomes "percent" by
    english_cleaners_corrected; "$" is dropped unless an amount follows. Quotation marks, brackets
    and dashes never count: LJSpeech has hundreds, and nobody speaks them. Of `{HH AH0}` the phones
    count that are none of the ARPAbet.
    """
    found = []
    for character in dict.fromkeys(text):
        if character in _SYMBOLS or not _is_spoken(character):
            continue
        if _speaks_alone(character, cleaner_names):
            continue
        without = text.replace(character, " ")
        if _letters(text, cleaner_names) == _letters(without, cleaner_names):
            found.append(character)
    for span in _ARPABET_SPAN.findall(text):
        found += [phone for phone in span.split() if f"@{phone}" not in _SYMBOLS]
    return list(dict.fromkeys(found))


def _is_spoken(character: str) -> bool:
    return character != '"' and unicodedata.category(character) not in _UNSPOKEN_CATEGORIES


@lru_cache(maxsize=65536)
def _speaks_alone(character: str, cleaner_names: tuple[str, ...]) -> bool:
    return bool(_letters(character, cleaner_names))


def _letters(text: str, cleaner_names: tuple[str, ...]) -> list[int]:
    """The symbols of a text without spaces, which may take the place of what is dropped."""
    return [number for number in text_to_sequence(text, cleaner_names) if number != _SPACE_ID]
