"""Read the run folders of train.py into pandas DataFrames, for reports.

    runs = read_runs([Path("runs/table2")])
    runs.epochs.groupby("label")["minutes"].median()

Runs that differ only in the seed share a label and form one row in the report's tables. Damaged and
unfinished runs are ignored. `Runs.left_out` lists these runs and the reasons.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.filelist import LENGTHS_FILE
from corpus.lengths import read_lengths
from hparams import HParams, create_hparams, hparams_from_dict
from length_batching import PARAMETERS, REGISTRY, batching_name
from scripts.table2 import published
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE, json_lines

# Settings that define a strategy. A report compares the strategies.
BATCHING = ["name", "batching_strategy", "dynamic_batch_size", "batch_randomization"]
# Settings that the report does not compare. Some of these settings do not affect the result of
# training. The report already compares the remaining settings in another form: as the fingerprint
# of the corpus, win_length, hop_length and started_from.
WITHOUT_EFFECT = set(
    "seed num_workers iters_per_checkpoint keep_checkpoints log_interval ignore_layers "
    "training_files validation_files clips_folder win_time hop_time max_decoder_steps "
    "gate_threshold".split()
)
CLIPS = ["training clips", "validation clips"]
# Names of the facts about each run that a report lists at its top.
HEAD = ["seeds", *CLIPS, "hours of speech", "started or resumed"]
# Matches the names of facts that may differ between runs in the same row.
SOFTWARE = "version of|commit|fingerprint|machine's system"
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}

# Columns of a report that come from the records of kind `epoch` in metrics.jsonl. Maps each key of
# a record to four values: the function that combines the epochs of a run, a factor, the heading of
# the column, and the number of decimals.
OF_EPOCHS = {
    "zero_padding_rate": ("mean", 100, "ZPR (%)", 2),
    "average_batch_length": ("mean", 1, "ABL (frames)", 2),
    "minutes": ("median", 1, "minutes per epoch", 2),
    "num_batches": ("mean", 1, "batches", 1),
    "decoder_steps": ("mean", 1, "decoder steps", 0),
    "frames_per_second": ("median", 1, "real frames/s", 0),
    "padded_frames_per_second": ("median", 1, "padded frames/s", 0),
    "clips_per_second": ("median", 1, "clips/s", 2),
    "peak_memory_bytes": ("max", 2**-30, "peak memory (GiB)", 2),
    "data_wait_seconds": ("median", 1, "waiting for data (s)", 2),
    "prepare_seconds": ("median", 1000, "preparation (ms)", 1),
}
# Validation losses in the records of kind `validation` in metrics.jsonl.
LOSSES = ["validation_loss", "validation_loss_unpadded"]
# Columns that `read_progress` returns. SPENT: cumulative amounts with their units. MEASURES: measured
# quantities.
SPENT = {
    "epoch": "epochs",
    "updates": "optimizer steps",
    "decoder_steps": "decoder steps",
    "minutes": "minutes",
}
MEASURES = [LOSSES[1], "alignment_sharpness", "gradient_norm"]


@dataclass(frozen=True)
class Run:
    folder: str
    hparams: HParams  # settings at the end of the run
    lengths: np.ndarray  # number of frames of each training clip, [clips]
    # One row per epoch. The columns are the keys of OF_EPOCHS, LOSSES, and the cumulative `hours`
    # and `updates` (optimizer steps).
    epochs: pd.DataFrame
    time: datetime  # time at which the run was last started or resumed
    facts: dict[str, Any]  # facts that may differ between runs; NaN: the fact has no effect
    changes: list[str]  # settings and software that changed when the run was resumed


@dataclass(frozen=True)
class Runs:
    """Finished runs, grouped into the rows of a report.

    The label of a strategy's main row is the name of the strategy. The labels of the strategy's
    other rows also contain the settings that differ from the main row.
    """

    by_folder: dict[str, Run]
    table: pd.DataFrame  # label and seed of each run, indexed by the folder of the run
    # One row per label. The columns are the name of the strategy and all settings, as text. NaN:
    # the setting has no effect.
    rows: pd.DataFrame
    # One row per run. The columns are the settings, HEAD, and facts about the machine and software.
    facts: pd.DataFrame
    epochs: pd.DataFrame  # epochs of all runs, with the columns `run` (folder) and `label`
    left_out: list[str]  # ignored folders and the reason for each

    def first(self, label: str) -> Run:
        """Return the first run that has this label."""
        return self.by_folder[self.table.index[self.table["label"] == label][0]]

    def differing(self, first: str, second: str) -> list[str]:
        """Return the settings in which two rows differ, without the settings of the strategy."""
        return sorted(self.rows.columns[_differences(self.rows.loc[[first, second]])[0, 1]])


def read_runs(folders: Sequence[Path]) -> Runs:
    """Read all finished runs in `folders` and their subfolders.

    Raises:
        UserError: if there is no finished run. The error message contains the reason for
            each ignored run.
    """
    directories: dict[Path, Path] = {}
    left_out, finished = [], []
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(METRICS_FILE))
        if not below:
            left_out.append(f"{folder}: contains no {METRICS_FILE} (train.py -o writes this file)")
        directories |= {path.resolve(): path for path in below}
    for directory in directories.values():
        try:
            finished.append(_read_run(directory))
        except UserError as error:
            # Remove the folder from the error message, because the next line adds the folder.
            problem = str(error).replace(f"{directory}/", "")
            left_out.append(f"{directory}: {problem}")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            problem = f"{METRICS_FILE} does not have the format of train.py: {error!r:.300}"
            left_out.append(f"{directory}: {problem}")
    if not finished:
        raise UserError("no finished run:\n" + "\n".join(left_out))
    return _group(sorted(finished, key=lambda run: run.time), left_out)


def read_progress(folder: Path) -> pd.DataFrame:
    """Return a table with one row per epoch of a finished or unfinished run. The columns of the
    table are the cumulative amounts in SPENT and the quantities in MEASURES.

    Raises:
        UserError: if the metrics cannot be read.
    """
    records = json_lines(folder / METRICS_FILE, "no such file; train.py -o writes it")

    def table(kind: str, *columns: str) -> pd.DataFrame:
        lines = [record for record in records if record.get("kind") == kind]
        return pd.DataFrame(lines, columns=["epoch", *columns]).astype(float)

    epochs = table("epoch", "num_batches", "decoder_steps", "minutes", "gradient_norm")
    validations = table("validation", LOSSES[1], "alignment_sharpness")
    progress = epochs.rename(columns={"num_batches": "updates"}).set_index("epoch")
    so_far = progress[["updates", "decoder_steps", "minutes"]].cumsum()
    progress = so_far.join(progress["gradient_norm"]).join(validations.set_index("epoch"))
    return progress.reset_index()[[*SPENT, *MEASURES]].astype({"epoch": int})


def _read_run(directory: Path) -> Run:
    """Read the run in a folder.

    Raises:
        UserError: if a file cannot be read, if the run is not finished, or if the files belong to
            different runs.
        ValueError, KeyError, ...: if metrics.jsonl does not have the format of train.py.
    """
    kinds: dict[str, list[dict]] = {"run": [], "epoch": [], "validation": []}
    for record in json_lines(directory / METRICS_FILE, "no such file; train.py -o writes it"):
        kinds[record["kind"]].append(record)
    starts = kinds["run"]
    epochs = pd.DataFrame(kinds["epoch"], columns=["epoch", *OF_EPOCHS]).astype(float)
    validations = pd.DataFrame(kinds["validation"], columns=["epoch", *LOSSES]).astype(float)
    for frame in (epochs, validations):
        if wrong := [str(name) for name in frame if not np.isfinite(frame[name]).all()]:
            raise ValueError(f"{', '.join(wrong)}: missing or not finite in some lines")
    last = range(1, len(epochs) + 1)
    if not starts:
        raise ValueError("the line with the settings (kind `run`) is missing")
    if epochs["epoch"].tolist() != [*last]:
        raise ValueError("epochs are missing, repeated or in the wrong order")
    if validations["epoch"].duplicated().any():
        raise ValueError("an epoch has several validations")
    hparams, corpus = hparams_from_dict(starts[-1]["hparams"]), starts[-1]["corpus"]
    if len(epochs) < hparams.epochs:
        problem = f"unfinished after {len(epochs)} of {hparams.epochs} epochs; resume with"
        raise UserError(f"{problem} train.py -o {directory} --resume")
    lengths = read_lengths(directory / LENGTHS_FILE, hparams)
    clips, frames = corpus["training_clips"], corpus["training_frames"]
    if (len(lengths), lengths.sum()) != (clips, frames):
        problem = f"{LENGTHS_FILE}: {len(lengths)} clips with {lengths.sum()} frames"
        raise UserError(f"{problem} (the run was trained on {clips} clips with {frames} frames)")
    epochs = epochs.merge(validations, on="epoch", how="left")
    epochs["hours"] = epochs["minutes"].cumsum() / 60
    epochs["updates"] = epochs["num_batches"].cumsum()
    changes = []
    for before, after in itertools.pairwise(starts):
        old, new = (start["hparams"] | _environment(start) for start in (before, after))
        for name in old.keys() - WITHOUT_EFFECT - {"epochs"}:
            if old[name] != new.get(name):
                change = f"{name}: {old[name]}, then {new.get(name, 'unknown')}"
                changes.append(f"{directory} was resumed at epoch {after['epoch']} with {change}")
    time = datetime.fromisoformat(starts[-1]["time"]).astimezone()
    facts = _facts(hparams, starts, len(epochs), lengths)
    return Run(str(directory), hparams, lengths, epochs, time, facts, changes)


def _facts(h: HParams, starts: list[dict], epochs: int, lengths: np.ndarray) -> dict[str, Any]:
    """Return the settings, the corpus, the machine and the software of a run as text. Settings that
    have no effect are NaN."""
    own = REGISTRY[h.batching_strategy].parameter
    ignored = WITHOUT_EFFECT | {p.name for p in PARAMETERS if p != own}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # BR does not change random batches (RAND)
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= {n for n in asdict(h) if re.match("learning_rate_(?!schedule)", n)}
    corpus, warm = starts[-1]["corpus"], starts[0]["iteration"] == 0
    hours = lengths.sum() * h.hop_length / h.sampling_rate / 3600
    clips = [str(len(lengths)), str(corpus["validation_clips"])]
    head = [str(h.seed), *clips, f"{hours:.2f}", starts[-1]["time"][:10]]
    settings = {name: np.nan if name in ignored else str(v) for name, v in asdict(h).items()}
    settings["name"] = batching_name(*(getattr(h, setting) for setting in BATCHING[1:]))
    settings["epochs"] = str(epochs)
    settings["started_from"] = str(starts[0].get("started_from") if warm else None)
    settings["corpus"] = f"{clips[0]} clips, {corpus['fingerprint'][:8]}"
    return dict(zip(HEAD, head, strict=True)) | settings | _environment(starts[-1])


def _environment(start: dict[str, Any]) -> dict[str, str]:
    """Return the machine, the software and the corpus that a run was started with."""
    environment = {f"machine's {name}": value for name, value in start["machine"].items()}
    environment |= {f"version of {name}": value for name, value in start["versions"].items()}
    environment["commit"] = start.get("commit")
    environment["fingerprint of the corpus"] = start["corpus"]["fingerprint"][:16]
    return {name: "unknown" if value is None else str(value) for name, value in environment.items()}


def _differences(rows: pd.DataFrame) -> np.ndarray:
    """Return a bool array [rows, rows, settings] that says whether two rows differ in a setting.

    Settings that define the strategy, and settings that have no effect in one of the two rows, are
    not compared.
    """
    text, known = rows.fillna("").to_numpy(str), rows.notna().to_numpy()
    return (text[:, None] != text) & known[:, None] & known & ~rows.columns.isin(BATCHING)


def _place(label: str) -> tuple[int, str]:
    """Return the sort key of a row.

    The paper's ten strategies come first, in the paper's order. The rows of other strategies
    follow, sorted by name and value.
    """
    name, paper = label.partition(" ")[0], list(published.TABLE_2)
    digits = re.sub(r"\d+(\.\d+)?", lambda number: f"{float(number[0]):020.9f}", label)
    return paper.index(name) if name in paper else len(paper), digits


def _group(runs: Sequence[Run], left_out: list[str]) -> Runs:
    """Group the runs, which must be sorted by time, into the rows of a report.

    If two runs have the same settings and seed, only the later run is kept.
    """
    facts = pd.DataFrame([run.facts for run in runs], [run.folder for run in runs], dtype=object)
    settings = facts.loc[:, ~facts.columns.str.contains(SOFTWARE)].drop(columns=HEAD)
    table = pd.DataFrame({"seed": [run.hparams.seed for run in runs]}, facts.index)
    # This long text is only a temporary label. Short labels replace it below.
    table["label"] = settings.fillna("").agg("\n".join, axis=1)
    again = table.duplicated(["label", "seed"], keep="last")
    same = "a later run has the same settings and seed"
    left_out = left_out + [f"{folder}: {same}" for folder in table.index[again]]
    table = table[~again]
    rows = settings[~again].set_index(table["label"])
    rows = rows[~rows.index.duplicated()]
    # Choose the main row of each strategy: the row that is comparable with the largest number of
    # other rows. Two rows are comparable if they differ only in the strategy. If several rows are
    # tied, choose the row with the most settings that equal the paper's settings or the defaults.
    usual = pd.Series(asdict(HParams()) | published.SETTINGS).astype(str)
    rank = pd.DataFrame({"comparable": (~_differences(rows).any(2)).sum(1)}, rows.index)
    rank["usual"] = (rows[rows.columns.intersection(usual.index)] == usual).sum(axis=1)
    rank = rank.sort_values(["comparable", "usual"], ascending=False, kind="stable")
    best = rows.loc[rank.index].drop_duplicates("name").set_index("name", drop=False)
    labels = []
    for _, row in rows.iterrows():
        differing = row.index[row.fillna("") != best.loc[row["name"]].fillna("")]
        settings_text = ", ".join(f"{SHORT.get(n, n)} {row[n]}" for n in differing)
        labels.append(row["name"] + (f" ({settings_text})" if settings_text else ""))
    table = table.replace({"label": dict(zip(rows.index, labels, strict=True))})
    rows = rows.set_axis(labels).loc[sorted(labels, key=_place)]
    label, seed, by_folder = table["label"], table["seed"], {run.folder: run for run in runs}
    order = sorted(table.index, key=lambda folder: (*_place(label[folder]), seed[folder]))
    per_run = [by_folder[f].epochs.assign(run=f, label=label[f]) for f in order]
    epochs = pd.concat(per_run, ignore_index=True)
    in_order = {folder: by_folder[folder] for folder in order}
    return Runs(in_order, table.loc[order], rows, facts.loc[order], epochs, left_out)


def describe(runs: Runs) -> dict[str, str]:
    """Return the facts about the runs that are shown at the top of a report."""
    facts = runs.facts.filter(regex=f"^({'|'.join(HEAD)}|epochs|machine's .*)$|{SOFTWARE}")
    values = {str(name): "; ".join(column.unique()) for name, column in facts.items()}
    return {"runs": f"{len(runs.by_folder)} in {len(runs.rows)} rows"} | values


def deviations(runs: Runs) -> list[str]:
    """Return the known differences between these runs and the paper's experiments."""
    # A setting that the paper does not state must have our default, which is NVIDIA's value.
    given = {n: list(v) if isinstance(v, tuple) else v for n, v in published.SETTINGS.items()}
    paper = asdict(create_hparams(",".join(f"{n}={v}" for n, v in given.items())))
    paper |= {"epochs": published.EPOCHS, "started_from": None}
    paper |= {CLIPS[0]: published.TRAINING_CLIPS, CLIPS[1]: published.VALIDATION_CLIPS}
    facts = runs.facts.copy()
    facts["epochs"] = facts["epochs"].astype(int).clip(upper=published.EPOCHS).astype(str)
    is_other = ~facts["batching_strategy"].isin(published.STRATEGIES)
    # The paper does not contain these strategies, so it has no parameter values to compare
    # with the values in the runs.
    facts.loc[is_other, [p.name for p in PARAMETERS]] = np.nan
    return [
        f"{name} {value} instead of {paper[name]}{where}"
        for name in facts.columns.drop([*BATCHING, "load_mel_from_disk"])
        if name in paper
        for value, where in _by_value(facts[name])
        if value != str(paper[name])
    ]


def comparison_warnings(runs: Runs) -> list[str]:
    """Return messages about differences between the runs in anything except the strategy, and about
    runs that were resumed with changes."""
    facts = runs.facts.drop(columns=[*BATCHING, *HEAD])
    warnings = []
    for name in facts.columns[facts.nunique() > 1]:
        warnings.append(f"{name}: " + "; ".join(map("".join, _by_value(facts[name]))))
    counts = runs.rows["name"].value_counts(sort=False)
    for batching, count in counts[counts > 1].items():
        warnings.append(f"{batching} has {count} rows; Tables 1, 3 and 4 use the first row")
    return warnings + [change for run in runs.by_folder.values() for change in run.changes]


def _by_value(column: pd.Series) -> Iterable[tuple[str, str]]:
    """Yield a pair for each value in a column, most common value first: the value, and a text that
    lists the folders of the runs with this value. The text is empty if all runs have the same
    value."""
    for value, count in column.value_counts().items():
        folders = ", ".join(column.index[column == value][:3])
        more = f" and {count - 3} more" if count > 3 else ""
        yield str(value), f" ({folders}{more})" if count < len(column) else ""
