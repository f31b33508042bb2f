"""Tables as text and as Markdown."""

from collections.abc import Sequence

from tabulate import tabulate


def text_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Aligned for a terminal: the first `labels` columns to the left, the others to the right.

    A title may have several lines. Cells are shown as they stand: numbers come formatted.
    """
    parts = [title.split("\n") for title in titles]
    height = max(map(len, parts))
    heading = zip(*([""] * (height - len(part)) + part for part in parts), strict=True)
    # As rows, for tabulate makes a column at least two wider than its heading.
    text = tabulate([*heading, *rows], (), "plain", **_options(len(titles), labels))
    return "\n".join(line.rstrip() for line in text.splitlines())


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """The same for Markdown. A `|` in a cell is escaped; other marks of Markdown work."""
    heading, *lines = (
        [str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (titles, *rows)
    )
    return tabulate(lines, heading, "pipe", **_options(len(titles), labels))


def _options(columns: int, labels: int) -> dict:
    alignment = ["left"] * labels + ["right"] * (columns - labels)
    return {"colalign": alignment, "disable_numparse": True}
