"""Find the characters of a text for which the model has no symbols. These characters are dropped.

left_out("A * dog.", ["english_cleaners"])
# ["characters left out because the model has no symbols for them: '*' at column 3"]
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from tacotron2_voice.text.sequences import ARPABET_SPAN, IPA_SPAN, PHONES, clean, text_to_sequence
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable, symbols
from tacotron2_voice.text.tags import without_tags
from tacotron2_voice.text.unknown_symbols import (
    at_columns,
    columns_of,
    similar_phones,
    unknown_symbols,
)

# Maximum number of characters to report. This number is limited, because checking a single
# character takes as long as cleaning the whole text.
MAX_SHOWN = 20
# Unicode categories of characters that are not spoken: dashes, brackets, quotation marks, spaces,
# invisible characters and combining accents.
UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}
# Maps each cleaner to characters that are not spoken. For example, english_cleaners_corrected
# replaces the slash of "and/or" with a space.
UNSPOKEN = {"english_cleaners_corrected": '"/'}


def left_out(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[str]:
    """Return a list with one warning that lists the characters that are dropped from the text.

    The list is empty if no character is dropped. Tags are ignored.
    """
    dropped = dropped_symbols(without_tags(text), cleaner_names, table, language)
    reason = "the model has no symbols for them"
    if PHONES in cleaner_names:
        reason = "eSpeak NG has no phones for them, or the model has no symbols for them"
    return [f"characters left out because {reason}: {with_columns(dropped)}"] if dropped else []


def _without_phones(text: str, language: str) -> dict[str, list[int]]:
    """Return {character: column numbers} for the characters that have no phones.

    Characters between slashes are not included, because they are phones. Letters that only change
    the phones of other letters, such as the Russian hard sign, are not included either.
    """
    from tacotron2_voice.text.phones import is_silent, to_phones

    spans = [range(*span.span()) for span in IPA_SPAN.finditer(text)]
    dropped: dict[str, list[int]] = {}
    for character in dict.fromkeys(text):
        if len(dropped) > MAX_SHOWN:
            break
        if (character.isascii() and character.isalnum()) or not is_silent(character, language):
            continue
        if character.isalpha() or character == "−":  # Portuguese −5 has the phones of "menos"
            with_it, without = to_phones([text, text.replace(character, "")], language)
            if with_it != without:
                continue
        places = [i for i, x in enumerate(text) if x == character]
        if columns := [i + 1 for i in places if not any(i in span for span in spans)]:
            dropped[character] = columns
    return dropped


def with_columns(dropped: Mapping[str, list[int]]) -> str:
    """Format characters and their columns for a message, such as "'*' at column 3"."""
    named = [f"{symbol!r}{at_columns(columns)}" for symbol, columns in dropped.items()]
    return ", ".join(named[:MAX_SHOWN]) + ", and others" * (len(named) > MAX_SHOWN)


def dropped_symbols(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> dict[str, list[int]]:
    """Return {character: columns, counted from 1} for the characters that do not reach the model.

    Only the first MAX_SHOWN + 1 characters are returned, because a text in a different script may
    contain thousands of such characters. Quotation marks, brackets and dashes are not returned,
    because they are common and not spoken. The returned characters depend on the symbol table:

    - If the table is not the English table, characters that have no symbol are returned.
    - If the table is the English table, a character is returned if the text without this character
      has the same symbols, apart from spaces. An example is "$" without an amount. Phones in braces
      that are not in the ARPAbet are returned too.
    - If the cleaners convert texts to phones, the result also contains the letters, numbers and
      symbols that have no phones, such as "€" in Russian.
    """
    if not table.is_english:
        unknown = unknown_symbols(clean(text, cleaner_names, table, language), table)
        if PHONES in cleaner_names:  # do not report phones that are replaced with similar phones
            replaced = similar_phones(unknown, table)
            unknown = [symbol for symbol in unknown if symbol not in replaced]
        unknown = unknown[: MAX_SHOWN + 1]
        lacking = {x: columns_of(x, text, cleaner_names, table, language) for x in unknown}
        silent = _without_phones(text, language) if PHONES in cleaner_names else {}
        return lacking | silent

    # Ignore spaces, because a space may replace a dropped character.
    def letters(part: str) -> list[int]:
        return [i for i in text_to_sequence(part, cleaner_names) if symbols[i] != " "]

    whole = letters(text)
    dropped: dict[str, list[int]] = {}
    for character in dict.fromkeys(text):
        if len(dropped) > MAX_SHOWN:
            break
        if character in symbols or character in UNSPOKEN.get(cleaner_names[-1], '"'):
            continue
        if unicodedata.category(character) in UNSPOKEN_CATEGORIES or letters(character):
            continue
        if whole == letters(text.replace(character, " ")):
            dropped[character] = [i for i, x in enumerate(text, 1) if x == character]
    for span in ARPABET_SPAN.finditer(text):
        for phone in re.finditer(r"\S+", span[1]):
            if f"@{phone[0]}" not in symbols:
                dropped.setdefault(phone[0], []).append(span.start(1) + phone.start() + 1)
    return dropped
