"""Detect the end of speech, from the stop-token predictor or from attention at the end of the text.

    detector = EndDetector(ids, settings, max_steps)
    while not detector.add(frame, gate, weights):    # outputs of the next decoder step
        ...
    detector.num_steps                               # number of decoder steps that are speech
    detector.reason                                  # why speech ended

The stop-token predictor ("gate") alone is not reliable. The stop-token predictor is trained on only
one stop frame per clip, so the stop probability may peak below the threshold. If the end of speech
is not detected, the model hums until the maximum number of decoder steps, or reads the text again
(see docs/background/end-of-speech.md for measurements).
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np

from tacotron2_voice.griffin_lim import MAX_LOG_MEL
from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.text.words import word_spans

FORMED = 0.3  # a decoder step is aligned if its largest attention weight is at least this value
JUMP_BACK = 4  # if attention moves back by more than this number of symbols, words are repeated
# Attention rests on the last symbols if the sum of their attention weights is at least this value.
RESTING_SHARE = 0.5
# Audio at or below this level counts as quiet. The level is in dB relative to the loud frames of a
# chunk (their 95th percentile). In the demo, the levels at the stop token ranged from -46 to -25.9
# dB.
DIED_AWAY = -25.0
# While attention rests on the last symbols, a decoder step counts as quiet if its level is at most
# this many dB above the level of the quietest step.
NEARLY_QUIETEST = 3.0
DYING_SECONDS = 0.25  # maximum seconds after the stop token to wait until the audio is quiet
# Speech ends if attention does not reach a new symbol for this many seconds. In the demo, the
# longest time without a new symbol was 0.19 seconds.
STUCK_SECONDS = 2.0
DECIBELS = 20 / np.log(10)


class StopReason(Enum):
    GATE = "the stop probability exceeded its threshold"
    REST = "attention rested on the last symbols"
    STUCK = "attention stopped inside the text"
    LIMIT = "the limit of decoder steps was reached"

    @property
    def is_found(self) -> bool:
        """Return whether speech ended at the end of the text."""
        return self in (StopReason.GATE, StopReason.REST)


class EndDetector:
    """Decide after every decoder step whether the speech of a chunk has ended.

    Speech ends at the first of these events:
    - The stop probability exceeds `gate_threshold` after attention has reached the last word, or
      while the alignment is blurred. In this case, speech ends at the first quiet decoder step within
      the next DYING_SECONDS. If there is no quiet decoder step, speech ends at this decoder step.
    - Attention has rested on the last symbols for `attention_rest_time`, or has moved from the last
      symbols back into the text. In this case, speech ends at one of the quiet decoder steps in
      which attention rested on the last symbols: the step with the highest stop probability. This
      stop probability may be below the threshold.
    - Attention has reached no new symbol for STUCK_SECONDS, or the chunk has `max_steps` decoder
      steps.

    Attributes:
        reason: why speech ended, or None if it has not ended.
        num_steps: number of decoder steps that are speech. If the reason is StopReason.REST,
            `num_steps` is smaller than the number of decoder steps that were added.
        gates: the stop probabilities of all decoder steps that were added.
        is_quiet: whether the audio is quiet at the last decoder step of speech.
    """

    def __init__(self, ids: Sequence[int], settings: VoiceSettings, max_steps: int):
        """Prepare to detect the end of speech in a chunk. `ids` must contain at least one letter or phone."""
        frame_time = settings.hop_length / settings.sampling_rate
        self._step_time = settings.n_frames_per_step * frame_time
        self._gate_threshold = settings.gate_threshold
        self._max_steps = max_steps
        self._rest_steps = settings.attention_rest_time / 1000 / self._step_time
        spans = word_spans(ids, settings.table) or [(0, len(ids))]
        start, end = spans[-1]
        # Use the middle of the last word, because attention often skips silent letters at the end
        # of a word.
        self._last_word = (start + end - 1) // 2
        self._last_symbols = max(0, min(end - 1, len(ids) - 2))
        self._levels: list[float] = []
        self.gates: list[float] = []
        self._furthest = -1  # furthest symbol that attention has reached
        self._progress = 0  # decoder step at which attention reached the furthest symbol
        self._rest_began: int | None = None  # first decoder step with attention on the last symbols
        self._rested = 0  # number of decoder steps with attention on the last symbols
        # Decoder step at which the stop probability exceeded the threshold.
        self._fired: int | None = None
        self.reason: StopReason | None = None
        self.num_steps = 0

    def add(self, frame: np.ndarray, gate: float, weights: np.ndarray) -> bool:
        """Add the next decoder step, and return whether speech has ended.

        Args:
            frame: the last log-mel frame [n_mels] of the step, before the postnet.
            gate: the stop probability.
            weights: the attention weights [symbols].
        """
        step = len(self.gates)
        # Limit the values to avoid overflow. Griffin-Lim later rejects frames that exceed the limit.
        bounded = np.minimum(frame, MAX_LOG_MEL)
        self._levels.append(DECIBELS * float(np.log(np.exp(bounded).sum())))
        self.gates.append(gate)
        focus = int(weights.argmax())
        if focus > self._furthest:
            self._furthest = focus
            self._progress = step
        has_left = False
        if self._rest_steps and weights[self._last_symbols :].sum() >= RESTING_SHARE:
            if self._rest_began is None:
                self._rest_began = step
            self._rested += 1
        elif self._rest_began is not None:
            has_left = focus < self._last_symbols - JUMP_BACK
        is_inside = self._furthest < self._last_word and weights[focus] >= FORMED
        if gate > self._gate_threshold and not is_inside and self._fired is None:
            self._fired = step

        has_rested = self._rest_began is not None and self._rested >= self._rest_steps
        if self._fired is not None and self._is_quiet(step):
            self._end(StopReason.GATE, step)
        elif self._fired is not None and self._seconds_since(self._fired) >= DYING_SECONDS:
            self._end(StopReason.GATE, self._fired)
        elif has_left or has_rested:
            self._end(StopReason.REST, self._best_at_rest())
        elif self._seconds_since(self._progress) >= STUCK_SECONDS:
            self._end(StopReason.STUCK, step)
        elif step + 1 >= self._max_steps and self._fired is not None:
            self._end(StopReason.GATE, self._fired)
        elif step + 1 >= self._max_steps:
            self._end(StopReason.LIMIT, step)
        return self.reason is not None

    @property
    def num_certain(self) -> int:
        """Return the number of decoder steps, counted from the start, that are certain to be
        speech. The audio of these steps can be sent before speech has ended."""
        if self.reason is not None:
            return self.num_steps
        count = len(self.gates)
        if self._rest_began is not None:
            count = min(count, self._rest_began)
        if self._fired is not None:
            count = min(count, self._fired + 1)
        return count

    @property
    def is_quiet(self) -> bool:
        return self._is_quiet(self.num_steps - 1)

    def _seconds_since(self, step: int) -> float:
        return (len(self.gates) - 1 - step) * self._step_time

    def _end(self, reason: StopReason, step: int) -> None:
        self.reason = reason
        self.num_steps = step + 1

    def _loud_level(self) -> float:
        return float(np.percentile(self._levels, 95))

    def _is_quiet(self, step: int) -> bool:
        return self._levels[step] <= self._loud_level() + DIED_AWAY

    def _best_at_rest(self) -> int:
        assert self._rest_began is not None
        levels = np.array(self._levels[self._rest_began :])
        gates = np.array(self.gates[self._rest_began :])
        limit = max(levels.min() + NEARLY_QUIETEST, self._loud_level() + DIED_AWAY)
        return self._rest_began + int(np.where(levels <= limit, gates, -1).argmax())
