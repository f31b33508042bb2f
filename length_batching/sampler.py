"""Provide the batches of every epoch for a DataLoader's `batch_sampler`: `LengthBatchSampler`.

Use it in your own training loops. For training frameworks, see `LengthBatches` in batches.py.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NoReturn, Unpack

import numpy as np

from length_batching.checks import (
    BatchingError,
    Lengths,
    check_count,
    check_trained,
    check_trains_alone,
    resolve_ranks,
)
from length_batching.options import PlanOptions
from length_batching.plan import EpochPlan
from length_batching.strategies import StrategyName
from length_batching.updates import UpdatePlanner


class LengthBatchSampler:
    """Yield the batches of one epoch per pass, as lists of clip indices.

        sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                     dynamic_batch_size=True, batch_randomization=True)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
        for epoch in range(sampler.epoch, 100):
            sampler.set_epoch(epoch)
            for trained, batch in enumerate(loader, start=1):
                ...
                state = sampler.state_dict(trained)

    Call `set_epoch` before every pass.

    Args:
        lengths, batch_size, strategy, options: see `plan_epoch` (`epoch` excluded).
        random_epochs, batches_per_epoch, short_last_update: see `UpdatePlanner`.
        batches_per_update: batches of similar length that share an optimizer step, counted over all
            processes. It must be a multiple of `world_size`, which is the default. With the same
            number, training can resume with any number of processes.
        rank, world_size: the number of this process, and of all processes that share the batches.
            Default: one process trains alone.

    Attributes:
        epoch: the epoch that was set or loaded, counted from 0.
        start: the number of the batch with which the pass begins. 0, unless training resumed.
        plan: all batches of the epoch, in the order of the optimizer steps.
        update_starts: [optimizer steps] the number of the first batch of each optimizer step.

    Raises:
        BatchingError: if an option or a length is not allowed.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        strategy: StrategyName,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        random_epochs: int = 0,
        batches_per_update: int | None = None,
        batches_per_epoch: int | Literal["constant"] | None = None,
        short_last_update: bool = False,
        **options: Unpack[PlanOptions],
    ):
        self.rank, self.world_size, self.batches_per_update = resolve_ranks(
            rank, world_size, batches_per_update
        )
        self._world_size_given = world_size is not None
        self._planner = UpdatePlanner(
            lengths,
            batch_size,
            strategy,
            random_epochs=random_epochs,
            batches_per_update=self.batches_per_update,
            batches_per_epoch=batches_per_epoch,
            short_last_update=short_last_update,
            **options,
        )
        self.lengths = self._planner.lengths
        self._times_set = 0  # number of times that an epoch was set or loaded
        self._go_to(0)

    def _go_to(self, epoch: int, start: int = 0) -> None:
        self._updates = self._planner.updates_of(epoch)
        self.epoch = epoch
        self.start = start
        self._times_set += 1
        self._is_begun = False  # whether a pass of this epoch has begun
        self._drawn = 0  # batches that this pass has yielded

    @property
    def plan(self) -> EpochPlan:
        return self._updates.plan

    @property
    def update_starts(self) -> np.ndarray:
        return self._updates.starts

    @property
    def batch_size(self) -> NoReturn:
        """Raise BatchingError, because this attribute is only read by frameworks that would
        distribute the batches again.

        A prepared loader would distribute the batches among the processes a second time.
        """
        raise BatchingError(
            "LengthBatchSampler: a framework would distribute its batches among the processes "
            "again, and lose clips. Give the framework a loader of LengthBatches."
        )

    def plan_of(self, epoch: int) -> EpochPlan:
        """Return the batches of any epoch in the strategy's order."""
        return self._planner.plan_of(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0. A loaded position inside this epoch is
        kept.

        Raises:
            BatchingError: if a position inside another epoch was loaded and not yet trained.
        """
        check_count("epoch", epoch, 0)
        if not self._is_begun:
            if epoch == self.epoch:
                return
            if 0 < self.start < len(self.plan):
                raise BatchingError(
                    f"set_epoch({epoch}): expected {self.epoch}, because batch {self.start} of "
                    f"{len(self.plan)} of this epoch was loaded. Train the rest of the epoch first."
                )
        self._go_to(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in the whole epoch, even if a pass begins
        inside it."""
        return len(self._updates.numbers_of(self.rank, self.world_size))

    def _remaining_numbers(self) -> np.ndarray:
        numbers = self._updates.numbers_of(self.rank, self.world_size)
        return numbers[numbers >= self.start]

    def __iter__(self) -> Iterator[list[int]]:
        # This is a generator, so a pass begins when its first batch is drawn. That matters because
        # loaders with workers call iter() twice.
        if not self._world_size_given:
            check_trains_alone()
        if self._is_begun:
            raise BatchingError(
                f"epoch {self.epoch}: a pass has already begun. Call set_epoch before every pass."
            )
        self._is_begun = True
        times_set = self._times_set
        for number in self._remaining_numbers().tolist():
            if times_set != self._times_set:
                raise BatchingError(
                    f"set_epoch({self.epoch}): called inside a pass, before its last batch. Call "
                    "set_epoch, then iter(loader)."
                )
            self._drawn += 1
            yield self.plan[number].tolist()

    def state_dict(self, trained: int | None = None) -> dict[str, int]:
        """Return the state for a checkpoint.

            state = sampler.state_dict(trained)

        Args:
            trained: batches that this process has trained since `set_epoch`. The trainer counts
                them, because a loader draws batches ahead of time.

        Raises:
            BatchingError: if `trained` is missing or above the number of drawn batches.
        """
        if trained is None:
            raise BatchingError(
                "state_dict(): expected state_dict(trained), the batches trained since set_epoch. "
                "A loader that saves its own state needs LengthBatches."
            )
        check_trained(trained, self._drawn)
        positions = [*(self._remaining_numbers() - self.rank).tolist(), len(self.plan)]
        return self.state_at(positions[trained])

    def state_at(self, batches_trained: int) -> dict[str, int]:
        """Return the state after this number of batches of the epoch, counted over all
        processes."""
        return self._updates.state_at(batches_trained)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume where a state was saved.

        Raises:
            BatchingError: if the state is inside an epoch of another plan, because the rest of the
                epoch would then repeat and miss clips.
        """
        start = state["batches_trained"]
        self._go_to(state["epoch"])
        if start > 0:
            self._updates.check_state(state, self.world_size)
            self.start = start
