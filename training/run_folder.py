"""Lock a run's output folder while the run trains (`RunFolder`).

folder = RunFolder(Path("runs/ljspeech"))
folder.make()
...
folder.close()
"""

from pathlib import Path

from filelock import BaseFileLock

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import LOCK_FILE, METRICS_FILE, check_is_folder, lock_path
from training.checkpoint import BEST, list_checkpoints

DEFAULT_LOGS = "logs"  # the folder of TensorBoard's files, inside the run folder


class RunFolder:
    """Represent the output folder of a run.

    An existing folder is locked before a checkpoint in it is read, so that no other process trains
    in it meanwhile. `make` creates and locks a missing folder.

    Args:
        logs: TensorBoard's folder, relative to `path`.
        is_used: whether this process locks and writes the folder. Only the run's first process
            locks and writes it.

    Raises:
        OSError: if another run trains in the folder.
    """

    def __init__(self, path: Path, logs: str = DEFAULT_LOGS, is_used: bool = True):
        self.path = path
        self.logs = logs
        self.is_used = is_used
        self._lock: BaseFileLock | None = None
        if is_used:
            check_is_folder(path, "-o")
            check_is_folder(path / logs, "--log_directory")
            if path.is_dir():
                self._lock = _lock(path)

    def contains_run(self) -> bool:
        """Return whether a run has begun in the folder."""
        if list_checkpoints(self.path) or (self.path / BEST).exists():
            return True
        metrics = self.path / METRICS_FILE
        # The file is empty if the run was killed while it started.
        return metrics.exists() and metrics.stat().st_size > 0

    def make(self) -> None:
        """Create and lock the folder, unless this was done already.

        Raises:
            UserError: if another process has started a run in the folder meanwhile.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        if self.contains_run():
            raise UserError(
                f"{self.path}: another process has started a run in this folder. Add --resume to "
                "resume it, or choose another -o"
            )

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _lock(path: Path) -> BaseFileLock:
    busy = f"{path}: another process is training in this folder; wait for it, or choose another -o"
    return lock_path(path / LOCK_FILE, busy)
