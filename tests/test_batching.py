"""Batching: every clip once, the published rules and figures, ranks, and resuming."""

import copy
import math
import re
from collections import Counter
from dataclasses import astuple
from fractions import Fraction
from itertools import combinations, count, pairwise

import numpy as np
import pytest
import torch
from helpers import LJSPEECH_LENGTHS
from hypothesis import given, settings
from hypothesis import strategies as st

from length_batching import (
    REGISTRY,
    STRATEGIES,
    BatchingError,
    padding_stats,
    pair_novelty,
    plan_epoch,
)
from length_batching.costs import batch_of_position

SAMPLES = np.loadtxt(LJSPEECH_LENGTHS, delimiter=",", skiprows=1, usecols=1, dtype=int)
LJSPEECH = -(-SAMPLES * 80 // 22_050)  # [13,100] frames: ceil(seconds x 80), as in Ge et al.
BY_CLASS = ("bucket_by_width", "bucket_by_quantile")
IN_ONE_ORDER = [strategy for strategy in STRATEGIES if strategy not in BY_CLASS]
SEMI_SORTED = ("semi_sorted", "semi_sorted_rank", "semi_sorted_exponential")
MODES = ("fixed", "dynamic", "given capacity")
DBS, BR = {"dynamic_batch_size": True}, {"batch_randomization": True}
SMALL = {"num_bins": 4, "bucket_size": 16, "num_buckets": 2}  # parameters that suit few clips

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_mode = pytest.mark.parametrize("mode", MODES)
with_and_without_randomization = pytest.mark.parametrize("randomize", [False, True])
few = settings(max_examples=25, derandomize=True)
data = st.data()

whole_lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
some_lengths = st.one_of(whole_lengths, st.lists(st.floats(0.1, 60), min_size=1, max_size=40))


def draw_case(data, strategy, mode="fixed", randomize=False, lengths=some_lengths):
    """(lengths, batch_size, options of plan_epoch), all of them allowed."""
    lengths = data.draw(lengths, "lengths")
    batch_size = data.draw(st.integers(1, 9), "batch_size")
    options = {
        "seed": data.draw(st.integers(0, 2**40), "seed"),
        "epoch": data.draw(st.integers(0, 1000), "epoch"),
        "batch_randomization": randomize,
        "dynamic_batch_size": mode != "fixed",
    }
    if mode == "given capacity":
        options["batch_capacity"] = max(lengths) * data.draw(st.floats(1, 6), "capacity factor")
    parameter = REGISTRY[strategy].parameter
    if parameter and parameter.is_factor:
        options[parameter.name] = data.draw(st.floats(0, 3), parameter.name)
    elif parameter:
        least, most = parameter.limits(len(lengths), batch_size)
        most = min(most, 1000)  # a million classes take long
        options[parameter.name] = data.draw(st.integers(least, most), parameter.name)
    return lengths, batch_size, options


def as_lists(batches):
    return [[int(i) for i in batch] for batch in batches]


def laid_out(batches):
    return [int(i) for batch in batches for i in batch]


def lengths_like_speech(n):
    """n lengths of LJSpeech, drawn at random, in frames."""
    return np.random.default_rng(5).choice(LJSPEECH, n)


# --- what holds for every strategy, fixed and dynamic, with batch randomization and without


@every_strategy
@every_mode
@with_and_without_randomization
@few
@given(data=data)
def test_every_clip_appears_once_per_epoch(strategy, mode, randomize, data):
    lengths, batch_size, options = draw_case(data, strategy, mode, randomize)
    untouched = copy.copy(lengths)
    batches = plan_epoch(lengths, batch_size, strategy, **options)
    assert sorted(laid_out(batches)) == list(range(len(lengths)))
    assert all(len(batch) > 0 and np.issubdtype(batch.dtype, np.integer) for batch in batches)
    assert lengths == untouched
    again = plan_epoch(np.array(lengths), batch_size, strategy, **options)
    assert as_lists(again) == as_lists(batches)
    if randomize:  # which changes only the order of the batches
        plain = plan_epoch(
            lengths, batch_size, strategy, **options | {"batch_randomization": False}
        )
        assert sorted(as_lists(plain)) == sorted(as_lists(batches))


@every_strategy
@pytest.mark.parametrize("mode", MODES[1:])
@few
@given(data=data, randomize=st.booleans())
def test_capacity_is_never_exceeded(strategy, mode, randomize, data):
    lengths, batch_size, options = draw_case(data, strategy, mode, randomize)
    capacity = options.get("batch_capacity", batch_size * max(lengths))
    for batch in plan_epoch(lengths, batch_size, strategy, **options):
        assert len(batch) * max(lengths[i] for i in batch) <= capacity


def naive_batches(order, lengths, capacity=math.inf, most=math.inf):
    """Ge et al.'s rule word for word: the largest run of clips that fits, then the next."""
    batches, order = [], list(order)
    while order:
        size = 1
        while (
            size < min(len(order), most)
            and (size + 1) * max(lengths[i] for i in order[: size + 1]) <= capacity
        ):
            size += 1
        batches.append(order[:size])
        order = order[size:]
    return batches


def limits_of(lengths, batch_size, options):
    """What `naive_batches` takes for a batch."""
    if options["dynamic_batch_size"]:
        return {"capacity": options.get("batch_capacity", batch_size * max(lengths))}
    return {"most": batch_size}


@pytest.mark.parametrize("strategy", IN_ONE_ORDER)
@every_mode
@few
@given(data=data)
def test_batches_equal_a_naive_loop(strategy, mode, data):
    lengths, batch_size, options = draw_case(data, strategy, mode)
    batches = as_lists(plan_epoch(lengths, batch_size, strategy, **options))
    limits = limits_of(lengths, batch_size, options)
    assert batches == naive_batches(laid_out(batches), lengths, **limits)


def test_batch_randomization_puts_batches_anywhere():
    places, distances = Counter(), Counter()
    for epoch in range(200):
        batches = plan_epoch(range(1, 25), 3, "sorted", epoch=epoch, batch_randomization=True)
        place = {int(batch[0]) // 3: k for k, batch in enumerate(batches)}
        places[place[7]] += 1
        distances[(place[7] - place[0]) % 8] += 1
    # 25 expected at each of 8 places; 8 or fewer has a chance of 1 in 10,000 under a fair shuffle.
    assert len(places) == 8
    assert min(places.values()) > 8
    assert len(distances) == 7  # and no trace of the order is left: 29 expected of each
    assert min(distances.values()) > 9


@every_strategy
@with_and_without_randomization
def test_plan_follows_from_seed_and_epoch_alone(strategy, randomize):
    plans, options = [], {"seed": 3, "epoch": 4, "batch_randomization": randomize} | SMALL | DBS
    for global_seed in (1, 2):
        np.random.seed(global_seed)  # noqa: NPY002  the global generators are what is tested
        torch.manual_seed(global_seed)
        states = [(str(np.random.get_state()), str(torch.get_rng_state().tolist()))]  # noqa: NPY002
        plans.append(as_lists(plan_epoch(lengths_like_speech(200), 8, strategy, **options)))
        states.append((str(np.random.get_state()), str(torch.get_rng_state().tolist())))  # noqa: NPY002
        assert states[0] == states[1]
    assert plans[0] == plans[1]


@every_strategy
def test_every_seed_and_epoch_has_its_own_plan(strategy):
    """So seed 0 epoch 1 is not seed 1 epoch 0, as it is where epochs are added to the seed."""
    lengths = lengths_like_speech(64)
    lengths[::2] = lengths[1::2]  # equal lengths, or nothing could change in `sorted`
    plans = {
        repr(as_lists(plan_epoch(lengths, 8, strategy, seed=seed, epoch=epoch, **SMALL)))
        for seed in range(6)
        for epoch in range(6)
    }
    assert len(plans) == 36


@every_strategy
def test_clips_of_equal_length_change_places(strategy):
    """With random order, of any length: 50 expected of each of 8 clips at each place."""
    lengths = range(1, 9) if strategy == "random" else [5] * 8
    options = {"num_bins": 3, "bucket_size": 8}
    orders = [laid_out(plan_epoch(lengths, 4, strategy, epoch=e, **options)) for e in range(400)]
    for place in (0, 3, 7):
        counts = Counter(order[place] for order in orders)
        assert len(counts) == 8
        assert min(counts.values()) > 25  # a chance below 1 in 10,000


# --- what defines each strategy, against independent references


FIVE = [30, 10, 20, 50, 40]


@pytest.mark.parametrize(
    ("lengths", "batch_size", "options", "batches"),
    [
        (FIVE, 2, {}, [[1, 2], [0, 4], [3]]),
        (FIVE, 2, DBS, [[1, 2, 0], [4, 3]]),  # 3 x 30 <= 2 x 50 = 100, and 2 x 50
        (FIVE, 2, DBS | {"batch_capacity": 89.5}, [[1, 2], [0, 4], [3]]),  # 3 x 30 > 89.5
        ([7, 1_056_123], 1, DBS | {"batch_capacity": 1_056_123}, [[0], [1]]),
    ],
)
def test_sorted_batches_worked_by_hand(lengths, batch_size, options, batches):
    assert as_lists(plan_epoch(lengths, batch_size, "sorted", **options)) == batches


@pytest.mark.parametrize("strategy", SEMI_SORTED)
@with_and_without_randomization
@few
@given(data=data, mode=st.sampled_from(MODES))
def test_semi_sorted_without_noise_equals_sorted(strategy, randomize, data, mode):
    lengths, batch_size, options = draw_case(data, "sorted", mode, randomize)
    semi = plan_epoch(lengths, batch_size, strategy, local_randomization_factor=0, **options)
    assert as_lists(semi) == as_lists(plan_epoch(lengths, batch_size, "sorted", **options))


# Of two clips moved by independent noise, the distance of their places is distributed as the
# difference of two draws: triangular for uniform noise of range a, with mean a / 3 and integral of
# the squared density 2 / (3 a); Laplace for exponential noise of mean m, with mean m and 1 / (4 m).
# A pair at distance d shares a batch with probability (B - 1) f(d), in this epoch as in the last.
@pytest.mark.parametrize(
    ("strategy", "power", "distance", "squared_density"),
    [
        ("semi_sorted", 1, 1000 / 3, 2 / (3 * 1000)),
        ("semi_sorted_rank", 4, 1000 / 3, 2 / (3 * 1000)),
        ("semi_sorted_exponential", 4, 1000 / 2, 1 / (4 * 1000 / 2)),
    ],
)
def test_noise_follows_its_closed_form(strategy, power, distance, squared_density):
    """In lengths, or in places whatever the lengths."""
    lengths = np.linspace(1, 10, 20_000) ** power
    options = {"local_randomization_factor": 0.05, "batch_randomization": True}  # a = 1000 places
    before, now = (plan_epoch(lengths, 20, strategy, epoch=e, **options) for e in (0, 1))
    places = now.order.reshape(-1, 20)  # batches of clips that are numbered by length
    apart = np.abs(places[:, :, None] - places[:, None]).mean() * 20 / 19
    assert apart == pytest.approx(distance, rel=0.05)
    assert 1 - pair_novelty(now, before) == pytest.approx(19 * squared_density, rel=0.07)


def test_exponential_noise_mixes_short_and_long_alike():
    lengths = np.concatenate([np.linspace(1, 1.01, 8000), np.linspace(10, 10.1, 2000)])
    options = {"dynamic_batch_size": True, "local_randomization_factor": 0.05}
    before, now = (
        plan_epoch(lengths, 16, "semi_sorted_exponential", epoch=e, **options) for e in (0, 1)
    )
    batch_before = batch_of_position(before)[np.argsort(before.order)]
    for low, high, tolerance in ((1000, 7000, 0.1), (8300, 10_000, 0.2)):
        inside = [batch for batch in now if low < batch.min() and batch.max() < high]
        again = [math.comb(n, 2) for batch in inside for n in Counter(batch_before[batch]).values()]
        # Squared density 1 / (4 m) with m = 28,000 frames * 0.05 / 2, times a batch's 160 frames
        pairs = sum(math.comb(len(batch), 2) for batch in inside)
        assert sum(again) / pairs == pytest.approx(160 / (4 * 700), rel=tolerance)


@few
@given(data=data)
def test_buckets_hold_consecutive_ranks_longest_first(data):
    lengths, batch_size, options = draw_case(data, "bucket")
    size = options["bucket_size"]
    order = laid_out(plan_epoch(lengths, batch_size, "bucket", **options))
    ranked = sorted(lengths, reverse=True)
    for start in range(0, len(order), size):
        bucket = [lengths[i] for i in order[start : start + size]]
        assert sorted(bucket, reverse=True) == ranked[start : start + size]


def class_edges(strategy, lengths, num_buckets):
    """Inner edges of integer lengths, exactly: at low + k (high - low) / N, or the k/N quantiles,
    interpolated."""
    ranked, edges = sorted(lengths), []
    for k in range(1, num_buckets):
        if strategy == "bucket_by_width":
            edges.append(ranked[0] + Fraction(k * (ranked[-1] - ranked[0]), num_buckets))
        else:
            below, between = divmod(Fraction(k * (len(ranked) - 1), num_buckets), 1)
            low, high = ranked[below], ranked[min(below + 1, len(ranked) - 1)]
            edges.append(low + between * (high - low))
    return edges


@pytest.mark.parametrize("strategy", BY_CLASS)
@every_mode
@settings(max_examples=60, derandomize=True)
@given(data=data)
def test_batches_never_mix_length_classes(strategy, mode, data):
    integers = st.lists(st.integers(1, 300), min_size=2, max_size=50)
    lengths, batch_size, options = draw_case(data, strategy, mode, lengths=integers)
    # Where no edge falls exactly on a clip, rounding cannot move one to the class beside it.
    divided = len(lengths) - 1 if "quantile" in strategy else max(lengths) - min(lengths)
    options["num_buckets"] = data.draw(
        st.integers(1, 12).filter(lambda count: math.gcd(count, divided) == 1), "num_buckets"
    )
    edges = class_edges(strategy, lengths, options["num_buckets"])
    label = [sum(edge < length for edge in edges) for length in lengths]
    batches = as_lists(plan_epoch(lengths, batch_size, strategy, **options))
    labels = [{label[i] for i in batch} for batch in batches]
    assert all(len(found) == 1 for found in labels)
    runs = [min(found) for found in labels]
    assert runs == sorted(runs, reverse=True)  # longest class first
    for k in set(label):
        of_class = [batch for batch, run in zip(batches, runs, strict=True) if run == k]
        limits = limits_of(lengths, batch_size, options)
        assert of_class == naive_batches(laid_out(of_class), lengths, **limits)


@few
@given(data=data)
def test_alternated_sort_zigzags_from_bin_to_bin(data):
    lengths, batch_size, options = draw_case(data, "alternated_sort")
    n, num_bins = len(lengths), options["num_bins"]
    order = laid_out(plan_epoch(lengths, batch_size, "alternated_sort", **options))
    edges = [math.ceil(Fraction(k * n, num_bins)) for k in range(num_bins + 1)]
    sizes = [b - a for a, b in pairwise(edges)]
    assert max(sizes) - min(sizes) <= 1
    for k, (a, b) in enumerate(pairwise(edges), start=1):
        in_bin = [lengths[i] for i in order[a:b]]
        assert in_bin == sorted(in_bin, reverse=k % 2 == 0)  # odd ascending, even descending


# --- what a plan costs, and how it mixes


def naive_padding(lengths, batches, frames_per_step=1):
    """The definitions of PaddingStats, clip by clip, in their order."""
    rate = padded = real = steps = computed = largest = 0
    for batch in batches:
        x = [lengths[i] for i in batch]
        rate += len(x) * (1 - sum(x) / len(x) / max(x))
        padded += len(x) * max(x)
        real += sum(x)
        made = max(x)  # by the decoder, so many frames at a time as it takes to reach the longest
        if frames_per_step > 1:
            made = next(n for n in count(0, frames_per_step) if n >= max(x))
        steps += made / frames_per_step
        computed += len(x) * made
        largest = max(largest, len(x) * made)
    sizes = [len(batch) for batch in batches]
    rates = rate / sum(sizes), padded / sum(sizes), (padded - real) / real
    decoded = (computed - real) / computed, computed, steps
    return (len(batches), *rates, *decoded, max(sizes), largest)


@every_strategy
@every_mode
@few
@given(data=data, frames_per_step=st.integers(1, 7))
def test_padding_stats_equals_a_naive_loop(strategy, mode, data, frames_per_step):
    in_any_unit = some_lengths if frames_per_step == 1 else whole_lengths
    lengths, batch_size, options = draw_case(data, strategy, mode, lengths=in_any_unit)
    batches = plan_epoch(lengths, batch_size, strategy, **options)
    stats = padding_stats(lengths, batches, frames_per_step)
    naive = naive_padding(lengths, as_lists(batches), frames_per_step)
    assert astuple(stats) == pytest.approx(naive, rel=1e-9, abs=1e-12)
    assert 0 <= stats.zero_padding_rate < 1
    assert 0 <= stats.padded_fraction < 1


@every_strategy
@pytest.mark.parametrize("mode", MODES[:2])
@few
@given(data=data)
def test_novelty_equals_a_loop_over_pairs(strategy, mode, data):
    lengths, batch_size, options = draw_case(data, strategy, mode, randomize=True)
    now = as_lists(plan_epoch(lengths, batch_size, strategy, **options))
    options["epoch"] += 1
    before = as_lists(plan_epoch(lengths, batch_size, strategy, **options))
    together = {frozenset(pair) for batch in before for pair in combinations(batch, 2)}
    new = [frozenset(pair) not in together for batch in now for pair in combinations(batch, 2)]
    assert pair_novelty(now, before) == pytest.approx(np.mean(new) if new else 1.0, abs=1e-12)


# --- refusals


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strategy": "semi-sorted"}, ["strategy='semi-sorted'", "did you mean 'semi_sorted'"]),
        ({"batch_size": 2.5, "seed": -1}, ["batch_size=2.5", "whole number", "seed=-1"]),
        ({"epoch": 0.5}, ["epoch=0.5", "whole number"]),
        ({"strategy": "bucket", "bucket_size": 3}, ["bucket_size=3", "at least 4", "batch_size"]),
        ({"strategy": "alternated_sort", "num_bins": 11}, ["num_bins=11", "1 to 10", "10 clips"]),
        ({"local_randomization_factor": math.nan}, ["local_randomization_factor=nan", "0 <= "]),
        (DBS | {"batch_capacity": 99}, ["batch_capacity=99", "expected 100", "longest clip"]),
        (DBS | {"batch_capacity": math.nan}, ["batch_capacity=nan", "to 1e+15"]),
        ({"batch_capacity": 500}, ["batch_capacity=500", "dynamic_batch_size=True"]),
        ({"lengths": []}, ["lengths", "a number per clip", "(0,)"]),
        ({"lengths": [5, 0, 6]}, ["lengths[1]=0", "positive", "1 of 3"]),
        ({"lengths": [6, math.inf, math.nan]}, ["lengths[1]=inf", "finite", "2 of 3"]),
        ({"batch_size": 10**300}, ["batch_size=1"]),  # before arrays are made of it
    ],
    ids=lambda value: ",".join(map(str, value.values()))[:40] if type(value) is dict else "",
)
def test_bad_input_is_refused_by_name_and_range(changed, said):
    arguments = {"lengths": range(10, 101, 10), "batch_size": 4, "strategy": "semi_sorted"}
    with pytest.raises(BatchingError, match=re.escape(said[0])) as refusal:
        plan_epoch(**(arguments | changed))
    assert [words for words in said if words not in str(refusal.value)] == []


