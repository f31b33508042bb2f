"""Reproduce a table from a paper: run the experiment of every row with every seed, and report the
results.

A program creates a `PaperTable` and calls its method `main`, which writes these files:

    OUT/runs/*.json    one file per finished run; if stopped, the program resumes with the
                       missing runs
    OUT/report.md      the results next to the published numbers, further measurements, and a
                       verdict for each of the paper's findings
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student_t

from machine import machine, peak_memory, reset_peak_memory
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import duration, markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    check_is_folder,
    folder_locked,
    read_json,
    write_bytes,
    write_json,
)

Run = Mapping[str, float]  # maps the key of each column to the measured value
Runs = Mapping[str, Sequence[Run]]  # maps the name of each row to its runs, ordered by seed
CONFIDENCE = 0.95
CPU = torch.device("cpu")
# Fork the processes, because forked processes can receive objects that cannot be pickled.
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    published_title: str = ""  # column title in the paper; "": not a column of the paper
    digits: int = 1
    # Whether differences between rows are in percent. False if the values are close to zero.
    in_per_cent: bool = True

    def difference(self, more: Any, less: Any) -> Any:
        """Return the difference `more - less`. If `in_per_cent` is set, the difference is in
        percent of `less`."""
        if self.in_per_cent:
            return 100 * (more / less - 1)
        return more - less


@dataclass(frozen=True)
class Row:
    name: str
    options: Mapping[str, Any]
    # The paper's values, in the order of the columns. The last columns may have no published values.
    published: Sequence[float] = ()


Cells = Sequence[tuple[Row, int]]  # row and seed of each run


@dataclass(frozen=True)
class Claim:
    """A finding of the paper: row `more` has a larger value than row `less` in a column.

    If the margin is above zero, the finding is that the two values differ by at most this margin.
    """

    key: str
    more: str
    less: str
    margin: float = 0.0


@dataclass(frozen=True)
class PaperTable:
    """The rows and columns of a table, and a function that computes the values of a row.

    `experiment(settings)` returns a function that computes the values of a row for a seed.
    `experiment` is called only if runs are missing, because the call generates the corpus.
    """

    description: str  # description for --help
    introduction: str  # beginning of the report; {seeds} is replaced by the number of seeds
    settings: Any  # settings of the experiment, a dataclass with the field `seeds`
    quick: Any  # settings of the experiment with --quick
    experiment: Callable[[Any], Callable[[Row, int], Run]]
    rows: Sequence[Row]
    columns: Sequence[Column]  # columns of the table in the paper
    more_columns: Sequence[Column]
    claims: Sequence[Claim]
    # Number of single-threaded processes. Each process trains one model at a time.
    processes: int = 2

    def main(self, arguments: list[str] | None = None) -> None:
        """Run the program: complete all missing runs, and write the report.

        Raises:
            UserError: if OUT contains runs with different settings or from a different machine.
        """
        parser = make_parser(self.description)
        parser.add_argument(
            "out", metavar="OUT", type=Path, help="folder for the runs and the report"
        )
        quick_help = "use little training data and one seed (about two minutes)"
        parser.add_argument("--quick", action="store_true", help=quick_help)
        args = parser.parse_args(arguments)
        torch.set_num_threads(1)  # for small layers, several threads are slower than one thread
        runs = self.make_runs(args.out, self.quick if args.quick else self.settings)
        report = self.report(runs)
        write_bytes(args.out / "report.md", report.encode())
        print(report, end="")

    def make_runs(self, out: Path, settings: Any) -> Runs:
        """Return {name of the row: runs} for all rows. Read the finished runs from `out`, and
        complete the missing runs in several processes.
        """
        check_is_folder(out, "folder")
        folder = out / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        made_with = {"settings": asdict(settings), "machine": machine(CPU)}
        cells = [(row, seed) for seed in range(settings.seeds) for row in self.rows]
        # Lock the folder, because two programs must not write runs to the same folder at once.
        with folder_locked(out, "another process is using this folder. Wait until it has finished"):
            missing = []
            for row, seed in cells:
                path = path_of(folder, row, seed)
                if path.exists():
                    read_run(path, made_with)
                else:
                    missing.append((row, seed))
            own_share, *shares = [missing[i :: self.processes] for i in range(self.processes)]
            processes = [
                FORK.Process(
                    target=self.make_share_in_child,
                    args=(share, folder, made_with, settings),
                    daemon=True,
                )
                for share in shares
            ]
            for process in processes:
                process.start()
            self.make_share(own_share, folder, made_with, settings)
            for process in processes:
                process.join()
        runs = {row.name: list[Run]() for row in self.rows}
        for row, seed in cells:
            path = path_of(folder, row, seed)
            if not path.exists():
                raise UserError(
                    f"{path}: this run is missing because a process failed. Start the program "
                    "again."
                )
            runs[row.name].append(read_run(path, made_with))
        return runs

    def make_share_in_child(
        self, cells: Cells, folder: Path, made_with: Any, settings: Any
    ) -> None:
        """Complete some of the runs in a child process, which exits without a traceback on
        Ctrl-C."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.make_share(cells, folder, made_with, settings)

    def make_share(self, cells: Cells, folder: Path, made_with: Any, settings: Any) -> None:
        """Complete the runs in `cells` (pairs of row and seed), and write each result to a file."""
        if not cells:
            return
        start = time.perf_counter()
        measure = self.experiment(settings)
        for made, (row, seed) in enumerate(cells, start=1):
            run = measure(row, seed)
            write_json(path_of(folder, row, seed), {"made_with": made_with, "results": run})
            values = [f"{c.title}: {run[c.key]:.{c.digits}f}" for c in self.columns]
            left = len(cells) - made
            seconds = (time.perf_counter() - start) / made * left
            remaining = f"{left} runs left in this process ({duration(seconds)})"
            print(f"{row.name}, seed {seed} - {'; '.join(values)}; {remaining}", flush=True)

    def report(self, runs: Runs) -> str:
        """Return the report as Markdown."""
        parts = [
            self.introduction.format(seeds=len(runs[self.rows[0].name])),
            f"Measured on: {machine(CPU)}. Means and standard errors over seeds.",
            self.results(self.columns, runs),
            self.results(self.more_columns, runs),
            "Each finding of the paper compares two rows. The differences show by how much the "
            "first row exceeds the second row. A finding is undecided if the "
            f"{CONFIDENCE:.0%} confidence interval of our difference contains 0. A finding of the "
            "form A = B ± m is undecided if this interval contains -m or m.",
            markdown_table(
                ["finding of the paper", "paper", "ours", "verdict"],
                [self.verdict(claim, runs) for claim in self.claims],
            ),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    @property
    def by_key(self) -> dict[str, Column]:
        return {column.key: column for column in (*self.columns, *self.more_columns)}

    def published(self, key: str) -> dict[str, float]:
        """Return {row name: value in the paper} for a column."""
        index = list(self.by_key).index(key)
        return {row.name: row.published[index] for row in self.rows if index < len(row.published)}

    def results(self, columns: Sequence[Column], runs: Runs) -> str:
        """Return a table with the mean of every row next to the paper's value."""
        titles = ["batches"]
        lines = [[row.name] for row in self.rows]
        for column in columns:
            published = self.published(column.key)
            titles.append(column.title)
            if column.published_title:
                titles.append(column.published_title)
            for line in lines:
                name = line[0]
                mean, error = mean_and_error([run[column.key] for run in runs[name]])
                line.append(with_error(mean, error, style=f",.{column.digits}f"))
                if column.published_title:
                    line.append(str(published.get(name, "–")))
        return markdown_table(titles, lines)

    def verdict(self, claim: Claim, runs: Runs) -> list[str]:
        """Return a table row: the finding, the paper's difference, our difference and the verdict.

        Our difference is the mean of the differences over all seeds.
        """
        column = self.by_key[claim.key]
        unit = " %" if column.in_per_cent else ""
        digits = 1 if column.in_per_cent else column.digits

        published = self.published(claim.key)
        published_difference = "–"
        if claim.more in published and claim.less in published:
            difference = column.difference(published[claim.more], published[claim.less])
            published_difference = f"{difference:+.{digits}f}{unit}"

        more = np.array([run[claim.key] for run in runs[claim.more]])
        less = np.array([run[claim.key] for run in runs[claim.less]])
        mean, error = mean_and_error(column.difference(more, less))
        half_width = error * student_t.ppf((1 + CONFIDENCE) / 2, max(1, len(more) - 1))
        low, high = (0.0, np.inf)
        finding = f"{column.title}: {claim.more} > {claim.less}"
        if claim.margin:
            low, high = (-claim.margin, claim.margin)
            finding = f"{column.title}: {claim.more} = {claim.less} ± {claim.margin:g}{unit}"
        result = "undecided"  # with a single seed, the error is NaN, so the result stays undecided
        if low < mean - half_width and mean + half_width < high:
            result = "confirmed"
        elif mean + half_width < low or mean - half_width > high:
            result = "contradicted"
        our_difference = with_error(mean, error, f"+.{digits}f") + unit
        return [finding, published_difference, our_difference, result]


def path_of(folder: Path, row: Row, seed: int) -> Path:
    return folder / f"{row.name}, {seed}.json"


def read_run(path: Path, made_with: Any) -> Run:
    """Return the results of a finished run.

    Raises:
        UserError: if the run was made with different settings or on a different machine.
    """
    found = read_json(path)
    if not isinstance(found, dict) or found.get("made_with") != made_with:
        problem = "made with different settings or on a different machine"
        raise UserError(f"{path}: {problem}. Delete this file, or choose a different folder.")
    return found["results"]


def memory_of(step: Callable[[], object]) -> float:
    """Return the peak memory that a training step adds to this process, in MB."""
    reset_peak_memory(CPU)
    before = peak_memory(CPU)
    step()
    return (peak_memory(CPU) - before) / 1e6


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean of some values, and its standard error (NaN for a single value)."""
    error = np.nan
    if len(values) > 1:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(error)


def with_error(mean: float, error: float, style: str) -> str:
    """Return "mean ± error", or only the mean if the error is NaN."""
    if np.isnan(error):
        return f"{mean:{style}}"
    return f"{mean:{style}} ± {error:{style.lstrip('+')}}"
