"""Checkpoints: everything a run needs to resume as if it had never stopped.

A checkpoint is one file with the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`) and the rest of the run's state. It is written atomically and read without running
code from it. Every part is checked before anything is used: an optimizer state of other shapes,
for one, makes fused Adam write outside its memory.
"""

import contextlib
import filecmp
import math
import os
import re
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch

from export.checkpoint_file import (
    MAX_COUNT,
    CountFrom1,
    DamagedCheckpoint,
    brief,
    checkpoint_error,
    first_line,
    is_of_this_recipe,
    load_weights,
    problems_of,
    read_checkpoint,
    tensor_problem,
)
from hparams import HParams
from length_batching import BatchingError, LengthBatchSampler
from tacotron2_voice.settings import limits
from tacotron2_voice.speech_statistics import EXACTLY, SpeakerStatistics, SpeechStatistics
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import unused_name, write_atomically
from tacotron2_voice.version import __version__
from training.trainer import LossTerms, Trainer

BEST = "best.pt"
DIVERGED = 100  # times the lowest loss of a step so far


class Checkpoint(NamedTuple):
    """A checkpoint and where it lies."""

    path: Path
    state: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        return cls(path, load_checkpoint(path))


# ---------------------------------------------------------------------------- what it holds


Count = Annotated[int, limits(strict=True, ge=0, le=MAX_COUNT)]
Amount = Annotated[float, limits(strict=True, ge=0, allow_inf_nan=False)]
Text = Annotated[str, limits(strict=True, max_length=1000)]


@dataclass
class LoopState:
    """Where the training loop stands. Sums are over the current epoch."""

    __pydantic_config__ = EXACTLY
    iteration: Count = 0  # updates of the whole run
    epoch: CountFrom1 = 1  # the current epoch
    batches_trained: Count = 0  # position in the epoch's plan, by all processes
    clips: Count = 0
    frames: Count = 0  # real ones
    loss_sum: Amount = 0.0  # over clips
    loss_unpadded_sum: Amount = 0.0  # over real frames
    guided_attention_sum: Amount = 0.0  # over real frames, as long as the loss has a weight
    guided_attention_frames: Count = 0  # those frames
    gradient_norm_sum: Amount = 0.0  # over updates that were made
    updates: Count = 0
    skipped_updates: Count = 0
    seconds: Amount = 0.0  # planning, waiting for data and training
    prepare_seconds: Amount = 0.0
    data_wait_seconds: Amount = 0.0
    process_wait_seconds: Amount = 0.0  # of this process, for gradients of others
    imbalance_sum: Amount = 0.0  # over updates: the largest share of a process over the mean
    peak_memory_bytes: Count = 0  # of the device, in training
    skips_running: Count = 0  # updates skipped since the last one made
    best_validation_loss: Annotated[float, limits(strict=True, ge=0)] = math.inf  # unpadded
    best_iteration: Annotated[int, limits(strict=True, ge=-1, le=MAX_COUNT)] = -1
    lowest_loss: Annotated[float, limits(strict=True, ge=0)] = math.inf  # padded, of a step
    alignment_warned: Count = 0  # 1 after the warning that the alignment has not formed
    text_warned: Count = 0  # 1 after the warning that attention ignores the text

    def at_start_of(self, epoch: int) -> "LoopState":
        """The state before the first batch of an epoch, this one or the next."""
        kept = ["iteration", "skips_running", "alignment_warned", "text_warned", "lowest_loss"]
        kept += ["best_validation_loss", "best_iteration"]
        return LoopState(epoch=epoch, **{name: getattr(self, name) for name in kept})

    def add_losses(self, terms: LossTerms, clips: int, frames: int) -> None:
        """Add the losses of an update with `clips` clips and `frames` real frames. The padded loss
        is a mean over clips, every other term over the real frames of updates that have it."""
        self.clips += clips
        self.frames += frames
        self.loss_sum += terms.loss * clips
        self.loss_unpadded_sum += terms.loss_unpadded * frames
        if not math.isnan(terms.guided_attention):
            self.guided_attention_sum += terms.guided_attention * frames
            self.guided_attention_frames += frames

    def mean_losses(self) -> dict[str, float]:
        """The epoch's means so far, by their names in metrics.jsonl."""
        means = {
            "train_loss": self.loss_sum / self.clips,
            "train_loss_unpadded": self.loss_unpadded_sum / self.frames,
        }
        if self.guided_attention_frames:
            guided_attention = self.guided_attention_sum / self.guided_attention_frames
            means["train_guided_attention"] = guided_attention
        return means

    def diverges(self, loss: float) -> bool:
        """Whether a loss is far above the lowest so far; below 1 none is."""
        return not math.isfinite(loss) or loss > max(1, DIVERGED * self.lowest_loss)

    def plan_number(self, hparams: HParams) -> int:
        """The sampler's epoch, from 0; the same for ever after `random_epochs`, if so asked for."""
        last = math.inf if hparams.prepare_trainset_per_epoch else hparams.random_epochs
        return int(min(self.epoch - 1, last))


