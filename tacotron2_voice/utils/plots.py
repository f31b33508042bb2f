"""Plot alignments, mel spectrograms and stop probabilities for TensorBoard and for files.

figure = draw_alignment(alignment, texts=["Good morning."])
figure.savefig("alignment.png")
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

IMAGE: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "none"}
FONT_SIZE = 9  # font size of symbols along an axis, in points
LINE = 1.2 * FONT_SIZE  # minimum distance between two labels, in points
AROUND = 0.8  # total height above and below the axes of a plot, in inches
MAX_LABEL_LETTERS = 20
MAX_TITLE_LETTERS = 80
SPACE = "␣"  # symbol that replaces a space in labels
BOX = "□"  # symbol that replaces a character that is missing in all fonts


def _figure(height: float, width: float = 8) -> Figure:
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_alignment(
    *alignments: np.ndarray, texts: Sequence[Sequence[str]] = (), title: str = "alignment"
) -> Figure:
    """Plot attention weights. A good alignment is a line from the lower left to the upper right.

    If a text has several chunks, their weights are plotted one after another, separated by thin
    lines.

    Args:
        alignments: the attention weights [T, T_in] of each chunk.
        texts: the T_in symbols of each chunk, for the title and the axis. The axis shows symbols.
            If there is not enough space for the symbols, the axis shows words. Without texts, the
            axis shows the indices of the symbols.
        title: title of the plot.
    """
    count = len(alignments)
    size = min(1 + 0.25 * (count - 1), 4)
    starts = np.cumsum([(0, 0), *(part.shape for part in alignments)], axis=0)
    num_steps, num_symbols = starts[-1]
    height = 4 * size if count > 1 else min(max(4, num_symbols * LINE / 72 + AROUND), 6)
    figure = _figure(height, 8 * size)
    axes = figure.add_subplot()
    highest = max(float(np.nan_to_num(part).max()) for part in alignments)
    for (left, low), (right, high), part in zip(starts[:-1], starts[1:], alignments, strict=True):
        place = (left - 0.5, right - 0.5, low - 0.5, high - 0.5)
        image = axes.imshow(part.T, "viridis", vmin=0, vmax=highest, extent=place, **IMAGE)
    for step, symbol in starts[1:-1]:
        axes.axvline(step - 0.5, color="white", linewidth=0.5, alpha=0.5)
        axes.axhline(symbol - 0.5, color="white", linewidth=0.5, alpha=0.5)
    title = title if count == 1 else f"{title}, {count} chunks"
    axes.set(xlabel="decoder step", ylabel="symbol", title=title)
    axes.set(xlim=(-0.5, num_steps - 0.5), ylim=(-0.5, num_symbols - 0.5))
    axes.set_facecolor(image.cmap(0.0))
    axes.locator_params(integer=True, min_n_ticks=1)
    if texts:
        _show_texts(axes, texts, title, int((height - AROUND) * 72 / LINE))
    figure.colorbar(image, label="attention weight")
    return figure


def _show_texts(axes: Axes, texts: Sequence[Sequence[str]], title: str, num_lines: int) -> None:
    """Label the text axis of a plot with symbols. If there are more than `num_lines` symbols, label
    the axis with words."""
    symbols = [symbol for text in texts for symbol in text]
    min_symbols = -(-len(symbols) // num_lines)
    places: list[float] = []
    labels: list[str] = []
    start = 0
    for end, symbol in enumerate(symbols, 1):
        is_long = end - start >= MAX_LABEL_LETTERS
        is_whole = end - start >= min_symbols and (min_symbols == 1 or symbol.isspace())
        if is_long or is_whole or end == len(symbols):
            labels.append(drawable("".join(symbols[start:end]).strip()) or SPACE)
            places.append((start + end - 1) / 2)
            start = end
    # Set parse_math=False, so that matplotlib does not treat text between dollar signs as a
    # formula.
    axes.set_yticks(places, labels, fontsize=FONT_SIZE, parse_math=False)
    text = " ".join("".join(text).strip() for text in texts)
    shown = f"{title}: {text}"
    if len(shown) > MAX_TITLE_LETTERS:
        shown = f"{shown[: MAX_TITLE_LETTERS - 1]}…"
    axes.set_title(drawable(shown), fontsize=FONT_SIZE + 1, parse_math=False)


def drawable(text: str) -> str:
    """Replace each character that is missing in matplotlib's fonts with a box.

    To add fonts, set matplotlib's setting font.family.
    """
    families = FontProperties().get_family()
    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in families]
    return "".join(
        character if any(font.get_char_index(ord(character)) for font in fonts) else BOX
        for character in text
    )


def draw_mels(like: str | None = None, **mels: np.ndarray) -> Figure:
    """Plot several log-mels below one another, with the names of the log-mels as titles.

    Args:
        like: name of the log-mel that determines the color scale of all plots. Default: the first
            log-mel.
        mels: the log-mels [n_mels, frames] as keyword arguments. The names of the arguments become
            the titles of the plots.
    """
    figure = _figure(1 + 2 * len(mels))
    panels = figure.subplots(len(mels), 1, sharex=True, squeeze=False)[:, 0]
    low, high = np.percentile(mels[like or next(iter(mels))], [1, 99.9])
    for axes, (title, mel) in zip(panels, mels.items(), strict=True):
        image = axes.imshow(mel, cmap="magma", vmin=low, vmax=max(high, low + 1), **IMAGE)
        axes.set(ylabel="mel band", title=title)
    # Set the limits of the shared axis last, because each call of imshow changes the limits to the
    # length of one log-mel.
    panels[-1].set(xlabel="frame", xlim=(-0.5, max(mel.shape[1] for mel in mels.values()) - 0.5))
    figure.colorbar(image, ax=list(panels), label="log magnitude")
    return figure


def draw_stop_token(
    predicted: np.ndarray,
    *,
    target: np.ndarray | None = None,
    end: int | None = None,
    threshold: float | None = None,
    title: str = "stop token",
) -> Figure:
    """Plot stop probabilities [T].

    Args:
        predicted: the model's probabilities.
        target: the correct values; only in training and validation.
        end: the decoder step at which speech ended; only in synthesis.
        threshold: the `gate_threshold`; only in synthesis.
        title: title of the plot.
    """
    figure = _figure(3)
    axes = figure.add_subplot()
    if target is not None:
        axes.plot(target, color="#0072B2", linewidth=3, alpha=0.5, label="target")
    line = "--" if target is not None else "-"
    axes.plot(predicted, color="#D55E00", linestyle=line, label="predicted")
    if threshold is not None:
        axes.axhline(threshold, color="gray", linestyle=":", label="threshold")
    if end is not None:
        axes.axvline(end - 0.5, color="black", linewidth=1, label="end of speech")
    axes.set(xlabel="decoder step", ylabel="stop probability", ylim=(-0.05, 1.05), title=title)
    axes.legend(loc="best")
    return figure
