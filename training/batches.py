"""A run's batches, and what these cost."""

from collections.abc import Collection

from batching import BatchingError, LengthBatchSampler, PaddingStats, padding_stats, plan_epoch
from clip_table import ClipTable
from errors import UserError
from hparams import HParams, batching_options
from training.distributed import ALONE, Processes


def make_sampler(
    clips: ClipTable,
    hparams: HParams,
    processes: Processes = ALONE,
    left_out: Collection[int] = (),
) -> LengthBatchSampler:
    """The sampler of this process's training batches; UserError for options that this corpus, or
    this number of processes, does not allow. `left_out`: clips that are not trained on."""
    try:
        return LengthBatchSampler(
            clips.num_frames,
            random_epochs=hparams.random_epochs,
            batches_per_update=hparams.batches_per_update,
            rank=processes.rank,
            world_size=processes.world_size,
            left_out=left_out,
            **batching_options(hparams),
        )
    except BatchingError as error:  # batching.py stands alone, so it has no UserError
        raise UserError(str(error)) from None


def batching_costs(sampler: LengthBatchSampler, hparams: HParams) -> str:
    """An epoch's padding, and its cost against random batches of the same corpus.

    The epoch is the sampler's, or the first that is not meant to be of random batches.
    """
    r = hparams.n_frames_per_step
    random_plan = plan_epoch(sampler.lengths, hparams.batch_size, "random", seed=hparams.seed)
    rand = padding_stats(sampler.lengths, random_plan, frames_per_step=r)
    plan = sampler.plan
    if sampler.epoch < hparams.random_epochs:
        plan = sampler.plan_of(hparams.random_epochs)
    ours = padding_stats(sampler.lengths, plan, frames_per_step=r)

    def cost(what: str, spent: float, spent_by_random: float) -> str:
        saved = 100 * (1 - spent / spent_by_random)
        return (
            f"  {what} an epoch {spent:,.0f}, {saved:.1f} % fewer than random batches' "
            f"{spent_by_random:,.0f}"
        )

    return "\n".join(
        [
            f"batching: {batching_in_words(hparams)}: {ours.num_batches} batches of up to "
            f"{ours.largest_batch_size} clips",
            f"  zero-padding rate {ours.zero_padding_rate:.2%}, average batch length "
            f"{ours.average_batch_length:.1f} frames (random batches of {hparams.batch_size}: "
            f"{rand.zero_padding_rate:.2%}, {rand.average_batch_length:.1f})",
            cost("decoder steps", ours.decoder_steps, rand.decoder_steps),
            cost("padded frames", ours.padded_frames, rand.padded_frames),
        ]
    )


def batching_in_words(hparams: HParams) -> str:
    """The strategy and what is on beside it."""
    name = hparams.batching_strategy
    name += ", dynamic sizes" if hparams.dynamic_batch_size else ""
    name += ", batches shuffled" if hparams.batch_randomization else ""
    return name + (f", from epoch {hparams.random_epochs + 1} on" if hparams.random_epochs else "")


def plan_stats(sampler: LengthBatchSampler, hparams: HParams) -> PaddingStats:
    """What the batches of the sampler's epoch cost in padding."""
    return padding_stats(sampler.lengths, sampler.plan, frames_per_step=hparams.n_frames_per_step)
