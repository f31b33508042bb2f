"""Replace files that the programs read or write by links, pipes, folders and huge files.

The programs must not change other files, must not wait forever, and must report the file.
"""

import os
import signal
import time
import zlib
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from corpora import make_corpus, prepare_with, refusal
from helpers import fork_server
from same_run import compare_runs, read_metrics

from benchmarks.gpu_report import last_lines
from corpus import demo_corpus, download
from corpus.cache import ClipTable, read_cache
from corpus.clips import Clip
from corpus.filelist import read_filelist, settings_problem, write_lengths
from corpus.layouts import read_layout
from corpus.lengths import read_lengths
from data_utils import TextMelDataset
from evaluation.results import Intelligibility, read_result
from hparams import HParams, create_hparams, read_symbols
from scripts.study import Study, read_values
from scripts.table2.runs import read_runs
from tacotron2_voice.texts import read_texts
from tacotron2_voice.utils.audio_files import write_mel, write_wav
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import folder_locked, lock, read_json, write_json
from training.checkpoint import Checkpoint, link_as, load_checkpoint, write_checkpoint
from training.clips import Clips, find_change, write_clips
from training.metrics import RunLogger

H = HParams()
PRECIOUS = b"precious\n"
OBSTACLES = {
    "link": lambda path, precious: path.symlink_to(precious),
    "hard link": lambda path, precious: path.hardlink_to(precious),
    "dangling link": lambda path, precious: path.symlink_to(precious.with_name("nowhere")),
    "loop": lambda path, _: path.symlink_to(path.name),
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "zeros": lambda path, _: open(path, "wb").truncate(10**10),  # noqa: SIM115
    "brackets": lambda path, _: path.write_text("[" * 10**6),
    "digits": lambda path, _: path.write_text(f'{{"kind": "run", "version": {"9" * 30}}}'),
}


@pytest.fixture(params=OBSTACLES)
def attacked(request, tmp_path):
    """Return a function that creates an obstacle instead of a file, in a folder of its own.

    After the test, nothing outside this folder may have changed. A test that waits is killed.
    """
    folder = tmp_path / "folder"
    precious = tmp_path / "precious"
    precious.write_bytes(PRECIOUS)

    def attack(name):
        (folder / name).parent.mkdir(parents=True)
        OBSTACLES[request.param](folder / name, precious)
        signal.alarm(20)
        return folder / name

    yield attack
    signal.alarm(0)
    assert precious.read_bytes() == PRECIOUS
    assert sorted(os.listdir(tmp_path)) == ["folder", "precious"]


def clip_of(path, hparams=H):
    """Read a clip as training does."""
    return TextMelDataset(ClipTable.of("list.txt", [(1, Clip(str(path), "A.", (1,)))]), hparams)[0]


def compare_lengths(path):
    for folder in (path.parent, path.parent / "other"):
        folder.mkdir(exist_ok=True)
        (folder / "metrics.jsonl").touch()
    compare_runs(path.parent, folder)


TABLE = ClipTable.of("list.txt", [(1, Clip("a.wav", "A.", (1,), 5, ""))])
CLIPS = Clips(TABLE, TABLE, "other")
# A name can be followed by a word, because two functions read some of the files.
READERS: dict[str, Callable[[Path], object]] = {
    "list.txt": lambda path: read_filelist(path, H),
    "list.txt.clips": read_cache,
    "metadata.csv": lambda path: read_layout(path.parent),
    "metrics.jsonl": lambda path: read_runs([path.parent]),
    "lengths.csv": lambda path: read_lengths(path, H),
    "settings.txt": lambda path: create_hparams(f"@{path}"),
    "symbols.json": lambda path: read_symbols(create_hparams(f"symbols={path}")),
    "kernel_checks.json": read_json,
    "intelligibility.json": lambda path: read_result(path, Intelligibility),
    "checkpoint_1.pt": load_checkpoint,
    "a.wav": clip_of,
    "a.npy": lambda path: clip_of(path, create_hparams("load_mel_from_disk=True")),
    "clips.csv": lambda path: find_change(CLIPS, Checkpoint(path, {"corpus": ""}), True),
    "texts.txt": lambda path: read_texts(
        Namespace(text=None, text_file=path, numbers=False, drop_unknown=False), H
    ),
    "demo_corpus.json": lambda path: demo_corpus.make_corpus(path.parent),
    "part.txt": last_lines,
    "values.csv": read_values,
    "metrics.jsonl compared": lambda path: read_metrics(path.parent),
    "lengths.csv compared": compare_lengths,
}
# These readers accept any text.
ANY_TEXT = {
    "metadata.csv",
    "clips.csv",
    "texts.txt",
    "part.txt",
    "metrics.jsonl compared",
}
# These readers accept a missing file.
OPTIONAL = {"clips.csv", "part.txt"}


