"""Drawings of what batchings do: the papers' figures from any corpus' lengths.

Used by compare_batching.py and report.py. Every strategy keeps its colour, marker and dashes in
all of them, so they can be told apart without colour too.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis.survey import DEFAULTS, PARAMETERS, Survey, parameter_values, sweep
from batching import STRATEGIES, padding_stats, plan_epoch
from files import write_atomically


class Style(NamedTuple):
    name: str  # for people
    colour: str
    marker: str
    dashes: object  # a linestyle of matplotlib


# Okabe and Ito's colours, which the colour-blind can tell apart, with a grey.
STYLES = {
    "random": Style("RAND", "#D55E00", "o", "-"),
    "sorted": Style("SB", "#000000", "s", "-"),
    "semi_sorted": Style("SSB", "#0072B2", "^", "-"),
    "semi_sorted_rank": Style("SSB-rank", "#56B4E9", "v", (0, (5, 1.5))),
    "semi_sorted_exponential": Style("SSB-exp", "#009E73", "D", (0, (8, 1.5, 1.5, 1.5))),
    "bucket": Style("BKT", "#CC79A7", "P", "-"),
    "bucket_by_width": Style("BKT-width", "#808080", "<", (0, (1.2, 1.2))),
    "bucket_by_quantile": Style("BKT-quantile", "#808080", ">", (0, (4, 1.2, 1.2, 1.2))),
    "alternated_sort": Style("ATS", "#E69F00", "X", (0, (2.5, 1.2))),
}
PARAMETER_NAMES = {
    "local_randomization_factor": "local randomization factor",
    "bucket_size": "bucket size (clips)",
    "num_bins": "number of bins",
    "num_buckets": "number of length classes",
}
PARAMETER_NOTES = {
    "local_randomization_factor": "factor {}",
    "bucket_size": "buckets of {}",
    "num_bins": "{} bins",
    "num_buckets": "{} classes",
}
GREY = "#555555"


def batching_name(strategy: str, dynamic_batch_size: bool, batch_randomization: bool) -> str:
    """The papers' name, "SSB-DBS-BR". RAND never gets -BR: its batches are in random order."""
    name = STYLES[strategy].name
    if dynamic_batch_size:
        name += "-DBS"
    if batch_randomization and strategy != "random":
        name += "-BR"
    return name


def write_figure(figure: Figure, path_without_suffix: Path) -> list[Path]:
    """The figure as .svg (text as text) and .png; the same figure gives the same bytes."""
    path = Path(path_without_suffix)
    written = []
    # Ids inside an SVG follow from the salt: another for each picture, or two would clash in one
    # web page.
    settings = {"svg.fonttype": "none", "svg.hashsalt": path.name}
    for suffix, options in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 150})):
        target = path.with_name(path.name + suffix)
        with matplotlib.rc_context(settings):
            write_atomically(
                target, lambda file, s=suffix, o=options: figure.savefig(file, format=s[1:], **o)
            )
        written.append(target)
    return written


# ---------------------------------------------------------------------------- padded batches


def draw_padded_batches(lengths: Sequence[int], *, dynamic: bool, seed: int = 0) -> Figure:
    """Ge21 Figure 1 (fixed sizes) or 3 (dynamic): the batches of 48 clips under RAND, SB and SSB.

    A bar a clip, its real frames filled and its padding hatched; batches are set apart. Batch
    size 8, local randomization factor 0.15, as in the paper. The clips are drawn at random from
    `lengths`; fewer than 48 are all taken.
    """
    lengths = np.asarray(lengths)
    rng = np.random.default_rng(seed)
    clips = lengths[rng.permutation(len(lengths))[:48]]
    figure = Figure(figsize=(9, 7), layout="constrained")
    for axes, strategy in zip(
        figure.subplots(3, 1, sharey=True), ("random", "sorted", "semi_sorted"), strict=True
    ):
        plan = plan_epoch(
            clips,
            8,
            strategy,
            seed=seed,
            local_randomization_factor=0.15,
            dynamic_batch_size=dynamic,
        )
        _draw_batches(axes, clips, plan, STYLES[strategy].colour)
        zpr = padding_stats(clips, plan).zero_padding_rate
        name = batching_name(strategy, dynamic, False)
        axes.set_title(
            f"{name}: ZPR {zpr:.1%} in {len(plan)} batch{'es' if len(plan) > 1 else ''}",
            loc="left",
            fontsize=11,
        )
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
    for batch in plan:
        x = left + np.arange(len(batch)) + 0.5
        real, longest = clips[batch], clips[batch].max()
        axes.bar(x, real, width=0.82, color=colour, linewidth=0)
        axes.bar(
            x,
            longest - real,
            bottom=real,
            width=0.82,
            color="white",
            edgecolor=colour,
            hatch="/////",
            linewidth=0.5,
        )
        middles.append(left + len(batch) / 2)
        axes.plot([left, left + len(batch)], [longest] * 2, color=colour, linewidth=1.2)
        left += len(batch) + gap
    axes.set_xlim(-gap, left)
    axes.set_xticks(middles, [str(len(batch)) for batch in plan])
    axes.tick_params(axis="x", length=0)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


