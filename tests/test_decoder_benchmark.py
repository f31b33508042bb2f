"""benchmarks/decoder.py: the FLOP of a step, and what its JSON holds."""

import dataclasses
import importlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from data_utils import synthetic_batch
from hparams import HParams
from training.trainer import MicroBatch, Trainer

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
decoder = importlib.import_module("benchmarks.decoder")
pytestmark = pytest.mark.usefixtures("one_thread")

SIZES: dict[str, Any] = {
    "symbols_embedding_dim": 16,
    "encoder_embedding_dim": 20,
    "attention_rnn_dim": 24,
    "decoder_rnn_dim": 28,
    "prenet_dim": 12,
    "attention_dim": 10,
    "attention_location_n_filters": 6,
    "attention_location_kernel_size": 5,
    "postnet_embedding_dim": 14,
    "n_mel_channels": 8,
}
SMALL = HParams(**SIZES, decoder="reference")


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_frames_per_step": 3, "encoder_n_convolutions": 2, "postnet_n_convolutions": 3}],
    ids=str,
)
def test_flop_of_a_step_match_torchs_count(changes):
    """Of the reference decoder."""
    hparams, clips, frames, symbols = dataclasses.replace(SMALL, **changes), 3, 12, 7
    batch = synthetic_batch([frames] * clips, [symbols] * clips, hparams)
    with FlopCounterMode(display=False) as counter:
        Trainer(hparams, torch.device("cpu")).step([MicroBatch(batch)])
    # torch does not count the encoder's LSTM, and does not make gradients by the first states.
    encoder_lstm = 3 * 2 * clips * symbols * 2 * 4 * 10 * (20 + 10)
    first_states = 2 * clips * (4 * 24 * 24 + 4 * 28 * 28 + symbols * 2 * 5 * 6)
    counted = counter.get_total_flops() + encoder_lstm + first_states
    assert decoder.step_flop(hparams, clips, frames, symbols) == counted


def test_json_holds_ratios_limit_and_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(decoder.PRODUCT, "cpu", 256)
    peaks = {"reference": 400, "fast": 100}
    monkeypatch.setattr(decoder, "in_a_process", lambda measure, args, name: peaks[name])
    options = "--batch-size 1 --frames 3 --symbols 4 --repeats 2 --warm-ups 0 --hparams "
    options += ",".join(f"{name}={value}" for name, value in SIZES.items())
    decoder.main(["--device", "cpu", "--json", str(tmp_path / "decoder.json"), *options.split()])
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    reference, fast = (np.median(result["all_seconds"][n]) for n in decoder.DECODERS)
    assert result["speedup"] == pytest.approx(reference / fast)
    assert result["fast_frames_per_second"] == pytest.approx(3 / fast)
    assert result["peak_memory_ratio"] == 0.25
    assert result["flop_per_step"] == decoder.step_flop(SMALL, 1, 3, 4)
    limit = result["flop_per_step"] / result["product_flop_per_second"]
    assert result["limit_seconds"] == pytest.approx(limit)
    assert 0 < result["fast_share_of_limit"] < 1
    assert "0.25 x the bytes" in capsys.readouterr().out


def test_what_fails_in_a_process_is_not_measured():
    assert decoder.in_a_process(max, 3, 5) == 5
    assert decoder.in_a_process(int, "not a number") is None
