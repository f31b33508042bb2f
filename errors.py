"""The one exception for what the user must fix."""

import errno
from pathlib import Path


class UserError(ValueError):
    """A mistake in the user's input or files: programs print the message and end. It names the file
    and line or the setting, its value, what was expected and how to fix it."""


def explained(error: UserError | OSError) -> str:
    """The message; of the system's errors with what may help."""
    if isinstance(error, UserError) or error.errno is None:
        return str(error)
    fix = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it usable"
    advice = f"if that is the output folder, {fix} or choose another; checkpoints are untouched"
    return f"{error}; {advice}"


def lines_refused(path: str | Path, problems: list[str], num_lines: int) -> UserError:
    """One message about all the bad lines of a file, to be raised."""
    shown = problems[:20]
    if len(problems) > len(shown):
        shown.append(f"... and {len(problems) - len(shown)} more")
    return UserError(
        f"{path}: {len(problems)} of {num_lines} lines refused:\n  " + "\n  ".join(shown)
    )
