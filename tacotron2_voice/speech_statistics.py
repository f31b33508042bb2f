"""Measure the speech of a corpus: its speaking rate, longest text and most frequent final
punctuation mark.

    statistics = measure(num_frames, num_symbols, last_symbols, settings)
    statistics.seconds(40)          # typical duration of 40 symbols
    statistics.longest_time(40)     # longest plausible duration of 40 symbols
    measure_speakers(...)           # statistics per speaker, because speaking rates differ

Training stores the statistics in every checkpoint. Synthesis uses the statistics to limit the
duration of a text, to detect a wrong speaking rate, and to add a missing final punctuation mark.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from tacotron2_voice.settings import VoiceSettings, limits
from tacotron2_voice.speakers import MAX_NAME

MARKS = ".!?…;:,—।。！？，、；："  # punctuation marks that may end a text, in several scripts
CLOSING = "'\")]»”’」』 "  # characters that may follow the end punctuation of a text
# A corpus has common end punctuation if at least this fraction of its texts ends with punctuation.
MARKED_SHARE = 0.8
# `slowest` is this quantile of the relative durations. `fastest` is the quantile 0.001 of the
# relative durations.
USUAL_SHARE = 0.999
MIN_CLIPS = 20  # a speaker with fewer clips gets the speaking rate of the whole corpus
# Maximum standard error of the seconds per symbol that are fitted to a speaker's clips, divided by
# the fitted value.
MAX_ERROR = 0.1
# Synthesized speech is plausible if it is at most this factor faster than the fastest typical clip,
# and at most this factor slower than the slowest typical clip.
MARGIN = 1.25

Seconds = Annotated[float, limits(ge=0, le=3600, allow_inf_nan=False)]
Minutes = Annotated[float, limits(ge=0, le=1e9, allow_inf_nan=False)]
Ratio = Annotated[float, limits(gt=0, le=1e6, allow_inf_nan=False)]
EXACTLY = {"extra": "forbid"}  # makes pydantic reject unknown names


@dataclass(frozen=True)
class SpeechStatistics:
    """Statistics of the training clips.

    The typical duration of n symbols is offset + n * seconds_per_symbol, fitted by least squares of
    relative errors. The relative duration of a clip is the clip's duration divided by the typical
    duration for its text.
    """

    __pydantic_config__ = EXACTLY
    # Number of symbols in the longest training text.
    longest_text: Annotated[int, limits(ge=1, le=2**53)]
    offset: Seconds
    seconds_per_symbol: Annotated[float, limits(gt=0, le=3600, allow_inf_nan=False)]
    fastest: Ratio  # relative duration of the fastest clip that is not an outlier (at most 1)
    slowest: Ratio  # relative duration of the slowest clip that is not an outlier (at least 1)
    # Most frequent end punctuation of the texts. "": too few texts have end punctuation.
    final_mark: Annotated[str, limits(max_length=1)]

    def describe(self) -> str:
        """Return two lines that describe the statistics, for prepare.py."""
        usual = f"{1000 * self.seconds_per_symbol:.0f} ms per symbol"
        usual_range = f"{self.fastest:.2f} to {self.slowest:.2f} times this duration"
        rate = f"Speaking rate: {usual}; typical clips have {usual_range}"
        if not self.final_mark:
            share = f"{100 * MARKED_SHARE:.0f}%"
            ending = f"End punctuation: none; fewer than {share} of the texts end with a punctuation mark"
        else:
            ending = (
                f"End punctuation: {self.final_mark!r}; synthesis adds this mark to texts without end "
                "punctuation"
            )
        return f"{rate}\n{ending}"

    def seconds(self, num_symbols: int) -> float:
        """Return the typical duration of a text."""
        return self.offset + num_symbols * self.seconds_per_symbol

    def shortest_time(self, num_symbols: int) -> float:
        """Return the shortest plausible duration of a text. In shorter speech, words are missing.

        The result does not include the offset of the fitted line, because the offset is mostly
        silence, and speech of one syllable may contain no silence.
        """
        return self.fastest / MARGIN * num_symbols * self.seconds_per_symbol

    def longest_time(self, num_symbols: int) -> float:
        """Return the longest plausible duration of a text. If speech is longer, it did not stop at
        the end of the text."""
        return self.slowest * MARGIN * self.seconds(num_symbols)


@dataclass(frozen=True)
class SpeakerStatistics:
    """Statistics of one speaker's training clips."""

    __pydantic_config__ = EXACTLY
    name: Annotated[str, limits(min_length=1, max_length=MAX_NAME)]
    minutes: Minutes  # total duration of the speaker's clips
    statistics: SpeechStatistics  # statistics of the corpus, with the speaker's own speaking rate


# Statistics of LJSpeech's 13,100 clips with english_cleaners, for NVIDIA's checkpoints, which
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
    """Compute the statistics of a corpus from the lengths and last symbols of its clips.

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
        offset=offset,
        seconds_per_symbol=slope,
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
    """Compute the statistics of each speaker, in the order of `names`.

    Speakers with fewer than MIN_CLIPS clips get the statistics of the corpus. All other speakers
    get their own speaking rate (`_fit_speaker`). `fastest` and `slowest` are computed from the
    clips of all these speakers together, because a single speaker has too few clips to measure
    extremes. For `fastest` and `slowest`, the duration of each clip is divided by the typical
    duration for the clip's speaker.

    Args:
        num_frames: [clips] lengths of the log-mels.
        num_symbols: [clips] lengths of the texts.
        indices: [clips] the speaker of each clip, as an index into `names`.
        corpus: statistics of all clips.
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
            speech = replace(own, offset=offset, seconds_per_symbol=slope)
        minutes = float(seconds[clips].sum() / 60)
        statistics.append(SpeakerStatistics(name, minutes, speech))
    return statistics


def _fit_line(symbols: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return the offset and slope of a line that minimizes the squared relative errors.

    The offset is 0 if the fitted offset is negative, or if all texts have the same length.
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
    """Return the offset and slope of a line that fits the durations of a speaker's clips.

    If the lengths of the clips are too similar to determine the slope, return the regression line
    of the whole corpus, multiplied by the mean relative duration of the speaker's clips.
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
    """Return the last symbol of a cleaned text, ignoring closing quotation marks and brackets."""
    for symbol in reversed(list(text)):
        if symbol not in CLOSING:
            return symbol
    return ""
