"""Microseconds a decoder step of each of the fast decoder's four loops on a GPU.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --batch-size 64 --frames 203 --symbols 32 --json kernels.json
    python benchmarks/kernels.py --variants     # and each other choice of fast_decoder/graphs.py
    python benchmarks/kernels.py --launches     # each launch of a step beside its model

Full-size model, random values, medians. "late" is without programmatic dependent launch: each
launch begins when the one before it has ended. What the loops take together is the decoder's
floor; benchmarks/decoder.py measures it with all around it. --launches takes launches one by one,
late and outside graphs, from torch's profiler: a launch's own time, without what lies between two.
"""

import project_root

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable

import torch

from analysis import fast_path
from analysis.arguments import (
    add_device_option,
    add_json_option,
    add_size_options,
    at_least_one,
    make_parser,
)
from analysis.decoder_kernels import LOOPS, MODELLED, MODELLED_PRECISIONS, VARIANTS, changed
from analysis.tables import markdown_table
from files import write_json
from hparams import HParams
from training.machine import machine, versions
from training.trainer import AUTOCAST_DTYPES, PRECISIONS

if not fast_path.IS_HERE:
    sys.exit(f"kernels.py: {fast_path.MISSING}")
from fast_decoder import graphs
from fast_decoder.recurrences import AttentionBuffers, LSTMBuffers


def setting_of(args: argparse.Namespace, precision: str, early: bool) -> graphs.Setting:
    hparams, device = HParams(), args.device
    clips, symbols = graphs.bucket(args.batch_size, args.symbols)
    return graphs.Setting(
        device=device,
        dtype=torch.float32,
        operand_dtype=AUTOCAST_DTYPES[precision] or torch.float32,
        tf32=precision == "tf32",
        clips=clips,
        symbols=symbols,
        attention_size=hparams.attention_rnn_dim // args.shrink,
        context_size=hparams.encoder_embedding_dim // args.shrink,
        decoder_size=hparams.decoder_rnn_dim // args.shrink,
        dim=hparams.attention_dim // args.shrink,
        kernel_size=hparams.attention_location_kernel_size,
        p_attention_dropout=hparams.p_attention_dropout,
        p_decoder_dropout=hparams.p_decoder_dropout,
        location_gradient=hparams.attention_location_gradient,
        differentiable=True,
        early_launch=early,
        stream=torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0,
    )


def loops(decoder: graphs.Graphs, args: argparse.Namespace) -> dict[str, Callable]:
    """The four loops over buffers of random values."""
    s, steps, clips, symbols = decoder.setting, args.frames, args.batch_size, args.symbols
    generator = torch.Generator(s.device).manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator, device=s.device)

    def lstm(size: int, inner: int, width: int) -> dict:
        return {
            "keep": random(steps, clips, size) < 1.28,  # nine tenths
            "weight": random(4 * size, inner, scale=0.03),
            "gates": random(steps, clips, 4 * size).sigmoid(),
            "cells": random(steps, clips, size),
            "rows": random(steps, clips, width),
        }

    width = s.attention_size + s.context_size
    past_width = symbols + s.kernel_size - 1
    attention = AttentionBuffers(
        **lstm(s.attention_size, width, width),
        mask=torch.zeros(clips, symbols, dtype=torch.bool, device=s.device),
        memory=random(clips, symbols, s.context_size),
        processed_memory=random(clips, symbols, s.dim),
        query_weight=random(s.dim, s.attention_size, scale=0.03),
        location_weight=random(s.dim, 2 * s.kernel_size, scale=0.1),
        v=random(s.dim, scale=0.1),
        alignments=torch.softmax(random(steps, clips, symbols), dim=2),
        past=torch.zeros(steps, clips, 2, past_width, device=s.device),
    )
    hidden = s.decoder_size
    outputs = LSTMBuffers(**lstm(hidden, hidden, hidden + s.context_size))
    gradients = random(steps, clips, width)
    return {
        "attention forward": lambda: decoder.attention_forward(attention),
        "decoder LSTM forward": lambda: decoder.decoder_forward(outputs),
        "attention backward": lambda: decoder.attention_backward(attention, gradients, None),
        "decoder LSTM backward": lambda: decoder.decoder_backward(outputs, outputs.rows),
    }


def microseconds(loop: Callable, args: argparse.Namespace) -> float:
    """Of a step; the median."""
    times = []
    for repeat in range(args.repeats + 2):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        loop()
        after.record()
        after.synchronize()
        if repeat >= 2:  # warm
            times.append(1000 * before.elapsed_time(after) / args.frames)
    return statistics.median(times)


