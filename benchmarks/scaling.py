"""How training scales with processes: modelled for up to 1,024 of them, and measured here.

    python benchmarks/scaling.py -o FOLDER                           # the model, published costs
    python benchmarks/scaling.py lengths.csv --symbols metadata.csv --cost COSTS.json -o FOLDER
    python benchmarks/scaling.py --measure --json measured.json      # on this machine
    python benchmarks/scaling.py lengths.csv --measured measured.json -o FOLDER   # side by side

The model (analysis/scaling.py) takes what a training step of a batch costs, from a file of
benchmarks/step_cost.py or else from the minutes that Ge et al. report, the real batches and updates
of an epoch under every strategy, and a stated cost of adding up the gradients: a ring over links of
--bandwidth, --latency for each of its steps, none of it hidden behind the backward pass unless
--overlapped says so. The corpora are a file of lengths (default: 13,100 lengths made up like
LJSpeech's) and --clips more that are made up in the same way. FOLDER gets scaling.md, scaling.json
and efficiency.svg and .png.

--measure trains the same updates, on noise of LJSpeech's lengths, in 1 process and in several that
torchrun starts, one thread each, in turns. An update has as many batches as the most processes.
On CPUs it is the small model of scripts/small_model.txt, on GPUs the full one. The other settings
are the paper's (batch size 16, 12.5 ms between frames) unless --hparams changes them. No data is
read.
"""

from project_root import ROOT

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from analysis.arguments import (
    add_json_option,
    at_least_one,
    make_parser,
    positive,
    share,
    whole_number,
    whole_numbers,
)
from analysis.clips import Clips, clips_of_lengths_file, noise, noise_batch, synthetic_clips
from analysis.figures import write_figure
from analysis.scaling import (
    DEFAULT_BANDWIDTH,
    DEFAULT_LATENCY,
    PAPER,
    MeasuredScaling,
    Reduction,
    ScalingCurve,
    ScalingMeasurement,
    every_batching,
    faster,
    modelled_speed_up,
    published_costs,
    read_measurement,
    scaling_curve,
)
from analysis.scaling_figure import draw_efficiency
from analysis.step_costs import read_costs
from analysis.tables import markdown_table
from batching import BatchingError, LengthBatchSampler
from data_utils import synthetic_batch
from errors import UserError
from files import write_atomically, write_json
from hparams import HParams, batching_options, create_hparams, hparams_from_dict
from progress import progress_bar
from training.distributed import Processes, ReductionClock, join
from training.machine import describe_environment, measured_on, seconds_of, synchronize
from training.trainer import LossWeights, MicroBatch, Trainer
from training.epoch import Update, next_update

PROGRAM = "scaling.py"
SMALL_MODEL = f"@{ROOT / 'scripts' / 'small_model.txt'}"
MODELLED = [2**i for i in range(11)]
MADE_UP, LJSPEECH_CLIPS = 10_000_000, 13_100
REDUCTIONS_TIMED = 5
TIMEOUT = 300  # seconds that a process waits for the others


# ---------------------------------------------------------------------------- one process


@contextlib.contextmanager
def counted_reductions() -> Iterator[list[torch.Tensor]]:
    """Inside it, what is added up over all processes is kept in the list."""
    found, add_up = [], dist.all_reduce

    def count(tensor, *args, **options):
        found.append(tensor)
        return add_up(tensor, *args, **options)

    dist.all_reduce = count
    try:
        yield found
    finally:
        dist.all_reduce = add_up


def first_updates(sampler: LengthBatchSampler, count: int, frames_per_step: int) -> list[Update]:
    found, position = [], 0
    while len(found) < count:
        update = next_update(sampler, position, frames_per_step)
        if update is None:
            raise UserError(f"the epoch has {len(found)} updates of {count}; give more --clips")
        found.append(update)
        position = update.end
    return found


