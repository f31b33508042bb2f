"""The texts that a program is to speak, and the options of how they are spoken."""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hparams import HParams
from tacotron2_voice.synthesizer import PAUSE, RETRIES
from tacotron2_voice.text.spoken_numbers import ENGLISH, sentence_of
from tacotron2_voice.utils.arguments import at_least_one, checked, whole_number
from tacotron2_voice.utils.errors import MAX_LINES_SHOWN, UserError, about_lines, lines_refused
from tacotron2_voice.utils.files import STANDARD_INPUT, STANDARD_INPUTS, numbered_lines, read_stream
from tacotron2_voice.utterance import NothingToSpeak, UnknownSymbols, Utterance, utterance_of

MAX_FILE_BYTES = 2**26  # of a file of texts, or what a pipe gives; some hundred books


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """What is spoken, and how: for `read_texts` and `speaking_options`."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="one text")
    file_help = "one text per line, UTF-8; - for standard input"
    source.add_argument("--text-file", metavar="FILE", help=file_help)
    list_help = "print whom the model knows, and the minutes of speech that it learnt from"
    source.add_argument("--list-speakers", action="store_true", help=list_help)
    speaker_help = "who speaks, where the model has several speakers; see --list-speakers"
    add("--speaker", metavar="NAME", help=speaker_help)
    seed = checked(int, "a whole number from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
    add("--seed", type=seed, default=0, help="of the prenet's dropout")
    limit_help = "split longer texts into parts; default: the longest training text"
    add("--max-symbols", type=at_least_one, metavar="N", help=limit_help)
    seconds = checked(float, "seconds from 0 to 60", lambda value: 0 <= value <= 60)
    pause_help = f"seconds after a sentence, {PAUSE} by default; less after a clause, none inside"
    add("--pause", type=seconds, default=PAUSE, metavar="SECONDS", help=pause_help)
    retries_help = "times that a part is spoken again if it went wrong (%(default)s)"
    retries = whole_number(0, 100)
    add("--retries", type=retries, default=RETRIES, metavar="N", help=retries_help)
    speed = checked(float, "a number from 0.7 to 1.5", lambda value: 0.7 <= value <= 1.5)
    speed_help = "times as fast, 0.7 to 1.5 (%(default)s)"
    add("--speed", type=speed, default=1.0, metavar="FACTOR", help=speed_help)
    unknown_help = "leave out symbols that the voice does not know"
    add("--drop-unknown", action="store_true", help=unknown_help)
    numbers_help = f"accept numbers only, in this language ({ENGLISH}), for the demo's model"
    add("--numbers", nargs="?", const=ENGLISH, metavar="LANGUAGE", help=numbers_help)
    vocoder_help = "in place of Griffin-Lim; docs/voices.md"
    add("--vocoder", type=Path, metavar="FILE", help=vocoder_help)
    add("--hparams", default="", help="for example gate_threshold=0.4")


def speaking_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_text_options` that `Synthesizer.mels` takes."""
    names = ("seed", "max_symbols", "pause", "retries", "speed", "speaker")
    return {name: getattr(args, name) for name in names}


class Text(NamedTuple):
    name: str  # the number of its line, with zeros before it so that the names of a file sort
    text: str
    utterance: Utterance


def read_texts(args: argparse.Namespace, hparams: HParams) -> tuple[list[Text], int]:
    """The texts to speak, and how many lines are skipped, with a warning, because they leave
    nothing to speak. UserError if all do, or with all the lines that have another fault."""
    source, lines = _read_lines(args)
    texts, silent, problems, unknown = list[Text](), list[str](), list[str](), dict[str, None]()
    digits = max(4, len(str(lines[-1][0])))
    for number, line in lines:
        try:
            text = sentence_of(line, args.numbers) if args.numbers else line.strip()
            utterance = utterance_of(text, hparams, drop_unknown=args.drop_unknown)
            texts.append(Text(f"{number:0{digits}}", text, utterance))
        except UserError as error:
            where = source if args.text is not None else f"{source}:{number}"
            # The words of numbers have letters: "* * *" is no wrong number, it is none.
            nothing = isinstance(error, NothingToSpeak) or not any(map(str.isalnum, line))
            (silent if nothing else problems).append(f"{where}: {error}")
            if isinstance(error, UnknownSymbols):
                unknown |= dict.fromkeys(error.symbols)
    if problems or not texts:
        if len(lines) == 1:
            raise UserError((problems or silent)[0])
        refused = lines_refused(source, problems or silent, len(lines))
        if unknown and len(problems) > MAX_LINES_SHOWN and not args.numbers:
            names = ", ".join(map(repr, [*unknown][:MAX_LINES_SHOWN]))
            refused = UserError(f"{refused}\n  unknown in these lines: {names}")
        raise refused
    if silent:
        skipped = about_lines(source, silent, len(lines), "skipped", one_by_one=3)
        print(f"warning: {skipped}", file=sys.stderr, flush=True)
    return texts, len(silent)


def _read_lines(args: argparse.Namespace) -> tuple[str, list[tuple[int, str]]]:
    """What messages call the source of the texts, and its lines with their numbers."""
    if args.text is not None:
        source, lines = "--text", [(1, args.text.replace("\n", " "))]
    else:
        content = read_stream(args.text_file, MAX_FILE_BYTES)
        source = STANDARD_INPUT if args.text_file in STANDARD_INPUTS else str(args.text_file)
        lines = numbered_lines(source, content=content)
    if not lines:
        raise UserError(f"{source}: no text in it; write one per line")
    return source, lines
