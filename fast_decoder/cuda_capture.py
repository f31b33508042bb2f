"""Capture CUDA graphs so that a failed capture leaves torch's state unchanged."""

import contextlib
from collections.abc import Callable

import torch


def captured(function: Callable, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, object]:
    """Capture what `function()` launches on `stream`. Returns the graph and the function's result,
    which each replay overwrites. The function must draw no random numbers and not wait for the GPU.

    If CUDA aborts a capture, torch's capture_end raises before it has cleaned up (seen in torch
    2.11 and 2.13): `stream` would stay current, the generator would never draw again (2.11), memory
    used on two streams would never be freed, and empty_cache would raise. So the capture gets its
    own generator state and memory pool. Errors of the function and of torch are passed on.
    """
    device = stream.device
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    generator = torch.cuda.default_generators[device.index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(torch.Generator(device))
    try:
        with (
            torch.cuda.stream(stream),
            # Other threads may pin memory meanwhile.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            result = function()
    except Exception:
        with contextlib.suppress(RuntimeError):  # torch has ended it already
            torch._C._cuda_endAllocateToPool(device.index, pool)
        raise
    finally:
        generator.graphsafe_set_state(state)
    return graph, result


def first_problem(error: Exception) -> str:
    """Type and first line of what went wrong first: what breaks a capture breaks its end too, whose
    error has the first one as its context."""
    cause = error.__context__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
