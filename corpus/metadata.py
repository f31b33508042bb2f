"""Read metadata.csv of a corpus in LJSpeech's layout, and split its clips."""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from corpus.clip_table import Clip
from corpus.field_order import commonest_number, lines_with, refuse_other_order
from corpus.missing_sounds import id_fix, refuse_ambiguous_ids
from corpus.separators import refuse_other_separators
from corpus.speaker_names import with_names
from tacotron2_voice.utils.encodings import wrong_conversion
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines, read_bytes

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split
MAX_SPEAKERS_SHARE = 0.2  # of the lines: raw texts repeat less
MAX_NAMED = 3
MAX_KNOWN_SHARE = 0.01  # of validation clips with a text of training; 0.002 in LJSpeech: titles
OF_FOLDERS = "if they are speakers, add --speaker-folders --convert NEW_FOLDER (docs/speakers.md)"
LINE = "id|text|normalized text"  # of LJSpeech's metadata.csv


def read_metadata(corpus: Path, speaker_column: str = "") -> tuple[list[Clip], list[str]]:
    """Read `corpus`/metadata.csv, whose last field is the text. Returns the clips and the problems
    of bad lines. UserError if the folder or the file is missing, empty or not UTF-8, or has no
    bars, or other fields. Where most lines have two, these are id|text. A bar at the end of every
    line is ignored. `speaker_column` is the number, from 1 on, of a field beside these that names
    the speaker, or its title in a first line of titles; errors as `with_names`."""
    if not corpus.is_dir():
        what = "not a folder" if corpus.exists() else "no such folder"
        raise UserError(
            f"{corpus}: {what}; name the folder that holds metadata.csv and wavs/, or add "
            "--download to fetch LJSpeech-1.1 (2.7 GB) into a new one"
        )
    metadata, clips, problems = corpus / "metadata.csv", [], []
    missing = (
        f"no such file; name the folder that holds metadata.csv (lines of {LINE}) and wavs/, or "
        "add --convert NEW_FOLDER for another layout (docs/own-data.md)"
    )
    if any(corpus.glob("*/metadata.csv")):
        missing = f"no such file, but its folders have one each; {OF_FOLDERS}, or name one of them"
    first_line: dict[str, int] = {}
    content = read_bytes(metadata, if_missing=missing)
    if warning := wrong_conversion(metadata, content):
        print(warning)
    lines = numbered_lines(metadata, content=content)
    refuse_other_separators(metadata, lines, LINE)
    if all(line.endswith("|") for _, line in lines):
        lines = [(number, line[:-1]) for number, line in lines]
    commonest = commonest_number(lines)
    speaker_at = _speaker_place(speaker_column, commonest, metadata, lines)
    if speaker_at is not None and not speaker_column.isdecimal():
        lines = lines[1:]  # without the titles
    refuse_other_order(metadata, lines, commonest, LINE, speaker_at)
    refuse_ambiguous_ids(metadata, [line.partition("|")[0].strip() for _, line in lines])
    num_fields, line_expected = 3, LINE
    if commonest == 2:
        num_fields, line_expected = 2, "id|text, as most lines have"
    if speaker_at is not None:
        names = LINE.split("|")[: commonest - 1]
        names.insert(speaker_at, "speaker")
        num_fields, line_expected = len(names), f"{'|'.join(names)}, as most lines have"
    second: Counter[str] = Counter()
    for number, line in lines:
        name, *others = fields = [field.strip() for field in line.split("|")]
        where = f"{metadata}:{number}"
        if len(fields) != num_fields:
            problem = f"{len(fields)} fields, expected {line_expected}: {line[:60]!r}"
            problems.append(f"{where}: {problem}; fix the line")
        elif re.search(r"[/\\]", name):  # mels and trimmed copies would get another clip's name
            expected = "expected a file's name, without folder and suffix"
            problems.append(f"{where}: id {name!r}, {expected}; {id_fix(name, metadata)}")
        elif name in first_line:
            problem = f"id {name!r} is also in line {first_line[name]}"
            problems.append(f"{where}: {problem}; delete one of them, or give it another id")
        else:
            first_line[name] = number
            speaker = "" if speaker_at is None else others.pop(speaker_at - 1)
            path = corpus / "wavs" / f"{name}.wav"
            clips.append(Clip(str(path), others[-1], where=where, speaker=speaker))
            second.update(others[:-1] if others[0] not in ("", others[-1]) else ())
    if not clips and not problems:
        raise UserError(f"{metadata}: no clip in it; expected lines of {LINE}")
    if speaker_at is None and (warning := several_speakers(second, metadata)):
        print(warning)
    if speaker_at is not None:
        clips, unnamed = with_names(clips, f"field {speaker_column}", metadata)
        problems += unnamed
    return clips, problems


