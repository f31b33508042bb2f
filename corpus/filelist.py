"""Check every line of a filelist once, and store the checked clips in a cache.

    training, validation = (checked_clips(path, hparams, new_run=True) for path in filelists)

`data_utils.TextMelDataset` reads its clips from the returned `ClipTable`.
"""

import csv
import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audio import frame_count, mel_fingerprint, read_checked, read_header
from corpus.cache import CHUNK, LABELS, ClipTable, cache_path, read_cache
from corpus.clips import Clip
from hparams import HParams
from tacotron2_voice.speakers import listed, speaker_name
from tacotron2_voice.text import can_be_spoken, clean
from tacotron2_voice.text.lexicon import apply_lexicon
from tacotron2_voice.text.notations import check_notations
from tacotron2_voice.text.phone_spans import read_around_phones
from tacotron2_voice.text.rules import version_of
from tacotron2_voice.text.unknown_symbols import in_words, unknown_symbols
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError, lines_rejected
from tacotron2_voice.utils.files import (
    Identity,
    map_in_threads,
    numbered_lines,
    open_file,
    read_bytes,
    read_json,
    write_bytes,
)

FIELDS = "|".join(("path", "text", "seconds", *LABELS))
# File that contains the settings of the cached mels in the same folder.
MEL_SETTINGS_FILE = "mel_settings.json"
# File in the run folder that lists the id and the number of frames of each training clip.
LENGTHS_FILE = "lengths.csv"
LONG_SECONDS = 15  # a warning lists clips that are longer than this number of seconds
LONG = 3  # a warning lists clips whose length exceeds the median length times this number
NO_FILELIST = (
    "no such filelist; make a filelist with scripts/prepare.py, or set the paths of your filelists "
    "with --hparams training_files=...,validation_files=..."
)
CHANGED_IN_CHECK = "changed during the check; start again when no other program is writing to it"
IF_MOVED = "if you moved the folder of the clips, set its new path: --hparams clips_folder=FOLDER"
# Maximum number of characters in the text of a clip (about five minutes of speech). Longer texts
# would take too long to clean.
MAX_CHARACTERS = 5000
FIX_UNKNOWN = (
    "correct the text, run prepare.py again, or leave the symbols out with --hparams "
    "drop_unknown=True"
)
OTHER_LANGUAGE = (
    "--hparams symbols=corpus,text_cleaners=[basic_cleaners] or, to train on phones, "
    "--hparams text_cleaners=[phones],language=CODE, such as language=de (docs/guides/languages.md)"
)
NOTHING_TO_SPEAK = "contains no letter after cleaning; write the words that are spoken"


