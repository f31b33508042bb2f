"""The pictures of a report: the paper's Figures 1 to 4, and what a study adds."""

from collections.abc import Sequence

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from analysis import figures
from analysis.figures import STYLES
from analysis.report import Measured
from analysis.runs import Runs
from analysis.study import mixing, outcomes
from analysis.survey import PARAMETERS, Surveyor

LOSSES = {
    "validation_loss": "mean over padding too, as in the paper",
    "validation_loss_unpadded": "mean over real frames",
}
# The strategy gives the colour and the marker; what is done to the batches, the dashes.
DASHES = {
    ("False", "False"): (1, 1.3),
    ("False", "True"): (5, 1.6),
    ("True", "False"): (6, 1.4, 1.2, 1.4),
    ("True", "True"): "",
}
SHOWN_FROM = 0.3  # the losses before this share of the epochs may lie above the picture
WIDE = 3  # highest over lowest loss from which the axis is logarithmic
MARKERS = 9  # along a line
FOLLOW_UP_MARKERS = "osD^vPX"


def draw_all(measured: Measured, is_study: bool) -> dict[str, Figure]:
    """Every figure by the name of its file."""
    runs = measured.runs
    first = runs.first(runs.rows.index[0])
    lengths, size = first.lengths.tolist(), first.hparams.batch_size
    options = {name: getattr(first.hparams, name) for name in PARAMETERS.values()}
    for name in options:  # those that the rows with their strategy ran with
        if (used := runs.rows[name].dropna()).size:
            options[name] = getattr(runs.first(used.index[0]).hparams, name)
    main = list(runs.rows.index)
    if is_study:  # the follow-ups have a figure of their own
        main = [label for label in main if label == runs.rows["name"][label]]

    def losses(over: str) -> Figure:
        return draw_losses(runs, main, [(loss, over) for loss in LOSSES])

    found = {
        "figure_1_padded_batches": figures.draw_padded_batches(lengths, dynamic=False),
        "figure_2_parameter_sweeps": figures.draw_parameter_sweeps(
            Surveyor(first.lengths), size, options
        ),
        "figure_3_padded_batches_dynamic": figures.draw_padded_batches(lengths, dynamic=True),
        "figure_4_loss_over_epochs": losses("epoch"),
        "figure_4_loss_over_time": losses("hours"),
        "length_against_position": figures.draw_length_against_position(lengths, size, **options),
    }
    if is_study:
        found["loss_over_updates"] = losses("updates")
        several = runs.rows.index[runs.rows["name"].duplicated(keep=False)]
        if len(several):
            panels = [("validation_loss_unpadded", over) for over in ("epoch", "hours", "updates")]
            found["follow_ups"] = draw_losses(runs, list(several), panels)
        found["mixing_and_learning"] = draw_mixing(measured)
    return found


