"""Recognises lists whose fields are separated by something else than a bar, or are in quotes."""

import csv
from collections.abc import Sequence
from pathlib import Path

from tacotron2_voice.utils.errors import UserError, in_place

SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "spaces"}
MIN_SHARE = 0.9  # of the lines, that have the separator and no bar, or quotes


def refuse_other_separators(
    path: str | Path, lines: Sequence[tuple[int, str]], expected: str
) -> None:
    """Raise a UserError if the numbered lines of a list have no bars, but another separator after
    their first field, which differs from line to line; or if their first fields are in quotes. It
    names the command that converts them."""
    texts = [line for _, line in lines]
    if sum("|" in text for text in texts) > (1 - MIN_SHARE) * len(texts):
        quoted = [text[:1] == '"' and text.partition("|")[0][-1] == '"' for text in texts]
        if sum(quoted) >= MIN_SHARE * len(texts) and _field_counts(texts, "|"):
            raise _refusal(path, "in quotes", texts, expected, _unquoting("|"))
        return
    for separator, name in SEPARATORS.items():
        having = [text for text in texts if separator in text]
        first = {text.partition(separator)[0] for text in having}
        is_field = len(first) >= MIN_SHARE * len(having) and not any(" " in x for x in first)
        if len(having) >= max(1, MIN_SHARE * len(texts)) and (is_field or separator == "\t"):
            what, command = f"separated by {name}", _command(separator, texts)
            raise _refusal(path, what, texts, expected, command)


def _refusal(
    path: str | Path, what: str, texts: Sequence[str], expected: str, command: str
) -> UserError:
    return UserError(
        f"{path}: fields are {what}, expected {expected}: {texts[0][:60]!r}; convert it: "
        f"{in_place(path, command)}"
    )


def _command(separator: str, texts: Sequence[str]) -> str:
    """The shell's command that makes bars of a separator, from standard input to output."""
    counts = _field_counts(texts, separator)
    if separator == "\t":
        in_quotes = any(field[:1] == '"' for text in texts for field in text.split("\t"))
        return _unquoting(r"\t") if in_quotes and len(counts) == 1 else r"tr '\t' '|'"
    if separator != " " and counts in ({2}, {3}):  # any inside a text is in quotes
        return _unquoting(separator)
    return f"sed 's/{separator}/|/'"  # the first of every line: others belong to the text


def _field_counts(texts: Sequence[str], separator: str) -> set[int]:
    """The numbers of fields that lines have; empty if quotes are not those of a CSV. Such lines, as
    of a text that begins with a quotation, would swallow others."""
    try:
        return {len(row) for row in csv.reader(texts, delimiter=separator, strict=True)}
    except csv.Error:
        return set()


def _unquoting(separator: str) -> str:
    """The shell's command that makes bars of a CSV's separators. Line breaks inside fields become
    blanks; a byte-order mark, which would hide the first quote, is left out."""
    rows = f"csv.reader(sys.stdin, delimiter='{separator}')"
    row = "*(' '.join(y.split()) for y in x), sep='|'"
    decode = "sys.stdin.reconfigure(encoding='utf-8-sig')"
    return f'python -X utf8 -c "import csv, sys; {decode}; [print({row}) for x in {rows}]"'
