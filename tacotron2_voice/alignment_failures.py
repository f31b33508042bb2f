"""Detect failures of a synthesized chunk by checking its attention weights.

failures = find_failures(alignment, ids, reason, settings, statistics)
for failure in failures: print(failure.message)
best = min(attempts, key=lambda attempt: severity(attempt.failures))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.speech_end import FORMED, JUMP_BACK, STUCK_SECONDS, StopReason
from tacotron2_voice.speech_statistics import SpeechStatistics
from tacotron2_voice.text import SymbolTable, sequence_to_text
from tacotron2_voice.text.words import word_spans

ATTENDED = 0.5  # a word is spoken if its attention weight reaches this value at any decoder step
MAX_SHOWN = 3  # maximum number of skipped words to list in a message
ADVICE = "Train longer, or try another seed."

Kind = Literal["blurred", "no stop", "stuck", "missing", "skipped", "repeated", "fast", "slow"]


@dataclass(frozen=True)
class Failure:
    kind: Kind
    count: int  # number of affected words; 1 if the failure does not affect individual words
    message: str


def find_failures(
    alignment: np.ndarray,
    ids: Sequence[int],
    reason: StopReason,
    settings: VoiceSettings,
    statistics: SpeechStatistics | None = None,
) -> list[Failure]:
    """Return the failures of a synthesized chunk, or [] if its attention looks correct.

    A word counts as reached when attention reaches the middle of the word, because attention often
    skips silent letters and punctuation at the end of a word.

    Args:
        alignment: attention weights [decoder steps, symbols].
        statistics: statistics of the training clips. Without statistics, the speaking rate is
            not checked.
    """
    focus_rate = float(alignment.max(axis=1).mean())
    focus = alignment.argmax(axis=1)  # symbol with the largest weight in each decoder step
    spans = word_spans(ids, settings.table)
    failures = []
    if focus_rate < FORMED:
        problem = f"the alignment is blurred: focus rate {focus_rate:.2f} is below {FORMED}"
        failures.append(Failure("blurred", 1, f"{problem}. Train longer."))
    if reason is StopReason.LIMIT:
        failures.append(_no_stop(len(alignment), len(ids), settings))
    if reason is StopReason.STUCK:
        position = f"symbol {focus[-1] + 1} of {len(ids)}"
        problem = (
            f"attention stayed at {position} for {STUCK_SECONDS:g} s, so synthesis of this chunk "
            "stopped"
        )
        failures.append(Failure("stuck", 1, f"{problem}. {ADVICE}"))

    reached = [(start, stop) for start, stop in spans if focus.max() >= (start + stop - 1) // 2]
    if len(reached) < len(spans):
        position = f"word {len(reached)} of {len(spans)} (symbol {focus.max() + 1} of {len(ids)})"
        problem = f"words are missing at the end: attention only reached {position}"
        failures.append(Failure("missing", len(spans) - len(reached), f"{problem}. {ADVICE}"))
    if focus_rate >= FORMED:  # a blurred alignment does not show which words were skipped
        skipped = _skipped_words(alignment, ids, reached, settings.table)
        if skipped:
            shown = ", ".join(skipped[:MAX_SHOWN])
            if len(skipped) > MAX_SHOWN:
                shown += f" and {len(skipped) - MAX_SHOWN} more"
            problem = f"words may be skipped: {shown}"
            failures.append(Failure("skipped", len(skipped), f"{problem}. {ADVICE}"))
    jumps = focus[:-1] - focus[1:]
    if len(jumps) and jumps.max() > JUMP_BACK:
        step = int(jumps.argmax())
        again = [start for start, _ in spans if focus[step + 1] <= start <= focus[step]]
        jump = f"attention jumps back {jumps[step]} symbols at decoder step {step + 1}"
        problem = f"words may be repeated: {jump}"
        failures.append(Failure("repeated", max(1, len(again)), f"{problem}. {ADVICE}"))
    if statistics is not None and focus_rate >= FORMED and reason.is_found:
        seconds = _seconds(len(alignment), settings)
        is_letter = [stop - start for start, stop in spans] == [1]
        failures += _rate_failures(seconds, len(ids), statistics, is_letter=is_letter)
    return failures


def severity(failures: Sequence[Failure]) -> tuple[int, int, int]:
    """Return a sort key for attempts; the best attempt has the smallest key.

    A missing end is the worst failure, followed by wrong words and a wrong speaking rate.
    """
    counts = {failure.kind: failure.count for failure in failures}
    without_end = ("no stop" in counts) + ("stuck" in counts)
    wrong_words = sum(counts.get(kind, 0) for kind in ("missing", "skipped", "repeated"))
    wrong_rate = ("fast" in counts) + ("slow" in counts)
    return without_end, wrong_words, wrong_rate


def _seconds(num_steps: int, settings: VoiceSettings) -> float:
    step_time = settings.n_frames_per_step * settings.hop_length / settings.sampling_rate
    return num_steps * step_time


def _no_stop(num_steps: int, num_symbols: int, settings: VoiceSettings) -> Failure:
    problem = f"no stop within {_seconds(num_steps, settings):.1f} s"
    if num_steps == settings.max_decoder_steps:
        limit = f"the limit max_decoder_steps={settings.max_decoder_steps}"
    else:
        limit = f"the limit for {num_symbols} symbols"
    return Failure("no stop", 1, f"{problem}, {limit}. {ADVICE} Or lower gate_threshold.")


def _skipped_words(
    alignment: np.ndarray,
    ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    table: SymbolTable,
) -> list[str]:
    """Return, in quotes, the words in `spans` whose attention weight is below ATTENDED in every
    decoder step."""
    skipped = []
    for start, stop in spans:
        weight = alignment[:, _symbols_of_word(start, stop)].sum(axis=1).max()
        if weight < ATTENDED:
            skipped.append(repr(sequence_to_text(ids[start:stop], table)))
    return skipped


def _symbols_of_word(start: int, stop: int) -> slice:
    """Return the slice of symbols whose attention weights count toward a word.

    For one-letter words, the range includes the neighboring symbols, because half of the attention
    may be on the spaces around the letter.
    """
    if stop - start > 1:
        return slice(start, stop)
    return slice(max(start - 1, 0), stop + 1)


def _rate_failures(
    seconds: float, num_symbols: int, statistics: SpeechStatistics, *, is_letter: bool
) -> list[Failure]:
    """Return [failure] if speech is much faster or slower than the training clips, otherwise [].

    Args:
        is_letter: whether the text is a single letter.
    """
    spoken = f"{num_symbols} symbols in {seconds:.1f} s"
    shortest = statistics.shortest_time(num_symbols)
    longest = statistics.longest_time(num_symbols)
    if seconds < shortest:
        problem = f"too fast: {spoken} (expected at least {shortest:.1f} s)"
        if is_letter:
            return [Failure("fast", 1, f"{problem}. Write the name of the letter, such as 'bee'.")]
        return [Failure("fast", 1, f"{problem}. Words may be missing. {ADVICE}")]
    if seconds > longest:
        problem = f"too slow: {spoken} (expected at most {longest:.1f} s)"
        return [Failure("slow", 1, f"{problem}. {ADVICE}")]
    return []
