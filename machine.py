"""Measure the time and memory of runs and benchmarks, and describe the machine."""

import ctypes
import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished. On a CPU, return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device: torch.device, run: Callable[..., object], *arguments: Any) -> float:
    """Return the number of seconds that `run(*arguments)` takes, including the work on the GPU."""
    synchronize(device)
    start = time.perf_counter()
    run(*arguments)
    synchronize(device)
    return time.perf_counter() - start


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the peak memory that `peak_memory` returns, and return whether the system supports a
    reset.

    If the system does not support a reset, `peak_memory` returns the peak since the process
    started.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return True
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes since the last call of `reset_peak_memory`.

    On a GPU, the result is the peak of the memory that PyTorch has allocated. On a CPU, the result
    is the peak resident memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.is_file() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    if kilobytes:
        return kilobytes[0] * 1024
    import resource  # Windows lacks the module `resource`

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the GPU or the machine ran out of memory.

    When memory runs out, Python, PyTorch, cuBLAS, cuDNN and the GPU driver report different
    messages.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = (
        *("ALLOC_FAILED", "out of memory", "can't allocate memory", "not enough memory"),
        # cuDNN raises errors with the following messages if no convolution algorithm fits into
        # memory.
        *("was unable to find an engine", "Unable to find a valid cuDNN algorithm"),
    )
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def machine(device: torch.device) -> str:
    """Return the name of the GPU. On a CPU, return the name of the CPU and the numbers of cores and
    PyTorch threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def versions() -> dict[str, Any]:
    """Return the versions of Python, PyTorch and CUDA."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,  # `torch.version.cuda` is None in CPU-only builds of PyTorch
    }


def measured_on(device: torch.device) -> dict[str, Any]:
    """Return machine, versions and date for the JSON file of a benchmark."""
    return {"device": machine(device), "versions": versions(), "date": date.today().isoformat()}


def fingerprint_of_code(*patterns: str) -> str:
    """Hash the names and contents of all files in this project that match `patterns`."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return machine, versions and commit for the `run` line in metrics.jsonl."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None  # a copy of the project may have no Git history
    return {
        "machine": {
            "device": machine(device) if device.type == "cuda" else "cpu",
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
        "versions": versions() | {"numpy": np.__version__},
        "commit": commit,
    }
