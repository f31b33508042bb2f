"""Find the columns with the times of segments in a table, and read the segments.

columns = find_time_columns(path, ["path", "text", "start", "end"], rows)
segment = segment_of(columns, titles, row.fields)
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from corpus.clips import Segment
from corpus.table_rows import Row
from tacotron2_voice.utils.errors import UserError

START_TITLES = ("offset", "start", "start_time", "begin", "begin_time")
END_TITLES = ("end", "end_time")
# Words that mean a time in the titles of columns, such as segment_start and endTime.
TIME_WORDS = set(
    "start starttime begin end endtime stop onset offset from to in out t0 t1 tmin tmax xmin xmax".split()
)
# Additional words, such as units, in the titles of columns with times, as in "start seconds".
UNIT_WORDS = set(
    "segment audio cue clip utt utterance speech time timestamp s sec secs second seconds ms frame "
    "frames sample samples".split()
)
# Words for the start and the end of a segment in several languages. Columns such as t_start and
# t_end contain times if their titles differ only in such words.
START_WORDS = (
    "start begin beg onset from in s t0 t1 tmin xmin anfang beginn von debut de inicio desde inizio da"
).split()
END_WORDS = ("end stop fin offset to out e t1 t2 tmax xmax ende bis fine fim hasta ate a").split()
LENGTH_WORDS = ("dur", "duration", "length", "len")
# Minimum length of a word that is recognized inside another word, as in tstart.
MIN_PART_LETTERS = 3
# Words in column titles that mean a range of other values, such as years or pages, not of times.
OTHER_RANGES = set(
    "year years date day month age pitch freq frequency hz f0 char chars character characters byte "
    "bytes token tokens page line verse chapter row index idx id price".split()
)
# Matches a number, a date, or a time such as 1:02.
IS_NUMBER = re.compile(r"[-\d.,:/ ]*\d[-\d.,:/ ]*")


class TimeColumns(NamedTuple):
    """The titles of the columns with the times of segments. Either `end` or `duration` is ""."""

    start: str
    end: str
    duration: str


def time_titles(titles: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the titles of numeric columns that contain a word for a time, such as "start"."""
    found = []
    for index, title in enumerate(titles):
        words = re.findall(r"[a-z]+\d?", title.lower())
        values = [row.fields[index] for row in rows if index < len(row.fields)]
        is_numeric = any(values) and all(not x or IS_NUMBER.fullmatch(x) for x in values)
        has_numbers = any(re.match(r"-?\d", x) for x in values)
        is_known = title == "offset" or (title in (*START_TITLES, *END_TITLES) and has_numbers)
        is_time = {*words} <= TIME_WORDS | UNIT_WORDS and not TIME_WORDS.isdisjoint(words)
        if is_known or (is_numeric and is_time):
            found.append(title)
    known = {*START_TITLES, *END_TITLES}
    pairs = [] if known & {*found} else paired_time_titles(titles, rows)
    return list(dict.fromkeys([*found, *pairs]))


