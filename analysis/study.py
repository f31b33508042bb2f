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
from analysis.report import (
    BEST,
    PAPER,
    RANDOMIZED,
    Column,
    Losses,
    Table,
    error_of_timing,
    published_falls,
    summarize,
)
from analysis.runs import BATCHING, Runs
from analysis.strategies import PARAMETERS
from analysis.survey import Surveyor

LEVEL = 0.05
ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)  # over that of a mean, of normally distributed values
PLANNED = 5  # epochs whose novelty and spread are averaged
POINTS_OF_GRACE = 5  # a saving that many points below the published one is called smaller
LOSS = "validation_loss_unpadded"
MEASURES = ("novelty", "spread")
TEST = (
    "Of each quantity: its mean ± standard error over the batching's own seeds; the change in per "
    "cent ± standard error, and p. Changes are fitted to all runs as log value = batching + seed + "
    "chance, what chance makes being one share of all; p is that of a two-sided t-test, adjusted "
    f"by Holm's method over the rows of a column; * beyond chance at {LEVEL:.0%}. A larger p is no "
    "proof of equality."
)
TESTED = (
    "Changes are paired by seed, and fitted to the runs of all batchings: log value = batching + "
    "seed + chance. A claim is confirmed or contradicted where the change is beyond chance: "
    f"two-sided t-test at {LEVEL:.0%}, adjusted by Holm's method over the pairs of the claim; one "
    "seed tests nothing. Minutes of an epoch are of steps timed in turns where benchmarks/epoch.py "
    "--runs did so, else the runs' own; to their standard error that of the timing is added, or it "
    "is no smaller than that of the median of a run's epochs. Three to five seeds see only large "
    "effects: what is undecided may still be true."
)


# ---------------------------------------------------------------------------- paired by seed


class SeedModel:
    """The fit of `values`, a DataFrame with `label`, `seed` and the positive `value` of each run;
    those without a value are left out."""

    def __init__(self, values: pd.DataFrame):
        self.values = values.dropna()
        design = pd.get_dummies(self.values[["label", "seed"]].astype(str), dtype=float)
        self.columns, self.fit = design.columns, None
        if len(design):
            self.fit = sm.OLS(np.log(self.values["value"].astype(float)), design).fit()

    def change(
        self, first: str, second: str, least_error: float = 0.0, shared_error: float = 0.0
    ) -> dict[str, float]:
        """From one batching to another: `ours`, in per cent of the first, `standard_error`, `runs`
        (seeds that both have) and `p`; not-a-number what no run can tell.

        Args:
            least_error: a standard error known from elsewhere, such as from repeated epochs, as a
                share of the ratio; the runs' own counts where it is larger.
            shared_error: one that all seeds share, so that the runs' own does not show it.
        """
        seeds = self.values.groupby("label")["seed"].agg(set)
        runs = len(seeds.get(first, set()) & seeds.get(second, set()))
        if not runs:
            return {"ours": math.nan, "standard_error": math.nan, "runs": 0, "p": math.nan}
        contrast = 1.0 * (self.columns == f"label_{second}") - (self.columns == f"label_{first}")
        log_ratio, freedom = float(contrast @ self.fit.params), self.fit.df_resid
        error, p = math.hypot(least_error, shared_error), math.nan
        if freedom >= 1:
            seen = self.fit.t_test(contrast).sd.item()
            error = math.hypot(max(seen, least_error), shared_error)
            p = float(abs(log_ratio) < 1e-9)  # of equal values, whose error is rounding alone
            if error > 1e-12:
                p = 2 * t.sf(abs(log_ratio) / error, freedom)
        error *= 100 * math.exp(log_ratio)
        error = error if error or freedom >= 1 else math.nan
        return {"ours": 100 * math.expm1(log_ratio), "standard_error": error, "runs": runs, "p": p}


