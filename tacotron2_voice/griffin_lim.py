"""Reconstruct audio from log-mels, using only numpy and scipy.

griffin_lim = GriffinLim(settings, filters)
griffin_lim.samples(log_mel)                       # audio of a whole log-mel [n_mels, frames]
for samples in griffin_lim.stream(log_mels): ...   # audio in pieces, as log-mels become available
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy.fft
from numpy.lib.stride_tricks import sliding_window_view

from tacotron2_voice.settings import LOG_FLOOR, VoiceSettings
from tacotron2_voice.utils.errors import UserError

SILENCE = float(np.log(LOG_FLOOR))  # -11.51, the value of all mel bands in silence
MAX_LOG_MEL = 20  # largest accepted value of a log-mel; audio in [-1, 1] reaches about 3
MOMENTUM = 0.99  # momentum of fast Griffin-Lim
ITERATIONS = 30  # more than 30 iterations hardly change the audio (research/voices.md)
MAGNITUDE_ITERATIONS = 30
TINY = np.float32(1e-8)
SILENT_PIECE = 128  # maximum number of frames per piece of silence


def is_silence(log_mel: np.ndarray) -> bool:
    """Return whether all values of a log-mel [n_mels, frames] are digital silence."""
    return bool((log_mel <= np.float32(SILENCE)).all())


def cut_silence(log_mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Cut log-mels [n_mels, frames] before, inside and after long silence, and yield the pieces.

    The vocoder skips log-mels of silence, so a long pause takes neither time nor memory.
    """
    for log_mel in log_mels:
        is_silent = (log_mel <= np.float32(SILENCE)).all(axis=0)
        edges = np.flatnonzero(np.diff(is_silent, prepend=False, append=False))
        cuts: list[int] = []
        for start, end in edges.reshape(-1, 2).tolist():
            if end - start >= 2 * SILENT_PIECE:
                cuts += [*range(start, end, SILENT_PIECE), end]
        for piece in np.split(log_mel, cuts, axis=1):
            if piece.shape[1]:
                yield piece


def windowed(
    pieces: Iterable[np.ndarray],
    function: Callable[[np.ndarray], np.ndarray],
    context: int,
    scale: int = 1,
) -> Iterator[np.ndarray]:
    """Apply `function` to an array [channels, frames] that arrives in pieces, and yield the
    results.

    `function` returns `scale` columns per frame. Each column may depend on up to `context` frames
    before and after its own frame.
    """
    # Input frames that are still needed. The first `done` of these frames are needed only as
    # context for later frames.
    waiting = np.empty((0, 0), np.float32)
    done = 0
    for piece in itertools.chain(pieces, [None]):
        if piece is not None:
            waiting = np.concatenate([waiting, piece], axis=1) if waiting.size else piece
        ready = waiting.shape[1] - (context if piece is not None else 0)
        if ready > done:
            yield function(waiting)[..., done * scale : ready * scale]
            start = max(0, ready - context)
            waiting = waiting[:, start:]
            done = ready - start


