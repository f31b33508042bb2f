"""Train Tacotron 2 under any batching strategy.

    python train.py -o runs/ljspeech                                   # start
    python train.py -o runs/ljspeech --resume                          # resume after a stop
    python train.py -o runs/ljspeech --resume-from best                # go back to the best
    python train.py -o runs/small --hparams batch_size=32,batching_strategy=bucket
    python train.py -o runs/other -c tacotron2.pt --warm_start         # start from its weights
    tensorboard --logdir runs                                          # watch

Ctrl-C, SIGTERM or a closed terminal (SIGHUP) saves and stops. All settings are in hparams.py.

This file is the recipe from top to bottom. The folder training/ holds its parts: one update
(trainer.py), an epoch's updates and sums (epoch.py), checkpoints (checkpoint.py), set-up before the
first step (setup.py), validation (validation.py), signals (signals.py).
"""

import os

# Read when torch is loaded: idle threads sleep. Spinning threads made a decoder step ten times
# slower on a machine with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import shlex
import time
from pathlib import Path

import torch

from audio import silent_bands
from batching import balancing_weights, describe_costs, few_updates, make_sampler
from data_utils import make_loader
from hparams import HParams, describe
from machine import peak_memory
from tacotron2_voice.speakers import speaker_option
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import (
    duration,
    print_nothing,
    print_without_failing,
    progress_bar,
)
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.version import __version__
from training import checkpoint, setup
from training.distributed import AlreadyReported, Processes, join, leave_at_exit
from training.epoch import (
    Clips,
    NoNextBatch,
    PendingStep,
    Run,
    log_epoch,
    micro_batches_of,
    next_batches,
    next_update,
    read_pending,
)
from training.logging import DEFAULT_LOGS, OutputFolder
from training.memory_check import check_memory
from training.setup import Start
from training.signals import StopRequest, messages
from training.speakers import describe_speakers
from training.trainer import (
    Trainer,
    guided_attention_weight_at,
    learning_rate_at,
    what_precision_means,
)
from training.validation import log_validation, make_validation_loader, validate

# ---------------------------------------------------------------------------- arguments


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("-o", "--output_directory", required=True, help="checkpoints and metrics.jsonl")
    add("-l", "--log_directory", default=DEFAULT_LOGS, help="TensorBoard events, inside -o (logs)")
    add("-c", "--checkpoint_path", type=Path, help="resume from this checkpoint")
    add("--warm_start", action="store_true", help="take only weights from -c, not ignore_layers")
    add("--resume", action="store_true", help="from the newest good checkpoint in -o, if any")
    add("--resume-from", metavar="best|FILE", help="go back to a checkpoint in -o, once")
    add("--new-clips", action="store_true", help="with --resume: allow other clips than before")
    add("--hparams", default="", metavar="name=value,...", help="override hyper-parameters")
    add("--process-timeout", type=float, default=300, help="seconds to wait for the others (300)")
    add("--n_gpus", type=int, default=1, help="accepted if 1; use torchrun for more")
    add("--rank", type=int, default=0, help="accepted if 0; torchrun sets it itself")
    add("--group_name", default="", help="accepted for compatibility, not used")
    args = parser.parse_args(arguments)
    if not args.output_directory:  # a shell's variable that is not set
        parser.error("-o: expected the name of a folder, got an empty one")
    args.output_directory = Path(args.output_directory)
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
    if args.new_clips and not (args.resume or args.resume_from):
        parser.error("--new-clips works only with --resume: add --resume, or leave it out")
    if args.resume_from is not None:
        if args.checkpoint_path is not None:
            parser.error("--resume-from names the checkpoint: leave out -c")
        name = checkpoint.BEST if args.resume_from == "best" else args.resume_from
        inside = args.output_directory / name
        args.checkpoint_path = inside if name == checkpoint.BEST or inside.exists() else Path(name)
        args.resume = False
    output = Path(os.path.realpath(args.output_directory))  # resolve() fails where links loop
    logs = Path(os.path.realpath(output / args.log_directory))
    if not logs.is_relative_to(output) or logs.suffix in (".pt", ".jsonl", ".csv"):
        parser.error(
            f"--log_directory {args.log_directory}: {logs}, expected a folder inside the output "
            "folder, for a run that is resumed cuts the logs there back to its checkpoint; name "
            "another, or remove the link"
        )
    return args


# ---------------------------------------------------------------------------- set-up


