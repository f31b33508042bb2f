"""Export a trained model as a voice, a folder that works without PyTorch
(tacotron2_voice/voice.py).

    synthesizer = load_checkpoint_synthesizer("best.pt", device=torch.device("cpu"))
    export_voice(synthesizer, Path("voice"), texts)

The export needs the packages onnx and onnxruntime.
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
from typing import Literal, NamedTuple

import numpy as np
import onnx
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

from export.checkpoint_synthesizer import CheckpointSynthesizer
from export.voice_weights import own_names
from model import DecoderState, DropoutMasks, Tacotron2
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import folder_made_whole, write_bytes, write_json
from tacotron2_voice.version import __version__
from tacotron2_voice.voice import (
    COMPRESSED_SUFFIX,
    DESCRIPTION_FILE,
    FILES,
    FILTERS_FILE,
    GRAPHS,
    Voice,
    VoiceDescription,
    inputs_of,
    shape_of,
)

OPSET = 17
CHECKED_STEPS = 200  # number of decoder steps in which outputs are compared with PyTorch's outputs
# Maximum difference from PyTorch's output, relative to the largest output. Rounding errors grow over
# the decoder steps: 3e-6 to 1.1e-5 were measured, depending on the model.
MAX_DIFFERENCE = 1e-4
# Maximum number of frames per text when the int8 voice is compared with the float32 voice.
MAX_FRAMES = 200
# For each ONNX operator: (indices of the inputs that contain weights, dimension of the output
# channels in these weights). The weights are stored in 8 bits.
WEIGHTS = {"Conv": ((1,), 0), "LSTM": ((1, 2), 1), "MatMul": ((1,), 1)}
MIN_WEIGHTS = 2**10  # minimum number of values in a tensor that is stored in 8 bits
LARGEST_INT8 = 127
QUANTIZED_LARGEST = 64  # largest absolute value of the integers that `quantize_lstms` stores
# Largest absolute value of the integers that store the weights of a compressed voice. With the
# value 46, a full-size voice takes 20 MB.
COMPRESSED_LARGEST = 46
TINY = np.float32(1e-30)  # scale of an output channel if all its weights are 0


class ComparedText(NamedTuple):
    ids: list[int]  # symbol ids of the compared text
    speaker: str | None = None  # speaker of the text; None for a single-speaker model


def encode(
    model: Tacotron2, text: torch.Tensor, speaker: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the encoder memory of one text, and the projection of this memory for the attention.

    Args:
        speaker: one-hot vector [1, speakers]; None for a single-speaker model.
    """
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
    """Run one decoder step, including the prenet."""
    decoder = model.decoder
    for number, layer in enumerate(decoder.prenet.layers):
        frames = torch.relu(layer(frames)) * keep[number]
    sizes = [x.hidden_size for x in (decoder.attention_rnn, decoder.decoder_rnn) for _ in range(2)]
    *rnns, context = state.split([*sizes, memory.shape[2]], dim=1)
    before = DecoderState._make([*rnns, alignments[:1], alignments[1:], context])
    no_dropout = DropoutMasks((None, None), None, None)
    frames, gate, after = decoder.step(
        frames, before, memory, processed_memory, outside.bool(), no_dropout
    )
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


class ExportedFunction(nn.Module):
    """Wrap a function of a model as a module that PyTorch can export."""

    def __init__(self, model: Tacotron2, function: Callable[..., tuple[torch.Tensor, ...]]):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(self.model, *inputs)


def write_graphs(synthesizer: CheckpointSynthesizer, folder: Path) -> None:
    """Write the ONNX graphs of a voice (all graphs in GRAPHS) in float32."""
    settings = synthesizer.settings
    for name, (_, outputs) in GRAPHS.items():
        inputs = inputs_of(name, settings)
        shapes = {one: shape_of(one, settings) for one in (*inputs, *outputs)}
        examples = []
        for one in inputs:
            dtype = torch.int64 if one == "symbols" else torch.float32
            examples.append(torch.zeros([size or 7 for size in shapes[one]], dtype=dtype))
        axes = {
            one: [i for i, size in enumerate(shape) if size is None]
            for one, shape in shapes.items()
        }
        function = ExportedFunction(synthesizer.model, FUNCTIONS[name]).eval()
        path = folder / f"{name}.onnx"
        write_graph(function, examples, path, inputs, outputs, axes)
        name_weights(path, name)


def name_weights(path: Path, part: str) -> None:
    """Give the weights of an ONNX graph the names that they have in `Tacotron2`.

    PyTorch's exporter transforms some weights, and gives the transformed weights generated names,
    such as onnx::MatMul_243.

    Args:
        part: name of the graph, which is "encoder", "decoder" or "postnet".
    """
    model = onnx.load(path)
    names = own_names(model.graph, part)
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    write_bytes(path, model.SerializeToString())


