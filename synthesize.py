"""Speak texts with a trained checkpoint, this recipe's or NVIDIA's, or with an exported voice.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel
    python synthesize.py --voice voice --text-file book.txt -o book.wav --time
    python synthesize.py --voice voice --text-file book.txt --stream wav | ffplay -
    python synthesize.py --voice voice --list-speakers
    python synthesize.py --voice voice --speaker anna --text "It was a quiet evening."

-o FOLDER gets a wav by Griffin-Lim (or --vocoder, docs/voices.md) and a picture of the alignment
for each text, named by its line: out/0012.wav; with --save-mel the log-mel too, float32 [n_mels,
frames] as HiFi-GAN and WaveGlow read it. -o NAME.wav gets all texts, with a pause between two.
--stream writes the sound on standard output as soon as it is there, 16-bit samples: `wav` with a
header that leaves the length open, `raw` without one.

The same command resumes where it was stopped: what is there already, of the same text with the same
settings, is not made again. A text longer than the longest training text is split into parts, which
end after sentences where possible, and joined with pauses; --max-symbols sets another limit. A
voice (scripts/export_voice.py) is spoken without PyTorch, and needs requirements/onnx.txt alone.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded: see train.py


from pathlib import Path

from tacotron2_voice.command import add_options, speak_texts
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="a checkpoint, or the folder of a voice")
    source.add_argument(
        "--voice", type=Path, dest="checkpoint", metavar="FOLDER", help="an exported voice"
    )
    add_options(parser)
    args = parser.parse_args(arguments)
    speak_texts(args.checkpoint, args)


if __name__ == "__main__":
    run_program(main)
