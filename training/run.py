"""Define `Run`, the state of a training run, and start or resume it.

run = Run(folder, clips, sampler, loader, validation_loader, trainer)
load_start(run, start)
open_logs(run, start)
"""

import contextlib
import functools
import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from export import checkpoint_file
from hparams import HParams
from length_batching import LengthBatchSampler
from machine import describe_environment
from tacotron2_voice.speech_statistics import (
    SpeakerStatistics,
    SpeechStatistics,
    last_symbol,
    measure,
    measure_speakers,
)
from tacotron2_voice.text.rules import rules_version
from tacotron2_voice.utils.files import remove_leftovers
from tacotron2_voice.utils.program import is_stage
from tacotron2_voice.version import __version__
from training import checkpoint, warm_start
from training.checkpoint import LoopState
from training.clips import Clips, describe_change, write_clips
from training.distributed import Processes
from training.metrics import RunLogger
from training.plan import PendingStep
from training.run_folder import DEFAULT_LOGS, RunFolder
from training.speakers import speech_of_speakers
from training.start import Start, is_inside
from training.trainer import Trainer


@dataclass
class Run:
    """The objects that the training loop needs."""

    folder: RunFolder
    clips: Clips
    sampler: LengthBatchSampler
    loader: DataLoader[Any]  # DataLoader of training batches
    # DataLoader of validation batches; None without a validation filelist.
    validation_loader: DataLoader[Any] | None
    trainer: Trainer
    state: LoopState = field(default_factory=LoopState)
    # Logger of the run. The logger exists only in the first process, after all checks have passed.
    logger: RunLogger | None = None
    # Optimizer steps whose losses have not been read yet.
    pending: list[PendingStep] = field(default_factory=list)
    # Whether any process was asked to stop. `must_stop` has the same value in all processes.
    must_stop: bool = False
    # Mean loss of the optimizer steps whose losses were read most recently; None before the first
    # optimizer step.
    recent_loss: float | None = None
    recent_focus_rate: float | None = None  # focus rate in the last validation
    has_printed_speed: bool = False  # whether the time of the first optimizer step has been printed

    @property
    def hparams(self) -> HParams:
        return self.trainer.hparams

    @property
    def processes(self) -> Processes:
        return self.trainer.processes

    @functools.cached_property
    def statistics(self) -> SpeechStatistics:
        """Return the statistics of the training clips, which synthesis needs."""
        clips = self.clips.training
        symbols = self.hparams.table.symbols
        last = (last_symbol(symbols[i] for i in ids.tolist()) for ids in clips.symbols())
        return measure(clips.num_frames, clips.num_symbols, last, self.hparams)

    @functools.cached_property
    def trained_phones(self) -> list[str]:
        """Return the ARPAbet phones in the training texts, such as "@HH"."""
        used = {i for ids in self.clips.training.symbols() for i in ids.tolist()}
        names = [self.hparams.table.symbols[i] for i in sorted(used)]
        return [name for name in names if len(name) > 1]

    @functools.cached_property
    def speaker_statistics(self) -> list[SpeakerStatistics]:
        """Return the statistics of each speaker of the model; [] for a single-speaker model."""
        names = self.hparams.speakers
        if not names:
            return []
        clips = self.clips.training
        number_of = {name: number for number, name in enumerate(names)}
        indices = np.array([number_of[name] for name in clips.speakers])[clips.speaker_numbers]
        return measure_speakers(
            clips.num_frames, clips.num_symbols, indices, names, self.statistics, self.hparams
        )

    @property
    def resume_command(self) -> str:
        """Return the command that resumes the run; "" if another program started train.py."""
        if is_stage():
            return ""
        options = ["-o", str(self.folder.path)]
        if self.folder.logs != DEFAULT_LOGS:
            options += ["-l", self.folder.logs]
        return f"{self.processes.launcher} train.py {shlex.join(options)} --resume"

    def save(self) -> Path | None:
        """Write a checkpoint in the first process. Read the losses of all optimizer steps before
        you call this method."""
        if self.logger is None:
            return None
        parts: dict[str, Any] = {
            "corpus": self.clips.fingerprint,
            "text_rules": rules_version(self.hparams.pronunciations),
            "trained_phones": self.trained_phones,
            "longest_text": self.statistics.longest_text,
            "speech_statistics": asdict(self.statistics),
        }
        if self.speaker_statistics:
            parts["speaker_statistics"] = [asdict(speaker) for speaker in self.speaker_statistics]
        return checkpoint.save(
            self.folder.path, self.trainer, self.sampler, self.state, **parts, **self.logger.state()
        )

    def close(self) -> None:
        """Close the logs and unlock the run folder."""
        if self.logger is not None:
            # Ignore write errors, because the logger has already reported these errors.
            with contextlib.suppress(OSError):
                self.logger.close()
        self.folder.close()


