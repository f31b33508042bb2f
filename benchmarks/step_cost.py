"""Measure what a training step costs on this machine, and fit the model of analysis/step_costs.py.

    python benchmarks/step_cost.py -o costs.json --hparams batch_size=16,win_time=50,hop_time=12.5
    python scripts/compare_batching.py FILELIST --cost costs.json --recommend
    python benchmarks/step_cost.py --check costs.json runs/rand runs/ssb_dbs_br

Give --hparams as train.py will get them, and as many threads (OMP_NUM_THREADS). A step is the whole
of train.py's: forward, loss, backward, clipping, Adam, on made-up clips. It is timed over a grid of
batch sizes, mel lengths and text lengths, up to the padded frames that a batch may hold.

--check compares finished runs with their prediction: for every epoch the sum over its batches
beside the minutes it took without waiting for data, which is the loader's and not the model's.
"""

import project_root

import argparse
import datetime
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from analysis import ljspeech
from analysis.arguments import (
    add_device_option,
    at_least_one,
    make_parser,
    output_file,
    positive,
    whole_number,
    whole_numbers,
)
from analysis.lengths import ClipLengths, read_run_lengths
from analysis.metrics import EpochRecord, read_metrics
from analysis.step_costs import MeasuredStep, StepCosts, check_shapes, fit, read_costs, write_costs
from analysis.survey import batch_shapes
from analysis.tables import text_table
from audio import frame_count
from batching import LengthBatchSampler
from data_utils import Batch, TextMelCollate
from errors import UserError
from hparams import HParams, batching_options, create_hparams, hparams_from_dict
from progress import duration, progress_bar
from training.machine import (
    describe_environment,
    is_out_of_memory,
    peak_memory,
    proc_bytes,
    reset_peak_memory,
    seconds_of,
)
from training.trainer import MicroBatch, Trainer

PROGRAM = "step_cost.py"
# Around all of LJSpeech's clips, and its texts of 12 to 187 characters.
SECONDS_OF_CLIPS = (ljspeech.SHORTEST - 0.1, 2.5, 5.0, ljspeech.LONGEST + 0.1)
SYMBOLS = (10, 80, 200)
SHORTEST_SHARE = 0.75  # a clip's least share of its batch's longest: batches are never all alike
HELD_OUT_SHARE = 0.2
MOST_MEMORY = 0.9  # of what is free: with no more left the system kills processes
Shape = tuple[int, int, int]  # clips, padded frames, padded symbols


# ---------------------------------------------------------------------------- the grid


