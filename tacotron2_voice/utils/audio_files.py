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
    """Encode samples [N] as an audio file.

    `kind` and `subtype` are the names that the package soundfile uses for formats.
    """
    import soundfile

    # Encode in memory, because errors of libsndfile about files do not contain the reason.
    content = io.BytesIO()
    soundfile.write(content, samples, sampling_rate, subtype, format=kind)
    return content.getbuffer()


def write_wav(path: str | Path, samples: np.ndarray, sampling_rate: int) -> None:
    """Write samples [N] as a 16-bit WAV file. Samples that exceed 1 are scaled down.

    Raises:
        UserError: if a sample is not finite.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise UserError(f"{path}: samples contain NaN or infinity; nothing was written")
    write_bytes(path, encode(samples / max(peak, 1.0), sampling_rate))


def write_mel(path: Path, mel: np.ndarray) -> None:
    """Write a log-mel [n_mels, frames] as a .npy file, atomically."""
    # Encode in memory, because numpy does not raise an error if its last write to a file fails.
    array = io.BytesIO()
    np.save(array, mel)
    write_bytes(path, array.getbuffer())