def changes(
    runs: Runs,
    values: pd.Series,
    pairs: Sequence[tuple[str | None, str | None]],
    shared_error: pd.Series | None = None,
    of_epochs: bool = False,
) -> pd.DataFrame:
    """[pairs] `SeedModel.change` of `values` between labels, p adjusted by Holm's method; nothing
    where a label is None, or the two have other corpora, epochs or seeds.

    Args:
        shared_error: of each label, a standard error that all its seeds share, as a share.
        of_epochs: of times, whose errors are no smaller than their epochs tell.
    """
    table = runs.table[["label", "seed"]].assign(value=values)
    kinds = runs.rows["corpus"] + runs.rows["epochs"]
    kind_of_run = runs.table["label"].map(kinds)
    models = {kind: SeedModel(table[kind_of_run == kind]) for kind in set(kinds)}
    found = []
    for first, second in pairs:
        if None in (first, second) or first == second or kinds[first] != kinds[second]:
            found.append({"ours": math.nan, "standard_error": math.nan, "runs": 0, "p": math.nan})
            continue
        shared = 0.0
        if shared_error is not None:
            shared = math.hypot(shared_error[first], shared_error[second])
        least = _error_by_epochs(runs, first, second) if of_epochs and not shared else 0.0
        found.append(models[kinds[first]].change(first, second, least, shared))
    frame = pd.DataFrame(found, columns=["ours", "standard_error", "runs", "p"])
    if (known := frame["p"].notna()).any():
        frame.loc[known, "p"] = multipletests(frame["p"][known], method="holm")[1]
    note = "not known with the same corpus, epochs and seeds as the other"
    return frame.assign(note=np.where(frame["runs"] == 0, note, ""))


def _error_by_epochs(runs: Runs, first: str, second: str) -> float:
    """Standard error of the ratio of two rows' minutes because a run's epochs differ."""
    minutes = runs.epochs.groupby("run")["minutes"]
    shares = ERROR_OF_MEDIAN * minutes.std().fillna(0) / minutes.size() ** 0.5 / minutes.median()
    squares = runs.table.assign(value=shares**2).pivot(
        index="seed", columns="label", values="value"
    )
    of_seeds = (squares[first] + squares[second]).dropna()
    return math.sqrt(of_seeds.sum()) / len(of_seeds) if len(of_seeds) else 0.0


def p_text(p: float) -> str:
    if math.isnan(p):
        return ""
    return ("<0.001" if p < 0.001 else f"{p:.3f}") + "*" * (p < LEVEL)


# ---------------------------------------------------------------------------- equal budgets


def least_spent(runs: Runs, labels: Sequence[str], spent: str) -> float:
    """What the run that spends least has spent at its last validation. `spent`: hours or updates
    or epoch, a column of `runs.epochs`."""
    validated = runs.epochs[runs.epochs["label"].isin(labels)].dropna(subset=LOSS)
    return float(validated.groupby("run")[spent].last().min())


def loss_at(runs: Runs, spent: str, budget: float | pd.Series) -> pd.Series:
    """[runs] unpadded validation loss once `spent` has reached `budget`, between two validations
    by a straight line; not-a-number where none lie on both sides."""
    budgets = pd.Series(budget, list(runs.found))
    losses = {}
    for folder, epochs in runs.epochs.dropna(subset=LOSS).groupby("run"):
        x, wanted = epochs[spent].to_numpy(float), budgets[folder]
        wanted = min(wanted, x[-1]) if wanted <= x[-1] * (1 + 1e-12) else wanted
        losses[folder] = np.interp(wanted, x, epochs[LOSS], left=np.nan, right=np.nan)
    return pd.Series(losses).reindex(list(runs.found))


def error_at_equal_time(runs: Runs, hours: float) -> pd.Series:
    """[labels] standard error of the loss after `hours` because the hours are unsure, as a share:
    the mean over runs of how much higher the loss is one standard error of the timing before."""
    earlier = hours * (1 - runs.table["relative_error"])
    higher = np.log(loss_at(runs, "hours", earlier) / loss_at(runs, "hours", hours)).abs()
    return higher.groupby(runs.table["label"]).mean().fillna(0)


