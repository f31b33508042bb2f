"""The parser, options and types of arguments that several programs share."""

import argparse
import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from errors import UserError, lines_refused
from files import numbered_lines
from version import __version__

if TYPE_CHECKING:  # programs that need no torch start without it
    import torch

    from hparams import HParams
    from speech import Speaker

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


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """What is spoken, and how: for `read_texts`, and for what speaks."""
    from corpus.spoken_numbers import ENGLISH
    from speech import PAUSE, RETRIES

    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="one text")
    source.add_argument("--text-file", type=Path, help="one text per line, UTF-8")
    seed = checked(int, "a whole number from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
    add("--seed", type=seed, default=0, help="of the prenet's dropout")
    limit = "split longer texts into parts; default: the longest training text"
    add("--max-symbols", type=at_least_one, metavar="N", help=limit)
    seconds = checked(float, "seconds from 0 to 60", lambda value: 0 <= value <= 60)
    pause = f"seconds after a sentence, {PAUSE} by default; less after a clause, none inside"
    add("--pause", type=seconds, default=PAUSE, metavar="SECONDS", help=pause)
    again = "times that a part is spoken again if it went wrong (%(default)s)"
    add("--retries", type=whole_number(0, 100), default=RETRIES, metavar="N", help=again)
    pace = checked(float, "a number from 0.7 to 1.5", lambda value: 0.7 <= value <= 1.5)
    shown = "times as fast, 0.7 to 1.5 (%(default)s)"
    add("--speed", type=pace, default=1.0, metavar="FACTOR", help=shown)
    unknown = "leave out symbols that the voice does not know"
    add("--drop-unknown", action="store_true", help=unknown)
    numbers = f"accept numbers only, in this language ({ENGLISH}), for the demo's model"
    add("--numbers", nargs="?", const=ENGLISH, metavar="LANGUAGE", help=numbers)
    add("--vocoder", type=Path, metavar="FILE", help="in place of Griffin-Lim; docs/voices.md")
    add("--hparams", default="", help="for example gate_threshold=0.4")


def spoken_as(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_text_options` that decide how a text is spoken, for `Speaker.mels`."""
    names = ("seed", "max_symbols", "pause", "retries", "speed")
    return {name: getattr(args, name) for name in names}


def read_texts(args: argparse.Namespace, hparams: "HParams") -> list[tuple[str, list[int]]]:
    """(text, symbols) of each text; UserError lists those that leave nothing to speak."""
    from corpus.spoken_numbers import sentence_of
    from speech import sequence_to_speak

    if args.text is not None:
        lines = [("--text", args.text.replace("\n", " "))]
    else:
        numbered = numbered_lines(args.text_file, "no such file; check its path")
        lines = [(f"{args.text_file}:{number}", line) for number, line in numbered]
    if not lines:
        raise UserError(f"{args.text_file}: no text in it; write one per line")
    texts, problems = [], []
    for where, text in lines:
        try:
            text = sentence_of(text, args.numbers) if args.numbers else text.strip()
            sequence = sequence_to_speak(text, hparams, drop_unknown=args.drop_unknown)
            texts.append((text, sequence))
        except UserError as error:
            problems.append(f"{where}: {error}")
    if problems:
        one = len(problems) == 1
        raise UserError(problems[0]) if one else lines_refused(args.text_file, problems, len(lines))
    return texts


def load_any(path: Path, overrides: str = "") -> "Speaker":
    """What speaks: of a checkpoint, or of a voice's folder or its voice.json."""
    from voice import SETTINGS, Voice

    folder = path.parent if path.name == SETTINGS else path
    if (folder / SETTINGS).exists():
        return Voice(folder, overrides)
    from speaking import load_speaker  # torch takes seconds, and voices do without

    return load_speaker(path, overrides)


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
    lambda path: (  # not a device, which would be replaced where the user may
        (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)
    ),
)
positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
share = checked(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
at_least_one = whole_number(1)
whole_numbers = list_of(at_least_one)
precision_list = list_of(precision)
