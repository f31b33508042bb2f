"""What a batching costs and how it mixes the clips, computed from lengths alone.

Lengths are in frames throughout. Sources (Ge21, Doetsch17, Gonzalez23) are those of
length_batching/strategies.py.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from common.console import progress_bar
from common.files import map_in_threads
from hparams import HParams
from length_batching import (
    REGISTRY,
    EpochPlan,
    PaddingStats,
    padding_stats,
    pair_novelty,
    plan_epoch,
)
from length_batching.checks import check_lengths

PARAMETER = {name: s.parameter for name, s in REGISTRY.items() if s.parameter}
PARAMETERS = {name: parameter.name for name, parameter in PARAMETER.items()}
DEFAULTS = {name: getattr(HParams(), name) for name in PARAMETERS.values()}
LARGEST = ("largest_batch_size", "largest_batch_frames")


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
    """One batching of one corpus: means over epochs, and maxima of what is named LARGEST. Rates are
    fractions. Not-a-number: what a corpus is too small to tell."""

    strategy: str
    parameter: str | None
    value: Any  # of the parameter
    batch_size: int
    dynamic_batch_size: bool
    batch_capacity: int | None  # None: batch_size * longest clip
    novelty: float  # fraction of the pairs in batches that shared no batch the epoch before


class Surveyor:
    """Makes surveys of one corpus, `lengths` in frames, each of them once; threads may ask for
    different ones at once."""

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        seed: int = 0,
        frames_per_step: int = 1,
    ):
        check_lengths(lengths)
        self.lengths = np.asarray(lengths)
        self.longest = int(self.lengths.max())
        self.seed, self.frames_per_step = seed, frames_per_step
        self._survey_once = functools.cache(self._survey)

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

    def _survey(self, batch_size: int, strategy: str, epochs: int, **options: Any) -> Survey:
        given: dict[str, Any] = {"batch_size": batch_size, "strategy": strategy, "seed": self.seed}
        plans = [plan_epoch(self.lengths, **given, epoch=e, **options) for e in range(epochs + 1)]
        default_capacity = batch_size * self.longest
        capacity = options.get("batch_capacity", default_capacity)
        parameter = PARAMETERS.get(strategy)
        rows = [self._measured(b, a) for a, b in itertools.pairwise(plans)]
        found: dict[str, Any] = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            found[name] = max(values) if name in LARGEST else float(np.mean(values))
        return Survey(
            strategy=strategy,
            parameter=parameter,
            value=options.get(parameter or ""),
            batch_size=batch_size,
            dynamic_batch_size=options.get("dynamic_batch_size", False),
            batch_capacity=None if capacity == default_capacity else capacity,
            **found,
        )

    def _measured(self, plan: EpochPlan, before: EpochPlan) -> dict[str, float]:
        """What one epoch costs, and how it mixes."""
        found = asdict(padding_stats(self.lengths, plan, self.frames_per_step))
        # Where every clip is alone in its batch there are no pairs.
        mixes = len(plan) < len(self.lengths)
        return found | {"novelty": pair_novelty(plan, before) if mixes else math.nan}


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
