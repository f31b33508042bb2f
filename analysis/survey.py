"""What a batching costs and how it mixes the clips: the numbers, from lengths alone.

Used by compare_batching.py and by figures.py. Lengths are frames throughout. Sources (Ge21,
Doetsch17, Gonzalez23) are those of batching.py.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import numpy as np

from analysis.strategies import DEFAULTS, PARAMETERS
from batching import (
    REGISTRY,
    EpochPlan,
    check_lengths,
    length_ranks,
    padding_stats,
    pair_novelty,
    pair_spread,
    plan_epoch,
)

MOST_VALUES_NEAR = 40  # tried where padding passes a target
MOST_THREADS = 4  # that survey at the same time; each holds some hundred bytes a clip

# ---------------------------------------------------------------------------- one batching


@dataclass(frozen=True)
class Survey:
    """One batching of one corpus: means over epochs; of what is largest, the largest.

    Rates are fractions. Not-a-number where the corpus is too small to tell (no two clips share a
    batch, or all are of one length). The padding's fields are those of batching.PaddingStats.
    """

    strategy: str
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: int | None  # None: batch_size * longest clip
    value: float | None  # of the strategy's parameter
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
    novelty: float  # of the pairs that share a batch, the share that did not the epoch before
    seconds_per_epoch: float | None = None  # predicted, with costs
    peak_bytes: float | None = None  # predicted, with costs that know memory
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


SETTINGS = ("strategy", "batch_size", "dynamic_batch_size", "batch_capacity", "value")
LARGEST = ("largest_batch_size", "largest_batch_frames", "peak_bytes")
WITH_ERROR = ("zero_padding_rate", "average_batch_length", "decoder_steps", "novelty")


class Surveyor:
    """Makes surveys of one corpus, each of them once; several threads may ask for different ones.

    Args:
        lengths: frames of every clip.
        seed: of the plans.
        frames_per_step: of the decoder, n_frames_per_step.
        costs: a step_costs.StepCosts; with `symbols`, every clip's number of them, it predicts
            the time of an epoch and its peak memory.

    Raises:
        BatchingError: if a length is not a positive number.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        seed: int = 0,
        frames_per_step: int = 1,
        costs=None,
        symbols: np.ndarray | None = None,
    ):
        check_lengths(lengths)
        self.lengths = np.asarray(lengths)
        self.longest = int(self.lengths.max())
        self.seed, self.frames_per_step = seed, frames_per_step
        self.costs, self.symbols = costs, symbols
        self._ranks = length_ranks(self.lengths)
        self._sorted_spreads: dict[tuple, float] = {}
        self._made: dict[tuple, Survey] = {}

    def survey(
        self,
        batch_size: int,
        strategy: str,
        *,
        epochs: int = 5,
        known_orders: dict | None = None,
        **options,
    ) -> Survey:
        """Plan `epochs` epochs (1, 2, ...; novelty compares each with the one before) and average.

        Args:
            known_orders: of `plan_epoch`, for surveys that differ in the sizes of batches.
            options: of `plan_epoch`, but for the epoch and the seed.

        Raises:
            BatchingError: as `plan_epoch`.
        """
        name = PARAMETERS.get(strategy)
        # The parameters of other strategies change nothing.
        used = {
            k: v
            for k, v in options.items()
            if v is not None and (k not in PARAMETERS.values() or k == name)
        }
        key = (batch_size, strategy, epochs, *sorted(used.items()))
        if key not in self._made:
            orders = {"known_orders": known_orders}
            self._made[key] = self._survey(batch_size, strategy, epochs, used | orders)
        return self._made[key]

    def _survey(self, batch_size: int, strategy: str, epochs: int, options: dict) -> Survey:
        default_capacity = batch_size * self.longest
        capacity = options.get("batch_capacity") or default_capacity
        sorted_spread = self._sorted_spread(batch_size, options)
        rows, before = [], self._plan(batch_size, strategy, 0, options)
        for epoch in range(1, epochs + 1):
            plan = self._plan(batch_size, strategy, epoch, options)
            row = asdict(padding_stats(self.lengths, plan, self.frames_per_step))
            del row["padded_frames"]
            clips_used = row["average_batch_length"] * len(self.lengths)
            row["capacity_used"] = clips_used / (row["num_batches"] * capacity)
            row |= self._mixing(plan, before, sorted_spread)
            if self.costs is not None:
                row |= predict(self.costs, self.lengths, self.symbols, plan)
            rows.append(row)
            earlier, before = before, plan
        found = _combined(rows)
        if epochs == 1:  # the plan before it tells how much one epoch differs from another
            other = asdict(padding_stats(self.lengths, earlier, self.frames_per_step))
            found["standard_errors"] = {
                name: abs(rows[0][name] - other[name]) / math.sqrt(2)
                for name in WITH_ERROR
                if name in other
            }
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
            self._sorted_spreads[key] = pair_spread(self._ranks, plan)
        return self._sorted_spreads[key]

    def _mixing(self, plan: EpochPlan, before: EpochPlan, sorted_spread: float) -> dict:
        """Novelty and spread of a plan."""
        alone = len(plan) == len(self.lengths)
        alike = alone or self._ranks.mean_distance == 0
        return {
            "novelty": math.nan if alone else pair_novelty(plan, before),
            "spread": (
                math.nan
                if alike
                else relative_spread(pair_spread(self._ranks, plan), sorted_spread)
            ),
        }


