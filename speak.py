"""Speak with a voice, without PyTorch. scripts/export_voice.py makes one of a checkpoint.

    python speak.py voice --text "It was a quiet evening." -o out.wav
    python speak.py voice --text-file texts.txt -o out.wav --time
    python speak.py voice --text-file texts.txt --stream wav | ffplay -

--stream writes the sound on standard output as soon as it is there, 16-bit samples: `wav` with a
header that leaves the length open, `raw` without one. The lines of a file follow one another, with
a pause. It needs requirements-onnx.txt alone (docs/voices.md).
"""

import environment

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.arguments import (
    add_text_options,
    at_least_one,
    make_parser,
    output_file,
    read_texts,
    spoken_as,
)
from corpus.faults import left_out
from files import write_bytes
from voice import Voice, load_vocoder
from waveform import encode

OPEN_END = b"\xff" * 4  # the length of a WAV that goes on until it ends


def speak_all(
    voice: Voice, texts: list[tuple[str, list[int]]], args: argparse.Namespace
) -> Iterator[np.ndarray]:
    """16-bit samples of all texts in pieces, as they are made; warnings on standard error."""
    h = voice.hparams
    for number, (text, sequence) in enumerate(texts, 1):
        for samples in voice.stream(sequence, **spoken_as(args)):
            yield np.rint(32767 * samples).astype("<i2")
        for warning in left_out(text, h) + voice.warnings:
            print(f"warning: {text[:60]!r}: {warning}", file=sys.stderr)
        if number < len(texts):
            yield np.zeros(round(args.pause * h.sampling_rate), "<i2")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("voice", type=Path, help="a folder that export_voice.py wrote")
    add_text_options(parser)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--out", type=output_file, metavar="FILE.wav")
    target.add_argument("--stream", choices=["wav", "raw"], help="write to standard output")
    shown = "of the graphs; default: %(default)s"
    parser.add_argument("--threads", type=at_least_one, default=1, help=shown)
    parser.add_argument("--time", action="store_true", help="print how long it took")
    args = parser.parse_args(arguments)
    began = time.perf_counter()
    voice = Voice(args.voice, args.hparams, args.threads)
    voice.shows_progress = args.stream is None
    if args.vocoder:
        voice.vocoder = load_vocoder(args.vocoder, voice.hparams, args.threads)
    texts = read_texts(args, voice.hparams)
    rate, loaded = voice.hparams.sampling_rate, time.perf_counter()
    first, pieces, count = 0.0, [], 0
    for samples in speak_all(voice, texts, args):
        if not count:
            first = time.perf_counter() - loaded
        if args.stream:
            if args.stream == "wav" and not count:
                header = bytes(encode(samples[:0], rate))
                sys.stdout.buffer.write(header[:4] + OPEN_END + header[8:-4] + OPEN_END)
            sys.stdout.buffer.write(samples.tobytes())
            sys.stdout.buffer.flush()
        else:
            pieces.append(samples)
        count += len(samples)
    seconds, took = count / rate, time.perf_counter() - loaded
    if args.out:
        write_bytes(args.out, encode(np.concatenate(pieces), rate))
        print(f"wrote {args.out}, {seconds:.2f} s")
    if args.time:
        print(
            f"loaded in {loaded - began:.2f} s, first sound after {first:.2f} s, "
            f"{seconds:.2f} s of sound in {took:.2f} s: real-time factor {took / seconds:.3f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
