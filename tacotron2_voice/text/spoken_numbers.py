"""A closed language for small voices: whole numbers in words, "Four thousand seventy two."

Because it is closed, a recogniser can transcribe numbers that the model was never trained on. Texts
have 4 to about 70 letters, so random batches pad about as much as LJSpeech's (ZPR 31 % in batches
of 16).
The words of other languages are num2words's.
"""

import random
import re
import unicodedata

from tacotron2_voice.text.english.numbers import spell_number
from tacotron2_voice.utils.errors import UserError

ENGLISH = "en-us"  # eSpeak's name of it
# Most numbers are long, as are most clips of read speech.
WEIGHTS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 8, 6: 12}  # by their digits
_UNITS = "one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = frozenset([*_UNITS, *_TEENS, *_TENS, "hundred", "thousand"])

# All numbers of up to six digits in words, in the JSpeech Grammar Format.
GRAMMAR = f"""#JSGF V1.0;
grammar numbers;
<unit> = {" | ".join(_UNITS)};
<teen> = {" | ".join(_TEENS)};
<tens> = {" | ".join(_TENS)};
<pair> = <unit> | <teen> | <tens> [<unit>];
<three> = <unit> hundred [<pair>] | <pair>;
public <number> = [<three> thousand] [<three>];
"""


def is_english(language: str) -> bool:
    return language.partition("-")[0] == "en"


def in_words(number: int, language: str = ENGLISH) -> str:
    """Spell a number from 1 to 999,999, words separated by spaces; English is lower case.
    `language` is eSpeak's name. UserError for a language that num2words does not have."""
    if is_english(language):
        return " ".join(re.findall("[a-z]+", spell_number(str(number))))
    try:
        from num2words import CONVERTER_CLASSES, num2words
    except ImportError as error:
        fix = "pip install num2words, or all of requirements/phones.txt"
        raise UserError(f"numbers: {error}; {fix}") from None
    base, _, region = language.partition("-")
    if base not in CONVERTER_CLASSES:
        names = ", ".join(sorted(CONVERTER_CLASSES))
        raise UserError(f"language={language}: num2words has no words for it; it has {names}")
    name = f"{base}_{region.upper()}"
    words = num2words(number, lang=name if name in CONVERTER_CLASSES else base)
    return " ".join(unicodedata.normalize("NFC", words).split())


def draw_numbers(count: int, seed: int) -> list[int]:
    """Draw different numbers, most of them long. UserError if there are fewer than `count`."""
    rng = random.Random(seed)
    drawn: dict[int, None] = {}  # in order
    for _ in range(100 * count):
        [digits] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        drawn[rng.randrange(10 ** (digits - 1), 10**digits)] = None
        if len(drawn) == count:
            return list(drawn)
    raise UserError(f"{count:,} different numbers: too many, ask for fewer")


def sentence_of(text: str, language: str = ENGLISH) -> str:
    """Make the sentence "Four thousand seventy two." from "4,072", "4072" or the number's words; in
    other languages from digits only. UserError for anything else. Only English begins with a
    capital: elsewhere that could change the word (the capital of Turkish i is not I)."""
    digits = re.sub(r"[\s,_]", "", text)
    if digits.isascii() and digits.isdecimal():
        if not 1 <= int(digits[:20]) < 10**6:
            raise UserError(f"{text!r}: expected a number from 1 to {10**6 - 1:,}")
        words = in_words(int(digits), language)
        return f"{words.capitalize() if is_english(language) else words}."
    if not is_english(language):
        raise UserError(f"{text!r}: this model speaks only numbers: give one in digits")
    number_words = re.findall("[a-z]+", text.lower().replace(" and ", " "))
    unknown = sorted(set(number_words) - WORDS)
    if not number_words or unknown:
        note = f"it does not know {', '.join(unknown[:10])}; " if unknown else ""
        only = "this model speaks only numbers, in digits or in words"
        raise UserError(f"{text[:60]!r}: {note}{only}")
    return f"{' '.join(number_words).capitalize()}."
