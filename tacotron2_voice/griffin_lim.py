"""From log-mels to sound, with numpy and scipy alone.

griffin_lim = GriffinLim(hparams, filters)
griffin_lim.samples(log_mel)           # of a whole log-mel [n_mels, frames]
for samples in griffin_lim.stream(log_mels): ...  # in pieces: the first before the last frame
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy.fft
from numpy.lib.stride_tricks import sliding_window_view

from hparams import LOG_FLOOR, HParams
from tacotron2_voice.utils.errors import UserError

SILENCE = float(np.log(LOG_FLOOR))  # -11.51, the log-mel of silence
MAX_LOG_MEL = 20  # log-mels of sound in [-1, 1] reach some 3
MOMENTUM = 0.99  # of fast Griffin-Lim
ITERATIONS = 30  # of Griffin-Lim with momentum: more change little (docs/voices.md)
UPDATES_OF_MAGNITUDES = 30
TINY = np.float32(1e-8)


def windowed(
    pieces: Iterable[np.ndarray],
    function: Callable[[np.ndarray], np.ndarray],
    context: int,
    scale: int = 1,
) -> Iterator[np.ndarray]:
    """`function` of a whole [channels, frames], given and returned in pieces. It makes `scale`
    columns of a frame, which depend on at most `context` frames on either side."""
    held, done = np.empty((0, 0), np.float32), 0  # frames, the first `done` of them as context
    for piece in itertools.chain(pieces, [None]):
        if piece is not None:
            held = np.concatenate([held, piece], axis=1) if held.size else piece
        ready = held.shape[1] - (context if piece is not None else 0)
        if ready > done:
            yield function(held)[..., done * scale : ready * scale]
            start = max(0, ready - context)
            held, done = held[:, start:], ready - start


class GriffinLim:
    """Fast Griffin-Lim (Perraudin, Balazs, Søndergaard 2013) in pieces."""

    def __init__(self, hparams: HParams, filters: np.ndarray, iterations: int = ITERATIONS):
        """`filters` [n_mels, filter_length / 2 + 1], as `audio.mel_filters`."""
        h = hparams
        self.size, self.hop, self.iterations = h.filter_length, h.hop_length, iterations
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(h.win_length) / h.win_length)
        left = (self.size - h.win_length) // 2
        self.window = np.pad(window, (left, self.size - h.win_length - left)).astype(np.float32)
        self.filters = filters
        self.inverse = np.linalg.pinv(filters.astype(np.float64)).astype(np.float32)

    def magnitudes(self, log_mel: np.ndarray) -> np.ndarray:
        """Linear magnitudes [frames, bins], none negative, whose mel is close to `log_mel` [n_mels,
        frames], by multiplicative updates (Lee and Seung 2001); UserError for a mel that no sound
        has."""
        if not (peak := log_mel.max(initial=-np.inf)) <= MAX_LOG_MEL:  # true for nan as well
            raise UserError(
                f"the log-mel reaches {peak:g}, expected at most {MAX_LOG_MEL}: the model's "
                "training has diverged; use an earlier checkpoint"
            )
        mel = np.exp(log_mel.T.astype(np.float32))
        magnitudes = np.maximum(mel @ self.inverse.T, LOG_FLOOR)
        target = mel @ self.filters
        for _ in range(UPDATES_OF_MAGNITUDES):
            magnitudes *= target / (magnitudes @ self.filters.T @ self.filters + TINY)
        return magnitudes

    def samples(self, log_mel: np.ndarray) -> np.ndarray:
        """Samples [hop_length * frames - 1], float32, whose log-mel is close to `log_mel` [n_mels,
        frames]; UserError for a mel that no sound has."""
        return np.concatenate([*self.stream([log_mel])])

    def stream(self, log_mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Samples [N], float32, of log-mels [n_mels, frames] that follow one another: hop_length *
        frames - 1 in all. A piece is made with the samples before it held fixed, so its phases
        continue theirs."""
        rng, known = np.random.default_rng(0), np.empty(0, np.float32)
        context, half = 2 * -(-self.size // self.hop), self.size // 2

        def invert(log_mel: np.ndarray) -> np.ndarray:
            nonlocal known
            samples = self._invert(self.magnitudes(log_mel), known, rng)
            ready = log_mel.shape[1] - context  # as in `windowed`, if more follows
            known = samples[max(0, ready - context) * self.hop : max(0, ready) * self.hop + half]
            return samples[half : half + log_mel.shape[1] * self.hop - 1]

        return windowed(log_mels, invert, context, self.hop)

    def _invert(
        self, magnitudes: np.ndarray, known: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Samples from the first frame's window on, filter_length / 2 before its center; `known`
        are the first of them."""
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
        """The sum of frames [n, size], each a hop after the one before."""
        blocks = -(-self.size // self.hop)
        total = np.zeros((len(frames) + blocks, self.hop), np.float32)
        for block in range(blocks):
            part = frames[:, block * self.hop : (block + 1) * self.hop]
            total[block : block + len(frames), : part.shape[1]] += part
        return total.reshape(-1)
