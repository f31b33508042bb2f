"""A training step with the fast decoder beside one with the reference decoder.

    python benchmarks/decoder.py                                            # 16 clips of 400 frames
    python benchmarks/decoder.py --frames 774 --symbols 120 --precision bf16 --json decoder.json

The full-size model, clips of equal length, random texts and mels. A step is forward pass, loss,
backward pass, clipping of the gradient norm and fused Adam; "decoder alone" is the decoder's
forward and backward pass. Both decoders run in turns in one process, and the ratios are those of
medians. Peak memory is the whole process's (on a GPU: what torch had allocated there), measured
in a process of its own for each decoder.

Launches a decoder step are, on a GPU, kernels and copies that ran; on a CPU, calls of operators
that compute something, most of which a GPU would launch a kernel for. Both are slopes between a
shorter and a longer clip, so that what is done once is left out. Bytes a decoder step are worked
out from the shapes (`bytes_per_step`).

The limit is the time that a training step's arithmetic alone would take: its FLOP, from the shapes
(`step_flop`), over the speed of one large square matrix product on this machine in this precision.
"""

import project_root

import argparse
import itertools
import multiprocessing
import statistics
import sys
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from analysis import fast_path
from analysis.arguments import (
    add_measuring_options,
    add_size_options,
    at_least_one,
    make_parser,
    whole_number,
)
from analysis.tables import markdown_table
from data_utils import Batch
from errors import UserError
from files import write_json
from hparams import HParams, create_hparams
from training.machine import largest_memory, measured_on, reset_peak_memory, seconds_of
from training.trainer import AUTOCAST_DTYPES, DECODERS, MicroBatch, Trainer

if not fast_path.IS_HERE:
    sys.exit(f"decoder.py: {fast_path.MISSING}")
from fast_decoder import describe

COUNTED = {"cpu": (16, 32), "cuda": (64, 192)}  # steps: whole chunks of either's backward pass
PRODUCT = {"cpu": 2048, "cuda": 8192}  # rows and columns of the product that sets the limit


class Workload:
    """The full-size model, its optimiser and one batch."""

    def __init__(self, args: argparse.Namespace):
        hparams = args.hparams
        self.trainer = Trainer(hparams, args.device)
        self.decoder = self.trainer.model.train().decoder
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
        self.batch = Batch(**fields).to(args.device)
        self.memory = torch.randn(
            clips, args.symbols, hparams.encoder_embedding_dim, device=args.device
        )
        self.text_mask = torch.zeros(clips, args.symbols, dtype=torch.bool, device=args.device)

    def step(self, decoder: str) -> None:
        self.trainer.use_decoder(decoder)
        self.trainer.step([MicroBatch(self.batch)])

    def decoder_forward(self, decoder: str, frames: int | None = None) -> torch.Tensor:
        """A loss of the decoder's outputs; of the first `frames` frames."""
        self.trainer.optimizer.zero_grad(set_to_none=True)
        memory, mel = self.memory.detach().requires_grad_(), self.batch.mel[:, :, :frames]
        masks = self.decoder.draw_masks(mel.shape[2], len(memory))
        self.trainer.use_decoder(decoder)
        with self.trainer.autocast():
            run = self.trainer.model.training_decoder
            mel, gate, _ = run(self.decoder, memory, self.text_mask, mel, masks)
            return mel.float().square().mean() + gate.float().square().mean()

    def decoder_alone(self, decoder: str) -> None:
        self.decoder_forward(decoder).backward()


# ---------------------------------------------------------------------------- time


def measure_seconds(args: argparse.Namespace) -> dict:
    """Seconds of every repeat, the decoders in turns: {"step": {"fast": [...], ...}, ...}."""
    workload = Workload(args)
    runs = {"step": workload.step, "decoder_alone": workload.decoder_alone}
    times = {part: {name: [] for name in DECODERS} for part in runs}
    for repeat in range(args.warm_ups + args.repeats):
        number = repeat - args.warm_ups + 1
        kind = f"repeat {number}" if number > 0 else "warm-up"
        for part, run in runs.items():
            for name in DECODERS:
                seconds = seconds_of(args.device, run, name)
                print(f"{kind}: {part} {name} {seconds:.4f} s", file=sys.stderr, flush=True)
                if number > 0:
                    times[part][name].append(seconds)
    return times


# ---------------------------------------------------------------------------- the limit


