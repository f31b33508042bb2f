"""What a batching costs and how it mixes the clips, computed from lengths alone.

Lengths are in frames throughout. Sources (Ge21, Doetsch17, Gonzalez23) are those of batching.py.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from analysis.step_costs import StepCosts
from batching import (
    REGISTRY,
    EpochPlan,
    PaddingStats,
    check_lengths,
    padding_stats,
    pair_novelty,
    pair_spread,
    plan_epoch,
)
from files import map_in_threads
from hparams import HParams
from progress import progress_bar

PARAMETER = {name: s.parameter for name, s in REGISTRY.items() if s.parameter}
PARAMETERS = {name: parameter.name for name, parameter in PARAMETER.items()}
DEFAULTS = {name: getattr(HParams(), name) for name in PARAMETERS.values()}
MOST_VALUES_NEAR = 40  # tried where padding passes a target
LARGEST = ("largest_batch_size", "largest_batch_frames", "peak_bytes")
MIXING_AND_COSTS = ("spread", "novelty", "seconds_per_epoch", "peak_bytes")
MEASURED = (*PaddingStats.__annotations__, "capacity_used", *MIXING_AND_COSTS)
RATES = ("zero_padding_rate", "novelty")
WITH_ERROR = (*RATES, "average_batch_length", "decoder_steps")


def value_in_words(strategy: str, value: float) -> str:
    """A value of the strategy's parameter: "factor 0.1", "58 bins"."""
    return PARAMETER[strategy].value_text.format(f"{value:,.10g}")


def in_threads(title: str, function: Callable, items: Sequence) -> list:
    """`function` of every item, with a progress bar. numpy releases the GIL; each thread holds some
    hundred bytes a clip."""
    found = map_in_threads(function, items, threads=4)
    return list(progress_bar(title, len(items), " batchings", iterable=found))


@dataclass(frozen=True)
class Survey(PaddingStats):
    """One batching of one corpus: means over epochs, and maxima of what is named LARGEST.

    Rates are fractions. Not-a-number where the corpus is too small to tell (no two clips share a
    batch, or all are of one length), and for costs that are not known.
    """

    strategy: str
    parameter: str | None
    value: Any  # of the parameter
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: int | None  # None: batch_size * longest clip
    capacity_used: float  # sum(B_j L_j) / (batches * capacity)
    # (s - s_sorted) / (1 - s_sorted), where s is batching.pair_spread: 0 as sorted batches, 1 as
    # random ones. A little below 0 where a strategy leaves batches part-filled.
    spread: float
    novelty: float  # fraction of the pairs in batches that shared no batch the epoch before
    seconds_per_epoch: float
    peak_bytes: float
    standard_errors: dict[str, float]  # over epochs or draws of clips; relative unless of RATES

    @property
    def cost(self) -> float:
        """Predicted seconds of an epoch, or its decoder steps where no costs are known."""
        return self.decoder_steps if math.isnan(self.seconds_per_epoch) else self.seconds_per_epoch


class Surveyor:
    """Makes surveys of one corpus, `lengths` in frames, each of them once; threads may ask for
    different ones at once.

    Args:
        seed: of the plans.
        frames_per_step: of the decoder, n_frames_per_step.
        costs: predict the time of an epoch and its peak memory.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        seed: int = 0,
        frames_per_step: int = 1,
        costs: StepCosts | None = None,
    ):
        check_lengths(lengths)
        self.lengths = np.asarray(lengths)
        self.longest = int(self.lengths.max())
        self.seed, self.frames_per_step, self.costs = seed, frames_per_step, costs
        self._survey_once = functools.cache(self._survey)
        self._sorted_spread_once = functools.cache(self._sorted_spread)

    def survey(
        self, batch_size: int, strategy: str, *, epochs: int = 5, value: Any = None, **options
    ) -> Survey:
        """Plan `epochs` epochs (1, 2, ...; novelty compares each with the one before) and average.

        `value` of the strategy's parameter, if it has one, or else as `options` say: those of
        `plan_epoch`, but for the epoch and the seed. BatchingError as there.
        """
        parameter = PARAMETERS.get(strategy)
        if parameter and value is None:
            value = options.get(parameter, DEFAULTS[parameter])
        # The parameters of other strategies change nothing.
        sizes = {k: v for k, v in sorted(options.items()) if v is not None and k not in DEFAULTS}
        own = {parameter: value} if parameter else {}
        return self._survey_once(batch_size, strategy, epochs, **sizes, **own)

    def _plan(self, batch_size: int, strategy: str, epoch: int = 0, **options: Any) -> EpochPlan:
        return plan_epoch(
            self.lengths, batch_size, strategy, seed=self.seed, epoch=epoch, **options
        )

    def _sorted_spread(self, batch_size: int, **sizes: Any) -> float:
        return pair_spread(self.lengths, self._plan(batch_size, "sorted", **sizes))

    def _survey(self, batch_size: int, strategy: str, epochs: int, **options: Any) -> Survey:
        plans = [self._plan(batch_size, strategy, epoch, **options) for epoch in range(epochs + 1)]
        default_capacity = batch_size * self.longest
        capacity = options.get("batch_capacity", default_capacity)
        parameter = PARAMETERS.get(strategy)
        sizes = {name: value for name, value in options.items() if name != parameter}
        least_spread = self._sorted_spread_once(batch_size, **sizes)
        rows = [
            self._measured(plan, before, capacity, least_spread)
            for before, plan in itertools.pairwise(plans)
        ]
        return Survey(
            strategy=strategy,
            parameter=parameter,
            value=options.get(parameter or ""),
            batch_size=batch_size,
            dynamic_batch_size=options.get("dynamic_batch_size", False),
            batch_capacity=None if capacity == default_capacity else capacity,
            # With one epoch, the epoch before it shows how much one differs from another.
            **_combined(rows, [self._padding(plans[0])] if epochs == 1 else []),
        )

    def _padding(self, plan: EpochPlan) -> dict[str, float]:
        return asdict(padding_stats(self.lengths, plan, self.frames_per_step))

    def _measured(
        self, plan: EpochPlan, before: EpochPlan, capacity: float, least_spread: float
    ) -> dict[str, float]:
        """What one epoch costs, and how it mixes."""
        found = self._padding(plan) | dict.fromkeys(MIXING_AND_COSTS, math.nan)
        clips_used = found["average_batch_length"] * len(self.lengths)
        found["capacity_used"] = clips_used / (len(plan) * capacity)
        if len(plan) < len(self.lengths):  # else every clip is alone in its batch
            found["novelty"] = pair_novelty(plan, before)
            # Sorted batches are no better than random ones where one batch holds all clips.
            if self.lengths.min() < self.longest and least_spread < 1 - 1e-9:
                spread = pair_spread(self.lengths, plan)
                found["spread"] = (spread - least_spread) / (1 - least_spread)
        if self.costs is not None:
            longest = np.maximum.reduceat(self.lengths[plan.order], plan.starts)
            found["seconds_per_epoch"] = float(self.costs.seconds(plan.sizes, longest).sum())
            found["peak_bytes"] = float(self.costs.bytes(plan.sizes, longest).max())
        return found


def mean_survey(surveys: Sequence[Survey]) -> Survey:
    """The same batching on several draws of clips, as one; the settings are the first one's."""
    rows = [{name: getattr(draw, name) for name in MEASURED} for draw in surveys]
    return replace(surveys[0], **_combined(rows)) if len(surveys) > 1 else surveys[0]


