"""Read audio files and compute log-mel spectrograms.

Functions import librosa and soundfile themselves, because training from cached mels needs neither
package.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from hparams import HParams
from tacotron2_voice.settings import LOG_FLOOR, MEL_SETTINGS, VoiceSettings
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import open_file

SILENT_RANGE = 1e-4  # a clip is silent if its samples span at most this range (3 steps of 16 bits)
# Formats that training reads, by the names in soundfile; the first three are WAV.
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
# Limit of about 3 hours per clip: a small FLAC file of silence could exhaust memory.
MAX_SAMPLES = 2**28
MAX_OGG_PAGE = 27 + 255 + 255 * 255  # bytes; the largest page of an Ogg file
UNKNOWN_BYTES = 0x7FFFF000  # a WAV header with this size or more means that the size is unknown
# Hops and windows (in ms) that exceed the defaults by more than this ratio cause a warning. The
# ratio of the paper is 1.08.
MAX_FRAME_RATIO = 1.25
CONVERT = "scripts/prepare.py --convert DIR writes a copy that training can use"


def mel_fingerprint(hparams: VoiceSettings) -> dict[str, float]:
    """Return the settings that a log-mel depends on."""
    return {name: getattr(hparams, name) for name in MEL_SETTINGS} | {"log_floor": LOG_FLOOR}


def frame_count(num_samples: int, hparams: VoiceSettings) -> int:
    """Return the number of mel frames of `num_samples` samples, which is a clip's length in
    training."""
    return 1 + num_samples // hparams.hop_length


def minimum_samples(hparams: VoiceSettings) -> int:
    """Return the length of the shortest clip that has a mel.

    The ends of a clip are mirrored by half a filter, so the clip must be longer than half a filter.
    """
    return hparams.filter_length // 2 + 1


def settings_at(sampling_rate: int) -> str:
    """Return overrides of the settings at another sampling rate.

    Windows and hops keep their default durations. The highest mel frequency is the same
    share of the rate, at least 8,000 Hz if the rate allows it.

    settings_at(16000)  # "sampling_rate=16000,win_time=46.4,hop_time=11.6,mel_fmax=8000"
    """
    window = 1000 * HParams.win_length / HParams.sampling_rate
    hop = 1000 * HParams.hop_length / HParams.sampling_rate
    share = HParams.mel_fmax / HParams.sampling_rate
    mel_fmax = min(max(HParams.mel_fmax, round(share * sampling_rate, -2)), sampling_rate / 2)
    times = f"win_time={window:.1f},hop_time={hop:.1f}"
    return f"sampling_rate={sampling_rate},{times},mel_fmax={mel_fmax:g}"


def unusual_frames(hparams: VoiceSettings) -> str | None:
    """Return a warning if the hop or the window differs in duration from the defaults, otherwise
    None.

    Both are set in samples, so they become shorter or longer if only the sampling rate is set.
    """
    rate = hparams.sampling_rate
    usual_rate = HParams.sampling_rate
    hop = 1000 * hparams.hop_length / rate
    window = 1000 * hparams.win_length / rate
    usual_hop = 1000 * HParams.hop_length / usual_rate
    usual_window = 1000 * HParams.win_length / usual_rate
    ratios = usual_hop / hop, usual_window / window
    if all(1 / MAX_FRAME_RATIO <= ratio <= MAX_FRAME_RATIO for ratio in ratios):
        return None
    fix = settings_at(rate)
    if rate != usual_rate:
        fix += f", or convert the clips to {usual_rate} Hz"
    return (
        f"warning: sampling_rate={rate} with hop_length={hparams.hop_length} makes frames of "
        f"{hop:.1f} ms, and win_length={hparams.win_length} makes windows of {window:.1f} ms. The "
        f"defaults are {usual_hop:.1f} ms and {usual_window:.1f} ms, so a clip needs "
        f"{ratios[0]:.2g} times as many decoder steps. Set {fix} (docs/guides/own-data.md)"
    )


@contextlib.contextmanager
def open_audio(path: str | Path) -> Iterator[Any]:
    """Open an audio file as a soundfile.SoundFile.

    Raises:
        UserError: if there is no such file, if libsndfile cannot read it, or if the end of the file
            is missing. The message does not contain the path.
    """
    with open_file(path, "no such file; check the corpus folder and the paths in the list") as file:
        import soundfile

        try:
            audio = soundfile.SoundFile(file.fileno(), closefd=False)
        except soundfile.SoundFileError as error:
            reason = getattr(error, "error_string", error)  # leave out the number of the descriptor
            expected = "expected a WAV, FLAC, Ogg, MP3 or AIFF file"
            raise UserError(f"not readable as audio ({reason}), {expected}") from None
        with audio:
            if is_truncated(file, audio.format):
                raise UserError("truncated, shorter than its header says; copy it again")
            yield audio


def is_truncated(file: BinaryIO, file_format: str) -> bool:
    """Return whether the end of an audio file is missing, because soundfile does not report it.

    WAV, RF64 and AIFF begin with the size of the file. The last page of an Ogg file is marked. FLAC
    and MP3 say how many samples they contain: `read_samples` compares this number.
    """
    size = os.fstat(file.fileno()).st_size
    if file_format == "OGG":
        start = max(0, size - MAX_OGG_PAGE)
        return not ends_with_last_page(os.pread(file.fileno(), MAX_OGG_PAGE, start))
    # The position and the length of the size.
    places = {"WAV": (4, 4), "WAVEX": (4, 4), "AIFF": (4, 4), "RF64": (20, 8)}
    if file_format not in places:
        return False
    position, length = places[file_format]
    listed_size = os.pread(file.fileno(), length, position)
    listed = int.from_bytes(listed_size, "big" if file_format == "AIFF" else "little")
    is_known = file_format == "RF64" or listed < UNKNOWN_BYTES
    return is_known and size < listed + 8


def ends_with_last_page(content: bytes) -> bool:
    """Return whether the last bytes of an Ogg file contain its whole last page (RFC 3533, section
    6)."""
    page = content[content.rfind(b"OggS") :]
    if len(page) < 27 or not page.startswith(b"OggS"):
        return False
    is_last = page[5] & 4
    num_segments = page[26]
    lengths = page[27 : 27 + num_segments]
    return bool(is_last) and len(page) >= 27 + num_segments + sum(lengths)


def read_samples(audio: Any, dtype: str, most: int, **options: Any) -> np.ndarray:
    """Read all samples, [N] or [N, channels], of an open audio file.

    `most`: the largest number of samples to read per channel. `options`: those of
    `soundfile.SoundFile.read`.

    Raises:
        UserError: if the file is damaged, ends before its header says, or is longer than `most`.
    """
    import soundfile

    try:
        samples = audio.read(min(audio.frames, most + 1), dtype=dtype, **options)
    except (soundfile.SoundFileError, ValueError) as error:
        raise UserError(f"truncated or damaged inside ({error}); copy it again") from None
    if len(samples) > most:
        raise UserError(f"{audio.frames:,} samples, expected at most {most:,}; split the recording")
    if len(samples) < audio.frames:
        counts = f"{len(samples):,} samples, but its header says {audio.frames:,}"
        raise UserError(f"truncated or damaged: {counts}; copy it again")
    return samples


@contextlib.contextmanager
def _open_clip(path: str | Path, hparams: VoiceSettings) -> Iterator[Any]:
    """Open an audio file whose header fits `hparams`. See `read_header` for errors."""
    rate = hparams.sampling_rate
    minimum = minimum_samples(hparams)
    with open_audio(path) as audio:
        if audio.format not in FORMATS:
            raise UserError(f"{audio.format_info}, expected WAV or FLAC; {CONVERT}")
        if audio.channels != 1:
            raise UserError(f"{audio.channels} channels, expected mono; {CONVERT}")
        if audio.samplerate != rate:
            same_rate = f"if all clips have this rate, set {settings_at(audio.samplerate)}"
            raise UserError(
                f"{audio.samplerate} Hz, expected {rate}; {same_rate}; otherwise {CONVERT}"
            )
        if audio.frames < minimum:
            raise UserError(
                f"{audio.frames} samples, expected at least {minimum}; leave the clip out"
            )
        if audio.frames > MAX_SAMPLES:
            raise UserError(
                f"{audio.frames:,} samples by its header, expected at most {MAX_SAMPLES:,}; "
                f"{CONVERT}"
            )
        yield audio


def read_header(path: str | Path, hparams: VoiceSettings) -> int:
    """Return the number of samples of a mono WAV or FLAC file, from its header.

    read_header("wavs/a.wav", hparams)  # 22050

    Raises:
        UserError: if the file cannot be used; the message does not contain the path.
    """
    with _open_clip(path, hparams) as audio:
        return audio.frames


def read_audio(path: str | Path, hparams: VoiceSettings) -> torch.Tensor:
    """Read the samples of a mono WAV or FLAC file, float32 [N] in [-1, 1].

    Raises:
        UserError: see `read_header` and `read_samples`.
    """
    with _open_clip(path, hparams) as audio:
        return torch.from_numpy(read_samples(audio, "float32", MAX_SAMPLES))


def read_checked(path: str | Path, hparams: VoiceSettings) -> np.ndarray:
    """Read all samples [N] of a clip and check that training can use it.

    Returns int16 samples if the file has 16 bits, otherwise float32 in [-1, 1].

    Raises:
        UserError: see `read_audio`; also if samples are not finite or outside [-1, 1], or if the
            clip is silent from beginning to end.
    """
    with _open_clip(path, hparams) as audio:
        # 16-bit samples stay int16, because this is three times faster.
        dtype = "int16" if audio.subtype == "PCM_16" else "float32"
        samples = read_samples(audio, dtype, MAX_SAMPLES)
    full_scale = 1 if dtype == "float32" else 32768
    low = float(samples.min()) / full_scale
    high = float(samples.max()) / full_scale
    if not (math.isfinite(low) and math.isfinite(high)):  # min is nan if any sample is nan
        index = int(np.isfinite(samples).argmin())
        raise UserError(
            f"sample {index} (at {index / hparams.sampling_rate:.2f} s) is {samples[index]}, "
            "expected finite numbers; leave the clip out"
        )
    peak = max(-low, high)
    if peak > 1:
        raise UserError(f"samples reach {peak:g}, expected [-1, 1]; {CONVERT}")
    if high - low <= SILENT_RANGE:
        raise UserError("silent from beginning to end; record it again or leave the clip out")
    return samples


@lru_cache(maxsize=8)
def mel_filters(hparams: VoiceSettings, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the triangular mel filters, with Slaney's scale and norm.

    Returns float32 [n_mel_channels, filter_length / 2 + 1].
    """
    import librosa

    # librosa's warning about empty bands contains no settings, so `silent_bands` warns instead.
    with warnings.catch_warnings(action="ignore"):
        filters = librosa.filters.mel(
            sr=hparams.sampling_rate,
            n_fft=hparams.filter_length,
            n_mels=hparams.n_mel_channels,
            fmin=hparams.mel_fmin,
            fmax=hparams.mel_fmax,
        )
    return torch.from_numpy(filters).float().to(device)


