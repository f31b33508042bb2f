"""How well a recogniser understands a checkpoint that was trained on spoken numbers.

    python scripts/make_demo_corpus.py unseen --clips 100 --skip 1000
    python scripts/listen.py --checkpoint demo/best.pt --recordings unseen -o intelligibility.json
    python scripts/listen.py --recordings unseen     # the recordings alone

The checkpoint speaks the texts of the recordings, which its training must not have seen, and
pocketsphinx takes them down. The file holds the word error rate, those of the recordings and of the
recordings after mel and Griffin-Lim, and what was heard. --speech keeps the sounds. Without a
checkpoint the rates of the recordings alone are measured; they are kept beside them.
"""

import project_root

import sys
from dataclasses import asdict
from pathlib import Path

from analysis.arguments import make_parser, output_file
from analysis.listening import evaluate, measure_ceiling
from errors import UserError
from files import write_json
from hparams import create_hparams, hparams_from_dict
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


def listen_to_recordings(recordings: Path, overrides: str) -> str:
    """Measure the rates of the recordings alone, and say what was found."""
    found = measure_ceiling(recordings, create_hparams(overrides))
    return (
        f"word error rate of {len(found.transcripts)} recordings {found.recordings:.3f}, after mel "
        f"and Griffin-Lim {found.after_griffin_lim:.3f}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--recordings", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("-o", "--out", type=output_file, metavar="FILE.json")
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="keep the sounds there")
    parser.add_argument("--hparams", default="", help="of the mels, where no checkpoint has them")
    args = parser.parse_args(arguments)
    if (args.checkpoint is None) != (args.out is None):
        parser.error("--checkpoint and -o go together: what is heard of the one is written there")
    if args.checkpoint is not None and args.hparams:
        parser.error("--hparams: the checkpoint has its own settings; leave one of them out")
    try:
        if args.checkpoint is None:
            print(listen_to_recordings(args.recordings, args.hparams))
        else:
            print(listen(args.checkpoint, args.recordings, args.speech, args.out))
    except KeyboardInterrupt:
        sys.exit("listen.py: stopped; nothing was written")
    except (UserError, OSError) as error:
        sys.exit(f"listen.py: {error}")


if __name__ == "__main__":
    main()
