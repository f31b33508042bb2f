"""Find the expressions in an English text that may be converted to the wrong words.

    uncertain_expressions("Use Windows 10/11.", ["english_cleaners_corrected"])
    # [Uncertain(expression="10/11", reading="ten elevenths")]

The rules in english/__init__.py reliably convert ordinary words, numbers, dates, amounts and known
abbreviations. An expression counts as uncertain if it matches no pattern in `_CERTAIN_FORMS`. In
addition, it must contain a digit or a symbol, or look like an abbreviation or a Roman numeral.
"""

import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tacotron2_voice.text.cleaners import read_brackets
from tacotron2_voice.text.english import (
    ADDRESS,
    AFTER_ASSOCIATE,
    BEFORE_STATES,
    DAY_NAMES,
    HEADING,
    MONTH_NAMES,
    is_pronounceable,
    plain_characters,
    read_english,
    roman_value,
)
from tacotron2_voice.text.english.quantities import (
    MAYBE_INCHES,
    MILITARY_TIME,
    MONTH_AND_DAY,
    NO_BEFORE_COUNT,
    NUMBER,
    PARAGRAPH_NUMBER,
    RATIO,
    SECRET_CODE,
    VERSE_BOOK,
)
from tacotron2_voice.text.english.words import (
    ABBREVIATIONS,
    BEFORE_NUMBERS,
    CHAT,
    COUNTED,
    COUNTED_OR_LETTERED,
    CURRENCIES,
    CURRENCY_CODES,
    FIRST_NAMES,
    INITIALS_BEFORE,
    MONARCHS,
    MONTHS,
    NEVER_INITIALS,
    OPENERS,
    PER,
    SPELLED_IN_CHATS,
    STATES,
    STATES_AFTER_TOWNS,
    STREETS,
    TITLES,
    UNITS,
    WORDS_IN_CAPITALS,
)
from tacotron2_voice.text.other_languages import language_of
from tacotron2_voice.text.phone_spans import CORRECTED
from tacotron2_voice.text.rules import uses_english_rules
from tacotron2_voice.text.sequences import ARPABET_SPAN, IPA_SPAN, PHONES

# The note about expressions that may be read wrongly ends with this advice.
ADVICE = "If the words are wrong, write the expression in words"
MAX_CHARACTERS = 500  # maximum number of characters to compare at once
MAX_SHOWN = 5  # maximum number of expressions to list in a note


class Uncertain(NamedTuple):
    """An expression in a text, and the words that the model speaks for this expression."""

    expression: str
    reading: str


def _any_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})"


