"""Write audio and log-mel files.

write_wav("out.wav", samples, 22050)
write_mel(Path("out.npy"), mel)
convert_wav(Path("out.wav"), Path("out.mp3"))
"""

import io
from pathlib import Path

import numpy as np

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_atomically, write_bytes

# Maps each file name extension to the names that the package soundfile uses for the format and the
# encoding.
AUDIO_FORMATS = {
    ".wav": ("WAV", "PCM_16"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
}
BLOCK_SAMPLES = 2**16  # number of samples to convert at a time


def encode(
    samples: np.ndarray, sampling_rate: int, kind: str = "WAV", subtype: str = "PCM_16"
) -> memoryview:
    """Encode samples [N] as an audio file.

    `kind` and `subtype` are the names that the package soundfile uses for format and encoding.
    """
    import soundfile

    # Encode in memory, because libsndfile does not report why a file cannot be written.
    content = io.BytesIO()
    soundfile.write(content, samples, sampling_rate, subtype, format=kind)
    return content.getbuffer()


def write_wav(path: str | Path, samples: np.ndarray, sampling_rate: int) -> None:
    """Write samples [N] as a 16-bit WAV file. If the peak exceeds 1, the samples are scaled down.

    Raises:
        UserError: if a sample is not finite.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise UserError(f"{path}: samples contain NaN or infinity; nothing was written")
    write_bytes(path, encode(samples / max(peak, 1.0), sampling_rate))


def check_sampling_rate(path: Path, sampling_rate: int) -> None:
    """Raise UserError if the format of an audio file does not support the sampling rate."""
    import soundfile

    kind, subtype = AUDIO_FORMATS[path.suffix.lower()]
    try:
        encode(np.zeros(0), sampling_rate, kind, subtype)
    except soundfile.LibsndfileError as error:
        problem = f"{kind} does not support {sampling_rate:,} Hz ({error})"
        raise UserError(f"{path}: {problem}; expected a name that ends in .wav") from None


def convert_wav(source: Path, target: Path) -> None:
    """Convert a WAV file to the format that the extension of `target` selects in AUDIO_FORMATS.

    Raises:
        UserError: if the target cannot be written. After an error, an existing file at `target` is
            unchanged.
    """
    import soundfile

    kind, subtype = AUDIO_FORMATS[target.suffix.lower()]

    def write(path: Path) -> None:
        with (
            soundfile.SoundFile(source) as wav,
            soundfile.SoundFile(path, "w", wav.samplerate, 1, subtype, format=kind) as file,
        ):
            for samples in wav.blocks(BLOCK_SAMPLES, dtype="int16"):
                file.write(samples)

    try:
        write_atomically(target, write)
    except soundfile.LibsndfileError as error:  # libsndfile does not report why writing failed
        problem = f"cannot be written ({error}); the audio is in {source}"
        raise UserError(f"{target}: {problem}") from None


def write_mel(path: Path, mel: np.ndarray) -> None:
    """Write a log-mel [n_mels, frames] as a .npy file, atomically."""
    # Encode in memory, because numpy raises no error if its last write to a file fails.
    array = io.BytesIO()
    np.save(array, mel)
    write_bytes(path, array.getbuffer())
