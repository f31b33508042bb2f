"""Test how texts become symbols, including NVIDIA's ids, numbers, abbreviations and phones."""

import json

import inflect
import pytest
from helpers import DATA, GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from tacotron2_voice.text import can_be_spoken, sequence_to_text, symbols, text_to_sequence
from tacotron2_voice.text.cleaners import CLEANERS, clean_pieces
from tacotron2_voice.utils.errors import UserError

COMPATIBLE = ["english_cleaners"]
CORRECTED = ["english_cleaners_corrected"]


def clean_text(text, cleaner_names):
    return clean_pieces([text], cleaner_names)[0]


def spoken(text, cleaner_names=COMPATIBLE):
    """Return the text that the model receives."""
    return sequence_to_text(text_to_sequence(text, cleaner_names))


def test_symbols_equal_the_symbols_of_the_nvidia_recipe():
    assert symbols == json.loads((GOLDEN / "symbols.json").read_text(encoding="utf-8"))


# The recorded symbol ids in a later test contain more results of NVIDIA's code.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a  b ", " a b "),
        ("tabs\tand\nnewlines \r\n here", "tabs and newlines here"),
        ("Füße, naïve — “so”…", "fusse, naive -- so..."),
        ("5719", "five thousand, seven hundred nineteen"),
        ("1,2", "twelve"),
        # Years are spoken as pairs of digits.
        ("1066's", "ten sixty-six's"),
        ("2009", "two thousand nine"),
        ("2010", "twenty ten"),
        ("the 1950s", "the nineteen fiftys"),
        # Decimal numbers.
        (".5", ".five"),
        ("1.2.3.4", "one point two.three point four"),
        # Ordinals.
        ("0th 1st 2nd 3rd 11th", "zeroth first second third eleventh"),
        ("21stamps", "twenty-firstamps"),
        # Money.
        ("$1750", "seventeen fifty dollars"),
        ("$5 million", "five dollars million"),
        ("$1.234", "one dollar, two hundred thirty-four cents"),
        ("$", ""),
        ("£10", "psten"),
        ("€5", "eurfive"),
        # NVIDIA's code raises an exception for these texts.
        ("$,5", "five dollars"),
        ("$1.,5", "one dollar, five cents"),
        ("1" * 37, " ".join(["one"] * 37)),
        ("0" * 5000 + "7", "seven"),
        ("$" + "3" * 5000, " ".join(["three"] * 5000) + " dollars"),
        # Abbreviations.
        ("Mr. and Mrs. Smith", "mister and misess smith"),
        ("Maj. Gen. Sgt. Capt. Lt. Col.", "major general sergeant captain lieutenant colonel"),
        ("Co. Ltd. Jr. Esq. Ft.", "company limited junior esquire fort"),
        ("Mr Smith at first.", "mr smith at first."),
        ("the 1st. St", "the first. st"),
        ("best. _mr.", "best. _mr."),
        # The rule for "mister" runs first and joins the words, so the rule for "st." finds no match.
        ("Mr.St.", "misterst."),
    ],
)
def test_compatible_cleaners_return_the_same_text_as_the_nvidia_cleaners(text, expected):
    assert spoken(text) == expected


def test_years_are_spoken_as_inflect_speaks_pairs_of_digits():
    engine = inflect.engine()
    for year in range(1001, 3000):
        if year % 100 and not 2000 < year < 2010:
            pairs = engine.number_to_words(year, group=2, zero="oh").replace(",", "")
            assert spoken(str(year)) == pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Turn left on {HH AW1 S S T AH0 N} Street.", "turn left on {HH AW1 S S T AH0 N} street."),
        ("Mr. {S M IH1 TH} paid $5.", "mister {S M IH1 TH} paid five dollars."),
        ("unknown {QQ1 AH0 ZZZ hh _} symbols", "unknown {AH0} symbols"),
        ("{B}{D}", "{B D}"),
        # Unpaired braces do not enclose phones, and braces are not symbols.
        ("{{ B} D}", "{B} d"),
        ("{} {B}", ""),  # these braces contain the unknown phones "}" and "{B"
        ("{}", ""),
        # The text before the phones and the text after the phones are cleaned separately.
        ("1{B}000", "one{B}zero"),
        # Phones in braces are read only in the first line of a text.
        # If the first line contains phones in braces, all later lines are dropped.
        ("{A\nB}", "a b"),
        ("one\n{B}", "one b"),
        ("{B} one\ntwo", "{B} one"),
    ],
)
def test_text_in_braces_is_read_as_arpabet_phones(text, expected):
    assert spoken(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Pounds, dollars, euros.
        ("£10", "ten pounds"),
        ("£1 or £0.01", "one pound or one penny"),
        ("£2.5 million", "two point five million pounds"),
        ("$0.00", "zero dollars"),
        ("$1 Billion", "one billion dollars"),
        ("$1.234", "one point two three four dollars"),
        ("$1.2.3", "one point two point three dollars"),
        ("£ and $", "pound and dollar"),
        # Numbers.
        ("3.14159", "three point one four one five nine"),
        (".22 rifle", "point two two rifle"),
        ("1.2.3", "one point two point three"),
        ("1,234.5", "one thousand, two hundred thirty-four point five"),
        ("1,2 and 1,2345", "one,two and one,twenty-three forty-five"),
        ("1,963 men", "one thousand, nine hundred sixty-three men"),
        ("12,345th", "twelve thousand, three hundred forty-fifth"),
        # Words.
        ("Mr. and Mrs. Smith", "mister and missus smith"),
        ("50% or 4.5 %.", "fifty percent or four point five percent."),
        ("Smith & Wesson, AT&T", "smith and wesson, a t and t"),
        # Removed characters leave no double spaces, and no spaces at the ends of the text.
        ("  hello  ", "hello"),
        ('"he [Truly]" * lower_under and/or _', "he truly lower under and or"),
        (" {B} and {D} ", "{B} and {D}"),
        ("on {B} street ", "on {B} street"),
        ("", ""),
    ],
)
def test_corrected_cleaners_return_the_expected_words(text, expected):
    assert spoken(text, CORRECTED) == expected


