"""Exports a trained model as a voice, a folder that speaks without PyTorch (tacotron2_voice/voice.py).

    export_voice(load_checkpoint_synthesizer("best.pt", device=torch.device("cpu")), Path("voice"), texts)

It needs onnx and onnxruntime besides torch.
"""

import hashlib
import io
import logging
import lzma
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

from export.checkpoint_synthesizer import CheckpointSynthesizer
from model import DecoderState, DropoutMasks, Tacotron2
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import folder_made_whole, write_bytes, write_json
from tacotron2_voice.version import __version__
from tacotron2_voice.voice import (
    FILES,
    FILTERS,
    GRAPHS,
    PACKED,
    SETTINGS,
    About,
    Voice,
    inputs_of,
    shape_of,
)

OPSET = 17
CHECKED_STEPS = 200
MAX_DIFFERENCE = 1e-5  # of the largest value, between torch and the graphs
MAX_FRAMES = 200  # of a text that is compared
# Of which inputs 8 bits are kept, by operator, and their dimension of outputs.
WEIGHTS = {"Conv": ((1,), 0), "LSTM": ((1, 2), 1), "MatMul": ((1,), 1)}
MIN_WEIGHTS = 2**10  # a smaller tensor stays in float32
REDUCED_LARGEST = 64  # of the integers that `to_int8` makes
PACKED_LARGEST = 46  # of all in a packed voice, whose full size has 20 MB then
TINY = np.float32(1e-30)  # the scale of an output whose weights are all 0


class SpokenText(NamedTuple):
    """A text on which voices are compared."""

    ids: list[int]  # of its symbols
    speaker: str | None = None  # one of hparams.speakers; None where there are none


def encode(
    model: Tacotron2, text: torch.Tensor, speaker: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """The encoder for one text, which needs no packing, and the attention's view of its output.
    `speaker` [1, speakers]: 1 at the speaker's index, else 0; None of one voice."""
    x = model.embedding(text).transpose(1, 2)
    for convolution in model.encoder.convolutions:
        x = torch.relu(convolution(x))
    memory = model.encoder.lstm(x.transpose(1, 2))[0]
    if speaker is not None and model.speaker_embedding is not None:
        vector = (speaker @ model.speaker_embedding.weight)[:, None]
        memory = torch.cat([memory, vector + torch.zeros_like(memory[:, :, :1])], dim=2)
    return memory, model.decoder.attention_layer.memory_layer(memory)


def take_step(
    model: Tacotron2,
    memory: torch.Tensor,
    processed_memory: torch.Tensor,
    outside: torch.Tensor,
    keep: torch.Tensor,
    frames: torch.Tensor,
    state: torch.Tensor,
    alignments: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """A step of the decoder, prenet included."""
    decoder, none, dim = model.decoder, (None, None), memory.shape[2]
    for number, layer in enumerate(decoder.prenet.layers):
        frames = torch.relu(layer(frames)) * keep[number]
    sizes = [x.hidden_size for x in (decoder.attention_rnn, decoder.decoder_rnn) for _ in range(2)]
    *rnns, context = state.split([*sizes, dim], dim=1)
    before = DecoderState._make([*rnns, alignments[:1], alignments[1:], context])
    mask, masks = outside.bool(), DropoutMasks(none, None, None)
    frames, gate, after = decoder.step(frames, before, memory, processed_memory, mask, masks)
    state = torch.cat([*after[:4], after.attention_context], dim=1)
    alignments = torch.cat([after.alignment, after.cumulative_alignment])
    return torch.sigmoid(gate), frames, state, alignments


def refine(model: Tacotron2, mel: torch.Tensor) -> tuple[torch.Tensor]:
    return (mel + model.postnet(mel),)


FUNCTIONS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "encoder": encode,
    "decoder": take_step,
    "postnet": refine,
}


class Function(nn.Module):
    """A function of a model, as a module to be exported."""

    def __init__(self, model: Tacotron2, function: Callable[..., tuple[torch.Tensor, ...]]):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(self.model, *inputs)


def write_graphs(speaker: CheckpointSynthesizer, folder: Path) -> None:
    """The graphs of voice.GRAPHS in float32."""
    for name, (_, outputs) in GRAPHS.items():
        path, inputs = folder / f"{name}.onnx", inputs_of(name, speaker.hparams)
        shapes = {x: shape_of(x, speaker.hparams) for x in (*inputs, *outputs)}
        kinds = {"symbols": torch.int64}
        examples = [
            torch.zeros([size or 7 for size in shapes[x]], dtype=kinds.get(x, torch.float32))
            for x in inputs
        ]
        axes = {x: [i for i, size in enumerate(shapes[x]) if not size] for x in shapes}
        function = Function(speaker.model, FUNCTIONS[name]).eval()
        write_graph(function, examples, path, inputs, outputs, axes)


def write_graph(
    module: nn.Module,
    examples: Sequence[torch.Tensor],
    file: Path | io.BytesIO,
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Sequence[int]],
) -> None:
    """Write a module's graph for inputs such as `examples`. `axes`: the dimensions of inputs and
    outputs that may have other sizes, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.onnx of its newer exporter: needs onnxscript
        torch.onnx.export(
            module,
            tuple(examples),
            file,  # type: ignore[arg-type]  # of bytes too
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: dict.fromkeys(numbers, "length") for name, numbers in axes.items()},
            opset_version=OPSET,
            dynamo=False,
        )


def to_int8(path: Path) -> None:
    """The decoder's LSTMs, nearly all of its weights, in 8 bits, each column with its own scale."""
    logging.disable(logging.WARNING)  # advice that does not concern the user
    quantize_dynamic(
        path,
        path,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=[
            f"{x.name}_MatMul" for x in onnx.load(path).graph.node if "_rnn" in x.name
        ],
        per_channel=True,
        reduce_range=True,  # products of 8 bits overflow on processors without VNNI
    )
    logging.disable(logging.NOTSET)


