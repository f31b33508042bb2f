"""benchmarks/loss_curves.py: what it trains, compares, draws and writes, on a tiny model."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hparams import create_hparams

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "benchmarks" / "loss_curves.py"
TINY = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=6,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "n_mel_channels=4,batch_size=2"
)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def loss_curves():
    """The program as a module; it puts the project in place of its own folder in sys.path."""
    path = sys.path.copy()
    sys.path.insert(0, str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("loss_curves", PROGRAM)
    sys.modules["loss_curves"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    yield module
    del sys.modules["loss_curves"]


def test_the_program_says_draws_and_writes_what_it_measured(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--hparams", TINY, "--steps", "4"]
    command += ["--picture", "curves.svg", "--json", "curves.json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "curves.json").read_text())
    losses = {name: np.array(values) for name, values in result["losses"].items()}
    assert {name: len(values) for name, values in losses.items()} == dict.fromkeys(losses, 4)
    difference = (abs(losses["fast"] - losses["reference"]) / losses["reference"]).max()
    assert result["largest_relative_difference"] == pytest.approx(difference)
    assert f"at most {difference:.1e} of itself" in ran.stdout
    assert difference < 1e-5
    assert result["repeats_bitwise"] == {"reference": True, "fast": True}
    assert ran.stdout.count("a second run was the same bit for bit") == 2
    assert result["hparams"]["decoder_rnn_dim"] == 8
    picture = (tmp_path / "curves.svg").read_text()
    for text in ("reference decoder", "fast decoder", "training loss", "relative distance"):
        assert text in picture
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.json", "curves.svg"]


def test_either_decoder_learns_the_made_up_corpus(loss_curves):
    hparams = create_hparams(TINY + ",learning_rate=0.01")
    losses = loss_curves.train_all("fp32", CPU, hparams, 30)["losses"]
    for curve in losses.values():
        assert np.mean(curve[-6:]) < 0.7 * np.mean(curve[:6])
    # They are three runs, and not one drawn thrice.
    weights = loss_curves.train_all("fp32", CPU, hparams, 3)["weight_distances"]
    assert all(0 < distance[-1] < 1e-2 for distance in weights.values())
    assert len({distance[-1] for distance in weights.values()}) == len(weights)


def test_a_decoder_that_computes_something_else_is_seen(loss_curves, monkeypatch):
    """Its gate a hundredth off, and another time every run of it."""
    import benchmarks.trainer as trainer

    right, calls = trainer.DECODERS["fast"], []

    def wrong(decoder, memory, *arguments):
        mel, gate, alignments = right(decoder, memory, *arguments)
        calls.append(None)
        return mel, gate * (1.01 + 0.001 * len(calls)), alignments

    monkeypatch.setitem(trainer.DECODERS, "fast", wrong)
    args = SimpleNamespace(device="cpu", precision="fp32", steps=2)
    result = loss_curves.report(args, create_hparams(TINY))
    yardsticks = result["largest_relative_difference_of_yardsticks"]
    assert result["largest_relative_difference"] > 10 * max(yardsticks)
    assert result["repeats_bitwise"] == {"reference": True, "fast": False}
    assert "fast: a second run was NOT the same" in loss_curves.summary(result)


def test_the_corpus_is_the_same_each_time_and_each_symbol_has_its_sound(loss_curves):
    hparams = create_hparams(TINY + ",seed=5")
    batches, again = (loss_curves.made_up_batches(6, hparams) for _ in range(2))
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_moved_by_half_a_last_place_at_most(loss_curves, precision):
    model = torch.nn.Linear(50, 60)
    before = model.weight.detach().double().clone()
    epsilon = {"fp32": torch.finfo(torch.float32).eps, "bf16": torch.finfo(torch.bfloat16).eps}
    assert loss_curves.EPSILONS[precision] == epsilon[precision]
    loss_curves.round_otherwise(model, loss_curves.EPSILONS[precision], seed=0)
    moved = ((model.weight.double() - before) / before).abs()
    assert 0 < moved.max() <= epsilon[precision]  # its half, and the rounding to float32
    assert moved.mean() > epsilon[precision] / 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--picture", "curves.pdf"], "expected a name that ends in .svg or .png"),
        (["--hparams", "batchsize=3"], "did you mean batch_size?"),
        (["--device", "cuda"], "torch finds no GPU here"),
    ],
)
def test_wrong_options_are_refused(loss_curves, options, message, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        loss_curves.main(options)
    assert re.search(re.escape(message), capsys.readouterr().err)
