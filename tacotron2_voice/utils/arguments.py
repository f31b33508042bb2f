"""Command line parsers and argument types.

parser = make_parser(__doc__)
parser.add_argument("--clips", type=whole_number(1), default=100)
parser.add_argument("--threads", type=thread_count)
"""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tacotron2_voice.version import __version__

Value = TypeVar("Value")


class Parser(argparse.ArgumentParser):
    """A parser that rejects arguments that are not UTF-8.

    Python keeps the bytes of such arguments as lone surrogates, which no list or log can contain.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        args = sys.argv[1:] if args is None else list(args)
        for number, argument in enumerate(args, 1):
            if any("\ud800" <= character <= "\udfff" for character in argument):
                after = f" (after {args[number - 2]})" if number > 1 else ""
                value = ascii(argument[:60]).replace("\\udc", "\\x")
                self.error(f"argument {number}{after}: {value} (expected UTF-8)")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        names = message.removeprefix("argument ").partition(":")[0].split("/")
        option = next((name for name in names if name.startswith("--")), "")
        if option and message.endswith("expected one argument"):
            message += f"; write a value that begins with a hyphen as {option}=-..."
        super().error(message)


def make_parser(description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser that prints a program's docstring unchanged and has --version.

    Args:
        options: passed to argparse.
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
    """Return an argument type: `convert` the text, and reject values that `accepts` rejects."""

    def check(text: str) -> Value:
        with contextlib.suppress(ValueError):
            if accepts(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text[:60]!r} (expected {expected})")

    return check


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return the argument type of a whole number from `least` to `most`."""
    expected = f"a whole number from {least}" + (f" to {most}" if most < math.inf else "")
    return checked(int, expected, lambda value: least <= value <= most)


def processors() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(text: str) -> int:
    """Convert a number of threads; reject more threads than CPU cores, because they would only
    wait for each other."""
    most = processors()
    expected = f"a whole number from 1 to {most}, the CPU cores of this program"
    return checked(int, expected, lambda value: 1 <= value <= most)(text)


def list_of(convert: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Return the argument type of a list such as 1,4,16; an empty text is an empty list."""
    return lambda text: [convert(part.strip()) for part in text.split(",")] if text.strip() else []


# Whether a file can be written is checked before minutes of work, not after.
output_file = checked(
    Path,
    "a file that can be written, in an existing folder",
    lambda path: (  # not a device: writing would replace it
        (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)
    ),
)
positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
share = checked(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
at_least_one = whole_number(1)
whole_numbers = list_of(at_least_one)
