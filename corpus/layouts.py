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
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audio import open_audio
from corpus.clips import Clip
from corpus.recording_names import (
    AUDIO_SUFFIXES,
    READABLE,
    RECORDING_ID,
    name_at_end,
    name_at_start,
)
from corpus.segments import (
    KALDI_FILES,
    SEGMENT_SUFFIXES,
    WHISPER_SUFFIX,
    are_labels,
    check_is_plain,
    check_not_words,
    is_kaldi,
    is_lhotse,
    is_textgrid,
    is_whisper_table,
    read_kaldi,
    read_lhotse,
    read_librispeech,
    read_segments,
)
from corpus.speaker_names import (
    MAX_DISTINCT_SHARE,
    MIN_LINES,
    NO_SPEAKERS,
    SpeakerSource,
    check_lookalikes,
    checked_name,
    with_names,
)
from corpus.spoken_texts import MAX_SHARE, MIN_TEXTS, check_are_spoken
from corpus.tables import Entry, Table, read_table
from corpus.text_files import decode, on_one_line, print_divided
from tacotron2_voice.utils.errors import UserError, count_of, grouped
from tacotron2_voice.utils.files import naming, read_bytes

METADATA = "metadata.csv"
LJSPEECH = "LJSpeech-1.1"  # the folder name in the archive of LJSpeech
METADATA_NAMES = (METADATA, "metadata.jsonl")  # in order of preference
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
# Suffixes of text files, in order of preference. The corpus LibriTTS uses .normalized.txt.
TEXT_SUFFIXES = (".normalized.txt", ".trans.txt", ".txt", ".lab")
# Matches the language code and the extension of a subtitle file's name, such as .en.vtt.
LANGUAGE = re.compile(r"\.[a-z]{2,3}(-\w{2,8})*\.(srt|vtt)$", re.IGNORECASE)
# Maximum number of characters of the speaker's name in a clip id, because file names are limited to
# 255 bytes.
MAX_PREFIX = 40
# A duration in a table may differ from the length of the file by DURATION_SECONDS, or by the
# fraction DURATION_SHARE of the length.
DURATION_SECONDS, DURATION_SHARE = 0.5, 0.1
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
TRANSCRIPTS = "--transcripts EXTENSION"
# The listed folders are ignored only if at least this fraction of the listed file names exists in
# the corpus.
MIN_FOUND = 0.9
# To find tables, only the first NUM_LINES lines in the first MAX_BEGINNING bytes are read.
NUM_LINES, MAX_BEGINNING = 20, 20_000
SHOWN = 5  # maximum number of files to list in a note
# Endings of the file names in VCTK 0.92, which contains two recordings of each text, made with two
# microphones.
MICROPHONE, OTHER_MICROPHONE = "_mic1", "_mic2"


@dataclass(frozen=True)
class TextSource:
    """Where to find the texts of a corpus without a table (default: next to the audio files).

    Args:
        folder: a folder of text files, at any depth, with the same names as the audio files.
        suffix: extension of the transcripts to read; "": read all transcripts.
        tier: the tier to read from TextGrids with several tiers.
        encoding: encoding of the texts; "": detect the encoding (UTF-8 is tried first).
        repeated_words: whether all texts of the corpus may begin or end with the same word.
        is_shared: whether `folder` also contains the texts of other recordings, such as the
            recordings of other speakers.
    """

    folder: Path | None = None
    suffix: str = ""
    tier: str = ""
    encoding: str = ""
    repeated_words: bool = False
    is_shared: bool = False

    @property
    def options(self) -> str:
        """Return the selected options that cannot be used with a table, joined with "and"."""
        named = {
            "--text-folder": self.folder,
            "--transcripts": self.suffix,
            "--tier": self.tier,
        }
        return " and ".join(option for option, value in named.items() if value)


