"""Tables in Markdown, which a terminal shows as well. Cells stand as they are: numbers come
formatted."""

from collections.abc import Sequence


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Aligned: the first `labels` columns to the left, the others to the right. A `|` in a cell is
    escaped; other marks of Markdown work."""
    lines = [
        [str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (titles, ["---"] * len(titles), *rows)
    ]
    columns = [list(column) for column in zip(*lines, strict=True)]
    for place, column in enumerate(columns):
        is_label, width = place < labels, max(map(len, column))
        column[1] = f":{'-' * (width - 1)}" if is_label else f"{'-' * (width - 1)}:"
        columns[place] = [cell.ljust(width) if is_label else cell.rjust(width) for cell in column]
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
