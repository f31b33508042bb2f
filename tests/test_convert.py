"""Test prepare.py --convert (corpus/convert.py)."""

import json
import os
import re
import shutil
import wave

import numpy as np
import pytest
import soundfile
from corpora import RATE, contents, prepare_with, refusal
from helpers import LJSPEECH_CLIPS

from audio import ogg_checksum
from corpus import convert as convert_module
from corpus.clips import Segment
from corpus.convert import (
    LEVEL,
    MAX_PEAK,
    convert,
    converted,
    mixed,
    read_channels,
    speech_level,
)
from hparams import create_hparams
from scripts import prepare

HPARAMS = create_hparams()
CLIP = LJSPEECH_CLIPS / "LJ001-0008.wav"


def speech():
    return soundfile.read(CLIP, dtype="float32")[0]


def decibels(level):
    return 20 * np.log10(level)


@pytest.fixture
def recordings(tmp_path):
    """Write three recordings of the same speech.

    The recordings are a quiet 48 kHz stereo file with silence at both ends, an MP3 file, and the
    original.
    """
    import librosa

    folder = tmp_path / "recordings"
    folder.mkdir()
    fast = librosa.resample(speech(), orig_sr=RATE, target_sr=48_000)
    silence = np.zeros(48_000, np.float32)
    stereo = np.concatenate([silence, 0.05 * fast, silence])
    soundfile.write(folder / "a.flac", np.stack([stereo, stereo], axis=1), 48_000)
    soundfile.write(folder / "b.mp3", fast, 48_000)
    soundfile.write(folder / "c.wav", speech(), RATE, "PCM_24")
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"Take {name}.\n")
    return folder


def test_recordings_are_converted_to_one_format_and_level(recordings, tmp_path):
    """The recordings contain the same speech, so the copies must be nearly identical."""
    before = contents(recordings)
    problems, total = convert(recordings, tmp_path / "out", None, HPARAMS)
    assert (problems, total) == ([], 3)
    assert contents(recordings) == before
    metadata = (tmp_path / "out" / "metadata.csv").read_text()
    assert metadata == "a|Take a.\nb|Take b.\nc|Take c.\n"
    original = speech()
    for name in "abc":
        sound = soundfile.SoundFile(tmp_path / "out" / "wavs" / f"{name}.wav")
        assert (sound.channels, sound.samplerate, sound.subtype) == (1, RATE, "PCM_16")
        samples = sound.read(dtype="float32")
        assert decibels(speech_level(samples, RATE)) == pytest.approx(LEVEL, abs=0.2)
        assert abs(len(samples) - len(original)) < 0.15 * RATE
        lags = np.correlate(samples, original[3000:-3000], "valid")
        matched = samples[np.argmax(lags) :][: len(original) - 6000]
        assert np.corrcoef(matched, original[3000:-3000])[0, 1] > 0.99


def test_corpus_is_rejected_when_it_lists_no_recordings(recordings, tmp_path):
    (recordings / "wav.scp").write_text("a a.flac\n")
    (recordings / "text").write_text("")
    message = f"{recordings}: contains no recordings"
    assert message in refusal(convert, recordings, tmp_path / "out", None, HPARAMS)
    assert not (tmp_path / "out").exists()


def test_recordings_are_not_converted_when_several_texts_are_none(recordings, tmp_path):
    (recordings / "metadata.csv").write_text("a|none\nb|none\nc|It rained all day.\n")
    problems, total = convert(recordings, tmp_path / "out", None, HPARAMS)
    assert (len(problems), total) == (2, 3)
    assert all("'none' usually means that the text is missing" in problem for problem in problems)


def test_conversion_shortens_silence_at_both_ends_of_a_recording(recordings):
    samples, cut_seconds = converted(recordings / "a.flac", RATE)
    assert cut_seconds == pytest.approx(1.9, abs=0.15)
    assert len(samples) < len(speech()) + 0.11 * RATE


