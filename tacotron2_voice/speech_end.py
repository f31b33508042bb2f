"""Where speech ends: by the gate, or by attention that rests on the last symbols.

    end = EndFinder(words, hparams, table, max_steps)
    while not end.add(frames, gate, weights):  # of the next decoder step
        ...
    end.num_steps, end.reason                  # how many of the steps are speech, and why it ended

A gate alone is not enough: trained on one stop a clip, it may peak below its threshold, and the
model then hums until the limit, or reads the text again (docs/training.md has figures).
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np

from hparams import HParams
from tacotron2_voice.griffin_lim import MAX_LOG_MEL
from tacotron2_voice.text import SymbolTable
from tacotron2_voice.text.words import word_spans

FORMED = 0.3  # attention weight from which a step's alignment counts as sharp
JUMP_BACK = 4  # symbols; attention further back than this reads words again
RESTS = 0.5  # share of the attention on the last symbols from which it rests there
# Levels in dB below the part's loud frames (their 95th percentile). At the gate's stop, 9,726 of
# the demo's numbers were at -46 to -25.9, the median at -41.
DIED_AWAY = -25.0
NEARLY_QUIETEST = 3.0  # dB above the quietest step at rest
DYING = 0.25  # seconds in which a sound may still die away after the gate has fired
STUCK = 2.0  # seconds without progress through the text; the longest of the demo's was 0.19
DECIBELS = 20 / np.log(10)


class End(Enum):
    """Why speech ended."""

    GATE = "the gate fired"
    REST = "attention rested on the last symbols"
    STUCK = "attention stopped inside the text"
    LIMIT = "the limit of steps was reached"

    @property
    def is_found(self) -> bool:
        return self in (End.GATE, End.REST)


class EndFinder:
    """Is told of every decoder step, and says when the speech of a part has ended.

    The end is the first of these:
    - The gate's probability passes `gate_threshold`, once attention has reached the last word (or
      is blurred, and says nothing). If the sound then dies away within DYING seconds, speech ends
      there.
    - Attention has been on the last symbols for `attention_rest_time`, or has left them for a place
      further back. The end is then the step at rest, among the quiet ones, at which the gate was
      highest: it peaks at the right place even where it stays below its threshold.
    - Attention has made no progress for STUCK seconds, or `max_steps` steps were made.

    Attributes:
        reason: why it ended; None before.
        num_steps: steps of speech; with REST fewer than were made.
        gates: of all steps that were told.
        is_quiet: whether the sound has died away at the last of them.
    """

    def __init__(self, words: Sequence[int], hparams: HParams, table: SymbolTable, max_steps: int):
        """`words`: the ids of the part's symbols, one of them at least to be spoken."""
        self._step_time = hparams.n_frames_per_step * hparams.hop_length / hparams.sampling_rate
        self._gate_threshold, self._max_steps = hparams.gate_threshold, max_steps
        self._rest_steps = hparams.attention_rest_time / 1000 / self._step_time
        spans = word_spans(words, table) or [(0, len(words))]
        start, end = spans[-1]
        # Attention often skips silent letters at a word's end: it is reached from its middle on.
        self._last_word = (start + end - 1) // 2
        self._last_symbols = max(0, min(end - 1, len(words) - 2))
        self._levels: list[float] = []
        self.gates: list[float] = []
        self._furthest = -1  # symbol attended so far
        self._progress = 0  # step at which attention came there
        self._rest_began: int | None = None
        self._rested = 0  # steps on the last symbols
        self._fired: int | None = None  # step at which the gate passed its threshold
        self.reason: End | None = None
        self.num_steps = 0

    def add(self, frame: np.ndarray, gate: float, weights: np.ndarray) -> bool:
        """Take the next step: its last log-mel frame [n_mels] (before the postnet), the gate's
        probability and the attention weights [symbols]. Returns whether speech has ended."""
        step = len(self.gates)
        loud = np.minimum(frame, MAX_LOG_MEL)  # what no sound has is refused later
        self._levels.append(DECIBELS * float(np.log(np.exp(loud).sum())))
        self.gates.append(gate)
        focus = int(weights.argmax())
        if focus > self._furthest:
            self._furthest, self._progress = focus, step
        has_left = False
        if self._rest_steps and weights[self._last_symbols :].sum() >= RESTS:
            self._rest_began = step if self._rest_began is None else self._rest_began
            self._rested += 1
        elif self._rest_began is not None:
            has_left = focus < self._last_symbols - JUMP_BACK
        reads = self._furthest < self._last_word and weights[focus] >= FORMED
        if gate > self._gate_threshold and not reads and self._fired is None:
            self._fired = step

        if self._fired is not None and self._is_quiet(step):
            self._end(End.GATE, step)
        elif self._fired is not None and (step - self._fired) * self._step_time >= DYING:
            self._end(End.GATE, self._fired)
        elif has_left or (self._rest_began is not None and self._rested >= self._rest_steps):
            self._end(End.REST, self._best_at_rest())
        elif (step - self._progress) * self._step_time >= STUCK:
            self._end(End.STUCK, step)
        elif step + 1 >= self._max_steps and self._fired is not None:
            self._end(End.GATE, self._fired)
        elif step + 1 >= self._max_steps:
            self._end(End.LIMIT, step)
        return self.reason is not None

    @property
    def num_certain(self) -> int:
        """Steps that are speech whatever follows: a stream may send these."""
        if self.reason is not None:
            return self.num_steps
        bounds = [self._rest_began, None if self._fired is None else self._fired + 1]
        return min((bound for bound in bounds if bound is not None), default=len(self.gates))

    @property
    def is_quiet(self) -> bool:
        return self._is_quiet(self.num_steps - 1)

    def _end(self, reason: End, step: int) -> None:
        self.reason, self.num_steps = reason, step + 1

    def _loud(self) -> float:
        return float(np.percentile(self._levels, 95))

    def _is_quiet(self, step: int) -> bool:
        return self._levels[step] <= self._loud() + DIED_AWAY

    def _best_at_rest(self) -> int:
        assert self._rest_began is not None
        levels, gates = (np.array(x[self._rest_began :]) for x in (self._levels, self.gates))
        limit = max(levels.min() + NEARLY_QUIETEST, self._loud() + DIED_AWAY)
        return self._rest_began + int(np.where(levels <= limit, gates, -1).argmax())
