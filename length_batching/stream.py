"""LengthBatchStream: batches from a stream of items whose lengths are not known beforehand.

stream = LengthBatchStream(lambda skip: itertools.islice(read_items(), skip, None), len, 16,
                           "semi_sorted", dynamic_batch_size=True, batch_capacity=20_000)
loader = DataLoader(stream, batch_size=None, collate_fn=pad)
for epoch in range(100):
    stream.set_epoch(epoch)
    for batch in loader:
        ...
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from length_batching.checks import BatchingError, check_ranks, refuse_missing_ranks
from length_batching.plan import refuse_unknown_options
from length_batching.updates import UpdatePlanner

MAX_WORKERS = 1024  # of a loader
START = dict.fromkeys(
    ("epoch", "batches_trained", "dealt_from", "batches_before", "items_before", "window"), 0
)


class LengthBatchStream(IterableDataset[list[Any]]):
    """Batches, lists of items, from a stream: `window` items at a time are read and planned like
    the clips of an epoch. For a DataLoader with `batch_size=None`.

    Call `set_epoch` before every pass; one that was broken off may be repeated. Every process, and
    every worker of a loader, reads the whole stream and yields its share of the batches, so items
    should be small, such as paths, and be loaded by `collate_fn`. Processes get equally many
    batches. Nothing else may deal the batches out: accelerate must not prepare the loader.

    Args:
        read: gives the stream's items after the first `skip`: read(skip). They must come in the
            same order in every process, and for `read(0)` and `read(n)`, until `set_epoch`.
        length: of an item, or its lengths of several kinds.
        batch_size, strategy, options: of `LengthBatchSampler`. Dynamic sizes need `batch_capacity`.
        window: items planned together; a last one of less than half belongs to that before. Two
            are in memory at once.
        batches_per_update: a multiple of world_size, which is the default. With the same
            number, training resumes with any number of processes.
        rank, world_size: this process, and how many share the batches. By default one trains alone.
    """

    def __init__(
        self,
        read: Callable[[int], Iterator[Any]],
        length: Callable[[Any], Any],
        batch_size: int,
        strategy: str,
        *,
        window: int = 4096,
        batches_per_update: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ):
        refuse_unknown_options(type(self).__name__, options)
        if options.get("dynamic_batch_size") and options.get("batch_capacity") is None:
            unknown = "the longest clip of a stream is not known; expected a number"
            raise BatchingError(f"batch_capacity=None: {unknown}")
        if window < 1:
            raise BatchingError(f"window={window}: expected a whole number, at least 1")
        self.read, self.length, self.window = read, length, window
        self.rank, self.world_size, self.batches_per_update = check_ranks(
            rank, world_size, batches_per_update
        )
        self._knows_ranks = world_size is not None
        self.arguments: dict[str, Any] = {"batch_size": batch_size, "strategy": strategy, **options}
        # Shared with a loader's workers, also while they persist: the epoch, how often it was set,
        # and, of each worker, the count of the latter when it ended a pass.
        self._shared = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._finished_in = torch.full((MAX_WORKERS,), -1).share_memory_()
        self._loaded: Mapping[str, int] | None = None  # until the epoch is set
        self._times_set = 0  # when it was loaded
        self._begin(START)

    def _begin(self, state: Mapping[str, int]) -> None:
        self.epoch, self._start = state["epoch"], state["batches_trained"]
        self.drawn = self._start  # batches of this epoch, by all processes
        self.dealt_from = state["dealt_from"]  # the batch that the first worker yields first
        self.windows = [(state["batches_before"], state["items_before"], state["window"])]
        self._finished = False

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next pass. A position in it that was just loaded stays;
        BatchingError if that is inside another epoch."""
        if self._loaded is not None and not self._is_finished():
            if epoch == self._loaded["epoch"]:
                return
            if self._start > 0:
                loaded = f"a position inside epoch {self._loaded['epoch']} was loaded"
                raise BatchingError(f"set_epoch({epoch}): {loaded}; train the rest of that first")
        self._loaded = None
        self._shared[:] = torch.tensor([epoch, self._shared[1] + 1])
        self._begin(START | {"epoch": epoch})

    def _is_finished(self) -> bool:
        """Whether a pass of the epoch that was set or loaded has ended in a worker, or here."""
        return bool((self._finished_in == self._shared[1]).any())

    def state_dict(self, trained: int | None = None) -> dict[str, int]:
        """Where to resume: after `trained` batches that this process has trained since `set_epoch`.
        Without it, after those drawn in this process, as torchdata's StatefulDataLoader asks its
        workers; other loaders with workers draw ahead."""
        if trained is None and self._finished:
            return START | {"epoch": self.epoch + 1}
        position = self.drawn if trained is None else self._start + trained * self.world_size
        before, items, window = max(known for known in self.windows if known[0] <= position)
        in_worker = trained is None and get_worker_info()
        return {
            "epoch": self.epoch,
            "batches_trained": position,
            "dealt_from": self.dealt_from if in_worker else position,
            "batches_before": before,
            "items_before": items,
            "window": window,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume inside the saved epoch. The stream is read from the last window known then."""
        trained = state["batches_trained"]
        if get_worker_info() is None:  # in workers, torchdata calls this
            if trained % self.world_size:
                expected = f"expected an equal number in each of {self.world_size} processes"
                raise BatchingError(f"batches_trained={trained}: {expected}")
            self._loaded = None
            self.set_epoch(state["epoch"])
        self._loaded, self._times_set = dict(state), int(self._shared[1])
        self._begin(state)

    def _read_windows(self, skip: int) -> Iterator[list[Any]]:
        items = iter(self.read(skip))
        window = list(itertools.islice(items, self.window))
        while window:
            following = list(itertools.islice(items, self.window))
            if 2 * len(following) < self.window:
                window, following = window + following, []
            yield window
            window = following

    def __iter__(self) -> Iterator[list[Any]]:
        worker, (epoch, times_set) = get_worker_info(), self._shared.tolist()
        index, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if not self._knows_ranks and worker is None:
            refuse_missing_ranks()
        if self._finished_in[index] == times_set:
            raise BatchingError(
                f"epoch {epoch} was passed already: call set_epoch before every pass"
            )
        loaded = self._loaded if self._times_set == times_set else None
        self._begin(loaded or START | {"epoch": epoch})
        start, [(before, items, number)] = self.drawn, self.windows
        for window in self._read_windows(items):
            planner = UpdatePlanner(
                [self.length(item) for item in window],
                batches_per_update=self.batches_per_update,
                **self.arguments,
            )
            plan = planner.updates_of(self.epoch * 10**6 + number).plan
            for place, batch in enumerate(plan, start=before):
                turn, rank = divmod(place - self.dealt_from, self.world_size)
                if place >= start and rank == self.rank and turn % workers == index:
                    self.drawn = place - rank + self.world_size
                    yield [window[i] for i in batch]
            before, items, number = before + len(plan), items + len(window), number + 1
            self.windows.append((before, items, number))
        if items == 0:
            raise BatchingError("read(0) gave no item; expected all, each time it is called")
        self._finished = True
        if not (worker and loaded):
            # Else torchdata resumed, and where the epoch was over begins a second pass.
            self._finished_in[index] = times_set
