"""Sound in and out, the log-mel against golden arrays and a plain numpy version, Griffin-Lim."""

import re
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from helpers import OTHER_THAN_FILES, locked, make_other_than_file
from hypothesis import given, settings
from hypothesis import strategies as st

from audio import (
    check_sound,
    frame_count,
    griffin_lim,
    log_mel_spectrogram,
    mel_filters,
    mel_fingerprint,
    minimum_samples,
    read_audio,
    read_header,
    write_mel,
    write_wav,
)
from hparams import HParams, create_hparams

GOLDEN = Path(__file__).parents[2] / "shared" / "golden" / "mel_dev.npz"
REFERENCE = HParams()
PAPER = create_hparams("win_time=50,hop_time=12.5")
BOTH = pytest.mark.parametrize("h", [REFERENCE, PAPER], ids=["1024_256", "2048_276"])


def speech_like(seconds=1.5, rate=22050, seed=0):
    """Harmonics of a gliding pitch under a syllable-like envelope, and some noise: float32 [N]."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * t)) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    envelope = 0.55 + 0.45 * np.sin(2 * np.pi * 3 * t)
    samples = 0.2 * envelope * voice + 0.005 * rng.standard_normal(len(t))
    return torch.from_numpy(samples.astype(np.float32))


def slaney_mel(hertz):
    """Linear below 1000 Hz (200/3 Hz a mel), logarithmic above (27 mels to a factor of 6.4)."""
    hertz = np.asarray(hertz, dtype=float)
    above = 15 + 27 * np.log(np.maximum(hertz, 1e-9) / 1000) / np.log(6.4)
    return np.where(hertz < 1000, hertz * 3 / 200, above)


def slaney_hertz(mel):
    mel = np.asarray(mel, dtype=float)
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def band_edges(h):
    """[n_mels + 2] Hz: band b rises from edge b to b + 1 and falls to b + 2."""
    return slaney_hertz(
        np.linspace(slaney_mel(h.mel_fmin), slaney_mel(h.mel_fmax), h.n_mel_channels + 2)
    )


def naive_log_mel(samples, h):
    """The log-mel by the book, in float64 numpy."""
    half, size = h.filter_length // 2, h.filter_length
    window = np.zeros(size)  # the window lies in the middle of the filter
    start = (size - h.win_length) // 2
    turns = np.arange(h.win_length) / h.win_length  # periodic: the end is not the start again
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


# ---------------------------------------------------------------------------- log-mel


@pytest.mark.skipif(not GOLDEN.exists(), reason="golden arrays (../shared) are not here")
@BOTH
@pytest.mark.parametrize("clip", ["LJ001-0002", "LJ001-0008", "LJ002-0020"])
def test_log_mel_meets_the_reference(clip, h):
    with np.load(GOLDEN, allow_pickle=False) as golden:
        samples = torch.from_numpy(golden[f"{clip}/wav_int16"].astype(np.float32) / 32768)
        expected = golden[f"{clip}/{h.filter_length}_{h.hop_length}"]
    mel = log_mel_spectrogram(samples, h)
    assert mel.dtype == torch.float32
    assert mel.shape == expected.shape
    difference = np.abs(mel.numpy() - expected)
    assert difference.max() <= 3e-3
    assert difference.mean() <= 2e-5


@pytest.mark.parametrize(
    "h",
    [
        REFERENCE,
        PAPER,
        create_hparams("mel_fmin=125,mel_fmax=7600,n_mel_channels=64,hop_length=300"),
    ],
    ids=["1024_256", "2048_276", "other bands"],
)
def test_log_mel_equals_the_textbook_in_numpy(h):
    samples = speech_like()
    mel, expected = log_mel_spectrogram(samples, h).numpy(), naive_log_mel(samples, h)
    assert mel.shape == expected.shape
    difference = np.abs(mel - expected)
    assert difference.max() <= 3e-3
    assert difference.mean() <= 2e-5


@BOTH
@pytest.mark.parametrize("hertz", [220, 440, 1000, 3000, 7000])
def test_a_pure_tone_is_loudest_in_its_band(hertz, h):
    t = torch.arange(22050) / 22050
    mel = log_mel_spectrogram(0.5 * torch.sin(2 * torch.pi * hertz * t), h)
    edges, inside = band_edges(h), slice(5, -5)
    (band,) = set(mel[:, inside].argmax(dim=0).tolist())
    assert edges[band] < hertz < edges[band + 2]
    spread = mel[:, inside].std(dim=1)[band]
    assert spread < 1e-3  # a steady tone makes steady frames
    half_as_loud = log_mel_spectrogram(0.25 * torch.sin(2 * torch.pi * hertz * t), h)
    step = (mel - half_as_loud)[band, inside]  # magnitudes: half is -log 2; powers: -log 4
    assert torch.allclose(step, torch.full_like(step, float(np.log(2))), atol=1e-4)


def test_silence_is_the_logarithm_of_the_floor():
    mel = log_mel_spectrogram(torch.zeros(4000), REFERENCE)
    assert torch.allclose(mel, torch.full_like(mel, -11.512925), atol=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_samples=st.one_of(
        st.integers(1025, 9000), st.integers(4, 30).flatmap(lambda k: st.sampled_from(
            [k * 276 - 1, k * 276, k * 256 + 1024, k * 256 + 1023]))
    )
)  # fmt: skip
def test_frames_are_one_and_a_frame_a_hop(num_samples):
    for h, hop in ((REFERENCE, 256), (PAPER, 276)):
        if num_samples >= minimum_samples(h):
            frames = log_mel_spectrogram(torch.zeros(num_samples), h).shape[1]
            assert frames == frame_count(num_samples, h) == 1 + num_samples // hop


@BOTH
def test_the_shortest_clip_allowed_has_a_mel(h):
    shortest = minimum_samples(h)
    assert shortest == h.filter_length // 2 + 1
    assert log_mel_spectrogram(torch.zeros(shortest), h).shape == (80, 1 + shortest // h.hop_length)
    with pytest.raises(ValueError, match=str(shortest)):
        log_mel_spectrogram(torch.zeros(shortest - 1), h)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (torch.zeros(0), r"\[0\]"),
        (torch.zeros(1, 4000), r"\[1, 4000\]"),
        (torch.full((4000,), 1.01), "reach 1.01"),
        (torch.full((4000,), -1.5), "reach 1.5"),
        (torch.full((4000,), float("nan")), "reach nan"),
        (torch.full((4000,), float("inf")), "reach inf"),
        (torch.full((4000,), 12345.0), "32768"),
    ],
)
def test_samples_that_are_no_sound_are_refused(samples, words):
    with pytest.raises(ValueError, match=words):
        log_mel_spectrogram(samples, REFERENCE)


def test_full_scale_samples_are_fine():
    samples = torch.ones(4000)
    samples[::2] = -1
    assert torch.isfinite(log_mel_spectrogram(samples, REFERENCE)).all()


def test_filters_do_not_mix_between_settings():
    """The cached bank belongs to its settings, whichever came first."""
    for h in (REFERENCE, PAPER, create_hparams("n_mel_channels=40"), REFERENCE):
        assert mel_filters(h).shape == (h.n_mel_channels, h.filter_length // 2 + 1)
    narrow = mel_filters(create_hparams("mel_fmax=4000"))
    assert narrow[:, 4100 * 1024 // 22050 :].abs().max() == 0 < mel_filters(REFERENCE)[:, 300].max()


def test_the_fingerprint_changes_with_every_setting_of_the_mel_and_no_other():
    changes = (
        "sampling_rate=24000",
        "filter_length=2048",
        "hop_length=300",
        "win_length=1000",
        "n_mel_channels=40",
        "mel_fmin=20",
        "mel_fmax=7600",
    )
    prints = {mel_fingerprint(create_hparams(c))["sha256"] for c in ("", *changes)}
    assert len(prints) == 1 + len(changes)
    same = create_hparams("batch_size=3,mel_fmin=0,text_cleaners=[basic_cleaners]")
    assert mel_fingerprint(same) == mel_fingerprint(REFERENCE)
    whole = HParams(mel_fmax=8000)  # an int where the default is a float
    assert mel_fingerprint(whole)["sha256"] == mel_fingerprint(REFERENCE)["sha256"]


# ---------------------------------------------------------------------------- Griffin-Lim


@BOTH
def test_griffin_lim_sounds_like_the_mel(h):
    """The log-mels lie 0.12 and 0.13 apart (measured), those of noise as loud 1.8."""
    samples = speech_like()
    mel = log_mel_spectrogram(samples, h)
    again = torch.from_numpy(griffin_lim(mel, h)).clamp(-1, 1)
    assert len(again) == h.hop_length * mel.shape[1] - 1
    distance = (log_mel_spectrogram(again, h) - mel).abs()
    assert distance.mean() < 0.2
    noise = torch.randn(len(samples), generator=torch.Generator().manual_seed(0)) * samples.std()
    assert (log_mel_spectrogram(noise.clamp(-1, 1), h) - mel).abs().mean() > 1


def test_griffin_lim_is_deterministic():
    mel = log_mel_spectrogram(speech_like(0.4), REFERENCE)
    first = griffin_lim(mel, REFERENCE, iterations=5)
    np.random.seed(3)  # noqa: NPY002 (the global state must not matter)
    np.testing.assert_array_equal(first, griffin_lim(mel, REFERENCE, iterations=5))


@BOTH
@pytest.mark.parametrize("frames", [1, 2, 3, 5, 8])
def test_griffin_lim_speaks_mels_of_a_few_frames(frames, h):
    mel = log_mel_spectrogram(speech_like(0.5), h)[:, 12 : 12 + frames]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = griffin_lim(mel, h)
    assert len(samples) == h.hop_length * frames - 1  # the longest sound of so many frames
    assert frame_count(len(samples), h) == frames
    assert np.isfinite(samples).all()
    assert 0.01 < np.abs(samples).max() < 2


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize(("name", "subtype"), [("a.wav", "PCM_16"), ("b.flac", "PCM_16")])
def test_a_sound_file_reads_back(tmp_path, name, subtype):
    samples = speech_like(0.5).clamp(-1, 1)
    path = tmp_path / name
    soundfile.write(path, samples.numpy(), 22050, subtype=subtype)
    assert read_header(path, REFERENCE) == len(samples)
    read = read_audio(str(path), REFERENCE)
    assert read.dtype == torch.float32
    assert read.shape == samples.shape
    assert (read - samples).abs().max() <= 1 / 32768  # half a 16-bit step, and rounding


def test_16_bit_samples_are_divided_by_32768(tmp_path):
    steps = np.array([0, 1, -1, 16384, 32767, -32768] * 200, dtype=np.int16)
    soundfile.write(tmp_path / "steps.wav", steps, 22050)
    expected = steps.astype(np.float32) / 32768
    np.testing.assert_array_equal(read_audio(tmp_path / "steps.wav", REFERENCE), expected)


def test_write_wav_reads_back(tmp_path):
    samples = speech_like(0.3).numpy()
    write_wav(tmp_path / "a.wav", samples, 22050)
    info = soundfile.info(tmp_path / "a.wav")
    assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
    assert np.abs(read_audio(tmp_path / "a.wav", REFERENCE).numpy() - samples).max() < 1 / 16384


def test_write_wav_scales_loud_samples_instead_of_clipping(tmp_path):
    t = np.arange(8000)
    wave = np.sin(2 * np.pi * t / 100)
    write_wav(tmp_path / "loud.wav", 3 * wave, 22050)
    write_wav(tmp_path / "soft.wav", 0.25 * wave, 22050)
    loud = read_audio(tmp_path / "loud.wav", REFERENCE).numpy()
    soft = read_audio(tmp_path / "soft.wav", REFERENCE).numpy()
    assert np.abs(loud - wave).max() < 1e-4  # scaled as a whole: the shape is that of the wave
    assert np.abs(soft - 0.25 * wave).max() < 1e-4  # what fits is not touched


def test_write_wav_refuses_samples_that_are_not_finite(tmp_path):
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="nan or infinity"):
            write_wav(tmp_path / "bad.wav", np.array([0.0, bad, 0.5]), 22050)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 100, 127, 30_000, 32_127])
def test_a_mel_that_the_disk_refuses_to_the_last_byte_is_an_error_and_leaves_nothing(
    size, tmp_path
):
    """Of 32,128 bytes; a limit of file sizes stands for the full disk."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_mel(tmp_path / "a.npy", np.zeros((80, 100), dtype=np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_write_wav_writes_a_silent_and_an_empty_clip(tmp_path):
    for samples in (np.zeros(100), np.zeros(0)):
        write_wav(tmp_path / "a.wav", samples, 22050)
        assert soundfile.info(tmp_path / "a.wav").frames == len(samples)


