"""The one reader of a run's metrics.jsonl, which training/logging.py writes.

    metrics = read_metrics(Path("runs/ljspeech"))
    print(metrics.epochs[-1].minutes, metrics.validations[-1].validation_loss)

Entries that are not read here may come and go between versions of the recipe.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from analysis.checked_json import parse_json
from data_utils import lines_refused
from errors import UserError
from files import METRICS_FILE, numbered_lines
from hparams import hparams_from_dict

HOW_TO_MEND = "put the file back as train.py wrote it, or train the run again"


@dataclass(frozen=True)
class CorpusRecord:
    """What a run trained on."""

    fingerprint: str
    training_clips: int
    validation_clips: int
    training_frames: int


@dataclass(frozen=True)
class RunRecord:
    """A `run` line: written when a run starts and whenever it goes on after a stop."""

    kind: Literal["run"]
    iteration: int  # updates done before it
    epoch: int  # the next one, counted from 1
    time: datetime
    hparams: dict  # as `hparams_from_dict` takes them
    corpus: CorpusRecord
    machine: dict
    versions: dict
    started_from: str | None = None  # a checkpoint
    commit: str | None = None  # of this recipe

    def __post_init__(self):
        if not 1970 < self.time.year < 9999:  # others have no time of day in every time zone
            raise ValueError(f"time={self.time}, expected a year from 1971 to 9998")


@dataclass(frozen=True)
class EpochRecord:
    """An `epoch` line. Rates and fractions are from 0 to 1, lengths are in frames."""

    kind: Literal["epoch"]
    epoch: int  # from 1
    minutes: float
    prepare_seconds: float
    num_batches: int
    zero_padding_rate: float
    average_batch_length: float
    padded_fraction: float
    decoder_steps: int
    frames_per_second: float
    padded_frames_per_second: float
    clips_per_second: float
    data_wait_seconds: float
    peak_memory_bytes: int

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012


@dataclass(frozen=True)
class ValidationRecord:
    """A `validation` line, which follows the line of its epoch."""

    kind: Literal["validation"]
    epoch: int
    validation_loss: float
    validation_loss_unpadded: float
    alignment_sharpness: float

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012


RECORDS = {"run": RunRecord, "epoch": EpochRecord, "validation": ValidationRecord}


@dataclass(frozen=True)
class RunMetrics:
    """The lines of one run in their order, the first of them a `run` line."""

    path: Path
    records: tuple[RunRecord | EpochRecord | ValidationRecord, ...]
    cut_off: str = ""  # a message where the last line is half-written and was left out

    @cached_property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(record for record in self.records if record.kind == "run")

    @cached_property
    def epochs(self) -> tuple[EpochRecord, ...]:
        return tuple(record for record in self.records if record.kind == "epoch")

    @cached_property
    def validations(self) -> tuple[ValidationRecord, ...]:
        return tuple(record for record in self.records if record.kind == "validation")


def read_metrics(directory: Path) -> RunMetrics:
    """The metrics of the run in `directory`, the output folder of train.py.

    A last line without its end, as a killed run may leave it, is left out: see `cut_off`.

    Raises:
        UserError: naming the file and every bad line: one that is not JSON, that lacks a number
            or has something else in its place, or that is out of order.
    """
    path = directory / METRICS_FILE
    lines = numbered_lines(path, f"no such file; train.py -o {directory} writes it")
    records, problems, cut_off = {}, [], ""
    for number, line in lines:
        try:
            records[number] = _parse(line)
        except ValueError as error:
            if (number, line) == lines[-1] and "not JSON" in str(error):
                cut_off = f"{path}:{number}: only half a line, left out: {line[:60]!r}"
            else:
                problems.append(f"{path}:{number}: {error}")
    if not (records or problems):
        raise UserError(f"{path}: no `run` line with the settings; {HOW_TO_MEND}")
    if not problems and (problem := _out_of_order(records)):
        problems.append(f"{path}:{problem}")
    if problems:
        raise UserError(f"{lines_refused(path, problems, len(lines))}\n  {HOW_TO_MEND}")
    return RunMetrics(path, tuple(records.values()), cut_off)


def _parse(line: str) -> RunRecord | EpochRecord | ValidationRecord:
    kind = parse_json(line, dict).get("kind")
    if kind not in tuple(RECORDS):
        raise ValueError(f"kind={kind!r}, expected one of {', '.join(RECORDS)}")
    record = parse_json(line, RECORDS[kind])
    if record.kind == "run":
        hparams_from_dict(record.hparams)  # leaves out unknown settings, refuses wrong values
    return record


def _out_of_order(records: dict[int, RunRecord | EpochRecord | ValidationRecord]) -> str:
    """What is wrong with the order of the records, by line; "" if nothing is.

    A run line comes first, epochs count up by one, and each is validated at most once, right
    after its end.
    """
    before = epoch = None
    for number, record in records.items():
        if before is None and record.kind != "run":
            return f"{number}: {record.kind} before any `run` line, which has the settings"
        if record.kind == "epoch":
            if epoch is not None and record.epoch != epoch + 1:
                return f"{number}: epoch {record.epoch} after epoch {epoch}; lines are missing"
            epoch = record.epoch
        if record.kind == "validation" and (before.kind, before.epoch) != ("epoch", record.epoch):
            return (
                f"{number}: validation of epoch {record.epoch}, expected right after the line of "
                "that epoch; lines are missing"
            )
        before = record
    return ""
