"""What of a text a model is never given, because it has no symbol for it.

left_out("A * dog.", ["english_cleaners"])
# ["left out, because the model has no symbol for it: '*' at column 3"]
"""

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence

from tacotron2_voice.text import (
    ENGLISH,
    IPA_SPAN,
    PHONES,
    SymbolTable,
    at_columns,
    clean,
    columns_of,
    symbols,
    text_to_sequence,
    unknown_symbols,
)
from tacotron2_voice.text.tags import without_pauses

CONTEXT = 40  # characters on either side that decide how one is read
MAX_NAMED = 20  # symbols of a text; to find out about one takes as long as to clean the text
# Nobody speaks them: dashes, brackets and quotation marks; spaces and invisible characters;
# accents written after their letter. Any of them may vanish.
UNSPOKEN_CATEGORIES = {"Pd", "Ps", "Pe", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cf", "Mn"}
UNSPOKEN = {"english_cleaners_corrected": '"/'}  # it reads "and/or" as two words


def left_out(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[str]:
    """A warning for who has a text spoken, if there are `dropped_symbols`; pauses are none."""
    dropped = dropped_symbols(without_pauses(text), cleaner_names, table, language)
    reason = "the model has no symbol for it"
    if PHONES in cleaner_names:
        reason = "eSpeak NG says nothing for it, or the model has no symbol"
    return [f"left out, because {reason}: {with_columns(dropped)}"] if dropped else []


def _without_phones(text: str, language: str) -> dict[str, list[int]]:
    """Characters for which eSpeak says nothing, and their columns; phones between slashes are none,
    and letters that change how others are said, as the hard sign of Russian."""
    from tacotron2_voice.text.phones import is_silent, to_phones

    spans = [range(*span.span()) for span in IPA_SPAN.finditer(text)]
    dropped: dict[str, list[int]] = {}
    for character in dict.fromkeys(text):
        if len(dropped) > MAX_NAMED:
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
    """Symbols and their places, as in "'*' at column 3"; MAX_NAMED of them."""
    named = [f"{symbol!r}{at_columns(columns)}" for symbol, columns in dropped.items()]
    return ", ".join(named[:MAX_NAMED]) + ", and others" * (len(named) > MAX_NAMED)


def dropped_symbols(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> dict[str, list[int]]:
    """What of `text` reaches the model in no form, in the order of the text, and its columns there,
    counted in characters from 1. At most MAX_NAMED + 1: texts in another script have thousands.

    With a table that is not English, that is what the table lacks. In English, it is characters
    without which the symbols stay the same, spaces apart ("$", unless an amount follows), and
    phones in braces that are not in the ARPAbet. Where a text becomes phones, it is letters,
    numbers and signs that have none ("€" in Russian) too. Quotation marks, brackets and dashes
    never count: LJSpeech has hundreds, and nobody speaks them.
    """
    if not table.is_english:
        unknown = unknown_symbols(clean(text, cleaner_names, table, language), table)
        unknown = unknown[: MAX_NAMED + 1]
        lacking = {x: columns_of(x, text, cleaner_names, table, language) for x in unknown}
        silent = _without_phones(text, language) if PHONES in cleaner_names else {}
        return lacking | silent

    def letters(part: str) -> list[int]:  # spaces may take the place of what is dropped
        return [i for i in text_to_sequence(part, cleaner_names) if symbols[i] != " "]

    @functools.cache  # of "x^2" often the same
    def is_silent_between(before: str, character: str, after: str) -> bool:
        return letters(before + character + after) == letters(f"{before} {after}")

    def is_silent(column: int) -> bool:  # where it is: "#5" is read, and "a # b" is not
        start = max(0, column - 1 - CONTEXT)
        before, after = text[start : column - 1], text[column : column + CONTEXT]
        return is_silent_between(before, text[column - 1], after)

    whole = letters(text)
    dropped: dict[str, list[int]] = {}
    for character in dict.fromkeys(text):
        if len(dropped) > MAX_NAMED:
            break
        if character in symbols or character in UNSPOKEN.get(cleaner_names[-1], '"'):
            continue
        if unicodedata.category(character) in UNSPOKEN_CATEGORIES or letters(character):
            continue
        columns = [i for i, x in enumerate(text, 1) if x == character]
        if whole != letters(text.replace(character, " ")):
            columns = [column for column in columns if is_silent(column)]
        if columns:
            dropped[character] = columns
    for span in re.finditer(r"\{(.+?)\}", text):
        for phone in re.finditer(r"\S+", span[1]):
            if f"@{phone[0]}" not in symbols:
                dropped.setdefault(phone[0], []).append(span.start(1) + phone.start() + 1)
    return dropped
