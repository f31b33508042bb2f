"""Microseconds a decoder step of the fast decoder's four loops on a GPU, and of each launch.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --batch-size 64 --frames 203 --symbols 32 --json kernels.json

Full-size model, noise. "late" is without programmatic dependent launch: each launch begins when the
one before it has ended. What the loops take together is the decoder's floor; benchmarks/decoder.py
measures it with all around it. Launches are measured one by one, late and outside graphs, by
torch's profiler: a launch's own time, without what lies between two.
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

from analysis import arguments as options
from analysis import fast_path
from analysis.tables import markdown_table
from analysis.timing import median_and_range, time_in_turns
from files import write_json
from hparams import HParams
from machine import measured_on
from model import Decoder
from training.trainer import AUTOCAST_DTYPES

if not fast_path.IS_HERE:
    sys.exit(f"kernels.py: {fast_path.MISSING}")
import fast_decoder
from fast_decoder import graphs
from fast_decoder.parity import Problem
from fast_decoder.self_check import kernel_loops

LAUNCHES = {  # of a decoder step, by loop
    "attention_forward": ("lstm_step", "attention_energies", "attention_context"),
    "decoder_forward": ("lstm_step",),
    "decoder_backward": ("gradient_product", "cell_gradient"),
    "attention_backward": ("gradient_product", "attention_gradient", "cell_gradient"),
}
PRECISIONS = ("bf16", "tf32", "fp32")


class RecordedLoops:
    """Loops that keep what they were called with: `calls` by name, to be repeated."""

    def __init__(self, loops: graphs.Graphs):
        self.loops, self.operand_dtype = loops, loops.operand_dtype
        self.calls: dict[str, Callable] = {}

    def __getattr__(self, name: str) -> Callable:
        def call(*buffers):
            self.calls[name] = functools.partial(getattr(self.loops, name), *buffers)
            return self.calls[name]()

        return call


def record_loops(args: argparse.Namespace, hparams: HParams, precision: str) -> RecordedLoops:
    """The four loops of a forward and a backward pass over noise."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    recorded: list[RecordedLoops] = []

    def loops_for(*batch) -> RecordedLoops:
        recorded.append(RecordedLoops(kernel_loops(*batch)))
        return recorded[0]

    problem = Problem.random(Decoder(hparams), (args.symbols,) * args.batch_size, args.frames, 0)
    function = functools.partial(fast_decoder.teacher_forced, loops_for=loops_for)
    problem.to(device=args.device).run(function, precision=AUTOCAST_DTYPES[precision])
    return recorded[0]


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


def measure(args: argparse.Namespace, hparams: HParams, precision: str) -> tuple[list, list]:
    """Rows of the loops, early and late, and of the launches."""
    loops = []
    for early in (True, False):
        graphs.EARLY_LAUNCHES = early
        recorded = record_loops(args, hparams, precision)
        title = precision if early else f"{precision}, late"
        times = time_in_turns(recorded.calls, args.repeats, args.device, warm_up=2, title=title)
        steps = {name: 1e6 * times[name] / args.frames for name in LAUNCHES}
        steps["together"] = np.sum(list(steps.values()), axis=0)
        loops.append({"setting": title} | {name: us.tolist() for name, us in steps.items()})
    launches = []
    for name, kernels in LAUNCHES.items():
        durations = launch_durations(recorded, name)
        for kernel in kernels:  # no duration where the profiler saw no such kernel
            us = float(np.median(durations[kernel])) if durations[kernel] else None
            launches.append({"launch": f"{name}: {kernel}", "precision": precision, "us": us})
    return loops, launches


def report(result: dict) -> str:
    """Markdown."""
    names, rows = ["setting", *LAUNCHES, "together"], result["launches"]
    loops = [
        [row["setting"], *(median_and_range(np.array(row[name]), 1) for name in names[1:])]
        for row in result["loops"]
    ]
    shown = ("not measured" if row["us"] is None else f"{row['us']:.1f}" for row in rows)
    launches = [[row["launch"], row["precision"], us] for row, us in zip(rows, shown, strict=True)]
    return (
        f"{result['device']}, torch {result['versions']['torch']}: {result['batch_size']} clips of "
        f"{result['frames']} frames and {result['symbols']} symbols; microseconds a decoder step, "
        f"medians and ranges\n\n{markdown_table(names, loops)}\n\n"
        + markdown_table(["launch", "precision", "us"], launches, 2)
    )


def main(arguments: list[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    options.add_device_option(parser)
    options.add_size_options(parser, frames=774, symbols=120)
    parser.add_argument("--repeats", type=options.at_least_one, default=10)
    options.add_json_option(parser)
    args = parser.parse_args(arguments)
    problem = graphs.problem(args.device, torch.float32)
    if problem is not None:
        parser.error(f"--device {args.device}: the kernels do not run there: {problem}")
    sizes = {name: getattr(args, name) for name in ("batch_size", "frames", "symbols")}
    result: dict[str, Any] = {"loops": [], "launches": []} | sizes | measured_on(args.device)
    for precision in PRECISIONS:
        loops, launches = measure(args, HParams(), precision)
        result["loops"] += loops
        result["launches"] += launches
        if args.json:  # after every precision, so that a kill leaves what is done
            write_json(args.json, result)
    print(report(result))


if __name__ == "__main__":
    main()
