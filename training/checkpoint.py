"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is one file with the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`) and the rest of the loop's state, which resume.py puts together. It is written
atomically and read without running code from it.
"""

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from errors import UserError
from files import write_atomically

BEST = "best.pt"


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
    """(iteration, path) of the checkpoints in a folder, oldest first."""
    found = []
    for path in directory.glob("checkpoint_*.pt"):
        match = re.fullmatch(r"checkpoint_(\d+)\.pt", path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found)


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint on the CPU, this recipe's or the reference's.

    Raises:
        UserError: if it is missing, truncated, or no checkpoint.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UserError(
            f"{path}: damaged, or no checkpoint ({type(error).__name__}: "
            f"{_first_line(error)[:120]})"
        ) from None
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: holds no state_dict, so it is no Tacotron 2 checkpoint")
    return state


def load_newest(directory: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint of a run that can be read, `best.pt` when no other can.

    `warn` is called with a message for each that cannot.
    """
    best = [directory / BEST] if (directory / BEST).exists() else []
    for path in [*(path for _, path in reversed(list_checkpoints(directory))), *best]:
        try:
            return Checkpoint(path, load_checkpoint(path))
        except UserError as error:
            warn(f"skipped {error}")
    return None


def set_aside_newer(directory: Path, iteration: int) -> list[Path]:
    """Rename checkpoints after `iteration`, and a damaged `best.pt`, to `*.superseded`.

    A run that goes on from an earlier one must not find them at its next --resume, and nothing is
    deleted. Returns the new names.
    """
    newer = [path for number, path in list_checkpoints(directory) if number > iteration]
    best = directory / BEST
    if best.exists():
        try:
            best_iteration = load_checkpoint(best)["iteration"]
        except UserError:
            best_iteration = math.inf
        newer += [best] if best_iteration > iteration else []
    return [path.rename(_unused(path.with_name(path.name + ".superseded"))) for path in newer]


def _unused(path: Path) -> Path:
    return _unused(path.with_name(path.name + "+")) if path.exists() else path


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
    if problems:
        more = f"\n  ... and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(
            f"{path} does not fit the model these hyper-parameters make:\n  "
            + "\n  ".join(problems[:10])
            + more
        )
    model.load_state_dict(weights)
