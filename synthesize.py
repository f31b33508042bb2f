"""Synthesize texts with a checkpoint (from this project or NVIDIA's) or with an exported voice.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel
    python synthesize.py --voice voice --text-file book.txt -o book.wav --time
    python synthesize.py --voice voice --text-file book.txt --stream wav | ffplay -
    python synthesize.py --voice voice --list-speakers
    python synthesize.py --checkpoint runs/mine/best.pt --teacher-forced filelists/mine/train.txt -o forced
    python synthesize.py --voice voice --speaker anna --text "It was a quiet evening."

With -o FOLDER, each text gets a WAV and a plot of the alignment. The file names contain the line
number: out/0012.wav. --save-mel adds the log-mel, float32 [n_mels, frames], for HiFi-GAN and
WaveGlow. -o NAME.wav writes the speech of all texts into one WAV, with pauses between the texts.
You can also use NAME.mp3, NAME.flac or NAME.ogg. --stream writes 16-bit samples to standard output
as soon as they are computed. With `--stream wav`, the output begins with a header that does not
contain the length. With `--stream raw`, the output has no header. Griffin-Lim produces the audio.
Use the option --vocoder to select a different vocoder (docs/guides/deploy.md).

If you stop the command, run it again to continue where it stopped. A text that is longer than the
longest training text is split into chunks, after sentences where possible. An exported voice
(scripts/export_voice.py) needs no PyTorch, only requirements/onnx.txt.
"""

import os

# Make idle threads sleep instead of spin. This variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tacotron2_voice.utils.program import exit_on_interrupt, run_program

if __name__ == "__main__":
    exit_on_interrupt()

from pathlib import Path

from export.loading import load_synthesizer
from tacotron2_voice.command import add_options, speak_texts
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.voice import Voice


def write_forced_mels(checkpoint: Path, filelist: Path, folder: Path) -> None:
    # Import this module here, because synthesis with an exported voice does not need PyTorch.
    from evaluation.teacher_forcing import write_teacher_forced_mels
    from export.checkpoint_synthesizer import load_checkpoint_synthesizer

    synthesizer = load_checkpoint_synthesizer(checkpoint)
    paths = write_teacher_forced_mels(synthesizer, filelist, folder)
    print(f"Wrote {len(paths):,} log-mels to {folder}")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="use this checkpoint or exported voice"
    )
    source.add_argument("--voice", type=Path, metavar="FOLDER", help="use this exported voice")
    texts = add_options(parser)
    texts.add_argument(
        "--teacher-forced",
        type=Path,
        metavar="FILELIST",
        help="write teacher-forced log-mels of the recordings in this filelist to the folder set by "
        "-o, to fine-tune a vocoder",
    )
    args = parser.parse_args(arguments)
    if args.teacher_forced:
        if args.checkpoint is None:
            parser.error("--teacher-forced needs --checkpoint")
        write_forced_mels(args.checkpoint, args.teacher_forced, args.out or Path("out"))
        return
    if args.voice is not None:
        speak_texts(args, args.voice, lambda: Voice(args.voice, args.hparams, args.threads or 1))
    else:
        path = args.checkpoint
        speak_texts(args, path, lambda: load_synthesizer(path, args.hparams, args.threads))


if __name__ == "__main__":
    run_program(main)
