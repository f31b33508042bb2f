"""Microseconds a decoder step of each of the fast decoder's four loops on a GPU.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --batch-size 64 --frames 203 --symbols 32 --json kernels.json

Full-size model, random values, medians. "late" is without programmatic dependent launch: each
launch begins when the one before it has ended. What the loops take together is the decoder's
floor; benchmarks/decoder.py measures it with all around it.
"""

import project_root

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from fast_decoder import graphs as decoder_graphs
from files import write_json
from hparams import HParams
from training.measuring import machine, versions

OPERANDS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def setting_of(args: argparse.Namespace, precision: str, early: bool) -> decoder_graphs.Setting:
    hparams, device = HParams(), torch.device(args.device)
    return decoder_graphs.Setting(
        device=device,
        dtype=torch.float32,
        operand_dtype=OPERANDS[precision],
        tf32=precision == "tf32",
        clips=decoder_graphs.bucket(args.batch_size, args.symbols)[0],
        symbols=decoder_graphs.bucket(args.batch_size, args.symbols)[1],
        attention_size=hparams.attention_rnn_dim // args.shrink,
        context_size=hparams.encoder_embedding_dim // args.shrink,
        decoder_size=hparams.decoder_rnn_dim // args.shrink,
        dim=hparams.attention_dim // args.shrink,
        kernel_size=hparams.attention_location_kernel_size,
        p_attention_dropout=hparams.p_attention_dropout,
        p_decoder_dropout=hparams.p_decoder_dropout,
        differentiable=True,
        early_launch=early,
        stream=torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0,
    )


def loops(graphs: decoder_graphs.Graphs, args: argparse.Namespace) -> dict[str, Callable]:
    """The four loops over buffers of random values."""
    s, steps, clips, symbols = graphs.setting, args.frames, args.batch_size, args.symbols
    generator = torch.Generator(s.device).manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator, device=s.device)

    def kept(size: int) -> torch.Tensor:
        return random(steps, clips, size) < 1.28  # nine tenths

    size, hidden, width = s.attention_size, s.decoder_size, s.attention_size + s.context_size
    keep, decoder_keep = kept(size), kept(hidden)
    memory, keys = random(clips, symbols, s.context_size), random(clips, symbols, s.dim)
    weights = (random(4 * size, width, scale=0.03), random(s.dim, size, scale=0.03))
    location = (random(s.dim, 2 * s.kernel_size, scale=0.1), random(s.dim, scale=0.1))
    gates, cells = random(steps, clips, 4 * size).sigmoid(), random(steps, clips, size)
    states = random(steps, clips, width)
    alignments = torch.softmax(random(steps, clips, symbols), dim=2)
    past = torch.zeros(steps, clips, 2, symbols + s.kernel_size - 1, device=s.device)
    mask = torch.zeros(clips, symbols, dtype=torch.bool, device=s.device)
    buffers = (gates, cells, states, alignments, past)
    gradients = (random(steps, clips, width), None)
    gradients += (random(steps, clips, s.context_size), random(steps, clips, s.dim))
    decoder = (decoder_keep, random(4 * hidden, hidden, scale=0.03))
    decoder += (random(steps, clips, 4 * hidden).sigmoid(), random(steps, clips, hidden))
    outputs = random(steps, clips, hidden + s.context_size)
    return {
        "attention forward": lambda: graphs.attention_forward(
            keep, mask, memory, keys, *weights, *location, *buffers
        ),
        "decoder LSTM forward": lambda: graphs.decoder_forward(*decoder, outputs),
        "attention backward": lambda: graphs.attention_backward(
            keep, memory, keys, *weights, *location, *buffers, *gradients
        ),
        "decoder LSTM backward": lambda: graphs.decoder_backward(*decoder, outputs),
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


def measure(args: argparse.Namespace) -> list[dict]:
    rows = []
    for precision in args.precisions.split(","):
        for early in (True, False):
            graphs = decoder_graphs.Graphs(setting_of(args, precision, early))
            times = {name: microseconds(loop, args) for name, loop in loops(graphs, args).items()}
            name = f"{precision}{'' if early else ', late'}"
            rows.append({"setting": name, **times, "together": sum(times.values())})
            print(f"measured {name}", file=sys.stderr, flush=True)
            if args.json:  # anew for every setting, so that a kill leaves what is done
                save(rows, args)
    return rows


def save(rows: list[dict], args: argparse.Namespace) -> None:
    result = {"rows": rows, "versions": versions(), "device": machine(torch.device(args.device))}
    result |= {name: getattr(args, name) for name in ("batch_size", "frames", "symbols")}
    write_json(args.json, result)


def table(rows: list[dict]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    for row in rows:
        cells = [row["setting"], *(f"{row[name]:.1f}" for name in names[1:])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--frames", type=int, default=774)
    parser.add_argument("--symbols", type=int, default=120)
    parser.add_argument("--precisions", default="bf16,tf32,fp32", help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    parser.set_defaults(shrink=1)
    args = parser.parse_args()
    unknown = set(args.precisions.split(",")) - set(OPERANDS)
    if unknown:
        parser.error(f"--precisions {args.precisions}: expected some of {', '.join(OPERANDS)}")
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here, and only there are there kernels to measure")
    problem = decoder_graphs.problem(torch.device(args.device), torch.float32)
    if problem is not None:
        parser.error(f"--device {args.device}: {problem}")
    rows = measure(args)
    print(
        f"{machine(torch.device(args.device))}, torch {torch.__version__}: microseconds a step, "
        f"{args.batch_size} clips of {args.frames} frames and {args.symbols} symbols\n"
    )
    print(table(rows))
    if args.json:
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
