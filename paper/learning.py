"""What runs of a study have learnt at equal epochs, decoder steps, minutes and updates.

Raw values are a CSV with a line for every epoch of every run, so that a report is made again, and
a study continued on another machine, without the runs. Comparisons are paired by seed, as in
analysis/findings.py.
"""

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from statsmodels.stats.multitest import multipletests

from common.console import markdown_table
from common.errors import UserError
from common.files import METRICS_FILE, json_lines, read_bytes, write_bytes
from paper.figures import write_figure
from paper.findings import LEVEL, LOSS, paired_change
from paper.transcription import Intelligibility, read_findings

VALUES_FILE, REPORT_FILE, PICTURE_FILE = "values.csv", "report.md", "learning.svg"
RATE = "word_error_rate"
RUN = ["name", "seed"]
# Of a validation and of an epoch in metrics.jsonl.
MEASURES = [LOSS, "alignment_sharpness", "gradient_norm"]
SPENT = {"epoch": "epochs", "decoder_steps": "decoder steps", "minutes": "minutes"}
SPENT |= {"updates": "updates"}
TIMES = ["minutes", "minutes_error"]  # timed in turns, so far; standard error, as a share
COLUMNS = [*RUN, "epoch", "updates", "decoder_steps", *TIMES, *MEASURES, RATE, "words"]
# Attention is on the plateau where it walks at a pace of its own (docs/training.md): the line is
# sharp and the gradient norm, near 2 in runs that learn and near 12 in others, is large.
BLURRED, STEEP = 0.3, 5.0


def values_of(folder: Path, name: str, seed: int, transcribed: Mapping[int, Path]) -> pd.DataFrame:
    """The raw values of a run, a line for each epoch; COLUMNS without times. `transcribed` are the
    files of scripts/listen.py by epoch. UserError if a file cannot be read."""
    records = json_lines(folder / METRICS_FILE)
    epochs, validations = (
        pd.DataFrame([x for x in records if x["kind"] == kind]) for kind in ("epoch", "validation")
    )
    found = epochs.merge(validations, on="epoch", suffixes=("", " of the validation"))
    found = found.assign(name=name, seed=seed, updates=found["num_batches"].cumsum())
    found["decoder_steps"] = found["decoder_steps"].cumsum()
    for epoch, path in transcribed.items():
        one = read_findings(path, Intelligibility)
        words = sum(len(found.text.split()) for found in one.transcripts)
        found.loc[found["epoch"] == epoch, [RATE, "words"]] = one.word_error_rate, words
    return found.assign(minutes=np.nan).reindex(columns=COLUMNS)


def read_values(path: Path) -> pd.DataFrame:
    """A file of raw values; none if there is no such file. UserError if it is not one."""
    if not os.path.lexists(path):
        return pd.DataFrame(columns=COLUMNS)
    try:
        return pd.read_csv(io.BytesIO(read_bytes(path)))[COLUMNS]
    except (ValueError, KeyError) as error:
        fix = "restore it, or delete it to have it made from the runs"
        raise UserError(f"{path}: not the raw values of a study: {error}; {fix}") from None


def write_values(path: Path, values: pd.DataFrame) -> None:
    values = values.drop_duplicates([*RUN, "epoch"], keep="last").sort_values([*RUN, "epoch"])
    write_bytes(path, values.to_csv(index=False, float_format="%.6g").encode())


def is_complete(values: pd.DataFrame, name: str, seed: int, epochs: int, points: list[int]) -> bool:
    """Whether a run has values of its last epoch, and word error rates at `points`."""
    own = values[(values["name"] == name) & (values["seed"] == seed)].set_index("epoch")
    return epochs in own.index and set(points) <= set(own.index[own[RATE].notna()])


def with_minutes(
    values: pd.DataFrame, minutes: Mapping[str, tuple[list[float], float]]
) -> pd.DataFrame:
    """With TIMES from the minutes of each epoch of a name, and their standard error as a share."""
    values = values.copy()
    for name, (of_epochs, error) in minutes.items():
        own = values["name"] == name
        so_far = np.cumsum(of_epochs)[values.loc[own, "epoch"].astype(int) - 1]
        values.loc[own, "minutes"], values.loc[own, "minutes_error"] = so_far, error
    return values


