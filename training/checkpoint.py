"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is one file with the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`) and the rest of the loop's state, which resume.py puts together. It is written
atomically and read without running code from it.
"""

import contextlib
import errno
import io
import math
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from errors import UserError
from files import unused_name, write_atomically
from training.checkpoint_schema import problems_of
from training.machine import is_out_of_memory

BEST = "best.pt"
ZIP_BEGINS = b"PK\x03\x04"
READ_AT_ONCE = 2**20  # bytes


class DamagedCheckpoint(UserError):
    """A checkpoint whose bytes are not those that were written. One before it may be good."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    state: dict


def save_checkpoint(directory: Path, state: dict, keep: int) -> Path:
    """Write `checkpoint_<iteration>.pt`, then remove all but the `keep` newest.

    Raises:
        UserError: if it cannot be written. Earlier checkpoints are then all still there.
    """
    path = directory / f"checkpoint_{state['iteration']}.pt"
    with _writing(path):
        write_atomically(path, lambda temporary: torch.save(state, temporary))
        for _, old in list_checkpoints(directory)[:-keep]:
            old.unlink()
    return path


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Let a failure to write `path` be a UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        free = shutil.disk_usage(path.parent).free / 1e9 if path.parent.is_dir() else 0
        raise UserError(
            f"{path} could not be written ({_first_line(error)}; {free:.2f} GB free): make "
            "room or make the folder writable; earlier checkpoints are untouched"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]  # torch adds a stack; some errors say nothing


def mark_best(directory: Path, path: Path) -> None:
    """Let `best.pt` be that checkpoint, in one step; it stays when the checkpoint is removed.

    Raises:
        UserError: if it cannot be written.
    """

    def link(temporary: Path) -> None:
        try:
            os.link(path, temporary)  # no second copy on the disk
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)

    with _writing(directory / BEST):
        write_atomically(directory / BEST, link)


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(iteration, path) of the checkpoints in a folder, oldest first; none where there is none.

    Raises:
        OSError: if the folder cannot be looked into.
    """
    try:
        names = os.listdir(directory)  # a glob finds nothing where it may not look
    except FileNotFoundError:
        return []
    matches = [re.fullmatch(r"checkpoint_(\d+)\.pt", name) for name in names]
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint on the CPU, this recipe's or the reference's; the one reader of checkpoints.

    Its bytes are compared with the CRC-32 that the zip holds of them, and every part with
    checkpoint_schema.py. Of a full-size checkpoint (338 MB) that takes 0.2 s and 0.5 s on two CPU
    cores, beside 0.2 s to load it.

    Raises:
        DamagedCheckpoint: if the file is there and can be read, but is not what was written.
        UserError: if it cannot be read (missing, no permission, a failing disk, too little
            memory), is no checkpoint, or a part of it is not what it has to be.
    """
    path = Path(path)
    try:
        with _open(path) as file:
            state = _load(path, file)
    except MemoryError as error:
        raise _unreadable(path, f"too little memory: {_first_line(error)}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise _unreadable(path, error.strerror or _first_line(error)) from None
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: holds no state_dict, so it is no Tacotron 2 checkpoint")
    if problems := problems_of(state):
        raise parts_refused(path, problems)
    return state


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: cannot be read ({reason}). That does not say that it is damaged: nothing was "
        "touched; let it be readable and try again"
    )


def parts_refused(path: Path, problems: list[str]) -> UserError:
    """One message about the parts of a checkpoint that are not what they have to be."""
    if len(problems) == 1:
        return UserError(f"{path}: {problems[0]}")
    return UserError(f"{path}: {len(problems)} problems:\n  " + "\n  ".join(problems))


class ReadingFile(io.FileIO):
    """Remembers an error of the disk, which zipfile and torch make errors of their own of."""

    failure: OSError | None = None

    def readinto(self, buffer) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failure = error
            raise


