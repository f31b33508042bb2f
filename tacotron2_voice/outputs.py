"""Write speech: files for each text in a folder, one WAV for all texts, or standard output.

with output:
    for text in texts:
        if not output.is_complete(text.name):
            stream = output.start(text)
            for num_samples in output.write(text, stream): ...
write_speech(Path("out/evening"), voice.synthesize(text), voice.settings.table)
"""

import contextlib
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacotron2_voice.resume_log import ResumeLog, sizes_of
from tacotron2_voice.synthesizer import PAUSE, Speech, SpeechStream, Synthesizer
from tacotron2_voice.text import SymbolTable
from tacotron2_voice.texts import InputText
from tacotron2_voice.timings import Timings, timings_of
from tacotron2_voice.utils.audio_files import encode, write_mel, write_wav
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, remove_leftovers, write_atomically, write_bytes

MAX_WAV_BYTES = 2**32 + 7  # the header counts the bytes after the first eight with 32 bits


class Output(ABC):
    """Synthesize texts one after another and write them. Texts that an earlier call of the same
    command completed are skipped.

    Args:
        synthesizer: the synthesizer for the texts.
        options: options of Synthesizer.stream.

    Attributes:
        num_warnings: number of warnings for all complete texts.
        written: a phrase about the last text, or "".
        pause: seconds between two texts, if they become one stream or file.
    """

    num_warnings = 0
    written = ""
    pause = PAUSE

    def __init__(self, synthesizer: Synthesizer, options: dict[str, Any]):
        self.synthesizer = synthesizer
        self.options = options
        self.sampling_rate = synthesizer.settings.sampling_rate

    def is_complete(self, name: str) -> bool:
        """Return whether an earlier call has written the text with this name."""
        return False

    def start(self, text: InputText) -> SpeechStream:
        """Return the speech of a text as a stream that `write` reads."""
        return self.synthesizer.stream(text.utterance, **self.options)

    @abstractmethod
    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        """Write a text. Write the speech of a text, and yield the number of samples of each piece.
        The text is complete after the last piece."""

    def describe_stop(self, num_texts: int) -> str:
        """Describe the texts that are kept after a stop, or return ""."""
        return ""

    def describe(self, num_texts: int, num_before: int) -> str:
        """Describe the files, or return "". `num_before` is the number of texts of earlier
        calls."""
        return ""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        return None


# ---------------------------------------------------------------------------- a folder


class FolderOutput(Output):
    """Write a WAV, a plot of the alignment and, with `save_mel`, the log-mel of each text. The
    number of the text's line is the name of the files. The folder exists.

    Args:
        keys: hash of each text and its options, by the name of the text.
        timings: also write the times of the words, in this format of timings.FORMATS.
    """

    def __init__(
        self,
        folder: Path,
        synthesizer: Synthesizer,
        options: dict[str, Any],
        keys: dict[str, str],
        *,
        save_mel: bool = False,
        timings: str | None = None,
    ):
        super().__init__(synthesizer, options)
        self.folder = folder
        self.keys = keys
        self.save_mel = save_mel
        self.timings = timings
        self.log = ResumeLog(folder / "spoken.jsonl")
        remove_leftovers(folder, ".[0-9]*.tmp")
        self.complete = set[str]()
        for name, key in keys.items():
            entry = self.log.find(key, self._paths_of(name))
            if entry:
                self.complete.add(name)
                self.num_warnings += len(entry.warnings)

    def is_complete(self, name: str) -> bool:
        return name in self.complete

    def start(self, text: InputText) -> SpeechStream:
        return self.synthesizer.stream_mels(text.utterance, **self.options)

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        mels = []
        for mel in stream:
            mels.append(mel)
            yield 0
        speech = self.synthesizer.speech_of(np.concatenate(mels, axis=1), stream.report)
        base = self.folder / text.name
        write_speech(base, speech, self.synthesizer.settings.table, save_mel=self.save_mel)
        if self.timings:
            times = timings_of(speech.chunks, text.text, self.synthesizer.settings)
            _write_timings(base.with_suffix(f".{self.timings}"), times, self.timings)
        self.written = f"{base.name}.wav  {speech.seconds:5.2f} s"
        yield len(speech.audio)
        sizes = sizes_of(self._paths_of(text.name))
        self.log.add(self.keys[text.name], sizes, speech.warnings)
        self.complete.add(text.name)
        self.num_warnings += len(speech.warnings)

    def describe_stop(self, num_texts: int) -> str:
        return f"the files of {len(self.complete):,} of {num_texts:,} texts are in {self.folder}"

    def describe(self, num_texts: int, num_before: int) -> str:
        count = num_texts - num_before
        return f"wrote the files of {count:,} text{'s' * (count != 1)} to {self.folder}"

    def __exit__(self, *details: object) -> None:
        self.log.__exit__(*details)

    def _paths_of(self, name: str) -> list[Path]:
        suffixes = ["wav", "png"]
        if self.save_mel:
            suffixes.append("npy")
        if self.timings:
            suffixes.append(self.timings)
        return [self.folder / f"{name}.{suffix}" for suffix in suffixes]


