"""What went wrong when a part of a text was spoken, read off its attention, and how badly.

    faults = find_faults(alignment, words, end, hparams, table, statistics)
    for fault in faults: print(fault.message)
    tries.sort(key=badness)  # of the faults of each try

Missing stops, words left out and words said twice are what users of Tacotron 2 report most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hparams import HParams
from tacotron2_voice.speech_end import FORMED, JUMP_BACK, STUCK, End
from tacotron2_voice.speech_statistics import MARKS, SpeechStatistics, last_symbol
from tacotron2_voice.text import SymbolTable, sequence_to_text
from tacotron2_voice.text.words import word_spans

ATTENDED = 0.5  # share of the attention that a spoken word has at one step at least
MAX_NAMED = 3

Kind = Literal["blurred", "no stop", "stuck", "missing", "skipped", "repeated", "fast", "slow"]


@dataclass(frozen=True)
class Fault:
    kind: Kind
    count: int  # words, or 1
    message: str


def find_faults(
    alignment: np.ndarray,
    words: Sequence[int],
    end: End,
    hparams: HParams,
    table: SymbolTable,
    statistics: SpeechStatistics | None = None,
) -> list[Fault]:
    """The faults of attention weights [steps, symbols] of these symbol ids; none if all is well.
    Too fast and too slow are known only beside the `statistics` of a corpus.

    A word counts as reached from its middle on, for attention often skips silent letters at its end
    and the punctuation after it.
    """
    faults, fix = [], _fix(words, table)
    step_time = hparams.n_frames_per_step * hparams.hop_length / hparams.sampling_rate
    seconds = len(alignment) * step_time
    sharpness = float(alignment.max(axis=1).mean())
    focus = alignment.argmax(axis=1)  # the symbol attended most, at each step
    spans = word_spans(words, table)
    if sharpness < FORMED:
        what = f"alignment is blurred: sharpness {sharpness:.2f} is below {FORMED}"
        faults.append(
            Fault("blurred", 1, f"{what}; the model has not learnt to align yet, train longer")
        )
    if end is End.LIMIT:
        what = f"no stop within {seconds:.1f} s, the most that {len(words)} symbols take"
        advice = f"{fix}; or lower gate_threshold"
        is_set = len(alignment) == hparams.max_decoder_steps  # and not that of the text
        if is_set and statistics and seconds < statistics.longest_time(len(words)):
            what = f"no stop within {seconds:.1f} s, for max_decoder_steps is "
            what += f"{hparams.max_decoder_steps}"
            advice = f"leave it out, {len(words)} symbols take up to "
            advice += f"{statistics.longest_time(len(words)):.1f} s"
        faults.append(Fault("no stop", 1, f"{what}: {advice}"))
    if end is End.STUCK:
        place = f"symbol {focus[-1] + 1} of {len(words)}"
        what = f"attention rested on {place} for {STUCK:g} s, and speech was ended there"
        faults.append(Fault("stuck", 1, f"{what}: {fix}"))

    reached = [(start, stop) for start, stop in spans if focus.max() >= (start + stop - 1) // 2]
    if len(reached) < len(spans):
        what = f"attention reached word {len(reached)} of {len(spans)}"
        where = f"symbol {focus.max() + 1} of {len(words)}"
        message = f"words are missing at the end: {what} ({where}): {fix}"
        faults.append(Fault("missing", len(spans) - len(reached), message))
    if sharpness >= FORMED:  # blurred attention is on no word
        attended = [alignment[:, _place_of(*span)].sum(axis=1).max() for span in reached]
        skipped = [
            repr(sequence_to_text(words[start:stop], table))
            for (start, stop), share in zip(reached, attended, strict=True)
            if share < ATTENDED
        ]
        if skipped:
            more = f" and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
            message = f"words may be left out: {', '.join(skipped[:MAX_NAMED])}{more}: {fix}"
            faults.append(Fault("skipped", len(skipped), message))
    jumps = focus[:-1] - focus[1:]
    if len(jumps) and jumps.max() > JUMP_BACK:
        step = int(jumps.argmax())
        what = f"attention jumps back {jumps[step]} symbols at step {step + 1}"
        again = [start for start, _ in spans if focus[step + 1] <= start <= focus[step]]
        message = f"{what}: words may be repeated: {fix}"
        faults.append(Fault("repeated", max(1, len(again)), message))
    if statistics is not None and sharpness >= FORMED and end.is_found:
        faults += _pace_faults(seconds, len(words), statistics, fix)
    return faults


def _place_of(start: int, stop: int) -> slice:
    """The symbols whose attention counts for a word: of one letter those beside it too, since
    attention may pass it half on the blanks. Of 100 texts 21 had an "a" so, and a recognizer heard
    it in 20."""
    return slice(start, stop) if stop - start > 1 else slice(max(start - 1, 0), stop + 1)


def _fix(words: Sequence[int], table: SymbolTable) -> str:
    """What helps, first what helps most; a mark only where there is none."""
    marked = last_symbol(table.symbols[i] for i in words) in MARKS
    return f"train longer,{'' if marked else ' end the text with a mark,'} or try another --seed"


def _pace_faults(
    seconds: float, num_symbols: int, statistics: SpeechStatistics, fix: str
) -> list[Fault]:
    spoken = f"{num_symbols} symbols in {seconds:.1f} s"
    least, most = statistics.shortest_time(num_symbols), statistics.longest_time(num_symbols)
    if seconds < least:
        rule = f"expected at least {least:.1f} s by the pace of the training clips"
        return [Fault("fast", 1, f"too fast: {spoken}, {rule}; words may be missing: {fix}")]
    if seconds > most:
        rule = f"expected at most {most:.1f} s by the pace of the training clips"
        return [Fault("slow", 1, f"too slow: {spoken}, {rule}: {fix}")]
    return []


def badness(faults: Sequence[Fault]) -> tuple[int, int, int]:
    """To compare tries by, the best lowest: no end found, then words that are wrong, then pace."""
    counts = {fault.kind: fault.count for fault in faults}
    unended = ("no stop" in counts) + ("stuck" in counts)
    wrong = sum(counts.get(kind, 0) for kind in ("missing", "skipped", "repeated"))
    return unended, wrong, ("fast" in counts) + ("slow" in counts)
