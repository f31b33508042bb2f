"""Prepare a text for synthesis: convert it to symbol ids, pauses and chunks.

utterance = prepare_utterance("Wait. [pause 0.5] Now.", settings)
chunks = split_into_chunks(utterance, 188, settings.table, pause=0.3)
"""

from dataclasses import dataclass, field, replace
from itertools import chain

from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.speakers import speaker_index
from tacotron2_voice.text import SymbolTable, can_be_spoken, clean
from tacotron2_voice.text.lexicon import apply_lexicon
from tacotron2_voice.text.notations import check_notations
from tacotron2_voice.text.phone_spans import read_around_phones
from tacotron2_voice.text.sequences import PHONES
from tacotron2_voice.text.splitting import Ending, split_sequence
from tacotron2_voice.text.tags import Pause, SpeakerTag, split_tags
from tacotron2_voice.text.unknown_symbols import in_words, similar_phones, unknown_symbols
from tacotron2_voice.utils.errors import UserError

# Maximum number of characters per text (about 20 minutes of speech, which must fit into memory).
MAX_CHARACTERS = 20_000
# Maximum total seconds of the pause tags in a text (about as long as the longest speech).
MAX_PAUSES = 1200
# Pause after each kind of chunk ending, as a fraction of the pause after a sentence.
PAUSES = {Ending.SENTENCE: 1.0, Ending.CLAUSE: 0.4, Ending.WORD: 0.0, Ending.INSIDE: 0.0}


@dataclass(frozen=True)
class Segment:
    """The symbols between two tags of a text."""

    ids: list[int]  # symbol ids; [] if the segment is only a pause
    # Pause after the segment in seconds. None: the pause depends on the segment's ending.
    pause: float | None = None
    speaker: int | None = None  # index of the speaker; None: use the speaker of the whole text


@dataclass(frozen=True)
class Utterance:
    """A text that is prepared for synthesis."""

    segments: list[Segment]
    text: str = ""  # the text before cleaning, for warnings about unknown symbols
    # {phone that the model lacks: similar phones that are spoken in its place}
    replaced: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of symbols."""
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def pause_seconds(self) -> float:
        """Return the total seconds of all pause tags in the text."""
        return sum(segment.pause or 0 for segment in self.segments)


@dataclass(frozen=True)
class Chunk:
    """A sequence of symbols that are synthesized together."""

    ids: list[int]  # symbol ids; [] if the chunk is only a pause
    pause: float  # seconds of silence after the chunk
    speaker: int | None = None  # index of the speaker; None: use the speaker of the whole text


class NothingToSpeak(UserError):
    """Raised when a cleaned text, such as "* * *", contains no letter, phone or digit."""

    def __init__(self, text: str):
        reason = " that this model can speak" if any(map(str.isalpha, text)) else ""
        super().__init__(f"{_quoted(text)}: contains no words{reason}")


class UnknownSymbols(UserError):
    """Raised when a text contains symbols that are not in the voice's symbol table."""


def prepare_utterance(
    text: str, settings: VoiceSettings, *, drop_unknown: bool = False
) -> Utterance:
    """Convert a text with tags for pauses and speakers (text/tags.py) to an utterance.

    Raises:
        UserError: if the text or its pauses are too long, if the text contains unknown tags,
            unknown speakers, or unknown symbols that are not dropped, or if there is nothing to
            speak.
    """
    _check_length(text)
    segments: list[Segment] = []
    replaced: dict[str, str] = {}
    speaker = None
    for piece in split_tags(text):
        if isinstance(piece, Pause):
            before = segments.pop() if segments else Segment([])
            segments.append(replace(before, pause=(before.pause or 0) + piece.seconds))
        elif isinstance(piece, SpeakerTag):
            speaker = _speaker_of(piece, settings)
        else:
            ids = _ids_of(piece, settings, drop_unknown, replaced)
            if can_be_spoken(ids, settings.table):
                segments.append(Segment(ids, speaker=speaker))
    if not any(segment.ids for segment in segments):
        raise NothingToSpeak(text)
    utterance = Utterance(segments, text, replaced)
    if utterance.pause_seconds > MAX_PAUSES:
        pauses = f"pauses of {utterance.pause_seconds:,.0f} s"
        raise UserError(f"{_quoted(text)}: {pauses} (expected at most {MAX_PAUSES:,} s per text)")
    return utterance


