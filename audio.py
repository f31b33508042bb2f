"""Read audio files and compute log-mel spectrograms.

librosa and soundfile are imported inside functions, because training from cached mels needs neither
package.
"""

import contextlib
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch

from hparams import HParams
from tacotron2_voice.settings import LOG_FLOOR, MEL_SETTINGS, VoiceSettings
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import open_file

# A clip is silent if its largest and its smallest sample differ by at most this value (3 steps of
# 16-bit audio).
SILENT_RANGE = 1e-4
# Audio formats that training can read, by their names in soundfile. WAVEX and RF64 are variants of
# WAV.
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
# Maximum number of samples per clip (about 3 hours of audio). Without this limit, a small FLAC file
# of silence could exhaust the memory.
MAX_SAMPLES = 2**28
# Audio formats in which missing samples at the end of a file can be detected.
READABLE_FORMATS = ("WAV", "WAVEX", "RF64", "AIFF", "FLAC", "OGG", "MP3")
EXPECTED_FORMATS = "expected WAV, FLAC, Ogg, MP3 or AIFF"
OGG_START_OF_STREAM = 2  # flag that marks the first page of an Ogg stream
OGG_END_OF_STREAM = 4  # flag that marks the last page of an Ogg stream
# For each byte, the byte with the opposite order of bits.
REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
MAX_OGG_PAGE = 27 + 255 + 255 * 255  # maximum size of an Ogg page in bytes
# If the first frame of an MP3 file contains one of the following tags, this frame also contains the
# length of the file.
MP3_HEADERS = (b"Xing", b"Info", b"VBRI")
# Number of bytes to read to get the first frame of an MP3 file. No MP3 frame is larger.
MP3_FRAME_BYTES = 2048
MP3_TOLERANCE = 12_000  # maximum error of the estimated length of an MP3 file, in samples
# Maximum number of samples that may be missing at the end of an MP3 file if its length is only
# estimated.
MP3_MISSING = 4 * 1152
# Matches the first three bytes of an MP3 frame.
MP3_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")
# Bit rates in kbit/s and sampling rates in Hz, indexed by their codes in an MP3 frame.
MPEG1_BIT_RATES = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
MPEG2_BIT_RATES = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
MPEG1_RATES = (44_100, 48_000, 32_000)
# If the size in a header is at least this large, the true size is unknown.
UNKNOWN_BYTES = 0x7FFFF000
# Durations of the default hop and window in ms.
DEFAULT_HOP = 1000 * HParams.hop_length / HParams.sampling_rate
DEFAULT_WINDOW = 1000 * HParams.win_length / HParams.sampling_rate
# Maximum factor by which the duration of a hop or window may differ from its default. A larger
# factor causes a warning. The durations in the paper differ by a factor of 1.08.
MAX_FRAME_RATIO = 1.25
# Matches the beginning of a FLAC stream: the marker and the header of the STREAMINFO block.
FLAC_START = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")
JOINED = (
    "the file consists of several audio files, one after another, and only the first would be read; "
    "split the file into these files, or export the recording as one file"
)
CONVERT = "run scripts/prepare.py --convert DIR to make a copy that training can read"


def mel_fingerprint(hparams: VoiceSettings) -> dict[str, float]:
    """Return the settings that affect log-mels, keyed by name."""
    return {name: getattr(hparams, name) for name in MEL_SETTINGS} | {"log_floor": LOG_FLOOR}


def frame_count(num_samples: int, hparams: VoiceSettings) -> int:
    """Return the number of mel frames of a clip."""
    return 1 + num_samples // hparams.hop_length


def minimum_samples(hparams: VoiceSettings) -> int:
    """Return the smallest number of samples for which a mel can be computed.

    At each end, the clip is padded with filter_length / 2 reflected samples, so the clip must be
    longer than filter_length / 2 samples.
    """
    return hparams.filter_length // 2 + 1


def settings_at(sampling_rate: int) -> str:
    """Return setting overrides for another sampling rate.

    Windows and hops keep their default durations in milliseconds. The highest mel frequency scales
    with the sampling rate, but is at least 8,000 Hz (or half the sampling rate, if this is lower).

    settings_at(16000)  # "sampling_rate=16000,win_time=46.4,hop_time=11.6,mel_fmax=8000"
    """
    share = HParams.mel_fmax / HParams.sampling_rate
    mel_fmax = min(max(HParams.mel_fmax, round(share * sampling_rate, -2)), sampling_rate / 2)
    times = f"win_time={DEFAULT_WINDOW:.1f},hop_time={DEFAULT_HOP:.1f}"
    return f"sampling_rate={sampling_rate},{times},mel_fmax={mel_fmax:g}"