def one_batch_size(runs: Runs) -> list[str]:
    """Labels that differ from RAND in nothing but the batching and its parameter."""
    base = runs.rows.loc[runs.representatives().get("RAND", runs.rows.index[0])].dropna()
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
LOWEST_LOSS = f"{BEST} has the lowest loss of all (VL3)."
CLAIMS = [  # that the quantity falls from the first to the second of each pair
    (
        "Batches of clips of similar length shorten an epoch against random ones.",
        "minutes",
        [("RAND", name) for name in ("SB-BR", "SSB-BR", "BKT-BR", "ATS-BR")],
    ),
    ("Dynamic batch sizes (DBS) shorten it further.", "minutes", _DYNAMIC),
    (
        f"{BEST} saves {published.TABLE_3[BEST][1]:.0f} % of an epoch's time against RAND.",
        "minutes",
        [("RAND", BEST)],
    ),
    ("Batch randomization (BR) shortens it slightly.", "minutes", RANDOMIZED),
    ("Semi-sorting learns better than sorting (VL3).", "vl3", _SEMI_SORTING),
    ("Batch randomization lowers the loss (VL3).", "vl3", _RANDOMIZING),
    ("Dynamic batch sizes lower the loss (VL3).", "vl3", _DYNAMIC),
    (LOWEST_LOSS, "vl3", [(name, BEST) for name in published.TABLE_2 if name != BEST]),
]


def findings(runs: Runs, values: pd.DataFrame) -> list[Finding]:
    """The paper's claims, each confirmed, contradicted or undecided by these runs; then what it
    calls potential: that its batching learns more than RAND in equal time and in equal updates."""
    chosen, found = runs.representatives(), []
    for claim, key, pairs in CLAIMS:
        of_time = key == "minutes"
        labels = [tuple(map(chosen.get, pair)) for pair in pairs]
        error = error_of_timing(runs) if of_time else None
        found.append(_finding(claim, key, pairs, changes(runs, values[key], labels, error, of_time)))
    pair = ("RAND", BEST)
    labels = [chosen[name] for name in pair if name in chosen] or list(runs.rows.index)
    for what, spent in (("time", "hours"), ("updates", "updates")):
        budget = least_spent(runs, labels, spent)
        error = error_at_equal_time(runs, budget) if spent == "hours" else None
        pairs = [tuple(map(chosen.get, pair))]
        change = changes(runs, loss_at(runs, spent, budget), pairs, error)
        claim = f"After equal {what} {BEST} has a lower loss than RAND (unpadded)."
        found.append(_finding(claim, "", [pair], change))
    return found


def _finding(claim: str, key: str, pairs: Sequence[tuple[str, str]], found: pd.DataFrame) -> Finding:
    theirs = ["– (potentially)"]
    if key:
        theirs = published_falls(key, pairs)["per_cent"].map(lambda fall: _signed(-fall)).tolist()
    theirs = [f"{a} → {b}: {text}" if key else text for (a, b), text in zip(pairs, theirs)]
    ours = []
    for (before, after), change in zip(pairs, found.itertuples(), strict=True):
        text = "– (not measured)"
        if change.runs:
            error = "" if math.isnan(change.standard_error) else f" ± {change.standard_error:.2g}"
            tested = "one seed" if math.isnan(change.p) else f"p {p_text(change.p)}"
            text = f"{_signed(change.ours)}{error}, {tested}"
        ours.append(f"{before} → {after}: {text}")
    return Finding(claim, theirs, ours, _verdict(claim, found))