NEXT_TO_AUDIO = TextSource()


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
    if not corpus.is_dir():
        found = "not a folder" if corpus.exists() else "no such folder"
        advice = ""
        if corpus.name == LJSPEECH and not corpus.exists():
            advice = ". To download LJSpeech-1.1 (2.7 GB), run scripts/prepare.py with --download"
        raise UserError(f"{corpus}: {found} (expected the folder of the recordings){advice}")
    if speakers.folders:
        if table is None:
            return _read_folders(corpus, texts)
        clips, problems = _read_table_of_folders(corpus, table)
        check_are_spoken(clips)
        return clips, problems
    if texts.folder and not texts.folder.is_dir():
        found = "not a folder" if texts.folder.exists() else "no such folder"
        raise UserError(f"--text-folder {texts.folder}: {found}")
    if table is None and os.path.lexists(default_table(corpus)):
        table = Table(default_table(corpus))
    if table and texts.options:
        raise UserError(
            f"{texts.options}: cannot be used, because the texts are read from the table "
            f"{table.path}"
        )
    if table:
        clips, problems = _read_table(corpus, table, speakers)
    elif is_kaldi(corpus):
        entries = read_kaldi(corpus)
        clips, problems = _with_audio_and_names(entries, corpus, corpus / "text", speakers)
    elif chapters := sorted(x for x in corpus.rglob("*.trans.txt") if not _has_audio(x)):
        if texts.options:
            raise UserError(
                f"{texts.options}: cannot be used, because the texts are read from files such as "
                f"{chapters[0]}"
            )
        entries = [entry for path in chapters for entry in read_librispeech(path, corpus)]
        clips, problems = _with_audio_and_names(entries, corpus, corpus / "text", speakers)
    elif speakers.column:
        raise UserError(
            f"--speaker-column {speakers.column}: no {METADATA} in {corpus}{advice_on_tables(corpus)}"
        )
    elif nested := _tables_in_folders(corpus, "**/*"):
        if texts.options:
            raise UserError(
                f"{texts.options}: cannot be used, because the corpus contains the table "
                f"{nested[0]}"
            )
        if len(nested) == 1:
            print(f"note: the texts are read from the table {nested[0]}")
        elif not speakers.name:
            raise UserError(
                f"{corpus}: contains no {METADATA}, but its folders contain {nested[0]} and "
                f"{len(nested) - 1:,} more; add --speaker-folders if each folder contains one "
                "speaker, or --speaker NAME if all folders contain the same speaker"
            )
        tables = each_or_all_errors(
            lambda path: _read_table(path.parent, Table(path), speakers), nested
        )
        clips = [clip for found, _ in tables for clip in found]
        problems = [problem for _, found in tables for problem in found]
    else:
        clips, problems = _read_texts_of_audio(corpus, texts)
    check_are_spoken(clips)
    if speakers.name:
        clips = [replace(clip, speaker=speakers.name) for clip in clips]
    return clips, problems


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


# ---------------------------------------------------------------------------- texts next to audio


def _read_texts_of_audio(corpus: Path, texts: TextSource) -> tuple[list[Clip], list[str]]:
    """Read the audio files that have a text, and report audio files without a text."""
    audio = readable_first(audio_files(corpus))
    by_name = {path.with_suffix(""): path for path in reversed(audio)}
    print_unused_formats(sorted({*audio} - {*by_name.values()}), corpus)
    text_files, problems = _match_text_files(by_name, corpus, texts)
    unused = sorted({*corpus_texts(texts.folder or corpus)} - {*text_files.values()})
    if unused and not texts.is_shared:
        example = os.path.relpath(unused[0], texts.folder or corpus)
        print(
            f"note: no audio file belongs to {count_of(len(unused), 'text file')}, such as {example}"
        )
    clips, problems_in_texts = _read_text_files(text_files, by_name, texts)
    return clips, problems + problems_in_texts


def print_unused_formats(others: Sequence[Path], corpus: Path) -> None:
    """Print a note about audio files that differ from the used files only in their format."""
    if others:
        print(
            f"note: ignored {count_of(len(others), 'audio file')}, because another audio file has the "
            f"same name, such as {os.path.relpath(others[0], corpus)}"
        )


