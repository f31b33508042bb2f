"""Find the audio file and the text of every recording in a corpus.

    clips, problems = read_layout(Path("data/LJSpeech-1.1"))
    clips, problems = read_layout(Path("data/mine"), Table(Path("data/mine/validated.tsv")))

Supported layouts:

    a table        metadata.csv or metadata.jsonl in the corpus, or any CSV, TSV or JSON Lines file (`Table`)
    texts          NAME.txt, NAME.lab or NAME.normalized.txt next to each NAME.wav, at any depth,
                   or in a separate folder (`TextSource`)
    segments       NAME.srt, NAME.vtt, NAME.TextGrid, Audacity labels in NAME.txt, or a table of
                   Whisper in NAME.tsv, next to NAME.wav
    Kaldi          a folder that contains the files wav.scp and text
    LibriSpeech    folders that contain the recordings and the texts of a chapter (*.trans.txt)
    folders        one folder per speaker or book; each contains a table or texts (`SpeakerSource`)
"""

import functools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corpus.audio_search import AudioFinder, audio_files, slashes, with_audio
from corpus.clips import Clip
from corpus.manifests import is_kaldi, is_lhotse, read_kaldi, read_lhotse, read_librispeech
from corpus.recording_names import AUDIO_SUFFIXES
from corpus.segments import check_not_words
from corpus.speaker_names import (
    MAX_DISTINCT_SHARE,
    MIN_LINES,
    NO_SPEAKERS,
    SpeakerSource,
    check_lookalikes,
    checked_name,
    with_names,
)
from corpus.spoken_texts import check_are_spoken
from corpus.table_rows import Table
from corpus.tables import METADATA, Entry, read_table
from corpus.text_files import decode
from corpus.text_search import (
    NEXT_TO_AUDIO,
    TextSource,
    advice_on_tables,
    has_audio,
    print_unused_texts,
    read_texts_of_audio,
)
from tacotron2_voice.utils.errors import UserError, count_of, grouped
from tacotron2_voice.utils.files import read_bytes

LJSPEECH = "LJSpeech-1.1"  # the folder name in the archive of LJSpeech
METADATA_NAMES = (METADATA, "metadata.jsonl")  # in order of preference


def read_layout(
    corpus: Path,
    table: Table | None = None,
    speakers: SpeakerSource = NO_SPEAKERS,
    texts: TextSource = NEXT_TO_AUDIO,
) -> tuple[list[Clip], list[str]]:
    """Return the recordings of a corpus in order, and one message per bad line.

    Args:
        table: the table of the recordings. Default: metadata.csv or metadata.jsonl, or the texts
            next to the audio files.
        texts: where the texts are if there is no table.

    Raises:
        UserError: if the corpus folder or the table does not exist, if there are no texts, or if
            the corpus does not have the column or the folders that `speakers` specifies.
    """
    check_folders(corpus, texts)
    if speakers.folders and table:
        clips, problems = _read_table_of_folders(corpus, table)
    elif speakers.folders:
        clips, problems = _read_folders(corpus, texts)
    else:
        clips, problems = _read_one_layout(corpus, table, speakers, texts)
    check_are_spoken(clips)
    if speakers.name:
        clips = [replace(clip, speaker=speakers.name) for clip in clips]
    return clips, problems


def check_folders(corpus: Path, texts: TextSource) -> None:
    """Raise UserError if the corpus or the folder of the texts is not a folder."""
    for path, option in ((corpus, ""), (texts.folder, "--text-folder ")):
        if path is None or path.is_dir():
            continue
        found = "not a folder" if path.exists() else "no such folder"
        expected = "texts" if option else "recordings"
        advice = ""
        if path.name == LJSPEECH and not path.exists():
            advice = ". To download LJSpeech-1.1 (2.7 GB), run scripts/prepare.py with --download"
        raise UserError(f"{option}{path}: {found} (expected the folder of the {expected}){advice}")


def _read_one_layout(
    corpus: Path, table: Table | None, speakers: SpeakerSource, texts: TextSource
) -> tuple[list[Clip], list[str]]:
    """Read a corpus without speaker folders in the first layout that fits."""
    if table is None and os.path.lexists(default_table(corpus)):
        table = Table(default_table(corpus))
    if table:
        check_options(texts, f"the table {table.path}")
        return _read_table(corpus, table, speakers)
    if is_kaldi(corpus):
        return _with_audio_and_names(read_kaldi(corpus), corpus, corpus / "text", speakers)
    if chapters := sorted(x for x in corpus.rglob("*.trans.txt") if not has_audio(x)):
        check_options(texts, f"files such as {chapters[0]}")
        entries = [entry for path in chapters for entry in read_librispeech(path, corpus)]
        return _with_audio_and_names(entries, corpus, corpus / "text", speakers)
    if speakers.column:
        raise UserError(
            f"--speaker-column {speakers.column}: no {METADATA} in {corpus}{advice_on_tables(corpus)}"
        )
    if nested := _tables_in_folders(corpus, "**/*"):
        check_options(texts, f"the table {nested[0]}")
        return _read_nested_tables(corpus, nested, speakers)
    return read_texts_of_audio(corpus, texts)


