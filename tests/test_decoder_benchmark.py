"""benchmarks/decoder.py: the FLOP of a step, and what its JSON holds."""

import importlib
import json

import numpy as np
import pytest

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
decoder = importlib.import_module("benchmarks.decoder")
pytestmark = pytest.mark.usefixtures("one_thread")

TINY = (
    "symbols_embedding_dim=16,encoder_embedding_dim=20,attention_rnn_dim=24,decoder_rnn_dim=28,"
    "prenet_dim=12,attention_dim=10,attention_location_n_filters=6,attention_location_kernel_size=5,"
    "postnet_embedding_dim=14,n_mel_channels=8"
)


def test_json_holds_ratios_limit_and_memory(tmp_path, monkeypatch, capsys):
    """The FLOP of a step are those of the shapes, by hand."""
    monkeypatch.setitem(decoder.PRODUCT, "cpu", 256)
    peaks = {"reference": 400, "fast": 100}
    monkeypatch.setattr(decoder, "in_a_process", lambda measure, args, name: peaks[name])
    options = f"--batch-size 1 --frames 3 --symbols 4 --repeats 2 --warm-ups 0 --hparams {TINY}"
    decoder.main(["--device", "cpu", "--json", str(tmp_path / "decoder.json"), *options.split()])
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    reference, fast = (np.median(result["all_seconds"][n]) for n in decoder.DECODERS)
    assert result["speedup"] == pytest.approx(reference / fast)
    assert result["fast_frames_per_second"] == pytest.approx(3 / fast)
    assert result["peak_memory_ratio"] == 0.25
    encoder = 4 * (5 * (16 + 20 + 20) * 20 + 2 * 4 * 10 * 30 + 20 * 10)  # and the keys
    step = 12 * 12 + 4 * 24 * (12 + 20 + 24) + 4 * 28 * (24 + 20 + 28) + 24 * 10 + 48 * (8 + 1)
    attention = 4 * (2 * 5 * 6 + 6 * 10 + 10 + 20)
    postnet = 5 * (2 * 8 * 14 + 3 * 14 * 14)
    products = encoder + 3 * (step + attention + postnet)
    first_states = 4 * 24 * 24 + 4 * 28 * 28 + 4 * 2 * 5 * 6  # zeros, which need no gradient
    assert result["flop_per_step"] == 2 * (3 * products + 2 * 3 * 8 * 12 - first_states)
    limit = result["flop_per_step"] / result["product_flop_per_second"]
    assert result["limit_seconds"] == pytest.approx(limit)
    assert 0 < result["fast_share_of_limit"] < 1
    assert "0.25 x the bytes" in capsys.readouterr().out


def test_what_fails_in_a_process_is_not_measured():
    assert decoder.in_a_process(max, 3, 5) == 5
    assert decoder.in_a_process(int, "not a number") is None
