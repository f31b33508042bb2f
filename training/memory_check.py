"""Check before training starts that the worst-case batches fit into memory.

    peak_bytes = check_memory(trainer, training_clips, validation_clips)

With this check, a run that needs too much memory fails before its first optimizer step. Without the
check, the run could fail hours later, when the longest clips happen to be in one batch. On a GPU
the check runs the worst-case batches. On a CPU the check estimates the memory of the worst-case
batches (cpu_memory.py).
"""

import bisect
import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from batch import Batch, synthetic_batch
from batching import draws_of_clips
from corpus.cache import ClipTable
from machine import is_out_of_memory, reset_peak_memory
from tacotron2_voice.utils.errors import UserError
from training.cpu_memory import RESERVE, CpuEstimate, Shape, available_memory
from training.optimizer import state_entries
from training.trainer import Trainer


def worst_case_shapes(
    num_frames: Sequence[int] | np.ndarray,
    num_symbols: Sequence[int] | np.ndarray,
    batch_size: int,
    capacity: int | None = None,
    max_draws: np.ndarray | None = None,
) -> list[Shape]:
    """Return a list of (clips, frames, symbols): the training batches that need the most memory.

    With a fixed batch size, the list contains one batch of `batch_size` clips. Each clip has as
    many frames as the longest clip, and as many symbols as the longest text. With a frame budget
    per batch, the list contains two batches. The first batch has the longest text, and as many
    padded frames as the budget and the corpus allow. The second batch has the largest possible
    number of clips, and therefore contains the shortest clips.

    Args:
        capacity: frame budget per batch; None if the batch size is fixed.
        max_draws: maximum number of times that each clip can occur in an epoch, [clips]; None: each
            clip occurs once.
    """
    x = np.asarray(num_frames)
    symbols = np.asarray(num_symbols)
    most_symbols = int(symbols.max())
    if capacity is None:
        return [(min(batch_size, len(x)), int(x.max()), most_symbols)]
    lengths, positions = np.unique(x, return_inverse=True)
    counts = np.bincount(positions, max_draws).astype(int).cumsum()
    # For each length, compute the maximum number of clips in a batch whose longest clip has this
    # length. The maximum is at most the size of the corpus, because an epoch draws as many clips as
    # the corpus contains.
    clips = np.minimum(capacity // lengths, np.minimum(counts, len(x)))
    frames = clips * lengths
    # If several batches have the largest number of frames, use the batch with the longest clips.
    largest = int(np.flatnonzero(frames == frames.max())[-1])
    most_clips = int(clips.max())
    widest = int(lengths[lengths * most_clips <= capacity].max())
    return [
        (int(clips[largest]), int(lengths[largest]), most_symbols),
        (most_clips, widest, int(symbols[x <= widest].max())),
    ]


def check_memory(
    trainer: Trainer,
    training_clips: ClipTable,
    validation_clips: ClipTable,
    weights: np.ndarray | None = None,
) -> int:
    """Check that the worst-case batches fit into memory, and return the peak memory in bytes.

    The check runs a forward and a backward pass of the training batches, and a forward pass of the
    validation batch. After these passes, the check restores buffers, gradients and random states
    bit for bit. On a CPU, the check runs batches with fewer clips, and the result is an estimate.
    The estimate is 0 if the system does not report the values that it needs.

    Args:
        weights: sampling weights of the training clips (see `batching.balancing_weights`).

    Raises:
        UserError: if the batches do not fit. The message contains the largest frame budget or batch
            size that fits.
    """
    hparams = trainer.hparams
    device = trainer.device
    capacity = None
    setting = "batch_size"
    if hparams.dynamic_batch_size:
        longest = int(training_clips.num_frames.max())
        capacity = hparams.batch_capacity or hparams.batch_size * longest
        setting = "batch_capacity"

    def validation_step(batch: Batch) -> None:
        with torch.no_grad(), trainer.autocast():
            outputs = trainer.model(batch)
            trainer.loss(outputs, batch)
            # Run the model again while the first outputs are still in memory, as
            # `validation.text_effect` does.
            trainer.model(batch)

    with without_trace(trainer):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        # Maximum number of draws per epoch for each clip: the mean number of draws, rounded down,
        # plus 1.
        draws = None if weights is None else np.floor(draws_of_clips(weights)) + 1
        problems, peak = _problems(
            trainer,
            trainer.compute_gradients,
            training_clips,
            hparams.batch_size,
            capacity,
            setting,
            draws,
        )
        trainer.model.eval()
        if len(validation_clips):
            more_problems, validation_peak = _problems(
                trainer,
                validation_step,
                validation_clips,
                hparams.validation_batch_size,
                None,
                "validation_batch_size",
            )
            problems += more_problems
            peak = max(peak, validation_peak)
        if problems:
            raise UserError("\n".join(problems))
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak


def _problems(
    trainer: Trainer,
    step: Callable[[Batch], object],
    clips: ClipTable,
    batch_size: int,
    capacity: int | None,
    setting: str,
    max_draws: np.ndarray | None = None,
) -> tuple[list[str], int]:
    """Return a tuple of error messages and the estimated number of bytes (0 on a GPU).

    If the batches fit, the list of messages is empty. Each message contains the largest value of
    `setting` with which the batches fit into memory.
    """
    lengths = clips.num_frames, clips.num_symbols
    asked = worst_case_shapes(*lengths, batch_size, capacity, max_draws)
    memory = Memory(trainer, step, asked)
    if memory.fits(asked):
        return [], memory.bytes_of(asked)
    longest = int(clips.num_frames.max())

    def too_many(count: int) -> bool:
        smaller = count * longest if capacity else None
        shapes = worst_case_shapes(*lengths, count, smaller, max_draws)
        return not memory.fits(shapes)

    max_count = -(-capacity // longest) if capacity else min(batch_size, len(clips))
    fitting = bisect.bisect(range(1, max_count), False, key=too_many)
    purpose = " for validation" if setting == "validation_batch_size" else ""
    needed = " and ".join(f"{b} clips of {t} frames and {n} symbols" for b, t, n in asked)
    message = (
        f"the worst-case batches{purpose} do not fit into the {memory.name} ({needed}"
        f"{memory.shortage(asked)}). "
    )
    if fitting == 0:
        advice = (
            f"Even a single clip of {asked[0][1]} frames does not fit. Remove the longest clips"
        )
    else:
        value = fitting * longest if setting == "batch_capacity" else fitting
        advice = f"Use --hparams {setting}={value}"
    return [message + advice], memory.bytes_of(asked)


class Memory:
    """Determine whether batches fit into the memory of the device.

    On a GPU, run the batches. On a CPU, estimate the memory that the batches need. Each process of
    the run on this machine gets an equal share of the machine's memory. If the system does not
    report the values that an estimate needs, accept every batch.

    Args:
        asked: the worst-case batches.
    """

    def __init__(
        self, trainer: Trainer, step: Callable[[Batch], object], asked: list[Shape]
    ) -> None:
        self._trainer = trainer
        self._step = step
        self._on_gpu = trainer.device.type == "cuda"
        self.name = "GPU memory" if self._on_gpu else "memory of the machine"
        self._estimate: CpuEstimate | None = None
        available = None if self._on_gpu else available_memory()
        # Only Linux can report the peak memory of a single call.
        if available is not None and reset_peak_memory(trainer.device):
            processes = trainer.processes
            self._available = available // (processes.world_size // processes.machines)
            self._estimate = CpuEstimate(trainer, step, asked)

    def fits(self, shapes: list[Shape]) -> bool:
        """Return whether the batches fit. On a CPU, at least the fraction RESERVE of the available
        memory must stay free."""
        if self._on_gpu:
            return self._can_run(shapes)
        if self._estimate is None:
            return True
        return self._estimate.bytes_of(shapes) <= (1 - RESERVE) * self._available

    def bytes_of(self, shapes: list[Shape]) -> int:
        """Return the estimated bytes for the largest batch, gradients and optimizer state, or 0 if
        the memory is not estimated."""
        if self._estimate is None:
            return 0
        need = self._estimate.bytes_of(shapes)
        return int(need) if math.isfinite(need) else self._available

    def shortage(self, shapes: list[Shape]) -> str:
        """Return a phrase with the needed and the available memory, or "" if they are unknown."""
        if self._estimate is None:
            return ""
        need = self._estimate.bytes_of(shapes) / 1e9
        return (
            f"; they need about {need:.1f} GB, but only {self._available / 1e9:.1f} GB are "
            "available"
        )

    def _can_run(self, shapes: list[Shape]) -> bool:
        trainer = self._trainer
        try:
            for clips, frames, symbols in shapes:
                # Remove the gradients, as every optimizer step does at its beginning.
                trainer.model.zero_grad(set_to_none=True)
                batch = synthetic_batch([frames] * clips, [symbols] * clips, trainer.hparams)
                self._step(batch.to(trainer.device))
            return True
        except RuntimeError as error:
            if is_out_of_memory(error):
                return False
            raise
        finally:
            trainer.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()


@contextlib.contextmanager
def without_trace(trainer: Trainer) -> Iterator[None]:
    """At the end of this context, restore buffers, gradients, mode and random states bit for bit.

    Before the first optimizer step, no optimizer state exists. Therefore this context manager also
    allocates tensors of the size of the optimizer state, so that the check includes the memory of
    this state.
    """
    model = trainer.model
    training = model.training
    buffers = copy.deepcopy(dict(model.named_buffers()))
    gradients = [parameter.grad for parameter in model.parameters()]
    state: list[torch.Tensor] = []
    with torch.random.fork_rng(devices=[trainer.device] if trainer.device.type == "cuda" else []):
        try:
            if not trainer.optimizer.state:
                per_parameter = sum(state_entries(trainer.hparams).values())
                for parameter in model.parameters():
                    state += [torch.empty_like(parameter) for _ in range(per_parameter)]
            yield
        finally:
            del state
            model.train(training)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
