"""Checkpoints: everything a run needs to resume as if it had never stopped.

A checkpoint is one file with the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`) and the rest of the run's state. It is written atomically and read without running
code from it. Every part is checked before anything is used: an optimizer state of other shapes,
for one, makes fused Adam write outside its memory.
"""

import contextlib
import filecmp
import io
import math
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch

from common.errors import UserError
from common.files import naming, open_file, unused_name, write_atomically
from common.machine import is_out_of_memory
from common.version import __version__
from hparams import HAS_PYDANTIC, HParams, hparams_from_dict, limits
from length_batching import BatchingError, LengthBatchSampler
from synthesis.speech_statistics import SpeechStatistics
from training.trainer import Trainer

if HAS_PYDANTIC:
    from pydantic import TypeAdapter, ValidationError

BEST = "best.pt"
LARGEST_CHECKPOINT = 2**32  # bytes; the full-size model's has 0.3 GB
ZIP_BEGINS = b"PK\x03\x04"
MOST_SHOWN = 10  # problems in a message
DIVERGED = 100  # times the lowest loss of a step so far
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)


class DamagedCheckpoint(UserError):
    """A checkpoint whose bytes are not those that were written. One before it may be good."""


class Checkpoint(NamedTuple):
    """A checkpoint and where it lies."""

    path: Path
    state: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        return cls(path, load_checkpoint(path))


# ---------------------------------------------------------------------------- what it holds


MOST = 2**53  # larger counts are not exact as floats
Count = Annotated[int, limits(strict=True, ge=0, le=MOST)]
CountFrom1 = Annotated[int, limits(strict=True, ge=1, le=MOST)]
Amount = Annotated[float, limits(strict=True, ge=0, allow_inf_nan=False)]
Text = Annotated[str, limits(strict=True, max_length=1000)]
EXACTLY = {"extra": "forbid"}  # pydantic then refuses names that a class does not have


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
    imbalance_sum: Amount = 0.0  # over updates, of Update.imbalance
    peak_memory_bytes: Count = 0  # of the device, in training
    skips_running: Count = 0  # updates skipped since the last one made
    best_validation_loss: Annotated[float, limits(strict=True, ge=0)] = math.inf  # unpadded
    best_iteration: Annotated[int, limits(strict=True, ge=-1, le=MOST)] = -1
    lowest_loss: Annotated[float, limits(strict=True, ge=0)] = math.inf  # padded, of a step
    alignment_warned: Count = 0  # 1 once it was said that the alignment has not formed

    def at_start_of(self, epoch: int) -> "LoopState":
        """The state before the first batch of an epoch, this one or the next."""
        kept = ["iteration", "skips_running", "alignment_warned", "lowest_loss"]
        kept += ["best_validation_loss", "best_iteration"]
        return LoopState(epoch=epoch, **{name: getattr(self, name) for name in kept})

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
    logs: dict[str, Count]  # bytes of each log file, by its path from the output folder
    metrics_checksum: Count  # CRC-32 of metrics.jsonl


MADE_ANEW = {"speech_statistics"}  # parts that a run can resume without
PARTS = {"state_dict", "optimizer", "hparams", *(field.name for field in fields(PlainParts))}


# ---------------------------------------------------------------------------- checks


def problems_of(state: dict[str, Any]) -> list[str]:
    """What is wrong with the parts that are there, a line each that begins with the part's name.

    The optimizer is checked against a model, by `restore`. Of a checkpoint of another recipe, which
    has neither settings nor a loop, the weights alone are looked at.
    """
    problems = _weight_problems(state["state_dict"])
    if not _is_ours(state):
        return problems
    problems += [
        f"{part!s}: unknown to version {__version__}" for part in state if part not in PARTS
    ]
    problems += _settings_problems(state.get("hparams"))
    if HAS_PYDANTIC:
        for part, kind in get_type_hints(PlainParts, include_extras=True).items():
            if part in state:
                problems += _plain_problems(part, kind, state[part])
    return problems or _symbol_problems(state) or _contradictions(state)


def _is_ours(state: dict[str, Any]) -> bool:
    return "hparams" in state or "loop" in state


def _weight_problems(weights: Any) -> list[str]:
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        return [f"state_dict: {_brief(weights)}, expected tensors by name"]
    found = {name: _tensor_problem(tensor) for name, tensor in weights.items()}
    return [f"state_dict: {name}: {problem}" for name, problem in found.items() if problem]


def _settings_problems(saved: Any) -> list[str]:
    if not isinstance(saved, dict):
        return ["hparams: missing, or not values by name"]  # never the defaults instead
    if unknown := saved.keys() - {field.name for field in fields(HParams)}:
        return [f"hparams: {', '.join(map(str, unknown))}: unknown to version {__version__}"]
    try:
        hparams_from_dict(saved)
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return ["hparams: " + "; ".join(lines[1:] or lines)]
    return []


