"""Checks of lengths and counts, and the error that names what is wrong with them."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Numbers = Sequence[float] | np.ndarray  # one of each clip
Lengths = Numbers | Sequence[Sequence[float]]  # or of each kind
MAX_COUNT = 10**15  # of any count or length: sums of them stay exact in float64


class BatchingError(ValueError):
    """Lengths or options that cannot be batched, or a saved position inside another plan."""


# Arguments of other samplers and loaders, and what replaces them here.
ELSEWHERE = {
    "drop_last": "leave it out: every clip is in a batch, and the last batch may be smaller",
    "shuffle": 'strategy="random" shuffles clips, batch_randomization=True finished batches',
    "generator": "seed=... decides everything random, together with set_epoch",
    "max_batch_size": "max_clips=..., or batch_size=... for fixed sizes",
    "required_batch_size_multiple": "size_multiple=...",
    "bucket_boundaries": 'strategy="bucket_by_width" or "bucket_by_quantile", num_buckets=...',
    "rank": "InOrder(batches, rank) takes it",
    "num_replicas": "world_size=...",
    "epoch": "call set_epoch before every pass",
}
ELSEWHERE |= dict.fromkeys(
    ("max_tokens", "max_frames", "max_samples", "max_duration", "frames_per_batch"),
    "dynamic_batch_size=True, batch_capacity=..., which counts padding too",
)
ELSEWHERE |= dict.fromkeys(("max_sentences", "max_examples"), ELSEWHERE["max_batch_size"])
ELSEWHERE |= dict.fromkeys(
    ("sampler", "batch_sampler", "dataset", "data_source"),
    "lengths, one of each clip, are all that is needed",
)
ELSEWHERE |= dict.fromkeys(("key", "sort_key", "length_fn"), ELSEWHERE["sampler"])
ELSEWHERE |= dict.fromkeys(
    ("batch_first", "padding_value", "collate_fn", "num_workers", "pin_memory"),
    "give it to the DataLoader or to its collate_fn",
)


def check_lengths(lengths: Lengths, name: str = "lengths", shape: Any = None) -> np.ndarray:
    """`lengths` as a float64 array, [clips] or [clips, kinds], or of the shape given;
    BatchingError if one cannot be a length. With a shape or several kinds, some may be 0."""
    x = np.asarray(lengths)
    right = x.shape == shape if shape else x.ndim in (1, 2) and x.size > 0
    if not right or x.dtype.kind not in "iuf":
        expected = f"numbers, shape {shape}" if shape else "a number per clip"
        raise BatchingError(f"{name}: expected {expected}, got {x.dtype}, shape {x.shape}")
    x, zero_allowed = x.astype(np.float64), bool(shape) or x.size > len(x)
    least = 0 if zero_allowed else np.nextafter(0, 1)
    if not (x.min() >= least and x.max() <= MAX_COUNT):
        bad = np.argwhere(~((x >= least) & (x <= MAX_COUNT)))
        place, sign = bad[0].tolist(), "non-negative" if zero_allowed else "positive"
        allowed = f"a {sign}, finite number of at most {MAX_COUNT:.0e}"
        count = f"{len(bad)} of {x.size} are not"
        raise BatchingError(f"{name}{place}={x[tuple(place)]:g}: expected {allowed} ({count})")
    return x


def check_count(name: str, value: Any, low: int = 1, high: int = MAX_COUNT) -> None:
    for problem in count_problems(name, value, low, high):
        raise BatchingError(problem)


def count_problems(name: str, value: Any, low: int = 1, high: int = MAX_COUNT) -> Iterator[str]:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (whole and low <= value <= high):
        limits = f"at least {low}" if high == MAX_COUNT else f"{low} to {high}"
        yield f"{name}={value}: expected a whole number, {limits}"


def check_ranks(
    rank: int | None, world_size: int | None, batches_per_update: int | None
) -> tuple[int, int, int]:
    """The rank, the world size and the batches an update with their defaults: one process, which
    trains alone, and a batch for each process."""
    if rank is not None or world_size not in (None, 1):
        check_count("world_size", world_size)
        check_count("rank", rank, 0, (world_size or 1) - 1)
    count = world_size or 1
    size = count if batches_per_update is None else batches_per_update
    check_count("batches_per_update", size)
    if size % count:
        expected = f"expected a multiple of {count}, the number of processes"
        raise BatchingError(f"batches_per_update={size}: {expected}")
    return rank or 0, count, size


def refuse_missing_ranks() -> None:
    """Raise BatchingError where several processes train: each would train all batches."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        count = distributed.get_world_size()
        if count > 1:
            raise BatchingError(
                f"rank, world_size: not given, and torch.distributed has {count} processes; give "
                "those that share the batches, or world_size=1 if each is to train all of them"
            )
