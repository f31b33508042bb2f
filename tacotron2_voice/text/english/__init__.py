"""Convert English text to the words that a person would read aloud.

    read_english("At 3:45 pm on Nov. 25, 5 kg cost $3.50.")

The rules run in order, and each rule gets the result of the previous rule. Each rule writes words
in lower case, and later rules do not change words in lower case. Most rules convert the text around
a number, and the last rules convert the number itself to words. The comments in `RULES` explain the
order of the rules.
"""

import re
import unicodedata

from tacotron2_voice.text.english.numbers import (
    CORRECTED_NUMBER_RULES,
    Rule,
    rule,
    spell_digits,
    spell_number,
    spell_number_or_year,
)
from tacotron2_voice.text.english.quantities import (
    AMOUNT_RULES,
    ARITHMETIC_RULES,
    CODE_RULES,
    COUNT,
    DATE_RULES,
    MONTH,
    NO_BEFORE_COUNT,
    PHONE_RULES,
    PLURAL_RULES,
    RANGE_RULES,
    SUPERSCRIPTS,
    TIME_RULES,
    full_stop,
)
from tacotron2_voice.text.english.words import (
    ABBREVIATIONS,
    ADDRESS_SIGNS,
    BEFORE_LETTERS,
    BEFORE_NUMBERS,
    CODAS,
    CODES,
    COUNTED,
    COUNTED_OR_LETTERED,
    COUNTIES,
    CROWNS,
    DAYS,
    DOMAINS,
    FILE_ENDINGS,
    FIRST_NAMES,
    HEADINGS,
    INITIALISMS,
    INITIALS_BEFORE,
    LABELS,
    MONARCHS,
    MONTHS,
    NUMBERED_CODES,
    NUMBERED_WITH_I,
    ONSETS,
    OPENERS,
    SAINTS,
    SIGNS,
    SPELLED_IN_ADDRESSES,
    SPELLED_IN_CHATS,
    STATE_CODES,
    STATES,
    STATES_AFTER_TOWNS,
    STREETS,
    SURE_NUMERALS,
    TIME_ZONES,
    TITLES,
    UNITS,
    WORDS_IN_CAPITALS,
)

Match = re.Match[str]


# Matches the numeral of a heading, as in "II. Storms at Sea". A single letter is a numeral only
# before a word in capitals ("I. THE ARRIVAL") or before a word in OPENERS ("V. The Storm"). Before
# other words, the letter may be an initial, as in "V. Putin".
HEADING = re.compile(
    r"^(?:(X{1,3}(?:IX|IV|V?I{0,3})|IX|IV|VI{1,3}|II|III)\.(?=\s[A-Z])"
    rf"|([IVX])\.(?=\s(?:[A-Z]{{2,}}|(?i:{'|'.join(OPENERS)}|of)\b(?!\.))[^.!?]*$))"
)


def read_english(text: str) -> str:
    """Convert the numbers, times, dates, abbreviations and symbols in a text to words. Text to
    which no rule applies is not changed.
    """
    text = plain_characters(text)
    text = HEADING.sub(lambda match: f"{roman_value(match[1] or match[2])}.", text)
    if not any(character.islower() for character in text):
        text = _without_shouting(text)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


# ---------------------------------------------------------------------------- characters

# Fixed-width spaces, which may separate groups of thousands, or a number and its unit.
_BLANKS = "\u00a0\u2007\u2009\u202f"
_THOUSANDS = re.compile(rf"(?<![\d+.,])\d{{1,3}}(?:[{_BLANKS}]\d{{3}})+(?![{_BLANKS}]?\d)")
# A Greek mu outside Greek words means "micro".
_LONE_MU = re.compile("(?<![\u0370-\u03ff\u1f00-\u1fff])μ(?![\u0370-\u03ff\u1f00-\u1fff])")
_ALIKE = {
    **dict.fromkeys("‘’ʼ′‛", "'"),
    **dict.fromkeys("‐‑﹣－⁃", "-"),
    **dict.fromkeys(_BLANKS, " "),
    **dict.fromkeys("\xad\u200b\u2060\ufeff", ""),
    "⁄": "/",
    "∆": "Δ",
    **{"″": '"', "№": "No.", "℃": "°C", "℉": "°F", "\u2126": "Ω", "∕": "/", "…": "..."},
}


