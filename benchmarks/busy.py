"""How busy training keeps the GPU: the union of its kernels' and copies' times over wall time.

    python benchmarks/busy.py --precision bf16 --json busy.json          # made-up clips
    python benchmarks/busy.py filelists/ljspeech/train_mel.txt           # a filelist of cached mels

Training as train.py does it: its loader with its processes, cached mels, its steps one after the
other, losses read every log_interval steps; all but checkpoints and logs. After some steps to warm
up the same consecutive steps are run twice, each time from the first on: once as they are, for
their wall time, and once under torch's profiler, for the kernels. On a GPU they are run once before
that, which captures the graphs that they need, as the first epoch of a training run does. The
profiler runs for --session steps at a time, since its buffers hold no more, and the GPU is drained
between sessions; that counts as idle.

On compute capability 9.0 and above a kernel of the fast decoder begins early and waits for the one
before it. That waiting is part of its time, so the busy share is an upper bound there. The steps
are then profiled once more with late launches, where a kernel begins when the one before it has
ended. GPU busy and all tables are of these steps: their share counts the time between two kernels
as idle, so it does not say too much.

Without a filelist, mels of noise as long as LJSpeech's clips are written to a temporary folder
first. The settings are the paper's (SSB-DBS-BR, batch size 16, 12.5 ms between frames) and the
fast decoder unless --hparams changes them. On a CPU the operators' shares are printed instead.
"""

from project_root import ROOT

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

# Room for more kernels in the profiler's buffers, which are full after 128 MB otherwise.
os.environ.setdefault("KINETO_CONFIG", str(ROOT / "benchmarks" / "kineto.conf"))

import numpy as np

from analysis import fast_path
from analysis.arguments import add_measuring_options, at_least_one, make_parser, whole_number
from analysis.lengths import make_corpus, synthetic_lengths
from analysis.tables import markdown_table
from analysis.training_steps import Session, Training, collect, idle_times, profiled, wall_time
from clip_table import ClipTable
from data_utils import read_filelist
from errors import UserError
from files import write_json
from hparams import create_hparams
from training.machine import measured_on
from training.trainer import Trainer

if fast_path.IS_HERE:
    from fast_decoder import graphs

PROGRAM = "busy.py"
BASE = "batch_size=16,win_time=50,hop_time=12.5,decoder=fast"
LONG_GAP = 100_000  # ns: longer idle times are listed one by one
GAP_EDGES = (2_000, 10_000, LONG_GAP)  # ns
TOP, MOST_GAPS = 15, 10


# ---------------------------------------------------------------------------- idle times


def host_activity(session: Session, start: int, end: int) -> str:
    """What the host did for most of a time, and the CUDA call that took most of it, if any."""
    shares: dict[str, int] = defaultdict(int)
    until = [when for when, _ in session.marks[1:]] + [session.end]
    for (since, name), stop in zip(session.marks, until, strict=True):
        shares[name] += max(0, min(stop, end) - max(since, start))
    calls: dict[str, int] = defaultdict(int)
    for name, since, stop in session.calls:
        calls[name] += max(0, min(stop, end) - max(since, start))
    activity = max(shares, key=shares.get, default="unknown")
    call = max(calls, key=calls.get, default=None)
    return f"{activity}, in {call}" if call and calls[call] > (end - start) / 2 else activity


