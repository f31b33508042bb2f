"""Test how tacotron2_voice/utils/errors.py groups problems in a message."""

from tacotron2_voice.utils.errors import LONG_FIX, MAX_LINES_SHOWN, grouped


def test_problems_are_grouped_by_kind_when_there_are_many():
    rates = [f"data/a{i}.wav: {8000 + i} Hz; convert it" for i in range(MAX_LINES_SHOWN)]
    cut = "data/e.wav: truncated; copy it again"
    assert grouped(rates) == rates
    first, others, last = grouped([*rates, cut])
    assert (first, last) == (rates[0], cut)
    assert others.startswith(f"  the same in {MAX_LINES_SHOWN - 1} more: a1.wav, a2.wav, ")


def test_few_problems_are_grouped_when_they_share_a_long_fix():
    fix = "sed " * LONG_FIX
    problems = [f"data/{name}.wav: 8000 Hz; {fix}" for name in "abc"]
    assert grouped(problems) == [problems[0], "  the same in 2 more: b.wav, c.wav"]


def test_each_place_is_listed_once_when_problems_are_grouped():
    problems = [f"data/book.srt: segment {i} is too short; {'fix ' * LONG_FIX}" for i in range(5)]
    assert grouped(problems) == [problems[0], "  the same in 4 more: book.srt"]
    problems = [f"data/{name}/a.srt: too short; {'fix ' * LONG_FIX}" for name in "xyz"]
    assert grouped(problems) == [problems[0], "  the same in 2 more: y/a.srt, z/a.srt"]
