"""Read a table of recordings: CSV with any delimiter, header and column order, or JSON lines.

    entries, problems = read_table(Table(Path("data/mine/validated.tsv")))
    entries, problems = read_table(Table(path, path_column="3", text_column="5"), speaker_column="1")

LJSpeech's metadata.csv (id|text|normalized text, no header) is one such table. Columns that have no
usual title must be certain, or named: a table is never trained with the wrong column as its text.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from corpus.clips import Segment
from corpus.text_files import read_text
from tacotron2_voice.utils.errors import UserError

# Usual titles: of Common Voice, Hugging Face, DeepSpeech, Coqui, Piper and NeMo. Preferred first.
PATH_TITLES = (
    "path file file_name filename wav wav_filename wav_path audio audio_file audio_path "
    "audio_filename audio_filepath id"
).split()
TEXT_TITLES = (
    "normalized_text normalized_transcription normalized text sentence transcript transcription"
).split()
DELIMITERS = {"|": "pipes", "\t": "tabs", ";": "semicolons", ",": "commas"}
QUOTING_DELIMITERS = ",;"  # in other tables, a quotation mark belongs to the text
CERTAIN_DELIMITERS = "|\t"  # texts contain commas and semicolons, but no pipes and tabs
MIN_SHARE = 0.9  # of the lines that agree on what the table is
MIN_LINES = 5  # in fewer lines, values repeat by chance
MAX_REPEATING_SHARE = 0.2  # distinct values of a column over lines: names of speakers repeat
MIN_DISTINCT_SHARE = 0.5  # texts hardly repeat
MAX_SHOWN = 3  # values in a warning
MIN_WORDS = 3  # of two texts, to compare their words
AUDIO_SUFFIXES = (
    *(".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff"),
    *(".m4a", ".aac", ".wma", ".mp4", ".webm"),
)
EXPECTED_JSON = 'expected a JSON object such as {"path": "a.wav", "text": "Yes."}'


@dataclass(frozen=True)
class Table:
    """A table of recordings.

    Args:
        path: the file. Paths in it start at its own folder or at the corpus; extensions and case
            may differ.
        path_column, text_column: a column's title in the header, or its number from 1 on. By
            default a usual title, or LJSpeech's columns.
        delimiter: one character; by default the one that divides the lines.
        encoding: by default UTF-8, or what the file is recognized to be.
    """

    path: Path
    path_column: str = ""
    text_column: str = ""
    delimiter: str | None = None
    encoding: str = ""


class Entry(NamedTuple):
    """A line of a table."""

    name: str  # path, id or name of the audio file
    text: str
    where: str  # "file:line"
    speaker: str = ""
    segment: Segment | None = None


class Row(NamedTuple):
    where: str
    fields: list[str]


class Columns(NamedTuple):
    """Indices of the columns."""

    path: int
    text: int
    speaker: int | None


def read_table(table: Table, speaker_column: str = "") -> tuple[list[Entry], list[str]]:
    """Read the entries of a table, and the problems of bad lines.

    `speaker_column`: the title or number of the column that names speakers, "" without one.

    Raises:
        UserError: if the table is empty or cannot be read, or if a column is not certain.
    """
    missing = "no such file; name a table of the recordings"
    text = read_text(table.path, table.encoding, missing)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise UserError(f"{table.path}: empty, expected a recording on each line")
    delimiter = ""
    titles: list[str] | None
    if text.lstrip().startswith("{"):
        titles, rows = rows_of_json_lines(table.path, text)
    elif re.match(r"\s*\[\s*[{\]]", text):  # not a text that begins with a bracket
        titles, rows = rows_of_json_array(table.path, text)
    else:
        delimiter = table.delimiter or find_delimiter(table.path, text)
        rows = rows_of_csv(table.path, text, delimiter)
        titles = None
        if has_titles(table, speaker_column, rows[0].fields):
            titles = [normal_title(x) for x in rows.pop(0).fields]
    if not rows:
        raise UserError(f"{table.path}: no line after its header, expected recordings")
    return entries_of(table, speaker_column, titles, rows, delimiter)


def entries_of(
    table: Table,
    speaker_column: str,
    titles: list[str] | None,
    rows: Sequence[Row],
    delimiter: str,
) -> tuple[list[Entry], list[str]]:
    """Choose the columns and make the entries; errors as `read_table`."""
    num_fields = commonest_number(rows) if titles is None else len(titles)
    columns = choose_columns(table, speaker_column, titles, rows, num_fields, delimiter)
    print_assumptions(table, titles, num_fields, columns, delimiter)
    needed = 1 + max(index for index in columns if index is not None)
    most = max(needed, num_fields if titles is None else num_filled(titles))
    entries, problems = [], []
    for row in rows:
        if problem := problem_of_row(row, needed, most, delimiter):
            problems.append(f"{row.where}: {problem}")
            continue
        speaker = "" if columns.speaker is None else row.fields[columns.speaker]
        name, spoken = row.fields[columns.path], row.fields[columns.text]
        try:
            segment = segment_of(titles, row.fields)
            entries.append(Entry(name, spoken, row.where, speaker, segment))
        except ValueError as error:
            problems.append(f"{row.where}: {error}")
    return entries, problems


# ---------------------------------------------------------------------------- rows


def find_delimiter(path: Path, text: str) -> str:
    """Return the character that divides the lines.

    Pipes and tabs are delimiters if most lines have them. Texts contain commas and semicolons, so
    these are delimiters only in a table with usual titles, or if different names without a space
    come before the first one.

    Raises:
        UserError: if no delimiter fits.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for delimiter in DELIMITERS:
        having = [line for line in lines if delimiter in line]
        if len(having) < MIN_SHARE * len(lines):
            continue
        if delimiter in CERTAIN_DELIMITERS:
            return delimiter
        titles = {normal_title(x) for x in lines[0].split(delimiter)}
        if titles & {*PATH_TITLES} and titles & {*TEXT_TITLES}:
            return delimiter
        names = [line.partition(delimiter)[0].strip('" ') for line in having]
        are_names = all(" " not in x or x.lower().endswith(AUDIO_SUFFIXES) for x in names)
        if are_names and len({*names}) >= MIN_DISTINCT_SHARE * len(names):
            return delimiter
    raise UserError(
        f"{path}: begins with {lines[0][:60]!r}, expected fields between pipes, tabs, semicolons or "
        "commas, such as 'id|text'; name another delimiter by --delimiter"
    )


