"""Split a long text into chunks where a reader would take a breath.

    for span in split_sequence(ids, 188): ids[span.start : span.end]

The text is split after cleaning, because the model's limit is a number of symbols. `Ending` lists
the positions where a chunk may end, from good (after a sentence) to bad (inside a word). A chunk
only exceeds the limit if the chunk is a single word. Words with more than MAX_WORD_SYMBOLS symbols,
such as lists without spaces, are cut into pieces.

Of all possible splits, the program chooses the split in which the fewest chunks end at positions of
the worst kind. If several splits are tied, the program chooses the tied split in which the fewest
chunks end at positions of the next-worst kind, and so on. If splits are tied for all kinds of
positions, the program chooses the split whose chunks have the most similar lengths.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tacotron2_voice.text.cleaners import ABBREVIATIONS
from tacotron2_voice.text.sequences import one_character_each
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable

MAX_WORD_SYMBOLS = 200  # words with more symbols than this number are cut into pieces
# Maximum number of symbols per piece of a word that is cut, unless the limit of a chunk is larger.
MIN_CUT_SYMBOLS = 20


class Ending(IntEnum):
    """The kinds of endings of a chunk, from best to worst."""

    SENTENCE = 0  # . ! ? and similar punctuation in other scripts
    CLAUSE = 1  # ; : , a dash or an ellipsis
    WORD = 2  # a space between two words
    INSIDE = 3  # a space inside a number or after an abbreviation, or a cut inside a word


@dataclass(frozen=True)
class ChunkSpan:
    """The position of a chunk in a sequence, and how the chunk ends."""

    start: int  # index of the chunk's first symbol
    end: int  # index of the chunk's last symbol, plus 1
    ending: Ending


# Matches a letter or a phone. The searched string contains one character for each symbol of the
# text.
_SPOKEN = re.compile(r"[^\W_]|@")
# A unit is the smallest part of a text that can form a chunk. It ends before a space, after a dash
# between words, or after full-width punctuation and closing quotation marks. Chinese and Japanese
# have no spaces after punctuation.
_FULL_WIDTH = "。！？，、；："
_UNITS = re.compile(rf"\S+?(?:--+(?=[^-\s])|(?<=[{_FULL_WIDTH}])[{_FULL_WIDTH}」』”’）]*|(?=\s|$))")
_AS_ASCII = str.maketrans(
    dict(zip("。．！？，、；：।॥؟،؛۔…", [*"..!?,,;:..?,;.", ".."], strict=True))
)
# Abbreviations that the cleaners keep. A text is rarely split after an abbreviation, because the
# sentence may continue.
_DOTTED = ABBREVIATIONS.keys() | set(
    "no nos vs prof messrs gov sen rep pres mt ave vol fig pp ed "
    "jan feb aug sept oct nov dec".split()
)
# Words that occur in numbers and amounts. A chunk should not end between these words, because
# cleaning converts "$3.50" to "three dollars, fifty cents".
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
) -> list[ChunkSpan]:
    """Split the symbol ids of a text into chunks of at most `limit` symbols.

    The text must contain a letter or a phone. Each returned chunk contains at least one letter or
    phone. The chunks contain all symbols except the spaces between chunks.
    """
    if len(sequence) <= limit:
        return [ChunkSpan(0, len(sequence), Ending.SENTENCE)]
    line = one_character_each(sequence, table)
    units = [piece for unit in _smallest_units(line) for piece in _cut(unit, line, limit)]
    return _join_evenly(units, limit)


def _smallest_units(line: str) -> list[ChunkSpan]:
    """Split a text wherever a chunk may end.

    A piece without letters, digits or phones, such as a dash, stays with the previous word. At the
    start of the text, such a piece stays with the next word.
    """
    spans: list[tuple[int, int]] = []
    for match in _UNITS.finditer(line):
        start, end = match.span()
        if spans and not (_SPOKEN.search(match[0]) and _SPOKEN.search(line, *spans[-1])):
            start = spans.pop()[0]
        spans.append((start, end))
    units = [line[start:end] for start, end in spans]
    endings = [_ending(*pair) for pair in zip(units, [*units[1:], ""], strict=True)]
    return [ChunkSpan(*span, ending) for span, ending in zip(spans, endings, strict=True)]


def _cut(unit: ChunkSpan, line: str, limit: float) -> list[ChunkSpan]:
    """Cut a word into pieces if the word has more symbols than both `limit` and MAX_WORD_SYMBOLS. If possible, cut the word after punctuation.

    Each piece contains a letter, a digit or a phone.
    """
    if unit.end - unit.start <= max(limit, MAX_WORD_SYMBOLS):
        return [unit]
    size = max(int(limit), MIN_CUT_SYMBOLS)
    pieces: list[ChunkSpan] = []
    start = unit.start
    while start < unit.end:
        end = min(start + size, unit.end)
        if end < unit.end:
            signs = [x for x in range(start + size // 2, end) if not _SPOKEN.match(line[x])]
            end = signs[-1] + 1 if signs else end
        if pieces and not _SPOKEN.search(line, start, end):
            start = pieces.pop().start
        pieces.append(ChunkSpan(start, end, Ending.INSIDE))
        start = end
    if len(pieces) > 1 and not _SPOKEN.search(line, pieces[0].start, pieces[0].end):
        pieces[:2] = [ChunkSpan(pieces[0].start, pieces[1].end, Ending.INSIDE)]
    return [*pieces[:-1], ChunkSpan(pieces[-1].start, unit.end, unit.ending)]


def _ending(unit: str, following: str) -> Ending:
    """Return how a chunk ends if its last word is `unit` and the next chunk begins with
    `following`."""
    unit, following = unit.translate(_AS_ASCII), following.translate(_AS_ASCII)
    last = unit.rstrip("')\"」』”’）»").split(" ")[-1]
    if last.endswith(("!", "?")):
        return Ending.SENTENCE
    if last.endswith(".") and not last.endswith(".."):
        bare = last[:-1].lstrip("('-")
        # Initials such as "j." and "u.s."
        initials = re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", bare)
        # Letters without case, such as Chinese characters, are words instead of initials.
        if initials and bare.upper() == bare:
            initials = None
        return Ending.INSIDE if initials or bare in _DOTTED else Ending.SENTENCE
    words = f"{last.rstrip(',')}-{re.split(r'[,;:.!?]', following)[0]}".split("-")
    goes_on = not last.endswith(",") or _NUMBER_GOES_ON.fullmatch(last)
    if goes_on and all(map(_NUMBER_WORD.fullmatch, words)):
        return Ending.INSIDE
    if last.endswith(("..", ";", ":", ",", "--")) or last == "-":
        return Ending.CLAUSE
    return Ending.WORD


def _join_evenly(units: Sequence[ChunkSpan], limit: float) -> list[ChunkSpan]:
    """Join neighboring units into chunks with the best endings and lengths, by dynamic
    programming."""
    # best[n] describes the best split of the first n units as a tuple: the list of costs, the last
    # chunk, and the number of units before the last chunk.
    #
    # The last item in the list of costs is the sum of the squared lengths of all chunks. Every
    # other item is the number of chunks with one kind of ending. The item for the worst kind of
    # ending comes first.
    best: list[tuple[list[int], ChunkSpan | None, int]] = [([0] * (len(Ending) + 1), None, 0)]
    for end in range(1, len(units) + 1):
        ways = []
        for start in reversed(range(end)):
            part = ChunkSpan(units[start].start, units[end - 1].end, units[end - 1].ending)
            length = part.end - part.start
            if length > limit and start < end - 1:
                break
            cost, before = best[start][0].copy(), best[start][1]
            cost[-1] += length**2
            if before is not None:
                cost[Ending.INSIDE - before.ending] += 1
            ways.append((cost, part, start))
        best.append(min(reversed(ways), key=lambda way: way[0]))
    parts, end = list[ChunkSpan](), len(units)
    while end:
        _, last, end = best[end]
        assert last is not None  # only the split of an empty text, best[0], contains None here
        parts.append(last)
    return parts[::-1]
