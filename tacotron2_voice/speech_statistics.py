"""Measure the speech of a corpus: speaking rate, longest text, final punctuation mark.

    statistics = measure(num_frames, num_symbols, last_symbols, settings)
    statistics.seconds(40)          # the usual time of 40 symbols
    statistics.longest_time(40)     # the longest plausible time of 40 symbols
    measure_speakers(...)           # the same for each speaker, who may be slow or fast

Training saves the statistics in every checkpoint. Synthesis uses the statistics to limit the time
of a text, to detect a wrong speaking rate, and to add a missing end punctuation mark.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from tacotron2_voice.settings import VoiceSettings, limits
from tacotron2_voice.speakers import MAX_NAME

MARKS = ".!?…;:,—।。！？，、；："  # punctuation marks that may end a text, in several scripts
CLOSING = "'\")]»”’」』 "  # characters that may follow the mark
MARKED_SHARE = 0.8  # a corpus has a final mark if this share of its texts ends with a mark
USUAL_SHARE = 0.999  # the share of clips between `fastest` and 1, and between 1 and `slowest`
MIN_CLIPS = 20  # a speaker with fewer clips gets the speaking rate of the corpus
MAX_ERROR = 0.1  # largest standard error of a speaker's slope, as a share of the slope
MARGIN = 1.25  # speech fails if it is faster or slower than usual clips by this factor

Seconds = Annotated[float, limits(ge=0, le=3600, allow_inf_nan=False)]
Minutes = Annotated[float, limits(ge=0, le=1e9, allow_inf_nan=False)]
Ratio = Annotated[float, limits(gt=0, le=1e6, allow_inf_nan=False)]
EXACTLY = {"extra": "forbid"}  # pydantic then rejects unknown names


@dataclass(frozen=True)
class SpeechStatistics:
    """Describe the training clips.

    A text of n symbols takes offset + n * seconds_per_symbol, by the least squares of relative
    errors. The relative duration of a clip is its time divided by that time.
    """

    __pydantic_config__ = EXACTLY
    longest_text: Annotated[int, limits(ge=1, le=2**53)]  # in symbols
    offset: Seconds
    seconds_per_symbol: Annotated[float, limits(gt=0, le=3600, allow_inf_nan=False)]
    fastest: Ratio  # relative duration of the fastest usual clip, at most 1
    slowest: Ratio  # relative duration of the slowest usual clip, at least 1
    final_mark: Annotated[str, limits(max_length=1)]  # the mark that nearly all texts end with

    def describe(self) -> str:
        """Describe the statistics in two lines, which prepare.py prints."""
        usual = f"{1000 * self.seconds_per_symbol:.0f} ms per symbol"
        usual_range = f"{self.fastest:.2f} to {self.slowest:.2f} times that"
        rate = f"Speaking rate: {usual}; usual clips take {usual_range}"
        if not self.final_mark:
            ending = f"Final mark: none; fewer than {MARKED_SHARE:.0%} of the texts end with one"
        else:
            ending = f"Final mark: {self.final_mark!r}; synthesis adds it to texts without one"
        return f"{rate}\n{ending}"

    def seconds(self, num_symbols: int) -> float:
        """Return the usual time of a text."""
        return self.offset + num_symbols * self.seconds_per_symbol

    def shortest_time(self, num_symbols: int) -> float:
        """Return the shortest plausible time of a text; faster speech lacks words. The offset is
        not included, because it is mostly silence, which a text of one syllable may lack.
        """
        return self.fastest / MARGIN * num_symbols * self.seconds_per_symbol

    def longest_time(self, num_symbols: int) -> float:
        """Return the longest plausible time of a text; longer speech has missed its end."""
        return self.slowest * MARGIN * self.seconds(num_symbols)


@dataclass(frozen=True)
class SpeakerStatistics:
    """Describe the training clips of one speaker."""

    __pydantic_config__ = EXACTLY
    name: Annotated[str, limits(min_length=1, max_length=MAX_NAME)]
    minutes: Minutes  # total time of the speaker's clips
    statistics: SpeechStatistics  # statistics of the corpus, with the rate of the speaker


# The statistics of LJSpeech's 13,100 clips with english_cleaners, for NVIDIA's checkpoints, which
# contain no statistics. tests/test_speech_statistics.py checks these numbers.
LJSPEECH = SpeechStatistics(
    longest_text=188,
    offset=0.163,
    seconds_per_symbol=0.0630,
    fastest=0.735,
    slowest=1.56,
    final_mark=".",
)


def measure(
    num_frames: np.ndarray,
    num_symbols: np.ndarray,
    last: Iterable[str],
    settings: VoiceSettings,
) -> SpeechStatistics:
    """Return the statistics of clips.

    Args:
        num_frames: [clips] lengths of the log-mels.
        num_symbols: [clips] lengths of the texts.
        last: the result of `last_symbol` for each text.
    """
    seconds = np.asarray(num_frames) * (settings.hop_length / settings.sampling_rate)
    symbols = np.asarray(num_symbols, np.float64)
    offset, slope = _fit_line(symbols, seconds)
    pace = seconds / (offset + slope * symbols)
    fastest, slowest = np.quantile(pace, [1 - USUAL_SHARE, USUAL_SHARE])
    marks = Counter(mark for mark in last if mark and mark in MARKS)
    final_mark = ""
    if marks.total() >= MARKED_SHARE * len(seconds):
        final_mark = marks.most_common(1)[0][0]
    return SpeechStatistics(
        longest_text=int(symbols.max()),
        offset=float(offset),
        seconds_per_symbol=float(slope),
        fastest=float(min(fastest, 1)),
        slowest=float(max(slowest, 1)),
        final_mark=final_mark,
    )


def measure_speakers(
    num_frames: np.ndarray,
    num_symbols: np.ndarray,
    indices: np.ndarray,
    names: Sequence[str],
    corpus: SpeechStatistics,
    settings: VoiceSettings,
) -> list[SpeakerStatistics]:
    """Return the statistics of each speaker, in the order of `names`.

    A speaker with at least MIN_CLIPS clips gets a rate of their own (`_fit_speaker`). `fastest` and
    `slowest` are computed from the clips of all such speakers, because a single speaker has too few
    clips for extremes. Each clip counts relative to the rate of its speaker. A speaker with fewer
    clips gets the statistics of the corpus.

    Args:
        num_frames: [clips] lengths of the log-mels.
        num_symbols: [clips] lengths of the texts.
        indices: [clips] each clip's speaker, as an index into `names`.
        corpus: the statistics of all clips together.
    """
    seconds = np.asarray(num_frames) * (settings.hop_length / settings.sampling_rate)
    symbols = np.asarray(num_symbols, np.float64)
    order = np.argsort(indices, kind="stable")
    starts = np.searchsorted(indices[order], np.arange(1, len(names)))
    clips_of = np.split(order, starts)
    lines: dict[int, tuple[float, float]] = {}
    paces: list[np.ndarray] = []
    for index, clips in enumerate(clips_of):
        if len(clips) >= MIN_CLIPS:
            offset, slope = _fit_speaker(symbols[clips], seconds[clips], corpus)
            lines[index] = (offset, slope)
            paces.append(seconds[clips] / (offset + slope * symbols[clips]))
    if not lines:
        paces = [np.ones(1)]
    fastest, slowest = np.quantile(np.concatenate(paces), [1 - USUAL_SHARE, USUAL_SHARE])
    own = replace(corpus, fastest=float(min(fastest, 1)), slowest=float(max(slowest, 1)))
    statistics = []
    for index, (name, clips) in enumerate(zip(names, clips_of, strict=True)):
        speech = corpus
        if index in lines:
            offset, slope = lines[index]
            speech = replace(own, offset=float(offset), seconds_per_symbol=float(slope))
        minutes = float(seconds[clips].sum() / 60)
        statistics.append(SpeakerStatistics(name, minutes, speech))
    return statistics


def _fit_line(symbols: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Fit a line by the least squares of relative errors, and return its offset and slope.

    The offset is 0 if it would be negative, or if all clips have the same length.
    """
    slope = float(np.mean(seconds / symbols))
    if len(np.unique(symbols)) < 2:
        return 0.0, slope
    design = np.stack([np.ones_like(symbols), symbols], axis=1) / seconds[:, None]
    (offset, fitted), *_ = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)
    if offset >= 0 and fitted > 0:
        return float(offset), float(fitted)
    return 0.0, slope


def _fit_speaker(
    symbols: np.ndarray, seconds: np.ndarray, corpus: SpeechStatistics
) -> tuple[float, float]:
    """Return the offset and slope of the line for a speaker.

    If the clips' lengths are too similar to determine the slope, the result is the corpus's line,
    scaled by the mean relative duration of the clips.
    """
    offset, slope = _fit_line(symbols, seconds)
    if len(np.unique(symbols)) > 2:
        design = np.stack([np.ones_like(symbols), symbols], axis=1) / seconds[:, None]
        residuals = 1 - design @ [offset, slope]
        variance = residuals @ residuals / (len(symbols) - 2)
        if variance * np.linalg.inv(design.T @ design)[1, 1] <= (MAX_ERROR * slope) ** 2:
            return offset, slope
    pace = float(np.mean(seconds / (corpus.offset + corpus.seconds_per_symbol * symbols)))
    return pace * corpus.offset, pace * corpus.seconds_per_symbol


def last_symbol(text: Iterable[str]) -> str:
    """Return the last symbol of a cleaned text, without closing quotation marks and brackets."""
    for symbol in reversed(list(text)):
        if symbol not in CLOSING:
            return symbol
    return ""
