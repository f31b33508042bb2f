"""voice.py, speak.py, scripts/export_voice.py: a voice says what its checkpoint says, the same each
time, and a folder that is not whole says nothing."""

import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
import soundfile
import torch
from helpers import ROOT, SPEAKER
from onnx import TensorProto, helper, numpy_helper

import speak
import speaking
import synthesize
import voice
from errors import UserError
from hparams import create_hparams
from model import DropoutMasks, Tacotron2
from reading import sequence_to_speak
from voice import Voice
from waveform import SILENCE

export_voice = importlib.import_module("scripts.export_voice")
TEXT = "A dog came. It sat down, and it ate."  # two parts of at most 20 symbols, then one
SETTINGS = f"{SPEAKER},decoder_rnn_dim=128,n_frames_per_step=2,max_decoder_steps=40"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path, hparams = tmp_path_factory.mktemp("model") / "best.pt", create_hparams(SETTINGS)
    settings = {
        name: getattr(hparams, name) for name in (s.split("=")[0] for s in SETTINGS.split(","))
    }
    weights = Tacotron2(hparams).state_dict()
    saved = {"iteration": 7, "state_dict": weights, "hparams": settings, "longest_text": 24}
    torch.save(saved, path)
    return path


@pytest.fixture(scope="module")
def exported(checkpoint):
    """Folders by precision, and what was printed."""
    folders, printed = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_voice, "COMPARED", 1)
        for option in ("--fp32", "--int8"):
            folders[option] = checkpoint.with_name(option)
            patch.setattr(sys, "stdout", output := io.StringIO())
            export_voice.main(["--checkpoint", str(checkpoint), "-o", str(folders[option]), option])
            printed[option] = output.getvalue()
    return folders, printed


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported[0]["--fp32"], tmp_path / "voice")


def torch_mel(checkpoint, sequence: list[int], seed: int) -> np.ndarray:
    """Of one part, with the dropout that a voice draws."""
    model = speaking.load_speaker(checkpoint, "gate_threshold=2", torch.device("cpu")).model
    drawn = np.random.default_rng(seed).random((model.max_decoder_steps, 2, 1, 8)) >= 0.5
    first, second = (torch.from_numpy(drawn[:, layer]) for layer in range(2))
    masks = DropoutMasks((first, second), None, None)
    text, lengths = torch.tensor([sequence]), torch.tensor([len(sequence)])
    return model.infer(text, lengths, masks).mel_postnet[0].numpy()