def plain_characters(text: str) -> str:
    """Replace variants of apostrophes, hyphens, spaces, digits, fractions and Roman numerals with
    plain characters."""
    if text.isascii():
        return text
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", ",", match[0]), text)
    text = _LONE_MU.sub("µ", text)
    # A closing quotation mark after a number, without an opening mark before it, means inches.
    text = re.sub(r"^([^“”]*\d)”", r'\1"', text)
    text = re.sub("[\u2160-\u217f]+", _roman_characters, text)
    text = re.sub(r"\b[Nn][º°]\.?\s?(?=\d)", "No. ", text)
    # 3¾ becomes 3 3/4, and ①② becomes 1 2.
    text = re.sub(r"(?<=[\d①-⑳])(?=[¼-¾⅐-⅞①-⑳])", " ", text)
    return "".join(map(_plain_character, text))


def _plain_character(character: str) -> str:
    if character.isascii() or character in SUPERSCRIPTS or character in SIGNS:
        return character
    if character in _ALIKE:
        return _ALIKE[character]
    same = unicodedata.normalize("NFKC", character).replace("\u2044", "/")  # NFKC turns ½ into 1⁄2
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    full_width = "\uff01" <= character <= "\uff5e" or same in SIGNS
    plain = same.isascii() and same.replace("/", "").isalnum()
    return same if plain or full_width else character


def _read_greek_letter(match: Match) -> str:
    """Replace a single Greek letter with its name: "β-carotene" becomes "beta-carotene". Words that
    consist of Greek letters are transliterated later."""
    # A Unicode name is, for example, "GREEK SMALL LETTER FINAL SIGMA". Unicode writes "LAMDA"
    # instead of "LAMBDA".
    name = unicodedata.name(match[0].replace("µ", "μ")).split()[-1].lower()
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    spoken = "lambda" if name == "lamda" else name
    return " " * before.isalnum() + spoken + " " * after.isalnum()


def _roman_characters(match: Match) -> str:
    """Convert Roman numeral characters (Ⅰ to ⅿ) to capital letters after the name of a king, and to
    digits elsewhere."""
    letters = unicodedata.normalize("NFKC", match[0]).upper()
    before = re.search(r"(\w+)\s$", match.string[max(0, match.start() - 20) : match.start()])
    value = roman_value(letters)
    return letters if value is None or (before and before[1] in MONARCHS) else str(value)


_ROMAN_NUMERAL = re.compile(r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman_value(letters: str) -> int | None:
    """Return the value of a Roman numeral (XIV -> 14), or None if the letters are not a Roman
    numeral in its standard form."""
    if not letters or not _ROMAN_NUMERAL.fullmatch(letters):
        return None
    values = [_ROMAN_DIGITS[letter] for letter in letters]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)


# ---------------------------------------------------------------------------- capitals


AFTER_TIME = re.compile(r"\d\s?[AaPp]\.?[Mm]\.?\s$")  # matches the end of a time such as 8 PM


def _without_shouting(text: str) -> str:
    """Convert a text of two or more words in capitals to capitalized words.

    If a whole text is in capitals, the capitals do not show which words are spelled out letter by
    letter. Known initials and Roman numerals stay in capitals.
    """
    # Items of `pieces` with odd indices are words in capitals.
    pieces = re.split(r"(?<![\w.])([A-Z]{2,})(?!\w)", text)
    if len(pieces) < 5:
        return text
    numbered = {*COUNTED, *COUNTED_OR_LETTERED, *MONARCHS, "War"}
    for i in range(1, len(pieces), 2):
        word, name = pieces[i], pieces[i].capitalize()
        before = pieces[i - 2] if i > 1 and pieces[i - 1].isspace() else ""
        after_number = re.search(r"\d\s?$", pieces[i - 1])
        if after_number and word not in UNITS and word.lower() in UNITS:
            word = pieces[i] = word.lower()
        is_zone = word in TIME_ZONES and AFTER_TIME.search("".join(pieces[:i]))
        if is_zone:
            continue
        if name in TITLES or name in STREETS or name in OPENERS or name.lower() in MONTHS:
            pieces[i] = name.lower() if name in OPENERS else name
            continue
        initials = word in INITIALISMS or not re.search("[AEIOUY]", word)
        numeral, unit = before in numbered and roman_value(word), after_number and word in UNITS
        if not (initials or numeral or unit):
            pieces[i] = name
    return "".join(pieces)


