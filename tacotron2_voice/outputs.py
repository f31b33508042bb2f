"""Write speech to files in a folder, to one audio file, or to standard output.

with output:
    for text in texts:
        if text.name not in output.complete:
            stream = output.start(text)
            for num_samples in output.write(text, stream): ...
write_speech(Path("out/evening"), voice.synthesize(text), voice.settings.table)
"""

import contextlib
import importlib.util
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from tacotron2_voice.resume_log import ResumeLog, sizes_of
from tacotron2_voice.synthesizer import PAUSE, Speech, SpeechStream, Synthesizer
from tacotron2_voice.text import SymbolTable
from tacotron2_voice.texts import InputText
from tacotron2_voice.timings import FORMATS as TIMING_FORMATS
from tacotron2_voice.timings import Timings, timings_of
from tacotron2_voice.utils.audio_files import (
    check_sampling_rate,
    convert_wav,
    encode,
    write_mel,
    write_wav,
)
from tacotron2_voice.utils.errors import UserError, count_of
from tacotron2_voice.utils.files import naming, remove_leftovers, write_atomically, write_bytes
from tacotron2_voice.utils.program import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_COMMAND = install_command("plots")
MAX_WAV_BYTES = 2**32 + 7  # a WAV header stores the file size minus 8 bytes as a 32-bit number


