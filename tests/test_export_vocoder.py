"""Test the export of published HiFi-GAN weights to a file for --vocoder.

The exported file must compute the same audio as the published code. The export must reject files of
any other kind and print the reason.
"""

import importlib
import json
import os
import shlex
import shutil

import numpy as np
import onnx
import pytest
import soundfile
import torch
from corpora import refusal
from helpers import DATA, ROOT

import synthesize
from export.hifi_gan import Generator, load_generator
from hparams import create_hparams
from tacotron2_voice.settings import MEL_SETTINGS
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.vocoder import load_vocoder

export_vocoder = importlib.import_module("scripts.export_vocoder")
KINDS = "blocks_1", "blocks_2"


def exported(folder, *options: object) -> None:
    arguments = "--weights", folder / "generator", "-o", folder / "vocoder.onnx", *options
    export_vocoder.main([str(argument) for argument in arguments])


@pytest.fixture(params=KINDS)
def published(request, tmp_path):
    """Return a folder with a generator and config.json, like a published HiFi-GAN."""
    return shutil.copytree(DATA / "hifi_gan" / request.param, tmp_path / request.param)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(DATA / "hifi_gan" / KINDS[0], tmp_path / "hifi_gan")


def change_weights(folder, **tensors: torch.Tensor | None) -> None:
    """Save the generator after replacing some tensors. A tensor whose replacement is None is
    removed."""
    saved = torch.load(folder / "generator", weights_only=True)["generator"] | tensors
    kept = {name: tensor for name, tensor in saved.items() if tensor is not None}
    torch.save({"generator": kept}, folder / "generator")


def generator_of(folder) -> Generator:
    return load_generator(folder / "generator", folder / "config.json")


