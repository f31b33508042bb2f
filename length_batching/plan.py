"""Plan the batches of one epoch from the clips' lengths. The main function is `plan_epoch`.

    batches = plan_epoch(lengths, 16, "semi_sorted", dynamic_batch_size=True, epoch=3)
    for batch in batches:  # an array of clip indices
        ...

The strategies in strategies.py sort the clips. `plan_epoch` cuts the sorted clips into batches of a
fixed size or of dynamic sizes (DBS). With `batch_randomization`, `plan_epoch` then shuffles the
batches (BR). strategies.py cites the papers.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from length_batching.checks import (
    MAX_COUNT,
    BatchingError,
    Lengths,
    Numbers,
    check_count,
    check_lengths,
    check_numbers,
    check_range,
)
from length_batching.options import TooLong, check_options
from length_batching.strategies import (
    BUCKET_SIZE,
    FACTOR,
    NUM_BINS,
    NUM_BUCKETS,
    REGISTRY,
    ShuffledClips,
    StrategyName,
)


class EpochPlan(Sequence[np.ndarray]):
    """The batches of an epoch, as a sequence of arrays of clip indices.

        plan[0]     # the clips of the first batch
        len(plan)   # the number of batches

    Attributes:
        order: [clips] the clip indices of all batches, one batch after another.
        starts: [batches] the position in `order` where each batch begins.
        sizes: [batches] the number of clips in each batch.
    """

    def __init__(self, order: np.ndarray, starts: np.ndarray):
        self.order = order
        self.starts = starts
        self.sizes = np.diff(starts, append=len(order))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self.starts[index]
        return self.order[start : start + self.sizes[index]]

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """Return the largest length in each batch, with shape [batches]. If clips have several kinds
        of length, the shape is [batches, kinds]."""
        return np.maximum.reduceat(lengths[self.order], self.starts)

    def select(self, numbers: np.ndarray) -> "EpochPlan":
        """Return a plan that contains only the batches with the indices `numbers`, in the order of
        `numbers`."""
        sizes = self.sizes[numbers]
        starts = np.cumsum(sizes) - sizes
        positions = np.arange(sizes.sum()) + np.repeat(self.starts[numbers] - starts, sizes)
        return EpochPlan(self.order[positions], starts)


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    strategy: StrategyName,
    *,
    seed: int = 0,
    epoch: int = 0,
    local_randomization_factor: float = FACTOR.default,
    bucket_size: int = int(BUCKET_SIZE.default),
    num_bins: int = int(NUM_BINS.default),
    num_buckets: int = int(NUM_BUCKETS.default),
    dynamic_batch_size: bool = False,
    batch_capacity: float | None = None,
    batch_randomization: bool = False,
    max_clips: int | None = None,
    too_long: TooLong = "reject",
    size_multiple: int = 1,
    row_costs: Mapping[int, float] | None = None,
    cost: Callable[..., float] | None = None,
    group_sizes: Numbers | None = None,
    draw: int | None = None,
    draw_weights: Numbers | None = None,
) -> EpochPlan:
    """Plan the batches of one epoch. By default, every clip is in exactly one batch.

        plan = plan_epoch(lengths, 16, "semi_sorted", dynamic_batch_size=True, epoch=3)

    An epoch omits or repeats clips only with `too_long="leave_out"`, `draw` or `draw_weights`.
    Parameters that the strategy does not use, such as `num_bins` with "semi_sorted", are ignored,
    so you can change the strategy without changing other arguments.

    Args:
        lengths: [clips] positive length of each clip in any unit, such as frames. With `cost`, a
            clip may have several kinds of length, such as audio and text; the shape is then [clips,
            kinds].
        batch_size: number of clips per batch. The last batch of an epoch may contain fewer clips.
        strategy: the method that decides which clips share a batch. REGISTRY describes all
            strategies.
        seed, epoch: numbers that seed the random number generator. The same seed and epoch produce
            the same plan.
        local_randomization_factor: amount of noise in the semi-sorted strategies, as a fraction of
            the range of lengths or ranks (Ge et al. 2021, eq. 2-3). 0: no noise. With values above
            1, the order is nearly random.
        bucket_size: number of clips per bucket, for `bucket`.
        num_bins: number of bins, for `alternated_sort`.
        num_buckets: number of length classes, for `bucket_by_width` and `bucket_by_quantile`.
        dynamic_batch_size: put as many consecutive clips into each batch as fit into
            `batch_capacity` after padding (DBS, Ge et al. 2021).
        batch_capacity: maximum size of a padded batch (number of clips times length of the longest
            clip). The default is `batch_size` times the length of the longest clip in the corpus.
        batch_randomization: shuffle the order of the finished batches (BR, Ge et al. 2021).
        max_clips: maximum number of clips in a dynamic batch.
        too_long: how to treat clips that are longer than `batch_capacity`. "reject" raises
            BatchingError. "alone" puts each long clip into its own batch. "leave_out" removes long
            clips from the epoch, even with fixed batch sizes. To cut long clips, see `segments_of`.
        size_multiple: make the number of clips in each batch a multiple of `size_multiple`. Batches
            with fewer clips than `size_multiple` are also allowed.
        row_costs: cost of one step (a frame or a token) for each batch size, such as {16: 33, 32:
            48, 48: 57}. GPU kernels compute full tiles, so a step with 17 clips costs as much as a
            step with 32 clips. When the next clip does not fit, the batch either ends before this
            clip or is shortened to a size in `row_costs`. The batch gets the size with the lowest
            cost per clip. Row costs never make a batch larger.
        cost: a function `cost(*largest)` that receives the largest length of each kind in a batch,
            and returns the cost per clip of this batch. With `cost`, all batch sizes and limits are
            computed from this cost instead of from a length. The cost must not decrease when a
            length increases.
        group_sizes: [items] number of clips in each item, if the items are groups of clips that
            stay together. With `group_sizes`, `lengths` contains the length of each group's longest
            clip. `batch_size`, `batch_capacity` and `max_clips` count clips, not groups.
        draw: number of clips to draw per epoch. Default: the number of clips.
        draw_weights: [clips] weight of each clip. On average, the number of times that a clip is
            drawn is proportional to its weight.

    Raises:
        BatchingError: if an option or a length is invalid. The error message contains the option,
            its value and the allowed values.
    """
    options = dict(locals())
    del options["lengths"], options["epoch"]
    check_count("epoch", epoch, 0)
    costs, weights = check_clips(lengths, options)
    rng = np.random.default_rng(seed_of_epoch(seed, epoch))
    drawn = np.arange(len(costs.item_costs))
    if weights is not None:
        drawn = _draw_clips(weights, draw, rng)

    # Shuffle the clips, so that clips of equal length have a different order in each epoch.
    shuffled_order = rng.permutation(len(drawn))
    parameter = REGISTRY[strategy].parameter
    value = options[parameter.name] if parameter else 0
    without_noise = parameter is FACTOR and value == 0
    order_clips = REGISTRY["sorted" if without_noise else strategy].order
    order, class_starts = order_clips(
        ShuffledClips(costs.item_costs[drawn], shuffled_order, value, dynamic_batch_size, rng)
    )
    order = drawn[order]

    most_clips = max_clips or MAX_COUNT
    capacity = batch_capacity or batch_size * float(costs.item_costs.max())
    if not dynamic_batch_size:
        most_clips = min(most_clips, batch_size)
        capacity = math.inf
    starts = costs.starts(order, most_clips, capacity, class_starts)
    plan = EpochPlan(order, np.array(starts))
    if batch_randomization:
        plan = plan.select(rng.permutation(len(plan)))
    return plan


def seed_of_epoch(seed: int, epoch: int) -> np.random.SeedSequence:
    """Combine the seed and the epoch into one seed. Swapping the numbers changes the result."""
    return np.random.SeedSequence(entropy=int(seed), spawn_key=(int(epoch),))


# ---------------------------------------------------------------------------- clips and options


def check_clips(
    lengths: Lengths, options: Mapping[str, Any]
) -> tuple["BatchCosts", np.ndarray | None]:
    """Check the lengths and options together.

    Returns:
        The costs of the clips, and the weight of each clip [clips], which determines how often the
        clip is drawn. The weights are None if every epoch contains every clip exactly once.

    Raises:
        BatchingError: if an option or a length is invalid.
    """
    check_options(options)
    costs = BatchCosts(
        lengths,
        cost=options.get("cost"),
        group_sizes=options.get("group_sizes"),
        size_multiple=options.get("size_multiple", 1),
        row_costs=options.get("row_costs"),
    )
    weights = _weights_of_clips(costs, options)
    batch_size = options["batch_size"]
    num_clips = len(costs.item_costs) if weights is None else int(np.count_nonzero(weights))
    num_clips = options.get("draw") or num_clips
    problems = []

    parameter = REGISTRY[options["strategy"]].parameter
    if parameter and parameter.at_most_clips:
        value = options.get(parameter.name, parameter.default)
        low, high = parameter.limits(num_clips, batch_size)
        if not low <= value <= high:
            expected = f"expected a whole number from {low} to {high}"
            problems.append(f"{parameter.name}={value}: {expected} (for {num_clips} clips)")

    capacity = options.get("batch_capacity")
    if capacity is not None:
        rejects = options.get("too_long", "reject") == "reject"
        least = float(costs.alone.max() if rejects else costs.alone.min())
        if capacity < least:
            fitting = "the longest clip" if rejects else "at least one clip"
            expected = f"at least {least:.15g}, so that {fitting} fits"
            problems.append(f"batch_capacity={capacity}: expected {expected}")

    if costs.group_sizes is not None:
        most_clips = options.get("max_clips") or MAX_COUNT
        if not options.get("dynamic_batch_size") or not capacity:
            most_clips = min(most_clips, batch_size)
        if costs.group_sizes.max() > most_clips:
            problems.append(f"group_sizes: expected at most {most_clips} clips per group")
    if problems:
        raise BatchingError("\n".join(problems))
    return costs, weights


def _weights_of_clips(costs: "BatchCosts", options: Mapping[str, Any]) -> np.ndarray | None:
    given = options.get("draw_weights")
    leaves_out = options.get("too_long") == "leave_out"
    if not options.get("draw") and given is None and not leaves_out:
        return None
    weights = np.ones(len(costs.alone))
    if given is not None:
        weights = check_numbers("draw_weights", given, len(costs.alone))
    capacity = options.get("batch_capacity")
    if leaves_out and capacity is not None:
        weights = weights * (costs.alone <= capacity)
    if not weights.any():
        raise BatchingError(
            "draw_weights, too_long: with these options, an epoch contains no clips"
        )
    return weights


def _draw_clips(weights: np.ndarray, draw: int | None, rng: np.random.Generator) -> np.ndarray:
    shuffled = rng.permutation(len(weights))
    draws = draw or int(np.count_nonzero(weights))
    ends = np.cumsum(weights[shuffled])
    # Systematic sampling: each clip is a segment of a line, and the clip's weight is the length of
    # the segment. The draws are equally spaced points on the line. The offset is an odd multiple of
    # 2**-21. Therefore, if all weights are equal, no point is at the end of a segment, where
    # rounding could matter.
    offset = (rng.integers(2**20) + 0.5) / 2**20
    points = (np.arange(draws) + offset) * (ends[-1] / draws)
    return np.asarray(shuffled[np.searchsorted(ends, points, side="right")])


# ---------------------------------------------------------------------------- batches


class BatchCosts:
    """Compute the cost of a batch: its number of clips times the cost per clip after padding.

    Args:
        lengths, cost, group_sizes, size_multiple, row_costs: see `plan_epoch`.

    Attributes:
        lengths: [items] or [items, kinds] float64.
        item_costs: [items] the cost per clip of a batch that contains only this item.
        alone: [items] the total cost of a batch that contains only this item.
        group_sizes: [items] number of clips in each item, or None if the items are clips.

    Raises:
        BatchingError: if a length, a group size or a cost is invalid.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        cost: Callable[..., float] | None = None,
        group_sizes: Numbers | None = None,
        size_multiple: int = 1,
        row_costs: Mapping[int, float] | None = None,
    ):
        if cost is not None and not callable(cost):
            raise BatchingError(f"cost={cost!r:.80}: expected a function")
        self.lengths = check_lengths(lengths)
        self.cost = cost
        self.size_multiple = size_multiple
        self.row_costs = dict(sorted(row_costs.items())) if row_costs else None
        num_items = len(self.lengths)
        if cost:
            self.lengths = self.lengths.reshape(num_items, -1)
        elif self.lengths.ndim > 1:
            kinds = self.lengths.shape[1]
            if kinds == 1:
                expected = f"expected ({num_items},). Pass lengths[:, 0]."
                raise BatchingError(f"lengths: shape ({num_items}, 1), {expected}")
            raise BatchingError(
                f"lengths: each clip has {kinds} lengths (columns). Pass a function as `cost`, which "
                "computes the cost of a clip from these lengths."
            )
        self.item_costs = self._costs_of(self.lengths)
        self.alone = self.item_costs
        self.group_sizes = None
        if group_sizes is not None:
            self.group_sizes = check_numbers("group_sizes", group_sizes, num_items)
            self.alone = self.item_costs * self.group_sizes
        if cost or group_sizes is not None:
            check_range("costs of clips", self.alone)

    def _costs_of(self, lengths: np.ndarray) -> np.ndarray:
        if self.cost is None:
            return lengths
        costs = np.frompyfunc(self.cost, lengths.shape[1], 1)(*lengths.T)
        return np.asarray(costs, np.float64)

    def sizes(self, plan: EpochPlan) -> np.ndarray:
        """Return the number of clips in each batch [batches]. If the items are groups, every clip
        of a group is counted."""
        if self.group_sizes is None:
            return plan.sizes
        return np.add.reduceat(self.group_sizes[plan.order], plan.starts)

    def longest(self, plan: EpochPlan) -> np.ndarray:
        """Return the cost per clip of each batch, [batches].

        If `cost` is None, the cost per clip is the length of the longest clip in the batch.
        """
        return self._costs_of(plan.longest(self.lengths))

    def starts(
        self, order: np.ndarray, max_clips: int, capacity: float, class_starts: Sequence[int] = (0,)
    ) -> list[int]:
        """Return the positions in `order` where batches begin.

        Each batch contains as many consecutive items as `max_clips` and `capacity` allow. A new
        batch begins at each of the `class_starts`.
        """
        lengths = self.lengths[order]
        is_plain = self.cost is None and self.group_sizes is None
        if is_plain and self.size_multiple == 1 and self.row_costs is None:
            return batch_starts(lengths, min(max_clips, len(lengths)), capacity, class_starts)
        cost = self.cost or float  # without the option `cost`, the cost of a clip is its length
        rows = lengths.reshape(len(lengths), -1).tolist()
        counts = [1] * len(rows)
        if self.group_sizes is not None:
            counts = self.group_sizes[order].tolist()
        starts = []
        for start, class_end in itertools.pairwise([*class_starts, len(rows)]):
            while start < class_end:
                starts.append(start)
                size = 0
                longest = rows[start]
                end = start
                # Maps each position where the batch may end to the resulting number of clips.
                sizes_at = dict[int, int]()
                while end < class_end:
                    longest = list(map(max, longest, rows[end]))
                    size += counts[end]
                    if end > start and (size > max_clips or size * cost(*longest) > capacity):
                        break
                    end += 1
                    sizes_at[end] = size
                start = self._best_end(sizes_at, is_last=end == class_end)
        return starts

    def _best_end(self, sizes_at: Mapping[int, int], *, is_last: bool) -> int:
        """Return the position where a batch should end, given all positions where it may end.

        Args:
            sizes_at: {position where the batch may end: resulting number of clips}, in increasing
                order of the positions.
            is_last: whether all remaining clips of the class fit into this batch.
        """
        end = max(sizes_at)
        multiples = [x for x, size in sizes_at.items() if size % self.size_multiple == 0]
        if self.row_costs is None:
            return max(multiples, default=end)
        if is_last:
            return end
        candidates = [x for x, size in sizes_at.items() if size in self.row_costs or x == end]
        # If several batch sizes have the same cost per clip, choose the largest size.
        return max(candidates, key=lambda x: (sizes_at[x] / self.row_cost(sizes_at[x]), x))

    def row_cost(self, size: int) -> float:
        """Return the cost of one step of a batch with `size` clips, from `row_costs`.

        A size that is not in `row_costs` costs as much as the next larger size in `row_costs`. The
        cost of a size above all sizes in `row_costs` is extrapolated from the last two sizes.
        """
        assert self.row_costs is not None  # callers use this method only if row costs are given
        for most, row_cost in self.row_costs.items():
            if size <= most:
                return row_cost
        sizes = [0, *self.row_costs]
        costs = [0.0, *self.row_costs.values()]
        slope = (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
        return costs[-1] + max(slope, 0.0) * (size - sizes[-1])


def batch_starts(
    lengths: np.ndarray, max_clips: int, capacity: float, class_starts: Sequence[int]
) -> list[int]:
    """Cut clips into batches, and return the position where each batch begins.

    Each batch contains as many consecutive clips of one length class as possible, under two
    conditions: size * longest <= capacity (DBS, Ge et al. 2021) and size <= max_clips. A clip
    longer than `capacity` forms its own batch.

    Args:
        lengths: [clips] the lengths of the clips, in the order of the epoch.
        class_starts: the positions where length classes begin. No batch contains clips of two
            length classes.
    """
    starts = []
    lengths_as_list = lengths.tolist()  # a loop over a list is faster than a loop over an array
    for class_start, class_end in itertools.pairwise([*class_starts, len(lengths)]):
        start = class_start
        longest = 0.0
        for i in range(class_start, class_end):
            length = lengths_as_list[i]
            if length > longest:
                longest = length
            size = i + 1 - start
            if size > max_clips or (size * longest > capacity and size > 1):
                starts.append(start)
                start = i
                longest = length
        starts.append(start)
    return starts