# ---------------------------------------------------------------------------- begin or resume


def load_start(run: Run, start: Start) -> None:
    """Load a checkpoint's state, or the weights for a warm start, into a new run."""
    if start.resumed is not None:
        _resume(run, start.resumed)
    if start.weights is not None:
        path = start.weights.path
        ignored = run.hparams.ignore_layers
        saved, notes = warm_start.adapted_state(start.weights, run.hparams)
        print(*notes, sep="\n")
        if different := warm_start.different_audio(start.weights, run.hparams):
            print(
                f"warning: {path} was trained with different audio settings: {'; '.join(different)}"
            )
        checkpoint_file.load_weights(run.trainer.model, saved, path, run.hparams, ignored)
        print(f"loaded the weights from {path}; ignored layers: {', '.join(ignored) or 'none'}")


def _resume(run: Run, resumed: checkpoint.Checkpoint) -> None:
    change = run.clips.change
    run.state = checkpoint.restore(resumed, run.trainer, run.sampler, new_clips=change is not None)
    print(
        f"resuming from {resumed.path}: epoch {run.state.epoch}, optimizer step "
        f"{run.state.iteration}"
    )
    if change is None:
        return
    print(f"new clips: {describe_change(change)}; epoch {run.state.epoch} is planned again")
    trained = change.get("moved to validation")
    if trained:
        print(
            f"warning: {trained:,} validation clips were training clips before, so their losses are "
            "lower than the losses of new clips"
        )


def open_logs(run: Run, start: Start) -> None:
    """Restore the run folder to its state when the checkpoint was written, and open the logs.

    If the run resumes in its own folder, truncate the logs to the sizes that the checkpoint
    contains.
    """
    if not run.processes.is_first:
        return
    run.folder.make()
    directory = run.folder.path
    state = run.state
    remove_leftovers(directory)
    # Remove temporary files from the log folder, because TensorBoard would read these files.
    remove_leftovers(directory / run.folder.logs)
    own = None
    if start.resumed is not None and is_inside(start.resumed.path, directory):
        own = checkpoint.put_in_place(start.resumed, directory)
    # Rename later checkpoints before truncating the logs. If the run is killed before the logs are
    # truncated, the next --resume truncates them.
    iteration = -1 if start.resumed is None else state.iteration
    for moved, is_damaged in checkpoint.set_aside_newer(directory, iteration):
        reason = "is damaged" if is_damaged else "is newer than the resumed checkpoint"
        print(f"renamed a checkpoint that {reason} to {moved}")
    if own is not None:
        checkpoint.mark_if_best(own)
    if not (directory / checkpoint.BEST).exists() and state.best_iteration != state.iteration:
        # best.pt was deleted, so let the next validation choose a new best checkpoint.
        state.best_validation_loss = float("inf")
    saved_logs = own.state if own is not None else None
    run.logger = RunLogger(directory, directory / run.folder.logs, saved_logs)
    has_new_clips = own is None or bool(run.clips.change)
    if has_new_clips:
        write_clips(directory, run.clips)
    if has_new_clips or run.logger.has_lost_metrics:
        # Save a checkpoint before the first epoch, so that the next --resume needs no other option,
        # and so that a full disk is reported early.
        run.save()
    run.logger.log_run(run_record(run, start))


def run_record(run: Run, start: Start) -> dict[str, Any]:
    """Return the `run` line of metrics.jsonl: settings, corpus, machine, versions and commit."""
    started_from = start.resumed or start.weights
    clips = run.clips
    record = {
        "version": __version__,
        "iteration": run.state.iteration,
        "epoch": run.state.epoch,
        "started_from": str(started_from.path) if started_from else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hparams": asdict(run.hparams),
        "corpus": {
            "fingerprint": clips.fingerprint,
            "training_clips": len(clips.training),
            "validation_clips": len(clips.validation),
            "training_frames": int(clips.training.num_frames.sum()),
        },
    }
    if run.hparams.speakers:
        record["speakers"] = speech_of_speakers(clips, run.hparams)
    record["changed_clips"] = clips.change
    record["decoder"] = run.trainer.decoder_description
    return record | describe_environment(run.trainer.device)
