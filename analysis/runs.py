"""The one reader of run folders: what train.py and a study wrote there, as pandas DataFrames.

    runs = read_runs([Path("runs")])
    runs.epochs.groupby("label")["minutes"].median()

Runs that differ in nothing but their seed share a label, a row of the report's tables. A broken or
unfinished run is left out, and `left_out` says why.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from analysis import published
from analysis.checked_json import parse_json
from analysis.strategies import PARAMETERS, batching_name
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_intelligibility
from batching import STRATEGIES
from data_utils import LENGTHS_FILE, lines_refused
from errors import UserError
from files import METRICS_FILE, numbered_lines
from hparams import HParams, create_hparams, hparams_from_dict

EPOCH_MINUTES_FILE = "epoch_minutes.json"  # written by benchmarks/epoch.py --runs
# Settings that change no result of training.
WITHOUT_EFFECT = {
    "seed",
    "num_workers",
    "iters_per_checkpoint",
    "keep_checkpoints",
    "log_interval",
    "ignore_layers",  # of a warm start, which is a setting of its own below
    "training_files",  # the fingerprint of the corpus stands for their content
    "validation_files",
    "win_time",  # the same as win_length and hop_length
    "hop_time",
    "max_decoder_steps",  # of synthesis
    "gate_threshold",
}
OF_DECAY = {"learning_rate_decay_start", "learning_rate_half_life", "learning_rate_final"}
BATCHING = ["batching_strategy", "dynamic_batch_size", "batch_randomization"]  # what rows compare
PAPER_STRATEGIES = ("random", "sorted", "semi_sorted", "bucket", "alternated_sort")
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
Count = Annotated[int, Field(ge=0, le=10**20)]


@dataclass(frozen=True)
class CorpusRecord:
    """What a run trained on."""

    fingerprint: str
    training_clips: Count
    validation_clips: Count
    training_frames: Count


@dataclass(frozen=True)
class RunRecord:
    """A `run` line of metrics.jsonl: written when a run starts and whenever it is resumed."""

    kind: Literal["run"]
    iteration: Count  # updates done before it
    epoch: Count  # the next one, counted from 1
    time: datetime
    hparams: dict
    corpus: CorpusRecord
    machine: dict
    versions: dict
    started_from: str | None = None  # a checkpoint
    commit: str | None = None

    def __post_init__(self) -> None:
        if not 1970 < self.time.year < 9999:  # other years cannot be converted between time zones
            raise ValueError(f"time={self.time}, expected a year from 1971 to 9998")
        hparams_from_dict(self.hparams)


@dataclass(frozen=True)
class EpochRecord:
    """An `epoch` line. Rates and fractions are from 0 to 1, lengths are in frames."""

    kind: Literal["epoch"]
    epoch: Count  # from 1
    minutes: Number
    prepare_seconds: Number
    num_batches: Count
    zero_padding_rate: Number
    average_batch_length: Number
    decoder_steps: Count
    frames_per_second: Number
    padded_frames_per_second: Number
    clips_per_second: Number
    data_wait_seconds: Number
    peak_memory_bytes: Count


@dataclass(frozen=True)
class ValidationRecord:
    """A `validation` line, which follows the line of its epoch."""

    kind: Literal["validation"]
    epoch: Count
    validation_loss: Number
    validation_loss_unpadded: Number


RECORDS = {"run": RunRecord, "epoch": EpochRecord, "validation": ValidationRecord}


@dataclass(frozen=True)
class EpochMinutes:
    """Minutes of each epoch, timed in turns with other batchings."""

    minutes: list[Number]
    relative_error: Number  # standard error as a share of the minutes


@dataclass(frozen=True)
class Run:
    """One finished run, trained from its first epoch to its last."""

    folder: str
    starts: list[RunRecord]
    hparams: HParams  # those it ended with
    lengths: np.ndarray  # [clips] frames
    epochs: pd.DataFrame  # EpochRecord's fields, validation losses, hours and updates so far
    transcription: Intelligibility | None
    relative_error: float  # of minutes that were timed in turns, else 0
    notes: list[str]

    @property
    def name(self) -> str:
        return batching_name(*(getattr(self.hparams, name) for name in BATCHING))


@dataclass(frozen=True)
class Runs:
    """Finished runs, and the rows that they make."""

    found: dict[str, Run]  # by folder
    table: pd.DataFrame  # [runs] label, name, seed, ..., indexed by folder
    rows: pd.DataFrame  # [labels] name and settings as text, NaN where without effect
    epochs: pd.DataFrame  # all runs' epochs, with run and label
    left_out: list[str]

    def first(self, label: str) -> Run:
        """The first run of a row."""
        return self.found[self.table.index[self.table["label"] == label][0]]

    def differences(self) -> np.ndarray:
        """[rows, rows, settings] where two rows have different values of a setting that has an
        effect in both, and that is not the batching."""
        values = self.rows.drop(columns=["name", *BATCHING])
        text, known = values.fillna("").to_numpy(str), values.notna().to_numpy()
        return (text[:, None] != text) & known[:, None] & known

    def differing(self, first: str, second: str) -> list[str]:
        """The settings that keep two rows from being compared as two batchings."""
        places = self.rows.index.get_indexer([first, second])
        columns = self.rows.columns.drop(["name", *BATCHING])
        return sorted(columns[self.differences()[tuple(places)]])

    def representatives(self) -> dict[str, str]:
        """The label that stands for a batching's name where two batchings are compared: of several
        the one that can be compared with most others."""
        comparable = pd.Series((~self.differences().any(2)).sum(1), self.rows.index)
        return comparable.groupby(self.rows["name"], sort=False).idxmax().to_dict()


# ---------------------------------------------------------------------------- reading


def read_runs(folders: Sequence[Path]) -> Runs:
    """All finished runs at or below `folders`.

    Raises:
        UserError: if there is none, naming what was left out with the reason.
    """
    directories, left_out, found = {}, [], []
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(METRICS_FILE))
        if not below:
            left_out.append(f"{folder}: no {METRICS_FILE} in it or below; train.py -o writes one")
        directories |= {path.resolve(): path for path in below}
    for directory in directories.values():
        try:
            found.append(read_run(directory))
        except UserError as error:
            left_out.append(str(error))
    if not found:
        raise UserError("no finished run:\n" + "\n".join(left_out))
    return group_runs(found, left_out + [note for run in found for note in run.notes])


def read_run(directory: Path) -> Run:
    """The finished run in `directory`.

    Raises:
        UserError: naming the file and the line if one is broken, or if an epoch is missing, the
            run is not finished or its other files belong to another run.
    """
    path = directory / METRICS_FILE
    records, notes = read_metrics(path)
    starts = [record for record in records if isinstance(record, RunRecord)]
    last, lines = starts[-1], defaultdict(dict)
    for record in records:
        if not isinstance(record, RunRecord):
            lines[record.epoch] |= vars(record)
    columns = [*EpochRecord.__annotations__, *ValidationRecord.__annotations__][1:]
    epochs = pd.DataFrame(lines.values(), columns=pd.unique(pd.Series(columns)))
    hparams = hparams_from_dict(last.hparams)
    if len(epochs) < hparams.epochs:
        raise UserError(
            f"{path}: unfinished, {len(epochs)} of {hparams.epochs} epochs; resume it with "
            f"train.py -o {directory} --resume"
        )
    lengths = _read_lengths(directory / LENGTHS_FILE, last.corpus)
    transcription, timed = None, EpochMinutes(list(epochs["minutes"]), 0.0)
    if (file := directory / INTELLIGIBILITY_FILE).exists():
        transcription = read_intelligibility(file)
        _same_epochs(file, transcription.epochs, len(epochs), "scripts/listen.py")
    if (file := directory / EPOCH_MINUTES_FILE).exists():
        text = "\n".join(line for _, line in numbered_lines(file, "no such file"))
        try:
            timed = parse_json(text, EpochMinutes)
        except ValueError as error:
            raise UserError(f"{file}: {error}; delete it and time the epochs again") from None
        _same_epochs(file, len(timed.minutes), len(epochs), "benchmarks/epoch.py --runs")
    epochs["minutes"] = timed.minutes
    epochs["hours"] = epochs["minutes"].cumsum() / 60
    epochs["updates"] = epochs["num_batches"].cumsum()
    share = timed.relative_error
    return Run(str(directory), starts, hparams, lengths, epochs, transcription, share, notes)


def _same_epochs(file: Path, found: int, expected: int, program: str) -> None:
    if found != expected:
        raise UserError(f"{file}: of {found} epochs, the run has {expected}; make it with {program}")


def _read_lengths(path: Path, corpus: CorpusRecord) -> np.ndarray:
    try:
        lengths = pd.read_csv(path)["frames"].to_numpy(np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: {error!r}; expected lines of id,frames from train.py") from None
    if (len(lengths), lengths.sum()) != (corpus.training_clips, corpus.training_frames):
        raise UserError(
            f"{path}: {len(lengths)} clips of {lengths.sum()} frames, but the run trained on "
            f"{corpus.training_clips} of {corpus.training_frames}; restore its own file"
        )
    return lengths


def read_metrics(path: Path) -> tuple[list[RunRecord | EpochRecord | ValidationRecord], list[str]]:
    """The lines of a metrics.jsonl, the first of them a `run` line; and a note if the last line,
    which a killed run may leave incomplete, was left out.

    Raises:
        UserError: naming the file and every line that is not JSON, lacks a number, has something
            else in its place, or is out of order.
    """
    lines = numbered_lines(path, "no such file; train.py -o writes it")
    records, problems, notes, epoch, validated = [], [], [], 0, 0
    for number, line in lines:
        try:
            kind = parse_json(line, dict).get("kind")
            if kind not in tuple(RECORDS):
                raise ValueError(f"kind={kind!r}, expected one of {', '.join(RECORDS)}")
            record = parse_json(line, RECORDS[kind])
        except ValueError as error:
            if (number, line) == lines[-1] and "not JSON" in str(error):
                notes.append(f"{path}:{number}: incomplete last line, left out: {line[:60]!r}")
            else:
                problems.append(f"{path}:{number}: {error}")
            continue
        if not records and kind != "run":
            problems.append(f"{path}:{number}: {kind} before any `run` line, which has the settings")
        expected = {"run": record.epoch, "epoch": epoch + 1, "validation": epoch}[kind]
        if record.epoch != expected or (kind == "validation" and validated == epoch):
            problems.append(f"{path}:{number}: {kind} of epoch {record.epoch} after {epoch}")
        epoch = record.epoch if kind == "epoch" else epoch
        validated = epoch if kind == "validation" else validated
        records.append(record)
    if problems:
        refused = lines_refused(path, problems, len(lines))
        raise UserError(f"{refused}\n  restore the file as train.py wrote it, or train again")
    if not records:
        raise UserError(f"{path}: no `run` line with the settings; train the run again")
    return records, notes


# ---------------------------------------------------------------------------- rows


def settings_of(run: Run) -> dict[str, str | float]:
    """What decides a run's results but for its seed, as text; NaN for what has no effect."""
    h, corpus = run.hparams, run.starts[-1].corpus
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(h.batching_strategy)}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= OF_DECAY
    settings = {name: np.nan if name in ignored else str(v) for name, v in asdict(h).items()}
    first = run.starts[0]
    settings["epochs"] = str(len(run.epochs))
    settings["started_from"] = str(first.started_from if first.iteration == 0 else None)
    settings["corpus"] = f"{corpus.training_clips} clips, {corpus.fingerprint[:8]}"
    # Another version of the system's kernel is no other machine.
    machine = {name: v for name, v in _environment(run.starts[-1]).items() if "machine's" in name}
    return settings | machine | {"machine's system": np.nan}


