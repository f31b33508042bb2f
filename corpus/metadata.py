"""What the files of a corpus in LJSpeech's layout say: its clips and texts, and the split."""

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from clip_table import Clip
from errors import UserError
from files import numbered_lines

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split
WITH_NORMALISED = "id|text|normalised text"  # a line of LJSpeech's metadata.csv


def read_metadata(corpus: Path) -> tuple[list[Clip], list[str]]:
    """The lines of `corpus`/metadata.csv, and what is wrong with others.

    Raises:
        UserError: where the folder or the file is missing, empty or not UTF-8.
    """
    if not corpus.is_dir():
        what = "not a folder" if corpus.exists() else "no such folder"
        raise UserError(
            f"{corpus}: {what}; name the folder that holds metadata.csv and wavs/, or add "
            "--download to fetch LJSpeech-1.1 (2.7 GB) into a new one"
        )
    metadata = corpus / "metadata.csv"
    missing = "no such file; name the folder that holds metadata.csv (lines of id|text|normalised "
    clips, problems = read_entries(metadata, missing + "text) and wavs/", [WITH_NORMALISED])
    if not clips and not problems:
        raise UserError(f"{metadata}: no clip in it; expected lines of {WITH_NORMALISED}")
    return clips, problems


def read_entries(
    metadata: Path, if_missing: str, forms: Sequence[str] = (WITH_NORMALISED, "id|text")
) -> tuple[list[Clip], list[str]]:
    """The lines of a file, each in one of `forms`, and what is wrong with others.

    The last field is the text; the sound is expected as wavs/ID.wav beside the file. Lines with
    another number of fields and repeated ids are among the problems only.

    Raises:
        UserError: saying `if_missing` where there is no such file, or where it is not UTF-8.
    """
    clips, problems = [], []
    first_line: dict[str, int] = {}
    for number, line in numbered_lines(metadata, if_missing):
        name, *others = fields = [field.strip() for field in line.split("|")]
        where = f"{metadata}:{number}"
        if len(fields) not in [form.count("|") + 1 for form in forms]:
            problems.append(
                f"{where}: {len(fields)} fields, expected {' or '.join(forms)}: {line[:60]!r}; fix "
                "the line"
            )
        elif name in first_line:
            problems.append(
                f"{where}: id {name!r} is also in line {first_line[name]}; delete one of them, or "
                "give it an id and a sound file of its own"
            )
        else:
            first_line[name] = number
            path = metadata.parent / "wavs" / f"{name}.wav"
            clips.append(Clip(str(path), others[-1], where=where))
    return clips, problems


def split_by_hash(ids: list[str], val_fraction: float, seed: int) -> set[str]:
    """The ids of the validation set: the first ones in the order of SHA-256("seed|id").

    Independent of the order of `ids`, and almost unchanged when some are added or removed. With a
    fraction of 0.2 and seed 0, LJSpeech-1.1 gives filelists/ljspeech_split.csv.
    """
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{seed}|{name}".encode()).digest())
    return set(ranked[: round(len(ids) * val_fraction)])


def read_split(path: Path) -> dict[str, str]:
    """The set, `train` or `val`, of every id in a CSV of id,set."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row["id"]: row["set"] for row in csv.DictReader(file)}


def choose_split(ids: list[str], val_fraction: float, seed: int) -> tuple[set[str], str]:
    """The ids of the validation set and, in words, where they come from."""
    if (val_fraction, seed) == (VAL_FRACTION, SEED):
        pinned = read_split(SPLIT_FILE)
        if pinned.keys() == set(ids):
            validation = {name for name, which in pinned.items() if which == "val"}
            return validation, f"the pinned split of LJSpeech-1.1, {SPLIT_FILE.name}"
    origin = f"{val_fraction:g} of the ids for validation, ordered by their hash with seed {seed}"
    return split_by_hash(ids, val_fraction, seed), origin