def draw_losses(runs: Runs, labels: list[str], panels: Sequence[tuple[str, str]]) -> Figure:
    """Panels of (loss, column of `runs.epochs` that it is drawn over) side by side.

    A line for each label: the mean of its seeds, in a band of one standard error. The losses of
    the first epochs dwarf all others, so the axis ends where the highest line is after 30 % of the
    epochs; what lies above is cut off, as the picture says.
    """
    epochs = runs.epochs[runs.epochs["label"].isin(labels)].dropna(subset=list(LOSSES))
    shared = epochs.groupby(["label", "epoch"])
    shown = shared[[*LOSSES, "hours", "updates"]].mean().reset_index()
    longest = shown["hours"].max()
    unit, factor = ("hours", 1.0) if longest >= 1 else ("minutes", 60.0)
    # Seeds differ in time, so that a line is drawn over the mean of their times.
    for name, scale in (("hours", factor), ("updates", 1.0)):
        epochs[name] = shared[name].transform("mean") * scale
    titles = {"hours": f"training time ({unit})", "epoch": "epoch", "updates": "updates"}
    figure = Figure(figsize=(5.5 * len(panels), 6.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    colours, markers, dashes, filled = _looks(runs, labels)
    if epochs.empty:  # no validation yet
        return figure
    for axes, (loss, over) in zip(all_axes, panels, strict=True):
        sns.lineplot(
            epochs,
            x=over,
            y=loss,
            hue="label",
            style="label",
            hue_order=labels,
            style_order=labels,
            palette=colours,
            markers=markers,
            dashes=dashes,
            errorbar="se",
            err_kws={"alpha": 0.18, "linewidth": 0},
            markeredgewidth=1,
            linewidth=1.4,
            ax=axes,
        )
        lines = [*axes.lines[: len(labels)], *axes.get_legend().get_lines()]
        every = max(1, epochs["epoch"].nunique() // MARKERS)
        for place, line in enumerate(lines):
            colour = line.get_color()
            line.set_markeredgecolor(colour)
            line.set_markerfacecolor(colour if filled[labels[place % len(labels)]] else "white")
            line.set_markevery((place * every // 10 % every, every))  # close lines take turns
        handles = axes.get_legend().get_lines()
        axes.get_legend().remove()
        axes.set_title(LOSSES[loss], fontsize=12, loc="left")
        axes.set(xlabel=titles[over], ylabel="")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=over != "hours"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        _limit(axes, [curve[loss].to_numpy() for _, curve in shown.groupby("label")])
    all_axes[0].set_ylabel("validation loss")
    columns = min(5, len(labels)) if max(map(len, labels)) < 20 else 2
    options = {"ncols": columns, "frameon": False, "handlelength": 4.5}
    figure.legend(handles, labels, loc="outside lower center", **options)
    return figure


def _looks(runs: Runs, labels: list[str]) -> tuple[dict, dict, dict, dict]:
    """Colour, marker, dashes and whether markers are filled, of every label; rows of one name in
    shades of its colour."""
    rows = runs.rows.loc[labels]
    colours, markers, dashes, filled = {}, {}, {}, {}
    for _name, same_name in rows.groupby("name"):
        for place, (label, row) in enumerate(same_name.iterrows()):
            style = STYLES[row["batching_strategy"]]
            lighter = 0.7 * place / max(1, len(same_name) - 1)
            colours[label] = tuple(v + lighter * (1 - v) for v in to_rgb(style.colour))
            markers[label] = style.marker if not place else FOLLOW_UP_MARKERS[place % 7]
            is_mixed = (
                "True" if row["batching_strategy"] == "random" else row["batch_randomization"]
            )
            dashes[label] = DASHES[row["dynamic_batch_size"], is_mixed]
            filled[label] = row["dynamic_batch_size"] == "True"
    return colours, markers, dashes, filled


def _limit(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    """End the vertical axis above what follows the first epochs, and say if that cuts lines off."""
    settled = [mean[int(SHOWN_FROM * len(mean)) :] for mean in curves]
    if not settled:
        return
    high, low = max(float(x.max()) for x in settled), min(float(x.min()) for x in settled)
    if low > 0 and high / low > WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        low, high = low / 1.08, high * 1.15
    else:
        room = 0.06 * (high - low) or 0.1 * high
        low, high = low - room, high + 2 * room
    axes.set_ylim(low, high)
    if any(float(mean.max()) > high for mean in curves):
        note = "higher losses of the first epochs are cut off"
        place = axes.transAxes
        axes.text(0.995, 0.985, note, transform=place, ha="right", va="top", color="0.35")


def draw_mixing(measured: Measured) -> Figure:
    """Loss at equal updates and word error rate against novelty and spread, a point a row."""
    mixed = mixing(measured.runs)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    colours, markers, _, filled = _looks(measured.runs, list(mixed.index))
    for line, (outcome, found) in zip(panels, outcomes(measured).items(), strict=True):
        for axes, measure in zip(line, mixed, strict=True):
            for label, point in found.dropna(subset="ours").to_dict("index").items():
                axes.errorbar(
                    mixed[str(measure)][str(label)],
                    point["ours"],
                    yerr=point["standard_error"],
                    marker=markers[label],
                    color=colours[label],
                    markerfacecolor=colours[label] if filled[label] else "white",
                    linestyle="none",
                    label=label,
                )
            axes.set(xlabel=measure, ylabel=outcome)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