def _environment(record: RunRecord) -> dict[str, str]:
    """What else may differ between two runs or two starts of one."""
    found = {f"machine's {name}": value for name, value in record.machine.items()}
    found |= {f"version of {name}": value for name, value in record.versions.items()}
    found |= {"commit": record.commit, "corpus": record.corpus.fingerprint[:8]}
    return {name: "unknown" if value is None else str(value) for name, value in found.items()}


def group_runs(found: Sequence[Run], left_out: Sequence[str] = ()) -> Runs:
    """The runs as rows, the paper's ten first and in its order.

    Of two runs with equal settings and seed the one started or resumed later stays.
    """
    runs = sorted(found, key=lambda run: run.starts[-1].time.astimezone())
    settings = pd.DataFrame(map(settings_of, runs), index=[run.folder for run in runs])
    table = pd.DataFrame(
        {
            "name": [run.name for run in runs],
            "seed": [run.hparams.seed for run in runs],
            "label": settings.fillna("").apply("\n".join, axis=1),  # until it is shortened below
            "relative_error": [run.relative_error for run in runs],
        },
        settings.index,
    )
    again = table.duplicated(["label", "seed"], keep="last")
    same = "the same settings and seed as a later run, which is kept"
    left_out = [*left_out, *(f"{folder}: {same}" for folder in table.index[again])]
    table = table[~again]
    rows = settings.assign(name=table["name"], label=table["label"])[~again]
    rows = rows.drop_duplicates("label").set_index("label")
    labels = _short_labels(rows)
    rows = rows.rename(index=labels)
    rows = rows.loc[sorted(rows.index, key=lambda label: _place(label, rows.loc[label]))]
    table = table.assign(label=table["label"].map(labels)).sort_values("seed", kind="stable")
    table = table.loc[sorted(table.index, key=lambda f: rows.index.get_loc(table["label"][f]))]
    by_folder = {run.folder: run for run in runs}
    by_folder = {folder: by_folder[folder] for folder in table.index}
    epochs = pd.concat(
        run.epochs.assign(run=folder, label=table["label"][folder])
        for folder, run in by_folder.items()
    )
    return Runs(by_folder, table, rows, epochs.reset_index(drop=True), left_out)