def write_graph(
    module: nn.Module,
    examples: Sequence[torch.Tensor],
    file: Path | io.BytesIO,
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Sequence[int]],
) -> None:
    """Write the ONNX graph of a module.

    Args:
        examples: one example tensor per input.
        axes: {name of an input or output: indices of the dimensions with variable size}.
    """
    with warnings.catch_warnings():
        # Hide PyTorch's advice to use the newer exporter, which needs onnxscript.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(examples),
            file,  # type: ignore[arg-type]  # torch.onnx.export also accepts io.BytesIO
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: dict.fromkeys(numbers, "length") for name, numbers in axes.items()},
            opset_version=OPSET,
            dynamo=False,
        )


def quantize_lstms(path: Path) -> None:
    """Quantize the decoder LSTMs, which contain nearly all weights of the decoder, to int8. Each
    column of a weight matrix has its own scale."""
    # Hide the messages of ONNX Runtime that only its developers need.
    logging.disable(logging.WARNING)
    quantize_dynamic(
        path,
        path,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=[
            f"{x.name}_MatMul" for x in onnx.load(path).graph.node if "_rnn" in x.name
        ],
        per_channel=True,
        reduce_range=True,  # use 7 bits to avoid an overflow on CPUs without VNNI
    )
    logging.disable(logging.NOTSET)


