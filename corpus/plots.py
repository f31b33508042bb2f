"""Plot properties of a corpus: clip lengths, symbol rates, silence, levels and noise."""

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from corpus.audio_quality import MIN_SIGNAL_TO_NOISE
from corpus.checks import seconds_of
from corpus.clips import Clip
from corpus.report import by_speaker
from corpus.warnings import (
    MAX_SILENCE_SECONDS,
    comparable_rates,
    have_several_speakers,
    symbol_rates,
    usual_rates,
)
from hparams import HParams

# Use a light area and a dark line, which readers can distinguish even without color.
AREA: dict[str, Any] = {"histtype": "stepfilled", "facecolor": "#A6CBE5", "edgecolor": "#5B8DB0"}
LINE: dict[str, Any] = {"histtype": "step", "edgecolor": "#A33B00", "linewidth": 2}
LIMIT: dict[str, Any] = {"color": "0.2", "linestyle": "--", "linewidth": 1}
CLIPS_COLOR = "#5B8DB0"
# Colors (by Okabe and Ito) and markers for speakers. Color-blind people can distinguish these
# colors.
COLORS = "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #555555 #B8A800".split()
MARKERS = "os^vDPh*"


def draw_lengths(sets: dict[str, list[Clip]], hparams: HParams) -> bytes:
    """Return a PNG with histograms of the clip lengths in each set."""
    seconds = {}
    for name, clips in sets.items():
        values = seconds_of(clips, hparams)
        hours = f"{values.sum() / 3600:.2f} h"
        seconds[f"{name}: {len(values):,} clips, {hours}, mean {values.mean():.2f} s"] = values
    edges = np.histogram_bin_edges(np.concatenate([*seconds.values()]), "auto")
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw_histograms(axes, seconds, edges, percent=True)
    axes.set(xlabel="length of a clip (seconds)", ylabel="percentage of the clips in the set")
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="0.9")
    rate = hparams.sampling_rate / hparams.hop_length
    conversions = (lambda seconds: seconds * rate, lambda frames: frames / rate)
    upper = axes.secondary_xaxis("top", functions=conversions)
    upper.set_xlabel(f"mel frames (one every {1000 / rate:.4g} ms)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return _png(figure)


def draw_corpus(clips: list[Clip], hparams: HParams) -> bytes:
    """Return a PNG with plots of silence and of speech length against number of symbols."""
    return _png(corpus_figure(clips, hparams))


def corpus_figure(clips: list[Clip], hparams: HParams) -> Figure:
    figure = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    rates, silences = figure.subplots(1, 2)
    _draw_rates(rates, clips, hparams.sampling_rate)
    _draw_silences(silences, clips, hparams.sampling_rate)
    return figure


def draw_audio(clips: list[Clip]) -> bytes:
    """Return a PNG with histograms of the clips' levels and signal-to-noise ratios."""
    figure = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    levels, ratios = figure.subplots(1, 2)
    qualities = [clip.measured.quality for clip in clips]
    level = np.array([quality.level for quality in qualities])
    noise = np.array([quality.signal_to_noise for quality in qualities])
    _draw_histograms(levels, {"clips": level}, _edges(level), percent=False)
    levels.axvline(float(np.median(level)), label="median", **LIMIT)
    levels.set(title="speech level", xlabel="dBFS", ylabel="clips")
    _draw_histograms(ratios, {"clips": noise}, _edges(noise, MIN_SIGNAL_TO_NOISE), percent=False)
    ratios.axvline(MIN_SIGNAL_TO_NOISE, label="warning threshold", **LIMIT)
    ratios.set(title="signal-to-noise ratio", xlabel="dB", ylabel="clips")
    for axes in (levels, ratios):
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="small")
    return _png(figure)


