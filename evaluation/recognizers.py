"""Recognizers of speech, whose words are compared with those of the texts: pocketsphinx, which is
small, old and knows English, and Whisper, which knows many languages (Radford et al. 2022).

    recognizer = make_recognizer("whisper", "tiny.en", "en-us", texts)
    words_of(recognizer.hear(samples, 22050), "en-us")

A recognizer mistakes words too: give its rate for recordings beside its rate for a model.
"""

import argparse
import contextlib
import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.signal import resample_poly

from export.checkpoint_file import first_line
from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.spoken_numbers import ENGLISH, GRAMMAR, WORDS, in_words, is_english
from tacotron2_voice.utils.errors import UserError

RATE = 16_000  # Hz, of both recognizers' models
SILENCE = (
    0.2  # seconds added before and after the speech, in which pocketsphinx adapts to the level
)
POCKETSPHINX, WHISPER = NAMES = "pocketsphinx", "whisper"
WHISPER_MODEL = "tiny.en"
LONGEST_LOOP = 6  # tokens: where Whisper does not understand, it may go on and on ("x x x x ...")
WHISPER_NAMES = {"cmn": "zh", "yue": "zh", "nb": "no"}  # of languages, where eSpeak has others


class Recognizer(Protocol):
    name: str  # with its model, as results keep it

    def hear(self, samples: np.ndarray, sampling_rate: int) -> str:
        """The words in float samples [N] in [-1, 1]; possibly none."""


def make_recognizer(
    name: str, whisper_model: str, language: str, texts: Sequence[str]
) -> Recognizer | None:
    """The recognizer to transcribe `texts`, None where it does not know the language.

    Args:
        name: one of NAMES.
        whisper_model: as `Whisper` takes it.
        language: eSpeak's name, such as "en-us".
        texts: where they are English numbers alone, pocketsphinx knows no other words.

    Raises:
        UserError: if its package or its model cannot be loaded.
    """
    if name == WHISPER:
        return Whisper(whisper_model, language)
    if not is_english(language):
        return None
    return Pocketsphinx(numbers_only={word for x in texts for word in words_of(x).split()} <= WORDS)


def add_recognizer_options(parser: argparse.ArgumentParser) -> None:
    """--recognizer and --whisper-model, as `make_recognizer` takes them."""
    name_help = "who transcribes (%(default)s); whisper: requirements/judges.txt"
    parser.add_argument("--recognizer", choices=NAMES, default=POCKETSPHINX, help=name_help)
    model_help = "its name, which is downloaded once, or a folder (%(default)s)"
    parser.add_argument("--whisper-model", default=WHISPER_MODEL, metavar="MODEL", help=model_help)


def words_of(text: str, language: str = ENGLISH) -> str:
    """The words of a text as recognizers are compared by: small letters, numbers in words, no
    punctuation. In other languages than English, whole numbers below a million are spelled if
    num2words is installed."""
    if is_english(language):
        return " ".join(re.findall(r"[a-z]+(?:'[a-z]+)*", read_english(text).lower()))

    def spelled(match: re.Match[str]) -> str:
        with contextlib.suppress(UserError):
            return f" {in_words(int(match[0]), language)} "
        return match[0]

    text = re.sub(r"(?<![\d.,])\d{1,6}(?![.,]?\d)", spelled, text)
    return " ".join(re.findall(r"[^\W_]+(?:['’][^\W\d_]+)*", text.casefold()))


def resampled(samples: np.ndarray, sampling_rate: int) -> np.ndarray:
    """Samples [N] at RATE."""
    return resample_poly(samples, RATE, sampling_rate)


class Pocketsphinx:
    """Transcribes English. With `numbers_only` it knows the words of numbers and no others, and
    mistakes fewer of them."""

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

    def hear(self, samples: np.ndarray, sampling_rate: int) -> str:
        samples = np.pad(resampled(samples, sampling_rate), round(SILENCE * RATE))
        self._decoder.start_utt()
        clipped = np.clip(np.rint(32767 * samples), -32768, 32767).astype("<i2")
        self._decoder.process_raw(clipped.tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr if hypothesis else ""


class Whisper:
    """Transcribes by faster-whisper, on the CPU with weights of 8 bits.

    Args:
        model: the name of a published one, such as "tiny.en", "base" or "large-v3", which is
            downloaded once, or the folder of one in CTranslate2's format.
        language: eSpeak's name, such as "en-us" or "de".
    """

    def __init__(self, model: str, language: str) -> None:
        self.name = f"{WHISPER} {Path(model).name}"
        self._model = _whisper_model(model)
        base = language.partition("-")[0]
        self._language = WHISPER_NAMES.get(base, base)
        if self._language not in self._model.supported_languages:
            known = ", ".join(self._model.supported_languages)
            fix = "take another with --whisper-model"
            raise UserError(f"--whisper-model {model}: it knows {known}, not {language}; {fix}")

    def hear(self, samples: np.ndarray, sampling_rate: int) -> str:
        # One temperature: at higher ones it draws at random. Each sound is transcribed by itself.
        segments, _ = self._model.transcribe(
            resampled(samples, sampling_rate).astype(np.float32),
            language=self._language,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            no_repeat_ngram_size=LONGEST_LOOP,
        )
        return " ".join(segment.text.strip() for segment in segments)


@functools.cache
def _whisper_model(model: str) -> Any:
    """Loaded once: a model of the larger ones takes seconds. UserError if it cannot be loaded."""
    try:
        import faster_whisper
    except ImportError as error:
        fix = "pip install -r requirements/judges.txt, or leave out --recognizer"
        raise UserError(f"--recognizer {WHISPER}: {error}; {fix}") from None
    if not Path(model).is_dir() and model not in (names := faster_whisper.available_models()):
        expected = f"the folder of a model in CTranslate2's format, or one of {', '.join(names)}"
        raise UserError(f"--whisper-model {model}: expected {expected}")
    try:
        return faster_whisper.WhisperModel(model, device="cpu", compute_type="int8")
    except Exception as error:  # its own of the disk, the network or the format, of many classes
        fix = "check the folder, or that the model can be downloaded from huggingface.co"
        raise UserError(f"--whisper-model {model}: {first_line(error)}; {fix}") from None
