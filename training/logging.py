"""The output folder of a run and its logs: metrics.jsonl and TensorBoard."""

import contextlib
import errno
import functools
import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from tacotron2_voice.speech_end import StopReason
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    METRICS_FILE,
    cut,
    lock,
    open_to_append,
    read_bytes,
    refuse_no_folder,
    unused_name,
)
from tacotron2_voice.utils.plots import draw_alignment, draw_gate, draw_mels
from training.checkpoint import BEST, list_checkpoints

DEFAULT_LOGS = "logs"  # inside the output folder
MAX_CURVES = 20  # speakers with a curve
LOSSES_OF_SPEAKERS = "validation_loss_unpadded"  # TensorBoard's group of their curves
SUFFIX = ".tacotron2"  # of our event files: others in the same folder are left alone


@contextlib.contextmanager
def warn_on_failure(what: str) -> Iterator[None]:
    """Turn an exception into a warning. Use it for logging and pictures, which may fail."""
    try:
        yield
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        print(f"warning: {what} failed, training continues: {cause}", flush=True)


@dataclass(frozen=True)
class Take:
    """A clip as the model predicted it, in T decoder steps."""

    symbols: list[str]  # [T_in] of its text
    alignment: np.ndarray  # [T, T_in]
    mel: np.ndarray  # [n_mels, frames], log
    gate: np.ndarray  # [T] probabilities; in free running also of steps after the end


@dataclass(frozen=True)
class FreeTake(Take):
    """A clip spoken in free running: each step saw the model's own frames before it."""

    end: StopReason


@dataclass(frozen=True)
class Example:
    """A validation clip for pictures and sound in TensorBoard."""

    speaker: str  # the name, "" of a model of one voice
    recording: np.ndarray  # [n_mels, frames], log-mel
    gate_target: np.ndarray  # [T]
    forced: Take  # teacher-forced: each step saw the recording's frames before it
    ids: list[int]  # of the text's symbols
    gate_threshold: float
    sampling_rate: int
    spoken: FreeTake | None  # None if it could not be made
    sounds: dict[str, np.ndarray]  # samples [N] by TensorBoard's tags; failed ones are missing


def figures_of(example: Example) -> dict[str, Figure]:
    """The pictures by TensorBoard's tags."""
    forced, spoken, recording = example.forced, example.spoken, example.recording
    figures = {
        "alignment": draw_alignment(forced.alignment, texts=[forced.symbols]),
        "mel": draw_mels(target=recording, predicted=forced.mel),
        "gate": draw_gate(forced.gate, target=example.gate_target),
    }
    if spoken is not None:
        steps, how = len(spoken.alignment), "spoken freely"
        figures |= {
            "spoken/alignment": draw_alignment(
                spoken.alignment, texts=[spoken.symbols], title=f"alignment, {how}"
            ),
            "spoken/mel": draw_mels("recording", spoken=spoken.mel, recording=recording),
            "spoken/gate": draw_gate(
                spoken.gate,
                end=steps,
                threshold=example.gate_threshold,
                title=f"gate, {how}: {spoken.end.value}",
            ),
        }
    return figures


