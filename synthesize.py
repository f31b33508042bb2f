"""Synthesize speech with a trained checkpoint, this recipe's or NVIDIA's.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel

Writes a wav by Griffin-Lim (or --vocoder, docs/voices.md) and a picture of the alignment for each
text; with --save-mel the log-mel too, float32 [n_mels, frames] as HiFi-GAN and WaveGlow read it. A
text longer than the longest training text is split into parts, which end after sentences where
possible, and joined with
pauses. --max-symbols sets another limit; NVIDIA's checkpoints need it, as they have none.
"""

import environment

import textwrap
from pathlib import Path

from analysis.arguments import add_text_options, make_parser, read_texts, spoken_as
from corpus.faults import left_out
from files import refuse_no_folder
from printing import print_without_failing
from speaking import load_speaker, load_vocoder


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()  # `| head` must not keep files from being written
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    add_text_options(parser)
    parser.add_argument("-o", "--output_directory", type=Path, default=Path("out"))
    parser.add_argument("--save-mel", action="store_true", help="write the log-mel as .npy too")
    args = parser.parse_args(arguments)
    refuse_no_folder(args.output_directory, "-o")
    speaker = load_speaker(args.checkpoint, args.hparams)
    texts = read_texts(args, speaker.hparams)
    if args.vocoder:
        speaker.vocoder = load_vocoder(args.vocoder, speaker.hparams)
    args.output_directory.mkdir(parents=True, exist_ok=True)
    for number, (text, sequence) in enumerate(texts, 1):
        speech = speaker.speak_text(sequence, **spoken_as(args))
        base = args.output_directory / f"{number:04d}"
        seconds = speaker.write_speech(base, speech, save_mel=args.save_mel)
        shown = textwrap.shorten(text, 60, placeholder="...")
        print(f"{base.name}.wav  {seconds:5.2f} s  {shown}", flush=True)
        for note in speech.notes:
            print(f"  {note}", flush=True)
        for warning in left_out(text, speaker.hparams) + speech.warnings:
            print(f"  warning: {warning}", flush=True)
    print(f"wrote the files of {len(texts)} texts to {args.output_directory}")


if __name__ == "__main__":
    main()
