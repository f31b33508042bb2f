"""Train with your own loop and PyTorch's DataLoader.

    python plain_loop.py
    torchrun --nproc-per-node 2 plain_loop.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import torch
from task import BATCHING, Clips, Model, arguments, join_processes, pad, save
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from length_batching import LengthBatches, RankSampler


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    rank, processes = join_processes()
    clips = Clips()
    batches = LengthBatches(clips, clips.lengths, **BATCHING, collate=pad, world_size=processes)
    sampler = RankSampler(batches, rank)
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = Model(args.folder / "steps")
    parallel = DistributedDataParallel(model) if processes > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = args.folder / "plain.pt"
    step = 0
    if args.resume:
        state = torch.load(checkpoint)
        batches.load_state_dict(state["batches"])
        model.load_state_dict(state["model"])
        step = state["step"]
    for epoch in range(batches.epoch, args.epochs):
        sampler.set_epoch(epoch)  # `set_epoch` must be called before every epoch
        for trained, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            parallel(**batch)["loss"].backward()
            optimizer.step()
            step += 1
            if step == args.stop:
                state = {"model": model.state_dict(), "step": step}
                save(checkpoint, state | {"batches": batches.state_dict(trained)})
                return


if __name__ == "__main__":
    main()