@dataclass
class SamplerState:
    """What `LengthBatchSampler.state_dict` gives."""

    __pydantic_config__ = EXACTLY
    epoch: Count
    batches_trained: Count
    num_batches: Count
    plan_checksum: Count


@dataclass
class ScalerState:
    """What `torch.amp.GradScaler.state_dict` gives."""

    __pydantic_config__ = EXACTLY
    scale: Annotated[float, limits(strict=True, gt=0, allow_inf_nan=False)]
    growth_factor: Annotated[float, limits(strict=True, gt=1, allow_inf_nan=False)]
    backoff_factor: Annotated[float, limits(strict=True, gt=0, lt=1)]
    growth_interval: CountFrom1
    _growth_tracker: Count


@dataclass
class PlainParts:
    """The parts of a run's checkpoint that are neither tensors nor settings."""

    version: Text  # of this recipe
    iteration: Count
    learning_rate: Amount
    scaler: ScalerState | None  # None but for fp16
    loop: LoopState
    sampler: SamplerState | None  # None between epochs
    corpus: Text  # fingerprint of the clips
    longest_text: CountFrom1  # of the training clips, in symbols
    speech_statistics: SpeechStatistics  # of the training clips; missing in those of 0.3.0
    speaker_statistics: list[SpeakerStatistics]  # of its speakers; missing in those of one voice
    logs: dict[str, Count]  # bytes of each log file, by its path from the output folder
    metrics_checksum: Count  # CRC-32 of metrics.jsonl


# Fields of LoopState that checkpoints of older versions lack: a run resumes with their defaults.
ADDED_TO_LOOP: set[str] = {"text_warned"}
MADE_ANEW = {"speech_statistics", "speaker_statistics"}  # parts that a run can resume without
PARTS = {"state_dict", "optimizer", "hparams", *(field.name for field in fields(PlainParts))}


# ---------------------------------------------------------------------------- checks


def problems_of_run(state: dict[str, Any]) -> list[str]:
    """What is wrong with the parts that are there, a line each that begins with the part's name.
    The optimizer is checked against a model, by `restore`."""
    if not is_of_this_recipe(state):
        return problems_of(state)
    unknown = [f"{part!s}: unknown to version {__version__}" for part in state if part not in PARTS]
    kinds = get_type_hints(PlainParts, include_extras=True)
    return [*unknown, *problems_of(state, kinds)] or _missing_sums(state) or _contradictions(state)


def _missing_sums(state: dict[str, Any]) -> list[str]:
    """Fields of the loop have defaults, for those that were added; none of the others may be
    missing in a checkpoint."""
    needed = {field.name for field in fields(LoopState)} - ADDED_TO_LOOP
    missing = sorted(needed - state["loop"].keys()) if "loop" in state else []
    return [f"loop: {name}: missing" for name in missing]


def _contradictions(state: dict[str, Any]) -> list[str]:
    """Between parts that are each well formed."""
    if not state.keys() >= {"iteration", "loop", "sampler"}:
        return []  # of a run that cannot resume from it
    loop, sampler = state["loop"], state["sampler"] or {"batches_trained": 0, "num_batches": 0}
    if loop["iteration"] != state["iteration"]:
        return [f"loop: iteration {loop['iteration']}, but iteration {state['iteration']}"]
    trained, known = sampler["batches_trained"], sampler["num_batches"]
    if loop["batches_trained"] == trained <= known:
        return []
    return [f"sampler: {trained} of {known} batches trained, loop has {loop['batches_trained']}"]


