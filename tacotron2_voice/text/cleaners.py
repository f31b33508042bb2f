"""Clean texts before their characters are converted to symbols.

    clean_pieces(["Mrs. Brown paid $5."], ["english_cleaners_corrected"])

- `english_cleaners_corrected` converts English text to the words that a person would read aloud
  (english/__init__.py).
- `english_cleaners` are the cleaners of NVIDIA/tacotron2, including their mistakes, because
  NVIDIA's checkpoints were trained with these mistakes. For example, "£10" becomes "psten", and
  "Mrs." becomes "misess".
- `transliteration_cleaners` convert any alphabet to ASCII.
- `basic_cleaners` keep the letters of any alphabet. Use these cleaners with symbols=corpus.
- `phones` converts a text of any language to the International Phonetic Alphabet.

If you use transliteration or basic cleaners with the English symbol table, write numbers in words.
These cleaners do not convert digits, and the English symbol table contains no digits.
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
# Between two letters, replace characters that are not spoken, such as a slash, with a space
# ("and/or"). Everywhere else, remove these characters ("[he]").
_SILENT_RULES: list[Rule] = [
    (re.compile(r"(?<=[a-z])[^-!'(),.:;?a-z\s]+(?=[a-z])"), " "),
    (re.compile(r"[^-!'(),.:;?a-z\s]"), ""),
]
# Invisible characters: control characters, directional marks and soft hyphens. The zero-width
# joiners of Persian and Indic texts are not listed, because they change how the neighboring letters
# are pronounced or joined.
_INVISIBLE = "\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_INVISIBLE_RULES: list[Rule] = [(re.compile(f"[{_INVISIBLE}]"), "")]


def to_ascii(text: str) -> str:
    """Transliterate with unidecode, which is imported only if the text is not ASCII."""
    if text.isascii():
        return text
    from unidecode import unidecode

    return unidecode(text)


# Alphabets that unidecode transliterates letter by letter. Characters of other scripts stay
# unchanged and are dropped with a warning, because unidecode would guess the language (for example
# "Han" for 漢).
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
    """The functions and rules of a cleaner, which processes the pieces of a text one by one."""

    # First function that the cleaner applies: read(text, language), with eSpeak's language code.
    read: Callable[[str, str], str]
    rules: Sequence[Rule]  # rules that are applied after `read`, to the text in lower case
    keeps_case: bool = False  # True: `rules` are applied to the text in its original case
    # Last function that the cleaner applies: finish(text, language). None: no such function.
    finish: Callable[[str, str], str] | None = None
    strips_ends: bool = False  # True: spaces at both ends of the whole text are removed


def _as_it_is(text: str, language: str) -> str:
    return text


def _ascii(text: str, language: str) -> str:
    return to_ascii(text)


# Remove brackets around letters that an author changed or added: "[T]he", "colo[u]r", "claim[s]".
# Letters in brackets at the end of a word may mark a footnote, so only certain endings are kept.
_BRACKET_RULES: list[Rule] = [
    (re.compile(r"(?<!\w)\[([^\W\d_])\](?=[^\W\d_])"), r"\1"),
    (re.compile(r"(?<=[^\W\d_])\[([^\W\d_]+)\](?=[^\W\d_])"), r"\1"),
    (re.compile(r"(?<=[^\W\d_])\[(d|ed|en|er|es|ing|ly|n|s)\]"), r"\1"),
]


def read_brackets(text: str) -> str:
    """Return the text without the brackets around letters that an author changed or added."""
    for pattern, replacement in _BRACKET_RULES:
        text = pattern.sub(replacement, text)
    return text


def _read_as_english(text: str, language: str) -> str:
    """Convert numbers, abbreviations and symbols in a text to words, and letters to ASCII."""
    text = read_english(read_brackets(text))
    return text if text.isascii() else "".join(map(_character_to_ascii, text))


def _turkish(text: str, language: str) -> str:
    """Convert the letters İ and I to lower case. `str.lower` is not suitable: it converts İ to two
    characters, and I to i even in Turkish and Azerbaijani."""
    text = text.replace("\u0130", "i")
    return text.replace("I", "\u0131") if language in ("tr", "az") else text


# Cache the phones, because prepare.py cleans each text twice: first to count symbols, and later to
# compute ids.
@functools.lru_cache(2**16)
def _phones(text: str, language: str) -> str:
    """Convert a text to phones, and keep the punctuation and the spaces around punctuation."""
    bare = text.strip()
    if not any(unicodedata.category(character)[0] in "LN" for character in bare):
        return text  # a text without words has no phones
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
    # Keep the case, because eSpeak pronounces "US" and "us" differently.
    "phones": Cleaner(
        _as_it_is,
        [*_WHITESPACE_RULES, *_INVISIBLE_RULES, *_BRACKET_RULES],
        keeps_case=True,
        finish=_phones,
    ),
}


# Replaces the cleaner "english_cleaners_corrected" if the cleaner "phones" follows. Capitals and
# accents are kept, because eSpeak needs them. Letters of other scripts are kept, because the cleaner
# "phones" rejects them.
_ENGLISH_BEFORE_PHONES = Cleaner(lambda text, language: read_english(text), [], keeps_case=True)


def clean_pieces(
    pieces: Sequence[str], cleaner_names: Sequence[str], language: str = ""
) -> list[str]:
    """Apply the cleaners, in the given order, to each piece of a text separately.

    Args:
        language: eSpeak's code for the language, which determines the phones and the lower case of
            I.

    Raises:
        UserError: if a cleaner is unknown.
        ModuleNotFoundError: if a package is missing.
    """
    pieces = list(pieces)
    for position, name in enumerate(cleaner_names):
        if name not in CLEANERS:
            expected = ", ".join(CLEANERS)
            raise UserError(f"unknown text cleaner {name!r} (expected one of {expected})")
        cleaner = CLEANERS[name]
        if name == "english_cleaners_corrected" and "phones" in cleaner_names[position:]:
            cleaner = _ENGLISH_BEFORE_PHONES
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
