"""The numbers of a report: of each row of runs, of the paper, and the changes between two rows."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from analysis import published
from analysis.report_runs import FinishedRun, ReportRow, differing, representatives

LOSSES = ("vl1", "vl2", "vl3", "vl_average")
FIRST, _, LAST = published.EPOCHS_SHOWN
GIB = 2**30


@dataclass(frozen=True)
class MeanWithError:
    """A mean over runs with its standard error (None for one run), or why there is none."""

    mean: float | None = None
    standard_error: float | None = None
    num_runs: int = 0
    missing: str = ""


@dataclass(frozen=True)
class BatchingResult:
    """The numbers of one batching, ours or the paper's. `settings` must agree to be compared."""

    label: str
    measures: dict[str, MeanWithError]
    settings: dict = field(default_factory=dict)


Results = dict[str, BatchingResult]
PAPER: Results = {
    name: BatchingResult(name, {key: MeanWithError(value) for key, value in row._asdict().items()})
    for name, row in published.TABLE_2.items()
}
# The changes that the paper prints, of which rounding keeps some from what its Table 2 gives.
PRINTED_CHANGES = {("RAND", name, "minutes"): pair for name, pair in published.TABLE_3.items()} | {
    (before, after, "vl3"): (None, fall)
    for pairs in published.TABLE_4.values()
    for before, after, fall in pairs
}


def mean_over_runs(
    runs: Sequence[FinishedRun], value: Callable[[FinishedRun], float]
) -> MeanWithError:
    """Mean and standard error (n - 1) of `value`; missing if it raises LookupError for a run.

    Gonzalez et al. (ICASSP 2023) report mean and standard error of the mean over seeds.
    """
    values, missing = [], []
    for run in runs:
        try:
            values.append(value(run))
        except LookupError as error:
            missing.append(f"{run.directory} {error.args[0]}")
    if missing:
        return MeanWithError(missing="; ".join(missing))
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return MeanWithError(statistics.fmean(values), error, len(values))


# ---------------------------------------------------------------------------- validation losses


@dataclass(frozen=True)
class LossColumns:
    """Which validations VL1-3 and VLavg are of: the paper's, or those of the runs' thirds."""

    as_published: bool
    names: tuple[str, str, str, str]  # for people
    epochs: tuple[str, str, str, str]  # our epochs that they are of, "" where runs differ

    def value(self, run: FinishedRun, column: int, name: str) -> float:
        """The loss `name` of a run for a column of LOSSES.

        VL1-3 of the paper are means of the validation after an epoch, the one before and the one
        after it (Ge21, 4.3); all others are means of all validations of a span of epochs.

        Raises:
            LookupError: naming the epochs that lack their validation.
        """
        step, last = run.hparams.epochs_per_validation, len(run.metrics.epochs)
        if self.as_published and column < 3:
            middle = published.EPOCHS_SHOWN[column]
            epochs = [middle - step, middle, middle + step]
        else:
            first, last = (FIRST, LAST) if self.as_published else [*thirds(last), (1, last)][column]
            epochs = [epoch for epoch in range(first, last + 1) if epoch % step == 0]
            if not epochs:
                when = epoch_span(first, last) if first <= last else "so short a run"
                raise LookupError(f"has no validation of {when}")
        losses = {v.epoch: getattr(v, name) for v in run.metrics.validations}
        if lacking := [str(epoch) for epoch in epochs if epoch not in losses]:
            word = "epoch" if len(lacking) == 1 else "epochs"
            raise LookupError(f"has no validation of {word} {', '.join(lacking)}")
        return statistics.fmean(losses[epoch] for epoch in epochs)


def choose_loss_columns(rows: Sequence[ReportRow]) -> LossColumns:
    """The paper's epochs if every run has the validation after the last of them, else thirds."""
    lengths = {len(run.metrics.epochs) for row in rows for run in row.runs}
    if min(lengths) >= published.EPOCHS:
        epochs = [(epoch, epoch) for epoch in published.EPOCHS_SHOWN] + [(FIRST, LAST)]
        names = ("VL1", "VL2", "VL3", "VLavg")
    else:
        epochs = [*thirds(min(lengths)), (1, min(lengths))] if len(lengths) == 1 else [(1, 0)] * 4
        names = ("early third", "middle third", "late third", "all validations")
    spans = tuple(epoch_span(first, last) if first <= last else "" for first, last in epochs)
    return LossColumns(min(lengths) >= published.EPOCHS, names, spans)


