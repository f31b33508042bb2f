"""What the files of a corpus in LJSpeech's layout say: its clips and texts, and the split."""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

from errors import UserError
from files import numbered_lines

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split


@dataclass(frozen=True, order=True)
class Entry:
    """A line of metadata.csv: `id|text|normalised text`, of which the last is what is spoken."""

    line: int  # counted from 1
    id: str
    text: str


def read_metadata(corpus: Path) -> tuple[list[Entry], list[str]]:
    """The lines of `corpus`/metadata.csv, and what is wrong with others.

    Lines with another number of fields and repeated ids are among the problems only.

    Raises:
        UserError: where the folder or the file is missing, empty or not UTF-8.
    """
    metadata = corpus / "metadata.csv"
    if not corpus.is_dir():
        raise UserError(
            f"{corpus}: no such folder; add --download to fetch LJSpeech-1.1 (2.7 GB) into it"
        )
    missing = "no such file; name the folder that holds metadata.csv (lines of id|text|normalised "
    entries, problems, first_line = [], [], {}
    for number, line in numbered_lines(metadata, missing + "text) and wavs/"):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3:
            problems.append(
                f"{metadata}:{number}: {len(fields)} fields, expected id|text|normalised text: "
                f"{line[:60]!r}; mend the line"
            )
        elif fields[0] in first_line:
            problems.append(
                f"{metadata}:{number}: id {fields[0]!r} stands in line {first_line[fields[0]]} "
                "too; take one of them out, or give it an id and a wav of its own"
            )
        else:
            first_line[fields[0]] = number
            entries.append(Entry(number, fields[0], fields[2]))
    if not entries and not problems:
        raise UserError(f"{metadata}: no clip in it; expected lines of id|text|normalised text")
    return entries, problems


def split_by_hash(ids: list[str], val_fraction: float, seed: int) -> set[str]:
    """The ids of the validation set: the first ones in the order of SHA-256("seed|id").

    Whatever the order of `ids`, and with hardly a change when some come or go. With a fraction of
    0.2 and seed 0 on LJSpeech-1.1 this is filelists/ljspeech_split.csv.
    """
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{seed}|{name}".encode()).digest())
    return set(ranked[: round(len(ids) * val_fraction)])


def choose_split(ids: list[str], val_fraction: float, seed: int) -> tuple[set[str], str]:
    """The ids of the validation set and, in words, where they come from."""
    if (val_fraction, seed) == (VAL_FRACTION, SEED):
        with open(SPLIT_FILE, encoding="utf-8", newline="") as file:
            pinned = {row["id"]: row["set"] for row in csv.DictReader(file)}
        if pinned.keys() == set(ids):
            validation = {name for name, which in pinned.items() if which == "val"}
            return validation, f"the pinned split of LJSpeech-1.1, {SPLIT_FILE.name}"
    return (
        split_by_hash(ids, val_fraction, seed),
        f"{val_fraction:g} of the ids for validation, ordered by their hash with seed {seed}",
    )