class Output(ABC):
    """Synthesize texts one after another and write the speech.

    Texts that an earlier run of the same command has completed are skipped.

    Args:
        options: options for Synthesizer.stream.

    Attributes:
        complete: names of the complete texts.
        num_warnings: total number of warnings for all complete texts.
        written: a phrase that lists the files of the last text. The phrase may be empty.
        pause: seconds of silence between two texts in the same stream or file.
    """

    num_warnings = 0
    written = ""
    pause = PAUSE

    def __init__(self, synthesizer: Synthesizer, options: dict[str, Any]):
        self.synthesizer = synthesizer
        self.options = options
        self.sampling_rate = synthesizer.settings.sampling_rate
        self.complete = set[str]()

    def start(self, text: InputText) -> SpeechStream:
        """Start to synthesize a text, and return a stream for `write`."""
        return self.synthesizer.stream(text.utterance, **self.options)

    @abstractmethod
    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        """Write the speech of a text in pieces, and yield the number of samples in each piece. When
        the iteration ends, the text is complete.
        """

    def describe_stop(self, num_texts: int) -> str:
        """Return a phrase that says which texts are complete, for the message when the program is
        stopped. The phrase may be empty."""
        return ""

    def describe(self, num_texts: int, num_before: int) -> str:
        """Return a phrase that says which files were written, or "" if no files were written.

        `num_before` is the number of texts that earlier runs have completed.
        """
        return ""

    def files_of_earlier_runs(self) -> list[Path]:
        """Return the files that earlier runs may have written next to the output of this run."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


# ---------------------------------------------------------------------------- a folder


class FolderOutput(Output):
    """For each text, write a WAV and, if selected, the log-mel and a plot of the alignment.

    Each file is named after the line number of its text. Other files that an earlier run
    wrote for the same line, such as subtitles, are removed, because they belong to the old audio.

    Args:
        folder: an existing folder.
        options: options for Synthesizer.stream.
        keys: {name of a text: hash of the text and its options}.
        save_plot: whether to write plots, which need the package matplotlib.
        save_mel: whether to write log-mels.
        timings: format of the files that list the times of the words: one of timings.FORMATS, or
            None for no such files.
    """

    def __init__(
        self,
        folder: Path,
        synthesizer: Synthesizer,
        options: dict[str, Any],
        keys: dict[str, str],
        *,
        save_plot: bool = True,
        save_mel: bool = False,
        timings: str | None = None,
    ):
        super().__init__(synthesizer, options)
        self.folder = folder
        self.keys = keys
        self.save_plot = save_plot
        self.save_mel = save_mel
        self.timings = timings
        self.log = ResumeLog(folder / "spoken.jsonl")
        remove_leftovers(folder, ".[0-9]*.tmp")
        # Sizes of the files from earlier runs, keyed by the name of the text.
        self.files_before: dict[str, dict[Path, int]] = {}
        for logged in self.log.entries:
            for file, size in logged.files.items():
                path = folder / Path(file).name
                self.files_before.setdefault(path.stem, {})[path] = size
        for name, key in keys.items():
            entry = self.log.find(key, self._paths_of(name))
            if entry:
                self.complete.add(name)
                self.num_warnings += len(entry.warnings)

    def start(self, text: InputText) -> SpeechStream:
        return self.synthesizer.stream_mels(text.utterance, **self.options)

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        mels = []
        for mel in stream:
            mels.append(mel)
            yield 0
        speech = self.synthesizer.speech_of(np.concatenate(mels, axis=1), stream.report)
        base = self.folder / text.name
        written = self._paths_of(text.name)
        for path in self._unchanged_files(text.name):
            if path not in written:
                path.unlink()
        write_speech(
            base,
            speech,
            self.synthesizer.settings.table,
            save_plot=self.save_plot,
            save_mel=self.save_mel,
        )
        if self.timings:
            times = timings_of(speech.chunks, text.text, self.synthesizer.settings)
            content = times.as_format(self.timings).encode()
            write_bytes(base.with_suffix(f".{self.timings}"), content)
        self.written = f"{base.name}.wav  {speech.seconds:5.2f} s"
        yield len(speech.audio)
        self.log.add(self.keys[text.name], sizes_of(written), speech.warnings)
        self.complete.add(text.name)
        self.num_warnings += len(speech.warnings)

    def describe_stop(self, num_texts: int) -> str:
        return f"the files of {len(self.complete):,} of {num_texts:,} texts are in {self.folder}"

    def describe(self, num_texts: int, num_before: int) -> str:
        return f"wrote the files of {count_of(num_texts - num_before, 'text')} to {self.folder}"

    def files_of_earlier_runs(self) -> list[Path]:
        old_names = self.files_before.keys() - self.keys.keys()
        return sorted(path for name in old_names for path in self._unchanged_files(name))

    def __exit__(self, *details: object) -> None:
        self.log.__exit__(*details)

    def _unchanged_files(self, name: str) -> list[Path]:
        """Return the unchanged files that an earlier run wrote for a text."""
        sizes = self.files_before.get(name, {})
        return [
            path for path, size in sizes.items() if path.is_file() and path.stat().st_size == size
        ]

    def _paths_of(self, name: str) -> list[Path]:
        suffixes = ["wav"]
        if self.save_plot:
            suffixes.append("png")
        if self.save_mel:
            suffixes.append("npy")
        if self.timings:
            suffixes.append(self.timings)
        return [self.folder / f"{name}.{suffix}" for suffix in suffixes]


def write_speech(
    base: Path,
    speech: Speech,
    table: SymbolTable,
    *,
    save_plot: bool = True,
    save_mel: bool = False,
) -> None:
    """Write `base`.wav and, if selected, the log-mel and a plot of the alignment.

        write_speech(Path("out/evening"), speech, voice.settings.table, save_plot=False)

    Args:
        base: path of the files without extension.
        table: symbol table of the model, for the plot.
        save_plot: whether to write the plot, which needs the package matplotlib, as `base`.png.
        save_mel: whether to write the log-mel as `base`.npy, float32 [n_mels, frames].

    Raises:
        UserError: if matplotlib is missing, or if a file cannot be written. No incomplete files are
            left behind after an error.
    """
    figure = _plot_of(speech, table) if save_plot else None
    try:
        write_wav(base.with_suffix(".wav"), speech.audio, speech.sampling_rate)
        if figure is not None:
            write_atomically(
                base.with_suffix(".png"), lambda path: figure.savefig(path, format="png")
            )
        if save_mel:
            write_mel(base.with_suffix(".npy"), speech.mel)
    except OSError as error:
        raise UserError(f"{base}.*: the files cannot be written ({error})") from None


def can_plot() -> bool:
    """Return whether matplotlib, which draws the plots of the alignments, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _plot_of(speech: Speech, table: SymbolTable) -> "Figure":
    if not can_plot():
        fix = f"Run {PLOT_COMMAND}, or pass save_plot=False."
        raise UserError(f"matplotlib is not installed, but plots of alignments need it. {fix}")
    # Imported here, because matplotlib is optional and loads slowly.
    from tacotron2_voice.utils.plots import draw_alignment

    texts = [[table.symbols[i] for i in chunk.ids] for chunk in speech.report.chunks]
    return draw_alignment(*speech.alignments, texts=texts)


