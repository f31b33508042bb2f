"""Split a corpus into clips for training and for validation.

validation, origin = choose_split(clips, val_fraction=0.2, seed=0)
"""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from corpus.clips import Clip

SPLIT_FILE = Path(__file__).resolve().parents[1] / "filelists" / "ljspeech_split.csv"
VAL_FRACTION = 0.2  # default fraction of validation clips, as in the split file of LJSpeech
SEED = 0
# Maximum fraction of validation clips whose texts are also in the training set. A larger fraction
# causes a warning. In LJSpeech, the fraction is 0.002, because titles are repeated.
MAX_KNOWN_SHARE = 0.01


def read_split(path: Path) -> dict[str, str]:
    """Read a CSV with the columns id and set. Return the set of each id, which is "train" or
    "val"."""
    with open(path, encoding="utf-8", newline="") as file:
        return {row["id"]: row["set"] for row in csv.DictReader(file)}


def choose_split(
    clips: list[Clip], val_fraction: float, seed: int, *, by_text: bool = False
) -> tuple[set[str], str]:
    """Choose the clips for validation.

    For LJSpeech-1.1 and default arguments, the split in filelists/ljspeech_split.csv is used. For
    other corpora or arguments, the ids are sorted by their hashes SHA-256("seed|id"), and the clips
    with the first ids are held out. With this method, the validation set hardly changes if clips
    are added to or removed from the corpus. If the corpus has several speakers, `val_fraction`
    applies to the clips of each speaker.

    Args:
        val_fraction: fraction of the clips to hold out, from 0 to 1.
        by_text: if True, hash the words of the text instead of the id, so that all clips with the
            same sentence are in the same set. With `by_text`, more than `val_fraction` of a
            speaker's clips may be held out.

    Returns:
        A tuple of the ids of the validation clips and a description of the split.
    """
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
    if len(counts) > 1:  # keep at least one training clip per speaker
        wanted = {name: min(number, counts[name] - 1) for name, number in wanted.items()}
    validation = set[str]()
    for key in sorted(takes, key=lambda key: hashlib.sha256(f"{seed}|{key}".encode()).digest()):
        if any(wanted[clip.speaker] > 0 for clip in takes[key]):
            validation.update(clip.id for clip in takes[key])
            for clip in takes[key]:
                wanted[clip.speaker] -= 1
    kind = "text" if by_text else "id"
    whose = "each speaker's" if len(counts) > 1 else "the"
    origin = f"{val_fraction:g} of {whose} clips are held out, chosen by a hash of the {kind}"
    return validation, f"{origin} with seed {seed}"


def wording(text: str) -> str:
    """Return a text in lower case and without punctuation, for comparisons of texts."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def texts_in_both(sets: Mapping[str, Sequence[Clip]]) -> str | None:
    """Return a warning if many validation texts are also in the training set, otherwise None.

    If many validation texts are also training texts, the validation loss partly measures how well
    the model has learned the training texts.
    """
    trained = {wording(clip.text) for clip in sets["train"]}
    known = [clip for clip in sets.get("val", ()) if wording(clip.text) in trained]
    if not known or len(known) <= MAX_KNOWN_SHARE * len(sets["val"]):
        return None
    count = f"{len(known):,} of {len(sets['val']):,} clips"
    return (
        f"warning: {count} for validation have the same text as a training clip, such as "
        f"{known[0].path}: {known[0].text[:60]!r}. Add --split-by-text to keep all clips of a text "
        "in the same set"
    )