def _optimizer_problems(saved: Any, optimizer: torch.optim.Adam) -> list[str]:
    """How a saved state differs from what Adam needs for its parameters."""
    parameters = optimizer.param_groups[0]["params"]
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(state, dict) or (state and state.keys() != set(range(len(parameters)))):
        return [f"optimizer: expected a state of the model's {len(parameters)} parameters"]
    problems = []
    for number, entry in state.items():
        if not isinstance(entry, dict) or entry.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            problems.append(f"optimizer: parameter {number}: expected step, exp_avg, exp_avg_sq")
            continue
        for name, tensor in entry.items():
            shape = [] if name == "step" else list(parameters[number].shape)
            if not (problem := tensor_problem(tensor)):
                if (list(tensor.shape), tensor.dtype) != (shape, torch.float32):
                    problem = f"{brief(tensor)}, expected torch.float32 of shape {shape}"
                elif not tensor.is_contiguous():
                    problem = "not contiguous in memory"
                elif name != "exp_avg" and bool((tensor < 0).any()):
                    problem = "negative values"
            if problem:
                problems.append(f"optimizer: {name} of parameter {number}: {problem}")
    return problems


# ---------------------------------------------------------------------------- save


def save(
    directory: Path,
    trainer: Trainer,
    sampler: LengthBatchSampler,
    loop: LoopState,
    **more: Any,
) -> Path:
    """Write a checkpoint of this moment, and mark it if it is the best so far. `more` are the other
    parts of PlainParts: corpus, longest_text, speech_statistics, logs, metrics_checksum and, of
    several speakers, speaker_statistics."""
    state = {
        "version": __version__,
        "iteration": loop.iteration,
        "state_dict": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "scaler": trainer.scaler.state_dict() or None,
        "hparams": asdict(trainer.hparams),
        "loop": asdict(loop),
        # Between epochs the sampler still holds the plan of the last one: the next begins at 0.
        "sampler": sampler.state_at(loop.batches_trained) if loop.batches_trained else None,
        **more,
    }
    path = write_checkpoint(directory, state, trainer.hparams.keep_checkpoints)
    mark_if_best(Checkpoint(path, state))
    return path


def write_checkpoint(directory: Path, state: dict[str, Any], keep: int) -> Path:
    """Write `checkpoint_<iteration>.pt`, then remove all but the `keep` newest, or two as long as
    none is the best: the next step's loss may show that the newest has diverged. UserError if it
    cannot be written: earlier checkpoints are then all still there."""
    path = directory / f"checkpoint_{state['iteration']}.pt"
    try:
        write_atomically(path, lambda temporary: torch.save(state, temporary))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise UserError(
            f"{path} could not be written ({first_line(error)}): make room or make the folder "
            "writable; earlier checkpoints are untouched"
        ) from None
    # Not those of later steps, which others have put there: they may be no checkpoints.
    own = [old for number, old in list_checkpoints(directory) if number <= state["iteration"]]
    least = 1 if (directory / BEST).exists() else 2
    for old in own[: -max(keep, least)]:
        with contextlib.suppress(OSError):  # a folder of such a name
            old.unlink()
    return path


def link_as(name: str, path: Path, directory: Path) -> None:
    """Let that name be this checkpoint too, in one step; it stays when the other is removed."""

    def link(temporary: Path) -> None:
        try:
            os.link(path.resolve(), temporary)  # no second copy on the disk, and no link to a link
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)

    write_atomically(directory / name, link)


def mark_if_best(source: Checkpoint) -> None:
    """A run may be killed between writing its best checkpoint and marking it."""
    if source.state["loop"]["best_iteration"] == source.state["iteration"]:
        link_as(BEST, source.path, source.path.parent)


def put_in_place(source: Checkpoint, directory: Path) -> Checkpoint:
    """A checkpoint of any name, as the one of its number; another that has it is set aside."""
    path = directory / f"checkpoint_{source.state['iteration']}.pt"
    if path.exists() and not filecmp.cmp(path, source.path, shallow=False):
        print(f"set aside another checkpoint of the same step: {_set_aside(path)}")
    if not path.exists():
        link_as(path.name, source.path, directory)
    return source._replace(path=path)


