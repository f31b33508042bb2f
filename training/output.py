"""The output folder of a run: who may write to it, and whether it holds a run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from errors import UserError
from files import METRICS_FILE, lock, refuse_no_folder
from training import checkpoint


class OutputFolder:
    """The output folder of a run, which one process at a time may read and write.

    A folder that is there is locked at once, before a checkpoint in it is read: another process
    would otherwise train on, and this one go on from what it had read before. A folder that is
    not there is made and locked by `make`.

    Raises:
        UserError: if another process trains in the folder, or it cannot be used.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = None
        with folder_errors():
            refuse_no_folder(path, "-o")
            if path.is_dir():
                self._lock = lock(path)

    def make(self) -> None:
        """Make the folder if it was not there, and lock it, unless a run has begun in it since."""
        if self._lock is not None:
            return
        with folder_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.path)
        if holds_run(self.path):
            raise UserError(
                f"{self.path}: another process has begun a run in this folder since this one "
                "looked: add --resume to go on with it, or choose another -o"
            )

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            self._lock.close()


@contextlib.contextmanager
def folder_errors() -> Iterator[None]:
    """Let an OSError be a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the output folder cannot be used: {error}") from error


def holds_run(directory: Path) -> bool:
    """Whether a run has begun in the folder; UserError if the folder cannot be looked at."""
    metrics = directory / METRICS_FILE
    with folder_errors():
        return bool(
            checkpoint.list_checkpoints(directory)
            or (directory / checkpoint.BEST).exists()
            or (metrics.exists() and metrics.stat().st_size > 0)  # empty if killed while setting up
        )
