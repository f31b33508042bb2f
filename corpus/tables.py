"""Read a table of recordings in CSV (any delimiter, header and column order) or JSON Lines.

    entries, problems = read_table(Table(Path("data/mine/validated.tsv")))
    entries, problems = read_table(Table(path, path_column="3", text_column="5"), speaker_column="1")

An example is LJSpeech's metadata.csv (id|text|normalized text, no header). If a table has neither
common column titles nor LJSpeech's columns, the user must specify the columns.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from corpus.clips import Segment
from corpus.normalized_texts import without_accents
from corpus.table_columns import (
    MIN_SHARE,
    SAMPLE_LINES,
    TITLE,
    Columns,
    choose_columns,
    columns_of_files,
    has_titles,
    may_be_header,
    path_index,
    without_marks,
)
from corpus.table_rows import (
    FIRST_SPACE,
    JSON_ARRAY,
    PATH_TITLES,
    QUOTING_DELIMITERS,
    SPEAKER_TITLES,
    TEXT_TITLES,
    Content,
    Row,
    Table,
    check_row,
    normal_title,
    rows_of_csv,
    rows_of_json,
)
from corpus.table_times import (
    IS_NUMBER,
    TimeColumns,
    find_time_columns,
    listed_duration,
    segment_of,
    start_of,
    time_titles,
)
from corpus.text_files import check_last_line, read_text
from tacotron2_voice.utils.errors import UserError

METADATA = "metadata.csv"  # file name of the default table
DELIMITERS = {"|": "pipes", "\t": "tabs", ";": "semicolons", ",": "commas"}
# Characters that are not suggested as delimiters, because they occur in ordinary texts and in file
# names.
NO_DELIMITERS = " .!?'\"-_/\\()<>[]{}"
# Matches a line of txt.done.data, the list of texts in the corpora of Festvox, such as CMU ARCTIC.
FESTVOX_LINE = re.compile(r"(?:\s*;.*\n)*\s*\(\s*(\S+)\s+\"(.*)\"\s*\)")
# Matches the first line of a table if this line sets the delimiter for Excel, as in "sep=;". The line
# break after it is not removed, so that the numbers of the later lines in messages stay correct.
EXCEL_DELIMITER = re.compile(r'"?sep=(.)"?(?=\n)', re.IGNORECASE)


class Entry(NamedTuple):
    """A recording, or a segment of a recording, in a table."""

    name: str  # path, id or name of the audio file in the table
    text: str
    where: str  # "file:line"
    speaker: str = ""
    segment: Segment | None = None
    # Length of the whole recording according to the table. None: the table contains no length.
    duration: float | None = None
    speaker_title: str = "speaker"  # title of the column that contains the speaker name


def read_table(
    table: Table,
    speaker_column: str = "",
    is_audio: Callable[[str], bool] | None = None,
) -> tuple[list[Entry], list[str]]:
    """Return the entries of a table, and one message per bad line.

    Args:
        speaker_column: title or number of the column with speaker names; "": use the column with a
            common title for speakers, if the table has such a column.
        is_audio: a function that takes a name from the table, and returns whether an audio file has
            this name. The function is used to detect the header, the delimiter and the column with
            the paths.

    Raises:
        UserError: if the table is empty or cannot be read, or if the user must specify a column.
    """
    missing = "no such file, expected a table of the recordings"
    text = read_text(table.path, table.encoding, missing)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise UserError(f"{table.path}: this file is empty (expected one recording per line)")
    if first := EXCEL_DELIMITER.match(text):
        print(f"note: {table.path}: the first line sets the delimiter {first[1]!r}")
        text = text[first.end() :]
        table = replace(table, delimiter=table.delimiter or first[1])
    if FESTVOX_LINE.match(text):
        text = "\n".join(map(without_parentheses, text.split("\n")))
        table = replace(table, delimiter="\t")
    if text.lstrip().startswith("{") or JSON_ARRAY.match(text):
        content = Content(*rows_of_json(table, text), delimiter="")
    else:
        content = read_fields(table, speaker_column, text, is_audio)
    if not content.rows:
        raise UserError(
            f"{table.path}: no lines after the header (expected one recording per line)"
        )
    columns = choose_columns(table, speaker_column, content, is_audio)
    times = find_time_columns(table.path, content.titles or [], content.rows)
    print_assumptions(table, content, columns, times)
    texts = [row.fields[columns.text] for row in content.rows if len(row.fields) > columns.text]
    check_last_line(table.path, text, texts)
    return entries_of(content, columns, times)


def without_parentheses(line: str) -> str:
    """Return a line of txt.done.data as id, tab and text. A comment becomes an empty line."""
    if line.lstrip().startswith(";"):
        return ""
    match = FESTVOX_LINE.fullmatch(line.rstrip())
    return "\t".join([match[1], match[2].replace('\\"', '"')]) if match else line


def read_fields(
    table: Table, speaker_column: str, text: str, is_audio: Callable[[str], bool] | None
) -> Content:
    """Return the fields of a table with one row per line."""
    delimiter = table.delimiter or find_delimiter(table, speaker_column, text, is_audio)
    rows = rows_of_csv(table.path, text, delimiter)
    files = columns_of_files(rows[1:] or rows, is_audio)
    if rows and not files and not table.path_column:
        check_lists_files(table.path, [normal_title(x) for x in rows[0].fields], rows[1:])
    known_path = None
    if rows and has_titles(table, speaker_column, rows[0].fields):
        has_header = True
    else:
        index = path_index(table, files)
        has_header = is_audio is not None and may_be_header(rows, index, is_audio)
        known_path = index if has_header else None
    if not has_header:
        return Content(None, rows, delimiter)
    titles = [normal_title(x) for x in rows[0].fields]
    while not titles[-1]:  # spreadsheet programs may add empty columns at the end
        titles.pop()
    return Content(titles, rows[1:], delimiter, known_path)


def find_delimiter(
    table: Table,
    speaker_column: str,
    text: str,
    is_audio: Callable[[str], bool] | None = None,
) -> str:
    """Return the delimiter of a table. Most lines must contain the delimiter.

    Commas and semicolons count as delimiters only if the table has a header, if the user selected
    the columns, or if one of the columns lists audio files, because texts also contain commas and
    semicolons. Other characters count only if one of the columns lists audio files.

    Raises:
        UserError: if no delimiter is found.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and not text.endswith("\n"):
        lines.pop()  # the last line may be incomplete
    numbers = [int(x) for x in (table.path_column, table.text_column) if x.isdecimal()]
    # Spaces and tabs next to a pipe are not a delimiter.
    first = re.sub(r"\s*\|\s*", "|", lines[0])
    found = []
    for delimiter in DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        is_common = sum(count > 0 for count in counts) >= MIN_SHARE * len(lines)
        titles = lines[0].split(delimiter)
        if delimiter in QUOTING_DELIMITERS:
            # Quoted fields can contain line breaks, so some lines may lack the delimiter.
            is_selected = is_common and bool(table.text_column) and max(numbers, default=0) > 1
            is_found = len(titles) > 1 and (
                has_titles(table, speaker_column, titles)
                or (is_selected and len(titles) >= max(numbers))
            )
        else:
            is_found = is_common
        if is_found:
            found.append((len({*counts}) > 1, len(first.partition(delimiter)[0]), delimiter))
    if found:
        # Prefer a delimiter that occurs equally often in all lines, because a character that occurs
        # more often in some lines may be part of the texts. If several delimiters remain, prefer
        # the delimiter that comes first in the first line, because a later character may be part of
        # a field.
        return min(found)[2]
    others = [x for x in dict.fromkeys(lines[0]) if all(x in line for line in lines)]
    possible = [x for x in others if may_be_delimiter(x)]
    # Quoted fields can contain line breaks, so some lines may lack the delimiter.
    quoting = [x for x in QUOTING_DELIMITERS if x in lines[0] and x not in possible]
    for delimiter in (*possible, *quoting, FIRST_SPACE) if is_audio else ():
        rows = _rows_if_equal(table.path, text, delimiter)
        if rows and columns_of_files(rows[1:] or rows, is_audio):
            return delimiter
    titles, other_rows = _possible_titles(table.path, text)
    known = {normal_title(x) for x in titles} & {*PATH_TITLES, *TEXT_TITLES, *SPEAKER_TITLES}
    check_lists_files(table.path, [normal_title(x) for x in titles], other_rows)
    fix = ""
    if possible and not known:
        fix = (
            f". If {' or '.join(map(repr, possible))} separates the fields, set it with --delimiter"
        )
    if titles:
        listed = ", ".join(repr(title[:40]) for title in titles[:10])
        fix += (
            f". If the first line contains column titles ({listed}), select the columns with "
            "--path-column and --text-column"
        )
    if is_audio and not any(
        is_audio(x) for line in lines[:SAMPLE_LINES] for x in re.split(r"[\s,;:]+", line)
    ):
        fix += ". No line contains the name of an audio file of the corpus"
    raise UserError(
        f"{table.path}: unknown format. The first line is {lines[0].strip()[:60]!r}. Expected fields "
        f"separated by pipes or tabs, such as 'id|text', or a header such as 'path,text'{fix}"
    )