def _match_text_files(
    by_name: dict[Path, Path], corpus: Path, texts: TextSource
) -> tuple[dict[Path, Path], list[str]]:
    """Return the text file of each audio file, and a message for each audio file that has no text
    file or several text files.

    Args:
        by_name: the audio files by their paths without a suffix. The returned text files have the
            same keys.
    """
    folder = texts.folder
    subtitles = subtitles_in_languages(folder or corpus)
    alike = texts_with_longer_names(folder or corpus)
    text_files = dict[Path, Path]()
    ignored = list[Path]()
    missing = dict[Path, str]()
    similar = dict[Path, Path | None]()
    problems = list[str]()
    has_first = folder is not None and any(x.name.endswith(MICROPHONE) for x in by_name)
    for name in sorted(by_name):
        if has_first and name.name.endswith(OTHER_MICROPHONE):
            continue
        places = _text_places(name, corpus, folder)
        found = [
            path
            for place in places
            for path in texts_next_to(place, subtitles.get(place, []), texts.suffix)
        ]
        if not found:
            # Some programs append their suffix to the whole file name, as in a.mp3.srt.
            suffix = by_name[name].suffix
            whole = [place.with_name(f"{place.name}{suffix}") for place in places]
            found = [path for place in whole for path in texts_next_to(place, (), texts.suffix)]
        if len(found) != 1 and texts.suffix.lower() in ("", "tsv", WHISPER_SUFFIX):
            tables = [place.with_name(f"{place.name}{WHISPER_SUFFIX}") for place in places]
            found += [path for path in tables if is_whisper_table(path)]
        if len(found) == 1:
            text_files[name] = found[0]
            plain = [place.with_name(f"{place.name}{x}") for place in places for x in TEXT_SUFFIXES]
            ignored += [path for path in plain if path.is_file() and path != found[0]][:1]
        elif found:
            listed = " and ".join(str(path) for path in found)
            is_choice = len({path.name for path in found}) > 1
            fix = f"choose with {TRANSCRIPTS}" if is_choice else "keep only one transcript"
            problems.append(f"{by_name[name]}: several transcripts, {listed}; {fix}")
        else:
            missing[name] = places[0].name
            similar[name] = next((alike[place] for place in places if place in alike), None)
    usual = Counter(path.suffix for path in text_files.values() if path.suffix != ".lab")
    suffix = (
        f".{texts.suffix.lstrip('.')}"
        if texts.suffix
        else max(usual, key=usual.__getitem__, default=".txt")
    )
    problems += [
        _no_text_file(by_name[name], f"{place}{suffix}", texts, similar[name])
        for name, place in missing.items()
    ]
    if not text_files and texts.suffix:
        raise UserError(
            f"--transcripts {texts.suffix}: no audio file has a text file with this extension "
            "(expected an extension such as srt)"
        )
    if not text_files and not folder and not any("several transcripts" in x for x in problems):
        raise _error_of_no_texts(corpus, by_name, alike)
    if ignored and not texts.suffix:
        print(
            f"note: {count_of(len(ignored), 'text file')} ignored, because the audio files have two "
            f"text files each, such as {ignored[0]}. To use these text files, add {TRANSCRIPTS}"
        )
    return text_files, problems


def _no_text_file(audio: Path, name: str, texts: TextSource, similar: Path | None) -> str:
    where = f"in {texts.folder}" if texts.folder else "next to it"
    message = f"{audio}: no text file, expected {name} {where}"
    if similar:
        message += f"; if {similar} belongs to this file, give both files the same name"
    return message


def _read_text_files(
    text_files: dict[Path, Path], by_name: dict[Path, Path], texts: TextSource
) -> tuple[list[Clip], list[str]]:
    """Return the clips of the text files, and a message for each text that contains the name of its
    audio file. If there are several texts and all of them contain this name, the names are removed
    from the texts instead."""
    plain_texts = {path for path in text_files.values() if not _has_segments(path)}
    decoded = decode({path: read_bytes(path) for path in sorted(plain_texts)}, texts.encoding)
    labels = {path for path, text in decoded.items() if are_labels(text) or is_textgrid(text)}
    grids = {path for path in text_files.values() if path.suffix.lower() == ".textgrid"}
    if texts.tier and not grids and not any(is_textgrid(text) for text in decoded.values()):
        raise UserError(f"--tier {texts.tier}: no audio file has a TextGrid. Remove this option")
    spoken = {path: text for path, text in decoded.items() if path not in labels}
    for path, text in spoken.items():
        check_is_plain(path, text)
    without_names = _texts_without_names(text_files, spoken)
    has_names = [x is not None for x in without_names.values()]
    leave_out_names = len(has_names) > 1 and all(has_names)
    _check_no_columns(text_files, spoken, without_names if leave_out_names else {})
    if leave_out_names:
        print(
            "note: each text contains the name of its audio file. These names are removed from the "
            "texts"
        )
    clips = []
    problems = []
    divided = list[str]()
    for name, path in text_files.items():
        if path not in spoken:
            entries = read_segments(path, str(by_name[name]), texts.tier, texts.encoding)
            clips += [
                Clip(entry.name, entry.text, where=entry.where, segment=entry.segment)
                for entry in entries
            ]
            continue
        text_without_name = without_names.get(name)
        if text_without_name is not None and not leave_out_names:
            problems.append(
                f"{path}: the text {' '.join(spoken[path].split())[:60]!r} contains the name of its "
                "audio file. Remove the name"
            )
            continue
        # Also put the name of the audio file into `where`, because several audio files can share a
        # text file in a text folder.
        where = f"{path} of {by_name[name]}" if texts.folder else str(path)
        written = spoken[path] if text_without_name is None else text_without_name
        text = on_one_line(written, divided)
        clips.append(Clip(str(by_name[name]), text, where=where))
    if divided:
        print_divided(Path(os.path.commonpath(text_files.values())), divided)
    return clips, problems


