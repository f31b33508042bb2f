"""The speakers of a model, by name.

index = speaker_index("kathleen", ("kathleen", "lj"), "voice/")
"""

import difflib
import unicodedata
from collections.abc import Sequence

from common.errors import UserError

MAX_LISTED = 10  # names in a message


def speaker_index(name: str, speakers: Sequence[str], where: str) -> int:
    """The index of the speaker `name`.

    Raises:
        UserError: if there is none; it names the nearest and says that `where` lacks the name.
    """
    composed = unicodedata.normalize("NFC", name.strip())
    if composed in speakers:
        return speakers.index(composed)
    by_folded = {known.casefold(): known for known in reversed(speakers)}
    near = difflib.get_close_matches(composed.casefold(), by_folded, n=1, cutoff=0.0)
    raise UserError(
        f"speaker {name[:60]!r}: {where} does not know it; did you mean {by_folded[near[0]]!r}? "
        f"It knows {listed(speakers)}"
    )


def listed(speakers: Sequence[str]) -> str:
    """The names for a message, the first MAX_LISTED of them."""
    names = ", ".join(repr(name) for name in speakers[:MAX_LISTED])
    more = len(speakers) - MAX_LISTED
    return f"{names} and {more:,} more" if more > 0 else names
