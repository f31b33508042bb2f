"""Read the rows of a table in CSV, with any delimiter, or in JSON.

rows = rows_of_csv(Path("data/mine/validated.tsv"), text, "\\t")
titles, rows = rows_of_json(Table(Path("data/mine/clips.jsonl")), text)
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from tacotron2_voice.utils.errors import UserError

# Column titles in the tables of Common Voice, Hugging Face, DeepSpeech, Coqui, Piper and NeMo, in
# order of preference.
PATH_TITLES = (
    "path file file_name filename wav wav_filename wav_path audio audio_file audio_path "
    "audio_filename audio_filepath id"
).split()
TEXT_TITLES = (
    "normalized_text normalized_transcription normalized text sentence transcript transcription"
).split()
SPEAKER_TITLES = (
    "speaker speaker_id speaker_name client_id spk spk_id reader reader_id narrator voice voice_id"
).split()
# Delimiter of lines that consist of the name of an audio file, a space and a text.
FIRST_SPACE = " "
# Delimiters of formats with quoted fields; in other formats, quotation marks are part of the text.
QUOTING_DELIMITERS = ",;"
# A table may have two lines per clip. The second line of each clip then begins with the delimiter.
# At least this fraction of the lines must belong to such pairs.
MIN_PAIRED = 0.8
EXPECTED_JSON = 'is not a JSON object (expected {"path": "a.wav", "text": "Yes."} or similar)'
# Matches the beginning of a JSON array of objects or arrays.
JSON_ARRAY = re.compile(r"\s*\[\s*[\[{\]]")
# Maximum number of characters in a field. Python's default would reject a long text without saying
# which text is too long.
MAX_FIELD = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """A table of recordings, and how to read it.

    Args:
        path: the file. Paths in the table are relative to the table's folder or to the corpus. The
            paths in the table may differ in extension and in case from the actual paths of the
            audio files.
        path_column, text_column: the column with the paths and the column with the texts, each
            given as a title or as a number (counted from 1). Default: a column with a common title,
            or LJSpeech's column.
        delimiter: the character between fields. Default: the delimiter that most lines contain.
        encoding: encoding of the file. Default: the encoding is detected (UTF-8 is tried first).
    """

    path: Path
    path_column: str = ""
    text_column: str = ""
    delimiter: str | None = None
    encoding: str = ""


class Row(NamedTuple):
    where: str
    fields: list[str]


class Content(NamedTuple):
    """The fields of a table."""

    titles: list[str] | None  # None: the table has no header
    rows: list[Row]
    delimiter: str  # "": the table is JSON
    # The index of the column that lists audio files, if the table has a header without a common
    # title for the paths.
    known_path: int | None = None

    @property
    def num_fields(self) -> int:
        """The number of titles or, without a header, the number of fields in most rows."""
        if self.titles is not None:
            return len(self.titles)
        return Counter(len(row.fields) for row in self.rows).most_common(1)[0][0]


def rows_of_csv(path: Path, text: str, delimiter: str) -> list[Row]:
    """Return the fields of each non-empty line. Raise UserError if a line cannot be read."""
    if delimiter == FIRST_SPACE:
        lines = enumerate(text.split("\n"), 1)
        return [Row(f"{path}:{i}", line.split(maxsplit=1)) for i, line in lines if line.strip()]
    file = io.StringIO(text, newline="")
    is_strict = False
    csv.field_size_limit(MAX_FIELD)
    is_quoted = delimiter not in QUOTING_DELIMITERS and _are_all_quoted(text, delimiter)
    if is_quoted:
        print(f"note: {path}: removed the quotation marks around the fields of all lines")
    if is_quoted or delimiter in QUOTING_DELIMITERS:
        is_strict = _is_valid_csv(text, delimiter)
        reader = csv.reader(file, delimiter=delimiter)
    else:
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    rows: list[Row] = []
    number = 1
    try:
        for fields in reader:
            if any(x.strip() for x in fields):
                # In a valid CSV file, replace line breaks inside a field with spaces. If a line of
                # the field contains enough delimiters for a row, keep the line breaks, because the
                # closing quotation mark may be missing and the field may contain the next row.
                most = len(rows[0].fields if rows else fields) - 1
                fields = [
                    " ".join(x.split("\n"))
                    if is_strict and all(y.count(delimiter) < most for y in x.split("\n")[1:])
                    else x
                    for x in fields
                ]
                rows.append(Row(f"{path}:{number}", [_unquoted(x.strip()) for x in fields]))
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not a valid CSV line ({error})") from None
    return joined_pairs(rows)


def _is_valid_csv(text: str, delimiter: str) -> bool:
    try:
        return bool([*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)])
    except csv.Error:
        return False


def _are_all_quoted(text: str, delimiter: str) -> bool:
    """Return whether all fields are in quotation marks. Titles in the header, numbers and empty
    fields may lack the quotation marks."""
    quoted = r'"(?:[^"]|"")*"'
    line = rf"{quoted}(?:{re.escape(delimiter)}(?:{quoted}|[-\d.,:]*))+\s*"
    header, _, rest = text.lstrip("\n").partition("\n")
    lines = rest if rest.strip() and '"' not in header else text
    return re.fullmatch(rf"(?:{line}\n)*{line}", f"{lines.strip()}") is not None


def _unquoted(field: str) -> str:
    """Remove the quotation marks around a field if all quotation marks inside the field are
    doubled.

    Many programs put quotation marks around fields that contain quotation marks, whatever the
    delimiter is.
    """
    inner = field[1:-1]
    is_quoted = len(field) > 2 and field[0] == field[-1] == '"' and '""' in inner
    if not is_quoted or '"' in inner.replace('""', ""):
        return field
    return inner.replace('""', '"')


def joined_pairs(rows: Sequence[Row]) -> list[Row]:
    """Join each line with the next line if every second line of the table begins with the
    delimiter.

    The BAKER corpus has two lines per clip; the second line contains the pinyin.

    Raises:
        UserError: if nearly half of the lines begin with the delimiter, but these lines do not
            alternate with the other lines.
    """
    are_second = [row.fields[0] == "" for row in rows]
    if MIN_PAIRED * len(rows) <= 2 * sum(are_second) < 2 * len(rows):
        for row, is_second, expected in zip(rows, are_second, cycle((False, True)), strict=False):
            if is_second != expected:
                raise UserError(
                    f"{row.where}: this line {'begins' if is_second else 'does not begin'} with the "
                    "delimiter (expected two lines per clip: a first line that does not begin with "
                    "the delimiter, and a second line that begins with the delimiter)"
                )
    first = rows[::2]
    second = rows[1::2]
    is_paired = len(first) == len(second) and all(x.fields[0] == "" for x in second)
    if not is_paired or not all(x.fields[0] for x in first):
        return list(rows)
    return [Row(x.where, x.fields + y.fields[1:]) for x, y in zip(first, second, strict=True)]


def rows_of_json(table: Table, text: str) -> tuple[list[str], list[Row]]:
    """Return the keys of all objects in a JSON array or in JSON Lines, and one row of values per
    object.

    Missing values, and values that are neither strings nor numbers, become empty strings.

    Raises:
        UserError: if a line or an element of the array is not a JSON object, or if the paths or
            texts are inside nested objects.
    """
    path = table.path
    is_array = JSON_ARRAY.match(text) is not None
    objects = _objects_of_array(path, text) if is_array else _objects_of_lines(path, text)
    keys = list(dict.fromkeys(key for value in objects.values() for key in value))
    nested: dict[str, str] = {}
    for where, value in objects.items():
        for key in value:
            if isinstance(value[key], (dict, list)):
                nested.setdefault(key, where)
    titles = {normal_title(key) for key in keys if key not in nested}
    is_complete = all(titles & {*usual} for usual in (PATH_TITLES, TEXT_TITLES))
    if nested and not (is_complete or table.path_column or table.text_column):
        key, where = next(iter(nested.items()))
        fix = ""
        texts = (key for value in objects.values() for key in value if isinstance(value[key], str))
        if len(strings := sorted({*texts} - {*nested})) > 1:
            fix = (
                f". If the keys {', '.join(map(repr, strings))[:200]} contain the path and the "
                "text, add --path-column and --text-column"
            )
        raise UserError(
            f"{where}: the value of {key[:40]!r} is an object or a list "
            '(expected texts and numbers as values, such as {"path": "a.wav", "text": "Yes."} for each recording)'
            f"{fix}"
        )
    rows = []
    for where, value in objects.items():
        fields = (value.get(key) for key in keys)
        plain = [str(x) if isinstance(x, (str, int, float)) else "" for x in fields]
        rows.append(Row(where, [" ".join(x.split()) for x in plain]))
    return [normal_title(key) for key in keys], rows


def _objects_of_array(path: Path, text: str) -> dict[str, dict]:
    """Return the objects in a JSON array as {position in the file: object}."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a valid JSON array ({error})") from None
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            found = json.dumps(value, ensure_ascii=False)[:60]
            raise UserError(f"{path}: element {number} of the array, {found}, {EXPECTED_JSON}")
    return {f"{path}: object {number}": value for number, value in enumerate(values, 1)}