def parts_of_noise(
    update: Update, sampler: LengthBatchSampler, clips: Clips, hparams: HParams, pinned: bool
) -> list[MicroBatch]:
    """This process's batches of an update."""
    mel = noise(int(clips.frames.max()), hparams)
    return [
        MicroBatch(
            noise_batch(clips, sampler.clips_of(update.numbers[i]), mel, hparams, pinned),
            update.weights[i],
            seed=update.numbers[i],
        )
        for i in range(sampler.rank, len(update.numbers), sampler.world_size)
    ]


def train_updates(job: dict, processes: Processes) -> dict | None:
    """Train the job's updates, each timed; what happened in all processes, in the first one."""
    hparams = hparams_from_dict(job["hparams"])
    device = processes.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clips = Clips(np.array(job["frames"]), np.array(job["symbols"]), "")
    sampler = LengthBatchSampler(
        clips.frames,
        batches_per_update=hparams.batches_per_update,
        rank=processes.rank,
        world_size=processes.world_size,
        **batching_options(hparams),
    )
    updates = first_updates(sampler, job["updates"], hparams.n_frames_per_step)
    trainer = Trainer(hparams, device, processes)
    pinned = device.type == "cuda"
    work = [parts_of_noise(update, sampler, clips, hparams, pinned) for update in updates]
    # The first update twice before any counts: DDP lays out its buckets anew after one, and a GPU
    # compiles and captures.
    for _ in range(2):
        trainer.step(work[0], num_batches=len(updates[0].numbers))
    times, waited = [], 0.0
    with counted_reductions() as reduced:
        for update, parts in zip(updates, work, strict=True):
            processes.gather(None)  # all start together
            reduced.clear()
            synchronize(device)
            began = time.perf_counter()
            losses = trainer.step(parts, num_batches=len(update.numbers))
            synchronize(device)
            times.append(time.perf_counter() - began)
            waited += losses.waited() if losses.waited else 0.0
    alone = [time_reduction(reduced, processes, device) for _ in range(REDUCTIONS_TIMED)]
    waits = processes.gather(waited)
    return {
        "processes": processes.world_size,
        "seconds": times,
        "waited_seconds": sum(waits) / len(waits),
        "imbalances": [update.imbalance(processes.world_size) for update in updates],
        "frames": sum(update.frames for update in updates),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in reduced),
        "calls": len(reduced),
        "reduction_seconds": statistics.median(alone),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "environment": describe_environment(device),
        **measured_on(device),
    }


def time_reduction(
    tensors: list[torch.Tensor], processes: Processes, device: torch.device
) -> float:
    """Seconds to add up as much as an update does while nothing else goes on."""
    processes.gather(None)
    zeros = [torch.zeros_like(tensor) for tensor in tensors]

    def add_up() -> None:
        for going_on in [dist.all_reduce(tensor, async_op=True) for tensor in zeros]:
            going_on.wait()

    return seconds_of(device, add_up)


def work(job_file: Path) -> None:
    """What torchrun starts: one of the job's processes."""
    job = json.loads(job_file.read_text(encoding="utf-8"))
    processes = join(TIMEOUT)
    result = train_updates(job, processes)
    if processes.is_first:
        write_json(job_file.with_name("result.json"), result)
    if processes.world_size > 1:
        dist.destroy_process_group()


# ---------------------------------------------------------------------------- measuring


