"""What a batching costs and how it mixes the clips, computed from lengths alone.

Lengths are in frames throughout. Sources (Ge21, Doetsch17, Gonzalez23) are those of batching.py.
"""

import bisect
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from analysis.step_costs import StepCosts
from batching import (
    REGISTRY,
    EpochPlan,
    check_lengths,
    padding_stats,
    pair_novelty,
    pair_spread,
    plan_epoch,
)

PARAMETER = {name: s.parameter for name, s in REGISTRY.items() if s.parameter}
PARAMETERS = {name: parameter.name for name, parameter in PARAMETER.items()}
DEFAULTS = {
    name: inspect.signature(plan_epoch).parameters[name].default for name in PARAMETERS.values()
}
MOST_VALUES_NEAR = 40  # tried where padding passes a target
MOST_THREADS = 4  # that survey at the same time; each holds some hundred bytes a clip

# ---------------------------------------------------------------------------- names


def batching_name(strategy: str, dynamic_batch_size: bool, batch_randomization: bool) -> str:
    """The papers' name, "SSB-DBS-BR". RAND never gets -BR: its batches are in random order."""
    name = REGISTRY[strategy].short_name
    if dynamic_batch_size:
        name += "-DBS"
    if batch_randomization and strategy != "random":
        name += "-BR"
    return name


def value_in_words(strategy: str, value: float) -> str:
    """A value of the strategy's parameter: "factor 0.1", "58 bins"."""
    return PARAMETER[strategy].value_text.format(number_text(value))


def number_text(value: float) -> str:
    return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"


# ---------------------------------------------------------------------------- one batching


@dataclass(frozen=True)
class Survey:
    """One batching of one corpus: means over epochs, and maxima of what is named LARGEST.

    Rates are fractions. Not-a-number where the corpus is too small to tell (no two clips share a
    batch, or all are of one length). The padding's fields are those of batching.PaddingStats.
    """

    strategy: str
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: int | None  # None: batch_size * longest clip
    value: Any  # float, or None without parameter: of the strategy's parameter
    num_batches: float
    zero_padding_rate: float
    average_batch_length: float
    padded_to_original_rate: float
    padded_fraction: float
    decoder_steps: float
    capacity_used: float  # sum(B_j L_j) / (batches * capacity)
    largest_batch_size: int
    largest_batch_frames: int
    spread: float  # 0: as sorted, 1: as random, see `relative_spread`
    novelty: float  # fraction of the pairs in batches that shared no batch the epoch before
    seconds_per_epoch: float | None = None  # predicted, with costs
    peak_bytes: Any = None  # float; predicted, with costs that include memory
    # Of the means named in WITH_ERROR, over epochs or draws of clips.
    standard_errors: dict[str, float] = field(default_factory=dict)

    @property
    def parameter(self) -> str | None:
        return PARAMETERS.get(self.strategy)

    @property
    def cost(self) -> float:
        """Predicted seconds of an epoch, or its decoder steps where no costs are known."""
        return self.decoder_steps if self.seconds_per_epoch is None else self.seconds_per_epoch

    def mixes_enough(self, min_novelty: float) -> bool:
        return math.isnan(self.novelty) or self.novelty >= min_novelty


MEASURED = tuple(f.name for f in fields(Survey))[5:-1]
LARGEST = ("largest_batch_size", "largest_batch_frames", "peak_bytes")
WITH_ERROR = ("zero_padding_rate", "average_batch_length", "decoder_steps", "novelty")


