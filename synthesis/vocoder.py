"""Loads a vocoder of one's own, which takes the place of Griffin-Lim (docs/voices.md).

speaker.vocoder = load_vocoder(Path("hifigan.onnx"), speaker.hparams)
"""

from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from common.files import naming, read_bytes
from hparams import HParams
from synthesis import voice
from synthesis.griffin_lim import SILENCE
from synthesis.onnx_graph import MAX_GRAPH_BYTES, Graph, refuse_operators
from synthesis.speaker import Vocoder

ONNX_BEGINS = b"\x08"  # the version of its format
ZIP_BEGINS, PICKLE_BEGINS = b"PK\x03\x04", b"\x80"  # of what torch saves
TRIAL_FRAMES = 16
# Those of voices, and what vocoders consist of: none runs others, loops, draws, or knows files.
OPERATORS = voice.OPERATORS | set(
    "Abs And AveragePool BatchNormalization Ceil Clip ConvInteger ConvTranspose Cos CumSum "
    "DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor GRU "
    "GatherElements GatherND Gelu GlobalAveragePool Greater GreaterOrEqual HardSigmoid HardSwish "
    "Identity InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log Max MaxPool "
    "Min Mish Mod Neg Not Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range "
    "Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Resize Round "
    "ScatterElements ScatterND Selu Sign Sin Softplus Softsign SpaceToDepth Sqrt Sub Sum Tile "
    "TopK Trilu Upsample".split()
)


def load_vocoder(path: str | Path, hparams: HParams, threads: int = 1) -> Vocoder:
    """A vocoder in an ONNX file, whose graph is checked before it runs, as a voice's are.

    Args:
        path: a file from log-mel [1, n_mels, T] to sound [1, 1, T * hop_length]. Its metadata may
            give a `sampling_rate`.
        threads: of the computing.

    Raises:
        UserError: if there is no vocoder in the file, and as `checked_vocoder`.
    """
    with naming(path):
        content = read_bytes(path, MAX_GRAPH_BYTES)
        _refuse_no_onnx(content)
        refuse_operators(content, OPERATORS, "no vocoder needs", "export it without them")
        graph = Graph(path, content, threads)
        _refuse_other_inputs(graph, hparams.n_mel_channels)
    rate = graph.session.get_modelmeta().custom_metadata_map.get("sampling_rate")

    def run(mel: np.ndarray) -> np.ndarray:
        seconds = mel.shape[1] * hparams.hop_length / hparams.sampling_rate
        return graph.run({graph.inputs[0].name: mel[None]}, seconds)[0]

    return checked_vocoder(path, run, rate, hparams)


def _refuse_other_inputs(graph: Graph, n_mels: int) -> None:
    """What only running shows in ONNX Runtime's words."""
    expected = f"expected one, log-mel [1, {n_mels}, T] of float32"
    if len(graph.inputs) != 1:
        names = ", ".join(x.name for x in graph.inputs)
        raise UserError(f"{len(graph.inputs)} inputs ({names:.60}), {expected}; take another")
    [mel] = graph.inputs
    sizes = [x if type(x) is int else None for x in mel.shape]
    if len(sizes) == 3 and sizes[:2] == [1, n_mels] and sizes[2] is not None:
        fix = 'export it with dynamic_axes={"mel": {2: "frames"}}, as docs/voices.md says'
        raise UserError(f"an input {sizes} of {sizes[2]} frames, {expected} of any length; {fix}")
    fits = len(sizes) == 3 and sizes[0] in (1, None) and sizes[1] in (n_mels, None)
    if not fits or mel.type != "tensor(float)":
        raise UserError(f"an input {sizes} of {mel.type}, {expected}; take another")


def _refuse_no_onnx(content: bytes) -> None:
    """What torch writes can run code of its own, so none of it is loaded."""
    if content.startswith(ONNX_BEGINS):
        return
    kind = "neither ONNX nor weights"
    if content.startswith(ZIP_BEGINS) and b"/code/" in content:
        kind = "a TorchScript module"
    elif content.startswith((ZIP_BEGINS, PICKLE_BEGINS)):
        kind = "a file of weights (torch.save)"
    raise UserError(f"{kind}, expected an ONNX file; convert it to ONNX, as docs/voices.md says")


def checked_vocoder(
    path: str | Path, run: Vocoder, sampling_rate: Any, hparams: HParams
) -> Vocoder:
    """`run`, from log-mel [n_mels, T] to sound [1, 1, T * hop_length], as a function to [T *
    hop_length]. It is tried first: UserError, also later, if its sound is of another shape or no
    floats, and if `sampling_rate`, where there is one, is not the model's."""
    if sampling_rate is not None and not _is_number(sampling_rate, hparams.sampling_rate):
        rates = f"{str(sampling_rate)!r:.30} Hz, the model has {hparams.sampling_rate}"
        raise UserError(f"{path}: a vocoder of {rates}; take another")

    def checked(mel: np.ndarray) -> np.ndarray:
        with naming(path):
            sound = run(mel)
        expected = (1, 1, mel.shape[1] * hparams.hop_length)
        shape = getattr(sound, "shape", type(sound))  # some graphs give a list
        if shape == expected and sound.dtype.kind != "f":
            raise UserError(f"{path}: a vocoder that makes {sound.dtype}, expected floats")
        if shape != expected:
            hop = f"its hop is not hop_length={hparams.hop_length}"
            raise UserError(
                f"{path}: a vocoder that makes {shape} of {mel.shape[1]} frames, expected "
                f"{expected}: {hop}, or it is none"
            )
        if not np.isfinite(sound).all():
            raise UserError(f"{path}: a vocoder that gives nan or infinity; take another")
        return sound[0, 0]

    for frames in (TRIAL_FRAMES, TRIAL_FRAMES + 1):
        checked(np.full((hparams.n_mel_channels, frames), SILENCE, np.float32))
    return checked


def _is_number(value: Any, number: int) -> bool:
    try:
        return float(value) == number
    except (TypeError, ValueError):
        return False
