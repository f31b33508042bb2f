import json
import subprocess
import sys
from pathlib import Path

import inflect
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unidecode import unidecode

from errors import UserError
from text import can_be_spoken, clean_text, numbers, sequence_to_text, symbols, text_to_sequence
from text.cleaners import CLEANERS

PROJECT = Path(__file__).resolve().parent.parent
GOLDEN = PROJECT.parent / "shared" / "golden"
METADATA = PROJECT.parent / "shared" / "ljspeech" / "metadata.csv"

COMPATIBLE = ["english_cleaners"]
CORRECTED = ["english_cleaners_corrected"]

needs_golden = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason="the golden files (../shared/golden) are not on this machine"
)
needs_metadata = pytest.mark.skipif(
    not METADATA.is_file(),
    reason="LJSpeech's metadata.csv (../shared/ljspeech) is not on this machine",
)


def spoken(text, cleaner_names=COMPATIBLE):
    """What reaches the model, written out: the ids turned back into text."""
    return sequence_to_text(text_to_sequence(text, cleaner_names))


# --- symbols ---------------------------------------------------------------------------------


def test_there_are_148_distinct_symbols():
    assert len(symbols) == len(set(symbols)) == 148


def test_ids_lie_where_published_embeddings_have_them():
    places = {"_": 0, "-": 1, "!": 2, " ": 11, "A": 12, "Z": 37, "a": 38, "z": 63}
    phones = {"@AA": 64, "@AA0": 65, "@AH0": 73, "@B": 88, "@UW2": 142, "@ZH": 147}
    assert {symbol: symbols.index(symbol) for symbol in places | phones} == places | phones


@needs_golden
def test_symbols_equal_the_golden_list():
    assert symbols == json.loads((GOLDEN / "symbols.json").read_text(encoding="utf-8"))


def test_ids_of_a_short_text():
    assert text_to_sequence("Hi, {B ZH}!", COMPATIBLE) == [45, 46, 6, 11, 88, 147, 2]


# --- the compatible cleaner: the reference's behaviour, mistakes included --------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("   ", " "),
        (" a  b ", " a b "),
        ("tabs\tand\nnewlines \r\n here", "tabs and newlines here"),
        ("Füße, naïve — “so”…", "fusse, naive -- so..."),
        ('"quoted" [bracketed] 50% & more', "quoted bracketed fifty  more"),
        # Meant to be dropped, yet the reference gives the underscore id 0.
        ("lower_under~tilde", "lower_undertilde"),
    ],
)
def test_compatible_characters(text, expected):
    assert spoken(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "zero"),
        ("007", "seven"),
        ("2.", "two."),
        ("117", "one hundred seventeen"),
        ("999", "nine hundred ninety-nine"),
        ("9,000", "nine thousand"),
        ("5719", "five thousand, seven hundred nineteen"),
        ("10000", "ten thousand"),
        ("1,2", "twelve"),
        ("1,,2", "twelve"),
        ("1, 2", "one, two"),
        (",1,", ",one,"),
        ("4:30", "four:thirty"),
        ("6.5x4", "six point fivexfour"),
        # Years, in pairs.
        ("1000", "one thousand"),
        ("1001", "ten oh one"),
        ("1066's", "ten sixty-six's"),
        ("1900", "nineteen hundred"),
        ("1,963", "nineteen sixty-three"),
        ("01963", "nineteen sixty-three"),
        ("2000", "two thousand"),
        ("2001", "two thousand one"),
        ("2009", "two thousand nine"),
        ("2010", "twenty ten"),
        ("2999", "twenty-nine ninety-nine"),
        ("3000", "three thousand"),
        ("1963-64", "nineteen sixty-three-sixty-four"),
        ("the 1950s", "the nineteen fiftys"),
        # Decimals.
        ("4.8", "four point eight"),
        ("0.05", "zero point five"),
        ("3.14159", "three point fourteen thousand, one hundred fifty-nine"),
        (".5", ".five"),
        ("1.2.3", "one point two.three"),
        ("1.2.3.4", "one point two.three point four"),
        # Ordinals.
        ("0th 1st 2nd 3rd 11th", "zeroth first second third eleventh"),
        ("21st", "twenty-first"),
        ("101st", "one hundred and first"),
        ("12,345th", "twelve thousand, three hundred and forty-fifth"),
        ("21stamps", "twenty-firstamps"),
        # Money.
        ("$1", "one dollar"),
        ("$0.01", "one cent"),
        ("$.50", "fifty cents"),
        ("$0.00", "zero dollars"),
        ("$1.50", "one dollar, fifty cents"),
        ("$1.5", "one dollar, five cents"),
        ("$21.45", "twenty-one dollars, forty-five cents"),
        ("$20,000", "twenty thousand dollars"),
        ("$1750", "seventeen fifty dollars"),
        ("$5 million", "five dollars million"),
        ("$1.2.3", "one point two.three dollars"),
        ("$1.234", "one dollar, two hundred thirty-four cents"),
        ("$2.", "two dollars."),
        ("$", ""),
        ("£10", "psten"),
        ("£", "ps"),
        ("€5", "eurfive"),
    ],
)
def test_compatible_numbers(text, expected):
    assert spoken(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Each of these stops the reference with an exception.
        ("$,5", "five dollars"),
        ("$1.,5", "one dollar, five cents"),
        ("$,.5", "five cents"),
        ("1" * 37, " ".join(["one"] * 37)),
        ("2" * 36 + "1st", " ".join(["two"] * 36 + ["first"])),
        ("0" * 5000 + "7", "seven"),
        ("$" + "3" * 5000, " ".join(["three"] * 5000) + " dollars"),
    ],
)
def test_numbers_that_stop_the_reference_are_read(text, expected):
    assert spoken(text) == expected


