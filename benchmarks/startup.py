"""How long a run takes from its start to the first batch, and how much memory, with many clips.

    python benchmarks/startup.py                            # 100 and a million clips
    python benchmarks/startup.py --clips 100,10000000 --repeats 1

Filelists of made-up clips, as long as LJSpeech's, and the tables beside them (`NAME.clips`) are
written to a temporary folder. Each start is a process of its own that does what train.py does with
the clips until the first batch: it imports, maps the tables, looks (as a new run) at the time of
every clip's file, plans the first epoch, counts what batching saves, writes lengths.csv, and takes
the first batch's clips. Model and sound are left out: they cost the same whatever the corpus.

A million clips share 10,000 empty files, each looked at a hundred times: on a disk that has not
read its folders yet, or over a network, looking takes longer.

The same starts without a table would open every clip. What that costs a clip is measured with
--checked cached mels, and the rest of it is a product: no million files are written.
"""

import project_root

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from analysis.arguments import add_json_option, at_least_one, make_parser, whole_numbers
from analysis.clips import make_corpus, synthetic_clips
from analysis.tables import markdown_table
from clip_table import Clip, ClipTable, table_path
from data_utils import keep_table, read_filelist, write_lengths
from errors import UserError
from files import write_json
from hparams import HParams
from progress import progress_bar
from training.batches import batching_costs, make_sampler
from training.clips import read_clips
from training.machine import measured_on
from training.validation import make_validation_loader

PROGRAM = "startup.py"
FILES = 10_000  # that the clips' paths name
VALIDATION_CLIPS = 100
TEXT = "Printing, in the only sense with which we are at present concerned, differs from most. "
KINDS = {"new": "a new run", "old": "a run that goes on"}


def settings(folder: Path) -> HParams:
    return HParams(
        training_files=str(folder / "train.txt"), validation_files=str(folder / "val.txt")
    )


def make_lists(folder: Path, count: int) -> None:
    """Filelists of `count` clips for training and a few for validation, and their tables."""
    folder.mkdir()
    hparams = settings(folder)
    sounds = folder.parent / "sounds"
    sounds.mkdir(exist_ok=True)
    for i in range(min(count, FILES)):
        (sounds / f"{i:06d}.wav").touch()
        os.utime(sounds / f"{i:06d}.wav", (0, 0))  # before any table
    for name, clips in (("train", count), ("val", VALIDATION_CLIPS)):
        lengths = synthetic_clips(clips, hparams)
        filelist = folder / f"{name}.txt"
        with open(filelist, "w", encoding="utf-8") as file:

            def written(file=file, lengths=lengths, filelist=filelist):
                for i, (frames, symbols) in enumerate(
                    zip(lengths.frames, lengths.symbols, strict=True)
                ):
                    path, text = sounds / f"{i % FILES:06d}.wav", (TEXT * 4)[: int(symbols)]
                    file.write(f"{path}|{text}\n")
                    bar.update()
                    yield i + 1, Clip(str(path), text, bytes([1] * len(text)), int(frames), "")

            with progress_bar(f"making up {name}.txt of {clips:,} clips", clips, " clips") as bar:
                table = ClipTable.of(filelist, written(), complete=True)
        if keep_table(table, hparams) is table:
            raise UserError(f"{table_path(filelist)}: not written; name another folder in TMPDIR")


def start(folder: Path, new_run: bool, began: float) -> dict[str, float]:
    """What a start costs until now, in seconds since `began`, and in bytes of memory."""
    times = {"imported": time.monotonic() - began}
    hparams = settings(folder)
    training, validation = read_clips(hparams, new_run=new_run)
    times["clips_seconds"] = time.monotonic() - began - times["imported"]
    sampler = make_sampler(training, hparams)
    batching_costs(sampler, hparams)
    make_validation_loader(validation, hparams, pin_memory=False)
    write_lengths(folder / "lengths.csv", training)
    sampler.set_epoch(0)
    first = [(training[i].path, training[i].symbols) for i in next(iter(sampler))]
    if not first:
        raise RuntimeError("no clip in the first batch")
    return times | {"seconds": time.monotonic() - began} | memory()


