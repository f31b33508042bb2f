"""Test how tacotron2_voice/utils/errors.py groups problems."""

from tacotron2_voice.utils.errors import LONG_FIX, grouped


def test_problems_are_grouped_when_three_share_a_long_fix():
    command = "sed " * LONG_FIX
    problems = [f"data/{name}.wav: 8000 Hz; convert all: {command}" for name in "abcd"]
    others = ["data/e.wav: cut; copy it again"] * 2 + [f"data/f.wav: quiet; {command}, again"] * 2
    lines = [problems[0], "  the same in 3 more: b.wav, c.wav, d.wav"]
    assert grouped(problems) == lines
    assert grouped(problems[:2]) == problems[:2]
    assert grouped([*problems, others[0], others[2]]) == [*lines, others[0], others[2]]
