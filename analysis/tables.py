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
    heading, rule, *body = _aligned([lines[0], ["---"] * len(titles), *lines[1:]], labels)
    for column, cell in enumerate(rule):
        line = "-" * (len(cell) - 1)
        rule[column] = f":{line}" if column < labels else f"{line}:"
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *body))


def _aligned(lines: Sequence[Sequence], labels: int) -> list[list[str]]:
    columns = [list(map(str, column)) for column in zip(*lines, strict=True)]
    for place, column in enumerate(columns):
        align, width = str.ljust if place < labels else str.rjust, max(map(len, column))
        columns[place] = [align(cell, width) for cell in column]
    return list(map(list, zip(*columns, strict=True)))