def set_up(args: argparse.Namespace, processes: Processes) -> Run | None:
    """Check everything and build the run, in all processes. None if it is finished already."""
    output = processes.all_or_none(
        lambda: OutputFolder(args.output_directory, args.log_directory, processes.is_first)
    )
    run = None
    try:
        start = setup.find_start(
            output, processes, args.checkpoint_path, resume=args.resume, warm_start=args.warm_start
        )
        going_back = args.output_directory if args.resume_from else None
        hparams = setup.settle_hparams(args.hparams, start, processes, going_back)
        if setup.is_finished(start, hparams, output, processes):
            print(f"finished already, after epoch {hparams.epochs}; raise epochs to train on")
            return None
        clips = setup.settle_clips(hparams, start, processes, new_clips=args.new_clips)
        hparams = setup.settle_labels(hparams, clips, start)
        run = build_run(output, start, hparams, clips, processes)
        return run
    finally:
        if run is None:
            output.close()


def build_run(
    output: OutputFolder, start: Start, hparams: HParams, clips: Clips, processes: Processes
) -> Run:
    """Build the run. Nothing is written before the last step, `open_logs`."""
    device = processes.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    frames, share = clips.training.num_frames, (processes.rank, processes.world_size)
    weights = balancing_weights(frames, clips.training.speaker_numbers, hparams)
    sampler = processes.all_or_none(lambda: make_sampler(frames, hparams, *share, weights))
    setup.refuse_differences(hparams, clips, start, device, processes)
    print(describe(hparams))
    if device.type == "cpu":
        print("no CUDA GPU found: training on the CPU, which is slow for a full-size model")
        if start == Start() and hparams.decoder_rnn_dim >= HParams.decoder_rnn_dim:
            print("a small model learns sooner there: add @scripts/speaking_model.txt to --hparams")
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if meaning := what_precision_means(hparams.precision, capability):
        print(meaning)
    # Imports librosa now, so that neither workers nor the first epoch have to.
    if not hparams.load_mel_from_disk and (warning := silent_bands(hparams)):
        print(warning)
    trainer = Trainer(hparams, device, processes)
    print(f"decoder: {trainer.decoder_description}")
    pin_memory, keep = device.type == "cuda", hparams.num_workers > 0
    bounded = setup.limit_workers(hparams, processes)
    run = Run(
        output=output,
        clips=clips,
        sampler=sampler,
        loader=make_loader(clips.training, bounded, pin_memory, sampler, persistent_workers=keep),
        validation_loader=make_validation_loader(clips.validation, bounded, pin_memory, processes),
        trainer=trainer,
    )
    processes.all_or_none(lambda: setup.start_from(run, start))
    print(
        f"{len(clips.training):,} training clips, "
        f"{len(clips.validation):,} for validation, "
        f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters"
    )
    if not len(clips.validation):
        print(
            "no validation, as validation_files is empty: no validation loss, no example speech, "
            f"no best.pt; the newest {max(2, hparams.keep_checkpoints)} checkpoints are kept"
        )
    if hparams.speakers:
        print(describe_speakers(clips, hparams, weights))
    print(describe_costs(sampler, hparams, weights))
    if warning := few_updates(sampler, hparams, weights):
        print(warning)
    if device.type == "cuda":
        tables = clips.training, clips.validation
        peak = processes.all_or_none(lambda: check_memory(trainer, *tables, weights))
        peaks = processes.gather(peak)
        print(f"the worst-case batches of any epoch fit into memory: {max(peaks) / 1e9:.2f} GB")
    setup.refuse_other_folders(output, processes)
    processes.all_or_none(lambda: setup.open_logs(run, start))
    return run


# ---------------------------------------------------------------------------- the loop


def train(run: Run, stop: StopRequest) -> None:
    """Train the remaining epochs: plan, train, save, validate, log, save again."""
    hparams, state = run.hparams, run.state
    run.trainer.model.train()
    while state.epoch <= hparams.epochs:
        clock = time.perf_counter()
        # Keeps the position of an epoch resumed half-way.
        run.sampler.set_epoch(state.plan_number(hparams))
        state.prepare_seconds += time.perf_counter() - clock

        train_epoch(run, stop, clock)

        validated = None
        is_due = state.epoch % hparams.epochs_per_validation == 0
        if is_due and run.validation_loader is not None:
            save(run, stop)  # before validation, which may fail
            validated = validate(run, stop)
            if run.must_stop:
                stop.exit(run.processes, run.resume_command)

        log_epoch(run)
        if validated is not None:
            log_validation(run, *validated)

        state = run.state = state.at_start_of(state.epoch + 1)
        run.must_stop = run.processes.any(stop.signal is not None)
        if is_due or run.must_stop or state.epoch > hparams.epochs:
            save(run, stop)


