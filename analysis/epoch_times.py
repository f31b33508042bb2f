"""Minutes of an epoch, from training steps on a sample of its batches, several plans in turns.

A plan's batches are ordered by decoder steps and cut into strata of equal size; two batches of each
are drawn, and whole training steps (forward, loss, backward, clipping, Adam) on noise of the
lengths of their clips are timed. The plans take turns, so what else the machine does meanwhile
falls on all of them alike. The time of an epoch is the sum over strata of mean seconds x batches,
without reading data.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.clips import Clips, noise, noise_batch
from analysis.survey import batch_shapes
from analysis.transcription import read_findings
from data_utils import Batch
from hparams import HParams
from progress import progress_bar
from training.machine import peak_memory, reset_peak_memory, seconds_of
from training.trainer import MicroBatch, Trainer

EPOCH_MINUTES_FILE = "epoch_minutes.json"  # in a run's folder
DRAWS = 2  # batches of a stratum: the fewest that tell how much they differ


@dataclass
class Plan:
    """One epoch under one batching."""

    name: str
    capacity: int  # padded frames that a batch may hold
    batches: list[np.ndarray]
    shapes: np.ndarray  # [batches, 3]: clips, padded frames, padded symbols


def shapes_of(clips: Clips, batches: list[np.ndarray], hparams: HParams) -> np.ndarray:
    """[batches, 3] clips, frames padded to whole decoder steps, and symbols."""
    sizes, frames, symbols = batch_shapes(batches, clips.frames, clips.symbols)
    r = hparams.n_frames_per_step
    return np.stack([sizes, -(-frames // r) * r, symbols], axis=1)


def strata(plan: Plan, draws: int) -> list[np.ndarray]:
    """Batches by number, ordered by padded frames, then clips, and cut into `draws` / 2 parts as
    equal as can be; at least two batches in each, if there are so many."""
    clips, frames, _ = plan.shapes.T
    order = np.lexsort((clips, frames))
    return np.array_split(order, max(1, min(draws, len(order)) // DRAWS))


def draw(parts: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Two batches of each stratum, at random; one where there is no second."""
    rng = np.random.default_rng(seed)
    return [rng.choice(part, min(DRAWS, len(part)), replace=False) for part in parts]


def estimate(sizes: list[int], drawn: list[list[float]]) -> tuple[float, float]:
    """(sum, its standard error) of a quantity over strata of `sizes`, from the values drawn there.

    Stratified sampling without replacement (Cochran, Sampling Techniques, chapter 5). The error
    is not-a-number where a stratum of several has one value only.
    """
    total, variance = 0.0, 0.0
    for size, values in zip(sizes, drawn, strict=True):
        total += size * float(np.mean(values))
        if len(values) < size:
            spread = np.var(values, ddof=1) if len(values) > 1 else math.nan
            variance += size**2 * (1 - len(values) / size) * float(spread) / len(values)
    return total, math.sqrt(variance)


# ---------------------------------------------------------------------------- measuring


class PlanTimer:
    """Times training steps on the plans' batches."""

    def __init__(self, trainer: Trainer, clips: Clips):
        self.trainer, self.clips = trainer, clips
        self.cuda = trainer.device.type == "cuda"
        self.mel = noise(int(clips.frames.max()), trainer.hparams)

    def batch(self, plan: Plan, number: int) -> Batch:
        chosen, hparams = plan.batches[number], self.trainer.hparams
        return noise_batch(self.clips, chosen, self.mel, hparams, self.cuda)

    def step(self, batch: Batch, decoder: str) -> None:
        self.trainer.use_decoder(decoder)
        self.trainer.step([MicroBatch(batch)])

    def peak_bytes(self, plan: Plan, decoder: str) -> int | None:
        """Memory of the batch of most padded frames; None where it cannot be measured."""
        batch = self.batch(plan, int((plan.shapes[:, 0] * plan.shapes[:, 1]).argmax()))
        for _ in range(1 + self.cuda):  # a GPU's first step compiles and captures
            measurable = reset_peak_memory(self.trainer.device)
            self.step(batch, decoder)
        return peak_memory(self.trainer.device) if measurable else None

    def seconds(self, plan: Plan, number: int, decoder: str, repeats: int) -> float:
        """Median of the repeats."""
        batch = self.batch(plan, number)
        if self.cuda:
            self.step(batch, decoder)
        times = [seconds_of(self.trainer.device, self.step, batch, decoder) for _ in range(repeats)]
        return float(np.median(times))


def time_plans(
    trainer: Trainer,
    decoders: list[str],
    clips: Clips,
    plans: list[Plan],
    *,
    batches: int,
    repeats: int,
    seed: int = 0,
) -> dict:
    """{decoder: [{"sizes", "shapes", "seconds", "peak_memory_bytes"} of every plan]}: of every
    stratum the number of its batches, and the shapes and seconds of those drawn.

    Args:
        batches: drawn of each plan, at most.
        repeats: timed steps on each, of which the median counts.
        seed: of the drawing.
    """
    timer = PlanTimer(trainer, clips)
    parts = [strata(plan, batches) for plan in plans]
    drawn = [draw(plan_strata, seed) for plan_strata in parts]
    found = {
        name: [
            {
                "sizes": [len(stratum) for stratum in plan_strata],
                "shapes": [plan.shapes[numbers].tolist() for numbers in chosen],
                "seconds": [[] for _ in plan_strata],
                "peak_memory_bytes": timer.peak_bytes(plan, name),  # and everything is warm then
            }
            for plan, plan_strata, chosen in zip(plans, parts, drawn, strict=True)
        ]
        for name in decoders
    }
    # The plans take turns, so that a machine that slows down meanwhile slows all of them.
    jobs = []
    for index, chosen in enumerate(drawn):
        for stratum, numbers in enumerate(chosen):
            for turn, number in enumerate(numbers.tolist()):
                jobs.append((turn, stratum / len(chosen), index, stratum, number))
    with progress_bar("timing", len(jobs) * len(decoders), " batches") as bar:
        for _, _, index, stratum, number in sorted(jobs):
            for name in decoders:
                seconds = timer.seconds(plans[index], number, name, repeats)
                found[name][index]["seconds"][stratum].append(seconds)
                bar.update()
    return found


# ---------------------------------------------------------------------------- of a run


@dataclass(frozen=True)
class EpochMinutes:
    """Of a run's batching, measured in turns with others."""

    minutes: list[float]  # of every epoch
    relative_error: float  # standard error of each by the drawing of batches, as a share of it


def read_epoch_minutes(path: Path) -> EpochMinutes:
    """What time_epochs.py wrote.

    Raises:
        UserError: naming the file and what is wrong in it.
    """
    return read_findings(path, EpochMinutes)
