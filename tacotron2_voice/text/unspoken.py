"""Find the characters of a text that do not reach the model, because it has no symbol for them.

left_out("A * dog.", ["english_cleaners"])
# ["left out, because the model has no symbol for it: '*' at column 3"]
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from tacotron2_voice.text.sequences import IPA_SPAN, PHONES, clean, text_to_sequence
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable, symbols
from tacotron2_voice.text.tags import without_tags
from tacotron2_voice.text.unknown_symbols import at_columns, columns_of, unknown_symbols

MAX_SHOWN = 20  # most characters of a text to check; each check takes as long as cleaning the text
# Characters that are not spoken: dashes, brackets, quotation marks, spaces, invisible characters,
# and accents that are written after their letter.
UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}
UNSPOKEN = {"english_cleaners_corrected": '"/'}  # these cleaners read "and/or" as two words


def left_out(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[str]:
    """Return a list with a warning about the dropped characters of a text, or []. Tags are ignored."""
    dropped = dropped_symbols(without_tags(text), cleaner_names, table, language)
    reason = "the model has no symbol for it"
    if PHONES in cleaner_names:
        reason = "eSpeak NG has no phones for it, or the model has no symbol"
    return [f"left out, because {reason}: {with_columns(dropped)}"] if dropped else []


def _without_phones(text: str, language: str) -> dict[str, list[int]]:
    """Return the characters without phones, and their columns.

    Phones between slashes are ignored, and letters that only change other phones, such as the hard
    sign of Russian.
    """
    from tacotron2_voice.text.phones import is_silent, to_phones

    spans = [range(*span.span()) for span in IPA_SPAN.finditer(text)]
    dropped: dict[str, list[int]] = {}
    for character in dict.fromkeys(text):
        if len(dropped) > MAX_SHOWN:
            break
        if (character.isascii() and character.isalnum()) or not is_silent(character, language):
            continue
        if character.isalpha():
            with_it, without = to_phones([text, text.replace(character, "")], language)
            if with_it != without:
                continue
        places = [i for i, x in enumerate(text) if x == character]
        if columns := [i + 1 for i in places if not any(i in span for span in spans)]:
            dropped[character] = columns
    return dropped


def with_columns(dropped: Mapping[str, list[int]]) -> str:
    """Return characters and columns for a message, such as "'*' at column 3"."""
    named = [f"{symbol!r}{at_columns(columns)}" for symbol, columns in dropped.items()]
    return ", ".join(named[:MAX_SHOWN]) + ", and others" * (len(named) > MAX_SHOWN)


def dropped_symbols(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> dict[str, list[int]]:
    """Return the characters of `text` that do not reach the model, and their columns, from 1.

    The result has at most MAX_SHOWN + 1 characters, in the order of the text, because a text in
    another script has thousands. Quotation marks, brackets and dashes never count: LJSpeech has
    hundreds of them, and they are not spoken. These characters count:

    - with a table that is not English: characters without a symbol;
    - in English: characters whose removal only changes spaces between symbols ("$", unless an amount follows), and phones in braces that are not in the ARPAbet;
    - if texts become phones: letters, numbers and signs without phones too ("€" in Russian).
    """
    if not table.is_english:
        unknown = unknown_symbols(clean(text, cleaner_names, table, language), table)
        unknown = unknown[: MAX_SHOWN + 1]
        lacking = {x: columns_of(x, text, cleaner_names, table, language) for x in unknown}
        silent = _without_phones(text, language) if PHONES in cleaner_names else {}
        return lacking | silent

    def letters(part: str) -> list[int]:  # cleaning may replace a dropped character with a space
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
    for span in re.finditer(r"\{(.+?)\}", text):
        for phone in re.finditer(r"\S+", span[1]):
            if f"@{phone[0]}" not in symbols:
                dropped.setdefault(phone[0], []).append(span.start(1) + phone.start() + 1)
    return dropped
