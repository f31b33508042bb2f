"""Group clips of similar length into batches, to reduce padding in PyTorch training.

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for batch in loader:
            ...

Planning needs only the lengths of the clips and numpy. The dataset classes also need torch.
`python -m length_batching lengths.csv` prints the cost of each strategy. The modules, in reading
order:

    strategies.py  one function per batching strategy, which sorts the clips of an epoch
    options.py     the options of `plan_epoch` as a type, and their validation
    plan.py        `plan_epoch`, which cuts the strategy's order into batches
    costs.py       measures padding and how well the batches mix the clips
    updates.py     groups batches into optimizer steps that several processes share
    sampler.py     `LengthBatchSampler`, for your own training loops
    batches.py     `LengthBatches`, a dataset whose items are batches, for training frameworks
    segments.py    groups of clips that stay together, and segments of long clips
    stream.py      `LengthBatchStream`, for items whose lengths are unknown in advance
    search.py      finds the options with the fewest decoder steps that still mix the clips well
    report.py      formats the costs of all strategies and the result of the search
    checks.py      `BatchingError`, and validation of lengths and counts
"""

import importlib
from typing import TYPE_CHECKING, Any

from length_batching.checks import BatchingError
from length_batching.costs import PaddingStats, padding_stats, pair_novelty
from length_batching.options import PlanOptions, check_options
from length_batching.plan import EpochPlan, plan_epoch
from length_batching.sampler import LengthBatchSampler
from length_batching.strategies import (
    PARAMETERS,
    REGISTRY,
    STRATEGIES,
    Parameter,
    ShuffledClips,
    Strategy,
    StrategyName,
    batching_name,
    check_strategy,
    register,
)

if TYPE_CHECKING:
    from length_batching.batches import LengthBatches, RankSampler
    from length_batching.segments import SegmentDataset, Segments, groups_of, segments_of
    from length_batching.stream import LengthBatchStream

__version__ = "0.5.0.dev0"

__all__ = [
    "PARAMETERS",
    "REGISTRY",
    "STRATEGIES",
    "BatchingError",
    "EpochPlan",
    "LengthBatchSampler",
    "LengthBatchStream",
    "LengthBatches",
    "PaddingStats",
    "Parameter",
    "PlanOptions",
    "RankSampler",
    "SegmentDataset",
    "Segments",
    "ShuffledClips",
    "Strategy",
    "StrategyName",
    "batching_name",
    "check_options",
    "check_strategy",
    "groups_of",
    "padding_stats",
    "pair_novelty",
    "plan_epoch",
    "register",
    "segments_of",
]
# Modules that import torch. Each of these modules is imported on first use, so that planning works
# without torch.
NEED_TORCH = {
    "LengthBatches": "batches",
    "RankSampler": "batches",
    "SegmentDataset": "segments",
    "Segments": "segments",
    "groups_of": "segments",
    "segments_of": "segments",
    "LengthBatchStream": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in NEED_TORCH:
        raise AttributeError(f"module 'length_batching' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"length_batching.{NEED_TORCH[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        needed = f"{name} needs PyTorch. Install length-batching[torch]."
        raise ModuleNotFoundError(needed, name="torch") from None
    return getattr(module, name)
