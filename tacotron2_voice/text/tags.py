"""Split a text at its tags for pauses and speakers.

`[pause 0.5]` inserts half a second of silence, and `[speaker anna]` changes the speaker.

split_tags("Wait. [pause 0.5] Now.")  # ["Wait.", Pause(0.5), "Now."]
"""

import re
from dataclasses import dataclass

from tacotron2_voice.utils.errors import UserError

MAX_PAUSE_SECONDS = 60
KNOWN_TAGS = "[pause SECONDS] or [speaker NAME]"
_TAG = re.compile(r"\[\s*(pause|speaker)\b([^\[\]]*)\]", re.IGNORECASE)
# Matches brackets around words, footnote numbers (as in "word[1]"), and closing tags such as
# "[/b]". Brackets around a few letters of a word, as in "[T]he", "colo[u]r" and "claim[s]", are not
# tags.
WORDS_IN_BRACKETS = re.compile(
    r"(?<!\w)\[\s*[^\W\d_][^\[\]]*\](?!\w)"
    r"|(?<=\w)\[\s*[^\W\d_][^\[\]]{3,}\](?!\w)"
    r"|(?<=\w)\[[A-Z][^\[\]]+\]"
    r"|(?<=[^\s\[])\[\d+\]"
    r"|(?<!\w)\[\s*[^\W\d_][^\[\]]+\](?=\w)"
    r"|\[/[^\[\]]*\]"
    r"|[［【]\s*[A-Za-z][A-Za-z0-9 .]*[］】]"
)
# Matches text that is probably meant as a tag, but lacks a closing bracket or contains other words
# or brackets.
_NEARLY = re.compile(
    r"\[\s*/?\s*(?:pause|speaker)\b[^\]]{0,40}"
    r"|[\[({]\s*(?:break|silence|pause)\s+[\d.]+\s*s?\s*[\])}]"
    r"|\[\s*[A-Za-z]+\s*$",
    re.IGNORECASE,
)
# Matches SSML, HTML and XML tags, in which < may be written as &lt;.
_MARKUP = re.compile(r"(?:<|&lt;)/?[A-Za-z][\w:.-]*(?:\s+[\w:-]+\s*=[^<>]*?)?\s*/?(?:>|&gt;)")


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class SpeakerTag:
    name: str  # name of the speaker of the following text


def split_tags(text: str) -> list[str | Pause | SpeakerTag]:
    """Split a text into non-empty pieces of text and tags, in order.

    Raises:
        UserError: if a tag is unknown, if a tag has no valid value or no closing bracket, or if the
            text contains markup tags (SSML, HTML or XML). Markup tags are rejected, because a model
            would speak these tags.
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
    """Replace each tag with spaces, so that the columns of the rest of the text do not change."""
    return _TAG.sub(lambda match: " " * len(match[0]), text)


def _checked(piece: str) -> str:
    """Return a piece of text without whitespace at its start and end. Raise UserError if the text
    contains an unknown or malformed tag."""
    if nearly := _NEARLY.search(piece):
        raise UserError(f"{nearly[0][:60]!r}: not a valid tag (expected {KNOWN_TAGS})")
    if unknown := WORDS_IN_BRACKETS.search(piece):
        expected = f"expected {KNOWN_TAGS}"
        words = re.sub(r"[\[\]［］【】]", "", unknown[0]).strip()[:60]
        fix = f"If the words are spoken, write ({words}). Otherwise, remove them"
        raise UserError(f"{unknown[0][:60]!r}: an unknown tag ({expected}). {fix}")
    return piece.strip()


def _read_tag(kind: str, value: str) -> Pause | SpeakerTag:
    if kind == "speaker":
        if not value:
            raise UserError("[speaker]: no name (expected [speaker NAME])")
        return SpeakerTag(value)
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*s?", value)
    if number and float(number[1]) <= MAX_PAUSE_SECONDS:
        return Pause(float(number[1]))
    expected = f"invalid value, expected seconds from 0 to {MAX_PAUSE_SECONDS}, such as [pause 0.5]"
    raise UserError(f"[pause {value[:40]}]: {expected}")
