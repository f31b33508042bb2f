"""The cheapest batching that mixes clips enough, and why it is the one."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from length_batching import STRATEGIES, batching_name
from paper.survey import Survey, Surveyor, in_threads, parameter_values, value_in_words

# Lengths do not tell how a model learns. The figures are those of docs/learning.md.
LEARNING = (
    "learning: the default, SSB-DBS-BR with random_epochs=2, had a loss 9% ± 4 below RAND's in",
    "  equal time in the full-size model, 16% ± 2 in a small one; other batchings were measured in",
    "  the small one, without random epochs: SSB-exp ended 5% above SSB-DBS-BR (docs/learning.md)",
)


def mixes(found: Survey, novelty: float) -> bool:
    """Whether it has as much novelty; one that is not known suffices."""
    return not found.novelty < novelty


def ranked(tried: Sequence[Survey], novelty: float) -> list[Survey]:
    """Those that mix enough, the cheapest first; the more random one of equals."""
    allowed = [found for found in tried if mixes(found, novelty)]
    return sorted(allowed, key=lambda found: (found.decoder_steps, -np.nan_to_num(found.novelty)))


def recommend(
    surveyor: Surveyor,
    batch_size: int,
    novelty: float,
    *,
    batch_capacity: int | None = None,
    epochs: int = 5,
) -> list[Survey]:
    """The cheapest of every strategy, with fixed and with dynamic sizes, that mixes enough (or its
    most random one, if none does), RAND first, and last the default SSB-DBS-BR.

    Cheapest are the fewest decoder steps. They rise with randomness, so for every strategy the
    least random value that mixes enough is sought (by bisection). Dynamic sizes have the capacity
    `batch_capacity`, or batch_size * longest clip.
    """
    num_clips = len(surveyor.lengths)
    usual: dict = {"dynamic_batch_size": True, "batch_capacity": batch_capacity, "epochs": epochs}

    def least_random(job: tuple[str, bool]) -> Survey:
        """The least random value that mixes enough, else the most random one."""
        strategy, dynamic = job
        options = usual if dynamic else {"epochs": epochs}
        *values, most_random = parameter_values(strategy, num_clips, batch_size, per_octave=8)

        def survey(value: float | None) -> Survey:
            return surveyor.survey(batch_size, strategy, value=value, **options)

        place = bisect_left(values, True, key=lambda value: mixes(survey(value), novelty))
        return survey([*values, most_random][place])

    jobs = list(itertools.product(STRATEGIES, (False, True)))
    default = surveyor.survey(batch_size, "semi_sorted", **usual)
    return [*in_threads("searching", least_random, jobs), default]


def batching_overrides(found: Survey) -> str:
    """The strategy, its parameter and its sizes, and nothing of the batch size or the audio."""
    settings = {
        "batching_strategy": found.strategy,
        found.parameter: found.value,
        "dynamic_batch_size": found.dynamic_batch_size,
        "batch_randomization": found.strategy != "random",
        "batch_capacity": found.batch_capacity,
    }
    return ",".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def described(found: Survey) -> str:
    """SSB-DBS-BR (factor 0.1)."""
    notes = [value_in_words(found.strategy, found.value)] if found.parameter else []
    if found.batch_capacity:
        notes.append(f"capacity {found.batch_capacity:,} frames")
    name = batching_name(found.strategy, found.dynamic_batch_size, True)
    return name + (f" ({', '.join(notes)})" if notes else "")


def advice(tried: Sequence[Survey], novelty: float, least_novelty: str) -> list[str]:
    """The lines about the best that `recommend` tried: its cost and mixing, and what comes next;
    or, where none has the `novelty`, about the most random one. `least_novelty` says where that
    limit comes from."""
    order = ranked(tried, novelty)
    if not order:
        best = max(tried, key=lambda found: found.novelty)
        problem = f"reaches novelty {novelty:g}: the most is {best.novelty:.4f}"
        return [f"Nothing to recommend: no batching {problem}, {described(best)}"]
    best, random, paper = order[0], tried[0], tried[-1]
    cost = f"{best.decoder_steps:,.0f} decoder steps an epoch"
    for word, other in ((", ", random), (" and ", paper)):
        change = best.decoder_steps / other.decoder_steps - 1
        less = "more" if change > 0 else "less"
        cost += f"{word}{abs(change):.1%} {less} than {described(other)}"
    mixed = f"novelty {best.novelty:.4f}, the least allowed is {least_novelty}"
    if math.isnan(best.novelty):
        mixed = "no two clips share a batch"
    fits = f"largest batch {best.largest_batch_frames:,.0f} frames, {best.largest_batch_size} clips"
    for rival in [other for other in order if other.strategy != best.strategy][:1]:
        more = rival.decoder_steps / best.decoder_steps - 1
        fits += f"; next best: {described(rival)}, {more:+.1%}"
    lines = [f"Recommended for speed: {described(best)}", f"cheapest: {cost}", f"mixing: {mixed}"]
    lines += [fits, *LEARNING]
    if best.num_batches < 0.5 * random.num_batches:
        steps = f"{best.num_batches:,.0f} training steps an epoch, RAND {random.num_batches:,.0f}"
        lines.append(f"note: {steps}: an epoch is shorter but may teach less")
    return lines