def start_processes(count: int, job: dict) -> dict:
    """The result of the job in `count` processes.

    Raises:
        UserError: with what they printed last, if one fails.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        job_file = Path(folder) / "job.json"
        write_json(job_file, job)
        command = [sys.executable, *launcher, __file__, "--worker", str(job_file)]
        environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        ended = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            last = "\n".join(ended.stderr.splitlines()[-15:])
            raise UserError(f"training in {count} processes failed:\n{last}")
        return json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


def measure(args: argparse.Namespace) -> ScalingMeasurement:
    """Every round in every number of processes, and what follows from them."""
    hparams = create_hparams(PAPER)
    if not torch.cuda.is_available():
        hparams = create_hparams(SMALL_MODEL, hparams)
    hparams = create_hparams(args.hparams, hparams)
    hparams = replace(hparams, batches_per_update=max(args.processes))
    clips = chosen_clips(args, hparams, args.clips or LJSPEECH_CLIPS)
    job = {
        "hparams": asdict(hparams),
        "frames": clips.frames.tolist(),
        "symbols": clips.symbols.tolist(),
        "updates": args.updates,
    }
    found = {count: [] for count in args.processes}
    with progress_bar("measuring", args.rounds * len(found), " runs") as bar:
        for _ in range(args.rounds):
            for count, results in found.items():
                results.append(start_processes(count, job))
                bar.update()
    first = found[1][0]
    return ScalingMeasurement(
        **{name: first[name] for name in ("device", "versions", "date", "environment")},
        clips=clips.source,
        updates=args.updates,
        batches_per_update=hparams.batches_per_update,
        rounds=args.rounds,
        parameters=first["parameters"],
        hparams=asdict(hparams),
        rows=measured_rows(found),
    )


def measured_rows(found: dict[int, list[dict]]) -> list[MeasuredScaling]:
    """A row for each number of processes, from what `train_updates` gave, round after round."""
    alone = found[1]
    seconds_alone = np.median([result["seconds"] for result in alone], axis=0).tolist()
    rows = []
    for processes, results in found.items():
        times = [sum(result["seconds"]) for result in results]
        ratios = [sum(base["seconds"]) / t for base, t in zip(alone, times, strict=True)]
        waits = [result["waited_seconds"] / t for result, t in zip(results, times, strict=True)]
        reduction = statistics.median(result["reduction_seconds"] for result in results)
        imbalances = results[0]["imbalances"]
        modelled = modelled_speed_up(seconds_alone, imbalances, processes, reduction)
        row = MeasuredScaling(
            processes,
            frames_per_second=statistics.median(results[0]["frames"] / t for t in times),
            speed_up=statistics.median(ratios),
            speed_up_range=[min(ratios), max(ratios)],
            modelled_speed_up=modelled,
            step_imbalance=statistics.fmean(imbalances),
            waited_share=statistics.median(waits),
            reduction_seconds=reduction,
            bytes_per_update=results[0]["bytes"],
            calls_per_update=results[0]["calls"],
            seconds=[result["seconds"] for result in results],
        )
        rows.append(row)
    return rows


def measured_text(found: ScalingMeasurement) -> str:
    """What was measured, in a paragraph and a table in Markdown."""
    titles = ["processes", "real frames/s", "speed-up", "modelled", "step imbalance"]
    titles += ["waited for others", "bytes an update", "calls an update", "reduction alone"]
    cells = [
        [
            str(row.processes),
            f"{row.frames_per_second:,.0f}",
            "{:.2f} ({:.2f} to {:.2f})".format(row.speed_up, *row.speed_up_range),
            f"{row.modelled_speed_up:.2f}",
            f"{row.step_imbalance:.4f}",
            f"{row.waited_share:.1%}",
            f"{row.bytes_per_update:,}",
            str(row.calls_per_update),
            f"{1000 * row.reduction_seconds:.1f} ms",
        ]
        for row in found.rows
    ]
    return (
        f"{found.device}, torch {found.versions['torch']}, {found.date}: "
        f"{found.parameters:,} parameters, {found.updates} updates of "
        f"{found.batches_per_update} batches, medians of {found.rounds} rounds in turns; "
        f"{found.clips}.\n\n"
        + markdown_table(titles, cells, labels=0)
        + "\n\nModelled: the updates' times in one process, the imbalance of their batches, and "
        "the reduction timed alone."
    )


# ---------------------------------------------------------------------------- modelling


def reductions_of(hparams: HParams) -> tuple[int, int]:
    """Bytes and calls of an update: those of a real one in one process that is told it has another.
    A process group of one adds nothing up, but is asked for the same sums."""
    device = torch.device("cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        processes = Processes(0, 2, device, ReductionClock(device))
        trainer = Trainer(hparams, device, processes)
        part = MicroBatch(synthetic_batch(2, 2, 2, hparams), LossWeights(0.5, 0.5, 0.5))
        for _ in range(2):  # DDP lays out its buckets anew after the first
            with counted_reductions() as reduced:
                trainer.step([part], num_batches=2)
        sizes = [tensor.numel() * tensor.element_size() for tensor in reduced]
    finally:
        dist.destroy_process_group()
    return sum(sizes), len(sizes)


def chosen_clips(args: argparse.Namespace, hparams: HParams, made_up: int) -> Clips:
    if args.lengths is None:
        return synthetic_clips(made_up, hparams, args.seed)
    return clips_of_lengths_file(args.lengths, hparams, args.symbols)


def model(args: argparse.Namespace) -> tuple[dict[str, list[ScalingCurve]], list[str], dict]:
    """The curves of each corpus, what was assumed in sentences, and the same as numbers."""
    hparams = create_hparams(args.hparams, create_hparams(PAPER))
    costs = read_costs(args.cost) if args.cost else published_costs()
    size, calls = reductions_of(hparams)
    reduction = Reduction(size, calls, 1e9 * args.bandwidth, 1e-6 * args.latency, args.overlapped)
    corpora = [chosen_clips(args, hparams, LJSPEECH_CLIPS)]
    corpora.append(synthetic_clips(args.clips or MADE_UP, hparams, args.seed + 1))
    batchings = every_batching(hparams)
    curves = {}
    with progress_bar("modelling", len(corpora) * len(batchings), " batchings") as bar:
        for clips in corpora:
            found = curves[clips.source] = []
            for batching in batchings:
                found.append(
                    scaling_curve(
                        clips, batching, faster(costs, args.faster), reduction, args.processes
                    )
                )
                bar.update()
    quicker = f", every step taken to be {args.faster:g} times as fast" if args.faster != 1 else ""
    sentences = [
        f"Steps cost what is {costs.description}{quicker}.",
        f"An update adds up {size:,} bytes in {calls} calls, as counted; the model has a ring with "
        f"{args.bandwidth:g} GB/s a process and {args.latency:g} µs a step, {args.overlapped:.0%} "
        "of it hidden behind the backward pass.",
        "Speed-up is over one process with one batch an update. With W processes an update has W "
        "batches, so an epoch has W times fewer updates, which is another training.",
    ]
    assumed = {
        "costs": asdict(costs),
        "faster": args.faster,
        "reduction": asdict(reduction),
        "hparams": asdict(hparams),
    }
    return curves, sentences, assumed


QUANTITIES = {  # title: a cell of the curve at a point
    "Efficiency (speed-up over processes)": lambda c, p: f"{c.efficiency(p):.1%}",
    "Efficiency if an update took the next batches of the plan": lambda c, p: (
        f"{c.alone / p.seconds_in_plan_order / p.processes:.1%}"
    ),
    "Speed-up": lambda c, p: f"{c.speed_up(p):,.2f}",
    "Step imbalance (most padded frames of a process over the mean)": lambda c, p: (
        f"{p.imbalance:.4f}"
    ),
    "Minutes of an epoch": lambda c, p: f"{p.seconds / 60:,.3g}",
    "Updates of an epoch": lambda c, p: f"{p.updates:,}",
}


def report(
    curves: dict[str, list[ScalingCurve]],
    sentences: list[str],
    measured: ScalingMeasurement | None,
) -> str:
    """Markdown."""
    parts = ["# Scaling with processes", *sentences]
    for source, found in curves.items():
        parts.append(f"## Modelled: {source}")
        counts = [f"{point.processes:,}" for point in found[0].points]
        for title, cell in QUANTITIES.items():
            rows = [[c.name, *(cell(c, point) for point in c.points)] for c in found]
            parts += [f"{title}, by processes:", markdown_table(["", *counts], rows)]
    if measured:
        parts += ["## Measured", measured_text(measured)]
    return "\n\n".join(parts) + "\n"


def as_numbers(curve: ScalingCurve) -> dict:
    return curve._asdict() | {
        "points": [
            point._asdict()
            | {"speed_up": curve.speed_up(point), "efficiency": curve.efficiency(point)}
            for point in curve.points
        ]
    }


def write_report(args: argparse.Namespace) -> None:
    """The model's tables, numbers and picture into the folder that -o names."""
    measured = read_measurement(args.measured) if args.measured else None
    curves, sentences, assumed = model(args)
    text = report(curves, sentences, measured)
    print(f"\n{text}")
    folder = args.output
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "scaling.md", lambda file: file.write_text(text, encoding="utf-8"))
    corpora = {source: [as_numbers(curve) for curve in found] for source, found in curves.items()}
    result = {"date": datetime.date.today().isoformat(), **assumed, "corpora": corpora}
    write_json(folder / "scaling.json", result)
    write_figure(draw_efficiency(curves, measured.rows if measured else ()), folder / "efficiency")
    print(f"wrote scaling.md, scaling.json, efficiency.svg and efficiency.png in {folder}")


