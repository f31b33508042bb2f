"""Read a table of recordings in CSV (any delimiter, header and column order) or JSON Lines.

    entries, problems = read_table(Table(Path("data/mine/validated.tsv")))
    entries, problems = read_table(Table(path, path_column="3", text_column="5"), speaker_column="1")

An example is LJSpeech's metadata.csv (id|text|normalized text, no header). If a table has neither
common column titles nor LJSpeech's columns, the user must specify the columns.
"""

import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from corpus.clips import Segment
from corpus.spoken_texts import MISSING_TEXT
from corpus.text_files import check_last_line, read_text
from tacotron2_voice.utils.errors import UserError

METADATA = "metadata.csv"  # file name of the default table
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
DELIMITERS = {"|": "pipes", "\t": "tabs", ";": "semicolons", ",": "commas"}
# Characters that are not suggested as delimiters, because they occur in ordinary texts and in file
# names.
NO_DELIMITERS = " .!?'\"-_/\\()<>[]{}"
# Delimiter of lines that consist of the name of an audio file, a space and a text.
FIRST_SPACE = " "
# Delimiters of formats with quoted fields; in other formats, quotation marks are part of the text.
QUOTING_DELIMITERS = ",;"
# A table may have two lines per clip. The second line of each clip then begins with the delimiter.
# At least this fraction of the lines must belong to such pairs.
MIN_PAIRED = 0.8
MIN_SHARE = 0.9  # minimum fraction of the lines that must contain the delimiter
# Minimum number of lines of a table in which repeated values are detected. In a shorter table,
# values may be repeated by chance.
MIN_LINES = 5
# Maximum number of different values in a column of speaker names, divided by the number of lines.
# The maximum is small because speaker names are repeated.
MAX_REPEATING_SHARE = 0.2
# Matches a number, a date, or a time such as 1:02.
IS_NUMBER = re.compile(r"[-\d.,:/ ]*\d[-\d.,:/ ]*")
# Of the ordinary words in the texts, at least this fraction must occur in the normalized texts.
MIN_KEPT_WORDS = 0.85
# Lines whose normalized text lacks ordinary words of the text are exceptions if they are at most
# this fraction of all lines.
MAX_CHANGED_LINES = 0.2
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
TOKEN = re.compile(r"[^\s–—-]+")  # matches a word with its punctuation
CLOSING = "\"'”’»),;:"  # characters that may follow the period of an abbreviation
PUNCTUATION = f".!?¡¿…“„‘‚«([]{CLOSING}。、，！？：；「」『』（）।"
# Matches characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and
# Chinese characters.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
EXPECTED_JSON = 'is not a JSON object (expected {"path": "a.wav", "text": "Yes."} or similar)'
# Matches the beginning of a JSON array of objects or arrays.
JSON_ARRAY = re.compile(r"\s*\[\s*[\[{\]]")
# Matches the first line of a table if this line sets the delimiter for Excel, as in "sep=;". The line
# break after it is not removed, so that the numbers of the later lines in messages stay correct.
EXCEL_DELIMITER = re.compile(r'"?sep=(.)"?(?=\n)', re.IGNORECASE)
# Matches a field that may be a column title: up to three words without punctuation. An empty field
# also matches.
TITLE = re.compile(r"(?=.*[^\W\d])\w+([ :-]\w+){0,2}|")
# Matches a field without digits. A field with digits, such as clip_0012, may be the name of a
# recording.
WITHOUT_NUMBER = re.compile(r"\D*")
# Maximum number of characters in a field. Python's default would reject a long text without saying
# which text is too long.
MAX_FIELD = 2**31 - 1
# Number of lines after the first line that are compared with the audio files, to detect a header
# and to detect the columns.
HEADER_LINES, SAMPLE_LINES = 5, 200
# A column contains sentences if the median number of words per value is at least
# MIN_SENTENCE_WORDS, and if more than the fraction MIN_DIFFERENT of the values are different.
MIN_SENTENCE_WORDS, MIN_DIFFERENT = 3, 0.5
# If the second column contains numbers, and the texts in the third column have at least this number of
# words (median), the texts are probably not the numbers as words.
MIN_NORMALIZED_WORDS = 4


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


class Row(NamedTuple):
    where: str
    fields: list[str]


class Columns(NamedTuple):
    """The indices of the columns for paths, texts and speaker names."""

    path: int
    text: int
    speaker: int | None
    needed: int  # minimum number of fields that each row must have


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


# ---------------------------------------------------------------------------- rows


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
            if any(fields):
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


# ---------------------------------------------------------------------------- columns


