"""Time training steps with the fast and with the reference decoder.

    python benchmarks/decoder.py                                            # 16 clips of 400 frames
    python benchmarks/decoder.py --frames 774 --symbols 120 --precision bf16 --json decoder.json
    python benchmarks/decoder.py --only memory

The full-size model, clips of equal length, random texts and mels. A step is forward pass, loss,
backward pass, clipping of the gradient norm and fused Adam. Both decoders run in turns in one
process, and the ratios are those of medians. A repeat is one step of the reference, whose host
keeps no GPU busy, and --steps of the fast decoder in a row: in training too the host prepares a
step while the GPU works on the one before. Peak memory is the whole process's (on a GPU: what torch
had allocated there), measured in a separate process for each decoder.
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

from benchmarks import fast_path, options
from benchmarks.timing import median_and_range, publish, time_in_turns
from data_utils import synthetic_batch
from hparams import HParams
from machine import peak_memory, reset_peak_memory
from tacotron2_voice.utils.arguments import whole_number
from tacotron2_voice.utils.console import markdown_table
from training.trainer import DECODERS, MicroBatch, Trainer

if not fast_path.IS_HERE:
    sys.exit(f"decoder.py: {fast_path.MISSING}")
from fast_decoder import describe

SIZES = ("batch_size", "frames", "symbols", "precision", "repeats", "steps")


def make_steps(args: argparse.Namespace) -> Callable[..., None]:
    """Return a function of a decoder's name and a number that makes so many steps on one batch."""
    clips, trainer = args.batch_size, Trainer(args.hparams, args.device)
    batch = synthetic_batch([args.frames] * clips, [args.symbols] * clips, args.hparams)
    batch = batch.to(args.device)

    def run(decoder: str, steps: int = 1) -> None:
        trainer.use_decoder(decoder)
        for _ in range(steps):
            trainer.step([MicroBatch(batch)])

    return run


def peak_memory_of_steps(args: argparse.Namespace, name: str) -> int:
    """Peak bytes of a step, with the optimizer's state."""
    run = make_steps(args)
    run(name, 2)
    if args.device.type == "cuda":  # without the memory for compiling and capturing
        reset_peak_memory(args.device)
        run(name)
        torch.cuda.synchronize(args.device)
    return peak_memory(args.device)


def in_a_process(measure: Callable, *arguments: Any) -> Any:
    """Run `measure(*arguments)` in a fresh process; None if it fails, such as out of memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, *arguments).result()
        except Exception as error:
            print(f"decoder.py: memory not measured: {error}", file=sys.stderr)
            return None


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    """For the JSON file; None for what was not measured."""
    memory = {name: in_a_process(peak_memory_of_steps, args, name) for name in DECODERS}
    ratio = memory["fast"] / memory["reference"] if all(memory.values()) else None
    return {"peak_memory_bytes": memory, "peak_memory_ratio": ratio}


def measure_speed(args: argparse.Namespace) -> dict[str, Any]:
    """For the JSON file; the seconds are of every repeat."""
    run, steps = make_steps(args), {"fast": args.steps, "reference": 1}
    tasks = {name: partial(run, name, steps[name]) for name in DECODERS}
    times = time_in_turns(tasks, args.repeats, args.device, warm_up=args.warm_ups)
    times = {name: seconds / steps[name] for name, seconds in times.items()}
    medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
    result = {
        "speedup": medians["reference"] / medians["fast"],
        "all_seconds": {name: seconds.tolist() for name, seconds in times.items()},
    }
    for name, seconds in medians.items():
        result[f"{name}_frames_per_second"] = args.batch_size * args.frames / seconds
    return result


def report(result: dict[str, Any]) -> str:
    """Markdown."""
    rows = []
    if "speedup" in result:
        seconds = (median_and_range(result["all_seconds"][name]) for name in DECODERS)
        speeds = (f"{result[f'{name}_frames_per_second']:,.0f}" for name in DECODERS)
        rows = [
            [
                "seconds a step, medians and ranges of {repeats}".format(**result),
                *seconds,
                f"{result['speedup']:.2f} x as fast",
            ],
            ["mel frames a second", *speeds, ""],
        ]
    if "peak_memory_bytes" in result:
        peaks, ratio = result["peak_memory_bytes"], result["peak_memory_ratio"]
        memory = (f"{peaks[n] / 1e9:.2f} GB" if peaks[n] else "not measured" for n in DECODERS)
        rows.append(["peak memory", *memory, f"{ratio:.2f} x the bytes" if ratio else ""])
    return (
        "{precision}, {batch_size} clips of {frames} frames and {symbols} symbols; fast: "
        "{fast_decoder}\n\n".format(**result)
        + markdown_table(["", *DECODERS, "fast over reference"], rows)
    )


def main(arguments: list[str] | None = None) -> None:
    counts = {"batch_size": 16, "frames": 400, "symbols": 80, "repeats": 5}
    parser = options.measuring_parser(__doc__, **counts)
    add = parser.add_argument
    add("--precision", type=options.precision, default="fp32")
    steps_help = "of the fast decoder in a repeat; default: %(default)s"
    add("--steps", type=whole_number(1), default=1, help=steps_help)
    add("--warm-ups", type=whole_number(0), default=1, help="default: %(default)s")
    add("--only", choices=("speed", "memory"), help="measure nothing else; default: both")
    args = parser.parse_args(arguments)
    args.hparams = options.hparams_of_noise(args.hparams, HParams(precision=args.precision))
    result = {name: getattr(args, name) for name in SIZES} | {"fast_decoder": describe(args.device)}
    if args.only != "speed":
        result |= measure_memory(args)
    if args.only != "memory":
        result |= measure_speed(args)
    publish(args, result, report(result))


if __name__ == "__main__":
    main()