def _edges(values: np.ndarray, *others: float) -> np.ndarray:
    """Return the edges of 30 histogram bins that cover all numbers in `values` and `others`."""
    every = [*values.tolist(), *others]
    return np.linspace(min(every) - 1, max(every) + 1, 31)


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_histograms(
    axes: Axes, values_by_label: dict[str, np.ndarray], edges: np.ndarray, percent: bool
) -> None:
    for (label, values), style in zip(values_by_label.items(), (AREA, LINE), strict=False):
        weights = np.full(len(values), 100 / len(values) if percent else 1.0)
        axes.hist(values, edges.tolist(), weights=weights, label=label, **style)


def _draw_rates(axes: Axes, clips: list[Clip], rate: int) -> None:
    symbols = np.array([len(clip.symbols) for clip in clips])
    seconds = np.array([clip.measured.speech_samples for clip in clips]) / rate
    rates = comparable_rates(clips, rate)
    low, median, high = usual_rates(rates)
    usual = (rates >= low) & (rates <= high)
    # Make points translucent, so that areas with many points are darker.
    opacity = float(np.clip(60 / len(clips) ** 0.5, 0.1, 0.8))
    size = 12 if len(clips) < 1000 else 4
    styles = _styles(clips)
    names = np.array([clip.speaker for clip in clips])
    for name, (color, marker) in styles.items():
        chosen = usual & (names == name) if len(styles) > 1 else usual
        points: dict[str, Any] = {"linewidths": 0, "alpha": opacity, "marker": marker}
        axes.scatter(symbols[chosen], seconds[chosen], size, color, **points)
    label = f"unusual clips: {(~usual).sum():,}"
    axes.scatter(symbols[~usual], seconds[~usual], 40, "#A33B00", marker="x", label=label)
    ends = np.array([0, 1.05 * symbols.max()])
    # With several speakers, `median` is relative to the median rate of each speaker. The label
    # needs symbols per second, so compute the median rate of all clips.
    if have_several_speakers(clips):
        median = float(np.median(symbol_rates(clips, rate)))
    label = f"median: {median:.1f} symbols per second"
    axes.plot(ends, ends / median, color="0.2", linewidth=1, label=label)
    if not have_several_speakers(clips):
        axes.plot(
            ends,
            ends / low,
            **LIMIT,
            label=f"typical range: {low:.1f} to {high:.1f} symbols per second",
        )
        axes.plot(ends, ends / high, **LIMIT)
    axes.set(xlim=ends, ylim=(0, 1.05 * seconds.max()), title="length of each text and its speech")
    axes.set(xlabel="symbols in the text", ylabel="seconds of speech, without silence at the ends")
    axes.legend(loc="upper left", fontsize="small")


def _styles(clips: list[Clip]) -> dict[str, tuple[str, str]]:
    """Return {speaker: (color, marker)}.

    If there is only one speaker, or more speakers than colors, the result has a single key, "".
    """
    names = [*by_speaker(clips)]
    if 1 < len(names) <= len(COLORS):
        return dict(zip(names, zip(COLORS, MARKERS, strict=True), strict=False))
    return {"": (CLIPS_COLOR, "o")}


def _draw_silences(axes: Axes, clips: list[Clip], rate: int) -> None:
    silences = {}
    for end in ("before", "after"):
        samples = [getattr(clip.measured, f"silence_{end}") for clip in clips]
        silences[f"{end} speech: longest {max(samples) / rate:.2f} s"] = np.array(samples) / rate
    longest = max(MAX_SILENCE_SECONDS, *(values.max() for values in silences.values()))
    edges = np.linspace(0, 1.05 * longest, 31)
    _draw_histograms(axes, silences, edges, percent=False)
    axes.axvline(MAX_SILENCE_SECONDS, **LIMIT, label="warning threshold")
    axes.set_yscale("symlog", linthresh=1)  # on this scale, a bar for a single clip is visible
    axes.set(xlim=(0, edges[-1]), ylim=(0, 2 * len(clips)), title="silence at the ends")
    axes.set(xlabel="seconds", ylabel="clips")
    axes.legend(fontsize="small")