def normal_title(title: str) -> str:
    """Return a title in lower case, with underscores between the words, as in start_time."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", title.strip().strip('"'))
    return words.lower().replace(" ", "_")


def has_titles(table: Table, speaker_column: str, first: Sequence[str]) -> bool:
    """Return whether the first row is a header.

    The first row is a header if the user specified a column by its title, or if the row contains
    common titles for the path and the text.
    """
    asked = (table.path_column, table.text_column, speaker_column)
    if any(x and not x.isdecimal() for x in asked):
        return True
    titles = {normal_title(x) for x in first}
    has_path = bool(titles & {*PATH_TITLES})
    has_text = bool(titles & {*TEXT_TITLES})
    if table.path_column or table.text_column:
        return has_path or has_text
    return has_path and has_text


def path_index(table: Table, files: Sequence[int]) -> int:
    """Return the index of the column with the paths if no column has a common title for paths.

    Args:
        files: the indices of the columns that list audio files.
    """
    if table.path_column.isdecimal():
        return int(table.path_column) - 1
    return files[0] if files else 0


def columns_of_files(rows: Sequence[Row], is_audio: Callable[[str], bool] | None) -> list[int]:
    """Return the indices of the columns whose values are names of audio files in nearly all rows."""
    sample = [row.fields for row in rows[:SAMPLE_LINES]]
    if not sample or not is_audio:
        return []
    max_others = max((1 - MIN_SHARE) * len(sample), len(sample) >= MIN_LINES)
    return [
        index
        for index in range(max(map(len, sample)))
        if sum(index >= len(x) or not is_audio(x[index]) for x in sample) <= max_others
    ]


def columns_of_sentences(rows: Sequence[Row], others: Container[int | None]) -> list[int]:
    """Return the indices of the columns that contain sentences.

    Args:
        others: the indices of columns that are known to contain other values. These columns are
            skipped.
    """
    sample = [row.fields for row in rows[:SAMPLE_LINES]]
    found = []
    for index in range(max(map(len, sample))):
        values = [x[index] for x in sample if index < len(x)]
        num_words = median(len(_words(x)) for x in values)
        are_different = len({*values}) > MIN_DIFFERENT * len(values)
        if index not in others and num_words >= MIN_SENTENCE_WORDS and are_different:
            found.append(index)
    return found


def _words(text: str) -> list[str]:
    """Return the words of a text, without single letters, as in a spelled word. A path or an address
    is one word."""
    words = (x for x in _comparable(text).split() if WORD.search(x))
    return [x for x in words if len(x) > 1 or UNSPACED.match(x)]


def _may_be_speakers(values: Sequence[str]) -> bool:
    return repeats(values) and len({*values}) > 1


def without_marks(text: str) -> str:
    """Return a text without combining characters, such as the vowel signs of Devanagari."""
    return "".join(x for x in text if unicodedata.category(x)[0] != "M")


def may_be_header(rows: Sequence[Row], path: int, is_audio: Callable[[str], bool]) -> bool:
    """Return whether the first row looks like a header.

    The first row must not list an audio file, but at least one of the next rows must list an audio
    file.

    Args:
        path: the index of the column with the paths.
    """
    names = [row.fields[path] for row in rows[: 1 + HEADER_LINES] if 0 <= path < len(row.fields)]
    if (
        len(names) < 2
        or not names[0]
        or len({*rows[0].fields}) < len(rows[0].fields)
        or not all(TITLE.fullmatch(without_marks(x)) for x in rows[0].fields)
    ):
        return False
    is_name = WITHOUT_NUMBER.fullmatch(names[0]) is None or is_audio(names[0])
    return not is_name and any(is_audio(name) for name in names[1:])


def choose_columns(
    table: Table,
    speaker_column: str,
    content: Content,
    is_audio: Callable[[str], bool] | None = None,
) -> Columns:
    """Choose the columns for path, text and speaker.

    If the table has no header, the first column contains the path, and the last column contains the
    text. Apart from the speaker column, a table without a header has two columns (path and text),
    or three columns as in LJSpeech (path, text and normalized text). If the column with a common
    title for paths lists no audio files of the corpus, but another column does, the paths are read
    from the other column.

    Raises:
        UserError: if a selected column does not exist, or if the user must specify a column.
    """
    titles, rows, num_fields = content.titles, content.rows, content.num_fields

    def column(option: str, asked: str, usual: Sequence[str]) -> int | None:
        if not asked:
            return next((titles.index(x) for x in usual if titles and x in titles), None)
        if asked.isdecimal() and 1 <= int(asked) <= num_fields:
            return int(asked) - 1
        if titles and normal_title(asked) in titles:
            return titles.index(normal_title(asked))
        known = ", ".join(titles or rows[0].fields)[:200]
        raise UserError(
            f"{table.path}: {option} {asked}: no such column (expected a number from 1 to "
            f"{num_fields}, or one of the titles {known!r})"
        )

    speaker = column("--speaker-column", speaker_column, ())
    path = column("--path-column", table.path_column, PATH_TITLES)
    text = column("--text-column", table.text_column, TEXT_TITLES)
    files = columns_of_files(rows, is_audio)
    names = [row.fields[path] for row in rows if path is not None and path < len(row.fields)]
    lists_audio = is_audio is not None and any(map(is_audio, names))
    if not table.path_column and files and not lists_audio:
        path = next((i for i in files if i not in (text, speaker)), path)
    is_header = bool({*(titles or ())} & {*PATH_TITLES, *TEXT_TITLES, *SPEAKER_TITLES})
    if path is None and (text is not None or is_header):
        path = content.known_path
    normalized: list[int] = []  # the columns of the texts and of their normalized forms
    if titles is None:
        path = 0 if path is None else path
        # A column without any value, as after a delimiter at the end of each line, contains no texts.
        filled = {i for row in rows for i, field in enumerate(row.fields) if field}
        others = [i for i in range(num_fields) if i in filled - {path, speaker}]
        if text is None and len(others) == 1:
            text = others[0]
        if text is None and len(others) == 2 and content.delimiter not in QUOTING_DELIMITERS:
            text = others[1]
            normalized = others
    sentences = columns_of_sentences(rows, (path, speaker)) if path in files else []
    if text is None and len(sentences) == 1 and (content.known_path is None or is_header):
        # If the table has no titles, the note about unused columns lists only their numbers. In such
        # a note, the user may overlook a column with speakers. Therefore, the text column is not
        # guessed if an unused column of a table without titles may contain speakers.
        unused = {*range(num_fields)} - {path, speaker, *sentences}
        columns = [[x.fields[i] for x in rows if i < len(x.fields)] for i in sorted(unused)]
        if titles or speaker is not None or not any(map(_may_be_speakers, columns)):
            text = sentences[0]
    if path is None or text is None:
        raise _error_of_missing_columns(table.path, content, path, text, sentences)
    if path == text:
        raise UserError(f"{table.path}: column {text + 1} was selected for both paths and texts")
    if speaker in (path, text):
        raise UserError(
            f"{table.path}: --speaker-column {speaker_column}: this column contains the "
            f"{'paths' if speaker == path else 'texts'}. Choose a different column. If all lines "
            "have the same speaker, use --speaker NAME instead"
        )
    if normalized:
        check_is_normalized(table.path, rows, *normalized)
    needed = 1 + max(path, text, 0 if speaker is None else speaker)
    if speaker is None:
        speaker = next((i for i, x in enumerate(titles or []) if x in SPEAKER_TITLES), None)
    return Columns(path, text, speaker, needed)


def _error_of_missing_columns(
    where: Path, content: Content, path: int | None, text: int | None, sentences: Sequence[int]
) -> UserError:
    """Return the error if the column with the paths or with the texts was not found.

    Args:
        sentences: the indices of the columns that contain sentences.
    """
    titles = content.titles
    missing = {"--path-column": path, "--text-column": text}
    options = " and ".join(option for option, index in missing.items() if index is None)
    found = ", ".join(titles or content.rows[0].fields)[:200]
    advice = f"Add {options} with the title or the number of the column (counted from 1)"
    if text is None and sentences:
        listed = [repr(titles[i]) if titles else str(i + 1) for i in sentences]
        plural = "s" * (len(listed) > 1)
        advice += f". Sentences are in column{plural} {', '.join(listed)}"
    if content.known_path is not None:
        return UserError(
            f"{where}:1: this line contains no name of an audio file, so it looks like a header with the "
            f"columns {found!r} (expected common column titles, such as 'path' and 'text'). {advice}. If "
            "the line is not a header, its audio file is missing"
        )
    return UserError(
        f"{where}: the column with the {'paths' if path is None else 'texts'} was not found in "
        f"{found!r}. Expected common column titles, or lines of id|text or id|text|normalized text. "
        f"{advice}"
    )


def check_is_normalized(path: Path, rows: Sequence[Row], written: int, spoken: int) -> None:
    """Raise UserError if the column `spoken` cannot contain the normalized forms of the texts in
    the column `written`. LJSpeech's metadata.csv has two such columns.

    The function rejects the columns in four cases:

    - Most values of the column `spoken` are numbers.
    - All values of the column `written` are whole numbers, and lines with the same number have
      different texts in the column `spoken`, as with the number of a speaker.
    - Only one of the two columns has few distinct values, like a column of speaker names.
    - Too many words of the text are missing from the normalized text, as in a translation.
    """
    pairs = [(row.fields[written], row.fields[spoken]) for row in rows if len(row.fields) > spoken]
    texts, normalized = zip(*pairs, strict=True)
    if sum(IS_NUMBER.fullmatch(x) is not None for x in normalized) > len(normalized) / 2:
        raise UserError(
            f"{path}: column {spoken + 1} contains numbers such as {normalized[0][:60]!r} instead of "
            "texts. Select the column that contains the spoken texts with --text-column"
        )
    has_sentences = median(len(x.split()) for x in normalized) >= MIN_NORMALIZED_WORDS
    is_ambiguous = 1 < len({*texts}) < len({*pairs})  # a number has different texts
    if has_sentences and is_ambiguous and all(x.isdecimal() for x in texts):
        raise UserError(
            f"{path}: column {written + 1} contains whole numbers, such as {texts[0][:60]!r}. If these "
            f"numbers are speakers, add --text-column {spoken + 1} --speaker-column "
            f"{written + 1}. Otherwise, add only --text-column {spoken + 1}"
        )
    if len({*texts}) == 1 and len(texts[0].split()) < 2:
        return  # all values of the column are empty or the same word, so it contains no texts
    changed = [pair for pair in pairs if share_of_kept_words([pair]) < 1]
    are_changed = len(changed) > MAX_CHANGED_LINES * len(pairs)
    are_other_texts = are_changed and share_of_kept_words(pairs) < MIN_KEPT_WORDS
    if repeats(texts) == repeats(normalized) and not are_other_texts:
        return
    if no_text := sum(not x or MISSING_TEXT.fullmatch(x) is not None for x in normalized):
        raise UserError(
            f"{path}: {no_text:,} of {len(pairs):,} lines have no text in column {spoken + 1}. To read "
            f"the texts from column {written + 1}, add --text-column {written + 1}"
        )
    example = (changed or pairs)[0]
    raise UserError(
        f"{path}: column {spoken + 1} does not look like the normalized form of column "
        f"{written + 1}: {example[0][:60]!r} and {example[1][:60]!r} (expected the same words, except "
        "numbers, symbols and abbreviations). Use --text-column to select the column that contains "
        "the spoken texts, and --speaker-column to select the speakers"
    )


def repeats(values: Sequence[str]) -> bool:
    """Return whether a column has few distinct values, like a column of speaker names."""
    return len(values) >= MIN_LINES and len({*values}) <= MAX_REPEATING_SHARE * len(values)


def share_of_kept_words(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the fraction of the ordinary words in the texts that also occur in the normalized
    texts, over all lines.

    The fraction is at least 0.99 in random samples of ten lines of LJSpeech. Translations into a
    related language, such as Danish and Norwegian, keep less than 0.8 of the words. If the texts
    contain no ordinary words, the fraction is 1.
    """
    counts = [_count_kept_words(*pair) for pair in pairs]
    num_words = sum(total for _, total in counts)
    return sum(kept for kept, _ in counts) / num_words if num_words else 1.0


