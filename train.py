"""Train Tacotron 2 with any batching strategy.

    python train.py -o runs/ljspeech                              # start
    python train.py -o runs/ljspeech --resume                     # resume after a stop
    python train.py -o runs/ljspeech --resume-from best           # go back to the best checkpoint
    python train.py -o runs/small --hparams batch_size=32,batching_strategy=bucket
    python train.py -o runs/other -c tacotron2.pt --warm_start    # start from a model's weights
    python train.py -o runs/mine -c voices/english --warm_start   # start from an exported voice
    tensorboard --logdir runs                                     # watch the training

After Ctrl-C, SIGTERM or a closed terminal (SIGHUP), training saves a checkpoint and stops. After a
second Ctrl-C, training stops at once without saving. hparams.py lists all settings. This file shows
the whole training procedure from top to bottom. The folder training/ contains the parts of this
procedure:

- before training: start.py (checkpoint, settings), clips.py (filelists), memory_check.py,
  row_costs.py
- each epoch: plan.py (optimizer steps), trainer.py (one optimizer step, the training loss),
  optimizer.py (optimizer, learning rate), epoch.py (mean losses), validation.py
- files: run.py (the run), run_folder.py, checkpoint.py, metrics.py, tensorboard.py

To add a loss term, see loss.py. To change the optimizer, see training/optimizer.py. To use a
different attention, return it from layers.make_attention.
"""

import os

# Make idle threads sleep instead of spin. On a machine with other work, spinning threads made a
# decoder step ten times slower. Set this variable before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tacotron2_voice.utils.program import exit_on_interrupt, is_stage, run_program

if __name__ == "__main__":
    exit_on_interrupt()

import argparse
import functools
import shlex
import time
from pathlib import Path

import numpy as np
import torch

from audio import silent_bands
from batching import balancing_weights, describe_costs, few_updates, make_sampler
from data_utils import make_loader
from hparams import MEASURE, HParams
from machine import peak_memory
from tacotron2_voice.settings import describe
from tacotron2_voice.speakers import speaker_option
from tacotron2_voice.utils.arguments import make_parser, positive
from tacotron2_voice.utils.console import (
    duration,
    print_nothing,
    print_without_failing,
    progress_bar,
)
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE
from tacotron2_voice.version import __version__
from training import checkpoint
from training.clips import Clips, resolve_clips, resolve_speakers
from training.distributed import AlreadyReported, Processes, join, leave_at_exit
from training.epoch import NoNextBatch, log_epoch, micro_batches_of, next_batches, read_pending
from training.memory_check import check_memory
from training.optimizer import schedule_at
from training.plan import PendingStep, next_step
from training.precision import describe_precision
from training.row_costs import with_measured_costs
from training.run import Run, load_start, open_logs
from training.run_folder import DEFAULT_LOGS, RunFolder
from training.signals import SECONDS_FOR_STEP, StopRequest, messages, stopped_without_saving
from training.speakers import describe_speakers
from training.start import Start, check_processes_agree, find_start, is_finished, resolve_hparams
from training.trainer import Trainer
from training.validation import log_validation, make_validation_loader, validate

