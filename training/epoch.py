"""Provide the batches for each optimizer step. Collect and log the losses of an epoch.

The losses of an optimizer step are read a few optimizer steps later, so that the device never
waits for the host.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from batch import Batch
from hparams import parse_row_costs
from length_batching import padding_stats
from tacotron2_voice.utils.console import duration
from tacotron2_voice.utils.errors import UserError
from training import checkpoint
from training.clips import clip_names
from training.distributed import AlreadyReported
from training.optimizer import learning_rate_at
from training.plan import PendingStep, PlannedStep
from training.run import Run
from training.trainer import MicroBatch, StepValues, hashed_seed

# The run stops after this number of consecutive skipped optimizer steps.
MAX_CONSECUTIVE_SKIPS = 20


class NoNextBatch(Exception):
    """Raised if a process could not read its next batch.

    `__cause__` is the original exception, but only in the process that could not read its batch.
    """

    def __str__(self) -> str:
        # A DataLoader worker sends a whole traceback as text. The last line contains the name and
        # the message of the exception.
        lines = str(self.__cause__).strip().splitlines() or [""]
        return lines[-1].removeprefix(f"{UserError.__module__}.{UserError.__name__}: ")


def next_batches(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Yield the batches of the DataLoader.

    Raises:
        NoNextBatch: if a batch cannot be read. `__cause__` is the original exception.
    """
    try:
        yield from loader
    except Exception as error:
        raise NoNextBatch from error


def micro_batches_of(
    planned: PlannedStep, run: Run, batches: Iterator[Batch]
) -> Iterator[MicroBatch]:
    """Yield this process's batches of an optimizer step.

    Also add the time spent waiting for data to the state of the training loop.

    Raises:
        NoNextBatch: if the loader returns a batch that was not planned.
    """
    state = run.state
    processes = run.processes
    for i in range(processes.rank, len(planned.numbers), processes.world_size):
        began = time.perf_counter()
        batch = next(batches)
        state.data_wait_seconds += time.perf_counter() - began
        check_is_planned(batch, planned, i, state.epoch)
        seed = hashed_seed(run.hparams.seed, state.epoch, planned.numbers[i])
        yield MicroBatch(batch, planned.weights[i], seed)


def check_is_planned(batch: Batch, planned: PlannedStep, i: int, epoch: int) -> None:
    """Check that `batch` contains the clips of the planned batch `i`, in the same order.

    The loss weights, the dropout seeds and the sums of the losses are valid only for the planned
    clips.
    """
    expected = planned.batches[i].tolist()
    found = None if batch.clip_indices is None else batch.clip_indices.tolist()
    if found != expected:
        raise NoNextBatch from UserError(
            f"epoch {epoch}, batch {planned.numbers[i]}: the loader returned clips {found}, "
            f"expected {expected} (the sampler's plan)"
        )


# ---------------------------------------------------------------------------- finished steps


def read_pending(run: Run, leave: int = 0) -> None:
    """Wait for the losses of the pending optimizer steps, and read these losses.

    All losses are read before a checkpoint is written, so that no checkpoint contains diverged
    weights.

    Args:
        leave: number of optimizer steps, counted from the newest, whose losses are not read yet,
            so that the device stays busy.

    Raises:
        UserError: if a loss is not finite or far above the lowest loss, or if too many
            consecutive optimizer steps were skipped.
        NoNextBatch: if a process could not read its next batch. Before NoNextBatch is raised, the
            run returns to the state before the optimizer step that needed the missing batch.
    """
    count = len(run.pending) - leave
    if count <= 0:
        return
    world_size = run.processes.world_size
    steps = run.pending[:count]
    run.pending = run.pending[count:]
    if steps[-1].losses.copied is not None:
        steps[-1].losses.copied.synchronize()
    rows = torch.stack([step.losses.values for step in steps]).tolist()
    values = [StepValues.of(row) for row in rows]
    for step, step_values in zip(steps, values, strict=True):
        if step_values.failures:
            # Neither the failed optimizer step nor any later optimizer step was applied. Therefore
            # go back to the state before the failed optimizer step.
            run.state.iteration = step.number - 1
            run.state.batches_trained = step.before
            run.pending = []
            raise NoNextBatch from run.trainer.failure
        _add(run, step, step_values)
        run.state.imbalance_sum += imbalance(step.planned, world_size)
        if step.losses.waited is not None:
            run.state.process_wait_seconds += step.losses.waited()
        if world_size > 1:
            run.must_stop = run.must_stop or step_values.stop_requests > 0
    run.recent_loss = float(np.mean([step_values.terms.loss for step_values in values]))


