"""What programs print: output that never fails, progress, and Markdown tables.

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

SECONDS_BETWEEN_LINES = 10  # of progress, where there is no terminal to draw a bar on
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_fmt}, {remaining} left{postfix}"

duration = tqdm.format_interval  # seconds as 05:12 or 26:05:12

_shows_progress = True  # whether this process shows any


# ---------------------------------------------------------------------------- output


class UnfailingFile(io.FileIO):
    """A file whose writes always succeed: what the system refuses is dropped."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:  # no reader (EPIPE), no terminal (EIO), no room (ENOSPC), ...
            written = None
        return memoryview(data).nbytes if written is None else written  # None: it would block


def print_without_failing() -> None:
    """Make printing in this process, and in processes forked from it, never raise, including the
    flush at exit. So long runs survive closed terminals, closed pipes (`| tee`) and full disks.
    Streams that something else has replaced are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        file = UnfailingFile(stream.fileno(), "w", closefd=False)
        unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
        replaced = io.TextIOWrapper(
            file if unbuffered else io.BufferedWriter(file),
            encoding=stream.encoding,
            # The terminal's encoding may lack characters of a path.
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replaced)


def print_nothing() -> None:
    """Silence this process because another one prints: from now on it only shows tracebacks."""
    global _shows_progress
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    _shows_progress = False


# ---------------------------------------------------------------------------- progress


class ProgressLines(tqdm):
    """A tqdm for log files: prints a line from time to time instead of redrawing a bar."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.n and msg is None:
            print(self, flush=True)

    @classmethod
    def write(
        cls, s: str, file: TextIO | None = None, end: str = "\n", nolock: bool = False
    ) -> None:
        """Print a message; a bar prints it above itself."""
        print(s, file=file, end=end, flush=True)


def progress_bar(title: str, total: int, unit: str, line: str = LINE, **options: Any) -> tqdm:
    """Make a bar to `update`, or to iterate with `iterable=`. Without a terminal it prints `line`
    now and then. `options` are tqdm's."""
    hidden = not _shows_progress or options.get("disable", False)
    options |= {"desc": title, "total": total, "unit": unit, "leave": False, "disable": hidden}
    if sys.stderr.isatty():
        return tqdm(**options)
    seconds = SECONDS_BETWEEN_LINES
    return ProgressLines(bar_format=line, mininterval=seconds, maxinterval=2 * seconds, **options)


# ---------------------------------------------------------------------------- tables


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence], labels: int = 1) -> str:
    """Format an aligned table, which a terminal shows as well. The first `labels` columns are
    aligned left, the others right. Cells are printed as they are, so format numbers first; a `|` in
    a cell is escaped, other marks of Markdown work."""
    lines = [
        [str(cell).strip().replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (titles, ["---"] * len(titles), *rows)
    ]
    columns = [list(column) for column in zip(*lines, strict=True)]
    for place, column in enumerate(columns):
        is_label, width = place < labels, max(map(len, column))
        column[1] = f":{'-' * (width - 1)}" if is_label else f"{'-' * (width - 1)}:"
        columns[place] = [cell.ljust(width) if is_label else cell.rjust(width) for cell in column]
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