def _signed(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−") + "\u00a0%"


def _verdict(claim: str, found: pd.DataFrame) -> str:
    """Claims say that something falls."""
    known = found[found["runs"] > 0]
    lacking = len(found) - len(known)
    left_out = f" ({lacking} of {len(found)} not measured)" if lacking else ""
    if known.empty:
        return "not measured"
    if known["p"].isna().all():
        as_claimed = (known["ours"] < 0).sum()
        return f"not tested, one seed: {as_claimed} of {len(known)} as the paper finds{left_out}"
    fell = np.where(known["ours"] < 0, "confirmed", "contradicted")
    verdicts = np.where(known["p"] < LEVEL, fell, "undecided").tolist()
    counts = {kind: verdicts.count(kind) for kind in ("confirmed", "contradicted", "undecided")}
    if claim == LOWEST_LOSS and counts["confirmed"] < len(verdicts):
        return ("contradicted" if counts["contradicted"] else "undecided") + left_out
    saving = published.TABLE_3[BEST][1] - POINTS_OF_GRACE
    if claim == CLAIMS[2][0] and verdicts == ["confirmed"] and -known["ours"].iloc[0] < saving:
        return "confirmed in part: an epoch is shorter, but by less"
    if len(set(verdicts)) == 1:
        return verdicts[0] + left_out
    counted = ", ".join(f"{kind} in {count}" for kind, count in counts.items() if count)
    # A claim of which a part is undecided and none contradicted is not refuted.
    return ("mixed: " if counts["contradicted"] else "in part: ") + counted + left_out


# ---------------------------------------------------------------------------- tables


def study_tables(runs: Runs, values: pd.DataFrame) -> list[Table]:
    """What a study adds: word error rates, changes paired by seed, follow-ups."""
    hours, updates = (least_spent(runs, one_batch_size(runs), x) for x in ("hours", "updates"))
    last = loss_at(runs, "epoch", runs.epochs.dropna(subset=LOSS).groupby("run")["epoch"].last())
    at_hours, at_updates = loss_at(runs, "hours", hours), loss_at(runs, "updates", updates)
    late = {"unpadded loss, late third": values["unpadded vl3"]}
    heard = {"word error rate": values["word_error_rate"]}
    everyone, chosen = list(runs.rows.index), runs.representatives()
    bests = runs.rows["name"].isin([BEST, BEST.replace("SSB", "SSB-exp")])
    return [
        _learning_table(runs, values),
        _paired_table(
            runs,
            everyone,
            chosen.get("RAND"),
            {"padded loss, late third": values["vl3"]} | late | heard,
            ("paired", "Learning against RAND, paired by seed", TEST),
        ),
        _paired_table(
            runs,
            everyone,
            chosen.get("RAND"),
            {
                "at equal epochs": last,
                f"at equal time, {60 * hours:.2f} minutes": at_hours,
                f"at {updates:,.0f} updates": at_updates,
            },
            (
                "equal_budgets",
                "Unpadded validation loss against RAND at equal epochs, time and updates",
                "Losses are interpolated between validations, at what the cheapest run of RAND's "
                "base batch size has spent at its end; – where a run spent less. Errors at equal "
                f"time include that of the timing. {TEST}",
            ),
            {1: error_at_equal_time(runs, hours)},
        ),
        _paired_table(
            runs,
            list(runs.rows.index[bests]),
            chosen.get(BEST),
            late
            | {f"unpadded loss at {updates:,.0f} updates": at_updates}
            | heard
            | {"decoder steps per epoch": values["decoder_steps"]},
            ("best", f"{BEST} with other settings, and with the exponential noise", TEST),
        ),
        _small_batches_table(runs, values),
        _same_base_table(runs),
        _prediction_table(runs, values, at_updates, updates),
    ]


def _learning_table(runs: Runs, values: pd.DataFrame) -> Table:
    """Word error rate and what it took."""
    columns = [
        Column("word error rate", 3, summarize(runs, values["word_error_rate"], UNHEARD)),
        Column("minutes of training", 2, summarize(runs, values["training_minutes"])),
        Column("updates", 0, summarize(runs, values["updates"])),
    ]
    heard = [run.transcription for run in runs.found.values() if run.transcription]
    texts = ", ".join(map(str, sorted({found.texts for found in heard})))
    rates = "; ".join(
        f"{recordings:.3f}, after mel and Griffin-Lim {rebuilt:.3f}"
        for recordings, rebuilt in dict.fromkeys(
            (found.recordings, found.recordings_after_griffin_lim) for found in heard
        )
    )
    note = (
        f"Word error rate of {texts} texts that are in no training set, spoken by each run's last "
        "checkpoint and transcribed by pocketsphinx. Reference word error rate, of the recordings "
        f"themselves: {rates}."
    )
    seeds = runs.table["label"].value_counts()
    lines = [(label, str(seeds[label])) for label in runs.rows.index]
    title = "What a recogniser understands at the end"
    return Table("learning", title, ("batching", "seeds"), lines, columns, note)


UNHEARD = "was not transcribed"
UNSPENT = "has no validations before and after it"


def _change_columns(base: str, found: pd.DataFrame) -> list[Column]:
    return [Column(base, 1, found), Column("p", 0, found["p"].map(p_text).tolist())]


def _paired_table(
    runs: Runs,
    labels: list[str],
    base: str | None,
    quantities: dict[str, pd.Series],
    texts: tuple[str, str, str],
    shared_errors: dict[int, pd.Series] | None = None,
) -> Table:
    """Mean, change against the row `base` and p of each quantity; changes are fitted to all runs.

    `shared_errors`: of quantities, by place."""
    name = runs.rows["name"].get(base, "RAND")
    columns = []
    for place, (quantity, values) in enumerate(quantities.items()):
        compared = values
        if quantity == "word error rate":  # for ratios: at least that of half a wrong word
            words = {
                folder: sum(len(x.text.split()) for x in run.transcription.transcripts)
                for folder, run in runs.found.items()
                if run.transcription
            }
            compared = values.clip(lower=0.5 / pd.Series(words).clip(lower=1))
        error = (shared_errors or {}).get(place)
        found = changes(runs, compared, [(base, label) for label in labels], error)
        found.loc[[label == base for label in labels], "note"] = ""
        missing = UNHEARD if quantity == "word error rate" else UNSPENT
        decimals = 0 if "decoder steps" in quantity else 3
        shown = summarize(runs, values, missing).loc[labels]
        columns += [Column(quantity, decimals, shown)]
        columns += _change_columns(f"against {name} (%)", found)
    key, title, note = texts
    return Table(key, title, ("batching",), [(label,) for label in labels], columns, note)


def _by_batch_size(runs: Runs, name: str) -> list[str]:
    """Labels of a batching that differ in nothing but the base batch size, in its order."""
    if (base := runs.representatives().get(name)) is None:
        return []
    settings = runs.rows.drop(columns="batch_size").fillna("")
    alike = runs.rows[(settings == settings.loc[base]).all(axis=1)]
    return list(alike["batch_size"].astype(int).sort_values().index)


def _small_batches_table(runs: Runs, values: pd.DataFrame) -> Table:
    """What Gonzalez et al. look at: the same batching with smaller batches."""
    labels = [label for name in ("RAND", BEST) for label in _by_batch_size(runs, name)]
    shown = (
        ("unpadded loss, late third", 3, "unpadded vl3"),
        ("word error rate", 3, "word_error_rate"),
        ("minutes per epoch", 3, "minutes"),
        ("updates per epoch", 1, "num_batches"),
        ("ZPR (%)", 2, "zero_padding_rate"),
    )
    columns = [Column(h, n, summarize(runs, values[key]).loc[labels]) for h, n, key in shown]
    lines = list(runs.rows.loc[labels, ["name", "batch_size"]].itertuples(index=False, name=None))
    note = (
        "Gonzalez et al. (ICASSP 2023) find that learning depends on the batch size and that "
        "random batches pay for large ones with padding. All have the same learning rate and "
        "epochs, so smaller batches make more updates."
    )
    headings = ("batching", "base batch size")
    return Table("small_batches", "Smaller batches", headings, lines, columns, note)


def _same_base_table(runs: Runs) -> Table:
    """SSB-DBS-BR against RAND with the same base batch size, at what the cheaper has spent."""
    best, rand = (
        {runs.rows["batch_size"][label]: label for label in _by_batch_size(runs, name)}
        for name in (BEST, "RAND")
    )
    pairs = {size: (rand[size], best[size]) for size in rand if size in best}
    columns = []
    for what, spent, factor, decimals in (
        ("epochs", "epoch", 1, 0),
        ("minutes", "hours", 60, 2),
        ("updates", "updates", 1, 0),
    ):
        budgets, found = [], []
        for pair in pairs.values():
            budgets.append(budget := least_spent(runs, pair, spent))
            error = error_at_equal_time(runs, budget) if spent == "hours" else None
            found.append(changes(runs, loss_at(runs, spent, budget), [pair], error))
        changed = pd.concat(found) if found else pd.DataFrame(columns=["ours", "p", "note"])
        if (known := changed["p"].notna()).any():
            changed.loc[known.to_numpy(), "p"] = multipletests(changed["p"][known], method="holm")[1]
        spent_there = pd.DataFrame({"ours": [factor * b for b in budgets], "runs": 0, "note": ""})
        columns.append(Column(what, decimals, spent_there))
        columns += _change_columns(f"change at equal {what} (%)", changed)
    title = f"Unpadded validation loss of {BEST} against RAND with the same base batch size"
    note = (
        f"At what the cheaper of the two has spent at its end; negative where {BEST} has the lower "
        "loss. Fitted and tested as above, adjusted over the rows of a column."
    )
    lines = [(size,) for size in pairs]
    return Table("same_base", title, ("base batch size",), lines, columns, note)


# ---------------------------------------------------------------------------- novelty and spread


def mixing(runs: Runs) -> pd.DataFrame:
    """[labels] novelty and spread of the batches, from plans of the run's clips; of the labels
    with one base batch size and learning rate."""
    surveyors: dict[bytes, Surveyor] = {}
    found = {}
    for label in one_batch_size(runs):
        run = runs.first(label)
        h = run.hparams
        surveyor = surveyors.setdefault(run.lengths.tobytes(), Surveyor(run.lengths))
        options = {"dynamic_batch_size": h.dynamic_batch_size}
        if h.dynamic_batch_size:
            options["batch_capacity"] = h.batch_capacity
        if name := PARAMETERS.get(h.batching_strategy):
            options[name] = getattr(h, name)
        survey = surveyor.survey(h.batch_size, h.batching_strategy, epochs=PLANNED, **options)
        found[label] = {measure: getattr(survey, measure) for measure in MEASURES}
    return pd.DataFrame(found).T


def outcomes(runs: Runs, values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Summaries of what novelty and spread might predict."""
    labels = one_batch_size(runs)
    updates = least_spent(runs, labels, "updates")
    at_updates = loss_at(runs, "updates", updates)
    return {
        f"unpadded loss at {updates:,.0f} updates": summarize(runs, at_updates).loc[labels],
        "word error rate at the end": summarize(runs, values["word_error_rate"]).loc[labels],
    }


def _prediction_table(
    runs: Runs, values: pd.DataFrame, at_updates: pd.Series, updates: float
) -> Table:
    """Spearman's rank correlation of novelty and spread with what was learnt."""
    mixed, lines, found = mixing(runs), [], []
    for measure in MEASURES:
        for outcome, summary in outcomes(runs, values).items():
            both = pd.DataFrame({"x": mixed[measure], "y": summary["ours"]}).dropna()
            lines.append((measure, outcome, str(len(both))))
            rho = p = math.nan
            note = "fewer than four experiments" if len(both) < 4 else ""
            if not note and both.nunique().min() == 1:
                note = "all experiments are alike"
            if not note:
                rho, p = spearmanr(both["x"], both["y"])
            found.append({"ours": rho, "runs": 0 if note else len(both), "p": p, "note": note})
    frame = pd.DataFrame(found)
    if (known := frame["p"].notna()).any():
        frame.loc[known, "p"] = multipletests(frame["p"][known], method="holm")[1]
    return Table(
        "prediction",
        "Do novelty and spread predict learning?",
        ("measure", "outcome", "experiments"),
        lines,
        [
            Column("Spearman's rank correlation", 2, frame),
            Column("p", 0, frame["p"].map(p_text).tolist()),
        ],
        "Over the experiments with one base batch size and learning rate. Novelty: share of the "
        "pairs in a batch that were in different batches an epoch before; spread: 0 as in sorted "
        "batches, 1 as in random ones; both as in compare_batching.py. A negative correlation "
        "means that more mixing goes with a lower loss or rate; p by Holm's method over the rows.",
    )
