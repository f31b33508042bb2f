"""Look up the speakers of a model by name.

index = chosen_index("kathleen", settings.speakers, "voice/")  # None for one unnamed speaker
index = speaker_index("kathleen", ("kathleen", "linda"), "voice/")
"""

import difflib
import shlex
import unicodedata
from collections.abc import Sequence

from tacotron2_voice.utils.errors import UserError

MAX_LISTED = 10  # maximum number of names to list in a message
MAX_NAME = 128  # maximum number of characters per name; Common Voice's client_ids have 128
MIN_SIMILARITY = 0.5  # minimum similarity (0 to 1) between an unknown name and a suggested name


def speaker_name(text: str, label: str = "speaker") -> str:
    """Normalize a name to Unicode's composed form (NFC), so that names that look the same compare
    equal.

    `label` is the kind of name, such as "speaker", for messages.

    Raises:
        UserError: if the name is longer than MAX_NAME or contains control characters.
    """
    name = unicodedata.normalize("NFC", text)
    if len(name) > MAX_NAME:
        problem = f"{len(name):,} characters (expected at most {MAX_NAME})"
        raise UserError(f"{label} {name[:MAX_NAME]!r}: {problem}")
    if not name.isprintable():
        raise UserError(
            f"{label} {name!r}: contains control characters (expected printable characters)"
        )
    return name


def speaker_index(name: str, speakers: Sequence[str], where: str, label: str = "speaker") -> int:
    """Return the index of the speaker `name` in `speakers`, ignoring spaces around the name.

    Args:
        where: the file or folder of the model, for messages.
        label: the kind of name, such as "speaker", for messages.

    Raises:
        UserError: if `speakers` does not contain the name. The error message suggests a similar
            name.
    """
    composed = unicodedata.normalize("NFC", name.strip())
    if composed in speakers:
        return speakers.index(composed)
    by_folded = {known.casefold(): known for known in reversed(speakers)}
    folded = composed.casefold()
    similar = difflib.get_close_matches(folded, by_folded, n=1, cutoff=MIN_SIMILARITY)
    suggestion = f"did you mean {by_folded[similar[0]]!r}? It has " if similar else "it has "
    raise UserError(f"{label} {name[:60]!r}: not in {where}; {suggestion}{listed(speakers)}")


def chosen_index(name: str | None, speakers: Sequence[str], where: str) -> int | None:
    """Return the index of the speaker to use, or None if the model's speaker has no name.

    If `name` is None and the model has one named speaker, return the index of this speaker.

    Raises:
        UserError: if the name is unknown, if a name is given but the model's speaker has no name,
            or if no name is given and the model has several speakers.
    """
    if not speakers:
        if name is None:
            return None
        raise UserError(f"speaker {name[:60]!r}: {where} has one speaker without a name")
    if name is not None:
        return speaker_index(name, speakers, where)
    if len(speakers) == 1:
        return 0
    expected = f"expected one of {listed(speakers)}"
    raise UserError(f"{where} has {len(speakers):,} speakers ({expected})")


def speaker_option(name: str) -> str:
    """Return the command-line option that selects the speaker `name`."""
    # Write "=", because argparse would treat a name that starts with a hyphen as an option.
    separator = "=" if name.startswith("-") else " "
    return f"--speaker{separator}{shlex.quote(name)}"


def problem_of_names(speakers: Sequence[str]) -> str:
    """Return a message about the first invalid speaker name, or "" if all names are valid.

    Speaker names must be unique, printable and in Unicode's composed form.
    """
    known = set[str]()
    for name in speakers:
        is_plain = name == unicodedata.normalize("NFC", name).strip() and name.isprintable()
        if not is_plain or not 1 <= len(name) <= MAX_NAME:
            expected = f"expected 1 to {MAX_NAME} printable characters"
            return f"speakers: {name[:60]!r}: {expected}"
        if name in known:
            return f"speakers: {name[:60]!r} occurs twice"
        known.add(name)
    return ""


def listed(speakers: Sequence[str]) -> str:
    """Format up to MAX_LISTED names for a message."""
    names = ", ".join(repr(name) for name in speakers[:MAX_LISTED])
    more = len(speakers) - MAX_LISTED
    return f"{names} and {more:,} more" if more > 0 else names
