"""Test how `row_costs=measure` measures costs, and that a resumed run keeps them."""

import pytest
import torch
from helpers import assert_same, load, metrics, newest, tiny
from training_runs import run

from hparams import HParams, create_hparams, parse_row_costs
from tacotron2_voice.utils.errors import UserError
from training import row_costs
from training.trainer import Trainer


def test_row_cost_table_contains_the_cost_for_each_number_of_tiles_and_the_cost_per_clip():
    tiles = {16: 30.0, 32: 50.0, 48: 56.0, 64: 55.0}
    measured = {n: tiles[-(-n // 16) * 16] + 0.5 * n for n in (16, 17, 24, 32, 48, 64)}
    text, error = row_costs.table_of(measured)
    costs, clip_cost = parse_row_costs(text)
    # 64 clips cost less than 48 clips, so the lower cost is also used for 48 clips.
    assert costs == {16: 30, 32: 50, 48: 55, 64: 55}
    assert clip_cost == 0.5
    assert error < 1e-12


def test_error_of_the_row_cost_table_is_relative_to_the_measured_cost_of_24_clips():
    measured = {16: 30.0, 17: 50.0, 24: 75.0, 32: 50.0}
    assert row_costs.table_of(measured)[1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text", ["16", "x:3", "16:0", "clip:1 16:-2", "16:33 16:48", "16:3 clip:-1", "16:3;32:4"]
)
def test_setting_row_costs_is_rejected_when_it_is_not_a_table_of_costs(text):
    with pytest.raises(UserError, match="row_costs"):
        HParams(row_costs=text)


def time_like_a_gpu(monkeypatch, host: float) -> None:
    """Replace the measured times with the times of a GPU.

    Each measured time is at least `host` seconds, as if the host were slower than the GPU.
    """

    def pass_seconds(trainer, num_clips, frames, symbols):
        tiles = {16: 30, 32: 50, 48: 60, 64: 70}[-(-num_clips // 16) * 16]
        return max(host, 0.004 + frames * (tiles + 0.5 * num_clips) / 1e6)

    monkeypatch.setattr(row_costs, "pass_seconds", pass_seconds)


def test_row_cost_measurement_covers_every_batch_size_and_does_not_change_the_model(monkeypatch):
    """The model computes each batch, but the measured times are replaced, because times on a busy
    machine are too noisy."""
    compute = row_costs.pass_seconds
    time_like_a_gpu(monkeypatch, host=0.0)
    simulated = row_costs.pass_seconds

    def pass_seconds(trainer, num_clips, frames, symbols):
        compute(trainer, num_clips, 4, symbols)
        return simulated(trainer, num_clips, frames, symbols)

    monkeypatch.setattr(row_costs, "pass_seconds", pass_seconds)
    trainer = Trainer(create_hparams(tiny()), torch.device("cpu"))
    before = trainer.model.state_dict()
    text, _ = row_costs.measure(trainer, symbols=5)
    assert list(parse_row_costs(text)[0]) == [16, 32, 48, 64]
    assert_same(trainer.model.state_dict(), before)


@pytest.mark.parametrize("host", [0.0, 0.02, 0.05])
def test_measured_row_costs_are_exact_when_the_host_is_slower_than_the_gpu_for_short_batches(
    host, monkeypatch
):
    time_like_a_gpu(monkeypatch, host)
    trainer = Trainer(create_hparams(tiny()), torch.device("cpu"))
    text, problem = row_costs.measure(trainer, symbols=5)
    assert problem == ""
    costs, clip_cost = parse_row_costs(text)
    assert costs == pytest.approx({16: 30, 32: 50, 48: 60, 64: 70}, rel=0.05)
    assert clip_cost == pytest.approx(0.5, rel=0.05)


def test_row_cost_measurement_fails_when_the_host_is_slower_than_the_gpu_for_all_batches(
    monkeypatch,
):
    time_like_a_gpu(monkeypatch, host=10.0)
    monkeypatch.setattr(row_costs, "MAX_FRAMES", 1024)
    trainer = Trainer(create_hparams(tiny()), torch.device("cpu"))
    text, problem = row_costs.measure(trainer, symbols=5)
    assert (text, "proportional" in problem) == ("", True)


def test_row_cost_measurement_fails_when_costs_per_clip_exceed_the_cost_of_a_decoder_step(
    monkeypatch,
):
    def pass_seconds(trainer, num_clips, frames, symbols):
        return frames * max(1, num_clips - 16) / 1e6

    monkeypatch.setattr(row_costs, "pass_seconds", pass_seconds)
    trainer = Trainer(create_hparams(tiny()), torch.device("cpu"))
    text, problem = row_costs.measure(trainer, symbols=5)
    assert text == ""
    assert problem != ""


def measure_as_on_a_gpu(monkeypatch, text: str, problem: str = "") -> None:
    """Make runs on this CPU behave like runs on a GPU with the measured costs in `text`."""
    monkeypatch.setattr(row_costs, "measure", lambda *_: (text, problem))
    monkeypatch.setattr(row_costs, "is_useful_on", lambda _: True)


@pytest.mark.thorough
def test_measured_row_costs_are_kept_when_the_run_resumes(corpus, tmp_path, monkeypatch):
    settings = {"row_costs": "measure", "dynamic_batch_size": True, "batch_size": 2}
    measure_as_on_a_gpu(monkeypatch, "16:30 32:50 clip:1")
    run(tmp_path, corpus, epochs=1, **settings)
    measure_as_on_a_gpu(monkeypatch, "16:99")
    run(tmp_path, corpus, "--resume", epochs=2, **settings)
    runs = metrics(tmp_path, "run")
    assert [line["hparams"]["row_costs"] for line in runs] == 2 * ["16:30 32:50 clip:1"]
    for epoch in metrics(tmp_path, "epoch"):
        assert epoch["step_cost"] > 0


def test_measured_row_costs_are_not_used_when_they_are_inconsistent(
    corpus, tmp_path, monkeypatch, capsys
):
    measure_as_on_a_gpu(monkeypatch, "16:30 32:50", "not consistent")
    run(tmp_path, corpus, epochs=1, row_costs="measure")
    assert load(newest(tmp_path))["hparams"]["row_costs"] == ""
    assert "warning: row_costs=measure" in capsys.readouterr().out


def test_row_costs_are_not_measured_on_a_cpu(corpus, tmp_path, capsys):
    run(tmp_path, corpus, epochs=1, row_costs="measure")
    assert load(newest(tmp_path))["hparams"]["row_costs"] == ""
    assert "note: row_costs=measure" in capsys.readouterr().out
