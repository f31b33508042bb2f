"""Replace words with their respellings from a list of pronunciations (a lexicon).

    settings = with_lexicon(settings, Path("names.txt"))
    respell("Nguyen's dog", settings.pronunciations)  # "win's dog"

Each line of the file contains a word and the respelling of the word, separated by one tab or by
spaces. If the model reads phones, a respelling can also consist of phones. Lines that begin with #
are comments.

    Nguyen   win
    Reading  /ɹˈɛdɪŋ/

Case is ignored, and only whole words are replaced. A part of a number (the 10 in 10,000) or of an
abbreviation (the i in i.e.) is not a whole word. The pronunciations are part of the settings, which
are stored in checkpoints and exported voices.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacotron2_voice.settings import Settings
from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.english.quantities import full_stop
from tacotron2_voice.text.english.words import ABBREVIATIONS, STREETS, TITLES
from tacotron2_voice.text.notations import IPA_LETTER, check_notations
from tacotron2_voice.text.phone_spans import CORRECTED, NAME
from tacotron2_voice.text.rules import uses_english_rules
from tacotron2_voice.text.sequences import PHONES, text_to_sequence
from tacotron2_voice.text.symbols import SymbolTable, symbols
from tacotron2_voice.utils.errors import UserError, lines_rejected
from tacotron2_voice.utils.files import numbered_lines

EXPECTED = "expected a word and its respelling, separated by a tab or spaces"
# Matches spans of phones. Words inside these spans are not replaced.
_PHONE_SPANS = re.compile(r"(\{[^{}]*\}|(?<!\w)/\S(?:[^/\n]*\S)?/(?!\w))")
_PHONES = re.compile(r"/[^\s/](?:[^/]*[^\s/])?/")
_HYPHENS = re.compile("([-‐‑])")
_CONTINUES = re.compile(r"[.,:]\w")
_CONTINUED = re.compile(r"\w[.,:]")
# Matches a word and the Roman numeral that follows the word.
_NUMERAL = re.compile(r"\b([^\W\d_][\w'’-]*) ([IVXLC]+)\b")
# Matches an abbreviation and its full stop, because the English rules expand both together.
_ABBREVIATION = re.compile(
    rf"(?<![\w.])({'|'.join(map(re.escape, [*TITLES, *STREETS, *ABBREVIATIONS]))})\.",
    re.IGNORECASE,
)
_AFTER_NAME = re.compile(r"\b[A-Z][\w'’-]* $")
HEADERS = ("respelling", "pronunciation", "phones", "phonemes")
_CURRENCIES = "$€£¥"
# Matches the beginning of a line such as "New York nuyork", in which a name consists of two words.
_TWO_NAMES = re.compile(r"[A-Z][^\W\d_]+ [A-Z][a-z]+ \w")
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(r"\d*\.\d+")
# A respelling consists of characters in the Unicode categories _LETTER_CATEGORIES and of characters
# in _OTHER_CHARACTERS.
_LETTER_CATEGORIES = ("L", "M", "N")
_OTHER_CHARACTERS = " '’-‐‑.,!?·{}\u200c\u200d"
_SAME = str.maketrans("’‐‑", "'--")


def with_lexicon(settings: Settings, path: Path | None = None) -> Settings:
    """Return the settings, including the pronunciations from a file.

    With `path`, the pronunciations in the file are added to the pronunciations in the settings. If
    the file and the settings contain different pronunciations of a word, the pronunciation in the
    file is used.

    Without `path`, the setting `lexicon` is the path of the file. If the setting `lexicon` is
    empty, the returned settings contain no pronunciations.

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


def apply_lexicon(text: str, pronunciations: tuple[str, ...], cleaner_names: Sequence[str]) -> str:
    """Replace the words in a text with their respellings. Write out Roman numerals that follow
    these words.

    The rules for English (english/__init__.py) convert "John VI" to "John the sixth", because John
    is the name of kings, and drop the full stop of a title before a name. If a respelling has
    already replaced a name, these rules no longer recognize the name. Therefore, the function
    applies the two rules next to words in the lexicon before it replaces these words.

    Args:
        pronunciations: strings of the form "word<TAB>respelling", as in the settings.
    """
    if pronunciations and CORRECTED in cleaner_names:
        for numeral in reversed([*_NUMERAL.finditer(text)]):
            if any(respell(numeral[i], pronunciations) != numeral[i] for i in (1, 2)):
                text = _with_numeral_read(text, *numeral.span(2))
        text = _ABBREVIATION.sub(
            lambda match: (
                _without_stop(match) if respell(match[1], pronunciations) != match[1] else match[0]
            ),
            text,
        )
    return respell(text, pronunciations)