class WithoutQuotes(csv.excel):
    quoting = csv.QUOTE_NONE


def rows_of_csv(path: Path, text: str, delimiter: str) -> list[Row]:
    """Return the fields of each line that is not empty, without columns that are empty at the end.

    Raises:
        UserError: for a line that cannot be read.
    """
    lines = text.split("\n")
    firsts = [line.partition(delimiter)[0].strip() for line in lines if line.strip()]
    are_quoted = all(len(x) > 1 and x[0] == x[-1] == '"' for x in firsts)
    has_quotes = delimiter in QUOTING_DELIMITERS or are_quoted
    dialect: type[csv.Dialect] = csv.excel if has_quotes else WithoutQuotes
    reader = csv.reader(io.StringIO(text, newline=""), dialect, delimiter=delimiter)
    rows = []
    number = 1
    try:
        for fields in reader:
            if any(fields):
                rows.append(Row(f"{path}:{number}", [field.strip() for field in fields]))
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}, expected a line of a table") from None
    if all(row.fields[-1] == "" for row in rows):
        return [Row(row.where, row.fields[:-1]) for row in rows]
    return rows


def rows_of_json_lines(path: Path, text: str) -> tuple[list[str], list[Row]]:
    """Return the keys and the values of JSON objects, one on each line.

    Raises:
        UserError: if a line is no JSON object.
    """
    objects = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                objects.append((where, json.loads(line)))
            except (ValueError, RecursionError):
                raise UserError(f"{where}: {line.strip()[:60]!r}: {EXPECTED_JSON}") from None
    return rows_of_objects(objects)


