"""Read segments of long recordings from subtitles, labels, TextGrids, Kaldi or lhotse.

    entries = read_segments(Path("book/chapter1.srt"), "chapter1")
    entries = read_kaldi(Path("data/train"))
    entries = read_lhotse(Path("data/supervisions.jsonl.gz"))
    clips, problems = padded(clips, 0.1)

Each entry contains the name of a recording, a text, and the segment of the recording in which the
text is spoken. `convert` writes each segment to a separate file.
"""

import gzip
import html
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from corpus.clips import Clip, Segment
from corpus.normalized_texts import UNSPACED
from corpus.tables import Entry
from corpus.text_files import check_last_line, on_one_line, print_divided, read_text
from tacotron2_voice.utils.errors import UserError, count_of
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
TIME = r"\d?\d:\d\d[.,]\d{3}"
SRT_TIMES = re.compile(rf"\d{{1,3}}:{TIME}\s*-->\s*\d{{1,3}}:{TIME}(\s|$)")
VTT_TIMES = re.compile(
    rf"(\d{{1,3}}:)?{TIME}\s*-->\s*(\d{{1,3}}:)?{TIME}(\s|$)"
)  # in WebVTT, the hours of a time are optional
# Matches the complete or incomplete times of a subtitle at the end of a file.
TIMES_AT_END = re.compile(
    r"(?:^|\n[ \t]*\n)(?:\d+\n)?(\d+:[\d:.,]*[ \t-]*(?:-->[ \t]*[\d:.,]*)?)\s*\Z"
)
# Matches tags for formatting, speakers and times in subtitles. Other text between < and > is kept.
TAG = re.compile(
    r"</?(?:i|b|u|s|em|strong|font|c|v|lang|ruby|rt)(?:[ .][^<>\n]*)?>|<[\d:.]+>|\{\\[^}]*\}",
    re.IGNORECASE,
)
# Matches the tag of a speaker in WebVTT, such as <v Anna> or <v.loud Anna>.
VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>\n]+)>")
# Matches the dash before each line of a dialogue.
DASH = re.compile(r"^\s*[-‐–—]\s*\w", re.MULTILINE)
# Matches the number of intervals or points in a tier, in the long and the short TextGrid format.
TEXTGRID_SIZE = re.compile(
    rb'(?:intervals|points): size = (\d+)|"(?:IntervalTier|TextTier)"\s+"(?:[^"]|"")*"'
    rb"\s+[-\d.]+\s+[-\d.]+\s+(\d+)"
)
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
# In automatic captions, at least this fraction of the subtitles repeats a line of the previous
# subtitle.
MIN_ROLLING_SHARE = 0.3
# In automatic captions with gaps between subtitles, at least this fraction of the subtitles repeats
# a line of the previous subtitle.
MIN_ROLLING_SHARE_WITH_GAPS = 0.8
MAX_ROLLING_GAP = 0.1  # maximum pause between two subtitles in seconds; a longer pause is a gap
MIN_SPEECH_SECONDS = 0.1  # minimum length of a subtitle with speech, in seconds
MAX_OVERLAP = 0.05  # maximum overlap of consecutive subtitles, in seconds
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
KALDI_FILES = ("wav.scp", "text")


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
        found = _read_textgrid(path, tier)
    elif suffix in (".srt", ".vtt"):
        found = _read_subtitles(path, content)
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


def _read_subtitles(path: Path, text: str) -> list[tuple[float, float, str]]:
    """Read an SRT or WebVTT file.

    Raise UserError at the first line whose times cannot be read.
    """
    is_vtt = text.lstrip().startswith("WEBVTT")
    times = VTT_TIMES if is_vtt else SRT_TIMES
    last = TIMES_AT_END.search(text)
    if last and not times.match(last[1].strip()):
        number = text.count("\n", 0, last.start(1)) + 1
        raise UserError(
            f"{path}:{number}: the file ends inside the times of a subtitle ({last[1][:60]!r}), so the "
            "end of the file is missing"
        )
    num_cues = 0
    for number, line in enumerate(text.split("\n"), 1):
        if "-->" not in line:
            continue
        num_cues += 1
        if not times.match(line.strip()):
            raise UserError(
                f"{path}:{number}: invalid times {line[:60]!r}, expected times such as 00:00:01.000 "
                "--> 00:00:02.500"
            )
    cues = _vtt_cues(path, text) if is_vtt else _srt_cues(path, text)
    if dialogues := sum(len(DASH.findall(x)) > 1 for _, _, x in cues):
        print(
            f"warning: {path}: {dialogues:,} subtitles contain several lines that begin with a dash, so "
            "probably several people speak in one clip. To leave these clips out, delete these "
            "subtitles"
        )
    if len(voices := list(dict.fromkeys(x.strip() for x in VOICE.findall(text)))) > 1:
        print(
            f"note: {path}: the subtitles contain {len(voices):,} voices, such as {voices[0][:40]!r} "
            f"and {voices[1][:40]!r}. All clips are assigned to one speaker"
        )
    if len(cues) != num_cues:
        raise UserError(
            f"{path}: contains {num_cues:,} lines with times (-->), but only {len(cues):,} "
            "subtitles could be read"
        )
    with_text = [(start, end, _without_empty_lines(text)) for start, end, text in cues]
    spoken = [cue for cue in with_text if cue[2] or cue is with_text[-1]]
    return without_rolling_times(path, without_rolling_lines(path, spoken))


