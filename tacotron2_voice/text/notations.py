"""Reject pronunciations in a notation that a model does not support (ARPAbet, IPA or pinyin).

check_notations("Turn left on {HH AW1}.", ["basic_cleaners"], table)  # UserError
"""

import re
from collections.abc import Sequence

from tacotron2_voice.text.rules import uses_english_rules
from tacotron2_voice.text.sequences import ARPABET_SPAN, IPA_SPAN, PHONES
from tacotron2_voice.text.symbols import SymbolTable, symbols
from tacotron2_voice.utils.errors import UserError

_INITIAL = "(?:[zcs]h|[bpmfdtnlgkhjqxrzcsyw])"
_FINAL = (
    "(?:i?ang|i?ong|iao?|ian|ie|ing?|iu|uang?|uai?|uan|ue|ui|un|uo|üe?|ve?|ai|ao?|an|ei|eng?|er?|ou"
    "|i|u)"
)
_SYLLABLE = rf"(?:{_INITIAL}?{_FINAL}|[bpmfwy]?o)"
# Matches two or more syllables with tone digits, such as "ta5 shi3" and "ni3hao3".
_PINYIN = re.compile(rf"(?<!\w)(?:{_SYLLABLE}[1-5¹²³⁴⁵][ '-]*){{2,}}(?!\w)", re.IGNORECASE)
CHINESE = ("cmn", "yue", "hak", "zh")  # eSpeak's codes for Chinese languages
IPA_LETTER = re.compile("[\u0250-\u02afˈˌː]")
_IPA_WORD = re.compile(rf"\S*{IPA_LETTER.pattern}\S*")
# Marks and letters of the IPA that no alphabet contains. Other letters of the IPA, such as ə
# (Azerbaijani) and ŋ (Sami), also occur in alphabets.
_ONLY_IPA_WORD = re.compile(r"\S*[ˈˌːɪʊɜɑʃɹʁɾɐɒʌɯɤɸʂʐ]\S*")
_NESTED_BRACES = re.compile(r"\{[^{}]*\{[^{}]*")
# IPA letters that also occur in alphabets. These letters are phones only between slashes.
_IPA_OR_LETTER = re.compile("[æçðøŋœβθχ]")
_STRESSED_PHONE = re.compile(r"[A-Z]{2}\d")  # an ARPAbet vowel with any digit from 0 to 9
_PHONE = "(?:" + "|".join(symbol[1:] for symbol in symbols if symbol[0] == "@") + ")"
_STRESSED = "[A-Z]{2}[0-2]"
_WORD_PHONE = f"{_PHONE}(?:_[BIES])?"  # in Kaldi, the suffix is the phone's position in the word
_JOINT = r"(?:\s+|[-‐_,.|])"
# Matches two or more ARPAbet phones that are separated by spaces or by a punctuation mark. At least
# one phone is a vowel with a stress digit.
_BARE_PHONES = re.compile(
    rf"(?<!\w)(?=(?:{_WORD_PHONE}{_JOINT})*{_STRESSED}(?:_[BIES])?(?!\w))"
    rf"{_WORD_PHONE}(?:{_JOINT}{_WORD_PHONE})+(?!\w)",
    re.IGNORECASE,
)
# Matches ARPAbet phones without separators. At least two vowels must have a digit, because a word
# such as DAY1 may have one vowel with a digit. The phone NG is not included, because NG also matches
# as N and G, and trying both possibilities could make the search very slow.
_JOINED_PHONE = _PHONE.replace("|NG|", "|")
_JOINED_PHONES = re.compile(
    rf"(?<!\w)(?=(?:[A-Z]+[0-2]){{2}}){_JOINED_PHONE}*{_STRESSED}{_JOINED_PHONE}*{_STRESSED}"
    rf"{_JOINED_PHONE}*(?!\w)"
)
# Pinyin syllables that are also English words. A pair of such syllables with tone digits, such as
# ping1 pong2, may be names instead of pinyin. A pair of capitalized syllables with tone digits,
# such as Ben1 Dan2, may be names too.
_ENGLISH_SYLLABLES = set(
    "an ban bang bin bun can den die ding dong fan fin fun gang gong gun hang he hen hung king lan lie "
    "ling long man me men min pan pen pie pin ping pong ran rang run sang she sing song sun sung tan "
    "ten tie tin tong wan wing you".split()
)
_LONG_SYLLABLE = re.compile("[^\\W\\d]{2}")