# ---------------------------------------------------------------------------- arguments


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("-o", "--output_directory", required=True, help="folder for checkpoints and metrics.jsonl")
    add(
        "-l",
        "--log_directory",
        default=DEFAULT_LOGS,
        help="write TensorBoard files to this folder inside -o (default: logs)",
    )
    add(
        "-c",
        "--checkpoint_path",
        type=Path,
        help="checkpoint to resume from, or to read weights from (--warm_start)",
    )
    add(
        "--warm_start",
        action="store_true",
        help="start a new run with the weights from -c (a checkpoint or an exported voice), except "
        "the layers in ignore_layers",
    )
    add(
        "--resume",
        action="store_true",
        help="resume from the newest good checkpoint in -o; start a new run if -o contains no run",
    )
    add(
        "--resume-from",
        metavar="best|FILE",
        help="go back to this checkpoint in -o; the next time you resume the run, use --resume",
    )
    add(
        "--new-clips",
        action="store_true",
        help="with --resume: accept clips that differ from the checkpoint's clips",
    )
    add(
        "--hparams",
        default="",
        metavar="name=value,...",
        help="override settings (hparams.py lists them)",
    )
    add(
        "--process-timeout",
        type=positive,
        default=300,
        help="wait at most this many seconds for other processes (default: 300)",
    )
    add(
        "--n_gpus",
        type=int,
        default=1,
        help="accepted only with the value 1; use torchrun for several GPUs",
    )
    add(
        "--rank", type=int, default=0, help="accepted only with the value 0; torchrun sets the rank"
    )
    add("--group_name", default="", help="has no effect; accepted for compatibility")
    args = parser.parse_args(arguments)
    # The name is empty if the command contains -o "$NAME" and the variable NAME is not set.
    if not args.output_directory:
        parser.error("-o: the folder name is empty")
    args.output_directory = Path(args.output_directory)
    if args.n_gpus != 1 or args.rank != 0:
        parser.error(
            f"--n_gpus {args.n_gpus} --rank {args.rank}: train.py cannot start several processes. "
            "Leave out both options, and use torchrun to start one process per GPU: torchrun "
            f"--nproc-per-node {args.n_gpus} train.py -o {args.output_directory} ..."
        )
    if args.warm_start and args.checkpoint_path is None:
        parser.error("--warm_start needs a checkpoint. Set it with -c")
    if args.resume and args.checkpoint_path is not None and not args.warm_start:
        parser.error("--resume already selects the newest checkpoint. Leave out -c or --resume")
    if args.new_clips and not (args.resume or args.resume_from):
        parser.error("--new-clips works only together with --resume")
    if args.resume_from is not None:
        if args.checkpoint_path is not None:
            parser.error("--resume-from already selects a checkpoint. Leave out -c")
        name = checkpoint.BEST if args.resume_from == "best" else args.resume_from
        inside = args.output_directory / name
        is_inside = name == checkpoint.BEST or inside.exists()
        args.checkpoint_path = inside if is_inside else Path(name)
        args.resume = False
    # Use realpath, because Path.resolve raises an error if links form a loop.
    output = Path(os.path.realpath(args.output_directory))
    logs = Path(os.path.realpath(output / args.log_directory))
    if not logs.is_relative_to(output):
        parser.error(
            f"--log_directory {args.log_directory}: {logs} is outside the output folder. Choose a "
            "folder inside -o"
        )
    if logs.suffix in (".pt", ".jsonl", ".csv"):
        parser.error(
            f"--log_directory {args.log_directory}: the name of this folder ends in {logs.suffix}, "
            "like the run's own files. Choose a different name"
        )
    return args


# ---------------------------------------------------------------------------- set-up


def set_up(args: argparse.Namespace, processes: Processes) -> Run | None:
    """Check all inputs and build the run. Return None if the run is already finished."""
    folder = processes.all_or_none(
        lambda: RunFolder(args.output_directory, args.log_directory, processes.is_first)
    )
    run = None
    try:
        start = find_start(
            folder, processes, args.checkpoint_path, resume=args.resume, warm_start=args.warm_start
        )
        if args.resume and start.resumed is None:
            print(f"note: {folder.path} contains no run to resume, so a new run starts")
        hparams = resolve_hparams(args.hparams, start.resumed, processes)
        if is_finished(start.resumed, hparams, folder, processes):
            print(
                f"this run is already finished (epoch {hparams.epochs}). To continue the run, increase "
                "the setting epochs"
            )
            return None
        clips = resolve_clips(hparams, start.resumed, processes, new_clips=args.new_clips)
        hparams = resolve_speakers(hparams, clips, start.resumed)
        run = build_run(folder, start, hparams, clips, processes)
        return run
    finally:
        if run is None:
            folder.close()


def build_run(
    folder: RunFolder, start: Start, hparams: HParams, clips: Clips, processes: Processes
) -> Run:
    """Build the run. Only the last function call, `open_logs`, writes files."""
    device = processes.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    frames = clips.training.num_frames
    draw_weights = balancing_weights(frames, clips.training.speaker_numbers, hparams)
    sampler = processes.all_or_none(
        lambda: make_sampler(frames, hparams, processes.rank, processes.world_size, draw_weights)
    )
    check_processes_agree(hparams, clips, start, device, processes)
    print_settings(hparams, device, is_new=start == Start())
    trainer = Trainer(hparams, device, processes)
    print(f"decoder: {trainer.decoder_description}")
    run = Run(
        folder=folder,
        clips=clips,
        sampler=sampler,
        loader=make_loader(clips.training, hparams, sampler, pin_memory=on_gpu),
        validation_loader=make_validation_loader(
            clips.validation, hparams, processes, pin_memory=on_gpu
        ),
        trainer=trainer,
    )
    processes.all_or_none(lambda: load_start(run, start))
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(
        f"{len(clips.training):,} training clips, {len(clips.validation):,} validation clips, "
        f"{parameters:,} parameters"
    )
    if not len(clips.validation):
        print(
            "note: no validation, because validation_files is empty. The run has no validation "
            "loss, no example speech and no best.pt. The newest "
            f"{max(2, hparams.keep_checkpoints)} checkpoints are kept"
        )
    if hparams.speakers:
        print(describe_speakers(clips, hparams, draw_weights))
    print(describe_costs(sampler, hparams, draw_weights))
    # A model that starts from other weights has already learned attention.
    if start == Start() and (warning := few_updates(sampler, hparams)):
        print(warning)
    print("checking whether the worst-case batches fit into memory ...", flush=True)
    peak = processes.all_or_none(
        lambda: check_memory(trainer, clips.training, clips.validation, draw_weights)
    )
    peak = max(processes.gather(peak))
    if peak:
        about = "" if on_gpu else "about "
        size = max(peak / 1e9, 0.01)
        print(f"the worst-case batches of any epoch fit into memory: {about}{size:.2f} GB")
    if hparams.row_costs == MEASURE:
        plan_by_measured_costs(run, draw_weights)
    processes.all_or_none(lambda: open_logs(run, start))
    return run


