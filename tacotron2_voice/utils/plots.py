"""Plots of alignments, mel spectrograms and stop probabilities, for TensorBoard and files.

figure = draw_alignment(alignment, texts=["Good morning."])
figure.savefig("alignment.png")
"""

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
FONT_SIZE = 9  # points, of the symbols along an axis
LINE = 1.2 * FONT_SIZE  # points between two labels
AROUND = 0.8  # inches of a plot's height above and below its axes
MAX_LABEL_LETTERS = 20
MAX_TITLE_LETTERS = 80
SPACE = "␣"  # the label of a space
BOX = "□"  # the label of a character that no font has


def _figure(height: float, width: float = 8) -> Figure:
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_alignment(
    *alignments: np.ndarray, texts: Sequence[Sequence[str]] = (), title: str = "alignment"
) -> Figure:
    """Draw attention weights [T, T_in]. A good alignment is a line from lower left to upper right.

    Several chunks of a text are drawn one after another, separated by thin lines.

    Args:
        texts: the T_in symbols of each chunk, for the title and the axis. The axis shows symbols
            or, if there is too little space, words. Without texts the symbols are numbered.
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
    """Label the axis with symbols, in at most `num_lines` labels, and write the text into the
    title."""
    families, lacking = fonts_of(frozenset("".join(symbol for text in texts for symbol in text)))
    drawable = [[_drawable(symbol, lacking) for symbol in text] for text in texts]
    min_symbols = -(-sum(map(len, drawable)) // num_lines)
    labels, places, start = list[str](), list[float](), 0
    for text in drawable:
        for piece in _pieces(text, min_symbols):
            label = "".join(piece)
            labels.append(_shortened(label.strip(), MAX_LABEL_LETTERS) or SPACE)
            places.append(start + (len(piece) - 1) / 2)
            start += len(piece)
    # Without this, matplotlib would read text between two dollar signs as a formula.
    font: dict[str, Any] = {"family": families, "parse_math": False}
    axes.set_yticks(places, labels, fontsize=FONT_SIZE, **font)
    whole = " ".join("".join(text).strip() for text in drawable)
    title = _shortened(f"{title}: {whole}", MAX_TITLE_LETTERS)
    axes.set_title(title, fontsize=FONT_SIZE + 1, **font)


def _pieces(text: Sequence[str], min_symbols: int) -> list[list[str]]:
    """Split a text into pieces of at least `min_symbols` symbols (1: single symbols).

    A piece ends after a space or a wide letter, or when it would be too long for a label.
    """
    pieces: list[list[str]] = [[]]
    for symbol in text:
        pieces[-1].append(symbol)
        can_end = min_symbols == 1 or symbol.isspace() or _width(symbol[0]) == 2
        if len(pieces[-1]) >= (min_symbols if can_end else max(min_symbols, MAX_LABEL_LETTERS)):
            pieces.append([])
    if (rest := pieces.pop()) and pieces and len(rest) < min_symbols:
        pieces[-1] += rest
    elif rest:
        pieces.append(rest)
    return pieces


def _drawable(symbol: str, lacking: set[str]) -> str:
    """Return a symbol that fonts can draw: an accent on a circle, a box if no font has it."""
    if any(character in lacking for character in symbol):
        return BOX
    return f"◌{symbol}" if unicodedata.combining(symbol[0]) else symbol


def _width(character: str) -> int:
    """Return the width in letters: 2 for Chinese characters and for the box."""
    return 2 if unicodedata.east_asian_width(character) in "WF" or character == BOX else 1


def _shortened(text: str, longest: int) -> str:
    """Shorten a text to the width of at most `longest` letters."""
    count = int((np.cumsum([_width(x) for x in text]) <= longest).sum())
    return text if count == len(text) else f"{text[: count - 1]}…"


@functools.lru_cache(16)
def fonts_of(characters: frozenset[str]) -> tuple[list[str], set[str]]:
    """Return font families that together cover the characters, and the characters that no font of
    this machine has."""
    usual = FontProperties()
    families, lacking = [*usual.get_family()], _lacking(findfont(usual), characters)
    for font in fontManager.ttflist if lacking else ():
        if font.name.startswith("Last Resort"):  # it has a box for every character
            continue
        with contextlib.suppress(OSError, RuntimeError):  # matplotlib cannot read every font
            left = _lacking(font.fname, lacking)
            families += [font.name] * (left < lacking)
            lacking = left
    return families, set(lacking)


def _lacking(path: str, characters: frozenset[str]) -> frozenset[str]:
    font = get_font(path)
    return frozenset(x for x in characters if not font.get_char_index(ord(x)))


def draw_mels(like: str | None = None, **mels: np.ndarray) -> Figure:
    """Draw log-mels [n_mels, frames] one above another, with their names as titles.

    Args:
        like: the name of the log-mel whose color scale all use (default: the first).
    """
    figure = _figure(1 + 2 * len(mels))
    panels = figure.subplots(len(mels), 1, sharex=True, squeeze=False)[:, 0]
    low, high = np.percentile(mels[like or next(iter(mels))], [1, 99.9])
    for axes, (title, mel) in zip(panels, mels.items(), strict=True):
        image = axes.imshow(mel, cmap="magma", vmin=low, vmax=max(high, low + 1), **IMAGE)
        axes.set(ylabel="mel band", title=title)
    # Each imshow sets the shared axis to the length of its mel.
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
    """Draw stop probabilities [T].

    Args:
        predicted: of the model.
        target: with teacher forcing, the right values.
        end: in synthesis, the decoder step at which speech ended.
        threshold: in synthesis, `gate_threshold`.
    """
    figure = _figure(3)
    axes = figure.add_subplot()
    if target is not None:
        axes.plot(target, color="#0072B2", linewidth=3, alpha=0.5, label="target")
    line = "--" if target is not None else "-"
    axes.plot(predicted, color="#D55E00", linestyle=line, label="predicted")
    if threshold is not None:
        axes.axhline(threshold, color="gray", linestyle=":", label="gate_threshold")
    if end is not None:
        axes.axvline(end - 0.5, color="black", linewidth=1, label="end of speech")
    axes.set(xlabel="decoder step", ylabel="stop probability", ylim=(-0.05, 1.05), title=title)
    axes.legend(loc="best")
    return figure
