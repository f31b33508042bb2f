"""Write a run's metrics to metrics.jsonl and to TensorBoard (`RunLogger`)."""

import errno
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacotron2_voice.utils.files import METRICS_FILE, read_bytes, unused_name
from training.tensorboard import Example, TensorBoard, event_files, warn_on_failure

MAX_CURVES = 20  # maximum number of speakers for which TensorBoard shows a curve
LOSSES_OF_SPEAKERS = "masked_loss_of_speakers"  # TensorBoard tag of the losses per speaker
# Entries of a metrics record that TensorBoard does not show as curves.
NOT_CURVES = ("epoch", "iteration", "speakers")
# TensorBoard tags of quantities whose names in metrics.jsonl come from earlier versions.
TAGS = {
    "loss_unpadded": "masked_loss",
    "alignment_sharpness": "focus_rate",
    "skipped_updates": "skipped_optimizer_steps",
    "step_imbalance": "imbalance",
}
# Prefixes of keys in metrics.jsonl that TensorBoard tags do not repeat, keyed by kind of line.
PREFIXES = {"epoch": "train_", "validation": "validation_"}


def _tag(kind: str, quantity: str) -> str:
    return f"{kind}/{TAGS.get(quantity, quantity)}"


class RunLogger:
    """Append to metrics.jsonl in the run folder and to the TensorBoard files in the log folder.

    `state` returns the size of every log file. With a `saved` state, the logger truncates the files
    to the saved sizes, so that the logs of a resumed run end at the checkpoint. Without a saved
    state, the logger deletes existing logs. The logger never changes log files from other programs.

    If another program edited metrics.jsonl after the checkpoint was written, the logger renames
    metrics.jsonl, starts a new file and sets `has_lost_metrics`. If the disk is full, the logger
    keeps lines in memory until it can write them.
    """

    def __init__(self, directory: Path, log_directory: Path, saved: dict[str, Any] | None = None):
        self.directory = directory
        self.log_directory = log_directory
        if saved is None:
            saved = {"logs": {}, "metrics_checksum": 0}
        path = directory / METRICS_FILE
        size = saved["logs"].get(METRICS_FILE, 0)
        content = read_bytes(path)[:size] if path.is_file() else b""
        is_as_saved = len(content) == size and zlib.crc32(content) == saved["metrics_checksum"]
        self.has_lost_metrics = not is_as_saved
        if self.has_lost_metrics:
            content = b""
            print(f"warning: {path} has changed since the checkpoint, so the run starts a new file")
            if os.path.lexists(path):
                renamed = path.rename(unused_name(path.with_name(path.name + ".damaged")))
                print(f"  the old file is now {renamed.name}")
        self._cut_back(saved["logs"])
        self.tensorboard = TensorBoard(log_directory)
        self.metrics = open(path, "ab")  # noqa: SIM115
        self.metrics_checksum = zlib.crc32(content)  # CRC-32 of the whole file metrics.jsonl
        self._waiting = b""  # lines that could not yet be written to metrics.jsonl

    def state(self) -> dict[str, Any]:
        """Flush the logs to disk, and return their state for a checkpoint.

        The returned state contains the size of each log file in bytes, keyed by its path relative
        to the run folder, and the CRC-32 of metrics.jsonl.
        """
        self.tensorboard.flush()
        self._write_lines()
        os.fsync(self.metrics.fileno())
        sizes = {self._name(path): path.stat().st_size for path in self._files()}
        # Read the size from the open file, because another program may have deleted or moved
        # metrics.jsonl.
        sizes[METRICS_FILE] = os.fstat(self.metrics.fileno()).st_size
        return {"logs": sizes, "metrics_checksum": self.metrics_checksum}

    def _files(self) -> list[Path]:
        metrics = self.directory / METRICS_FILE
        return [*([metrics] if metrics.is_file() else []), *event_files(self.log_directory)]

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.directory)

    def _cut_back(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            size = sizes.get(self._name(path), 0)
            if size == 0:
                path.unlink()
            else:
                os.truncate(path, size)

    def log_run(self, record: dict[str, Any]) -> None:
        """Write a `run` line to metrics.jsonl, and the settings to TensorBoard as a text page."""
        self._write("run", record)
        rows = [f"| {name} | {value} |" for name, value in record["hparams"].items()]
        table = "\n".join(["| setting | value |", "|---|---|", *rows])
        self.tensorboard.add_text("hparams", table, record["iteration"])
        if record["hparams"].get("speakers"):
            # Show the curves of all speakers in one chart.
            self.tensorboard.add_chart([f"{LOSSES_OF_SPEAKERS}/.*"], "speakers", LOSSES_OF_SPEAKERS)

    def log_step(self, iteration: int, values: dict[str, float]) -> None:
        """Write the values of an optimizer step to TensorBoard (not to metrics.jsonl)."""
        for name, value in values.items():
            self.tensorboard.add_scalar(_tag("training", name), value, iteration)

    def log_epoch(self, record: dict[str, Any]) -> None:
        """Write an `epoch` line to metrics.jsonl, and each of its numbers to TensorBoard."""
        self._write("epoch", record)

    def log_validation(self, record: dict[str, Any], examples: Sequence[Example]) -> None:
        """Write a `validation` line to metrics.jsonl, and its numbers and examples to TensorBoard.

        TensorBoard gets one loss curve for each of the first MAX_CURVES speakers in the record.
        """
        self._write("validation", record)
        iteration = record["iteration"]
        for speaker, values in list(record.get("speakers", {}).items())[:MAX_CURVES]:
            tag = f"{LOSSES_OF_SPEAKERS}/{speaker}"
            self.tensorboard.add_scalar(tag, values["loss_unpadded"], iteration)
        for example in examples:
            self.tensorboard.add_example(example, iteration)

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        self._waiting += (json.dumps({"kind": kind} | record) + "\n").encode()
        self._write_lines()
        if kind == "run":
            return
        for name, value in record.items():
            if name not in NOT_CURVES:
                tag = _tag(kind, name.removeprefix(PREFIXES[kind]))
                self.tensorboard.add_scalar(tag, value, record["iteration"])

    def _write_lines(self) -> None:
        file = self.metrics.fileno()
        waiting = self._waiting
        with warn_on_failure(f"writing {waiting.count(10)} lines of {METRICS_FILE}"):
            if waiting:
                written = os.write(file, waiting)
                if written < len(waiting):
                    # Remove partly written lines from the end of the file.
                    os.ftruncate(file, os.fstat(file).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._waiting = b""
            self.metrics_checksum = zlib.crc32(waiting, self.metrics_checksum)

    def close(self) -> None:
        """Write the lines that are still in memory, and close the files."""
        self._write_lines()
        self.tensorboard.close()
        self.metrics.close()
