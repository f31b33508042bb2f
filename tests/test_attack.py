"""Whatever lies where the product reads or writes a file: nothing outside is touched, nothing
waits, and a message names the file."""

import os
import signal
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.runs import read_runs
from analysis.step_costs import read_costs
from analysis.transcription import Intelligibility, read_findings
from clip_table import Clip, ClipTable, read_table_file
from corpus.lengths import read_lengths
from corpus.metadata import read_metadata
from data_utils import read_filelist, settings_problem, write_lengths
from errors import UserError
from files import lock, read_json, write_json
from hparams import HParams, create_hparams
from training.checkpoint import load_checkpoint
from training.logging import RunLogger

H = HParams()
PRECIOUS = b"precious\n"
FAULTS = {
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


@pytest.fixture(params=FAULTS)
def attacked(request, tmp_path):
    """A function that puts a fault in place of a file of this name, in a folder of its own. What
    waits is ended; at the end nothing but that folder has changed."""
    folder, precious = tmp_path / "folder", tmp_path / "precious"
    precious.write_bytes(PRECIOUS)

    def attack(name):
        (folder / name).parent.mkdir(parents=True)
        FAULTS[request.param](folder / name, precious)
        signal.alarm(20)
        return folder / name

    yield attack
    signal.alarm(0)
    assert precious.read_bytes() == PRECIOUS
    assert sorted(os.listdir(tmp_path)) == ["folder", "precious"]


READERS: dict[str, Callable[[Path], object]] = {
    "list.txt": lambda path: read_filelist(path, H),
    "list.txt.clips": read_table_file,
    "metadata.csv": lambda path: read_metadata(path.parent),
    "metrics.jsonl": lambda path: read_runs([path.parent]),
    "lengths.csv": lambda path: read_lengths(path, H),
    "settings.txt": lambda path: create_hparams(f"@{path}"),
    "epoch.json": lambda path: read_costs(path, H),
    "kernel_checks.json": read_json,
    "intelligibility.json": lambda path: read_findings(path, Intelligibility),
    "checkpoint_1.pt": load_checkpoint,
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_read_is_named_in_a_line(attacked, name):
    path = attacked(name)
    if name == "metadata.csv" and path.is_file() and path.stat().st_size < 10**7:
        return  # its lines are listed with the clips
    with pytest.raises(UserError) as refusal:
        READERS[name](path)
    message = str(refusal.value)
    assert name in message
    assert len(message) < 1000
    assert len(message.splitlines()) <= 3


def test_unreadable_mel_settings_are_unknown(attacked):
    path = attacked("mel_settings.json")
    assert settings_problem(path, {"hop_length": 256}).startswith("made with ")


SAVED = {"metrics.jsonl": 4, "logs/events.out.tfevents.1.a.tacotron2": 4}
TABLE = ClipTable.of("list.txt", [(1, Clip("a.wav", "A.", b"a", 5, ""))])


def resume_logs(folder):
    saved = {"logs": SAVED, "metrics_checksum": zlib.crc32(PRECIOUS[:4])}
    logger = RunLogger(folder, folder / "logs", saved)
    logger.log_epoch({"epoch": 1, "iteration": 1})
    logger.close()


WRITERS = {
    ".lock": lambda path: lock(path.parent).close(),
    "metrics.jsonl": lambda path: resume_logs(path.parent),
    "logs/events.out.tfevents.1.a.tacotron2": lambda path: resume_logs(path.parents[1]),
    "lengths.csv": lambda path: write_lengths(path, TABLE),
    "kernel_checks.json": lambda path: write_json(path, {}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_stays_in_its_folder(attacked, name):
    """It is refused by name, replaced by a file of the folder's own, or left alone among events."""
    path, problem = attacked(name), ""
    try:
        WRITERS[name](path)
    except (UserError, OSError) as error:
        problem = str(error)
    if not name.startswith("logs/"):
        assert path.name in problem or (path.is_file() and not path.is_symlink())
