"""Read SRT and WebVTT subtitles.

for start, end, text in read_subtitles(Path("book/chapter1.srt"), content):
    ...
"""

import html
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from corpus.clips import MAX_OVERLAP
from tacotron2_voice.utils.errors import UserError, count_of

TIME = r"\d?\d:\d\d[.,]\d{3}"
SRT_TIMES = re.compile(rf"\d{{1,3}}:{TIME}\s*-->\s*\d{{1,3}}:{TIME}(\s|$)")
VTT_TIMES = re.compile(
    rf"(\d{{1,3}}:)?{TIME}\s*-->\s*(\d{{1,3}}:)?{TIME}(\s|$)"
)  # in WebVTT, the hours of a time are optional
FIRST_TIME = re.compile(rf"(\d{{1,3}}:)?{TIME}\s*-->")
# Matches the times of a subtitle at the end of a file, even if the file was cut off inside them.
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
DASH = re.compile(r"^\s*[-‐–—](\s+[\w\"“¿¡']|[^\W\d_])", re.MULTILINE)
# In automatic captions, at least this fraction of the subtitles repeats a line of the previous
# subtitle.
MIN_ROLLING_SHARE = 0.3
# In automatic captions with gaps between subtitles, at least this fraction of the subtitles repeats
# a line of the previous subtitle.
MIN_ROLLING_SHARE_WITH_GAPS = 0.8
MAX_ROLLING_GAP = 0.1  # maximum pause between two subtitles in seconds; a longer pause is a gap
MIN_SPEECH_SECONDS = 0.1  # minimum length of a subtitle with speech, in seconds


def read_subtitles(path: Path, text: str) -> list[tuple[float, float, str]]:
    """Read an SRT or WebVTT file.

    Raise UserError at the first line whose times cannot be read.
    """
    is_vtt = text.lstrip().startswith("WEBVTT")
    times = VTT_TIMES if is_vtt else SRT_TIMES
    last = TIMES_AT_END.search(text)
    last_line = text.count("\n", 0, last.start(1)) + 1 if last else 0
    num_cues = 0
    for number, line in enumerate(text.split("\n"), 1):
        if "-->" not in line:
            continue
        num_cues += 1
        is_cut = number == last_line and FIRST_TIME.match(line.strip())
        if not is_cut and not times.match(line.strip()):
            raise UserError(
                f"{path}:{number}: invalid times {line[:60]!r}, expected times such as 00:00:01.000 "
                "--> 00:00:02.500"
            )
    if last and not times.match(last[1].strip()):
        raise UserError(
            f"{path}:{last_line}: the file ends inside the times of a subtitle ({last[1][:60]!r}), so "
            "the end of the file is missing"
        )
    cues = _vtt_cues(path, text) if is_vtt else _srt_cues(path, text)
    if dialogues := sum(len(DASH.findall(x)) > 1 for _, _, x in cues):
        print(
            f"warning: {path}: {count_of(dialogues, 'subtitle')} with several lines that begin with a "
            "dash, so probably several people speak in one clip. To leave such clips out, delete their "
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