def _set_aside(path: Path) -> Path:
    return path.rename(unused_name(path.with_name(path.name + ".superseded")))


def last_good(directory: Path, diverged: int, best: int) -> Path | None:
    """The newest checkpoint before the weights of step `diverged`, which gave too high a loss; one
    of these is set aside, unless they were validated as the best or no other is left."""
    good, bad = {-1: directory / BEST} if (directory / BEST).exists() else {}, None
    good |= dict(list_checkpoints(directory))
    if diverged != best:
        bad = good.pop(diverged, None)
    if bad and good:
        print(f"set aside the checkpoint that diverged: {_set_aside(bad)}")
    return good[max(good)] if good else None


def set_aside_newer(directory: Path, iteration: int) -> list[Path]:
    """Rename checkpoints after `iteration`, newest first, and a damaged `best.pt`.

    A run that resumes from an earlier one must not find them at its next --resume, and nothing is
    deleted. Returns the new names. UserError if `best.pt` cannot be read: nothing is then renamed.
    """
    newer = [path for number, path in list_checkpoints(directory)[::-1] if number > iteration]
    best = directory / BEST
    if best.exists():
        try:
            best_iteration = load_checkpoint(best)["iteration"]
        except DamagedCheckpoint:
            best_iteration = math.inf
        newer += [best] if best_iteration > iteration else []
    return [_set_aside(path) for path in newer]


# ---------------------------------------------------------------------------- load and restore


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(iteration, path) of the checkpoints in a folder, oldest first; none where there is none."""
    try:
        names = os.listdir(directory)  # a glob finds nothing where it may not look
    except FileNotFoundError:
        return []
    matches = [re.fullmatch(r"checkpoint_(\d+)\.pt", name) for name in names]
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def load_newest(directory: Path) -> Checkpoint:
    """The newest checkpoint of a run that is not damaged, `best.pt` when all others are; prints a
    warning for each that is.

    Raises:
        UserError: if there is none: a run that began anew in its own folder would overwrite what is
            left of it. Also if one cannot be read or has parts that are refused.
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
            print(f"warning: skipped {message}")
        return source
    raise UserError(
        "\n  ".join([f"{directory} holds a run, but no good checkpoint is left", *damaged])
        + "\nNothing was touched. Put a good checkpoint back, or start again elsewhere: choose "
        f"another -o, and leave {directory} as it is"
    )


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint on the CPU, with every part checked that a run needs to resume. Errors as
    `checkpoint_file.read_checkpoint`."""
    return read_checkpoint(path, problems_of_run)


def complete(source: Checkpoint) -> Checkpoint:
    """The checkpoint; UserError if it lacks a part which a run needs to resume."""
    missing = sorted(PARTS - MADE_ANEW - source.state.keys())
    if not missing:
        return source
    problem = ", ".join(f"{part}: missing" for part in missing)
    if not is_of_this_recipe(source.state):
        problem = "weights of another recipe, not the state of a run"
    raise UserError(
        f"{source.path}: {problem}; a run cannot resume from it: start from its weights with -c "
        "and --warm_start, and an output folder of its own"
    )


def restore(
    source: Checkpoint, trainer: Trainer, sampler: LengthBatchSampler, *, new_clips: bool = False
) -> LoopState:
    """Put a checkpoint's state into a new trainer and sampler. Returns where the run stands. With
    `new_clips` the clips are not those of the checkpoint: its epoch begins anew.

    Raises:
        UserError: if it is of another model, or of other batches inside an epoch.
    """
    path, saved = source
    load_weights(trainer.model, saved, path)
    if problems := _optimizer_problems(saved["optimizer"], trainer.optimizer):
        raise checkpoint_error(path, problems)
    trainer.optimizer.load_state_dict(  # the other settings of Adam are those of this command
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
            f"{path}: what plans batches (their settings, prepare_trainset_per_epoch, seed, more "
            f"processes) cannot change inside epoch {loop.epoch}, which was interrupted: keep it "
            f"until the epoch ends, where --resume --hparams epochs={loop.epoch} stops"
        )
    return loop
