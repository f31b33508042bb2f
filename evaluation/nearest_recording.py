"""Find the recording that is nearest to synthesized speech, in any language.

    cepstra = [mel_cepstra(read_audio(x.path, hparams), hparams) for x in recordings]
    nearest = nearest_recordings(recordings, cepstra, spoken_cepstra)

The distance is computed from mel-cepstra aligned with dynamic time warping, as in mel-cepstral
distortion (Kubichek 1993). Because the frames are aligned, the distance does not depend on the
tempo of the speech. Because the mel-cepstra do not contain the level, the distance does not depend
on the level of the speech.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.fft import dct

from audio import log_mel_spectrogram
from evaluation.recordings import Recording
from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.utils.console import progress_bar

# Coefficients of the mel-cepstra to compare, without coefficient 0, which contains only the level.
CEPSTRA = slice(1, 13)


def mel_cepstra(samples: torch.Tensor, hparams: VoiceSettings) -> np.ndarray:
    """Return the mel-cepstra [12, frames] of samples [N], after subtracting the mean of each
    coefficient."""
    log_mel = log_mel_spectrogram(samples, hparams).numpy()
    cepstra = dct(log_mel, axis=0, norm="ortho")[CEPSTRA]
    return cepstra - cepstra.mean(axis=1, keepdims=True)


def warped_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean Euclidean distance between frames that dynamic time warping has aligned. `a`
    and `b` are arrays [coefficients, frames]."""
    import librosa

    costs, path = librosa.sequence.dtw(a, b)
    return float(costs[-1, -1] / len(path))


def nearest_recordings(
    recordings: Sequence[Recording], recorded: Sequence[np.ndarray], spoken: Sequence[np.ndarray]
) -> list[int]:
    """Return, for each synthesized text, the index of the most similar recording of the same
    speaker.

    Args:
        recorded: mel-cepstra [12, frames] of the recordings.
        spoken: mel-cepstra [12, frames] of the model's speech for the same texts.
    """
    nearest: list[int] = []
    pairs = zip(recordings, spoken, strict=True)
    for recording, cepstra in progress_bar("Comparing", len(recordings), " texts", iterable=pairs):
        distances = [
            warped_distance(cepstra, other) if own.speaker == recording.speaker else np.inf
            for own, other in zip(recordings, recorded, strict=True)
        ]
        nearest.append(int(np.argmin(distances)))
    return nearest
