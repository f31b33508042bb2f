"""Estimate minutes and memory of an epoch under each batching from timed training steps.

    python benchmarks/epoch.py                                   # lengths distributed as LJSpeech's
    python benchmarks/epoch.py train.txt --precision bf16 --json epoch.json
    python benchmarks/epoch.py train.txt --batchings RAND "batching_strategy=bucket,bucket_size=960"
    torchrun --nproc-per-node 2 benchmarks/epoch.py --hparams batches_per_update=2

For LJSpeech's clips the pinned training set is used. Every batching is planned with the capacity of
batch_size longest clips and with each of --capacities, in padded frames. Batches of fixed size have
as many clips as the number of longest clips that fit the capacity.

The updates of each plan are sorted by length and cut into strata of equal size; two updates of each
are drawn. Whole training steps on noise of their lengths are timed, the plans in turns. The number
after ± is the standard error of this sampling (Cochran, Sampling Techniques, chapter 5). No audio
is read. Under torchrun each process runs its own batches of every update.
"""

import project_root

import argparse
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import machine
from benchmarks import fast_path, options
from benchmarks.timing import publish
from corpus.lengths import CorpusLengths, read_lengths, synthetic_lengths, with_symbols
from corpus.split import SPLIT_FILE, read_split
from data_utils import synthetic_batch
from hparams import HParams, batching_options, create_hparams
from length_batching import (
    STRATEGIES,
    LengthBatchSampler,
    PaddingStats,
    batching_name,
    padding_stats,
)
from tacotron2_voice.utils.arguments import at_least_one, whole_number, whole_numbers
from tacotron2_voice.utils.console import markdown_table, print_nothing, progress_bar
from tacotron2_voice.utils.errors import UserError
from training.distributed import Processes, join
from training.memory_check import fit
from training.trainer import MicroBatch, Trainer

PAPER = "batch_size=16,random_epochs=0,win_time=50,hop_time=12.5,guided_attention_weight=0"
PAPER += ",gate_positive_weight=1,text_cleaners=[english_cleaners]"
DRAWS = 2  # updates of a stratum: the fewest that tell how much they differ
BATCHINGS = {  # settings by the papers' names
    batching_name(strategy, dynamic, mixed): (
        f"batching_strategy={strategy},dynamic_batch_size={dynamic},batch_randomization={mixed}"
    )
    for strategy, dynamic, mixed in itertools.product(STRATEGIES, (False, True), (True, False))
}
Update = list[np.ndarray]  # its batches, of all processes


class Plan(NamedTuple):
    """One epoch under one batching."""

    name: str
    capacity: int  # padded frames that a batch may hold
    updates: list[Update]
    shapes: np.ndarray  # [updates, 3] clips, padded frames one batch after another, symbols
    stats: PaddingStats


def batching_settings(batching: str, hparams: HParams) -> HParams:
    """`hparams` with a batching given by name (SSB-DBS-BR) or by overrides (name=value,...)."""
    if "=" not in batching and batching not in BATCHINGS:
        raise UserError(
            f"--batchings {batching}: expected a name as SSB-DBS-BR (compare_batching.py "
            "--strategies has the first parts), or name=value,... as train.py takes"
        )
    return create_hparams(BATCHINGS.get(batching, batching), base=hparams)


