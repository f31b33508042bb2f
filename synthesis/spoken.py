"""What is spoken already of a file of texts, so that the same command goes on after a stop.

A log has a JSON line for each text whose files are complete: a key of all that decides the sound,
and the files' sizes and CRC-32. What was changed, deleted or made otherwise is made again.
"""

import hashlib
import json
import os
import struct
import zlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.files import MAX_TEXT_BYTES, lock_file, naming, open_to_append, read_bytes
from common.version import __version__
from hparams import HParams
from synthesis.griffin_lim import encode

# Options that do not decide the sound of a text, and those whose files' content does; a new option
# decides it unless it is named here.
NOT_THE_SOUND = set("text text_file out output_directory save_mel stream time hparams".split())
FILES = set("checkpoint voice vocoder".split())
LARGEST_WAV = 2**32 + 7  # bytes; the header's 32 bits count those after the first eight


@dataclass(frozen=True)
class Spoken:
    """A text whose files are complete."""

    key: str
    files: dict[str, tuple[int, int]]  # by name: size, and CRC-32
    warnings: list[str]


def key_of(*parts: object) -> str:
    """A hash of JSON values, and of paths as texts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def settings_key(args: Namespace, hparams: HParams, files: Iterable[Path | None]) -> str:
    """A hash of what decides the sound besides the text: the recipe's version, settings, options,
    and the content of `files`."""
    options = {name: x for name, x in vars(args).items() if name not in NOT_THE_SOUND | FILES}
    contents = []
    for path in files:
        if path:
            with open(path, "rb") as file:
                contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    return key_of(__version__, asdict(hparams), options, contents)


def summary(num_there: int, num_skipped: int, num_warnings: int) -> str:
    """What the last line of a program adds to what it wrote."""
    counts = {
        f"{num_there:,} spoken before": num_there,
        f"{num_skipped:,} line{'s' * (num_skipped > 1)} skipped": num_skipped,
        f"{num_warnings:,} warning{'s' * (num_warnings > 1)}": num_warnings,
    }
    shown = [words for words, count in counts.items() if count]
    return f"; {', '.join(shown)}" if shown else ""


class Log:
    """A file of JSON lines, locked while it is open, and removed if it ends empty. Lines that are
    no `Spoken` do not count; a last one that is incomplete, as a killed process leaves it, is cut
    off. UserError for a link or no regular file, BlockingIOError if another process has it open."""

    def __init__(self, path: Path):
        from pydantic import TypeAdapter, ValidationError

        self.path, self.spoken = path, list[Spoken]()
        self.file = open_to_append(path)
        busy = "another process is writing these files; wait for it, or choose another -o"
        lock_file(self.file, f"{path}: {busy}")
        content = self.file.read(MAX_TEXT_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self.file.fileno(), len(whole))
        for line in whole.splitlines():
            try:
                self.spoken.append(TypeAdapter(Spoken).validate_json(line, strict=True))
            except ValidationError:
                continue
        self.by_key = {spoken.key: spoken for spoken in self.spoken}

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if not os.fstat(self.file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self.file.close()

    def find(self, key: str, paths: Iterable[Path]) -> Spoken | None:
        """The text of this key, if these files are there as they were made with it."""
        spoken = self.by_key.get(key)
        found = sums_of(paths) if spoken else {}
        return spoken if spoken and found and found.items() <= spoken.files.items() else None

    def add(self, key: str, files: dict[str, tuple[int, int]], warnings: list[str]) -> None:
        """Of a text whose files are complete."""
        line = json.dumps(asdict(Spoken(key, files, warnings))) + "\n"
        with naming(self.path):
            write_all(self.file.fileno(), line.encode())

    def keep(self, count: int) -> None:
        """Only the first so many texts."""
        os.ftruncate(self.file.fileno(), 0)
        for spoken in self.spoken[:count]:
            self.add(spoken.key, spoken.files, spoken.warnings)


def sums_of(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Size and CRC-32 of files by name; nothing if one of them cannot be read."""
    try:
        contents = {path.name: read_bytes(path) for path in paths}
    except UserError:
        return {}
    return {name: (len(content), zlib.crc32(content)) for name, content in contents.items()}


def write_all(descriptor: int, content: bytes) -> None:
    """Nothing waits in a buffer, to be written after the file was cut or removed."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def wav_header(sampling_rate: int, num_bytes: int | None = None) -> bytes:
    """Of 16-bit samples; without their number of bytes, of a WAV that goes on until it ends."""
    header = bytes(encode(np.zeros(0), sampling_rate))
    after = 2**32 - 1 if num_bytes is None else len(header) - 8 + num_bytes
    size = 2**32 - 1 if num_bytes is None else num_bytes
    return header[:4] + struct.pack("<I", after) + header[8:-4] + struct.pack("<I", size)


class GrowingWav:
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
        self.warnings = sum(len(spoken.warnings) for spoken in self.log.spoken[: self.done])
        os.ftruncate(self.file.fileno(), self.end if self.done else 0)
        if not self.done:
            self._append(header)

    @property
    def seconds(self) -> float:
        """Of the texts that are complete, with the pauses between them."""
        return (self.end - len(wav_header(self.sampling_rate))) / 2 / self.sampling_rate

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
        if self.end + self.size + len(samples) > LARGEST_WAV:
            self._finish()
            line = int(self.texts[self.done][0])
            full = f"4 GiB, the most that a WAV holds, with the lines before {line}"
            raise UserError(f"{self.path}: {full}; speak the others into another file")
        self._append(samples)
        self.size += len(samples)
        self.checksum = zlib.crc32(samples, self.checksum)

    def end_text(self, warnings: list[str]) -> None:
        name, key = self.texts[self.done]
        self.log.add(key, {name: (self.size, self.checksum)}, warnings)
        self.done, self.end = self.done + 1, self.end + self.size
        self.size, self.checksum = 0, 0
        self.warnings += len(warnings)

    def __enter__(self) -> "GrowingWav":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.log:
            if kind is None:
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
