"""Test LengthBatchSampler: iteration, resuming, optimizer steps with several batches, and ranks."""

import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from contextlib import nullcontext
from itertools import combinations, islice, pairwise

import numpy as np
import pytest
import torch
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import (
    LJSPEECH,
    MODES,
    SMALL,
    as_lists,
    clips_of,
    data,
    draw_case,
    every_strategy,
    with_and_without_randomization,
)
from torch.utils.data import DataLoader

import length_batching
from length_batching import (
    STRATEGIES,
    BatchingError,
    LengthBatchSampler,
    check_strategy,
    plan_epoch,
)
from length_batching.plan import BatchCosts
from length_batching.updates import cut_evenly

RECIPE = {"dynamic_batch_size": True, "batch_randomization": True, "seed": 11}
TWENTY = [9, 31, 12, 28, 17, 5, 40, 22, 35, 8, 14, 26, 39, 11, 19, 33, 7, 24, 37, 16]


def loader_of(sampler, num_workers=0, **options):
    return DataLoader(
        range(20), batch_sampler=sampler, num_workers=num_workers, collate_fn=list, **options
    )


def epochs_of(count, **changed):
    """Return the batches of the first `count` epochs, as one list per epoch."""
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **(RECIPE | changed))
    epochs = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_iterating_the_sampler_raises_when_set_epoch_was_not_called(workers):
    """Every epoch except the first epoch needs set_epoch, even if the previous epoch is incomplete."""
    first, second, third = epochs_of(3)
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    loader = loader_of(sampler, **workers)
    assert next(iter(loader)) == first[0]
    with pytest.raises(BatchingError, match=r"epoch 0: .*set_epoch"):
        next(iter(loader))
    for epoch, batches in ((0, first), (1, second), (2, third), (1, second)):
        sampler.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert len(loader) == len(batches)
        assert list(loader) == batches
        with pytest.raises(BatchingError, match=f"epoch {epoch}: .*set_epoch"):
            list(loader)
    for drawn in (1, len(third) - 1):
        sampler.set_epoch(2)
        assert list(islice(loader, drawn)) == third[:drawn]


ACTIONS = st.sampled_from(["whole pass", "broken off", "set_epoch", "resume"])


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 4)), max_size=12))
def test_sampler_has_the_expected_state_after_random_actions(actions):
    """The test tracks the expected state of the sampler in three variables: the current epoch, the
    batch at which its pass starts (`start`), and the number of batches that this pass has yielded
    (`drawn`, or None before the pass)."""

    def made():
        sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
        return sampler, loader_of(sampler)

    plans = epochs_of(20)
    sampler, loader = made()
    epoch, start, drawn = 0, 0, None
    for action, number in actions:
        if action == "set_epoch":
            is_wrong = drawn is None and number != epoch and 0 < start < len(plans[epoch])
            with pytest.raises(BatchingError) if is_wrong else nullcontext():
                sampler.set_epoch(number)
                if number != epoch or drawn is not None:
                    epoch, start, drawn = number, 0, None
        elif action == "resume":
            state = sampler.state_dict(drawn or 0)
            sampler, loader = made()
            sampler.load_state_dict(state)
            start, drawn = start + (drawn or 0), None
        elif drawn is not None:
            with pytest.raises(BatchingError, match="set_epoch"):
                next(iter(loader))
        else:
            left = plans[epoch][start:]
            count = len(left) if action == "whole pass" else min(1 + number, len(left))
            assert list(islice(loader, max(count, 1))) == left[:count]
            drawn = count


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("dynamic_batchsize", "dynamic_batch_size"),
        ("drop_last", "max_clips"),  # no option has a similar name, so the error lists all options
    ],
)
def test_sampler_error_suggests_an_option_when_an_option_name_is_unknown(argument, expected):
    classes = {
        "LengthBatchSampler": (TWENTY, 3, "random"),
        "LengthBatches": (TWENTY, TWENTY, 3, "random"),
        "LengthBatchStream": (iter, len, 3, "random"),
    }
    for name, arguments in classes.items():
        with pytest.raises(BatchingError, match=rf"{argument}: .*\b{expected}\b"):
            getattr(length_batching, name)(*arguments, **{argument: True})


