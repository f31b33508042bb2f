"""Which clips share a batch, and in what order, for one epoch.

Input is nothing but lengths; this file needs numpy and torch, and works in any PyTorch project:

    sampler = LengthBatchSampler(lengths, batch_size=16, strategy="semi_sorted",
                                 dynamic_batch_size=True, batch_randomization=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(100):
        sampler.set_epoch(epoch)
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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Sampler

Lengths = Sequence[float] | np.ndarray  # one of each clip
Batches = Sequence[Sequence[int] | np.ndarray]  # indices of the clips in each
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

    @classmethod
    def from_batches(cls, batches: Batches) -> "EpochPlan":
        """The plan of these batches; ValueError if there is no batch, or an empty one."""
        if isinstance(batches, EpochPlan):
            return batches
        sizes = np.array([len(batch) for batch in batches])
        if sizes.size == 0 or sizes.min() == 0:
            raise ValueError("batches: expected at least one batch, and no empty one")
        order = np.concatenate([np.asarray(batch) for batch in batches])
        return cls(order, np.cumsum(sizes) - sizes)

    @property
    def batch_of_place(self) -> np.ndarray:
        """[clips] the number of the batch at every place of `order`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self.starts[index]
        return self.order[start : start + self.sizes[index]]

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """[batches] the longest length in each."""
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
) -> EpochPlan:
    """This epoch's batches: arrays of clip indices in which every clip appears exactly once.

    Args:
        lengths: one positive length per clip, in any unit (frames, say).
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

    Raises:
        BatchingError: naming the parameter, its value and what is allowed.
    """
    options = dict(locals())  # the arguments, by name
    x = check_lengths(lengths)
    check_options(options, x)
    chosen = REGISTRY[strategy]
    value = options[chosen.parameter.name] if chosen.parameter else 0

    rng = np.random.default_rng(_hashed_seed(seed, epoch))
    # The shuffle lets clips of equal length change places between epochs, whatever the strategy.
    shuffled = ShuffledClips(x, rng.permutation(len(x)), value, dynamic_batch_size, rng)
    without_noise = chosen.parameter is FACTOR and value == 0
    order, class_starts = _sorted(shuffled) if without_noise else chosen.order(shuffled)
    most, capacity = batch_size, math.inf
    if dynamic_batch_size:
        most, capacity = len(x), batch_capacity or batch_size * float(x.max())
    starts = _batch_starts(x[order], most, capacity, class_starts)
    plan = EpochPlan(order, np.array(starts))
    return plan.rearranged(rng.permutation(len(plan))) if batch_randomization else plan


def check_options(options: Mapping[str, Any], lengths: np.ndarray | None = None) -> None:
    """Raise BatchingError if `plan_epoch` refuses these options for any clips, or for these."""
    strategy, batch_size = options["strategy"], options["batch_size"]
    problems = [
        *_count_problems("batch_size", batch_size),
        *_count_problems("seed", options["seed"], 0, 2**64 - 1),  # torch's limit
        *_count_problems("epoch", options.get("epoch", 0), 0),
    ]
    if strategy not in REGISTRY:
        near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}{hint}")
    used = None if problems else REGISTRY[strategy].parameter
    num_clips = MOST_COUNTED if lengths is None else len(lengths)
    for parameter in PARAMETERS:
        value, limits, note = options[parameter.name], parameter.limits(), ""
        if parameter is used:  # those of other strategies need not suit the clips
            limits = parameter.limits(num_clips, batch_size)
            clips = "" if lengths is None else f" and {num_clips} clips"
            note = f" (for batch_size={batch_size}{clips})"
        if not parameter.is_factor:
            problems += [p + note for p in _count_problems(parameter.name, value, *limits)]
        elif not limits[0] <= value <= limits[1]:
            problems.append(f"{parameter.name}={value}: expected 0 <= factor <= {limits[1]:g}")
    capacity, longest = options["batch_capacity"], 0.0 if lengths is None else float(lengths.max())
    if capacity is not None and not options["dynamic_batch_size"]:
        problem = "limits dynamic batches only; set dynamic_batch_size=True"
        problems.append(f"batch_capacity={capacity}: {problem}")
    elif capacity is not None and not longest <= capacity <= MOST_COUNTED:
        allowed = f"{longest:.15g}, so that the longest clip fits, to {MOST_COUNTED:.0e}"
        problems.append(f"batch_capacity={capacity}: expected {allowed}")
    if problems:
        raise BatchingError("\n".join(problems))


