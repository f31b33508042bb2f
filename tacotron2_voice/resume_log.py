"""Record which texts of a file were spoken, so that the same command resumes after a stop.

with ResumeLog(folder / "spoken.jsonl") as log:
    if not log.find(key, paths):
        ...                                      # write the files
        log.add(key, checksums_of(paths), warnings)

The log has one JSON line for each text whose files are complete: a hash of everything that decides
the audio, and the sizes and CRC-32 of the files. If a text, an option or a file changes, the text is
synthesized again.
"""

import hashlib
import json
import os
import zlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tacotron2_voice.settings import VoiceSettings, values_of
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import MAX_TEXT_BYTES, lock_path, naming, read_bytes
from tacotron2_voice.version import __version__

# Every option decides the audio of a text, except these.
OTHER_OPTIONS = set("command text text_file list_speakers out save_mel stream time hparams".split())
FILE_OPTIONS = {"checkpoint", "voice", "vocoder"}  # the content of these files decides the audio


@dataclass(frozen=True)
class Entry:
    """Describe a text whose files are complete."""

    key: str  # a hash of everything that decides its audio
    files: dict[str, tuple[int, int]]  # size and CRC-32 by name
    warnings: list[str]


class ResumeLog:
    """Read and extend a log, which is locked until it is closed. An empty log is removed then.

    Lines that are not entries are ignored. An incomplete last line, which a killed process may
    leave, is cut off.

    Raises:
        BlockingIOError: if another process uses the log.
    """

    def __init__(self, path: Path):
        from pydantic import TypeAdapter, ValidationError

        self.path = path
        self.lock_path = path.with_name(f".{path.name}.lock")
        busy = f"{path}: another process is writing these files (expected one process per output)"
        self.lock = lock_path(self.lock_path, busy)
        with naming(path):
            # Without a buffer, nothing is left to write after the file was cut or removed.
            self.file = open(path, "ab+", buffering=0)  # noqa: SIM115
        self.file.seek(0)
        content = self.file.read(MAX_TEXT_BYTES)
        complete = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self.file.fileno(), len(complete))
        self.entries: list[Entry] = []
        self.ends: list[int] = []  # of the entries' lines, in bytes
        end = 0
        adapter = TypeAdapter(Entry)
        for line in complete.splitlines(keepends=True):
            end += len(line)
            try:
                entry = adapter.validate_json(line, strict=True)
            except ValidationError:
                continue
            self.entries.append(entry)
            self.ends.append(end)
        self.by_key = {entry.key: entry for entry in self.entries}

    def __enter__(self) -> "ResumeLog":
        return self

    def __exit__(self, *_: object) -> None:
        if os.fstat(self.file.fileno()).st_size == 0:
            self.path.unlink(missing_ok=True)
        self.file.close()
        self.lock_path.unlink(missing_ok=True)
        self.lock.release()

    def find(self, key: str, paths: Iterable[Path]) -> Entry | None:
        """Return the entry with this key, if these files are unchanged since."""
        entry = self.by_key.get(key)
        if entry is None:
            return None
        checksums = checksums_of(paths)
        is_unchanged = checksums and checksums.items() <= entry.files.items()
        return entry if is_unchanged else None

    def add(self, key: str, files: dict[str, tuple[int, int]], warnings: list[str]) -> None:
        """Add the entry of a text whose files are complete."""
        line = json.dumps(asdict(Entry(key, files, warnings))) + "\n"
        with naming(self.path):
            write_all(self.file.fileno(), line.encode())

    def truncate(self, count: int) -> None:
        """Keep only the first `count` entries of those that were read."""
        os.ftruncate(self.file.fileno(), self.ends[count - 1] if count else 0)


def hash_of(*values: object) -> str:
    """Return a hash of JSON values and paths."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def options_hash(args: Namespace, settings: VoiceSettings, files: Iterable[Path | None]) -> str:
    """Return a hash of everything except the text that decides the audio: the version, settings,
    options, and the content of `files`."""
    ignored = OTHER_OPTIONS | FILE_OPTIONS
    options = {name: value for name, value in vars(args).items() if name not in ignored}
    contents = []
    for path in files:
        if path:
            with open(path, "rb") as file:
                contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hash_of(__version__, values_of(settings), options, contents)


def checksums_of(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return size and CRC-32 of files by name; {} if one of them cannot be read."""
    checksums = {}
    for path in paths:
        try:
            content = read_bytes(path)
        except UserError:
            return {}
        checksums[path.name] = (len(content), zlib.crc32(content))
    return checksums


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything; a single call of os.write may write less."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
