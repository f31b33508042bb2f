"""How busy training keeps a GPU: the time in which any kernel or copy runs, over wall time.

    python benchmarks/busy.py --precision bf16 --json busy.json

Training steps as train.py runs them, on cached mels of noise as long as LJSpeech's clips, with the
loader's processes and losses read every log_interval steps. The steps are run once to capture their
graphs and once for their wall time, and then under torch's profiler, 100 of them at a time, since
its buffers hold no more. The paper's settings (SSB-DBS-BR, batch size 16, 12.5 ms between
frames) unless --hparams changes them.

On compute capability 9.0 and above a kernel of the fast decoder begins early and waits for the one
before it. That waiting is part of its time, so the busy share is an upper bound there. The steps
are then profiled again with late launches; all figures but the upper bound are of those.
"""

from project_root import ROOT

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

# Room for more kernels in the profiler's buffers, which are full after 128 MB otherwise.
os.environ.setdefault("KINETO_CONFIG", str(ROOT / "benchmarks" / "kineto.conf"))

import torch

from analysis import arguments as options
from analysis import fast_path
from analysis.lengths import make_corpus, synthetic_lengths
from analysis.tables import markdown_table
from data_utils import Batch, make_loader, read_filelist
from errors import UserError
from files import write_json
from hparams import create_hparams
from machine import measured_on, seconds_of, synchronize
from training.setup import make_sampler
from training.trainer import MicroBatch, Trainer

if not fast_path.IS_HERE:
    sys.exit(f"busy.py: {fast_path.MISSING}")
from fast_decoder import graphs

BASE = "batch_size=16,win_time=50,hop_time=12.5,decoder=fast"
SESSION = 100  # steps
TOP = 15  # kernels


def run(trainer: Trainer, batches: Iterator[Batch], steps: int) -> None:
    losses = None
    for step in range(steps):
        newest = trainer.step([MicroBatch(next(batches))])
        if step % trainer.hparams.log_interval == 0 and losses and losses.copied:
            losses.copied.synchronize()  # of all steps but the newest, which the GPU works on
        losses = newest


def busy_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of (start, end)."""
    total = last = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def profile(trainer: Trainer, batches: Iterator[Batch], args: argparse.Namespace) -> dict:
    """Shares of the steps' time under the profiler; "busy" is None if it lost or saw no kernels."""
    wall, busy, kernels = 0, 0, Counter[str]()
    activity = getattr(torch.profiler.ProfilerActivity, trainer.device.type.upper())
    for done in range(0, args.steps, SESSION):
        synchronize(trainer.device)
        with torch.profiler.profile(activities=[activity]) as profiler:
            start = time.time_ns()
            run(trainer, batches, min(SESSION, args.steps - done))
            synchronize(trainer.device)
            end = time.time_ns()
        seen = [
            (event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in profiler.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA
            and not event.is_user_annotation()
        ]
        if max((stop for _, _, stop in seen), default=start) < end - (end - start) / 10:
            return {"busy": None}  # the buffers were full
        wall += end - start
        busy += busy_ns((max(since, start), min(stop, end)) for _, since, stop in seen)
        for name, since, stop in seen:
            kernels[name] += stop - since
    shares = [{"name": name[:80], "share": ns / wall} for name, ns in kernels.most_common(TOP)]
    return {"busy": busy / wall, "top_kernels": shares, "profiled_steps": args.steps}


def measure(filelist: Path, args: argparse.Namespace) -> dict:
    clips = read_filelist(filelist, args.hparams)
    trainer = Trainer(args.hparams, args.device)
    sampler = make_sampler(clips, args.hparams)
    loader = make_loader(clips, args.hparams, args.device.type == "cuda", sampler)

    def batches() -> Iterator[Batch]:
        """The same ones each time."""
        for epoch in range(10**9):
            sampler.set_epoch(epoch)
            yield from loader

    run(trainer, batches(), args.steps)
    stream = batches()
    run(trainer, stream, 1)  # starts the loader
    result = {"wall_seconds": seconds_of(args.device, run, trainer, stream, args.steps)}
    result |= profile(trainer, batches(), args) | {"busy_upper_bound": None}
    if args.hparams.decoder == "fast" and graphs.launches_early(args.device):
        upper_bound, graphs.EARLY_LAUNCHES = result["busy"], False
        run(trainer, batches(), args.steps)
        result |= profile(trainer, batches(), args) | {"busy_upper_bound": upper_bound}
    return result | {"fast_decoder": trainer.decoder_description}


def report(result: dict) -> str:
    """Markdown."""
    names = {
        "busy": "GPU busy",
        "busy_upper_bound": "the same at most, with kernels' waiting in it",
    }
    shares = {shown: result[name] for name, shown in names.items()}
    shares |= {kernel["name"]: kernel["share"] for kernel in result.get("top_kernels", [])}
    rows = [[n, "not measured" if s is None else f"{s:.1%}"] for n, s in shares.items()]
    return (
        f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
        f"{result['steps']} steps, {result['wall_seconds']:.2f} s without the profiler; "
        f"{result['fast_decoder']}\n\n{markdown_table(['', 'share of wall time'], rows)}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    options.add_measuring_options(parser)
    for name, default in (("clips", 2620), ("steps", 200)):
        parser.add_argument(f"--{name}", type=options.whole_number(2), default=default)
    parser.add_argument("--hparams", default="", metavar="name=value,...")
    args = parser.parse_args(arguments)
    try:
        hparams = create_hparams(args.hparams, create_hparams(BASE))
        args.hparams = replace(hparams, load_mel_from_disk=True, precision=args.precision)
        lengths = synthetic_lengths(args.clips, args.hparams)
        with tempfile.TemporaryDirectory(prefix="busy-") as folder:
            result = measure(make_corpus(Path(folder), lengths, args.hparams), args)
    except UserError as error:
        sys.exit(f"busy.py: {error}")
    result |= {"steps": args.steps, "precision": args.precision} | measured_on(args.device)
    print(report(result))
    if args.json:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
