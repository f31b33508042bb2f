"""Batches of similar length for PyTorch, planned every epoch from nothing but lengths.

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for batch in loader:
            ...

docs/batching.md is the manual; `python -m length_batching lengths.csv` prints what each strategy
costs. Plans need numpy alone. torch is imported where datasets of torch are asked for.

    strategies.py  which clips are next to each other: a function for each strategy
    plan.py        an epoch's batches: `plan_epoch`
    updates.py     the batches of an epoch in updates that several processes share
    sampler.py     `LengthBatchSampler`, for loops of one's own
    batches.py     `LengthBatches`, a dataset whose items are batches, for training frameworks
    segments.py    groups of clips that stay together, segments of long clips
    stream.py      `LengthBatchStream`: batches of items whose lengths are not known beforehand
    search.py      the options that need the fewest steps and still mix clips
    costs.py       what batches cost in padding, how they mix clips
    checks.py      lengths and counts that cannot be such are refused
"""

import importlib
from typing import TYPE_CHECKING, Any

from length_batching.checks import BatchingError
from length_batching.costs import PaddingStats, padding_stats, pair_novelty
from length_batching.plan import BatchCosts, EpochPlan, check_options, plan_epoch
from length_batching.sampler import LengthBatchSampler
from length_batching.strategies import (
    PARAMETERS,
    REGISTRY,
    STRATEGIES,
    Order,
    Parameter,
    ShuffledClips,
    Strategy,
    batching_name,
)

if TYPE_CHECKING:
    from length_batching.batches import InOrder, LengthBatches
    from length_batching.segments import SegmentDataset, Segments, groups_of, segments_of
    from length_batching.stream import LengthBatchStream

__all__ = [
    "PARAMETERS",
    "REGISTRY",
    "STRATEGIES",
    "BatchCosts",
    "BatchingError",
    "EpochPlan",
    "InOrder",
    "LengthBatchSampler",
    "LengthBatchStream",
    "LengthBatches",
    "Order",
    "PaddingStats",
    "Parameter",
    "SegmentDataset",
    "Segments",
    "ShuffledClips",
    "Strategy",
    "batching_name",
    "check_options",
    "groups_of",
    "padding_stats",
    "pair_novelty",
    "plan_epoch",
    "segments_of",
]
# The files that import torch, and what is in them
WITH_TORCH = {
    "batches": ("InOrder", "LengthBatches"),
    "segments": ("SegmentDataset", "Segments", "groups_of", "segments_of"),
    "stream": ("LengthBatchStream",),
}


def __getattr__(name: str) -> Any:
    for file, names in WITH_TORCH.items():
        if name in names:
            return getattr(importlib.import_module(f"length_batching.{file}"), name)
    raise AttributeError(f"module 'length_batching' has no attribute {name!r}")
