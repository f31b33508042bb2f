"""Test the measures of audio quality. Each test adds one problem to a real recording."""

import numpy as np
import pytest
import soundfile
from helpers import LJSPEECH_CLIPS

from benchmarks.audio_problems import CHANGES, STRENGTHS
from corpus.audio_quality import measure_quality, problems_of

CLIPS = [soundfile.read(path, dtype="float32") for path in sorted(LJSPEECH_CLIPS.glob("*.wav"))]


@pytest.mark.parametrize(("samples", "rate"), CLIPS)
def test_no_audio_problem_is_found_in_clean_recordings(samples, rate):
    assert problems_of(measure_quality(samples, rate)) == {}


@pytest.mark.parametrize("problem", STRENGTHS)
def test_each_added_audio_problem_is_found(problem):
    """Each audio problem is added to clean recordings at the largest tested strength. Cut-off
    speech can remain undetected if a recording is cut in a pause."""
    found = []
    for samples, rate in CLIPS:
        changed = CHANGES[problem](samples, rate, STRENGTHS[problem][-1]).astype(np.float32)
        found.append(problem in problems_of(measure_quality(changed, rate)))
    assert all(found) or (problem == "cut" and np.mean(found) > 0.7)


def test_quality_measures_are_equal_for_16_bit_and_float_samples():
    samples, rate = CLIPS[0]
    as_integers = np.round(samples * 32768).astype(np.int16)
    floats = measure_quality(as_integers.astype(np.float32) / 32768, rate)
    assert vars(measure_quality(as_integers, rate)) == pytest.approx(vars(floats), abs=1e-3)


def test_volume_changes_the_level_but_not_the_signal_to_noise_ratio():
    samples, rate = CLIPS[0]
    loud = measure_quality(samples, rate)
    quiet = measure_quality(samples / 4, rate)
    assert loud.level - quiet.level == pytest.approx(12.04, abs=0.01)
    assert loud.signal_to_noise == pytest.approx(quiet.signal_to_noise, abs=0.01)


@pytest.mark.parametrize("length", [100, 600, 5000])
def test_quality_measures_are_finite_when_clips_are_very_short(length):
    samples = np.sin(np.arange(length) / 5).astype(np.float32)
    quality = measure_quality(samples, 22050)
    assert np.isfinite(list(vars(quality).values())).all()


def test_tone_does_not_count_as_hum_when_it_pauses():
    """The pitch of a voice can be constant for a while, but hum continues in the quietest parts of
    a clip."""
    times = np.arange(4 * 22050) / 22050
    tone = 0.1 * np.sin(2 * np.pi * 120 * times)
    noise = 1e-4 * np.random.default_rng(0).standard_normal(len(times))
    constant = (tone + noise).astype(np.float32)
    paused = (tone * (times % 1 < 0.6) + noise).astype(np.float32)
    assert "hum" in problems_of(measure_quality(constant, 22050))
    assert "hum" not in problems_of(measure_quality(paused, 22050))
