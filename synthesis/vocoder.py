"""Loads a vocoder of one's own, which takes the place of Griffin-Lim (docs/voices.md).

speaker.vocoder = load_vocoder(Path("hifigan.onnx"), speaker.hparams)
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from common.files import naming, read_bytes
from hparams import HParams
from synthesis.griffin_lim import SILENCE
from synthesis.onnx_graph import MAX_GRAPH_BYTES, Graph
from synthesis.speaker import Vocoder

TORCHSCRIPT_BEGINS = b"PK\x03\x04"  # it is a zip; an ONNX file never begins so
TRIAL_FRAMES = 16


def load_vocoder(path: str | Path, hparams: HParams, threads: int = 1) -> Vocoder:
    """A vocoder in a file of ONNX, or of TorchScript, which needs torch.

    Args:
        path: a file from log-mel [1, n_mels, T] to sound [1, 1, T * hop_length]. The metadata of an
            ONNX file, or an attribute of a TorchScript module, may give a `sampling_rate`.
        threads: of an ONNX graph.

    Raises:
        UserError: if there is no vocoder in the file, and as `checked_vocoder`.
    """
    with naming(path):
        content = read_bytes(path, MAX_GRAPH_BYTES)
        load = _load_torchscript if content.startswith(TORCHSCRIPT_BEGINS) else _load_onnx
        run, sampling_rate = load(content, threads)
    return checked_vocoder(path, run, sampling_rate, hparams)


def _load_onnx(content: bytes, threads: int) -> tuple[Vocoder, Any]:
    graph = Graph(content, threads)
    if not graph.inputs:
        raise UserError("a graph without inputs, expected mel [1, n_mels, T]; take another")
    run = lambda mel: graph.run({graph.inputs[0].name: mel[None]})[0]  # noqa: E731
    return run, graph.session.get_modelmeta().custom_metadata_map.get("sampling_rate")


def _load_torchscript(content: bytes, threads: int) -> tuple[Vocoder, Any]:
    try:
        import torch
    except ModuleNotFoundError:
        fix = "pip install torch, or convert it to ONNX (docs/voices.md)"
        raise UserError(f"a TorchScript module, which needs PyTorch; {fix}") from None
    try:
        module = torch.jit.load(io.BytesIO(content), "cpu").eval()
    except RuntimeError as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UserError(f"no TorchScript ({reason}); name a TorchScript or ONNX file") from None

    def run(mel: np.ndarray) -> np.ndarray:
        try:
            with torch.no_grad():
                return module(torch.from_numpy(mel)[None]).numpy()
        except Exception as error:  # of many kinds
            last = (str(error).strip().splitlines() or [""])[-1]
            raise UserError(f"a module that cannot be run on a mel ({last:.120})") from None

    return run, getattr(module, "sampling_rate", None)


def checked_vocoder(
    path: str | Path, run: Vocoder, sampling_rate: Any, hparams: HParams
) -> Vocoder:
    """`run`, from log-mel [n_mels, T] to sound [1, 1, T * hop_length], as a function to [T *
    hop_length]. It is tried first: UserError, also later, if its sound is of another shape or no
    floats, and if `sampling_rate`, where there is one, is not the model's."""
    if sampling_rate is not None and str(sampling_rate) != str(hparams.sampling_rate):
        rates = f"{str(sampling_rate)!r:.30} Hz, the model has {hparams.sampling_rate}"
        raise UserError(f"{path}: a vocoder of {rates}; take another")

    def checked(mel: np.ndarray) -> np.ndarray:
        with naming(path):
            sound = run(mel)
        expected = (1, 1, mel.shape[1] * hparams.hop_length)
        shape = getattr(sound, "shape", type(sound))  # some graphs give a list
        if shape != expected or sound.dtype.kind != "f":
            hop = f"its hop is not hop_length={hparams.hop_length}"
            raise UserError(
                f"{path}: a vocoder that makes {shape} of {mel.shape[1]} frames, expected "
                f"{expected} of floats: {hop}, or it is none"
            )
        if not np.isfinite(sound).all():
            raise UserError(f"{path}: a vocoder that gives nan or infinity; take another")
        return sound[0, 0]

    for frames in (TRIAL_FRAMES, TRIAL_FRAMES + 1):
        checked(np.full((hparams.n_mel_channels, frames), SILENCE, np.float32))
    return checked
