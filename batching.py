"""Which clips share a batch, and in what order, for one epoch.

Input is nothing but lengths; this file needs numpy and torch's Sampler and works as it stands in
any PyTorch project:

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
import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler


class BatchingError(ValueError):
    """Lengths or options that cannot be batched, or a saved position inside another plan.

    The message names the value and what is allowed. Any other exception is a fault of the code.
    """


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
    at_most: int | None = None  # whatever the clips
    larger_mixes_more: bool = True

    def limits(self, num_clips: int, batch_size: int) -> tuple[int, int | None]:
        """The least and the largest value allowed; None where there is no largest."""
        if self.is_factor:
            return 0, None
        most = num_clips if self.at_most_clips else self.at_most
        return batch_size if self.holds_batches else 1, most


@dataclass(frozen=True)
class ShuffledClips:
    """An epoch's clips in random order, and what a strategy may use to order them."""

    lengths: np.ndarray  # [clips] float64
    order: np.ndarray  # [clips] their indices in random order
    value: float | None  # of the strategy's parameter
    dynamic_batch_size: bool
    rng: np.random.Generator


# The clips in a strategy's order, and the places in it where a batch must begin.
Order = tuple[np.ndarray, Sequence[int]]


@dataclass(frozen=True)
class Strategy:
    """Which clips lie side by side in an epoch, and so share batches."""

    name: str
    short_name: str  # for tables and pictures
    source: str
    meaning: str
    order: Callable[[ShuffledClips], Order]
    parameter: Parameter | None = None
    larger_values: str = ""  # one sentence: what larger values of the parameter do
    order_follows_sizes: bool = False  # the order is another with dynamic batch sizes


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
)
MOST_COUNTED = 10**15  # a count or a length: sums of them stay exact in float64
LARGEST_FACTOR = 1e6  # random order long before


def _random(clips: ShuffledClips) -> Order:
    return clips.order, [0]


def _sorted(clips: ShuffledClips) -> Order:
    return _sort_by(clips.lengths, clips.order), [0]


def _semi_sorted(clips: ShuffledClips) -> Order:
    x, order = clips.lengths, clips.order
    if clips.value == 0:
        return _sorted(clips)
    noise_range = (x.max() - x.min()) * clips.value  # a
    return order[np.argsort(x[order] + noise_range * (clips.rng.random(len(x)) - 0.5))], [0]


def _semi_sorted_rank(clips: ShuffledClips) -> Order:
    order, starts = _sorted(clips)
    if clips.value == 0:
        return order, starts
    place = np.arange(len(order))
    noise_range = len(order) * clips.value  # a
    return order[np.argsort(place + noise_range * (clips.rng.random(len(order)) - 0.5))], starts


def _semi_sorted_exponential(clips: ShuffledClips) -> Order:
    # A clip shorter than the rest of its batch pads itself, a longer one pads all the rest: so
    # noise that moves clips up only mixes most of all at equal padding. With dynamic sizes a place
    # counts in frames, which gives batches of many short clips the same share of new company as
    # those of few long ones.
    order, starts = _sorted(clips)
    if clips.value == 0:
        return order, starts
    if clips.dynamic_batch_size:
        place = np.cumsum(clips.lengths[order])
    else:
        place = np.arange(1, len(order) + 1)
    mean_noise = place[-1] * clips.value / 2
    return order[np.argsort(place + clips.rng.exponential(mean_noise, len(order)))], starts


def _bucket(clips: ShuffledClips) -> Order:
    order = _sort_by(-clips.lengths, clips.order)
    bucket = np.arange(len(order)) // clips.value
    return order[np.argsort(bucket + clips.rng.random(len(order)))], [0]


def _bucket_by_width(clips: ShuffledClips) -> Order:
    x = clips.lengths
    return _by_class(clips, np.linspace(x.min(), x.max(), clips.value + 1)[1:-1])


