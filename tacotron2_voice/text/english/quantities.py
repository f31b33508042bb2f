"""Define rules for expressions with numbers: dates, times, telephone numbers, ranges, amounts of
money, amounts with units, fractions, arithmetic and decades. english/__init__.py applies these
rules."""

import re

from tacotron2_voice.text.english.numbers import (
    CURRENCY,
    Rule,
    plural_of,
    rule,
    spell_digits,
    spell_fraction,
    spell_number,
    spell_number_or_year,
)
from tacotron2_voice.text.english.words import (
    BIBLE,
    CODES,
    CURRENCIES,
    CURRENCY_CODES,
    DAYS,
    MONTHS,
    NUMBERED_CODES,
    OPENERS,
    PER,
    REGIONS,
    SHORT_BIBLE,
    STREETS,
    UNITS,
)

Match = re.Match[str]

NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"


_SENTENCE_ENDS = re.compile(
    rf"['\")\]”]*(?:\s*$|\s+['\"(“]?(?:{'|'.join(sorted(OPENERS, key=len, reverse=True))})\b)"
)
# Matches a capitalized word, except the words of dates and addresses, such as "May" and "Suite".
_CAPITALIZED_WORD = re.compile(
    r"['\")\]”]*\s+['\"(“]?(?!(?:Apt|Suite|Ste|Unit|Room|Rm|Bldg|Floor|[NS][EW]"
    rf"|{'|'.join(map(str.capitalize, [*MONTHS, *MONTHS.values(), *DAYS, *DAYS.values()]))})\b)[A-Z][a-z]"
)


def full_stop(match: Match, before_names: bool = False) -> str:
    """Return "." if the full stop of an abbreviation also ends a sentence, otherwise "".

    Args:
        before_names: if True, every capitalized word after the abbreviation begins a sentence, as
            in "in Jan. Bob left", except the words of dates and addresses. If False, only the words
            in OPENERS begin a sentence, because other words may be part of a name, as in "St. John".
    """
    ends = [_SENTENCE_ENDS, _CAPITALIZED_WORD] if before_names else [_SENTENCE_ENDS]
    is_end = any(pattern.match(match.string, match.end()) for pattern in ends)
    return "." if match[0].endswith(".") and is_end else ""


# ---------------------------------------------------------------------------- dates

_NAMES = list(dict.fromkeys(MONTHS.values()))
_SHORT = [short for short in MONTHS if short != "may"]
# In lower case, "may" and "march" are not months, because they can be verbs.
MONTH = (
    rf"(?:(?i:{'|'.join(name for name in _NAMES if name not in ('may', 'march'))})\b"
    rf"|(?:May|MAY|March|MARCH)\b|(?i:{'|'.join(_SHORT)})\b\.?)"
)
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_NOT_A_DAY = r"(?![\d:/%$]|[.,]\d|\s?(?:[ap]\.?m\b|miles\b|meters\b|steps\b|km\b))"


def _ordinal(number: str) -> str:
    return spell_number(f"{int(number)}th")


def _month(written: str) -> str:
    name = written.lower().rstrip(".")
    return MONTHS.get(name, name)


def _with_year(words: str, year: str | None) -> str:
    if not year:
        return words
    spelled = f"oh {spell_number(year)}" if year[0] == "0" else spell_number_or_year(year)
    return f"{words}, {spelled}"


def _read_numeric_date(match: Match) -> str:
    """Convert a date in digits to words. With slashes, the month comes first (11/25/2026) if this
    is a valid date. With dots, the day comes first (25.11.2026)."""
    first, sign, second, year = match.groups()
    day_first = sign == "." or int(first) > 12
    month, day = (second, first) if day_first else (first, second)
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return match[0]
    name = _NAMES[int(month) - 1]
    words = f"the {_ordinal(day)} of {name}" if day_first else f"{name} {_ordinal(day)}"
    return _with_year(words, year)


def _read_iso_date(match: Match) -> str:
    words = f"{_NAMES[int(match[2]) - 1]} {_ordinal(match[3])}"
    return _with_year(words, match[1]) + (" " if match[4] else "")


def _read_month_first(match: Match) -> str:
    """Convert a date such as Nov. 25, 2026; July 4th; or May 3-5 to words."""
    last = f" to {_ordinal(match[3])}" if match[3] else ""
    return _with_year(f"{_month(match[1])} {_ordinal(match[2])}{last}", match[4])


def _read_day_first(match: Match) -> str:
    """Convert a date such as 25 November 2026; the 4th of July; or 3-5 May to words."""
    first = f"{_ordinal(match[2])} to the " if match[2] else ""
    words = f"{match[1] or 'the '}{first}{_ordinal(match[3])} of {_month(match[4])}"
    return _with_year(words, match[5])


def _read_year_and_month(match: Match) -> str:
    """Convert 2020-03 to words. The expressions 2007-08 and 2005-10 may be ranges of years."""
    year, month = match.groups()
    if int(month) > int(year[2:]):
        return match[0]
    return f"{_NAMES[int(month) - 1]} {spell_number_or_year(year)}"


_CAPITALIZED = "|".join(map(str.capitalize, MONTHS))


def _read_two_months(match: Match) -> str:
    joint = match[2] if match[2].strip() in ("to", "and") else " to "
    return f"{_month(match[1])}{joint}{_month(match[3])}"


