"""What the files of a corpus in LJSpeech's layout say: its clips and texts, and the split."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import UserError
from files import numbered_lines

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split
WITH_NORMALISED = "id|text|normalised text"  # a line of LJSpeech's metadata.csv


@dataclass(frozen=True, order=True)
class Entry:
    """A line of metadata.csv; its last field is the text that is spoken."""

    line: int  # counted from 1
    id: str
    text: str


def read_metadata(corpus: Path) -> tuple[list[Entry], list[str]]:
    """The lines of `corpus`/metadata.csv, and what is wrong with others.

    Lines with another number of fields and repeated ids are among the problems only.

    Raises:
        UserError: where the folder or the file is missing, empty or not UTF-8.
    """
    if corpus.exists() and not corpus.is_dir():
        raise UserError(f"{corpus}: no folder; name the folder that holds metadata.csv and wavs/")
    if not corpus.is_dir():
        raise UserError(
            f"{corpus}: no such folder; add --download to fetch LJSpeech-1.1 (2.7 GB) into it"
        )
    metadata = corpus / "metadata.csv"
    missing = "no such file; name the folder that holds metadata.csv (lines of id|text|normalised "
    entries, problems = read_entries(metadata, missing + "text) and wavs/", [WITH_NORMALISED])
    if not entries and not problems:
        raise UserError(f"{metadata}: no clip in it; expected lines of {WITH_NORMALISED}")
    return entries, problems


def read_entries(
    metadata: Path, if_missing: str, forms: Sequence[str] = (WITH_NORMALISED, "id|text")
) -> tuple[list[Entry], list[str]]:
    """The lines of a file, each in one of `forms`, and what is wrong with others.

    Raises:
        UserError: saying `if_missing` where there is no such file, or where it is not UTF-8.
    """
    entries, problems, first_line = [], [], {}
    for number, line in numbered_lines(metadata, if_missing):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) not in [form.count("|") + 1 for form in forms]:
            problems.append(
                f"{metadata}:{number}: {len(fields)} fields, expected {' or '.join(forms)}: "
                f"{line[:60]!r}; mend the line"
            )
        elif fields[0] in first_line:
            problems.append(
                f"{metadata}:{number}: id {fields[0]!r} stands in line {first_line[fields[0]]} "
                "too; take one of them out, or give it an id and a wav of its own"
            )
        else:
            first_line[fields[0]] = number
            entries.append(Entry(number, fields[0], fields[-1]))
    return entries, problems


def split_by_hash(ids: list[str], val_fraction: float, seed: int) -> set[str]:
    """The ids of the validation set: the first ones in the order of SHA-256("seed|id").

    Whatever the order of `ids`, and with hardly a change when some come or go. With a fraction of
    0.2 and seed 0 on LJSpeech-1.1 this is filelists/ljspeech_split.csv.
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
    return (
        split_by_hash(ids, val_fraction, seed),
        f"{val_fraction:g} of the ids for validation, ordered by their hash with seed {seed}",
    )
