"""Words in a sequence of symbol ids: where each begins and ends."""

import re
from collections.abc import Sequence

from text import ENGLISH, SymbolTable, one_character_each

_WORD = re.compile(r"(?:[^\W_]|@)(?:[^\W_]|[@'])*")


def word_spans(sequence: Sequence[int], table: SymbolTable = ENGLISH) -> list[tuple[int, int]]:
    """(first, last + 1) of every word: letters, phones, digits where the table has them, and
    apostrophes, none of these at first."""
    return [match.span() for match in _WORD.finditer(one_character_each(sequence, table))]
