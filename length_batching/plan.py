"""Which clips share a batch, and in what order, for one epoch.

Input is nothing but lengths, and numpy all it needs, so this works in any PyTorch project;
`python -m batching lengths.csv` prints what each strategy costs:

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(100):
        for batch in loader:
            ...

Sources, cited below by these names:
    Ge21: Ge, Kaushik, Omote, Kumar, "Speed up training with variable length inputs by efficient
        batching strategies", Interspeech 2021.
    Doetsch17: Doetsch, Golik, Ney, "A comparative study of batch construction strategies for
        recurrent neural networks in MXNet", arXiv 1705.02414.
    Gonzalez23: Gonzalez, Alstrøm, May, "On batching variable size inputs for training end-to-end
        speech enhancement systems", ICASSP 2023.
"""

import difflib
import itertools
import math
import os
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = Sequence[float] | np.ndarray  # one of each clip
Lengths = Numbers | Sequence[Sequence[float]]  # or of each kind
TOO_LONG = ("refuse", "alone", "leave_out")  # what becomes of clips above the capacity
MOST_COUNTED = 10**15  # of any count or length: sums of them stay exact in float64


class BatchingError(ValueError):
    """Lengths or options that cannot be batched, or a saved position inside another plan."""


# ---------------------------------------------------------------------------- the strategies


@dataclass(frozen=True)
class Parameter:
    """The argument of `plan_epoch` that decides how much a strategy mixes."""

    name: str
    label: str  # for people, with the unit
    value_text: str  # a value in words: "{} bins"
    is_factor: bool = False  # a real number from 0; else a whole number from 1
    holds_batches: bool = False  # counted in clips, and at least batch_size
    at_most_clips: bool = False  # no more than there are clips
    at_most: int = MOST_COUNTED  # whatever the clips
    larger_mixes_more: bool = True
    larger_values: str = "Larger values mix clips more and pad more."

    def limits(self, num_clips: int = MOST_COUNTED, batch_size: int = 1) -> tuple[int, int]:
        """The smallest and the largest value allowed."""
        if self.is_factor:
            return 0, 10**6  # the order is random long before
        most = num_clips if self.at_most_clips else self.at_most
        return batch_size if self.holds_batches else 1, most


@dataclass(frozen=True)
class ShuffledClips:
    """An epoch's clips in random order, and what a strategy may use to order them."""

    lengths: np.ndarray  # [clips] float64
    order: np.ndarray  # [clips] their indices in random order
    value: float  # of the strategy's parameter: a factor is above 0, for 0 is `sorted`
    dynamic_batch_size: bool
    rng: np.random.Generator


# The clips in a strategy's order, and the places in it where a batch must begin.
Order = tuple[np.ndarray, Sequence[int]]
OrderFunction = Callable[[ShuffledClips], Order]


@dataclass(frozen=True)
class Strategy:
    """Which clips are next to each other in an epoch, and so share batches."""

    name: str
    order: OrderFunction
    meaning: str
    short_name: str  # for tables and pictures
    source: str
    parameter: Parameter | None = None


FACTOR = Parameter(
    "local_randomization_factor", "local randomization factor", "factor {}", is_factor=True
)
BUCKET_SIZE = Parameter("bucket_size", "bucket size (clips)", "buckets of {}", holds_batches=True)
NUM_BINS = Parameter("num_bins", "number of bins", "{} bins", at_most_clips=True)
NUM_BUCKETS = Parameter(
    "num_buckets",
    "number of length classes",
    "{} classes",
    at_most=10**6,  # an array of their edges is made
    larger_mixes_more=False,
    larger_values="Larger values mix clips less, and more batches are short.",
)
PARAMETERS = (FACTOR, BUCKET_SIZE, NUM_BINS, NUM_BUCKETS)
REGISTRY: dict[str, Strategy] = {}  # by name, in the order of this file


