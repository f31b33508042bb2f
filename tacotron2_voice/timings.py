"""Compute the times of words and symbols from the alignments, and write the times as JSON, SRT or
VTT.

    speech = voice.synthesize("Dr. Smith paid $3.", speaker="linda")
    timings = timings_of(speech.chunks, "Dr. Smith paid $3.", voice.settings)
    timings.words      # [Timing(text="Dr.", start=0.05, end=0.41), ...] in seconds
    timings.as_srt()

A symbol is spoken while attention is on this symbol. `best_path` returns the attended symbol for
each decoder step.
"""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.synthesizer import SpokenChunk
from tacotron2_voice.text import SymbolTable, sequence_to_text, text_to_sequence
from tacotron2_voice.text.lexicon import respell
from tacotron2_voice.text.tags import without_tags
from tacotron2_voice.text.words import word_spans

FORMATS = ("json", "srt", "vtt")
MIN_WEIGHT = 1e-6  # minimum attention weight, which replaces smaller weights
CUE_LETTERS = 84  # maximum number of characters per subtitle: two lines of 42 characters
CUE_PAUSE = 0.5  # a pause longer than this many seconds ends a subtitle
SENTENCE_PAUSE = 0.15  # after a sentence, a pause longer than this many seconds ends a subtitle
SENTENCE_END = re.compile(r"[.!?。！？।؟…][\"'”’»)]*$")


class Timing(NamedTuple):
    text: str
    start: float  # seconds from the start of the audio
    end: float


