"""Where speech goes: a folder of files, one WAV that grows, or standard output.

with output:
    for text in texts:
        if not output.has(text.name):
            for num_samples in output.add(speaker, text, options): ...
"""

import os
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacotron2_voice.resume_log import Log, sums_of, write_all
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.texts import Text
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, open_to_append, remove_leftovers

MAX_WAV_BYTES = 2**32 + 7  # the header's 32 bits count those after the first eight


class Output(ABC):
    """Takes texts one after another. Those that are complete from an earlier time are not spoken
    again.

    Attributes:
        num_warnings: of all texts that are complete.
        made: what `add` made last, in a phrase; empty if that is not to be said.
    """

    num_warnings = 0
    made = ""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether the text of this name is complete."""

    @abstractmethod
    def add(self, speaker: Synthesizer, text: Text, options: dict[str, Any]) -> Iterator[int]:
        """Speak a text and write it. Yields the numbers of samples as they are written; when it
        ends, the text is complete."""

    def kept(self, num_texts: int) -> str:
        """What is left after a stop, in a phrase; empty if nothing is."""
        return ""

    def describe(self, num_texts: int, num_before: int) -> str:
        """What was written, in a phrase, with `num_before` of the texts spoken before."""
        return ""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class FileFolder(Output):
    """Files of each text, named by its line, in a folder that is there: a WAV, a picture of the
    alignment and, with `save_mel`, the log-mel. `keys`: of all texts, by their names."""

    def __init__(self, folder: Path, keys: dict[str, str], *, save_mel: bool):
        self.folder, self.keys, self.save_mel = folder, keys, save_mel
        self.log = Log(folder / "spoken.jsonl")
        remove_leftovers(folder, ".[0-9]*.tmp")  # nobody else writes here now
        before = {name: self.log.find(key, self._paths(name)) for name, key in keys.items()}
        self.complete = {name for name, spoken in before.items() if spoken}
        self.num_warnings = sum(len(spoken.warnings) for spoken in before.values() if spoken)

    def _paths(self, name: str) -> list[Path]:
        kinds = ["wav", "png", "npy"][: 3 if self.save_mel else 2]
        return [self.folder / f"{name}.{kind}" for kind in kinds]

    def has(self, name: str) -> bool:
        return name in self.complete

    def add(self, speaker: Synthesizer, text: Text, options: dict[str, Any]) -> Iterator[int]:
        speech = speaker.speak_text(text.utterance, **options)
        base = self.folder / text.name
        seconds = speaker.write_speech(base, speech, save_mel=self.save_mel)
        self.made = f"{base.name}.wav  {seconds:5.2f} s"
        yield round(seconds * speaker.hparams.sampling_rate)
        self.log.add(self.keys[text.name], sums_of(self._paths(text.name)), speech.warnings)
        self.complete.add(text.name)
        self.num_warnings += len(speech.warnings)

    def kept(self, num_texts: int) -> str:
        return f"the files of {len(self.complete):,} of {num_texts:,} texts are in {self.folder}"

    def describe(self, num_texts: int, num_before: int) -> str:
        num_made = num_texts - num_before
        made = f"{num_made:,} text{'s' * (num_made != 1)}"
        return f"wrote the files of {made} to {self.folder}"

    def __exit__(self, *details: object) -> None:
        self.log.__exit__(*details)


def add_samples(
    output: "GrowingWav | Stream", speaker: Synthesizer, text: Text, options: dict[str, Any]
) -> Iterator[int]:
    """Write the samples of a text as they are made, after a pause if there is a text before it."""
    if output.done:
        output.write(bytes(2 * round(options["pause"] * speaker.hparams.sampling_rate)))
    for samples in speaker.stream(text.utterance, **options):
        output.write(np.rint(32767 * samples).astype("<i2").tobytes())
        yield len(samples)


class Stream(Output):
    """Standard output: 16-bit samples, `wav` with a header that leaves the length open, `raw`
    without one."""

    def __init__(self, kind: Literal["wav", "raw"], sampling_rate: int):
        self.done = 0
        if kind == "wav":
            self.write(wav_header(sampling_rate))

    def write(self, samples: bytes) -> None:
        sys.stdout.buffer.write(samples)
        sys.stdout.buffer.flush()

    def has(self, name: str) -> bool:
        return False

    def add(self, speaker: Synthesizer, text: Text, options: dict[str, Any]) -> Iterator[int]:
        yield from add_samples(self, speaker, text, options)
        self.done += 1


def wav_header(sampling_rate: int, num_bytes: int | None = None) -> bytes:
    """Of 16-bit samples; without their number of bytes, of a WAV that goes on until it ends."""
    header = bytes(encode(np.zeros(0), sampling_rate))
    after = 2**32 - 1 if num_bytes is None else len(header) - 8 + num_bytes
    size = 2**32 - 1 if num_bytes is None else num_bytes
    return header[:4] + struct.pack("<I", after) + header[8:-4] + struct.pack("<I", size)


class GrowingWav(Output):
    """A WAV of 16-bit samples that grows text by text as `NAME.part.wav`, which players read too,
    and becomes `NAME.wav` at the end of a `with` block. An error leaves the part with the texts
    that are complete, and the next time `done` of them are there.

    Args:
        keys: of all texts, by their names; a text with another key than the last time is not done,
            nor are those after it.

    Errors as `Log`; UserError, too, for samples that a WAV has no room for: then `NAME.wav` has the
    texts before.
    """

    def __init__(self, path: Path, sampling_rate: int, keys: dict[str, str]):
        self.path, self.sampling_rate, self.texts = path, sampling_rate, list(keys.items())
        self.places = {name: place for place, name in enumerate(keys)}
        self.part = path.with_name(f"{path.stem}.part{path.suffix}")
        log = path.with_name(f"{path.stem}.part.jsonl")
        if os.path.lexists(self.part) and not os.path.lexists(log):
            raise UserError(f"{self.part}: no file of {log.name}, which is missing; move it away")
        self.log, self.file = Log(log), open_to_append(self.part)
        header = wav_header(sampling_rate)
        self.done, self.end = 0, len(header)  # in bytes, of the texts that are complete
        self.size, self.checksum = 0, 0  # of the one that is written
        begin = os.pread(self.file.fileno(), len(header), 0)
        if begin[8:-4] == header[8:-4]:  # but for lengths: the end may have been stopped
            while self._is_there():
                self.end += self.log.spoken[self.done].files[self.texts[self.done][0]][0]
                self.done += 1
        if self.done < len(self.log.spoken):
            self.log.keep(self.done)
        self.num_warnings = sum(len(x.warnings) for x in self.log.spoken[: self.done])
        os.ftruncate(self.file.fileno(), self.end if self.done else 0)
        if not self.done:
            self._append(header)

    @property
    def seconds(self) -> float:
        """Of the texts that are complete, with the pauses between them."""
        return (self.end - len(wav_header(self.sampling_rate))) / 2 / self.sampling_rate

    def has(self, name: str) -> bool:
        return self.places[name] < self.done

    def add(self, speaker: Synthesizer, text: Text, options: dict[str, Any]) -> Iterator[int]:
        yield from add_samples(self, speaker, text, options)
        self.end_text(speaker.warnings)

    def kept(self, num_texts: int) -> str:
        return f"{self.done:,} of {num_texts:,} texts are in {self.part}" if self.done else ""

    def describe(self, num_texts: int, num_before: int) -> str:
        of_texts = f" of {num_texts:,} texts" if num_texts > 1 else ""
        return f"wrote {self.path}, {self.seconds:.2f} s{of_texts}"

    def _is_there(self) -> bool:
        """Whether the next text is complete in the part."""
        if self.done == min(len(self.texts), len(self.log.spoken)):
            return False
        (name, key), spoken = self.texts[self.done], self.log.spoken[self.done]
        size, checksum = spoken.files.get(name, (0, 0))
        if spoken.key != key or not 0 < size <= os.fstat(self.file.fileno()).st_size - self.end:
            return False
        return zlib.crc32(os.pread(self.file.fileno(), size, self.end)) == checksum

    def _append(self, content: bytes) -> None:
        with naming(self.part):
            write_all(self.file.fileno(), content)

    def write(self, samples: bytes) -> None:
        """More of the next text."""
        if self.end + self.size + len(samples) > MAX_WAV_BYTES:
            self._finish()
            line = int(self.texts[self.done][0])
            full = f"4 GiB, the most that a WAV holds, with the lines before {line}"
            raise UserError(f"{self.path}: {full}; speak the others into another file")
        self._append(samples)
        self.size += len(samples)
        self.checksum = zlib.crc32(samples, self.checksum)

    def end_text(self, warnings: list[str]) -> None:
        """The text is complete."""
        name, key = self.texts[self.done]
        self.log.add(key, {name: (self.size, self.checksum)}, warnings)
        self.done, self.end = self.done + 1, self.end + self.size
        self.size, self.checksum = 0, 0
        self.num_warnings += len(warnings)

    def __enter__(self) -> "GrowingWav":
        return self

    def __exit__(self, *error: object) -> None:
        with self.log:
            if error[0] is None:
                self._finish()
            elif not self.file.closed:  # by _finish
                os.ftruncate(self.file.fileno(), self.end)
                if not self.done:
                    self.part.unlink(missing_ok=True)
                self.file.close()

    def _finish(self) -> None:
        """The whole texts, under the name of the WAV."""
        os.ftruncate(self.file.fileno(), self.end)
        self.file.close()
        header = wav_header(self.sampling_rate)
        with naming(self.part), open(self.part, "rb+") as file:
            file.write(wav_header(self.sampling_rate, self.end - len(header)))
            file.flush()
            os.fsync(file.fileno())
        with naming(self.path):
            os.replace(self.part, self.path)
        self.log.keep(0)  # and so it is removed
