"""Choose the columns with the paths, the texts and the speakers of a table.

columns = choose_columns(table, "", content, is_audio)
paths = [row.fields[columns.path] for row in content.rows]
"""

import re
import unicodedata
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from corpus.normalized_texts import (
    MIN_LINES,
    WORD,
    check_is_normalized,
    repeats,
    without_accents,
)
from corpus.table_rows import (
    PATH_TITLES,
    QUOTING_DELIMITERS,
    SPEAKER_TITLES,
    TEXT_TITLES,
    Content,
    Row,
    Table,
    normal_title,
)
from tacotron2_voice.utils.errors import UserError

MIN_SHARE = 0.9  # minimum fraction of the lines that must contain the delimiter
# Matches a field that may be a column title: up to three words without punctuation. An empty field
# also matches.
TITLE = re.compile(r"(?=.*[^\W\d])\w+([ :-]\w+){0,2}|")
# Matches a field without digits. A field with digits, such as clip_0012, may be the name of a
# recording.
WITHOUT_NUMBER = re.compile(r"\D*")
# Number of lines after the first line that are compared with the audio files, to detect a header
# and to detect the columns.
HEADER_LINES, SAMPLE_LINES = 5, 200
# A column contains sentences if the median number of words per value is at least
# MIN_SENTENCE_WORDS, and if more than the fraction MIN_DIFFERENT of the values are different.
MIN_SENTENCE_WORDS, MIN_DIFFERENT = 3, 0.5


class Columns(NamedTuple):
    """The indices of the columns for paths, texts and speaker names."""

    path: int
    text: int
    speaker: int | None
    needed: int  # minimum number of fields that each row must have


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
    """Return the words of a text. A path or an address is one word."""
    return [x for x in without_accents(text).split() if WORD.search(x)]


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
    titles, rows = content.titles, content.rows
    speaker = _selected_column(table, content, "--speaker-column", speaker_column)
    path = _selected_column(table, content, "--path-column", table.path_column, PATH_TITLES)
    text = _selected_column(table, content, "--text-column", table.text_column, TEXT_TITLES)
    files = columns_of_files(rows, is_audio)
    if not table.path_column:
        path = _find_path(content, path, (text, speaker), files, is_audio)
    sentences = columns_of_sentences(rows, (path, speaker)) if path in files else []
    written = None  # the column that contains the texts before normalization
    if text is None and titles is None:
        written, text = _find_usual_texts(content, path, speaker)
    if text is None and _is_only_text(content, sentences, (path, speaker)):
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
    if written is not None:
        check_is_normalized(table.path, rows, written, text)
    needed = 1 + max(path, text, 0 if speaker is None else speaker)
    if speaker is None:
        speaker = next((i for i, x in enumerate(titles or []) if x in SPEAKER_TITLES), None)
    return Columns(path, text, speaker, needed)


def _selected_column(
    table: Table, content: Content, option: str, selected: str, usual: Sequence[str] = ()
) -> int | None:
    """Return the column that the user selected, given as a number or a title. If the user selected
    no column, return the column with one of the usual titles, or None."""
    titles, num_fields = content.titles, content.num_fields
    if not selected:
        return next((titles.index(x) for x in usual if titles and x in titles), None)
    if selected.isdecimal() and 1 <= int(selected) <= num_fields:
        return int(selected) - 1
    if titles and normal_title(selected) in titles:
        return titles.index(normal_title(selected))
    known = ", ".join(titles or content.rows[0].fields)[:200]
    raise UserError(
        f"{table.path}: {option} {selected}: no such column (expected a number from 1 to "
        f"{num_fields}, or one of the titles {known!r})"
    )


def _find_path(
    content: Content,
    path: int | None,
    others: Sequence[int | None],
    files: Sequence[int],
    is_audio: Callable[[str], bool] | None,
) -> int | None:
    """Return the column with the paths, or None.

    Args:
        path: the column with a common title for paths. If this column lists no audio files, a
            different column may list them.
        others: the columns with the texts and the speakers.
        files: the columns that list audio files.
    """
    names = [x.fields[path] for x in content.rows if path is not None and path < len(x.fields)]
    if files and not (is_audio is not None and any(map(is_audio, names))):
        path = next((i for i in files if i not in others), path)
    if path is None and (others[0] is not None or _has_common_title(content)):
        path = content.known_path
    if path is None and content.titles is None:
        return 0
    return path


def _has_common_title(content: Content) -> bool:
    return bool({*(content.titles or ())} & {*PATH_TITLES, *TEXT_TITLES, *SPEAKER_TITLES})


def _find_usual_texts(
    content: Content, path: int | None, speaker: int | None
) -> tuple[int | None, int | None]:
    """Return (column of the written texts, column of the normalized texts) of a table without a
    header. The first value is None if the table has only one column of texts. Both values are None
    if the texts were not found.
    """
    rows, num_fields = content.rows, content.num_fields
    others = [index for index in range(num_fields) if index not in (path, speaker)]
    # If each line ends with a delimiter, the last column is empty.
    is_empty = all(len(row.fields) < num_fields or not row.fields[-1] for row in rows)
    if is_empty and columns_of_sentences(rows, (path, speaker)) == others[:-1]:
        others.pop()
    if len(others) == 1:
        return None, others[0]
    if len(others) == 2 and content.delimiter not in QUOTING_DELIMITERS:
        return others[0], others[1]
    return None, None


def _is_only_text(content: Content, sentences: Sequence[int], others: Sequence[int | None]) -> bool:
    """Return whether exactly one column contains sentences, and no unused column may contain
    speakers.

    In a table with titles, an unused column may contain speakers, because a note lists the titles
    of the unused columns. In a table without titles, the note lists only numbers, so the user may
    overlook the speakers.

    Args:
        others: the columns with the paths and the speakers.
    """
    if len(sentences) != 1 or (content.known_path is not None and not _has_common_title(content)):
        return False
    if content.titles or others[1] is not None:
        return True
    unused = {*range(content.num_fields)} - {*others, *sentences}
    columns = [[x.fields[i] for x in content.rows if i < len(x.fields)] for i in unused]
    return not any(map(_may_be_speakers, columns))


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
