"""Define the options of programs that synthesize speech, and read the texts."""

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tacotron2_voice.prose import Prose, paragraphs_of
from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.synthesizer import MAX_PAUSE, MAX_RETRIES, MAX_SEED, PAUSE, RETRIES, SPEEDS
from tacotron2_voice.text.spoken_numbers import ENGLISH, sentence_of
from tacotron2_voice.utils.arguments import at_least_one, checked, whole_number
from tacotron2_voice.utils.errors import UserError, about_lines, lines_rejected
from tacotron2_voice.utils.files import (
    STANDARD_INPUT,
    STANDARD_INPUTS,
    decode_utf8,
    numbered_lines,
    read_stream,
)
from tacotron2_voice.utils.program import install_command
from tacotron2_voice.utterance import NothingToSpeak, UnknownSymbols, Utterance, prepare_utterance

MAX_FILE_BYTES = 2**26  # maximum size of a text file or a pipe (about a hundred books)
# Matches a time at the start of a line, such as "00:01 Hello" in a transcript.
_TIME = re.compile(r"\s*[\[(]?(\d{1,2}(?::\d\d){1,2}(?:[.,]\d+)?)[\])]?\s")
# Matches the line of a subtitle (SRT or VTT) that contains its times.
_SUBTITLE_TIMES = re.compile(r"\s*[\d:]+[.,]\d+\s*-->\s*[\d:]+[.,]\d+")
MARKDOWN_SUFFIXES = (".md", ".markdown")


class InputText(NamedTuple):
    # Number of the text's first line, with leading zeros, so that file names are sorted correctly.
    name: str
    text: str
    utterance: Utterance


def add_text_options(parser: argparse.ArgumentParser) -> Any:
    """Add the options that `read_texts` and `speaking_options` use.

    Returns:
        The argument group of the options that select the texts.
    """
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="speak this text")
    source.add_argument(
        "--text-file",
        metavar="FILE",
        help="speak the paragraphs of this UTF-8 text file or Markdown file (-: standard input)",
    )
    source.add_argument(
        "--list-speakers",
        action="store_true",
        help="print the speakers of the model, with the minutes of their training speech",
    )
    add("--lines", action="store_true", help="speak each line of --text-file as a separate text")
    add("--speaker", metavar="NAME", help="use this speaker, if the model has several speakers")
    seed = checked(int, "an integer from 0 to 2**64 - 1", lambda value: 0 <= value <= MAX_SEED)
    add("--seed", type=seed, default=0, help="seed of the prenet dropout (default: %(default)s)")
    add(
        "--max-symbols",
        type=at_least_one,
        metavar="N",
        help="split texts with more than N symbols into chunks (default: length of the longest "
        "training text)",
    )
    seconds = checked(
        float, f"seconds from 0 to {MAX_PAUSE:g}", lambda value: 0 <= value <= MAX_PAUSE
    )
    add(
        "--pause",
        type=seconds,
        default=PAUSE,
        metavar="SECONDS",
        help="pause between chunks, in seconds; pauses between paragraphs are 2.5 times as long, and "
        "pauses after clauses are shorter; inside a chunk, the model determines the pauses "
        "(default: %(default)s)",
    )
    add(
        "--retries",
        type=whole_number(0, MAX_RETRIES),
        default=RETRIES,
        metavar="N",
        help="maximum number of retries for a failed chunk (default: %(default)s)",
    )
    slowest, fastest = SPEEDS
    speed = checked(
        float,
        f"a number from {slowest} to {fastest}",
        lambda value: slowest <= value <= fastest,
    )
    add(
        "--speed",
        type=speed,
        default=1.0,
        metavar="FACTOR",
        help="change the speaking rate by this factor, from 0.7 to 1.5 (default: %(default)s)",
    )
    add(
        "--lexicon",
        type=Path,
        metavar="FILE",
        help="read pronunciations from this file: one word and its respelling per line",
    )
    add(
        "--drop-unknown",
        action="store_true",
        help="drop symbols that are not in the model's symbol table; models with the English "
        "symbols always drop these symbols",
    )
    add_model_options(parser)
    return source


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `speak` and `serve` share: --numbers, --vocoder and --hparams."""
    add = parser.add_argument
    add(
        "--numbers",
        nargs="?",
        const=ENGLISH,
        metavar="LANGUAGE",
        help="accept only numbers, because the demo model speaks only numbers; LANGUAGE is the "
        f"language of the number words (default: {ENGLISH})",
    )
    add(
        "--vocoder",
        type=Path,
        metavar="FILE",
        help="use this ONNX vocoder instead of Griffin-Lim (docs/guides/deploy.md)",
    )
    add("--hparams", default="", help="change settings, such as gate_threshold=0.4")


def speaking_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options from `add_text_options` that `Synthesizer.stream` accepts."""
    names = ("seed", "max_symbols", "pause", "retries", "speed", "speaker")
    return {name: getattr(args, name) for name in names}


