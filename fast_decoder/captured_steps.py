"""The decoder in synthesis on a GPU: `model.free_running` with CHUNK steps in one CUDA graph.

A step is some fifty small operators, which a GPU runs faster than the host launches them. A graph
launches the operators of CHUNK steps at once, and the host checks after each chunk whether all
texts have ended. Operators, shapes and order are those of the readable loop, so results are bitwise
the same. A graph fits one number of texts and symbols. Capturing it takes about as long as
launching CHUNK of the hundreds of steps of a text, so each batch gets its own graph.
"""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator

import torch

import model
from fast_decoder.cuda_capture import captured, first_problem
from model import Decoder, DropoutMasks, SpokenSteps

# Steps. More take longer to capture and waste more at the end; fewer synchronize more often.
CHUNK = 8


def free_running(
    decoder: Decoder,
    memory: torch.Tensor,  # [B, T_in, memory_dim]
    mask: torch.Tensor,  # [B, T_in] bool, True at padding
    dropout_masks: DropoutMasks,
    max_steps: int,
    window: int = 0,
    repeated: Callable[[Callable, torch.device], Iterator] | None = None,
) -> Iterator[SpokenSteps]:
    """`model.free_running`, on a GPU in chunks of CHUNK steps, the last one cut at `max_steps`.
    Elsewhere, and under autocast, whose weight copies must not belong to a graph, single steps.

    Each chunk reads and writes the same tensors. `repeated(make_steps, device)`, by default
    `replayed` on a GPU, may overwrite a result with the next.
    """
    if memory.is_cuda and not torch.is_autocast_enabled(memory.device.type):
        repeated = repeated or replayed
    if repeated is None:
        yield from model.free_running(decoder, memory, mask, dropout_masks, max_steps, window)
        return
    processed_memory = decoder.attention_layer.memory_layer(memory)
    first_state = decoder.initial_state(memory)
    last_frames = memory.new_zeros(len(memory), decoder.frame_dim)
    last_furthest = torch.zeros_like(mask[:, :1], dtype=torch.int64)
    first, second = (
        None if mask is None else mask.new_ones(CHUNK, *mask.shape[1:])
        for mask in dropout_masks.prenet
    )
    masks = DropoutMasks((first, second), None, None)

    def make_steps() -> SpokenSteps:
        frames, state, furthest, allowed = last_frames, first_state, last_furthest, mask
        outputs = []
        for t in range(CHUNK):
            keep = masks.at(t)
            prenet_output = decoder.prenet(frames, keep.prenet)
            if window:
                allowed = model.outside_window(mask, furthest, window)
            frames, gate, state = decoder.step(
                prenet_output, state, memory, processed_memory, allowed, keep
            )
            if window:
                furthest = torch.maximum(furthest, state.alignment.argmax(dim=1, keepdim=True))
            outputs.append((frames, gate, state.alignment))
        old, new = (last_frames, last_furthest, *first_state), (frames, furthest, *state)
        for before, after in zip(old, new, strict=True):
            before.copy_(after)
        return SpokenSteps(*(torch.stack(steps) for steps in zip(*outputs, strict=True)))

    results = repeated(make_steps, memory.device)
    for start in range(0, max_steps, CHUNK):
        count = min(CHUNK, max_steps - start)
        for chunk, whole in zip(masks.prenet, dropout_masks.prenet, strict=True):
            if chunk is not None and whole is not None:
                chunk[:count] = whole[start : start + count]
        yield SpokenSteps(*(steps[:count].clone() for steps in next(results)))


def replayed(function: Callable, device: torch.device) -> Iterator:
    """Yield the results of repeated calls of `function()` on a GPU, from the second on by replaying
    a CUDA graph.

    The first call loads and allocates what a capture must not: kernels, and the stream's workspaces
    for matrix products. If the capture fails, a warning says so and plain calls continue.
    """
    with _alone_on_side_stream(device):
        result = function()
    yield result
    try:
        with _alone_on_side_stream(device):
            graph, result = captured(function, _side_stream(device))
    except Exception as error:  # whatever torch, the driver or the GPU cannot capture
        graph = None
        warnings.warn(  # which is shown once
            "synthesis launches its steps one by one, with the same results but several times "
            f"slower than by a CUDA graph, which failed: {first_problem(error)}",
            stacklevel=2,
        )
    while graph is None:
        yield function()
    while True:
        graph.replay()
        yield result


_SIDE_STREAM_IN_USE = threading.Lock()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all: each stream has a workspace of tens of megabytes.
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _alone_on_side_stream(device: torch.device) -> Iterator[None]:
    """Run what is launched inside on the side stream, in order with the current stream before and
    after. Other threads wait, because a capture records everything on its stream."""
    side, current = _side_stream(device), torch.cuda.current_stream(device)
    with _SIDE_STREAM_IN_USE, torch.cuda.stream(side):
        side.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(side)
