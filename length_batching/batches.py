"""Provide whole batches as items of a dataset, for training frameworks.

Every framework can distribute, count and skip the items of a dataset, and can resume at any item.
If each item is a whole batch, the framework does not need to support batches of different sizes.
length_batching/README.md shows example code for each framework.

Rank r of W processes must request batches r, r + W, r + 2 W, ... in this order. Each DataLoader
worker computes which batch must come next. If a process requests a different batch, the worker
raises BatchingError, because otherwise the epoch would skip or repeat clips.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch.utils.data import Dataset, DistributedSampler, default_collate, get_worker_info

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
from length_batching.updates import BatchesPerEpoch, EpochUpdates, UpdatePlanner

MAX_WORKERS = 1024
# The first batch of a pass, if the framework itself skips the batches that were trained before the
# resume.
UNKNOWN_START = -1


class BatchIndex(int):
    """The index of a batch, and the number of the `RankSampler` pass that yielded this index.

    After a pass has been stopped early, a persistent worker may still receive an index from this
    pass. The worker recognizes the outdated index by its pass number.
    """

    pass_number: int


class PassState(NamedTuple):
    """The state that the main process shares with the DataLoader workers."""

    epoch: int = 0
    times_set: int = 1  # number of times that an epoch has been set or loaded
    start: int = 0  # index of the first batch of the pass, or UNKNOWN_START
    is_set: bool = False  # whether `set_epoch` has been called for this epoch
    pass_number: int = 0  # number of the most recent RankSampler pass


class WorkerState(NamedTuple):
    """The position of a DataLoader worker in its current pass over the batches."""

    # Id of the worker's pass. With a RankSampler, the id is `pass_number`. With another sampler,
    # the id is -times_set. Before the first pass, the id is 0.
    pass_id: int = 0
    next_index: int = 0  # index of the batch that the worker must return next
    epoch: int = 0
    epoch_was_set: bool = False  # whether `set_epoch` was called before the pass began


class LengthBatches(Dataset[Any]):
    """Provide collated batches as a map-style dataset: `batches[i]` is batch i of the epoch.

        batches = LengthBatches(dataset, lengths, 16, "semi_sorted", collate=pad, world_size=2,
                                dynamic_batch_size=True, batch_randomization=True)
        sampler = RankSampler(batches, rank)
        loader = DataLoader(batches, batch_size=None, sampler=sampler, num_workers=4)
        for epoch in range(batches.epoch, 100):
            sampler.set_epoch(epoch)
            for trained, batch in enumerate(loader, start=1):
                ...
                state = batches.state_dict(trained)

    Call `set_epoch` before every pass, unless your framework does this. `len(batches)` is the
    number of batches in the current epoch, a multiple of `world_size`. With the default options,
    every epoch has the same number of batches.

    Args:
        dataset: the clips. `dataset[i]` has the length `lengths[i]`.
        lengths, batch_size, strategy, options: see `plan_epoch`. Do not pass `epoch`.
        collate: a function that combines a list of clips into a batch. The default is PyTorch's
            `default_collate`.
        world_size: number of processes that share the batches (W).
        random_epochs: number of epochs at the start of training that use random batches (RAND).
            Each random batch contains `batch_size` clips. With `dynamic_batch_size` and
            `batch_capacity`, a random batch contains as many clips as fit into `batch_capacity`.
        batches_per_epoch: number of batches in every epoch, summed over all processes. With
            "constant", every epoch has 1% more batches than the first epoch needs. With
            "per_phase", all random epochs have the same number of batches, and all later epochs
            have the same, usually smaller, number of batches. Use "per_phase" with `random_epochs`,
            because random epochs need many more batches than later epochs. The Hugging Face Trainer
            does not support "per_phase".
        batches_per_update: number of batches of similar length per optimizer step, summed over all
            processes; a multiple of W (default: W).
        record: path of a file in the run's folder, for trainers such as the Hugging Face Trainer
            that do not save the state of their DataLoader. The first run writes a checksum of its
            batches to this file. A later run with different batches raises BatchingError. Without a
            record and without a loaded state, a pass must begin at the start of an epoch.

    Raises:
        BatchingError: if an option or a length is invalid, or if the batches differ from the
            batches that `record` describes.
        UserWarning: if random epochs need many more batches than later epochs, and
            `batches_per_epoch` is "constant".
    """

    def __init__(
        self,
        dataset: Any,
        lengths: Lengths,
        batch_size: int,
        strategy: StrategyName,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        world_size: int | None = None,
        random_epochs: int = 0,
        batches_per_epoch: BatchesPerEpoch = "constant",
        batches_per_update: int | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Unpack[PlanOptions],
    ):
        check_option_names(options, LengthBatches.__init__)
        if batches_per_epoch is None:
            raise BatchingError(
                'batches_per_epoch=None: expected a number, "constant" or "per_phase"'
            )
        if record is not None and random_epochs and batches_per_epoch == "per_phase":
            raise BatchingError(
                'record: cannot be combined with batches_per_epoch="per_phase", because a record '
                "requires the same number of batches in every epoch. "
                'Set random_epochs=0, or batches_per_epoch="constant".'
            )
        rank = None if world_size is None else 0
        _, self.world_size, size = resolve_ranks(rank, world_size, batches_per_update)
        self.batches_per_update = size
        self._world_size_given = world_size is not None
        self._planner = UpdatePlanner(
            lengths,
            batch_size,
            strategy,
            random_epochs=random_epochs,
            batches_per_update=size,
            batches_per_epoch=batches_per_epoch,
            **options,
        )
        if hasattr(dataset, "__len__") and len(dataset) != len(self._planner.lengths):
            found = f"{len(dataset):,} clips and {len(self._planner.lengths):,} lengths"
            raise BatchingError(
                f"the dataset has {found} were passed (expected one length per clip)"
            )
        self.dataset = dataset
        self.collate = collate
        self._updates = self._planner.updates_of(0)
        # These tensors are in shared memory, so that persistent workers see every change.
        self._shared_state = torch.tensor(PassState()).share_memory_()
        rows = torch.tensor([WorkerState()] * MAX_WORKERS, dtype=torch.int64)
        self._worker_states = rows.share_memory_()
        # Whether this copy of the object is in a worker of a stateful DataLoader.
        self._in_stateful_worker = False
        # After a state has been loaded, the next call of `set_epoch` accepts only these epochs.
        self._loaded_epochs: tuple[int, ...] = ()
        self._is_begun = False  # whether a RankSampler pass has begun in this epoch
        self._drawn = 0  # number of batches that this RankSampler pass has yielded
        self._has_record = record is not None and self._check_record(Path(record))
        if self._has_record:
            self._begin_epoch(0, UNKNOWN_START, is_set=False)

    # ------------------------------------------------------------------------ epochs

    @property
    def _state(self) -> PassState:
        return PassState(*self._shared_state.tolist())

    @_state.setter
    def _state(self, state: PassState) -> None:
        self._shared_state[:] = torch.tensor(state)

    def _begin_epoch(self, epoch: int, start: int, *, is_set: bool, ends_pass: bool = True) -> None:
        """Store the number and the start of a new epoch in the memory that the DataLoader workers
        share.

        If `ends_pass` is True, the workers reject indices from earlier passes.
        """
        state = self._state
        self._state = PassState(
            epoch, state.times_set + 1, start, is_set, state.pass_number + int(ends_pass)
        )
        self._is_begun = False
        if ends_pass:
            self._drawn = 0

    @property
    def epoch(self) -> int:
        """Return the current epoch, counted from 0."""
        return self._state.epoch

    def __len__(self) -> int:
        return len(self.plan)

    def total_batches(self, epochs: int) -> int:
        """Return the number of batches in the first `epochs` epochs, summed over all processes.

            updates = batches.total_batches(epochs=100) // batches.batches_per_update
            schedule = CosineAnnealingLR(optimizer, updates)

        Use the result to compute the length of a learning-rate schedule.
        """
        check_count("epochs", epochs, 0)
        random_epochs = min(epochs, self._planner.random_epochs)
        total = random_epochs * self._num_batches(0)
        return total + (epochs - random_epochs) * self._num_batches(self._planner.random_epochs)

    def _num_batches(self, epoch: int) -> int:
        return len(self._planner.updates_of(epoch).plan)

    def _current_updates(self) -> EpochUpdates:
        if self._updates.epoch != self.epoch:
            self._updates = self._planner.updates_of(self.epoch)
        return self._updates

    @property
    def plan(self) -> EpochPlan:
        """Return all batches of the current epoch, in the order of the optimizer steps."""
        return self._current_updates().plan

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0.

        If a loaded state is from the middle of this epoch, the pass begins at the loaded position.

        Raises:
            BatchingError: if the loaded state belongs to a different epoch.
        """
        check_count("epoch", epoch, 0)
        if self._loaded_epochs and epoch not in self._loaded_epochs:
            expected = " or ".join(map(str, self._loaded_epochs))
            raise BatchingError(
                f"set_epoch({epoch}): expected epoch {expected}, because of the loaded state"
            )
        state = self._state
        # Lightning begins the first pass of a DataLoader before calling `set_epoch`.
        is_first = epoch == state.epoch and not state.is_set
        position_was_loaded = epoch == state.epoch and not self._is_begun
        framework_skips = self._has_record and not state.is_set
        keeps_start = is_first or position_was_loaded or framework_skips
        start = state.start if keeps_start else 0
        self._loaded_epochs = ()
        self._begin_epoch(epoch, start, is_set=True, ends_pass=not is_first)

    # ------------------------------------------------------------------------ items

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index}: expected 0 to {len(self) - 1}")
        self._check_is_next(index)
        clips = self.plan[index].tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(clips))
        return self.collate([self.dataset[i] for i in clips])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if len(indices) != 1:
            raise BatchingError(
                f"the DataLoader requested {len(indices)} items at once, but each item is a whole "
                "batch: expected a DataLoader with batch_size=None, or with batch_size=1 and "
                "collate_fn=batches.unwrap"
            )
        return [self[indices[0]]]

    @staticmethod
    def unwrap(batches: Sequence[Any]) -> Any:
        """Return the only batch in a list of one batch. Use this function as the `collate_fn` of a
        DataLoader with `batch_size=1`."""
        if len(batches) != 1:
            raise BatchingError(
                f"the DataLoader joined {len(batches)} batches: expected DataLoader(batch_size=1)"
            )
        return batches[0]

    def _check_is_next(self, index: int) -> None:
        """Raise BatchingError unless `index` is the next batch of this worker."""
        info = get_worker_info()
        worker_id = info.id if info else 0
        workers = info.num_workers if info else 1
        if self._in_stateful_worker and not isinstance(index, BatchIndex):
            raise BatchingError(
                "the workers of a stateful DataLoader return batches of the wrong epoch, because "
                "they start before the epoch can be set. Use sampler=RankSampler(batches, rank) or "
                "num_workers=0. With accelerate, you can also set use_stateful_dataloader=False"
            )
        state = self._state
        worker = WorkerState(*self._worker_states[worker_id].tolist())
        first = max(state.start, 0)  # index of rank 0's first batch in this pass
        follows = worker.pass_id != 0
        follows = follows and (index, state.epoch) == (worker.next_index, worker.epoch)
        if isinstance(index, BatchIndex):
            pass_id = index.pass_number
            # Any worker may return the first batch of a pass, not just worker 0. For example, if
            # worker 2 returned the last batch, torchdata resumes with worker 3.
            begins = 0 <= index - first < self.world_size * workers
            is_next = follows if worker.pass_id == pass_id else begins
            is_next = is_next and pass_id == state.pass_number
        else:
            # An index from another sampler does not contain a pass number.
            pass_id = -state.times_set
            # Worker w of a process begins with the w-th batch of this process.
            offset = index - first - self.world_size * worker_id
            begins = offset >= 0 and (state.start == UNKNOWN_START or offset < self.world_size)
            is_next = follows if worker.pass_id == pass_id else begins
            epoch_was_set_late = follows and worker.pass_id != pass_id and not worker.epoch_was_set
            if epoch_was_set_late:  # set_epoch was called after the pass had begun
                is_next = True
                pass_id = worker.pass_id
        if not is_next:
            expected = worker.next_index
            if worker.pass_id != pass_id:
                expected = first + self.world_size * worker_id
            hints = ""
            if not isinstance(index, BatchIndex):
                hints = (
                    ". With your own loop or Lightning, pass sampler=RankSampler(batches, rank) to "
                    "the DataLoader, because Lightning otherwise adds a sampler of its own "
                    "(use_distributed_sampler)"
                )
            if index > first:
                hints += (
                    ". To resume in the middle of an epoch, load the saved state or pass record="
                )
            raise BatchingError(
                f"LengthBatches: got batch {index} of epoch {state.epoch}, expected batch "
                f"{expected}. Call set_epoch before every pass and never inside a pass, and "
                "distribute the batches in order (shuffle=False, in_order=True) to "
                f"world_size={self.world_size} processes{hints}"
            )
        next_index = index + self.world_size * workers
        self._worker_states[worker_id] = torch.tensor(
            WorkerState(pass_id, next_index, state.epoch, state.is_set)
        )

    # ------------------------------------------------------------------------ checkpoints

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """Return the state for a checkpoint.

            state = batches.state_dict(trained)

        Args:
            trained: number of batches that this process has trained on since `set_epoch`. Pass None
                if the framework itself counts these batches and skips them when training resumes.

        Raises:
            BatchingError: if `trained` exceeds the number of batches that `RankSampler` has
                yielded.
        """
        # A stateful DataLoader also calls `state_dict` in its workers, for the first time when the
        # workers start.
        if get_worker_info() is not None:
            self._in_stateful_worker = True
            return {}
        updates = self._current_updates()
        start = self._state.start
        if trained is None:
            return {**updates.state_at(0), "batches_trained": None}
        if start == UNKNOWN_START:
            raise BatchingError(
                f"state_dict({trained}): the framework distributes and counts the batches itself; "
                "expected state_dict() without an argument, or a DataLoader with RankSampler"
            )
        check_trained(trained, self._drawn)
        return updates.state_at(start + trained * self.world_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position where the state was saved.

        Raises:
            BatchingError: if the state belongs to different batches, or if `set_epoch` was already
                called for a different epoch.
        """
        if get_worker_info() is not None:
            return  # the workers receive the state from the main process
        check_loaded_state(state)
        epoch = state["epoch"]
        trained = state["batches_trained"]
        may_be_over = trained in (None, state.get("num_batches"))
        was_set = self._state.is_set
        if was_set and may_be_over and self.epoch == epoch + 1:
            # The state was saved at the end of an epoch, and `set_epoch` has already selected the
            # next epoch.
            return
        if was_set and self.epoch != epoch:
            raise BatchingError(
                f"load_state_dict: the state belongs to epoch {epoch}, but set_epoch({self.epoch}) "
                "has already been called"
            )
        if trained != 0:
            self._planner.updates_of(epoch).check_state(state, self.world_size)
        self._has_record = False
        self._loaded_epochs = (epoch, epoch + 1) if may_be_over else (epoch,)
        start = UNKNOWN_START if trained is None else trained
        self._begin_epoch(epoch, start, is_set=was_set)

    def _check_record(self, record: Path) -> bool:
        """Write the record file if it does not exist. Return whether the record file already
        existed.

        Raises:
            BatchingError: if the file describes batches that differ from the batches of this run.
        """
        # A record of version 0.4.0 contains only the first line, which describes epoch 0.
        first_line = f"plan_checksum={self._updates.checksum} world_size={self.world_size}\n"
        expected = first_line
        if self._planner.random_epochs:
            later = self._planner.updates_of(self._planner.random_epochs)
            expected += f"plan_checksum_after_random_epochs={later.checksum}\n"
        if not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            unfinished = record.with_name(f".{record.name}.{os.getpid()}.tmp")
            unfinished.write_text(expected, encoding="utf-8")
            unfinished.replace(record)
            return False
        if record.read_text(encoding="utf-8") not in (expected, first_line):
            raise BatchingError(
                f"{record}: the run in this folder was started with different batches. Resume it "
                "with the same clips, options and number of processes, or start a new run in a "
                "different folder."
            )
        return True

    # ------------------------------------------------------------------------ for RankSampler

    def _begin_pass(self, position: int | None, saved_epoch: int) -> int:
        """Begin a `RankSampler` pass, and return the index of its first batch.

        position: index of the batch at which a DataLoader resumes in epoch `saved_epoch`; None if
        the DataLoader does not resume from its own state.
        """
        state = self._state
        epoch = state.epoch
        if position is None and state.start == UNKNOWN_START and not self._has_record:
            raise BatchingError(
                "the loaded state does not contain the number of trained batches. Save the state "
                "with state_dict(trained)."
            )
        first = max(state.start, 0) if position is None else position
        next_was_set = False
        # Some DataLoaders call `set_epoch` only after the pass has begun.
        if first == len(self) and not state.is_set:
            epoch += 1
            first = 0
            self._begin_epoch(epoch, first, is_set=False)
        elif position is not None and position == self._num_batches(saved_epoch):
            if epoch == saved_epoch:
                return position
            next_was_set = True
            first = 0
        if self._is_begun:
            raise BatchingError(
                f"epoch {epoch}: a pass has already begun. Call set_epoch before every pass."
            )
        # If the state was saved after the end of a pass, torchdata starts the next pass twice,
        # because it discards its first iterator and creates a second iterator. Therefore, the first
        # start is ignored.
        self._is_begun = not next_was_set
        self._loaded_epochs = ()
        self._drawn = 0
        state = self._state
        self._state = state._replace(start=first, pass_number=state.pass_number + 1)
        return first

    def _end_pass(self) -> None:
        if self._drawn:
            self._is_begun = True

    def _draw(self, number: int) -> BatchIndex:
        self._drawn += 1
        index = BatchIndex(number)
        index.pass_number = self._state.pass_number
        return index


class RankSampler(DistributedSampler[int]):
    """Yield the batch indices of one rank in order, for a DataLoader with `batch_size=None`.

        sampler = RankSampler(batches, rank)
        loader = DataLoader(batches, batch_size=None, sampler=sampler)
        sampler.set_epoch(epoch)  # before every pass; this also sets the epoch of `batches`

    Rank r of W processes receives batches r, r + W, r + 2 W, ... This class inherits from
    DistributedSampler, so that frameworks do not replace the sampler. The DataLoaders of torchdata
    save the position of the sampler's iterator.

    Raises:
        BatchingError: if the rank is negative, or greater than batches.world_size - 1.
    """

    def __init__(self, batches: LengthBatches, rank: int = 0):
        if not 0 <= rank < batches.world_size:
            raise BatchingError(
                f"rank={rank}, world_size={batches.world_size}: the rank is out of range (expected "
                f"0 to {batches.world_size - 1}). Pass the number of processes to LengthBatches as "
                "world_size"
            )
        super().__init__(batches, num_replicas=batches.world_size, rank=rank, shuffle=False)
        self.batches = batches

    def __len__(self) -> int:
        """Return the number of this rank's batches in the whole epoch.

        If training resumes in the middle of the epoch, the result is still the number of batches in
        the whole epoch.
        """
        return len(self.batches) // self.batches.world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, both in this sampler and in its `LengthBatches`."""
        super().set_epoch(epoch)
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if not self.batches._world_size_given:
            check_trains_alone()
        return RankIterator(self.batches, self.rank)


class RankIterator(Iterator[int]):
    """Iterate over the batches of one rank in one pass.

    The pass begins when its first batch is drawn. A DataLoader with workers creates two iterators,
    but draws batches from only one of them.
    """

    def __init__(self, batches: LengthBatches, rank: int):
        self.batches = batches
        self.rank = rank
        # Total number of batches that all processes have drawn. None: the pass has not begun.
        self.position: int | None = None
        self.is_begun = False
        self.saved_epoch = 0  # epoch of the position that `load_state_dict` restored

    def __next__(self) -> int:
        if not self.is_begun:
            self.position = self.batches._begin_pass(self.position, self.saved_epoch)
            self.is_begun = True
        assert self.position is not None  # `position` is set when the pass begins
        number = self.position + self.rank
        if number >= len(self.batches):
            self.batches._end_pass()
            raise StopIteration
        self.position += self.batches.world_size
        return self.batches._draw(number)

    def state_dict(self) -> dict[str, Any]:
        """Return the current position, which a torchdata DataLoader stores in its state."""
        if self.position is None:
            return self.batches.state_dict(0)
        return self.batches._current_updates().state_at(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position in a state that `state_dict` returned."""
        self.batches.load_state_dict(state)
        self.position = state["batches_trained"]
        self.saved_epoch = state["epoch"]