def test_the_largest_number_with_a_name_is_named():
    words = spoken("1" + "0" * 35)
    assert words == "one hundred decillion"


def test_years_agree_with_inflect_reading_in_pairs():
    engine = inflect.engine()
    for year in range(1001, 3000):
        if year % 100 and not 2000 < year < 2010:
            pairs = engine.number_to_words(year, group=2, zero="oh").replace(",", "")
            assert spoken(str(year)) == pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. and Mrs. Smith", "mister and misess smith"),
        ("Dr. Drs. Rev. Hon.", "doctor doctors reverend honorable"),
        ("Maj. Gen. Sgt. Capt. Lt. Col.", "major general sergeant captain lieutenant colonel"),
        ("Co. Ltd. Jr. Esq. Ft.", "company limited junior esquire fort"),
        ("ST. JOHN and st. mary", "saint john and saint mary"),
        ("Mr Smith at first.", "mr smith at first."),
        ("the 1st. St", "the first. st"),
        ("best. _mr.", "best. _mr."),
        # The rules run one after another: "mister" has swallowed the start of the word "st".
        ("Mr.St.", "misterst."),
        ("St.Mr.", "saintmister"),
    ],
)
def test_compatible_abbreviations(text, expected):
    assert spoken(text) == expected


# --- ARPAbet ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Turn left on {HH AW1 S S T AH0 N} Street.", "turn left on {HH AW1 S S T AH0 N} street."),
        ("{HH AH0 L OW1} world", "{HH AH0 L OW1} world"),
        ("plain {R IY1 D}, then {R EH1 D} twice.", "plain {R IY1 D}, then {R EH1 D} twice."),
        ("Mr. {S M IH1 TH} paid $5.", "mister {S M IH1 TH} paid five dollars."),
        ("unknown {QQ1 AH0 ZZZ hh _} symbols", "unknown {AH0} symbols"),
        ("{B}{D}", "{B D}"),
        ("{ B\tD }", "{B D}"),
        ("{B} ", "{B} "),
        # Broken braces are no spans, and no brace is a symbol.
        ("empty {} braces", "empty  braces"),
        ("{", ""),
        ("{A", "a"),
        ("A}", "a"),
        ("{{B} D}", " d"),
        ("{{ B} D}", "{B} d"),
        ("{} {B}", ""),  # one span, of the unknown phones "}" and "{B"
        ("{}", ""),
        # Pieces are cleaned by themselves.
        ("1{B}000", "one{B}zero"),
        ("Mr{B}.", "mr{B}."),
        # Only the first line may hold spans, and drops the others when it does.
        ("{A\nB}", "a b"),
        ("one\n{B}", "one b"),
        ("{B} one\ntwo", "{B} one"),
    ],
)
def test_arpabet_in_braces(text, expected):
    assert spoken(text) == expected


