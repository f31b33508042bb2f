"""Convert texts of many languages to phones of the International Phonetic Alphabet, by eSpeak NG.

    to_phones(["Guten Tag, Welt!"], "de") == ["ɡˈuːtən tˈɑːk, vˈɛlt!"]

The packages of requirements/phones.txt are imported only when they are needed.
"""

import difflib
import functools
import logging
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from common.errors import UserError

ALIASES = {"en": "en-us", "fr": "fr-fr", "zh": "cmn"}  # what eSpeak has under another name
SPOKEN = "%&@#*/\\_§‰"  # punctuation by Unicode's categories, but eSpeak reads words for it


@functools.cache
def _backends() -> Any:
    """phonemizer's class of backends, with the library of espeakng-loader."""
    try:
        import espeakng_loader
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        fix = "pip install espeakng-loader phonemizer, or all of requirements/phones.txt"
        raise UserError(f"phones: {error}; {fix}") from None
    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    return EspeakBackend


@functools.cache
def _languages() -> dict[str, str]:
    """eSpeak's names of languages, and what they stand for."""
    return _backends().supported_languages()


@functools.cache
def _backend(language: str) -> Any:
    logger = logging.getLogger("phonemizer")
    logger.setLevel(logging.ERROR)  # it warns of each word that is spoken as in another language
    return _backends()(
        language,
        punctuation_marks=re.compile(r"(?!)"),  # none: `to_phones` keeps them itself
        with_stress=True,
        language_switch="remove-flags",
        logger=logger,
    )


def check_language(language: str) -> str:
    """Return eSpeak's name of a language, such as fr-fr for fr. UserError if eSpeak does not know
    it or a package is missing."""
    known, name = _languages(), language.lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name in known:
        return name
    names = {title.lower(): code for code, title in known.items()}  # "german" finds de
    [near] = difflib.get_close_matches(name, [*known, *names], n=1, cutoff=0)
    base = name.partition("-")[0]
    meant = base if base in known else names.get(near, near)
    raise UserError(
        f"language={language[:40]}: eSpeak NG does not know it; did you mean {meant} "
        f"({known[meant]})? There are {', '.join(sorted(known))}"
    )


def espeak_version() -> str:
    """The version of the eSpeak library, such as 1.52.0. UserError if a package is missing."""
    return ".".join(map(str, _backends().version()))


def version_of_phones(recorded: str) -> str:
    """Return the version that made a run's phones: the `recorded` one, or the installed one if none
    is recorded. Prints a warning if they differ."""
    here = espeak_version()
    if recorded not in ("", here):
        print(
            f"warning: the phones were made by eSpeak NG {recorded}, here is {here}: "
            "the same text may become other phones"
        )
    return recorded or here


def to_phones(texts: Sequence[str], language: str) -> list[str]:
    """Convert each text to phones with stress, in Unicode's form NFC. Punctuation stays in place,
    blanks become one space; a text without words has no phones. Errors as `check_language`.

    phonemizer can keep punctuation itself, but after an empty text it gives a text its neighbour's,
    and it loses full-width marks. Here eSpeak gets only what is between the marks.
    """
    backend, texts = _backend(check_language(language)), [re.sub(r"\s+", " ", x) for x in texts]
    used = set("".join(texts)).difference(SPOKEN)
    marks = re.escape("".join(sorted(x for x in used if unicodedata.category(x)[0] == "P")))
    if not marks:
        return [_speak(backend, text) for text in texts]
    in_number = r"(?<=\d)[.,:'’]\d"
    in_word = rf"(?<=[^\s{marks}])['’‐-][^\s{marks}]"
    mark = re.compile(rf"((?!{in_number}|{in_word})[{marks}])")
    pieces = [mark.split(text) for text in texts]  # words, mark, words, mark, …, words
    return ["".join(x if i % 2 else _speak(backend, x) for i, x in enumerate(p)) for p in pieces]


def _speak(backend: Any, words: str) -> str:
    """Convert words to phones, keeping the blanks around them."""
    bare = words.strip()
    if not bare:
        return words
    [phones] = backend.phonemize([bare], strip=True)
    return words.replace(bare, unicodedata.normalize("NFC", phones).strip(), 1)
