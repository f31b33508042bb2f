"""Compare the `plan_epoch` options that apply to all strategies with naive implementations."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_batching import (
    DBS,
    IN_ONE_ORDER,
    LJSPEECH,
    SMALL,
    as_lists,
    clips_of,
    data,
    every_strategy,
    few,
    with_and_without_randomization,
)

from length_batching import BatchingError, LengthBatchSampler, padding_stats, plan_epoch


def audio_and_text(audio, text):
    return audio + 0.01 * audio**2 + audio * text


def any_options(draw, clips):
    """Draw random clip lengths and batch limits with hypothesis. Return the lengths, the limits,
    and a naive function for the cost of a batch."""
    one, options = st.integers(1, 60), {"dynamic_batch_size": True}
    if draw(st.booleans(), label="kinds"):
        one, options["cost"] = st.tuples(one, st.integers(0, 9)), audio_and_text
    lengths = draw(st.lists(one, min_size=clips, max_size=clips), label="lengths")
    options["max_clips"] = draw(st.none() | st.integers(1, 9), label="max_clips")
    options["size_multiple"] = draw(st.integers(1, 4), label="size_multiple")

    def cost(batch):
        rows = [lengths[i] for i in batch]
        if "cost" not in options:
            return max(rows)
        return audio_and_text(*(max(kind) for kind in zip(*rows, strict=True)))

    return lengths, options, cost


def naive_cut(order, fits, multiple, size=len):
    """Cut an order of clips into batches, each with as many clips as fit. If possible, the size of
    a batch is a multiple of `multiple`."""
    batches = []
    while order:
        count = next((k for k in range(2, len(order) + 1) if not fits(order[:k])), len(order) + 1)
        runs = [order[:k] for k in range(1, count)]
        runs = [run for run in runs if size(run) % multiple == 0] or runs
        batches.append(runs[-1])
        order = order[len(runs[-1]) :]
    return batches


@pytest.mark.parametrize("strategy", IN_ONE_ORDER)
@pytest.mark.parametrize("too_long", ["reject", "alone", "leave_out"])
@few
@given(data=data)
def test_each_batch_contains_as_many_clips_as_fit(strategy, too_long, data):
    count = data.draw(st.integers(1, 25), "clips")
    lengths, options, cost = any_options(data.draw, count)
    sizes = data.draw(st.none() | st.lists(st.integers(1, 4), min_size=count, max_size=count))
    size = len if sizes is None else lambda batch: sum(sizes[i] for i in batch)
    if sizes:
        options["group_sizes"] = sizes
        options["max_clips"] = options["max_clips"] and options["max_clips"] + 3
    alone = [size([i]) * cost([i]) for i in range(count)]
    least = max(alone) if too_long == "reject" else min(alone)
    capacity = least * data.draw(st.floats(1, 6), "capacity factor")
    options |= {"too_long": too_long, "batch_capacity": capacity, "bucket_size": 9, "num_bins": 1}
    batches = as_lists(plan_epoch(lengths, 2, strategy, **options))
    left = [i for i in range(count) if alone[i] <= capacity or too_long != "leave_out"]
    assert sorted(clips_of(batches)) == left

    def fits(batch):
        within = size(batch) <= (options["max_clips"] or math.inf)
        return within and size(batch) * cost(batch) <= capacity

    assert batches == naive_cut(clips_of(batches), fits, options["size_multiple"], size)
    assert all(fits(batch) or (len(batch) == 1 and too_long == "alone") for batch in batches)


@every_strategy
@with_and_without_randomization
@few
@given(data=data)
def test_costs_replace_lengths_when_a_cost_function_is_given(strategy, randomize, data):
    lengths, options, cost = any_options(data.draw, 20)
    kept = DBS | SMALL | {"batch_randomization": randomize, "epoch": 3}
    batches = plan_epoch(lengths, 4, strategy, **options | kept)
    one_length = plan_epoch([cost([i]) for i in range(20)], 4, strategy, **kept)
    if not randomize:
        assert clips_of(batches) == clips_of(one_length)


@every_strategy
@pytest.mark.parametrize("capacity", [3_000, 200_000])
def test_plan_stays_the_same_when_each_clip_gets_a_second_length_of_0(strategy, capacity):
    """If each clip has two lengths, a different function plans the batches. The plan must stay the
    same."""
    lengths, options = LJSPEECH[:2000], DBS | {"epoch": 5, "batch_capacity": capacity}
    plan = plan_epoch(lengths, 16, strategy, **options)
    both = np.stack([lengths, 0 * lengths], axis=1)
    again = plan_epoch(both, 16, strategy, **options, cost=lambda audio, text: audio + text)
    assert (again.order == plan.order).all()
    assert (again.starts == plan.starts).all()


@few
@given(data=data, epoch=st.integers(0, 99))
def test_number_of_draws_of_a_clip_equals_its_expected_number_rounded_up_or_down(data, epoch):
    """Without weights, no clip is drawn twice unless `draw` exceeds the number of clips."""
    count, draw = data.draw(st.integers(1, 20)), data.draw(st.none() | st.integers(1, 40))
    weights = data.draw(st.none() | st.lists(st.integers(0, 7), min_size=count, max_size=count))
    assume(weights is None or any(weights))
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    options = {"draw": draw, "draw_weights": weights, "epoch": epoch} | DBS
    times = Counter(clips_of(plan_epoch(lengths, 3, "sorted", **options)))
    weights = weights or [1] * count
    draw = draw or np.count_nonzero(weights)
    assert times.total() == draw
    for i, weight in enumerate(weights):
        share = Fraction(draw * weight, sum(weights))
        assert math.floor(share) <= times[i] <= math.ceil(share)


def test_number_of_draws_of_a_clip_is_proportional_to_its_weight():
    weights, epochs = [0, 1, 2, 3, 4, 5.5], 2000
    options = {"draw": 4, "draw_weights": weights}
    plans = [plan_epoch([5] * 6, 2, "random", epoch=epoch, **options) for epoch in range(epochs)]
    times = np.bincount(np.concatenate([plan.order for plan in plans]))
    # In each epoch, a clip is drawn as often as expected, rounded up or down.
    # Therefore the standard deviation of the number of draws per epoch is at most one half.
    expected = epochs * 4 * np.array(weights) / sum(weights)
    assert np.abs(times - expected).max() < 5 * 0.5 * math.sqrt(epochs)
    pairs = {tuple(sorted(pair)) for plan in plans for pair in combinations(set(plan.order), 2)}
    assert len(pairs) == math.comb(5, 2)  # all pairs of the 5 clips with positive weights


@few
@given(data=data, r=st.integers(1, 5))
def test_padding_stats_equal_values_computed_with_a_loop_when_clips_have_several_lengths(data, r):
    one = st.tuples(st.integers(1, 60), st.integers(0, 9))
    lengths = data.draw(st.lists(one, min_size=1, max_size=30))
    plan = plan_epoch(lengths, 3, "random", cost=audio_and_text)
    stats = padding_stats(lengths, plan, r, cost=audio_and_text)
    alone = [audio_and_text(*clip) for clip in lengths]
    longest = [[max(kind) for kind in zip(*(lengths[i] for i in b), strict=True)] for b in plan]
    padded = plan.sizes @ [audio_and_text(*clip) for clip in longest]
    made = [audio_and_text(*(math.ceil(x / r) * r for x in clip)) for clip in longest]
    computed = plan.sizes @ made
    assert stats.padded_to_original_rate == pytest.approx(padded / sum(alone) - 1, abs=1e-12)
    assert stats.padded_frames == pytest.approx(computed)
    assert stats.padded_fraction == pytest.approx(1 - sum(alone) / computed, abs=1e-12)
    assert stats.largest_batch_frames == pytest.approx(max(plan.sizes * made))
    assert stats.decoder_steps == pytest.approx(sum(made) / r)


TWO = {"lengths": [[5, 0], [-1, 2]], "cost": audio_and_text}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"size_multiple": 2.5}, "size_multiple=2.5: "),
        (
            {"too_long": "cut"},
            "too_long='cut': .*reject.*alone.*leave_out",
        ),
        ({"batch_capacity": 9, "too_long": "alone"} | DBS, "batch_capacity=9: .*10"),
        ({"draw": 9, "strategy": "alternated_sort", "num_bins": 10}, "num_bins=10: .* 9 clips"),
        ({"draw_weights": [1] * 9}, r"draw_weights: .*10.*\(9,\)"),
        ({"draw_weights": [0] * 10}, "draw_weights, too_long: "),
        ({"group_sizes": [3] * 10, "batch_capacity": 299} | DBS, "batch_capacity=299: .*300"),
        ({"group_sizes": [5] * 10}, "group_sizes: .*4"),
        ({"group_sizes": [0] * 10}, "costs of clips.*=0: "),
        ({"lengths": np.ones((10, 2))}, "lengths: .*2 lengths.*cost"),
        ({"lengths": np.ones((10, 2, 2))}, r"lengths: .*\(10, 2, 2\)"),
        (TWO, r"lengths\[1, 0\]=-1: "),
        ({"strategy": []}, r"strategy=\[\]: .*semi_sorted"),
        ({"strategy": {"semi_sorted"}}, r"strategy={'semi_sorted'}: "),
        ({"strategy": np.array(["random", "sorted"])}, r"strategy=array"),
        ({"strategy": "random", "local_randomization_factor": ""}, "factor='': .*number"),
        ({"cost": 5}, "cost=5: "),
        ({"cost": False}, "cost=False: "),
        ({"cost": lambda length: math.nan}, r"costs of clips\[0\]=nan: .*10 of 10"),
    ],
)
def test_plan_epoch_error_names_the_option_when_it_is_out_of_range(changed, named):
    arguments = {"lengths": range(10, 110, 10), "batch_size": 4, "strategy": "semi_sorted"}
    with pytest.raises(BatchingError, match=named) as raised:
        plan_epoch(**(arguments | changed))
    assert "\n" not in str(raised.value)


@every_strategy
@few
@given(data=data, size=st.integers(1, 4), random_epochs=st.integers(0, 1), more=st.integers(0, 2))
def test_sampler_respects_limits_and_resumes_when_options_are_combined(
    strategy, data, size, random_epochs, more
):
    lengths, options, cost = any_options(data.draw, 25)
    too_long = data.draw(st.sampled_from(["alone", "leave_out"]))
    alone = [cost([i]) for i in range(25)]
    capacity = 3 * sorted(alone)[15]
    options |= {"too_long": too_long, "batch_capacity": capacity} | SMALL
    options["max_clips"] = options["max_clips"] and options["max_clips"] + 2
    plan = plan_epoch(lengths, 2, strategy, epoch=1, **options)
    count = (-(-len(plan) // size) + more) * size
    assume(count <= len(plan.order))
    if more:
        options["batches_per_epoch"] = count
    options |= {"batches_per_update": size, "random_epochs": random_epochs}
    try:
        sampler = LengthBatchSampler(lengths, 2, strategy, **options)
        sampler.set_epoch(1)
    except BatchingError:  # a random epoch can have more than `count` batches
        assume(False)
    batches = list(sampler)
    left = [i for i in range(25) if alone[i] <= capacity or too_long == "alone"]
    assert sorted(clips_of(batches)) == left
    assert len(batches) == count
    for batch in batches:
        assert len(batch) <= (options["max_clips"] or 25)
        assert len(batch) * cost(batch) <= capacity or len(batch) == 1
        if len(plan) == count:
            assert len(batch) in plan.sizes
    each = [sorted(map(cost, batches[k : k + size])) for k in range(0, count, size)]
    each.sort(reverse=True)  # an optimizer step contains batches of similar cost
    assert size == 1 or all(a[0] >= b[-1] for a, b in pairwise(each))
    trained = int(sampler.update_starts[-1])
    resumed = LengthBatchSampler(lengths, 2, strategy, **options)
    resumed.load_state_dict(sampler.state_at(trained))
    assert list(resumed) == batches[trained:]
    sampler.set_epoch(0)
    assert sorted(clips_of(sampler.plan)) == left
    assert all(len(x) * cost(x) <= capacity or len(x) == 1 for x in sampler.plan)


def test_batches_are_split_into_multiples_of_size_multiple_when_possible():
    options = {"size_multiple": 4, "batches_per_epoch": 6}
    sampler = LengthBatchSampler([5] * 24, 8, "random", **options)
    assert sampler.plan.sizes.tolist() == [4] * 6
    options["batches_per_epoch"] = 8
    assert (
        sorted(LengthBatchSampler([5] * 24, 8, "random", **options).plan.sizes) == [2] * 4 + [4] * 4
    )
