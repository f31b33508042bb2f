"""Define the places of speakers' names in a corpus, and the names that are accepted.

source = SpeakerSource(column="2")
clips, problems = with_names(clips, "column 2", "metadata.csv")
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.clips import Clip
from tacotron2_voice.speakers import speaker_name
from tacotron2_voice.utils.errors import UserError

MIN_LINES = 5  # with fewer lines, all names may differ
MAX_DISTINCT_SHARE = 0.5  # limit of names divided by lines, because a speaker has several clips


@dataclass(frozen=True)
class SpeakerSource:
    """Describe where the names of the speakers are: nowhere by default, otherwise in one of these
    places.

    Args:
        column: a column of the table, by its title or by its number from 1 on.
        folders: whether each folder in the corpus has the name of a speaker.
        name: name of the only speaker.
    """

    column: str = ""
    folders: bool = False
    name: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.column or self.folders or self.name)


NO_SPEAKERS = SpeakerSource()


def checked_name(text: str, where: str) -> str:
    """Return a speaker's name in Unicode's composed form, without spaces at its ends.

    Raises:
        UserError: if the name is not valid. The message begins with `where`, which is the line of
            the name.
    """
    name = text.strip()
    if not name:
        raise UserError(f"{where}: no speaker, expected a name as in other lines")
    if name in (".", "..") or "|" in name:
        raise UserError(
            f"{where}: speaker {name[:60]!r}, expected a name without '|', not '.' or '..'"
        )
    try:
        return speaker_name(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def with_names(
    clips: Sequence[Clip], column: str, path: str | Path
) -> tuple[list[Clip], list[str]]:
    """Check the names of the clips' speakers, which are in this column of the file at `path`.

    Returns the clips with cleaned names, and the problems of the other clips.

    Raises:
        UserError: if no line has a name, if the column contains ids or texts, or if names look
            alike.
    """
    values = {clip.speaker for clip in clips}
    if values == {""}:
        raise UserError(f"{path}: {column} is empty in all lines, expected names of speakers")
    if len(clips) >= MIN_LINES and len(values) > MAX_DISTINCT_SHARE * len(clips):
        raise UserError(
            f"{path}: {column} has {len(values):,} values in {len(clips):,} lines, such as "
            f"{clips[0].speaker[:60]!r}, expected speakers with several clips each; choose another "
            "--speaker-column"
        )
    problems = []
    good = []
    for clip in clips:
        try:
            name = checked_name(clip.speaker, f"{clip.where}: {column}")
        except UserError as error:
            problems.append(str(error))
        else:
            good.append(replace(clip, speaker=name))
    first = {clip.speaker: clip.where for clip in reversed(good)}
    check_lookalikes(sorted(first.items()))
    return good, problems


def check_lookalikes(named: Sequence[tuple[str, str]]) -> None:
    """Raise UserError if two names differ only in case, spaces or forms of letters.

    Such names usually belong to one speaker, and file systems that ignore case would mix their
    files.
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
            f"speakers {pairs[0]}{more} differ only in case or in how letters are written; give one "
            "person one spelling, and two people names that differ more"
        )
