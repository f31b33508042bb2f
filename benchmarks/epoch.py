"""Minutes per epoch under each batching, from timed training steps on a sample of its batches.

    python benchmarks/epoch.py                                    # lengths made up like LJSpeech's
    python benchmarks/epoch.py lengths.csv --symbols metadata.csv --precision bf16 --json epoch.json
    python benchmarks/epoch.py lengths.csv --decoder both --capacities 25824 --batches 6
    python benchmarks/epoch.py lengths.csv --shapes      # of every strategy's batches; no training

lengths.csv begins with id,samples or id,frames (a run's lengths.csv) and may hold a third column,
symbols. Of LJSpeech's clips those of the pinned training set are taken. The settings are the
paper's (batch size 16, 12.5 ms between frames) unless --hparams changes them.

One epoch is planned under random batches (RAND) and under SSB-DBS-BR, with the capacity of
batch_size longest clips and with each of --capacities, in padded frames; RAND then has as many
clips a batch as the capacity holds longest ones. Steps on a sample of each plan's batches are
timed, the plans in turns (analysis/epoch_times.py); what follows +- is the standard error by the
drawing of batches.
"""

import project_root

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from analysis import fast_path
from analysis.arguments import (
    add_measuring_options,
    at_least_one,
    make_parser,
    whole_number,
    whole_numbers,
)
from analysis.clips import Clips, clips_of_lengths_file, synthetic_clips
from analysis.epoch_times import Plan, estimate, shapes_of, time_plans
from analysis.tables import markdown_table
from batching import BatchingError, padding_stats, plan_epoch
from corpus.metadata import SPLIT_FILE
from errors import UserError
from files import write_json
from hparams import STRATEGIES, HParams, batching_options, create_hparams
from training.machine import measured_on
from training.trainer import DECODERS, Trainer

if fast_path.IS_HERE:
    from fast_decoder.graphs import bucket
else:  # no graphs: every batch has the shape that it needs

    def bucket(batch_size: int, num_symbols: int) -> tuple[int, int]:
        return batch_size, num_symbols


PROGRAM = "epoch.py"
PAPER = "batch_size=16,win_time=50,hop_time=12.5"


# ---------------------------------------------------------------------------- planning


def make_plans(clips: Clips, hparams: HParams, capacities: list[int]) -> list[Plan]:
    """RAND and SSB-DBS-BR for every capacity, the paper's first."""
    longest = int(clips.frames.max())
    plans = []
    for capacity in [hparams.batch_size * longest, *capacities]:
        if capacity < longest:
            raise UserError(
                f"capacity {capacity}: the longest clip has {longest} frames, and must fit"
            )
        most = capacity // longest
        best = {"dynamic_batch_size": True, "batch_capacity": capacity, "batch_randomization": True}
        for name, strategy, options in (
            (f"RAND, {most} clips", "random", {}),
            ("SSB-DBS-BR", "semi_sorted", best),
        ):
            batches = plan_epoch(clips.frames, most, strategy, seed=hparams.seed, **options)
            plans.append(Plan(name, capacity, batches, shapes_of(clips, batches, hparams)))
    return plans


def all_plans(clips: Clips, hparams: HParams) -> list[Plan]:
    """Every strategy, with fixed and with dynamic sizes."""
    plans = []
    capacity = hparams.batch_size * int(clips.frames.max())
    for dynamic in (False, True):
        for strategy in STRATEGIES:
            changes = {"batching_strategy": strategy, "dynamic_batch_size": dynamic}
            options = batching_options(replace(hparams, batch_randomization=False, **changes))
            batches = plan_epoch(clips.frames, **options)
            name = f"{strategy}{', dynamic sizes' if dynamic else ''}"
            plans.append(Plan(name, capacity, batches, shapes_of(clips, batches, hparams)))
    return plans


# ---------------------------------------------------------------------------- the report


def summary(plan: Plan, clips: Clips, frames_per_step: int) -> dict:
    """What a plan costs in steps, padding and shapes, whatever runs it."""
    batch_size, frames, symbols = plan.shapes.T
    rows, columns = np.array([bucket(int(b), int(n)) for b, _, n in plan.shapes]).T
    padded, padded_symbols = batch_size * frames, batch_size * frames * symbols
    return asdict(padding_stats(clips.frames, plan.batches, frames_per_step)) | {
        "batching": plan.name,
        "capacity": plan.capacity,
        "real_frames": int(clips.frames.sum()),
        "shapes": len({tuple(shape) for shape in plan.shapes.tolist()}),
        "buckets": len(set(zip(rows.tolist(), columns.tolist(), strict=True))),
        # Of the graphs' programs for clips, and for clips x symbols, those that return at once.
        "idle_rows": float(1 - padded.sum() / (rows * frames).sum()),
        "idle_rows_and_symbols": float(1 - padded_symbols.sum() / (rows * columns * frames).sum()),
    }


def results(plans: list[Plan], clips: Clips, found: dict, frames_per_step: int) -> list:
    """A row for each plan; times are of the epoch."""
    rows = [summary(plan, clips, frames_per_step) | {"decoders": {}} for plan in plans]
    for name, timed_plans in found.items():
        times = [estimate(timed["sizes"], timed["seconds"]) for timed in timed_plans]
        for index, (row, (seconds, error)) in enumerate(zip(rows, times, strict=True)):
            random = index - index % 2  # the plan of random batches with the same capacity
            row["decoders"][name] = timed_plans[index] | {
                "minutes_per_epoch": seconds / 60,
                "standard_error_minutes": error / 60,
                "saved_against_random": 1 - seconds / times[0][0],
                "saved_at_equal_capacity": 1 - seconds / times[random][0],
                "padded_frames_per_second": row["padded_frames"] / seconds,
                "real_frames_per_second": row["real_frames"] / seconds,
            }
    return rows


