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
(step.py), finding, saving and restoring a run (resume.py), losses and sums (totals.py), validation
(validation.py), and how training ends (stopping.py).
"""

import environment

import argparse
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from audio import mel_filters
from data_utils import Batch, corpus_fingerprint, make_loader
from errors import UserError
from files import METRICS_FILE
from hparams import describe
from progress import duration, progress_bar
from training import checkpoint
from training.batches import batching_costs, make_sampler
from training.measuring import largest_memory
from training.output import OutputFolder
from training.printing import print_without_failing
from training.rehearsal import rehearse
from training.resume import (
    epoch_seed,
    find_checkpoint,
    finished,
    open_output,
    plan_number,
    resolve_hparams,
    restore,
    save,
)
from training.run import Run
from training.skipping import (
    KeptBatches,
    clips_to_skip,
    epoch_stats,
    how_to_skip,
    read_clips_but,
    skip_from_here,
    skipped_indices,
)
from training.step import Trainer, guided_attention_weight_at, learning_rate_at
from training.stopping import DEFAULT_LOGS, StopRequest, messages
from training.totals import count_step, log_epoch, read_pending
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
    add("--n_gpus", type=int, default=1, help="only 1: this version trains on one GPU")
    add("--rank", type=int, default=0, help="only 0")
    add("--group_name", default="", help="taken for compatibility, not used")
    args = parser.parse_args(arguments)
    if args.n_gpus != 1 or args.rank != 0:
        parser.error(
            f"--n_gpus {args.n_gpus} --rank {args.rank}: this version trains in one process on one "
            "GPU; leave both out"
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


def set_up(args: argparse.Namespace) -> Run | None:
    """Take the output folder, check everything, build the run. None: finished already.

    Nothing is written before all is checked.
    """
    output, run = OutputFolder(args.output_directory), None
    try:
        run = build_run(args, output)
    finally:
        if run is None:
            output.close()
    return run


def build_run(args: argparse.Namespace, output: OutputFolder) -> Run | None:
    found = find_checkpoint(args)
    weights = None
    if args.warm_start and found is None:
        weights = checkpoint.load_checkpoint(args.checkpoint_path)
    hparams = resolve_hparams(args.hparams, found)
    if finished(found, hparams, args.output_directory):
        print(f"finished already: {hparams.epochs} epochs; raise epochs to train on")
        return None
    print(describe(hparams))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        print("no CUDA GPU found: training on the CPU, which is slow for a full-size model")
    pin_memory = device.type == "cuda"

    left_out = clips_to_skip(args.skip_clips, found)
    training_clips, validation_clips = read_clips_but(
        left_out, args.output_directory, hparams, going_on=found is not None
    )
    if not hparams.load_mel_from_disk:
        mel_filters(hparams)  # imports librosa here: forked workers need not, nor the first epoch
    sampler = make_sampler(training_clips, hparams)
    trainer = Trainer(hparams, device)
    print(f"decoder: {trainer.decoder_description}")
    if weights is not None:
        checkpoint.load_weights(trainer.model, weights, args.checkpoint_path, hparams.ignore_layers)
        kept = ", ".join(hparams.ignore_layers) or "none"
        print(f"weights from {args.checkpoint_path}; ignore_layers keep theirs: {kept}")
    run = Run(
        hparams=hparams,
        output=output,
        training_clips=training_clips,
        validation_clips=validation_clips,
        corpus=corpus_fingerprint(training_clips, validation_clips),
        sampler=sampler,
        loader=make_loader(
            training_clips,
            hparams,
            pin_memory,
            KeptBatches(sampler, skipped_indices(training_clips, left_out)),
            persistent_workers=hparams.num_workers > 0,
        ),
        validation_loader=make_validation_loader(
            validation_clips, hparams, pin_memory, skipped_indices(validation_clips, left_out)
        ),
        trainer=trainer,
    )
    if found is not None:
        restore(run, found)
        skip_from_here(run, left_out)
    print(
        f"{len(training_clips):,} training clips, {len(validation_clips):,} for validation, "
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters"
    )
    print(batching_costs(sampler, hparams))
    if device.type == "cuda":
        peak = rehearse(trainer, training_clips, validation_clips)
        print(f"the costliest batches of any epoch fit into the GPU's memory: {peak / 1e9:.2f} GB")
    open_output(run, args, found)
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
        if state.batches_trained == 0:
            torch.manual_seed(epoch_seed(hparams.seed, state.epoch))

        train_epoch(run, stop, clock)

        validated = None
        if state.epoch % hparams.epochs_per_validation == 0:
            batches = next_batches(run, run.validation_loader)
            validated = validate(run, batches, should_stop=lambda: stop.signal is not None)
            if validated is None:
                save(run)
                stop.leave(run)

        log_epoch(run, epoch_stats(run))
        if validated is not None:
            log_validation(run, *validated)

        state = run.state = state.next_epoch()
        if validated is not None or stop.signal or state.epoch > hparams.epochs:
            save(run)
            stop.leave(run)


def train_epoch(run: Run, stop: StopRequest, clock: float) -> None:
    """The batches of this epoch that are left. `clock` is when its planning began.

    The clock stands still while checkpoints are written, so `state.seconds` is training alone.
    """
    hparams, state, sampler = run.hparams, run.state, run.sampler
    longest = [float(sampler.lengths[batch].max()) for batch in sampler.batches]
    total, done = sum(longest), sum(longest[: state.batches_trained])  # frames, as steps take time
    progress = progress_bar(
        f"epoch {state.epoch}",
        len(sampler.batches),
        " batches",
        line="{desc}: {n_fmt} of {total_fmt}{unit}{postfix}",
        initial=state.batches_trained,
    )
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    try:
        batches = next_batches(run, run.loader)
        while True:
            waiting = time.perf_counter()
            batch = next(batches, None)
            state.data_wait_seconds += time.perf_counter() - waiting
            if batch is None:
                break
            weight = guided_attention_weight_at(state.iteration, hparams)
            run.trainer.guided_attention_weight = weight
            rate = learning_rate_at(state.iteration, hparams)
            losses = run.trainer.step(batch, rate)
            count_step(run, batch, losses)
            if (state.iteration - 1) % hparams.log_interval == 0:
                read_pending(run, but=1)
            seconds = state.seconds + time.perf_counter() - clock
            done += longest[state.batches_trained - 1]
            progress.set_postfix_str(time_left(run, done, total, seconds), refresh=False)
            if state.iteration % hparams.iters_per_checkpoint == 0 or stop.signal:
                read_pending(run)
                state.seconds += time.perf_counter() - clock
                save(run)
                stop.leave(run)
                clock = time.perf_counter()
            progress.update()
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


def next_batches(run: Run, loader: DataLoader) -> Iterator[Batch]:
    """The loader's batches. If reading fails, everything until there is saved first.

    Raises:
        UserError: on a clip that cannot be read any more.
    """
    try:
        yield from loader
    except Exception as error:
        read_pending(run)
        path = save(run)
        print(f"everything until here is in {path}", flush=True)
        if not isinstance(error, UserError):
            raise
        # A loader's process sends its traceback before the message, and the class's name with it.
        message = str(error).strip().splitlines()[-1].removeprefix("errors.UserError: ")
        # The frames of the traceback would keep the loader's processes alive.
        message += how_to_skip(message, (run.training_clips, run.validation_clips))
        raise UserError(f"no next batch: {message}") from error.with_traceback(None)


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()
    args = parse_arguments(arguments)
    with messages():
        run = set_up(args)
    if run is None:
        return
    directory = args.output_directory
    try:
        with messages(run):
            print(f"checkpoints and {METRICS_FILE}: {directory}")
            print(f"watch: tensorboard --logdir {shlex.quote(str(directory))}", flush=True)
            train(run, StopRequest())
    finally:
        run.close()
    print(f"finished: {run.hparams.epochs} epochs, {run.state.iteration} steps")
    best = directory / checkpoint.BEST
    newest = best if best.exists() else checkpoint.list_checkpoints(directory)[-1][1]
    print(f"speak: python synthesize.py --checkpoint {shlex.quote(str(newest))} --text ...")


if __name__ == "__main__":
    main()