def check_options(texts: TextSource, source: str) -> None:
    """Raise UserError if the user selected texts next to the audio files, but the texts are read
    from `source`."""
    if texts.options:
        raise UserError(
            f"{texts.options}: cannot be used, because the texts are read from {source}"
        )


def _read_nested_tables(
    corpus: Path, tables: Sequence[Path], speakers: SpeakerSource
) -> tuple[list[Clip], list[str]]:
    """Read the tables in the folders of a corpus, for example one table per book."""
    if len(tables) == 1:
        print(f"note: the texts are read from the table {tables[0]}")
    elif not speakers.name:
        raise UserError(
            f"{corpus}: contains no {METADATA}, but its folders contain {tables[0]} and "
            f"{len(tables) - 1:,} more; add --speaker-folders if each folder contains one "
            "speaker, or --speaker NAME if all folders contain the same speaker"
        )
    read = each_or_all_errors(lambda path: _read_table(path.parent, Table(path), speakers), tables)
    return [clip for clips, _ in read for clip in clips], [x for _, bad in read for x in bad]


def default_table(corpus: Path) -> Path:
    """Return the path of metadata.csv or, if only metadata.jsonl exists, of metadata.jsonl."""
    paths = [corpus / name for name in METADATA_NAMES]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def _tables_in_folders(corpus: Path, pattern: str) -> list[Path]:
    """Return the default tables of all folders that match a pattern, sorted by path."""
    found = {path.parent for name in METADATA_NAMES for path in corpus.glob(f"{pattern}/{name}")}
    return sorted(default_table(folder) for folder in found)


def _read_folders(corpus: Path, texts: TextSource) -> tuple[list[Clip], list[str]]:
    """Read a corpus with one folder per speaker, and report audio files outside these folders."""
    if (path := default_table(corpus)).exists():
        raise UserError(
            f"{path}: not used with --speaker-folders (expected one {path.name} in each speaker's "
            "folder, or a text file next to each audio file). If this table lists the recordings in "
            f"all folders, add --csv {path}"
        )
    files = audio_files(corpus)
    loose = [path for path in files if path.parent == corpus]
    names = [path.relative_to(corpus).parts[0] for path in files if path.parent != corpus]
    if not names:
        raise UserError(
            f"{corpus}: contains no folder with audio files (expected one folder per speaker)"
        )
    problems = [
        f"{path}: not in a speaker's folder; move it into its speaker's folder" for path in loose
    ]
    for folder in sorted(path for path in corpus.iterdir() if path.is_dir()):
        if folder.name not in names and any(folder.rglob("*.txt")):
            problems.append(f"{folder}: contains texts, but no audio files")
    clips = list[Clip]()
    speakers = speakers_of_folders(corpus, names)
    if len(speakers) == 1:
        print(
            f"note: all recordings are in the folder {names[0]} of {corpus}, so there is only one speaker"
        )
    for name in speakers:
        if nested := _tables_in_folders(corpus / name, "*/**"):
            raise UserError(
                f"{nested[0]}: this file is in a subfolder of a speaker's folder. Expected one "
                f"{METADATA} for each speaker, directly in the speaker's folder ({corpus / name})"
            )
    texts = replace(texts, is_shared=texts.folder is not None)
    layouts = each_or_all_errors(
        lambda name: read_layout(corpus / name, None, SpeakerSource(name=speakers[name]), texts),
        speakers,
    )
    for speaker, (own, bad) in zip(speakers.values(), layouts, strict=True):
        clips += [replace(clip, speaker=speaker) for clip in own]
        problems += bad
    if texts.folder:
        print_unused_texts({Path(clip.where.partition(" of ")[0]) for clip in clips}, texts.folder)
    return clips, problems


def _read_table_of_folders(corpus: Path, table: Table) -> tuple[list[Clip], list[str]]:
    """Read a table in which each audio file is in a folder named after its speaker."""
    clips, problems = _read_table(corpus, table, SpeakerSource(folders=True))
    inside = {}
    for clip in clips:
        folder, *below = os.path.relpath(clip.path, corpus).split(os.sep)
        if below and folder != os.pardir:
            inside[clip.where] = folder
        else:
            problems.append(
                f"{clip.where}: {clip.path} is not in a folder of {corpus}; move it into a folder"
            )
    speakers = speakers_of_folders(corpus, sorted({*inside.values()}))
    named = [clip for clip in clips if clip.where in inside]
    return [replace(clip, speaker=speakers[inside[clip.where]]) for clip in named], problems


