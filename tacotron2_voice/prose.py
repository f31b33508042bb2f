"""Split a text file into paragraphs.

prose = paragraphs_of("book.txt", "It was\\nthir-\\nteen.\\n\\nThe end.")
prose.paragraphs  # [(1, "It was thirteen."), (5, "The end.")]
prose.notes       # ["book.txt: joined 1 word at the ends of lines: 'thirteen'"]

Blank lines separate paragraphs. Line breaks inside a paragraph become spaces. Words that are
hyphenated at the end of a line are joined. Page numbers, and lines such as "=====" above or below
text, are removed.
"""

import re
import unicodedata
from itertools import pairwise
from typing import NamedTuple

from tacotron2_voice.utils.errors import count_of

# Matches a line that contains only a page number: "12", "- 12 -", "~ 12 ~", "Page 12" or "12 of 30".
_PAGE_NUMBER = re.compile(
    r"[-–—~*•·| ]*(?:(?:page|p\.|pg\.?)\s*)?(?P<number>\d{1,4})(?:\s+of\s+\d{1,4})?[-–—~*•·| ]*",
    re.IGNORECASE,
)
# Matches a line that only decorates the text, such as the line "=====" below a heading.
_RULER = re.compile(r"([-=*~_#+.–—])(?:\s*\1){2,}")
_SENTENCE_END = re.compile(r"[.!?…:。！？।։؟]['\")\]»”’」』]*$")
_BROKEN_WORD = re.compile(r"[^\W\d_][-‐]")
# Scripts without spaces between words.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "FULLWIDTH", "IDEOGRAPHIC")
MAX_SHOWN = 5  # maximum number of words or lines to list in a note


class Prose(NamedTuple):
    # Line number of each paragraph's first line, and the paragraph's text.
    paragraphs: list[tuple[int, str]]
    notes: list[str]  # notes about joined words, dropped lines and skipped blocks


class _Line(NamedTuple):
    number: int
    text: str
    starts_page: bool


def paragraphs_of(source: str, text: str) -> Prose:
    """Return the paragraphs of a text, and notes about joined words and dropped page numbers.

    `source` is the name of the file, for the notes.
    """
    written = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # Add a blank line at each end, so that each line of the text has two neighbors.
    lines = [
        _Line(number, line.replace("\f", " ").strip(), "\f" in line)
        for number, line in enumerate(["", *written, ""])
    ]
    page_numbers = _page_numbers(lines)
    groups: list[list[_Line]] = []
    has_gap = True
    has_page_break = False
    rulers = _rulers(lines)
    for line in lines:
        has_page_break = has_page_break or line.starts_page
        if line.number in page_numbers:
            has_page_break = True
            continue
        if not line.text or line.number in rulers:
            has_gap = True
            continue
        # Ignore the gap at a page break if a sentence continues on the next page.
        continues = has_page_break and groups and _continues(groups[-1][-1].text, line.text)
        if has_gap and not continues:
            groups.append([])
        groups[-1].append(line)
        has_gap = False
        has_page_break = False
    joined: list[str] = []
    paragraphs = [
        (group[0].number, join_lines([line.text for line in group], joined)) for group in groups
    ]
    notes = joined_note(source, joined)
    if page_numbers:
        plural = "s" * (len(page_numbers) > 1)
        numbers = ", ".join(map(str, sorted(page_numbers)[:MAX_SHOWN]))
        more = ", ..." if len(page_numbers) > MAX_SHOWN else ""
        notes.append(
            f"{source}: dropped {len(page_numbers):,} page number{plural}, line{plural} {numbers}{more}"
        )
    spoken = [line for group in groups for line in group[1:] if _page_number(line) is not None]
    is_list = all(_page_number(line) is not None for group in groups for line in group)
    if spoken and not is_list:
        others = f" ({len(spoken) - 1:,} more such lines)" if len(spoken) > 1 else ""
        text = spoken[0].text
        shown = f"the number {text}" if text.isdecimal() else repr(text)
        notes.append(
            f"{source}:{spoken[0].number}: the line contains only {shown}, which is spoken{others}"
        )
    return Prose(paragraphs, notes)


def join_lines(lines: list[str], joined: list[str]) -> str:
    """Join the lines of a paragraph. Hyphenated words are joined, and are appended to the list
    `joined`."""
    pieces = lines[:1]
    for line in lines[1:]:
        before = pieces[-1]
        is_broken = _BROKEN_WORD.fullmatch(before[-2:]) and line[:1].isalpha()
        if before.endswith("\xad"):
            pieces[-1] = before[:-1]
        # Keep the hyphen of "Anglo-Saxon", because the second part begins with a capital letter.
        elif is_broken and line[0].islower():
            pieces[-1] = before[:-1]
            joined.append(_joined_word(before[:-1], line))
        elif not is_broken and not (_has_no_spaces(before[-1]) and _has_no_spaces(line[0])):
            pieces.append(" ")
        pieces.append(line)
    return "".join(pieces)


def joined_note(source: str, joined: list[str]) -> list[str]:
    """Return a list with a note about the words that `join_lines` joined. Without such words, the
    list is empty."""
    if not joined:
        return []
    count = count_of(len(joined), "word")
    words = ", ".join(map(repr, joined[:MAX_SHOWN]))
    more = ", ..." if len(joined) > MAX_SHOWN else ""
    return [f"{source}: joined {count} at the ends of lines: {words}{more}"]


def _rulers(lines: list[_Line]) -> set[int]:
    """Return the line numbers of lines such as "=====" directly above or below text."""
    return {
        line.number
        for before, line, after in zip(lines, lines[1:], lines[2:], strict=False)
        if _RULER.fullmatch(line.text) and (before.text or after.text)
    }


def _page_numbers(lines: list[_Line]) -> set[int]:
    """Return the line numbers of the lines that contain only a page number.

    A number is a page number if it stands between blank lines, or in the first or last line of a
    page. Numbers on lines inside paragraphs are page numbers if all lines of the file that contain
    only a number fulfill two conditions: There is text between these lines, and each number is one
    larger than the previous number. If the file contains nothing but numbers, these numbers are
    kept as text.
    """
    found = set()
    values_of_lines = {line.number: _page_number(line) for line in lines}
    numbers = [line for line in lines if values_of_lines[line.number] is not None]
    values = [value for value in values_of_lines.values() if value is not None]
    has_text_between = all(b.number - a.number > 1 for a, b in pairwise(numbers))
    if len(values) > 1 and has_text_between and values == [*range(values[0], values[-1] + 1)]:
        found = {line.number for line in numbers}
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        is_alone = not before.text and not after.text
        at_page_break = line.starts_page or after.starts_page
        if (is_alone or at_page_break) and values_of_lines[line.number] is not None:
            found.add(line.number)
    has_text = any(line.text and line.number not in found for line in lines)
    return found if has_text else set()


def _page_number(line: _Line) -> int | None:
    """Return the number in a line that looks like a page number. Return None for other lines."""
    found = _PAGE_NUMBER.fullmatch(line.text)
    return int(found["number"]) if found else None


def _continues(before: str, line: str) -> bool:
    """Return whether a line after a page break continues the sentence before the break."""
    return not _SENTENCE_END.search(before) and line[0].islower()


def _joined_word(before: str, line: str) -> str:
    """Join the last word of `before` and the first word of `line`, without opening brackets or
    quotation marks."""
    rest = re.findall(r"^\w*", line)[0]
    return (before.split()[-1] + rest).lstrip("([{\"'“„‘«")


def _has_no_spaces(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_WITHOUT_SPACES)
