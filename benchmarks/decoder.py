"""Time optimizer steps with the fast decoder and with the reference decoder.

    python -m benchmarks.decoder                                      # 16 clips of 400 frames
    python -m benchmarks.decoder --frames 774 --symbols 120 --precision bf16 --json decoder.json
    python -m benchmarks.decoder --only memory

The benchmark trains the full-size model on clips of equal length, with random texts and mels. An
optimizer step consists of forward pass, loss, backward pass, gradient clipping and fused Adam. The
fast decoder and the reference decoder run interleaved in the same process. Each ratio in the report is a
ratio of median times.

In each repeat, the reference decoder runs one optimizer step, and the fast decoder runs --steps
optimizer steps in a row. In such a sequence, the host prepares the next optimizer step while the
GPU still runs the current optimizer step, as in training. Peak memory is measured in a separate
process for each decoder. On a CPU, peak memory is the memory of the whole process. On a GPU, peak
memory is the memory that PyTorch has allocated.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.decoder")


import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from batch import synthetic_batch
from benchmarks import options
from benchmarks.timing import median_and_range, publish, time_interleaved
from hparams import HParams, create_hparams
from machine import peak_memory, reset_peak_memory
from tacotron2_voice.utils.arguments import whole_number
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.program import run_program
from training.decoders import DECODERS, choose_decoder
from training.precision import PRECISIONS
from training.trainer import MicroBatch, Trainer

SIZES = ("batch_size", "frames", "symbols", "precision", "repeats", "steps")


def make_steps(args: argparse.Namespace) -> Callable[..., None]:
    """Return a function `run(decoder, steps)` that runs `steps` optimizer steps with the decoder
    named `decoder`."""
    clips = args.batch_size
    trainer = Trainer(args.hparams, args.device)
    batch = synthetic_batch([args.frames] * clips, [args.symbols] * clips, args.hparams)
    batch = batch.to(args.device)

    def run(decoder: str, steps: int = 1) -> None:
        trainer.use_decoder(decoder)
        for _ in range(steps):
            trainer.step([MicroBatch(batch)])

    return run


def peak_memory_of_steps(args: argparse.Namespace, name: str) -> int:
    """Return the peak memory of an optimizer step with the decoder `name`, in bytes. The peak
    memory includes the state of the optimizer."""
    run = make_steps(args)
    run(name, 2)
    # On a GPU, do not measure the memory of the first optimizer steps, because compiling kernels
    # and capturing CUDA graphs need additional memory.
    if args.device.type == "cuda":
        reset_peak_memory(args.device)
        run(name)
        torch.cuda.synchronize(args.device)
    return peak_memory(args.device)


def in_a_process(measure: Callable, *arguments: Any) -> Any:
    """Run `measure(*arguments)` in a new process. On failure, print a warning and return None."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, *arguments).result()
        except Exception as error:
            print(f"warning: measuring memory failed: {error}", file=sys.stderr)
            return None


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    """Return the peak memory of each decoder (None: not measured), and the ratio of the two."""
    memory = {name: in_a_process(peak_memory_of_steps, args, name) for name in DECODERS}
    ratio = memory["fast"] / memory["reference"] if all(memory.values()) else None
    return {"peak_memory_bytes": memory, "peak_memory_ratio": ratio}


def measure_speed(args: argparse.Namespace) -> dict[str, Any]:
    """Return the speeds of both decoders, for the JSON file. `all_seconds` contains the seconds per
    optimizer step in every repeat."""
    run = make_steps(args)
    steps = {"fast": args.steps, "reference": 1}
    tasks = {name: partial(run, name, steps[name]) for name in DECODERS}
    times = time_interleaved(tasks, args.repeats, args.device, warm_up=args.warm_ups)
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
    """Return the results as a Markdown table."""
    rows = []
    if "speedup" in result:
        seconds = (median_and_range(result["all_seconds"][name]) for name in DECODERS)
        speeds = (f"{result[f'{name}_frames_per_second']:,.0f}" for name in DECODERS)
        rows = [
            [
                "seconds per optimizer step, median (range) of {repeats} repeats".format(**result),
                *seconds,
                f"{result['speedup']:.2f} times as fast",
            ],
            ["mel frames per second", *speeds, ""],
        ]
    if "peak_memory_bytes" in result:
        peaks = result["peak_memory_bytes"]
        ratio = result["peak_memory_ratio"]
        memory = (f"{peaks[n] / 1e9:.2f} GB" if peaks[n] else "not measured" for n in DECODERS)
        rows.append(["peak memory", *memory, f"{ratio:.2f} times the memory" if ratio else ""])
    return (
        "precision {precision}, {batch_size} clips of {frames} frames and {symbols} symbols; "
        "fast decoder: {fast_decoder}\n\n".format(**result)
        + markdown_table(["", *DECODERS, "fast decoder compared with reference decoder"], rows)
    )


def main(arguments: list[str] | None = None) -> None:
    parser = options.measuring_parser(
        __doc__,
        batch_size=(16, "number of clips per batch"),
        frames=(400, "length of each clip, in frames"),
        symbols=(80, "number of symbols per text"),
        repeats=(5, "number of timed repeats; the report contains the medians of their times"),
    )
    add = parser.add_argument
    precisions = ", ".join(PRECISIONS)
    precision_help = f"precision of the computation: {precisions} (default: %(default)s)"
    add("--precision", type=options.precision, default="fp32", help=precision_help)
    steps_help = "number of optimizer steps of the fast decoder per repeat (default: %(default)s)"
    add("--steps", type=whole_number(1), default=1, help=steps_help)
    warm_ups_help = "number of untimed repeats before the timed repeats (default: %(default)s)"
    add("--warm-ups", type=whole_number(0), default=1, help=warm_ups_help)
    only_help = "measure only the speed or only the memory (default: both)"
    add("--only", choices=("speed", "memory"), help=only_help)
    args = parser.parse_args(arguments)
    options.check_fast_decoder()
    hparams = create_hparams(args.hparams, HParams(precision=args.precision))
    speakers = ("a", "b") if hparams.speaker_embedding_dim else ()
    args.hparams = replace(hparams, speakers=speakers)
    result = {name: getattr(args, name) for name in SIZES}
    result["fast_decoder"] = choose_decoder("fast", args.device).description
    if args.only != "speed":
        result |= measure_memory(args)
    if args.only != "memory":
        result |= measure_speed(args)
    publish(args, result, report(result))


if __name__ == "__main__":
    run_program(main)
