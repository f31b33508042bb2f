"""survey.py, recommendation.py against brute force over all pairs, closed forms, hand counts."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from surveys import survey

from analysis.recommendation import recommend
from analysis.survey import (
    PARAMETERS,
    Surveyor,
    match_zero_padding,
    mean_survey,
    parameter_values,
    relative_spread,
    sweep,
)
from batching import STRATEGIES, plan_epoch


def distinct_lengths(count, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(50, 50 + count))


class FlatCosts:
    """A step takes a millisecond a frame; its memory is a byte a padded frame."""

    bytes_per_term = (1.0,)

    def seconds(self, batch_sizes, frames, symbols):
        return frames / 1000

    def bytes(self, batch_sizes, frames, symbols):
        return batch_sizes * frames


# ---------------------------------------------------------------------------- brute force


def pairs_of(plan):
    return {frozenset(pair) for batch in plan for pair in combinations(batch.tolist(), 2)}


def brute_rank_distance(lengths, pairs):
    """Mean |rank - rank| over pairs, in units of that of all pairs; ties share the mean rank."""
    rank = [
        sum(other < x for other in lengths) + (sum(other == x for other in lengths) - 1) / 2
        for x in lengths
    ]
    everyone = [abs(rank[i] - rank[j]) for i, j in combinations(range(len(lengths)), 2)]
    near = [abs(rank[i] - rank[j]) for i, j in map(tuple, pairs)]
    return np.mean(near) / np.mean(everyone) if near and np.mean(everyone) else 0.0


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=14),
    strategy=st.sampled_from(STRATEGIES),
    batch_size=st.integers(1, 4),
    dynamic=st.booleans(),
    seed=st.integers(0, 3),
)
def test_spread_and_novelty_are_those_of_all_pairs(lengths, strategy, batch_size, dynamic, seed):
    options = {"dynamic_batch_size": dynamic, "seed": seed, "bucket_size": 4, "num_bins": 2}
    found = survey(lengths, batch_size, strategy, epochs=2, **options)
    plans = [plan_epoch(lengths, batch_size, strategy, epoch=e, **options) for e in range(3)]
    least = brute_rank_distance(
        lengths, pairs_of(plan_epoch(lengths, batch_size, "sorted", **options))
    )
    novelty, spread = [], []
    for before, plan in pairwise(plans):
        now, earlier = pairs_of(plan), pairs_of(before)
        novelty.append(len(now - earlier) / len(now) if now else np.nan)
        s = brute_rank_distance(lengths, now)
        undefined = not now or len(set(lengths)) == 1 or least > 1 - 1e-9
        spread.append(np.nan if undefined else (s - least) / (1 - least))
    assert found.novelty == pytest.approx(np.mean(novelty), nan_ok=True)
    assert found.spread == pytest.approx(np.mean(spread), nan_ok=True, abs=1e-9)


# ---------------------------------------------------------------------------- closed forms


def test_random_batches_repeat_as_many_pairs_as_chance_says():
    found = survey(distinct_lengths(400), 20, "random", epochs=60)
    assert 1 - found.novelty == pytest.approx(19 / 399, rel=0.03)
    assert found.spread == pytest.approx(1, abs=0.02)


def test_buckets_repeat_as_many_pairs_as_chance_inside_a_bucket():
    found = survey(distinct_lengths(400), 10, "bucket", bucket_size=40, epochs=60)
    assert 1 - found.novelty == pytest.approx(9 / 39, rel=0.03)


def test_sorted_batches_of_distinct_lengths_never_change():
    found = survey(distinct_lengths(60), 6, "sorted", epochs=3)
    assert found.novelty == 0
    assert found.spread == 0


def test_spread_is_measured_between_sorted_and_random():
    assert relative_spread(0.2, 0.2) == 0
    assert relative_spread(1.0, 0.2) == 1
    assert relative_spread(0.6, 0.2) == pytest.approx(0.5)
    assert np.isnan(relative_spread(1.0, 1.0))


def test_what_cannot_be_told_is_not_a_number():
    alone = survey([10, 20, 30], 1, "random")
    assert np.isnan(alone.novelty)
    assert np.isnan(alone.spread)
    assert np.isnan(survey([10] * 8, 2, "random").spread)


# ---------------------------------------------------------------------------- counted by hand


def test_costs_of_four_clips_counted_by_hand():
    found = survey([40, 10, 30, 20], 2, "sorted")  # (10, 20), (30, 40); capacity 80
    assert found.num_batches == 2
    assert found.decoder_steps == 60
    assert found.capacity_used == pytest.approx((40 + 80) / 160)
    assert found.padded_to_original_rate == pytest.approx(20 / 100)
    assert found.zero_padding_rate == pytest.approx((0.5 + 0.25) / 4)
    assert (found.largest_batch_size, found.largest_batch_frames) == (2, 80)
    dynamic = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True)
    assert dynamic.decoder_steps == 20 + 40  # (10, 20), for three of 30 would take 90; (30, 40)
    assert dynamic.batch_capacity is None
    larger = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True, batch_capacity=90)
    assert larger.decoder_steps == 30 + 40  # (10, 20, 30), (40)
    assert larger.capacity_used == pytest.approx((90 + 40) / 180)
    assert larger.batch_capacity == 90


def test_several_frames_a_step_make_fewer_steps_of_whole_numbers_of_frames():
    found = survey([40, 10, 30, 21], 2, "sorted", frames_per_step=4)  # (10, 21), (30, 40)
    assert found.decoder_steps == 6 + 10
    assert found.padded_fraction == pytest.approx(1 - 101 / (2 * 24 + 2 * 40))
    assert found.average_batch_length == pytest.approx((2 * 21 + 2 * 40) / 4)
    assert found.largest_batch_frames == 80


def test_predicted_time_is_the_sum_and_memory_the_most_of_the_batches():
    found = survey(
        np.array([40, 10, 30, 20]), 2, "sorted", costs=FlatCosts(), symbols=np.array([4, 1, 3, 2])
    )
    assert found.seconds_per_epoch == pytest.approx(0.060)
    assert found.peak_bytes == 80


def test_several_draws_average_but_keep_the_largest():
    small, large = survey([1, 2], 2, "sorted"), survey([1, 4], 2, "sorted")
    both = mean_survey([small, large])
    assert both.average_batch_length == 3
    assert both.largest_batch_frames == 8
    assert (both.strategy, both.batch_size) == ("sorted", 2)


# ---------------------------------------------------------------------------- sweeps and searches


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    num_clips=st.integers(1, 90),
    batch_size=st.integers(1, 20),
)
def test_every_value_of_a_sweep_is_allowed_on_its_corpus(strategy, num_clips, batch_size):
    values = parameter_values(strategy, num_clips, batch_size)
    assert len(values) == len(set(values)) > 0
    surveys = sweep(Surveyor(distinct_lengths(num_clips)), batch_size, strategy, values, epochs=1)
    assert [one.value for one in surveys] == values


@pytest.mark.parametrize("strategy", PARAMETERS)
def test_a_sweep_goes_from_least_to_most_random(strategy):
    values = parameter_values(strategy, 400, 8)
    least, most = sweep(Surveyor(distinct_lengths(400)), 8, strategy, [values[0], values[-1]])
    assert least.novelty < most.novelty
    assert least.spread < 0.05 < 0.5 < most.spread


def test_the_default_value_can_be_put_into_a_sweep():
    assert 58 in parameter_values("alternated_sort", 10_480, 16, include=[58])
    assert 58 not in parameter_values("alternated_sort", 20, 4, include=[58])
    assert 1024 in parameter_values("bucket", 10_480, 16)
    assert 0.1 in parameter_values("semi_sorted", 10_480, 16)


@pytest.mark.parametrize("strategy", ["bucket", "alternated_sort"])
def test_equal_padding_is_the_nearest_below_among_all_values(strategy):
    lengths, batch_size = np.random.default_rng(1).integers(80, 800, 240), 4
    target = 0.06
    value, rate = match_zero_padding([lengths], batch_size, strategy, target, epochs=4)
    every = range(4, 240, 4) if strategy == "bucket" else range(1, 61)
    rates = {}
    for candidate in every:
        options = {PARAMETERS[strategy]: candidate}
        rates[candidate] = survey(
            lengths, batch_size, strategy, epochs=4, **options
        ).zero_padding_rate
    best = max((v for v in rates if rates[v] <= target), key=rates.get)
    assert (value, rate) == (best, pytest.approx(rates[best]))


def test_equal_padding_says_when_nothing_pads_so_little():
    lengths = np.random.default_rng(1).integers(80, 800, 40)
    assert match_zero_padding([lengths], 4, "bucket", 0.0) is None


def test_the_recommendation_is_as_cheap_as_an_exhaustive_search():
    lengths = np.random.default_rng(2).integers(80, 800, 160)
    result = recommend(Surveyor(lengths), 8, min_novelty=0.8, epochs=3)
    allowed = [
        one
        for strategy in STRATEGIES
        for dynamic in (False, True)
        for one in sweep(
            Surveyor(lengths),
            8,
            strategy,
            parameter_values(strategy, 160, 8, per_octave=8),
            epochs=3,
            dynamic_batch_size=dynamic,
        )
        if one.novelty >= 0.8
    ]
    assert result.ranked[0].novelty >= 0.8
    assert result.ranked[0].cost <= 1.01 * min(one.cost for one in allowed)


def test_more_memory_makes_larger_batches_and_none_beyond_the_limit():
    lengths = np.random.default_rng(2).integers(80, 800, 300)
    surveyor = Surveyor(lengths, costs=FlatCosts(), symbols=lengths // 6)
    usual = recommend(surveyor, 8, min_novelty=0.8, epochs=3).ranked[0]
    limit = 2.5 * 8 * lengths.max()
    roomy = recommend(surveyor, 8, min_novelty=0.8, max_bytes=limit, epochs=3).ranked[0]
    assert usual.batch_capacity is None
    assert roomy.batch_capacity > 2 * 8 * lengths.max()
    assert roomy.peak_bytes <= limit
    assert roomy.seconds_per_epoch < 0.6 * usual.seconds_per_epoch
    tight = recommend(surveyor, 8, min_novelty=0.5, max_bytes=3 * lengths.max(), epochs=3)
    assert all(one.dynamic_batch_size for one in tight.ranked)  # fixed batches do not fit
    assert tight.ranked[0].peak_bytes <= 3 * lengths.max()


def test_limits_that_nothing_keeps_leave_the_most_random_and_no_recommendation():
    lengths = np.random.default_rng(2).integers(80, 800, 60)
    result = recommend(Surveyor(lengths), 8, min_novelty=1.0, epochs=3)
    assert result.ranked == []
    assert max(one.novelty for one in result.tried) > 0.8
