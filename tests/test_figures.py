"""figures.py: what is drawn, counted from the drawing itself."""

import warnings

import numpy as np
import pytest
from test_search import sweep

from evaluation import figures
from evaluation.figures import (
    draw_epoch_excerpt,
    draw_padded_batches,
    draw_parameter_sweeps,
    style_of,
    write_figure,
)
from length_batching import STRATEGIES, padding_stats, plan_epoch
from length_batching.search import Surveyor

LENGTHS = np.random.default_rng(0).integers(90, 810, 120)


def test_strategies_differ_without_color(monkeypatch):
    """New ones too, which have no entry in STYLES."""
    strategies = (*STRATEGIES, "one more", "another")
    monkeypatch.setattr(figures, "STRATEGIES", strategies)
    assert len({style_of(strategy).marker for strategy in strategies}) == len(strategies)


@pytest.mark.parametrize(("count", "dynamic"), [(120, False), (120, True), (5, False), (1, True)])
def test_bars_are_real_frames_and_padding(count, dynamic):
    figure = draw_padded_batches(LENGTHS[:count], dynamic=dynamic)
    for axes in figure.axes:
        real = np.array([bar.get_height() for bar in axes.patches if not bar.get_hatch()])
        padding = np.array([bar.get_height() for bar in axes.patches if bar.get_hatch()])
        assert len(real) == len(padding) == min(count, 48)
        assert set(real) <= set(LENGTHS)
        # Each clip's bar and its padding end at its batch's length, so this is Ge21 eq. 1.
        tops = [(b.get_x(), b.get_y() + b.get_height()) for b in axes.patches if b.get_hatch()]
        assert sorted(top for _, top in tops)[-1] == real.max()
        rate = np.mean(padding / np.array([top for _, top in tops]))
        assert f"ZPR {rate:.1%}" in axes.get_title(loc="left")
    clips = [sorted(b.get_height() for b in a.patches if not b.get_hatch()) for a in figure.axes]
    assert clips[0] == clips[1] == clips[2]  # the same clips under all three


def test_excerpt_shows_the_first_whole_batches():
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
        assert title.startswith(f"{name}: ZPR {stats.zero_padding_rate:.1%}, batches: {len(plan)},")
        assert f"{stats.decoder_steps:,.0f} frames" in title


def test_sweeps_mark_the_value_in_use():
    values = {"local_randomization_factor": 0.2, "bucket_size": 20, "num_bins": 6}
    figure = draw_parameter_sweeps(Surveyor(LENGTHS), 4, values)
    upper, middle = figure.axes[:3], figure.axes[3:6]
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
def test_odd_corpora_are_drawn_without_warnings(lengths):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of other tests' sockets
        for figure in (
            draw_padded_batches(lengths, dynamic=True),
            draw_parameter_sweeps(Surveyor(lengths), 4),
        ):
            figure.draw_without_rendering()
            assert figure.axes
            assert all(axes.has_data() for axes in figure.axes)


def test_same_data_writes_the_same_bytes(tmp_path):
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        figure = draw_padded_batches(LENGTHS[:12], dynamic=True)
        path = write_figure(figure, tmp_path / folder / "figure_3.svg")
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert b">SSB-DBS: ZPR" in written[0]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["figure_3.svg"]
