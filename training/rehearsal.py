"""Run the costliest batches that any epoch can hold before training starts.

Running out of memory then happens in the first seconds, with the setting that would fit, and not
in hour three when the longest clips happen to meet.
"""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch

from data_utils import Batch
from hparams import HParams


class DoesNotFit(Exception):
    """The costliest batch does not fit into the device's memory; the message says what does."""


def costliest_shapes(
    num_frames: Sequence[int],
    num_symbols: Sequence[int],
    hparams: HParams,
    capacity: int | None = None,
) -> list[tuple[int, int, int]]:
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
    costliest = int(np.flatnonzero(frames == frames.max())[-1])  # of equals, the longest clips
    most_clips = int(clips.max())
    widest = int(lengths[lengths * most_clips <= capacity].max())
    return [
        (int(clips[costliest]), int(lengths[costliest]), most_symbols),
        (most_clips, widest, int(symbols[x <= widest].max())),
    ]


def rehearse(
    model: torch.nn.Module,
    training_step: Callable[[Batch], None],
    num_frames: Sequence[int],
    num_symbols: Sequence[int],
    hparams: HParams,
    device: torch.device,
    optimizer_started: bool,
) -> int:
    """Forward and backward of the costliest batches, leaving no trace.

    `training_step(batch)` computes the loss and its gradients. Buffers, gradients and random
    states are put back bitwise.

    Args:
        optimizer_started: Adam's two moments are in memory already; if not, their room is taken
            for the while, for the first real step will take it.

    Returns:
        Peak bytes of device memory.

    Raises:
        DoesNotFit: with the largest capacity or batch size that does fit.
    """

    def fits(shapes: list[tuple[int, int, int]]) -> bool:
        try:
            for shape in shapes:
                model.zero_grad(set_to_none=True)  # as before every step: nothing is added to
                training_step(_made_up_batch(*shape, hparams).to(device))
            return True
        except RuntimeError as error:  # cuBLAS, cuDNN and the driver say it in words of their own
            said = any(words in str(error) for words in ("ALLOC_FAILED", "out of memory"))
            if said or isinstance(error, torch.OutOfMemoryError):
                return False
            raise
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()

    buffers = copy.deepcopy(dict(model.named_buffers()))
    gradients = [parameter.grad for parameter in model.parameters()]
    moments = []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            if not optimizer_started:
                moments = [torch.empty_like(p) for p in model.parameters() for _ in range(2)]
            shapes = costliest_shapes(num_frames, num_symbols, hparams)
            if devices:
                torch.cuda.reset_peak_memory_stats(device)
            if not fits(shapes):
                raise DoesNotFit(_advice(fits, shapes, num_frames, num_symbols, hparams))
            return torch.cuda.max_memory_allocated(device) if devices else 0
        finally:
            del moments
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient


def _advice(fits, shapes, num_frames, num_symbols, hparams: HParams) -> str:
    longest, most_symbols = int(max(num_frames)), int(max(num_symbols))
    clips = min(hparams.batch_size, len(num_frames))
    if hparams.dynamic_batch_size:
        clips = -(-(hparams.batch_capacity or hparams.batch_size * longest) // longest)
    low, high = 0, clips  # low longest clips fit, high do not
    while high - low > 1:
        middle = (low + high) // 2
        if hparams.dynamic_batch_size:
            trial = costliest_shapes(num_frames, num_symbols, hparams, capacity=middle * longest)
        else:
            trial = [(middle, longest, most_symbols)]
        low, high = (middle, high) if fits(trial) else (low, middle)
    needed = " and ".join(f"{b} clips of {t} frames and {n} symbols" for b, t, n in shapes)
    message = f"the costliest batches of this corpus do not fit into the GPU's memory ({needed})"
    if low == 0:
        return f"{message}; not even one clip of {longest} frames does: leave the longest out"
    if hparams.dynamic_batch_size:
        return f"{message}; this fits: --hparams batch_capacity={low * longest}"
    return f"{message}; this fits: --hparams batch_size={low}"


def _made_up_batch(batch_size: int, frames: int, symbols: int, hparams: HParams) -> Batch:
    r = hparams.n_frames_per_step
    num_steps = -(-frames // r)
    return Batch(
        text=torch.ones(batch_size, symbols, dtype=torch.int64),
        text_lengths=torch.full((batch_size,), symbols),
        mel=torch.zeros(batch_size, hparams.n_mel_channels, num_steps * r),
        gate=torch.zeros(batch_size, num_steps),
        mel_lengths=torch.full((batch_size,), frames),
    )
