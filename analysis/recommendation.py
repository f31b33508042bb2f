"""The cheapest batching that mixes clips enough and fits into memory, and why it is the one."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from analysis.survey import (
    PARAMETERS,
    Survey,
    Surveyor,
    batching_name,
    first_that,
    in_threads,
    parameter_values,
    sweep,
    value_in_words,
)
from batching import STRATEGIES
from hparams import HParams

# From our study of learning (docs/paper.md: a small model, a synthetic voice, ten epochs): how far,
# in % and with its standard error, the unpadded validation loss lay above RAND's, mean of the last
# four epochs. By strategy and whether sizes are dynamic, all with batch randomization. The numbers
# are those of benchmarks/results/table2-small-2026-11-22-cpu/report.csv.
LEARNED = {
    ("sorted", False): (83, 22),
    ("semi_sorted", False): (39, 17),
    ("bucket", False): (35, 16),
    ("alternated_sort", False): (35, 16),
    ("semi_sorted", True): (57, 16),
    ("semi_sorted_exponential", True): (54, 16),  # its factor chosen as --recommend does
}
WITH_RANDOM_EPOCHS = (12, 11)  # of semi_sorted with dynamic sizes
SIZES = ("batch_size", "dynamic_batch_size", "batch_capacity")

# ---------------------------------------------------------------------------- the search


@dataclass(frozen=True)
class Recommendation:
    """The cheapest batching under limits.

    `tried` holds the cheapest of every strategy, with fixed and with dynamic sizes, that mixes
    enough (or its most random one, if none does).
    """

    min_novelty: float
    max_bytes: float | None
    tried: list[Survey]

    def fits(self, tried: Survey) -> bool:
        return self.max_bytes is None or tried.peak_bytes <= self.max_bytes

    @property
    def ranked(self) -> list[Survey]:
        """Those that keep all limits, the cheapest first; the more random one of equals."""
        allowed = [s for s in self.tried if self.fits(s) and s.mixes_enough(self.min_novelty)]
        return sorted(allowed, key=lambda s: (s.cost, -np.nan_to_num(s.novelty)))


def recommend(
    surveyor: Surveyor,
    batch_size: int,
    *,
    min_novelty: float,
    max_bytes: float | None = None,
    batch_capacity: int | None = None,
    epochs: int = 5,
    progress: Callable[[Iterable, int], Iterable] = lambda found, total: found,
) -> Recommendation:
    """The batching whose epoch is cheapest, of those that mix and fit enough.

    Cheapest is the least predicted time with `costs`, else the fewest decoder steps. Both rise
    with randomness, so for every strategy the least random value is sought (by bisection) that
    reaches `min_novelty`. With `max_bytes`, dynamic sizes take the largest capacity whose batches
    stay below it; else `batch_capacity`, or batch_size * longest clip.

    Args:
        max_bytes: of predicted peak memory; needs a surveyor with `costs` that include memory.
        epochs: planned for every survey.
        progress: wraps the batchings found, given how many there will be, for a bar.
    """
    result = Recommendation(min_novelty, max_bytes, [])

    def search(job: tuple[str, bool]) -> Survey:
        strategy, dynamic = job
        choices: list[dict] = [{"dynamic_batch_size": dynamic}]
        if dynamic and max_bytes is not None:
            choices = _capacities(surveyor, batch_size, strategy, max_bytes)
        elif dynamic and batch_capacity:
            choices[0]["batch_capacity"] = batch_capacity
        for sizes in choices:
            options = sizes | {"epochs": epochs}
            found = _least_random(surveyor, batch_size, strategy, min_novelty, options)
            if result.fits(found):
                break  # the next smaller capacity only if memory runs over after all
        return found

    jobs = list(itertools.product(STRATEGIES, (False, True)))
    result.tried.extend(progress(in_threads(search, jobs), len(jobs)))
    return result


def _least_random(
    surveyor: Surveyor, batch_size: int, strategy: str, min_novelty: float, options: dict
) -> Survey:
    """The least random value that mixes enough, else the most random one."""
    values = parameter_values(strategy, len(surveyor.lengths), batch_size, per_octave=8)

    def survey_at(place: int) -> Survey:
        return sweep(surveyor, batch_size, strategy, [values[place]], **options)[0]

    def enough(place: int) -> bool:
        return survey_at(place).mixes_enough(min_novelty)

    # First among the values a doubling apart, of which a sweep may have surveyed most already.
    apart = set(parameter_values(strategy, len(surveyor.lengths), batch_size, per_octave=1))
    places = [place for place, value in enumerate(values) if value in apart]
    passed = first_that(len(places), lambda i: enough(places[i]))
    least = places[passed - 1] + 1 if passed > 0 else 0
    most = places[passed] if passed < len(places) else len(values)
    place = least + first_that(most - least, lambda i: enough(least + i))
    return survey_at(min(place, len(values) - 1))


def _capacities(surveyor: Surveyor, batch_size: int, strategy: str, max_bytes: float) -> list[dict]:
    """Options of dynamic sizes: the largest capacity that fits, and some smaller ones after it.

    Eight a doubling, from one longest clip to 64 times batch_size of them, but never more than the
    whole corpus. Where even one clip does not fit, that smallest capacity alone.
    """
    longest, num_clips = surveyor.longest, len(surveyor.lengths)
    most = min(64 * batch_size, num_clips)
    steps = range(int(8 * math.log2(most)) + 1)
    capacities = sorted({batch_size * longest, *(int(longest * 2 ** (k / 8)) for k in steps)})
    sizes = [{"dynamic_batch_size": True, "batch_capacity": capacity} for capacity in capacities]
    fullest = parameter_values(strategy, num_clips, batch_size)[:1]

    def too_large(place: int) -> bool:
        tried = sweep(surveyor, batch_size, strategy, fullest, epochs=1, **sizes[place])[0]
        return tried.peak_bytes > max_bytes

    place = max(first_that(len(sizes), too_large) - 1, 0)
    return sizes[max(0, place - 4) : place + 1][::-1]


# ---------------------------------------------------------------------------- as settings


def batching_overrides(hparams: HParams) -> str:
    """The strategy, its parameter and its sizes, and nothing of the batch size or the audio."""
    names = ["batching_strategy", PARAMETERS.get(hparams.batching_strategy)]
    names += ["dynamic_batch_size", "batch_randomization"]
    if hparams.batch_capacity is not None:
        names.append("batch_capacity")
    return ",".join(f"{name}={getattr(hparams, name)}" for name in names if name)


def overrides(hparams: HParams) -> str:
    """What `create_hparams` makes these settings of: all that differ from the defaults, and the
    batching even where it does not."""
    default = HParams()
    always = {"batch_size", "batching_strategy", "dynamic_batch_size", "batch_randomization"}
    always |= {PARAMETERS.get(hparams.batching_strategy, "batch_size")}
    derived = set()  # lengths that follow from times in ms
    if hparams.hop_time is not None:
        derived.add("hop_length")
    if hparams.win_time is not None:
        derived.add("win_length")
        if hparams.filter_length == 1 << (hparams.win_length - 1).bit_length():
            derived.add("filter_length")
    return ",".join(
        f"{name}=[{','.join(value)}]" if isinstance(value, tuple) else f"{name}={value}"
        for name, value in asdict(hparams).items()
        if name not in derived and (name in always or value != getattr(default, name))
    )


def as_hparams(found: Survey, hparams: HParams) -> HParams:
    """The run's settings with this batching."""
    parameter = {found.parameter: found.value} if found.parameter else {}
    sizes = {name: getattr(found, name) for name in SIZES}
    mixed = found.strategy != "random"
    settings: dict[str, Any] = {"batching_strategy": found.strategy, "batch_randomization": mixed}
    return replace(hparams, **settings | sizes | parameter)


