"""Finished training runs, read from their folders and grouped into the rows of a report."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from analysis import published
from analysis.epoch_times import EPOCH_MINUTES_FILE, EpochMinutes, read_epoch_minutes
from analysis.lengths import read_lengths
from analysis.metrics import RunMetrics, RunRecord, read_metrics
from analysis.strategies import PARAMETERS, batching_name
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_intelligibility
from batching import STRATEGIES
from data_utils import LENGTHS_FILE
from errors import UserError
from files import METRICS_FILE
from hparams import HParams, create_hparams, hparams_from_dict

# Settings that change no result of training: runs that differ in them alone are alike.
WITHOUT_EFFECT = {
    "seed",
    "num_workers",
    "iters_per_checkpoint",
    "keep_checkpoints",
    "log_interval",
    "ignore_layers",  # of a warm start, which is a setting of its own below
    "training_files",  # the corpus' fingerprint stands for what is in them
    "validation_files",
    "win_time",  # the same as win_length and hop_length
    "hop_time",
    "max_decoder_steps",  # of synthesis
    "gate_threshold",
}
OF_DECAY = {"learning_rate_decay_start", "learning_rate_half_life", "learning_rate_final"}
PAPER_STRATEGIES = ("random", "sorted", "semi_sorted", "bucket", "alternated_sort")
BATCHING = ("batching_strategy", "dynamic_batch_size", "batch_randomization")  # what rows compare
_NAMES = tuple(field.name for field in fields(HParams))
MODEL = _NAMES[_NAMES.index("n_symbols") :]  # the section "model" of hparams.py, to its end
NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
SHORT = {"local_randomization_factor": "LRF", "num_bins": "bins", "num_buckets": "classes"}


@dataclass(frozen=True)
class FinishedRun:
    """A run that trained all its epochs, from the first."""

    directory: Path
    metrics: RunMetrics
    hparams: HParams  # those it ended with
    lengths: np.ndarray  # [clips] frames
    intelligibility: Intelligibility | None = None  # of a study: what a recogniser heard of it
    epoch_minutes: EpochMinutes | None = None  # timed in turns with other batchings

    @property
    def record(self) -> RunRecord:
        return self.metrics.runs[-1]

    @property
    def minutes_of_epochs(self) -> list[float]:
        """Of every epoch, [epochs]; as timed in turns with other batchings, if they were."""
        if self.epoch_minutes is not None:
            return self.epoch_minutes.minutes
        return [epoch.minutes for epoch in self.metrics.epochs]

    @property
    def name(self) -> str:
        h = self.hparams
        return batching_name(h.batching_strategy, h.dynamic_batch_size, h.batch_randomization)


@dataclass(frozen=True)
class ReportRow:
    """Runs that are alike but for their seeds.

    `name` is that of the batching; `label` adds what sets the row apart from others of that name.
    """

    name: str
    label: str
    runs: tuple[FinishedRun, ...]
    settings: dict


# ---------------------------------------------------------------------------- reading


def collect_rows(folders: Sequence[Path]) -> tuple[list[ReportRow], list[str]]:
    """Rows of all finished runs at or below `folders`, and what was left out with the reason."""
    directories, left_out, runs = {}, [], []
    for folder in folders:
        if not folder.is_dir():
            left_out.append(
                f"{folder}: no such folder; name a run's folder, or one that holds runs"
            )
            continue
        below = sorted(path.parent for path in folder.rglob(METRICS_FILE))
        if not below:
            left_out.append(f"{folder}: no {METRICS_FILE} in it or below; train.py -o writes one")
        directories |= {path.resolve(): path for path in below}
    for directory in directories.values():
        try:
            runs.append(read_finished_run(directory))
        except UserError as error:
            left_out.append(str(error))
    left_out += [run.metrics.cut_off for run in runs if run.metrics.cut_off]
    rows, repeated = group_runs(runs)
    return rows, left_out + repeated


def read_finished_run(directory: Path) -> FinishedRun:
    """The finished run in `directory`.

    Raises:
        UserError: naming the file, and the line where it is one, if a line is broken, an epoch
            is missing, the run is not finished or its lengths are not those it trained on.
    """
    metrics = read_metrics(directory)
    record, epochs = metrics.runs[-1], metrics.epochs
    hparams = hparams_from_dict(record.hparams)
    if epochs and epochs[0].epoch != 1:
        raise UserError(
            f"{metrics.path}: its first epoch is {epochs[0].epoch}: the run went on from a "
            "checkpoint of another folder; train it from its start"
        )
    if len(epochs) < hparams.epochs:
        raise UserError(
            f"{metrics.path}: unfinished, {len(epochs)} of {hparams.epochs} epochs; go on with "
            f"train.py -o {directory} --resume"
        )
    path, corpus = directory / LENGTHS_FILE, record.corpus
    lengths = read_lengths(path, hparams, ["id,frames"]).frames
    if (len(lengths), lengths.sum()) != (corpus.training_clips, corpus.training_frames):
        raise UserError(
            f"{path}: {len(lengths)} clips of {lengths.sum()} frames, but the run trained on "
            f"{corpus.training_clips} of {corpus.training_frames}; put its own file back"
        )
    heard = None
    if (directory / INTELLIGIBILITY_FILE).exists():
        heard = read_intelligibility(directory / INTELLIGIBILITY_FILE)
        if heard.epochs != len(epochs):
            raise UserError(
                f"{directory / INTELLIGIBILITY_FILE}: of epoch {heard.epochs}, and the run has "
                f"{len(epochs)}; listen to its last checkpoint: scripts/listen.py"
            )
    timed = None
    if (directory / EPOCH_MINUTES_FILE).exists():
        timed = read_epoch_minutes(directory / EPOCH_MINUTES_FILE)
        if len(timed.minutes) != len(epochs):
            raise UserError(
                f"{directory / EPOCH_MINUTES_FILE}: of {len(timed.minutes)} epochs, and the run "
                f"has {len(epochs)}; time them again: scripts/time_epochs.py"
            )
    return FinishedRun(directory, metrics, hparams, lengths, heard, timed)


# ---------------------------------------------------------------------------- what runs share


def settings_of(run: FinishedRun) -> dict:
    """What decides a run's results but for its seed: settings that have an effect, the corpus,
    the machine and the weights it began from."""
    h = run.hparams
    ignored = WITHOUT_EFFECT | set(PARAMETERS.values()) - {PARAMETERS.get(h.batching_strategy)}
    if h.batching_strategy == "random":
        ignored |= {"batch_randomization"}  # RAND-BR would be RAND
    if not h.dynamic_batch_size:
        ignored |= {"batch_capacity"}
    if h.learning_rate_schedule == "constant":
        ignored |= OF_DECAY
    settings = {name: value for name, value in asdict(h).items() if name not in ignored}
    settings |= {"epochs": len(run.metrics.epochs), "started_from": warm_start(run)}
    corpus = run.record.corpus
    settings["corpus"] = f"{corpus.training_clips} clips, {corpus.fingerprint[:8]}"
    # The kernel's version is no other machine; it is in `environment_of`.
    return settings | _machine(run.record)


def _machine(record: RunRecord) -> dict:
    return {f"machine's {k}": value for k, value in record.machine.items() if k != "system"}


def environment_of(record: RunRecord) -> dict:
    """What else may differ between two runs: the operating system, software, this recipe."""
    return {
        "system": record.machine.get("system"),
        **{f"version of {name}": version for name, version in record.versions.items()},
        "commit": record.commit,
    }


def warm_start(run: FinishedRun) -> str | None:
    """The checkpoint whose weights the run began with, if it did not begin from nothing."""
    return run.metrics.runs[0].started_from if run.metrics.runs[0].iteration == 0 else None


def differing(settings: dict, other: dict) -> list[str]:
    """Settings that both have and that keep them from being compared as two batchings."""
    shared = (settings.keys() & other.keys()) - set(BATCHING)
    return sorted(name for name in shared if settings[name] != other[name])


# ---------------------------------------------------------------------------- rows


def group_runs(runs: Iterable[FinishedRun]) -> tuple[list[ReportRow], list[str]]:
    """Rows of the tables, the paper's first and in its order; and which runs were left out.

    Of two runs with equal settings and seed the one that began, or was last resumed, later stays.
    """
    groups: dict[str, dict[int, FinishedRun]] = defaultdict(dict)
    problems = []
    for run in sorted(runs, key=lambda run: run.record.time.astimezone()):
        by_seed, seed = groups[repr(sorted(settings_of(run).items()))], run.hparams.seed
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
        rows.append(ReportRow(name, name, members, settings_of(members[0])))
    return sorted(_labelled(rows), key=_place), problems


def _place(row: ReportRow) -> tuple:
    paper = list(published.TABLE_2)
    h = row.runs[0].hparams
    return (
        paper.index(row.name) if row.name in paper else len(paper),
        STRATEGIES.index(h.batching_strategy),
        h.dynamic_batch_size,
        h.batch_randomization,
        row.label != row.name,
        # Texts and numbers in turn, so that a batch size of 4 stands before one of 16.
        [float(part) if nth % 2 else part for nth, part in enumerate(NUMBER.split(row.label))],
    )


def _labelled(rows: list[ReportRow]) -> list[ReportRow]:
    """Rows of one name get the settings appended in which they differ and that are not the usual
    ones of this report, so that a bare name means the same settings wherever it stands."""
    labelled = []
    for row in rows:
        same_name = [other.settings for other in rows if other.name == row.name]
        names = [
            name
            for name in dict.fromkeys(itertools.chain(*same_name))
            if len({repr(settings.get(name)) for settings in same_name}) > 1
        ]
        others = [n for n in names if repr(row.settings.get(n)) != _usual(n, rows)]
        if others:
            values = ", ".join(f"{SHORT.get(n, n)} {row.settings.get(n)}" for n in others)
            row = replace(row, label=f"{row.name} ({values})")
        labelled.append(row)
    return labelled


def _usual(name: str, rows: Sequence[ReportRow]) -> str:
    """repr of the value that most rows have; of equally many, the paper's, or this recipe's
    default where the paper has none."""
    counts = Counter(repr(row.settings[name]) for row in rows if name in row.settings)
    default = repr(published.SETTINGS.get(name, getattr(HParams, name, "not the paper's")))
    return max(counts, key=lambda value: (counts[value], value == default), default=default)


def representatives(rows: Sequence[ReportRow]) -> dict[str, ReportRow]:
    """The row that stands for a batching's name where two batchings are compared: of several the
    one that most others may be compared with."""

    def comparable(row: ReportRow) -> int:
        return sum(not differing(row.settings, other.settings) for other in rows)

    by_name = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    return {name: max(same_name, key=comparable) for name, same_name in by_name.items()}


def follow_ups(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Rows of the batchings that have several; empty if every batching has one."""
    names = Counter(row.name for row in rows)
    return [row for row in rows if names[row.name] > 1]


