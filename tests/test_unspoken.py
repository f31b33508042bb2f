"""Test the search for characters without a symbol (tacotron2_voice/text/unspoken.py)."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacotron2_voice.text import ENGLISH, SymbolTable, sequences, symbols, text_to_sequence
from tacotron2_voice.text.symbols import table_of
from tacotron2_voice.text.unspoken import dropped_symbols, left_out


@pytest.mark.parametrize(
    ("text", "cleaners", "dropped"),
    [
        ("5% & more", "english_cleaners", {"%": [2], "&": [4]}),
        ("5% & more * #", "english_cleaners_corrected", {"*": [11], "#": [13]}),
        ("$5, £10 and 1,000 of 3.5", "english_cleaners", {}),
        ("Mr. Müller's café — “so [he] said”…", "english_cleaners", {}),
        ('"Quite," (said) she; no: yes!', "english_cleaners", {}),
        ("a 😀 b 😀", "english_cleaners", {"😀": [3, 7]}),
        ("Привет", "english_cleaners", {}),
        ("Да но", "basic_cleaners", {"Д": [1], "а": [2], "н": [4], "о": [5]}),
        ("Chapter 12", "basic_cleaners", {"1": [9], "2": [10]}),
        ("{HH AH0} and {HX AY9 HH}", "english_cleaners", {"HX": [15], "AY9": [18]}),
        ("no\u00a0break, soft\u00adhyphen", "basic_cleaners", {}),
        ("five is # six", "english_cleaners_corrected", {"#": [9]}),
        ("He said 漢 and ☃, ☃", "english_cleaners_corrected", {"漢": [9], "☃": [15, 18]}),
        ("½ of x², € and 5 €, ٣ or Ⅷ; and/or", "english_cleaners_corrected", {}),
    ],
)
def test_characters_without_a_symbol_are_found_with_their_positions(text, cleaners, dropped):
    found = dropped_symbols(text, [cleaners])
    assert (found, list(found)) == (dropped, list(dropped))


@settings(max_examples=300)
@given(st.characters(exclude_categories=["Cs"]))
def test_each_character_is_spoken_or_reported(character):
    """The test covers letters, digits and symbols (such as currency signs) of all scripts. All
    other characters are silent."""
    text, cleaners = f"ab {character} cd", ["english_cleaners_corrected"]
    found = text_to_sequence(text, cleaners)
    silent = [symbols[i] for i in found if symbols[i] != " "] == [*"abcd"]
    if character.isalnum() or unicodedata.category(character)[0] == "S":
        assert dropped_symbols(text, cleaners) == ({character: [4]} if silent else {})


def test_warning_lists_the_positions_of_characters_without_a_symbol():
    text = "A ☃ and ☃, *so*."
    [warning] = left_out(text, ["english_cleaners_corrected"])
    assert warning.endswith("symbols for them: '☃' at column 3, 9, '*' at column 12, 15")
    own = ["basic_cleaners"], SymbolTable(("_", "a", " "))
    assert left_out("A é", *own)[0].endswith("symbols for them: 'é' at column 3")
    assert left_out("A e\u0301" + "x" * 7, *own)[0].endswith(
        "'é' at column 3, 'x' at column 5, 6, 7, 8, 9, ..."
    )
    assert left_out("a a", *own) == []
    assert left_out("a [pause 0.5] é", *own)[0].endswith("symbols for them: 'é' at column 15")


@pytest.fixture
def cleanings(monkeypatch):
    """Record the pieces of text that are cleaned. Cleaning takes most of the time, so the tests limit the
    number of pieces."""
    cleaned, clean_pieces = [], sequences.clean_pieces
    count = lambda pieces, *facts: cleaned.append(pieces) or clean_pieces(pieces, *facts)  # noqa: E731
    monkeypatch.setattr(sequences, "clean_pieces", count)
    return cleaned


@pytest.mark.parametrize(
    ("cleaners", "table", "most"),
    [
        ("english_cleaners_corrected", ENGLISH, 300),
        # Each cleaned piece is a single character.
        ("basic_cleaners", SymbolTable(("_", "a", " ")), 12_000),
    ],
)
def test_number_of_cleaned_pieces_is_limited_when_many_characters_have_no_symbol(
    cleaners, table, most, cleanings
):
    """A Chinese text contains thousands of characters for which an English model has no symbol.
    Cleaning each character separately would take too long."""
    chinese = "".join(map(chr, range(0x4E00, 0x5000)))
    [warning] = left_out(f"a {chinese}", [cleaners], table)
    assert warning.endswith("'\u4e13' at column 22, and others")
    assert len(cleanings) < most


def test_characters_are_reported_when_espeak_ignores_them():
    """Phones in the text, and letters that only change a neighboring phone (such as the hard sign),
    are not reported."""
    facts = ["phones"], table_of("абвꜰəɪɛnʌbjkt❀ ")
    text = "объект € и ❀ /❀n/"
    dropped = dropped_symbols(text, *facts, "ru")
    assert dropped["€"] == [8]
    assert dropped["❀"] == [12]
    assert "ъ" not in dropped
    [warning] = left_out("Пять €", *facts, "ru")
    assert "eSpeak NG has no phones for them" in warning
    assert "'€' at column 6" in warning


def test_no_warning_lists_a_minus_before_a_number_in_portuguese():
    assert dropped_symbols("Faz −5 graus.", ["phones"], table_of("a "), "pt").get("−") is None
