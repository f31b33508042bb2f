"""Where a corpus names its speakers, and which names are accepted.

source = SpeakerSource(column="2")
clips, problems = with_names(clips, "column 2", "metadata.csv")
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.cache import MAX_NAMES, too_many_names
from corpus.clips import Clip
from tacotron2_voice.speakers import speaker_name
from tacotron2_voice.utils.errors import UserError

MIN_LINES = 5  # in fewer lines, all names may differ
MAX_DISTINCT_SHARE = 0.5  # names over lines: a speaker has several clips
ONE_SPELLING = "give one person one spelling, and two people names that differ more"


@dataclass(frozen=True)
class SpeakerSource:
    """Where a corpus names its speakers: nowhere by default, otherwise in one of these ways.

    Args:
        column: a column of the table, by its title or by its number from 1 on.
        folders: whether the folders in the corpus are named after the speakers.
        name: of the only speaker.
    """

    column: str = ""
    folders: bool = False
    name: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.column or self.folders or self.name)


NO_SPEAKERS = SpeakerSource()


def problem_of_name(text: str) -> str:
    """Return what is wrong with a speaker's name; "" for a good name."""
    if not text:
        return "no speaker, expected a name as in other lines"
    if text in (".", "..") or "|" in text:
        return f"speaker {text[:60]!r}, expected a name without '|', not '.' or '..'"
    try:
        speaker_name(text)
    except UserError as error:
        return str(error)
    return ""


def checked_name(text: str, where: str) -> str:
    """Return a speaker's name as it is compared. UserError for a bad name, with `where` it is."""
    name = text.strip()
    if problem := problem_of_name(name):
        raise UserError(f"{where}: {problem}")
    return speaker_name(name)


def with_names(
    clips: Sequence[Clip], column: str, path: str | Path
) -> tuple[list[Clip], list[str]]:
    """Check the names of the clips' speakers, which are in this column of the file at `path`.

    Returns the clips with their names as they are compared, and the problems of other clips.

    Raises:
        UserError: if no line has a name, if the column contains ids or texts, or if names look
            alike.
    """
    if clips and not any(clip.speaker for clip in clips):
        raise UserError(f"{path}: {column} is empty in all lines, expected names of speakers")
    values = {clip.speaker for clip in clips}
    if len(clips) >= MIN_LINES and len(values) > MAX_DISTINCT_SHARE * len(clips):
        raise UserError(
            f"{path}: {column} has {len(values):,} values in {len(clips):,} lines, such as "
            f"{clips[0].speaker[:60]!r}, expected speakers with several clips each; name another "
            "--speaker-column"
        )
    problems = []
    good = []
    written = set[str]()
    for clip in clips:
        if problem := problem_of_name(clip.speaker):
            problems.append(f"{clip.where}: {column}: {problem}")
        else:
            written.add(clip.speaker)
            good.append(replace(clip, speaker=speaker_name(clip.speaker)))
    first = {clip.speaker: clip.where for clip in reversed(good)}
    check_number_of_speakers(first, path)
    check_lookalikes(sorted(first.items()))
    if twice := sorted(name for name in first if len(_spellings(name) & written) > 1):
        print(
            f"note: {path}: {len(twice):,} names of speakers, such as {twice[0]!r}, are written in "
            "two Unicode forms; each is read as one name"
        )
    return good, problems


def _spellings(name: str) -> set[str]:
    return {unicodedata.normalize(form, name) for form in ("NFC", "NFD")}


def check_number_of_speakers(names: Sequence[str] | dict[str, str], where: str | Path) -> None:
    """Raise UserError for more than MAX_NAMES names."""
    if len(names) > MAX_NAMES:
        raise UserError(f"{where}: {too_many_names('speaker', len(names))}")


def check_lookalikes(named: Sequence[tuple[str, str]]) -> None:
    """Raise UserError if any of (name, place) differ only in case, spaces or forms of letters.

    Such names mostly mean one speaker, and their files are the same where case is ignored.
    """
    first: dict[str, tuple[str, str]] = {}
    pairs = []
    for name, where in named:
        key = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        other, place = first.setdefault(key, (name, where))
        if place != where:
            pairs.append(f"{other!r} ({place}) and {name!r} ({where})")
    if pairs:
        more = f", and {len(pairs) - 1:,} more" * (len(pairs) > 1)
        raise UserError(
            f"speakers {pairs[0]}{more} differ only in case or in how letters are written; "
            f"{ONE_SPELLING}"
        )
