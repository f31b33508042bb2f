"""Test that plots show the given data and that labels do not overlap."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tacotron2_voice.utils.plots import (
    BOX,
    MAX_TITLE_LETTERS,
    SPACE,
    draw_alignment,
    draw_mels,
    draw_stop_token,
)

SENTENCE = (
    "printing, in the only sense with which we are at present concerned, differs from most if not "
    "from all the arts and crafts represented in the exhibition."
)


def diagonal(steps: int, symbols: int) -> np.ndarray:
    """Return weights [decoder steps, symbols], which are 1 on the diagonal and 0 elsewhere."""
    return np.eye(symbols, dtype=np.float32)[np.arange(steps) * symbols // steps]


def drawn(*texts, **options):
    """Plot an alignment for these texts, and return its axes and the axes of the color bar."""
    alignments = [diagonal(5 * len(text), len(text)) for text in texts]
    figure = draw_alignment(*alignments, texts=texts, **options)
    FigureCanvasAgg(figure).draw()
    return figure.axes


def labels_of(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_alignment_plot_shows_every_chunk_at_its_position():
    chunks = [diagonal(6, 3), 0.5 * diagonal(8, 4)]
    axes, _ = draw_alignment(*chunks).axes
    first, second = axes.images
    assert np.array_equal(first.get_array(), chunks[0].T)
    assert np.array_equal(second.get_array(), chunks[1].T)
    assert tuple(first.get_extent()) == (-0.5, 5.5, -0.5, 2.5)
    assert tuple(second.get_extent()) == (5.5, 13.5, 2.5, 6.5)
    assert first.get_clim() == second.get_clim() == (0, 1)
    assert (*axes.get_xlim(), *axes.get_ylim()) == (-0.5, 13.5, -0.5, 6.5)


def test_alignment_plot_labels_every_symbol_when_the_text_is_short():
    axes, _ = drawn("go on.", title="free-running alignment")
    assert labels_of(axes) == ["g", "o", SPACE, "o", "n", "."]
    assert axes.get_yticks().tolist() == [0, 1, 2, 3, 4, 5]
    assert axes.get_title() == "free-running alignment: go on."
    axes, _ = drawn(["@HH", "@AY1", " ", "a"])
    assert labels_of(axes) == ["@HH", "@AY1", SPACE, "a"]


def test_alignment_plot_labels_words_when_the_text_is_long():
    axes, _ = drawn(SENTENCE)
    labels = labels_of(axes)
    assert " ".join(labels) == SENTENCE
    assert labels[:3] == ["printing,", "in the", "only"]
    # The centers of symbols 0-9, 10-16 and 17-21.
    assert axes.get_yticks()[:3].tolist() == [4.5, 13, 19]
    title = axes.get_title()
    assert title.startswith("alignment: printing, in the only sense")
    assert title.endswith("…")
    assert len(title) == MAX_TITLE_LETTERS


@pytest.mark.parametrize(
    "texts",
    [
        [SENTENCE],
        [SENTENCE[:33]],
        ["a dog came.", "it sat down,", "and it ate."],
        [SENTENCE[:80]] * 6,
        ["n" * 150],
    ],
)
def test_labels_and_title_of_a_plot_do_not_overlap(texts):
    axes, bar = drawn(*texts)
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    # The outer 2 pixels of each box are empty, so boxes may overlap by 2 pixels.
    assert all(low.y1 <= high.y0 + 2 for low, high in pairwise(boxes))
    name = axes.yaxis.label.get_window_extent()
    assert name.x1 <= min(box.x0 for box in boxes)
    title = axes.title.get_window_extent()
    figure = axes.figure.bbox
    assert figure.x0 <= title.x0 < title.x1 <= figure.x1
    assert axes.get_window_extent().width > figure.width / 2
    assert bar.get_window_extent().x1 <= figure.x1


def test_drawing_an_alignment_issues_no_warnings_when_symbols_are_not_letters():
    """Two dollar signs in a text must not start a formula."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes, _ = drawn(["$", "^", "$", "\U0010fffd"])
    assert labels_of(axes) == ["$", "^", "$", BOX]


def test_mel_plots_have_the_same_axes_and_colors_when_lengths_differ():
    rng = np.random.default_rng(0)
    spoken = rng.normal(0, 9, (10, 30))
    recording = rng.normal(-5, 1, (10, 20))
    upper, lower, _ = draw_mels("recording", spoken=spoken, recording=recording).axes
    assert (upper.get_title(), lower.get_title()) == ("spoken", "recording")
    assert upper.get_xlim() == lower.get_xlim() == (-0.5, 29.5)
    expected = pytest.approx(np.percentile(recording, [1, 99.9]))
    assert upper.images[0].get_clim() == lower.images[0].get_clim() == expected


def test_stop_token_plot_shows_the_end_of_speech():
    [axes] = draw_stop_token(np.linspace(0, 0.4, 9), end=5, threshold=0.5, title="gate: why").axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines.keys() == {"predicted", "threshold", "end of speech"}
    assert lines["end of speech"].get_xdata() == [4.5, 4.5]
    assert lines["threshold"].get_ydata() == [0.5, 0.5]
    assert axes.get_title() == "gate: why"
    [axes] = draw_stop_token(np.zeros(3), target=np.ones(3)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["target", "predicted"]