def make_plan(clips: CorpusLengths, hparams: HParams, epoch: int = 0) -> Plan:
    """An epoch of training with `hparams`. BatchingError where the corpus does not allow it."""
    h, r = hparams, hparams.n_frames_per_step
    more: dict[str, Any] = {"random_epochs": h.random_epochs, "world_size": 1}
    more |= {"batches_per_update": h.batches_per_update}
    sampler = LengthBatchSampler(
        clips.frames, short_last_update=True, **batching_options(h), **more
    )
    sampler.set_epoch(epoch)
    updates, shapes = [], []
    for start, end in itertools.pairwise([*sampler.update_starts, len(sampler.plan)]):
        updates.append(sampler.plan[start:end])
        frames = sum(-(-int(clips.frames[batch].max()) // r) * r for batch in updates[-1])
        update = np.concatenate(updates[-1])
        shapes.append((len(update), frames, int(clips.symbols[update].max())))
    name = batching_name(h.batching_strategy, h.dynamic_batch_size, h.batch_randomization)
    capacity = h.batch_capacity or h.batch_size * int(clips.frames.max())
    stats = padding_stats(clips.frames, sampler.plan, r)
    return Plan(name, capacity, updates, np.array(shapes), stats)


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
        size = capacity // longest
        h = batching_settings(batching, replace(hparams, batch_size=size))
        batch_capacity = capacity
        if h.batch_size != size:  # the batching names its own
            batch_capacity = h.batch_size * longest
        h = replace(h, batch_capacity=batch_capacity if h.dynamic_batch_size else None)
        plans.append(make_plan(clips, h)._replace(capacity=batch_capacity))
    return plans


def strata(plan: Plan, draws: int) -> list[np.ndarray]:
    """Sort the updates' numbers by length, then clips, and cut them into `draws` / 2 parts of about
    equal size, each with at least two updates if there are enough."""
    order = np.lexsort((plan.shapes[:, 0], plan.shapes[:, 1]))
    return np.array_split(order, max(1, min(draws, len(order)) // DRAWS))


def estimate(sizes: list[int], drawn: list[list[float]]) -> tuple[float, float]:
    """Estimate (sum, its standard error) of a quantity over strata of `sizes` from drawn values.

    Cochran, chapter 5. The error is not-a-number where a stratum of several has one value only.
    """
    total, variance = 0.0, 0.0
    for size, values in zip(sizes, drawn, strict=True):
        total += size * float(np.mean(values))
        if len(values) < size:
            spread = np.var(values, ddof=1) if len(values) > 1 else math.nan
            variance += size**2 * (1 - len(values) / size) * float(spread) / len(values)
    return total, math.sqrt(variance)


def step_on(trainer: Trainer, clips: CorpusLengths, update: Update) -> Callable[[], object]:
    """Return a function that runs a training step on this process's batches of the update."""
    batches = []
    for batch in update[trainer.processes.rank :: trainer.processes.world_size]:
        noise = synthetic_batch(clips.frames[batch], clips.symbols[batch], trainer.hparams)
        batches.append(MicroBatch(noise.pin_memory() if trainer.device.type == "cuda" else noise))
    return functools.partial(trainer.step, batches, num_batches=len(update))


def step_seconds(trainer: Trainer, clips: CorpusLengths, update: Update, repeats: int) -> float:
    """Seconds of a training step: the median of the repeats, in the slowest process."""
    step, times = step_on(trainer, clips, update), []
    if trainer.device.type == "cuda":  # a GPU's first step of a shape compiles and captures
        step()
    for _ in range(repeats):
        trainer.processes.gather(None)  # all begin together
        times.append(machine.seconds_of(trainer.device, step))
    return max(trainer.processes.gather(float(np.median(times))))


def step_peak_bytes(trainer: Trainer, clips: CorpusLengths, update: Update) -> int | None:
    """Peak bytes of a training step, the largest of all processes; None if unknown.

    Raises:
        MemoryError: if it does not fit into a GPU's memory, of one of the processes.
    """
    processes, device = trainer.processes, trainer.device
    own = update[processes.rank :: processes.world_size]
    shapes = [(len(b), int(clips.frames[b].max()), int(clips.symbols[b].max())) for b in own]
    # First without the others: they would wait for a process that is out of memory.
    fits = device.type == "cpu" or fit(trainer, trainer.compute_gradients, shapes)
    if processes.any(not fits):
        raise MemoryError
    measurable = machine.reset_peak_memory(device)
    step_on(trainer, clips, update)()
    peaks = processes.gather(machine.peak_memory(device) if measurable else None)
    return None if None in peaks else max(peaks)


def time_plans(
    trainer: Trainer, clips: CorpusLengths, plans: list[Plan], args: argparse.Namespace
) -> list[dict]:
    """Measure each plan with at most --batches drawn updates. Returns a row a plan.

    `sizes` and `seconds` have an entry for every stratum: its number of updates, and the seconds of
    the drawn ones. Peak memory is that of the largest update.
    """
    h, jobs = trainer.hparams, []
    rows: list[dict[str, Any]] = []
    for plan in plans:
        parts, rng = strata(plan, args.batches), np.random.default_rng(h.seed)
        row: dict[str, Any] = {"batching": plan.name, "capacity": plan.capacity}
        row |= {"precision": h.precision, "decoder": h.decoder, "status": "measured"}
        row |= {"sizes": [len(part) for part in parts], "seconds": [[] for _ in parts]}
        rows.append(row | asdict(plan.stats))
        largest = plan.updates[int((plan.shapes[:, 0] * plan.shapes[:, 1]).argmax())]
        try:
            rows[-1]["peak_memory_bytes"] = step_peak_bytes(trainer, clips, largest)
        except MemoryError:
            rows[-1]["status"] = "does not fit into memory"
            continue
        for stratum, numbers in enumerate(parts):
            drawn = rng.choice(numbers, min(DRAWS, len(numbers)), replace=False).tolist()
            for turn, number in enumerate(drawn):
                jobs.append((turn, stratum / len(parts), len(rows) - 1, stratum, number))
    # The plans take turns, so that a machine that slows down affects all of them.
    with progress_bar("timing", len(jobs), " updates") as bar:
        for _, _, index, stratum, number in sorted(jobs):
            seconds = step_seconds(trainer, clips, plans[index].updates[number], args.repeats)
            rows[index]["seconds"][stratum].append(seconds)
            bar.update()
    measured = [row for row in rows if row["status"] == "measured"]
    for row in measured:
        seconds, error = estimate(row["sizes"], row["seconds"])
        row["minutes_per_epoch"], row["standard_error_minutes"] = seconds / 60, error / 60
        row["saved"] = 1 - row["minutes_per_epoch"] / measured[0]["minutes_per_epoch"]
        row["padded_frames_per_second"] = row["padded_frames"] / seconds
        row["real_frames_per_second"] = int(clips.frames.sum()) / seconds
    return rows


def table(rows: list[dict]) -> str:
    """Markdown."""
    plan = "{batching}|{capacity:,}|{num_batches:,}|{zero_padding_rate:.2%}|{precision}|{decoder}|"
    times = "{minutes_per_epoch:.3g} ± {standard_error_minutes:.2g}|{saved:.1%}|"
    times += "{padded_frames_per_second:,.0f}|{real_frames_per_second:,.0f}|"
    cells = []
    for row in rows:
        peak, line = row.get("peak_memory_bytes"), plan + "{status}||||"
        if row["status"] == "measured":
            line = plan + times + ("not measured" if peak is None else f"{peak / 1e9:.2f} GB")
        cells.append(line.format(**row).split("|"))
    titles = "batching|capacity|batches|ZPR|precision|decoder|min/epoch|saved|"
    titles += "padded frames/s|real frames/s|peak memory"
    return markdown_table(titles.split("|"), cells)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.measuring_parser(__doc__)
    add, from_two = parser.add_argument, whole_number(2)
    help_text = "path|text|seconds, a NAME.clips, or a CSV of id,samples or id,frames"
    add("lengths", nargs="?", type=Path, help=f"{help_text}; default: distributed as LJSpeech's")
    add("--clips", type=from_two, default=10480, help="synthetic ones; default %(default)s")
    help_text = "names as RAND,SSB-DBS-BR (default), or settings as batching_strategy=bucket,..."
    add(
        "--batchings", nargs="+", default=["RAND", "SSB-DBS-BR"], metavar="BATCHING", help=help_text
    )
    help_text = "default: 2 (GPU: 2,4,8) x the first"
    add("--capacities", type=whole_numbers, metavar="25824,51648", help=help_text)
    help_text = "default: that of --hparams"
    add("--precision", type=options.precision_list, metavar="fp32,bf16", help=help_text)
    add("--batches", type=from_two, help="updates drawn a plan; default 6, on a GPU 12")
    add("--repeats", type=at_least_one, help="of each update; default 1, on a GPU 3")
    args = parser.parse_args(arguments)
    on_gpu = args.device.type == "cuda"
    args.batches = args.batches or (12 if on_gpu else 6)
    args.repeats = args.repeats or (3 if on_gpu else 1)
    lists = [[text] if "=" in text else text.split(",") for text in args.batchings]
    args.batchings = list(itertools.chain(*lists))
    return args


def corpus(args: argparse.Namespace, hparams: HParams) -> tuple[CorpusLengths, str]:
    """The clips, and a phrase that describes them."""
    if args.lengths is None:
        clips = synthetic_lengths(args.clips, hparams)
        return clips, f"synthetic lengths of {args.clips:,} clips, distributed as LJSpeech's"
    clips, sets = read_lengths(args.lengths, hparams), read_split(SPLIT_FILE)
    if sets.keys() >= set(clips.ids):
        chosen = np.flatnonzero([sets[name] == "train" for name in clips.ids])
        if not len(chosen):
            raise UserError(f"{args.lengths}: none of its clips is marked train in {SPLIT_FILE}")
        clips = clips.take(chosen)
    return with_symbols(clips, hparams), f"{len(clips):,} clips of {args.lengths.name}"


def time_batchings(args: argparse.Namespace, processes: Processes) -> None:
    """Print the table of --batchings on the corpus, and write --json."""
    hparams = options.hparams_of_noise(args.hparams, create_hparams(PAPER))
    if hparams.decoder == "fast" and not fast_path.IS_HERE:
        raise UserError(f"{fast_path.MISSING}; use --hparams decoder=reference")
    clips, source = corpus(args, hparams)
    first = hparams.batch_size * int(clips.frames.max())
    times = (2, 4, 8) if args.device.type == "cuda" else (2,)
    more = [k * first for k in times] if args.capacities is None else args.capacities
    plans, rows = make_plans(clips, hparams, args.batchings, [first, *more]), []
    for precision in args.precision or [hparams.precision]:
        trainer = Trainer(replace(hparams, precision=precision), args.device, processes)
        rows += time_plans(trainer, clips, plans, args)
        print(f"{precision}, {trainer.decoder_description}: measured")
        del trainer  # its memory is the next one's
    result = {"processes": processes.world_size, "clips": source, "batches": args.batches}
    result |= {"hparams": asdict(hparams), "rows": rows}
    publish(args, result, f"{source}\n\n{table(rows)}")


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    processes = join(seconds=600)
    args.device = processes.device or args.device
    if not processes.is_first:
        args.json = None
        print_nothing()
    time_batchings(args, processes)


if __name__ == "__main__":
    main()
