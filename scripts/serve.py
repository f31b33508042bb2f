"""Serve checkpoints and exported voices over HTTP, with OpenAI's API for speech and a web demo.

    python scripts/serve.py --checkpoint runs/ljspeech/best.pt
    python scripts/serve.py --checkpoint runs/a/best.pt runs/b/best.pt voice

The web demo lists the speakers of all models. In the web demo, a checkpoint has the name of its
run. Install requirements/server.txt first. To serve only exported voices, you can use
`tacotron2-voice serve`, which does not need PyTorch.
"""

from project_root import ROOT

from pathlib import Path

from export.loading import load_synthesizer
from tacotron2_voice.server.command import serve
from tacotron2_voice.server.options import add_serve_options
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="serve these checkpoints and folders of exported voices",
    )
    add_serve_options(parser)
    args = parser.parse_args(arguments)

    def load(path: Path) -> Synthesizer:
        # Use one thread per worker. A checkpoint on a GPU may be used by only one thread at a time.
        synthesizer = load_synthesizer(path, args.hparams, threads=1)
        model = getattr(synthesizer, "model", None)
        if model is not None and model.embedding.weight.is_cuda and args.workers > 1:
            args.workers = 1
            print("note: using --workers 1, because the checkpoint is on a GPU")
        return synthesizer

    serve(args, args.checkpoint, load)


if __name__ == "__main__":
    run_program(main)