_TH = r"(?:st|nd|rd|th)?"
_YEAR = r"(?:(?:,?\s+|-)([12]\d{3})(?![\d:/,]\d|\d))?"
# Matches a month and a day, as in "Sat 3/8" or "your email of 3/4". Elsewhere, 3/4 is a fraction. The
# date 9/11 is excluded, because it is read as "nine eleven".
MONTH_AND_DAY = (
    r"(?P<start>(?:day|\b(?i:" + "|".join(DAYS) + r")\.?),?\s|\b(?:[Oo]n|[Uu]ntil)\s"
    r"|\b(?i:e-?mail|letter|message|memo|note|fax|invoice|order|reservation|booking|appointment)s?"
    r"\s(?:of|from|dated|for)\s)"
    rf"(?!9/11\b)(?P<month>0?[1-9]|1[0-2])/(?P<day>{_DAY})(?![\w/-]|[.,]\d|\s(?:of|off|price|cup|mile|inch|hour|a)\b)"
)


def _read_month_and_day(match: Match) -> str:
    name = _NAMES[int(match["month"]) - 1]
    return f"{match['start']}{name} {_ordinal(match['day'])}"


DATE_RULES: list[Rule] = [
    rule(MONTH_AND_DAY, _read_month_and_day),
    rule(
        r"(?<![\w/.-])(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(T(?=\d))?(?![\d-])",
        _read_iso_date,
    ),
    rule(
        r"(?<![\w/.,:#$£€¥-])(?<!\bNo\. )([12]\d{3})[-–](0[1-9]|1[0-2])"
        r"(?![\w/%-]|[.,:]\d|\s*=)",
        _read_year_and_month,
    ),
    rule(rf"\b({MONTH})-(?=[12]\d{{3}}(?![\w-]))", lambda match: f"{_month(match[1])} "),
    rule(r"(?<![\w/.,-])(\d{1,2})([/.])(\d{1,2})\2(\d{4})(?![\w/])", _read_numeric_date),
    rule(r"(?<![\w/.,-])(\d{1,2})(/)(\d{1,2})/(\d{2})(?![\w/])", _read_numeric_date),
    rule(
        rf"(?<![\w.,:/-])([Tt]he\s+)?(?:({_DAY}){_TH}\s?[-–]\s?)?"
        rf"({_DAY}){_TH}(?:\s+(?:of\s+)?|-)({MONTH})"
        rf"(?!\s+(?:be|have|not|{_DAY}\b)){_YEAR}",
        _read_day_first,
    ),
    rule(
        rf"\b({MONTH})\s+({_DAY}){_TH}(?:\s?[-–]\s?({_DAY}){_TH})?(?!\w){_NOT_A_DAY}{_YEAR}",
        _read_month_first,
    ),
    rule(
        rf"\b({_CAPITALIZED})\.?(\sto\s|\sand\s|\s?[-–/]\s?)({_CAPITALIZED})\b(?:\.(?=,|\s[a-z]))?",
        _read_two_months,
    ),
    rule(rf"\b({MONTH})(?=,?\s+[12]\d{{3}}\b)", lambda match: _month(match[1])),
]

# ---------------------------------------------------------------------------- telephone numbers


def _read_groups(match: Match) -> str:
    """Convert groups of digits, such as a telephone number, to words digit by digit, with a comma
    between groups."""
    groups = ", ".join(map(spell_digits, re.findall(r"\d+", match[0])))
    return f"plus {groups}" if match[0].startswith("+") else groups


# Matches a plural noun after a number, such as "people" in "112 people".
_COUNTED = r"\s(?:people|men|women|children|feet|(?!(?:is|was|has|does|as|its|his|this|pages)\b)[a-z]+(?<!s)s)\b"
_NO_COUNT = rf"(?!{_COUNTED})"
COUNT = rf"\d+{_COUNTED}"
# Matches the word "no" before a sentence that begins with a number, as in "The answer is no. 6
# people left."
NO_BEFORE_COUNT = (
    r"(?P<before>\b(?:is|was|said|says|say|answered|replied|voted|meant|means)\s)no\.\s"
    rf"(?P<number>\d{{1,3}})(?={_COUNTED}|\sof\s(?:us|them|you)\b)"
)


def _read_emergency_number(match: Match) -> str:
    """Read 911 digit by digit if the text mentions a call, because a Porsche 911 is not a telephone
    number."""
    is_call = re.search(r"(?i)\b(?:call|dial|phone|ring|emergency)\b", match.string)
    return spell_digits(match[0]) if is_call else match[0]


_NUMBER_SIGN = r"(?:number\b|no\b\.?|num\b\.?|#)"
# Matches a code of digits after a word such as "PIN". A number that counts something is not matched,
# as in "the code has 2000 lines" and "the account is 5000 dollars short". The year of a law is not
# matched either, as in "Penal Code 1860".
SECRET_CODE = (
    rf"\b(?P<name>(?:(?i:(?:{'|'.join(CODES)})(?:\s?{_NUMBER_SIGN})?)"
    rf"|(?i:(?:{'|'.join(NUMBERED_CODES)})\s?{_NUMBER_SIGN})|(?i:phone|mobile|cell|fax)(?=(?::|\sis)\s\d{{7}}))"
    r"(?:\s?[:=]\s?|\s(?:is|was)(?:\snow)?:?\s|\s?)#?)"
    r"(?<!\w)(?<![A-Z][a-z]{3} (?=[12]\d{3}(?!\d)))(?P<code>\d{3,}(?:[\s-]\d{3,})*)"
    rf"(?![\w/%$£€¥(-]|[.,:]\d){_NO_COUNT}"
)


def _read_secret_code(match: Match) -> str:
    """Read a code digit by digit. Return round hundreds ("area code 800") and three digits after
    "error code" unchanged."""
    before = match.string[max(0, match.start() - 20) : match.start()]
    is_status = re.search(r"(?i)\b(?:error|status|response|exit) $", before)
    if len(match["code"]) == 3 and (is_status or match["code"].endswith("00")):
        return match[0]
    groups = ", ".join(map(spell_digits, re.split(r"\D", match["code"])))
    return re.sub(rf"(?i)\s?{_NUMBER_SIGN}\s?", " number ", match["name"]) + groups


