"""Transcribe audio with speech recognizers to measure word error rates.

    recognizer = make_recognizer("whisper", "tiny.en", "en-us", texts)
    words_of(recognizer.transcribe(samples, 22050), "en-us")

Pocketsphinx is a small, old recognizer that supports only English. Whisper (Radford et al. 2022)
supports many languages. All recognizers make mistakes, so also report the word error rate of the
recordings.
"""

import argparse
import contextlib
import re
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.signal import resample_poly

from export.checkpoint_file import first_line
from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.spoken_numbers import ENGLISH, GRAMMAR, WORDS, in_words, is_english
from tacotron2_voice.utils.errors import UserError

RATE = 16_000  # sampling rate in Hz of the audio on which both recognizers were trained
# Seconds of silence to add before and after the speech, so that pocketsphinx can adapt to the
# level.
SILENCE = 0.2
POCKETSPHINX, WHISPER = NAMES = "pocketsphinx", "whisper"
NO_RECOGNIZER = "none"
# Default Whisper models for English and for other languages.
ENGLISH_MODEL, MULTILINGUAL_MODEL = "tiny.en", "base"
# Whisper must not repeat any sequence of this number of tokens. Without this limit, Whisper may
# repeat the same tokens until its window is full.
LONGEST_LOOP = 6
# Maps eSpeak's language codes to Whisper's language codes, if the codes differ.
WHISPER_LANGUAGES = {"cmn": "zh", "yue": "zh", "nb": "no"}


class Recognizer(Protocol):
    name: str  # name of the recognizer and its model, shown in the results

    def transcribe(self, samples: np.ndarray, sampling_rate: int) -> str:
        """Return the words in float samples [N] in [-1, 1], or "" if there are no words."""


def make_recognizer(
    name: str, whisper_model: str, language: str, texts: Sequence[str]
) -> Recognizer | None:
    """Return the speech recognizer for `texts`, or None if the recognizer does not support the
    language or if `name` is "none".

    Args:
        name: "pocketsphinx", "whisper" or "none".
        whisper_model: the argument `model` of `Whisper`; "": tiny.en for English, base for other
            languages.
        language: an eSpeak language code, such as "en-us".
        texts: the texts of the audio. If the texts contain only English numbers, pocketsphinx uses
            a grammar of numbers.

    Raises:
        UserError: if the package or the model cannot be loaded.
    """
    if name == WHISPER:
        return Whisper(whisper_model or default_whisper_model(language), language)
    if name == NO_RECOGNIZER or not is_english(language):
        return None
    used = {word for text in texts for word in words_of(text).split()}
    return Pocketsphinx(numbers_only=used <= WORDS)


def default_whisper_model(language: str) -> str:
    """Return the name of the Whisper model for a language, given as an eSpeak code."""
    return ENGLISH_MODEL if is_english(language) else MULTILINGUAL_MODEL


def add_recognizer_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options --recognizer and --whisper-model for `make_recognizer`. `names` are choices
    in addition to NAMES."""
    name_help = "speech recognizer; whisper needs requirements/whisper.txt (default: %(default)s)"
    choices = (*NAMES, *names)
    parser.add_argument("--recognizer", choices=choices, default=POCKETSPHINX, help=name_help)
    add_whisper_model_option(parser)


def add_whisper_model_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --whisper-model for `make_recognizer`."""
    parser.add_argument(
        "--whisper-model",
        default="",
        metavar="MODEL",
        help="name of a Whisper model to download, or folder with a model (default: "
        f"{ENGLISH_MODEL} for English, {MULTILINGUAL_MODEL} for other languages)",
    )


def words_of(text: str, language: str = ENGLISH) -> str:
    """Return the words of a text in a form that can be compared: in lower case, with numbers
    written as words, and without punctuation.

    In languages other than English, whole numbers below a million are written as words if num2words
    is installed.
    """
    if is_english(language):
        return " ".join(re.findall(r"[a-z]+(?:'[a-z]+)*", read_english(text).lower()))

    def spelled(match: re.Match[str]) -> str:
        with contextlib.suppress(UserError):
            return f" {in_words(int(match[0]), language)} "
        return match[0]

    text = re.sub(r"(?<![\d.,])\d{1,6}(?![.,]?\d)", spelled, text)
    return " ".join(re.findall(r"[^\W_]+(?:['’][^\W\d_]+)*", text.casefold()))