def train_epoch(run: Run, stop: StopRequest, clock: float) -> None:
    """Train the remaining batches of this epoch. `clock` is when its planning began.

    The clock is stopped while checkpoints are written, so `state.seconds` is training alone.
    """
    hparams, state, sampler, trainer = run.hparams, run.state, run.sampler, run.trainer
    several = run.processes.world_size > 1
    longest = sampler.plan.longest(sampler.lengths)
    total, done = longest.sum(), longest[: state.batches_trained].sum()  # as steps take time
    title, line = f"epoch {state.epoch}", "{desc}: {n_fmt} of {total_fmt}{unit}{postfix}"
    progress = progress_bar(title, len(longest), " batches", line, initial=state.batches_trained)
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    try:
        batches = next_batches(run.loader)
        while update := next_update(sampler, state.batches_trained, hparams.n_frames_per_step):
            trainer.guided_attention_weight = guided_attention_weight_at(state.iteration, hparams)
            losses = trainer.step(
                micro_batches_of(update, run, batches),
                learning_rate_at(state.iteration, hparams),
                num_batches=len(update.numbers),
                stop=stop.signal is not None,
            )
            before, state.batches_trained = state.batches_trained, update.end
            state.iteration += 1
            run.pending.append(PendingStep(state.iteration, losses, update, before))
            if several or (state.iteration - 1) % hparams.log_interval == 0:
                read_pending(run, but=1)  # with several processes the stop request is part of it
            seconds = state.seconds + time.perf_counter() - clock
            done += longest[before : update.end].sum()
            progress.set_postfix_str(time_left(run, done, total, seconds), refresh=False)
            run.must_stop = run.must_stop or (not several and stop.signal is not None)
            if state.iteration % hparams.iters_per_checkpoint == 0 or run.must_stop:
                read_pending(run)
                state.seconds += time.perf_counter() - clock
                save(run, stop)
                clock = time.perf_counter()
            progress.update(update.end - before)
        read_pending(run)
        state.seconds += time.perf_counter() - clock
        state.peak_memory_bytes = max(state.peak_memory_bytes, peak_memory(trainer.device))
    finally:
        progress.close()


def time_left(run: Run, done: float, total: float, seconds: float) -> str:
    """Loss, alignment sharpness, and the times left at the speed of `done` in `seconds`."""
    left = seconds / done * (total - done)
    whole = left + seconds / done * total * (run.hparams.epochs - run.state.epoch)
    recent = "" if run.recent_loss is None else f"loss {run.recent_loss:.4f}, "
    recent += "" if run.recent_sharpness is None else f"alignment {run.recent_sharpness:.2f}, "
    return f"{recent}epoch {duration(left)} left, run {duration(whole)} left"


def save(run: Run, stop: StopRequest) -> None:
    """Write a checkpoint, and exit if a process was asked to stop."""
    run.save()
    if run.must_stop:
        stop.exit(run.processes, run.resume_command)


def save_what_is_trained(run: Run, stopped: NoNextBatch) -> BaseException:
    """Save after reading failed, here or in another process. Returns the exception to raise."""
    read_pending(run)
    path = run.save()
    print(f"all training so far is saved in {path}", flush=True)
    failure = stopped.__cause__
    if failure is None:
        return AlreadyReported("another process could not read its next batch; see its message")
    if not isinstance(failure, UserError):
        return failure
    # The traceback's frames would keep the loader's processes alive.
    return UserError(f"no next batch: {stopped}")


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()
    args = parse_arguments(arguments)
    with messages():
        processes = join(args.process_timeout)
        if not processes.is_first:
            print_nothing()
        print(f"Tacotron 2 with length batching, version {__version__}", flush=True)
        run = set_up(args, processes)
    if run is None:
        return leave_at_exit()
    directory = run.output.path
    try:
        with messages(run.resume_command if processes.is_first else ""):
            print(f"checkpoints and {METRICS_FILE}: {directory}")
            print(f"watch: tensorboard --logdir {shlex.quote(str(directory))}", flush=True)
            try:
                train(run, StopRequest())
            except NoNextBatch as stopped:
                raise save_what_is_trained(run, stopped) from None
    finally:
        run.close()
    leave_at_exit()
    print(f"finished after epoch {run.hparams.epochs}, at step {run.state.iteration}")
    best = directory / checkpoint.BEST
    newest = best if best.exists() else checkpoint.list_checkpoints(directory)[-1][1]
    speakers = run.hparams.speakers
    who = f" {speaker_option(speakers[0])}" if speakers else ""
    command = f"python synthesize.py --checkpoint {shlex.quote(str(newest))}{who}"
    print(f"synthesize: {command} --text ...")


if __name__ == "__main__":
    run_program(main)
