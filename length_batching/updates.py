"""Group the batches of an epoch into optimizer steps that several processes share.

    planner = UpdatePlanner(lengths, 16, "semi_sorted", batches_per_update=4)
    epoch = planner.updates_of(3)
    epoch.plan[0]                # clip indices of the first batch
    epoch.numbers_of(1, 2)       # indices of the batches for rank 1 of 2

An optimizer step ("update") uses K = `batches_per_update` batches. The finished batches are sorted
by length and cut into groups of K. The batches of a group have similar lengths, so that processes
spend little time waiting for other processes. Each of W processes trains on every W-th batch of a
group. The number of processes W does not affect which batches share an optimizer step. If the last
group has fewer than K batches, the batches with the most clips are halved until every group has K
batches.
"""

import math
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_count, check_equal_shares
from length_batching.options import PlanOptions
from length_batching.plan import BatchCosts, EpochPlan, check_clips, plan_epoch, seed_of_epoch
from length_batching.strategies import StrategyName

BatchesPerEpoch = int | Literal["constant", "per_phase"]
# Later epochs may need more batches than the first epoch. If all these epochs must have the same
# number of batches, the planner uses this factor times the number that the first epoch needs.
CONSTANT_MARGIN = 1.01
# With a constant number of batches per epoch, the planner warns if random epochs need more than
# WASTEFUL times as many batches as later epochs.
WASTEFUL = 1.1
MAX_ATTEMPTS = 50  # maximum number of plans to try for an epoch if plans have too many batches
# Attempt i to plan an epoch uses the epoch number `epoch + i * ATTEMPT_DISTANCE` as the seed.
ATTEMPT_DISTANCE = 10**9


@dataclass(frozen=True)
class EpochUpdates:
    """The batches of one epoch, in the order of the optimizer steps.

    Attributes:
        epoch: the epoch, counted from 0.
        plan: the batches.
        starts: [optimizer steps] the index of the first batch of each optimizer step in `plan`.
        checksum: checksum of the lengths, the plan and `batches_per_update`.
        batches_per_update: number of batches per optimizer step, summed over all processes (K).
    """

    epoch: int
    plan: EpochPlan
    starts: np.ndarray
    checksum: int
    batches_per_update: int

    def numbers_of(self, rank: int, world_size: int) -> np.ndarray:
        """Return the indices of the batches that belong to a rank."""
        count = len(self.plan)
        sizes = np.diff(self.starts, append=count)
        number_in_step = np.arange(count) - np.repeat(self.starts, sizes)
        return np.flatnonzero(number_in_step % world_size == rank)

    def state_at(self, batches_trained: int) -> dict[str, int]:
        """Return the checkpoint state after `batches_trained` batches of all processes together."""
        check_count("batches_trained", batches_trained, 0, len(self.plan))
        return {
            "epoch": self.epoch,
            "batches_trained": int(batches_trained),
            "num_batches": len(self.plan),
            "plan_checksum": self.checksum,
        }

    def check_state(self, state: Mapping[str, Any], world_size: int) -> None:
        """Check that training can resume from a state.

        Raises:
            BatchingError: if the state belongs to a different plan, or if the processes have
                trained on unequal numbers of batches.
        """
        trained = state["batches_trained"]
        if state["plan_checksum"] != self.checksum:
            after = ""
            if trained is not None:
                after = f" after {trained} of {state['num_batches']} batches (of all processes)"
            raise BatchingError(
                f"epoch {self.epoch} was saved{after}, but the current clips and options produce "
                "different batches. Resume with the same clips and options, or restart the epoch. "
                "Check the options batches_per_epoch and batches_per_update (now "
                f"{self.batches_per_update}; default: the number of processes)."
            )
        resumable = [*self.numbers_of(0, world_size).tolist(), len(self.plan), None]
        check_equal_shares(trained, trained in resumable, world_size)