def _short_labels(rows: pd.DataFrame) -> dict[str, str]:
    """The name, and in brackets the settings in which a row differs from others of its name and
    from what is usual here: a name alone means the same settings wherever it stands."""
    labels = {}
    for name, same_name in rows.groupby("name"):
        differing = same_name.columns[same_name.nunique(dropna=False) > 1]
        usual = {setting: _usual(rows[setting].dropna()) for setting in differing}
        for key, row in same_name[differing].iterrows():
            others = {n: v for n, v in row.dropna().items() if v != usual[n]}
            shown = ", ".join(f"{SHORT.get(n, n)} {value}" for n, value in others.items())
            labels[key] = f"{name} ({shown})" if shown else name
    return labels


def _usual(values: pd.Series) -> str:
    """What most rows have; of equally many, the paper's value or this recipe's default."""
    default = published.SETTINGS.get(values.name, getattr(HParams, str(values.name), None))
    counts = values.value_counts()
    return max(counts.index, key=lambda value: (counts[value], value == str(default)))


def _place(label: str, row: pd.Series) -> tuple:
    paper = list(published.TABLE_2)
    # Numbers in the label count as numbers, so that a batch size of 4 stands before one of 16.
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return (
        paper.index(row["name"]) if row["name"] in paper else len(paper),
        STRATEGIES.index(row["batching_strategy"]),
        row["dynamic_batch_size"],
        str(row["batch_randomization"]),
        label != row["name"],
        [float(part) if nth % 2 else part for nth, part in enumerate(parts)],
    )


