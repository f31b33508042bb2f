"""Filelists and what is refused in them, the dataset, and collation against naive loops."""

import contextlib
import csv
import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from helpers import ROOT, make_other_than_file
from hypothesis import given, settings
from hypothesis import strategies as st

import data_utils
from audio import log_mel_spectrogram, mel_fingerprint
from common.errors import UserError
from corpus.clip_table import Clip, ClipTable
from corpus.filelist import (
    keep_table,
    kept_table,
    read_filelist,
    warn_of_long_clips,
    write_lengths,
)
from data_utils import (
    Batch,
    TextMelDataset,
    collate,
    collate_and_share,
    make_loader,
    synthetic_batch,
)
from hparams import HParams, create_hparams
from text import text_to_sequence

H = HParams()
CACHED = HParams(load_mel_from_disk=True)


def noise(num_samples, seed=0):
    return 0.3 * np.random.default_rng(seed).uniform(-1, 1, num_samples)


@pytest.fixture
def corpus(tmp_path):
    """Folder with a.wav (22,050 samples), b.flac (11,025) and c.wav (5,000)."""
    for name, num_samples in (("a.wav", 22050), ("b.flac", 11025), ("c.wav", 5000)):
        soundfile.write(tmp_path / name, noise(num_samples), 22050)
    return tmp_path


@pytest.fixture
def cache(tmp_path):
    """Folder with the log-mel x.npy of 40 frames and the settings it was made with."""
    folder = tmp_path / "mels"
    folder.mkdir()
    mel = np.random.default_rng(1).normal(size=(80, 40)).astype(np.float32)
    np.save(folder / "x.npy", mel)
    (folder / "mel_settings.json").write_text(json.dumps(mel_fingerprint(H)))
    return folder


def write_list(folder, *lines):
    path = folder / "list.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refusal(filelist, h=H, **options):
    with pytest.raises(ValueError, match=re.escape(str(filelist))) as caught:
        read_filelist(filelist, h, **options)
    return str(caught.value)


# ---------------------------------------------------------------------------- filelists