def _letters(letters: str) -> str:
    return " ".join(letters.lower().replace(".", ""))


def _read_shouted_it(match: Match) -> str:
    """Convert IT next to a word in capitals to the pronoun "it", as in "I MEAN IT", but not next to
    known initials, as in "IBM IT"."""
    return match[0] if match[1] in INITIALISMS else match[0].replace("IT", "it")


def is_pronounceable(word: str) -> bool:
    """Return whether a word in capitals has a vowel, and begins and ends like an English word."""
    consonants = re.split("[AEIOUY]", re.sub(r"(.)\1{2,}", r"\1", word))  # "yesss"
    onset, coda = consonants[0], consonants[-1]
    is_word = (len(onset) < 2 or onset in ONSETS) and (len(coda) < 2 or coda in CODAS)
    return is_word and len(consonants) > 1


def _read_capitals(match: Match) -> str:
    """Convert a name in capitals to single letters (FBI) or to a word (NASA).

    A name in capitals is spelled out letter by letter if it is in INITIALISMS, has no vowel, or
    begins or ends with consonants that no English word begins or ends with. Any other name becomes
    a word if it has at least four letters or is in WORDS_IN_CAPITALS, and is spelled out otherwise.
    A plural such as TVs is treated like TV's.
    """
    word, ending = match[1], match[2] or ""
    a_word = len(word) > 3 or word in WORDS_IN_CAPITALS
    if a_word and word not in INITIALISMS and is_pronounceable(word):
        return word.lower() + ending
    return _letters(word) + ("'s" if ending else "")


# ---------------------------------------------------------------------------- addresses


def _read_address(match: Match) -> str:
    """Convert an address or file name, such as www.example.com/docs, info@example.org or README.md,
    to words.

    Punctuation at the end is not part of the address, and a final slash is not spoken.
    """
    address = match[0].rstrip(".,;:!?'\")]}")
    rest = match[0][len(address) :]
    words = []
    for piece in re.findall(r"[A-Za-z]+|\d+|.", address.removesuffix("/")):
        if piece.isdecimal():
            words.append(spell_digits(piece) if piece[0] == "0" else spell_number_or_year(piece))
        elif piece.isascii() and piece.isalpha():
            words.append(_word_of_address(piece))
        else:
            words.append(ADDRESS_SIGNS.get(piece, piece))
    return " ".join(words) + rest


def _word_of_address(word: str) -> str:
    letters = word.lower() in SPELLED_IN_ADDRESSES or word in INITIALISMS
    return _letters(word) if letters or not re.search("[aeiouyAEIOUY]", word) else word.lower()


ADDRESS = (
    r"\b(?:https?://|ftp://|www\.)[^\s<>\"]+"
    r"|(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+"
    rf"|(?<![\w@.-])(?:\w[\w-]*\.)+(?:{'|'.join(DOMAINS + FILE_ENDINGS)})\b(?:/[^\s<>\"]*)?"
)


# ---------------------------------------------------------------------------- abbreviations


def _read_abbreviation(match: Match) -> str:
    words = ABBREVIATIONS[match[1].lower()]
    if words in ("for example", "that is", "versus"):
        return words
    return words + full_stop(match, before_names=words == "et cetera")


def _read_title(match: Match) -> str:
    at_the_end = match[0].endswith(".") and not match.string[match.end() :].strip()
    beside_a_name = match.string[match.end() : match.end() + 1].isalpha()
    return TITLES[match[1].capitalize()] + ("." if at_the_end else " " if beside_a_name else "")


# Matches a word after "Assoc." that shows that "Assoc." does not mean "association".
AFTER_ASSOCIATE = r"(?:Prof|Professor|Dean|Dir|Director|Editor|Justice|Producer|Member)\b"
_NAME_FOLLOWS = re.compile(r"\s+([A-Z]\w*)")
_AFTER_PREPOSITION = re.compile(r"\b(?:at|on|onto|along|down|off|near|from|to|of) $")