def store_in_8_bits(path: Path, largest: int = 127) -> None:
    """The other large weights of a graph in 8 bits too, each output with its own scale, as integers
    from -`largest` to `largest`. They only lie in the file so: the graph makes float32 values of
    them when it runs, and computes in these.
    """
    graph = onnx.load(path)
    weights = {x.name: x for x in graph.graph.initializer if math.prod(x.dims) >= MIN_WEIGHTS}
    for node in [*graph.graph.node]:
        places, axis = WEIGHTS.get(node.op_type, ((), 0))
        for place in places:
            tensor = weights.pop(node.input[place], None)
            if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT:
                continue
            values = onnx.numpy_helper.to_array(tensor)
            others = tuple(i for i in range(values.ndim) if i != axis)
            scales = np.maximum(np.abs(values).max(others, keepdims=True) / largest, TINY)
            names = [f"{tensor.name}_{part}" for part in ("int8", "scales")]
            stored = np.rint(values / scales).astype(np.int8), scales.ravel()
            graph.graph.initializer.remove(tensor)
            graph.graph.initializer.extend(map(onnx.numpy_helper.from_array, stored, names))
            restore = onnx.helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis)
            graph.graph.node.insert(0, restore)
    write_bytes(path, graph.SerializeToString())


def round_further(path: Path) -> None:
    """The weights of `to_int8` as integers from -PACKED_LARGEST to PACKED_LARGEST."""
    graph = onnx.load(path)
    tensors = {x.name: x for x in graph.graph.initializer}
    for name, tensor in tensors.items():
        if not name.endswith("_quantized"):
            continue
        scale = tensors[f"{name.removesuffix('_quantized')}_scale"]
        weights, scales = map(onnx.numpy_helper.to_array, (tensor, scale))
        factor = np.float32(REDUCED_LARGEST / PACKED_LARGEST)
        weights = np.rint(weights / factor).astype(np.int8)
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights, name))
        scale.CopyFrom(onnx.numpy_helper.from_array(scales * factor, scale.name))
    write_bytes(path, graph.SerializeToString())


def pack(folder: Path) -> None:
    """Replace the graphs by files packed by LZMA; voice.json has the sums of what they hold."""
    for name in GRAPHS:
        path = folder / f"{name}.onnx"
        write_bytes(path.with_name(f"{path.name}{PACKED}"), lzma.compress(path.read_bytes()))
        path.unlink()


def describe(folder: Path, about: About) -> None:
    """Write voice.json, with the checksums of the files that are there."""
    sums = {x: hashlib.sha256((folder / x).read_bytes()).hexdigest() for x in sorted(FILES)}
    write_json(folder / SETTINGS, asdict(replace(about, files=sums)))


class CheckedVoice(Voice):
    """Compares every output with torch, whose outputs are the next step's inputs: otherwise
    attention would make rounding grow."""

    model: Tacotron2
    difference = 0.0  # the largest so far, over the largest value, or 1

    def _run(
        self, name: str, length: int, inputs: Mapping[str, np.ndarray], frames: int
    ) -> list[np.ndarray]:
        arrays = super()._run(name, length, inputs, frames)
        given = [torch.from_numpy(inputs[x]) for x in inputs_of(name, self.hparams)]
        with torch.no_grad():
            expected = [x.numpy() for x in FUNCTIONS[name](self.model, *given)]
        for one, other in zip(arrays, expected, strict=True):
            difference = np.abs(one - other).max() / max(1, np.abs(other).max())
            self.difference = float(np.maximum(self.difference, difference))  # nan stays
        return expected


