"""Convert texts in many languages to International Phonetic Alphabet phones, using eSpeak NG.

    to_phones(["Guten Tag, Welt!"], "de") == ["ɡˈuːtən tˈɑːk, vˈɛlt!"]

eSpeak runs in a separate process (espeak.py). The process starts at the first request, and starts
again after a crash. Only the eSpeak process imports the packages in requirements/phones.txt.
"""

import atexit
import contextlib
import difflib
import functools
import json
import os
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacotron2_voice.utils.errors import UserError

ALIASES = {"en": "en-us", "fr": "fr-fr", "zh": "cmn"}  # eSpeak's codes for common language codes
# Names of languages, and country codes that are often used as language codes.
OTHER_NAMES = {
    "zh-cn": "cmn", "zh-tw": "cmn", "cn": "cmn", "jp": "ja", "kr": "ko", "cz": "cs", "dk": "da",
    "gr": "el", "ua": "uk", "no": "nb", "english": "en-us", "french": "fr-fr", "german": "de",
    "deutsch": "de", "spanish": "es", "italian": "it", "portuguese": "pt", "dutch": "nl",
    "russian": "ru", "japanese": "ja", "korean": "ko", "chinese": "cmn", "mandarin": "cmn",
    "polish": "pl", "turkish": "tr", "swedish": "sv", "danish": "da", "norwegian": "nb",
    "finnish": "fi", "greek": "el", "czech": "cs", "hungarian": "hu", "romanian": "ro",
    "ukrainian": "uk", "armenian": "hy", "hebrew": "he", "arabic": "ar", "hindi": "hi",
    "persian": "fa", "vietnamese": "vi", "indonesian": "id", "thai": "th", "bulgarian": "bg",
    "croatian": "hr", "serbian": "sr", "catalan": "ca", "urdu": "ur", "bengali": "bn",
}  # fmt: skip
SIGNS = "%&@#§‰"  # symbols that Unicode classifies as punctuation, but that eSpeak speaks as words
# Characters that eSpeak, depending on the language, speaks as words or skips.
SPOKEN = f"{SIGNS}*/_"
# If a language has no word for one of these symbols, eSpeak speaks an English word.
NAMED_SIGNS = "%&@#§+=/−"
ROMAN, CIRCLED = "\u2160-\u217f", "\u2460-\u2473\u24b6-\u24ea\u3251-\u325f\u32b1-\u32bf"
# Punctuation that may occur inside a word, as in l'eau, Nord-Süd, col·legi, գնա՛նք and צה״ל.
WORD_MARKS = "'’‘‐‑-·•‧־՚՛՜՝՞՟׳״"
# Punctuation that may occur inside a word (z.B., EU:n), but only in scripts with capital letters.
# In scripts without capital letters, this punctuation ends a sentence.
CASED_WORD_MARKS = ".:"
HEBREW_MARKS = "׳״"  # Hebrew punctuation that belongs to a word even at the end of the word
HEBREW_POINTS = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]")
# Armenian marks inside words. eSpeak speaks the names of these marks in all other languages.
ARMENIAN_MARKS = "՚՛՜՝՞՟"
ARMENIAN = ("hy", "hyw")
# Between letters, people also type accents and primes as apostrophes: п`ять, l´eau.
APOSTROPHES = re.compile(
    r"(?<=[^\W\d_])[`´\u02b9\u02bd\u02ca\u02cb\u201b\uff07\u2032\uff40](?=[^\W\d_])"
    r"|(?<=\w)\u02bc(?=\w)|(?<!\w)\u02bc(?=\w)"
)
# Hyphens that join words, but that eSpeak speaks by name: Hebrew, Canadian and Mongolian hyphens.
HYPHENS = re.compile(r"(?<=\w)[\u05be\u1400\u1806](?=\w)")
# In some languages, eSpeak also speaks the names of these dots: étudiant·e·s.
MIDDLE_DOTS = re.compile(r"(?<=[^\W\d_])[·•‧](?=[^\W\d_])")
PROBE = ("mano", "pela")  # two words to test whether eSpeak speaks the name of a mark between them
LONE_ACCENTED = re.compile(r"(?<!\w)[À-ÖØ-öø-ÿ](?!\w)")  # a word of one accented letter
MIN_ACCENT = 3  # the name of an accent adds at least this number of phone characters
MIN_MARK = 4  # the name of a mark, such as "colon", adds at least this number of phone characters
# Greek words with a comma inside: ό,τι (whatever). The pronunciation is that of ότι.
GREEK_COMMA = re.compile(r"\b[όο],(?:(τι)|(τιδήποτε))\b", re.IGNORECASE)
# Pinyin with a tone digit. eSpeak reads the vowel ü as English letters, and reads v (after l and n)
# and u (after j, q, x and y) correctly.
PINYIN_UMLAUT = re.compile(r"(?<=[lnLN])(?:ü|Ü|[uU]:)(?=[a-zA-Z]{0,2}[0-5])")
PINYIN_U = re.compile(r"(?<=[jqxyJQXY])(?:ü|Ü|[uU]:|[vV])(?=[a-zA-Z]{0,2}[0-5])")
# Matches variants of ordinary letters, digits and symbols: full-width and half-width forms,
# ligatures, and symbols such as ℃, ㎝ and ㈱. Unicode's NFKC normalization replaces these variants
# with the ordinary characters.
OTHER_FORMS = re.compile(
    "[\u2100-\u2115\u2119-\u211d\u2121\u212a-\u2134\u2139\u2474-\u24b5\u2f00-\u2fd5\u3200-\u3250\u3260-\u32b0"
    "\u32c0-\u33ff\ufb00-\ufb17\ufb20-\ufdfc\ufe70-\ufefc\uff04-\uff06\uff0b\uff10-\uff19\uff1d"
    "\uff20-\uff3a\uff41-\uff5a\uff66-\uff9f\uffe0\uffe1\uffe5\uffe6\U0001d400-\U0001d7ff"
    "\U0001f100-\U0001f16b]+"
)
FRACTIONS = re.compile("[¼-¾⅐-⅞↉]")
# Phones from the English names of fractions. If a language has no names for fractions, eSpeak
# speaks the English names.
ENGLISH_FRACTIONS = ("hɑːf", "θɜːd")
# eSpeak speaks most words that end in 儿, such as 这儿, as English letters. However, eSpeak correctly
# speaks 而, which has the same pronunciation as 儿.
ERHUA = re.compile("(?<=[\u4e00-\u9fff])儿")
LONG_VOWELS = re.compile("ー{2,}")
LONG_N = re.compile("(?<=[んン])ー")
KANA = ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
BETWEEN_SCRIPTS = re.compile(r"(?<=[A-Za-z])(?=[\u3040-\u30ff])|(?<=[\u3040-\u30ff])(?=[A-Za-z])")
NUMBER_MARKS = ".,:'’"
# Matches the minus of a negative number. In "5 -10" and "5-10", the hyphen means "to".
MINUS = re.compile(r"(?<![\w.,:/%°)\]}\-–—−-])(?<!\d\s)[-−－](?=\d)|(?<=\w)\s?−\s?(?=\d)")
# The word for "minus" in each language. The programs write this word because, in most languages,
# eSpeak skips the hyphen of "-5" and reads − as an English word.
MINUS_WORDS = {
    "af": "minus", "ar": "ناقص", "be": "мінус", "bg": "минус", "bn": "মাইনাস", "bs": "minus",
    "ca": "menys", "cmn": "负", "cs": "mínus", "cy": "minws", "da": "minus", "de": "minus",
    "el": "μείον", "en": "minus", "eo": "minus", "es": "menos", "et": "miinus", "eu": "minus",
    "fa": "منفی", "fi": "miinus", "fr": "moins", "he": "מינוס", "hi": "माइनस", "hr": "minus",
    "hu": "mínusz", "hy": "մինուս", "id": "minus", "is": "mínus", "it": "meno", "ja": "マイナス",
    "ka": "მინუს", "kk": "минус", "ko": "마이너스", "lb": "minus", "lt": "minus", "lv": "mīnuss",
    "mk": "минус", "ml": "മൈനസ്", "nb": "minus", "ne": "माइनस", "nl": "min", "pl": "minus",
    "pt": "menos", "ro": "minus", "ru": "минус", "sk": "mínus", "sl": "minus", "sr": "minus",
    "sv": "minus", "sw": "hasi", "ta": "மைனஸ்", "te": "మైనస్", "th": "ลบ", "tr": "eksi",
    "uk": "мінус", "vi": "âm",
}  # fmt: skip
# Matches the full stop in the Portuguese 1.º and n.º. Without the full stop, eSpeak reads 1º and nº
# correctly.
ORDINAL_STOP = re.compile(r"(?<=\w)\.(?=[ºª])")
MIN_ORDINAL = 8  # the name of º, such as "ordinal masculino", has at least this number of phones
NOT_LATIN = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")  # letters of scripts other than Latin
# Two letters that eSpeak cannot read in any language. Their code points begin with different
# digits.
UNKNOWN_LETTERS = "\u2135\u1d7d"
FIRST_PICTURE = "\u2190"
EMOJI_STYLE = "\ufe0f"  # variation selector: displays the preceding character as an emoji
MIN_CODE = 4  # a spoken code point, such as "2135", has at least this number of phone characters
# eSpeak has spoken a code point in a word if the phones of the word contain this number of
# consecutive characters from the phones of the code point.
COMPARED = 6
# If the phones of a word and the phones of its letters are more similar than this value, eSpeak has
# spelled out the word letter by letter.
MIN_SIMILARITY = 0.7
PINYIN_MARKS = "āáǎàēéěèīíǐìōóǒòūúǔùǖǘǚǜ"
LATIN_WORD = re.compile("[a-zA-Z\u00c0-\u024f]{2,}")
NOT_ASCII = re.compile(r"[^\W\d_\u0000-\u007f]")
STRESS = re.compile("[ˈˌ]")
# `_letter_names` takes this number of letters from the start of a script, and the same number of
# letters at equal distances from the whole script.
SAMPLES = 16
# If several letter names begin with the same phones, these phones count as a word, such as
# "letter", only if they have at least this number of characters.
MIN_NAME = 5
GRACE_SECONDS = 1  # seconds to wait for the eSpeak process to exit before it is killed
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("espeak.py"))]


