"""Finished training runs, read and checked from their folders, and grouped into rows of a table."""

import csv
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

import numpy as np

from analysis import published
from analysis.figures import batching_name
from analysis.survey import PARAMETERS
from batching import STRATEGIES
from hparams import HParams, create_hparams, hparams_from_dict

METRICS_FILE, LENGTHS_FILE = "metrics.jsonl", "lengths.csv"
MOST_PROBLEMS_SHOWN = 20

# What the report reads of each line of metrics.jsonl: names of numbers.
NUMBERS = {
    "run": (),
    "epoch": (
        "epoch",
        "minutes",
        "prepare_seconds",
        "num_batches",
        "zero_padding_rate",
        "average_batch_length",
        "decoder_steps",
        "frames_per_second",
        "padded_frames_per_second",
        "clips_per_second",
        "data_wait_seconds",
        "peak_memory_bytes",
    ),
    "validation": ("epoch", "validation_loss", "validation_loss_unpadded"),
}

# Settings that change no result of training: runs that differ in them alone are alike.
WITHOUT_EFFECT = {
    "seed",
    "num_workers",
    "iters_per_checkpoint",
    "keep_checkpoints",
    "log_interval",
    "ignore_layers",  # of a warm start, which is told apart by itself
    "training_files",  # the corpus' fingerprint tells what is in them
    "validation_files",
    "win_time",  # win_length and hop_length say the same
    "hop_time",
    "max_decoder_steps",  # of synthesis
    "gate_threshold",
}
PAPER_STRATEGIES = ("random", "sorted", "semi_sorted", "bucket", "alternated_sort")
BATCHING = ("batching_strategy", "dynamic_batch_size", "batch_randomization")  # what a row is of
_NAMES = tuple(field.name for field in fields(HParams))
MODEL = _NAMES[_NAMES.index("n_symbols") :]  # the section "model" of hparams.py, to its end
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}


@dataclass(frozen=True)
class Run:
    """A finished run: the last `run` line, every epoch from 1, validations in order, lengths."""

    directory: Path
    records: tuple[dict, ...]  # `run` lines, one more for each time it was resumed
    hparams: HParams
    epochs: tuple[dict, ...]
    validations: tuple[dict, ...]
    lengths: np.ndarray  # [clips] frames

    @property
    def record(self) -> dict:
        return self.records[-1]

    @property
    def name(self) -> str:
        h = self.hparams
        return batching_name(h.batching_strategy, h.dynamic_batch_size, h.batch_randomization)


@dataclass(frozen=True)
class Row:
    """Runs alike but for their seeds. `label`: `name`, and what sets it apart from its likes."""

    name: str
    label: str
    runs: tuple[Run, ...]
    settings: dict


# ---------------------------------------------------------------------------- reading