def write_speech(base: Path, speech: Speech, table: SymbolTable, *, save_mel: bool = False) -> None:
    """Write `base`.wav, a plot of the alignment as `base`.png and, with `save_mel`, `base`.npy.

    Args:
        table: the symbols of the model, for the plot.

    Raises:
        UserError: if a file cannot be written. A file never exists incomplete.
    """
    from tacotron2_voice.utils.plots import draw_alignment

    texts = [[table.symbols[i] for i in chunk.ids] for chunk in speech.report.chunks]
    figure = draw_alignment(*speech.alignments, texts=texts)
    try:
        write_wav(base.with_suffix(".wav"), speech.audio, speech.sampling_rate)
        write_atomically(base.with_suffix(".png"), lambda path: figure.savefig(path, format="png"))
        if save_mel:
            write_mel(base.with_suffix(".npy"), speech.mel)
    except OSError as error:
        raise UserError(f"{base}.*: the files cannot be written ({error})") from None


def _write_timings(path: Path, timings: Timings, kind: str) -> None:
    write_bytes(path, timings.as_format(kind).encode())


# ---------------------------------------------------------------------------- standard output


def to_int16(samples: np.ndarray) -> bytes:
    """Return samples in [-1, 1] as 16-bit integers."""
    return np.rint(32767 * samples).astype("<i2").tobytes()


def silence(seconds: float, sampling_rate: int) -> bytes:
    return bytes(2 * round(seconds * sampling_rate))


