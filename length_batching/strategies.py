"""Define the batching strategies: functions that decide which clips are neighbors in an epoch.

A strategy receives the clips of an epoch in random order and returns them in a new order. plan.py
cuts the clips in this new order into batches. Neighboring clips usually share a batch.

To add a strategy:
    - Write a function with `@register` below the other strategies and above `STRATEGIES`. The
      docstring of the function becomes the description in the tables of strategies.
    - Add the strategy's name to `StrategyName`, so that type checkers accept the name.
    - Work out the strategy's order for a few lengths by hand, and add this example to the tests. If
      the strategy needs a new parameter, also add a `Parameter` to `PARAMETERS`. Also add an
      argument of the same name to `plan_epoch` in plan.py and to `PlanOptions` in options.py.

If your own program registers a strategy, pass `check_strategy("NAME")` to functions that expect the
name of a strategy.

Papers that define the strategies:
    Ge21: Ge, Kaushik, Omote, Kumar, "Speed up training with variable length inputs by efficient
        batching strategies", Interspeech 2021.
    Doetsch17: Doetsch, Golik, Ney, "A comparative study of batch construction strategies for
        recurrent neural networks in MXNet", arXiv 1705.02414.
    Gonzalez23: Gonzalez, Alstrøm, May, "On batching variable size inputs for training end-to-end
        speech enhancement systems", ICASSP 2023.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from length_batching.checks import MAX_COUNT, BatchingError

StrategyName = Literal[
    "random",
    "sorted",
    "semi_sorted",
    "semi_sorted_rank",
    "semi_sorted_exponential",
    "bucket",
    "bucket_by_width",
    "bucket_by_quantile",
    "alternated_sort",
]


@dataclass(frozen=True)
class Parameter:
    """An argument of `plan_epoch` that controls how much a strategy mixes the clips.

    Attributes:
        name: name of the argument.
        label: axis label for plots, with the unit.
        value_text: format string that describes a value, such as "{} bins".
        default: default value.
        is_factor: True: a real number >= 0; False: a whole number >= 1.
        at_least_batch_size: True: the smallest allowed value is the batch size.
        at_most_clips: True: the largest allowed value is the number of clips.
        maximum: largest allowed value, unless `is_factor` or `at_most_clips` is True.
        larger_mixes_more: whether larger values mix the clips more.
        larger_values: effect of larger values, shown in tables.
    """

    name: str
    label: str
    value_text: str
    default: float
    is_factor: bool = False
    at_least_batch_size: bool = False
    at_most_clips: bool = False
    maximum: int = MAX_COUNT
    larger_mixes_more: bool = True
    larger_values: str = "Larger values mix clips more and add padding."

    def limits(self, num_clips: int = MAX_COUNT, batch_size: int = 1) -> tuple[int, int]:
        """Return the smallest and largest allowed values of the parameter."""
        if self.is_factor:
            return 0, 10**6  # factors far below this limit already make the order random
        largest = num_clips if self.at_most_clips else self.maximum
        smallest = batch_size if self.at_least_batch_size else 1
        return smallest, largest


@dataclass(frozen=True)
class ShuffledClips:
    """The input of a strategy: the clips of an epoch in random order, and the options.

    Attributes:
        lengths: array [clips] of the lengths in corpus order, float64.
        order: array [clips] of clip indices in random order.
        parameter_value: value of the strategy's parameter. The value is never 0, because
            `plan_epoch` uses `sorted` if the factor is 0.
        dynamic_batch_size: whether batches of short clips contain more clips.
        rng: random number generator of the epoch.
    """

    lengths: np.ndarray
    order: np.ndarray
    parameter_value: float
    dynamic_batch_size: bool
    rng: np.random.Generator


# The result of a strategy: clip indices in the strategy's order, and the positions at which a new
# batch must begin.
Order = tuple[np.ndarray, Sequence[int]]
OrderFunction = Callable[[ShuffledClips], Order]


@dataclass(frozen=True)
class Strategy:
    """A batching strategy, with the texts that describe it in tables.

    Attributes:
        name: name of the strategy, as in `STRATEGIES`.
        order: function that returns the order of the clips, and the positions at which a new batch
            must begin.
        description: the order of the clips in words.
        short_name: abbreviation, such as "SSB".
        source: paper or project that the strategy comes from.
        parameter: parameter of the strategy, or None.
    """

    name: str
    order: OrderFunction
    description: str
    short_name: str
    source: str
    parameter: Parameter | None = None


FACTOR = Parameter(
    "local_randomization_factor", "local randomization factor", "factor {}", 0.1, is_factor=True
)
BUCKET_SIZE = Parameter(
    "bucket_size", "bucket size (clips)", "buckets of {}", 1024, at_least_batch_size=True
)
NUM_BINS = Parameter("num_bins", "number of bins", "{} bins", 58, at_most_clips=True)
NUM_BUCKETS = Parameter(
    "num_buckets",
    "number of length classes",
    "{} classes",
    10,
    maximum=10**6,  # the array that contains the limits of all length classes must stay small
    larger_mixes_more=False,
    larger_values="Larger values mix clips less and increase the number of small batches.",
)
PARAMETERS = (FACTOR, BUCKET_SIZE, NUM_BINS, NUM_BUCKETS)
REGISTRY: dict[str, Strategy] = {}  # maps each name to its strategy, in the order of this file


def register(
    name: str, short_name: str, source: str, parameter: Parameter | None = None
) -> Callable[[OrderFunction], OrderFunction]:
    """Add the decorated function to REGISTRY. The docstring of the function becomes the description
    of the strategy.

        @register("longest_first", "LF", "ours")
        def _longest_first(clips: ShuffledClips) -> Order:
            '''clips sorted by length, longest first'''
            return sort_by(-clips.lengths, clips.order), [0]

    Args:
        name: name of the strategy. Strategies in this file must also be in `StrategyName`.
        short_name: short name for tables and plots.
        source: the paper that describes the strategy.
        parameter: the argument of `plan_epoch` that controls how much the strategy mixes clips.
    """

    def add(order: OrderFunction) -> OrderFunction:
        description = " ".join((order.__doc__ or "").split())
        REGISTRY[name] = Strategy(name, order, description, short_name, source, parameter)
        return order

    return add


def sort_by(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Sort the clip indices in `order` by the keys of the clips. Clips with equal keys keep their
    order."""
    return order[np.argsort(keys[order], kind="stable")]


