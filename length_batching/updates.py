"""The batches of an epoch, arranged in updates that several processes share.

    planner = UpdatePlanner(lengths, 16, "semi_sorted", batches_per_update=4)
    epoch = planner.updates_of(3)
    epoch.plan[0]                # clip indices of the first batch
    epoch.numbers_of(1, 2)       # numbers of the batches that rank 1 of 2 trains

An update of the weights takes `batches_per_update` batches, K. The finished batches are ranked by
length and cut into groups of K, so processes that share an update do not wait for each other. Each
of W processes takes every W-th batch of an update, so their number does not change what an update
is made of. Batches of the most clips are halved until all updates have K.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_count, check_lengths
from length_batching.plan import BatchCosts, EpochPlan, check_options, hashed_seed, plan_epoch

HEADROOM = 1.01  # of a constant number of batches over the first epoch's
MAX_DRAWS = 50  # a plan of too many batches is drawn again, from epochs that nobody trains:
FAR = 10**9  # so far away is each of them from the one before


@dataclass(frozen=True)
class EpochUpdates:
    """The batches of one epoch, update after update. A position in it is a number of batches."""

    epoch: int
    plan: EpochPlan
    starts: np.ndarray  # [updates] the numbers of the batches with which updates begin
    checksum: int  # of the clips' lengths, the plan and batches_per_update

    def numbers_of(self, rank: int, world_size: int) -> np.ndarray:
        """The numbers of a rank's batches."""
        count = len(self.plan)
        inside = np.arange(count) - np.repeat(self.starts, np.diff(self.starts, append=count))
        return np.flatnonzero(inside % world_size == rank)

    def state_at(self, batches_trained: int) -> dict[str, int]:
        """What a checkpoint keeps: after so many of these batches, of all processes."""
        check_count("batches_trained", batches_trained, 0, len(self.plan))
        return {
            "epoch": self.epoch,
            "batches_trained": int(batches_trained),
            "num_batches": len(self.plan),
            "plan_checksum": self.checksum,
        }

    def refuse_other(self, state: Mapping[str, Any], world_size: int) -> None:
        """Raise BatchingError if a state is of another plan, where the rest would repeat some clips
        and leave out others, or at a place that not all processes have reached."""
        trained, known = state["batches_trained"], state["num_batches"]
        if state["plan_checksum"] != self.checksum:
            at = "" if trained is None else f" after {trained} of {known} batches"
            now = "these clips and options plan other batches: resume with the same"
            raise BatchingError(f"epoch {self.epoch} was left{at}, but {now}, or start it over")
        beginnings = [*self.numbers_of(0, world_size).tolist(), len(self.plan), None]
        if trained not in beginnings:
            shared = f"an equal number in each of {world_size} processes"
            raise BatchingError(f"batches_trained={trained}: expected {shared}")


