"""Test text/uncertain.py, which finds expressions that may be spoken incorrectly."""

import lzma
import re

import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from tacotron2_voice.text.english import read_english
from tacotron2_voice.text.uncertain import uncertain_expressions, uncertain_notes

CLEANERS = ["english_cleaners_corrected"]


@pytest.mark.parametrize(
    ("text", "expression", "reading"),
    [
        ("It needs Windows 10/11.", "10/11", "ten elevenths"),
        ("He came on 3/4/2020.", "3/4/2020", "march fourth, twenty twenty"),
        ("The assoc. met today.", "assoc.", "assoc."),
        ("Sat. at six we met.", "Sat.", "Sat."),
        ("We saw Rocky IV twice.", "IV", "i v"),
        ("It has 1.5M users.", "1.5M", "one point five M"),
        ("Take 5 mol/L of it.", "mol/L", "mol/L"),
        ("The limit of 10 kgf is low.", "kgf", "kgf"),
        ("A video in 1080p is large.", "1080p", "ten eighty p"),
        ("Here x<y holds.", "x<y", "x<y"),
        ("About 1.2m people live here.", "1.2m", "one point two meters"),
        ('A 15" lamp is large.', "15", "fifteen"),
        ("Add 1 t of salt.", "1 t", "one ton"),
        ("Add 1 t. salt to it.", "1 t", "one teaspoon"),
        ("It is NaCl in water.", "NaCl", "NaCl"),
        ("Call Cmdr York now.", "Cmdr", "Cmdr"),
        ("See pages iv-ix of it.", "iv-ix", "iv-ix"),
        ("Come on Fri at noon.", "Fri", "Fri"),
        ("It took 10s.", "10s", "tens"),
        ("Say Привет to all.", "Привет", "Привет"),
        ("Elizabeth I was queen.", "I", "I"),
        ("Tom &amp; Jerry", "&amp", "and amp"),
        ("This is true [12] of all.", "12", "twelve"),
        ("It is in Paris¹ now.", "Paris¹", "Paris one"),
        ("Charles I lost his head.", "I", "I"),
        ("Napoleon I, emperor, died.", "I", "I"),
        ("Buy a 5 in pipe.", "5 in", "five in"),
        ("It is 2 1/2 in length.", "2 1/2 in", "two and a half in"),
        ("It was late in Mar-20.", "Mar-20", "Mar-twenty"),
        ("The 2005-10 report is out.", "2005-10", "two thousand five to ten"),
        ("Some 1 234 people came.", "1 234", "one two hundred thirty-four"),
        ("He left, ie now.", "ie", "ie"),
        ("The ICE agents left.", "ICE", "ice"),
        ("A PET scan was ordered.", "PET", "pet"),
        ("I'm gonna go 2 bed.", "go 2 bed", "go two bed"),
        ("WHO declared it.", "WHO", "w h o"),
        ("He has ADD.", "ADD", "a d d"),
        (
            "It is open from 10.00 to 15.00.",
            "from 10.00 to 15.00",
            "from ten point zero zero to fifteen point zero zero",
        ),
        ("It has 4” wheels.", "4", "four"),
        ("Add acid (HCl) to it.", "HCl", "HCl"),
        ("I use a 3g phone.", "3g", "three gram"),
        ("It is known as COP16.", "COP16", "c o p sixteen"),
        ("It runs Ubuntu 23.10 now.", "Ubuntu 23.10", "Ubuntu twenty-three point one zero"),
        ("I just do IT.", "do IT", "do i t"),
        ("Bring it to US!", "to US", "to u s"),
        ("He won in Rd 8.", "in Rd 8", "in Rd eight"),
        ("Sr. Garcia came.", "Sr", "senior"),
        ("Wash. your hands.", "Wash.", "Wash."),
        ("It needs 10 A.", "10 A", "ten amperes"),
        ("It fell by 2000 hours.", "2000 hours", "twenty hundred hours"),
        ("It took 1500 hours.", "1500 hours", "fifteen hundred hours"),
        ("He wrote it (c. 42).", "c. 42)", "Circa forty-two)"),
        ("Tell me what 2 do.", "2 do", "two do"),
        ("Come 4 me.", "4 me", "four me"),
        ("He lied, lmao, again.", "lmao", "lmao"),
        ("So ily my dear.", "ily", "ily"),
        ("Move the 1:1 to Monday.", "1:1", "one to one"),
        ("The answer is no. 6 people left.", "is no. 6", "is no. six"),
        ("I. Storms at Sea", "I.", "I."),
        ("Your email of 3/4 came.", "email of 3/4", "email of march fourth"),
        ("Come on Sat 3/8 please.", "Sat 3/8", "saturday march eighth"),
        ("He ran 2:01:09 today.", "2:01:09", "two oh one and nine seconds"),
        ("Feed it 10-10-10 soon.", "10-10-10", "ten, ten, ten"),
        ("By 3.30 it was over.", "3.30", "three thirty"),
        ("It opens at 13:00 a.m. daily.", "13:00 a.m", "thirteen a m"),
        ("It is no. 4 of us left.", "is no. 4", "is no. four"),
        ("The IIII clock face", "IIII", "four"),
        ("The MS. ends here.", "MS", "miz"),
        ("A ticket 4 Sat?", "4 Sat", "four Sat"),
        ("Sry, I am late.", "Sry", "Sry"),
        ("He weighs 12st 4lb now.", "12st 4lb", "twelve stone four pounds"),
        ("He ran 1m 10.2s today.", "1m 10.2s", "one minute ten point two seconds"),
        ("No 10 said no.", "No 10", "Number ten"),
    ],
)
def test_possibly_misread_expression_is_returned_with_its_spoken_form(text, expression, reading):
    assert uncertain_expressions(text, CLEANERS) == [(expression, reading)]


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith et al. paid $5.50 on Nov. 25, 2026, at 3:45 p.m.",
        "The 1st of the 1990s, a 14-year-old, 5-10% and 2 1/2 cups.",
        "AT&T, B-52s, MP3s, No. 7, #12, and/or, 24/7, Part II, Louis XIV.",
        "It was -5°C with 20 km/h winds and 3 W/m² of light (see https://example.com/a?b=1).",
        "“Stop.” said Tom — 2 + 2 = 4; call 555-123-4567.",
        "9am-5pm on 25/12/1999 or 12/25/1999, -$5, $15/hour, ½ km, 5 million kg, x-ray.",
        "James I am sorry, Robert I don't know, Robert I. Brown and 3 in ten of 5 in a row.",
        "See col. 5, 2020-03, 2011-12, Mar-2020, Sat or Sun, Asst. Prof. Lee and a 5-in pipe.",
        "It is 5 in x 3 in big and costs 5 $.",
        "Some 10 000 people came, and Symphony No. 5 in full was played at 7-5 in straight sets.",
        "Hmm, colo[u]r and {HH AH0} words.",
        "I am SO tired that I will NOT go to THE END of AM radio, the WHO, the OR and PIN 4321.",
        "omg idk, fyi yesss and hmm, in row 2 they see 4 of them.",
        "The tsar in khaki left ACT I at 10:45 A.M., etc, for Ill. and Ind. at 1630 hrs.",
        "My BP was 128/82 under Rule 12(b)(6) or 14(2)(a) of a 401(k), a 50/50 or 80/20 split of 3:1.",
        "Drink H2O on BA2490 with v2.3.1, a 4K TV, 85k miles, S2E5, under-5s, AB12 3CD and the 49ers.",
        "A yacht of 60 x 55 x 85 cm, a 9x13-inch pan, 2x4x8, 3x daily, 6'2\", 400 sq. ft. and 50p.",
        "Open Sat. 10-2, Tue–Sun 10–6, 12-4pm or Jan.-Mar. for 2h 35m, 0.2s, at 5ish, 5-a-side, c/o Ann.",
        "Step 3: pay €2.1-2.3bn in 1-1/2 hrs. at +60°C and <3 yrs. for £3 10s. or 1000s of pounds.",
        "See Fig. 2-1, mix it at 1:10, win in 2:00:35, go on Wed, see Gary, IN, and take the 8.15 from Rye.",
        "See p. 45, pp. 10–12, Vol. IV, Op. 9 and the 19th-century C++ in Roe v. Wade.",
    ],
)
def test_common_expressions_are_not_reported_as_possibly_misread(text):
    assert uncertain_expressions(text, CLEANERS) == []


