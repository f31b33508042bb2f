"""What a batching costs and how it mixes the clips: the numbers, from lengths alone.

Used by compare_batching.py, batching_figures.py and report.py. Lengths are frames throughout.
Sources (Ge21, Doetsch17, Gonzalez23) are those of batching.py.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from batching import STRATEGIES, padding_stats, pair_novelty, pair_spread, plan_epoch

PARAMETERS = {  # the one parameter of plan_epoch that decides how much a strategy mixes
    "semi_sorted": "local_randomization_factor",
    "semi_sorted_rank": "local_randomization_factor",
    "semi_sorted_exponential": "local_randomization_factor",
    "bucket": "bucket_size",
    "bucket_by_width": "num_buckets",
    "bucket_by_quantile": "num_buckets",
    "alternated_sort": "num_bins",
}  # random and sorted have none
DEFAULTS = {
    name: inspect.signature(plan_epoch).parameters[name].default for name in PARAMETERS.values()
}


# ---------------------------------------------------------------------------- one batching


@dataclass(frozen=True)
class Survey:
    """One batching of one corpus: means over epochs; of what is largest, the largest.

    Rates are fractions. Not-a-number where the corpus is too small to tell (no two clips share a
    batch, or all are of one length).
    """

    strategy: str
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: int | None  # None: batch_size * longest clip
    value: float | None  # of the strategy's parameter, PARAMETERS[strategy]
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

    @property
    def parameter(self) -> str | None:
        return PARAMETERS.get(self.strategy)


SETTINGS = ("strategy", "batch_size", "dynamic_batch_size", "batch_capacity", "value")
LARGEST = ("largest_batch_size", "largest_batch_frames", "peak_bytes")


def survey(
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    strategy: str,
    *,
    epochs: int = 5,
    seed: int = 0,
    frames_per_step: int = 1,
    costs=None,
    symbols: np.ndarray | None = None,
    **options,
) -> Survey:
    """Plan `epochs` epochs (1, 2, ...; novelty compares each with the one before) and average.

    Args:
        lengths: frames of every clip.
        frames_per_step: of the decoder, n_frames_per_step.
        costs: a cost_model.StepCosts; with `symbols`, every clip's number of them, it predicts
            the time of an epoch and its peak memory.
        options: of `plan_epoch`.

    Raises:
        ValueError: as `plan_epoch`.
    """
    x = np.asarray(lengths)
    dynamic = options.get("dynamic_batch_size", False)
    default_capacity = batch_size * int(x.max())
    capacity = options.get("batch_capacity") or default_capacity
    sizes = {name: options[name] for name in _SIZE_OPTIONS if name in options}
    sorted_spread = pair_spread(x, plan_epoch(x, batch_size, "sorted", seed=seed, **sizes))
    rows = []
    before = plan_epoch(x, batch_size, strategy, seed=seed, epoch=0, **options)
    for epoch in range(1, epochs + 1):
        plan = plan_epoch(x, batch_size, strategy, seed=seed, epoch=epoch, **options)
        row = asdict(padding_stats(x, plan, frames_per_step))
        padded = row["average_batch_length"] * len(x)
        row["capacity_used"] = padded / (row["num_batches"] * capacity)
        del row["padded_frames"]
        alone = all(len(batch) == 1 for batch in plan)
        row["novelty"] = np.nan if alone else pair_novelty(plan, before)
        alike = alone or x.min() == x.max()
        row["spread"] = np.nan if alike else relative_spread(pair_spread(x, plan), sorted_spread)
        if costs is not None:
            row |= predict(costs, x, symbols, plan)
        rows.append(row)
        before = plan
    name = PARAMETERS.get(strategy)
    return Survey(
        strategy=strategy,
        batch_size=batch_size,
        dynamic_batch_size=dynamic,
        batch_capacity=None if capacity == default_capacity else capacity,
        value=options.get(name, DEFAULTS[name]) if name else None,
        **_combined(rows),
    )


_SIZE_OPTIONS = ("dynamic_batch_size", "batch_capacity")


def relative_spread(spread: float, sorted_spread: float) -> float:
    """(s - s_sorted) / (s_random - s_sorted): 0 as sorted batches, 1 as random ones.

    s is batching.pair_spread, in whose unit s_random = 1 in expectation; s_sorted is that of the
    `sorted` strategy with the same batch size or capacity. A little below 0 where a strategy
    leaves batches part-filled, for smaller batches spread less. Not a number where sorted batches
    are no better than random ones (one batch holds all clips).
    """
    return (spread - sorted_spread) / (1 - sorted_spread) if sorted_spread < 1 - 1e-9 else np.nan


def predict(costs, lengths: np.ndarray, symbols: np.ndarray, plan: Sequence[np.ndarray]) -> dict:
    """Seconds of the plan's training steps, and the most memory that one takes."""
    sizes = np.array([len(batch) for batch in plan])
    laid_out, starts = np.concatenate(plan), np.cumsum(sizes) - sizes
    shapes = (
        sizes,
        np.maximum.reduceat(lengths[laid_out], starts),
        np.maximum.reduceat(symbols[laid_out], starts),
    )
    knows_memory = costs.bytes_per_term is not None
    return {
        "seconds_per_epoch": float(np.sum(costs.seconds(*shapes))),
        "peak_bytes": float(np.max(costs.bytes(*shapes))) if knows_memory else None,
    }