def _error_of_no_texts(
    corpus: Path, by_name: dict[Path, Path], alike: dict[Path, Path]
) -> UserError:
    """Return an error, with advice, for a corpus without any text files.

    Args:
        by_name: {path without extension: audio file}.
        alike: {path without extension: text with a longer name}.
    """
    kaldi = [corpus / name for name in KALDI_FILES]
    if found := [path for path in kaldi if path.is_file()]:
        missing = next(path for path in kaldi if path not in found)
        return UserError(
            f"{missing}: no such file. In Kaldi's format, this file is next to {found[0]}"
        )
    if not by_name:
        archive = next((x for x in visible_files(corpus) if x.suffix.lower() in ARCHIVES), None)
        hidden = next((x for x in corpus.rglob(".*") if x.suffix.lower() in AUDIO_SUFFIXES), None)
        fix = f". {hidden} is not used, because its name begins with a period" if hidden else ""
        return UserError(
            f"{corpus}: contains no audio files (expected recordings, such as .wav or .flac, and their "
            f"texts){f'. Unpack {archive}' if archive else fix}"
        )
    similar = next((alike[name] for name in by_name if name in alike), None)
    tables = {path.with_suffix("") for path in tables_in(corpus)}
    unreadable = None if tables - {*by_name} else unreadable_transcript(corpus, by_name)
    fix = advice_on_tables(corpus)
    if similar:
        fix = f". If {similar} contains the text of an audio file, give both the same name"
    elif unreadable:
        fix = (
            f". {unreadable} has the same name as an audio file, but the program cannot read this "
            "format. Save its text as .txt, or its text and times as .srt (Whisper: --output_format srt)"
        )
    elif other := corpus_texts(corpus):
        stems = {
            name.name.removesuffix(MICROPHONE).removesuffix(OTHER_MICROPHONE) for name in by_name
        }
        listed = f"{other[0]}" + (f" and {len(other) - 1:,} more" if len(other) > 1 else "")
        if folders := {path.parent for path in other if path.stem in stems}:
            option = f"--text-folder {shlex.quote(os.path.commonpath(folders))}"
            fix = f". The texts are in another folder ({listed}). Add {option}"
            audio_folders = {name.parent for name in by_name}
            if len(folders) > 1 and len(audio_folders) > 1:
                parent = shlex.quote(os.path.commonpath(audio_folders))
                fix += (
                    f". If each folder in {parent} contains one speaker, pass {parent} instead of "
                    f"{shlex.quote(str(corpus))}, and add {option} --speaker-folders"
                )
        else:
            fix = f". No audio file has the same name as {listed}{fix}"
    count = count_of(len(by_name), "audio file")
    return UserError(
        f"{corpus}: {count} but no text files. Expected {METADATA}, or a "
        "text file next to each audio file (a.wav, a.txt), or --text-folder with the folder of "
        f"the text files{fix}"
    )


def unreadable_transcript(corpus: Path, names: Container[Path]) -> Path | None:
    """Return a file that has the name of an audio file and may contain its transcript, otherwise
    None."""
    files = (path for path in visible_files(corpus) if path.suffix.lower() not in AUDIO_SUFFIXES)
    return next((path for path in files if path.with_suffix("") in names), None)


