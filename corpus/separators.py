"""Recognises lists whose fields are separated by something else than a bar."""

import csv
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError, in_place

SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "spaces"}
MIN_SHARE = 0.9  # of the lines, that have the separator and no bar


def refuse_other_separators(
    path: str | Path, lines: Sequence[tuple[int, str]], expected: str
) -> None:
    """Raise a UserError if the numbered lines of a list have no bars, but another separator after
    their first field, which differs from line to line. It names the command that converts them."""
    texts = [line for _, line in lines]
    if sum("|" in text for text in texts) > (1 - MIN_SHARE) * len(texts):
        return
    for separator, name in SEPARATORS.items():
        having = [text for text in texts if separator in text]
        first = {text.partition(separator)[0] for text in having}
        is_field = len(first) >= MIN_SHARE * len(having) and not any(" " in x for x in first)
        if len(having) >= max(1, MIN_SHARE * len(texts)) and (is_field or separator == "\t"):
            command = in_place(path, _command(separator, texts))
            raise UserError(
                f"{path}: fields are separated by {name}, expected {expected}: {texts[0][:60]!r}; "
                f"convert it: {command}"
            )


def _command(separator: str, texts: Sequence[str]) -> str:
    """The shell's command that makes bars of a separator, from standard input to output."""
    if separator == "\t":
        return r"tr '\t' '|'"
    counts = {len(row) for row in csv.reader(texts, delimiter=separator)}
    if separator != " " and counts in ({2}, {3}):  # any inside a text is in quotes
        rows = f"csv.reader(sys.stdin, delimiter='{separator}')"
        return f"python -X utf8 -c \"import csv, sys; [print(*x, sep='|') for x in {rows}]\""
    return f"sed 's/{separator}/|/'"  # the first of every line: others belong to the text
