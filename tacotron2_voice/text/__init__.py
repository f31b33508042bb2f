"""Convert texts to symbol ids, and back.

    ids = text_to_sequence("Turn left on {HH AW1 S S T AH0 N} Street.", ["english_cleaners"])
    sequence_to_text(ids)

The English symbols, the text cleaning and the handling of braces are the same as in
NVIDIA/tacotron2. Therefore, NVIDIA's checkpoints get the same symbols as in training. symbols.py
defines the tables for other languages.
"""

from tacotron2_voice.text.rules import rules_version, uses_english_rules
from tacotron2_voice.text.sequences import can_be_spoken, clean, sequence_to_text, text_to_sequence
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable, symbols

__all__ = [
    "ENGLISH",
    "SymbolTable",
    "can_be_spoken",
    "clean",
    "rules_version",
    "sequence_to_text",
    "symbols",
    "text_to_sequence",
    "uses_english_rules",
]