def check_lengths(lengths: Lengths) -> np.ndarray:
    """`lengths` as a one-dimensional float64 array; BatchingError if one cannot be a length."""
    x = np.asarray(lengths)
    if x.ndim != 1 or x.size == 0 or x.dtype.kind not in "iuf":
        raise BatchingError(f"lengths: expected a number per clip, got {x.dtype}, shape {x.shape}")
    x = x.astype(np.float64)
    bad = np.flatnonzero(~((x > 0) & (x <= MOST_COUNTED)))
    if bad.size:
        allowed = f"a positive, finite length of at most {MOST_COUNTED:.0e}"
        value, count = f"{x[bad[0]]:g}", f"{bad.size} of {x.size}"
        raise BatchingError(f"lengths[{bad[0]}]={value}: expected {allowed} ({count} are not)")
    return x


def _check_count(name: str, value: Any, low: int = 1, high: int = MOST_COUNTED) -> None:
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


def _batch_starts(
    x: np.ndarray, most: int, capacity: float = math.inf, class_starts: Sequence[int] = (0,)
) -> list[int]:
    """Where batches begin if each takes the longest run of clips of its class with size * longest
    <= capacity (DBS, Ge21), and at most so many; a longer clip is a batch of its own."""
    starts, lengths = [], x.tolist()
    for class_start, class_end in itertools.pairwise([*class_starts, len(x)]):
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


# ---------------------------------------------------------------------------- what a plan costs


@dataclass(frozen=True)
class PaddingStats:
    """What an epoch's batches cost in padding. Rates are fractions, not per cent.

    B_j, L_j: size and longest length of batch j; x: the clips' lengths; r: frames_per_step;
    P_j = ceil(L_j / r) r: the length that batch j is padded to, L_j itself where r = 1.
    """

    num_batches: int
    zero_padding_rate: float  # Ge21 eq. 1, mean over batches weighted by B_j
    average_batch_length: float  # sum(B_j L_j) / sum(B_j), Ge21
    padded_to_original_rate: float  # (sum(B_j L_j) - sum x) / sum x, Gonzalez23
    padded_fraction: float  # padding over everything computed, 1 - sum x / sum(B_j P_j)
    padded_frames: float  # sum(B_j P_j): everything computed
    decoder_steps: float  # sum(P_j / r): steps that a recurrent decoder makes one by one
    largest_batch_size: int  # max B_j
    largest_batch_frames: float  # max B_j P_j, what memory must hold


def padding_stats(lengths: Lengths, batches: Batches, frames_per_step: int = 1) -> PaddingStats:
    """Padding of `batches`; ValueError if there is no batch, or an empty one.

    Args:
        lengths: one positive length per clip; frames, where frames_per_step is above 1.
        batches: arrays of indices into `lengths`; an index may occur several times.
        frames_per_step: frames that a decoder makes at each step, so batches are padded to
            multiples of it, which the papers' three rates and lengths leave out.
    """
    x = check_lengths(lengths)
    _check_count("frames_per_step", frames_per_step, 1)
    plan = EpochPlan.from_batches(batches)
    sizes, longest = plan.sizes, plan.longest(x)
    real = np.add.reduceat(x[plan.order], plan.starts)
    steps = longest if frames_per_step == 1 else np.ceil(longest / frames_per_step)
    padded = steps * frames_per_step
    clips, real_total = int(sizes.sum()), float(real.sum())
    # At least the real frames: rounding must not make a rate negative.
    to_longest, computed = (max(float(sizes @ each), real_total) for each in (longest, padded))
    return PaddingStats(
        num_batches=len(sizes),
        zero_padding_rate=max(0.0, 1 - float((real / longest).sum()) / clips),
        average_batch_length=to_longest / clips,
        padded_to_original_rate=to_longest / real_total - 1,
        padded_fraction=1 - real_total / computed,
        padded_frames=computed,
        decoder_steps=float(steps.sum()),
        largest_batch_size=int(sizes.max()),
        largest_batch_frames=float((sizes * padded).max()),
    )


# ---------------------------------------------------------------------------- how it mixes clips


def pair_spread(lengths: Lengths, batches: Batches) -> float:
    """How far apart in length the clips of a batch are: the mean over pairs that share a batch of
    the distance of their ranks by length (equal lengths share their mean rank), in units of that of
    any two clips. Random batches have 1 on average; clips that are alone or all of one length, 0.
    """
    x = check_lengths(lengths)
    _, label, count = np.unique(x, return_inverse=True, return_counts=True)
    doubled_rank = (2 * np.cumsum(count) - count - 1)[label]  # twice, so that it is whole
    of_any = _distances(doubled_rank, EpochPlan(np.arange(len(x)), np.array([0])))
    in_batches = _distances(doubled_rank, EpochPlan.from_batches(batches))
    return in_batches / of_any if of_any else 0.0


