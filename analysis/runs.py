"""The one reader of run folders: what train.py and a study wrote there, as pandas DataFrames.

    runs = read_runs([Path("runs")])
    runs.epochs.groupby("label")["minutes"].median()

Runs that differ in nothing but their seed share a label, a row of the report's tables. A broken or
unfinished run is left out, and `left_out` says why.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from analysis import published
from analysis.survey import PARAMETERS
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_findings
from batching import batching_name
from data_utils import LENGTHS_FILE, lines_refused
from errors import UserError
from files import METRICS_FILE, numbered_lines
from hparams import HParams, create_hparams, hparams_from_dict

EPOCH_MINUTES_FILE = "epoch_minutes.json"  # written by benchmarks/epoch.py --runs
BATCHING = ["batching_strategy", "dynamic_batch_size", "batch_randomization"]  # what rows compare
# Settings that change no result of training, or that others stand for: the fingerprint for the
# corpus, win_length and hop_length for the times, started_from for a warm start.
WITHOUT_EFFECT = set(
    "seed num_workers iters_per_checkpoint keep_checkpoints log_interval ignore_layers "
    "training_files validation_files win_time hop_time max_decoder_steps gate_threshold".split()
)
OF_DECAY = {"learning_rate_decay_start", "learning_rate_half_life", "learning_rate_final"}
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
Count = Annotated[int, Field(ge=0, le=10**18)]


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
        if not 1970 < self.time.year < 9999:  # others cannot be converted between time zones
            raise ValueError(f"time={self.time}, expected a year from 1971 to 9998")
        hparams_from_dict(self.hparams)


@dataclass(frozen=True)
class EpochRecord:
    """An `epoch` line. Rates are from 0 to 1, lengths are in frames."""

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


@dataclass(frozen=True)
class EpochMinutes:
    """Minutes of each epoch, timed in turns with other batchings."""

    minutes: list[Number]
    relative_error: Number  # standard error as a share of the minutes


Record = RunRecord | EpochRecord | ValidationRecord
LINE: TypeAdapter = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


@dataclass(frozen=True)
class Run:
    """A finished run, trained from its first epoch to its last."""

    folder: str
    starts: list[RunRecord]
    hparams: HParams  # those it ended with
    lengths: np.ndarray  # [clips] frames
    epochs: pd.DataFrame  # fields of EpochRecord and ValidationRecord, hours and updates so far
    transcription: Intelligibility | None
    relative_error: float  # of minutes that were timed in turns, else 0
    notes: list[str]

    @property
    def corpus(self) -> CorpusRecord:
        return self.starts[-1].corpus


@dataclass(frozen=True)
class Runs:
    """Finished runs, and the rows that they make in a report. A row whose label is the bare name
    of its batching represents it; other rows of that name have the settings that differ."""

    found: dict[str, Run]  # by folder
    table: pd.DataFrame  # [runs] label, seed, relative_error; the folders are the index
    rows: pd.DataFrame  # [labels] name and settings as text, NaN where without effect
    epochs: pd.DataFrame  # all runs' epochs, with folder (`run`) and label
    left_out: list[str]

    def first(self, label: str) -> Run:
        """The first run of a row."""
        return self.found[self.table.index[self.table["label"] == label][0]]

    def differing(self, first: str, second: str) -> list[str]:
        """The settings that keep two rows from being compared as two batchings."""
        columns = self.rows.columns[_differences(self.rows.loc[[first, second]])[0, 1]]
        return sorted(columns)


# ---------------------------------------------------------------------------- reading


def read_runs(folders: Sequence[Path]) -> Runs:
    """All finished runs at or below `folders`.

    Raises:
        UserError: if there is none, naming what was left out with the reason.
    """
    directories: dict[Path, Path] = {}
    left_out, found = [], []
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(METRICS_FILE))
        if not below:
            left_out.append(f"{folder}: no {METRICS_FILE} in it or below; train.py -o writes one")
        directories |= {path.resolve(): path for path in below}
    for directory in directories.values():
        try:
            found.append(read_run(directory))
            left_out += found[-1].notes
        except UserError as error:
            left_out.append(str(error))
    if not found:
        raise UserError("no finished run:\n" + "\n".join(left_out))
    return _group(sorted(found, key=lambda run: run.starts[-1].time.astimezone()), left_out)


def read_run(directory: Path) -> Run:
    """The finished run in `directory`.

    Raises:
        UserError: naming the file and the line if one is broken, or if an epoch is missing, the
            run is not finished or its other files belong to another run.
    """
    path = directory / METRICS_FILE
    records, notes = read_metrics(path)
    starts = [record for record in records if isinstance(record, RunRecord)]
    epochs, validations = (
        pd.DataFrame(
            [vars(record) for record in records if isinstance(record, kind)],
            columns=list(kind.__annotations__)[1:],
        )
        for kind in (EpochRecord, ValidationRecord)
    )
    hparams, corpus = hparams_from_dict(starts[-1].hparams), starts[-1].corpus
    if len(epochs) < hparams.epochs:
        raise UserError(
            f"{path}: unfinished, {len(epochs)} of {hparams.epochs} epochs; resume it with "
            f"train.py -o {directory} --resume"
        )
    epochs = epochs.merge(validations, on="epoch", how="left")
    file = directory / LENGTHS_FILE
    try:
        lengths = pd.read_csv(file)["frames"].to_numpy(np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: {error!r}; expected lines of id,frames from train.py") from None
    if (len(lengths), lengths.sum()) != (corpus.training_clips, corpus.training_frames):
        raise UserError(
            f"{file}: {len(lengths)} clips of {lengths.sum()} frames, but the run trained on "
            f"{corpus.training_clips} of {corpus.training_frames}; restore its own file"
        )
    transcription, timed = None, EpochMinutes(list(epochs["minutes"]), 0.0)
    if (file := directory / INTELLIGIBILITY_FILE).exists():
        transcription = read_findings(file, Intelligibility)
        _check_epochs(file, transcription.epochs, len(epochs), "scripts/listen.py")
    if (file := directory / EPOCH_MINUTES_FILE).exists():
        timed = read_findings(file, EpochMinutes)
        _check_epochs(file, len(timed.minutes), len(epochs), "benchmarks/epoch.py --runs")
    epochs["minutes"] = timed.minutes
    epochs["hours"] = epochs["minutes"].cumsum() / 60
    epochs["updates"] = epochs["num_batches"].cumsum()
    share = timed.relative_error
    return Run(str(directory), starts, hparams, lengths, epochs, transcription, share, notes)


def _check_epochs(file: Path, found: int, expected: int, program: str) -> None:
    if found != expected:
        raise UserError(f"{file}: of {found} epochs, the run has {expected}; repeat {program}")


def read_metrics(path: Path) -> tuple[list[Record], list[str]]:
    """The lines of a metrics.jsonl; and a note if the last one, which a killed run may leave
    incomplete, was left out.

    Raises:
        UserError: naming the file and every line that is not JSON, lacks a number, has something
            else in its place, or is out of order.
    """
    lines = numbered_lines(path, "no such file; train.py -o writes it")
    records: list[Record] = []
    problems, notes, epoch, validated = [], [], 0, 0
    for number, line in lines:
        try:
            record = LINE.validate_json(line, strict=True)
        except ValidationError as error:
            if (number, line) == lines[-1] and error.errors()[0]["type"] == "json_invalid":
                notes.append(f"{path}:{number}: incomplete last line, left out: {line[:60]!r}")
            else:
                problems.append(f"{path}:{number}: {_problems(error)}")
            continue
        expected = {"run": record.epoch, "epoch": epoch + 1, "validation": epoch}[record.kind]
        if record.epoch != expected or (record.kind, validated) == ("validation", epoch):
            problems.append(f"{path}:{number}: {record.kind} of epoch {record.epoch} after {epoch}")
        epoch = record.epoch if record.kind == "epoch" else epoch
        validated = epoch if record.kind == "validation" else validated
        records.append(record)
    if not problems and (not records or records[0].kind != "run"):
        problems.append(f"{path}: no `run` line with the settings before all others")
    if problems:
        refused = lines_refused(path, problems, len(lines))
        raise UserError(f"{refused}\n  restore the file as train.py wrote it, or train again")
    return records, notes


def _problems(error: ValidationError) -> str:
    found = [
        f"{'.'.join(map(str, e['loc']))}={str(e['input'])[:60]}: {e['msg']}"
        for e in error.errors(include_url=False)
    ]
    return "; ".join(found[:5] + ["..."] * (len(found) > 5))


# ---------------------------------------------------------------------------- rows


def settings_of(run: Run) -> dict[str, str | float]:
    """What decides a run's results but for its seed, as text; NaN for what has no effect."""
    h, first = run.hparams, run.starts[0]
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(h.batching_strategy)}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= OF_DECAY
    settings = {name: np.nan if name in ignored else str(v) for name, v in asdict(h).items()}
    settings["epochs"] = str(len(run.epochs))
    settings["started_from"] = str(first.started_from if first.iteration == 0 else None)
    settings["corpus"] = f"{run.corpus.training_clips} clips, {run.corpus.fingerprint[:8]}"
    machine = {n: v for n, v in environment_of(run.starts[-1]).items() if n.startswith("machine")}
    return settings | machine | {"machine's system": np.nan}  # a kernel is no other machine