def _check_no_columns(
    contents: dict[Path, Path], texts: dict[Path, str], without_names: dict[Path, str | None]
) -> None:
    """Raise UserError if most texts contain a tab, not counting tabs next to removed recording
    names."""
    spoken = {
        path: without_names.get(name) or texts[path]
        for name, path in contents.items()
        if path in texts
    }
    with_tab = [path for path, text in spoken.items() if "\t" in text.strip()]
    if len(with_tab) >= max(MIN_TEXTS, MAX_SHARE * len(spoken)):
        raise UserError(
            f"{with_tab[0]}: {len(with_tab):,} of {len(spoken):,} text files contain columns, such as "
            f"{spoken[with_tab[0]].strip()[:60]!r} (expected only the words that are spoken)"
        )


def _text_places(name: Path, corpus: Path, folder: Path | None) -> list[Path]:
    """Return the paths, without extension, at which the text of an audio file may be.

    Without a text folder, the text is next to the audio file. With a text folder, the text is in
    this text folder or in one of its subfolders. The subfolder has the name of the audio file's
    folder, such as the name of a speaker. Or the path of the subfolder relative to the text folder
    equals the path of the audio file's folder relative to the corpus.
    """
    if folder is None:
        return [name]
    parents = (
        Path(),
        Path(name.parent.name),
        name.parent.relative_to(corpus),
        name.parent.relative_to(corpus.parent),  # the corpus itself may be the folder of a speaker
    )
    base = name.name.removesuffix(MICROPHONE).removesuffix(OTHER_MICROPHONE)
    return [folder / parent / base for parent in dict.fromkeys(parents)]


def _texts_without_names(
    contents: dict[Path, Path], texts: dict[Path, str]
) -> dict[Path, str | None]:
    """Remove the name of the recording from each text that contains it.

    For example, each text in Kaldi's format begins with the name of its recording. If the name of a
    recording is an ordinary word, a text may also begin with this name by chance.

    Returns:
        {path of the recording without extension: text without the name}. The value is None for a
        text that does not contain the name. The dictionary contains neither empty texts nor texts
        that may contain the name by chance.
    """
    stripped = {name: texts.get(path, "").strip() for name, path in contents.items()}
    stripped = {name: text for name, text in stripped.items() if text}
    starts = {name: name_at_start(name, text) for name, text in stripped.items()}
    ends = {name: name_at_end(name, text) for name, text in stripped.items()}
    if len(stripped) >= MIN_TEXTS and all(re.search(r"\d", name.name) for name in stripped):
        # Here every recording has a number in its name. If all texts begin with the name of their
        # recording, or if all texts end with the name, the names are not spoken.
        after = {name: stripped[name][match.end() :] for name, match in starts.items() if match}
        before = {name: stripped[name][: match.start()] for name, match in ends.items() if match}
        for rest in (after, before):
            if len(rest) == len(stripped) and any(rest.values()):
                return dict(rest)
    found: dict[Path, str | None] = {}
    for name, text in stripped.items():
        match = starts[name]
        ending = ends[name]
        is_id = RECORDING_ID.fullmatch(name.name) is not None
        is_in_folder = text.startswith(f"{name.parent.name}/")
        is_certain = match is not None and bool(match["suffix"] or match["pipe"] or is_in_folder)
        if is_id and ending is not None and ending["open"]:
            found[name] = text[: ending.start()]
        elif is_id or is_certain:
            found[name] = text[match.end() :] if match else None
    # If every text consists only of the recording's name, such as 0001, the names are the spoken
    # words. Therefore keep the names in the texts.
    return found if any(found.values()) else {}


def corpus_texts(corpus: Path) -> list[Path]:
    """Return the text files of a corpus that belong to no audio file.

    Other versions of a text, such as NAME.original.txt in LibriTTS, also belong to the audio file
    NAME.
    """
    suffixes = tuple(x.lower() for x in (*TEXT_SUFFIXES, *SEGMENT_SUFFIXES))
    files = (path for path in visible_files(corpus) if path.name.lower().endswith(suffixes))
    return [path for path in files if not _has_audio(path)]


def _has_audio(path: Path) -> bool:
    stem = path.name.partition(".")[0]
    return any((path.parent / f"{stem}{suffix}").is_file() for suffix in AUDIO_SUFFIXES)


def subtitles_in_languages(corpus: Path) -> dict[Path, list[Path]]:
    """Return the subtitle files that have a language in their name, such as NAME.en.vtt.

    Returns:
        {path of the subtitle file without language and extension: subtitle files}
    """
    found = defaultdict[Path, list[Path]](list)
    for path in visible_files(corpus):
        language = LANGUAGE.search(path.name)
        if language:
            found[path.with_name(path.name[: language.start()])].append(path)
    return found