def _without_empty_lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _vtt_cues(path: Path, text: str) -> list[tuple[float, float, str]]:
    import webvtt

    try:
        captions = webvtt.from_string(text).captions
    except webvtt.errors.MalformedFileError as error:
        raise UserError(f"{path}: not valid WebVTT subtitles ({error})") from None
    return [
        (
            _seconds_of_time(x.start),
            _seconds_of_time(x.end),
            html.unescape(TAG.sub("", x.raw_text)),
        )
        for x in captions
    ]


def _srt_cues(path: Path, text: str) -> list[tuple[float, float, str]]:
    import srt

    try:
        subtitles = list(srt.parse(text))
    except srt.SRTParseError as error:
        unmatched = error.unmatched_content.strip()
        number = text[: error.actual_start].count("\n") + 1
        raise UserError(
            f"{path}: the text before line {number} is not a subtitle: {unmatched[:60]!r}"
        ) from None
    return [
        (x.start.total_seconds(), x.end.total_seconds(), html.unescape(TAG.sub("", x.content)))
        for x in subtitles
    ]


def _seconds_of_time(time: str) -> float:
    """Convert a time such as 01:02:03.500 to seconds."""
    seconds = 0.0
    for part in time.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def without_rolling_lines(
    path: Path, cues: list[tuple[float, float, str]]
) -> list[tuple[float, float, str]]:
    """Remove the lines that subtitles repeat from the previous subtitle.

    Automatic captions show each line twice: first alone, and then above the next line. Before the
    next line appears, many captions show the first line again for a time that is too short for
    speech.

    If only a few subtitles repeat lines, all lines are kept. A line that is repeated after a gap
    between subtitles is removed only if many subtitles repeat lines. A longer subtitle that
    contains only repeated lines is kept, because it may be the refrain of a song.
    """
    repeated = _repeated_lines(cues)
    if not any(repeated):
        return cues
    is_flash = [
        count == len(x.split("\n")) for count, (_, _, x) in zip(repeated, cues, strict=True)
    ]
    # The list begins with 0, so ends[i] is the end time of subtitle i - 1.
    ends = [0.0, *(end for _, end, _ in cues)]
    is_certain = [
        count > 0 and (flash or start - end < MAX_ROLLING_GAP)
        for count, flash, end, (start, _, _) in zip(repeated, is_flash, ends, cues, strict=False)
    ]
    num_repeated = sum(count > 0 for count in repeated)
    is_common = num_repeated >= max(3, MIN_ROLLING_SHARE_WITH_GAPS * (len(cues) - 1))
    if not is_common and sum(is_certain) < MIN_ROLLING_SHARE * len(cues):
        if any(is_certain):
            print(
                f"warning: {path}: {sum(is_certain):,} of {len(cues):,} subtitles begin with the "
                "last line of the previous subtitle. If such a line is spoken only once, remove its "
                "repetition"
            )
        return cues
    has_gaps = is_common or any(is_flash)
    kept = []
    num_removed = 0
    for (start, end, text), count, certain in zip(cues, repeated, is_certain, strict=True):
        if not count or not (certain or has_gaps):
            kept.append((start, end, text))
            continue
        num_removed += 1
        if new := text.split("\n")[count:]:
            kept.append((start, end, "\n".join(new)))
    print(
        f"note: {path}: removed the first line of {count_of(num_removed, 'subtitle')}, because it repeats the "
        "last line of the previous subtitle"
    )
    return kept


