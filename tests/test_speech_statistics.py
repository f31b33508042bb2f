"""Test the speaking rate and the final punctuation of a corpus, and the values for LJSpeech."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from helpers import LJSPEECH_LENGTHS

from hparams import create_hparams
from tacotron2_voice.speech_statistics import LJSPEECH, MARGIN, last_symbol, measure
from tacotron2_voice.text import text_to_sequence

H = create_hparams("hop_length=441")  # one frame is 20 ms
RNG = np.random.default_rng(0)


def test_speech_statistics_of_ljspeech_equal_the_stored_constants(ljspeech_metadata):
    with LJSPEECH_LENGTHS.open() as file:
        frames = {row["id"]: 1 + int(row["samples"]) // 256 for row in csv.DictReader(file)}
    lengths, symbols, last = [], [], []
    for line in ljspeech_metadata.read_text(encoding="utf-8").splitlines():
        name, _, text = line.split("|")
        lengths.append(frames[name])
        symbols.append(len(text_to_sequence(text, ["english_cleaners"])))
        last.append(last_symbol(text))
    found = measure(np.array(lengths), np.array(symbols), last, create_hparams())
    assert (found.final_mark, found.longest_text) == (LJSPEECH.final_mark, LJSPEECH.longest_text)
    for name in ("offset", "seconds_per_symbol", "fastest", "slowest"):
        assert getattr(found, name) == pytest.approx(getattr(LJSPEECH, name), rel=0.02), name


def test_speaking_rate_equals_the_rate_of_a_synthetic_corpus():
    """Each clip lasts 0.3 s plus 60 ms per symbol. The speaking rate varies by 10% between
    clips."""
    symbols = RNG.integers(5, 150, 4000)
    seconds = (0.3 + 0.06 * symbols) * RNG.uniform(0.9, 1.1, 4000)
    found = measure(np.rint(seconds / 0.02), symbols, ["."] * 4000, H)
    assert found.offset == pytest.approx(0.3, abs=0.03)
    assert found.seconds_per_symbol == pytest.approx(0.06, rel=0.02)
    assert found.fastest == pytest.approx(0.9, abs=0.03)
    assert found.slowest == pytest.approx(1.1, abs=0.03)
    assert found.shortest_time(50) < 0.9 * 3.3 < 1.1 * 3.3 < found.longest_time(50)
    assert found.longest_time(50) == pytest.approx(found.slowest * MARGIN * found.seconds(50))


def test_speaking_rate_is_computed_when_all_clips_have_the_same_length():
    found = measure(np.array([100, 120]), np.array([20, 20]), ["", ""], H)
    assert (found.offset, found.longest_text) == (0, 20)
    assert found.seconds_per_symbol == pytest.approx(0.11)
    assert found.fastest <= 1 <= found.slowest


@pytest.mark.parametrize(
    ("last", "mark"),
    [
        (["."] * 8 + ["a"] * 2, "."),
        (["."] * 7 + ["a"] * 3, ""),
        (["."] * 4 + ["?"] * 5 + ["a"], "?"),
        (["。"] * 10, "。"),
        ([""] * 10, ""),
    ],
)
def test_final_punctuation_is_the_most_frequent_end_mark_when_80_percent_of_texts_have_an_end_mark(
    last, mark
):
    found = measure(RNG.integers(90, 110, 10), RNG.integers(10, 20, 10), last, H)
    assert found.final_mark == mark


@pytest.mark.parametrize(
    ("text", "last"), [("a.", "."), ('He said: "no?"', "?"), ("(so)", "o"), ("'", ""), ("", "")]
)
def test_final_punctuation_is_found_before_closing_quotation_marks(text, last):
    assert last_symbol(text) == last


def test_speech_statistics_are_rejected_when_they_are_out_of_range():
    from pydantic import TypeAdapter, ValidationError

    kind = TypeAdapter(type(LJSPEECH))
    assert kind.validate_python(kind.dump_python(LJSPEECH)) == LJSPEECH
    for name, value in (("offset", -1.0), ("slowest", float("inf")), ("final_mark", "..")):
        with pytest.raises(ValidationError, match=name):
            kind.validate_python(kind.dump_python(replace(LJSPEECH, **{name: value})))
