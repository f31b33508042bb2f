"""Test the records, kept checkpoints, failures and rejected settings of runs."""

import multiprocessing
import resource
import shlex
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import HOP, LONG, SECONDS, Child, act_at, assert_same_run, flags, load, metrics, newest
from training_runs import act_at_patched, copied_corpus, refused, run

import train
from data_utils import TextMelDataset
from hparams import create_hparams, hparams_from_dict
from training import checkpoint
from training.distributed import ALONE
from training.run import Run
from training.run_folder import RunFolder
from training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("clean_process")


def test_run_keeps_the_newest_checkpoints_and_the_best_checkpoint(corpus, tmp_path, monkeypatch):
    """Checkpoints are written every 3 optimizer steps. Validation runs after epochs 1, 2 and 3, and
    the second validation gets the lowest loss."""
    saved = []
    save = checkpoint.write_checkpoint

    def spy(directory, state, keep):
        saved.append((state["iteration"], state["loop"]["epoch"], state["loop"]["batches_trained"]))
        return save(directory, state, keep)

    def order(run, stop):
        record, example = validate(run, stop)
        return record | {
            "validation_loss_unpadded": {1: 3.0, 2: 1.0, 3: 2.0}[record["epoch"]]
        }, example

    validate = train.validate
    monkeypatch.setattr(checkpoint, "write_checkpoint", spy)
    monkeypatch.setattr(train, "validate", order)
    out = tmp_path / "out"
    run(out, corpus, epochs=3, epochs_per_validation=1, iters_per_checkpoint=3, keep_checkpoints=1)
    ends = [record["iteration"] for record in metrics(out, "epoch")]
    total = ends[-1]
    due = {step for step in range(1, total + 1) if step % 3 == 0} | set(ends)
    assert {iteration for iteration, _, _ in saved} == due | {0}
    assert saved[-1] == (total, 4, 0)
    assert [path.name for path in out.glob("checkpoint_*.pt")] == [f"checkpoint_{total}.pt"]
    assert load(out / "best.pt")["iteration"] == ends[1]


# ---------------------------------------------------------------------------- records and messages


