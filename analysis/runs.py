"""The one reader of run folders: what train.py and a study wrote there, as pandas DataFrames.

    runs = read_runs([Path("runs")])
    runs.epochs.groupby("label")["minutes"].median()

Runs that differ in nothing but their seed share a label, a row of the report's tables. A broken or
unfinished run is left out, and `left_out` says why.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.lengths import read_lengths
from analysis.survey import PARAMETERS
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_intelligibility
from batching import batching_name
from data_utils import LENGTHS_FILE
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

# Of an `epoch` line; rates are from 0 to 1, lengths in frames.
EPOCH_NUMBERS = [
    *("epoch", "minutes", "prepare_seconds", "num_batches", "zero_padding_rate"),
    *("average_batch_length", "decoder_steps", "frames_per_second", "padded_frames_per_second"),
    *("clips_per_second", "data_wait_seconds", "peak_memory_bytes"),
]
LOSSES = ["validation_loss", "validation_loss_unpadded"]  # of a `validation` line


@dataclass(frozen=True)
class Run:
    """A finished run, trained from its first epoch to its last."""

    folder: str
    hparams: HParams  # those it ended with
    lengths: np.ndarray  # [clips] frames
    epochs: pd.DataFrame  # EPOCH_NUMBERS and LOSSES, hours and updates so far
    transcription: Intelligibility | None
    relative_error: float  # of minutes that were timed in turns, else 0
    time: datetime  # of the last start
    facts: dict[str, str | float]  # all that may differ between runs; NaN: has no effect
    changes: list[str]  # when it was resumed


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
    return _group(sorted(found, key=lambda run: run.time), left_out)


def read_run(directory: Path) -> Run:
    """The finished run in `directory`.

    Raises:
        UserError: naming the file, and the line that is not JSON, if one is not as train.py writes
            it, if an epoch is missing, or if the run is not finished or its files are another's.
    """
    try:
        return _checked(directory, read_metrics(directory / METRICS_FILE))
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        problem = f"{METRICS_FILE} is not as train.py wrote it: {error!r:.300}"
        raise UserError(f"{directory}: {problem}; restore it, or train again") from None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, but for an incomplete last one, as a killed run may leave."""
    lines, records = numbered_lines(path, "no such file; train.py -o writes it"), []
    for number, line in lines:
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            if number != lines[-1][0]:
                raise UserError(
                    f"{path.name}:{number}: not JSON: {line[:60]!r}; restore it"
                ) from None
    return records


def _checked(directory: Path, records: list[dict[str, Any]]) -> Run:
    """The run; whatever error if a record is not as train.py writes it."""
    kinds: dict[str, list[dict]] = {"run": [], "epoch": [], "validation": []}
    for record in records:
        kinds[record["kind"]].append(record)
    starts = kinds["run"]
    epochs = pd.DataFrame(kinds["epoch"], columns=EPOCH_NUMBERS).astype(float)
    validations = pd.DataFrame(kinds["validation"], columns=["epoch", *LOSSES]).astype(float)
    for frame in (epochs, validations):
        if wrong := [name for name in frame if not np.isfinite(frame[name]).all()]:
            raise ValueError(f"{wrong}: expected a finite number in every line")
    last = range(1, len(epochs) + 1)
    if not starts or epochs["epoch"].tolist() != [*last] or validations["epoch"].duplicated().any():
        raise ValueError("expected the settings, then every epoch once and in order")
    hparams, corpus = hparams_from_dict(starts[-1]["hparams"]), starts[-1]["corpus"]
    if len(epochs) < hparams.epochs:
        raise UserError(
            f"unfinished, {len(epochs)} of {hparams.epochs} epochs; resume it with "
            f"train.py -o {directory} --resume"
        )
    lengths = read_lengths(directory / LENGTHS_FILE, hparams).frames
    if (len(lengths), lengths.sum()) != (corpus["training_clips"], corpus["training_frames"]):
        raise UserError(
            f"{LENGTHS_FILE}: {len(lengths)} clips of {lengths.sum()} frames, but the "
            f"run trained on {corpus['training_clips']} of {corpus['training_frames']}; restore it"
        )
    epochs = epochs.merge(validations, on="epoch", how="left")
    transcription, relative_error = None, 0.0
    if (file := directory / INTELLIGIBILITY_FILE).exists():
        transcription = read_intelligibility(file)
        if transcription.epochs != len(epochs):
            raise UserError(f"{file.name}: not after its {len(epochs)} epochs; use listen.py again")
    if (file := directory / EPOCH_MINUTES_FILE).exists():
        try:
            timed = json.loads(file.read_text(encoding="utf-8"))
            relative_error = float(timed["relative_error"])
            epochs["minutes"] = np.array(timed["minutes"], dtype=float)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{file.name}: {error!r:.200}; time the epochs again") from None
    epochs["hours"] = epochs["minutes"].cumsum() / 60
    epochs["updates"] = epochs["num_batches"].cumsum()
    return Run(
        str(directory),
        hparams,
        lengths,
        epochs,
        transcription,
        relative_error,
        datetime.fromisoformat(starts[-1]["time"]).astimezone(),
        _facts(hparams, starts, epochs, lengths),
        _changes(directory, starts),
    )