def environment_of(record: RunRecord) -> dict[str, str]:
    """What else may differ between two runs or two starts of one."""
    found = {f"machine's {name}": value for name, value in record.machine.items()}
    found |= {f"version of {name}": value for name, value in record.versions.items()}
    found |= {"commit": record.commit, "fingerprint of the corpus": record.corpus.fingerprint[:16]}
    return {name: "unknown" if value is None else str(value) for name, value in found.items()}


def _differences(rows: pd.DataFrame) -> np.ndarray:
    """[rows, rows, columns] where two rows have different values of a setting that has an effect
    in both, and that is not the batching."""
    text, known = rows.fillna("").to_numpy(str), rows.notna().to_numpy()
    return (
        (text[:, None] != text) & known[:, None] & known & ~rows.columns.isin([*BATCHING, "name"])
    )


def _group(runs: Sequence[Run], left_out: Sequence[str]) -> Runs:
    """Runs, the latest last, as rows: the paper's ten first and in its order. Of two runs with
    equal settings and seed the later one stays."""
    rows = pd.DataFrame(map(settings_of, runs), [run.folder for run in runs], dtype=object)
    table = pd.DataFrame(
        {
            "seed": [r.hparams.seed for r in runs],
            "relative_error": [r.relative_error for r in runs],
        },
        rows.index,
    ).assign(label=rows.fillna("").agg("\n".join, axis=1))  # until it is shortened below
    rows["name"] = [batching_name(*(getattr(r.hparams, n) for n in BATCHING)) for r in runs]
    again = table.duplicated(["label", "seed"], keep="last")
    same = "the same settings and seed as a later run, which is kept"
    left_out = [*left_out, *(f"{folder}: {same}" for folder in table.index[again])]
    table = table[~again]
    rows = rows[~again].assign(label=table["label"]).drop_duplicates("label").set_index("label")
    # Of several rows of a name the one that can be compared with most others represents it; of
    # equally many the one with the paper's values, or this recipe's defaults.
    usual = pd.Series(asdict(HParams()) | published.SETTINGS).astype(str)
    rank = pd.DataFrame({"comparable": (~_differences(rows).any(2)).sum(1)}, rows.index)
    rank["usual"] = (rows[rows.columns.intersection(usual.index)] == usual).sum(axis=1)
    best = rank.sort_values(["comparable", "usual"], ascending=False, kind="stable")
    representatives = best.groupby(rows["name"]).head(1).index
    chosen = rows.loc[representatives].set_index("name")
    labels = {}
    for key, row in rows.iterrows():
        usual_here = chosen.loc[row["name"]]
        others = {n: row[n] for n in chosen.columns if str(row[n]) != str(usual_here[n])}
        shown = ", ".join(f"{SHORT.get(n, n)} {value}" for n, value in others.items())
        labels[key] = row["name"] + (f" ({shown})" if shown else "")
    paper = list(published.TABLE_2)

    def place(label: str) -> tuple:
        """Numbers count as numbers, so that a batch size of 4 stands before one of 16."""
        name, _, rest = label.partition(" ")
        parts = re.split(r"(\d+(?:\.\d+)?)", rest)
        numbers = [float(part) if nth % 2 else part for nth, part in enumerate(parts)]
        return paper.index(name) if name in paper else len(paper), name, numbers

    rows = rows.rename(index=labels)
    rows = rows.loc[sorted(rows.index, key=place)]
    table = table.assign(label=table["label"].map(labels))
    table = table.iloc[
        np.lexsort((table["seed"], rows.index.get_indexer(pd.Index(table["label"]))))
    ]
    by_folder = {run.folder: run for run in runs}
    found = {folder: by_folder[folder] for folder in table.index}
    epochs = [run.epochs.assign(run=f, label=table["label"][f]) for f, run in found.items()]
    return Runs(found, table, rows, pd.concat(epochs, ignore_index=True), left_out)


