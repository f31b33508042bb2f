"""A run's clips, their batches, and what these cost."""

from collections.abc import Collection, Iterable, Mapping

from batching import BatchingError, LengthBatchSampler, PaddingStats, padding_stats, plan_epoch
from data_utils import Clip, read_filelist, time_checked, warn_of_long_clips
from errors import UserError
from hparams import HParams, batching_options, check_symbols
from progress import progress_bar
from training.processes import ALONE, Processes


def read_clips(
    hparams: HParams, *, new_run: bool, skipped: Mapping[str, int | None] | None = None
) -> list[list[Clip]]:
    """The training and the validation clips; UserError names all that is wrong with either.

    A new run reads every sample, or cached mel, of a list that prepare_ljspeech.py did not write
    or that changed since, and of the files that changed since; a run that goes on read them when it
    began. `skipped`: as `read_filelist` takes it.
    """
    check_symbols(hparams)
    lists, problems = [], []
    for filelist in (hparams.training_files, hparams.validation_files):
        checked = time_checked(filelist)

        def shown(
            lines: list, filelist: str = filelist, all_new: bool = new_run and checked is None
        ) -> Iterable:
            if all_new:
                print(f"{filelist}: not as prepare_ljspeech.py checked it: reading every clip once")
            return progress_bar(f"checking {filelist}", len(lines), " lines", iterable=lines)

        try:
            read_since = (checked or 0) if new_run else None
            clips = read_filelist(
                filelist, hparams, shown, skipped, new_run=new_run, read_since=read_since
            )
            lists.append(clips)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    shared = {clip.path for clip in lists[0]} & {clip.path for clip in lists[1]}
    if shared:
        print(f"warning: {len(shared)} validation clips are trained on too, {min(shared)} for one")
    seconds_per_frame = hparams.hop_length / hparams.sampling_rate
    for clips in lists:
        names = [f"{clip.where}: {clip.path}" for clip in clips]
        warning = warn_of_long_clips(names, [clip.num_frames * seconds_per_frame for clip in clips])
        if warning:
            print(warning)
    return lists


def make_sampler(
    clips: list[Clip],
    hparams: HParams,
    processes: Processes = ALONE,
    left_out: Collection[int] = (),
) -> LengthBatchSampler:
    """The sampler of this process's training batches; UserError for options that this corpus, or
    this number of processes, does not allow. `left_out`: clips that are not trained on."""
    try:
        return LengthBatchSampler(
            [clip.num_frames for clip in clips],
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
