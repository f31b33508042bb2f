"""Train with the Hugging Face Trainer.

    python hf_trainer.py
    torchrun --nproc-per-node 2 hf_trainer.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import torch
from task import BATCHING, Clips, Model, arguments, pad
from transformers import Trainer, TrainerCallback, TrainingArguments

from length_batching import LengthBatches


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
    training = TrainingArguments(
        str(args.folder / "trainer"),
        per_device_train_batch_size=1,  # each item of the dataset is a whole batch
        train_sampling_strategy="sequential",
        num_train_epochs=args.epochs,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=args.workers,
        use_cpu=True,
    )
    clips = Clips()
    batches = LengthBatches(
        clips,
        clips.lengths,
        **BATCHING,
        collate=pad,
        world_size=training.world_size,
        # LengthBatches must write its position to a file, because the Trainer does not save the
        # state of `batches`.
        record=args.folder / "trainer" / "batches.txt",
    )
    trainer = Trainer(
        model,
        training,
        data_collator=batches.unwrap,
        train_dataset=batches,
        optimizers=(optimizer, None),
        callbacks=[StopAfter(args.stop)],
    )
    trainer.train(resume_from_checkpoint=args.resume or None)


if __name__ == "__main__":
    main()
