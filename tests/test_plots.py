"""Pictures: what they show, and that it can be read."""

import warnings
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tacotron2_voice.utils.plots import (
    BOX,
    MAX_TITLE_LETTERS,
    SPACE,
    draw_alignment,
    draw_gate,
    draw_mels,
    fonts_of,
)

SENTENCE = (
    "printing, in the only sense with which we are at present concerned, differs from most if not "
    "from all the arts and crafts represented in the exhibition."
)


def diagonal(steps: int, symbols: int) -> np.ndarray:
    """[steps, symbols] weights of 1 from corner to corner."""
    return np.eye(symbols, dtype=np.float32)[np.arange(steps) * symbols // steps]


def drawn(*texts, **options):
    """The axes and the color bar's of a picture of these texts, after it was drawn."""
    parts = [diagonal(5 * len(text), len(text)) for text in texts]
    figure = draw_alignment(*parts, texts=texts, **options)
    FigureCanvasAgg(figure).draw()
    return figure.axes


def labels_of(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_picture_shows_every_part_in_its_place():
    parts = [diagonal(6, 3), 0.5 * diagonal(8, 4)]
    axes, _ = draw_alignment(*parts).axes
    first, second = axes.images
    assert np.array_equal(first.get_array(), parts[0].T)
    assert np.array_equal(second.get_array(), parts[1].T)
    assert tuple(first.get_extent()) == (-0.5, 5.5, -0.5, 2.5)
    assert tuple(second.get_extent()) == (5.5, 13.5, 2.5, 6.5)
    assert first.get_clim() == second.get_clim() == (0, 1)
    assert (*axes.get_xlim(), *axes.get_ylim()) == (-0.5, 13.5, -0.5, 6.5)


def test_short_text_has_a_label_for_each_symbol():
    axes, _ = drawn("go on.", title="alignment, spoken freely")
    assert labels_of(axes) == ["g", "o", SPACE, "o", "n", "."]
    assert axes.get_yticks().tolist() == [0, 1, 2, 3, 4, 5]
    assert axes.get_title() == "alignment, spoken freely: go on."
    axes, _ = drawn(["@HH", "@AY1", " ", "a"])
    assert labels_of(axes) == ["@HH", "@AY1", SPACE, "a"]


def test_long_text_is_labeled_in_words():
    axes, _ = drawn(SENTENCE)
    labels, places = labels_of(axes), axes.get_yticks()
    assert " ".join(labels) == SENTENCE
    assert labels[:3] == ["printing,", "in the", "only"]
    assert places[:3].tolist() == [4.5, 13, 19]  # the middle of symbols 0-9, 10-16 and 17-21
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
        ["我们的" * 40],
        ["n" * 150],
    ],
)
def test_labels_and_title_overlap_nothing(texts):
    axes, bar = drawn(*texts)
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(low.y1 <= high.y0 + 2 for low, high in pairwise(boxes))  # letters leave 2 free
    name = axes.yaxis.label.get_window_extent()
    assert name.x1 <= min(box.x0 for box in boxes)
    title, figure = axes.title.get_window_extent(), axes.figure.bbox
    assert figure.x0 <= title.x0 < title.x1 <= figure.x1
    assert axes.get_window_extent().width > figure.width / 2
    assert bar.get_window_extent().x1 <= figure.x1


def test_symbols_without_letters_are_drawn_without_warnings():
    """Two dollar signs make no formula; an accent stands on a circle."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes, _ = drawn(["$", "^", "$", "\u0301", "\u4f60"])
    assert labels_of(axes)[:4] == ["$", "^", "$", "◌\u0301"]
    assert labels_of(axes)[4] in (BOX, "\u4f60")  # as this machine's fonts are


def test_missing_letters_are_taken_from_other_fonts(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "font.family", ["cmr10"])
    find = fonts_of.__wrapped__
    assert find(frozenset("ab")) == (["cmr10"], set())
    families, lacking = find(frozenset("aя\U0010fffd"))
    assert (families[0], len(families), lacking) == ("cmr10", 2, {"\U0010fffd"})  # for private use


def test_mels_of_two_lengths_are_shown_whole():
    """In the colors of the one that is named."""
    rng = np.random.default_rng(0)
    spoken, recording = rng.normal(0, 9, (10, 30)), rng.normal(-5, 1, (10, 20))
    upper, lower, _ = draw_mels("recording", spoken=spoken, recording=recording).axes
    assert (upper.get_title(), lower.get_title()) == ("spoken", "recording")
    assert upper.get_xlim() == lower.get_xlim() == (-0.5, 29.5)
    expected = pytest.approx(np.percentile(recording, [1, 99.9]))
    assert upper.images[0].get_clim() == lower.images[0].get_clim() == expected


def test_gate_of_speech_shows_where_it_ended():
    [axes] = draw_gate(np.linspace(0, 0.4, 9), end=5, threshold=0.5, title="gate: why").axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines.keys() == {"predicted", "gate_threshold", "end of speech"}
    assert lines["end of speech"].get_xdata() == [4.5, 4.5]
    assert lines["gate_threshold"].get_ydata() == [0.5, 0.5]
    assert axes.get_title() == "gate: why"
    [axes] = draw_gate(np.zeros(3), target=np.ones(3)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["target", "predicted"]
