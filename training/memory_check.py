"""Check memory with worst-case batches before training starts.

A run that is too large for the GPU then fails in its first seconds, and not hours later, when the
longest clips share a batch.
"""

import bisect
import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from batching import draws_of_clips
from corpus.cache import ClipTable
from data_utils import Batch, synthetic_batch
from machine import is_out_of_memory
from tacotron2_voice.utils.errors import UserError
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

    With a fixed size this is one batch: `batch_size` clips as long as the longest, with the longest
    text. With a capacity there are two: the one with the most padded frames that capacity and
    corpus allow, with the longest text, and the one with the most clips, which are the shortest.
    `max_draws` [clips] says how often an epoch has each clip at most; None: once.
    """
    x, symbols = np.asarray(num_frames), np.asarray(num_symbols)
    most_symbols = int(symbols.max())
    if capacity is None:
        return [(min(batch_size, len(x)), int(x.max()), most_symbols)]
    lengths, places = np.unique(x, return_inverse=True)
    counts = np.bincount(places, max_draws).astype(int).cumsum()
    # At most, if no clip is longer than that. An epoch draws as many clips as there are.
    clips = np.minimum(capacity // lengths, np.minimum(counts, len(x)))
    frames = clips * lengths
    largest = int(np.flatnonzero(frames == frames.max())[-1])  # among equals, the longest clips
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
    """Run forward and backward passes on the worst-case training batches, and a forward pass on the
    worst-case validation batch. Buffers, gradients and random states are restored bitwise. Returns
    the peak bytes of device memory. UserError with the largest capacity or batch size that fits.
    `weights` are those with which training clips are drawn (batching.balancing_weights).
    """
    hparams, device = trainer.hparams, trainer.device
    capacity, setting = None, "batch_size"
    if hparams.dynamic_batch_size:
        longest, setting = int(training_clips.num_frames.max()), "batch_capacity"
        capacity = hparams.batch_capacity or hparams.batch_size * longest

    def validation_step(batch: Batch) -> None:
        with torch.no_grad(), trainer.autocast():
            outputs = trainer.model(batch)
            trainer.loss(outputs, batch)
            trainer.model(batch)  # as `validation.text_effect` does, while outputs are still needed

    with _without_trace(trainer):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        step, size = trainer.compute_gradients, hparams.batch_size
        # One more than a mean, rounded down, is as many as an epoch can have.
        draws = None if weights is None else np.floor(draws_of_clips(weights)) + 1
        problems = _problems(trainer, step, training_clips, size, capacity, setting, draws)
        trainer.model.eval()
        size, setting = hparams.validation_batch_size, "validation_batch_size"
        if len(validation_clips):
            problems += _problems(trainer, validation_step, validation_clips, size, None, setting)
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
    """Empty if the batches fit, else a message with the largest value of `setting` that fits."""
    lengths = clips.num_frames, clips.num_symbols
    asked = worst_case_shapes(*lengths, batch_size, capacity, max_draws)
    if fit(trainer, step, asked):
        return []
    longest = int(clips.num_frames.max())

    def too_many(count: int) -> bool:
        """Whether `count` of the longest clips do not fit."""
        smaller = count * longest if capacity else None
        shapes = worst_case_shapes(*lengths, count, smaller, max_draws)
        return not fit(trainer, step, shapes)

    max_count = -(-capacity // longest) if capacity else min(batch_size, len(clips))
    fitting = bisect.bisect(range(1, max_count), False, key=too_many)
    purpose = " for validation" if setting == "validation_batch_size" else ""
    needed = " and ".join(f"{b} clips of {t} frames and {n} symbols" for b, t, n in asked)
    message = f"the worst-case batches{purpose} do not fit into the GPU's memory ({needed}); "
    if fitting == 0:
        return [f"{message}not even one clip of {asked[0][1]} frames fits: remove the longest"]
    value = fitting * longest if setting == "batch_capacity" else fitting
    return [f"{message}this fits: --hparams {setting}={value}"]


def fit(trainer: Trainer, step: Callable[[Batch], object], shapes: list[Shape]) -> bool:
    """Whether steps on batches of these shapes fit into memory."""
    try:
        for clips, frames, symbols in shapes:
            # As before every step: nothing to accumulate into.
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
    """Restore buffers, gradients, mode and random states afterwards, bitwise. Memory for Adam's two
    moments is allocated meanwhile if the first step, which creates them, is still to come."""
    model, training = trainer.model, trainer.model.training
    buffers = copy.deepcopy(dict(model.named_buffers()))
    gradients = [parameter.grad for parameter in model.parameters()]
    moments = []
    with torch.random.fork_rng(devices=[trainer.device] if trainer.device.type == "cuda" else []):
        try:
            if not trainer.optimizer.state:
                moments = [torch.empty_like(p) for p in model.parameters() for _ in range(2)]
            yield
        finally:
            del moments
            model.train(training)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
