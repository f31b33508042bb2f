"""What the quick modes of all.sh scale down: the corpus, the settings and the model.

python scripts/quick_mode.py corpus CORPUS OUT            OUT becomes a part of CORPUS
python scripts/quick_mode.py quick|quick-gpu FILELIST     prints the overrides for train.py
"""

import project_root

import glob
import random
from pathlib import Path

from analysis.arguments import make_parser
from analysis.published import BATCH_SIZE, BUCKET_SIZE, NUM_BINS, TRAINING_CLIPS
from corpus.metadata import read_metadata
from errors import UserError
from files import folder_made_whole, numbered_lines, read_bytes

MOST_CLIPS = 85  # of a corpus, validation included: all ten within 20 minutes on 2 busy cores
LONGEST_PATH = 2**12  # bytes, of the system
SOURCE = "source.txt"  # in the part: which corpus it was taken from
FEWEST_BATCHES = 16  # an epoch of random batches has; a smaller corpus makes smaller batches


def take_part(corpus: Path, out: Path) -> str:
    """Make `out` a corpus of at most MOST_CLIPS random clips of `corpus`, linked; says what it did.
    UserError if `corpus` is not in LJSpeech's layout or `out` is taken by something else."""
    corpus, out = corpus.resolve(), out.absolute()
    if out.exists():
        source = out / SOURCE
        found = read_bytes(source, LONGEST_PATH) if source.exists() else b"another corpus"
        name = found.decode(errors="replace")
        if name != str(corpus):
            raise UserError(f"{out} holds clips of {name}, and CORPUS is {corpus}: change OUT")
        return f"{out} holds clips of {corpus} already"
    entries, problems = read_metadata(corpus)
    if problems:
        raise UserError("\n".join(problems))
    numbers = random.Random(0).sample(range(len(entries)), min(MOST_CLIPS, len(entries)))
    with folder_made_whole(out) as folder:
        (folder / "wavs").mkdir()
        text = ""
        for clip in (entries[i] for i in sorted(numbers)):
            text += f"{clip.id}|{clip.text}|{clip.text}\n"
            for file in (corpus / "wavs").glob(f"{glob.escape(clip.id)}.*"):
                (folder / "wavs" / file.name).symlink_to(file)
        (folder / "metadata.csv").write_text(text, encoding="utf-8")
        (folder / SOURCE).write_text(str(corpus), encoding="utf-8")
    return f"{out}: {len(numbers)} of the {len(entries):,} clips of {corpus}"


def scaled_batching(training_clips: int) -> dict[str, int]:
    """Batch size, bucket size and bins with the proportions of Ge et al., Table 1.

    A bucket and a bin hold at least two batches, or they would be random batches under another
    name. UserError if the corpus is too small for two buckets of two batches of two clips.
    """
    if training_clips < 8:
        raise UserError(f"{training_clips} training clips: expected at least 8")
    size = max(2, min(BATCH_SIZE, training_clips // FEWEST_BATCHES))
    bucket_batches = round(BUCKET_SIZE * training_clips / TRAINING_CLIPS / size)
    batches, all_batches = -(-training_clips // size), -(-TRAINING_CLIPS // BATCH_SIZE)
    bins = max(2, min(round(NUM_BINS * batches / all_batches), batches // 2))
    return {"batch_size": size, "bucket_size": size * max(2, bucket_batches), "num_bins": bins}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=("corpus", "quick", "quick-gpu"))
    parser.add_argument("path", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    args = parser.parse_args()
    if args.what == "corpus":
        print(take_part(args.path, args.out))
        return
    clips = numbered_lines(args.path, "no such filelist; all.sh prepares it first")
    settings = [f"{name}={value}" for name, value in scaled_batching(len(clips)).items()]
    settings += ["epochs_per_validation=1", "keep_checkpoints=1"]
    if args.what == "quick":  # starting a process takes longer than it saves
        settings += ["@scripts/small_model.txt", "num_workers=0"]
    print(",".join(settings))


if __name__ == "__main__":
    main()
