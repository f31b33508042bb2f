"""Logs which texts of a file are spoken, so that the same command continues after a stop.

A log has a JSON line for each text whose files are complete: a key of all that decides the sound,
and the files' sizes and CRC-32. What was changed, deleted or made otherwise is made again.
"""

import hashlib
import json
import os
import zlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    MAX_TEXT_BYTES,
    lock_file,
    naming,
    open_to_append,
    read_bytes,
)
from tacotron2_voice.version import __version__

# Options that do not decide the sound of a text, and those whose files' content does; a new option
# decides it unless it is named here.
NOT_THE_SOUND = set("text text_file list_speakers out save_mel stream time hparams".split())
FILES = set("checkpoint voice vocoder".split())


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
        # Not MAX_TEXT_BYTES, for which Python would make room.
        content = self.file.read(min(os.fstat(self.file.fileno()).st_size, MAX_TEXT_BYTES))
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self.file.fileno(), len(whole))
        self.ends, end = list[int](), 0  # of the lines of `spoken`, in bytes
        for line in whole.splitlines(keepends=True):
            end += len(line)
            try:
                self.spoken.append(TypeAdapter(Spoken).validate_json(line, strict=True))
                self.ends.append(end)
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
        sums = sums_of(paths) if spoken else {}
        return spoken if spoken and sums and sums.items() <= spoken.files.items() else None

    def add(self, key: str, files: dict[str, tuple[int, int]], warnings: list[str]) -> None:
        """Of a text whose files are complete."""
        line = json.dumps(asdict(Spoken(key, files, warnings))) + "\n"
        with naming(self.path):
            write_all(self.file.fileno(), line.encode())

    def keep(self, count: int) -> None:
        """Only the first so many texts of those that were there."""
        os.ftruncate(self.file.fileno(), self.ends[count - 1] if count else 0)  # at once


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
