"""Sound files in and out, and log-mel spectrograms.

librosa and soundfile are imported where they are used: training from cached mels needs neither.
"""

import contextlib
import io
import math
import os
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from hparams import HParams
from tacotron2_voice.settings import LOG_FLOOR, MEL_SETTINGS, VoiceSettings
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import open_file, write_bytes

SILENT_RANGE = 1e-4  # highest minus lowest sample of a silent clip, at most: 3 steps of 16 bits
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")  # as soundfile names them; the first three are WAVs
BLOCK = 2**20  # samples read at once
MAX_SAMPLES = 2**28  # of a clip, 3 hours: a small FLAC of silence could exhaust memory
# From here on a FLAC's count is unknown; soundfile reports more than this for a count of 0.
UNKNOWN_SAMPLES = 2**36 - 1
# From here on a size is unknown: a WAV written to a pipe.
UNKNOWN_BYTES = {b"RIFF": 0x7FFFF000, b"RF64": 2**63}
MAX_FRAME_RATIO = 1.25  # of hop or window in ms to the defaults; the paper's are 1.08 times those
MAX_OVERSHOOT = 100  # a float that reaches more is a whole number of a file of 16 bits or more
MAX_CHUNKS = 1000  # of a WAV before its samples
EXACT_SUBTYPES = ("PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")


def mel_fingerprint(hparams: VoiceSettings) -> dict[str, float]:
    """The settings that a log-mel depends on."""
    return {name: getattr(hparams, name) for name in MEL_SETTINGS} | {"log_floor": LOG_FLOOR}


def frame_count(num_samples: int, hparams: VoiceSettings) -> int:
    """Number of frames of `num_samples` samples: a clip's length for batching and training."""
    return 1 + num_samples // hparams.hop_length


def minimum_samples(hparams: VoiceSettings) -> int:
    """The shortest clip whose ends can be mirrored by half a filter, as the mel needs."""
    return hparams.filter_length // 2 + 1


def conversion(hparams: VoiceSettings, source: str, target: str) -> str:
    """The shell's command that makes a mono sound file at the sampling rate of the settings."""
    return f"ffmpeg -nostdin -i {source} -ac 1 -ar {hparams.sampling_rate} {target}"


def settings_at(sampling_rate: int) -> str:
    """Overrides of the settings at another sampling rate: windows and hops as long as those of the
    defaults, mels up to the same share of the rate, or to 8,000 Hz where it has them."""
    window, hop = (
        1000 * x / HParams.sampling_rate for x in (HParams.win_length, HParams.hop_length)
    )
    share = HParams.mel_fmax / HParams.sampling_rate
    mel_fmax = min(max(HParams.mel_fmax, round(share * sampling_rate, -2)), sampling_rate / 2)
    times = f"win_time={window:.1f},hop_time={hop:.1f}"
    return f"sampling_rate={sampling_rate},{times},mel_fmax={mel_fmax:g}"


def unusual_frames(hparams: VoiceSettings) -> str | None:
    """A warning if hop or window, which are in samples, are much shorter or longer in milliseconds
    than the defaults, as where only the sampling rate was set."""
    usual, rate = HParams.sampling_rate, hparams.sampling_rate
    hop, window = (1000 * x / rate for x in (hparams.hop_length, hparams.win_length))
    usual_hop, usual_window = (1000 * x / usual for x in (HParams.hop_length, HParams.win_length))
    ratios = usual_hop / hop, usual_window / window
    if all(1 / MAX_FRAME_RATIO <= ratio <= MAX_FRAME_RATIO for ratio in ratios):
        return None
    lengths = hparams.hop_length, hparams.win_length
    is_set = lengths != (HParams.hop_length, HParams.win_length)
    fix = f"{settings_at(rate)}{' and leave hop_length and win_length out' if is_set else ''}"
    fix += f", or convert the clips to {usual} Hz" if rate != usual else ""
    return (
        f"warning: sampling_rate={rate} with hop_length={hparams.hop_length} makes frames of "
        f"{hop:.1f} ms, with win_length={hparams.win_length} windows of {window:.1f} ms; the "
        f"defaults are {usual_hop:.1f} ms and {usual_window:.1f} ms: {ratios[0]:.2g} times as many "
        f"decoder steps. Set {fix} (docs/own-data.md)"
    )


