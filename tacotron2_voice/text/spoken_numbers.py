"""Define a small language with a fixed vocabulary for small models: numbers in words.

    sentence_of("4,072")  # "Four thousand seventy two."

Because the vocabulary is small and fixed, a recognizer can check the speech of a model, even for
numbers that the model was not trained on. The texts have 4 to about 70 letters, so random batches contain about as much padding as random
batches of LJSpeech (31% in batches of 16). In languages other than English, num2words provides the
words.
"""

import random
import re
import unicodedata

from tacotron2_voice.text.english.numbers import spell_number
from tacotron2_voice.utils.errors import UserError

ENGLISH = "en-us"  # eSpeak's code for English
# Maps each number of digits to its sampling weight. Most numbers are long, because most clips of
# read speech are long.
WEIGHTS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 8, 6: 12}
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
    """Return a number in words that are separated by spaces. English words are in lower case.

    Args:
        number: a number from 1 to 999,999.
        language: eSpeak's code for the language.

    Raises:
        UserError: if num2words does not support the language.
    """
    if is_english(language):
        return " ".join(re.findall("[a-z]+", spell_number(str(number))))
    try:
        from num2words import CONVERTER_CLASSES, num2words
    except ImportError as error:
        raise UserError(f"numbers: {error} (requirements/phones.txt)") from None
    base, _, region = language.partition("-")
    base = {"nb": "no"}.get(base, base)  # the code of Norwegian in num2words
    if base not in CONVERTER_CLASSES:
        names = ", ".join(sorted(CONVERTER_CLASSES))
        raise UserError(
            f"language={language}: num2words does not support this language (expected one of {names})"
        )
    name = f"{base}_{region.upper()}"
    words = num2words(number, lang=name if name in CONVERTER_CLASSES else base)
    return " ".join(unicodedata.normalize("NFC", words).split())


def draw_numbers(count: int, seed: int) -> list[int]:
    """Draw `count` distinct random numbers, most of which are long.

    Raises:
        UserError: if `count` is too large. The maximum of `count` is 999,999.
    """
    rng = random.Random(seed)
    drawn: dict[int, None] = {}  # a dict that is used as an ordered set
    for _ in range(100 * count):
        [digits] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        drawn[rng.randrange(10 ** (digits - 1), 10**digits)] = None
        if len(drawn) == count:
            return list(drawn)
    raise UserError(f"{count:,} different numbers: too many")


def sentence_of(text: str, language: str = ENGLISH) -> str:
    """Return a number as a sentence: "4,072" and "4072" become "Four thousand seventy two."

    In English, the text may also be a number in words. In other languages, the text must consist of
    digits. The function capitalizes the first letter of English sentences. In other languages, the
    first letter stays in lower case, because a capital letter may change the word (the capital of
    the Turkish letter i is not I).

    Raises:
        UserError: if the text is not a number.
    """
    digits = re.sub(r"[\s,_]", "", text)
    if digits.isascii() and digits.isdecimal():
        if not 1 <= int(digits[:20]) < 10**6:
            raise UserError(f"{text!r}: out of range (expected a number from 1 to {10**6 - 1:,})")
        words = in_words(int(digits), language)
        return f"{words.capitalize() if is_english(language) else words}."
    if not is_english(language):
        raise UserError(f"{text[:60]!r}: not a number in digits")
    number_words = re.findall("[a-z]+", text.lower().replace(" and ", " "))
    unknown = sorted(set(number_words) - WORDS)
    if not number_words or unknown:
        problem = f"unknown words {', '.join(unknown[:10])}" if unknown else "not a number"
        raise UserError(f"{text[:60]!r}: {problem} (expected a number, in digits or words)")
    return f"{' '.join(number_words).capitalize()}."