# --- the corrected cleaner -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Pounds, dollars, euros.
        ("£10", "ten pounds"),
        ("£1 or £0.01", "one pound or one penny"),
        ("£10,500.", "ten thousand, five hundred pounds."),
        ("£1.05", "one pound five pence"),
        ("£2.5 million", "two point five million pounds"),
        ("$1.5", "one dollar fifty cents"),
        ("$.50", "fifty cents"),
        ("$0.00", "zero dollars"),
        ("$5 million", "five million dollars"),
        ("$1 Billion", "one billion dollars"),
        ("$1750", "one thousand, seven hundred fifty dollars"),
        ("$1.234", "one point two three four dollars"),
        ("$1.2.3", "one point two point three dollars"),
        ("€1 and €5.20", "one euro and five euros twenty cents"),
        ("£ and $", "and"),
        # Numbers.
        ("3.14159", "three point one four one five nine"),
        ("0.05", "zero point zero five"),
        (".22 rifle", "point two two rifle"),
        ("1.2.3", "one point two point three"),
        ("1,234.5", "one thousand, two hundred thirty-four point five"),
        ("1,2 and 1,2345", "one,two and one,twenty-three forty-five"),
        ("1963", "nineteen sixty-three"),
        ("1,963 men", "one thousand, nine hundred sixty-three men"),
        ("the 101st", "the one hundred first"),
        ("12,345th", "twelve thousand, three hundred forty-fifth"),
        ("5 million", "five million"),
        ("£" + "3" * 37, " ".join(["three"] * 37) + " pounds"),
        # Words.
        ("Mr. and Mrs. Smith", "mister and missus smith"),
        ("50% or 4.5 %.", "fifty percent or four point five percent."),
        ("Smith & Wesson, AT&T", "smith and wesson, at and t"),
        # What cannot be spoken leaves no hole, and no space stands at the ends.
        ("  hello  ", "hello"),
        ('"he [Truly]" * lower_under and/or _', "he truly lower under and or"),
        (" {B} and {D} ", "{B} and {D}"),
        ("on {B} street ", "on {B} street"),
        ("", ""),
    ],
)
def test_corrected_cleaner(text, expected):
    assert spoken(text, CORRECTED) == expected


# --- the other cleaners, and their names -----------------------------------------------------


def test_transliteration_keeps_numbers_and_abbreviations():
    assert clean_text("Dr.  Müller: 10", ["transliteration_cleaners"]) == "dr. muller: 10"


def test_basic_cleaner_only_lowers_and_collapses():
    assert clean_text("Dr.  MÜLLER: 10", ["basic_cleaners"]) == "dr. müller: 10"


def test_cleaners_run_in_the_order_given():
    assert clean_text("Ü £5 ", ["basic_cleaners", *CORRECTED]) == "u five pounds"
    assert clean_text("Ü £5 ", ["transliteration_cleaners", *CORRECTED]) == "u psfive"


def test_without_cleaners_the_text_stays_as_it_is():
    assert spoken("Hi  {B} Ü!", []) == "Hi  {B} !"


@pytest.mark.parametrize("text", ["", "hello", "{B}"])
def test_unknown_cleaner_is_refused_with_the_nearest_and_all(text):
    with pytest.raises(ValueError, match=r"'english_cleaner'.* mean 'english_cleaners'") as e:
        text_to_sequence(text, ["english_cleaner"])
    assert all(name in str(e.value) for name in CLEANERS)


def test_a_bare_string_of_cleaners_is_refused():
    with pytest.raises(TypeError, match=r"give \['english_cleaners'\]"):
        text_to_sequence("hello", "english_cleaners")


# --- back to text ----------------------------------------------------------------------------


def test_sequence_to_text_writes_phones_in_braces_and_padding_as_underscores():
    assert sequence_to_text([45, 46, 88, 147, 11, 65, 0, 0]) == "hi{B ZH} {AA0}__"


@pytest.mark.parametrize("bad", [-1, 148])
def test_sequence_to_text_refuses_ids_without_a_symbol(bad):
    with pytest.raises(ValueError, match=rf"\[{bad}\].*0 to 147"):
        sequence_to_text([45, bad])


