"""Check that the texts of a corpus contain only the words that are spoken.

    check_are_spoken(clips)
    check_repeated_words(clips)

Transcripts may also contain times, speakers, labels or the names of the recordings. If most texts
begin or end with such unspoken parts, the user must remove them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from corpus.clips import Clip
from corpus.recording_names import RECORDING_ID, name_at_end, name_at_start
from tacotron2_voice.utils.errors import UserError

# Matches a text that programs write instead of a missing text. Upper and lower case must match,
# because "none", "Nan" and "null" may be spoken words.
MISSING_TEXT = re.compile(
    r"NULL|NaN|nan|None|N/A|n/a|NA|<NA>|NaT|TODO|TBD|FIXME|#(?:N/A|NAME\?|NULL!|NUM!|REF!|VALUE!|DIV/0!)"
)
# Matches a label at the beginning of a text: times (as in TIMIT), an id in parentheses (as
# in CMU ARCTIC) or the name of a speaker.
LABEL_START = re.compile(
    r"\s*(0\s+\d{4,}\s+\S|[\[(]\d+(:\d\d|\.\d)|\d+:\d\d:\d\d\b|\(\s*\S+\s+\"|speaker\s*\d+\s*:|\d+:\d\d:\s"
    r"|(\S+\s+){0,2}\d+\.\d+\s+\d+\.\d+\s)",
    re.IGNORECASE,
)
# Matches a label at the beginning of a text, such as "JOHN:", "Mary Ann:", "[SPEAKER_00]:" or "text:".
WORD_LABEL = re.compile(
    r"[\s>–—\[(-]*(?:[\w.'-]*[^\W\d_][\w.'-]*|[^\W\d_a-z][\w.'-]*(?: [^\W\d_a-z][\w.'-]*){1,2})"
    r"[\])]?(?:\s?:(?=\s)|\s?：)"
)
# Matches a whole text in HTML, XML or JSON.
MARKUP = re.compile(
    r"<(!doctype|\?xml)\b.*|<(\w+)\b[^<>]*>.*</\2>\s*$|\{\s*\"[^\"]*\"\s*:.*\}\s*$|\[\s*[\[{\"].*\]\s*$",
    re.IGNORECASE | re.DOTALL,
)
# Matches a time, such as 0:03 or 3.25. TIME_AT_START matches a time before words, and TIME_AT_END
# matches a time after words.
TIME = r"(\d+(:\d\d){1,2}([.,]\d+)?|\d+[.,]\d+)"
TIME_AT_START = re.compile(rf"{TIME}s?\s(?=.*[^\W\d_])")
TIME_AT_END = re.compile(rf"[^\W\d_]\W*[\s,;]{TIME}s?$")
# Matches two neighboring columns that contain numbers.
COLUMNS = re.compile(r"\S([,;])\s?\d+\.\d+\1\s?\d+(\.\d+)?(\1|$)")
# Matches the number or letter of a list item, such as "1.", "(1)", "#1", "1/97", "IV." and "a)".
LIST_MARK = re.compile(
    r"(#\s?\d+|[\[(]\d+[\])]|\d+[.):\]-]|\d+/\d+|[ivxlc]+\.|[IVXLC]+\.|\(?[A-Za-z]\))\s(?=.*[^\W\d_])"
)
# Matches a number or time at the end of a text. Examples in brackets are "[u001]", "(take 3)" and
# "(0:01 - 0:11)". Without brackets, the number must follow punctuation, a number sign or a dash, as
# in "#5" and "- 4".
MARK_AT_END = re.compile(
    r"([\[(][^\[\]()]*\d[^\[\]()]*[\])]|[.!?]\s*\d+|#\s?\d+|[^\d\s]\s+[-–—]\s+\d+)$"
)
# Matches a text that is only a large number, such as the number of samples or bytes of a file.
LARGE_NUMBER = re.compile(r"\d{5,}")
# Matches a number such as "1" or "S1". Such a number may also belong to the sentence. Therefore
# these numbers count as list numbers only if `_count_texts` returns True.
NUMBER_AT_START = re.compile(r"[^\W\d_]{0,2}(\d+)_?\s(?=.*[^\W\d_])")
# Matches the name of a speaker in capitals, as in a script, before a text that is not in capitals.
NAME_IN_CAPITALS = re.compile(r"[A-Z][A-Z'-]+[.:]?\s(?=.*[a-z])")
# If the numbers at the beginnings of n texts do not rise, they are list numbers only if
# (largest number - smallest number + 1) is at most MAX_GAPS * n.
MAX_GAPS = 1.5
# Matches the characters between words. Unlike \W, this pattern does not match the vowel signs of
# Indic scripts.
BETWEEN_WORDS = re.compile(r"[\s!-/:-@\[-`{-~“”„«»…—–]+")
# Minimum number of texts for these checks. In a smaller corpus, all texts may begin or end in the
# same way by chance.
MIN_TEXTS = 5
MAX_SHARE = 0.8  # maximum fraction of texts that contain times, names or columns
# In a corpus of at least MIN_DIFFERENT_TEXTS different texts, at most MAX_WORD_SHARE of the texts
# may begin or end with the same word. In corpora of read speech, less than 20% of the texts begin
# with the most frequent first word.
MIN_DIFFERENT_TEXTS = 10
MAX_WORD_SHARE = 0.95
# Shared words at the beginnings or ends of texts are an error only if the texts have, on average,
# at least this number of other words. In shorter texts, the shared words may be spoken, as in "Say
# the word dog" and "Say the word cat".
MIN_OTHER_WORDS = 3


def check_are_spoken(clips: Sequence[Clip]) -> None:
    """Raise UserError if most texts contain parts that are not spoken.

    Examples of such parts are labels ("JOHN:"), times, ids in parentheses, sentence numbers,
    columns of numbers, and names of audio files.
    """
    for pattern, found, fix in (
        (LABEL_START, "begin with times or speakers", ""),
        (
            WORD_LABEL,
            "begin with a label",
            ". If the words before the colon are spoken, write a comma instead of the colon",
        ),
    ):
        labeled = [clip for clip in clips if pattern.match(clip.text)]
        if len(labeled) > 1 and 2 * len(labeled) > len(clips):
            raise _not_spoken(labeled, clips, found, fix)
    words = ". If the numbers are spoken, write them in words"
    rename = ". Remove the names. If the names are spoken, rename the audio files"
    plain = ". Save the texts without tags, braces and keys"
    kinds: tuple[tuple[Callable[[Clip], object], str, str], ...] = (
        (lambda x: MARKUP.match(x.text), "are HTML, XML or JSON", plain),
        (lambda x: TIME_AT_START.match(x.text), "begin with times", words),
        (lambda x: COLUMNS.search(x.text), "contain columns of numbers", words),
        (lambda x: TIME_AT_END.search(x.text), "end with times", words),
        (lambda x: LIST_MARK.match(x.text), "begin with the mark of a list item", words),
        (lambda x: NAME_IN_CAPITALS.match(x.text), "begin with a name in capitals", ""),
        (lambda x: MARK_AT_END.search(x.text), "end with a number", words),
        (lambda x: LARGE_NUMBER.fullmatch(x.text), "are only a number", words),
        (has_name_at_start, "begin with the name of their audio file", rename),
        (_is_name, "consist only of the name of their audio file", rename),
        (has_name_at_end, "end with the name of their audio file", rename),
    )
    if len(clips) < MIN_TEXTS:
        return
    for is_such, found, fix in kinds:
        such = [clip for clip in clips if is_such(clip)]
        if len(such) >= MAX_SHARE * len(clips):
            raise _not_spoken(such, clips, found, fix)
    numbered = [
        (clip, int(match[1][:18])) for clip in clips if (match := NUMBER_AT_START.match(clip.text))
    ]
    if len(numbered) >= MAX_SHARE * len(clips) and _count_texts([x for _, x in numbered]):
        raise _not_spoken([clip for clip, _ in numbered], clips, "begin with numbers", words)


def _count_texts(numbers: Sequence[int]) -> bool:
    """Return whether the numbers at the beginnings of texts are the positions of the texts in a
    list.

    The function returns True if most numbers are larger than the number of the previous text. The
    function also returns True if all numbers differ and few numbers between the smallest and the
    largest number are missing.
    """
    num_rising = sum(a < b for a, b in pairwise(numbers))
    if num_rising + 1 >= MAX_SHARE * len(numbers):
        return True
    num_range = max(numbers) - min(numbers) + 1
    are_different = len({*numbers}) == len(numbers) >= MIN_DIFFERENT_TEXTS
    return are_different and num_range <= MAX_GAPS * len(numbers)


def _not_spoken(found: Sequence[Clip], clips: Sequence[Clip], how: str, fix: str) -> UserError:
    text = found[0].text
    shown = text[-60:] if how.startswith("end") else text[:60]
    return UserError(
        f"{found[0].where}: {len(found):,} of {len(clips):,} texts {how}, such as "
        f"{shown!r} (expected only the words that are spoken){fix}"
    )


def has_name_at_start(clip: Clip) -> bool:
    """Return whether a text begins with its audio file's name, followed by other words."""
    if clip.segment:
        return False
    match = name_at_start(Path(clip.path).with_suffix(""), clip.text)
    return match is not None and match.end() < len(clip.text)


