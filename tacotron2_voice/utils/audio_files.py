"""Writes sounds and log-mels as files."""

import io
from pathlib import Path

import numpy as np

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_bytes


def encode(
    samples: np.ndarray, sampling_rate: int, kind: str = "WAV", subtype: str = "PCM_16"
) -> memoryview:
    """The content of a sound file of samples [N], by soundfile's names of format and subtype."""
    import soundfile

    content = io.BytesIO()  # libsndfile, writing to the disk, would not say why that fails
    soundfile.write(content, samples, sampling_rate, subtype, format=kind)
    return content.getbuffer()


def write_wav(path: str | Path, samples: np.ndarray, sampling_rate: int) -> None:
    """Write samples [N] as 16-bit WAV, scaled down if louder than 1; UserError if not finite."""
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise UserError(f"{path}: samples hold nan or infinity; nothing was written")
    write_bytes(path, encode(samples / max(peak, 1.0), sampling_rate))


def write_mel(path: Path, mel: np.ndarray) -> None:
    """Write a log-mel [n_mels, frames] as .npy, in one step."""
    array = io.BytesIO()  # numpy, writing to the disk, would not notice that its last bytes fail
    np.save(array, mel)
    write_bytes(path, array.getbuffer())
