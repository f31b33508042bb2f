"""A trained checkpoint as a voice: a folder that speaks without PyTorch (speak.py, voice.py).

    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice
    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice --fp32

The decoder's weights become 8-bit integers, a quarter of the size and several times as fast, unless
--fp32 keeps them; what that changes is measured on twenty texts and printed. The graphs are
compared with torch before the folder is written, whole or not at all. It needs
requirements-onnx.txt besides requirements.txt (docs/voices.md).
"""

import project_root

import copy
import hashlib
import io
import logging
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

from analysis.arguments import make_parser
from audio import mel_filters
from corpus.spoken_numbers import sentence_of
from errors import UserError
from files import folder_made_whole, refuse_no_folder, write_bytes, write_json
from hparams import HParams
from model import Decoder, DecoderState, DropoutMasks, Tacotron2
from progress import progress_bar
from reading import sequence_to_speak
from speaking import Speaker, load_speaker
from text.symbols import symbols
from training.checkpoint import load_checkpoint
from version import __version__
from voice import FILTERS, FORMAT, SETTINGS, Voice, graph_shapes

OPSET = 17
CHECKED_STEPS = 200
ALLOWED = 1e-5  # of the loudest mel value, between torch and the graphs after those steps
SMALLEST_INT8 = 2**16  # weights of a matrix; smaller ones take no time, and attention needs them
COMPARED = 20  # texts
MOST_FRAMES = 200  # of a text that is compared


