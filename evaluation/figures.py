"""Pictures of batchings and of training: the paper's figures from any corpus' lengths, and what
runs have learnt.

Every strategy keeps its color and marker in all pictures, so they can be told apart without
color too.
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

Lengths = Sequence[int] | np.ndarray  # [clips] frames


class Style(NamedTuple):
    color: str
    marker: str


# Okabe and Ito's colors, which the color-blind can tell apart, and a gray. A strategy that is not
# here is gray too: see `style_of`.
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
GREY = "#555555"
MORE_MARKERS = "pHd*h8"
RING: dict[str, Any] = {"marker": "o", "markersize": 12, "mfc": "none", "linestyle": "none"}


def style_of(strategy: str) -> Style:
    """The strategy's color and marker; those without an entry in STYLES differ in the marker."""
    others = [name for name in STRATEGIES if name not in STYLES]
    if strategy in STYLES:
        return STYLES[strategy]
    return Style(GREY, MORE_MARKERS[others.index(strategy) % len(MORE_MARKERS)])


def write_figure(figure: Figure, path: Path) -> Path:
    """Write the figure as an SVG, with text as text; the same figure gives the same bytes."""
    # Ids inside an SVG follow from the salt: another for each picture, or two would clash in one
    # web page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        options: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}}
        write_atomically(path, lambda file: figure.savefig(file, **options))
    return path


def draw_progress(
    values: pd.DataFrame, quantities: Sequence[str], over: Sequence[str] = ("epoch",)
) -> Figure:
    """What runs have learnt: a row of panels for each column of `over`, a panel for each quantity.

    Args:
        values: [name and epoch of every run] `name` and the columns to draw. Each name is a line:
            the mean of its runs, in a band of one standard error. Times are means too.
    """
    names = list(values["name"].unique())
    quantities = [quantity for quantity in quantities if values[quantity].notna().any()]
    shape = len(over), len(quantities)
    figure = Figure(figsize=(5.2 * shape[1], 4.6 * shape[0] + 0.6), layout="constrained")
    means = values.assign(
        **{x: values.groupby(["name", "epoch"])[x].transform("mean") for x in over}
    )
    looks: dict[str, Any] = {"hue": "name", "style": "name", "dashes": False, "markers": True}
    looks |= {"palette": "colorblind", "hue_order": names, "style_order": names}
    looks |= {"errorbar": "se", "err_kws": {"alpha": 0.18, "linewidth": 0}}
    for row, x in zip(figure.subplots(*shape, squeeze=False), over, strict=True):
        for axes, quantity in zip(row, quantities, strict=True):
            lines = means.dropna(subset=[quantity, x])
            every = 1 + lines["epoch"].nunique() // 15
            seaborn.lineplot(lines, x=x, y=quantity, ax=axes, markevery=every, **looks)
            if legend := axes.get_legend():
                handles = legend.legend_handles
                legend.remove()
            axes.set_title(quantity.replace("_", " "), loc="left")
            axes.set(xlabel=x.replace("_", " "), ylabel="")
            axes.locator_params("x", integer=x == "epoch")
            if quantity != "alignment_sharpness":
                axes.set_yscale("log", subs=[1.5, 2, 3, 5, 7])
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}")
            axes.grid(alpha=0.3, which="both")
    columns = min(len(names), 2 * shape[1])
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    seaborn.despine(fig=figure)
    return figure


def draw_padded_batches(lengths: Lengths, *, dynamic: bool) -> Figure:
    """Ge21 Figure 1 (fixed sizes) or 3 (dynamic): batches of 48 clips, drawn at random, under RAND,
    SB and SSB. Batch size 8, local randomization factor 0.15, as in the paper."""
    clips = np.random.default_rng(0).permutation(np.asarray(lengths))[:48]
    batchings = [(strategy, dynamic) for strategy in ("random", "sorted", "semi_sorted")]
    return _draw_batches(clips, 8, batchings, local_randomization_factor=0.15)


def draw_epoch_excerpt(lengths: Lengths, batch_size: int, *, clips: int = 96) -> Figure:
    """The first batches of an epoch under RAND and under SSB-DBS-BR, about `clips` clips of each,
    planned, as the titles say, for the whole corpus: few clips alone are padded much more."""
    lengths, batchings = np.asarray(lengths), [("random", False), ("semi_sorted", True)]
    return _draw_batches(lengths, batch_size, batchings, clips, batch_randomization=True)