def rows_of_json_array(path: Path, text: str) -> tuple[list[str], list[Row]]:
    """Return the keys and the values of an array of JSON objects; errors as for JSON lines."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}), expected an array of objects") from None
    return rows_of_objects([(f"{path}[{index}]", value) for index, value in enumerate(values)])


def rows_of_objects(objects: Sequence[tuple[str, object]]) -> tuple[list[str], list[Row]]:
    """Return all keys, and a row of values for each object. Other values than strings and numbers
    are empty, as are those of keys that an object lacks."""
    keys: dict[str, None] = {}
    for where, value in objects:
        if not isinstance(value, dict):
            raise UserError(f"{where}: {json.dumps(value)[:60]!r}: {EXPECTED_JSON}")
        if "\\ud" in json.dumps(value):
            json_text = json.dumps(value, ensure_ascii=False)
            if any("\ud800" <= x <= "\udfff" for x in json_text):
                raise UserError(f"{where}: half of a surrogate pair, expected Unicode characters")
        keys |= dict.fromkeys(value)
    rows = []
    for where, value in objects:
        assert isinstance(value, dict)
        fields = (value.get(key) for key in keys)
        plain = [str(x) if isinstance(x, (str, int, float)) else "" for x in fields]
        rows.append(Row(where, [" ".join(x.split()) for x in plain]))
    return [normal_title(key) for key in keys], rows


def num_filled(fields: Sequence[str]) -> int:
    """Return the number of fields without the empty ones at the end."""
    return max((number for number, field in enumerate(fields, 1) if field), default=0)


def commonest_number(rows: Sequence[Row]) -> int:
    """Return the number of fields that most rows have; of equally common ones the larger."""
    counts = Counter(len(row.fields) for row in rows)
    return max(counts, key=lambda number: (counts[number], number))


def problem_of_row(row: Row, needed: int, most: int, delimiter: str) -> str:
    """Return what is wrong with a row that has too few or too many fields; "" for a good row."""
    for field in row.fields:
        if more := field.count("\n"):
            return (
                f"a quotation mark opens a field that goes on for {more:,} more lines: "
                f"{field[:60]!r}, expected each recording in one line, with quotation marks "
                "inside a quoted field written twice"
            )
    beginning = repr(delimiter.join(row.fields)[:60])
    if len(row.fields) < needed:
        return f"{len(row.fields)} fields, expected {most}: {beginning}; fix the line"
    filled = num_filled(row.fields)
    if filled <= most:
        return ""
    fix = f"leave {delimiter!r} out of the text"
    if delimiter in QUOTING_DELIMITERS:
        fix = f"quote texts that contain {delimiter!r}"
    return f"{filled} fields, expected {most}: {beginning}; {fix}"


# ---------------------------------------------------------------------------- columns


def normal_title(title: str) -> str:
    return title.strip().strip('"').lower().replace(" ", "_")


def has_titles(table: Table, speaker_column: str, first: Sequence[str]) -> bool:
    """Return whether the first row is a header: a column is named by its title, or there are usual
    titles for path and text."""
    asked = (table.path_column, table.text_column, speaker_column)
    if any(x and not x.isdecimal() for x in asked):
        return True
    titles = {normal_title(x) for x in first}
    has_path = bool(titles & {*PATH_TITLES})
    has_text = bool(titles & {*TEXT_TITLES})
    if table.path_column or table.text_column:
        return has_path or has_text
    return has_path and has_text


def choose_columns(
    table: Table,
    speaker_column: str,
    titles: list[str] | None,
    rows: Sequence[Row],
    num_fields: int,
    delimiter: str,
) -> Columns:
    """Return the columns of path, text and speaker; errors as `read_table`."""

    def asked(option: str, column: str) -> int | None:
        if not column:
            return None
        if column.isdecimal() and 1 <= int(column) <= num_fields:
            return int(column) - 1
        if titles and normal_title(column) in titles:
            return titles.index(normal_title(column))
        known = ", ".join(titles or rows[0].fields)[:200]
        raise UserError(
            f"{table.path}: {option} {column}: no such column, expected a number from 1 to "
            f"{num_fields}, or a title of {known!r}"
        )

    def usual(known: Sequence[str]) -> int | None:
        return next((titles.index(x) for x in known if x in titles), None) if titles else None

    speaker = asked("--speaker-column", speaker_column)
    path = asked("--path-column", table.path_column)
    text = asked("--text-column", table.text_column)
    if path is None:
        path = usual(PATH_TITLES)
    if text is None:
        text = usual(TEXT_TITLES)
    if path is None and titles is None:
        path = 0
    if path is None:
        raise _uncertain(table, "--path-column", "paths or ids", titles, rows)
    if speaker is not None and num_fields == 2:
        raise UserError(
            f"{table.path}: --speaker-column {speaker_column}: its lines have two fields, expected "
            "three or more, with path, speaker and text; --speaker NAME names one for all lines"
        )
    if speaker is not None and speaker in (path, text):
        raise UserError(
            f"{table.path}: --speaker-column {speaker_column}: this column contains the "
            f"{'paths' if speaker == path else 'texts'}, expected another column"
        )
    if text is None:
        text = certain_text(table, titles, rows, num_fields, path, speaker, delimiter)
    if text == path:
        raise UserError(f"{table.path}: column {text + 1} is named for paths and for texts")
    return Columns(path, text, speaker)


def certain_text(
    table: Table,
    titles: list[str] | None,
    rows: Sequence[Row],
    num_fields: int,
    path: int,
    speaker: int | None,
    delimiter: str,
) -> int:
    """Return the column of the texts in a table that does not name it: the only other column, or
    LJSpeech's normalized text, which comes after the text as it is written.

    Raises:
        UserError: if other columns may contain the texts.
    """
    others = [index for index in range(num_fields) if index not in (path, speaker)]
    if titles is None and len(others) == 1:
        return others[0]
    is_ljspeech = titles is None and len(others) == 2 and delimiter in CERTAIN_DELIMITERS
    if not is_ljspeech:
        raise _uncertain(table, "--text-column", "texts", titles, rows)
    written, spoken = others
    columns = [[row.fields[i] for row in rows if len(row.fields) > spoken] for i in others]
    if repeats(columns[1]) and not repeats(columns[0]):
        raise UserError(
            f"{table.path}: column {spoken + 1} would be read as the texts, but has only "
            f"{len({*columns[1]}):,} values in {len(rows):,} lines, such as {columns[1][0]!r}. Name "
            f"the texts by --text-column {written + 1}, and speakers by --speaker-column"
        )
    if are_other_texts(*columns):
        raise UserError(
            f"{table.path}: columns {written + 1} and {spoken + 1} are different texts: "
            f"{columns[0][0][:60]!r} and {columns[1][0][:60]!r}. Name the one that is spoken by "
            "--text-column"
        )
    if repeats(columns[0]) and len({*columns[0]} - {""}) > 1:
        _warn_of_speakers(table.path, columns[0], written + 1)
    return spoken


def _warn_of_speakers(path: Path, values: Sequence[str], number: int) -> None:
    commonest = Counter(values).most_common(MAX_SHOWN)
    shown = ", ".join(f"{value[:20]!r} in {count:,}" for value, count in commonest)
    print(
        f"warning: {path}: column {number} has {len({*values}):,} values in {len(values):,} lines: "
        f"{shown}. If these are speakers, they are trained as one person; --speaker-column "
        f"{number} keeps them apart (docs/guides/speakers.md)"
    )


def _uncertain(
    table: Table, option: str, what: str, titles: list[str] | None, rows: Sequence[Row]
) -> UserError:
    found = f"titles {', '.join(titles)[:200]!r}" if titles else f"columns {rows[0].fields!r:.200}"
    expected = "a usual title" if titles else "id|text or id|text|normalized text"
    return UserError(
        f"{table.path}: {found}, expected {expected}; name the column of the {what} by {option}, "
        "by its title or its number from 1 on"
    )


def repeats(values: Sequence[str]) -> bool:
    """Return whether the values are few, as names of speakers are."""
    distinct = len({*values})
    return len(values) >= MIN_LINES and distinct <= MAX_REPEATING_SHARE * len(values)


def are_other_texts(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether most lines have no word in common, as a text and its translation."""
    pairs = [(set(words_of(a)), set(words_of(b))) for a, b in zip(one, other, strict=True)]
    long = [(a, b) for a, b in pairs if min(len(a), len(b)) >= MIN_WORDS]
    return sum(not a & b for a, b in long) > len(long) / 2


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case, without numbers."""
    return (word for word in re.findall(r"\w+", text.casefold()) if word.isalpha())


def segment_of(titles: list[str] | None, fields: Sequence[str]) -> Segment | None:
    """Return the part of the recording that a row with `offset` (and `duration`) transcribes, in
    seconds, as NeMo writes them. ValueError if they are no such numbers."""
    if not titles or "offset" not in titles or not fields[titles.index("offset")]:
        return None
    values = {}
    for name in ("offset", "duration"):
        value = fields[titles.index(name)] if name in titles else ""
        if value:
            values[name] = float(value) if re.fullmatch(r"[\d.eE+-]+", value) else -1.0
            if not values[name] >= 0:
                raise ValueError(f"{name} {value!r}, expected seconds from 0 on")
    return Segment(values["offset"], values.get("duration"))


def print_assumptions(
    table: Table, titles: list[str] | None, num_fields: int, columns: Columns, delimiter: str
) -> None:
    """Print how a table is read that is not as LJSpeech's metadata.csv."""
    is_usual = titles is None and delimiter == "|" and columns.path == 0
    if is_usual and columns.text == num_fields - 1:
        return

    def named(index: int) -> str:
        return f"{titles[index]!r}" if titles else f"{index + 1}"

    form = (
        f"read with {DELIMITERS.get(delimiter, repr(delimiter))}" if delimiter else "read as JSON"
    )
    header = " and a header" if titles and delimiter else ""
    print(
        f"note: {table.path}: {form}{header}: paths from column {named(columns.path)}, texts from "
        f"column {named(columns.text)}"
    )