def _repeated_lines(cues: Sequence[tuple[float, float, str]]) -> list[int]:
    """Return, for each subtitle, how many of its first lines repeat the last lines of the previous
    subtitle.

    The result is 0 for a subtitle that contains only repeated lines and is long enough for speech.
    """
    counts = []
    previous: list[str] = []
    for start, end, text in cues:
        lines = text.split("\n")
        sizes = range(min(len(lines), len(previous)), 0, -1)
        count = next((size for size in sizes if lines[:size] == previous[-size:]), 0)
        has_new_line = count < len(lines) and lines[count] not in previous
        counts.append(count if has_new_line or end - start < MIN_SPEECH_SECONDS else 0)
        previous = lines
    return counts


def without_rolling_times(
    path: Path, cues: list[tuple[float, float, str]]
) -> list[tuple[float, float, str]]:
    """End each subtitle at the start of the next subtitle, if most subtitles overlap.

    In automatic captions, subtitles overlap because a line stays visible while the next line is
    spoken.
    """
    ends = [min(end, following[0]) for (_, end, _), following in pairwise(cues)]
    num_overlaps = sum(end < cue[1] - MAX_OVERLAP for end, cue in zip(ends, cues, strict=False))
    in_order = all(cue[0] < following[0] for cue, following in pairwise(cues))
    if not in_order or num_overlaps <= len(cues) / 2:
        return cues
    print(
        f"note: {path}: {num_overlaps:,} of {len(cues):,} subtitles overlap the next subtitle, so "
        "the program cuts off each subtitle where the next subtitle begins"
    )
    last = cues[-1]
    return [(cue[0], end, cue[2]) for cue, end in zip(cues, ends, strict=False)] + [last]


def _read_textgrid(path: Path, tier: str) -> list[tuple[float, float, str]]:
    from praatio import textgrid
    from praatio.utilities.errors import PraatioException

    if read_bytes(path).startswith(b"ooBinaryFile"):
        raise UserError(
            f"{path}: binary TextGrid, expected text. In Praat, save the TextGrid as a text file"
        )
    try:
        grid = textgrid.openTextgrid(
            str(path), includeEmptyIntervals=True, duplicateNamesMode="rename"
        )
    except UnicodeDecodeError:
        raise UserError(f"{path}: neither UTF-8 nor UTF-16. Save the file as UTF-8") from None
    except (PraatioException, ValueError, IndexError, OSError) as error:
        raise UserError(f"{path}: not a valid Praat TextGrid ({error})") from None
    # praatio accepts a truncated file, so compare the number of intervals and points with the
    # header. Remove zero bytes first, because the file may be in UTF-16.
    content = path.read_bytes().replace(b"\0", b"")
    sizes = TEXTGRID_SIZE.findall(content)
    num_expected = sum(int(size) for pair in sizes for size in pair if size)
    num_found = sum(len(grid.getTier(name).entries) for name in grid.tierNames)
    if num_found < num_expected:
        raise UserError(
            f"{path}: contains {num_found:,} intervals and points, but its header states "
            f"{num_expected:,}, so the end of the file is missing"
        )
    tiers = [x for x in grid.tierNames if isinstance(grid.getTier(x), textgrid.IntervalTier)]
    if not tiers:
        raise UserError(f"{path}: contains no interval tier (expected a tier with the texts)")
    if not tier and len(tiers) == 1:
        tier = tiers[0]
    if tier not in tiers:
        raise UserError(
            f"{path}: contains the tiers {', '.join(tiers)}. Choose the tier that contains the "
            "sentences with --tier"
        )
    return [(start, end, text) for start, end, text in grid.getTier(tier).entries if text]


def is_textgrid(text: str) -> bool:
    """Return whether a text file begins like a TextGrid. Praat can save TextGrids as .txt files."""
    return text.lstrip("\ufeff").startswith('File type = "ooTextFile"')


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


class _Line(NamedTuple):
    text: str  # text that follows the key on the same line
    where: str  # "file:line", for messages


def is_kaldi(folder: Path) -> bool:
    return all((folder / name).is_file() for name in KALDI_FILES)


