"""Train with accelerate.

    python accelerate_loop.py
    accelerate launch --num-processes 2 accelerate_loop.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import torch
from accelerate import Accelerator
from task import BATCHING, Clips, Model, arguments, pad
from torch.utils.data import DataLoader

from length_batching import LengthBatches


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    accelerator = Accelerator(cpu=True)
    clips = Clips()
    batches = LengthBatches(
        clips, clips.lengths, **BATCHING, collate=pad, world_size=accelerator.num_processes
    )
    loader = DataLoader(batches, batch_size=1, collate_fn=batches.unwrap, num_workers=args.workers)
    model = Model(args.folder / "steps")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(batches)
    step = 0
    if args.resume:
        accelerator.load_state(str(args.folder / "accelerate"))
        step = int((args.folder / "accelerate" / "step").read_text())
    first, skipped = divmod(step, len(loader))
    for epoch in range(first, args.epochs):
        loader.set_epoch(epoch)  # must be called before skip_first_batches
        skip = skipped if epoch == first else 0
        for batch in accelerator.skip_first_batches(loader, skip) if skip else loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            step += 1
            if step == args.stop:
                accelerator.save_state(str(args.folder / "accelerate"))
                (args.folder / "accelerate" / "step").write_text(str(step))
                return


if __name__ == "__main__":
    main()
