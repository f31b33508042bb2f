"""Estimate minutes and memory of an epoch for each batching strategy, from timed optimizer steps.

    python -m benchmarks.epoch                            # lengths distributed as LJSpeech's
    python -m benchmarks.epoch train.txt --precision bf16 --json epoch.json
    python -m benchmarks.epoch train.txt --batchings RAND "batching_strategy=bucket,bucket_size=960"
    torchrun --nproc-per-node 2 -m benchmarks.epoch --hparams batches_per_update=2

For LJSpeech's clips the pinned training set is used. Every strategy is planned with the frame
budget of batch_size longest clips, and with each of --capacities. Batches of fixed size have as
many clips as the number of longest clips that fit the budget.

The optimizer steps of each plan are sorted by length and cut into strata of equal size. Two steps
of each stratum are drawn and timed on noise of their lengths, the plans interleaved. The number
after ± is the standard error of this sampling (Cochran, Sampling Techniques, chapter 5). No audio
is read. With torchrun, each process runs its own batches of every optimizer step.
"""

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
from batch import synthetic_batch
from benchmarks import options
from benchmarks.timing import publish
from corpus.lengths import CorpusLengths, read_lengths, synthetic_lengths, with_symbols
from corpus.split import SPLIT_FILE, read_split
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
from tacotron2_voice.utils.program import run_program
from training.distributed import Processes, join
from training.memory_check import fit
from training.trainer import MicroBatch, Trainer

PAPER = "batch_size=16,random_epochs=0,win_time=50,hop_time=12.5,guided_attention_weight=0"
PAPER += ",gate_positive_weight=1,text_cleaners=[english_cleaners]"
DRAWS = 2  # optimizer steps per stratum: the fewest from which their spread can be estimated
BATCHINGS = {  # settings by the papers' names
    batching_name(strategy, dynamic, mixed): (
        f"batching_strategy={strategy},dynamic_batch_size={dynamic},batch_randomization={mixed}"
    )
    for strategy, dynamic, mixed in itertools.product(STRATEGIES, (False, True), (True, False))
}
Step = list[np.ndarray]  # the batches of an optimizer step, of all processes


class Plan(NamedTuple):
    """One epoch with one batching strategy."""

    name: str
    capacity: int  # frame budget per batch
    steps: list[Step]
    shapes: np.ndarray  # [steps, 3]: clips, padded frames of one batch after another, symbols
    stats: PaddingStats


def batching_settings(batching: str, hparams: HParams) -> HParams:
    """Return `hparams` with a strategy given by name (SSB-DBS-BR) or as name=value,...

    Raises:
        UserError: for an unknown name.
    """
    if "=" not in batching and batching not in BATCHINGS:
        raise UserError(
            f"--batchings {batching}: expected a name such as SSB-DBS-BR "
            "(compare_batching.py --strategies lists the first parts), or name=value,..."
        )
    return create_hparams(BATCHINGS.get(batching, batching), base=hparams)


