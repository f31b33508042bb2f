"""Capture CUDA graphs so that a failed capture leaves torch's state unchanged."""

import contextlib
from collections.abc import Callable

import torch


def captured(function: Callable, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, object]:
    """Capture the launches of `function()` on `stream`.

    Returns the graph and the function's result, which each replay overwrites. The function must
    draw no random numbers and must not wait for the GPU. Errors of the function and of torch are
    passed on.

    If CUDA aborts a capture, torch's capture_end raises before it has cleaned up (seen in torch
    2.11 and 2.13). Without this function `stream` would then stay current, the generator would
    never draw again (2.11), memory used on two streams would never be freed, and empty_cache would
    raise an error. Therefore the capture gets its own generator state and memory pool.
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
            # The mode is "thread_local", because other threads may pin memory meanwhile.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            result = function()
    except Exception:
        with contextlib.suppress(RuntimeError):  # torch may have ended the capture already.
            torch._C._cuda_endAllocateToPool(device.index, pool)
        raise
    finally:
        generator.graphsafe_set_state(state)
    return graph, result


def first_problem(error: Exception) -> str:
    """Return the type and the first line of the first error.

    An error inside a capture makes the end of the capture fail too. The second error has the first
    error as its context.
    """
    cause = error.__context__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
