"""Split a text at its pause tags: `[pause 0.5]` is half a second of silence.

split_tags("Wait. [pause 0.5] Now.")  # ["Wait.", Pause(0.5), "Now."]
"""

import re
from dataclasses import dataclass

from tacotron2_voice.utils.errors import UserError

MAX_PAUSE_SECONDS = 60
_PAUSE = re.compile(r"\[\s*pause\b([^\]]*)\]", re.IGNORECASE)
# Matches text that is probably a pause tag, but lacks a bracket or has other words or brackets.
_NEARLY = re.compile(
    r"\[\s*pause\b[^\]]{0,40}|[\[({]\s*(?:break|silence|pause)\s+[\d.]+\s*s?\s*[\])}]",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")  # tags of SSML, HTML and XML


@dataclass(frozen=True)
class Pause:
    seconds: float


def split_tags(text: str) -> list[str | Pause]:
    """Return the pieces of a text and its pauses, in order. Every piece contains a character.

    Raises:
        UserError: if a pause has no seconds or no closing bracket, or if the text contains tags of
            markup languages, which a voice would read aloud.
    """
    if markup := _MARKUP.search(text):
        expected = "expected plain text with tags such as [pause 0.5]"
        raise UserError(f"{markup[0][:60]!r}: an unknown tag ({expected})")
    pieces: list[str | Pause] = []
    for number, piece in enumerate(_PAUSE.split(text)):
        if number % 2:
            pieces.append(Pause(_seconds(piece.strip())))
        elif nearly := _NEARLY.search(piece):
            expected = "expected [pause 0.5] for half a second of silence"
            raise UserError(f"{nearly[0][:60]!r} would be read aloud ({expected})")
        elif piece.strip():
            pieces.append(piece.strip())
    return pieces


def without_pauses(text: str) -> str:
    """Replace pauses by spaces, so that the rest of the text keeps its columns."""
    return _PAUSE.sub(lambda match: " " * len(match[0]), text)


def _seconds(written: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*s?", written)
    if number and float(number[1]) <= MAX_PAUSE_SECONDS:
        return float(number[1])
    expected = f"expected seconds from 0 to {MAX_PAUSE_SECONDS}, such as [pause 0.5]"
    raise UserError(f"[pause {written[:40]}]: {expected}")