def _read_ip_address(match: Match) -> str:
    return " dot ".join(map(spell_number, match[0].split(".")))


def _read_code(match: Match) -> str:
    """Read a number of three or four digits in two parts: 150 -> one fifty, 2490 -> twenty-four
    ninety, 101 -> one oh one."""
    before, hundreds, rest = match.groups()
    if not before.endswith(" "):
        before = f"{before} "
    if rest == "00" and hundreds.endswith("0"):
        return f"{before}{spell_number(hundreds + rest)}"
    if rest == "00":
        return f"{before}{spell_number(hundreds)} hundred"
    zero = "oh " if rest[0] == "0" else ""
    return f"{before}{spell_number(hundreds)} {zero}{spell_number(rest)}"


_SMALL = r"(?:[1-9]\d?)"
PHONE_RULES: list[Rule] = [
    # Groups of small numbers, such as the fertilizer 10-10-10 or the golf scores 68-71-70-69.
    rule(
        rf"(?<![\w.,$£€¥-])(?<!\bcode ){_SMALL}(?:-{_SMALL}){{2,}}(?![\w-])",
        lambda match: ", ".join(map(spell_number, match[0].split("-"))),
    ),
    rule(r"(?<![\w+])\+\d{1,3}(?:[\s.-]?\(?\d{2,4}\)?){2,4}(?!\d)", _read_groups),
    rule(
        r"(?<![\w.,-])(?:1[-.\s])?(?:\(\d{3}\)\s?|\d{3}[-.\s])\d{3}[-.\s]\d{4}(?![\w-])",
        _read_groups,
    ),
    rule(r"(?<![\w.,$£€¥/-])[2-9]\d{2}-\d{4}(?![\w/-]|[.,]\d)", _read_groups),
    rule(r"(?<![\w.,-])0\d{2,4}\s\d{3,4}\s\d{3,4}(?!\d)", _read_groups),  # British phone numbers
    rule(r"(?<![\w.,-])\d+(?:-\d+){2,}(?![\w-])", _read_groups),  # ISBNs and bank card numbers
    rule(r"(?<![\w.,$£€¥-])(?:911|999)(?=\s(?:calls?|operators?|dispatchers?)\b)", _read_groups),
    rule(rf"(?<![\w.,$£€¥-])(?:911|999|112)(?![\w%-]|[.,]\d){_NO_COUNT}", _read_emergency_number),
    rule(r"(?<=\b[A-Z]{2} )\d{5}\b|(?<=[A-Z]\.[A-Z]\. )\d{5}\b", _read_groups),  # postal codes
    rule(r"(?i)(?<=\bdial )\d{3}\b|(?<=\bcall )\d{3}\b" + _NO_COUNT, _read_groups),
    rule(r"(?i)\bext\.?:? (?=\d{3,5}\b)", "extension "),
    rule(SECRET_CODE, _read_secret_code),
    rule(r"(?i)(?<=\bno\. )(\d\d)-(\d{3,5})\b", r"\1, \2"),  # a docket number is not a range
    rule(r"(?<![\w.,])\d{1,3}(?:\.\d{1,3}){3}(?![\w.,]\w)", _read_ip_address),
]

# Matches the number of a paragraph of a law, such as 12(b)(6) or 401(k).
PARAGRAPH_NUMBER = r"(?<![\w.,-])(?P<section>\d{1,4})(?P<parts>(?:\(\d{1,2}\))?\([A-Za-z]\)(?:\((?:[A-Za-z]|\d{1,2})\))*)(?!\w)"


def _read_paragraph_number(match: Match) -> str:
    section = match["section"]
    if len(section) == 3 and section[1:] != "00":
        rest = f"oh {spell_number(section[2])}" if section[1] == "0" else spell_number(section[1:])
        section = f"{spell_number(section[0])} {rest}"
    return " ".join([section, *re.findall(r"\w+", match["parts"].lower())])


CODE_RULES: list[Rule] = [
    # A code of letters and three digits, such as F-150 or BA117, and the number of a route, flight
    # or room. These numbers are read in two parts: "one fifty", "one seventeen".
    rule(r"(?<![\w$-])([A-Z]{1,3})-?([1-9])(\d\d)(?![\w-]|[.,]\d)", _read_code),
    rule(
        r"\b((?:Boeing|Rte\.?|Hwy\.?|Interstate|[Rr]oute|[Hh]ighway|[Ff]light(?:\s[A-Z]{1,3})?|[Rr]oom"
        r"|[Ss]uite|[Mm]odel|(?:[Ee]rror|[Ss]tatus|[Rr]esponse|[Ee]xit)(?:\scode)?)\s)"
        rf"([1-9]\d?)(\d\d)(?![\w-]|[.,]\d){_NO_COUNT}",
        _read_code,
    ),
    rule(r"\b404(?= error)", "four oh four"),
    rule(PARAGRAPH_NUMBER, _read_paragraph_number),
    # In "Figure 2-1", read the hyphen as "dash". In "Figures 2-4", the hyphen means "to".
    rule(
        r"(\b(?i:fig\.|figure|table|section|exhibit)\s\d{1,2})-(?=\d{1,2}\b(?![-/%]|[.,]\d))",
        r"\1 dash ",
    ),
    # The aircraft 747-400 is read as "seven forty-seven four hundred".
    rule(
        r"(?<![\w.,$-])7([0-8]7)-([1-9]00)(?![\w-])",
        lambda m: (
            f"seven {'oh seven' if m[1] == '07' else spell_number(m[1])} {spell_number(m[2])}"
        ),
    ),
]

# ---------------------------------------------------------------------------- ranges