def read_filelist(filelist: str | Path, hparams: HParams, *, new_run: bool = False) -> ClipTable:
    """Read and check a filelist.

    Each line of a filelist describes one clip in one of these formats:

        path|text|seconds|speaker
        path|text|seconds
        path|text                   (NVIDIA's format)

    Fields are split at every `|` and stripped of whitespace. The docstring of `path_of_clip`
    describes how relative paths are resolved. The lengths of clips are read from the headers of the
    audio files. If a line contains the length in seconds, this length may differ from the length of
    the audio by at most half a sample plus one microsecond. For a cached mel, the seconds must
    correspond to the number of frames.

    Args:
        new_run: if True, also check all samples or mel values, and reject texts without a letter.

    Raises:
        UserError: if any line is bad. The message lists every bad line with its number, the problem
            and a fix.
    """
    content = read_bytes(filelist, if_missing=NO_FILELIST)
    lines = numbered_lines(filelist, content=content)
    problems = []
    settings = mel_fingerprint(hparams)
    problem_of = lru_cache(lambda folder: settings_problem(folder / MEL_SETTINGS_FILE, settings))

    def clip_or_problem(numbered_line: tuple[int, str]) -> Clip | UserError:
        path = ""
        length = mel_length if hparams.load_mel_from_disk else audio_length
        try:
            listed, text, seconds, *names = split_filelist_line(numbered_line[1])
            path, is_relative = path_of_clip(listed, filelist, hparams.clips_folder)
            # Read the size and times of the file before opening the file, so that later changes to
            # the file are noticed.
            identity = Identity.of(path)
            is_mel = path.endswith(".npy")
            if not os.path.lexists(path) and is_mel == hparams.load_mel_from_disk:
                also = f", and no {listed} in the working directory" if is_relative else ""
                made = "run prepare.py --cache-mels, or " if is_mel else ""
                raise UserError(f"no such file{also}; {made}{IF_MOVED}")
            if hparams.load_mel_from_disk and (problem := problem_of(Path(path).parent)):
                fix = "use the same settings, or run prepare.py again with --cache-mels NEW_FOLDER"
                raise UserError(f"mels {problem}; {fix}")
            num_frames = length(path, seconds, hparams, new_run)
            labels: dict[str, Any] = dict(zip(LABELS, names, strict=True))
            return Clip(
                path,
                text,
                num_frames=num_frames,
                identity=identity,
                is_relative=is_relative,
                **labels,
            )
        except UserError as error:
            return UserError(f"{path}: {error}" if path else str(error))

    # Maps the resolved path of each clip to its path in the filelist.
    listed_as: dict[str, str] = {}

    def checked() -> Iterator[tuple[int, Clip]]:
        progress = progress_bar("Checking clips", len(lines), " clips", iterable=lines)
        results = map_in_threads(clip_or_problem, lines)
        for (number, line), clip in zip(progress, results, strict=True):
            try:
                if isinstance(clip, UserError):
                    raise clip
                listed = line.partition("|")[0].strip()
                if hparams.clips_folder and listed_as.setdefault(clip.path, listed) != listed:
                    raise UserError(
                        f"{clip.path}: the filelist uses two paths for this file, "
                        f"{listed_as[clip.path]!r} and {listed!r}; set clips_folder to "
                        "a folder that contains the folders of both clips"
                    )
                # Do not clean texts in threads, because the package inflect is not thread-safe.
                yield number, replace(clip, symbols=symbols_of(clip.text, hparams, new_run))
            except UserError as error:
                problems.append(f"{filelist}:{number}: {error}")

    # `checked` is an iterator, because a list of `Clip` objects would need many times as much
    # memory as the table.
    table = ClipTable.of(filelist, checked(), new_run, table_key(content, hparams))
    if problems:
        raise lines_rejected(filelist, problems, len(lines))
    if not len(table):
        raise UserError(f"{filelist}: contains no clips; expected lines of path|text|seconds")
    check_all_have_names(table)
    return table


def check_all_have_names(table: ClipTable) -> None:
    """Raise UserError if some clips have a speaker (or another label) but other clips have none."""
    for label, names in table.names.items():
        if "" in names:
            is_missing = table.numbers[label] == names.index("")
            first, count = table[int(is_missing.argmax())], int(is_missing.sum())
            others = listed([name for name in names if name])
            raise UserError(
                f"{first.where}: {count:,} of {len(table):,} lines have no {label}, but other "
                f"lines have {others}; write every line as {FIELDS}, or remove the {label} "
                "from all lines"
            )


def symbols_of(text: str, hparams: HParams, new_run: bool = True) -> tuple[int, ...]:
    """Return the symbol ids of a clip's text.

    Symbols that are not in the symbol table are dropped if the table is English or `drop_unknown`
    is True.

    Raises:
        UserError: if the text is too long, contains no letter, or contains symbols that are not in
            the table and are not dropped.
    """
    if problem := problem_of_length(text):
        raise UserError(problem)
    table = hparams.table
    text = apply_lexicon(text, hparams.pronunciations, hparams.text_cleaners)
    if new_run:
        check_notations(text, hparams.text_cleaners, table, hparams.language)
    text = read_around_phones(text, hparams.text_cleaners, table)
    cleaned = clean(text, hparams.text_cleaners, table, hparams.language)
    symbols = tuple(table.ids[symbol] for symbol in cleaned if symbol in table.ids)
    if len(symbols) < len(cleaned) and not (table.is_english or hparams.drop_unknown):
        unknown = in_words(
            unknown_symbols(cleaned, table), table, text, hparams.text_cleaners, hparams.language
        )
        raise UserError(
            f"text {text[:40]!r} contains symbols that are not in the table "
            f"(symbols={hparams.symbols}): {unknown}; {FIX_UNKNOWN}"
        )
    if not symbols or (new_run and not can_be_spoken(symbols, table)):
        if table.is_english and foreign_letters(text):
            raise UserError(f"text {text[:40]!r} contains no English letter; set {OTHER_LANGUAGE}")
        raise UserError(f"text {text!r} {NOTHING_TO_SPEAK}")
    return symbols


