"""Convert texts of many languages to phones of the International Phonetic Alphabet, by eSpeak NG.

    to_phones(["Guten Tag, Welt!"], "de") == ["ɡˈuːtən tˈɑːk, vˈɛlt!"]

eSpeak runs in a process of its own (tacotron2_voice/text/espeak.py), which is started when it is needed, and anew
after a crash. The packages of requirements/phones.txt are imported only there.
"""

import atexit
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

ALIASES = {"en": "en-us", "fr": "fr-fr", "zh": "cmn"}  # what eSpeak has under another name
SPOKEN = "%&@#*/\\_§‰"  # punctuation by Unicode's categories, but eSpeak reads words for it
ROMAN, CIRCLED = "\u2160-\u217f", "\u2460-\u2473\u24ea\u3251-\u325f\u32b1-\u32bf"
GRACE_SECONDS = 1  # to end by itself
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("espeak.py"))]


# ---------------------------------------------------------------------------- the process


class Crashed(Exception):
    """eSpeak's process ended in place of an answer."""


class Espeak:
    """The process that runs eSpeak, for all threads of this one. It ends when this one does,
    however that ends; a fork of this one starts its own."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request. Crashed if the process ends; the next request starts another."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            if self.process is None:
                pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
                self.process = subprocess.Popen(
                    COMMAND, bufsize=0, stdin=pipe, stdout=pipe, stderr=nothing
                )
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            rest, answer = memoryview(line), b""
            try:
                while rest:
                    rest = rest[self.process.stdin.write(rest) :]
                while not answer.endswith(b"\n"):
                    answer += (more := self.process.stdout.read(2**16))
                    if not more:
                        break
            except BrokenPipeError:
                pass
            except BaseException:  # Ctrl-C: the answer would be taken for that of the next request
                self.close()
                raise
            if not answer.endswith(b"\n"):
                self.close()
                raise Crashed
        answered = json.loads(answer)
        if "missing" in answered:
            fix = "pip install espeakng-loader phonemizer, or all of requirements/phones.txt"
            raise UserError(f"phones: {answered['missing']}; {fix}")
        if "fault" in answered:
            raise UserError(f"phones: eSpeak NG says {answered['fault']:.200}")
        return answered

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            self._close_pipes(process)  # at which it ends, and deletes phonemizer's copy of eSpeak
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:  # a text takes long
                process.kill()
                process.wait()

    @staticmethod
    def _close_pipes(process: subprocess.Popen) -> None:
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()

    def _forget(self) -> None:
        """In a fork: the process belongs to the parent, and ends when it closes its pipe."""
        process, self.process, self._lock = self.process, None, threading.Lock()
        if process is not None:
            self._close_pipes(process)
            process.returncode = 0  # nobody waits for it here


_espeak = Espeak()


@functools.cache
def _about() -> dict[str, Any]:
    """eSpeak's version, and its names of languages with what they stand for."""
    try:
        return _espeak.ask()
    except Crashed:
        fix = "pip install --force-reinstall espeakng-loader phonemizer"
        raise UserError(f"phones: eSpeak NG crashes when it is started; {fix}") from None


# ---------------------------------------------------------------------------- languages


def check_language(language: str) -> str:
    """Return eSpeak's name of a language, such as fr-fr for fr. UserError if eSpeak does not know
    it or a package is missing."""
    known, name = _about()["languages"], language.lower().replace("_", "-")
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
    return _about()["version"]


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


# ---------------------------------------------------------------------------- phones


def to_phones(texts: Sequence[str], language: str) -> list[str]:
    """Convert each text to phones with stress, in Unicode's form NFC. Punctuation stays in place,
    blanks become one space; a text without words has no phones. Errors as `check_language`, and
    UserError for a text with which eSpeak crashes.

    phonemizer can keep punctuation itself, but after an empty text it gives a text its neighbour's,
    and it loses full-width marks. Here eSpeak gets only what is between the marks.
    """
    language = check_language(language)
    plain = [re.sub(r"\s+", " ", with_plain_numbers(text, language)) for text in texts]
    used = set("".join(plain)).difference(SPOKEN)
    marks = re.escape("".join(sorted(x for x in used if unicodedata.category(x)[0] == "P")))
    pieces = [[text] for text in plain]
    if marks:
        in_number = r"(?<=\d)[.,:'’]\d"
        in_word = rf"(?<=[^\s{marks}])['’‐-][^\s{marks}]"
        mark = re.compile(rf"((?!{in_number}|{in_word})[{marks}])")
        pieces = [mark.split(text) for text in plain]  # words, mark, words, mark, …, words
    origin = {
        x.strip(): text for text, piece in zip(texts, pieces, strict=True) for x in piece[::2]
    }
    origin.pop("", None)
    phones = _speak(origin, language)
    return ["".join(x if i % 2 else _put(x, phones) for i, x in enumerate(p)) for p in pieces]


def with_plain_numbers(text: str, language: str) -> str:
    """A text with digits as 0 to 9 unless eSpeak reads those of their script in this language, and
    with Roman and circled numbers as letters and digits: it says nothing for the digits of most
    scripts, and reads Ⅷ as "letter 2177"."""
    if text.isascii():
        return text
    text = re.sub(rf"(?<=\w)(?=[{CIRCLED}])|(?<=[{CIRCLED}])(?=\w)", " ", text)
    text = re.sub(f"[{ROMAN}{CIRCLED}]", lambda x: unicodedata.normalize("NFKC", x[0]), text)
    return re.sub(r"\d", lambda x: _plain_digit(x[0], language), text)


@functools.cache
def _plain_digit(digit: str, language: str) -> str:
    value = unicodedata.decimal(digit)
    zero = ord(digit) - value
    # Two of them, for a single one of another script may be read by its name, "Bengali digit".
    number = chr(zero + 3) + chr(zero + 4)
    return digit if _speak({number: number}, language)[number] else str(value)


def is_silent(character: str, language: str) -> bool:
    """Whether eSpeak says nothing for a letter, number or sign, such as € in Russian. Errors as
    `to_phones`."""
    is_read = unicodedata.category(character)[0] in "LNS"
    return is_read and not _phones_of_character(character, check_language(language))


@functools.lru_cache(2**16)
def _phones_of_character(character: str, language: str) -> str:
    return to_phones([character], language)[0]


def _speak(origin: dict[str, str], language: str) -> dict[str, str]:
    """The phones of words, which have no blanks around them; of which text they are is said where
    eSpeak crashes."""
    words = [*origin]
    try:
        phones = _espeak.ask(language=language, texts=words)["phones"] if words else []
    except Crashed:
        if len(words) > 1:  # one of them is at fault, or none if the crash was another's
            return {
                x: y for word in words for x, y in _speak({word: origin[word]}, language).items()
            }
        fix = "write it otherwise, or leave it out"
        raise UserError(
            f"{origin[words[0]]!r:.60}: eSpeak NG crashes on {words[0]!r:.60}; {fix}"
        ) from None
    return dict(zip(words, phones, strict=True))


def _put(words: str, phones: dict[str, str]) -> str:
    """The phones in the place of words, with the blanks around them."""
    if not (bare := words.strip()):
        return words
    return words.replace(bare, unicodedata.normalize("NFC", phones[bare]).strip(), 1)
