"""How long an epoch's plan takes: plan_epoch beside numpy's argsort and other libraries' samplers.

    python benchmarks/planning.py --quick                 # 10,480 clips, as LJSpeech's training set
    python benchmarks/planning.py --save                  # and 10 million clips: some minutes
    python benchmarks/planning.py --lengths lengths.csv   # or a filelist; else drawn

`plan_epoch` is timed with `semi_sorted`, dynamic batch sizes and batch randomization, 16 clips a
batch, from the array of lengths to the list of batches; `argsort` on as many random numbers. A
library's sampler is timed through its public interface, from the sampler that already holds the
lengths to the list of an epoch's batches, and only if it is installed. Everything in one run.
"""

from project_root import ROOT

import contextlib
import datetime
import importlib.metadata
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler

from analysis import ljspeech
from analysis.arguments import make_parser
from analysis.lengths import read_lengths
from analysis.tables import markdown_table
from batching import padding_stats, plan_epoch
from errors import UserError
from files import write_atomically
from hparams import HParams
from training.machine import machine

SMALL, LARGE = 10_480, 10_000_000
BATCH_SIZE, REPEATS = 16, 5
FRAMES_A_SECOND = 80  # of made-up lengths: frames of 12.5 ms, as Ge et al.'s

Plan = Callable[[], list]  # gives an epoch's batches


def plan_with_batching(lengths: np.ndarray) -> Plan:
    return lambda: plan_epoch(
        lengths, BATCH_SIZE, "semi_sorted", dynamic_batch_size=True, batch_randomization=True
    )


def plan_with_transformers(lengths: np.ndarray) -> Plan:
    from transformers.trainer_pt_utils import LengthGroupedSampler

    sampler = LengthGroupedSampler(BATCH_SIZE, lengths=lengths.tolist())
    return lambda: list(BatchSampler(sampler, BATCH_SIZE, drop_last=False))


def plan_with_speechbrain(lengths: np.ndarray) -> Plan:
    from speechbrain.dataio.sampler import DynamicBatchSampler

    sampler = DynamicBatchSampler(
        range(len(lengths)),
        max_batch_length=BATCH_SIZE * int(lengths.max()),
        bucket_boundaries=np.linspace(lengths.min(), lengths.max(), 11)[1:].tolist(),
        lengths_list=lengths.tolist(),
    )
    return lambda: list(sampler)  # hands out this epoch's batches and plans the next epoch


def plan_with_cut2min_bucket(lengths: np.ndarray) -> Plan:
    from cut2min_bucket import BucketBatchSampler

    sampler = BucketBatchSampler(range(len(lengths)), torch.from_numpy(lengths), BATCH_SIZE)
    return lambda: list(sampler)


def plan_with_lhotse(lengths: np.ndarray) -> Plan:
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    cuts = CutSet.from_cuts(
        MonoCut(id=str(i), start=0.0, duration=length / FRAMES_A_SECOND, channel=0)
        for i, length in enumerate(lengths.tolist())
    )
    sampler = DynamicBucketingSampler(
        cuts,
        max_duration=BATCH_SIZE * lengths.max() / FRAMES_A_SECOND,
        num_buckets=10,
        shuffle=True,
    )
    return lambda: list(sampler)


def plan_with_torch_geometric(lengths: np.ndarray) -> Plan:
    from torch_geometric.data import Data
    from torch_geometric.loader import DynamicBatchSampler

    graphs = [Data(num_nodes=length) for length in lengths.tolist()]
    sampler = DynamicBatchSampler(graphs, max_num=BATCH_SIZE * int(lengths.max()), shuffle=True)
    return lambda: list(iter(sampler))  # list(sampler) would ask for its length, which it refuses


# Package as pip names it, its sampler, how to plan with it, why not for 10 million clips.
AN_OBJECT = "not run: it needs an object for every clip"
LIBRARIES = [
    ("transformers", "LengthGroupedSampler", plan_with_transformers, ""),
    ("speechbrain", "DynamicBatchSampler", plan_with_speechbrain, ""),
    ("cut2min-bucket", "BucketBatchSampler", plan_with_cut2min_bucket, ""),
    ("lhotse", "DynamicBucketingSampler", plan_with_lhotse, AN_OBJECT),
    (
        *("torch-geometric", "DynamicBatchSampler", plan_with_torch_geometric),
        f"{AN_OBJECT} and copies what is left of the order for every batch",
    ),
]
TITLES = ("best", "median", "best / argsort", "zero-padding rate")