def check_lists_files(path: Path, titles: Sequence[str], rows: Sequence[Row]) -> None:
    """Raise UserError if a table has columns with times, but no column with a common title for the
    paths.

    The program calls this function if no column lists audio files of the corpus.
    """
    times = time_titles(titles, rows)
    if len(times) > 1 and not {*titles} & {*PATH_TITLES}:
        raise UserError(
            f"{path}: the columns {' and '.join(map(repr, times))} list segments, but no column lists "
            "audio files of the corpus. If Whisper wrote this table, put the table next to its audio "
            "file, give both files the same name, and leave out --csv. Otherwise, add the column "
            "'path' with the audio file of each segment"
        )


def may_be_delimiter(character: str) -> bool:
    """Return whether a character may be a delimiter: a comma, a semicolon, a colon, or a character
    that is rare in texts and file names."""
    is_ascii_mark = character.isascii() and not character.isalnum()
    is_symbol = unicodedata.category(character)[0] in "SC"
    return (is_ascii_mark or is_symbol) and character not in NO_DELIMITERS


def _rows_if_equal(path: Path, text: str, delimiter: str) -> list[Row]:
    """Return the rows of a table, or [] if the delimiter does not fit.

    The delimiter fits if nearly all rows (MIN_SHARE) have the same number of fields, and if this
    number is greater than 1.
    """
    try:
        rows = rows_of_csv(path, text, delimiter)
    except UserError:
        return []
    num_fields = Counter(len(row.fields) for row in rows)
    usual = max(num_fields, key=num_fields.__getitem__, default=1)
    return rows if usual > 1 and num_fields[usual] >= MIN_SHARE * len(rows) else []


