"""A paper's table made again: a run for every row and seed, each kept as soon as it is finished,
and a report beside the published numbers.

    OUT/runs/*.json    a finished run each; a table that was stopped resumes with the others
    OUT/report.md      the table, more that was measured, and which of the paper's findings hold
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from machine import machine, peak_memory, reset_peak_memory
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import duration, markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import lock, read_json, refuse_no_folder, write_bytes, write_json

Run = Mapping[str, float]  # what was measured, by the columns' keys
Runs = Mapping[str, Sequence[Run]]  # of every row, by seed
CONFIDENCE = 0.95
CPU = torch.device("cpu")
FORK = multiprocessing.get_context("fork")  # passes objects that cannot be pickled


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    published_title: str = ""  # empty: the paper has no such column
    digits: int = 1
    may_be_zero: bool = False  # so rows differ by so much, not by so many per cent


@dataclass(frozen=True)
class Row:
    name: str
    options: Mapping[str, Any]
    published: Sequence[float] = ()  # of the table's first columns


Cells = Sequence[tuple[Row, int]]  # rows with seeds


@dataclass(frozen=True)
class Claim:
    """What the paper found: a row has more of a column than another, or as much within a margin."""

    key: str
    more: str
    less: str
    margin: float = 0.0


@dataclass(frozen=True)
class PaperTable:
    """What is to be measured and shown. `experiment(settings)` gives the function that measures a
    row with a seed; it is called only if a run is left to make."""

    description: str  # the program's docstring
    introduction: str  # the report's first lines; {seeds} stands for their number
    settings: Any  # a dataclass, with `seeds`
    quick: Any
    experiment: Callable[[Any], Callable[[Row, int], Run]]
    rows: Sequence[Row]
    columns: Sequence[Column]  # beside the paper's
    more_columns: Sequence[Column]
    claims: Sequence[Claim]
    processes: int = 2  # with a thread each; all rows are timed beside another

    def main(self, arguments: list[str] | None = None) -> None:
        """The program: make the runs that are left, and write the report.

        UserError if OUT holds runs with other settings or of another machine."""
        parser = make_parser(self.description)
        parser.add_argument("out", metavar="OUT", type=Path, help="folder of the runs and report")
        parser.add_argument("--quick", action="store_true", help="two minutes: little data, 1 seed")
        args = parser.parse_args(arguments)
        torch.set_num_threads(1)  # small layers only wait for each other on several
        runs = self.make_runs(args.out, self.quick if args.quick else self.settings)
        report = self.report(runs)
        write_bytes(args.out / "report.md", report.encode())
        print(report, end="")

    def make_runs(self, out: Path, settings: Any) -> Runs:
        """Every row's runs: those of earlier calls from `out`, the others shared by processes."""
        refuse_no_folder(out, "folder")
        (out / "runs").mkdir(parents=True, exist_ok=True)
        made_with = {"settings": asdict(settings), "machine": machine(CPU)}
        cells = [(row, seed) for seed in range(settings.seeds) for row in self.rows]
        paths = [out / "runs" / f"{row.name}, {seed}.json" for row, seed in cells]
        with lock(out):  # which a killed program's other process holds until its run is made
            for path in filter(Path.exists, paths):
                read_run(path, made_with)
            left = [cell for cell, path in zip(cells, paths, strict=True) if not path.exists()]
            shares = [left[i :: self.processes] for i in range(self.processes)]
            arguments = [(share, out / "runs", made_with, settings) for share in shares]
            others = [FORK.Process(target=self.help, args=each, daemon=True) for each in arguments]
            for process in others[1:]:
                process.start()
            self.make_share(*arguments[0])
            for process in others[1:]:
                process.join()
        if missing := [path for path in paths if not path.exists()]:
            raise UserError(f"{missing[0]}: not made, as a process ended; the same command resumes")
        found = {row.name: list[Run]() for row in self.rows}
        for (row, _), path in zip(cells, paths, strict=True):
            found[row.name].append(read_run(path, made_with))
        return found

    def help(self, cells: Cells, folder: Path, made_with: Any, settings: Any) -> None:
        """Make a share in a process of its own, which ends by Ctrl-C without a word."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.make_share(cells, folder, made_with, settings, os.getppid())

    def make_share(
        self, cells: Cells, folder: Path, made_with: Any, settings: Any, parent: int | None = None
    ) -> None:
        """Measure rows with seeds, and write what was found. Ends early if `parent` has."""
        start, measure = time.perf_counter(), cache(self.experiment)
        for made, (row, seed) in enumerate(cells, 1):
            run = measure(settings)(row, seed)
            write_json(
                folder / f"{row.name}, {seed}.json", {"made_with": made_with, "results": run}
            )
            words = [f"{run[c.key]:.{c.digits}f} {c.title}" for c in self.columns]
            seconds = (time.perf_counter() - start) / made * (len(cells) - made)
            left = f"{len(cells) - made} more in this process, {duration(seconds)}"
            print(f"{row.name}, seed {seed}: {', '.join(words)}; {left}", flush=True)
            if parent not in (None, os.getppid()):
                return

    def report(self, runs: Runs) -> str:
        parts = [
            self.introduction.format(seeds=len(runs[self.rows[0].name])),
            f"Measured on: {machine(CPU)}. Means, and standard errors over seeds.",
            self.results(self.columns, runs),
            self.results(self.more_columns, runs),
            "What the paper found, by how much one row has more than another. It is confirmed or "
            f"contradicted where the {CONFIDENCE:.0%} interval of our difference is wholly on one "
            "side of 0, or of the margin named.",
            markdown_table(
                ["the paper's finding", "there", "here", "verdict"],
                [self.verdict(claim, runs) for claim in self.claims],
            ),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    @property
    def by_key(self) -> dict[str, Column]:
        return {column.key: column for column in (*self.columns, *self.more_columns)}

    def published(self, key: str) -> dict[str, float]:
        """The paper's figures of a column, by row."""
        place = [*self.by_key].index(key)
        return {row.name: row.published[place] for row in self.rows if row.published[place:]}

    def results(self, columns: Sequence[Column], runs: Runs) -> str:
        """Every row's means, each beside what the paper has."""
        titles, lines = ["batches"], [[row.name] for row in self.rows]
        for column in columns:
            published = self.published(column.key)
            titles += [column.title] + [column.published_title] * bool(column.published_title)
            for line in lines:
                found = mean_and_error([run[column.key] for run in runs[line[0]]])
                there = [str(published.get(line[0], "–"))] * bool(column.published_title)
                line += [with_error(*found, style=f",.{column.digits}f"), *there]
        return markdown_table(titles, lines)

    def verdict(self, claim: Claim, runs: Runs) -> list[str]:
        """A claim with the paper's difference and ours, seed by seed, and what follows from it."""
        column, published = self.by_key[claim.key], self.published(claim.key)
        unit, digits = ("", column.digits) if column.may_be_zero else (" %", 1)

        def differences(more: np.ndarray, less: np.ndarray) -> np.ndarray:
            return more - less if column.may_be_zero else 100 * (more / less - 1)

        names, there = (claim.more, claim.less), "–"
        if published.keys() >= set(names):
            found = differences(*(np.array(published[name]) for name in names))
            there = f"{found:+.{digits}f}{unit}"
        ours = differences(*(np.array([run[claim.key] for run in runs[name]]) for name in names))
        mean, error = mean_and_error(ours)
        reach = error * student.ppf((1 + CONFIDENCE) / 2, max(1, len(ours) - 1))
        low, high = (-claim.margin, claim.margin) if claim.margin else (0, np.inf)
        result = "undecided"  # also where the error is not known
        if low < mean - reach and mean + reach < high:
            result = "confirmed"
        elif mean + reach < low or mean - reach > high:
            result = "contradicted"
        sign = f"= {claim.less} ± {claim.margin:g}{unit}" if claim.margin else f"> {claim.less}"
        here = with_error(mean, error, f"+.{digits}f") + unit
        return [f"{column.title}: {claim.more} {sign}", there, here, result]


def read_run(path: Path, made_with: Any) -> Run:
    """What a finished run found. UserError if it is of other settings or of another machine."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("made_with") != made_with:
        problem = "made with other settings or on another machine"
        raise UserError(f"{path}: {problem}; delete it, or name another folder")
    return found["results"]


def memory_of(step: Callable[[], object]) -> float:
    """What a step adds to this process at most, in MB."""
    reset_peak_memory(CPU)
    before = peak_memory(CPU)
    step()
    return (peak_memory(CPU) - before) / 1e6


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The mean and its standard error, which is nan for a single value."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def with_error(mean: float, error: float, style: str) -> str:
    return f"{mean:{style}}" + ("" if np.isnan(error) else f" ± {error:{style.lstrip('+')}}")
