"""Divide the batches of an epoch into optimizer steps, and compute the loss weight of each
batch."""

from typing import NamedTuple

import numpy as np

from length_batching import LengthBatchSampler
from training.trainer import LossWeights, StepLosses


class PlannedStep(NamedTuple):
    """One optimizer step of an epoch, for all processes."""

    numbers: list[int]  # indices of this optimizer step's batches in the plan
    end: int  # number of batches of the plan that are finished after this optimizer step
    batches: list[np.ndarray]  # clip indices of each batch
    weights: list[LossWeights]  # loss weights of each batch
    frames: int  # total number of real frames in `batches`

    @property
    def clips(self) -> np.ndarray:
        return np.concatenate(self.batches)


class PendingStep(NamedTuple):
    """An optimizer step whose losses have not been read yet."""

    number: int  # number of this optimizer step, counted from 1 since the run started
    losses: StepLosses
    planned: PlannedStep
    before: int  # number of batches of the epoch that were finished before this optimizer step


def next_step(
    sampler: LengthBatchSampler, position: int, frames_per_step: int
) -> PlannedStep | None:
    """Return the optimizer step that begins at batch `position`, or None after the last batch."""
    if position >= len(sampler.plan):
        return None
    starts = sampler.update_starts
    following = np.searchsorted(starts, position) + 1
    end = int(np.append(starts, len(sampler.plan))[following])
    numbers = list(range(position, end))
    batches = [sampler.plan[number] for number in numbers]
    sizes = np.array([_sizes(sampler.lengths[batch], frames_per_step) for batch in batches])
    totals = sizes.sum(axis=0)
    weights = [LossWeights(*map(float, row)) for row in sizes / totals]
    return PlannedStep(numbers, end, batches, weights, int(totals[1]))


def _sizes(lengths: np.ndarray, frames_per_step: int) -> tuple[float, float, float]:
    """Return (padded decoder steps, real frames, real decoder steps) of a batch."""
    steps = np.ceil(lengths / frames_per_step)
    return len(lengths) * steps.max(), lengths.sum(), steps.sum()