def _symbol_problems(state: dict[str, Any]) -> list[str]:
    """Between the table of symbols, where there is one, and the embedding."""
    symbols, table = (state["hparams"].get(x) for x in ("symbols", "symbol_table"))
    embedding = embedding_of(state["state_dict"])
    if not table and symbols in (None, "english"):
        return []
    if not table:
        return [f"hparams: symbols={symbols}, but symbol_table is missing"]
    if embedding is not None and len(embedding) != len(table):
        rows = f"embedding.weight has {len(embedding)} rows"
        return [f"hparams: symbol_table: {len(table)} symbols, but {rows}"]
    return []


def embedding_of(weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    found = weights.get("embedding.weight", weights.get("module.embedding.weight"))
    return found if found is not None and found.dim() == 2 else None


def _plain_problems(part: str, kind: Any, value: Any) -> list[str]:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return [
            f"{': '.join(map(str, (part, *found['loc'])))}: {found['msg']}, "
            f"not {_brief(found['input'])}"
            for found in error.errors(include_url=False, include_context=False)
        ]
    needed = fields(LoopState) if kind is LoopState else ()  # the others have no defaults
    return [f"loop: {field.name}: missing" for field in needed if field.name not in value]


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
            if not (problem := _tensor_problem(tensor)):
                if (list(tensor.shape), tensor.dtype) != (shape, torch.float32):
                    problem = f"{_brief(tensor)}, expected torch.float32 of shape {shape}"
                elif not tensor.is_contiguous():
                    problem = "not contiguous in memory"
                elif name != "exp_avg" and bool((tensor < 0).any()):
                    problem = "negative values"
            if problem:
                problems.append(f"optimizer: {name} of parameter {number}: {problem}")
    return problems


def _tensor_problem(value: Any) -> str | None:
    """Why a value is no tensor of plain numbers, all of them finite."""
    if not isinstance(value, torch.Tensor):
        return f"{_brief(value)}, expected a tensor"
    if value.dtype not in DTYPES:
        return f"{value.dtype}, expected a dtype that weights have"
    if value.layout != torch.strided or value.is_nested or value.device.type != "cpu":
        return "a sparse, nested or empty tensor, expected a plain one"
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():  # by a stride of 0
        return f"{value.numel():,} values, more than the file holds of them"
    # A finite sum has finite terms; adding up takes a fraction of looking at each.
    if not math.isfinite(value.sum()) and not value.isfinite().all():
        return "NaN or infinite values"
    return None


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    if isinstance(value, (float, str, type(None))) or (type(value) is int and abs(value) < MOST):
        return repr(value)[:60]
    return f"a value of type {type(value).__name__}"


def refused(path: str | Path, problems: list[str], what: str = "") -> UserError:
    """One message about what is wrong with a checkpoint, a line if it is one problem."""
    if len(problems) == 1 and not what:
        return UserError(f"{path}: {problems[0]}")
    more = [f"... and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
    what = what or f": {len(problems)} problems"
    return UserError("\n  ".join([f"{path}{what}:", *problems[:MOST_SHOWN], *more]))


# ---------------------------------------------------------------------------- save


def save(
    directory: Path,
    trainer: Trainer,
    sampler: LengthBatchSampler,
    loop: LoopState,
    **more: Any,
) -> Path:
    """Write a checkpoint of this moment, and mark it if it is the best so far. `more` are the other
    parts of PlainParts: corpus, longest_text, speech_statistics, logs, metrics_checksum."""
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
            f"{path} could not be written ({_first_line(error)}): make room or make the folder "
            "writable; earlier checkpoints are untouched"
        ) from None
    # Not those of later steps, which others have put there: they may be no checkpoints.
    own = [old for number, old in list_checkpoints(directory) if number <= state["iteration"]]
    least = 1 if (directory / BEST).exists() else 2
    for old in own[: -max(keep, least)]:
        with contextlib.suppress(OSError):  # a folder of such a name
            old.unlink()
    return path


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]  # torch adds a stack; some errors say nothing


def link_as(name: str, path: Path, directory: Path) -> None:
    """Let that name be this checkpoint too, in one step; it stays when the other is removed."""

    def link(temporary: Path) -> None:
        try:
            os.link(path.resolve(), temporary)  # no second copy on the disk, and no link to a link
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)

    write_atomically(directory / name, link)


def mark_if_best(found: Checkpoint) -> None:
    """A run may be killed between writing its best checkpoint and marking it."""
    if found.state["loop"]["best_iteration"] == found.state["iteration"]:
        link_as(BEST, found.path, found.path.parent)


