"""Split a text at its tags: `[pause 0.5]` is half a second of silence, `[speaker anna]` another
speaker.

split_tags("Wait. [pause 0.5] Now.")  # ["Wait.", Pause(0.5), "Now."]
"""

import re
from dataclasses import dataclass

from tacotron2_voice.utils.errors import UserError

MAX_PAUSE_SECONDS = 60
KNOWN_TAGS = "[pause SECONDS] and [speaker NAME]"
_TAG = re.compile(r"\[\s*(pause|speaker)\b([^\[\]]*)\]", re.IGNORECASE)
# Brackets around words. Brackets inside a word are not tags: "[T]he", "colo[u]r".
WORDS_IN_BRACKETS = re.compile(r"(?<!\w)\[\s*[^\W\d_][^\[\]]*\](?!\w)")
# Matches text that is probably a tag, but lacks a bracket or has other words or brackets.
_NEARLY = re.compile(
    r"\[\s*(?:pause|speaker)\b[^\]]{0,40}"
    r"|[\[({]\s*(?:break|silence|pause)\s+[\d.]+\s*s?\s*[\])}]",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")  # tags of SSML, HTML and XML


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class SpeakerTag:
    name: str  # of the speaker of the following text


def split_tags(text: str) -> list[str | Pause | SpeakerTag]:
    """Return the pieces of a text and its tags, in order. Every piece contains a character.

    Raises:
        UserError: if a tag is unknown, a pause has no seconds or no closing bracket, or the text
            contains tags of markup languages. A model would read these tags aloud.
    """
    if markup := _MARKUP.search(text):
        expected = "expected plain text with tags such as [pause 0.5]"
        raise UserError(f"{markup[0][:60]!r}: an unknown tag ({expected})")
    pieces: list[str | Pause | SpeakerTag] = []
    end = 0
    for tag in _TAG.finditer(text):
        pieces.append(_checked(text[end : tag.start()]))
        pieces.append(_read_tag(tag[1].lower(), tag[2].strip()))
        end = tag.end()
    pieces.append(_checked(text[end:]))
    return [piece for piece in pieces if piece]


def without_tags(text: str) -> str:
    """Replace known tags by spaces, so that the rest of the text keeps its columns."""
    return _TAG.sub(lambda match: " " * len(match[0]), text)


def _checked(piece: str) -> str:
    """Return a piece of a text without spaces at its ends. UserError if it contains a tag."""
    if nearly := _NEARLY.search(piece):
        expected = "expected [pause 0.5] for half a second of silence"
        raise UserError(f"{nearly[0][:60]!r} would be read aloud ({expected})")
    if unknown := WORDS_IN_BRACKETS.search(piece):
        expected = f"expected {KNOWN_TAGS}; write other words in round brackets"
        raise UserError(f"{unknown[0][:60]!r}: an unknown tag ({expected})")
    return piece.strip()


def _read_tag(kind: str, value: str) -> Pause | SpeakerTag:
    if kind == "speaker":
        if not value:
            raise UserError("[speaker]: no name (expected [speaker NAME])")
        return SpeakerTag(value)
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*s?", value)
    if number and float(number[1]) <= MAX_PAUSE_SECONDS:
        return Pause(float(number[1]))
    expected = f"expected seconds from 0 to {MAX_PAUSE_SECONDS}, such as [pause 0.5]"
    raise UserError(f"[pause {value[:40]}]: {expected}")
