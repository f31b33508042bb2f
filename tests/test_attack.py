"""Test links, pipes, folders and huge files at paths that programs read or write.

The programs must not change other files and must not hang. The error must name the path of the
unusable file.
"""

import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import make_corpus, prepare_with, refusal
from helpers import fork_server
from same_run import compare_runs, read_metrics

from benchmarks.gpu_report import last_lines
from corpus import demo_corpus
from corpus.cache import ClipTable, read_cache
from corpus.clips import Clip
from corpus.filelist import read_filelist, settings_problem
from corpus.layouts import read_layout
from corpus.lengths import read_lengths
from data_utils import TextMelDataset
from evaluation.results import Intelligibility, read_result
from hparams import HParams, create_hparams, read_symbols
from scripts.study import read_values
from scripts.table2.runs import read_runs
from tacotron2_voice.texts import read_texts
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import folder_locked, read_json
from training.checkpoint import Checkpoint, load_checkpoint
from training.clips import Clips, find_change

H = HParams()
PRECIOUS = b"precious\n"
OBSTACLES = {
    "dangling link": lambda path, precious: path.symlink_to(precious.with_name("nowhere")),
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "brackets": lambda path, _: path.write_text("[" * 10**6),
}


@pytest.fixture(params=OBSTACLES)
def attacked(request, tmp_path):
    """Return a function that creates an unusable file, such as a link or a pipe, in a new folder.

    The fixture checks that nothing outside the new folder changes, and kills a test that hangs.
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
    """Read a clip with the dataset that training uses."""
    return TextMelDataset(ClipTable.of("list.txt", [(1, Clip(str(path), "A.", (1,)))]), hparams)[0]


def compare_lengths(path):
    for folder in (path.parent, path.parent / "other"):
        folder.mkdir(exist_ok=True)
        (folder / "metrics.jsonl").touch()
    compare_runs(path.parent, folder)


TABLE = ClipTable.of("list.txt", [(1, Clip("a.wav", "A.", (1,), 5, ""))])
CLIPS = Clips(TABLE, TABLE, "other")
# Each key begins with the name of the file that the reader opens. If two readers open the same
# file, one of the two keys also contains the word "compared".
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
        Namespace(text=None, text_file=path, lines=False, numbers=False, drop_unknown=False), H
    ),
    "demo_corpus.json": lambda path: demo_corpus.make_corpus(path.parent),
    "part.txt": last_lines,
    "values.csv": read_values,
    "metrics.jsonl compared": lambda path: read_metrics(path.parent),
    "lengths.csv compared": compare_lengths,
}
# Names of readers that accept any text file.
ANY_TEXT = {
    "metadata.csv",
    "clips.csv",
    "texts.txt",
    "part.txt",
    "metrics.jsonl compared",
}
# Names of readers that accept a missing file.
OPTIONAL = {"clips.csv", "part.txt"}


@pytest.mark.parametrize("name", READERS)
def test_reader_error_names_the_path_when_the_file_is_unusable(attacked, name):
    path = attacked(name.partition(" ")[0])
    if name == "texts.txt" and path.is_fifo():
        return  # the program may wait for a pipe, because users can pipe texts
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


def test_problem_is_reported_when_mel_settings_json_is_unreadable(attacked):
    path = attacked("mel_settings.json")
    assert settings_problem(path, {"hop_length": 256})


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["mels", "trim"])
def test_prepare_fails_when_another_process_is_preparing_the_same_folder(tmp_path, option):
    """Without the lock, two processes that prepare the same folder would delete each other's
    unfinished files."""
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
