"""Encode audio piece by piece in the formats of the OpenAI API.

    encoder = Encoder("mp3", sampling_rate=22050)
    content = encoder.add(samples) + encoder.add(samples) + encoder.finish()

The library libsndfile encodes MP3, Opus and FLAC. Opus and raw samples (pcm) use a sampling rate of
24,000 Hz, because Opus does not support 22,050 Hz, and clients of the OpenAI API expect raw samples
at 24,000 Hz.
"""

import io
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr

from tacotron2_voice.outputs import to_int16, wav_header

OPENAI_RATE = 24_000  # Hz


class Format(NamedTuple):
    media_type: str
    sampling_rate: int | None = None  # sampling rate in Hz; None: the voice's own
    # Names of the container format and of the encoding in libsndfile.
    libsndfile: tuple[str, str] | None = None


FORMATS = {
    "mp3": Format("audio/mpeg", None, ("MP3", "MPEG_LAYER_III")),
    "opus": Format("audio/ogg", OPENAI_RATE, ("OGG", "OPUS")),
    "flac": Format("audio/flac", None, ("FLAC", "PCM_16")),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm", OPENAI_RATE),
}


class Encoder:
    """Encode samples in one of the formats in FORMATS.

    `add` returns MP3, Opus, WAV and raw samples as soon as the samples are encoded. `finish`
    returns the whole FLAC file, because a FLAC header contains the length and a checksum of all
    samples.
    """

    def __init__(self, name: str, sampling_rate: int):
        self.name = name
        self.format = FORMATS[name]
        rate = self.format.sampling_rate or sampling_rate
        self.resampler = None
        if rate != sampling_rate:
            self.resampler = soxr.ResampleStream(sampling_rate, rate, 1, dtype="float32")
        self.header = wav_header(rate) if name == "wav" else b""
        self.file: soundfile.SoundFile | None = None
        if self.format.libsndfile is not None:
            container, encoding = self.format.libsndfile
            self.content = _Content()
            options: dict[str, Any] = {}
            # Use a constant bit rate, because players estimate the length of an MP3 file from the
            # bit rate at its start.
            if name == "mp3":
                options = {"bitrate_mode": "CONSTANT", "compression_level": 0.5}
            self.file = soundfile.SoundFile(
                self.content, "w", rate, 1, encoding, format=container, **options
            )

    def add(self, samples: np.ndarray) -> bytes:
        """Encode samples [N] in the range [-1, 1], and return the next bytes of the file."""
        return self._encode(samples, is_last=False)

    def finish(self) -> bytes:
        """Return the last bytes of the file."""
        rest = self._encode(np.zeros(0, np.float32), is_last=True)
        if self.file is None:
            return rest
        self.file.close()
        return rest + self.content.take()

    def _encode(self, samples: np.ndarray, *, is_last: bool) -> bytes:
        if self.resampler is not None:
            samples = self.resampler.resample_chunk(samples.astype(np.float32), last=is_last)
            samples = np.clip(samples, -1, 1)
        if self.file is None:
            header = self.header
            self.header = b""
            return header + to_int16(samples)
        self.file.write(samples)
        return self.content.take() if self.name != "flac" else b""


class _Content(io.BytesIO):
    """Collect the bytes that libsndfile writes.

    When the file is closed, libsndfile returns to the start and rewrites the header.
    """

    num_taken = 0

    def take(self) -> bytes:
        """Return the bytes that libsndfile has written since the last call of this method."""
        new = bytes(self.getbuffer()[self.num_taken :])
        self.num_taken += len(new)
        return new