def _read_range(match: Match) -> str:
    """Convert a range, such as 10-12, 1914–1918, 2007-08 or $5-10, or the subtraction "9 - 4" to
    words. The expression "50-50" is not a range."""
    start, sign, end = match.groups()
    if start == end:
        return match[0]
    spaced_hyphen = sign.strip() == "-" and len(sign) > 1
    if spaced_hyphen and start.isdigit() and end.isdigit() and int(start) > int(end):
        return f"{start} minus {end}"
    currency = re.match(CURRENCY, start)
    if currency and end[0].isdigit():  # write the currency of a range only once, at the end
        return f"{start[currency.end() :]} to {currency[0]}{end}"
    if re.fullmatch(r"\d{4}", start) and re.fullmatch(r"0\d", end):
        end = f"oh {spell_number(end)}"
    return f"{start} to {end}"


RANGE_RULES: list[Rule] = [
    rule(r"(?<![\w./-])(\d+)\s?[-–]\s?(?=\d+ \d/\d\b)", r"\1 to "),  # 1-1 1/2 hours
    rule(rf"({CURRENCY}{NUMBER}(?:k|K|m|M|bn|b|B))\s?[-–]\s?(?={CURRENCY}?\d)", r"\1 to "),
    rule(
        rf"(?<![\w.,/:#^-])({CURRENCY}?{NUMBER}(?::\d\d)?(?:\s?[ap]\.?m\b\.?|\s?%|°[CF]?)?)"
        rf"(\s?[-–]\s?)({CURRENCY}?{NUMBER})(?![/\d]|[-–]\d|\s*=)",
        _read_range,
    ),
]

# ---------------------------------------------------------------------------- times


def _read_time(match: Match) -> str:
    """Convert a time, such as 3:45 pm, 10:05, 12:00, 15:30, 7pm, 10.30 am or 12:30:15, to words."""
    hour, minute = int(match["hour"]), match["minute"] or match["after_dot"]
    half = match["half"] or match["bare_half"]
    if hour > 24:
        return match[0]
    words = spell_number(str(hour))
    if minute and minute != "00":
        words += f"{' oh' if minute[0] == '0' else ''} {spell_number(minute)}"
    elif minute and not half:
        whole = f"{words} o'clock" if hour <= 12 else f"{words} hundred"
        words = whole if hour else "midnight"
    if match["second"]:
        words += f" and {spell_number(match['second'])} second{'s' * (match['second'] != '01')}"
    return f"{words} {half.lower()} m{full_stop(match)}" if half else words


def _read_military_time(match: Match) -> str:
    """Convert a time of day, such as the 1630 of "at 1630 hrs", to words."""
    hour, minute = match["hour"], match["minute"]
    spell_part = [
        ("zero " if part[0] == "0" else "") + spell_number(part) for part in (hour, minute)
    ]
    words = f"{spell_part[0]} hundred" if minute == "00" else " ".join(spell_part)
    return f"{words} hours{full_stop(match)}"


def _read_duration(match: Match) -> str:
    """Convert a duration, such as 25:00 min or 2:30 hours, to words."""
    is_hours = match[3].startswith("h")
    large, small = ("hour", "minute") if is_hours else ("minute", "second")
    amounts = [(int(match[1]), large), (int(match[2]), small)]
    words = [f"{spell_number(str(n))} {name}{'s' * (n != 1)}" for n, name in amounts if n]
    return (" ".join(words) or f"zero {large}s") + full_stop(match)


# Matches a time of day in four digits, such as "1630 hrs". A duration, such as "1630 hours of work",
# is not matched.
MILITARY_TIME = r"(?<![\w.,$£€¥:/-])(?P<hour>[01]\d|2[0-4])(?P<minute>[0-5]\d)\s?(?:hrs?|hours)\b\.?(?!\s(?:of|per|a)\b)"


_STREET = rf"(?:{'|'.join([*STREETS, *map(str.capitalize, STREETS.values())])})"
VERSE_BOOK = rf"{'|'.join(BIBLE)}|(?:{'|'.join(SHORT_BIBLE)})\.(?!\s\d+:\d+\s?[ap]\.?m)"


def _read_verse(match: Match) -> str:
    to = " to " if match[0][-1] in "-–" else ""
    book = SHORT_BIBLE.get(match[1].rstrip("."), match[1])
    return f"{book} {match[2]} {match[3]}{to}"


_HALF = r"\s?(?P<{}>[apAP])(?:\.\s?[mM]\b\.?|[mM]\b)"
_TIME = (
    r"(?<![\w:.,/$£€¥-])(?P<hour>\d{1,2})(?:"
    rf":(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?:{_HALF.format('half')})?"
    rf"|(?:\.(?P<after_dot>[0-5]\d))?{_HALF.format('bare_half')})(?![\d:])"
)
# Matches a ratio after a word such as "scale". Elsewhere, 1:10 is a time of day.
RATIO = (
    r"(?P<before>\b(?i:dilut\w*|mix(?:ed)?|ratios?|scales?|proportions?|odds)"
    r"(?:\s(?:of|at|is|was|were|in|to|with|water|it|them|about)){0,2}\s)"
    r"(?P<first>\d{1,3}):(?P<last>\d{1,4})(?![\d:]|\s?[ap]\.?m\b)"
)
_BEFORE_SUBJECTS = r"(?:the|he|she|it|they|we|I|everyone|everybody|all|most|my|our|his|her|their)\b"


def _read_long_duration(match: Match) -> str:
    """Convert a duration to words: 2:01:09 -> two hours one minute nine seconds."""
    amounts = zip(map(int, match.groups()), ("hour", "minute", "second"), strict=True)
    return " ".join(f"{spell_number(str(n))} {name}{'s' * (n != 1)}" for n, name in amounts if n)


