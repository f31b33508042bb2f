"""The strategies: which clips are next to each other in an epoch, and so share batches.

Each is a function that puts shuffled clips in order. `plan.py` cuts that order into batches.

Sources, cited below by these names:
    Ge21: Ge, Kaushik, Omote, Kumar, "Speed up training with variable length inputs by efficient
        batching strategies", Interspeech 2021.
    Doetsch17: Doetsch, Golik, Ney, "A comparative study of batch construction strategies for
        recurrent neural networks in MXNet", arXiv 1705.02414.
    Gonzalez23: Gonzalez, Alstrøm, May, "On batching variable size inputs for training end-to-end
        speech enhancement systems", ICASSP 2023.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import MAX_COUNT


@dataclass(frozen=True)
class Parameter:
    """The argument of `plan_epoch` that decides how much a strategy mixes."""

    name: str
    label: str  # for people, with the unit
    value_text: str  # a value in words: "{} bins"
    is_factor: bool = False  # a real number from 0; else a whole number from 1
    holds_batches: bool = False  # counted in clips, and at least batch_size
    at_most_clips: bool = False  # no more than there are clips
    at_most: int = MAX_COUNT  # whatever the clips
    larger_mixes_more: bool = True
    larger_values: str = "Larger values mix clips more and pad more."

    def limits(self, num_clips: int = MAX_COUNT, batch_size: int = 1) -> tuple[int, int]:
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


def register(name: str, *values: Any) -> Callable[[OrderFunction], OrderFunction]:
    """Enter a function into REGISTRY, with its name and the fields of `Strategy` from `short_name`
    on. Its docstring is the strategy's meaning."""

    def enter(order: OrderFunction) -> OrderFunction:
        meaning = " ".join((order.__doc__ or "").split())
        REGISTRY[name] = Strategy(name, order, meaning, *values)
        return order

    return enter


@register("random", "RAND", "Ge21")
def _random(clips: ShuffledClips) -> Order:
    """random order"""
    return clips.order, [0]


@register("sorted", "SB", "Ge21")
def _sorted(clips: ShuffledClips) -> Order:
    """sorted by length, shortest first"""
    return _sort_by(clips.lengths, clips.order), [0]


@register("semi_sorted", "SSB", "Ge21, eq. 2-3", FACTOR)
def _semi_sorted(clips: ShuffledClips) -> Order:
    """sorted by length + U(-a/2, a/2), a = (longest - shortest) * factor"""
    x, order = clips.lengths, clips.order
    noise_range = (x.max() - x.min()) * clips.value  # a
    return order[np.argsort(x[order] + noise_range * (clips.rng.random(len(x)) - 0.5))], [0]


@register("semi_sorted_rank", "SSB-rank", "ours", FACTOR)
def _semi_sorted_rank(clips: ShuffledClips) -> Order:
    """sorted by place + U(-a/2, a/2), a = number of clips * factor, where a place is that in the
    sorted order; so clips of rare lengths mix as widely as those of common ones"""
    order, starts = _sorted(clips)
    noise_range = len(order) * clips.value  # a
    noise = noise_range * (clips.rng.random(len(order)) - 0.5)
    return order[np.argsort(np.arange(len(order)) + noise)], starts


@register("semi_sorted_exponential", "SSB-exp", "ours", FACTOR)
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


@register("bucket", "BKT", "Ge21", BUCKET_SIZE)
def _bucket(clips: ShuffledClips) -> Order:
    """sorted, longest first, cut into buckets of fixed size, and shuffled inside each; a batch
    may cross a bucket's edge"""
    order = _sort_by(-clips.lengths, clips.order)
    bucket = np.arange(len(order)) // clips.value
    return order[np.argsort(bucket + clips.rng.random(len(order)))], [0]


@register("bucket_by_width", "BKT-width", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_width(clips: ShuffledClips) -> Order:
    """length classes of equal width, longest first, shuffled inside each; a batch holds clips of
    one class, so each class ends with a short batch"""
    x = clips.lengths
    return _by_class(clips, np.linspace(x.min(), x.max(), int(clips.value) + 1)[1:-1])


@register("bucket_by_quantile", "BKT-quantile", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_quantile(clips: ShuffledClips) -> Order:
    """the same with classes of equally many clips"""
    shares = np.linspace(0, 1, int(clips.value) + 1)[1:-1]
    return _by_class(clips, np.quantile(clips.lengths, shares))


def _by_class(clips: ShuffledClips, edges: np.ndarray) -> Order:
    """Classes between `edges`, longest first. Equal lengths share one; a class may be empty."""
    label = np.searchsorted(edges, clips.lengths, side="left")
    order = _sort_by(-label, clips.order)
    return order, np.flatnonzero(np.diff(label[order], prepend=-1)).tolist()


@register("alternated_sort", "ATS", "Doetsch17", NUM_BINS)
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