def _bucket_by_quantile(clips: ShuffledClips) -> Order:
    return _by_class(clips, np.quantile(clips.lengths, np.linspace(0, 1, clips.value + 1)[1:-1]))


def _by_class(clips: ShuffledClips, edges: np.ndarray) -> Order:
    """Classes between `edges`, longest first. Equal lengths share one; a class may be empty."""
    label = np.searchsorted(edges, clips.lengths, side="left")
    order = _sort_by(-label, clips.order)
    return order, np.flatnonzero(np.diff(label[order], prepend=-1)).tolist()


def _alternated_sort(clips: ShuffledClips) -> Order:
    x, order = clips.lengths[clips.order], clips.order
    # Bin k (from 0) holds positions ceil(k n / N) to ceil((k + 1) n / N) - 1.
    bin_index = np.arange(len(x)) * clips.value // len(x)
    by_length = _stable_argsort(np.where(bin_index % 2 == 0, x, -x))
    return order[by_length[_stable_argsort(bin_index[by_length])]], [0]


def _sort_by(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """`order` sorted by each clip's key, clips of equal key left in their shuffled order."""
    return order[_stable_argsort(keys[order])]


def _stable_argsort(keys: np.ndarray) -> np.ndarray:
    """np.argsort(keys, kind="stable"), several times as fast for frames and other small counts."""
    least, most = keys.min(), keys.max()
    if most - least < 1 << 16:  # numpy sorts 16-bit numbers by radix
        above = keys - least
        small = above.astype(np.uint16)
        if np.array_equal(small, above):
            keys = small
    return np.argsort(keys, kind="stable")


_MORE = "Larger values mix clips more and pad more."
_ENTRIES = (
    Strategy("random", "RAND", "Ge21", "random order", _random),
    Strategy("sorted", "SB", "Ge21", "sorted by length, shortest first", _sorted),
    Strategy(
        "semi_sorted",
        "SSB",
        "Ge21, eq. 2-3",
        "sorted by length + U(-a/2, a/2), a = (longest - shortest) * factor",
        _semi_sorted,
        FACTOR,
        _MORE,
    ),
    Strategy(
        "semi_sorted_rank",
        "SSB-rank",
        "ours",
        "sorted by place + U(-a/2, a/2), a = number of clips * factor, where a place is that in "
        "the sorted order; so clips of rare lengths mix as widely as those of common ones",
        _semi_sorted_rank,
        FACTOR,
        _MORE,
    ),
    Strategy(
        "semi_sorted_exponential",
        "SSB-exp",
        "ours",
        "sorted by place + exponential noise of mean a/2, so clips only move up, among longer "
        "ones, and a few of them far; with dynamic sizes a place counts in frames",
        _semi_sorted_exponential,
        FACTOR,
        _MORE,
        order_follows_sizes=True,
    ),
    Strategy(
        "bucket",
        "BKT",
        "Ge21",
        "sorted, longest first, cut into buckets of so many clips, and shuffled inside each; a "
        "batch may cross a bucket's edge",
        _bucket,
        BUCKET_SIZE,
        _MORE,
    ),
    Strategy(
        "bucket_by_width",
        "BKT-width",
        "Gonzalez23",
        "length classes of equal width, longest first, shuffled inside each; a batch holds clips "
        "of one class, so each class ends with a short batch",
        _bucket_by_width,
        NUM_BUCKETS,
        "Larger values mix clips less, and more batches are short.",
    ),
    Strategy(
        "bucket_by_quantile",
        "BKT-quantile",
        "Gonzalez23",
        "the same with classes of equally many clips",
        _bucket_by_quantile,
        NUM_BUCKETS,
        "Larger values mix clips less, and more batches are short.",
    ),
    Strategy(
        "alternated_sort",
        "ATS",
        "Doetsch17",
        "random bins of equal size, odd ones sorted shortest first, even ones longest first",
        _alternated_sort,
        NUM_BINS,
        _MORE,
    ),
)
REGISTRY = {strategy.name: strategy for strategy in _ENTRIES}  # the one place that lists them
STRATEGIES = tuple(REGISTRY)


# ---------------------------------------------------------------------------- planning an epoch


class EpochPlan(Sequence):
    """An epoch's batches, each an array of clip indices; kept as two arrays, whatever their number.

    Args:
        order: [clips] the clips, batch after batch.
        starts: [batches] the places in `order` where the batches begin, 0 first.
    """

    def __init__(self, order: np.ndarray, starts: np.ndarray):
        self.order, self.starts = order, starts

    @classmethod
    def from_batches(cls, batches: Sequence[Sequence[int] | np.ndarray]) -> "EpochPlan":
        """The plan of these batches, which must not be empty.

        Raises:
            ValueError: if there is no batch, or an empty one.
        """
        if isinstance(batches, cls):
            return batches
        sizes = np.array([len(batch) for batch in batches])
        if sizes.size == 0 or sizes.min() == 0:
            raise ValueError("batches: expected at least one batch, and no empty one")
        order = np.concatenate([np.asarray(batch) for batch in batches])
        return cls(order, np.cumsum(sizes) - sizes)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[batches] clips of each."""
        return np.diff(self.starts, append=len(self.order))

    @functools.cached_property
    def batch_of_place(self) -> np.ndarray:
        """[clips] the number of the batch at every place of `order`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self.starts[index]
        following = index % len(self) + 1
        return self.order[start : self.starts[following] if following < len(self) else None]

    def __iter__(self) -> Iterator[np.ndarray]:
        starts = self.starts.tolist()
        for start, end in zip(starts, [*starts[1:], len(self.order)], strict=True):
            yield self.order[start:end]

    def rearranged(self, chosen: np.ndarray) -> "EpochPlan":
        """The batches with these numbers, in this order."""
        sizes = self.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self.starts[chosen] - starts, sizes)
        return EpochPlan(self.order[places], starts)


