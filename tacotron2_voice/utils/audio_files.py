"""Write audio and log-mel files.

write_wav("out.wav", samples, 22050)
write_mel(Path("out.npy"), mel)
"""

import io
from pathlib import Path

import numpy as np

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_bytes


def encode(
    samples: np.ndarray, sampling_rate: int, kind: str = "WAV", subtype: str = "PCM_16"
) -> memoryview:
    """Return the content of an audio file with samples [N]. Names of formats are those of
    soundfile."""
    import soundfile

    content = io.BytesIO()  # if libsndfile wrote the file itself, errors would have no reason
    soundfile.write(content, samples, sampling_rate, subtype, format=kind)
    return content.getbuffer()


def write_wav(path: str | Path, samples: np.ndarray, sampling_rate: int) -> None:
    """Write samples [N] as a 16-bit WAV, scaled down if they exceed 1.

    Raises:
        UserError: if samples are not finite.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise UserError(f"{path}: samples contain NaN or infinity; nothing was written")
    write_bytes(path, encode(samples / max(peak, 1.0), sampling_rate))


def write_mel(path: Path, mel: np.ndarray) -> None:
    """Write a log-mel [n_mels, frames] as .npy, atomically."""
    array = io.BytesIO()  # if numpy wrote the file itself, a failed last write would not raise
    np.save(array, mel)
    write_bytes(path, array.getbuffer())
