"""Tags in a text to be spoken: `[pause 0.5]` is half a second of silence.

split_tags("Wait. [pause 0.5] Now.")  # ["Wait.", Pause(0.5), "Now."]
"""

import re
from dataclasses import dataclass

from tacotron2_voice.utils.errors import UserError

MAX_PAUSE_SECONDS = 60  # seconds
_PAUSE = re.compile(r"\[\s*pause\b([^\]]*)\]", re.IGNORECASE)
# What is meant as a pause: without its bracket, or with other words and brackets.
_NEARLY = re.compile(
    r"\[\s*pause\b[^\]]{0,40}|[\[({]\s*(?:break|silence|pause)\s+[\d.]+\s*s?\s*[\])}]",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")  # as in SSML, HTML and XML


@dataclass(frozen=True)
class Pause:
    seconds: float


def split_tags(text: str) -> list[str | Pause]:
    """Split a text into pieces and pauses, in order; no piece is blank.

    Raises:
        UserError: for a pause without its seconds or its bracket, and for tags of markup languages,
            which a voice would read aloud.
    """
    if markup := _MARKUP.search(text):
        raise UserError(
            f"{markup[0][:60]!r}: an unknown tag; leave it out, or write [pause 0.5] for half a "
            "second of silence"
        )
    pieces: list[str | Pause] = []
    for number, piece in enumerate(_PAUSE.split(text)):
        if number % 2:
            pieces.append(Pause(_seconds(piece.strip())))
        elif nearly := _NEARLY.search(piece):
            expected = "expected [pause 0.5] for half a second of silence"
            raise UserError(f"{nearly[0][:60]!r} would be read aloud, {expected}")
        elif piece.strip():
            pieces.append(piece.strip())
    return pieces


def without_pauses(text: str) -> str:
    """Replace pauses by blanks, so that the rest of the text keeps its columns."""
    return _PAUSE.sub(lambda match: " " * len(match[0]), text)


def _seconds(written: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*s?", written)
    if number and float(number[1]) <= MAX_PAUSE_SECONDS:
        return float(number[1])
    expected = f"expected seconds from 0 to {MAX_PAUSE_SECONDS}, as in [pause 0.5]"
    raise UserError(f"[pause{written and f' {written[:40]}'}]: {expected}")