def reached(values: pd.DataFrame, quantity: str, spent: str, budget: float) -> pd.DataFrame:
    """[runs] name, seed and `value`: a quantity once `spent` has reached `budget`, between two
    measurements by a straight line of its logarithm; NaN where none lie on both sides. A word
    error rate is at least that of half a wrong word."""
    lines = []
    least = 0.5 / values["words"].max() if quantity == RATE else 1e-12
    for (name, seed), run in values.dropna(subset=[quantity, spent]).groupby(RUN):
        x, y = run[spent].to_numpy(float), np.log(run[quantity].clip(lower=least))
        inside = x[0] * (1 - 1e-9) <= budget <= x[-1] * (1 + 1e-9)
        lines.append((name, seed, np.exp(np.interp(budget, x, y)) if inside else np.nan))
    return pd.DataFrame(lines, columns=["label", "seed", "value"])


def budgets(values: pd.DataFrame, spent: str, points: Sequence[int]) -> list[float]:
    """What the cheapest run has spent after each of the epochs `points`."""
    if spent == "epoch":
        return list(map(float, points))
    at_points = values[values["epoch"].isin(points)]
    return at_points.groupby("epoch")[spent].min().reindex(list(points)).tolist()


def compared(
    values: pd.DataFrame, quantity: str, spent: str, budget: float, names: Sequence[str]
) -> pd.DataFrame:
    """[names] `paired_change` from the first of `names` to each at an equal budget, p by Holm's
    method; for minutes, the error of the timing is in the standard error."""
    found = reached(values, quantity, spent, budget)
    shared = dict.fromkeys(names, 0.0)
    if spent == "minutes":
        errors = values.groupby("name")["minutes_error"].max()
        for name in names:
            own = values[values["name"] == name]
            now = found.loc[found["label"] == name, "value"].to_numpy(float)
            around = [budget * (1 - errors[name]), budget * (1 + errors[name])]
            moved = [reached(own, quantity, spent, x)["value"].to_numpy(float) for x in around]
            shared[name] = float(
                np.nan_to_num(pd.Series(np.abs(np.log(moved / now)).ravel()).mean())
            )
    rows, base = {}, names[0]
    for name in names[1:]:
        error = float(np.hypot(shared[base], shared[name]))
        rows[name] = paired_change(found, base, name, shared_error=error)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table = table.reindex(columns=["ours", "standard_error", "runs", "p"]).astype(float)
    if (known := table["p"].notna()).any():
        table.loc[known, "p"] = multipletests(table["p"][known], method="holm")[1]
    return table


def changes_table(
    values: pd.DataFrame, quantity: str, spent: str, points: Sequence[int], names: Sequence[str]
) -> str:
    """Markdown: by how many per cent a quantity is above that of the first of `names`."""
    spents = budgets(values, spent, points)
    columns = [compared(values, quantity, spent, budget, names) for budget in spents]
    rows = []
    for name in names[1:]:
        cells = []
        for column in columns:
            own = column.loc[name]
            shown = "–" if np.isnan(own["ours"]) else f"{own['ours']:+,.0f}".replace("-", "−")
            if not np.isnan(own["standard_error"]):  # of several seeds
                shown += f" ± {own['standard_error']:.0f}" + ("\\*" if own["p"] < LEVEL else "")
            cells.append(shown)
        rows.append([name, *cells])
    unit = SPENT[spent]
    decimals = 1 if spent == "minutes" else 0
    return markdown_table(["", *(f"{x:,.{decimals}f} {unit}" for x in spents)], rows)


def means_table(values: pd.DataFrame, points: Sequence[int], names: Sequence[str]) -> str:
    """Markdown: means and standard errors over seeds after each of the epochs `points`."""
    shown = {"updates": 0, "decoder_steps": 0, "minutes": 1} | dict.fromkeys([*MEASURES, RATE], 3)
    shown = {key: places for key, places in shown.items() if values[key].notna().any()}
    rows = []
    for point in points:
        for name in names:
            own = values[(values["name"] == name) & (values["epoch"] == point)]
            cells: list = [name, point, len(own)]
            for key, places in shown.items():
                numbers = own[key].to_numpy(float)
                cells.append(f"{numbers.mean():,.{places}f}")
                if key in (*MEASURES, RATE) and len(own) > 1:
                    error = numbers.std(ddof=1) / math.sqrt(len(own))
                    cells[-1] += f" ± {error:.{places}f}"
            rows.append(cells)
    titles = [key.replace("_", " ") for key in shown]
    return markdown_table(["", "epoch", "seeds", *titles], rows)


