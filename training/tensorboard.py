"""Write a run's curves, plots and audio to TensorBoard files, which a resumed run can truncate."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from tacotron2_voice.speech_end import StopReason
from tacotron2_voice.utils.plots import draw_alignment, draw_mels, draw_stop_token

# Suffix of the event files that training writes. Training changes no other files in the folder.
SUFFIX = ".tacotron2"


@contextlib.contextmanager
def warn_on_failure(action: str) -> Iterator[None]:
    """Turn any exception in this context into a warning.

    Use this context manager for plots and logs, because training can continue without plots and
    logs.
    """
    try:
        yield
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        print(f"warning: {action} failed, but training continues: {cause}", flush=True)


# ---------------------------------------------------------------------------- validation examples


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for one clip. T is the number of decoder steps."""

    symbols: list[str]  # symbols of the text [T_in]
    alignment: np.ndarray  # [T, T_in]
    mel: np.ndarray  # [n_mels, frames], log-mel
    # [T] stop probabilities. With free-running inference, T may be larger than the number of
    # decoder steps in `mel`.
    gate: np.ndarray


@dataclass(frozen=True)
class FreeRunningPrediction(Prediction):
    """A prediction from free-running inference.

    In each decoder step, the model receives the frames that it predicted in the previous decoder
    step.
    """

    end: StopReason


@dataclass(frozen=True)
class Example:
    """A validation clip to show in TensorBoard."""

    speaker: str  # name of the speaker; "" for a single-speaker model
    recording: np.ndarray  # [n_mels, frames], log-mel
    gate_target: np.ndarray  # [T]
    teacher_forced: Prediction
    ids: list[int]  # symbol ids of the text
    gate_threshold: float
    sampling_rate: int
    # Prediction with free-running inference; None if inference failed.
    free_running: FreeRunningPrediction | None
    # Audio samples [N], keyed by TensorBoard tag. If audio could not be computed, the dictionary
    # lacks the tag of this audio.
    audio: dict[str, np.ndarray]


def plots_of(example: Example) -> dict[str, Figure]:
    """Return the plots of an example, keyed by TensorBoard tag."""
    forced = example.teacher_forced
    spoken = example.free_running
    plots = {
        "alignment": draw_alignment(forced.alignment, texts=[forced.symbols]),
        "mel": draw_mels(recording=example.recording, predicted=forced.mel),
        "stop_token": draw_stop_token(forced.gate, target=example.gate_target),
    }
    if spoken is None:
        return plots
    plots["spoken/alignment"] = draw_alignment(
        spoken.alignment, texts=[spoken.symbols], title="alignment, free-running"
    )
    plots["spoken/mel"] = draw_mels("recording", spoken=spoken.mel, recording=example.recording)
    plots["spoken/stop_token"] = draw_stop_token(
        spoken.gate,
        end=len(spoken.alignment),
        threshold=example.gate_threshold,
        title=f"stop token, free-running: {spoken.end.value}",
    )
    return plots


# ---------------------------------------------------------------------------- the event files


class TensorBoard:
    """Write TensorBoard events to a folder.

    After an event could not be written, for example because the disk is full, no more events are
    written.
    """

    def __init__(self, directory: Path):
        directory.mkdir(parents=True, exist_ok=True)
        threading.excepthook = _ignore_full_disk
        self.directory = directory
        self._works = True
        self.flush()  # the first call of a method also creates the event file

    @functools.cached_property
    def _writer(self) -> SummaryWriter:
        return SummaryWriter(str(self.directory), filename_suffix=SUFFIX)

    def add_scalar(self, tag: str, value: float, iteration: int) -> None:
        self._call("add_scalar", tag, value, iteration)

    def add_text(self, tag: str, text: str, iteration: int) -> None:
        self._call("add_text", tag, text, iteration)

    def add_chart(self, tags: list[str], category: str, title: str) -> None:
        """Show the curves whose tags match the regular expressions `tags` in one chart."""
        self._call("add_custom_scalars_multilinechart", tags, category=category, title=title)

    def flush(self) -> None:
        self._call("flush")

    def _call(self, method: str, *values: Any, **options: Any) -> None:
        """Call a method of SummaryWriter, such as "add_scalar", and print a warning if the method
        fails."""
        if not self._works:
            return
        try:
            getattr(self._writer, method)(*values, **options)
        # TensorBoard raises a ValueError if the path of the folder is not valid UTF-8.
        except (OSError, ValueError) as error:
            self._works = False
            print(
                "warning: cannot write to TensorBoard, so no more data is written until the run "
                f"is resumed: {error}",
                flush=True,
            )

    def add_example(self, example: Example, iteration: int) -> None:
        suffix = f"/{example.speaker}" if example.speaker else ""
        with warn_on_failure("plotting a validation clip"):
            for name, plot in plots_of(example).items():
                self._call("add_figure", name + suffix, plot, iteration, close=False)
            for name, samples in example.audio.items():
                audio = torch.from_numpy(samples / max(1.0, np.abs(samples).max()))
                self._call("add_audio", name + suffix, audio, iteration, example.sampling_rate)

    def close(self) -> None:
        self._call("close")


def event_files(directory: Path) -> list[Path]:
    """Return the event files that training has written to the folder."""
    return [p for p in sorted(directory.glob(f"events.out.tfevents.*{SUFFIX}")) if p.is_file()]


def _ignore_full_disk(failure: threading.ExceptHookArgs) -> None:
    """Hide the traceback of TensorBoard's writer thread if the disk is full.

    At the next write, `TensorBoard._call` prints a warning about the error.
    """
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
