"""The logs of a run: metrics.jsonl and TensorBoard."""

import functools
import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from errors import UserError
from files import METRICS_FILE, unused_name, write_atomically
from pictures import draw_alignment, draw_gate, draw_mels
from training.loop_state import LoopState

EVENTS = "events.out.tfevents.*"  # TensorBoard's files
SUFFIX = ".tacotron2"  # of our own: others in the same folder are left alone


def _writing(method: Callable) -> Callable:
    """Let a failure to write be a UserError."""

    @functools.wraps(method)
    def guarded(self, *arguments):
        try:
            return method(self, *arguments)
        except OSError as error:
            raise UserError(
                f"writing to {self.output_directory} failed ({error}): make room or make the "
                "folder writable; checkpoints are untouched"
            ) from error

    return guarded


class RunLogger:
    """Appends to `metrics.jsonl` in the output folder and to TensorBoard events in the log folder.

    `state()` is the size of every log file, and `resume_state` cuts them back to those sizes, so a
    run that goes on from a checkpoint leaves no trace of the steps after it. An empty
    `resume_state` clears the logs. Event files that are not ours stay as they are.

    All methods raise UserError when they cannot write.
    """

    def __init__(self, output_directory: Path, log_directory: Path, resume_state: dict[str, int]):
        self.output_directory, self.log_directory = output_directory, log_directory
        self._listed = set(resume_state)
        listed_events = [name for name in resume_state if name != METRICS_FILE]
        # The first release gave its files no suffix, so at its first resume by this one all event
        # files that are there count as ours.
        self._owns_all = any(listed_events) and not any(n.endswith(SUFFIX) for n in listed_events)
        self._cut_back(resume_state)
        self._owns_all = False
        log_directory.mkdir(parents=True, exist_ok=True)
        threading.excepthook = _thread_failed
        path = output_directory / METRICS_FILE
        self.metrics = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self.metrics_checksum = zlib.crc32(path.read_bytes())  # CRC-32 of all that was written
        self.writer = SummaryWriter(str(log_directory), filename_suffix=SUFFIX)

    def _files(self) -> list[Path]:
        """The log files of this run that are there."""
        events = [path for path in sorted(self.log_directory.glob(EVENTS)) if self._is_ours(path)]
        return [path for path in (self.output_directory / METRICS_FILE, *events) if path.is_file()]

    def _is_ours(self, path: Path) -> bool:
        return self._owns_all or path.name.endswith(SUFFIX) or self._name(path) in self._listed

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.output_directory)

    @_writing
    def state(self) -> dict[str, int]:
        """Bytes of each log file, by its path from the output folder; all of it on the disk."""
        self.writer.flush()
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        sizes = {self._name(path): path.stat().st_size for path in self._files()}
        return sizes | {METRICS_FILE: os.fstat(self.metrics.fileno()).st_size}  # deleted or not

    def _cut_back(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            size = sizes.get(self._name(path), 0)
            if size == 0:
                path.unlink()
            elif size < path.stat().st_size:
                os.truncate(path, size)

    @_writing
    def log_run(self, record: dict) -> None:
        """One `run` line, and the hyper-parameters as a TensorBoard text page."""
        self._write("run", record)
        rows = [f"| {name} | {value} |" for name, value in record["hparams"].items()]
        table = "\n".join(["| hyper-parameter | value |", "|---|---|", *rows])
        self.writer.add_text("hparams", table, record["iteration"])

    @_writing
    def log_steps(self, iteration: int, values: dict[str, float]) -> None:
        """Training curves by step, to TensorBoard alone."""
        for name, value in values.items():
            self.writer.add_scalar(f"training/{name}", value, iteration)

    @_writing
    def log_epoch(self, record: dict) -> None:
        """One `epoch` line, and a curve for every number in it."""
        self._write("epoch", record)
        for name, value in record.items():
            if name not in ("epoch", "iteration"):
                self.writer.add_scalar(f"epoch/{name}", value, record["iteration"])

    @_writing
    def log_validation(self, record: dict, example: dict) -> None:
        """One `validation` line, curves, and pictures and sound of one validation clip.

        `example`: numpy arrays `alignment` [T, T_in], `target_mel` and `predicted_mel` [n_mels,
        frames], `gate` and `gate_target` [T] (probabilities), `audio` [N] with its `sampling_rate`,
        or None if there was too little memory to make it.
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
        audio = example["audio"]
        if audio is not None:
            audio = torch.from_numpy(audio / max(1.0, np.abs(audio).max()))
            self.writer.add_audio("predicted", audio, iteration, example["sampling_rate"])

    def _write(self, kind: str, record: dict) -> None:
        line = json.dumps({"kind": kind} | record) + "\n"
        self.metrics.write(line)
        self.metrics.flush()
        self.metrics_checksum = zlib.crc32(line.encode(), self.metrics_checksum)

    def close(self) -> None:
        self.writer.close()
        self.metrics.close()


# ---------------------------------------------------------------------------- damage


class NoLogger:
    """The logger of the processes that write nothing."""

    def log_run(self, *_) -> None:
        pass

    log_steps = log_epoch = log_validation = close = log_run


def mend_metrics(
    path: Path, size: int, checksum: int | None, loop: LoopState, warn: Callable[[str], None]
) -> int | None:
    """Make metrics.jsonl a file that can be parsed, if it is not what it was at the checkpoint.

    What is there is kept under another name, and its whole lines from before the checkpoint stay.

    Args:
        size, checksum: bytes at the checkpoint and their CRC-32; checkpoints of the first release
            know no CRC-32, so every line must then be one of a run.
        loop: of the checkpoint.
        warn: called with one message, if there is something to mend.

    Returns:
        Bytes of the mended file; None if there was nothing to mend.
    """
    content = path.read_bytes() if path.is_file() else b""
    written = content[:size]
    if len(written) == size:
        as_written = zlib.crc32(written) == checksum
        if as_written or (checksum is None and _lines_before(written, loop) == written):
            return None
    good = _lines_before(content, loop)
    if path.is_file():
        aside = unused_name(path.with_name(path.name + ".damaged"))
        write_atomically(aside, lambda temporary: shutil.copyfile(path, temporary))
        found = f"it has {len(content)} bytes" if len(content) < size else "its content is another"
        kept = f"it is kept as {aside.name}; {good.count(NEWLINE)} whole lines of it stay"
    else:
        found, kept = "it is missing", "a new one is begun"
    write_atomically(path, lambda temporary: temporary.write_bytes(good))
    warn(f"{path}: not the {size} bytes that were there at the checkpoint: {found}; {kept}")
    return len(good)


NEWLINE = b"\n"


def _lines_before(content: bytes, loop: LoopState) -> bytes:
    """The whole lines of `content` that a run wrote before it stood at `loop`."""
    lines = content.split(NEWLINE)[:-1]  # what follows the last line's end is no whole line
    return b"".join(line + NEWLINE for line in lines if _is_before(line, loop))


def _is_before(line: bytes, loop: LoopState) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    if not isinstance(record, dict):
        return False
    iteration, epoch = record.get("iteration"), record.get("epoch")
    if type(iteration) is not int or type(epoch) is not int:
        return False
    if record.get("kind") == "run":
        return iteration <= loop.iteration
    return record.get("kind") in ("epoch", "validation") and epoch < loop.epoch


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread may find the disk full. The next write raises that here: it is
    reported once, as a message and not as the thread's traceback."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
