"""Test Markdown tables and progress messages (tacotron2_voice/utils/console.py)."""

import io

import pytest

from tacotron2_voice.utils.console import LINE, ProgressBar, markdown_table


@pytest.mark.parametrize(
    ("seconds", "done", "shown"),
    [
        (0.4, 1, "1 of 9 texts, 2.50 texts/s, "),
        (8.0, 1, "1 of 9 texts, 7.50 texts/min, "),
        (8.0, 0, "0 of 9 texts, ? left"),
    ],
)
def test_progress_shows_the_speed_per_minute_when_the_work_is_slow(seconds, done, shown):
    bar = ProgressBar(total=9, unit=" texts", bar_format=LINE, desc="Speaking", file=io.StringIO())
    bar._time = lambda: bar.start_t + seconds
    bar.n = done
    assert str(bar).startswith(f"Speaking: {shown}")


def test_table_aligns_columns_and_escapes_pipes_and_line_breaks():
    lines = markdown_table(["a|b", "per\ncent"], [["x|y", "1.50"], ["z\nz", "2"]]).splitlines()
    assert ["".join(line.split()) for line in lines] == [
        r"|a\|b|percent|",
        "|:---|-------:|",
        r"|x\|y|1.50|",
        "|zz|2|",
    ]
    assert len({len(line) for line in lines}) == 1
