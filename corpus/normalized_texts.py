"""Check that a column contains the normalized forms of the texts in another column.

check_is_normalized(Path("metadata.csv"), rows, written=1, spoken=2)
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from corpus.spoken_texts import MISSING_TEXT
from corpus.table_rows import Row
from corpus.table_times import IS_NUMBER
from tacotron2_voice.utils.errors import UserError

# Minimum number of lines of a table in which repeated values are detected. In a shorter table,
# values may be repeated by chance.
MIN_LINES = 5
# Maximum number of different values in a column of speaker names, divided by the number of lines.
# The maximum is small because speaker names are repeated.
MAX_REPEATING_SHARE = 0.2
# Of the ordinary words in the texts, at least this fraction must occur in the normalized texts.
MIN_KEPT_WORDS = 0.85
# Lines whose normalized text lacks ordinary words of the text are exceptions if they are at most
# this fraction of all lines.
MAX_CHANGED_LINES = 0.2
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
TOKEN = re.compile(r"[^\s–—-]+")  # matches a word with its punctuation
CLOSING = "\"'”’»),;:"  # characters that may follow the period of an abbreviation
PUNCTUATION = f".!?¡¿…“„‘‚«([]{CLOSING}。、，！？：；「」『』（）।"
# Matches characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and
# Chinese characters.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# If the second column contains numbers, and the texts in the third column have at least this number of
# words (median), the texts are probably not the numbers as words.
MIN_NORMALIZED_WORDS = 4


def check_is_normalized(path: Path, rows: Sequence[Row], written: int, spoken: int) -> None:
    """Raise UserError if the column `spoken` cannot contain the normalized forms of the texts in
    the column `written`. LJSpeech's metadata.csv has two such columns.

    The function rejects the columns in four cases:

    - Most values of the column `spoken` are numbers.
    - All values of the column `written` are whole numbers, and lines with the same number have
      different texts in the column `spoken`, as with the number of a speaker.
    - Only one of the two columns has few distinct values, like a column of speaker names.
    - Too many words of the text are missing from the normalized text, as in a translation.
    """
    pairs = [(row.fields[written], row.fields[spoken]) for row in rows if len(row.fields) > spoken]
    texts, normalized = zip(*pairs, strict=True)
    if sum(IS_NUMBER.fullmatch(x) is not None for x in normalized) > len(normalized) / 2:
        raise UserError(
            f"{path}: column {spoken + 1} contains numbers such as {normalized[0][:60]!r} instead of "
            "texts. Select the column that contains the spoken texts with --text-column"
        )
    has_sentences = median(len(x.split()) for x in normalized) >= MIN_NORMALIZED_WORDS
    is_ambiguous = 1 < len({*texts}) < len({*pairs})  # a number has different texts
    if has_sentences and is_ambiguous and all(x.isdecimal() for x in texts):
        raise UserError(
            f"{path}: column {written + 1} contains whole numbers, such as {texts[0][:60]!r}. If these "
            f"numbers are speakers, add --text-column {spoken + 1} --speaker-column "
            f"{written + 1}. Otherwise, add only --text-column {spoken + 1}"
        )
    if len({*texts}) == 1 and len(texts[0].split()) < 2:
        return  # all values of the column are empty or the same word, so it contains no texts
    changed = [pair for pair in pairs if share_of_kept_words([pair]) < 1]
    are_changed = len(changed) > MAX_CHANGED_LINES * len(pairs)
    are_other_texts = are_changed and share_of_kept_words(pairs) < MIN_KEPT_WORDS
    if repeats(texts) == repeats(normalized) and not are_other_texts:
        return
    no_text = sum(not x or MISSING_TEXT.fullmatch(x) is not None for x in normalized)
    if no_text and not repeats(texts):
        raise UserError(
            f"{path}: {no_text:,} of {len(pairs):,} lines have no text in column {spoken + 1}. To read "
            f"the texts from column {written + 1}, add --text-column {written + 1}"
        )
    example = (changed or pairs)[0]
    raise UserError(
        f"{path}: column {spoken + 1} does not look like the normalized form of column "
        f"{written + 1}: {example[0][:60]!r} and {example[1][:60]!r} (expected the same words, except "
        "numbers, symbols and abbreviations). Use --text-column to select the column that contains "
        "the spoken texts, and --speaker-column to select the speakers. If the texts themselves contain "
        "the delimiter, replace it in the texts"
    )


def repeats(values: Sequence[str]) -> bool:
    """Return whether a column has few distinct values, like a column of speaker names."""
    return len(values) >= MIN_LINES and len({*values}) <= MAX_REPEATING_SHARE * len(values)


def share_of_kept_words(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the fraction of the ordinary words in the texts that also occur in the normalized
    texts, over all lines.

    The fraction is at least 0.99 in random samples of ten lines of LJSpeech. Translations into a
    related language, such as Danish and Norwegian, keep less than 0.8 of the words. If the texts
    contain no ordinary words, the fraction is 1.
    """
    counts = [_count_kept_words(*pair) for pair in pairs]
    num_words = sum(total for _, total in counts)
    return sum(kept for kept, _ in counts) / num_words if num_words else 1.0


def _count_kept_words(written: str, spoken: str) -> tuple[int, int]:
    """Return the number of ordinary words in the written text that the spoken text also contains,
    and the expected value of this number.

    A normalization changes numbers, symbols, abbreviations and words in capitals, but keeps
    ordinary words. Therefore, the expected value is the number of ordinary words in the written
    text. If the written text contains only ordinary words, the spoken text should contain no
    additional words. In this case, the expected value is at least the number of spoken words.
    """
    spoken_words = Counter(WORD.findall(without_accents(spoken).casefold()))
    num_spoken = spoken_words.total()
    written = without_accents(written.lower() if written.isupper() else written)
    tokens = [token for token in TOKEN.findall(written) if token.strip(PUNCTUATION)]
    num_ordinary = 0
    num_kept = 0
    for index, token in enumerate(tokens):
        word = token.strip(PUNCTUATION)
        is_abbreviation = token.rstrip(CLOSING).endswith(".") and index < len(tokens) - 1
        if word.isalpha() and not word.isupper() and not is_abbreviation:
            num_ordinary += 1
            if spoken_words[word.casefold()]:
                spoken_words[word.casefold()] -= 1
                num_kept += 1
    if tokens and num_ordinary == len(tokens):
        return num_kept, max(num_ordinary, num_spoken)
    return num_kept, num_ordinary


def without_accents(text: str) -> str:
    """Return a text without accents and vowel marks, and with spaces around each character of
    scripts without spaces between words."""
    letters = (x for x in unicodedata.normalize("NFKD", text) if unicodedata.category(x) != "Mn")
    return UNSPACED.sub(r" \g<0> ", "".join(letters))
