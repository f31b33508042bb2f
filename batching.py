"""The training set of an epoch, rebuilt every epoch under the chosen strategy: from the settings in
hparams.py and the clips' lengths to this epoch's batches.

    sampler = make_sampler(frames, hparams)   # frames: [clips] the length of each clip
    sampler.set_epoch(epoch)                  # plans the epoch: sampler.plan, a list of batches
    loader = make_loader(clips, hparams, pin_memory, sampler)  # data_utils.py

Two steps lead to every equation of Ge et al. 2021, "Speed up training with variable length inputs
by efficient batching strategies", Interspeech:

    the strategies RAND, SB, SSB (eq. 2-3), BKT, ATS    `batching_strategy`
                                                        -> length_batching/strategies.py
    dynamic batch sizes, DBS                            `dynamic_batch_size`, `batch_capacity`
                                                        -> `batch_starts` in length_batching/plan.py
    batch randomization, BR                             `batch_randomization`
                                                        -> the end of `plan_epoch` in that file
    zero-padding rate (eq. 1), average batch length     printed by `describe_costs`
                                                        -> length_batching/costs.py

Beside the paper, `speaker_balance` draws the clips of speakers who have few more often
(`balancing_weights`).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hparams import HParams, batching_options
from length_batching import (
    BatchingError,
    LengthBatchSampler,
    padding_stats,
    plan_epoch,
)
from tacotron2_voice.utils.errors import UserError

MIN_UPDATES = 20  # an epoch: with fewer an epoch teaches little, and most of a run is validation
VALIDATION_SEED = 0  # of the batches and prenet masks of every run's validation


def balancing_weights(
    lengths: np.ndarray, speakers: np.ndarray, hparams: HParams
) -> np.ndarray | None:
    """How often epochs draw each clip, in proportion; None: each clip once.

    A speaker with F frames gets time in an epoch in proportion to F ** (1 - speaker_balance), and
    all clips of a speaker come equally often, so a clip weighs F ** -speaker_balance. Models of
    many languages draw their data with a temperature T = 1 / (1 - speaker_balance): Arivazhagan
    et al., "Massively multilingual neural machine translation in the wild", 2019.

    Args:
        lengths: [clips] frames of each.
        speakers: [clips] a number of the speaker of each.
    """
    frames = np.bincount(speakers, weights=lengths)
    if not hparams.speaker_balance or np.count_nonzero(frames) < 2:
        return None
    return np.asarray((frames.max() / frames[speakers]) ** hparams.speaker_balance)


def draws_of_clips(weights: np.ndarray) -> np.ndarray:
    """[clips] how often an epoch draws each, as a mean over epochs. One epoch draws a clip so often
    rounded down or up; an epoch has as many draws as there are clips."""
    draws: np.ndarray = len(weights) * weights / weights.sum()
    return draws


def make_sampler(
    lengths: np.ndarray,
    hparams: HParams,
    rank: int = 0,
    world_size: int = 1,
    weights: np.ndarray | None = None,
) -> LengthBatchSampler:
    """The sampler of a process's training batches. An update takes `batches_per_update` of them,
    of all processes together; the last update of an epoch may have fewer.

    Args:
        lengths: [clips] frames of each.
        rank, world_size: this process, and how many train together.
        weights: as `balancing_weights` returns them.

    Raises:
        UserError: for options that these clips, or this number of processes, do not allow.
    """
    try:
        return LengthBatchSampler(
            lengths,
            random_epochs=hparams.random_epochs,
            batches_per_update=hparams.batches_per_update,
            short_last_update=True,
            rank=rank,
            world_size=world_size,
            **_options(hparams, weights),
        )
    except BatchingError as error:  # the library stands alone, so it has no UserError
        raise UserError(str(error)) from None


def _options(hparams: HParams, weights: np.ndarray | None) -> dict[str, Any]:
    drawn = {} if weights is None else {"draw_weights": weights}
    return batching_options(hparams) | drawn


def validation_batches(
    lengths: np.ndarray, hparams: HParams, rank: int = 0, world_size: int = 1
) -> list[list[int]]:
    """A process's share of random batches, which are the same in every run and every epoch."""
    plan = plan_epoch(lengths, hparams.validation_batch_size, "random", seed=VALIDATION_SEED)
    return [batch.tolist() for batch in plan][rank::world_size]


