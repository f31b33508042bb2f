"""From a corpus to filelists: checks, split, cached mels, and the settings that train on them."""

import csv
import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
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
    refusal,
    write_tone,
)
from helpers import OTHER_THAN_FILES, locked, make_other_than_file

from audio import check_sound, minimum_samples
from corpus import mel_cache, recordings
from corpus.metadata import choose_split, split_by_hash
from corpus.sound_measures import SoundMeasures
from data_utils import TextMelDataset, changed_clips, kept_table, read_filelist
from hparams import create_hparams
from scripts import prepare_ljspeech
from scripts.prepare_ljspeech import main, prepare

ROOT = Path(__file__).resolve().parent.parent
LJSPEECH = ROOT.parent / "shared" / "ljspeech"
MINI = LJSPEECH / "LJSpeech-mini"
HPARAMS = create_hparams()
FILES = {
    *("train.txt", "val.txt", "settings.txt", "lengths.png", "corpus.png"),
    *("train.txt.clips", "val.txt.clips"),
}
MEL_HPARAMS = create_hparams("load_mel_from_disk=True")

needs_lengths = pytest.mark.skipif(
    not (LJSPEECH / "lengths.csv").is_file(),
    reason="LJSpeech's metadata and lengths (../shared/ljspeech) are not on this machine",
)
needs_mini = pytest.mark.skipif(
    not MINI.is_dir(),
    reason="the real clips (../shared/ljspeech/LJSpeech-mini) are not on this machine",
)


@pytest.fixture(autouse=True)
def no_picture(monkeypatch, request):
    """Drawing takes longer than all the rest; a test marked `picture` draws."""
    if "picture" not in request.fixturenames:
        for name in ("draw_lengths", "draw_faults"):
            monkeypatch.setattr(prepare_ljspeech, name, lambda *_: b"a picture")


@pytest.fixture
def picture():
    """A test that takes this draws lengths.png and corpus.png."""


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus")


def read_lists(out, suffix=""):
    """The lines of train.txt and val.txt, split at every bar."""
    return tuple(
        [line.split("|") for line in (out / f"{name}{suffix}.txt").read_text("utf-8").splitlines()]
        for name in ("train", "val")
    )


def ids_of(rows):
    return {Path(row[0]).stem for row in rows}


# ---------------------------------------------------------------------------- filelists