def _strategy(name: str, *values: Any) -> Callable[[OrderFunction], OrderFunction]:
    """Enters a function into REGISTRY; its docstring is the strategy's meaning."""

    def enter(order: OrderFunction) -> OrderFunction:
        meaning = " ".join((order.__doc__ or "").split())
        REGISTRY[name] = Strategy(name, order, meaning, *values)
        return order

    return enter


@_strategy("random", "RAND", "Ge21")
def _random(clips: ShuffledClips) -> Order:
    """random order"""
    return clips.order, [0]


@_strategy("sorted", "SB", "Ge21")
def _sorted(clips: ShuffledClips) -> Order:
    """sorted by length, shortest first"""
    return _sort_by(clips.lengths, clips.order), [0]


@_strategy("semi_sorted", "SSB", "Ge21, eq. 2-3", FACTOR)
def _semi_sorted(clips: ShuffledClips) -> Order:
    """sorted by length + U(-a/2, a/2), a = (longest - shortest) * factor"""
    x, order = clips.lengths, clips.order
    noise_range = (x.max() - x.min()) * clips.value  # a
    return order[np.argsort(x[order] + noise_range * (clips.rng.random(len(x)) - 0.5))], [0]


@_strategy("semi_sorted_rank", "SSB-rank", "ours", FACTOR)
def _semi_sorted_rank(clips: ShuffledClips) -> Order:
    """sorted by place + U(-a/2, a/2), a = number of clips * factor, where a place is that in the
    sorted order; so clips of rare lengths mix as widely as those of common ones"""
    order, starts = _sorted(clips)
    noise_range = len(order) * clips.value  # a
    noise = noise_range * (clips.rng.random(len(order)) - 0.5)
    return order[np.argsort(np.arange(len(order)) + noise)], starts


@_strategy("semi_sorted_exponential", "SSB-exp", "ours", FACTOR)
def _semi_sorted_exponential(clips: ShuffledClips) -> Order:
    """sorted by place + exponential noise of mean a/2, so clips only move up, among longer ones,
    and a few of them far; with dynamic sizes a place counts in frames"""
    # A clip shorter than the rest of its batch pads only itself, a longer one pads all the others:
    # so noise that only moves clips up mixes most at equal padding. With places in frames, batches
    # of many short clips get the same share of new company as those of few long ones.
    order, starts = _sorted(clips)
    dynamic = clips.dynamic_batch_size
    place = np.cumsum(clips.lengths[order]) if dynamic else np.arange(1, len(order) + 1)
    mean_noise = place[-1] * clips.value / 2
    return order[np.argsort(place + clips.rng.exponential(mean_noise, len(order)))], starts


@_strategy("bucket", "BKT", "Ge21", BUCKET_SIZE)
def _bucket(clips: ShuffledClips) -> Order:
    """sorted, longest first, cut into buckets of fixed size, and shuffled inside each; a batch
    may cross a bucket's edge"""
    order = _sort_by(-clips.lengths, clips.order)
    bucket = np.arange(len(order)) // clips.value
    return order[np.argsort(bucket + clips.rng.random(len(order)))], [0]