def read_texts(args: argparse.Namespace, settings: VoiceSettings) -> tuple[list[InputText], int]:
    """Return the texts to speak, and the number of skipped lines.

    Lines without words are skipped with a warning.

    Raises:
        UserError: if a line with words is invalid, or if no line can be spoken. The error message
            lists the invalid lines.
    """
    source, lines = _read_lines(args)
    texts: list[InputText] = []
    silent: list[str] = []  # messages about lines without words
    problems: list[str] = []
    digits = max(4, len(str(lines[-1][0])))
    for number, line in lines:
        place = source if args.text is not None else f"{source}:{number}"
        # Skip lines that contain neither letters nor digits, such as "* * *".
        if not any(character.isalnum() for character in line):
            silent.append(f"{place}: {NothingToSpeak(line)}")
            continue
        try:
            text = sentence_of(line, args.numbers) if args.numbers else line.strip()
            utterance = prepare_utterance(text, settings, drop_unknown=args.drop_unknown)
            texts.append(InputText(f"{number:0{digits}}", text, utterance))
        except NothingToSpeak as error:
            silent.append(f"{place}: {error}")
        except UnknownSymbols as error:
            problems.append(f"{place}: {error}; add --drop-unknown to leave it out")
        except UserError as error:
            problems.append(f"{place}: {error}")
    rejected = problems or ([] if texts else silent)
    if rejected:
        if len(lines) == 1:
            raise UserError(rejected[0])
        raise lines_rejected(source, rejected, len(lines))
    if silent:
        skipped = about_lines(source, silent, len(lines), "skipped", one_by_one=3)
        print(f"warning: {skipped}", file=sys.stderr, flush=True)
    return texts, len(silent)


def _read_lines(args: argparse.Namespace) -> tuple[str, list[tuple[int, str]]]:
    """Return the name of the source (for messages), and the numbered lines or paragraphs of the
    source."""
    if args.text is not None:
        if _is_file(args.text):
            question = f"did you mean --text-file {shlex.quote(args.text)}?"
            print(
                f"note: --text {args.text!r}: a file has this name; {question}",
                file=sys.stderr,
                flush=True,
            )
        return "--text", [(1, args.text.replace("\n", " "))]
    content = read_stream(args.text_file, MAX_FILE_BYTES)
    is_standard_input = args.text_file in STANDARD_INPUTS
    source = STANDARD_INPUT if is_standard_input else str(args.text_file)
    lines = numbered_lines(source, content=content)
    _check_is_not_subtitles(source, lines)
    times = [_TIME.match(line) for _, line in lines]
    if len(times) > 1 and times[0] and all(times):
        text = f"{len(times):,} lines begin with a time, such as {times[0][1]!r}, which is spoken"
        print(f"note: {source}: {text}", file=sys.stderr, flush=True)
    if not reads_lines(args):
        prose = _read_prose(source, decode_utf8(source, content))
        notes = prose.notes
        are_sentences = all(line.endswith((".", "!", "?")) for _, line in lines)
        if len(prose.paragraphs) == 1 < len(lines) and are_sentences:
            notes.append(
                f"{source}: {len(lines):,} lines are read as one text; add --lines to read each "
                "line as a separate text"
            )
        for note in notes:
            print(f"note: {note}", file=sys.stderr, flush=True)
        lines = prose.paragraphs
    if not lines:
        expected = "one text per line" if reads_lines(args) else "paragraphs"
        raise UserError(f"{source}: contains no text (expected {expected})")
    return source, lines


def _check_is_not_subtitles(source: str, lines: list[tuple[int, str]]) -> None:
    """Raise UserError if a line contains the times of a subtitle, which would be read aloud."""
    for number, line in lines:
        if _SUBTITLE_TIMES.match(line):
            raise UserError(
                f"{source}:{number}: {line.strip()[:60]!r}: the times of a subtitle (expected only the "
                "words to speak)"
            )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # the text is too long for a path, or contains a null character
        return False


def reads_lines(args: argparse.Namespace) -> bool:
    """Return whether each line of the text file is a separate text (--lines or --numbers)."""
    return args.lines or bool(args.numbers)


def _read_prose(source: str, text: str) -> Prose:
    if not source.lower().endswith(MARKDOWN_SUFFIXES):
        return paragraphs_of(source, text)
    try:
        from tacotron2_voice.markdown import read_markdown
    except ModuleNotFoundError as error:
        problem = f"{error.name} is not installed, but Markdown files need it"
        command = install_command("markdown")
        raise UserError(f"{source}: {problem}. Run {command}.") from None
    return read_markdown(source, text)