_MONEY = _any_of(CURRENCIES)
_CODE = _any_of(CURRENCY_CODES)
# Units without the letters that often mean something else, as in "a size 10 L shirt".
_UNIT = _any_of(UNITS.keys() - {"t", "l", "L"})
_PLAIN_NUMBER = rf"(?!0\d){NUMBER}"
_PER = _any_of({*PER, *UNITS})
_TIME = r"(?:(?:0?\d|1[0-2])(?:[:.]\d\d)?\s?[ap]\.?m\.?|\d{1,2}:\d\d(?!\s?[ap]\.?m\b))"
# Patterns for the number of a month (1 to 12), and for a day that cannot be a month (13 to 31).
_MONTH, _DAY = r"(?:0?\d|1[0-2])", r"(?:1[3-9]|2\d|3[01])"
# A year with two digits that may be a month (October 2005) or a later year (2005 to 2010).
_YEAR_OR_MONTH = "|".join(
    f"[12]\\d{year:02}[-–]{month:02}\\b" for year in range(11) for month in range(year + 2, 13)
)
# Without these words, "30s" may mean 30 seconds.
_BEFORE_DECADES = "mid-|" + "|".join(
    f"(?<={word} )" for word in ("the", "The", "early", "late", "mid", "his", "her", "their")
)
_DAYS = rf"(?:{DAY_NAMES})\.?(?:\s?[-–]\s?(?:{DAY_NAMES})\.?)?"
# Patterns of expressions that are converted reliably. The patterns are tried in this order, so the
# pattern for plain numbers comes last.
_CERTAIN_FORMS = (
    # paragraphs of laws, dimensions, amounts of money, and amounts with units
    PARAGRAPH_NUMBER,
    r"[1-9]\d*(?:\.\d+)?(?:[x×][1-9]\d*(?:\.\d+)?)+(?:[\s-]?(?:inch|mm|cm|m|in|ft))?|\d+(?:\s[x×]\s\d+)+\s(?:cm|mm|m|in|ft)|\d{1,3}x(?=\s)",
    rf"{NUMBER}\s(?:sq|cu)\.\s?(?:ft|in|mi|yd)\.?|\d{{1,2}}'\s?\d{{1,2}}\"|\d{{1,2}}p",
    r"\d+\s?h\s?\d+\s?m(?:in)?|\d*\.\d+s|£\d+ \d+s\.?(?: \d+d\.?)?|\d+s\. \d+d\.?",
    rf"{NUMBER} in (?:x|×|by) {NUMBER} in",
    rf"[-−]?{_MONEY}{NUMBER}(?:\s?(?:k|m|bn|b|K|M|B))?(?:\s?[-–]\s?{_MONEY}?{NUMBER}(?:\s?(?:k|m|bn|b|K|M|B))?)?(?:/{_PER})?",
    rf"{NUMBER}\s?(?:[£€¥₹¢$]|{_CODE})|{_CODE}\s?{NUMBER}",
    rf"[-−+]?(?:{NUMBER}|(?:\d+[\s-])?\d/\d)(?:\s?[-–]\s?{NUMBER})?(?:\s[mb]illion)?[\s-]?(?!(?<=\d)m(?![\w²³/]))(?!(?<=\d)s\b){_UNIT}[²³]?(?:/{_PER}[²³]?)?\.?",
    # times, dates, verses and telephone numbers
    RATIO,
    rf"{_TIME}(?:\s?[-–]\s?{_TIME})?|(?:1[0-2]|[1-9])\s?[-–]\s?{_TIME}",
    rf"{_DAYS},?\s(?:{_TIME}|\d{{1,2}})\s?[-–]\s?(?:{_TIME}|\d{{1,2}})",
    rf"(?:{MONTH_NAMES})\.?\s?[-–]\s?(?:{MONTH_NAMES})\.?",
    # "3:1" is a ratio after "is", "of", "by", "to", "at", "a" and "was". After the name of a book
    # of the Bible, "3:1" is a chapter and a verse.
    r"(?:(?<=\b(?:is|of|by|to|at) )|(?<=\ba )|(?<=\bwas ))(?!1:1\b)\d{1,2}:[1-9]",
    r"(?:(?<=\b[Aa]t )|(?<=\b[Ii]n )|(?<=\bof ))\d{1,2}:\d\d:\d\d",
    rf"\d{{4}}-\d\d-\d\d|{_MONTH}/{_DAY}/(?:\d\d|\d{{4}})|{_DAY}[/.]{_MONTH}[/.]\d{{4}}",
    rf"(?i:May|{MONTH_NAMES}|{'|'.join(MONTHS.values())})-[12]\d{{3}}",
    rf"(?:{VERSE_BOOK}) \d+:\d+(?:[-–]\d+)?",
    SECRET_CODE,
    rf"(?:(?=0)|(?<=\bat )){MILITARY_TIME}",
    r"[A-Z]{2} \d{5}|(?!(?<!\bcode )(?:[1-9]\d?-){2,}[1-9]\d?\b)\d+(?:-\d+){2,}|[1-9](?:-[1-9]){2,}|\(?\d{3}\)?[-.\s]\d{3}[-.\s]\d{4}|\+\d{1,3}(?:[\s.-]?\(?\d{2,4}\)?){2,4}",
    # versions, such as v2.0 and 1.2.3, but not dates, such as 1.2.03
    r"v\d+(?:\.\d+)+|(?!\d\d?\.\d\d?\.\d\d\b)\d{1,3}(?:\.\d{1,3}){2}",
    # letters with digits, such as B-52s, 3D, H2O, BA2490 and under-5s
    r"[A-Z]\d[A-Z]|S\d+E\d+|[A-Z]{2}\d{4}|(?!sept-)[a-z]{4,}-\d{1,2}s?|\d\d?(?::\d\d)?ish|\d\ders",
    r"[A-Z]{1,2}\d{1,2}[A-Z]?\s\d[A-Z]{2}",
    rf"(?!GMT|UTC|[A-Z]+[AEIOU][A-Z]+\d)[A-Z]{{1,5}}-?\d{{1,3}}s?|(?!(?:May|{MONTH_NAMES})-)[A-Z][a-z]+-\d{{1,2}}|\d{{1,3}}[AC-LN-SU-Z]|\d{{1,3}}k",
    # initials, abbreviations, and two words with a slash, such as "and/or"
    r"(?:[A-Za-z]\.){2,}(?:-[A-Za-z]+)?|(?<!\d\s)[A-Z]\.",
    rf"[Aa]sst\.(?=\s[A-Z])|[Aa]ssoc\.(?=\s{AFTER_ASSOCIATE})|[Rr]ev\. ed\.",
    rf"(?i:{_any_of([*TITLES, *ABBREVIATIONS])})\.|{_any_of(STREETS)}\.",
    rf"{_any_of(STATES_AFTER_TOWNS)}\.,?\s(?:and|or|&)\s{_any_of(STATES_AFTER_TOWNS)}\.",
    rf"(?i:{_any_of(BEFORE_NUMBERS)})\.\s?(?:{NUMBER}(?:\s?[-–]\s?{NUMBER})?|[IVX]{{2,}}|V)",
    rf"(?:{_any_of([*FIRST_NAMES, *STATES])})\.|{BEFORE_STATES}{_any_of(STATES_AFTER_TOWNS)}\.|v\.(?=\s[A-Z])|Co\.",
    rf"(?<=[a-z]\s)(?:{_any_of(STREETS)})(?=[,.]?\s|$)",
    # Only after "on", "Sat." and "Sun." are certainly days of the week.
    rf"(?:{MONTH_NAMES}|(?!Sat|Sun)(?:{DAY_NAMES})|(?<=\bon )(?:Sat|Sun))\.",
    rf"cols?\.\s?{NUMBER}(?:\s?[-–]\s?{NUMBER})?",
    rf"(?:{DAY_NAMES})\.?(?:(?:,\s|,?\s(?:and|or|&|to|through|thru)\s|\s?/\s?)(?:{DAY_NAMES})\.?)+",
    r"(?i:[a-z]*[aeiou][a-z]*/[a-z]*[aeiou][a-z]*)",
    rf"{_any_of(MONARCHS)} [IVX]{{2,}}\.?",
    # symbols
    rf"#\d+|&|[+=×÷±≤≥≠≈]|@\w+|#[A-Za-z]+|w/o?|c/o|[A-G][#♯♭]|C\+\+|(?!<3(?!\s{_UNIT}\b))[<>~±+]\s?{NUMBER}(?:%|\s?{_UNIT})?|{NUMBER}\+",
    # numbers with spaces between thousands
    r"\d{1,3}(?: \d{3})* 000(?! ?\d)",
    # fractions, ordinals, decades, words such as "14-year-old", ranges and numbers
    r"(?:\d{1,3}[\s-])?(?:1/2|1/3|2/3|[13]/4|[1-4]/5|[1357]/8)|24/7|20/20|[5-9]0/[1-5]0|(?:1\d\d|2[0-4]\d)/[4-9]\d",
    r"\d+-(?:a|for|of|to|in|on|by)-(?:\d+|[a-z]+)|1000?s(?= of\b)",
    r"\d*(?:1st|2nd|3rd|\dth)(?:-[a-z]+)*|\d{1,2}/\d-inch",
    rf"(?:{_BEFORE_DECADES})'?\d0'?s|'\d0s|(?:mid-)?\d{{4}}'?s",
    rf"(?:{NUMBER}|\.\d+)(?:-[a-z]{{3,}})+",
    rf"(?!\d{{1,2}}-\d{{4}}\b|{_YEAR_OR_MONTH}){_PLAIN_NUMBER}(?:\s?%)?\s?[-–]\s?{NUMBER}(?:\s?%)?",
    # "at 6.30" may be a time.
    rf"[-−]?(?!(?:(?<=\b[Aa]t )|(?<=\b[Bb]y )|(?<=\b[Aa]fter )|(?<=\b[Uu]ntil )|(?<=\b[Bb]efore ))\d{{1,2}}\.[0-5]\d\b)(?:{_PLAIN_NUMBER}|\.\d+)(?:\s?%)?",
)
# Matches the space between two sentences. The space of "Vol. II" is not matched, because the full
# stop belongs to the abbreviation. The space after the numeral of a heading, such as "II.", is not
# matched either.
_SENTENCE_ENDS = re.compile(
    r"(?<=[.!?])(?<!\b\w\.)(?<!^[IVX]{2}\.)(?<!^[IVX]{3}\.)(?<!^[IVX]{4}\.)\s+(?![IVXLC]{2,}\b)(?=[A-Z\"'“])"
)
_LEFT, _RIGHT = r"(?<![\w/.,:$£€¥+*=^<>~-])", r"(?![\w/+*=^<>°²³·%-]|:\S|[.,]\w)"
_CERTAIN = re.compile(
    "|".join([HEADING.pattern, ADDRESS, *(f"{_LEFT}(?:{x}){_RIGHT}" for x in _CERTAIN_FORMS)])
)
_PUNCTUATION = "\"'“”‘’()[]{}«»,;:!?…–—-*_"
# Letters without a vowel, such as an unknown unit or "Hwy".
_NO_WORD = re.compile(
    r"(?!(?:[Hh]m+|[Mm]+|[Ss]h+|[Pp]s+t|[Tt]sk|[Bb]r+|nth|Mrs?|Ms|Dr|St|Mt|Ft)$)"
    r"(?:[B-DF-HJ-NP-TV-XZb-df-hj-np-tv-xz][b-df-hj-np-tv-xz]+|[b-df-hj-np-rtv-xz]|\w*[KHkh]wy)"
)
# Matches words of 3 to 5 letters with a vowel. Words that begin with the listed letters, such as
# "tsar" and "khaki", are excluded, because they are read reliably.
_SHORT_WORD = re.compile(
    "(?!etc|yacht|fjord|hertz|cz|dh|kh|ll|mn|pt|sv|ts|tz|zh)(?=[a-z]{0,4}[aeiouy])[a-z]{3,5}"
)
# Short words with a capital letter inside, such as "NaCl" and "HCl". The expressions PhD, MSc and BSc are
# excluded, because they have their own rules.
_CAPITAL_INSIDE = re.compile(
    r"(?!(?:PhD|MSc|BSc|pH|iOS)s?$)(?=.{2,4}$)(?:[A-Za-z]*[a-z][A-Z][A-Za-z]*|[A-Z]{2,3}(?!s$)[a-z]{1,2})"
)
# Letters of other scripts than Latin. The English rules transliterate such words.
_OTHER_SCRIPT = re.compile("[^\\W\\d_\u0000-\u024f\u1e00-\u1eff]")
# Matches feet and inches (5'3"), footnote numbers ([1]), grades (A-), a hyphen and a letter (-b),
# signs of comparison (<=), and characters that are written as in HTML (&amp;).
_SIGNS = re.compile(
    r"(?!\d{1,2}'\d{1,2}\"[,.;:)]?$)(?:[^'\"“]*\d['\"](?!s\b).*|.*\[\d+\].*|[A-F]-[,.;:]?|-[A-Za-z]|[<>!]=?|[<>]{2}|.*&[a-z]+;.*)"
)
# Short forms of months, of days and of "your" that the cleaner does not change if no number is next
# to them. Short forms that are also words, such as "sun", are not listed.
_SHORT = set("oct nov dec feb aug apr jul sept mon tue tues thu thurs fri ur ie eg".split())
# Words and names after which Roman numerals are converted reliably.
_BEFORE_NUMERALS = {
    *COUNTED,
    *COUNTED_OR_LETTERED,
    *MONARCHS,
    *map(str.capitalize, BEFORE_NUMBERS),
    *("War", "And", "To"),
}
_OPENER = rf"{_any_of(OPENERS)}\b"
# In "James I wrote", the letter may be a numeral or a pronoun. Before these verbs, the letter is
# certainly a pronoun. In "Robert I. Brown", the letter is an initial.
_FIRST = re.compile(
    rf"({'|'.join(MONARCHS)}) I(?![\w'’]|\.\w|\.\s(?!{_OPENER})[A-Z]|\s(?:am|have|haven't|do|don't|guess|hope|mean)\b)"
)
_INCHES = re.compile(MAYBE_INCHES)
_SURE_INITIALS = (
    rf"(?<=[Tt]he ){_any_of(INITIALS_BEFORE)}\b(?! gate| operator)|AM\s(?:radio|and FM)"
)
# Matches expressions with two usual meanings. Some of these expressions also match
# `_CERTAIN_FORMS`, but they are uncertain.
_AMBIGUOUS = re.compile(
    "|".join(
        [
            # "No" at the start of a sentence may be the word "no", or may mean "number". The same
            # is true of "no." before a number.
            r"(?:^|(?<=[.!?]\s))No \d{1,3}\b(?![,.:/-]\d|-?\s?year)",
            NO_BEFORE_COUNT,
            MONTH_AND_DAY,
            rf"\bIIII\b|\bMS\.(?=\s[a-z])|\b4 (?:{DAY_NAMES})\b",
            # "V. Storms at Sea" may begin with a numeral, and "V. Putin" with an initial.
            rf"(?!{HEADING.pattern})^[IVX]\.(?=\s[A-Z][a-z]+\s[^.!?]*$)",
            # Short words in capitals may be abbreviations that are spelled out letter by letter, as
            # in "ICE agents". After "the", the words in INITIALS_BEFORE are certainly such
            # abbreviations.
            rf"(?<![A-Z]{{2}} )(?<![\w.&'-])(?<!\d )(?!{_SURE_INITIALS})(?:{_any_of(WORDS_IN_CAPITALS - NEVER_INITIALS)})\b(?![.&'-]\w|\s(?:[A-Z]{{2}}|[IVX]+\b))",
            # "Rd." may mean "round" or "road". "Sr." may be a Spanish title, or mean "sister" or
            # "senior". "c." may mean "chapter".
            r"\b[a-z]+ Rd\b\.? ?\d+\b|(?<!\bAct )\(c\. \d{1,3}\)|(?:^|\b[a-z]+ )Sr\.?(?=$|\s[A-Z])",
            # The short form of a state may also be another word, as in "Pa. died" and "Miss.
            # Smith".
            rf"(?!{BEFORE_STATES})\b(?<!-)(?<!\.\sand\s)(?<!\.\sor\s){_any_of(STATES_AFTER_TOWNS)}\.(?=[,;]?\s\w)(?!\s(?:and|or) [A-Z][a-z]+\.)|^Miss\.$",
            # "A" after a number may be a letter or mean "ampere". Four digits before "hours" may be
            # a time of day or a duration.
            rf"(?<![\d:.,])\d+(?:\.\d+)? A(?=[,;:)]|\.(?!\w|\s?[Mm]\b)|$)|(?<!\bat )(?!0){MILITARY_TIME}",
            # After the name of a product, 23.10 may be a version. A version is read "twenty-three
            # ten".
            r"(?<=[a-z,] )[A-Z][A-Za-z]+ \d{1,2}\.(?:\d0|0\d)(?![\w%]|[.,:/-]\d|\s(?:percent|[a-z]{3,}s\b|[mbt]r?illion))",
            # "3g" may be grams or a mobile network.
            r"(?<![\d.,])[2-5]g\b(?! of)",
            # In "from 9.30 to 11.15", the numbers may be times of day.
            r"\b(?:from|between) \d{1,2}\.[0-5]\d (?:to|and|until|till) \d{1,2}\.[0-5]\d(?![\d%])",
            # In chats, "2" and "4" may mean "to", "too" and "for".
            r"\b(?:me|u|you) 2(?=[.,!?]|$)|(?<=[a-z] )[24] (?:do|go|be|see|get|say|me|u|ur|you|your|my|him"
            r"|her|us|them|ever|it|know|good|late|much|sale|real)\b|\b(?:go|going|come|back|wanna|gonna|want|need) [24] (?!\w+s\b)[a-z]+\b",
            # "IT" and "US" are read as letters, but may be pronouns.
            r"\b(?:do|did|done|doing|love|hate|like|want|need|get|got|make|made) IT\b",
            r"\b(?:tell|told|give|gave|let|help|ask|show|to|with|for) US(?=[.,;!?]|$)",
        ]
    )
)
# Matches a number with spaces, which may separate thousands: "1 234". The rules read 10 000 reliably.
_SPACED_NUMBER = re.compile(
    r"(?<![\d+.,:/-])(?<!\d )(?!0)\d{1,3}(?: \d{3})+(?<! 000)(?! ?\d|[-–/:]\d)"
)
# Matches a short word that ends with a consonant and a full stop, but does not end a sentence.
_ABBREVIATION = re.compile(r"\w{0,4}[^\W\d_aeiouy]\.(?:,|\s+(?:[a-z\d]|[B-HJ-Z]\b))")


