"""`UserError`, for faults that the user must fix, and messages about the bad lines of a file."""

import errno
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

MAX_LINES_SHOWN = 20  # bad lines of a file, one by one
MIN_GROUP, LONG_FIX = 3, 150  # problems with the same fix of so many characters are one message


class UserError(ValueError):
    """A mistake in the user's input or files: programs print the message and end. It names the file
    and line or the setting, its value, what was expected and how to fix it."""


def explained(error: UserError | OSError) -> str:
    """Return the error's message; a system error also gets advice on how to mend it."""
    if isinstance(error, UserError) or error.errno is None:
        return str(error)
    fix = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it usable"
    advice = f"if that is the output folder, {fix} or choose another; checkpoints are untouched"
    return f"{error}; {advice}"


def lines_refused(path: str | Path, problems: list[str], num_lines: int) -> UserError:
    """Return a UserError about the bad lines of a file; `problems` as in `about_lines`."""
    return UserError(about_lines(path, problems, num_lines, "refused"))


def about_lines(
    path: str | Path,
    problems: list[str],
    num_lines: int,
    done: str,
    one_by_one: int = MAX_LINES_SHOWN,
) -> str:
    """Return one message about all bad lines of a file; `done` says what happened to them.

    Each of `problems` is "PATH:LINE: what is wrong; fix"; more than `one_by_one` are `grouped`."""
    shown = grouped(problems, one_by_one, prefix=f"{path}:")
    return "\n  ".join([f"{path}: {len(problems):,} of {num_lines:,} lines {done}:", *shown])


def grouped(
    problems: Sequence[str], one_by_one: int = MAX_LINES_SHOWN, prefix: str = ""
) -> list[str]:
    """Lines that report these problems, each "PLACE: what is wrong; fix".

    If there are more than `one_by_one`, those with the same fix are grouped: the first one, then
    the places of others, without `prefix` and folders. So are three with the same long command."""
    faults: dict[str, list[str]] = {}
    fixes = Counter(_long_fix(problem) for problem in problems)
    for problem in problems:
        if len(problems) > one_by_one:
            same = _fault(problem)
        else:
            fix = _long_fix(problem)
            same = fix if fix and fixes[fix] >= MIN_GROUP else problem
        faults.setdefault(same, []).append(problem)
    lines = []
    for first, *others in [*faults.values()][:MAX_LINES_SHOWN]:
        lines.append(first)
        if others:
            places = [_place(problem, prefix) for problem in others[:MAX_LINES_SHOWN]]
            more = ", ..." if len(others) > MAX_LINES_SHOWN else ""
            lines.append(f"  the same in {len(others):,} more: {', '.join(places)}{more}")
    if len(faults) > MAX_LINES_SHOWN:
        rest = [len(x) for x in faults.values()][MAX_LINES_SHOWN:]
        lines.append(f"... and {sum(rest):,} more, of {len(rest):,} other faults")
    return lines


def _long_fix(problem: str) -> str:
    """The fix, if it is a command that is long to read again and again."""
    fix = problem.partition("; ")[2]
    return fix if len(fix) >= LONG_FIX else ""


def _place(problem: str, prefix: str) -> str:
    return os.path.basename(problem.removeprefix(prefix).partition(": ")[0])


def in_place(path: str | Path, command: str) -> str:
    """The shell's command that changes a file by another one, from standard input to output. The
    file is kept under a name that is not in use; to run it twice does no harm."""
    original = f"{path}.old"
    while os.path.lexists(original):
        original += "+"
    target, original = shlex.quote(str(path)), shlex.quote(original)
    first, *others = command.split(" | ", 1)
    then = " | ".join([f"{first} < {original}", *others])
    return f"cp -n {target} {original} && {then} > {target}"


def _fault(problem: str) -> str:
    """The key by which problems are grouped: the fix, without numbers, quotations and paths."""
    plain = re.sub(r"""(?<![\w\\])(['"]).*?(?<!\\)\1(?!\w)|\S*/\S*|\d+""", "", problem)
    return plain.partition("; ")[2] or plain