def thirds(epochs: int) -> list[tuple[int, int]]:
    """First and last epoch of the early, middle and late third of a run."""
    edges = [epochs * part // 3 for part in range(4)]
    return [(before + 1, last) for before, last in itertools.pairwise(edges)]


def epoch_span(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first}–{last}"


# ---------------------------------------------------------------------------- numbers of a row

# Of every epoch's record: how a run's epochs are combined, and in which unit it is shown.
EPOCH_MEASURES = {
    "zero_padding_rate": (statistics.fmean, 100),
    "average_batch_length": (statistics.fmean, 1),
    "num_batches": (statistics.fmean, 1),
    "decoder_steps": (statistics.fmean, 1),
    "frames_per_second": (statistics.median, 1),
    "padded_frames_per_second": (statistics.median, 1),
    "clips_per_second": (statistics.median, 1),
    "peak_memory_bytes": (max, 1 / GIB),
    "data_wait_seconds": (statistics.median, 1),
    "prepare_seconds": (statistics.median, 1000),
}


def minutes_of_epoch(run: FinishedRun) -> float:
    """The median over the epochs."""
    return statistics.median(run.minutes_of_epochs)


def error_of_timing(row: ReportRow) -> float:
    """Standard error of the minutes that were timed in turns, as a share of them; 0 if the row's
    minutes are those of its runs. It is one measurement for all seeds."""
    timed = [run.epoch_minutes.relative_error for run in row.runs if run.epoch_minutes]
    return max(timed, default=0.0)


def mean_minutes(row: ReportRow, minutes: Callable[[FinishedRun], float]) -> MeanWithError:
    """`minutes` of the runs; the standard error has that of the timing in it."""
    found, share = mean_over_runs(row.runs, minutes), error_of_timing(row)
    if found.missing or not share:
        return found
    return replace(found, standard_error=math.hypot(found.standard_error or 0, share * found.mean))


def our_results(rows: Sequence[ReportRow], losses: LossColumns) -> Results:
    """By label, in the order of `rows`."""

    def of_epochs(run: FinishedRun, name: str) -> float:
        combine, factor = EPOCH_MEASURES[name]
        return factor * combine([getattr(epoch, name) for epoch in run.metrics.epochs])

    values = {name: partial(of_epochs, name=name) for name in EPOCH_MEASURES}
    for i, key in enumerate(LOSSES):
        values[key] = partial(losses.value, column=i, name="validation_loss")
        values[f"unpadded {key}"] = partial(losses.value, column=i, name="validation_loss_unpadded")
    results = {}
    for row in rows:
        measures = {key: mean_over_runs(row.runs, value) for key, value in values.items()}
        measures["minutes"] = mean_minutes(row, minutes_of_epoch)
        results[row.label] = BatchingResult(row.label, measures, row.settings)
    return results


def by_name(rows: Sequence[ReportRow], results: Results) -> Results:
    """The results that stand for a batching's name."""
    return {name: results[row.label] for name, row in representatives(rows).items()}


def look_up(results: Results, name: str, key: str) -> MeanWithError:
    if name not in results:
        return MeanWithError(missing=f"not measured: no finished run of {name}")
    return results[name].measures[key]


def reduction(
    results: Results, before: str, after: str, key: str
) -> tuple[MeanWithError, MeanWithError]:
    """By how much, and how many per cent, `key` falls from one batching to another.

    Standard errors are those of a difference and a ratio of independent means.
    """
    a, b = look_up(results, before, key), look_up(results, after, key)
    missing = a.missing or b.missing
    if not missing:
        first, second = results[before], results[after]
        if unlike := differing(first.settings, second.settings):
            missing = (
                f"{first.label} and {second.label} differ in {', '.join(unlike)}, "
                "so they do not compare"
            )
        elif not a.mean:
            missing = f"there are no per cents of {before}'s 0"
    if missing:
        return MeanWithError(missing=missing), MeanWithError(missing=missing)
    runs, ratio, error, error_per_cent = min(a.num_runs, b.num_runs), b.mean / a.mean, None, None
    if a.standard_error is not None and b.standard_error is not None:
        error = math.hypot(a.standard_error, b.standard_error)
        error_per_cent = 100 * math.hypot(ratio * a.standard_error, b.standard_error) / a.mean
    return (
        MeanWithError(a.mean - b.mean, error, runs),
        MeanWithError(100 * (1 - ratio), error_per_cent, runs),
    )


def side_by_side(ours: Results, name: str, key: str) -> tuple[MeanWithError, MeanWithError]:
    """A number of a batching, published and ours."""
    return look_up(PAPER, name, key), look_up(ours, name, key)


def reductions(
    ours: Results, before: str, after: str, key: str
) -> list[tuple[MeanWithError, MeanWithError]]:
    """By how much, and how many per cent, `key` falls: of both the published figure and ours."""
    printed = PRINTED_CHANGES.get((before, after, key), (None, None))
    worked_out = reduction(PAPER, before, after, key)
    theirs = [
        change if number is None else MeanWithError(number)
        for number, change in zip(printed, worked_out, strict=True)
    ]
    return list(zip(theirs, reduction(ours, before, after, key), strict=True))


def minutes_decimals(results: Iterable[BatchingResult]) -> int:
    """Two as the paper, more where an epoch takes seconds, so that three digits are left."""
    least = min(result.measures["minutes"].mean for result in results)
    return max(2, min(6, 2 - math.floor(math.log10(least)))) if least > 0 else 2