def faulty_file(path, fault):
    silence = np.zeros(4000)
    if fault in OTHER_THAN_FILES:
        make_other_than_file(path, fault)
    elif fault == "text":
        path.write_text("no sound at all\n" * 100)
    elif fault == "nothing":
        path.touch()
    elif fault == "stereo":
        soundfile.write(path, np.stack([silence] * 2, axis=1), 22050)
    elif fault == "rate":
        soundfile.write(path, silence, 16000)
    elif fault == "no samples":
        soundfile.write(path, silence[:0], 22050)
    elif fault == "short":
        soundfile.write(path, silence[:512], 22050)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", ["no such file", "check"]),
        *((kind, [f"{kind}, expected a file"]) for kind in OTHER_THAN_FILES),
        ("text", ["not readable as sound", "convert"]),
        ("nothing", ["not readable as sound"]),
        ("stereo", ["2 channels, expected mono", "mix"]),
        ("rate", ["16000 Hz, expected 22050", "resample", "sampling_rate=16000"]),
        ("no samples", ["empty", "at least 513 samples", "leave the clip out"]),
        ("short", ["512 samples, expected at least 513"]),
    ],
)
def test_a_faulty_file_is_refused_with_what_mends_it(tmp_path, fault, words):
    path = tmp_path / "clip.wav"
    faulty_file(path, fault)
    for read in (read_header, read_audio, check_sound):
        with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
            read(path, REFERENCE)
        for word in words:
            assert word in str(caught.value)