def _is_name(clip: Clip) -> bool:
    """Return whether a clip's text is only its audio file's name, and this name is not a word."""
    name = Path(clip.path).with_suffix("")
    if clip.segment or not re.search(r"[^\W\d_]", name.name) or not RECORDING_ID.match(name.name):
        return False
    match = name_at_start(name, clip.text)
    return match is not None and match.end() == len(clip.text)


def has_name_at_end(clip: Clip) -> bool:
    """Return whether a text consists of other words followed by its audio file's name."""
    if clip.segment:
        return False
    match = name_at_end(Path(clip.path).with_suffix(""), clip.text)
    return match is not None and match.start() > 0


def _is_written_twice(clip: Clip) -> bool:
    words = clip.text.split()
    half = len(words) // 2
    return half >= MIN_OTHER_WORDS and words[:half] == words[half:]


def check_repeated_words(clips: Sequence[Clip]) -> None:
    """Raise UserError if nearly all texts begin or end with the same word, such as "sil".

    The texts of each speaker are also checked separately, because all texts of a speaker may begin
    with the speaker's name.

    Also raise UserError in two other cases:

    - In most texts, the second half repeats the first half.
    - All texts are the same word, such as a label of the segments.
    """
    twice = [clip for clip in clips if _is_written_twice(clip)]
    if len(clips) >= MIN_TEXTS and len(twice) >= MAX_SHARE * len(clips):
        fix = ". If the words are spoken twice in each clip, add --repeated-words"
        raise _not_spoken(twice, clips, "contain the same words twice", fix)
    different = {clip.text for clip in clips}
    is_word = len(different) == 1 and len(words_of(clips[0].text)) == 1
    if len(clips) >= MIN_TEXTS and is_word and not MISSING_TEXT.fullmatch(clips[0].text):
        fix = ". If this word is spoken in each clip, add --repeated-words"
        raise _not_spoken(clips, clips, "are the same word", fix)
    by_speaker = defaultdict[str, list[Clip]](list)
    for clip in clips:
        by_speaker[clip.speaker].append(clip)
    for group in (clips, *by_speaker.values()):
        _check_group(group)


