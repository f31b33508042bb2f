"""Find the audio file of every entry of a table.

files = audio_files(Path("data/mine"))
clips, problems = with_audio(entries, Path("data/mine"), Path("data/mine/tables"))
"""

import functools
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audio import open_audio
from corpus.clips import Clip
from corpus.recording_names import (
    AUDIO_SUFFIXES,
    READABLE,
)
from corpus.speaker_names import (
    MIN_LINES,
)
from corpus.tables import Entry
from tacotron2_voice.utils.errors import UserError, count_of

# A duration in a table may differ from the length of the file by DURATION_SECONDS, or by the
# fraction DURATION_SHARE of the length.
DURATION_SECONDS, DURATION_SHARE = 0.5, 0.1
# The listed folders are ignored only if at least this fraction of the listed file names exists in
# the corpus.
MIN_FOUND = 0.9
SHOWN = 5  # maximum number of files to list in a note


def audio_files(corpus: Path) -> list[Path]:
    """Return all audio files in a folder and its subfolders, sorted by path."""
    return [x for x in visible_files(corpus) if x.suffix.lower() in AUDIO_SUFFIXES and x.is_file()]


def visible_files(corpus: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted by path.

    Hidden files and folders are ignored, including the hidden files that macOS adds to archives.
    Links to folders are followed, but each folder is visited only once.
    """
    files = []
    visited = set[str]()
    for folder, folders, names in os.walk(corpus, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if name[0] != "."]
        files += [Path(folder, name) for name in names if name[0] != "."]
    return sorted(files)


def readable_first(files: Sequence[Path]) -> list[Path]:
    """Sort the files by format, in the order of READABLE. Files in formats that are not in READABLE
    come last."""
    ranks = {suffix: rank for rank, suffix in enumerate(READABLE)}
    return sorted(files, key=lambda path: ranks.get(path.suffix.lower(), len(ranks)))


def comparable(name: str) -> str:
    """Return a form of a name for comparisons that ignore case and the encoding of accents.

    macOS and some archives encode é as two characters: e and an accent.
    """
    return unicodedata.normalize("NFC", name).casefold()


def without_folder_and_suffix(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    return os.path.splitext(last)[0] if last.lower().endswith(AUDIO_SUFFIXES) else last


def slashes(name: str) -> str:
    return name.replace("\\", "/")


def exact_file(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return a list with the path of the file `name` in the first folder that contains this file,
    or []."""
    # If `listed` is an absolute path, `folder / listed` is equal to `listed`.
    listed = name.replace("\\", "/")
    paths = [folder / f"{listed}{end}" for end in ("", ".wav", ".flac") for folder in folders]
    # Also return named pipes and broken links, because a later check reports these files as errors.
    return [path for path in paths if os.path.lexists(path) and not os.path.isdir(path)][:1]


def similar_files(name: str, files: Sequence[Path], *, in_folder: bool) -> list[Path]:
    """Return the audio files that a name in a table may refer to.

    Args:
        name: the listed name, with or without folders and extension.
        files: the audio files whose names match `name`, ignoring folders, case and extension.
        in_folder: whether the name of a file's folder must match the last folder in `name`.
    """
    stem = without_folder_and_suffix(name)
    folders = [comparable(part) for part in re.split(r"[/\\]", name)[:-1]]
    folders = [part for part in folders if part not in ("", ".", "..")]
    in_its_folder = [x for x in files if _ends_with(x.parent, folders)]
    in_last_folder = [x for x in files if _ends_with(x.parent, folders[-1:])]
    alike = in_last_folder if in_folder else files
    narrower = (
        [x for x in alike if x.stem == stem],
        in_its_folder,
        in_last_folder,
        [x for x in alike if x.suffix.lower() in READABLE],
    )
    for chosen in narrower:
        alike = [x for x in alike if x in chosen] or alike
    of_one_name = {path.with_suffix("") for path in alike}
    return readable_first(alike)[:1] if len(of_one_name) == 1 else [*alike]


def _ends_with(folder: Path, names: Sequence[str]) -> bool:
    parts = [comparable(part) for part in folder.parts]
    return not names or parts[-len(names) :] == [*names]


@dataclass(frozen=True)
class AudioFinder:
    """Find the audio files of entries, which give a path or only a file name."""

    corpus: Path
    base: Path  # folder to which the paths of entries are relative
    # The keys of both mappings are names that are converted by `comparable`.
    files: Mapping[str, Sequence[Path]]  # audio files of the corpus
    counts: Mapping[str, int]  # number of different entries
    # Whether the folder of an audio file must have the name that the table lists. If each speaker has
    # a folder, a file with the same name in another folder is a different recording.
    has_folders: bool

    @classmethod
    def for_entries(cls, entries: Sequence[Entry], corpus: Path, base: Path) -> "AudioFinder":
        files = defaultdict[str, list[Path]](list)
        for path in audio_files(corpus):
            files[comparable(path.stem)].append(path)
        names = {entry.name for entry in entries}
        # Two speakers may both have a file 001.wav. `counts` contains the number of entries with each
        # file name. Entries with the same file name need files in different folders.
        counts = Counter(comparable(without_folder_and_suffix(name)) for name in names)
        listed = {comparable(re.split(r"[/\\]", x)[-2]) for x in names if "/" in slashes(x)}
        # Use only the file names in the table if the audio files were moved out of the folders that
        # the table lists.
        num_found = sum(len(files.get(name, ())) == 1 for name in counts)
        are_moved = (
            num_found >= MIN_FOUND * len(counts)
            and max(counts.values(), default=0) == 1
            and listed.isdisjoint(comparable(x.parent.name) for xs in files.values() for x in xs)
        )
        return cls(corpus, base, files, counts, has_folders=len(listed) > 1 and not are_moved)

    def exact(self, name: str) -> list[Path]:
        """Return the file with exactly this path or file name, or []."""
        corpus, base = self.corpus, self.base
        return exact_file(name, [*dict.fromkeys((base, corpus, base / "wavs", corpus / "wavs"))])

    def similar(self, name: str) -> list[Path]:
        """Return the files in other folders, or with another extension or case."""
        key = comparable(without_folder_and_suffix(name))
        in_folder = self.has_folders or self.counts[key] > 1
        return similar_files(name, self.files.get(key, []), in_folder=in_folder)

    def elsewhere(self, name: str) -> Path | None:
        """Return an audio file that has this name but is not used because it is in another folder. If
        no such file exists, return None."""
        return next(iter(self.files.get(comparable(without_folder_and_suffix(name)), [])), None)

    def unused_formats(self, entries: Sequence[Entry], clips: Sequence[Clip]) -> list[Path]:
        """Return the audio files that differ from a clip's file only in the extension.

        If an entry contains the file name with its extension, the clip of this entry is skipped,
        because the user chose this file.
        """
        listed = {entry.where: slashes(entry.name).rpartition("/")[2] for entry in entries}
        used = {clip.path for clip in clips}
        found = [
            path
            for clip in clips
            if Path(clip.path).name != listed[clip.where]
            for path in self.files.get(comparable(Path(clip.path).stem), [])
            if path.with_suffix("") == Path(clip.path).with_suffix("")
        ]
        return sorted({path for path in found if str(path) not in used})

    def expected(self, name: str) -> Path:
        """Return the path where a missing file was expected."""
        listed = slashes(name)
        has_suffix = listed.lower().endswith(AUDIO_SUFFIXES)
        folder, suffix = self.usual
        if "/" in listed:
            folder = self.base
        return folder / (listed if has_suffix else f"{listed}{suffix}")

    @functools.cached_property
    def usual(self) -> tuple[Path, str]:
        """Return the most frequent folder and extension of the audio files."""
        counts = Counter((x.parent, x.suffix) for paths in self.files.values() for x in paths)
        return max(counts, key=counts.__getitem__, default=(self.corpus / "wavs", ".wav"))


def with_audio(entries: Sequence[Entry], corpus: Path, base: Path) -> tuple[list[Clip], list[str]]:
    """Find the audio file of each entry.

    The entry's name is a path relative to `base` or `corpus`, with or without an extension. If the
    path does not exist, but exactly one audio file in the corpus has the entry's file name, this
    audio file is used. If no audio file is found, the clip gets the path at which the file was
    expected, and `problem_of_missing` reports the clip later.

    Returns:
        A tuple of the clips and a list of messages about entries with these problems:
            - Several files match the entry.
            - An earlier entry has the same file and the same text.
            - Another entry has the same file and a different text.
    """
    finder = AudioFinder.for_entries(entries, corpus, base)
    names = [comparable(without_folder_and_suffix(entry.name)) for entry in entries]
    check_texts(entries, names, finder.files)
    paths, problems = _find_paths(entries, finder)
    clips, conflicts = _without_conflicts(paths)
    print_unused_formats(finder.unused_formats(entries, clips), corpus)
    # An audio file is either cut at the listed times or used as a whole.
    cut = {clip.path for clip in clips if clip.segment}
    without_times = [
        f"{clip.where}: this line has no times, but other lines contain the times of segments of "
        f"{clip.path}"
        for clip in clips
        if clip.segment is None and clip.path in cut
    ]
    clips = [clip for clip in clips if clip.segment or clip.path not in cut]
    return clips, [*problems, *conflicts, *without_times]


def _find_paths(
    entries: Sequence[Entry], finder: AudioFinder
) -> tuple[list[tuple[Entry, Path]], list[str]]:
    """Return (entry, path of its audio file) for each entry, and one message per bad entry.

    Also print a note about files that have a different path than the table lists.
    """
    paths = []
    problems = []
    renamed: list[tuple[str, Path]] = []
    elsewhere: list[tuple[str, Path]] = []
    for entry in entries:
        if not entry.name:
            problems.append(f"{entry.where}: no path or id of an audio file")
            continue
        if re.search("[\0\ud800-\udfff]", entry.name):
            problems.append(f"{entry.where}: {entry.name!r} is not a valid file name")
            continue
        found = finder.exact(entry.name)
        if not found:
            found = finder.similar(entry.name)
            renamed += [(entry.name, path) for path in found[:1]]
        if len(found) > 1:
            several = f"{found[0]} or {found[1]}"
            problems.append(
                f"{entry.where}: {entry.name!r}: may mean {several}; write the full path"
            )
            continue
        if not found and (other := finder.elsewhere(entry.name)):
            elsewhere.append((entry.name, other))
        # Keep an entry without a file in the list, so that the split stays the same if the file is
        # added later.
        paths.append((entry, found[0] if found else finder.expected(entry.name)))
    if renamed:
        listed, path = renamed[0]
        print(
            f"note: {len(renamed):,} of {len(entries):,} listed files were found in a different "
            f"folder, or with a different extension or case. For example, {listed!r} was found as "
            f"{os.path.relpath(path, finder.corpus)}"
        )
    if elsewhere:
        listed, path = elsewhere[0]
        print(
            f"note: {len(elsewhere):,} missing files have the same names as files in other folders. "
            f"For example, {listed!r} may be {os.path.relpath(path, finder.corpus)}. If they are the "
            "same recordings, move each file into the folder that is listed for it"
        )
    return paths, problems


def _without_conflicts(paths: Sequence[tuple[Entry, Path]]) -> tuple[list[Clip], list[str]]:
    """Return the clips of the entries that share their audio with no other entry and have the right
    duration, and one message per other entry.

    Raise UserError if most entries have the same audio file as another entry.
    """
    clips = []
    problems = []
    first: dict[tuple, Entry] = {}
    conflicting: dict[str, str] = {}
    for entry, path in paths:
        earlier = first.setdefault((os.path.realpath(path), entry.segment), entry)
        if earlier is not entry and earlier.text == entry.text:
            same = f"{path} is already listed in {earlier.where}"
            problems.append(f"{entry.where}: {entry.name!r}: {same}; delete one of the two lines")
        elif earlier is not entry:
            # Report both entries, because either text may be wrong.
            conflicting[entry.where] = problem_of_texts(entry, earlier)
            conflicting.setdefault(earlier.where, problem_of_texts(earlier, entry))
        elif entry.duration is not None and (problem := problem_of_duration(entry, path)):
            problems.append(problem)
        else:
            clip = Clip(str(path), entry.text, where=entry.where, speaker=entry.speaker)
            clips.append(replace(clip, segment=entry.segment))
    segments = [entry for entry, _ in paths if entry.where in conflicting and not entry.segment]
    if len(segments) >= MIN_LINES and 2 * len(segments) > len(paths):
        raise UserError(
            f"{segments[0].where}: {len(segments):,} of {len(paths):,} lines list the same audio file as "
            f"another line, such as {segments[0].name!r}, but a different text (expected one line per "
            "audio file, or columns with the times of segments). If the lines list segments of the "
            "file, name the columns with their times (in seconds) 'start' and 'end', or 'offset' and "
            "'duration'"
        )
    clips = [clip for clip in clips if clip.where not in conflicting]
    return clips, [*problems, *conflicting.values()]


def check_texts(entries: Sequence[Entry], names: Sequence[str], files: Container[str]) -> None:
    """Raise UserError if most texts are names of audio files. In this case, the columns for paths
    and texts are probably swapped.

    Args:
        names: the names in the entries, without folders and extensions, converted by `comparable`.
        files: the names of all audio files in the corpus, converted in the same way.
    """
    swapped = [
        entry
        for entry, name in zip(entries, names, strict=True)
        if entry.text.lower().endswith(AUDIO_SUFFIXES)
        or (comparable(entry.text) in files and name not in files)
    ]
    if len(swapped) > len(entries) / 2:
        raise UserError(
            f"{swapped[0].where}: {len(swapped):,} of {len(entries):,} texts are names of audio files, "
            f"such as {swapped[0].text[:60]!r}; expected the words that are spoken. "
            "Choose different columns with --path-column and --text-column"
        )


def problem_of_texts(entry: Entry, other: Entry) -> str:
    """Return a message about two entries with the same audio but different texts."""
    fix = "delete the wrong line"
    if not entry.segment:
        fix += (
            ". If the texts are spoken in different segments of the file, give the columns that "
            "contain the times the titles 'start' and 'end', or 'offset' and 'duration'"
        )
    return (
        f"{entry.where}: {entry.name!r}: {other.where} has a different text for this audio; {fix}"
    )


def problem_of_duration(entry: Entry, path: Path) -> str:
    """Return a message if the duration in the table differs considerably from the length of the
    file.

    Otherwise return "". The duration in the table may be in seconds or in milliseconds. For
    example, a line of a NeMo manifest without an offset may have a shorter duration than the file,
    because the line may transcribe only the beginning of the file.
    """
    assert entry.duration is not None
    try:
        with open_audio(path) as audio:
            seconds = audio.frames / audio.samplerate
    except UserError:
        return ""  # a later check reports that the file is unreadable
    tolerance = max(DURATION_SECONDS, DURATION_SHARE * seconds)
    if any(
        abs(listed - seconds) <= tolerance for listed in (entry.duration, entry.duration / 1000)
    ):
        return ""
    return (
        f"{entry.where}: {entry.name!r}: the duration is {entry.duration:g} s, but {path} is "
        f"{seconds:.2f} s long. If the text transcribes only a part of the file, add the column "
        "offset"
    )


def problem_of_missing(clip: Clip) -> str:
    """Return a message if a clip's audio file is missing, otherwise ""."""
    if os.path.lexists(clip.path):
        return ""
    return f"{clip.where}: {clip.id[:80]!r}: no such audio file, expected {clip.path:.300}"


def advice_on_formats(clip: Clip) -> str:
    """Return advice for a clip whose audio file is damaged, if a file with the same name exists in
    another readable format. Otherwise return ""."""
    path = Path(clip.path)
    others = [path.with_suffix(suffix) for suffix in READABLE if suffix != path.suffix.lower()]
    other = next((x for x in others if x.is_file()), None)
    if other is None:
        return ""
    try:
        with open_audio(path):
            return ""  # the file is readable, so it has a different problem
    except UserError:
        return f"; {other} is not used while {path.name} exists. Repair or remove {path.name}"


def print_unused_formats(others: Sequence[Path], corpus: Path) -> None:
    """Print a note about audio files that differ from the used files only in their format."""
    if others:
        print(
            f"note: ignored {count_of(len(others), 'audio file')}, because another audio file has the "
            f"same name, such as {os.path.relpath(others[0], corpus)}"
        )


def note_of_unused_audio(
    clips: Sequence[Clip], problems: Sequence[str], corpus: Path
) -> str | None:
    """Return a note about the audio files that neither a clip uses nor an error message lists.

    The note does not list a file if a clip uses a file of the same name in a different format.
    """
    used = {os.path.splitext(os.path.realpath(clip.path))[0] for clip in clips}
    bad = {problem.partition(": ")[0] for problem in problems}
    unused = [
        os.path.relpath(path, corpus)
        for path in audio_files(corpus)
        if os.path.splitext(os.path.realpath(path))[0] not in used and str(path) not in bad
    ]
    if not unused:
        return None
    files = count_of(len(unused), "audio file")
    examples = ", ".join(unused[:SHOWN]) + (", ..." if len(unused) > SHOWN else "")
    return f"note: no clip uses {files} in {corpus}: {examples}"