# ---------------------------------------------------------------------------- warnings


def deviations(runs: Runs) -> list[str]:
    """In what the runs are not the paper's experiments; empty if in nothing that can be known."""
    # Where the paper names no value, this recipe's defaults stand for it, which are NVIDIA's.
    paper = asdict(create_hparams(",".join(f"{n}={v}" for n, v in published.SETTINGS.items())))
    paper = {name: str(value) for name, value in paper.items() if name not in BATCHING}
    paper |= {"started_from": "None", "training clips": str(published.TRAINING_CLIPS)}
    paper |= {"validation clips": str(published.VALIDATION_CLIPS)}
    lines = []
    for run in runs.found.values():
        corpus = run.starts[-1].corpus
        ours = settings_of(run) | {
            "training clips": str(corpus.training_clips),
            "validation clips": str(corpus.validation_clips),
            "epochs": str(min(len(run.epochs), published.EPOCHS)),
        }
        if run.hparams.batching_strategy not in PAPER_STRATEGIES:
            ours |= dict.fromkeys(PARAMETERS.values(), np.nan)  # the paper has no value for them
        lines.append(ours)
    paper["epochs"] = str(published.EPOCHS)
    facts = pd.DataFrame(lines, index=list(runs.found))
    texts = []
    for name in facts.columns.intersection(list(paper)).drop("load_mel_from_disk"):
        for value, folders in _folders_by_value(facts[name]).items():
            if value != paper[name]:
                where = f" ({_some(folders)})" if len(folders) < len(facts) else ""
                texts.append(f"{name} {value} instead of {paper[name]}{where}")
    return texts


