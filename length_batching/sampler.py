"""LengthBatchSampler: the batches of every epoch for a DataLoader's `batch_sampler`.

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(sampler.epoch, 100):
        sampler.set_epoch(epoch)
        for trained, batch in enumerate(loader, start=1):
            ...
            state = sampler.state_dict(trained)

It is for loops of one's own. Frameworks that deal out batches take `LengthBatches`, in batches.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from length_batching.checks import (
    BatchingError,
    Lengths,
    check_count,
    check_ranks,
    refuse_missing_ranks,
)
from length_batching.plan import EpochPlan, refuse_unknown_options
from length_batching.updates import UpdatePlanner


class LengthBatchSampler:
    """Batches of `plan_epoch`, one epoch a pass. Call `set_epoch` before every pass.

    Args:
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        random_epochs, batches_per_epoch, short_last_update: as `UpdatePlanner` takes them.
        batches_per_update: batches of similar length that share an update, of all processes
            together; a multiple of `world_size`, which is the default. With the same number,
            training resumes with any number of processes.
        rank, world_size: this process, and how many share the batches. By default one trains alone.

    Attributes:
        epoch: that was set or loaded; 0 at first.
        start: the batch of the plan with which this epoch's pass begins; 0 unless resumed.
        plan: all batches of the epoch, update after update.
        update_starts: [updates] the numbers of the batches with which updates begin.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        strategy: str,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        random_epochs: int = 0,
        batches_per_update: int | None = None,
        batches_per_epoch: int | str | None = None,
        short_last_update: bool = False,
        **options: Any,
    ):
        refuse_unknown_options(type(self).__name__, options)
        self.rank, self.world_size, size = check_ranks(rank, world_size, batches_per_update)
        self._knows_ranks = world_size is not None
        self._planner = UpdatePlanner(
            lengths,
            batch_size,
            strategy,
            random_epochs=random_epochs,
            batches_per_update=size,
            batches_per_epoch=batches_per_epoch,
            short_last_update=short_last_update,
            **options,
        )
        self.lengths, self.batches_per_update = self._planner.lengths, size
        self._turn = 0  # how often an epoch was set
        self._go_to(0)

    def _go_to(self, epoch: int, start: int = 0) -> None:
        self._updates = self._planner.updates_of(epoch)
        self.epoch, self.start, self._turn = epoch, start, self._turn + 1
        self._is_begun, self._drawn = False, 0  # a pass of this epoch, and its batches so far

    @property
    def plan(self) -> EpochPlan:
        return self._updates.plan

    @property
    def update_starts(self) -> np.ndarray:
        return self._updates.starts

    @property
    def batch_size(self) -> NoReturn:
        """Only who would deal the batches out once more asks for it: it is refused."""
        raise BatchingError(
            "LengthBatchSampler is for loops of your own: what prepares the loader would deal its "
            "batches out once more, and lose clips; give it a loader of LengthBatches"
        )

    def plan_of(self, epoch: int) -> EpochPlan:
        """The batches of any epoch, in the strategy's order."""
        return self._planner.plan_of(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch `epoch` (from 0) with the next pass. A position in it that was just loaded
        stays; BatchingError if that is inside another epoch."""
        check_count("epoch", epoch, 0)
        if not self._is_begun:
            if epoch == self.epoch:
                return
            if 0 < self.start < len(self.plan):
                loaded = f"batch {self.start} of {len(self.plan)} of epoch {self.epoch} was loaded"
                raise BatchingError(f"set_epoch({epoch}): {loaded}; train the rest of that first")
        self._go_to(epoch)

    def __len__(self) -> int:
        """This rank's batches in the whole epoch, wherever in it a pass begins."""
        return len(self._updates.numbers_of(self.rank, self.world_size))

    def _numbers_left(self) -> np.ndarray:
        numbers = self._updates.numbers_of(self.rank, self.world_size)
        return numbers[numbers >= self.start]

    def __iter__(self) -> Iterator[list[int]]:
        # The pass begins when its first batch is drawn: loaders with workers call this twice.
        if not self._knows_ranks:
            refuse_missing_ranks()
        if self._is_begun:
            raise BatchingError(
                f"epoch {self.epoch} was begun already: call set_epoch before every pass"
            )
        self._is_begun, turn = True, self._turn
        for number in self._numbers_left().tolist():
            if turn != self._turn:
                raise BatchingError(
                    f"set_epoch({self.epoch}) was called inside a pass, which then had more "
                    "batches: call it, then iter(loader)"
                )
            self._drawn += 1
            yield self.plan[number].tolist()

    def state_dict(self, trained: int | None = None) -> dict[str, int]:
        """Where to resume: after `trained` batches that this process has trained since `set_epoch`.
        The trainer counts them, for a loader draws batches ahead of time."""
        if trained is None:
            raise BatchingError(
                "state_dict(): expected state_dict(trained), the batches trained in this pass; "
                "loaders that save their own state take LengthBatches"
            )
        refuse_more_than_drawn(trained, self._drawn)
        places = [*(self._numbers_left() - self.rank).tolist(), len(self.plan)]
        return self.state_at(places[trained])

    def state_at(self, batches_trained: int) -> dict[str, int]:
        """The same after so many of the epoch's batches, those of all processes counted."""
        return self._updates.state_at(batches_trained)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume inside the saved epoch. BatchingError if the plan is another and batches were
        trained: the rest of it would repeat some clips and leave out others."""
        start = state["batches_trained"]
        self._go_to(state["epoch"], start)
        if start > 0:
            self.start = 0  # unless it is right
            self._updates.refuse_other(state, self.world_size)
            self.start = start


def refuse_more_than_drawn(trained: int, drawn: int) -> None:
    """Raise BatchingError if more batches were trained than this process has drawn in the pass."""
    check_count("trained", trained, 0)
    if trained > drawn:
        counted = "count this process's batches from set_epoch on"
        raise BatchingError(f"trained={trained}: this pass has drawn {drawn} batches; {counted}")