def test_sampler_raises_when_set_epoch_is_called_during_iteration():
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    drawing = iter(loader_of(sampler, 1))  # a DataLoader with a worker reads batches in advance
    sampler.set_epoch(3)
    with pytest.raises(BatchingError, match=r"set_epoch\(3\): "):
        list(drawing)
    with pytest.raises(BatchingError, match="epoch=-1"):
        sampler.set_epoch(-1)


@every_strategy
@pytest.mark.parametrize(("random_epochs", "capacity"), [(0, 90), (2, None), (2, 90)])
def test_sampler_yields_the_plan_for_each_epoch(strategy, random_epochs, capacity):
    """In the first `random_epochs` epochs, batches are random and stay within `batch_capacity`."""
    options = RECIPE | SMALL | {"batch_capacity": capacity}
    sampler = LengthBatchSampler(TWENTY, 3, strategy, random_epochs=random_epochs, **options)
    for epoch in (0, 1, 2, 7):
        sampler.set_epoch(epoch)
        if epoch < random_epochs:
            fixed = {"dynamic_batch_size": capacity is not None, "batch_capacity": capacity}
            expected = plan_epoch(TWENTY, 3, "random", seed=options["seed"], epoch=epoch, **fixed)
        else:
            expected = plan_epoch(TWENTY, 3, strategy, epoch=epoch, **options)
        assert len(sampler) == len(expected)
        batches = list(sampler)
        assert batches == as_lists(expected)
        assert type(batches[0][0]) is int


@pytest.mark.parametrize("set_epoch_again", [False, True])
def test_sampler_yields_the_remaining_batches_of_an_epoch_when_it_is_resumed(set_epoch_again):
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    sampler.set_epoch(6)
    whole = list(sampler)
    sampler.set_epoch(7)
    following = list(sampler)
    sampler.set_epoch(6)
    for trained in range(len(whole) + 1):
        # A checkpoint can store the state as JSON.
        state = json.loads(json.dumps(sampler.state_at(trained)))
        resumed = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
        resumed.load_state_dict(state)
        if set_epoch_again:
            resumed.set_epoch(6)
        assert resumed.epoch == 6
        assert len(resumed) == len(whole)
        assert list(resumed) == whole[trained:]
        resumed.set_epoch(7)
        assert list(resumed) == following
        assert len(resumed) == len(following)


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
def test_saved_state_of_the_sampler_is_rejected_when_clips_or_options_differ(changed):
    arguments = {"lengths": TWENTY, "batch_size": 3, "strategy": "semi_sorted", **RECIPE}
    sampler = LengthBatchSampler(**arguments)
    sampler.set_epoch(3)
    other = LengthBatchSampler(**(arguments | changed))
    with pytest.raises(BatchingError, match=r"epoch 3 .*2 of \d+ batches"):
        other.load_state_dict(sampler.state_at(2))
    other.load_state_dict(sampler.state_at(0))
    assert other.epoch == 3
    assert len(list(other)) == len(other.plan)


def test_saved_state_of_the_sampler_is_rejected_when_batch_boundaries_differ():
    state = LengthBatchSampler(TWENTY, 4, "sorted").state_at(2)
    with pytest.raises(BatchingError, match=r"epoch 0 .*2 of"):
        LengthBatchSampler(TWENTY, 5, "sorted").load_state_dict(state)


# --- several batches per optimizer step, and several ranks


