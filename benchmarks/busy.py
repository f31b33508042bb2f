"""Measure how busy training keeps a GPU: the share of wall time in which a kernel or copy runs.

    python benchmarks/busy.py --precision bf16 --json busy.json

Training steps as train.py runs them, on cached mels of noise as long as LJSpeech's clips, with the
paper's settings unless --hparams changes them. They run once to capture their graphs, once for
their wall time, and then under torch's profiler, 100 steps at a time, as its buffers hold no more.
Early launches are off: a kernel that starts early waits, and its waiting would count as work.
Beside the kernels that take most of the time: the calls of CUDA by the host, whose number shows
whether the host keeps up, and which of them wait for the GPU.
"""

import project_root

import argparse
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Larger buffers for the profiler, whose default of 128 MB is too small.
os.environ.setdefault("KINETO_CONFIG", str(Path(__file__).with_name("kineto.conf")))

import torch

from batching import make_sampler
from benchmarks import fast_path, options
from benchmarks.timing import publish
from corpus.filelist import read_filelist
from corpus.lengths import make_corpus, synthetic_lengths
from data_utils import Batch, make_loader
from hparams import HParams, create_hparams
from machine import seconds_of, synchronize
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError
from training.trainer import MicroBatch, Trainer

BASE = (
    "batch_size=16,random_epochs=0,win_time=50,hop_time=12.5,decoder=fast,load_mel_from_disk=True"
)
SESSION = 100  # steps
TOP = 15  # kernels
CUDA = torch.autograd.DeviceType.CUDA


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


def profile(trainer: Trainer, batches: Iterator[Batch], steps: int) -> dict[str, Any]:
    """Shares of the steps' time under the profiler; "busy" is None if it lost or saw no kernels."""
    wall, busy, kernels = 0, 0, Counter[str]()
    calls, call_time = Counter[str](), Counter[str]()
    activity = getattr(torch.profiler.ProfilerActivity, trainer.device.type.upper())
    for done in range(0, steps, SESSION):
        synchronize(trainer.device)
        with torch.profiler.profile(activities=[activity]) as profiler:
            start = time.time_ns()
            run(trainer, batches, min(SESSION, steps - done))
            synchronize(trainer.device)
            end = time.time_ns()
        seen = []
        for event in profiler.profiler.kineto_results.events():
            if event.device_type() == CUDA and not event.is_user_annotation():
                since = event.start_ns()
                seen.append((event.name(), since, since + event.duration_ns()))
            elif event.name().startswith("cu"):  # CUDA's functions
                calls[event.name()] += 1
                call_time[event.name()] += event.duration_ns()
        if max((stop for _, _, stop in seen), default=start) < end - (end - start) / 10:
            return {"busy": None, "top_kernels": [], "host_calls": []}  # the buffers were full
        wall += end - start
        busy += busy_ns((max(since, start), min(stop, end)) for _, since, stop in seen)
        for name, since, stop in seen:
            kernels[name] += stop - since
    shares = [{"name": name[:80], "share": ns / wall} for name, ns in kernels.most_common(TOP)]
    host = [
        {"name": name, "calls_a_step": calls[name] / steps, "share": ns / wall}
        for name, ns in call_time.most_common(TOP)
    ]
    return {"busy": busy / wall, "top_kernels": shares, "host_calls": host}


def measure(args: argparse.Namespace, hparams: HParams, filelist: Path) -> dict[str, Any]:
    """For the JSON file."""
    clips, trainer = read_filelist(filelist, hparams), Trainer(hparams, args.device)
    sampler = make_sampler(clips.num_frames, hparams)
    loader = make_loader(clips, hparams, args.device.type == "cuda", sampler)

    def batches() -> Iterator[Batch]:
        """The same ones each time."""
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    run(trainer, batches(), args.steps)
    stream = batches()
    run(trainer, stream, 1)  # starts the loader
    seconds = seconds_of(args.device, run, trainer, stream, args.steps)
    result = {"wall_seconds": seconds, "decoder": trainer.decoder_description}
    result |= {"steps": args.steps, "precision": args.precision}
    return result | profile(trainer, batches(), args.steps)


def main(arguments: list[str] | None = None) -> None:
    parser = options.measuring_parser(__doc__, clips=2620, steps=200)
    parser.add_argument("--precision", type=options.precision, default="fp32")
    args = parser.parse_args(arguments)
    if fast_path.IS_HERE:
        from fast_decoder import graphs

        graphs.EARLY_LAUNCHES = False
    hparams = create_hparams(f"{BASE},precision={args.precision},{args.hparams}".strip(","))
    if hparams.speaker_embedding_dim:
        raise UserError(
            f"speaker_embedding_dim={hparams.speaker_embedding_dim}: these clips have no speakers; "
            "leave it out"
        )
    lengths = synthetic_lengths(args.clips, hparams)
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        result = measure(args, hparams, make_corpus(Path(folder), lengths, hparams))
    busy = "not measured" if result["busy"] is None else f"{result['busy']:.1%}"
    rows = [[kernel["name"], f"{kernel['share']:.1%}"] for kernel in result["top_kernels"]]
    table = markdown_table(["", "share of wall time"], [["GPU busy", busy], *rows])
    rows = [
        [call["name"], f"{call['calls_a_step']:,.1f}", f"{call['share']:.1%}"]
        for call in result["host_calls"]
    ]
    calls = markdown_table(["by the host", "calls a step", "share of wall time"], rows)
    seconds = f"{result['wall_seconds']:.2f} s without the profiler; {result['decoder']}"
    text = f"{args.precision}, {args.steps} steps, {seconds}\n\n{table}\n\n{calls}"
    publish(args, result, text)


if __name__ == "__main__":
    main()
