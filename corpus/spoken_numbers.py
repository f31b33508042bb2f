"""A closed language for small voices: whole numbers in words, "Four thousand seventy two."

Closed, so that a recogniser can transcribe numbers that the model was never trained on. Texts of 4
to about 70 letters let random batches pad about as much as LJSpeech's (ZPR 31 % in batches of 16).
"""

import random
import re

from errors import UserError
from text.numbers import spell_number

# Long numbers are most of them, as most clips of read speech are long.
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


def in_words(number: int) -> str:
    """The words of a number from 1 to 999,999, small letters, a space between two."""
    return " ".join(re.findall("[a-z]+", spell_number(str(number))))


def draw_numbers(count: int, seed: int) -> list[int]:
    """Different numbers, most of them long, in random order; UserError if there are too few."""
    rng = random.Random(seed)
    drawn: dict[int, None] = {}  # in order
    for _ in range(100 * count):
        [digits] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        drawn[rng.randrange(10 ** (digits - 1), 10**digits)] = None
        if len(drawn) == count:
            return list(drawn)
    raise UserError(f"{count:,} different numbers: too many, ask for fewer")


def sentence_of(text: str) -> str:
    """The sentence, "Four thousand seventy two.", of "4,072", "4072" or the words of a number;
    UserError on anything else."""
    digits = re.sub(r"[\s,_]", "", text)
    if digits.isascii() and digits.isdecimal():
        if not 1 <= int(digits[:20]) < 10**6:
            raise UserError(f"{text!r}: expected a number from 1 to {10**6 - 1:,}")
        return f"{in_words(int(digits)).capitalize()}."
    words = re.findall("[a-z]+", text.lower().replace(" and ", " "))
    unknown = sorted(set(words) - WORDS)
    if not words or unknown:
        note = f"; it does not know {', '.join(unknown)}" if unknown else ""
        raise UserError(f"{text!r}: this model speaks only numbers, in digits or in words{note}")
    return f"{' '.join(words).capitalize()}."
