"""A run: what the training loop works with, and where it stands."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from torch.utils.data import DataLoader

from batching import LengthBatchSampler
from clip_table import ClipTable
from errors import UserError
from hparams import HParams
from training.logging import NoLogger, RunLogger
from training.loop_state import LoopState
from training.output import OutputFolder
from training.trainer import Trainer


@dataclass
class Run:
    """Everything that the loop works with."""

    hparams: HParams
    output_directory: Path
    output: OutputFolder | None  # the folder, locked; the first process alone has it
    training_clips: ClipTable
    validation_clips: ClipTable
    corpus: str  # fingerprint
    sampler: LengthBatchSampler
    loader: DataLoader  # of training batches
    validation_loader: DataLoader
    trainer: Trainer
    logger: RunLogger | NoLogger | None = None  # opened last: until then nothing is written
    state: LoopState = field(default_factory=LoopState)
    pending: list = field(default_factory=list)  # totals.PendingStep
    must_stop: bool = False  # a process was asked to stop, and all know it
    recent_loss: float | None = None  # mean of the steps last read; None before the first
    recent_sharpness: float | None = None  # of the alignment, at the last validation

    @property
    def device(self):
        return self.trainer.device

    @property
    def processes(self):
        return self.trainer.processes

    def close(self) -> None:
        """Give the logs and the output folder back."""
        with contextlib.suppress(OSError, UserError):  # a failure to write was reported before
            self.logger.close()
        if self.output is not None:
            self.output.close()


def clip_names(clips: ClipTable, indices) -> str:
    """Filelist line and path of the clips with these `indices` (int64 [B]), a line each."""
    return "\n".join(f"  {clips[i].where}: {clips[i].path}" for i in indices.tolist())
