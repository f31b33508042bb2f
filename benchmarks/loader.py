"""The loader alone: how fast it reads batches, and how long training would wait for it.

    python benchmarks/loader.py --json loader.json                  # made-up cached mels
    python benchmarks/loader.py filelists/ljspeech/train_mel.txt filelists/ljspeech/train.txt

Each filelist holds cached mels or sound, told apart by the names in it. Without one, cached mels as
long as LJSpeech's clips, of noise, are written to a temporary folder and read back, which no sound
library takes part in. Batches are those that train.py plans, and its loader reads them:

- free: batches are taken as fast as they come;
- first, later: a clock stands in for training and takes --rate padded frames a second; what is
  reported is the share of the epoch spent waiting for a batch, as data_wait_seconds in
  metrics.jsonl counts it. The first epoch starts the processes that read, later ones keep them.

Files read once are in the system's memory, as in all epochs of a training run but the first.
"""

import project_root

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from analysis.arguments import (
    add_json_option,
    at_least_one,
    make_parser,
    positive,
    whole_numbers,
)
from analysis.clips import make_corpus, synthetic_clips
from analysis.tables import markdown_table
from batching import LengthBatchSampler
from clip_table import ClipTable
from data_utils import make_loader, read_filelist
from errors import UserError
from files import write_json
from hparams import HParams, create_hparams
from progress import progress_bar
from training.setup import batching_in_words, make_sampler, plan_stats
from training.machine import machine, measured_on

PROGRAM = "loader.py"
EPOCHS = ("first", "later", "free")


def holds_mels(filelist: Path) -> bool:
    """Whether a filelist's first line names a cached mel; what is wrong with it, reading tells."""
    try:
        with open(filelist, encoding="utf-8-sig") as file:
            return file.readline().partition("|")[0].strip().endswith(".npy")
    except (OSError, UnicodeDecodeError):
        return False


def epoch(loader, number: int, device: torch.device, rate: float | None) -> dict[str, float]:
    """Seconds that one epoch took, of which waiting; `rate` is training's, None: it takes none."""
    sampler = loader.batch_sampler
    sampler.set_epoch(number)
    waited, began = 0.0, time.perf_counter()
    batches = None
    while True:
        waiting = time.perf_counter()
        batches = batches or iter(loader)  # starts the processes: waiting, as train.py counts it
        batch = next(batches, None)
        waited += time.perf_counter() - waiting
        if batch is None:
            break
        batch = batch.to(device)
        if rate is not None:
            time.sleep(batch.mel.shape[0] * batch.mel.shape[2] / rate)
    return {"seconds": time.perf_counter() - began, "waited_seconds": waited}


