"""Validation: losses that all runs can be compared by, and one clip to look at and listen to."""

from collections.abc import Collection

import numpy as np
import torch
from torch.utils.data import DataLoader

from alignment import FORMED, alignment_sums
from audio import griffin_lim
from batching import plan_epoch
from data_utils import Batch, Clip, make_loader
from errors import UserError
from hparams import HParams
from progress import progress_bar
from training.measuring import is_out_of_memory
from training.run import Run, clip_names
from training.skipping import without

STEPS_TO_ALIGN = 10_000  # updates that others' runs took at one frame a step, 64 clips a batch
VALIDATION_SEED = 0  # of the batches and prenet masks of every run's validation


def make_validation_loader(
    clips: list[Clip], hparams: HParams, pin_memory: bool, skipped: Collection[int] = ()
) -> DataLoader:
    """Random batches, the same in every run and every epoch, without the clips of `skipped`."""
    lengths = [clip.num_frames for clip in clips]
    plan = plan_epoch(lengths, hparams.validation_batch_size, "random", seed=VALIDATION_SEED)
    batches = [without(batch, skipped) for batch in plan]
    return make_loader(clips, hparams, pin_memory, [batch for batch in batches if batch])


@torch.no_grad()
def validate(run: Run, batches, should_stop) -> tuple[dict, dict] | None:
    """The record of a validation, and one clip as `RunLogger.log_validation` takes it.

    Prenet masks come from a constant seed. The padded loss weights batches by clips, the unpadded
    one by real frames. Of the alignments, sharpness is the mean over real steps of the largest
    weight, diagonality the mean over real steps of the share near the diagonal, and coverage the
    share of symbols that get attention: see alignment.py.

    Args:
        batches: an iterable of the validation set's batches.
        should_stop: called before each of them; if true, validation ends and returns None.

    Raises:
        UserError: naming the clips of a batch whose loss is not finite.
    """
    trainer, model = run.trainer, run.trainer.model
    generator = torch.Generator().manual_seed(VALIDATION_SEED)
    sums, seen, example = [], [], None
    trainer.optimizer.zero_grad(set_to_none=True)  # their memory is not there in the rehearsal
    model.eval()
    progress = progress_bar("validation", len(run.validation_loader), " batches")
    try:
        for batch in batches:
            if should_stop():
                return None
            num_steps = batch.mel.shape[2] // model.n_frames_per_step
            masks = model.decoder.draw_masks(num_steps, len(batch.text), generator)
            moved = batch.to(trainer.device)
            with trainer.autocast():
                outputs = model(moved, masks)
            losses = trainer.loss(outputs, moved)
            steps = batch.num_steps(model.n_frames_per_step)
            aligned = alignment_sums(outputs.alignments, steps, batch.text_lengths)
            sums.append(torch.cat([torch.stack([losses.total, losses.total_unpadded]), aligned]))
            seen.append(batch)
            if example is None:
                example = example_of(batch, outputs, run.hparams)
            progress.update()
    finally:
        model.train()
        progress.close()
    rows = torch.stack(sums).double().cpu().numpy()
    for row, batch in zip(rows, seen, strict=True):
        if not np.isfinite(row).all():
            names = clip_names(run.validation_clips, batch.clip_indices)
            raise UserError(f"the validation loss became {row[0]} on these clips:\n{names}")
    clips = np.array([len(batch.mel_lengths) for batch in seen])
    frames = np.array([int(batch.mel_lengths.sum()) for batch in seen])
    steps = sum(int(batch.num_steps(model.n_frames_per_step).sum()) for batch in seen)
    symbols = sum(int(batch.text_lengths.sum()) for batch in seen)
    record = {
        "epoch": run.state.epoch,
        "iteration": run.state.iteration,
        "validation_loss": float(rows[:, 0] @ clips / clips.sum()),
        "validation_loss_unpadded": float(rows[:, 1] @ frames / frames.sum()),
        "alignment_sharpness": float(rows[:, 2].sum() / steps),
        "alignment_coverage": float(rows[:, 4].sum() / symbols),
        "alignment_diagonality": float(rows[:, 3].sum() / steps),
    }
    return record, example


def example_of(batch: Batch, outputs, hparams: HParams) -> dict:
    """The first clip of a batch: alignment, mels, gate and sound.

    The sound takes far more memory than the rest, of the machine and not of the GPU. Where there is
    too little it is None, for nothing that is trained depends on it.
    """
    frames, symbols = int(batch.mel_lengths[0]), int(batch.text_lengths[0])
    steps = -(-frames // hparams.n_frames_per_step)
    predicted = outputs.mel_postnet[0, :, :frames].float().cpu()
    return {
        "alignment": outputs.alignments[0, :steps, :symbols].float().cpu().numpy(),
        "target_mel": batch.mel[0, :, :frames].numpy(),
        "predicted_mel": predicted.numpy(),
        "gate": torch.sigmoid(outputs.gate[0, :steps].float()).cpu().numpy(),
        "gate_target": batch.gate[0, :steps].numpy(),
        "audio": sound_of(predicted, hparams),
        "sampling_rate": hparams.sampling_rate,
    }


def sound_of(mel: torch.Tensor, hparams: HParams) -> np.ndarray | None:
    """Samples [N] of a log-mel [n_mels, frames], or None and a warning if memory is too small."""
    try:
        return griffin_lim(mel, hparams, iterations=30)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(
            f"warning: too little memory to make sound of a validation clip of {mel.shape[1]} "
            "frames: training goes on without it",
            flush=True,
        )
        return None


def log_validation(run: Run, record: dict, example: dict) -> None:
    """Log and print a validation, and remember the best."""
    run.logger.log_validation(record, example)
    run.recent_sharpness = record["alignment_sharpness"]
    print(
        f"  validation loss {record['validation_loss']:.4f}, "
        f"unpadded {record['validation_loss_unpadded']:.4f}, "
        f"alignment sharpness {record['alignment_sharpness']:.3f}, "
        f"coverage {record['alignment_coverage']:.2f}, "
        f"diagonality {record['alignment_diagonality']:.2f}"
    )
    if (
        not run.state.alignment_warned
        and record["iteration"] >= STEPS_TO_ALIGN
        and record["alignment_sharpness"] < FORMED
    ):
        run.state.alignment_warned = 1
        print(advice_on_alignment(record, run.hparams), flush=True)
    if record["validation_loss_unpadded"] < run.state.best_validation_loss:
        run.state.best_validation_loss = record["validation_loss_unpadded"]
        run.state.best_iteration = run.state.iteration


def advice_on_alignment(record: dict, hparams: HParams) -> str:
    """What to do about an alignment that has not formed, which training longer seldom mends."""
    settings = []
    if hparams.n_frames_per_step == 1:
        settings.append("n_frames_per_step=2 (or 3), which makes the way through a text shorter")
    if hparams.guided_attention_weight == 0:
        settings.append("guided_attention_weight=5")
    tries = [
        "cut silence off the clips' ends (prepare_ljspeech.py names them, --trim-silence cuts)",
        *(f"begin a new run with {setting}" for setting in settings),
        "train on, if sharpness has been rising: smaller batches take more updates",
    ]
    return "\n".join(
        [
            f"warning: the alignment has not formed after {record['iteration']:,} updates: "
            f"sharpness {record['alignment_sharpness']:.2f} is below {FORMED}. With one frame a "
            f"step and 64 clips a batch, others' took some {STEPS_TO_ALIGN:,}. What usually helps:",
            *(f"  {number}. {text}" for number, text in enumerate(tries, 1)),
        ]
    )
