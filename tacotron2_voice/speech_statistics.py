"""How a corpus's texts are spoken: pace, longest text, final mark. Training keeps it in every
checkpoint, and synthesis follows it: how long a text may take, what is too fast, how a text ends.

    statistics = measure(clips.num_frames, clips.num_symbols, last_symbols, hparams)
    statistics.seconds(40)          # what 40 symbols usually take
    statistics.longest_time(40)     # what they never take
    measure_speakers(...)           # the same of each speaker, who may be slow or fast
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from hparams import HParams, limits
from tacotron2_voice.speakers import MAX_NAME

MARKS = ".!?…;:,—।。！？，、；："  # what a text may end with; those of other scripts too
CLOSING = "'\")]»”’」』 "  # what may follow the mark
MARKED = 0.8  # a corpus of which so many texts end with a mark; LJSpeech: 0.88
USUAL = 0.999  # the share of clips between `fastest` and 1, and 1 and `slowest`
MIN_CLIPS = 20  # of a speaker, from which on its own pace is known
MAX_ERROR = 0.1  # of a speaker's slope: its standard error over it
MARGIN = 1.25  # speech so much faster, or slower, than the corpus's usual clips is wrong

Seconds = Annotated[float, limits(ge=0, le=3600, allow_inf_nan=False)]
Ratio = Annotated[float, limits(gt=0, le=1e6, allow_inf_nan=False)]
EXACTLY = {"extra": "forbid"}  # pydantic then refuses names that a class does not have


@dataclass(frozen=True)
class SpeechStatistics:
    """Of the training clips. A text of n symbols takes offset + n * seconds_per_symbol, by the
    least squares of relative errors; a clip's pace is its time over that."""

    __pydantic_config__ = EXACTLY
    longest_text: Annotated[int, limits(ge=1, le=2**53)]  # in symbols
    offset: Seconds
    seconds_per_symbol: Annotated[float, limits(gt=0, le=3600, allow_inf_nan=False)]
    fastest: Ratio  # pace of the fastest usual clip, at most 1
    slowest: Ratio  # of the slowest, at least 1
    final_mark: Annotated[str, limits(max_length=1)]  # which nearly all texts end with, or ""

    def describe(self) -> str:
        """What `prepare` says of them."""
        usual = f"{1000 * self.seconds_per_symbol:.0f} ms a symbol"
        pace = f"Pace: {usual}, clips from {self.fastest:.2f} to {self.slowest:.2f} times that"
        if not self.final_mark:
            return f"{pace}\nLess than {MARKED:.0%} of texts end with a mark: synthesis adds none"
        mark = f"Texts end with a mark, most with {self.final_mark!r}"
        return f"{pace}\n{mark}: synthesis ends a text with it that has none"

    def seconds(self, num_symbols: int) -> float:
        return self.offset + num_symbols * self.seconds_per_symbol

    def shortest_time(self, num_symbols: int) -> float:
        """Seconds that a text takes at least: in less, words are missing. The offset, silence for
        the most part, may be missing too, which a text of one syllable shows."""
        return self.fastest / MARGIN * num_symbols * self.seconds_per_symbol

    def longest_time(self, num_symbols: int) -> float:
        """Seconds that a text takes at most: in more, the end was missed."""
        return self.slowest * MARGIN * self.seconds(num_symbols)


@dataclass(frozen=True)
class SpeakerStatistics:
    """Of the training clips of one speaker."""

    __pydantic_config__ = EXACTLY
    name: Annotated[str, limits(min_length=1, max_length=MAX_NAME)]
    minutes: Annotated[float, limits(ge=0, le=1e9, allow_inf_nan=False)]  # of its clips
    statistics: SpeechStatistics  # the corpus's, with its own pace


# Of LJSpeech's 13,100 clips under english_cleaners; for NVIDIA's checkpoints, which hold none.
# tests/test_speech_statistics.py measures it again.
LJSPEECH = SpeechStatistics(
    longest_text=188,
    offset=0.163,
    seconds_per_symbol=0.0630,
    fastest=0.735,
    slowest=1.56,
    final_mark=".",
)


