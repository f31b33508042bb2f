"""What lies in a corpus where the sound of a clip is missing, and the command that mends it."""

import os
import re
import shlex
from collections import Counter
from functools import lru_cache
from pathlib import Path

from audio import conversion
from common.errors import in_place
from corpus.clip_table import Clip
from hparams import HParams

KINDS = (".wav", ".flac")  # that are read
OTHER_KINDS = (".mp3", ".ogg", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma", ".mp4", ".webm")


class SoundsThere:
    """The sound files of a corpus at any depth, whatever their case and suffix."""

    def __init__(self, corpus: Path, hparams: HParams):
        self.corpus, self.wavs, self.hparams = corpus, corpus / "wavs", hparams
        self.by_name: dict[str, list[Path]] = {}
        for folder, _, names in os.walk(corpus):
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix.lower() in KINDS + OTHER_KINDS and name[0] != ".":
                    self.by_name.setdefault(path.stem.lower(), []).append(path)

    def fix(self, clip: Clip, name: str) -> str:
        """What to do where the sound of an id, `name`, is missing."""
        for path in self.by_name.get(name.lower(), []):
            return f"{path} lies there: {self._command(path, name)}"
        if self.by_name.get(without_folder_and_suffix(name).lower()):
            return id_fix(name, self.corpus / "metadata.csv")
        return f"copy it there, or delete {clip.where}"

    def _command(self, path: Path, name: str) -> str:
        """The shell's command for all files that lie there as this one does."""
        kind = path.suffix.lower()
        files = f"{shlex.quote(str(path.parent))}/*{path.suffix}"
        if kind not in KINDS:
            return _conversion_of(path, self.hparams)
        if path.parent != self.wavs:
            return f"move it: mv -n {files} {shlex.quote(str(self.wavs))}"
        if path.stem == name:
            return f'rename it: for f in {files}; do mv -n "$f" "${{f%.*}}{kind}"; done'
        target = path.with_name(f"{name}{kind}")
        return f"rename it: mv -n {shlex.quote(str(path))} {shlex.quote(str(target))}"

    def without_wavs(self) -> str:
        """The message where there is no folder `wavs`."""
        files = [x for paths in self.by_name.values() for x in paths if x.suffix.lower() in KINDS]
        message = f"{self.wavs}: no such folder; it should hold the clips of metadata.csv"
        if not files:
            return message
        folder, count = Counter(path.parent for path in files).most_common(1)[0]
        source, wavs = shlex.quote(str(folder)), shlex.quote(str(self.wavs))
        command = f"mv -n {source} {wavs}"
        if folder == self.corpus:
            kind = next(path.suffix for path in files if path.parent == folder)
            command = f"mkdir {wavs} && mv -n {source}/*{kind} {wavs}"
        return f"{message}. {folder} has {count:,} sound files: {command}"


def beside(path: str, hparams: HParams) -> str:
    """What lies beside a sound of a filelist that is missing, and what to do; empty for nothing."""
    folder, name = os.path.split(path)
    there = _sounds_of(folder or ".").get(os.path.splitext(name)[0].lower())
    if there is None:
        return ""
    other = Path(folder, there)
    is_read = other.suffix.lower() in KINDS
    fix = f"write {there!r} in the list" if is_read else _conversion_of(other, hparams)
    return f"{there!r} lies there: {fix}"


@lru_cache(maxsize=1000)
def _sounds_of(folder: str) -> dict[str, str]:
    """The names of sound files in a folder by their names without suffix, in lower case."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    kinds = KINDS + OTHER_KINDS
    return {os.path.splitext(x)[0].lower(): x for x in names if x.lower().endswith(kinds)}


def _conversion_of(path: Path, hparams: HParams) -> str:
    """The shell's command that converts all files of a folder that have this one's suffix."""
    convert = conversion(hparams, '"$f"', '"${f%.*}.wav"')
    files = f"{shlex.quote(str(path.parent))}/*{path.suffix}"
    return f"convert it: for f in {files}; do {convert}; done"


def without_folder_and_suffix(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    return os.path.splitext(last)[0] if last.lower().endswith(KINDS + OTHER_KINDS) else last


def id_fix(name: str, metadata: Path) -> str:
    """How to mend an id with a folder or a suffix, in every line of metadata.csv."""
    kinds = "|".join(f"{kind[1:]}|{kind[1:].upper()}" for kind in KINDS)
    edit = rf"s#^[^|]*[/\\]##; s#^([^|]*)[.]({kinds})[|]#\1|#"
    command = in_place(metadata, f"sed -E '{edit}'")
    return f"write {without_folder_and_suffix(name)!r}, in every line by: {command}"
