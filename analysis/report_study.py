"""What a study of learning adds to a report: runs with several seeds whose speech was heard.

Every figure is worked out from the runs. Changes are paired by seed; analysis/paired.py has the
test.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from scipy.stats import spearmanr

from analysis import published
from analysis.paired import LEVEL, Change, SeedModel, by_seed, holm
from analysis.report_figures import hours_spent, updates_made
from analysis.report_findings import (
    BEST,
    CLAIMS,
    LOWEST_LOSS,
    POINTS_OF_GRACE,
    SAVING,
    Claim,
    Finding,
)
from analysis.report_measures import (
    LossColumns,
    MeanWithError,
    error_of_timing,
    mean_minutes,
    mean_over_runs,
    minutes_of_epoch,
    reductions,
)
from analysis.report_runs import BATCHING, FinishedRun, ReportRow, representatives
from analysis.report_tables import ReportTable, TableColumn
from analysis.strategies import PARAMETERS
from analysis.survey import Survey, Surveyor

ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)  # over that of a mean, of normally distributed values
PLANNED = 5  # epochs whose novelty and spread are averaged
Value = Callable[[FinishedRun], float]
Mean = Callable[[ReportRow], MeanWithError]
TEST = (
    "Of each quantity: its mean ± standard error over the batching's own seeds; the change in per "
    "cent ± standard error, and p. Changes are fitted to all runs as log value = batching + seed + "
    "chance, what chance makes being one share of all; p is that of a two-sided t-test, adjusted "
    f"by Holm's method over the rows of a column; * beyond chance at {LEVEL:.0%}. A larger p is no "
    "proof of equality."
)


def is_study(rows: Sequence[ReportRow]) -> bool:
    """Whether a recogniser has heard any of the runs."""
    return any(run.intelligibility for row in rows for run in row.runs)


# ---------------------------------------------------------------------------- values of a run


def word_error_rate_of(run: FinishedRun) -> float:
    """Of the unseen texts at the end; LookupError where nobody listened."""
    if run.intelligibility is None:
        raise LookupError("was not listened to")
    return run.intelligibility.word_error_rate


def word_error_rate_above_0(run: FinishedRun) -> float:
    """The same for ratios: at least that of half a wrong word."""
    rate = word_error_rate_of(run)
    words = sum(len(transcript.text.split()) for transcript in run.intelligibility.transcripts)
    return max(rate, 0.5 / max(words, 1))


def error_by_epochs(run: FinishedRun) -> float:
    """Standard error of a run's own `minutes_of_epoch`, as a share of it: by how much its epochs
    differ."""
    minutes = run.minutes_of_epochs
    if len(minutes) < 2:
        return 0.0
    error = ERROR_OF_MEDIAN * statistics.stdev(minutes) / math.sqrt(len(minutes))
    return error / statistics.median(minutes)


def loss_at(run: FinishedRun, spent: Callable[[FinishedRun], np.ndarray], budget: float) -> float:
    """Validation loss without padding once `spent` has reached `budget`, between two validations
    by a straight line.

    Args:
        spent: what the run has spent until the end of every epoch, [epochs].

    Raises:
        LookupError: if no validations lie on both sides of it.
    """
    found = run.metrics.validations
    x = spent(run)[[validation.epoch - 1 for validation in found]]
    if not (len(x) and x[0] <= budget <= x[-1] * (1 + 1e-12)):
        raise LookupError(f"has no validations before and after {budget:g}")
    return float(np.interp(budget, x, [v.validation_loss_unpadded for v in found]))


def error_at_equal_time(row: ReportRow, hours: float) -> float:
    """Standard error of the loss after `hours` because the hours are unsure, as a share of it: the
    mean over runs of how much higher the loss is one standard error of the timing before."""
    share = error_of_timing(row)
    changes = []
    for run in row.runs:
        try:
            losses = [loss_at(run, hours_spent, hours * part) for part in (1 - share, 1.0)]
        except LookupError:
            continue
        changes.append(abs(math.log(losses[0] / losses[1])))
    return statistics.fmean(changes) if changes else 0.0


def epochs_trained(run: FinishedRun) -> np.ndarray:
    """1, 2, ...: [epochs]."""
    return np.arange(1.0, len(run.metrics.epochs) + 1)


def least_spent(rows: Sequence[ReportRow], spent: Callable[[FinishedRun], np.ndarray]) -> float:
    """What the run that spends least has spent at its last validation."""
    return min(
        float(spent(run)[run.metrics.validations[-1].epoch - 1])
        for row in rows
        for run in row.runs
        if run.metrics.validations
    )


# ---------------------------------------------------------------------------- tables


def study_tables(rows: Sequence[ReportRow], losses: LossColumns) -> list[ReportTable]:
    """The tables of a study; every experiment is a row."""
    return [
        _learning_table(rows),
        *_paired_tables(rows, losses),
        _best_table(rows, losses),
        _small_batches_table(rows, losses),
        _same_base_table(rows),
        _foretelling_table(rows),
    ]


def _learning_table(rows: Sequence[ReportRow]) -> ReportTable:
    """Word error rate and what it took."""
    values: list[tuple[TableColumn, Mean]] = [
        (_column("word error rate", 3), _over_runs(word_error_rate_of)),
        (
            _column("minutes of training", 2),
            partial(mean_minutes, minutes=lambda run: 60 * hours_spent(run)[-1]),
        ),
        (_column("updates", 0), _over_runs(lambda run: float(updates_made(run)[-1]))),
    ]
    lines = [
        ((row.label, str(len(row.runs))), [("", mean(row)) for _, mean in values]) for row in rows
    ]
    return ReportTable(
        "learning",
        "What a recogniser understands at the end",
        ("batching", "seeds"),
        tuple(column for column, _ in values),
        lines,
        _of_the_recordings(rows),
    )


def _over_runs(value: Value) -> Mean:
    return lambda row: mean_over_runs(row.runs, value)


def _of_the_recordings(rows: Sequence[ReportRow]) -> str:
    heard = [run.intelligibility for row in rows for run in row.runs if run.intelligibility]
    texts = ", ".join(map(str, sorted({found.texts for found in heard})))
    rates = dict.fromkeys((h.recordings, h.recordings_after_griffin_lim) for h in heard)
    of_recordings = "; ".join(
        f"{recordings:.3f}, after mel and Griffin-Lim {rebuilt:.3f}"
        for recordings, rebuilt in rates
    )
    return (
        f"Word error rate of {texts} texts that no training has seen, spoken by each run's last "
        "checkpoint and taken down by pocketsphinx. The recogniser's rate of the recordings "
        f"themselves: {of_recordings}."
    )


def _paired_tables(rows: Sequence[ReportRow], losses: LossColumns) -> list[ReportTable]:
    """Every experiment against RAND, with one test a quantity."""
    alike = one_batch_size(rows)  # batches twice the size would halve what all are compared at
    time, updates = (least_spent(alike, spent) for spent in (hours_spent, updates_made))
    late = partial(losses.value, column=2, name="validation_loss")
    quantities: dict[str, tuple[Value, Value]] = {
        "padded loss, late third": (late, late),
        "unpadded loss, late third": (partial(late, name="validation_loss_unpadded"),) * 2,
        "word error rate": (word_error_rate_of, word_error_rate_above_0),
    }
    last: Value = lambda run: run.metrics.validations[-1].validation_loss_unpadded  # noqa: E731
    at_time = f"at equal time, {60 * time:.2f} minutes"
    spent_alike: dict[str, tuple[Value, Value]] = {
        "at equal epochs": (last, last),
        at_time: (partial(_at, hours_spent, time),) * 2,
        f"at {updates:,.0f} updates": (partial(_at, updates_made, updates),) * 2,
    }
    return [
        _paired_table(
            rows, rows, "RAND", quantities, "paired", "Learning against RAND, paired by seed", TEST
        ),
        _paired_table(
            rows,
            rows,
            "RAND",
            spent_alike,
            "equal_budgets",
            "Unpadded validation loss against RAND at equal epochs, time and updates",
            "Losses are read from the validations by straight lines, at what the cheapest run of "
            "RAND's base batch size has spent at its end; – where a run spent less. Errors at "
            f"equal time have that of the timing in them. {TEST}",
            {at_time: partial(error_at_equal_time, hours=time)},
        ),
    ]


def _best_table(rows: Sequence[ReportRow], losses: LossColumns) -> ReportTable:
    """SSB-DBS-BR with other settings, and with the exponential noise, against SSB-DBS-BR."""
    names = {BEST, BEST.replace("SSB", "SSB-exp")}
    shown = [row for row in rows if row.name in names]
    updates = least_spent(one_batch_size(rows), updates_made)
    late = partial(losses.value, column=2, name="validation_loss_unpadded")
    quantities: dict[str, tuple[Value, Value]] = {
        "unpadded loss, late third": (late, late),
        f"unpadded loss at {updates:,.0f} updates": (partial(_at, updates_made, updates),) * 2,
        "word error rate": (word_error_rate_of, word_error_rate_above_0),
        "decoder steps per epoch": (_mean_of_epochs("decoder_steps"),) * 2,
    }
    title = f"{BEST} with other settings, and with the exponential noise"
    return _paired_table(rows, shown, BEST, quantities, "best", title, TEST)


def _at(spent: Callable, budget: float, run: FinishedRun) -> float:
    return loss_at(run, spent, budget)


def _paired_table(
    rows: Sequence[ReportRow],
    shown_rows: Sequence[ReportRow],
    base_name: str,
    quantities: dict[str, tuple[Value, Value]],
    key: str,
    title: str,
    note: str,
    errors: Mapping[str, Callable[[ReportRow], float]] = MappingProxyType({}),
) -> ReportTable:
    """Mean, change against a batching and p of each quantity (to show, and to take ratios of).
    Changes are fitted to all `rows`; `shown_rows` are in the table; `errors` are those that all
    seeds of a row share."""
    base = representatives(rows).get(base_name)
    cells: list[list] = [[] for _ in shown_rows]
    columns = []
    for name, (shown, compared) in quantities.items():
        decimals = 0 if "decoder steps" in name else 3
        columns.append(_column(name, decimals))
        columns += [_column(f"against {base_name} (%)", 1), _column("p", 0)]
        changes = _Changes(rows, compared, errors.get(name, _no_error))
        found = [None if row is base else changes.between(base, row) for row in shown_rows]
        adjusted = holm([change.p_value if change else None for change in found])
        for line, row, change, p_value in zip(cells, shown_rows, found, adjusted, strict=True):
            line += [mean_over_runs(row.runs, shown), _as_cell(change, row is base, base_name)]
            line.append(_p_cell(p_value))
    lines = [
        ((row.label,), [("", cell) for cell in line])
        for row, line in zip(shown_rows, cells, strict=True)
    ]
    return ReportTable(key, title, ("batching",), tuple(columns), lines, note)


def _no_error(row: ReportRow) -> float:
    return 0.0


class _Changes:
    """Changes of a quantity between batchings, fitted to all runs of a corpus and its epochs.

    Args:
        shared_error: a row's standard error that all its seeds share, as a share of the value.
    """

    def __init__(
        self,
        rows: Sequence[ReportRow],
        value: Value,
        shared_error: Callable[[ReportRow], float] = _no_error,
    ):
        self._shared_error = shared_error
        self._rows, self._values = rows, [by_seed(row.runs, value) for row in rows]
        self._models: dict[tuple, SeedModel] = {}

    def between(
        self, first: ReportRow | None, second: ReportRow | None, least_error: float = 0.0
    ) -> Change | None:
        """None where one is missing, or they share no corpus, epochs or seeds."""
        if (
            first is None
            or second is None
            or _corpus_and_epochs(first) != _corpus_and_epochs(second)
        ):
            return None
        group = _corpus_and_epochs(first)
        alike = [place for place, row in enumerate(self._rows) if _corpus_and_epochs(row) == group]
        if group not in self._models:
            self._models[group] = SeedModel([self._values[place] for place in alike])
        places = [
            next(nth for nth, place in enumerate(alike) if self._rows[place] is row)
            for row in (first, second)
        ]
        further_error = math.hypot(self._shared_error(first), self._shared_error(second))
        return self._models[group].change(*places, least_error, further_error)


def _corpus_and_epochs(row: ReportRow) -> tuple:
    return row.settings["corpus"], row.settings["epochs"]


def _as_cell(change: Change | None, is_base: bool, base_name: str):
    if change is not None:
        return MeanWithError(change.mean, change.standard_error, change.num_seeds)
    if is_base:
        return ""
    missing = f"not known of it and {base_name} with the same corpus, epochs and seeds"
    return MeanWithError(missing=missing)


def _p_cell(p_value: float | None) -> str:
    if p_value is None:
        return ""
    return ("<0.001" if p_value < 0.001 else f"{p_value:.3f}") + "*" * (p_value < LEVEL)


def _column(heading: str, decimals: int) -> TableColumn:
    return TableColumn(heading, decimals, False)


def _differs_only_in(row: ReportRow, base: ReportRow, name: str) -> bool:
    """Whether the rows have the same name, and the same settings but for one."""
    same = row.name == base.name and row.settings.keys() == base.settings.keys()
    return same and all(row.settings[n] == base.settings[n] for n in base.settings if n != name)


def _by_batch_size(rows: Sequence[ReportRow], name: str) -> list[ReportRow]:
    """Rows of a batching that differ in nothing but the base batch size, in its order."""
    base = representatives(rows).get(name)
    alike = [row for row in rows if base and _differs_only_in(row, base, "batch_size")]
    return sorted(alike, key=lambda row: row.settings["batch_size"])


def _small_batches_table(rows: Sequence[ReportRow], losses: LossColumns) -> ReportTable:
    """What Gonzalez et al. look at: the same batching with smaller batches."""
    sizes = [row for name in ("RAND", BEST) for row in _by_batch_size(rows, name)]
    late = partial(losses.value, column=2, name="validation_loss_unpadded")
    padding: Value = lambda run: 100 * _mean_of_epochs("zero_padding_rate")(run)  # noqa: E731
    values: list[tuple[TableColumn, Mean]] = [
        (_column("unpadded loss, late third", 3), _over_runs(late)),
        (_column("word error rate", 3), _over_runs(word_error_rate_of)),
        (_column("minutes per epoch", 3), partial(mean_minutes, minutes=minutes_of_epoch)),
        (_column("updates per epoch", 1), _over_runs(_mean_of_epochs("num_batches"))),
        (_column("ZPR (%)", 2), _over_runs(padding)),
    ]
    lines = [
        (
            (row.name, str(row.settings["batch_size"])),
            [("", mean(row)) for _, mean in values],
        )
        for row in sizes
    ]
    return ReportTable(
        "small_batches",
        "Smaller batches",
        ("batching", "base batch size"),
        tuple(column for column, _ in values),
        lines,
        "Gonzalez et al. (ICASSP 2023) find that learning depends on the batch size and that "
        "random batches pay for large ones with padding. All have the same learning rate and "
        "epochs, so smaller batches make more updates.",
    )


def _same_base_table(rows: Sequence[ReportRow]) -> ReportTable:
    """SSB-DBS-BR against RAND with the same base batch size, at what the cheaper has spent."""
    best = {row.settings["batch_size"]: row for row in _by_batch_size(rows, BEST)}
    pairs = [
        (rand, best[rand.settings["batch_size"]])
        for rand in _by_batch_size(rows, "RAND")
        if rand.settings["batch_size"] in best
    ]
    cells: list[list] = [[] for _ in pairs]
    columns = []
    for what, spent in (
        ("epochs", epochs_trained),
        ("minutes", hours_spent),
        ("updates", updates_made),
    ):
        factor, decimals = {"minutes": (60, 2)}.get(what, (1, 0))
        columns += [
            _column(what, decimals),
            _column(f"change at equal {what} (%)", 1),
            _column("p", 0),
        ]
        found = []
        for line, pair in zip(cells, pairs, strict=True):
            budget = least_spent(pair, spent)
            line.append(MeanWithError(factor * budget))
            found.append(_changes_at(rows, spent, budget).between(*pair))
        adjusted = holm([change.p_value if change else None for change in found])
        for line, change, p_value in zip(cells, found, adjusted, strict=True):
            line += [_as_cell(change, False, "RAND"), _p_cell(p_value)]
    return ReportTable(
        "same_base",
        f"Unpadded validation loss of {BEST} against RAND with the same base batch size",
        ("base batch size",),
        tuple(columns),
        [
            ((str(rand.settings["batch_size"]),), [("", cell) for cell in line])
            for (rand, _), line in zip(pairs, cells, strict=True)
        ],
        f"At what the cheaper of the two has spent at its end; negative where {BEST} has the lower "
        "loss. Fitted and tested as above, adjusted over the rows of a column.",
    )


def _mean_of_epochs(name: str) -> Value:
    return lambda run: statistics.fmean(getattr(epoch, name) for epoch in run.metrics.epochs)


# ---------------------------------------------------------------------------- novelty and spread

MEASURES = ("novelty", "spread")


def mixing(rows: Sequence[ReportRow]) -> list[Survey]:
    """How every row's batches mix the clips, from plans of its corpus, in the order of `rows`."""
    surveyors: dict[bytes, Surveyor] = {}
    surveys = []
    for row in rows:
        run = row.runs[0]
        h, key = run.hparams, run.lengths.tobytes()
        surveyor = surveyors.setdefault(key, Surveyor(run.lengths))
        options = {"dynamic_batch_size": h.dynamic_batch_size}
        if h.dynamic_batch_size:
            options["batch_capacity"] = h.batch_capacity
        if name := PARAMETERS.get(h.batching_strategy):
            options[name] = getattr(h, name)
        surveys.append(
            surveyor.survey(h.batch_size, h.batching_strategy, epochs=PLANNED, **options)
        )
    return surveys