def test_peaks_of_converted_recordings_stay_below_full_scale(tmp_path):
    samples = 0.01 * speech()
    samples[len(samples) // 2] = 0.9
    soundfile.write(tmp_path / "click.wav", samples, RATE)
    loud, _ = converted(tmp_path / "click.wav", RATE)
    assert np.abs(loud).max() == pytest.approx(MAX_PEAK, abs=1e-3)


def test_stereo_channels_with_opposite_phase_do_not_cancel_when_mixed():
    one = speech()
    np.testing.assert_allclose(mixed(np.stack([one, one + 0.1], axis=1)), one, atol=2e-3)
    opposite = mixed(np.stack([one, -0.9 * one], axis=1))
    np.testing.assert_allclose(opposite, one - one.mean(), atol=1e-6)


def test_converted_copy_is_made_again_only_when_its_recording_has_changed(
    recordings, tmp_path, capsys
):
    convert(recordings, tmp_path / "out", None, HPARAMS)
    before = contents(tmp_path / "out")
    capsys.readouterr()
    convert(recordings, tmp_path / "out", None, HPARAMS)
    assert contents(tmp_path / "out") == before
    assert "3 of 3 files already exist in" in capsys.readouterr().out
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("recordings", "out"):
        (tmp_path / name).rename(moved / name)
    convert(moved / "recordings", moved / "out", None, HPARAMS)
    for name in ("recordings", "out"):
        (moved / name).rename(tmp_path / name)
    soundfile.write(recordings / "c.wav", speech()[:20_000], RATE)
    convert(recordings, tmp_path / "out", None, HPARAMS)
    after = contents(tmp_path / "out")
    changed = sorted(name for name in after if after[name] != before[name])
    assert changed == ["wavs/c.wav", "wavs/sources.json"]
    other = create_hparams("sampling_rate=16000,win_time=46.4,hop_time=11.6,mel_fmax=8000")
    assert "--convert" in refusal(convert, recordings, tmp_path / "out", None, other)


@pytest.mark.parametrize("content", [b"", b"no audio", None])
def test_converted_copy_is_made_again_when_it_is_damaged(recordings, tmp_path, capsys, content):
    convert(recordings, tmp_path / "out", None, HPARAMS)
    before = contents(tmp_path / "out")
    copy = tmp_path / "out" / "wavs" / "b.wav"
    copy.write_bytes(copy.read_bytes()[:-5000] if content is None else content)
    capsys.readouterr()
    convert(recordings, tmp_path / "out", None, HPARAMS)
    assert contents(tmp_path / "out") == before
    assert f"note: 1 damaged copies, such as {copy}, were replaced" in capsys.readouterr().out


@pytest.mark.parametrize("inside", ["", "wavs/more"])
def test_output_folder_is_rejected_when_it_is_inside_or_above_the_corpus(
    recordings, tmp_path, inside
):
    """A link to a folder inside the corpus is rejected too. The corpus does not change."""
    (tmp_path / "link").symlink_to(recordings)
    before = contents(recordings)
    for folder in (recordings / inside, tmp_path / "link" / inside):
        message = refusal(convert, recordings, folder, None, HPARAMS)
        assert f"--convert {folder}: this folder is inside" in message
        assert "--convert" in refusal(prepare_with, recordings, tmp_path / "lists", convert=folder)
    assert "--convert" in refusal(
        convert, tmp_path / "link", tmp_path / "link" / "c", None, HPARAMS
    )
    message = refusal(convert, recordings, recordings.parent, None, HPARAMS)
    assert f"--convert {recordings.parent}: this folder contains {recordings}" in message
    assert contents(recordings) == before


def test_converted_copy_is_made_again_when_its_recording_was_replaced(
    recordings, tmp_path, monkeypatch
):
    """An earlier call of prepare may have been interrupted before it wrote the first copy, or
    between two copies."""
    out = tmp_path / "out"

    def killed(*_):
        raise KeyboardInterrupt

    def move_to(name):
        """Move all recordings into the folder `name`.

        The test later replaces the folder of the recordings with another folder of the same name,
        so the ids of the recordings stay the same.
        """
        folder = recordings / name
        folder.mkdir()
        for path in [*recordings.glob("*.*"), *recordings.glob("*/*.*")]:
            path.rename(folder / path.name)

    with monkeypatch.context() as patch:
        patch.setattr(
            convert_module, "write_bytes", lambda path, x: path.write_bytes(x) and killed()
        )
        refusal(convert, recordings, out, None, HPARAMS, error=KeyboardInterrupt)
    assert [*(out / "wavs").glob("*.wav")]
    with monkeypatch.context() as patch:
        patch.setattr(convert_module, "converted", killed)
        move_to("bert")
        refusal(convert, recordings, out, None, HPARAMS, error=KeyboardInterrupt)
    assert not [*(out / "wavs").glob("*.wav")]
    convert(recordings, out, None, HPARAMS)
    (recordings / "bert").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", recordings / "bert")
    before = contents(out / "wavs")
    # The new c.wav has other samples and an earlier modification time than the old c.wav.
    soundfile.write(tmp_path / "away" / "c.wav", speech()[:30_000], RATE)
    os.utime(tmp_path / "away" / "c.wav", (1, 1))
    convert(recordings, out, None, HPARAMS)
    shutil.rmtree(recordings / "bert")
    (tmp_path / "away").rename(recordings / "bert")
    convert(recordings, out, None, HPARAMS)
    after = contents(out / "wavs")
    changed = sorted(name for name in after if after[name] != before[name])
    assert changed == ["c.wav", "sources.json"]


def test_conversion_error_lists_all_invalid_recordings(recordings, tmp_path):
    (recordings / "a.flac").write_bytes(b"no audio")
    (recordings / "b.txt").write_text("A | B")
    content = (recordings / "c.wav").read_bytes()
    (recordings / "c.wav").write_bytes(content[: len(content) // 2])
    soundfile.write(recordings / "d.wav", np.zeros(RATE), RATE)
    (recordings / "d.txt").write_text("\n")
    soundfile.write(recordings / "e.wav", np.random.default_rng(0).choice([0, 5e-5], RATE), RATE)
    (recordings / "e.txt").write_text("E.")
    problems, total = convert(recordings, tmp_path / "out", None, HPARAMS)
    assert total == 5
    assert [word in text for word, text in zip(WORDS, sorted(problems), strict=True)] == 5 * [True]
    assert not (tmp_path / "out" / "metadata.csv").exists()


WORDS = [
    "a.flac: cannot read this file as audio",
    "b.txt: ",
    "c.wav: the file is truncated",
    "d.txt: no text",
    "e.wav: silent",
]


def test_converted_copies_are_kept_when_the_texts_of_all_recordings_are_invalid(
    recordings, tmp_path
):
    arguments = [str(recordings), "--convert", str(tmp_path / "out"), "--out"]
    prepare.main([*arguments, str(tmp_path / "lists")])
    before = contents(tmp_path / "out")
    for name in "abc":
        (recordings / f"{name}.txt").write_text(f"Take | {name}.\n")
    message = refusal(prepare.main, [*arguments, str(tmp_path / "others"), "--skip-bad"])
    assert message.startswith("3 of 3 clips are bad")
    assert "--skip-bad" not in message
    assert contents(tmp_path / "out") == before


def test_table_with_mp3_files_is_prepared_by_one_command(recordings, tmp_path, capsys):
    """Recordings of the same text are in the same set (training or validation)."""
    rows = "".join(
        f"{name}.mp3\t{text}\n" for name, text in zip("abc", ("X!", "x", "Y"), strict=True)
    )
    table = tmp_path / "clips.tsv"
    table.write_text(f"path\tsentence\n{rows}")
    command = [recordings, "--csv", table, "--out", tmp_path / "lists", "--val-fraction", "0.4"]
    # Training cannot read MP3 files.
    assert "--convert" in refusal(prepare.main, [*map(str, command)])
    command += ["--convert", tmp_path / "out", "--split-by-text"]
    prepare.main([*map(str, command)])
    sets = [(tmp_path / "lists" / f"{name}.txt").read_text() for name in ("train", "val")]
    texts = sorted(sorted(line.split("|")[1] for line in x.splitlines()) for x in sets)
    assert texts == [["X!", "x"], ["Y"]]
    assert "have the same text as a training clip" not in capsys.readouterr().out
    settings = json.loads((tmp_path / "out" / "wavs" / "conversion_settings.json").read_text())
    assert settings["level"] == LEVEL


def test_prepare_warns_when_a_text_is_in_the_training_set_and_in_the_validation_set(
    recordings, tmp_path, capsys
):
    for name in "abc":
        (recordings / f"{name}.txt").write_text("The same.")
    options = ["--convert", tmp_path / "out", "--out", tmp_path / "lists", "--val-fraction", "0.4"]
    prepare.main([*map(str, [recordings, *options])])
    assert "--split-by-text" in capsys.readouterr().out


def test_recording_is_rejected_when_it_is_too_long(recordings, monkeypatch):
    monkeypatch.setattr(convert_module, "MAX_SECONDS", 3)
    message = refusal(converted, recordings / "a.flac", RATE)
    assert f"expected at most {3 * 48_000:,}" in message
    converted(recordings / "c.wav", RATE)


# ---------------------------------------------------------------------------- segments


def test_segments_of_long_recordings_become_clips(tmp_path, no_plots):
    """A NeMo manifest assigns a text to each segment of a recording."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    sentences = [soundfile.read(path)[0] for path in sorted(LJSPEECH_CLIPS.glob("*.wav"))[:4]]
    soundfile.write(corpus / "chapter.flac", np.concatenate(sentences), RATE)
    ends = np.cumsum([len(x) for x in sentences]) / RATE
    starts = [0.0, *ends[:-1]]
    lines = [
        {"audio_filepath": "chapter.flac", "offset": start, "duration": end - start, "text": "A b."}
        for start, end in zip(starts, ends, strict=True)
    ]
    table = corpus / "manifest.json"
    table.write_text("\n".join(map(json.dumps, lines)))
    command = [corpus, "--csv", table, "--out", tmp_path / "lists", "--val-fraction", "0.25"]
    command += ["--segment-padding", "0"]
    assert "--convert" in refusal(prepare.main, [*map(str, command)])
    prepare.main([*map(str, command), "--convert", str(tmp_path / "new")])
    copies = sorted((tmp_path / "new" / "wavs").glob("*.wav"))
    assert len(copies) == 4
    for path, original in zip(copies, sentences, strict=True):
        samples, _ = soundfile.read(path)
        lags = np.correlate(samples, original[4000:-4000], "valid")
        matched = samples[np.argmax(lags) :][: len(original) - 8000]
        assert np.corrcoef(matched, original[4000:-4000])[0, 1] > 0.99
    before = contents(tmp_path / "new")
    lines[1]["duration"] = 1.0
    table.write_text("\n".join(map(json.dumps, lines)))
    prepare.main([*map(str, command), "--convert", str(tmp_path / "new")])
    after = contents(tmp_path / "new")
    assert {name for name in after if after[name] != before[name]} == {
        f"wavs/{copies[1].name}",
        "wavs/sources.json",
    }


@pytest.mark.parametrize("segment", [Segment(0, 60), Segment(50), Segment(1, 0), Segment(0, 601)])
def test_segment_is_rejected_when_it_exceeds_the_recording(recordings, segment):
    message = refusal(converted, recordings / "c.wav", RATE, segment)
    assert f"from {segment.start:g} s" in message


# ---------------------------------------------------------------------------- truncated files


@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "aiff", "ogg", "opus", "rf64"])
def test_recording_is_rejected_when_it_is_truncated(tmp_path, kind, share):
    path = tmp_path / f"a.{kind}"
    options = {"opus": ("OGG", "OPUS"), "rf64": ("RF64", "PCM_16")}
    form, subtype = options.get(kind, (kind.upper(), None))
    rate = 48000 if kind == "opus" else RATE
    soundfile.write(path, speech(), rate, format=form, subtype=subtype)
    converted(path, RATE)
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    message = refusal(converted, path, RATE)
    assert "truncated" in message or "cannot read" in message


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_recording_is_rejected_when_its_second_half_is_zeros(tmp_path, subtype):
    """An interrupted download can leave a file that ends with zeros."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, speech(), 48000, format="OGG", subtype=subtype)
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))
    message = refusal(converted, path, RATE)
    assert "truncated" in message or "cannot read" in message


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_ogg_file_is_rejected_when_one_byte_is_wrong(tmp_path, position, subtype):
    """libsndfile treats the audio before the damage as the whole file."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.tile(speech(), 8), 48000, format="OGG", subtype=subtype)
    content = bytearray(path.read_bytes())
    read_channels(path)
    content[round(position * len(content))] ^= 1
    path.write_bytes(content)
    assert "checksum" in refusal(read_channels, path)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_data_after_the_last_page_of_an_ogg_file_is_ignored(tmp_path, subtype):
    path = tmp_path / "a.ogg"
    soundfile.write(path, speech(), 48000, format="OGG", subtype=subtype)
    samples, _ = read_channels(path)
    content = path.read_bytes()
    path.write_bytes(content + b"TAG" + bytes(125))
    assert len(read_channels(path)[0]) == len(samples)
    second_page = content.index(b"OggS", 1)
    path.write_bytes(content[:second_page] + b"TAG" + content[second_page:])
    assert "checksum" in refusal(read_channels, path)


@pytest.mark.parametrize(
    ("form", "subtype"),
    [
        ("WAV", None),
        ("AIFF", None),
        ("FLAC", None),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
    ],
)
def test_file_is_rejected_when_it_consists_of_joined_files(tmp_path, form, subtype):
    """libsndfile reads only the first FLAC or Ogg file, and reports no error."""
    path = tmp_path / "a.wav"
    soundfile.write(path, speech()[:15001], 48000, format=form, subtype=subtype)
    read_channels(path)
    path.write_bytes(2 * path.read_bytes())
    assert "consists of several audio files" in refusal(read_channels, path)


@pytest.mark.parametrize("padding", [b"", b"\0"])
def test_wav_is_rejected_when_it_consists_of_joined_files_of_odd_size(tmp_path, padding):
    """Python's wave module writes no padding byte. Some programs write one, but do not count it."""
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(bytes(range(101)))
    path.write_bytes(path.read_bytes() + padding)
    read_channels(path)
    path.write_bytes(2 * path.read_bytes())
    assert "consists of several audio files" in refusal(read_channels, path)


def test_ogg_is_read_when_it_contains_a_second_stream_at_the_same_time(tmp_path):
    """libsndfile ignores the other streams, such as the pictures of a video."""
    path = tmp_path / "a.ogg"
    soundfile.write(path, speech(), RATE, subtype="VORBIS")
    content = path.read_bytes()
    end = content.index(b"OggS", 4)  # end of the first page
    other = content[:14] + b"more" + content[18:22] + bytes(4) + content[26:end]
    other = other[:22] + ogg_checksum(other).to_bytes(4, "little") + other[26:]
    path.write_bytes(content[:end] + other + content[end:])
    assert len(read_channels(path)[0]) == len(speech())


def test_flac_is_read_when_it_has_an_id3_tag_at_its_start_or_end(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, speech(), RATE)
    content = path.read_bytes()
    tag = b"ID3\3\0\0\0\0\x0f\x76" + bytes(2038)
    for whole in (tag + content, content + tag, tag + content + b"TAG" + bytes(125)):
        path.write_bytes(whole)
        assert len(read_channels(path)[0]) == len(speech())
    for joined in (tag + content + content, tag + content + tag + content):
        path.write_bytes(joined)
        assert "consists of several audio files" in refusal(read_channels, path)


def test_file_is_rejected_when_its_header_states_no_samples(tmp_path):
    soundfile.write(tmp_path / "a.wav", speech()[:0], RATE)
    assert "no samples" in refusal(read_channels, tmp_path / "a.wav")


def test_mp3_with_only_its_first_bytes_is_called_damaged(tmp_path):
    """libsndfile prints "File does not exist" for this file."""
    path = tmp_path / "a.mp3"
    soundfile.write(path, speech(), RATE, format="MP3")
    path.write_bytes(path.read_bytes()[:300])
    assert "exist" not in refusal(read_channels, path)


@pytest.mark.parametrize("form", ["W64", "AU", "NIST"])
def test_recording_is_rejected_when_its_format_does_not_reveal_truncation(tmp_path, form):
    path = tmp_path / "a.wav"
    soundfile.write(path, speech(), RATE, format=form, subtype="PCM_16")
    assert form in refusal(converted, path, RATE)


@pytest.mark.parametrize("kind", ["flac", "mp3"])
def test_segment_is_rejected_when_its_recording_is_truncated(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    soundfile.write(path, np.concatenate([speech()] * 4), RATE)
    seconds = soundfile.info(path).duration
    content = path.read_bytes()
    path.write_bytes(content[: round(0.6 * len(content))])
    message = refusal(converted, path, RATE, Segment(0.5 * seconds, 0.3 * seconds))
    assert "truncated" in message or "not readable" in message


def write_mp3_without_length(path, samples, mode):
    """Write an MP3 file without its first frame, which contains the length of the file."""
    soundfile.write(path, samples, RATE, format="MP3", bitrate_mode=mode, compression_level=0.5)
    content = path.read_bytes()
    second_frame = content.index(content[:2], 4)
    path.write_bytes(content[second_frame:])


def test_mp3_is_rejected_when_its_bit_rate_varies_and_the_file_lacks_its_length(tmp_path):
    silence = 0.0005 * np.random.default_rng(1).standard_normal(8 * RATE)
    samples = np.concatenate([speech(), silence, speech()]).astype(np.float32)
    write_mp3_without_length(tmp_path / "a.mp3", samples, "VARIABLE")
    for segment in (None, Segment(0.1, 0.5)):
        message = refusal(converted, tmp_path / "a.mp3", RATE, segment)
        counted = int(re.search(r"contains ([\d,]+) samples", message)[1].replace(",", ""))
        assert counted == pytest.approx(len(samples), abs=3000)
        assert f"{soundfile.info(tmp_path / 'a.mp3').frames:,}" in message


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
@pytest.mark.parametrize("rate", [22050, 44100])
def test_mp3_is_rejected_when_it_contains_audio_after_its_listed_end(mode, rate, tmp_path):
    """libsndfile reads only as many samples as the first frame lists, so the remaining audio would
    be lost."""
    samples = np.concatenate([speech()] * 3)
    path = tmp_path / "a.mp3"
    soundfile.write(path, samples, rate, format="MP3", bitrate_mode=mode)
    content = path.read_bytes()
    # Tags and zeros at both ends are not audio.
    tag = b"ID3\x04\x00\x00\x00\x00\x0f\x76" + bytes(2038)
    picture = np.random.default_rng(0).bytes(100_000)
    path.write_bytes(tag + content + bytes(500) + b"APETAGEX" + picture + b"TAG" + b"x" * 125)
    read, _ = read_channels(path)
    assert len(read) == len(samples)
    path.write_bytes(content + tag + content)
    message = refusal(read_channels, path)
    counted = int(re.search(r"contains ([\d,]+) samples", message)[1].replace(",", ""))
    assert counted == pytest.approx(2 * len(samples), abs=6 * 1152)
    assert f"{len(samples):,}" in message


def test_mp3_is_rejected_when_its_header_lists_no_frames(tmp_path):
    silence = 0.0005 * np.random.default_rng(1).standard_normal(8 * RATE)
    samples = np.concatenate([speech(), silence, speech()]).astype(np.float32)
    path = tmp_path / "a.mp3"
    soundfile.write(path, samples, RATE, format="MP3", bitrate_mode="VARIABLE")
    content = path.read_bytes()
    place = content.index(b"Xing") + 8
    path.write_bytes(content[:place] + bytes(4) + content[place + 4 :])
    assert "header" in refusal(read_channels, path)


def test_mp3_is_read_when_its_bit_rate_is_constant_and_the_file_lacks_its_length(tmp_path):
    samples = np.concatenate([speech()] * 4)
    write_mp3_without_length(tmp_path / "a.mp3", samples, "CONSTANT")
    read, _ = read_channels(tmp_path / "a.mp3")
    assert len(read) == pytest.approx(len(samples), abs=3000)
    read, _ = read_channels(tmp_path / "a.mp3", Segment(1.0))
    assert len(read) == pytest.approx(len(samples) - RATE, abs=3000)


def test_conversion_does_not_overwrite_a_table_that_it_did_not_write(
    recordings, tmp_path, no_plots
):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "metadata.csv").write_text("mine|more|columns\n")
    message = refusal(convert, recordings, folder, None, create_hparams())
    assert str(folder) in message
    assert (folder / "metadata.csv").read_text() == "mine|more|columns\n"
