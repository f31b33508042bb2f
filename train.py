"""Train Tacotron 2 under any batching strategy.

    python train.py -o runs/ljspeech                                   # start
    python train.py -o runs/ljspeech --resume                          # go on after a stop
    python train.py -o runs/small --hparams batch_size=32,batching_strategy=bucket
    python train.py -o runs/other -c tacotron2.pt --warm_start         # start from its weights
    tensorboard --logdir runs                                          # watch

Ctrl-C, SIGTERM or a closed terminal (SIGHUP) saves a checkpoint and stops; what cannot be printed
stops nothing. All settings: hparams.py.

This file is the recipe from top to bottom: arguments, set-up, and the loop in the order in which
it runs. The folder training/ holds its parts: the clips and their batches (batches.py), one update
(trainer.py), finding, saving and restoring a run (resume.py), losses and sums (totals.py),
validation (validation.py), and how training ends (stopping.py).
"""

import environment

import argparse
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from audio import mel_filters
from data_utils import Batch, make_loader
from errors import UserError
from files import METRICS_FILE
from hparams import describe
from progress import duration, progress_bar
from training import checkpoint
from training.agreement import (
    find_checkpoint_together,
    load_warm,
    read_data,
    take_output,
    what_must_agree,
)
from training.batches import batching_costs
from training.clips import indices_of
from training.distributed import Processes, SaidElsewhere, join
from training.machine import largest_memory
from training.memory_check import check_memory
from training.output import OutputFolder
from training.printing import print_nothing, print_without_failing
from training.resume import finished, open_output, plan_number, restore, save
from training.run import Run
from training.skipping import epoch_stats, how_to_skip, skip_from_here
from training.stopping import DEFAULT_LOGS, StopRequest, messages
from training.totals import NoNextBatch, count_step, log_epoch, read_pending
from training.trainer import Trainer, guided_attention_weight_at, learning_rate_at
from training.updates import micro_batches_of, next_update
from training.validation import log_validation, make_validation_loader, validate

# ---------------------------------------------------------------------------- arguments


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-o", "--output_directory", type=Path, required=True, help="checkpoints and metrics.jsonl")
    add(
        "-l",
        "--log_directory",
        default=DEFAULT_LOGS,
        help="TensorBoard events, inside the output folder",
    )
    add("-c", "--checkpoint_path", type=Path, help="go on from this checkpoint")
    add("--warm_start", action="store_true", help="take only weights from -c, not ignore_layers")
    add("--resume", action="store_true", help="go on from the newest good checkpoint in -o, if any")
    add(
        "--skip-clips",
        default="",
        metavar="ID,...",
        help="with --resume: go on without these clips, named by their files without ending",
    )
    add("--hparams", default="", metavar="name=value,...", help="override hyper-parameters")
    add("--process-timeout", type=float, default=300, help="seconds to wait for the others (300)")
    add("--n_gpus", type=int, default=1, help="torchrun starts several processes")
    add("--rank", type=int, default=0, help="torchrun says it")
    add("--group_name", default="", help="taken for compatibility, not used")
    args = parser.parse_args(arguments)
    if args.n_gpus != 1 or args.rank != 0:
        parser.error(
            f"--n_gpus {args.n_gpus} --rank {args.rank}: leave both out; torchrun starts a process "
            "for each GPU and says which is which: "
            f"torchrun --nproc-per-node {args.n_gpus} train.py -o {args.output_directory} ..."
        )
    if args.warm_start and args.checkpoint_path is None:
        parser.error("--warm_start takes weights from a checkpoint: name it with -c")
    if args.resume and args.checkpoint_path is not None and not args.warm_start:
        parser.error("--resume finds the checkpoint itself: leave out -c, or leave out --resume")
    output = args.output_directory.resolve()
    if not (output / args.log_directory).resolve().is_relative_to(output):
        parser.error(
            f"--log_directory {args.log_directory}: must lie inside the output folder, for a run "
            "that goes on cuts the logs there back to its checkpoint"
        )
    return args


# ---------------------------------------------------------------------------- set-up