def read_kaldi(folder: Path) -> list[Entry]:
    """Read a Kaldi data directory: wav.scp, text and, if they exist, segments and utt2spk.

    Raises:
        UserError: in any of these cases:
            - wav.scp contains a command instead of a path.
            - An id that must be in two files is missing from one of them.
            - A line is malformed.
            - A segment with the end -1 overlaps another segment.
    """
    recordings = _read_map(folder / "wav.scp")
    for line in recordings.values():
        if line.text.endswith("|"):
            raise UserError(f"{line.where}: {line.text[:60]!r} is a command, expected a path")
    segments = {}
    if (folder / "segments").is_file():
        segments = _read_map(folder / "segments")
    speakers = {}
    if (folder / "utt2spk").is_file():
        speakers = _read_map(folder / "utt2spk")
    texts = _read_map(folder / "text")
    if without_text := [utterance for utterance in segments if utterance not in texts]:
        print(
            f"note: {len(without_text):,} of {len(segments):,} segments, such as {without_text[0]}, "
            f"have no text in {folder / 'text'}, so they are not used"
        )
    entries = []
    for utterance, (text, where) in texts.items():
        recording = utterance
        segment = None
        if segments:
            if utterance not in segments:
                raise UserError(
                    f"{where}: the utterance {utterance!r} is not in {folder / 'segments'}"
                )
            recording, segment = _kaldi_segment(segments[utterance])
        if recording not in recordings:
            raise UserError(f"{where}: the recording {recording!r} is not in {folder / 'wav.scp'}")
        path = recordings[recording].text
        speaker = speakers[utterance].text if utterance in speakers else ""
        entries.append(Entry(path, text, where, speaker, segment))
    _check_open_ends(entries)
    return entries


def read_librispeech(path: Path, corpus: Path) -> list[Entry]:
    """Read the texts of a chapter of LibriSpeech (84-121123.trans.txt): an id and a text per line.

    The audio files are in the same folder, with the ids as names.

    Raises:
        UserError: if an id occurs twice.
    """
    folder = path.parent.relative_to(corpus)
    return [Entry(str(folder / name), *line) for name, line in _read_map(path).items()]


def _check_open_ends(entries: Sequence[Entry]) -> None:
    """Raise UserError if a segment without an end time overlaps another segment of its recording.

    A segment without an end time lasts until the end of the recording, so it must be the last
    segment of the recording.
    """
    latest: dict[str, Entry] = {}
    for entry in entries:
        if entry.segment:
            last = latest.setdefault(entry.name, entry)
            assert last.segment is not None
            if entry.segment.start > last.segment.start:
                latest[entry.name] = entry
    for entry in entries:
        last = latest.get(entry.name, entry)
        if entry is last or not entry.segment:
            continue
        assert last.segment is not None
        if entry.segment.seconds is None:
            raise UserError(
                f"{entry.where}: the segment ends at -1, which means the end of the recording, but "
                f"{last.where} is a later segment of this recording (expected the end in seconds)"
            )
        end = entry.segment.start + entry.segment.seconds
        if last.segment.seconds is None and end > last.segment.start + MAX_OVERLAP:
            raise UserError(
                f"{entry.where}: the segment ends at {end:g} s, but the segment in {last.where} "
                f"starts at {last.segment.start:g} s (expected segments that do not overlap)"
            )


def _kaldi_segment(line: _Line) -> tuple[str, Segment]:
    """Parse a line of the file `segments`, and return the recording's id and the segment."""
    values = line.text.split()
    if len(values) != 3:
        raise UserError(
            f"{line.where}: {len(values) + 1} fields, expected four: utterance, recording, start and "
            "end"
        )
    start = _seconds(values[1], line.where)
    # In Kaldi, an end time of -1 means the end of the recording.
    seconds = None if values[2] == "-1" else _seconds(values[2], line.where) - start
    return values[0], Segment(start, seconds)


def _read_map(path: Path) -> dict[str, _Line]:
    """Read a file whose lines contain a key, a space and a value."""
    values = dict[str, _Line]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        key, *rest = line.split(maxsplit=1)
        if key in values:
            raise UserError(f"{path}:{number}: the id {key!r} occurs twice, expected unique ids")
        values[key] = _Line(rest[0].strip() if rest else "", f"{path}:{number}")
    return values