# --- any text --------------------------------------------------------------------------------

awkward_text = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,$£€%{}stndrh \n_ABmMrs&"),
)


@settings(deadline=None, max_examples=300)
@given(awkward_text, st.sampled_from(sorted(CLEANERS)))
def test_any_text_gives_ids_in_range(text, cleaner):
    sequence = text_to_sequence(text, [cleaner])
    assert all(0 <= i < 148 for i in sequence)
    if "_" not in clean_text(text, [cleaner]):
        assert 0 not in sequence


@settings(deadline=None, max_examples=300)
@given(awkward_text)
def test_corrected_text_is_spoken_character_by_character(text):
    cleaned = clean_text(text, CORRECTED)
    assert cleaned == cleaned.strip()
    assert "  " not in cleaned
    assert set(cleaned) <= set("-!'(),.:;? abcdefghijklmnopqrstuvwxyz")


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(min_value=0, max_value=147)))
def test_every_sequence_of_ids_survives_the_way_to_text_and_back(sequence):
    assert text_to_sequence(sequence_to_text(sequence), []) == sequence


# --- against the reference -------------------------------------------------------------------


@needs_golden
def test_every_golden_text_gives_the_same_sequence():
    items = json.loads((GOLDEN / "text_dev.json").read_text(encoding="utf-8"))
    assert len(items) == 217
    different = {
        item["id"]: spoken(item["text"])
        for item in items
        if text_to_sequence(item["text"], COMPATIBLE) != item["sequence"]
    }
    assert different == {}


@needs_metadata
@pytest.mark.parametrize("cleaner", [COMPATIBLE, CORRECTED])
def test_every_ljspeech_transcript_becomes_symbols(cleaner):
    lines = METADATA.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 13100
    for line in lines:
        transcript = line.split("|")[2]
        cleaned = clean_text(transcript, cleaner)
        assert not any(character.isdigit() for character in cleaned)
        expected = "".join(character for character in cleaned if character in symbols)
        assert spoken(transcript, cleaner) == expected
        assert len(expected) > 10


def test_importing_text_does_not_wait_for_inflect():
    code = (
        "import sys, text\n"
        "assert 'inflect' not in sys.modules\n"
        "text.text_to_sequence('no number', ['english_cleaners'])\n"
        "assert 'inflect' not in sys.modules\n"
        "assert text.clean_text('7', ['english_cleaners']) == 'seven'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


@pytest.mark.parametrize("name", [name for name in CLEANERS if name != "basic_cleaners"])
def test_ascii_passes_as_unidecode_would_have_it_and_other_letters_go_through_it(name):
    ascii_text = "".join(map(chr, range(128)))
    assert unidecode(ascii_text) == ascii_text
    assert clean_text("Größe, œuvre", [name]) == clean_text(unidecode("Größe, œuvre"), [name])
    assert spoken("Größe, œuvre", [name]) == "grosse, oeuvre"


@pytest.mark.parametrize(
    ("missing", "text", "message"),
    [
        ("unidecode", "Größe, œuvre", "'ßöœ' can only be cleaned with the package unidecode"),
        ("inflect", "739201", "numbers can only be spelled with the package inflect"),
    ],
)
def test_a_text_that_needs_a_package_that_is_not_installed_is_refused(
    missing, text, message, monkeypatch
):
    numbers._inflect_engine.cache_clear()
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    with pytest.raises(UserError, match=f"{message}.*install requirements.txt, or write"):
        clean_text(text, ["english_cleaners"])
    assert clean_text("Mr. Co.", ["english_cleaners"]) == "mister company"


@pytest.mark.parametrize("text", ["", " ", "...", "—", "- ! ?", "_", "(),.", "{}", "{QQ}", "#*~"])
def test_a_text_of_punctuation_alone_leaves_nothing_to_say(text):
    assert not can_be_spoken(text_to_sequence(text, ["english_cleaners"]))


@pytest.mark.parametrize("text", ["A", "...no", "7", "{HH}", "{AH0} ...", "é", "'t"])
def test_a_letter_a_digit_or_a_phone_can_be_spoken(text):
    assert can_be_spoken(text_to_sequence(text, ["english_cleaners"]))
    assert can_be_spoken(bytes(text_to_sequence(text, ["english_cleaners"])))