TIME_RULES: list[Rule] = [
    rule(RATIO, r"\g<before>\g<first> to \g<last>"),
    rule(
        r"(?:(?<=\b[Ii]n )|(?<=\bof ))(\d{1,2}):([0-5]\d):([0-5]\d)(?![\d:.]\d|\s?[ap]\.?m\b)",
        _read_long_duration,
    ),
    # British times with a full stop: "By 3.30 the rain had stopped", "the 8.15 from Paddington".
    rule(
        rf"(?:(?<=\b[BbAa][yt] )|(?<=\buntil ))(1?\d)\.([0-5]\d)(?=\s{_BEFORE_SUBJECTS})"
        r"|(?<=\bthe )(1?\d)\.([0-5]\d)(?=\s(?:from|train|bus|to [A-Z]|(?:was|is) due|leaves|left|departs))",
        lambda match: f"{match[1] or match[3]}:{match[2] or match[4]}",
    ),
    # Distinguish times from chapters. "John 3:16" is not a time of day, and "5:3" without the name
    # of a book is not a chapter.
    rule(rf"\b({VERSE_BOOK}) (\d+):(\d+)\b(?:[-–](?=\d))?", _read_verse),
    rule(r"\b(\d{1,2}):00(?=\s+o'clock)", r"\1"),
    rule(
        rf"(?:(?<=\b[Aa]t )|(?<=\b[Bb]y )|(?<=\bfrom )|(?<=\buntil )|(?=0|\d\d(?!00)\d\d\shrs)){MILITARY_TIME}",
        _read_military_time,
    ),
    rule(r"(?<![\w:.,])(\d{1,3}):([0-5]\d)\s?(min|minutes|hrs|hours)\b\.?", _read_duration),
    rule(_TIME, _read_time),
    rule(r"(?<![\w:.,])(\d+):(\d+)(?![\d:]|\.\d)", r"\1 to \2"),
]

# ---------------------------------------------------------------------------- amounts

_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_MAGNITUDES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "tn": "trillion"}
_MAGNITUDES |= {"mm": "million", "t": "trillion", "mn": "million"}
_PER = {unit: singular for unit, (singular, _) in UNITS.items()} | PER
_POWERS = {"2": "square ", "²": "square ", "3": "cubic ", "³": "cubic "}
_FRACTION = r"\d{1,3}/(?:[2-9]|[1-9]\d{1,2})(?![\d/])"
_UNIT = "|".join(map(re.escape, sorted(UNITS.keys() - {"in"}, key=len, reverse=True)))
# Matches the position before a lowercase word that may be a noun, as in "a 5 kg bag". Prepositions,
# verbs and other words in this list are not nouns, and neither are words that end with "ed" or "ly".
_NOUN = (
    r"(?=\s+(?!(?:about|above|after|and|are|as|at|be|before|below|between|but|by|came|comes|could|each"
    r"|for|from|goes|had|has|have|he|if|in|into|is|it|less|made|may|might|more|not|of|off|on|or|out|over"
    r"|thousand|[mbt]r?illion|paid|per|plus|she|should|since|so|spent|than|that|the|they|to|under|until|up|was|we|went|were"
    r"|when|which|while|who|will|with|worth|would|you|[a-z]+ed|[a-z]+ly)\b)[a-z])"
)
_NOUN_FOLLOWS = re.compile(_NOUN)
# Matches a device that an amount describes even without an article, as in "60W bulb".
_DEVICE = re.compile(
    r"\s(?:LED|light|lamp|bulb|battery|batteries|charger|adapter|motor|heater|speaker|supply|pin|rail|relay"
    r"|regulator|resistor|capacitor|fuse|outlet|socket|output|input|logic|signal|transformer|inverter)s?\b"
)


# Matches a word after "in" that shows that "in" may be a preposition, as in "5 in the morning",
# "1 1/2 in total" and "2 1/2 in length".
AFTER_IN = (
    r"(?:(?:\d|[A-Z])|(?:a|an|the|all|any|both|each|every|some|this|that|these|those|my|your|his|her"
    r"|its|our|their|which|what|and|or|of|to|with|from|between|one|two|three|four|five|six|seven"
    r"|eight|nine|ten|twelve|twenty|fifty|hundred|total|attendance|stock|favou?r|number|weight|front|addition|turn|order|use|bed|hand|town|class|school|case"
    r"|it|him|them|there|here|general|particular|fact|time|early|late|spring|summer|autumn|fall"
    r"|winter|straight|just|under|over|about|less|more|most|such|case|line|place|prison|jail|custody"
    r"|hospital|reserve|court|cash|debt|play|good|succession|sequence|part|public|private"
    r"|only|exactly|nearly|almost|another|other|different|many|several|round|game|service)\b)"
)

_DIMENSIONS = r"(?:length|width|height|depth|diameter|thickness|size|circumference)\b"
_NOT_INCH = rf"\s(?:{AFTER_IN}|{_DIMENSIONS})"
# Matches inches that the text writes as "in" without a full stop, but not the preposition "in".
_INCH = (
    rf"(?:in(?=[.),;])|(?<=\d)in|(?:(?<=\d-)|(?<=\d/[248] )|(?<=\d/16 )|(?<=\d/32 ))in(?!{_NOT_INCH})"
    r"|(?<=\d )in(?=\s(?:wide|long|tall|thick|deep|high)[.,;]))"
)
_BY_INCHES = rf"in\.? (?:x|×|by) (?P<width>{NUMBER}) in\b(?!\s[A-Z\d]|\s(?:the|a)\b)"
# Matches a number and "in", which may mean inches or be a preposition: "a 5 in pipe".
MAYBE_INCHES = (
    r"(?<![\w.,$£€¥/:–-])(?<!in x )(?<!in × )(?<!in by )(?P<number>\d{1,3}(?:\.\d+)?)\sin(?=\s[a-z])"
    rf"(?!\s{AFTER_IN}|\s(?:x|×|by)\s\d+ in\b|\s(?:wide|long|tall|thick|deep|high)[.,;])"
    rf"|(?P<fraction>\d/(?:[248]|16|32))\sin(?=\s{_DIMENSIONS})"
)