def put_in_place(found: Checkpoint, directory: Path) -> Checkpoint:
    """A checkpoint of any name, as the one of its number; another that has it is set aside."""
    path = directory / f"checkpoint_{found.state['iteration']}.pt"
    if path.exists() and not filecmp.cmp(path, found.path, shallow=False):
        print(f"set aside another checkpoint of the same step: {_set_aside(path)}")
    if not path.exists():
        link_as(path.name, found.path, directory)
    return found._replace(path=path)


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
            found = Checkpoint.read(path)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            print(f"warning: skipped {message}")
        return found
    raise UserError(
        "\n  ".join([f"{directory} holds a run, but no good checkpoint is left", *damaged])
        + "\nNothing was touched. Put a good checkpoint back, or start again elsewhere: choose "
        f"another -o, and leave {directory} as it is"
    )


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint on the CPU, this recipe's or the reference's. Its bytes are compared with the
    CRC-32 that the zip holds of them, and its parts with what they may be.

    Raises:
        DamagedCheckpoint: if the file is there and can be read, but is not what was written.
        UserError: if it cannot be read (missing, no permission, a failing disk, too little
            memory), is no checkpoint, or a part of it is not what it has to be.
    """
    try:
        with naming(path), open_file(path, "no such checkpoint; name one that is there") as file:
            size, begins_well = os.fstat(file.fileno()).st_size, file.peek()[:1] in (b"P", b"\x80")
            if size > LARGEST_CHECKPOINT or not begins_well:
                raise DamagedCheckpoint("damaged, or no checkpoint, by its first byte or its size")
            state = _load(file.read(size))  # read whole: what fails after that is not the disk
    except (OSError, MemoryError) as error:
        reason = "too little memory" if isinstance(error, MemoryError) else error.strerror
        raise UserError(
            f"{path}: cannot be read ({reason}). That does not mean that it is damaged: nothing "
            "was touched; make it readable and try again"
        ) from None
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: holds no state_dict, so it is not a Tacotron 2 checkpoint")
    if problems := problems_of(state):
        raise refused(path, problems)
    return state


def _load(content: bytes) -> object:
    try:
        if content.startswith(ZIP_BEGINS):  # the reference's oldest files are no zip
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for record in archive.infolist():
                    # Of a folder torch reads nothing; what is compressed may fill the memory.
                    if record.external_attr & 0x10 or record.compress_type:
                        raise zipfile.BadZipFile(f"{record.filename} is a folder or compressed")
                    archive.read(record)  # compares it with its CRC-32
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file
        if is_out_of_memory(error):
            raise MemoryError from None
        reason = f"{type(error).__name__}: {_first_line(error)[:120]}"
        if isinstance(error, pickle.UnpicklingError):  # of which torch says how to run its code
            reason = "it holds more than tensors and plain values"
        raise DamagedCheckpoint(f"damaged, or no checkpoint ({reason})") from None


def complete(found: Checkpoint) -> Checkpoint:
    """The checkpoint; UserError if it lacks a part which a run needs to resume."""
    missing = sorted(PARTS - MADE_ANEW - found.state.keys())
    if not missing:
        return found
    problem = ", ".join(f"{part}: missing" for part in missing)
    if not _is_ours(found.state):
        problem = "weights of another recipe, not the state of a run"
    raise UserError(
        f"{found.path}: {problem}; a run cannot resume from it: start from its weights with -c and "
        "--warm_start, and an output folder of its own"
    )


def restore(
    found: Checkpoint, trainer: Trainer, sampler: LengthBatchSampler, *, new_clips: bool = False
) -> LoopState:
    """Put a checkpoint's state into a new trainer and sampler. Returns where the run stands. With
    `new_clips` the clips are not those of the checkpoint: its epoch begins anew.

    Raises:
        UserError: if it is of another model, or of other batches inside an epoch.
    """
    path, saved = found
    load_weights(trainer.model, saved, path)
    if problems := _optimizer_problems(saved["optimizer"], trainer.optimizer):
        raise refused(path, problems)
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
            "until the epoch ends"
        )
    return loop


def load_weights(
    model: torch.nn.Module,
    state: dict[str, Any],
    path: str | Path,
    ignore_layers: Sequence[str] = (),
) -> None:
    """Copy a checkpoint's weights into `model`, all but the tensors named in `ignore_layers`.

    Raises:
        UserError: listing the tensors that are missing, unknown or of another shape.
    """
    # Of a model that was wrapped for several GPUs, as NVIDIA's recipe saves it.
    weights = {name.removeprefix("module."): x for name, x in state["state_dict"].items()}
    own = model.state_dict()
    for name in ignore_layers:
        if name not in own:
            raise UserError(f"ignore_layers: the model has no tensor {name!r}")
        weights[name] = own[name]
    problems = [f"lacks {name}" for name in own if name not in weights]
    problems += [f"has {name}, which this model lacks" for name in weights if name not in own]
    for name in (name for name in own if name in weights):
        theirs, ours = weights[name], own[name]
        if theirs.shape != ours.shape:
            problems.append(f"{name} is {list(theirs.shape)}, the model's is {list(ours.shape)}")
        elif theirs.is_floating_point() != ours.is_floating_point():
            problems.append(f"{name} is {theirs.dtype}, the model's is {ours.dtype}")
    if problems:
        raise refused(path, problems, " does not fit the model these hyper-parameters make")
    model.load_state_dict(weights)