def measure(
    num_frames: np.ndarray, num_symbols: np.ndarray, last: Iterable[str], hparams: HParams
) -> SpeechStatistics:
    """The statistics of clips.

    Args:
        num_frames, num_symbols: [clips] lengths.
        last: the last symbol of each text, closing quotation marks apart (`last_symbol`).
    """
    seconds = np.asarray(num_frames) * (hparams.hop_length / hparams.sampling_rate)
    symbols = np.asarray(num_symbols, np.float64)
    offset, slope = _line(symbols, seconds)
    pace = seconds / (offset + slope * symbols)
    fastest, slowest = np.quantile(pace, [1 - USUAL, USUAL])
    marks = Counter(mark for mark in last if mark in MARKS and mark)
    is_marked = marks.total() >= MARKED * len(seconds)
    return SpeechStatistics(
        longest_text=int(symbols.max()),
        offset=float(offset),
        seconds_per_symbol=float(slope),
        fastest=float(min(fastest, 1)),
        slowest=float(max(slowest, 1)),
        final_mark=marks.most_common(1)[0][0] if is_marked else "",
    )


def measure_speakers(
    num_frames: np.ndarray,
    num_symbols: np.ndarray,
    indices: np.ndarray,
    names: Sequence[str],
    corpus: SpeechStatistics,
    hparams: HParams,
) -> list[SpeakerStatistics]:
    """The statistics of each speaker, in the order of `names`.

    A speaker of MIN_CLIPS clips or more has a pace of its own (`_own_line`). `fastest` and
    `slowest` are those of the clips of all such speakers, each beside its own speaker's pace: no
    speaker has enough clips for the rarest. A speaker of fewer clips has the corpus's pace,
    `fastest` and `slowest`.

    Args:
        num_frames, num_symbols, indices: [clips] lengths, and of each clip its speaker in `names`.
        corpus: the statistics of all clips together.
    """
    seconds = np.asarray(num_frames) * (hparams.hop_length / hparams.sampling_rate)
    symbols = np.asarray(num_symbols, np.float64)
    order = np.argsort(indices, kind="stable")
    starts = np.searchsorted(indices[order], np.arange(1, len(names)))
    clips_of = np.split(order, starts)
    lines, pace = dict[int, tuple[float, float]](), list[np.ndarray]()
    for index, clips in enumerate(clips_of):
        if len(clips) >= MIN_CLIPS:
            lines[index] = offset, slope = _own_line(symbols[clips], seconds[clips], corpus)
            pace.append(seconds[clips] / (offset + slope * symbols[clips]))
    if not lines:
        pace = [np.ones(1)]
    fastest, slowest = np.quantile(np.concatenate(pace), [1 - USUAL, USUAL])
    own = replace(corpus, fastest=float(min(fastest, 1)), slowest=float(max(slowest, 1)))
    statistics = [corpus] * len(names)
    for index, (offset, slope) in lines.items():
        statistics[index] = replace(own, offset=float(offset), seconds_per_symbol=float(slope))
    minutes = [float(seconds[clips].sum() / 60) for clips in clips_of]
    return [*map(SpeakerStatistics, names, minutes, statistics)]


def _line(symbols: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Offset and slope of the line with the least squares of relative errors, none negative: of
    clips that are all of one length the slope alone is known."""
    slope = float(np.mean(seconds / symbols))
    if len(np.unique(symbols)) < 2:
        return 0.0, slope
    design = np.stack([np.ones_like(symbols), symbols], axis=1) / seconds[:, None]
    (offset, fitted), *_ = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)
    return (float(offset), float(fitted)) if offset >= 0 and fitted > 0 else (0.0, slope)


def _own_line(
    symbols: np.ndarray, seconds: np.ndarray, corpus: SpeechStatistics
) -> tuple[float, float]:
    """Offset and slope of a speaker's line. Where the clips' lengths are too alike to tell the
    slope, which longer texts follow, it is the corpus's line times the clips' mean pace."""
    offset, slope = _line(symbols, seconds)
    if len(np.unique(symbols)) > 2:
        design = np.stack([np.ones_like(symbols), symbols], axis=1) / seconds[:, None]
        residuals = 1 - design @ [offset, slope]
        variance = residuals @ residuals / (len(symbols) - 2)
        if variance * np.linalg.inv(design.T @ design)[1, 1] <= (MAX_ERROR * slope) ** 2:
            return offset, slope
    pace = float(np.mean(seconds / (corpus.offset + corpus.seconds_per_symbol * symbols)))
    return pace * corpus.offset, pace * corpus.seconds_per_symbol


def last_symbol(text: Iterable[str]) -> str:
    """The last symbol of a cleaned text, without the quotation marks and brackets that close it."""
    for symbol in reversed(list(text)):
        if symbol not in CLOSING:
            return symbol
    return ""