def problem_of_length(text: str) -> str:
    """Return a message if a text is too long, otherwise ""."""
    if len(text) <= MAX_CHARACTERS:
        return ""
    count = f"{len(text):,} characters, expected at most {MAX_CHARACTERS:,}"
    return f"text {text[:40]!r}... has {count}; split the clip"


def path_of_clip(listed: str, filelist: str | Path, clips_folder: str = "") -> tuple[str, bool]:
    """Return a listed clip's path, and whether the path is relative to the filelist's folder.

    A relative path is first looked up in the filelist's folder, and then in the working directory.
    With a `clips_folder`, leading folders are removed from the listed path until the remaining path
    exists in `clips_folder`.
    """
    if clips_folder:
        parts = [x for x in re.split(r"[/\\]", listed) if x not in ("", ".", "..")]
        ends = [os.path.join(clips_folder, *parts[i:]) for i in range(len(parts))]
        return next(filter(os.path.lexists, ends), ends[-1] if ends else clips_folder), False
    in_lists_folder = os.path.join(os.path.dirname(filelist), listed)
    if os.path.isabs(listed) or in_lists_folder == listed:
        return listed, False
    is_there = os.path.lexists(in_lists_folder) or not os.path.lexists(listed)
    return (in_lists_folder, True) if is_there else (listed, False)


def foreign_letters(text: str) -> set[str]:
    """Return the non-English letters in a text, converted to lower case."""
    composed = unicodedata.normalize("NFC", text.lower())
    return {x for x in composed if not x.isascii() and x.isalpha()}


class ListedClip(NamedTuple):
    """The fields of a filelist line. The last fields are the names of the LABELS."""

    path: str
    text: str
    seconds: float | None = None
    speaker: str = ""


def split_filelist_line(line: str) -> ListedClip:
    """Parse a line of a filelist. The field `seconds` of the line may be empty.

        split_filelist_line("a.wav|Yes.|1.5|anna")  # ListedClip("a.wav", "Yes.", 1.5, "anna")

    Raises:
        UserError: if the line is malformed.
    """
    path, *others = [part.strip() for part in line.split("|")]
    if not 1 <= len(others) <= 2 + len(LABELS):
        expected = f"{FIELDS}, path|text|seconds or path|text"
        raise UserError(f"{len(others) + 1} fields, expected {expected}: {line[:60]!r}")
    text, seconds, *labels = *others, *[""] * (2 + len(LABELS) - len(others))
    length = None
    names = map(speaker_name, labels, LABELS)
    if seconds or len(others) == 2:
        try:
            length = float(seconds)
        except ValueError:
            expected = f"a number, or an empty field in a line of the form {FIELDS}"
            raise UserError(f"seconds {seconds!r}, expected {expected}") from None
    return ListedClip(path, text, length, *names)


def audio_length(path: str, seconds: float | None, hparams: HParams, read_contents: bool) -> int:
    """Return the number of mel frames of an audio file.

    Raise UserError if `seconds`, the length in the filelist, differs from the length of the file.
    """
    if path.endswith(".npy"):
        raise UserError(
            "this is a cached mel, expected an audio file; to train on cached mels, set "
            "load_mel_from_disk=True"
        )
    whole = len(read_checked(path, hparams)) if read_contents else read_header(path, hparams)
    rate = hparams.sampling_rate
    if seconds is not None and not abs(seconds - whole / rate) <= 0.5 / rate + 1e-6:
        raise UserError(
            f"{seconds:.6f} seconds in the filelist, but the file lasts {whole / rate:.6f} seconds; "
            "write seconds with six decimals, or leave the third field empty (the speaker belongs "
            "in the fourth field)"
        )
    return frame_count(whole, hparams)


def mel_length(path: str, seconds: float | None, hparams: HParams, read_contents: bool) -> int:
    """Return the number of frames of a cached mel.

    Raise UserError if `seconds`, the length in the filelist, differs from the length of the file.
    """
    mel = read_mel(path, hparams, read_contents)
    num_frames = mel.shape[1]
    # The comparison of frame counts also rejects seconds that are NaN or infinite.
    samples = 0.5 + (seconds or 0) * hparams.sampling_rate
    if seconds is not None and num_frames != 1 + samples // hparams.hop_length:
        listed = f"{seconds:.6f} seconds in the filelist"
        fix = "run prepare.py --cache-mels again to regenerate the mels and the filelist"
        raise UserError(f"the mel has {num_frames} frames, which do not match {listed}; {fix}")
    if read_contents and not np.isfinite(mel).all():
        frame = int(np.isfinite(mel).all(axis=0).argmin())
        raise UserError(f"frame {frame} of the mel contains NaN or infinity; cache the mels again")
    return num_frames


