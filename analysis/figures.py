"""Drawings of what batchings do: the papers' figures from any corpus' lengths.

Used by compare_batching.py and report.py. Every strategy keeps its colour, marker and dashes in
all of them, so they can be told apart without colour too.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.strategies import DEFAULTS, PARAMETERS, batching_name, number_text, value_in_words
from analysis.survey import Survey, Surveyor, parameter_values, sweep
from batching import REGISTRY, STRATEGIES, BatchingError, padding_stats, plan_epoch
from files import write_atomically


class Style(NamedTuple):
    colour: str
    marker: str
    dashes: object  # a linestyle of matplotlib


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
RING = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "linestyle": "none"}


def write_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """The figure as .svg and .png."""
    path = Path(path_without_suffix)
    written = [path.with_name(path.name + suffix) for suffix in (".svg", ".png")]
    for target in written:
        write_picture(figure, target)
    return written


def write_picture(figure: Figure, path: Path) -> None:
    """The figure in the format that the path ends in, .svg (text as text) or .png; the same figure
    gives the same bytes."""
    options = {".svg": {"metadata": {"Date": None}}, ".png": {"dpi": 150}}[path.suffix]
    # Ids inside an SVG follow from the salt: another for each picture, or two would clash in one
    # web page.
    settings = {"svg.fonttype": "none", "svg.hashsalt": path.stem}
    with matplotlib.rc_context(settings):
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], **options))


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _fixed_ticks(axis, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


# ---------------------------------------------------------------------------- padded batches


def draw_padded_batches(lengths: Sequence[int], *, dynamic: bool, seed: int = 0) -> Figure:
    """Ge21 Figure 1 (fixed sizes) or 3 (dynamic): the batches of 48 clips under RAND, SB and SSB.

    A bar a clip, its real frames filled and its padding hatched; batches are set apart. Batch
    size 8, local randomization factor 0.15, as in the paper. The clips are drawn at random from
    `lengths`; fewer than 48 are all taken.
    """
    lengths = np.asarray(lengths)
    clips = lengths[np.random.default_rng(seed).permutation(len(lengths))[:48]]
    options = {"local_randomization_factor": 0.15, "dynamic_batch_size": dynamic, "seed": seed}
    figure = Figure(figsize=(9, 7), layout="constrained")
    strategies = ("random", "sorted", "semi_sorted")
    for axes, strategy in zip(figure.subplots(3, 1, sharey=True), strategies, strict=True):
        plan = plan_epoch(clips, 8, strategy, **options)
        _draw_batches(axes, clips, plan, STYLES[strategy].colour)
        title = f"{batching_name(strategy, dynamic, False)}: ZPR "
        title += f"{padding_stats(clips, plan).zero_padding_rate:.1%} in {len(plan)} batch"
        axes.set_title(title + ("es" if len(plan) > 1 else ""), loc="left", fontsize=11)
        axes.set_ylim(0, clips.max() * 1.12)
        axes.set_ylabel("frames")
    note = f"the {len(clips)} clips, in order; under each batch its number of clips"
    if dynamic:
        note += f" (capacity 8 × {clips.max()} = {8 * clips.max():,} frames)"
    axes.set_xlabel(note)
    figure.legend(handles=_bar_handles(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def draw_epoch_excerpt(
    lengths: Sequence[int], batch_size: int, *, clips: int = 96, seed: int = 0
) -> Figure:
    """The first batches of an epoch under RAND and under SSB-DBS-BR, about `clips` clips of each.

    A bar a clip, as in `draw_padded_batches`, but of batches planned for the whole corpus: with
    48 clips alone SSB-DBS pads several times as much. The titles are about the whole epoch.
    """
    lengths = np.asarray(lengths)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for axes, (strategy, dynamic) in zip(
        figure.subplots(2, 1, sharey=True), (("random", False), ("semi_sorted", True)), strict=True
    ):
        plan = plan_epoch(
            lengths,
            batch_size,
            strategy,
            seed=seed,
            dynamic_batch_size=dynamic,
            batch_randomization=True,
        )
        clips_before = np.cumsum([0, *map(len, plan)])[:-1]
        excerpt = plan[: np.count_nonzero(clips_before < clips)]
        _draw_batches(axes, lengths, excerpt, STYLES[strategy].colour)
        stats = padding_stats(lengths, plan)
        axes.set_title(
            f"{batching_name(strategy, dynamic, True)}: {stats.zero_padding_rate:.0%} padding, "
            f"{stats.num_batches:,} batches, together {stats.decoder_steps:,.0f} frames long",
            loc="left",
            fontsize=11,
        )
        axes.set_ylabel("frames")
    axes.set_ylim(0, lengths.max() * 1.12)
    axes.set_xlabel(
        "the first batches of an epoch, a bar a clip; under each batch its number of clips"
    )
    figure.legend(handles=_bar_handles(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def _bar_handles() -> list[Patch]:
    return [
        Patch(facecolor=GREY, edgecolor=GREY, label="real frames"),
        Patch(facecolor="white", edgecolor=GREY, hatch="/////", label="padding"),
    ]


def _draw_batches(axes: Axes, clips: np.ndarray, plan: list[np.ndarray], colour: str) -> None:
    gap, left, middles = 1.0, 0.0, []
    hatched = {"color": "white", "edgecolor": colour, "hatch": "/////", "linewidth": 0.5}
    for batch in plan:
        x = left + np.arange(len(batch)) + 0.5
        real, longest = clips[batch], clips[batch].max()
        axes.bar(x, real, width=0.82, color=colour, linewidth=0)
        axes.bar(x, longest - real, bottom=real, width=0.82, **hatched)
        middles.append(left + len(batch) / 2)
        axes.plot([left, left + len(batch)], [longest] * 2, color=colour, linewidth=1.2)
        left += len(batch) + gap
    axes.set_xlim(-gap, left)
    axes.set_xticks(middles, [str(len(batch)) for batch in plan])
    axes.tick_params(axis="x", length=0)
    _tidy(axes)


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
    lengths = surveyor.lengths
    chosen = {
        "semi_sorted": local_randomization_factor,
        "bucket": bucket_size,
        "alternated_sort": num_bins,
    }
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(3, 3, sharey="row")
    for (upper, middle, lower), (strategy, value) in zip(grid.T, chosen.items(), strict=True):
        parameter = REGISTRY[strategy].parameter
        values = parameter_values(
            strategy, len(lengths), batch_size, per_octave=per_octave, include=[value]
        )
        surveys = sweep(
            surveyor, batch_size, strategy, values, epochs=epochs, dynamic_batch_size=False
        )
        marked = next(s for s in surveys if s.value == value)
        _draw_sweep(upper, surveys, marked, lambda s: 100 * s.zero_padding_rate, "{:.2f} %")
        _draw_sweep(middle, surveys, marked, lambda s: s.average_batch_length, "{:.1f}")
        middle.sharex(upper)
        upper.tick_params(labelbottom=False)
        middle.set_xlabel(parameter.label)
        upper.set_title(REGISTRY[strategy].short_name, fontsize=12)
        options = {parameter.name: value}
        plan = plan_epoch(lengths, batch_size, strategy, seed=surveyor.seed, epoch=1, **options)
        _draw_batch_lengths(lower, lengths, plan, STYLES[strategy].colour)
        lower.set_xlabel(f"number of the batch ({value_in_words(strategy, value)})")
    for row, label in enumerate(("ZPR (%)", "ABL (frames)", "batch length (frames)")):
        grid[row, 0].set_ylabel(label)
    return figure


def _draw_sweep(
    axes: Axes,
    surveys: Sequence[Survey],
    marked: Survey,
    quantity: Callable[[Survey], float],
    unit: str,
) -> None:
    style = STYLES[marked.strategy]
    values, place = [s.value for s in surveys], (marked.value, quantity(marked))
    look = {"color": style.colour, "marker": style.marker, "markersize": 4, "linewidth": 1.4}
    heights = [quantity(s) for s in surveys]
    axes.plot(values, heights, **look)
    axes.plot(*place, color="black", **RING)
    # Beside a rising curve and inside the axes: above it in its right half, below it in its left
    # half, unless there is no room.
    left = values.index(marked.value) >= len(values) / 2
    share = (place[1] - min(heights)) / (max(heights) - min(heights) or 1)
    note = axes.annotate(
        f"{number_text(marked.value)}: {unit.format(place[1])}",
        place,
        xytext=(-8, -3 if share > 0.85 else 8) if left else (8, 8 if share < 0.15 else -14),
        ha="right" if left else "left",
        textcoords="offset points",
        fontsize=9,
    )
    note.set_in_layout(False)
    if 0 in values:  # a factor of 0 has a place on the axis only if it is linear there
        axes.set_xscale("symlog", linthresh=next(value for value in values if value))
    else:
        axes.set_xscale("log", base=2)
    _fixed_ticks(axes.xaxis, _round_values(values), number_text)
    axes.grid(alpha=0.3)
    _tidy(axes)


def _draw_batch_lengths(
    axes: Axes, lengths: np.ndarray, plan: Sequence[np.ndarray], colour: str
) -> None:
    longest = np.array([lengths[batch].max() for batch in plan])
    numbers, dots = np.arange(1, len(plan) + 1), "o" if len(plan) < 40 else None
    planned = {"color": colour, "linewidth": 1.4, "marker": dots, "label": "in the order planned"}
    axes.plot(numbers, longest, **planned)
    axes.plot(numbers, np.sort(longest), "--", color="black", linewidth=1.2, label="sorted")
    axes.set_ylim(0, lengths.max() * 1.25)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
    _tidy(axes)


def _round_values(values: Sequence[float]) -> list[float]:
    """At most six round values of a geometric grid."""
    if 0 in values:
        return [0, 0.01, 0.1, 1]
    doublings = [2**k for k in range(32) if min(values) <= 2**k <= max(values)]
    return doublings[:: -(-len(doublings) // 6)] or [values[0]]


# ---------------------------------------------------------------------------- order of an epoch


def draw_length_against_position(
    lengths: Sequence[int], batch_size: int, *, seed: int = 0, epoch: int = 0, **options
) -> Figure:
    """Doetsch17 Figure 1: every clip's length against its place in the epoch, a panel a strategy.

    `options` are those of `plan_epoch`. A strategy that they do not allow on this corpus says so
    in its panel. Of a large corpus, clips at equal distances are drawn, as many as can be seen.
    """
    lengths = np.asarray(lengths)
    figure = Figure(figsize=(11, 8), layout="constrained")
    rows = -(-len(STRATEGIES) // 3)
    panels = figure.subplots(rows, 3, sharex=True, sharey=True).flat
    sizes, shuffled = options.get("dynamic_batch_size"), options.get("batch_randomization")
    for strategy, axes in zip(STRATEGIES, panels, strict=False):
        title = batching_name(strategy, bool(sizes), bool(shuffled))
        name = PARAMETERS.get(strategy)
        if name:
            title += f" ({value_in_words(strategy, options.get(name, DEFAULTS[name]))})"
        axes.set_title(title, fontsize=10)
        _tidy(axes)
        try:
            plan = plan_epoch(lengths, batch_size, strategy, seed=seed, epoch=epoch, **options)
        except BatchingError as error:
            text = textwrap.fill(str(error), 34)
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center").set_in_layout(False)
            continue
        order = np.concatenate(plan)
        shown = slice(None, None, -(-len(order) // MOST_DOTS))
        axes.plot(
            np.arange(1, len(order) + 1)[shown],
            lengths[order][shown],
            linestyle="none",
            marker=".",
            markersize=float(np.clip(400 / len(order), 1.0, 6)),
            color=STYLES[strategy].colour,
            rasterized=len(order) > 500,  # nine panels of dots as an image inside the SVG
        )
    for axes in panels:  # those left over
        axes.set_visible(False)
    axes = figure.axes[0]
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: number_text(place)))
    figure.supxlabel("place of the clip in the epoch", fontsize=10)
    figure.supylabel("length (frames)", fontsize=10)
    return figure


# ---------------------------------------------------------------------------- the trade-off


def draw_padding_against_randomness(
    curves: Mapping[tuple[str, bool], Sequence[Survey]],
    marked: Mapping[tuple[str, bool], Survey] | None = None,
) -> Figure:
    """What randomness costs: padding against novelty (upper row) and spread (lower row).

    Lower is cheaper, further right is more random. Novelty is on a logarithmic axis of repeated
    pairs, so that 0.95 and 0.99 can be told apart.

    Args:
        curves: (strategy, dynamic sizes) -> surveys with the parameter varied, in its order; one
            survey makes a single point.
        marked: points to ring, the default parameters' say.
    """
    figure = Figure(figsize=(11.5, 9.5), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row", sharex="row")
    rings = marked or {}
    every = [s for surveys in curves.values() for s in surveys]
    for (upper, lower), dynamic in zip(panels.T, (False, True), strict=True):
        for axes, quantity in ((upper, _repeated), (lower, lambda s: s.spread)):
            for key, surveys in curves.items():
                if key[1] == dynamic:
                    _draw_curve(axes, surveys, rings.get(key), quantity)
            axes.grid(alpha=0.3)
            _padding_axis(axes, [100 * s.padded_fraction for s in every])
            _tidy(axes)
        _novelty_axis(upper, [_repeated(s) for s in every])
        _spread_axis(lower, [s.spread for s in every])
        upper.set_title("dynamic batch sizes" if dynamic else "fixed batch sizes", fontsize=12)
    for axes in panels[:, 0]:
        axes.set_ylabel("padding (% of the frames computed)")
    _legend(figure, [strategy for strategy, _ in curves], bool(marked))
    return figure


def _draw_curve(
    axes: Axes, surveys: Sequence[Survey], ringed: Survey | None, quantity: Callable
) -> None:
    style = STYLES[surveys[0].strategy]
    look = {"color": style.colour, "marker": style.marker, "linestyle": style.dashes}
    size = 4.5 if len(surveys) > 1 else 8
    padding = [100 * s.padded_fraction for s in surveys]
    axes.plot([quantity(s) for s in surveys], padding, markersize=size, linewidth=1.5, **look)
    if ringed:
        place = (quantity(ringed), 100 * ringed.padded_fraction)
        axes.plot(*place, markeredgecolor=style.colour, markeredgewidth=1.6, **RING)


def _repeated(found: Survey) -> float:
    return max(1 - found.novelty, 1e-6)  # a logarithm has no place for 0; NaN stays NaN


def _novelty_axis(axes: Axes, repeated: Sequence[float]) -> None:
    known = [value for value in repeated if np.isfinite(value)] or [1]
    ticks = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999]
    if min(known) > 0.03:  # a small corpus, where many pairs meet again
        ticks = [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    elif min(known) < 3e-4:  # a large one, with more decades than all labels have room on
        ticks = [0, 0.5, 0.9, 0.99, 0.999, 0.9999]
    axes.set_xscale("log")
    axes.set_xlim(max(1.15, 1.15 * max(known)), max(min(known) / 1.3, 1e-5))
    _fixed_ticks(axes.xaxis, [1 - tick for tick in ticks], lambda value: f"{1 - value:.4g}")
    axes.set_xlabel("novelty: share of the pairs in batches that is new since the epoch before")


def _spread_axis(axes: Axes, spreads: Sequence[float]) -> None:
    axes.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    known = [value for value in spreads if np.isfinite(value)]
    # Below 0 lie strategies that leave batches part-filled: smaller batches spread less.
    axes.set_xlim(max(min([0, *known]) * 1.2 - 0.003, -0.02), max([1, *known]) * 1.25)
    _fixed_ticks(axes.xaxis, [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1], number_text)
    axes.set_xlabel("spread of lengths in a batch: 0 as sorted batches, 1 as random ones")


def _padding_axis(axes: Axes, per_cents: Sequence[float]) -> None:
    if not any(per_cents):  # clips of one length: nothing for a logarithm
        return
    axes.set_yscale("log")
    low = max(min(per_cents), 0.05)
    axes.set_ylim(low / 1.3, max(max(per_cents), low) * 1.3)
    ticks = [0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70]
    _fixed_ticks(axes.yaxis, ticks, number_text)


def _legend(figure: Figure, strategies: Sequence[str], with_ring: bool) -> None:
    handles = []
    for strategy in (s for s in STYLES if s in strategies):
        colour, marker, dashes = STYLES[strategy]
        look = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 5}
        handles.append(Line2D([], [], label=REGISTRY[strategy].short_name, **look))
    if with_ring:
        handles.append(Line2D([], [], color="black", label="parameter in use", **RING))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