def unusual_frames(hparams: VoiceSettings) -> str | None:
    """Return a warning if the hop or the window has an unusual duration, otherwise None.

    The lengths of hop and window are settings in samples, so the durations of hop and window change
    if you change only the sampling rate.
    """
    rate = hparams.sampling_rate
    usual_rate = HParams.sampling_rate
    hop = 1000 * hparams.hop_length / rate
    window = 1000 * hparams.win_length / rate
    ratios = DEFAULT_HOP / hop, DEFAULT_WINDOW / window
    if all(1 / MAX_FRAME_RATIO <= ratio <= MAX_FRAME_RATIO for ratio in ratios):
        return None
    fix = settings_at(rate)
    if rate != usual_rate:
        fix += f", or convert the clips to {usual_rate} Hz"
    return (
        f"warning: at sampling_rate={rate}, a frame (hop_length={hparams.hop_length}) lasts "
        f"{hop:.1f} ms (default: {DEFAULT_HOP:.1f} ms), and a window "
        f"(win_length={hparams.win_length}) lasts {window:.1f} ms "
        f"(default: {DEFAULT_WINDOW:.1f} ms). A clip therefore needs {ratios[0]:.2g} times the "
        f"default number of decoder steps. Set {fix} (docs/guides/own-data.md)"
    )


@contextlib.contextmanager
def open_audio(path: str | Path) -> Iterator[Any]:
    """Open an audio file as a `soundfile.SoundFile`.

    Raises:
        UserError: if the file does not exist, if libsndfile cannot read it or would read only a
            part of it, or if its end is missing. The error message does not contain `path`.
    """
    with open_file(
        path, "no such file; check the corpus folder and the paths in the filelist"
    ) as file:
        import soundfile

        if is_joined_riff(file):
            raise UserError(JOINED)
        try:
            audio = soundfile.SoundFile(file.fileno(), closefd=False)
        except soundfile.SoundFileError as error:
            # Do not use str(error), which would also contain the number of the file descriptor.
            reason = str(getattr(error, "error_string", error)).rstrip(".")
            # libsndfile prints "File does not exist" for some MP3 files without frames.
            if "does not exist" in reason:
                reason = "the file is damaged or in an unknown format"
            found = f"cannot read this file as audio ({reason})"
            raise UserError(f"{found}, {EXPECTED_FORMATS}") from None
        with audio:
            if audio.format not in READABLE_FORMATS:
                raise UserError(f"the format is {audio.format}, {EXPECTED_FORMATS}")
            if is_truncated(file, audio.format):
                raise UserError(
                    "the file is truncated: it is shorter than its header states; copy it again"
                )
            status = os.fstat(file.fileno())
            facts = str(path), status.st_size, status.st_mtime_ns
            if audio.format == "OGG" and (problem := problem_of_ogg(*facts)):
                raise UserError(problem)
            if audio.format == "FLAC" and is_joined_flac(*facts):
                raise UserError(JOINED)
            if audio.format == "MP3":
                check_mp3_length(path, audio.frames, contains_mp3_length(file.fileno()))
            yield audio


def is_truncated(file: BinaryIO, file_format: str) -> bool:
    """Return whether the end of an audio file is missing. This check is needed because soundfile
    does not report a missing end.

    For WAV, RF64 and AIFF files, compare the size of the file with the size in its header. For Ogg
    files, check whether the file ends with an Ogg page that has the end-of-stream flag. For all
    formats other than WAV, RF64, AIFF and Ogg, return False. FLAC and MP3 files contain the number
    of samples, which `read_samples` checks.
    """
    size = os.fstat(file.fileno()).st_size
    if file_format == "OGG":
        start = max(0, size - MAX_OGG_PAGE)
        return not ends_with_last_page(os.pread(file.fileno(), MAX_OGG_PAGE, start))
    # Position and width in bytes of the field in the header that contains the size of the file.
    places = {"WAV": (4, 4), "WAVEX": (4, 4), "AIFF": (4, 4), "RF64": (20, 8)}
    if file_format not in places:
        return False
    position, length = places[file_format]
    listed_size = os.pread(file.fileno(), length, position)
    listed = int.from_bytes(listed_size, "big" if file_format == "AIFF" else "little")
    is_known = file_format == "RF64" or listed < UNKNOWN_BYTES
    return is_known and size < listed + 8


def contains_mp3_length(descriptor: int) -> bool:
    """Return whether the first frame of an open MP3 file contains the length of the file."""
    beginning = os.pread(descriptor, MP3_FRAME_BYTES, end_of_id3_tag(os.pread(descriptor, 10, 0)))
    return any(word in beginning for word in MP3_HEADERS)


