"""Pictures of alignments, spectrograms and gates, for TensorBoard and for files."""

import contextlib
import functools
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

IMAGE: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "none"}
FONT_SIZE = 8  # of the symbols along an axis, in points
LINE = 1.25 * FONT_SIZE  # points from one of their labels to the next
AROUND = 0.8  # inches of a picture's height above and below its axes
LONGEST_LABEL, LONGEST_TITLE = 16, 80  # characters
SPACE = "␣"  # a space that is a label


def _figure(height: float, width: float = 8) -> Figure:
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_alignment(
    *alignments: np.ndarray, texts: Sequence[Sequence[str]] = (), title: str = "alignment"
) -> Figure:
    """Attention weights [T, T_in]: a line from lower left to upper right is a good alignment. Those
    of several parts of a text follow one another, between thin lines, in a picture of up to four
    times the size.

    Args:
        texts: the T_in symbols of each part, to show in the title and along the axis, each by
            itself or, where there is no room, several in one label. Without them symbols are
            numbered.
    """
    count = len(alignments)
    size = min(1 + 0.25 * (count - 1), 4)
    starts = np.cumsum([(0, 0), *(part.shape for part in alignments)], axis=0)
    height = min(max(4, starts[-1, 1] * LINE / 72 + AROUND), 6) * size
    figure = _figure(height, 8 * size)
    axes = figure.add_subplot()
    weights = np.zeros(starts[-1], np.float32)
    for (step, symbol), part in zip(starts, alignments, strict=False):
        weights[step : step + part.shape[0], symbol : symbol + part.shape[1]] = part
    highest = float(np.nan_to_num(weights).max())
    image = axes.imshow(weights.T, cmap="viridis", vmin=0, vmax=highest, **IMAGE)
    for step, symbol in starts[1:-1]:
        axes.axvline(step - 0.5, color="white", linewidth=0.5)
        axes.axhline(symbol - 0.5, color="white", linewidth=0.5)
    title = title if count == 1 else f"{title}, {count} parts"
    axes.set(xlabel="decoder step", ylabel="symbol", title=title)
    if texts:
        _show_texts(axes, texts, title, int((height - AROUND) * 72 / LINE))
    figure.colorbar(image, label="attention weight")
    return figure


def _show_texts(axes: Axes, texts: Sequence[Sequence[str]], title: str, num_lines: int) -> None:
    """The symbols of a text's parts in the title and along the axis, in `num_lines` labels at most,
    each in the middle of its symbols."""
    families, lacking = fonts_of(frozenset("".join(symbol for text in texts for symbol in text)))
    shown = [[_shown(symbol, lacking) for symbol in text] for text in texts]
    symbols = [symbol for text in shown for symbol in text]
    count = -(-len(symbols) // num_lines)
    pieces = [symbols[i : i + count] for i in range(0, len(symbols), count)]
    labels = ["".join(piece) for piece in pieces]
    if count == 1:
        labels = [SPACE if label.isspace() else label for label in labels]
    places = [i * count + (len(piece) - 1) / 2 for i, piece in enumerate(pieces)]
    # A text may hold two dollar signs, which would make a formula of what is between them.
    font: dict[str, Any] = {"family": families, "parse_math": False}
    labels = [_shortened(label, LONGEST_LABEL) for label in labels]
    axes.set_yticks(places, labels, fontsize=FONT_SIZE, **font)
    whole = _shortened(" ".join("".join(text).strip() for text in shown), LONGEST_TITLE)
    axes.set_title(f"{title}: {whole}", **font)


def _shown(symbol: str, lacking: set[str]) -> str:
    """A symbol as fonts can draw it: an accent alone on a circle, an empty box if none has it."""
    if any(character in lacking for character in symbol):
        return "□"
    return f"◌{symbol}" if unicodedata.combining(symbol[0]) else symbol


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@functools.lru_cache(16)
def fonts_of(characters: frozenset[str]) -> tuple[list[str], set[str]]:
    """Families of fonts that together have these characters, the usual one first, and the
    characters that none of this machine has."""
    usual = FontProperties()
    families, lacking = [*usual.get_family()], _lacking(findfont(usual), characters)
    for font in fontManager.ttflist if lacking else ():
        if font.name.startswith("Last Resort"):  # which has a box for every character
            continue
        with contextlib.suppress(OSError, RuntimeError):  # one that matplotlib cannot read
            left = _lacking(font.fname, lacking)
            families += [font.name] * (left < lacking)
            lacking = left
    return families, set(lacking)


def _lacking(path: str, characters: frozenset[str]) -> frozenset[str]:
    font = get_font(path)
    return frozenset(x for x in characters if not font.get_char_index(ord(x)))


def draw_mels(like: str | None = None, **mels: np.ndarray) -> Figure:
    """Log-mels [n_mels, frames], one over the other by their names, in the colours of the one
    called `like`, or of the first."""
    figure = _figure(1 + 2 * len(mels))
    panels = figure.subplots(len(mels), 1, sharex=True, squeeze=False)[:, 0]
    low, high = np.percentile(mels[like or next(iter(mels))], [1, 99.9])
    for axes, (title, mel) in zip(panels, mels.items(), strict=True):
        image = axes.imshow(mel, cmap="magma", vmin=low, vmax=max(high, low + 1), **IMAGE)
        axes.set(ylabel="mel band", title=title)
    # Each picture sets the shared axis to its own length.
    panels[-1].set(xlabel="frame", xlim=(-0.5, max(mel.shape[1] for mel in mels.values()) - 0.5))
    figure.colorbar(image, ax=list(panels), label="log magnitude")
    return figure


def draw_gate(
    predicted: np.ndarray,
    *,
    target: np.ndarray | None = None,
    end: int | None = None,
    threshold: float | None = None,
    title: str = "gate",
) -> Figure:
    """Stop probabilities [T]: predicted, and wanted in teacher forcing. Of speech, the number of
    steps at whose end it ended, and the probability at which the gate ends it."""
    figure = _figure(3)
    axes = figure.add_subplot()
    if target is not None:
        axes.plot(target, color="#0072B2", linewidth=3, alpha=0.5, label="target")
    axes.plot(predicted, color="#D55E00", linestyle="--", label="predicted")
    if threshold is not None:
        axes.axhline(threshold, color="grey", linestyle=":", label="gate_threshold")
    if end is not None:
        axes.axvline(end - 0.5, color="black", linewidth=1, label="end of speech")
    axes.set(xlabel="decoder step", ylabel="stop probability", ylim=(-0.05, 1.05), title=title)
    axes.legend(loc="upper left")
    return figure