def _without_stop(match: re.Match[str]) -> str:
    """Return an abbreviation without its full stop, unless the full stop ends the sentence."""
    short = match[1].capitalize()
    # After a name, "Dr." means "Drive" instead of "Doctor", as in "Elm Dr."
    is_street = short in STREETS and _AFTER_NAME.search(
        match.string, max(0, match.start() - 50), match.start()
    )
    is_title = short in TITLES and not is_street
    is_at_end = not match.string[match.end() :].strip()
    return match[1] + ("." if is_at_end or (not is_title and full_stop(match)) else "")


def _with_numeral_read(text: str, start: int, end: int) -> str:
    """Convert the Roman numeral from `start` to `end` of the text to words.

    To find the words for the numeral, the function converts the text to words twice: with the
    numeral, and with a name in place of the numeral. The two results differ only where one contains
    the words for the numeral and the other contains the name.
    """
    name = NAME.upper() if text.isupper() else NAME
    read = read_english(text)
    around = re.split(name, read_english(text[:start] + name + text[end:]), flags=re.IGNORECASE)
    if len(around) != 2 or not (read.startswith(around[0]) and read.endswith(around[1])):
        return text
    words = read[len(around[0]) : len(read) - len(around[1])]
    # If `read_english` keeps the letters, together or separated by spaces, the letters are a
    # name instead of a numeral. In this case, return the text unchanged.
    if words.replace(" ", "").upper() == text[start:end].upper():
        return text
    return text[:start] + (words.upper() if text.isupper() else words) + text[end:]


def respell(text: str, pronunciations: tuple[str, ...]) -> str:
    """Replace the words in a text with their respellings.

    Hyphenated compounds, and words that end in 's, are looked up as a whole first. If the whole
    word is not in the lexicon, the parts of the word are looked up.

    Args:
        pronunciations: strings of the form "word<TAB>respelling", as in the settings.
    """
    if not pronunciations:
        return text
    known = _respellings_of_forms(pronunciations)
    pieces = _PHONE_SPANS.split(unicodedata.normalize("NFC", text))
    for i in range(0, len(pieces), 2):
        pieces[i] = _word_pattern().sub(lambda word: _respelled_match(word, known), pieces[i])
    return "".join(pieces)


def _respelled_match(word: re.Match[str], known: dict[str, str]) -> str:
    """Return the respelling of a word. A part of a number or an abbreviation is not changed."""
    text = word.string
    is_part = _CONTINUES.match(text, word.end()) or _CONTINUED.fullmatch(text[: word.start()][-2:])
    is_amount = word.start() > 0 and text[word.start() - 1] in _CURRENCIES
    is_short = len(word[0]) == 1 or word[0].isdigit()
    if is_short and (is_part or is_amount):
        return word[0]
    respelled = _respelled(word[0], known)
    # Keep the capital letter, because the rules for "St." and "II" look for a name next to these
    # expressions.
    is_name = word[0][0].isupper() and respelled[0].islower()
    return respelled[0].upper() + respelled[1:] if is_name else respelled


def _respelled(word: str, known: dict[str, str]) -> str:
    respelling = known.get(_key(word), known.get(word))
    if respelling is not None:
        return respelling
    if _key(word).endswith("'s"):
        return _respelled(word[:-2], known) + word[-2:]
    parts = _HYPHENS.split(word)  # a list in which words and hyphens alternate
    if len(parts) > 1:
        parts[::2] = [_respelled(part, known) for part in parts[::2]]
    return "".join(parts)


def _key(word: str) -> str:
    """Return a lookup key that ignores case and the different kinds of apostrophes and hyphens.

    This function does not use `str.casefold`, which would give "Maße" and "Masse" the same key.
    """
    return unicodedata.normalize("NFC", word.lower()).translate(_SAME)


@functools.lru_cache(8)
def _respellings(pronunciations: tuple[str, ...]) -> dict[str, str]:
    entries = (one.partition("\t") for one in pronunciations)
    return {key: respelling for key, _, respelling in entries}


