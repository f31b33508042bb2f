"""Run the decoder for synthesis on a GPU, with CHUNK decoder steps per CUDA graph.

    model.speaking_decoder = captured_steps.free_running

A decoder step consists of about fifty small operators, which the GPU runs faster than the host can
launch them. A CUDA graph launches the operators of CHUNK decoder steps at once. After each chunk
the host checks whether all texts have ended. A graph contains the same operators and shapes in the
same order as the loop in model.py, so the results are bitwise identical.

A CUDA graph works only for a fixed number of texts and symbols, so each batch needs its own graph.
Capturing a graph takes about as long as launching CHUNK decoder steps. This time is short, because
a text has hundreds of decoder steps.
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

# Number of decoder steps per CUDA graph. With a larger number, the capture takes longer, and more
# decoder steps are wasted at the end of a text. With a smaller number, the host waits more often.
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
    """Run `model.free_running` on a GPU in chunks of CHUNK decoder steps.

    The last chunk ends at `max_steps`. All chunks of decoder steps read and write the same tensors.
    On a CPU or under autocast, decoder steps run one by one, without CUDA graphs. (Under autocast,
    a CUDA graph would keep using autocast's copies of the weights.)

    Args:
        repeated: a function of (make_steps, device) that calls `make_steps` repeatedly and yields
            the results. Each yielded result may overwrite the previous result. The default on a GPU
            is `replayed`.
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
        frames = last_frames
        state = first_state
        furthest = last_furthest
        allowed = mask
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
        old = (last_frames, last_furthest, *first_state)
        new = (frames, furthest, *state)
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
    """Call `function()` repeatedly by replaying a CUDA graph, and yield the results.

    The first call runs without a graph, because it loads kernels and allocates the workspaces of
    the stream. During a capture, PyTorch can neither load kernels nor allocate workspaces. If the
    capture fails, print a warning and make all calls without a graph.
    """
    with _alone_on_side_stream(device):
        result = function()
    yield result
    try:
        with _alone_on_side_stream(device):
            graph, result = captured(function, _side_stream(device))
    except Exception as error:  # PyTorch, the driver and the GPU raise many types of exceptions
        graph = None
        warnings.warn(  # Python prints identical warnings only once
            "capturing a CUDA graph failed, so synthesis launches its decoder steps one by one. "
            "The results are the same, but synthesis is several times slower: "
            f"{first_problem(error)}",
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
    # Use the same stream for all batches, because each stream needs a workspace of tens of
    # megabytes.
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _alone_on_side_stream(device: torch.device) -> Iterator[None]:
    """Launch all kernels in this context on a side stream.

    The kernels on the side stream run after all earlier kernels and before all later kernels of the
    current stream. Other threads must wait, because a capture records all launches on the captured
    stream.
    """
    side = _side_stream(device)
    current = torch.cuda.current_stream(device)
    with _SIDE_STREAM_IN_USE, torch.cuda.stream(side):
        side.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(side)