def _read_street(match: Match) -> str:
    """Expand "St." and "Dr." after the name of a street, as in "Main St." or "Elm Dr.". A title,
    such as "Dr." before a name or after a word that begins a sentence, is not changed here, because
    later rules expand titles.
    """
    before, short = match[1], match[2].capitalize()
    ends = full_stop(match, before_names=short not in TITLES)
    if before in OPENERS or before in TITLES:
        return match[0]
    follows = None if ends else _NAME_FOLLOWS.match(match.string, match.end())
    if short in TITLES and follows:
        if not _is_street(match, before, short, follows[1]):
            return match[0]
        ends = "."
    return f"{before} {STREETS[short]}{ends}"


def _is_street(match: Match, before: str, short: str, after: str) -> bool:
    """Return whether "St." or "Dr." between two capitalized words ends a sentence, as in "Turn at
    Elm Dr. Go left."."""
    if not match[0].endswith("."):
        return False
    if before[0].isdigit():
        return True
    if short == "St":
        return after not in SAINTS
    is_after_preposition = _AFTER_PREPOSITION.search(
        match.string, max(0, match.start() - 20), match.start()
    )
    return bool(is_after_preposition) and not before.endswith("day")  # "on Monday Dr. Smith said"


def _read_no(match: Match) -> str:
    return f"{match['before']}no. {spell_number(match['number'])}"


def _read_before_number(match: Match) -> str:
    return f"{BEFORE_NUMBERS[match[1].lower()].capitalize()} "


def _read_number_of_a_code(match: Match) -> str:
    return "Reference Number " if match[0].startswith("Ref") else "Number "


def _read_dotted_letters(match: Match) -> str:
    return _letters(match[0]) + full_stop(match)


# Matches a word before a month, such as "in" or "last". At the end of a sentence, "Jan." after such
# a word is the month. After other words, "Jan." is the name Jan.
_BEFORE_MONTHS = re.compile(
    r"(?i)\b(?:after|before|by|during|early|end of|every|for|from|in|last|late|mid|next|since|this|until"
    r"|till)[ -]$"
)


def _read_month(match: Match) -> str:
    ends = full_stop(match, before_names=True)
    is_month = _BEFORE_MONTHS.search(match.string, max(0, match.start() - 20), match.start())
    if match[1] in ("Jan", "Mar") and ends and not is_month:
        return match[0]
    return MONTHS[match[1].lower()] + ends


def _read_state(match: Match) -> str:
    return (STATES | STATES_AFTER_TOWNS)[match[1]] + full_stop(match)


# Matches the position before the abbreviation of a state. The position is after a town, after the party
# of a politician ("R-Ky."), or after a preposition.
BEFORE_STATES = (
    r"(?:(?<=[A-Za-z],\s)|(?<=\b[RDI]-)|(?<=\b[Ii]n\s)|(?<=\bof\s)|(?<=\b[Tt]o\s)|(?<=\b[Ff]rom\s))"
)
_LATER_STATES = "|".join(STATES_AFTER_TOWNS)


def _read_states(match: Match) -> str:
    first, last = STATES_AFTER_TOWNS[match[1]], STATES_AFTER_TOWNS[match[3]]
    return f"{first}{match[2]}{last}{full_stop(match)}"


def _read_days(match: Match) -> str:
    days = [DAYS[short.lower()] for short in match.groups() if short]
    return " to ".join(days) + full_stop(match, before_names=True)


def _read_listed_days(match: Match) -> str:
    words = re.sub(rf"\b({DAY_NAMES})\b\.?", lambda x: DAYS[x[1].lower()], match[0])
    return re.sub(r"\s?/\s?", ", ", words) + full_stop(match, before_names=True)


DAY_NAMES = "|".join(sorted(map(str.capitalize, DAYS), key=len, reverse=True))
MONTH_NAMES = "|".join(x.capitalize() for x in MONTHS if x != "may")


# ---------------------------------------------------------------------------- Roman numerals


def _read_regnal_number(match: Match) -> str:
    value = roman_value(match[2])
    return match[0] if value is None else f"{match[1]} the {spell_number(f'{value}th')}"


def _read_roman_number(match: Match) -> str:
    value = roman_value(match[2].upper())
    # The letter I is a pronoun instead of a numeral in "the part I like".
    no_numeral = value is None or (match[2] == "I" and match[1][0].islower())
    return match[0] if no_numeral else f"{match[1]} {value}"


def _read_roman_ordinal(match: Match) -> str:
    value = roman_value(match[1])
    return match[0] if value is None else spell_number(f"{value}th")


