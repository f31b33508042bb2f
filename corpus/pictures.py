"""Pictures of a corpus: how long its clips are, and what keeps the alignment from forming."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from corpus.faults import LONGEST_SILENCE, Fault, symbol_rates, usual_rates
from corpus.recordings import Recording
from hparams import HParams

# Told apart without colour: an area in light blue, a line in dark orange.
AREA = {"fill": True, "facecolor": "#A6CBE5", "edgecolor": "#5B8DB0", "linewidth": 0.8}
LINE = {"fill": False, "edgecolor": "#A33B00", "linewidth": 2}


def draw_lengths(sets: dict[str, list[Recording]], hparams: HParams) -> bytes:
    """PNG: share of each set's clips by length, in seconds and frames."""
    seconds = {
        name: np.array([clip.num_samples for clip in clips]) / hparams.sampling_rate
        for name, clips in sets.items()
    }
    longest = max(values.max() for values in seconds.values())
    # Few bars where a set is small: its shape should show, not its single clips.
    most_bars = np.clip(2 * min(len(values) for values in seconds.values()) ** 0.5, 6, 30)
    widths = (0.1, 0.25, 0.5, 1, 2, 5, 10)
    width = next((w for w in widths if longest / w <= most_bars), longest / most_bars)
    edges = width * np.arange(int(longest / width) + 2)
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (name, values), style in zip(seconds.items(), (AREA, LINE), strict=True):
        counts, _ = np.histogram(values, edges)
        hours, mean = values.sum() / 3600, values.mean()
        label = f"{name}: {len(values):,} clips, {hours:.2f} h, mean {mean:.2f} s"
        axes.stairs(100 * counts / len(values), edges, label=label, **style)
    axes.set(xlabel="length of a clip (seconds)", xlim=(0, 1.02 * edges[-1]))
    axes.set(ylabel=f"share of the set's clips (% per {width:g} s)")
    axes.spines["right"].set_visible(False)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    rate = hparams.sampling_rate / hparams.hop_length  # frames a second
    upper = axes.secondary_xaxis("top", functions=(lambda s: s * rate, lambda f: f / rate))
    upper.set_xlabel(f"mel frames (one every {1000 / rate:.4g} ms)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return png_of(figure)


def draw_faults(clips: list[Recording], faults: list[Fault], hparams: HParams) -> bytes:
    """PNG: symbols against seconds of speech, silence at the ends, and how many clips have what."""
    figure = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    upper, lower = (part.subplots() for part in right.subfigures(2, 1, height_ratios=(1.3, 1)))
    _draw_rates(left.subplots(), clips, hparams.sampling_rate)
    _draw_silences(upper, clips, hparams.sampling_rate)
    _draw_counts(lower, faults, len(clips))
    for axes in (upper, lower, *left.axes):
        axes.spines[["top", "right"]].set_visible(False)
    return png_of(figure)


def _draw_rates(axes: Axes, clips: list[Recording], rate: int) -> None:
    symbols = np.array([clip.num_symbols for clip in clips])
    seconds = np.array([clip.speech_samples for clip in clips]) / rate
    rates = symbol_rates(clips, rate)
    low, median, high = usual_rates(rates)
    unusual = (rates < low) | (rates > high)
    # Many points on one another should still show where most of them lie.
    opacity = float(np.clip(60 / len(clips) ** 0.5, 0.1, 0.8))
    size = 12 if len(clips) < 1000 else 4
    dots = {"s": size, "color": "#5B8DB0", "linewidths": 0, "alpha": opacity}
    axes.scatter(symbols[~unusual], seconds[~unusual], **dots)
    label = f"unusual clips: {unusual.sum():,}"
    crosses = {"marker": "x", "s": 40, "color": "#A33B00", "linewidths": 1.8, "label": label}
    axes.scatter(symbols[unusual], seconds[unusual], **crosses)
    right, top = 1.05 * symbols.max(), 1.05 * seconds.max()
    ends = np.array([0, right])
    axes.plot(ends, ends / median, color="0.2", linewidth=1, label=f"median: {median:.1f} a second")
    for bound, label in ((low, f"usual: {low:.1f} to {high:.1f} a second"), (high, None)):
        axes.plot(ends, ends / bound, color="0.2", linewidth=1, linestyle="--", label=label)
    axes.set(xlim=(0, right), ylim=(0, top), title="symbols and seconds of each clip")
    axes.set(xlabel="symbols of the text", ylabel="seconds of speech, without silence at the ends")
    axes.legend(loc="upper left", fontsize="small")


def _draw_silences(axes: Axes, clips: list[Recording], rate: int) -> None:
    silences = {
        "before speech": np.array([clip.silence_before for clip in clips]) / rate,
        "after speech": np.array([clip.silence_after for clip in clips]) / rate,
    }
    longest = max(LONGEST_SILENCE, *(values.max() for values in silences.values()))
    edges = np.linspace(0, 1.05 * longest, 31)
    for (name, values), style in zip(silences.items(), (AREA, LINE), strict=True):
        counts, _ = np.histogram(values, edges)
        axes.stairs(counts, edges, label=f"{name}: longest {values.max():.2f} s", **style)
    axes.axvline(LONGEST_SILENCE, color="0.2", linestyle="--", linewidth=1, label="warned above")
    axes.set_yscale("symlog", linthresh=1)  # one clip of many thousands must show
    axes.set(xlim=(0, edges[-1]), ylim=(0, 2 * len(clips)), title="silence at the ends")
    axes.set(xlabel="seconds", ylabel="clips")
    axes.legend(fontsize="small")


def _draw_counts(axes: Axes, faults: list[Fault], total: int) -> None:
    counts = [len(fault.ids) for fault in faults]
    bars = axes.barh([fault.name for fault in faults], counts, color="#A33B00")
    axes.bar_label(bars, [f"{count:,}" for count in counts], padding=3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.2 * max(5, *counts)), title=f"warnings, of {total:,} clips")
    axes.set_xlabel("clips")
    axes.xaxis.get_major_locator().set_params(integer=True)


def png_of(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