# ---------------------------------------------------------------------------- warnings


def comparison_warnings(rows: Sequence[ReportRow]) -> list[str]:
    """What keeps the rows from being compared, and what changed in the midst of a run."""
    runs = [run for row in rows for run in row.runs]
    folders: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for name, value in (settings_of(run) | environment_of(run.record)).items():
            if name not in BATCHING:
                folders[name][_shown(value)].append(str(run.directory))
    warnings = []
    for name, by_value in folders.items():
        if len(by_value) > 1:
            parts = sorted(by_value.items(), key=lambda item: -len(item[1]))
            warnings.append(f"{name}: " + "; ".join(f"{v} ({_some(paths)})" for v, paths in parts))
    for name, row in representatives(rows).items():
        if [other.name for other in rows].count(name) > 1:
            warnings.append(f"{name} has several rows: in Tables 1, 3 and 4 it is {row.label}")
    for run in runs:
        for before, after in itertools.pairwise(run.metrics.runs):
            if changes := _changes(before, after):
                warnings.append(
                    f"{run.directory} was resumed at epoch {after.epoch} with other "
                    + "; ".join(changes)
                )
    return warnings


def _changes(before: RunRecord, after: RunRecord) -> list[str]:
    """What differs between two `run` lines of one run, but for how many epochs it shall have."""
    old, new = (
        record.hparams
        | _machine(record)
        | environment_of(record)
        | {"corpus": record.corpus.fingerprint[:8]}
        for record in (before, after)
    )
    return [
        f"{name}: {_shown(old.get(name))}, then {_shown(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if name not in WITHOUT_EFFECT | {"epochs"} and old.get(name) != new.get(name)
    ]


