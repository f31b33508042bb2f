"""Loads a vocoder of one's own, which takes the place of Griffin-Lim (docs/voices.md).

speaker.vocoder = load_vocoder(Path("hifigan.onnx"), speaker.hparams)
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hparams import MEL_SETTINGS, HParams
from tacotron2_voice import voice
from tacotron2_voice.griffin_lim import SILENCE
from tacotron2_voice.onnx_graph import MAX_GRAPH_BYTES, Graph, refuse_operators
from tacotron2_voice.synthesizer import Vocoder
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_bytes

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
            give settings of MEL_SETTINGS, which are then compared with `hparams`.
        threads: of the computing.

    Raises:
        UserError: if there is no vocoder in the file, and as `checked_vocoder`.
    """
    with naming(path):
        content = read_bytes(path, MAX_GRAPH_BYTES)
        _refuse_no_onnx(path, content)
        refuse_operators(content, OPERATORS, "no vocoder needs", "export it without them")
        graph = Graph(path, content, threads)
        _refuse_other_inputs(graph, hparams.n_mel_channels)
    refuse_other_mels(path, graph.session.get_modelmeta().custom_metadata_map, hparams)

    def run(mel: np.ndarray) -> np.ndarray:
        seconds = mel.shape[1] * hparams.hop_length / hparams.sampling_rate
        return graph.run({graph.inputs[0].name: mel[None]}, seconds)[0]

    return checked_vocoder(path, run, hparams)


def _refuse_other_inputs(graph: Graph, n_mels: int) -> None:
    """What only running shows in ONNX Runtime's words."""
    expected = f"expected one, log-mel [1, {n_mels}, T] of float32"
    if len(graph.inputs) != 1:
        names = ", ".join(x.name for x in graph.inputs)
        raise UserError(f"{len(graph.inputs)} inputs ({names:.60}), {expected}; take another")
    [mel] = graph.inputs
    sizes = [x if type(x) is int else None for x in mel.shape]
    if len(sizes) == 3 and sizes[:2] == [1, n_mels] and sizes[2] is not None:
        fix = f'give torch.onnx.export dynamic_axes={{"{mel.name:.60}": {{2: "frames"}}}}'
        raise UserError(f"an input {sizes} of {sizes[2]} frames, {expected} of any length; {fix}")
    fits = len(sizes) == 3 and sizes[0] in (1, None) and sizes[1] in (n_mels, None)
    if not fits or mel.type != "tensor(float)":
        raise UserError(f"an input {sizes} of {mel.type}, {expected}; take another")


def _refuse_no_onnx(path: str | Path, content: bytes) -> None:
    """What torch writes can run code of its own, so none of it is loaded."""
    if content.startswith(ONNX_BEGINS):
        return
    kind, fix = "neither ONNX nor weights", "convert it to ONNX, as docs/voices.md says"
    if content.startswith(ZIP_BEGINS) and b"/code/" in content:
        kind = "a TorchScript module"
    elif content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        kind, fix = "a file of weights (safetensors)", "export its model to ONNX (docs/voices.md)"
    elif content.startswith((ZIP_BEGINS, PICKLE_BEGINS)):
        kind = "a file of weights (torch.save)"
        export = f"python scripts/export_vocoder.py --weights {shlex.quote(str(path))}"
        fix = f"the recipe makes one of HiFi-GAN's: {export} -o vocoder.onnx (docs/voices.md)"
    raise UserError(f"{kind}, expected an ONNX file; {fix}")


def refuse_other_mels(path: str | Path, settings: Mapping[str, Any], hparams: HParams) -> None:
    """UserError if a vocoder's mel settings, as far as they are known, are not those of the voice.

    Args:
        path: of the file that the message names.
        settings: values by their names in MEL_SETTINGS, or the texts of such values.
    """
    known = [name for name in MEL_SETTINGS if name in settings]
    other = [name for name in known if not _is_number(settings[name], getattr(hparams, name))]
    if other:
        theirs = ", ".join(f"{name}={settings[name]!s:.30}" for name in other)
        ours = ", ".join(f"{name}={getattr(hparams, name)}" for name in other)
        fix = "take a vocoder that was trained on mels as the voice makes them"
        raise UserError(f"{path}: a vocoder for {theirs}, but the voice has {ours}; {fix}")


def _is_number(text: Any, number: float) -> bool:
    try:
        return float(text) == number
    except (TypeError, ValueError):
        return False


def checked_vocoder(path: str | Path, run: Vocoder, hparams: HParams) -> Vocoder:
    """`run`, from log-mel [n_mels, T] to sound [1, 1, T * hop_length], as a function to [T *
    hop_length]. It is tried first: UserError, also later, if its sound is of another shape or no
    floats."""

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