def change_config(folder, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_audio_of_an_exported_vocoder_equals_the_audio_of_the_published_code(published):
    expected = np.load(published / "sound.npz")
    with torch.no_grad():
        sound = generator_of(published)(torch.from_numpy(expected["mel"])[None])
    np.testing.assert_allclose(sound, expected["sound"], atol=1e-5)
    exported(published)
    vocoder = load_vocoder(published / "vocoder.onnx", create_hparams())
    np.testing.assert_allclose(vocoder(expected["mel"]), expected["sound"][0, 0], atol=1e-5)


def test_fp16_halves_the_size_of_a_vocoder_and_keeps_its_audio(folder):
    expected = np.load(folder / "sound.npz")
    exported(folder)
    path = folder / "vocoder.onnx"
    size = sum(x.data_type == 1 and len(x.raw_data) for x in onnx.load(path).graph.initializer)
    exported(folder, "--fp16")
    halved = onnx.load(path).graph.initializer
    assert sum(x.data_type == 10 and len(x.raw_data) for x in halved) == size / 2
    sound = load_vocoder(path, create_hparams())(expected["mel"])
    assert 0 < np.abs(sound - expected["sound"]).max() < 0.02


def test_exported_vocoder_contains_the_mel_settings_of_its_weights(folder):
    """When --vocoder is used, the mel settings of the vocoder are compared with the settings of the
    voice."""
    change_config(folder, fmax=None, fmin=20.5)
    exported(folder)
    path = folder / "vocoder.onnx"
    metadata = {x.key: float(x.value) for x in onnx.load(path).metadata_props}
    assert metadata.keys() == set(MEL_SETTINGS)
    assert (metadata["mel_fmin"], metadata["mel_fmax"]) == (20.5, 11025)
    assert load_vocoder(path, create_hparams("mel_fmin=20.5,mel_fmax=11025"))
    message = refusal(load_vocoder, path, create_hparams("win_length=800"))
    assert message.startswith(f"{path}: ")
    assert message.endswith(
        "win_length=1024 (expected 800), mel_fmin=20.5 (expected 0.0), "
        "mel_fmax=11025.0 (expected 8000.0)"
    )
    graph = onnx.load(path)
    graph.metadata_props[0].value = "unknown"
    onnx.save(graph, path)
    message = refusal(load_vocoder, path, create_hparams("mel_fmin=20.5,mel_fmax=11025"))
    assert f"{graph.metadata_props[0].key}=unknown" in message


def test_vocoder_is_rejected_when_its_mel_settings_differ_from_the_settings_of_the_voice(
    voices, folder
):
    exported(folder, "--voice", voices.fp32[0])
    (folder / "vocoder.onnx").unlink()
    change_config(folder, fmax=7600)
    for option, path in (("--voice", voices.fp32[0]), ("--checkpoint", voices.checkpoint[0])):
        with pytest.raises(UserError, match=r"json: .*mel_fmax=7600\.0 \(expected 8000"):
            exported(folder, option, path)
    assert not (folder / "vocoder.onnx").exists()


def test_export_command_succeeds_when_copied_from_the_vocoder_error(voices, tmp_path, monkeypatch):
    """The command must also work if the path contains a space."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "hifi_gan" / KINDS[0], "LJ V1")
    speak = ["--voice", str(voices.fp32[0]), "--text", "A dog.", "-o", "a.wav", "--vocoder"]
    message = refusal(synthesize.main, [*speak, "LJ V1/generator"])
    assert message.startswith("LJ V1/generator: not an ONNX file")
    assert "scripts/export_vocoder.py" in message
    export_vocoder.main(["--weights", "LJ V1/generator", "-o", "vocoder.onnx"])
    synthesize.main([*speak, "vocoder.onnx"])
    assert soundfile.info("a.wav").frames > 0


@pytest.mark.parametrize(
    "kind",
    [
        "voice",
        "checkpoint",
        pytest.param("voice with several speakers", marks=pytest.mark.thorough),
    ],
)
def test_export_prints_a_command_that_synthesizes_with_the_vocoder(
    kind, voices, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "hifi_gan" / KINDS[0], "LJ V1")
    models = {"voice": voices.fp32[0], "checkpoint": voices.checkpoint[0]}
    model = models.get(kind, ROOT / "voices" / "english")
    option = f"--{kind.split(' ')[0]}"
    weights = ["--weights", "LJ V1/generator", "-o", "my vocoder.onnx"]
    export_vocoder.main([*weights, option, str(model)])
    command = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("synthesize.py ")[2])
    assert option in command
    synthesize.main(["A dog." if word == "..." else word for word in command])
    assert soundfile.info("out.wav").frames > 0


class Thief:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("stolen",)


def test_code_in_a_weights_file_does_not_run_when_the_file_is_exported(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    torch.save({"generator": {"conv_pre.bias": Thief()}}, folder / "generator")
    assert "other than tensors and plain values" in refusal(exported, folder)
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"mpd": {}, "msd": {}}, "contains mpd, msd .*`generator`"),
        ({"state_dict": {}, "iteration": 1}, "contains state_dict, iteration .*`generator`"),
        ([1], "contains no dictionary .*`generator`"),
        ({"generator": {"ups": 3}}, "generator: ups: 3 .expected a tensor"),
    ],
)
def test_weights_file_is_rejected_when_it_contains_no_generator(saved, message, folder):
    torch.save(saved, folder / "weights")
    arguments = ["--weights", str(folder / "weights"), "-o", str(folder / "v.onnx")]
    with pytest.raises(UserError, match=f"^{folder / 'weights'}: {message}"):
        export_vocoder.main(arguments)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ups.1.bias": None}, "ups.1.bias"),
        ({"ups.1.scale": torch.ones(2)}, "ups.1.scale"),
        ({"ups.0.bias": torch.ones(9)}, "ups.0.bias: "),
        ({"ups.0.bias": torch.ones(4) / 0}, "ups.0.bias: contains NaN or infinity"),
        ({"ups.0.weight_v": None}, "ups.0.weight_v is missing"),
    ],
)
def test_weights_are_rejected_when_they_do_not_fit_the_config(changes, named, folder):
    change_weights(folder, **changes)
    message = refusal(exported, folder)
    assert message.startswith(f"{folder / 'generator'}")
    assert named in message


@pytest.mark.parametrize(
    "settings",
    [{"upsample_initial_channel": 16}, {"num_mels": 100}, {"resblock": "2"}],
)
def test_config_is_rejected_when_it_does_not_match_the_weights(settings, folder):
    change_config(folder, **settings)
    assert f"generator does not fit {folder}/config.json" in refusal(exported, folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hop_size": 275}, "the product of upsample_rates=[16, 16] must equal hop_size=275"),
        ({"resblock_dilation_sizes": [[1]]}, "the lists for upsampling"),
        ({"resblock": "3"}, "resblock='3': Input should be '1' or '2'"),
        ({"num_mels": "80"}, "num_mels='80': Input should be a valid integer"),
    ],
)
def test_config_is_rejected_when_it_describes_no_generator(settings, message, folder):
    change_config(folder, **settings)
    assert refusal(exported, folder).startswith(f"{folder}/config.json: {message}")


def test_vocoder_export_is_rejected_when_the_config_is_missing(folder, tmp_path):
    (folder / "config.json").rename(tmp_path / "v1.json")
    message = refusal(exported, folder)
    assert message.startswith(f"{folder}/config.json: no such file")
    assert "--config" in message
    exported(folder, "--config", tmp_path / "v1.json")
    (tmp_path / "v1.json").write_text('{"resblock": "1"}')
    assert ": upsample_rates=" in refusal(exported, folder, "--config", tmp_path / "v1.json")


def test_onnx_graph_of_a_vocoder_is_not_written_when_its_output_differs_from_pytorch(
    folder, monkeypatch
):
    other, make = generator_of(folder), export_vocoder.make_graph
    other.conv_post.bias.data += 0.01
    monkeypatch.setattr(export_vocoder, "make_graph", lambda _: make(other))
    assert "generator: the audio from the graph differs from PyTorch's audio by" in refusal(
        exported, folder
    )
    assert not (folder / "vocoder.onnx").exists()