def end_of_id3_tag(beginning: bytes) -> int:
    """Return the position after the ID3 tag at the start of a file, or 0 if there is no tag.

    MP3 files, and some FLAC files, begin with such a tag.

    Args:
        beginning: at least the first 10 bytes of the file.
    """
    tag = beginning[:10]
    if not tag.startswith(b"ID3") or len(tag) < 10:
        return 0
    # The size of the tag is stored in four bytes, each with 7 bits.
    sizes = zip(tag[6:], (21, 14, 7, 0), strict=True)
    return 10 + sum(byte << shift for byte, shift in sizes)


def check_mp3_length(path: str | Path, num_samples: int, has_length: bool) -> None:
    """Raise UserError if libsndfile would not read all samples of an MP3 file.

    If the first frame contains a length, libsndfile reads only this number of samples. A file that
    was joined from several MP3 files contains more samples than its first frame states. If the
    first frame contains no length, libsndfile estimates the length from the first frame and the
    size of the file. The estimated length is wrong if the bit rate varies.

    Args:
        num_samples: number of samples according to libsndfile.
        has_length: whether the first frame contains a length.
    """
    status = os.stat(path)
    counted = count_mp3_samples(str(path), status.st_size, status.st_mtime_ns)
    if has_length and counted > num_samples + MP3_TOLERANCE:
        raise UserError(
            f"the MP3 file contains {counted:,} samples, but its header states {num_samples:,}, "
            "which is typical of joined MP3 files; convert the file to WAV"
        )
    if not has_length and abs(counted - num_samples) > MP3_TOLERANCE:
        raise UserError(
            f"the MP3 file contains {counted:,} samples, but libsndfile estimates {num_samples:,}, "
            "because the bit rate varies and the file has no Xing header; convert the file to WAV"
        )


@lru_cache(maxsize=2**18)
def count_mp3_samples(path: str, size: int, modified: int) -> int:
    """Count the samples per channel in the frames of an MP3 file.

    The results are cached. `size` and `modified` are part of the cache key, so the samples of a
    changed file are counted again.
    """
    content = Path(path).read_bytes()
    position = end_of_id3_tag(content)
    num_samples = 0
    is_found = False  # whether a valid MP3 frame ends at `position`
    while frame := MP3_FRAME.search(content, position):
        start = frame.start()
        num_bytes, in_frame = mp3_frame(content[start : start + 3])
        # Other data, such as a picture in a tag, may look like an MP3 frame, but no second MP3
        # frame follows.
        follows = (is_found and start == position) or MP3_FRAME.match(content, start + num_bytes)
        is_found = bool(follows) and num_bytes > 0
        if is_found:
            num_samples += in_frame
        position = start + (num_bytes if is_found else 1)
    return num_samples