@given(st.lists(st.sampled_from(["and", "Tom", "it's", "well-known", "café", "no"]), min_size=1))
def test_ordinary_words_are_not_reported_as_possibly_misread(words):
    assert uncertain_expressions(f"{' '.join(words)}.", CLEANERS) == []


@given(st.text(max_size=60))
def test_search_for_possibly_misread_expressions_accepts_any_text(text):
    assert isinstance(uncertain_expressions(text, CLEANERS), list)


def test_fewer_than_one_in_100_ljspeech_texts_has_a_possibly_misread_expression():
    with lzma.open(DATA / "ljspeech" / "metadata.csv.xz", "rt", encoding="utf-8") as file:
        texts = [line.split("|")[1] for line in file][::20]
    assert sum(bool(uncertain_expressions(text, CLEANERS)) for text in texts) < len(texts) / 100


def test_possibly_misread_expressions_are_reported_only_for_the_corrected_english_cleaners():
    assert uncertain_expressions("Windows 10/11", ["basic_cleaners"]) == []
    assert uncertain_expressions("Windows 10/11", ["english_cleaners"]) == []


def test_phones_between_slashes_are_not_possibly_misread_when_the_model_accepts_phones():
    assert uncertain_expressions("He is /wˈɪn/.", [*CLEANERS, "phones"]) == []