@_strategy("bucket_by_width", "BKT-width", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_width(clips: ShuffledClips) -> Order:
    """length classes of equal width, longest first, shuffled inside each; a batch holds clips of
    one class, so each class ends with a short batch"""
    x = clips.lengths
    return _by_class(clips, np.linspace(x.min(), x.max(), int(clips.value) + 1)[1:-1])


@_strategy("bucket_by_quantile", "BKT-quantile", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_quantile(clips: ShuffledClips) -> Order:
    """the same with classes of equally many clips"""
    shares = np.linspace(0, 1, int(clips.value) + 1)[1:-1]
    return _by_class(clips, np.quantile(clips.lengths, shares))


def _by_class(clips: ShuffledClips, edges: np.ndarray) -> Order:
    """Classes between `edges`, longest first. Equal lengths share one; a class may be empty."""
    label = np.searchsorted(edges, clips.lengths, side="left")
    order = _sort_by(-label, clips.order)
    return order, np.flatnonzero(np.diff(label[order], prepend=-1)).tolist()


@_strategy("alternated_sort", "ATS", "Doetsch17", NUM_BINS)
def _alternated_sort(clips: ShuffledClips) -> Order:
    """random bins of equal size, odd ones sorted shortest first, even ones longest first"""
    x, order = clips.lengths[clips.order], clips.order
    # Bin k (from 0) holds positions ceil(k n / N) to ceil((k + 1) n / N) - 1.
    bin_index = np.arange(len(x)) * int(clips.value) // len(x)
    return order[np.lexsort((np.where(bin_index % 2 == 0, x, -x), bin_index))], [0]


def _sort_by(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """`order` sorted by each clip's key, clips of equal key left in their shuffled order."""
    return order[np.argsort(keys[order], kind="stable")]


STRATEGIES = tuple(REGISTRY)


def batching_name(strategy: str, dynamic_batch_size: bool, batch_randomization: bool) -> str:
    """The papers' name, "SSB-DBS-BR". RAND never gets -BR: its batches are in random order."""
    name = REGISTRY[strategy].short_name
    if dynamic_batch_size:
        name += "-DBS"
    if batch_randomization and strategy != "random":
        name += "-BR"
    return name


# ---------------------------------------------------------------------------- planning an epoch


class EpochPlan(Sequence[np.ndarray]):
    """An epoch's batches, each an array of clip indices; kept as two arrays, whatever their number:
    `order` [clips], batch after batch, and `starts` [batches], the places where they begin."""

    def __init__(self, order: np.ndarray, starts: np.ndarray):
        self.order, self.starts = order, starts
        self.sizes = np.diff(starts, append=len(order))  # [batches] clips of each

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self.starts[index]
        return self.order[start : start + self.sizes[index]]

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """[batches] the longest length in each, or of each kind in each."""
        return np.maximum.reduceat(lengths[self.order], self.starts)

    def rearranged(self, chosen: np.ndarray) -> "EpochPlan":
        """The batches with these numbers, in this order."""
        sizes = self.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self.starts[chosen] - starts, sizes)
        return EpochPlan(self.order[places], starts)


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    strategy: str,
    *,
    seed: int = 0,
    epoch: int = 0,
    local_randomization_factor: float = 0.1,
    bucket_size: int = 1024,
    num_bins: int = 58,
    num_buckets: int = 10,
    dynamic_batch_size: bool = False,
    batch_capacity: float | None = None,
    batch_randomization: bool = False,
    max_clips: int | None = None,
    too_long: str = "refuse",
    size_multiple: int = 1,
    cost: Callable[..., float] | None = None,
    group_sizes: Numbers | None = None,
    draw: int | None = None,
    draw_weights: Numbers | None = None,
) -> EpochPlan:
    """This epoch's batches: arrays of clip indices in which every clip appears exactly once, unless
    clips are left out or drawn. BatchingError names the parameter, its value and what is allowed.

    Args:
        lengths: one positive length per clip, in any unit (frames, say); or one of each kind (audio
            and text, say), [clips, kinds].
        batch_size: clips a batch (B0). The last batch may be smaller; it is kept.
        strategy: one of STRATEGIES; REGISTRY says what each does, and with which parameter.
        seed, epoch: the plan follows from this pair alone.
        local_randomization_factor, bucket_size, num_bins, num_buckets: the strategies' parameters;
            those of other strategies have no effect.
        dynamic_batch_size: each batch takes as many consecutive clips as fit into the capacity
            when all are padded to the longest of them (DBS, Ge21).
        batch_capacity: that capacity, in units of length; default batch_size * longest clip.
            Never exceeded.
        batch_randomization: shuffle the finished batches (BR, Ge21).
        max_clips: no batch has more.
        too_long: clips above batch_capacity are refused ("refuse"), batches of their own ("alone"),
            or left out ("leave_out", with fixed sizes too).
        size_multiple: a batch has a multiple of so many clips, or fewer than that.
        cost: `cost(*largest)` of the largest length of each kind in a batch is what each of its
            clips costs, and replaces the length everywhere. It must not fall where one grows.
        group_sizes: items are groups of so many clips, as long as their longest clip. They stay
            together; sizes and the capacity count the clips.
        draw, draw_weights: so many clips are drawn anew each epoch (default: as many as there are),
            each in proportion to its weight: that share of `draw`, rounded up or down at random.
    """
    options = dict(locals())  # the arguments, by name
    costs = BatchCosts(lengths, options)
    check_options(options, costs)
    chosen = REGISTRY[strategy]
    value = options[chosen.parameter.name] if chosen.parameter else 0
    capacity = batch_capacity or batch_size * float(costs.own.max())
    most = max_clips or MOST_COUNTED
    if not dynamic_batch_size:
        most, capacity = min(most, batch_size), math.inf
    largest = most if batch_capacity else min(most, batch_size)
    if costs.counts is not None and costs.counts.max() > largest:
        raise BatchingError(f"group_sizes: expected at most {largest} clips in each group")

    rng = np.random.default_rng(_hashed_seed(seed, epoch))
    used = None if costs.share is None else _drawn(costs.share, draw, rng)
    x = costs.own if used is None else costs.own[used]
    # The shuffle lets clips of equal length change places between epochs, whatever the strategy.
    shuffled = ShuffledClips(x, rng.permutation(len(x)), value, dynamic_batch_size, rng)
    without_noise = chosen.parameter is FACTOR and value == 0
    order, class_starts = _sorted(shuffled) if without_noise else chosen.order(shuffled)
    order = order if used is None else used[order]
    plan = EpochPlan(order, np.array(costs.starts(order, most, capacity, class_starts)))
    return plan.rearranged(rng.permutation(len(plan))) if batch_randomization else plan


def _drawn(share: np.ndarray, draw: int | None, rng: np.random.Generator) -> np.ndarray:
    """So many clips, by default each that has a share, in proportion to it and in random order."""
    shuffled, draws = rng.permutation(len(share)), draw or int(np.count_nonzero(share))
    reached = np.cumsum(share[shuffled])
    # Systematic sampling: draws at equal distances along a line, on which each clip is as long as
    # its share. They keep off the ends of equal clips, where rounding could matter.
    places = (np.arange(draws) + (rng.integers(2**20) + 0.5) / 2**20) * (reached[-1] / draws)
    return np.asarray(shuffled[np.searchsorted(reached, places, side="right")])


def check_options(options: Mapping[str, Any], costs: "BatchCosts | None" = None) -> None:
    """Raise BatchingError if `plan_epoch` refuses these options for any clips, or for these."""
    options = {**(plan_epoch.__kwdefaults__ or {}), **options}
    strategy, batch_size, too_long = options["strategy"], options["batch_size"], options["too_long"]
    problems = [
        *_count_problems("batch_size", batch_size),
        *_count_problems("seed", options["seed"], 0, 2**64 - 1),  # torch's limit
        *_count_problems("epoch", options["epoch"], 0),
    ]
    for name in ("max_clips", "size_multiple", "draw"):
        problems += _count_problems(name, 1 if options[name] is None else options[name])
    for name in ("dynamic_batch_size", "batch_randomization"):
        if not isinstance(options[name], (bool, np.bool_)):
            problems.append(f"{name}={options[name]!r}: expected True or False")
    if too_long not in TOO_LONG:
        others = "batching_extra.segments_of cuts clips"
        problems.append(f"too_long={too_long!r}: expected {' or '.join(TOO_LONG)}; {others}")
    if strategy not in REGISTRY:
        near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}{hint}")
    used = None if problems else REGISTRY[strategy].parameter
    capacity, longest, num_clips = options["batch_capacity"], 0.0, MOST_COUNTED
    if costs is not None:
        longest = float(costs.alone.max() if too_long == "refuse" else costs.alone.min())
        drawn = costs.own if costs.share is None else np.flatnonzero(costs.share)
        num_clips = options["draw"] or len(drawn)
    for parameter in PARAMETERS:
        value, limits, note = options[parameter.name], parameter.limits(), ""
        if parameter is used:  # those of other strategies need not suit the clips
            limits = parameter.limits(num_clips, batch_size)
            clips = "" if costs is None else f" and {num_clips} clips"
            note = f" (for batch_size={batch_size}{clips})"
        if not parameter.is_factor:
            problems += [p + note for p in _count_problems(parameter.name, value, *limits)]
        elif not limits[0] <= value <= limits[1]:
            problems.append(f"{parameter.name}={value}: expected 0 <= factor <= {limits[1]:g}")
    if capacity is not None and not options["dynamic_batch_size"] and too_long != "leave_out":
        problem = "limits dynamic batches only; set dynamic_batch_size=True"
        problems.append(f"batch_capacity={capacity}: {problem}")
    elif capacity is not None and not longest <= capacity <= MOST_COUNTED:
        fitting = "the longest clip" if too_long == "refuse" else "any clip"
        allowed = f"{longest:.15g}, so that {fitting} fits, to {MOST_COUNTED:.0e}"
        problems.append(f"batch_capacity={capacity}: expected {allowed}")
    if problems:
        raise BatchingError("\n".join(problems))


