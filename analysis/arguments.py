"""The parser, options and types of arguments that several programs share."""

import argparse
import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from version import __version__

if TYPE_CHECKING:  # programs that need no torch start without it
    import torch

Value = TypeVar("Value")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints a program's docstring as it stands, with --version."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def measuring_parser(description: str | None, **counts: int) -> argparse.ArgumentParser:
    """With --device, a torch.device; --json, a file to write or None; --hparams; and for each of
    `counts` a whole number from 1, with its default."""
    import torch

    parser = make_parser(description)
    add, default = parser.add_argument, "cuda" if torch.cuda.is_available() else "cpu"
    shown = "cpu, cuda or cuda:1; default: the GPU if there is one"
    add("--device", type=available_device, default=default, help=shown)
    add("--json", type=output_file, metavar="FILE.json", help="write the results to this file too")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    for name, count in counts.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=at_least_one, default=count, help="default: %(default)s")
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


def whole_number(least: int) -> Callable[[str], int]:
    """The type of a whole number from `least` on."""
    return checked(int, f"a whole number from {least}", lambda value: value >= least)


def list_of(convert: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """The type of a list as in 1,4,16; an empty text is an empty list."""
    return lambda text: [convert(part.strip()) for part in text.split(",")] if text.strip() else []


def available_device(text: str) -> "torch.device":
    """A torch.device of this machine."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = ["cpu", "cuda", *gpus] if gpus else ["cpu"]
    return torch.device(checked(str, f"one of {', '.join(devices)}", devices.__contains__)(text))


def precision(text: str) -> str:
    """The name of a precision, as bf16."""
    from training.trainer import PRECISIONS

    return checked(str, f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__)(text)


# A file that can be written, which is checked before minutes of measuring and not after.
output_file = checked(
    Path,
    "a file that can be written, in an existing folder",
    lambda path: not path.is_dir() and os.access(path.absolute().parent, os.W_OK),
)
positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
share = checked(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
at_least_one = whole_number(1)
whole_numbers = list_of(at_least_one)
precision_list = list_of(precision)