# Matches the position after a number and "A" if the "A" may mean "ampere", as in "a 10 A fuse".
_AMPERES = r"(?=\s?(?:[,;:)/]|\.(?!\w|\s?[Mm]\b)|$)|\s(?:fuse|breaker|power|current|supply|circuit|plug)\b)"
_LETTERED = re.compile(
    r"(?i)\b(?:room|flat|apt|apartment|unit|suite|section|block|row|seat|gate|class|grade|no|number"
    r"|platform|exhibit|bus|route|hall|house|level|part|chapter|page|figure|table|type)\.? $"
)


def _read_amperes(match: Match) -> str:
    """Expand the "A" of "10 A" to "amperes", but keep the letter "A" in "room 10 A"."""
    if _LETTERED.search(match.string, max(0, match.start() - 20), match.start()):
        return match[0]
    is_singular = match[1] == "1" or match.string[match.end() + 1 : match.end() + 2].isalpha()
    return f"{match[1]} ampere{'' if is_singular else 's'}"


# Matches a noun that an amount of money describes, even if there is no article before the amount, as
# in "$25 deposit".
_PRICED = (
    r"(?:bill|bonus|bonuses|bounty|budget|check|cheque|coin|contract|coupon|deal|deposit|discount|fee|fine"
    r"|fund|grant|investment|lawsuit|loan|note|prize|refund|reward|settlement|surcharge|ticket|voucher)s?\b"
)


def _read_bill(match: Match) -> str:
    article, currency, amount, magnitude = match.groups("")
    return f"{article}{amount}{magnitude} {CURRENCIES[currency][0]}"


def _read_unit(match: Match) -> str:
    """Expand the unit in an amount such as 5 kg, 1 1/2 ft, 3/4 mi, 100 m², 3 km/h or a 5 kg bag."""
    article, whole, fraction = match["article"] or "", match["whole"], match["fraction"] or ""
    noun_follows = _NOUN_FOLLOWS.match(match.string, match.end())
    is_device = _DEVICE.match(match.string, match.end()) and not match["per"]
    describes = is_device or (noun_follows and (article or match["join"] == "-"))
    is_singular = not whole or describes or (whole == "1" and not fraction)
    name = _POWERS.get(match["power"], "") + UNITS[match["unit"]][0 if is_singular else 1]
    if match["per"]:
        squared = match["per"] == "s" and match["per_power"]
        power = "" if squared else _POWERS.get(match["per_power"], "")
        name += f" per {power}{_PER[match['per']]}{' squared' if squared else ''}"
    if not whole and article and describes:
        fraction = "half" if match["only"] == "1/2" else spell_fraction(match["only"])
        return f"{article}{fraction} {name}"
    if not whole:
        the = "an" if re.match("[aeio]|hour", name) else "a"
        parts = "half" if match["only"] == "1/2" else f"{spell_fraction(match['only'])} of"
        return f"{article}{parts} {the} {name}"
    if whole.isdigit() and len(whole) == 4:
        whole = f"{int(whole):,}"  # add a comma, so that later rules do not treat 1984 as a year
    return f"{article}{whole}{fraction}{match['join'] if describes else ' '}{name}"


def _read_fraction(match: Match) -> str:
    """Convert fractions, such as 2/3 and 1 1/2, and expressions that only look like fractions
    (24/7, 20/20 and 120/80) to words."""
    whole, above, below = match.groups()
    numerator, denominator = int(above), int(below)
    words = spell_fraction(f"{above}/{below}") if numerator and denominator > 1 else ""
    if whole and words and numerator < denominator:
        return f"{spell_number(whole)} and {re.sub('^one ', 'a ', words)}"
    if numerator == denominator or (numerator, denominator) in ((24, 7), (9, 11)):
        words = f"{spell_number(above)} {spell_number(below)}"
    elif numerator + denominator == 100 and numerator % 10 == 0 and numerator > denominator:
        words = f"{spell_number(above)} {spell_number(below)}"  # an 80/20 rule
    elif not words or numerator > denominator > 20:
        words = f"{spell_number(above)} over {spell_number(below)}"
    return f"{whole} {words}" if whole else words


def _read_score(match: Match) -> str:
    """Convert a score, such as the 9/10 of "She got 9/10 in spelling", to words."""
    total = match["of"] or match["out_of"]
    return f"{match['verb'] or ''}{match['first'] or match['last']} out of {spell_number(total)}"