# ---------------------------------------------------------------------------- in words


def described(found: Survey) -> str:
    """SSB-DBS-BR (factor 0.1)."""
    notes = [value_in_words(found.strategy, found.value)] if found.parameter else []
    if found.batch_capacity:
        notes.append(f"capacity {found.batch_capacity:,} frames")
    name = batching_name(found.strategy, found.dynamic_batch_size, True)
    return name + (f" ({', '.join(notes)})" if notes else "")


def reasons(result: Recommendation, surveys: Sequence[Survey], limit: str) -> list[str]:
    """What it costs, how it mixes, what it fits and what comes next, what it learns."""
    best, *others = result.ranked
    cost = f"{best.decoder_steps:,.0f} decoder steps an epoch"
    if best.seconds_per_epoch is not None:
        cost = f"{best.seconds_per_epoch / 60:.2f} predicted minutes an epoch"
    compared = [
        f"{abs(best.cost / other.cost - 1):.1%} {'less' if best.cost <= other.cost else 'more'} "
        f"than {described(other)}"
        for other in surveys
        if (other.strategy, other.dynamic_batch_size) in (("random", False), ("semi_sorted", True))
    ]
    mixed = f"novelty {best.novelty:.4f}, the least allowed is {limit}"
    if math.isnan(best.novelty):
        mixed = "no two clips share a batch"
    fits = f"largest batch {best.largest_batch_frames:,.0f} frames, {best.largest_batch_size} clips"
    if best.peak_bytes is not None:
        fits += f", predicted peak {best.peak_bytes / 1e9:.2f} GB"
    rivals = [other for other in others if other.strategy != best.strategy]
    if rivals:
        fits += f"; next best: {described(rivals[0])}, {rivals[0].cost / best.cost - 1:+.1%}"
    return [
        f"cheapest: {cost}, {' and '.join(compared)}",
        f"mixing: {mixed}",
        fits,
        f"learning: {what_was_learned(best.strategy, best.dynamic_batch_size)}",
    ]


def what_was_learned(strategy: str, dynamic: bool) -> str:
    """What the study says of a batching with batch randomization."""
    study = "in our small study (docs/paper.md)"
    if (strategy, dynamic) == ("random", False):
        return f"{study} RAND reached the lowest loss in equal epochs"
    known = {
        batching_name(*key, True): LEARNED[key] for key in [(strategy, dynamic)] if key in LEARNED
    }
    unknown = "" if known else "not known; "
    known["SSB-DBS-BR"] = LEARNED["semi_sorted", True]
    known["SSB-DBS-BR with random_epochs=2"] = WITH_RANDOM_EPOCHS
    losses = ", ".join(f"{name} by {mean}% ± {error}" for name, (mean, error) in known.items())
    return f"{unknown}{study} losses after equal epochs were above RAND's: {losses}"


def what_is_not_met(result: Recommendation) -> str:
    """The limit that no batching keeps, and the best that can be had."""
    fitting = [found for found in result.tried if result.fits(found)]
    if result.max_bytes is not None and not fitting:
        best = min(result.tried, key=lambda s: s.peak_bytes)
        return (
            f"no batching fits into {result.max_bytes / 1e9:g} GB: the least is "
            f"{best.peak_bytes / 1e9:.2f} GB, {described(best)}"
        )
    best = max(fitting, key=lambda s: s.novelty)
    within = "" if result.max_bytes is None else f" within {result.max_bytes / 1e9:g} GB"
    return (
        f"no batching reaches novelty {result.min_novelty:g}{within}: the most is "
        f"{best.novelty:.4f}, {described(best)}"
    )
