"""Pictures of alignments, spectrograms and gates, for TensorBoard and for files."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

IMAGE: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "none"}


def _figure(height: float, width: float = 8) -> Figure:
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_alignment(*alignments: np.ndarray) -> Figure:
    """Attention weights [T, T_in]: a line from lower left to upper right is a good alignment.

    Those of several parts of a text follow one another, each in a box, and the picture grows with
    their number, up to four times.
    """
    size = min(1 + 0.25 * (len(alignments) - 1), 4)
    figure = _figure(4 * size, 8 * size)
    axes = figure.add_subplot()
    highest = max(float(np.nan_to_num(alignment).max()) for alignment in alignments)
    step = symbol = -0.5  # the edge of the first pixel
    for alignment in alignments:
        steps, symbols = alignment.shape
        image = axes.imshow(
            alignment.T,
            cmap="viridis",
            vmin=0,
            vmax=highest,
            extent=(step, step + steps, symbol, symbol + symbols),
            **IMAGE,
        )
        if len(alignments) > 1:
            box = Rectangle((step, symbol), steps, symbols, fill=False, edgecolor="white")
            axes.add_patch(box).set_linewidth(0.5)
        step, symbol = step + steps, symbol + symbols
    axes.set(
        xlabel="decoder step",
        ylabel="symbol",
        title="alignment" if len(alignments) == 1 else f"alignment, {len(alignments)} parts",
        xlim=(-0.5, step),
        ylim=(-0.5, symbol),
    )
    if len(alignments) > 1:
        axes.set_facecolor(image.cmap(0.0))  # no weight from one part to another
    figure.colorbar(image, label="attention weight")
    return figure


def draw_mels(**mels: np.ndarray) -> Figure:
    """Log-mels [n_mels, frames], one over the other by their names, in the colours of the first."""
    figure = _figure(1 + 2 * len(mels))
    panels = figure.subplots(len(mels), 1, sharex=True, squeeze=False)[:, 0]
    low, high = np.percentile(next(iter(mels.values())), [1, 99.9])
    for axes, (title, mel) in zip(panels, mels.items(), strict=True):
        image = axes.imshow(mel, cmap="magma", vmin=low, vmax=max(high, low + 1), **IMAGE)
        axes.set(ylabel="mel band", title=title)
    axes.set_xlabel("frame")
    figure.colorbar(image, ax=list(panels), label="log magnitude")
    return figure


def draw_gate(target: np.ndarray, predicted: np.ndarray) -> Figure:
    """Stop probabilities [T], wanted and predicted."""
    figure = _figure(3)
    axes = figure.add_subplot()
    axes.plot(target, color="#0072B2", linewidth=3, alpha=0.5, label="target")
    axes.plot(predicted, color="#D55E00", linestyle="--", label="predicted")
    axes.set(xlabel="decoder step", ylabel="stop probability", ylim=(-0.05, 1.05), title="gate")
    axes.legend(loc="upper left")
    return figure