def is_mostly_foreign(text: str) -> bool:
    """Return whether most letters of a text are not Latin. In English texts, `words_of` omits
    letters that are not Latin. Letters with accents count as Latin."""
    letters = [x for x in unicodedata.normalize("NFD", text) if x.isalpha()]
    return 2 * sum(not x.isascii() for x in letters) > len(letters)


def resampled(samples: np.ndarray, sampling_rate: int) -> np.ndarray:
    """Return the samples [N] resampled to 16 kHz."""
    return resample_poly(samples, RATE, sampling_rate)


class Pocketsphinx:
    """Transcribe English.

    Args:
        numbers_only: whether to allow only number words, which reduces errors if all texts are
            numbers.
    """

    def __init__(self, *, numbers_only: bool) -> None:
        import pocketsphinx

        self.name = POCKETSPHINX
        options = {"samprate": RATE, "loglevel": "FATAL"}
        if not numbers_only:
            self._decoder = pocketsphinx.Decoder(**options)
            return
        with tempfile.TemporaryDirectory() as folder:
            grammar = Path(folder) / "numbers.jsgf"
            grammar.write_text(GRAMMAR, encoding="utf-8")
            self._decoder = pocketsphinx.Decoder(jsgf=str(grammar), **options)

    def transcribe(self, samples: np.ndarray, sampling_rate: int) -> str:
        samples = np.pad(resampled(samples, sampling_rate), round(SILENCE * RATE))
        self._decoder.start_utt()
        clipped = np.clip(np.rint(32767 * samples), -32768, 32767).astype("<i2")
        self._decoder.process_raw(clipped.tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis else ""


class Whisper:
    """Transcribe with faster-whisper, on the CPU and with weights quantized to int8.

    Args:
        model: the name of a published model, such as "tiny.en", "base" or "large-v3", or the folder
            of a model in CTranslate2 format. A published model is downloaded when it is first used.
        language: an eSpeak language code, such as "en-us" or "de".

    Raises:
        UserError: if the model cannot be loaded or does not support the language.
    """

    def __init__(self, model: str, language: str) -> None:
        self.name = f"{WHISPER} {Path(model).name}"
        self._model = _load_whisper(model)
        base = language.partition("-")[0]
        self._language = WHISPER_LANGUAGES.get(base, base)
        if self._language not in self._model.supported_languages:
            known = ", ".join(self._model.supported_languages)
            raise UserError(f"--whisper-model {model}: this model supports {known}, not {language}")

    def transcribe(self, samples: np.ndarray, sampling_rate: int) -> str:
        # Use temperature 0, because at higher temperatures, Whisper chooses words at random.
        # Transcribe each segment of the audio without the text of earlier segments.
        segments, _ = self._model.transcribe(
            resampled(samples, sampling_rate).astype(np.float32),
            language=self._language,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            no_repeat_ngram_size=LONGEST_LOOP,
        )
        return " ".join(segment.text.strip() for segment in segments)


def _load_whisper(model: str) -> Any:
    try:
        import faster_whisper
    except ImportError as error:
        fix = "pip install -r requirements/whisper.txt"
        raise UserError(f"--recognizer {WHISPER}: {error}; {fix}") from None
    if not Path(model).is_dir() and model not in (names := faster_whisper.available_models()):
        expected = f"the folder of a model in CTranslate2 format, or one of {', '.join(names)}"
        raise UserError(f"--whisper-model {model}: expected {expected}")
    try:
        return faster_whisper.WhisperModel(model, device="cpu", compute_type="int8")
    except Exception as error:  # disk, network and format errors have many types
        reason = first_line(error)
        raise UserError(
            f"--whisper-model {model}: cannot load this model ({reason}). Without an internet "
            "connection, pass the folder of a model"
        ) from None
