"""Check memory with worst-case batches before training starts.

    peak_bytes = check_memory(trainer, training_clips, validation_clips)

A run that is too large for the GPU then fails in its first seconds. Without the check it would fail
hours later, when the longest clips share a batch.
"""

import bisect
import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from batch import Batch, synthetic_batch
from batching import draws_of_clips
from corpus.cache import ClipTable
from machine import is_out_of_memory
from tacotron2_voice.utils.errors import UserError
from training.optimizer import state_entries
from training.trainer import Trainer

Shape = tuple[int, int, int]  # clips, frames, symbols


def worst_case_shapes(
    num_frames: Sequence[int] | np.ndarray,
    num_symbols: Sequence[int] | np.ndarray,
    batch_size: int,
    capacity: int | None = None,
    max_draws: np.ndarray | None = None,
) -> list[Shape]:
    """Return (clips, frames, symbols) of the batches that need the most memory in training.

    With a fixed batch size this is one batch: `batch_size` clips as long as the longest clip, with
    the longest text. With a frame budget per batch there are two batches. The first batch has the
    most padded frames that budget and corpus allow, with the longest text. The second batch has the
    most clips, which are the shortest clips.

    Args:
        capacity: frame budget per batch; None: fixed batch size.
        max_draws: [clips], the most times that an epoch contains each clip; None: once.
    """
    x = np.asarray(num_frames)
    symbols = np.asarray(num_symbols)
    most_symbols = int(symbols.max())
    if capacity is None:
        return [(min(batch_size, len(x)), int(x.max()), most_symbols)]
    lengths, positions = np.unique(x, return_inverse=True)
    counts = np.bincount(positions, max_draws).astype(int).cumsum()
    # This is, for each length, the largest number of clips in a batch without longer clips. An
    # epoch draws as many clips as the corpus contains.
    clips = np.minimum(capacity // lengths, np.minimum(counts, len(x)))
    frames = clips * lengths
    # Among equal batches, this takes the batch with the longest clips.
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
    """Check that the worst-case batches fit, and return the peak bytes of device memory.

    Runs forward and backward passes on the training batches and a forward pass on the validation
    batch. Afterwards buffers, gradients and random states are bitwise as before.

    Args:
        weights: the weights with which training clips are drawn (batching.balancing_weights).

    Raises:
        UserError: with the largest frame budget or batch size that fits.
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
            # `validation.text_effect` also runs the model while it still needs the outputs.
            trainer.model(batch)

    with _without_trace(trainer):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        # An epoch draws a clip at most once more than its mean, rounded down.
        draws = None if weights is None else np.floor(draws_of_clips(weights)) + 1
        problems = _problems(
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
            problems += _problems(
                trainer,
                validation_step,
                validation_clips,
                hparams.validation_batch_size,
                None,
                "validation_batch_size",
            )
        if problems:
            raise UserError("\n".join(problems))
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _problems(
    trainer: Trainer,
    step: Callable[[Batch], object],
    clips: ClipTable,
    batch_size: int,
    capacity: int | None,
    setting: str,
    max_draws: np.ndarray | None = None,
) -> list[str]:
    """Return [] if the batches fit, otherwise a message with the largest `setting` that fits."""
    lengths = clips.num_frames, clips.num_symbols
    asked = worst_case_shapes(*lengths, batch_size, capacity, max_draws)
    if fit(trainer, step, asked):
        return []
    longest = int(clips.num_frames.max())

    def too_many(count: int) -> bool:
        """Return whether `count` of the longest clips do not fit."""
        smaller = count * longest if capacity else None
        shapes = worst_case_shapes(*lengths, count, smaller, max_draws)
        return not fit(trainer, step, shapes)

    max_count = -(-capacity // longest) if capacity else min(batch_size, len(clips))
    fitting = bisect.bisect(range(1, max_count), False, key=too_many)
    purpose = " for validation" if setting == "validation_batch_size" else ""
    needed = " and ".join(f"{b} clips of {t} frames and {n} symbols" for b, t, n in asked)
    message = f"the worst-case batches{purpose} do not fit into the GPU's memory ({needed}). "
    if fitting == 0:
        return [f"{message}A single clip of {asked[0][1]} frames does not fit: remove the longest"]
    value = fitting * longest if setting == "batch_capacity" else fitting
    return [f"{message}Use --hparams {setting}={value}"]


def fit(trainer: Trainer, step: Callable[[Batch], object], shapes: list[Shape]) -> bool:
    """Return whether `step` fits into memory on batches of these shapes."""
    try:
        for clips, frames, symbols in shapes:
            # Every optimizer step begins without gradients, so remove them here too.
            trainer.model.zero_grad(set_to_none=True)
            batch = synthetic_batch([frames] * clips, [symbols] * clips, trainer.hparams)
            step(batch.to(trainer.device))
        return True
    except RuntimeError as error:
        if is_out_of_memory(error):
            return False
        raise
    finally:
        trainer.model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _without_trace(trainer: Trainer) -> Iterator[None]:
    """Restore buffers, gradients, mode and random states bitwise on exit.

    The first optimizer step creates the optimizer's state. If that step has not happened yet,
    memory of the same size is allocated in this context.
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