def plan_epoch(
    lengths: Sequence[float] | np.ndarray,
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
    known_orders: dict | None = None,
) -> EpochPlan:
    """This epoch's batches: arrays of clip indices in which every clip appears exactly once.

    Every strategy begins with a shuffle, so clips of equal length change places between epochs.

    Args:
        lengths: one positive length per clip, in any unit (frames, say).
        batch_size: clips a batch (B0). The last batch may be smaller; it is kept.
        strategy: one of STRATEGIES; REGISTRY says what each does, and with which parameter.
        seed, epoch: the plan follows from this pair alone.
        local_randomization_factor, bucket_size, num_bins, num_buckets: the strategies' parameters;
            those of other strategies are without effect.
        dynamic_batch_size: each batch takes as many consecutive clips as fit into the capacity
            when all are padded to the longest of them (DBS, Ge21).
        batch_capacity: that capacity, in units of length; default batch_size * longest clip.
            Never exceeded.
        batch_randomization: shuffle the finished batches (BR, Ge21).
        known_orders: the strategies' orders of these very lengths, which are looked up and added:
            batches of several sizes are planned sooner so, without batch_randomization.

    Raises:
        BatchingError: naming the parameter, its value and what is allowed.
    """
    x = check_lengths(lengths)
    if strategy not in REGISTRY:
        near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BatchingError(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}{hint}")
    _check_count("batch_size", batch_size, 1)
    batch_size = min(batch_size, MOST_COUNTED)
    values = {
        "local_randomization_factor": local_randomization_factor,
        "bucket_size": bucket_size,
        "num_bins": num_bins,
        "num_buckets": num_buckets,
    }
    parameter = REGISTRY[strategy].parameter
    value = parameter and values[parameter.name]
    if parameter and parameter.holds_batches and isinstance(value, int):
        value = min(value, max(len(x), batch_size))  # no bucket holds more
    _check_value(FACTOR, local_randomization_factor, len(x), batch_size)  # whatever the strategy
    if parameter:
        _check_value(parameter, value, len(x), batch_size)
    capacity = batch_size * float(x.max())
    if batch_capacity is not None:
        _check_capacity(batch_capacity, x, dynamic_batch_size)
        capacity = min(batch_capacity, len(x) * float(x.max()))  # which holds the whole corpus
    _check_count("seed", seed, 0)
    _check_count("epoch", epoch, 0)

    rng = np.random.default_rng(_hashed_seed(seed, epoch))
    sizes = dynamic_batch_size and REGISTRY[strategy].order_follows_sizes
    key = (strategy, value, seed, epoch, sizes)
    if known_orders is None or batch_randomization or key not in known_orders:
        shuffled = ShuffledClips(x, rng.permutation(len(x)), value, dynamic_batch_size, rng)
        found = REGISTRY[strategy].order(shuffled)
        if known_orders is not None:
            known_orders[key] = found
    else:
        found = known_orders[key]
    order, class_starts = found
    find_starts = _dynamic_starts if dynamic_batch_size else _fixed_starts
    starts = find_starts(x[order], capacity if dynamic_batch_size else batch_size, class_starts)
    plan = EpochPlan(order, np.array(starts))
    return plan.rearranged(rng.permutation(len(plan))) if batch_randomization else plan


