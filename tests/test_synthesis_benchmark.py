"""benchmarks/synthesis.py: the arithmetic of its figures, and what it refuses."""

import importlib
import json

import numpy as np
import pytest
import torch

import captured_steps
import model
from hparams import create_hparams

synthesis = importlib.import_module("benchmarks.synthesis")
pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,postnet_embedding_dim=8,n_frames_per_step=2"
)
OPTIONS = ["--device", "cpu", "--symbols", "3", "--steps", "5", "--texts", "1,2"]
SECONDS_A_TEXT = 5 * 2 * 256 / 22050  # steps, frames a step, the defaults of a frame


def test_factors_are_medians_over_the_speech(tmp_path, monkeypatch, capsys):
    """Of all texts; there is no Griffin-Lim without librosa."""
    seconds = {"1 at once": [3.0, 1.0, 2.0], "2 at once": [8.0, 7.0, 5.0]}

    def time_in_turns(tasks, rounds, device, title="Griffin-Lim"):
        for task in tasks.values():
            task()
        return {way: np.array(seconds[title]) for way in tasks}

    def without_librosa(mel, hparams):
        raise ModuleNotFoundError("No module named 'librosa'")

    monkeypatch.setattr(synthesis, "time_in_turns", time_in_turns)
    monkeypatch.setattr(synthesis, "griffin_lim", without_librosa)
    path = tmp_path / "synthesis.json"
    synthesis.main([*OPTIONS, "--hparams", SMALL, "--json", str(path)])
    result = json.loads(path.read_text(encoding="utf-8"))
    one, two = result["rows"]
    assert (one["texts"], two["texts"]) == (1, 2)
    assert one["way"] == two["way"] == "one by one"  # a CPU has no other
    assert one["real_time_factor"] == pytest.approx(2.0 / SECONDS_A_TEXT)
    assert two["real_time_factor"] == pytest.approx(7.0 / (2 * SECONDS_A_TEXT))
    assert result["griffin_lim_real_time_factor"] is None
    printed = capsys.readouterr().out
    assert f"{2.0 / SECONDS_A_TEXT:.4f}" in printed
    assert "its real-time factor: not measured" in printed


@pytest.mark.parametrize("same", [True, False])
def test_both_ways_of_a_gpu_are_compared(same, monkeypatch):
    hparams, decoders = create_hparams(f"{SMALL},max_decoder_steps=5,gate_threshold=1"), []
    args = type("Args", (), {"hparams": hparams, "device": torch.device("cpu"), "symbols": 3})
    args.ways, args.repeats, args.steps = list(synthesis.WAYS), 1, 5
    speak = synthesis.speak

    def recorded(args, speaker, count, way):
        mel = speak(args, speaker, count, way)
        decoders.append(speaker.speaking_decoder)
        return mel if same else torch.rand_like(mel)

    monkeypatch.setattr(synthesis, "speak", recorded)
    rows = synthesis.time_batch(args, model.Tacotron2(hparams).eval(), 1)
    assert set(decoders) == {model.free_running, captured_steps.free_running}
    assert [row["bitwise_the_same"] for row in rows] == [True, same]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "1,0"], "--texts: '0': expected a whole number from 1"),
        (["--hparams", "nothing=1"], "nothing: no hyper-parameter has this name"),
        (["--json", "none/x.json"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        synthesis.main(arguments)
    assert message in capsys.readouterr().err