def _draw_batches(
    lengths: np.ndarray,
    batch_size: int,
    batchings: Sequence[tuple[str, bool]],
    max_clips: int = 48,
    **options: Any,
) -> Figure:
    """A panel for each (strategy, dynamic sizes) with the first batches of an epoch, as many as
    hold the `max_clips` first clips: a bar a clip, real frames filled and padding hatched."""
    figure = Figure(figsize=(9, 2.3 * len(batchings)), layout="constrained")
    rows = figure.subplots(len(batchings), 1, sharey=True)
    hatched: dict[str, Any] = {"facecolor": "white", "hatch": "/////"}
    for axes, (strategy, dynamic) in zip(rows, batchings, strict=True):
        plan = plan_epoch(
            lengths, batch_size, check_strategy(strategy), dynamic_batch_size=dynamic, **options
        )
        stats, color = padding_stats(lengths, plan), style_of(strategy).color
        first = plan.select(np.flatnonzero(plan.starts < max_clips))
        real, batch_of_clip = lengths[first.order], batch_of_position(first)
        longest = np.maximum.reduceat(real, first.starts)
        left = first.starts + np.arange(len(first))  # a clip's width between batches
        x = np.arange(len(real)) + batch_of_clip + 0.5
        padding = longest[batch_of_clip] - real
        axes.bar(x, real, width=0.82, color=color, linewidth=0)
        axes.bar(x, padding, bottom=real, width=0.82, linewidth=0.5, edgecolor=color, **hatched)
        axes.hlines(longest, left, left + first.sizes, color=color, linewidth=1.2)
        axes.set(xlim=(-1, x[-1] + 1.5), ylim=(0, lengths.max() * 1.12), ylabel="frames")
        axes.set_xticks(left + first.sizes / 2, [str(size) for size in first.sizes])
        axes.tick_params(axis="x", length=0)
        name = batching_name(strategy, dynamic, options.get("batch_randomization", False))
        title = f"{name}: ZPR {stats.zero_padding_rate:.1%}, batches: {len(plan):,}, together"
        axes.set_title(f"{title} {stats.decoder_steps:,.0f} frames long", loc="left", fontsize=11)
    clips = f"{len(lengths)} clips" if len(lengths) <= max_clips else "first batches of an epoch"
    axes.set_xlabel(f"the {clips}, a bar a clip; under each batch its number of clips")
    handles = [Patch(facecolor=GREY, edgecolor=GREY, label="real frames")]
    handles.append(Patch(edgecolor=GREY, label="padding", **hatched))
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)
    seaborn.despine(fig=figure)
    return figure


def draw_parameter_sweeps(
    surveyor: Surveyor,
    batch_size: int,
    chosen: Mapping[str, Any] = DEFAULTS,
    epochs: int = 3,
    per_doubling: int = 2,
) -> Figure:
    """Ge21 Figure 2, a column each for SSB, BKT and ATS with fixed batch sizes.

    Upper rows: the parameter against ZPR and against ABL, means of `epochs`, with a ring around the
    value `chosen` (by parameter), or the nearest that the corpus allows. Lowest row: the longest
    clip of every batch at that value, in the order planned and sorted.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid, lengths = figure.subplots(3, 3, sharey="row"), surveyor.lengths
    for column, strategy in zip(grid.T, ("semi_sorted", "bucket", "alternated_sort"), strict=True):
        parameter, style = PARAMETER_OF[strategy], style_of(strategy)
        value = np.clip(chosen[parameter.name], *parameter.limits(len(lengths), batch_size)).item()
        values = parameter_values(strategy, len(lengths), batch_size, per_doubling, [value])
        surveys = [surveyor.survey(batch_size, strategy, value=v, epochs=epochs) for v in values]
        rates = [100 * one.zero_padding_rate for one in surveys]
        means = [one.average_batch_length for one in surveys]
        used, words = values.index(value), value_in_words(strategy, value)
        for axes, heights in zip(column, (rates, means), strict=False):
            axes.plot(values, heights, color=style.color, marker=style.marker, markersize=4)
            axes.plot(value, heights[used], color="black", **RING)
            if 0 in values:  # a factor of 0 has a place on the axis only if it is linear there
                axes.set_xscale("symlog", linthresh=values[1])
            else:
                axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.grid(alpha=0.3)
        upper, middle, lower = column
        short = REGISTRY[strategy].short_name
        upper.set_title(f"{short}: {rates[used]:.2f} % with {words}", fontsize=11)
        middle.set_title(f"{means[used]:.1f} frames with {words}", fontsize=11)
        middle.set_xlabel(parameter.label)
        options: dict[str, Any] = {parameter.name: value, "seed": surveyor.seed, "epoch": 1}
        plan = plan_epoch(lengths, batch_size, check_strategy(strategy), **options)
        longest = np.maximum.reduceat(lengths[plan.order], plan.starts)
        numbers, dots = np.arange(1, len(plan) + 1), "o" if len(plan) < 40 else None
        lower.plot(numbers, longest, color=style.color, marker=dots, label="in the order planned")
        lower.plot(numbers, np.sort(longest), "--", color="black", label="sorted")
        lower.set(xlabel=f"number of the batch ({words})", ylim=(0, surveyor.longest * 1.25))
        lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        lower.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
    labels = ("ZPR (%)", "ABL (frames)", "batch length (frames)")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    seaborn.despine(fig=figure)
    return figure
