"""Test corpus/prepare.py: checks, the split, cached mels, and the settings for training."""

import csv
import io
import os
import re
import shutil
import signal
import time
import wave
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import soundfile
from corpora import (
    RATE,
    add_line,
    contents,
    kill_while_preparing,
    make_corpus,
    prepare_with,
    refusal,
    write_tone,
)
from helpers import LJSPEECH_LENGTHS, ROOT, make_other_than_file

from corpus import checks, derived
from corpus import prepare as preparation
from corpus.clips import Measurements
from corpus.filelist import cached_table, changed_clips, checked_clips, read_filelist
from corpus.prepare import Preparation, prepare
from corpus.split import SPLIT_FILE, read_split
from data_utils import TextMelDataset
from hparams import create_hparams
from scripts.prepare import SMALL_MODEL, main, next_command
from training.clips import read_clips

pytestmark = pytest.mark.usefixtures("no_plots")

HPARAMS = create_hparams()
FILES = {
    *("train.txt", "val.txt", "settings.txt", "lengths.png", "corpus.png", "audio.png"),
    "report.html",
    *("train.txt.clips", "val.txt.clips"),
}
MEL_HPARAMS = create_hparams("load_mel_from_disk=True")


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus")


def read_lists(out, suffix=""):
    """Return the lines of train.txt and val.txt, split at pipes, with absolute paths."""

    def fields(line):
        path, *others = line.split("|")
        return [os.path.normpath(out / path), *others]

    return tuple(
        [fields(line) for line in (out / f"{name}{suffix}.txt").read_text("utf-8").splitlines()]
        for name in ("train", "val")
    )


def ids_of(rows):
    return {Path(row[0]).stem for row in rows}


# ---------------------------------------------------------------------------- filelists


def test_prepare_lists_every_clip_once(corpus, tmp_path):
    prepare(Preparation(corpus, tmp_path / "lists"))
    train, val = read_lists(tmp_path / "lists")
    assert (len(train), len(val)) == (8, 2)
    samples = [4000 + 137 * i for i in range(10)]
    assert sorted(train + val) == [
        [str(corpus / "wavs" / f"c{i:02}.wav"), f"Number {i}.", f"{n / RATE:.6f}"]
        for i, n in enumerate(samples)
    ]
    assert train == sorted(train)  # the filelists keep the order of metadata.csv


@pytest.mark.thorough
def test_prepare_writes_the_same_files_when_it_runs_twice(corpus, tmp_path, monkeypatch):
    monkeypatch.undo()  # this test draws real plots
    prepare(Preparation(corpus, tmp_path / "lists"))
    before = contents(tmp_path / "lists")
    prepare(Preparation(corpus, tmp_path / "lists"))
    assert contents(tmp_path / "lists") == before
    assert before.keys() == FILES
    for name in ("lengths.png", "corpus.png", "audio.png"):
        image = matplotlib.image.imread(io.BytesIO(before[name]))
        # A blank image would have a single color.
        assert len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 10


def test_old_filelists_are_kept_when_the_disk_is_full(corpus, tmp_path, monkeypatch):
    """The disk becomes full while the last file is written."""
    prepare(Preparation(corpus, tmp_path / "lists"))
    before = contents(tmp_path / "lists")
    write_bytes = Path.write_bytes

    def full(path, data):
        if path.name == "settings.txt":
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    refusal(prepare_with, corpus, tmp_path / "lists", seed=5, error=OSError)
    assert contents(tmp_path / "lists") == before


@pytest.mark.parametrize("changed", ["metadata.csv", "wavs/c03.wav"])
def test_prepare_stops_when_a_file_changes_while_it_runs(corpus, tmp_path, monkeypatch, changed):
    def replace_by_older(*_):
        shutil.copy2(corpus / changed, tmp_path / "old")
        os.replace(tmp_path / "old", corpus / changed)

    monkeypatch.setattr(preparation, "corpus_warnings", lambda *_: replace_by_older() or [])
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    assert f"{corpus / changed}: changed during the check" in message
    assert not (tmp_path / "lists").exists()