def _seconds(value: str, where: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        raise UserError(f"{where}: {value!r} is not a number of seconds")
    return float(value)


def is_lhotse(path: Path) -> bool:
    """Return whether a file is named like a lhotse supervision manifest."""
    return bool(re.search(r"supervisions.*\.jsonl(\.gz)?$", path.name))


def read_lhotse(path: Path) -> list[Entry]:
    """Read a lhotse supervision manifest and the recording manifest in the same folder.

    The file name of the recording manifest contains `recordings` instead of `supervisions`.

    Raises:
        UserError: if a manifest cannot be read, or if a recording is missing or consists of several
            files or channels.
    """
    recordings_path = path.with_name(path.name.replace("supervisions", "recordings"))
    sources = {}
    for where, recording in _json_lines(recordings_path):
        try:
            files = [x for x in recording["sources"] if x.get("type") == "file"]
            [file] = files
            sources[str(recording["id"])] = file["source"]
            channels = [*(file.get("channels") or recording.get("channel_ids") or [0])]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(
                f"{where}: invalid recording (expected an id and exactly one source of the type 'file')"
            ) from None
        if channels != [0]:
            raise UserError(
                f"{where}: the recording has the channels {channels!r:.60} (expected only channel "
                "0). Write each channel to its own file"
            )
    entries = []
    for where, supervision in _json_lines(path):
        recording_id = str(supervision.get("recording_id"))
        if recording_id not in sources:
            raise UserError(f"{where}: recording {recording_id!r} is not in {recordings_path}")
        try:
            start, seconds = (float(supervision[name]) for name in ("start", "duration"))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(
                f"{where}: no valid start and duration (expected numbers of seconds)"
            ) from None
        if not (0 <= start < math.inf and 0 < seconds < math.inf):
            raise UserError(
                f"{where}: invalid start {start:g} s or duration {seconds:g} s (expected a start "
                "of at least 0 s and a duration above 0 s)"
            )
        channel = supervision.get("channel")
        if channel not in (None, 0, [0]):
            raise UserError(f"{where}: the channel is {channel!r:.60}, expected 0")
        text, speaker = (supervision.get(name) or "" for name in ("text", "speaker"))
        for name, value in (("text", text), ("speaker", speaker)):
            if not isinstance(value, str | int):
                raise UserError(f"{where}: the {name} is {value!r:.60}, expected a string")
        text = " ".join(str(text).split())
        speaker = str(speaker)
        segment = Segment(start, seconds)
        entries.append(Entry(str(sources[recording_id]), text, where, speaker, segment))
    return entries


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping]]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as a lhotse manifest ({error})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{path}:{number}: {line[:60]!r} is not a JSON object") from None
        yield f"{path}:{number}", value


def padded(clips: Sequence[Clip], padding: float) -> tuple[list[Clip], list[str]]:
    """Lengthen segments by `padding` seconds at each end.

    If two segments of a recording are less than twice `padding` apart, both segments extend only to
    the middle of the gap. Clips that are whole recordings do not change.

    Returns:
        A tuple of the clips in their original order, and a list of messages. The list contains one
        message for each bad segment. A segment is bad if its end is not after its start, or if it
        overlaps another segment by more than 0.05 s.
    """
    by_recording = defaultdict[str, list[int]](list)
    changed = list(clips)
    problems = {}
    for i, clip in enumerate(clips):
        if not clip.segment or clip.segment.seconds is None:
            continue
        if clip.segment.seconds > 0:
            by_recording[clip.path].append(i)
        else:
            start, end = _bounds(clip)
            problems[i] = (
                f"{clip.where}: the segment starts at {start:g} s and ends at {end:g} s, expected start "
                "before end"
            )
    for indices in by_recording.values():
        indices.sort(key=lambda i: _bounds(clips[i]))
        bounds = [_bounds(clips[i]) for i in indices]
        before = 0.0  # latest end time of the segments before segment i
        latest_index = indices[0]  # index of the segment that ends at `before`
        for rank, i in enumerate(indices):
            start, end = bounds[rank]
            if before - start > MAX_OVERLAP:
                # Report both segments, because either segment may be wrong.
                for one, other in ((i, latest_index), (latest_index, i)):
                    first_second, last_second = _bounds(clips[one])
                    problems.setdefault(
                        one,
                        f"{clips[one].where}: the segment from {first_second:.2f} s to "
                        f"{last_second:.2f} s overlaps "
                        f"{clips[other].where} by {before - start:.2f} s; expected segments that "
                        "do not overlap",
                    )
            first = rank == 0
            earliest = 0.0 if first else (before + start) / 2
            latest = (end + bounds[rank + 1][0]) / 2 if rank + 1 < len(indices) else end + padding
            new_start = min(start, max(start - padding, earliest))
            new_end = max(end, min(end + padding, latest))
            changed[i] = replace(clips[i], segment=Segment(new_start, new_end - new_start))
            if end > before:
                before = end
                latest_index = i
    kept = [clip for i, clip in enumerate(changed) if i not in problems]
    return kept, [problems[i] for i in sorted(problems)]


def _bounds(clip: Clip) -> tuple[float, float]:
    # `padded` calls this function only for clips that have a segment of known length
    assert clip.segment is not None
    assert clip.segment.seconds is not None
    return clip.segment.start, clip.segment.start + clip.segment.seconds