def samplers_of_ranks(world_size, lengths, batch_size, strategy, epoch=0, **options):
    options = {"batches_per_update": world_size, "world_size": world_size} | options
    samplers = [
        LengthBatchSampler(
            lengths, batch_size, strategy, rank=rank, short_last_update=True, **options
        )
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


def updates_of(sampler):
    """Return the batches of every optimizer step as lists of clips."""
    bounds = [*sampler.update_starts.tolist(), len(sampler.plan)]
    batches = as_lists(sampler.plan)
    return [batches[start:end] for start, end in pairwise(bounds)]


@every_strategy
@settings(max_examples=50, derandomize=True)
@given(
    data=data,
    world_size=st.integers(1, 4),
    batches_a_rank=st.integers(1, 3),
    mode=st.sampled_from(MODES),
    randomize=st.booleans(),
)
def test_ranks_use_every_clip_once_and_share_each_optimizer_step(
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
    # The clips of the last, incomplete optimizer step are divided into new batches.
    # No new batch is larger than the largest original batch.
    for pieces in cut:
        assert sorted(clips_of(pieces)) == sorted(clips_of(rest))
        assert 1 <= len(pieces) <= size
        for most in (len, lambda batch: len(batch) * max(lengths[i] for i in batch)):
            assert max(map(most, pieces)) <= max(map(most, rest))
    # The length ranges of different optimizer steps do not overlap.
    longest = [sorted(max(lengths[i] for i in batch) for batch in update) for update in updates]
    longest.sort(reverse=True)
    assert all(a[0] >= b[-1] for a, b in pairwise(longest))
    if size == 1:
        assert [batch for [batch] in updates] == plan
    # Optimizer steps have the same order as in the plan.
    number = {batch: k for k, batch in enumerate(plan)}
    planned = [update if update in whole else rest for update in updates]
    first_numbers = [min(number[batch] for batch in batches) for batches in planned]
    assert first_numbers == sorted(first_numbers)
    # The same batches share an optimizer step for any number of ranks.
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


@pytest.mark.parametrize("seed", range(20))
def test_cut_evenly_minimizes_the_padded_frames_of_the_largest_batch(seed):
    lengths = np.random.default_rng(seed).integers(1, 50, 9).astype(float)
    plan = plan_epoch(lengths, 3, "random")
    cuts = [np.split(lengths[plan.order], places) for places in combinations(range(1, 9), 3)]
    cuts = [pieces for pieces in cuts if max(map(len, pieces)) <= 3]
    cut = [lengths[batch] for batch in cut_evenly(plan, 4, BatchCosts(lengths))]
    largest, *others = [max(len(x) * x.max() for x in pieces) for pieces in (cut, *cuts)]
    assert largest == min(others)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank": 2, "world_size": 2, "batches_per_update": 2}, "rank=2: .*0 to 1"),
        ({"batches_per_update": 0}, "batches_per_update=0: "),
        ({"random_epochs": -1}, "random_epochs=-1: "),
        ({"batches_per_update": 3, "rank": 0, "world_size": 2}, "batches_per_update=3: .*2"),
        ({"batches_per_epoch": 5}, "batches_per_epoch=5 .*from 7 to 20"),
        (
            {"batches_per_epoch": 9, "batches_per_update": 2},
            "batches_per_epoch=9 .*2 from 8 to 20",
        ),
        ({"batches_per_update": 21}, "batches_per_update=21: the 20 clips"),
        ({"rank": 1}, "world_size=None: "),
        ({"world_size": 2}, "rank=None: .*0 to 1"),
    ],
)
def test_sampler_error_names_the_option_when_ranks_or_counts_are_invalid(options, named):
    with pytest.raises(BatchingError, match=named):
        LengthBatchSampler(TWENTY, 3, "random", **options)
    for trained in (-1, 1.5, 10_000):
        with pytest.raises(BatchingError, match=f"batches_trained={trained}: "):
            LengthBatchSampler(TWENTY, 3, "random").state_at(trained)


