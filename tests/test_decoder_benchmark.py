"""benchmarks/decoder.py: what it counts, and that its JSON holds what is read from it."""

import dataclasses
import functools
import importlib
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from data_utils import Batch
from hparams import HParams
from training.trainer import MicroBatch, Trainer

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
decoder = importlib.import_module("benchmarks.decoder")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_operators_that_compute_are_counted_and_views_are_not():
    x = torch.ones(3, 4, requires_grad=True)

    def run():
        y = x.detach().view(2, 6).T.T[0].unsqueeze(0).expand(2, 6)  # views
        torch.empty(5)  # memory
        y = y + 1
        y.mul_(2)
        return (x.reshape(-1) * 3).sum() + y.sum()

    count, loss = decoder.operators_run(run)
    assert count == 6  # add, mul_, mul, sum, sum, add
    count, _ = decoder.operators_run(loss.backward)
    assert count == 2  # ones_like, mul; a gradient's first value is not added


def test_bytes_of_a_step_are_those_of_its_shapes():
    found = decoder.bytes_per_step(HParams(), batch_size=16, symbols=120, operand=4)
    # Per clip: gates 32,768, hidden states and cells 16,384, context and two alignments 3,008,
    # masks 2,048, and the tanh of 120 x 128.
    assert found["fast"]["forward"]["history"] == 16 * 54_208
    assert found["reference"]["forward"]["history"] == 16 * (54_208 + 61_440)
    assert found["fast"]["forward"]["memory"] == 16 * 120 * (512 + 128) * 4
    # the weights that recur: 4096 x 1536 and 4096 x 1024, query 1024 x 128, location 62 x 128
    recurring = 4 * (4096 * 1536 + 4096 * 1024 + 1024 * 128 + 62 * 128)
    assert found["fast"]["forward"]["weights"] == recurring
    # The two LSTMs have 17.8 million weights, 71 MB, the other layers of a step 0.27 million.
    weights = found["reference"]["forward"]["weights"]
    assert weights - 4 * 4096 * (768 + 1024 + 1536 + 1024) == 4 * (
        1024 * 128 + 32 * 128 + 2 * 32 * 31 + 1536 * 81
    )
    assert found["reference"]["backward"]["weight gradients"] == 4 * weights
    assert "weight gradients" not in found["fast"]["backward"]
    half = decoder.bytes_per_step(HParams(), batch_size=16, symbols=120, operand=2)
    assert 2 * half["reference"]["forward"]["weights"] == weights


SMALL = HParams(
    symbols_embedding_dim=16,
    encoder_embedding_dim=20,
    attention_rnn_dim=24,
    decoder_rnn_dim=28,
    prenet_dim=12,
    attention_dim=10,
    attention_location_n_filters=6,
    attention_location_kernel_size=5,
    postnet_embedding_dim=14,
    n_mel_channels=8,
    decoder="reference",
)


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_frames_per_step": 3, "encoder_n_convolutions": 2, "postnet_n_convolutions": 3}],
    ids=str,
)
def test_flop_of_a_step_are_those_that_torch_counts_in_the_reference_decoder(changes):
    hparams, clips, frames, symbols = dataclasses.replace(SMALL, **changes), 3, 12, 7
    batch = Batch(
        text=torch.randint(1, hparams.n_symbols, (clips, symbols)),
        text_lengths=torch.full((clips,), symbols),
        mel=torch.randn(clips, 8, frames),
        gate=torch.ones(clips, frames // hparams.n_frames_per_step),
        mel_lengths=torch.full((clips,), frames),
    )
    with FlopCounterMode(display=False) as counter:
        Trainer(hparams, torch.device("cpu")).step([MicroBatch(batch)])
    # torch does not count the encoder's LSTM, and does not make gradients by the first states.
    encoder_lstm = 3 * 2 * clips * symbols * 2 * 4 * 10 * (20 + 10)
    first_states = 2 * clips * (4 * 24 * 24 + 4 * 28 * 28 + symbols * 2 * 5 * 6)
    counted = counter.get_total_flops() + encoder_lstm + first_states
    assert decoder.step_flop(hparams, clips, frames, symbols) == counted


def test_the_json_holds_ratios_medians_limit_launches_and_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(decoder.PRODUCT, "cpu", 256)
    monkeypatch.setattr(decoder, "HParams", functools.partial(dataclasses.replace, SMALL))
    monkeypatch.setattr(decoder, "in_a_process", lambda measure, *arguments: measure(*arguments))
    options = "--batch-size 1 --frames 3 --symbols 4 --repeats 2 --warm-ups 0 --no-memory"
    decoder.main(["--device", "cpu", "--json", str(tmp_path / "decoder.json"), *options.split()])
    printed = " ".join(capsys.readouterr().out.split())
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    ratio = result["reference_seconds"] / result["fast_seconds"]
    assert result["speedup"] == pytest.approx(ratio)
    assert result["fast_frames_per_second"] == pytest.approx(3 / result["fast_seconds"])
    assert result["peak_memory_ratio"] is None
    assert result["flop_per_step"] == decoder.step_flop(SMALL, 1, 3, 4)
    limit = result["flop_per_step"] / result["product_flop_per_second"]
    assert result["limit_seconds"] == pytest.approx(limit)
    for name in ("reference", "fast"):
        share = limit / result[f"{name}_seconds"]
        assert result[f"{name}_share_of_limit"] == pytest.approx(share)
        assert 0 < share < 1
    assert f"limit at {result['product_flop_per_second'] / 1e9:,.0f} GFLOP/s" in printed
    launches = result["launches_per_step"]
    # The reference decoder's step as operators: two LSTM cells, dropout, attention, projections,
    # and backwards their gradients with an addition for each weight; a dozen either way.
    assert 36 <= launches["reference"]["forward"] <= 60
    assert 75 <= launches["reference"]["backward"] <= 100
    for way in ("forward", "backward"):
        assert launches["fast"][way] < launches["reference"][way]
        assert result["bytes_per_step"]["fast"][way] < result["bytes_per_step"]["reference"][way]
        parts = result["bytes_per_step_parts"]["fast"][way]
        assert result["bytes_per_step"]["fast"][way] == sum(parts.values())
    assert "| operators a decoder step, forward + backward | " in printed
    assert {"device", "versions", "all_seconds", "date", "fast_decoder"} <= result.keys()


def test_what_fails_in_a_process_of_its_own_is_not_measured():
    assert decoder.in_a_process(max, 3, 5) == 5
    assert decoder.in_a_process(int, "not a number") is None
