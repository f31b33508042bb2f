"""Samplers that batch by length, side by side in four processes: other packages' and ours.

    pip install transformers accelerate lhotse speechbrain torch-geometric
    python benchmarks/samplers.py > samplers.md

The clips are LJSpeech's, in frames of 12.5 ms. Each sampler is used as its package documents it for
several processes, with batches of 16 clips or, where sizes vary, a capacity of 16 x the longest
clip. What is tried, and measured:

    padding         of what is computed
    imbalance       of padded frames: the largest batch of each step over the mean of the four
    novelty         of the pairs that share a batch, the fraction that shared none an epoch ago
    lost, repeated  the most clips of an epoch that came in no batch, or once too often
    resumed         new processes complete an epoch with the same batches: by the sampler's state,
                    or by replaying the epoch and skipping those drawn; "no" if they are others
    4 to 2          the same with two processes: "yes" if the same clips come
    ms              of CPU time to plan and draw one process's epoch: the median of --rounds, in
                    which samplers take turns
"""

import project_root

import copy
import importlib.metadata
import itertools
import os
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from analysis.arguments import at_least_one, make_parser
from batching import STRATEGIES, LengthBatchSampler
from batching_costs import padding_stats, pair_novelty, read_lengths
from machine import machine
from tables import markdown_table

LJSPEECH = Path(__file__).resolve().parents[1] / "tests" / "data" / "ljspeech" / "lengths.csv"
SAMPLES_PER_FRAME = 276  # 12.5 ms, as in Ge et al.
SIZE, PROCESSES, FEWER = 16, 4, 2
DYNAMIC: Any = {"dynamic_batch_size": True, "batch_randomization": True}
SAMPLERS = (
    "semi_sorted_exponential,semi_sorted,torch random,transformers group_by_length,"
    "transformers batch_rebalance,lhotse 10 buckets,lhotse 30 buckets,speechbrain 100 buckets,"
    "torch-geometric,NeMo Automodel's rule"
)
PACKAGES = "torch numpy transformers accelerate lhotse speechbrain torch-geometric".split()
TITLES = "sampler,padding %,steps,largest / capacity,imbalance,novelty,lost,repeated,resumed,4 to 2"
FORMATS = "{:.2f}", "{:,.0f}", "{:.3f}", "{:.3f}", "{:.3f}"
Batches = list[list[int]]
Epoch = list[Batches]  # of each process


def begin(name: str, x: np.ndarray, rank: int, world_size: int) -> Any:
    """The sampler of a name for the lengths `x`; trainers seed all processes alike."""
    random.seed(0)
    torch.manual_seed(0)
    if name in STRATEGIES:  # ours
        options: Any = {"batches_per_update": PROCESSES, "rank": rank, "world_size": world_size}
        if name == "semi_sorted_exponential":
            options["local_randomization_factor"] = 0.035
        return LengthBatchSampler(x, SIZE, name, **DYNAMIC, **options)
    clips: Any = range(len(x))
    capacity, lengths = SIZE * int(x.max()), x.tolist()
    package, _, kind = name.partition(" ")
    if package == "torch":
        return BatchSampler(DistributedSampler(clips, world_size, rank), SIZE, drop_last=False)
    if package == "NeMo":
        return SortedWindows(x, rank, world_size)
    if package == "lhotse":
        from lhotse import CutSet, MonoCut
        from lhotse.dataset import DynamicBucketingSampler

        cuts = CutSet.from_cuts(MonoCut(str(i), 0, lengths[i] / 80, 0) for i in clips).to_eager()
        sizes: Any = {"max_duration": capacity / 80, "num_buckets": int(kind.split()[0])}
        ranks: Any = {"rank": rank, "world_size": world_size}
        return DynamicBucketingSampler(cuts, shuffle=True, **sizes, **ranks)
    if package == "speechbrain":
        from speechbrain.dataio.sampler import DistributedSamplerWrapper, DynamicBatchSampler

        batches: Any = DynamicBatchSampler(clips, capacity, 100, lengths_list=lengths)
        return DistributedSamplerWrapper(batches, num_replicas=world_size, rank=rank)
    from accelerate.data_loader import BatchSamplerShard  # by which the Trainer distributes

    if package == "torch-geometric":  # which has no ranks of its own
        from torch_geometric.data import Data
        from torch_geometric.loader import DynamicBatchSampler

        graphs = [Data(num_nodes=length) for length in lengths]
        batches = DynamicBatchSampler(graphs, capacity, shuffle=True)
    elif kind == "group_by_length":
        from transformers.trainer_pt_utils import LengthGroupedSampler

        batches = BatchSampler(LengthGroupedSampler(SIZE, lengths=lengths), SIZE, drop_last=False)
    else:
        from transformers.trainer_pt_utils import BatchRebalanceSampler

        sizes = {"effective_batch_size": SIZE * world_size, "dp_size": world_size, "grad_accum": 1}
        batches = BatchRebalanceSampler(lengths, rank=rank, drop_last=False, **sizes)
        return BatchSamplerShard(batches, 1, 0)  # it has its rank already, so the Trainer does so
    return BatchSamplerShard(batches, world_size, rank)


