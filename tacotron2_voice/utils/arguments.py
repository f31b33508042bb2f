"""Make command-line parsers and argument types.

parser = make_parser(__doc__)
parser.add_argument("--clips", type=whole_number(1), default=100)
parser.add_argument("--threads", type=thread_count)
"""

import argparse
import contextlib
import difflib
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tacotron2_voice.version import __version__

Value = TypeVar("Value")


class Parser(argparse.ArgumentParser):
    """A parser whose error messages are short and suggest similar options and commands."""

    given: Sequence[str] = ()  # the command-line arguments

    def parse_known_args(self, args=None, namespace=None):
        self.given = sys.argv[1:] if args is None else list(args)
        namespace, rest = super().parse_known_args(args, namespace)
        # Report unrecognized arguments in the parser of the command, because only this parser knows
        # the options that the error message may suggest.
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        suggestion = "" if self._subparsers else self._suggestion()
        fix = f"Run {self.prog} --help to list the options."
        self.exit(2, f"{self.prog}: error: {message}{suggestion}\n{fix}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            names = map(str, action.choices or ())
            error.message += did_you_mean([str(value)], names)
            raise

    def _suggestion(self) -> str:
        """Return a suggestion for unknown options in the arguments, or "" if no known option is
        similar."""
        known = self._option_string_actions
        names = [argument.partition("=")[0] for argument in self.given]
        unknown = []
        for name in names:
            # An abbreviation of an option is valid, so no suggestion is needed.
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                unknown.append(name)
        return did_you_mean(unknown, known)


def did_you_mean(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return a suggestion, "; did you mean ...?", with the known names that are similar to the
    unknown names. If no known name is similar, return ""."""
    options = [*known]
    similar = [match for name in unknown for match in difflib.get_close_matches(name, options, n=1)]
    return f"; did you mean {' '.join(similar)}?" if similar else ""


def make_parser(description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser that has a --version option and prints the description unchanged.

    The parser's error messages suggest similar options and commands.
    """
    parser = Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def checked(
    convert: Callable[[str], Value], expected: str, accepts: Callable[[Any], bool]
) -> Callable[[str], Value]:
    """Return an argument type that converts a string with `convert`, and rejects values for which
    `accepts` returns False."""

    def check(text: str) -> Value:
        with contextlib.suppress(ValueError):
            if accepts(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text[:60]!r} (expected {expected})")

    return check


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return an argument type for whole numbers from `least` to `most`."""
    expected = f"a whole number from {least}" + (f" to {most}" if most < math.inf else "")
    return checked(int, expected, lambda value: least <= value <= most)


def processors() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(text: str) -> int:
    """Convert a command-line argument to a number of threads. More threads than CPU cores are
    rejected, because they would only compete for the same cores.
    """
    most = processors()
    expected = f"a whole number from 1 to {most}, the number of CPU cores that this program may use"
    return checked(int, expected, lambda value: 1 <= value <= most)(text)


def list_of(convert: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Return an argument type for lists such as 1,4,16. An empty string becomes an empty list."""
    return lambda text: [convert(part.strip()) for part in text.split(",") if text.strip()]


# Argument type for output files. A file that cannot be written is reported before the program
# starts its work, which may take minutes.
output_file = checked(
    Path,
    "a file that can be written, in an existing folder",
    # Reject device files such as /dev/null, because an atomic write would replace the device file.
    lambda path: (
        (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)
    ),
)
positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
share = checked(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
at_least_one = whole_number(1)
whole_numbers = list_of(at_least_one)