# ---------------------------------------------------------------------------- warnings


def facts(runs: Runs) -> dict[str, str]:
    """What was trained on what, for the head of a report."""
    lines = [
        {
            "seeds": run.hparams.seed,
            "epochs": len(run.epochs),
            "training clips": run.corpus.training_clips,
            "validation clips": run.corpus.validation_clips,
            "hours of speech": f"{run.lengths.sum() * h.hop_length / h.sampling_rate / 3600:.2f}",
            "started or resumed": f"{run.starts[-1].time.astimezone():%Y-%m-%d}",
            **environment_of(run.starts[-1]),
        }
        for run in runs.found.values()
        for h in [run.hparams]
    ]
    values = {
        str(n): "; ".join(v.dropna().astype(str).unique()) for n, v in pd.DataFrame(lines).items()
    }
    return {"runs": f"{len(runs.found)} in {len(runs.rows)} rows"} | values


def deviations(runs: Runs) -> list[str]:
    """In what the runs are not the paper's experiments; empty if in nothing that can be known."""
    # Where the paper names no value, this recipe's defaults stand for it, which are NVIDIA's.
    paper = asdict(create_hparams(",".join(f"{n}={v}" for n, v in published.SETTINGS.items())))
    paper |= {"epochs": published.EPOCHS, "started_from": None}
    paper |= {"training clips": published.TRAINING_CLIPS}
    paper |= {"validation clips": published.VALIDATION_CLIPS}
    lines = {}
    for folder, run in runs.found.items():
        lines[folder] = settings_of(run) | {
            "epochs": str(min(len(run.epochs), published.EPOCHS)),
            "training clips": str(run.corpus.training_clips),
            "validation clips": str(run.corpus.validation_clips),
        }
        if run.hparams.batching_strategy not in published.STRATEGIES:  # no value for them
            lines[folder] |= dict.fromkeys(PARAMETERS.values(), np.nan)
    facts = pd.DataFrame(lines).T
    return [
        f"{name} {value} instead of {paper[name]}{where}"
        for name in facts.columns.intersection(list(paper)).drop([*BATCHING, "load_mel_from_disk"])
        for value, where in _by_value(facts[name])
        if value != str(paper[name])
    ]