def find_runs(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Folders at or below `folders` that hold a metrics.jsonl, and what is wrong with the rest."""
    found, problems = {}, []
    for folder in folders:
        if not folder.is_dir():
            problems.append(
                f"{folder}: no such folder; name a run's folder, or one that holds runs"
            )
            continue
        below = sorted(path.parent for path in folder.rglob(METRICS_FILE))
        if not below:
            problems.append(f"{folder}: no {METRICS_FILE} in it or below; train.py -o writes one")
        found |= {path.resolve(): path for path in below}
    return list(found.values()), problems


def read_run(directory: Path) -> Run:
    """The finished run in `directory`.

    Raises:
        ValueError: naming the file, and the line where it is one, if a line is broken, an epoch
            is missing, the run is not finished or its lengths are not those it trained on.
    """
    path = directory / METRICS_FILE
    lines = {"run": [], "epoch": [], "validation": []}
    for number, text in enumerate(_read_text(path).split("\n"), 1):
        if text.strip():
            try:
                record = _parse(text)
                _check_order(record, lines)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            lines[record["kind"]].append(record)
    if not lines["run"]:
        raise ValueError(f"{path}: no `run` line with the settings; train the run again")
    hparams = hparams_from_dict(lines["run"][-1]["hparams"])
    done = len(lines["epoch"])
    if done < hparams.epochs:
        raise ValueError(
            f"{path}: unfinished, {done} of {hparams.epochs} epochs; go on with "
            f"train.py -o {directory} --resume"
        )
    lengths = read_lengths(directory / LENGTHS_FILE)
    corpus = lines["run"][-1]["corpus"]
    if (len(lengths), lengths.sum()) != (corpus["training_clips"], corpus["training_frames"]):
        raise ValueError(
            f"{directory / LENGTHS_FILE}: {len(lengths)} clips of {lengths.sum()} frames, but the "
            f"run trained on {corpus['training_clips']} of {corpus['training_frames']}; "
            "put its own file back"
        )
    return Run(
        directory,
        tuple(lines["run"]),
        hparams,
        tuple(lines["epoch"]),
        tuple(lines["validation"]),
        lengths,
    )


def read_lengths(path: Path) -> np.ndarray:
    """Frames of every training clip, from the lengths.csv that train.py writes (id,frames).

    Raises:
        ValueError: naming the file and every bad line.
    """
    # csv would break lines inside quotes; ids have none that train.py did not put there itself.
    rows = list(csv.reader(_read_text(path).splitlines()))
    if not rows or rows[0] != ["id", "frames"]:
        first = ",".join(rows[0]) if rows else "an empty file"
        raise ValueError(f"{path}:1: {first!r}, expected the heading id,frames of train.py")
    problems = [
        f"{path}:{number}: {','.join(row)!r}, expected id,frames with at least one frame"
        for number, row in enumerate(rows[1:], 2)
        if len(row) != 2 or not (row[1].isascii() and row[1].isdigit() and int(row[1]) > 0)
    ]
    if len(rows) == 1:
        problems.append(f"{path}: no clip in it, only the heading; put the run's own file back")
    if problems:
        more = len(problems) - MOST_PROBLEMS_SHOWN
        shown = problems[:MOST_PROBLEMS_SHOWN] + ([f"... and {more} more"] if more > 0 else [])
        raise ValueError("\n  ".join(shown))
    return np.array([int(row[1]) for row in rows[1:]])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; train.py writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as UTF-8 text ({error})") from None


def _parse(text: str) -> dict:
    """One line of metrics.jsonl; ValueError if the report could not use it."""
    mend = "put the file back as train.py wrote it, or train the run again"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): {text[:60]!r}; {mend}") from None
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in NUMBERS:
        raise ValueError(f"kind {kind!r}, expected one of {', '.join(NUMBERS)}; {mend}")
    for name in NUMBERS[kind]:
        if not _is_number(record.get(name)):
            raise ValueError(f"{name}={record.get(name)!r}, expected a finite number; {mend}")
    if kind == "run":
        _check_run_record(record, mend)
    return record


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_run_record(record: dict, mend: str) -> None:
    for name in ("hparams", "corpus", "machine", "versions"):
        if not isinstance(record.get(name), dict):
            raise ValueError(f"{name}={record.get(name)!r}, expected an object; {mend}")
    corpus = record["corpus"]
    counts = ("training_clips", "validation_clips", "training_frames")
    if not all(_is_number(corpus.get(name)) for name in counts) or not isinstance(
        corpus.get("fingerprint"), str
    ):
        raise ValueError(f"corpus={corpus}, expected fingerprint and {', '.join(counts)}; {mend}")
    try:
        datetime.fromisoformat(record["time"])
        hparams_from_dict(record["hparams"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{' '.join(str(error).split())}; {mend}") from None


def _check_order(record: dict, lines: dict[str, list[dict]]) -> None:
    """Epochs count up from 1, each at most once validated, right after it ends."""
    done = len(lines["epoch"])
    if record["kind"] == "epoch" and record["epoch"] != done + 1:
        raise ValueError(
            f"epoch {record['epoch']}, expected epoch {done + 1}: lines are missing or doubled, or "
            "the run went on from a checkpoint of another folder; train it from its start"
        )
    if record["kind"] == "validation":
        last = lines["validation"][-1]["epoch"] if lines["validation"] else 0
        if record["epoch"] != done or record["epoch"] == last:
            raise ValueError(
                f"validation of epoch {record['epoch']} after epoch {done}, expected one of epoch "
                f"{done} at most; lines are missing or doubled: train the run again"
            )


# ---------------------------------------------------------------------------- what runs share


def settings_of(run: Run) -> dict:
    """What decides a run's results but for its seed: settings that have an effect, the corpus,
    the machine and the weights it began from."""
    h, record = run.hparams, run.record
    strategy = h.batching_strategy
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(strategy)}
    if strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= {
            "learning_rate_decay_start",
            "learning_rate_half_life",
            "learning_rate_final",
        }
    settings = {name: value for name, value in asdict(h).items() if name not in ignored}
    settings |= {"epochs": len(run.epochs), "started_from": warm_start(run)}
    corpus = record["corpus"]
    settings["corpus"] = f"{corpus['training_clips']} clips, {str(corpus['fingerprint'])[:8]}"
    # The kernel's version is no other machine; it is in `environment_of`.
    settings |= {f"machine's {k}": v for k, v in record["machine"].items() if k != "system"}
    return settings


def environment_of(record: dict) -> dict:
    """What else may tell two runs apart: software, commit."""
    return {
        "system": record["machine"].get("system"),
        **{f"version of {name}": version for name, version in record["versions"].items()},
        "commit": record.get("commit"),
    }


def warm_start(run: Run) -> str | None:
    """The checkpoint whose weights the run began with, if it did not begin from nothing."""
    first = run.records[0]
    return first.get("started_from") if first.get("iteration") == 0 else None


def differing(one: dict, other: dict) -> list[str]:
    """Settings that both have and that keep them from being compared as two batchings."""
    shared = (one.keys() & other.keys()) - set(BATCHING)
    return sorted(name for name in shared if one[name] != other[name])


# ---------------------------------------------------------------------------- rows


def group_runs(runs: Iterable[Run]) -> tuple[list[Row], list[str]]:
    """Rows of the tables, the paper's first and in its order; and which runs were left out.

    Of two runs with equal settings and seed the one that began, or was last resumed, later stays.
    """
    groups: dict[str, dict[int, Run]] = {}
    problems = []
    for run in sorted(runs, key=lambda run: _time(run.record)):
        by_seed = groups.setdefault(repr(sorted(settings_of(run).items())), {})
        seed = run.hparams.seed
        if seed in by_seed:
            problems.append(
                f"{by_seed[seed].directory}: the same settings and seed {seed} as the later "
                f"{run.directory}, which is kept"
            )
        by_seed[seed] = run
    rows = []
    for by_seed in groups.values():
        members = tuple(by_seed[seed] for seed in sorted(by_seed))
        name = members[0].name
        rows.append(Row(name, name, members, settings_of(members[0])))
    rows = _tell_apart(rows)
    return sorted(rows, key=_place), problems


def _time(record: dict) -> datetime:
    return datetime.fromisoformat(record["time"]).astimezone()


def _place(row: Row) -> tuple:
    paper = list(published.TABLE_2)
    h = row.runs[0].hparams
    return (
        paper.index(row.name) if row.name in paper else len(paper),
        STRATEGIES.index(h.batching_strategy),
        h.dynamic_batch_size,
        h.batch_randomization,
        row.label != row.name,
        row.label,
    )


def _tell_apart(rows: list[Row]) -> list[Row]:
    """Rows of one name get the settings appended in which they differ; the paper's stay bare."""
    told = []
    for row in rows:
        likes = [other.settings for other in rows if other.name == row.name]
        names = [
            name
            for name in dict.fromkeys(name for settings in likes for name in settings)
            if len({repr(settings.get(name)) for settings in likes}) > 1
        ]
        if all(row.settings.get(n) == published.SETTINGS.get(n, "not the paper's") for n in names):
            told.append(row)
            continue
        values = ", ".join(f"{SHORT.get(n, n)} {row.settings.get(n)}" for n in names)
        told.append(Row(row.name, f"{row.name} ({values})", row.runs, row.settings))
    return told


def representatives(rows: Sequence[Row]) -> dict[str, Row]:
    """The row that stands for a batching's name where two batchings are compared: of several the
    one that most others may be compared with."""

    def comparable(row: Row) -> int:
        return sum(not differing(row.settings, other.settings) for other in rows)

    chosen: dict[str, Row] = {}
    for row in rows:
        best = chosen.get(row.name)
        if best is None or comparable(row) > comparable(best):
            chosen[row.name] = row
    return chosen


# ---------------------------------------------------------------------------- warnings


def warnings(rows: Sequence[Row]) -> list[str]:
    """What keeps the rows from being compared, and what changed in the midst of a run."""
    runs = [run for row in rows for run in row.runs]
    told = []
    seen: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for name, value in (settings_of(run) | environment_of(run.record)).items():
            if name not in BATCHING:
                seen.setdefault(name, {}).setdefault(_shown(value), []).append(str(run.directory))
    for name, values in seen.items():
        if len(values) > 1:
            parts = sorted(values.items(), key=lambda item: -len(item[1]))
            told.append(f"{name}: " + "; ".join(f"{v} ({_some(w)})" for v, w in parts))
    for name, row in representatives(rows).items():
        if [other.name for other in rows].count(name) > 1:
            told.append(f"{name} has several rows: in Tables 1, 3 and 4 it is {row.label}")
    for run in runs:
        for before, after in itertools.pairwise(run.records):
            changes = _changes(before, after)
            if changes:
                told.append(
                    f"{run.directory} was resumed at epoch {after.get('epoch')} with other "
                    + "; ".join(changes)
                )
    return told


def _changes(before: dict, after: dict) -> list[str]:
    """What differs between two `run` lines of one run, but for how many epochs it shall have."""
    one, other = (
        record["hparams"]
        | {f"machine's {name}": value for name, value in record["machine"].items()}
        | environment_of(record)
        | {"corpus": record["corpus"]["fingerprint"][:8]}
        for record in (before, after)
    )
    ignored = WITHOUT_EFFECT | {"epochs", "machine's system"}
    return [
        f"{name}: {_shown(one.get(name))}, then {_shown(other.get(name))}"
        for name in dict.fromkeys([*one, *other])
        if name not in ignored and one.get(name) != other.get(name)
    ]


def _shown(value) -> str:
    return "unknown" if value is None else str(value)


def _some(names: list[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def paper_hparams() -> HParams:
    """The paper's settings; where it names none, this recipe's defaults, which are NVIDIA's."""
    return create_hparams(",".join(f"{name}={v}" for name, v in published.SETTINGS.items()))


def deviations(rows: Sequence[Row]) -> list[str]:
    """In what the runs are not the paper's experiments; empty if in nothing that can be known."""
    paper = asdict(paper_hparams())
    runs = [run for row in rows for run in row.runs]
    seen: dict[str, list[str]] = {}
    needed = published.EPOCHS_SHOWN[-1] + published.SETTINGS["epochs_per_validation"]
    for run in runs:
        found, model = [], []
        corpus, settings = run.record["corpus"], settings_of(run)
        for what, count, of_paper in (
            ("training", corpus["training_clips"], published.TRAINING_CLIPS),
            ("validation", corpus["validation_clips"], published.VALIDATION_CLIPS),
        ):
            if count != of_paper:
                found.append(f"{count:,} {what} clips instead of {of_paper:,}")
        if len(run.epochs) < needed:
            found.append(f"{len(run.epochs)} epochs instead of {needed}")
        if warm_start(run):
            found.append(f"weights that began from {warm_start(run)}, not at random")
        ours_alone = run.hparams.batching_strategy not in PAPER_STRATEGIES
        for name, value in settings.items():
            if name not in paper or name in (*BATCHING, "epochs", "load_mel_from_disk"):
                continue
            if value != paper[name] and not (ours_alone and name in PARAMETERS.values()):
                told = f"{name} {value} instead of {paper[name]}"
                (model if name in MODEL else found).append(told)
        if model:
            found.append("another model: " + ", ".join(model))
        for text in found:
            seen.setdefault(text, []).append(str(run.directory))
    return [
        text if len(names) == len(runs) else f"{text} ({_some(names)})"
        for text, names in seen.items()
    ]
