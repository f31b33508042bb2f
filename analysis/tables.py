"""Tables as text and as Markdown."""

from collections.abc import Sequence

from tabulate import tabulate


def text_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Aligned for a terminal: the first `labels` columns to the left, the others to the right.

    A title may have several lines. Cells are shown as they stand: numbers come formatted.
    """
    height = max(title.count("\n") for title in titles)
    titles = ["\n" * (height - title.count("\n")) + title for title in titles]
    text = tabulate(rows, titles, "plain", disable_numparse=True, **_alignment(titles, labels))
    return "\n".join(line.rstrip() for line in text.splitlines())


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """The same for Markdown. A `|` in a cell is escaped; other marks of Markdown work."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in rows]
    titles = [title.replace("|", "\\|").replace("\n", " ").strip() for title in titles]
    return tabulate(lines, titles, "pipe", disable_numparse=True, **_alignment(titles, labels))


def _alignment(titles: Sequence[str], labels: int) -> dict:
    columns = ["left"] * labels + ["right"] * (len(titles) - labels)
    return {"colalign": columns, "headersalign": columns}
