"""Tables as text and as Markdown."""

from collections.abc import Sequence


def text_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Aligned for a terminal: the first `labels` columns to the left, the others to the right.

    A title may have several lines. Cells are shown as they are: numbers come formatted.
    """
    parts = [title.split("\n") for title in titles]
    height = max(map(len, parts))
    heading = zip(*([""] * (height - len(part)) + part for part in parts), strict=True)
    return "\n".join("  ".join(line).rstrip() for line in _aligned([*heading, *rows], labels))


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """The same for Markdown. A `|` in a cell is escaped; other marks of Markdown work."""
    cells = [[str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
             for line in (titles, *rows)]  # fmt: skip
    heading, *lines = ("| " + " | ".join(line) + " |" for line in _aligned(cells, labels))
    widths = [len(cell) for cell in _aligned(cells, labels)[0]]
    rule = [":" + "-" * (n + 1) if i < labels else "-" * (n + 1) + ":" for i, n in enumerate(widths)]
    return "\n".join([heading, f"|{'|'.join(rule)}|", *lines])


def _aligned(rows: Sequence[Sequence], labels: int) -> list[list[str]]:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        [f"{cell:{'<' if place < labels else '>'}{width}}"
         for place, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in texts
    ]  # fmt: skip
