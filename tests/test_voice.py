"""Test that an exported voice sounds like its checkpoint, and that damaged folders are rejected."""

import hashlib
import importlib
import json
import lzma
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import soundfile
import torch
from corpora import refusal
from helpers import ROOT, SMALL_MODEL, save_small_model
from onnx import TensorProto, helper, numpy_helper

import synthesize
from export import voice_export as export
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams, with_table
from model import DropoutMasks
from tacotron2_voice import onnx_graph, vocoder
from tacotron2_voice import synthesizer as speaker
from tacotron2_voice.griffin_lim import SILENCE
from tacotron2_voice.settings import WINDOW_BACK
from tacotron2_voice.utils import files
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import text_to_ids
from tacotron2_voice.voice import GRAPHS, Voice

export_voice = importlib.import_module("scripts.export_voice")
TEXT = "A dog came. It sat down, and it ate."  # this text has two chunks of at most 24 symbols


def speak(*arguments: object) -> None:
    synthesize.main([str(argument) for argument in arguments])


def test_voice_chunks_have_the_same_mels_as_the_torch_model(voices, monkeypatch):
    monkeypatch.setattr(speaker, "FADE", 0)  # turn off the fade-out of speech that does not end
    exact = Voice(voices.fp32[0], "gate_threshold=2")
    sequence = text_to_ids(TEXT, exact.settings)
    found, parts = exact.synthesize(sequence, seed=3, retries=0), []
    model = load_checkpoint_synthesizer(voices.checkpoint[0], "gate_threshold=2").model
    kept = torch.from_numpy(np.random.default_rng(3).random((40, 2, 1, 8)) >= 0.5)
    masks = DropoutMasks((kept[:, 0], kept[:, 1]), None, None)
    for words in (sequence[:11], sequence[12:]):
        outputs = model.infer(torch.tensor([words]), torch.tensor([len(words)]), masks)
        parts += [outputs.mel_postnet[0].numpy(), np.full((80, 26), SILENCE)]  # a 0.3 s pause
    np.testing.assert_allclose(found.mel, np.concatenate(parts[:-1], axis=1), atol=1e-4)
    assert found.warnings[1].startswith("chunk 1 of 2 ('a dog came.'): no stop within 0.9 s")
    assert [alignment.shape for alignment in found.alignments] == [
        (40, 11),
        (40, len(sequence) - 12),
    ]
    np.testing.assert_allclose(np.concatenate(found.alignments, axis=1).sum(1), 2, atol=1e-4)


