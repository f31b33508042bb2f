"""Speak texts with an exported voice, without PyTorch.

    python -m synthesis voice --text "It was a quiet evening." -o out.wav
    python -m synthesis voice --text-file book.txt -o book.wav --time
    python -m synthesis voice --text-file book.txt --stream wav | ffplay -
    python -m synthesis voice --speaker anna --text "It was a quiet evening." -o out.wav

The lines of a file follow one another, with a pause. While they are spoken, book.part.wav grows; if
that is stopped, the same command resumes behind its last whole line. --stream writes the sound on
standard output as soon as it is there, 16-bit samples: `wav` with a header that leaves the length
open, `raw` without one. -o FOLDER gets a wav and a picture for each text, and needs matplotlib.
"""

from pathlib import Path

from tacotron2_voice.command import add_options, speak_texts
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, prog="python -m synthesis")
    parser.add_argument("voice", type=Path, help="a folder that scripts/export_voice.py wrote")
    add_options(parser)
    args = parser.parse_args(arguments)
    speak_texts(args.voice, args)


if __name__ == "__main__":
    run_program(main)
