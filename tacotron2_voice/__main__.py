"""Speak texts with an exported voice, without PyTorch.

tacotron2-voice speak voices/english --speaker linda --text "It was a quiet evening." -o out.wav
tacotron2-voice speak voices/english --speaker linda --text-file book.txt -o book.wav --time
tacotron2-voice speak voices/english --speaker linda --text-file book.txt --stream wav | ffplay -
tacotron2-voice speak voices/english --list-speakers

`python -m tacotron2_voice` runs the same program.
"""

from pathlib import Path

from tacotron2_voice.command import add_options, speak_texts
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.voice import Voice

SPEAK = """Speak texts with an exported voice.

-o NAME.wav writes the texts one after another, with pauses. Until the last text is complete, the
file is called NAME.part.wav. If you stop the command, the same command continues after the last
complete line. -o FOLDER writes a WAV
and a plot of the alignment for each text, and needs matplotlib. --stream writes 16-bit samples to
standard output as soon as they are computed: `wav` with a header of unknown length, `raw` without a
header.
"""


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, prog="tacotron2-voice")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    speak = commands.add_parser(
        "speak",
        help="speak texts",
        description=SPEAK,
        formatter_class=parser.formatter_class,
    )
    speak.add_argument("voice", type=Path, help="folder of an exported voice")
    add_options(speak)
    args = parser.parse_args(arguments)
    speak_texts(args, args.voice, lambda: Voice(args.voice, args.hparams, args.threads or 1))


def run() -> None:
    """Run the console command `tacotron2-voice`."""
    run_program(main)


if __name__ == "__main__":
    run()