def uncertain_expressions(text: str, cleaner_names: Sequence[str]) -> list[Uncertain]:
    """Return the expressions that may be converted to the wrong words, in the order of the text.

    Args:
        text: a text without tags (text/tags.py).

    Returns:
        An empty list if the cleaners do not include `english_cleaners_corrected`.
    """
    if CORRECTED not in cleaner_names:
        return []
    phones = IPA_SPAN if PHONES in cleaner_names else ARPABET_SPAN
    text = plain_characters(read_brackets(phones.sub("", text)))
    return [one for piece in _pieces(text) for one in _uncertain_in(piece)]


def _pieces(text: str) -> Iterator[str]:
    """Yield the sentences of a text. Long sentences are cut into pieces, because the time for
    comparing a piece with its reading grows with the square of its length."""
    for sentence in _SENTENCE_ENDS.split(text):
        yield from textwrap.wrap(
            sentence, MAX_CHARACTERS, break_long_words=False, break_on_hyphens=False
        )


def _uncertain_in(text: str) -> list[Uncertain]:
    """Return the uncertain expressions in a sentence."""
    certain = _CERTAIN.sub(lambda match: re.sub(r"\S", "a", match[0]), text)
    words = [*re.finditer(r"\S+", text)]
    uncertain = [
        _is_uncertain(certain, *word.span()) or bool(_SIGNS.fullmatch(word[0])) for word in words
    ]
    numerals = [_is_numeral(word[0].strip(f".{_PUNCTUATION}")) for word in words]
    in_inches = {
        max(match.end("number"), match.end("fraction"))
        for match in _INCHES.finditer(text)
        if not _is_after_name(text, match.start())
    }
    # One list per ambiguous expression: for each word of the text, whether the word belongs to the expression.
    ambiguous = [
        [match.start() < word.end() and word.start() < match.end() for word in words]
        for pattern in (_SPACED_NUMBER, _AMBIGUOUS)
        for match in pattern.finditer(text)
    ]
    for i, word in enumerate(words):
        if word.end() in in_inches or any(is_inside[i] for is_inside in ambiguous):
            uncertain[i] = True
    # After other names, a numeral may be a number or an ordinal: "Rocky III", "Henry Watts III".
    for i, before in enumerate(words[:-1]):
        if numerals[i + 1] and before[0].rstrip(".").capitalize() not in _BEFORE_NUMERALS:
            uncertain[i + 1] = True
        first = _FIRST.match(text, before.start())
        if first and f"{first[1]} the first" not in read_english(text):
            uncertain[i + 1] = True
    if not (any(uncertain) or any(numerals) or _has_short_form(text)):
        return []
    found = []
    read = read_english(text).split()
    aligned = [*_aligned([word[0] for word in words], read)]
    for is_inside in ambiguous:
        aligned = [*_joined(aligned, is_inside)]
    for span, reading in aligned:
        expression = text[words[span.start].start() : words[span.stop - 1].end()]
        if words[span.stop - 1].end() in in_inches:
            expression, reading = f"{expression} in", f"{reading} in"
        is_spelled = _comparable(reading).replace(" ", "") == _comparable(expression)
        is_unchanged_numeral = any(numerals[span]) and is_spelled
        if any(uncertain[span]) or is_unchanged_numeral or _has_short_form(reading):
            found.append(_shown(expression, reading))
    return found


