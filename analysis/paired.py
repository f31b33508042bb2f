"""Differences between two batchings, paired by seed, and whether they are beyond chance.

The test is the paired t-test, two-sided: the mean of the seeds' differences over its standard
error, with one degree of freedom less than there are seeds. Several comparisons that are made
together share the 5 % by Holm's method (Holm 1979, "A simple sequentially rejective multiple test
procedure"). With three seeds a difference must be 4.3 of its standard errors to pass even alone,
so what is not beyond chance may still be there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

LEVEL = 0.05


@dataclass(frozen=True)
class PairedDifference:
    """Second minus first. `p_value` is None where there are fewer than two seeds in common."""

    mean: float
    standard_error: float | None
    num_seeds: int
    p_value: float | None


def paired_difference(
    first: dict[int, float],
    second: dict[int, float],
    *,
    in_per_cent: bool = False,
    least_error: float = 0.0,
) -> PairedDifference | None:
    """The mean difference of two batchings' values; None where they have no seed in common.

    Args:
        first, second: a value for every seed.
        in_per_cent: of the first, seed by seed.
        least_error: a standard error known from elsewhere, such as from repeated epochs, in the
            unit of the difference; the seeds' own counts where it is larger.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    a, b = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    differences = 100 * (b / a - 1) if in_per_cent else b - a
    mean, n = float(differences.mean()), len(seeds)
    if n < 2:
        return PairedDifference(mean, least_error or None, n, None)
    error = max(float(differences.std(ddof=1)) / math.sqrt(n), least_error)
    if error > 0:
        p_value = float(2 * t.sf(abs(mean) / error, n - 1))
    else:
        p_value = 1.0 if mean == 0 else 0.0
    return PairedDifference(mean, error, n, p_value)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values adjusted by Holm's method; None stays None and counts for nothing."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def by_seed(runs: Sequence, value: Callable[..., float]) -> dict[int, float]:
    """`value` of every run that has it, by the run's seed; a LookupError leaves a run out."""
    found = {}
    for run in runs:
        try:
            found[run.hparams.seed] = value(run)
        except LookupError:
            continue
    return found
