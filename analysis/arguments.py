"""The parser, options and types of arguments that several programs share."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from common.errors import MAX_LINES_SHOWN, UserError, about_lines, lines_refused
from common.files import STANDARD_INPUT, STANDARD_INPUTS, numbered_lines, read_stream
from common.version import __version__

if TYPE_CHECKING:  # programs that need no torch start without it
    import torch

    from hparams import HParams
    from synthesis.speaker import Speaker, Utterance

Value = TypeVar("Value")
LARGEST_BOOK = 2**26  # bytes of a file of texts, or what a pipe gives; some hundred books


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
    from synthesis.speaker import PAUSE, RETRIES

    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    text = "text in UTF-8, which your terminal should send; or give it by --text-file"
    source.add_argument("--text", type=in_utf8(text), help="one text")
    file = "one text per line, UTF-8; - for standard input"
    source.add_argument("--text-file", metavar="FILE", help=file)
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


class Text(NamedTuple):
    name: str  # the number of its line, with zeros before it so that the names of a file sort
    text: str
    utterance: "Utterance"


def read_texts(args: argparse.Namespace, hparams: "HParams") -> tuple[list[Text], int]:
    """The texts to speak, and how many lines are skipped, with a warning, because they leave
    nothing to speak. UserError if all do, or with all the lines that have another fault."""
    from corpus.spoken_numbers import sentence_of
    from synthesis.speaker import NothingToSpeak, UnknownSymbols, utterance_of

    if args.text is not None:
        source, lines = "--text", [(1, args.text.replace("\n", " "))]
    else:
        content = read_stream(args.text_file, LARGEST_BOOK)
        source = STANDARD_INPUT if args.text_file in STANDARD_INPUTS else str(args.text_file)
        lines = numbered_lines(source, content=content)
    if not lines:
        raise UserError(f"{source}: no text in it; write one per line")
    texts, silent, problems, unknown = list[Text](), list[str](), list[str](), dict[str, None]()
    digits = max(4, len(str(lines[-1][0])))
    for number, text in lines:
        try:
            text = sentence_of(text, args.numbers) if args.numbers else text.strip()
            utterance = utterance_of(text, hparams, drop_unknown=args.drop_unknown)
            texts.append(Text(f"{number:0{digits}}", text, utterance))
        except UserError as error:
            where = source if args.text is not None else f"{source}:{number}"
            # The words of numbers have letters: "* * *" is no wrong number, it is none.
            nothing = isinstance(error, NothingToSpeak) or not any(map(str.isalnum, text))
            (silent if nothing else problems).append(f"{where}: {error}")
            if isinstance(error, UnknownSymbols):
                unknown |= dict.fromkeys(error.symbols)
    if problems or not texts:
        if len(lines) == 1:
            raise UserError((problems or silent)[0])
        refused = lines_refused(source, problems or silent, len(lines))
        if unknown and len(problems) > MAX_LINES_SHOWN and not args.numbers:
            found = ", ".join(map(repr, [*unknown][:MAX_LINES_SHOWN]))
            refused = UserError(f"{refused}\n  unknown in these lines: {found}")
        raise refused
    if silent:
        skipped = about_lines(source, silent, len(lines), "skipped", one_by_one=3)
        print(f"warning: {skipped}", file=sys.stderr, flush=True)
    return texts, len(silent)


def load_any(path: Path, overrides: str = "") -> "Speaker":
    """What speaks: of a checkpoint, or of a voice's folder or its voice.json."""
    from synthesis.voice import SETTINGS, Voice

    folder = path.parent if path.name == SETTINGS else path
    if (folder / SETTINGS).exists():
        return Voice(folder, overrides)
    from synthesis.speaking import load_speaker  # torch takes seconds, and voices do without

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


def in_utf8(expected: str) -> Callable[[str], str]:
    """The type of a text in UTF-8; Python keeps other bytes of a command as lone surrogates."""
    return checked(lambda text: text.encode().decode(), expected, lambda _: True)


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
