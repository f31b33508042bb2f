"""Recognises lists whose fields are others than expected, or come in another order."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from corpus.missing_sounds import KINDS, OTHER_KINDS
from tacotron2_voice.utils.errors import UserError, in_place

MIN_LINES = 5  # in fewer, values repeat by chance
MIN_SHARE = 0.9  # of the lines, that have the same fault
MAX_REPEATING_SHARE = 0.2  # distinct values of a field over lines: names of speakers repeat
MIN_DISTINCT_SHARE = 0.5  # texts hardly do
SHORTER = 0.8  # a normalized text may be so much shorter than the raw one


def refuse_other_order(
    metadata: Path,
    lines: Sequence[tuple[int, str]],
    num_fields: int,
    expected: str,
    speaker: int | None = None,
) -> None:
    """Raise a UserError if the numbered lines of a metadata.csv have four fields or more, or the
    text before a last field that names speakers. It names the command that mends them. The place of
    a field that is known to name the speaker does not count."""
    rows = [row for _, line in lines if len(row := _fields(line)) == num_fields]
    if num_fields < 3 or len(rows) < MIN_LINES or len(rows) < MIN_SHARE * len(lines):
        return
    columns = list(zip(*rows, strict=True))
    counts = [len(set(column)) for column in columns]
    text, most = _text_place(columns), MAX_REPEATING_SHARE * len(rows)
    example = f"{lines[0][1][:60]!r}"
    speaker = None if speaker == text else speaker
    places = [i for i in range(num_fields) if i != speaker]
    last = places[-1]
    repeats = counts[last] <= most and counts[text] >= MIN_DISTINCT_SHARE * len(rows)
    is_other = len(places) == 3 and text == places[1] and repeats
    if len(places) > 3 or (is_other and speaker is not None):
        kept = _kept(columns, counts, text, most, speaker)
        command = _reordering(metadata, kept)
        if len(kept) == 2:
            raise UserError(
                f"{metadata}: {num_fields} fields, expected {expected}: {example}; keep those of "
                f"the id and the text, which goes last: {command}"
            )
        raise UserError(
            f"{metadata}: {num_fields} fields, expected {expected}: {example}; keep those of the "
            f"id, the speaker and the text, which goes last: {command}\nThen --speaker-column 2 "
            "tells the speakers apart (docs/speakers.md); without it, prepare says how to keep one"
        )
    if is_other:
        value, number = Counter(columns[2]).most_common(1)[0]
        without = _fields_kept([0, 1])
        others = f"leave it out: {in_place(metadata, without)}"
        if number < len(rows):
            others = f"keep the lines of one: {lines_with(metadata, 2, value, f' | {without}')}"
        raise UserError(
            f"{metadata}: the last field, which is read as the text, has {counts[2]:,} values in "
            f"{len(rows):,} lines: {example}. If it names speakers, add --speaker-column 3 "
            f"(docs/speakers.md), or {others}\nIf it is the text, leave out the field before "
            f"it: {_reordering(metadata, [0, 2])}"
        )


def refuse_no_paths(filelist: str | Path, lines: Sequence[tuple[int, str]]) -> None:
    """Raise a UserError if the numbered lines of a filelist begin with ids, as metadata.csv has
    them, if they have a third field that is no number, or four in another order."""
    rows = [_fields(line) for _, line in lines]
    most = max(1, MIN_SHARE * len(rows))
    if sum(_is_id(row[0]) and len(row) > 1 for row in rows) >= most:
        command = f"python scripts/prepare.py {shlex.quote(str(Path(filelist).parent))}"
        raise UserError(
            f"{filelist}: its lines begin with ids, expected paths: {lines[0][1][:60]!r}; if it is "
            f"a corpus's metadata.csv, make lists of it: {command}"
        )
    worded = [row for row in rows if len(row) == 3 and not _is_number(row[2])]
    if len(worded) >= most:
        text = _text_place(list(zip(*worded, strict=True)))
        raise UserError(
            f"{filelist}: the third field is no number of seconds: {lines[0][1][:60]!r}; if it or "
            "the second names speakers, put it fourth, after seconds that may be empty "
            f"(docs/speakers.md): {_reordering(filelist, [0, text, None, 3 - text])}\n"
            f"If none does, keep path and text: {_reordering(filelist, [0, text])}"
        )
    of_four = [row for row in rows if len(row) == 4]
    if len(of_four) >= most and (places := _order_of_four(of_four)):
        raise UserError(
            f"{filelist}: its fields are in another order than path|text|seconds|speaker: "
            f"{lines[0][1][:60]!r}; reorder them: {_reordering(filelist, places)}"
        )


def _order_of_four(rows: Sequence[Sequence[str]]) -> list[int]:
    """The places of path, text, seconds and speaker in rows of four fields; [] where they are in
    this order, or where it is not clear that they are not."""
    columns = list(zip(*rows, strict=True))
    counts = [len(set(column)) for column in columns]
    numbers = [sum(not x or _is_number(x) for x in column) for column in columns]
    text = _text_place(columns)
    others = sorted({1, 2, 3} - {text}, key=lambda i: (numbers[i], counts[i]))
    speaker, seconds = others[0], others[1]
    names_first = counts[1] <= MAX_REPEATING_SHARE * len(rows)
    is_swapped = text != 1 and names_first and counts[text] >= MIN_DISTINCT_SHARE * len(rows)
    is_other = numbers[2] <= (1 - MIN_SHARE) * len(rows) or (is_swapped and len(rows) >= MIN_LINES)
    is_clear = numbers[seconds] >= MIN_SHARE * len(rows)
    return [0, text, seconds, speaker] if is_other and is_clear else []


def commonest_number(lines: Sequence[tuple[int, str]]) -> int:
    """How many fields most of the numbered lines have; of equally common numbers the larger."""
    counts = Counter(line.count("|") + 1 for _, line in lines)
    return max(counts, key=lambda number: (counts[number], number), default=0)


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.split("|")]


def _text_place(columns: Sequence[Sequence[str]]) -> int:
    """The place of the text: the longest field but the first, and the last of several that are
    about as long."""
    lengths = [0, *(sum(map(len, column)) for column in columns[1:])]
    return max(i for i, length in enumerate(lengths) if length >= SHORTER * max(lengths))


def _kept(
    columns: Sequence[Sequence[str]],
    counts: list[int],
    text: int,
    most: float,
    speaker: int | None,
) -> list[int]:
    """The places of the id, of a field that names speakers, if there is one, and of the text."""
    others = [i for i in range(len(columns)) if i not in (text, speaker)]
    names = [
        i for i in others if sum(map(_is_file_name, columns[i])) >= MIN_SHARE * len(columns[i])
    ]
    unique = [i for i in others if counts[i] == len(columns[i]) and " " not in columns[i][0]]
    name = next(iter([*names, *unique]), 0)
    speakers = [i for i in others if i != name and 2 <= counts[i] <= most]
    speakers = speakers if speaker is None else [speaker]
    return [name, *speakers[:1], text]


def _is_file_name(value: str) -> bool:
    return value.lower().endswith(KINDS + OTHER_KINDS)


def _is_id(value: str) -> bool:
    """Whether a first field is an id, as in metadata.csv: no folder, no suffix, no blank."""
    return bool(value) and not any(x in value for x in "/\\ .")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def lines_with(path: str | Path, place: int, value: str, then: str = "") -> str:
    """The shell's command that keeps the lines with this value in the field at `place`, counted
    from 0; `then` is a command for these."""
    literal = re.sub(r"[\\.^$*+?()\[\]{}|]", r"\\\g<0>", value)
    field = f"^([^|]*[|]){{{place}}}[[:space:]]*{literal}[[:space:]]*([|]|$)"
    return in_place(path, f"grep -E {shlex.quote(field)}{then}")


def _reordering(path: str | Path, places: Sequence[int | None]) -> str:
    """The shell's command that keeps these fields of every line, in this order; None is empty."""
    # A byte-order mark would be moved with the first field, and become a part of a name.
    first = "" if places[0] == 0 else r"sed '1s/^\xef\xbb\xbf//' | "
    return in_place(path, f"{first}tr -d '\\r' | {_fields_kept(places)}")


def _fields_kept(places: Sequence[int | None]) -> str:
    fields = ",".join('""' if place is None else f"${place + 1}" for place in places)
    return f"awk -F'|' -v OFS='|' '{{print {fields}}}'"