def analyse(sessions: list[Session]) -> dict:
    """Busy share, idle times by length, the longest kernels and gaps of the complete sessions."""
    sessions = [session for session in sessions if session.complete()]
    steps = sum(session.steps for session in sessions)
    if steps == 0:
        return {"busy": None, "profiled_steps": 0}
    wall = sum(session.end - session.start for session in sessions)
    gaps = [(session, *gap) for session in sessions for gap in idle_times(session).tolist()]
    lengths = np.array([end - start for _, start, end in gaps], dtype=np.int64)
    total, count = Counter(), Counter()
    for session in sessions:
        for name, start, end in session.kernels:
            total[name] += end - start
            count[name] += 1
    calls = Counter(name for session in sessions for name, _, _ in session.calls)
    longest = sorted(gaps, key=lambda gap: gap[1] - gap[2])[:MOST_GAPS]
    idle_by_length = []
    for low, high in itertools.pairwise((0, *GAP_EDGES, np.inf)):
        inside = lengths[(lengths >= low) & (lengths < high)]
        to = None if high == np.inf else high / 1000
        row = {"from_us": low / 1000, "to_us": to, "count": len(inside)}
        idle_by_length.append(row | {"share": int(inside.sum()) / wall})
    return {
        "busy": 1 - int(lengths.sum()) / wall,
        "profiled_steps": steps,
        "busy_seconds_per_step": (wall - int(lengths.sum())) / 1e9 / steps,
        "kernels_per_step": sum(count.values()) / steps,
        "host_calls_per_step": {name: number / steps for name, number in calls.most_common(TOP)},
        "top_kernels": [
            {"name": name, "seconds": ns / 1e9, "count": count[name], "share": ns / wall}
            for name, ns in total.most_common(TOP)
        ],
        "idle_by_length": idle_by_length,
        "long_gaps": [
            {"us": (end - start) / 1000, "host": host_activity(session, start, end)}
            for session, start, end in longest
            if end - start > LONG_GAP
        ],
    }


# ---------------------------------------------------------------------------- training


def operators(profiler) -> list[dict]:
    """On a CPU: each operator's own share of the time that all took in a session."""
    averages = profiler.key_averages()
    whole = sum(average.self_cpu_time_total for average in averages) or 1
    averages = sorted(averages, key=lambda average: -average.self_cpu_time_total)[:TOP]
    return [
        {"name": a.key, "share": a.self_cpu_time_total / whole, "count": a.count} for a in averages
    ]


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_training(trainer: Trainer, clips: ClipTable, args: argparse.Namespace) -> dict:
    prepare(trainer, clips, args)
    log(f"{args.warm_ups} steps to warm up, then {args.steps}")
    training = Training(trainer, clips)
    training.run(args.warm_ups)
    found = wall_time(training, args.steps)
    log(f"took {found['wall_seconds']:.2f} s")
    seen = profile_steps(trainer, clips, args)
    found |= seen | {"busy_upper_bound": None}
    if launches_early(trainer):
        with late_launches():
            prepare(trainer, clips, args)
            found |= profile_steps(trainer, clips, args)
        found["busy_upper_bound"] = seen["busy"]
    return found


def launches_early(trainer: Trainer) -> bool:
    """Whether kernels begin while the one before them still runs, and wait for it inside."""
    if trainer.hparams.decoder != "fast" or not fast_path.IS_HERE:
        return False
    return graphs.launches_early(trainer.device)


@contextlib.contextmanager
def late_launches() -> Iterator[None]:
    """Graphs made and used meanwhile have kernels that begin when the one before has ended."""
    graphs.EARLY_LAUNCHES = False
    try:
        yield
    finally:
        graphs.EARLY_LAUNCHES = True


def prepare(trainer: Trainer, clips: ClipTable, args: argparse.Namespace) -> None:
    """Compile and capture for the shapes of all steps, as the first epoch does."""
    if trainer.device.type == "cuda":
        log(f"{args.warm_ups + args.steps} steps for the first time")
        Training(trainer, clips).run(args.warm_ups + args.steps)


def profile_steps(trainer: Trainer, clips: ClipTable, args: argparse.Namespace) -> dict:
    """The steps under the profiler."""
    cuda = trainer.device.type == "cuda"
    log(f"the same {args.steps} steps under the profiler")
    training = Training(trainer, clips)
    training.run(args.warm_ups)
    sessions, left = [], args.steps
    while left > 0:
        session, profiler = profiled(training, min(left, args.session))
        left -= args.session
        if cuda:
            collect(session, profiler.profiler.kineto_results.events())
        sessions.append(session)
    profiled_wall = sum(session.end - session.start for session in sessions) / 1e9
    found = {"profiled_wall_seconds": profiled_wall, "busy": None}
    return found | (analyse(sessions) if cuda else {"operators": operators(profiler)})


# ---------------------------------------------------------------------------- the program