def parts_of_ranks(world_size, *args, **options):
    """Return the batches of each rank in epoch 0, as one list per rank."""
    samplers = [
        LengthBatchSampler(*args, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    return [list(sampler) for sampler in samplers]


@settings(max_examples=150, derandomize=True)
@given(
    data=data,
    strategy=st.sampled_from(STRATEGIES),
    world_size=st.integers(1, 4),
    batches_a_rank=st.integers(1, 2),
    mode=st.sampled_from(MODES),
    extra=st.sampled_from([None, "constant", 0, 3]),
)
def test_ranks_get_the_same_number_of_batches(
    strategy, mode, data, world_size, batches_a_rank, extra
):
    """Every clip is used once, and batches stay within the limits of the plan. If
    `batches_per_epoch` is set, every epoch has the same number of batches."""
    lengths, batch_size, options = draw_case(data, strategy, mode, True)
    options.pop("epoch")
    size = world_size * batches_a_rank
    plans = [plan_epoch(lengths, batch_size, strategy, epoch=e, **options) for e in range(3)]
    wanted = extra
    if isinstance(extra, int):
        wanted = -(-max(map(len, plans)) // size) * size + extra * size
    possible = len(lengths) // size * size
    options |= {"batches_per_update": size, "batches_per_epoch": wanted}
    try:
        ranks = parts_of_ranks(world_size, lengths, batch_size, strategy, **options)
    except BatchingError:
        assert possible < max(len(plans[0]), wanted if isinstance(wanted, int) else 0)
        return
    assert len({len(part) for part in ranks}) == 1
    batches = [batch for part in ranks for batch in part]
    assert sorted(clip for batch in batches for clip in batch) == list(range(len(lengths)))
    assert len(batches) % size == 0
    for most in (len, lambda batch: len(batch) * max(lengths[i] for i in batch)):
        limit = batch_size * max(lengths) if mode != "fixed" else np.inf
        assert max(map(most, batches)) <= max(limit, *map(most, plans[0]))
    if wanted is not None:
        sampler = LengthBatchSampler(lengths, batch_size, strategy, world_size=1, **options)
        counts = set()
        for epoch in range(3):
            sampler.set_epoch(epoch)
            counts.add(len(list(sampler)))
        assert counts == {len(batches)} == ({wanted} if isinstance(wanted, int) else counts)


def test_constant_number_of_batches_per_epoch_adds_at_most_1_percent_of_decoder_steps():
    lengths = np.random.default_rng(1).permutation(LJSPEECH)[:10_480]
    more = {"dynamic_batch_size": True, "batch_randomization": True}
    constant = LengthBatchSampler(lengths, 16, "semi_sorted", batches_per_epoch="constant", **more)
    counts = set()
    for epoch in range(8):
        constant.set_epoch(epoch)
        plan = plan_epoch(lengths, 16, "semi_sorted", epoch=epoch, **more)
        assert constant.plan.longest(lengths).sum() < 1.011 * plan.longest(lengths).sum()
        assert (constant.plan.sizes * constant.plan.longest(lengths)).max() <= 16 * lengths.max()
        assert sorted(constant.plan.order) == list(range(len(lengths)))
        counts.add(len(constant))
    assert len(counts) == 1


def test_iterating_the_sampler_raises_when_world_size_is_missing_in_several_processes(monkeypatch):
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    with pytest.raises(BatchingError, match=r"rank, world_size: .* 2 processes"):
        list(sampler)
    assert list(LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE, world_size=1))


@pytest.mark.parametrize(("trained", "world_sizes"), [(6, (1, 2, 3)), (12, (1, 2, 3, 4))])
def test_ranks_yield_the_remaining_batches_when_the_world_size_changes(trained, world_sizes):
    """The state is saved inside or at the start of an optimizer step."""
    options = {"strategy": "semi_sorted", "batches_per_update": 12} | RECIPE
    sampler = LengthBatchSampler(range(1, 81), 2, **options)
    whole = list(sampler)
    state = sampler.state_at(trained)
    for world_size in world_sizes:
        ranks = []
        for rank in range(world_size):
            ranks.append(
                LengthBatchSampler(range(1, 81), 2, **options, rank=rank, world_size=world_size)
            )
            ranks[-1].load_state_dict(state)
            with pytest.raises(BatchingError, match=rf"set_epoch\(1\): .*batch {trained} of"):
                ranks[-1].set_epoch(1)
            ranks[-1].set_epoch(0)
        left = [batch for turn in zip(*map(list, ranks), strict=True) for batch in turn]
        assert left == whole[trained:]
    four = LengthBatchSampler(range(1, 81), 2, **options, rank=0, world_size=4)
    with pytest.raises(BatchingError, match=r"batches_trained=6: .*4 processes"):
        four.load_state_dict(sampler.state_at(6))


def test_saving_the_sampler_raises_when_the_number_of_trained_batches_is_missing_or_too_large():
    sampler = LengthBatchSampler(TWENTY, 3, "semi_sorted", **RECIPE)
    with pytest.raises(BatchingError, match=r"state_dict\(\)"):
        sampler.state_dict()
    list(islice(sampler, 2))
    assert sampler.state_dict(2)["batches_trained"] == 2
    with pytest.raises(BatchingError, match=r"trained=3: .*2"):
        sampler.state_dict(3)
    with pytest.raises(BatchingError, match="LengthBatches"):
        getattr(sampler, "batch_size", None)


@pytest.mark.parametrize("world_size", [2, 4])
@with_and_without_randomization
def test_ranks_have_nearly_equal_work(randomize, world_size):
    """The slowest rank computes at most 1% more decoder steps and padded frames than the average
    rank. Compared with four ranks that share consecutive batches of the plan, four ranks of the
    sampler need 19% fewer decoder steps."""
    lengths = np.random.default_rng(world_size).permutation(LJSPEECH)[:10_480]
    options = {"dynamic_batch_size": True, "batch_randomization": randomize}
    [sampler, *_] = samplers_of_ranks(world_size, lengths, 16, "semi_sorted", **options)
    updates = updates_of(sampler)
    longest = [[lengths[batch].max() for batch in update] for update in updates]
    padded = [[len(batch) * lengths[batch].max() for batch in update] for update in updates]
    for of_ranks in (longest, padded):
        assert 1 <= np.mean([max(update) / np.mean(update) for update in of_ranks]) <= 1.01
    slowest = sum(np.equal(update, max(update)) * 1 for update in longest)
    assert slowest.min() > 0.7 * slowest.mean()  # each rank is the slowest about equally often
    if randomize and world_size == 4:
        plan = plan_epoch(lengths, 16, "semi_sorted", **options)
        in_plan = [lengths[batch].max() for batch in plan]
        in_turn = sum(max(in_plan[k : k + 4]) for k in range(0, len(plan), 4))
        saved = 1 - sum(map(max, longest)) / in_turn
        assert saved == pytest.approx(0.19, abs=0.03)


# --- the documentation


def test_example_in_the_package_docstring_runs():
    example = textwrap.dedent(re.search(r"\n\n((?: {4}.*\n)+)", length_batching.__doc__).group(1))
    trained = []

    def pad(clips):
        trained.extend(clips)
        return clips

    names = {"DataLoader": DataLoader, "LengthBatchSampler": LengthBatchSampler, "pad": pad}
    exec(example, names | {"lengths": TWENTY, "dataset": range(20)})
    assert Counter(trained) == dict.fromkeys(range(20), 100)


@pytest.mark.parametrize(
    ("lengths", "options", "name"),
    [
        ([[1, 2], [3]], {}, "lengths"),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), {}, "lengths"),
        (torch.ones(3, requires_grad=True), {}, "lengths"),
        ([1, 2, 3], {"dynamic_batch_size": True, "batch_capacity": "4"}, "batch_capacity='4'"),
    ],
)
def test_sampler_raises_when_values_are_not_numbers(lengths, options, name):
    with pytest.raises(BatchingError) as raised:
        LengthBatchSampler(lengths, 1, "random", **options)
    assert str(raised.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (np.ones((20, 1)), [r"\(20, 1\)", r"\(20,\)"]),
        (dict(enumerate(TWENTY)), ["dict"]),
        (set(TWENTY), ["set"]),
        ((length for length in TWENTY), ["generator"]),
    ],
    ids=["column", "dict", "set", "generator"],
)
def test_sampler_error_reports_the_type_or_shape_when_lengths_are_not_an_array(lengths, words):
    with pytest.raises(BatchingError, match="lengths: .*" + ".*".join(words)):
        LengthBatchSampler(lengths, 3, "semi_sorted")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_replicas": 2, "rank": 0}, ["num_replicas: ", "world_size", "max_clips"]),
        ({"batches_per_updates": 2}, ["batches_per_updates: .*batches_per_update"]),
        ({"random_epoch": 1}, ["random_epoch: .*random_epochs"]),
    ],
    ids=str,
)
def test_sampler_lists_its_options_when_an_option_is_unknown(options, words):
    with pytest.raises(BatchingError) as raised:
        LengthBatchSampler(TWENTY, 3, "semi_sorted", **options)
    for word in words:
        assert re.search(word, str(raised.value))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SSB", ["semi_sorted"]),
        ("ssb-dbs-br", ["semi_sorted", "dynamic_batch_size=True", "batch_randomization=True"]),
        ("SSB-exp-DBS", ["semi_sorted_exponential", "dynamic_batch_size=True"]),
        ("RAND", ["random"]),
        ("semisorted", ["semi_sorted"]),
    ],
)
def test_error_suggests_strategy_and_options_when_a_strategy_name_is_from_the_papers(name, options):
    with pytest.raises(BatchingError) as raised:
        check_strategy(name)
    suggestion = str(raised.value).split("did you mean")[1]
    for option in options:
        assert re.search(rf"\b{option}\b", suggestion)
    assert suggestion.count("=True") == sum("=True" in option for option in options)


