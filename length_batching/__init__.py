"""Make batches of clips of similar length for PyTorch: less padding, exact resume, several GPUs.

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for batch in loader:
            ...

Every epoch is planned from the clips' lengths alone. Plans need numpy, and the datasets need torch.
`python -m length_batching lengths.csv` prints what each strategy costs. The modules, in the order
in which you can read them:

    strategies.py  decides which clips are neighbors: a function for each strategy
    options.py     the options of `plan_epoch`, as a type, and their checks
    plan.py        cuts the strategy's order into an epoch's batches: `plan_epoch`
    costs.py       measures padding, and how well batches mix the clips
    updates.py groups batches into optimizer steps that several processes share
    sampler.py `LengthBatchSampler`, for your own training loops
    batches.py     `LengthBatches`, a dataset whose items are batches, for training frameworks
    segments.py    groups of clips that stay together, and segments of long clips
    stream.py      `LengthBatchStream`, for items whose lengths are not known beforehand
    search.py      finds the options that need the fewest steps and still mix the clips
    report.py      prints the costs of all strategies and the result of the search
    checks.py      checks of lengths and counts, and `BatchingError`
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
# These names are in modules that import torch. They are imported on first use, so that plans work
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
    return getattr(importlib.import_module(f"length_batching.{NEED_TORCH[name]}"), name)
