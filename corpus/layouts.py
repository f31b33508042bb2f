"""Reads a corpus as people have it: the sound and the text of every recording.

    recordings, problems = read_layout(Path("data/mine"), Table(Path("data/mine/validated.tsv")))

Layouts:

    a table        CSV or TSV with or without a header, or JSON lines, a recording a line (`Table`)
    LJSpeech's     metadata.csv with lines of id|text|normalized text, sounds anywhere in the folder
    texts beside   NAME.txt, NAME.lab or NAME.normalized.txt beside each NAME.wav, at any depth
    folders        one per speaker, each in one of the two layouts before (`SpeakerSource`)
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from corpus.clip_table import Clip
from corpus.metadata import OF_FOLDERS, read_metadata
from corpus.missing_sounds import KINDS, OTHER_KINDS, without_folder_and_suffix
from corpus.speaker_names import (
    NO_SPEAKERS,
    SpeakerSource,
    checked_name,
    refuse_lookalikes,
    refuse_too_many,
    with_names,
)
from tacotron2_voice.utils.encodings import decoded
from tacotron2_voice.utils.errors import UserError, grouped, in_place
from tacotron2_voice.utils.files import numbered_lines, read_bytes

TEXT_SUFFIXES = (".normalized.txt", ".txt", ".lab")  # the first that is there; LibriTTS has two
# Headers of Common Voice, Hugging Face's folders, DeepSpeech, Coqui, Piper and NeMo.
PATH_COLUMNS = (
    "path file file_name filename wav wav_filename audio audio_file audio_path audio_filepath id"
).split()
TEXT_COLUMNS = "normalized_text text sentence transcript transcription".split()
DELIMITERS = "\t|;,"
MAY_QUOTE = ",;"  # delimiters of tables whose fields may be in quotation marks
# By libsndfile; of sounds of one name, the first of these is taken.
READABLE = (".wav", ".flac", ".aif", ".aiff", ".ogg", ".opus", ".mp3")
MAX_PREFIX = 40  # characters of a speaker's name before an id: names of files have 255 bytes


@dataclass(frozen=True)
class Table:
    """A CSV or TSV of recordings, or JSON lines, which have a JSON object on each line, its keys
    the names of the columns.

    Args:
        path: the file. Paths in it start at its own folder or at the corpus; suffixes and case may
            differ.
        path_column, text_column: a column's name in the header, or its number from 1 on; by default
            a usual name, or else the first and the last column.
        delimiter: one character; by default the one that the first line has most of.
    """

    path: Path
    path_column: str = ""
    text_column: str = ""
    delimiter: str | None = None


class Line(NamedTuple):
    """A line of a table or of metadata.csv: a sound by its path, id or name, and the rest of it."""

    sound: str
    text: str
    where: str
    speaker: str = ""


def read_layout(
    corpus: Path, table: Table | None, speakers: SpeakerSource = NO_SPEAKERS
) -> tuple[list[Clip], list[str]]:
    """Read the recordings of a corpus, in order: of `table` if there is one, of metadata.csv if
    there is one, else of the texts beside the sounds. Returns them and the problems of bad lines.
    UserError if there is nothing of these, if `speakers` names what is not there, and as
    `numbered_lines`."""
    if speakers.name:
        clips, problems = read_layout(corpus, table)
        return [replace(clip, speaker=speakers.name) for clip in clips], problems
    has_metadata = (corpus / "metadata.csv").exists()
    if table is None and has_metadata and not speakers.folders:
        entries, problems = read_metadata(corpus, speakers.column)
        lines = [Line(x.id, x.text, x.where, x.speaker) for x in entries]
        return with_sounds(lines, corpus, corpus, problems)
    if not corpus.is_dir():
        what = "not a folder" if corpus.exists() else "no such folder"
        raise UserError(f"{corpus}: {what}; name the folder that holds the recordings")
    if speakers.folders:
        return read_folders(corpus) if table is None else read_table_of_folders(corpus, table)
    if table:
        return read_table(corpus, table, speakers.column)
    if speakers.column:
        raise UserError(
            f"--speaker-column {speakers.column}: {corpus} has no metadata.csv; name a table by "
            "--csv FILE, or add --speaker-folders in its place if each speaker has a folder"
        )
    return read_texts_beside(corpus)


def read_folders(corpus: Path) -> tuple[list[Clip], list[str]]:
    """The recordings of a corpus with a folder for each speaker, whose name it has. Sounds beside
    these folders are problems."""
    if (path := corpus / "metadata.csv").exists():
        raise UserError(
            f"{path}: expected one in each speaker's folder, or a text beside each sound; if it "
            f"names the recordings in the folders by their paths, add --csv {path}"
        )
    sounds = sounds_of(corpus)
    loose = [path for path in sounds if path.parent == corpus]
    folders = [path.relative_to(corpus).parts[0] for path in sounds if path.parent != corpus]
    names = dict.fromkeys(name for name in folders if name[0] != ".")
    if hidden := sorted({*folders} - {*names}):
        print(
            f"Notice: --speaker-folders: {len(hidden):,} hidden folders of {corpus} are left out, "
            f"such as {hidden[0]!r}; rename those of speakers"
        )
    if not names:
        raise UserError(f"{corpus}: no folder in it holds sounds; expected one for each speaker")
    problems = [f"{path}: in no speaker's folder; move it into one" for path in loose]
    speakers = speakers_of_folders(corpus, list(names))
    clips, refused = list[Clip](), list[str]()
    for folder, speaker in speakers.items():
        try:
            own, bad = read_layout(corpus / folder, None)
        except UserError as error:
            refused.append(str(error))
            continue
        clips += [replace(clip, speaker=speaker) for clip in own]
        problems += bad
    if refused:
        raise UserError("\n".join(refused))
    return clips, problems


def read_table_of_folders(corpus: Path, table: Table) -> tuple[list[Clip], list[str]]:
    """The recordings of a table whose speakers are named by the folders in the corpus."""
    clips, problems = read_table(corpus, table)
    folders = [PurePosixPath(os.path.relpath(clip.path, corpus)).parts[:-1] for clip in clips]
    inside = {parts[0] for parts in folders if parts and parts[0] != ".."}
    speakers = speakers_of_folders(corpus, sorted(inside))
    named = []
    for clip, (folder, *_) in zip(clips, (parts or ("",) for parts in folders), strict=True):
        if folder in speakers:
            named.append(replace(clip, speaker=speakers[folder]))
        else:
            problems.append(f"{clip.where}: {clip.path} is in no folder of {corpus}; move it there")
    return named, problems


def speakers_of_folders(corpus: Path, names: list[str]) -> dict[str, str]:
    """The speaker of each folder of these names, which may be links; a notice of a single one.
    UserError for bad names."""
    speakers, faults = dict[str, str](), list[str]()
    for name in names:
        try:
            speakers[name] = checked_name(name, f"{corpus}: folder")
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(grouped(faults)))
    refuse_too_many(names, corpus)
    refuse_lookalikes([(speaker, str(corpus / name)) for name, speaker in speakers.items()])
    if len(speakers) == 1:
        print(f"Notice: --speaker-folders: {corpus} has one folder with sounds, {names[0]!r}")
    return speakers


def sounds_of(corpus: Path) -> list[Path]:
    """The sound files of a folder at any depth, in order of their names; hidden ones are none.
    Links to folders are followed, to each folder once."""
    kinds, files, walked = KINDS + OTHER_KINDS, list[Path](), set[str]()
    for folder, folders, names in os.walk(corpus, followlinks=True):
        if (real := os.path.realpath(folder)) in walked:
            folders.clear()
            continue
        walked.add(real)
        folders.sort()
        files += [Path(folder, name) for name in names if name[0] != "."]
    return sorted(path for path in files if path.suffix.lower() in kinds and path.is_file())


def best_first(sounds: Sequence[Path]) -> list[Path]:
    """Sounds in the order of READABLE; others come last."""
    places = {suffix: place for place, suffix in enumerate(READABLE)}
    return sorted(sounds, key=lambda path: places.get(path.suffix.lower(), len(places)))


def read_texts_beside(corpus: Path) -> tuple[list[Clip], list[str]]:
    """The sounds that have a text beside them; those without one are problems."""
    sounds = {path.with_suffix(""): path for path in reversed(best_first(sounds_of(corpus)))}
    clips, problems = [], list[str]()
    for name in sorted(sounds):
        sound, base = sounds[name], str(name)
        texts = [path for suffix in TEXT_SUFFIXES if (path := Path(base + suffix)).is_file()]
        if not texts:
            expected = f"expected {Path(base + '.txt').name} with what it says"
            problems.append(f"{sound}: no text beside it, {expected}")
            continue
        words = [line for _, line in numbered_lines(texts[0])]
        clips.append(Clip(str(sound), " ".join(words), where=str(texts[0])))
    if not clips:
        expected = "expected metadata.csv, a text beside each sound (a.wav, a.txt), or --csv FILE"
        if any(corpus.glob("*/metadata.csv")):
            expected = f"but its folders have a metadata.csv each; {OF_FOLDERS}"
        raise UserError(f"{corpus}: {len(sounds):,} sounds and no text; {expected}")
    return clips, problems


def read_table(
    corpus: Path, table: Table, speaker_column: str = ""
) -> tuple[list[Clip], list[str]]:
    """The recordings of a table. UserError if a column is not there, as `rows_of_json` and
    `rows_of_csv`, and as `with_names` for the speakers' column."""
    text = decoded(table.path, read_bytes(table.path))
    if not text.strip():
        raise UserError(f"{table.path}: empty, expected a recording on each line")
    if re.match(r"\s*\[\s*[{\]]", text):
        # Not a table with bars whose first text begins with a bracket.
        code = "import json, sys; [print(json.dumps(x)) for x in json.load(sys.stdin)]"
        command = in_place(table.path, f'python -X utf8 -c "{code}"')
        fix = f"write a JSON object on each line: {command}"
        raise UserError(f"{table.path}: a JSON array, expected lines; {fix}")
    is_json = text.lstrip().startswith("{")
    delimiter = table.delimiter or max(DELIMITERS, key=text.strip().partition("\n")[0].count)
    rows = rows_of_json(table.path, text) if is_json else rows_of_csv(table.path, text, delimiter)
    first = rows[0][1]
    header = [name.lower() for name in first]
    path_at = column_of(table, "--path-column", table.path_column, header, PATH_COLUMNS, 0)
    last = len(header) - 1
    text_at = column_of(table, "--text-column", table.text_column, header, TEXT_COLUMNS, last)
    places = [path_at, text_at]
    if speaker_column:
        places.append(column_of(table, "--speaker-column", speaker_column, header, (), 0))
    if is_json or any(place.by_name for place in places):
        rows = rows[1:]
    needed = 1 + max(place.index for place in places)
    usual = Counter(num_filled(row) for _, row in rows).most_common(1)[0][0] if rows else 0
    most = max(needed, usual if rows and rows[0][1] == first else num_filled(first))
    lines, problems = list[Line](), list[str]()
    for number, row in rows:
        where = f"{table.path}:{number}"
        if fault := fault_of_row(number, row, needed, len(first), most, delimiter):
            problems.append(f"{where}: {fault}")
        else:
            sound, text, *speaker = (row[place.index] for place in places)
            lines.append(Line(sound, text, where, *speaker))
    clips, problems = with_sounds(lines, corpus, table.path.parent, problems)
    if speaker_column:
        clips, unnamed = with_names(clips, f"column {speaker_column}", table.path)
        problems += unnamed
    return clips, problems


