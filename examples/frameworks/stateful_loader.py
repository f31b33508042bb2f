"""Train with torchdata's StatefulDataLoader, which saves its position in the epoch.

    python stateful_loader.py
    torchrun --nproc-per-node 2 stateful_loader.py

To stop after 7 optimizer steps, add `--stop 7`. To resume the run, replace `--stop 7` with
`--resume`.
"""

import torch
from task import BATCHING, Clips, Model, arguments, join_processes, pad, save
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from length_batching import LengthBatches, RankSampler


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    rank, processes = join_processes()
    clips = Clips()
    batches = LengthBatches(clips, clips.lengths, **BATCHING, collate=pad, world_size=processes)
    sampler = RankSampler(batches, rank)
    loader = StatefulDataLoader(batches, batch_size=None, sampler=sampler, num_workers=args.workers)
    model = Model(args.folder / "steps")
    parallel = DistributedDataParallel(model) if processes > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = args.folder / "stateful.pt"
    epoch = 0
    step = 0
    if args.resume:
        state = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(state["loader"])
        model.load_state_dict(state["model"])
        epoch = state["epoch"]
        step = state["step"]
    for current in range(epoch, args.epochs):
        sampler.set_epoch(current)  # `set_epoch` must be called before every epoch
        for batch in loader:
            optimizer.zero_grad()
            parallel(**batch)["loss"].backward()
            optimizer.step()
            step += 1
            if step == args.stop:
                state = {"model": model.state_dict(), "epoch": current, "step": step}
                save(checkpoint, state | {"loader": loader.state_dict()})
                return


if __name__ == "__main__":
    main()
