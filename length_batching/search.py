"""Find the batching options that need the fewest decoder steps and still mix a corpus's clips well.

    surveyor = Surveyor(lengths)
    result = search(surveyor, batch_size=16)
    if result.best:
        sampler = LengthBatchSampler(lengths, **result.best.options())

The search plans whole epochs, because the amount of padding is not proportional to the size of a
corpus. A search takes a few seconds for 10,000 clips, and less than 2 minutes for a million clips.
The result of the search does not predict how well a model learns.

The search tries every strategy with fixed and with dynamic batch sizes. For each strategy, the
search considers a list of values of the strategy's parameter (`parameter_values`). Parameter values
that make the order of the clips more random need more decoder steps. Of the values that mix the
clips well enough, a bisection finds the value with the least random order. The search returns the
strategy and parameter value with the fewest decoder steps.
"""

import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, Unpack

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_lengths
from length_batching.costs import PaddingStats, padding_stats, pair_novelty
from length_batching.options import PlanOptions, TooLong
from length_batching.plan import EpochPlan, check_clips, plan_epoch
from length_batching.strategies import (
    PARAMETERS,
    REGISTRY,
    STRATEGIES,
    Parameter,
    batching_name,
    check_strategy,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
# A function that wraps an iterator of results and shows progress, such as tqdm.
Progress = Callable[[Iterable[Any]], Iterable[Any]]

PARAMETER_OF: dict[str, Parameter] = {n: s.parameter for n, s in REGISTRY.items() if s.parameter}
DEFAULTS: dict[str, Any] = {parameter.name: parameter.default for parameter in PARAMETERS}
# Fields of `Survey` that are maxima over epochs. All other numeric fields of `Survey` are means.
MAXIMA = ("largest_batch_size", "largest_batch_frames")
# Upper limit for the default of `min_pair_novelty`. In a large corpus, the pair novelty exceeds this
# limit even if the strategy changes the ranks of the clips only a little.
MAX_NEEDED_NOVELTY = 0.99
MIN_EPOCHS = 5
MAX_EPOCHS = 40
# Total number of clips in the epochs that are planned to measure one set of options. Small corpora
# need more epochs to get stable means.
CLIPS_TO_PLAN = 50_000
LARGE_CORPUS = 100_000  # if a corpus has at least this many clips, a single epoch is planned
VALUES_PER_DOUBLING = 8  # number of values to try for each doubling of a parameter
# Number of threads. Several threads are faster than a single thread, because numpy releases the
# GIL. Each thread needs several hundred bytes per clip.
THREADS = 4


def in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], progress: Progress = iter
) -> list[Result]:
    """Apply the function to all items in several threads, and return the results in order."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(progress(pool.map(function, items)))


def value_in_words(strategy: str, value: float) -> str:
    """Describe a value of the strategy's parameter, such as "factor 0.1" or "58 bins"."""
    return PARAMETER_OF[strategy].value_text.format(f"{value:,.10g}")


def parameter_values(
    strategy: str,
    num_clips: int,
    batch_size: int,
    per_doubling: int = VALUES_PER_DOUBLING,
    include: Sequence[float] = (),
) -> list[Any]:
    """Return the values to try for the strategy's parameter, sorted by how random they make the
    order of the clips: least random first.

    Local randomization factors range from 0 to 1.6. Bucket sizes are multiples of the batch size
    and smaller than the number of clips. The numbers of bins and of length classes range from 1 to
    the number of batches. For a strategy without a parameter, the result is [None].

    Args:
        include: additional values to try. Values outside the allowed range are ignored.
    """
    if strategy not in PARAMETER_OF:
        return [None]
    parameter = PARAMETER_OF[strategy]
    low, high = parameter.limits(num_clips, batch_size)
    values: set[float]
    if parameter.is_factor:
        exponents = range(-6 * per_doubling, 4 * per_doubling + 1)
        factors = [0.1 * 2 ** (k / per_doubling) for k in exponents]
        values = {0.0, *(float(f"{factor:.2g}") for factor in factors)}
    else:
        num_batches = math.ceil(num_clips / batch_size)
        largest = max(1, num_batches - parameter.at_least_batch_size)
        exponents = range(per_doubling * (int(math.log2(largest)) + 1))
        counts = {round(2 ** (k / per_doubling)) for k in exponents}
        not_close_to_largest = {n for n in counts if n * 2 ** (0.6 / per_doubling) <= largest}
        values = {low * n for n in {*not_close_to_largest, largest}}
    allowed = {value for value in include if low <= value <= high}
    return sorted(values | allowed, reverse=not parameter.larger_mixes_more)