def test_both_filelist_formats_are_read(corpus):
    filelist = write_list(
        corpus,
        f"{corpus}/a.wav|First text.|1.000000",
        f"{corpus}/b.flac|Second text.",
        f"  {corpus}/c.wav  |  Third text.  |  0.226757  ",
    )
    clips = read_filelist(filelist, H)
    assert [clip.text for clip in clips] == ["First text.", "Second text.", "Third text."]
    assert [clip.path for clip in clips] == [f"{corpus}/{n}" for n in ("a.wav", "b.flac", "c.wav")]
    assert [clip.num_frames for clip in clips] == [1 + 22050 // 256, 1 + 11025 // 256, 20]
    assert [clip.where for clip in clips] == [f"{filelist}:{n}" for n in (1, 2, 3)]
    ids = [text_to_sequence(clip.text, ["english_cleaners"]) for clip in clips]
    assert [list(clip.symbols) for clip in clips] == ids


def test_text_is_kept_letter_by_letter(corpus, monkeypatch):
    """No CSV rules apply: LJSpeech holds 523 lines with a lone quotation mark. Only a line feed
    ends a line, after a carriage return or not; blank lines count; paths may be relative."""
    texts = ['"He said', 'so, they say "and', "One\u2028text.", "One\x85text.", "Größe."]
    lines = "\r\n\n".join(f"a.wav|{text}|1.0" for text in texts)
    (corpus / "list.txt").write_bytes(f"\ufeff{lines}\r\n".encode())
    monkeypatch.chdir(corpus)
    clips = read_filelist("list.txt", H)
    assert [clip.text for clip in clips] == texts
    assert [clip.path for clip in clips] == ["a.wav"] * 5
    assert [clip.where for clip in clips] == [f"list.txt:{1 + 2 * i}" for i in range(5)]


@pytest.mark.parametrize("seconds", ["1.00002", "0.99998", "1"])
def test_seconds_within_half_a_sample_agree(corpus, seconds):
    assert read_filelist(write_list(corpus, f"{corpus}/a.wav|Text.|{seconds}"), H)


@pytest.mark.parametrize("seconds", ["1.0001", "0.9999", "nan"])
def test_seconds_must_agree_with_the_sound(corpus, seconds):
    filelist = write_list(corpus, f"{corpus}/a.wav|Text.|{seconds}")
    found = f"{float(seconds):.6f} seconds in the list, 1.000000 in the file"
    assert f"{filelist}:1: {corpus}/a.wav: {found}" in refusal(filelist)


def test_all_bad_lines_are_listed_together(corpus):
    soundfile.write(corpus / "rate.wav", np.zeros(5000), 16000)
    expected = {
        f"{corpus}/gone.wav|Text.": f"{corpus}/gone.wav: no such file",
        f"{corpus}/a.wav": "1 fields, expected path|text|seconds or path|text",
        f"{corpus}/a.wav|Text.|1.0|more": "4 fields",
        f"{corpus}/a.wav|Text.|one second": "seconds 'one second', expected a number",
        f"{corpus}/rate.wav|Text.": "rate.wav: 16000 Hz, expected 22050",
        f"{corpus}/a.wav|{'nine' * 9999}|1.0": "... of 39,996 characters, expected at most 5,000",
        f"{corpus}/a.wav||1.0": "text '' has no letter left after cleaning; write the words",
        f"{corpus}/mel.npy|Text.": "load_mel_from_disk=True",
    }
    filelist = write_list(corpus, f"{corpus}/a.wav|Good.|1.0", "", *expected)
    first, *lines = refusal(filelist).splitlines()
    assert first == f"{filelist}: 8 of 9 lines refused:"
    for number, (line, words) in enumerate(zip(lines, expected.values(), strict=True), 3):
        assert line.startswith(f"  {filelist}:{number}: ")
        assert words in line


def test_invalid_filelists_are_refused(corpus):
    assert "no such filelist; make one with scripts/prepare" in refusal(corpus / "gone.txt")
    assert "no clip in it" in refusal(write_list(corpus, "", "  "))
    assert "a folder, expected a file" in refusal(corpus)
    lines = refusal(write_list(corpus, *(f"{corpus}/{n}.wav|Text." for n in range(50))))
    first, example, others = lines.splitlines()
    assert first.endswith(": 50 of 50 lines refused:")
    assert "/0.wav: no such file" in example
    assert others.startswith("    the same in 49 more: 2, 3, 4, ")
    swapped = write_list(corpus, f"{'a text longer than any file name ' * 30}|clip.wav")
    assert f"{swapped}:1: " in refusal(swapped)


# ---------------------------------------------------------------------------- contents


def test_texts_without_letters_end_new_runs_only(corpus):
    filelist = write_list(corpus, f"{corpus}/a.wav|...")
    assert len(read_filelist(filelist, H)) == 1
    assert f"{filelist}:1: text '...' has no letter left" in refusal(filelist, new_run=True)


# ---------------------------------------------------------------------------- kept tables


def test_kept_table_belongs_to_its_list_and_settings(corpus, monkeypatch):
    lines = [f"{corpus}/a.wav|One.|1.0", f"{corpus}/c.wav|Two."]
    filelist = write_list(corpus, *lines)
    assert kept_table(filelist, H) is None
    checked = read_filelist(filelist, H, new_run=True)
    keep_table(checked, H)
    for path in corpus.glob("*.wav"):
        path.unlink()  # nothing is opened
    found = kept_table(str(filelist), H)
    assert list(found) == list(checked)
    assert found.complete
    for change in (
        "hop_length=200",
        "text_cleaners=[basic_cleaners]",
        "load_mel_from_disk=True",
        "language=tr",
        "drop_unknown=True",
    ):
        assert kept_table(filelist, create_hparams(change)) is None
    assert kept_table(filelist, create_hparams("batch_size=3,seed=4,mel_fmax=7000"))
    with monkeypatch.context() as patch:
        (corpus / "text").mkdir()
        (corpus / "text" / "symbols.py").write_text("other code")
        patch.setattr(data_utils, "__file__", str(corpus / "data_utils.py"))
        assert kept_table(filelist, H) is None
    write_list(corpus, *lines, "")
    assert kept_table(filelist, H) is None


def test_kept_table_of_other_mels_is_ignored(cache):
    filelist = write_list(cache, f"{cache}/x.npy|Text.")
    keep_table(read_filelist(filelist, CACHED), CACHED)
    assert list(kept_table(filelist, CACHED)) == list(read_filelist(filelist, CACHED))
    other = mel_fingerprint(create_hparams("mel_fmax=7000"))
    (cache / "mel_settings.json").write_text(json.dumps(other))
    assert kept_table(filelist, CACHED) is None


def test_unwritable_table_costs_a_line(corpus, capsys):
    filelist = write_list(corpus, f"{corpus}/a.wav|One.|1.0")
    (corpus / "list.txt.clips").mkdir()
    checked = read_filelist(filelist, H)
    assert list(keep_table(checked, H)) == list(checked)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{filelist}.clips: cannot be written (")


def test_lengths_are_written_one_per_line(tmp_path):
    clips = [Clip("x/a.wav", "", (1,), 7, ""), Clip('b, "c".d.npy', "", (1,), 8, "")]
    write_lengths(tmp_path / "lengths.csv", ClipTable.of("list.txt", enumerate(clips)))
    with open(tmp_path / "lengths.csv", newline="") as file:
        assert list(csv.reader(file)) == [["id", "frames"], ["a", "7"], ['b, "c".d', "8"]]


def test_longest_of_the_long_clips_is_named():
    seconds = [*np.linspace(1, 10, 100), 31.0, 600.0, 35.0]
    warning = warn_of_long_clips(seconds, "list:{}".format)
    assert "3 of 103 clips are more than 5 times as long as the median, 5.6 s; the" in warning
    assert "the longest is list:101 (600.0 s). It" in warning
    assert "--max-seconds" in warning
    assert warn_of_long_clips(seconds[:100], str) is None


# ---------------------------------------------------------------------------- cached mels


@pytest.mark.parametrize("seconds", ["0.441", "nan", "-1", "1e300"])
def test_seconds_must_agree_with_a_cached_mel(cache, seconds):
    for samples in (39 * 256, 40 * 256 - 1):  # of 40 frames
        filelist = write_list(cache, f"{cache}/x.npy|Text.|{samples / 22050:.6f}")
        assert read_filelist(filelist, CACHED)[0].num_frames == 40
    filelist = write_list(cache, f"{cache}/x.npy|Text.|{seconds}")
    words = f"{filelist}:1: {cache}/x.npy: 40 frames, not the {float(seconds):.6f} s"
    assert words in refusal(filelist, CACHED)


def test_cached_mels_are_read(cache):
    filelist = write_list(cache, f"{cache}/x.npy|Text.|0.456599")  # 1 + 10,068 // 256
    clips = read_filelist(filelist, CACHED)
    assert [clip.num_frames for clip in clips] == [40]
    _, mel, _ = TextMelDataset(clips, CACHED)[0]
    assert mel.dtype == torch.float32
    np.testing.assert_array_equal(mel, np.load(cache / "x.npy"))
    mel += 1  # a copy in memory: the file stays as it is
    assert not np.array_equal(mel, np.load(cache / "x.npy"))


def test_cached_mels_of_other_settings_are_refused(cache):
    filelist = write_list(cache, f"{cache}/x.npy|Text.")
    for name, value in (("hop_length", 300), ("mel_fmax", 7600.0)):
        other = create_hparams(f"load_mel_from_disk=True,{name}={value}")
        assert re.search(f"{name}=[0-9.]+, this run has {value}", refusal(filelist, other))
    (cache / "mel_settings.json").write_text("no json")
    assert "made with unknown settings, no readable mel_settings.json" in refusal(filelist, CACHED)


def test_bad_cached_mels_are_listed_together(cache):
    mel = np.load(cache / "x.npy")
    bad = mel.copy()
    bad[3, 17] = np.nan
    arrays = {"bands": mel[:64], "empty": mel[:, :0], "half": mel.astype(np.float16), "nan": bad}
    for name, array in arrays.items():
        np.save(cache / f"{name}.npy", array)
    np.savez(cache / "archive", mel=mel)
    (cache / "archive.npz").rename(cache / "archive.npy")
    content = (cache / "x.npy").read_bytes()
    (cache / "cut.npy").write_bytes(content[:-1])
    absurd = content.replace(b"40), }" + b" " * 12, b"40" + b"0" * 12 + b"), }")
    (cache / "absurd.npy").write_bytes(absurd)
    make_other_than_file(cache / "pipe.npy", "a named pipe")
    shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (80, %d)}\n" % 2**70
    for name, header in {"minus": b"-" * 9000, "huge": shape}.items():
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        (cache / f"{name}.npy").write_bytes(start + header)
    expected = {
        "bands": "float32 (64, 40), expected float32 (80, frames)",
        "empty": "float32 (80, 0), expected",
        "half": "float16 (80, 40), expected",
        "archive": "not a .npy array",
        "cut": "truncated, 12799 of 12800 bytes",
        "absurd": "truncated, 12800 of 12800000000000000 bytes",
        "minus": "not a .npy array (",
        "huge": "truncated, 0 of ",
        "pipe": "a named pipe, expected a file",
        "gone": "no such file; run prepare_ljspeech.py --cache-mels",
        "nan": "frame 17 holds nan or infinity",
    }
    filelist = write_list(cache, *(f"{cache}/{name}.npy|Text." for name in expected))
    lines = refusal(filelist, CACHED, new_run=True).splitlines()[1:]
    for number, (name, line) in enumerate(zip(expected, lines, strict=True), 1):
        assert line.startswith(f"  {filelist}:{number}: {cache}/{name}.npy: {expected[name]}")
    assert len(refusal(filelist, CACHED).splitlines()) == len(expected)  # a resumed run takes nan


# ---------------------------------------------------------------------------- the dataset


def test_item_is_text_mel_and_index(corpus):
    clips = read_filelist(write_list(corpus, f"{corpus}/a.wav|One 2.", f"{corpus}/c.wav|Q?"), H)
    text, mel, i = TextMelDataset(clips, H)[1]
    assert i == 1
    assert text.dtype == torch.int64
    assert text.tolist() == text_to_sequence("Q?", ["english_cleaners"])
    samples, _ = soundfile.read(corpus / "c.wav", dtype="float32")
    assert torch.equal(mel, log_mel_spectrogram(torch.from_numpy(samples), H))


def test_file_that_changed_during_the_run_is_caught(corpus, cache):
    filelist = write_list(corpus, f"{corpus}/a.wav|One.")
    dataset = TextMelDataset(read_filelist(filelist, H), H)
    soundfile.write(corpus / "a.wav", noise(12000), 22050)
    changed = rf"{filelist}:1: {corpus}/a.wav: changed \(87 frames before, 47 now\); put the old"
    with pytest.raises(UserError, match=changed):
        dataset[0]
    soundfile.write(corpus / "a.wav", noise(22050, seed=1), 22050)
    with pytest.raises(UserError, match=r"changed \(87 frames before, 87 now\)"):
        dataset[0]
    dataset.hparams = dataclasses.replace(H, n_symbols=20)  # as if the table were another's
    with pytest.raises(UserError, match=rf"is not in the model; delete {filelist}.clips"):
        dataset[0]
    filelist = write_list(cache, f"{cache}/x.npy|One.")
    dataset = TextMelDataset(read_filelist(filelist, CACHED), CACHED)
    (cache / "x.npy").write_bytes((cache / "x.npy").read_bytes()[:-1])
    with pytest.raises(
        UserError, match=rf"{filelist}:1: {cache}/x.npy: truncated, 12799 .*Fix the clip"
    ):
        dataset[0]


def test_mel_is_independent_of_threads_and_workers(corpus):
    """A loader's worker has one thread, the training process several."""
    clips = read_filelist(write_list(corpus, *[f"{corpus}/{n}|A." for n in ("a.wav", "c.wav")]), H)
    dataset, before, mels = TextMelDataset(clips, H), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            mels.append(dataset[0][1])
            assert torch.get_num_threads() == threads  # and the setting is left as it was
    finally:
        torch.set_num_threads(before)
    for workers in (0, 2):
        h = dataclasses.replace(H, num_workers=workers)
        (batch,) = make_loader(clips, h, False, [[0, 1]])
        mels.append(batch.mel[0])
        assert batch.clip_indices.tolist() == [0, 1]
    assert all(torch.equal(mel, mels[0]) for mel in mels)


# ---------------------------------------------------------------------------- collation


def test_synthetic_batch_has_the_lengths_asked_for():
    h, state = create_hparams("n_frames_per_step=2"), torch.get_rng_state()
    batch, again = (synthetic_batch([5, 9], np.array([7, 3]), h) for _ in range(2))
    assert batch.mel_lengths.tolist() == [5, 9]
    assert batch.text_lengths.tolist() == [7, 3]
    assert batch.mel.shape == (2, 80, 10)
    assert (batch.text[0] > 0).all()
    assert torch.equal(batch.mel, again.mel)
    assert not torch.equal(batch.mel, synthetic_batch([5, 9], [7, 3], h, seed=1).mel)
    assert torch.equal(torch.get_rng_state(), state)  # the global one


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(shapes=SHAPES, r=st.sampled_from([1, 2, 3]))
def test_collation_equals_a_plain_loop(shapes, r):
    generator = torch.Generator().manual_seed(0)
    items = [
        (
            torch.randint(1, 148, (symbols,), generator=generator),
            torch.randn(5, frames, generator=generator),
            100 - i,
        )
        for i, (symbols, frames) in enumerate(shapes)
    ]
    batch = collate(items, r)
    longest_text = max(len(text) for text, _, _ in items)
    longest_mel = max(mel.shape[1] for _, mel, _ in items)
    steps = (longest_mel + r - 1) // r
    assert batch.text.shape == (len(items), longest_text)
    assert batch.mel.shape == (len(items), 5, steps * r)
    assert batch.gate.shape == (len(items), steps)
    for row, (text, mel, index) in enumerate(items):  # rows keep the order given
        frames = mel.shape[1]
        assert torch.equal(batch.text[row, : len(text)], text)
        assert (batch.text[row, len(text) :] == 0).all()
        assert torch.equal(batch.mel[row, :, :frames], mel)
        assert (batch.mel[row, :, frames:] == 0).all()
        # 1 from the step that holds the last real frame
        assert batch.gate[row].tolist() == [
            float((step + 1) * r >= frames) for step in range(steps)
        ]
        assert batch.text_lengths[row] == len(text)
        assert batch.mel_lengths[row] == frames
        assert batch.clip_indices[row] == index
    assert {batch.text.dtype, batch.text_lengths.dtype, batch.mel_lengths.dtype} == {torch.int64}
    assert {batch.mel.dtype, batch.gate.dtype} == {torch.float32}


def test_copy_runs_on_its_own_stream(monkeypatch):
    """Which stream did what, in order, without a GPU; lengths stay on the CPU."""
    done, streams = [], ["compute"]

    class Stream(str):
        def wait_stream(self, other):
            done.append(f"{self} waits for {other}")

    class Tensor:
        def to(self, device, non_blocking):
            assert (device.type, non_blocking) == ("cuda", True)
            done.append(f"{streams[-1]} copies")
            return self

        def record_stream(self, stream):
            done.append(f"kept for {stream}")

    @contextlib.contextmanager
    def using(stream):
        streams.append(stream)
        yield
        streams.pop()

    monkeypatch.setattr(data_utils, "_copy_stream", lambda device: Stream("copy"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(streams[-1]))
    monkeypatch.setattr(torch.cuda, "stream", using)
    lengths = torch.ones(1)
    batch = Batch(Tensor(), lengths, Tensor(), Tensor(), lengths).to("cuda")
    assert batch.mel_lengths is batch.text_lengths is lengths
    expected = ["copy copies"] * 3 + ["compute waits for copy"] + ["kept for compute"] * 3
    assert done == expected


# ---------------------------------------------------------------------------- the loader's workers


UNFINISHED = """
import sys
from data_utils import make_loader, read_filelist
from hparams import create_hparams

def main(filelist):
    hparams = create_hparams("load_mel_from_disk=True,num_workers=2")
    clips = read_filelist(filelist, hparams)
    for batch in make_loader(clips, hparams, False, [[0]] * 9, persistent_workers=True):
        raise KeyError("unexpected")

main(sys.argv[1])
"""


def test_full_shared_memory_is_a_message(monkeypatch):
    """Not left to the worker's thread that sends batches, which would drop it: a loader waits."""

    def fail(tensor):
        raise RuntimeError("unable to allocate shared memory: No space left on device\nmore")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    items = [(torch.ones(2), torch.ones(80, 3), 0)]
    collate_and_share(items, 1)  # in no worker
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker")
    with pytest.raises(UserError, match=r"No space left on device\): make room in /dev/shm"):
        collate_and_share(items, 1)


def test_failing_program_ends_its_workers(cache):
    """Its traceback keeps the loader alive until the interpreter's end, which waits for them."""
    filelist = write_list(cache, f"{cache}/x.npy|One.")
    command = [sys.executable, "-c", UNFINISHED, str(filelist)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr.splitlines()[-1]) == (1, "KeyError: 'unexpected'")


def test_workers_ignore_signals_of_others(cache):
    """Job systems send SIGTERM, a terminal SIGINT, to all processes: the trainer decides.

    active_children() would list the first loader's worker too, as long as it has not exited.
    """
    h = dataclasses.replace(CACHED, num_workers=1)
    clips = read_filelist(write_list(cache, f"{cache}/x.npy|One."), h)
    first, second = (iter(make_loader(clips, h, False, [[0]] * 20)) for _ in range(2))
    for name in ("TERM", "INT", "TERM"):
        next(first)
        subprocess.run(["kill", f"-{name}", str(first._workers[0].pid)], check=True)
    assert sum(1 for _ in first) == 17
    next(second)
    worker = second._workers[0]
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0