class UpdatePlanner:
    """Plan the optimizer steps of every epoch.

        planner = UpdatePlanner(lengths, 16, "semi_sorted", batches_per_update=4)
        planner.updates_of(3).plan

    Args:
        lengths, batch_size, strategy, options: see `plan_epoch`. Do not pass `epoch`.
        random_epochs, batches_per_epoch, short_last_update: see `LengthBatchSampler`.
        batches_per_update: number of batches per optimizer step (K).

    Raises:
        BatchingError: if an option or a length is invalid.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        strategy: StrategyName,
        *,
        random_epochs: int = 0,
        batches_per_update: int = 1,
        batches_per_epoch: BatchesPerEpoch | None = None,
        short_last_update: bool = False,
        **options: Unpack[PlanOptions],
    ):
        check_count("random_epochs", random_epochs, 0)
        check_count("batches_per_update", batches_per_update)
        if isinstance(batches_per_epoch, str):
            if batches_per_epoch not in ("constant", "per_phase"):
                expected = 'expected a number, "constant" or "per_phase"'
                raise BatchingError(f"batches_per_epoch={batches_per_epoch!r}: {expected}")
        elif batches_per_epoch is not None:
            check_count("batches_per_epoch", batches_per_epoch)
        arguments = {"batch_size": batch_size, "strategy": strategy, **options}
        self.costs, _ = check_clips(lengths, arguments)
        self.lengths = self.costs.lengths.reshape(np.shape(lengths))
        self.batch_size = batch_size
        self.strategy = strategy
        self.options = options
        self.random_epochs = random_epochs
        self.batches_per_update = batches_per_update
        self.batches_per_epoch = batches_per_epoch
        self.short_last_update = short_last_update
        self._warn_if_capacity_is_small()
        # `_random_count` is the number of batches that a random epoch needs. `_later_count` is the
        # number of batches that a later epoch needs. If `batches_per_epoch` is "constant", both
        # variables contain the larger number.
        self._random_count = 0
        self._later_count = 0
        if isinstance(batches_per_epoch, str):
            self._later_count = len(self.plan_of(random_epochs))
            # The number of batches must not increase after the random epochs, because Lightning
            # ignores additional batches.
            self._random_count = max(len(self.plan_of(0)), self._later_count)
        if batches_per_epoch == "constant":
            self._warn_if_wasteful()
            self._later_count = self._random_count

    def _warn_if_wasteful(self) -> None:
        if self._random_count <= WASTEFUL * self._later_count:
            return
        warnings.warn(
            f'random_epochs={self.random_epochs}, batches_per_epoch="constant": every epoch has at '
            f"least {self._random_count} batches, but the epochs after the random epochs need only "
            f"{self._later_count}. The additional batches cost training time. Set "
            'batches_per_epoch="per_phase". If your framework needs the same number of batches in '
            "every epoch, set random_epochs=0.",
            stacklevel=4,  # the warning shows the line that creates the sampler or dataset
        )

    def _warn_if_capacity_is_small(self) -> None:
        capacity = self.options.get("batch_capacity")
        has_groups = self.costs.group_sizes is not None
        if not capacity or not self.options.get("dynamic_batch_size") or has_groups:
            return
        mean = float(self.costs.item_costs.mean())
        if self.batch_size > 1 and capacity < 2 * mean:
            warnings.warn(
                f"batch_capacity={capacity:g}: a batch contains at most {capacity / mean:.1f} clips "
                f"on average, because the mean length is {mean:.6g}. batch_capacity limits "
                "the number of clips times the longest length, not the length of a clip.",
                stacklevel=4,  # the warning shows the line that creates the sampler or dataset
            )

    def plan_of(self, epoch: int, attempt: int = 0) -> EpochPlan:
        """Return the batches of an epoch in the strategy's order.

        The batches of an epoch differ for each value of `attempt`.
        """
        strategy: StrategyName = self.strategy
        options = self.options
        if epoch < self.random_epochs:
            strategy = "random"
            limits_length = bool(options.get("batch_capacity"))
            dynamic = bool(options.get("dynamic_batch_size")) and limits_length
            options = {**options, "dynamic_batch_size": dynamic, "batch_randomization": False}
        planned_epoch = epoch + attempt * ATTEMPT_DISTANCE
        return plan_epoch(self.lengths, self.batch_size, strategy, epoch=planned_epoch, **options)

    def updates_of(self, epoch: int) -> EpochUpdates:
        """Return the batches of an epoch, in the order of the optimizer steps."""
        size = self.batches_per_update
        if self.short_last_update and self.batches_per_epoch is None:
            plan = self.plan_of(epoch)
        else:
            plan = self._whole_plan(epoch)
        starts = np.arange(len(plan))
        if size > 1:
            plan, starts = self._group_by_length(plan, epoch)
        checksum = zlib.crc32(self.lengths.tobytes(), size)
        for array in (plan.order, plan.starts):
            checksum = zlib.crc32(array.astype("<i8").tobytes(), checksum)
        return EpochUpdates(epoch, plan, starts, checksum, size)

    def _whole_plan(self, epoch: int) -> EpochPlan:
        """Return a plan with exactly `batches_per_epoch` batches, which is a multiple of K."""
        wanted = self.batches_per_epoch
        needed = self._random_count if epoch < self.random_epochs else self._later_count
        size = self.batches_per_update
        for attempt in range(MAX_ATTEMPTS):
            plan = self.plan_of(epoch, attempt)
            least = math.ceil(len(plan) / size) * size
            most = len(plan.order) // size * size  # every batch contains at least one clip
            if wanted is None:
                count = least
            elif isinstance(wanted, str):
                count = math.ceil(CONSTANT_MARGIN * needed / size) * size
                count = min(count, most)
            else:
                count = int(wanted)
            if least <= count:
                break
        if least <= count <= most and count % size == 0:
            return halve_largest(plan, count, self.costs)
        expected = f'a multiple of {size} from {least} to {most}, "constant" or "per_phase"'
        if least > most:
            expected = "fewer batches per optimizer step, or more clips"
        raise BatchingError(
            f"batches_per_epoch={wanted} does not work with batches_per_update={size}: the "
            f"{len(plan.order)} clips need at least {len(plan)} batches, divided equally among the "
            f"processes; expected {expected}"
        )

    def _group_by_length(self, plan: EpochPlan, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        """Form groups of K batches of similar length.

        Returns:
            A tuple of the batches, sorted by group, and the index of each group's first batch.
        """
        size = self.batches_per_update
        longest_first = np.argsort(-self.costs.longest(plan), kind="stable")
        by_length = plan.select(longest_first)
        if self.short_last_update:
            by_length = self._cut_last_group(by_length)
        # Sort the groups by the position of their earliest batch in the plan. If the batches are in
        # random order, the groups are then in random order too. If the batches are sorted, the
        # groups stay sorted. Shuffle the batches within each group, so that no rank always trains
        # on the longest batch.
        first_numbers = np.minimum.reduceat(longest_first, np.arange(0, len(longest_first), size))
        position_of_group = np.argsort(np.argsort(first_numbers, kind="stable"))
        position = position_of_group[np.arange(len(by_length)) // size]
        seeds = seed_of_epoch(self.options.get("seed", 0), epoch)
        rng = np.random.default_rng(seeds.spawn(1)[0])
        numbers = np.lexsort((rng.random(len(by_length)), position))
        sizes = np.bincount(position)
        return by_length.select(numbers), np.cumsum(sizes) - sizes

    def _cut_last_group(self, by_length: EpochPlan) -> EpochPlan:
        """If the last group has fewer than K batches, divide its clips into up to K batches."""
        size = self.batches_per_update
        num_whole = len(by_length) // size * size
        if num_whole == len(by_length):
            return by_length
        # Do not change the batches of the last group if these options are used. Other batch sizes
        # would violate `size_multiple` or `row_costs`. With `too_long`, a batch of one long clip
        # must not receive other clips.
        has_multiples = self.options.get("size_multiple", 1) != 1
        if has_multiples or self.options.get("row_costs") or "too_long" in self.options:
            return by_length
        last_group = by_length.select(np.arange(num_whole, len(by_length)))
        cut = cut_evenly(last_group, size, self.costs)
        starts = by_length.starts[num_whole] + cut.starts
        return EpochPlan(by_length.order, np.concatenate([by_length.starts[:num_whole], starts]))


def halve_largest(plan: EpochPlan, count: int, costs: BatchCosts) -> EpochPlan:
    """Halve the batches with the most clips until there are `count` batches, and return the new
    plan.

    If several batches have the same number of clips, the shortest batches are halved first.
    `count` must not exceed the number of clips.
    """
    while len(plan) < count:
        smallest_first = np.lexsort((-costs.longest(plan), plan.sizes))
        halved = smallest_first[len(plan) - count :]
        halved = halved[plan.sizes[halved] > 1]
        half = plan.sizes[halved] // 2
        multiple = costs.size_multiple
        half -= np.where(half > multiple, half % multiple, 0)
        starts = np.concatenate([plan.starts, plan.starts[halved] + half])
        plan = EpochPlan(plan.order, np.sort(starts))
    return plan


def cut_evenly(plan: EpochPlan, count: int, costs: BatchCosts) -> EpochPlan:
    """Cut the clips of a plan into at most `count` new batches, in the same order.

    The function minimizes the size of the largest batch (number of clips times longest length). No
    batch has more clips than the largest batch of `plan`. `plan` must have at most `count` batches.
    """
    # Find the frame budget by bisection. The lower bound is just large enough for the longest clip.
    # With the upper bound, every batch of `plan` fits, so at most `count` batches are needed.
    sizes = costs.sizes(plan)
    max_clips = int(sizes.max())
    too_small = float(costs.alone[plan.order].max())
    starts = costs.starts(plan.order, max_clips, too_small)
    if len(starts) > count:
        enough = float((sizes * costs.longest(plan)).max())
        starts = costs.starts(plan.order, max_clips, enough)
        while enough - too_small > 1e-4 * enough:
            middle = (too_small + enough) / 2
            middle_starts = costs.starts(plan.order, max_clips, middle)
            if len(middle_starts) > count:
                too_small = middle
            else:
                enough = middle
                starts = middle_starts
    return EpochPlan(plan.order, np.array(starts))