@pytest.mark.parametrize("name", READERS)
def test_reader_reports_the_file_when_it_is_an_obstacle(attacked, name):
    path = attacked(name.partition(" ")[0])
    if name == "texts.txt" and path.is_fifo():
        return  # the program may wait for a pipe, because users pipe texts
    exists = path.exists()
    is_small = path.is_file() and path.stat().st_size < 10**7
    try:
        READERS[name](path)
    except UserError as error:
        message = str(error)
    else:
        assert (is_small and name in ANY_TEXT) or (not exists and name in OPTIONAL)
        return
    assert path.name in message or str(path.parent) in message
    assert len(message) < 1000
    assert len(message.splitlines()) <= 3


def test_settings_problem_is_reported_when_mel_settings_are_unreadable(attacked):
    path = attacked("mel_settings.json")
    assert settings_problem(path, {"hop_length": 256})


SAVED = {"metrics.jsonl": 4, "logs/events.out.tfevents.1.a.tacotron2": 4}


def resume_logs(folder):
    saved = {"logs": SAVED, "metrics_checksum": zlib.crc32(PRECIOUS[:4])}
    logger = RunLogger(folder, folder / "logs", saved)
    logger.log_epoch({"epoch": 1, "iteration": 1})
    logger.close()


def receive(path):
    """Append to a file as a download does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "URL", "data:,half")
        patch.setattr(download, "ARCHIVE_BYTES", 4)
        download._receive(path, SimpleNamespace(n=0, update=repr))


def mark_best(path):
    (path.parent / "checkpoint_1.pt").touch()
    link_as(path.name, path.parent / "checkpoint_1.pt", path.parent)


WRITERS = {
    ".lock": lambda path: lock(path.parent).close(),
    "metrics.jsonl": lambda path: resume_logs(path.parent),
    "logs/events.out.tfevents.1.a.tacotron2": lambda path: resume_logs(path.parents[1]),
    "lengths.csv": lambda path: write_lengths(path, TABLE),
    "kernel_checks.json": lambda path: write_json(path, {}),
    "clips.csv": lambda path: write_clips(path.parent, CLIPS),
    "list.txt.clips": lambda path: ClipTable.of(path.with_suffix(""), []).write(),
    "checkpoint_1.pt": lambda path: write_checkpoint(path.parent, {"iteration": 1}, 1),
    "best.pt": mark_best,
    "a.npy": lambda path: write_mel(path, np.zeros((80, 3))),
    "a.wav": lambda path: write_wav(path, np.zeros(9), 22050),
    "study.log": lambda path: Study.execute(cast(Any, SimpleNamespace(stops=0)), ["-c", ""], path),
    "LJSpeech-1.1.tar.bz2.part": receive,
}


@pytest.mark.parametrize("name", WRITERS)
def test_writer_changes_no_other_file_when_the_file_is_an_obstacle(attacked, name):
    """A writer reports the file, or replaces it by a new file. TensorBoard's writer ignores it."""
    path = attacked(name)
    problem = ""
    try:
        WRITERS[name](path)
    except (UserError, OSError) as error:
        problem = str(error)
    if not name.startswith("logs/"):
        assert path.name in problem or (path.is_file() and not path.is_symlink())


@pytest.mark.parametrize("option", [pytest.param("mels", marks=pytest.mark.thorough), "trim"])
def test_prepare_stops_when_another_process_prepares_the_same_folder(tmp_path, option):
    """Otherwise each process would delete the unfinished files of the other process."""
    corpus = make_corpus(tmp_path / "corpus", 5)
    (tmp_path / "made").mkdir()
    context = fork_server()
    locked = context.Event()
    holder = context.Process(target=hold_lock, args=(tmp_path / "made", locked))
    holder.start()
    try:
        assert locked.wait(60)
        options = {option: tmp_path / "made"}
        message = refusal(prepare_with, corpus, tmp_path, error=BlockingIOError, **options)
    finally:
        holder.kill()
        holder.join()
    assert str(tmp_path / "made") in message
    prepare_with(corpus, tmp_path / "lists", **options)


def hold_lock(folder: Path, locked) -> None:
    with folder_locked(folder, "busy"):
        locked.set()
        time.sleep(600)