# ---------------------------------------------------------------------------- parameter sweeps


def draw_parameter_sweeps(
    lengths: Sequence[int],
    batch_size: int,
    *,
    local_randomization_factor: float = 0.1,
    bucket_size: int = 1024,
    num_bins: int = 58,
    seed: int = 0,
) -> Figure:
    """Ge21 Figure 2, a column each for SSB, BKT and ATS with fixed batch sizes.

    Upper rows: the parameter against ZPR and against ABL, the value given marked with a ring.
    Lowest row: the longest clip of every batch at that value, in the order planned and sorted.
    The grid follows the corpus: factors to 1.6, buckets of whole batches below the number of
    clips, bins up to the number of batches; means of three epochs.

    Raises:
        ValueError: as `plan_epoch`, for more bins than clips, say.
    """
    lengths = np.asarray(lengths)
    chosen = {
        "semi_sorted": local_randomization_factor,
        "bucket": bucket_size,
        "alternated_sort": num_bins,
    }
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(3, 3, sharey="row")
    for column, (strategy, value) in zip(grid.T, chosen.items(), strict=True):
        values = parameter_values(strategy, len(lengths), batch_size, include=[value])
        surveys = sweep(lengths, batch_size, strategy, values, seed=seed, epochs=3)
        marked = next(s for s in surveys if s.value == value)
        upper, middle, lower = column
        _draw_sweep(upper, surveys, marked, lambda s: 100 * s.zero_padding_rate, "{:.2f} %")
        _draw_sweep(middle, surveys, marked, lambda s: s.average_batch_length, "{:.1f}")
        middle.sharex(upper)
        upper.tick_params(labelbottom=False)
        middle.set_xlabel(PARAMETER_NAMES[PARAMETERS[strategy]])
        upper.set_title(STYLES[strategy].name, fontsize=12)
        name = PARAMETERS[strategy]
        plan = plan_epoch(lengths, batch_size, strategy, seed=seed, epoch=1, **{name: value})
        longest = np.array([lengths[batch].max() for batch in plan])
        numbers = np.arange(1, len(plan) + 1)
        colour = STYLES[strategy].colour
        dots = "o" if len(plan) < 40 else None
        lower.plot(
            numbers, longest, color=colour, linewidth=1.4, marker=dots, label="in the order planned"
        )
        lower.plot(numbers, np.sort(longest), "--", color="black", linewidth=1.2, label="sorted")
        lower.set_xlabel(f"number of the batch ({PARAMETER_NOTES[name].format(_number(value))})")
        lower.set_ylim(0, lengths.max() * 1.25)
        lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        lower.legend(loc="upper center", fontsize=8, ncols=2, frameon=False)
        _tidy(lower)
    grid[0, 0].set_ylabel("ZPR (%)")
    grid[1, 0].set_ylabel("ABL (frames)")
    grid[2, 0].set_ylabel("batch length (frames)")
    return figure


def _draw_sweep(axes: Axes, surveys: Sequence[Survey], marked: Survey, of, unit: str) -> None:
    style = STYLES[marked.strategy]
    values = [s.value for s in surveys]
    axes.plot(
        values,
        [of(s) for s in surveys],
        color=style.colour,
        marker=style.marker,
        markersize=4,
        linestyle="-",
        linewidth=1.4,
    )
    axes.plot(marked.value, of(marked), "o", markersize=12, markerfacecolor="none", color="black")
    left = values.index(marked.value) >= len(values) / 2  # beside a rising curve, inside the axes
    note = axes.annotate(
        f"{_number(marked.value)}: {unit.format(of(marked))}",
        (marked.value, of(marked)),
        xytext=(-8, 8) if left else (8, -14),
        ha="right" if left else "left",
        textcoords="offset points",
        fontsize=9,
    )
    note.set_in_layout(False)
    positive = [value for value in values if value]
    if 0 in values:  # a factor of 0 has a place on the axis only if it is linear there
        axes.set_xscale("symlog", linthresh=positive[0])
    else:
        axes.set_xscale("log", base=2)
    ticks = _ticks(values)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axes.grid(alpha=0.3)
    _tidy(axes)