class UpdatePlanner:
    """Plans the updates of every epoch.

    Args:
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        random_epochs: so many epochs at the start have random batches (RAND) of `batch_size`, or
            as `batch_capacity` allows.
        batches_per_update: K.
        batches_per_epoch: so many batches in every epoch, of all processes together; or "constant":
            1 % more than the first has; or None: as many as the plan has, with all updates whole.
        short_last_update: the last update, the shortest, has fewer batches where K does not divide
            their number; its clips are cut anew into up to K. Some processes may then get none.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        strategy: str,
        *,
        random_epochs: int = 0,
        batches_per_update: int = 1,
        batches_per_epoch: int | str | None = None,
        short_last_update: bool = False,
        **options: Any,
    ):
        check_count("random_epochs", random_epochs, 0)
        check_count("batches_per_update", batches_per_update)
        if batches_per_epoch not in (None, "constant"):
            check_count("batches_per_epoch", batches_per_epoch)
        self.lengths, self.costs = check_lengths(lengths), BatchCosts(lengths, options)
        check_options({"batch_size": batch_size, "strategy": strategy} | options, self.costs)
        self.batch_size, self.strategy, self.options = batch_size, strategy, options
        self.random_epochs, self.batches_per_update = random_epochs, batches_per_update
        self.batches_per_epoch, self.short_last_update = batches_per_epoch, short_last_update
        self._first_count = 0  # the most batches that one of the first epochs has
        if batches_per_epoch == "constant":
            self._first_count = max(len(self.plan_of(epoch)) for epoch in {0, random_epochs})

    def plan_of(self, epoch: int, draw: int = 0) -> EpochPlan:
        """The batches of an epoch, in the strategy's order; other ones with every `draw`."""
        strategy, options, number = self.strategy, self.options, epoch + draw * FAR
        if epoch < self.random_epochs:
            dynamic = options.get("dynamic_batch_size", False) and options.get("batch_capacity")
            fixed = {"dynamic_batch_size": bool(dynamic), "batch_randomization": False}
            strategy, options = "random", options | fixed
        return plan_epoch(self.lengths, self.batch_size, strategy, epoch=number, **options)

    def updates_of(self, epoch: int) -> EpochUpdates:
        """The batches of an epoch, update after update."""
        size = self.batches_per_update
        if self.short_last_update and self.batches_per_epoch is None:
            plan = self.plan_of(epoch)
        else:
            plan = self._whole_plan(epoch)
        starts = np.arange(len(plan))
        if size > 1:
            plan, starts = self._in_updates(plan, epoch)
        checksum = zlib.crc32(self.lengths.tobytes(), size)
        for array in (plan.order, plan.starts):
            checksum = zlib.crc32(array.astype("<i8").tobytes(), checksum)
        return EpochUpdates(epoch, plan, starts, checksum)

    def _whole_plan(self, epoch: int) -> EpochPlan:
        """The epoch's plan, of a multiple of K batches, and of as many as wanted."""
        wanted, size = self.batches_per_epoch, self.batches_per_update
        for draw in range(MAX_DRAWS):
            plan = self.plan_of(epoch, draw)
            needed, most = -(-len(plan) // size) * size, len(plan.order) // size * size
            count = min(math.ceil(HEADROOM * self._first_count / size) * size, most)
            if wanted != "constant":
                count = needed if wanted is None else int(wanted)
            if needed <= count:
                break
        if needed <= count <= most and count % size == 0:
            return halved(plan, count, self.costs)
        possible = f'a multiple of {size} from {needed} to {most}, or "constant"'
        raise BatchingError(
            f"batches_per_epoch={wanted}, batches_per_update={size}: {len(plan.order)} clips are "
            f"in {len(plan)} batches, and each process gets equally many; expected "
            f"{possible if needed <= most else 'fewer batches an update, or more clips'}"
        )

    def _in_updates(self, plan: EpochPlan, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        """The plan in groups of K batches of similar length, and where these groups begin."""
        size = self.batches_per_update
        ranked = np.argsort(-self.costs.longest(plan), kind="stable")
        by_length = plan.rearranged(ranked)
        if self.short_last_update:
            by_length = self._with_last_cut(by_length)
        # Groups come in the order in which the plan first names one of their batches, so a random
        # order stays random and a sorted one sorted. Shuffling inside a group keeps one rank from
        # always taking the longest batch.
        firsts = np.minimum.reduceat(ranked, np.arange(0, len(ranked), size))
        turn = np.argsort(np.argsort(firsts, kind="stable"))[np.arange(len(by_length)) // size]
        seeds = hashed_seed(self.options.get("seed", 0), epoch)
        rng = np.random.default_rng(seeds.spawn(1)[0])
        chosen = np.lexsort((rng.random(len(by_length)), turn))
        sizes = np.bincount(turn)
        return by_length.rearranged(chosen), np.cumsum(sizes) - sizes

    def _with_last_cut(self, by_length: EpochPlan) -> EpochPlan:
        """The clips of the last, incomplete update cut anew."""
        size = self.batches_per_update
        whole = len(by_length) // size * size
        # Multiples, and clips that are alone, would not stay so.
        if whole == len(by_length) or not {"size_multiple", "too_long"}.isdisjoint(self.options):
            return by_length
        rest = by_length.rearranged(np.arange(whole, len(by_length)))
        starts = by_length.starts[whole] + cut_evenly(rest, size, self.costs).starts
        return EpochPlan(by_length.order, np.concatenate([by_length.starts[:whole], starts]))


def halved(plan: EpochPlan, count: int, costs: BatchCosts) -> EpochPlan:
    """The plan with `count` batches, at most one a clip: those of the most clips, and of these the
    shortest, are cut into halves."""
    while len(plan) < count:
        by_size = np.lexsort((-costs.longest(plan), plan.sizes))
        chosen = by_size[len(plan) - count :]
        chosen = chosen[plan.sizes[chosen] > 1]
        half, multiple = plan.sizes[chosen] // 2, costs.size_multiple
        half -= np.where(half > multiple, half % multiple, 0)
        starts = np.concatenate([plan.starts, plan.starts[chosen] + half])
        plan = EpochPlan(plan.order, np.sort(starts))
    return plan


def cut_evenly(plan: EpochPlan, count: int, costs: BatchCosts) -> EpochPlan:
    """The clips of a plan of at most `count` batches, cut anew in their order into up to `count`.
    The largest (clips x longest) is as small as possible; none has more clips than one had."""
    # The smaller capacity holds the longest clip alone. The plan's batches fit into the larger one,
    # so no more than these are cut with it.
    sizes = costs.sizes(plan)
    most, small = int(sizes.max()), float(costs.alone[plan.order].max())
    starts = costs.starts(plan.order, most, small)
    if len(starts) > count:
        large = float((sizes * costs.longest(plan)).max())
        starts = costs.starts(plan.order, most, large)
        while large - small > 1e-4 * large:
            middle = (small + large) / 2
            middle_starts = costs.starts(plan.order, most, middle)
            if len(middle_starts) > count:
                small = middle
            else:
                large, starts = middle, middle_starts
    return EpochPlan(plan.order, np.array(starts))
