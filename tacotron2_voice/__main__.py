"""Synthesize speech with an exported voice, or serve voices, without PyTorch.

tacotron2-voice speak voices/english --speaker linda --text "It was a quiet evening." -o out.wav
tacotron2-voice speak voices/english --speaker linda --text-file book.txt -o book.wav --time
tacotron2-voice speak voices/english --speaker linda --text-file book.txt --stream wav | ffplay -
tacotron2-voice speak voices/english --list-speakers
tacotron2-voice serve voices/english --speaker linda

`python -m tacotron2_voice` runs the same program.
"""

import argparse
from pathlib import Path

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.program import install_command, run_program

SPEAK = """Synthesize speech with an exported voice.

-o NAME.wav writes all texts to one file, separated by pauses. NAME.mp3, NAME.flac and NAME.ogg work
too. Until the last text is complete, the file is called NAME.part.wav. If you stop the program, run
the same command again to continue after the last complete text. -o FOLDER writes a WAV and a plot
of the alignment for each text. Plots need matplotlib; without it, only the WAV files are written.
--stream writes 16-bit samples to standard output as soon as they are computed: `wav` starts with a
header that contains no length, `raw` has no header.
"""

SERVE = """Serve voices over HTTP until Ctrl-C, with OpenAI's API for speech and a web demo.

The first voice is the default voice. --wyoming also serves the protocol of Home Assistant. The
server listens only on this machine. To reach the server from other machines, add --host and
--api-key, and list the names that clients use for this machine:
--host 0.0.0.0 --allow-host studio.lan 192.168.1.5
"""


def main(arguments: list[str] | None = None) -> None:
    # Imported here, so that `run_program` also handles Ctrl-C during these slow imports.
    from tacotron2_voice.command import add_options, speak_texts
    from tacotron2_voice.server.options import add_serve_options
    from tacotron2_voice.utils.arguments import make_parser
    from tacotron2_voice.voice import Voice

    parser = make_parser(__doc__, prog="tacotron2-voice")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    speak = commands.add_parser(
        "speak",
        help="synthesize speech",
        description=SPEAK,
        formatter_class=parser.formatter_class,
    )
    speak.add_argument("voice", type=Path, help="use the exported voice in this folder")
    add_options(speak)
    serve = commands.add_parser(
        "serve",
        help="serve voices over HTTP",
        description=SERVE,
        formatter_class=parser.formatter_class,
    )
    serve.add_argument(
        "voices", type=Path, nargs="+", help="serve the exported voices in these folders"
    )
    add_serve_options(serve)
    args = parser.parse_args(arguments)
    if args.command == "serve":
        serve_voices(args)
    else:
        speak_texts(args, args.voice, lambda: Voice(args.voice, args.hparams, args.threads or 1))


def serve_voices(args: argparse.Namespace) -> None:
    """Serve exported voices.

    Raises:
        UserError: if a package for the server is missing, if a voice cannot be loaded, or if the
            server cannot listen on the address.
    """
    from tacotron2_voice.voice import Voice

    try:
        from tacotron2_voice.server.command import serve
    except ModuleNotFoundError as error:
        command = install_command("server,wyoming")
        raise UserError(f"{error.name} is not installed: {command}") from None
    serve(args, args.voices, lambda path: Voice(path, args.hparams))


def run() -> None:
    """Run the console command `tacotron2-voice`."""
    run_program(main)


if __name__ == "__main__":
    run()
