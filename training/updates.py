"""The updates of an epoch: which batches each is made of, and this process's share of them."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from batching import LengthBatchSampler
from data_utils import Batch
from training.resume import dropout_seed
from training.run import Run
from training.trainer import LossWeights, MicroBatch


class Update(NamedTuple):
    """An update that is to be made."""

    numbers: list[int]  # of its batches in the epoch's plan
    end: int  # batches of the plan that are trained after it
    clips: np.ndarray  # [clips] of all its batches
    shares: list[LossWeights]  # of its batches
    frames: int  # real ones

    def imbalance(self, world_size: int) -> float:
        """Padded frames of the process with most of them over the processes' mean."""
        padded = [share.padded_frames for share in self.shares]
        return world_size * max(sum(padded[rank::world_size]) for rank in range(world_size))


def next_update(sampler: LengthBatchSampler, position: int, frames_per_step: int) -> Update | None:
    """The first update from this position of the plan on that has a clip; None at its end."""
    while position < len(sampler.plan):
        numbers, position = sampler.update_at(position)
        if not numbers:
            continue
        batches = [np.array(sampler.clips_of(number)) for number in numbers]
        lengths = [sampler.lengths[batch] for batch in batches]
        steps = [np.ceil(x / frames_per_step) for x in lengths]
        sizes = np.array(  # padded steps, real frames, real steps
            [(len(x) * n.max(), x.sum(), n.sum()) for x, n in zip(lengths, steps, strict=True)]
        )
        totals = sizes.sum(axis=0)
        return Update(
            numbers,
            position,
            np.concatenate(batches),
            [LossWeights(*map(float, row)) for row in sizes / totals],
            int(totals[1]),
        )
    return None


def micro_batches_of(update: Update, run: Run, batches: Iterator[Batch]) -> Iterator[MicroBatch]:
    """This process's batches of the update, read one after another; counts the seconds waited."""
    state, sampler = run.state, run.sampler
    for place in range(sampler.rank, len(update.numbers), sampler.world_size):
        waiting = time.perf_counter()
        batch = next(batches)
        state.data_wait_seconds += time.perf_counter() - waiting
        seed = None
        if state.seeded_by_batch:
            seed = dropout_seed(run.hparams.seed, state.epoch, update.numbers[place])
        yield MicroBatch(batch, update.shares[place], seed)