def check(folder: Path, speaker: CheckpointSynthesizer) -> float:
    """How far the graphs are from torch in CHECKED_STEPS steps, of the first and the last speaker
    where there are several; UserError if that is more than rounding."""
    voice, last = CheckedVoice(folder), len(speaker.hparams.speakers) - 1
    voice.model, sequence = speaker.model, sorted(speaker.hparams.table.spoken_ids)[:20]
    for index in dict.fromkeys([0, last]) if last >= 0 else [None]:
        steps = [*voice.decode(sequence, 0, CHECKED_STEPS, index)]
        voice.refine(np.concatenate([frames for made in steps for frames in made.frames]).T)
    if not voice.difference <= MAX_DIFFERENCE:  # true for nan as well
        raise UserError(
            f"in {CHECKED_STEPS} steps the graphs differ from torch by {voice.difference:.1e} of "
            f"the largest value, expected at most {MAX_DIFFERENCE:.0e}; nothing was written"
        )
    return voice.difference


def compare(exact: Voice, voice: Voice, texts: list[SpokenText]) -> str:
    """What a voice makes otherwise than `exact`."""
    differences, same = [], 0
    for text in progress_bar("Comparing", len(texts), " texts", iterable=texts):
        options = {"max_symbols": len(text.ids), "retries": 0, "speaker": text.speaker}
        one, other = (speaker.speak_text(text.ids, **options).mel for speaker in (exact, voice))
        frames = min(one.shape[1], other.shape[1])
        differences.append(np.abs(one[:, :frames] - other[:, :frames]).mean())
        same += one.shape == other.shape
    return (
        f"{voice.about.weights} beside fp32, {len(texts)} texts with the same dropout: log-mels "
        f"differ by {np.mean(differences):.3f} on average, {same} of {len(texts)} are as long"
    )


def export_voice(
    speaker: CheckpointSynthesizer,
    folder: Path,
    texts: list[SpokenText] | None,
    packed: bool = False,
) -> None:
    """Write the voice of a speaker on the CPU, and print how it differs from the model.

    Weights become 8-bit integers. The graphs are compared with torch before that, and
    the folder is written whole or not at all.

    Args:
        texts: on which the 8-bit voice is compared with the exact one; None keeps the weights in
            float32.
        packed: round the 8-bit weights further, and pack the graphs by LZMA.

    Raises:
        UserError: if the graphs differ from torch by more than rounding.
    """
    h = speaker.hparams
    about = About(
        format=2,
        weights="fp32",
        checkpoint=Path(speaker.source).name,
        epochs=speaker.epochs,
        longest_text=speaker.longest_text,
        statistics=speaker.statistics,
        symbols=list(h.table.symbols),
        hparams=asdict(h),
        recipe=__version__,
        versions={name: metadata.version(name) for name in ("torch", "onnx", "onnxruntime")},
        files={},
        speaker_statistics=[*speaker.speaker_statistics],
    )
    with folder_made_whole(folder) as made:
        write_graphs(speaker, made)
        (made / FILTERS).write_bytes(speaker.griffin_lim.filters.tobytes())
        describe(made, about)
        difference = check(made, speaker)
        print(f"fp32 beside torch: {difference:.1e} of the largest value, {CHECKED_STEPS} steps")
        if texts is not None:
            steps = min(h.max_decoder_steps, MAX_FRAMES // h.n_frames_per_step + 1)
            exact = Voice(made, f"max_decoder_steps={steps}")
            to_int8(made / "decoder.onnx")
            if packed:
                round_further(made / "decoder.onnx")
            for name in GRAPHS:
                store_in_8_bits(made / f"{name}.onnx", PACKED_LARGEST if packed else 127)
            describe(made, replace(about, weights="packed" if packed else "int8"))
            if packed:
                pack(made)
            print(compare(exact, Voice(made, f"max_decoder_steps={steps}"), texts))
        size = sum(file.stat().st_size for file in made.iterdir()) / 1e6
    choice = " --speaker ..." if len(h.speakers) > 1 else ""
    speak = f"python synthesize.py --voice {folder}{choice} --text ... -o out.wav"
    print(f"wrote {folder}, {size:.1f} MB: {speak}")
