"""Capture CUDA graphs. A failed capture leaves the state of PyTorch unchanged."""

import contextlib
from collections.abc import Callable

import torch


def captured(function: Callable, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, object]:
    """Capture the launches of `function()` on `stream`.

    Return the graph and the function's result, which each replay overwrites. The function must not
    draw random numbers or wait for the GPU. Exceptions from the function and from PyTorch reach the
    caller.

    If CUDA aborts a capture, PyTorch's `capture_end` raises an error before it has cleaned up (seen
    in PyTorch 2.11 and 2.13). Without this function, `stream` would then stay the current stream,
    the generator would stop working (2.11), memory used on two streams would never be freed, and
    `empty_cache` would raise an error. To prevent this, the capture gets its own generator state
    and memory pool.
    """
    device = stream.device
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    generator = torch.cuda.default_generators[device.index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(torch.Generator(device))
    try:
        with (
            torch.cuda.stream(stream),
            # Use the mode "thread_local", because other threads may pin memory during the capture.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            result = function()
    except Exception:
        with contextlib.suppress(RuntimeError):  # PyTorch may have ended the capture already
            torch._C._cuda_endAllocateToPool(device.index, pool)
        raise
    finally:
        generator.graphsafe_set_state(state)
    return graph, result


def first_problem(error: Exception) -> str:
    """Return the type and the first line of the original error.

    An error during a capture also makes the end of the capture fail. The second error has the
    original error as its context.
    """
    cause = error.__context__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
