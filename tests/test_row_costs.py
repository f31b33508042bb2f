"""Test `row_costs`: batches end where a decoder step costs the least per clip."""

import numpy as np
import pytest
from helpers import LJSPEECH_LENGTHS
from hypothesis import given, settings
from hypothesis import strategies as st

from length_batching import STRATEGIES, BatchingError, LengthBatchSampler, plan_epoch
from length_batching.plan import BatchCosts

# microseconds per decoder step on an H100, fitted to measurements
H100 = {16: 32.6, 32: 48.3, 48: 57.0, 64: 54.7}
SAMPLES = np.loadtxt(LJSPEECH_LENGTHS, delimiter=",", skiprows=1, usecols=1, dtype=int)
FRAMES = 1 + SAMPLES // 276
DYNAMIC = {"dynamic_batch_size": True, "batch_randomization": True}
LENGTHS = st.lists(st.integers(1, 900), min_size=1, max_size=300)


def sizes_and_lengths(lengths, plan):
    batches = [np.asarray(lengths)[batch] for batch in np.split(plan.order, plan.starts[1:])]
    return np.array([len(x) for x in batches]), np.array([x.max() for x in batches])


def seconds(lengths, plan, row_costs):
    """Return the time of an epoch: the sum of (frames times cost per decoder step) over all
    batches."""
    sizes, longest = sizes_and_lengths(lengths, plan)
    costs = BatchCosts(lengths, row_costs=row_costs)
    return sum(length * costs.row_cost(size) for size, length in zip(sizes, longest, strict=True))


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 20), st.sampled_from(STRATEGIES), st.integers(0, 3))
def test_every_clip_is_in_one_batch_within_the_frame_budget(lengths, batch_size, strategy, epoch):
    plan = plan_epoch(
        lengths,
        batch_size,
        strategy,
        epoch=epoch,
        row_costs=H100,
        num_bins=1,
        num_buckets=1,
        **DYNAMIC,
    )
    assert sorted(plan.order.tolist()) == list(range(len(lengths)))
    sizes, longest = sizes_and_lengths(lengths, plan)
    capacity = batch_size * max(lengths)
    assert ((sizes * longest <= capacity) | (sizes == 1)).all()


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 20), st.sampled_from(STRATEGIES))
def test_plan_is_unchanged_when_all_row_costs_are_equal(lengths, batch_size, strategy):
    options = DYNAMIC | {"num_bins": 1, "num_buckets": 1}
    before = plan_epoch(lengths, batch_size, strategy, **options)
    equal = dict.fromkeys(range(16, 20000, 16), 5.0)
    after = plan_epoch(lengths, batch_size, strategy, row_costs=equal, **options)
    assert after.order.tolist() == before.order.tolist()
    assert after.starts.tolist() == before.starts.tolist()


def test_batches_contain_16_clips_when_32_clips_cost_twice_as_much_as_16_clips():
    plan = plan_epoch(
        np.full(500, 10), 21, "sorted", dynamic_batch_size=True, row_costs={16: 1, 32: 2}
    )
    sizes = plan.sizes.tolist()
    assert {*sizes[:-1]} == {16}
    assert sum(sizes) == 500


def test_large_batch_is_kept_when_a_smaller_batch_costs_nearly_as_much_per_decoder_step():
    plan = plan_epoch(np.full(200, 10), 25, "sorted", dynamic_batch_size=True, row_costs=H100)
    assert {*plan.sizes.tolist()} == {25}  # 25 clips / 48.3 µs is more than 16 clips / 32.6 µs


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_row_costs_make_an_ljspeech_epoch_cheaper_on_an_h100(epoch):
    options = DYNAMIC | {"local_randomization_factor": 0.1, "epoch": epoch}
    now = plan_epoch(FRAMES, 16, "semi_sorted", **options)
    planned = plan_epoch(FRAMES, 16, "semi_sorted", row_costs=H100, **options)
    ratio = seconds(FRAMES, planned, H100) / seconds(FRAMES, now, H100)
    assert ratio < 0.97


def test_row_cost_of_the_next_listed_size_is_used_and_larger_sizes_are_extrapolated():
    costs = BatchCosts([1, 2], row_costs={16: 10.0, 32: 14.0})
    assert [costs.row_cost(x) for x in (1, 16, 17, 32, 48)] == [10, 10, 14, 14, 18]


@pytest.mark.parametrize(
    "row_costs", [{}, {16: 0}, {0: 1}, {16: "x"}, {1.5: 2}, [1, 2], {16: float("nan")}]
)
def test_row_cost_table_is_rejected_when_it_is_invalid(row_costs):
    with pytest.raises(BatchingError) as raised:
        plan_epoch([1, 2, 3], 2, "sorted", dynamic_batch_size=True, row_costs=row_costs)
    assert str(raised.value).startswith("row_costs")


def test_row_cost_table_is_rejected_when_size_multiple_is_also_given():
    with pytest.raises(BatchingError) as raised:
        plan_epoch([1, 2, 3], 2, "sorted", row_costs={16: 1}, size_multiple=2)
    assert "size_multiple=2" in str(raised.value)


def test_last_batch_is_not_shortened_when_this_would_add_a_batch():
    """Ending the batch after 16 clips would reduce its cost per clip, but the other 4 clips would
    need one more batch."""
    plan = plan_epoch(
        [10] * 19 + [11], 25, "sorted", dynamic_batch_size=True, row_costs={16: 1, 32: 2}
    )
    assert plan.sizes.tolist() == [20]


@pytest.mark.parametrize("batches_per_update", [1, 2, 4])
@pytest.mark.parametrize("num_clips", [14, 29, 101])
def test_optimizer_steps_do_not_change_when_options_are_passed_with_their_default_values(
    num_clips, batches_per_update
):
    """The training recipe passes all options, even if they have their default values."""
    plans = []
    updates = {"batches_per_update": batches_per_update, "short_last_update": True}
    for options in ({}, {"size_multiple": 1, "row_costs": None}):
        sampler = LengthBatchSampler(FRAMES[:num_clips], 3, "semi_sorted", **updates, **options)
        plans.append([list(sampler) for _ in (sampler.set_epoch(i) for i in range(3))])
    assert plans[0] == plans[1]
