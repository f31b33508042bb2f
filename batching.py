"""Make this epoch's batches from the clips' lengths and the settings in hparams.py.

    sampler = make_sampler(frames, hparams)   # frames: [clips] the length of each clip
    sampler.set_epoch(epoch)                  # plans the epoch: sampler.plan, a list of batches
    loader = make_loader(clips, hparams, sampler, pin_memory=True)

This list shows where each setting and each equation of Ge et al. is implemented ("Speed up training
with variable length inputs by efficient batching strategies", Interspeech 2021):

    `batching_strategy`: RAND, SB, SSB (eq. 2-3), BKT, ATS   length_batching/strategies.py
    `dynamic_batch_size`, `batch_capacity`: DBS              `batch_starts` in
    length_batching/plan.py `batch_randomization`: BR                                the end of
    `plan_epoch` in that file zero-padding rate (eq. 1), average batch length
    length_batching/costs.py, printed by
                                                             `describe_costs`

`speaker_balance` is not from this paper: it draws the clips of speakers with little speech more
often (`balancing_weights`).
"""

import math
from typing import Any

import numpy as np

from hparams import HParams, batching_options
from length_batching import BatchingError, LengthBatchSampler, padding_stats, plan_epoch
from tacotron2_voice.utils.errors import UserError

# A run with fewer optimizer steps per epoch spends most of its time on validation.
MIN_UPDATES = 20
VALIDATION_SEED = 0  # seed of the validation batches and of the prenet masks in validation


def balancing_weights(
    lengths: np.ndarray, speakers: np.ndarray, hparams: HParams
) -> np.ndarray | None:
    """Return the weight with which an epoch draws each clip [clips], or None to draw each clip
    once.

    The time of a speaker in an epoch is proportional to F ** (1 - speaker_balance), where F is the
    number of frames of the speaker. An epoch draws all clips of a speaker equally often, so the
    weight of a clip is F ** -speaker_balance. Models of many languages draw their data with a
    temperature T = 1 / (1 - speaker_balance): Arivazhagan et al., "Massively multilingual neural
    machine translation in the wild", 2019.

    Args:
        lengths: [clips] frames.
        speakers: [clips] the number of the clip's speaker.
    """
    frames = np.bincount(speakers, weights=lengths)
    if not hparams.speaker_balance or np.count_nonzero(frames) < 2:
        return None
    return np.asarray((frames.max() / frames[speakers]) ** hparams.speaker_balance)


def draws_of_clips(weights: np.ndarray) -> np.ndarray:
    """Return the mean number of times that an epoch draws each clip [clips].

    An epoch draws as many clips as the corpus has. It rounds these numbers up or down at random.
    """
    draws: np.ndarray = len(weights) * weights / weights.sum()
    return draws


def make_sampler(
    lengths: np.ndarray,
    hparams: HParams,
    rank: int = 0,
    world_size: int = 1,
    weights: np.ndarray | None = None,
) -> LengthBatchSampler:
    """Return the batch sampler of one training process.

    An optimizer step takes `batches_per_update` batches, counted over all processes. The last
    optimizer step of an epoch may take fewer.

    Args:
        lengths: [clips] frames.
        rank: the number of this process, from 0.
        world_size: how many processes train together.
        weights: the result of `balancing_weights`.

    Raises:
        UserError: if a setting does not fit these clips or this number of processes.
    """
    options = batching_options(hparams)
    if weights is not None:
        options["draw_weights"] = weights
    try:
        return LengthBatchSampler(
            lengths,
            random_epochs=hparams.random_epochs,
            batches_per_update=hparams.batches_per_update,
            short_last_update=True,
            rank=rank,
            world_size=world_size,
            **options,
        )
    # length_batching is an independent library, so it does not raise UserError
    except BatchingError as error:
        raise UserError(str(error)) from None


def validation_batches(
    lengths: np.ndarray, hparams: HParams, rank: int = 0, world_size: int = 1
) -> list[list[int]]:
    """Return the random validation batches of a process, which are the same in every run and
    epoch."""
    plan = plan_epoch(lengths, hparams.validation_batch_size, "random", seed=VALIDATION_SEED)
    return [batch.tolist() for batch in plan][rank::world_size]


def describe_costs(
    sampler: LengthBatchSampler, hparams: HParams, weights: np.ndarray | None = None
) -> str:
    """Describe an epoch of the sampler in lines, compared with random batches of the same clips.

    The lines contain padding, decoder steps and frames. During `random_epochs`, they describe the
    first epoch after the random epochs.

    Args:
        weights: the same as for `make_sampler`.
    """
    epoch = max(sampler.epoch, hparams.random_epochs)
    draw: dict[str, Any] = {}
    if weights is not None:
        # The same epoch number makes both plans draw the same clips.
        draw = {"draw_weights": weights, "epoch": epoch}
    random_plan = plan_epoch(
        sampler.lengths, hparams.batch_size, "random", seed=hparams.seed, **draw
    )
    plan = sampler.plan_of(epoch)
    ours = padding_stats(sampler.lengths, plan, hparams.n_frames_per_step)
    random = padding_stats(sampler.lengths, random_plan, hparams.n_frames_per_step)
    name = hparams.batching_strategy
    if hparams.dynamic_batch_size:
        name += ", dynamic sizes"
    if hparams.batch_randomization:
        name += ", batches shuffled"
    if weights is not None:
        name += f", speakers balanced by {hparams.speaker_balance:g}"
    if hparams.random_epochs and name != "random":
        name += f", from epoch {hparams.random_epochs + 1} on"
    lines = [
        f"batching: {name}: {ours.num_batches} batches of up to {ours.largest_batch_size} clips",
        f"  zero-padding rate {ours.zero_padding_rate:.2%}, average batch length "
        f"{ours.average_batch_length:.1f} frames (random batches of {hparams.batch_size}: "
        f"{random.zero_padding_rate:.2%}, {random.average_batch_length:.1f})",
    ]
    for label, spent, by_random in (
        ("decoder steps", ours.decoder_steps, random.decoder_steps),
        ("padded frames", ours.padded_frames, random.padded_frames),
    ):
        lines.append(
            f"  {label} per epoch {spent:,.0f}, {1 - spent / by_random:.1%} fewer than random "
            f"batches' {by_random:,.0f}"
        )
    return "\n".join(lines)


def few_updates(sampler: LengthBatchSampler, hparams: HParams) -> str | None:
    """Return a warning if an epoch has fewer than MIN_UPDATES optimizer steps, or None.

    A model needs many optimizer steps to learn, and a small corpus in large batches has few.
    """
    updates = updates_of(sampler, hparams)
    limits_frames = hparams.dynamic_batch_size and hparams.batch_capacity
    name = "batch_capacity" if limits_frames else "batch_size"
    size = getattr(hparams, name) * updates // MIN_UPDATES
    if updates >= MIN_UPDATES:
        return None
    advice = f"Set {name}={size} for about {MIN_UPDATES} per epoch" if size else "Add more clips"
    return (
        f"warning: {updates} optimizer steps per epoch, {updates * hparams.epochs:,} in all epochs, "
        "and attention needs hundreds or thousands of optimizer steps, also with large batches. "
        f"{advice}"
    )


def updates_of(sampler: LengthBatchSampler, hparams: HParams) -> int:
    """Return the number of optimizer steps per epoch, after `random_epochs`."""
    batches = len(sampler.plan_of(max(sampler.epoch, hparams.random_epochs)))
    return math.ceil(batches / hparams.batches_per_update)
