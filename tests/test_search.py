"""survey.py, recommendation.py against brute force over all pairs and hand counts."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from length_batching import STRATEGIES, plan_epoch
from paper.recommendation import ranked, recommend
from paper.survey import (
    DEFAULTS,
    PARAMETERS,
    Surveyor,
    parameter_values,
    value_in_words,
)


def distinct_lengths(count, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(50, 50 + count))


def survey(lengths, batch_size, strategy, *, seed=0, frames_per_step=1, **options):
    surveyor = Surveyor(lengths, seed=seed, frames_per_step=frames_per_step)
    return surveyor.survey(batch_size, strategy, **options)


def sweep(lengths, batch_size, strategy, values, **options):
    surveyor = Surveyor(lengths)
    return [surveyor.survey(batch_size, strategy, value=value, **options) for value in values]


@pytest.mark.parametrize(
    ("strategy", "batch_size", "chance"), [("random", 20, 19 / 399), ("bucket", 10, 9 / 39)]
)
def test_pairs_repeat_by_chance(strategy, batch_size, chance):
    """Of 400 clips, or those of a bucket of 40."""
    found = survey(distinct_lengths(400), batch_size, strategy, bucket_size=40, epochs=60)
    assert 1 - found.novelty == pytest.approx(chance, rel=0.03)


def test_undefined_mixing_is_nan():
    assert np.isnan(survey([10, 20, 30], 1, "random").novelty)


def test_padding_of_four_clips_by_hand():
    found = survey([40, 10, 30, 20], 2, "sorted")  # (10, 20), (30, 40); capacity 80
    assert found.num_batches == 2
    assert found.decoder_steps == 60
    assert found.padded_to_original_rate == pytest.approx(20 / 100)
    assert found.zero_padding_rate == pytest.approx((0.5 + 0.25) / 4)
    assert (found.largest_batch_size, found.largest_batch_frames) == (2, 80)
    dynamic = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True)
    assert dynamic.decoder_steps == 20 + 40  # (10, 20), for three of 30 would take 90; (30, 40)
    assert dynamic.batch_capacity is None
    larger = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True, batch_capacity=90)
    assert larger.decoder_steps == 30 + 40  # (10, 20, 30), (40)
    assert larger.batch_capacity == 90


def test_several_frames_per_step_round_up():
    found = survey([40, 10, 30, 21], 2, "sorted", frames_per_step=4)  # (10, 21), (30, 40)
    assert found.decoder_steps == 6 + 10
    assert found.padded_fraction == pytest.approx(1 - 101 / (2 * 24 + 2 * 40))
    assert found.average_batch_length == pytest.approx((2 * 21 + 2 * 40) / 4)
    assert found.largest_batch_frames == 80


def test_epochs_average_but_keep_the_largest():
    found = survey([10, 20, 40], 2, "random", epochs=9)
    assert 30 < found.decoder_steps < 60
    assert found.largest_batch_frames == 80


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    num_clips=st.integers(1, 90),
    batch_size=st.integers(1, 20),
)
def test_every_sweep_value_is_allowed(strategy, num_clips, batch_size):
    values = parameter_values(strategy, num_clips, batch_size)
    assert len(values) == len(set(values)) > 0
    surveys = sweep(distinct_lengths(num_clips), batch_size, strategy, values, epochs=1)
    assert [one.value for one in surveys] == values


@pytest.mark.parametrize("strategy", PARAMETERS)
def test_sweeps_go_from_least_to_most_random(strategy):
    values = parameter_values(strategy, 400, 8)
    least, most = sweep(distinct_lengths(400), 8, strategy, [values[0], values[-1]])
    assert least.novelty < most.novelty


def test_recommendation_matches_an_exhaustive_search():
    lengths = np.random.default_rng(2).integers(80, 800, 160)
    found = ranked(recommend(Surveyor(lengths), 8, 0.8, epochs=3), 0.8)
    every = []
    for strategy, dynamic in product(STRATEGIES, (False, True)):
        values = parameter_values(strategy, 160, 8, per_octave=8)
        every += sweep(lengths, 8, strategy, values, epochs=3, dynamic_batch_size=dynamic)
    assert found[0].novelty >= 0.8
    assert found[0].decoder_steps <= 1.01 * ranked(every, 0.8)[0].decoder_steps


@pytest.mark.parametrize("count", [5, 20, 59])
def test_recommendation_is_never_slower_than_default(count):
    """Where the default itself mixes enough."""
    lengths = np.random.default_rng(count).integers(80, 800, count)
    surveyor = Surveyor(lengths)
    default = surveyor.survey(4, "semi_sorted", epochs=3, dynamic_batch_size=True)
    novelty = float(np.nan_to_num(default.novelty))
    best = ranked(recommend(surveyor, 4, novelty, epochs=3), novelty)[0]
    assert best.decoder_steps <= default.decoder_steps


def test_values_have_words_and_defaults_are_the_planners():
    assert value_in_words("bucket", 1024) == "buckets of 1,024"
    assert {name: plan_epoch.__kwdefaults__[name] for name in PARAMETERS.values()} == DEFAULTS