def check_lengths(lengths: Lengths, name: str = "lengths", shape: Any = None) -> np.ndarray:
    """`lengths` as a float64 array, [clips] or [clips, kinds], or of the shape given;
    BatchingError if one cannot be a length. With a shape or several kinds, some may be 0."""
    x = np.asarray(lengths)
    right = x.shape == shape if shape else x.ndim in (1, 2) and x.size > 0
    if not right or x.dtype.kind not in "iuf":
        expected = f"numbers, shape {shape}" if shape else "a number per clip"
        raise BatchingError(f"{name}: expected {expected}, got {x.dtype}, shape {x.shape}")
    x, zero_allowed = x.astype(np.float64), bool(shape) or x.size > len(x)
    least = 0 if zero_allowed else np.nextafter(0, 1)
    if not (x.min() >= least and x.max() <= MOST_COUNTED):
        bad = np.argwhere(~((x >= least) & (x <= MOST_COUNTED)))
        place, sign = bad[0].tolist(), "non-negative" if zero_allowed else "positive"
        allowed = f"a {sign}, finite number of at most {MOST_COUNTED:.0e}"
        count = f"{len(bad)} of {x.size} are not"
        raise BatchingError(f"{name}{place}={x[tuple(place)]:g}: expected {allowed} ({count})")
    return x


