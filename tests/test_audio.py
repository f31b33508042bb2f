"""Test the reading of audio files, and compare the log-mel with golden arrays and plain numpy."""

import os
import re
import tracemalloc
import warnings

import numpy as np
import pytest
import soundfile
import torch
from helpers import GOLDEN, OTHER_THAN_FILES, make_other_than_file

from audio import (
    log_mel_spectrogram,
    mel_filters,
    mel_fingerprint,
    minimum_samples,
    read_audio,
    read_checked,
    read_header,
    settings_at,
    silent_bands,
    unusual_frames,
)
from corpus.convert import converted
from hparams import HParams, create_hparams
from tacotron2_voice.utils.audio_files import write_wav
from tacotron2_voice.utils.errors import UserError

REFERENCE = HParams()
PAPER = create_hparams("win_time=50,hop_time=12.5")
BOTH = pytest.mark.parametrize("h", [REFERENCE, PAPER], ids=["1024_256", "2048_276"])


def speech_like(seconds=1.5, rate=22050, seed=0):
    """Return harmonics of a gliding pitch with syllables and noise, float32 [N]."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * t)) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    envelope = 0.55 + 0.45 * np.sin(2 * np.pi * 3 * t)
    samples = 0.2 * envelope * voice + 0.005 * rng.standard_normal(len(t))
    return torch.from_numpy(samples.astype(np.float32))


def slaney_mel(hertz):
    """Convert mels to Hz with Slaney's scale.

    The scale is linear below 1000 Hz (200/3 Hz per mel) and logarithmic above (27 mels per factor
    of 6.4).
    """
    hertz = np.asarray(hertz, dtype=float)
    above = 15 + 27 * np.log(np.maximum(hertz, 1e-9) / 1000) / np.log(6.4)
    return np.where(hertz < 1000, hertz * 3 / 200, above)


def slaney_hertz(mel):
    mel = np.asarray(mel, dtype=float)
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def band_edges(h):
    """Return the band edges [n_mels + 2] in Hz. Band b rises from edge b to edge b + 1, and falls
    to edge b + 2."""
    return slaney_hertz(
        np.linspace(slaney_mel(h.mel_fmin), slaney_mel(h.mel_fmax), h.n_mel_channels + 2)
    )


def naive_log_mel(samples, h):
    """Compute the log-mel from its definition, in float64."""
    half, size = h.filter_length // 2, h.filter_length
    window = np.zeros(size)  # the window is centered in the FFT frame
    start = (size - h.win_length) // 2
    # A periodic window is zero only at its start.
    turns = np.arange(h.win_length) / h.win_length
    window[start : start + h.win_length] = 0.5 - 0.5 * np.cos(2 * np.pi * turns)
    x = np.asarray(samples, dtype=np.float64)
    x = np.concatenate([x[half:0:-1], x, x[-2 : -2 - half : -1]])
    starts = range(0, len(x) - size + 1, h.hop_length)
    magnitudes = np.stack([np.abs(np.fft.rfft(x[s : s + size] * window)) for s in starts], axis=1)
    bins, edges = np.arange(half + 1) * h.sampling_rate / size, band_edges(h)
    triangles = []
    for low, peak, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)
        triangles.append(np.clip(np.minimum(rising, falling), 0, None) * 2 / (high - low))
    return np.log(np.maximum(np.stack(triangles) @ magnitudes, 1e-5))


@BOTH
@pytest.mark.parametrize("clip", ["LJ001-0002", "LJ001-0008", "LJ002-0020"])
def test_log_mel_matches_the_recorded_nvidia_log_mel(clip, h):
    with np.load(GOLDEN / "mel_dev.npz", allow_pickle=False) as golden:
        samples = torch.from_numpy(golden[f"{clip}/wav_int16"].astype(np.float32) / 32768)
        expected = golden[f"{clip}/{h.filter_length}_{h.hop_length}"]
    mel = log_mel_spectrogram(samples, h)
    assert mel.dtype == torch.float32
    assert mel.shape == expected.shape
    difference = np.abs(mel.numpy() - expected)
    assert difference.max() <= 3e-3
    assert difference.mean() <= 2e-5


def test_log_mel_matches_its_definition_in_plain_numpy():
    h = create_hparams("mel_fmin=125,mel_fmax=7600,n_mel_channels=64,hop_length=300")
    samples = speech_like()
    mel, expected = log_mel_spectrogram(samples, h).numpy(), naive_log_mel(samples, h)
    assert mel.shape == expected.shape
    difference = np.abs(mel - expected)
    assert difference.max() <= 3e-3
    assert difference.mean() <= 2e-5


@BOTH
def test_shortest_allowed_clip_has_a_mel(h):
    shortest = minimum_samples(h)
    assert log_mel_spectrogram(torch.zeros(shortest), h).shape == (80, 1 + shortest // h.hop_length)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (torch.full((4000,), -1.5), "reach 1.5"),
        (torch.full((4000,), float("nan")), "reach nan"),
        (torch.full((4000,), 12345.0), "32768"),
    ],
)
def test_log_mel_spectrogram_raises_when_samples_are_invalid(samples, words):
    with pytest.raises(ValueError, match=words):
        log_mel_spectrogram(samples, REFERENCE)


def test_mel_fingerprint_changes_only_when_mel_settings_change():
    changes = ("sampling_rate=24000", "filter_length=2048", "hop_length=300", "win_length=1000")
    changes += ("n_mel_channels=40", "mel_fmin=20", "mel_fmax=7600")
    for change in changes:
        assert mel_fingerprint(create_hparams(change)) != mel_fingerprint(REFERENCE)
    same = create_hparams("batch_size=3,mel_fmin=0,mel_fmax=8000,text_cleaners=[basic_cleaners]")
    assert mel_fingerprint(same) == mel_fingerprint(REFERENCE)


@pytest.mark.parametrize("name", ["a.wav", "b.flac"])
def test_samples_read_from_16_bit_audio_are_divided_by_32768(tmp_path, name):
    steps = np.array([0, 1, -1, 16384, 32767, -32768] * 200, dtype=np.int16)
    soundfile.write(tmp_path / name, steps, 22050)
    assert read_header(tmp_path / name, REFERENCE) == len(steps)
    read = read_audio(tmp_path / name, REFERENCE)
    assert read.dtype == torch.float32
    np.testing.assert_array_equal(read, steps.astype(np.float32) / 32768)


def test_samples_of_a_wav_are_scaled_only_when_they_are_too_loud(tmp_path):
    wave = np.sin(2 * np.pi * np.arange(8000) / 100)
    for factor in (3, 0.25):  # with the factor 3, the loudest samples exceed full scale
        write_wav(tmp_path / "a.wav", factor * wave, 22050)
        read = read_audio(tmp_path / "a.wav", REFERENCE).numpy()
        assert np.abs(read - min(factor, 1) * wave).max() < 1e-4
    with pytest.raises(ValueError, match=r"bad\.wav"):
        write_wav(tmp_path / "bad.wav", np.array([0.0, np.inf, 0.5]), 22050)
    assert not (tmp_path / "bad.wav").exists()


def faulty_file(path, fault):
    if fault in OTHER_THAN_FILES:
        make_other_than_file(path, fault)
    elif fault == "text":
        path.write_text("no sound at all\n" * 100)
    elif fault != "missing":
        shape = {"stereo": (4000, 2), "short": 512}.get(fault, 4000)
        soundfile.write(path, np.zeros(shape), 16000 if fault == "rate" else 22050)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", ["no such file", "check"]),
        *((kind, [kind, "expected a file"]) for kind in OTHER_THAN_FILES),
        ("text", ["cannot read this file as audio"]),
        ("stereo", ["2 channels, expected 1", "--convert"]),
        ("rate", ["16000 Hz, expected 22050", "--convert", "sampling_rate=16000,"]),
        ("short", ["512 samples, expected at least 513"]),
    ],
)
def test_error_suggests_a_fix_when_an_audio_file_is_invalid(tmp_path, fault, words):
    path = tmp_path / "clip.wav"
    faulty_file(path, fault)
    for read in (read_header, read_audio, read_checked):
        with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
            read(path, REFERENCE)
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"subtype": "PCM_24"},
        {"subtype": "PCM_16", "format": "WAVEX"},
        # The format is detected from the content of the file, not from its name.
        {"subtype": "PCM_16", "format": "FLAC"},
        {"subtype": "PCM_U8"},
        {"subtype": "DOUBLE"},
    ],
)
@pytest.mark.parametrize("peak", [0.05, 1.0])
def test_audio_file_is_read_in_every_supported_format(tmp_path, options, peak):
    samples = peak * np.sin(np.arange(4000) / 10)
    samples[7], samples[9] = -peak, peak
    soundfile.write(tmp_path / "a.wav", samples, 22050, **options)
    assert len(read_checked(tmp_path / "a.wav", REFERENCE)) == 4000
    log_mel_spectrogram(read_audio(tmp_path / "a.wav", REFERENCE), REFERENCE)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.nan, r"sample 2205 \(at 0.10 s\) is nan"),
        (-np.inf, r"sample 2205 \(at 0.10 s\) is -inf"),
        (-1.5, r"samples reach 1.5, expected values in \[-1, 1\]; .*--convert"),
    ],
)
def test_clip_is_rejected_when_its_samples_are_invalid(tmp_path, bad, words):
    samples = speech_like(0.3).numpy()
    samples[2205] = bad
    soundfile.write(tmp_path / "a.wav", samples, 22050, subtype="FLOAT")
    # Reading only the header does not reveal the error.
    assert read_header(tmp_path / "a.wav", REFERENCE) == len(samples)
    with pytest.raises(ValueError, match=words):
        read_checked(tmp_path / "a.wav", REFERENCE)


@pytest.mark.parametrize(
    ("channels", "rate", "options", "factor"),
    [
        (1, 48000, {}, 1),
        (2, 22050, {}, 1),
        (1, 22050, {"format": "OGG"}, 1),
        (1, 22050, {"subtype": "FLOAT"}, 32768),
    ],
)
def test_rejected_audio_file_is_valid_after_the_conversion_that_the_error_suggests(
    tmp_path, channels, rate, options, factor
):
    speech = speech_like(0.5).numpy().astype(np.float64)
    samples = factor * np.stack([speech / np.abs(speech).max()] * channels, axis=1)
    soundfile.write(tmp_path / "in.wav", samples, rate, **options)
    with pytest.raises(UserError) as caught:
        read_checked(tmp_path / "in.wav", REFERENCE)
    assert "--convert" in str(caught.value)
    copy, _ = converted(tmp_path / "in.wav", 22050)
    soundfile.write(tmp_path / "out.wav", copy, 22050)
    assert len(read_checked(tmp_path / "out.wav", REFERENCE)) > 0


@pytest.mark.parametrize(("rate", "mel_fmax"), [(8000, 4000), (16000, 8000), (44100, 16000)])
def test_settings_suggested_for_a_sampling_rate_keep_the_frame_duration(rate, mel_fmax):
    assert "a frame (hop_length=256) lasts" in unusual_frames(
        create_hparams(f"sampling_rate={rate},mel_fmax=4000")
    )
    h = create_hparams(settings_at(rate))
    assert unusual_frames(h) is None
    assert h.hop_length / rate == pytest.approx(256 / 22050, rel=0.01)
    assert h.win_length / rate == pytest.approx(1024 / 22050, rel=0.01)
    assert h.mel_fmax == mel_fmax


@pytest.mark.parametrize(
    ("settings", "is_usual"),
    [
        ("win_time=50,hop_time=12.5", True),
        ("sampling_rate=24000", True),
        ("sampling_rate=16000", False),
        ("sampling_rate=44100,hop_length=512", False),  # the default window lasts only 23 ms
        ("hop_length=600", False),
    ],
)
def test_warning_is_returned_when_the_frame_duration_is_unusual(settings, is_usual):
    warning = unusual_frames(create_hparams(settings))
    assert (warning is None) == is_usual
    if warning:
        advice = re.search(r"Set (\S+?)(,? |$)", warning)[1]
        assert unusual_frames(create_hparams(advice)) is None


@pytest.mark.parametrize("offset", [0, 0.25])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_clip_is_rejected_when_it_is_silent(tmp_path, offset, subtype):
    samples = offset + np.random.default_rng(0).integers(-1, 2, 4000) / 32768
    soundfile.write(tmp_path / "a.wav", samples, 22050, subtype=subtype)
    with pytest.raises(ValueError, match="silent"):
        read_checked(tmp_path / "a.wav", REFERENCE)


@pytest.mark.parametrize("kind", ["MP3", "AIFF"])
def test_file_is_rejected_when_its_name_ends_in_wav_but_its_content_is_not_wav(tmp_path, kind):
    path = tmp_path / "clip.wav"
    soundfile.write(path, speech_like(0.3).numpy(), 22050, format=kind)
    with pytest.raises(ValueError, match=r"expected WAV or FLAC; .*--convert") as caught:
        read_checked(path, REFERENCE)
    assert {"MP3": "MPEG"}.get(kind, kind) in str(caught.value).partition(", expected")[0]


def test_flac_is_rejected_when_its_samples_are_damaged(tmp_path):
    path = tmp_path / "clip.flac"
    soundfile.write(path, speech_like(1.0).numpy(), 22050)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    assert read_header(path, REFERENCE) == 22050  # the header is intact, so it reveals no damage
    with pytest.raises(ValueError, match=r"truncated or damaged"):
        read_checked(path, REFERENCE)


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
@pytest.mark.parametrize("share", [0, 0.02, 0.999])
def test_clip_is_rejected_when_it_is_truncated(tmp_path, kind, share):
    path = tmp_path / "clip"
    soundfile.write(path, speech_like(1.0).numpy(), 22050, "PCM_16", format=kind)
    assert len(read_checked(path, REFERENCE)) == 22050
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for read in (read_audio, read_checked):
        with pytest.raises(UserError, match=r"truncated|cannot read|0 samples"):
            read(path, REFERENCE)


@pytest.mark.parametrize(
    ("kind", "listed", "is_read"),
    [
        ("FLAC", 0, False),  # the header of a FLAC stream can lack the length
        ("FLAC", 44100, False),
        # Programs that write a WAV file into a pipe put 0xFFFFFFFF into the header as the length.
        ("WAV", 0xFFFFFFFF, True),
        ("WAV", 0, False),
    ],
)
def test_clip_is_read_or_rejected_when_its_header_has_an_incorrect_length(
    tmp_path, kind, listed, is_read
):
    """`listed` is the length in the header: samples for FLAC, bytes for WAV."""
    path = tmp_path / "clip"
    samples = speech_like(1.0).numpy()
    soundfile.write(path, samples, 22050, format=kind)
    content = bytearray(path.read_bytes())
    if kind == "FLAC":
        content[21:26] = (content[21] >> 4 << 36 | listed).to_bytes(5, "big")
    else:
        start = content.index(b"data") + 4
        content[start : start + 4] = listed.to_bytes(4, "little")
        if listed:
            content[4:8] = listed.to_bytes(4, "little")
    path.write_bytes(content)
    if is_read:
        np.testing.assert_allclose(read_audio(path, REFERENCE), samples, atol=2**-15)
    else:
        with pytest.raises(UserError, match=r"samples|truncated"):
            read_checked(path, REFERENCE)


def test_long_clip_is_rejected_before_it_fills_the_memory(tmp_path):
    """The header of this sparse file lists hours of audio."""
    path = tmp_path / "clip.wav"
    soundfile.write(path, speech_like(1.0).numpy(), 22050)
    content = bytearray(path.read_bytes())
    content[4:8] = b"\xff" * 4
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff" * 4
    path.write_bytes(content)
    os.truncate(path, 10 * 2**30)
    tracemalloc.start()
    with pytest.raises(UserError, match="expected at most"):
        read_checked(path, REFERENCE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28


def test_warning_is_returned_when_mel_bands_are_silent():
    """The project's own warning replaces librosa's warning."""
    h = create_hparams("n_mel_channels=500")
    mel_filters.cache_clear()
    with warnings.catch_warnings(action="error"):
        empty = int((mel_filters(h).max(dim=1).values == 0).sum())
        assert silent_bands(h).startswith(f"warning: {empty} of n_mel_channels=500 mel bands ")
    assert silent_bands(REFERENCE) is None
