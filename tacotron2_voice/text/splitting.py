"""Split a text that is too long to speak at once, where a reader would take a breath.

The text is split after cleaning, because the model's limit is a number of symbols. `Ending` lists
where a part may end. A part exceeds the limit only if a single word does; what is longer than any
word, such as a list without spaces, is cut. Of all possible splits the best one has the fewest
endings of the worst kind, then of the next kind, and so on, and then the most even parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tacotron2_voice.text import ENGLISH, SymbolTable, one_character_each
from tacotron2_voice.text.cleaners import ABBREVIATIONS

MAX_WORD_SYMBOLS = 200  # of what is left whole though it exceeds the limit
MIN_CUT_SYMBOLS = 20  # of the pieces of what is cut


class Ending(IntEnum):
    """What a part ends with, best first."""

    SENTENCE = 0  # . ! ? and their like in other scripts
    CLAUSE = 1  # ; : , a dash, dots
    WORD = 2  # a space between two words
    INSIDE = 3  # a space inside a number, or after an abbreviation; or where a word is cut


@dataclass(frozen=True)
class TextPart:
    start: int  # index of its first symbol in the text
    end: int  # and of the one after its last
    ending: Ending


_SPOKEN = re.compile(r"[^\W_]|@")  # a letter or a phone, in a line of one character a symbol
# Up to a space, or a dash between words, or one of these, which Chinese and Japanese write without
# a space after them, and closing quotes that follow it.
_FULL_WIDTH = "。！？，、；："
_UNITS = re.compile(rf"\S+?(?:--+(?=[^-\s])|(?<=[{_FULL_WIDTH}])[{_FULL_WIDTH}」』”’）]*|(?=\s|$))")
_AS_ASCII = str.maketrans(
    dict(zip("。．！？，、；：।॥؟،؛۔…", [*"..!?,,;:..?,;.", ".."], strict=True))
)
# Cleaners that leave abbreviations alone leave all of these, and every cleaner leaves the second
# line's. A sentence that ends with one of them is only less likely to be split there.
_DOTTED = ABBREVIATIONS.keys() | set(
    "no nos vs prof messrs gov sen rep pres mt ave vol fig pp ed "
    "jan feb aug sept oct nov dec".split()
)
# And of amounts: "three dollars, fifty cents" is from "$3.50", comma and all.
_NUMBER_WORD = re.compile(
    r"(?:zero|oh|point|hundred|thousand|[a-z]*illion|ten|eleven|twelve|twelf"
    r"|dollars?|cents?|pounds?|penny|pence|euros?|percent"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)"
    r"|one|two|three|four|five|six|seven|eight|nine|first|second|third|fif|eigh|nin)(?:th)?"
)
_NUMBER_GOES_ON = re.compile(r"(?:hundred|thousand|[a-z]*illion|dollars?),")


def split_sequence(
    sequence: Sequence[int], limit: float, table: SymbolTable = ENGLISH
) -> list[TextPart]:
    """Split `sequence`, the ids of a text with something to speak, into parts of at most `limit`
    symbols, each with something to speak. Only spaces between two parts are left out."""
    if len(sequence) <= limit:
        return [TextPart(0, len(sequence), Ending.SENTENCE)]
    line = one_character_each(sequence, table)
    parts = [piece for part in _smallest_parts(line) for piece in _cut(part, line, limit)]
    return _join_evenly(parts, limit)


def _smallest_parts(line: str) -> list[TextPart]:
    """Split wherever a part may end. Signs with nothing to speak stay with the word before."""
    spans: list[tuple[int, int]] = []
    for match in _UNITS.finditer(line):
        start, end = match.span()
        if spans and not (_SPOKEN.search(match[0]) and _SPOKEN.search(line, *spans[-1])):
            start = spans.pop()[0]
        spans.append((start, end))
    units = [line[start:end] for start, end in spans]
    endings = [_ending(*pair) for pair in zip(units, [*units[1:], ""], strict=True)]
    return [TextPart(*span, ending) for span, ending in zip(spans, endings, strict=True)]


def _cut(part: TextPart, line: str, limit: float) -> list[TextPart]:
    """Cut a part that is longer than the limit and than any word, after signs where possible. Each
    piece has something to speak."""
    if part.end - part.start <= max(limit, MAX_WORD_SYMBOLS):
        return [part]
    size = max(int(limit), MIN_CUT_SYMBOLS)
    pieces, start = list[TextPart](), part.start
    while start < part.end:
        end = min(start + size, part.end)
        if end < part.end:
            signs = [x for x in range(start + size // 2, end) if not _SPOKEN.match(line[x])]
            end = signs[-1] + 1 if signs else end
        if pieces and not _SPOKEN.search(line, start, end):
            start = pieces.pop().start
        pieces.append(TextPart(start, end, Ending.INSIDE))
        start = end
    if len(pieces) > 1 and not _SPOKEN.search(line, pieces[0].start, pieces[0].end):
        pieces[:2] = [TextPart(pieces[0].start, pieces[1].end, Ending.INSIDE)]
    return [*pieces[:-1], TextPart(pieces[-1].start, part.end, part.ending)]


def _ending(unit: str, following: str) -> Ending:
    """The kind of ending of a unit that `following` comes after."""
    unit, following = unit.translate(_AS_ASCII), following.translate(_AS_ASCII)
    last = unit.rstrip("')\"」』”’）»").split(" ")[-1]
    if last.endswith(("!", "?")):
        return Ending.SENTENCE
    if last.endswith(".") and not last.endswith(".."):
        bare = last[:-1].lstrip("('-")
        initials = re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", bare)  # "j.", "u.s."
        if initials and bare.upper() == bare:  # a word of one character, in Chinese
            initials = None
        return Ending.INSIDE if initials or bare in _DOTTED else Ending.SENTENCE
    words = f"{last.rstrip(',')}-{re.split(r'[,;:.!?]', following)[0]}".split("-")
    goes_on = not last.endswith(",") or _NUMBER_GOES_ON.fullmatch(last)
    if goes_on and all(map(_NUMBER_WORD.fullmatch, words)):
        return Ending.INSIDE
    if last.endswith(("..", ";", ":", ",", "--")) or last == "-":
        return Ending.CLAUSE
    return Ending.WORD


def _join_evenly(units: Sequence[TextPart], limit: float) -> list[TextPart]:
    """Join neighbouring units into parts in the best way, by dynamic programming."""
    # Costs: the endings of each kind, worst first, and the sum of squared lengths; then the last
    # part, and how many units are before it.
    best: list[tuple[list[int], TextPart | None, int]] = [([0] * (len(Ending) + 1), None, 0)]
    for end in range(1, len(units) + 1):
        ways = []
        for start in reversed(range(end)):
            part = TextPart(units[start].start, units[end - 1].end, units[end - 1].ending)
            length = part.end - part.start
            if length > limit and start < end - 1:
                break
            cost, before = best[start][0].copy(), best[start][1]
            cost[-1] += length**2
            if before is not None:
                cost[Ending.INSIDE - before.ending] += 1
            ways.append((cost, part, start))
        best.append(min(reversed(ways), key=lambda way: way[0]))
    parts, end = list[TextPart](), len(units)
    while end:
        _, last, end = best[end]
        assert last is not None  # of all but the first, which is no part
        parts.append(last)
    return parts[::-1]
