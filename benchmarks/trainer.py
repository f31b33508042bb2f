"""A training step as train.py makes it, and what it is measured with; the benchmarks share it."""

import argparse
import ctypes
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

import fast_decoder
from data_utils import Batch
from hparams import HParams
from model import Tacotron2, Tacotron2Loss, teacher_forced

DECODERS = {"reference": teacher_forced, "fast": fast_decoder.teacher_forced}
AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")  # tf32: fp32 with products in TF32, on GPUs


class Losses(NamedTuple):
    """Of a step that the device may still be working at."""

    values: torch.Tensor  # [4] both losses, gradient norm, 1 if the update was skipped; CPU
    copied: torch.cuda.Event | None  # when `values` may be read; None is at once


class Trainer:
    """The model, its optimiser and a step of both, as train.py makes and runs them."""

    def __init__(self, hparams: HParams, device: torch.device):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.manual_seed(hparams.seed)
        self.hparams, self.device = hparams, device
        self.model = Tacotron2(hparams, DECODERS[hparams.decoder]).to(device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=hparams.learning_rate,
            weight_decay=hparams.weight_decay,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=hparams.precision == "fp16")

    def autocast(self):
        dtype = AUTOCAST_DTYPES[self.hparams.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def step(self, batch: Batch) -> Losses:
        """One update."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = batch.to(self.device)
        with self.autocast():
            outputs = self.model(batch)
        losses = Tacotron2Loss()(outputs, batch)
        trained = losses.total if self.hparams.loss == "padded" else losses.total_unpadded
        self.scaler.scale(trained).backward()
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        skip = ~(torch.isfinite(norm) & torch.isfinite(losses.total.detach()))
        self.optimizer.grad_scale = (norm / self.hparams.grad_clip_thresh).clamp(min=1)
        self.optimizer.found_inf = skip.float()
        self.optimizer.step()
        self.scaler.update()
        values = (losses.total, losses.total_unpadded, norm, skip)
        values = torch.stack([value.detach().float() for value in values])
        values, copied = values.to("cpu", non_blocking=True), None
        if self.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(self.device))
        return Losses(values, copied)

    def seconds(self, run: Callable, *arguments) -> float:
        """Seconds of `run(*arguments)`, the device's work included."""
        synchronize(self.device)
        start = time.perf_counter()
        run(*arguments)
        synchronize(self.device)
        return time.perf_counter() - start

    def timed_step(self, batch: Batch) -> float:
        """Seconds of a step. RuntimeError if a GPU's memory does not suffice."""
        return self.seconds(self.step, batch)


def make_trainer(precision: str, hparams: HParams, device: torch.device) -> Trainer:
    """A trainer in one of PRECISIONS. Sets torch's TF32 switches for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return Trainer(replace(hparams, precision=precision.replace("tf32", "fp32")), device)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------------------- memory and machine


def reset_peak_memory(device: torch.device) -> bool:
    """Begin a new high-water mark, with what earlier steps left behind given back.

    False on a system that cannot: its memory stays unmeasured.
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


def peak_memory(device: torch.device) -> int | None:
    """Most bytes since `reset_peak_memory`: of the GPU, else resident ones of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return proc_bytes("/proc/self/status", "VmHWM:")


def proc_bytes(path: str, name: str) -> int | None:
    """The value of a line `name  number kB`; None on systems without it."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def machine(device: torch.device) -> str:
    """The GPU's name, or the processor's with its cores and torch's threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def versions() -> dict:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


# ---------------------------------------------------------------------------- arguments


def positive(text: str) -> float:
    """For argparse: a number above 0."""
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
