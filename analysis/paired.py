"""Differences between batchings, paired by seed, and whether they are beyond chance.

Runs with the same seed begin with the same weights, so seeds are the blocks of a randomised block
design, and values are compared as ratios:

    log value = effect of the batching + effect of the seed + chance

fitted by least squares to all runs of a comparison (two-way analysis of variance without
interaction; Montgomery, "Design and Analysis of Experiments", on randomised complete blocks). The
spread that chance makes is taken to be the same share of every batching's values, so all runs
together tell it: a batching with three seeds of its own would have to differ by 4.3 standard errors
before anything is believed, one of twenty batchings by about two. A change is tested by a two-sided
t-test. Several that are made together share the 5 % by Holm's method (Holm 1979, "A simple
sequentially rejective multiple test procedure").
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

LEVEL = 0.05


@dataclass(frozen=True)
class Change:
    """From one batching to another, in per cent of the first."""

    mean: float
    standard_error: float | None  # None where no run is left over to tell what chance makes
    num_seeds: int  # that both have
    p_value: float | None


class SeedModel:
    """The values of several batchings, each a number for every seed.

    Args:
        batchings: for each a positive value by seed; it may be empty.
    """

    def __init__(self, batchings: Sequence[dict[int, float]]):
        self._batchings = batchings
        rows = [(place, seed) for place, values in enumerate(batchings) for seed in values]
        seeds = sorted({seed for _, seed in rows})
        columns = np.zeros((len(rows), len(batchings) + len(seeds)))
        for row, (place, seed) in enumerate(rows):
            columns[row, [place, len(batchings) + seeds.index(seed)]] = 1
        logs = np.log([batchings[place][seed] for place, seed in rows])
        inverse = np.linalg.pinv(columns)
        self._effects, self._spread = inverse @ logs, inverse @ inverse.T
        self.degrees_of_freedom = len(rows) - round(np.trace(columns @ inverse))
        residuals = logs - columns @ self._effects
        self._variance = float(residuals @ residuals) / max(self.degrees_of_freedom, 1)

    def change(
        self, first: int, second: int, least_error: float = 0.0, further_error: float = 0.0
    ) -> Change | None:
        """From one of the batchings to another; None where they have no seed in common.

        Args:
            first, second: their places.
            least_error: a standard error known from elsewhere, such as from repeated epochs, as a
                share of the ratio; the runs' own counts where it is larger.
            further_error: one that all seeds share, so that the runs' own does not show it.
        """
        shared = self._batchings[first].keys() & self._batchings[second].keys()
        if not shared:
            return None
        contrast = np.zeros(len(self._effects))
        contrast[[first, second]] = -1, 1
        log_ratio = float(contrast @ self._effects)
        mean = 100 * math.expm1(log_ratio)
        if self.degrees_of_freedom < 1:
            known = math.hypot(least_error, further_error)
            error = 100 * math.exp(log_ratio) * known or None
            return Change(mean, error, len(shared), None)
        error = math.sqrt(self._variance * float(contrast @ self._spread @ contrast))
        error = math.hypot(max(error, least_error), further_error)
        if error > 1e-12:  # of equal values, rounding alone is left
            p_value = float(2 * t.sf(abs(log_ratio) / error, self.degrees_of_freedom))
        else:
            p_value = 1.0 if abs(log_ratio) < 1e-9 else 0.0
        return Change(mean, 100 * math.exp(log_ratio) * error, len(shared), p_value)


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
