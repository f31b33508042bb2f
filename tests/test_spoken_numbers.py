"""Test number words, and the grammar that restricts a recognizer to numbers."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacotron2_voice.text.spoken_numbers import GRAMMAR, WORDS, draw_numbers, in_words, sentence_of
from tacotron2_voice.utils.errors import UserError

NUMBERS = st.one_of(st.integers(1, 999_999), st.integers(1, 2000))
VALUES = dict(
    zip(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
        "hundred thousand".split(),
        [*range(1, 20), *range(20, 100, 10), 100, 1000],
        strict=True,
    )
)


def value(words: str) -> int:
    """Return the number that these words spell."""
    whole = part = 0
    for word in words.split():
        if word == "hundred":
            part *= 100
        elif VALUES[word] >= 1000:
            whole, part = whole + part * VALUES[word], 0
        else:
            part += VALUES[word]
    return whole + part


def grammar_pattern() -> str:
    """Return the public rule of the grammar as a regular expression, with a space before each
    word."""
    rules = dict(re.findall(r"<(\w+)> = (.*);", GRAMMAR))

    def expand(rule: str) -> str:
        signs = {"[": "(?:", "]": ")?", "|": "|"}
        parts = []
        for token in re.findall(r"<\w+>|\w+|\S", rule):
            if token[0] == "<":
                parts.append(f"(?:{expand(rules[token[1:-1]])})")
            else:
                parts.append(signs.get(token, f" {token}"))
        return "".join(parts)

    return expand(rules["number"])


@given(NUMBERS)
def test_number_words_spell_the_number(number):
    words = in_words(number)
    assert value(words) == number
    assert set(words.split()) <= WORDS


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("de", "zweiundvierzigtausendsieben."),
        ("fr-fr", "quarante-deux mille sept."),
        ("fr-ch", "quarante-deux mille sept."),
        ("ru", "сорок две тысячи семь."),
        ("ko", "사만 이천칠."),
    ],
)
def test_number_words_depend_on_the_language(language, expected):
    assert sentence_of("42,007", language) == expected
    with pytest.raises(UserError, match="not a number in digits"):
        sentence_of(expected, language)


def test_languages_without_number_words_are_rejected(monkeypatch):
    with pytest.raises(UserError, match=r"language=kok: .*am,"):
        in_words(7, "kok")  # the code of Konkani (kok) begins with the code of Korean (ko)
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(UserError, match=r"num2words.*requirements/phones\.txt"):
        in_words(7, "de")


def test_drawn_numbers_are_distinct_and_mostly_long():
    drawn = draw_numbers(2000, seed=4)
    assert len(set(drawn)) == 2000
    assert sum(number >= 10_000 for number in drawn) > 1000
    assert drawn == draw_numbers(2000, seed=4)
    assert drawn[:50] != draw_numbers(2000, seed=5)[:50]


def test_request_for_too_many_distinct_numbers_is_rejected(monkeypatch):
    monkeypatch.setattr("tacotron2_voice.text.spoken_numbers.WEIGHTS", {1: 1})
    assert sorted(draw_numbers(9, seed=0)) == list(range(1, 10))
    with pytest.raises(UserError, match="10 different numbers: too many"):
        draw_numbers(10, seed=0)


@pytest.mark.parametrize(
    "text",
    ["4,072", "4072", " 4 072 ", "four thousand seventy-two", "Four thousand and seventy two."],
)
def test_sentence_is_the_same_for_digits_and_words(text):
    assert sentence_of(text) == "Four thousand seventy two."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0", "expected a number from 1 to 999,999"),
        ("9" * 5000, "expected a number from 1"),
        ("...", "not a number"),
        ("four score and seven", "unknown words score"),
    ],
)
def test_text_is_rejected_when_its_words_are_not_numbers(text, problem):
    with pytest.raises(UserError, match=re.escape(problem)):
        sentence_of(text)


@given(NUMBERS)
def test_recognizer_grammar_accepts_every_number(number):
    assert re.fullmatch(grammar_pattern(), f" {in_words(number)}")


@pytest.mark.parametrize("words", ["hundred", "two two", "twenty ten", "one thousand thousand"])
def test_recognizer_grammar_accepts_only_numbers(words):
    assert not re.fullmatch(grammar_pattern(), f" {words}")
