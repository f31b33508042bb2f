"""The updates of an epoch, their losses and the epoch's sums.

Losses are read some steps late, so that the device never waits for them.
"""

import contextlib
import functools
import math
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from corpus.cache import ClipTable
from data_utils import Batch
from hparams import HParams
from length_batching import LengthBatchSampler, padding_stats
from tacotron2_voice.speech_statistics import (
    SpeakerStatistics,
    SpeechStatistics,
    last_symbol,
    measure,
    measure_speakers,
)
from tacotron2_voice.utils.console import duration
from tacotron2_voice.utils.errors import UserError
from training import checkpoint
from training.checkpoint import LoopState
from training.distributed import AlreadyReported, Processes
from training.logging import DEFAULT_LOGS, OutputFolder, RunLogger
from training.trainer import (
    LossWeights,
    MicroBatch,
    StepLosses,
    StepValues,
    Trainer,
    hashed_seed,
    learning_rate_at,
)

MAX_CONSECUTIVE_SKIPS = 20  # updates skipped one after another before the run stops


class NoNextBatch(Exception):
    """A process could not read its next batch: this process if there is a cause, else another."""

    def __str__(self) -> str:
        # A loader's process sends its traceback first, then the class's name and the message.
        lines = str(self.__cause__).strip().splitlines() or [""]
        return lines[-1].removeprefix(f"{UserError.__module__}.{UserError.__name__}: ")


@dataclass
class Clips:
    """A run's clips, and how they differ from those of the checkpoint."""

    training: ClipTable
    validation: ClipTable
    fingerprint: str
    change: dict[str, int] | None = None  # clips added, gone and changed; None if the same


@dataclass
class Run:
    """Everything that the training loop works with."""

    output: OutputFolder
    clips: Clips
    sampler: LengthBatchSampler
    loader: DataLoader[Any]  # of training batches
    validation_loader: DataLoader[Any] | None  # None without a validation list
    trainer: Trainer
    state: LoopState = field(default_factory=LoopState)
    logger: RunLogger | None = None  # in the first process only; opened last
    pending: list["PendingStep"] = field(default_factory=list)
    must_stop: bool = False  # some process was asked to stop, and all know it
    recent_loss: float | None = None  # mean of the steps last read; None before the first
    recent_sharpness: float | None = None  # of the alignment, at the last validation

    @property
    def hparams(self) -> HParams:
        return self.trainer.hparams

    @property
    def processes(self) -> Processes:
        return self.trainer.processes

    @functools.cached_property
    def statistics(self) -> SpeechStatistics:
        """Statistics of the training clips, for synthesis."""
        clips, symbols = self.clips.training, self.hparams.table.symbols
        last = (last_symbol(symbols[i] for i in ids.tolist()) for ids in clips.symbols())
        return measure(clips.num_frames, clips.num_symbols, last, self.hparams)

    @functools.cached_property
    def speaker_statistics(self) -> list[SpeakerStatistics]:
        """Of each of the model's speakers; none for one voice."""
        clips, names = self.clips.training, self.hparams.speakers
        if not names:
            return []
        number_of = {name: number for number, name in enumerate(names)}
        indices = np.array([number_of[name] for name in clips.speakers])[clips.speaker_numbers]
        known = clips.num_frames, clips.num_symbols, indices, names
        return measure_speakers(*known, self.statistics, self.hparams)

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        options = ["-o", str(self.output.path)]
        options += ["-l", self.output.logs] if self.output.logs != DEFAULT_LOGS else []
        return f"{self.processes.launcher} train.py {shlex.join(options)} --resume"

    def save(self) -> Path | None:
        """Write a checkpoint, in the first process; call it only when nothing is pending."""
        if self.logger is None:
            return None
        self.output.refuse_another()
        of_speakers = [asdict(one) for one in self.speaker_statistics]
        return checkpoint.save(
            self.output.path,
            self.trainer,
            self.sampler,
            self.state,
            corpus=self.clips.fingerprint,
            longest_text=self.statistics.longest_text,
            speech_statistics=asdict(self.statistics),
            **({"speaker_statistics": of_speakers} if of_speakers else {}),
            **self.logger.state(),
        )

    def close(self) -> None:
        """Close the logs and unlock the output folder."""
        if self.logger is not None:
            with contextlib.suppress(OSError):  # a failure to write was reported before
                self.logger.close()
        self.output.close()