def check_count(name: str, value: Any, low: int = 1, high: int = MOST_COUNTED) -> None:
    for problem in _count_problems(name, value, low, high):
        raise BatchingError(problem)


def _count_problems(name: str, value: Any, low: int = 1, high: int = MOST_COUNTED) -> Iterator[str]:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (whole and low <= value <= high):
        limits = f"at least {low}" if high == MOST_COUNTED else f"{low} to {high}"
        yield f"{name}={value}: expected a whole number, {limits}"


def _hashed_seed(seed: int, epoch: int) -> np.random.SeedSequence:
    """Hashes the pair, so that seed 0 epoch 1 is not seed 1 epoch 0."""
    return np.random.SeedSequence(entropy=int(seed), spawn_key=(int(epoch),))


def _batch_starts(x: np.ndarray, most: int, capacity: float, classes: Sequence[int]) -> list[int]:
    """Where batches begin if each takes the longest run of clips of its class with size * longest
    <= capacity (DBS, Ge21), and at most so many; a longer clip is a batch of its own."""
    starts, lengths = [], x.tolist()
    for class_start, class_end in itertools.pairwise([*classes, len(x)]):
        start, longest = class_start, 0.0
        for i in range(class_start, class_end):
            length = lengths[i]
            if length > longest:
                longest = length
            size = i + 1 - start
            if size > most or (size * longest > capacity and size > 1):
                starts.append(start)
                start, longest = i, length
        starts.append(start)
    return starts


