"""What fewer users of `batching` need: groups that stay together, segments of long clips, and
streams of items whose lengths are not known beforehand. All are planned by `batching.plan_epoch`.

    groups = groups_of(speakers)  # items of the sampler are groups; groups[i] are the clips of one
    sampler = LengthBatchSampler(groups.longest(lengths), 64, "semi_sorted",
                                 group_sizes=groups.sizes, dynamic_batch_size=True)

    segments = segments_of(lengths, 500, overlap=100)  # items are segments of at most 500 frames
    sampler = LengthBatchSampler(segments.lengths, 16, "semi_sorted", dynamic_batch_size=True)
    dataset = SegmentDataset(clips, segments)

    stream = LengthBatchStream(lambda skip: itertools.islice(read_items(), skip, None), len, 16,
                               "semi_sorted", dynamic_batch_size=True, batch_capacity=20_000)
    loader = DataLoader(stream, batch_size=None, collate_fn=pad)
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batching import (
    BatchCosts,
    BatchingError,
    EpochPlan,
    LengthBatchSampler,
    Lengths,
    _callers,
    _find_ranks,
    check_lengths,
)

try:  # for streams; groups and segments need numpy alone
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
except ImportError:
    Dataset = IterableDataset = object  # type: ignore[assignment, misc]

# ---------------------------------------------------------------------------- groups


def groups_of(labels: Sequence[Any] | np.ndarray) -> EpochPlan:
    """The clips of each label, in the order of the labels, as if they were batches: `groups[i]`,
    `groups.sizes`, `groups.longest(lengths)`."""
    _, label = np.unique(np.asarray(labels), return_inverse=True)
    order = np.argsort(label, kind="stable")
    return EpochPlan(order, np.flatnonzero(np.diff(label[order], prepend=-1)))


# ---------------------------------------------------------------------------- segments


@dataclass(frozen=True)
class Segments(Sequence[tuple[int, int, int]]):
    """Parts of clips: segment i goes from frame `starts[i]` of clip `clips[i]` on for `lengths[i]`
    frames; `segments[i]` is (clip, start, stop)."""

    clips: np.ndarray  # [segments]
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: Any) -> Any:
        clip, start = int(self.clips[index]), int(self.starts[index])
        return clip, start, start + int(self.lengths[index])


def segments_of(lengths: Lengths, longest: int, *, overlap: int = 0, shortest: int = 1) -> Segments:
    """Clips longer than `longest` are cut into segments of that length, each of which repeats the
    last `overlap` frames of the one before. A clip's last segment may be shorter; where it would be
    shorter than `shortest` it begins earlier. (Doetsch17 without, Gonzalez23 with a dynamic batch's
    capacity as the longest.)

    Raises:
        BatchingError: unless all are whole numbers, 0 <= overlap < longest, shortest <= longest.
    """
    x = check_lengths(lengths)
    if x.ndim > 1 or (x % 1).any():
        raise BatchingError("lengths: expected a whole number of frames per clip")
    if not (0 <= overlap < longest and 1 <= shortest <= longest):
        allowed = "0 <= overlap < longest, 1 <= shortest <= longest"
        problem = f"longest={longest}, overlap={overlap}, shortest={shortest}"
        raise BatchingError(f"{problem}: expected {allowed}")
    frames, step = x.astype(np.int64), longest - overlap
    counts = 1 + -(-np.maximum(frames - longest, 0) // step)
    clips = np.repeat(np.arange(len(frames)), counts)
    starts = step * (np.arange(len(clips)) - np.repeat(np.cumsum(counts) - counts, counts))
    ends = np.minimum(starts + longest, frames[clips])
    starts = np.maximum(np.minimum(starts, ends - shortest), 0)
    return Segments(clips, starts, ends - starts)


class SegmentDataset(Dataset):
    """The segments of a dataset's clips; `cut(clip, start, stop)` cuts one out."""

    def __init__(
        self,
        clips: Any,
        segments: Segments,
        cut: Callable[[Any, int, int], Any] = lambda clip, start, stop: clip[start:stop],
    ):
        self.clips, self.segments, self.cut = clips, segments, cut

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Any:
        clip, start, stop = self.segments[index]
        return self.cut(self.clips[clip], start, stop)


# ---------------------------------------------------------------------------- a short last update


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
            found = costs.starts(plan.order, most, middle)
            if len(found) > count:
                small = middle
            else:
                large, starts = middle, found
    return EpochPlan(plan.order, np.array(starts))


class ShortLastUpdateSampler(LengthBatchSampler):
    """The last update, the shortest, has fewer batches where `batches_per_update` do not divide
    their number; its clips are cut anew into up to so many. Some processes may then get none."""

    def _whole_plan(self, size: int) -> EpochPlan:
        return super()._whole_plan(size) if self.batches_per_epoch else self.plan_of(self.epoch)

    def _completed(self, by_length: EpochPlan, size: int) -> EpochPlan:
        whole = len(by_length) // size * size
        # Multiples, and clips that are alone, would not stay so.
        if whole == len(by_length) or not {"size_multiple", "too_long"}.isdisjoint(self.options):
            return by_length
        rest = by_length.rearranged(np.arange(whole, len(by_length)))
        starts = by_length.starts[whole] + cut_evenly(rest, size, self.costs).starts
        return EpochPlan(by_length.order, np.concatenate([by_length.starts[:whole], starts]))


# ---------------------------------------------------------------------------- streams


START = dict.fromkeys(
    ("epoch", "batches_trained", "dealt_from", "batches_before", "items_before", "window"), 0
)


class LengthBatchStream(IterableDataset):
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
