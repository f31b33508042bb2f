"""benchmarks/loss_curves.py: what it trains, compares, draws and writes, on a tiny model."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from analysis.clips import learnable_batches
from benchmarks import loss_curves
from hparams import create_hparams

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
TINY = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=6,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "n_mel_channels=4,batch_size=2"
)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_program_prints_draws_and_writes_what_it_measured(tmp_path, capsys):
    options = ["--device", "cpu", "--hparams", TINY, "--steps", "4"]
    options += ["--picture", str(tmp_path / "curves.svg"), "--json", str(tmp_path / "curves.json")]
    loss_curves.main(options)
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "curves.json").read_text())
    losses = {name: np.array(values) for name, values in result["losses"].items()}
    assert {name: len(values) for name, values in losses.items()} == dict.fromkeys(losses, 4)
    difference = (abs(losses["fast"] - losses["reference"]) / losses["reference"]).max()
    assert result["largest_relative_difference"] == pytest.approx(difference)
    assert f"at most {difference:.1e} of itself" in printed
    assert difference < 1e-5
    assert result["repeats_bitwise"] == {"reference": True, "fast": True}
    assert printed.count("a second run was the same bit for bit") == 2
    assert result["hparams"]["decoder_rnn_dim"] == 8
    picture = (tmp_path / "curves.svg").read_text()
    for text in ("reference decoder", "fast decoder", "training loss", "relative distance"):
        assert text in picture
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.json", "curves.svg"]


def test_either_decoder_learns_the_made_up_corpus():
    hparams = create_hparams(TINY + ",learning_rate=0.02")
    trained = loss_curves.train_all("fp32", CPU, hparams, 18)
    for curve in trained["losses"].values():
        assert np.mean(curve[-4:]) < 0.7 * np.mean(curve[:4])
    # They are runs of their own, and not one drawn several times.
    distances = [of_run[2] for of_run in trained["weight_distances"].values()]
    assert all(0 < distance < 1e-2 for distance in distances)
    assert len(set(distances)) == len(distances)


def test_a_decoder_that_computes_something_else_is_seen(monkeypatch):
    """Its gate a hundredth off, and another time every run of it."""
    import fast_decoder

    right, calls = fast_decoder.teacher_forced, []

    def wrong(decoder, memory, *arguments):
        mel, gate, alignments = right(decoder, memory, *arguments)
        calls.append(None)
        return mel, gate * (1.01 + 0.001 * len(calls)), alignments

    monkeypatch.setattr(fast_decoder, "teacher_forced", wrong)
    args = SimpleNamespace(device=CPU, precision="fp32", steps=2)
    result = loss_curves.compare(args, create_hparams(TINY))
    yardsticks = result["largest_relative_difference_of_yardsticks"]
    assert result["largest_relative_difference"] > 10 * max(yardsticks)
    assert result["repeats_bitwise"] == {"reference": True, "fast": False}
    assert "fast: a second run was NOT the same" in loss_curves.summary(result)


def test_the_corpus_is_the_same_each_time_and_each_symbol_has_its_sound():
    hparams = create_hparams(TINY + ",seed=5")
    batches, again = (learnable_batches(6, hparams) for _ in range(2))
    spectra = {}
    for batch, other in zip(batches, again, strict=True):
        assert torch.equal(batch.mel, other.mel)
        assert torch.equal(batch.text, other.text)
        for text, length, mel in zip(batch.text, batch.text_lengths, batch.mel, strict=True):
            spectra.setdefault(int(text[0]), []).append(mel[:, 0].numpy())
            assert text[:length].min() > 0
    same = [np.std(frames, axis=0).max() for frames in spectra.values() if len(frames) > 2]
    assert same
    assert max(same) < 0.5  # the noise has 0.1
    means = np.array([np.mean(frames, axis=0) for frames in spectra.values()])
    assert means.std(axis=0).min() > 0.5  # between symbols it is 1.5


@pytest.mark.parametrize(("precision", "epsilon"), [("fp32", 2.0**-23), ("bf16", 2.0**-7)])
def test_weights_are_moved_by_half_a_last_place_at_most(precision, epsilon):
    model = torch.nn.Linear(50, 60)
    before = model.weight.detach().double().clone()
    assert loss_curves.last_place(precision) == epsilon
    loss_curves.round_otherwise(model, epsilon, seed=0)
    moved = ((model.weight.double() - before) / before).abs()
    assert 0 < moved.max() <= epsilon  # its half, and the rounding to float32
    assert moved.mean() > epsilon / 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps: '0': expected a whole number from 1"),
        (["--picture", "curves.pdf"], "expected a name that ends in .svg or .png"),
        (["--hparams", "batchsize=3"], "did you mean batch_size?"),
        (["--device", "cuda"], "torch finds no GPU here"),
    ],
)
def test_wrong_options_are_refused(options, message, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        loss_curves.main(options)
    assert re.search(re.escape(message), capsys.readouterr().err)