def memory() -> dict[str, int]:
    """Bytes: all that is resident, its peak, and this process's own share of it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    names = {"resident": "VmRSS", "peak": "VmHWM", "own": "RssAnon"}
    return {name: 1024 * int(found[key].split()[0]) for name, key in names.items()}


def start_in_a_process(folder: Path, kind: str) -> dict[str, float]:
    """`start` in a process of its own, timed from before its own start."""
    command = [sys.executable, __file__, "--start", folder, kind, time.monotonic()]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a start failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds_to_check(folder: Path, count: int) -> float:
    """Per clip: reading a filelist of cached mels that has no table, from their headers alone."""
    hparams = replace(HParams(), load_mel_from_disk=True)
    folder.mkdir()
    filelist = make_corpus(folder, synthetic_clips(count, hparams), hparams)
    began = time.perf_counter()
    read_filelist(filelist, hparams)
    return (time.perf_counter() - began) / count


def measure(args: argparse.Namespace, folder: Path) -> dict:
    for count in args.clips:
        make_lists(folder / str(count), count)
    found = {(count, kind): [] for count in args.clips for kind in KINDS}
    with progress_bar("starting", len(found) * args.repeats, " starts") as bar:
        for _ in range(args.repeats):
            for (count, kind), results in found.items():
                results.append(start_in_a_process(folder / str(count), kind))
                bar.update()
    starts = [
        {"clips": count, "kind": kind}
        | {name: statistics.median(row[name] for row in results) for name in results[0]}
        for (count, kind), results in found.items()
    ]
    return {"starts": starts, "check_seconds_a_clip": seconds_to_check(folder / "m", args.checked)}


def report(result: dict) -> str:
    """Markdown: a line for each number of clips and kind of start, against the fewest clips."""
    rows = []
    per_clip = result["check_seconds_a_clip"]
    for kind, words in KINDS.items():
        starts = [row for row in result["starts"] if row["kind"] == kind]
        for row in starts:
            fewest = starts[0]
            checked = row["seconds"] - row["clips_seconds"] + per_clip * row["clips"]
            more = [(row[name] - fewest[name]) / 1e6 for name in ("resident", "peak", "own")]
            rows.append(
                [
                    f"{row['clips']:,}",
                    words,
                    f"{row['seconds']:.2f}",
                    f"{row['imported']:.2f}",
                    f"{row['clips_seconds']:.2f}",
                    f"{row['seconds'] / fewest['seconds']:.2f}",
                    *(f"{megabytes:+,.0f}" for megabytes in more),
                    f"{checked:,.1f}",
                    f"{checked / row['seconds']:.1f}",
                ]
            )
    titles = [
        *("clips", "start", "seconds to the first batch", "importing", "clips"),
        *("ratio", "MB more", "at the peak", "of its own"),
        *("seconds without a table", "ratio to a table"),
    ]
    return markdown_table(titles, rows)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    shown = "how many, the fewest first; default 100,1000000"
    add("--clips", type=whole_numbers(1), default=[100, 1_000_000], metavar="N,N", help=shown)
    add("--checked", type=at_least_one, default=500, help="mels to check; default %(default)s")
    add("--repeats", type=at_least_one, default=3, help="of every start, for medians; default 3")
    add("--start", nargs=3, help=argparse.SUPPRESS)  # folder, kind, time: the process to measure
    add_json_option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    try:
        if args.start:
            folder, kind, began = args.start
            print(json.dumps(start(Path(folder), kind == "new", float(began))))
            return
        with tempfile.TemporaryDirectory(prefix="startup-") as folder:
            result = measure(args, Path(folder))
    except UserError as error:
        sys.exit(f"{PROGRAM}: {error}")
    import torch

    result |= {"repeats": args.repeats, "checked": args.checked}
    result |= measured_on(torch.device("cpu"))
    print(f"{result['device']}, torch {result['versions']['torch']}; medians of {args.repeats}")
    print(f"\n{report(result)}\n")
    print(
        "MB more and the first ratio are against the fewest clips. Without a table: "
        f"{1000 * result['check_seconds_a_clip']:.3f} ms a clip, measured with {args.checked:,} "
        "cached mels, times the number of clips"
    )
    if args.json:
        write_json(args.json, result)
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
