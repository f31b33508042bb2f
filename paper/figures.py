"""Pictures of what batchings do: the papers' figures from any corpus' lengths.

Every strategy keeps its colour and marker in all pictures, so they can be told apart without
colour too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import seaborn
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from common.files import write_atomically
from length_batching import REGISTRY, batching_name, padding_stats, plan_epoch
from length_batching.costs import batch_of_place
from paper.survey import DEFAULTS, PARAMETER, Surveyor, parameter_values, value_in_words

Lengths = Sequence[int] | np.ndarray  # [clips] frames


class Style(NamedTuple):
    colour: str
    marker: str


# Okabe and Ito's colours, which the colour-blind can tell apart, with a grey.
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
OTHER_MARKERS = "hp*dH8"  # of strategies that were added since, in the order of the registry
GREY = "#555555"
RING: dict[str, Any] = {"marker": "o", "markersize": 12, "mfc": "none", "linestyle": "none"}


def style_of(strategy: str) -> Style:
    """A strategy's colour and marker: yellow for one that has no entry in STYLES."""
    others = [name for name in REGISTRY if name not in STYLES]
    if strategy in STYLES:
        return STYLES[strategy]
    return Style("#F0E442", OTHER_MARKERS[others.index(strategy) % len(OTHER_MARKERS)])


def write_figure(figure: Figure, path: Path) -> Path:
    """The figure as an SVG, with text as text; the same figure gives the same bytes."""
    # Ids inside an SVG follow from the salt: another for each picture, or two would clash in one
    # web page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        options: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}}
        write_atomically(path, lambda file: figure.savefig(file, **options))
    return path


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
    shown: int = 48,
    **options: Any,
) -> Figure:
    """A panel for each (strategy, dynamic sizes) with the first batches of an epoch, as many as
    hold the `shown` first clips: a bar a clip, its real frames filled and its padding hatched."""
    figure = Figure(figsize=(9, 2.3 * len(batchings)), layout="constrained")
    rows = figure.subplots(len(batchings), 1, sharey=True)
    hatched: dict[str, Any] = {"facecolor": "white", "hatch": "/////"}
    for axes, (strategy, dynamic) in zip(rows, batchings, strict=True):
        plan = plan_epoch(lengths, batch_size, strategy, dynamic_batch_size=dynamic, **options)
        stats, colour = padding_stats(lengths, plan), style_of(strategy).colour
        first = plan.rearranged(np.flatnonzero(plan.starts < shown))
        real, batch_of_clip = lengths[first.order], batch_of_place(first)
        longest = np.maximum.reduceat(real, first.starts)
        left = first.starts + np.arange(len(first))  # a clip's width between batches
        x = np.arange(len(real)) + batch_of_clip + 0.5
        padding = longest[batch_of_clip] - real
        axes.bar(x, real, width=0.82, color=colour, linewidth=0)
        axes.bar(x, padding, bottom=real, width=0.82, linewidth=0.5, edgecolor=colour, **hatched)
        axes.hlines(longest, left, left + first.sizes, color=colour, linewidth=1.2)
        axes.set(xlim=(-1, x[-1] + 1.5), ylim=(0, lengths.max() * 1.12), ylabel="frames")
        axes.set_xticks(left + first.sizes / 2, [str(size) for size in first.sizes])
        axes.tick_params(axis="x", length=0)
        name = batching_name(strategy, dynamic, options.get("batch_randomization", False))
        title = f"{name}: ZPR {stats.zero_padding_rate:.1%}, batches: {len(plan):,}, together"
        axes.set_title(f"{title} {stats.decoder_steps:,.0f} frames long", loc="left", fontsize=11)
    clips = f"{len(lengths)} clips" if len(lengths) <= shown else "first batches of an epoch"
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
    per_octave: int = 2,
) -> Figure:
    """Ge21 Figure 2, a column each for SSB, BKT and ATS with fixed batch sizes.

    Upper rows: the parameter against ZPR and against ABL, means of `epochs`, with a ring around the
    value `chosen` (by parameter), or the nearest that the corpus allows. Lowest row: the longest
    clip of every batch at that value, in the order planned and sorted.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid, lengths = figure.subplots(3, 3, sharey="row"), surveyor.lengths
    for column, strategy in zip(grid.T, ("semi_sorted", "bucket", "alternated_sort"), strict=True):
        parameter, style = PARAMETER[strategy], style_of(strategy)
        value = np.clip(chosen[parameter.name], *parameter.limits(len(lengths), batch_size)).item()
        values = parameter_values(strategy, len(lengths), batch_size, per_octave, [value])
        surveys = [surveyor.survey(batch_size, strategy, value=v, epochs=epochs) for v in values]
        rates = [100 * one.zero_padding_rate for one in surveys]
        means = [one.average_batch_length for one in surveys]
        used, words = values.index(value), value_in_words(strategy, value)
        for axes, heights in zip(column, (rates, means), strict=False):
            axes.plot(values, heights, color=style.colour, marker=style.marker, markersize=4)
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
        plan = plan_epoch(lengths, batch_size, strategy, **options)
        longest = np.maximum.reduceat(lengths[plan.order], plan.starts)
        numbers, dots = np.arange(1, len(plan) + 1), "o" if len(plan) < 40 else None
        lower.plot(numbers, longest, color=style.colour, marker=dots, label="in the order planned")
        lower.plot(numbers, np.sort(longest), "--", color="black", label="sorted")
        lower.set(xlabel=f"number of the batch ({words})", ylim=(0, surveyor.longest * 1.25))
        lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        lower.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
    labels = ("ZPR (%)", "ABL (frames)", "batch length (frames)")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    seaborn.despine(fig=figure)
    return figure