# ---------------------------------------------------------------------------- the process


class Crashed(Exception):
    """Raised when the eSpeak process exits without an answer."""


class SpelledLetters(UserError):
    """Raised if eSpeak cannot read letters and would speak the names of the letters instead."""


class Espeak:
    """Run an eSpeak process that all threads of this process share.

    The eSpeak process exits when this process exits. A forked process starts its own eSpeak
    process.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the eSpeak process, and return its answer.

        Raises:
            Crashed: if the eSpeak process exits. After a crash, the next request starts a new
                process.
            UserError: if eSpeak reports a problem.
        """
        with self._lock:
            if self.process is None:
                self.process = subprocess.Popen(
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            answer = b""
            try:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.write(json.dumps(request).encode() + b"\n")
                    self.process.stdin.flush()
                    answer = self.process.stdout.readline()
            finally:
                # No answer means that eSpeak crashed, or that Ctrl-C interrupted the wait.
                if not answer:
                    self.close()
        if not answer:
            raise Crashed
        answered = json.loads(answer)
        if "problem" in answered:
            raise UserError(f"phones: {answered['problem']:.200}")
        return answered

    def close(self) -> None:
        process = self.process
        self.process = None
        if process is None:
            return
        try:
            # Closing the pipe lets the process exit and delete phonemizer's copy of eSpeak.
            with contextlib.suppress(BrokenPipeError):
                process.communicate(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # the process is still converting a text
            process.kill()
            process.wait()

    def _forget(self) -> None:
        """After a fork, forget the eSpeak process, because it belongs to the parent process."""
        if self.process is not None:
            # Set a return code, so that Python does not wait for the eSpeak process. Waiting would
            # fail, because the eSpeak process is not a child of the forked process.
            self.process.returncode = 0
        self.process = None
        self._lock = threading.Lock()


_espeak = Espeak()


@functools.cache
def _about() -> dict[str, Any]:
    """Return a dict with eSpeak's version and the languages, {code: name of the language}, that
    eSpeak supports."""
    try:
        return _espeak.ask()
    except Crashed:
        raise UserError("phones: eSpeak NG crashes when it starts. Install it again.") from None


# ---------------------------------------------------------------------------- languages


def espeak_code(language: str) -> str:
    """Return eSpeak's code for a name of a language, such as german, or for a common code. Return
    any other text in lower case.

        espeak_code("zh-CN")  # "cmn"
    """
    name = language.lower().replace("_", "-")
    return {**ALIASES, **OTHER_NAMES}.get(name, name)


def check_language(language: str) -> str:
    """Return eSpeak's code for a language, such as fr-fr for fr.

    Raises:
        UserError: if eSpeak does not support the language, or if a package is missing.
    """
    known = _about()["languages"]
    name = language.lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    base = name.partition("-")[0]
    meant = [OTHER_NAMES[name]] if name in OTHER_NAMES else [base] if base in known else near
    suggestion = f"did you mean {meant[0]}? " if meant else ""
    problem = f"language={language[:40]}: eSpeak NG does not support this language"
    raise UserError(f"{problem}; {suggestion}It supports {', '.join(sorted(known))}")


def espeak_version() -> str:
    """Return the version of eSpeak, such as 1.52.0, or raise UserError if a package is missing."""
    return _about()["version"]


def version_of_phones(recorded: str) -> str:
    """Return the version of eSpeak that produced the phones of a run.

    If the recorded version differs from the installed version, print a warning.

    Args:
        recorded: the version in the settings of the run. If `recorded` is empty, the function
            returns the installed version.
    """
    here = espeak_version()
    if recorded not in ("", here):
        print(
            f"warning: eSpeak NG {recorded} produced the phones for training, but version {here} is "
            "installed. The two versions may produce different phones for the same text"
        )
    return recorded or here


# ---------------------------------------------------------------------------- phones


def to_phones(texts: Sequence[str], language: str) -> list[str]:
    """Convert each text to phones with stress marks, in Unicode form NFC.

    Punctuation is kept, and consecutive spaces become one space. A text without words has no
    phones. eSpeak only receives the words between punctuation marks. Phonemizer's own option that
    keeps punctuation is not used, because this option loses full-width punctuation, and mixes up
    the texts if one of them is empty.

    Raises:
        UserError: if eSpeak does not support the language or crashes on a text, or if a package is
            missing.
        SpelledLetters: if eSpeak would speak the names of letters, such as "Chinese letter".
    """
    language = check_language(language)
    plain = [_with_minus(with_plain_letters(text, language), language) for text in texts]
    plain = [with_plain_numbers(text, language) for text in plain]
    plain = [re.sub(r"\s+", " ", without_pictures(text)) for text in plain]
    pieces = [_split_at_marks(text, language) for text in plain]
    origin = {
        x.strip(): text for text, piece in zip(texts, pieces, strict=True) for x in piece[::2]
    }
    origin.pop("", None)
    phones = _speak(origin, language)
    _check_is_read(phones, language)
    return ["".join(x if i % 2 else _put(x, phones) for i, x in enumerate(p)) for p in pieces]


def _split_at_marks(text: str, language: str) -> list[str]:
    """Split a text at the punctuation marks outside words.

    The result alternates between text and single punctuation marks. The result begins and ends with
    text, which may be empty.
    """
    pieces = [""]
    for index, character in enumerate(text):
        if _is_mark(character) and not _is_inside_word(text, index, language):
            pieces += [character, ""]
        else:
            pieces[-1] += character
    return pieces


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in SPOKEN


def _is_inside_word(text: str, index: int, language: str) -> bool:
    """Return whether the punctuation mark at `index` belongs to a word or to a number."""
    mark = text[index]
    before = text[index - 1 : index]
    after = text[index + 1 : index + 2]
    if not before or before.isspace() or _is_mark(before):
        return False
    if mark in HEBREW_MARKS:
        return True
    if not after or after.isspace() or _is_mark(after):
        return False
    if before.isdecimal() and after.isdecimal():
        return mark in NUMBER_MARKS  # eSpeak may read the hyphen of "1914-18" as minus
    if mark in CASED_WORD_MARKS:
        # In Finnish, a colon connects a number with a grammatical ending, as in 20:een.
        is_ending = before.isdecimal() and mark == ":"
        is_cased = is_ending or before.lower() != before.upper()
        is_cased = is_cased and after.lower() != after.upper()
        # eSpeak may speak the name of a dot or colon between words in other scripts than Latin.
        if NOT_LATIN.match(before) and NOT_LATIN.match(after):
            is_cased = mark == "." and _is_between_single_letters(text, index)
        elif mark == ":" and not is_ending and _speaks_name(mark, language):
            return False
        # After a lower-case word, a capital letter starts a new sentence, as in "the end.Then".
        starts_sentence = index > 1 and text[index - 2 : index].islower() and after.isupper()
        return is_cased and not (starts_sentence and text[index - 2].isalpha())
    if mark == '"':
        return _script(before) == _script(after) == "HEBREW"
    if mark in ARMENIAN_MARKS and language not in ARMENIAN:
        return False
    return mark in WORD_MARKS


@functools.cache
def _speaks_name(mark: str, language: str) -> bool:
    """Return whether eSpeak speaks the name of a mark between two words, such as "colon"."""
    together = _joined(_phones_of_word(mark.join(PROBE), language))
    return len(together) >= len(_joined(_phones_of_word(" ".join(PROBE), language))) + MIN_MARK


def _is_between_single_letters(text: str, index: int) -> bool:
    """Return whether the mark at `index` is between two single letters, as in the Greek π.χ."""
    start, end = text[max(0, index - 2) : index - 1], text[index + 2 : index + 3]
    return not start.isalpha() and not end.isalpha()


# ---------------------------------------------------------------------------- spelled letters


def _check_is_read(phones: dict[str, str], language: str) -> None:
    """Raise SpelledLetters if eSpeak speaks the names of letters, such as "Chinese letter".

    Args:
        phones: {words: phones of these words}.
        language: eSpeak's code for the language.
    """
    spelled = [letter for words in phones for letter in _spelled(words, phones[words], language)]
    if spelled:
        listed = "".join(dict.fromkeys(spelled))
        problem = f"eSpeak NG would skip these characters or speak their names: {listed[:60]}"
        raise SpelledLetters(f"language={language}: {problem} (expected words of this language)")


def _spelled(words: str, phones: str, language: str) -> list[str]:
    """Return the letters in `words` whose names eSpeak speaks. `phones` contains the phones that
    eSpeak returned for `words`."""
    spelled = [x for x in FRACTIONS.findall(words) if not _reads_fraction(x, language)]
    spelled += [
        letter
        for letter in dict.fromkeys(NOT_ASCII.findall(words))
        if _has_part(_joined(phones), _code_point(letter, language))
    ]
    signs = [x for x in dict.fromkeys(words) if unicodedata.category(x)[0] == "S"]
    spelled += [x for x in signs if not x.isascii() and _is_spoken_as_script(x, language)]
    spelled += [x for x in dict.fromkeys(words) if x in NAMED_SIGNS and _is_english(x, language)]
    for letter in dict.fromkeys(re.findall("[ºª]", words)):
        name = _joined(_phones_of_word(letter, language))
        if len(name) >= MIN_ORDINAL and _has_part(_joined(phones), name):
            spelled.append(letter)
    for letter in dict.fromkeys(NOT_LATIN.findall(words)):
        script = _script(letter)
        # eSpeak cannot read Japanese kanji. eSpeak skips kanji if kana follow.
        if language == "ja" and script == "CJK":
            spelled.append(letter)
            continue
        names = _letter_names(script, language)
        if not names and script in KANA:
            # In all languages, eSpeak reads a single ー as "Japanese letter".
            names = (STRESS.sub("", _phones_of_word("ー", language)),)
        own_phones = STRESS.sub("", _phones_of_word(letter, language))
        own_names = [name for name in names if name and own_phones.startswith(name)]
        if any(name in STRESS.sub("", phones) for name in own_names):
            spelled.append(letter)
    if language == "cmn":
        # eSpeak reads pinyin with tone marks as English, and pinyin with tone digits correctly.
        spelled += [x for x in dict.fromkeys(words) if x.lower() in PINYIN_MARKS]
    if language == "ja":
        # In Japanese text, eSpeak spells out words that are written with Latin letters. Skip words
        # in capitals, which may be initials.
        latin = [x for x in LATIN_WORD.findall(words) if not x.isupper()]
        spelled += [letter for word in latin for letter in word]
    if spelled or _count_parts(phones) < words.count(" ") + 3:
        return spelled
    for word in re.findall(r"[^\W\d_]{3,}", words):
        # Skip words in capitals, because these words may be initials. Skip Chinese characters,
        # because a Chinese character is a whole word instead of a letter.
        if word.isupper() or len(NOT_LATIN.findall(word)) < len(word) or _script(word) == "CJK":
            continue
        spoken = _phones_of_word(word, language)
        if _count_parts(spoken) < len(word):
            continue
        # The phones of a word that is spelled out may differ slightly from the phones of its single
        # letters, because eSpeak adapts some phones to the neighboring phones.
        letters = "".join(_joined(_phones_of_word(letter, language)) for letter in word)
        if difflib.SequenceMatcher(None, _joined(spoken), letters).ratio() > MIN_SIMILARITY:
            spelled += word
    return spelled


def _count_parts(phones: str) -> int:
    """Return the number of words or the number of primary stresses in `phones`, whichever is
    larger. eSpeak may merge the names of several letters into a single word."""
    return max(phones.count(" ") + 1, phones.count("ˈ"))


def _is_english(sign: str, language: str) -> bool:
    """Return whether eSpeak speaks the English name of a symbol although the language is not
    English."""
    if language.startswith("en"):
        return False
    return _joined(_phones_of_word(sign, language)) == _joined(_phones_of_word(sign, "en-gb"))


def _is_spoken_as_script(sign: str, language: str) -> bool:
    """Return whether eSpeak speaks a symbol as "Japanese letter" or "Chinese letter". For example,
    eSpeak speaks the minus sign as "Japanese letter" in Japanese.
    """
    phones = STRESS.sub("", _phones_of_word(sign, language))
    names = {STRESS.sub("", _phones_of_word("ー", language)), *_letter_names("CJK", language)}
    return phones in names - {""}


def _reads_fraction(fraction: str, language: str) -> bool:
    """Return whether eSpeak can speak a fraction, such as ½, in this language."""
    phones = STRESS.sub("", _phones_of_word(fraction, language))
    is_english = any(part in phones for part in ENGLISH_FRACTIONS)
    return bool(phones) and (language.startswith("en") or not is_english)


@functools.lru_cache(2**16)
def _code_point(letter: str, language: str) -> str:
    """Return the phones of a letter's code point, if eSpeak speaks the code point as a part of the
    letter's name. For example, the name of ℵ is "letter 2135". If the name contains no code point,
    return ""."""
    phones = _joined(_phones_of_word(letter, language))
    word = _word_for_letter(language)
    code = phones[len(word) :]
    return code if word and phones.startswith(word) and len(code) >= MIN_CODE else ""


def _has_part(phones: str, code: str) -> bool:
    """Return whether `phones` contains COMPARED consecutive characters of `code`, the phones of a
    code point.

    The function does not compare the whole `code`, because eSpeak may reduce vowels if it speaks a
    code point inside a word.
    """
    starts = range(max(1, len(code) - COMPARED + 1)) if code else ()
    return any(code[start : start + COMPARED] in phones for start in starts)


@functools.cache
def _word_for_letter(language: str) -> str:
    """Return the phones of the word that eSpeak says before a code point. For example, English
    eSpeak reads the unknown letter ℵ as "letter 2135". In English, therefore return the phones of
    "letter"."""
    names = [_joined(_phones_of_word(letter, language)) for letter in UNKNOWN_LETTERS]
    return os.path.commonprefix(names)  # noqa: RUF071


def _joined(phones: str) -> str:
    """Return phones without stress marks and spaces."""
    return STRESS.sub("", phones).replace(" ", "")


def _script(letters: str) -> str:
    """Return the script of the first letter, such as CYRILLIC or CJK (from the Unicode name)."""
    return unicodedata.name(letters[0], "").partition(" ")[0]


@functools.cache
def _letter_names(script: str, language: str) -> tuple[str, ...]:
    """Return the phones with which the names of a script's letters begin.

    If eSpeak cannot read the letters of a script, it speaks the names of these letters. All names
    of the script's letters begin with the same word, such as "Arabic" in "Arabic seen" or "letter"
    in "letter 2135". If eSpeak can read the letters, their phones have no common beginning, and the
    result is empty.
    """
    characters = map(chr, range(0x20000))
    found = [x for x in characters if unicodedata.category(x)[0] == "L" and _script(x) == script]
    # In every language, letters that differ only in case and accents have similar names.
    letters = [
        *{unicodedata.normalize("NFD", x.casefold())[0]: x for x in reversed(found)}.values()
    ]
    letters.reverse()
    spread = letters[:: max(1, len(letters) // SAMPLES)]
    samples = dict.fromkeys([*letters[:SAMPLES], *spread[:SAMPLES]])
    spoken = _speak({letter: letter for letter in samples}, language).values()
    phones = sorted(STRESS.sub("", one) for one in spoken)
    triples = zip(phones, phones[2:], strict=False)
    beginnings = [os.path.commonprefix(triple) for triple in triples]  # noqa: RUF071
    return tuple({name for name in beginnings if len(name) >= MIN_NAME})


@functools.lru_cache(2**16)
def _phones_of_word(word: str, language: str) -> str:
    return _speak({word: word}, language)[word]


# ---------------------------------------------------------------------------- numbers and symbols


def with_plain_letters(text: str, language: str) -> str:
    """Rewrite a text so that eSpeak does not speak the names of its letters or marks.

    Rare apostrophes and hyphens in words become plain apostrophes and hyphens, and full-width
    letters become plain letters (`OTHER_FORMS`). In Japanese, spaces separate kana from Latin letters, and repeated
    marks for long vowels (ー) become a single mark. In Mandarin, 儿 after another character becomes
    而, which has the same pronunciation, and ü in pinyin with tone digits becomes v or u. In Greek,
    ό,τι becomes ότι. In Portuguese, 1.º becomes 1º. A word such as à loses its accent if eSpeak speaks the name of the accent. In Hebrew, vowel points are removed, because eSpeak ignores vowel points.
    """
    text = APOSTROPHES.sub("'", text)
    if language == "cmn":
        text = PINYIN_UMLAUT.sub("v", unicodedata.normalize("NFC", text))
        text = PINYIN_U.sub("u", text)
    if text.isascii():
        return text
    if language == "he":
        text = HEBREW_POINTS.sub("", text)
    if language == "el":
        text = unicodedata.normalize("NFC", text)
        text = GREEK_COMMA.sub(lambda x: "ότι" if x[1] else "οτιδήποτε", text)
    text = ORDINAL_STOP.sub("", HYPHENS.sub("-", text))
    text = MIDDLE_DOTS.sub(lambda x: "-" if _speaks_name(x[0], language) else x[0], text)
    text = OTHER_FORMS.sub(lambda x: unicodedata.normalize("NFKC", x[0]), text)
    text = LONE_ACCENTED.sub(lambda x: _without_spoken_accent(x[0], language), text)
    if language == "ja":
        text = BETWEEN_SCRIPTS.sub(" ", text)
        text = LONG_VOWELS.sub("ー", text)
        text = LONG_N.sub(lambda x: x.string[x.start() - 1], text)
    if language == "cmn":
        text = ERHUA.sub("而", text)
    return text


@functools.cache
def _without_spoken_accent(letter: str, language: str) -> str:
    """Return a letter without its accent if eSpeak speaks the name of the accent, as in the Dutch
    "a grave" for à."""
    plain = unicodedata.normalize("NFD", letter)[0]
    phones, plain_phones = (_joined(_phones_of_word(x, language)) for x in (letter, plain))
    return plain if len(phones) >= len(plain_phones) + MIN_ACCENT else letter


def without_pictures(text: str) -> str:
    """Replace emoji and other pictures, and backslashes, with spaces. eSpeak would speak their
    names, such as "slightly smiling face"."""
    return "".join(" " if _is_picture(character) else character for character in text)


def _is_picture(character: str) -> bool:
    if character.isascii():
        return character == "\\"
    # Symbols that are not pictures, such as ° and ™, have lower code points than pictures. The
    # category "Sk" contains the skin tones of emoji.
    is_symbol = unicodedata.category(character) in ("So", "Sk")
    return (is_symbol and character >= FIRST_PICTURE) or character == EMOJI_STYLE


def with_plain_numbers(text: str, language: str) -> str:
    """Rewrite the numbers in a text so that eSpeak can read the numbers.

    Digits that eSpeak cannot read in this language become 0 to 9, because eSpeak skips the digits of
    most scripts. Roman and circled numerals become plain letters and digits, because eSpeak speaks
    the Roman numeral Ⅷ as "letter 2177".
    """
    if text.isascii():
        return text
    text = re.sub(rf"(?<=\w)(?=[{CIRCLED}])|(?<=[{CIRCLED}])(?=\w)", " ", text)
    text = re.sub(f"[{ROMAN}{CIRCLED}]", lambda x: unicodedata.normalize("NFKC", x[0]), text)
    return re.sub(r"\d", lambda x: _plain_digit(x[0], language), text)


def _with_minus(text: str, language: str) -> str:
    """Replace the minus sign or hyphen before a negative number with the word for "minus" in the
    language of the text.

    If `MINUS_WORDS` does not contain the language, the sign − replaces the hyphen.
    `_check_is_read` rejects this sign if eSpeak would speak its English name.
    """
    word = MINUS_WORDS.get(language.partition("-")[0])
    spoken = f"{word} " if word else "−"
    return MINUS.sub(lambda x: " " * x.string[x.start() - 1 : x.start()].isalnum() + spoken, text)


@functools.cache
def _plain_digit(digit: str, language: str) -> str:
    value = unicodedata.decimal(digit)
    zero = ord(digit) - value
    # Test two digits, because eSpeak may speak the name of a single digit, such as "Bengali digit
    # three".
    number = chr(zero + 3) + chr(zero + 4)
    return digit if _speak({number: number}, language)[number] else str(value)


def is_silent(character: str, language: str) -> bool:
    """Return whether a letter, number or other symbol has no phones, such as ‰ in Russian.

    Raises:
        UserError: if eSpeak does not support the language or crashes on the character, or if a
            package is missing.
    """
    is_sign = unicodedata.normalize("NFKC", character) in SIGNS
    is_read = is_sign or _is_picture(character) or unicodedata.category(character)[0] in "LNS"
    return is_read and not _phones_of_character(character, check_language(language)).strip()


@functools.lru_cache(2**16)
def _phones_of_character(character: str, language: str) -> str:
    try:
        return to_phones([character], language)[0]
    except SpelledLetters:
        return character  # do not treat the letter as silent, because eSpeak may read it in a word


def _speak(origin: dict[str, str], language: str) -> dict[str, str]:
    """Convert the keys of `origin` to phones, and return {words: phones}.

    Args:
        origin: {words: a text that contains these words}. The words have no spaces at the start or
            end. The texts appear only in error messages about crashes.
        language: eSpeak's code for the language.
    """
    words = [*origin]
    try:
        phones = _espeak.ask(language=language, texts=words)["phones"] if words else []
    except Crashed:
        if len(words) == 1:
            problem = f"eSpeak NG crashes on {words[0]!r:.60}"
            raise UserError(f"{origin[words[0]]!r:.60}: {problem}") from None
        phones = [_speak({word: origin[word]}, language)[word] for word in words]
    return dict(zip(words, phones, strict=True))


def _put(words: str, phones: dict[str, str]) -> str:
    """Return the phones of `words`, with the spaces at the start and end of `words`."""
    bare = words.strip()
    if not bare:
        return words
    return words.replace(bare, unicodedata.normalize("NFC", phones[bare]).strip(), 1)
