"""Expand English abbreviations and numerals next to ARPAbet phones as if the phones were a name.

    read_around_phones("Dr. {W IH1 N} II came.", ["english_cleaners_corrected"], ENGLISH)
    # "doctor {W IH1 N} two came."

The cleaners only receive the text between spans of phones. If no name follows the title "Dr.", the
cleaners treat the full stop of the title as the end of a sentence.
"""

import re
from collections.abc import Sequence

from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.sequences import ARPABET_SPAN
from tacotron2_voice.text.symbols import SymbolTable

CORRECTED = "english_cleaners_corrected"
# Beginning of the placeholders for spans of phones. A placeholder looks like a name, but occurs in
# no real text. The last letter of each placeholder is different.
NAME = "Vuzqonal"
ROMAN_NUMERAL = re.compile(r"\b[IVXLC]+\b")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read_around_phones(text: str, cleaner_names: Sequence[str], table: SymbolTable) -> str:
    """Convert the abbreviations and numerals next to ARPAbet phones in a text to words.

    A text without phones is not changed. The returned text must still be cleaned like any other
    text. The cleaning does not change the words that this function writes, because the rules for
    English do not change words in lower case.
    """
    spans = [*ARPABET_SPAN.finditer(text)]
    between = ARPABET_SPAN.sub("", text)
    has_rules = CORRECTED in cleaner_names and table.has_phones
    if not spans or len(spans) > len(LETTERS) or not has_rules:
        return text
    names = [f"{NAME}{letter}" for letter, _ in zip(LETTERS, spans, strict=False)]
    # If the text is in capitals, write the placeholder in capitals too. Otherwise, the text would
    # not be recognized as a text in capitals.
    is_capitals = ROMAN_NUMERAL.sub("", between).isupper()
    written = iter([name.upper() for name in names] if is_capitals else names)
    read = read_english(ARPABET_SPAN.sub(lambda span: next(written), text))
    for name, span in zip(names, spans, strict=True):
        before, *after = re.split(name, read, flags=re.IGNORECASE)
        if len(after) != 1:
            return text
        read = f"{before}{span[0]}{after[0]}"
    return read
