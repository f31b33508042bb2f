"""Train with Lightning.

    python lightning_trainer.py
    torchrun --nproc-per-node 2 lightning_trainer.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from task import BATCHING, Clips, Model, arguments, pad
from torch.utils.data import DataLoader

from length_batching import BatchingError, LengthBatches, RankSampler


class Module(lightning.LightningModule):
    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LaterLoader(DataLoader):
    """A DataLoader that starts its workers when the first batch is read.

    A normal DataLoader starts its workers in iter(), which Lightning calls before set_epoch. If a
    run resumes at the end of an epoch, these workers would begin the next epoch too early and raise
    a BatchingError.
    """

    def __iter__(self):
        yield from super().__iter__()


class SaveBatches(Callback):
    """Save the position in the epoch to the checkpoint, because Lightning does not save this
    position for a DataLoader."""

    def __init__(self, batches: LengthBatches):
        self.batches = batches
        self.trained = 0

    def setup(self, trainer, pl_module, stage):
        if trainer.world_size != self.batches.world_size:
            expected = f"expected {trainer.world_size}, the number of processes of the Trainer"
            raise BatchingError(f"world_size={self.batches.world_size}: {expected}")

    def on_train_start(self, trainer, pl_module):
        if not isinstance(trainer.train_dataloader.sampler, RankSampler):
            expected = "sampler=RankSampler(batches, trainer.global_rank)"
            raise BatchingError(f"the DataLoader has no RankSampler (expected {expected})")

    def on_train_epoch_start(self, trainer, pl_module):
        self.trained = 0
        # Set the number of batches again in each epoch. Lightning counts the batches only in the
        # first epoch, but epochs with random batches have more batches than later epochs.
        if trainer.limit_train_batches == 1.0:
            trainer.fit_loop.max_batches = len(trainer.train_dataloader)
            if isinstance(trainer.val_check_interval, float):
                interval = int(trainer.fit_loop.max_batches * trainer.val_check_interval)
                trainer.val_check_batch = max(1, interval)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.trained += 1

    def state_dict(self):
        return self.batches.state_dict(self.trained) | {"world_size": self.batches.world_size}

    def load_state_dict(self, state_dict):
        # Reject a different number of processes. Lightning counts the batches per process. If the
        # number of processes changed, the epoch would end at the wrong batch.
        if state_dict["world_size"] != self.batches.world_size:
            expected = state_dict["world_size"]
            raise BatchingError(f"world_size={self.batches.world_size}: expected {expected}")
        self.batches.load_state_dict(state_dict)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    clips = Clips()
    batches = LengthBatches(clips, clips.lengths, **BATCHING, collate=pad, world_size=processes)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=args.epochs,
        max_steps=args.stop or -1,
        callbacks=[
            SaveBatches(batches),
            ModelCheckpoint(args.folder / "lightning", save_last=True, every_n_train_steps=1),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    sampler = RankSampler(batches, trainer.global_rank)
    loader = LaterLoader(
        batches,
        batch_size=None,
        sampler=sampler,
        num_workers=args.workers,
        # Do not fork workers, because forked workers can hang if the parent process has threads.
        multiprocessing_context="forkserver" if args.workers else None,
    )
    checkpoint = args.folder / "lightning" / "last.ckpt"
    trainer.fit(
        Module(Model(args.folder / "steps")), loader, ckpt_path=checkpoint if args.resume else None
    )


if __name__ == "__main__":
    main()
