"""Test examples/speech_enhancement.py and the simulated rooms in numbers_in_noise.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.numbers_in_noise import SAMPLE_RATE, make_room
from examples.speech_enhancement import QUICK, ROWS, ConvTasNet, Experiment, pad, snr
from length_batching import SegmentDataset, segments_of

# The order of summation varies. The largest observed difference was 1.4e-6.
CLOSE = {"atol": 2e-5, "rtol": 0}


@pytest.fixture
def model(one_thread):
    torch.manual_seed(0)
    model = ConvTasNet(window=16, channels=4, hidden=6, dilations=3)
    for parameter in model.parameters():  # random values are added to the special initial values
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def test_enhanced_audio_does_not_depend_on_later_samples(model):
    noisy = torch.randn(1, 300)
    changed = noisy.clone()
    changed[:, 200:] = 5.0
    before = model(noisy)
    after = model(changed)
    torch.testing.assert_close(after[:, : 200 - 16], before[:, : 200 - 16], **CLOSE)
    assert not torch.allclose(after[:, 200:], before[:, 200:])


def test_enhanced_audio_and_loss_do_not_change_when_a_clip_is_padded(model):
    clips = [torch.randn(length, 2) for length in (103, 300)]
    padded, lengths = pad(clips)
    together = model(padded[..., 0])
    alone = model(clips[0][None, :, 0])
    torch.testing.assert_close(together[:1, :103], alone, **CLOSE)
    padded[0, 103:] = 9.0  # the values in the padding must have no effect
    ratios = snr(together, padded[..., 1], lengths)
    torch.testing.assert_close(ratios[:1], snr(alone, clips[0][None, :, 1], lengths[:1]), **CLOSE)


def test_initial_filters_reconstruct_the_input(one_thread):
    model = ConvTasNet()
    noisy = torch.randn(1, 1000)
    for parameter in model.mask[-1].parameters():
        parameter.data.zero_()
    expected = torch.sigmoid(torch.tensor(2.0)) * noisy
    torch.testing.assert_close(model(noisy), expected, **CLOSE)


def test_snr_is_the_ratio_of_powers_in_decibels():
    rng = np.random.default_rng(0)
    clean, estimated = rng.normal(size=(2, 3, 50))
    powers = np.mean(clean**2, axis=1), np.mean((clean - estimated) ** 2, axis=1)
    found = snr(torch.tensor(estimated), torch.tensor(clean), torch.tensor([50, 50, 50]))
    np.testing.assert_allclose(found, 20 * np.log10(np.sqrt(powers[0] / powers[1])), rtol=1e-6)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=20), st.integers(1, 100))
def test_segments_contain_every_sample_once(lengths, longest):
    clips = list(torch.arange(sum(lengths)).split(lengths))
    segments = SegmentDataset(clips, segments_of(lengths, longest))
    assert max(map(len, segments)) <= longest
    samples = torch.cat([segments[i] for i in range(len(segments))])
    assert samples.tolist() == list(range(sum(lengths)))


@settings(max_examples=20)
@given(st.floats(0.2, 0.8), st.integers(0, 10), st.integers(0, 100))
def test_simulated_room_has_the_given_reverberation_time(seconds, direct, seed):
    """In a third of the reverberation time, Schroeder's integral decreases from -5 dB to -25 dB."""
    room = make_room(np.random.default_rng(seed), seconds, direct)
    np.testing.assert_allclose(10 * np.log10(np.sum(room[1:] ** 2)), -direct, atol=1e-6)
    left = 10 * np.log10(np.cumsum(room[:0:-1] ** 2)[::-1])
    times = [np.argmax(left < left[0] - fall) / SAMPLE_RATE for fall in (5, 25)]
    # The largest observed relative error is 0.044.
    assert 3 * (times[1] - times[0]) == pytest.approx(seconds, rel=0.15)


def test_experiment_results_are_finite_for_every_batching_strategy(one_thread):
    for package in ("lightning", "pesq", "pystoi"):
        pytest.importorskip(package)
    experiment = Experiment(replace(QUICK, utterances=6, test_utterances=2, epochs=1))
    for row in (ROWS[0], ROWS[-2], ROWS[-1]):
        assert all(map(math.isfinite, experiment.run(row, seed=0).values()))