def name_of(clips: ClipTable, index: int) -> str:
    """Filelist line and path of a clip."""
    return f"{clips[index].where}: {clips[index].path}"


def clip_names(clips: ClipTable, indices: Iterable[int]) -> str:
    """The names of several clips, a line each."""
    return "\n".join(f"  {name_of(clips, int(index))}" for index in indices)


class Update(NamedTuple):
    """An update that is yet to be trained."""

    numbers: list[int]  # of its batches in the epoch's plan
    end: int  # batches of the plan that are trained after it
    clips: np.ndarray  # [clips] of all its batches
    weights: list[LossWeights]  # of its batches
    frames: int  # real ones


def next_update(sampler: LengthBatchSampler, position: int, frames_per_step: int) -> Update | None:
    """The update that begins at batch `position` of the plan; None at the plan's end."""
    if position >= len(sampler.plan):
        return None
    starts = sampler.update_starts
    end = int(np.append(starts, len(sampler.plan))[np.searchsorted(starts, position) + 1])
    numbers = list(range(position, end))
    batches = [sampler.plan[number] for number in numbers]
    lengths = [sampler.lengths[batch] for batch in batches]
    steps = [np.ceil(x / frames_per_step) for x in lengths]
    sizes = np.array(  # padded steps, real frames, real steps
        [(len(x) * n.max(), x.sum(), n.sum()) for x, n in zip(lengths, steps, strict=True)]
    )
    totals = sizes.sum(axis=0)
    weights = [LossWeights(*map(float, row)) for row in sizes / totals]
    return Update(numbers, end, np.concatenate(batches), weights, int(totals[1]))


def micro_batches_of(update: Update, run: Run, batches: Iterator[Batch]) -> Iterator[MicroBatch]:
    """Yield this process's micro-batches of the update; counts the seconds of waiting for data."""
    state, processes = run.state, run.processes
    for place in range(processes.rank, len(update.numbers), processes.world_size):
        waiting = time.perf_counter()
        batch = next(batches)
        state.data_wait_seconds += time.perf_counter() - waiting
        seed = hashed_seed(run.hparams.seed, state.epoch, update.numbers[place])
        yield MicroBatch(batch, update.weights[place], seed)