def read_mel(path: str, hparams: HParams, read_contents: bool = True) -> np.ndarray:
    """Return a cached log-mel from a .npy file, float32 [n_mel_channels, frames].

    Args:
        read_contents: whether to read the values of the mel. If False, map the file into memory,
            and read only the shape of the mel.

    Raises:
        UserError: if the file does not contain a log-mel.
    """
    open_file(path, "no such file; run prepare.py --cache-mels").close()
    try:
        mel = np.load(path, mmap_mode=None if read_contents else "r", allow_pickle=False)
    except Exception as error:  # numpy raises many types of exceptions for damaged files
        raise UserError(
            f"incomplete or damaged .npy file ({error!s:.100}); cache the mels again"
        ) from None
    found = f"{mel.dtype} {mel.shape}" if isinstance(mel, np.ndarray) else "several arrays"
    if not re.fullmatch(rf"float32 \({hparams.n_mel_channels}, [1-9]\d*\)", found):
        expected = f"float32 ({hparams.n_mel_channels}, frames)"
        raise UserError(f"wrong type or shape, {found}, expected {expected}; cache the mels again")
    return mel


def settings_problem(path: Path, wanted: Mapping[str, Any]) -> str:
    """Describe the settings in a JSON file that differ from `wanted`; "" if all are equal."""
    try:
        saved = dict(read_json(path))
    except (ValueError, TypeError):
        return f"made with unknown settings (no readable {path.name})"
    differing = [
        f"{name}={saved.get(name)}, but this run uses {value}"
        for name, value in wanted.items()
        if saved.get(name) != value
    ]
    return "made with " + "; ".join(differing) if differing else ""


def warn_of_long_clips(
    seconds: Sequence[float] | np.ndarray, name_of: Callable[[int], str]
) -> str | None:
    """Return a warning about clips that are long or much longer than the median, otherwise None.

    Args:
        seconds: length of each clip, [clips].
        name_of: a function that returns the name of the clip with a given index.
    """
    lengths = np.asarray(seconds)
    median = float(np.median(lengths))
    is_long = (lengths > LONG * median) | (lengths > LONG_SECONDS)
    if not is_long.any():
        return None
    longest = int(lengths.argmax())
    return (
        f"warning: {is_long.sum():,} of {len(lengths):,} clips are longer than {LONG_SECONDS} s or "
        f"{LONG} times the median of {median:.1f} s. The longest clip, {name_of(longest)} "
        f"({lengths[longest]:.1f} s), determines how much memory training needs. Leave long clips "
        "out (prepare.py --max-seconds S), or split them, for example with subtitles "
        "(docs/guides/corpora.md)"
    )


def corpus_fingerprint(*tables: ClipTable) -> str:
    """Return a hash of the clips in all tables. The hash does not depend on the folders of the
    clips."""
    return hashlib.sha256("|".join(table.fingerprint for table in tables).encode()).hexdigest()


def write_lengths(path: Path, clips: ClipTable) -> None:
    """Write each clip's id and number of frames, for tools that have no access to the audio."""
    content = io.StringIO()
    rows = zip(clips.ids(), clips.num_frames, strict=True)
    csv.writer(content, lineterminator="\n").writerows([("id", "frames"), *rows])
    write_bytes(path, content.getvalue().encode())


# ---------------------------------------------------------------------------- the cache


def table_key(filelist: bytes, hparams: HParams) -> dict[str, Any]:
    """Return the settings and hashes that the cache of a filelist depends on.

    Args:
        filelist: the content of the filelist.
    """
    audio = mel_fingerprint(hparams)
    # For audio files, three settings are enough, because no other audio setting affects the number
    # of frames or the minimum length of a file.
    if not hparams.load_mel_from_disk:
        audio = {name: audio[name] for name in ("sampling_rate", "hop_length", "filter_length")}
    return {
        "filelist": hashlib.sha256(filelist).hexdigest(),
        "text_code": version_of("**/*.py"),  # hash of the modules that convert texts to symbols
        "clips_folder": hparams.clips_folder,
        "load_mel_from_disk": hparams.load_mel_from_disk,
        "audio": audio,
        "text_cleaners": list(hparams.text_cleaners),
        "language": [hparams.language, hparams.espeak_version],
        "symbols": list(hparams.symbol_table),
        "pronunciations": list(hparams.pronunciations),
        "drop_unknown": hparams.drop_unknown,
    }


