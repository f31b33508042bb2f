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
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, TypeAdapter, ValidationError

from analysis import published
from analysis.lengths import read_lengths
from analysis.survey import PARAMETERS, batching_name
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_findings
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
HEAD = ["seeds", "training clips", "validation clips", "hours of speech", "started or resumed"]
SOFTWARE = "version of|commit|fingerprint|machine's system"  # rows may differ in it
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
Count = Annotated[int, Field(ge=0, le=10**18)]
Result = TypeVar("Result", "EpochMinutes", Intelligibility)
Settings = Annotated[dict, AfterValidator(lambda values: hparams_from_dict(values) and values)]


class CorpusRecord(BaseModel):
    """What a run trained on."""

    fingerprint: str
    training_clips: Count
    validation_clips: Count
    training_frames: Count


class RunRecord(BaseModel):
    """A `run` line of metrics.jsonl: written when a run starts and whenever it is resumed."""

    kind: Literal["run"]
    iteration: Count  # updates done before it
    epoch: Count  # the next one, counted from 1
    time: AwareDatetime
    hparams: Settings
    corpus: CorpusRecord
    machine: dict
    versions: dict
    started_from: str | None = None  # a checkpoint
    commit: str | None = None


class EpochRecord(BaseModel):
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


class ValidationRecord(BaseModel):
    """A `validation` line, which follows the line of its epoch."""

    kind: Literal["validation"]
    epoch: Count
    validation_loss: Number
    validation_loss_unpadded: Number


class EpochMinutes(BaseModel):
    """Minutes of each epoch, timed in turns with other batchings."""

    minutes: list[Number]
    relative_error: Number  # standard error as a share of the minutes

    @property
    def epochs(self) -> int:
        return len(self.minutes)


Record = RunRecord | EpochRecord | ValidationRecord
LINE: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


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


@dataclass(frozen=True)
class Runs:
    """Finished runs, and the rows that they make in a report. A row whose label is the bare name
    of its batching represents it; other rows of that name have the settings that differ."""

    found: dict[str, Run]  # by folder
    table: pd.DataFrame  # [runs] label, seed, relative_error; the folders are the index
    rows: pd.DataFrame  # [labels] name and settings as text, NaN where without effect
    facts: pd.DataFrame  # [runs] those settings, HEAD, the machine and the software
    epochs: pd.DataFrame  # all runs' epochs, with folder (`run`) and label
    left_out: list[str]

    def first(self, label: str) -> Run:
        """The first run of a row."""
        return self.found[self.table.index[self.table["label"] == label][0]]

    def differing(self, first: str, second: str) -> list[str]:
        """The settings that keep two rows from being compared as two batchings."""
        rows = self.rows.drop(columns="name")
        return sorted(rows.columns[_differences(rows.loc[[first, second]])[0, 1]])


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
        except UserError as error:
            left_out.append(str(error))
    if not found:
        raise UserError("no finished run:\n" + "\n".join(left_out))
    return _group(sorted(found, key=lambda run: run.starts[-1].time), left_out)


def read_run(directory: Path) -> Run:
    """The finished run in `directory`.

    Raises:
        UserError: naming the file and the line if one is broken, or if an epoch is missing, the
            run is not finished or its other files belong to another run.
    """
    path = directory / METRICS_FILE
    records = read_metrics(path)
    starts = [record for record in records if isinstance(record, RunRecord)]
    epochs, validations = (
        pd.DataFrame(
            [vars(r) for r in records if isinstance(r, kind)], columns=[*kind.model_fields]
        )
        for kind in (EpochRecord, ValidationRecord)
    )
    numbers = epochs["epoch"].tolist()
    if numbers != [*range(1, len(numbers) + 1)] or validations["epoch"].duplicated().any():
        raise UserError(f"{path}: expected every epoch once and in order; train again")
    hparams, corpus = hparams_from_dict(starts[-1].hparams), starts[-1].corpus
    if len(epochs) < hparams.epochs:
        raise UserError(
            f"{path}: unfinished, {len(epochs)} of {hparams.epochs} epochs; resume it with "
            f"train.py -o {directory} --resume"
        )
    lengths = read_lengths(directory / LENGTHS_FILE, hparams).frames
    if (len(lengths), lengths.sum()) != (corpus.training_clips, corpus.training_frames):
        raise UserError(
            f"{directory / LENGTHS_FILE}: {len(lengths)} clips of {lengths.sum()} frames, but the "
            f"run trained on {corpus.training_clips} of {corpus.training_frames}; restore its own"
        )
    transcription = _findings(directory / INTELLIGIBILITY_FILE, Intelligibility, len(epochs))
    timed = _findings(directory / EPOCH_MINUTES_FILE, EpochMinutes, len(epochs))
    epochs = epochs.merge(validations, on="epoch", how="left")
    if timed is not None:
        epochs["minutes"] = timed.minutes
    epochs["hours"] = epochs["minutes"].cumsum() / 60
    epochs["updates"] = epochs["num_batches"].cumsum()
    error = timed.relative_error if timed else 0.0
    return Run(str(directory), starts, hparams, lengths, epochs, transcription, error)