def paired_time_titles(titles: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the titles of two numeric columns: the start of a segment, and either its end or its
    length. Apart from the words for start, end and length, the two titles must be equal. For
    example, vad_start and vad_end are a pair.

    In most rows, the start must be less than the end.
    """
    for start, end, length in product(titles, titles, (False, True)):
        words = LENGTH_WORDS if length else END_WORDS
        rests = rests_of_title(start, START_WORDS) & rests_of_title(end, words)
        if start == end or not any(OTHER_RANGES.isdisjoint(rest) for rest in rests):
            continue
        indices = titles.index(start), titles.index(end)
        values = [
            [row.fields[i] for i in indices] for row in rows if len(row.fields) > max(indices)
        ]
        numbers = [[as_seconds(value) for value in pair] for pair in values if all(pair)]
        complete = [(a, b) for a, b in numbers if a is not None and b is not None]
        if complete and len(complete) == len(numbers):
            num_ordered = sum(a < b for a, b in complete)
            if length or 2 * num_ordered > len(complete):
                return [start, end]
    return []


def rests_of_title(title: str, words: Sequence[str]) -> set[tuple[str, ...]]:
    """Remove one of `words` from a title in every possible way. Return the set of the results, each
    as a tuple of the remaining parts of the title.

    rests_of_title("t_start", ["start"])  # {("t",)}
    """
    plain = "".join(x for x in unicodedata.normalize("NFKD", title) if x.isascii())
    parts = re.findall(r"[a-z]+\d*|\d+", plain)
    rests = set()
    for index, part in enumerate(parts):
        for word in words:
            inside = {part.removeprefix(word), part.removesuffix(word)} - {part}
            if len(word) < MIN_PART_LETTERS and part != word:
                continue
            for rest in inside:
                rests.add((*parts[:index], *([rest] if rest else []), *parts[index + 1 :]))
    return rests


def as_seconds(value: str) -> float | None:
    """Return the number of seconds in a value such as 1.5, 1,5 or 0:01.5, or None."""
    if not re.fullmatch(r"(\d{1,9}:){0,2}\d{1,9}([.,]\d+)?", value):
        return None
    seconds = 0.0
    for part in value.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def find_time_columns(path: Path, titles: Sequence[str], rows: Sequence[Row]) -> TimeColumns | None:
    """Return the columns with the times of segments, or None if the table has no such columns.

    NeMo manifests have the columns `offset` and `duration`.

    Raises:
        UserError: if the time columns are neither a start and an end nor an offset and a duration.
    """
    found = time_titles(titles, rows)
    if not found:
        return None
    starts = [title for title in found if title in START_TITLES]
    ends = [title for title in found if title in END_TITLES]
    has_duration = "duration" in titles
    is_known = len(starts) == 1 and len(found) == len(starts) + len(ends) and len(ends) <= 1
    if is_known and ends and "offset" not in starts:
        return TimeColumns(starts[0], ends[0], "")
    if is_known and not ends and has_duration:
        return TimeColumns(starts[0], "", "duration")
    raise UserError(
        f"{path}: unsupported time columns {', '.join(map(repr, found))} (expected the "
        "columns 'offset' and 'duration', or 'start' and 'end', in seconds). If the values are the times of "
        "segments in seconds, rename the columns; otherwise remove the columns"
    )


def start_of(columns: TimeColumns | None, titles: Sequence[str], fields: Sequence[str]) -> str:
    """Return the start time in a row, or "" if the row has no start time."""
    return dict(zip(titles, fields, strict=False)).get(columns.start, "") if columns else ""


def segment_of(
    columns: TimeColumns | None, titles: Sequence[str], fields: Sequence[str]
) -> Segment | None:
    """Return the segment in which a row's text is spoken, or None for the whole recording.

    Raises:
        ValueError: if a value is missing or is not a valid number of seconds.
    """
    row = dict(zip(titles, fields, strict=False))
    if columns is None:
        return None
    if columns.start == "offset" and not row.get("offset"):
        # In NeMo manifests, offset and duration are optional. A missing offset means 0.
        return Segment(0.0, _number("duration", row["duration"])) if row.get("duration") else None
    start = _number(columns.start, row.get(columns.start, ""))
    if columns.duration:
        return Segment(start, _number(columns.duration, row.get(columns.duration, "")))
    return Segment(start, _number(columns.end, row.get(columns.end, "")) - start)


def listed_duration(titles: Sequence[str], fields: Sequence[str]) -> float | None:
    """Return the number in the column `duration` of a row, or None if there is no number."""
    value = dict(zip(titles, fields, strict=False)).get("duration", "")
    return float(value) if re.fullmatch(r"\d{1,9}(\.\d+)?", value) else None


def _number(name: str, value: str) -> float:
    if not re.fullmatch(r"\d{1,9}([.,]\d+)?(e-?\d)?", value):
        raise ValueError(f"invalid {name} {value!r}, expected a number of seconds, at least 0")
    return float(value.replace(",", "."))
