"""Find the batching of a corpus that costs least and still mixes the clips.

    surveyor = Surveyor(lengths)
    advice = search(surveyor, batch_size=16)
    if advice.best:
        sampler = LengthBatchSampler(lengths, **advice.best.options())

`python -m length_batching` and the recipe's scripts/compare_batching.py print what this finds. It
plans whole epochs, since padding does not scale with the size of a corpus: some seconds for 10,000
clips, less than 2 minutes for a million. Lengths do not tell how a model learns; docs/learning.md
has what was measured.

The grid: every strategy, with fixed and with dynamic sizes; eight values of its parameter for each
doubling (`parameter_values`). Decoder steps rise with randomness, so for each strategy the least
random value that mixes enough is sought by bisection. Of these, the one with the fewest steps wins.
"""

import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_lengths
from length_batching.costs import PaddingStats, padding_stats, pair_novelty
from length_batching.plan import EpochPlan, plan_epoch
from length_batching.strategies import PARAMETERS, REGISTRY, STRATEGIES, Parameter, batching_name

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[Iterable[Any]], Iterable[Any]]

PARAMETER_OF: dict[str, Parameter] = {n: s.parameter for n, s in REGISTRY.items() if s.parameter}
# The parameters' values where none are given, by the parameter's name.
DEFAULTS: dict[str, Any] = {p.name: (plan_epoch.__kwdefaults__ or {})[p.name] for p in PARAMETERS}
MAXIMA = ("largest_batch_size", "largest_batch_frames")  # of a survey; the rest are means
ENOUGH_NOVELTY = 0.99  # of very many clips, nearly all pairs are new in any order with noise
MIN_EPOCHS, MAX_EPOCHS = 5, 40  # planned: more of small corpora, so that their means are steady
CLIPS_TO_PLAN = 50_000  # in all epochs of a small corpus
LARGE_CORPUS = 100_000  # clips from which one epoch is a large sample by itself
VALUES_PER_DOUBLING = 8  # of the grid that is searched
THREADS = 4  # numpy releases the GIL; each holds some hundred bytes a clip


def in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], progress: Progress = iter
) -> list[Result]:
    """`function` of every item. `progress` wraps the results as they come, as tqdm does."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(progress(pool.map(function, items)))


def value_in_words(strategy: str, value: float) -> str:
    """A value of the strategy's parameter: "factor 0.1", "58 bins"."""
    return PARAMETER_OF[strategy].value_text.format(f"{value:,.10g}")


