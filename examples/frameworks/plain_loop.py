"""A loop of one's own over torch's DataLoader: `python plain_loop.py`, or in two processes
`torchrun --nproc-per-node 2 plain_loop.py`. `--stop 7`, then `--resume`."""

import os

import torch
from task import BATCHING, Clips, Model, arguments, pad, save
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from length_batching import LengthBatchSampler


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    if "RANK" in os.environ and not distributed.is_initialized():
        distributed.init_process_group("gloo")
    clips = Clips()
    sampler = LengthBatchSampler(clips.lengths, **BATCHING, batches_per_epoch="constant")
    loader = DataLoader(
        clips,
        batch_sampler=sampler,
        collate_fn=pad,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = Model(args.folder / "steps")
    parallel = DistributedDataParallel(model) if distributed.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, step = args.folder / "plain.pt", 0
    if args.resume:
        state = torch.load(checkpoint)
        sampler.load_state_dict(state["sampler"])
        model.load_state_dict(state["model"])
        step = state["step"]
    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)  # before every pass; only then is sampler.start of this epoch
        batches_trained = sampler.start  # by all processes
        for batch in loader:
            optimizer.zero_grad()
            parallel(**batch)["loss"].backward()
            optimizer.step()
            step, batches_trained = step + 1, batches_trained + sampler.world_size
            if step == args.stop:
                state = {"model": model.state_dict(), "step": step}
                save(checkpoint, state | {"sampler": sampler.state_dict(batches_trained)})
                return


if __name__ == "__main__":
    main()
