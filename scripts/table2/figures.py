"""Draw the plots of the report, which correspond to Figures 1 to 4 of the paper."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from evaluation import figures
from evaluation.figures import style_of
from length_batching.search import DEFAULTS, Surveyor
from scripts.table2.runs import LOSSES, Runs
from scripts.table2.tables import Measured

# Titles of the loss plots, in the order of LOSSES.
TITLES = ("mean including padding, as in the paper", "masked: mean over real frames")
SHOWN_FROM = 0.3  # plots may cut off high losses in the first 30% of the epochs
# Colors show strategies. The dash pattern shows whether DBS and BR are used. Each key has one digit
# for DBS and one digit for BR (1: used).
DASHES = {"00": (1, 1.3), "01": (5, 1.6), "10": (6, 1.4, 1.2, 1.4), "11": ""}
FOLLOW_UP_MARKERS = "osD^vPX"


def draw_all(measured: Measured) -> dict[str, Figure]:
    """Return {file name without extension: plot} for all plots."""
    runs = measured.runs
    first = runs.first(runs.rows.index[0])
    lengths, size = first.lengths.tolist(), first.hparams.batch_size
    options = {}
    # Take the value of each parameter from the first row that uses the parameter. If no row uses
    # the parameter, take its value from the first row.
    for name in DEFAULTS:
        users = [*runs.rows[name].dropna().index, runs.rows.index[0]]
        options[name] = getattr(runs.first(users[0]).hparams, name)

    def losses(over: str) -> Figure:
        return draw_losses(runs, list(runs.rows.index), [(loss, over) for loss in LOSSES])

    sweeps = figures.draw_parameter_sweeps(Surveyor(first.lengths), size, options)
    return {
        "figure_1_padded_batches": figures.draw_padded_batches(lengths, dynamic=False),
        "figure_2_parameter_sweeps": sweeps,
        "figure_3_padded_batches_dynamic": figures.draw_padded_batches(lengths, dynamic=True),
        "figure_4_loss_over_epochs": losses("epoch"),
        "figure_4_loss_over_time": losses("hours"),
    }


def draw_losses(runs: Runs, labels: list[str], panels: Sequence[tuple[str, str]]) -> Figure:
    """Plot losses in panels, with one line per label: the mean over seeds ± one standard error.

    High losses in the first epochs are cut off, and a note in the plot says so.

    Args:
        labels: labels of the rows to plot.
        panels: two columns of `runs.epochs` per panel: the loss for the y axis, and the quantity for
            the x axis.
    """
    epochs = runs.epochs[runs.epochs["label"].isin(labels)].dropna(subset=LOSSES)
    figure = Figure(figsize=(5.5 * len(panels), 6.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    if epochs.empty:  # no run has been validated yet
        return figure
    shared = epochs.groupby(["label", "epoch"])
    unit, factor = ("hours", 1) if epochs["hours"].max() >= 1 else ("minutes", 60)
    # The training time differs between seeds, so the x axis shows the mean time over the seeds.
    epochs["hours"] = shared["hours"].transform("mean") * factor
    epochs["updates"] = shared["updates"].transform("mean")
    titles = {"hours": f"training time ({unit})", "epoch": "epoch", "updates": "optimizer steps"}
    colors, markers, dashes = _looks(runs, labels)
    looks = {"palette": colors, "markers": markers, "dashes": dashes}
    order = {"hue": "label", "style": "label", "hue_order": labels, "style_order": labels}
    error = {"errorbar": "se", "err_kws": {"alpha": 0.18, "linewidth": 0}}
    every = max(1, epochs["epoch"].nunique() // 9)
    for axes, (loss, over) in zip(all_axes, panels, strict=True):
        sns.lineplot(epochs, x=over, y=loss, **order, **looks, **error, markevery=every, ax=axes)
        handles = axes.get_legend().get_lines()
        axes.get_legend().remove()
        axes.set_title(TITLES[LOSSES.index(loss)], fontsize=12, loc="left")
        axes.set(xlabel=titles[over], ylabel="")
        axes.locator_params(axis="x", integer=over != "hours")
        axes.grid(alpha=0.3)
        lines = [line for _, line in shared[loss].mean().groupby("label")]
        settled = pd.concat([line.iloc[int(SHOWN_FROM * len(line)) :] for line in lines])
        room = 0.06 * np.ptp(settled) or 0.1 * settled.max()
        axes.set_ylim(settled.min() - room, settled.max() + 2 * room)
        if pd.concat(lines).max() > settled.max() + 2 * room:
            look = {"transform": axes.transAxes, "ha": "right", "va": "top", "color": "0.35"}
            axes.text(0.995, 0.985, "higher losses in the first epochs are cut off", **look)
    all_axes[0].set_ylabel("validation loss")
    columns = min(5, len(labels)) if max(map(len, labels)) < 20 else 2
    options = {"ncols": columns, "frameon": False, "handlelength": 4.5}
    figure.legend(handles, labels, loc="outside lower center", **options)
    sns.despine(fig=figure)
    return figure


def _looks(runs: Runs, labels: list[str]) -> tuple[dict, dict, dict]:
    """Return three dicts: {label: color}, {label: marker} and {label: dashes}. Labels with the same
    strategy name get shades of the same color."""
    colors: dict = {}
    markers: dict = {}
    dashes: dict = {}
    for _name, same_name in runs.rows.loc[labels].groupby("name"):
        style = style_of(same_name["batching_strategy"].iloc[0])
        shades = sns.light_palette(style.color, len(same_name) + 2, reverse=True)
        for index, (label, row) in enumerate(same_name.iterrows()):
            colors[label] = shades[index]
            markers[label] = FOLLOW_UP_MARKERS[index % 7] if index else style.marker
            # `is_mixed` is also True for RAND, for which the setting `batch_randomization` is NaN.
            is_mixed = row["batch_randomization"] != "False"
            dashes[label] = DASHES[f"{row['dynamic_batch_size'] == 'True':d}{is_mixed:d}"]
    return colors, markers, dashes
