"""Compare piecewise Griffin-Lim with librosa, and test its helper functions."""

import warnings

import librosa
import numpy as np
import pytest
import torch
from helpers import LJSPEECH_CLIPS
from hypothesis import given, settings
from hypothesis import strategies as st
from test_audio import BOTH, REFERENCE, speech_like

from audio import frame_count, log_mel_spectrogram, mel_filters, read_audio
from hparams import HParams
from tacotron2_voice.griffin_lim import ITERATIONS, SILENCE, GriffinLim, cut_silence, windowed
from tacotron2_voice.utils.errors import UserError


def split(array: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    pieces = np.split(array, np.cumsum(sizes), axis=1)
    return [piece for piece in pieces if piece.shape[1]]


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 9), max_size=6), context=st.integers(0, 4))
def test_convolution_in_pieces_equals_convolution_of_the_whole_signal(sizes, context):
    signal, kernel = np.random.default_rng(0).random((1, 40)), np.arange(2.0 * context + 1)
    smooth = lambda x: np.convolve(x[0], kernel)[context : context + x.shape[1]][None]  # noqa: E731
    found = np.concatenate([*windowed(split(signal, sizes), smooth, context)], axis=1)
    np.testing.assert_allclose(found, smooth(signal), atol=1e-12)


def distance(samples: np.ndarray, mel: torch.Tensor) -> float:
    """Return the mean difference between the log-mel of `samples` and `mel`. Leave out the first and
    last four frames, because these frames contain mirrored samples."""
    again = log_mel_spectrogram(torch.from_numpy(np.clip(samples, -1, 1)), HParams())
    return float((again[:, : mel.shape[1]] - mel)[:, 4:-4].abs().mean())


def test_griffin_lim_is_no_worse_than_librosa():
    samples = read_audio(sorted(LJSPEECH_CLIPS.glob("*.wav"))[0], HParams())
    clip, filters = log_mel_spectrogram(samples[:16_000], HParams()), mel_filters(HParams()).numpy()
    magnitudes = librosa.util.nnls(filters, clip.exp().numpy())
    theirs = librosa.griffinlim(magnitudes, n_iter=60, hop_length=256, length=16_000)
    for sizes in ([], [16, 32]):
        pieces = [*GriffinLim(HParams(), filters).stream(split(clip.numpy(), sizes))]
        assert len(pieces) > len(sizes)
        assert distance(np.concatenate(pieces), clip) < distance(theirs, clip)


def sound_of(mel: torch.Tensor, h: HParams, iterations: int = ITERATIONS) -> np.ndarray:
    return GriffinLim(h, mel_filters(h).numpy(), iterations).samples(mel.numpy())


@BOTH
def test_griffin_lim_reproduces_the_mel(h):
    """For the two tested settings, the measured differences between the log-mels were 0.12 and
    0.13. For noise of the same loudness, the difference is 1.8."""
    samples = speech_like()
    mel = log_mel_spectrogram(samples, h)
    again = torch.from_numpy(sound_of(mel, h)).clamp(-1, 1)
    assert len(again) == h.hop_length * mel.shape[1] - 1
    assert (log_mel_spectrogram(again, h) - mel).abs().mean() < 0.2
    noise = torch.randn(len(samples), generator=torch.Generator().manual_seed(0)) * samples.std()
    assert (log_mel_spectrogram(noise.clamp(-1, 1), h) - mel).abs().mean() > 1


def test_griffin_lim_is_deterministic():
    mel = log_mel_spectrogram(speech_like(0.4), REFERENCE)
    first = sound_of(mel, REFERENCE, iterations=5)
    np.random.seed(3)  # noqa: NPY002 (the global state must have no effect)
    np.testing.assert_array_equal(first, sound_of(mel, REFERENCE, iterations=5))


@BOTH
@pytest.mark.parametrize("frames", [1, 2, 3, 5, 8])
def test_griffin_lim_accepts_very_short_mels(frames, h):
    mel = log_mel_spectrogram(speech_like(0.5), h)[:, 12 : 12 + frames]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = sound_of(mel, h)
    # The largest number of samples in a clip with `frames` frames.
    assert len(samples) == h.hop_length * frames - 1
    assert frame_count(len(samples), h) == frames
    assert np.isfinite(samples).all()
    assert 0.01 < np.abs(samples).max() < 2


@pytest.mark.parametrize("loudest", [21, np.inf, np.nan])
def test_griffin_lim_rejects_a_mel_when_its_values_are_too_large(loudest):
    with pytest.raises(UserError, match=rf"{loudest:g} \(expected at most 20\)"):
        sound_of(torch.full((80, 9), float(loudest)), REFERENCE)


@pytest.mark.parametrize("silent_frames", [0, 200, 256, 1000])
def test_audio_from_griffin_lim_has_the_same_mel_when_silence_is_skipped(silent_frames):
    speech = np.zeros((3, 40), np.float32)
    pause = np.full((3, silent_frames), SILENCE, np.float32)
    mel = np.concatenate([pause, speech, pause, speech], axis=1)
    pieces = [*cut_silence([mel])]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), mel)
    assert len(pieces) == 1 or max(piece.shape[1] for piece in pieces) <= 128


def test_griffin_lim_skips_long_pauses(monkeypatch):
    griffin_lim = GriffinLim(HParams(), mel_filters(HParams()).numpy())
    inverted = []
    invert = griffin_lim._invert
    monkeypatch.setattr(
        griffin_lim, "_invert", lambda *args: inverted.append(len(args[0])) or invert(*args)
    )
    clip = read_audio(sorted(LJSPEECH_CLIPS.glob("*.wav"))[0], HParams())[:16_000]
    speech = log_mel_spectrogram(clip, HParams()).numpy()
    pause = np.full((80, 10_000), SILENCE, np.float32)  # two minutes
    samples = griffin_lim.samples(np.concatenate([speech, pause, speech], axis=1))
    assert sum(inverted) < 1_000
    assert len(samples) == 256 * (2 * speech.shape[1] + 10_000) - 1
    middle = len(samples) // 2
    assert not samples[middle - 10_000 : middle + 10_000].any()
    assert np.abs(samples[:10_000]).max() > 0.01
    assert np.abs(samples[-10_000:]).max() > 0.01
