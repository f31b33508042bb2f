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
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.arguments import add_text_options, make_parser, output_file, read_texts
from voice import Voice
from waveform import write_sound

UNKNOWN = 2**32 - 1  # bytes, of a WAV whose end is not known yet


def wav_header(rate: int) -> bytes:
    """Of a mono WAV of 16-bit samples that goes on until it ends."""
    layout = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s4s", b"RIFF", UNKNOWN, b"WAVE", b"fmt ")
        + layout
        + struct.pack("<4sI", b"data", UNKNOWN)
    )


def speak_all(voice: Voice, args: argparse.Namespace) -> Iterator[np.ndarray]:
    """16-bit samples of all texts in pieces, as they are made; warnings on standard error."""
    texts = read_texts(args, voice.hparams)
    for number, (text, sequence) in enumerate(texts, 1):
        for samples in voice.stream(sequence, args.seed, args.max_symbols, args.pause):
            yield np.rint(32767 * samples).astype("<i2")
        for warning in voice.warnings:
            print(f"warning: {text[:60]!r}: {warning}", file=sys.stderr)
        if number < len(texts):
            yield np.zeros(round(args.pause * voice.hparams.sampling_rate), "<i2")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("voice", type=Path, help="a folder that export_voice.py wrote")
    add_text_options(parser)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--out", type=output_file, metavar="FILE.wav")
    target.add_argument("--stream", choices=["wav", "raw"], help="write to standard output")
    parser.add_argument("--threads", type=int, help="of the graphs; default: 2")
    parser.add_argument("--time", action="store_true", help="print how long it took")
    args = parser.parse_args(arguments)
    began = time.perf_counter()
    voice = Voice(args.voice, args.hparams, args.threads, args.vocoder)
    rate, loaded = voice.hparams.sampling_rate, time.perf_counter()
    first, pieces, count = None, [], 0
    for samples in speak_all(voice, args):
        if first is None:
            first = time.perf_counter() - loaded
            if args.stream == "wav":
                sys.stdout.buffer.write(wav_header(rate))
        if args.stream:
            sys.stdout.buffer.write(samples.tobytes())
            sys.stdout.buffer.flush()
        else:
            pieces.append(samples)
        count += len(samples)
    took = time.perf_counter() - loaded
    if args.out:
        write_sound(args.out, np.concatenate(pieces), rate, "WAV", "PCM_16")
    if args.time:
        seconds = count / rate
        print(
            f"loaded in {loaded - began:.2f} s, first sound after {first or took:.2f} s, "
            f"{seconds:.2f} s of sound in {took:.2f} s: real-time factor {took / seconds:.3f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
