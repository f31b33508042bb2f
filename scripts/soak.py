"""Stop one training run 200 times at random, and compare it with an uninterrupted one.

    python scripts/soak.py                        # about 40 minutes on two quiet CPU cores
    python scripts/soak.py --stops 3 --only SIGKILL --seed 1 --out soak_1

Trains a tiny model on cached synthetic mels with `train.py --resume`. Each start has a random
number of workers and meets one fault at a random moment: a signal to one process or to all, or a
full disk. The output folder is put back where the start said that it lost metrics or a validation.
Then the run is finished. It must equal a run without a stop bit by bit, and no start may end in a
traceback, or by itself without the message of a full disk. Writes OUT/soak.md, and exits with 1 if
anything was lost. OUT must be new.
"""

from project_root import ROOT

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, namedtuple
from collections.abc import Callable
from pathlib import Path

import torch

from analysis.arguments import make_parser, whole_number
from common.console import duration, markdown_table, progress_bar
from common.errors import UserError
from common.files import METRICS_FILE, write_bytes
from common.machine import measured_on
from corpus.lengths import make_corpus, synthetic_lengths
from hparams import create_hparams
from paper.same_run import compare_runs, read_metrics

SETTINGS = (
    "batches_per_update=2,epochs_per_validation=2,iters_per_checkpoint=3,keep_checkpoints=2,"
    "log_interval=5,batch_size=4,load_mel_from_disk=True,hop_time=250,n_mel_channels=10,"
    "symbols_embedding_dim=8,encoder_embedding_dim=8,encoder_n_convolutions=1,attention_rnn_dim=8,"
    "decoder_rnn_dim=8,prenet_dim=8,attention_dim=6,postnet_embedding_dim=8,"
    "postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK = "full disk"
SAYS_FULL = "make room|File too large: '/"  # what a start may then end with
LOST = r"starting a new one|no validation of epoch|lines of metrics\.jsonl failed"  # and said so
KINDS = (*(number.name for number in SIGNALS), FULL_DISK)
WORKERS = (0, 0, 1, 2, 3)
TRAINING = "watch: tensorboard"  # train.py prints it when set-up is done
MAX_SECONDS = 2.0  # of training, or of set-up, before a stop
STUCK_SECONDS = 90
# Of KINDS, "set-up" (imports included) or "training", ..., what went wrong.
Stop = namedtuple("Stop", "kind phase exit_code fault lost", defaults=(False,))


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    return [*map(str, (ROOT / "train.py", "-o", output, "--resume", "--hparams", settings))]


def wait_until(happened: Callable[[], bool], seconds: float = STUCK_SECONDS) -> bool:
    """Whether it happens within so many seconds."""
    until = time.monotonic() + seconds
    while not (found := happened()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def is_gone(group: int, number: int = 0) -> bool:
    """Whether a process has ended, and its workers, which end a moment later; sends a signal."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return False
    return True


def start_and_stop(kind: str, arguments: list[str], draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it at a random moment, and look at what it says."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=file, stderr=file, start_new_session=True
        )
    if kind == FULL_DISK:  # no file can grow beyond so many bytes
        limits = 2 * (draw.randrange(1, 420_000),)  # a checkpoint has 140,000
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)

    def has_ended() -> bool:
        return process.poll() is not None

    maps = Path(f"/proc/{process.pid}/maps")  # Python itself loses a Ctrl-C in its start
    wait_until(lambda: has_ended() or "torch" in maps.read_text())
    if draw.random() >= 0.2:  # else in set-up
        wait_until(lambda: has_ended() or TRAINING in log.read_text())
    by_itself = wait_until(has_ended, draw.uniform(0, MAX_SECONDS))
    if not by_itself:
        number = signal.Signals.__members__.get(kind, signal.SIGTERM)
        draw.choice((os.kill, os.killpg))(process.pid, number)
    hangs = not wait_until(lambda: has_ended() and is_gone(process.pid))
    if hangs:
        is_gone(process.pid, signal.SIGKILL)
    code, printed = process.wait(), log.read_text()
    fault = fault_of(by_itself, code, printed, SAYS_FULL if kind == FULL_DISK else "")
    fault = f"it did not end within {STUCK_SECONDS} s" if hangs else fault
    phase = "training" if TRAINING in printed else "set-up"
    return Stop(kind, phase, code, fault, bool(re.search(LOST, printed)))


def fault_of(by_itself: bool, code: int, printed: str, may_say: str) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if traceback := re.search("^(Traceback|At:$)", printed, re.MULTILINE):  # torch's begins so
        return "a traceback:\n" + printed[traceback.start() :][-2000:]
    told = code == 1 and may_say and re.search(may_say, printed)
    if told or not by_itself:
        return None
    return f"it ended by itself, with code {code}: {printed[-500:]}"


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

{sum(stop.lost for stop in stops)} starts said that they lost metrics or a validation: the folder
was put back as it was before them.

{found["device"]}; torch {found["versions"]["torch"]}; {duration(seconds)}.
Command: python scripts/soak.py {" ".join(sys.argv[1:])}
""" + "".join(f"- {line}\n" for line in lost + faults)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("soak"), help="default: soak")
    add("--stops", type=whole_number(1), default=200, help="default: %(default)s")
    add("--seed", type=whole_number(0), default=0, help="of what happens at each stop")
    add("--only", choices=KINDS, help="stop in this way only")
    add("--hparams", default="", metavar="name=value,...", help="change the tiny model")
    args = parser.parse_args(arguments)
    if args.out.exists():
        parser.error(f"--out {args.out}: already exists; delete it or name another folder")
    for number in SIGNALS[1:]:  # a shell may have had this program, and so train.py, ignore some
        signal.signal(number, signal.SIG_DFL)
    # As torchrun sets threads: sums over more round differently. What a killed run said is read.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
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
        log = out / f"stop_{len(stops) + 1:03d}"
        log.mkdir()
        if run.exists():
            shutil.copytree(run, log / "before")
        arguments = command(run, overrides, 10**6, draw.choice(WORKERS))
        stops.append(start_and_stop(kind, arguments, draw, log / "train.log"))
        if stops[-1].lost:
            shutil.rmtree(run)
            shutil.copytree(log / "before", run)
        shutil.rmtree(log / "before", ignore_errors=True)
    begun = read_metrics(run) if (run / METRICS_FILE).exists() else []  # else only set up
    epochs = 2 + max((record["epoch"] for record in begun), default=0)
    for output in (run, undisturbed):
        print(f"finishing {output}: {epochs} epochs", flush=True)
        arguments = [sys.executable, *command(output, overrides, epochs, workers=1)]
        if subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise UserError(f"{output} could not be finished")
    lost = compare_runs(run, undisturbed)
    page = summary(stops, lost, epochs, time.monotonic() - began)
    print(f"\n{page}")
    write_bytes(args.out / "soak.md", page.encode())
    sys.exit(bool(lost) or any(stop.fault for stop in stops))


if __name__ == "__main__":
    main()