def in_threads(function: Callable, items: Sequence) -> Iterator:
    """`function` of every item, in their order; several at once, for numpy leaves room for that."""
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


def predict(costs, lengths: np.ndarray, symbols: np.ndarray, plan: EpochPlan) -> dict:
    """Seconds of the plan's training steps, and the most memory that one takes."""
    shapes = batch_shapes(plan, lengths, symbols)
    knows_memory = costs.bytes_per_term is not None
    return {
        "seconds_per_epoch": float(np.sum(costs.seconds(*shapes))),
        "peak_bytes": float(np.max(costs.bytes(*shapes))) if knows_memory else None,
    }


def batch_shapes(
    batches: Sequence[np.ndarray], frames: np.ndarray, symbols: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clips, longest clip in frames and longest text in symbols of every batch, [batches] each."""
    plan = EpochPlan.from_batches(batches)
    longest = (np.maximum.reduceat(each[plan.order], plan.starts) for each in (frames, symbols))
    return plan.sizes, *longest


def mean_survey(surveys: Sequence[Survey]) -> Survey:
    """The same batching on several draws of clips, as one; the settings are the first one's."""
    if len(surveys) == 1:
        return surveys[0]
    settings = {name: getattr(surveys[0], name) for name in SETTINGS}
    others = (*SETTINGS, "standard_errors")
    rows = [{k: v for k, v in asdict(draw).items() if k not in others} for draw in surveys]
    return Survey(**settings, **_combined(rows))


def _combined(rows: Sequence[dict]) -> dict:
    combined, errors = {}, {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if values[0] is None:
            combined[name] = None
        else:
            combined[name] = max(values) if name in LARGEST else float(np.mean(values))
        if name in WITH_ERROR and len(rows) > 1:
            errors[name] = float(np.std(values, ddof=1)) / math.sqrt(len(rows))
    return combined | {"standard_errors": errors}


def survey_row(found: Survey) -> dict:
    """A row of a CSV file: every field but the errors, and the name of the parameter."""
    values = asdict(found)
    del values["standard_errors"]
    return {"strategy": values.pop("strategy"), "parameter": found.parameter or ""} | values


# ---------------------------------------------------------------------------- sweeps


def parameter_values(
    strategy: str, num_clips: int, batch_size: int, per_octave: int = 2, include=()
) -> list[float]:
    """Values of the strategy's parameter worth trying, from least to most random.

    `per_octave` values a doubling, `include` in their midst where allowed. Factors from 0 to 1.6;
    buckets of whole batches, smaller than the corpus; bins and classes from 1 to the number of
    batches. [None] for a strategy without parameter.
    """
    parameter = REGISTRY[strategy].parameter
    if parameter is None:
        return [None]
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
    allowed = {value for value in include if least <= value <= (math.inf if most is None else most)}
    return sorted(grid | allowed, reverse=not parameter.larger_mixes_more)


def sweep(
    surveyor: Surveyor, batch_size: int, strategy: str, values: Sequence[float | None], **options
) -> list[Survey]:
    """A survey for each value of the strategy's parameter."""
    name = PARAMETERS.get(strategy)
    return [
        surveyor.survey(batch_size, strategy, **options | ({name: value} if name else {}))
        for value in values
    ]


# ---------------------------------------------------------------------------- equal padding


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
    if REGISTRY[strategy].parameter.holds_batches:
        values = range(batch_size, max(batch_size + 1, num_clips), batch_size)
    else:
        values = range(1, -(-num_clips // batch_size) + 1)
    known: dict[int, float] = {}

    def rate(place: int) -> float:
        if place not in known:
            options = {PARAMETERS[strategy]: values[place]}
            known[place] = float(
                np.mean(
                    [
                        padding_stats(
                            x,
                            plan_epoch(x, batch_size, strategy, seed=seed, epoch=epoch, **options),
                        ).zero_padding_rate
                        for seed, x in enumerate(draws)
                        for epoch in range(1, epochs + 1)
                    ]
                )
            )
        return known[place]

    place = first_that(len(values), lambda i: rate(i) > target)
    reach = max(3, place // 10)
    near = range(max(0, place - reach), min(len(values), place + reach + 1))
    for _ in in_threads(rate, near[:: -(-len(near) // MOST_VALUES_NEAR)]):
        pass
    below = {i: zpr for i, zpr in known.items() if zpr <= target}
    if not below:
        return None
    best = max(below, key=below.get)
    return values[best], below[best]


def first_that(count: int, holds: Callable[[int], bool]) -> int:
    """The first of 0 ... count - 1 for which a condition holds that then goes on holding."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