def test_metrics_file_contains_the_settings_and_the_machine_of_a_run(corpus, whole):
    [record] = metrics(whole, "run")
    assert create_hparams(corpus.hparams(**LONG)) == hparams_from_dict(record["hparams"])
    assert record["corpus"]["training_clips"] == 14
    assert record["corpus"]["validation_clips"] == 5
    samples = np.round(SECONDS["train"] * 22050).astype(int)
    assert record["corpus"]["training_frames"] == int((1 + samples // HOP).sum())
    assert len(record["corpus"]["fingerprint"]) == 64
    assert record["machine"]["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__
    assert "commit" in record


@pytest.mark.parametrize("logs", ["logs", "my logs"])
def test_printed_resume_command_contains_the_folders(logs, tmp_path):
    output = tmp_path / "a run; with signs"
    trainer = SimpleNamespace(processes=ALONE)
    of_one = Run(RunFolder(output, logs), *[None] * 4, trainer=trainer)
    python, script, *arguments = shlex.split(of_one.resume_command)
    assert (python, script) == ("python", "train.py")
    args = train.parse_arguments(arguments)
    assert (args.output_directory, args.log_directory, args.resume) == (output, logs, True)


# ---------------------------------------------------------------------------- disks and clips


def limit_file_size(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def test_run_loses_nothing_when_the_disk_is_full(corpus, tmp_path):
    """A file size limit imitates a full disk. The operating system stops the write in the middle of
    the file."""
    out = tmp_path / "out"
    run(out, corpus, **LONG | {"epochs": 1})
    before = {path.name: path.read_bytes() for path in out.glob("*.pt")}
    size = newest(out).stat().st_size
    stopped = Child(flags(out, "epochs=4", "--resume"), limit_file_size, size // 2).end()
    assert stopped.code == 1
    assert "cannot write the checkpoint" in stopped.output
    assert "--resume" in stopped.output
    assert "Traceback" not in stopped.output
    assert {path.name: path.read_bytes() for path in out.glob("*.pt")} == before
    assert not list(out.glob(".*.tmp"))


def kill_a_worker() -> None:
    def kill() -> None:
        worker, *_ = multiprocessing.active_children()
        worker.kill()
        # During this sleep, the signal handler of the DataLoader raises an error.
        time.sleep(1)

    act_at(Trainer, "step", kill, 6)


def test_run_stops_when_its_folder_is_moved(corpus, tmp_path, monkeypatch, capsys):
    out, moved = tmp_path / "out", tmp_path / "moved"
    act_at_patched(monkeypatch, Trainer, "step", lambda: out.rename(moved), 5)
    message = refused(flags(out, corpus.hparams(**LONG)), capsys)
    assert f"{out}/" in message
    assert newest(moved).name == "checkpoint_3.pt"


def test_run_loses_nothing_when_a_worker_is_killed(corpus, whole, tmp_path):
    out = tmp_path / "out"
    stopped = Child(flags(out, corpus.hparams(**LONG, num_workers=3)), kill_a_worker).end()
    assert stopped.code == 1, stopped.output
    assert "a DataLoader worker died" in stopped.output
    assert "--resume" in stopped.output
    assert "Traceback" not in stopped.output
    assert "Exception ignored" not in stopped.output
    resumed = Child(flags(out, "num_workers=0", "--resume")).end()
    assert resumed.code == 0, resumed.output
    assert_same_run(out, whole)


def test_run_saves_a_checkpoint_when_a_clip_is_deleted(corpus, whole, tmp_path):
    folder = tmp_path / "clips"
    moved = copied_corpus(corpus, folder)
    out = tmp_path / "out"
    hparams = corpus.hparams(**LONG, num_workers=2, training_files=moved)
    stopped = Child(
        flags(out, hparams), act_at, Trainer, "step", (folder / "train05.wav").unlink, 6
    ).end()
    assert stopped.code == 1, stopped.output
    assert f"{moved}:6: {folder / 'train05.wav'}: no such file" in stopped.output
    assert f"{newest(out)}" in stopped.output
    assert "Traceback" not in stopped.output
    shutil.copy(corpus.folder / "train05.wav", folder)
    assert Child(flags(out, "", "--resume")).end().code == 0
    assert_same_run(out, whole)


# ---------------------------------------------------------------------------- errors at the start


@pytest.mark.parametrize(
    ("more", "hparams", "message"),
    [
        (["--n_gpus", "2"], {}, "torchrun --nproc-per-node 2 train.py"),
        (["--rank", "1"], {}, "--rank 1"),
        (["--warm_start"], {}, "Set it with -c"),
        (["-o", ""], {}, "-o: the folder name is empty"),
        (["-c", "x.pt", "--resume"], {}, "Leave out -c"),
        (["-c", "nowhere.pt"], {}, "nowhere.pt: no such checkpoint"),
        (["-l", "../elsewhere"], {}, "is outside the output folder"),
        (["-l", "logs.csv"], {}, "the name of this folder ends in .csv"),
        ([], {"text_cleaners": "[x]"}, "train.py: unknown text cleaner 'x'"),
        ([], {"batchsize": 3}, "did you mean batch_size?"),
        ([], {"validation_files": "nowhere.txt"}, "nowhere.txt: no such filelist"),
        ([], {"batch_capacity": 20}, "batch_capacity=20: expected at least 23"),
        ([], {"n_symbols": 100}, "n_symbols=100: expected at least 148"),
    ],
)
def test_run_creates_no_folder_when_settings_are_invalid(
    more, hparams, message, corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "new" / "out"
    assert message in refused(flags(out, corpus.hparams(**hparams), *more), capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["file", "file/out"])
def test_training_run_fails_when_the_output_folder_is_a_file(out, corpus, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    message = refused(flags(tmp_path / out, corpus.hparams(), "--resume"), capsys)
    assert f"{tmp_path}/file: not a folder; choose a different -o" in message
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.parametrize("error", [ValueError, OSError, RuntimeError])
# An error in Trainer occurs during set-up. An error in schedule_at occurs in the training loop.
@pytest.mark.parametrize("place", ["Trainer", "schedule_at"])
def test_traceback_is_printed_when_the_program_has_a_bug(
    error, place, corpus, tmp_path, monkeypatch
):
    def fail(*_):
        raise error("a bug")

    monkeypatch.setattr(train, place, fail)
    with pytest.raises(error, match="a bug"):
        run(tmp_path / "out", corpus)


def test_run_saves_a_checkpoint_when_the_dataset_code_has_a_bug(
    corpus, tmp_path, monkeypatch, capsys
):
    def fail(self, path):
        if Path(path).name == "train05.wav":
            raise RuntimeError("a bug")
        return read(self, path)

    read, out = TextMelDataset._mel, tmp_path / "out"
    monkeypatch.setattr(TextMelDataset, "_mel", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(out, corpus, num_workers=0, batch_size=1, dynamic_batch_size=False)
    trained = load(newest(out))["loop"]["batches_trained"]
    assert trained > 0
    assert (
        f"saved a checkpoint of the last completed optimizer step: {newest(out)}"
        in capsys.readouterr().out
    )