def outcomes(rows: Sequence[ReportRow]) -> dict[str, list[MeanWithError]]:
    """What novelty and spread might foretell, of every row."""
    updates = least_spent(rows, updates_made)
    at_updates = partial(_at, updates_made, updates)
    return {
        f"unpadded loss at {updates:,.0f} updates": [
            mean_over_runs(row.runs, at_updates) for row in rows
        ],
        "word error rate at the end": [
            mean_over_runs(row.runs, word_error_rate_of) for row in rows
        ],
    }


def one_batch_size(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Rows that differ from RAND in nothing but the batching and its parameter: novelty and spread
    are compared between batches of one base size and learning rate."""
    base = representatives(rows)
    allowed = {*BATCHING, *PARAMETERS.values()}
    first = base.get("RAND", rows[0])
    shared = first.settings.keys() - allowed
    return [
        row
        for row in rows
        if all(row.settings.get(name) == first.settings[name] for name in shared)
    ]


def _foretelling_table(rows: Sequence[ReportRow]) -> ReportTable:
    """Spearman's rank correlation of novelty and spread with what was learnt."""
    compared = one_batch_size(rows)
    surveys = mixing(compared)
    lines, p_values = [], []
    for measure in MEASURES:
        for outcome, found in outcomes(compared).items():
            pairs = [
                (getattr(survey, measure), mean.mean)
                for survey, mean in zip(surveys, found, strict=True)
                if mean.mean is not None and not math.isnan(getattr(survey, measure))
            ]
            rho, p_value = rank_correlation(pairs)
            p_values.append(p_value)
            lines.append(((measure, outcome, str(len(pairs))), rho))
    return ReportTable(
        "foretelling",
        "Do novelty and spread foretell learning?",
        ("measure", "outcome", "experiments"),
        (_column("Spearman's rank correlation", 2), _column("p", 0)),
        [
            (labels, [("", rho), ("", _p_cell(p))])
            for (labels, rho), p in zip(lines, holm(p_values), strict=True)
        ],
        "Over the experiments with one base batch size and learning rate. Novelty: share of the "
        "pairs in a batch that were in different batches an epoch before; spread: 0 as in sorted "
        "batches, 1 as in random ones. Both are those of compare_batching.py. A negative "
        "correlation means that more mixing goes with a lower loss or rate; p by Holm's method "
        "over the rows.",
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> tuple[MeanWithError, float | None]:
    """Spearman's coefficient and its p-value; missing for fewer than four pairs or equal values."""
    if len(pairs) < 4:
        return MeanWithError(missing="fewer than four experiments"), None
    columns = list(zip(*pairs, strict=True))
    if any(len(set(column)) == 1 for column in columns):
        return MeanWithError(missing="all experiments are alike"), None
    found = spearmanr(*columns)
    return MeanWithError(float(found.statistic), None, len(pairs)), float(found.pvalue)


# ---------------------------------------------------------------------------- findings


def study_findings(rows: Sequence[ReportRow], losses: LossColumns) -> list[Finding]:
    """The paper's claims, each confirmed, contradicted or undecided at this scale; then what it
    calls potential: that its batching learns more than RAND in equal time and in equal updates."""
    chosen = representatives(rows)
    vl3: Value = partial(losses.value, column=2, name="validation_loss")
    found = []
    changes_by_key = {
        "minutes": _Changes(rows, minutes_of_epoch, error_of_timing),
        "vl3": _Changes(rows, vl3),
    }
    for claim in CLAIMS:
        key = "minutes" if claim.key == "minutes" else "vl3"
        changes = [_change_of_pair(chosen, pair, changes_by_key[key], key) for pair in claim.pairs]
        published_lines = [_published(*pair, claim.key) for pair in claim.pairs]
        found.append(_finding(claim, published_lines, changes))
    for what, spent in (("time", hours_spent), ("updates", updates_made)):
        pair = ("RAND", BEST)
        budget = least_spent([chosen[name] for name in pair if name in chosen] or rows, spent)
        text = f"After equal {what} {BEST} has a lower loss than RAND (unpadded)."
        change = _change_of_pair(chosen, pair, _changes_at(rows, spent, budget), "vl3")
        found.append(_finding(Claim(text, [pair], "vl3"), ["– (potentially)"], [change]))
    return found


def _changes_at(rows: Sequence[ReportRow], spent: Callable, budget: float) -> _Changes:
    """Of the loss at what was spent."""
    error = partial(error_at_equal_time, hours=budget) if spent is hours_spent else _no_error
    return _Changes(rows, partial(_at, spent, budget), error)


def _change_of_pair(
    chosen: dict[str, ReportRow], pair: tuple[str, str], changes: _Changes, key: str
) -> Change | None:
    """None where it is not measured. Of the runs' own times, no error is smaller than that by how
    much epochs differ."""
    first, second = (chosen.get(name) for name in pair)
    least_error = 0.0
    if key == "minutes" and first and second and not any(map(error_of_timing, (first, second))):
        of_first, of_second = (by_seed(row.runs, error_by_epochs) for row in (first, second))
        if seeds := of_first.keys() & of_second.keys():
            squares = [of_first[seed] ** 2 + of_second[seed] ** 2 for seed in seeds]
            least_error = math.sqrt(sum(squares)) / len(squares)
    return changes.between(first, second, least_error)


def _published(before: str, after: str, key: str) -> str:
    fall, _ = reductions({}, before, after, key)[1]
    return f"{before} → {after}: {_signed(-fall.mean)}"


def _signed(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−") + "\u00a0%"


def _finding(claim: Claim, published_lines: list[str], changes: list) -> Finding:
    adjusted = holm([change.p_value if change else None for change in changes])
    lines, verdicts = [], []
    for (before, after), change, p_value in zip(claim.pairs, changes, adjusted, strict=True):
        if change is None:
            lines.append(f"{before} → {after}: – (not measured)")
            continue
        error = "" if change.standard_error is None else f" ± {change.standard_error:.2g}"
        tested = "one seed" if p_value is None else f"p {_p_cell(p_value)}"
        lines.append(f"{before} → {after}: {_signed(change.mean)}{error}, {tested}")
        verdicts.append(_verdict_of_pair(change, p_value))
    return Finding(claim.text, published_lines, lines, _verdict(claim, verdicts, changes))


def _verdict_of_pair(change: Change, p_value: float | None) -> str:
    if p_value is None or p_value >= LEVEL:
        return "undecided"
    return "confirmed" if change.mean < 0 else "contradicted"


def _verdict(claim: Claim, verdicts: list[str], changes: list[Change | None]) -> str:
    if not verdicts:
        return "not measured"
    lacking = len(claim.pairs) - len(verdicts)
    left_out = f" ({lacking} of {len(claim.pairs)} not measured)" if lacking else ""
    if claim.text == LOWEST_LOSS.text:  # lower than every other, or not the lowest
        verdict = "contradicted" if "contradicted" in verdicts else "undecided"
        return ("confirmed" if set(verdicts) == {"confirmed"} else verdict) + left_out
    if claim.text == SAVING.text and verdicts == ["confirmed"]:
        published_saving = published.TABLE_3[BEST][1]
        if -changes[0].mean < published_saving - POINTS_OF_GRACE:
            return "confirmed in part: an epoch is shorter, but by less"
    if len(set(verdicts)) == 1:
        return verdicts[0] + left_out
    kinds = ("confirmed", "contradicted", "undecided")
    counted = ", ".join(f"{kind} in {verdicts.count(kind)}" for kind in kinds if kind in verdicts)
    # A claim of which a part is undecided and none contradicted is not refuted.
    return ("mixed: " if "contradicted" in verdicts else "in part: ") + counted + left_out
