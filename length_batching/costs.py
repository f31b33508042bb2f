"""Measure how much padding a plan's batches need and how well they mix the clips.

stats = padding_stats(lengths, plan_epoch(lengths, 16, "semi_sorted"))
print(stats.zero_padding_rate, stats.decoder_steps)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from length_batching.checks import Lengths, check_count
from length_batching.plan import BatchCosts, EpochPlan

Batches = Sequence[Sequence[int] | np.ndarray]  # the clip indices of each batch


def as_plan(batches: Batches) -> EpochPlan:
    """Return the batches as a plan, or raise ValueError if a batch or the whole list is empty."""
    if isinstance(batches, EpochPlan):
        return batches
    sizes = np.array([len(batch) for batch in batches])
    if sizes.size == 0:
        raise ValueError("batches: expected at least one batch")
    if sizes.min() == 0:
        raise ValueError(f"batches[{sizes.argmin()}]: this batch is empty")
    order = np.concatenate([np.asarray(batch) for batch in batches])
    return EpochPlan(order, np.cumsum(sizes) - sizes)


def batch_of_position(plan: EpochPlan) -> np.ndarray:
    """Return [clips] the index of each clip's batch. The clips are in the order of the plan."""
    return np.repeat(np.arange(len(plan)), plan.sizes)


# ---------------------------------------------------------------------------- padding


@dataclass(frozen=True)
class PaddingStats:
    """The amount of padding in an epoch's batches. Rates are fractions, not percentages.

    The formulas use these variables. B_j: number of clips in batch j; L_j: length of the longest
    clip in batch j; x: lengths of the clips; r: `frames_per_step`; P_j = ceil(L_j / r) * r: length
    to which batch j is padded.

    Attributes:
        num_batches: number of batches.
        zero_padding_rate: mean of 1 - x / L_j over all clips (Ge et al. 2021, eq. 1).
        average_batch_length: sum(B_j L_j) / sum(B_j), as in Ge et al. 2021.
        padded_to_original_rate: (sum(B_j L_j) - sum x) / sum x, as in Gonzalez et al. 2023.
        padded_fraction: 1 - sum x / sum(B_j P_j), padding frames as a fraction of all frames.
        padded_frames: sum(B_j P_j), the number of frames including padding.
        decoder_steps: sum(P_j / r), the number of sequential steps of a recurrent model.
        largest_batch_size: max B_j, the largest number of clips in a batch.
        largest_batch_frames: max B_j P_j, the size of the batch that needs the most memory.
        step_cost: predicted time of an epoch, sum(P_j / r (row cost of B_j clips + clip_cost B_j)).
            None: the row costs are unknown.
    """

    num_batches: int
    zero_padding_rate: float
    average_batch_length: float
    padded_to_original_rate: float
    padded_fraction: float
    padded_frames: float
    decoder_steps: float
    largest_batch_size: int
    largest_batch_frames: float
    step_cost: float | None


def padding_stats(
    lengths: Lengths,
    batches: Batches,
    frames_per_step: int = 1,
    *,
    cost: Callable[..., float] | None = None,
    row_costs: Mapping[int, float] | None = None,
    clip_cost: float = 0.0,
) -> PaddingStats:
    """Measure the padding of an epoch's batches.

        stats = padding_stats([3, 5, 8], [[0, 1], [2]])
        stats.padded_frames  # 2 * 5 + 8 = 18

    Args:
        lengths: [clips] positive length of each clip, such as its number of frames.
        batches: the clip indices of each batch. A clip may be in several batches.
        frames_per_step: number of frames per decoder step. Batches are padded to multiples of this
            number. The rates and lengths that the papers define do not include the padding to
            multiples of `frames_per_step`.
        cost: a function that returns the cost per clip of a batch (see `plan_epoch`). If clips have
            several kinds of length, `cost` is required. With `cost`, the cost of each clip is used
            instead of its lengths.
        row_costs: cost of one step for each batch size (see `plan_epoch`). With row costs,
            `step_cost` is computed in the unit of the row costs.
        clip_cost: cost that each clip adds to every step of its batch, in the unit of `row_costs`.

    Raises:
        ValueError: if there are no batches, or if a batch is empty.
    """
    check_count("frames_per_step", frames_per_step)
    plan = as_plan(batches)
    costs = BatchCosts(lengths, cost=cost, row_costs=row_costs)
    sizes = plan.sizes
    longest = costs.longest(plan)
    real = np.add.reduceat(costs.item_costs[plan.order], plan.starts)
    padded = longest
    if frames_per_step > 1:
        rounded_up = np.ceil(costs.lengths / frames_per_step) * frames_per_step
        padded = BatchCosts(rounded_up, cost=cost).longest(plan)
    step_cost = None
    if row_costs:
        cost_of_size = [costs.row_cost(size) + clip_cost * size for size in sizes.tolist()]
        step_cost = float(padded / frames_per_step @ np.array(cost_of_size))
    num_clips = int(sizes.sum())
    real_total = float(real.sum())
    # Without padding, all totals equal `real_total`. Rounding errors must not make a total smaller
    # than `real_total`, because a rate would then be negative.
    longest_total = max(float(sizes @ longest), real_total)
    padded_total = max(float(sizes @ padded), real_total)
    return PaddingStats(
        num_batches=len(sizes),
        zero_padding_rate=max(0.0, 1 - float((real / longest).sum()) / num_clips),
        average_batch_length=longest_total / num_clips,
        padded_to_original_rate=longest_total / real_total - 1,
        padded_fraction=1 - real_total / padded_total,
        padded_frames=padded_total,
        decoder_steps=float((padded / frames_per_step).sum()),
        largest_batch_size=int(sizes.max()),
        largest_batch_frames=float((sizes * padded).max()),
        step_cost=step_cost,
    )


# ---------------------------------------------------------------------------- mixing


def pair_novelty(batches: Batches, before: Batches) -> float:
    """Return the pair novelty of an epoch, compared with the previous epoch.

        now, before = (plan_epoch(lengths, 16, "semi_sorted", epoch=e) for e in (1, 0))
        pair_novelty(now, before)  # 0.97

    Consider all pairs of clips that share a batch in this epoch. Pair novelty is the fraction of
    these pairs that did not share a batch in the previous epoch. Pair novelty is 1 if every batch
    contains only one clip.

    Raises:
        ValueError: if the two epochs contain different clips.
    """
    now = as_plan(batches)
    earlier = as_plan(before)
    if not np.array_equal(np.bincount(now.order), np.bincount(earlier.order)):
        raise ValueError("`batches` and `before` contain different clips")
    batch_before = np.empty(now.order.max() + 1, dtype=np.int64)
    batch_before[earlier.order] = batch_of_position(earlier)
    # Two clips have the same key if, and only if, they share a batch in both epochs.
    keys = np.sort(batch_of_position(now) * len(earlier) + batch_before[now.order])
    together = np.diff(np.flatnonzero(np.diff(keys, prepend=-1)), append=len(keys))
    old_pairs = (together * (together - 1) // 2).sum()
    all_pairs = (now.sizes * (now.sizes - 1) // 2).sum()
    return 1 - float(old_pairs / all_pairs) if all_pairs else 1.0