def check_lengths(lengths: Sequence[float] | np.ndarray) -> np.ndarray:
    """`lengths` as a one-dimensional float64 array.

    Raises:
        BatchingError: if one cannot be a clip's length.
    """
    x = np.asarray(lengths)
    if x.ndim != 1 or x.size == 0:
        raise BatchingError(f"lengths: expected one number per clip, got shape {x.shape}")
    if not (np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.floating)):
        raise BatchingError(f"lengths: expected numbers, got {x.dtype}")
    x = x.astype(np.float64)
    bad = np.flatnonzero(~((x > 0) & (x <= MOST_COUNTED)))
    if bad.size:
        raise BatchingError(
            f"lengths[{bad[0]}]={x[bad[0]]:g}: expected a positive, finite length of at most "
            f"{MOST_COUNTED:.0e} ({bad.size} of {x.size} are not)"
        )
    return x


def _check_value(parameter: Parameter, value: float, num_clips: int, batch_size: int) -> None:
    least, most = parameter.limits(num_clips, batch_size)
    if not parameter.is_factor:
        what = "batch_size" if parameter.holds_batches else ""
        what = "the number of clips" if parameter.at_most_clips else what
        _check_count(parameter.name, value, least, most, what)
    elif not least <= value <= LARGEST_FACTOR:
        raise BatchingError(f"{parameter.name}={value}: expected 0 <= factor <= {LARGEST_FACTOR:g}")


def _check_capacity(batch_capacity: float, x: np.ndarray, dynamic_batch_size: bool) -> None:
    if not dynamic_batch_size:
        raise BatchingError(
            f"batch_capacity={batch_capacity}: it bounds dynamic batches only; "
            "set dynamic_batch_size=True or leave it out"
        )
    if not float(x.max()) <= batch_capacity < np.inf:
        raise BatchingError(
            f"batch_capacity={batch_capacity}: expected a finite number of at least "
            f"{x.max():.15g}, the length of the longest clip (index {int(x.argmax())}), which "
            "must fit into a batch"
        )


def _check_count(name, value, low, high=None, what=None) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        bound = f"{low} to {high}" if high is not None else f"at least {low}"
        raise BatchingError(
            f"{name}={value}: expected a whole number, {bound}" + (f" ({what})" if what else "")
        )


def _hashed_seed(seed: int, epoch: int) -> np.random.SeedSequence:
    """Hashes the pair, so that seed 0 epoch 1 is not seed 1 epoch 0."""
    return np.random.SeedSequence(entropy=int(seed), spawn_key=(int(epoch),))