def speakers_of_folders(corpus: Path, names: Sequence[str]) -> dict[str, str]:
    """Return {folder name: speaker name}, in the order of `names`.

    Raise UserError if a name is not a valid speaker name.
    """
    names = list(dict.fromkeys(names))
    checked = each_or_all_errors(lambda name: checked_name(name, f"{corpus}: folder"), names)
    check_lookalikes([(x, str(corpus / name)) for name, x in zip(names, checked, strict=True)])
    return dict(zip(names, checked, strict=True))


def each_or_all_errors(function: Callable[[Any], Any], names: Iterable[Any]) -> list[Any]:
    """Return the results of `function` for all names. If the function raises UserError for any
    names, raise one UserError with all error messages."""
    results = []
    errors = []
    for name in names:
        try:
            results.append(function(name))
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("\n".join(grouped(errors)))
    return results


def _read_table(
    corpus: Path, table: Table, speakers: SpeakerSource
) -> tuple[list[Clip], list[str]]:
    """Return the recordings in a table, and one message per bad line.

    Raise UserError if the table cannot be used, or if its speaker names are invalid.
    """
    problems = list[str]()
    if is_lhotse(table.path):
        entries = read_lhotse(table.path)
    else:

        @functools.cache
        def finder() -> AudioFinder:
            return AudioFinder.for_entries([], corpus, table.path.parent)

        def is_audio(name: str) -> bool:
            found = finder().exact(name) or finder().similar(name)
            return bool(found) and found[0].suffix.lower() in AUDIO_SUFFIXES

        entries, problems = read_table(table, speakers.column, is_audio)
        entries = with_texts_of_files(entries, corpus, table)
    clips, more = _with_audio_and_names(entries, corpus, table.path, speakers)
    return clips, problems + more


def with_texts_of_files(entries: Sequence[Entry], corpus: Path, table: Table) -> list[Entry]:
    """Return the entries of a table. If all texts are names of text files, replace the names with the
    contents of the files.

    Raise UserError if one of the text files does not exist.
    """
    if not entries or not all(re.fullmatch(r"\S+\.(txt|lab)", x.text, re.I) for x in entries):
        return [*entries]
    paths = []
    for entry in entries:
        found = [folder / slashes(entry.text) for folder in (table.path.parent, corpus)]
        if not any(path.is_file() for path in found):
            raise UserError(
                f"{entry.where}: the column with the texts contains the file name {entry.text[:60]!r}, "
                f"but this file does not exist (expected {str(found[0])[:300]}). If each text file is next "
                f"to its audio file, rename {table.path.name} so that the program does not use it"
            )
        paths.append(next(path for path in found if path.is_file()))
    files = count_of(len(paths), "text file")
    print(f"note: the texts are read from {files} that {table.path} lists, such as {paths[0]}")
    texts = decode({path: read_bytes(path) for path in paths}, table.encoding)
    return [
        entry._replace(text=" ".join(texts[path].split()))
        for entry, path in zip(entries, paths, strict=True)
    ]


def _with_audio_and_names(
    entries: Sequence[Entry], corpus: Path, path: Path, speakers: SpeakerSource
) -> tuple[list[Clip], list[str]]:
    """Find the audio files of all entries. With a speaker column, also check the speaker names.

    Args:
        path: the file that contains the entries.
    """
    check_not_words(path, [entry for entry in entries if entry.segment])
    clips, problems = with_audio(entries, corpus, path.parent)
    if not speakers.column:
        if not speakers.is_known and (note := note_of_speakers(entries, path)):
            print(note)
        return [replace(clip, speaker="") for clip in clips], problems
    clips, unnamed = with_names(clips, f"column {speakers.column}", path)
    return clips, problems + unnamed


def note_of_speakers(entries: Sequence[Entry], path: Path) -> str | None:
    """Return a note if the entries have several speakers, otherwise None."""
    names = list(dict.fromkeys(entry.speaker for entry in entries if entry.speaker))
    if len(names) < 2:
        return None
    column = next(entry.speaker_title for entry in entries if entry.speaker)
    found = f"note: {path}: the column {column!r} contains {len(names):,} names, such as "
    found += f"{names[0][:40]!r} and {names[1][:40]!r}. All clips are assigned to one speaker"
    if len(entries) >= MIN_LINES and len(names) > MAX_DISTINCT_SHARE * len(entries):
        return found
    return f"{found}. To keep the speakers, add --speaker-column {shlex.quote(column)}"
