"""Synthesize speech with a trained checkpoint, this recipe's or NVIDIA's.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel

Writes a wav by Griffin-Lim and a picture of the alignment for each text; with --save-mel the
log-mel too, float32 [n_mels, frames] as HiFi-GAN and WaveGlow read it. A text longer than the
longest training text is split into parts, which end after sentences where possible, and joined with
pauses. --max-symbols sets another limit; NVIDIA's checkpoints need it, as they have none.
"""

import environment

import argparse
import textwrap
from pathlib import Path

from analysis.arguments import at_least_one, checked, make_parser
from corpus.spoken_numbers import sentence_of
from data_utils import lines_refused
from errors import UserError
from files import numbered_lines, refuse_no_folder
from hparams import HParams
from printing import print_without_failing
from reading import PAUSE, sequence_to_speak
from speaking import load_speaker, speak_text, write_speech


def read_texts(args: argparse.Namespace, hparams: HParams) -> list[tuple[str, list[int]]]:
    """(text, symbols) of each text; UserError lists those that leave nothing to speak."""
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
            text = sentence_of(text) if args.numbers else text.strip()
            texts.append((text, sequence_to_speak(text, hparams)))
        except UserError as error:
            problems.append(f"{where}: {error}")
    if problems:
        one = len(problems) == 1
        raise UserError(problems[0]) if one else lines_refused(args.text_file, problems, len(lines))
    return texts


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="one text")
    source.add_argument("--text-file", type=Path, help="one text per line, UTF-8")
    parser.add_argument("-o", "--output_directory", type=Path, default=Path("out"))
    seed = checked(int, "a whole number from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
    parser.add_argument("--seed", type=seed, default=0, help="of the prenet's dropout")
    limit = "split longer texts into parts; default: the longest training text"
    parser.add_argument("--max-symbols", type=at_least_one, metavar="N", help=limit)
    pause = f"seconds after a sentence, {PAUSE} by default; less after a clause, none inside"
    parser.add_argument("--pause", type=float, default=PAUSE, metavar="SECONDS", help=pause)
    parser.add_argument("--save-mel", action="store_true", help="write the log-mel as .npy too")
    numbers = "accept numbers only, for the demo's model"
    parser.add_argument("--numbers", action="store_true", help=numbers)
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=2000")
    args = parser.parse_args(arguments)
    if not 0 <= args.pause <= 60:  # nan too
        parser.error(f"--pause {args.pause:g}: expected seconds from 0 to 60")
    return args


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()  # `| head` must not keep files from being written
    args = parse_arguments(arguments)
    refuse_no_folder(args.output_directory, "-o")
    speaker = load_speaker(args.checkpoint, args.hparams)
    texts = read_texts(args, speaker.hparams)
    args.output_directory.mkdir(parents=True, exist_ok=True)
    for number, (text, sequence) in enumerate(texts, 1):
        speech = speak_text(speaker, sequence, args.seed, args.max_symbols, args.pause)
        base = args.output_directory / f"{number:04d}"
        seconds = write_speech(base, speech, speaker.hparams, save_mel=args.save_mel)
        shown = textwrap.shorten(text, 60, placeholder="...")
        print(f"{base.name}.wav  {seconds:5.2f} s  {shown}", flush=True)
        if speech.parts:
            print(f"  {speech.parts}", flush=True)
        for warning in speech.warnings:
            print(f"  warning: {warning}", flush=True)
    print(f"wrote the files of {len(texts)} texts to {args.output_directory}")


if __name__ == "__main__":
    main()