def set_up(args: argparse.Namespace, processes: Processes) -> Run | None:
    """Take the output folder, check everything, build the run. None: finished already.

    Nothing is written before all is checked, in all processes.
    """
    output, run = processes.all_or_none(lambda: take_output(args, processes)), None
    try:
        run = build_run(args, processes, output)
    finally:
        if run is None and output is not None:
            output.close()
    return run


def build_run(
    args: argparse.Namespace, processes: Processes, output: OutputFolder | None
) -> Run | None:
    found = find_checkpoint_together(args, processes)
    device = processes.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = read_data(args, processes, found)
    hparams = data.hparams
    if finished(found, hparams, args.output_directory):
        print(f"finished already: {hparams.epochs} epochs; raise epochs to train on")
        return None
    processes.refuse_differences(what_must_agree(data, found, device))
    print(describe(hparams))
    if device.type == "cpu":
        print("no CUDA GPU found: training on the CPU, which is slow for a full-size model")
    pin_memory = device.type == "cuda"
    if not hparams.load_mel_from_disk:
        mel_filters(hparams)  # imports librosa here: forked workers need not, nor the first epoch
    trainer = Trainer(hparams, device, processes)
    print(f"decoder: {trainer.decoder_description}")
    if data.weights is not None:
        load_warm(trainer.model, data.weights, args.checkpoint_path, hparams)
    run = Run(
        hparams=hparams,
        output_directory=args.output_directory,
        output=output,
        training_clips=data.training_clips,
        validation_clips=data.validation_clips,
        corpus=data.corpus,
        sampler=data.sampler,
        loader=make_loader(
            data.training_clips,
            hparams,
            pin_memory,
            data.sampler,
            persistent_workers=hparams.num_workers > 0,
        ),
        validation_loader=make_validation_loader(
            data.validation_clips,
            hparams,
            pin_memory,
            processes,
            indices_of(data.validation_clips, data.left_out),
        ),
        trainer=trainer,
    )
    if found is not None:
        processes.all_or_none(lambda: restore(run, found))
        skip_from_here(run, data.left_out)
    print(
        f"{len(run.training_clips):,} training clips, "
        f"{len(run.validation_clips):,} for validation, "
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters"
    )
    print(batching_costs(run.sampler, hparams))
    if device.type == "cuda":
        peaks = processes.gather(
            processes.all_or_none(
                lambda: check_memory(trainer, data.training_clips, data.validation_clips)
            )
        )
        print(f"the costliest batches of any epoch fit into memory: {max(peaks) / 1e9:.2f} GB")
    processes.all_or_none(lambda: open_output(run, args, found))
    return run


# ---------------------------------------------------------------------------- the loop


def train(run: Run, stop: StopRequest) -> None:
    """Epoch after epoch: plan, train, validate, log, save."""
    hparams, state = run.hparams, run.state
    run.trainer.model.train()
    while state.epoch <= hparams.epochs:
        clock = time.perf_counter()
        # Keeps the position of an epoch resumed half-way.
        run.sampler.set_epoch(plan_number(state.epoch, hparams))
        state.prepare_seconds += time.perf_counter() - clock

        train_epoch(run, stop, clock)

        validated = None
        if state.epoch % hparams.epochs_per_validation == 0:
            validated = validate(run, next_batches(run.validation_loader), stop)
            if validated is None:
                save(run)
                stop.leave(run)

        log_epoch(run, epoch_stats(run))
        if validated is not None:
            log_validation(run, *validated)

        state = run.state = state.next_epoch()
        stop.agree(run)
        if validated is not None or run.must_stop or state.epoch > hparams.epochs:
            save(run)
            stop.leave(run)


