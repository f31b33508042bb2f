"""Plan the batches of an epoch from the clip lengths and the settings in hparams.py.

    sampler = make_sampler(frames, hparams)   # frames: length of each clip [clips]
    sampler.set_epoch(epoch)                  # plans the epoch; see sampler.plan
    loader = make_loader(clips, hparams, sampler, pin_memory=True)

Each setting and each equation of Ge et al., "Speed up training with variable length inputs by
efficient batching strategies" (Interspeech 2021), is implemented in one of these files:

    `batching_strategy`: RAND, SB, SSB (eq. 2-3), BKT, ATS   length_batching/strategies.py
    `dynamic_batch_size`, `batch_capacity`: DBS              length_batching/plan.py, `batch_starts`
    `batch_randomization`: BR                                length_batching/plan.py, `plan_epoch`
    zero-padding rate (eq. 1), average batch length          length_batching/costs.py

`describe_costs` prints the zero-padding rate and the average batch length. With the setting
`speaker_balance`, which is not from the paper, an epoch repeats the clips of speakers with little
speech (`balancing_weights`).
"""

import math
from typing import Any

import numpy as np

from hparams import HParams, batching_options, parse_row_costs
from length_batching import BatchingError, LengthBatchSampler, padding_stats, plan_epoch
from tacotron2_voice.utils.errors import UserError

# Minimum number of optimizer steps per epoch. If an epoch has fewer optimizer steps, validation
# takes most of the run's time.
MIN_UPDATES = 20
VALIDATION_SEED = 0  # seed for the validation batches and their prenet dropout masks


def balancing_weights(
    lengths: np.ndarray, speakers: np.ndarray, hparams: HParams
) -> np.ndarray | None:
    """Return the sampling weight of each clip [clips], or None if an epoch draws each clip once.

    A speaker's share of an epoch is proportional to F ** (1 - speaker_balance), where F is the
    speaker's number of frames. On average, all clips of a speaker are drawn equally often, so the
    sampling weight of each clip is F ** -speaker_balance. Arivazhagan et al., "Massively
    multilingual neural machine translation in the wild" (2019), sample languages in the same way,
    with a temperature T = 1 / (1 - speaker_balance).

    Args:
        lengths: number of frames of each clip [clips].
        speakers: index of each clip's speaker [clips].
    """
    frames = np.bincount(speakers, weights=lengths)
    if not hparams.speaker_balance or np.count_nonzero(frames) < 2:
        return None
    return np.asarray((frames.max() / frames[speakers]) ** hparams.speaker_balance)


