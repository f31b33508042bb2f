"""What the small modes of all.sh scale down: the corpus, the settings and the model.

python scripts/quick_mode.py corpus CORPUS OUT        OUT becomes a part of CORPUS
python scripts/quick_mode.py overrides MODE FILELIST  prints the overrides for train.py
"""

import project_root

import random
import sys
from pathlib import Path

import numpy as np

from analysis.arguments import make_parser
from analysis.lengths import read_lengths
from analysis.published import SETTINGS, TRAINING_CLIPS
from analysis.survey import Surveyor, match_zero_padding
from corpus.metadata import read_metadata
from errors import UserError
from files import folder_made_whole, numbered_lines
from hparams import create_hparams

MOST_CLIPS = 85  # of a corpus, validation included: all ten within 20 minutes on 2 busy cores
SMALL_MODEL = "@scripts/small_model.txt"  # all.sh runs train.py in the project's folder
SOURCE = "source.txt"  # in the part: which corpus it was taken from
SPEAKING_MODEL = "@scripts/speaking_model.txt"  # of --small
AUDIO_OF_STUDY = "win_time=None,hop_time=None"  # the recipe's own frames, as in `make demo`
PLANNED = 20  # epochs whose mean padding is matched
FEWEST_BATCHES = 16  # an epoch of random batches has; a smaller corpus makes smaller batches


def take_part(corpus: Path, out: Path) -> str:
    """Make `out` a corpus of at most MOST_CLIPS random clips of `corpus`, linked; says what it did.

    Raises:
        UserError: if `corpus` is not in LJSpeech's layout or `out` is taken by something else.
        OSError: if `out` cannot be written.
    """
    corpus, out = corpus.resolve(), out.absolute()
    if out.exists():
        source = out / SOURCE
        name = source.read_text(encoding="utf-8") if source.exists() else "another corpus"
        if name != str(corpus):
            raise UserError(f"{out} holds clips of {name}, and CORPUS is {corpus}: another OUT")
        return f"{out} holds clips of {corpus} already"
    entries, problems = read_metadata(corpus)
    if problems:
        raise UserError("\n".join(problems))
    chosen = entries
    if len(entries) > MOST_CLIPS:
        chosen = sorted(random.Random(0).sample(entries, MOST_CLIPS))
    with folder_made_whole(out) as folder:
        (folder / "wavs").mkdir()
        lines = []
        for clip in chosen:
            lines.append(f"{clip.id}|{clip.text}|{clip.text}\n")
            for name in (f"{clip.id}.wav", f"{clip.id}.flac"):
                if (corpus / "wavs" / name).exists():  # prepare_ljspeech.py names what is missing
                    (folder / "wavs" / name).symlink_to(corpus / "wavs" / name)
        (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
        (folder / SOURCE).write_text(str(corpus), encoding="utf-8")
    return f"{out}: {len(chosen)} of the {len(entries):,} clips of {corpus}"


def scaled_batching(training_clips: int) -> dict[str, int]:
    """Batch size, bucket size and bins that keep the paper's proportions on a smaller corpus.

    Clips a bucket to clips, and bins to batches, are as in Ge et al., Table 1; a bucket and a bin
    hold at least two batches, or they would be random batches under another name.

    Raises:
        UserError: if the corpus is too small for two buckets of two batches of two clips.
    """
    if training_clips < 8:
        raise UserError(f"{training_clips} training clips: expected at least 8")
    batch_size = max(2, min(SETTINGS["batch_size"], training_clips // FEWEST_BATCHES))
    batches = -(-training_clips // batch_size)
    all_batches = -(-TRAINING_CLIPS // SETTINGS["batch_size"])
    share = training_clips / TRAINING_CLIPS
    bucket_batches = round(SETTINGS["bucket_size"] * share / batch_size)
    return {
        "batch_size": batch_size,
        "bucket_size": batch_size * max(2, bucket_batches),
        "num_bins": max(2, min(round(SETTINGS["num_bins"] * batches / all_batches), batches // 2)),
    }


def matched_batching(lengths: np.ndarray, batch_size: int) -> dict[str, int]:
    """Bucket size and bins with which BKT and ATS pad as the paper's do beside SSB.

    The paper chose them so that ZPR is equal but for 0.14 points, in the order SSB, BKT, ATS. On a
    small corpus its proportions, of a handful of batches a bucket, miss that order, so each is the
    value whose ZPR comes nearest to that of the one before it from below.

    Args:
        lengths: frames of every training clip, [clips].

    Raises:
        UserError: if the corpus is so small that there is none.
    """
    matched, surveyor = {}, Surveyor(lengths)
    target = surveyor.survey(batch_size, "semi_sorted", epochs=PLANNED).zero_padding_rate
    for strategy, name in (("bucket", "bucket_size"), ("alternated_sort", "num_bins")):
        found = match_zero_padding([lengths], batch_size, strategy, target, epochs=PLANNED)
        if found is None:
            raise UserError(
                f"{len(lengths)} training clips: too few for {name} to keep the zero-padding rate "
                f"below {target:.2%}; make a larger corpus"
            )
        matched[name], target = found
    return matched


def overrides_of_study(filelist: Path) -> str:
    """The settings of --small. The learning rate is constant: a schedule counts updates, and would
    end sooner where batches are smaller."""
    hparams = create_hparams(f"{AUDIO_OF_STUDY},{SPEAKING_MODEL}")
    lengths = read_lengths(filelist, hparams).frames
    matched = matched_batching(lengths, hparams.batch_size)
    settings = [SPEAKING_MODEL, *(f"{name}={value}" for name, value in matched.items())]
    settings += ["learning_rate_schedule=constant", "num_workers=0"]
    return ",".join([*settings, "epochs_per_validation=1", "keep_checkpoints=1"])


def overrides(mode: str, filelist: Path) -> str:
    """The settings of a quick mode, as train.py's --hparams takes them."""
    clips = numbered_lines(filelist, "no such filelist; all.sh prepares it first")
    scaled = scaled_batching(len(clips))
    settings = [f"{name}={value}" for name, value in scaled.items()]
    settings += ["epochs_per_validation=1", "keep_checkpoints=1"]
    if mode == "quick":
        settings += [SMALL_MODEL, "num_workers=0"]  # starting a process takes longer than it saves
    return ",".join(settings)


def main() -> None:
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("corpus")
    command.add_argument("corpus", type=Path)
    command.add_argument("out", type=Path)
    command = commands.add_parser("overrides")
    command.add_argument("mode", choices=("quick", "quick-gpu", "small"))
    command.add_argument("filelist", type=Path)
    args = parser.parse_args()
    try:
        if args.command == "corpus":
            print(take_part(args.corpus, args.out))
        elif args.mode == "small":
            print(overrides_of_study(args.filelist))
        else:
            print(overrides(args.mode, args.filelist))
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (UserError, OSError) as error:
        sys.exit(f"quick_mode.py: {error}")


if __name__ == "__main__":
    main()