@functools.lru_cache(8)
def _respellings_of_forms(pronunciations: tuple[str, ...]) -> dict[str, str]:
    """Return the dict {key: respelling}. Each word has two keys: its lookup key and its upper-case
    form, such as STRASSE for Straße.
    """
    known = _respellings(pronunciations)
    return {key.upper(): respelling for key, respelling in known.items()} | known


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Return a regular expression for words, which may contain apostrophes and hyphens.

    Words consist of letters, digits and combining marks, such as vowel signs.
    """
    marks = [chr(x) for x in range(0x300, 0x1F000) if unicodedata.category(chr(x))[0] == "M"]
    letters = rf"(?:[^\W_]|[{''.join(marks)}\u200c\u200d])+"
    return re.compile(rf"{letters}(?:['’‐‑-]{letters})*")


def _read_lexicon(path: Path, cleaners: Sequence[str], table: SymbolTable) -> dict[str, str]:
    """Return {lookup key: respelling} for the words in a file. Raise UserError if lines are
    invalid."""
    lines = numbered_lines(path, "no such lexicon")
    known: dict[str, str] = {}
    problems = []
    for number, line in lines:
        if line.startswith("#"):
            continue
        try:
            word, respelling = _parse(line, cleaners, table)
            if _TWO_NAMES.match(line):
                print(
                    f"note: {path}:{number}: {word!r} is replaced with {respelling[:40]!r}. For a name "
                    "of two words, write one line for each word"
                )
            other = known.setdefault(_key(word), respelling)
            if other != respelling:
                problem = f"an earlier line has a different respelling, {other[:40]!r}"
                raise UserError(f"{word[:40]!r}: {problem}")
        except UserError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise lines_rejected(path, problems, len(lines))
    if not known:
        raise UserError(f"{path}: contains no words, {EXPECTED}")
    return known


def _parse(line: str, cleaners: Sequence[str], table: SymbolTable) -> tuple[str, str]:
    """Return the word and its respelling from a line of the lexicon."""
    line = unicodedata.normalize("NFC", line).strip()
    fields = line.split("\t") if "\t" in line else line.split(maxsplit=1)
    if len(fields) != 2:
        raise UserError(f"{line[:60]!r}: wrong number of columns, {len(fields)} ({EXPECTED})")
    word = fields[0].strip()
    respelling = " ".join(fields[1].split())
    if not _word_pattern().fullmatch(word):
        raise UserError(f"{word[:60]!r}: not a single word ({EXPECTED})")
    has_phones = respelling.startswith("/") or respelling.endswith("/")
    if has_phones and not _PHONES.fullmatch(respelling):
        raise UserError(
            f"{respelling[:60]!r}: contains only one slash (expected phones between slashes, such as /wˈɪn/)"
        )
    if has_phones and PHONES not in cleaners:
        raise UserError(
            f"{respelling[:60]!r}: contains phones, but the model reads letters. Write letters"
        )
    if respelling.lower() in HEADERS:
        raise UserError(f"{line[:60]!r}: looks like column titles ({EXPECTED})")
    if not any(character.isalnum() for character in respelling):
        raise UserError(f"{respelling[:60]!r}: contains no letters or digits ({EXPECTED})")
    if not has_phones:
        _check_letters(respelling, cleaners)
    if uses_english_rules(cleaners) and PHONES not in cleaners:
        for letter in filter(str.isalpha, respelling):
            if not text_to_sequence(letter, cleaners, table):
                raise UserError(f"{respelling[:60]!r}: the model has no symbol for {letter!r}")
    check_notations(respelling, cleaners, table)
    return word, respelling


def _check_letters(respelling: str, cleaners: Sequence[str]) -> None:
    """Raise UserError if a respelling contains characters other than letters, such as the phonetic
    symbols in dictionaries."""
    shown = repr(respelling[:60])
    for character in respelling:
        is_letter = unicodedata.category(character).startswith(_LETTER_CATEGORIES)
        if not is_letter and character not in _OTHER_CHARACTERS:
            raise UserError(f"{shown}: contains {character!r} (expected letters)")
    if not respelling[0].isalnum() and respelling[0] not in "{'’":
        raise UserError(f"{shown}: begins with {respelling[0]!r} (expected a letter)")
    phones = [phone for span in _BRACES.findall(respelling) for phone in span.split() or [""]]
    rest = _BRACES.sub("", respelling)
    if "{" in rest or "}" in rest or not all(f"@{phone}" in symbols for phone in phones):
        raise UserError(f"{shown}: the braces contain no ARPAbet phones (expected {{W IH1 N}})")
    words = respelling.split()
    # Do not treat single letters, such as "T V", as ARPAbet phones.
    is_arpabet = all(f"@{word}" in symbols for word in words) and max(map(len, words)) > 1
    if is_arpabet and (len(words) > 1 or respelling[-1].isdigit()):
        raise UserError(
            f"{shown}: contains ARPAbet phones without braces (expected {{{respelling}}})"
        )
    if _NUMBER.fullmatch(words[0]):
        raise UserError(f"{shown}: begins with a number (expected letters)")
    has_ipa = bool(IPA_LETTER.search(respelling))
    if has_ipa and PHONES not in cleaners and uses_english_rules(cleaners):
        raise UserError(
            f"{shown}: contains phones, but this model reads letters. Respell the word with letters"
        )
    if has_ipa and PHONES in cleaners:
        raise UserError(
            f"{shown}: contains phones without slashes (expected phones such as /wˈɪn/)"
        )
