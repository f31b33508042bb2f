"""An epoch's sums: losses read late, so that the device never waits for them, and their record."""

import math
from typing import NamedTuple

import numpy as np
import torch

from batching import PaddingStats
from errors import UserError
from progress import duration
from training.run import Run, clip_names
from training.trainer import StepLosses, learning_rate_at
from training.updates import Update


class NoNextBatch(Exception):
    """A process could not read its next batch: this one if there is a cause, else another."""


MOST_SKIPS_RUNNING = 20  # updates skipped one after another before the run stops


class PendingStep(NamedTuple):
    """A step whose losses are not read yet."""

    number: int
    losses: StepLosses
    update: Update
    before: int  # batches of the epoch trained before it


def count_step(run: Run, update: Update, losses: StepLosses) -> None:
    """Count a step that was just made; its losses wait for `read_pending`."""
    state = run.state
    state.iteration += 1
    run.pending.append(PendingStep(state.iteration, losses, update, state.batches_trained))
    state.batches_trained = update.end


def read_pending(run: Run, but: int = 0) -> None:
    """Read the losses of the steps since the last call, which waits for the device to end them.

    The newest `but` steps are left for the next call: while the device works at these, the wait
    for those before them leaves it nothing to wait for itself.

    Raises:
        UserError: on a loss that is not finite, or too many skipped updates in a row. Every
            checkpoint is from before that, for all is read before one is written.
        NoNextBatch: if a process found no next batch. The run then stands before that update.
    """
    count = len(run.pending) - but
    if count <= 0:
        return
    steps, run.pending = run.pending[:count], run.pending[count:]
    if steps[-1].losses.copied is not None:
        steps[-1].losses.copied.synchronize()
    rows = torch.stack([step.losses.values for step in steps]).tolist()
    for step, row in zip(steps, rows, strict=True):
        *losses, asked, failed = row
        if failed:  # it was not made, nor what followed it
            run.state.iteration, run.state.batches_trained = step.number - 1, step.before
            run.pending = []
            raise NoNextBatch from run.trainer.failure
        _add(run, step, *losses)
        run.state.imbalance_sum += step.update.imbalance(run.processes.world_size)
        if step.losses.waited is not None:
            run.state.process_wait_seconds += step.losses.waited()
        if run.processes.world_size > 1:
            run.must_stop = run.must_stop or asked > 0
    run.recent_loss = float(np.mean([row[0] for row in rows]))


def _add(
    run: Run,
    step: PendingStep,
    loss: float,
    unpadded: float,
    norm: float,
    skipped: float,
    guided_attention: float,
) -> None:
    state, clips = run.state, run.training_clips
    if not math.isfinite(loss):
        raise UserError(
            f"the loss became {loss} in step {step.number}, on these clips:\n"
            f"{clip_names(clips, step.update.clips)}\n"
            "Listen to them; else lower learning_rate or use precision=fp32. The weights were not "
            "updated with it, and the last checkpoint is good"
        )
    state.skips_running = state.skips_running + 1 if skipped else 0
    if state.skips_running >= MOST_SKIPS_RUNNING:
        raise UserError(
            f"gradients were not finite in {MOST_SKIPS_RUNNING} steps in a row, the last in step "
            f"{step.number} on these clips:\n{clip_names(clips, step.update.clips)}\n"
            "Lower learning_rate or use another precision. The last checkpoint is good"
        )
    if skipped:
        state.skipped_updates += 1
    else:
        state.gradient_norm_sum += norm
        state.updates += 1
    num_clips, num_frames = len(step.update.clips), step.update.frames
    state.clips += num_clips
    state.frames += num_frames
    state.loss_sum += loss * num_clips
    state.loss_unpadded_sum += unpadded * num_frames
    is_guided = not math.isnan(guided_attention)
    if is_guided:
        state.guided_attention_sum += guided_attention * num_frames
        state.guided_attention_frames += num_frames
    if step.number % run.hparams.log_interval == 0:
        rate = learning_rate_at(step.number - 1, run.hparams)
        shown = {"loss": loss, "loss_unpadded": unpadded, "gradient_norm": norm}
        if is_guided:
            shown["guided_attention"] = guided_attention
        run.logger.log_steps(step.number, shown | {"learning_rate": rate})


def log_epoch(run: Run, stats: PaddingStats) -> None:
    """Log and print what the epoch did and cost; `stats` are those of its batches."""
    state, seconds = run.state, max(run.state.seconds, 1e-9)
    waited = run.processes.gather(state.process_wait_seconds)
    record = {
        "epoch": state.epoch,
        "iteration": state.iteration,
        "train_loss": state.loss_sum / state.clips,
        "train_loss_unpadded": state.loss_unpadded_sum / state.frames,
        "gradient_norm": state.gradient_norm_sum / max(state.updates, 1),
        "skipped_updates": state.skipped_updates,
        "learning_rate": run.trainer.optimizer.param_groups[0]["lr"],
        "minutes": state.seconds / 60,
        "prepare_seconds": state.prepare_seconds,
        "num_batches": stats.num_batches,
        "zero_padding_rate": stats.zero_padding_rate,
        "average_batch_length": stats.average_batch_length,
        "padded_to_original_rate": stats.padded_to_original_rate,
        "padded_fraction": stats.padded_fraction,
        "decoder_steps": int(stats.decoder_steps),
        "largest_batch_size": stats.largest_batch_size,
        "largest_batch_frames": int(stats.largest_batch_frames),
        "frames_per_second": state.frames / seconds,
        "padded_frames_per_second": stats.padded_frames / seconds,
        "clips_per_second": state.clips / seconds,
        "data_wait_seconds": state.data_wait_seconds,
        "processes": run.processes.world_size,
        "step_imbalance": state.imbalance_sum / max(state.updates + state.skipped_updates, 1),
        "process_wait_seconds": sum(waited) / len(waited),
        "peak_memory_bytes": state.peak_memory_bytes,
    }
    if state.guided_attention_frames:
        guided = state.guided_attention_sum / state.guided_attention_frames
        record["train_guided_attention"] = guided
    run.logger.log_epoch(record)
    print(
        f"epoch {state.epoch}: loss {record['train_loss']:.4f}, "
        f"unpadded {record['train_loss_unpadded']:.4f}, {record['num_batches']} batches in "
        f"{duration(state.seconds)}, {record['frames_per_second']:,.0f} frames/s, "
        f"{state.data_wait_seconds / seconds:.1%} waiting for data"
        + (
            f", {record['process_wait_seconds'] / seconds:.1%} for other processes"
            if len(waited) > 1
            else ""
        ),
        flush=True,
    )