def draws_of_clips(weights: np.ndarray) -> np.ndarray:
    """Return the average number of times that an epoch draws each clip [clips].

    An epoch draws as many clips as the corpus contains. In each epoch, the actual number of draws
    of a clip is the average, randomly rounded up or down.
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

    An optimizer step uses `batches_per_update` batches, which are distributed among all processes.
    The last optimizer step of an epoch may use fewer batches.

    Args:
        lengths: number of frames of each clip [clips].
        rank: rank of this process, counted from 0.
        world_size: number of processes that train together.
        weights: the result of `balancing_weights`.

    Raises:
        UserError: if a setting is invalid for these clips or this number of processes.
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
    # length_batching is an independent library without UserError, so convert its error here.
    except BatchingError as error:
        raise UserError(str(error)) from None


def validation_batches(
    lengths: np.ndarray, hparams: HParams, rank: int = 0, world_size: int = 1
) -> list[list[int]]:
    """Return the validation batches of a process.

    The clips are grouped into batches at random, but the batches are the same in every run and
    every epoch.
    """
    plan = plan_epoch(lengths, hparams.validation_batch_size, "random", seed=VALIDATION_SEED)
    return [batch.tolist() for batch in plan][rank::world_size]


def describe_costs(
    sampler: LengthBatchSampler, hparams: HParams, weights: np.ndarray | None = None
) -> str:
    """Return lines of text that compare the sampler's batches in one epoch with random batches.

    The lines compare padding, decoder steps and padded frames in the current epoch. The first
    `random_epochs` epochs already have random batches. In these epochs, the lines compare the first
    epoch without random batches instead.

    Args:
        weights: the result of `balancing_weights`.
    """
    epoch = max(sampler.epoch, hparams.random_epochs)
    draw: dict[str, Any] = {}
    if weights is not None:
        # Use the same epoch number for the random plan and the sampler's plan, so that both plans
        # contain the same clips.
        draw = {"draw_weights": weights, "epoch": epoch}
    random_plan = plan_epoch(
        sampler.lengths, hparams.batch_size, "random", seed=hparams.seed, **draw
    )
    plan = sampler.plan_of(epoch)
    row_costs, clip_cost = parse_row_costs(hparams.row_costs)
    ours, random = (
        padding_stats(
            sampler.lengths,
            batches,
            hparams.n_frames_per_step,
            row_costs=row_costs,
            clip_cost=clip_cost,
        )
        for batches in (plan, random_plan)
    )
    name = hparams.batching_strategy
    if hparams.dynamic_batch_size:
        name += ", dynamic batch sizes"
    if hparams.batch_randomization:
        name += ", batches shuffled"
    if weights is not None:
        name += f", speaker_balance={hparams.speaker_balance:g}"
    if hparams.random_epochs and name != "random":
        name += f", from epoch {hparams.random_epochs + 1} on"
    lines = [
        f"batching strategy: {name}: {ours.num_batches} batches of up to {ours.largest_batch_size} clips",
        f"  zero-padding rate {ours.zero_padding_rate:.2%}, average batch length "
        f"{ours.average_batch_length:.1f} frames (random batches of {hparams.batch_size}: "
        f"{random.zero_padding_rate:.2%}, {random.average_batch_length:.1f})",
    ]
    for label, spent, by_random in (
        ("decoder steps", ours.decoder_steps, random.decoder_steps),
        ("padded frames", ours.padded_frames, random.padded_frames),
    ):
        lines.append(
            f"  {label} per epoch {spent:,.0f}, {1 - spent / by_random:.1%} fewer than with random "
            f"batches ({by_random:,.0f})"
        )
    if ours.step_cost is not None and random.step_cost is not None:
        saved = 1 - ours.step_cost / random.step_cost
        lines.append(
            f"  predicted time of an epoch {ours.step_cost / 1e6:,.1f} s, {saved:.1%} less than with "
            f"random batches ({random.step_cost / 1e6:,.1f} s), from row_costs={hparams.row_costs}"
        )
    if hparams.batching_strategy != "random":
        lines.append(
            "  in our studies, the model learned less per epoch than with random batches: see "
            "docs/batching/choosing-a-strategy.md"
        )
    return "\n".join(lines)


def few_updates(sampler: LengthBatchSampler, hparams: HParams) -> str | None:
    """Return a warning if an epoch has fewer than MIN_UPDATES optimizer steps, otherwise None."""
    updates = optimizer_steps_per_epoch(sampler, hparams)
    limits_frames = hparams.dynamic_batch_size and hparams.batch_capacity
    name = "batch_capacity" if limits_frames else "batch_size"
    size = getattr(hparams, name) * updates // MIN_UPDATES
    if updates >= MIN_UPDATES:
        return None
    advice = (
        f"Set {name}={size} for about {MIN_UPDATES} optimizer steps per epoch"
        if size
        else "Add more clips"
    )
    return (
        f"warning: an epoch has only {updates} optimizer steps ({updates * hparams.epochs:,} in "
        "all epochs). A model needs hundreds or thousands of optimizer steps to learn attention, "
        f"even with large batches. {advice}"
    )


def optimizer_steps_per_epoch(sampler: LengthBatchSampler, hparams: HParams) -> int:
    """Return the number of optimizer steps in an epoch after the random epochs."""
    batches = len(sampler.plan_of(max(sampler.epoch, hparams.random_epochs)))
    return math.ceil(batches / hparams.batches_per_update)
