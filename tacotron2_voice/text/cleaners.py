"""Cleaners: what happens to a text before its characters become symbols.

`english_cleaners_corrected` reads English as a person does (tacotron2_voice/text/english/__init__.py). `english_cleaners` is
NVIDIA/tacotron2's, mistakes included, because its checkpoints were trained with it: "£10" becomes
"psten", "Mrs." "misess". `transliteration_cleaners` (any alphabet to ASCII) and `basic_cleaners`
(any alphabet as it is, for symbols=corpus) leave numbers as digits, which have no English symbols,
so write numbers out for them. `phones` writes a text of any language in the International Phonetic
Alphabet.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.english.numbers import NUMBER_RULES, Rule
from tacotron2_voice.utils.errors import UserError

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
# What has no symbol separates two words ("and/or") or else is removed ("[he]").
_SILENT_RULES: list[Rule] = [
    (re.compile(r"(?<=[a-z])[^-!'(),.:;?a-z\s]+(?=[a-z])"), " "),
    (re.compile(r"[^-!'(),.:;?a-z\s]"), ""),
]
# Invisible: controls, marks of the direction of writing, soft hyphens. The joiners of Persian and
# of the Indic scripts are letters in effect, and stay.
_INVISIBLE = "\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_INVISIBLE_RULES: list[Rule] = [(re.compile(f"[{_INVISIBLE}]"), "")]


def to_ascii(text: str) -> str:
    """Transliterate with unidecode, which is not imported if the text is ASCII already."""
    if text.isascii():
        return text
    from unidecode import unidecode

    return unidecode(text)


# Alphabets that unidecode transliterates letter by letter. Other scripts stay as they are, and a
# warning names them when they are dropped: unidecode would guess their language ("Han" for 漢).
_ALPHABETS = ("LATIN", "GREEK", "CYRILLIC", "MODIFIER", "COMBINING")


@functools.lru_cache(2**12)
def _character_to_ascii(character: str) -> str:
    written = to_ascii(character)
    if unicodedata.category(character)[0] in "PZ":
        return written
    is_letter = unicodedata.name(character, "").startswith(_ALPHABETS)
    return written if is_letter and any(map(str.isalnum, written)) else character


# ---------------------------------------------------------------------------- the cleaners


@dataclass(frozen=True)
class Cleaner:
    """What a cleaner does to each piece of a text, in this order. `language` is eSpeak's name."""

    read: Callable[[str, str], str]  # read(text, language): other characters, or words for them
    rules: Sequence[Rule]  # each applied to the result of the one before, in lower case
    keeps_case: bool = False
    finish: Callable[[str, str], str] | None = None  # finish(text, language), after the rules
    strips_ends: bool = False  # of the whole text; inside, a space separates words from phones


def _as_it_is(text: str, language: str) -> str:
    return text


def _ascii(text: str, language: str) -> str:
    return to_ascii(text)


def _read_as_english(text: str, language: str) -> str:
    """Numbers, abbreviations and so on in words, letters in ASCII."""
    text = read_english(text)
    return text if text.isascii() else "".join(map(_character_to_ascii, text))


def _turkish(text: str, language: str) -> str:
    """Lower the capitals that Python gets wrong: it makes two characters of İ, and in Turkish and
    Azerbaijani I is the capital of ı."""
    text = text.replace("\u0130", "i")
    return text.replace("I", "\u0131") if language in ("tr", "az") else text


@functools.lru_cache(2**16)  # prepare cleans texts twice: to count symbols, then for their ids
def _phones(text: str, language: str) -> str:
    """The phones of a text, with the blanks around it and its punctuation."""
    bare = text.strip()
    if not any(unicodedata.category(character)[0] in "LN" for character in bare):
        return text  # nothing to speak
    from tacotron2_voice.text.phones import to_phones

    [phones] = to_phones([bare], language)
    return text.replace(bare, phones.strip(), 1)


CLEANERS: dict[str, Cleaner] = {
    "english_cleaners": Cleaner(
        _ascii, [*NUMBER_RULES, *_abbreviation_rules(ABBREVIATIONS), *_WHITESPACE_RULES]
    ),
    "english_cleaners_corrected": Cleaner(
        _read_as_english, [*_SILENT_RULES, *_WHITESPACE_RULES], strips_ends=True
    ),
    "transliteration_cleaners": Cleaner(_ascii, _WHITESPACE_RULES),
    "basic_cleaners": Cleaner(_turkish, [*_WHITESPACE_RULES, *_INVISIBLE_RULES]),
    # eSpeak reads capitals: "US" is not "us".
    "phones": Cleaner(
        _as_it_is, [*_WHITESPACE_RULES, *_INVISIBLE_RULES], keeps_case=True, finish=_phones
    ),
}


def clean_pieces(
    pieces: Sequence[str], cleaner_names: Sequence[str], language: str = ""
) -> list[str]:
    """Clean the pieces of one text, each by itself, with every named cleaner in turn. `language`,
    eSpeak's name of it, decides the phones, and in Turkish the lower case of I.

    Raises UserError for an unknown cleaner, ModuleNotFoundError for a missing package.
    """
    pieces = list(pieces)
    for name in cleaner_names:
        if name not in CLEANERS:
            raise UserError(f"unknown text cleaner {name!r}; there are {', '.join(CLEANERS)}")
        cleaner = CLEANERS[name]
        pieces = [_cleaned(piece, cleaner, language) for piece in pieces]
        if cleaner.strips_ends:
            pieces[0] = pieces[0].lstrip()
            pieces[-1] = pieces[-1].rstrip()
    return pieces


def _cleaned(piece: str, cleaner: Cleaner, language: str) -> str:
    piece = cleaner.read(piece, language)
    if not cleaner.keeps_case:
        piece = piece.lower()
    for pattern, replacement in cleaner.rules:
        piece = pattern.sub(replacement, piece)
    return piece if cleaner.finish is None else cleaner.finish(piece, language)
