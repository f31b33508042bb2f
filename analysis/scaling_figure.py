"""The drawing of how training scales with processes."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures import STYLES
from analysis.scaling import MeasuredScaling, ScalingCurve
from batching import REGISTRY


def draw_efficiency(
    corpora: Mapping[str, Sequence[ScalingCurve]], measured: Sequence[MeasuredScaling] = ()
) -> Figure:
    """Efficiency (speed-up over processes) against processes, a panel for each corpus.

    A line a strategy in its usual look, with hollow markers for fixed batch sizes and filled ones
    for dynamic. What was measured has a panel beside them, with what
    the model says of the same updates.
    """
    panels = len(corpora) + bool(measured)
    figure = Figure(figsize=(5.2 * panels, 5.4), layout="constrained")
    every = figure.subplots(1, panels, squeeze=False)[0]
    for axes, (name, curves) in zip(every, corpora.items(), strict=False):
        for curve in curves:
            colour, marker, dashes = STYLES[curve.strategy]
            axes.plot(
                [point.processes for point in curve.points],
                [100 * curve.efficiency(point) for point in curve.points],
                color=colour,
                marker=marker,
                linestyle=dashes,
                linewidth=1,
                markersize=5,
                markerfacecolor=colour if curve.dynamic_batch_size else "white",
            )
        axes.set_title("\n".join(textwrap.wrap(f"modelled: {name}", 50)), fontsize=11)
        _processes_axis(axes, [point.processes for curve in curves for point in curve.points])
    if measured:
        _draw_measured(every[-1], measured)
    for axes in every:
        axes.set_ylim(min(40, *(ends.get_ylim()[0] for ends in every)), 102)
    every[0].set_ylabel("efficiency: speed-up over processes (%)")
    strategies = [s for s in STYLES if any(c.strategy == s for cs in corpora.values() for c in cs)]
    figure.legend(handles=_handles(strategies), loc="outside lower center", ncols=6, frameon=False)
    return figure


def _draw_measured(axes: Axes, rows: Sequence[MeasuredScaling]) -> None:
    processes = [row.processes for row in rows]
    middle = [100 * row.speed_up / row.processes for row in rows]
    below = [100 * (row.speed_up - min(row.speed_up_range)) / row.processes for row in rows]
    above = [100 * (max(row.speed_up_range) - row.speed_up) / row.processes for row in rows]
    look = {"color": "black", "capsize": 4, "marker": "o", "label": "measured, range of the rounds"}
    axes.errorbar(processes, middle, yerr=[below, above], **look)
    modelled = [100 * row.modelled_speed_up / row.processes for row in rows]
    axes.plot(processes, modelled, color="#D55E00", marker="x", linestyle="--", label="modelled")
    axes.set_title("measured on this machine", fontsize=11)
    axes.legend(frameon=False, loc="lower left")
    _processes_axis(axes, processes)


def _processes_axis(axes: Axes, processes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(processes))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("processes")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _handles(strategies: Sequence[str]) -> list[Line2D]:
    handles = []
    for strategy in strategies:
        colour, marker, dashes = STYLES[strategy]
        look = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 5}
        handles.append(Line2D([], [], label=REGISTRY[strategy].short_name, **look))
    for face, label in (("white", "fixed sizes"), ("black", "dynamic sizes")):
        look = {"color": "black", "marker": "o", "linestyle": "none", "markerfacecolor": face}
        handles.append(Line2D([], [], label=label, **look))
    return handles