def test_voice_with_an_attention_window_has_the_same_outputs_as_the_torch_model(voices):
    settings = "p_prenet_dropout=0,attention_window=2"
    exact = Voice(voices.fp32[0], settings)
    words = text_to_ids("It sat down, and it ate.", exact.settings)
    speaker = load_checkpoint_synthesizer(voices.checkpoint[0], settings, torch.device("cpu"))
    made = [[*x.decode(words, 0, 30)] for x in (exact, speaker)]
    for one, other in zip(*made, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
    furthest = 0
    for step in made[0]:
        inside = step.alignments[0] > 0
        assert not inside[furthest + 3 :].any()
        assert not inside[: max(0, furthest - WINDOW_BACK)].any()
        furthest = max(furthest, int(step.alignments[0].argmax()))
    assert furthest > 2  # the attention window has moved
    free = Voice(voices.fp32[0], "p_prenet_dropout=0").decode(words, 0, 1)
    assert (next(free).alignments > 0).all()


def test_int8_voice_is_smaller_and_its_export_prints_a_comparison_with_fp32(voices):
    sizes = [(x[0] / "decoder.onnx").stat().st_size for x in (voices.int8, voices.fp32)]
    assert sizes[0] < 0.5 * sizes[1]
    assert "int8 compared with fp32 on 2 texts" in voices.int8[1]
    assert "int8" not in voices.fp32[1]
    about = Voice(voices.int8[0]).description
    assert (about.weights, about.checkpoint, about.longest_text) == ("int8", "best.pt", 24)


def test_8_bit_weights_are_rounded_to_the_nearest_integer(voices):
    """All large weights of matrix products, convolutions and LSTMs are rounded."""
    for name in GRAPHS:
        exact, stored = (onnx.load(x[0] / f"{name}.onnx").graph for x in (voices.fp32, voices.int8))
        exact, values = (
            {x.name: numpy_helper.to_array(x) for x in graph.initializer}
            for graph in (exact, stored)
        )
        large = {key for key, x in exact.items() if x.ndim > 1 and x.size >= export.MIN_WEIGHTS}
        restored = [x for x in stored.node if x.op_type == "DequantizeLinear"]
        for node in restored:
            weights, scales = (values[key] for key in node.input)
            axis, shape = node.attribute[0].i, [1] * weights.ndim
            shape[axis] = -1
            if node.output[0] in exact:
                before = exact[node.output[0]]
            else:  # the quantizer transposed these weights
                before = exact[node.output[0].removesuffix("_Transposed")].T
            wrong = np.abs(weights * scales.reshape(shape) - before)
            assert (wrong <= 0.501 * scales.reshape(shape)).all()
            assert np.abs(weights).max() == 127
        restored_names = {x.output[0] for x in restored}
        in_float32 = {key for key in large & values.keys() if values[key].dtype == np.float32}
        assert len(restored_names) > 2 or name == "decoder"
        assert in_float32 <= {"model.embedding.weight"}


def test_compressed_voice_is_smaller_and_speaks(voices):
    sizes = [
        sum(file.stat().st_size for file in x[0].iterdir() if ".onnx" in file.name)
        for x in (voices.packed, voices.int8)
    ]
    assert sizes[0] < 0.8 * sizes[1]
    voice = Voice(voices.packed[0])
    assert voice.description.weights == "packed"
    assert "packed compared with fp32 on 2 texts" in voices.packed[1]
    exact, words = Voice(voices.fp32[0]), text_to_ids("A dog came.", voice.settings)
    made, expected = ([*x.decode(words, 0, 10)] for x in (voice, exact))
    # Only the first frames are compared, because rounding errors accumulate in later frames.
    for one, other in zip(made[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one.frames, other.frames, atol=0.1)
    for name in GRAPHS:
        content = (voices.packed[0] / f"{name}.onnx.xz").read_bytes()
        graph = onnx.load_from_string(lzma.decompress(content)).graph
        weights = [numpy_helper.to_array(x) for x in graph.initializer]
        largest = [np.abs(x.astype(int)).max() for x in weights if x.dtype == np.int8 and x.any()]
        assert max(largest) == export.COMPRESSED_LARGEST


def test_included_voice_speaks_and_stops():
    folder = ROOT / "voices" / "english"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20e6
    voice = Voice(folder)
    assert voice.settings.speakers == ("hibari", "kathleen", "linda")
    # The description of an exported voice does not contain local paths.
    assert "/" not in voice.description.hparams["training_files"]
    for name in voice.settings.speakers:
        speech = voice.synthesize("It was a quiet evening.", speaker=name)
        assert [chunk.stop_reason.name for chunk in speech.report.chunks] == ["GATE"]
        assert speech.failures == []
        assert 1 < speech.seconds < 2.5
        audio = np.abs(speech.audio)
        assert audio[-1000:].max() < 0.1 < audio.max()


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda content: content[:-9], "cannot be decompressed"),
        (
            lambda content: lzma.compress(b"other"),
            "the checksum differs from the checksum in voice.json",
        ),
    ],
    ids=["truncated", "different content"],
)
def test_onnx_graph_of_a_compressed_voice_is_rejected_when_it_is_damaged(
    voices, tmp_path, change, answer
):
    folder = shutil.copytree(voices.packed[0], tmp_path / "voice")
    path = folder / "postnet.onnx.xz"
    path.write_bytes(change(path.read_bytes()))
    assert f"postnet.onnx.xz: {answer}" in refusal(Voice, folder)


