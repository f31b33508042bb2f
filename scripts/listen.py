"""How well a recogniser understands a checkpoint that was trained on spoken numbers.

    python scripts/make_demo_corpus.py unseen --clips 100 --skip 1000
    python scripts/listen.py --checkpoint demo/best.pt --recordings unseen -o intelligibility.json

The checkpoint speaks the texts of the recordings, which its training must not have seen, and
pocketsphinx takes them down. The file holds the word error rate, those of the recordings and of the
recordings after mel and Griffin-Lim, and what was heard. --speech keeps the sounds.
"""

import project_root

import sys
from dataclasses import asdict
from pathlib import Path

from analysis.arguments import make_parser, output_file
from analysis.listening import evaluate
from errors import UserError
from files import write_json
from hparams import hparams_from_dict
from training.checkpoint import load_checkpoint


def listen(checkpoint: Path, recordings: Path, speech: Path | None, out: Path) -> str:
    """Evaluate the checkpoint, write `out`, and say what was found."""
    saved = load_checkpoint(checkpoint)
    hparams = hparams_from_dict(saved.get("hparams", {}))
    epochs = saved.get("loop", {"epoch": 1})["epoch"] - 1  # 0 where the checkpoint does not say
    found = evaluate(checkpoint, epochs, recordings, speech, hparams)
    write_json(out, asdict(found))
    return (
        f"word error rate of {found.texts} texts: {found.word_error_rate:.3f}; recordings "
        f"{found.recordings:.3f}, after mel and Griffin-Lim "
        f"{found.recordings_after_griffin_lim:.3f}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-o", "--out", type=output_file, required=True, metavar="FILE.json")
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="keep the sounds there")
    args = parser.parse_args(arguments)
    try:
        print(listen(args.checkpoint, args.recordings, args.speech, args.out))
    except KeyboardInterrupt:
        sys.exit("listen.py: stopped; nothing was written")
    except (UserError, OSError) as error:
        sys.exit(f"listen.py: {error}")


if __name__ == "__main__":
    main()
