"""Print without raising errors, show progress bars, and format Markdown tables.

print_without_failing()  # at the start of a long run
for clip in progress_bar("Checking clips", len(clips), " clips", iterable=clips): ...
print(markdown_table(["set", "clips"], [["train", "10,480"]]))
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10  # seconds between progress lines if the output is not a terminal
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}{speed}, {remaining} left{postfix}"
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{speed}{postfix}]"

duration = tqdm.format_interval  # formats seconds as 05:12 or 26:05:12

_shows_progress = True


# ---------------------------------------------------------------------------- output


class UnfailingFile(io.FileIO):
    """A file that never raises errors. Output that cannot be written is dropped."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:  # for example, no reader (EPIPE), no terminal (EIO) or no space (ENOSPC)
            written = None
        # `written` is None if an error occurred, or if the write would block.
        return memoryview(data).nbytes if written is None else written


def print_without_failing() -> None:
    """Prevent `print` from raising errors in this process and in its forked processes.

    Call this function at the start of a long run, so that the run continues even if its terminal or
    pipe (`| tee`) is closed, or if the disk is full. If other code has replaced sys.stdout or
    sys.stderr, the replacement is not changed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue
        file = UnfailingFile(stream.fileno(), "w", closefd=False)
        unbuffered = isinstance(stream.buffer, io.RawIOBase)  # true if Python was started with -u
        replaced = io.TextIOWrapper(
            file if unbuffered else io.BufferedWriter(file),
            encoding=stream.encoding,
            # The terminal's encoding may not support all characters of a path.
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replaced)


def print_nothing() -> None:
    """Suppress all output of this process except tracebacks, because only one process of a run may
    print."""
    global _shows_progress
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    _shows_progress = False


# ---------------------------------------------------------------------------- progress


class ProgressBar(tqdm):
    """A progress bar that shows slow speeds per minute. tqdm would show a slow speed as "7.62s/
    texts"."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        return values | {"speed": _speed(values)}


def _speed(values: dict[str, Any]) -> str:
    """Format the speed from the values of a tqdm bar, for example as ", 2.50 texts/s". If the speed
    is not known yet, return ""."""
    rate = values["rate"]
    if rate is None and values["elapsed"]:
        rate = (values["n"] - values["initial"]) / values["elapsed"]
    if not rate:
        return ""
    unit = values["unit"]
    if values["unit_scale"]:
        return f", {tqdm.format_sizeof(rate)}{unit}/s"
    if rate < 1:
        return f", {60 * rate:.2f}{unit}/min"
    return f", {rate:.2f}{unit}/s"


class ProgressLines(ProgressBar):
    """A progress bar that prints a line at regular intervals, for output to a log file."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.n and msg is None:
            print(self, flush=True)

    @classmethod
    def write(
        cls, s: str, file: TextIO | None = None, end: str = "\n", nolock: bool = False
    ) -> None:
        """Print a message, as `tqdm.write` does."""
        print(s, file=file, end=end, flush=True)


def progress_bar(title: str, total: int, unit: str, line: str = LINE, **options: Any) -> tqdm:
    """Return a tqdm progress bar. Call the bar's method `update`, or pass `iterable` and iterate
    over the bar.

    If the output is not a terminal, the bar prints `line` every 10 seconds instead. `options` are
    passed to tqdm.
    """
    hidden = not _shows_progress or options.get("disable", False)
    options |= {"desc": title, "total": total, "unit": unit, "leave": False, "disable": hidden}
    if sys.stderr.isatty():
        return ProgressBar(bar_format=BAR, **options)
    seconds = SECONDS_BETWEEN_LINES
    return ProgressLines(bar_format=line, mininterval=seconds, maxinterval=2 * seconds, **options)


# ---------------------------------------------------------------------------- tables


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Return an aligned Markdown table that is also readable in a terminal.

    The first `labels` columns are left-aligned, and all other columns are right-aligned. Pass
    numbers as formatted strings. Pipes in cells are escaped, and all other Markdown is kept.
    """
    lines = [
        [str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (titles, ["---"] * len(titles), *rows)
    ]
    columns = [list(column) for column in zip(*lines, strict=True)]
    for index, column in enumerate(columns):
        is_label = index < labels
        width = max(map(len, column))
        column[1] = f":{'-' * (width - 1)}" if is_label else f"{'-' * (width - 1)}:"
        columns[index] = [cell.ljust(width) if is_label else cell.rjust(width) for cell in column]
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
