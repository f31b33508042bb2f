"""Measurements for benchmarks/gpu_report.py: how busy training keeps a GPU, and the loops' times."""

import functools
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

# torch's profiler reads this when it is imported. Its default buffers of 128 MB are too small.
os.environ.setdefault("KINETO_CONFIG", str(Path(__file__).with_name("kineto.conf")))

import numpy as np
import torch

import fast_decoder
from batch import Batch
from batching import make_sampler
from benchmarks.timing import time_interleaved
from corpus.filelist import read_filelist
from corpus.lengths import make_corpus, synthetic_lengths
from data_utils import make_loader
from fast_decoder import graphs
from fast_decoder.parity import Problem
from fast_decoder.self_check import kernel_loops
from hparams import HParams, create_hparams
from machine import seconds_of, synchronize
from model import Decoder
from training.precision import AUTOCAST_DTYPES
from training.trainer import MicroBatch, Trainer

# The paper's settings.
BUSY_SETTINGS = (
    "batch_size=16,random_epochs=0,win_time=50,hop_time=12.5,decoder=fast,load_mel_from_disk=True"
)
SESSION = 100  # optimizer steps under the profiler at a time; its buffers have no room for more
TOP_KERNELS = 5
CUDA = torch.autograd.DeviceType.CUDA
LOOPS = ("attention_forward", "lstm_forward", "lstm_backward", "attention_backward")


# ---------------------------------------------------------------------------- busy


def measure_busy(
    device: torch.device, precision: str, clips: int, steps: int, overrides: str = ""
) -> dict[str, Any]:
    """Measure the share of wall time in which a kernel or copy runs on the GPU.

    Trains as train.py does, on cached mels of noise that are as long as LJSpeech's clips. The steps
    run once to capture their graphs, once for their wall time, and once under torch's profiler.
    Launches are not programmatically dependent, because their waiting would look like work.
    """
    graphs.DEPENDENT_LAUNCHES = False
    hparams = create_hparams(f"{BUSY_SETTINGS},precision={precision},{overrides}".strip(","))
    hparams = replace(hparams, num_workers=min(hparams.num_workers, 4))
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        filelist = make_corpus(Path(folder), synthetic_lengths(clips, hparams), hparams)
        trainer = Trainer(hparams, device)
        table = read_filelist(filelist, hparams)
        sampler = make_sampler(table.num_frames, hparams)
        loader = make_loader(
            table,
            hparams,
            sampler,
            num_workers=hparams.num_workers,
            pin_memory=device.type == "cuda",
        )

        def batches() -> Iterator[Batch]:
            """Yield the same batches each time."""
            for epoch in itertools.count():
                sampler.set_epoch(epoch)
                yield from loader

        train_steps(trainer, batches(), steps)
        stream = batches()
        train_steps(trainer, stream, 1)  # This starts the loader.
        seconds = seconds_of(device, train_steps, trainer, stream, steps)
        result = {"wall_seconds": seconds, "steps": steps, "precision": precision}
        return result | profile(trainer, batches(), steps)


def train_steps(trainer: Trainer, batches: Iterator[Batch], steps: int) -> None:
    """Make optimizer steps, and read losses as late as train.py does."""
    losses = None
    for step in range(steps):
        newest = trainer.step([MicroBatch(next(batches))])
        if step % trainer.hparams.log_interval == 0 and losses and losses.copied:
            # The GPU still works on the newest step.
            losses.copied.synchronize()
        losses = newest


def busy_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals (start, end)."""
    total = 0
    last = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def profile(trainer: Trainer, batches: Iterator[Batch], steps: int) -> dict[str, Any]:
    """Return shares of the steps' time; "busy" is None if the profiler lost or saw no kernels."""
    wall = 0
    busy = 0
    kernels: Counter[str] = Counter()
    activity = getattr(torch.profiler.ProfilerActivity, trainer.device.type.upper())
    for done in range(0, steps, SESSION):
        synchronize(trainer.device)
        with torch.profiler.profile(activities=[activity]) as profiler:
            start = time.time_ns()
            train_steps(trainer, batches, min(SESSION, steps - done))
            synchronize(trainer.device)
            end = time.time_ns()
        seen = []
        for event in profiler.profiler.kineto_results.events():
            if event.device_type() == CUDA and not event.is_user_annotation():
                since = event.start_ns()
                seen.append((event.name(), since, since + event.duration_ns()))
        if max((stop for _, _, stop in seen), default=start) < end - (end - start) / 10:
            return {"busy": None, "top_kernels": []}  # The buffers were full.
        wall += end - start
        busy += busy_ns((max(since, start), min(stop, end)) for _, since, stop in seen)
        for name, since, stop in seen:
            kernels[name] += stop - since
    top = [{"name": name[:80], "share": ns / wall} for name, ns in kernels.most_common(TOP_KERNELS)]
    return {"busy": busy / wall, "top_kernels": top}


# ---------------------------------------------------------------------------- loops


class RecordedLoops:
    """The kernels' loops. They keep the arguments of their calls, so that calls can be repeated."""

    loops: graphs.Graphs

    def __init__(self) -> None:
        self.calls: dict[str, Callable] = {}

    def for_batch(self, *batch: Any) -> "RecordedLoops":
        """Make the loops for a batch, with the arguments of `graphs.graphs_for`."""
        self.loops = kernel_loops(*batch)
        self.operand_dtype = self.loops.operand_dtype
        return self

    def __getattr__(self, name: str) -> Callable:
        def call(*buffers: Any) -> Any:
            self.calls[name] = functools.partial(getattr(self.loops, name), *buffers)
            return self.calls[name]()

        return call


def measure_loops(
    device: torch.device, precision: str, batch_size: int, frames: int, symbols: int, repeats: int
) -> dict[str, Any]:
    """Return the microseconds per decoder step of the fast decoder's four loops, and their sum."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    recorded = RecordedLoops()
    problem = Problem.random(Decoder(HParams()), (symbols,) * batch_size, frames, 0)
    function = functools.partial(fast_decoder.teacher_forced, loops_for=recorded.for_batch)
    problem.to(device=device).run(function, precision=AUTOCAST_DTYPES[precision])
    times = time_interleaved(recorded.calls, repeats, device, warm_up=2, title=precision)
    microseconds = {name: float(1e6 * np.median(times[name]) / frames) for name in LOOPS}
    return {"precision": precision} | microseconds | {"together": sum(microseconds.values())}
