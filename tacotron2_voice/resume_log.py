"""Record the completed texts, so that running the same command again resumes the work.

with ResumeLog(folder / "spoken.jsonl") as log:
    if not log.find(key, paths):
        ...                                      # write the files
        log.add(key, sizes_of(paths), warnings)

The log contains one JSON line for each complete text: a hash of all inputs that affect the audio,
and the sizes of the files that belong to the text. If a text, an option or the size of a file
changes, the text is synthesized again.
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacotron2_voice.settings import VoiceSettings, values_of
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import json_lines, lock_path, naming, write_bytes
from tacotron2_voice.version import __version__

# Options that `options_hash` ignores, because they do not affect the audio, or because they select
# settings or files that the hash already contains.
OTHER_OPTIONS = set(
    "command text text_file list_speakers out save_mel stream time lexicon hparams checkpoint voice vocoder".split()
)


@dataclass(frozen=True)
class Entry:
    """An entry in the log: a text whose audio files are complete."""

    key: str  # hash of all inputs that affect the audio
    files: dict[str, int]  # size of each file in bytes, by name
    warnings: list[str]
    timings: dict[str, Any] | None = None  # times of the words, measured from the start of the text


class ResumeLog:
    """Open a log and lock it until it is closed. If the log has no entries when it is closed, the
    file is removed.

    Raises:
        BlockingIOError: if another process uses the log.
        UserError: if the file is not a log.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lock_path = path.with_name(f".{path.name}.lock")
        busy = f"{path}: another process is writing these files (expected one process per output)"
        self.lock = lock_path(self.lock_path, busy)
        self.entries: list[Entry] = []
        if path.exists():
            try:
                self.entries = [Entry(**values) for values in json_lines(path)]
            except TypeError:
                raise UserError(
                    f"{path}: not a list of finished texts. Move this file, or choose another output"
                ) from None
        self.keep(len(self.entries))  # a killed process may have left an incomplete line
        self.by_key = {entry.key: entry for entry in self.entries}

    def __enter__(self) -> "ResumeLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.exists() and not self.path.stat().st_size:
            self.path.unlink()
        self.lock_path.unlink(missing_ok=True)
        self.lock.release()

    def find(self, key: str, paths: Iterable[Path]) -> Entry | None:
        """Return the entry with this key. Return None if there is no such entry, or if a file in
        `paths` no longer has the size in the entry."""
        entry = self.by_key.get(key)
        if entry is None:
            return None
        return entry if sizes_of(paths).items() <= entry.files.items() else None

    def add(
        self,
        key: str,
        files: dict[str, int],
        warnings: list[str],
        timings: dict[str, Any] | None = None,
    ) -> None:
        with naming(self.path), open(self.path, "ab") as file:
            file.write(_line_of(Entry(key, files, warnings, timings)))

    def keep(self, count: int) -> None:
        """Keep only the first `count` entries in the file."""
        self.entries = self.entries[:count]
        write_bytes(self.path, b"".join(map(_line_of, self.entries)))


def _line_of(entry: Entry) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def hash_of(*values: object) -> str:
    """Return a hash of `values`, which may be JSON values or `Path` objects."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def options_hash(args: Namespace, settings: VoiceSettings, files: Iterable[Path | None]) -> str:
    """Return a hash of all inputs that affect the audio, except the text.

    The hash depends on the version of this package, the settings, the options and the contents of
    `files`.
    """
    options = {name: value for name, value in vars(args).items() if name not in OTHER_OPTIONS}
    contents = []
    for path in files:
        if path:
            with open(path, "rb") as file:
                contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hash_of(__version__, values_of(settings), options, contents)


def sizes_of(paths: Iterable[Path]) -> dict[str, int]:
    """Return {file name: file size in bytes}. The size of a missing file is -1."""
    return {path.name: path.stat().st_size if path.is_file() else -1 for path in paths}
