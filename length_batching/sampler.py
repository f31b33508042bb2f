"""Define `LengthBatchSampler`, a batch sampler for the PyTorch DataLoader.

Use the sampler in your own training loops. For training frameworks, use `LengthBatches`
(batches.py) instead.
"""

from collections.abc import Iterator, Mapping
from typing import NoReturn, Unpack

import numpy as np

from length_batching.checks import (
    BatchingError,
    Lengths,
    check_count,
    check_loaded_state,
    check_trained,
    check_trains_alone,
    resolve_ranks,
)
from length_batching.options import PlanOptions, check_option_names
from length_batching.plan import EpochPlan
from length_batching.strategies import StrategyName
from length_batching.updates import BatchesPerEpoch, UpdatePlanner


class LengthBatchSampler:
    """Yield the batches of one epoch in each pass, as lists of clip indices.

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
        lengths, batch_size, strategy, options: see `plan_epoch`. Do not pass `epoch`.
        random_epochs: number of epochs at the start of training that use random batches (RAND).
            Each random batch contains `batch_size` clips. With `dynamic_batch_size` and
            `batch_capacity`, a random batch contains as many clips as fit into `batch_capacity`.
        batches_per_update: number of batches of similar length per optimizer step, summed over all
            processes; a multiple of `world_size`. Default: `world_size`. To resume training with a
            different number of processes, keep `batches_per_update` the same.
        batches_per_epoch: number of batches in every epoch, summed over all processes. With
            "constant", every epoch has 1% more batches than the first epoch needs. With
            "per_phase", all random epochs have the same number of batches, and all later epochs
            have the same, usually smaller, number of batches. With None, every epoch has as many
            batches as it needs, rounded up to a multiple of `batches_per_update`.
        short_last_update: allow the last optimizer step of an epoch to have fewer than
            `batches_per_update` batches, although some processes may then have no batch in this
            optimizer step.
        rank, world_size: the rank of this process, and the number of processes that share the
            batches. Default: a single process.

    Attributes:
        epoch: the current epoch, counted from 0.
        start: the index of the first batch of the current pass; 0 unless training was resumed in
            the middle of the epoch.
        plan: all batches of the current epoch, in the order of the optimizer steps.
        update_starts: [optimizer steps] the index of the first batch of each optimizer step.

    Raises:
        BatchingError: if an option or a length is invalid.
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
        batches_per_epoch: BatchesPerEpoch | None = None,
        short_last_update: bool = False,
        **options: Unpack[PlanOptions],
    ):
        check_option_names(options, LengthBatchSampler.__init__)
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
        self._times_set = 0  # how many times an epoch has been set or loaded
        self._go_to(0)

    def _go_to(self, epoch: int) -> None:
        self._updates = self._planner.updates_of(epoch)
        self.epoch = epoch
        self.start = 0
        self._times_set += 1
        self._is_begun = False  # whether a pass of this epoch has begun
        self._drawn = 0  # number of batches that this pass has yielded

    @property
    def plan(self) -> EpochPlan:
        return self._updates.plan

    @property
    def update_starts(self) -> np.ndarray:
        return self._updates.starts

    @property
    def batch_size(self) -> NoReturn:
        """Raise BatchingError, because training frameworks must not use this sampler.

        Only training frameworks read the attribute `batch_size`. A framework that used this sampler
        would distribute the batches among the processes a second time.
        """
        raise BatchingError(
            "LengthBatchSampler: a framework would distribute the batches among the processes a "
            "second time and lose clips. Pass the framework a DataLoader of LengthBatches."
        )

    def plan_of(self, epoch: int) -> EpochPlan:
        """Return the batches of the given epoch in the strategy's order."""
        return self._planner.plan_of(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0.

        If a loaded state is from the middle of this epoch, the pass begins at the loaded position.

        Raises:
            BatchingError: if a state from the middle of a different epoch was loaded, and training
                would skip the rest of that epoch.
        """
        check_count("epoch", epoch, 0)
        if not self._is_begun:
            if epoch == self.epoch:
                return
            if 0 < self.start < len(self.plan):
                raise BatchingError(
                    f"set_epoch({epoch}): expected epoch {self.epoch}, because the loaded state is "
                    f"at batch {self.start} of {len(self.plan)} of epoch {self.epoch}. Train on "
                    f"the rest of epoch {self.epoch} first."
                )
        self._go_to(epoch)

    def __len__(self) -> int:
        """Return the number of this rank's batches in the whole epoch.

        If training resumes in the middle of the epoch, the result is still the number of batches in
        the whole epoch.
        """
        return len(self._updates.numbers_of(self.rank, self.world_size))

    def _remaining_numbers(self) -> np.ndarray:
        numbers = self._updates.numbers_of(self.rank, self.world_size)
        return numbers[numbers >= self.start]

    def __iter__(self) -> Iterator[list[int]]:
        # This method is a generator, so a pass begins when its first batch is drawn, not when
        # iter() is called. DataLoaders with workers call iter() twice.
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
                    f"set_epoch({self.epoch}): called before the pass had ended. Call set_epoch "
                    "first, then iter(loader)."
                )
            self._drawn += 1
            yield self.plan[number].tolist()

    def state_dict(self, trained: int | None = None) -> dict[str, int]:
        """Return the state for a checkpoint.

            state = sampler.state_dict(trained)

        Args:
            trained: number of batches that this process has trained on since `set_epoch`. Your
                training loop must count these batches, because a DataLoader draws batches ahead of
                time.

        Raises:
            BatchingError: if `trained` is missing or exceeds the number of drawn batches.
        """
        if trained is None:
            raise BatchingError(
                "state_dict(): `trained` is missing. Pass the number of batches that this process "
                "has trained on since set_epoch. Use LengthBatches if your DataLoader saves its "
                "own state."
            )
        check_trained(trained, self._drawn)
        positions = [*(self._remaining_numbers() - self.rank).tolist(), len(self.plan)]
        return self.state_at(positions[trained])

    def state_at(self, batches_trained: int) -> dict[str, int]:
        """Return the state for a checkpoint after all processes together have trained on
        `batches_trained` batches."""
        return self._updates.state_at(batches_trained)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume at the position where the state was saved.

        Raises:
            BatchingError: if the state is from the middle of an epoch that was planned with
                different clips or options. The rest of that epoch would skip and repeat clips.
        """
        check_loaded_state(state)
        start = state["batches_trained"]
        check_count("load_state_dict: batches_trained", start, 0)
        self._go_to(state["epoch"])
        if start > 0:
            self._updates.check_state(state, self.world_size)
            self.start = start