def imbalance(planned: PlannedStep, world_size: int) -> float:
    """Return the largest number of padded frames of any process, divided by the mean."""
    padded = [weight.padded_frames for weight in planned.weights]
    return world_size * max(sum(padded[rank::world_size]) for rank in range(world_size))


def _add(run: Run, step: PendingStep, values: StepValues) -> None:
    state = run.state
    loss = values.terms.loss
    if state.diverges(loss):
        lowest = f" (the lowest was {state.lowest_loss:.4g})" if state.lowest_loss < loss else ""
        raise _diverged(
            run, step, f"the loss became {loss:.4g}{lowest} in optimizer step {step.number}"
        )
    state.lowest_loss = min(state.lowest_loss, loss)
    state.skips_running = state.skips_running + 1 if values.skipped else 0
    if state.skips_running >= MAX_CONSECUTIVE_SKIPS:
        problem = (
            f"gradients were not finite in {MAX_CONSECUTIVE_SKIPS} consecutive optimizer steps"
        )
        raise _diverged(run, step, f"{problem}, up to step {step.number}")
    if values.skipped:
        state.skipped_updates += 1
    else:
        state.updates += 1
        state.gradient_norm_sum += values.gradient_norm
    state.add_losses(values.terms, clips=len(step.planned.clips), frames=step.planned.frames)
    if run.logger is not None and step.number % run.hparams.log_interval == 0:
        curves = {
            "gradient_norm": values.gradient_norm,
            "learning_rate": learning_rate_at(step.number - 1, run.hparams),
        }
        for name, value in values.terms._asdict().items():
            if not math.isnan(value):
                curves[name] = value
        run.logger.log_step(step.number, curves)


def _diverged(run: Run, step: PendingStep, problem: str) -> UserError:
    if run.logger is None:
        return AlreadyReported("training diverged; see the error of the first process")
    good = checkpoint.last_good(run.folder.path, step.number - 1, run.state.best_iteration)
    if good is None:
        result = "There is no good checkpoint to go back to. Start a new run with a different -o"
    else:
        result = f"The last good checkpoint is {good}"
        if (run.folder.path / checkpoint.BEST).exists():
            result += ". To go back to best.pt, resume with --resume-from best"
    return UserError(
        f"training diverged: {problem}, on these clips:\n"
        f"{clip_names(run.clips.training, step.planned.clips)}\n"
        f"{result}. Listen to the clips. If they sound fine, lower the learning rate:\n"
        f"  --hparams learning_rate={run.hparams.learning_rate / 10:g}\n"
        "You can also lower grad_clip_thresh or set precision=fp32"
    )


# ---------------------------------------------------------------------------- the whole epoch


def log_epoch(run: Run) -> None:
    """Log and print the epoch's losses and speed."""
    sampler = run.sampler
    state = run.state
    row_costs, clip_cost = parse_row_costs(run.hparams.row_costs)
    stats = padding_stats(
        sampler.lengths,
        sampler.plan,
        run.hparams.n_frames_per_step,
        row_costs=row_costs,
        clip_cost=clip_cost,
    )
    seconds = max(state.seconds, 1e-9)
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
        **{name: value for name, value in asdict(stats).items() if value is not None},
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
        f"masked loss {record['train_loss_unpadded']:.4f}, {record['num_batches']} batches in "
        f"{duration(state.seconds)}, {record['frames_per_second']:,.0f} frames/s, "
        f"{state.data_wait_seconds / seconds:.1%} of the time waiting for data{for_others}",
        flush=True,
    )
