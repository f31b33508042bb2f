"""Steps of training as train.py makes them, timed as they are and under torch's profiler."""

import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import DataLoader

from clip_table import ClipTable
from data_utils import Batch, make_loader
from training.machine import synchronize
from training.setup import make_sampler
from training.trainer import MicroBatch, Trainer

NAME_LENGTH = 80


class Training:
    """Steps of training, from the first batch of the first epoch on."""

    def __init__(self, trainer: Trainer, clips: ClipTable):
        self.trainer, hparams = trainer, trainer.hparams
        self.loader = make_loader(
            clips,
            hparams,
            trainer.device.type == "cuda",
            make_sampler(clips, hparams),
            persistent_workers=hparams.num_workers > 0,
        )
        self.batches, self.pending, self.done = endless(self.loader), [], 0
        self.marks: list[tuple[int, str]] = []
        self.waited = 0.0  # seconds, for data
        self.padded_frames = self.real_frames = 0

    def fetch(self) -> None:
        """Wait for the next batch now, and not in the next step."""
        self.batches = itertools.chain([next(self.batches)], self.batches)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            began = self.mark("waiting for data")
            batch = next(self.batches)
            self.waited += (self.mark("launching a step") - began) / 1e9
            self.padded_frames += batch.mel.shape[0] * batch.mel.shape[2]
            self.real_frames += int(batch.mel_lengths.sum())
            self.pending.append(self.trainer.step([MicroBatch(batch)]))
            self.done += 1
            if self.done % self.trainer.hparams.log_interval == 0:
                self.mark("reading losses")
                self.read_losses()

    def read_losses(self) -> None:
        """Of all steps but the newest, which the GPU goes on with meanwhile."""
        steps, self.pending = self.pending[:-1], self.pending[-1:]
        if steps and steps[-1].copied is not None:
            steps[-1].copied.synchronize()
        for step in steps:
            if not torch.isfinite(step.values[0]):
                raise FloatingPointError("the loss is not finite: nothing here means anything")

    def mark(self, name: str) -> int:
        now = time.time_ns()
        self.marks.append((now, name))
        return now


def endless(loader: DataLoader) -> Iterator[Batch]:
    """The batches of one epoch after another."""
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def wall_time(training: Training, steps: int) -> dict:
    """The steps as they are."""
    device = training.trainer.device
    training.waited, training.padded_frames = 0.0, 0
    synchronize(device)
    start = time.perf_counter()
    training.run(steps)
    synchronize(device)
    seconds = time.perf_counter() - start
    return {
        "wall_seconds": seconds,
        "waited_for_data": training.waited / seconds,
        "padded_frames_per_second": training.padded_frames / seconds,
    }


# ---------------------------------------------------------------------------- under the profiler


@dataclass
class Session:
    """What the profiler saw of some consecutive steps; times in ns of the system's clock."""

    steps: int
    start: int
    end: int
    marks: list[tuple[int, str]]  # (since when, what the host did), in order
    kernels: list[tuple[str, int, int]] = field(default_factory=list)  # name, start, end
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # of the host to CUDA

    def complete(self) -> bool:
        """Whether there are kernels to the end. If not, the profiler's buffers were full."""
        last = max((end for _, _, end in self.kernels), default=self.start)
        return last > self.end - (self.end - self.start) / 10


def profiled(training: Training, steps: int) -> tuple[Session, object]:
    """The steps under the profiler, and the profiler."""
    cuda = training.trainer.device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
    synchronize(training.trainer.device)
    training.marks = []
    with warnings.catch_warnings():
        # of earlier cycles, of which there are none
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        with torch.profiler.profile(activities=[activity]) as profiler:
            start = training.mark("starting")
            training.run(steps)
            training.mark("waiting for the last step")
            synchronize(training.trainer.device)
            end = time.time_ns()
    return Session(steps, start, end, training.marks), profiler


def collect(session: Session, events) -> None:
    """Kernels and copies, and the host's calls to CUDA, from what the profiler recorded."""
    for event in events:
        start = event.start_ns()
        entry = (event.name()[:NAME_LENGTH], start, start + event.duration_ns())
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            if not event.is_user_annotation():
                session.kernels.append(entry)
        elif entry[0].startswith("cu"):
            session.calls.append(entry)


def union(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the intervals that together cover the same points, in order, apart."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.append(first[1:], True)[: len(starts)]
    return starts[first], ends[last]


def idle_times(session: Session) -> np.ndarray:
    """[gaps, 2] start and end of the times in the session when nothing ran on the GPU."""
    times = np.array([(s, e) for _, s, e in session.kernels], dtype=np.int64).reshape(-1, 2)
    starts, ends = union(*times.clip(session.start, session.end).T)
    gaps = np.stack([np.append(session.start, ends), np.append(starts, session.end)], axis=1)
    return gaps[gaps[:, 1] > gaps[:, 0]]


def busy_share(session: Session) -> float | None:
    """Of the session's time, that in which anything ran on the GPU; None if the profiler lost
    some."""
    if not session.complete():
        return None
    return 1 - int(np.diff(idle_times(session)).sum()) / (session.end - session.start)
