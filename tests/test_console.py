"""tacotron2_voice/utils/console.py: Markdown tables that a terminal shows as well."""

from tacotron2_voice.utils.console import markdown_table


def test_markdown_says_the_alignment_and_escapes_bars():
    lines = markdown_table(["a|b", "per\ncent"], [["x|y", "1.50"], ["z\nz", "2"]]).splitlines()
    assert ["".join(line.split()) for line in lines] == [
        r"|a\|b|percent|",
        "|:---|-------:|",
        r"|x\|y|1.50|",
        "|zz|2|",
    ]
    assert len({len(line) for line in lines}) == 1
