import contextlib
import gc
import importlib
import io
import lzma
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from clips import cached_mels, sounds  # noqa: F401
from helpers import (
    DATA,
    LJSPEECH_CLIPS,
    LONG,
    SPEAKER,
    Child,
    Corpus,
    draw_quickly,
    flags,
    make_corpus,
    save_speaker,
)

import length_batching
from hparams import create_hparams


# A shell that starts the tests in the background has them ignore Ctrl-C, and nohup hang-ups; some
# tests send both to programs that they start, which would ignore them too.
def restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


restore_signals()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Training in a test's process leaves its handlers there."""
    yield
    restore_signals()


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported, by torch perhaps


# A slow or busy machine fails no test: by default each example of hypothesis has 0.2 s.
with contextlib.suppress(ModuleNotFoundError):  # where only tests of a GPU run
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again takes long."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def clean_process(monkeypatch, one_thread):
    """What `train.main` sets in its process, put back; no GPU: the CPU's rules; empty pictures."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    draw_quickly(monkeypatch.setattr)


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory):
    """The run LONG, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert Child(flags(out, corpus.hparams(**LONG))).end().code == 0
    return out


@pytest.fixture
def no_picture(monkeypatch):
    from corpora import draw_nothing  # which imports what a GPU machine may lack

    draw_nothing(monkeypatch)


@pytest.fixture
def copied(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copied")


@pytest.fixture
def checkpoint_path(tmp_path):
    return save_speaker(tmp_path / "model.pt", create_hparams(SPEAKER))


@pytest.fixture(scope="session")
def voices(tmp_path_factory):
    """A checkpoint and its exports by precision, each with what was printed."""
    export_voice = importlib.import_module("scripts.export_voice")
    folder = tmp_path_factory.mktemp("voices")
    hparams = create_hparams(
        f"{SPEAKER},decoder_rnn_dim=128,n_frames_per_step=2,max_decoder_steps=40"
    )
    found = {"checkpoint": (save_speaker(folder / "best.pt", hparams, longest_text=24), "")}
    (folder / "texts.txt").write_text("A dog came.\nIt sat down, and it ate.\n")
    arguments = ["--checkpoint", folder / "best.pt", "--text-file", folder / "texts.txt", "-o"]
    for name in ("fp32", "int8", "packed"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            export_voice.main([*map(str, arguments), str(folder / name), f"--{name}"])
        found[name] = folder / name, printed.getvalue()
    return SimpleNamespace(**found)


@pytest.fixture
def one_thread():
    """Layers as small as the tests' only wait for one another on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tf32_as_before():
    """What a Trainer sets for the whole process, put back."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.fixture
def broken_strategy(monkeypatch):
    """`semi_sorted` adds arrays of two shapes: a fault of the code, for which numpy has a
    ValueError, and not of the user's."""
    broken = replace(
        length_batching.REGISTRY["semi_sorted"], order=lambda clips: clips.lengths + np.ones(10**6)
    )
    monkeypatch.setitem(length_batching.REGISTRY, "semi_sorted", broken)


@pytest.fixture(scope="session")
def ljspeech_metadata(tmp_path_factory):
    """LJSpeech's metadata.csv, all 13,100 lines."""
    path = tmp_path_factory.mktemp("ljspeech") / "metadata.csv"
    path.write_bytes(lzma.decompress((DATA / "ljspeech" / "metadata.csv.xz").read_bytes()))
    return path


@pytest.fixture(scope="session")
def ljspeech_mini(ljspeech_metadata, tmp_path_factory):
    """Five real clips in LJSpeech's layout."""
    folder = tmp_path_factory.mktemp("mini") / "LJSpeech-mini"
    folder.mkdir()
    (folder / "wavs").symlink_to(LJSPEECH_CLIPS)
    clips = {path.stem for path in LJSPEECH_CLIPS.glob("*.wav")}
    lines = ljspeech_metadata.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("|")[0] in clips]
    (folder / "metadata.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return folder