@contextlib.contextmanager
def _open_sound(path: str | Path, hparams: VoiceSettings) -> Iterator[tuple[Any, BinaryIO]]:
    """An open soundfile.SoundFile whose header suits `hparams`, and the file, which stands at its
    first sample; errors as `read_header`."""
    with open_file(path, "no such file; check the corpus folder and the paths in the list") as file:
        import soundfile

        try:
            sound = soundfile.SoundFile(file.fileno(), closefd=False)
            if sound.frames == 0 and sound.format != "FLAC":
                sound = soundfile.SoundFile(_with_unknown_length(file))
        except soundfile.SoundFileError as error:
            reason = getattr(error, "error_string", error)  # without the number of the descriptor
            raise UserError(f"not readable as sound ({reason}); copy or convert it again") from None
        with sound:
            if problem := _header_problem(sound, hparams):
                raise UserError(problem)
            yield sound, file


class Patched(io.RawIOBase):
    """A file with some bytes replaced, by position, without reading all of it into memory."""

    def __init__(self, file: BinaryIO, patches: dict[int, bytes]):
        self.file, self.patches = file, patches
        self.seek, self.tell = file.seek, file.tell  # type: ignore[method-assign]
        self.seek(0)

    def readinto(self, buffer: Any) -> int:
        start, count = self.tell(), self.file.readinto(buffer)  # type: ignore[attr-defined]
        for place, patch in self.patches.items():
            for i in range(max(place, start), min(place + len(patch), start + count)):
                buffer[i - start : i - start + 1] = patch[i - place : i - place + 1]
        return count


def _with_unknown_length(file: BinaryIO) -> Patched:
    """Patch the header of a WAV that claims 0 samples so that it says "unknown" instead, unless
    another chunk follows. Programs that were killed or wrote to a pipe leave such headers."""
    start, size = file.tell(), os.fstat(file.fileno()).st_size
    chunk = os.pread(file.fileno(), 8, start)
    if re.match(rb"[ -~]{4}", chunk) and int.from_bytes(chunk[4:], "little") <= size - start - 8:
        return Patched(file, {})
    patches = {start - 4: b"\xff" * 4}
    if os.pread(file.fileno(), 4, 0) == b"RF64":
        patches[28] = (size - start).to_bytes(8, "little")
    return Patched(file, patches)


def _header_problem(sound: Any, hparams: VoiceSettings) -> str | None:
    rate = hparams.sampling_rate
    convert = f"convert it: {conversion(hparams, 'in.wav', 'out.wav')}"
    if sound.format not in FORMATS:
        return f"{sound.format_info}, expected WAV or FLAC; {convert}"
    if sound.channels != 1:
        return f"{sound.channels} channels, expected mono; {convert}"
    if sound.samplerate != rate:
        fix = f"if all clips have this rate, set {settings_at(sound.samplerate)}; else {convert}"
        return f"{sound.samplerate} Hz, expected {rate}; {fix}"
    return None if sound.frames >= UNKNOWN_SAMPLES else _length_problem(sound.frames, hparams)


def _length_problem(num_samples: int, hparams: VoiceSettings) -> str | None:
    minimum = minimum_samples(hparams)
    if num_samples < minimum:
        empty = "empty" if num_samples == 0 else f"{num_samples} samples"
        return f"{empty}, expected at least {minimum} samples; leave the clip out"
    if num_samples > MAX_SAMPLES:
        expected = f"expected at most {MAX_SAMPLES:,}"
        return f"{num_samples:,} samples or more, {expected}; split the clip or convert it again"
    return None


