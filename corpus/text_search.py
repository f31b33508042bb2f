"""Read the texts that are in separate files, next to the audio files or in another folder.

clips, problems = read_texts_of_audio(Path("data/mine"), TextSource(suffix="srt"))
"""

import os
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus.audio_search import (
    SHOWN,
    audio_files,
    comparable,
    print_unused_formats,
    readable_first,
    visible_files,
    without_folder_and_suffix,
)
from corpus.clips import Clip
from corpus.manifests import KALDI_FILES
from corpus.recording_names import (
    AUDIO_SUFFIXES,
    RECORDING_ID,
    name_at_end,
    name_at_start,
)
from corpus.segments import (
    SEGMENT_SUFFIXES,
    WHISPER_SUFFIX,
    are_labels,
    check_is_plain,
    is_whisper_table,
    read_segments,
)
from corpus.spoken_texts import MAX_SHARE, MIN_TEXTS
from corpus.tables import METADATA
from corpus.text_files import decode, on_one_line, print_divided
from corpus.textgrids import is_textgrid
from tacotron2_voice.utils.errors import UserError, count_of
from tacotron2_voice.utils.files import naming, read_bytes

# Suffixes of text files, in order of preference. The corpus LibriTTS uses .normalized.txt.
TEXT_SUFFIXES = (".normalized.txt", ".trans.txt", ".txt", ".lab")
# Matches the language code and the extension of a subtitle file's name, such as .en.vtt.
LANGUAGE = re.compile(r"\.[a-z]{2,3}(-\w{2,8})*\.(srt|vtt)$", re.IGNORECASE)
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
TRANSCRIPTS = "--transcripts EXTENSION"
# Endings of the file names in VCTK 0.92, which contains two recordings of each text, made with two
# microphones.
MICROPHONE, OTHER_MICROPHONE = "_mic1", "_mic2"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
# To find tables, only the first NUM_LINES lines in the first MAX_BEGINNING bytes are read.
NUM_LINES, MAX_BEGINNING = 20, 20_000


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


def read_texts_of_audio(corpus: Path, texts: TextSource) -> tuple[list[Clip], list[str]]:
    """Read the audio files that have a text, and report audio files without a text."""
    audio = readable_first(audio_files(corpus))
    by_name = {path.with_suffix(""): path for path in reversed(audio)}
    print_unused_formats(sorted({*audio} - {*by_name.values()}), corpus)
    text_files, problems = _match_text_files(by_name, corpus, texts)
    if not texts.is_shared:
        print_unused_texts({*text_files.values()}, texts.folder or corpus)
    clips, problems_in_texts = _read_text_files(text_files, by_name, texts)
    return clips, problems + problems_in_texts


def print_unused_texts(used: set[Path], folder: Path) -> None:
    """Print a note about the text files in a folder that belong to no audio file."""
    if unused := sorted({*corpus_texts(folder)} - used):
        example = os.path.relpath(unused[0], folder)
        print(
            f"note: no audio file belongs to {count_of(len(unused), 'text file')}, such as {example}"
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
            # The part of each name after the name of the recording, such as "en.srt".
            endings = sorted({path.name.removeprefix(name.name).lstrip(".") for path in found})
            options = " or ".join(f"--transcripts {ending}" for ending in endings)
            fix = f"choose with {options}" if len(endings) > 1 else "keep only one transcript"
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
    return [path for path in files if not has_audio(path)]


def has_audio(path: Path) -> bool:
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
        matching = [path for path in files if path.name.lower().endswith(ending)]
        # With the suffix srt, NAME.srt is chosen instead of NAME.en.srt.
        exact = [x for x in matching if x.name.lower() == f"{name.name}{ending}".lower()]
        files = exact if any(map(_has_segments, exact)) else matching
    plain = [path for path in files if not _has_segments(path)]
    return plain[:1] + [path for path in files if _has_segments(path)]


def _has_segments(path: Path) -> bool:
    suffixes = (*SEGMENT_SUFFIXES, WHISPER_SUFFIX)
    return path.suffix.lower() in {suffix.lower() for suffix in suffixes}


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
