"""A training step with the fast decoder beside one with the reference decoder.

    python benchmarks/decoder.py                                            # 16 clips of 400 frames
    python benchmarks/decoder.py --frames 774 --symbols 120 --precision bf16 --json decoder.json

The full-size model, clips of equal length, random texts and mels. A step is forward pass, loss,
backward pass, clipping of the gradient norm and fused Adam. Both decoders run in turns in one
process, and the ratios are those of medians. Peak memory is the whole process's (on a GPU: what
torch had allocated there), measured in a separate process for each decoder.

The limit is the time that a training step's arithmetic alone would take: its FLOP over the speed of
one large square matrix product on this machine in this precision.
"""

import project_root

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from analysis import arguments as options
from analysis import fast_path
from analysis.timing import median_and_range, time_in_turns
from data_utils import synthetic_batch
from files import write_json
from hparams import HParams, create_hparams
from machine import measured_on, peak_memory, reset_peak_memory, seconds_of
from tables import markdown_table
from training.trainer import AUTOCAST_DTYPES, DECODERS, MicroBatch, Trainer

if not fast_path.IS_HERE:
    sys.exit(f"decoder.py: {fast_path.MISSING}")
from fast_decoder import describe

SIZES = ("batch_size", "frames", "symbols", "precision", "repeats")
PRODUCT = {"cpu": 2048, "cuda": 8192}  # rows and columns of the product that sets the limit


class Workload:
    """The full-size model, its optimizer and one batch."""

    def __init__(self, args: argparse.Namespace):
        clips = args.batch_size
        batch = synthetic_batch([args.frames] * clips, [args.symbols] * clips, args.hparams)
        self.trainer, self.batch = Trainer(args.hparams, args.device), batch.to(args.device)

    def step(self, decoder: str) -> None:
        self.trainer.use_decoder(decoder)
        self.trainer.step([MicroBatch(self.batch)])


def product_speed(device: torch.device, precision: str) -> float:
    """FLOP a second of a large square matrix product; call it once torch's switches are set."""
    size, dtype = PRODUCT[device.type], AUTOCAST_DTYPES[precision] or torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = [seconds_of(device, torch.mm, a, b) for _ in range(6)]
    return float(2 * size**3 / np.median(times[1:]))


def step_flop(workload: Workload, args: argparse.Namespace) -> int:
    """Operations of the products and convolutions of a training step with the reference decoder.

    torch counts them as they run, but for the encoder's LSTM: three products, forwards and for the
    gradients of both factors, of 4 gates by inputs and state, in both directions.
    """
    with FlopCounterMode(display=False) as counter:
        workload.step("reference")
    inputs = args.hparams.encoder_embedding_dim
    lstm = 3 * 2 * 2 * 4 * (inputs // 2) * (inputs + inputs // 2)
    return counter.get_total_flops() + args.batch_size * args.symbols * lstm


def peak_memory_of_steps(args: argparse.Namespace, name: str) -> int:
    """The most bytes that a step held, the optimizer's state included."""
    workload = Workload(args)
    for _ in range(2):
        workload.step(name)
    if args.device.type == "cuda":  # what compiling and capturing took for a moment does not count
        reset_peak_memory(args.device)
        workload.step(name)
        torch.cuda.synchronize(args.device)
    return peak_memory(args.device)


def in_a_process(measure: Callable, *arguments: Any) -> Any:
    """`measure(*arguments)` in a fresh process; None where it failed, out of memory for example."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, *arguments).result()
        except Exception as error:
            print(f"decoder.py: memory not measured: {error}", file=sys.stderr)
            return None


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """For the JSON file; the seconds are of every repeat."""
    memory: dict[str, Any] = dict.fromkeys(DECODERS)
    if not args.no_memory:
        memory = {name: in_a_process(peak_memory_of_steps, args, name) for name in DECODERS}
    workload = Workload(args)
    tasks = {name: partial(workload.step, name) for name in DECODERS}
    times = time_in_turns(tasks, args.repeats, args.device, warm_up=args.warm_ups)
    medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
    flop = step_flop(workload, args)
    speed = product_speed(args.device, args.precision)
    result = {name: getattr(args, name) for name in SIZES} | {
        "speedup": medians["reference"] / medians["fast"],
        "flop_per_step": flop,
        "product_flop_per_second": speed,
        "limit_seconds": flop / speed,
        "peak_memory_bytes": memory,
        "peak_memory_ratio": memory["fast"] / memory["reference"] if all(memory.values()) else None,
        "fast_decoder": describe(args.device),
        "all_seconds": {name: seconds.tolist() for name, seconds in times.items()},
    }
    for name, seconds in medians.items():
        result[f"{name}_frames_per_second"] = args.batch_size * args.frames / seconds
        result[f"{name}_share_of_limit"] = flop / speed / seconds
    return result | measured_on(args.device)


def report(result: dict[str, Any]) -> str:
    """Markdown."""
    seconds = (median_and_range(np.array(result["all_seconds"][name])) for name in DECODERS)
    speeds = (f"{result[f'{name}_frames_per_second']:,.0f}" for name in DECODERS)
    shares = (f"{result[f'{name}_share_of_limit']:.1%}" for name in DECODERS)
    rows = [
        ["step, s", *seconds, f"{result['speedup']:.2f} x as fast"],
        ["mel frames a second", *speeds, ""],
        [f"share of the limit, {result['limit_seconds']:.4f} s", *shares, ""],
    ]
    if result["peak_memory_ratio"]:
        memory = (f"{result['peak_memory_bytes'][name] / 1e9:.2f} GB" for name in DECODERS)
        rows.append(["peak memory", *memory, f"{result['peak_memory_ratio']:.2f} x the bytes"])
    gflop, speed = result["flop_per_step"] / 1e9, result["product_flop_per_second"] / 1e9
    return (
        f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
        f"{result['batch_size']} clips of {result['frames']} frames and {result['symbols']} "
        f"symbols; medians and ranges of {result['repeats']}; fast: {result['fast_decoder']}\n"
        f"A step has {gflop:,.1f} GFLOP; a large product runs at {speed:,.0f} GFLOP/s.\n\n"
    ) + markdown_table(["", *DECODERS, "fast over reference"], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    add = parser.add_argument
    options.add_measuring_options(parser)
    add("--precision", type=options.precision, default="fp32", help="tf32: on GPUs only")
    options.add_size_options(parser, frames=400, symbols=80)
    add("--repeats", type=options.at_least_one, default=5, help="default: %(default)s")
    add("--warm-ups", type=options.whole_number(0), default=1, help="default: %(default)s")
    add("--no-memory", action="store_true", help="leave peak memory out")
    add("--hparams", default="", metavar="name=value,...", help="change the full-size model")
    args = parser.parse_args(arguments)
    args.hparams = create_hparams(args.hparams, HParams(precision=args.precision))
    result = measure(args)
    print(report(result))
    if args.json:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
