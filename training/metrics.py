"""Write a run's metrics.jsonl, and the same numbers to TensorBoard (`RunLogger`)."""

import errno
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacotron2_voice.utils.files import (
    METRICS_FILE,
    read_bytes,
    unused_name,
)
from training.tensorboard import Example, TensorBoard, event_files, warn_on_failure

MAX_CURVES = 20  # largest number of speakers with a curve in TensorBoard
LOSSES_OF_SPEAKERS = "validation_loss_unpadded"  # name of these curves in TensorBoard
NOT_CURVES = ("epoch", "iteration", "speakers")  # entries of a record that get no curve


class RunLogger:
    """Append to metrics.jsonl in the run folder, and to TensorBoard's files in the log folder.

    `state` returns the size of every log file. A logger that is created with a saved state cuts the
    files back to these sizes, so that a resumed run leaves no trace of steps after its checkpoint.
    Without a saved state the logs are cleared. Files of other programs do not change.

    If metrics.jsonl differs from its content at the checkpoint, it is renamed and a new file is
    started (`has_lost_metrics`). If the disk is full, lines wait until they can be written.
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
            print(f"warning: {path} has changed since the checkpoint: starting a new file")
            if os.path.lexists(path):
                renamed = path.rename(unused_name(path.with_name(path.name + ".damaged")))
                print(f"  the old file is now {renamed.name}")
        self._cut_back(saved["logs"])
        self.tensorboard = TensorBoard(log_directory)
        self.metrics = open(path, "ab")  # noqa: SIM115
        self.metrics_checksum = zlib.crc32(content)  # CRC-32 of the whole file
        self._waiting = b""  # lines that could not be written

    def state(self) -> dict[str, Any]:
        """Flush the logs to the disk, and return their state for a checkpoint.

        It contains the bytes of each log file, by its path from the run folder, and the CRC-32 of
        metrics.jsonl.
        """
        self.tensorboard.write("flush")
        self._write_lines()
        os.fsync(self.metrics.fileno())
        sizes = {self._name(path): path.stat().st_size for path in self._files()}
        # The size is read from the open file, because the path may have been deleted.
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
        """Write a `run` line, and the settings as a page in TensorBoard."""
        self._write("run", record)
        rows = [f"| {name} | {value} |" for name, value in record["hparams"].items()]
        table = "\n".join(["| hyper-parameter | value |", "|---|---|", *rows])
        self.tensorboard.write("add_text", "hparams", table, record["iteration"])
        if record["hparams"].get("speakers"):
            # One chart shows the curves of all speakers; the tag is a regular expression.
            tags = [f"{LOSSES_OF_SPEAKERS}/.*"]
            self.tensorboard.write(
                "add_custom_scalars_multilinechart",
                tags,
                category="speakers",
                title=LOSSES_OF_SPEAKERS,
            )

    def log_step(self, iteration: int, values: dict[str, float]) -> None:
        """Write the curves of an optimizer step to TensorBoard. metrics.jsonl does not contain
        them."""
        for name, value in values.items():
            self.tensorboard.write("add_scalar", f"training/{name}", value, iteration)

    def log_epoch(self, record: dict[str, Any]) -> None:
        """Write an `epoch` line, and a curve for every number in it."""
        self._write("epoch", record)

    def log_validation(self, record: dict[str, Any], examples: Sequence[Example]) -> None:
        """Write a `validation` line, curves, and the examples' plots and audio.

        The first MAX_CURVES speakers in the record get a curve each.
        """
        self._write("validation", record)
        iteration = record["iteration"]
        for speaker, values in list(record.get("speakers", {}).items())[:MAX_CURVES]:
            tag = f"{LOSSES_OF_SPEAKERS}/{speaker}"
            self.tensorboard.write("add_scalar", tag, values["loss_unpadded"], iteration)
        for example in examples:
            self.tensorboard.write_example(example, iteration)

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        self._waiting += (json.dumps({"kind": kind} | record) + "\n").encode()
        self._write_lines()
        if kind == "run":
            return
        for name, value in record.items():
            if name not in NOT_CURVES:
                tag = f"{kind}/{name.removeprefix(kind + '_')}"
                self.tensorboard.write("add_scalar", tag, value, record["iteration"])

    def _write_lines(self) -> None:
        file = self.metrics.fileno()
        waiting = self._waiting
        with warn_on_failure(f"writing {waiting.count(10)} lines of {METRICS_FILE}"):
            if waiting:
                written = os.write(file, waiting)
                if written < len(waiting):
                    # An incomplete line is removed from the file.
                    os.ftruncate(file, os.fstat(file).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._waiting = b""
            self.metrics_checksum = zlib.crc32(waiting, self.metrics_checksum)

    def close(self) -> None:
        """Write the waiting lines, and close the files."""
        self._write_lines()
        self.tensorboard.close()
        self.metrics.close()