def _is_after_name(text: str, index: int) -> bool:
    """Return whether a number belongs to the word before it, as in "Symphony No. 5 in"."""
    before = text[:index].split()
    return bool(before) and (before[-1][-1] == "." or (len(before) > 1 and before[-1].istitle()))


def _shown(expression: str, reading: str) -> Uncertain:
    """Remove the punctuation around an expression, and around the words of its reading."""
    expression, reading = expression.strip(_PUNCTUATION), reading.strip(_PUNCTUATION)
    if expression != reading:  # keep the full stop of an abbreviation that is read unchanged
        expression, reading = expression.rstrip("."), reading.rstrip(".")
    return Uncertain(expression, reading)


def uncertain_notes(text: str, cleaner_names: Sequence[str]) -> list[str]:
    """Return notes about a text for an English model: a note if the text is probably not English,
    and a note about expressions that may be read wrongly."""
    notes = []
    if uses_english_rules(cleaner_names) and (language := language_of(text)):
        notes.append(f"the text looks like {language}, but this model reads all texts as English")
    if found := uncertain_expressions(text, cleaner_names):
        notes.append(f"these expressions may be read wrongly: {describe(found)}. {ADVICE}")
    return notes


def describe(found: Sequence[Uncertain]) -> str:
    """Format expressions and the words that are spoken for them, for a message."""
    shown = [
        f"{one.expression!r} without a change"
        if one.expression == one.reading
        else f"{one.expression!r} as {one.reading!r}"
        for one in found[:MAX_SHOWN]
    ]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _is_uncertain(text: str, start: int, end: int) -> bool:
    """Return whether the word from `start` to `end` may be converted to the wrong words.

    In `text`, the expressions that match `_CERTAIN_FORMS` must already be replaced with letters.
    """
    if _ABBREVIATION.match(text, start):
        return True
    word = "".join(filter(str.isprintable, text[start:end]))
    word = word.strip(_PUNCTUATION).rstrip(".").strip(_PUNCTUATION)
    if len(word) > 1 and _OTHER_SCRIPT.search(word):
        return True
    if not any(map(str.isalnum, word)):
        # A sequence of symbols without letters and digits, such as "***", is not spoken, so it
        # cannot be read wrongly. text/unspoken.py warns about symbols that are not spoken.
        return False
    if not all(x.isalpha() or x in "'’&-:—" for x in word):
        return True
    if word in SPELLED_IN_CHATS:
        return False
    if word.lower() in CHAT or (_SHORT_WORD.fullmatch(word) and not is_pronounceable(word.upper())):
        return True
    return bool(_NO_WORD.fullmatch(word) or _CAPITAL_INSIDE.fullmatch(word))


