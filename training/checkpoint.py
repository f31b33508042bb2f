"""Write and read checkpoints, so that a resumed run continues as if it had never stopped.

    source = load_newest(Path("runs/ljspeech"))
    loop = restore(complete(source), trainer, sampler)

A checkpoint has the keys of NVIDIA's checkpoints (`iteration`, `state_dict`, `optimizer`,
`learning_rate`), and further keys for the rest of the run's state. The checkpoint file is written
atomically. Reading a checkpoint never executes code from the file.
"""

import contextlib
import filecmp
import math
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch

from export.checkpoint_file import (
    KINDS,
    CountFrom1,
    DamagedCheckpoint,
    first_line,
    is_of_this_recipe,
    load_weights,
    read_checkpoint,
)
from hparams import HParams
from length_batching import BatchingError, LengthBatchSampler
from tacotron2_voice.settings import limits
from tacotron2_voice.speech_statistics import EXACTLY
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import unused_name, write_atomically
from tacotron2_voice.version import __version__
from training.optimizer import state_entries
from training.trainer import LossTerms, Trainer

BEST = "best.pt"
# Training counts as diverged if a loss exceeds this number times the lowest loss so far.
DIVERGED = 100


class Checkpoint(NamedTuple):
    path: Path
    state: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read the checkpoint at `path`, or raise UserError if it cannot be used."""
        return cls(path, load_checkpoint(path))


# ---------------------------------------------------------------------------- contents


@dataclass
class LoopState:
    """The state of the training loop. All sums are over the current epoch.

    If a checkpoint from an older version lacks a field, the field keeps its default value.
    """

    __pydantic_config__ = EXACTLY
    iteration: int = 0  # number of optimizer steps since the run started
    epoch: CountFrom1 = 1  # number of the current epoch
    batches_trained: int = 0  # number of trained batches of this epoch, over all processes
    clips: int = 0
    frames: int = 0  # number of real frames trained on in this epoch
    loss_sum: float = 0.0  # padded loss, summed over the clips of this epoch
    loss_unpadded_sum: float = 0.0  # masked loss, summed over real frames of this epoch
    # Sum of the guided attention loss over the frames that `guided_attention_frames` counts.
    guided_attention_sum: float = 0.0
    # Number of real frames in the optimizer steps that used guided attention loss.
    guided_attention_frames: int = 0
    # Sum of gradient norms over all optimizer steps that were not skipped.
    gradient_norm_sum: float = 0.0
    updates: int = 0  # number of optimizer steps applied in this epoch
    skipped_updates: int = 0  # number of optimizer steps skipped in this epoch
    seconds: float = 0.0  # seconds of the epoch spent on planning, waiting for data and training
    prepare_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    # Seconds for which this process waited for the gradients of other processes.
    process_wait_seconds: float = 0.0
    # Sum of the load imbalances of all optimizer steps. The load imbalance of an optimizer step is
    # the largest number of padded frames in any process, divided by the mean over all processes.
    imbalance_sum: float = 0.0
    peak_memory_bytes: int = 0  # peak memory of the device during training, in bytes
    skips_running: int = 0  # number of skipped optimizer steps since the last applied step
    best_validation_loss: float = math.inf  # lowest masked validation loss so far
    # Optimizer step of the best checkpoint; -1: no validation yet.
    best_iteration: int = -1
    lowest_loss: float = math.inf  # lowest padded loss of any optimizer step so far
    alignment_warned: int = 0  # 1: the warning "no alignment has formed" was printed
    text_warned: int = 0  # 1: the warning "attention ignores the text" was printed

    def at_start_of(self, epoch: int) -> "LoopState":
        """Return the state of the training loop before the first batch of `epoch` (the current or
        the next epoch)."""
        return LoopState(
            epoch=epoch,
            iteration=self.iteration,
            skips_running=self.skips_running,
            alignment_warned=self.alignment_warned,
            text_warned=self.text_warned,
            lowest_loss=self.lowest_loss,
            best_validation_loss=self.best_validation_loss,
            best_iteration=self.best_iteration,
        )

    def add_losses(self, terms: LossTerms, clips: int, frames: int) -> None:
        """Add the losses of an optimizer step to the sums of the epoch. Ignore losses that are NaN.

        In the sums, the weight of the padded loss is `clips`, the number of clips in the optimizer
        step. The weight of the other losses is `frames`, the number of real frames in the optimizer
        step.
        """
        self.clips += clips
        self.frames += frames
        self.loss_sum += terms.loss * clips
        self.loss_unpadded_sum += terms.loss_unpadded * frames
        if not math.isnan(terms.guided_attention):
            self.guided_attention_sum += terms.guided_attention * frames
            self.guided_attention_frames += frames

    def mean_losses(self) -> dict[str, float]:
        """Return the mean losses of the epoch so far, keyed by their names in metrics.jsonl."""
        means = {
            "train_loss": self.loss_sum / self.clips,
            "train_loss_unpadded": self.loss_unpadded_sum / self.frames,
        }
        if self.guided_attention_frames:
            means["train_guided_attention"] = (
                self.guided_attention_sum / self.guided_attention_frames
            )
        return means

    def diverges(self, loss: float) -> bool:
        """Return whether a loss is infinite, NaN or far above the lowest loss so far.

        A loss is far above the lowest loss if it is greater than 1 and greater than DIVERGED times
        the lowest loss.
        """
        return not math.isfinite(loss) or loss > max(1, DIVERGED * self.lowest_loss)

    def plan_number(self, hparams: HParams) -> int:
        """Return the zero-based number of the epoch whose plan the sampler uses.

        If `prepare_trainset_per_epoch` is False, all epochs after the random epochs use the same
        plan.
        """
        last = math.inf if hparams.prepare_trainset_per_epoch else hparams.random_epochs
        return int(min(self.epoch - 1, last))


# Types of the entries that a checkpoint must contain so that a run can resume from it.
NEEDED: dict[str, Any] = {
    "version": str,  # version of this project
    "hparams": Any,
    "state_dict": Any,
    "optimizer": dict,
    "iteration": Annotated[int, limits(ge=0)],
    "learning_rate": float,
    "scaler": dict | None,  # state of torch.amp.GradScaler; None if precision is not fp16
    "loop": LoopState,
    "sampler": dict | None,  # state of LengthBatchSampler; None between two epochs
    "corpus": str,  # fingerprint of the clips
    "longest_text": CountFrom1,  # length of the longest training text in symbols
    # Size of each log file in bytes, keyed by its path relative to the run folder.
    "logs": dict[str, int],
    "metrics_checksum": int,  # CRC-32 checksum of metrics.jsonl
}


def _check_optimizer_state(path: Path, saved: dict[str, Any], trainer: Trainer) -> None:
    """Raise UserError if the saved optimizer state does not fit the shapes of the parameters.

    If the shapes in the optimizer state were wrong, PyTorch's fused Adam would write out of bounds.
    """
    parameters = trainer.optimizer.param_groups[0]["params"]
    state = saved["state"]
    if state and state.keys() != set(range(len(parameters))):
        raise UserError(
            f"{path}: optimizer: the state does not match the model's {len(parameters)} parameters"
        )
    has_shape = state_entries(trainer.hparams)
    for number, entry in state.items():
        shape = list(parameters[number].shape)
        expected = {name: shape if has_shape[name] else [] for name in has_shape}
        found = {name: list(tensor.shape) for name, tensor in entry.items()}
        if found != expected:
            raise UserError(
                f"{path}: optimizer: the state of parameter {number} has shapes {found}, expected "
                f"{expected}"
            )


# ---------------------------------------------------------------------------- save


def save(
    directory: Path,
    trainer: Trainer,
    sampler: LengthBatchSampler,
    loop: LoopState,
    **more: Any,
) -> Path:
    """Write a checkpoint with the current state of the run.

    If the checkpoint has the lowest validation loss so far, also link it as best.pt.

    Args:
        more: additional entries of the checkpoint, such as `corpus`, `text_rules` and `logs`.
    """
    state = {
        "version": __version__,
        "iteration": loop.iteration,
        "state_dict": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "optimizer_class": type(trainer.optimizer).__name__,
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "scaler": trainer.scaler.state_dict() or None,
        "hparams": asdict(trainer.hparams),
        "loop": asdict(loop),
        # Do not save the sampler's state between two epochs, because the sampler still has the plan
        # of the old epoch.
        "sampler": sampler.state_at(loop.batches_trained) if loop.batches_trained else None,
        **more,
    }
    path = write_checkpoint(directory, state, trainer.hparams.keep_checkpoints)
    mark_if_best(Checkpoint(path, state))
    return path


def write_checkpoint(directory: Path, state: dict[str, Any], keep: int) -> Path:
    """Write `checkpoint_<iteration>.pt`, then remove all but the `keep` newest checkpoints.

    If there is no `best.pt`, at least two checkpoints are kept. A second checkpoint is needed
    because the next loss may show that the weights in the newest checkpoint have diverged.

    Raises:
        UserError: if the file cannot be written. If writing fails, no checkpoint is removed.
    """
    path = directory / f"checkpoint_{state['iteration']}.pt"
    try:
        write_atomically(path, lambda temporary: torch.save(state, temporary))
    except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as a RuntimeError
        raise UserError(
            f"{path}: cannot write the checkpoint ({first_line(error)}). Free some space or make "
            "the folder writable. Earlier checkpoints have not changed"
        ) from None
    # Ignore checkpoints with a larger number than the new checkpoint, because they belong to a
    # different run.
    own = [old for number, old in list_checkpoints(directory) if number <= state["iteration"]]
    least = 1 if (directory / BEST).exists() else 2
    for old in own[: -max(keep, least)]:
        # Ignore errors, because a path with the name of a checkpoint may be a folder, which
        # `unlink` cannot remove.
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def link_as(name: str, path: Path, directory: Path) -> None:
    """Create the file `name` in `directory` as a hard link to the checkpoint at `path`.

    The file is created atomically. It keeps the checkpoint available after the file at `path` is
    removed. If the file system does not support hard links, the file is a copy of the checkpoint.
    """

    def link(temporary: Path) -> None:
        try:
            # Create a hard link, which takes no disk space.
            os.link(path.resolve(), temporary)
        except OSError:  # the file system may not support hard links
            shutil.copyfile(path, temporary)

    write_atomically(directory / name, link)


def mark_if_best(source: Checkpoint) -> None:
    """Link the checkpoint as `best.pt` if it is the best checkpoint.

    A resumed run also calls this function, because the earlier process may have been killed between
    writing the checkpoint and linking it as `best.pt`.
    """
    if source.state["loop"]["best_iteration"] == source.state["iteration"]:
        link_as(BEST, source.path, source.path.parent)


def put_in_place(source: Checkpoint, directory: Path) -> Checkpoint:
    """Create `checkpoint_<iteration>.pt` in `directory` as a hard link to a checkpoint.

    If a different checkpoint already has this name, rename the existing checkpoint first.
    """
    path = directory / f"checkpoint_{source.state['iteration']}.pt"
    if path.exists() and not filecmp.cmp(path, source.path, shallow=False):
        print(f"renamed a different checkpoint of the same optimizer step to {_set_aside(path)}")
    if not path.exists():
        link_as(path.name, source.path, directory)
    return source._replace(path=path)


def _set_aside(path: Path) -> Path:
    return path.rename(unused_name(path.with_name(path.name + ".superseded")))


def last_good(directory: Path, diverged: int, best: int) -> Path | None:
    """After training has diverged, return the newest checkpoint with good weights, or None.

    The weights diverged at optimizer step `diverged`. The checkpoint of this optimizer step is
    renamed, unless it is the best checkpoint or the only checkpoint.
    """
    good = {-1: directory / BEST} if (directory / BEST).exists() else {}
    good |= dict(list_checkpoints(directory))
    bad = None
    if diverged != best:
        bad = good.pop(diverged, None)
    if bad and good:
        print(f"renamed the checkpoint with diverged weights to {_set_aside(bad)}")
    return good[max(good)] if good else None


def set_aside_newer(directory: Path, iteration: int) -> list[tuple[Path, bool]]:
    """Rename all checkpoints newer than `iteration`. Also rename `best.pt` if it is damaged.

    Without the new names, the next --resume would use one of the newer checkpoints, because it uses
    the newest checkpoint. No file is deleted.

    Returns:
        A list of tuples (new path of a checkpoint, whether the checkpoint is damaged).

    Raises:
        UserError: if `best.pt` cannot be read. In this case, no checkpoint is renamed.
    """
    found = list_checkpoints(directory)[::-1]
    newer = [(path, False) for number, path in found if number > iteration]
    best = directory / BEST
    if best.exists():
        try:
            is_newer = load_checkpoint(best)["iteration"] > iteration
            newer += [(best, False)] if is_newer else []
        except DamagedCheckpoint:
            newer.append((best, True))
    return [(_set_aside(path), is_damaged) for path, is_damaged in newer]


# ---------------------------------------------------------------------------- load and restore


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Return (iteration, path) of each checkpoint, oldest first; [] if there is no folder.

    Raises:
        OSError: if the folder cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [re.fullmatch(r"checkpoint_(\d+)\.pt", name) for name in names]
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def load_newest(directory: Path) -> Checkpoint:
    """Return the newest undamaged checkpoint of a run. Print a warning for each damaged checkpoint.

    `best.pt` is used only if all other checkpoints are damaged.

    Raises:
        UserError: if a checkpoint cannot be read or is not valid, or if the run has no undamaged
            checkpoint. If loading fails, --resume does not start a new run, because a new run would
            overwrite the files in the folder.
    """
    best = [directory / BEST] if (directory / BEST).exists() else []
    damaged = []
    for path in [*(path for _, path in reversed(list_checkpoints(directory))), *best]:
        try:
            source = Checkpoint.read(path)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            print(f"warning: skipped a checkpoint: {message}")
        return source
    raise UserError(
        "\n  ".join([f"{directory} contains a run but no usable checkpoint", *damaged])
        + "\nNo file was changed. Restore a good checkpoint, or start again with a different -o"
    )


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint into CPU memory, and check the types of its entries.

    Raises:
        DamagedCheckpoint: if the content of the file is damaged.
        UserError: if the file cannot be read or is not a valid checkpoint.
    """
    return read_checkpoint(path, KINDS | NEEDED)


