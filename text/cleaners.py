"""Cleaners: what happens to a text before its characters become symbols.

`english_cleaners` is NVIDIA/tacotron2's, mistakes included, because its checkpoints rest on it:
"£10" becomes "psten", "Mrs." "misess". `english_cleaners_corrected` fixes these.
`transliteration_cleaners` (any alphabet to ASCII) and `basic_cleaners` leave numbers as digits,
which have no symbols, so write numbers out for them.
"""

import re
from collections.abc import Callable, Sequence

from errors import UserError
from text.numbers import CORRECTED_NUMBER_RULES, NUMBER_RULES, Rule

ABBREVIATIONS = {
    "mrs": "misess",
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}


def _abbreviation_rules(abbreviations: dict[str, str]) -> list[Rule]:
    return [(re.compile(rf"\b{short}\."), long) for short, long in abbreviations.items()]


_WHITESPACE_RULES: list[Rule] = [(re.compile(r"\s+"), " ")]
_SIGN_RULES: list[Rule] = [(re.compile(r"&"), " and "), (re.compile(r"\s*%"), " percent")]
# What has no symbol separates two words ("and/or") or else is removed ("[he]").
_SILENT_RULES: list[Rule] = [
    (re.compile(r"(?<=[a-z])[^-!'(),.:;?a-z\s]+(?=[a-z])"), " "),
    (re.compile(r"[^-!'(),.:;?a-z\s]"), ""),
]


def _to_ascii(text: str) -> str:
    """As unidecode, which is not loaded where the text is ASCII already."""
    if text.isascii():
        return text
    from unidecode import unidecode

    return unidecode(text)


def _to_ascii_but_currency(text: str) -> str:
    """unidecode would turn £ into PS and € into EUR before a number rule could see them."""
    return re.sub(r"[^£€]+", lambda match: _to_ascii(match[0]), text)


# How each cleaner makes a text ASCII, and its rules, each applied to the result of the one before.
CLEANERS: dict[str, tuple[Callable[[str], str], list[Rule]]] = {
    "english_cleaners": (
        _to_ascii,
        [*NUMBER_RULES, *_abbreviation_rules(ABBREVIATIONS), *_WHITESPACE_RULES],
    ),
    "english_cleaners_corrected": (
        _to_ascii_but_currency,
        [
            *_SIGN_RULES,
            *CORRECTED_NUMBER_RULES,
            *_abbreviation_rules(ABBREVIATIONS | {"mrs": "missus"}),
            *_SILENT_RULES,
            *_WHITESPACE_RULES,
        ],
    ),
    "transliteration_cleaners": (_to_ascii, _WHITESPACE_RULES),
    "basic_cleaners": (str, _WHITESPACE_RULES),
}


def clean_pieces(pieces: Sequence[str], cleaner_names: Sequence[str]) -> list[str]:
    """Clean the pieces of one text, each by itself, with every named cleaner in turn.

    Raises UserError for an unknown cleaner, ModuleNotFoundError for a missing package.
    """
    pieces = list(pieces)
    for name in cleaner_names:
        if name not in CLEANERS:
            raise UserError(f"unknown text cleaner {name!r}; there are {', '.join(CLEANERS)}")
        to_ascii, rules = CLEANERS[name]
        pieces = [to_ascii(piece).lower() for piece in pieces]
        for pattern, replacement in rules:
            pieces = [pattern.sub(replacement, piece) for piece in pieces]
        if name == "english_cleaners_corrected":  # inside, a space separates words from phones
            pieces[0] = pieces[0].lstrip()
            pieces[-1] = pieces[-1].rstrip()
    return pieces
