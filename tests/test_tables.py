"""Tables as text and as Markdown."""

from analysis.tables import markdown_table, text_table


def test_text_table_aligns_labels_and_numbers():
    """Cells are shown as they stand."""
    rows = [["SSB-DBS", "6.62", "19.39"], ["SB", "1e3", "–"]]
    assert text_table(["batching", "ZPR\n(%)", "minutes"], rows).splitlines() == [
        "           ZPR",
        "batching   (%)  minutes",
        "SSB-DBS   6.62    19.39",
        "SB         1e3        –",
    ]
    assert text_table(["a", "b", "c"], [["x", "yy", 2]], labels=2).splitlines()[0] == "a  b   c"


def test_markdown_says_the_alignment_and_escapes_bars():
    lines = markdown_table(["a|b", "per\ncent"], [["x|y", "1.50"], ["z\nz", "2"]]).splitlines()
    assert ["".join(line.split()) for line in lines] == [
        r"|a\|b|percent|",
        "|:---|-------:|",
        r"|x\|y|1.50|",
        "|zz|2|",
    ]
    assert len({len(line) for line in lines}) == 1