def complete(source: Checkpoint) -> Checkpoint:
    """Return the checkpoint, or raise UserError if it lacks an entry that resuming needs."""
    missing = sorted(NEEDED.keys() - source.state.keys())
    if not missing:
        return source
    problem = ", ".join(f"{part} is missing" for part in missing)
    if not is_of_this_recipe(source.state):
        problem = "contains weights from a different project, not the state of a run"
    raise UserError(
        f"{source.path}: {problem}. A run cannot resume from this file. Start a new run from its "
        "weights with -c, --warm_start and a different -o"
    )


def restore(
    source: Checkpoint, trainer: Trainer, sampler: LengthBatchSampler, *, new_clips: bool = False
) -> LoopState:
    """Load a checkpoint into a new trainer and sampler, and return the state of the training loop.

    Args:
        new_clips: whether the clips differ from the checkpoint's clips. If True, the current epoch
            starts again from its first batch.

    Raises:
        UserError: if the model or the optimizer differs from the checkpoint, or if the checkpoint
            is from the middle of an epoch whose batches would now be different.
    """
    path, saved = source
    load_weights(trainer.model, saved, path, trainer.hparams)
    # Compare the names of the optimizers, because different optimizers, such as Adam and RAdam, can
    # have states of the same shape. Checkpoints from version 0.4.0 do not contain the name.
    before = saved.get("optimizer_class", "Adam")
    if before != type(trainer.optimizer).__name__:
        raise UserError(
            f"{path}: optimizer: {before}, expected {type(trainer.optimizer).__name__}. "
            "To start a new run from the weights of this checkpoint, use -c with --warm_start"
        )
    _check_optimizer_state(path, saved["optimizer"], trainer)
    # Keep the settings of the new optimizer, such as weight_decay, and load only the state from the
    # checkpoint.
    trainer.optimizer.load_state_dict(
        trainer.optimizer.state_dict() | {"state": saved["optimizer"]["state"]}
    )
    trainer.optimizer.param_groups[0]["lr"] = saved["learning_rate"]
    if saved["scaler"]:
        trainer.scaler.load_state_dict(saved["scaler"])
    loop = LoopState(**saved["loop"])
    if new_clips:
        return loop.at_start_of(loop.epoch)
    if saved["sampler"] is not None:
        is_same = saved["sampler"]["epoch"] == loop.plan_number(trainer.hparams)
        with contextlib.suppress(BatchingError):
            sampler.load_state_dict(saved["sampler"])
            if is_same:
                return loop
        raise UserError(
            f"{path}: the run was interrupted inside epoch {loop.epoch}, so settings that affect "
            "the batch plan (such as batch_size, seed and the number of processes) cannot change "
            f"yet. Finish this epoch with --resume --hparams epochs={loop.epoch}. Then resume with "
            f"the new settings and epochs={trainer.hparams.epochs}"
        )
    return loop
