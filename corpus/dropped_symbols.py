"""Characters and phones of a text that vanish before the model reads it."""

import re
import unicodedata
from collections.abc import Sequence

from text import symbols, text_to_sequence

_ARPABET_SPAN = re.compile(r"\{(.+?)\}")
# Nobody speaks them: dashes, brackets and quotation marks; spaces and invisible characters;
# accents written after their letter. Any of them may vanish.
_UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}


def dropped_symbols(text: str, cleaner_names: Sequence[str]) -> list[str]:
    """What of `text` reaches the model in no form, in the order of the text, each once.

    A character counts as dropped where the symbols stay the same, spaces apart, when it is
    replaced by a space: "%" is dropped by english_cleaners and becomes "percent" by
    english_cleaners_corrected; "$" is dropped unless an amount follows. Quotation marks, brackets
    and dashes never count: LJSpeech has hundreds, and nobody speaks them. Of `{HH AH0}` those
    phones count that are not in the ARPAbet.
    """

    def letters(text: str) -> list[int]:  # spaces may take the place of what is dropped
        return [i for i in text_to_sequence(text, cleaner_names) if symbols[i] != " "]

    found = []
    for character in dict.fromkeys(text):
        if character in symbols or character == '"':
            continue
        if unicodedata.category(character) in _UNSPOKEN_CATEGORIES or letters(character):
            continue
        if letters(text) == letters(text.replace(character, " ")):
            found.append(character)
    for span in _ARPABET_SPAN.findall(text):
        found += [phone for phone in span.split() if f"@{phone}" not in symbols]
    return list(dict.fromkeys(found))
