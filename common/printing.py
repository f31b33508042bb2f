"""Standard output and error that stop nothing: text that cannot be printed is dropped, for a run of
days outlives what shows it: `| tee` is closed, the terminal hangs up, the log file's disk is full.
"""

import io
import os
import sys
from typing import Any

from common import progress


class UnfailingFile(io.FileIO):
    """A file that takes every write, and drops what the system refuses."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:  # no reader (EPIPE), no terminal (EIO), no room (ENOSPC), ...
            written = None
        return memoryview(data).nbytes if written is None else written  # None: it would wait


def print_without_failing() -> None:
    """Let nothing that this process, or one forked from it, prints raise an error from here on, the
    flush at its end included. Streams that something else has put in place are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue
        file = UnfailingFile(stream.fileno(), "w", closefd=False)
        unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
        replaced = io.TextIOWrapper(
            file if unbuffered else io.BufferedWriter(file),
            encoding=stream.encoding,
            # A path's odd bytes may have no place in the terminal's encoding.
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replaced)


def print_nothing() -> None:
    """For a process beside the one that prints: tracebacks alone are shown from here on."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    progress.shown = False