@dataclass(frozen=True)
class Survey(PaddingStats):
    """The costs of one set of batching options, measured on the lengths of a corpus.

    The fields in MAXIMA are maxima over epochs; all other costs are means. Rates are fractions,
    not percentages. Costs that cannot be measured on a corpus of this size are NaN.
    """

    strategy: str
    parameter: str | None
    value: Any
    batch_size: int
    dynamic_batch_size: bool
    # Frame budget per batch. None: `batch_size` times the length of the longest clip.
    batch_capacity: float | None
    novelty: float  # mean pair novelty, computed by `pair_novelty`

    def options(self) -> dict[str, Any]:
        """Return these options as arguments for `LengthBatchSampler`, including
        `batch_randomization` to shuffle the batches."""
        options: dict[str, Any] = {"strategy": self.strategy, "batch_size": self.batch_size}
        if self.parameter:
            options[self.parameter] = self.value
        options["dynamic_batch_size"] = self.dynamic_batch_size
        if self.batch_capacity:
            options["batch_capacity"] = self.batch_capacity
        options["batch_randomization"] = self.strategy != "random"
        return options

    def description(self) -> str:
        """Return the strategy's name in the papers and the parameter value, such as "SSB-DBS-BR
        (factor 0.1)"."""
        notes = []
        if self.parameter:
            notes.append(value_in_words(self.strategy, self.value))
        if self.batch_capacity:
            notes.append(f"capacity {self.batch_capacity:,.10g}")
        name = batching_name(self.strategy, self.dynamic_batch_size, True)
        return f"{name} ({', '.join(notes)})" if notes else name


