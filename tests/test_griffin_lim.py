"""synthesis/griffin_lim.py: Griffin-Lim in pieces, beside librosa's, and functions in pieces."""

import librosa
import numpy as np
import torch
from helpers import LJSPEECH_CLIPS
from hypothesis import given, settings
from hypothesis import strategies as st

from audio import log_mel_spectrogram, mel_filters, read_audio
from hparams import HParams
from synthesis.griffin_lim import GriffinLim, windowed


def split(array: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    pieces = np.split(array, np.cumsum(sizes), axis=1)
    return [piece for piece in pieces if piece.shape[1]]


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(0, 9), max_size=6), context=st.integers(0, 4))
def test_pieces_of_a_convolution_make_the_whole(sizes, context):
    signal, kernel = np.random.default_rng(0).random((1, 40)), np.arange(2.0 * context + 1)
    smooth = lambda x: np.convolve(x[0], kernel)[context : context + x.shape[1]][None]  # noqa: E731
    found = np.concatenate([*windowed(split(signal, sizes), smooth, context)], axis=1)
    np.testing.assert_allclose(found, smooth(signal), atol=1e-12)


def distance(samples: np.ndarray, mel: torch.Tensor) -> float:
    """Mean difference of the log-mels, but for the mirrored ends of a clip that is cut off."""
    again = log_mel_spectrogram(torch.from_numpy(np.clip(samples, -1, 1)), HParams())
    return float((again[:, : mel.shape[1]] - mel)[:, 4:-4].abs().mean())


def test_griffin_lim_in_pieces_is_no_worse_than_librosa():
    samples = read_audio(sorted(LJSPEECH_CLIPS.glob("*.wav"))[0], HParams())
    clip, filters = log_mel_spectrogram(samples[:16_000], HParams()), mel_filters(HParams()).numpy()
    magnitudes = librosa.util.nnls(filters, clip.exp().numpy())
    theirs = librosa.griffinlim(magnitudes, n_iter=60, hop_length=256, length=16_000)
    for sizes in ([], [16, 32]):
        pieces = [*GriffinLim(HParams(), filters).stream(split(clip.numpy(), sizes))]
        assert len(pieces) > len(sizes)
        assert distance(np.concatenate(pieces), clip) < distance(theirs, clip)
