"""Speak with a voice, without PyTorch. scripts/export_voice.py makes one of a checkpoint.

    python speak.py voice --text "It was a quiet evening." -o out.wav
    python speak.py voice --text-file book.txt -o book.wav --time
    python speak.py voice --text-file book.txt --stream wav | ffplay -

The lines of a file follow one another, with a pause. While they are spoken, book.part.wav grows; if
that is stopped, the same command goes on behind its last whole line. --stream writes the sound on
standard output as soon as it is there, 16-bit samples: `wav` with a header that leaves the length
open, `raw` without one. It needs requirements/onnx.txt alone (docs/voices.md).
"""

import common.environment

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.arguments import (
    Text,
    add_text_options,
    at_least_one,
    checked,
    in_utf8,
    make_parser,
    output_file,
    read_texts,
    spoken_as,
)
from common.console import progress_bar
from corpus.faults import left_out
from synthesis.spoken import GrowingWav, key_of, settings_key, summary, wav_header
from synthesis.voice import SETTINGS, Voice, load_vocoder


class Stream:
    """Standard output, which takes what a GrowingWav takes."""

    done = 0

    def __init__(self, kind: str, sampling_rate: int):
        if kind == "wav":
            self.write(wav_header(sampling_rate))

    def write(self, samples: bytes) -> None:
        sys.stdout.buffer.write(samples)
        sys.stdout.buffer.flush()

    def end_text(self, warnings: list[str]) -> None:
        self.done += 1

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...


def wav_file(text: str) -> Path:
    """The type of a WAV to write."""
    in_utf8("a name in UTF-8; choose another")(text)
    expected = (
        "a name that ends in .wav; other formats can be made of it: ffmpeg -i out.wav out.mp3"
    )
    checked(Path, expected, lambda path: path.suffix.lower() == ".wav")(text)
    return output_file(text)


def speak_text(voice: Voice, text: Text, args: argparse.Namespace) -> Iterator[bytes]:
    """16-bit samples in pieces, as they are made."""
    for samples in voice.stream(text.utterance, **spoken_as(args)):
        yield np.rint(32767 * samples).astype("<i2").tobytes()


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("voice", type=Path, help="a folder that export_voice.py wrote")
    add_text_options(parser)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--out", type=wav_file, metavar="FILE.wav")
    target.add_argument("--stream", choices=["wav", "raw"], help="write to standard output")
    shown = "of the graphs; default: %(default)s"
    parser.add_argument("--threads", type=at_least_one, default=1, help=shown)
    parser.add_argument("--time", action="store_true", help="print how long it took")
    args = parser.parse_args(arguments)
    began = time.perf_counter()
    voice = Voice(args.voice, args.hparams, args.threads)
    h = voice.hparams
    if args.vocoder:
        voice.vocoder = load_vocoder(args.vocoder, h, args.threads)
    texts, skipped = read_texts(args, h)
    rate, loaded, count, first = h.sampling_rate, time.perf_counter(), 0, 0.0
    voice.shows_progress = not args.stream and len(texts) == 1
    hidden = bool(args.stream) or len(texts) == 1
    settings = settings_key(args, h, [args.voice / SETTINGS, args.vocoder])
    output: Stream | GrowingWav
    if args.stream:
        output = Stream(args.stream, rate)
    else:
        output = GrowingWav(args.out, rate, {x.name: key_of(settings, *x) for x in texts})
    there = output.done
    if there:
        print(f"{there:,} of {len(texts):,} texts were spoken before", flush=True)
    bar = progress_bar("Speaking", len(texts), " texts", initial=there, disable=hidden)
    try:
        with output, bar:
            for text in texts[there:]:
                if output.done:
                    output.write(bytes(2 * round(args.pause * rate)))
                for samples in speak_text(voice, text, args):
                    first = first or time.perf_counter() - loaded
                    output.write(samples)
                    count += len(samples) // 2
                warnings = left_out(text.text, h) + voice.warnings
                where = f"line {int(text.name)}, " if args.text is None else ""
                for note in voice.notes:
                    bar.write(f"{where}{text.text[:60]!r}: {note}", sys.stderr)
                for warning in warnings:
                    bar.write(f"warning: {where}{text.text[:60]!r}: {warning}", sys.stderr)
                output.end_text(warnings)
                bar.update()
    except KeyboardInterrupt:
        if isinstance(output, GrowingWav) and output.done:
            kept = f"{output.done:,} of {len(texts):,} texts are in {output.part}"
            raise KeyboardInterrupt(f"interrupted: {kept}; the same command goes on") from None
        raise
    if isinstance(output, GrowingWav):
        of_texts = f" of {len(texts):,} texts" if len(texts) > 1 else ""
        counts = summary(there, skipped, output.warnings)
        print(f"wrote {args.out}, {output.seconds:.2f} s{of_texts}{counts}")
    if args.time and count:
        seconds, took = count / rate, time.perf_counter() - loaded
        print(
            f"loaded in {loaded - began:.2f} s, first sound after {first:.2f} s, "
            f"{seconds:.2f} s of sound in {took:.2f} s: real-time factor {took / seconds:.3f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