def _findings(file: Path, kind: type[Result], epochs: int) -> Result | None:
    """What another program has written about a run, if it did."""
    if not file.exists():
        return None
    found = read_findings(file, kind)
    if found.epochs != epochs:
        raise UserError(f"{file}: of {found.epochs} epochs, the run has {epochs}; delete it")
    return found


def read_metrics(path: Path) -> list[Record]:
    """The lines of a metrics.jsonl, but for an incomplete last one, as a killed run may leave.

    Raises:
        UserError: naming the file and every line that is not JSON, lacks a number or has something
            else in its place.
    """
    lines = numbered_lines(path, "no such file; train.py -o writes it")
    records, problems = [], []
    for number, line in lines:
        try:
            records.append(LINE.validate_json(line, strict=True))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"] != "json_invalid" or number != lines[-1][0]:
                place = ".".join(map(str, first["loc"]))
                found = f"{place}={str(first['input'])[:60]}: {first['msg']}"
                problems.append(f"{path}:{number}: {found}")
    if not problems and (not records or records[0].kind != "run"):
        problems.append(f"{path}: no `run` line with the settings before all others")
    if problems:
        refused = lines_refused(path, problems, len(lines))
        raise UserError(f"{refused}\n  restore the file as train.py wrote it, or train again")
    return records


# ---------------------------------------------------------------------------- rows


def _facts(run: Run) -> dict[str, str | float]:
    """All that may differ between runs, as text; NaN for settings that have no effect."""
    h, first, last = run.hparams, run.starts[0], run.starts[-1]
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(h.batching_strategy)}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= {n for n in asdict(h) if re.match("learning_rate_(?!schedule)", n)}
    hours = run.lengths.sum() * h.hop_length / h.sampling_rate / 3600
    clips = last.corpus.training_clips, last.corpus.validation_clips
    head = [str(h.seed), *map(str, clips), f"{hours:.2f}", f"{last.time:%Y-%m-%d}"]
    settings = {name: np.nan if name in ignored else str(v) for name, v in asdict(h).items()}
    settings["epochs"] = str(len(run.epochs))
    settings["started_from"] = str(first.started_from if first.iteration == 0 else None)
    settings["corpus"] = f"{clips[0]} clips, {last.corpus.fingerprint[:8]}"
    return dict(zip(HEAD, head, strict=True)) | settings | _environment(last)


def _environment(record: RunRecord) -> dict[str, str]:
    """What else may differ between two runs or two starts of one."""
    found = {f"machine's {name}": value for name, value in record.machine.items()}
    found |= {f"version of {name}": value for name, value in record.versions.items()}
    found |= {"commit": record.commit, "fingerprint of the corpus": record.corpus.fingerprint[:16]}
    return {name: "unknown" if value is None else str(value) for name, value in found.items()}


def _differences(rows: pd.DataFrame) -> np.ndarray:
    """[rows, rows, columns] where two rows have different values of a setting that has an effect
    in both, and that is not the batching."""
    text, known = rows.fillna("").to_numpy(str), rows.notna().to_numpy()
    return (text[:, None] != text) & known[:, None] & known & ~rows.columns.isin(BATCHING)


