"""The parser, options and types of arguments that several programs share."""

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from version import __version__

if TYPE_CHECKING:  # programs that need no torch start without it
    import torch


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints a program's docstring as it stands, with --version."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """--device, --precision and --json."""
    from training.trainer import PRECISIONS

    add_device_option(parser)
    shown = "tf32: on GPUs only"
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help=shown)
    add_json_option(parser)


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """--device, a torch.device."""
    import torch

    default = "cuda" if torch.cuda.is_available() else "cpu"
    shown = "cpu, cuda or cuda:1; default: the GPU if there is one"
    parser.add_argument("--device", type=available_device, default=default, help=shown)


def add_size_options(parser: argparse.ArgumentParser, frames: int, symbols: int) -> None:
    """--batch-size, --frames and --symbols of one synthetic batch, with these defaults."""
    for name, default in (("batch-size", 16), ("frames", frames), ("symbols", symbols)):
        shown = "default: %(default)s"
        parser.add_argument(f"--{name}", type=at_least_one, default=default, help=shown)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """--json, a file to write or None."""
    shown = "write the results to this file too"
    parser.add_argument("--json", type=output_file, metavar="FILE.json", help=shown)


def output_file(text: str) -> Path:
    """A file that can be written, which is checked before minutes of measuring and not after."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        problem = f"no such folder: {path.parent}; make it first"
    elif path.is_dir():
        problem = "is a folder; name a file in it"
    elif not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        problem = "cannot be written to; choose another place"
    else:
        return path
    raise argparse.ArgumentTypeError(f"{text!r}: {problem}")


def available_device(text: str) -> "torch.device":
    """A torch.device of this machine."""
    import torch

    try:
        found = torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected cpu, cuda or cuda:1") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r}: torch finds no GPU here; use cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise argparse.ArgumentTypeError(f"{text!r}: torch finds GPUs up to cuda:{last} only")
    return found


def whole_number(least: int) -> Callable[[str], int]:
    """The type of a whole number from `least` on."""

    def convert(text: str) -> int:
        if text.isascii() and text.strip().isdecimal() and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least}")

    return convert


at_least_one = whole_number(1)


def whole_numbers(least: int) -> Callable[[str], list[int]]:
    """The type of a list as in 1,4,16; an empty text is an empty list."""
    number = whole_number(least)
    return lambda text: [number(part) for part in text.split(",")] if text.strip() else []


def positive(text: str) -> float:
    """A number above 0."""
    return _number(text, "above 0", lambda value: 0 < value < float("inf"))


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, "from 0 to 1", lambda value: 0 <= value <= 1)


def _number(text: str, expected: str, accepts: Callable[[float], bool]) -> float:
    with contextlib.suppress(ValueError):
        if accepts(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number {expected}")


def positive_list(text: str) -> list[float]:
    """Numbers above 0, as in 16,32."""
    return [positive(part) for part in text.split(",")]


def precision_list(text: str) -> list[str]:
    """Names of precisions, as in bf16,fp32."""
    from training.trainer import PRECISIONS

    names = [name.strip() for name in text.split(",")]
    if set(names) <= set(PRECISIONS) and len(names) == len(set(names)):
        return names
    expected = ", ".join(PRECISIONS)
    raise argparse.ArgumentTypeError(f"{text!r}: expected some of {expected}, each once")
