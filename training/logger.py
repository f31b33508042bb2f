"""What a run tells: metrics.jsonl and TensorBoard."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from pictures import draw_alignment, draw_gate, draw_mels

METRICS_FILE = "metrics.jsonl"


class RunLogger:
    """Appends to `metrics.jsonl` in the output folder and to TensorBoard events in the log folder.

    `state()` is the size of every log file, and `resume_state` cuts them back to those sizes, so a
    run that goes on from a checkpoint leaves no trace of the steps after it. An empty
    `resume_state` clears the logs.
    """

    def __init__(self, output_directory: Path, log_directory: Path, resume_state: dict[str, int]):
        self.output_directory, self.log_directory = output_directory, log_directory
        self._cut_back(resume_state)
        log_directory.mkdir(parents=True, exist_ok=True)
        threading.excepthook = _thread_failed
        self.metrics = open(output_directory / METRICS_FILE, "a", encoding="utf-8")  # noqa: SIM115
        self.writer = SummaryWriter(str(log_directory))

    def _files(self) -> list[Path]:
        events = sorted(self.log_directory.glob("events.out.tfevents.*"))
        return [path for path in (self.output_directory / METRICS_FILE, *events) if path.is_file()]

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.output_directory)

    def state(self) -> dict[str, int]:
        """Bytes of each log file, by its path from the output folder; all of it on the disk."""
        self.writer.flush()
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        return {self._name(path): path.stat().st_size for path in self._files()}

    def _cut_back(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            size = sizes.get(self._name(path), 0)
            if size == 0:
                path.unlink()
            elif size < path.stat().st_size:
                os.truncate(path, size)

    def log_run(self, record: dict) -> None:
        """One `run` line, and the hyper-parameters as a TensorBoard text page."""
        self._write("run", record)
        rows = [f"| {name} | {value} |" for name, value in record["hparams"].items()]
        table = "\n".join(["| hyper-parameter | value |", "|---|---|", *rows])
        self.writer.add_text("hparams", table, record["iteration"])

    def log_steps(self, iteration: int, values: dict[str, float]) -> None:
        """Training curves by step, to TensorBoard alone."""
        for name, value in values.items():
            self.writer.add_scalar(f"training/{name}", value, iteration)

    def log_epoch(self, record: dict) -> None:
        """One `epoch` line, and a curve for every number in it."""
        self._write("epoch", record)
        for name, value in record.items():
            if name not in ("epoch", "iteration"):
                self.writer.add_scalar(f"epoch/{name}", value, record["iteration"])

    def log_validation(self, record: dict, example: dict) -> None:
        """One `validation` line, curves, and pictures and sound of one validation clip.

        `example`: numpy arrays `alignment` [T, T_in], `target_mel` and `predicted_mel` [n_mels,
        frames], `gate` and `gate_target` [T] (probabilities), `audio` [N] with its `sampling_rate`.
        """
        self._write("validation", record)
        iteration = record["iteration"]
        for name, value in record.items():
            if name not in ("epoch", "iteration"):
                tag = "validation/" + name.removeprefix("validation_")
                self.writer.add_scalar(tag, value, iteration)
        pictures = {
            "alignment": draw_alignment(example["alignment"]),
            "mel": draw_mels(example["target_mel"], example["predicted_mel"]),
            "gate": draw_gate(example["gate_target"], example["gate"]),
        }
        for name, figure in pictures.items():
            self.writer.add_figure(name, figure, iteration, close=False)
        audio = torch.from_numpy(example["audio"] / max(1.0, np.abs(example["audio"]).max()))
        self.writer.add_audio("predicted", audio, iteration, example["sampling_rate"])

    def _write(self, kind: str, record: dict) -> None:
        self.metrics.write(json.dumps({"kind": kind} | record) + "\n")
        self.metrics.flush()

    def close(self) -> None:
        self.writer.close()
        self.metrics.close()


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread may find the disk full. The next write raises that here, so it is told
    once and as a message, not as the thread's traceback."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
