"""LengthBatchSampler: each epoch its plan, exact resume, several batches an update, and ranks."""

import json
import re
import textwrap
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import (
    LJSPEECH,
    MODES,
    SMALL,
    as_lists,
    data,
    draw_case,
    every_strategy,
    laid_out,
    with_and_without_randomization,
)
from torch.utils.data import DataLoader

import batching
from batching import BatchingError, LengthBatchSampler, cut_evenly, plan_epoch

RECIPE = {"dynamic_batch_size": True, "batch_randomization": True, "seed": 11}
TWENTY = [9, 31, 12, 28, 17, 5, 40, 22, 35, 8, 14, 26, 39, 11, 19, 33, 7, 24, 37, 16]


def test_second_pass_without_set_epoch_is_refused():
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    sampler.set_epoch(4)
    first = list(sampler)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"same batches again"):
            list(sampler)
    sampler.set_epoch(4)
    assert list(sampler) == first
    sampler.set_epoch(5)
    one, other = iter(sampler), iter(sampler)  # as a DataLoader with workers does
    assert next(one) != first[0]
    for draw in (lambda: next(other), lambda: next(iter(sampler))):
        with pytest.raises(RuntimeError, match=r"set_epoch\(6\)"):
            draw()
    with pytest.raises(TypeError, match="epoch"):
        LengthBatchSampler(TWENTY, 3, "random", epoch=3)
    with pytest.raises(BatchingError, match="epoch=-1"):
        sampler.set_epoch(-1)


@every_strategy
@pytest.mark.parametrize("random_epochs", [0, 2])
def test_sampler_gives_each_epoch_its_plan(strategy, random_epochs):
    """Random batches of equal size in the first epochs, if so many are asked for."""
    options = RECIPE | SMALL | {"batch_capacity": 90}
    sampler = LengthBatchSampler(TWENTY, 3, strategy, random_epochs=random_epochs, **options)
    for epoch in (0, 1, 2, 7):
        sampler.set_epoch(epoch)
        if epoch < random_epochs:
            expected = plan_epoch(TWENTY, 3, "random", seed=options["seed"], epoch=epoch)
        else:
            expected = plan_epoch(TWENTY, 3, strategy, epoch=epoch, **options)
        assert len(sampler) == len(expected)
        batches = list(sampler)
        assert batches == as_lists(expected)
        assert type(batches[0][0]) is int


def fresh_from(state, strategy="semi_sorted", **changed):
    sampler = LengthBatchSampler(TWENTY, 3, strategy, **(RECIPE | changed))
    sampler.load_state_dict(json.loads(json.dumps(state)))  # what any checkpoint can hold
    return sampler


@every_strategy
@pytest.mark.parametrize("set_epoch_again", [False, True])
def test_resume_gives_the_rest_of_the_epoch(strategy, set_epoch_again):
    options = {"num_bins": 3}
    sampler = LengthBatchSampler(TWENTY, 3, strategy, **RECIPE, num_bins=3)
    sampler.set_epoch(6)
    whole = list(sampler)
    sampler.set_epoch(7)
    following = list(sampler)
    sampler.set_epoch(6)
    for trained in range(len(whole) + 1):
        resumed = fresh_from(sampler.state_dict(trained), strategy, **options)
        if set_epoch_again:
            resumed.set_epoch(6)
        assert resumed.epoch == 6
        assert len(resumed) == len(whole) - trained
        assert list(resumed) == whole[trained:]
        with pytest.raises(RuntimeError, match="set_epoch"):
            list(resumed)
        resumed.set_epoch(7)
        assert len(resumed) == len(following)
        assert list(resumed) == following


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_counts_trained_not_fetched_batches(num_workers):
    def loader_of(sampler):
        return DataLoader(
            range(20), batch_sampler=sampler, num_workers=num_workers, collate_fn=list
        )

    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    sampler.set_epoch(2)
    whole = list(sampler)
    assert len(whole) > 4
    for stop in range(len(whole) + 1) if num_workers == 0 else (0, 2, len(whole)):
        sampler.set_epoch(2)
        trained = []
        for batch in loader_of(sampler):
            if len(trained) == stop:
                break
            trained.append(batch)
        loader = loader_of(fresh_from(sampler.state_dict(len(trained))))
        assert len(loader) == len(whole) - stop
        assert trained + list(loader) == whole


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 12},
        {"dynamic_batch_size": False},
        {"batches_per_update": 2},
        {"lengths": [*TWENTY[:-1], 15]},
        {"lengths": [*TWENTY, 15]},
    ],
    ids=str,
)
def test_resume_refuses_another_plan(changed):
    arguments = {"lengths": TWENTY, "batch_size": 3, "strategy": "semi_sorted", **RECIPE}
    sampler = LengthBatchSampler(**arguments)
    sampler.set_epoch(3)
    other = LengthBatchSampler(**(arguments | changed))
    with pytest.raises(
        BatchingError, match=r"epoch 3 was left after 2 of \d+ batches.*other batches"
    ):
        other.load_state_dict(sampler.state_dict(2))
    other.load_state_dict(sampler.state_dict(0))
    assert other.epoch == 3
    assert len(list(other)) == len(other.plan)


