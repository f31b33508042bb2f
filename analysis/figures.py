"""Pictures of what batchings do: the papers' figures from any corpus' lengths.

Every strategy keeps its colour, marker and dashes in all pictures, so they can be told apart
without colour too.
"""

import functools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.survey import (
    DEFAULTS,
    PARAMETER,
    PARAMETERS,
    Surveyor,
    batching_name,
    number_text,
    parameter_values,
    sweep,
    value_in_words,
)
from batching import REGISTRY, STRATEGIES, BatchingError, padding_stats, plan_epoch
from files import write_atomically


class Style(NamedTuple):
    colour: str
    marker: str
    dashes: Any  # a linestyle of matplotlib


# Okabe and Ito's colours, which the colour-blind can tell apart, with a grey.
STYLES = {
    "random": Style("#D55E00", "o", "-"),
    "sorted": Style("#000000", "s", "-"),
    "semi_sorted": Style("#0072B2", "^", "-"),
    "semi_sorted_rank": Style("#56B4E9", "v", (0, (5, 1.5))),
    "semi_sorted_exponential": Style("#009E73", "D", (0, (8, 1.5, 1.5, 1.5))),
    "bucket": Style("#CC79A7", "P", "-"),
    "bucket_by_width": Style("#808080", "<", (0, (1.2, 1.2))),
    "bucket_by_quantile": Style("#808080", ">", (0, (4, 1.2, 1.2, 1.2))),
    "alternated_sort": Style("#E69F00", "X", (0, (2.5, 1.2))),
}
GREY = "#555555"
MOST_DOTS = 50_000  # in a panel
RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 12,
    "markerfacecolor": "none",
    "linestyle": "none",
}
NOVELTY_TICKS = (0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999)
SPREAD_TICKS = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
PADDING_TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70)


def write_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """The figure as .svg (text as text) and .png; the same figure gives the same bytes."""
    path = Path(path_without_suffix)
    written = [path.with_name(path.name + suffix) for suffix in (".svg", ".png")]
    # Ids inside an SVG follow from the salt: another for each picture, or two would clash in one
    # web page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        for target in written:
            options: dict[str, Any] = {"dpi": 150}
            if target.suffix == ".svg":
                options = {"metadata": {"Date": None}}
            save = functools.partial(figure.savefig, format=target.suffix[1:], **options)
            write_atomically(target, save)
    return written


def _fixed_ticks(axis, ticks: Sequence[float], text: Callable[[float], str] = number_text) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


# ---------------------------------------------------------------------------- padded batches


def draw_padded_batches(lengths: np.ndarray, *, dynamic: bool, seed: int = 0) -> Figure:
    """Ge21 Figure 1 (fixed sizes) or 3 (dynamic): the batches of 48 clips under RAND, SB and SSB.

    A bar a clip, its real frames filled and its padding hatched; batches are set apart. Batch
    size 8, local randomization factor 0.15, as in the paper. The clips are drawn at random from
    `lengths`; fewer than 48 are all taken.
    """
    lengths = np.asarray(lengths)
    clips = lengths[np.random.default_rng(seed).permutation(len(lengths))[:48]]
    options: dict[str, Any] = {"local_randomization_factor": 0.15, "dynamic_batch_size": dynamic}
    figure = Figure(figsize=(9, 7), layout="constrained")
    strategies = ("random", "sorted", "semi_sorted")
    for axes, strategy in zip(figure.subplots(3, 1, sharey=True), strategies, strict=True):
        plan = plan_epoch(clips, 8, strategy, seed=seed, **options)
        rate = padding_stats(clips, plan).zero_padding_rate
        title = f"{batching_name(strategy, dynamic, False)}: ZPR {rate:.1%} in {len(plan)} batch"
        _draw_batches(axes, clips, plan, strategy, title + ("es" if len(plan) > 1 else ""))
    note = f"the {len(clips)} clips, in order; under each batch its number of clips"
    if dynamic:
        note += f" (capacity 8 × {clips.max()} = {8 * clips.max():,} frames)"
    axes.set_xlabel(note)
    _bar_legend(figure)
    return figure


