"""Define the dataset, the model and the command-line arguments of the programs in this folder."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset

BATCHING: Any = {
    "batch_size": 8,
    "strategy": "semi_sorted",
    "dynamic_batch_size": True,
    "batch_randomization": True,
}


class Clips(Dataset[Tensor]):
    """Clips with lognormal lengths. The first frame of each clip contains the index of the clip."""

    def __init__(self, count: int = 300):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.empty(count).log_normal_(3, 0.5, generator=generator)
        self.lengths = (lengths.int() + 2).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Tensor:
        frames = torch.sin(torch.arange(self.lengths[number] - 1))
        return torch.cat([torch.tensor([number]), frames])


def pad(clips: list[Tensor]) -> dict[str, Tensor]:
    """Return the indices of the clips [B] and their padded frames [B, longest]."""
    padded = nn.utils.rnn.pad_sequence(clips, batch_first=True)
    return {"numbers": padded[:, 0].long(), "frames": padded[:, 1:]}


class Model(nn.Module):
    """A model that predicts each frame from the previous frame.

    For every batch, the model appends one line of JSON, with the indices of the clips and the loss,
    to the file `record`. If there are several processes, each process writes its own file.
    """

    def __init__(self, record: Path):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(1, 1)
        self.record = record.with_suffix(f".{os.environ.get('RANK', 0)}")

    def forward(self, numbers: Tensor, frames: Tensor) -> dict[str, Tensor]:
        predicted = self.layer(frames[:, :-1, None])[..., 0]
        loss = (predicted - frames[:, 1:]).square().mean()
        with self.record.open("a") as file:
            file.write(json.dumps({"clips": numbers.tolist(), "loss": loss.item()}) + "\n")
        return {"loss": loss}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="number of epochs (default: 3)")
    add("--workers", type=int, default=0, help="number of DataLoader workers (default: 0)")
    add(
        "--stop", type=int, metavar="N", help="save a checkpoint after N optimizer steps, then stop"
    )
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--folder", type=Path, default=Path("run"), help="folder for the run (default: run)")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def join_processes() -> tuple[int, int]:
    """Join the process group that torchrun started, and return (rank, number of processes)."""
    if "RANK" not in os.environ:
        return 0, 1
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return distributed.get_rank(), distributed.get_world_size()


def save(path: Path, state: dict[str, Any]) -> None:
    """Save a checkpoint in the first process. All processes wait until the checkpoint is saved."""
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(state, path)
    if distributed.is_initialized():
        distributed.barrier()
