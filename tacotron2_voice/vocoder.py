"""Load a neural vocoder from an ONNX file, to replace Griffin-Lim (docs/guides/deploy.md).

voice.vocoder = load_vocoder("vocoder.onnx", voice.settings)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacotron2_voice.griffin_lim import SILENCE
from tacotron2_voice.onnx_graph import MAX_GRAPH_BYTES, OnnxGraph, check_operators
from tacotron2_voice.settings import MEL_SETTINGS, VoiceSettings
from tacotron2_voice.synthesizer import Vocoder
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_bytes
from tacotron2_voice.voice import OPERATORS as VOICE_OPERATORS

ONNX_START = b"\x08"  # first byte of an ONNX file: the key of the field `ir_version`
EXPORT = "scripts/export_vocoder.py exports HiFi-GAN (docs/guides/deploy.md)"
TRIAL_FRAMES = 16
# Operators of exported voices and of common vocoders. Loops, random numbers and nested graphs are
# not included.
OPERATORS = VOICE_OPERATORS | set(
    "Abs And AveragePool BatchNormalization Ceil Clip ConvInteger ConvTranspose Cos CumSum "
    "DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor GRU "
    "GatherElements GatherND Gelu GlobalAveragePool Greater GreaterOrEqual HardSigmoid HardSwish "
    "Identity InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log Max MaxPool "
    "Min Mish Mod Neg Not Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range "
    "Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Resize Round "
    "ScatterElements ScatterND Selu Sign Sin Softplus Softsign SpaceToDepth Sqrt Sub Sum Tile "
    "TopK Trilu Upsample".split()
)


def load_vocoder(path: str | Path, settings: VoiceSettings, threads: int = 1) -> Vocoder:
    """Load a vocoder, and return a function that converts a log-mel [n_mels, T] to audio [T *
    hop_length].

    The graph must have one input, a log-mel [1, n_mels, T], and return audio [1, 1, T *
    hop_length]. If the metadata of the graph contains settings from MEL_SETTINGS, these settings
    must equal the settings of the voice.

    Args:
        threads: number of CPU threads.

    Raises:
        UserError: if the file is not an ONNX graph with this input and output. The returned
            function also raises UserError if the audio has the wrong shape or is not finite.
    """
    with naming(path):
        content = read_bytes(path, MAX_GRAPH_BYTES)
        # Reject PyTorch files here, because they can contain code and must never be loaded.
        if not content.startswith(ONNX_START):
            raise UserError(f"not an ONNX file. {EXPORT}")
        check_operators(content, OPERATORS, "a vocoder")
        graph = OnnxGraph(content, threads)
        _check_input(graph, settings.n_mel_channels)
    check_mel_settings(path, graph.session.get_modelmeta().custom_metadata_map, settings)
    name = graph.inputs[0].name

    def run(mel: np.ndarray) -> np.ndarray:
        return graph.run({name: mel[None]})[0]

    return checked_vocoder(path, run, settings)


def check_mel_settings(
    path: str | Path, vocoder_settings: Mapping[str, Any], settings: VoiceSettings
) -> None:
    """Check that a vocoder was trained with the log-mel settings of the voice.

    Settings that the vocoder does not contain are not checked.

    Args:
        path: the file, for the message.
        vocoder_settings: {name in MEL_SETTINGS: value}, with numbers or strings as values.

    Raises:
        UserError: if a setting of the vocoder differs from the setting of the voice. The error
            message lists all settings that differ.
    """
    different = []
    for name in MEL_SETTINGS:
        if name in vocoder_settings:
            value = vocoder_settings[name]
            expected = getattr(settings, name)
            try:
                equal = float(value) == expected
            except (TypeError, ValueError):
                equal = False
            if not equal:
                different.append(f"{name}={value!s:.30} (expected {expected})")
    if different:
        problem = "the vocoder and the voice were trained with different log-mel settings"
        raise UserError(f"{path}: {problem}: {', '.join(different)}")


def checked_vocoder(path: str | Path, run: Vocoder, settings: VoiceSettings) -> Vocoder:
    """Wrap `run` in a function that checks the shape and the values of the audio.

    `run` returns audio [1, 1, T * hop_length]; the new function returns audio [T * hop_length]. The
    new function is tested with silence before it is returned.

    Raises:
        UserError: if the audio has the wrong shape or type, or if it is not finite.
    """

    def checked(mel: np.ndarray) -> np.ndarray:
        with naming(path):
            audio = run(mel)
        frames = mel.shape[1]
        expected = (1, 1, frames * settings.hop_length)
        # The output of some ONNX graphs is a list instead of an array.
        shape = getattr(audio, "shape", type(audio))
        if shape != expected:
            problem = f"the vocoder returns {shape} for {frames} frames (expected {expected})"
            raise UserError(f"{path}: {problem}")
        if audio.dtype.kind != "f":
            raise UserError(f"{path}: the vocoder returns {audio.dtype} (expected floats)")
        if not np.isfinite(audio).all():
            raise UserError(f"{path}: the vocoder returns NaN or infinity")
        return audio[0, 0]

    for frames in (TRIAL_FRAMES, TRIAL_FRAMES + 1):
        checked(np.full((settings.n_mel_channels, frames), SILENCE, np.float32))
    return checked


def _check_input(graph: OnnxGraph, n_mels: int) -> None:
    """Check that the graph has one input, a log-mel of any length."""
    shapes = []
    for one in graph.inputs:
        sizes = [size if type(size) is int else None for size in one.shape]
        shapes.append(f"{one.type} {sizes}")
    accepted = [
        f"tensor(float) [{batch}, {mels}, None]" for batch in (1, None) for mels in (n_mels, None)
    ]
    if len(shapes) != 1 or shapes[0] not in accepted:
        expected = f"expected one float32 log-mel [1, {n_mels}, T] of any length T"
        raise UserError(f"the graph's inputs are {', '.join(shapes):.200} ({expected})")
