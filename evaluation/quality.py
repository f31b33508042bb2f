"""How natural speech sounds, as a model of listeners' scores says: DistillMOS (Stahl and Gamper
2025), which is small, runs offline, and was not trained here.

    judge = DistillMos()
    judge.score(samples, 22050)     # from 1 to 5

Such a judge compares systems on the same texts; it does not say how people hear one.
"""

import contextlib
import io
import sys
import types

import numpy as np
import torch

from evaluation.recognizers import resampled
from tacotron2_voice.utils.errors import UserError


class DistillMos:
    """UserError if the package `distillmos` is not installed."""

    def __init__(self) -> None:
        _allow_no_torchaudio()
        try:
            from distillmos import ConvTransformerSQAModel
        except ImportError as error:
            fix = "pip install --no-deps -r requirements/distillmos.txt, or leave out --quality"
            raise UserError(f"--quality: {error}; {fix}") from None
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a path
            self._model = ConvTransformerSQAModel().eval()

    @torch.inference_mode()
    def score(self, samples: np.ndarray, sampling_rate: int) -> float:
        """The score of float samples [N] in [-1, 1]."""
        sound = torch.from_numpy(resampled(samples, sampling_rate)).float()
        return float(self._model(sound[None]))


def _allow_no_torchaudio() -> None:
    """distillmos imports torchaudio, which only its command line uses, and whose wheels do not load
    beside the CPU build of torch."""
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