def test_resume_refuses_one_order_cut_otherwise():
    state = LengthBatchSampler(TWENTY, 4, "sorted").state_dict(2)
    with pytest.raises(BatchingError, match="other batches"):
        LengthBatchSampler(TWENTY, 5, "sorted").load_state_dict(state)


# --- several batches an update, and several ranks


def samplers_of_ranks(world_size, lengths, batch_size, strategy, epoch=0, **options):
    options = {"batches_per_update": world_size} | options
    samplers = [
        LengthBatchSampler(
            lengths, batch_size, strategy, rank=rank, world_size=world_size, **options
        )
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


def updates_of(sampler):
    """The batches of every update, lists of clips."""
    bounds = [*sampler.update_starts.tolist(), len(sampler.plan)]
    batches = as_lists(sampler.plan)
    return [batches[start:end] for start, end in pairwise(bounds)]


@every_strategy
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    data=data,
    world_size=st.integers(1, 4),
    batches_a_rank=st.integers(1, 3),
    mode=st.sampled_from(MODES),
    randomize=st.booleans(),
)
def test_ranks_share_updates_of_every_clip_once(
    strategy, mode, randomize, data, world_size, batches_a_rank
):
    lengths, batch_size, options = draw_case(data, strategy, mode, randomize)
    plan = [tuple(b) for b in as_lists(plan_epoch(lengths, batch_size, strategy, **options))]
    size, epoch = world_size * batches_a_rank, options.pop("epoch")
    options |= {"batches_per_update": size}
    samplers = samplers_of_ranks(world_size, lengths, batch_size, strategy, epoch, **options)
    updates = [[tuple(batch) for batch in update] for update in updates_of(samplers[0])]
    whole = [update for update in updates if len(update) == size and set(update) <= set(plan)]
    assert len(whole) == len(plan) // size
    rest = set(plan) - {batch for update in whole for batch in update}
    assert len(rest) == len(plan) % size
    cut = [update for update in updates if update not in whole]
    assert len(cut) == bool(rest)
    for pieces in cut:  # of the batches that are left over: the same clips, nothing larger
        assert sorted(laid_out(pieces)) == sorted(laid_out(rest))
        assert 1 <= len(pieces) <= size
        for most in (len, lambda batch: len(batch) * max(lengths[i] for i in batch)):
            assert max(map(most, pieces)) <= max(map(most, rest))
    # Similar lengths: no batch of an update is longer than one of a longer update is short.
    longest = [sorted(max(lengths[i] for i in batch) for batch in update) for update in updates]
    longest.sort(reverse=True)
    assert all(a[0] >= b[-1] for a, b in pairwise(longest))
    if size == 1:
        assert [batch for [batch] in updates] == plan
    # The plan's order, so batch randomization stays random and `sorted` sorted.
    place = {batch: k for k, batch in enumerate(plan)}
    named = [update if update in whole else rest for update in updates]
    first_named = [min(place[batch] for batch in batches) for batches in named]
    assert first_named == sorted(first_named)
    # Whatever the number of ranks, the updates are made of the same batches in the same places.
    shares = [[tuple(batch) for batch in sampler] for sampler in samplers]
    for update in updates:
        for rank, share in enumerate(shares):
            mine = update[rank::world_size]
            assert share[: len(mine)] == mine
            del share[: len(mine)]
    assert shares == [[]] * world_size
    assert updates_of(samplers[-1]) == updates_of(samplers[0])
    [alone] = samplers_of_ranks(1, lengths, batch_size, strategy, epoch, **options)
    assert updates_of(alone) == updates_of(samplers[0])