def texts_with_longer_names(corpus: Path) -> dict[Path, Path]:
    """Return the text files that may belong to an audio file with a shorter name.

    For example, NAME_en.srt and NAME.English.srt may belong to NAME.wav.

    Returns:
        {path with a shorter name and without an extension: text file}
    """
    suffixes = tuple(x.lower() for x in (*TEXT_SUFFIXES, *SEGMENT_SUFFIXES))
    found: dict[Path, Path] = {}
    for path in visible_files(corpus):
        if path.name.lower().endswith(suffixes):
            for mark in re.finditer(r"(?<=.)[ ._()\[\]-]", path.name):
                found.setdefault(path.with_name(path.name[: mark.start()]), path)
    return found


def texts_next_to(name: Path, subtitles: Sequence[Path] = (), suffix: str = "") -> list[Path]:
    """Return an audio file's transcripts: at most one plain text, and all segment files.

    Args:
        name: the path of the audio file without its extension.
        subtitles: the audio file's subtitles that have a language in their name.
        suffix: extension of the files to return; "": return files with any extension.
    """
    files = []
    for ending in (*TEXT_SUFFIXES, *SEGMENT_SUFFIXES):
        spellings = (ending, ending.lower(), ending.upper(), ending.title())
        paths = [Path(f"{name}{x}") for x in dict.fromkeys(spellings)]
        files += [path for path in paths if path.is_file()][:1]
    files += subtitles
    if not files and not unicodedata.is_normalized("NFC", name.name):
        # A file name from macOS contains é as two characters, but the name of the text file may
        # contain é as one character.
        return texts_next_to(name.with_name(unicodedata.normalize("NFC", name.name)), (), suffix)
    if suffix:
        ending = f".{suffix.lower().lstrip('.')}"
        files = [path for path in files if path.name.lower().endswith(ending)]
    plain = [path for path in files if not _has_segments(path)]
    return plain[:1] + [path for path in files if _has_segments(path)]


def _has_segments(path: Path) -> bool:
    suffixes = (*SEGMENT_SUFFIXES, WHISPER_SUFFIX)
    return path.suffix.lower() in {suffix.lower() for suffix in suffixes}


# ---------------------------------------------------------------------------- tables


def advice_on_tables(corpus: Path) -> str:
    """Return advice to add --csv with a file that contains names of audio files. If no such file
    exists, suggest the tables in the folder."""
    tables = files_with_names(corpus) or tables_in(corpus)
    options = [f"--csv {shlex.quote(str(path))}" for path in tables[:SHOWN]]
    if not options:
        return ". If a table lists the recordings and their texts, add --csv FILE"
    return f". Add {' or '.join(options)}"


def files_with_names(corpus: Path) -> list[Path]:
    """Return the text files in which at least half of the first lines contain the name of an audio
    file."""
    names = {comparable(path.stem) for path in audio_files(corpus)}
    found = []
    for path in visible_files(corpus):
        if path.suffix.lower() in AUDIO_SUFFIXES or not path.is_file():
            continue
        with naming(path), open(path, "rb") as file:
            lines = file.read(MAX_BEGINNING).decode(errors="replace").splitlines()[:NUM_LINES]
        fields = [re.split(r"[\s|,;:\"]+", line) for line in lines if line.strip()]
        listed = [
            any(comparable(without_folder_and_suffix(x)) in names for x in line) for line in fields
        ]
        if len(listed) > 1 and 2 * sum(listed) >= len(listed):
            found.append(path)
    return found


def tables_in(corpus: Path) -> list[Path]:
    """Return the visible tables in the folder, without its subfolders."""
    return sorted(
        path
        for path in corpus.iterdir()
        if path.suffix.lower() in TABLE_SUFFIXES and path.name[0] != "."
    )


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


def comparable(name: str) -> str:
    """Return a form of a name for comparisons that ignore case and the encoding of accents.

    macOS and some archives encode é as two characters: e and an accent.
    """
    return unicodedata.normalize("NFC", name).casefold()


