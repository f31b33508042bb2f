"""Hugging Face Trainer: `python hf_trainer.py`, or in two processes
`torchrun --nproc-per-node 2 hf_trainer.py`. `--stop 7`, then `--resume`."""

import torch
from task import BATCHING, Clips, Model, arguments, pad
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from length_batching import LengthBatchSampler


class LengthBatchTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        sampler = LengthBatchSampler(
            self.train_dataset.lengths, **BATCHING, batches_per_epoch="constant"
        )
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return self.accelerator.prepare(loader)


class StopAfter(TrainerCallback):
    def __init__(self, step: int | None):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    model = Model(args.folder / "steps")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = LengthBatchTrainer(
        model,
        TrainingArguments(
            str(args.folder / "trainer"),
            num_train_epochs=args.epochs,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_num_workers=args.workers,
            use_cpu=True,
        ),
        data_collator=pad,
        train_dataset=Clips(),
        optimizers=(optimizer, None),
        callbacks=[StopAfter(args.stop)],
    )
    trainer.train(resume_from_checkpoint=args.resume or None)


if __name__ == "__main__":
    main()