def silent_bands(hparams: VoiceSettings) -> str | None:
    """Return a warning if mel bands contain no frequency of the filter, otherwise None."""
    empty = int((mel_filters(hparams).max(dim=1).values == 0).sum())
    if not empty:
        return None
    return (
        f"warning: {empty} of n_mel_channels={hparams.n_mel_channels} bands are always silent, "
        f"because filter_length={hparams.filter_length} has no frequency in them. Set fewer bands, "
        "a longer filter, or mel_fmin and mel_fmax further apart"
    )


def log_mel_spectrogram(samples: torch.Tensor, hparams: VoiceSettings) -> torch.Tensor:
    """Compute the natural logarithm of mel magnitudes, as NVIDIA's Tacotron 2 and WaveGlow do.

    mel = log_mel_spectrogram(read_audio("a.wav", hparams), hparams)

    samples: float [N] in [-1, 1], at least `minimum_samples`.
    Returns float32 [n_mel_channels, 1 + N // hop_length].

    A periodic Hann window is centered in the filter, and the ends are mirrored. Magnitudes (not
    powers) are summed by filters of Slaney's mel scale and norm; the floor is 1e-5.

    Raises:
        UserError: if samples are outside [-1, 1].
    """
    peak = samples.abs().max().item()
    if not peak <= 1:  # the condition is also true if the peak is nan
        raise UserError(f"samples reach {peak:g}, expected [-1, 1]; divide 16-bit ones by 32768")
    spectrum = torch.stft(
        samples.float(),
        n_fft=hparams.filter_length,
        hop_length=hparams.hop_length,
        win_length=hparams.win_length,
        window=torch.hann_window(hparams.win_length, device=samples.device),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    mel = mel_filters(hparams, samples.device) @ spectrum.abs()
    return mel.clamp(min=LOG_FLOOR).log()
