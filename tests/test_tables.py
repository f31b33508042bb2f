"""Tables as text and as Markdown."""

from analysis.tables import markdown_table, text_table

TITLES = ["batching", "ZPR\n(%)", "minutes"]
ROWS = [["SSB-DBS", "6.62", "19.39"], ["SB", "0.16", "–"]]


def test_text_table_aligns_labels_and_numbers():
    assert text_table(TITLES, ROWS).splitlines() == [
        "           ZPR",
        "batching   (%)  minutes",
        "SSB-DBS   6.62    19.39",
        "SB        0.16        –",
    ]


def test_cells_are_shown_as_they_stand():
    table = text_table(["a", "b", "c"], [["x", "1e3", "1.50"], ["y", 2, ""]], labels=2)
    assert table.splitlines() == ["a  b       c", "x  1e3  1.50", "y  2"]


def test_markdown_says_the_alignment_and_escapes_bars():
    lines = markdown_table(["a|b", "per\ncent"], [["x|y", "1.50"], ["z\nz", "2"]]).splitlines()
    assert ["".join(line.split()) for line in lines] == [
        r"|a\|b|percent|",
        "|:---|-------:|",
        r"|x\|y|1.50|",
        "|zz|2|",
    ]
    assert len({len(line) for line in lines}) == 1
