"""Finding, saving and restoring a run, so that it goes on as if it had never stopped."""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from batching import BatchingError
from data_utils import write_lengths
from errors import UserError
from files import METRICS_FILE, remove_leftovers
from hparams import HParams, create_hparams, hparams_from_dict
from training import checkpoint
from training.checkpoint import Checkpoint, DamagedCheckpoint
from training.checkpoint_schema import holds_a_run, missing_parts, optimizer_problems
from training.logging import NoLogger, RunLogger, mend_metrics
from training.loop_state import LoopState
from training.machine import describe_environment
from training.output import folder_errors, holds_run
from training.run import Run


def find_checkpoint(args: argparse.Namespace) -> Checkpoint | None:
    """The checkpoint to go on from: --resume's newest, or -c's. None to start from step 0.

    Raises:
        UserError: if the output folder holds a run and nothing says to go on with it, or no
            checkpoint that a run can go on from.
    """
    directory, checkpoint_path = args.output_directory, args.checkpoint_path
    held = holds_run(directory)
    if args.resume:
        found = newest_checkpoint(directory) if held else None
    else:
        goes_on = checkpoint_path is not None and not args.warm_start
        if held and not (goes_on and lies_in(checkpoint_path, directory)):
            raise UserError(
                f"{directory} holds a run: add --resume to go on with it, or choose another -o"
            )
        found = None
        if goes_on:
            found = Checkpoint(checkpoint_path, checkpoint.load_checkpoint(checkpoint_path))
    if found is not None:
        check_complete(found)
    return found


def newest_checkpoint(directory: Path) -> Checkpoint:
    """The newest good checkpoint of the run that a folder holds.

    Raises:
        UserError: if there is none. The run is then never begun anew in its own folder, where
            that would overwrite what is left of it.
    """
    begin_anew = (
        "Nothing was touched. Put a good checkpoint back, or begin anew elsewhere: choose another "
        f"-o, and leave {directory} as it is"
    )
    try:
        found = checkpoint.load_newest(directory, lambda message: print(f"warning: {message}"))
    except DamagedCheckpoint as error:
        raise UserError(f"{directory} holds a run, but {error}\n{begin_anew}") from None
    if found is None:
        raise UserError(
            f"{directory} holds {METRICS_FILE} of a run, but no checkpoint.\n{begin_anew}"
        )
    return found


def check_complete(found: Checkpoint) -> None:
    """Refuse a checkpoint that lacks a part which a run needs to go on."""
    missing = missing_parts(found.state)
    if not missing:
        return
    advice = "begin from its weights with -c and --warm_start, and an output folder of its own"
    if not holds_a_run(found.state):
        raise UserError(
            f"{found.path} holds weights of another recipe, not the state of a run: {advice}"
        )
    problems = ", ".join(f"{part}: missing" for part in missing)
    raise UserError(f"{found.path}: {problems}; a run cannot go on from it: {advice}")


def lies_in(path: Path, directory: Path) -> bool:
    return path.resolve().parent == directory.resolve()


def resolve_hparams(overrides: str, found: Checkpoint | None) -> HParams:
    """Defaults, or the checkpoint's settings, with the overrides of this command."""
    if found is None:
        return create_hparams(overrides)
    base = hparams_from_dict(found.state["hparams"])
    hparams = create_hparams(overrides, base)
    for name, value in asdict(base).items():
        if getattr(hparams, name) != value:
            print(f"changed since the checkpoint: {name} = {getattr(hparams, name)}, was {value}")
    return hparams


def finished(found: Checkpoint | None, hparams: HParams, directory: Path) -> bool:
    """Whether the checkpoint is the last of its run; its best one is then marked."""
    if found is None or found.state["loop"]["epoch"] <= hparams.epochs:
        return False
    if lies_in(found.path, directory):
        mark_if_best(directory, found)
    return True


def save(run: Run) -> Path | None:
    """Write a checkpoint of this moment; nothing may be pending. The first process alone does."""
    if not run.processes.is_first:
        return None
    state, trainer = run.state, run.trainer
    saved = {
        "iteration": state.iteration,
        "state_dict": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "scaler": trainer.scaler.state_dict(),
        "hparams": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(run.hparams).items()
        },
        "loop": asdict(state),
        # Between epochs the sampler still holds the plan of the last one: the next begins at 0.
        "sampler": run.sampler.state_dict(state.batches_trained) if state.batches_trained else None,
        "corpus": run.corpus,
        # In symbols; of clips that are skipped too, for it may have trained on them before.
        "longest_text": int(run.training_clips.num_symbols.max()),
        "logs": run.logger.state(),
        "metrics_checksum": run.logger.metrics_checksum,
    }
    if not state.seeded_by_batch:
        saved["rng"] = {"cpu": torch.get_rng_state()}
        if run.device.type == "cuda":
            saved["rng"]["cuda"] = torch.cuda.get_rng_state(run.device)
    path = checkpoint.save_checkpoint(run.output_directory, saved, run.hparams.keep_checkpoints)
    if state.best_iteration == state.iteration:
        checkpoint.mark_best(run.output_directory, path)
    return path


