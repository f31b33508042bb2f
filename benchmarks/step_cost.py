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
import csv
import datetime
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from analysis.arguments import positive
from analysis.step_costs import MeasuredStep, StepCosts, check_shapes, fit, read_costs, write_costs
from audio import frame_count
from batching import plan_epoch
from data_utils import Batch, TextMelCollate
from hparams import HParams, batching_options, create_hparams, hparams_from_dict
from progress import duration, progress_bar
from text import text_to_sequence
from training.logger import METRICS_FILE
from training.measuring import (
    describe_environment,
    peak_memory,
    proc_bytes,
    reset_peak_memory,
    seconds_of,
)
from training.step import Trainer

PROGRAM = "step_cost.py"
# LJSpeech has clips of 1.1 to 10.1 s, with texts of 12 to 187 characters.
SECONDS_OF_CLIPS = (1.0, 2.5, 5.0, 10.2)
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
    sizes = args.batch_sizes or sorted(few | {max(capacity // length, 1) for length in frames})
    symbols = args.symbols or list(SYMBOLS)
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
class Survey:
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
                    seconds_of(trainer.device, trainer.step, batch)
                )
            else:
                measurable = reset_peak_memory(trainer.device)
                seconds = seconds_of(trainer.device, trainer.step, batch)
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
        found = []
        for shape, first in self.first_seconds.items():
            times = self.seconds.get(shape, [])
            found.append(
                MeasuredStep(
                    *shape,
                    seconds=statistics.median(times or [first]),
                    bytes=self.bytes[shape],
                    repeats=len(times),
                )
            )
        return found


def survey(trainer: Trainer, grid: list[Shape], args: argparse.Namespace) -> Survey:
    """Measure the grid: once from small to large, then in shuffled rounds until time is up."""
    found, rng = Survey(), np.random.default_rng(args.seed)
    deadline = time.monotonic() + 60 * args.minutes
    pinned = trainer.device.type == "cuda"
    progress = progress_bar("measuring", len(grid) * (1 + args.repeats), " steps")
    # What loads or is taken once, Adam's moments among it, is there before anything counts.
    trainer.step(make_batch(grid[0], trainer.hparams, rng, pinned))
    shapes = grid
    try:
        for _ in range(1 + args.repeats):
            for shape in shapes:
                if time.monotonic() > deadline:
                    for missed in grid:
                        if missed not in found.bytes and missed not in found.skipped:
                            found.skipped[missed] = f"not reached in {args.minutes:g} minutes"
                    return found
                found.try_shape(trainer, shape, make_batch(shape, trainer.hparams, rng, pinned))
                progress.update()
            shapes = [grid[i] for i in rng.permutation(len(grid)) if grid[i] in found.bytes]
    finally:
        progress.close()
    return found


def needs_too_much_ram(shape: Shape, found: Survey, trainer: Trainer) -> bool:
    """Whether a step would take more than the free memory, judged by the steps measured so far.

    A GPU says so itself; without this, a CPU's system would kill the process instead.
    """
    free = proc_bytes("/proc/meminfo", "MemAvailable:")
    if trainer.device.type == "cuda" or shape in found.bytes or free is None:
        return False
    try:
        costs = fit(found.measurements(), asdict(trainer.hparams), {}, "")
        needed = float(costs.bytes(*shape))
    except ValueError:  # too little is known yet, and what comes first is small
        return False
    return needed > proc_bytes("/proc/self/status", "VmRSS:") + MOST_MEMORY * free


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "ALLOC_FAILED" in str(error)


def measure(args: argparse.Namespace) -> None:
    """Measure, fit, say how good the fit is, and write the file."""
    hparams = create_hparams(args.hparams)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    grid = make_grid(args, hparams)
    trainer = Trainer(hparams, device)
    environment = describe_environment(device)
    machine = environment["machine"] | environment["versions"]
    description = (
        f"{machine['device']} ({machine['processor']}, {machine['cores']} cores, "
        f"threads: {machine['threads']}), {hparams.precision}, torch {machine['torch']}, "
        f"{datetime.date.today().isoformat()}"
    )
    print(f"on {description}\nat most {args.repeats} repeats, within {args.minutes:g} minutes")
    found = survey(trainer, grid, args)
    measured = hold_out(found.measurements(), args.seed)
    for shape, why in found.skipped.items():
        print("skipped: {:,} clips of {:,} frames and {:,} symbols: ".format(*shape) + why)
    if found.skipped:
        print("predictions for batches as large as those are extrapolated")
    try:
        fitted = [(m.clips, m.frames, m.symbols) for m in measured if not m.held_out]
        check_shapes(*columns(fitted), hparams.n_frames_per_step)
    except ValueError as error:
        sys.exit(f"{PROGRAM}: {error}; here too little was measured: raise --minutes")
    repeats = [m.repeats for m in measured]
    if min(repeats) < args.repeats:
        print(
            f"{min(repeats)} to {max(repeats)} of {args.repeats} repeats fitted into the time"
            + ("; shapes without any keep their first step's time" if min(repeats) == 0 else "")
        )
    settings = json.loads(json.dumps(asdict(hparams)))  # as they will be read back
    costs = fit(measured, settings, machine, description)
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
            print("memory: not measured; this system does not tell a process's peak")
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
    records = read_run(directory)
    run = next(record for record in records if record["kind"] == "run")
    print(f"{directory}:")
    differing = costs.differing(run["hparams"])
    differing += [
        f"{name}={value}, measured with {costs.machine.get(name, 'unknown')}"
        for name, value in (run["machine"] | run["versions"]).items()
        if costs.machine.get(name) != value
    ]
    for line in differing:
        print(f"  warning: not what the costs were measured on: {line}")
    print("  epoch  batches  predicted s  measured s  waiting s   error   peak memory (predicted)")
    errors, hparams = [], None
    for record in records:
        if record["kind"] == "run":
            hparams = hparams_from_dict(record["hparams"])
            frames, symbols = read_lengths(directory, hparams)
        elif record["kind"] == "epoch":
            clips, longest, most_symbols = epoch_shapes(frames, symbols, hparams, record["epoch"])
            if len(clips) != record["num_batches"]:
                sys.exit(
                    f"{PROGRAM}: {directory}: epoch {record['epoch']} had {record['num_batches']} "
                    f"batches, but its settings now plan {len(clips)}: the run is of another "
                    "version of this recipe"
                )
            predicted = float(costs.seconds(clips, longest, most_symbols).sum())
            waiting = record["data_wait_seconds"]
            measured = 60 * record["minutes"] - waiting
            errors.append(predicted / measured - 1)
            memory = f"{record['peak_memory_bytes'] / 1e9:.2f} GB"
            if costs.bytes_per_term is not None:
                memory += f" ({costs.bytes(clips, longest, most_symbols).max() / 1e9:.2f} GB)"
            print(
                f"  {record['epoch']:5}  {len(clips):7,}  {predicted:11,.1f}  {measured:10,.1f}  "
                f"{waiting:9,.1f}  {errors[-1]:+6.1%}   {memory}"
            )
    return errors


def read_run(directory: Path) -> list[dict]:
    """The lines of a run's metrics, of which one at least is an epoch and the first is `run`."""
    path = directory / METRICS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        sys.exit(
            f"{PROGRAM}: {path}: cannot be read ({error.strerror}); name the output folder (-o) of "
            "a run of train.py"
        )
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
            records[-1]["kind"]
        except (ValueError, KeyError, TypeError):
            sys.exit(
                f"{PROGRAM}: {path}:{number}: {line[:60]!r}: expected an object with a kind, as "
                "train.py writes; go on with the run (--resume), which mends its logs"
            )
    kinds = [record["kind"] for record in records]
    if kinds[:1] != ["run"] or "epoch" not in kinds:
        sys.exit(f"{PROGRAM}: {path}: no finished epoch in it; train at least one, then check")
    return records


def read_lengths(directory: Path, hparams: HParams) -> tuple[np.ndarray, np.ndarray]:
    """Frames and symbols of a run's training clips, from its lengths and its filelist's texts."""
    path, filelist = directory / "lengths.csv", Path(hparams.training_files)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        lines = filelist.read_text(encoding="utf-8-sig").split("\n")
        clips = [line.split("|") for line in lines if line.strip()]
        if [row["id"] for row in rows] != [Path(clip[0].strip()).stem for clip in clips]:
            sys.exit(f"{PROGRAM}: {filelist}: not the clips of {path}; it changed since the run")
        frames = [int(row["frames"]) for row in rows]
        symbols = [len(text_to_sequence(clip[1], hparams.text_cleaners)) for clip in clips]
    except OSError as error:
        sys.exit(
            f"{PROGRAM}: {error.filename}: cannot be read ({error.strerror}); start this where the "
            "run was started, for its filelist's path counts from there"
        )
    except (KeyError, ValueError, IndexError):
        sys.exit(
            f"{PROGRAM}: {path}, {filelist}: expected id,frames and path|text|seconds, as train.py "
            "and prepare_ljspeech.py write them"
        )
    return np.array(frames), np.array(symbols)


def epoch_shapes(
    frames: np.ndarray, symbols: np.ndarray, hparams: HParams, epoch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clips, padded frames and padded symbols of every batch of a run's epoch, counted from 1."""
    number = epoch - 1 if hparams.prepare_trainset_per_epoch else 0
    plan = plan_epoch(frames, epoch=number, **batching_options(hparams))
    shapes = [(len(batch), frames[batch].max(), symbols[batch].max()) for batch in plan]
    return tuple(np.array(shapes).T)


# ---------------------------------------------------------------------------- the program


def numbers(text: str) -> list[int]:
    """1,4,16 as a sorted list of positive whole numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers above 0, as in 1,4,16")
    return sorted({int(part) for part in parts})


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="COSTS.json", help="where to write the costs")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    add("--batch-sizes", type=numbers, metavar="1,4,16", help="default: derived from the others")
    add("--frames", type=numbers, metavar="100,400", help="default: clips of 1 to 10.2 seconds")
    add("--symbols", type=numbers, metavar="10,80,200", help="default: 10,80,200")
    add("--capacity", type=int, help="padded frames a batch; default: batch_size x longest")
    add("--minutes", type=positive, default=5, help="time for measuring; default 5")
    add("--repeats", type=int, default=5, help="timed steps of a batch shape, at most; default 5")
    add("--seed", type=int, default=0, help="of clips, order and held-out shapes")
    add("--check", nargs="+", type=Path, metavar=("COSTS.json", "RUN"), help="predict these runs")
    args = parser.parse_args(arguments)
    if args.check and (len(args.check) < 2 or args.output):
        parser.error("--check COSTS.json RUN_DIR ...: costs and one run at least, without -o")
    if not args.check and args.output is None:
        parser.error("-o COSTS.json: name the file to write")
    if args.output and not args.output.absolute().parent.is_dir():
        parser.error(f"-o {args.output}: no such folder: {args.output.parent}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA GPU found")
    for name in ("capacity", "repeats"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: expected a whole number above 0")
    if args.seed < 0:
        parser.error(f"--seed {args.seed}: expected a whole number of at least 0")
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
    except (ValueError, OSError) as error:
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