def _ticks(values: Sequence[float]) -> list[float]:
    """At most six round values of a geometric grid."""
    if 0 in values:
        return [0, 0.01, 0.1, 1]
    doublings = [2**k for k in range(32) if min(values) <= 2**k <= max(values)]
    return doublings[:: -(-len(doublings) // 6)] or [values[0]]


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"


# ---------------------------------------------------------------------------- order of an epoch


def draw_length_against_position(
    lengths: Sequence[int], batch_size: int, *, seed: int = 0, epoch: int = 0, **options
) -> Figure:
    """Doetsch17 Figure 1: every clip's length against its place in the epoch, a panel a strategy.

    `options` are those of `plan_epoch`. A strategy that they do not allow on this corpus says so
    in its panel.
    """
    lengths = np.asarray(lengths)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(3, 3, sharex=True, sharey=True)
    for axes, strategy in zip(panels.flat, STRATEGIES, strict=True):
        style = STYLES[strategy]
        try:
            plan = plan_epoch(lengths, batch_size, strategy, seed=seed, epoch=epoch, **options)
        except ValueError as error:
            text = textwrap.fill(str(error), 34)
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center").set_in_layout(False)
            plan = []
        name = batching_name(
            strategy,
            options.get("dynamic_batch_size", False),
            options.get("batch_randomization", False),
        )
        title = name + _parameter_note(strategy, options)
        axes.set_title(title, fontsize=10)
        if plan:
            order = np.concatenate(plan)
            axes.plot(
                np.arange(1, len(order) + 1),
                lengths[order],
                linestyle="none",
                marker=".",
                markersize=float(np.clip(400 / len(order), 1.0, 6)),
                color=style.colour,
                rasterized=len(order) > 1000,  # thousands of dots as an image inside the SVG
            )
        _tidy(axes)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _number(place)))
    figure.supxlabel("place of the clip in the epoch", fontsize=10)
    figure.supylabel("length (frames)", fontsize=10)
    return figure


def _parameter_note(strategy: str, options: Mapping) -> str:
    name = PARAMETERS.get(strategy)
    if name is None:
        return ""
    return " (" + PARAMETER_NOTES[name].format(_number(options.get(name, DEFAULTS[name]))) + ")"


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
    for column, dynamic in enumerate((False, True)):
        upper, lower = panels[:, column]
        for (strategy, is_dynamic), surveys in curves.items():
            if is_dynamic != dynamic:
                continue
            style = STYLES[strategy]
            ring = (marked or {}).get((strategy, is_dynamic))
            for axes, of in ((upper, _repeated), (lower, lambda s: s.spread)):
                look = {"color": style.colour, "marker": style.marker, "linestyle": style.dashes}
                axes.plot(
                    [of(s) for s in surveys],
                    [100 * s.padded_fraction for s in surveys],
                    markersize=4.5 if len(surveys) > 1 else 8,
                    linewidth=1.5,
                    **look,
                )
                if ring:
                    axes.plot(
                        of(ring),
                        100 * ring.padded_fraction,
                        "o",
                        markersize=12,
                        markerfacecolor="none",
                        markeredgecolor=style.colour,
                        markeredgewidth=1.6,
                    )
        _novelty_axis(upper, [_repeated(s) for many in curves.values() for s in many])
        _spread_axis(lower, [s.spread for many in curves.values() for s in many])
        upper.set_title("dynamic batch sizes" if dynamic else "fixed batch sizes", fontsize=12)
        for axes in (upper, lower):
            axes.grid(alpha=0.3)
            _padding_axis(axes, [100 * s.padded_fraction for many in curves.values() for s in many])
            _tidy(axes)
    for axes in panels[:, 0]:
        axes.set_ylabel("padding (% of the frames computed)")
    _legend(figure, [strategy for strategy, _ in curves], bool(marked))
    return figure


def _repeated(one: Survey) -> float:
    return max(1 - one.novelty, 1e-6)  # a logarithm has no place for 0; NaN stays NaN


def _novelty_axis(axes: Axes, repeated: Sequence[float]) -> None:
    known = [value for value in repeated if np.isfinite(value)] or [1]
    ticks = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999]
    if min(known) > 0.03:  # a small corpus, where many pairs meet again
        ticks = [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    axes.set_xscale("log")
    axes.set_xlim(max(1.15, 1.15 * max(known)), max(min(known) / 1.3, 1e-5))
    axes.xaxis.set_major_locator(FixedLocator([1 - tick for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{1 - value:.4g}"))
    axes.set_xlabel("novelty: share of the pairs in batches that is new since the epoch before")


def _spread_axis(axes: Axes, spreads: Sequence[float]) -> None:
    axes.set_xscale("symlog", linthresh=0.01, linscale=0.5)
    known = [value for value in spreads if np.isfinite(value)]
    # Below 0 lie strategies that leave batches part-filled: smaller batches spread less.
    axes.set_xlim(max(min([0, *known]) * 1.2 - 0.003, -0.02), max([1, *known]) * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("spread of lengths in a batch: 0 as sorted batches, 1 as random ones")


def _padding_axis(axes: Axes, per_cents: Sequence[float]) -> None:
    if not any(per_cents):  # clips of one length: nothing for a logarithm
        return
    axes.set_yscale("log")
    low = max(min(per_cents), 0.05)
    axes.set_ylim(low / 1.3, max(max(per_cents), low) * 1.3)
    axes.yaxis.set_major_locator(
        FixedLocator([0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70])
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Figure, strategies: Sequence[str], with_ring: bool) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=STYLES[s].colour,
            marker=STYLES[s].marker,
            linestyle=STYLES[s].dashes,
            label=STYLES[s].name,
            markersize=5,
        )
        for s in STYLES
        if s in strategies
    ]
    if with_ring:
        ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": "none"}
        handles.append(Line2D([], [], color="black", label="parameter in use", **ring))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
