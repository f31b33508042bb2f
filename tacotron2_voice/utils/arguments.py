"""Parsers of programs, and the types of their arguments."""

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
    """Refuses arguments that are no UTF-8, which no list or log could hold. Python keeps the bytes
    of such arguments as lone surrogates."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        args = sys.argv[1:] if args is None else list(args)
        for number, argument in enumerate(args, 1):
            if any("\ud800" <= character <= "\udfff" for character in argument):
                after = f" (after {args[number - 2]})" if number > 1 else ""
                value = ascii(argument[:60]).replace("\\udc", "\\x")
                fix = "write it in UTF-8, which your terminal should send, or rename the file"
                self.error(f"argument {number}{after}: {value} is no UTF-8; {fix}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        names = message.removeprefix("argument ").partition(":")[0].split("/")
        option = next((name for name in names if name.startswith("--")), "")
        if option and message.endswith("expected one argument"):
            message += f"; one that begins with a hyphen is written {option}=-..."
        super().error(message)


def make_parser(description: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser that prints a program's docstring as it stands, with --version. `options` are those
    of argparse."""
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
    """The type of what `convert` makes of a text and `accepts` takes."""

    def check(text: str) -> Value:
        with contextlib.suppress(ValueError):
            if accepts(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: expected {expected}")

    return check


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """The type of a whole number from `least` to `most`."""
    expected = f"a whole number from {least}" + (f" to {most}" if most < math.inf else "")
    return checked(int, expected, lambda value: least <= value <= most)


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(text: str) -> int:
    """The type of a number of threads; more than there are processors would wait for each other,
    and thousands hang."""
    most = processors()
    expected = f"a whole number from 1 to {most}, the processors that this program may use"
    return checked(int, expected, lambda value: 1 <= value <= most)(text)


def list_of(convert: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """The type of a list as in 1,4,16; an empty text is an empty list."""
    return lambda text: [convert(part.strip()) for part in text.split(",")] if text.strip() else []


# A file that can be written, which is checked before minutes of measuring and not after.
output_file = checked(
    Path,
    "a file that can be written, in an existing folder",
    lambda path: (  # not a device, which would be replaced where the user may
        (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)
    ),
)
positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
share = checked(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
at_least_one = whole_number(1)
whole_numbers = list_of(at_least_one)