def test_a_wav_cut_short_is_as_short_as_its_samples(tmp_path):
    """Not as long as its header says; the filelist's seconds then tell that it was cut."""
    samples = speech_like(0.5).numpy()
    soundfile.write(tmp_path / "whole.wav", samples, 22050)
    whole = (tmp_path / "whole.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    num_samples = read_header(tmp_path / "cut.wav", REFERENCE)
    assert len(samples) // 2 - 50 < num_samples <= len(samples) // 2
    assert len(read_audio(tmp_path / "cut.wav", REFERENCE)) == num_samples


def test_a_flac_cut_short_is_refused(tmp_path):
    soundfile.write(tmp_path / "whole.flac", speech_like(0.5).numpy(), 22050)
    whole = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"not readable as sound .*; copy or convert it again"):
        read_audio(tmp_path / "cut.flac", REFERENCE)


def test_a_sound_that_may_not_be_read_is_a_matter_of_permission(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, speech_like(0.1).numpy(), 22050)
    with locked(path):
        for read in (read_header, read_audio, check_sound):
            with pytest.raises(ValueError, match=r"permission denied; let your user read it"):
                read(path, REFERENCE)


# ---------------------------------------------------------------------------- every sample


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.wav", {"subtype": "PCM_16"}),
        ("a.wav", {"subtype": "PCM_24"}),
        ("a.wav", {"subtype": "PCM_U8"}),
        ("a.wav", {"subtype": "FLOAT"}),
        ("a.wav", {"subtype": "DOUBLE"}),
        ("a.wav", {"subtype": "PCM_16", "format": "WAVEX"}),
        ("a.flac", {"subtype": "PCM_16"}),
        ("a.wav", {"subtype": "PCM_16", "format": "FLAC"}),  # read as what it is
    ],
)
def test_a_sound_fit_for_training_passes_however_it_is_stored(tmp_path, name, options):
    samples = speech_like(0.3).numpy() / 2
    soundfile.write(tmp_path / name, samples, 22050, **options)
    assert check_sound(tmp_path / name, REFERENCE) == len(samples)
    log_mel_spectrogram(read_audio(tmp_path / name, REFERENCE), REFERENCE)


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("peak", [0.001, 1.0])
def test_quiet_and_full_scale_sounds_pass(tmp_path, subtype, peak):
    samples = peak * np.sin(np.arange(4000) / 10)
    samples[7], samples[9] = -peak, peak
    soundfile.write(tmp_path / "a.wav", samples, 22050, subtype=subtype)
    assert check_sound(tmp_path / "a.wav", REFERENCE) == 4000


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            np.nan,
            r"sample 2205 \(at 0.10 s\) is nan, expected finite numbers; .* leave the clip out",
        ),
        (np.inf, r"sample 2205 \(at 0.10 s\) is inf"),
        (-np.inf, r"sample 2205 \(at 0.10 s\) is -inf"),
        (1.5, r"samples reach 1.5, expected \[-1, 1\]; scale it: sox --norm"),
        (-12345.0, r"samples reach 12345, expected"),
    ],
)
def test_samples_that_no_mel_can_be_made_of_are_found(tmp_path, subtype, bad, words):
    samples = speech_like(0.3).numpy()
    samples[2205] = bad
    soundfile.write(tmp_path / "a.wav", samples, 22050, subtype=subtype)
    assert read_header(tmp_path / "a.wav", REFERENCE) == len(samples)  # does not tell
    with pytest.raises(ValueError, match=words):
        check_sound(tmp_path / "a.wav", REFERENCE)


