"""Stop one training run 150 times at random, and compare it with an uninterrupted one.

    python scripts/soak.py                        # about 25 minutes on two CPU cores
    python scripts/soak.py --stops 3 --only SIGKILL --seed 1 --out soak_1

Trains a tiny model on cached synthetic mels with `train.py --resume`, on the GPU where there is
one. Each start has a random number of workers and ends in a random way at a random moment: by a
signal to one process or to all of them; on a disk that is full; or before a checkpoint that cannot
be read. Then the run is finished, and another one is trained without a stop. Their weights,
optimizer, random states and metrics must be equal bit by bit, and no start may end in a traceback.

Writes OUT/soak.md. Exits with 1 if anything was lost. OUT must be new.
"""

import project_root

import functools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from analysis.arguments import make_parser, whole_number
from analysis.lengths import CorpusLengths, make_corpus
from analysis.same_run import compare_runs, read_metrics
from analysis.tables import markdown_table
from errors import UserError
from files import METRICS_FILE, write_atomically
from hparams import create_hparams
from machine import measured_on
from progress import duration, progress_bar
from training.checkpoint import list_checkpoints

SETTINGS = (
    "epochs_per_validation=2,iters_per_checkpoint=7,keep_checkpoints=2,log_interval=5,batch_size=4,"
    "validation_batch_size=4,n_mel_channels=10,symbols_embedding_dim=8,encoder_embedding_dim=8,"
    "encoder_n_convolutions=1,attention_rnn_dim=8,decoder_rnn_dim=8,prenet_dim=8,attention_dim=6,"
    "attention_location_n_filters=2,postnet_embedding_dim=8,postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK, UNREADABLE = "full disk", "unreadable checkpoint"
KINDS = (*(number.name for number in SIGNALS), FULL_DISK, UNREADABLE)
WORKERS = (0, 0, 1, 2, 3)
TRAINING = "watch: tensorboard"  # train.py prints it when set-up is done
MAX_SECONDS = 4.0  # of training, or of set-up, before a stop
STUCK_SECONDS = 60


class Stop(NamedTuple):
    """One start of the run and how it ended."""

    kind: str
    phase: str  # "set-up", imports included, or "training"
    exit_code: int
    fault: str | None  # what went wrong


def make_corpora(folder: Path, seed: int, settings: str) -> str:
    """Cached mels of noise for 32 training and 8 validation clips; returns the overrides."""
    settings += ",load_mel_from_disk=True"
    rng = np.random.default_rng(seed)
    for name, count in (("training_files", 32), ("validation_files", 8)):
        (folder / name).mkdir(parents=True)
        frames = rng.integers(9, 42, count)
        lengths = CorpusLengths([str(i) for i in range(count)], frames, symbols=3 + frames // 2)
        settings += f",{name}={make_corpus(folder / name, lengths, create_hparams(settings))}"
    return settings


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    program = str(project_root.ROOT / "train.py")
    return [sys.executable, program, "-o", str(output), "--resume", "--hparams", settings]


def train_to_the_end(output: Path, overrides: str, epochs: int) -> None:
    """Train, or resume, until `epochs` are done."""
    print(f"finishing {output}: {epochs} epochs", flush=True)
    arguments = command(output, overrides, epochs, workers=1)
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise UserError(f"{output} could not be finished:\n{ended.stdout}{ended.stderr}")


def limit_files(most_bytes: int) -> None:
    """In the new process: no file that it writes grows beyond `most_bytes`."""
    for number in SIGNALS[1:]:  # a shell may have had this program ignore some
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def wait(process: subprocess.Popen, seconds: float, log: Path | None = None) -> None:
    """For so many seconds, until it ends, or until its log says that set-up is done."""
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        if log and TRAINING in log.read_text():
            return
        time.sleep(0.01)


def wait_for_all(process: subprocess.Popen, kind: str) -> int:
    """The exit code, once the process and its workers, which end a moment later, are gone."""
    until = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < until:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return process.wait()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    raise UserError(f"{kind} did not end the run within {STUCK_SECONDS} s")


def stop_once(output: Path, overrides: str, kind: str, draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it, and look at what it says."""
    arguments = command(output, overrides, 10**6, workers=draw.choice(WORKERS))
    most_bytes = resource.RLIM_INFINITY
    for_training, seconds = draw.random() < 0.8, draw.uniform(0, MAX_SECONDS)
    send = draw.choice((os.kill, os.killpg))
    newest, hidden = [path for _, path in list_checkpoints(output)][-1:], output / "hidden"
    if kind == FULL_DISK:
        size = newest[0].stat().st_size if newest else 100_000
        most_bytes = draw.randrange(1, 3 * size)
    if kind == UNREADABLE:  # a folder in its place
        newest[0].rename(hidden)
        newest[0].mkdir()
        before, for_training, seconds = listing(output), True, MAX_SECONDS
    prepare = functools.partial(limit_files, most_bytes)
    with open(log, "wb") as file:
        process = subprocess.Popen(
            arguments, stdout=file, stderr=file, start_new_session=True, preexec_fn=prepare
        )
    if for_training:
        wait(process, STUCK_SECONDS, log)
    wait(process, seconds)
    by_itself = process.poll() is not None
    if not by_itself:
        send(process.pid, signal.Signals.__members__.get(kind, signal.SIGTERM))
    code, printed = wait_for_all(process, kind), log.read_text()
    fault = fault_of(kind, by_itself, code, printed)
    if kind == UNREADABLE:
        if listing(output) != before:
            fault = "an unreadable checkpoint: files of the run were touched"
        newest[0].rmdir()
        hidden.rename(newest[0])
    return Stop(kind, "training" if TRAINING in printed else "set-up", code, fault)


def fault_of(kind: str, by_itself: bool, code: int, printed: str) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if "Traceback" in printed:
        return "a traceback:\n" + printed[printed.index("Traceback") :][-2000:]
    told = {UNREADABLE: "expected a file", FULL_DISK: "make room"}.get(kind)
    refused = by_itself and code == 1 and told is not None and told in printed
    if refused or (kind != UNREADABLE and not by_itself):
        return None
    return f"it ended {'by itself' if by_itself else 'late'}, with code {code}: {printed[-500:]}"


def listing(output: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file of the run."""
    files = [path for path in output.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


def summary(stops: list[Stop], lost: list[str], epochs: int, seconds: float) -> str:
    """A page: what was done to the run, how its starts ended, and what was lost."""
    counts = Counter((stop.kind, stop.phase, stop.exit_code) for stop in stops)
    rows = [[*key, count] for key, count in sorted(counts.items())]
    table = markdown_table(["stopped by", "in", "exit code", "times"], rows, labels=2)
    faults = [f"stop {n}, {s.kind}: {s.fault}" for n, s in enumerate(stops, 1) if s.fault]
    found = measured_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return f"""# Soak: one run stopped {len(stops)} times

{epochs} epochs; weights, optimizer, random states, loop and metrics against an uninterrupted run:
**{"NOT equal" if lost else "bitwise equal"}**. {len(faults)} faults.

{table}

{found["device"]}; torch {found["versions"]["torch"]}; {duration(seconds)}.
Command: python scripts/soak.py {" ".join(sys.argv[1:])}
""" + "".join(f"- {line}\n" for line in lost + faults)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("soak"), help="default: soak")
    add("--stops", type=whole_number(1), default=150, help="default: %(default)s")
    add("--seed", type=whole_number(0), default=0, help="of what happens at each stop")
    add("--only", choices=KINDS, help="stop in this way only")
    add("--hparams", default="", metavar="name=value,...", help="change the tiny model")
    args = parser.parse_args(arguments)
    if args.out.exists():
        parser.error(f"--out {args.out}: already exists; delete it or name another folder")
    out, began, draw = args.out.absolute(), time.monotonic(), random.Random(args.seed)
    run, undisturbed = out / "stopped", out / "undisturbed"
    stops: list[Stop] = []
    kinds = [args.only or KINDS[number % len(KINDS)] for number in range(args.stops)]
    draw.shuffle(kinds)
    try:
        overrides = make_corpora(out / "corpus", args.seed, f"{SETTINGS},{args.hparams}".strip(","))
        for kind in progress_bar("Stopping", len(kinds), " stops", iterable=kinds):
            if kind == UNREADABLE and not list_checkpoints(run):
                kind = "SIGKILL"  # nothing to be unreadable yet
            log = out / f"stop_{len(stops) + 1:03d}.log"
            stops.append(stop_once(run, overrides, kind, draw, log))
        begun = read_metrics(run) if (run / METRICS_FILE).exists() else []  # else only set up
        epochs = 2 + max((record["epoch"] for record in begun), default=0)
        for output in (run, undisturbed):
            train_to_the_end(output, overrides, epochs)
    except (UserError, OSError) as error:
        sys.exit(f"soak.py: {error}")
    lost = compare_runs(run, undisturbed)
    page = summary(stops, lost, epochs, time.monotonic() - began)
    print(f"\n{page}")
    write_atomically(args.out / "soak.md", lambda path: path.write_text(page, encoding="utf-8"))
    sys.exit(bool(lost) or any(stop.fault for stop in stops))


if __name__ == "__main__":
    main()