def plans_table(rows: list[dict]) -> str:
    """Markdown: what the plans are."""
    columns = {
        "batching": "{batching}",
        "capacity": "{capacity:,}",
        "batches": "{num_batches:,}",
        "ZPR": "{zero_padding_rate:.2%}",
        "decoder steps": "{decoder_steps:,.0f}",
        "largest batch": "{largest_batch_size:,}",
        "shapes": "{shapes:,}",
        "graph buckets": "{buckets:,}",
        "idle rows": "{idle_rows:.1%}",
        "idle rows x symbols": "{idle_rows_and_symbols:.1%}",
    }
    cells = [[cell.format(**row) for cell in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)


def times_table(rows: list[dict]) -> str:
    """Markdown: what they take with each decoder."""
    titles = ["batching", "capacity", "decoder", "min/epoch", "saved", "saved at equal capacity"]
    titles += ["padded frames/s", "real frames/s", "peak memory"]
    cells = []
    for index, row in enumerate(rows):
        for name, times in row["decoders"].items():
            peak = times["peak_memory_bytes"]
            cells.append(
                [
                    row["batching"],
                    f"{row['capacity']:,}",
                    name,
                    "{minutes_per_epoch:.3g} ± {standard_error_minutes:.2g}".format(**times),
                    "–" if index == 0 else f"{times['saved_against_random']:.1%}",
                    "–" if index % 2 == 0 else f"{times['saved_at_equal_capacity']:.1%}",
                    f"{times['padded_frames_per_second']:,.0f}",
                    f"{times['real_frames_per_second']:,.0f}",
                    "not measured" if peak is None else f"{peak / 1e9:.2f} GB",
                ]
            )
    return markdown_table(titles, cells)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, from_two = parser.add_argument, whole_number(2)
    add("lengths", nargs="?", type=Path, help="default: lengths like LJSpeech's, made up")
    add("--symbols", type=Path, metavar="METADATA.csv", help="lines of id|text, to count symbols")
    add("--clips", type=from_two, default=10480, help="clips to make up; default %(default)s")
    add_measuring_options(parser)
    add("--decoder", choices=(*DECODERS, "both"), default="fast")
    shown = "default: 2 (GPU: 2,4,8) x first"
    add("--capacities", type=whole_numbers(1), metavar="25824,51648", help=shown)
    add("--batches", type=from_two, help="sampled a plan; default 6, on a GPU 12")
    add("--repeats", type=at_least_one, help="timed steps a batch; default 1, on a GPU 3")
    add("--seed", type=whole_number(0), default=0, help="of plans and samples")
    add("--shapes", action="store_true", help="only count the shapes of every strategy's batches")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    args = parser.parse_args(arguments)
    on_gpu = args.device.type == "cuda"
    args.batches = args.batches or (12 if on_gpu else 6)
    args.repeats = args.repeats or (3 if on_gpu else 1)
    if args.symbols and not args.lengths:
        parser.error("--symbols METADATA.csv: name the lengths of its clips too")
    if args.decoder != "reference" and not (args.shapes or fast_path.IS_HERE):
        parser.error(f"--decoder {args.decoder}: {fast_path.MISSING}; use --decoder reference")
    return args


def prepare(args: argparse.Namespace) -> tuple[HParams, Clips, list[Plan]]:
    """Settings, lengths and plans. UserError or BatchingError where one of them cannot be."""
    hparams = create_hparams(args.hparams, create_hparams(PAPER))
    hparams = replace(hparams, seed=args.seed, precision=args.precision)
    if args.lengths is None:
        clips = synthetic_clips(args.clips, hparams, args.seed)
    else:
        clips = clips_of_lengths_file(args.lengths, hparams, args.symbols, SPLIT_FILE)
    if args.shapes:
        return hparams, clips, all_plans(clips, hparams)
    if args.capacities is None:
        first = hparams.batch_size * int(clips.frames.max())
        times = (2, 4, 8) if args.device.type == "cuda" else (2,)
        args.capacities = [k * first for k in times]
    return hparams, clips, make_plans(clips, hparams, args.capacities)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    try:
        hparams, clips, plans = prepare(args)
    except (UserError, BatchingError) as error:
        sys.exit(f"{PROGRAM}: {error}")
    r = hparams.n_frames_per_step
    if args.shapes:
        rows = [summary(plan, clips, r) for plan in plans]
        print(f"{clips.source}\n\n{plans_table(rows)}")
        return
    decoders = list(DECODERS) if args.decoder == "both" else [args.decoder]
    trainer = Trainer(hparams, args.device)
    trainer.use_decoder("fast")
    described = trainer.decoder_description
    measured = measured_on(args.device)
    print(
        f"{measured['device']}, torch {measured['versions']['torch']}, {args.precision}\n"
        f"{clips.source}\ndecoder: {described}\n"
        f"up to {args.batches} batches a plan, {args.repeats} timed on each; no data is read"
    )
    options = {"batches": args.batches, "repeats": args.repeats, "seed": args.seed}
    rows = results(plans, clips, time_plans(trainer, decoders, clips, plans, **options), r)
    print(f"\n{plans_table(rows)}\n\n{times_table(rows)}")
    if args.json:
        result = {
            **measured,
            "precision": args.precision,
            "fast_decoder": described,
            "clips": clips.source,
            "seed": args.seed,
            "batches_sampled": args.batches,
            "repeats": args.repeats,
            "hparams": asdict(hparams),
            "rows": rows,
        }
        write_json(args.json, result)
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