AMOUNT_RULES: list[Rule] = [
    # The rules for amounts with a currency come first, because "$5 m" is five million dollars, not
    # five meters.
    rule(rf"\b({'|'.join(CURRENCY_CODES)})\s?(?=\d)", lambda match: CURRENCY_CODES[match[1]]),
    rule(
        rf"(?<![\w.,])({NUMBER})\s?({'|'.join(CURRENCY_CODES)})\b",
        lambda match: CURRENCY_CODES[match[2]] + match[1],
    ),
    rule(rf"(?<![\w.,$£€¥₹])({NUMBER})\s?([£€¥₹])(?!\d)", r"\2\1"),
    rule(rf"(?<![\w.,$£€¥₹/-])({NUMBER})\s?\$(?!\s?\.?\d)(?!\w)", r"$\1"),
    rule(rf"(?<![\w.,])({NUMBER})\s?¢", lambda m: f"{m[1]} cent{'s' * (m[1] != '1')}"),
    rule(r"(?<![\w.,])(\d{1,2})p\b", lambda m: "1 penny" if m[1] == "1" else f"{m[1]} pence"),
    rule(
        rf"({CURRENCY}\s?{NUMBER})\s?((?i:{'|'.join(_MAGNITUDES)}))\b",
        lambda match: f"{match[1]} {_MAGNITUDES[match[2].lower()]}",
    ),
    rule(
        rf"(?<![\w.,])({NUMBER})\s?(bn|tn)\b",
        lambda match: f"{match[1]} {_MAGNITUDES[match[2]]}",
    ),
    rule(
        rf"(\b(?:[Aa]n?|[Tt]he|[Tt]his|[Ii]ts|[Tt]heir|[Hh]is|[Hh]er|[Mm]y|[Oo]ur|[Yy]our|another|new|proposed) )({CURRENCY})(\d[\d,]*|\d[\d,]*\.\d+(?=\s[mbt]r?illion))(\s(?:thousand|[mbt]r?illion))?{_NOUN}",
        _read_bill,
    ),
    rule(
        rf"()({CURRENCY})(\d[\d,]*|\d[\d,]*\.\d+(?=\s[mbt]r?illion))(\s(?:thousand|[mbt]r?illion))?(?=\s{_PRICED})",
        _read_bill,
    ),
    rule(
        rf"(?<![\w.,])({NUMBER}(?:\s(?:thousand|[mb]illion|trillion))?)\s?/\s?({'|'.join(PER)})\b(?:\.(?=\s[a-z]))?",
        lambda m: f"{m[1]} per {PER[m[2]]}",
    ),
    rule(r"\b([lL])/(?=100\s?km\b)", r"\1 per "),
    rule(r"(?<![\w.,])(\d+)\s?m\s(\d+(?:\.\d+)?)\s?s\b", r"\1 min \2 sec"),
    rule(r"(?<![\w.,])(\d*\.\d+)s\b", r"\1 seconds"),
    rule(r"(?<=\d)\s?([mM])\.([pP])\.([hHgG])\.?(?!\w)", lambda m: f" {m[1]}{m[2]}{m[3]}".lower()),
    rule(r"\bRs\.?\s?(?=\d)", "₹"),
    # Old British money: £3 10s. 6d.
    rule(r"£(\d+)(?=\s\d+s\b)", lambda m: f"{m[1]} pound{'s' * (m[1] != '1')}"),
    rule(
        r"(?:(?<=pounds )|(?<=pound ))(\d+)s\b\.?|\b(\d+)s\.?(?=\s\d+d\b)",
        lambda m: f"{m[1] or m[2]} shilling{'s' * ((m[1] or m[2]) != '1')}",
    ),
    rule(
        r"(?:(?<=shillings )|(?<=shilling ))(\d+)d\b\.?",
        lambda m: "1 penny" if m[1] == "1" else f"{m[1]} pence",
    ),
    rule(
        rf"(?<![\w.,/])({NUMBER}) {_BY_INCHES}",
        lambda match: f"{match[1]} inches by {match['width']} inches",
    ),
    rule(r"(?<!\d)(\d{1,2})\"\s?[x×]\s?(\d{1,2})\"", r"\1 inches by \2 inches"),
    rule(
        r"(?<!\d)(\d{1,3})\"(?= (?:TV|screen|monitor|display|laptop|cubes?|pieces?|singles?)\b)",
        r"\1 inch",
    ),
    rule(
        r"(?<=\bin )(\d)/([48])(?= time\b)", lambda m: f"{spell_number(m[1])} {spell_number(m[2])}"
    ),
    # Rules for units of area and volume ("sq. ft."), for directions in addresses (the W of "W 34th
    # St."), and for inches after feet (the "in" of "5 ft 3 in").
    rule(r"(?<=\d)\s(sq|cu)\.\s?(?=(?:ft|in|mi|yd)\b)", r" \1 "),
    rule(r"(?<=\d)\sfl\.\s?(?=oz\b)", " fl "),
    rule(r"(?<=\d)\ssq\.?\s(?=(?:miles?|feet|foot|inch|yards?|meters?)\b)", " square "),
    # House numbers with four digits are read in pairs of digits, in the same way as years.
    rule(
        rf"(?<![\w.,$£€:/-])([3-9]\d)(\d[1-9]|[1-9]\d)(?=\s(?:[A-Z][a-z]*\.?\s){{1,2}}{_STREET}\b)",
        lambda match: (
            f"{spell_number(match[1])} {'oh ' * (match[2][0] == '0')}{spell_number(match[2])}"
        ),
    ),
    rule(
        r"(?<=\d\s)([NSEW])\.?\s"
        rf"(?=\d+(?:st|nd|rd|th)\b|[A-Z][a-z]+\s{_STREET}\b)",
        lambda match: f"{_DIRECTIONS[match[1]]} ",
    ),
    rule(
        rf"(?<!\.)\b([NSEW])\.\s(?=(?:{'|'.join(REGIONS)})\b"
        rf"|(?:[A-Z][a-z]+|\d+(?:st|nd|rd|th))\s{_STREET}\b)",
        lambda match: f"{_DIRECTIONS[match[1]]} ",
    ),
    rule(
        r"(?<=\dft\s)(\d{1,2})\s?in\b(?!\.)|(?<=\d\sft\s)(\d{1,2})\s?in\b(?!\.)"
        r"|(?<=\d\sft\.\s)(\d{1,2})\sin\b(?!\.)",
        lambda m: f"{m[1] or m[2] or m[3]} inch{'es' * ((m[1] or m[2] or m[3]) != '1')}",
    ),
    rule(rf"(?<![\w.,:])({NUMBER}) A{_AMPERES}", _read_amperes),
    rule(r"(?<![\w.,])(\d+)\s?h\s?(\d+)\s?m\b", r"\1 h \2 min"),
    rule(r"(?<![\w.,])(\d{1,2})\s?st\.?\s(?=\d{1,2}\s?lbs?\b)", r"\1 stone "),
    rule(r"(?<=\d )t\.(?=\s(?!of\b)[a-z])", "tsp"),
    rule(r"(?<=\d)\sdeg\.?\s?([CF])\b", r" °\1"),
    # The rule for units comes before the rule for fractions, because the number before a unit may
    # contain a fraction ("1 1/2 ft").
    rule(
        r"(?P<article>\b[Aa]n?\s)?"
        rf"(?:(?<![\w.,/])|(?<=[1-9][x×]))(?:(?P<whole>{NUMBER}|\.\d+)"
        rf"(?P<fraction>[\s-]{_FRACTION}|\s(?:hundred|thousand|million|billion|trillion))?"
        rf"|(?P<only>{_FRACTION}))"
        r"(?P<join>[\s-]?)(?!(?<=\d)s\b)"  # "20s" means twenties, not 20 seconds
        rf"(?P<unit>{_UNIT}|{_INCH})(?P<power>[²³23])?"
        rf"(?:\s?/\s?(?P<per>{_UNIT}|{'|'.join(PER)})(?P<per_power>[²³23])?)?"
        # If the sentence continues after a unit with a dot ("6 ft. 2 in."), the match includes the
        # dot.
        r"(?![\w²³/-]|'\w)(?:\.(?=[,;:)]|\s+[a-z0-9]))?",
        _read_unit,
    ),
    rule(
        r"(?<![\w.,])(\d{1,2})'\s?(\d{1,2})\"",
        lambda match: f"{match[1]} feet {match[2]} inch{'es' * (match[2] != '1')}",
    ),
    rule(r"(?<![\w.,])(\d+)'\s?[x×]\s?(\d+)'", r"\1 feet by \2 feet"),
    rule(
        r"(?<![\w/.,])(?<!\d[ -])(?P<first>\d{1,3}(?:\.5)?)/(?P<of>10|20|25|50|100)"
        rf"(?=\sin\s(?!{_DIMENSIONS})[a-z])|(?i:(?P<verb>\b(?:got|get|gets|give|gave|rate|rated|scored?)"
        r"\s(?:(?:a|an|it|me|them|him|her|this)\s)?))(?P<last>\d{1,3}(?:\.5)?)/(?P<out_of>10|20|25|50|100)\b",
        _read_score,
    ),
    rule(r"(?<![\w/.,])(?:(\d{1,3})[\s-])?(\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)", _read_fraction),
]

