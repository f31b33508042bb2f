"""Convert texts to the ids of a model's input symbols, and back.

    ids = text_to_sequence("Turn left on {HH AW1 S S T AH0 N} Street.", ["english_cleaners"])
    sequence_to_text(ids)

The English symbols, the cleaning and the treatment of braces are those of NVIDIA/tacotron2, so that
its checkpoints read texts as in their training. symbols.py contains the tables of other languages.
"""

from tacotron2_voice.text.rules import rules_version, uses_english_rules
from tacotron2_voice.text.sequences import (
    IPA_SPAN,
    PHONES,
    can_be_spoken,
    clean,
    one_character_each,
    sequence_to_text,
    text_to_sequence,
)
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable, symbols
from tacotron2_voice.text.unknown_symbols import (
    at_columns,
    columns_of,
    in_words,
    nearest,
    unknown_symbols,
)

__all__ = [
    "ENGLISH",
    "IPA_SPAN",
    "PHONES",
    "SymbolTable",
    "at_columns",
    "can_be_spoken",
    "clean",
    "columns_of",
    "in_words",
    "nearest",
    "one_character_each",
    "rules_version",
    "sequence_to_text",
    "symbols",
    "text_to_sequence",
    "unknown_symbols",
    "uses_english_rules",
]
