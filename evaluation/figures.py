"""Draw plots of batching strategies and of training runs.

    figure = draw_padded_batches(lengths, dynamic=True)
    write_figure(figure, Path("figure_3.svg"))

The plots of batches reproduce the figures of the paper (Ge et al. 2021) with the clip lengths of
any corpus. Each strategy has a fixed color and marker in all plots.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from length_batching import (
    REGISTRY,
    STRATEGIES,
    batching_name,
    check_strategy,
    padding_stats,
    plan_epoch,
)
from length_batching.costs import batch_of_position
from length_batching.search import (
    DEFAULTS,
    PARAMETER_OF,
    Surveyor,
    parameter_values,
    value_in_words,
)
from tacotron2_voice.utils.files import write_atomically

Lengths = Sequence[int] | np.ndarray  # array [clips]: number of frames of each clip


class Style(NamedTuple):
    color: str
    marker: str


# Colors of the batching strategies: gray, and colors by Okabe and Ito that color-blind readers can
# distinguish. `style_of` returns a darker gray for strategies that are not in this table.
STYLES = {
    "random": Style("#D55E00", "o"),
    "sorted": Style("#000000", "s"),
    "semi_sorted": Style("#0072B2", "^"),
    "semi_sorted_rank": Style("#56B4E9", "v"),
    "semi_sorted_exponential": Style("#009E73", "D"),
    "bucket": Style("#CC79A7", "P"),
    "bucket_by_width": Style("#808080", "<"),
    "bucket_by_quantile": Style("#808080", ">"),
    "alternated_sort": Style("#E69F00", "X"),
}
GRAY = "#555555"
MORE_MARKERS = "pHd*h8"
# Axis labels for columns of metrics.jsonl whose names are unclear.
LABELS = {
    "alignment_sharpness": "focus rate",
    "updates": "optimizer steps",
    "validation_loss_unpadded": "masked validation loss",
}
RING: dict[str, Any] = {"marker": "o", "markersize": 12, "mfc": "none", "linestyle": "none"}


def style_of(strategy: str) -> Style:
    """Return the color and the marker of a batching strategy.

    Strategies that are not in STYLES are gray, each with a different marker.
    """
    if strategy in STYLES:
        return STYLES[strategy]
    others = [name for name in STRATEGIES if name not in STYLES]
    return Style(GRAY, MORE_MARKERS[others.index(strategy) % len(MORE_MARKERS)])


def label_of(quantity: str) -> str:
    """Return the axis label for a column of metrics.jsonl."""
    return LABELS.get(quantity, quantity.replace("_", " "))


def write_figure(figure: Figure, path: Path) -> Path:
    """Write the figure as an SVG file with searchable text, and return the path.

    Writing the same figure again always produces the same bytes.
    """
    # Matplotlib derives the ids inside an SVG file from a salt. Use a different salt for each file,
    # because equal ids in two plots on the same web page would conflict.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        options: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}}
        write_atomically(path, lambda file: figure.savefig(file, **options))
    return path


def draw_progress(
    values: pd.DataFrame, quantities: Sequence[str], over: Sequence[str] = ("epoch",)
) -> Figure:
    """Draw the learning curves of runs, with one column of panels per quantity and one row of
    panels per x axis.

    Each line is the mean over all runs with the same name. The band around the line extends one
    standard error above and below the mean.

    Args:
        values: one row per run and epoch, with the columns `name`, `epoch`, `quantities` and
            `over`. If an x axis shows times, these times are means over all runs with the same
            name.
        quantities: columns to draw, such as "validation_loss". Columns without values are left out.
        over: columns to use as x axes.
    """
    names = list(values["name"].unique())
    quantities = [quantity for quantity in quantities if values[quantity].notna().any()]
    rows = len(over)
    columns = len(quantities)
    figure = Figure(figsize=(5.2 * columns, 4.6 * rows + 0.6), layout="constrained")
    means = values.assign(
        **{x: values.groupby(["name", "epoch"])[x].transform("mean") for x in over}
    )
    style: dict[str, Any] = {
        "hue": "name",
        "hue_order": names,
        "style": "name",
        "style_order": names,
        "palette": "colorblind",
        "dashes": False,
        "markers": True,
        "errorbar": "se",
        "err_kws": {"alpha": 0.18, "linewidth": 0},
    }
    for panels, x in zip(figure.subplots(rows, columns, squeeze=False), over, strict=True):
        for axes, quantity in zip(panels, quantities, strict=True):
            lines = means.dropna(subset=[quantity, x])
            epochs_per_marker = 1 + lines["epoch"].nunique() // 15
            seaborn.lineplot(lines, x=x, y=quantity, ax=axes, markevery=epochs_per_marker, **style)
            legend = axes.get_legend()
            if legend:
                handles = legend.legend_handles
                legend.remove()
            axes.set_title(label_of(quantity), loc="left")
            axes.set(xlabel=label_of(x), ylabel="")
            axes.locator_params("x", integer=x == "epoch")
            if quantity != "alignment_sharpness":
                axes.set_yscale("log", subs=[1.5, 2, 3, 5, 7])
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}")
            axes.grid(alpha=0.3, which="both")
    legend_columns = min(len(names), 2 * columns)
    figure.legend(handles, names, loc="outside lower center", ncols=legend_columns, frameon=False)
    seaborn.despine(fig=figure)
    return figure


def draw_padded_batches(lengths: Lengths, *, dynamic: bool) -> Figure:
    """Draw the batches that RAND, SB and SSB make of 48 random clips.

    The plot corresponds to Figure 1 (fixed batch sizes) or Figure 3 (dynamic batch sizes) of the
    paper (Ge et al. 2021). The batch size (8) and the local randomization factor (0.15) are the
    same as in the paper.

    Args:
        lengths: number of frames of each clip.
    """
    clips = np.random.default_rng(0).permutation(np.asarray(lengths))[:48]
    panels = [(strategy, dynamic) for strategy in ("random", "sorted", "semi_sorted")]
    return _draw_batches(clips, 8, panels, local_randomization_factor=0.15)


def draw_epoch_excerpt(lengths: Lengths, batch_size: int, *, clips: int = 96) -> Figure:
    """Draw the first batches of an epoch for RAND and for SSB-DBS-BR.

    The batches are planned for the whole corpus, because a plan for only a few clips would need
    much more padding. The values in the titles are for the whole epoch.

    Args:
        lengths: number of frames of each clip.
        clips: approximate number of clips to draw per strategy.
    """
    panels = [("random", False), ("semi_sorted", True)]
    return _draw_batches(np.asarray(lengths), batch_size, panels, clips, batch_randomization=True)


def _draw_batches(
    lengths: np.ndarray,
    batch_size: int,
    panels: Sequence[tuple[str, bool]],
    max_clips: int = 48,
    **options: Any,
) -> Figure:
    """Draw one panel per batching strategy, with one bar per clip. The filled part of a bar is
    audio, and the hatched part is padding.

    Args:
        panels: one pair per panel: the strategy, and whether batch sizes are dynamic.
        max_clips: draw the batches that begin within the first `max_clips` clips of the epoch.
        options: arguments for `plan_epoch`.
    """
    figure = Figure(figsize=(9, 2.3 * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), 1, sharey=True)
    hatched: dict[str, Any] = {"facecolor": "white", "hatch": "/////"}
    for axes, (strategy, dynamic) in zip(rows, panels, strict=True):
        plan = plan_epoch(
            lengths, batch_size, check_strategy(strategy), dynamic_batch_size=dynamic, **options
        )
        stats = padding_stats(lengths, plan)
        color = style_of(strategy).color
        first = plan.select(np.flatnonzero(plan.starts < max_clips))
        real = lengths[first.order]
        batch_of_clip = batch_of_position(first)
        longest = np.maximum.reduceat(real, first.starts)
        # Leave a gap of one clip between two batches.
        left = first.starts + np.arange(len(first))
        x = np.arange(len(real)) + batch_of_clip + 0.5
        padding = longest[batch_of_clip] - real
        axes.bar(x, real, width=0.82, color=color, linewidth=0)
        axes.bar(x, padding, bottom=real, width=0.82, linewidth=0.5, edgecolor=color, **hatched)
        axes.hlines(longest, left, left + first.sizes, color=color, linewidth=1.2)
        axes.set(xlim=(-1, x[-1] + 1.5), ylim=(0, lengths.max() * 1.12), ylabel="frames")
        axes.set_xticks(left + first.sizes / 2, [str(size) for size in first.sizes])
        axes.tick_params(axis="x", length=0)
        name = batching_name(strategy, dynamic, options.get("batch_randomization", False))
        axes.set_title(
            f"{name}: ZPR {stats.zero_padding_rate:.1%}, {len(plan):,} batches, "
            f"{stats.decoder_steps:,.0f} decoder steps",
            loc="left",
            fontsize=11,
        )
    drawn = f"all {len(lengths)} clips"
    if len(lengths) > max_clips:
        drawn = "first batches of an epoch"
    axes.set_xlabel(f"{drawn}, one bar per clip; the numbers are clips per batch")
    handles = [Patch(facecolor=GRAY, edgecolor=GRAY, label="audio")]
    handles.append(Patch(edgecolor=GRAY, label="padding", **hatched))
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)
    seaborn.despine(fig=figure)
    return figure


def draw_parameter_sweeps(
    surveyor: Surveyor, batch_size: int, chosen: Mapping[str, Any] = DEFAULTS
) -> Figure:
    """Draw Figure 2 of the paper (Ge et al. 2021), with one column for each of the batching
    strategies SSB, BKT and ATS. All strategies use fixed batch sizes.

    The top two rows show the zero-padding rate (ZPR) and the average batch length (ABL) as
    functions of the strategy's parameter (means over three epochs). A circle marks the chosen value
    of the parameter. The bottom row shows an epoch with the chosen value: the length of the longest
    clip in each batch, in planned order and in sorted order.

    Args:
        chosen: {name of a parameter: chosen value}. If the corpus does not allow the chosen value,
            the nearest allowed value is used.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(3, 3, sharey="row")
    lengths = surveyor.lengths
    for column, strategy in zip(grid.T, ("semi_sorted", "bucket", "alternated_sort"), strict=True):
        parameter = PARAMETER_OF[strategy]
        style = style_of(strategy)
        value = np.clip(chosen[parameter.name], *parameter.limits(len(lengths), batch_size)).item()
        values = parameter_values(strategy, len(lengths), batch_size, 2, [value])
        surveys = [surveyor.survey(batch_size, strategy, value=v, epochs=3) for v in values]
        rates = [100 * survey.zero_padding_rate for survey in surveys]
        means = [survey.average_batch_length for survey in surveys]
        used = values.index(value)
        words = value_in_words(strategy, value)
        for axes, heights in zip(column, (rates, means), strict=False):
            axes.plot(values, heights, color=style.color, marker=style.marker, markersize=4)
            axes.plot(value, heights[used], color="black", **RING)
            if 0 in values:  # a logarithmic axis cannot show the value 0
                axes.set_xscale("symlog", linthresh=values[1])
            else:
                axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.grid(alpha=0.3)
        upper, middle, lower = column
        short = REGISTRY[strategy].short_name
        upper.set_title(f"{short}: {rates[used]:.2f}% with {words}", fontsize=11)
        middle.set_title(f"{means[used]:.1f} frames with {words}", fontsize=11)
        middle.set_xlabel(parameter.label)
        options: dict[str, Any] = {parameter.name: value, "seed": surveyor.seed, "epoch": 1}
        plan = plan_epoch(lengths, batch_size, check_strategy(strategy), **options)
        longest = np.maximum.reduceat(lengths[plan.order], plan.starts)
        numbers = np.arange(1, len(plan) + 1)
        marker = "o" if len(plan) < 40 else None
        lower.plot(numbers, longest, color=style.color, marker=marker, label="in planned order")
        lower.plot(numbers, np.sort(longest), "--", color="black", label="sorted")
        lower.set(xlabel=f"batch number ({words})", ylim=(0, surveyor.longest * 1.25))
        lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        lower.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
    labels = ("ZPR (%)", "ABL (frames)", "batch length (frames)")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    seaborn.despine(fig=figure)
    return figure
