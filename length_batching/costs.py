"""What the batches of a plan cost in padding, and how well they mix clips."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import Lengths, check_count
from length_batching.plan import BatchCosts, EpochPlan

Batches = Sequence[Sequence[int] | np.ndarray]  # indices of the clips in each


def as_plan(batches: Batches) -> EpochPlan:
    """The plan of these batches; ValueError if there is no batch, or an empty one."""
    if isinstance(batches, EpochPlan):
        return batches
    sizes = np.array([len(batch) for batch in batches])
    if sizes.size == 0 or sizes.min() == 0:
        raise ValueError("batches: expected at least one batch, and no empty one")
    order = np.concatenate([np.asarray(batch) for batch in batches])
    return EpochPlan(order, np.cumsum(sizes) - sizes)


def batch_of_place(plan: EpochPlan) -> np.ndarray:
    """[clips] the number of the batch at every place of the plan's order."""
    return np.repeat(np.arange(len(plan)), plan.sizes)


# ---------------------------------------------------------------------------- what a plan costs


@dataclass(frozen=True)
class PaddingStats:
    """What an epoch's batches cost in padding. Rates are fractions, not per cent.

    B_j, L_j: size and longest length of batch j; x: the clips' lengths; r: frames_per_step;
    P_j = ceil(L_j / r) r: the length that batch j is padded to, L_j itself where r = 1.
    """

    num_batches: int
    zero_padding_rate: float  # Ge21 eq. 1, mean over batches weighted by B_j
    average_batch_length: float  # sum(B_j L_j) / sum(B_j), Ge21
    padded_to_original_rate: float  # (sum(B_j L_j) - sum x) / sum x, Gonzalez23
    padded_fraction: float  # padding over everything computed, 1 - sum x / sum(B_j P_j)
    padded_frames: float  # sum(B_j P_j): everything computed
    decoder_steps: float  # sum(P_j / r): steps that a recurrent decoder makes one by one
    largest_batch_size: int  # max B_j
    largest_batch_frames: float  # max B_j P_j, what memory must hold


def padding_stats(
    lengths: Lengths, batches: Batches, frames_per_step: int = 1, **options: Any
) -> PaddingStats:
    """Padding of `batches`; ValueError if there is no batch, or an empty one.

    Args:
        lengths: one positive length per clip; frames, where frames_per_step is above 1.
        batches: arrays of indices into `lengths`; an index may occur several times.
        frames_per_step: frames that a decoder makes at each step, so batches are padded to
            multiples of it, which the papers' three rates and lengths leave out.
        options: `cost` of `plan_epoch`, where a clip has several lengths; what it costs is then its
            length.
    """
    check_count("frames_per_step", frames_per_step, 1)
    plan, costs = as_plan(batches), BatchCosts(lengths, options)
    sizes, longest = plan.sizes, costs.longest(plan)
    real = np.add.reduceat(costs.own[plan.order], plan.starts)
    padded = longest
    if frames_per_step > 1:
        in_steps = np.ceil(costs.lengths / frames_per_step) * frames_per_step
        padded = BatchCosts(in_steps, options).longest(plan)
    steps = padded / frames_per_step
    clips, real_total = int(sizes.sum()), float(real.sum())
    # At least the real frames: rounding must not make a rate negative.
    to_longest, computed = (max(float(sizes @ each), real_total) for each in (longest, padded))
    return PaddingStats(
        num_batches=len(sizes),
        zero_padding_rate=max(0.0, 1 - float((real / longest).sum()) / clips),
        average_batch_length=to_longest / clips,
        padded_to_original_rate=to_longest / real_total - 1,
        padded_fraction=1 - real_total / computed,
        padded_frames=computed,
        decoder_steps=float(steps.sum()),
        largest_batch_size=int(sizes.max()),
        largest_batch_frames=float((sizes * padded).max()),
    )


# ---------------------------------------------------------------------------- how it mixes clips


def pair_novelty(batches: Batches, before: Batches) -> float:
    """Of the pairs of clips that share a batch, the share that shared none `before`, in another
    plan of the same clips (else ValueError). 1 where no batch holds two clips."""
    now, earlier = as_plan(batches), as_plan(before)
    if not np.array_equal(np.bincount(now.order), np.bincount(earlier.order)):
        raise ValueError("batches, before: expected two plans of the same clips")
    batch_before = np.empty(now.order.max() + 1, dtype=np.int64)
    batch_before[earlier.order] = batch_of_place(earlier)
    # Clips that share both batches have the same key.
    keys = np.sort(batch_of_place(now) * len(earlier) + batch_before[now.order])
    together = np.diff(np.flatnonzero(np.diff(keys, prepend=-1)), append=len(keys))
    pairs = (now.sizes * (now.sizes - 1) // 2).sum()
    return 1 - float((together * (together - 1) // 2).sum() / pairs) if pairs else 1.0
