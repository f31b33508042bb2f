"""Figure 4 of a report: how the validation loss falls, over epochs and over wall-clock time."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.figures import STYLES
from analysis.report_runs import FinishedRun, ReportRow
from analysis.strategies import PARAMETERS

LOSSES = {
    "validation_loss": "mean over padding too, as in the paper",
    "validation_loss_unpadded": "mean over real frames",
}
# The strategy gives the colour and the marker, what is done to the batches the dashes.
DASHES = {
    (False, False): (0, (1, 1.3)),
    (False, True): (0, (5, 1.6)),
    (True, False): (0, (6, 1.4, 1.2, 1.4)),
    (True, True): "-",
}
SHOWN_FROM = 0.3  # the losses before this share of the epochs may lie above the picture
WIDE = 3  # highest over lowest loss from which the axis is logarithmic
MARKERS = 9  # along a line
FOLLOW_UP_MARKERS = "osD^vPX"


def draw_validation_losses(rows: Sequence[ReportRow], *, over: str) -> Figure:
    """Ge21 Figure 4: validation loss over "epochs", the "time" that the run took until then, or
    "updates"; left with padding, as the paper has it, right without.
    """
    styles = [_style(rows, number) for number in range(len(rows))]
    return _draw_panels(rows, styles, [(name, over, title) for name, title in LOSSES.items()])


def draw_follow_ups(rows: Sequence[ReportRow]) -> Figure:
    """Batchings that were trained with several settings: unpadded loss over epochs, time and
    updates. A line a row, those of one name in shades of its colour."""
    styles = []
    for number, row in enumerate(rows):
        same_name = [other.label for other in rows if other.name == row.name]
        nth = same_name.index(row.label)
        style = _style(rows, number)
        colour = _lighter(style["color"], 0.7 * nth / max(1, len(same_name) - 1))
        filled = row.runs[0].hparams.dynamic_batch_size
        own = {"color": colour, "markerfacecolor": colour if filled else "white"}
        styles.append(style | own | {"marker": FOLLOW_UP_MARKERS[nth % len(FOLLOW_UP_MARKERS)]})
    loss = "validation_loss_unpadded"
    panels = [(loss, over, LOSSES[loss]) for over in ("epochs", "time", "updates")]
    return _draw_panels(rows, styles, panels)


def _draw_panels(
    rows: Sequence[ReportRow], styles: Sequence[dict], panels: Sequence[tuple[str, str, str]]
) -> Figure:
    """Panels of (loss, what it is drawn over, title) side by side.

    A line a row: the mean of its seeds, in a band of one standard error. The first epochs' losses
    dwarf all others, so the axis ends where the highest line is after 30 % of the epochs; what
    lies above is cut off, as the picture says.
    """
    figure = Figure(figsize=(5.5 * len(panels), 6.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, over, title) in zip(all_axes, panels, strict=True):
        curves = [_curve(row, name, over=over) for row in rows]
        longest = max((x[-1] for x, _, _ in curves if x.size), default=0)
        unit, factor = ("hours", 1.0) if longest >= 1 else ("minutes", 60.0)
        for number, (row, style, curve) in enumerate(zip(rows, styles, curves, strict=True)):
            x, mean, error = curve
            every = max(1, len(x) // MARKERS)
            markevery = (number * every // 10 % every, every)  # lines close together take turns
            x = x * factor if over == "time" else x
            if error is not None:
                axes.fill_between(
                    x, mean - error, mean + error, color=style["color"], alpha=0.18, linewidth=0
                )
            axes.plot(x, mean, label=row.label, markevery=markevery, **style)
        cut = _limit(axes, curves)
        axes.set_title(title, fontsize=12, loc="left")
        labels = {"time": f"training time ({unit})", "epochs": "epoch", "updates": "updates"}
        axes.set_xlabel(labels[over])
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=over != "time"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if cut:
            axes.text(
                0.995,
                0.985,
                "higher losses of the first epochs are cut off",
                transform=axes.transAxes,
                ha="right",
                va="top",
                fontsize=8.5,
                color="#555555",
            )
    all_axes[0].set_ylabel("validation loss")
    handles, labels = all_axes[0].get_legend_handles_labels()
    columns = min(5, len(labels)) if max(map(len, labels)) < 20 else 2
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=4.5
    )
    return figure


def _lighter(colour: str, share: float) -> tuple[float, ...]:
    """`colour`, that share of the way to white."""
    return tuple(value + share * (1 - value) for value in to_rgb(colour))


def _curve(row: ReportRow, name: str, *, over: str):
    """Epochs (hours, updates), mean loss and its standard error (None for one seed), alike.

    Seeds have their validations in common, unless one was resumed with other settings: then the
    epochs that all have are shown.
    """
    tables = [{v.epoch: getattr(v, name) for v in run.metrics.validations} for run in row.runs]
    epochs = sorted(set.intersection(*(set(table) for table in tables)))
    losses = np.array([[table[epoch] for epoch in epochs] for table in tables])
    x = np.array(epochs, dtype=float)
    if over != "epochs":
        spent = hours_spent if over == "time" else updates_made
        x = np.mean([spent(run)[np.array(epochs, dtype=int) - 1] for run in row.runs], axis=0)
    error = None
    if len(row.runs) > 1:
        error = losses.std(axis=0, ddof=1) / np.sqrt(len(row.runs))
    return x, losses.mean(axis=0), error


def hours_spent(run: FinishedRun) -> np.ndarray:
    """Hours of training until the end of every epoch, [epochs]; as timed in turns, if they were."""
    return np.cumsum(run.minutes_of_epochs) / 60


def updates_made(run: FinishedRun) -> np.ndarray:
    """Updates of the weights until the end of every epoch, [epochs]."""
    return np.cumsum([epoch.num_batches for epoch in run.metrics.epochs])


def _style(rows: Sequence[ReportRow], number: int) -> dict:
    row = rows[number]
    hparams = row.runs[0].hparams
    style = STYLES[hparams.batching_strategy]
    fixed_order = (hparams.dynamic_batch_size, hparams.batch_randomization)
    if hparams.batching_strategy == "random":
        fixed_order = (hparams.dynamic_batch_size, True)  # its batches are in random order
    dashes = DASHES[fixed_order]
    before = [other.name for other in rows[:number]].count(row.name)
    if before:  # another row of this name, with other settings
        dashes = (0, (9, 1.5, *(1.2, 1.5) * (before + 1)))
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 5.5,
        "markerfacecolor": style.colour if hparams.dynamic_batch_size else "white",
        "linestyle": dashes,
        "linewidth": 1.4,
    }


def _limit(axes, curves) -> bool:
    """Let the vertical axis end above what follows the first epochs; say if that cuts lines off."""
    settled = [mean[int(SHOWN_FROM * len(mean)) :] for _, mean, _ in curves if mean.size]
    if not settled:
        return False
    high = max(float(mean.max()) for mean in settled)
    low = min(float(mean.min()) for mean in settled)
    if low > 0 and high / low > WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        low, high = low / 1.08, high * 1.15
    else:
        room = 0.06 * (high - low) or 0.1 * high
        low, high = low - room, high + 2 * room
    axes.set_ylim(low, high)
    return any(float(mean.max()) > high for _, mean, _ in curves if mean.size)


def figure_lengths(rows: Sequence[ReportRow]) -> tuple[np.ndarray, dict]:
    """The lengths that Figures 1 to 3 are drawn from, and plan_epoch's options for them.

    Those of the first row; the parameters are those that the rows with their strategy ran with.
    """
    first = rows[0].runs[0]
    options = {name: getattr(first.hparams, name) for name in PARAMETERS.values()}
    for row, name in itertools.product(reversed(rows), options):
        if name in row.settings:
            options[name] = row.settings[name]
    options["num_bins"] = min(options["num_bins"], len(first.lengths))
    options["bucket_size"] = max(options["bucket_size"], first.hparams.batch_size)
    return first.lengths, options