def comparison_warnings(runs: Runs) -> list[str]:
    """What keeps the rows from being compared, and what changed when a run was resumed."""
    lines = {f: {**settings_of(r), **environment_of(r.starts[-1])} for f, r in runs.found.items()}
    facts = pd.DataFrame(lines).T.drop(columns=BATCHING)
    warnings = [
        f"{name}: " + "; ".join(value + where for value, where in _by_value(facts[name]))
        for name in facts.columns[facts.nunique() > 1]
    ]
    for name, count in runs.rows["name"].value_counts(sort=False).items():
        if count > 1:
            warnings.append(
                f"{name} has {count} rows: the first stands for it in Tables 1, 3 and 4"
            )
    for folder, run in runs.found.items():
        for before, after in itertools.pairwise(run.starts):
            old, new = (r.hparams | environment_of(r) for r in (before, after))
            for name in old.keys() - WITHOUT_EFFECT - {"epochs"}:
                if old[name] != new.get(name):
                    change = f"{name}: {old[name]}, then {new.get(name, 'unknown')}"
                    warnings.append(f"{folder} was resumed at epoch {after.epoch} with {change}")
    return warnings


def _by_value(column: pd.Series) -> Iterable[tuple[str, str]]:
    """Values, the most common first, each with its folders unless all have it."""
    for value, count in column.value_counts().items():
        folders = ", ".join(column.index[column == value][:3])
        more = f" and {count - 3} more" if count > 3 else ""
        yield str(value), f" ({folders}{more})" if count < len(column) else ""