class Surveyor:
    """Makes surveys of one corpus, each of them once; threads may ask for different ones at once.

    Args:
        lengths: frames of every clip.
        seed: of the plans.
        frames_per_step: of the decoder, n_frames_per_step.
        costs: predict the time of an epoch and its peak memory.

    Raises:
        BatchingError: if a length is not a positive number.
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
        self._sorted_spreads: dict[tuple, float] = {}
        self._made: dict[tuple, Survey] = {}

    def survey(self, batch_size: int, strategy: str, *, epochs: int = 5, **options) -> Survey:
        """Plan `epochs` epochs (1, 2, ...; novelty compares each with the one before) and average.

        Args:
            options: of `plan_epoch`, but for the epoch and the seed.

        Raises:
            BatchingError: as `plan_epoch`.
        """
        # The parameters of other strategies change nothing.
        others = set(PARAMETERS.values()) - {PARAMETERS.get(strategy)}
        used = {k: v for k, v in options.items() if v is not None and k not in others}
        key = (batch_size, strategy, epochs, *sorted(used.items()))
        if key not in self._made:
            self._made[key] = self._survey(batch_size, strategy, epochs, used)
        return self._made[key]

    def _survey(self, batch_size: int, strategy: str, epochs: int, options: dict) -> Survey:
        default_capacity = batch_size * self.longest
        capacity = options.get("batch_capacity") or default_capacity
        plan = self._plan(batch_size, strategy, 0, options)
        first = asdict(padding_stats(self.lengths, plan, self.frames_per_step))
        sorted_spread = self._sorted_spread(batch_size, options)
        rows = []
        for epoch in range(1, epochs + 1):
            before, plan = plan, self._plan(batch_size, strategy, epoch, options)
            row = asdict(padding_stats(self.lengths, plan, self.frames_per_step))
            del row["padded_frames"]
            clips_used = row["average_batch_length"] * len(self.lengths)
            row["capacity_used"] = clips_used / (row["num_batches"] * capacity)
            rows.append(row | self._mixing(before, plan, sorted_spread) | self._predicted(plan))
        # With one epoch, the epoch before it shows how much one differs from another.
        found = _combined(rows, [first] if epochs == 1 else [])
        name = PARAMETERS.get(strategy)
        return Survey(
            strategy=strategy,
            batch_size=batch_size,
            dynamic_batch_size=options.get("dynamic_batch_size", False),
            batch_capacity=None if capacity == default_capacity else capacity,
            value=options.get(name, DEFAULTS[name]) if name else None,
            **found,
        )

    def _plan(self, batch_size: int, strategy: str, epoch: int, options: dict) -> EpochPlan:
        return plan_epoch(
            self.lengths, batch_size, strategy, seed=self.seed, epoch=epoch, **options
        )

    def _sorted_spread(self, batch_size: int, options: dict) -> float:
        sizes = {k: v for k, v in options.items() if k in ("dynamic_batch_size", "batch_capacity")}
        key = (batch_size, *sorted(sizes.items()))
        if key not in self._sorted_spreads:
            plan = self._plan(batch_size, "sorted", 0, sizes)
            self._sorted_spreads[key] = pair_spread(self.lengths, plan)
        return self._sorted_spreads[key]

    def _mixing(self, before: EpochPlan, plan: EpochPlan, sorted_spread: float) -> dict:
        """Novelty and spread of a plan."""
        if len(plan) == len(self.lengths):  # every clip is alone in its batch
            return {"novelty": math.nan, "spread": math.nan}
        spread = math.nan
        if self.lengths.min() < self.longest:
            spread = relative_spread(pair_spread(self.lengths, plan), sorted_spread)
        return {"novelty": pair_novelty(plan, before), "spread": spread}

    def _predicted(self, plan: EpochPlan) -> dict:
        """Seconds of the plan's training steps, and the most memory that one takes."""
        if self.costs is None:
            return {"seconds_per_epoch": None, "peak_bytes": None}
        sizes, longest = plan.sizes, np.maximum.reduceat(self.lengths[plan.order], plan.starts)
        knows_memory = self.costs.bytes_per_term is not None
        return {
            "seconds_per_epoch": float(self.costs.seconds(sizes, longest).sum()),
            "peak_bytes": float(self.costs.bytes(sizes, longest).max()) if knows_memory else None,
        }


