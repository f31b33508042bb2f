"""From a corpus to filelists: checks, split, cached mels, and the download from a local server."""

import csv
import hashlib
import http.server
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import wave
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import soundfile

import progress
from audio import minimum_samples
from data_utils import TextMelDataset, read_filelist
from hparams import create_hparams
from scripts import download, prepare_ljspeech
from scripts.download import download_corpus
from scripts.prepare_ljspeech import main, prepare

ROOT = Path(__file__).resolve().parent.parent
LJSPEECH = ROOT.parent / "shared" / "ljspeech"
MINI = LJSPEECH / "LJSpeech-mini"
RATE = 22050
HPARAMS = create_hparams()
MEL_HPARAMS = create_hparams("load_mel_from_disk=True")

needs_lengths = pytest.mark.skipif(
    not (LJSPEECH / "lengths.csv").is_file(),
    reason="LJSpeech's metadata and lengths (../shared/ljspeech) are not on this machine",
)
needs_mini = pytest.mark.skipif(
    not MINI.is_dir(),
    reason="the real clips (../shared/ljspeech/LJSpeech-mini) are not on this machine",
)


def tone(num_samples, pitch=220):
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(num_samples) / RATE)


def make_corpus(folder, clips=10, sound="wav"):
    """Clips c00, c01, ... of 4000, 4137, ... samples; the normalised text differs from the raw."""
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for i in range(clips):
        soundfile.write(folder / "wavs" / f"c{i:02}.{sound}", tone(4000 + 137 * i), RATE)
        lines.append(f"c{i:02}|No. {i}|Number {i}.\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def add_line(corpus, line):
    with open(corpus / "metadata.csv", "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_lists(out, suffix=""):
    """The lines of train.txt and val.txt, split at every bar."""
    return tuple(
        [line.split("|") for line in (out / f"{name}{suffix}.txt").read_text("utf-8").splitlines()]
        for name in ("train", "val")
    )


def ids_of(rows):
    return {Path(row[0]).stem for row in rows}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(function, *arguments, error=ValueError, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)


# ---------------------------------------------------------------------------- filelists


@pytest.mark.parametrize("sound", ["wav", "flac"])
def test_every_clip_stands_in_one_list_with_its_path_text_and_seconds(tmp_path, sound):
    corpus = make_corpus(tmp_path / "corpus", 10, sound)
    prepare(corpus, tmp_path / "lists", HPARAMS)
    train, val = read_lists(tmp_path / "lists")
    assert (len(train), len(val)) == (8, 2)
    expected = [
        [
            str(corpus / "wavs" / f"c{i:02}.{sound}"),
            f"Number {i}.",
            f"{(4000 + 137 * i) / RATE:.6f}",
        ]
        for i in range(10)
    ]
    assert sorted(train + val) == expected
    assert train == sorted(train)  # in the order of metadata.csv
    for name, rows in (("train", train), ("val", val)):
        clips = read_filelist(tmp_path / "lists" / f"{name}.txt", HPARAMS)
        numbers = [int(Path(row[0]).stem[1:]) for row in rows]
        assert [clip.num_frames for clip in clips] == [1 + (4000 + 137 * i) // 256 for i in numbers]


def test_texts_are_kept_letter_by_letter(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    texts = [
        '"Quite," she said, "a "snatcher"',
        'crying, "cette grâce"',
        "it’s £5 — or 6",
        "{HH AY1}",
    ]
    for i, text in enumerate(texts):
        soundfile.write(corpus / "wavs" / f"t{i}.wav", tone(5000), RATE)
        add_line(corpus, f"t{i}|raw|{text}")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    train, val = read_lists(tmp_path / "lists")
    assert sorted(row[1] for row in train + val if Path(row[0]).stem[0] == "t") == sorted(texts)


def test_windows_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    text = (corpus / "metadata.csv").read_bytes()
    (corpus / "metadata.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n")
    prepare(corpus, tmp_path / "again", HPARAMS)
    assert contents(tmp_path / "again") == contents(tmp_path / "lists")


def test_running_twice_writes_the_same_and_leaves_no_other_file(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    before = contents(tmp_path / "lists")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    assert contents(tmp_path / "lists") == before
    assert before.keys() == {"train.txt", "val.txt", "lengths.png"}
    image = matplotlib.image.imread(io.BytesIO(before["lengths.png"]))
    assert len(np.unique(image.reshape(-1, image.shape[-1]), axis=0)) > 10  # something is drawn


@pytest.mark.parametrize("failing", ["train.txt", "val.txt", "lengths.png"])
def test_a_full_disk_leaves_the_old_lists_as_they_were(tmp_path, monkeypatch, failing):
    corpus = make_corpus(tmp_path / "corpus")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    before = contents(tmp_path / "lists")
    write_bytes = Path.write_bytes

    def full(path, data):
        if failing in path.name:
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    refusal(prepare, corpus, tmp_path / "lists", HPARAMS, seed=5, error=OSError)
    assert contents(tmp_path / "lists") == before


def test_the_table_counts_clips_hours_seconds_frames_and_symbols(tmp_path, capsys):
    corpus = make_corpus(tmp_path / "corpus")
    prepare(corpus, tmp_path / "lists", HPARAMS)
    printed = capsys.readouterr().out
    values = {" ".join(line[:17].split()): line[17:].split() for line in printed.splitlines()}
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


def test_the_settings_decide_what_a_good_clip_is(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    prepare(corpus, tmp_path / "lists", create_hparams("hop_length=100,filter_length=4096"))
    message = refusal(
        prepare, corpus, tmp_path / "other", create_hparams("sampling_rate=16000,mel_fmax=8000")
    )
    assert message.count("22050 Hz, expected 16000") == 10
    message = refusal(prepare, corpus, tmp_path / "other", create_hparams("text_cleaners=[latin]"))
    assert "latin" in message
    assert not (tmp_path / "other").exists()


# ---------------------------------------------------------------------------- bad clips


def make_bad_corpus(folder):
    """Ten good clips and, for each fault, a bad one. Returns the corpus and what is said of it."""
    corpus = make_corpus(folder)
    wavs = corpus / "wavs"
    short = minimum_samples(HPARAMS) - 1
    soundfile.write(wavs / "stereo.wav", np.stack([tone(5000)] * 2, axis=1), RATE)
    soundfile.write(wavs / "rate.wav", tone(5000), 16000)
    soundfile.write(wavs / "silent.wav", tone(0), RATE)
    soundfile.write(wavs / "short.wav", tone(short), RATE)
    soundfile.write(wavs / "whole.wav", tone(5000), RATE)
    soundfile.write(wavs / "whole.flac", tone(5000), RATE)
    for name in ("whole.wav", "whole.flac"):
        sound = (wavs / name).read_bytes()
        (wavs / name.replace("whole", f"cut-{name[-4:].strip('.')}")).write_bytes(sound[:-100])
        (wavs / name).unlink()
    (wavs / "garbage.wav").write_bytes(bytes(range(256)) * 20)
    (wavs / "nothing.wav").touch()
    soundfile.write(wavs / "mute.wav", tone(5000), RATE)
    soundfile.write(wavs / "foreign.wav", tone(5000), RATE)
    soundfile.write(wavs / "fields.wav", tone(5000), RATE)
    for name in "stereo rate silent short cut-wav cut-flac garbage nothing missing".split():
        add_line(corpus, f"{name}|raw|Some words.")
    add_line(corpus, "mute|raw|  ")
    add_line(corpus, "foreign|raw|~ ^ ~")
    add_line(corpus, "fields|only two")
    add_line(corpus, "c03|raw|Said twice.")
    metadata = corpus / "metadata.csv"
    return corpus, {
        f"{wavs}/stereo.wav": "2 channels, expected mono; mix",
        f"{wavs}/rate.wav": "16000 Hz, expected 22050; resample",
        f"{wavs}/silent.wav": "empty, expected at least 513 samples; leave",
        f"{wavs}/short.wav": "512 samples, expected at least 513 samples; leave",
        f"{wavs}/cut-wav.wav": "cut off, its header promises more; copy",
        f"{wavs}/cut-flac.flac": "cut off, its header promises more; copy",
        f"{wavs}/garbage.wav": "not readable as sound",
        f"{wavs}/nothing.wav": "not readable as sound",
        f"{wavs}/missing.wav": "no such file; copy it there, or take line 19 out",
        f"{metadata}:20": "'' of mute is empty after cleaning; write what is said",
        f"{metadata}:21": "'~ ^ ~' of foreign is empty after cleaning",
        f"{metadata}:22": "2 fields, expected id|text|normalised text: 'fields|only two'; mend",
        f"{metadata}:23": "id 'c03' stands in line 4 too; take one of them out",
    }


def test_all_bad_clips_are_listed_and_nothing_is_written(tmp_path):
    corpus, expected = make_bad_corpus(tmp_path / "corpus")
    with pytest.raises(SystemExit) as caught:
        main([str(corpus), "--out", str(tmp_path / "lists")])
    message = caught.value.code  # a text: printed to stderr, exit status 1
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
    for name in "stereo rate silent short cut-wav cut-flac garbage nothing missing".split():
        (corpus / "wavs" / f"{name}.flac").unlink(missing_ok=True)
        soundfile.write(corpus / "wavs" / f"{name}.wav", tone(5000), RATE)
    lines = (corpus / "metadata.csv").read_text(encoding="utf-8").splitlines()[:19]
    lines += ["mute|raw|Mute.", "foreign|raw|Foreign."]
    (corpus / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    prepare(corpus, tmp_path / "mended", HPARAMS)
    mended_train, mended_val = read_lists(tmp_path / "mended")
    assert len(mended_train + mended_val) == 21
    assert ids_of(train) < ids_of(mended_train)
    assert ids_of(val) <= ids_of(mended_val)


def test_a_wav_that_was_written_to_a_pipe_is_not_taken_for_cut_off(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    for name, unknown in (("c00", 0xFFFFFFFF), ("c01", 0x7FFFF024)):
        path = corpus / "wavs" / f"{name}.wav"
        path.write_bytes(
            path.read_bytes()[:4] + unknown.to_bytes(4, "little") + path.read_bytes()[8:]
        )
    prepare(corpus, tmp_path / "lists", HPARAMS)
    train, val = read_lists(tmp_path / "lists")
    assert {"c00", "c01"} <= ids_of(train) | ids_of(val)


def test_sound_files_that_no_line_names_are_a_notice(tmp_path, capsys):
    corpus = make_corpus(tmp_path / "corpus")
    soundfile.write(corpus / "wavs" / "c00.flac", tone(9000), RATE)  # c00.wav is the one read
    soundfile.write(corpus / "wavs" / "stray.wav", tone(5000), RATE)
    (corpus / "wavs" / "._c01.wav").touch()  # macOS leaves such files behind
    (corpus / "wavs" / "notes.txt").touch()
    prepare(corpus, tmp_path / "lists", HPARAMS)
    assert "names 2 files in wavs: c00.flac, stray.wav\n" in capsys.readouterr().out
    train, val = read_lists(tmp_path / "lists")
    assert len(train + val) == 10


def test_what_is_no_corpus_is_refused_with_what_to_do(tmp_path):
    lists = tmp_path / "lists"
    assert "--download" in refusal(prepare, tmp_path / "absent", lists, HPARAMS)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "id|text|normalised text" in refusal(prepare, empty, lists, HPARAMS)
    (empty / "metadata.csv").write_text("\n")
    assert "no clip in it" in refusal(prepare, empty, lists, HPARAMS)
    (empty / "metadata.csv").write_text("a|b|c\n")
    assert f"{empty / 'wavs'}: no such folder" in refusal(prepare, empty, lists, HPARAMS)
    (empty / "metadata.csv").write_bytes("a|b|c\nd|e|grâce\n".encode("latin-1"))
    message = refusal(prepare, empty, lists, HPARAMS)
    assert f"{empty / 'metadata.csv'}:2: not UTF-8" in message
    assert "iconv" in message
    barred = make_corpus(tmp_path / "a|b")
    assert "cannot hold '|'" in refusal(prepare, barred, lists, HPARAMS)
    corpus = make_corpus(tmp_path / "corpus")
    message = refusal(prepare, corpus, lists, HPARAMS, mels=tmp_path / "m|els")
    assert "cannot hold '|'" in message
    assert not lists.exists()


@pytest.mark.parametrize(
    "options", [["--val-fraction", "0"], ["--val-fraction", "1.5"], ["--out", "lists,old"]]
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
    monkeypatch.setattr(prepare_ljspeech, "read_header", lambda path, _: samples[path.stem])
    monkeypatch.setattr(prepare_ljspeech, "is_cut_off", lambda path: False)
    prepare(corpus, tmp_path / "lists", HPARAMS)
    assert "the pinned split" in capsys.readouterr().out

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

    # A clip that must be left out leaves the others where the pinned split has them.
    for name in ("LJ001-0001", min(ids_of(val))):
        (corpus / "wavs" / f"{name}.wav").unlink()
    prepare(corpus, tmp_path / "fewer", HPARAMS, skip_bad=True)
    fewer_train, fewer_val = read_lists(tmp_path / "fewer")
    assert (len(fewer_train), len(fewer_val)) == (10479, 2619)
    assert ids_of(fewer_train) < ids_of(train)
    assert ids_of(fewer_val) < ids_of(val)

    # Another seed is another split.
    prepare(corpus, tmp_path / "other", HPARAMS, seed=1, skip_bad=True)
    assert "seed 1" in capsys.readouterr().out
    _, other_val = read_lists(tmp_path / "other")
    assert 0.1 < len(ids_of(other_val) & ids_of(val)) / 2620 < 0.3  # 0.2 by chance


def test_the_split_follows_from_ids_fraction_and_seed_alone():
    ids = [f"clip-{i}" for i in range(1000)]
    validation = prepare_ljspeech.split_by_hash(ids, 0.2, 0)
    assert len(validation) == 200
    assert prepare_ljspeech.split_by_hash(ids[::-1], 0.2, 0) == validation
    assert prepare_ljspeech.split_by_hash(ids, 0.2, 1) != validation
    assert prepare_ljspeech.split_by_hash(ids, 0.1, 0) < validation
    fewer = prepare_ljspeech.split_by_hash(ids[5:], 0.2, 0)
    assert len(fewer - validation) <= 5  # it hardly changes as clips come and go


def test_a_corpus_that_leaves_a_set_empty_is_refused(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", 2)
    message = refusal(prepare, corpus, tmp_path / "lists", HPARAMS)
    assert "2 clips for training and 0 for validation" in message
    assert "--val-fraction" in message
    assert not (tmp_path / "lists").exists()
    prepare(corpus, tmp_path / "lists", HPARAMS, val_fraction=0.5)
    assert [len(rows) for rows in read_lists(tmp_path / "lists")] == [1, 1]


# ---------------------------------------------------------------------------- cached mels


def test_cached_mels_are_bitwise_those_of_the_audio_and_kept_while_they_hold(tmp_path, capsys):
    corpus, lists, mels = make_corpus(tmp_path / "corpus"), tmp_path / "lists", tmp_path / "mels"
    noise = np.random.default_rng(0).uniform(-1, 1, 60_000)
    soundfile.write(corpus / "wavs" / "c04.wav", noise, RATE)
    prepare(corpus, lists, HPARAMS, mels=mels)
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

    # What holds is kept; what is missing, broken, or older than its clip is made again.
    before = contents(mels)
    old = time.time() - 1000
    for path in mels.glob("*.npy"):
        os.utime(path, (old + 10, old + 10))
        os.utime(corpus / "wavs" / f"{path.stem}.wav", (old, old))
    (mels / "c00.npy").unlink()
    (mels / "c01.npy").write_bytes(before["c01.npy"][:5000])
    np.save(mels / "c02.npy", np.zeros((80, 3), np.float32))
    soundfile.write(corpus / "wavs" / "c03.wav", 0.5 * tone(4000 + 3 * 137), RATE)
    (mels / ".c07.npy.99.tmp").write_bytes(b"left by a killed run")
    capsys.readouterr()
    prepare(corpus, lists, HPARAMS, mels=mels)
    assert "6 of 10 mels are in" in capsys.readouterr().out
    after = contents(mels)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"c03.npy"}
    renewed = {path.stem for path in mels.glob("*.npy") if path.stat().st_mtime > old + 100}
    assert renewed == {"c00", "c01", "c02", "c03"}

    # Mels of other settings are neither mixed in nor overwritten.
    other = create_hparams("hop_length=200")
    message = refusal(prepare, corpus, lists, other, mels=mels)
    assert "hop_length=256, this run has 200" in message
    assert "name another folder" in message
    (mels / "mel_settings.json").unlink()
    assert "settings unknown" in refusal(prepare, corpus, lists, HPARAMS, mels=mels)
    assert contents(mels) == {name: after[name] for name in after if name != "mel_settings.json"}
    prepare(corpus, lists, HPARAMS)
    assert "*_mel.txt are of an earlier run" in capsys.readouterr().out


def test_clips_that_only_the_mel_finds_bad_are_listed_too(tmp_path, capsys):
    corpus, lists, mels = make_corpus(tmp_path / "corpus"), tmp_path / "lists", tmp_path / "mels"
    loud = corpus / "wavs" / "c05.wav"
    soundfile.write(loud, 3 * tone(4000), RATE, subtype="FLOAT")
    message = refusal(prepare, corpus, lists, HPARAMS, mels=mels)
    assert "1 of 10 clips are bad" in message
    assert f"{loud}: samples reach 1.5" in message
    assert not lists.exists()
    assert len(list(mels.glob("*.npy"))) == 9
    prepare(corpus, lists, HPARAMS, mels=mels, skip_bad=True)
    assert f"{loud}: samples reach 1.5" in capsys.readouterr().out
    for suffix in ("", "_mel"):
        train, val = read_lists(lists, suffix)
        assert ids_of(train) | ids_of(val) == {f"c{i:02}" for i in range(10)} - {"c05"}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_run_stopped_while_caching_leaves_no_worker_and_the_next_one_goes_on(
    tmp_path, capsys, stop
):
    corpus, lists, mels = tmp_path / "corpus", tmp_path / "lists", tmp_path / "mels"
    make_corpus(corpus, 2)
    for i in range(98):
        soundfile.write(corpus / "wavs" / f"long{i}.wav", tone(10 * RATE), RATE)
        add_line(corpus, f"long{i}|raw|A long one.")
    command = [sys.executable, str(ROOT / "scripts" / "prepare_ljspeech.py"), str(corpus)]
    command += ["--out", str(lists), "--cache-mels", str(mels)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(mels.glob("*.npy")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does
    else:
        process.kill()
    _, errors = process.communicate(timeout=60)  # returns once the workers are gone too
    done = {path.name: path.stat().st_mtime_ns for path in mels.glob("*.npy")}
    assert "Traceback" not in errors
    if stop == signal.SIGINT:
        assert process.returncode == 1
        assert "stopped; no filelist was written" in errors
        assert not list(mels.glob(".*"))  # no half-written mel
    assert 0 < len(done) < 100
    assert not lists.exists()

    prepare(corpus, lists, HPARAMS, mels=mels)
    assert f"{len(done)} of 100 mels are in" in capsys.readouterr().out
    assert {name: (mels / name).stat().st_mtime_ns for name in done} == done
    assert not list(mels.glob(".*"))
    clips = read_filelist(lists / "train_mel.txt", MEL_HPARAMS)
    clips += read_filelist(lists / "val_mel.txt", MEL_HPARAMS)
    assert len(clips) == 100


# ---------------------------------------------------------------------------- the command


def test_the_script_runs_from_any_folder_and_from_a_path_with_spaces(tmp_path):
    project = tmp_path / "a project"
    shutil.copytree(
        ROOT,
        project,
        ignore=lambda folder, names: [
            name
            for name in names
            if not name.endswith((".py", ".csv")) and name not in ("text", "scripts", "filelists")
        ],
    )
    make_corpus(tmp_path / "some speech")
    command = [sys.executable, "a project/scripts/prepare_ljspeech.py", "some speech"]
    options = ["--out", "my lists", "--hparams", "hop_length=200,win_length=800"]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, wrote, following = done.stdout.splitlines()
    assert wrote == "Wrote my lists/train.txt, my lists/val.txt, my lists/lengths.png"
    arguments = shlex.split(following)
    assert arguments[:5] == ["Next:", "python", "train.py", "-o", "runs/my lists"]
    assert arguments[5] == "--hparams"
    hparams = create_hparams(arguments[6])
    assert (hparams.hop_length, hparams.win_length) == (200, 800)
    assert hparams.training_files == "my lists/train.txt"
    assert hparams.validation_files == "my lists/val.txt"
    assert len(read_filelist(tmp_path / "my lists" / "train.txt", HPARAMS)) == 8

    (tmp_path / "some speech" / "wavs" / "c00.wav").unlink()
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "c00.wav (or .flac): no such file" in refused.stderr
    assert not (tmp_path / "filelists").exists()


@needs_mini
def test_real_clips_give_lists_that_training_reads(tmp_path):
    prepare(MINI, tmp_path, HPARAMS)
    train, val = read_lists(tmp_path)
    assert (len(train), len(val)) == (66, 16)
    for path, _, seconds in train + val:
        with wave.open(path) as file:
            assert seconds == f"{file.getnframes() / RATE:.6f}"
    assert len(read_filelist(tmp_path / "train.txt", HPARAMS)) == 66


# ---------------------------------------------------------------------------- download


class Server(http.server.ThreadingHTTPServer):
    """Serves `body` at any address; faults are switched on by its attributes."""

    def __init__(self, body):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body
        self.ranges = True  # answers Range
        self.length = True  # says Content-Length
        self.drop_after = None  # bytes of each answer until the connection is cut
        self.statuses = []  # errors to answer first
        self.asked = []  # Range of each request
        self.sent = 0  # bytes of content, all answers together
        self.url = f"http://127.0.0.1:{self.server_address[1]}/files/LJSpeech-1.1.tar.bz2"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(server.body):
                self.send_error(416)
                return
            self.send_response(206)
            last = len(server.body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(server.body) - start))
        self.end_headers()
        content = server.body[start:][: server.drop_after]
        self.wfile.write(content)
        server.sent += len(content)

    def log_message(self, *_):
        pass


def make_archive(tmp_path, more=()):
    """The bytes of a LJSpeech-1.1.tar.bz2 with ten clips and `more` (member, content) pairs."""
    corpus = make_corpus(tmp_path / "source" / "LJSpeech-1.1")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:bz2") as tar:
        tar.add(corpus, "LJSpeech-1.1")
        for member, content in more:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    servers = []

    def start(body):
        servers.append(Server(body))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def fetch(server, corpus, body=None):
    """download_corpus, told of the size and hash of `body` (default: of what is served)."""
    body = server.body if body is None else body
    sha256 = hashlib.sha256(body).hexdigest()
    download_corpus(corpus, server.url, len(body), sha256, unpacked_bytes=1_000_000)


def assert_whole(corpus, tmp_path):
    source = tmp_path / "source" / "LJSpeech-1.1"
    files = {path.relative_to(source): path for path in source.rglob("*") if path.is_file()}
    assert len(files) == 11
    found = {path.relative_to(corpus): path for path in corpus.rglob("*") if path.is_file()}
    assert found.keys() == files.keys()
    for name, path in files.items():
        assert found[name].read_bytes() == path.read_bytes()


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_download_fetches_verifies_and_unpacks_once(tmp_path, serve, capsys):
    server = serve(make_archive(tmp_path))
    corpus = tmp_path / "new folder" / "speech"
    fetch(server, corpus)
    assert_whole(corpus, tmp_path)
    assert names_in(corpus.parent) == {"speech", "LJSpeech-1.1.tar.bz2"}
    fetch(server, corpus)
    assert "is there already: nothing to download" in capsys.readouterr().out
    shutil.rmtree(corpus)
    fetch(server, corpus)  # from the archive, which is still there
    assert_whole(corpus, tmp_path)
    assert server.asked == [None]


def test_download_then_prepares(tmp_path, serve, monkeypatch):
    server = serve(make_archive(tmp_path))
    monkeypatch.setattr(prepare_ljspeech, "download_corpus", lambda corpus: fetch(server, corpus))
    main([str(tmp_path / "data"), "--download", "--out", str(tmp_path / "lists")])
    assert [len(rows) for rows in read_lists(tmp_path / "lists")] == [8, 2]


def test_a_dropped_connection_goes_on_where_it_ended(tmp_path, serve, capsys):
    server = serve(make_archive(tmp_path))
    size = len(server.body)
    server.drop_after = size // 8  # more drops than TRIES, but each brings something new
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    step = size // 8
    assert server.asked[:3] == [None, f"bytes={step}-", f"bytes={2 * step}-"]
    assert len(server.asked) > download.TRIES
    assert server.sent == size  # no byte twice
    assert "trying again" in capsys.readouterr().err


def test_a_stopped_download_is_taken_up_by_the_next_run(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").write_bytes(server.body[:1000])
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    assert server.asked == ["bytes=1000-"]


def test_a_server_that_knows_no_ranges_starts_over(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.ranges = False
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").write_bytes(b"x" * 1000)
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    assert server.asked == ["bytes=1000-"]
    assert server.sent == len(server.body)


def test_a_connection_that_always_drops_ends_with_what_to_do(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.ranges, server.drop_after = False, 2000
    message = refusal(fetch, server, tmp_path / "data", error=ConnectionError)
    part = tmp_path / "LJSpeech-1.1.tar.bz2.part"
    assert f"2,000 of {len(server.body):,} bytes are in {part}" in message
    assert "run the same command to go on" in message
    assert part.stat().st_size == 2000
    assert len(server.asked) == 1 + download.TRIES
    server.ranges, server.drop_after = True, None
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)


def test_no_server_at_all_is_told_after_a_few_tries(tmp_path, serve):
    server = serve(b"")
    server.shutdown()
    server.server_close()
    message = refusal(fetch, server, tmp_path / "data", b"1234", error=ConnectionError)
    assert "no connection (" in message
    assert f"refused>), {download.TRIES} times in a row" in message


def test_a_busy_server_is_asked_again_and_an_error_of_ours_is_not(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    server.statuses = [503, 429]
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    server.statuses, server.asked = [404], []
    assert "404" in refusal(fetch, server, tmp_path / "other" / "data")
    assert len(server.asked) == 1


@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_a_file_of_another_size_is_refused_before_it_is_fetched(tmp_path, serve, change):
    whole = make_archive(tmp_path)
    server = serve(whole[:-50] if change == "shorter" else whole + b"more")
    message = refusal(fetch, server, tmp_path / "data", whole)
    assert f"{len(server.body):,} bytes, expected {len(whole):,}" in message
    assert names_in(tmp_path) == {"source"}
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").write_bytes(whole[:1000])
    assert "expected" in refusal(fetch, server, tmp_path / "data", whole)


def test_content_that_ends_early_or_late_is_refused_where_no_length_is_told(tmp_path, serve):
    whole = make_archive(tmp_path)
    server = serve(whole[:-50])
    server.length = False
    server.ranges = False
    message = refusal(fetch, server, tmp_path / "data", whole, error=ConnectionError)
    assert f"{len(whole) - 50:,} of {len(whole):,} bytes" in message
    (tmp_path / "LJSpeech-1.1.tar.bz2.part").unlink()
    server.body = whole + b"more"
    message = refusal(fetch, server, tmp_path / "data", whole)
    assert f"bytes, expected {len(whole):,}; the file is broken" in message
    assert names_in(tmp_path) == {"source", "LJSpeech-1.1.tar.bz2.broken"}


@pytest.mark.parametrize("there", [False, True])
def test_a_wrong_hash_is_refused_and_the_file_put_aside(tmp_path, serve, there):
    whole = make_archive(tmp_path)
    changed = whole[:-100] + bytes(100)
    server = serve(changed)
    if there:  # as a finished download of an earlier day
        (tmp_path / "LJSpeech-1.1.tar.bz2").write_bytes(changed)
    message = refusal(fetch, server, tmp_path / "data", whole)
    assert hashlib.sha256(changed).hexdigest() in message
    assert f"expected {hashlib.sha256(whole).hexdigest()}" in message
    assert "LJSpeech-1.1.tar.bz2.broken: delete it" in message
    assert names_in(tmp_path) == {"source", "LJSpeech-1.1.tar.bz2.broken"}
    server.body = whole
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)


def evil_member(kind):
    if kind == "parent":
        return tarfile.TarInfo("../escaped.txt"), b"outside"
    if kind == "folders":
        return tarfile.TarInfo("LJSpeech-1.1/wavs/../../../escaped.txt"), b"outside"
    link = tarfile.TarInfo("LJSpeech-1.1/link")
    link.type, link.linkname = tarfile.SYMTYPE, "../../escaped.txt"
    return link, b""


@pytest.mark.parametrize("kind", ["parent", "folders", "link"])
def test_an_archive_that_reaches_outside_its_folder_is_not_unpacked(tmp_path, serve, kind):
    server = serve(make_archive(tmp_path, [evil_member(kind)]))
    message = refusal(fetch, server, tmp_path / "data")
    assert "outside" in message
    assert names_in(tmp_path) == {"source", "LJSpeech-1.1.tar.bz2"}
    assert not list(tmp_path.rglob("escaped.txt"))


def test_an_archive_of_something_else_is_refused(tmp_path, serve):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:bz2") as tar:
        tar.addfile(tarfile.TarInfo("other/metadata.csv"))
    server = serve(archive.getvalue())
    message = refusal(fetch, server, tmp_path / "data")
    assert "holds no LJSpeech-1.1/metadata.csv" in message
    assert names_in(tmp_path) == {"LJSpeech-1.1.tar.bz2"}


def test_what_a_killed_run_unpacked_is_not_taken_for_the_corpus(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    half = tmp_path / ".data.unpacking" / "LJSpeech-1.1"
    half.mkdir(parents=True)
    (half / "metadata.csv").write_text("half")
    (half / "stray.wav").touch()
    (tmp_path / "data").mkdir()  # an empty folder may be filled
    fetch(server, tmp_path / "data")
    assert_whole(tmp_path / "data", tmp_path)
    assert names_in(tmp_path) == {"source", "data", "LJSpeech-1.1.tar.bz2"}


def test_a_folder_of_something_else_is_left_alone(tmp_path, serve):
    server = serve(make_archive(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    assert "nothing was changed" in refusal(fetch, server, tmp_path / "data")
    assert contents(tmp_path / "data") == {"thesis.txt": b"years of work"}
    assert server.asked == []


def test_a_disk_too_full_is_told_before_the_download(tmp_path, serve, monkeypatch):
    server = serve(make_archive(tmp_path))
    usage = shutil.disk_usage(tmp_path)._replace(free=900_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    message = refusal(fetch, server, tmp_path / "data")
    assert "0.00 GB free" in message
    assert "make room" in message
    assert server.asked == []


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path, serve, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    monkeypatch.setattr(download, "CHUNK", 1000)
    fetch(serve(make_archive(tmp_path)), tmp_path / "data")
    out = capsys.readouterr().out
    assert re.search(r"^Downloading: [\d.]+k of [\d.]+kB, [\d.]+[kM]?B/s, [\d:]+ left$", out, re.M)
    assert re.search(r"^Verifying: ", out, re.M)
    assert "\r" not in out
