"""Pictures of alignments, spectrograms and gates, for TensorBoard and for files."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

IMAGE: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "none"}


def _figure(height: float, width: float = 8) -> Figure:
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_alignment(*alignments: np.ndarray) -> Figure:
    """Attention weights [T, T_in]: a line from lower left to upper right is a good alignment. Those
    of several parts of a text follow one another, in a picture of up to four times the size."""
    count = len(alignments)
    size = min(1 + 0.25 * (count - 1), 4)
    figure = _figure(4 * size, 8 * size)
    axes = figure.add_subplot()
    starts = np.cumsum([(0, 0), *(part.shape for part in alignments)], axis=0)
    weights = np.zeros(starts[-1], np.float32)
    for (step, symbol), part in zip(starts, alignments, strict=False):
        weights[step : step + part.shape[0], symbol : symbol + part.shape[1]] = part
    highest = float(np.nan_to_num(weights).max())
    image = axes.imshow(weights.T, cmap="viridis", vmin=0, vmax=highest, **IMAGE)
    title = "alignment" if count == 1 else f"alignment, {count} parts"
    axes.set(xlabel="decoder step", ylabel="symbol", title=title)
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