@register("random", "RAND", "Ge21")
def _random(clips: ShuffledClips) -> Order:
    """clips in random order"""
    return clips.order, [0]


@register("sorted", "SB", "Ge21")
def _sorted(clips: ShuffledClips) -> Order:
    """clips sorted by length, shortest first"""
    return sort_by(clips.lengths, clips.order), [0]


@register("semi_sorted", "SSB", "Ge21, eq. 2-3", FACTOR)
def _semi_sorted(clips: ShuffledClips) -> Order:
    """clips sorted by the sum of length and noise; the noise of each clip is uniform between -a/2
    and a/2, where a = (longest - shortest) * factor"""
    lengths = clips.lengths
    # Width of the interval of the uniform noise (`a` in the docstring).
    noise_range = (lengths.max() - lengths.min()) * clips.parameter_value
    noise = noise_range * (clips.rng.random(len(lengths)) - 0.5)
    return clips.order[np.argsort(lengths[clips.order] + noise)], [0]


@register("semi_sorted_rank", "SSB-rank", "ours", FACTOR)
def _semi_sorted_rank(clips: ShuffledClips) -> Order:
    """clips sorted by the sum of rank and noise. The rank of a clip is its position when all clips
    are sorted by length. The noise of each clip is uniform between -a/2 and a/2, where a = number
    of clips * factor. Clips of rare lengths therefore mix as widely as clips of common lengths."""
    order, starts = _sorted(clips)
    # Width of the interval of the uniform noise (`a` in the docstring).
    noise_range = len(order) * clips.parameter_value
    noise = noise_range * (clips.rng.random(len(order)) - 0.5)
    return order[np.argsort(np.arange(len(order)) + noise)], starts


@register("semi_sorted_exponential", "SSB-exp", "ours", FACTOR)
def _semi_sorted_exponential(clips: ShuffledClips) -> Order:
    """clips sorted by the sum of rank and exponential noise. The rank of a clip is its position
    when all clips are sorted by length. The mean of the noise is (largest rank) * factor / 2. The
    noise moves clips only towards longer clips. With dynamic batch sizes, ranks are measured in
    frames instead of clips."""
    # A short clip in a batch of longer clips adds padding only to itself. A long clip in a batch of
    # shorter clips adds padding to all clips of the batch. Therefore, for the same amount of
    # padding, noise mixes clips best if it moves clips only towards longer clips. With ranks in
    # frames, the noise replaces the same fraction of the clips in every batch, whether the batch
    # contains many short clips or few long clips.
    order, starts = _sorted(clips)
    if clips.dynamic_batch_size:
        rank = np.cumsum(clips.lengths[order])
    else:
        rank = np.arange(1, len(order) + 1)
    mean_noise = rank[-1] * clips.parameter_value / 2
    noise = clips.rng.exponential(mean_noise, len(order))
    return order[np.argsort(rank + noise)], starts