@pytest.mark.parametrize("sound", ["wav", "flac"])
def test_every_clip_stands_in_one_list_with_its_path_text_and_seconds(tmp_path, sound):
    corpus = make_corpus(tmp_path / "corpus", 10, sound)
    prepare(corpus, tmp_path / "lists")
    train, val = read_lists(tmp_path / "lists")
    assert (len(train), len(val)) == (8, 2)
    samples = [4000 + 137 * i for i in range(10)]
    assert sorted(train + val) == [
        [str(corpus / "wavs" / f"c{i:02}.{sound}"), f"Number {i}.", f"{n / RATE:.6f}"]
        for i, n in enumerate(samples)
    ]
    assert train == sorted(train)  # in the order of metadata.csv
    for name, rows in (("train", train), ("val", val)):
        clips = read_filelist(tmp_path / "lists" / f"{name}.txt", HPARAMS)
        numbers = [int(Path(row[0]).stem[1:]) for row in rows]
        assert [clip.num_frames for clip in clips] == [1 + samples[i] // 256 for i in numbers]


def test_texts_are_kept_letter_by_letter(corpus, tmp_path):
    texts = [
        '"Quite," she said, "a "snatcher"',
        'crying, "cette grâce"',
        "it’s £5 — or 6",
        "{HH AY1}",
    ]
    for i, text in enumerate(texts):
        write_tone(corpus / "wavs" / f"t{i}.wav", 5000)
        add_line(corpus, f"t{i}|raw|{text}")
    prepare(corpus, tmp_path / "lists")
    train, val = read_lists(tmp_path / "lists")
    assert sorted(row[1] for row in train + val if Path(row[0]).stem[0] == "t") == sorted(texts)


def test_windows_line_ends_and_a_byte_order_mark_do_not_matter(corpus, tmp_path):
    prepare(corpus, tmp_path / "lists")
    text = (corpus / "metadata.csv").read_bytes()
    (corpus / "metadata.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n")
    prepare(corpus, tmp_path / "again")
    assert read_lists(tmp_path / "again") == read_lists(tmp_path / "lists")


def test_running_twice_writes_the_same_and_leaves_no_other_file(corpus, tmp_path, picture):
    prepare(corpus, tmp_path / "lists")
    before = contents(tmp_path / "lists")
    prepare(corpus, tmp_path / "lists")
    assert contents(tmp_path / "lists") == before
    assert before.keys() == FILES
    for name in ("lengths.png", "corpus.png"):
        image = matplotlib.image.imread(io.BytesIO(before[name]))
        assert len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 10  # something is drawn


@pytest.mark.parametrize("failing", sorted(name for name in FILES if ".clips" not in name))
def test_a_full_disk_leaves_the_old_lists_as_they_were(corpus, tmp_path, monkeypatch, failing):
    prepare(corpus, tmp_path / "lists")
    before = contents(tmp_path / "lists")
    write_bytes = Path.write_bytes

    def full(path, data):
        if failing in path.name:
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    refusal(prepare, corpus, tmp_path / "lists", seed=5, error=OSError)
    assert contents(tmp_path / "lists") == before


def test_the_table_counts_clips_hours_seconds_frames_and_symbols(corpus, tmp_path, capsys):
    prepare(corpus, tmp_path / "lists")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    values = {" ".join(words[:-3]): words[-3:] for words in lines}
    samples = np.arange(10) * 137 + 4000
    assert values["clips"] == ["8", "2", "10"]
    assert values["hours"][2] == f"{samples.sum() / RATE / 3600:.2f}"
    assert values["seconds shortest"][2] == "0.18"  # 4000 / 22050
    assert values["seconds mean"][2] == "0.21"  # 4616.5 / 22050
    assert values["seconds median"][2] == "0.21"
    assert values["seconds longest"][2] == "0.24"  # 5233 / 22050
    assert values["frames shortest"][2] == "16"  # 1 + 4000 // 256
    assert values["frames longest"][2] == "21"  # 1 + 5233 // 256
    assert values["frames total"][2] == str(sum(1 + n // 256 for n in samples))
    spoken = "zero one two three four five six seven eight nine".split()
    symbols = [len(f"number {word}.") for word in spoken]
    assert values["symbols total"][2] == str(sum(symbols))
    assert values["symbols shortest"][2] == str(min(symbols))
    assert values["symbols longest"][2] == str(max(symbols))


def test_the_settings_decide_what_a_good_clip_is(corpus, tmp_path):
    prepare(corpus, tmp_path / "lists", "hop_length=100,filter_length=4096")
    message = refusal(prepare, corpus, tmp_path / "other", "sampling_rate=16000,mel_fmax=8000")
    assert message.count("22050 Hz, expected 16000") == 10
    assert "latin" in refusal(prepare, corpus, tmp_path / "other", "text_cleaners=[latin]")
    assert "did you mean hop_length" in refusal(prepare, corpus, tmp_path / "other", "hop_lenth=1")
    assert not (tmp_path / "other").exists()


# ---------------------------------------------------------------------------- settings.txt


def settings_of(folder):
    return create_hparams(f"@{folder / 'settings.txt'}")


def test_the_settings_file_holds_the_overrides_given_and_names_the_lists(corpus, tmp_path):
    out = tmp_path / "my lists"
    overrides = "win_time=50,hop_time=12.5,text_cleaners=[basic_cleaners,english_cleaners]"
    prepare(corpus, out, overrides)
    lists = f"training_files={out}/train.txt,validation_files={out}/val.txt"
    assert settings_of(out) == create_hparams(f"{overrides},{lists}")


def test_the_settings_file_goes_with_the_mels_and_an_earlier_one_can_be_given(corpus, tmp_path):
    out = tmp_path / "lists"
    prepare(corpus, out, "hop_length=200", mels=tmp_path / "mels")
    h = settings_of(out)
    assert (h.hop_length, h.load_mel_from_disk) == (200, True)
    assert (h.training_files, h.validation_files) == (f"{out}/train_mel.txt", f"{out}/val_mel.txt")
    assert len(read_filelist(h.training_files, h)) == 8
    prepare(corpus, tmp_path / "sound", f"@{out}/settings.txt")
    h = settings_of(tmp_path / "sound")
    assert (h.hop_length, h.load_mel_from_disk) == (200, False)
    assert h.training_files == f"{tmp_path}/sound/train.txt"


# ---------------------------------------------------------------------------- bad clips

BAD_SOUNDS = "stereo rate silent short cut-wav cut-flac garbage nothing missing".split()


def make_bad_corpus(folder):
    """Ten good clips and, for each fault, a bad one. Returns the corpus and what is said of it."""
    corpus = make_corpus(folder)
    wavs, metadata = corpus / "wavs", corpus / "metadata.csv"
    for name in ("mute", "foreign", "fields"):
        write_tone(wavs / f"{name}.wav", 5000)
    soundfile.write(wavs / "stereo.wav", np.zeros((5000, 2)), RATE)
    write_tone(wavs / "rate.wav", 5000, rate=16000)
    write_tone(wavs / "silent.wav", 0)
    write_tone(wavs / "short.wav", minimum_samples(HPARAMS) - 1)
    for kind in ("wav", "flac"):
        path = wavs / f"cut-{kind}.{kind}"
        write_tone(path, 5000)
        path.write_bytes(path.read_bytes()[:-100])
    (wavs / "garbage.wav").write_bytes(bytes(range(256)) * 20)
    (wavs / "nothing.wav").touch()
    for name in BAD_SOUNDS:
        add_line(corpus, f"{name}|raw|Some words.")
    add_line(corpus, "mute|raw|  ")
    add_line(corpus, "foreign|raw|~ ^ ~")
    add_line(corpus, "fields|only two")
    add_line(corpus, "c03|raw|Said twice.")
    return corpus, {
        f"{wavs}/stereo.wav": "2 channels, expected mono; mix",
        f"{wavs}/rate.wav": "16000 Hz, expected 22050; resample",
        f"{wavs}/silent.wav": "empty, expected at least 513 samples; leave",
        f"{wavs}/short.wav": "512 samples, expected at least 513 samples; leave",
        f"{wavs}/cut-wav.wav": "cut off, its header promises more; copy",
        f"{wavs}/cut-flac.flac": "so cut off or damaged inside; copy",
        f"{wavs}/garbage.wav": "not readable as sound",
        f"{wavs}/nothing.wav": "not readable as sound",
        f"{wavs}/missing.wav": "no such file; copy it there, or take line 19 out",
        f"{metadata}:20": "'' of mute leaves nothing to say after cleaning; write what is said",
        f"{metadata}:21": "'~ ^ ~' of foreign leaves nothing to say after cleaning",
        f"{metadata}:22": "2 fields, expected id|text|normalised text: 'fields|only two'; mend",
        f"{metadata}:23": "id 'c03' stands in line 4 too; take one of them out",
    }


def test_all_bad_clips_are_listed_and_nothing_is_written(tmp_path):
    corpus, expected = make_bad_corpus(tmp_path / "corpus")
    # A text as exit code: printed to stderr, exit status 1.
    message = refusal(main, [str(corpus), "--out", str(tmp_path / "lists")], error=SystemExit)
    listed = [line for line in message.splitlines() if line.startswith("  ")]
    assert len(listed) == len(expected) == 13
    for place, words in expected.items():
        (line,) = (line for line in listed if f"  {place}" in line)
        assert words in line
    assert "13 of 23 clips are bad" in message
    assert "no filelist was written" in message
    assert "--skip-bad" in message
    assert not (tmp_path / "lists").exists()


def test_skip_bad_leaves_them_out_says_so_and_moves_no_other_clip(tmp_path, capsys):
    corpus, expected = make_bad_corpus(tmp_path / "corpus")
    main([str(corpus), "--out", str(tmp_path / "lists"), "--skip-bad"])
    printed = capsys.readouterr().out
    assert "--skip-bad leaves out 13 of 23 clips" in printed
    for place, words in expected.items():
        assert place in printed
        assert words in printed
    train, val = read_lists(tmp_path / "lists")
    assert sorted(ids_of(train) | ids_of(val)) == [f"c{i:02}" for i in range(10)]
    # Mended, the bad clips join without moving the good ones from set to set.
    for name in BAD_SOUNDS:
        (corpus / "wavs" / f"{name}.flac").unlink(missing_ok=True)
        write_tone(corpus / "wavs" / f"{name}.wav", 5000)
    lines = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()[:19]
    lines += ["mute|raw|Mute.", "foreign|raw|Foreign."]
    (corpus / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    prepare(corpus, tmp_path / "mended")
    mended_train, mended_val = read_lists(tmp_path / "mended")
    assert len(mended_train + mended_val) == 21
    assert ids_of(train) < ids_of(mended_train)
    assert ids_of(val) <= ids_of(mended_val)


def test_a_wav_that_was_written_to_a_pipe_is_not_taken_for_cut_off(corpus):
    path = corpus / "wavs" / "c00.wav"
    sound = path.read_bytes()
    for unknown in (0xFFFFFFFF, 0x7FFFF024):
        path.write_bytes(sound[:4] + unknown.to_bytes(4, "little") + sound[8:])
        assert check_sound(path, HPARAMS) == 4000
    path.write_bytes(sound[:-100])
    assert "cut off" in refusal(check_sound, path, HPARAMS)


BAD_CONTENTS = {
    "nan.wav": "sample 100 (at 0.00 s) is nan, expected finite numbers",
    "loud.wav": "samples reach 2, expected [-1, 1]; scale it",
    "mute.wav": "silent from beginning to end",
    "ogg.wav": "OGG (OGG Container format), expected WAV or FLAC; convert it",
    "damaged.flac": "not readable as sound to its end",
    "folder.wav": "a folder, expected a file",
    "pipe.wav": "a named pipe, expected a file",
    "device.wav": "a device, expected a file",
}


def make_bad_contents(corpus):
    """Ten good clips, and one for each of BAD_CONTENTS, which no header tells."""
    wavs = corpus / "wavs"
    for name in ("nan", "loud", "mute"):
        samples = 0.5 * np.sin(np.arange(5000) / 20)
        samples = {"nan": samples, "loud": 4 * samples, "mute": 0 * samples}[name]
        samples[100] = np.nan if name == "nan" else samples[100]
        soundfile.write(wavs / f"{name}.wav", samples, RATE, subtype="FLOAT")
    write_tone(wavs / "ogg.wav", 5000, format="OGG")
    write_tone(wavs / "damaged.flac", 5000)
    content = bytearray((wavs / "damaged.flac").read_bytes())
    content[len(content) // 2] ^= 1
    (wavs / "damaged.flac").write_bytes(content)
    for kind in OTHER_THAN_FILES:
        make_other_than_file(wavs / f"{kind.split()[-1]}.wav", kind)
    for name in BAD_CONTENTS:
        add_line(corpus, f"{name.partition('.')[0]}|raw|Some words.")


def test_every_sample_is_read_and_all_that_no_mel_can_be_made_of_is_listed(
    corpus, tmp_path, capsys
):
    make_bad_contents(corpus)
    add_line(corpus, "dots|raw|...")
    write_tone(corpus / "wavs" / "dots.wav", 5000)
    message = refusal(prepare, corpus, tmp_path / "lists")
    for name, words in BAD_CONTENTS.items():
        assert f"  {corpus}/wavs/{name}: {words}" in message
    assert f"{corpus}/metadata.csv:19: the normalised text '...' of dots leaves nothing" in message
    assert "9 of 19 clips are bad" in message
    assert not (tmp_path / "lists").exists()
    prepare(corpus, tmp_path / "lists", skip_bad=True, val_fraction=0.5)
    train, val = read_lists(tmp_path / "lists")
    assert ids_of(train) | ids_of(val) == {f"c{i:02}" for i in range(10)}


def test_a_clip_with_two_faults_is_one_bad_clip_and_both_are_said(corpus, tmp_path):
    add_line(corpus, "gone|raw|...")
    message = refusal(prepare, corpus, tmp_path / "lists")
    assert "gone.wav (or .flac): no such file" in message
    assert "'...' of gone leaves nothing to say" in message
    assert "1 of 11 clips are bad" in message


def test_training_finds_a_table_of_each_list_as_it_would_make_it(corpus, tmp_path):
    add_line(corpus, "c10|raw|  Blanks, and a  {HH AY1}. ")
    write_tone(corpus / "wavs" / "c10.wav", 5000)
    prepare(corpus, tmp_path / "lists", mels=tmp_path / "mels")
    for name in ("train", "val"):
        for suffix, hparams in (("", HPARAMS), ("_mel", MEL_HPARAMS)):
            filelist = tmp_path / "lists" / f"{name}{suffix}.txt"
            found, anew = kept_table(filelist, hparams), read_filelist(filelist, hparams)
            assert list(found) == list(anew)
            assert found.mel_folders == anew.mel_folders
            assert found.fingerprint == anew.fingerprint
            assert found.complete
            assert changed_clips(found).size == 0


@pytest.mark.parametrize(("of_file", "of_line"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFC", "NFC")])
def test_letters_with_accents_match_however_they_are_composed(corpus, tmp_path, of_file, of_line):
    sound = corpus / "wavs" / f"{unicodedata.normalize(of_file, 'café')}.wav"
    write_tone(sound, 5000)
    add_line(corpus, f"{unicodedata.normalize(of_line, 'café')}|raw|A text.")
    prepare(corpus, tmp_path / "lists", mels=tmp_path / "mels")
    train, val = read_lists(tmp_path / "lists")
    assert [str(sound), "A text.", f"{5000 / RATE:.6f}"] in train + val
    for suffix, hparams in (("", HPARAMS), ("_mel", MEL_HPARAMS)):
        for name in ("train", "val"):
            assert read_filelist(tmp_path / "lists" / f"{name}{suffix}.txt", hparams)


def test_two_files_that_differ_in_composition_alone_belong_each_to_its_own_line(corpus, tmp_path):
    for i, form in enumerate(("NFC", "NFD")):
        name = unicodedata.normalize(form, "café")
        write_tone(corpus / "wavs" / f"{name}.wav", 5000 + i)
        add_line(corpus, f"{name}|raw|A text.")
    prepare(corpus, tmp_path / "lists")
    train, val = read_lists(tmp_path / "lists")
    seconds = {Path(path).stem: seconds for path, _, seconds in train + val}
    assert seconds[unicodedata.normalize("NFC", "café")] == f"{5000 / RATE:.6f}"
    assert seconds[unicodedata.normalize("NFD", "café")] == f"{5001 / RATE:.6f}"


def test_metadata_in_utf_16_is_named_with_how_to_convert_it(corpus, tmp_path):
    metadata = corpus / "metadata.csv"
    metadata.write_bytes(metadata.read_text(encoding="utf-8").encode("utf-16"))
    message = refusal(prepare, corpus, tmp_path / "lists")
    assert f"{metadata}: UTF-16 text, expected UTF-8; convert it: iconv -f UTF-16 -t" in message


@pytest.mark.parametrize("kind", OTHER_THAN_FILES)
def test_metadata_that_is_no_file_is_named(corpus, tmp_path, kind):
    (corpus / "metadata.csv").unlink()
    make_other_than_file(corpus / "metadata.csv", kind)
    message = refusal(prepare, corpus, tmp_path / "lists")
    assert f"{corpus / 'metadata.csv'}: {kind}, expected a file" in message


def test_a_corpus_that_is_a_file_is_named(tmp_path):
    (tmp_path / "corpus").touch()
    assert f"{tmp_path}/corpus: no folder;" in refusal(prepare, tmp_path / "corpus", tmp_path / "l")


def test_a_clip_that_may_not_be_read_is_a_matter_of_permission(corpus, tmp_path, monkeypatch):
    """As root reads everything, the one clip is checked as somebody else."""
    check = recordings.measure_sound

    def as_nobody(path, hparams):
        if path.stem != "c03":
            return check(path, hparams)
        with locked(path):
            return check(path, hparams)

    monkeypatch.setattr(recordings, "measure_sound", as_nobody)
    message = refusal(prepare, corpus, tmp_path / "lists")
    assert f"{corpus}/wavs/c03.wav: permission denied; let your user read it" in message


# ---------------------------------------------------------------------------- long clips


def test_clips_many_times_longer_than_the_rest_are_warned_of_and_can_be_left_out(
    corpus, tmp_path, capsys
):
    for name, seconds in (("speech", 3), ("chapter", 12.5)):
        write_tone(corpus / "wavs" / f"{name}.wav", int(seconds * RATE))
        add_line(corpus, f"{name}|raw|A text.")
    out = tmp_path / "lists"
    main([str(corpus), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "warning: 2 of 12 clips are more than 5 times as long as the median, 0.2 s" in printed
    assert f"{corpus}/wavs/chapter.wav (12.5 s), {corpus}/wavs/speech.wav (3.0 s)." in printed
    assert "--max-seconds" in printed
    before = read_lists(out)
    main([str(corpus), "--out", str(out), "--max-seconds", "3"])
    printed = capsys.readouterr().out
    assert "--max-seconds 3 leaves out 1 of 12 clips; the longest is" in printed
    assert f"{corpus}/wavs/chapter.wav (12.5 s)" in printed
    assert "warning: 1 of 11 clips" in printed
    after = read_lists(out)  # no other clip moves from set to set
    for rows, fewer in zip(before, after, strict=True):
        assert fewer == [row for row in rows if "chapter" not in row[0]]
    main(
        [str(corpus), "--out", str(out), "--max-seconds", "1", "--cache-mels", str(tmp_path / "m")]
    )
    assert "warning" not in capsys.readouterr().out
    assert not (tmp_path / "m" / "speech.npy").exists()
    assert (tmp_path / "m" / "c00.npy").exists()


def test_a_limit_that_leaves_no_clip_is_refused(corpus, tmp_path):
    message = refusal(prepare, corpus, tmp_path / "lists", max_seconds=0.01)
    assert "0 clips for training and 0 for validation" in message
    assert "--max-seconds" in message
    assert not (tmp_path / "lists").exists()


# ---------------------------------------------------------------------------- notices


def test_sound_files_that_no_line_names_are_a_notice(corpus, tmp_path, capsys):
    write_tone(corpus / "wavs" / "c00.flac", 9000)  # c00.wav is the one read
    write_tone(corpus / "wavs" / "stray.wav", 5000)
    (corpus / "wavs" / "._c01.wav").touch()  # macOS leaves such files behind
    (corpus / "wavs" / "notes.txt").touch()
    prepare(corpus, tmp_path / "lists")
    assert "names 2 files in wavs: c00.flac, stray.wav\n" in capsys.readouterr().out
    train, val = read_lists(tmp_path / "lists")
    assert len(train + val) == 10


def test_what_is_no_corpus_is_refused_with_what_to_do(corpus, tmp_path):
    lists = tmp_path / "lists"
    assert "--download" in refusal(prepare, tmp_path / "absent", lists)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "id|text|normalised text" in refusal(prepare, empty, lists)
    (empty / "metadata.csv").write_text("\n")
    assert "no clip in it" in refusal(prepare, empty, lists)
    (empty / "metadata.csv").write_text("a|b|c\n")
    assert f"{empty / 'wavs'}: no such folder" in refusal(prepare, empty, lists)
    (empty / "metadata.csv").write_bytes("a|b|c\nd|e|grâce\n".encode("latin-1"))
    message = refusal(prepare, empty, lists)
    assert f"{empty / 'metadata.csv'}: not readable as UTF-8 text" in message
    assert "in line 2" in message
    assert "iconv" in message
    barred = make_corpus(tmp_path / "a|b", 1)
    assert "cannot hold '|'" in refusal(prepare, barred, lists)
    assert "cannot hold '|'" in refusal(prepare, corpus, lists, mels=tmp_path / "m|els")
    assert not lists.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--val-fraction", "0"],
        ["--val-fraction", "1.5"],
        ["--out", "a,b"],
        ["--out", "a #b"],
        ["--max-seconds", "0"],
        ["--max-seconds", "nan"],
    ],
)
def test_options_out_of_range_are_refused(tmp_path, options, capsys):
    assert refusal(main, [str(tmp_path), *options], error=SystemExit) == "2"
    assert options[0] in capsys.readouterr().err


# ---------------------------------------------------------------------------- split


def read_pinned():
    with open(ROOT / "filelists" / "ljspeech_split.csv", encoding="utf-8", newline="") as file:
        return {row["id"]: row["set"] for row in csv.DictReader(file)}


def test_the_pinned_split_is_what_the_rule_gives():
    pinned = read_pinned()
    assert len(pinned) == 13100
    order = sorted(pinned, key=lambda name: hashlib.sha256(b"0|" + name.encode()).hexdigest())
    expected = dict.fromkeys(order[:2620], "val") | dict.fromkeys(order[2620:], "train")
    assert pinned == expected


@needs_lengths
def test_the_full_corpus_gives_10480_and_2620_lines_of_the_pinned_split(
    tmp_path, monkeypatch, capsys
):
    with open(LJSPEECH / "lengths.csv", encoding="utf-8", newline="") as file:
        samples = {row["id"]: int(row["samples"]) for row in csv.DictReader(file)}
    corpus = tmp_path / "LJSpeech-1.1"
    (corpus / "wavs").mkdir(parents=True)
    shutil.copyfile(LJSPEECH / "metadata.csv", corpus / "metadata.csv")
    for name in samples:
        (corpus / "wavs" / f"{name}.wav").touch()

    def measures(path, _):
        return SoundMeasures(
            samples[path.stem], 0, 0, clipped=0, checksum=(len(path.stem), hash(path))
        )

    monkeypatch.setattr(recordings, "measure_sound", measures)
    prepare(corpus, tmp_path / "lists")
    printed = capsys.readouterr().out
    assert "the pinned split" in printed
    (warning,) = (line for line in printed.splitlines() if line.startswith("warning"))
    assert "in 2 of 13,100 clips" in warning  # 47 symbols in 8.9 s, 13 in 2.1 s
    assert "LJ014-0165 (5.3)" in warning

    train, val = read_lists(tmp_path / "lists")
    assert (len(train), len(val)) == (10480, 2620)
    pinned = read_pinned()
    assert ids_of(train) == {name for name in samples if pinned[name] == "train"}
    assert ids_of(val) == {name for name in samples if pinned[name] == "val"}
    lines = (LJSPEECH / "metadata.csv").read_text(encoding="utf-8").splitlines()
    texts = {line.split("|")[0]: line.split("|")[2] for line in lines}
    for path, text, seconds in train + val:
        assert text == texts[Path(path).stem]
        assert re.fullmatch(r"\d+\.\d{6}", seconds)
        assert abs(float(seconds) * RATE - samples[Path(path).stem]) < 0.02


def test_the_pinned_split_is_taken_for_all_of_ljspeech_and_the_rule_otherwise():
    pinned = read_pinned()
    validation, origin = choose_split(list(pinned), 0.2, 0)
    assert validation == {name for name in pinned if pinned[name] == "val"}
    assert "the pinned split" in origin
    fewer, origin = choose_split(sorted(pinned)[1:], 0.2, 0)
    assert len(fewer ^ validation) <= 2
    assert "seed 0" in origin
    other, origin = choose_split(list(pinned), 0.2, 1)
    assert "seed 1" in origin
    assert 0.1 < len(other & validation) / 2620 < 0.3  # 0.2 by chance


def test_the_split_follows_from_ids_fraction_and_seed_alone():
    ids = [f"clip-{i}" for i in range(1000)]
    validation = split_by_hash(ids, 0.2, 0)
    assert len(validation) == 200
    assert split_by_hash(ids[::-1], 0.2, 0) == validation
    assert split_by_hash(ids, 0.2, 1) != validation
    assert split_by_hash(ids, 0.1, 0) < validation
    fewer = split_by_hash(ids[5:], 0.2, 0)
    assert len(fewer - validation) <= 5  # it hardly changes as clips come and go


def test_a_corpus_that_leaves_a_set_empty_is_refused(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", 2)
    message = refusal(prepare, corpus, tmp_path / "lists")
    assert "2 clips for training and 0 for validation" in message
    assert "--val-fraction" in message
    assert not (tmp_path / "lists").exists()
    prepare(corpus, tmp_path / "lists", val_fraction=0.5)
    assert [len(rows) for rows in read_lists(tmp_path / "lists")] == [1, 1]


# ---------------------------------------------------------------------------- cached mels


def test_cached_mels_are_bitwise_those_of_the_audio(corpus, tmp_path):
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    noise = np.random.default_rng(0).uniform(-1, 1, 60_000)
    soundfile.write(corpus / "wavs" / "c04.wav", noise, RATE)
    prepare(corpus, lists, mels=mels)
    for name in ("train", "val"):
        heard = TextMelDataset(read_filelist(lists / f"{name}.txt", HPARAMS), HPARAMS)
        cached = TextMelDataset(read_filelist(lists / f"{name}_mel.txt", MEL_HPARAMS), MEL_HPARAMS)
        assert len(heard) == len(cached) > 0
        for i in range(len(heard)):
            (text, mel, _), (cached_text, cached_mel, _) = heard[i], cached[i]
            assert cached_text.equal(text)
            assert cached_mel.equal(mel)
    stored = np.load(mels / "c04.npy")
    assert stored.dtype == np.float32
    assert stored.shape == (80, 1 + 60_000 // 256)


def test_a_cached_mel_that_holds_is_kept_and_any_other_is_made_again(corpus, tmp_path, capsys):
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    prepare(corpus, lists, mels=mels)
    before = contents(mels)
    old = time.time() - 1000
    for path in mels.glob("*.npy"):
        os.utime(path, (old + 10, old + 10))
        os.utime(corpus / "wavs" / f"{path.stem}.wav", (old, old))
    np.save(mels / "c04.npy", np.full((80, 1 + (4000 + 4 * 137) // 256), np.nan, np.float32))
    np.save(mels / "c05.npy", np.zeros((80, 1 + (4000 + 5 * 137) // 256)))  # float64
    (mels / "c00.npy").unlink()
    (mels / "c01.npy").write_bytes(before["c01.npy"][:5000])
    np.save(mels / "c02.npy", np.zeros((80, 3), np.float32))
    write_tone(corpus / "wavs" / "c03.wav", 4000 + 3 * 137, peak=0.25)
    (mels / ".c07.npy.99.tmp").write_bytes(b"left by a killed run")
    capsys.readouterr()
    prepare(corpus, lists, mels=mels)
    assert "4 of 10 mels are in" in capsys.readouterr().out
    after = contents(mels)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"c03.npy"}
    renewed = {path.stem for path in mels.glob("*.npy") if path.stat().st_mtime > old + 100}
    assert renewed == {"c00", "c01", "c02", "c03", "c04", "c05"}


def test_mels_of_other_settings_are_neither_mixed_in_nor_overwritten(corpus, tmp_path, capsys):
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    prepare(corpus, lists, mels=mels)
    before = contents(mels)
    message = refusal(prepare, corpus, lists, "hop_length=200", mels=mels)
    assert "hop_length=256, this run has 200" in message
    assert "name another folder" in message
    del before["mel_settings.json"]
    (mels / "mel_settings.json").unlink()
    assert "settings unknown" in refusal(prepare, corpus, lists, mels=mels)
    assert contents(mels) == before
    prepare(corpus, lists)
    assert "*_mel.txt are of an earlier run" in capsys.readouterr().out


def test_clips_that_only_the_mel_finds_bad_are_listed_too(corpus, tmp_path, monkeypatch, capsys):
    """They were good when they were checked."""
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    loud, check = corpus / "wavs" / "c05.wav", recordings.check_recordings

    def check_and_change(*arguments):
        write_tone(loud, 4000 + 5 * 137)
        checked = check(*arguments)
        write_tone(loud, 4000 + 5 * 137, peak=1.5, subtype="FLOAT")
        return checked

    monkeypatch.setattr(prepare_ljspeech, "check_recordings", check_and_change)
    message = refusal(prepare, corpus, lists, mels=mels)
    assert "1 of 10 clips are bad" in message
    assert f"{loud}: samples reach 1.5" in message
    assert not lists.exists()
    assert len(list(mels.glob("*.npy"))) == 9
    prepare(corpus, lists, mels=mels, skip_bad=True)
    assert f"{loud}: samples reach 1.5" in capsys.readouterr().out
    for suffix in ("", "_mel"):
        train, val = read_lists(lists, suffix)
        assert ids_of(train) | ids_of(val) == {f"c{i:02}" for i in range(10)} - {"c05"}


def test_ctrl_c_while_caching_leaves_no_half_mel_and_the_next_run_goes_on(
    tmp_path, monkeypatch, capsys
):
    corpus, lists, mels = make_corpus(tmp_path / "corpus", 100), tmp_path / "lists", tmp_path / "m"
    options = [str(corpus), "--out", str(lists), "--cache-mels", str(mels)]
    cache_mel, written = mel_cache.cache_mel, []

    def interrupted(clip, folder, hparams):
        written.append(clip.id)
        if len(written) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # for the main thread to be interrupted before all is done
        return cache_mel(clip, folder, hparams)

    with monkeypatch.context() as patch:
        patch.setattr(mel_cache, "cache_mel", interrupted)
        message = refusal(main, options, error=SystemExit)
    assert message.startswith("stopped; no filelist was written")
    assert not list(mels.glob(".*"))
    done = {path.name: path.stat().st_mtime_ns for path in mels.glob("*.npy")}
    assert {f"{name}.npy" for name in written} == set(done)  # the ones begun, and no more
    assert 5 <= len(done) < 100
    assert not lists.exists()

    main(options)
    assert f"{len(done)} of 100 mels are in" in capsys.readouterr().out
    assert {name: (mels / name).stat().st_mtime_ns for name in done} == done
    h = settings_of(lists)
    assert (
        sum(len(read_filelist(path, h)) for path in (h.training_files, h.validation_files)) == 100
    )


def test_a_kill_while_caching_leaves_no_half_mel_under_its_name_and_the_next_run_goes_on(tmp_path):
    corpus, lists, mels = make_corpus(tmp_path / "corpus", 50), tmp_path / "lists", tmp_path / "m"
    options = [str(corpus), "--out", str(lists), "--cache-mels", str(mels)]
    kill_while_preparing(".npy", options)
    assert not lists.exists()
    done = {path.name: path.stat().st_mtime_ns for path in mels.glob("*.npy")}
    assert 3 <= len(done) < 50
    for name in done:
        assert np.load(mels / name).shape[0] == 80
    assert list(mels.glob(".*.tmp"))  # the half mel

    main(options)
    assert {path.name for path in mels.iterdir()} == {
        "mel_settings.json",
        *(f"c{i:02}.npy" for i in range(50)),
    }
    assert {name: (mels / name).stat().st_mtime_ns for name in done} == done
    h = settings_of(lists)
    assert sum(len(read_filelist(path, h)) for path in (h.training_files, h.validation_files)) == 50


# ---------------------------------------------------------------------------- the command


def test_the_script_runs_from_any_folder_and_from_a_path_with_spaces(tmp_path, monkeypatch):
    project = tmp_path / "a project"
    project.mkdir()
    for path in ROOT.iterdir():  # the program finds its project where it lies, not where we are
        if path.suffix == ".py" or path.name in ("text", "corpus", "analysis", "filelists"):
            (project / path.name).symlink_to(path)
    shutil.copytree(ROOT / "scripts", project / "scripts")
    make_corpus(tmp_path / "some speech", text="A text.")
    command = [sys.executable, "a project/scripts/prepare_ljspeech.py", "some speech"]
    options = ["--out", "my lists", "--hparams", "hop_length=200,win_length=800"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, wrote, following = done.stdout.splitlines()
    names = "train.txt val.txt settings.txt lengths.png corpus.png".split()
    names += ["train.txt.clips", "val.txt.clips"]
    assert wrote == "Wrote " + ", ".join(f"my lists/{name}" for name in names)
    assert following == (
        "Next: python train.py -o 'runs/my lists' --hparams '@my lists/settings.txt'"
    )
    monkeypatch.chdir(tmp_path)
    hparams = create_hparams(shlex.split(following)[-1])
    assert (hparams.hop_length, hparams.win_length) == (200, 800)
    assert hparams.training_files == "my lists/train.txt"
    assert hparams.validation_files == "my lists/val.txt"
    assert len(read_filelist(hparams.training_files, HPARAMS)) == 8


@needs_mini
def test_real_clips_give_lists_that_training_reads_and_no_warning(tmp_path, capsys):
    prepare(MINI, tmp_path)
    assert "warning" not in capsys.readouterr().out
    train, val = read_lists(tmp_path)
    assert (len(train), len(val)) == (66, 16)
    for path, _, seconds in train + val:
        with wave.open(path) as file:
            assert seconds == f"{file.getnframes() / RATE:.6f}"
    assert len(read_filelist(tmp_path / "train.txt", HPARAMS)) == 66


@pytest.mark.parametrize("option", ["out", "mels", "trim"])
@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_file_where_a_folder_should_be_is_refused_before_clips_are_read(option, place, tmp_path):
    (tmp_path / "file").write_text("mine")
    folders = {"out": tmp_path / "l"} | {option: tmp_path / place}
    name = {"out": "--out", "mels": "--cache-mels", "trim": "--trim-silence"}[option]
    message = refusal(prepare, tmp_path / "no corpus", **folders)
    assert message == f"{tmp_path / 'file'}: not a folder; choose another {name}"
    assert (tmp_path / "file").read_text() == "mine"