def without_folder_and_suffix(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    return os.path.splitext(last)[0] if last.lower().endswith(AUDIO_SUFFIXES) else last


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


def slashes(name: str) -> str:
    return name.replace("\\", "/")


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
    clips = []
    problems = []
    first: dict[tuple, Entry] = {}
    conflicting: dict[str, str] = {}
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
        # Keep a clip without a file in the list, so that the split stays the same if the file is
        # added later.
        path = found[0] if found else finder.expected(entry.name)
        if not found and (other := finder.elsewhere(entry.name)):
            elsewhere.append((entry.name, other))
        earlier = first.setdefault((os.path.realpath(path), entry.segment), entry)
        if earlier is not entry and earlier.text == entry.text:
            same = f"{path} is already listed in {earlier.where}"
            problems.append(f"{entry.where}: {entry.name!r}: {same}; delete one of the two lines")
            continue
        if earlier is not entry:
            # Report both entries, because either text may be wrong.
            conflicting[entry.where] = problem_of_texts(entry, earlier)
            conflicting.setdefault(earlier.where, problem_of_texts(earlier, entry))
            continue
        if entry.duration is not None and (problem := problem_of_duration(entry, path)):
            problems.append(problem)
            continue
        clip = Clip(str(path), entry.text, where=entry.where, speaker=entry.speaker)
        clips.append(replace(clip, segment=entry.segment))
    segments = [entry for entry in entries if entry.where in conflicting and not entry.segment]
    if len(segments) >= MIN_LINES and 2 * len(segments) > len(entries):
        raise UserError(
            f"{segments[0].where}: {len(segments):,} of {len(entries):,} lines list the same audio file as "
            f"another line, such as {segments[0].name!r}, but a different text (expected one line per "
            "audio file, or columns with the times of segments). If the lines list segments of the "
            "file, name the columns with their times (in seconds) 'start' and 'end', or 'offset' and "
            "'duration'"
        )
    problems += conflicting.values()
    clips = [clip for clip in clips if clip.where not in conflicting]
    if renamed:
        listed, path = renamed[0]
        print(
            f"note: {len(renamed):,} of {len(entries):,} listed files were found in a different "
            f"folder, or with a different extension or case. For example, {listed!r} was found as "
            f"{os.path.relpath(path, corpus)}"
        )
    if elsewhere:
        listed, path = elsewhere[0]
        print(
            f"note: {len(elsewhere):,} missing files have the same names as files in other folders. "
            f"For example, {listed!r} may be {os.path.relpath(path, corpus)}. If they are the same "
            "recordings, move each file into the folder that is listed for it"
        )
    print_unused_formats(finder.unused_formats(entries, clips), corpus)
    # An audio file is either cut at the listed times or used as a whole.
    cut = {clip.path for clip in clips if clip.segment}
    problems += [
        f"{clip.where}: this line has no times, but other lines contain the times of segments of "
        f"{clip.path}"
        for clip in clips
        if clip.segment is None and clip.path in cut
    ]
    return [clip for clip in clips if clip.segment or clip.path not in cut], problems


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


# ---------------------------------------------------------------------------- audio files


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


def unique_ids(clips: Sequence[Clip], corpus: Path) -> list[str]:
    """Return a unique id for each clip, for file names and for the new metadata.csv.

    The id is the name of the audio file. The id of a segment also contains the start of the segment
    in milliseconds. If several clips would have the same id (ignoring case), the speaker's name is
    put before the ids of these clips. If some ids are still equal, or if the clips have no
    speakers, the names of the folders are also put before the ids.
    """

    def clean(name: str) -> str:
        return re.sub(r"[|/\\\s]+|^\.", "_", name)

    def candidates(clip: Clip) -> list[str]:
        stem = clean(Path(clip.path).stem)
        if clip.segment:
            stem = f"{stem}-{round(1000 * clip.segment.start):07d}"
        speaker = [clean(clip.speaker)[:MAX_PREFIX]] if clip.speaker else []
        parts = os.path.relpath(clip.path, corpus).split(os.sep)[:-1]
        folders = [clean(x) for x in parts if x not in (os.pardir, os.curdir, clip.speaker)]
        return ["-".join(parts) for parts in ([stem], [*speaker, stem], [*speaker, *folders, stem])]

    all_candidates = [candidates(clip) for clip in clips]
    counts = Counter(name.lower() for names in all_candidates for name in {*names})
    ids = []
    taken = set[str]()
    for names in all_candidates:
        name = next((x for x in names if counts[x.lower()] == 1), names[-1])
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        ids.append(name)
    return ids
