"""Tables as text and as Markdown. Cells are shown as they stand: numbers come formatted."""

from collections.abc import Sequence


def text_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Aligned for a terminal: the first `labels` columns to the left, the others to the right.

    A title may have several lines.
    """
    parts = [title.split("\n") for title in titles]
    height = max(map(len, parts))
    heading = zip(*([""] * (height - len(part)) + part for part in parts), strict=True)
    return "\n".join("  ".join(line).rstrip() for line in _aligned([*heading, *rows], labels))


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """The same for Markdown. A `|` in a cell is escaped; other marks of Markdown work."""
    lines = [
        [str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (titles, *rows)
    ]
    widest = ["---"] * len(titles)  # a column has room for the line under its title
    _, heading, *lines = _aligned([widest, *lines], labels)
    lines_left = [":" + "-" * (len(title) - 1) for title in heading[:labels]]
    lines_right = ["-" * (len(title) - 1) + ":" for title in heading[labels:]]
    rows = (heading, [*lines_left, *lines_right], *lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _aligned(lines: Sequence[Sequence], labels: int) -> list[list[str]]:
    texts = [list(map(str, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        [
            cell.ljust(width) if column < labels else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in texts
    ]