def plateau_table(values: pd.DataFrame, names: Sequence[str]) -> str:
    """Markdown: how many runs of each name have not aligned after their last epoch."""
    last = values[values["epoch"] == values["epoch"].max()]
    blurred = last["alignment_sharpness"] < BLURRED
    last = last.assign(blurred=blurred, plateau=~blurred & (last["gradient_norm"] > STEEP))
    counts = (
        last.groupby("name")[["blurred", "plateau"]].sum().assign(runs=last["name"].value_counts())
    )
    cells = (
        counts.loc[list(names), ["runs", "blurred", "plateau"]].reset_index().to_numpy().tolist()
    )
    return markdown_table(["", "runs", f"sharpness below {BLURRED}", "on the plateau"], cells)


def draw(values: pd.DataFrame, names: Sequence[str]) -> Figure:
    """What was measured, over minutes where they were timed, else over epochs: the mean of the
    seeds in a band of one standard error, on logarithmic axes but for the sharpness."""
    timed = values["minutes"].notna().any()
    quantities = [LOSS, RATE] if values[RATE].notna().sum() > len(values.groupby(RUN)) else MEASURES
    figure = Figure(figsize=(5.2 * len(quantities), 5.2), layout="constrained")
    over = "minutes" if timed else "epoch"
    for axes, quantity in zip(figure.subplots(1, len(quantities)), quantities, strict=True):
        lines = values.dropna(subset=[quantity, over])
        order = {"hue": "name", "style": "name", "hue_order": names, "style_order": names}
        band = {"errorbar": "se", "err_kws": {"alpha": 0.18, "linewidth": 0}}
        looks = {"palette": "colorblind", "markers": True, "dashes": False}
        looks["markevery"] = 1 + len(set(lines["epoch"])) // 15
        sns.lineplot(lines, x=over, y=quantity, ax=axes, **order, **band, **looks)
        if legend := axes.get_legend():
            handles = legend.legend_handles
            legend.remove()
        axes.set_title(quantity.replace("_", " "), loc="left")
        axes.set(xlabel=over, ylabel="")
        axes.locator_params("x", integer=not timed)  # no half epochs
        if quantity != "alignment_sharpness":
            axes.set_yscale("log", subs=[1.5, 2, 3, 5, 7])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3, which="both")
    columns = len(quantities) + 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    sns.despine(fig=figure)
    return figure


def write_report(
    values: pd.DataFrame, points: Sequence[int], settings: Mapping[str, str], out: Path, about: str
) -> None:
    """Fill the folder `out` with the report of all names in `settings` that have values; the first
    is what the others are compared with."""
    names = [name for name in settings if name in set(values["name"])]
    parts = [about, markdown_table(["", "settings"], [(n, f"`{settings[n]}`") for n in names], 2)]
    write_figure(draw(values, names), out / PICTURE_FILE)
    parts.append(f"![]({PICTURE_FILE})")
    last = [int(values["epoch"].max())]
    seeds = "Means ± standard errors over seeds."
    parts.append(
        f"## After so many epochs\n\n{seeds}\n\n{means_table(values, points or last, names)}"
    )
    if not points:
        told = (
            f"Sharpness of at least {BLURRED} and a mean gradient norm above {STEEP:g} in the last"
        )
        parts.append(
            f"## Alignment\n\n{plateau_table(values, names)}\n\nOn the plateau: {told} epoch."
        )
    if points and len(names) > 1:
        told = (
            f"In per cent above {names[0]}, paired by seed, ± standard error; \\* significant (5 % "
            "by Holm's method in each column). Budgets are what the cheapest run had spent after "
            f"epochs {', '.join(map(str, points))}."
        )
        at_ends = values.groupby("name")[list(SPENT)].max()
        spents = [s for s in SPENT if s == "epoch" or at_ends[s].nunique(dropna=False) > 1]
        for quantity, title in ((LOSS, "Loss"), (RATE, "Word error rate")):
            parts.append(f"## {title} against {names[0]}\n\n{told}")
            parts += [changes_table(values, quantity, s, points, names) for s in spents]
    write_bytes(out / REPORT_FILE, ("\n\n".join(parts) + "\n").encode())
    print(f"wrote {out / REPORT_FILE} and {PICTURE_FILE} beside it")