def _read_two_roman_numbers(match: Match) -> str:
    first, last = roman_value(match[2]), roman_value(match[4])
    if first is None or last is None or first >= last:  # "Volume I and I went home"
        return match[0]
    joint = " to " if match[3].strip() in ("-", "–") else match[3]
    return f"{match[1]} {first}{joint}{last}"


_KINGS = "|".join(MONARCHS)


def _either_case(words: list[str]) -> str:
    return "|".join(f"[{word[0]}{word[0].lower()}]{word[1:]}" for word in words)


# ---------------------------------------------------------------------------- symbols

# Greek letters without accents, and the micro sign, which replaces the letter mu.
_GREEK = "α-ωΑ-Ωµ"
_IN_GREEK_WORDS = "\u0370-\u03ff\u1f00-\u1fffµ"


def _read_sign(match: Match) -> str:
    """Convert a symbol, such as & or %, to words, separated by spaces from the neighboring words."""
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    left = " " if match[0][0].isspace() or before.isalnum() or before in SIGNS else ""
    return left + SIGNS[match[0].strip()] + (" " if after.isalnum() else "")


RULES: list[Rule] = [
    # Replace spaces between groups of thousands with commas if the last group is 000. "10 000" is
    # certainly one number, but "100 200" may be two numbers.
    rule(
        r"(?<![\d+.,:/-])\d{1,3}(?: \d{3})* 000(?! ?\d)", lambda match: match[0].replace(" ", ",")
    ),
    # The rule for web addresses comes first, because no other rule may change the dots, slashes,
    # hyphens and digits of an address.
    rule(ADDRESS, _read_address),
    # The rule for "&c." comes before the rule for "&". The rules for abbreviations with a slash
    # come before the rules for fractions and divisions.
    rule(r"&c\.", "etc."),
    rule(r"(?i)\bw/o\b", "without"),
    # Expand "w/" to "with", but do not change the unit in "100 W/m²".
    rule(r"(?i)(?<!\d)(?<!\d\s)\bw/(?=\s?[\w$£€])(?!(?-i:(?<=W/)[A-Z]))|\bw/(?=\s\w)", "with "),
    rule(r"(?i)(?<!\d)(?<!\d\s)\bw/(?=[.,;:!?)]|$)", "with"),
    rule(r"(?i)\bc/o\b", "care of"),
    rule(r"\bAttn\b\.?", "attention"),
    rule(r"(?<![\w.,-])24-7\b(?!-)", "twenty-four seven"),
    # The rules for days of the week come before the rules for dates, because a date may follow a
    # day of the week.
    rule(rf"\b({DAY_NAMES})\b\.?\s?[-–]\s?({DAY_NAMES})\b\.?", _read_days),
    rule(rf"\b({DAY_NAMES})\b(?:\.(?=,)|\.?(?=,?\s+(?:{MONTH}|\d)))", _read_days),
    # If several days are listed ("Sat or Sun"), "Sat" and "Sun" are certainly days.
    rule(
        rf"\b(?:{DAY_NAMES})\b\.?(?:(?:,\s|,?\s(?:and|or|&|to|through|thru)\s|\s?/\s?)"
        rf"(?:{DAY_NAMES})\b\.?)+(?!')",
        _read_listed_days,
    ),
    # "Sun." and "Sat." are days only after "on", because "sun" and "sat" are also words.
    rule(rf"(?:(?<=\bon )|(?!S))\b({DAY_NAMES})\.", _read_days),
    rule(r"(?<=[a-z] )(Sat)\.", _read_days),
    rule(rf"(?<=\b[Oo]n )({DAY_NAMES})(?=[,;?!]|$)", _read_days),
    # The rules for dates and telephone numbers come before the rules for ranges, because dates,
    # telephone numbers and ranges all contain hyphens.
    *DATE_RULES,
    rule(rf"\b({MONTH_NAMES})\.", _read_month),
    rule(r"\b([Tt])el\.\s?(?=[+(]?\d)", r"\1elephone "),
    rule(
        rf"(?i)\b((?:{'|'.join([*CODES, *NUMBERED_CODES])}|vat|tax|bank)\s)no\."
        r"(?=\s(?:is|was|has|on|\(?\d{3,}-)|\s?:|,)",
        r"\1number",
    ),
    rule(r"\b(?:Ref\.\s)?No\.\s(?=[A-Z]{1,3}-?\d)", _read_number_of_a_code),
    *PHONE_RULES,
    # Abbreviations before a number ("No. 5") are expanded before Roman numerals are converted,
    # because the number may be a Roman numeral ("Vol. IV"). Without a number, "No." is a word.
    rule(r"(?<=\bAct )\(c\.\s?(?=\d)", "(chapter "),
    rule(r"\bc\.\s(?=\d+ of the\b)", "chapter "),
    rule(NO_BEFORE_COUNT, _read_no),
    rule(
        rf"(?i)(?<![\w.])({'|'.join(sorted(BEFORE_NUMBERS, key=len, reverse=True))})"
        r"\.\s?(?=\d|[IVX]{2,}\b|V\b)",
        _read_before_number,
    ),
    # "No" means "number" in "We visited No 10", but not in "No 2 people are alike".
    rule(
        rf"(?:(?<=[a-z] )|(?<=[a-z], )|(?<!\S))No (?!{COUNT}|\d+[ -]year|\d\s(?:of|are|will|can)\b)(?=\d{{1,3}}\b(?![,.:/-]\d))",
        "Number ",
    ),
    rule(rf"(?i)\b({'|'.join(LABELS)})\b\.?(?=\s?:)", lambda m: LABELS[m[1].lower()].capitalize()),
    rule(
        rf"\b({'|'.join(BEFORE_LETTERS)})\.\s(?=(?![AI]\b)[A-Z]\b(?!\.\w|'))"
        rf"|\b({'|'.join(map(str.capitalize, BEFORE_LETTERS))})\.\s(?=(?!I\b)[A-Z]\b(?!\.\w|'))",
        lambda match: f"{BEFORE_NUMBERS[(match[1] or match[2]).lower()]} ",
    ),
    rule(r"\bSte\s(?=\d)", "suite "),
    rule(r"\bUtd\b(?!\.)", "united"),
    rule(r"\bWash\.\s?(?=D\.?\s?C)", "washington "),
    rule(r"\bMiss\.\s(?=River\b)", "mississippi "),
    rule(r"(?i)(\bblood (?:type|group)(?: is|:)? (?:A|B|AB|O))[-−](?!\w)", r"\1 negative"),
    rule(r"(?i)(\bblood (?:type|group)(?: is|:)? (?:A|B|AB|O))\+(?!\w)", r"\1 positive"),
    rule(r"(?<![\w.])col(s?)\.\s?(?=\d|[A-Z]\b(?!'))", r"column\1 "),
    rule(r"\b[Rr]ev\.\sed\b\.?", lambda match: f"revised edition{full_stop(match)}"),
    # In lower case, "asst." may mean "assorted".
    rule(r"\b[Aa]sst\b\.?(?=\s[A-Z])", "assistant"),
    rule(rf"\b[Aa]ssoc\b\.?(?=\s{AFTER_ASSOCIATE})", "associate"),
    *CODE_RULES,
    rule(r"\bApp\.\s(?=[A-Z]\b)", "appendix "),
    rule(r"\bRte\s(?=\d)", "Route "),
    rule(r"\bYr\s(?=\d)", "Year "),
    rule(r"\bHwy\s(?=\d|[a-z]+ )", "Highway "),
    rule(r"(?<=\d )ea\b\.?", lambda match: f"each{full_stop(match)}"),
    rule(r"\bincl\.(?=\))", "included"),
    # After a town, codes such as "OR" and "IN" are states. In other places, they are words.
    rule(
        rf"\b((?!(?:Oh|Well|Hey|{'|'.join(OPENERS)})\b)[A-Z][a-z]+, )({'|'.join(STATE_CODES)})"
        r"(?=[.,]|$|\s[a-z])",
        lambda match: match[1] + STATE_CODES[match[2]],
    ),
    # The rules for ranges come before the rules for times, units and negative numbers, because a
    # range may contain times ("9am-5pm") or units ("5-10 kg").
    *RANGE_RULES,
    *TIME_RULES,
    # The rules for amounts of money, units and fractions come before the rules for abbreviations,
    # because these amounts may contain abbreviations with dots ("6 ft. 2 in.").
    *AMOUNT_RULES,
    # The rules for Roman numerals come before the rule for words in capitals, which would spell out
    # Roman numerals letter by letter. A single letter is a numeral only after a royal title or
    # before "of". Elsewhere, a single letter may be "I" or an initial.
    rule(r"\b([IVX]+)(?=\s(?:century|centuries|dynasty|Olympiad|Dynasty)\b)", _read_roman_ordinal),
    rule(r"\b([IVX]{2,}|[VX](?=th))(?:st|nd|rd|th)\b", _read_roman_ordinal),
    rule(r"\bWW(I{1,2})\b", r"World War \1"),
    rule(rf"\b({_KINGS}) ([IVX]{{2,}}|[VX](?!\.\s*\w))(?!\w)", _read_regnal_number),
    rule(
        rf"\b((?:{'|'.join(CROWNS)}) (?:{_KINGS})|(?:{_KINGS})(?= I (?:of [A-Z]|and [A-Z][a-z]+ I)"
        r"| I's\b))\s(I)(?![.\w])",
        _read_regnal_number,
    ),
    rule(
        rf"\b((?:{_either_case(COUNTED)})s?|World Wars?)\s([IVXLC]+)(\sand\s|\sto\s|\s?[-–]\s?)"
        r"([IVXLC]+)\b",
        _read_two_roman_numbers,
    ),
    rule(rf"\b((?:{_either_case(COUNTED)})|World War)\s([IVXLC]+)\b(?!')", _read_roman_number),
    # In a heading in capitals, "CHAPTER I" ends with punctuation or with the text.
    rule(
        rf"\b({'|'.join(map(str.upper, HEADINGS))})\s([IVXLC]{{2,}}|[VXLC]|I(?=\s*(?:[.:;,–—-]|$)))\b",
        _read_roman_number,
    ),
    rule(
        r"(?<=\d(?:st|nd|rd|th)) (ed|min)\.",
        lambda match: f" {'edition' if match[1] == 'ed' else 'minute'}{full_stop(match)}",
    ),
    # Spell out "the WHO" and "an OR" letter by letter. Without an article, "WHO" may be the
    # pronoun. In "the OR gate", "OR" is the word "or".
    rule(
        rf"(\b(?i:the|an?|our|your|my|his|her|their|this|each|every|has|have|had|with) )({'|'.join(INITIALS_BEFORE)})\b"
        r"(?!\s(?:gate|operator|function|statement|condition|clause|key|button)s?\b)",
        lambda match: match[1] + _letters(match[2]),
    ),
    *(
        rule(rf"\b{initials}(?=\s(?:{words.replace(' ', '|')})\b)", _letters(initials))
        for initials, words in INITIALS_BEFORE.items()
    ),
    rule(r"\bAM(?= (?:and|or) FM\b)|(?<=\bFM and )AM\b|(?<=\bFM or )AM\b", "a m"),
    rule(r"(?<![A-Z] )\bWHO\b(?! [A-Z]{2})(?=[^.?!]{0,300}(?:\.|$))", "w h o"),
    rule(rf"\b({_either_case(COUNTED_OR_LETTERED)})\s([IVXLC]{{2,}})\b", _read_roman_number),
    rule(rf"\b([A-Z]\w+) ({'|'.join(SURE_NUMERALS)})\b", _read_roman_number),
    rule(rf"\b({_either_case(COUNTED)})\s([ivx]{{2,}})\b", _read_roman_number),
    rule(rf"\b({'|'.join(NUMBERED_WITH_I)})\s([IV])\b(?!\.\s?[A-Z]|')", _read_roman_number),
    rule(rf"\b({'|'.join(FIRST_NAMES)})\.(?=\s[A-Z])", lambda match: FIRST_NAMES[match[1]]),
    rule(rf"\b({'|'.join(STATES)})\.", _read_state),
    # These abbreviations mean states only after the name of a town, after a preposition, or next to
    # another state, as in "Ill. and Ind."
    rule(rf"\b({_LATER_STATES})\.(,?\s(?:and|or|&)\s)({_LATER_STATES})\.", _read_states),
    rule(rf"{BEFORE_STATES}({_LATER_STATES})\.", _read_state),
    rule(rf"\bCo\.\s(?={'|'.join(COUNTIES)})", "county "),
    # The rule for streets comes before the rules for titles, because "St." and "Dr." can be streets
    # or titles.
    rule(
        rf"\b([A-Z][\w'-]*|\d+(?:st|nd|rd|th))\s({'|'.join(STREETS)})\b(?:\.|(?![.\w]))",
        _read_street,
    ),
    rule(r"(?i)\b((?!St\b|Mt\b|Ft\b|Rep\b|Pres\b)(?:" + "|".join(TITLES) + r"))\.", _read_title),
    rule(r"\b(St|Mt|Ft|Rep|Pres)\.(?=\s[A-Z\u00c0-\u00de])", _read_title),
    rule(r"\b([A-Z][a-z]+) ft\.? (?=[A-Z])", r"\1 featuring "),
    rule(
        r"\b(Mr|Mrs|Ms|Dr|Prof|St|Mt|Ft|Sgt|Lt|Capt|Cpl|Pvt)(?=\s[A-Z\u00c0-\u00de])", _read_title
    ),
    rule(r"\b(st)\.(?=\s[a-z])", _read_title),  # expand "st." in a text without capitals
    rule(rf"(?i)(?<![\w.])({'|'.join(map(re.escape, ABBREVIATIONS))})\.", _read_abbreviation),
    rule(r"(?i)(?<![\w.])(etc|vs)(?![\w.])", _read_abbreviation),
    rule(r"(?<=[a-z]) v\.(?= [A-Z])", " versus"),
    rule(r"(?<=\()b\.(?=\s\d{4})", "born"),
    rule(r"(?<=[(])d\.(?=\s\d{4})|(?<=\d[,;] )d\.(?=\s\d{4})", "died"),
    # The rule for letters with dots, such as "U.S.", comes after the rules that replace "e.g." and
    # "i.e." with words.
    rule(r"(?<![\w.])(?:(?:[A-Za-z]|[A-Z]{2})\.)+[A-Za-z](?!\w)\.?", _read_dotted_letters),
    rule(r"\b([A-Z]{1,3})&([A-Z]{1,3})\b", lambda m: f"{_letters(m[1])} and {_letters(m[2])}"),
    rule(r"(?<=\bplus and )-(?=\s[a-z])|(?<=\+ and )-(?=\s[a-z])", "minus"),
    rule(r"\bIIII\b", "four"),
    # The rules for arithmetic symbols and negative numbers come before the rules that convert
    # numbers to words.
    *ARITHMETIC_RULES,
    rule(r"#\s?(?=\d)", "number "),
    rule(r"\b([A-G])[#♯]", r"\1 sharp"),
    rule(r"\b([A-G])♭", r"\1 flat"),
    rule(r"#(?=[A-Za-z])", "hashtag "),
    rule(r"\bv\.?(?=\d)", "version "),
    # The next rules convert plurals of numbers ("1990s") and add spaces between digits and letters
    # ("MP3").
    *PLURAL_RULES,
    rule(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])(?!(?i:st|nd|rd|th)\b)", " "),
    *CORRECTED_NUMBER_RULES,
    rule(rf"(?<![{_IN_GREEK_WORDS}])[{_GREEK}](?![{_IN_GREEK_WORDS}])", _read_greek_letter),
    rule(r"§\s?§", "sections "),
    # Currency symbols without an amount are converted after numbers, because the rules for amounts
    # also convert the currency symbols of the amounts.
    rule(rf"\s?(?:{'|'.join(map(re.escape, SIGNS))})", _read_sign),
    # The rules for words in capitals come last, because units and Roman numerals are also written
    # in capitals.
    rule(r"\b(pH|iOS)\b", lambda match: _letters(match[1])),
    rule(r"\bCtrl\b", "control"),
    rule(
        rf"(?<![\w.-])({'|'.join(SPELLED_IN_CHATS)})\b(?![.-]\w)", lambda match: _letters(match[1])
    ),
    rule(r"\b(PhD|MSc|BSc)(s?)\b", lambda m: _letters(m[1]) + ("'s" if m[2] else "")),
    rule(r"\b(?!IT\b)([A-Z]{2,})\sIT\b", _read_shouted_it),
    rule(r"\bIT\s(?!IT\b)([A-Z]{2,})\b", _read_shouted_it),
    rule(r"(?<![A-Za-z])([A-Z]{2,})('?s)?(?![A-Za-z])", _read_capitals),
]