def _changes(directory: Path, starts: list[dict]) -> list[str]:
    """What was changed when a run was resumed."""
    found = []
    for before, after in itertools.pairwise(starts):
        old, new = (start["hparams"] | _environment(start) for start in (before, after))
        for name in old.keys() - WITHOUT_EFFECT - {"epochs"}:
            if old[name] != new.get(name):
                change = f"{name}: {old[name]}, then {new.get(name, 'unknown')}"
                found.append(f"{directory} was resumed at epoch {after['epoch']} with {change}")
    return found


# ---------------------------------------------------------------------------- rows


def _facts(
    h: HParams, starts: list[dict], epochs: pd.DataFrame, lengths: np.ndarray
) -> dict[str, str | float]:
    """Settings, corpus, machine and software of a run, as text; NaN for what has no effect."""
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(h.batching_strategy)}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= {n for n in asdict(h) if re.match("learning_rate_(?!schedule)", n)}
    corpus, warm = starts[-1]["corpus"], starts[0]["iteration"] == 0
    hours = lengths.sum() * h.hop_length / h.sampling_rate / 3600
    clips = [str(len(lengths)), str(corpus["validation_clips"])]
    head = [str(h.seed), *clips, f"{hours:.2f}", starts[-1]["time"][:10]]
    settings = {name: np.nan if name in ignored else str(v) for name, v in asdict(h).items()}
    settings["epochs"] = str(len(epochs))
    settings["started_from"] = str(starts[0].get("started_from") if warm else None)
    settings["corpus"] = f"{clips[0]} clips, {corpus['fingerprint'][:8]}"
    return dict(zip(HEAD, head, strict=True)) | settings | _environment(starts[-1])


def _environment(start: dict[str, Any]) -> dict[str, str]:
    """What else may differ between two runs or two starts of one."""
    found = {f"machine's {name}": value for name, value in start["machine"].items()}
    found |= {f"version of {name}": value for name, value in start["versions"].items()}
    found["commit"] = start.get("commit")
    found["fingerprint of the corpus"] = start["corpus"]["fingerprint"][:16]
    return {name: "unknown" if value is None else str(value) for name, value in found.items()}


def _differences(rows: pd.DataFrame) -> np.ndarray:
    """[rows, rows, columns] where two rows have different values of a setting that has an effect
    in both, and that is not the batching."""
    text, known = rows.fillna("").to_numpy(str), rows.notna().to_numpy()
    return (text[:, None] != text) & known[:, None] & known & ~rows.columns.isin(BATCHING)


def _group(runs: Sequence[Run], left_out: list[str]) -> Runs:
    """Runs, the latest last, as rows: the paper's ten first and in its order. Of two runs with
    equal settings and seed the later one stays."""
    facts = pd.DataFrame([run.facts for run in runs], [run.folder for run in runs], dtype=object)
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
    batchings = rows[BATCHING].to_numpy(str)
    names = {
        k: batching_name(s, d == "True", r == "True")
        for k, (s, d, r) in zip(rows.index, batchings, strict=True)
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
        warnings.append(f"{name} has {count} rows: the first is used in Tables 1, 3 and 4")
    return warnings + [change for run in runs.found.values() for change in run.changes]


def _by_value(column: pd.Series) -> Iterable[tuple[str, str]]:
    """Values, the most common first, each with its folders unless all have it."""
    for value, count in column.value_counts().items():
        folders = ", ".join(column.index[column == value][:3])
        more = f" and {count - 3} more" if count > 3 else ""
        yield str(value), f" ({folders}{more})" if count < len(column) else ""