class BatchCosts:
    """What batches cost with options of `plan_epoch`: clips times the cost of one, padded to the
    largest length of each kind. BatchingError if an option that concerns it cannot be such."""

    def __init__(self, lengths: Lengths, options: Mapping[str, Any]):
        options = {**(plan_epoch.__kwdefaults__ or {}), **options}
        self.lengths, self.cost = check_lengths(lengths), options["cost"]  # of one clip
        clips, self.size_multiple = len(self.lengths), options["size_multiple"]
        if self.cost:
            self.lengths = self.lengths.reshape(clips, -1)
        elif self.lengths.ndim > 1:
            raise BatchingError(f"lengths: {self.lengths.shape[1]} of each clip; expected cost")
        given = {
            name: check_lengths(options[name], name, (clips,))
            for name in ("group_sizes", "draw_weights")
            if options[name] is not None
        }
        self.counts = given.get("group_sizes")
        self.own = self._of_one(self.lengths)  # [clips] what each costs; in groups, each of theirs
        self.alone = self.own if self.counts is None else self.own * self.counts  # as a batch
        if self.cost or given:
            check_lengths(self.alone, "costs of clips")
        self.share = None  # or [clips] how often each is drawn, in proportion
        leave_out = options["too_long"] == "leave_out"
        if options["draw"] or "draw_weights" in given or leave_out:
            most = options["batch_capacity"] if leave_out else None
            self.share = (self.alone <= (most or math.inf)) * given.get("draw_weights", 1)
            if not self.share.any():
                raise BatchingError("draw_weights, too_long: no clip is left to be in a batch")

    def _of_one(self, lengths: np.ndarray) -> np.ndarray:
        if self.cost is None:
            return lengths
        return np.asarray(np.frompyfunc(self.cost, lengths.shape[1], 1)(*lengths.T), np.float64)

    def sizes(self, plan: EpochPlan) -> np.ndarray:
        """[batches] the number of clips, those of groups counted."""
        if self.counts is None:
            return plan.sizes
        return np.add.reduceat(self.counts[plan.order], plan.starts)

    def longest(self, plan: EpochPlan) -> np.ndarray:
        """[batches] what a clip costs there: with one length, the longest."""
        return self._of_one(plan.longest(self.lengths))

    def starts(
        self, order: np.ndarray, most: int, capacity: float, class_starts: Sequence[int] = (0,)
    ) -> list[int]:
        """`_batch_starts` of clips in this order, for any cost."""
        x, multiple = self.lengths[order], self.size_multiple
        if self.cost is None and multiple == 1 and self.counts is None:
            return _batch_starts(x, min(most, len(x)), capacity, class_starts)
        cost = self.cost or float  # of the only length
        rows = x.reshape(len(x), -1).tolist()
        counts = [1] * len(x) if self.counts is None else self.counts[order].tolist()
        starts = []
        for start, class_end in itertools.pairwise([*class_starts, len(x)]):
            while start < class_end:
                starts.append(start)
                size, longest, end, whole = 0, rows[start], start, start
                while end < class_end:
                    longest = list(map(max, longest, rows[end]))
                    size += counts[end]
                    if end > start and (size > most or size * cost(*longest) > capacity):
                        break
                    end += 1
                    if size % multiple == 0:
                        whole = end
                start = end if whole == start else whole
        return starts


# ---------------------------------------------------------------------------- the batch sampler


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
        seeds = _hashed_seed(self.options.get("seed", 0), self.epoch)
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


if __name__ == "__main__":  # python -m batching
    import runpy

    runpy.run_module("batching_costs", run_name="__main__")
