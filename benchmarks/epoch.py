"""Minutes and memory of an epoch under each batching, from timed training steps on real batches.

    python benchmarks/epoch.py                                   # lengths distributed as LJSpeech's
    python benchmarks/epoch.py lengths.csv --symbols metadata.csv --precision bf16 --json epoch.json
    python benchmarks/epoch.py train.txt --batchings RAND "batching_strategy=bucket,bucket_size=960"
    torchrun --nproc-per-node 2 benchmarks/epoch.py --hparams batches_per_update=2
    python benchmarks/epoch.py --runs runs/table2-small          # the batchings of finished runs
    python benchmarks/epoch.py lengths.csv --shapes              # what the plans are; no training

LENGTHS is a filelist, its NAME.clips, or a CSV of id,samples or id,frames; of LJSpeech's clips those
of the pinned training set are used. The settings are the paper's (batch size 16, 12.5 ms between
frames) unless --hparams changes them. Every batching is planned with the capacity of batch_size
longest clips and with each of --capacities, in padded frames; batchings of fixed size then have as
many clips a batch as the capacity holds longest ones.

The updates of each plan are ordered by length and cut into strata of equal size; two of each are
drawn, and whole training steps (forward, loss, backward, clipping, Adam) on noise of the lengths of
their clips are timed, the plans in turns, so what else the machine does falls on all alike. What
follows +- is the standard error by the drawing (Cochran, Sampling Techniques, chapter 5). No data
is read. Under torchrun each process runs its own batches of every update.
"""

import project_root

import argparse
import itertools
import json
import math
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from analysis import fast_path
from analysis.arguments import (
    add_device_option,
    add_json_option,
    at_least_one,
    make_parser,
    precision_list,
    whole_number,
    whole_numbers,
)
from analysis.lengths import CorpusLengths, read_lengths, synthetic_lengths, with_symbols
from analysis.step_costs import COST_SETTINGS
from analysis.survey import batching_name
from batching import REGISTRY, BatchingError, LengthBatchSampler, PaddingStats, padding_stats
from corpus.metadata import SPLIT_FILE, read_split
from data_utils import synthetic_batch
from errors import UserError
from files import METRICS_FILE, write_json
from hparams import HParams, batching_options, create_hparams, hparams_from_dict
from progress import progress_bar
from training.distributed import Processes, join
from training.machine import (
    is_out_of_memory,
    measured_on,
    peak_memory,
    reset_peak_memory,
    seconds_of,
)
from training.trainer import DECODERS, MicroBatch, Trainer

PAPER = "batch_size=16,win_time=50,hop_time=12.5"
RUN_MINUTES = "epoch_minutes.json"  # in a run's folder
DRAWS = 2  # updates of a stratum: the fewest that tell how much they differ


# ---------------------------------------------------------------------------- planning


@dataclass
class Plan:
    """One epoch under one batching."""

    name: str
    capacity: int  # padded frames that a batch may hold
    updates: list[list[np.ndarray]]  # the batches of each, of all processes
    lengths: np.ndarray  # [updates] padded frames, one batch after another
    clips: np.ndarray  # [updates]
    stats: PaddingStats


def batching_settings(batching: str, hparams: HParams) -> HParams:
    """`hparams` with a batching given by name (SSB-DBS-BR) or by overrides (name=value,...)."""
    if "=" in batching:
        return create_hparams(batching, base=hparams)
    strategies = {s.short_name: name for name, s in REGISTRY.items()}
    short, flags = batching, set()
    for flag in ("-BR", "-DBS"):
        if short.endswith(flag):
            short, flags = short.removesuffix(flag), flags | {flag}
    if short not in strategies:
        raise UserError(
            f"--batchings {batching}: expected one of {', '.join(strategies)}, with -DBS for "
            "dynamic sizes and -BR for batches in random order, or name=value,... as train.py takes"
        )
    return replace(
        hparams,
        batching_strategy=strategies[short],
        dynamic_batch_size="-DBS" in flags,
        batch_randomization="-BR" in flags,
    )


