"""The cheapest batching that mixes clips enough and fits into memory, and why it is the one."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.survey import Survey, Surveyor, in_threads, parameter_values, value_in_words
from batching import STRATEGIES, batching_name
from hparams import HParams, override_lines

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


class Limits(NamedTuple):
    """What a batching must keep. A novelty or memory that is not known keeps any."""

    min_novelty: float
    max_bytes: float = math.inf  # of predicted peak memory

    def mixes(self, found: Survey) -> bool:
        return not found.novelty < self.min_novelty

    def fits(self, found: Survey) -> bool:
        return not found.peak_bytes > self.max_bytes

    def ranked(self, tried: Sequence[Survey]) -> list[Survey]:
        """Those that keep the limits, the cheapest first; the more random one of equals."""
        allowed = [found for found in tried if self.fits(found) and self.mixes(found)]
        return sorted(allowed, key=lambda found: (found.cost, -np.nan_to_num(found.novelty)))


def recommend(
    surveyor: Surveyor,
    batch_size: int,
    limits: Limits,
    *,
    batch_capacity: int | None = None,
    epochs: int = 5,
) -> list[Survey]:
    """The cheapest of every strategy, with fixed and with dynamic sizes, that mixes enough (or its
    most random one, if none does), RAND first, and last the default SSB-DBS-BR.

    Cheapest is the least predicted time with `costs`, else the fewest decoder steps. Both rise
    with randomness, so for every strategy the least random value that mixes enough is sought (by
    bisection). With a limit of memory, which needs `costs`, dynamic sizes take the largest capacity
    that fits, up to 64 times the default; else `batch_capacity`, or batch_size * longest clip.
    """
    num_clips, longest = len(surveyor.lengths), surveyor.longest
    usual: dict = {"dynamic_batch_size": True, "batch_capacity": batch_capacity, "epochs": epochs}
    largest = dict(usual)
    if surveyor.costs and limits.max_bytes < math.inf:
        most = min(surveyor.costs.frames_within(limits.max_bytes), 64 * batch_size * longest)
        largest["batch_capacity"] = max(longest, int(min(most, num_clips * longest)))

    def least_random(job: tuple[str, bool]) -> Survey:
        """The least random value that mixes enough, else the most random one."""
        strategy, dynamic = job
        options = largest if dynamic else {"epochs": epochs}
        values = parameter_values(strategy, num_clips, batch_size, per_octave=8)

        def survey_at(place: int) -> Survey:
            return surveyor.survey(batch_size, strategy, value=values[place], **options)

        def enough(place: int) -> bool:
            return limits.mixes(survey_at(place))

        # First among the values a doubling apart, of which a sweep may have surveyed most already.
        apart = parameter_values(strategy, num_clips, batch_size, per_octave=1)
        places = [place for place, value in enumerate(values) if value in apart]
        passed = bisect_left(places, True, key=enough)
        least, most = [-1, *places][passed] + 1, [*places, len(values)][passed]
        place = bisect_left(range(len(values)), True, least, most, key=enough)
        return survey_at(min(place, len(values) - 1))

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


def overrides(given: str, hparams: HParams, found: Survey) -> str:
    """The overrides `given`, which make `hparams` of the defaults, each name once, and a batching
    in place of the one in them."""
    # A length takes the place of a time, but the filter is still as that time made it.
    texts = {} if hparams.win_time else {"filter_length": str(hparams.filter_length)}
    for line in override_lines(given):
        name, _, text = (part.strip() for part in line.partition("="))
        if getattr(hparams, name) is not None and name != "batch_capacity":
            texts[name] = text
    texts |= dict(line.split("=") for line in override_lines(batching_overrides(found)))
    return ",".join(f"{name}={text}" for name, text in texts.items())


def described(found: Survey) -> str:
    """SSB-DBS-BR (factor 0.1)."""
    notes = [value_in_words(found.strategy, found.value)] if found.parameter else []
    if found.batch_capacity:
        notes.append(f"capacity {found.batch_capacity:,} frames")
    name = batching_name(found.strategy, found.dynamic_batch_size, True)
    return name + (f" ({', '.join(notes)})" if notes else "")


def advice(
    tried: Sequence[Survey], limits: Limits, least_novelty: str, measured_frames: float
) -> list[str]:
    """The lines about the best that `recommend` tried: its cost, mixing and memory, what comes
    next, what it learns; or about the limit that none keeps, and the best that can be had.

    Args:
        least_novelty: the limit and where it comes from.
        measured_frames: of the largest batch whose step was timed.
    """
    memory, fitting = f"{limits.max_bytes / 1e9:g} GB", [one for one in tried if limits.fits(one)]
    if not fitting:
        best = min(tried, key=lambda found: found.peak_bytes)
        least = f"{best.peak_bytes / 1e9:.2f} GB, {described(best)}"
        return [f"Nothing to recommend: no batching fits into {memory}: the least is {least}"]
    order = limits.ranked(tried)
    if not order:
        best = max(fitting, key=lambda found: found.novelty)
        within = f" within {memory}" if limits.max_bytes < math.inf else ""
        most = f"the most is {best.novelty:.4f}, {described(best)}"
        none = f"no batching reaches novelty {limits.min_novelty:g}{within}"
        return [f"Nothing to recommend: {none}: {most}"]
    best, random, paper = order[0], tried[0], tried[-1]
    cost = f"{best.decoder_steps:,.0f} decoder steps an epoch"
    if not math.isnan(best.seconds_per_epoch):
        cost = f"{best.seconds_per_epoch / 60:.2f} predicted minutes an epoch"
    for word, other in ((", ", random), (" and ", paper)):
        less = (
            f"{abs(best.cost / other.cost - 1):.1%} {'less' if best.cost <= other.cost else 'more'}"
        )
        cost += f"{word}{less} than {described(other)}"
    mixed = f"novelty {best.novelty:.4f}, the least allowed is {least_novelty}"
    if math.isnan(best.novelty):
        mixed = "no two clips share a batch"
    fits = f"largest batch {best.largest_batch_frames:,.0f} frames, {best.largest_batch_size} clips"
    if not math.isnan(best.peak_bytes):
        fits += f", predicted peak {best.peak_bytes / 1e9:.2f} GB"
    for rival in [other for other in order if other.strategy != best.strategy][:1]:
        fits += f"; next best: {described(rival)}, {rival.cost / best.cost - 1:+.1%}"
    learned = what_was_learned(best.strategy, best.dynamic_batch_size)
    lines = [f"Recommended: {described(best)}", f"cheapest: {cost}", f"mixing: {mixed}", fits]
    lines.append(f"learning: {learned}")
    if best.largest_batch_frames > 1.05 * measured_frames:
        lines.append(
            f"warning: steps were measured up to {measured_frames:,} frames a batch; the costs of "
            "larger ones are extrapolated"
        )
    if best.num_batches < 0.5 * random.num_batches:
        lines.append(
            f"note: {best.num_batches:,.0f} training steps an epoch, where RAND makes "
            f"{random.num_batches:,.0f}: an epoch is shorter but may teach less"
        )
    return lines


def what_was_learned(strategy: str, dynamic: bool) -> str:
    """What the study says of a batching with batch randomization."""
    study = "in our small study (docs/paper.md)"
    if (strategy, dynamic) == ("random", False):
        return f"{study} RAND reached the lowest loss in equal epochs"
    shown = dict.fromkeys([(strategy, dynamic), ("semi_sorted", True)])
    known = {batching_name(*key, True): LEARNED[key] for key in shown if key in LEARNED}
    known["SSB-DBS-BR with random_epochs=2"] = WITH_RANDOM_EPOCHS
    losses = ", ".join(f"{name} by {mean}% ± {error}" for name, (mean, error) in known.items())
    unknown = "" if (strategy, dynamic) in LEARNED else "not known; "
    return f"{unknown}{study} losses after equal epochs were above RAND's: {losses}"