@dataclass
class Timings:
    """The times of the words and symbols in one or several texts.

        for text, start, end in timings.words: ...

    Each word or symbol has a start and an end, in seconds from the start of the audio.

    Attributes:
        words: the words as written in the text.
        symbols: the symbols of the text after cleaning.
    """

    words: list[Timing] = field(default_factory=list)
    symbols: list[Timing] = field(default_factory=list)

    def add(self, other: "Timings", offset: float) -> None:
        """Add the times in `other`. The audio of `other` begins `offset` seconds after the start of
        this audio."""
        for mine, added in ((self.words, other.words), (self.symbols, other.symbols)):
            mine += [Timing(text, start + offset, end + offset) for text, start, end in added]

    def as_dict(self) -> dict[str, Any]:
        """Return the times as {"words": list, "symbols": list}, with a dict {"text", "start",
        "end"} for each item."""
        return {"words": _as_dicts(self.words), "symbols": _as_dicts(self.symbols)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Timings":
        """Restore the times from a dict that `as_dict` returned."""
        words = [Timing(**timing) for timing in values["words"]]
        symbols = [Timing(**timing) for timing in values["symbols"]]
        return Timings(words, symbols)

    def as_json(self) -> str:
        """Return the output of `as_dict` as JSON."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=1) + "\n"

    def as_srt(self) -> str:
        """Return subtitles in the SubRip format (SRT)."""
        cues = []
        for number, (text, start, end) in enumerate(self.cues(), 1):
            cues.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n")
        return "\n".join(cues)

    def as_vtt(self) -> str:
        """Return subtitles in the WebVTT format."""
        cues = ["WEBVTT\n"]
        for text, start, end in self.cues():
            escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            cues.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{escaped}\n")
        return "\n".join(cues)

    def as_format(self, name: str) -> str:
        """Return the times in the format `name`, which is one of FORMATS."""
        return {"json": self.as_json, "srt": self.as_srt, "vtt": self.as_vtt}[name]()

    def cues(self) -> list[Timing]:
        """Join words into subtitles.

        A subtitle ends before a pause, after a sentence, and before the subtitle would become too
        long. A sentence is recognized by its end punctuation and a short pause, because the
        punctuation alone could belong to an abbreviation.
        """
        cues: list[Timing] = []
        for word in self.words:
            if cues:
                before = cues[-1]
                joined = f"{before.text} {word.text}"
                is_sentence = SENTENCE_END.search(before.text)
                pause = SENTENCE_PAUSE if is_sentence else CUE_PAUSE
                if word.start - before.end <= pause and len(joined) <= CUE_LETTERS:
                    cues[-1] = Timing(joined, before.start, word.end)
                    continue
            cues.append(word)
        return cues


def timings_of(chunks: Sequence[SpokenChunk], text: str, settings: VoiceSettings) -> Timings:
    """Return the times of the words and symbols in a text.

        speech = voice.synthesize(text, speaker="linda")
        timings = timings_of(speech.chunks, text, voice.settings)
        Path("evening.srt").write_text(timings.as_srt(), encoding="utf-8")

    Args:
        chunks: the chunks of a `Speech`, or of a stream that has ended.
        text: the text before cleaning.
    """
    symbols: list[Timing] = []
    spoken: list[Timing] = []
    for chunk in chunks:
        times = symbol_times(chunk, settings.table)
        symbols += times
        spoken += word_times(chunk, times, settings.table)
    return Timings(_in_spelling_of(text, spoken, settings), symbols)


def word_times(chunk: SpokenChunk, symbols: list[Timing], table: SymbolTable) -> list[Timing]:
    """Return the times of the words in a chunk. The words come from the cleaned text.

    Args:
        symbols: the times of the chunk's symbols.
    """
    words = []
    for first, end in word_spans(chunk.ids, table):
        word = sequence_to_text(chunk.ids[first:end], table)
        # If attention never reaches a word, but only its neighboring symbols, the start and end
        # times of the word are equal. In this case, use the times of the neighboring symbols.
        if symbols[first].start == symbols[end - 1].end:
            first = max(first - 1, 0)
            end = min(end + 1, len(symbols))
        words.append(Timing(word, symbols[first].start, symbols[end - 1].end))
    return words


def symbol_times(chunk: SpokenChunk, table: SymbolTable) -> list[Timing]:
    """Return the time of every symbol in a chunk. A skipped symbol starts and ends at the same
    time."""
    path = best_path(chunk.alignment)
    positions = np.arange(len(chunk.ids) + 1)
    # For each symbol, the first decoder step with attention on this symbol or a later symbol.
    bounds = np.searchsorted(path, positions)
    seconds = (chunk.start + bounds * chunk.seconds / len(path)).tolist()
    times = []
    for i, start, end in zip(chunk.ids, seconds[:-1], seconds[1:], strict=True):
        times.append(Timing(sequence_to_text([i], table), round(start, 3), round(end, 3)))
    return times


def best_path(alignment: np.ndarray) -> np.ndarray:
    """Return the index of the attended symbol for each decoder step.

    The indices never decrease. Of all such sequences of indices, the function returns the sequence
    with the largest product of attention weights.

    Args:
        alignment: attention weights [decoder steps, symbols].
    """
    scores = np.log(np.maximum(alignment, MIN_WEIGHT))
    num_steps, num_symbols = scores.shape
    # On the best path to symbol n at decoder step t, the previous symbol is before[t, n].
    before = np.zeros((num_steps, num_symbols), np.int64)
    best = scores[0]
    symbols = np.arange(num_symbols)
    for step in range(1, num_steps):
        highest = np.maximum.accumulate(best)
        before[step] = np.maximum.accumulate(np.where(best == highest, symbols, 0))
        best = highest + scores[step]
    path = np.zeros(num_steps, np.int64)
    path[-1] = best.argmax()
    for step in range(num_steps - 1, 0, -1):
        path[step - 1] = before[step, path[step]]
    return path


def _in_spelling_of(text: str, spoken: list[Timing], settings: VoiceSettings) -> list[Timing]:
    """Return the time of each word of the original text, before cleaning.

    A written word such as $3.50 is spoken as several words, and the time of the written word covers
    all spoken words. If the spoken words do not show where a written word begins, this word is
    joined with the previous word.
    """
    tokens = without_tags(text).split()
    expected: list[str] = []  # the spoken words of all tokens, in order
    owners: list[int] = []  # for each word in `expected`, the index of its token in `tokens`
    for index, token in enumerate(tokens):
        words = _spoken_words(token, settings)
        expected += words
        owners += [index] * len(words)
    times: list[list[Timing]] = [[] for _ in tokens]
    matcher = difflib.SequenceMatcher(None, expected, [x.text for x in spoken], autojunk=False)
    owner = 0
    for _, first, end, spoken_first, spoken_end in matcher.get_opcodes():
        found = spoken[spoken_first:spoken_end]
        if end - first == len(found):
            for index, timing in zip(owners[first:end], found, strict=True):
                times[index].append(timing)
                owner = index
        else:
            if first < end:
                owner = owners[first]
            if tokens:
                times[owner] += found
    timings: list[Timing] = []
    unplaced = ""  # written words before the first written word that has timestamps
    for token, own in zip(tokens, times, strict=True):
        if own:
            timings.append(Timing(f"{unplaced}{token}", own[0].start, own[-1].end))
            unplaced = ""
        elif timings:
            last = timings[-1]
            timings[-1] = Timing(f"{last.text} {token}", last.start, last.end)
        else:
            unplaced += f"{token} "
    return timings


def _spoken_words(token: str, settings: VoiceSettings) -> list[str]:
    table = settings.table
    spelled = respell(token, settings.pronunciations)
    ids = text_to_sequence(spelled, settings.text_cleaners, table, settings.language)
    return [sequence_to_text(ids[first:end], table) for first, end in word_spans(ids, table)]


def _as_dicts(timings: list[Timing]) -> list[dict[str, Any]]:
    return [
        {"text": text, "start": round(start, 3), "end": round(end, 3)}
        for text, start, end in timings
    ]


def _clock(seconds: float, separator: str) -> str:
    """Format seconds as hours, minutes, seconds and milliseconds, such as 00:01:02,345."""
    milliseconds = round(seconds * 1000)
    whole, thousandths = divmod(milliseconds, 1000)
    minutes, rest = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{rest:02}{separator}{thousandths:03}"