def draw_epoch_excerpt(
    lengths: np.ndarray, batch_size: int, *, clips: int = 96, seed: int = 0
) -> Figure:
    """The first batches of an epoch under RAND and under SSB-DBS-BR, about `clips` clips of each.

    A bar a clip, as in `draw_padded_batches`, but of batches planned for the whole corpus: with
    48 clips alone SSB-DBS pads several times as much. The titles are about the whole epoch.
    """
    lengths = np.asarray(lengths)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    batchings = (("random", False), ("semi_sorted", True))
    for axes, (strategy, dynamic) in zip(
        figure.subplots(2, 1, sharey=True), batchings, strict=True
    ):
        options: dict[str, Any] = {"dynamic_batch_size": dynamic, "batch_randomization": True}
        plan = plan_epoch(lengths, batch_size, strategy, seed=seed, **options)
        clips_before = np.cumsum([0, *map(len, plan)])[:-1]
        stats = padding_stats(lengths, plan)
        title = (
            f"{batching_name(strategy, dynamic, True)}: "
            f"{stats.zero_padding_rate:.0%} padding, {stats.num_batches:,} batches, "
            f"together {stats.decoder_steps:,.0f} frames long"
        )
        excerpt = plan[: np.count_nonzero(clips_before < clips)]
        _draw_batches(axes, lengths, excerpt, strategy, title)
    note = "the first batches of an epoch, a bar a clip; under each batch its number of clips"
    axes.set_xlabel(note)
    _bar_legend(figure)
    return figure


def _draw_batches(
    axes: Axes, clips: np.ndarray, plan: Sequence[np.ndarray], strategy: str, title: str
) -> None:
    gap, left, middles, colour = 1.0, 0.0, [], STYLES[strategy].colour
    hatched: dict[str, Any] = {"color": "white", "edgecolor": colour, "hatch": "/////"}
    for batch in plan:
        x = left + np.arange(len(batch)) + 0.5
        real, longest = clips[batch], clips[batch].max()
        axes.bar(x, real, width=0.82, color=colour, linewidth=0)
        axes.bar(x, longest - real, bottom=real, width=0.82, linewidth=0.5, **hatched)
        middles.append(left + len(batch) / 2)
        axes.plot([left, left + len(batch)], [longest] * 2, color=colour, linewidth=1.2)
        left += len(batch) + gap
    axes.set(xlim=(-gap, left), ylim=(0, clips.max() * 1.12), ylabel="frames")
    axes.set_xticks(middles, [str(len(batch)) for batch in plan])
    axes.tick_params(axis="x", length=0)
    axes.set_title(title, loc="left", fontsize=11)
    seaborn.despine(ax=axes)