def store_in_8_bits(path: Path, largest: int = LARGEST_INT8) -> None:
    """Store large float32 weights of a graph as 8-bit integers from -`largest` to `largest`.

    Each output channel of a weight has its own scale. The integers make the file smaller. At run
    time, the graph converts the integers back to float32.
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
            stored = (np.rint(values / scales).astype(np.int8), scales.ravel())
            graph.graph.initializer.remove(tensor)
            graph.graph.initializer.extend(map(onnx.numpy_helper.from_array, stored, names))
            restore = onnx.helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis)
            graph.graph.node.insert(0, restore)
    write_bytes(path, graph.SerializeToString())


def round_further(path: Path) -> None:
    """Round the weights from `quantize_lstms` to integers from -COMPRESSED_LARGEST to
    COMPRESSED_LARGEST."""
    graph = onnx.load(path)
    tensors = {x.name: x for x in graph.graph.initializer}
    for name, tensor in tensors.items():
        if not name.endswith("_quantized"):
            continue
        scale = tensors[f"{name.removesuffix('_quantized')}_scale"]
        weights, scales = map(onnx.numpy_helper.to_array, (tensor, scale))
        factor = np.float32(QUANTIZED_LARGEST / COMPRESSED_LARGEST)
        weights = np.rint(weights / factor).astype(np.int8)
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights, name))
        scale.CopyFrom(onnx.numpy_helper.from_array(scales * factor, scale.name))
    write_bytes(path, graph.SerializeToString())


def compress(folder: Path) -> None:
    """Replace the graphs with files compressed with LZMA. voice.json contains the checksums of the
    uncompressed graphs."""
    for name in GRAPHS:
        path = folder / f"{name}.onnx"
        compressed = path.with_name(f"{path.name}{COMPRESSED_SUFFIX}")
        write_bytes(compressed, lzma.compress(path.read_bytes()))
        path.unlink()


def write_description(folder: Path, description: VoiceDescription) -> None:
    """Write voice.json, which contains the checksums of the files in the folder."""
    checksums = {}
    for name in sorted(FILES):
        checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    write_json(folder / DESCRIPTION_FILE, asdict(replace(description, files=checksums)))


class ComparedVoice(Voice):
    """A voice that compares every output of its graphs with PyTorch's output.

    Attention amplifies rounding errors from decoder step to decoder step. Therefore, the inputs of
    the graphs are PyTorch's outputs of the previous decoder step, instead of the graphs' own
    outputs.
    """

    model: Tacotron2
    # Largest difference so far, divided by the largest output (or by 1 if all outputs are smaller).
    difference = 0.0

    def _run(self, name: str, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        arrays = super()._run(name, inputs)
        tensors = [torch.from_numpy(inputs[one]) for one in inputs_of(name, self.settings)]
        with torch.no_grad():
            expected = [output.numpy() for output in FUNCTIONS[name](self.model, *tensors)]
        for one, other in zip(arrays, expected, strict=True):
            difference = np.abs(one - other).max() / max(1, np.abs(other).max())
            # np.maximum propagates NaN
            self.difference = float(np.maximum(self.difference, difference))
        return expected


def check_graphs(folder: Path, synthesizer: CheckpointSynthesizer) -> float:
    """Return the largest difference between the outputs of the graphs and PyTorch's outputs.

    The difference is relative to the largest output. The function compares the outputs of
    CHECKED_STEPS decoder steps for the first and the last speaker.

    Raises:
        UserError: if the difference is too large to be a rounding error.
    """
    settings = synthesizer.settings
    voice = ComparedVoice(folder)
    voice.model = synthesizer.model
    ids = sorted(settings.table.spoken_ids)[:20]
    speakers: list[int | None] = [None]
    if settings.speakers:
        speakers = [*{0, len(settings.speakers) - 1}]
    for speaker in speakers:
        frames = []
        for steps in voice.decode(ids, 0, CHECKED_STEPS, speaker):
            frames += [*steps.frames]
        voice.refine(np.concatenate(frames).T)
    if not voice.difference <= MAX_DIFFERENCE:  # this comparison is also true for NaN
        raise UserError(
            "the outputs of the graphs differ from PyTorch's outputs by "
            f"{voice.difference:.1e}, relative to the largest output (expected at most "
            f"{MAX_DIFFERENCE:.0e})"
        )
    return voice.difference


def compare(exact: Voice, voice: Voice, texts: list[ComparedText]) -> str:
    """Return one line about the differences between a voice and the float32 voice `exact`."""
    differences = []
    num_same = 0
    for text in progress_bar("Comparing", len(texts), " texts", iterable=texts):
        mels = []
        for one in (exact, voice):
            stream = one.stream_mels(
                text.ids, max_symbols=len(text.ids), retries=0, speaker=text.speaker
            )
            mels.append(np.concatenate([*stream], axis=1))
        frames = min(mel.shape[1] for mel in mels)
        differences.append(np.abs(mels[0][:, :frames] - mels[1][:, :frames]).mean())
        num_same += mels[0].shape == mels[1].shape
    return (
        f"{voice.description.weights} compared with fp32 on {len(texts)} texts (same dropout): the "
        f"log-mels differ by {np.mean(differences):.3f} on average, and {num_same} of {len(texts)} "
        "have the same length"
    )


def export_voice(
    synthesizer: CheckpointSynthesizer,
    folder: Path,
    texts: list[ComparedText] | None,
    compressed: bool = False,
) -> None:
    """Export a model, which must be on the CPU, as a voice. Print how much the outputs of the voice
    differ from the outputs of the model.

    The outputs of the float32 graphs are compared with PyTorch's outputs before the weights are
    quantized to int8. If the export fails, the folder is not created.

    Args:
        texts: texts for comparing the int8 voice with the float32 voice; None: keep the weights in
            float32.
        compressed: whether to round the weights further and compress the graphs with LZMA.

    Raises:
        UserError: if the outputs of the graphs differ from PyTorch's outputs by more than rounding
            errors.
    """
    settings = synthesizer.settings
    training = synthesizer.training
    description = VoiceDescription(
        format=2,
        weights="fp32",
        checkpoint=Path(synthesizer.source).name,
        epochs=training.epochs,
        longest_text=training.longest_text,
        statistics=training.statistics,
        symbols=list(settings.table.symbols),
        hparams=asdict(settings),
        recipe=__version__,
        versions={name: metadata.version(name) for name in ("torch", "onnx", "onnxruntime")},
        files={},
        speaker_statistics=[*training.speaker_statistics],
        text_rules=training.text_rules,
        trained_phones=training.trained_phones,
    )
    with folder_made_whole(folder) as made:
        write_graphs(synthesizer, made)
        (made / FILTERS_FILE).write_bytes(synthesizer.griffin_lim.filters.tobytes())
        write_description(made, description)
        difference = check_graphs(made, synthesizer)
        print(
            "largest difference between the outputs of the fp32 graphs and PyTorch's outputs: "
            f"{difference:.1e}, relative to the largest output ({CHECKED_STEPS} decoder steps)"
        )
        if texts is not None:
            num_steps = MAX_FRAMES // settings.n_frames_per_step + 1
            limit = f"max_decoder_steps={min(settings.max_decoder_steps, num_steps)}"
            exact = Voice(made, limit)
            quantize(made, compressed)
            weights: Literal["packed", "int8"] = "packed" if compressed else "int8"
            write_description(made, replace(description, weights=weights))
            if compressed:
                compress(made)
            print(compare(exact, Voice(made, limit), texts))
        size = sum(file.stat().st_size for file in made.iterdir()) / 1e6
    print(f"wrote {folder}, {size:.1f} MB")
    speaker = " --speaker NAME" if len(settings.speakers) > 1 else ""
    command = f"python synthesize.py --voice {folder}{speaker} --text ... -o out.wav"
    print(f"To synthesize speech, run: {command}")


def quantize(folder: Path, compressed: bool) -> None:
    quantize_lstms(folder / "decoder.onnx")
    if compressed:
        round_further(folder / "decoder.onnx")
    largest = COMPRESSED_LARGEST if compressed else LARGEST_INT8
    for name in GRAPHS:
        store_in_8_bits(folder / f"{name}.onnx", largest)
