"""A training step with the fast decoder beside one with the reference decoder.

    python benchmarks/decoder.py                                            # 16 clips of 400 frames
    python benchmarks/decoder.py --frames 774 --symbols 120 --precision bf16 --json decoder.json

The full-size model, clips of equal length, random texts and mels. A step is forward pass, loss,
backward pass, clipping of the gradient norm and fused Adam; "decoder alone" is the decoder's
forward and backward pass. Both decoders run in turns in one process, and the ratios are those of
medians. Peak memory is the whole process's (on a GPU: what torch had allocated there), measured
in a process of its own for each decoder.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import fast_decoder  # noqa: E402
import model  # noqa: E402
from data_utils import Batch  # noqa: E402
from files import write_atomically  # noqa: E402
from hparams import HParams  # noqa: E402

DECODERS = {"reference": model.teacher_forced, "fast": fast_decoder.teacher_forced}
AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Workload:
    """The full-size model, its optimiser and one batch."""

    def __init__(self, args: argparse.Namespace):
        self.device, self.precision = torch.device(args.device), args.precision
        torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
        torch.manual_seed(0)
        hparams = HParams()
        self.model = model.Tacotron2(hparams).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), hparams.learning_rate, fused=True
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.precision == "fp16")
        clips, frames = args.batch_size, args.frames
        gate = torch.zeros(clips, frames)
        gate[:, -1] = 1
        fields = {
            "text": torch.randint(1, hparams.n_symbols, (clips, args.symbols)),
            "text_lengths": torch.full((clips,), args.symbols),
            "mel": torch.randn(clips, hparams.n_mel_channels, frames) - 5,
            "gate": gate,
            "mel_lengths": torch.full((clips,), frames),
        }
        self.batch = Batch(**fields).to(self.device)
        self.memory = torch.randn(
            clips, args.symbols, hparams.encoder_embedding_dim, device=self.device
        )
        self.text_mask = torch.zeros(clips, args.symbols, dtype=torch.bool, device=self.device)

    def autocast(self):
        dtype = AUTOCAST[self.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def step(self, decoder: Callable) -> None:
        self.model.training_decoder = decoder
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            outputs = self.model(self.batch)
        loss = model.Tacotron2Loss()(outputs, self.batch).total
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def decoder_alone(self, decoder: Callable) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        memory = self.memory.detach().requires_grad_()
        masks = self.model.decoder.draw_masks(self.batch.mel.shape[2], len(memory))
        with self.autocast():
            mel, gate, _ = decoder(
                self.model.decoder, memory, self.text_mask, self.batch.mel, masks
            )
            loss = mel.float().square().mean() + gate.float().square().mean()
        loss.backward()

    def seconds(self, run: Callable, decoder: Callable) -> float:
        self.synchronize()
        start = time.perf_counter()
        run(decoder)
        self.synchronize()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(args: argparse.Namespace) -> dict:
    """Seconds of every repeat, the decoders in turns: {"step": {"fast": [...], ...}, ...}."""
    workload = Workload(args)
    runs = {"step": workload.step, "decoder_alone": workload.decoder_alone}
    times = {part: {name: [] for name in DECODERS} for part in runs}
    for repeat in range(args.warm_ups + args.repeats):
        for part, run in runs.items():
            for name, decoder in DECODERS.items():
                seconds = workload.seconds(run, decoder)
                kind = (
                    "warm-up" if repeat < args.warm_ups else f"repeat {repeat - args.warm_ups + 1}"
                )
                print(f"{kind}: {part} {name} {seconds:.4f} s", file=sys.stderr, flush=True)
                if repeat >= args.warm_ups:
                    times[part][name].append(seconds)
    return times


def peak_memory(args: argparse.Namespace, name: str, sender) -> None:
    """Sends the most bytes that two steps held: the second has the optimiser's state."""
    workload = Workload(args)
    for _ in range(2):
        workload.step(DECODERS[name])
    if workload.device.type == "cuda":
        sender.send(torch.cuda.max_memory_allocated())
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def peak_memory_in_a_process(args: argparse.Namespace, name: str) -> int | None:
    """None where the process failed: a memory too small for it, for example."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=peak_memory, args=(args, name, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def report(args: argparse.Namespace, times: dict, memory: dict) -> dict:
    medians = {
        part: {name: statistics.median(values) for name, values in by_name.items()}
        for part, by_name in times.items()
    }
    ratios = {part: median["reference"] / median["fast"] for part, median in medians.items()}
    frames = args.batch_size * args.frames
    held = all(memory.values())
    return {
        "speedup": ratios["step"],
        "reference_seconds": medians["step"]["reference"],
        "fast_seconds": medians["step"]["fast"],
        "reference_frames_per_second": frames / medians["step"]["reference"],
        "fast_frames_per_second": frames / medians["step"]["fast"],
        "decoder_alone_speedup": ratios["decoder_alone"],
        "decoder_alone_reference_seconds": medians["decoder_alone"]["reference"],
        "decoder_alone_fast_seconds": medians["decoder_alone"]["fast"],
        "reference_peak_memory_bytes": memory["reference"],
        "fast_peak_memory_bytes": memory["fast"],
        "peak_memory_ratio": memory["fast"] / memory["reference"] if held else None,
        "all_seconds": times,
        "device": machine(torch.device(args.device)),
        "batch_size": args.batch_size,
        "frames": args.frames,
        "symbols": args.symbols,
        "precision": args.precision,
        "repeats": args.repeats,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "date": datetime.date.today().isoformat(),
    }


def table(result: dict) -> str:
    lines = [
        f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
        f"{result['batch_size']} clips of {result['frames']} frames and {result['symbols']} "
        f"symbols; medians of {result['repeats']}",
        "",
        "| | reference | fast | fast over reference |",
        "|---|---:|---:|---:|",
    ]

    def row(name: str, key: str, shown: Callable, ratio: float | None, unit: str = "x") -> None:
        cells = (shown(result[f"{kind}{key}"]) for kind in ("reference", "fast"))
        lines.append(
            f"| {name} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f} {unit}'} |"
        )

    def seconds(value: float) -> str:
        return f"{value:.3f} s" if value >= 1 else f"{1000 * value:.1f} ms"

    def gigabytes(value: int | None) -> str:
        return "not measured" if value is None else f"{value / 1e9:.2f} GB"

    row("training step", "_seconds", seconds, result["speedup"], "x as fast")
    row("mel frames a second", "_frames_per_second", lambda value: f"{value:,.0f}", None)
    cells = (seconds(result[f"decoder_alone_{kind}_seconds"]) for kind in ("reference", "fast"))
    lines.append(
        f"| decoder alone | {' | '.join(cells)} | {result['decoder_alone_speedup']:.2f} x as fast |"
    )
    row("peak memory", "_peak_memory_bytes", gigabytes, result["peak_memory_ratio"], "x the bytes")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default, help="cpu, cuda or cuda:1; default %(default)s"
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--symbols", type=int, default=80)
    parser.add_argument("--precision", choices=AUTOCAST, default="fp32", help="tf32: on GPUs only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    args = parser.parse_args()
    for name in ("batch_size", "frames", "symbols", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1")
    if args.warm_ups < 0:
        parser.error(f"--warm-ups {args.warm_ups}: must be at least 0")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: torch finds no GPU here; use --device cpu")
    memory = {
        name: None if args.no_memory else peak_memory_in_a_process(args, name) for name in DECODERS
    }
    result = report(args, measure(args), memory)
    print(table(result))
    if args.json:
        text = json.dumps(result, indent=2) + "\n"
        write_atomically(args.json, lambda path: path.write_text(text, encoding="utf-8"))
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
