"""Where a run stands: the part of a checkpoint that the training loop counts."""

import math
from dataclasses import dataclass, field


@dataclass
class LoopState:
    """Where the loop stands; saved in every checkpoint. Sums are over the current epoch."""

    iteration: int = 0  # training steps of the whole run
    epoch: int = 1  # the current epoch, from 1
    batches_trained: int = 0  # position in the epoch's plan, by all processes
    # 1 where a batch's dropout follows from its number in the plan. 0 until the end of an epoch
    # that an earlier version left half-way: its dropout is drawn on from the saved generator.
    seeded_by_batch: int = 1
    clips: int = 0
    frames: int = 0  # real ones
    loss_sum: float = 0.0  # over clips
    loss_unpadded_sum: float = 0.0  # over real frames
    guided_attention_sum: float = 0.0  # over real frames, as long as the loss has a weight
    guided_attention_frames: int = 0  # those frames
    gradient_norm_sum: float = 0.0  # over steps that updated
    updates: int = 0
    skipped_updates: int = 0
    seconds: float = 0.0  # planning, waiting for data and training
    prepare_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    process_wait_seconds: float = 0.0  # of this process, for gradients of others
    imbalance_sum: float = 0.0  # over updates, of Update.imbalance
    peak_memory_bytes: int = 0  # of the device, in training
    skips_running: int = 0  # updates skipped since the last one made
    best_validation_loss: float = math.inf  # unpadded
    best_iteration: int = -1
    alignment_warned: int = 0  # 1 once it was said that the alignment has not formed
    # Clips left out by --skip-clips: id, and the first batch of this epoch without the clip.
    skipped_clips: dict[str, int] = field(default_factory=dict)

    def next_epoch(self) -> "LoopState":
        """The state before the first batch of the next epoch."""
        kept = (
            *("iteration", "skips_running", "best_validation_loss", "best_iteration"),
            "alignment_warned",
        )
        return LoopState(
            epoch=self.epoch + 1,
            skipped_clips=dict.fromkeys(self.skipped_clips, 0),
            **{name: getattr(self, name) for name in kept},
        )