# ---------------------------------------------------------------------------- standard output


def to_int16(samples: np.ndarray) -> bytes:
    """Encode samples in [-1, 1] as 16-bit little-endian integers."""
    return np.rint(32767 * samples).astype("<i2").tobytes()


def silence(seconds: float, sampling_rate: int) -> bytes:
    return bytes(2 * round(seconds * sampling_rate))


class StreamOutput(Output):
    """Write 16-bit samples to standard output, with a pause between texts.

    The format "wav" starts with a header that contains no length; the format "raw" has no header.
    """

    def __init__(
        self, kind: Literal["wav", "raw"], synthesizer: Synthesizer, options: dict[str, Any]
    ):
        super().__init__(synthesizer, options)
        if kind == "wav":
            self._send(wav_header(self.sampling_rate))

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        if self.complete:
            self._send(silence(self.pause, self.sampling_rate))
        for samples in stream:
            self._send(to_int16(samples))
            yield len(samples)
        self.complete.add(text.name)

    def _send(self, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def wav_header(sampling_rate: int, num_bytes: int | None = None) -> bytes:
    """Return the header of a 16-bit WAV file.

    Without `num_bytes`, the header contains no length, and players read to the end of the file.
    """
    header = bytes(encode(np.zeros(0), sampling_rate))
    rest = 2**32 - 1
    size = 2**32 - 1
    if num_bytes is not None:
        rest = len(header) - 8 + num_bytes
        size = num_bytes
    return header[:4] + struct.pack("<I", rest) + header[8:-4] + struct.pack("<I", size)


# ---------------------------------------------------------------------------- one file


class AudioFileOutput(Output):
    """Write all texts to one audio file, with a pause between texts.

    The speech of each text is appended to `NAME.part.wav`, a 16-bit WAV file that players can read
    at any time. At the end of a `with` block, `NAME.part.wav` is renamed to `NAME.wav`, or converted
    to the format of the output file. After an error, `NAME.part.wav` contains the speech of all
    complete texts, and the next run continues after these texts. If a text has changed, this text
    and all later texts are synthesized again.

    Args:
        path: path of the audio file, whose extension selects one of the formats in AUDIO_FORMATS.
        options: options for Synthesizer.stream.
        keys: {name of a text: hash of the text and its options}.
        timings: format of the file that lists the times of all words: one of timings.FORMATS, or
            None for no such file.

    Raises:
        BlockingIOError: if another process writes to the same file.
        UserError: if this program did not write NAME.part.wav, if the WAV would exceed its maximum
            size, or if the format does not support the sampling rate.
    """

    def __init__(
        self,
        path: Path,
        synthesizer: Synthesizer,
        options: dict[str, Any],
        keys: dict[str, str],
        *,
        timings: str | None = None,
    ):
        super().__init__(synthesizer, options)
        check_sampling_rate(path, self.sampling_rate)
        self.path = path
        self.timings_format = timings
        self.timings = Timings()  # times of the words in the texts that are written so far
        self.keys = [*keys.items()]
        self.part = path.with_name(f"{path.stem}.part.wav")
        log = path.with_name(f"{path.stem}.part.jsonl")
        if self.part.exists() and not log.exists():
            raise UserError(
                f"{self.part}: exists without {log.name} (expected both files or neither file)"
            )
        self.log = ResumeLog(log)
        header = wav_header(self.sampling_rate)
        self.header_size = len(header)
        self.end = self.header_size  # number of bytes of the header and all complete texts
        self.size = 0  # number of bytes of the current text's speech
        part_size = self.part.stat().st_size if self.part.exists() else 0
        for (name, key), entry in zip(self.keys, self.log.entries, strict=False):
            if entry.key != key or self.end + entry.files[name] > part_size:
                break
            if entry.timings is not None:
                self.timings.add(Timings.from_dict(entry.timings), self.next_start)
            self.complete.add(name)
            self.end += entry.files[name]
            self.num_warnings += len(entry.warnings)
        self.log.keep(len(self.complete))
        if self.complete:
            os.truncate(self.part, self.end)
        else:
            write_bytes(self.part, header)
        self.file = open(self.part, "ab")  # noqa: SIM115

    @property
    def seconds(self) -> float:
        """Return the total duration of the complete texts, including pauses."""
        return (self.end - self.header_size) / 2 / self.sampling_rate

    @property
    def next_start(self) -> float:
        """Return the time at which the audio of the next text starts."""
        pause = self.pause if self.complete else 0.0
        return self.seconds + pause

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        if self.complete:
            self.add_samples(silence(self.pause, self.sampling_rate))
        for samples in stream:
            self.add_samples(to_int16(samples))
            yield len(samples)
        timings = None
        if self.timings_format:
            timings = timings_of(stream.chunks, text.text, self.synthesizer.settings)
        self.end_text(stream.warnings, timings)

    def describe_stop(self, num_texts: int) -> str:
        if not self.complete:
            return ""
        return f"{len(self.complete):,} of {num_texts:,} texts are in {self.part}"

    def describe(self, num_texts: int, num_before: int) -> str:
        for_texts = f" for {num_texts:,} texts" if num_texts > 1 else ""
        return f"wrote {self.path}, {self.seconds:.2f} s of audio{for_texts}"

    def files_of_earlier_runs(self) -> list[Path]:
        formats = [one for one in TIMING_FORMATS if one != self.timings_format]
        paths = [self.path.with_suffix(f".{one}") for one in formats]
        return [path for path in paths if path.is_file()]

    def add_samples(self, samples: bytes) -> None:
        if self.end + self.size + len(samples) > MAX_WAV_BYTES:
            line = int(self.keys[len(self.complete)][0])
            problem = f"the speech of line {line} does not fit (expected at most 4 GiB per WAV)"
            raise UserError(f"{self.path}: {problem}. Split the text file.")
        with naming(self.part):
            self.file.write(samples)
            self.file.flush()
        self.size += len(samples)

    def end_text(self, warnings: list[str], timings: Timings | None = None) -> None:
        """Record that the current text is complete."""
        name, key = self.keys[len(self.complete)]
        as_dict = None
        if timings is not None:
            self.timings.add(timings, self.next_start)
            as_dict = timings.as_dict()
        self.log.add(key, {name: self.size}, warnings, as_dict)
        self.complete.add(name)
        self.end += self.size
        self.size = 0
        self.num_warnings += len(warnings)

    def __exit__(self, *error: object) -> None:
        with self.log:
            # Ignore errors when the file is closed. If the disk is full, closing the file fails, but
            # an earlier write has already raised an error.
            with contextlib.suppress(OSError):
                self.file.close()
            os.truncate(self.part, self.end)
            if error[0] is None:
                self._finish()
            elif not self.complete:
                self.part.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Write the final lengths to the header of NAME.part.wav, and rename or convert this
        file."""
        with naming(self.part), open(self.part, "rb+") as file:
            file.write(wav_header(self.sampling_rate, self.end - self.header_size))
            file.flush()
            os.fsync(file.fileno())
        if self.timings_format:
            content = self.timings.as_format(self.timings_format).encode()
            write_bytes(self.path.with_suffix(f".{self.timings_format}"), content)
        if self.path.suffix.lower() == ".wav":
            with naming(self.path):
                os.replace(self.part, self.path)
        else:
            convert_wav(self.part, self.path)
            self.part.unlink()
        self.log.keep(0)  # an empty log deletes its file when it is closed