# ---------------------------------------------------------------------------- the program


def measurable_processes() -> list[int]:
    """1, 2, 4 and 8, as far as there are GPUs, or else cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    most = torch.cuda.device_count() if torch.cuda.is_available() else cores
    return [count for count in (1, 2, 4, 8) if count <= most]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("lengths", nargs="?", type=Path, help="default: lengths like LJSpeech's, made up")
    add("--symbols", type=Path, metavar="METADATA.csv", help="lines of id|text, to count symbols")
    add("-o", "--output", type=Path, metavar="FOLDER", help="of the model's tables and picture")
    add("--cost", type=Path, metavar="COSTS.json", help="of benchmarks/step_cost.py")
    shown = "steps this many times as fast as the costs say; default 1"
    add("--faster", type=positive, default=1.0, help=shown)
    shown = "of every process, in GB/s; default %(default)g, a link of 100 Gb/s"
    add("--bandwidth", type=positive, default=DEFAULT_BANDWIDTH / 1e9, help=shown)
    shown = "of a step of the ring, in µs; default %(default)g, NCCL's estimate for a network"
    add("--latency", type=positive, default=DEFAULT_LATENCY * 1e6, help=shown)
    shown = "share of the reduction hidden behind the backward pass; default 0"
    add("--overlapped", type=share, default=0.0, help=shown)
    add("--measured", type=Path, metavar="FILE.json", help="what --measure found, to stand beside")
    add("--measure", action="store_true", help="train in several processes here")
    add_json_option(parser)
    shown = "default: 1 to 1,024; with --measure 1,2,4,8 as far as there are GPUs or cores"
    add("--processes", type=whole_numbers(1), metavar="1,2", help=shown)
    add("--updates", type=at_least_one, default=10, help="that --measure trains; default 10")
    add("--rounds", type=at_least_one, default=5, help="of --measure, for medians; default 5")
    shown = f"to make up; default {MADE_UP:,}, with --measure {LJSPEECH_CLIPS:,}"
    add("--clips", type=at_least_one, help=shown)
    add("--seed", type=whole_number(0), default=0, help="of made-up lengths")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add("--worker", type=Path, help=argparse.SUPPRESS)  # what torchrun starts
    args = parser.parse_args(arguments)
    if args.worker:
        return args
    if args.symbols and not args.lengths:
        parser.error("--symbols METADATA.csv: name the lengths of its clips too")
    if args.measure == (args.output is not None):
        parser.error("give either -o FOLDER, for the model, or --measure")
    args.processes = args.processes or (measurable_processes() if args.measure else MODELLED)
    if args.measure and (
        1 not in args.processes or any(max(args.processes) % n for n in args.processes)
    ):
        parser.error("--measure --processes: expected 1 and divisors of the largest, as in 1,2,4")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if args.worker:
        work(args.worker)
        return
    try:
        if not args.measure:
            write_report(args)
            return
        found = measure(args)
        print(f"\n{measured_text(found)}")
        if args.json:
            write_json(args.json, asdict(found))
            print(f"\nwrote {args.json}")
    except (UserError, BatchingError, OSError) as error:  # of the disk that is written to
        sys.exit(f"{PROGRAM}: {error}")
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
