"""LengthBatches: a dataset whose items are batches, for training frameworks and several processes.

    batches = LengthBatches(dataset, lengths, 16, "semi_sorted", collate=pad, world_size=2,
                            dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(batches, batch_size=None, sampler=InOrder(batches, rank), num_workers=4)
    for epoch in range(batches.epoch, 100):
        loader.sampler.set_epoch(epoch)
        for trained, batch in enumerate(loader, start=1):
            ...
            state = batches.state_dict(trained)

Every framework can deal out, skip, count and resume the items of a dataset. Where the items are
batches, it need know nothing of lengths. docs/batching.md has the lines for each framework.

Batches must be asked for in their order: every W-th, from the rank's on, by each of W processes.
Each worker of a loader knows the number that it must be asked for next. Any other number means that
clips would be lost or repeated, and raises BatchingError.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, default_collate, get_worker_info

from length_batching.checks import (
    BatchingError,
    Lengths,
    check_count,
    check_ranks,
    refuse_missing_ranks,
)
from length_batching.plan import EpochPlan, refuse_unknown_options
from length_batching.sampler import refuse_more_than_drawn
from length_batching.updates import EpochUpdates, UpdatePlanner

MAX_WORKERS = 1024  # of a loader
ANYWHERE = -1  # as the start of a pass: the framework that resumes knows it, and skips up to there


class Dealt(int):
    """The number of a batch, and the pass for which `InOrder` dealt it out. A worker that persists
    may be asked late for a batch of a pass that was broken off."""

    dealt_pass: int


class LengthBatches(Dataset[Any]):
    """A map-style dataset of collated batches: `batches[i]` is batch i of this epoch. Call
    `set_epoch` before every pass, unless a framework does. `len(batches)` is the same in every
    epoch, and a multiple of `world_size`.

    Args:
        dataset: the items that make the batches.
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        collate: makes a batch of a list of items; torch's `default_collate` by default.
        world_size: the processes among which the batches are dealt out, W.
        random_epochs: as `UpdatePlanner` takes it.
        batches_per_epoch: a number, or "constant": 1 % more than the first epoch has.
        batches_per_update: batches of similar length that share an update, of all processes
            together; a multiple of W, which is the default.
        record: a file in the run's folder, for trainers that save no state of their data
            (transformers'). The first run writes there what its batches follow from, and a later
            one whose batches would be others is refused. Without a record, and without a loaded
            state, a pass that begins inside an epoch is refused.
    """

    def __init__(
        self,
        dataset: Any,
        lengths: Lengths,
        batch_size: int,
        strategy: str,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        world_size: int | None = None,
        random_epochs: int = 0,
        batches_per_epoch: int | str = "constant",
        batches_per_update: int | None = None,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ):
        refuse_unknown_options(type(self).__name__, options)
        if batches_per_epoch is None:
            raise BatchingError('batches_per_epoch=None: expected a number, or "constant"')
        rank = None if world_size is None else 0
        _, self.world_size, size = check_ranks(rank, world_size, batches_per_update)
        self.knows_world_size = world_size is not None
        self._planner = UpdatePlanner(
            lengths,
            batch_size,
            strategy,
            random_epochs=random_epochs,
            batches_per_update=size,
            batches_per_epoch=batches_per_epoch,
            **options,
        )
        self.dataset, self.collate = dataset, collate
        self._updates = self._planner.updates_of(0)
        # Shared with a loader's workers, also while they persist. In words: the epoch, how often it
        # was set or loaded, the batch with which its pass begins, whether it was set, and the
        # number of the pass that InOrder deals out.
        self._told = torch.tensor([0, 1, 0, 0, 0]).share_memory_()
        # Of each worker: the pass that it works at, the batch it must be asked for next, the epoch,
        # and whether that was set before the pass began.
        self._workers = torch.zeros((MAX_WORKERS, 4), dtype=torch.int64).share_memory_()
        self._loaded: tuple[int, ...] = ()  # epochs that may be set first, after a state was loaded
        self._is_begun, self._drawn = False, 0  # of a pass of InOrder
        self._has_record = record is not None and self._agrees_with(Path(record))
        if self._has_record:
            self._tell(0, ANYWHERE, is_set=False)

    def _tell(self, epoch: int, start: int, is_set: bool, ends_pass: bool = True) -> None:
        _, turn, _, _, passes = self._told.tolist()
        values = [epoch, turn + 1, start, int(is_set), passes + int(ends_pass)]
        self._told[:] = torch.tensor(values)
        self._is_begun, self._drawn = False, 0 if ends_pass else self._drawn

    @property
    def epoch(self) -> int:
        """That was set or loaded; 0 at first."""
        return int(self._told[0])

    def __len__(self) -> int:
        return len(self._updates.plan)

    def updates(self) -> EpochUpdates:
        """This epoch's batches, planned once in every process and worker."""
        if self._updates.epoch != self.epoch:
            self._updates = self._planner.updates_of(self.epoch)
        return self._updates

    @property
    def plan(self) -> EpochPlan:
        """All batches of the epoch, update after update."""
        return self.updates().plan

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch `epoch` (from 0) with the next pass. A position in it that was just loaded
        stays; BatchingError if that is in another epoch."""
        check_count("epoch", epoch, 0)
        if self._loaded and epoch not in self._loaded:
            expected = " or ".join(map(str, self._loaded))
            raise BatchingError(f"set_epoch({epoch}): a state of epoch {expected} was loaded")
        current, _, start, was_set, _ = self._told.tolist()
        # A loader may begin its first pass before it is told the epoch, as under Lightning.
        first = epoch == current and not was_set
        keeps = first or (epoch == current and not self._is_begun)
        keeps = keeps or (self._has_record and not was_set)
        self._loaded = ()
        self._tell(epoch, start if keeps else 0, is_set=True, ends_pass=not first)

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number}: expected 0 to {len(self) - 1}")
        self._refuse_unless_next(number)
        clips = self.plan[number].tolist()
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(clips))
        return self.collate([self.dataset[i] for i in clips])

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if len(numbers) != 1:
            raise BatchingError(
                f"{len(numbers)} items were asked for at once, and each is a whole batch; expected "
                "a loader with batch_size=1 and collate_fn=batches.unwrap, or batch_size=None"
            )
        return [self[numbers[0]]]

    @staticmethod
    def unwrap(batches: Sequence[Any]) -> Any:
        """The `collate_fn` of a loader with batch_size=1: the only batch."""
        if len(batches) != 1:
            raise BatchingError(f"{len(batches)} batches in one; expected batch_size=1")
        return batches[0]

    def _refuse_unless_next(self, number: int) -> None:
        """Raise BatchingError unless this worker must be asked for this batch next."""
        worker = get_worker_info()
        index, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if workers > MAX_WORKERS:
            raise BatchingError(f"num_workers={workers}: expected at most {MAX_WORKERS}")
        epoch, turn, start, is_set, dealt_pass = self._told.tolist()
        works_at, expected, its_epoch, was_set = self._workers[index].tolist()
        follows = works_at != 0 and (number, epoch) == (expected, its_epoch)
        ahead = number - max(start, 0)  # of the batch with which rank 0 begins the pass
        if isinstance(number, Dealt):
            # torchdata resumes with the worker after the one that it took the last batch from.
            begins = 0 <= ahead < self.world_size * workers
            current = number.dealt_pass
            is_right = current == dealt_pass and (follows if works_at == current else begins)
        else:
            lead = ahead - self.world_size * index  # worker w begins with the rank's w-th batch
            begins = lead >= 0 and (start == ANYWHERE or lead < self.world_size)
            current = -turn  # all that is known of the pass
            is_right = follows if works_at == current else begins
            if follows and works_at != current and not was_set:
                is_right, current = True, works_at  # the epoch was set after the pass had begun
        if not is_right:
            if works_at != current:
                expected = self.world_size * index + max(start, 0)
            inside = "; resuming inside an epoch needs the saved state, or record=" * (ahead > 0)
            raise BatchingError(
                f"LengthBatches: batch {number} of epoch {epoch} was asked for where {expected} is "
                "next. Call set_epoch before every pass and never inside one, and deal the batches "
                f"out in order (shuffle=False, in_order=True) to world_size={self.world_size} "
                f"processes{inside}"
            )
        following = number + self.world_size * workers
        self._workers[index] = torch.tensor([current, following, epoch, is_set])

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """Where to resume: after `trained` batches that this process has trained since `set_epoch`.
        Without it, somewhere in this epoch, for frameworks that count and skip themselves."""
        if get_worker_info() is not None:
            return {}  # torchdata's workers ask at every step
        updates, start = self.updates(), int(self._told[2])
        if trained is None:
            return {**updates.state_at(0), "batches_trained": None}
        if start == ANYWHERE:
            raise BatchingError(
                f"state_dict({trained}): a framework deals these batches out and counts them; "
                "expected state_dict(), or a loader with InOrder"
            )
        refuse_more_than_drawn(trained, self._drawn)
        return updates.state_at(start + trained * self.world_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume in the saved epoch. BatchingError if its plan is another, or another epoch was set
        already."""
        if get_worker_info() is not None:
            return  # the main process tells its workers
        epoch, trained, was_set = state["epoch"], state["batches_trained"], bool(self._told[3])
        may_be_over = trained in (None, state["num_batches"])
        if was_set and may_be_over and self.epoch == epoch + 1:
            return  # saved between two epochs, of which the next was set
        if was_set and self.epoch != epoch:
            raise BatchingError(
                f"a state of epoch {epoch} was loaded after set_epoch({self.epoch})"
            )
        if trained != 0:
            self._planner.updates_of(epoch).refuse_other(state, self.world_size)
        self._has_record = False
        self._loaded = (epoch, epoch + 1) if may_be_over else (epoch,)
        self._tell(epoch, ANYWHERE if trained is None else trained, is_set=was_set)

    def begin(self, position: int | None, saved_epoch: int) -> int:
        """Begin a pass of `InOrder`, at this batch if a loader resumed it from its state in
        `saved_epoch`. Returns the batch."""
        epoch, _, start, is_set, _ = self._told.tolist()
        if position is None and start == ANYWHERE and not self._has_record:
            raise BatchingError("the loaded state has no position: expected state_dict(trained)")
        first: int = max(start, 0) if position is None else position
        if first == len(self) and not is_set:  # by a loader that says later which epoch begins
            epoch, first = epoch + 1, 0
            self._tell(epoch, first, is_set=False)
        elif position == len(self):
            if epoch == saved_epoch:
                return position
            first = 0  # the epoch after it was set
        if self._is_begun:
            raise BatchingError(
                f"epoch {epoch} was begun already: call set_epoch before every pass"
            )
        self._is_begun, self._loaded, self._drawn = True, (), 0
        self._told[2] = first
        self._told[4] += 1
        return first

    def deal(self, number: int) -> "Dealt":
        """A batch of the pass that `begin` began last."""
        self._drawn += 1
        dealt = Dealt(number)
        dealt.dealt_pass = int(self._told[4])
        return dealt

    def _agrees_with(self, record: Path) -> bool:
        """Whether the record is there, which is written if not; BatchingError if it is of other
        batches."""
        ours = f"plan_checksum={self._updates.checksum} world_size={self.world_size}\n"
        if not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            unfinished = record.with_name(f".{record.name}.{os.getpid()}.tmp")
            unfinished.write_text(ours, encoding="utf-8")
            unfinished.replace(record)
            return False
        if record.read_text(encoding="utf-8") != ours:
            raise BatchingError(
                f"{record}: the run in this folder has other batches: resume it with the same "
                "clips, options and number of processes, or begin another in another folder"
            )
        return True


class InOrder(DistributedSampler[int]):
    """Deals `LengthBatches` out to processes: every W-th, from the rank's on. For a loader with
    `batch_size=None`. `set_epoch` goes on to the batches.

    It is a DistributedSampler, so frameworks leave it as it is. Its iterator holds the position
    that torchdata's loaders save.
    """

    def __init__(self, batches: LengthBatches, rank: int = 0):
        if not 0 <= rank < batches.world_size:
            given = f"rank={rank}, world_size={batches.world_size}"
            expected = "expected LengthBatches(..., world_size=the number of processes)"
            raise BatchingError(f"{given}: {expected}")
        super().__init__(batches, num_replicas=batches.world_size, rank=rank, shuffle=False)
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if not self.batches.knows_world_size:
            refuse_missing_ranks()
        return InOrderPass(self.batches, self.rank)


class InOrderPass(Iterator[int]):
    """A pass, which begins with its first draw: loaders with workers make two and use one."""

    def __init__(self, batches: LengthBatches, rank: int):
        self.batches, self.rank = batches, rank
        self.position: int | None = (
            None  # batches that all processes have drawn; None: at its start
        )
        self.is_begun, self.saved_epoch = False, 0

    def __next__(self) -> int:
        if not self.is_begun:
            self.position = self.batches.begin(self.position, self.saved_epoch)
            self.is_begun = True
        assert self.position is not None  # from here on
        number = self.position + self.rank
        if number >= len(self.batches):
            raise StopIteration
        self.position += self.batches.world_size
        return self.batches.deal(number)

    def state_dict(self) -> dict[str, Any]:
        if self.position is None:
            return self.batches.state_dict(0)
        return self.batches.updates().state_at(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state_dict(state)
        self.position, self.saved_epoch = state["batches_trained"], self.batches.epoch