class GriffinLim:
    """Compute audio from log-mels with the fast Griffin-Lim algorithm (Perraudin, Balazs,
    Søndergaard 2013)."""

    def __init__(self, settings: VoiceSettings, filters: np.ndarray, iterations: int = ITERATIONS):
        """Prepare the window and the inverse of the mel filters.

        Args:
            filters: the mel filters used in training, [n_mels, filter_length / 2 + 1].
        """
        self.size = settings.filter_length
        self.hop = settings.hop_length
        self.blocks = -(-self.size // self.hop)  # number of hops in a window, rounded up
        self.iterations = iterations
        length = settings.win_length
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
        left = (self.size - length) // 2
        self.window = np.pad(window, (left, self.size - length - left)).astype(np.float32)
        self.filters = filters
        self.inverse = np.linalg.pinv(filters.astype(np.float64)).astype(np.float32)

    def magnitudes(self, log_mel: np.ndarray) -> np.ndarray:
        """Return non-negative linear magnitudes [frames, bins] that approximate a log-mel.

        The magnitudes are computed by multiplicative updates (Lee and Seung 2001). `log_mel` has
        the shape [n_mels, frames].

        Raises:
            UserError: if the log-mel contains NaN, or a value above MAX_LOG_MEL.
        """
        peak = log_mel.max(initial=-np.inf)
        if not peak <= MAX_LOG_MEL:  # `not ... <=` is also true for NaN
            raise UserError(
                f"the log-mel reaches {peak:g} (expected at most {MAX_LOG_MEL}), "
                "because the training has diverged. Use an earlier checkpoint."
            )
        mel = np.exp(log_mel.T.astype(np.float32))
        magnitudes = np.maximum(mel @ self.inverse.T, LOG_FLOOR)
        target = mel @ self.filters
        for _ in range(MAGNITUDE_ITERATIONS):
            magnitudes *= target / (magnitudes @ self.filters.T @ self.filters + TINY)
        return magnitudes

    def samples(self, log_mel: np.ndarray) -> np.ndarray:
        """Return float32 samples [hop_length * frames - 1] for a log-mel [n_mels, frames].

        Raises:
            UserError: if the log-mel contains NaN, or a value above MAX_LOG_MEL.
        """
        return np.concatenate([*self.stream([log_mel])])

    def stream(self, log_mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield float32 samples [N] for consecutive log-mels [n_mels, frames].

        The total number of samples is hop_length * frames - 1. The samples of the previous piece
        stay fixed while the next piece is computed, so that the phases are continuous.
        """
        rng = np.random.default_rng(0)
        known = np.empty(0, np.float32)
        context = 2 * self.blocks
        half = self.size // 2

        def invert(log_mel: np.ndarray) -> np.ndarray:
            nonlocal known
            if is_silence(log_mel):
                samples = np.zeros((log_mel.shape[1] + self.blocks) * self.hop, np.float32)
                samples[: len(known)] = known
            else:
                samples = self._invert(self.magnitudes(log_mel), known, rng)
            # If more frames follow, `windowed` yields only the samples of the first `ready` frames.
            ready = log_mel.shape[1] - context
            known = samples[max(0, ready - context) * self.hop : max(0, ready) * self.hop + half]
            return samples[half : half + log_mel.shape[1] * self.hop - 1]

        return windowed(cut_silence(log_mels), invert, context, self.hop)

    def _invert(
        self, magnitudes: np.ndarray, known: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return samples that begin with the samples `known` and have approximately these
        `magnitudes`.

        The first sample is at the start of the first frame's window, filter_length / 2 samples
        before the center of the window.
        """
        turns = rng.random(magnitudes.shape, dtype=np.float32) * np.float32(2 * np.pi)
        angles = np.exp(1j * turns).astype(np.complex64)
        weight = self._overlap(np.broadcast_to(self.window**2, (len(magnitudes), self.size)))
        weight = np.maximum(weight, 0.01 * weight.max())
        before = np.zeros_like(angles)
        for i in range(self.iterations + 1):
            spectra = scipy.fft.irfft(magnitudes * angles, self.size, axis=1)
            samples = self._overlap(spectra * self.window) / weight
            samples[: len(known)] = known
            if i < self.iterations:
                frames = sliding_window_view(samples, self.size)[:: self.hop]
                rebuilt = scipy.fft.rfft(frames * self.window, axis=1)[: len(magnitudes)]
                angles = rebuilt - np.float32(MOMENTUM / (1 + MOMENTUM)) * before
                angles /= np.abs(angles) + TINY
                before = rebuilt
        return samples

    def _overlap(self, frames: np.ndarray) -> np.ndarray:
        """Return the sum of overlapping frames [n, size], each starting one hop after the previous
        frame."""
        total = np.zeros((len(frames) + self.blocks, self.hop), np.float32)
        for block in range(self.blocks):
            part = frames[:, block * self.hop : (block + 1) * self.hop]
            total[block : block + len(frames), : part.shape[1]] += part
        return total.reshape(-1)