def _possible_titles(path: Path, text: str) -> tuple[list[str], list[Row]]:
    """Return the fields of the first line and the other rows of a table. If the fields of the first
    line cannot be column titles, return two empty lists."""
    for delimiter in QUOTING_DELIMITERS:
        rows = _rows_if_equal(path, text, delimiter)
        if len(rows) > 1 and all(TITLE.fullmatch(without_marks(x)) for x in rows[0].fields):
            return rows[0].fields, rows[1:]
    return [], []


def entries_of(
    content: Content, columns: Columns, times: TimeColumns | None
) -> tuple[list[Entry], list[str]]:
    """Return the entries of the rows, and one message per bad row."""
    titles = content.titles or []
    num_fields = content.num_fields
    speaker_title = titles[columns.speaker] if titles and columns.speaker is not None else "speaker"
    with_start = {
        row.fields[columns.path]
        for row in content.rows
        if len(row.fields) >= columns.needed and start_of(times, titles, row.fields)
    }
    entries = []
    problems = []
    for row in content.rows:
        try:
            check_row(row, columns.needed, num_fields, content.delimiter)
            segment = segment_of(times, titles, row.fields)
        except ValueError as error:
            problems.append(f"{row.where}: {error}")
            continue
        speaker = ""
        if columns.speaker is not None and columns.speaker < len(row.fields):
            speaker = row.fields[columns.speaker]
        name = row.fields[columns.path]
        if times and name in with_start and not start_of(times, titles, row.fields):
            problems.append(
                f"{row.where}: no value in the column {times.start}, but other lines of {name!r} "
                "have a value"
            )
            continue
        duration = None if times else listed_duration(titles, row.fields)
        text = row.fields[columns.text]
        entries.append(Entry(name, text, row.where, speaker, segment, duration, speaker_title))
    return entries, problems


def print_assumptions(
    table: Table, content: Content, columns: Columns, times: TimeColumns | None
) -> None:
    """Print which delimiter and columns are used, unless the table has the format of LJSpeech's
    metadata.csv.

    If the program does not recognize a column with times or speakers, the user finds this column in
    the list of unused columns.
    """
    titles, delimiter, num_fields = content.titles, content.delimiter, content.num_fields
    is_usual = titles is None and delimiter == "|" and columns.path == 0
    if is_usual and columns.text == num_fields - 1 < 3:
        # LJSpeech's second column contains the texts as written, such as sentences or numbers. Print
        # no note for such a table. Print a note if the second column contains something else, such
        # as paths or the same word in all lines.
        second = [row.fields[1] for row in content.rows if len(row.fields) == num_fields == 3]
        has_texts = any(len(without_accents(x).split()) > 1 for x in second) or not any(second)
        are_numbers = len({*second}) > 1 and all(map(IS_NUMBER.fullmatch, second))
        if has_texts or are_numbers:
            return
    names_of_delimiters = {**DELIMITERS, FIRST_SPACE: "the first space"}
    form = f"fields separated by {names_of_delimiters.get(delimiter, repr(delimiter))}"
    if titles:
        form = f"{form}, with a header" if delimiter else "read as JSON"
    names = [repr(title) for title in titles] if titles else [*map(str, range(1, num_fields + 1))]
    chosen = (columns.path, columns.text, columns.speaker)
    used = {names[i] for i in chosen if i is not None} | {repr(x) for x in times or ()}
    unused = [name for name in names if name not in used | {"'duration'", "''"}]
    more = f"; unused columns: {', '.join(unused)}" if unused else ""
    print(
        f"note: {table.path}: {form}; paths are read from column {names[columns.path]}, "
        f"texts from column {names[columns.text]}{more}"
    )