def in_threads(function: Callable, items: Sequence) -> Iterator:
    """`function` of every item, in their order; several at once, since numpy releases the GIL."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        yield from pool.map(function, items)


def relative_spread(spread: float, sorted_spread: float) -> float:
    """(s - s_sorted) / (s_random - s_sorted): 0 as sorted batches, 1 as random ones.

    s is batching.pair_spread, in whose unit s_random = 1 in expectation; s_sorted is that of the
    `sorted` strategy with the same batch size or capacity. A little below 0 where a strategy
    leaves batches part-filled, for smaller batches spread less. Not a number where sorted batches
    are no better than random ones (one batch holds all clips).
    """
    return (spread - sorted_spread) / (1 - sorted_spread) if sorted_spread < 1 - 1e-9 else math.nan


def mean_survey(surveys: Sequence[Survey]) -> Survey:
    """The same batching on several draws of clips, as one; the settings are the first one's."""
    rows = [{name: getattr(draw, name) for name in MEASURED} for draw in surveys]
    return replace(surveys[0], **_combined(rows)) if len(surveys) > 1 else surveys[0]


def _combined(rows: Sequence[dict], also: Sequence[dict] = ()) -> dict:
    """Means or maxima over `rows`, and standard errors, which know the spread of `also` too."""
    combined: dict[str, Any] = {}
    errors = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if values[0] is None:
            combined[name] = None
        else:
            combined[name] = max(values) if name in LARGEST else float(np.mean(values))
        known = [row[name] for row in (*rows, *also) if name in row]
        if name in WITH_ERROR and len(known) > 1:
            errors[name] = float(np.std(known, ddof=1)) / math.sqrt(len(rows))
    return combined | {"standard_errors": errors}


# ---------------------------------------------------------------------------- sweeps


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


def sweep(
    surveyor: Surveyor, batch_size: int, strategy: str, values: Sequence, **options
) -> list[Survey]:
    """A survey for each value of the strategy's parameter."""
    name = PARAMETERS.get(strategy)
    return [
        surveyor.survey(batch_size, strategy, **options | ({name: value} if name else {}))
        for value in values
    ]


def match_zero_padding(
    draws: Sequence[np.ndarray], batch_size: int, strategy: str, target: float, *, epochs: int = 5
) -> tuple[int, float] | None:
    """(value, ZPR) with the ZPR nearest to `target` from below, as Ge21 chose Table 1's values.

    `strategy` is `bucket` (bucket sizes: multiples of the batch size) or `alternated_sort` (bins:
    1 to the number of batches), with fixed sizes; ZPR is the mean over draws and epochs. It rises
    with either but for a little noise: bisection finds where it passes `target`, and all values
    within a tenth of that place are then tried, or where they are very many, 40 of them. None
    where even the least pads more.
    """
    num_clips = len(draws[0])
    values = range(1, -(-num_clips // batch_size) + 1)
    if PARAMETER[strategy].holds_batches:
        values = range(batch_size, max(batch_size + 1, num_clips), batch_size)
    known: dict[int, float] = {}

    def rate(place: int) -> float:
        if place not in known:
            options: dict[str, Any] = {PARAMETERS[strategy]: values[place]}
            rates = []
            for seed, x in enumerate(draws):
                for epoch in range(1, epochs + 1):
                    plan = plan_epoch(x, batch_size, strategy, seed=seed, epoch=epoch, **options)
                    rates.append(padding_stats(x, plan).zero_padding_rate)
            known[place] = float(np.mean(rates))
        return known[place]

    place = first_that(len(values), lambda i: rate(i) > target)
    reach = max(3, place // 10)
    near = range(max(0, place - reach), min(len(values), place + reach + 1))
    for _ in in_threads(rate, near[:: -(-len(near) // MOST_VALUES_NEAR)]):
        pass
    below = {i: zpr for i, zpr in known.items() if zpr <= target}
    if not below:
        return None
    rate_found, best = max((zpr, -i) for i, zpr in below.items())
    return values[-best], rate_found


def first_that(count: int, holds: Callable[[int], bool]) -> int:
    """The first of 0 ... count - 1 for which a condition holds that from there on always holds."""
    return bisect.bisect_left(range(count), True, key=holds)
