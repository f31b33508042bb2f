"""Define where a corpus stores speaker names, and which names are valid.

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

# If a table has fewer lines, the number of different speaker names is not checked, because each
# line may have a different speaker.
MIN_LINES = 5
# Maximum number of different speaker names in a table, divided by the number of lines. A speaker
# has several clips, so a column with more different values probably contains ids or texts.
MAX_DISTINCT_SHARE = 0.5


@dataclass(frozen=True)
class SpeakerSource:
    """Where a corpus stores speaker names. Set at most one field. If no field is set, the corpus
    has no speaker names.

    Args:
        column: title of the table column that contains the names, or its number, counted from 1.
        folders: whether the folders in the corpus are named after the speakers.
        name: name of the speaker, if the corpus has only one speaker.
    """

    column: str = ""
    folders: bool = False
    name: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.column or self.folders or self.name)


NO_SPEAKERS = SpeakerSource()


def checked_name(text: str, where: str) -> str:
    """Return a speaker's name in Unicode's composed form, without whitespace at the ends.

    Raises:
        UserError: if the name is invalid. The error message begins with `where`, which is either
            the file and line of the name or the option that contains the name.
    """
    name = text.strip()
    if not name:
        raise UserError(f"{where}: no speaker name, although other lines have names")
    if name in (".", "..") or "|" in name:
        raise UserError(
            f"{where}: speaker {name[:60]!r} is not a valid name (expected a name without '|', other "
            "than '.' and '..')"
        )
    try:
        return speaker_name(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def with_names(
    clips: Sequence[Clip], column: str, path: str | Path
) -> tuple[list[Clip], list[str]]:
    """Check the speaker names of all clips.

    Args:
        column: description of the column that contains the names, such as "column 2".
        path: the file that contains this column.

    Returns:
        A tuple of the clips with cleaned names, and a list with one message per clip with an
        invalid name.

    Raises:
        UserError: if no line has a name, if the column contains ids or texts, or if two names look
            alike.
    """
    values = {clip.speaker for clip in clips}
    if values == {""}:
        raise UserError(f"{path}: {column} contains no speaker name")
    if len(clips) >= MIN_LINES and len(values) > MAX_DISTINCT_SHARE * len(clips):
        raise UserError(
            f"{path}: {column} has {len(values):,} different values in {len(clips):,} lines, such as "
            f"{clips[0].speaker[:60]!r}, but each speaker should have several clips. Choose a "
            "different --speaker-column"
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
    """Raise UserError if two names differ only in case, spaces or the encoding of letters.

    Names such as "Anna" and "anna" usually refer to the same speaker. If "Anna" and "anna" are
    different speakers, a file system that ignores case would mix up the files of the two speakers.

    Args:
        named: pairs of a name and its origin, such as a file and line.
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
            f"the speaker names {pairs[0]}{more} differ only in case, spaces or the encoding of "
            "letters. Use the same spelling for the same person, and clearly different names for "
            "two people"
        )