def _bar_legend(figure: Figure) -> None:
    handles = [
        Patch(facecolor=GREY, edgecolor=GREY, label="real frames"),
        Patch(facecolor="white", edgecolor=GREY, hatch="/////", label="padding"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)


# ---------------------------------------------------------------------------- parameter sweeps


def draw_parameter_sweeps(
    surveyor: Surveyor,
    batch_size: int,
    *,
    local_randomization_factor: float = DEFAULTS["local_randomization_factor"],
    bucket_size: int = DEFAULTS["bucket_size"],
    num_bins: int = DEFAULTS["num_bins"],
    epochs: int = 3,
    per_octave: int = 2,
) -> Figure:
    """Ge21 Figure 2, a column each for SSB, BKT and ATS with fixed batch sizes.

    Upper rows: the parameter against ZPR and against ABL, the value given marked with a ring.
    Lowest row: the longest clip of every batch at that value, in the order planned and sorted.
    The grid follows the corpus: factors to 1.6, buckets of whole batches below the number of
    clips, bins up to the number of batches, `per_octave` of them a doubling; means of `epochs`.

    Raises:
        BatchingError: as `plan_epoch`, for more bins than clips, say.
    """
    chosen = {
        "semi_sorted": local_randomization_factor,
        "bucket": bucket_size,
        "alternated_sort": num_bins,
    }
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(3, 3, sharey="row")
    for (upper, middle, lower), (strategy, value) in zip(grid.T, chosen.items(), strict=True):
        parameter, style = PARAMETER[strategy], STYLES[strategy]
        values = parameter_values(
            strategy, len(surveyor.lengths), batch_size, per_octave, include=[value]
        )
        surveys = sweep(surveyor, batch_size, strategy, values, epochs=epochs)
        rates = [100 * one.zero_padding_rate for one in surveys]
        lengths = [one.average_batch_length for one in surveys]
        used, words = values.index(value), value_in_words(strategy, value)
        for axes, heights in ((upper, rates), (middle, lengths)):
            look = {"color": style.colour, "marker": style.marker, "markersize": 4}
            axes.plot(values, heights, linewidth=1.4, **look)
            axes.plot(value, heights[used], color="black", **RING)
            if 0 in values:  # a factor of 0 has a place on the axis only if it is linear there
                axes.set_xscale("symlog", linthresh=values[1])
            else:
                axes.set_xscale("log", base=2)
            _fixed_ticks(axes.xaxis, _round_values(values))
            axes.grid(alpha=0.3)
        short = REGISTRY[strategy].short_name
        upper.set_title(f"{short}: {rates[used]:.2f} % with {words}", fontsize=11)
        middle.set_title(f"{lengths[used]:.1f} frames with {words}", fontsize=11)
        middle.set_xlabel(parameter.label)
        options: dict[str, Any] = {parameter.name: value, "seed": surveyor.seed}
        plan = plan_epoch(surveyor.lengths, batch_size, strategy, epoch=1, **options)
        longest = np.array([surveyor.lengths[batch].max() for batch in plan])
        numbers, dots = np.arange(1, len(plan) + 1), "o" if len(plan) < 40 else None
        lower.plot(numbers, longest, color=style.colour, marker=dots, label="in the order planned")
        lower.plot(numbers, np.sort(longest), "--", color="black", label="sorted")
        lower.set(xlabel=f"number of the batch ({words})", ylim=(0, surveyor.longest * 1.25))
        lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        lower.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
    for row, label in enumerate(("ZPR (%)", "ABL (frames)", "batch length (frames)")):
        grid[row, 0].set_ylabel(label)
    seaborn.despine(fig=figure)
    return figure


def _round_values(values: Sequence[float]) -> list[float]:
    """At most six round values of a geometric grid."""
    if 0 in values:
        return [0, 0.01, 0.1, 1]
    doublings = [2**k for k in range(32) if min(values) <= 2**k <= max(values)]
    return doublings[:: -(-len(doublings) // 6)] or [values[0]]


# ---------------------------------------------------------------------------- order of an epoch


def draw_length_against_position(
    lengths: np.ndarray, batch_size: int, *, seed: int = 0, epoch: int = 0, **options
) -> Figure:
    """Doetsch17 Figure 1: every clip's length against its place in the epoch, a panel a strategy.

    `options` are those of `plan_epoch`. A strategy that they do not allow on this corpus says so
    in its panel. Of a large corpus, clips at equal distances are drawn, as many as can be seen.
    """
    lengths = np.asarray(lengths)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(-(-len(STRATEGIES) // 3), 3, sharex=True, sharey=True).flat
    sizes, shuffled = options.get("dynamic_batch_size"), options.get("batch_randomization")
    for strategy, axes in zip(STRATEGIES, panels, strict=True):
        title, name = batching_name(strategy, bool(sizes), bool(shuffled)), PARAMETERS.get(strategy)
        if name:
            title += f" ({value_in_words(strategy, options.get(name, DEFAULTS[name]))})"
        axes.set_title(title, fontsize=10)
        try:
            plan = plan_epoch(lengths, batch_size, strategy, seed=seed, epoch=epoch, **options)
        except BatchingError as error:
            text = textwrap.fill(str(error), 34)
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center").set_in_layout(False)
            continue
        order = np.concatenate(plan)
        shown = np.arange(0, len(order), -(-len(order) // MOST_DOTS))
        axes.plot(
            shown + 1,
            lengths[order][shown],
            linestyle="none",
            marker=".",
            markersize=float(np.clip(400 / len(order), 1.0, 6)),
            color=STYLES[strategy].colour,
            rasterized=len(order) > 500,  # nine panels of dots as an image inside the SVG
        )
    axes = figure.axes[0]
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: number_text(place)))
    figure.supxlabel("place of the clip in the epoch", fontsize=10)
    figure.supylabel("length (frames)", fontsize=10)
    seaborn.despine(fig=figure)
    return figure


# ---------------------------------------------------------------------------- the trade-off


def draw_padding_against_randomness(surveys: pd.DataFrame) -> Figure:
    """What randomness costs: padding against novelty (upper row) and spread (lower row).

    Lower is cheaper, further right is more random. Novelty is on a logarithmic axis of repeated
    pairs, so that 0.95 and 0.99 can be told apart.

    Args:
        surveys: a row for each value of each strategy's parameter, in its order, with the fields
            of `Survey` and `in_use`: whether to mark it with a ring.
    """
    points = surveys.assign(
        padding=100 * surveys.padded_fraction,
        repeated=(1 - surveys.novelty).clip(lower=1e-6),  # a logarithm has no place for 0
    )
    look: dict[str, Any] = {
        "palette": {name: style.colour for name, style in STYLES.items()},
        "markers": {name: style.marker for name, style in STYLES.items()},
        "dashes": {n: "" if s.dashes == "-" else s.dashes[1] for n, s in STYLES.items()},
        "hue_order": list(STYLES)[::-1],  # RAND and SB, a point each, on top
        "style_order": list(STYLES),
    }
    figure = Figure(figsize=(11.5, 9.5), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True, sharex="row")
    for row, quantity in zip(panels, ("repeated", "spread"), strict=True):
        for axes, dynamic in zip(row, (False, True), strict=True):
            shown = points[points.dynamic_batch_size == dynamic]
            seaborn.lineplot(
                shown, x=quantity, y="padding", hue="strategy", style="strategy", sort=False,
                estimator=None, markersize=7, legend=False, ax=axes, **look,
            )  # fmt: skip
            ringed = shown[shown.in_use]
            axes.plot(ringed[quantity], ringed.padding, markeredgecolor="black", **RING)
            axes.set(ylabel="padding (% of the frames computed)")
            axes.grid(alpha=0.3)
    for axes, words in zip(panels[0], ("fixed", "dynamic"), strict=True):
        axes.set_title(f"{words} batch sizes", fontsize=12)
        axes.set(
            xlabel="novelty: fraction of the pairs in batches that is new since the last epoch"
        )
    for axes in panels[1]:
        axes.set(xlabel="spread of lengths in a batch: 0 as sorted batches, 1 as random ones")
    _scale_randomness(panels[0, 0], panels[1, 0], points)
    handles = [
        Line2D([], [], color=colour, marker=marker, ls=dashes, label=REGISTRY[name].short_name)
        for name, (colour, marker, dashes) in STYLES.items()
        if name in set(points.strategy)
    ]
    handles.append(Line2D([], [], color="black", label="parameter in use", **RING))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    seaborn.despine(fig=figure)
    return figure


def _scale_randomness(upper: Axes, lower: Axes, points: pd.DataFrame) -> None:
    """Scales and ticks of the trade-off's shared axes."""
    repeated, spread = points.repeated.dropna(), points.spread.dropna()
    if len(repeated):
        upper.set_xscale("log")
        upper.set_xlim(max(1.15, 1.15 * repeated.max()), max(repeated.min() / 1.3, 1e-5))
        # So many that labels do not touch.
        decades = -np.log10(max(repeated.min(), 1e-5))
        ticks = NOVELTY_TICKS if decades < 3.5 else NOVELTY_TICKS[::3]
        _fixed_ticks(upper.xaxis, [1 - t for t in ticks], lambda value: f"{1 - value:.4g}")
    lower.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    # Below 0 lie strategies that leave batches part-filled: smaller batches spread less.
    least = min([0, *spread]) * 1.2 - 0.003
    lower.set_xlim(max(least, -0.02), max([1, *spread]) * 1.25)
    _fixed_ticks(lower.xaxis, SPREAD_TICKS)
    if points.padding.any():  # else clips of one length: nothing for a logarithm
        upper.set_yscale("log")
        low = max(points.padding.min(), 0.05)
        upper.set_ylim(low / 1.3, max(points.padding.max(), low) * 1.3)
        _fixed_ticks(upper.yaxis, PADDING_TICKS)