def _fixed_starts(x: np.ndarray, batch_size: int, class_starts: Sequence[int]) -> list[int]:
    """Where batches begin if each takes the next `batch_size` clips of its class."""
    ends = [*class_starts[1:], len(x)]
    return [s for a, b in zip(class_starts, ends, strict=True) for s in range(a, b, batch_size)]


def _dynamic_starts(x: np.ndarray, capacity: float, class_starts: Sequence[int]) -> list[int]:
    """Where batches begin if each takes the longest run with size * longest <= capacity (DBS)."""
    # As many clips fit into any batch as into one of the longest: their maxima are known for
    # every start beforehand, and only the clips beyond are gone through one by one, in Python, for
    # each cut depends on the last one. A memoryview makes no object of a clip before it is needed.
    sure = min(_clips_that_fit(capacity, float(x.max())), len(x))
    lengths, longest_from = memoryview(x), memoryview(_sliding_maximum(x, sure))
    starts = []
    for start, end in zip(class_starts, [*class_starts[1:], len(x)], strict=True):
        while end - start > sure:
            starts.append(start)
            longest, i = longest_from[start], start + sure
            limit = min(end, start + _clips_that_fit(capacity, longest))
            while i < limit:
                length = lengths[i]
                if length > longest:
                    if (i - start + 1) * length > capacity:
                        break
                    longest = length
                    limit = min(end, start + _clips_that_fit(capacity, longest))
                i += 1
            start = i
        if start < end:
            starts.append(start)
    return starts