def _distances(rank: np.ndarray, plan: EpochPlan) -> float:
    """Mean |rank - rank| over the pairs inside batches, without going through the pairs."""
    batch, sizes = plan.batch_of_place, plan.sizes
    # Sorted by batch and rank as one number, which is the fastest way to sort.
    before = batch * (int(rank.max()) + 1)
    laid_out = np.sort(before + rank[plan.order]) - before
    # Of B sorted values the one at place i (from 0) is the larger in i pairs, the smaller in the
    # other B - 1 - i.
    weight = 2 * np.arange(len(batch)) - (2 * plan.starts + sizes - 1)[batch]
    total = float(weight.astype(np.float64) @ laid_out)
    pairs = float((sizes * (sizes - 1) / 2).sum())
    return total / pairs if pairs else 0.0


def pair_novelty(batches: Batches, before: Batches) -> float:
    """Of the pairs of clips that share a batch, the share that shared none `before`, in another
    plan of the same clips. 1 where no batch holds two clips."""
    now, earlier = EpochPlan.from_batches(batches), EpochPlan.from_batches(before)
    if not np.array_equal(np.bincount(now.order), np.bincount(earlier.order)):
        raise ValueError("batches, before: expected two plans of the same clips")
    batch_before = np.empty(now.order.max() + 1, dtype=np.int64)
    batch_before[earlier.order] = earlier.batch_of_place
    # Clips that share both batches have the same key.
    keys = np.sort(now.batch_of_place * len(earlier) + batch_before[now.order])
    together = np.diff(np.flatnonzero(np.diff(keys, prepend=-1)), append=len(keys))
    pairs = (now.sizes * (now.sizes - 1) // 2).sum()
    return 1 - float((together * (together - 1) // 2).sum() / pairs) if pairs else 1.0


# ---------------------------------------------------------------------------- the batch sampler


def cut_evenly(plan: EpochPlan, count: int, lengths: np.ndarray) -> EpochPlan:
    """The clips of a plan of at most `count` batches, cut anew in their order into up to `count`.
    The largest (clips x longest) is as small as possible; none has more clips than one had."""
    x, most = lengths[plan.order], int(plan.sizes.max())
    # The smaller capacity holds the longest clip alone. The plan's batches fit into the larger one,
    # so no more than these are cut with it.
    small = float(x.max())
    starts = _batch_starts(x, most, small)
    if len(starts) > count:
        large = float((plan.sizes * plan.longest(lengths)).max())
        starts = _batch_starts(x, most, large)
        while large - small > 1e-4 * large:
            middle = (small + large) / 2
            found = _batch_starts(x, most, middle)
            if len(found) > count:
                small = middle
            else:
                large, starts = middle, found
    return EpochPlan(plan.order, np.array(starts))


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of `plan_epoch` for a DataLoader's `batch_sampler`, one epoch at a time.

    Call `set_epoch` before every epoch. It may be iterated once per call: a second pass would
    repeat the very same batches, which is what a forgotten `set_epoch` looks like.

    An update of the weights takes `batches_per_update` batches, K. The finished batches are ranked
    by length and cut into groups of K, so processes that share an update do not wait for each
    other. Where the last group, the shortest, has fewer than K, its clips are cut anew into up to K
    batches of similar padded size. Of W processes, where W divides K, each takes every W-th batch
    of an update, so their number does not change what an update is made of.

    Args:
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        random_epochs: so many epochs at the start have random batches of `batch_size` (RAND).
        batches_per_update: K.
        rank, world_size: this process and how many there are (W).

    Attributes:
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
        batches_per_update: int = 1,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ):
        _check_count("world_size", world_size)
        _check_count("rank", rank, 0, world_size - 1)
        _check_count("random_epochs", random_epochs, 0)
        _check_count("batches_per_update", batches_per_update)
        if batches_per_update % world_size:
            raise BatchingError(
                f"batches_per_update={batches_per_update}: cannot be shared evenly between "
                f"{world_size} processes; expected a multiple of {world_size}"
            )
        self.lengths = check_lengths(lengths)
        self.batch_size, self.strategy, self.options = batch_size, strategy, options
        self.random_epochs, self.batches_per_update = random_epochs, batches_per_update
        self.rank, self.world_size = rank, world_size
        self._loaded_epoch: int | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Plan epoch `epoch` (from 0). Setting the epoch just loaded by `load_state_dict` keeps the
        position inside it; any other call starts at the first batch."""
        if epoch != self._loaded_epoch:
            self._plan(epoch, start=0)
        self._loaded_epoch, self._iterated = None, False

    def _plan(self, epoch: int, start: int) -> None:
        self.epoch, self.start, self._iterated = epoch, start, False
        self.plan, self.update_starts = self._in_updates(self.plan_of(epoch))

    def plan_of(self, epoch: int) -> EpochPlan:
        """The batches of any epoch, in the strategy's order."""
        strategy, options = self.strategy, self.options
        if epoch < self.random_epochs:
            fixed = {"dynamic_batch_size": False, "batch_capacity": None}
            strategy, options = "random", options | fixed | {"batch_randomization": False}
        return plan_epoch(self.lengths, self.batch_size, strategy, epoch=epoch, **options)

    def _in_updates(self, plan: EpochPlan) -> tuple[EpochPlan, np.ndarray]:
        """`plan` and `update_starts`."""
        size = self.batches_per_update
        if size == 1:
            return plan, np.arange(len(plan))
        ranked = np.argsort(-plan.longest(self.lengths), kind="stable")
        in_whole_groups = len(ranked) // size * size
        by_length = plan.rearranged(ranked[:in_whole_groups])
        if in_whole_groups < len(ranked):
            rest = cut_evenly(plan.rearranged(ranked[in_whole_groups:]), size, self.lengths)
            by_length = EpochPlan.from_batches([*by_length, *rest])
        # Groups come in the order in which the plan first names one of their batches, so a random
        # order stays random and a sorted one sorted. Shuffling inside a group keeps one rank from
        # always taking the longest batch.
        firsts = np.minimum.reduceat(ranked, np.arange(0, len(ranked), size))
        turn = np.argsort(np.argsort(firsts))[np.arange(len(by_length)) // size]
        seeds = _hashed_seed(self.options.get("seed", 0), self.epoch)
        rng = np.random.default_rng(seeds.spawn(1)[0])
        chosen = np.lexsort((rng.random(len(by_length)), turn))
        sizes = np.bincount(turn)
        return by_length.rearranged(chosen), np.cumsum(sizes) - sizes

    def update_at(self, batches_trained: int) -> tuple[list[int], int]:
        """The update that begins with this batch of the plan: the numbers of its batches, and the
        batches trained after it; BatchingError if no update begins there."""
        starts = self.update_starts
        place = int(np.searchsorted(starts, batches_trained))
        if place == len(starts) or starts[place] != batches_trained:
            raise BatchingError(f"batches_trained={batches_trained}: no update begins there")
        end = int(starts[place + 1]) if place + 1 < len(starts) else len(self.plan)
        return list(range(batches_trained, end)), end

    def _own_batches(self) -> list[int]:
        """The numbers of this rank's batches that are left in the epoch."""
        bounds = itertools.pairwise([*self.update_starts.tolist(), len(self.plan)])
        left = [(start, end) for start, end in bounds if start >= self.start]
        return [n for start, end in left for n in range(start + self.rank, end, self.world_size)]

    def __len__(self) -> int:
        """Batches that iterating yields: this rank's of the current epoch that are left."""
        return len(self._own_batches())

    def __iter__(self) -> Iterator[list[int]]:
        self._refuse_second_pass()
        return self._draw()

    def _draw(self) -> Iterator[list[int]]:
        # A pass begins when its first batch is drawn, not at iter(): a DataLoader with workers
        # calls that twice an epoch and draws from the second only.
        self._refuse_second_pass()
        self._iterated = True
        for number in self._own_batches():
            yield self.plan[number].tolist()

    def _refuse_second_pass(self) -> None:
        if self._iterated:
            raise RuntimeError(
                f"epoch {self.epoch} was iterated already: call set_epoch({self.epoch + 1}) before "
                f"the next epoch, or set_epoch({self.epoch}) to get the same batches again"
            )

    def state_dict(self, batches_trained: int) -> dict[str, int]:
        """Where to resume: after `batches_trained` of this epoch's batches, of all ranks, as the
        *trainer* counts them, for a loader takes batches ahead of time."""
        if batches_trained != len(self.plan):
            self.update_at(batches_trained)
        return {
            "epoch": self.epoch,
            "batches_trained": batches_trained,
            "num_batches": len(self.plan),
            "plan_checksum": self._checksum(),
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume inside the saved epoch. BatchingError if the plan is another and batches were
        trained: the rest of it would repeat some clips and leave out others."""
        self._plan(state["epoch"], start=state["batches_trained"])
        if state["batches_trained"] > 0 and self._checksum() != state["plan_checksum"]:
            raise BatchingError(
                f"epoch {state['epoch']} was left after {state['batches_trained']} of "
                f"{state['num_batches']} batches, but these clips and batching options plan other "
                "batches: resume with the same ones, or start the epoch over"
            )
        self._loaded_epoch = state["epoch"]

    def _checksum(self) -> int:
        checksum = zlib.crc32(self.lengths.tobytes(), self.batches_per_update)
        for array in (self.plan.order, self.plan.starts):
            checksum = zlib.crc32(array.astype("<i8").tobytes(), checksum)
        return checksum