class OutputFolder:
    """The output folder of a run, locked by the first process of the run (`is_used`). OSError if
    another run trains in it.

    An existing folder is locked before a checkpoint in it is read, so that no other process trains
    on meanwhile. A missing folder is made and locked by `make`. TensorBoard's `logs` are inside it.
    """

    def __init__(self, path: Path, logs: str = DEFAULT_LOGS, is_used: bool = True):
        self.path, self.logs, self.is_used = path, logs, is_used
        self._lock: Any = None
        # A descriptor: an open folder keeps its inode number on every file system.
        self._folder = -1
        if is_used:
            refuse_no_folder(path, "-o")
            refuse_no_folder(path / logs, "--log_directory")
            if path.is_dir():
                self._hold()

    def holds_run(self) -> bool:
        """Whether a run has begun in the folder."""
        metrics = self.path / METRICS_FILE
        return bool(
            list_checkpoints(self.path)
            or (self.path / BEST).exists()
            or (metrics.exists() and metrics.stat().st_size > 0)  # empty if killed in set-up
        )

    def make(self) -> None:
        """Make the folder if it was not there, and lock it, unless a run has begun in it since."""
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._hold()
        if self.holds_run():
            raise UserError(
                f"{self.path}: another process has started a run in this folder meanwhile: add "
                "--resume to resume it, or choose another -o"
            )

    def _hold(self) -> None:
        self._lock, self._folder = lock(self.path), os.open(self.path, os.O_RDONLY)

    def refuse_another(self) -> None:
        """Raise UserError if the locked folder was moved or replaced. Lock it again if its `.lock`
        was removed; OSError if another process has locked it meanwhile."""
        if self._lock is None:
            return
        if not self.path.exists() or not os.path.samestat(self.path.stat(), os.fstat(self._folder)):
            fix = "put it back to resume from its newest checkpoint"
            raise UserError(f"{self.path}: moved or replaced while the run trained; {fix}")
        locked, file = os.fstat(self._lock.fileno()), self.path / ".lock"
        if not os.path.lexists(file) or not os.path.samestat(file.lstat(), locked):
            self._lock = lock(self.path)

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()
            os.close(self._folder)
            self._lock = None