class SortedWindows:
    """The rule of NeMo Automodel's pull request 3473: windows of 2,048 shuffled clips are sorted
    and cut at a budget of padded tokens; batches that not every rank would get are left out."""

    def __init__(self, lengths: np.ndarray, rank: int, world_size: int):
        self.lengths, self.rank, self.world_size = lengths, rank, world_size

    def set_epoch(self, epoch: int) -> None:
        rng, x = np.random.default_rng(epoch), self.lengths
        order, capacity = rng.permutation(len(x)), SIZE * x.max().item()
        batches: Batches = []
        for window in np.split(order, range(2048, len(x), 2048)):
            batches.append([])
            for clip in window[np.argsort(x[window])].tolist():
                if (len(batches[-1]) + 1) * x.item(clip) > capacity:
                    batches.append([])
                batches[-1].append(clip)
        end = len(batches) // self.world_size * self.world_size
        chosen = rng.permutation(len(batches))[self.rank : end : self.world_size]
        self.batches = [batches[number] for number in chosen]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


def draw(sampler: Any, epoch: int | None = None) -> Iterator[list[int]]:
    """An epoch's batches. Trainers look for set_epoch in these places."""
    for owner in (sampler, getattr(sampler, "sampler", 0), getattr(sampler, "batch_sampler", 0)):
        if epoch is not None and hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)
    for batch in sampler:
        # lhotse's hold the clips, whose names are their numbers
        yield [int(name.partition("_")[0]) for name in getattr(batch, "ids", ())] or batch


def resumed(start: Callable[[int, int], Any], whole: Epoch, world_size: int) -> str:
    """How epoch 1, stopped in its middle, is completed; "no" if it is not. `start` makes the
    sampler of a rank and a number of processes."""
    sampler, drawn, rest = start(0, PROCESSES), len(whole[0]) // 2, []
    for epoch, count in ((0, None), (1, drawn)):
        list(itertools.islice(draw(sampler, epoch), count))
    state = None
    if isinstance(sampler, LengthBatchSampler):
        state = sampler.state_dict(PROCESSES * drawn)
    elif hasattr(sampler, "state_dict"):
        state = sampler.state_dict()
    for rank in range(world_size):
        sampler = start(rank, world_size)
        if hasattr(sampler, "num_processes"):  # accelerate's, which its Trainer wraps once more
            from accelerate.data_loader import SkipBatchSampler

            sampler = SkipBatchSampler(sampler)
        if state is None:
            rest.append(list(draw(sampler, 1))[drawn:])
        else:
            sampler.load_state_dict(copy.deepcopy(state))
            rest.append(list(draw(sampler)))
    if world_size == PROCESSES:
        same = rest == [batches[drawn:] for batches in whole]
        return "no" if not same else "replay" if state is None else "state"
    batches = [batch for each in (*(batches[:drawn] for batches in whole), *rest) for batch in each]
    every = itertools.chain(*itertools.chain(*whole))
    return "yes" if sorted(itertools.chain(*batches)) == sorted(every) else "no"


