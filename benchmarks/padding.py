"""What every batching strategy costs on a corpus, counted from its lengths alone.

    python benchmarks/padding.py filelists/ljspeech/train.txt

The corpus's clips in frames of 12.5 ms, ceil(seconds * 80), as Ge et al. count them (Interspeech
2021); batch size 16; means over five epochs' plans. Published values are from their Tables 1
and 2, for a random 10,480 clips of LJSpeech.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from batching import padding_stats, plan_epoch

FRAMES_PER_SECOND = 80
DYNAMIC = {"dynamic_batch_size": True}
ROWS = [  # name in the paper, strategy, options, published ZPR % and ABL
    ("RAND", "random", {}, (32.02, 773.82)),
    ("SB", "sorted", {}, (0.16, 526.43)),
    ("SSB", "semi_sorted", {}, (6.22, 556.22)),
    ("BKT", "bucket", {}, (6.10, 553.40)),
    ("ATS", "alternated_sort", {}, (6.08, 552.48)),
    ("SB-DBS", "sorted", DYNAMIC, (0.47, 527.15)),
    ("SSB-DBS", "semi_sorted", DYNAMIC, (6.62, 557.68)),
    ("–", "random", DYNAMIC, None),
    ("–", "bucket", DYNAMIC, None),
    ("–", "alternated_sort", DYNAMIC, None),
    ("–", "bucket_by_width", {}, None),
    ("–", "bucket_by_width", DYNAMIC, None),
    ("–", "bucket_by_quantile", {}, None),
    ("–", "bucket_by_quantile", DYNAMIC, None),
]


def read_seconds(filelist: Path) -> list[float]:
    """The seconds of a filelist's lines, path|text|seconds."""
    lines = [line for line in filelist.read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        return [float(line.split("|")[2]) for line in lines]
    except (IndexError, ValueError):
        sys.exit(f"{filelist}: expected lines of path|text|seconds, as prepare_ljspeech.py writes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("filelist", type=Path)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    frames = np.array([math.ceil(s * FRAMES_PER_SECOND) for s in read_seconds(args.filelist)])
    capacity = args.batch_size * frames.max()
    print(
        f"{len(frames):,} clips, {frames.sum():,} frames, batch size {args.batch_size}; with DBS "
        f"{capacity:,} frames a batch, so at least {math.ceil(frames.sum() / capacity)} batches "
        "even without padding\n"
    )
    print("| paper | strategy | DBS | ZPR % (published) | ABL (published) | batches | largest batch"
          " | decoder steps |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, strategy, options, published in ROWS:
        try:
            plans = [
                padding_stats(
                    frames, plan_epoch(frames, args.batch_size, strategy, epoch=epoch, **options)
                )
                for epoch in range(5)
            ]
        except ValueError as error:  # a corpus too small for the paper's parameters
            print(f"| {name} | {strategy} | not possible: {error} | | | | | |")
            continue
        mean = {
            key: np.mean([getattr(plan, key) for plan in plans])
            for key in ("zero_padding_rate", "average_batch_length", "num_batches", "decoder_steps")
        }
        zpr, abl = (f" ({value:.2f})" for value in published) if published else ("", "")
        print(
            f"| {name} | `{strategy}` | {'yes' if options else 'no'} "
            f"| {100 * mean['zero_padding_rate']:.2f}{zpr} "
            f"| {mean['average_batch_length']:.1f}{abl} | {mean['num_batches']:.0f} "
            f"| {max(plan.largest_batch_size for plan in plans)} | {mean['decoder_steps']:,.0f} |"
        )


if __name__ == "__main__":
    main()
