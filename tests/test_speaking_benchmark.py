"""Test the calculations in benchmarks/speaking.py, and the settings that it rejects."""

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import machine
import model
from hparams import create_hparams

synthesis = importlib.import_module("benchmarks.speaking")
pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,postnet_embedding_dim=8,n_frames_per_step=2"
)
OPTIONS = "--device cpu --threads 1 --symbols 3 --steps 5 --texts 1,2".split()
SECONDS_A_TEXT = 5 * 2 * 256 / 22050  # decoder steps x frames per step x hop length / sampling rate


def missing(hparams):
    raise ModuleNotFoundError("No module named 'librosa'")


def test_real_time_factors_are_medians_when_tasks_are_repeated(tmp_path, monkeypatch, capsys):
    """If librosa is missing, the benchmark does not time Griffin-Lim."""
    monkeypatch.setattr(synthesis, "mel_filters", missing)
    seconds = {"1 at once": [3.0, 1.0, 2.0], "2 at once": [8.0, 7.0, 5.0]}

    def time_interleaved(tasks, rounds, device, title=""):
        return {way: np.array(seconds[title]) if title else task() for way, task in tasks.items()}

    monkeypatch.setattr(synthesis, "time_interleaved", time_interleaved)
    path = tmp_path / "synthesis.json"
    synthesis.main([*OPTIONS, "--hparams", SMALL, "--json", str(path)])
    one, two, vocoder = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert one["way"] == two["way"] == "one by one"  # the only mode on a CPU is "one by one"
    assert np.median(one["real_time_factors"]) == pytest.approx(2.0 / SECONDS_A_TEXT)
    assert np.median(two["real_time_factors"]) == pytest.approx(7.0 / (2 * SECONDS_A_TEXT))
    assert vocoder["real_time_factors"] is None
    printed = " ".join(capsys.readouterr().out.split())
    assert f"| {2.0 / SECONDS_A_TEXT:.4f} (" in printed
    assert "| Griffin-Lim | 1 | not measured |" in printed


@pytest.mark.parametrize("same", [True, False])
def test_synthesis_is_timed_with_and_without_cuda_graphs_when_the_device_is_a_gpu(
    same, monkeypatch
):
    monkeypatch.setattr(synthesis, "mel_filters", missing)
    hparams, ways = create_hparams(f"{SMALL},max_decoder_steps=5,gate_threshold=1"), []
    args = SimpleNamespace(hparams=hparams, device=torch.device("cuda"), texts=[1], repeats=1)
    args.threads, args.steps = [1], 5

    def speak(args, speaker, count, way, threads):
        ways.append(way)
        return torch.zeros(1, 80, 5) if same else torch.rand(1, 80, 5)

    monkeypatch.setattr(synthesis, "speak", speak)
    monkeypatch.setattr(machine, "synchronize", lambda _: None)
    rows = synthesis.measure(args, model.Tacotron2(hparams), {})
    assert set(ways) == {"one by one", "graphs"}
    assert [row["bitwise_the_same"] for row in rows] == [True, same, None]


def test_speaking_benchmark_fails_when_the_model_has_several_speakers(capsys):
    speaking = importlib.import_module("benchmarks.speaking")
    with pytest.raises(SystemExit):
        speaking.main(["--hparams", "speaker_embedding_dim=4"])
    assert "speaker_embedding_dim: expected 0" in capsys.readouterr().err


@pytest.mark.thorough
def test_speaking_benchmark_measures_exported_voices_when_requested(tmp_path):
    options = [*OPTIONS, "--hparams", SMALL, "--voices", "--repeats", "1", "--json"]
    synthesis.main([*options, str(tmp_path / "a.json")])
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    ways = ["one by one", "ONNX fp32", "ONNX int8"]
    assert [row["way"] for row in rows] == [*ways, *ways, "Griffin-Lim"]
    assert all(row["real_time_factors"][0] > 0 for row in rows)