def both_with_once(*epochs: Batches) -> list[Batches]:
    """Both without the clips that one of them lost or repeated."""
    counts = [Counter(itertools.chain(*batches)) for batches in epochs]
    once = {clip for clip in counts[0] if all(count[clip] == 1 for count in counts)}
    kept = [[[clip for clip in batch if clip in once] for batch in batches] for batches in epochs]
    return [[batch for batch in batches if batch] for batches in kept]


def cells(name: str, frames: np.ndarray, count: int) -> list[str]:
    """The columns TITLES: means and maxima over all epochs but the first."""
    drawn, found, missed, start = [], [], [], partial(begin, name, frames)
    for rank in range(PROCESSES):
        sampler = start(rank, PROCESSES)
        drawn.append([list(draw(sampler, epoch)) for epoch in range(count + 1)])
    epochs = [list(epoch) for epoch in zip(*drawn, strict=True)]
    capacity = SIZE * frames.max()
    for before, now in itertools.pairwise(epochs):
        batches, batches_before = (list(itertools.chain(*epoch)) for epoch in (now, before))
        stats = padding_stats(frames, batches)
        cost = [[len(b) * frames[b].max() for b in step] for step in zip(*now, strict=False)]
        imbalance = np.max(cost, axis=1).sum() / np.mean(cost, axis=1).sum()
        novelty = pair_novelty(*both_with_once(batches, batches_before))
        largest = stats.largest_batch_frames / capacity
        measured = (stats.decoder_steps, largest, imbalance, novelty)
        found.append((100 * stats.padded_fraction, *measured))
        times = np.bincount(list(itertools.chain(*batches)), minlength=len(frames))
        missed.append(((times == 0).sum(), np.maximum(times - 1, 0).sum()))
    values = np.mean(found, axis=0)
    values[2] = np.max(found, axis=0)[2]  # the largest batch of all
    shown = [form.format(value) for form, value in zip(FORMATS, values, strict=True)]
    line = [name, *shown, *map(str, np.max(missed, axis=0))]
    for world_size in (PROCESSES, FEWER):
        try:
            line.append(resumed(start, epochs[1], world_size))
        except Exception as error:
            line.append(type(error).__name__)
    return line


def read_corpus() -> np.ndarray:
    """LJSpeech's clips in frames."""
    return 1 + read_lengths(str(LJSPEECH)).astype(int) // SAMPLES_PER_FRAME


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--epochs", type=at_least_one, default=5, help="default: %(default)s")
    parser.add_argument("--rounds", type=at_least_one, default=25, help="default: %(default)s")
    args = parser.parse_args()
    frames = read_corpus()
    warnings.simplefilter("ignore")  # lhotse's, of cuts that are in memory
    lines, timed, missing, numbers = [], [], [], itertools.count()
    for name in SAMPLERS.split(","):
        try:
            lines.append(cells(name, frames, args.epochs))
        except (ImportError, OSError) as error:  # OSError: installed, but not for this torch
            missing.append(f"\nMissing: {name}, for {error}.")
        else:
            timed.append(begin(name, frames, 0, PROCESSES))

    def cpu_seconds(sampler: Any) -> float:  # whatever else the machine does
        start = time.process_time()
        list(draw(sampler, next(numbers)))
        return time.process_time() - start

    seconds = [[cpu_seconds(sampler) for sampler in timed] for _ in range(args.rounds)]
    for line, median in zip(lines, np.median(seconds, axis=0), strict=True):
        line.append(f"{1000 * median:.3g}")
    known = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    packages = ", ".join(f"{name} {known[name]}" for name in PACKAGES if name in known)
    print(
        f"# Samplers that batch by length\n\n`python benchmarks/samplers.py`, {date.today()}, "
        f"{machine(torch.device('cpu'))}, load {os.getloadavg()[0]:.1f}, {packages}.\n\n"
        f"{len(frames):,} clips of {frames.min()} to {frames.max()} frames, {args.epochs} epochs, "
        f"{args.rounds} rounds.\n"
    )
    print("\n".join([markdown_table([*TITLES.split(","), "ms"], lines), *missing]))


if __name__ == "__main__":
    main()