class SpeakingEncoder(nn.Module):
    """The encoder for one text, which needs no packing, and the attention's view of its output."""

    def __init__(self, model: Tacotron2):
        super().__init__()
        self.model = model

    def forward(self, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.model.embedding(text).transpose(1, 2)
        for convolution in self.model.encoder.convolutions:
            x = torch.relu(convolution(x))
        memory = self.model.encoder.lstm(x.transpose(1, 2))[0]
        return memory, self.model.decoder.attention_layer.memory_layer(memory)


class Cell(nn.Module):
    """An LSTMCell as one matrix product, which 8 bits speed up more than two."""

    def __init__(self, cell: nn.LSTMCell):
        super().__init__()
        self.weight = nn.Parameter(
            torch.cat([cell.weight_ih, cell.weight_hh], dim=1).T.contiguous()
        )
        self.bias = nn.Parameter(cell.bias_ih + cell.bias_hh)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = torch.cat([x, state[0]], dim=1) @ self.weight + self.bias
        into, forget, candidate, out = gates.chunk(4, dim=1)
        kept = torch.sigmoid(forget) * state[1]
        cell = kept + torch.sigmoid(into) * torch.tanh(candidate)
        return torch.sigmoid(out) * torch.tanh(cell), cell


class SpeakingStep(nn.Module):
    """A step of the decoder, prenet included; inputs and outputs as voice.graph_shapes."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = copy.deepcopy(decoder)
        for name in ("attention_rnn", "decoder_rnn"):
            setattr(self.decoder, name, Cell(getattr(decoder, name)))

    def forward(self, frames, keep, memory, processed_memory, *state):
        x = frames
        for number, layer in enumerate(self.decoder.prenet.layers):
            x = torch.relu(layer(x)) * keep[number]
        mask = torch.zeros_like(memory[:, :, 0], dtype=torch.bool)
        keep_all = DropoutMasks((None, None), None, None)
        frames, gate, after = self.decoder.step(
            x, DecoderState(*state), memory, processed_memory, mask, keep_all
        )
        return gate, frames, *after


class SpeakingPostnet(nn.Module):
    def __init__(self, postnet: nn.Module):
        super().__init__()
        self.postnet = postnet

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return mel + self.postnet(mel)


def to_onnx(module: nn.Module, name: str, h: HParams) -> bytes:
    """A module as the graph of that name in voice.graph_shapes."""
    inputs, outputs = graph_shapes(h)[name]
    kind = torch.int64 if name == "encoder" else torch.float32
    examples = [[7 if size is None else size for size in shape] for shape in inputs.values()]
    axes = {
        name: {i: "length" for i, size in enumerate(shape) if size is None}
        for name, shape in (inputs | outputs).items()
    }
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.onnx of its newer exporter, which needs onnxscript
        torch.onnx.export(
            module.eval(),
            tuple(torch.zeros(shape, dtype=kind) for shape in examples),
            content,  # type: ignore[arg-type]
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
    graph = onnx.load_from_string(content.getvalue())
    del graph.graph.output[:]  # torch leaves sizes open that are known
    for output, shape in outputs.items():
        sizes = ["length" if size is None else size for size in shape]
        info = onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, sizes)
        graph.graph.output.append(info)
    onnx.checker.check_model(graph)
    return graph.SerializeToString()


def to_int8(graph: bytes) -> bytes:
    """A graph with its large matrices in 8 bits, each column with a scale of its own."""
    model = onnx.load_from_string(graph)
    large = {x.name for x in model.graph.initializer if np.prod(x.dims, dtype=int) >= SMALLEST_INT8}
    small = [node.name for node in model.graph.node if not large.intersection(node.input)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        logging.disable(logging.WARNING)  # advice that does not concern the user
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=small,
            per_channel=True,
            reduce_range=True,  # products of 8 bits overflow on processors without VNNI
        )
        logging.disable(logging.NOTSET)
        return path.read_bytes()


def write_voice(folder: Path, files: dict[str, bytes], about: dict[str, Any]) -> None:
    for name, content in files.items():
        write_bytes(folder / name, content)
    described = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    write_json(folder / SETTINGS, about | {"files": described})


def check(folder: Path, speaker: Speaker) -> float:
    """How far the graphs' mel is from torch's after CHECKED_STEPS steps with the same dropout, over
    the loudest value; UserError if that is more than rounding."""
    overrides = f"max_decoder_steps={CHECKED_STEPS},gate_threshold=2"
    voice, model, h = Voice(folder, overrides), speaker.model, speaker.hparams
    sequence = sequence_to_speak(sentence_of("4072"), h)
    rng = np.random.default_rng(0)
    keep = rng.random((CHECKED_STEPS, 2, 1, h.prenet_dim)) >= h.p_prenet_dropout
    masks = DropoutMasks((torch.from_numpy(keep[:, 0]), torch.from_numpy(keep[:, 1])), None, None)
    model.max_decoder_steps, model.gate_threshold = CHECKED_STEPS, 2.0
    outputs = model.infer(torch.tensor([sequence]), torch.tensor([len(sequence)]), masks)
    expected, found = outputs.mel_postnet[0].numpy(), mel_of(voice, sequence)
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= ALLOWED:  # true for nan as well
        raise UserError(
            f"after {CHECKED_STEPS} steps the graphs' mel differs from torch's by {difference:.1e} "
            f"of its loudest value, expected at most {ALLOWED:.0e}; nothing was written"
        )
    return difference


def mel_of(voice: Voice, sequence: list[int]) -> np.ndarray:
    return np.concatenate([*voice.mels(sequence, seed=0, max_symbols=len(sequence))], axis=1)


def cost(folder: Path, exact: Voice) -> str:
    """What the folder's voice makes otherwise than `exact`."""
    voice = Voice(folder, f"max_decoder_steps={exact.hparams.max_decoder_steps}")
    differences, same = [], 0
    bar = progress_bar("Comparing", COMPARED, " texts", iterable=range(1, COMPARED + 1))
    for number in bar:
        sequence = sequence_to_speak(sentence_of(str(4567 * number)), voice.hparams)
        one, other = mel_of(exact, sequence), mel_of(voice, sequence)
        frames = min(one.shape[1], other.shape[1])
        differences.append(np.abs(one[:, :frames] - other[:, :frames]).mean())
        same += one.shape == other.shape
    return (
        f"int8 beside fp32, {COMPARED} texts with the same dropout: log-mels differ by "
        f"{np.mean(differences):.3f} on average, {same} of {COMPARED} are as long"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="a new one")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--int8", action="store_true", help="8-bit weights, the default")
    precision.add_argument("--fp32", action="store_true", help="as the checkpoint has them")
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=2000")
    args = parser.parse_args(arguments)
    refuse_no_folder(args.out, "-o")
    if args.out.is_dir() and any(args.out.iterdir()):
        raise UserError(f"{args.out}: not empty; choose another -o, or delete it")
    speaker = load_speaker(args.checkpoint, args.hparams, torch.device("cpu"))
    saved, h, model = load_checkpoint(args.checkpoint), speaker.hparams, speaker.model
    modules = {
        "encoder": SpeakingEncoder(model),
        "decoder": SpeakingStep(model.decoder),
        "postnet": SpeakingPostnet(model.postnet),
    }
    graphs = {f"{name}.onnx": to_onnx(module, name, h) for name, module in modules.items()}
    filters = io.BytesIO()
    np.save(filters, mel_filters(h).numpy())
    files = graphs | {FILTERS: filters.getvalue()}
    about = {
        "format": FORMAT,
        "weights": "fp32" if args.fp32 else "int8",
        "checkpoint": args.checkpoint.name,
        "iteration": saved.get("iteration"),
        "longest_text": speaker.longest_text,
        "symbols": symbols,
        "hparams": asdict(h),
        "versions": {
            "recipe": __version__,
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
    }
    with folder_made_whole(args.out) as folder:
        write_voice(folder, files, about)
        difference = check(folder, speaker)
        print(f"fp32 beside torch: {difference:.1e} of the loudest value, {CHECKED_STEPS} steps")
        if not args.fp32:
            steps = min(h.max_decoder_steps, MOST_FRAMES // h.n_frames_per_step + 1)
            exact = Voice(folder, f"max_decoder_steps={steps}")
            files["decoder.onnx"] = to_int8(files["decoder.onnx"])
            write_voice(folder, files, about)
            print(cost(folder, exact))
    size = sum(map(len, files.values())) / 1e6
    print(f"wrote {args.out}, {size:.1f} MB: python speak.py {args.out} --text ... -o out.wav")


if __name__ == "__main__":
    main()
