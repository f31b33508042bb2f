"""Differences between batchings, paired by seed, and what a study of learning adds to a report.

Runs with the same seed begin with the same weights, so seeds are the blocks of a randomised block
design, and values are compared as ratios:

    log value = effect of the batching + effect of the seed + chance

fitted by least squares to all runs of one corpus and as many epochs (two-way analysis of variance
without interaction; Montgomery, "Design and Analysis of Experiments", on randomised complete
blocks). The spread that chance makes is taken to be the same share of every batching's values, so
all runs together tell it. A change is tested by a two-sided t-test; several that are made together
share the 5 % by Holm's method (Holm 1979, "A simple sequentially rejective multiple test
procedure").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.stats import spearmanr, t
from statsmodels.stats.multitest import multipletests

from analysis import published
from analysis.report import BEST, RANDOMIZED, Column, Measured, Table, published_falls, texts
from analysis.runs import BATCHING, Runs
from analysis.survey import PARAMETERS, Surveyor

LEVEL = 0.05
ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)  # over that of a mean, of normally distributed values
PLANNED = 5  # epochs whose novelty and spread are averaged
POINTS_OF_GRACE = 5  # a saving that many points below the published one is called smaller
LOSS = "validation_loss_unpadded"
NOTHING: dict = {"ours": math.nan, "standard_error": math.nan, "runs": 0, "p": math.nan, "note": ""}


# ---------------------------------------------------------------------------- paired by seed


class SeedModel:
    """The fit of `values`, a DataFrame with `label`, `seed` and the positive `value` of each run;
    those without a value are left out."""

    def __init__(self, values: pd.DataFrame):
        values = values[values["value"] > 0]
        self.seeds = values.groupby("label")["seed"].agg(set)
        seeds = pd.get_dummies(values["seed"], drop_first=True, dtype=float)
        design = pd.get_dummies(values["label"], dtype=float).join(seeds)
        self.columns = design.columns
        self.fit = sm.OLS(np.log(values["value"]), design).fit() if len(design) else None

    def change(
        self, first: str, second: str, least_error: float = 0.0, shared_error: float = 0.0
    ) -> dict:
        """From one batching to another: `ours`, in per cent of the first, `standard_error`, `runs`
        (seeds that both have) and `p`; NaN for what no run can tell.

        Args:
            least_error: a standard error known from elsewhere, such as from repeated epochs, as a
                share of the ratio; the runs' own counts where it is larger.
            shared_error: one that all seeds share, so that the runs' own does not show it.
        """
        runs = len(self.seeds.get(first, set()) & self.seeds.get(second, set()))
        if not runs or self.fit is None:
            return NOTHING
        contrast = 1.0 * (self.columns == second) - (self.columns == first)
        log_ratio, freedom = float(contrast @ self.fit.params), self.fit.df_resid
        error, p = math.hypot(least_error, shared_error) or math.nan, math.nan
        if freedom >= 1:
            seen = self.fit.t_test(contrast).sd.item()
            error = math.hypot(max(seen, least_error), shared_error)
            p = float(abs(log_ratio) < 1e-9)  # of equal values, whose error is rounding alone
            if error > 1e-12:
                p = 2 * t.sf(abs(log_ratio) / error, freedom)
        per_cent = 100 * math.exp(log_ratio)
        found = {"ours": per_cent - 100, "standard_error": per_cent * error}
        return NOTHING | found | {"runs": runs, "p": p}


def changes(
    runs: Runs,
    values: pd.Series,
    pairs: Sequence[tuple[str, str]],
    shared_error: pd.Series | None = None,
    of_epochs: bool = False,
) -> pd.DataFrame:
    """[pairs] `SeedModel.change` of `values` between rows, p adjusted by Holm's method; nothing
    where a row is not there, or the two have other corpora, epochs or seeds.

    Args:
        shared_error: of each row, a standard error that all its seeds share, as a share.
        of_epochs: of times, whose errors are no smaller than their epochs tell.
    """
    kinds = runs.rows["corpus"] + ", " + runs.rows["epochs"]
    table = runs.table.assign(value=values)
    models = {kind: SeedModel(group) for kind, group in table.groupby(table["label"].map(kinds))}
    found = []
    for first, second in pairs:
        change = NOTHING | {"note": "not known with the same corpus, epochs and seeds"}
        if first == second:
            change = NOTHING
        elif (kind := kinds.get(first)) == kinds.get(second) and kind in models:
            shared = 0.0 if shared_error is None else math.hypot(*shared_error[[first, second]])
            least = _error_by_epochs(runs, first, second) if of_epochs and not shared else 0.0
            known = models[kind].change(first, second, least, shared)
            change = known if known["runs"] else change
        found.append(change)
    return _holm(found)


def _holm(found: Sequence[dict]) -> pd.DataFrame:
    """With `p` adjusted; NaN stays and counts for nothing."""
    frame = pd.DataFrame(found, columns=list(NOTHING))
    if (known := frame["p"].notna()).any():
        frame.loc[known, "p"] = multipletests(frame["p"][known], method="holm")[1]
    return frame


def _error_by_epochs(runs: Runs, first: str, second: str) -> float:
    """Standard error of the ratio of two rows' minutes because a run's epochs differ."""
    minutes = runs.epochs.groupby("run")["minutes"]
    shares = ERROR_OF_MEDIAN * minutes.sem().fillna(0) / minutes.median()
    table = runs.table.assign(square=shares**2)
    squares = table.pivot(index="seed", columns="label", values="square")
    of_seeds = (squares[first] + squares[second]).dropna()
    return math.sqrt(of_seeds.sum()) / max(1, len(of_seeds))


def p_text(p: float) -> str:
    if math.isnan(p):
        return ""
    return ("<0.001" if p < 0.001 else f"{p:.3f}") + "*" * (p < LEVEL)


# ---------------------------------------------------------------------------- equal budgets


def least_spent(runs: Runs, labels: Sequence[str], spent: str) -> float:
    """What the run that spends least has spent at its last validation.

    Args:
        spent: epoch, hours or updates, a column of `runs.epochs`.
    """
    validated = runs.epochs[runs.epochs["label"].isin(labels)].dropna(subset=LOSS)
    return float(validated.groupby("run")[spent].last().min())


def loss_at(runs: Runs, spent: str, budget: float | pd.Series) -> pd.Series:
    """[runs] unpadded validation loss once `spent` has reached `budget`, between two validations
    by a straight line; NaN where none lie on both sides."""
    budgets = pd.Series(budget, list(runs.found))
    losses = dict.fromkeys(runs.found, np.nan)
    for folder, epochs in runs.epochs.dropna(subset=LOSS).groupby("run"):
        x, wanted = epochs[spent].to_numpy(float), budgets[folder]
        if wanted <= x[-1] * (1 + 1e-12):  # but for rounding
            losses[str(folder)] = np.interp(wanted, x, epochs[LOSS], left=np.nan)
    return pd.Series(losses)


def error_at_equal_time(runs: Runs, hours: float) -> pd.Series:
    """[rows] standard error of the loss after `hours` because the hours are unsure, as a share:
    the mean over runs of how much higher the loss is one standard error of the timing before."""
    earlier = hours * (1 - runs.table["relative_error"])
    ratio = loss_at(runs, "hours", earlier) / loss_at(runs, "hours", hours)
    higher = ratio.map(math.log).abs()
    return higher.groupby(runs.table["label"]).mean().fillna(0)


def one_batch_size(runs: Runs) -> list[str]:
    """Rows that differ from RAND in nothing but the batching and its parameter."""
    base = runs.rows.loc["RAND" if "RAND" in runs.rows.index else runs.rows.index[0]].dropna()
    base = base.drop(["name", *BATCHING, *PARAMETERS.values()], errors="ignore")
    return list(runs.rows.index[(runs.rows[base.index] == base).all(axis=1)])


# ---------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class Finding:
    """A claim of the paper; a line for each pair of batchings, published and ours."""

    claim: str
    published: list[str]
    ours: list[str]
    verdict: str

    @property
    def kind(self) -> str:
        """holds, fails or open, for a colour."""
        if self.verdict.startswith(("contradicted", "mixed", "confirmed in part")):
            return "fails"
        return "holds" if self.verdict.startswith("confirmed") else "open"


_SEMI_SORTING, _RANDOMIZING, _DYNAMIC = (
    [pair[:2] for pair in pairs] for pairs in published.TABLE_4.values()
)
SHORTER = "Batches of clips of similar length shorten an epoch against random ones."
SAVING = f"{BEST} saves {published.TABLE_3[BEST][1]:.0f} % of an epoch's time against RAND."
LOWEST_LOSS = f"{BEST} has the lowest loss of all (VL3)."
CLAIMS = [  # that the quantity falls from the first to the second of each pair
    (SHORTER, "minutes", [("RAND", x) for x in ("SB-BR", "SSB-BR", "BKT-BR", "ATS-BR")]),
    ("Dynamic batch sizes (DBS) shorten it further.", "minutes", _DYNAMIC),
    (SAVING, "minutes", [("RAND", BEST)]),
    ("Batch randomization (BR) shortens it slightly.", "minutes", RANDOMIZED),
    ("Semi-sorting learns better than sorting (VL3).", "vl3", _SEMI_SORTING),
    ("Batch randomization lowers the loss (VL3).", "vl3", _RANDOMIZING),
    ("Dynamic batch sizes lower the loss (VL3).", "vl3", _DYNAMIC),
    (LOWEST_LOSS, "vl3", [(name, BEST) for name in published.TABLE_2 if name != BEST]),
]


def findings(measured: Measured) -> list[Finding]:
    """The paper's claims, each confirmed, contradicted or undecided by these runs; then what it
    calls potential: that its batching learns more than RAND in equal time and in equal updates."""
    runs, found = measured.runs, []
    for claim, key, pairs in CLAIMS:
        error = measured.error_of_timing if key == "minutes" else None
        ours = changes(runs, measured.values[key], pairs, error, of_epochs=key == "minutes")
        theirs = [
            f"{a} → {b}: {_signed(-fall)}"
            for (a, b), fall in zip(pairs, published_falls(key, pairs)["per_cent"], strict=True)
        ]
        found.append(Finding(claim, theirs, _lines(pairs, ours), verdict(claim, ours)))
    pair = ("RAND", BEST)
    labels = [label for label in pair if label in runs.rows.index] or list(runs.rows.index)
    for spent in ("hours", "updates"):
        ours, _ = _at_equal(runs, spent, [pair], labels)
        what = "time" if spent == "hours" else spent
        claim = f"After equal {what} {BEST} has a lower loss than RAND (unpadded)."
        found.append(
            Finding(claim, ["– (potentially)"], _lines([pair], ours), verdict(claim, ours))
        )
    return found


def _at_equal(
    runs: Runs, spent: str, pairs: Sequence[tuple[str, str]], labels: Sequence[str]
) -> tuple[pd.DataFrame, float]:
    """Changes of the loss once all have spent what the cheapest of `labels` has; and that."""
    budget = least_spent(runs, labels, spent)
    error = error_at_equal_time(runs, budget) if spent == "hours" else None
    return changes(runs, loss_at(runs, spent, budget), pairs, error), budget


def _lines(pairs: Sequence[tuple[str, str]], found: pd.DataFrame) -> list[str]:
    lines = []
    for (before, after), change in zip(pairs, found.to_dict("records"), strict=True):
        text, error = "– (not measured)", change["standard_error"]
        if change["runs"]:
            shown = "" if math.isnan(error) else f" ± {error:.2g}"
            tested = "one seed" if math.isnan(change["p"]) else f"p {p_text(change['p'])}"
            text = f"{_signed(change['ours'])}{shown}, {tested}"
        lines.append(f"{before} → {after}: {text}")
    return lines


def _signed(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−") + "\u00a0%"


def verdict(claim: str, found: pd.DataFrame) -> str:
    """Whether the changes bear out a claim that something falls."""
    known = found[found["runs"] > 0]
    lacking = len(found) - len(known)
    left_out = f" ({lacking} of {len(found)} not measured)" if lacking else ""
    fell = known["ours"] < 0
    if known.empty:
        return "not measured"
    if known["p"].isna().all():
        return f"not tested, one seed: {fell.sum()} of {len(known)} as the paper finds{left_out}"
    kinds = np.select([known["p"] >= LEVEL, fell], ["undecided", "confirmed"], "contradicted")
    counts = {kind: int((kinds == kind).sum()) for kind in sorted(set(kinds))}
    if claim == LOWEST_LOSS and set(counts) != {"confirmed"}:
        return ("contradicted" if "contradicted" in counts else "undecided") + left_out
    saving = published.TABLE_3[BEST][1] - POINTS_OF_GRACE
    if claim == SAVING and set(counts) == {"confirmed"} and -known["ours"].iloc[0] < saving:
        return "confirmed in part: an epoch is shorter, but by less"
    if len(counts) == 1:
        return kinds[0] + left_out
    counted = ", ".join(f"{kind} in {count}" for kind, count in counts.items())
    # A claim of which a part is undecided and none contradicted is not refuted.
    return ("mixed: " if "contradicted" in counts else "in part: ") + counted + left_out


# ---------------------------------------------------------------------------- tables


def study_tables(measured: Measured) -> list[Table]:
    """What a study adds: word error rates, changes paired by seed, follow-ups."""
    runs, values = measured.runs, measured.values
    hours, updates = (least_spent(runs, one_batch_size(runs), x) for x in ("hours", "updates"))
    last = runs.epochs.dropna(subset=LOSS).groupby("run")["epoch"].last()
    at_updates, heard = loss_at(runs, "updates", updates), values["word_error_rate"]
    everyone, names = list(runs.rows.index), [BEST, BEST.replace("SSB", "SSB-exp")]
    late, time = "unpadded loss, late third", f"at equal time, {60 * hours:.2f} minutes"
    learned = {"padded loss, late third": values["vl3"], late: values["unpadded vl3"]}
    at_equal = {
        "at equal epochs": loss_at(runs, "epoch", last),
        time: loss_at(runs, "hours", hours),
        f"at {updates:,.0f} updates": at_updates,
    }
    of_best = {
        late: values["unpadded vl3"],
        f"unpadded loss at {updates:,.0f} updates": at_updates,
        "word error rate": heard,
        "decoder steps per epoch": values["decoder_steps"],
    }
    errors = {time: error_at_equal_time(runs, hours)}
    bests = list(runs.rows.index[runs.rows["name"].isin(names)])
    return [
        _learning_table(measured),
        _paired_table("paired", measured, everyone, "RAND", learned | {"word error rate": heard}),
        _paired_table("equal_budgets", measured, everyone, "RAND", at_equal, errors),
        _paired_table("best", measured, bests, BEST, of_best),
        _small_batches_table(measured),
        _same_base_table(runs),
        _prediction_table(measured),
    ]


def _learning_table(measured: Measured) -> Table:
    """Word error rate and what it took."""
    columns = [
        Column("word error rate", 3, measured.summary("word_error_rate")),
        Column("minutes of training", 2, measured.summary("training_minutes")),
        Column("updates", 0, measured.summary("updates")),
    ]
    heard = [run.transcription for run in measured.runs.found.values() if run.transcription]
    seeds = measured.runs.table["label"].value_counts()
    lines = [(label, str(seeds[label])) for label in measured.runs.rows.index]
    rates = {(found.recordings, found.recordings_after_griffin_lim) for found in heard}
    counts = ", ".join(map(str, sorted({found.texts for found in heard})))
    facts = {"rates": sorted(rates), "texts": counts}
    return Table("learning", ("batching", "seeds"), lines, columns, facts)


def _with_p(heading: str, decimals: int, found: pd.DataFrame) -> list[Column]:
    return [Column(heading, decimals, found), Column("p", 0, texts(found["p"].map(p_text)))]


def _paired_table(
    key: str,
    measured: Measured,
    labels: list[str],
    base: str,
    quantities: dict[str, pd.Series],
    shared_errors: dict[str, pd.Series] | None = None,
) -> Table:
    """Mean, change against the row `base`, fitted to all runs, and p of each quantity."""
    runs, columns = measured.runs, []
    for name, values in quantities.items():
        compared = values
        if name == "word error rate":  # for ratios: at least that of half a wrong word
            heard = {f: r.transcription for f, r in runs.found.items() if r.transcription}
            words = {f: sum(len(x.text.split()) for x in h.transcripts) for f, h in heard.items()}
            compared = values.clip(lower=0.5 / pd.Series(words).clip(lower=1))
        pairs = [(base, label) for label in labels]
        found = changes(runs, compared, pairs, (shared_errors or {}).get(name))
        decimals = 0 if "decoder steps" in name else 3
        columns.append(Column(name, decimals, measured.summary(values).loc[labels]))
        columns += _with_p(f"against {base} (%)", 1, found)
    return Table(key, ("batching",), [(label,) for label in labels], columns)


def _by_batch_size(runs: Runs, name: str) -> pd.Series:
    """Labels of the rows that differ from `name` in nothing but the base batch size, by size."""
    if name not in runs.rows.index:
        return pd.Series(dtype=object)
    settings = runs.rows.drop(columns="batch_size").fillna("")
    alike = runs.rows["batch_size"][(settings == settings.loc[name]).all(axis=1)].astype(int)
    return pd.Series(alike.index, alike).sort_index()


def _small_batches_table(measured: Measured) -> Table:
    """What Gonzalez et al. look at: the same batching with smaller batches."""
    sizes = {name: _by_batch_size(measured.runs, name) for name in ("RAND", BEST)}
    labels = [label for of_name in sizes.values() for label in of_name]
    lines = [(name, str(size)) for name, of_name in sizes.items() for size in of_name.index]
    shown = (
        ("unpadded loss, late third", 3, "unpadded vl3"),
        ("word error rate", 3, "word_error_rate"),
        ("minutes per epoch", 3, "minutes"),
        ("updates per epoch", 1, "num_batches"),
        ("ZPR (%)", 2, "zero_padding_rate"),
    )
    columns = [Column(h, decimals, measured.lines(key, labels)) for h, decimals, key in shown]
    return Table("small_batches", ("batching", "base batch size"), lines, columns)


def _same_base_table(runs: Runs) -> Table:
    """SSB-DBS-BR against RAND with the same base batch size, at what the cheaper has spent."""
    both = pd.concat([_by_batch_size(runs, name) for name in ("RAND", BEST)], axis=1).dropna()
    columns = []
    for what, spent, factor, decimals in (
        ("epochs", "epoch", 1, 0),
        ("minutes", "hours", 60, 2),
        ("updates", "updates", 1, 0),
    ):
        pairs = list(both.itertuples(index=False, name=None))
        found = [_at_equal(runs, spent, [pair], pair) for pair in pairs]
        least = pd.DataFrame({"ours": [factor * budget for _, budget in found], "runs": 0})
        columns.append(Column(what, decimals, least))
        changed = _holm([change for frame, _ in found for change in frame.to_dict("records")])
        columns += _with_p(f"change at equal {what} (%)", 1, changed)
    return Table("same_base", ("base batch size",), [(str(size),) for size in both.index], columns)


# ---------------------------------------------------------------------------- novelty and spread


def mixing(runs: Runs) -> pd.DataFrame:
    """[rows] novelty and spread of the batches, from plans of the clips; of the rows with one base
    batch size and learning rate."""
    found = {}
    for label in one_batch_size(runs):
        run = runs.first(label)
        h = run.hparams
        names = ["dynamic_batch_size", PARAMETERS.get(h.batching_strategy)]
        names += ["batch_capacity"] * h.dynamic_batch_size
        options = {name: getattr(h, name) for name in names if name}
        surveyor = Surveyor(run.lengths)
        survey = surveyor.survey(h.batch_size, h.batching_strategy, epochs=PLANNED, **options)
        found[label] = {"novelty": survey.novelty, "spread": survey.spread}
    return pd.DataFrame(found).T


def outcomes(measured: Measured) -> dict[str, pd.DataFrame]:
    """Summaries of what novelty and spread might predict, of the same rows."""
    labels = one_batch_size(measured.runs)
    updates = least_spent(measured.runs, labels, "updates")
    at_updates = measured.summary(loss_at(measured.runs, "updates", updates))
    return {
        f"unpadded loss at {updates:,.0f} updates": at_updates.loc[labels],
        "word error rate at the end": measured.summary("word_error_rate").loc[labels],
    }


def _prediction_table(measured: Measured) -> Table:
    """Spearman's rank correlation of novelty and spread with what was learnt."""
    lines, found = [], []
    for measure, values in mixing(measured.runs).items():
        for outcome, summary in outcomes(measured).items():
            both = pd.DataFrame({"x": values, "y": summary["ours"]}).dropna()
            lines.append((str(measure), outcome, str(len(both))))
            found.append(NOTHING | {"note": "fewer than four experiments, or all alike"})
            if len(both) >= 4 and both.nunique().min() > 1:
                rho, p = spearmanr(both["x"], both["y"])
                found[-1] = NOTHING | {"ours": rho, "runs": len(both), "p": p}
    columns = _with_p("Spearman's rank correlation", 2, _holm(found))
    return Table("prediction", ("measure", "outcome", "experiments"), lines, columns)