def test_compressed_decoder_weights_equal_rounded_int8_weights(voices):
    packed = lzma.decompress((voices.packed[0] / "decoder.onnx.xz").read_bytes())
    graphs = onnx.load_from_string(packed).graph, onnx.load(voices.int8[0] / "decoder.onnx").graph
    rounded, exact = ({x.name: numpy_helper.to_array(x) for x in g.initializer} for g in graphs)
    names = [name.removesuffix("_quantized") for name in exact if name.endswith("_quantized")]
    assert len(names) == 4  # each of the two LSTMs has two weight matrices
    for name in names:
        scale = rounded[f"{name}_scale"]
        wrong = rounded[f"{name}_quantized"] * scale
        wrong = wrong - exact[f"{name}_quantized"] * exact[f"{name}_scale"]
        assert (np.abs(wrong) <= 0.501 * scale).all()


def test_audio_has_the_same_bytes_when_the_seed_is_the_same(voices):
    one, again = (Voice(voices.int8[0]) for _ in range(2))
    sound = one.synthesize(TEXT, seed=1).audio
    streamed_before = np.concatenate([*one.stream(TEXT, seed=1)])
    assert sound.dtype == np.float32
    assert np.abs(sound).max() <= 1
    streamed = np.concatenate([*again.stream(TEXT, seed=1)])
    assert sound.tobytes() == again.synthesize(TEXT, seed=1).audio.tobytes()
    assert streamed.tobytes() == streamed_before.tobytes()
    assert sound.shape == streamed.shape
    assert sound.tobytes() != one.synthesize(TEXT, seed=2).audio.tobytes()


