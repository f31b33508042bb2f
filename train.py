"""Train Tacotron 2 under any batching strategy.

    python train.py -o runs/ljspeech                                   # start
    python train.py -o runs/ljspeech --resume                          # go on after a stop
    python train.py -o runs/small --hparams batch_size=32,batching_strategy=bucket
    python train.py -o runs/other -c tacotron2.pt --warm_start         # start from its weights
    tensorboard --logdir runs                                          # watch

Ctrl-C saves a checkpoint and stops. All settings: hparams.py.
"""

import environment

import argparse
import contextlib
import math
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

import fast_decoder
from audio import griffin_lim, mel_filters
from batching import LengthBatchSampler, PaddingStats, padding_stats, plan_epoch
from data_utils import (
    Batch,
    Clip,
    corpus_fingerprint,
    make_loader,
    read_filelist,
    write_lengths,
)
from files import lock, remove_leftovers
from hparams import HParams, batching_options, create_hparams, describe, hparams_from_dict
from model import Losses, Tacotron2, Tacotron2Loss, teacher_forced
from progress import duration, progress_bar
from training import checkpoint
from training.checkpoint import CheckpointError
from training.logger import METRICS_FILE, RunLogger
from training.measuring import describe_environment
from training.rehearsal import DoesNotFit, rehearse

DEFAULT_LOGS = "logs"  # inside the output folder
VALIDATION_SEED = 0  # batches and prenet masks of every run's validation
MOST_SKIPS_RUNNING = 20  # updates skipped one after another before the run stops
DECODERS = {"reference": teacher_forced, "fast": fast_decoder.teacher_forced}
AUTOCAST_DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class RunStopped(Exception):
    """Something the user must mend; the message says what and how."""


@dataclass
class LoopState:
    """Where the loop stands; saved in every checkpoint. Sums are over the current epoch."""

    iteration: int = 0  # training steps of the whole run
    epoch: int = 1  # the current epoch, from 1
    batches_trained: int = 0
    clips: int = 0
    frames: int = 0  # real ones
    loss_sum: float = 0.0  # over clips
    loss_unpadded_sum: float = 0.0  # over real frames
    gradient_norm_sum: float = 0.0  # over steps that updated
    updates: int = 0
    seconds: float = 0.0  # planning, waiting for data and training
    prepare_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    peak_memory_bytes: int = 0  # of the device, in training
    skips_running: int = 0  # updates skipped since the last one made
    best_validation_loss: float = math.inf  # unpadded
    best_iteration: int = -1

    def next_epoch(self) -> "LoopState":
        """The state before the first batch of the next epoch."""
        kept = ("iteration", "skips_running", "best_validation_loss", "best_iteration")
        return LoopState(epoch=self.epoch + 1, **{name: getattr(self, name) for name in kept})


class PendingStep(NamedTuple):
    """A step whose losses the device may still be working out."""

    number: int
    values: torch.Tensor  # loss, unpadded loss, gradient norm, 1 if the update was skipped; CPU
    copied: torch.cuda.Event | None  # when `values` may be read; None is at once
    clip_indices: torch.Tensor
    mel_lengths: torch.Tensor


@dataclass
class Run:
    """Everything that the loop works with."""

    hparams: HParams
    output_directory: Path
    device: torch.device
    training_clips: list[Clip]
    validation_clips: list[Clip]
    corpus: str  # fingerprint
    sampler: LengthBatchSampler
    loader: DataLoader
    model: Tacotron2
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    logger: RunLogger | None = None  # opened last: until then nothing is written
    state: LoopState = field(default_factory=LoopState)
    pending: list[PendingStep] = field(default_factory=list)
    recent_loss: float = math.nan  # mean of the steps last read
    lock: object = None  # held while this process may write to the output folder

    def autocast(self):
        dtype = AUTOCAST_DTYPES[self.hparams.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)


# ---------------------------------------------------------------------------- one training step


def compute_gradients(run: Run, batch: Batch) -> Losses:
    with run.autocast():
        outputs = run.model(batch)
    losses = Tacotron2Loss()(outputs, batch)
    trained = losses.total if run.hparams.loss == "padded" else losses.total_unpadded
    run.scaler.scale(trained).backward()
    return losses