def _speaker_place(
    column: str, num_fields: int, metadata: Path, lines: Sequence[tuple[int, str]]
) -> int | None:
    """The index of the field of this number, or of this title in the first of the numbered lines.
    UserError if lines have none such beside id and text."""
    if not column:
        return None
    asked = f"--speaker-column {column}: lines of {metadata} have {num_fields:,} fields"
    if num_fields < 3:
        raise UserError(f"{asked}, none for a speaker; --speaker NAME names the one of all")
    if column.isdecimal() and 2 <= int(column) <= num_fields:
        return int(column) - 1
    rows = [[x.strip().lower() for x in line.split("|")] for _, line in lines]
    title = column.lower()
    for place in range(1, num_fields):
        # The name of a speaker, unlike a title, is in the same field of other lines too.
        if [i for i, row in enumerate(rows) if row[place : place + 1] == [title]] == [0]:
            return place
    raise UserError(
        f"{asked}, expected the number of the one that names speakers, 2 to {num_fields}, or its "
        f"title if the first line has titles: {lines[0][1][:60]!r}"
    )


def several_speakers(second: Counter[str], metadata: Path) -> str | None:
    """A warning if few values of the second field are in many lines, as names of speakers are."""
    if not 2 <= len(second) <= MAX_SPEAKERS_SHARE * second.total():
        return None
    commonest = second.most_common(MAX_NAMED)
    values = ", ".join(f"{value[:20]!r} in {count:,}" for value, count in commonest)
    return (
        f"warning: {metadata}: the second field has {len(second):,} values in {second.total():,} "
        f"lines: {values}. If they are speakers, all are trained as one voice: --speaker-column 2 "
        "tells them apart (docs/speakers.md). Or keep the lines of one: "
        f"{lines_with(metadata, 1, commonest[0][0])}"
    )


def read_split(path: Path) -> dict[str, str]:
    """Read a CSV of id,set into {id: "train" or "val"}."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row["id"]: row["set"] for row in csv.DictReader(file)}


def choose_split(
    clips: list[Clip], val_fraction: float, seed: int, *, by_text: bool = False
) -> tuple[set[str], str]:
    """Choose the ids of the validation set; also returns a description of where they come from.

    LJSpeech-1.1 with the defaults uses filelists/ljspeech_split.csv. Any other corpus uses the
    first ids in the order of SHA-256("seed|id"): adding or removing ids hardly changes the set.
    With `by_text` the order is that of the texts' words, so that all takes of one sentence, of
    whatever speaker, are in one set. Of several speakers each has this fraction held out, and more
    only by `by_text`."""
    ids = [clip.id for clip in clips]
    if (val_fraction, seed, by_text) == (VAL_FRACTION, SEED, False):
        pinned = read_split(SPLIT_FILE)
        if pinned.keys() == set(ids):
            validation = {name for name, which in pinned.items() if which == "val"}
            return validation, f"the pinned split of LJSpeech-1.1, {SPLIT_FILE.name}"
    takes: dict[str, list[Clip]] = {}
    for clip in clips:
        takes.setdefault(wording(clip.text) if by_text else clip.id, []).append(clip)
    counts = Counter(clip.speaker for clip in clips)
    wanted = {name: round(count * val_fraction) for name, count in counts.items()}
    if len(counts) > 1:  # each must be trained on
        wanted = {name: min(number, counts[name] - 1) for name, number in wanted.items()}
    validation = set[str]()
    for key in sorted(takes, key=lambda key: hashlib.sha256(f"{seed}|{key}".encode()).digest()):
        if any(wanted[clip.speaker] > 0 for clip in takes[key]):
            validation.update(clip.id for clip in takes[key])
            for clip in takes[key]:
                wanted[clip.speaker] -= 1
    kind, whose = "texts" if by_text else "ids", "each speaker's" if len(counts) > 1 else "the"
    origin = f"{val_fraction:g} of {whose} clips for validation, ordered by their {kind}' hash"
    return validation, f"{origin} with seed {seed}"


def wording(text: str) -> str:
    """A text without case and punctuation, which takes of one sentence have in common."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def texts_in_both(sets: Mapping[str, Sequence[Clip]]) -> str | None:
    """A warning if many clips for validation have the words of clips for training: the validation
    loss is then of sentences that were learnt."""
    trained = {wording(clip.text) for clip in sets["train"]}
    known = [clip for clip in sets.get("val", ()) if wording(clip.text) in trained]
    if not known or len(known) <= MAX_KNOWN_SHARE * len(sets["val"]):
        return None
    count = f"{len(known):,} of {len(sets['val']):,} clips"
    return (
        f"warning: {count} for validation have a text that is trained on, such as {known[0].path}: "
        f"{known[0].text[:60]!r}; --split-by-text keeps all takes of a text in one set"
    )