def mean_survey(surveys: Sequence[Survey]) -> Survey:
    """The same batching on several draws of clips, as one; the settings are the first one's."""
    rows = [
        {key: value for key, value in asdict(one).items() if key not in SETTINGS} for one in surveys
    ]
    kept = {key: getattr(surveys[0], key) for key in SETTINGS}
    return Survey(**kept, **_combined(rows))


def _combined(rows: Sequence[dict]) -> dict:
    combined = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if values[0] is None:
            combined[key] = None
        else:
            combined[key] = max(values) if key in LARGEST else float(np.mean(values))
    return combined


# ---------------------------------------------------------------------------- sweeps


def parameter_values(
    strategy: str, num_clips: int, batch_size: int, per_octave: int = 2, include=()
) -> list[float]:
    """Values of the strategy's parameter worth trying, from least to most random.

    `per_octave` values a doubling, `include` in their midst. Factors from 0 to 1.6; buckets of
    whole batches, smaller than the corpus; bins and classes from 1 to the number of batches. The
    numbers of classes fall, for many classes mix little. [None] for a strategy without parameter.
    """
    name = PARAMETERS.get(strategy)
    if name is None:
        return [None]
    num_batches = -(-num_clips // batch_size)
    if name == "local_randomization_factor":
        steps = np.arange(-6 * per_octave, 4 * per_octave + 1)
        grid = {0.0, *(float(f"{0.1 * 2 ** (k / per_octave):.2g}") for k in steps)}
        return sorted(grid | {float(value) for value in include})
    most = max(1, -(-num_clips // batch_size) - 1) if name == "bucket_size" else num_batches
    steps = np.arange(per_octave * int(np.log2(most)) + per_octave)
    grid = {round(2 ** (k / per_octave)) for k in steps.tolist()}
    grid = {count for count in grid if count * 2 ** (0.6 / per_octave) <= most} | {most}
    unit = batch_size if name == "bucket_size" else 1
    grid = {unit * count for count in grid}
    allowed = {value for value in include if _possible(name, value, num_clips, batch_size)}
    return sorted(grid | allowed, reverse=name == "num_buckets")


def _possible(name: str, value: float, num_clips: int, batch_size: int) -> bool:
    if name == "bucket_size":
        return value >= batch_size
    return name != "num_bins" or value <= num_clips


def sweep(
    lengths, batch_size: int, strategy: str, values: Sequence[float | None], **options
) -> list[Survey]:
    """A survey for each value of the strategy's parameter."""
    name = PARAMETERS.get(strategy)
    return [
        survey(lengths, batch_size, strategy, **options | ({name: value} if name else {}))
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
    within a tenth of that place are then tried. None where even the least pads more.
    """
    num_clips = len(draws[0])
    num_batches = -(-num_clips // batch_size)
    if strategy == "bucket":
        values = range(batch_size, max(batch_size + 1, num_clips), batch_size)
    else:
        values = range(1, num_batches + 1)
    known: dict[int, float] = {}

    def rate(place: int) -> float:
        if place not in known:
            options = {PARAMETERS[strategy]: values[place]}
            plans = [
                padding_stats(
                    x, plan_epoch(x, batch_size, strategy, seed=seed, epoch=epoch, **options)
                )
                for seed, x in enumerate(draws)
                for epoch in range(1, epochs + 1)
            ]
            known[place] = float(np.mean([plan.zero_padding_rate for plan in plans]))
        return known[place]

    place = _first(len(values), lambda i: rate(i) > target)
    reach = max(3, len(values[:place]) // 10)
    for near in range(max(0, place - reach), min(len(values), place + reach + 1)):
        rate(near)
    below = {i: zpr for i, zpr in known.items() if zpr <= target}
    if not below:
        return None
    best = max(below, key=below.get)
    return values[best], below[best]


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first of 0 ... count - 1 for which a condition holds that then goes on holding."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


# ---------------------------------------------------------------------------- the cheapest one


@dataclass(frozen=True)
class Recommendation:
    """The cheapest batching under limits.

    `tried` holds the cheapest of every strategy, with fixed and with dynamic sizes, that mixes
    enough (or its most random one, if none does).
    """

    min_novelty: float
    max_bytes: float | None
    tried: list[Survey]

    def fits(self, one: Survey) -> bool:
        return self.max_bytes is None or one.peak_bytes <= self.max_bytes

    def allows(self, one: Survey) -> bool:
        return self.fits(one) and mixes_enough(one, self.min_novelty)

    @property
    def ranked(self) -> list[Survey]:
        """Those that keep all limits, the cheapest first; the more random one of equals."""
        allowed = [one for one in self.tried if self.allows(one)]
        return sorted(allowed, key=lambda one: (cost(one), -np.nan_to_num(one.novelty)))


def recommend(
    lengths: np.ndarray,
    batch_size: int,
    *,
    min_novelty: float,
    max_bytes: float | None = None,
    batch_capacity: int | None = None,
    progress: Callable = lambda jobs: jobs,
    **options,
) -> Recommendation:
    """The batching whose epoch is cheapest, of those that mix and fit enough.

    Cheapest is the least predicted time with `costs`, else the fewest decoder steps. Both rise
    with randomness, so for every strategy the least random value is sought (by bisection) that
    reaches `min_novelty`. With `max_bytes`, dynamic sizes take the largest capacity whose batches
    stay below it; else `batch_capacity`, or batch_size * longest clip.

    Args:
        max_bytes: of predicted peak memory; needs `costs` that know memory.
        progress: wraps the list of jobs, for a bar.
        options: epochs, seed, costs, symbols, as `survey` takes them.
    """
    jobs = [(strategy, dynamic) for strategy in STRATEGIES for dynamic in (False, True)]
    result = Recommendation(min_novelty, max_bytes, [])
    for strategy, dynamic in progress(jobs):
        sizes = {"dynamic_batch_size": dynamic}
        if dynamic and batch_capacity:
            sizes["batch_capacity"] = batch_capacity
        choices = [sizes]
        if dynamic and max_bytes is not None:
            choices = _capacities(lengths, batch_size, strategy, max_bytes, options)
        for sizes in choices:
            found = _least_random(lengths, batch_size, strategy, min_novelty, options | sizes)
            if result.fits(found):
                break  # the next smaller capacity only if memory runs over after all
        result.tried.append(found)
    return result


def cost(one: Survey) -> float:
    """Predicted seconds of an epoch, or its decoder steps where no costs are known."""
    return one.decoder_steps if one.seconds_per_epoch is None else one.seconds_per_epoch


def mixes_enough(one: Survey, min_novelty: float) -> bool:
    return np.isnan(one.novelty) or one.novelty >= min_novelty


def _least_random(lengths, batch_size, strategy, min_novelty, options) -> Survey:
    """The least random value that mixes enough, else the most random one."""
    values = parameter_values(strategy, len(lengths), batch_size, per_octave=8)
    known: dict[int, Survey] = {}

    def enough(place: int) -> bool:
        known[place] = sweep(lengths, batch_size, strategy, [values[place]], **options)[0]
        return mixes_enough(known[place], min_novelty)

    place = min(_first(len(values), enough), len(values) - 1)
    return known[place]


def _capacities(lengths, batch_size, strategy, max_bytes, options) -> list[dict]:
    """Options of dynamic sizes: the largest capacity that fits, and some smaller ones after it.

    Eight a doubling, from one longest clip to 64 times batch_size of them, but never more than the
    whole corpus. Where even one clip does not fit, that smallest capacity alone.
    """
    longest = int(lengths.max())
    most = min(64 * batch_size * longest, len(lengths) * longest)
    steps = range(int(8 * np.log2(most / longest)) + 1)
    capacities = [int(longest * 2 ** (k / 8)) for k in steps]
    if batch_size * longest not in capacities:
        capacities = sorted([*capacities, batch_size * longest])

    values = parameter_values(strategy, len(lengths), batch_size)[:1]  # the fullest batches

    def too_large(place: int) -> bool:
        sizes = {"dynamic_batch_size": True, "batch_capacity": capacities[place], "epochs": 1}
        return sweep(lengths, batch_size, strategy, values, **options | sizes)[0].peak_bytes > (
            max_bytes
        )

    place = max(_first(len(capacities), too_large) - 1, 0)
    return [
        {"dynamic_batch_size": True, "batch_capacity": capacity}
        for capacity in capacities[max(0, place - 4) : place + 1][::-1]
    ]


def survey_row(one: Survey) -> dict:
    """A row of a CSV file: every field, and the name of the parameter."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    return {"strategy": values.pop("strategy"), "parameter": one.parameter or ""} | values
