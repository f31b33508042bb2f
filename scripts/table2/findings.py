"""Test the paper's claims about differences between batching strategies. Runs are paired by seed.

    for finding in findings(Measured(runs)):
        print(finding.claim, finding.verdict)

Runs with the same seed start with the same weights, so seeds are the blocks of a randomized block
design (Montgomery, "Design and Analysis of Experiments"). The following model is fitted by least squares
to all runs that have the same corpus and the same number of epochs:

    log value = effect of the strategy + effect of the seed + noise of equal variance

Each change is tested with a two-sided t-test. If a claim includes several changes, Holm's method
(1979) keeps the family-wise error rate at 5%.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.stats import t
from statsmodels.stats.multitest import multipletests

from scripts.table2 import published
from scripts.table2.runs import Runs
from scripts.table2.tables import BEST, Measured, Pairs, published_falls

LEVEL = 0.05  # significance level
# Ratio of the standard error of a median to the standard error of a mean, for normally distributed
# values.
ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)
# If our time saving is smaller than the published time saving by more than this number of
# percentage points, our runs confirm the published value only in part.
SMALLER_SAVING = 5
LOSS = "validation_loss_unpadded"
NOT_MEASURED = {"runs": 0, "note": "not measured with the same corpus, epochs and seeds"}


def paired_change(values: pd.DataFrame, first: str, second: str, least_error: float = 0) -> dict:
    """Return how much a quantity changes from one strategy to another.

    Args:
        values: the columns `label`, `seed` and `value`, with one row per run. Rows with a value of 0
            or less are ignored.
        first, second: labels of the two strategies.
        least_error: lower limit of the relative standard error.

    Returns:
        A dict with `ours` (the change, in percent of the first strategy's value), `standard_error`
        (also in percent), `runs` (number of common seeds) and `p`. A value is NaN if there are too
        few runs to compute it.
    """
    values = values[values["value"] > 0]
    seeds = [set(values["seed"][values["label"] == label]) for label in (first, second)]
    if not (runs := len(set.intersection(*seeds))):
        return NOT_MEASURED
    design = pd.get_dummies(values["label"], dtype=float)
    design = design.join(pd.get_dummies(values["seed"], drop_first=True, dtype=float))
    fit = sm.OLS(np.log(values["value"]), design).fit()
    contrast = 1.0 * (design.columns == second) - (design.columns == first)
    log_ratio = float(contrast @ fit.params)
    error = least_error or math.nan
    p = math.nan
    if fit.df_resid >= 1:
        error = max(fit.t_test(contrast).sd.item(), least_error)
        p = float(abs(log_ratio) < 1e-9)  # a log-ratio below 1e-9 is a rounding error
        if error > 1e-12:
            p = 2 * t.sf(abs(log_ratio) / error, fit.df_resid)
    per_cent = 100 * math.exp(log_ratio)
    return {"ours": per_cent - 100, "standard_error": per_cent * error, "runs": runs, "p": p}


def changes(measured: Measured, key: str, pairs: Pairs) -> pd.DataFrame:
    """Return the `paired_change` of a quantity for each pair of rows. The p-values are adjusted by
    Holm's method.

    No change is computed for a pair if the table lacks one of the two rows, or if the rows have
    different corpora, different numbers of epochs, or no seed in common.
    """
    runs = measured.runs
    kinds = (runs.rows["corpus"] + ", " + runs.rows["epochs"]).to_dict()
    table = runs.table.assign(value=measured.values[key], kind=runs.table["label"].map(kinds))
    paired = []
    for first, second in pairs:
        timed = key == "minutes" and first in kinds and second in kinds
        least = _error_by_epochs(runs, first, second) if timed else 0.0
        alike = table[table["kind"] == kinds.get(first)]
        paired.append(paired_change(alike, first, second, least))
    frame = pd.DataFrame(paired, columns=["ours", "standard_error", "runs", "p", "note"])
    frame = frame.astype({"p": float, "note": object}).fillna({"runs": 0, "note": ""})
    return frame.assign(p=holm(frame["p"]))


def holm(p: pd.Series) -> pd.Series:
    """Adjust the p-values of a family of tests by Holm's method. NaN values stay NaN."""
    adjusted, known = p.copy(), p.notna()
    if known.any():
        adjusted[known] = multipletests(p[known], method="holm")[1]
    return adjusted


def _error_by_epochs(runs: Runs, first: str, second: str) -> float:
    """Return the relative standard error of a ratio: one row's minutes per epoch divided by another
    row's minutes per epoch. The error is estimated from the differences between the epochs of each
    run."""
    minutes = runs.epochs.groupby("run")["minutes"]
    shares = ERROR_OF_MEDIAN * minutes.sem().fillna(0) / minutes.median()
    by_seed = runs.table.assign(square=shares**2).set_index("seed").groupby("label")["square"]
    of_seeds = (by_seed.get_group(first) + by_seed.get_group(second)).dropna()
    return math.sqrt(of_seeds.sum()) / max(1, len(of_seeds))


def p_text(p: float) -> str:
    text = "<0.001" if p < 0.001 else f"{p:.3f}"
    return "" if math.isnan(p) else text + "*" * (p < LEVEL)


def loss_at(runs: Runs, spent: str, budget: float) -> pd.Series:
    """Return the masked validation loss of each run at the time when the run has used a budget,
    such as one hour of training.

    The loss is interpolated linearly between validations. The loss is NaN if a run does not reach
    the budget.

    Args:
        spent: a cumulative column of `runs.epochs`, such as hours.
        budget: the value of the column `spent` at which to interpolate the loss.
    """
    losses = dict.fromkeys(runs.by_folder, np.nan)
    for folder, epochs in runs.epochs.dropna(subset=LOSS).groupby("run"):
        x = epochs[spent].to_numpy(float)
        if budget <= x[-1] * (1 + 1e-12):  # the factor 1 + 1e-12 allows for rounding errors
            losses[str(folder)] = np.interp(budget, x, epochs[LOSS], left=np.nan)
    return pd.Series(losses)


def against_first(values: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Compare each named setting in `names` with names[0].

    Returns:
        One row per name, with the columns `mean` and `sem` (the standard error) over the seeds, `p`
        (the adjusted p-value), and `ours` (the change in percent from the first name). The mean and
        the standard error are NaN if a seed has no value.
    """
    by_name = values.groupby("label")["value"]
    means = pd.DataFrame({"mean": by_name.mean(skipna=False), "sem": by_name.sem(skipna=False)})
    means = means.reindex(list(names))
    changes = pd.DataFrame({name: paired_change(values, names[0], name) for name in names[1:]}).T
    changes = changes.reindex(list(names), columns=["ours", "p"]).astype(float)
    return means.join(changes.assign(p=holm(changes["p"])))


def at_budget(
    values: pd.DataFrame, quantity: str, spent: str, budget: float, least: float = 0
) -> pd.DataFrame:
    """Return the value of a quantity in each run at the time when the run has spent a budget, such
    as a number of minutes.

    The logarithm of the value is interpolated linearly between measurements. The value is NaN if
    the budget is outside the measured range.

    Args:
        values: one row per epoch of every run, with the columns name, seed, `quantity` and `spent`.
            `spent` must increase within a run.
        quantity: name of the column to interpolate.
        spent: name of the column that contains the amount spent so far.
        budget: the value of the column `spent` at which to interpolate the quantity.
        least: smallest value of the quantity. Smaller values are replaced, because 0 has no
            logarithm.

    Returns:
        One row per run, with the columns label, seed and value.
    """
    rows = []
    for (name, seed), run in values.dropna(subset=[quantity, spent]).groupby(["name", "seed"]):
        x = run[spent].to_numpy(float)
        y = np.log(run[quantity].clip(lower=max(least, 1e-12)))
        is_inside = x[0] * (1 - 1e-9) <= budget <= x[-1] * (1 + 1e-9)
        rows.append((name, seed, np.exp(np.interp(budget, x, y)) if is_inside else np.nan))
    return pd.DataFrame(rows, columns=["label", "seed", "value"])


def at_equal(measured: Measured, spent: str, labels: Sequence[str]) -> str:
    """Compute the loss of all runs at an equal budget, such as an equal training time. Return the
    key of this loss in `measured.values`.

    `spent` is a cumulative column of `runs.epochs`. The budget is the smallest final value of this
    column in any run. Only runs with these labels count.
    """
    runs = measured.runs
    validated = runs.epochs[runs.epochs["label"].isin(labels)].dropna(subset=LOSS)
    budget = float(validated.groupby("run")[spent].last().min())
    key = f"{LOSS} at {budget} {spent}"
    measured.values[key] = loss_at(runs, spent, budget)
    return key


@dataclass(frozen=True)
class Finding:
    """A claim of the paper and its verdict. The lists `published` and `ours` contain one line of
    text per pair of strategies."""

    claim: str
    published: list[str]
    ours: list[str]
    verdict: str


SHORTER = "An epoch is shorter with batches of similar clip lengths than with random batches."
SAVING = f"{BEST} saves {published.TABLE_3[BEST][1]:.0f}% of an epoch's time compared with RAND."
LOWEST_LOSS = f"{BEST} has the lowest loss of all strategies (VL3)."
EQUAL = f"After {{}}, {BEST} has a lower masked loss than random batches (RAND)."
# Each entry contains a claim, a quantity and pairs of strategies. The claim is that the quantity is
# lower for the second strategy of each pair. The paper mentions the last two claims (equal time,
# and equal number of optimizer steps) only as possibilities.
CLAIMS: list[tuple[str, str, Pairs]] = [
    (SHORTER, "minutes", [("RAND", x) for x in ("SB-BR", "SSB-BR", "BKT-BR", "ATS-BR")]),
    ("Dynamic batch sizes (DBS) shorten an epoch further.", "minutes", [*published.DYNAMIC]),
    (SAVING, "minutes", [("RAND", BEST)]),
    ("Batch randomization (BR) shortens an epoch slightly.", "minutes", [*published.RANDOMIZED]),
    (
        "Models learn better with semi-sorting than with sorting (VL3).",
        "vl3",
        [*published.SEMI_SORTED],
    ),
    ("Batch randomization lowers the loss (VL3).", "vl3", [*published.RANDOMIZED]),
    ("Dynamic batch sizes lower the loss (VL3).", "vl3", [*published.DYNAMIC]),
    (LOWEST_LOSS, "vl3", [(name, BEST) for name in published.TABLE_2 if name != BEST]),
    (EQUAL.format("the same training time"), "hours", [("RAND", BEST)]),
    (EQUAL.format("the same number of optimizer steps"), "updates", [("RAND", BEST)]),
]


def findings(measured: Measured) -> list[Finding]:
    """Test each claim of the paper with the measured runs."""
    rows = list(measured.runs.rows.index)
    verdicts: list[Finding] = []
    for claim, key, pairs in CLAIMS:
        if key in ("hours", "updates"):
            key = at_equal(measured, key, [x for x in pairs[0] if x in rows] or rows)
            theirs = ["– (mentioned only as a possibility)"]
        else:
            falls = zip(pairs, published_falls(key, pairs)["per_cent"], strict=True)
            theirs = [f"{first} → {second}: {_signed(-fall)}" for (first, second), fall in falls]
        ours = changes(measured, key, pairs)
        lines: list[str] = []
        for (first, second), change in zip(pairs, ours.to_dict("records"), strict=True):
            text = "– (not measured)"
            error = change["standard_error"]
            if change["runs"]:
                spread = "" if math.isnan(error) else f" ± {error:.2g}"
                tested = "one seed" if math.isnan(change["p"]) else f"p {p_text(change['p'])}"
                text = f"{_signed(change['ours'])}{spread}, {tested}"
            lines.append(f"{first} → {second}: {text}")
        verdicts.append(Finding(claim, theirs, lines, verdict(claim, ours)))
    return verdicts


def _signed(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−") + "%"


def verdict(claim: str, measured: pd.DataFrame) -> str:
    """Return a phrase that says whether the measured changes support the claim that a quantity
    decreases."""
    known = measured[measured["runs"] > 0]
    if known.empty:
        return "not measured"
    missing = len(measured) - len(known)
    fell = known["ours"] < 0
    left_out = f" ({missing} of {len(measured)} not measured)" if missing else ""
    if known["p"].isna().all():
        agreeing = f"{fell.sum()} of {len(known)} changes agree with the paper"
        return f"not tested, one seed: {agreeing}{left_out}"
    kinds = np.select([known["p"] >= LEVEL, fell], ["undecided", "confirmed"], "contradicted")
    counts = pd.Series(kinds).value_counts().sort_index()
    if claim == LOWEST_LOSS and {*counts.index} != {"confirmed"}:
        return ("contradicted" if "contradicted" in counts else "undecided") + left_out
    saving = published.TABLE_3[BEST][1] - SMALLER_SAVING
    if claim == SAVING and "confirmed" in counts and -known["ours"].iloc[0] < saving:
        return "confirmed in part: an epoch is shorter, but the saving is smaller than published"
    if len(counts) == 1:
        return counts.index[0] + left_out
    counted = ", ".join(f"{kind} in {count}" for kind, count in counts.items())
    # The verdict "in part" means that some changes are undecided, but no change contradicts the
    # claim.
    return ("mixed: " if "contradicted" in counts else "in part: ") + counted + left_out