def _shown(value) -> str:
    return "unknown" if value is None else str(value)


def _some(names: list[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def deviations(rows: Sequence[ReportRow]) -> list[str]:
    """In what the runs are not the paper's experiments; empty if in nothing that can be known."""
    runs = [run for row in rows for run in row.runs]
    # Where the paper names no value, this recipe's defaults stand for it, which are NVIDIA's.
    paper = asdict(create_hparams(",".join(f"{n}={v}" for n, v in published.SETTINGS.items())))
    folders: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for text in _deviations_of_run(run, paper):
            folders[text].append(str(run.directory))
    return [
        text if len(names) == len(runs) else f"{text} ({_some(names)})"
        for text, names in folders.items()
    ]


def _deviations_of_run(run: FinishedRun, paper: dict) -> list[str]:
    found, model = [], []
    corpus = run.record.corpus
    for kind, count, expected in (
        ("training", corpus.training_clips, published.TRAINING_CLIPS),
        ("validation", corpus.validation_clips, published.VALIDATION_CLIPS),
    ):
        if count != expected:
            found.append(f"{count:,} {kind} clips instead of {expected:,}")
    needed = published.EPOCHS
    if len(run.metrics.epochs) < needed:
        found.append(f"{len(run.metrics.epochs)} epochs instead of {needed}")
    if warm_start(run):
        found.append(f"weights that began from {warm_start(run)}, not at random")
    not_compared = {*BATCHING, "epochs", "load_mel_from_disk"}
    if run.hparams.batching_strategy not in PAPER_STRATEGIES:
        not_compared |= set(PARAMETERS.values())  # the paper has no value for them
    for name, value in settings_of(run).items():
        if name in paper.keys() - not_compared and value != paper[name]:
            (model if name in MODEL else found).append(f"{name} {value} instead of {paper[name]}")
    return found + (["another model: " + ", ".join(model)] if model else [])
