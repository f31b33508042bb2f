"""Test that plans equal those of release 0.4.0 bit by bit, so old runs can resume."""

import hashlib
import itertools

import numpy as np
import pytest

from length_batching import (
    LengthBatchSampler,
    LengthBatchStream,
    groups_of,
    plan_epoch,
    segments_of,
)

CLIPS = 400
LENGTHS = np.random.default_rng(7).integers(20, 900, CLIPS)
KINDS = np.stack([LENGTHS, LENGTHS % 13], axis=1)
SMALL = {"bucket_size": 64, "num_bins": 9, "num_buckets": 5}
DYNAMIC = {"dynamic_batch_size": True}
OPTIONS = [
    {},
    {"local_randomization_factor": 0},
    {"local_randomization_factor": 0.4, "num_bins": 3, "bucket_size": 30, "num_buckets": 2},
    {"max_clips": 5, "size_multiple": 2},
    {"draw": 120, "draw_weights": 1 / np.arange(1, CLIPS + 1)},
    {"too_long": "leave_out", "batch_capacity": 700.0},
    DYNAMIC,
    DYNAMIC | {"batch_capacity": 5000.0, "size_multiple": 3, "max_clips": 20},
    DYNAMIC | {"too_long": "alone", "batch_capacity": 700.0},
    DYNAMIC | {"group_sizes": np.arange(CLIPS) % 3 + 1},
]


def audio_and_text(audio, text):
    return audio + 0.01 * audio**2 + audio * text


def digest(arrays):
    """Return a hash of integer arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.asarray(array).astype("<i8").tobytes())
    return whole.hexdigest()[:12]


def plans_of(strategy):
    for options, randomize, seed in itertools.product(OPTIONS, (False, True), (0, 5)):
        more = SMALL | options | {"batch_randomization": randomize, "seed": seed}
        plan = plan_epoch(LENGTHS, 8, strategy, epoch=3, **more)
        yield from (plan.order, plan.starts)
    plan = plan_epoch(KINDS, 8, strategy, cost=audio_and_text, **SMALL, **DYNAMIC)
    yield from (plan.order, plan.starts)


def samplers_of(strategy):
    """Yield the batches of several epochs, with and without a constant number of batches."""
    for size, count, last, random_epochs in itertools.product(
        (1, 4), (None, "constant"), (False, True), (0, 1)
    ):
        sampler = LengthBatchSampler(
            LENGTHS,
            8,
            strategy,
            batches_per_update=size,
            batches_per_epoch=count,
            short_last_update=last,
            random_epochs=random_epochs,
            seed=3,
            batch_randomization=True,
            **SMALL,
            **DYNAMIC,
        )
        for epoch in (0, 2):
            sampler.set_epoch(epoch)
            yield from (sampler.plan.order, sampler.plan.starts, sampler.update_starts)
            yield [sampler.state_at(0)["plan_checksum"]]


def stream_of(strategy):
    """Return the batches of a LengthBatchStream."""
    more = {"bucket_size": 16, "num_bins": 4, "num_buckets": 3}
    stream = LengthBatchStream(
        lambda skip: iter(range(skip, CLIPS)),
        lambda clip: LENGTHS[clip],
        8,
        strategy,
        window=100,
        batch_capacity=8000.0,
        **more,
        **DYNAMIC,
    )
    stream.set_epoch(3)
    return list(stream)


PINNED = {  # for each strategy: hashes of its plans, sampler batches and stream batches
    "random": ["86471585c27f", "3774704e59b3", "bd07e86fadf4"],
    "sorted": ["26dd2b67308c", "a52da4582dc5", "825b2d0564c6"],
    "semi_sorted": ["ae7319a46317", "d0410f5ebba5", "5bb518f54b71"],
    "semi_sorted_rank": ["596e71bc4a3b", "352728130607", "3b1deb4b3ca6"],
    "semi_sorted_exponential": ["fde5da5912f1", "014b310345d2", "cb112db71232"],
    "bucket": ["249e5efe58f4", "5884601fb1c0", "f5f1b6c814e0"],
    "bucket_by_width": ["faee9d2175ef", "54ece0c7d906", "3350a828f9a2"],
    "bucket_by_quantile": ["c6c1852fe89e", "97fba32af75c", "3b9e4038a179"],
    "alternated_sort": ["20d81f7e4eab", "2094ae4b8f1e", "d2d67747a4ff"],
}


@pytest.mark.parametrize("strategy", PINNED)
def test_plans_equal_the_plans_of_release_0_4_0(strategy):
    digests = [digest(plans_of(strategy)), digest(samplers_of(strategy))]
    assert [*digests, digest(stream_of(strategy))] == PINNED[strategy]


def test_groups_and_segments_of_clips_equal_the_results_of_release_0_4_0():
    groups = groups_of(LENGTHS % 13)
    segments = segments_of(LENGTHS, 300, overlap=20, shortest=50)
    assert digest([groups.order, groups.starts]) == "c783db30e6e5"
    assert digest([segments.clips, segments.starts, segments.lengths]) == "6cef0cbca211"