def num_filled(row: Sequence[str]) -> int:
    """The number of fields without the empty ones at the end."""
    return max((number for number, field in enumerate(row, 1) if field), default=0)


def fault_of_row(
    number: int, row: Sequence[str], needed: int, expected: int, at_most: int, delimiter: str
) -> str:
    """What is wrong with the row that begins in this line and what to do, if it has too few or too
    many fields, or if one goes on in other lines; empty for a good one."""
    for field in row:
        if more := field.count("\n"):
            fix = 'write it in one line, in quotation marks, its own ones twice: """Go,"" he said."'
            goes_on = f"a quotation mark opens a field that goes on to line {number + more}"
            return f"{goes_on}: {field[:60]!r}; {fix}"
    beginning = repr(delimiter.join(row)[:60])
    if len(row) < needed:
        fix = "fix the line, or name another --delimiter"
        return f"{len(row)} fields, expected {expected}: {beginning}; {fix}"
    if (filled := num_filled(row)) <= at_most:
        return ""
    fix = f"leave {delimiter!r} out of the text, or write another delimiter in all lines"
    if delimiter in MAY_QUOTE:
        example = f'a.wav{delimiter}"One{delimiter} two."'
        fix = f"quote the text, as in {example}, and write its own quotation marks twice"
    return f"{filled} fields, expected {at_most}: {beginning}; {fix}"