def _open(path: Path) -> io.BufferedReader:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(f"{path}: no file, expected a checkpoint")
    return io.BufferedReader(ReadingFile(path), READ_AT_ONCE)


def _load(path: Path, file: io.BufferedReader) -> object:
    try:
        _check_content(file)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file
        if file.raw.failure is not None:
            raise file.raw.failure from None
        # A damaged file may ask for a position before its start, which is EINVAL.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and is_out_of_memory(error)
        ):
            raise MemoryError(_first_line(error)) from None
        raise DamagedCheckpoint(
            f"{path}: damaged, or no checkpoint ({type(error).__name__}: "
            f"{_first_line(error)[:120]})"
        ) from None


def _check_content(file: io.BufferedReader) -> None:
    """Compare every record with its CRC-32. The reference's oldest files are no zip and have none.

    Raises:
        zipfile.BadZipFile, and what else zipfile raises for a damaged file.
    """
    if file.read(len(ZIP_BEGINS)) != ZIP_BEGINS:  # as torch tells them apart
        return
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            with archive.open(record) as content:
                while content.read(READ_AT_ONCE):  # which compares at the end
                    pass


def load_newest(directory: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint of a run that is not damaged, `best.pt` when all others are.

    `warn` is called with a message for each that is. None where there is no checkpoint at all.

    Raises:
        UserError: if all are damaged, or one cannot be read or has parts that are refused: whether
            it is the newest good one is then not known.
    """
    best = [directory / BEST] if (directory / BEST).exists() else []
    damaged = []
    for path in [*(path for _, path in reversed(list_checkpoints(directory))), *best]:
        try:
            found = Checkpoint(path, load_checkpoint(path))
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            warn(f"skipped {message}")
        return found
    if damaged:
        raise DamagedCheckpoint("\n  ".join(["no good checkpoint is left:", *damaged]))
    return None


def set_aside_newer(directory: Path, iteration: int) -> list[Path]:
    """Rename checkpoints after `iteration`, and a damaged `best.pt`, to `*.superseded`.

    A run that goes on from an earlier one must not find them at its next --resume, and nothing is
    deleted. Returns the new names.

    Raises:
        UserError: if `best.pt` cannot be read; nothing is then renamed.
    """
    newer = [path for number, path in list_checkpoints(directory) if number > iteration]
    best = directory / BEST
    if best.exists():
        try:
            best_iteration = load_checkpoint(best)["iteration"]
        except DamagedCheckpoint:
            best_iteration = math.inf
        newer += [best] if best_iteration > iteration else []
    return [path.rename(unused_name(path.with_name(path.name + ".superseded"))) for path in newer]


def load_weights(
    model: torch.nn.Module, state: dict, path: str | Path, ignore_layers: Sequence[str] = ()
) -> None:
    """Copy a checkpoint's weights into `model`, all but the tensors named in `ignore_layers`.

    Raises:
        UserError: listing the tensors that are missing, unknown or of another shape.
    """
    weights = {
        name.removeprefix("module."): tensor  # saved from a wrapped, distributed model
        for name, tensor in state["state_dict"].items()
    }
    own = model.state_dict()
    for name in ignore_layers:
        if name not in own:
            raise UserError(f"ignore_layers: the model has no tensor {name!r}")
        weights[name] = own[name]
    problems = [f"lacks {name}" for name in own if name not in weights]
    problems += [f"has {name}, which this model lacks" for name in weights if name not in own]
    problems += [
        f"{name} is {list(weights[name].shape)}, the model's is {list(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    problems += [
        f"{name} is {weights[name].dtype}, the model's is {own[name].dtype}"
        for name in own
        if name in weights and weights[name].is_floating_point() != own[name].is_floating_point()
    ]
    if problems:
        more = f"\n  ... and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(
            f"{path} does not fit the model these hyper-parameters make:\n  "
            + "\n  ".join(problems[:10])
            + more
        )
    model.load_state_dict(weights)