def timed_plans(lengths: np.ndarray) -> str:
    """A Markdown table of everything timed on these lengths."""
    keys = np.random.default_rng(1).random(len(lengths))
    argsort = seconds_each(lambda: np.argsort(keys), REPEATS)

    def row(name: str, times: list[float], padding: str) -> list[str]:
        median = readable(statistics.median(times)) if len(times) > 1 else "one run"
        return [name, readable(min(times)), median, f"{min(times) / min(argsort):.1f}", padding]

    plan = plan_with_batching(lengths)
    times, padding = seconds_each(plan, REPEATS), padding_percent(lengths, plan())
    rows = [row("numpy argsort", argsort, "")]
    rows += [row("**plan_epoch**: semi_sorted, DBS, BR", times, padding)]
    for package, sampler, prepare, why_not_large in LIBRARIES:
        name = f"{package} {sampler}"
        print(f"{len(lengths):,} clips: {name}", file=sys.stderr)
        if why_not_large and len(lengths) >= LARGE:
            rows.append([name, why_not_large, "", "", ""])
            continue
        try:
            importlib.metadata.version(package)
            plan = prepare(lengths)
        except importlib.metadata.PackageNotFoundError:
            rows.append([name, f"not installed: pip install {package}", "", "", ""])
        except (ImportError, OSError) as error:  # installed, but not for this torch
            rows.append([name, f"cannot be imported: {error}", "", "", ""])
        else:
            padding = padding_percent(lengths, plan())  # which is also the run that warms up
            # Planning that takes minutes is not repeated.
            times = seconds_each(plan, 1 if len(lengths) >= LARGE else REPEATS)
            rows.append(row(name, times, padding))
    return markdown_table([f"{len(lengths):,} clips", *TITLES], rows)


def seconds_each(run: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result  # freeing it is not timed
    return times


def readable(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


def padding_percent(lengths: np.ndarray, batches: list) -> str:
    """The batches' zero-padding rate; refuses batches that are not an epoch."""
    if hasattr(batches[0], "ids"):  # lhotse hands out the clips themselves
        batches = [[int(name) for name in batch.ids] for batch in batches]
    clips = np.sort(np.concatenate([np.asarray(batch) for batch in batches]))
    if not np.array_equal(clips, np.arange(len(lengths))):
        raise RuntimeError("a sampler left out or repeated clips: its time would mean nothing")
    return f"{100 * padding_stats(lengths, batches).zero_padding_rate:.2f} %"


def peak_bytes_per_clip(lengths: np.ndarray) -> float:
    """The most memory that planning holds at once, with the finished plan, per clip."""
    plan = plan_with_batching(lengths)
    tracemalloc.start()
    batches = plan()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del batches
    return peak / len(lengths)


def lengths_for(count: int, known: np.ndarray | None) -> np.ndarray:
    rng = np.random.default_rng(0)
    if known is not None:
        return rng.choice(known, count, replace=count > len(known))
    return (ljspeech.seconds_at(rng.random(count)) * FRAMES_A_SECOND).astype(np.int64)


def package_versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in ("numpy", "torch", *(library[0] for library in LIBRARIES)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the table says so
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{SMALL:,} clips only")
    parser.add_argument("--lengths", type=Path, help="CSV or filelist to draw the clips from")
    parser.add_argument("--save", action="store_true", help="write the report to results/")
    args = parser.parse_args()
    known, source = None, "distributed as LJSpeech's, in frames of 12.5 ms"
    if args.lengths is not None:
        try:
            known = read_lengths(args.lengths, HParams()).frames
        except UserError as error:
            sys.exit(f"planning.py: {error}")
        source = f"drawn from the {len(known):,} of {args.lengths.name}, frames of 256 samples"
    date = datetime.date.today().isoformat()
    report = []

    def say(paragraph: str) -> None:
        report.append(paragraph)
        print(f"{paragraph}\n", flush=True)

    say("# Planning an epoch")
    say(
        f"- date: {date}\n- machine: {machine(torch.device('cpu'))}\n"
        f"- versions: {package_versions()}\n"
        f"- lengths: {source}\n- {BATCH_SIZE} clips a batch, or {BATCH_SIZE} x the longest clip as "
        f"capacity; best and median of {REPEATS} where not said otherwise; benchmarks/planning.py "
        "says what is timed"
    )
    for size in [SMALL] if args.quick else [SMALL, LARGE]:
        say(timed_plans(lengths_for(size, known)))
    for size in [SMALL] if args.quick else [SMALL, LARGE // 10, LARGE]:
        peak = peak_bytes_per_clip(lengths_for(size, known))
        say(f"- plan_epoch, {size:,} clips: {peak:.0f} bytes per clip at the peak")
    if args.save:
        path = ROOT / "benchmarks" / "results" / f"planning-{date}-cpu.md"
        text = "\n\n".join(report) + "\n"
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