def mp3_frame(header: bytes) -> tuple[int, int]:
    """Return the number of bytes in an MP3 frame, and its number of samples per channel.

    If the frame has no valid sampling rate, both numbers are 0.

    Args:
        header: the first three bytes of the frame, which must match MP3_FRAME.
    """
    version = header[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    rate_code = header[2] >> 2 & 3
    if rate_code == len(MPEG1_RATES):
        return 0, 0
    is_mpeg1 = version == 3
    rate = MPEG1_RATES[rate_code] // {3: 1, 2: 2, 0: 4}[version]
    bit_rate = (MPEG1_BIT_RATES if is_mpeg1 else MPEG2_BIT_RATES)[header[2] >> 4]
    num_samples = 1152 if is_mpeg1 else 576
    padding = header[2] >> 1 & 1
    return num_samples // 8 * bit_rate * 1000 // rate + padding, num_samples


def ends_with_last_page(content: bytes) -> bool:
    """Return whether the last Ogg page in `content` is complete and ends the stream.

    RFC 3533, section 6, defines the format of an Ogg page.

    Args:
        content: the last bytes of an Ogg file.
    """
    page = content[content.rfind(b"OggS") :]
    if len(page) < 27 or not page.startswith(b"OggS") or not page[5] & OGG_END_OF_STREAM:
        return False
    num_segments = page[26]
    lengths = page[27 : 27 + num_segments]
    return num_segments == len(lengths) and len(page) >= 27 + num_segments + sum(lengths)


def is_joined_riff(file: BinaryIO) -> bool:
    """Return whether a second WAV or AIFF file follows the end of the first file."""
    start = os.pread(file.fileno(), 8, 0)
    orders: dict[bytes, Literal["little", "big"]] = {b"RIFF": "little", b"FORM": "big"}
    if start[:4] not in orders:
        return False
    listed = int.from_bytes(start[4:], orders[start[:4]])
    # If the size in the header is odd, a padding byte may follow the data.
    return start[:4] in os.pread(file.fileno(), 4 + listed % 2, 8 + listed)


@lru_cache(maxsize=2**18)
def is_joined_flac(path: str, size: int, modified: int) -> bool:
    """Return whether a FLAC file contains the start of a second FLAC file.

    libsndfile reads only the first file, and reports no error. The results are cached. The cache key
    contains `size` and `modified`, so that a changed file is checked again.
    """
    content = Path(path).read_bytes()
    return FLAC_START.search(content, end_of_id3_tag(content) + 4) is not None


@lru_cache(maxsize=2**18)
def problem_of_ogg(path: str, size: int, modified: int) -> str:
    """Return a message if the checksum of an Ogg page is wrong, or if a second stream follows the
    first stream (RFC 3533, section 6). Otherwise return "".

    libsndfile does not read the Ogg pages after a damaged page or after the first stream, and
    reports no error. The results are cached. `size` and `modified` are part of the cache key.
    """
    damaged = "the file is damaged: the checksum of an Ogg page is wrong; copy it again"
    content = Path(path).read_bytes()
    position = 0
    is_ended = False  # whether a page before `position` ends a stream
    while position < len(content):
        header = content[position : position + 27]
        if not header.startswith(b"OggS"):
            # Data after the last page, such as a tag, is not audio.
            return damaged if b"OggS" in content[position:] else ""
        lengths = content[position + 27 : position + 27 + header[26]]
        page = content[position : position + 27 + header[26] + sum(lengths)]
        # The checksum is computed as if its own four bytes were 0.
        if ogg_checksum(page[:22] + bytes(4) + page[26:]) != int.from_bytes(page[22:26], "little"):
            return damaged
        if is_ended and header[5] & OGG_START_OF_STREAM:
            return JOINED
        is_ended = is_ended or bool(header[5] & OGG_END_OF_STREAM)
        position += len(page)
    return ""


def ogg_checksum(page: bytes) -> int:
    """Return the checksum of an Ogg page: a CRC with the polynomial of zlib, but with the opposite
    order of bits, and without the inversions at both ends."""
    inverted = zlib.crc32(page.translate(REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{inverted:032b}"[::-1], 2)


def read_samples(audio: Any, dtype: str, most: int, **options: Any) -> np.ndarray:
    """Return all samples of an open audio file, [N] or [N, channels].

    Args:
        most: maximum number of samples per channel.
        options: arguments of `soundfile.SoundFile.read`.

    Raises:
        UserError: if the file is damaged, shorter than its header states, or longer than `most`.
    """
    import soundfile

    try:
        samples = audio.read(min(audio.frames, most + 1), dtype=dtype, **options)
    except (soundfile.SoundFileError, ValueError) as error:
        raise UserError(f"the file is truncated or damaged ({error}); copy it again") from None
    if len(samples) > most:
        raise UserError(
            f"too long: {audio.frames:,} samples, expected at most {most:,}; split the recording"
        )
    if are_missing(audio, audio.frames - len(samples)):
        counts = f"it contains {len(samples):,} samples, but its header states {audio.frames:,}"
        raise UserError(f"the file is truncated or damaged: {counts}; copy it again")
    return samples


def are_missing(audio: Any, num_missing: int) -> bool:
    """Return whether `num_missing` unreadable samples mean that an open audio file is truncated."""
    is_estimated = audio.format == "MP3" and not contains_mp3_length(audio.name)
    return num_missing > (MP3_MISSING if is_estimated else 0)


@contextlib.contextmanager
def _open_clip(path: str | Path, hparams: VoiceSettings) -> Iterator[Any]:
    """Open a clip. Raise UserError if the header shows that training cannot use the clip."""
    rate = hparams.sampling_rate
    minimum = minimum_samples(hparams)
    with open_audio(path) as audio:
        if audio.format not in FORMATS:
            raise UserError(f"the format is {audio.format_info}, expected WAV or FLAC; {CONVERT}")
        if audio.channels != 1:
            raise UserError(f"the file has {audio.channels} channels, expected 1; {CONVERT}")
        if audio.samplerate != rate:
            same_rate = (
                f"if all clips have this rate, add {settings_at(audio.samplerate)} to --hparams"
            )
            raise UserError(
                f"the sampling rate is {audio.samplerate} Hz, expected {rate} Hz; {same_rate}; "
                f"otherwise {CONVERT}"
            )
        if audio.frames < minimum:
            raise UserError(
                f"too short: {audio.frames} samples, expected at least {minimum}; remove the clip "
                "from the filelist"
            )
        if audio.frames > MAX_SAMPLES:
            raise UserError(
                f"too long: {audio.frames:,} samples according to the header, expected at most "
                f"{MAX_SAMPLES:,}; {CONVERT}"
            )
        yield audio


def read_header(path: str | Path, hparams: VoiceSettings) -> int:
    """Return the number of samples in a mono WAV or FLAC file, according to its header.

    read_header("wavs/a.wav", hparams)  # 22050

    Raises:
        UserError: if training cannot use the file. The error message does not contain `path`.
    """
    with _open_clip(path, hparams) as audio:
        return audio.frames


def read_audio(path: str | Path, hparams: VoiceSettings) -> torch.Tensor:
    """Return the samples of a mono WAV or FLAC file, float32 [N] in [-1, 1].

    Raises:
        UserError: if training cannot use the file, or if the file is damaged.
    """
    with _open_clip(path, hparams) as audio:
        return torch.from_numpy(read_samples(audio, "float32", MAX_SAMPLES))


def read_checked(path: str | Path, hparams: VoiceSettings) -> np.ndarray:
    """Return all samples [N] of a clip, and check that training can use them.

    The samples are int16 if the file has 16-bit samples, otherwise float32 in [-1, 1].

    Raises:
        UserError: if training cannot use the file, if the file is damaged, if the whole clip is
            silent, or if a sample is outside [-1, 1] or not finite.
    """
    with _open_clip(path, hparams) as audio:
        # Read 16-bit samples as int16, which is three times faster than reading them as float32.
        dtype = "int16" if audio.subtype == "PCM_16" else "float32"
        samples = read_samples(audio, dtype, MAX_SAMPLES)
    full_scale = 1 if dtype == "float32" else 32768
    low = float(samples.min()) / full_scale
    high = float(samples.max()) / full_scale
    if not (math.isfinite(low) and math.isfinite(high)):  # `low` is NaN if any sample is NaN
        index = int(np.isfinite(samples).argmin())
        raise UserError(
            f"sample {index} (at {index / hparams.sampling_rate:.2f} s) is {samples[index]}, "
            "expected a finite number; remove the clip from the filelist"
        )
    peak = max(-low, high)
    if peak > 1:
        raise UserError(f"samples reach {peak:g}, expected values in [-1, 1]; {CONVERT}")
    if high - low <= SILENT_RANGE:
        raise UserError("the whole clip is silent; record it again, or remove it from the filelist")
    return samples


@lru_cache(maxsize=8)
def mel_filters(hparams: VoiceSettings, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return triangular mel filters with Slaney's scale and norm.

    The filters are float32 [n_mel_channels, filter_length / 2 + 1].
    """
    import librosa

    # Hide librosa's warning about empty bands. `silent_bands` prints its own warning, which also
    # lists the settings to change.
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
    """Return a warning if some mel bands contain no FFT bin, otherwise None."""
    empty = int((mel_filters(hparams).max(dim=1).values == 0).sum())
    if not empty:
        return None
    return (
        f"warning: {empty} of n_mel_channels={hparams.n_mel_channels} mel bands are always silent, "
        f"because filter_length={hparams.filter_length} is too short for such narrow bands. Set "
        "fewer bands, a longer filter, or a larger difference between mel_fmin and mel_fmax"
    )


def log_mel_spectrogram(samples: torch.Tensor, hparams: VoiceSettings) -> torch.Tensor:
    """Return log-mel magnitudes (natural logarithm), as in NVIDIA's Tacotron 2 and WaveGlow.

    mel = log_mel_spectrogram(read_audio("a.wav", hparams), hparams)

    The result is float32 [n_mel_channels, 1 + N // hop_length].

    Each Fourier transform covers filter_length samples, with a periodic Hann window in the center.
    The clip is padded with its reflection at both ends. Mel filters with Slaney's scale and norm
    are applied to magnitudes (not powers). Mel magnitudes below 1e-5 are set to 1e-5.

    Args:
        samples: floats [N] in [-1, 1]; N must be at least `minimum_samples`.

    Raises:
        UserError: if samples are outside [-1, 1].
    """
    peak = samples.abs().max().item()
    if not peak <= 1:  # this comparison is also true if `peak` is NaN
        raise UserError(
            f"samples reach {peak:g}, expected values in [-1, 1]; divide 16-bit samples by 32768"
        )
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
