"""Test corpus/filelist.py: valid lines, rejected lines, and the cache."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from clips import write_list

from audio import mel_fingerprint
from corpus.cache import ClipTable
from corpus.clips import Clip
from corpus.filelist import (
    cache_table,
    cached_table,
    read_filelist,
    warn_of_long_clips,
    write_lengths,
)
from data_utils import TextMelDataset
from evaluation.recordings import read_recordings
from hparams import HParams, create_hparams
from tacotron2_voice.text import text_to_sequence
from tacotron2_voice.text.rules import version_of
from tacotron2_voice.utils.errors import UserError

H = HParams()
CACHED = HParams(load_mel_from_disk=True)


def refusal(filelist, h=H, **options):
    with pytest.raises(ValueError, match=re.escape(str(filelist))) as caught:
        read_filelist(filelist, h, **options)
    return str(caught.value)


# ---------------------------------------------------------------------------- filelists


def test_clips_are_read_from_filelists_with_and_without_seconds(sounds):
    filelist = write_list(
        sounds,
        f"{sounds}/a.wav|First text.|1.000000",
        f"{sounds}/b.flac|Second text.",
        f"  {sounds}/c.wav  |  Third text.  |  0.226757  ",
    )
    clips = read_filelist(filelist, H)
    assert [clip.text for clip in clips] == ["First text.", "Second text.", "Third text."]
    assert [clip.path for clip in clips] == [f"{sounds}/{n}" for n in ("a.wav", "b.flac", "c.wav")]
    assert [clip.num_frames for clip in clips] == [1 + 22050 // 256, 1 + 11025 // 256, 20]
    assert [clip.where for clip in clips] == [f"{filelist}:{n}" for n in (1, 2, 3)]
    ids = [text_to_sequence(clip.text, ["english_cleaners"]) for clip in clips]
    assert [list(clip.symbols) for clip in clips] == ids


def test_relative_path_is_resolved_from_the_folder_of_the_filelist(sounds, tmp_path, monkeypatch):
    """If the file is not in the folder of the filelist, the path is resolved from the working
    directory. If both files are missing, the error lists both paths."""
    (tmp_path / "work" / "here").mkdir(parents=True)
    shutil.copy(sounds / "a.wav", tmp_path / "work" / "here")
    monkeypatch.chdir(tmp_path / "work")
    filelist = write_list(sounds, "a.wav|One.", "here/a.wav|Two.", f"{sounds}/a.wav|Three.")
    clips = list(read_filelist(filelist, H))
    assert [clip.path for clip in clips] == [f"{sounds}/a.wav", "here/a.wav", f"{sounds}/a.wav"]
    assert [clip.is_relative for clip in clips] == [True, False, False]
    lost = write_list(sounds, "lost/a.wav|One.")
    place = f"{sounds}/lost/a.wav: no such file, and no lost/a.wav in the working directory; "
    assert (
        place + "if you moved the folder of the clips, set its new path: --hparams clips_folder"
        in refusal(lost)
    )


def test_moved_clips_are_found_in_clips_folder(sounds, tmp_path):
    """Leading folders are removed from a listed path until the remaining path exists in
    clips_folder."""
    (tmp_path / "new" / "wavs").mkdir(parents=True)
    shutil.copy(sounds / "a.wav", tmp_path / "new" / "wavs")
    shutil.copy(sounds / "a.wav", tmp_path / "new" / "b.wav")
    filelist = write_list(sounds, "/old/wavs/a.wav|One.", "C:\\old\\b.wav|Two.")
    moved = replace(H, clips_folder=f"{tmp_path}/new")
    clips = list(cache_table(read_filelist(filelist, moved), moved))
    assert [clip.path for clip in clips] == [f"{tmp_path}/new/wavs/a.wav", f"{tmp_path}/new/b.wav"]
    assert cached_table(filelist, moved)
    assert not cached_table(filelist, H)  # the cache contains the old paths
    lost = write_list(sounds, "/old/c.wav|One.")
    assert f"{tmp_path}/new/c.wav: no such file" in refusal(lost, moved)


def test_clips_folder_is_rejected_when_two_paths_match_one_file(sounds):
    """Two recordings have the same file name. If both paths were accepted, one file would have the
    texts of both recordings."""
    filelist = write_list(sounds, "/old/anna/a.wav|One.", "/old/ben/a.wav|Two.")
    message = refusal(filelist, replace(H, clips_folder=str(sounds)))
    assert f"{filelist}:2: {sounds}/a.wav: " in message
    assert all(f"'/old/{name}/a.wav'" in message for name in ("anna", "ben"))
    for name in ("anna", "ben"):
        (sounds / name).mkdir()
        shutil.copy(sounds / "a.wav", sounds / name)
    assert len(read_filelist(filelist, replace(H, clips_folder=str(sounds)))) == 2


def test_csv_quoting_rules_do_not_apply_to_filelists(sounds, monkeypatch):
    """523 lines of LJSpeech contain exactly one double quotation mark, which a CSV reader would
    misread. Only a line feed ends a line. Line numbers also count empty lines."""
    texts = ['"He said', 'so, they say "and', "One\u2028text.", "One\x85text.", "Größe."]
    lines = "\r\n\n".join(f"a.wav|{text}|1.0" for text in texts)
    (sounds / "list.txt").write_bytes(f"\ufeff{lines}\r\n".encode())
    monkeypatch.chdir(sounds)
    clips = read_filelist("list.txt", H)
    assert [clip.text for clip in clips] == texts
    assert [clip.path for clip in clips] == ["a.wav"] * 5
    assert [clip.where for clip in clips] == [f"list.txt:{1 + 2 * i}" for i in range(5)]


@pytest.mark.parametrize("seconds", ["1.00002", "0.99998", "1"])
def test_seconds_in_a_filelist_are_accepted_when_they_differ_from_the_audio_by_half_a_sample(
    sounds, seconds
):
    assert read_filelist(write_list(sounds, f"{sounds}/a.wav|Text.|{seconds}"), H)


@pytest.mark.parametrize("seconds", ["1.0001", "0.9999", "nan"])
def test_line_is_rejected_when_its_seconds_differ_from_the_audio_file(sounds, seconds):
    filelist = write_list(sounds, f"{sounds}/a.wav|Text.|{seconds}")
    found = f"{float(seconds):.6f} seconds in the filelist, but the file lasts 1.000000"
    assert f"{filelist}:1: {sounds}/a.wav: {found}" in refusal(filelist)


def test_filelist_error_lists_all_invalid_lines(sounds):
    soundfile.write(sounds / "rate.wav", np.zeros(5000), 16000)
    expected = {
        f"{sounds}/gone.wav|Text.": f"{sounds}/gone.wav: no such file",
        f"{sounds}/a.wav": "1 fields, expected path|text|seconds|speaker, path|text|seconds or",
        f"{sounds}/a.wav|Text.|1.0|anna|more": "5 fields",
        f"{sounds}/a.wav|Text.|1.0|an\x07na": "'an\\x07na'",
        f"{sounds}/a.wav|Text.|one second": "seconds 'one second', expected a number",
        f"{sounds}/rate.wav|Text.": "rate.wav: the sampling rate is 16000 Hz, expected 22050",
        f"{sounds}/a.wav|{'nine' * 9999}|1.0": "... has 39,996 characters, expected at most 5,000",
        f"{sounds}/a.wav||1.0": "text ''",
        f"{sounds}/mel.npy|Text.": "load_mel_from_disk=True",
    }
    filelist = write_list(sounds, f"{sounds}/a.wav|Good.|1.0", "", *expected)
    first, *lines = refusal(filelist).splitlines()
    assert first.startswith(f"{filelist}: 9 of 10 lines")
    for number, (line, words) in enumerate(zip(lines, expected.values(), strict=True), 3):
        assert line.startswith(f"  {filelist}:{number}: ")
        assert words in line


def test_filelist_is_rejected_when_it_has_no_valid_clip(sounds):
    assert "no such filelist; make a filelist with scripts/prepare" in refusal(sounds / "gone.txt")
    assert "contains no clips" in refusal(write_list(sounds, "", "  "))
    assert "a folder" in refusal(sounds)
    lines = refusal(write_list(sounds, *(f"{sounds}/{n}.wav|Text." for n in range(50))))
    first, example, others = lines.splitlines()
    assert first.startswith(f"{sounds}/list.txt: 50 of 50 lines")
    assert "/0.wav: no such file" in example
    assert others.startswith("    the same in 49 more: 2, 3, 4, ")
    swapped = write_list(sounds, f"{'a text longer than any file name ' * 30}|clip.wav")
    assert f"{swapped}:1: " in refusal(swapped)


# ---------------------------------------------------------------------------- texts


def test_text_without_letters_is_rejected_when_the_run_is_new(sounds):
    filelist = write_list(sounds, f"{sounds}/a.wav|...")
    assert len(read_filelist(filelist, H)) == 1
    assert f"{filelist}:1: text '...' contains no letter" in refusal(filelist, new_run=True)


# ---------------------------------------------------------------------------- the cache


def test_filelist_cache_is_ignored_when_the_filelist_or_the_settings_have_changed(
    sounds, monkeypatch
):
    lines = [f"{sounds}/a.wav|One.|1.0", f"{sounds}/c.wav|Two."]
    filelist = write_list(sounds, *lines)
    assert cached_table(filelist, H) is None
    checked = read_filelist(filelist, H, new_run=True)
    cache_table(checked, H)
    for path in sounds.glob("*.wav"):
        path.unlink()  # the cache contains all values, so no audio file is opened
    found = cached_table(str(filelist), H)
    assert list(found) == list(checked)
    assert found.complete
    for change in (
        "hop_length=200",
        "text_cleaners=[basic_cleaners]",
        "load_mel_from_disk=True",
        "language=tr",
        "drop_unknown=True",
    ):
        assert cached_table(filelist, create_hparams(change)) is None
    assert cached_table(filelist, create_hparams("batch_size=3,seed=4,mel_fmax=7000"))
    with monkeypatch.context() as patch:
        (sounds / "text").mkdir()
        (sounds / "text" / "symbols.py").write_text("other = 1")
        patch.setattr("tacotron2_voice.text.rules.FOLDER", sounds / "text")
        version_of.cache_clear()
        assert cached_table(filelist, H) is None
    version_of.cache_clear()
    write_list(sounds, *lines, "")
    assert cached_table(filelist, H) is None


def test_filelist_cache_is_ignored_when_the_settings_of_cached_mels_have_changed(cached_mels):
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|Text.")
    cache_table(read_filelist(filelist, CACHED), CACHED)
    assert list(cached_table(filelist, CACHED)) == list(read_filelist(filelist, CACHED))
    other = mel_fingerprint(create_hparams("mel_fmax=7000"))
    (cached_mels / "mel_settings.json").write_text(json.dumps(other))
    assert cached_table(filelist, CACHED) is None


def test_warning_is_printed_when_the_filelist_cache_cannot_be_written(sounds, capsys):
    filelist = write_list(sounds, f"{sounds}/a.wav|One.|1.0")
    (sounds / "list.txt.clips").mkdir()
    checked = read_filelist(filelist, H)
    assert list(cache_table(checked, H)) == list(checked)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"warning: {filelist}.clips: ")


def test_clip_lengths_are_written_one_per_line(tmp_path):
    clips = [Clip("x/a.wav", "", (1,), 7, ""), Clip('b, "c".d.npy', "", (1,), 8, "")]
    write_lengths(tmp_path / "lengths.csv", ClipTable.of("list.txt", enumerate(clips)))
    with open(tmp_path / "lengths.csv", newline="") as file:
        assert list(csv.reader(file)) == [["id", "frames"], ["a", "7"], ['b, "c".d', "8"]]


def test_warning_about_long_clips_lists_the_longest_clip():
    seconds = [*np.linspace(1, 10, 100), 31.0, 600.0, 35.0]
    warning = warn_of_long_clips(seconds, "list:{}".format)
    assert "3 of 103 clips" in warning
    assert "list:101 (600.0 s)" in warning
    assert "--max-seconds" in warning
    assert warn_of_long_clips(seconds[:100], str) is None
    assert "1 of 100 clips" in warn_of_long_clips([14.0] * 99 + [15.5], str)
    assert "1 of 100 clips" in warn_of_long_clips([1.0] * 99 + [3.5], str)


# ---------------------------------------------------------------------------- cached mels


@pytest.mark.parametrize("seconds", ["0.441", "nan", "-1", "1e300"])
def test_line_is_rejected_when_its_seconds_differ_from_the_cached_mel(cached_mels, seconds):
    for samples in (39 * 256, 40 * 256 - 1):  # the mel has 40 frames for both numbers of samples
        filelist = write_list(cached_mels, f"{cached_mels}/x.npy|Text.|{samples / 22050:.6f}")
        assert read_filelist(filelist, CACHED)[0].num_frames == 40
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|Text.|{seconds}")
    found = f"the mel has 40 frames, which do not match {float(seconds):.6f} s"
    words = f"{filelist}:1: {cached_mels}/x.npy: {found}"
    assert words in refusal(filelist, CACHED)


def test_clips_are_read_from_cached_mels(cached_mels):
    # The log-mel has 1 + 10,068 // 256 = 40 frames.
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|Text.|0.456599")
    clips = read_filelist(filelist, CACHED)
    assert [clip.num_frames for clip in clips] == [40]
    _, mel, *_ = TextMelDataset(clips, CACHED)[0]
    assert mel.dtype == torch.float32
    np.testing.assert_array_equal(mel, np.load(cached_mels / "x.npy"))
    mel += 1  # changes to the array must not change the file
    assert not np.array_equal(mel, np.load(cached_mels / "x.npy"))


def test_cached_mels_are_rejected_when_their_settings_differ_from_the_settings_of_the_run(
    cached_mels,
):
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|Text.")
    for name, value in (("hop_length", 300), ("mel_fmax", 7600.0)):
        other = create_hparams(f"load_mel_from_disk=True,{name}={value}")
        assert re.search(f"{name}=[0-9.]+, but this run uses {value}", refusal(filelist, other))
    (cached_mels / "mel_settings.json").write_text("no json")
    assert "mel_settings.json" in refusal(filelist, CACHED)


def test_error_lists_all_invalid_cached_mels(cached_mels):
    mel = np.load(cached_mels / "x.npy")
    bad = mel.copy()
    bad[3, 17] = np.nan
    arrays = {"bands": mel[:64], "half": mel.astype(np.float16), "nan": bad}
    for name, array in arrays.items():
        np.save(cached_mels / f"{name}.npy", array)
    np.savez(cached_mels / "archive", mel=mel)
    (cached_mels / "archive.npz").rename(cached_mels / "archive.npy")
    content = (cached_mels / "x.npy").read_bytes()
    (cached_mels / "cut.npy").write_bytes(content[:-1])
    expected = {
        "bands": "wrong type or shape, float32 (64, 40), expected float32 (80, frames)",
        "half": "wrong type or shape, float16 (80, 40), expected",
        "archive": "wrong type or shape, several arrays",
        "cut": "incomplete or damaged .npy file",
        "gone": "no such file; run prepare.py --cache-mels",
        "nan": "frame 17",
    }
    filelist = write_list(cached_mels, *(f"{cached_mels}/{name}.npy|Text." for name in expected))
    lines = refusal(filelist, CACHED, new_run=True).splitlines()[1:]
    for number, (name, line) in enumerate(zip(expected, lines, strict=True), 1):
        assert line.startswith(f"  {filelist}:{number}: {cached_mels}/{name}.npy: {expected[name]}")
    # A resumed run accepts NaN, so the error of a resumed run does not list nan.npy.
    assert len(refusal(filelist, CACHED).splitlines()) == len(expected)


@pytest.mark.parametrize("read", [read_recordings, lambda path: read_filelist(path, H)])
def test_filelist_error_reports_a_problem_once_when_it_affects_all_lines(tmp_path, read):
    path = tmp_path / "train.txt"
    path.write_text("".join(f"a{i}.wav\n" for i in range(1000)))
    with pytest.raises(UserError) as caught:
        read(path)
    title, first, *others = str(caught.value).splitlines()
    assert title.startswith(f"{path}: 1,000 of 1,000 lines")
    assert first.startswith(f"  {path}:1: ")
    assert [x.partition(" more: ")[0] for x in others] == ["    the same in 999"]