def test_leftover_batches_are_cut_evenly():
    # 7 equal batches of 4 clips: of the second update 3 are left, 12 clips for 4 ranks.
    updates = updates_of(samplers_of_ranks(4, [9] * 28, 4, "random")[0])
    assert sorted(sorted(map(len, update)) for update in updates) == [[3] * 4, [4] * 4]
    # Nothing gets smaller than the longest clip alone, so one of 3 ranks has no batch.
    lengths = [8, 2, 2, 2, 2]
    [update] = updates_of(samplers_of_ranks(3, lengths, 2, "sorted", dynamic_batch_size=True)[0])
    assert sorted(map(sorted, update)) == [[0], [1, 2, 3, 4]]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_of_leftovers_is_smaller(seed):
    lengths = np.random.default_rng(seed).integers(1, 50, 9).astype(float)
    plan = plan_epoch(lengths, 3, "random")
    cuts = [np.split(lengths[plan.order], places) for places in combinations(range(1, 9), 3)]
    cuts = [pieces for pieces in cuts if max(map(len, pieces)) <= 3]
    cut = [lengths[batch] for batch in cut_evenly(plan, 4, lengths)]
    largest, *others = [max(len(x) * x.max() for x in pieces) for pieces in (cut, *cuts)]
    assert largest == min(others)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_resume_with_another_number_of_ranks(world_size):
    options = {"strategy": "semi_sorted", "batches_per_update": 6} | RECIPE
    saved = LengthBatchSampler(range(1, 41), 2, **options)
    saved.set_epoch(1)
    whole = updates_of(saved)
    [trained, *_] = saved.update_starts[2:]
    state = saved.state_dict(int(trained))
    left = []
    for rank in range(world_size):
        resumed = LengthBatchSampler(range(1, 41), 2, rank=rank, world_size=world_size, **options)
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        left += list(resumed)
    assert sorted(left) == sorted(batch for update in whole[2:] for batch in update)


@pytest.mark.parametrize("trained", [-1, 1.5, 4, 10_000])
def test_positions_inside_an_update_are_refused(trained):
    sampler = LengthBatchSampler(range(1, 41), 2, "sorted", batches_per_update=3)
    for refuse in (sampler.state_dict, sampler.update_at):
        with pytest.raises(BatchingError, match=f"batches_trained={trained}: no update"):
            refuse(trained)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"rank": 2, "world_size": 2, "batches_per_update": 2}, "rank=2: .* 0 to 1"),
        ({"world_size": 0}, "world_size=0: .* at least 1"),
        ({"batches_per_update": 0}, "batches_per_update=0: .* at least 1"),
        ({"random_epochs": -1}, "random_epochs=-1: .* at least 0"),
        (
            {"batches_per_update": 3, "world_size": 2},
            "batches_per_update=3: .* 2 processes; expected a multiple of 2",
        ),
    ],
)
def test_ranks_and_updates_out_of_range_are_refused(ranks, said):
    with pytest.raises(BatchingError, match=said):
        LengthBatchSampler(TWENTY, 3, "random", **ranks)


@pytest.mark.parametrize("world_size", [2, 4])
@with_and_without_randomization
def test_ranks_hardly_wait_for_each_other(randomize, world_size):
    """The slowest rank of an update makes 1 % more decoder steps and padded frames than the mean.
    Of the steps of four ranks that take the plan's batches in turn, 19 % are saved."""
    lengths = np.random.default_rng(world_size).permutation(LJSPEECH)[:10_480]
    options = {"dynamic_batch_size": True, "batch_randomization": randomize}
    [sampler, *_] = samplers_of_ranks(world_size, lengths, 16, "semi_sorted", **options)
    updates = updates_of(sampler)
    longest = [[lengths[batch].max() for batch in update] for update in updates]
    padded = [[len(batch) * lengths[batch].max() for batch in update] for update in updates]
    for of_ranks in (longest, padded):
        assert 1 <= np.mean([max(update) / np.mean(update) for update in of_ranks]) <= 1.01
    slowest = sum(np.equal(update, max(update)) * 1 for update in longest)
    assert slowest.min() > 0.7 * slowest.mean()  # every rank in its turn
    if randomize and world_size == 4:
        plan = plan_epoch(lengths, 16, "semi_sorted", **options)
        in_plan = [lengths[batch].max() for batch in plan]
        in_turn = sum(max(in_plan[k : k + 4]) for k in range(0, len(plan), 4))
        saved = 1 - sum(map(max, longest)) / in_turn
        assert saved == pytest.approx(0.19, abs=0.03)


# --- batching.py alone


def test_docstring_example_runs():
    example = textwrap.dedent(re.search(r"\n\n((?: {4}.*\n)+)", batching.__doc__).group(1))
    assert len(example.splitlines()) <= 10
    trained = []

    def pad(clips):
        trained.extend(clips)
        return clips

    names = {"DataLoader": DataLoader, "LengthBatchSampler": LengthBatchSampler, "pad": pad}
    exec(example, names | {"lengths": TWENTY, "dataset": range(20)})
    assert Counter(trained) == dict.fromkeys(range(20), 100)