def make_plan(clips: CorpusLengths, hparams: HParams, epoch: int = 0) -> Plan:
    """Plan an epoch of training.

    Raises:
        BatchingError: if the corpus does not allow these settings.
    """
    h = hparams
    r = hparams.n_frames_per_step
    more: dict[str, Any] = {"random_epochs": h.random_epochs, "world_size": 1}
    more |= {"batches_per_update": h.batches_per_update}
    sampler = LengthBatchSampler(
        clips.frames, short_last_update=True, **batching_options(h), **more
    )
    sampler.set_epoch(epoch)
    steps = []
    shapes = []
    for start, end in itertools.pairwise([*sampler.update_starts, len(sampler.plan)]):
        step = sampler.plan[start:end]
        frames = sum(-(-int(clips.frames[batch].max()) // r) * r for batch in step)
        indices = np.concatenate(step)
        steps.append(step)
        shapes.append((len(indices), frames, int(clips.symbols[indices].max())))
    name = batching_name(h.batching_strategy, h.dynamic_batch_size, h.batch_randomization)
    capacity = h.batch_capacity or h.batch_size * int(clips.frames.max())
    stats = padding_stats(clips.frames, sampler.plan, r)
    return Plan(name, capacity, steps, np.array(shapes), stats)


def make_plans(
    clips: CorpusLengths, hparams: HParams, batchings: list[str], capacities: list[int]
) -> list[Plan]:
    """Plan an epoch for every strategy with every frame budget.

    Raises:
        UserError: if the longest clip does not fit a budget.
    """
    longest = int(clips.frames.max())
    plans = []
    for capacity, batching in itertools.product(capacities, batchings):
        if capacity < longest:
            raise UserError(
                f"capacity {capacity}: expected at least {longest}, the frames of the longest clip"
            )
        size = capacity // longest
        h = batching_settings(batching, replace(hparams, batch_size=size))
        batch_capacity = capacity
        if h.batch_size != size:  # The strategy's settings contain a batch size.
            batch_capacity = h.batch_size * longest
        h = replace(h, batch_capacity=batch_capacity if h.dynamic_batch_size else None)
        plans.append(make_plan(clips, h)._replace(capacity=batch_capacity))
    return plans


def strata(plan: Plan, draws: int) -> list[np.ndarray]:
    """Cut the optimizer steps' numbers into strata of about equal size, sorted by length.

    There are `draws` / 2 strata. Each has at least two steps if there are enough steps.
    """
    order = np.lexsort((plan.shapes[:, 0], plan.shapes[:, 1]))
    return np.array_split(order, max(1, min(draws, len(order)) // DRAWS))


def estimate(sizes: list[int], drawn: list[list[float]]) -> tuple[float, float]:
    """Estimate a quantity's sum over strata of these sizes, and the sum's standard error.

    See Cochran, chapter 5. The error is not a number if a stratum of several has only one value.

    Args:
        drawn: the values drawn from each stratum.
    """
    total = 0.0
    variance = 0.0
    for size, values in zip(sizes, drawn, strict=True):
        total += size * float(np.mean(values))
        if len(values) < size:
            spread = np.var(values, ddof=1) if len(values) > 1 else math.nan
            variance += size**2 * (1 - len(values) / size) * float(spread) / len(values)
    return total, math.sqrt(variance)


def step_on(trainer: Trainer, clips: CorpusLengths, step: Step) -> Callable[[], object]:
    """Return a function that makes an optimizer step, with this process's batches."""
    batches = []
    for batch in step[trainer.processes.rank :: trainer.processes.world_size]:
        noise = synthetic_batch(clips.frames[batch], clips.symbols[batch], trainer.hparams)
        batches.append(MicroBatch(noise.pin_memory() if trainer.device.type == "cuda" else noise))
    return functools.partial(trainer.step, batches, num_batches=len(step))


def step_seconds(trainer: Trainer, clips: CorpusLengths, step: Step, repeats: int) -> float:
    """Return the seconds of an optimizer step: the repeats' median, in the slowest process."""
    run_step = step_on(trainer, clips, step)
    if trainer.device.type == "cuda":  # A GPU's first step of a shape compiles and captures.
        run_step()
    times = []
    for _ in range(repeats):
        trainer.processes.gather(None)  # All processes begin together.
        times.append(machine.seconds_of(trainer.device, run_step))
    return max(trainer.processes.gather(float(np.median(times))))


def step_peak_bytes(trainer: Trainer, clips: CorpusLengths, step: Step) -> int | None:
    """Return the peak bytes of an optimizer step, in the process with the most; None if unknown.

    Raises:
        MemoryError: if it does not fit into the memory of a process's GPU.
    """
    processes = trainer.processes
    device = trainer.device
    own = step[processes.rank :: processes.world_size]
    shapes = [(len(b), int(clips.frames[b].max()), int(clips.symbols[b].max())) for b in own]
    # First without the other processes, which would wait for a process that is out of memory.
    fits = device.type == "cpu" or fit(trainer, trainer.compute_gradients, shapes)
    if processes.any(not fits):
        raise MemoryError
    measurable = machine.reset_peak_memory(device)
    step_on(trainer, clips, step)()
    peaks = processes.gather(machine.peak_memory(device) if measurable else None)
    return None if None in peaks else max(peaks)


def time_plans(
    trainer: Trainer, clips: CorpusLengths, plans: list[Plan], args: argparse.Namespace
) -> list[dict]:
    """Measure each plan with at most --batches drawn optimizer steps. Return a row for each plan.

    `sizes` has the number of steps of every stratum, and `seconds` the seconds of its drawn steps.
    Peak memory is that of the largest step.
    """
    h = trainer.hparams
    jobs = []
    rows: list[dict[str, Any]] = []
    for plan in plans:
        parts, rng = strata(plan, args.batches), np.random.default_rng(h.seed)
        row: dict[str, Any] = {"batching": plan.name, "capacity": plan.capacity}
        row |= {"precision": h.precision, "decoder": h.decoder, "status": "measured"}
        row |= {"sizes": [len(part) for part in parts], "seconds": [[] for _ in parts]}
        rows.append(row | asdict(plan.stats))
        largest = plan.steps[int((plan.shapes[:, 0] * plan.shapes[:, 1]).argmax())]
        try:
            rows[-1]["peak_memory_bytes"] = step_peak_bytes(trainer, clips, largest)
        except MemoryError:
            rows[-1]["status"] = "does not fit into memory"
            continue
        for stratum, numbers in enumerate(parts):
            drawn = rng.choice(numbers, min(DRAWS, len(numbers)), replace=False).tolist()
            for turn, number in enumerate(drawn):
                jobs.append((turn, stratum / len(parts), len(rows) - 1, stratum, number))
    # The plans are interleaved, so that a machine that slows down affects all of them.
    with progress_bar("timing", len(jobs), " optimizer steps") as bar:
        for _, _, index, stratum, number in sorted(jobs):
            seconds = step_seconds(trainer, clips, plans[index].steps[number], args.repeats)
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
    """Return the rows as a table in Markdown."""
    plan = "{batching}|{capacity:,}|{num_batches:,}|{zero_padding_rate:.2%}|{precision}|{decoder}|"
    times = "{minutes_per_epoch:.3g} ± {standard_error_minutes:.2g}|{saved:.1%}|"
    times += "{padded_frames_per_second:,.0f}|{real_frames_per_second:,.0f}|"
    cells = []
    for row in rows:
        peak, line = row.get("peak_memory_bytes"), plan + "{status}||||"
        if row["status"] == "measured":
            line = plan + times + ("not measured" if peak is None else f"{peak / 1e9:.2f} GB")
        cells.append(line.format(**row).split("|"))
    titles = "strategy|frame budget|batches|ZPR|precision|decoder|min/epoch|saved|"
    titles += "padded frames/s|real frames/s|peak memory"
    return markdown_table(titles.split("|"), cells)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.measuring_parser(__doc__)
    add = parser.add_argument
    from_two = whole_number(2)
    add(
        "lengths",
        nargs="?",
        type=Path,
        help="read lengths from a filelist, its cache, or a CSV file of id,samples or id,frames "
        "(default: synthetic lengths, distributed as LJSpeech's)",
    )
    add(
        "--clips",
        type=from_two,
        default=10480,
        help="number of synthetic clips (default: %(default)s)",
    )
    add(
        "--batchings",
        nargs="+",
        default=["RAND", "SSB-DBS-BR"],
        metavar="STRATEGY",
        help="compare these strategies: names or settings such as batching_strategy=bucket,... "
        "(default: RAND,SSB-DBS-BR)",
    )
    add(
        "--capacities",
        type=whole_numbers,
        metavar="25824,51648",
        help="further frame budgets per batch (default: 2 times the first; on a GPU 2, 4 and 8)",
    )
    add(
        "--precision",
        type=options.precision_list,
        metavar="fp32,bf16",
        help="measure these precisions (default: that of --hparams)",
    )
    add(
        "--batches",
        type=from_two,
        help="number of optimizer steps to time per plan (default: 6, on a GPU 12)",
    )
    add(
        "--repeats",
        type=at_least_one,
        help="number of repeats of each optimizer step (default: 1, on a GPU 3)",
    )
    args = parser.parse_args(arguments)
    on_gpu = args.device.type == "cuda"
    args.batches = args.batches or (12 if on_gpu else 6)
    args.repeats = args.repeats or (3 if on_gpu else 1)
    lists = [[text] if "=" in text else text.split(",") for text in args.batchings]
    args.batchings = list(itertools.chain(*lists))
    return args


def corpus(args: argparse.Namespace, hparams: HParams) -> tuple[CorpusLengths, str]:
    """Return the clips, and a phrase that describes them."""
    if args.lengths is None:
        clips = synthetic_lengths(args.clips, hparams)
        return clips, f"synthetic lengths of {args.clips:,} clips, distributed as LJSpeech's"
    clips, sets = read_lengths(args.lengths, hparams), read_split(SPLIT_FILE)
    if sets.keys() >= set(clips.ids):
        chosen = np.flatnonzero([sets[name] == "train" for name in clips.ids])
        if not len(chosen):
            raise UserError(f"{args.lengths}: no clip is in the training set of {SPLIT_FILE}")
        clips = clips.take(chosen)
    return with_symbols(clips, hparams), f"{len(clips):,} clips of {args.lengths.name}"


def time_batchings(args: argparse.Namespace, processes: Processes) -> None:
    """Print the table of --batchings for the corpus, and write --json."""
    hparams = options.hparams_of_noise(args.hparams, create_hparams(PAPER))
    if hparams.decoder == "fast":
        options.check_fast_decoder()
    clips, source = corpus(args, hparams)
    first = hparams.batch_size * int(clips.frames.max())
    times = (2, 4, 8) if args.device.type == "cuda" else (2,)
    more = [k * first for k in times] if args.capacities is None else args.capacities
    plans, rows = make_plans(clips, hparams, args.batchings, [first, *more]), []
    for precision in args.precision or [hparams.precision]:
        trainer = Trainer(replace(hparams, precision=precision), args.device, processes)
        rows += time_plans(trainer, clips, plans, args)
        print(f"{precision}, {trainer.decoder_description}: measured")
        del trainer  # This frees its memory for the next trainer.
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
    run_program(main)
