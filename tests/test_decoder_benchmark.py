"""Test the values in the JSON file that benchmarks/decoder.py writes."""

import importlib
import json

import numpy as np
import pytest

pytest.importorskip("fast_decoder.graphs", reason="the folder fast_decoder is missing")
decoder = importlib.import_module("benchmarks.decoder")
pytestmark = pytest.mark.usefixtures("one_thread")

TINY = (
    "symbols_embedding_dim=16,encoder_embedding_dim=20,attention_rnn_dim=24,decoder_rnn_dim=28,"
    "prenet_dim=12,attention_dim=10,attention_location_n_filters=6,attention_location_kernel_size=5,"
    "postnet_embedding_dim=14,n_mel_channels=8"
)


def test_decoder_benchmark_writes_the_speedup_and_the_memory_ratio(tmp_path, monkeypatch, capsys):
    peaks = {"reference": 400, "fast": 100}
    monkeypatch.setattr(decoder, "in_a_process", lambda measure, args, name: peaks[name])
    options = f"--batch-size 1 --frames 3 --symbols 4 --repeats 2 --warm-ups 0 --hparams {TINY}"
    decoder.main(["--device", "cpu", "--json", str(tmp_path / "decoder.json"), *options.split()])
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    reference, fast = (np.median(result["all_seconds"][n]) for n in decoder.DECODERS)
    assert result["speedup"] == pytest.approx(reference / fast)
    assert result["fast_frames_per_second"] == pytest.approx(3 / fast)
    assert result["peak_memory_ratio"] == 0.25
    assert "0.25 " in capsys.readouterr().out


def test_decoder_benchmark_measures_no_time_when_only_memory_is_requested(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(decoder, "measure_speed", None)
    monkeypatch.setattr(decoder, "in_a_process", lambda *_: None)
    file = tmp_path / "decoder.json"
    decoder.main(["--device", "cpu", "--json", str(file), "--only", "memory", "--hparams", TINY])
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["peak_memory_ratio"] is None
    assert "speedup" not in result
    assert "| peak memory | not measured | not measured |" in capsys.readouterr().out


def test_decoder_benchmark_writes_the_seconds_of_a_single_optimizer_step(tmp_path, monkeypatch):
    made = []

    def timed(tasks, *_, **__):
        for task in tasks.values():
            task()
        return {name: np.array([3.0]) for name in tasks}

    monkeypatch.setattr(decoder, "time_interleaved", timed)
    monkeypatch.setattr(
        decoder, "make_steps", lambda _: lambda name, steps: made.append((name, steps))
    )
    options = f"--frames 3 --only speed --steps 4 --hparams {TINY}"
    decoder.main(["--device", "cpu", "--json", str(tmp_path / "decoder.json"), *options.split()])
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    assert sorted(made) == [("fast", 4), ("reference", 1)]
    assert result["all_seconds"] == {"fast": [0.75], "reference": [3.0]}


def test_decoder_benchmark_reports_no_memory_value_when_the_measuring_process_fails():
    assert decoder.in_a_process(max, 3, 5) == 5
    assert decoder.in_a_process(int, "not a number") is None
