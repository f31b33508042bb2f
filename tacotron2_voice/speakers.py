"""The speakers of a model, by name.

index = chosen_index("kathleen", hparams.speakers, "voice/")  # None where there is one voice
index = speaker_index("kathleen", ("kathleen", "lj"), "voice/")
"""

import difflib
import shlex
import unicodedata
from collections.abc import Sequence

from tacotron2_voice.utils.errors import UserError

MAX_LISTED = 10  # names in a message
MAX_NAME = 128  # characters of a name; a client_id of Common Voice has 128


def speaker_name(text: str, label: str = "speaker") -> str:
    """A name as it is compared, in Unicode's composed form; `label`: of what. UserError if it is
    longer than MAX_NAME characters, or has some that cannot be printed."""
    name, fault = unicodedata.normalize("NFC", text), ""
    if len(name) > MAX_NAME:
        fault = f"{len(name):,} characters, expected at most {MAX_NAME}"
    elif not name.isprintable():
        fault = "expected characters that can be printed"
    if fault:
        raise UserError(f"{label} {name[:MAX_NAME]!r}: {fault}; write another name")
    return name


def speaker_index(name: str, speakers: Sequence[str], where: str, label: str = "speaker") -> int:
    """The index of the speaker `name`; `label`: what `speakers` are, if not that.

    Raises:
        UserError: if there is none; it says that `where` lacks the name, and names one like it.
    """
    composed = unicodedata.normalize("NFC", name.strip())
    if composed in speakers:
        return speakers.index(composed)
    by_folded = {known.casefold(): known for known in reversed(speakers)}
    folded = composed.casefold()[:MAX_NAME]  # a long text takes minutes beside many names
    near = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.5)
    meant = f"did you mean {by_folded[near[0]]!r}? It" if near else "it"
    raise UserError(
        f"{label} {name[:60]!r}: {where} does not know it; {meant} knows {listed(speakers)}"
    )


def chosen_index(name: str | None, speakers: Sequence[str], where: str) -> int | None:
    """The index of the speaker who is to speak. None where `speakers` are none: one voice. Without
    a name, the only speaker.

    Raises:
        UserError: if `where` does not know the name, has one voice and needs no name, or has
            several speakers and needs one.
    """
    if not speakers:
        if name is None:
            return None
        raise UserError(f"speaker {name[:60]!r}: {where} has one voice; leave --speaker out")
    if name is not None:
        return speaker_index(name, speakers, where)
    if len(speakers) == 1:
        return 0
    raise UserError(
        f"{where} knows {len(speakers):,} speakers, {listed(speakers)}: choose one, by "
        f"{speaker_option(speakers[0])}"
    )


def speaker_option(name: str) -> str:
    """The option of a shell's command that chooses the speaker `name`."""
    # After a blank, a name that begins with a hyphen would be read as an option.
    separator = "=" if name.startswith("-") else " "
    return f"--speaker{separator}{shlex.quote(name)}"


def problem_of_names(speakers: Sequence[str]) -> str:
    """What is wrong with the names in a file from elsewhere; "" if they are as filelists have
    them: printable, in Unicode's composed form, and each once."""
    known = set[str]()
    for name in speakers:
        is_plain = name == unicodedata.normalize("NFC", name).strip() and name.isprintable()
        if not (is_plain and 1 <= len(name) <= MAX_NAME):
            expected = f"expected 1 to {MAX_NAME} characters that can be printed"
            return f"speakers: {name[:60]!r}: {expected}"
        if name in known:
            return f"speakers: {name[:60]!r} is named twice"
        known.add(name)
    return ""


def listed(speakers: Sequence[str]) -> str:
    """The names for a message, the first MAX_LISTED of them."""
    names = ", ".join(repr(name) for name in speakers[:MAX_LISTED])
    more = len(speakers) - MAX_LISTED
    return f"{names} and {more:,} more" if more > 0 else names
