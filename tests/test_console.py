"""Test the Markdown tables of tacotron2_voice/utils/console.py."""

from tacotron2_voice.utils.console import markdown_table


def test_table_aligns_columns_and_escapes_pipes_and_line_breaks():
    lines = markdown_table(["a|b", "per\ncent"], [["x|y", "1.50"], ["z\nz", "2"]]).splitlines()
    assert ["".join(line.split()) for line in lines] == [
        r"|a\|b|percent|",
        "|:---|-------:|",
        r"|x\|y|1.50|",
        "|zz|2|",
    ]
    assert len({len(line) for line in lines}) == 1
