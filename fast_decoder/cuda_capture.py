"""Capture CUDA graphs, and restore the state of PyTorch if a capture fails."""

import contextlib
from collections.abc import Callable

import torch


def captured(function: Callable, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, object]:
    """Capture the launches of `function()` on `stream`.

    Return the graph and the function's result. Each replay of the graph overwrites this result. The
    function must not draw random numbers or wait for the GPU. Exceptions from `function` and from
    PyTorch are passed on to the caller.

    If CUDA aborts a capture, PyTorch's `capture_end` raises an error before the cleanup is complete
    (seen in PyTorch 2.11 and 2.13). Without the precautions of this function:

    - `stream` would stay the current stream.
    - The generator would stop working (in PyTorch 2.11), so the capture gets its own generator
      state.
    - Memory used on two streams would never be freed, and `empty_cache` would raise an error, so
      the capture gets its own memory pool.
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
            # Use the capture mode "thread_local", because other threads may pin memory during the
            # capture.
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

    After an error during a capture, the end of the capture also raises an error. The `__context__`
    of this second error is the original error.
    """
    cause = error.__context__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
