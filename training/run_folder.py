"""Lock the output folder of a run while the run is training (`RunFolder`).

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

DEFAULT_LOGS = "logs"  # folder for TensorBoard files, relative to the run folder


class RunFolder:
    """The output folder of a run. Only one run can use the folder at a time.

    If the folder exists, the constructor locks the folder before any checkpoint is read. If the
    folder does not exist, the method `make` creates and locks the folder.

    Args:
        logs: folder for TensorBoard files, relative to `path`.
        is_used: whether this process locks the folder and writes to it; True only in the first
            process.

    Raises:
        OSError: if another process is training in the folder.
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
        if list_checkpoints(self.path) or (self.path / BEST).exists():
            return True
        metrics = self.path / METRICS_FILE
        # Ignore an empty file, because a run that is killed at its start leaves an empty file.
        return metrics.exists() and metrics.stat().st_size > 0

    def make(self) -> None:
        """Create and lock the run folder, unless this object has already locked the folder.

        Raises:
            UserError: if another process has started a run in the folder since this object was
                created.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        if self.contains_run():
            raise UserError(
                f"{self.path}: another process has just started a run in this folder. Add --resume "
                "to resume it, or choose a different -o"
            )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _lock(path: Path) -> BaseFileLock:
    busy = (
        f"{path}: another process is training in this folder. Wait until it has finished, or "
        "choose a different -o"
    )
    return lock_path(path / LOCK_FILE, busy)
