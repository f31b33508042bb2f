"""Test the dataset of clips, and compare collated batches with batches made by plain loops."""

import contextlib
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from clips import noise, write_list
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from audio import log_mel_spectrogram
from batch import Batch, collate, synthetic_batch
from corpus.filelist import (
    read_filelist,
)
from data_utils import TextMelDataset, collate_and_share, make_loader
from hparams import HParams, create_hparams
from tacotron2_voice.text import text_to_sequence
from tacotron2_voice.utils.errors import UserError

H = HParams()
CACHED = HParams(load_mel_from_disk=True)


# ---------------------------------------------------------------------------- the dataset


def test_dataset_item_contains_text_mel_and_index(sounds):
    clips = read_filelist(write_list(sounds, f"{sounds}/a.wav|One 2.", f"{sounds}/c.wav|Q?"), H)
    text, mel, i, _ = TextMelDataset(clips, H)[1]
    assert i == 1
    assert text.dtype == torch.int64
    assert text.tolist() == text_to_sequence("Q?", ["english_cleaners"])
    samples, _ = soundfile.read(sounds / "c.wav", dtype="float32")
    assert torch.equal(mel, log_mel_spectrogram(torch.from_numpy(samples), H))


def test_dataset_raises_when_a_file_has_changed(sounds, cached_mels):
    filelist = write_list(sounds, f"{sounds}/a.wav|One.")
    dataset = TextMelDataset(read_filelist(filelist, H), H)
    soundfile.write(sounds / "a.wav", noise(12000), 22050)
    with pytest.raises(UserError) as refusal:
        dataset[0]
    for value in (f"{filelist}:1: {sounds}/a.wav: ", "47 frames", "previously 87", "--new-clips"):
        assert value in str(refusal.value)
    soundfile.write(sounds / "a.wav", noise(22050, seed=1), 22050)
    with pytest.raises(UserError, match=r"87 frames, previously 87"):
        dataset[0]
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|One.")
    dataset = TextMelDataset(read_filelist(filelist, CACHED), CACHED)
    (cached_mels / "x.npy").write_bytes((cached_mels / "x.npy").read_bytes()[:-1])
    with pytest.raises(
        UserError, match=rf"{filelist}:1: {cached_mels}/x.npy: incomplete or damaged .*Fix the clip"
    ):
        dataset[0]


def test_mel_stays_the_same_when_the_number_of_threads_or_workers_changes(sounds):
    """A loader worker has one thread, but the training process has several threads."""
    clips = read_filelist(write_list(sounds, *[f"{sounds}/{n}|A." for n in ("a.wav", "c.wav")]), H)
    dataset, before, mels = TextMelDataset(clips, H), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            mels.append(dataset[0][1])
            # Reading a clip must not change the number of threads.
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for workers in (0, 2):
        (batch,) = make_loader(
            clips, dataclasses.replace(H, num_workers=workers), [[0, 1]], pin_memory=False
        )
        mels.append(batch.mel[0])
        assert batch.clip_indices.tolist() == [0, 1]
    assert all(torch.equal(mel, mels[0]) for mel in mels)


# ---------------------------------------------------------------------------- collation


def test_synthetic_batch_has_the_requested_lengths():
    h, state = create_hparams("n_frames_per_step=2"), torch.get_rng_state()
    batch, again = (synthetic_batch([5, 9], np.array([7, 3]), h) for _ in range(2))
    assert batch.mel_lengths.tolist() == [5, 9]
    assert batch.text_lengths.tolist() == [7, 3]
    assert batch.mel.shape == (2, 80, 10)
    assert (batch.text[0] > 0).all()
    assert torch.equal(batch.mel, again.mel)
    assert not torch.equal(batch.mel, synthetic_batch([5, 9], [7, 3], h, seed=1).mel)
    assert torch.equal(torch.get_rng_state(), state)  # the global random state has not changed


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=6)


@settings(max_examples=80, derandomize=True)
@given(shapes=SHAPES, r=st.sampled_from([1, 2, 3]))
def test_collated_batch_equals_a_batch_made_with_a_plain_loop(shapes, r):
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
    for row, (text, mel, index) in enumerate(items):
        frames = mel.shape[1]
        assert torch.equal(batch.text[row, : len(text)], text)
        assert (batch.text[row, len(text) :] == 0).all()
        assert torch.equal(batch.mel[row, :, :frames], mel)
        assert (batch.mel[row, :, frames:] == 0).all()
        # The gate target is 1 from the decoder step with the last real frame.
        assert batch.gate[row].tolist() == [
            float((step + 1) * r >= frames) for step in range(steps)
        ]
        assert batch.text_lengths[row] == len(text)
        assert batch.mel_lengths[row] == frames
        assert batch.clip_indices[row] == index
    assert {batch.text.dtype, batch.text_lengths.dtype, batch.mel_lengths.dtype} == {torch.int64}
    assert {batch.mel.dtype, batch.gate.dtype} == {torch.float32}


def test_batch_is_copied_to_the_gpu_on_a_separate_stream(monkeypatch):
    """Stand-ins for the CUDA streams record the operations. The lengths stay on the CPU."""
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

    monkeypatch.setattr("batch._copy_stream", lambda device: Stream("copy"))
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
from corpus.filelist import read_filelist
from data_utils import make_loader
from hparams import create_hparams

def main(filelist):
    hparams = create_hparams("load_mel_from_disk=True")
    clips = read_filelist(filelist, hparams)
    for batch in make_loader(clips, hparams, [[0]] * 9, pin_memory=False):
        raise KeyError("unexpected")

main(sys.argv[1])
"""


def test_collate_raises_when_shared_memory_is_full(monkeypatch):
    """Without the check of shared memory, the error would occur in a thread of the worker. The
    thread would ignore the error, and the loader would wait forever."""

    def fail(tensor):
        raise RuntimeError("unable to allocate shared memory: No space left on device\nmore")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    items = [(torch.ones(2), torch.ones(80, 3), 0)]
    collate_and_share(items, 1)  # this call runs outside a worker, so it must not raise
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker")
    with pytest.raises(UserError, match=r"No space left on device.*/dev/shm"):
        collate_and_share(items, 1)


@pytest.mark.thorough
def test_loader_workers_exit_when_the_program_fails(cached_mels):
    """When the program fails, the traceback keeps the loader alive, and the interpreter waits for
    the workers."""
    filelist = write_list(cached_mels, f"{cached_mels}/x.npy|One.")
    command = [sys.executable, "-c", UNFINISHED, str(filelist)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr.splitlines()[-1]) == (1, "KeyError: 'unexpected'")


def test_workers_ignore_signals_that_are_sent_to_all_processes(cached_mels):
    """Job schedulers send SIGTERM to all processes, and terminals send SIGINT. Only the training
    process must react to these signals."""
    clips = read_filelist(write_list(cached_mels, f"{cached_mels}/x.npy|One."), CACHED)
    hparams = dataclasses.replace(CACHED, num_workers=1)
    first, second = (
        iter(make_loader(clips, hparams, [[0]] * 20, pin_memory=False)) for _ in range(2)
    )
    for name in ("TERM", "INT", "TERM"):
        next(first)
        subprocess.run(["kill", f"-{name}", str(first._workers[0].pid)], check=True)
    assert sum(1 for _ in first) == 17
    next(second)
    # The list of active_children() may still contain a worker of the first loader.
    worker = second._workers[0]
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0