def _count_kept_words(written: str, spoken: str) -> tuple[int, int]:
    """Return the number of ordinary words in the written text that the spoken text also contains,
    and the expected value of this number.

    A normalization changes numbers, symbols, abbreviations and words in capitals, but keeps
    ordinary words. Therefore, the expected value is the number of ordinary words in the written
    text. If the written text contains only ordinary words, the spoken text should contain no
    additional words. In this case, the expected value is at least the number of spoken words.
    """
    spoken_words = Counter(WORD.findall(_comparable(spoken).casefold()))
    num_spoken = spoken_words.total()
    written = _comparable(written.lower() if written.isupper() else written)
    tokens = [token for token in TOKEN.findall(written) if token.strip(PUNCTUATION)]
    num_ordinary = 0
    num_kept = 0
    for index, token in enumerate(tokens):
        word = token.strip(PUNCTUATION)
        is_abbreviation = token.rstrip(CLOSING).endswith(".") and index < len(tokens) - 1
        if word.isalpha() and not word.isupper() and not is_abbreviation:
            num_ordinary += 1
            if spoken_words[word.casefold()]:
                spoken_words[word.casefold()] -= 1
                num_kept += 1
    if tokens and num_ordinary == len(tokens):
        return num_kept, max(num_ordinary, num_spoken)
    return num_kept, num_ordinary


def _comparable(text: str) -> str:
    """Return a text without accents and vowel marks, and with spaces around each character of
    scripts without spaces between words."""
    letters = (x for x in unicodedata.normalize("NFKD", text) if unicodedata.category(x) != "Mn")
    return UNSPACED.sub(r" \g<0> ", "".join(letters))


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
        has_texts = any(len(_comparable(x).split()) > 1 for x in second) or not any(second)
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