def test_plans_that_are_none_are_refused():
    for batches in ([], [[0], []]):
        with pytest.raises(ValueError, match=r"batches: .*no empty one"):
            padding_stats([1, 2], batches)
    with pytest.raises(BatchingError, match=r"frames_per_step=1\.5: .* at least 1"):
        padding_stats([1, 2], [[0, 1]], 1.5)
    with pytest.raises(ValueError, match="two plans of the same clips"):
        pair_novelty([[0, 1]], [[0], [2]])


# --- the published figures, on LJSpeech's lengths


@pytest.mark.parametrize(
    ("strategy", "options", "zero_padding_percent", "batch_length", "num_batches"),
    [
        # Ge et al., Tables 1 and 2. With DBS the number of batches is the one that follows from
        # the rule: the published 606, 449 and 419 exceed the stated capacity.
        ("random", {}, 32.02, 773.82, 655),
        ("sorted", BR, 0.16, 526.43, 655),
        ("semi_sorted", BR, 6.22, 556.22, 655),
        ("bucket", BR, 6.10, 553.40, 655),
        ("alternated_sort", BR, 6.08, 552.48, 655),
        ("sorted", DBS, 0.47, 527.15, 437),
        ("semi_sorted", DBS | BR, 6.62, 557.68, 463),
    ],
)
def test_published_padding_and_batch_lengths_are_met(
    strategy, options, zero_padding_percent, batch_length, num_batches
):
    found = []
    for seed in range(5):
        frames = LJSPEECH[np.random.default_rng(100 + seed).permutation(13_100)[:10_480]]
        stats = padding_stats(frames, plan_epoch(frames, 16, strategy, seed=seed, **options))
        rate = 100 * stats.zero_padding_rate
        found.append((rate, stats.average_batch_length, stats.num_batches))
    off = np.abs(np.mean(found, axis=0) - (zero_padding_percent, batch_length, num_batches))
    assert (off <= (0.15, 1.5, 1.5)).all(), off