def make_plan(clips: CorpusLengths, hparams: HParams, name: str = "", epoch: int = 0) -> Plan:
    """An epoch of training with `hparams`. BatchingError where the corpus does not allow it."""
    h = hparams
    sampler = LengthBatchSampler(
        clips.frames,
        random_epochs=h.random_epochs,
        batches_per_update=h.batches_per_update,
        **batching_options(h),
    )
    sampler.set_epoch(epoch)
    bounds = itertools.pairwise([*sampler.update_starts.tolist(), len(sampler.plan)])
    updates = [[sampler.plan[i] for i in range(start, end)] for start, end in bounds]
    r = h.n_frames_per_step
    lengths = [sum(-(-int(clips.frames[b].max()) // r) * r for b in update) for update in updates]
    if not name:
        dynamic, randomized = h.dynamic_batch_size, h.batch_randomization
        name = batching_name(h.batching_strategy, dynamic, randomized)
    return Plan(
        name,
        h.batch_capacity or h.batch_size * int(clips.frames.max()),
        updates,
        np.array(lengths),
        np.array([sum(map(len, update)) for update in updates]),
        padding_stats(clips.frames, sampler.plan, r),
    )


def make_plans(
    clips: CorpusLengths, hparams: HParams, batchings: list[str], capacities: list[int]
) -> list[Plan]:
    """Every batching with every capacity."""
    longest, plans = int(clips.frames.max()), []
    for capacity, batching in itertools.product(capacities, batchings):
        if capacity < longest:
            raise UserError(
                f"capacity {capacity}: the longest clip has {longest} frames, and must fit"
            )
        h = batching_settings(batching, replace(hparams, batch_size=capacity // longest))
        if h.dynamic_batch_size:
            h = replace(h, batch_capacity=capacity)
        plans.append(make_plan(clips, h))
        plans[-1].capacity = capacity
    return plans


# ---------------------------------------------------------------------------- the sample


def strata(plan: Plan, draws: int) -> list[np.ndarray]:
    """Updates by number, ordered by length, then clips, and cut into `draws` / 2 parts as equal as
    can be; at least two updates in each, if there are so many."""
    order = np.lexsort((plan.clips, plan.lengths))
    return np.array_split(order, max(1, min(draws, len(order)) // DRAWS))


def estimate(sizes: list[int], drawn: list[list[float]]) -> tuple[float, float]:
    """(sum, its standard error) of a quantity over strata of `sizes`, from the values drawn there.

    Stratified sampling without replacement (Cochran, chapter 5). The error is not-a-number where a
    stratum of several has one value only.
    """
    total, variance = 0.0, 0.0
    for size, values in zip(sizes, drawn, strict=True):
        total += size * float(np.mean(values))
        if len(values) < size:
            spread = np.var(values, ddof=1) if len(values) > 1 else math.nan
            variance += size**2 * (1 - len(values) / size) * float(spread) / len(values)
    return total, math.sqrt(variance)


@dataclass
class Timed:
    """What was measured of a plan with a decoder."""

    sizes: list[int] = field(default_factory=list)  # of the strata, in updates
    seconds: list[list[float]] = field(default_factory=list)  # of the updates drawn in each
    steps: list[list] = field(default_factory=list)  # clips, padded frames, symbols, seconds
    memory: list[list] = field(default_factory=list)  # clips, padded frames, peak bytes
    fits: bool = True


class Timer:
    """Times training steps on the plans' updates."""

    def __init__(self, trainer: Trainer, clips: CorpusLengths):
        self.trainer, self.clips, self.processes = trainer, clips, trainer.processes
        self.cuda = trainer.device.type == "cuda"

    def parts(self, update: list[np.ndarray]) -> list[MicroBatch]:
        """This process's batches of the update."""
        found = []
        for batch in update[self.processes.rank :: self.processes.world_size]:
            frames, symbols = self.clips.frames[batch], self.clips.symbols[batch]
            noise = synthetic_batch(frames, symbols, self.trainer.hparams)
            found.append(MicroBatch(noise.pin_memory() if self.cuda else noise))
        return found

    def seconds(self, update: list[np.ndarray], repeats: int) -> float:
        """Median of the repeats, of the slowest process."""
        parts, options = self.parts(update), {"num_batches": len(update)}
        if self.cuda:  # a GPU's first step of a shape compiles and captures
            self.trainer.step(parts, **options)
        times = []
        for _ in range(repeats):
            self.processes.gather(None)  # all begin together
            times.append(
                seconds_of(self.trainer.device, lambda: self.trainer.step(parts, **options))
            )
        return max(self.processes.gather(float(np.median(times))))

    def measure_memory(self, plan: Plan, number: int, timed: Timed) -> None:
        """Peak memory of an update; `fits` becomes false where a GPU has too little."""
        trainer, update = self.trainer, plan.updates[number]
        parts, fits = self.parts(update), True
        if self.cuda:  # alone first: a process out of memory would keep the others waiting
            try:
                for part in parts:
                    trainer.compute_gradients(part.batch.to(trainer.device))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                fits = False
            trainer.model.zero_grad(set_to_none=True)
        if self.processes.any(not fits):
            timed.fits = False
            torch.cuda.empty_cache()
            return
        measurable = reset_peak_memory(trainer.device)
        trainer.step(parts, num_batches=len(update))
        peak = peak_memory(trainer.device) if measurable else None
        peaks = self.processes.gather(peak)
        if None not in peaks:
            padded = int(plan.lengths[number])
            timed.memory.append([int(plan.clips[number]), padded, max(peaks)])


def time_plans(
    trainer: Trainer,
    decoders: list[str],
    clips: CorpusLengths,
    plans: list[Plan],
    *,
    batches: int,
    repeats: int,
    seed: int = 0,
) -> list[dict[str, Timed]]:
    """Of each plan what was measured, by decoder.

    Args:
        batches: updates drawn of each plan, at most.
        repeats: timed steps on each, of which the median counts.
        seed: of the drawing.
    """
    timer, jobs = Timer(trainer, clips), []
    found: list[dict[str, Timed]] = [{name: Timed() for name in decoders} for _ in plans]
    for index, plan in enumerate(plans):
        parts, rng = strata(plan, batches), np.random.default_rng(seed)
        for stratum, numbers in enumerate(parts):
            drawn = rng.choice(numbers, min(DRAWS, len(numbers)), replace=False).tolist()
            for turn, number in enumerate(drawn):
                jobs.append((turn, stratum / len(parts), index, stratum, number))
        frames = plan.lengths * plan.clips
        for name, timed in found[index].items():
            timed.sizes, timed.seconds = [len(part) for part in parts], [[] for _ in parts]
            trainer.use_decoder(name)
            for number in {int(frames.argmax()), int(frames.argmin())}:
                if timed.fits:
                    timer.measure_memory(plan, number, timed)
    # The plans take turns, so that a machine that slows down meanwhile slows all of them.
    first = trainer.processes.is_first
    with progress_bar("timing", len(jobs) * len(decoders), " updates", disable=not first) as bar:
        for _, _, index, stratum, number in sorted(jobs):
            plan = plans[index]
            for name, timed in found[index].items():
                bar.update()
                if not timed.fits:
                    continue
                trainer.use_decoder(name)
                seconds = timer.seconds(plan.updates[number], repeats)
                timed.seconds[stratum].append(seconds)
                symbols = max(int(clips.symbols[b].max()) for b in plan.updates[number])
                shape = [int(plan.clips[number]), int(plan.lengths[number]), symbols]
                timed.steps.append([*shape, seconds])
    return found


# ---------------------------------------------------------------------------- the report


def result_rows(
    plans: list[Plan], found: list[dict[str, Timed]], clips: CorpusLengths, precision: str
) -> list[dict]:
    """A row for each decoder and plan; times are of the epoch."""
    rows: list[dict] = []
    for name in found[0]:
        seconds = {}
        for plan, by_decoder in zip(plans, found, strict=True):
            timed = by_decoder[name]
            row = {"batching": plan.name, "capacity": plan.capacity, "precision": precision}
            row |= {"decoder": name, "updates": len(plan.updates)} | asdict(plan.stats)
            row["status"] = "measured" if timed.fits else "does not fit into memory"
            row["peak_memory_bytes"] = max((peak for *_, peak in timed.memory), default=None)
            rows.append(row | asdict(timed))
            if timed.fits:
                total, error = estimate(timed.sizes, timed.seconds)
                seconds[len(rows)] = total
                first = next(iter(seconds.values()))
                at_equal = [
                    s for n, s in seconds.items() if rows[n - 1]["capacity"] == plan.capacity
                ]
                rows[-1] |= {
                    "minutes_per_epoch": total / 60,
                    "standard_error_minutes": error / 60,
                    "saved": 1 - total / first,
                    "saved_at_equal_capacity": 1 - total / at_equal[0],
                    "padded_frames_per_second": plan.stats.padded_frames / total,
                    "real_frames_per_second": int(clips.frames.sum()) / total,
                }
    return rows


PLAN_COLUMNS = {
    "batching": "{batching}",
    "capacity": "{capacity:,}",
    "updates": "{updates:,}",
    "batches": "{num_batches:,}",
    "ZPR": "{zero_padding_rate:.2%}",
    "decoder steps": "{decoder_steps:,.0f}",
    "largest batch": "{largest_batch_size:,}",
}
TIME_COLUMNS = {
    "batching": "{batching}",
    "capacity": "{capacity:,}",
    "precision": "{precision}",
    "decoder": "{decoder}",
    "min/epoch": "{minutes_per_epoch:.3g} ± {standard_error_minutes:.2g}",
    "saved": "{saved:.1%}",
    "at equal capacity": "{saved_at_equal_capacity:.1%}",
    "padded frames/s": "{padded_frames_per_second:,.0f}",
    "real frames/s": "{real_frames_per_second:,.0f}",
    "peak memory": "{peak_gigabytes}",
}


def markdown(columns: dict[str, str], rows: list[dict]) -> str:
    lines = [list(columns), [":---", *["---:"] * (len(columns) - 1)]]
    for row in rows:
        peak = row.get("peak_memory_bytes")
        shown = {"peak_gigabytes": "not measured" if peak is None else f"{peak / 1e9:.2f} GB"}
        if row.get("status", "measured") == "measured":
            lines.append([cell.format(**row | shown) for cell in columns.values()])
        else:
            cells = [cell.format(**row) for cell in list(columns.values())[:4]]
            lines.append([*cells, row["status"], *[""] * (len(columns) - 5)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# ---------------------------------------------------------------------------- of finished runs


def time_runs(args: argparse.Namespace, processes: Processes) -> None:
    """Write RUN_MINUTES into the folder of every run below --runs."""
    folders = sorted({path.parent for f in args.runs for path in f.rglob(METRICS_FILE)})
    if not folders:
        raise UserError(f"{', '.join(map(str, args.runs))}: no {METRICS_FILE} in it or below")
    runs = {folder: read_run(folder) for folder in folders}
    first, base, threads = folders[0], *runs[folders[0]][:2]
    for folder, (h, *_) in runs.items():
        names = (*COST_SETTINGS, "training_files")
        differing = [name for name in names if getattr(h, name) != getattr(base, name)]
        if differing:
            what = ", ".join(differing)
            raise UserError(f"{first} and {folder} differ in {what}: time them one by one")
    clips, _ = with_symbols(read_lengths(base.training_files, base), base)
    for folder in folders:
        if read_lengths(folder / "lengths.csv", base).frames.tolist() != clips.frames.tolist():
            raise UserError(f"{base.training_files}: not the clips that {folder} trained on")
    torch.set_num_threads(threads or torch.get_num_threads())
    plans: dict[str, Plan] = {}  # runs that differ but in their seeds share one

    def plan_for(hparams: HParams, epoch: int) -> str:
        is_random = epoch < hparams.random_epochs
        key = str((is_random, batching_options(replace(hparams, seed=0))))
        if key not in plans:
            plans[key] = make_plan(clips, hparams, epoch=0 if is_random else hparams.random_epochs)
        return key

    keys = {f: [plan_for(h, epoch) for epoch in range(count)] for f, (h, _, count) in runs.items()}
    trainer, options = Trainer(base, args.device, processes), measuring(args)
    found = time_plans(trainer, [base.decoder], clips, list(plans.values()), **options)
    times = {
        key: estimate(timed[base.decoder].sizes, timed[base.decoder].seconds)
        for key, timed in zip(plans, found, strict=True)
    }
    for folder, of_epochs in keys.items():
        minutes = [times[key][0] / 60 for key in of_epochs]
        error = max(times[key][1] / times[key][0] for key in of_epochs)
        write_json(folder / RUN_MINUTES, {"minutes": minutes, "relative_error": error})
        print(f"{folder}: {minutes[-1]:.3f} ± {error * minutes[-1]:.3f} minutes an epoch")


def read_run(folder: Path) -> tuple[HParams, int | None, int]:
    """Settings, threads and epochs of a run, from its metrics.jsonl."""
    try:
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        run = [record for record in records if record["kind"] == "run"][-1]
        epochs = sum(record["kind"] == "epoch" for record in records)
        hparams = hparams_from_dict(run["hparams"])
        threads = run["machine"].get("threads")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{folder / METRICS_FILE}: not the record of a run ({error!r})") from None
    if epochs < hparams.epochs:
        raise UserError(
            f"{folder}: unfinished, {epochs} of {hparams.epochs} epochs; resume it with train.py "
            f"-o {folder} --resume"
        )
    return hparams, threads, epochs


# ---------------------------------------------------------------------------- the program


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, from_two = parser.add_argument, whole_number(2)
    add("lengths", nargs="?", type=Path, help="default: distributed as LJSpeech's")
    add("--symbols", type=Path, metavar="METADATA.csv", help="lines of id|text, to count symbols")
    add("--clips", type=from_two, default=10480, help="synthetic ones; default %(default)s")
    shown = "names as RAND,SSB-DBS-BR (default), or settings as batching_strategy=bucket,..."
    add("--batchings", nargs="+", default=["RAND", "SSB-DBS-BR"], metavar="BATCHING", help=shown)
    shown = "default: 2 (GPU: 2,4,8) x the first"
    add("--capacities", type=whole_numbers(1), metavar="25824,51648", help=shown)
    add("--precision", type=precision_list, metavar="fp32,bf16", help="default: that of --hparams")
    add("--decoder", choices=(*DECODERS, "both"), default="fast")
    add("--runs", type=Path, nargs="+", metavar="DIR", help=f"write {RUN_MINUTES} into their runs")
    add("--batches", type=from_two, help="updates drawn a plan; default 6, on a GPU 12, --runs 20")
    add("--repeats", type=at_least_one, help="timed steps on each; default 1, on a GPU, --runs 3")
    add("--seed", type=whole_number(0), default=0, help="of plans and samples")
    add("--shapes", action="store_true", help="only print what the plans are")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add_device_option(parser)
    add_json_option(parser)
    args = parser.parse_args(arguments)
    steady = bool(args.runs) or args.device.type == "cuda"
    args.batches = args.batches or (20 if args.runs else 12 if steady else 6)
    args.repeats = args.repeats or (3 if steady else 1)
    if args.symbols and not args.lengths:
        parser.error("--symbols METADATA.csv: name the lengths of its clips too")
    if args.decoder != "reference" and not (args.shapes or args.runs or fast_path.IS_HERE):
        parser.error(f"--decoder {args.decoder}: {fast_path.MISSING}; use --decoder reference")
    named = [text.split(",") if "=" not in text else [text] for text in args.batchings]
    args.batchings = list(itertools.chain.from_iterable(named))
    return args


def measuring(args: argparse.Namespace) -> dict:
    return {"batches": args.batches, "repeats": args.repeats, "seed": args.seed}


def corpus(args: argparse.Namespace, hparams: HParams) -> tuple[CorpusLengths, str]:
    """The clips, and what they are, in a phrase."""
    if args.lengths is None:
        clips = synthetic_lengths(args.clips, hparams, args.seed)
        return clips, f"synthetic lengths of {args.clips:,} clips, distributed as LJSpeech's"
    clips, sets = read_lengths(args.lengths, hparams), read_split(SPLIT_FILE)
    if all(name in sets for name in clips.ids):
        chosen = np.flatnonzero([sets[name] == "train" for name in clips.ids])
        if not len(chosen):
            raise UserError(f"{args.lengths}: none of its clips is marked train in {SPLIT_FILE}")
        clips = clips.take(chosen)
    clips, symbols = with_symbols(clips, hparams, args.symbols)
    return clips, f"{len(clips):,} clips of {args.lengths.name}, {symbols}"


def run(args: argparse.Namespace, processes: Processes) -> None:
    hparams = replace(create_hparams(args.hparams, create_hparams(PAPER)), seed=args.seed)
    clips, source = corpus(args, hparams)
    first = hparams.batch_size * int(clips.frames.max())
    times = (2, 4, 8) if args.device.type == "cuda" else (2,)
    more = [k * first for k in times] if args.capacities is None else args.capacities
    plans = make_plans(clips, hparams, args.batchings, [first, *more])
    described = [
        {"batching": p.name, "capacity": p.capacity, "updates": len(p.updates)} | asdict(p.stats)
        for p in plans
    ]
    measured = measured_on(args.device)
    if processes.is_first:
        print(f"{measured['device']}, torch {measured['versions']['torch']}, {source}")
        print(f"\n{markdown(PLAN_COLUMNS, described)}\n")
    if args.shapes:
        return
    decoders, rows = list(DECODERS) if args.decoder == "both" else [args.decoder], []
    for precision in args.precision or [hparams.precision]:
        h = replace(hparams, precision=precision, decoder=decoders[0])
        trainer = Trainer(h, args.device, processes)
        found = time_plans(trainer, decoders, clips, plans, **measuring(args))
        rows += result_rows(plans, found, clips, precision)
        used = trainer.decoder_description
        del trainer  # its memory is the next one's
    if not processes.is_first:
        return
    print(f"decoder: {used}; {processes.world_size} process{'es' * (processes.world_size > 1)}")
    print(f"\n{markdown(TIME_COLUMNS, rows)}")
    if args.json:
        result = {**measured, "processes": processes.world_size, "clips": source, "decoder": used}
        write_json(args.json, result | measuring(args) | {"hparams": asdict(hparams), "rows": rows})
        print(f"\nwrote {args.json}")


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    processes = join(seconds=600)
    if processes.world_size > 1:
        args.device = processes.device
    try:
        time_runs(args, processes) if args.runs else run(args, processes)
    except (UserError, BatchingError, OSError) as error:
        sys.exit(f"epoch.py: {error}" if processes.is_first else 1)
    except KeyboardInterrupt:
        sys.exit("epoch.py: stopped; nothing was written")


if __name__ == "__main__":
    main()