def parameter_values(
    strategy: str,
    num_clips: int,
    batch_size: int,
    per_doubling: int = VALUES_PER_DOUBLING,
    include: Sequence[float] = (),
) -> list[Any]:
    """Values of the strategy's parameter worth trying, from least to most random; [None] for a
    strategy without one.

    Factors from 0 to 1.6; buckets of whole batches, smaller than the corpus; bins and classes from
    1 to the number of batches. `include` are added where they are allowed.
    """
    if strategy not in PARAMETER_OF:
        return [None]
    parameter = PARAMETER_OF[strategy]
    least, most = parameter.limits(num_clips, batch_size)
    if parameter.is_factor:
        steps = range(-6 * per_doubling, 4 * per_doubling + 1)
        grid = {0.0, *(float(f"{0.1 * 2 ** (k / per_doubling):.2g}") for k in steps)}
    else:
        largest = max(1, -(-num_clips // batch_size) - parameter.holds_batches)
        steps = range(per_doubling * (int(math.log2(largest)) + 1))
        counts = {round(2 ** (k / per_doubling)) for k in steps}
        counts = {n for n in counts if n * 2 ** (0.6 / per_doubling) <= largest} | {largest}
        grid = {least * n for n in counts}
    allowed = {value for value in include if least <= value <= most}
    return sorted(grid | allowed, reverse=not parameter.larger_mixes_more)


@dataclass(frozen=True)
class Survey(PaddingStats):
    """What one batching of one corpus costs: means over epochs, and MAXIMA. Rates are fractions.
    NaN: what a corpus is too small to tell."""

    strategy: str
    parameter: str | None
    value: Any  # of the parameter
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: float | None  # None: batch_size * longest clip
    novelty: float  # fraction of the pairs in batches that shared no batch the epoch before

    def options(self) -> dict[str, Any]:
        """Arguments of `LengthBatchSampler` for this batching, with the batches in random order."""
        options = {"strategy": self.strategy, "batch_size": self.batch_size}
        options |= {self.parameter: self.value} if self.parameter else {}
        options |= {"dynamic_batch_size": self.dynamic_batch_size}
        options |= {"batch_capacity": self.batch_capacity} if self.batch_capacity else {}
        return options | {"batch_randomization": self.strategy != "random"}

    def described(self) -> str:
        """In words: "SSB-DBS-BR (factor 0.1)"."""
        notes = [value_in_words(self.strategy, self.value)] if self.parameter else []
        if self.batch_capacity:
            notes.append(f"capacity {self.batch_capacity:,.10g}")
        name = batching_name(self.strategy, self.dynamic_batch_size, True)
        return name + (f" ({', '.join(notes)})" if notes else "")


class Surveyor:
    """Surveys batchings of one corpus, each of them once. Threads may ask for different ones.

    Args:
        lengths: [clips] one positive length per clip, in any unit.
        seed: of the plans.
        frames_per_step: as of `padding_stats`.
        epochs: planned for each survey; default: 5, more for few clips, 1 from 100,000 clips on.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        seed: int = 0,
        frames_per_step: int = 1,
        epochs: int | None = None,
    ):
        check_lengths(lengths)
        self.lengths = np.asarray(lengths)
        self.longest = self.lengths.max().item()
        self.seed, self.frames_per_step = seed, frames_per_step
        usual = max(MIN_EPOCHS, min(MAX_EPOCHS, CLIPS_TO_PLAN // len(self.lengths)))
        self.epochs = epochs or (1 if len(self.lengths) >= LARGE_CORPUS else usual)
        self._survey_once = functools.cache(self._survey)

    def survey(
        self,
        batch_size: int,
        strategy: str,
        *,
        value: Any = None,
        epochs: int | None = None,
        **options: Any,
    ) -> Survey:
        """Plan epochs 1, 2, ...; average over them. Novelty compares each with the one before.

        Args:
            value: of the strategy's parameter, if it has one; else as `options` say.
            options: those of `plan_epoch`, but for the epoch and the seed.

        Raises:
            BatchingError: as `plan_epoch`.
        """
        name = PARAMETER_OF[strategy].name if strategy in PARAMETER_OF else ""
        own = {name: options.get(name, DEFAULTS[name]) if value is None else value} if name else {}
        # The parameters of other strategies change nothing.
        others = {k: v for k, v in sorted(options.items()) if v is not None and k not in DEFAULTS}
        return self._survey_once(batch_size, strategy, epochs or self.epochs, **others, **own)

    def _survey(self, batch_size: int, strategy: str, epochs: int, **options: Any) -> Survey:
        given: dict[str, Any] = {"batch_size": batch_size, "strategy": strategy, "seed": self.seed}
        plans = [plan_epoch(self.lengths, **given, epoch=e, **options) for e in range(epochs + 1)]
        rows = [self._measured(now, before) for before, now in itertools.pairwise(plans)]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        measured: dict[str, Any] = {
            name: max(values) if name in MAXIMA else float(np.mean(values))
            for name, values in columns.items()
        }
        capacity, parameter = options.get("batch_capacity"), PARAMETER_OF.get(strategy)
        return Survey(
            strategy=strategy,
            parameter=parameter.name if parameter else None,
            value=options[parameter.name] if parameter else None,
            batch_size=batch_size,
            dynamic_batch_size=options.get("dynamic_batch_size", False),
            batch_capacity=None if capacity == batch_size * self.longest else capacity,
            **measured,
        )

    def _measured(self, plan: EpochPlan, before: EpochPlan) -> dict[str, float]:
        """What one epoch costs, and how it mixes."""
        costs = asdict(padding_stats(self.lengths, plan, self.frames_per_step))
        novelty = math.nan
        # Clips that are all alone in their batches make no pairs; epochs of clips that are drawn
        # anew cannot be compared.
        if len(plan) < len(plan.order) and np.array_equal(
            np.sort(plan.order), np.sort(before.order)
        ):
            novelty = pair_novelty(plan, before)
        return costs | {"novelty": novelty}


@dataclass(frozen=True)
class Advice:
    """What `search` found: of every strategy and size the least random value that mixes enough, or
    else its most random one."""

    tried: list[Survey]
    random: Survey  # RAND, what others are compared with
    default: Survey  # SSB-DBS-BR, the paper's best
    min_novelty: float

    @property
    def ranked(self) -> list[Survey]:
        """Those that mix enough, the cheapest first; of equals, the more random first."""
        allowed = [x for x in [*self.tried, self.default] if mixes(x, self.min_novelty)]
        return sorted(allowed, key=lambda x: (x.decoder_steps, -np.nan_to_num(x.novelty)))

    @property
    def best(self) -> Survey | None:
        """The cheapest that mixes enough; None if none does."""
        return self.ranked[0] if self.ranked else None


def mixes(survey: Survey, min_novelty: float) -> bool:
    """Whether it has as much novelty; one that is not known suffices."""
    return not survey.novelty < min_novelty


def search(
    surveyor: Surveyor,
    batch_size: int,
    *,
    min_novelty: float | None = None,
    progress: Progress = iter,
    **options: Any,
) -> Advice:
    """Search the grid for the cheapest batching that mixes enough.

    Args:
        min_novelty: how much is enough, from 0 to 1; default: as much as SSB-DBS-BR has, the
            paper's best, or ENOUGH_NOVELTY.
        progress: wraps the results as they come, one for each strategy and size, as tqdm does.
        options: of `plan_epoch` that are the same for all, as `max_clips`; `batch_capacity` is that
            of dynamic sizes. The strategies' parameters are what is searched, so they are left out.

    Raises:
        BatchingError: for options that the clips do not allow, and for `draw`, with which every
            epoch has other clips, so that nothing tells how they mix.
    """
    if "draw" in options:
        raise BatchingError("draw: no search, every epoch has other clips; leave it out")
    fixed = {k: v for k, v in options.items() if k not in DEFAULTS and k != "batch_capacity"}
    dynamic = fixed | {"batch_capacity": options.get("batch_capacity"), "dynamic_batch_size": True}
    random = surveyor.survey(batch_size, "random", **fixed)
    default = surveyor.survey(batch_size, "semi_sorted", **dynamic)
    if min_novelty is None:
        min_novelty = min(float(np.nan_to_num(default.novelty)), ENOUGH_NOVELTY)
    enough = min_novelty

    def least_random(job: tuple[str, dict[str, Any]]) -> Survey:
        strategy, sizes = job
        *values, most_random = parameter_values(strategy, len(surveyor.lengths), batch_size)
        survey = functools.partial(surveyor.survey, batch_size, strategy, **sizes)
        place = bisect_left(values, True, key=lambda value: mixes(survey(value=value), enough))
        return survey(value=[*values, most_random][place])

    jobs = list(itertools.product(STRATEGIES, (fixed, dynamic)))
    return Advice(in_threads(least_random, jobs, progress), random, default, enough)
