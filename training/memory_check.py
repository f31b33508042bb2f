"""Run the worst-case batches that any epoch can hold before training starts.

Running out of memory then happens in the first seconds, with the setting that would fit, and not
in hour three when the longest clips happen to meet.
"""

import bisect
import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from clip_table import ClipTable
from data_utils import Batch, synthetic_batch
from errors import UserError
from hparams import HParams
from machine import is_out_of_memory
from training.trainer import Trainer

Shape = tuple[int, int, int]  # clips, frames, symbols


def worst_case_shapes(
    num_frames: Sequence[int] | np.ndarray,
    num_symbols: Sequence[int] | np.ndarray,
    hparams: HParams,
    capacity: int | None = None,
) -> list[Shape]:
    """(clips, frames, symbols) of the batches that need most memory, for training.

    With a fixed size: that many clips as long as the longest, with the longest text. With dynamic
    sizes, the most padded frames that the capacity and the corpus allow, with the longest text,
    and the most clips that any batch can hold, which are the shortest ones.
    """
    x, symbols = np.asarray(num_frames), np.asarray(num_symbols)
    longest, most_symbols = int(x.max()), int(symbols.max())
    if not hparams.dynamic_batch_size:
        return [(min(hparams.batch_size, len(x)), longest, most_symbols)]
    capacity = capacity or hparams.batch_capacity or hparams.batch_size * longest
    lengths, counts = np.unique(x, return_counts=True)
    clips = np.minimum(capacity // lengths, counts.cumsum())  # at most, no clip longer than that
    frames = clips * lengths
    largest = int(np.flatnonzero(frames == frames.max())[-1])  # of equals, the longest clips
    most_clips = int(clips.max())
    widest = int(lengths[lengths * most_clips <= capacity].max())
    return [
        (int(clips[largest]), int(lengths[largest]), most_symbols),
        (most_clips, widest, int(symbols[x <= widest].max())),
    ]


def check_memory(trainer: Trainer, training_clips: ClipTable, validation_clips: ClipTable) -> int:
    """Forward and backward of the worst-case training batches, forward of the worst-case validation
    batch, leaving no trace: buffers, gradients and random states are put back bitwise.

    Returns:
        Peak bytes of device memory.

    Raises:
        UserError: with the largest capacity or batch sizes that do fit.
    """
    hparams, device = trainer.hparams, trainer.device
    frames, symbols = training_clips.num_frames, training_clips.num_symbols
    longest, dynamic = int(frames.max()), hparams.dynamic_batch_size
    capacity = hparams.batch_capacity or hparams.batch_size * longest

    def training_shapes(clips: int) -> list[Shape]:
        """With room for so many of the longest clips."""
        if dynamic:
            return worst_case_shapes(frames, symbols, hparams, capacity=clips * longest)
        return [(clips, longest, int(symbols.max()))]

    def validation_shapes(clips: int) -> list[Shape]:
        longest_text = int(validation_clips.num_symbols.max())
        return [(clips, int(validation_clips.num_frames.max()), longest_text)]

    def validation_step(batch: Batch) -> None:
        with torch.no_grad(), trainer.autocast():
            trainer.loss(trainer.model(batch), batch)

    def problem_of(
        step: Callable[[Batch], object],
        shapes: Callable[[int], list[Shape]],
        asked: list[Shape],
        most: int,
        setting: str,
        purpose: str = "",
        unit: int = 1,
    ) -> list[str]:
        """Nothing, or a message with the largest setting that fits: a number of clips in `unit`."""
        if fit(trainer, step, asked):
            return []
        needed = " and ".join(f"{b} clips of {t} frames and {n} symbols" for b, t, n in asked)
        message = f"the worst-case batches{purpose} do not fit into the GPU's memory ({needed}); "
        fitting = bisect.bisect(
            range(1, most), False, key=lambda clips: not fit(trainer, step, shapes(clips))
        )
        if fitting == 0:
            return [f"{message}not even one clip of {asked[0][1]} frames fits: remove the longest"]
        return [f"{message}this fits: --hparams {setting}={fitting * unit}"]

    by_capacity = dynamic and not hparams.random_epochs
    with _without_trace(trainer):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        problems = problem_of(
            trainer.compute_gradients,
            training_shapes,
            worst_case_shapes(frames, symbols, hparams),
            -(-capacity // longest) if dynamic else min(hparams.batch_size, len(frames)),
            "batch_capacity" if by_capacity else "batch_size",
            unit=longest if by_capacity else 1,
        )
        trainer.model.eval()
        most = min(hparams.validation_batch_size, len(validation_clips))
        setting, purpose = "validation_batch_size", " for validation"
        asked = validation_shapes(most)
        problems += problem_of(validation_step, validation_shapes, asked, most, setting, purpose)
        if problems:
            raise UserError("\n".join(problems))
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def fit(trainer: Trainer, step: Callable[[Batch], object], shapes: list[Shape]) -> bool:
    """Whether steps on batches of these shapes find the memory they need."""
    try:
        for clips, frames, symbols in shapes:
            trainer.model.zero_grad(set_to_none=True)  # as before every step: nothing is added to
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
    """Put buffers, gradients, mode and random states back afterwards, bitwise.

    Adam's two moments take their room for the while if the first step, which makes them, is still
    to come.
    """
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