def test_parts_have_the_mels_of_torch(exported, checkpoint):
    exact = Voice(exported[0]["--fp32"], "gate_threshold=2")
    sequence = sequence_to_speak(TEXT, exact.hparams)
    found = np.concatenate([*exact.mels(sequence, seed=3)], axis=1)
    silence = np.full((80, 26), SILENCE, np.float32)  # 0.3 s
    parts = [torch_mel(checkpoint, part, 3) for part in (sequence[:11], sequence[12:])]
    expected = np.concatenate([parts[0], silence, parts[1]], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert any(x.startswith("part 1 of 2: no stop within 40 steps") for x in exact.warnings)
    lengths = [alignment.shape for alignment in exact.alignments]
    assert lengths == [(40, 11), (40, len(sequence) - 12)]
    np.testing.assert_allclose(np.concatenate(exact.alignments, axis=1).sum(1), 2, atol=1e-5)


def test_int8_is_smaller_and_says_what_it_costs(exported):
    folders, printed = exported
    sizes = {name: (path / "decoder.onnx").stat().st_size for name, path in folders.items()}
    assert sizes["--int8"] < 0.5 * sizes["--fp32"]
    assert "int8 beside fp32, 1 texts" in printed["--int8"]
    assert "int8" not in printed["--fp32"]
    about = json.loads((folders["--int8"] / "voice.json").read_text())
    assert (about["weights"], about["iteration"], about["longest_text"]) == ("int8", 7, 24)


def test_a_seed_gives_the_same_bytes_each_time(exported):
    one, again = (Voice(exported[0]["--int8"]) for _ in range(2))
    sound = one.speak(TEXT, seed=1)
    assert sound.dtype == np.float32
    assert np.abs(sound).max() <= 1
    assert (
        sound.tobytes() == one.speak(TEXT, seed=1).tobytes() == again.speak(TEXT, seed=1).tobytes()
    )
    assert sound.tobytes() != one.speak(TEXT, seed=2).tobytes()
    assert sound.tobytes() == np.concatenate([*again.stream(TEXT, seed=1)]).tobytes()


def test_sound_begins_before_the_decoder_has_ended(exported):
    long = Voice(exported[0]["--fp32"], "gate_threshold=2,max_decoder_steps=2000")
    steps, run = 0, long.graphs["decoder"].run

    def counted(**inputs):
        nonlocal steps
        steps += 1
        return run(**inputs)

    long.graphs["decoder"].run = counted
    sound = long.stream(TEXT)
    assert len(next(sound)) > 0
    assert steps * 2 < 60  # frames


def test_speak_imports_no_torch_and_streams_the_same(exported, tmp_path):
    script = "import sys; sys.modules |= dict.fromkeys(['torch', 'librosa', 'onnx'])\n"
    script += "import speak; speak.main(sys.argv[1:])"
    command = [sys.executable, "-c", script, exported[0]["--int8"], "--text", TEXT, "--time"]
    run = subprocess.run(
        [*command, "--stream", "wav"], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    speak.main([str(exported[0]["--int8"]), "--text", TEXT, "-o", str(tmp_path / "a.wav")])
    expected, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    (tmp_path / "b.wav").write_bytes(run.stdout)
    streamed, same_rate = soundfile.read(tmp_path / "b.wav", dtype="int16")
    assert rate == same_rate == 22050
    np.testing.assert_array_equal(streamed, expected)
    assert b"first sound after" in run.stderr


def described(folder, name: str, content: bytes) -> None:
    """A file of a voice that its voice.json describes."""
    (folder / name).write_bytes(content)
    about = json.loads((folder / "voice.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    about["files"][name] = {"bytes": len(content), "sha256": digest}
    (folder / "voice.json").write_text(json.dumps(about))


def about(folder, **changes) -> None:
    path = folder / "voice.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def settings_changed(folder, **changes) -> None:
    about(folder, hparams=json.loads((folder / "voice.json").read_text())["hparams"] | changes)


def graph(shape, nodes=None, weights=()) -> bytes:
    """A postnet of another kind."""
    ends = [helper.make_tensor_value_info(name, 1, shape) for name in ("mel", "refined")]
    nodes = nodes or [helper.make_node("Identity", ["mel"], ["refined"])]
    made = helper.make_graph(nodes, "g", [ends[0]], [ends[1]], list(weights))
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(made, opset_imports=opset, ir_version=8).SerializeToString()


def reading_a_file() -> bytes:
    outside = TensorProto(name="w", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    return graph([1, 80, "t"], [helper.make_node("Add", ["mel", "w"], ["refined"])], [outside])


def npy(shape) -> bytes:
    header = io.BytesIO()
    layout = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, layout)
    return header.getvalue() + bytes(64)


FAULTS = {
    "no voice": (lambda f: (f / "voice.json").unlink(), "voice.json: no voice here"),
    "no JSON": (lambda f: (f / "voice.json").write_text("{"), "voice.json: not JSON"),
    "format": (lambda f: about(f, format=2), "voice.json: not a voice of format 1"),
    "symbols": (lambda f: about(f, symbols=["a"]), "voice.json: symbols: "),
    "elsewhere": (lambda f: about(f, files={"../encoder.onnx": {}}), "voice.json: files: "),
    "setting": (lambda f: settings_changed(f, hop_length=-1), "(?s)voice.json: .*hop_length"),
    "width": (lambda f: settings_changed(f, decoder_rnn_dim=64), "decoder.onnx: .*expected .1, 64"),
    "terabytes": (lambda f: settings_changed(f, n_mel_channels=10**13), "n_mel_channels"),
    "missing": (lambda f: (f / "decoder.onnx").unlink(), "decoder.onnx: missing"),
    "cut": (lambda f: os.truncate(f / "postnet.onnx", 900), "postnet.onnx: not the file that"),
    "link": (
        lambda f: (
            (f / "encoder.onnx").rename(f.parent / "x"),
            (f / "encoder.onnx").symlink_to(f.parent / "x"),
        ),
        "encoder.onnx: a link",
    ),
    "another graph": (
        lambda f: described(f, "postnet.onnx", (f / "encoder.onnx").read_bytes()),
        "postnet.onnx: input '.*expected",
    ),
    "huge graph": (
        lambda f: described(f, "postnet.onnx", graph([1, 80, 2**40])),
        r"postnet.onnx: input 'mel': \[1, 80, 1099511627776\], expected \[1, 80, None\]",
    ),
    "noise": (lambda f: described(f, "postnet.onnx", bytes(99)), "postnet.onnx: no ONNX graph"),
    "reads": (
        lambda f: described(f, "postnet.onnx", reading_a_file()),
        "postnet.onnx: a graph that",
    ),
    "huge filters": (
        lambda f: described(f, "mel_filters.npy", npy((2**40, 9))),
        "mel_filters.npy: no array .*expected finite float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_or_hostile_folder_is_refused(fault, folder, monkeypatch):
    spoil, message = FAULTS[fault]
    spoil(folder)
    monkeypatch.setattr(voice.VoiceGraph, "run", None)  # nothing is run before
    with pytest.raises(UserError, match=message) as stop:
        Voice(folder)
    assert str(folder) in str(stop.value)
    assert len(str(stop.value)) < 600


def test_a_graph_of_terabytes_ends_in_one_message(folder):
    """Its declared shapes are right: it only shows when it runs."""
    size = numpy_helper.from_array(np.array([2**42]), "size")
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Add", ["mel", "zero"], ["refined"]),
    ]
    described(folder, "postnet.onnx", graph([1, 80, "t"], nodes, [size]))
    with pytest.raises(UserError, match="graph cannot be run"):
        Voice(folder).speak(TEXT)


@pytest.mark.parametrize("fault", ["other weights", "damaged", "not empty"])
def test_export_writes_a_whole_voice_or_none(fault, checkpoint, tmp_path, monkeypatch):
    out, path = tmp_path / "voice", tmp_path / "best.pt"
    shutil.copy(checkpoint, path)
    if fault == "other weights":
        cell = export_voice.Cell.forward
        wrong = lambda self, x, state: cell(self, 1.01 * x, state)  # noqa: E731
        monkeypatch.setattr(export_voice.Cell, "forward", wrong)
    elif fault == "damaged":
        path.write_bytes(path.read_bytes()[:-99])
    else:
        out.mkdir()
        (out / "mine").touch()
    message = {"other weights": "differs from torch's by", "damaged": "best.pt: damaged"}
    with pytest.raises(UserError, match=message.get(fault, "not empty")):
        export_voice.main(["--checkpoint", str(path), "-o", str(out)])
    assert [*tmp_path.glob("voice/*")] == ([out / "mine"] if fault == "not empty" else [])


class Hold(torch.nn.Module):
    """A vocoder: each frame's loudest value, `hop` times."""

    def __init__(self, hop: int = 256, sampling_rate: int = 22050):
        super().__init__()
        self.hop, self.sampling_rate = hop, sampling_rate

    def forward(self, mel):
        return mel.amax(1, keepdim=True).repeat_interleave(self.hop, 2) / 20


def onnx_vocoder(path, hop: int = 256, sampling_rate: int = 22050) -> None:
    """The same in ONNX: every frame tiled."""
    numbers = {"peak": [1], "tiles": [1, 1, 1, hop], "end": [1, 1, -1], "last": [3]}
    nodes = [
        helper.make_node("ReduceMax", ["mel"], ["top"], axes=[1], keepdims=1),
        helper.make_node("Unsqueeze", ["top", "last"], ["column"]),
        helper.make_node("Tile", ["column", "tiles"], ["held"]),
        helper.make_node("Reshape", ["held", "end"], ["long"]),
        helper.make_node("Div", ["long", "twenty"], ["sound"]),
    ]
    weights = [numpy_helper.from_array(np.array(x), name) for name, x in numbers.items()]
    weights.append(numpy_helper.from_array(np.array(20, np.float32), "twenty"))
    shapes: dict[str, list[int | str | None]] = {
        "mel": [1, 80, "frames"],
        "sound": [1, 1, "samples"],
    }
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"sampling_rate": str(sampling_rate)})
    onnx.save(model, path)


def test_a_vocoder_of_ones_own_speaks(exported, checkpoint, tmp_path):
    onnx_vocoder(tmp_path / "hold.onnx")
    torch.jit.script(Hold()).save(tmp_path / "hold.pt")
    arguments = ["--checkpoint", str(checkpoint), "--text", TEXT, "-o", str(tmp_path), "--save-mel"]
    sounds = []
    for name in ("hold.onnx", "hold.pt"):
        synthesize.main([*arguments, "--vocoder", str(tmp_path / name)])
        sounds.append(soundfile.read(tmp_path / "0001.wav", dtype="int16")[0])
    mel = np.load(tmp_path / "0001.npy")
    expected = np.rint(32767 * np.repeat(mel.max(0) / 20, 256))
    np.testing.assert_allclose(sounds, [expected, expected], atol=1.5)
    held = Voice(exported[0]["--fp32"], vocoder=tmp_path / "hold.onnx")
    mel = np.concatenate([*held.mels(sequence_to_speak(TEXT, held.hparams), 0)], axis=1)
    np.testing.assert_allclose(held.speak(TEXT), np.repeat(mel.max(0) / 20, 256), atol=1e-6)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"hop": 300}, r"\[1, 1, 4800\] of 16 frames, expected \[1, 1, 4096\]"),
        ({"sampling_rate": 16000}, "a vocoder of 16000 Hz, the model has 22050"),
    ],
)
def test_a_vocoder_that_does_not_fit_is_refused(made, message, checkpoint, tmp_path):
    onnx_vocoder(tmp_path / "v.onnx", **made)
    torch.jit.script(Hold(**made)).save(tmp_path / "v.pt")
    for name in ("v.onnx", "v.pt"):
        with pytest.raises(UserError, match=f"{name}: .*{message}"):
            speaking.load_vocoder(tmp_path / name, create_hparams(SETTINGS))
    (tmp_path / "v.pt").write_bytes(b"no module")
    with pytest.raises(UserError, match=r"v\.pt: no TorchScript"):
        speaking.load_vocoder(tmp_path / "v.pt", create_hparams(SETTINGS))


def test_the_benchmark_times_voices_beside_torch(exported, tmp_path, capsys):
    synthesis = importlib.import_module("benchmarks.synthesis")
    folders = [str(exported[0][name]) for name in ("--fp32", "--int8")]
    few = "--device cpu --texts 2 --symbols 3 --steps 4 --repeats 1 --threads 1"
    synthesis.main([*few.split(), "--voices", *folders, "--json", str(tmp_path / "a.json")])
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    ways = ["one by one", "torch, 1 threads", "fp32, 1 threads", "int8, 1 threads", "Griffin-Lim"]
    assert [row["way"] for row in rows] == ways
    assert all(row["real_time_factors"][0] > 0 for row in rows)
