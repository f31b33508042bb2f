"""LengthBatchSampler: the batches of `plan_epoch` for a DataLoader's `batch_sampler`.

sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                             dynamic_batch_size=True, batch_randomization=True)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
for epoch in range(100):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...
"""

import math
import os
import sys
import types
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_count, check_lengths
from length_batching.plan import BatchCosts, EpochPlan, check_options, hashed_seed, plan_epoch


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


HEADROOM = 1.01  # of a constant number of batches over the first epoch's
DRAWS, FAR = 50, 10**9  # a plan of too many batches is drawn again from epochs that nobody trains
FRAMEWORKS = {"accelerate", "lightning", "pytorch_lightning", "torch", "torchdata", "transformers"}


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _callers() -> dict[str, Any]:
    """The objects of training frameworks whose methods are running, the innermost of each class, by
    the names of their classes and of these' bases."""
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        # A look at a frame's locals keeps them alive, so users' frames are left alone.
        if _package(frame) in FRAMEWORKS:
            asking = frame.f_locals.get("self")
            for kind in type(asking).__mro__:
                found.setdefault(kind.__name__, asking)
        frame = frame.f_back
    return found


def _find_ranks() -> tuple[int, int, str]:
    """This process's rank, how many processes there are, and what to say of it."""
    distributed: Any = sys.modules.get("torch.distributed")
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        source = "torch.distributed says"
    elif state is not None and state._shared_state:
        rank, world_size, source = state().process_index, state().num_processes, "accelerate says"
    elif {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        texts = os.environ["RANK"], os.environ["WORLD_SIZE"]
        named = "RANK={} and WORLD_SIZE={}".format(*texts)
        if not (all(map(str.isdecimal, texts)) and int(texts[0]) < int(texts[1])):
            raise BatchingError(f"{named} in the environment: expected 0 <= RANK < WORLD_SIZE")
        rank, world_size = map(int, texts)
        source = f"{named} say, without a process group; if not, give rank=0, world_size=1"
    else:
        return 0, 1, ""
    is_said = world_size > 1 and (rank == 0 or "RANK" in source)
    said = f"batches are shared by {world_size} processes, as {source}"
    return rank, world_size, said if is_said else ""


STATEFUL = "_StatefulBaseDataLoaderIter"  # torchdata's
NOTHING_TRAINED = dict.fromkeys(("batches_trained", "num_batches", "plan_checksum"), 0)


@dataclass
class _Pass:
    """A pass over an epoch, from its first draw on."""

    epoch: int
    numbers: list[int]  # of its batches in the plan
    places: list[int]  # the batches trained by all processes before each of these, and in the end
    one_ahead: bool  # accelerate's loader holds a batch back until it has drawn the next
    held: Sequence[Any] | None  # what workers have loaded, or will, and nobody has taken yet
    drawn: int = 0
    is_over: bool = False  # the end was seen

    @property
    def is_finished(self) -> bool:
        """Whether every batch was drawn and, as far as can be seen, taken from the loader."""
        is_over = self.is_over or (self.drawn == len(self.numbers) and not self.one_ahead)
        return is_over and not self.held


class LengthBatchSampler:
    """Batches of `plan_epoch` for a DataLoader's `batch_sampler`, one epoch at a time.

    A pass goes through one epoch, and the next pass through the next. A pass that was broken off is
    repeated, with a warning. `set_epoch` chooses any epoch.

    An update of the weights takes `batches_per_update` batches, K. The finished batches are ranked
    by length and cut into groups of K, so processes that share an update do not wait for each
    other. Each of W processes takes every W-th batch of an update, so their number does not change
    what an update is made of. Batches of the most clips are halved until all updates have K.

    Args:
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        random_epochs: so many epochs at the start have random batches (RAND) of `batch_size`, or
            as `batch_capacity` allows.
        batches_per_update: K; default: W.
        batches_per_epoch: so many batches in every epoch, of all processes together, or "constant":
            1 % more than the first has. Trainers that fix the number of steps need one.
        rank, world_size: this process and how many there are, W. Default: as `torch.distributed`,
            accelerate or the environment say when an epoch begins.

    Attributes:
        epoch: of the pass under way or, before it begins, that was set.
        start: the batch of the plan with which passes of this epoch begin; 0 unless resumed.
        plan: all batches of the epoch, update after update; `batches_trained` counts these.
        update_starts: [updates] the numbers of the batches with which updates begin.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        strategy: str,
        *,
        random_epochs: int = 0,
        batches_per_update: int | None = None,
        batches_per_epoch: int | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ):
        if rank is not None or world_size not in (None, 1):
            check_count("world_size", world_size)
            check_count("rank", rank, 0, (world_size or 1) - 1)
        check_count("random_epochs", random_epochs, 0)
        check_count("batches_per_update", 1 if batches_per_update is None else batches_per_update)
        if batches_per_epoch not in (None, "constant"):
            check_count("batches_per_epoch", batches_per_epoch)
        self.lengths, self.costs = check_lengths(lengths), BatchCosts(lengths, options)
        check_options({"batch_size": batch_size, "strategy": strategy} | options, self.costs)
        # Not as `batch_size`: accelerate drops batches of any other size where it finds that.
        self.base_batch_size, self.strategy, self.options = batch_size, strategy, options
        self.random_epochs, self._update_size = random_epochs, batches_per_update
        self.batches_per_epoch = batches_per_epoch
        self._given = None if world_size is None else (rank or 0, world_size, "")
        self._said = ""  # of the ranks, on stderr
        self._dealt_to: int | None = None  # processes among which accelerate deals out the batches
        self._first_count = 0  # the most batches that one of the first epochs has
        if batches_per_epoch == "constant":
            self._first_count = max(len(self.plan_of(epoch)) for epoch in {0, random_epochs})
        self._told = False  # whether the epoch was ever set or loaded
        self._go_to(0)

    def _go_to(self, epoch: int, start: int = 0, state: Mapping[str, int] | None = None) -> None:
        self.epoch, self.start, self._loaded = epoch, start, state
        self._pass: _Pass | None = None  # that drew last in this epoch
        self._is_new = False  # whether the next draw begins another
        self.batches_per_update = 0  # until it is planned
        self._settle()

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch `epoch` (from 0) with the next pass. If it is this one and nothing was drawn,
        a position loaded by `load_state_dict` stays; BatchingError if that is in another epoch."""
        check_count("epoch", epoch, 0)
        caller = sys._getframe(1).f_back
        if caller and caller.f_code.co_name == "__iter__" and _package(caller) in FRAMEWORKS:
            return  # a loader of accelerate or Fabric, that counts from 0 where training resumes
        self._told = True
        if self._pass is None:
            if epoch == self.epoch:
                return
            if 0 < self.start < len(self.plan):
                loaded = f"batch {self.start} of {len(self.plan)} of epoch {self.epoch} was loaded"
                raise BatchingError(f"set_epoch({epoch}): {loaded}; train the rest of that first")
        self._go_to(epoch)

    # Itself, where Lightning, accelerate and transformers look for `set_epoch`
    sampler = batch_sampler = property(lambda self: self)

    def _settle(self) -> None:
        """Find the ranks anew, unless they were given, and plan the epoch if that changes it."""
        self.rank, self.world_size, self._source = self._given or _find_ranks()
        ranks = self._dealt_to or self.world_size
        size = self._update_size or ranks
        if size % ranks:
            expected = f"expected a multiple of {ranks}, the number of processes"
            raise BatchingError(f"batches_per_update={size}: {expected}")
        if self.batches_per_update != size:
            self.plan, self.update_starts = self._in_updates(size)
            self.batches_per_update, self._checksum = size, 0
        state = self._loaded
        if state and self._plan_checksum() != state["plan_checksum"]:
            self.start, self._loaded = 0, None
            left = f"after {state['batches_trained']} of {state['num_batches']} batches"
            now = (
                "these clips and options plan other batches: resume with the same, or start it over"
            )
            raise BatchingError(f"epoch {self.epoch} was left {left}, but {now}")

    def _plan_checksum(self) -> int:
        if not self._checksum:
            self._checksum = zlib.crc32(self.lengths.tobytes(), self.batches_per_update)
            for array in (self.plan.order, self.plan.starts):
                self._checksum = zlib.crc32(array.astype("<i8").tobytes(), self._checksum)
        return self._checksum

    def plan_of(self, epoch: int, draw: int = 0) -> EpochPlan:
        """The batches of any epoch, in the strategy's order; other ones with every `draw`."""
        strategy, options, number = self.strategy, self.options, epoch + draw * FAR
        if epoch < self.random_epochs:
            dynamic = options.get("dynamic_batch_size", False) and options.get("batch_capacity")
            fixed = {"dynamic_batch_size": bool(dynamic), "batch_randomization": False}
            strategy, options = "random", options | fixed
        return plan_epoch(self.lengths, self.base_batch_size, strategy, epoch=number, **options)

    def _whole_plan(self, size: int) -> EpochPlan:
        """The epoch's plan, of a multiple of `size` batches, and of as many as wanted."""
        wanted = self.batches_per_epoch
        for draw in range(DRAWS):
            plan = self.plan_of(self.epoch, draw)
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

    def _completed(self, by_length: EpochPlan, size: int) -> EpochPlan:
        return by_length  # for a sampler whose `_whole_plan` may have another number of batches

    def _in_updates(self, size: int) -> tuple[EpochPlan, np.ndarray]:
        """`plan` and `update_starts`."""
        plan = self._whole_plan(size)
        if size == 1:
            return plan, np.arange(len(plan))
        ranked = np.argsort(-self.costs.longest(plan), kind="stable")
        by_length = self._completed(plan.rearranged(ranked), size)
        # Groups come in the order in which the plan first names one of their batches, so a random
        # order stays random and a sorted one sorted. Shuffling inside a group keeps one rank from
        # always taking the longest batch.
        firsts = np.minimum.reduceat(ranked, np.arange(0, len(ranked), size))
        turn = np.argsort(np.argsort(firsts, kind="stable"))[np.arange(len(by_length)) // size]
        seeds = hashed_seed(self.options.get("seed", 0), self.epoch)
        rng = np.random.default_rng(seeds.spawn(1)[0])
        chosen = np.lexsort((rng.random(len(by_length)), turn))
        sizes = np.bincount(turn)
        return by_length.rearranged(chosen), np.cumsum(sizes) - sizes

    def _numbers(self, rank: int, world_size: int) -> np.ndarray:
        """The numbers of a rank's batches in the epoch."""
        starts, count = self.update_starts, len(self.plan)
        inside = np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
        return np.flatnonzero(inside % world_size == rank)

    def _ranks_for(self, callers: Mapping[str, Any]) -> tuple[int, int]:
        """This process's rank and how many there are, for those who ask for batches. BatchingError
        if a framework would lose clips."""
        if "DataLoaderDispatcher" in callers:
            raise BatchingError("dispatch_batches=True: would cut batches up; expected False")
        if "Trainer" in callers and self.batches_per_epoch is None:
            said = "a Trainer trains as many batches in every epoch as the first one has"
            raise BatchingError(f'batches_per_epoch=None: {said}; expected "constant"')
        shard: Any = callers.get("BatchSamplerShard")
        if shard is not None:  # accelerate gives each process its share of all batches
            self._dealt_to = shard.num_processes
        self._settle()
        return (self.rank, self.world_size) if shard is None else (0, 1)

    def __len__(self) -> int:
        """This rank's batches in the whole epoch, wherever in it a pass begins."""
        return len(self._numbers(*self._ranks_for(_callers())))

    def __iter__(self) -> Iterator[list[int]]:
        self._ranks_for(_callers())  # a refusal in every process, before any waits for another
        self._is_new = True
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        """A pass. It begins when its first batch is drawn, not at iter(): a DataLoader with workers
        calls that twice."""
        begun = self._begin()
        plan = self.plan
        for number in begun.numbers:
            if begun.epoch != self.epoch:
                drawn = f"after a loader had drawn batches of epoch {begun.epoch}"
                raise RuntimeError(f"epoch {self.epoch} was set {drawn}; set it, then iter(loader)")
            self._pass, self._is_new = begun, False
            begun.drawn += 1
            yield plan[number].tolist()
        begun.is_over = True

    def _begin(self) -> _Pass:
        """Find the epoch of a pass, and its batches."""
        callers, latest = _callers(), self._pass
        loader: Any = callers.get("DataLoaderShard")  # accelerate's
        trainer: Any = callers.get("Trainer")
        torch_loader: Any = callers.get("_BaseDataLoaderIter")
        held = getattr(torch_loader, "_task_info", None)
        if not getattr(torch_loader, "_in_order", True):
            raise BatchingError("in_order=False: no position could be resumed; expected True")
        if loader is not None and held is not None and STATEFUL in callers:
            drawn = "accelerate draws batches before an epoch can be set"
            raise BatchingError(f"use_stateful_dataloader: {drawn}; expected it without workers")
        skips = getattr(callers.get("SkipBatchSampler"), "skip_batches", 0)
        resumes = skips or getattr(torch_loader, "_sampler_iter_yielded", 0)
        # Lightning, of this many batches into an epoch where it resumes
        fit = None if "_EvaluationLoop" in callers else getattr(trainer, "fit_loop", None)
        trained = fit.batch_idx + 1 if fit is not None and fit.restarting else 0
        is_first = latest is None and not self._told
        if (is_first and resumes) or (skips and trainer is not None and loader is not None):
            if loader is None or not (loader.iteration or trainer):
                expected = "expected loader.set_epoch(epoch) before, for epoch 0 too"
                raise BatchingError(f"accelerate resumes inside an unknown epoch; {expected}")
            self._go_to(loader.iteration)  # which was set, but SkipBatchSampler hides that
        elif fit is not None and (is_first or latest is not None):
            self._go_to(trainer.current_epoch + (0 < len(self) <= trained))  # before it sets that
        elif latest is not None and latest.is_finished:
            self._go_to(self.epoch + 1)
        elif latest is not None:
            drawn = f"after {latest.drawn} of {len(latest.numbers)} batches"
            said = f"epoch {self.epoch} was left {drawn} and is repeated; set_epoch chooses another"
            warnings.warn(f"LengthBatchSampler: {said}", stacklevel=2)
        rank, world_size = self._ranks_for(callers)
        if self._source not in ("", self._said):
            self._said = self._source
            print(f"LengthBatchSampler: {self._said}", file=sys.stderr)
        numbers = self._numbers(rank, world_size)
        if self.start < len(self.plan) and self.start not in self._numbers(0, world_size):
            shared = f"an equal number in each of {world_size} processes"
            raise BatchingError(f"batches_trained={self.start}: expected {shared}")
        if self.start == 0 and 0 < trained < len(numbers):
            expected = "expected torchdata.stateful_dataloader.StatefulDataLoader"
            raise BatchingError(f"Lightning resumes a DataLoader at an epoch's start; {expected}")
        left = numbers[numbers >= self.start]
        places = [*(left - rank), len(self.plan)]
        self._pass = _Pass(self.epoch, left.tolist(), places, loader is not None, held)
        return self._pass

    def state_dict(self, batches_trained: int | None = None) -> dict[str, int]:
        """Where to resume: after `batches_trained` of this epoch's batches, of all ranks, as the
        *trainer* counts them, for a loader takes batches ahead of time. torchdata's loaders, which
        save a state with every batch, need not say."""
        self._settle()
        latest = self._pass
        if batches_trained is None:
            if STATEFUL not in _callers():
                raise BatchingError("state_dict(): expected state_dict(batches_trained)")
            if latest is not None and latest.is_finished and (latest.is_over or self._is_new):
                return {"epoch": self.epoch + 1} | NOTHING_TRAINED
            batches_trained = self.start
            if latest is not None and not self._is_new:
                batches_trained = latest.places[latest.drawn]
        check_count("batches_trained", batches_trained, 0, len(self.plan))
        return {
            "epoch": self.epoch,
            "batches_trained": int(batches_trained),
            "num_batches": len(self.plan),
            "plan_checksum": self._plan_checksum(),
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume inside the saved epoch. BatchingError if the plan is another and batches were
        trained: the rest of it would repeat some clips and leave out others."""
        self._told, start = True, state["batches_trained"]
        # torchdata may replay from an epoch's start what was trained.
        replays = STATEFUL in _callers() and state["num_batches"] > 0
        self._go_to(state["epoch"], start, state if start > 0 or replays else None)
        if start == len(self.plan) and hasattr(_callers().get("Trainer"), "fit_loop"):
            self._go_to(self.epoch + 1)  # Lightning draws that from the pass it resumes


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
