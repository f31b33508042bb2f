"""What the processes of a run settle before the first step: the folder, the checkpoint, the clips.

Each looks at the files itself, for on several machines they may differ, and all go on or none does.
"""

import argparse
import hashlib
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from batching import LengthBatchSampler
from clip_table import ClipTable
from data_utils import corpus_fingerprint
from errors import UserError
from hparams import HParams
from training import checkpoint
from training.batches import make_sampler
from training.checkpoint import Checkpoint
from training.clips import indices_of
from training.distributed import Processes
from training.machine import versions
from training.output import OutputFolder
from training.resume import find_checkpoint, resolve_hparams
from training.skipping import clips_to_skip, read_clips_but
from training.trainer import choose_decoder

ROOT = Path(__file__).resolve().parents[1]


def take_output(args: argparse.Namespace, processes: Processes) -> OutputFolder | None:
    """The output folder, locked; None in all processes but the first, which alone writes."""
    return OutputFolder(args.output_directory) if processes.is_first else None


def find_checkpoint_together(args: argparse.Namespace, processes: Processes) -> Checkpoint | None:
    """The checkpoint that the first process finds, read by each."""
    found = processes.all_or_none(lambda: find_checkpoint(args) if processes.is_first else None)
    path = processes.broadcast(found and found.path)
    if path is None or processes.is_first:
        return found
    return Checkpoint(path, checkpoint.load_checkpoint(path))


@dataclass
class Data:
    """The run's settings and its clips."""

    hparams: HParams
    training_clips: ClipTable
    validation_clips: ClipTable
    corpus: str  # fingerprint
    sampler: LengthBatchSampler
    left_out: list[str]  # ids of --skip-clips
    weights: dict | None  # to begin with (--warm_start)


def read_data(args: argparse.Namespace, processes: Processes, found: Checkpoint | None) -> Data:
    """Settings, clips and batches of this process; all processes call this together.

    Raises:
        UserError: in every process, on whatever of them cannot be used.
    """
    hparams, left_out, weights = processes.all_or_none(
        lambda: read_settings(args, processes, found)
    )
    training_clips, validation_clips = read_clips_but(
        left_out, args.output_directory, hparams, processes, going_on=found is not None
    )
    skipped = indices_of(training_clips, left_out)
    return Data(
        hparams,
        training_clips,
        validation_clips,
        corpus_fingerprint(training_clips, validation_clips),
        processes.all_or_none(lambda: make_sampler(training_clips, hparams, processes, skipped)),
        left_out,
        weights,
    )


def read_settings(
    args: argparse.Namespace, processes: Processes, found: Checkpoint | None
) -> tuple[HParams, list[str], dict | None]:
    """The run's settings, the ids of --skip-clips, and weights to begin with (--warm_start)."""
    weights = None
    if args.warm_start and found is None:
        weights = checkpoint.load_checkpoint(args.checkpoint_path)
    hparams = resolve_hparams(args.hparams, found)
    if hparams.batches_per_update == 1 and processes.world_size > 1:
        hparams = replace(hparams, batches_per_update=processes.world_size)
        print(
            f"batches_per_update = {hparams.batches_per_update}, one for each process: updates are "
            "larger and fewer than in one process, which is another training"
        )
    if hparams.sync_batch_norm and processes.device == torch.device("cpu"):
        raise UserError(
            "sync_batch_norm=True: torch shares batch norm's statistics between GPUs alone, and "
            "these processes train on CPUs; leave it out"
        )
    return hparams, clips_to_skip(args.skip_clips, found), weights


def what_must_agree(data: Data, found: Checkpoint | None, device: torch.device) -> dict:
    """What every process must know alike, by its name."""
    return asdict(data.hparams) | {
        "the corpus": data.corpus,
        "the clips left out": data.left_out,
        "the checkpoint": found and f"step {found.state['iteration']}, {_checksum(found.path)}",
        "the first weights": data.weights is not None,
        "the decoder": choose_decoder(data.hparams.decoder, device)[1],
        "the kind of device": device.type,
        "torch": versions()["torch"],
        "this recipe's code": _fingerprint_of_code(),
    }


def _checksum(path: Path) -> str:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return f"CRC-32 {checksum:08x}"


def _fingerprint_of_code() -> str:
    """Of all that trains, in whatever folder it lies."""
    found = hashlib.sha256()
    patterns = ("*.py", "training/*.py", "fast_decoder/*.py", "text/*.py")
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def load_warm(model: torch.nn.Module, weights: dict, path: Path, hparams: HParams) -> None:
    """Begin with the weights of another model; `ignore_layers` keep their own."""
    checkpoint.load_weights(model, weights, path, hparams.ignore_layers)
    kept = ", ".join(hparams.ignore_layers) or "none"
    print(f"weights from {path}; ignore_layers keep theirs: {kept}")
