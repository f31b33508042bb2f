"""Read metadata.csv of a corpus in LJSpeech's layout, and split its clips."""

import csv
import hashlib
from pathlib import Path

from common.encodings import wrong_conversion
from common.errors import UserError
from common.files import numbered_lines, read_bytes
from corpus.clip_table import Clip

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split
LINE = "id|text|normalised text"  # of LJSpeech's metadata.csv


def read_metadata(corpus: Path) -> tuple[list[Clip], list[str]]:
    """Read `corpus`/metadata.csv, whose last field is the text. Returns the clips and the problems
    of bad lines. UserError if the folder or the file is missing, empty or not UTF-8."""
    if not corpus.is_dir():
        what = "not a folder" if corpus.exists() else "no such folder"
        raise UserError(
            f"{corpus}: {what}; name the folder that holds metadata.csv and wavs/, or add "
            "--download to fetch LJSpeech-1.1 (2.7 GB) into a new one"
        )
    metadata, clips, problems = corpus / "metadata.csv", [], []
    missing = f"no such file; name the folder that holds metadata.csv (lines of {LINE}) and wavs/"
    first_line: dict[str, int] = {}
    content = read_bytes(metadata, if_missing=missing)
    if warning := wrong_conversion(metadata, content):
        print(warning)
    for number, line in numbered_lines(metadata, content=content):
        name, *others = fields = [field.strip() for field in line.split("|")]
        where = f"{metadata}:{number}"
        if len(fields) != 3:
            problem = f"{len(fields)} fields, expected {LINE}: {line[:60]!r}"
            problems.append(f"{where}: {problem}; fix the line")
        elif "/" in name:  # mels and trimmed copies would get the name of another clip's
            problems.append(f"{where}: id {name!r}, expected a file's name without '/'; rename it")
        elif name in first_line:
            problem = f"id {name!r} is also in line {first_line[name]}"
            problems.append(f"{where}: {problem}; delete one of them, or give it another id")
        else:
            first_line[name] = number
            clips.append(Clip(str(corpus / "wavs" / f"{name}.wav"), others[-1], where=where))
    if not clips and not problems:
        raise UserError(f"{metadata}: no clip in it; expected lines of {LINE}")
    return clips, problems


def read_split(path: Path) -> dict[str, str]:
    """Read a CSV of id,set into {id: "train" or "val"}."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row["id"]: row["set"] for row in csv.DictReader(file)}


def choose_split(ids: list[str], val_fraction: float, seed: int) -> tuple[set[str], str]:
    """Choose the ids of the validation set; also returns a description of where they come from.

    LJSpeech-1.1 with the defaults uses filelists/ljspeech_split.csv. Any other corpus uses the
    first ids in the order of SHA-256("seed|id"): adding or removing ids hardly changes the set."""
    if (val_fraction, seed) == (VAL_FRACTION, SEED):
        pinned = read_split(SPLIT_FILE)
        if pinned.keys() == set(ids):
            validation = {name for name, which in pinned.items() if which == "val"}
            return validation, f"the pinned split of LJSpeech-1.1, {SPLIT_FILE.name}"
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{seed}|{name}".encode()).digest())
    origin = f"{val_fraction:g} of the ids for validation, ordered by their hash with seed {seed}"
    return set(ranked[: round(len(ids) * val_fraction)]), origin