def measure_workers(clips: ClipTable, hparams: HParams, args: argparse.Namespace, bar) -> list:
    """For each number of workers, what every repeat of every epoch took. The numbers take turns."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = [
        {"num_workers": workers, **{name: [] for name in EPOCHS}} for workers in args.num_workers
    ]
    for _ in range(args.repeats):
        for result in results:
            workers, sampler = result["num_workers"], make_sampler(clips, hparams)
            loader = make_loader(
                clips,
                replace(hparams, num_workers=workers),
                device.type == "cuda",
                sampler,
                persistent_workers=workers > 0,
            )
            for number, name in enumerate(EPOCHS):
                rate = None if name == "free" else args.rate
                result[name].append(epoch(loader, number, device, rate))
                bar.update()
            del loader  # ends its processes
    return [result | summary(result, sampler, hparams) for result in results]


def summary(result: dict, sampler: LengthBatchSampler, hparams: HParams) -> dict:
    """Medians; frames are those of the last epoch planned, the one that ran free."""
    seconds = statistics.median(times["seconds"] for times in result["free"])
    found = {
        "padded_frames_per_second": plan_stats(sampler, hparams).padded_frames / seconds,
        "frames_per_second": float(sampler.lengths.sum()) / seconds,
        "clips_per_second": len(sampler.lengths) / seconds,
        "milliseconds_per_batch": 1000 * seconds / len(sampler.plan),
    }
    for name in ("first", "later"):
        waits = [times["waited_seconds"] for times in result[name]]
        shares = [times["waited_seconds"] / times["seconds"] for times in result[name]]
        found[f"{name}_epoch_waited_seconds"] = statistics.median(waits)
        found[f"{name}_epoch_waited_share"] = statistics.median(shares)
    return found


def corpus_table(corpus: dict, rate: float) -> str:
    """Markdown: a line for each number of workers."""
    columns = {
        "workers": "{num_workers}",
        "padded frames/s": "{padded_frames_per_second:,.0f}",
        "real frames/s": "{frames_per_second:,.0f}",
        "clips/s": "{clips_per_second:,.0f}",
        "ms/batch": "{milliseconds_per_batch:.1f}",
        "waited, first epoch": "{first_epoch_waited_seconds:.3f} s, {first_epoch_waited_share:.2%}",
        "later epochs": "{later_epoch_waited_seconds:.3f} s, {later_epoch_waited_share:.2%}",
    }
    rows = [[cell.format(**result) for cell in columns.values()] for result in corpus["workers"]]
    return (
        f"{corpus['name']}: {corpus['clips']:,} clips of {corpus['kind']}, {corpus['batches']} "
        f"batches of up to {corpus['largest_batch_size']} clips ({corpus['strategy']}); waiting "
        f"where training takes {rate:,.0f} padded frames/s\n\n"
    ) + markdown_table(list(columns), rows, labels=0)


def measure_filelist(filelist: Path, name: str, args: argparse.Namespace) -> dict:
    hparams = create_hparams(args.hparams)
    hparams = replace(hparams, load_mel_from_disk=holds_mels(filelist))
    clips = read_filelist(filelist, hparams)
    stats = plan_stats(make_sampler(clips, hparams), hparams)
    epochs = args.repeats * len(args.num_workers) * len(EPOCHS)
    with progress_bar(f"reading {name}", epochs, " epochs") as bar:
        results = measure_workers(clips, hparams, args, bar)
    return {
        "name": name,
        "kind": "cached mels" if hparams.load_mel_from_disk else "sound",
        "clips": len(clips),
        "batches": stats.num_batches,
        "largest_batch_size": stats.largest_batch_size,
        "strategy": batching_in_words(hparams),
        "workers": results,
    }


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("filelists", nargs="*", type=Path, metavar="FILELIST", help="default: made-up cached mels")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    default = [workers for workers in (0, 1, 2, 4) if workers <= cores]
    shown = f"default {','.join(map(str, default))}"
    add("--num-workers", type=whole_numbers(0), default=default, metavar="0,2", help=shown)
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add("--rate", type=positive, default=200_000, help="training's padded frames/s; default 200000")
    add("--clips", type=at_least_one, default=2000, help="clips to make up; default %(default)s")
    shown = "of every epoch, for medians; default %(default)s"
    add("--repeats", type=at_least_one, default=3, help=shown)
    add_json_option(parser)
    args = parser.parse_args(arguments)
    args.num_workers = args.num_workers or default
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="loader-") as folder:
            filelists = {str(path): path for path in args.filelists}
            if not filelists:
                hparams = create_hparams(args.hparams)
                made_up = synthetic_clips(args.clips, hparams)
                name = "clips of noise, as long as LJSpeech's"
                filelists = {name: make_corpus(Path(folder), made_up, hparams)}
            corpora = [measure_filelist(path, name, args) for name, path in filelists.items()]
    except UserError as error:
        sys.exit(f"{PROGRAM}: {error}")
    gpu = machine(torch.device("cuda")) if torch.cuda.is_available() else None
    result = {
        "corpora": corpora,
        "rate": args.rate,
        "repeats": args.repeats,
        "hparams": args.hparams,
        "gpu": gpu,
        **measured_on(torch.device("cpu")),
    }
    print(
        f"{result['device']}, torch {result['versions']['torch']}; medians of {args.repeats}; "
        + (f"batches pinned and copied to {gpu}" if gpu else "no GPU to pin memory for")
    )
    for corpus in corpora:
        print(f"\n{corpus_table(corpus, args.rate)}")
    if args.json:
        write_json(args.json, result)
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