def next_batches(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Yield the loader's batches; NoNextBatch, with the cause, if reading fails."""
    try:
        yield from loader
    except Exception as error:
        raise NoNextBatch from error


class PendingStep(NamedTuple):
    """A step whose losses have not been read yet."""

    number: int
    losses: StepLosses
    update: Update
    before: int  # batches of the epoch trained before it


def read_pending(run: Run, but: int = 0) -> None:
    """Read the losses of the steps since the last call, waiting for the device to finish them. The
    newest `but` steps are left for the next call, so that the device stays busy.

    Raises:
        UserError: on a loss that is not finite or far above the lowest so far, or too many skipped
            updates in a row. No checkpoint contains such steps, because everything is read before
            one is written.
        NoNextBatch: if a process found no next batch. The run then stands before that update.
    """
    count = len(run.pending) - but
    if count <= 0:
        return
    world_size = run.processes.world_size
    steps, run.pending = run.pending[:count], run.pending[count:]
    if steps[-1].losses.copied is not None:
        steps[-1].losses.copied.synchronize()
    rows = torch.stack([step.losses.values for step in steps]).tolist()
    values = [StepValues.of(row) for row in rows]
    for step, step_values in zip(steps, values, strict=True):
        if step_values.failures:  # neither this update nor those after it were applied
            run.state.iteration, run.state.batches_trained = step.number - 1, step.before
            run.pending = []
            raise NoNextBatch from run.trainer.failure
        _add(run, step, step_values)
        padded = [weight.padded_frames for weight in step.update.weights]
        max_frames = max(sum(padded[rank::world_size]) for rank in range(world_size))
        run.state.imbalance_sum += world_size * max_frames  # largest process over the mean
        if step.losses.waited is not None:
            run.state.process_wait_seconds += step.losses.waited()
        if world_size > 1:
            run.must_stop = run.must_stop or step_values.stop_requests > 0
    run.recent_loss = float(np.mean([step_values.terms.loss for step_values in values]))


def _add(run: Run, step: PendingStep, values: StepValues) -> None:
    """Add what a step did to the epoch's sums, and log it."""
    state, loss = run.state, values.terms.loss
    if state.diverges(loss):
        lowest = f" (the lowest was {state.lowest_loss:.4g})" if state.lowest_loss < loss else ""
        raise _diverged(run, step, f"the loss became {loss:.4g}{lowest} in step {step.number}")
    state.lowest_loss = min(state.lowest_loss, loss)
    state.skips_running = state.skips_running + 1 if values.skipped else 0
    if state.skips_running >= MAX_CONSECUTIVE_SKIPS:
        count = f"gradients were not finite in {MAX_CONSECUTIVE_SKIPS} steps in a row"
        raise _diverged(run, step, f"{count}, the last in step {step.number}")
    state.skipped_updates += int(values.skipped)
    state.updates += int(not values.skipped)
    state.gradient_norm_sum += 0.0 if values.skipped else values.gradient_norm
    state.add_losses(values.terms, clips=len(step.update.clips), frames=step.update.frames)
    if run.logger is not None and step.number % run.hparams.log_interval == 0:
        rate = learning_rate_at(step.number - 1, run.hparams)
        curves = {"gradient_norm": values.gradient_norm, "learning_rate": rate}
        terms = values.terms._asdict().items()
        curves |= {name: value for name, value in terms if not math.isnan(value)}
        run.logger.log_steps(step.number, curves)


def _diverged(run: Run, step: PendingStep, problem: str) -> UserError:
    if run.logger is None:
        return AlreadyReported("the first process says what diverged")
    good = checkpoint.last_good(run.output.path, step.number - 1, run.state.best_iteration)
    where, other = f"The last good checkpoint is {good}", ""
    if run.hparams.precision != "fp32":
        other = ", or precision=fp32"
    if good is None:
        where = "No good checkpoint is left: start again with another -o, do not resume"
    elif (run.output.path / checkpoint.BEST).exists():
        best = "the checkpoint with the lowest validation loss"
        other += f". To go back to {best}, write --resume-from best in place of --resume"
    return UserError(
        f"training diverged: {problem}, on these clips:\n"
        f"{clip_names(run.clips.training, step.update.clips)}\n"
        f"{where}. Listen to the clips; else add to the command\n"
        f"  --hparams learning_rate={run.hparams.learning_rate / 10:g}\n"
        f"or a lower grad_clip_thresh{other}"
    )


def log_epoch(run: Run) -> None:
    """Log and print what the epoch did and cost."""
    sampler = run.sampler
    stats = padding_stats(sampler.lengths, sampler.plan, run.hparams.n_frames_per_step)
    state, seconds = run.state, max(run.state.seconds, 1e-9)
    waited = run.processes.gather(state.process_wait_seconds)
    record = {
        "epoch": state.epoch,
        "iteration": state.iteration,
        **state.mean_losses(),
        "gradient_norm": state.gradient_norm_sum / max(state.updates, 1),
        "skipped_updates": state.skipped_updates,
        "learning_rate": run.trainer.optimizer.param_groups[0]["lr"],
        "minutes": state.seconds / 60,
        "prepare_seconds": state.prepare_seconds,
        **asdict(stats),
        "frames_per_second": state.frames / seconds,
        "padded_frames_per_second": stats.padded_frames / seconds,
        "clips_per_second": state.clips / seconds,
        "data_wait_seconds": state.data_wait_seconds,
        "processes": run.processes.world_size,
        "step_imbalance": state.imbalance_sum / max(state.updates + state.skipped_updates, 1),
        "process_wait_seconds": sum(waited) / len(waited),
        "peak_memory_bytes": state.peak_memory_bytes,
    }
    if run.logger is not None:
        run.logger.log_epoch(record)
    for_others = ""
    if len(waited) > 1:
        for_others = f", {record['process_wait_seconds'] / seconds:.1%} for other processes"
    print(
        f"epoch {state.epoch}: loss {record['train_loss']:.4f}, "
        f"unpadded {record['train_loss_unpadded']:.4f}, {record['num_batches']} batches in "
        f"{duration(state.seconds)}, {record['frames_per_second']:,.0f} frames/s, "
        f"{state.data_wait_seconds / seconds:.1%} waiting for data{for_others}",
        flush=True,
    )
