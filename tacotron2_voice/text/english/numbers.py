"""Convert numbers to English words, with rules that are applied in order.

`NUMBER_RULES` convert numbers as NVIDIA/tacotron2 does, in a text of lower-case ASCII letters.
`CORRECTED_NUMBER_RULES` convert numbers to the words that a person would say, after the other rules
of english/__init__.py.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tacotron2_voice.text.english.words import CURRENCIES

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_MAX_NAMED_DIGITS = 36  # maximum number of digits of a number that inflect can write in words


# Letters belong to a currency only if no other letter precedes them. For example, the "A$" in
# "USA$5" is not a currency.
CURRENCY = (
    rf"(?:(?<![A-Za-z])(?:{'|'.join(re.escape(x) for x in CURRENCIES if len(x) > 1)})|[$£€¥₹])"
)


def rule(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Rule:
    return re.compile(pattern), replacement


@lru_cache(maxsize=1)
def _inflect_engine() -> Any:
    """Import inflect on first use, because the import takes about a second."""
    import inflect

    return inflect.engine()


@lru_cache(maxsize=16384)
def spell_number(number: str, andword: str = "") -> str:
    """Convert a number to words: 12 -> twelve, 12th -> twelfth. Very long numbers are spelled out
    digit by digit."""
    digits = number.rstrip("dhnrst").lstrip("0") or "0"
    suffix = number.lstrip("0123456789")
    if len(digits) > _MAX_NAMED_DIGITS:
        return " ".join([*map(spell_number, digits[:-1]), spell_number(digits[-1] + suffix)])
    return _inflect_engine().number_to_words(digits + suffix, andword=andword)


def spell_number_or_year(digits: str) -> str:
    """Convert a string of digits to words. Numbers from 1001 to 2999, except 2000 to 2009, are
    treated as years: 1984 -> nineteen eighty-four."""
    digits = digits.lstrip("0") or "0"
    value = int(digits) if len(digits) == 4 else 0
    if not 1000 < value < 3000 or 2000 <= value < 2010:
        return spell_number(digits)
    century, year = divmod(value, 100)
    if year == 0:
        return f"{spell_number(str(century))} hundred"
    return f"{spell_number(str(century))} {'oh ' if year < 10 else ''}{spell_number(str(year))}"


def _dollars_in_digits(match: re.Match[str]) -> str:
    amount = match[1]
    dollars, _, cents = amount.partition(".")
    if "." in cents:  # a text such as $1.2.3 is not an amount
        return f"{amount} dollars"
    # Ignore a stray comma, as in "$,5". NVIDIA's code raises an error for such a comma.
    dollars, cents = (part.replace(",", "").lstrip("0") for part in (dollars, cents))
    units = [(dollars, "dollar"), (cents, "cent")]
    parts = [f"{count} {unit}{'' if count == '1' else 's'}" for count, unit in units if count]
    return ", ".join(parts) or "zero dollars"


NUMBER_RULES: list[Rule] = [
    (re.compile(r"(?<=[0-9]),+(?=[0-9])"), ""),
    (re.compile(r"\$([0-9.,]*[0-9])"), _dollars_in_digits),
    (re.compile(r"([0-9]+)\.([0-9]+)"), r"\1 point \2"),
    (re.compile(r"[0-9]+(?:st|nd|rd|th)"), lambda match: spell_number(match[0], andword="and")),
    (re.compile(r"[0-9]+"), lambda match: spell_number_or_year(match[0])),
]


def spell_digits(digits: str) -> str:
    """Convert a number to words digit by digit: 0187 -> zero one eight seven."""
    return " ".join(map(spell_number, digits))


def spell_fraction(fraction: str) -> str:
    """Convert a fraction with a denominator of 2 or more to words: 2/3 -> two thirds."""
    above, below = fraction.split("/")
    name = {2: "half", 4: "quarter"}.get(int(below)) or spell_number(f"{int(below)}th")
    if int(above) == 1:
        return name if name.startswith("one ") else f"one {name}"
    return f"{spell_number(above)} {'halves' if name == 'half' else name + 's'}"


def plural_of(number: str) -> str:
    """Return the plural of a number in words: nineteen ninety -> nineteen nineties."""
    if number.endswith("y"):
        return f"{number[:-1]}ies"
    return f"{number}es" if number.endswith("x") else f"{number}s"


def _spell_decimal(whole: str, fraction: str) -> str:
    """Convert a decimal ("3", ".14": three point one four) or a version ("3", ".11.4": three point
    eleven point four) to words."""
    parts = fraction.split(".")[1:]
    spell = spell_digits if len(parts) == 1 else _spell_whole
    words = [f"point {spell(part)}" for part in parts]
    return " ".join([_spell_whole(whole), *words] if whole else words)


def _spell_whole(digits: str) -> str:
    """Convert a number to words, digit by digit if the number begins with a zero, such as 007."""
    return spell_digits(digits) if digits[0] == "0" else spell_number(digits)


def _spell_money(currency: str, whole: str, fraction: str, magnitude: str) -> str:
    unit, units, subunit, subunits = CURRENCIES[currency]
    if magnitude or len(fraction) > 3 or (fraction and not subunit) or fraction.count(".") > 1:
        return f"{_spell_decimal(whole, fraction)}{magnitude} {units}"
    whole = whole.lstrip("0")
    hundredths = fraction[1:].ljust(2, "0").lstrip("0")
    parts = []
    if whole or not hundredths:
        parts.append(f"{spell_number(whole)} {unit if whole == '1' else units}")
    if hundredths:
        parts.append(f"{spell_number(hundredths)} {subunit if hundredths == '1' else subunits}")
    return " ".join(parts)


def _read_number(match: re.Match[str]) -> str:
    currency, whole, fraction, ordinal, magnitude = (group or "" for group in match.groups())
    digits, ordinal = whole.replace(",", ""), ordinal.lower()
    if currency:
        space = " " if match.string[match.start() - 1 : match.start()].isalpha() else ""
        return space + _spell_money(currency, digits, fraction, magnitude) + ordinal
    if fraction:
        return _spell_decimal(digits, fraction) + ordinal + magnitude
    if ordinal:
        return spell_number(digits + ordinal)
    if digits[0] == "0":
        return _spell_whole(digits) + magnitude
    # A number with a comma is never a year.
    return (spell_number(digits) if "," in whole else spell_number_or_year(digits)) + magnitude


CORRECTED_NUMBER_RULES: list[Rule] = [
    (
        re.compile(
            rf"(?:({CURRENCY})\s?)?"
            # The last alternative of this group is empty: it matches before a number such as .5.
            r"([0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![\w.])(?=\.[0-9]))"
            r"((?:\.[0-9]+)*)"
            r"(?i:(st|nd|rd|th)\b|(\s+(?:hundred|thousand|million|billion|trillion)\b))?"
        ),
        _read_number,
    ),
]
