"""Reads a corpus as people have it: the sound and the text of every recording.

    recordings, problems = read_layout(Path("data/mine"), Table(Path("data/mine/validated.tsv")))

Layouts:

    a table        CSV or TSV with or without a header, a recording a line (`Table`)
    LJSpeech's     metadata.csv with lines of id|text|normalised text, sounds anywhere in the folder
    texts beside   NAME.txt, NAME.lab or NAME.normalized.txt beside each NAME.wav, at any depth
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.encodings import decoded
from common.errors import UserError
from common.files import numbered_lines, read_bytes
from corpus.clip_table import Clip
from corpus.metadata import read_metadata
from corpus.missing_sounds import KINDS, OTHER_KINDS, without_folder_and_suffix

TEXT_SUFFIXES = (".normalized.txt", ".txt", ".lab")  # the first that is there; LibriTTS has two
# Headers of Common Voice, Hugging Face's folders, DeepSpeech, Coqui and Piper.
PATH_COLUMNS = (
    "path file file_name filename wav wav_filename audio audio_file audio_path id".split()
)
TEXT_COLUMNS = "normalized_text text sentence transcript transcription".split()
DELIMITERS = "\t|;,"
# By libsndfile; of sounds of one name, the first of these is taken.
READABLE = (".wav", ".flac", ".aif", ".aiff", ".ogg", ".opus", ".mp3")


@dataclass(frozen=True)
class Table:
    """A CSV or TSV of recordings.

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


def read_layout(corpus: Path, table: Table | None) -> tuple[list[Clip], list[str]]:
    """Read the recordings of a corpus, in order: of `table` if there is one, of metadata.csv if
    there is one, else of the texts beside the sounds. Returns them and the problems of bad lines.
    UserError if there is nothing of these, and as `numbered_lines`."""
    if table is None and (corpus / "metadata.csv").exists():
        entries, problems = read_metadata(corpus)
        return with_sounds([(x.id, x.text, x.where) for x in entries], corpus, corpus, problems)
    if not corpus.is_dir():
        what = "not a folder" if corpus.exists() else "no such folder"
        raise UserError(f"{corpus}: {what}; name the folder that holds the recordings")
    if table:
        return read_table(corpus, table)
    return read_texts_beside(corpus)


def sounds_of(corpus: Path) -> list[Path]:
    """The sound files of a folder at any depth, in order of their names; hidden ones are none."""
    kinds = KINDS + OTHER_KINDS
    files = (path for path in corpus.rglob("*") if path.suffix.lower() in kinds)
    return sorted(path for path in files if path.name[0] != "." and path.is_file())


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
        raise UserError(f"{corpus}: {len(sounds):,} sounds and no text; {expected}")
    return clips, problems


def read_table(corpus: Path, table: Table) -> tuple[list[Clip], list[str]]:
    """The recordings of a CSV or TSV. UserError if a column is not there."""
    text = decoded(table.path, read_bytes(table.path))
    if not text.strip():
        raise UserError(f"{table.path}: empty, expected a recording on each line")
    delimiter = table.delimiter or max(DELIMITERS, key=text.strip().partition("\n")[0].count)
    # Tables with tabs or bars quote nothing: a quotation mark belongs to the text there.
    dialect: type[csv.Dialect] = csv.excel if delimiter in ",;" else Unquoted
    reader = csv.reader(io.StringIO(text, newline=""), dialect, delimiter=delimiter)
    try:
        rows = [(reader.line_num, [field.strip() for field in row]) for row in reader if any(row)]
    except csv.Error as error:
        fix = "close the quotation mark before it, or name another --delimiter"
        raise UserError(f"{table.path}:{reader.line_num}: {error}; {fix}") from None
    header = [name.lower() for name in rows[0][1]]
    path_at = column_of(table, "--path-column", table.path_column, header, PATH_COLUMNS, 0)
    last = len(header) - 1
    text_at = column_of(table, "--text-column", table.text_column, header, TEXT_COLUMNS, last)
    if any(place.by_name for place in (path_at, text_at)):
        rows = rows[1:]
    named, problems = [], list[str]()
    for number, row in rows:
        where = f"{table.path}:{number}"
        if len(row) <= max(path_at.index, text_at.index):
            problem = f"{len(row)} fields, expected {len(header)}: {delimiter.join(row)[:60]!r}"
            problems.append(f"{where}: {problem}; fix the line, or name another --delimiter")
        else:
            named.append((row[path_at.index], row[text_at.index], where))
    return with_sounds(named, corpus, table.path.parent, problems)


class Unquoted(csv.excel):
    quoting = csv.QUOTE_NONE


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
    named: Sequence[tuple[str, str, str]], corpus: Path, base: Path, problems: list[str]
) -> tuple[list[Clip], list[str]]:
    """Find the sound of each (name, text, place): a path from `base` or `corpus`, or the only sound
    of that name in the corpus that can be read, whatever its folder, suffix and case."""
    by_name: dict[str, list[Path]] = {}
    for sound in sounds_of(corpus):
        by_name.setdefault(sound.stem.lower(), []).append(sound)
    clips, lines_of = [], dict[Path, str]()
    for name, text, where in named:
        # Windows' separators too. An absolute path stays one.
        there = [folder / name.replace("\\", "/") for folder in (base, corpus)]
        exact = [path for path in there if path.is_file()]
        stem = without_folder_and_suffix(name).lower()
        candidates = exact or by_name.get(stem, [])
        # Some corpora keep what was uploaded, such as WebM, beside what was made of it.
        candidates = [x for x in candidates if x.suffix.lower() in READABLE] or candidates
        if (len(candidates) == 1 or exact) and candidates[0] in lines_of:
            twice = f"is also in {lines_of[candidates[0]]}; delete one of the lines"
            problems.append(f"{where}: {name!r}: {candidates[0]} {twice}")
        elif len(candidates) == 1 or exact:
            lines_of[candidates[0]] = where
            clips.append(Clip(str(candidates[0]), text, where=where))
        elif candidates:
            several = f"{candidates[0]} and {candidates[1]} have that name"
            problems.append(f"{where}: {name!r}: {several}; write the path of the right one")
        else:
            searched = f"no such file, and no sound of that name in {corpus}"
            problems.append(f"{where}: {name!r}: {searched}; copy it there, or delete the line")
    return clips, problems


def unique_ids(clips: Sequence[Clip], corpus: Path) -> list[str]:
    """A name for each clip, for files and for LJSpeech's metadata.csv: that of its sound, with its
    folders where two have one name, on file systems that ignore case too."""

    def clean(name: str) -> str:
        return re.sub(r"[|/\\\s]+|^\.", "_", name)

    stems = Counter(clean(Path(clip.path).stem).lower() for clip in clips)
    ids, taken = [], set[str]()
    for clip in clips:
        path = Path(clip.path)
        name = clean(path.stem)
        if stems[name.lower()] > 1:
            inside = path.is_relative_to(corpus)
            parts = path.relative_to(corpus).parent.parts if inside else path.parent.parts[1:]
            name = "-".join(clean(part) for part in (*parts, path.stem))
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        ids.append(name)
    return ids