def plan_by_measured_costs(run: Run, draw_weights: np.ndarray | None) -> None:
    """Measure the costs of decoder steps, and plan the batches with these costs.

    The costs become a setting of the run, so that a resumed run plans the same batches.
    """
    processes = run.processes
    training_clips = run.clips.training
    run.trainer.hparams = processes.all_or_none(
        lambda: with_measured_costs(run.trainer, training_clips)
    )
    run.sampler = make_sampler(
        training_clips.num_frames, run.hparams, processes.rank, processes.world_size, draw_weights
    )
    run.loader = make_loader(
        training_clips, run.hparams, run.sampler, pin_memory=run.trainer.device.type == "cuda"
    )
    print(describe_costs(run.sampler, run.hparams, draw_weights))


def print_settings(hparams: HParams, device: torch.device, is_new: bool) -> None:
    print(describe(hparams))
    if device.type == "cpu":
        print("note: no CUDA GPU found, so training runs on the CPU")
        if is_new and hparams.decoder_rnn_dim >= HParams.decoder_rnn_dim:
            print(
                "note: a full-size model trains slowly on a CPU. To train a small model, add "
                "@scripts/sentences_model.txt to --hparams"
            )
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if meaning := describe_precision(hparams.precision, capability):
        print(meaning)
    if not hparams.load_mel_from_disk:
        # `silent_bands` imports librosa. Call this function now, so that the workers and the first
        # epoch do not wait for the import.
        warning = silent_bands(hparams)
        if warning:
            print(warning)


# ---------------------------------------------------------------------------- the loop


def train(run: Run, stop: StopRequest) -> None:
    """Train the remaining epochs. In each epoch: plan batches, train, save, validate, log, and save
    again."""
    hparams = run.hparams
    run.trainer.model.train()
    while run.state.epoch <= hparams.epochs:
        clock = time.perf_counter()
        # If training resumed in the middle of this epoch, `set_epoch` keeps the position in the
        # epoch.
        run.sampler.set_epoch(run.state.plan_number(hparams))
        run.state.prepare_seconds += time.perf_counter() - clock

        train_epoch(run, stop, clock)

        validated = None
        is_due = run.state.epoch % hparams.epochs_per_validation == 0
        if is_due and run.validation_loader is not None:
            # Save a checkpoint before the validation, because the validation may fail.
            save(run, stop)
            validated = validate(run, stop)
            if run.must_stop:
                stop.exit(run.processes, run.resume_command)

        log_epoch(run)
        if validated is not None:
            log_validation(run, *validated)

        run.state = run.state.at_start_of(run.state.epoch + 1)
        run.must_stop = run.processes.any(stop.signal is not None)
        if is_due or run.must_stop or run.state.epoch > hparams.epochs:
            save(run, stop)


