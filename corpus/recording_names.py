r"""Find the name of a recording in its text.

    name_at_start(Path("wavs/u1"), "u1.wav|Yes.").end()  # 7
    name_at_end(Path("wavs/u1"), "Yes. (u1)").start()  # 4

In the formats of Kaldi and CMU Sphinx, each text contains the name of its recording, but the name
is not spoken.
"""

import re
from pathlib import Path

# Suffixes of formats that libsndfile can read. If several files differ only in format, the first
# suffix in this tuple is used.
READABLE = (".wav", ".wave", ".flac", ".aif", ".aiff", ".ogg", ".opus", ".mp3")
AUDIO_SUFFIXES = (
    *READABLE,
    *".m4a .mp2 .aac .wma .mp4 .webm .au .snd .caf .w64 .rf64 .aifc .oga .amr .3gp .wv .ape .sph".split(),
)
# Matches the name of a recording: either letters and digits, or a number with a leading zero, such
# as 0012.
RECORDING_ID = re.compile(r"(?=.*[^\W\d_])(?=.*\d).+|0\d+")
MAX_BEFORE_NAME = 100  # maximum number of characters in a text before the recording's name
# Matches the characters between the name of a recording at the beginning of a text and the rest of
# the text.
AFTER_NAME = r"(?P<pipe>\s*\|\s*)|\s*[:：]\s*|[,;=]\s*|\.?\s+(?:[-–—=]+\s+)?|$"


def name_at_start(name: Path, text: str) -> re.Match[str] | None:
    """Find the name of a recording at the beginning of the recording's text.

    In the text, the name may have an extension, folders, quotation marks, brackets or a number
    sign. The text may contain only the last words of the name. For example, the text of
    anna_0012.wav may begin with 0012.

    Args:
        name: the path of the recording without its extension.
        text: the text, without leading or trailing spaces.
    """
    parts = re.split(r"[-_. ]", name.name)
    ends = [name.name[len("".join(parts[:i])) + i :] for i in range(len(parts))]
    candidates = [x for i, x in enumerate(ends) if not i or RECORDING_ID.fullmatch(x)]
    beginning = text[: len(str(name)) + MAX_BEFORE_NAME].lower()
    if not any(x.lower() in beginning for x in candidates):
        return None  # this search is much faster than matching the pattern below
    names = "|".join(map(re.escape, candidates))
    suffixes = "|".join(map(re.escape, (*AUDIO_SUFFIXES, ".txt", ".lab")))
    listed = rf"(?:#\s*)?(?:[a-z]:)?(?:[\w.-]*[/\\])*(?:{names})(?P<suffix>{suffixes})?"
    quoted = rf"(?P<open>[\[(\"'<])?{listed}(?(open)[\])\"'>])"
    return re.match(rf"{quoted}(?:{AFTER_NAME})", text, re.IGNORECASE)


def name_at_end(name: Path, text: str) -> re.Match[str] | None:
    """Find the name of a recording at the end of the recording's text.

    The name follows a space or a pipe, or is in parentheses as in CMU Sphinx.
    """
    if name.name not in text:
        return None  # this search is much faster than matching the pattern below
    escaped = re.escape(name.name)
    return re.search(rf"(\s*(?P<open>\()|\s*\|\s*|\s+){escaped}(?(open)\))\s*$", text)