def _group(runs: Sequence[Run], left_out: list[str]) -> Runs:
    """Runs, the latest last, as rows: the paper's ten first and in its order. Of two runs with
    equal settings and seed the later one stays."""
    facts = pd.DataFrame(map(_facts, runs), [run.folder for run in runs], dtype=object)
    settings = facts.loc[:, ~facts.columns.str.contains(SOFTWARE)].drop(columns=HEAD)
    table = pd.DataFrame(
        [(r.hparams.seed, r.relative_error) for r in runs], facts.index, ["seed", "relative_error"]
    ).assign(label=settings.fillna("").agg("\n".join, axis=1))  # until it is shortened below
    again = table.duplicated(["label", "seed"], keep="last")
    same = "the same settings and seed as a later run, which is kept"
    left_out = left_out + [f"{folder}: {same}" for folder in table.index[again]]
    table = table[~again]
    rows = settings[~again].set_index(table["label"])
    rows = rows[~rows.index.duplicated()]
    names = {
        table["label"].get(r.folder): batching_name(*(getattr(r.hparams, n) for n in BATCHING))
        for r in runs
    }
    # Of several rows of a name the one that can be compared with most others represents it; of
    # equally many the one with the paper's values, or this recipe's defaults.
    usual = pd.Series(asdict(HParams()) | published.SETTINGS).astype(str)
    rank = pd.DataFrame({"comparable": (~_differences(rows).any(2)).sum(1)}, rows.index)
    rank["usual"] = (rows[rows.columns.intersection(usual.index)] == usual).sum(axis=1)
    best = rank.sort_values(["comparable", "usual"], ascending=False, kind="stable").index
    labels = {}
    for key, row in rows.iterrows():
        representative = rows.loc[next(other for other in best if names[other] == names[key])]
        differing = row.index[row.fillna("") != representative.fillna("")]
        shown = ", ".join(f"{SHORT.get(n, n)} {row[n]}" for n in differing)
        labels[key] = names[key] + (f" ({shown})" if shown else "")
    paper = list(published.TABLE_2)

    def place(label: str) -> tuple[int, str]:
        """Numbers count as numbers, so that a batch size of 4 stands before one of 16."""
        digits = re.sub(r"\d+(\.\d+)?", lambda number: f"{float(number[0]):020.9f}", label)
        name = label.partition(" ")[0]
        return paper.index(name) if name in paper else len(paper), digits

    rows = rows.assign(name=pd.Series(names)).rename(index=labels)
    rows = rows.loc[sorted(rows.index, key=place)]
    table = table.assign(label=table["label"].map(labels)).sort_values("seed", kind="stable")
    table = table.loc[table["label"].map(rows.index.get_loc).sort_values(kind="stable").index]
    found = {run.folder: run for run in runs}
    found = {folder: found[folder] for folder in table.index}
    epochs = [run.epochs.assign(run=f, label=table["label"][f]) for f, run in found.items()]
    facts = facts.loc[table.index]
    return Runs(found, table, rows, facts, pd.concat(epochs, ignore_index=True), left_out)


# ---------------------------------------------------------------------------- warnings


def describe(runs: Runs) -> dict[str, str]:
    """What was trained on what, for the head of a report."""
    shown = runs.facts.filter(regex=f"^({'|'.join(HEAD)}|epochs|machine's .*)$|{SOFTWARE}")
    values = {str(name): "; ".join(column.unique()) for name, column in shown.items()}
    return {"runs": f"{len(runs.found)} in {len(runs.rows)} rows"} | values


def deviations(runs: Runs) -> list[str]:
    """In what the runs are not the paper's experiments; empty if in nothing that can be known."""
    # Where the paper names no value, this recipe's defaults stand for it, which are NVIDIA's.
    paper = asdict(create_hparams(",".join(f"{n}={v}" for n, v in published.SETTINGS.items())))
    paper |= {"epochs": published.EPOCHS, "started_from": None}
    paper |= dict(
        zip(HEAD[1:3], (published.TRAINING_CLIPS, published.VALIDATION_CLIPS), strict=True)
    )
    facts = runs.facts.copy()
    facts["epochs"] = facts["epochs"].astype(int).clip(upper=published.EPOCHS).astype(str)
    is_other = ~facts["batching_strategy"].isin(published.STRATEGIES)
    facts.loc[is_other, list(set(PARAMETERS.values()))] = np.nan  # the paper has no value for them
    return [
        f"{name} {value} instead of {paper[name]}{where}"
        for name in facts.columns.intersection(list(paper)).drop([*BATCHING, "load_mel_from_disk"])
        for value, where in _by_value(facts[name])
        if value != str(paper[name])
    ]


def comparison_warnings(runs: Runs) -> list[str]:
    """What keeps the rows from being compared, and what changed when a run was resumed."""
    facts = runs.facts.drop(columns=[*BATCHING, *HEAD])
    warnings = [
        f"{name}: " + "; ".join(value + where for value, where in _by_value(facts[name]))
        for name in facts.columns[facts.nunique() > 1]
    ]
    counts = runs.rows["name"].value_counts(sort=False)
    for name, count in counts[counts > 1].items():
        warnings.append(f"{name} has {count} rows: the first stands for it in Tables 1, 3 and 4")
    for folder, run in runs.found.items():
        for before, after in itertools.pairwise(run.starts):
            old, new = (r.hparams | _environment(r) for r in (before, after))
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
