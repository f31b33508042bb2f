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
from types import SimpleNamespace

import pytest
import torch
from clips import cached_mels, sounds  # noqa: F401
from helpers import (
    DATA,
    LJSPEECH_CLIPS,
    LONG,
    SMALL_MODEL,
    Child,
    Corpus,
    flags,
    make_corpus,
    make_plots_empty,
    save_small_model,
)

from hparams import create_hparams


def restore_signals() -> None:
    """Restore the default signal handlers in this process.

    If the tests run in the background or under nohup, the shell makes pytest and its child
    processes ignore some signals. Some tests send these signals to programs, so the programs must
    not ignore them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


restore_signals()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Remove the signal handlers that a training run sets in the test process."""
    yield
    restore_signals()


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads TRITON_INTERPRET during its import


# By default, hypothesis fails if an example takes 0.2 s, which is too short for busy machines.
with contextlib.suppress(ModuleNotFoundError):  # GPU machines may lack hypothesis
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, because repeated scans of these objects
    would take time."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def clean_process(monkeypatch, one_thread):
    """Let a test train in this process without a GPU or plots, and restore global state
    afterwards."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make_plots_empty(monkeypatch.setattr)


@pytest.fixture(scope="session")
def whole(corpus, tmp_path_factory):
    """Return the folder of an uninterrupted training run with the settings in LONG."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert Child(flags(out, corpus.hparams(**LONG))).end().code == 0
    return out


@pytest.fixture
def no_plots(monkeypatch):
    from corpora import skip_plots  # GPU machines may lack packages that corpora imports

    skip_plots(monkeypatch)


@pytest.fixture
def copied(whole, tmp_path):
    """Return a copy of the uninterrupted run folder, which the test may change."""
    return shutil.copytree(whole, tmp_path / "copied")


@pytest.fixture
def checkpoint_path(tmp_path):
    """Return the path of a checkpoint of a small model."""
    return save_small_model(tmp_path / "model.pt", create_hparams(SMALL_MODEL))


@pytest.fixture(scope="session")
def voices(tmp_path_factory):
    """Save a checkpoint, and export it as fp32, int8 and packed voices.

    Each attribute of the result is a pair: the path, and the text that the export printed.
    """
    export_voice = importlib.import_module("scripts.export_voice")
    folder = tmp_path_factory.mktemp("voices")
    hparams = create_hparams(
        f"{SMALL_MODEL},decoder_rnn_dim=128,n_frames_per_step=2,max_decoder_steps=40"
    )
    found = {"checkpoint": (save_small_model(folder / "best.pt", hparams, longest_text=24), "")}
    (folder / "texts.txt").write_text("A dog came.\nIt sat down, and it ate.\n")
    arguments = ["--checkpoint", folder / "best.pt", "--text-file", folder / "texts.txt", "-o"]
    for name in ("fp32", "int8", "packed"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            export_voice.main([*map(str, arguments), str(folder / name), f"--{name}"])
        found[name] = folder / name, printed.getvalue()
    return SimpleNamespace(**found)


@pytest.fixture
def one_thread():
    """Limit torch to one thread, because small layers are slower with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tf32_as_before():
    """Restore the global TF32 settings, which a Trainer changes."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.fixture(scope="session")
def ljspeech_metadata(tmp_path_factory):
    """Return the path of LJSpeech's metadata.csv with all 13,100 lines."""
    path = tmp_path_factory.mktemp("ljspeech") / "metadata.csv"
    path.write_bytes(lzma.decompress((DATA / "ljspeech" / "metadata.csv.xz").read_bytes()))
    return path


@pytest.fixture(scope="session")
def ljspeech_mini(ljspeech_metadata, tmp_path_factory):
    """Return a folder with five real clips in LJSpeech's layout."""
    folder = tmp_path_factory.mktemp("mini") / "LJSpeech-mini"
    folder.mkdir()
    (folder / "wavs").symlink_to(LJSPEECH_CLIPS)
    clips = {path.stem for path in LJSPEECH_CLIPS.glob("*.wav")}
    lines = ljspeech_metadata.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("|")[0] in clips]
    (folder / "metadata.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return folder
