"""How well a recogniser understands speech: its word error rate, of numbers alone.

pocketsphinx is an old recogniser. What it gets wrong of the recordings themselves is the least that
a model can reach, so a model's rate is given beside theirs.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np

from analysis.checked_json import parse_json
from corpus.spoken_numbers import GRAMMAR
from errors import UserError
from files import numbered_lines

RATE = 16_000  # Hz, of its acoustic model
INTELLIGIBILITY_FILE = "intelligibility.json"  # in a run's folder
SILENCE = 0.2  # seconds put before and after the speech, in which it finds its level


@dataclass(frozen=True)
class Transcript:
    """What was to be said, and what the recogniser took down, in small letters."""

    text: str
    heard: str


class NumberRecogniser:
    """Takes down spoken numbers; it knows no other words.

    Raises:
        UserError: if pocketsphinx is not installed.
    """

    def __init__(self):
        try:
            import pocketsphinx
        except ImportError:
            raise UserError(
                "the Python package pocketsphinx, which listens, is not installed; install it: "
                "pip install pocketsphinx"
            ) from None
        with tempfile.TemporaryDirectory() as folder:
            grammar = Path(folder) / "numbers.jsgf"
            grammar.write_text(GRAMMAR, encoding="utf-8")
            self._decoder = pocketsphinx.Decoder(jsgf=str(grammar), samprate=RATE, loglevel="FATAL")

    def take_down(self, samples: np.ndarray, sampling_rate: int) -> str:
        """The words heard in float samples [N] in [-1, 1]; empty where it heard no number."""
        from scipy.signal import resample_poly

        divisor = gcd(sampling_rate, RATE)
        samples = resample_poly(samples, RATE // divisor, sampling_rate // divisor)
        samples = np.pad(samples, round(SILENCE * RATE))
        self._decoder.start_utt()
        clipped = np.clip(np.rint(32767 * samples), -32768, 32767).astype("<i2")
        self._decoder.process_raw(clipped.tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return found.hypstr if found else ""


def plain_words(text: str) -> str:
    """The words of a sentence in small letters, without its full stop."""
    return text.lower().rstrip(".").strip()


def word_error_rate(transcripts: Iterable[Transcript]) -> float:
    """Words wrong, left out and put in, over the words that were to be said."""
    import jiwer

    pairs = list(transcripts)
    return jiwer.wer([pair.text for pair in pairs], [pair.heard for pair in pairs])


@dataclass(frozen=True)
class Intelligibility:
    """Word error rates of one checkpoint and of the recordings of the same texts."""

    word_error_rate: float
    recordings: float
    recordings_after_griffin_lim: float
    texts: int
    checkpoint: str
    epochs: int  # that it was trained, 0 where it does not say
    transcripts: list[Transcript]


def read_intelligibility(path: Path) -> Intelligibility:
    """What was heard of a checkpoint, from the file that listen.py wrote.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    return read_findings(path, Intelligibility)


def read_findings(path: Path, expected: type):
    """An `expected` from the file that a program wrote of it.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    lines = numbered_lines(path, "no such file; scripts/listen.py writes it")
    try:
        return parse_json("\n".join(line for _, line in lines), expected)
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it and listen again") from None