def training_step(run: Run, batch: Batch) -> None:
    """One update. Nothing here waits for the device: losses are read by `read_pending`."""
    run.optimizer.param_groups[0]["lr"] = learning_rate_at(run.state.iteration, run.hparams)
    run.optimizer.zero_grad(set_to_none=True)
    losses = compute_gradients(run, batch.to(run.device))
    run.scaler.unscale_(run.optimizer)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    gradient_norm = torch.nn.utils.get_total_norm(gradients)
    skip = ~(torch.isfinite(gradient_norm) & torch.isfinite(losses.total.detach()))
    # Fused Adam reads both on the device. It divides gradients by the first, which clips their
    # norm without a pass of its own, and changes nothing where the second is 1.
    run.optimizer.grad_scale = (gradient_norm / run.hparams.grad_clip_thresh).clamp(min=1)
    run.optimizer.found_inf = skip.float()
    run.optimizer.step()
    run.scaler.update()
    values = (losses.total, losses.total_unpadded, gradient_norm, skip)
    values = torch.stack([value.detach().float() for value in values])
    values, copied = values.to("cpu", non_blocking=True), None  # from a GPU to pinned memory
    if run.device.type == "cuda":
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(run.device))
    run.state.iteration += 1
    run.state.batches_trained += 1
    step = PendingStep(run.state.iteration, values, copied, batch.clip_indices, batch.mel_lengths)
    run.pending.append(step)


def learning_rate_at(iteration: int, hparams: HParams) -> float:
    """The rate of the step that follows `iteration` finished ones."""
    rate = hparams.learning_rate
    if hparams.learning_rate_schedule == "exponential":
        halvings = max(0, iteration - hparams.learning_rate_decay_start)
        halvings /= hparams.learning_rate_half_life
        rate = max(rate * 0.5**halvings, min(rate, hparams.learning_rate_final))
    if iteration < hparams.learning_rate_warmup_steps:
        rate *= (iteration + 1) / hparams.learning_rate_warmup_steps
    return rate


def read_pending(run: Run, but: int = 0) -> None:
    """Read the losses of the steps since the last call, which waits for the device to end them.

    The newest `but` steps are left for the next call: while the device works at these, the wait
    for those before them leaves it nothing to wait for itself.

    Raises:
        RunStopped: on a loss that is not finite, or too many skipped updates in a row. Every
            checkpoint is from before that, for all is read before one is written.
    """
    count = len(run.pending) - but
    if count <= 0:
        return
    state, hparams = run.state, run.hparams
    steps, run.pending = run.pending[:count], run.pending[count:]
    if steps[-1].copied is not None:
        steps[-1].copied.synchronize()
    rows = torch.stack([step.values for step in steps]).tolist()
    for step, (loss, unpadded, norm, skipped) in zip(steps, rows, strict=True):
        if not math.isfinite(loss):
            raise RunStopped(
                f"the loss became {loss} in step {step.number}, on these clips:\n"
                + clip_names(run.training_clips, step.clip_indices)
                + "\nListen to them; else lower learning_rate or use precision=fp32. The weights "
                "were not updated with it; the last checkpoint is good: go on with --resume"
            )
        state.skips_running = state.skips_running + 1 if skipped else 0
        if state.skips_running >= MOST_SKIPS_RUNNING:
            raise RunStopped(
                f"gradients were not finite in {MOST_SKIPS_RUNNING} steps in a row, the last "
                f"in step {step.number} on these clips:\n"
                + clip_names(run.training_clips, step.clip_indices)
                + "\nLower learning_rate or use another precision. The last checkpoint is good: "
                "go on with --resume"
            )
        if not skipped:
            state.gradient_norm_sum += norm
            state.updates += 1
        num_clips, num_frames = len(step.mel_lengths), int(step.mel_lengths.sum())
        state.clips += num_clips
        state.frames += num_frames
        state.loss_sum += loss * num_clips
        state.loss_unpadded_sum += unpadded * num_frames
        if step.number % hparams.log_interval == 0:
            rate = learning_rate_at(step.number - 1, hparams)
            shown = {"loss": loss, "loss_unpadded": unpadded, "gradient_norm": norm}
            run.logger.log_steps(step.number, shown | {"learning_rate": rate})
    run.recent_loss = float(np.mean([row[0] for row in rows]))


def clip_names(clips: list[Clip], indices: torch.Tensor) -> str:
    return "\n".join(f"  {clips[i].where}: {clips[i].path}" for i in indices.tolist())


# ---------------------------------------------------------------------------- validation