def _objects_of_lines(path: Path, text: str) -> dict[str, dict]:
    """Return the objects in a JSON Lines file as {position in the file: object}."""
    objects: dict[str, dict] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            objects[where] = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            if keys := _keys_of_object(text):
                raise UserError(
                    f"{path}: the whole file is one JSON object with the keys {keys} (expected one "
                    "object per recording, with each object on its own line or in an array)"
                ) from None
            raise UserError(f"{where}: {line.strip()[:60]!r} {EXPECTED_JSON}") from None
    return objects


def _keys_of_object(text: str) -> str:
    """Return the first keys of a JSON object, for a message; "" if the text is not an object."""
    try:
        return ", ".join(repr(key[:40]) for key in [*dict(json.loads(text))][:5])
    except (ValueError, TypeError, RecursionError):
        return ""


def check_row(row: Row, needed: int, num_fields: int, delimiter: str) -> None:
    """Raise ValueError if a row is malformed.

    A row must have `needed` to `num_fields` fields, without line breaks or invalid Unicode.
    """
    for field in row.fields:
        if surrogate := re.search("[\ud800-\udfff]", field):
            raise ValueError(f"contains {surrogate[0]!r}, which is not valid Unicode")
        if more := field.count("\n"):
            raise ValueError(
                f"a quoted field continues over {more + 1:,} lines: {field[:60]!r}; close the quotation "
                "mark, double any quotation marks inside a quoted field, or remove the line break"
            )
    has_more = any(row.fields[num_fields:])
    if len(row.fields) < needed or has_more:
        fix = ""
        if has_more and delimiter in QUOTING_DELIMITERS:
            fix = f"; quote texts that contain {delimiter!r}, or remove {delimiter!r}"
        elif has_more:
            fix = f"; remove {delimiter!r} from the text"
        beginning = repr(delimiter.join(row.fields)[:60])
        raise ValueError(f"{len(row.fields)} fields, expected {num_fields}: {beginning}{fix}")


def normal_title(title: str) -> str:
    """Return a title in lower case, with underscores between the words, as in start_time."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", title.strip().strip('"'))
    return words.lower().replace(" ", "_")