def test_prepare_summary_contains_the_numbers_and_lengths_of_clips(corpus, tmp_path, capsys):
    prepare(Preparation(corpus, tmp_path / "lists"))
    lines = [line.replace("|", " ").split() for line in capsys.readouterr().out.splitlines()]
    numbers = {tuple(words[:3]): words[3:] for words in lines if len(words) == 8}
    samples = np.arange(10) * 137 + 4000
    frames = [1 + n // 256 for n in samples]
    spoken = "zero one two three four five six seven eight nine".split()
    symbols = [len(f"number {word}.") for word in spoken]
    for unit, lengths in (("seconds", samples / RATE), ("frames", frames), ("symbols", symbols)):
        expected = [min(lengths), np.mean(lengths), np.median(lengths), max(lengths), sum(lengths)]
        assert numbers["all", "10", unit] == [f"{number:.2f}" for number in expected]
    assert {("train", "8", "frames"), ("val", "2", "frames")} <= numbers.keys()


@pytest.mark.parametrize(
    ("clip", "out", "listed"),
    [
        ("/p/data/c/wavs/a.wav", "/p/filelists/c", "../../data/c/wavs/a.wav"),
        ("/p/c/wavs/a.wav", "/p/c", "wavs/a.wav"),
        # The two paths share only the root folder.
        ("/q/c/wavs/a.wav", "/p/filelists/c", "/q/c/wavs/a.wav"),
        ("/p/data/a.wav", "/p/x/y/z", "/p/data/a.wav"),  # a relative path would be too long
        # A relative path would begin with a space, which the reader of the filelist would remove.
        ("/p/c/ a.wav", "/p/c", "/p/c/ a.wav"),
    ],
)
def test_filelist_has_relative_paths_when_clips_are_in_a_nearby_folder(clip, out, listed):
    assert preparation.listed_path(clip, Path(out)) == listed


def test_filelist_caches_stay_valid_when_their_folder_is_moved(tmp_path, monkeypatch):
    """After the move, no clip or table is read again. settings.txt refers to the filelists in its
    own folder."""
    make_corpus(tmp_path / "old" / "data")
    prepare(Preparation(tmp_path / "old" / "data", tmp_path / "old" / "filelists" / "mine"))
    shutil.move(tmp_path / "old", tmp_path / "new")
    monkeypatch.setattr("corpus.filelist.read_filelist", None)
    h = settings_of(tmp_path / "new" / "filelists" / "mine")
    for filelist in (h.training_files, h.validation_files):
        for clip in checked_clips(filelist, h, new_run=True):
            assert os.path.samefile(Path(clip.path).parent, tmp_path / "new" / "data" / "wavs")


# ---------------------------------------------------------------------------- settings.txt


def settings_of(folder):
    return create_hparams(f"@{folder / 'settings.txt'}")


@pytest.mark.thorough
def test_settings_file_can_be_used_to_prepare_the_corpus_again(corpus, tmp_path):
    out = tmp_path / "lists"
    prepare(Preparation(corpus, out, "hop_length=200", mels=tmp_path / "mels"))
    h = settings_of(out)
    assert (h.hop_length, h.load_mel_from_disk) == (200, True)
    assert (h.training_files, h.validation_files) == (f"{out}/train_mel.txt", f"{out}/val_mel.txt")
    assert len(read_filelist(h.training_files, h)) == 8
    prepare(Preparation(corpus, tmp_path / "sound", f"@{out}/settings.txt"))
    h = settings_of(tmp_path / "sound")
    assert (h.hop_length, h.load_mel_from_disk) == (200, False)
    assert h.training_files == f"{tmp_path}/sound/train.txt"


# ---------------------------------------------------------------------------- bad clips

BAD_SOUNDS = ("rate", "cut", "pipe", "missing")


def make_bad_corpus(folder):
    """Write ten valid clips and a bad clip for each kind of error.

    Return the corpus and the expected messages.
    """
    corpus = make_corpus(folder)
    wavs, metadata = corpus / "wavs", corpus / "metadata.csv"
    for name in ("mute", "fields"):
        write_tone(wavs / f"{name}.wav", 5000)
    write_tone(wavs / "rate.wav", 5000, rate=16000)
    write_tone(wavs / "cut.flac", 5000)
    (wavs / "cut.flac").write_bytes((wavs / "cut.flac").read_bytes()[:-100])
    make_other_than_file(wavs / "pipe.wav", "a named pipe")
    for name in BAD_SOUNDS:
        add_line(corpus, f"{name}||Some words.")
    add_line(corpus, "mute||  ...")
    add_line(corpus, "fields|only two")
    add_line(corpus, "c03||Number 3.")
    add_line(corpus, "both||...")
    return corpus, {
        f"{wavs}/rate.wav": "the sampling rate is 16000 Hz, expected 22050",
        f"{wavs}/cut.flac": "truncated or damaged",
        f"{wavs}/pipe.wav": "a named pipe",
        f"{metadata}:14": "'missing'",
        f"{metadata}:15": "'...'",
        f"{metadata}:16": "2 fields, expected 3",
        f"{metadata}:17": f"{metadata}:4",
        f"{metadata}:18": "'both'",
    }


def test_bad_lines_are_rejected_when_symbols_come_from_the_corpus(tmp_path):
    """The symbols come from the valid lines, but this corpus contains no valid line."""
    (tmp_path / "wavs").mkdir()
    (tmp_path / "metadata.csv").write_text("a b c\n" * 3)
    overrides = "symbols=corpus,text_cleaners=[basic_cleaners]"
    message = refusal(prepare_with, tmp_path, tmp_path / "lists", overrides)
    assert str(tmp_path / "metadata.csv") in message


def test_prepare_prints_a_problem_once_when_all_lines_have_it(tmp_path):
    (tmp_path / "wavs").mkdir()
    (tmp_path / "metadata.csv").write_text("".join(f"c{i}|a|...\n" for i in range(1000)))
    message = refusal(prepare_with, tmp_path, tmp_path / "lists")
    assert message.startswith("1,000 of 1,000 clips are bad:\n")
    assert "\n    the same in 999 more: " in message
    assert len(message.splitlines()) <= 5
    assert len(message) < 2500


def test_prepare_warns_when_texts_have_foreign_letters(corpus, tmp_path, capsys):
    text = "Für 3,50 € über die Straße."
    for i in range(4):
        write_tone(corpus / "wavs" / f"x{i}.wav", 9000 + i)
        add_line(corpus, f"x{i}||{text}")
    prepare(Preparation(corpus, tmp_path / "lists"))
    printed = capsys.readouterr().out
    assert "warning: 4 of 14 texts" in printed
    assert ": ß, ü. " in printed
    assert f"{text!r} becomes 'fur three,fifty euro uber die strasse.'" in printed
    assert "--hparams symbols=corpus,text_cleaners=[basic_cleaners]" in printed
    add_line(corpus, "c||语言。")
    write_tone(corpus / "wavs" / "c.wav", 9000)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    assert "text '语言。' contains no English letter; set --hparams symbols=corpus" in message


def test_validation_filelist_is_omitted_when_the_fraction_is_0(corpus, tmp_path, capsys):
    """With and without cached mels, the validation filelist in settings.txt is empty."""
    for mels in (None, tmp_path / "mels"):
        prepare(Preparation(corpus, tmp_path / "lists", val_fraction=0, mels=mels))
        assert "Split: no clips are held out for validation" in capsys.readouterr().out
        h = create_hparams(f"@{tmp_path / 'lists' / 'settings.txt'}")
        training, validation = read_clips(h, new_run=True)
        assert (len(training), len(validation)) == (10, 0)
    assert not [*(tmp_path / "lists").glob("val*")]


def test_prepare_warns_when_only_the_sampling_rate_is_set(tmp_path, capsys):
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    for i in range(5):
        write_tone(corpus / "wavs" / f"c{i}.wav", 9000 + i, rate=48000)
        add_line(corpus, f"c{i}||Some words.")
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    (settings,) = {
        *re.findall(r"48000 Hz, .*have this rate, add (\S+) to --hparams; otherwise", message)
    }
    prepare(Preparation(corpus, tmp_path / "lists", "sampling_rate=48000"))
    printed = capsys.readouterr().out
    assert "warning: at sampling_rate=48000, a frame (hop_length=256) lasts 5.3 ms" in printed
    assert f"2.2 times the default number of decoder steps. Set {settings}, or convert" in printed
    prepare(Preparation(corpus, tmp_path / "lists", settings))
    assert "a frame (hop_length" not in capsys.readouterr().out
    h = settings_of(tmp_path / "lists")
    assert (h.hop_length, h.win_length, h.filter_length) == (557, 2228, 4096)
    assert h.mel_fmax == 17400


def test_bad_clips_are_not_in_the_filelists_when_skip_bad_is_given(tmp_path, capsys):
    """Without --skip-bad, all bad clips are reported together, and no file is written. If the user
    fixes the bad clips later, all other clips stay in the same set (training or validation)."""
    corpus, expected = make_bad_corpus(tmp_path / "corpus")
    message = refusal(main, [str(corpus), "--out", str(tmp_path / "lists")])
    listed = [line for line in message.splitlines() if line.startswith("  ")]
    assert len(listed) == len(expected) == 8
    for place, words in expected.items():
        (line,) = (line for line in listed if line.startswith(f"  {place}"))
        assert words in line
    assert "8 of 18 clips are bad. No filelist was written" in message
    assert not (tmp_path / "lists").exists()
    main([str(corpus), "--out", str(tmp_path / "lists"), "--skip-bad"])
    printed = capsys.readouterr().out
    assert "--skip-bad leaves 8 of 18 clips out of the filelists" in printed
    assert all(place in printed for place in expected)
    train, val = read_lists(tmp_path / "lists")
    assert sorted(ids_of(train) | ids_of(val)) == [f"c{i:02}" for i in range(10)]
    # Bad clips that the user has fixed are added to the training set or to the validation set.
    # All other clips stay in the same set as before.
    lines = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()[:14]
    lines += ["mute||Mute.", "both||Both."]
    for name in (*BAD_SOUNDS, "both"):
        for path in (corpus / "wavs").glob(f"{name}.*"):
            path.unlink()
        write_tone(corpus / "wavs" / f"{name}.wav", 5000)
    (corpus / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    prepare(Preparation(corpus, tmp_path / "fixed"))
    fixed_train, fixed_val = read_lists(tmp_path / "fixed")
    assert len(fixed_train + fixed_val) == 16
    assert ids_of(train) < ids_of(fixed_train)
    assert ids_of(val) <= ids_of(fixed_val)


@pytest.mark.thorough
def test_prepare_writes_the_same_caches_as_training(corpus, tmp_path):
    add_line(corpus, "c10||  Blanks, and a  {HH AY1}. ")
    write_tone(corpus / "wavs" / "c10.wav", 5000)
    prepare(Preparation(corpus, tmp_path / "lists", mels=tmp_path / "mels"))
    for name in ("train", "val"):
        for suffix, hparams in (("", HPARAMS), ("_mel", MEL_HPARAMS)):
            filelist = tmp_path / "lists" / f"{name}{suffix}.txt"
            found, anew = cached_table(filelist, hparams), read_filelist(filelist, hparams)
            assert list(found) == list(anew)
            assert found.fingerprint == anew.fingerprint
            assert found.complete
            assert changed_clips(found).size == 0


def test_long_clips_are_not_in_the_filelists_when_max_seconds_is_set(corpus, tmp_path, capsys):
    for name, seconds in (("speech", 3), ("chapter", 12.5)):
        write_tone(corpus / "wavs" / f"{name}.wav", int(seconds * RATE))
        add_line(corpus, f"{name}||A text.")
    out = tmp_path / "lists"
    main([str(corpus), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "warning: 2 of 12 clips are longer than" in printed
    assert f"{corpus}/wavs/chapter.wav (12.5 s)" in printed
    assert "--max-seconds" in printed
    before = read_lists(out)
    main([str(corpus), "--out", str(out), "--max-seconds", "3"])
    printed = capsys.readouterr().out
    assert "--max-seconds 3 leaves 1 of 12 clips out of the filelists\n" in printed
    assert "warning: 1 of 11 clips" in printed
    # Clips that remain in the filelists stay in the same set (training or validation).
    for rows, fewer in zip(before, read_lists(out), strict=True):
        assert fewer == [row for row in rows if "chapter" not in row[0]]


def test_note_lists_audio_files_that_are_not_in_the_metadata(corpus, tmp_path, capsys):
    write_tone(corpus / "wavs" / "c00.flac", 9000)  # c00.wav is read, not c00.flac
    write_tone(corpus / "wavs" / "stray.wav", 5000)
    (corpus / "wavs" / "._c01.wav").touch()  # macOS creates files that begin with ._
    (corpus / "wavs" / "notes.txt").touch()
    prepare(Preparation(corpus, tmp_path / "lists"))
    assert (
        f"note: no clip uses 1 audio file in {corpus}: wavs/stray.wav\n" in capsys.readouterr().out
    )
    train, val = read_lists(tmp_path / "lists")
    assert len(train + val) == 10


@pytest.mark.parametrize("option", ["convert", "trim", "mels"])
def test_error_contains_the_option_when_a_new_folder_cannot_be_created(corpus, tmp_path, option):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    name = {"convert": "--convert", "trim": "--trim-silence", "mels": "--cache-mels"}[option]
    for path in (tmp_path / "file", tmp_path / "file" / "new", tmp_path / "link"):
        message = refusal(prepare_with, corpus, tmp_path / "lists", **{option: path})
        assert re.fullmatch(
            rf"{tmp_path}/(file|link): not a folder; choose a different {name}", message
        )
    message = refusal(prepare_with, corpus, tmp_path / "lists", **{option: Path("/proc/x.wav")})
    assert message.startswith("/proc/x.wav")
    assert (
        f"cannot create this folder (No such file or directory); choose a different {name}"
        in message
    )


def test_folder_is_rejected_when_it_contains_no_corpus(corpus, tmp_path):
    lists = tmp_path / "lists"
    assert "--download" in refusal(prepare_with, tmp_path / "LJSpeech-1.1", lists)
    assert "--download" not in refusal(prepare_with, tmp_path / "absent", lists)
    metadata = corpus / "metadata.csv"
    assert f"{metadata}: not a folder" in refusal(prepare_with, metadata, lists)
    message = refusal(prepare_with, corpus, lists, "sampling_rate=16000,mel_fmax=8000")
    assert message.count("22050 Hz, expected 16000") == 1
    assert "\n    the same in 9 more: c01.wav, c02.wav, " in message
    assert not lists.exists()


def test_corpus_folder_is_rejected_when_a_filelist_cannot_contain_its_name(corpus, tmp_path):
    for name in ("a|b", "caf\udce9"):
        assert name in refusal(Preparation, tmp_path / name, tmp_path / "lists")
    assert "m|els" in refusal(Preparation, corpus, tmp_path / "lists", mels=tmp_path / "m|els")
    for name in ("a\nb", "a,b", "a #b", "a "):
        assert "--out" in refusal(Preparation, corpus, tmp_path / name)


@pytest.mark.parametrize(
    "options",
    [
        ["--val-fraction", "1.1"],
        ["--max-seconds", "nan"],
        ["--speaker", " "],
        ["--speaker-column", "2", "--speaker", "anna"],
        ["--encoding", "klingon"],
        ["--delimiter", "||"],
    ],
)
def test_prepare_exits_with_2_when_an_option_is_invalid(tmp_path, options, capsys):
    assert refusal(main, [str(tmp_path), *options], error=SystemExit) == "2"
    assert options[0] in capsys.readouterr().err


# ---------------------------------------------------------------------------- split


@pytest.mark.thorough
def test_split_equals_the_pinned_split_when_the_corpus_is_ljspeech(
    tmp_path, monkeypatch, capsys, ljspeech_metadata
):
    with open(LJSPEECH_LENGTHS, encoding="utf-8", newline="") as file:
        samples = {row["id"]: int(row["samples"]) for row in csv.DictReader(file)}
    corpus = tmp_path / "LJSpeech-1.1"
    (corpus / "wavs").mkdir(parents=True)
    shutil.copyfile(ljspeech_metadata, corpus / "metadata.csv")
    for name in samples:
        (corpus / "wavs" / f"{name}.wav").touch()

    def measures(path, *_):
        return Measurements(samples[path.stem], checksum=hash(path))

    monkeypatch.setattr(checks, "measure", measures)
    prepare(Preparation(corpus, tmp_path / "lists"))
    printed = capsys.readouterr().out
    assert "the pinned split" in printed
    warnings = [line for line in printed.splitlines() if line.startswith("warning")]
    [warning] = [line for line in warnings if "symbols per second" in line]
    # For example, LJ014-0165 has 47 symbols in 8.8 s.
    assert "in 16 of 13,100 clips" in warning
    assert "LJ014-0165 (" in warning
    [brackets] = [line for line in warnings if "square brackets" in line]
    assert "in 7 of 13,100 clips" in brackets  # words in brackets, such as [Marina]
    [misread] = [line for line in warnings if "may be read wrongly" in line]
    assert "in 23 of 13,100 clips" in misread  # abbreviations, such as "cap."
    assert len(warnings) == 3
    lines = ljspeech_metadata.read_text(encoding="utf-8").splitlines()
    texts = {line.split("|")[0]: line.split("|")[2] for line in lines}
    pinned = read_split(SPLIT_FILE)
    for which, rows in zip(("train", "val"), read_lists(tmp_path / "lists"), strict=True):
        assert ids_of(rows) == {name for name in samples if pinned[name] == which}
        for path, text, seconds in rows:
            assert text == texts[Path(path).stem]
            assert abs(float(seconds) * RATE - samples[Path(path).stem]) < 0.02


def test_prepare_stops_when_the_validation_set_is_empty(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", 2)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    assert "train: 2 clips, val: 0 clips (" in message
    assert not (tmp_path / "lists").exists()


# ---------------------------------------------------------------------------- cached mels


def test_cached_mels_equal_computed_mels_bitwise(corpus, tmp_path):
    lists = tmp_path / "lists"
    noise = np.random.default_rng(0).uniform(-1, 1, 60_000)
    soundfile.write(corpus / "wavs" / "c04.wav", noise, RATE)
    prepare(Preparation(corpus, lists, mels=tmp_path / "mels"))
    for name in ("train", "val"):
        computed = TextMelDataset(read_filelist(lists / f"{name}.txt", HPARAMS), HPARAMS)
        cached = TextMelDataset(read_filelist(lists / f"{name}_mel.txt", MEL_HPARAMS), MEL_HPARAMS)
        for (text, mel, *_), (cached_text, cached_mel, *_) in zip(computed, cached, strict=True):
            assert cached_text.equal(text)
            assert cached_mel.equal(mel)


@pytest.mark.thorough
def test_mels_are_computed_when_cached_mels_are_missing_or_outdated(corpus, tmp_path, capsys):
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    prepare(Preparation(corpus, lists, mels=mels))
    before = contents(mels)
    (mels / "c00.npy").unlink()
    (mels / "c01.npy").write_bytes(before["c01.npy"][:5000])
    np.save(mels / "c02.npy", np.zeros((80, 3), np.float32))
    write_tone(corpus / "wavs" / "c03.wav", 4000 + 3 * 137, peak=0.25)
    os.utime(corpus / "wavs" / "c03.wav", (1, 1))  # cp -p keeps an old modification time
    np.save(mels / "c04.npy", np.full((80, 1 + (4000 + 4 * 137) // 256), np.nan, np.float32))
    (mels / ".c07.npy.99.tmp").write_bytes(b"left by a killed run")
    capsys.readouterr()
    prepare(Preparation(corpus, lists, mels=mels))
    assert "5 of 10 files already exist in" in capsys.readouterr().out
    after = contents(mels)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"c03.npy"}


def test_mel_folder_is_rejected_when_its_mels_were_computed_with_other_settings(corpus, tmp_path):
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    prepare(Preparation(corpus, lists, mels=mels))
    before = contents(mels)
    message = refusal(prepare_with, corpus, lists, "hop_length=200", mels=mels)
    assert "hop_length=256, but this run uses 200" in message
    del before["mel_settings.json"]
    (mels / "mel_settings.json").unlink()
    assert "unknown settings" in refusal(prepare_with, corpus, lists, mels=mels)
    assert contents(mels) == before


@pytest.mark.parametrize("stop", [pytest.param("kill", marks=pytest.mark.thorough), "ctrl-c"])
def test_computing_cached_mels_resumes_when_it_was_interrupted(stop, tmp_path, monkeypatch, capsys):
    """Mels that are incomplete have temporary names. No mel is computed twice."""
    corpus, lists, mels = make_corpus(tmp_path / "corpus", 50), tmp_path / "lists", tmp_path / "m"
    options = [str(corpus), "--out", str(lists), "--cache-mels", str(mels)]
    write_mel, begun = derived.write_mel, []

    def interrupted(path, mel):
        begun.append(path.name)
        if len(begun) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # wait, so that the interrupt arrives before the last mel
        return write_mel(path, mel)

    if stop == "kill":
        kill_while_preparing(".npy", options)
        assert list(mels.glob(".*.tmp"))  # an incomplete mel has a temporary name
    else:
        with monkeypatch.context() as patch:
            patch.setattr(derived, "write_mel", interrupted)
            message = refusal(main, options, error=KeyboardInterrupt)
        assert message.startswith("stopped")
        assert not list(mels.glob(".*.tmp"))
    assert not lists.exists()
    done = {path.name: path.stat().st_mtime_ns for path in mels.glob("*.npy")}
    assert 3 <= len(done) < 50
    assert stop == "kill" or set(begun) == set(done)
    main(options)
    assert f"{len(done)} of 50 files already exist in" in capsys.readouterr().out
    assert {path.name for path in mels.glob("*.npy")} == {f"c{i:02}.npy" for i in range(50)}
    assert {name: (mels / name).stat().st_mtime_ns for name in done} == done
    h = settings_of(lists)
    assert sum(len(read_filelist(path, h)) for path in (h.training_files, h.validation_files)) == 50


def test_prepare_prints_no_warning_for_real_clips(tmp_path, capsys, ljspeech_mini):
    prepare(Preparation(ljspeech_mini, tmp_path))
    assert "warning" not in capsys.readouterr().out
    train, val = read_lists(tmp_path)
    assert (len(train), len(val)) == (4, 1)
    for path, _, seconds in train + val:
        with wave.open(path) as file:
            assert seconds == f"{file.getnframes() / RATE:.6f}"
    assert len(read_filelist(tmp_path / "train.txt", HPARAMS)) == 4


@pytest.mark.parametrize(("option", "name"), [("out", "--out"), ("mels", "--cache-mels")])
def test_folder_option_is_rejected_when_its_path_leads_through_a_file(option, name, tmp_path):
    (tmp_path / "file").write_text("mine")
    folders = {"out": tmp_path / "l"} | {option: tmp_path / "file" / "inside"}
    message = refusal(prepare_with, tmp_path / "no corpus", **folders)
    assert f"{tmp_path / 'file'}" in message
    assert name in message


# ---------------------------------------------------------------------------- printed output


def test_output_of_prepare_ends_with_the_written_files_and_the_next_command(
    corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out, mels = tmp_path / "my lists", tmp_path / "mels"
    main([str(corpus), "--out", str(out), "--cache-mels", str(mels)])
    *_, wrote, of_mels, little, note, command = capsys.readouterr().out.splitlines()
    assert "minutes of speech" in little
    assert "scripts/my_voice.py" in little
    assert str(out) in wrote
    assert all(name in wrote for name in ("train_mel.txt", "settings.txt", "corpus.png"))
    assert str(mels) in of_mels
    full_size = f"Next: python train.py -o 'runs/my lists' --hparams '@{out}/settings.txt'"
    assert next_command(out, has_gpu=True) == full_size
    assert "GPU" in note
    assert command == f"{full_size},@{SMALL_MODEL}"
    assert (ROOT / SMALL_MODEL).is_file()


def test_output_folder_is_rejected_when_it_is_the_corpus(corpus, tmp_path):
    """A link to the corpus is rejected too. The corpus does not change."""
    (tmp_path / "link").symlink_to(corpus)
    before = contents(corpus)
    for folder in (corpus, tmp_path / "link", tmp_path / "x" / ".." / "corpus"):
        message = refusal(prepare_with, corpus, tmp_path / "lists", mels=folder)
        assert str(folder) in message or str(corpus) in message
    assert contents(corpus) == before


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["Windows encoding", "semicolons", "named column"])
def test_filelists_are_the_same_for_every_table_format(corpus, tmp_path, form):
    """Training can read these audio files, so the test never uses --convert."""
    add_line(corpus, "c10|No. ten|Number ten, naïve café and the crème brûlée of Zoë.")
    write_tone(corpus / "wavs" / "c10.wav", 9000)
    prepare(Preparation(corpus, tmp_path / "plain"))
    options = []
    metadata = corpus / "metadata.csv"
    lines = [line.split("|") for line in metadata.read_text("utf-8").splitlines()]
    if form == "Windows encoding":
        options = ["--encoding", "cp1252"]
        metadata.write_bytes(metadata.read_text("utf-8").encode("cp1252"))
    elif form == "semicolons":
        options = ["--delimiter", ";"]
        text = "".join(f'{name};"{text}"\n' for name, _, text in lines)
        metadata.write_text(text, encoding="utf-8")
    else:
        options = ["--text-column", "2"]
        text = "".join(f"{name}|{text}|an English translation of it\n" for name, _, text in lines)
        metadata.write_text(text, encoding="utf-8")
        assert "--text-column" in refusal(prepare_with, corpus, tmp_path / "lists")
    main([str(corpus), "--out", str(tmp_path / "lists"), *options])
    plain, other = (
        [[(Path(row[0]).stem, *row[1:]) for row in rows] for rows in read_lists(tmp_path / name)]
        for name in ("plain", "lists")
    )
    assert other == plain


@pytest.mark.parametrize("has_table", [True, False])
def test_prepare_rejects_a_text_when_it_contains_a_pipe(has_table, tmp_path):
    """In an earlier version, prepare accepted a text with a pipe, although pipes separate the
    fields of a filelist. Training then rejected the filelist or dropped the end of the text."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i in range(10):
        write_tone(corpus / f"c{i}.wav", 4000 + 137 * i)
        text = "Hello there|you." if i == 3 else "Hello there."
        if has_table:
            with open(corpus / "metadata.csv", "a") as file:
                file.write(f"c{i}\t{text}\n")
        else:
            (corpus / f"c{i}.txt").write_text(text)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    place = corpus / ("metadata.csv:4" if has_table else "c3.txt")
    assert f"{place}: 'Hello there|you.'" in message
    prepare(Preparation(corpus, tmp_path / "lists", skip_bad=True))
    lines = [line for path in ("train", "val") for line in read_lines(tmp_path, path)]
    assert len(lines) == 9
    assert {line.count("|") for line in lines} == {2}


def read_lines(folder, name):
    return (folder / "lists" / f"{name}.txt").read_text().splitlines()
