"""Read segments of long recordings from subtitles, TextGrids, Audacity labels or Whisper's TSV files.

    entries = read_segments(Path("book/chapter1.srt"), "chapter1")

Each entry contains the name of a recording, a text, and the segment of the recording in which the
text is spoken. `convert` writes each segment to a separate file.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from corpus.clips import MAX_OVERLAP, Segment
from corpus.normalized_texts import UNSPACED
from corpus.subtitles import read_subtitles
from corpus.tables import Entry
from corpus.text_files import check_last_line, on_one_line, print_divided, read_text
from corpus.textgrids import is_textgrid, read_textgrid
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes

SEGMENT_SUFFIXES = (".srt", ".vtt", ".TextGrid")
# Whisper writes tables of start and end in milliseconds and text, with the header WHISPER_HEADER.
WHISPER_SUFFIX = ".tsv"
WHISPER_HEADER = "start\tend\ttext"
NUMBER = r"[+-]?(?:\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?|nan|inf)"
DECIMAL = r"[+-]?(?:\d+[.,]\d+|nan|inf)"
# Matches a line of Audacity labels: start and end in seconds and a text, separated by tabs or
# spaces.
LABEL = re.compile(rf"({NUMBER})\s+({NUMBER})(?:\s+(.*))?")
# Labels that mean silence or noise in forced alignments, for example from the Montreal Forced
# Aligner.
SILENCES = {"sil", "sp", "spn", "pau", "<sil>", "<sp>", "<spn>", "<eps>", "<p:>"}
# Matches labels that contain no word, such as <unk>, [noise], # and h#.
NO_WORDS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|[\W_]+|h#")
# Matches the beginning of a line that certainly belongs to an alignment or a caption, and not to a
# transcript.
CERTAINLY_TIMED_LINE = re.compile(r"\[\d+:\d\d|.*\d\s*-->\s*\d|SPEAKER_\d+\b")
TIMED_LINE = re.compile(
    rf"{CERTAINLY_TIMED_LINE.pattern}|\d+(:\d\d){{1,2}}$|\d+(:\d\d){{2}}\b"
    rf"|{NUMBER}\s+{NUMBER}\s+[^\d\s]|\d+\.\d+,\d+\.\d+,|(\S+\s+){{1,4}}\d+\.\d+\s+\d+\.\d+\s+\S"
    rf"|(\d+:\d\d|\d+\.\d+)\s+[^\W\d_]|.*\s\d+(:\d\d){{1,2}}$|.*[^,],\d+\.\d+,\d+\.\d+(,|$)"
)
# Minimum number of segments that repeat the previous segment. A smaller number of segments may
# repeat the previous segment by chance.
MIN_GROWING = 5
# Segments are rejected as single words if there are at least MIN_WORDS segments, if at least the
# fraction MIN_SHARE_OF_WORDS of them contain one word, and if their median length is at most
# MAX_WORD_SECONDS.
MIN_WORDS, MIN_SHARE_OF_WORDS, MAX_WORD_SECONDS = 10, 0.95, 0.5
# In scripts without spaces between words, a text counts as one word if it has at most this number
# of characters.
MAX_UNSPACED_WORD = 3
EMPTY = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # bytes of spaces, line breaks and byte-order marks


def read_segments(path: Path, recording: str, tier: str = "", encoding: str = "") -> list[Entry]:
    """Return the segments of one recording, in file order.

    Segments that have no text or only a silence label are skipped.

    Args:
        path: subtitles (.srt, .vtt), a TextGrid, a table of Whisper (.tsv), or Audacity labels
            (.txt).
        recording: the name of the recording.
        tier: the tier to read from a TextGrid with several tiers.
        encoding: encoding of the file; "": detect it (UTF-8 is tried first).

    Raises:
        UserError: if the file cannot be read, or if a TextGrid has several tiers but no tier called
            `tier`.
    """
    found: Iterable[tuple[float, float, str]]
    if not read_bytes(path).strip(EMPTY):
        raise UserError(f"{path}: this file is empty, expected texts and their times")
    suffix = path.suffix.lower()
    content = "" if suffix == ".textgrid" else read_text(path, encoding)
    content = content.replace("\r\n", "\n").replace("\r", "\n")
    if suffix == ".textgrid" or is_textgrid(content):
        found = read_textgrid(path, tier)
    elif suffix in (".srt", ".vtt"):
        found = read_subtitles(path, content)
    elif suffix == WHISPER_SUFFIX:
        found = _read_whisper_table(path, content)
    else:
        found = _read_labels(path, content)
    found = list(found)
    if len(found) > 1 and not found[-1][2].strip() and all(x.strip() for _, _, x in found[:-1]):
        print(
            f"warning: {path}: only the last segment, at {found[-1][0]:.2f} s, has no text, so the end "
            "of the file may be missing. If the file is complete, remove this segment"
        )
    entries = []
    num_silences = 0
    divided = list[str]()
    for number, (start, end, text) in enumerate(found, 1):
        words = on_one_line(text, divided)
        if words and (words.lower() in SILENCES or NO_WORDS.fullmatch(words)):
            num_silences += 1
        elif words:
            where = f"{path}: segment {number} at {start:.2f} s"
            entries.append(Entry(recording, words, where, segment=Segment(start, end - start)))
    if num_silences:
        print(f"note: {path}: ignored {num_silences:,} silence labels, such as 'sil'")
    print_divided(path, divided)
    if not entries:
        raise UserError(f"{path}: contains no segment with a text")
    _check_not_counting(path, entries)
    _check_not_growing(path, entries)
    check_not_words(path, entries, tier)
    check_last_line(path, content, [entry.text for entry in entries])
    return entries


def _check_not_counting(path: Path, entries: Sequence[Entry]) -> None:
    """Raise UserError if the texts are 1, 2, 3 and so on, as in the labels that Audacity writes when
    it finds the speech in a recording."""
    counted = [str(number) for number in range(1, len(entries) + 1)]
    if len(entries) > 1 and [entry.text for entry in entries] == counted:
        raise UserError(
            f"{path}: each segment has its own number, 1 to {len(entries):,}, instead of a text "
            "(expected the spoken words)"
        )


def _check_not_growing(path: Path, entries: Sequence[Entry]) -> None:
    """Raise UserError if most segments repeat or continue the text of the previous segment.

    Some captions show a sentence word by word, or highlight one word after another. In such
    captions, each segment contains the whole sentence, or all words up to the current word.
    """
    growing = [
        entry
        for before, entry in pairwise(entries)
        if f"{entry.text} ".casefold().startswith(f"{before.text} ".casefold())
    ]
    if len(growing) >= MIN_GROWING and 2 * len(growing) > len(entries):
        raise UserError(
            f"{growing[0].where}: {len(growing):,} of {len(entries):,} segments begin with the text of "
            f"the previous segment, such as {growing[0].text[:60]!r} (expected only the words that "
            f"are spoken in each segment). Export {path.name} without the times of words"
        )


def check_not_words(path: Path, entries: Sequence[Entry], tier: str = "") -> None:
    """Raise UserError if the segments are the words or phones of a forced alignment.

    Nearly all such segments are short, contain no space, and begin where the previous segment ends.
    In recordings of single words, the words are separated by pauses.
    """
    segments = [entry.segment for entry in entries if entry.segment and entry.segment.seconds]
    if len(segments) < MIN_WORDS:
        return
    words = [entry for entry in entries if _is_word(entry.text)]
    num_adjacent = sum(
        abs(before.start + (before.seconds or 0) - after.start) < MAX_OVERLAP
        for before, after in pairwise(segments)
    )
    length = median(segment.seconds or 0 for segment in segments)
    if (
        len(words) < MIN_SHARE_OF_WORDS * len(entries)
        or num_adjacent < len(segments) / 2
        or length > MAX_WORD_SECONDS
    ):
        return
    fix = (
        f"The segments are read from the tier {tier!r}. If a different tier contains sentences, choose "
        "that tier with --tier. "
        if tier
        else ""
    )
    raise UserError(
        f"{words[0].where}: {len(words):,} of {len(entries):,} segments are single words or phones, "
        f"such as {words[0].text[:40]!r} and {words[-1].text[:40]!r} (expected one sentence per "
        f"segment). {fix}If each recording contains one sentence, write the sentence to a text file next "
        "to the recording and add --transcripts txt. For longer recordings, use subtitles or labels "
        "of sentences"
    )


def _is_word(text: str) -> bool:
    """Return whether a text contains at most one word."""
    return " " not in text and (len(text) <= MAX_UNSPACED_WORD or not UNSPACED.search(text))


def are_labels(text: str) -> bool:
    """Return whether a text file contains Audacity labels instead of plain text.

    The file contains labels if its first line begins with two numbers that are separated by a tab.
    Some label files contain spaces instead of tabs. A file with spaces contains labels if it has at
    least two lines and every line begins with two decimal numbers.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and re.match(rf"{NUMBER}\t{NUMBER}(\t|$)", lines[0]):
        return True
    decimals = re.compile(rf"{DECIMAL}\s+{DECIMAL}(\s|$)")
    return len(lines) > 1 and all(decimals.match(line) for line in lines)