@register("bucket", "BKT", "Ge21", BUCKET_SIZE)
def _bucket(clips: ShuffledClips) -> Order:
    """clips sorted longest first, cut into buckets with a fixed number of clips, and shuffled
    within each bucket; a batch may contain clips from two buckets"""
    order = sort_by(-clips.lengths, clips.order)
    bucket = np.arange(len(order)) // clips.parameter_value
    return order[np.argsort(bucket + clips.rng.random(len(order)))], [0]


@register("bucket_by_width", "BKT-width", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_width(clips: ShuffledClips) -> Order:
    """clips divided into length classes of equal width, longest class first, and shuffled within
    each class; a batch never mixes classes, so the last batch of a class may be small"""
    lengths = clips.lengths
    edges = np.linspace(lengths.min(), lengths.max(), int(clips.parameter_value) + 1)[1:-1]
    return _by_class(clips, edges)


@register("bucket_by_quantile", "BKT-quantile", "Gonzalez23", NUM_BUCKETS)
def _bucket_by_quantile(clips: ShuffledClips) -> Order:
    """the same as `bucket_by_width`, except that each class has the same number of clips"""
    fractions = np.linspace(0, 1, int(clips.parameter_value) + 1)[1:-1]
    return _by_class(clips, np.quantile(clips.lengths, fractions))


def _by_class(clips: ShuffledClips, edges: np.ndarray) -> Order:
    """Sort the clips into the length classes between `edges`, longest class first.

    Clips of equal length are always in the same class, so some classes may be empty.
    """
    label = np.searchsorted(edges, clips.lengths, side="left")
    order = sort_by(-label, clips.order)
    return order, np.flatnonzero(np.diff(label[order], prepend=-1)).tolist()


@register("alternated_sort", "ATS", "Doetsch17", NUM_BINS)
def _alternated_sort(clips: ShuffledClips) -> Order:
    """clips divided at random into bins of equal size; odd bins (1st, 3rd, ...) are sorted shortest
    first, even bins longest first"""
    lengths = clips.lengths[clips.order]
    # With n clips and N bins, bin k (counted from 0) contains positions ceil(k n / N) to ceil((k +
    # 1) n / N) - 1.
    bin_index = np.arange(len(lengths)) * int(clips.parameter_value) // len(lengths)
    keys = np.where(bin_index % 2 == 0, lengths, -lengths)
    return clips.order[np.lexsort((keys, bin_index))], [0]


STRATEGIES = tuple(REGISTRY)


def check_strategy(name: str) -> StrategyName:
    """Check the name of a strategy, and return it as a `StrategyName`.

        strategy = check_strategy(arguments.strategy)

    Raises:
        BatchingError: if no strategy has this name. The error message suggests a similar name.
    """
    if isinstance(name, str) and name in REGISTRY:
        return cast(StrategyName, name)
    similar = difflib.get_close_matches(str(name), REGISTRY, n=1, cutoff=0.3)
    hint = f"; did you mean {similar[0]!r}?" if similar else ""
    hint = _hint_for_paper_name(str(name)) or hint
    raise BatchingError(f"strategy={name!r}: expected one of {', '.join(REGISTRY)}{hint}")


def _hint_for_paper_name(name: str) -> str:
    """Return a suggestion of options for a name that the papers use, such as "SSB-DBS-BR". Return
    "" for any other name."""
    short_names = {strategy.short_name.upper(): key for key, strategy in REGISTRY.items()}
    short_name = name.upper()
    options = ""
    if short_name.endswith("-BR"):
        short_name = short_name.removesuffix("-BR")
        options = ", batch_randomization=True"
    if short_name.endswith("-DBS"):
        short_name = short_name.removesuffix("-DBS")
        options = ", dynamic_batch_size=True" + options
    if short_name not in short_names:
        return ""
    return f'; did you mean strategy="{short_names[short_name]}"{options}?'


def batching_name(strategy: str, dynamic_batch_size: bool, batch_randomization: bool) -> str:
    """Return the name that the papers use, such as "SSB-DBS-BR".

    "-BR" is never appended to RAND, because random batches are already in random order.
    """
    name = REGISTRY[strategy].short_name
    if dynamic_batch_size:
        name += "-DBS"
    if batch_randomization and strategy != "random":
        name += "-BR"
    return name
