"""Convert texts of many languages to phones of the International Phonetic Alphabet, with eSpeak NG.

    to_phones(["Guten Tag, Welt!"], "de") == ["ɡˈuːtən tˈɑːk, vˈɛlt!"]

eSpeak runs in a separate process (espeak.py), which is started on first use and after a crash. Only
this process imports the packages of requirements/phones.txt.
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

ALIASES = {"en": "en-us", "fr": "fr-fr", "zh": "cmn"}  # common language codes and eSpeak's codes
SPOKEN = "%&@#*/\\_§‰"  # punctuation marks that eSpeak would read as words
ROMAN, CIRCLED = "\u2160-\u217f", "\u2460-\u2473\u24ea\u3251-\u325f\u32b1-\u32bf"
GRACE_SECONDS = 1  # seconds in which the process may end by itself
COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("espeak.py"))]


# ---------------------------------------------------------------------------- the process


class Crashed(Exception):
    """Report that eSpeak's process ended without an answer."""


class Espeak:
    """Run eSpeak's process for all threads of this process.

    eSpeak's process ends together with this process. A fork of this process starts its own.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Crashed: if eSpeak's process ends. The next request starts a new process.
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
                # If there is no answer, eSpeak has crashed, or Ctrl-C has interrupted the wait.
                if not answer:
                    self.close()
        if not answer:
            raise Crashed
        answered = json.loads(answer)
        if "problem" in answered:
            raise UserError(f"phones: {answered['problem']:.200}")
        return answered

    def close(self) -> None:
        """End the process."""
        process = self.process
        self.process = None
        if process is None:
            return
        try:
            # The closed pipe ends the process, which deletes phonemizer's copy of eSpeak.
            with contextlib.suppress(BrokenPipeError):
                process.communicate(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # the process is still working on a text
            process.kill()
            process.wait()

    def _forget(self) -> None:
        """Forget the process in a forked process, because it belongs to the parent and ends with
        the parent's pipe."""
        if self.process is not None:
            self.process.returncode = 0  # Python must not wait for a process of the parent
        self.process = None
        self._lock = threading.Lock()


_espeak = Espeak()


@functools.cache
def _about() -> dict[str, Any]:
    """Return eSpeak's version and its languages by name."""
    try:
        return _espeak.ask()
    except Crashed:
        raise UserError("phones: eSpeak NG crashes when it starts. Install it again.") from None


# ---------------------------------------------------------------------------- languages


def check_language(language: str) -> str:
    """Return eSpeak's code for a language, such as fr-fr for fr.

    Raises:
        UserError: if eSpeak does not have the language, or a package is missing.
    """
    known = _about()["languages"]
    name = language.lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    base = name.partition("-")[0]
    meant = [base] if base in known else near
    suggestion = f"did you mean {meant[0]}? " if meant else ""
    problem = f"language={language[:40]}: not in eSpeak NG"
    raise UserError(f"{problem}; {suggestion}It has {', '.join(sorted(known))}")


def espeak_version() -> str:
    """Return the version of eSpeak, such as 1.52.0. UserError if a package is missing."""
    return _about()["version"]


def version_of_phones(recorded: str) -> str:
    """Return the version of eSpeak that produced the phones of a run: the `recorded` version, or the
    installed version if `recorded` is empty. Print a warning if they differ."""
    here = espeak_version()
    if recorded not in ("", here):
        print(
            f"warning: eSpeak NG {recorded} produced the phones of the training, but version {here} "
            "is installed, so a text may become different phones"
        )
    return recorded or here


# ---------------------------------------------------------------------------- phones


def to_phones(texts: Sequence[str], language: str) -> list[str]:
    """Convert each text to phones with stress, in Unicode's form NFC.

    Punctuation stays in place, and several spaces become one. A text without words has no phones.
    eSpeak gets only the words between punctuation marks. phonemizer can keep punctuation too, but
    it loses full-width marks, and after an empty text it mixes up neighboring texts.

    Raises:
        UserError: if `check_language` raises it, or if eSpeak crashes on a text.
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
        # words and marks alternate, and words come first and last
        pieces = [mark.split(text) for text in plain]
    origin = {
        x.strip(): text for text, piece in zip(texts, pieces, strict=True) for x in piece[::2]
    }
    origin.pop("", None)
    phones = _speak(origin, language)
    return ["".join(x if i % 2 else _put(x, phones) for i, x in enumerate(p)) for p in pieces]


def with_plain_numbers(text: str, language: str) -> str:
    """Return a text whose numbers eSpeak can read.

    Digits become 0 to 9, unless eSpeak reads their script in this language, because it skips the
    digits of most scripts. Roman and circled numbers become letters and digits, because eSpeak
    reads Ⅷ as "letter 2177".
    """
    if text.isascii():
        return text
    text = re.sub(rf"(?<=\w)(?=[{CIRCLED}])|(?<=[{CIRCLED}])(?=\w)", " ", text)
    text = re.sub(f"[{ROMAN}{CIRCLED}]", lambda x: unicodedata.normalize("NFKC", x[0]), text)
    return re.sub(r"\d", lambda x: _plain_digit(x[0], language), text)


@functools.cache
def _plain_digit(digit: str, language: str) -> str:
    value = unicodedata.decimal(digit)
    zero = ord(digit) - value
    # Two digits, because eSpeak may read a single digit by its name, "Bengali digit three".
    number = chr(zero + 3) + chr(zero + 4)
    return digit if _speak({number: number}, language)[number] else str(value)


def is_silent(character: str, language: str) -> bool:
    """Return whether a letter, number or sign has no phones, such as € in Russian.

    Raises:
        UserError: if `to_phones` raises it.
    """
    is_read = unicodedata.category(character)[0] in "LNS"
    return is_read and not _phones_of_character(character, check_language(language))


@functools.lru_cache(2**16)
def _phones_of_character(character: str, language: str) -> str:
    return to_phones([character], language)[0]


def _speak(origin: dict[str, str], language: str) -> dict[str, str]:
    """Return the phones of words without spaces around them.

    Args:
        origin: the text that contains the words, by words, for the message about a crash.
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
    """Return the phones of words, with the spaces around the words."""
    bare = words.strip()
    if not bare:
        return words
    return words.replace(bare, unicodedata.normalize("NFC", phones[bare]).strip(), 1)
