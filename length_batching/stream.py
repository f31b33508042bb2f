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
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from length_batching.checks import BatchingError
from length_batching.sampler import LengthBatchSampler, _callers, _find_ranks

START = dict.fromkeys(
    ("epoch", "batches_trained", "dealt_from", "batches_before", "items_before", "window"), 0
)


class LengthBatchStream(IterableDataset[list[Any]]):
    """Batches, lists of items, from a stream: `window` items at a time are read and planned like
    the clips of an epoch. For a DataLoader with `batch_size=None`.

    Call `set_epoch` before every epoch but the first: another pass is the same one, from where it
    began. Every process, and every worker of a loader, reads the whole stream and yields its share
    of the batches, so items should be small, such as paths, and be loaded by `collate_fn`.
    Processes get equally many batches. accelerate must not prepare the loader.

    Args:
        read: gives the stream's items after the first `skip`: read(skip). They must come in the
            same order in every process, and for `read(0)` and `read(n)`, until `set_epoch`.
        length: of an item, or its lengths of several kinds.
        batch_size, strategy, options: of `LengthBatchSampler`. Dynamic sizes need `batch_capacity`.
        window: items planned together; a last one of less than half belongs to that before. Two
            are in memory at once.
        batches_per_update: a multiple of world_size, W, which is the default. With the same
            number, training resumes with any number of processes.
        rank, world_size: as `LengthBatchSampler` finds them by default.
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
        if options.get("dynamic_batch_size") and options.get("batch_capacity") is None:
            unknown = "the longest clip of a stream is not known; expected a number"
            raise BatchingError(f"batch_capacity=None: {unknown}")
        if window < 1:
            raise BatchingError(f"window={window}: expected a whole number, at least 1")
        self.read, self.length, self.window = read, length, window
        self.batches_per_update = batches_per_update
        self.arguments: dict[str, Any] = {"batch_size": batch_size, "strategy": strategy, **options}
        self._given = None if world_size is None else (rank or 0, world_size)
        self._ranks()
        # Shared with a loader's workers, also while they persist: the epoch, how often it was set,
        # and whether a pass of it is finished.
        self._shared = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._loaded: Mapping[str, int] | None = None  # until the epoch is set
        self._times_set = 0  # when it was loaded
        self._begin(START)

    def _begin(self, state: Mapping[str, int]) -> None:
        self.epoch, self.drawn = state["epoch"], state["batches_trained"]  # of all processes
        self.dealt_from = state["dealt_from"]  # the batch that the first worker yields first
        self.windows = [(state["batches_before"], state["items_before"], state["window"])]
        self._finished = False

    def _ranks(self) -> tuple[int, int, int]:
        """This process, how many there are, and the batches that they train in an update."""
        rank, world_size = self._given or _find_ranks()[:2]
        size = self.batches_per_update or world_size
        if not 0 <= rank < world_size or size % world_size:
            given = f"rank={rank}, world_size={world_size}, batches_per_update={size}"
            expected = "0 <= rank < world_size, which divides batches_per_update"
            raise BatchingError(f"{given}: expected {expected}")
        return rank, world_size, size

    def __getstate__(self) -> dict[str, Any]:
        """As spawned workers get it, which cannot find out themselves."""
        return self.__dict__ | {"_given": self._ranks()[:2]}

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next pass; a position just loaded inside it stays."""
        if not self._loaded or epoch != self._loaded["epoch"] or self._shared[2]:
            self._loaded = None
            self._shared[:] = torch.tensor([epoch, self._shared[1] + 1, 0])
            self._begin(START | {"epoch": epoch})

    def state_dict(self, batches_trained: int | None = None) -> dict[str, int]:
        """Where to resume: after `batches_trained` of this epoch's batches, of all processes, as
        the trainer counts them. Without it, after those drawn in this process, as torchdata's
        StatefulDataLoader asks its workers; other loaders with workers draw ahead."""
        trained = self.drawn if batches_trained is None else batches_trained
        world_size = self._ranks()[1]
        if trained % world_size:
            expected = f"a multiple of world_size={world_size}"
            raise BatchingError(f"batches_trained={trained}: expected {expected}")
        if batches_trained is None and self._finished:
            return START | {"epoch": self.epoch + 1}
        before, items, window = max(known for known in self.windows if known[0] <= trained)
        in_worker = batches_trained is None and get_worker_info()
        return {
            "epoch": self.epoch,
            "batches_trained": trained,
            "dealt_from": self.dealt_from if in_worker else trained,
            "batches_before": before,
            "items_before": items,
            "window": window,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume inside the saved epoch. The stream is read from the last window known then."""
        if get_worker_info() is None:  # in workers, torchdata calls this
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
        worker, (epoch, times_set, is_finished) = get_worker_info(), self._shared.tolist()
        index, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own_rank, world_size, size = self._ranks()
        if {"DataLoaderDispatcher", "IterableDatasetShard"} & _callers().keys():
            problem = "accelerate would share the batches of a stream out once more"
            raise BatchingError(f"{problem}; expected a loader that it does not prepare")
        if is_finished and index == 0:
            warnings.warn(f"epoch {epoch} is repeated: call set_epoch before each", stacklevel=2)
        # Another pass is the same one, from where it began.
        loaded = self._loaded if self._times_set == times_set else None
        self._begin(loaded or START | {"epoch": epoch})
        start, [(before, items, number)] = self.drawn, self.windows
        for window in self._read_windows(items):
            sampler = LengthBatchSampler(
                [self.length(item) for item in window],
                rank=0,
                world_size=1,
                batches_per_update=size,
                **self.arguments,
            )
            sampler.set_epoch(self.epoch * 10**6 + number)
            for place, batch in enumerate(sampler.plan, start=before):
                turn, rank = divmod(place - self.dealt_from, world_size)
                if place >= start and rank == own_rank and turn % workers == index:
                    self.drawn = place - rank + world_size
                    yield [window[i] for i in batch]
            before, items, number = before + len(sampler.plan), items + len(window), number + 1
            self.windows.append((before, items, number))
        if items == 0:
            raise BatchingError("read(0) gave no item; expected all, each time it is called")
        self._finished = True
        if index == 0:
            self._shared[2] = 1