def describe_costs(
    sampler: LengthBatchSampler, hparams: HParams, weights: np.ndarray | None = None
) -> str:
    """Lines that compare the sampler's epoch with random batches of the same clips, in padding,
    decoder steps and frames. During `random_epochs` the first epoch after them is described.
    `weights` are those that the sampler was made with."""
    epoch, drawn = max(sampler.epoch, hparams.random_epochs), dict[str, Any]()
    if weights is not None:
        drawn = {"draw_weights": weights, "epoch": epoch}  # the same epoch draws the same clips
    random_plan = plan_epoch(
        sampler.lengths, hparams.batch_size, "random", seed=hparams.seed, **drawn
    )
    plan = sampler.plan_of(epoch)
    frames_per_step = hparams.n_frames_per_step
    ours, rand = (padding_stats(sampler.lengths, x, frames_per_step) for x in (plan, random_plan))
    name = hparams.batching_strategy
    name += ", dynamic sizes" if hparams.dynamic_batch_size else ""
    name += ", batches shuffled" if hparams.batch_randomization else ""
    if weights is not None:
        name += f", speakers balanced by {hparams.speaker_balance:g}"
    if hparams.random_epochs and name != "random":
        name += f", from epoch {hparams.random_epochs + 1} on"
    lines = [
        f"batching: {name}: {ours.num_batches} batches of up to {ours.largest_batch_size} clips",
        f"  zero-padding rate {ours.zero_padding_rate:.2%}, average batch length "
        f"{ours.average_batch_length:.1f} frames (random batches of {hparams.batch_size}: "
        f"{rand.zero_padding_rate:.2%}, {rand.average_batch_length:.1f})",
    ]
    for name in ("decoder_steps", "padded_frames"):
        spent, by_random = getattr(ours, name), getattr(rand, name)
        lines.append(
            f"  {name.replace('_', ' ')} an epoch {spent:,.0f}, {1 - spent / by_random:.1%} fewer "
            f"than random batches' {by_random:,.0f}"
        )
    return "\n".join(lines)


def few_updates(
    sampler: LengthBatchSampler, hparams: HParams, weights: np.ndarray | None = None
) -> str | None:
    """A warning where an epoch has fewer than MIN_UPDATES updates, with the largest batches that
    give so many: a model learns by updates, and large batches of a small corpus make few.
    `weights` are those that the sampler was made with."""
    updates = updates_of(sampler, hparams)
    limits_frames = hparams.dynamic_batch_size and hparams.batch_capacity
    name = "batch_capacity" if limits_frames else "batch_size"
    smaller, now = hparams, updates
    while now < MIN_UPDATES:
        size = math.floor(0.9 * getattr(smaller, name))
        if size < 1:
            return None
        smaller = replace(smaller, **{name: size})
        try:
            now = updates_of(make_sampler(sampler.lengths, smaller, weights=weights), smaller)
        except UserError:  # a size that another option does not allow
            continue
    if smaller is hparams:
        return None
    return (
        f"warning: {updates} updates an epoch, {updates * hparams.epochs:,} in all. Attention "
        "takes hundreds or thousands to learn, whatever their size: "
        f"{name}={getattr(smaller, name)} makes {now} an epoch of these {len(sampler.lengths):,} "
        "clips"
    )


def updates_of(sampler: LengthBatchSampler, hparams: HParams) -> int:
    """How many updates an epoch has, after `random_epochs`."""
    batches = len(sampler.plan_of(max(sampler.epoch, hparams.random_epochs)))
    return math.ceil(batches / hparams.batches_per_update)