def _speaker_of(tag: SpeakerTag, settings: VoiceSettings) -> int:
    """Return the index of a tag's speaker, or raise UserError if the model lacks this speaker."""
    if not settings.speakers:
        problem = "the model has one speaker without a name"
        raise UserError(f"[speaker {tag.name[:60]}]: {problem} (expected no speaker tag)")
    return speaker_index(tag.name, settings.speakers, "the model")


def text_to_ids(text: str, settings: VoiceSettings, *, drop_unknown: bool = False) -> list[int]:
    """Convert a text without tags to symbol ids.

    Unknown symbols are always dropped in English. In languages other than English, unknown symbols
    are dropped only if `drop_unknown` is set.

    Raises:
        UserError: if the text contains no words, or if it contains unknown symbols that are not
            dropped.
    """
    _check_length(text)
    ids = _ids_of(text, settings, drop_unknown, {})
    if not can_be_spoken(ids, settings.table):
        raise NothingToSpeak(text)
    return ids


def split_into_chunks(
    utterance: Utterance, limit: float, table: SymbolTable, pause: float
) -> list[Chunk]:
    """Split an utterance into chunks of at most `limit` symbols.

    A chunk exceeds the limit only if a single word exceeds the limit. No pause follows the last
    chunk, unless the text ends with a pause tag. `pause` is the pause after a sentence, in seconds.
    """
    chunks: list[Chunk] = []
    for segment in utterance.segments:
        if not segment.ids:
            chunks.append(Chunk([], segment.pause or 0.0))
            continue
        for span in split_sequence(segment.ids, limit, table):
            ids = segment.ids[span.start : span.end]
            chunks.append(Chunk(ids, pause * PAUSES[span.ending], segment.speaker))
        if segment.pause is not None:
            chunks[-1] = replace(chunks[-1], pause=segment.pause)
    if utterance.segments[-1].pause is None:
        chunks[-1] = replace(chunks[-1], pause=0.0)
    return chunks


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _check_length(text: str) -> None:
    """Raise UserError if a text is so long that cleaning it would take too much time."""
    if len(text) > MAX_CHARACTERS:
        expected = f"expected at most {MAX_CHARACTERS:,}; leave a blank line between paragraphs"
        raise UserError(f"{_quoted(text)}: {len(text):,} characters ({expected})")


def _ids_of(
    text: str, settings: VoiceSettings, drop_unknown: bool, replaced: dict[str, str]
) -> list[int]:
    """Convert a text to symbol ids. If the cleaners produce phones, replace unknown phones with
    similar phones, and add these replacements to the dict `replaced`."""
    text = apply_lexicon(text, settings.pronunciations, settings.text_cleaners)
    table = settings.table
    check_notations(text, settings.text_cleaners, table, settings.language)
    text = read_around_phones(text, settings.text_cleaners, table)
    cleaned = clean(text, settings.text_cleaners, table, settings.language)
    unknown = unknown_symbols(cleaned, table)
    if PHONES in settings.text_cleaners:
        similar = similar_phones(unknown, table)
        replaced.update(similar)
        cleaned = [*chain.from_iterable(similar.get(symbol, [symbol]) for symbol in cleaned)]
        unknown = unknown_symbols(cleaned, table)
    if unknown and not table.is_english and not drop_unknown:
        described = in_words(unknown, table, text, settings.text_cleaners, settings.language)
        raise UnknownSymbols(f"{_quoted(text)}: the voice has no symbol for {described}")
    return [table.ids[symbol] for symbol in cleaned if symbol in table.ids]