def _has_short_form(text: str) -> bool:
    return not _SHORT.isdisjoint(re.split(r"\W+", text.lower()))


def _is_numeral(word: str) -> bool:
    """Return whether a word is a Roman numeral of several letters, such as IV, iv or I-III."""
    has_usual_letters = word.isupper() or set(word) <= set("ivx-–")
    return (
        len(word) > 1
        and has_usual_letters
        and all(map(roman_value, re.split("[-–]", word.upper())))
    )


def _aligned(words: list[str], read: list[str]) -> Iterable[tuple[slice, str]]:
    """Yield written words with the words that are spoken in their place. Words that are spoken as
    written are yielded one by one, and other words in groups."""
    same = [_comparable(word) for word in words]
    matcher = difflib.SequenceMatcher(None, same, [_comparable(x) for x in read], autojunk=False)
    for tag, start, end, read_start, read_end in matcher.get_opcodes():
        if tag == "equal":
            for i in range(end - start):
                yield slice(start + i, start + i + 1), read[read_start + i]
        elif end > start:
            # "1:1 to begin" is read as "one to one to begin". SequenceMatcher may align the first "to"
            # with the written "to", so that the reading of 1:1 is too short. To find the whole
            # reading, read 1:1 without the rest of the text.
            alone = read_english(" ".join(words[start:end])).split()
            if read[read_start : read_start + len(alone)] == alone:
                read_end = max(read_end, read_start + len(alone))
            yield slice(start, end), " ".join(read[read_start:read_end])


def _joined(aligned: list[tuple[slice, str]], is_inside: list[bool]) -> Iterable[tuple[slice, str]]:
    """Join the items of `aligned` that belong to one expression into a single item.

    Args:
        is_inside: for each written word, whether the word belongs to the expression.
    """
    inside = [item for item in aligned if any(is_inside[item[0]])]
    for item in aligned:
        if item not in inside:
            yield item
        elif item is inside[-1]:
            span = slice(inside[0][0].start, item[0].stop)
            yield span, " ".join(reading for _, reading in inside)


def _comparable(word: str) -> str:
    return word.lower().strip(f".{_PUNCTUATION}")