TABLE = [  # a person wrote these readings, without running the code
    row.split("|") for row in (DATA / "spoken_english.csv").read_text("utf-8").splitlines()[1:]
]


@pytest.mark.parametrize(("written", "expected", "kind"), TABLE)
def test_english_cleaners_return_the_words_that_a_person_would_read(written, expected, kind):
    assert spoken(written, CORRECTED) == expected


@pytest.mark.parametrize(
    ("cleaners", "expected"),
    [
        ([], "Dr.  MÜLLER: £10 "),
        (["basic_cleaners"], "dr. müller: £10 "),
        (["transliteration_cleaners"], "dr. muller: ps10 "),
        (["basic_cleaners", *CORRECTED], "doctor muller: ten pounds"),
        (["transliteration_cleaners", *CORRECTED], "doctor muller: ps ten"),
    ],
)
def test_text_cleaners_run_in_the_given_order(cleaners, expected):
    assert clean_text("Dr.  MÜLLER: £10 ", cleaners) == expected


def test_error_lists_cleaners_when_a_cleaner_is_unknown():
    with pytest.raises(UserError, match=f"'english_cleaner' .*{', '.join(CLEANERS)}"):
        text_to_sequence("", ["english_cleaner"])


PARTS = (
    "0 1 7 12 90 1990 2026 , . : / - – ' $ £ € ¥ ¢ % ° ² ½ Ⅷ ٣ 漢 ☃ é @ # & + = < x × ~ ( ) pm a.m."
)
PARTS += " Nov. May Sun. St. Dr. No. Main kg m km/h in. ft. XIV I Louis FBI US A th s p e.g. etc."
awkward_text = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,$£€%{}stndrh \n_ABmMrs&"),
    st.lists(st.sampled_from([*PARTS.split(), " ", " ", " "])).map("".join),
)


@settings(max_examples=300)
@given(awkward_text, st.sampled_from(sorted(CLEANERS.keys() - {"phones"})))
def test_symbol_ids_are_in_range_for_any_text(text, cleaner):
    sequence = text_to_sequence(text, [cleaner])
    assert all(0 <= i < 148 for i in sequence)
    if "_" not in clean_text(text, [cleaner]):
        assert 0 not in sequence


@settings(max_examples=500)
@given(awkward_text)
def test_corrected_cleaners_return_only_letters_spaces_and_punctuation(text):
    cleaned = clean_text(text, CORRECTED)
    assert cleaned == cleaned.strip()
    assert "  " not in cleaned
    assert set(cleaned) <= set("-!'(),.:;? abcdefghijklmnopqrstuvwxyz")


@settings(max_examples=300)
@given(st.lists(st.integers(min_value=0, max_value=147)))
def test_symbol_ids_stay_the_same_when_converted_to_text_and_back(sequence):
    assert text_to_sequence(sequence_to_text(sequence), []) == sequence


def test_symbol_ids_equal_the_recorded_nvidia_ids():
    items = json.loads((GOLDEN / "text_dev.json").read_text(encoding="utf-8"))
    assert len(items) == 217
    different = {
        item["id"]: spoken(item["text"])
        for item in items
        if text_to_sequence(item["text"], COMPATIBLE) != item["sequence"]
    }
    assert different == {}


@pytest.mark.parametrize("text", ["A", "...no", "7", "{HH}", "{AH0} ...", "é", "'t"])
def test_text_counts_as_speakable_only_when_it_contains_letters_digits_or_phones(text):
    assert can_be_spoken(bytes(text_to_sequence(text, COMPATIBLE)))
    for silent in ("", " ", "...", "—", "- ! ?", "_", "(),.", "{}", "{QQ}", "#*~"):
        assert not can_be_spoken(text_to_sequence(silent, COMPATIBLE))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I MEAN IT.", "i mean it."),
        ("I MEAN IT, said Tom.", "i mean it, said tom."),
        ("He said IT IS over.", "he said it is over."),
        ("IBM IT is large.", "i b m i t is large."),
        ("The IT department", "the i t department"),
        ("a ~~ b ~", "a b"),
        ("Try ~. Then ~5 or ~.5", "try . then about five or about point five"),
        ("~~5 days~~ 6 days", "five days six days"),
        ("<. >. end", ". . end"),
    ],
)
def test_capitalized_words_and_symbols_without_a_number_become_the_expected_words(text, expected):
    assert spoken(text, CORRECTED) == expected