@pytest.mark.parametrize("silence", ["zeros", "offset", "dither"])
@pytest.mark.parametrize(
    "options", [{"subtype": "PCM_16"}, {"subtype": "FLOAT"}, {"format": "FLAC"}]
)
def test_a_clip_silent_throughout_is_found(tmp_path, silence, options):
    dither = np.random.default_rng(0).integers(-1, 2, 4000) / 32768
    samples = {"zeros": np.zeros(4000), "offset": np.full(4000, 0.25), "dither": dither}[silence]
    soundfile.write(tmp_path / "a.wav", samples, 22050, **options)
    with pytest.raises(ValueError, match=r"silent from beginning to end; .*leave the clip out"):
        check_sound(tmp_path / "a.wav", REFERENCE)


@pytest.mark.parametrize("kind", ["OGG", "MP3", "AIFF", "AU", "CAF", "RF64"])
def test_other_formats_under_the_name_wav_are_named_with_how_to_convert_them(tmp_path, kind):
    path = tmp_path / "clip.wav"
    soundfile.write(path, speech_like(0.3).numpy(), 22050, format=kind)
    with pytest.raises(ValueError, match=r"expected WAV or FLAC; convert it: ffmpeg") as caught:
        check_sound(path, REFERENCE)
    assert {"MP3": "MPEG"}.get(kind, kind) in str(caught.value).partition(", expected")[0]


@pytest.mark.parametrize("damage", ["a flipped bit", "a zeroed block", "a missing block"])
@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_a_flac_damaged_inside_is_found(tmp_path, damage, place):
    path = tmp_path / "clip.flac"
    soundfile.write(path, speech_like(1.0).numpy(), 22050)
    content = bytearray(path.read_bytes())
    start = int(place * len(content))
    if damage == "a flipped bit":
        content[start] ^= 16
    elif damage == "a zeroed block":
        content[start : start + 512] = bytes(512)
    else:
        del content[start : start + 512]
    path.write_bytes(content)
    assert read_header(path, REFERENCE) == 22050  # does not tell
    with pytest.raises(ValueError, match=r"cut off or damaged inside; copy or convert it again"):
        check_sound(path, REFERENCE)


@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("kept", [0.3, 0.9, -4])
def test_a_sound_that_is_cut_off_is_found(tmp_path, kind, kept):
    path = tmp_path / f"clip.{kind}"
    soundfile.write(path, speech_like(0.5).numpy(), 22050)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept > 0 else kept])
    with pytest.raises(ValueError, match="cut off"):
        check_sound(path, REFERENCE)
