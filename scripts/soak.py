"""Stop one training run 200 times at random, and compare it with an uninterrupted one.

    python scripts/soak.py                        # about 40 minutes on two quiet CPU cores
    python scripts/soak.py --stops 3 --only SIGKILL --seed 1 --out soak_1

Trains a tiny model on cached synthetic mels with `train.py --resume`. Each start has a random
number of workers and meets one fault at a random moment: a signal to one process or to all; a full
disk; a list edited in its check, a clip replaced by an older file, a table of clips cut short.
Clips are put back afterwards; so is the whole output folder where the start said that it lost
metrics or a validation. Then the run is finished. It must equal a run without a stop bit by bit,
and no start may end in a traceback, or by itself without the message of its fault. Writes
OUT/soak.md, and exits with 1 if anything was lost. OUT must be new.
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

import numpy as np
import torch

from analysis.arguments import make_parser, whole_number
from analysis.same_run import compare_runs, read_metrics
from clip_table import table_path
from corpus.lengths import make_corpus, synthetic_lengths
from errors import UserError
from files import METRICS_FILE, write_bytes
from hparams import create_hparams
from machine import measured_on
from progress import duration, progress_bar
from tables import markdown_table
from training.checkpoint import list_checkpoints

SETTINGS = (
    "batches_per_update=2,epochs_per_validation=2,iters_per_checkpoint=3,keep_checkpoints=2,"
    "log_interval=5,batch_size=4,load_mel_from_disk=True,hop_time=250,n_mel_channels=10,"
    "symbols_embedding_dim=8,encoder_embedding_dim=8,encoder_n_convolutions=1,attention_rnn_dim=8,"
    "decoder_rnn_dim=8,prenet_dim=8,attention_dim=6,postnet_embedding_dim=8,"
    "postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK, EDITED, CUT = "full disk", "list edited in its check", "table cut short"
OLDER, REPLACED = "clip replaced before", "clip replaced in training"
MUST_SAY = {  # what a start ends with
    REPLACED: r"\.npy: changed \(.*\); put the old file back",
    CUT: r"\.clips: changed while it was in use",
}
MAY_SAY = {  # what it may end with
    FULL_DISK: "make room|File too large: '/",
    EDITED: "changed while it was checked|trained on other clips",
}
LOST = r"starting a new one|no validation of epoch|lines of metrics\.jsonl failed"  # and said so
KINDS = (*(number.name for number in SIGNALS), OLDER, *MUST_SAY, *MAY_SAY)
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


class Start:
    """One start of the run in `out`, and its fault."""

    def __init__(self, out: Path, kind: str, draw: random.Random, log: Path):
        self.corpus, self.kind, self.draw, self.log = out / "corpus", kind, draw, log
        self.must_say = MUST_SAY.get(kind, "")

    def replace_clip(self, *ways: str) -> str:
        """Put an older file in place of a clip, as cp -p does. Returns in which of the ways."""
        way, clip = self.draw.choice(ways), self.draw.choice(sorted(self.corpus.glob("*.npy")))
        mel, older = np.load(clip), self.log / "older.npy"
        np.save(older, {"same": mel, "louder": mel + 1, "shorter": mel[:, 1:]}[way])
        os.utime(older, (10**9, 10**9))
        older.replace(clip)
        return way

    def before(self) -> None:
        """The fault, where it is there before the start."""
        if self.kind == EDITED:  # reading every clip takes longer than reading the table
            table_path(self.corpus / "mels.txt").unlink(missing_ok=True)
        elif self.kind == OLDER and self.replace_clip("same", "shorter") == "shorter":
            self.must_say = "trained on other clips"

    def during(self) -> None:
        """The fault, where it comes under a run."""
        table = table_path(self.corpus / "mels.txt")
        if self.kind == REPLACED:
            self.replace_clip("same", "louder", "shorter")
        else:
            os.truncate(table, self.draw.randrange(table.stat().st_size))

    def launch(self, arguments: list[str]) -> None:
        with open(self.log / "train.log", "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], stdout=file, stderr=file, start_new_session=True
            )
        if self.kind == FULL_DISK:  # no file can grow beyond so many bytes
            limits = 2 * (self.draw.randrange(1, 420_000),)  # a checkpoint has 140,000
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)
        maps = Path(f"/proc/{self.process.pid}/maps")  # Python itself loses a Ctrl-C in its start
        wait_until(lambda: self.has_ended() or "torch" in maps.read_text())

    def printed(self) -> str:
        return (self.log / "train.log").read_text()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def is_ready(self) -> bool:
        """Whether it trains or has ended; edits the list until then."""
        if self.kind == EDITED:
            with open(self.corpus / "mels.txt", "r+b") as file:
                file.seek(-2, os.SEEK_END)  # the last letter of the last text
                file.write(self.draw.choice((b"a", b"e", b"i")))
        return self.has_ended() or TRAINING in self.printed()

    def run_and_stop(self, arguments: list[str]) -> Stop:
        """Start the run, stop it, and look at what it says."""
        self.before()
        self.launch(arguments)
        in_set_up = self.draw.random() < 0.2 and not self.must_say
        if not in_set_up or self.kind == EDITED:
            wait_until(self.is_ready)
        by_itself = wait_until(self.has_ended, self.draw.uniform(0, MAX_SECONDS))
        if self.kind in (REPLACED, CUT) and not by_itself:
            self.during()
            by_itself = wait_until(self.has_ended, STUCK_SECONDS)
        group = self.process.pid
        if not by_itself:
            number = signal.Signals.__members__.get(self.kind, signal.SIGTERM)
            self.draw.choice((os.kill, os.killpg))(group, number)
        hangs = not wait_until(lambda: self.has_ended() and is_gone(group))
        if hangs:
            is_gone(group, signal.SIGKILL)
        code, printed = self.process.wait(), self.printed()
        may_say = self.must_say or MAY_SAY.get(self.kind, "")
        fault = fault_of(by_itself, code, printed, may_say, bool(self.must_say))
        fault = f"it did not end within {STUCK_SECONDS} s" if hangs else fault
        phase = "training" if TRAINING in printed else "set-up"
        return Stop(self.kind, phase, code, fault, bool(re.search(LOST, printed)))


def fault_of(
    by_itself: bool, code: int, printed: str, may_say: str, must_end: bool = False
) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if traceback := re.search("^(Traceback|At:$)", printed, re.MULTILINE):  # torch's begins so
        return "a traceback:\n" + printed[traceback.start() :][-2000:]
    told = by_itself and code == 1 and may_say and re.search(may_say, printed)
    if told or not (by_itself or must_end):
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
    shutil.copytree(out / "corpus", out / "kept corpus")
    overrides += f",training_files={filelist},validation_files={filelist}"
    for kind in progress_bar("Stopping", len(kinds), " stops", iterable=kinds):
        if not list_checkpoints(run) and kind not in (*signal.Signals.__members__, FULL_DISK):
            kind = "SIGKILL"  # nothing to be replaced yet
        log = out / f"stop_{len(stops) + 1:03d}"
        log.mkdir()
        if run.exists():
            shutil.copytree(run, log / "before")
        arguments = command(run, overrides, 10**6, draw.choice(WORKERS))
        stops.append(Start(out, kind, draw, log).run_and_stop(arguments))
        if kind in (OLDER, REPLACED, EDITED):
            shutil.copytree(out / "kept corpus", out / "corpus", dirs_exist_ok=True)
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