def _read_samples(sound: Any, file: BinaryIO, hparams: VoiceSettings, dtype: str) -> np.ndarray:
    """Read all samples [N] of an open sound file, in blocks. UserError if it is damaged or has
    another number of samples than its header says."""
    import soundfile

    num_in_header, blocks = sound.frames, list[np.ndarray]()
    size = min(BLOCK, num_in_header + 1)  # one more than expected, to notice extra samples
    try:
        if sound.format == "FLAC":  # soundfile would stop at the header's number, 36 bits
            head = os.pread(file.fileno(), 22, 0)
            patches = {21: bytes([head[21] & 0xF0, 0, 0, 0, 0])}
            sound = soundfile.SoundFile(Patched(file, patches if head[:4] == b"fLaC" else {}))
        sound.seekable = lambda: False  # otherwise it seeks after each block, even beyond the end
        while not blocks or (len(blocks[-1]) == size and size * len(blocks) <= MAX_SAMPLES):
            blocks.append(sound.read(size, dtype=dtype))
    except soundfile.SoundFileError as error:
        reason = f"not readable as sound to its end ({error}), so truncated or damaged inside"
        raise UserError(f"{reason}; copy or convert it again") from None
    samples = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    if problem := _length_problem(len(samples), hparams):
        raise UserError(problem)
    if num_in_header != len(samples) and num_in_header < UNKNOWN_SAMPLES:
        counts = f"{len(samples):,} samples, but its header says {num_in_header:,}"
        raise UserError(f"truncated or damaged: {counts}; copy or convert it again")
    return samples


def read_header(path: str | Path, hparams: VoiceSettings) -> int:
    """Read the number of samples of a mono WAV or FLAC file from its header, or by reading them all
    if the header does not say. UserError, without the path: the fault and how to fix it."""
    with _open_sound(path, hparams) as (sound, file):
        is_known = sound.frames < UNKNOWN_SAMPLES
        return sound.frames if is_known else len(_read_samples(sound, file, hparams, "int16"))


def read_audio(path: str | Path, hparams: VoiceSettings) -> torch.Tensor:
    """Read the samples of a mono WAV or FLAC file, float32 [N] in [-1, 1]. UserError as
    `read_header`, and for a FLAC that is truncated, damaged or has a wrong header."""
    with _open_sound(path, hparams) as (sound, file):
        return torch.from_numpy(_read_samples(sound, file, hparams, "float32"))


def read_checked(path: str | Path, hparams: VoiceSettings) -> np.ndarray:
    """Read all samples [N] of a clip and check that it is fit for training: int16 if the file has
    16 bits, else float32 in [-1, 1]. UserError as `read_audio`, and for a truncated file, samples
    that are not finite or outside [-1, 1], and silence throughout."""
    with _open_sound(path, hparams) as (sound, file):
        if is_cut_off_wav(file):
            raise UserError("truncated, shorter than its header says; copy it again")
        # 16-bit samples stay int16: three times faster, and a corpus has hours of them.
        dtype = "int16" if sound.subtype == "PCM_16" else "float32"
        samples = _read_samples(sound, file, hparams, dtype)
    full_scale = 1 if dtype == "float32" else 32768
    low, high = float(samples.min()) / full_scale, float(samples.max()) / full_scale
    if not (math.isfinite(low) and math.isfinite(high)):  # min is nan if any sample is
        place = int(np.isfinite(samples).argmin())
        raise UserError(
            f"sample {place} (at {place / hparams.sampling_rate:.2f} s) is {samples[place]}, "
            "expected finite numbers; convert it again or leave the clip out"
        )
    peak = max(-low, high)
    if peak > 1:
        raise UserError(f"samples reach {peak:g}, expected [-1, 1]; {_scaling(peak)}")
    if high - low <= SILENT_RANGE:
        raise UserError("silent from beginning to end; record it again or leave the clip out")
    return samples


def _scaling(peak: float) -> str:
    """How to scale a file of floating-point numbers that reach `peak`, above 1."""
    what, volume = "scale it", f"{0.99 / peak:.6g}"
    if peak > MAX_OVERSHOOT:
        bits = next((bits for bits in (16, 24, 32) if peak <= 2 ** (bits - 1)), 32)
        what, volume = f"these are numbers of {bits} bits, divide them", f"1/{2 ** (bits - 1)}"
    return f"{what}: ffmpeg -nostdin -i in.wav -af volume={volume} out.wav"


