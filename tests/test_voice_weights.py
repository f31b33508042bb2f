"""Test how an exported voice is loaded as a model and fine-tuned (export/voice_weights.py)."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from helpers import ROOT

import train
from export.checkpoint_synthesizer import CheckpointSynthesizer
from export.voice_weights import is_voice, state_of_voice
from hparams import hparams_from_dict
from model import Tacotron2
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.voice import GRAPHS, Voice
from training.start import read_weights
from training.warm_start import different_audio

TEXT = "A dog came."
ENGLISH = ROOT / "voices" / "english"


def synthesizer_of(folder) -> CheckpointSynthesizer:
    state = state_of_voice(folder)
    hparams = hparams_from_dict(state["hparams"])
    model = Tacotron2(hparams)
    model.load_state_dict(state["state_dict"])
    return CheckpointSynthesizer(model.eval(), hparams)


def forced_steps(synthesizer, count: int):
    """Return frames, stop probabilities and alignments of the first decoder steps for a text."""
    ids = [int(x) for x in np.arange(38, 60)]
    speaker = 0 if synthesizer.settings.speakers else None
    steps = next(iter(synthesizer.decode(ids, 3, count, speaker)))
    return steps.frames[:count], steps.gate[:count], steps.alignments[:count]


@pytest.mark.parametrize("kind", ["fp32", "int8", "packed"])
def test_model_loaded_from_a_voice_has_the_weights_of_the_checkpoint(voices, kind):
    """The export merges each batch norm into a convolution, so this test skips the weights
    of convolutions, and the following tests compare outputs."""
    folder = getattr(voices, kind)[0]
    trained = torch.load(voices.checkpoint[0], weights_only=True)["state_dict"]
    state = state_of_voice(folder)["state_dict"]
    assert state.keys() == trained.keys()
    for name, weights in state.items():
        assert weights.shape == trained[name].shape, name
        if ".convolutions." not in name:
            largest = trained[name].abs().max()
            # Each weight of a compressed voice is rounded twice: first to a multiple of `largest` /
            # 64, and then to a multiple of `largest` / 46.
            tolerance = 0 if kind == "fp32" else largest * (1 / 128 + 1 / 92)
            difference = (weights - trained[name]).abs().max()
            assert difference <= tolerance, name


@pytest.mark.parametrize("kind", ["fp32", "packed"])
def test_model_loaded_from_a_voice_predicts_the_mels_of_the_voice(voices, kind):
    """The mels from a compressed voice may differ by up to 2% of the largest value, because this
    voice rounds the inputs of its LSTMs to 8 bits. The model does not round these inputs."""
    folder = getattr(voices, kind)[0]
    found = forced_steps(synthesizer_of(folder), 5)
    expected = forced_steps(Voice(folder), 5)
    for ours, theirs in zip(found, expected, strict=True):
        largest = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=largest * (1e-4 if kind == "fp32" else 0.02))


def test_model_and_voice_have_the_same_postnet_output(voices):
    mel = np.random.default_rng(0).normal(-5, 1, (80, 30)).astype(np.float32)
    found = synthesizer_of(voices.fp32[0]).refine(mel)
    np.testing.assert_allclose(found, Voice(voices.fp32[0]).refine(mel), atol=1e-4)


@pytest.mark.thorough
def test_included_voice_can_be_loaded_as_a_model():
    synthesizer = synthesizer_of(ENGLISH)
    assert synthesizer.settings.speakers == ("hibari", "kathleen", "linda")
    frames, _, alignments = forced_steps(synthesizer, 20)
    expected, _, expected_alignments = forced_steps(Voice(ENGLISH), 20)
    assert np.abs(frames - expected).mean() < 0.05 * np.abs(expected).mean()
    assert np.abs(alignments - expected_alignments).mean() < 0.01


def test_training_rejects_a_voice_when_warm_start_is_not_given(tmp_path):
    with pytest.raises(SystemExit) as raised:
        train.main(["-o", str(tmp_path / "run"), "-c", str(ENGLISH)])
    message = str(raised.value.code)
    assert str(ENGLISH) in message
    assert "--warm_start" in message


def test_folder_counts_as_a_voice_when_it_contains_voice_json(voices, tmp_path):
    assert is_voice(voices.fp32[0])
    assert not is_voice(tmp_path)
    shutil.copytree(voices.fp32[0], tmp_path / "voice")
    (tmp_path / "voice" / "voice.json").unlink()
    assert not is_voice(tmp_path / "voice")


def test_error_lists_the_audio_settings_that_differ_from_the_settings_of_the_voice(voices):
    source = read_weights(voices.int8[0])
    hparams = hparams_from_dict(source.state["hparams"])
    assert different_audio(source, hparams) == []
    other = replace(hparams, sampling_rate=16000)
    [line] = different_audio(source, other)
    assert {"22050", "16000"} <= {word.strip(",)").rpartition("=")[2] for word in line.split()}


@pytest.mark.parametrize("damage", [lambda x: x[:-100], lambda x: x[:500] + b"?" + x[501:]])
def test_voice_is_not_loaded_as_a_model_when_it_is_damaged(voices, tmp_path, damage):
    for kind in ("fp32", "packed"):
        folder = tmp_path / kind
        shutil.copytree(getattr(voices, kind)[0], folder)
        path = next(folder.glob("postnet.onnx*"))
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(UserError):
            state_of_voice(folder)


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_exported_weights_are_named_as_in_the_model(voices, kind):
    folder = getattr(voices, kind)[0]
    graphs = [onnx.load(folder / f"{name}.onnx").graph for name in GRAPHS]
    names = {tensor.name for graph in graphs for tensor in graph.initializer}
    assert not [name for name in names if name.startswith("onnx::")]
    prenet = "model.decoder.prenet.layers.0.linear_layer.weight_Transposed"
    assert {name.removesuffix("_int8") for name in names} >= {prenet, "encoder.lstm.W"}