def train_epoch(run: Run, stop: StopRequest, clock: float) -> None:
    """The batches of this epoch that are left. `clock` is when its planning began.

    The clock stands still while checkpoints are written, so `state.seconds` is training alone.
    """
    hparams, state, sampler, trainer = run.hparams, run.state, run.sampler, run.trainer
    several = run.processes.world_size > 1
    longest = np.maximum.reduceat(sampler.lengths[sampler.plan.order], sampler.plan.starts)
    total, done = longest.sum(), longest[: state.batches_trained].sum()  # as steps take time
    progress = progress_bar(
        f"epoch {state.epoch}",
        len(longest),
        " batches",
        line="{desc}: {n_fmt} of {total_fmt}{unit}{postfix}",
        initial=state.batches_trained,
    )
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    try:
        batches = next_batches(run.loader)
        while update := next_update(sampler, state.batches_trained, hparams.n_frames_per_step):
            trainer.guided_attention_weight = guided_attention_weight_at(state.iteration, hparams)
            num_batches = len(update.numbers)
            losses = trainer.step(
                micro_batches_of(update, run, batches),
                learning_rate_at(state.iteration, hparams),
                num_batches=num_batches,
                stop=stop.signal is not None,
            )
            before = state.batches_trained
            count_step(run, update, losses)
            if several or (state.iteration - 1) % hparams.log_interval == 0:
                read_pending(run, but=1)  # where several train, whether to stop is read from it
            seconds = state.seconds + time.perf_counter() - clock
            done += longest[before : update.end].sum()
            progress.set_postfix_str(time_left(run, done, total, seconds), refresh=False)
            run.must_stop = run.must_stop or (not several and stop.signal is not None)
            if state.iteration % hparams.iters_per_checkpoint == 0 or run.must_stop:
                read_pending(run)
                state.seconds += time.perf_counter() - clock
                save(run)
                stop.leave(run)
                clock = time.perf_counter()
            progress.update(update.end - before)
        read_pending(run)
        state.seconds += time.perf_counter() - clock
        state.peak_memory_bytes = max(state.peak_memory_bytes, largest_memory(run.device))
    finally:
        progress.close()


def time_left(run: Run, done: float, total: float, seconds: float) -> str:
    """Loss, alignment sharpness, and the times left if all goes as fast as `done` in `seconds`."""
    left = seconds / done * (total - done)
    whole = left + seconds / done * total * (run.hparams.epochs - run.state.epoch)
    loss = "" if run.recent_loss is None else f"loss {run.recent_loss:.4f}, "
    sharpness = run.recent_sharpness
    alignment = "" if sharpness is None else f"alignment {sharpness:.2f}, "
    return f"{loss}{alignment}epoch {duration(left)} left, run {duration(whole)} left"


def next_batches(loader: DataLoader) -> Iterator[Batch]:
    """The loader's batches.

    Raises:
        NoNextBatch: from what was raised, if reading fails.
    """
    try:
        yield from loader
    except Exception as error:
        raise NoNextBatch from error


def save_what_is_trained(run: Run, stopped: NoNextBatch) -> Exception:
    """Save after reading failed, here or in another process. Returns what is to be raised."""
    read_pending(run)
    path = save(run)
    print(f"everything until here is in {path}", flush=True)
    failure = stopped.__cause__
    if failure is None:
        return SaidElsewhere("another process found no next batch, and says why")
    if not isinstance(failure, UserError):
        return failure
    # A loader's process sends its traceback before the message, and the class's name with it.
    message = str(failure).strip().splitlines()[-1].removeprefix("errors.UserError: ")
    # The frames of the traceback would keep the loader's processes alive.
    message += how_to_skip(message, (run.training_clips, run.validation_clips))
    return UserError(f"no next batch: {message}")


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()
    args = parse_arguments(arguments)
    with messages():
        processes = join(args.process_timeout)
        if not processes.is_first:
            print_nothing()
        run = set_up(args, processes)
    if run is None:
        return
    directory = args.output_directory
    try:
        with messages(run):
            print(f"checkpoints and {METRICS_FILE}: {directory}")
            print(f"watch: tensorboard --logdir {shlex.quote(str(directory))}", flush=True)
            try:
                train(run, StopRequest())
            except NoNextBatch as stopped:
                raise save_what_is_trained(run, stopped) from None
    finally:
        run.close()
    print(f"finished: {run.hparams.epochs} epochs, {run.state.iteration} steps")
    best = directory / checkpoint.BEST
    newest = best if best.exists() else checkpoint.list_checkpoints(directory)[-1][1]
    print(f"speak: python synthesize.py --checkpoint {shlex.quote(str(newest))} --text ...")


if __name__ == "__main__":
    main()