def test_note_lists_five_possibly_misread_expressions_and_counts_the_rest():
    [note] = uncertain_notes("Here 1/7, and 1/9, and 1/11, and 1/12, and 1/13, and 1/14.", CLEANERS)
    assert "'1/13' as 'one thirteenth'" in note
    assert "and 1 more" in note
    assert uncertain_notes("Good morning.", CLEANERS) == []


def test_expressions_of_a_long_text_are_the_expressions_of_its_sentences():
    text = "He paid 1/7 of it. She took 5 mol/L."
    expected = uncertain_expressions(text, CLEANERS)
    assert len(expected) == 2
    assert uncertain_expressions(" ".join([text] * 100), CLEANERS) == expected * 100


# Texts in english_texts.tsv that are misread without a note.
MISREAD = {
    "Att.: signed contract",
    "Boston, Mass., and Augusta, Me.",
    "In the year 18— I left home.",
    "Seas will be 4 to 6 ft. with light winds out of the S.",
    "The concert repeats on Ch. 5 this Sunday at 11:30 a.m.",
    "This agreement is made between Green & Co. and the buyer named in Sched. A.",
}
SPELLING = {"metre": "meter", "litre": "liter", "centre": "center", "grey": "gray"}
SPELLING |= {"per cent": "percent", "missis": "missus", "misses": "missus", "nought": "zero"}


def letters(spoken: str) -> str:
    """Return only the letters of a spoken text, in American spelling and without "and"."""
    spoken = re.sub(r"\band\b", "", re.sub(r"[-–—_/]", " ", spoken.lower()))
    for british, american in SPELLING.items():
        spoken = spoken.replace(british, american)
    return "".join(filter(str.isalpha, spoken))


def test_number_after_an_abbreviation_is_not_listed_when_it_is_read_as_a_number():
    assert uncertain_notes("Read Vol. II and Vol. III.", CLEANERS) == []


def test_texts_of_many_kinds_are_read_as_expected_or_listed_in_a_note():
    """The authors of the 1,600 texts and readings did not know the rules."""
    rows = (DATA / "english_texts.tsv").read_text("utf-8").splitlines()[1:]
    misread = set()
    for _, text, readings in (row.split("\t") for row in rows):
        is_right = letters(read_english(text)) in map(letters, readings.split(" || "))
        if not is_right and not uncertain_expressions(text, CLEANERS):
            misread.add(text)
    assert misread == MISREAD
