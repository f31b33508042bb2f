"""Pictures of alignments, spectrograms and gates, for TensorBoard and for files."""

import numpy as np
from matplotlib.figure import Figure


def _figure(height: float) -> Figure:
    return Figure(figsize=(8, height), dpi=100, layout="constrained")


def draw_alignment(alignment: np.ndarray) -> Figure:
    """Attention weights [T, T_in]: a line from lower left to upper right is a good alignment."""
    figure = _figure(4)
    axes = figure.add_subplot()
    image = axes.imshow(
        alignment.T, aspect="auto", origin="lower", interpolation="none", cmap="viridis", vmin=0
    )
    axes.set(xlabel="decoder step", ylabel="symbol", title="alignment")
    figure.colorbar(image, label="attention weight")
    return figure


def draw_mels(target: np.ndarray, predicted: np.ndarray) -> Figure:
    """Two log-mels [n_mels, frames], one over the other, in the same colours."""
    figure = _figure(5)
    upper, lower = figure.subplots(2, 1, sharex=True)
    low, high = np.percentile(target, [1, 99.9])
    for axes, mel, title in ((upper, target, "target"), (lower, predicted, "predicted")):
        image = axes.imshow(
            mel,
            aspect="auto",
            origin="lower",
            interpolation="none",
            cmap="magma",
            vmin=low,
            vmax=max(high, low + 1),
        )
        axes.set(ylabel="mel band", title=title)
    lower.set_xlabel("frame")
    figure.colorbar(image, ax=[upper, lower], label="log magnitude")
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