@pytest.mark.parametrize(
    "option",
    [
        {"speed": 0},
        {"speed": -1},
        {"speed": 0.69},
        {"speed": 1.51},
        {"speed": float("nan")},
        {"pause": -0.1},
        {"pause": 61},
        {"retries": -1},
        {"max_symbols": 0},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_synthesis_rejects_options_when_they_are_out_of_range(option, voices):
    voice = Voice(voices.int8[0])
    [(name, value)] = option.items()
    for speak in (voice.synthesize, voice.stream, voice.stream_mels):
        message = refusal(speak, "A dog.", **option)
        assert message.startswith(f"{name}: {value} (expected ")


def test_stream_yields_audio_before_the_decoder_finishes(voices, monkeypatch):
    long, steps = Voice(voices.fp32[0], "gate_threshold=2,max_decoder_steps=2000"), []
    run = long.graphs["decoder"].run
    monkeypatch.setattr(long.graphs["decoder"], "run", lambda *x: steps.append(1) or run(*x))
    assert len(next(long.stream(TEXT, retries=0))) > 0
    assert len(steps) * 2 < 60  # fewer than 60 frames were decoded


def test_voice_streams_the_same_audio_without_torch(voices, tmp_path):
    script = "import sys; sys.modules |= dict.fromkeys(['torch', 'librosa', 'onnx'])\n"
    script += "import synthesize; synthesize.main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "--voice", voices.int8[0], "--text", TEXT, "--time"]
    run = subprocess.run([*command, "--stream", "wav"], cwd=ROOT, capture_output=True, check=True)
    speak("--voice", voices.int8[0], "--text", TEXT, "-o", tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes(run.stdout)
    written, streamed = (soundfile.read(tmp_path / f"{x}.wav", dtype="int16") for x in "ab")
    np.testing.assert_array_equal(streamed[0], written[0])
    assert written[1] == streamed[1] == 22050
    assert b"first audio after" in run.stderr


def test_voice_contains_the_symbols_of_its_language(tmp_path):
    table, basic = ("_", *" .aghnort", "ö", "ß"), "text_cleaners=[basic_cleaners],language=de"
    hparams = with_table(create_hparams(f"{SMALL_MODEL},symbols=corpus,{basic}"), table)
    save_small_model(tmp_path / "de.pt", hparams)
    out, arguments = tmp_path / "voice", ["--checkpoint", str(tmp_path / "de.pt"), "--fp32"]
    (tmp_path / "elsewhere").mkdir()
    out.symlink_to(tmp_path / "elsewhere")
    export_voice.main([*arguments, "-o", str(out)])
    about = json.loads((out / "voice.json").read_text())
    assert (about["symbols"], about["hparams"]["language"]) == (list(table), "de")
    assert len(Voice(out).synthesize("groß.").audio) > 0
    with pytest.raises(UserError, match="'c'"):
        Voice(out).synthesize("groch.")


def about(folder, **changes) -> None:
    """Return a function that changes voice.json."""
    path = folder / "voice.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def settings(folder, **changes) -> None:
    about(folder, hparams=json.loads((folder / "voice.json").read_text())["hparams"] | changes)


def described(folder, name: str, content: bytes) -> None:
    """Replace a file of the voice, and update its checksum."""
    (folder / name).write_bytes(content)
    sums = json.loads((folder / "voice.json").read_text())["files"]
    about(folder, files=sums | {name: hashlib.sha256(content).hexdigest()})


def postnet(folder, *nodes, weights=(), functions=()) -> None:
    """Replace the graph of the postnet."""
    ends = [helper.make_tensor_value_info(x, 1, [1, 80, "t"]) for x in ("mel", "refined")]
    nodes = nodes or (helper.make_node("Relu", ["mel"], ["refined"]),)
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], list(weights))
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(made, opset_imports=opset, ir_version=8, functions=functions)
    described(folder, "postnet.onnx", model.SerializeToString())


def reading_a_file(folder) -> None:
    outside = TensorProto(name="w", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    postnet(folder, helper.make_node("Add", ["mel", "w"], ["refined"]), weights=[outside])


def with_a_loop(folder) -> None:
    body = helper.make_graph([], "body", [], [])
    postnet(folder, helper.make_node("Loop", ["", "", "mel"], ["refined"], body=body))


def with_a_function(folder) -> None:
    relu, opset = helper.make_node("Relu", ["x"], ["y"]), [helper.make_opsetid("", 17)]
    postnet(folder, functions=[helper.make_function("own", "Relu", ["x"], ["y"], [relu], opset)])


def with_another_graph(folder) -> None:
    described(folder, "postnet.onnx", (folder / "encoder.onnx").read_bytes())


DAMAGES = {
    "no voice": (lambda f: (f / "voice.json").unlink(), "voice.json: no such file"),
    "format": (lambda f: about(f, format=1), "voice.json: format=1"),
    "symbols": (lambda f: about(f, symbols=["a"]), "voice.json: symbols: "),
    "elsewhere": (
        lambda f: about(f, files={"../encoder.onnx": "0"}),
        "voice.json: files: .*expected",
    ),
    "setting": (lambda f: settings(f, hop_length=-1), "(?s)voice.json: .*hop_length"),
    "width": (lambda f: settings(f, decoder_rnn_dim=64), "decoder.onnx: a graph .*304.*exp.*176"),
    "missing": (lambda f: (f / "decoder.onnx").unlink(), "decoder.onnx: no such file"),
    "cut": (
        lambda f: os.truncate(f / "postnet.onnx", 900),
        "postnet.onnx: the checksum differs from",
    ),
    "another graph": (with_another_graph, "postnet.onnx: a graph from {'symbols'.*expected"),
    "noise": (lambda f: described(f, "postnet.onnx", bytes(99)), "postnet.onnx: not an ONNX graph"),
    "reads": (reading_a_file, "postnet.onnx: .*other files"),
    "loop": (with_a_loop, "postnet.onnx: contains operators .*: Loop, subgraph"),
    "function": (with_a_function, "postnet.onnx: contains operators .*: function"),
    "filters": (lambda f: described(f, "mel_filters.f32", bytes(63)), "f32: .*63 bytes .expected"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_voice_is_rejected_when_its_folder_is_damaged(damage, voices, tmp_path, monkeypatch):
    folder, (spoil, message) = shutil.copytree(voices.fp32[0], tmp_path / "voice"), DAMAGES[damage]
    spoil(folder)
    monkeypatch.setattr(onnx_graph.OnnxGraph, "run", None)  # no graph may run before it is checked
    with pytest.raises(UserError, match=message) as stop:
        Voice(folder)
    assert str(stop.value).count(str(folder)) == 1
    assert len(str(stop.value)) < 900


def test_synthesis_raises_when_an_onnx_graph_of_the_voice_returns_nan(voices, tmp_path):
    folder = shutil.copytree(voices.fp32[0], tmp_path / "voice")
    weight = numpy_helper.from_array(np.array(np.nan, np.float32), "nan")
    postnet(folder, helper.make_node("Mul", ["mel", "nan"], ["refined"]), weights=[weight])
    with pytest.raises(UserError, match=r"nan \(expected at most 20\)"):
        Voice(folder).synthesize(TEXT)


def test_onnx_graph_of_a_voice_is_rejected_when_it_has_the_ort_format(voices, tmp_path):
    """The operators of a graph in ORT format cannot be checked. A file can be valid as ORT and as ONNX."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "x.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(voices.fp32[0] / "postnet.onnx", options)
    with pytest.raises(UserError, match=r"x\.ort: not an ONNX file"):
        vocoder.load_vocoder(tmp_path / "x.ort", create_hparams())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("n_mel_channels=40", "n_mel_channels=40: expected 80"),
        ("hop_length=1", "hop_length=1: expected 256"),
        ("nonsense", "'nonsense': expected name=value"),
    ],
)
def test_invalid_overrides_are_not_reported_as_a_damaged_voice(overrides, message, voices):
    refused = refusal(Voice, voices.fp32[0], overrides)
    assert message in refused
    assert "voice.json" not in refused
    assert "export" not in refused


def test_voice_does_not_open_paths_from_its_settings(voices, tmp_path, monkeypatch):
    folder, opened = shutil.copytree(voices.fp32[0], tmp_path / "voice"), []
    settings(folder, symbols="/dev/zero", training_files="/dev/zero")
    really = files.open_file
    monkeypatch.setattr(files, "open_file", lambda x, *more: opened.append(x) or really(x, *more))
    Voice(folder).synthesize(TEXT)
    assert {path.parent for path in opened} == {folder}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("other weights", "differ from PyTorch's outputs by"),
        ("damaged", "best.pt: damaged"),
        ("not empty", "not empty"),
        ("no texts", "val.txt: no such file.*--text-file"),
    ],
)
def test_voice_export_writes_no_folder_when_it_fails(
    damage, message, voices, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = shutil.copy(voices.checkpoint[0], tmp_path / "best.pt")
    if damage == "other weights":
        other, write = load_checkpoint_synthesizer(path), export.write_graphs
        next(other.model.postnet.parameters()).data *= 1.01
        monkeypatch.setattr(export, "write_graphs", lambda _, folder: write(other, folder))
    elif damage == "damaged":
        path.write_bytes(path.read_bytes()[:-99])
    elif damage == "not empty":
        (tmp_path / "voice" / "mine").mkdir(parents=True)
    option = [] if damage == "no texts" else ["--fp32"]
    with pytest.raises(UserError, match=message):
        export_voice.main(["--checkpoint", str(path), "-o", "voice", *option])
    assert [x.name for x in tmp_path.glob("voice/*")] == ["mine"] * (damage == "not empty")


class Hold(torch.nn.Module):
    """A vocoder that repeats the largest value of each frame `hop` times."""

    def __init__(self, hop: int = 256, sampling_rate: int = 22050):
        super().__init__()
        self.hop, self.sampling_rate = hop, sampling_rate

    def forward(self, mel):
        return mel.amax(1, keepdim=True).repeat_interleave(self.hop, 2) / 20


def write_vocoder(path, **settings: int) -> None:
    made, mel = Hold(**settings), torch.zeros(1, 80, 5)
    axes = {"mel": [2], "sound": [2]}
    names = {"input_names": ["mel"], "output_names": ["sound"], "dynamic_axes": axes}
    torch.onnx.export(made, (mel,), path, dynamo=False, **names)  # type: ignore[arg-type]
    model = onnx.load(path)
    helper.set_model_props(model, {"sampling_rate": str(made.sampling_rate)})
    onnx.save(model, path)


@pytest.mark.filterwarnings("ignore")  # torch's older ONNX exporter issues warnings
def test_custom_vocoder_computes_the_audio(voices, tmp_path):
    write_vocoder(tmp_path / "hold.onnx")
    spoken = "--text", TEXT, "--vocoder", tmp_path / "hold.onnx"
    speak("--checkpoint", voices.checkpoint[0], *spoken, "-o", tmp_path, "--save-mel")
    sound, mel = soundfile.read(tmp_path / "0001.wav")[0], np.load(tmp_path / "0001.npy")
    np.testing.assert_allclose(sound, np.repeat(mel.max(0) / 20, 256), atol=1e-4)
    speak("--voice", voices.fp32[0], *spoken, "-o", tmp_path / "a.wav")
    held = Voice(voices.fp32[0])
    mel = held.synthesize(text_to_ids(TEXT, held.settings)).mel
    sound = soundfile.read(tmp_path / "a.wav")[0]
    np.testing.assert_allclose(sound, np.repeat(mel.max(0) / 20, 256), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"hop": 300}, r"\(1, 1, 4800\) for 16 frames \(expected \(1, 1, 4096\)"),
        (
            {"sampling_rate": 16000},
            r"sampling_rate=16000 \(expected 22050\)",
        ),
    ],
)
def test_vocoder_is_rejected_when_it_does_not_fit_the_voice(made, message, tmp_path):
    write_vocoder(tmp_path / "hold.onnx", **made)
    with pytest.raises(UserError, match=rf"hold\.onnx: .*{message}"):
        vocoder.load_vocoder(tmp_path / "hold.onnx", create_hparams())


@pytest.mark.filterwarnings("ignore")  # torch's older ONNX exporter issues warnings
def test_vocoder_is_rejected_when_its_inputs_or_outputs_are_unexpected(tmp_path):
    """Without dynamic_axes, an exported vocoder has a fixed input length."""
    path, held, h = tmp_path / "hold.onnx", Hold(), create_hparams()
    for bands, advice in [
        (
            80,
            r"\[1, 80, 16\] \(expected .*\[1, 80, T\] of any length",
        ),
        (40, r"tensor\(float\) \[1, 40, 16\] \(expected .*\[1, 80, T\]"),
    ]:
        torch.onnx.export(held, (torch.zeros(1, bands, 16),), path, dynamo=False)
        with pytest.raises(UserError, match=advice):
            vocoder.load_vocoder(path, h)
    write_vocoder(path)
    model = onnx.load(path)
    helper.set_model_props(model, {"sampling_rate": "22050.0"})
    onnx.save(model, path)
    vocoder.load_vocoder(path, h)
    model.graph.input.append(helper.make_tensor_value_info("noise", 1, [1]))
    onnx.save(model, path)
    with pytest.raises(UserError, match=r"tensor\(float\) \[1\] \(expected one"):
        vocoder.load_vocoder(path, h)
    whole = lambda mel: np.zeros((1, 1, mel.shape[1] * 256), np.int32)  # noqa: E731
    with pytest.raises(UserError, match=r"int32 \(expected floats"):
        vocoder.checked_vocoder(path, whole, h)


class Thief(torch.nn.Module):
    """A TorchScript module that overwrites a file when it runs."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, mel):
        torch.from_file(self.path, shared=True, size=4, dtype=torch.uint8).fill_(88)
        return mel.amax(1, keepdim=True).repeat_interleave(256, 2)


@pytest.mark.filterwarnings("ignore")  # TorchScript warns
def test_vocoder_is_rejected_when_it_can_run_code(tmp_path):
    (tmp_path / "precious").write_text("gold")
    torch.jit.script(Thief(str(tmp_path / "precious"))).save(tmp_path / "thief.pt")
    weights = {"generator": Thief("").state_dict()}
    torch.save(weights, tmp_path / "generator_v1")
    torch.save(weights, tmp_path / "g_02500000", _use_new_zipfile_serialization=False)
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    for name in ("thief.pt", "generator_v1", "g_02500000", "sound.wav"):
        message = refusal(vocoder.load_vocoder, tmp_path / name, create_hparams())
        assert message.startswith(f"{tmp_path / name}: not an ONNX file")
    assert (tmp_path / "precious").read_text() == "gold"


def test_vocoder_is_rejected_when_its_operators_are_unknown(tmp_path):
    """Unknown operators could run subgraphs or code, or draw random numbers."""
    ends = [helper.make_tensor_value_info(x, 1, [1, None, None]) for x in ("mel", "sound")]
    for operator, domain, named in [
        ("Loop", "", "Loop, subgraph"),
        ("RandomNormal", "", "RandomNormal"),
        ("Relu", "com.microsoft", "com.microsoft.Relu"),
    ]:
        node = helper.make_node(operator, ["mel"], ["sound"], domain=domain)
        if operator == "Loop":
            node.attribute.add(name="body", g=helper.make_graph([], "body", [], []), type=5)
        model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))
        (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
        message = refusal(vocoder.load_vocoder, tmp_path / "x.onnx", create_hparams())
        assert message.startswith(f"{tmp_path / 'x.onnx'}: contains operators ")
        assert message.endswith(f": {named}")


@pytest.mark.filterwarnings("ignore")  # torch's older ONNX exporter issues warnings
def test_vocoder_is_rejected_when_it_fails_after_loading(tmp_path):
    write_vocoder(tmp_path / "late.onnx")
    model, table = onnx.load(tmp_path / "late.onnx"), np.zeros(18, np.int64)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))
    for inputs, output in ((["mel"], "s"), (["s", "two"], "n"), (["table", "n"], "late")):
        operator = "Gather" if len(inputs) == 2 else "Shape"
        model.graph.node.append(helper.make_node(operator, inputs, [output]))
    model.graph.output.append(helper.make_tensor_value_info("late", 7, []))
    onnx.save(model, tmp_path / "late.onnx")
    mel = np.zeros((80, 20), np.float32)
    with pytest.raises(UserError, match=r"late\.onnx: the graph cannot run \(indices element"):
        vocoder.load_vocoder(tmp_path / "late.onnx", create_hparams())(mel)
    short = lambda mel: np.zeros((1, 1, 256 * min(mel.shape[1], 17)), np.float32)  # noqa: E731
    with pytest.raises(UserError, match=r"x: .*\(1, 1, 4352\) for 20 frames"):
        vocoder.checked_vocoder("x", short, create_hparams())(mel)
    nan = np.full((1, 1, 16 * 256), np.nan, np.float32)
    with pytest.raises(UserError, match=r"y: .*NaN"):
        vocoder.checked_vocoder("y", lambda mel: nan, create_hparams())
    ends = helper.make_tensor_value_info("sound", 1, [1])
    value = numpy_helper.from_array(np.zeros(1, np.float32))
    nodes = [helper.make_node("Constant", [], ["sound"], value=value)]
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [ends]), opset_imports=opset)
    model.ir_version = 8
    onnx.save(model, tmp_path / "none.onnx")
    with pytest.raises(UserError, match=r"none\.onnx: .*expected one float32 log-mel"):
        vocoder.load_vocoder(tmp_path / "none.onnx", create_hparams())