def product_speed(device: torch.device, precision: str) -> float:
    """FLOP a second of a large square matrix product; call it once torch's switches are set."""
    size, dtype = PRODUCT[device.type], AUTOCAST_DTYPES[precision] or torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = [seconds_of(device, torch.mm, a, b) for _ in range(6)]
    return 2 * size**3 / statistics.median(times[1:])


def step_flop(h: HParams, batch_size: int, frames: int, symbols: int) -> int:
    """Operations of a training step's matrix products and convolutions, from the shapes.

    A product of [a, b] and [b, c] counts 2 a b c forwards. Backwards it counts twice that, for the
    gradients of both factors; the mels, which the prenet reads, need none. What a decoder does
    beside that, when it works something out again for example, does not count.
    """
    e, d, n_mels = h.encoder_embedding_dim, h.attention_dim, h.n_mel_channels
    mels, locations = n_mels * h.n_frames_per_step, h.attention_location_n_filters
    encoder_inputs = h.symbols_embedding_dim + (h.encoder_n_convolutions - 1) * e
    encoder = h.encoder_kernel_size * encoder_inputs * e + 2 * 4 * (e // 2) * (e + e // 2)
    prenet = mels * h.prenet_dim
    step = h.prenet_dim**2 + 4 * h.attention_rnn_dim * (h.prenet_dim + e + h.attention_rnn_dim)
    step += 4 * h.decoder_rnn_dim * (h.attention_rnn_dim + e + h.decoder_rnn_dim)
    step += h.attention_rnn_dim * d + (h.decoder_rnn_dim + e) * (mels + 1)
    attended = 2 * h.attention_location_kernel_size * locations + locations * d + d + e
    widths = [n_mels, *[h.postnet_embedding_dim] * (h.postnet_n_convolutions - 1), n_mels]
    postnet = h.postnet_kernel_size * sum(a * b for a, b in itertools.pairwise(widths))
    steps = -(-frames // h.n_frames_per_step)
    frames = steps * h.n_frames_per_step
    products = symbols * (encoder + e * d) + steps * (step + symbols * attended) + frames * postnet
    return 2 * batch_size * (3 * products + 2 * steps * prenet)


# ---------------------------------------------------------------------------- launches and bytes


class OperatorCount(TorchDispatchMode):
    """Counts calls of operators that compute: no views, and no memory left as it is."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        name = func._schema.name.removeprefix("aten::")
        if not is_view and name != "_unsafe_view" and not name.startswith(("empty", "new_empty")):
            self.count += 1
        return func(*args, **(kwargs or {}))


def operators_run(run: Callable) -> tuple[int, object]:
    with OperatorCount() as operators:
        result = run()
    return operators.count, result


def kernels_run(run: Callable) -> tuple[int, object]:
    """Kernels, copies and fills on the GPU; those inside a captured graph one by one."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        result = run()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    count = sum(
        event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation()
        for event in events
    )
    if count == 0:
        raise RuntimeError("torch's profiler saw nothing run on the GPU")
    return count, result


def launches_per_step(args: argparse.Namespace) -> dict:
    """{decoder: {"forward": launches a decoder step, "backward": ...}}."""
    short, long = COUNTED[args.device.type]
    counted = argparse.Namespace(**vars(args) | {"frames": long})
    if args.device.type == "cpu":  # where their number depends on nothing else
        counted.batch_size = counted.symbols = 2
    workload, run = Workload(counted), kernels_run if args.device.type == "cuda" else operators_run
    found = {}
    for name in DECODERS:
        workload.decoder_alone(name)  # compiles and captures
        counts = []
        for frames in (short, long):
            forward, loss = run(lambda f=frames, d=name: workload.decoder_forward(d, f))
            counts.append((forward, run(loss.backward)[0]))
        forward, backward = (
            (after - before) / (long - short) for before, after in zip(*counts, strict=True)
        )
        found[name] = {"forward": forward, "backward": backward}
    return found


def bytes_per_step(hparams: HParams, batch_size: int, symbols: int, operand: int) -> dict:
    """Bytes that a decoder step reads and writes, each operand and result once, in parts.

    {decoder: {"forward": {part: bytes}, "backward": {part: bytes}}}. B, N, A, H, E, P, D, K as in
    recurrences.py, F filters, M mels a step; weights in `operand` bytes, all else in 4:

    - weights: reference, all of the step: 4A(P+E+A) + 4H(A+E+H) + DA + D F + 2 F K +
      (H+E)(M+1); fast, what recurs: 4A(A+E) + 4H H, and in 4 bytes DA + 2DK.
    - memory: it and its attention layer's, B N (E+D), read forward and again backward; the
      reference also adds to the gradients of both at every step, which is 4 passes more.
    - history: gates 4(A+H), hidden states and cells 2(A+H), context E, two alignments 2N, for each
      clip, and a byte for each mask of A+H. Forward writes them, backward reads them and writes
      the gates' gradients. The reference also keeps and reads attention's N D tanh values; the
      fast decoder works them out again with the filters N (D + 2K), written once and read once.
    - weight gradients: the reference makes one for each weight at every step and adds it to the
      sum: written, read, sum read, sum written. The fast decoder has none a step.
    - large products: the fast decoder's products over all steps, their weights read once for
      all. Forward they read P + A+E + H+E and write 4(A+H) + M+1 for each clip, and the loop reads
      4(A+H); backward they read 8(A+H) + P + 2(A+E) + 2H + E + M+1 and write P + A+E + H+E.
    """
    h, b, n = hparams, batch_size, symbols
    a, d_rnn, e, p = h.attention_rnn_dim, h.decoder_rnn_dim, h.encoder_embedding_dim, h.prenet_dim
    d, k, f = h.attention_dim, h.attention_location_kernel_size, h.attention_location_n_filters
    m = h.n_mel_channels * h.n_frames_per_step
    all_weights = 4 * a * (p + e + a) + 4 * d_rnn * (a + e + d_rnn)
    all_weights += d * a + d * f + 2 * f * k + (d_rnn + e) * (m + 1)
    recurrent = operand * (4 * a * (a + e) + 4 * d_rnn**2) + 4 * (d * a + 2 * d * k)
    lstms = a + d_rnn
    history = b * (4 * (6 * lstms + e + 2 * n) + lstms)
    gates, tanh, memory = 4 * b * 4 * lstms, 4 * b * n * d, 4 * b * n * (e + d)
    made = p + a + e + d_rnn + e
    return {
        "reference": {
            "forward": {
                "weights": operand * all_weights,
                "memory": memory,
                "history": history + tanh,
            },
            "backward": {
                "weights": operand * all_weights,
                "memory": 5 * memory,
                "history": history + tanh + gates,
                "weight gradients": 4 * operand * all_weights,
            },
        },
        "fast": {
            "forward": {
                "weights": recurrent,
                "memory": memory,
                "history": history,
                "large products": 2 * gates + 4 * b * (made + m + 1),
            },
            "backward": {
                "weights": recurrent,
                "memory": memory,
                "history": history + gates + 2 * 4 * b * n * (d + 2 * k),
                "large products": 2 * gates
                + 4 * b * (p + 2 * (a + e) + 2 * d_rnn + e + m + 1 + made),
            },
        },
    }


# ---------------------------------------------------------------------------- memory


def peak_memory_of_steps(args: argparse.Namespace, name: str) -> int:
    """The most bytes that a step held, the optimizer's state being there."""
    workload = Workload(args)
    for _ in range(2):
        workload.step(name)
    if args.device.type == "cuda":  # what compiling and capturing took for a moment does not count
        reset_peak_memory(args.device)
        workload.step(name)
        torch.cuda.synchronize(args.device)
    return largest_memory(args.device)


def in_a_process(measure: Callable, args: argparse.Namespace, *more):
    """`measure(args, *more)` in a process of its own; None where it failed: a memory too small
    for it, or a profiler that does not work, for example."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, measure, args, *more))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()


def _send(sender, measure: Callable, *arguments) -> None:
    sender.send(measure(*arguments))


# ---------------------------------------------------------------------------- the report


def summarize(
    args: argparse.Namespace, times: dict, speed: float, memory: dict, launches: dict | None
) -> dict:
    medians = {
        part: {name: statistics.median(values) for name, values in by_name.items()}
        for part, by_name in times.items()
    }
    ratios = {part: median["reference"] / median["fast"] for part, median in medians.items()}
    frames = args.batch_size * args.frames
    flop = step_flop(args.hparams, args.batch_size, args.frames, args.symbols)
    operand = (AUTOCAST_DTYPES[args.precision] or torch.float32).itemsize
    parts = bytes_per_step(args.hparams, args.batch_size, args.symbols, operand)
    result = {
        "speedup": ratios["step"],
        "decoder_alone_speedup": ratios["decoder_alone"],
        "flop_per_step": flop,
        "product_flop_per_second": speed,
        "limit_seconds": flop / speed,
    }
    for name, seconds in medians["step"].items():
        result |= {
            f"{name}_seconds": seconds,
            f"{name}_frames_per_second": frames / seconds,
            f"{name}_share_of_limit": flop / speed / seconds,
            f"decoder_alone_{name}_seconds": medians["decoder_alone"][name],
            f"{name}_peak_memory_bytes": memory[name],
        }
    return result | {
        "peak_memory_ratio": memory["fast"] / memory["reference"] if all(memory.values()) else None,
        "launches_per_step": launches,
        "launches_are": "kernels" if args.device.type == "cuda" else "operators",
        "bytes_per_step": {
            name: {way: sum(amounts.values()) for way, amounts in ways.items()}
            for name, ways in parts.items()
        },
        "bytes_per_step_parts": parts,
        "fast_decoder": describe(args.device),
        "all_seconds": times,
        "batch_size": args.batch_size,
        "frames": args.frames,
        "symbols": args.symbols,
        "precision": args.precision,
        "repeats": args.repeats,
        **measured_on(args.device),
    }


def seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def gigabytes(value: int | None) -> str:
    return "not measured" if value is None else f"{value / 1e9:.2f} GB"


def report(result: dict) -> str:
    """Markdown."""

    def both(key: str, shown: Callable) -> list[str]:
        return [shown(result[key.format(name)]) for name in DECODERS]

    gflop, ratio = f"{result['flop_per_step'] / 1e9:,.1f}", result["peak_memory_ratio"]
    limit = f"limit at {result['product_flop_per_second'] / 1e9:,.0f} GFLOP/s"
    rows = [
        ["training step", *both("{}_seconds", seconds), f"{result['speedup']:.2f} x as fast"],
        ["mel frames a second", *both("{}_frames_per_second", "{:,.0f}".format), ""],
        ["GFLOP a step", gflop, gflop, ""],
        [limit, *[seconds(result["limit_seconds"])] * 2, ""],
        ["share of the limit reached", *both("{}_share_of_limit", "{:.1%}".format), ""],
        [
            "decoder alone",
            *both("decoder_alone_{}_seconds", seconds),
            f"{result['decoder_alone_speedup']:.2f} x as fast",
        ],
        [
            "peak memory",
            *both("{}_peak_memory_bytes", gigabytes),
            "" if ratio is None else f"{ratio:.2f} x the bytes",
        ],
    ]
    for key, name, unit, shown, what in (
        ("launches_per_step", f"{result['launches_are']} a decoder step", 1, ",.0f", "as many"),
        ("bytes_per_step", "MB a decoder step, from the shapes", 1e6, ",.1f", "the bytes"),
    ):
        if result[key] is None:
            rows.append([name, *["not measured"] * 2, ""])
            continue
        ways = [result[key][decoder] for decoder in DECODERS]
        cells = [" + ".join(f"{v / unit:{shown}}" for v in way.values()) for way in ways]
        reference, fast = (sum(way.values()) for way in ways)
        rows.append([f"{name}, forward + backward", *cells, f"{fast / reference:.2f} x {what}"])
    return (
        f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
        f"{result['batch_size']} clips of {result['frames']} frames and {result['symbols']} "
        f"symbols; medians of {result['repeats']}; fast: {result['fast_decoder']}\n\n"
    ) + markdown_table(["", "reference", "fast", "fast over reference"], rows)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_measuring_options(parser)
    add_size_options(parser, frames=400, symbols=80)
    add("--repeats", type=at_least_one, help="default: 5, on a GPU 10")
    add("--warm-ups", type=whole_number(0), help="default: 1, on a GPU 2")
    add("--no-memory", action="store_true", help="leave peak memory out")
    add("--hparams", default="", metavar="name=value,...", help="change the full-size model")
    args = parser.parse_args(arguments)
    try:
        args.hparams = create_hparams(args.hparams, HParams(precision=args.precision))
    except UserError as error:
        parser.error(str(error))
    on_gpu = args.device.type == "cuda"
    args.repeats = (10 if on_gpu else 5) if args.repeats is None else args.repeats
    args.warm_ups = (2 if on_gpu else 1) if args.warm_ups is None else args.warm_ups
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)

    def save(memory: dict, launches: dict | None = None) -> dict:
        """The result so far, written anew after every part, so that a kill leaves it."""
        result = summarize(args, times, speed, memory, launches)
        if args.json:
            write_json(args.json, result)
        return result

    times = measure_seconds(args)
    speed = product_speed(args.device, args.precision)
    memory = dict.fromkeys(DECODERS)
    save(memory)
    if not args.no_memory:
        memory = {name: in_a_process(peak_memory_of_steps, args, name) for name in DECODERS}
        save(memory)
    print(report(save(memory, in_a_process(launches_per_step, args))))
    if args.json:
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