def is_cut_off_wav(file: BinaryIO) -> bool:
    """Whether the end of a WAV file is missing, which soundfile does not report. Some programs omit
    the padding of the last byte."""
    descriptor = file.fileno()
    head, length = os.pread(descriptor, 36, 0), os.fstat(descriptor).st_size
    if head[:4] not in UNKNOWN_BYTES or not (start := _samples_at(descriptor)):
        return False
    sizes = {7: head[4:8], start: os.pread(descriptor, 4, start - 4)}
    if head.startswith(b"RF64"):
        sizes = {7: head[20:28], start: head[28:36]}
    unknown_size = UNKNOWN_BYTES.get(head[:4], 0)
    ends = [(begin, int.from_bytes(size, "little")) for begin, size in sizes.items()]
    return any(size < unknown_size and length < begin + size for begin, size in ends)


def _samples_at(descriptor: int) -> int:
    """Where the samples of a WAV file begin, or 0. soundfile stands behind them already if they are
    compressed in blocks (ADPCM, GSM)."""
    place = 12
    for _ in range(MAX_CHUNKS):
        chunk = os.pread(descriptor, 8, place)
        if len(chunk) < 8 or chunk.startswith(b"data"):
            return place + 8 if len(chunk) == 8 else 0
        size = int.from_bytes(chunk[4:], "little")
        place += 8 + size + size % 2
    return 0


def copy_part(
    source: str | Path, path: Path, start: int, stop: int, hparams: VoiceSettings
) -> None:
    """Copy the samples from `start` to before `stop` of a sound file to `path`, atomically. Samples
    and format stay bitwise the same; compressed WAVs become 16-bit samples."""
    with _open_sound(source, hparams) as (sound, file):
        subtype = sound.subtype if sound.subtype in EXACT_SUBTYPES else "PCM_16"
        # Whole numbers of 32 bits hold any of fewer bits; float64 any float.
        dtype = "float64" if subtype in ("FLOAT", "DOUBLE") else "int32"
        samples = _read_samples(sound, file, hparams, dtype)
    if len(samples) < stop:
        raise UserError(f"{len(samples)} samples, expected at least {stop}; copy it again")
    content = encode(samples[start:stop], hparams.sampling_rate, sound.format, subtype)
    write_bytes(path, content)


@lru_cache(maxsize=8)
def mel_filters(hparams: VoiceSettings, device: torch.device | str = "cpu") -> torch.Tensor:
    """Triangular filters of Slaney scale and norm, float32 [n_mels, filter_length / 2 + 1]."""
    import librosa

    with warnings.catch_warnings(action="ignore"):  # of empty bands, which names no settings
        filters = librosa.filters.mel(
            sr=hparams.sampling_rate,
            n_fft=hparams.filter_length,
            n_mels=hparams.n_mel_channels,
            fmin=hparams.mel_fmin,
            fmax=hparams.mel_fmax,
        )
    return torch.from_numpy(filters).float().to(device)


def silent_bands(hparams: VoiceSettings) -> str | None:
    """A warning if the mel has bands without a frequency of the filter in them, or None."""
    empty = int((mel_filters(hparams).max(dim=1).values == 0).sum())
    if not empty:
        return None
    return (
        f"warning: {empty} of n_mel_channels={hparams.n_mel_channels} bands lie between the "
        f"frequencies of filter_length={hparams.filter_length}, and are always silent: set fewer "
        "bands, a longer filter, or mel_fmin and mel_fmax further apart"
    )


def log_mel_spectrogram(samples: torch.Tensor, hparams: VoiceSettings) -> torch.Tensor:
    """Compute the natural log of mel magnitudes, as existing vocoders and checkpoints expect them:
    samples [N], at least `minimum_samples`, to float32 [n_mel_channels, 1 + N // hop_length].

    Periodic Hann window centerd in the filter, mirrored ends, magnitude (not power), Slaney mel
    scale and norm, floor 1e-5. UserError for samples outside [-1, 1]."""
    peak = samples.abs().max().item()
    if not peak <= 1:  # true for nan as well
        raise UserError(f"samples reach {peak:g}: expected [-1, 1]; divide 16-bit ones by 32768")
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