def measure_loops(args: argparse.Namespace) -> list[dict]:
    rows = []
    for precision in args.precisions.split(","):
        for variant in VARIANTS if args.variants else list(VARIANTS)[:1]:
            for early in (True, False):
                with changed(graphs, VARIANTS[variant]):
                    decoder = graphs.Graphs(setting_of(args, precision, early))
                    times = {
                        name: microseconds(loop, args)
                        for name, loop in loops(decoder, args).items()
                    }
                name = precision + ("" if early else ", late")
                name += f", {variant}" if args.variants else ""
                rows.append({"setting": name, **times, "together": sum(times.values())})
                print(f"measured {name}", file=sys.stderr, flush=True)
                if args.json:  # anew for every setting, so that a kill leaves what is done
                    save({"rows": rows}, args)
    return rows


def measure_launches(args: argparse.Namespace) -> list[dict]:
    """The median duration of each launch, and what is modelled for it where anything is."""
    found = []
    modelled_sizes = (args.batch_size, args.symbols) == (16, 120)
    for precision in args.precisions.split(","):
        decoder = graphs.Graphs(setting_of(args, precision, early=False))
        for (loop_name, names), loop in zip(
            LOOPS.items(), loops(decoder, args).values(), strict=True
        ):
            durations = launch_durations(decoder, loop)
            for name in names:
                modelled = None
                if modelled_sizes and precision in MODELLED_PRECISIONS:
                    modelled = MODELLED[loop_name, name][MODELLED_PRECISIONS.index(precision)]
                times = durations[name]  # none where the profiler saw no such kernel
                measured = statistics.median(times) if times else None
                found.append(
                    {
                        "launch": f"{loop_name}: {name}",
                        "precision": precision,
                        "measured_us": measured,
                        "modelled_us": modelled,
                    }
                )
        print(f"measured {precision}", file=sys.stderr, flush=True)
        if args.json:
            save({"launches": found}, args)
    return found


def launch_durations(decoder: graphs.Graphs, loop: Callable) -> dict[str, list[float]]:
    """Microseconds of every launch of a loop by the kernel's name, made outside graphs."""
    for name in ("_attention", "_decoder", "_attention_backward", "_decoder_backward"):
        getattr(decoder, name).graph = None
    loop()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        loop()
        torch.cuda.synchronize()
    durations = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            durations[event.name].append(event.time_range.elapsed_us())
    return durations


def save(found: dict, args: argparse.Namespace) -> None:
    result = found | {"versions": versions(), "device": machine(args.device)}
    result |= {name: getattr(args, name) for name in ("batch_size", "frames", "symbols")}
    write_json(args.json, result)


def loops_table(rows: list[dict]) -> str:
    cells = [[name, *(f"{time:.1f}" for time in times)] for name, *times in map(dict.values, rows)]
    return markdown_table(list(rows[0]), cells)


def launches_table(found: list[dict]) -> str:
    cells = [
        [
            launch["launch"],
            launch["precision"],
            *(
                "–" if launch[which] is None else f"{launch[which]:.1f}"
                for which in ("measured_us", "modelled_us")
            ),
        ]
        for launch in found
    ]
    return markdown_table(["launch", "precision", "measured us", "modelled us"], cells, 2)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_device_option(parser)
    add_size_options(parser, frames=774, symbols=120)
    add("--precisions", default="bf16,tf32,fp32", help="default %(default)s")
    add("--repeats", type=at_least_one, default=10)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--variants", action="store_true", help="of other choices too")
    which.add_argument("--launches", action="store_true", help="each launch by itself")
    add_json_option(parser)
    parser.set_defaults(shrink=1)
    args = parser.parse_args(arguments)
    unknown = set(args.precisions.split(",")) - set(PRECISIONS)
    if unknown:
        parser.error(f"--precisions {args.precisions}: expected some of {', '.join(PRECISIONS)}")
    if args.device.type != "cuda":
        missing = "" if torch.cuda.is_available() else ", and torch finds no GPU here"
        parser.error(f"--device {args.device}: the kernels run on GPUs only{missing}")
    problem = graphs.problem(args.device, torch.float32)
    if problem is not None:
        parser.error(f"--device {args.device}: {problem}")
    if args.launches:
        table, unit = launches_table(measure_launches(args)), "a launch"
    else:
        table, unit = loops_table(measure_loops(args)), "a step"
    print(
        f"{machine(args.device)}, torch {torch.__version__}: microseconds {unit}, "
        f"{args.batch_size} clips of {args.frames} frames and {args.symbols} symbols\n"
    )
    print(table)
    if args.json:
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