def check_is_plain(path: Path, text: str) -> None:
    """Raise UserError if a text contains time stamps or speaker labels.

    Examples are label files of HTK and Festival, captions that were saved as text, and transcripts
    with the names of the speakers (diarization).
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    unusual = [line for line in lines if TIMED_LINE.match(line)]
    is_certain = any(CERTAINLY_TIMED_LINE.match(line) for line in lines)
    if is_certain or (len(unusual) > 1 and 2 * len(unusual) >= len(lines)):
        found = unusual[0][:60]
        raise UserError(
            f"{path}: contains lines that begin with times or speakers, such as {found!r} (expected "
            "only the words that are spoken)"
        )


def _read_labels(path: Path, text: str) -> Iterator[tuple[float, float, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        # A line that starts with a backslash contains the frequency range of the previous label.
        if not line.strip() or line.startswith("\\"):
            continue
        match = LABEL.fullmatch(line.strip())
        if not match:
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is not a label (expected start, end and text)"
            )
        start, end = (float(x.replace(",", ".")) for x in match.group(1, 2))
        if not (0 <= start < math.inf and 0 <= end < math.inf):
            raise UserError(
                f"{path}:{number}: invalid times {match[1]} to {match[2]}, expected seconds of at least 0"
            )
        yield start, end, match[3] or ""


def is_whisper_table(path: Path) -> bool:
    """Return whether a file looks like a table that Whisper wrote, in UTF-8 or UTF-16. Such a file
    begins with WHISPER_HEADER or with a segment."""
    if not path.is_file():
        return False
    beginning = read_bytes(path).strip(EMPTY)[:200].replace(b"\0", b"").decode(errors="replace")
    return re.match(rf"{WHISPER_HEADER}|{NUMBER}\t{NUMBER}\t", beginning) is not None


def _read_whisper_table(path: Path, text: str) -> Iterator[tuple[float, float, str]]:
    if not text.startswith(WHISPER_HEADER):
        raise UserError(
            f"{path}:1: {text.partition(chr(10))[0][:60]!r} is not a header, so the unit of the times is "
            f"unknown (expected {WHISPER_HEADER!r}). If the times are in milliseconds, add this header. "
            "If the times are in seconds, change the extension of the file to .txt"
        )
    for number, line in enumerate(text.splitlines(), 1):
        if number == 1 or not line.strip():
            continue
        match = re.fullmatch(r"(\d{1,9})\t(\d{1,9})\t(.*)", line)
        if not match:
            raise UserError(
                f"{path}:{number}: {line[:60]!r} is not a segment (expected start and end in "
                "milliseconds and a text, separated by tabs)"
            )
        yield int(match[1]) / 1000, int(match[2]) / 1000, match[3]
