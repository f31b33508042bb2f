"""What lies in a corpus where the sound of a clip is missing, and the command that mends it."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from audio import conversion
from corpus.clip_table import Clip
from hparams import HParams
from tacotron2_voice.utils.errors import UserError, in_place

KINDS = (".wav", ".flac")  # that are read
OTHER_KINDS = (".mp3", ".ogg", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma", ".mp4", ".webm")


class SoundsThere:
    """The sound files of a corpus at any depth, whatever their case and suffix."""

    def __init__(self, corpus: Path, hparams: HParams, ids: Iterable[str] = ()):
        self.corpus, self.wavs, self.hparams = corpus, corpus / "wavs", hparams
        self.ids = set(ids)
        self.by_name: dict[str, list[Path]] = {}
        for folder, folders, names in os.walk(corpus):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix.lower() in KINDS + OTHER_KINDS and name[0] != ".":
                    self.by_name.setdefault(path.stem.lower(), []).append(path)

    def fix(self, clip: Clip, name: str) -> str:
        """What to do where the sound of an id, `name`, is missing."""
        there = self.by_name.get(name.lower(), [])
        if len({path.parent for path in there}) > 1:
            return f"{there[0]} and {there[1]} lie there: copy the one that speaks the text"
        if there:
            return f"{there[0]} lies there: {self._command(there[0], name)}"
        if self.by_name.get(without_folder_and_suffix(name).lower()):
            return id_fix(name, self.corpus / "metadata.csv")
        if name.isdecimal() and (width := self._width_of_numbers(int(name))) > len(name):
            zeros = f"s/^([0-9]{{1,{width - 1}}})[|]/0\\1|/"
            command = in_place(self.corpus / "metadata.csv", f"sed -E ':a; {zeros}; ta'")
            full = f"{int(name):0{width}}"
            return f"{full!r} lies there: write the zeros, in every line by: {command}"
        return f"copy it there, or delete {clip.where}"

    def _width_of_numbers(self, number: int) -> int:
        """The digits of the names of sounds, if all are numbers of one width, this one too."""
        widths = {len(name) if name.isdecimal() else 0 for name in self.by_name}
        width = max(widths, default=0)
        return width if widths == {width} and f"{number:0{width}}" in self.by_name else 0

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
        letters = {path.stem.lower(): "A-Z a-z", path.stem.upper(): "a-z A-Z"}.get(name)
        stems = {x.stem for paths in self.by_name.values() for x in paths if x.parent == self.wavs}
        # Not where other clips would lose their sounds.
        if letters and path.suffix == kind and name.isascii() and not stems & self.ids:
            stem = f'"$(basename "$f" {kind} | tr {letters})"'
            folder = shlex.quote(str(path.parent))
            return f'rename it: for f in {files}; do mv -n "$f" {folder}/{stem}{kind}; done'
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


def beside(path: str, hparams: HParams, filelist: str | Path) -> str:
    """What lies beside a sound of a filelist that is missing, and what to do; empty for nothing."""
    folder, name = os.path.split(path)
    there = _sounds_of(folder or ".").get(os.path.splitext(name)[0].lower())
    if there is None:
        return ""
    other = Path(folder, there)
    is_read = other.suffix.lower() in KINDS
    if not is_read:
        return f"{there!r} lies there: {_conversion_of(other, hparams)}"
    fix, (stem, suffix) = f"write {there!r} in the list", os.path.splitext(name)
    if stem == other.stem:  # so it may be in all lines
        edit = f"s#^([^|]*)[.]{suffix[1:]}([[:space:]]*[|])#\\1{other.suffix}\\2#"
        edit = edit if suffix else f"s#^([^|]*[^|[:space:]])([[:space:]]*[|])#\\1{other.suffix}\\2#"
        command = in_place(filelist, f"sed -E '{edit}'")
        fix += f", in every line by: {command}"
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


def for_all(message: str, path: Path, hparams: HParams) -> str:
    """The message about a sound with the command that converts one file replaced by the shell's
    command for all files of its folder with its suffix. The originals go to a folder beside it."""
    one = f"convert it: {conversion(hparams, 'in.wav', 'out.wav')}"
    folder = shlex.quote(str(path.parent))
    new, old = (shlex.quote(f"{path.parent}.{name}") for name in ("new", "old"))
    convert = conversion(hparams, '"$f"', f'{new}/"${{f##*/}}"')
    loop = f'for f in {folder}/*{path.suffix}; do {convert} && mv -n "$f" {old}; done'
    every = f"convert all, and keep these in {path.parent}.old: mkdir -p {new} {old}; {loop}; "
    return message.replace(one, f"{every}mv -n {new}/* {folder}")


def notice_of_unnamed(names: Sequence[str], no_line: str, folder: str) -> str:
    """A notice about sounds that are left out, as `no_line` names them."""
    files = f"{len(names):,} file{'s' * (len(names) > 1)}"
    examples = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"Notice: {no_line} names {files} in {folder}: {examples}"


def without_folder_and_suffix(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    return os.path.splitext(last)[0] if last.lower().endswith(KINDS + OTHER_KINDS) else last


def id_fix(name: str, metadata: Path) -> str:
    """How to mend an id with a folder or a suffix, in every line of metadata.csv."""
    kinds = "|".join(kind[1:] for kind in KINDS + OTHER_KINDS)
    edit = rf"s#^[^|]*[/\\]##; s#^([^|]*)[.]({kinds})[|]#\1|#I"
    command = in_place(metadata, f"sed -E '{edit}'")
    return f"write {without_folder_and_suffix(name)!r}, in every line by: {command}"


def refuse_ambiguous_ids(metadata: Path, ids: Sequence[str]) -> None:
    """Raise a UserError if ids with folders name different files that would get one id without:
    001 of one speaker would get the text of another's. It names the command that makes the folders
    a part of the names, of ids and of files."""
    first: dict[str, str] = {}
    for name in ids if re.search(r"[/\\]", "".join(ids)) else ():
        other = first.setdefault(without_folder_and_suffix(name).lower(), name)
        if other != name:
            break
    else:
        return
    edit = in_place(metadata, r"sed -E 's#^[^|]*wavs[/\\]##; :a; s#^([^|]*)[/\\]#\1_#; ta'")
    wavs = shlex.quote(str(metadata.with_name("wavs")))
    moved = (
        f"(cd {wavs} && find . -mindepth 2 -type f | sed 's#^[.]/##' | while IFS= read -r f; do "
        'mv -n "$f" "$(echo "$f" | tr / _)"; done)'
    )
    recordings = metadata.with_name("wavs")
    recordings = recordings if recordings.is_dir() else metadata.parent
    of_speakers = (
        f"python scripts/prepare.py {shlex.quote(str(recordings))} --speaker-folders "
        f"--csv {shlex.quote(str(metadata))} --delimiter '|' --convert NEW_FOLDER"
    )
    raise UserError(
        f"{metadata}: ids {other!r} and {name!r} are files of the same name in different folders: "
        "texts and sounds would be mixed. Make the folders a part of the names, by: "
        f"{edit} && {moved}\nIf the folders are speakers (docs/speakers.md): {of_speakers}"
    )