def comparison_warnings(runs: Runs) -> list[str]:
    """What keeps the rows from being compared, and what changed when a run was resumed."""
    lines = [settings_of(run) | _environment(run.starts[-1]) for run in runs.found.values()]
    facts = pd.DataFrame(lines, index=list(runs.found)).drop(columns=BATCHING)
    warnings = []
    for name in facts.columns[facts.nunique() > 1]:
        found = _folders_by_value(facts[name]).items()
        warnings.append(f"{name}: " + "; ".join(f"{v} ({_some(folders)})" for v, folders in found))
    counts = runs.rows["name"].value_counts()
    for name, label in runs.representatives().items():
        if counts[name] > 1:
            warnings.append(f"{name} has several rows: in Tables 1, 3 and 4 it is {label}")
    for run in runs.found.values():
        for before, after in itertools.pairwise(run.starts):
            old, new = (
                pd.Series(record.hparams | _environment(record)).map(str)
                for record in (before, after)
            )
            for name in old.index.intersection(new.index).drop([*WITHOUT_EFFECT, "epochs"]):
                if old[name] != new[name]:
                    change = f"{name}: {old[name]}, then {new[name]}"
                    warnings.append(f"{run.folder} was resumed at epoch {after.epoch}: {change}")
    return warnings


def _folders_by_value(column: pd.Series) -> dict[str, list[str]]:
    """The folders of each value, the most common first."""
    groups = {value: list(folders) for value, folders in column.groupby(column).groups.items()}
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _some(names: list[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def facts(runs: Runs) -> dict[str, str]:
    """What was trained on what, by whom and when, for the head of a report."""
    lines = []
    for run in runs.found.values():
        record, h = run.starts[-1], run.hparams
        corpus, machine = record.corpus, record.machine
        hours = corpus.training_frames * h.hop_length / h.sampling_rate / 3600
        lines.append(
            {
                "seeds": h.seed,
                "epochs": len(run.epochs),
                "corpus": f"{corpus.training_clips:,} clips ({hours:.2f} hours) for training, "
                f"{corpus.validation_clips:,} for validation; fingerprint {corpus.fingerprint[:16]}",
                "trained on": machine.get("device"),
                "machine": f"{machine.get('processor')}, cores: {machine.get('cores')}, threads: "
                f"{machine.get('threads')}, {machine.get('system')}",
                "versions": ", ".join(f"{n} {v}" for n, v in record.versions.items() if v),
                "commit": record.commit or "unknown",
            }
        )
    times = sorted(run.starts[-1].time.astimezone() for run in runs.found.values())
    began = f"started or resumed {times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M %z}"
    every = {name: "; ".join(x.astype(str).unique()) for name, x in pd.DataFrame(lines).items()}
    return {"runs": f"{len(runs.found)} in {len(runs.rows)} rows, {began}", **every}
