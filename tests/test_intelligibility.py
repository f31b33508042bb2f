"""analysis/intelligibility.py: a recogniser of numbers, and what it gets wrong."""

import builtins
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.signal import resample_poly

from analysis.intelligibility import NumberRecogniser, Transcript, plain_words, word_error_rate
from corpus.spoken_numbers import in_words
from errors import UserError

needs_recogniser = pytest.mark.skipif(
    find_spec("pocketsphinx") is None or find_spec("espeakng_loader") is None,
    reason="pocketsphinx or espeakng-loader is not installed",
)


@needs_recogniser
@pytest.mark.parametrize("rate", [22050, 16000])
def test_spoken_numbers_are_mostly_taken_down_and_silence_is_nothing(rate):
    from scripts.make_demo_corpus import Voice

    listener, voice, transcripts = NumberRecogniser(), Voice(), []
    for number in (17, 340, 4072, 65_125, 960_000, 31_018):
        samples = resample_poly(voice.speak(in_words(number), 160) / 32768, rate // 50, 22050 // 50)
        transcripts.append(Transcript(in_words(number), listener.take_down(samples, rate)))
    assert word_error_rate(transcripts) < 0.25  # what it is of a corpus: docs/training.md
    assert listener.take_down(np.zeros(rate), rate) == ""


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (("one two three", "four"), 0),
        (("one five three", "four"), 1 / 4),  # a wrong word
        (("one three", "four"), 1 / 4),  # one left out
        (("one two three", "four five"), 1 / 4),  # one put in
        (("", ""), 1),
    ],
)
def test_the_rate_counts_words_wrong_left_out_and_put_in(heard, expected):
    texts = ("one two three", "four")
    pairs = [Transcript(text, words) for text, words in zip(texts, heard, strict=True)]
    assert word_error_rate(pairs) == expected


def test_the_words_of_a_sentence_are_without_its_capital_and_full_stop():
    assert plain_words("Four thousand seventy two.") == "four thousand seventy two"


def test_a_missing_recogniser_is_named_with_the_command_that_installs_it(monkeypatch):
    real = builtins.__import__

    def no_recogniser(name, *arguments, **options):
        if name == "pocketsphinx":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_recogniser)
    with pytest.raises(UserError, match="pip install pocketsphinx"):
        NumberRecogniser()
