"""Train with accelerate.

    python accelerate_loop.py
    accelerate launch --num-processes 2 accelerate_loop.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import json

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
    folder = args.folder / "accelerate"
    step = 0
    skip = 0  # number of batches of the current epoch that this process has already trained on
    if args.resume:
        accelerator.load_state(str(folder))
        counts = json.loads((folder / "counts.json").read_text())
        step = counts["step"]
        skip = counts["trained"]
    for epoch in range(batches.epoch, args.epochs):
        loader.set_epoch(epoch)  # `set_epoch` must be called before skip_first_batches
        rest = accelerator.skip_first_batches(loader, skip) if skip else loader
        for trained, batch in enumerate(rest, start=skip + 1):
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            step += 1
            if step == args.stop:
                accelerator.save_state(str(folder))
                if accelerator.is_main_process:
                    counts = {"step": step, "trained": trained}
                    (folder / "counts.json").write_text(json.dumps(counts))
                return
        skip = 0


if __name__ == "__main__":
    main()
