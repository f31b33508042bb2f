"""A run: what the training loop works with, and where it stands."""

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path

from torch.utils.data import DataLoader

from batching import LengthBatchSampler
from data_utils import Clip
from errors import UserError
from hparams import HParams
from training.logger import RunLogger
from training.step import Trainer


@dataclass
class LoopState:
    """Where the loop stands; saved in every checkpoint. Sums are over the current epoch."""

    iteration: int = 0  # training steps of the whole run
    epoch: int = 1  # the current epoch, from 1
    batches_trained: int = 0
    clips: int = 0
    frames: int = 0  # real ones
    loss_sum: float = 0.0  # over clips
    loss_unpadded_sum: float = 0.0  # over real frames
    gradient_norm_sum: float = 0.0  # over steps that updated
    updates: int = 0
    seconds: float = 0.0  # planning, waiting for data and training
    prepare_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    peak_memory_bytes: int = 0  # of the device, in training
    skips_running: int = 0  # updates skipped since the last one made
    best_validation_loss: float = math.inf  # unpadded
    best_iteration: int = -1

    def next_epoch(self) -> "LoopState":
        """The state before the first batch of the next epoch."""
        kept = ("iteration", "skips_running", "best_validation_loss", "best_iteration")
        return LoopState(epoch=self.epoch + 1, **{name: getattr(self, name) for name in kept})


@dataclass
class Run:
    """Everything that the loop works with."""

    hparams: HParams
    output_directory: Path
    training_clips: list[Clip]
    validation_clips: list[Clip]
    corpus: str  # fingerprint
    sampler: LengthBatchSampler
    loader: DataLoader  # of training batches
    validation_loader: DataLoader
    trainer: Trainer
    logger: RunLogger | None = None  # opened last: until then nothing is written
    state: LoopState = field(default_factory=LoopState)
    pending: list = field(default_factory=list)  # totals.PendingStep
    recent_loss: float | None = None  # mean of the steps last read; None before the first
    lock: object = None  # held while this process may write to the output folder

    @property
    def device(self):
        return self.trainer.device

    def close(self) -> None:
        """Give the logs and the output folder back."""
        with contextlib.suppress(OSError, UserError):  # a failure to write was reported before
            self.logger.close()
        self.lock.close()


def clip_names(clips: list[Clip], indices) -> str:
    """Filelist line and path of the clips with these `indices` (int64 [B]), a line each."""
    return "\n".join(f"  {clips[i].where}: {clips[i].path}" for i in indices.tolist())