class RunLogger:
    """Appends to `metrics.jsonl` in the output folder and to TensorBoard events in the log folder.

    `state()` returns the size of every log file. A logger created with `saved` state truncates them
    to those sizes, so a resumed run leaves no trace of steps after its checkpoint; without it the
    logs are cleared. Event files of other programs stay as they are. If metrics.jsonl is not what
    it was at the checkpoint, it is renamed and a new one is begun (`has_lost_metrics`).

    A full disk gives a warning: lines are held back until they can be written, and nothing more
    goes to TensorBoard.
    """

    def __init__(self, directory: Path, log_directory: Path, saved: dict[str, Any] | None = None):
        self.directory, self.log_directory = directory, log_directory
        saved = saved or {"logs": {}, "metrics_checksum": 0}
        path, size = directory / METRICS_FILE, saved["logs"].get(METRICS_FILE, 0)
        content = read_bytes(path)[:size] if path.is_file() else b""
        is_as_saved = len(content) == size and zlib.crc32(content) == saved["metrics_checksum"]
        self.has_lost_metrics = not is_as_saved
        if self.has_lost_metrics:
            print(f"warning: {path} has changed since the checkpoint: starting a new one")
            if os.path.lexists(path):
                aside = path.rename(unused_name(path.with_name(path.name + ".damaged")))
                print(f"  the old one is kept as {aside.name}")
        self._cut_back(saved["logs"])
        log_directory.mkdir(parents=True, exist_ok=True)
        threading.excepthook = _thread_failed
        self.metrics = open_to_append(path)
        # CRC-32 of all that was written
        self.metrics_checksum = zlib.crc32(b"" if self.has_lost_metrics else content)
        self._waiting = b""  # lines that could not be written
        self._draws = True  # until TensorBoard fails
        before, self._events = set(self._files()), dict[Path, int]()
        self._draw("flush")  # makes the file
        self._events = {p: os.open(p, os.O_RDONLY) for p in set(self._files()) - before}

    @functools.cached_property
    def writer(self) -> SummaryWriter:
        return SummaryWriter(str(self.log_directory), filename_suffix=SUFFIX)

    def _files(self) -> list[Path]:
        """The existing log files of this run."""
        events = sorted(self.log_directory.glob(f"events.out.tfevents.*{SUFFIX}"))
        return [path for path in (self.directory / METRICS_FILE, *events) if path.is_file()]

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.directory)

    def state(self) -> dict[str, Any]:
        """Flush the logs to disk. Returns the bytes of each log file, by its path from the output
        folder, and the CRC-32 of the metrics."""
        self._draw("flush")
        self._write_lines()
        os.fsync(self.metrics.fileno())
        sizes = {self._name(path): path.stat().st_size for path in self._files()}
        sizes[METRICS_FILE] = os.fstat(self.metrics.fileno()).st_size  # deleted or not
        return {"logs": sizes, "metrics_checksum": self.metrics_checksum}

    def _cut_back(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            size = sizes.get(self._name(path), 0)
            if size == 0:
                path.unlink()
            else:
                cut(path, size)

    def log_run(self, record: dict[str, Any]) -> None:
        """Write one `run` line, and the hyper-parameters as a TensorBoard text page."""
        self._write("run", record)
        rows = [f"| {name} | {value} |" for name, value in record["hparams"].items()]
        table = "\n".join(["| hyper-parameter | value |", "|---|---|", *rows])
        self._draw("add_text", "hparams", table, record["iteration"])
        if record["hparams"].get("speakers"):  # one chart of all their curves
            chart = {"category": "speakers", "title": LOSSES_OF_SPEAKERS}
            tags = [f"{LOSSES_OF_SPEAKERS}/.*"]  # a regular expression
            self._draw("add_custom_scalars_multilinechart", tags, **chart)

    def log_steps(self, iteration: int, values: dict[str, float]) -> None:
        """Write training curves by step, to TensorBoard only."""
        for name, value in values.items():
            self._draw("add_scalar", f"training/{name}", value, iteration)

    def log_epoch(self, record: dict[str, Any]) -> None:
        """Write one `epoch` line, and a curve for every number in it."""
        self._write("epoch", record)

    def log_validation(self, record: dict[str, Any], examples: Sequence[Example]) -> None:
        """Write one `validation` line, curves, also of the first MAX_CURVES speakers in the record,
        and pictures and sounds of the examples."""
        self._write("validation", record)
        iteration = record["iteration"]
        for speaker, values in list(record.get("speakers", {}).items())[:MAX_CURVES]:
            loss = values["loss_unpadded"]
            self._draw("add_scalar", f"{LOSSES_OF_SPEAKERS}/{speaker}", loss, iteration)
        for example in examples:
            of_speaker = f"/{example.speaker}" if example.speaker else ""
            with warn_on_failure("drawing a validation clip"):
                for name, figure in figures_of(example).items():
                    tag = name + of_speaker
                    self._draw("add_figure", tag, figure, iteration, close=False)
                for name, samples in example.sounds.items():
                    audio = torch.from_numpy(samples / max(1.0, np.abs(samples).max()))
                    tag, rate = name + of_speaker, example.sampling_rate
                    self._draw("add_audio", tag, audio, iteration, rate)

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        self._waiting += (json.dumps({"kind": kind} | record) + "\n").encode()
        self._write_lines()
        for name, value in record.items():
            if kind != "run" and name not in ("epoch", "iteration", "speakers"):
                tag = f"{kind}/{name.removeprefix(kind + '_')}"
                self._draw("add_scalar", tag, value, record["iteration"])

    def _write_lines(self) -> None:
        file, waiting = self.metrics.fileno(), self._waiting
        with warn_on_failure(f"writing {waiting.count(10)} lines of {METRICS_FILE}"):
            if waiting and (written := os.write(file, waiting)) < len(waiting):
                os.ftruncate(file, os.fstat(file).st_size - written)  # no half line stays
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._waiting = b""
            self.metrics_checksum = zlib.crc32(waiting, self.metrics_checksum)

    def _draw(self, method: str, *values: Any, **options: Any) -> None:
        try:
            # TensorBoard opens its file by name at each write.
            for path, descriptor in self._events.items():
                if self._draws and not os.path.samestat(path.lstat(), os.fstat(descriptor)):
                    raise OSError(f"{path}: moved or replaced while the run trained")
            if self._draws:
                getattr(self.writer, method)(*values, **options)
        except (OSError, ValueError) as error:  # ValueError: of a name that is no UTF-8
            self._draws = False
            print(f"warning: no more for TensorBoard until the run is resumed: {error}", flush=True)

    def close(self) -> None:
        self._write_lines()
        self._draw("close")
        self.metrics.close()
        while self._events:
            os.close(self._events.popitem()[1])


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Suppress the traceback of TensorBoard's thread when the disk is full: the next write raises
    the same error, which is reported as a message."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
