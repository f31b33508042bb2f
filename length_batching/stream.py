"""Batch a stream of items whose lengths are not known in advance."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Unpack

import torch
from torch.utils.data import IterableDataset, get_worker_info

from length_batching.checks import (
    BatchingError,
    check_count,
    check_equal_shares,
    check_trains_alone,
    resolve_ranks,
)
from length_batching.options import PlanOptions, check_option_names, check_options
from length_batching.strategies import StrategyName
from length_batching.updates import UpdatePlanner

MAX_WORKERS = 1024
MAX_WINDOWS = 10**6  # maximum number of windows per epoch
START = {
    "epoch": 0,
    "batches_trained": 0,
    "dealt_from": 0,  # index of the first batch that the first worker yields
    "batches_before": 0,  # total number of batches in the previous windows
    "items_before": 0,  # total number of items in the previous windows
    "window": 0,  # index of the first window to read
}


class Window(NamedTuple):
    """The position at which a window of items begins, counted from the start of the epoch."""

    batches_before: int
    items_before: int
    number: int


class LengthBatchStream(IterableDataset[list[Any]]):
    """Yield batches (lists of items) from a stream, for a DataLoader with `batch_size=None`.

        stream = LengthBatchStream(lambda skip: itertools.islice(read_items(), skip, None), len, 16,
                                   "semi_sorted", dynamic_batch_size=True, batch_capacity=20_000)
        loader = DataLoader(stream, batch_size=None, collate_fn=pad)
        for epoch in range(100):
            stream.set_epoch(epoch)
            for batch in loader:
                ...

    The stream reads `window` items at a time, and plans the batches of these items as if the items
    were a whole epoch. Call `set_epoch` before every pass. You can stop a pass early and then set
    the same epoch again.

    Every process and every DataLoader worker reads the whole stream, but yields only its own share
    of the batches. Because every worker reads all items, the items should be small, such as paths,
    and `collate_fn` should load the data. All processes receive the same number of batches. Do not
    pass the DataLoader to accelerate's `prepare`, because `prepare` would distribute the batches
    among the processes a second time.

    Args:
        read: a function `read(skip)` that returns the stream's items except the first `skip`. The
            order of the items must be the same in every process and in every call within an epoch.
        length: a function that returns the length of an item, or several lengths of different
            kinds.
        batch_size, strategy, options: see `LengthBatchSampler`. Dynamic batch sizes require
            `batch_capacity`, because the length of the longest item is not known.
        window: number of items that are planned together. If less than half a window is left at the
            end of the stream, the remaining items are added to the previous window. Two windows are
            in memory at the same time.
        batches_per_update: number of batches per optimizer step, summed over all processes; a
            multiple of `world_size`. Default: `world_size`. To resume training with a different
            number of processes, keep `batches_per_update` the same.
        rank, world_size: the rank of this process, and the number of processes that share the
            batches. Default: a single process.

    Raises:
        BatchingError: if an option is invalid, or if a length that is read during a pass is
            invalid.
    """

    def __init__(
        self,
        read: Callable[[int], Iterator[Any]],
        length: Callable[[Any], Any],
        batch_size: int,
        strategy: StrategyName,
        *,
        window: int = 4096,
        batches_per_update: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[PlanOptions],
    ):
        check_option_names(options, LengthBatchStream.__init__)
        check_options({"batch_size": batch_size, "strategy": strategy, **options})
        if options.get("dynamic_batch_size") and options.get("batch_capacity") is None:
            raise BatchingError(
                "batch_capacity: missing. A stream with dynamic_batch_size=True needs a value, because "
                "the length of its longest item is not known."
            )
        check_count("window", window)
        self.read = read
        self.length = length
        self.window = window
        self.batch_size = batch_size
        self.strategy = strategy
        self.options = options
        self.rank, self.world_size, self.batches_per_update = resolve_ranks(
            rank, world_size, batches_per_update
        )
        self._world_size_given = world_size is not None
        # These tensors are in shared memory, so that persistent workers see every change.
        self._epoch_and_times_set = torch.zeros(2, dtype=torch.int64).share_memory_()
        # [workers] For each worker: the value of `times_set` at the end of the worker's last pass.
        # -1: the worker has not finished a pass.
        self._finished_at = torch.full((MAX_WORKERS,), -1).share_memory_()
        # The state that was loaded from a checkpoint. None: no state was loaded, or a different
        # epoch was set later.
        self._loaded: Mapping[str, int] | None = None
        self._times_set_at_load = 0
        self._begin_at(START)

    def _begin_at(self, state: Mapping[str, int]) -> None:
        self.epoch = state["epoch"]
        self._start = state["batches_trained"]
        self._drawn = self._start  # number of batches drawn in this epoch by all processes
        self._first_worker_batch = state["dealt_from"]
        self._windows = [Window(state["batches_before"], state["items_before"], state["window"])]
        self._finished = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0.

        If a loaded state is from the middle of this epoch, the pass begins at the loaded position.

        Raises:
            BatchingError: if a state from the middle of a different epoch was loaded, and training
                would skip the rest of that epoch.
        """
        # Whether this process or a worker has finished a pass since the last `set_epoch`.
        pass_has_ended = bool((self._finished_at == self._epoch_and_times_set[1]).any())
        if self._loaded is not None and not pass_has_ended:
            loaded_epoch = self._loaded["epoch"]
            if epoch == loaded_epoch:
                return
            if self._start > 0:
                raise BatchingError(
                    f"set_epoch({epoch}): expected epoch {loaded_epoch}, because the loaded state "
                    f"is inside epoch {loaded_epoch}. Train on the rest of epoch {loaded_epoch} "
                    "first."
                )
        self._loaded = None
        times_set = self._epoch_and_times_set[1] + 1
        self._epoch_and_times_set[:] = torch.tensor([epoch, times_set])
        self._begin_at(START | {"epoch": epoch})

    def state_dict(self, trained: int | None = None) -> dict[str, int]:
        """Return the state for a checkpoint.

        Args:
            trained: number of batches that this process has trained on since `set_epoch`. None: the
                number of batches that this process has drawn. Only torchdata's StatefulDataLoader
                should pass `trained=None`. Workers of a PyTorch DataLoader draw batches ahead of
                time, so this process may have drawn more batches than it has trained on.
        """
        if trained is None and self._finished:
            return START | {"epoch": self.epoch + 1}
        position = self._drawn if trained is None else self._start + trained * self.world_size
        window = max(known for known in self._windows if known.batches_before <= position)
        in_stateful_worker = trained is None and get_worker_info() is not None
        return {
            "epoch": self.epoch,
            "batches_trained": position,
            "dealt_from": self._first_worker_batch if in_stateful_worker else position,
            "batches_before": window.batches_before,
            "items_before": window.items_before,
            "window": window.number,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume at the position where the state was saved.

        The stream is read again from the start of the window that contains this position.

        Raises:
            BatchingError: if the processes have trained on unequal numbers of batches.
        """
        trained = state["batches_trained"]
        if get_worker_info() is None:  # torchdata also calls `load_state_dict` in its workers
            check_equal_shares(trained, trained % self.world_size == 0, self.world_size)
            self._loaded = None
            self.set_epoch(state["epoch"])
        self._loaded = dict(state)
        self._times_set_at_load = int(self._epoch_and_times_set[1])
        self._begin_at(state)

    def _read_windows(self, skip: int) -> Iterator[list[Any]]:
        items = iter(self.read(skip))
        window = list(itertools.islice(items, self.window))
        while window:
            following = list(itertools.islice(items, self.window))
            if 2 * len(following) < self.window:
                window += following
                following = []
            yield window
            window = following

    def __iter__(self) -> Iterator[list[Any]]:
        info = get_worker_info()
        worker_id = info.id if info else 0
        workers = info.num_workers if info else 1
        if not self._world_size_given and info is None:
            check_trains_alone()
        epoch, times_set = self._epoch_and_times_set.tolist()
        if self._finished_at[worker_id] == times_set:
            raise BatchingError(
                f"epoch {epoch}: a pass has already ended. Call set_epoch before every pass."
            )
        loaded = self._loaded if self._times_set_at_load == times_set else None
        self._begin_at(loaded or START | {"epoch": epoch})
        start = self._drawn
        [(before, items, number)] = self._windows
        for window in self._read_windows(items):
            planner = UpdatePlanner(
                [self.length(item) for item in window],
                self.batch_size,
                self.strategy,
                batches_per_update=self.batches_per_update,
                **self.options,
            )
            plan = planner.updates_of(self.epoch * MAX_WINDOWS + number).plan
            for position, batch in enumerate(plan, start=before):
                turn, rank = divmod(position - self._first_worker_batch, self.world_size)
                if position >= start and rank == self.rank and turn % workers == worker_id:
                    self._drawn = position - rank + self.world_size
                    yield [window[i] for i in batch]
            before += len(plan)
            items += len(window)
            number += 1
            self._windows.append(Window(before, items, number))
        if items == 0:
            raise BatchingError(
                "read(0) returned no items. Each call must return all items of the stream"
            )
        self._finished = True
        # If the state was saved at the end of the epoch, torchdata begins the next pass by itself.
        # Therefore, a resumed worker may make a second pass in this epoch.
        resumed_in_worker = info is not None and loaded is not None
        if not resumed_in_worker:
            self._finished_at[worker_id] = times_set