def _clips_that_fit(capacity: float, longest: float) -> int:
    """The largest count with count * longest <= capacity, to the last bit of the product."""
    count = int(capacity // longest)
    if count * longest > capacity:
        return count - 1
    return count + ((count + 1) * longest <= capacity)


def _sliding_maximum(x: np.ndarray, width: int) -> np.ndarray:
    """[clips] the largest of the `width` (or the fewer that are left) numbers from each place."""
    largest, known = x.copy(), 1
    while known < width:
        step = min(known, width - known)
        np.maximum(largest[:-step], largest[step:], out=largest[:-step])
        known += step
    return largest


# ---------------------------------------------------------------------------- what a plan costs


@dataclass(frozen=True)
class PaddingStats:
    """What an epoch's batches cost in padding. Rates are fractions, not per cent.

    B_j, L_j: size and longest length of batch j; x: the clips' lengths; r: frames_per_step.
    P_j = ceil(L_j / r) r is the length that batch j is padded to; L_j itself where r = 1.
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


def padding_stats(
    lengths: Sequence[float] | np.ndarray,
    batches: Sequence[Sequence[int] | np.ndarray],
    frames_per_step: int = 1,
) -> PaddingStats:
    """Padding of `batches`.

    Args:
        lengths: one positive length per clip; frames, where frames_per_step is above 1.
        batches: arrays of indices into `lengths`; an index may occur several times.
        frames_per_step: frames that a decoder makes at each step, so batches are padded to
            multiples of it. The papers' zero-padding rate, average batch length and padding over
            original leave this out, as their definitions do; time and memory do not.

    Raises:
        ValueError: if there is no batch, or an empty one.
    """
    x = check_lengths(lengths)
    _check_count("frames_per_step", frames_per_step, 1)
    plan = EpochPlan.from_batches(batches)
    sizes, laid_out = plan.sizes, x[plan.order]
    longest = np.maximum.reduceat(laid_out, plan.starts)
    real = np.add.reduceat(laid_out, plan.starts)
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


@dataclass(frozen=True)
class LengthRanks:
    """How far apart in length any two clips are, for `pair_spread`."""

    doubled: np.ndarray  # [clips] int64, twice the rank; clips of equal length share a mean rank
    mean_distance: float  # of two clips drawn at random, in doubled ranks


def length_ranks(lengths: Sequence[float] | np.ndarray) -> LengthRanks:
    """The ranks of `lengths`, one positive length per clip. BatchingError as `check_lengths`."""
    x = check_lengths(lengths)
    _, label, count = np.unique(x, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(count) - count - 1)[label]
    return LengthRanks(doubled, _distances(doubled, EpochPlan(np.arange(len(x)), np.array([0]))))


def pair_spread(
    lengths: Sequence[float] | np.ndarray | LengthRanks,
    batches: Sequence[Sequence[int] | np.ndarray],
) -> float:
    """How far apart in length the clips of a batch are: the mean over pairs that share a batch.

    The distance of two clips is that of their ranks by length (equal lengths share their mean
    rank), in units of the mean distance of any two clips: 1 is what random batches have on
    average, and the least is what sorted batches of the same sizes have. 0 where no batch holds
    two clips, or all clips are of one length. Of many plans of the same clips, give their
    `length_ranks` instead of their lengths.
    """
    ranks = lengths if isinstance(lengths, LengthRanks) else length_ranks(lengths)
    in_batches = _distances(ranks.doubled, EpochPlan.from_batches(batches))
    return in_batches / ranks.mean_distance if ranks.mean_distance else 0.0


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


def pair_novelty(
    batches: Sequence[Sequence[int] | np.ndarray], before: Sequence[Sequence[int] | np.ndarray]
) -> float:
    """Of the pairs of clips that share one of `batches`, the share that shared none `before`.

    Both are plans of the same clips, of an epoch and the one before it. 1 where no batch holds
    two clips.
    """
    now, earlier = EpochPlan.from_batches(batches), EpochPlan.from_batches(before)
    if not np.array_equal(np.bincount(now.order), np.bincount(earlier.order)):
        raise ValueError("batches, before: expected two plans of the same clips")
    batch_before = np.empty(now.order.max() + 1, dtype=np.int64)
    batch_before[earlier.order] = earlier.batch_of_place
    # Clips that share both batches have the same key.
    keys = np.sort(now.batch_of_place * len(earlier) + batch_before[now.order])
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    together = np.diff(first, append=len(keys))
    pairs = (now.sizes * (now.sizes - 1) // 2).sum()
    return 1 - float((together * (together - 1) // 2).sum() / pairs) if pairs else 1.0


# ---------------------------------------------------------------------------- the batch sampler


def cut_evenly(plan: EpochPlan, count: int, lengths: np.ndarray) -> EpochPlan:
    """The plan's clips cut anew, in their order, into at most `count` batches, of which the largest
    (clips x longest) is as small as that allows. For a plan of at most `count` batches.

    No batch has more clips, or is larger, than the largest of the plan.
    """
    x, sizes = lengths[plan.order], plan.sizes
    clips, most = x.tolist(), int(sizes.max())
    # The smaller capacity holds the longest clip alone. The plan's batches fit into the larger one,
    # so no more than these are cut with it.
    small = float(x.max())
    starts = _starts_within(clips, small, most)
    if len(starts) > count:
        large = float((sizes * np.maximum.reduceat(x, plan.starts)).max())
        starts = _starts_within(clips, large, most)
        while large - small > 1e-4 * large:
            middle = (small + large) / 2
            found = _starts_within(clips, middle, most)
            if len(found) > count:
                small = middle
            else:
                large, starts = middle, found
    return EpochPlan(plan.order, np.array(starts))


def _starts_within(lengths: list[float], capacity: float, most: int) -> list[int]:
    """Where batches begin if each takes the longest run with size * longest <= capacity, and at
    most so many clips."""
    starts, longest = [0], 0.0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        size = i + 1 - starts[-1]
        if size > most or (size > 1 and size * longest > capacity):
            starts.append(i)
            longest = length
    return starts


def _divisors_in_words(number: int) -> str:
    """6 -> "1, 2, 3 or 6" """
    *others, last = (str(n) for n in range(1, number + 1) if number % n == 0)
    return f"{', '.join(others)} or {last}" if others else last


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of `plan_epoch` for a DataLoader's `batch_sampler`, one epoch at a time.

    Call `set_epoch` before every epoch. It may be iterated once per call: a second pass would
    repeat the very same batches, which is what a forgotten `set_epoch` looks like.

    An update of the weights takes `batches_per_update` batches, K. The finished batches are ranked
    by length and cut into groups of K: the batches of an update are of similar length, so processes
    that share it out wait for none. The last group, the shortest, may have fewer than K; its clips
    are then cut anew, into up to K smaller batches of similar padded size. Of W processes each
    takes every W-th batch of an update, from its rank on, and W divides K: how many processes there
    are changes nothing in what an update is made of. A rank may have no batch of the last group.

    Args:
        lengths, batch_size, strategy, options: as `plan_epoch` takes them, but for `epoch`.
        random_epochs: so many epochs at the start have random batches of `batch_size` (RAND).
        batches_per_update: K.
        rank, world_size: this process and how many there are (W).
        left_out: clips that are planned and not yielded; a batch of nothing else is passed over.

    Attributes:
        plan: all batches of the epoch, update after update; `batches_trained` counts these.
        update_starts: [updates] the numbers of the batches with which updates begin.
    """

    def __init__(
        self,
        lengths: Sequence[float] | np.ndarray,
        batch_size: int,
        strategy: str,
        *,
        random_epochs: int = 0,
        batches_per_update: int = 1,
        rank: int = 0,
        world_size: int = 1,
        left_out: Collection[int] = (),
        **options,
    ):
        if "epoch" in options:
            raise TypeError("epoch: call set_epoch instead")
        _check_count("world_size", world_size, 1)
        _check_count("rank", rank, 0, world_size - 1)
        _check_count("random_epochs", random_epochs, 0)
        _check_count("batches_per_update", batches_per_update, 1)
        if batches_per_update % world_size:
            raise BatchingError(
                f"batches_per_update={batches_per_update}: cannot be shared out evenly between "
                f"{world_size} processes; expected a multiple of {world_size}, or "
                f"{_divisors_in_words(batches_per_update)} processes"
            )
        self.lengths = check_lengths(lengths)
        self.batch_size, self.strategy, self.options = batch_size, strategy, options
        self.random_epochs, self.batches_per_update = random_epochs, batches_per_update
        self.rank, self.world_size = rank, world_size
        self.left_out = frozenset(left_out)
        self._loaded_epoch: int | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Plan epoch `epoch` (from 0). After `load_state_dict`, setting the very epoch that was
        loaded keeps the position inside it; any other call starts at the first batch."""
        if epoch != self._loaded_epoch:
            self._plan(epoch, start=0)
        self._loaded_epoch = None
        self._iterated = False

    def _plan(self, epoch: int, start: int) -> None:
        self.epoch, self.start = epoch, start
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
        longest = np.maximum.reduceat(self.lengths[plan.order], plan.starts)
        ranked = np.argsort(-longest, kind="stable")
        in_whole_groups = len(ranked) // size * size
        by_length = plan.rearranged(ranked[:in_whole_groups])
        if in_whole_groups < len(ranked):
            rest = cut_evenly(plan.rearranged(ranked[in_whole_groups:]), size, self.lengths)
            by_length = EpochPlan(
                np.concatenate([by_length.order, rest.order]),
                np.concatenate([by_length.starts, len(by_length.order) + rest.starts]),
            )
        # Groups go in the order in which the plan first names one of their batches, so a random
        # order stays random and a sorted one sorted. Shuffling inside a group keeps one rank from
        # always drawing the longest batch.
        firsts = np.minimum.reduceat(ranked, np.arange(0, len(ranked), size))
        turn_of_group = np.argsort(np.argsort(firsts))
        turn = turn_of_group[np.arange(len(by_length)) // size]
        rng = np.random.default_rng(
            _hashed_seed(self.options.get("seed", 0), self.epoch).spawn(1)[0]
        )
        chosen = np.lexsort((rng.random(len(by_length)), turn))
        sizes = np.bincount(turn)
        return by_length.rearranged(chosen), np.cumsum(sizes) - sizes

    def update_at(self, batches_trained: int) -> tuple[list[int], int]:
        """The update that begins with this batch of the plan: the numbers of its batches that have
        clips to yield, and the batches trained after it.

        Raises:
            BatchingError: if no update begins there.
        """
        starts = self.update_starts
        update = int(np.searchsorted(starts, batches_trained))
        if update == len(starts) or starts[update] != batches_trained:
            raise BatchingError(f"no update begins with batch {batches_trained}")
        end = int(starts[update + 1]) if update + 1 < len(starts) else len(self.plan)
        return self._numbers(batches_trained, end), end

    def _numbers(self, start: int, end: int) -> list[int]:
        return [n for n in range(start, end) if not self.left_out or self.clips_of(n)]

    def clips_of(self, number: int) -> list[int]:
        """The clips of a batch of the plan, without those left out."""
        batch = self.plan[number].tolist()
        return [clip for clip in batch if clip not in self.left_out] if self.left_out else batch

    def __len__(self) -> int:
        """Batches that iterating yields: this rank's of the current epoch that are left."""
        return sum(len(share) for share in self._shares())

    def _shares(self) -> Iterator[list[int]]:
        """Of every update that is left, the numbers of this rank's batches."""
        bounds = [*self.update_starts.tolist(), len(self.plan)]
        for start, end in itertools.pairwise(bounds):
            if start >= self.start:
                yield self._numbers(start, end)[self.rank :: self.world_size]

    def __iter__(self) -> Iterator[list[int]]:
        self._refuse_second_pass()
        return self._draw()

    def _draw(self) -> Iterator[list[int]]:
        # A pass begins when its first batch is drawn, not at iter(): a DataLoader with workers
        # calls that twice an epoch and draws from the second only.
        self._refuse_second_pass()
        self._iterated = True
        for share in self._shares():
            for number in share:
                yield self.clips_of(number)

    def _refuse_second_pass(self) -> None:
        if self._iterated:
            raise RuntimeError(
                f"epoch {self.epoch} was iterated already, and again it would give the same "
                f"batches in the same order: call set_epoch({self.epoch + 1}) before the next "
                f"epoch, or set_epoch({self.epoch}) to repeat this one on purpose"
            )

    def state_dict(self, batches_trained: int) -> dict[str, int]:
        """Where to go on: `batches_trained` of this epoch by all ranks, as the *trainer* counts
        them; whole updates. How many ranks there were is not in it.

        A loader with workers takes batches ahead of time, so the sampler cannot know this.
        """
        _check_count("batches_trained", batches_trained, 0, len(self.plan))
        if batches_trained != len(self.plan) and batches_trained not in self.update_starts:
            raise BatchingError(f"batches_trained={batches_trained}: in the middle of an update")
        return {
            "epoch": self.epoch,
            "batches_trained": batches_trained,
            "num_batches": len(self.plan),
            "plan_checksum": self._checksum(),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on inside the saved epoch.

        Raises:
            BatchingError: if some of its batches were trained already and the plan is not the one
                saved (other clips, strategy, options, seed or batches_per_update): the rest of
                another plan would repeat some clips and leave out others.
        """
        self._plan(state["epoch"], start=state["batches_trained"])
        if state["batches_trained"] > 0 and self._checksum() != state["plan_checksum"]:
            raise BatchingError(
                f"epoch {state['epoch']} was left after {state['batches_trained']} of "
                f"{state['num_batches']} batches, but these clips and batching options plan other "
                "batches: go on with the same ones, or start an epoch anew"
            )
        self._loaded_epoch, self._iterated = state["epoch"], False

    def _checksum(self) -> int:
        checksum = zlib.crc32(self.lengths.tobytes(), self.batches_per_update)
        for batch in self.plan:
            checksum = zlib.crc32(batch.astype("<i8").tobytes(), checksum)
            checksum = zlib.crc32(b"|", checksum)
        return checksum