class StreamOutput(Output):
    """Write 16-bit samples to standard output: "wav" with a header of unknown length, "raw" without
    a header. A pause separates the texts."""

    def __init__(
        self, kind: Literal["wav", "raw"], synthesizer: Synthesizer, options: dict[str, Any]
    ):
        super().__init__(synthesizer, options)
        self.num_written = 0
        if kind == "wav":
            self._send(wav_header(self.sampling_rate))

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        if self.num_written:
            self._send(silence(self.pause, self.sampling_rate))
        for samples in stream:
            self._send(to_int16(samples))
            yield len(samples)
        self.num_written += 1

    def _send(self, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def wav_header(sampling_rate: int, num_bytes: int | None = None) -> bytes:
    """Return the header of a WAV of 16-bit samples. Without `num_bytes`, the header contains no
    length, and players read to the end of the file."""
    header = bytes(encode(np.zeros(0), sampling_rate))
    rest = 2**32 - 1
    size = 2**32 - 1
    if num_bytes is not None:
        rest = len(header) - 8 + num_bytes
        size = num_bytes
    return header[:4] + struct.pack("<I", rest) + header[8:-4] + struct.pack("<I", size)


# ---------------------------------------------------------------------------- one WAV


class WavOutput(Output):
    """Write all texts into one WAV of 16-bit samples, with a pause between them.

    Each text is appended to `NAME.part.wav`, which players can already read. At the end of a `with`
    block, this file becomes `NAME.wav`. After an error it keeps the complete texts, and the next
    call continues after these texts. If a text has changed, this text and all later texts are
    synthesized again.

    Args:
        keys: hash of each text and its options, by the name of the text.
        timings: also write the times of the words of all texts, in this format of timings.FORMATS.

    Raises:
        BlockingIOError: if another process writes the same WAV.
        UserError: if NAME.part.wav is not a file of this program, or the WAV is full.
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
        self.path = path
        self.timings_format = timings
        self.timings = Timings()  # of the complete texts
        self.keys = [*keys.items()]
        self.positions = {name: position for position, name in enumerate(keys)}
        self.part = path.with_name(f"{path.stem}.part{path.suffix}")
        log = path.with_name(f"{path.stem}.part.jsonl")
        if self.part.exists() and not log.exists():
            raise UserError(f"{self.part}: already exists, but not {log.name} (expected both)")
        self.log = ResumeLog(log)
        header = wav_header(self.sampling_rate)
        self.num_complete = 0
        self.end = len(header)  # bytes of the complete texts
        self.size = 0  # bytes of the current text
        part_size = self.part.stat().st_size if self.part.exists() else 0
        for (name, key), entry in zip(self.keys, self.log.entries, strict=False):
            if entry.key != key or self.end + entry.files[name] > part_size:
                break
            if entry.timings is not None:
                self.timings.add(Timings.from_dict(entry.timings), self.next_start)
            self.num_complete += 1
            self.end += entry.files[name]
            self.num_warnings += len(entry.warnings)
        self.log.keep(self.num_complete)
        if self.num_complete:
            os.truncate(self.part, self.end)
        else:
            write_bytes(self.part, header)
        self.file = open(self.part, "ab")  # noqa: SIM115

    @property
    def seconds(self) -> float:
        """Return the total time of the complete texts and of the pauses between them."""
        num_bytes = self.end - len(wav_header(self.sampling_rate))
        return num_bytes / 2 / self.sampling_rate

    @property
    def next_start(self) -> float:
        """Return the time at which the audio of the next text starts."""
        pause = self.pause if self.num_complete else 0.0
        return self.seconds + pause

    def is_complete(self, name: str) -> bool:
        return self.positions[name] < self.num_complete

    def write(self, text: InputText, stream: SpeechStream) -> Iterator[int]:
        if self.num_complete:
            self.add_samples(silence(self.pause, self.sampling_rate))
        for samples in stream:
            self.add_samples(to_int16(samples))
            yield len(samples)
        timings = None
        if self.timings_format:
            timings = timings_of(stream.chunks, text.text, self.synthesizer.settings)
        self.end_text(stream.warnings, timings)

    def describe_stop(self, num_texts: int) -> str:
        if not self.num_complete:
            return ""
        return f"{self.num_complete:,} of {num_texts:,} texts are in {self.part}"

    def describe(self, num_texts: int, num_before: int) -> str:
        of_texts = f" of {num_texts:,} texts" if num_texts > 1 else ""
        return f"wrote {self.path}, {self.seconds:.2f} s{of_texts}"

    def add_samples(self, samples: bytes) -> None:
        """Append samples of the next text."""
        if self.end + self.size + len(samples) > MAX_WAV_BYTES:
            line = int(self.keys[self.num_complete][0])
            problem = f"line {line} does not fit (expected at most 4 GiB per WAV)"
            raise UserError(f"{self.path}: {problem}. Split the text file.")
        with naming(self.part):
            self.file.write(samples)
            self.file.flush()
        self.size += len(samples)

    def end_text(self, warnings: list[str], timings: Timings | None = None) -> None:
        """Record that the next text is complete."""
        name, key = self.keys[self.num_complete]
        as_dict = None
        if timings is not None:
            self.timings.add(timings, self.next_start)
            as_dict = timings.as_dict()
        self.log.add(key, {name: self.size}, warnings, as_dict)
        self.num_complete += 1
        self.end += self.size
        self.size = 0
        self.num_warnings += len(warnings)

    def __enter__(self) -> "WavOutput":
        return self

    def __exit__(self, *error: object) -> None:
        with self.log:
            # the disk is full, and the writing has already failed
            with contextlib.suppress(OSError):
                self.file.close()
            os.truncate(self.part, self.end)
            if error[0] is None:
                self._finish()
            elif not self.num_complete:
                self.part.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Write the lengths into the header, and rename NAME.part.wav."""
        header = wav_header(self.sampling_rate)
        with naming(self.part), open(self.part, "rb+") as file:
            file.write(wav_header(self.sampling_rate, self.end - len(header)))
            file.flush()
            os.fsync(file.fileno())
        if self.timings_format:
            timings_path = self.path.with_suffix(f".{self.timings_format}")
            _write_timings(timings_path, self.timings, self.timings_format)
        with naming(self.path):
            os.replace(self.part, self.path)
        self.log.keep(0)  # closing removes an empty log
