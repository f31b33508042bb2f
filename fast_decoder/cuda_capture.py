"""CUDA graphs, captured so that a capture that fails leaves torch as it was."""

import contextlib
from collections.abc import Callable

import torch


def captured(function: Callable, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, object]:
    """A graph of what `function()` launches on `stream`, and its result, which a replay rewrites.
    The function must draw no random numbers and not wait for the GPU.

    Where CUDA breaks a capture off, torch's capture_end raises before it has cleaned up (seen in
    torch 2.11 and 2.13): `stream` would stay the current one, the generator would never draw again
    (2.11), memory used on two streams would never be freed, and empty_cache would raise. So the
    capture gets its own generator state and memory pool. Raises what the function or torch does.
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
        with contextlib.suppress(RuntimeError):  # torch has ended it itself
            torch._C._cuda_endAllocateToPool(device.index, pool)
        raise
    finally:
        generator.graphsafe_set_state(state)
    return graph, result