def restore(run: Run, found: Checkpoint) -> None:
    """Put a checkpoint's state into a freshly built run.

    Raises:
        UserError: if it is of another corpus or model, or of other batches inside an epoch.
    """
    path, saved, trainer = found.path, found.state, run.trainer
    if saved["corpus"] != run.corpus:
        raise UserError(
            f"{path} was trained on other clips, texts or lengths in frames than "
            "training_files and validation_files now name: give the same filelists and audio "
            "settings, or use --warm_start to begin a new run from its weights"
        )
    checkpoint.load_weights(trainer.model, saved, path)
    if problems := optimizer_problems(saved["optimizer"], trainer.optimizer):
        raise checkpoint.parts_refused(path, problems)
    # Of the saved group only the rate counts: the other settings are those of this command.
    trainer.optimizer.load_state_dict(
        trainer.optimizer.state_dict() | {"state": saved["optimizer"]["state"]}
    )
    trainer.optimizer.param_groups[0]["lr"] = saved["optimizer"]["param_groups"][0]["lr"]
    if saved["scaler"]:  # empty but for fp16
        trainer.scaler.load_state_dict(saved["scaler"])
    half_way = saved["loop"]["batches_trained"] > 0
    run.state = LoopState(**{"seeded_by_batch": int(not half_way)} | saved["loop"])
    if not run.state.seeded_by_batch and run.hparams.batches_per_update > 1:
        raise UserError(
            f"{path} was left inside epoch {run.state.epoch} by an earlier version, which trained "
            "in one process with one batch an update: go on so until the epoch ends"
        )
    if saved["sampler"] is not None:
        if saved["sampler"]["epoch"] != plan_number(run.state.epoch, run.hparams):
            raise UserError(
                f"{path}: prepare_trainset_per_epoch cannot change inside epoch {run.state.epoch}, "
                "which was left half-way: set it as it was, until the epoch ends"
            )
        try:
            run.sampler.load_state_dict(saved["sampler"])
        except BatchingError as error:
            raise UserError(f"{path}: {error}") from None
    if not run.state.seeded_by_batch:
        restore_random_states(run, path, saved)
    print(f"going on from {path}: epoch {run.state.epoch}, step {run.state.iteration}")


def restore_random_states(run: Run, path: Path, saved: dict) -> None:
    """For the rest of an epoch that an earlier version began, whose dropout is one stream."""
    torch.set_rng_state(saved["rng"]["cpu"])
    if run.device.type == "cuda" and "cuda" in saved["rng"]:
        try:
            torch.cuda.set_rng_state(saved["rng"]["cuda"], run.device)
        except RuntimeError as error:
            raise UserError(f"{path}: rng: cuda is no state of a generator ({error})") from None


def plan_number(epoch: int, hparams: HParams) -> int:
    """The sampler's epoch, from 0. Reusing the first repeats its batches and their order."""
    return epoch - 1 if hparams.prepare_trainset_per_epoch else 0


def dropout_seed(seed: int, epoch: int, number: int) -> int:
    """Seed of a batch's dropout, a hash of the run's seed, the epoch and the batch's number in the
    plan: it is the same whichever process trains the batch, and no two runs share an epoch."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(epoch, number))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def open_output(run: Run, args: argparse.Namespace, found: Checkpoint | None) -> None:
    """Bring the output folder to the state of the checkpoint, if there is one.

    The logs of a run that goes on in its own folder are cut back to the checkpoint.

    Raises:
        UserError: if the folder cannot be written to, or another process trains in it.
    """
    if not run.processes.is_first:
        run.logger = NoLogger()
        return
    run.output.make()
    directory, state = run.output_directory, run.state
    log_state, mended = {}, None
    with folder_errors():
        remove_leftovers(directory)
        # Before the logs are cut: killed in between, the next --resume must cut them too.
        for moved in checkpoint.set_aside_newer(directory, state.iteration if found else -1):
            print(f"set aside a later or damaged checkpoint: {moved}")
        if found is not None and lies_in(found.path, directory):
            log_state = found.state["logs"]
            mended = mend_metrics(
                directory / METRICS_FILE,
                log_state.get(METRICS_FILE, 0),
                found.state.get("metrics_checksum"),
                state,
                lambda message: print(f"warning: {message}"),
            )
            if mended is not None:
                log_state = log_state | {METRICS_FILE: mended}
            mark_if_best(directory, found)
        if not (directory / checkpoint.BEST).exists() and state.best_iteration != state.iteration:
            state.best_validation_loss = float("inf")  # of a checkpoint that is not here any more
        run.logger = RunLogger(directory, directory / args.log_directory, log_state)
        write_lengths(directory / "lengths.csv", run.training_clips)
    before = found.state["loop"].get("skipped_clips", {}) if found else {}
    skips_more = state.skipped_clips.keys() != before.keys()
    if found is None or not args.resume or mended is not None or skips_more:
        # The next --resume then needs neither -c, --hparams nor --skip-clips, it finds the metrics
        # as they were mended, and a full disk shows now.
        save(run)
    run.logger.log_run(run_record(run, found.path if found else args.checkpoint_path))


def mark_if_best(directory: Path, found: Checkpoint) -> None:
    """A run may be killed between writing its best checkpoint and marking it."""
    if found.state["loop"]["best_iteration"] == found.state["iteration"]:
        checkpoint.mark_best(directory, found.path)


def run_record(run: Run, started_from: Path | None) -> dict:
    """What the `run` line of metrics.jsonl says: settings, corpus, machine, versions, commit."""
    return {
        "iteration": run.state.iteration,
        "epoch": run.state.epoch,
        "started_from": str(started_from) if started_from else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hparams": asdict(run.hparams),
        "corpus": {
            "fingerprint": run.corpus,
            "training_clips": len(run.training_clips),
            "validation_clips": len(run.validation_clips),
            "training_frames": int(run.training_clips.num_frames.sum()),
        },
        "skipped_clips": list(run.state.skipped_clips),
        "decoder": run.trainer.decoder_description,
        **describe_environment(run.device),
    }