def train_epoch(run: Run, stop: StopRequest, clock: float) -> None:
    """Train on the remaining batches of this epoch.

    `state.seconds` does not include the time spent writing checkpoints.

    Args:
        clock: time at which the planning of the epoch began (`time.perf_counter`).
    """
    hparams = run.hparams
    state = run.state
    sampler = run.sampler
    trainer = run.trainer
    several = run.processes.world_size > 1
    # Estimate the remaining time from the number of frames, because the time of a batch grows with
    # the length of its longest clip.
    longest = sampler.plan.longest(sampler.lengths)
    total = longest.sum()
    done = longest[: state.batches_trained].sum()
    progress = progress_bar(
        f"epoch {state.epoch}",
        len(longest),
        " batches",
        "{desc}: {n_fmt} of {total_fmt}{unit}{postfix}",
        initial=state.batches_trained,
    )
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    try:
        batches = next_batches(run.loader)
        while planned := next_step(sampler, state.batches_trained, hparams.n_frames_per_step):
            step_clock = time.perf_counter()
            losses = trainer.step(
                micro_batches_of(planned, run, batches),
                schedule_at(state.iteration, hparams),
                num_batches=len(planned.numbers),
                stop=stop.signal is not None,
            )
            before = state.batches_trained
            state.batches_trained = planned.end
            state.iteration += 1
            run.pending.append(PendingStep(state.iteration, losses, planned, before))
            if several or (state.iteration - 1) % hparams.log_interval == 0:
                # With several processes, read the results of every optimizer step, because these
                # results also contain the stop requests of the other processes.
                read_pending(run, leave=1)
            seconds = state.seconds + time.perf_counter() - clock
            frames = longest[before : planned.end].sum()
            done += frames
            if trainer.device.type == "cpu" and not run.has_printed_speed:
                run.has_printed_speed = True
                took = time.perf_counter() - step_clock
                progress.write(
                    f"the first optimizer step took {took:.1f} s, so an epoch will take about "
                    f"{duration(took * total / frames)}"
                )
            progress.set_postfix_str(time_left(run, done, total, seconds), refresh=False)
            run.must_stop = run.must_stop or (not several and stop.signal is not None)
            if state.iteration % hparams.iters_per_checkpoint == 0 or run.must_stop:
                read_pending(run)
                state.seconds += time.perf_counter() - clock
                save(run, stop)
                clock = time.perf_counter()
            progress.update(planned.end - before)
        read_pending(run)
        state.seconds += time.perf_counter() - clock
        state.peak_memory_bytes = max(state.peak_memory_bytes, peak_memory(trainer.device))
    finally:
        progress.close()


def time_left(run: Run, done: float, total: float, seconds: float) -> str:
    """Return a phrase with the loss, the focus rate, the remaining time of the epoch and the
    remaining time of the run.

    Args:
        done: number of frames on which this epoch has trained so far.
        total: number of frames in the epoch.
        seconds: time spent on the `done` frames.
    """
    left = seconds / done * (total - done)
    whole = left + seconds / done * total * (run.hparams.epochs - run.state.epoch)
    loss = "" if run.recent_loss is None else f"loss {run.recent_loss:.4f}, "
    rate = "" if run.recent_focus_rate is None else f"focus rate {run.recent_focus_rate:.2f}, "
    return f"{loss}{rate}epoch {duration(left)} left, run {duration(whole)} left"


def save(run: Run, stop: StopRequest) -> None:
    """Write a checkpoint, then exit if any process was asked to stop."""
    with stop.saving:
        run.save()
        if run.must_stop:
            stop.leave()
    if run.must_stop:
        stop.exit(run.processes, run.resume_command)


def save_after_failure(run: Run, stopped: NoNextBatch) -> BaseException:
    """Save a checkpoint after a process could not read its next batch.

    Return an exception, which the caller must raise.
    """
    read_pending(run)
    path = run.save()
    print(f"saved a checkpoint of the last completed optimizer step: {path}", flush=True)
    failure = stopped.__cause__
    if failure is None:
        return AlreadyReported("another process could not read its next batch; see its error")
    if not isinstance(failure, UserError):
        return failure
    # Return a new exception, because the traceback of the original exception would keep the
    # DataLoader workers alive.
    return UserError(f"cannot read the next batch: {stopped}")


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
    directory = run.folder.path
    # Several processes must stop at the same optimizer step, however long this step takes.
    limit = SECONDS_FOR_STEP if processes.world_size == 1 else None
    stopped_message = functools.partial(stopped_without_saving, directory, run.resume_command)
    try:
        first = processes.is_first
        with messages(run.resume_command if first else "", directory if first else None):
            print(f"checkpoints and {METRICS_FILE}: {directory}")
            print(
                f"To plot the metrics, run: tensorboard --logdir {shlex.quote(str(directory))}",
                flush=True,
            )
            try:
                with StopRequest(limit, stopped_message) as stop:
                    train(run, stop)
            except NoNextBatch as stopped:
                raise save_after_failure(run, stopped) from None
    finally:
        run.close()
    leave_at_exit()
    print(f"finished after epoch {run.hparams.epochs}, at optimizer step {run.state.iteration}")
    if is_stage():
        return
    best = directory / checkpoint.BEST
    newest = best if best.exists() else checkpoint.list_checkpoints(directory)[-1][1]
    speakers = run.hparams.speakers
    speaker = f" {speaker_option(speakers[0])}" if speakers else ""
    print(
        "To synthesize speech, run: python synthesize.py --checkpoint "
        f"{shlex.quote(str(newest))}{speaker} --text ..."
    )


if __name__ == "__main__":
    run_program(main)
