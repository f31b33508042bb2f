"""Test where a long text is split, and where it must not be split."""

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacotron2_voice.text import can_be_spoken, sequence_to_text, symbols, text_to_sequence
from tacotron2_voice.text.splitting import MAX_WORD_SYMBOLS, Ending, split_sequence

COMPATIBLE, CORRECTED = ["english_cleaners"], ["english_cleaners_corrected"]


def split(text: str, limit: float, cleaner_names=COMPATIBLE) -> list[str]:
    sequence = text_to_sequence(text, cleaner_names)
    return [
        sequence_to_text(sequence[part.start : part.end])
        for part in split_sequence(sequence, limit)
    ]


def endings(text: str, limit: int) -> list[Ending]:
    return [part.ending for part in split_sequence(text_to_sequence(text, COMPATIBLE), limit)]


# Words, punctuation and phones, with and without spaces, as cleaning can return them.
PIECES = ["a", "mister", "twenty-one", "hundred,", "u.s.", "no.", "it's", "--", "-", "...", "@AH0"]
PIECES += [*"!'(),.:;? ", " ", " ", " ", "_", "@HH"]
SEQUENCES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map(
    lambda pieces: [
        symbols.index(symbol)
        for piece in pieces
        for symbol in ([piece] if piece[0] == "@" else piece)
    ]
)


@settings(max_examples=100)
@given(sequence=SEQUENCES.filter(can_be_spoken), limit=st.integers(1, 80))
@example(sequence=text_to_sequence(" ... 'a b' ", COMPATIBLE), limit=1)
def test_chunks_of_a_text_never_exceed_the_limit_of_symbols(sequence, limit):
    assert len(split_sequence(sequence, math.inf)) == 1
    parts = split_sequence(sequence, limit)
    if len(sequence) <= limit:
        assert [(part.start, part.end) for part in parts] == [(0, len(sequence))]
        return
    space = symbols.index(" ")
    places = [place for part in parts for place in range(part.start, part.end)]
    assert places == sorted(set(places))
    left_out = set(range(len(sequence))) - set(places)
    assert all(sequence[place] == space for place in left_out)
    for part in parts:
        words = sequence[part.start : part.end]
        assert can_be_spoken(words)
        assert words[0] != space
        assert words[-1] != space
        if len(words) > limit:  # a single word with silent characters cannot be split
            line = [" "] + ["a" if can_be_spoken([i]) else symbols[i] for i in words]
            spoken = [word for word in "".join(line).replace("--", " ").split() if "a" in word]
            assert len(spoken) == 1
    for part, following in itertools.pairwise(parts):
        between = sequence[part.end - 1 : following.start + 1]
        assert space in between or symbols[between[0]] == "-"


def test_text_is_split_after_sentences_into_chunks_of_similar_length():
    text = "It rained. We went home, and slept. Nobody came. The end was near."
    assert split(text, 100) == [text.lower()]
    assert split(text, 40) == [
        "it rained. we went home, and slept.",
        "nobody came. the end was near.",
    ]
    assert split("One dog. " * 6, 30) == ["one dog. one dog. one dog."] * 2
    # The first chunk could contain three of the four sentences. The text is split after two
    # sentences instead, so that both chunks have the same length.
    assert split("One dog. " * 4, 30) == ["one dog. one dog."] * 2


@pytest.mark.parametrize("sign", [",", ";", ":", " —", " -", "..."])
def test_long_sentence_is_split_after_clauses(sign):
    text = f"The ship came home{sign} late in the evening."
    shown = sign.replace("—", "--")
    assert split(text, 30) == [f"the ship came home{shown}", "late in the evening."]
    assert endings(text, 30) == [Ending.CLAUSE, Ending.SENTENCE]


@pytest.mark.parametrize("cleaner_names", [COMPATIBLE, CORRECTED, ["basic_cleaners"]])
@pytest.mark.parametrize(
    "text", ["Mr. Smith saw him", "The U.S. Army left", "J. F. Kennedy spoke", "Gen. Grant, etc"]
)
def test_text_is_not_split_after_an_abbreviation(text, cleaner_names):
    sequence = text_to_sequence(f"{text}. He came. He went.", cleaner_names)
    sentences = split_sequence(sequence, len(sequence) - 1)
    ends = [sequence[part.end - 1] for part in sentences]
    assert [part.ending for part in sentences] == [Ending.SENTENCE] * 2
    assert {symbols[i] for i in ends} == {"."}
    first = sequence_to_text(sequence[: sentences[0].end])
    assert first.endswith(("him.", "left.", "spoke.", "etc.", "et cetera.", "he came."))


@pytest.mark.parametrize("cleaner_names", [COMPATIBLE, CORRECTED])
@pytest.mark.parametrize("number", ["3.5", "1,234", "$3.50", "21st", "1963", "2,000,000"])
def test_numbers_are_not_split_when_they_fit_into_a_chunk(number, cleaner_names):
    written = sequence_to_text(text_to_sequence(number, cleaner_names))
    for text in (f"we saw {number} of it, so there", f"{number} came home", f"we had {number}."):
        for limit in range(len(written) + 2, len(written) + 12):
            assert any(written in part for part in split(text, limit, cleaner_names))


W, C, S, INSIDE = Ending.WORD, Ending.CLAUSE, Ending.SENTENCE, Ending.INSIDE


@pytest.mark.parametrize(
    ("text", "limit", "parts", "kinds"),
    [
        ("The ship—came home", 12, ["the ship--", "came home"], [C, W]),
        ("A well-known man", 6, ["a", "well-known", "man"], [W, W, W]),
        ("we saw the old ship come home", 20, ["we saw the old", "ship come home"], [W, W]),
        ("an incomprehensible act", 8, ["an", "incomprehensible", "act"], [W, W, W]),
        ("to {HH AW1 S T} street", 4, ["to", "{HH AW1 S T}", "street"], [W, W, W]),
        ("We saw Exhibit No. 5 there", 18, ["we saw exhibit", "no. five there"], [W, W]),
        ("on Jan. 5 she came home", 15, ["on jan. five", "she came home"], [W, W]),
        ("Of fifty-three, two came", 16, ["of fifty-three,", "two came"], [C, W]),
        (
            "1,234,567",
            30,
            ["one million, two hundred", "thirty-four thousand,", "five hundred sixty-seven"],
            [INSIDE, INSIDE, W],
        ),
        (
            "He left! 'Did he?' (He did.) And so on.",
            12,
            ["he left!", "'did he?'", "(he did.)", "and so on."],
            [S, S, S, S],
        ),
    ],
)
def test_chunks_of_a_text_equal_chunks_split_by_hand(text, limit, parts, kinds):
    assert split(text, limit) == parts
    assert endings(text, limit) == kinds


@pytest.mark.parametrize("text", ["one," * 100, "x" * 401, "-" * 300 + "a" * 300, "a" + "-" * 300])
def test_text_without_spaces_is_cut_when_it_exceeds_the_limit_of_symbols(text):
    """Lists and some languages contain no spaces. If a long text without spaces were not cut, a
    chunk could need gigabytes of memory."""
    sequence = text_to_sequence(text, COMPATIBLE)
    parts = split_sequence(sequence, 30)
    assert [place for part in parts for place in range(part.start, part.end)] == [
        *range(len(sequence))
    ]
    for part in parts:
        words = sequence[part.start : part.end]
        assert can_be_spoken(words)
        assert len(words) <= 30 or "-" * 290 in sequence_to_text(words)
    assert split("one," * 100, 30)[0] == "one," * 7
    assert len(split("x" * MAX_WORD_SYMBOLS, 30)) == 1