def rows_of_csv(path: Path, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """The fields of each row and the number of its first line. UserError for a line that cannot be
    read."""
    # Tables with tabs or bars quote nothing: a quotation mark belongs to the text there.
    dialect: type[csv.Dialect] = csv.excel if delimiter in MAY_QUOTE else Unquoted
    reader = csv.reader(io.StringIO(text, newline=""), dialect, delimiter=delimiter)
    rows, number = list[tuple[int, list[str]]](), 1
    try:
        for row in reader:
            if any(row):
                rows.append((number, [field.strip() for field in row]))
            number = reader.line_num + 1
        return rows
    except csv.Error as error:
        fix = "close the quotation mark before it, or name another --delimiter"
        raise UserError(f"{path}:{reader.line_num}: {error}; {fix}") from None


class Unquoted(csv.excel):
    quoting = csv.QUOTE_NONE


def rows_of_json(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """The values of each line and its number, after a header of all keys, which has number 0. What
    a line lacks, and what is no string or number, is empty. UserError if a line holds no object."""
    objects, header = list[tuple[int, dict[str, object]]](), dict[str, None]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            expected = (
                'expected a JSON object on each line; write {"path": "a.wav", "text": "Yes."}'
            )
            raise UserError(f"{path}:{number}: {line.strip()[:60]!r}: {expected}")
        objects.append((number, values))
        header |= dict.fromkeys(values)
    plain = (str, int, float)
    rows = [
        (
            number,
            [str(x).strip() if isinstance(x := values.get(key), plain) else "" for key in header],
        )
        for number, values in objects
    ]
    return [(0, list(header)), *rows]


@dataclass(frozen=True)
class Column:
    index: int
    by_name: bool = False  # so that there is a header


def column_of(
    table: Table, option: str, asked: str, header: Sequence[str], usual: Sequence[str], index: int
) -> Column:
    """The column of a name or a number that is `asked` for, else of a `usual` name, else that at
    `index`. UserError if the table has none such."""
    if asked.isdecimal():
        if not 1 <= int(asked) <= len(header):
            have = f"{table.path} has {len(header)} columns"
            raise UserError(f"{option} {asked}: {have}: {', '.join(header)[:200]}")
        return Column(int(asked) - 1)
    if asked:
        if asked.lower() not in header:
            have = f"{table.path} begins with {', '.join(header)[:200]}"
            raise UserError(f"{option} {asked}: {have}; name one of them, or a number from 1 on")
        return Column(header.index(asked.lower()), by_name=True)
    for name in usual:
        if name in header:
            return Column(header.index(name), by_name=True)
    return Column(index)


def with_sounds(
    lines: Sequence[Line], corpus: Path, base: Path, problems: list[str]
) -> tuple[list[Clip], list[str]]:
    """Find the sound of each line: a path from `base` or `corpus`, or the only sound of that name,
    or of that name and folder, in the corpus that can be read, whatever its suffix and case."""
    by_name: dict[str, list[Path]] = {}
    for sound in sounds_of(corpus):
        by_name.setdefault(sound.stem.lower(), []).append(sound)
    clips, lines_of = [], dict[Path, str]()
    for name, text, where, speaker in lines:
        # Windows' separators too. An absolute path stays one.
        listed = PurePosixPath(name.replace("\\", "/"))
        there = [folder / listed for folder in (base, corpus)]
        exact = [path for path in there if path.is_file()]
        stem = without_folder_and_suffix(name).lower()
        folders = [part.lower() for part in listed.parts[:-1]]
        alike = by_name.get(stem, [])
        nearer = [x for x in alike if [*map(str.lower, x.parts[-len(folders) - 1 : -1])] == folders]
        candidates = exact or nearer or alike
        # Some corpora keep what was uploaded, such as WebM, beside what was made of it.
        candidates = [x for x in candidates if x.suffix.lower() in READABLE] or candidates
        if (len(candidates) == 1 or exact) and candidates[0] in lines_of:
            twice = f"is also in {lines_of[candidates[0]]}; delete one of the lines"
            problems.append(f"{where}: {name!r}: {candidates[0]} {twice}")
        elif len(candidates) == 1 or exact:
            lines_of[candidates[0]] = where
            clips.append(Clip(str(candidates[0]), text, where=where, speaker=speaker))
        elif candidates:
            several = f"{candidates[0]} and {candidates[1]} have that name"
            problems.append(f"{where}: {name!r}: {several}; write the path of the right one")
        else:
            searched = f"no such file, and no sound of that name in {corpus}"
            problems.append(f"{where}: {name!r}: {searched}; copy it there, or delete the line")
    return clips, problems


def unique_ids(clips: Sequence[Clip], corpus: Path) -> list[str]:
    """A name for each clip, for files and for LJSpeech's metadata.csv: that of its sound; where two
    have one name, on file systems that ignore case too, with the speaker's before it; where that is
    not enough or there are no speakers, with its folders."""

    def clean(name: str) -> str:
        return re.sub(r"[|/\\\s]+|^\.", "_", name)

    def with_speaker(clip: Clip) -> str:
        name = clean(Path(clip.path).stem)
        return f"{clean(clip.speaker)[:MAX_PREFIX]}-{name}" if clip.speaker else name

    stems = Counter(clean(Path(clip.path).stem).lower() for clip in clips)
    of_speakers = Counter(with_speaker(clip).lower() for clip in clips)
    ids, taken = [], set[str]()
    for clip in clips:
        path = Path(clip.path)
        name = clean(path.stem)
        if stems[name.lower()] > 1:
            name = with_speaker(clip)
            if of_speakers[name.lower()] > 1:
                inside = path.is_relative_to(corpus)
                parts = path.relative_to(corpus).parent.parts if inside else path.parent.parts[1:]
                if clip.speaker and parts[:1] != (clip.speaker,):
                    parts = (clip.speaker[:MAX_PREFIX], *parts)
                name = "-".join(clean(part) for part in (*parts, path.stem))
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        ids.append(name)
    return ids
