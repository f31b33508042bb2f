"""Find the checkpoints in a folder.

The module checkpoint_paths does not import PyTorch, so that exported voices load quickly.
"""

from pathlib import Path

BEST = "best.pt"
MAX_LISTED = 5  # maximum number of checkpoints to list in a message


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the paths of all checkpoints in a folder: best.pt first, then the other
    checkpoints from newest to oldest."""
    found = sorted(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    return sorted(found, key=lambda path: path.name != BEST)


def list_others(path: str | Path) -> str:
    """Return a sentence that lists the other checkpoints in the folder of a missing checkpoint, or
    ""."""
    names = ", ".join(found.name for found in checkpoints_in(Path(path).parent)[:MAX_LISTED])
    return f". Its folder contains {names}" if names else ""