def check_notations(
    text: str, cleaner_names: Sequence[str], table: SymbolTable, language: str = ""
) -> None:
    """Check that a text contains no notation that the model would read as ordinary words.

    These notations are rejected:

    - nested braces
    - ARPAbet phones in braces, if the model has no symbols for phones, or if a phone is unknown
    - ARPAbet phones without braces, unless the model has its own symbol table
    - IPA, if the cleaners are for English and do not produce phones
    - pinyin with tone digits, if the cleaners are for English, or if they produce phones of a
      language other than Chinese
    - IPA with stress or length marks, but without slashes, if the cleaners produce phones

    Raises:
        UserError: if the text contains one of these notations.
    """
    if nested := _NESTED_BRACES.search(text):
        raise UserError(
            f"{nested[0][:60]!r}: contains two opening braces (expected one pair of braces)"
        )
    for span in ARPABET_SPAN.finditer(text):
        phones = span[1].split()
        unknown = [phone for phone in phones if f"@{phone}" not in symbols]
        if not unknown and (not table.has_phones or PHONES in cleaner_names):
            problem = "ARPAbet phones, but the model has no symbols for them"
            known = "phones such as /hɛlˈoʊ/" if PHONES in cleaner_names else "letters"
            raise UserError(f"{span[0][:60]!r}: {problem} (expected {known})")
        if unknown and any(_STRESSED_PHONE.fullmatch(phone) for phone in phones):
            problem = f"{unknown[0]!r} is not an ARPAbet phone"
            raise UserError(f"{span[0][:60]!r}: {problem} (expected phones such as AH0)")
    around = ARPABET_SPAN.sub(" {} ", text)
    bare = _BARE_PHONES.search(around) or _JOINED_PHONES.search(around)
    if bare and (table.is_english or PHONES in cleaner_names):
        known = f"{{{bare[0][:60]}}}" if table.is_english else "words"
        raise UserError(f"{bare[0][:60]!r}: ARPAbet phones without braces (expected {known})")
    if PHONES in cleaner_names and (ipa := _ONLY_IPA_WORD.search(IPA_SPAN.sub(" ", text))):
        raise UserError(f"{ipa[0][:60]!r}: phones without slashes (expected phones such as /wˈɪn/)")
    is_english = uses_english_rules(cleaner_names)
    if is_english and PHONES not in cleaner_names:
        letters = [span for span in IPA_SPAN.finditer(text) if _IPA_OR_LETTER.search(span[0])]
        if ipa := _IPA_WORD.search(text) or next(iter(letters), None):
            problem = "phones, but the model reads letters"
            raise UserError(f"{ipa[0][:60]!r}: {problem} (expected letters)")
    if is_english or (PHONES in cleaner_names and language):
        _check_pinyin(text, language)


def _check_pinyin(text: str, language: str) -> None:
    """Raise UserError if a text contains pinyin with tone digits, unless the language is Chinese."""
    if language.partition("-")[0] in CHINESE:
        return
    for found in _PINYIN.finditer(text):
        syllables = re.findall(r"[^\W\d]+", found[0])
        is_numbered = len({x.lower() for x in syllables}) == 1 and " " in found[0].strip()
        # two English words or names with digits, such as "LAN1 WAN2" and "Ben1 Dan2"
        is_english = len(syllables) == 2 and all(
            x.lower() in _ENGLISH_SYLLABLES or x.istitle() for x in syllables
        )
        if is_numbered or is_english or not _LONG_SYLLABLE.search(found[0]):
            continue
        problem = "pinyin with tone digits, but the model does not read Chinese"
        fix = "To train on pinyin, use --hparams symbols=corpus,text_cleaners=[basic_cleaners]."
        raise UserError(f"{found[0].strip()[:60]!r}: {problem} (expected words). {fix}")
