"""Define `UserError`, and format messages about the bad lines of a file.

raise UserError(f"{path}:{line}: 3 fields (expected path|text|seconds)")
raise lines_rejected(path, problems, num_lines)
"""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

# Problems that share a fix are grouped if the text of the fix has at least this many characters.
LONG_FIX = 150
MAX_LINES_SHOWN = 20  # maximum number of bad lines to list individually in a message


class UserError(ValueError):
    """Raised for mistakes in the user's input or files.

    Programs print the message and exit with code 1. The message contains the place of the mistake
    (file and line, setting or option), the wrong value, and the expected value.
    """


def explained(error: UserError | OSError) -> str:
    """Return the message of an error. For a system error, the message also states that
    checkpoints are unchanged and, if the disk is full, contains a fix."""
    if isinstance(error, UserError) or error.errno is None:
        return str(error)
    return f"{with_fix(error)}. Checkpoints are unchanged"


def with_fix(error: OSError) -> str:
    """Return the message of a system error and, if the disk is full, a fix."""
    fix = ": free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error}{fix}"


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 clip" or "2,000 clips"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def lines_rejected(path: str | Path, problems: list[str], num_lines: int) -> UserError:
    """Return a UserError about the rejected lines of a file, which has `num_lines` lines in total.
    `problems` are strings of the form "PATH:LINE: what is wrong; fix"."""
    return UserError(about_lines(path, problems, num_lines, "rejected"))


def about_lines(
    path: str | Path,
    problems: list[str],
    num_lines: int,
    done: str,
    one_by_one: int = MAX_LINES_SHOWN,
) -> str:
    """Return a message about all bad lines of a file.

    Args:
        problems: strings of the form "PATH:LINE: what is wrong; fix".
        num_lines: total number of lines in the file.
        done: what the program did with the bad lines, such as "rejected".
        one_by_one: maximum number of problems to list without grouping.
    """
    shown = grouped(problems, one_by_one, prefix=f"{path}:")
    return "\n  ".join([f"{path}: {len(problems):,} of {num_lines:,} lines {done}:", *shown])


def grouped(
    problems: Sequence[str], one_by_one: int = MAX_LINES_SHOWN, prefix: str = ""
) -> list[str]:
    """Format problems of the form "PLACE: what is wrong; fix" as lines, and group similar problems.

    Problems with the same fix are always grouped if the text of the fix is long. If there are more
    than `one_by_one` problems, all problems of the same kind are grouped. For each group, the first
    problem is shown in full, followed by the locations of the other problems without `prefix` and
    folders.
    """
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        fix = problem.partition("; ")[2]
        kind = fix if len(fix) >= LONG_FIX else problem
        if len(problems) > one_by_one:
            kind = _kind(problem)
        kinds.setdefault(kind, []).append(problem)
    lines = []
    for first, *others in [*kinds.values()][:MAX_LINES_SHOWN]:
        lines.append(first)
        if others:
            # Several problems can be in the same file, such as several bad segments.
            places = [*dict.fromkeys(x.removeprefix(prefix).partition(": ")[0] for x in others)]
            more = ", ..." if len(places) > MAX_LINES_SHOWN else ""
            names = [os.path.basename(place) for place in places]
            if len({*names}) < len(names):
                names = [os.sep.join(place.split(os.sep)[-2:]) for place in places]
            shown = ", ".join(names[:MAX_LINES_SHOWN])
            lines.append(f"  the same in {len(others):,} more: {shown}{more}")
    if len(kinds) > MAX_LINES_SHOWN:
        lines.append(f"... and problems of {len(kinds) - MAX_LINES_SHOWN:,} other kinds")
    return lines


def _kind(problem: str) -> str:
    """Return a key that is equal for similar problems. The key is the text of the fix. Without a
    fix, the key is the text of the problem. Numbers, quoted text and paths are removed from the
    key."""
    plain = re.sub(r"""(?<![\w\\])(['"]).*?(?<!\\)\1(?!\w)|\S*/\S*|\d+""", "", problem)
    return plain.partition("; ")[2] or plain
