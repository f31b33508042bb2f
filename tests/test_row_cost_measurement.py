"""Test the setting `row_costs`: measuring the costs, and planning with them on resume."""

import pytest
from helpers import load, metrics, newest
from training_runs import run

from hparams import HParams, parse_row_costs
from tacotron2_voice.utils.errors import UserError
from training import row_costs


def test_costs_of_tiles_and_clips_are_separated():
    tiles = {16: 30.0, 32: 50.0, 48: 56.0, 64: 55.0}
    measured = {n: tiles[-(-n // 16) * 16] + 0.5 * n for n in (16, 17, 24, 32, 48, 64)}
    text, error = row_costs.table_of(measured)
    costs, clip_cost = parse_row_costs(text)
    # 64 clips are cheaper than 48, so that 48 clips cost as much as 64.
    assert costs == {16: 30, 32: 50, 48: 55, 64: 55}
    assert clip_cost == 0.5
    assert error < 1e-12


def test_error_is_the_relative_difference_at_24_clips():
    measured = {16: 30.0, 17: 50.0, 24: 75.0, 32: 50.0}
    assert row_costs.table_of(measured)[1] == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["16", "x:3", "16:0", "clip:1 16:-2", "16:3 clip:-1", "16:3;32:4"])
def test_setting_is_rejected_when_it_is_not_a_table_of_costs(text):
    with pytest.raises(UserError, match="row_costs"):
        HParams(row_costs=text)


def test_measured_costs_are_kept_when_the_run_resumes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(row_costs, "FIRST_FRAMES", 16)
    monkeypatch.setattr(row_costs, "MAX_ERROR", 100)  # times on a busy CPU vary
    settings = {"row_costs": "measure", "dynamic_batch_size": True, "batch_size": 2}
    run(tmp_path, corpus, epochs=1, **settings)
    kept = load(newest(tmp_path))["hparams"]["row_costs"]
    costs, _ = parse_row_costs(kept)
    assert list(costs) == [16, 32, 48, 64]

    monkeypatch.setattr(row_costs, "measure", None)  # measuring again would raise an error
    run(tmp_path, corpus, "--resume", epochs=2, **settings)
    assert load(newest(tmp_path))["hparams"]["row_costs"] == kept
    assert [line["hparams"]["row_costs"] for line in metrics(tmp_path, "run")] == [kept, kept]
    for epoch in metrics(tmp_path, "epoch"):
        assert epoch["step_cost"] > 0


def test_costs_are_not_used_when_the_check_fails(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(row_costs, "measure", lambda *_: ("16:30 32:50", 0.2))
    run(tmp_path, corpus, epochs=1, row_costs="measure")
    assert load(newest(tmp_path))["hparams"]["row_costs"] == ""
    assert "warning: row_costs=measure" in capsys.readouterr().out