def make_grid(args: argparse.Namespace, hparams: HParams) -> list[Shape]:
    """Every batch size with every length of mel and text, as far as the capacity allows.

    The default batch sizes hold what the capacity allows at each length, so that all batches of
    clips between the shortest and the longest length lie inside the measured range.
    """
    frames = args.frames or [
        frame_count(round(s * hparams.sampling_rate), hparams) for s in SECONDS_OF_CLIPS
    ]
    capacity = args.capacity or hparams.batch_capacity or hparams.batch_size * max(frames)
    few = {1, -(-hparams.batch_size // 4)}
    sizes = args.batch_sizes or few | {max(capacity // length, 1) for length in frames}
    sizes, frames, symbols = (sorted(set(x)) for x in (sizes, frames, args.symbols or SYMBOLS))
    grid = [(b, t, n) for b in sizes for t in frames for n in symbols if b * t <= capacity]
    left_out = len(sizes) * len(frames) * len(symbols) - len(grid)
    print(
        f"{len(grid)} batch shapes: {listed(sizes)} clips of {listed(frames)} frames and "
        f"{listed(symbols)} symbols"
        + (f", without the {left_out} over {capacity:,} padded frames" if left_out else "")
    )
    check_shapes(*columns(grid), hparams.n_frames_per_step)
    # From small to large: attention's part of a step grows with the symbols, the rest does not.
    return sorted(grid, key=lambda shape: (shape[0] * shape[1] * (100 + shape[2]), shape))


def columns(shapes: list[Shape]) -> np.ndarray:
    """Clips, frames and symbols as three arrays."""
    return np.array(shapes).reshape(-1, 3).T


def listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in sorted(numbers))


def hold_out(measured: list[MeasuredStep], seed: int) -> list[MeasuredStep]:
    """Mark some measurements as held out: chosen by `seed` among those that lie between two others
    of the same line of the grid, so that what is fitted still surrounds them."""
    shapes = {(m.clips, m.frames, m.symbols) for m in measured}

    def between(shape: Shape) -> bool:
        for axis in range(3):
            others = shape[:axis] + shape[axis + 1 :]
            line = [s[axis] for s in shapes if s[:axis] + s[axis + 1 :] == others]
            if min(line) < shape[axis] < max(line):
                return True
        return False

    candidates = [i for i, m in enumerate(measured) if between((m.clips, m.frames, m.symbols))]
    count = min(round(HELD_OUT_SHARE * len(measured)), len(candidates))
    chosen = set(np.random.default_rng(seed).permutation(candidates)[:count].tolist())
    return [replace(m, held_out=i in chosen) for i, m in enumerate(measured)]


# ---------------------------------------------------------------------------- made-up clips


def make_batch(shape: Shape, hparams: HParams, rng: np.random.Generator, pinned: bool) -> Batch:
    """Random clips: one of the full length, one with the full text, the others somewhat shorter."""
    clips, frames, symbols = shape
    items = []
    for i in range(clips):
        length = frames if i == 0 else vary(frames, rng)
        text_length = symbols if i == clips - 1 else vary(symbols, rng)
        text = rng.integers(1, hparams.n_symbols, text_length)
        mel = rng.standard_normal((hparams.n_mel_channels, length), dtype=np.float32)
        items.append((torch.from_numpy(text), torch.from_numpy(mel)))
    batch = TextMelCollate(hparams.n_frames_per_step)(items)
    return batch.pin_memory() if pinned else batch


def vary(longest: int, rng: np.random.Generator) -> int:
    return int(rng.integers(max(1, round(SHORTEST_SHARE * longest)), longest + 1))


# ---------------------------------------------------------------------------- measuring


@dataclass
class GridTimes:
    """What has been measured so far. Memory is measured in a shape's first step, which therefore
    begins with none at hand and takes some per cent longer; it is timed in the others."""

    first_seconds: dict[Shape, float] = field(default_factory=dict)
    bytes: dict[Shape, int | None] = field(default_factory=dict)
    seconds: dict[Shape, list[float]] = field(default_factory=dict)
    skipped: dict[Shape, str] = field(default_factory=dict)  # shape: why

    def try_shape(self, trainer: Trainer, shape: Shape, batch: Batch) -> None:
        """Measure one step more, unless memory does not suffice."""
        if needs_too_much_ram(shape, self, trainer):
            self.skipped[shape] = "more than the free memory"
            return
        try:
            if shape in self.first_seconds:
                self.seconds.setdefault(shape, []).append(
                    seconds_of(trainer.device, trainer.step, [MicroBatch(batch)])
                )
            else:
                measurable = reset_peak_memory(trainer.device)
                seconds = seconds_of(trainer.device, trainer.step, [MicroBatch(batch)])
                self.bytes[shape] = peak_memory(trainer.device) if measurable else None
                self.first_seconds[shape] = seconds
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Out here the exception no longer keeps the step's tensors alive.
        trainer.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        if shape not in self.first_seconds:
            self.skipped[shape] = "more than the GPU's memory"

    def measurements(self) -> list[MeasuredStep]:
        """Medians of the times; a first time counts only where there is no other."""
        times = {shape: self.seconds.get(shape, []) for shape in self.first_seconds}
        return [
            MeasuredStep(
                *shape,
                seconds=statistics.median(times[shape] or [first]),
                bytes=self.bytes[shape],
                repeats=len(times[shape]),
            )
            for shape, first in self.first_seconds.items()
        ]


def measure_grid(trainer: Trainer, grid: list[Shape], args: argparse.Namespace) -> GridTimes:
    """Measure the grid: once from small to large, then in shuffled rounds until time is up."""
    found, rng = GridTimes(), np.random.default_rng(args.seed)
    deadline = time.monotonic() + 60 * args.minutes
    pinned = trainer.device.type == "cuda"
    # What loads or is taken once, Adam's moments among it, is there before anything counts.
    trainer.step([MicroBatch(make_batch(grid[0], trainer.hparams, rng, pinned))])
    shapes = grid
    with progress_bar("measuring", len(grid) * (1 + args.repeats), " steps") as bar:
        for _ in range(1 + args.repeats):
            for shape in shapes:
                if time.monotonic() > deadline:
                    reached = found.bytes.keys() | found.skipped.keys()
                    why = f"not reached in {args.minutes:g} minutes"
                    found.skipped |= {missed: why for missed in grid if missed not in reached}
                    return found
                found.try_shape(trainer, shape, make_batch(shape, trainer.hparams, rng, pinned))
                bar.update()
            shapes = [grid[i] for i in rng.permutation(len(grid)) if grid[i] in found.bytes]
    return found


def needs_too_much_ram(shape: Shape, found: GridTimes, trainer: Trainer) -> bool:
    """Whether a step would take more than the free memory, judged by the steps measured so far.

    A GPU says so itself; without this, a CPU's system would kill the process instead.
    """
    free = proc_bytes("/proc/meminfo", "MemAvailable:")
    if trainer.device.type == "cuda" or shape in found.bytes or free is None:
        return False
    try:
        costs = fit(found.measurements(), asdict(trainer.hparams), {}, "")
        needed = float(costs.bytes(*shape))
    except UserError:  # too little is known yet, and what comes first is small
        return False
    return needed > proc_bytes("/proc/self/status", "VmRSS:") + MOST_MEMORY * free


def measure(args: argparse.Namespace) -> None:
    """Measure, fit, print how good the fit is, and write the file."""
    hparams = create_hparams(args.hparams)
    grid = make_grid(args, hparams)
    trainer = Trainer(hparams, args.device)
    environment = describe_environment(args.device)
    machine = environment["machine"] | environment["versions"]
    description = (
        f"{machine['device']} ({machine['processor']}, {machine['cores']} cores, "
        f"threads: {machine['threads']}), {hparams.precision}, torch {machine['torch']}, "
        f"{datetime.date.today().isoformat()}"
    )
    print(f"on {description}\nat most {args.repeats} repeats, within {args.minutes:g} minutes")
    found = measure_grid(trainer, grid, args)
    measured = hold_out(found.measurements(), args.seed)
    for shape, why in found.skipped.items():
        print("skipped: {:,} clips of {:,} frames and {:,} symbols: ".format(*shape) + why)
    if found.skipped:
        print("predictions for batches as large as those are extrapolated")
    settings = json.loads(json.dumps(asdict(hparams)))  # as they will be read back
    try:
        costs = fit(measured, settings, machine, description)
    except UserError as error:
        raise UserError(f"{error}; here too little was measured: raise --minutes") from None
    repeats = [m.repeats for m in measured]
    if min(repeats) < args.repeats:
        print(
            f"{min(repeats)} to {max(repeats)} of {args.repeats} repeats fitted into the time"
            + ("; shapes without any keep their first step's time" if min(repeats) == 0 else "")
        )
    print(costs.formula())
    print_errors(costs)
    write_costs(costs, args.output)
    print(
        f"wrote {args.output}\n"
        f"use it: python scripts/compare_batching.py FILELIST --cost {args.output} --recommend"
    )


def print_errors(costs: StepCosts) -> None:
    """The relative errors on the points that were not fitted."""
    errors = costs.held_out_errors
    for name, what in (("seconds", "time"), ("bytes", "memory")):
        if name == "bytes" and costs.bytes_per_term is None:
            print(
                "memory: not measured; this system has no /proc to read the peak of a process from"
            )
        elif errors[name] is None:
            print(f"{what}: error unknown, for no batch shape lies between others of the grid")
        else:
            print(
                f"{what}: on {errors['points']} held-out batch shapes the prediction is wrong by "
                f"{errors[name]['median']:.1%} (median), {errors[name]['largest']:.1%} (most)"
            )


# ---------------------------------------------------------------------------- checking a run


def check(costs: StepCosts, directory: Path) -> list[float]:
    """Print measured beside predicted minutes of a run's epochs; returns the relative errors."""
    metrics = read_metrics(directory)
    if not metrics.epochs:
        raise UserError(f"{metrics.path}: no finished epoch in it; train at least one, then check")
    run = metrics.runs[0]
    print(f"{directory}:")
    differing = costs.differing(run.hparams)
    differing += [
        f"{name}={value}, measured with {costs.machine.get(name, 'unknown')}"
        for name, value in (run.machine | run.versions).items()
        if costs.machine.get(name) != value
    ]
    for line in differing:
        print(f"  warning: not what the costs were measured on: {line}")
    rows, errors = [], []
    for record in metrics.records:
        if record.kind == "run":
            hparams = hparams_from_dict(record.hparams)
            lengths = read_run_lengths(directory, hparams)
        elif record.kind == "epoch":
            shapes = epoch_shapes(lengths, hparams, record.epoch)
            if len(shapes[0]) != record.num_batches:
                raise UserError(
                    f"{directory}: epoch {record.epoch} had {record.num_batches} batches, but its "
                    f"settings now plan {len(shapes[0])}: the run is of another version of this "
                    "recipe"
                )
            row, error = compare_epoch(costs, record, shapes)
            rows.append(row)
            errors.append(error)
    titles = ["epoch", "batches", "predicted s", "measured s", "waiting s", "error"]
    print(text_table([*titles, "peak memory (predicted)"], rows, labels=0))
    return errors


def compare_epoch(costs: StepCosts, record: EpochRecord, shapes: tuple) -> tuple[list[str], float]:
    """A row of the table, and predicted / measured - 1."""
    predicted = float(costs.seconds(*shapes).sum())
    measured = 60 * record.minutes - record.data_wait_seconds
    error = predicted / measured - 1
    memory = f"{record.peak_memory_bytes / 1e9:.2f} GB"
    if costs.bytes_per_term is not None:
        memory += f" ({costs.bytes(*shapes).max() / 1e9:.2f} GB)"
    times = [f"{seconds:,.1f}" for seconds in (predicted, measured, record.data_wait_seconds)]
    return [f"{record.epoch}", f"{record.num_batches:,}", *times, f"{error:+.1%}", memory], error


def epoch_shapes(
    lengths: ClipLengths, hparams: HParams, epoch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`batch_shapes` of a run's epoch, counted from 1."""
    number = epoch - 1 if hparams.prepare_trainset_per_epoch else 0
    sampler = LengthBatchSampler(
        lengths.frames,
        random_epochs=hparams.random_epochs,
        batches_per_update=hparams.batches_per_update,
        **batching_options(hparams),
    )
    sampler.set_epoch(number)
    return batch_shapes(sampler.plan, lengths.frames, lengths.symbols)


# ---------------------------------------------------------------------------- the program


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, numbers = parser.add_argument, whole_numbers(1)
    add("-o", "--output", type=output_file, metavar="COSTS.json", help="where to write the costs")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add_device_option(parser)
    add("--batch-sizes", type=numbers, metavar="1,4,16", help="default: derived from the others")
    add("--frames", type=numbers, metavar="100,400", help="default: clips of 1 to 10.2 seconds")
    add("--symbols", type=numbers, metavar="10,80,200", help="default: 10,80,200")
    add(
        "--capacity", type=at_least_one, help="padded frames a batch; default: batch_size x longest"
    )
    add("--minutes", type=positive, default=5, help="time for measuring; default 5")
    add(
        "--repeats",
        type=at_least_one,
        default=5,
        help="timed steps a batch shape, at most; default 5",
    )
    add("--seed", type=whole_number(0), default=0, help="of clips, order and held-out shapes")
    add("--check", nargs="+", type=Path, metavar=("COSTS.json", "RUN"), help="predict these runs")
    args = parser.parse_args(arguments)
    if args.check and (len(args.check) < 2 or args.output):
        parser.error("--check COSTS.json RUN_DIR ...: costs and one run at least, without -o")
    if not args.check and args.output is None:
        parser.error("-o COSTS.json: name the file to write")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    try:
        if not args.check:
            began = time.monotonic()
            measure(args)
            print(f"took {duration(time.monotonic() - began)}")
            return
        costs = read_costs(args.check[0])
        errors = [error for run in args.check[1:] for error in check(costs, run)]
    except (UserError, OSError) as error:  # of the disk that the costs are written to
        sys.exit(f"{PROGRAM}: {error}")
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted, nothing was written", file=sys.stderr)
        sys.exit(130)
    print(
        f"{len(errors)} epochs: predicted / measured - 1 is {statistics.median(errors):+.1%} in "
        f"the median, and {max(errors, key=abs):+.1%} at most"
    )


if __name__ == "__main__":
    main()