def _combined(rows: Sequence[dict], also: Sequence[dict] = ()) -> dict[str, Any]:
    """Means or maxima over `rows`, and standard errors, which know the spread of `also` too."""
    combined: dict[str, Any] = {}
    errors = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        combined[name] = max(values) if name in LARGEST else float(np.mean(values))
        known = [row[name] for row in (*rows, *also) if name in row]
        if name in WITH_ERROR and len(known) > 1:
            error = float(np.std(known, ddof=1)) / math.sqrt(len(rows))
            errors[name] = error if name in RATES else error / combined[name]
    return combined | {"standard_errors": errors}


def parameter_values(
    strategy: str, num_clips: int, batch_size: int, per_octave: int = 2, include=()
) -> list[Any]:
    """Values of the strategy's parameter worth trying, from least to most random.

    `per_octave` values a doubling, `include` in their midst where allowed. Factors from 0 to 1.6;
    buckets of whole batches, smaller than the corpus; bins and classes from 1 to the number of
    batches. [None] for a strategy without parameter.
    """
    if strategy not in PARAMETER:
        return [None]
    parameter = PARAMETER[strategy]
    least, most = parameter.limits(num_clips, batch_size)
    if parameter.is_factor:
        steps = range(-6 * per_octave, 4 * per_octave + 1)
        grid = {0.0, *(float(f"{0.1 * 2 ** (k / per_octave):.2g}") for k in steps)}
    else:
        largest = max(1, -(-num_clips // batch_size) - parameter.holds_batches)
        steps = range(per_octave * (int(math.log2(largest)) + 1))
        counts = {round(2 ** (k / per_octave)) for k in steps}
        counts = {n for n in counts if n * 2 ** (0.6 / per_octave) <= largest} | {largest}
        grid = {least * n for n in counts}
    allowed = {value for value in include if least <= value <= most}
    return sorted(grid | allowed, reverse=not parameter.larger_mixes_more)


def match_zero_padding(
    surveyors: Sequence[Surveyor], batch_size: int, strategy: str, target: float, epochs: int = 5
) -> tuple[int, float] | None:
    """(value, ZPR) with the ZPR nearest to `target` from below, as Ge21 chose Table 1's values.

    Of `bucket` (sizes that are multiples of the batch size) or `alternated_sort` (1 bin to as many
    as batches), with fixed sizes, mean over surveyors and epochs. ZPR rises with either but for a
    little noise: bisection finds where it passes `target`, and all values within a tenth of that
    place are then tried, or 40 of very many. None where even the least pads more.
    """
    num_clips, known = len(surveyors[0].lengths), {}
    values = range(1, -(-num_clips // batch_size) + 1)
    if PARAMETER[strategy].holds_batches:
        values = range(batch_size, max(batch_size + 1, num_clips), batch_size)

    def rate(value: int) -> float:
        surveys = [
            one.survey(batch_size, strategy, epochs=epochs, value=value) for one in surveyors
        ]
        known[value] = float(np.mean([found.zero_padding_rate for found in surveys]))
        return known[value]

    place = bisect.bisect_right(values, target, key=rate)
    reach = max(3, place // 10)
    near = values[max(0, place - reach) : place + reach + 1]
    in_threads("matching", rate, near[:: -(-len(near) // MOST_VALUES_NEAR)])
    below = [(zpr, -value) for value, zpr in known.items() if zpr <= target]
    return (-max(below)[1], max(below)[0]) if below else None