@torch.no_grad()
def validate(run: Run, loader: DataLoader, stop: "StopRequest") -> tuple[dict, dict] | None:
    """Losses over the validation set, and one clip of it to look at and listen to.

    Random batches and prenet masks come from a constant seed, so all runs compare. The padded
    loss weights batches by clips, the unpadded one by real frames. None if asked to stop.
    """
    model, generator = run.model, torch.Generator().manual_seed(VALIDATION_SEED)
    sums, batches, example = [], [], None
    model.eval()
    progress = progress_bar("validation", len(loader), " batches")
    try:
        for batch in next_batches(run, loader):
            if stop.signal:
                return None
            num_steps = batch.mel.shape[2] // model.n_frames_per_step
            masks = model.decoder.draw_masks(num_steps, len(batch.text), generator)
            moved = batch.to(run.device)
            with run.autocast():
                outputs = model(moved, masks)
            losses = Tacotron2Loss()(outputs, moved)
            steps = -(-batch.mel_lengths // model.n_frames_per_step)
            real = torch.arange(num_steps, device=run.device) < steps.to(run.device)[:, None]
            sharpest = outputs.alignments.amax(dim=2).float() * real
            sums.append(torch.stack([losses.total, losses.total_unpadded, sharpest.sum()]))
            batches.append(batch)
            if example is None:
                example = example_of(batch, outputs, run.hparams)
            progress.update()
    finally:
        model.train()
        progress.close()
    rows = torch.stack(sums).double().cpu().numpy()
    for row, batch in zip(rows, batches, strict=True):
        if not np.isfinite(row).all():
            names = clip_names(run.validation_clips, batch.clip_indices)
            raise RunStopped(f"the validation loss became {row[0]} on these clips:\n{names}")
    clips = np.array([len(batch.mel_lengths) for batch in batches])
    frames = np.array([int(batch.mel_lengths.sum()) for batch in batches])
    steps = sum(int((-(-b.mel_lengths // model.n_frames_per_step)).sum()) for b in batches)
    record = {
        "epoch": run.state.epoch,
        "iteration": run.state.iteration,
        "validation_loss": float(rows[:, 0] @ clips / clips.sum()),
        "validation_loss_unpadded": float(rows[:, 1] @ frames / frames.sum()),
        "alignment_sharpness": float(rows[:, 2].sum() / steps),
    }
    return record, example


def example_of(batch: Batch, outputs, hparams: HParams) -> dict:
    """The first clip of a batch, as `RunLogger.log_validation` takes it."""
    frames, symbols = int(batch.mel_lengths[0]), int(batch.text_lengths[0])
    steps = -(-frames // hparams.n_frames_per_step)
    predicted = outputs.mel_postnet[0, :, :frames].float().cpu()
    return {
        "alignment": outputs.alignments[0, :steps, :symbols].float().cpu().numpy(),
        "target_mel": batch.mel[0, :, :frames].numpy(),
        "predicted_mel": predicted.numpy(),
        "gate": torch.sigmoid(outputs.gate[0, :steps].float()).cpu().numpy(),
        "gate_target": batch.gate[0, :steps].numpy(),
        "audio": griffin_lim(predicted, hparams, iterations=30),
        "sampling_rate": hparams.sampling_rate,
    }


# ---------------------------------------------------------------------------- the loop


def train(run: Run, validation_loader: DataLoader, stop: "StopRequest") -> None:
    """Epoch after epoch: plan, train, validate, save, log."""
    hparams, state = run.hparams, run.state
    run.model.train()
    while state.epoch <= hparams.epochs:
        clock = time.perf_counter()
        # Keeps the position of an epoch resumed half-way.
        run.sampler.set_epoch(plan_number(state.epoch, hparams))
        state.prepare_seconds += time.perf_counter() - clock
        if state.batches_trained == 0:
            torch.manual_seed(epoch_seed(hparams.seed, state.epoch))
        stats = padding_stats(run.sampler.lengths, run.sampler.plan)
        train_epoch(run, stats, stop, clock)
        validated = None
        if state.epoch % hparams.epochs_per_validation == 0:
            validated = validate(run, validation_loader, stop)
            if validated is None:
                save(run)
                stop.leave(run)
        finish_epoch(run, stats)
        if validated is not None:
            record, example = validated
            run.logger.log_validation(record, example)
            print(
                f"  validation loss {record['validation_loss']:.4f}, "
                f"unpadded {record['validation_loss_unpadded']:.4f}, "
                f"alignment sharpness {record['alignment_sharpness']:.3f}"
            )
            if record["validation_loss_unpadded"] < state.best_validation_loss:
                state.best_validation_loss = record["validation_loss_unpadded"]
                state.best_iteration = state.iteration
        state = run.state = state.next_epoch()
        if validated is not None or stop.signal or state.epoch > hparams.epochs:
            save(run)
            stop.leave(run)


def plan_number(epoch: int, hparams: HParams) -> int:
    """The sampler's epoch, from 0. Reusing the first repeats its batches and their order."""
    return epoch - 1 if hparams.prepare_trainset_per_epoch else 0


def train_epoch(run: Run, stats: PaddingStats, stop: "StopRequest", clock: float) -> None:
    """The batches of this epoch that are left. `clock` is when its planning began.

    The clock stands still while checkpoints are written, so `state.seconds` is training alone.
    """
    hparams, state, sampler = run.hparams, run.state, run.sampler
    steps_of = [float(sampler.lengths[batch].max()) for batch in sampler.batches]
    total_steps, done_steps = sum(steps_of), sum(steps_of[: state.batches_trained])
    progress = progress_bar(
        f"epoch {state.epoch}",
        len(sampler.batches),
        " batches",
        line="{desc}: {n_fmt} of {total_fmt}{unit}{postfix}",
        initial=state.batches_trained,
    )
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    try:
        batches = next_batches(run, run.loader)
        while True:
            waiting = time.perf_counter()
            batch = next(batches, None)
            state.data_wait_seconds += time.perf_counter() - waiting
            if batch is None:
                break
            training_step(run, batch)
            done_steps += steps_of[state.batches_trained - 1]
            if (state.iteration - 1) % hparams.log_interval == 0:
                read_pending(run, but=1)
            spent = state.seconds + time.perf_counter() - clock
            left = spent / done_steps * (total_steps - done_steps)
            whole = left + spent / done_steps * total_steps * (hparams.epochs - state.epoch)
            progress.set_postfix_str(
                f"loss {run.recent_loss:.4f}, epoch {duration(left)} left, "
                f"run {duration(whole)} left",
                refresh=False,
            )
            if state.iteration % hparams.iters_per_checkpoint == 0 or stop.signal:
                read_pending(run)
                state.seconds += time.perf_counter() - clock
                save(run)
                stop.leave(run)
                clock = time.perf_counter()
            progress.update()
        read_pending(run)
        state.seconds += time.perf_counter() - clock
        state.peak_memory_bytes = max(state.peak_memory_bytes, peak_memory(run.device))
    finally:
        progress.close()


def next_batches(run: Run, loader: DataLoader) -> Iterator[Batch]:
    """The loader's batches; a clip that cannot be read any more stops the run with a checkpoint."""
    try:
        yield from loader
    except (ValueError, OSError, RuntimeError) as error:
        read_pending(run)
        path = save(run)
        lines = str(error).strip().splitlines()  # a loader's process sends its traceback first
        raise RunStopped(
            f"reading the next batch failed: {lines[-1] if lines else type(error).__name__}\n"
            f"Everything until here is in {path}: mend it and go on with --resume"
        ) from error.with_traceback(None)  # whose frames would keep the loader's processes alive


def finish_epoch(run: Run, stats: PaddingStats) -> None:
    """Log what the epoch did and cost."""
    state, seconds = run.state, max(run.state.seconds, 1e-9)
    padded_frames = state.clips * stats.average_batch_length
    record = {
        "epoch": state.epoch,
        "iteration": state.iteration,
        "train_loss": state.loss_sum / state.clips,
        "train_loss_unpadded": state.loss_unpadded_sum / state.frames,
        "gradient_norm": state.gradient_norm_sum / max(state.updates, 1),
        "skipped_updates": stats.num_batches - state.updates,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
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
        "padded_frames_per_second": padded_frames / seconds,
        "clips_per_second": state.clips / seconds,
        "data_wait_seconds": state.data_wait_seconds,
        "peak_memory_bytes": state.peak_memory_bytes,
    }
    run.logger.log_epoch(record)
    print(
        f"epoch {state.epoch}: loss {record['train_loss']:.4f}, "
        f"unpadded {record['train_loss_unpadded']:.4f}, {record['num_batches']} batches in "
        f"{duration(state.seconds)}, {record['frames_per_second']:,.0f} frames/s, "
        f"{state.data_wait_seconds / seconds:.1%} waiting for data",
        flush=True,
    )


def save(run: Run) -> Path:
    """Write a checkpoint of this moment; nothing may be pending."""
    state = run.state
    saved = {
        "iteration": state.iteration,
        "state_dict": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "learning_rate": run.optimizer.param_groups[0]["lr"],
        "scaler": run.scaler.state_dict(),
        "hparams": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(run.hparams).items()
        },
        "loop": asdict(state),
        # Between epochs the sampler still holds the plan of the last one: the next begins at 0.
        "sampler": run.sampler.state_dict(state.batches_trained) if state.batches_trained else None,
        "corpus": run.corpus,
        "rng": {"cpu": torch.get_rng_state()},
        "logs": run.logger.state(),
    }
    if run.device.type == "cuda":
        saved["rng"]["cuda"] = torch.cuda.get_rng_state(run.device)
    path = checkpoint.save_checkpoint(run.output_directory, saved, run.hparams.keep_checkpoints)
    if state.best_iteration == state.iteration:
        checkpoint.mark_best(run.output_directory, path)
    return path


def restore(run: Run, saved: dict, path: Path) -> None:
    """Put a checkpoint's state into a freshly built run."""
    if saved["corpus"] != run.corpus:
        raise RunStopped(
            f"{path} was trained on other clips, texts or lengths in frames than training_files "
            "and validation_files now name: give the same filelists and audio settings, or use "
            "--warm_start to begin a new run from its weights"
        )
    checkpoint.load_weights(run.model, saved, path)
    run.optimizer.load_state_dict(saved["optimizer"])
    run.optimizer.param_groups[0]["weight_decay"] = run.hparams.weight_decay
    if saved["scaler"]:  # empty but for fp16
        run.scaler.load_state_dict(saved["scaler"])
    run.state = LoopState(**saved["loop"])
    if saved["sampler"] is not None:
        if saved["sampler"]["epoch"] != plan_number(run.state.epoch, run.hparams):
            raise RunStopped(
                f"{path}: prepare_trainset_per_epoch cannot change inside epoch {run.state.epoch}, "
                "which was left half-way: set it as it was, until the epoch ends"
            )
        try:
            run.sampler.load_state_dict(saved["sampler"])
        except ValueError as error:
            raise RunStopped(f"{path}: {error}") from None
    torch.set_rng_state(saved["rng"]["cpu"])
    if run.device.type == "cuda" and "cuda" in saved["rng"]:
        torch.cuda.set_rng_state(saved["rng"]["cuda"], run.device)


class StopRequest:
    """Remembers SIGINT or SIGTERM until the loop can save; a SIGINT after it stops hard."""

    def __init__(self):
        self.signal = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame) -> None:
        if self.signal is None:
            self.signal = number
            message = f"\n{signal.Signals(number).name}: saving after this step ...\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # print may be what the signal interrupted
        elif number == signal.SIGINT:  # SIGTERM may well come twice, from make for one
            raise KeyboardInterrupt

    def leave(self, run: Run) -> None:
        """End the process if a signal came; the caller has saved."""
        if self.signal is not None:
            try:
                print(f"stopped and saved; go on with: {resume_command(run)}", flush=True)
            except BrokenPipeError:  # `| tee` ended by the same Ctrl-C
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + self.signal)


def resume_command(run: Run) -> str:
    """What to type to go on; the log folder is named where it is not the default."""
    logs = os.path.relpath(run.logger.log_directory, run.output_directory)
    named = "" if logs == DEFAULT_LOGS else f" -l {shlex.quote(logs)}"
    return f"python train.py -o {shlex.quote(str(run.output_directory))}{named} --resume"


# ---------------------------------------------------------------------------- before the loop


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-o", "--output_directory", type=Path, required=True, help="checkpoints and metrics.jsonl")
    add(
        "-l",
        "--log_directory",
        default=DEFAULT_LOGS,
        help="TensorBoard events, inside the output folder",
    )
    add("-c", "--checkpoint_path", type=Path, help="go on from this checkpoint")
    add("--warm_start", action="store_true", help="take only weights from -c, not ignore_layers")
    add("--resume", action="store_true", help="go on from the newest good checkpoint in -o, if any")
    add("--hparams", default="", metavar="name=value,...", help="override hyper-parameters")
    add("--n_gpus", type=int, default=1, help="only 1: this version trains on one GPU")
    add("--rank", type=int, default=0, help="only 0")
    add("--group_name", default="", help="taken for compatibility, not used")
    args = parser.parse_args(arguments)
    if args.n_gpus != 1 or args.rank != 0:
        parser.error(
            f"--n_gpus {args.n_gpus} --rank {args.rank}: this version trains in one process on one "
            "GPU; leave both out"
        )
    if args.warm_start and args.checkpoint_path is None:
        parser.error("--warm_start takes weights from a checkpoint: name it with -c")
    if args.resume and args.checkpoint_path is not None and not args.warm_start:
        parser.error("--resume finds the checkpoint itself: leave out -c, or leave out --resume")
    output = args.output_directory.resolve()
    if not (output / args.log_directory).resolve().is_relative_to(output):
        parser.error(
            f"--log_directory {args.log_directory}: must lie inside the output folder, for a run "
            "that goes on cuts the logs there back to its checkpoint"
        )
    return args


def find_checkpoint(args: argparse.Namespace) -> tuple[Path, dict] | None:
    """The checkpoint to go on from: --resume's newest, or -c's. None to start from step 0.

    Raises:
        RunStopped: if the output folder holds a run and nothing says to go on with it.
    """
    directory = args.output_directory
    metrics = directory / METRICS_FILE
    held = (
        checkpoint.list_checkpoints(directory)
        or (directory / checkpoint.BEST).exists()
        or (metrics.exists() and metrics.stat().st_size > 0)  # empty if killed while setting up
    )
    if args.resume:
        found = checkpoint.load_newest(directory, lambda message: print(f"warning: {message}"))
        if found is None and held:
            print(f"{directory}: no good checkpoint yet, starting from the first step")
    else:
        goes_on = args.checkpoint_path is not None and not args.warm_start
        if held and not (goes_on and lies_in(args.checkpoint_path, directory)):
            raise RunStopped(
                f"{directory} holds a run: add --resume to go on with it, or choose another -o"
            )
        found = None
        if goes_on:
            found = args.checkpoint_path, checkpoint.load_checkpoint(args.checkpoint_path)
    if found is not None and "loop" not in found[1]:
        raise RunStopped(
            f"{found[0]} holds weights of another recipe, not the state of a run: begin from them "
            "with -c and --warm_start, and an output folder of its own"
        )
    return found


def lies_in(path: Path, directory: Path) -> bool:
    return path.resolve().parent == directory.resolve()


def resolve_hparams(overrides: str, saved: dict | None) -> HParams:
    """Defaults, or the checkpoint's settings, with the overrides of this command."""
    if saved is None:
        return create_hparams(overrides)
    base = hparams_from_dict(saved["hparams"])
    hparams = create_hparams(overrides, base)
    for name, value in asdict(base).items():
        if getattr(hparams, name) != value:
            print(f"changed since the checkpoint: {name} = {getattr(hparams, name)}, was {value}")
    return hparams


def read_clips(hparams: HParams) -> list[list[Clip]]:
    """The training and the validation clips; ValueError names all that is wrong with either."""
    lists, problems = [], []
    for filelist in (hparams.training_files, hparams.validation_files):

        def shown(lines: list, filelist: str = filelist) -> Iterable:
            return progress_bar(f"checking {filelist}", len(lines), " lines", iterable=lines)

        try:
            lists.append(read_filelist(filelist, hparams, shown))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return lists


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of an epoch's dropout: a hash of the pair, so that no two runs share an epoch."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(epoch,))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def batching_costs(sampler: LengthBatchSampler, hparams: HParams) -> str:
    """The first epoch's padding, and its cost against random batches of the same corpus."""
    ours = padding_stats(sampler.lengths, sampler.plan)
    random_plan = plan_epoch(sampler.lengths, hparams.batch_size, "random", seed=hparams.seed)
    rand = padding_stats(sampler.lengths, random_plan)
    name = hparams.batching_strategy
    name += ", dynamic sizes" if hparams.dynamic_batch_size else ""
    name += ", batches shuffled" if hparams.batch_randomization else ""
    clips = len(sampler.lengths)
    steps, frames = ours.decoder_steps, ours.average_batch_length * clips
    rand_steps, rand_frames = rand.decoder_steps, rand.average_batch_length * clips
    return (
        f"batching: {name}: {ours.num_batches} batches of up to {ours.largest_batch_size} clips\n"
        f"  zero-padding rate {ours.zero_padding_rate:.2%}, average batch length "
        f"{ours.average_batch_length:.1f} frames (random batches of {hparams.batch_size}: "
        f"{rand.zero_padding_rate:.2%}, {rand.average_batch_length:.1f})\n"
        f"  decoder steps an epoch {steps:,.0f}, {100 * (1 - steps / rand_steps):.1f} % fewer than "
        f"random batches' {rand_steps:,.0f}\n"
        f"  padded frames an epoch {frames:,.0f}, {100 * (1 - frames / rand_frames):.1f} % fewer "
        f"than random batches' {rand_frames:,.0f}"
    )


def peak_memory(device: torch.device) -> int:
    """Most bytes in use: of the GPU since the epoch began, else of this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_record(run: Run, started_from: Path | None) -> dict:
    """What the `run` line of metrics.jsonl says: settings, corpus, machine, versions, commit."""
    return {
        "iteration": run.state.iteration,
        "epoch": run.state.epoch,
        "started_from": str(started_from) if started_from else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hparams": asdict(run.hparams),
        "corpus": {
            "fingerprint": run.corpus,
            "training_clips": len(run.training_clips),
            "validation_clips": len(run.validation_clips),
            "training_frames": sum(clip.num_frames for clip in run.training_clips),
        },
        "decoder": describe_decoder(run.hparams, run.device),
        **describe_environment(run.device),
    }


def describe_decoder(hparams: HParams, device: torch.device) -> str:
    """Which decoder trains, and how it runs on this device."""
    if hparams.decoder == "reference":
        return "reference, step by step"
    return f"fast ({fast_decoder.describe(device)})"


def set_up(
    args: argparse.Namespace, hparams: HParams, found: tuple[Path, dict] | None
) -> tuple[Run, DataLoader]:
    """Check everything, then build the run. Nothing is written: see `open_output`."""
    print(describe(hparams))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        print("no CUDA GPU found: training on the CPU, which is slow for a full-size model")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums in every run
    torch.backends.cudnn.deterministic = True
    # torch's defaults would round convolutions and the encoder's LSTM, but no other product.
    torch.backends.cuda.matmul.allow_tf32 = hparams.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = hparams.precision == "tf32"
    print(f"decoder: {describe_decoder(hparams, device)}")
    pin_memory = device.type == "cuda"

    training_clips, validation_clips = read_clips(hparams)
    shared = {clip.path for clip in training_clips} & {clip.path for clip in validation_clips}
    if shared:
        print(f"warning: {len(shared)} validation clips are trained on too, {min(shared)} for one")
    if not hparams.load_mel_from_disk:
        mel_filters(hparams)  # imports librosa here: forked workers need not, nor the first epoch
    lengths = [clip.num_frames for clip in training_clips]
    sampler = LengthBatchSampler(lengths, **batching_options(hparams))
    validation_plan = plan_epoch(
        [clip.num_frames for clip in validation_clips],
        hparams.validation_batch_size,
        "random",
        seed=VALIDATION_SEED,
    )
    torch.manual_seed(hparams.seed)
    model = Tacotron2(hparams, DECODERS[hparams.decoder])
    if args.warm_start and found is None:
        weights = checkpoint.load_checkpoint(args.checkpoint_path)
        checkpoint.load_weights(model, weights, args.checkpoint_path, hparams.ignore_layers)
        left = ", ".join(hparams.ignore_layers) or "none"
        print(f"weights from {args.checkpoint_path}; ignore_layers keep theirs: {left}")
    model.to(device)
    run = Run(
        hparams=hparams,
        output_directory=args.output_directory,
        device=device,
        training_clips=training_clips,
        validation_clips=validation_clips,
        corpus=corpus_fingerprint(training_clips, validation_clips),
        sampler=sampler,
        loader=make_loader(
            training_clips,
            hparams,
            pin_memory,
            sampler,
            persistent_workers=hparams.num_workers > 0,
        ),
        model=model,
        optimizer=torch.optim.Adam(
            model.parameters(),
            lr=hparams.learning_rate,
            weight_decay=hparams.weight_decay,
            fused=True,
        ),
        scaler=torch.amp.GradScaler(device.type, enabled=hparams.precision == "fp16"),
    )
    if found is not None:
        path, saved = found
        restore(run, saved, path)
        print(f"going on from {path}: epoch {run.state.epoch}, step {run.state.iteration}")
    print(
        f"{len(training_clips):,} training clips, {len(validation_clips):,} for validation, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters"
    )
    print(batching_costs(sampler, hparams))
    if device.type == "cuda":
        rehearse_costliest(run)
    validation_batches = [batch.tolist() for batch in validation_plan]
    return run, make_loader(validation_clips, hparams, pin_memory, validation_batches)


def open_output(run: Run, args: argparse.Namespace, found: tuple[Path, dict] | None) -> None:
    """Take the output folder and bring it to the state of the checkpoint, if there is one."""
    directory, state = run.output_directory, run.state
    directory.mkdir(parents=True, exist_ok=True)
    run.lock = lock(directory)
    remove_leftovers(directory)
    # Before the logs are cut: killed in between, the next --resume must cut them too.
    for moved in checkpoint.set_aside_newer(directory, state.iteration if found else -1):
        print(f"set aside a later or damaged checkpoint: {moved}")
    log_state = {}
    if found is not None and lies_in(found[0], directory):
        log_state = found[1]["logs"]
        mark_if_best(directory, *found)
    if not (directory / checkpoint.BEST).exists() and state.best_iteration != state.iteration:
        state.best_validation_loss = math.inf  # of a checkpoint that is not here (any more)
    run.logger = RunLogger(directory, directory / args.log_directory, log_state)
    write_lengths(directory / "lengths.csv", run.training_clips)
    if found is None or not args.resume:
        save(run)  # so that --resume needs neither -c nor --hparams, and a full disk shows now
    started_from = found[0] if found else args.checkpoint_path
    run.logger.log_run(run_record(run, started_from))


def mark_if_best(directory: Path, path: Path, saved: dict) -> None:
    """A run may be killed between writing its best checkpoint and marking it."""
    if saved["loop"]["best_iteration"] == saved["iteration"]:
        checkpoint.mark_best(directory, path)


def rehearse_costliest(run: Run) -> None:
    peak = rehearse(
        run.model,
        lambda batch: compute_gradients(run, batch),
        [clip.num_frames for clip in run.training_clips],
        [len(clip.symbols) for clip in run.training_clips],
        run.hparams,
        run.device,
        optimizer_started=bool(run.optimizer.state),
    )
    print(f"the costliest batches that any epoch can hold fit: {peak / 1e9:.2f} GB of GPU memory")


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    directory = args.output_directory
    try:
        found = find_checkpoint(args)
        hparams = resolve_hparams(args.hparams, found[1] if found else None)
        if found is not None and found[1]["loop"]["epoch"] > hparams.epochs:
            if lies_in(found[0], directory):
                mark_if_best(directory, *found)
            print(f"finished already: {hparams.epochs} epochs; raise epochs to train on")
            return
        run, validation_loader = set_up(args, hparams, found)
        open_output(run, args, found)
    except (RunStopped, CheckpointError, DoesNotFit, ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        print("train.py: interrupted before training began", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    again = f"go on with: {resume_command(run)}"
    try:
        print(f"checkpoints and {METRICS_FILE}: {directory}")
        print(f"watch: tensorboard --logdir {shlex.quote(str(directory))}", flush=True)
        train(run, validation_loader, StopRequest())
    except (RunStopped, CheckpointError) as error:
        sys.exit(f"train.py: {error}")
    except OSError as error:
        sys.exit(
            f"train.py: writing to {directory} failed ({error}): make room or make the folder "
            f"writable; checkpoints are untouched, {again}"
        )
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        sys.exit(
            f"train.py: a process that reads clips died, often of too little memory: {error}\n"
            f"Fewer num_workers need less; {again}"
        )
    except KeyboardInterrupt:
        print(f"train.py: stopped without saving; {again}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        with contextlib.suppress(OSError):  # checkpoints flush the logs; what fails was told
            run.logger.close()
        run.lock.close()
    print(f"finished: {hparams.epochs} epochs, {run.state.iteration} steps")
    best = directory / checkpoint.BEST
    newest = best if best.exists() else checkpoint.list_checkpoints(directory)[-1][1]
    print(f"speak: python synthesize.py --checkpoint {shlex.quote(str(newest))} --text ...")


if __name__ == "__main__":
    main()
