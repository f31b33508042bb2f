"""Read the weights of an exported voice into a model's state, to start training from this voice.

    state = state_of_voice(Path("voices/english"))
    state["state_dict"]["embedding.weight"]

In the graphs of a voice, each convolution is merged with the batch norm that follows it, so the
batch norms in the returned state have no effect. Reading the weights of a voice requires the
package onnx.
"""

import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes, read_json
from tacotron2_voice.voice import COMPRESSED_SUFFIX, DESCRIPTION_FILE, GRAPHS, Voice

NORM_EPSILON = torch.nn.BatchNorm1d(1).eps
OWN_NAME = re.compile(r"model\.(.+?)(_Transposed)?(_quantized)?")
PRENET_LAYER = re.compile(r"/layers\.(\d+)/linear_layer/MatMul")


def is_voice(path: Path) -> bool:
    return (path / DESCRIPTION_FILE).is_file()


def state_of_voice(folder: Path) -> dict[str, Any]:
    """Return `state_dict` and `hparams` of an exported voice, in the format of a checkpoint.

    8-bit weights are converted to float32.

    Raises:
        UserError: if the package onnx is missing, or if the folder is not a voice from this
            project.
    """
    try:
        import onnx
    except ImportError:
        raise UserError(
            f"{folder}: to read the weights of a voice, install the packages in "
            "requirements/onnx.txt"
        ) from None
    # The constructor raises an error if a checksum, a graph or a setting is wrong.
    Voice(folder)
    description = read_json(folder / DESCRIPTION_FILE)
    weights = dict[str, np.ndarray]()
    for name in GRAPHS:
        path = folder / f"{name}.onnx"
        compressed = path.with_name(f"{path.name}{COMPRESSED_SUFFIX}")
        if compressed.exists():
            content = lzma.decompress(read_bytes(compressed))
        else:
            content = read_bytes(path)
        weights |= weights_of_graph(onnx.load_from_string(content).graph, name)
    settings = dict(description["hparams"])
    settings["speakers"] = tuple(settings.get("speakers", ()))
    state = {name: torch.from_numpy(np.array(x, np.float32)) for name, x in weights.items()}
    return {"state_dict": state, "hparams": settings}


def weights_of_graph(graph: Any, name: str) -> dict[str, np.ndarray]:
    """Return {name in `Tacotron2`: weight} for the weights of an ONNX graph.

    `name` is "encoder", "decoder" or "postnet".
    """
    tensors = _tensors(graph)
    # The graphs of older voices, such as voices/english, contain the generated names.
    names = own_names(graph, name)
    weights = {}
    for tensor, values in tensors.items():
        match = OWN_NAME.fullmatch(names.get(tensor, tensor))
        if match:
            is_transposed = match[2] is not None
            weights[match[1]] = values.T if is_transposed else values
            if match[1].endswith(".0.conv.bias"):
                weights |= _neutral_norm(match[1].removesuffix("0.conv.bias"), len(values))
    for node in graph.node:
        if node.op_type == "LSTM":
            weights |= _lstm(*(tensors[x] for x in node.input[1:4]))
    return weights


def own_names(graph: Any, part: str) -> dict[str, str]:
    """Return {generated name: name in the model} for the weights whose names PyTorch's exporter
    replaced.

    Args:
        part: name of the graph, which is "encoder", "decoder" or "postnet".
    """
    names: dict[str, str] = {}
    num_convolutions = 0
    for node in graph.node:
        if node.op_type == "Conv" and len(node.input) == 3:
            layer = f"model.{part}.convolutions.{num_convolutions}.0.conv"
            names |= {node.input[1]: f"{layer}.weight", node.input[2]: f"{layer}.bias"}
            num_convolutions += 1
        elif node.op_type == "LSTM":
            names |= {node.input[1 + i]: f"encoder.lstm.{x}" for i, x in enumerate("WRB")}
        elif node.op_type == "MatMul" and (layer := _linear_layer(node.name)):
            names[node.input[1]] = f"model.{layer}.linear_layer.weight_Transposed"
    return {name: own for name, own in names.items() if name.startswith("onnx::")}


def _linear_layer(node: str) -> str:
    """Return the name of the linear layer that a node of the graph computes, or ""."""
    if match := PRENET_LAYER.fullmatch(node):
        return f"decoder.prenet.layers.{match[1]}"
    if node == "/memory_layer/linear_layer/MatMul":
        return "decoder.attention_layer.memory_layer"
    if node.startswith("/attention_layer/") and node.endswith("/linear_layer/MatMul"):
        return f"decoder{node.removesuffix('/linear_layer/MatMul').replace('/', '.')}"
    return ""


def _tensors(graph: Any) -> dict[str, np.ndarray]:
    """Return {name that the nodes use: float32 array} for the constant tensors of a graph."""
    from onnx import numpy_helper

    stored = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
    tensors = {}
    for name, values in stored.items():
        if name.endswith("_quantized"):
            scale, zero = (stored[name.replace("_quantized", x)] for x in ("_scale", "_zero_point"))
            tensors[name] = (values.astype(np.float32) - zero) * scale
        elif values.dtype == np.float32 and not name.endswith(("_scale", "_scales")):
            tensors[name] = values
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            values, scales = (stored[x] for x in node.input)
            shape = [1] * values.ndim
            axis = next(x.i for x in node.attribute if x.name == "axis")
            shape[axis] = len(scales)
            tensors[node.output[0]] = values.astype(np.float32) * scales.reshape(shape)
    return tensors


def _neutral_norm(layer: str, channels: int) -> dict[str, np.ndarray]:
    """Return the weights of a batch norm that has no effect. Their names begin with `layer`."""
    return {
        f"{layer}1.weight": np.ones(channels),
        f"{layer}1.bias": np.zeros(channels),
        f"{layer}1.running_mean": np.zeros(channels),
        f"{layer}1.running_var": np.full(channels, 1 - NORM_EPSILON),
        f"{layer}1.num_batches_tracked": np.zeros(()),
    }


def _lstm(inputs: np.ndarray, hidden: np.ndarray, biases: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of the encoder LSTM. The order of gates is i, o, f, c in ONNX, but i, f,
    g, o in PyTorch."""

    def gates(x: np.ndarray) -> np.ndarray:
        i, o, f, c = np.split(x, 4)
        return np.concatenate([i, f, c, o])

    weights = {}
    for direction, suffix in enumerate(("", "_reverse")):
        bias_ih, bias_hh = np.split(biases[direction], 2)
        weights[f"encoder.lstm.weight_ih_l0{suffix}"] = gates(inputs[direction])
        weights[f"encoder.lstm.weight_hh_l0{suffix}"] = gates(hidden[direction])
        weights[f"encoder.lstm.bias_ih_l0{suffix}"] = gates(bias_ih)
        weights[f"encoder.lstm.bias_hh_l0{suffix}"] = gates(bias_hh)
    return weights
