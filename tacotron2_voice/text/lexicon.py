"""Replace words with their respellings from a list of pronunciations (a lexicon).

    settings = with_lexicon(settings, Path("names.txt"))
    respell("Nguyen's dog", settings.pronunciations)  # "win's dog"

Each line of the file contains a word and its respelling, separated by a tab or spaces. Models that
read phones also accept phones as a respelling. Lines that begin with # are comments.

    Nguyen   win
    Reading  /ɹˈɛdɪŋ/

Case is ignored, and only whole words are replaced. The settings store the pronunciations, so that
checkpoints and exported voices contain them.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacotron2_voice.settings import Settings
from tacotron2_voice.text.notations import check_notations
from tacotron2_voice.text.sequences import PHONES
from tacotron2_voice.text.symbols import SymbolTable
from tacotron2_voice.utils.errors import UserError, lines_rejected
from tacotron2_voice.utils.files import numbered_lines

EXPECTED = "expected a word and its respelling, separated by a tab or spaces"
# Spans of phones, in which no words are replaced.
_PHONE_SPANS = re.compile(r"(\{[^{}]*\}|(?<!\w)/\S(?:[^/\n]*\S)?/(?!\w))")
_PHONES = re.compile(r"/[^\s/](?:[^/]*[^\s/])?/")
_HYPHENS = re.compile("([-‐‑])")
_SAME = str.maketrans("’‐‑", "'--")


def with_lexicon(settings: Settings, path: Path | None = None) -> Settings:
    """Return the settings with the pronunciations from a file.

    Args:
        settings: the settings. Without `path`, the file is the setting `lexicon`, if it is set.
        path: a different file. Its pronunciations are added to those of the settings, and replace
            those for the same words.

    Raises:
        UserError: if the file cannot be read, or if it contains an invalid line.
    """
    if path is None:
        if not settings.lexicon:
            return replace(settings, pronunciations=())
        path = Path(settings.lexicon)
        known = dict[str, str]()
    else:
        known = dict(_respellings(settings.pronunciations))
    known |= _read_lexicon(path, settings.text_cleaners, settings.table)
    pronunciations = tuple(f"{word}\t{respelling}" for word, respelling in known.items())
    return replace(settings, pronunciations=pronunciations)


def respell(text: str, pronunciations: tuple[str, ...]) -> str:
    """Replace the words in a text with their respellings.

    Hyphenated compounds and words that end in 's are first looked up as a whole, then in parts.

    Args:
        text: the text.
        pronunciations: strings of the form "word<TAB>respelling", as in the settings.
    """
    if not pronunciations:
        return text
    known = _respellings(pronunciations)
    pieces = _PHONE_SPANS.split(unicodedata.normalize("NFC", text))
    for i in range(0, len(pieces), 2):
        pieces[i] = _word_pattern().sub(lambda word: _respelled(word[0], known), pieces[i])
    return "".join(pieces)


def _respelled(word: str, known: dict[str, str]) -> str:
    respelling = known.get(_key(word))
    if respelling is not None:
        return respelling
    if _key(word).endswith("'s"):
        return _respelled(word[:-2], known) + word[-2:]
    parts = _HYPHENS.split(word)  # words and hyphens alternate
    if len(parts) > 1:
        parts[::2] = [_respelled(part, known) for part in parts[::2]]
    return "".join(parts)


def _key(word: str) -> str:
    """Return a lookup key that ignores case and the forms of apostrophes and hyphens."""
    return unicodedata.normalize("NFC", word.casefold()).translate(_SAME)


@functools.lru_cache(8)
def _respellings(pronunciations: tuple[str, ...]) -> dict[str, str]:
    entries = (one.partition("\t") for one in pronunciations)
    return {key: respelling for key, _, respelling in entries}


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Return a pattern for words, which may contain apostrophes and hyphens.

    Words consist of letters, digits and combining marks, such as vowel signs.
    """
    marks = [chr(x) for x in range(0x300, 0x1F000) if unicodedata.category(chr(x))[0] == "M"]
    letters = rf"(?:[^\W_]|[{''.join(marks)}\u200c\u200d])+"
    return re.compile(rf"{letters}(?:['’‐‑-]{letters})*")


def _read_lexicon(path: Path, cleaners: Sequence[str], table: SymbolTable) -> dict[str, str]:
    """Read the respellings in a file by lookup key, or raise UserError if lines are invalid."""
    lines = numbered_lines(path, "no such lexicon")
    known: dict[str, str] = {}
    problems = []
    for number, line in lines:
        if line.startswith("#"):
            continue
        try:
            word, respelling = _parse(line, cleaners, table)
            other = known.setdefault(_key(word), respelling)
            if other != respelling:
                raise UserError(f"{word[:40]!r}: an earlier line has {other[:40]!r} for it")
        except UserError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise lines_rejected(path, problems, len(lines))
    return known


def _parse(line: str, cleaners: Sequence[str], table: SymbolTable) -> tuple[str, str]:
    """Return the word and its respelling from a line of the lexicon."""
    fields = unicodedata.normalize("NFC", line).split(maxsplit=1)
    if len(fields) != 2:
        raise UserError(f"{line.strip()[:60]!r}: no respelling ({EXPECTED})")
    word = fields[0]
    respelling = " ".join(fields[1].split())
    if not _word_pattern().fullmatch(word):
        raise UserError(f"{word[:60]!r}: not a single word ({EXPECTED})")
    has_phones = respelling.startswith("/") or respelling.endswith("/")
    if has_phones and not _PHONES.fullmatch(respelling):
        raise UserError(f"{respelling[:60]!r}: expected phones between slashes, such as /wˈɪn/")
    if has_phones and PHONES not in cleaners:
        raise UserError(
            f"{respelling[:60]!r}: contains phones, but the model reads letters. Write letters"
        )
    if not any(character.isalnum() for character in respelling):
        raise UserError(f"{respelling[:60]!r}: nothing to speak ({EXPECTED})")
    check_notations(respelling, cleaners, table)
    return word, respelling
