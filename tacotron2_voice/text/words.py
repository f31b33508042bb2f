"""Find the words in a sequence of symbol ids."""

import re
from collections.abc import Sequence

from tacotron2_voice.text.sequences import one_character_each
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable

_WORD = re.compile(r"(?:[^\W_]|@)(?:[^\W_]|[@'])*")


def word_spans(sequence: Sequence[int], table: SymbolTable = ENGLISH) -> list[tuple[int, int]]:
    """Return (start, end) for every word in a sequence. `end` is the index after the last symbol.

    Words consist of letters, phones and, if the table contains them, digits. After the first
    character, words may also contain apostrophes.
    """
    return [match.span() for match in _WORD.finditer(one_character_each(sequence, table))]
