"""Time the fast decoder's four loops and each of their launches on a GPU, a decoder step.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --batch-size 64 --frames 203 --symbols 32 --json kernels.json

The model has full size and runs on noise; times are in microseconds. "late" is without programmatic
dependent launch: each launch begins when the one before it has ended. Single launches are measured
by torch's profiler, late and outside graphs, without the gaps between them. Beside them are the
predictions of a model of the machine code (research/results/kernels-2026-11-22-compiled.md).
"""

import project_root

import argparse
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import fast_path, options
from benchmarks.timing import median_and_range, publish, time_in_turns
from hparams import create_hparams
from model import Decoder
from tacotron2_voice.utils.console import markdown_table
from training.trainer import AUTOCAST_DTYPES

if not fast_path.IS_HERE:
    sys.exit(f"kernels.py: {fast_path.MISSING}")
import fast_decoder
from fast_decoder import graphs
from fast_decoder.parity import Problem
from fast_decoder.self_check import kernel_loops

PRECISIONS = ("bf16", "tf32", "fp32")
# The launches of a decoder step by loop and kernel, and their modelled microseconds in each of
# PRECISIONS: 16 clips of 120 symbols on an H200.
LAUNCHES = {
    ("attention_forward", "lstm_step"): (3.2, 5.2, 7.5),
    ("attention_forward", "attention_energies"): (2.7, 2.7, 3.1),
    ("attention_forward", "attention_context"): (1.5, 1.5, 1.5),
    ("lstm_forward", "lstm_step"): (2.6, 3.9, 5.4),
    ("lstm_backward", "gradient_product"): (2.9, 3.7, 5.5),
    ("lstm_backward", "cell_gradient"): (1.6, 1.6, 1.6),
    ("attention_backward", "gradient_product"): (3.8, 5.2, 8.1),
    ("attention_backward", "attention_gradient"): (2.5, 2.5, 2.5),
    ("attention_backward", "cell_gradient"): (3.3, 3.3, 3.6),
}
LOOPS = tuple(dict.fromkeys(loop for loop, _ in LAUNCHES))


class RecordedLoops:
    """The kernels' loops, which keep what they were called with, to be repeated: `calls`."""

    loops: graphs.Graphs

    def __init__(self) -> None:
        self.calls: dict[str, Callable] = {}

    def for_batch(self, *batch) -> "RecordedLoops":
        self.loops = kernel_loops(*batch)
        self.operand_dtype = self.loops.operand_dtype
        return self

    def __getattr__(self, name: str) -> Callable:
        def call(*buffers):
            self.calls[name] = functools.partial(getattr(self.loops, name), *buffers)
            return self.calls[name]()

        return call


def record_loops(args: argparse.Namespace, precision: str) -> RecordedLoops:
    """The four loops of a forward and a backward pass over noise."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    recorded = RecordedLoops()
    clips = (args.symbols,) * args.batch_size
    problem = Problem.random(Decoder(args.hparams), clips, args.frames, 0)
    function = functools.partial(fast_decoder.teacher_forced, loops_for=recorded.for_batch)
    problem.to(device=args.device).run(function, precision=AUTOCAST_DTYPES[precision])
    return recorded


def launch_durations(recorded: RecordedLoops, name: str) -> dict[str, list[float]]:
    """Microseconds of every launch of a loop by the kernel's name, made outside graphs."""
    for loop in vars(recorded.loops).values():
        if hasattr(loop, "graph"):
            loop.graph = None
    recorded.calls[name]()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        recorded.calls[name]()
        torch.cuda.synchronize()
    durations = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            durations[event.name].append(event.time_range.elapsed_us())
    return durations


def measure(args: argparse.Namespace, precision: str) -> tuple[list[dict], list[dict]]:
    """Rows of the loops, early and late, and of the launches."""
    loops: list[dict[str, Any]] = []
    for early in (True, False):
        graphs.EARLY_LAUNCHES = early
        recorded = record_loops(args, precision)
        title = precision if early else f"{precision}, late"
        times = time_in_turns(recorded.calls, args.repeats, args.device, warm_up=2, title=title)
        steps = {name: 1e6 * times[name] / args.frames for name in LOOPS}
        steps["together"] = np.sum(list(steps.values()), axis=0)
        loops.append({"setting": title} | {name: us.tolist() for name, us in steps.items()})
    launches: list[dict[str, Any]] = []
    durations = {loop: launch_durations(recorded, loop) for loop in LOOPS}
    for (loop, kernel), modelled in LAUNCHES.items():
        measured = durations[loop][kernel]  # none where the profiler saw no such kernel
        us = float(np.median(measured)) if measured else None
        row = {"launch": f"{loop}: {kernel}", "precision": precision, "us": us}
        launches.append(row | {"modelled_us": modelled[PRECISIONS.index(precision)]})
    return loops, launches


def tables(loops: list[dict], launches: list[dict]) -> str:
    """Markdown."""
    names = [*LOOPS, "together"]
    rows = [[row["setting"], *(median_and_range(row[n], 1) for n in names)] for row in loops]
    times = []
    for launch, precision, us, modelled in map(dict.values, launches):
        cell = "not measured" if us is None else f"{us:.1f}"
        times.append([launch, precision, cell, f"{modelled:.1f}"])
    titles = ["launch", "precision", "us", "modelled for 16 clips of 120 symbols"]
    return f"{markdown_table(['setting', *names], rows)}\n\n{markdown_table(titles, times, 2)}"


def main(arguments: list[str] | None = None) -> None:
    parser = options.measuring_parser(__doc__, batch_size=16, frames=774, symbols=120, repeats=10)
    args = parser.parse_args(arguments)
    args.hparams = create_hparams(args.hparams)
    problem = graphs.problem(args.device, torch.float32)
    if problem is not None:
        parser.error(f"--device {args.device}: the kernels do not run there: {problem}")
    sizes = {name: getattr(args, name) for name in ("batch_size", "frames", "symbols")}
    result: dict[str, Any] = sizes | {"loops": [], "launches": []}
    text = (
        "{batch_size} clips of {frames} frames and {symbols} symbols; microseconds a decoder step"
    )
    for precision in PRECISIONS:  # published one by one, so that a kill leaves what is done
        loops, launches = measure(args, precision)
        result["loops"] += loops
        result["launches"] += launches
        markdown = tables(loops, launches)
        publish(args, result, f"{text.format(**sizes)}, medians and ranges\n\n{markdown}\n")


if __name__ == "__main__":
    main()