def _check_group(clips: Sequence[Clip]) -> None:
    different = {clip.text: clip for clip in clips}
    texts = [words_of(text) for text in different]
    if len(texts) < MIN_DIFFERENT_TEXTS:
        return
    common_start = _common_words(texts)
    common_end = _common_words([words[::-1] for words in texts])
    num_common = len(common_start) + len(common_end)
    num_words = sum(map(len, texts)) / len(texts)
    if not num_common or num_words - num_common < MIN_OTHER_WORDS:
        return
    word = (common_start or common_end)[0]
    place = 0 if common_start else -1
    found = [
        clip
        for clip, words in zip(different.values(), texts, strict=True)
        if words and words[place] == word
    ]
    how = f"{'begin' if common_start else 'end'} with the word {word!r}"
    fix = ". Remove the word from the texts. If it is spoken in each clip, add --repeated-words"
    raise _not_spoken(found, list(different.values()), how, fix)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [word for word in BETWEEN_WORDS.split(text.casefold()) if word]


def _common_words(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the words with which nearly all texts begin."""
    common = []
    for place in range(max(map(len, texts))):
        counts = Counter(words[place] for words in texts if place < len(words))
        word, count = counts.most_common(1)[0]
        if count < MAX_WORD_SHARE * len(texts):
            break
        common.append(word)
    return common