@pytest.mark.parametrize(("capacity", "warns"), [(40, True), (90, False)])
def test_sampler_warns_when_batch_capacity_fits_fewer_than_two_clips_on_average(capacity, warns):
    """The mean length is 21.65, so a batch capacity of 40 fits fewer than two clips on average."""
    expected = pytest.warns(UserWarning, match="batch_capacity=") if warns else nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with expected:
            LengthBatchSampler(
                TWENTY, 3, "semi_sorted", dynamic_batch_size=True, batch_capacity=capacity
            )


def test_error_names_the_pip_extra_when_torch_is_missing():
    program = textwrap.dedent(
        """
        import sys
        sys.modules["torch"] = None
        import length_batching
        try:
            length_batching.LengthBatches
        except ModuleNotFoundError as error:
            print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "length-batching[torch]" in done.stdout


LENGTHS_OF_PHASES = np.random.default_rng(0).integers(10, 501, 600)
PHASES: dict = {"dynamic_batch_size": True, "batch_randomization": True, "random_epochs": 2}


def plans_of_sampler(**options):
    """Return the plans of four epochs: two random epochs and two later epochs."""
    sampler = LengthBatchSampler(LENGTHS_OF_PHASES, 8, "semi_sorted", **(PHASES | options))
    plans = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        plans.append(sampler.plan)
    return plans


def steps_of(plan):
    return plan.longest(LENGTHS_OF_PHASES).sum()


@pytest.mark.parametrize("size", [1, 4])
def test_sampler_plans_fewer_batches_after_the_random_epochs(size):
    """In an earlier version, later epochs had as many batches as random epochs, so length batching
    saved only half of the decoder steps that it can save."""
    plans = plans_of_sampler(batches_per_epoch="per_phase", batches_per_update=size)
    needed = plans_of_sampler(batches_per_update=size)
    with pytest.warns(UserWarning, match='batches_per_epoch="constant"'):
        constant = plans_of_sampler(batches_per_epoch="constant", batches_per_update=size)
    assert len(plans[0]) == len(plans[1])
    assert len(plans[2]) == len(plans[3]) < 0.7 * len(plans[0])
    for epoch in range(4):
        assert sorted(plans[epoch].order) == list(range(600))
        assert steps_of(plans[epoch]) < 1.05 * steps_of(needed[epoch])
    # Batches of random epochs must not change, because saved states and records of older runs refer
    # to these batches.
    for epoch in range(2):
        assert list(map(list, plans[epoch])) == list(map(list, constant[epoch]))


def test_number_of_batches_never_increases_after_the_random_epochs():
    """Lightning would leave out additional batches in later epochs. In this test, each of the 20
    length classes ends with a small batch, so later epochs would need more batches than random
    epochs."""
    options = {"num_buckets": 20, "random_epochs": 1, "batches_per_epoch": "per_phase"}
    sampler = LengthBatchSampler(LENGTHS_OF_PHASES, 8, "bucket_by_width", **options)
    first = len(sampler)
    sampler.set_epoch(1)
    assert first == len(sampler) > 80


@pytest.mark.parametrize(
    "changed",
    [{"random_epochs": 0}, {"batches_per_epoch": "per_phase"}, {"batches_per_epoch": 90}],
    ids=str,
)
def test_sampler_does_not_warn_when_options_prevent_or_request_extra_batches(
    changed,
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plans_of_sampler(**({"batches_per_epoch": "constant"} | changed))


@pytest.mark.parametrize("wrong", ["phase", 0, 1.5])
def test_sampler_raises_when_batches_per_epoch_is_invalid(wrong):
    with pytest.raises(BatchingError, match="batches_per_epoch="):
        LengthBatchSampler(TWENTY, 3, "random", batches_per_epoch=wrong)