def report(result: dict) -> str:
    """Markdown."""
    rows = [
        ["wall time without the profiler", f"{result['wall_seconds']:.2f} s"],
        ["wall time with it", f"{result['profiled_wall_seconds']:.2f} s"],
        ["waited for data", f"{result['waited_for_data']:.2%}"],
        ["padded mel frames a second", f"{result['padded_frames_per_second']:,.0f}"],
    ]
    tables = []
    if "operators" in result:
        rows.append(["GPU busy", "not measured without a GPU"])
        titles = ["operator, in the last session", "share of the operators' time", "calls"]
        operators = [
            [o["name"], f"{o['share']:.1%}", f"{o['count']:,}"] for o in result["operators"]
        ]
        tables.append(markdown_table(titles, operators))
    elif result["busy"] is None:
        rows.append(["GPU busy", "not measured: the profiler saw no kernels"])
    else:
        unprofiled = result["busy_seconds_per_step"] * result["steps"] / result["wall_seconds"]
        late, upper_bound = "", []
        if result["busy_upper_bound"] is not None:
            late = ", launched late"
            shown = f"{result['busy_upper_bound']:.1%}"
            upper_bound = [["GPU busy at most: launched early, with the waiting in it", shown]]
        rows += [
            [
                f"GPU busy, in {result['profiled_steps']} profiled steps{late}",
                f"{result['busy']:.1%}",
            ],
            *upper_bound,
            ["the same busy time over the wall time without the profiler", f"{unprofiled:.1%}"],
            ["kernels and copies a step", f"{result['kernels_per_step']:,.0f}"],
            *([f"{n} a step", f"{c:,.1f}"] for n, c in result["host_calls_per_step"].items()),
        ]
        tables += kernel_tables(result)
    heading = (
        f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
        f"{result['steps']} consecutive steps, {result['clips']}; decoder: {result['fast_decoder']}"
    )
    return "\n\n".join([heading, markdown_table(["", ""], rows), *tables])


def kernel_tables(result: dict) -> list[str]:
    """Idle times by length, the longest kernels, and what the host did in the longest gaps."""
    idle = [
        [
            f"{row['from_us']:g} µs to "
            + ("more" if row["to_us"] is None else f"{row['to_us']:g} µs"),
            f"{row['count']:,}",
            f"{row['share']:.2%}",
        ]
        for row in result["idle_by_length"]
    ]
    kernels = [
        [row["name"], f"{row['share']:.1%}", f"{row['seconds']:.3f}", f"{row['count']:,}"]
        for row in result["top_kernels"]
    ]
    tables = [
        markdown_table(["idle, by length", "times", "share of wall time"], idle),
        markdown_table(["kernel", "share of wall time", "s", "count"], kernels),
    ]
    if result["long_gaps"]:
        gaps = [[f"{row['us']:,.0f} µs", row["host"]] for row in result["long_gaps"]]
        tables.append(markdown_table(["longest idle times", "meanwhile the host was"], gaps, 2))
    return tables


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("filelist", nargs="?", type=Path, help="of cached mels; default: made-up ones")
    add_measuring_options(parser)
    add("--clips", type=whole_number(2), default=2620, help="clips to make up; default %(default)s")
    shown = "as train.py takes them"
    add("--hparams", default="decoder=fast", metavar="name=value,...", help=shown)
    add("--steps", type=at_least_one, default=200, help="measured; default %(default)s")
    add("--warm-ups", type=whole_number(0), default=20, help="steps before; default %(default)s")
    shown = "steps the profiler runs for; default %(default)s"
    add("--session", type=at_least_one, default=100, help=shown)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        try:
            hparams = create_hparams(args.hparams, create_hparams(BASE))
            hparams = replace(hparams, load_mel_from_disk=True, precision=args.precision)
            filelist, source = args.filelist, str(args.filelist)
            if filelist is None:
                synthetic = synthetic_lengths(args.clips, hparams)
                filelist = make_corpus(Path(folder), synthetic, hparams)
                source = f"{args.clips:,} synthetic clips, lengths distributed as LJSpeech's"
            clips = read_filelist(filelist, hparams)
            trainer = Trainer(hparams, args.device)
            found = measure_training(trainer, clips, args)
        except UserError as error:
            sys.exit(f"{PROGRAM}: {error}")
    result = found | {
        "steps": args.steps,
        "clips": source,
        "decoder": hparams.decoder,
        "fast_decoder": trainer.decoder_description,
        "precision": args.precision,
        **measured_on(args.device),
        "hparams": asdict(hparams),
    }
    print(report(result))
    if args.json:
        write_json(args.json, result)
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
