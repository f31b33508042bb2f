"""Write run folders like train.py, for tests that read runs."""

import json
from dataclasses import asdict

import numpy as np

from hparams import create_hparams
from length_batching import REGISTRY

MACHINE = {"device": "A GPU", "processor": "x86_64", "cores": 8, "threads": 8, "system": "Linux"}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "cuda": None}
CORPUS = {
    "fingerprint": "c0ffee" * 10,
    "training_clips": 48,
    "validation_clips": 10,
    "training_frames": 5928,
}
STRATEGY = {strategy.short_name: name for name, strategy in REGISTRY.items()}
LENGTHS = np.arange(100, 148)


def run_line(overrides="", **changes):
    return {
        "kind": "run",
        "iteration": 0,
        "epoch": 1,
        "started_from": None,
        "time": "2026-11-20T10:00:00+0000",
        "hparams": asdict(create_hparams(overrides)),
        "corpus": CORPUS,
        "machine": MACHINE,
        "versions": VERSIONS,
        "commit": "a" * 40,
    } | changes


def epoch_line(epoch, **changes):
    return {
        "kind": "epoch",
        "epoch": epoch,
        "iteration": epoch,
        "minutes": 3.0,
        "prepare_seconds": 0.25,
        "num_batches": 12,
        "zero_padding_rate": 0.1 + 0.01 * (epoch % 2),
        "average_batch_length": 130.0,
        "decoder_steps": 1500 + epoch,
        "frames_per_second": 1000.0,
        "padded_frames_per_second": 1100.0,
        "clips_per_second": 8.5,
        "data_wait_seconds": 0.5,
        "peak_memory_bytes": (1 + epoch) * 2**29,
    } | changes


def validation_line(epoch, loss=1.0, **changes):
    return {
        "kind": "validation",
        "epoch": epoch,
        "iteration": epoch,
        "validation_loss": loss,
        "validation_loss_unpadded": 2 * loss,
    } | changes


def write_lines(folder, lines, end="\n"):
    """Write metrics.jsonl into a run folder.

    Each line is a record (dict) or a string.
    """
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "metrics.jsonl").write_text(text + end, encoding="utf-8")
    return folder


def write_run(
    folder,
    name="RAND",
    *,
    epochs=12,
    step=2,
    seed=0,
    loss=lambda epoch: 1.0,
    minutes=lambda epoch: 3.0,
    overrides="",
    lengths=LENGTHS,
    clips=None,
    **record,
):
    """Write the folder of a finished run.

    Args:
        name: a strategy in the paper, such as "SSB-DBS-BR".
        step: number of epochs from one validation to the next.
        loss, minutes: functions that map an epoch to its value.
        overrides: additional settings.
        clips: numbers of training and validation clips (default: one training clip per length, and
            10 validation clips).
        record: additional values for the record of the run in metrics.jsonl.
    """
    settings = (
        f"batch_size=4,seed={seed},epochs={epochs},epochs_per_validation={step},"
        f"batching_strategy={STRATEGY[name.removesuffix('-BR').removesuffix('-DBS')]},"
        f"dynamic_batch_size={'-DBS' in name},batch_randomization={name.endswith('-BR')},"
    )
    counts = zip(("training_clips", "validation_clips"), clips or (len(lengths), 10), strict=True)
    corpus = CORPUS | dict(counts) | {"training_frames": int(np.sum(lengths))}
    lines = [run_line(settings + overrides, **{"corpus": corpus} | record)]
    for epoch in range(1, epochs + 1):
        lines.append(epoch_line(epoch, minutes=minutes(epoch)))
        if epoch % step == 0:
            lines.append(validation_line(epoch, loss(epoch)))
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"clip{i},{n}\n" for i, n in enumerate(lengths))
    (folder / "lengths.csv").write_text("id,frames\n" + rows, encoding="utf-8")
    return write_lines(folder, lines)
