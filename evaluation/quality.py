"""Predict how listeners would rate the naturalness of speech.

    quality_model = DistillMos()
    quality_model.score(samples, 22050)  # 1 to 5

The model DistillMOS (Stahl and Gamper 2025) predicts mean opinion scores. Use the scores to compare
models that speak the same texts. The scores do not replace listening tests.
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
    """The DistillMOS model.

    Raises:
        UserError: if the package `distillmos` is not installed.
    """

    def __init__(self) -> None:
        _allow_no_torchaudio()
        try:
            from distillmos import ConvTransformerSQAModel
        except ImportError as error:
            fix = "pip install --no-deps -r requirements/distillmos.txt"
            raise UserError(f"--quality: {error}; {fix}") from None
        # Hide the output of the model's constructor, which prints a path.
        with contextlib.redirect_stdout(io.StringIO()):
            self._model = ConvTransformerSQAModel().eval()

    @torch.inference_mode()
    def score(self, samples: np.ndarray, sampling_rate: int) -> float:
        """Return the score from 1 to 5 for float samples [N] in [-1, 1]."""
        audio = torch.from_numpy(resampled(samples, sampling_rate)).float()
        return float(self._model(audio[None]))


def _allow_no_torchaudio() -> None:
    """If torchaudio cannot be imported, replace it with an empty module.

    The package distillmos imports torchaudio, but only the command-line program of distillmos uses
    torchaudio. With the CPU build of PyTorch, torchaudio wheels cannot be imported.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