# ---------------------------------------------------------------------------- arithmetic

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))


def _read_power(match: Match) -> str:
    exponent = "".join(SUPERSCRIPTS.get(x, x) for x in match[1]).lstrip("+")
    digits = exponent.lstrip("-")
    if not digits:
        return match[0]
    power = f" to the power of {'minus ' * (exponent != digits)}{spell_number(digits)}"
    return {"2": " squared", "3": " cubed"}.get(exponent, power)


def _read_superscripts(match: Match) -> str:
    return " " + "".join(map(SUPERSCRIPTS.__getitem__, match[0]))


ARITHMETIC_RULES: list[Rule] = [
    rule(r"(?<![^\W\d]{4})(?<=[\w)])([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", _read_power),
    rule(r"(?<=[\w)])\s?\^\s?(-?\d+)", _read_power),
    rule(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", _read_superscripts),  # superscripts that mark a footnote
    rule(r"(?<=\d)(?<!\b0)(\s?)x\1(?=\d)|(?<=\d)×(?=\d)|(?<=[a-z])\s[x×]\s(?=\d+ [a-z])", " by "),
    rule(r"(?<=\d)\s?\*\s?(?=\d)", " times "),
    rule(r"\+/-", "±"),
    rule(r"(?<![\w.,])([2-9]|[1-9]\d+)x(?=\s[a-z])", r"\1 times"),
    rule(r"(?<=\d)\s/\s(?=\d)", " divided by "),
    rule(r"(?<=\d)/(?=\d)", " slash "),
    rule(r"(?<=[\w)])\s?-\s?(?=\d+\s*=)|(?<=[\w)])\s?−\s?(?=[\w(])", " minus "),
    rule(rf"({CURRENCY})-(?=\d)", r"-\1"),
    rule(rf"(?<![\w.)%\]-])[-−](?={CURRENCY}?\.?\d)", "minus "),
    rule(rf"(?<![<\w])<\s?(?={CURRENCY}?\.?\d)|(?<=\w)\s<\s(?=\w)", " less than "),
    rule(rf"(?<![->=\w])>\s?(?={CURRENCY}?\.?\d)|(?<=\w)\s>\s(?=\w)", " greater than "),
    rule(rf"(?<![\w~])~\s?(?={CURRENCY}?\.?\d)", "about "),
]

# ---------------------------------------------------------------------------- decades and similar
# expressions


def _read_plural(match: Match) -> str:
    """Convert the plural of a number, such as 1990s, '90s, 80's or 747s, to words."""
    if match[1] in ("100", "1000"):
        return "hundreds" if match[1] == "100" else "thousands"
    return plural_of(spell_number_or_year(match[1]))


PLURAL_RULES: list[Rule] = [
    rule(r"(?<![\w.,'])'?(\d{1,4})s\b", _read_plural),
    rule(r"\b(\d\d)ers\b", lambda match: f"{spell_number(match[1])}ers".replace("eers", "ers")),
    rule(r"(?<![\w.,'])'?(\d{1,3}0)'s\b", _read_plural),
    rule(r"(?<!\w)'(?=\d\d\b(?!'))", ""),  # remove the apostrophe of "the class of '98"
]
