"""Compare two runs bit by bit.

The comparison ignores times, memory use, and values that depend on the number of processes.
"""

from collections.abc import Iterable
from pathlib import Path

import torch

from tacotron2_voice.utils.files import METRICS_FILE, json_lines, read_bytes
from training.checkpoint import BEST, list_checkpoints, load_checkpoint

LENGTHS_FILE = "lengths.csv"  # not imported from corpus, because GPU machines may lack pyarrow

# Checkpoint entries that must be equal when two runs are equal.
ENTRIES = ("loop", "state_dict", "optimizer", "learning_rate", "scaler", "sampler", "corpus")
TIMES = {
    *("seconds", "minutes", "prepare_seconds", "data_wait_seconds", "process_wait_seconds"),
    *("frames_per_second", "padded_frames_per_second", "clips_per_second", "peak_memory_bytes"),
}
BY_PROCESSES = {"processes", "step_imbalance", "imbalance_sum"}


def differences(one: object, other: object, path: str = "") -> list[str]:
    """Return the paths at which two nested values differ, compared bit by bit."""
    if type(one) is not type(other):
        return [f"{path}: {type(one).__name__}, {type(other).__name__}"]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        one = dict(enumerate(one))
        other = dict(enumerate(other))
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{path}: {len(one)} entries, {len(other)}"]
        names = [name for name in one if name not in TIMES | BY_PROCESSES]
        return [x for n in names for x in differences(one[n], other[n], f"{path}/{n}")]
    return [] if one == other else [f"{path}: {one}, {other}"]


def without_times(records: Iterable[dict]) -> list[dict]:
    """Return only the records and values that must be equal in equal runs."""
    left_out = TIMES | BY_PROCESSES
    shared = (record for record in records if record["kind"] != "run")
    return [{name: x for name, x in record.items() if name not in left_out} for record in shared]


def read_metrics(folder: Path) -> list[dict]:
    return without_times(json_lines(folder / METRICS_FILE))


def compare_runs(one: Path, other: Path) -> list[str]:
    """Return the differences between two runs in their metrics, lengths, newest checkpoints and
    best checkpoints."""
    found = differences(read_metrics(one), read_metrics(other), METRICS_FILE)
    if read_bytes(one / LENGTHS_FILE) != read_bytes(other / LENGTHS_FILE):
        found.append(LENGTHS_FILE)
    for name in (list_checkpoints(other)[-1][1].name, BEST):
        if not (one / name).exists():
            found.append(f"{name}: missing")
            continue
        ours = load_checkpoint(one / name)
        theirs = load_checkpoint(other / name)
        for entry in ENTRIES:
            found += differences(ours[entry], theirs[entry], f"{name}/{entry}")
    return found