def cached_table(filelist: str | Path, hparams: HParams) -> ClipTable | None:
    """Return the cached clips of a filelist, or None if the cache does not match the settings."""
    try:
        key = table_key(read_bytes(filelist), hparams)
        table = read_cache(cache_path(filelist), key)
    except (UserError, OSError):  # ignore this error, because `read_filelist` reports it later
        return None
    mels = table.paths() if hparams.load_mel_from_disk else ()
    files = {Path(os.path.dirname(path), MEL_SETTINGS_FILE) for path in mels}
    return None if any(settings_problem(f, mel_fingerprint(hparams)) for f in files) else table


def cache_table(table: ClipTable, hparams: HParams) -> ClipTable:
    """Write a table to the cache of its filelist, and return the table that the cache contains.

    If the cache cannot be written, print a warning and return `table`.

    Raises:
        UserError: if the filelist or a clip changed during the check.
    """
    check_list_is_unchanged(table, hparams)
    if len(changed := changed_clips(table)):
        clip, more = table[changed[0]], f", and {len(changed) - 1:,} more" * (len(changed) > 1)
        raise UserError(f"{clip.where}: {clip.path}{more}: {CHANGED_IN_CHECK}")
    try:
        table.write()
    except (OSError, UserError) as error:
        reason, path = str(error).splitlines()[0], cache_path(table.filelist)
        print(f"warning: {path}: cannot be written ({reason}); the next run checks all clips again")
        return table
    return cached_table(table.filelist, hparams) or table


def check_list_is_unchanged(table: ClipTable, hparams: HParams) -> None:
    """Raise UserError if the filelist has changed since the table was made."""
    if table_key(read_bytes(table.filelist), hparams) != table.made_from:
        raise UserError(f"{table.filelist}: {CHANGED_IN_CHECK}")


def changed_clips(table: ClipTable) -> np.ndarray:
    """Return the indices of the clips whose files are missing or have changed since the check."""

    def changed_in(start: int) -> list[int]:
        identities = map(Identity.of, table.paths(start, start + CHUNK))
        checked = table.identities(start, start + CHUNK)
        pairs = enumerate(zip(identities, checked, strict=True), start)
        return [index for index, (now, before) in pairs if now != before]

    starts = range(0, len(table), CHUNK)
    unit, title = f" x {CHUNK:,} clips", "Looking for changed clips"
    progress = progress_bar(title, len(starts), unit, iterable=starts)
    chunks = zip(progress, map_in_threads(changed_in, starts), strict=True)
    return np.array([index for _, chunk in chunks for index in chunk], np.int64)


def checked_clips(
    filelist: str, hparams: HParams, new_run: bool, just_checked: bool = False
) -> ClipTable:
    """Return the clips of a filelist, from its cache if the cache is up to date.

    The cache is up to date if no file has changed since the clips were checked. If the cache is
    missing or outdated, check every clip and write the cache again.

    Args:
        new_run: if True, also check all samples or mel values, and reject texts without a letter.
        just_checked: whether another process has just checked the clips, so that this process does
            not need to look for changed files.

    Raises:
        UserError: if any line of the filelist is bad, or if the filelist or a clip changes during
            the check.
    """
    table = cached_table(filelist, hparams)
    if table and (table.complete or not new_run):
        changed = np.array([]) if just_checked else changed_clips(table)
        if not len(changed):
            check_list_is_unchanged(table, hparams)
            return table
        new_run = table.complete
        print(
            f"note: {filelist}: {len(changed):,} of {len(table):,} clips have changed since the last check"
        )
    if new_run and Path(filelist).is_file():
        cache = Path(cache_path(filelist))
        state = "out of date" if cache.exists() else "missing"
        print(f"note: {filelist}: the cache {cache.name} is {state}, so all clips are read now")
    return cache_table(read_filelist(filelist, hparams, new_run=new_run), hparams)
