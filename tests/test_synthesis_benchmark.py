"""benchmarks/synthesis.py: the arithmetic of its figures, and what it refuses."""

import importlib
import json

import pytest
import torch

import captured_steps
import model

synthesis = importlib.import_module("benchmarks.synthesis")
pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,postnet_embedding_dim=8,n_frames_per_step=2"
)
OPTIONS = ["--device", "cpu", "--symbols", "3", "--steps", "5", "--repeats", "3"]
OPTIONS += ["--texts", "1,2", "--hparams", SMALL]
SECONDS_A_TEXT = 5 * 2 * 256 / 22050  # steps, frames a step, the defaults of a frame


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the timed calls take in turn, and what they run with."""
    durations, decoders = [], []

    def seconds_of(device, run, *arguments):
        run(*arguments)
        return durations.pop(0)

    speak = synthesis.speak

    def recorded(speaker, text, lengths):
        decoders.append(speaker.speaking_decoder)
        return speak(speaker, text, lengths)

    monkeypatch.setattr(synthesis, "seconds_of", seconds_of)
    monkeypatch.setattr(synthesis, "speak", recorded)
    return durations, decoders


def test_factors_are_medians_over_the_sound_of_all_texts(clock, tmp_path, monkeypatch, capsys):
    durations, _ = clock
    monkeypatch.setattr(synthesis, "griffin_lim", lambda mel, hparams: mel.numpy())
    for times in ([3.0, 1.0, 2.0], [8.0, 7.0, 5.0], [0.5, 0.4, 0.6]):
        durations.extend([9.0, *times])  # a warm-up, then the repeats
    synthesis.main([*OPTIONS, "--json", str(tmp_path / "synthesis.json")])
    result = json.loads((tmp_path / "synthesis.json").read_text(encoding="utf-8"))
    one, two = result["rows"]
    assert (one["texts"], two["texts"]) == (1, 2)
    assert one["way"] == two["way"] == "one by one"  # a CPU has no other
    assert one["seconds_of_sound"] == pytest.approx(SECONDS_A_TEXT)
    assert one["real_time_factor"] == pytest.approx(2.0 / SECONDS_A_TEXT)
    assert two["real_time_factor"] == pytest.approx(7.0 / (2 * SECONDS_A_TEXT))
    expected = [5.0 / (2 * SECONDS_A_TEXT), 8.0 / (2 * SECONDS_A_TEXT)]
    assert two["real_time_factor_range"] == pytest.approx(expected)
    assert result["griffin_lim_real_time_factor"] == pytest.approx(0.5 / SECONDS_A_TEXT)
    assert {"device", "versions", "date", "symbols", "steps", "repeats"} <= result.keys()
    printed = capsys.readouterr().out
    assert f"{2.0 / SECONDS_A_TEXT:.4f}" in printed
    assert f"its real-time factor: {0.5 / SECONDS_A_TEXT:.4f}" in printed


def test_both_ways_of_a_gpu_take_turns_and_are_compared(clock):
    durations, decoders = clock
    args = synthesis.parse_arguments(OPTIONS)
    args.ways = list(synthesis.WAYS)
    durations += [9.0, 9.0, 4.0, 1.0, 6.0, 2.0, 8.0, 3.0]
    speaker = model.Tacotron2(args.hparams).eval()
    loop, graphs = synthesis.time_batch(args, speaker, 1)
    assert decoders == [model.free_running, captured_steps.free_running] * 4
    assert (loop["seconds"], graphs["seconds"]) == (6.0, 2.0)
    assert (loop["over_one_by_one"], graphs["over_one_by_one"]) == (1.0, 3.0)
    assert graphs["bitwise_the_same"]


def test_speech_that_differs_is_said(clock, monkeypatch):
    durations, _ = clock
    args = synthesis.parse_arguments(OPTIONS)
    args.ways = list(synthesis.WAYS)
    durations += [1.0] * 8
    monkeypatch.setattr(synthesis, "speak", lambda *_: torch.rand(1, 80, 10))
    _, graphs = synthesis.time_batch(args, model.Tacotron2(args.hparams), 1)
    assert not graphs["bitwise_the_same"]


def test_griffin_lim_is_not_measured_without_librosa(clock, monkeypatch):
    def missing(mel, hparams):
        raise ModuleNotFoundError("No module named 'librosa'")

    monkeypatch.setattr(synthesis, "griffin_lim", missing)
    args = synthesis.parse_arguments(OPTIONS)
    assert synthesis.time_griffin_lim(args, model.Tacotron2(args.hparams).eval()) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "1,0"], "--texts: '0': expected a whole number from 1"),
        (["--texts", ""], "--texts: expected numbers from 1, as in 1,16"),
        (["--steps", "0"], "--steps: '0': expected a whole number from 1"),
        (["--hparams", "nothing=1"], "nothing: no hyper-parameter has this name"),
        (["--json", "none/x.json"], "no such folder: none"),
    ],
)
def test_what_it_cannot_measure_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        synthesis.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
