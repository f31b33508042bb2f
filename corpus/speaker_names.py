"""Where a corpus names its speakers, and which names are refused.

source = SpeakerSource(column="2")
clips, problems = with_names(clips, "field 2", "metadata.csv")
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.clip_table import MAX_NAMES, Clip, too_many_names
from corpus.field_order import MIN_DISTINCT_SHARE, MIN_LINES
from tacotron2_voice.speakers import speaker_name
from tacotron2_voice.utils.errors import UserError

ONE_SPELLING = "give one person one spelling, and two people names that differ more"


@dataclass(frozen=True)
class SpeakerSource:
    """Where a corpus names its speakers: nowhere by default, else in one of these ways.

    Args:
        column: a field of metadata.csv by its number from 1 on, or a table's column by its number
            or title.
        folders: the folders in the corpus are named after the speakers of what is in them.
        name: of the only speaker.
    """

    column: str = ""
    folders: bool = False
    name: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.column or self.folders or self.name)


NO_SPEAKERS = SpeakerSource()


def fault_of_name(text: str) -> str:
    """What is wrong with a speaker's name, and what to do; empty for a good one."""
    if not text:
        return "no speaker; name who speaks, as the other lines do"
    if text in (".", "..") or "|" in text:
        expected = "expected a name without '|', not '.' or '..'"
        return f"speaker {text[:60]!r}: {expected}; write another name"
    try:
        speaker_name(text)
    except UserError as error:
        return str(error)
    return ""


def checked_name(text: str, where: str) -> str:
    """A speaker's name as it is compared. UserError for a bad one, naming `where` it is written."""
    name = text.strip()
    if fault := fault_of_name(name):
        raise UserError(f"{where}: {fault}")
    return speaker_name(name)


def with_names(clips: Sequence[Clip], field: str, path: str | Path) -> tuple[list[Clip], list[str]]:
    """Check the names of the clips' speakers, which a `field` of the file at `path` gives. Returns
    the clips with the names as they are compared, and the problems of the others.

    Raises:
        UserError: if no line names one, if the field holds ids or texts, or if names look alike.
    """
    faults = [fault_of_name(clip.speaker) for clip in clips]
    problems = [
        f"{clip.where}: {field}: {fault}"
        for clip, fault in zip(clips, faults, strict=True)
        if fault
    ]
    good = [
        replace(clip, speaker=speaker_name(clip.speaker))
        for clip, fault in zip(clips, faults, strict=True)
        if not fault
    ]
    if clips and not any(clip.speaker for clip in clips):
        raise UserError(
            f"{path}: {field} is empty in all lines, expected names of speakers; name another "
            "--speaker-column, or leave it out"
        )
    values = {clip.speaker for clip in clips}
    if len(clips) >= MIN_LINES and len(values) > MIN_DISTINCT_SHARE * len(clips):
        raise UserError(
            f"{path}: {field} has {len(values):,} values in {len(clips):,} lines, such as "
            f"{clips[0].speaker[:60]!r}; expected names of speakers with several clips each: name "
            "another --speaker-column, or leave out speakers of a single clip"
        )
    first = {clip.speaker: clip.where for clip in reversed(good)}
    refuse_too_many(first, path)
    refuse_lookalikes([(name, where) for name, where in sorted(first.items())])
    written = {clip.speaker for clip, fault in zip(clips, faults, strict=True) if not fault}
    if twice := sorted(name for name in first if len(_spellings(name) & written) > 1):
        print(
            f"Notice: {path}: {len(twice):,} names of speakers, such as {twice[0]!r}, have accents "
            "as parts of letters and as characters of their own: read as the same"
        )
    return good, problems


def _spellings(name: str) -> set[str]:
    return {unicodedata.normalize(form, name) for form in ("NFC", "NFD")}


def refuse_too_many(names: Sequence[str] | dict[str, str], where: str | Path) -> None:
    """Raise a UserError for more than MAX_NAMES."""
    if len(names) > MAX_NAMES:
        raise UserError(f"{where}: {too_many_names('speaker', len(names))}")


def refuse_lookalikes(named: Sequence[tuple[str, str]]) -> None:
    """Raise a UserError if any of (name, place) differ only in case, blanks or forms of letters:
    mostly it is one speaker, and files of two are one where case is ignored."""
    first, pairs = dict[str, tuple[str, str]](), list[str]()
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