class Surveyor:
    """Measure the costs of batching options for one corpus, and cache the results.

        survey = Surveyor(lengths).survey(16, "semi_sorted", dynamic_batch_size=True)
        survey.decoder_steps

    Several threads can use the same `Surveyor` at the same time.

    Args:
        lengths: [clips] positive length of each clip, in any unit.
        seed: seed for all plans.
        frames_per_step: see `padding_stats`.
        epochs: number of epochs to plan for each set of options. Default: 5 for 10,000 to 99,999
            clips, up to 40 for smaller corpora, and 1 for larger corpora.
        row_costs: see `plan_epoch`. Row costs affect only dynamic batches.
        clip_cost: see `padding_stats`.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        seed: int = 0,
        frames_per_step: int = 1,
        epochs: int | None = None,
        row_costs: Mapping[int, float] | None = None,
        clip_cost: float = 0.0,
    ):
        check_lengths(lengths)
        self.lengths = np.asarray(lengths)
        self.longest = self.lengths.max().item()
        self.seed = seed
        self.frames_per_step = frames_per_step
        self.row_costs = row_costs
        self.clip_cost = clip_cost
        num_clips = len(self.lengths)
        usual_epochs = max(MIN_EPOCHS, min(MAX_EPOCHS, CLIPS_TO_PLAN // num_clips))
        if num_clips >= LARGE_CORPUS:
            usual_epochs = 1
        self.epochs = epochs or usual_epochs
        self._survey_once = functools.cache(self._survey)

    def survey(
        self,
        batch_size: int,
        strategy: str,
        *,
        value: Any = None,
        epochs: int | None = None,
        **options: Unpack[PlanOptions],
    ) -> Survey:
        """Plan several epochs, starting with epoch 1, and return the mean costs of these epochs.

        Args:
            value: value of the strategy's parameter. Default: the value in `options`, or the
                parameter's default.
            epochs: number of epochs to plan. The default is `Surveyor.epochs`.
            options: see `plan_epoch`. Do not pass `epoch` or `seed`.

        Raises:
            BatchingError: if an option is invalid for these clips.
        """
        # The parameters of other strategies have no effect, so leave them out of the cache key.
        used = {k: v for k, v in sorted(options.items()) if v is not None and k not in DEFAULTS}
        if strategy in PARAMETER_OF:
            name = PARAMETER_OF[strategy].name
            used[name] = options.get(name, DEFAULTS[name]) if value is None else value
        return self._survey_once(batch_size, strategy, epochs or self.epochs, **used)

    def _survey(self, batch_size: int, strategy: str, epochs: int, **options: Any) -> Survey:
        name = check_strategy(strategy)
        if options.get("dynamic_batch_size"):
            options["row_costs"] = self.row_costs
        plans = [
            plan_epoch(self.lengths, batch_size, name, seed=self.seed, epoch=epoch, **options)
            for epoch in range(epochs + 1)
        ]
        rows = [self._measure(now, before) for before, now in itertools.pairwise(plans)]
        measured: dict[str, Any] = {"step_cost": None}
        for column in rows[0]:
            values = [row[column] for row in rows]
            measured[column] = max(values) if column in MAXIMA else float(np.mean(values))
        capacity = options.get("batch_capacity")
        parameter = PARAMETER_OF.get(strategy)
        return Survey(
            strategy=strategy,
            parameter=parameter.name if parameter else None,
            value=options[parameter.name] if parameter else None,
            batch_size=batch_size,
            dynamic_batch_size=options.get("dynamic_batch_size", False),
            batch_capacity=None if capacity == batch_size * self.longest else capacity,
            **measured,
        )

    def _measure(self, plan: EpochPlan, before: EpochPlan) -> dict[str, float]:
        stats = padding_stats(
            self.lengths,
            plan,
            self.frames_per_step,
            row_costs=self.row_costs,
            clip_cost=self.clip_cost,
        )
        costs = {name: value for name, value in asdict(stats).items() if value is not None}
        has_pairs = len(plan) < len(plan.order)
        same_clips = np.array_equal(np.sort(plan.order), np.sort(before.order))
        novelty = pair_novelty(plan, before) if has_pairs and same_clips else math.nan
        return costs | {"novelty": novelty}


def survey_all(
    surveyor: Surveyor,
    batch_size: int,
    *,
    progress: Progress = iter,
    **options: Unpack[PlanOptions],
) -> tuple[list[Survey], list[str]]:
    """Measure the costs of every strategy, with fixed and with dynamic batch sizes.

    Args:
        options: see `plan_epoch`. `batch_capacity` limits only dynamic batches.

    Returns:
        A tuple of the measured costs, and a list with one message per strategy that requires more
        clips than the corpus contains.

    Raises:
        BatchingError: if an option is invalid for all strategies.
    """
    fixed: PlanOptions = {**options, "dynamic_batch_size": False, "batch_capacity": None}
    dynamic: PlanOptions = {**options, "dynamic_batch_size": True}
    check_clips(surveyor.lengths, {"batch_size": batch_size, "strategy": "random", **dynamic})

    def survey(job: tuple[PlanOptions, str]) -> Survey | str:
        sizes, strategy = job
        try:
            return surveyor.survey(batch_size, strategy, **sizes)
        except BatchingError as error:  # too few clips for the strategy's parameter
            name = batching_name(strategy, sizes["dynamic_batch_size"], False)
            return f"{name}: not possible ({error})"

    jobs = list(itertools.product((fixed, dynamic), STRATEGIES))
    results = in_threads(survey, jobs, progress)
    surveys = [result for result in results if isinstance(result, Survey)]
    return surveys, [result for result in results if isinstance(result, str)]


@dataclass(frozen=True)
class SearchResult:
    """The result of `search`.

    Attributes:
        tried: the costs of every strategy, with fixed and with dynamic batch sizes. Each strategy
            uses the parameter value that makes the order least random while the pair novelty is at
            least `min_pair_novelty`. If no value reaches `min_pair_novelty`, the strategy uses the value that
            makes the order most random.
        random: the costs of random batches (RAND) of a fixed size, for comparison.
        default: the costs of SSB-DBS-BR, the best strategy of Ge et al. (2021).
        min_pair_novelty: the required pair novelty.
    """

    tried: list[Survey]
    random: Survey
    default: Survey
    min_pair_novelty: float

    @property
    def ranked(self) -> list[Survey]:
        """Return the sets of options whose pair novelty is at least `min_pair_novelty`, the cheapest set
        first."""
        surveys = [*self.tried, self.default]
        allowed = [survey for survey in surveys if mixes(survey, self.min_pair_novelty)]
        return sorted(allowed, key=lambda survey: (price(survey), -_novelty_or_0(survey)))

    @property
    def best(self) -> Survey | None:
        """Return the cheapest set of options whose pair novelty is at least `min_pair_novelty`, or None
        if there is no such set."""
        return self.ranked[0] if self.ranked else None


def _novelty_or_0(survey: Survey) -> float:
    return float(np.nan_to_num(survey.novelty))


def price(survey: Survey) -> float:
    """Return the cost that the search minimizes: the total time of the decoder steps or, if their
    times (row costs) are unknown, the number of decoder steps."""
    return survey.decoder_steps if survey.step_cost is None else survey.step_cost


def mixes(survey: Survey, min_pair_novelty: float) -> bool:
    """Return whether the pair novelty of these options is at least `min_pair_novelty`, or is unknown
    (NaN)."""
    return not survey.novelty < min_pair_novelty


def search(
    surveyor: Surveyor,
    batch_size: int,
    *,
    min_pair_novelty: float | None = None,
    progress: Progress = iter,
    batch_capacity: float | None = None,
    max_clips: int | None = None,
    too_long: TooLong = "reject",
    size_multiple: int = 1,
) -> SearchResult:
    """Find the strategy and parameter value that need the fewest decoder steps.

        result = search(Surveyor(lengths), 16)
        result.best.description()  # "SSB-exp-DBS-BR (factor 0.035)"

    Args:
        min_pair_novelty: minimum pair novelty, from 0 to 1. Consider all pairs of clips that share a
            batch. The pair novelty is the fraction of these pairs that did not share a batch in the
            previous epoch. Default: the pair novelty of SSB-DBS-BR, but at most 0.99.
        progress: a function, such as tqdm, that wraps an iterator and shows its progress. The
            iterator yields two results per strategy, one for fixed and one for dynamic batch sizes.
        batch_capacity, max_clips, too_long, size_multiple: see `plan_epoch`. `batch_capacity`
            limits only dynamic batches.

    Raises:
        BatchingError: if an option is invalid for these clips.
    """
    fixed: PlanOptions = {
        "max_clips": max_clips,
        "too_long": too_long,
        "size_multiple": size_multiple,
    }
    dynamic: PlanOptions = {**fixed, "batch_capacity": batch_capacity, "dynamic_batch_size": True}
    random = surveyor.survey(batch_size, "random", **fixed)
    default = surveyor.survey(batch_size, "semi_sorted", **dynamic)
    enough = min(_novelty_or_0(default), MAX_NEEDED_NOVELTY)
    if min_pair_novelty is not None:
        enough = min_pair_novelty

    def find_least_random(job: tuple[str, PlanOptions]) -> Survey:
        strategy, sizes = job
        *values, most_random = parameter_values(strategy, len(surveyor.lengths), batch_size)
        survey = functools.partial(surveyor.survey, batch_size, strategy, **sizes)
        index = bisect_left(values, True, key=lambda value: mixes(survey(value=value), enough))
        return survey(value=[*values, most_random][index])

    jobs = list(itertools.product(STRATEGIES, (fixed, dynamic)))
    return SearchResult(in_threads(find_least_random, jobs, progress), random, default, enough)
