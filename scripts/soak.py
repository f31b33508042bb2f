"""Stop one training run 150 times at random, and compare it with an uninterrupted one.

    python scripts/soak.py                        # about 25 minutes on two CPU cores
    python scripts/soak.py --stops 3 --only SIGKILL --seed 1 --out soak_1

Trains a tiny model on cached synthetic mels with `train.py --resume`. Each start has a random
number of workers and ends in a random way at a random moment: by a signal to one process or to all
of them, on a full disk, or before a checkpoint that cannot be read. Then the run is finished, and
another one is trained without a stop. Their weights, optimizer, random states and metrics must be
equal bit by bit, and no start may end in a traceback.

Writes OUT/soak.md. Exits with 1 if anything was lost. OUT must be new.
"""

from project_root import ROOT

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, namedtuple
from collections.abc import Callable
from pathlib import Path

import torch

from analysis.arguments import make_parser, whole_number
from analysis.same_run import compare_runs, read_metrics
from corpus.lengths import make_corpus, synthetic_lengths
from errors import UserError
from files import METRICS_FILE, write_atomically
from hparams import create_hparams
from machine import measured_on
from progress import duration, progress_bar
from tables import markdown_table
from training.checkpoint import list_checkpoints

SETTINGS = (
    "epochs_per_validation=2,iters_per_checkpoint=7,keep_checkpoints=2,log_interval=5,batch_size=4,"
    "load_mel_from_disk=True,hop_time=250,n_mel_channels=10,symbols_embedding_dim=8,"
    "encoder_embedding_dim=8,encoder_n_convolutions=1,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=6,postnet_embedding_dim=8,postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK, UNREADABLE = "full disk", "unreadable checkpoint"
KINDS = (*(number.name for number in SIGNALS), FULL_DISK, UNREADABLE)
WORKERS = (0, 0, 1, 2, 3)
TRAINING = "watch: tensorboard"  # train.py prints it when set-up is done
MAX_SECONDS = 4.0  # of training, or of set-up, before a stop
STUCK_SECONDS = 60


# One start of the run: of KINDS, "set-up" (imports included) or "training", and what went wrong.
Stop = namedtuple("Stop", "kind phase exit_code fault")


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    program = [sys.executable, str(ROOT / "train.py")]
    return [*program, "-o", str(output), "--resume", "--hparams", settings]


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it happens within so many seconds."""
    until = time.monotonic() + seconds
    while not (found := happened()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def is_gone(process: subprocess.Popen) -> bool:
    """Whether it has ended, and its workers, which end a moment later."""
    process.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 0)
        return False
    return True


def stop_once(output: Path, overrides: str, kind: str, draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it, and look at what it says."""
    for_training, seconds = draw.random() < 0.8, draw.uniform(0, MAX_SECONDS)
    send, workers = draw.choice((os.kill, os.killpg)), draw.choice(WORKERS)
    newest, hidden = [path for _, path in list_checkpoints(output)][-1:], output / "hidden"
    if kind == UNREADABLE:  # a folder in its place
        newest[0].rename(hidden)
        newest[0].mkdir()
        for_training, seconds = True, MAX_SECONDS
    arguments = command(output, overrides, 10**6, workers)
    with open(log, "wb") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=file, start_new_session=True)
    if kind == FULL_DISK:  # no file can grow beyond so many bytes
        size = newest[0].stat().st_size if newest else 100_000
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, 2 * (draw.randrange(1, 3 * size),))
    if for_training:
        wait_until(lambda: process.poll() is not None or TRAINING in log.read_text(), STUCK_SECONDS)
    by_itself = wait_until(lambda: process.poll() is not None, seconds)
    if not by_itself:
        send(process.pid, signal.Signals.__members__.get(kind, signal.SIGTERM))
    if not wait_until(lambda: is_gone(process), STUCK_SECONDS):
        os.killpg(process.pid, signal.SIGKILL)
        raise UserError(f"{kind} did not end the run within {STUCK_SECONDS} s")
    if kind == UNREADABLE:
        newest[0].rmdir()
        hidden.rename(newest[0])
    code, printed = process.wait(), log.read_text()
    phase = "training" if TRAINING in printed else "set-up"
    return Stop(kind, phase, code, fault_of(kind, by_itself, code, printed))


def fault_of(kind: str, by_itself: bool, code: int, printed: str) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if "Traceback" in printed:
        return "a traceback:\n" + printed[printed.index("Traceback") :][-2000:]
    told = {UNREADABLE: "expected a file", FULL_DISK: "make room"}.get(kind)
    refused = by_itself and code == 1 and told is not None and told in printed
    if refused or (kind != UNREADABLE and not by_itself):
        return None
    return f"it ended {'by itself' if by_itself else 'late'}, with code {code}: {printed[-500:]}"


def summary(stops: list[Stop], lost: list[str], epochs: int, seconds: float) -> str:
    """Markdown."""
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
    for number in SIGNALS[1:]:  # a shell may have had this program, and so train.py, ignore some
        signal.signal(number, signal.SIG_DFL)
    out, began, draw = args.out.absolute(), time.monotonic(), random.Random(args.seed)
    run, undisturbed, stops = out / "stopped", out / "undisturbed", list[Stop]()
    kinds = [args.only or KINDS[number % len(KINDS)] for number in range(args.stops)]
    draw.shuffle(kinds)
    overrides = f"{SETTINGS},{args.hparams}".strip(",")
    (out / "corpus").mkdir(parents=True)
    hparams = create_hparams(overrides)
    filelist = make_corpus(out / "corpus", synthetic_lengths(32, hparams, args.seed), hparams)
    overrides += f",training_files={filelist},validation_files={filelist}"
    for kind in progress_bar("Stopping", len(kinds), " stops", iterable=kinds):
        if kind == UNREADABLE and not list_checkpoints(run):
            kind = "SIGKILL"  # nothing to be unreadable yet
        log = out / f"stop_{len(stops) + 1:03d}.log"
        stops.append(stop_once(run, overrides, kind, draw, log))
    begun = read_metrics(run) if (run / METRICS_FILE).exists() else []  # else only set up
    epochs = 2 + max((record["epoch"] for record in begun), default=0)
    for output in (run, undisturbed):
        print(f"finishing {output}: {epochs} epochs", flush=True)
        arguments = command(output, overrides, epochs, workers=1)
        if subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise UserError(f"{output} could not be finished")
    lost = compare_runs(run, undisturbed)
    page = summary(stops, lost, epochs, time.monotonic() - began)
    print(f"\n{page}")
    write_atomically(args.out / "soak.md", lambda path: path.write_text(page, encoding="utf-8"))
    sys.exit(bool(lost) or any(stop.fault for stop in stops))


if __name__ == "__main__":
    main()
