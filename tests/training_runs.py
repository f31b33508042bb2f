"""Start, interrupt and compare runs of train.py."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers import LONG, Child, act_at, flags, kill_self, load, newest

import train
from tacotron2_voice.utils import files
from training import checkpoint, validation
from training.metrics import RunLogger
from training.trainer import Trainer


def run(out: Path, corpus, *more, **overrides) -> None:
    train.main(flags(out, corpus.hparams(**overrides), *more))


def refused(arguments: list[str], capsys) -> str:
    """Return the error message of `train.main`, which must exit with an error."""
    with pytest.raises(SystemExit) as stop:
        train.main(arguments)
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return a dict from the relative path of each file in a folder to its bytes."""
    return {
        str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()
    }


def watch_steps(patch, watch) -> None:
    """Call `watch(trainer, batch, make_step)` instead of each optimizer step.

    Each optimizer step must have exactly one batch. `make_step()` performs the original step.
    """
    step = Trainer.step

    def watched(trainer, micro_batches, *args, **options):
        [micro_batch] = given = list(micro_batches)
        return watch(trainer, micro_batch.batch, lambda: step(trainer, given, *args, **options))

    patch.setattr(Trainer, "step", watched)


def act_at_patched(monkeypatch, owner, name, act, call) -> None:
    # This line makes monkeypatch restore the function after the test.
    monkeypatch.setattr(owner, name, getattr(owner, name))
    act_at(owner, name, act, call)


class StopHere(Exception):
    """Raised in a test to end a run."""


def stop_here(*_) -> None:
    raise StopHere


def half_of_a_checkpoint(call: int) -> None:
    """Kill this process when half of checkpoint number `call` is written."""
    save = torch.save
    calls = 0

    def half(state, path):
        nonlocal calls
        calls += 1
        save(state, path)
        if calls == call:
            os.truncate(path, os.path.getsize(path) // 2)
            kill_self()

    # The patch is not undone, because the process ends here.
    pytest.MonkeyPatch().setattr(torch, "save", half)


def half_of_a_log_line(kind: str) -> None:
    """Kill this process when half of a metrics line of this kind is written."""

    def write(self, line_kind, record):
        if line_kind != kind:
            write_line(self, line_kind, record)
            return
        line = json.dumps({"kind": line_kind} | record) + "\n"
        self.metrics.write(line[: len(line) // 2].encode())
        self.metrics.flush()
        kill_self()

    write_line = RunLogger._write
    pytest.MonkeyPatch().setattr(RunLogger, "_write", write)


# Moments at which runs are killed: before or after a given call of a function.
# Values: owner and name of the function, number of the call, and true for a kill after the call.
KILLS = {
    "before the first checkpoint": (checkpoint, "save", 1, False),
    "before the first optimizer step": (Trainer, "step", 1, False),
    "in the middle of an epoch": (Trainer, "step", 8, True),
    "before a checkpoint gets its final name": (files.os, "replace", 4, False),
    "before older checkpoints are removed": (checkpoint, "list_checkpoints", 5, False),
    "before best.pt is linked": (checkpoint, "link_as", 1, False),
    "after the last checkpoint, before best.pt is linked": (checkpoint, "link_as", 2, False),
    "after an epoch record": (RunLogger, "log_epoch", 2, True),
    "in the second validation": (validation, "example_of", 2, False),
    "after a validation record, before the checkpoint": (RunLogger, "log_validation", 1, True),
    "after later checkpoints are renamed": (checkpoint, "set_aside_newer", 1, True),
    "after the logs are truncated": (RunLogger, "_cut_back", 1, True),
    "after the second optimizer step": (Trainer, "step", 2, True),
}


def kill_at(moment: str) -> None:
    match moment:
        case "after half of a checkpoint is written":
            half_of_a_checkpoint(2)
        case "after half of an epoch record is written":
            half_of_a_log_line("epoch")
        case "after half of the run record is written":
            half_of_a_log_line("run")
        case _:
            owner, name, call, after = KILLS[moment]
            act_at(owner, name, kill_self, call, after=after)


def stopped_inside_an_epoch(corpus, out: Path) -> Path:
    """Return the folder of a run that was killed inside an epoch."""
    assert (
        Child(flags(out, corpus.hparams(**LONG)), kill_at, "in the middle of an epoch").end().code
        == -9
    )
    assert load(newest(out))["loop"]["batches_trained"] > 0
    return out


def copied_corpus(corpus, folder: Path, name: str = "train") -> Path:
    """Copy the corpus to `folder`, and return a filelist of the copy."""
    shutil.copytree(corpus.folder, folder)
    filelist = folder / f"{name}.txt"
    filelist.write_text(filelist.read_text().replace(str(corpus.folder), str(folder)))
    return filelist
