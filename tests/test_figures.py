"""Count bars, lines and labels in the plots of evaluation/figures.py."""

import warnings

import numpy as np
import pandas as pd
import pytest
from test_search import sweep

from evaluation import figures
from evaluation.figures import (
    draw_epoch_excerpt,
    draw_padded_batches,
    draw_parameter_sweeps,
    draw_progress,
    style_of,
    write_figure,
)
from length_batching import STRATEGIES, padding_stats, plan_epoch
from length_batching.search import Surveyor

LENGTHS = np.random.default_rng(0).integers(90, 810, 120)


def test_markers_differ_when_strategies_have_no_predefined_style(monkeypatch):
    strategies = (*STRATEGIES, "one more", "another")
    monkeypatch.setattr(figures, "STRATEGIES", strategies)
    assert len({style_of(strategy).marker for strategy in strategies}) == len(strategies)


@pytest.mark.parametrize(("count", "dynamic"), [(120, False), (120, True), (5, False), (1, True)])
def test_bars_of_a_batch_plot_show_audio_and_padding(count, dynamic):
    figure = draw_padded_batches(LENGTHS[:count], dynamic=dynamic)
    for axes in figure.axes:
        real = np.array([bar.get_height() for bar in axes.patches if not bar.get_hatch()])
        padding = np.array([bar.get_height() for bar in axes.patches if bar.get_hatch()])
        assert len(real) == len(padding) == min(count, 48)
        assert set(real) <= set(LENGTHS)
        # A padding bar ends at the length of the batch, as in equation 1 of Ge et al. (2021).
        tops = [(b.get_x(), b.get_y() + b.get_height()) for b in axes.patches if b.get_hatch()]
        assert sorted(top for _, top in tops)[-1] == real.max()
        rate = np.mean(padding / np.array([top for _, top in tops]))
        assert f"ZPR {rate:.1%}" in axes.get_title(loc="left")
    clips = [sorted(b.get_height() for b in a.patches if not b.get_hatch()) for a in figure.axes]
    assert clips[0] == clips[1] == clips[2]  # all strategies show the same clips


def test_plot_of_the_first_batches_shows_only_complete_batches():
    figure = draw_epoch_excerpt(LENGTHS, 4, clips=22)
    plans = (
        plan_epoch(LENGTHS, 4, "random", batch_randomization=True),
        plan_epoch(LENGTHS, 4, "semi_sorted", dynamic_batch_size=True, batch_randomization=True),
    )
    for axes, plan, name in zip(figure.axes, plans, ("RAND", "SSB-DBS-BR"), strict=True):
        real = [bar.get_height() for bar in axes.patches if not bar.get_hatch()]
        shown = len(axes.get_xticks())
        assert real == [LENGTHS[i] for batch in plan[:shown] for i in batch]
        assert 22 <= len(real) < 22 + len(plan[shown - 1])
        stats = padding_stats(LENGTHS, plan)
        title = axes.get_title(loc="left")
        for value in (
            f"{stats.zero_padding_rate:.1%}",
            str(len(plan)),
            f"{stats.decoder_steps:,.0f}",
        ):
            assert value in title
        assert title.startswith(f"{name}: ")


def test_learning_curves_have_axis_labels_with_the_terms_of_the_docs():
    rows = [
        {"name": "a", "epoch": epoch, "alignment_sharpness": 0.5, "validation_loss_unpadded": 2.0}
        for epoch in (1, 2)
    ]
    quantities = ["alignment_sharpness", "validation_loss_unpadded"]
    figure = draw_progress(pd.DataFrame(rows), quantities)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["focus rate", "masked validation loss"]
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log"]


def test_plot_of_a_parameter_sweep_marks_the_chosen_value():
    values = {"local_randomization_factor": 0.2, "bucket_size": 20, "num_bins": 6}
    figure = draw_parameter_sweeps(Surveyor(LENGTHS), 4, values)
    upper = figure.axes[:3]
    middle = figure.axes[3:6]
    chosen = {"semi_sorted": 0.2, "bucket": 20, "alternated_sort": 6}
    for zpr, abl, (strategy, value) in zip(upper, middle, chosen.items(), strict=True):
        one = sweep(LENGTHS, 4, strategy, [value], epochs=3)[0]
        for axes, expected in ((zpr, 100 * one.zero_padding_rate), (abl, one.average_batch_length)):
            curve, ring = axes.lines
            assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (value, pytest.approx(expected))
            assert value in curve.get_xdata()
    for axes in figure.axes[6:]:
        planned, ordered = (line.get_ydata() for line in axes.lines)
        assert sorted(planned) == list(ordered)


@pytest.mark.parametrize("lengths", [[100], [90, 100, 200], [100] * 30])
def test_drawing_plots_issues_no_warnings_when_the_corpus_is_tiny_or_uniform(lengths):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Ignore ResourceWarning, because earlier tests can leave sockets open.
        warnings.simplefilter("ignore", ResourceWarning)
        for figure in (
            draw_padded_batches(lengths, dynamic=True),
            draw_parameter_sweeps(Surveyor(lengths), 4),
        ):
            figure.draw_without_rendering()
            assert figure.axes
            assert all(axes.has_data() for axes in figure.axes)


def test_figure_has_the_same_bytes_when_its_data_is_the_same(tmp_path):
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        figure = draw_padded_batches(LENGTHS[:12], dynamic=True)
        path = write_figure(figure, tmp_path / folder / "figure_3.svg")
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert b">SSB-DBS: ZPR" in written[0]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["figure_3.svg"]
