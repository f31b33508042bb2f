"""Stop one training run 200 times at random, and compare it with an uninterrupted one.

    python scripts/soak.py                        # about 40 minutes on two quiet CPU cores
    python scripts/soak.py --stops 3 --only SIGKILL --seed 1 --out soak_1

Trains a tiny model on cached synthetic mels with `train.py --resume`. Each start has a random
number of workers and meets one fault at a random moment: a signal to one process or to all; a full
disk; a link or a named pipe in place of a file; a list edited in its check, a clip replaced by an
older file, a table of clips cut short; under torchrun, one of two processes stopped by SIGSTOP (on
no GPU, or two). Files are put back afterwards; so is the whole output folder where the start said
that it lost metrics or a validation. Then the run is finished. It must equal a run without a stop
bit by bit, no start may end in a traceback, or by itself without the message of its fault, and
nothing outside may change. Writes OUT/soak.md, and exits with 1 if anything was lost. OUT must be
new.
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
from collections.abc import Callable, Iterator
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
FULL_DISK, LINK, PIPE, EDITED = "full disk", "link", "named pipe", "list edited in its check"
OLDER, REPLACED, CUT = "clip replaced before", "clip replaced in training", "table cut short"
PAUSED, STOPPED = "SIGSTOP within the timeout", "SIGSTOP beyond the timeout"
MUST_SAY = {  # what a start ends with
    REPLACED: r"\.npy: changed \(.*\); put the old file back",
    CUT: r"\.clips: changed while it was in use",
    STOPPED: "(does|did) not answer",
}
MAY_SAY = {  # what it may end with
    FULL_DISK: "make room|File too large: '/",
    LINK: "no good checkpoint is left",
    EDITED: "changed while it was checked|trained on other clips",
}
THINGS = {PIPE: [PIPE], LINK: [LINK, "hard link", "dangling link", "link to another file"]}
TEMPORARY = "temporary"
NOT_READ = {PIPE: "a named pipe, expected a file", "dangling link": "which is missing"}
LOST = r"starting a new one|no validation of epoch|lines of metrics\.jsonl failed"  # and said so
KINDS = (*(number.name for number in SIGNALS), PIPE, OLDER, PAUSED, *MUST_SAY, *MAY_SAY)
WORKERS = (0, 0, 1, 2, 3)
TRAINING = "watch: tensorboard"  # train.py prints it when set-up is done
MAX_SECONDS = 2.0  # of training, or of set-up, before a stop
PROCESS_TIMEOUT = 20
STUCK_SECONDS = 90
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 --redirects 3 --log-dir"
# Of KINDS, "set-up" (imports included) or "training", ..., what went wrong, what stood where.
Stop = namedtuple("Stop", "kind phase exit_code fault place lost", defaults=("", False))


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    options = ("-o", output, "--resume", "--process-timeout", PROCESS_TIMEOUT)
    return [*map(str, (ROOT / "train.py", *options, "--hparams", settings))]


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


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@contextlib.contextmanager
def replaced(path: Path, thing: str, outside: Path) -> Iterator[None]:
    """With a pipe or a link in place of a file, which lies outside meanwhile."""
    hidden = outside / path.name
    if path.exists():
        path.rename(hidden)
    hidden.touch()
    if thing == PIPE:
        os.mkfifo(path)
    elif thing == "hard link":
        path.hardlink_to(hidden)
    else:
        others = {"link to another file": "precious", "dangling link": "nowhere"}
        path.symlink_to(outside / others.get(thing, hidden.name))
    yield
    if path.is_symlink() or path.is_fifo():
        hidden.rename(path)
    hidden.unlink(missing_ok=True)  # where the run has replaced or removed the link


class Start:
    """One start of the run in `out`, and its fault."""

    def __init__(self, out: Path, kind: str, draw: random.Random, log: Path):
        self.run, self.corpus, self.outside = out / "stopped", out / "corpus", out / "outside"
        self.kind, self.draw, self.log, self.thing, self.place = kind, draw, log, "", ""
        self.must_say, self.ranks = MUST_SAY.get(kind, ""), list[int]()
        self.restored = contextlib.ExitStack()

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
        table = table_path(self.corpus / "mels.txt")
        if self.kind == EDITED:  # reading every clip takes longer than reading the table
            table.unlink(missing_ok=True)
        elif self.kind == OLDER and self.replace_clip("same", "shorter") == "shorter":
            self.must_say = "trained on other clips"
        elif self.kind in (LINK, PIPE):
            checkpoints = [path for _, path in list_checkpoints(self.run)]
            names = (".lock", METRICS_FILE, TEMPORARY)
            paths = [*(self.run / name for name in names), table, checkpoints[0], checkpoints[-1]]
            paths.append(self.draw.choice(sorted((self.run / "logs").iterdir())))
            path, self.thing = self.draw.choice(paths), self.draw.choice(THINGS[self.kind])
            self.place = re.sub(r"\d.*", "", path.name)  # no numbers, for the summary
            if self.place == ".lock" and self.thing != "hard link":
                self.must_say = r"\.lock: .*expected a file"
            elif path == checkpoints[-1]:
                self.must_say = NOT_READ.get(self.thing, "")
            if self.place != TEMPORARY:
                self.restored.enter_context(replaced(path, self.thing, self.outside))

    def during(self) -> None:
        """The fault, where it comes under a run."""
        newest, table = list_checkpoints(self.run)[-1], table_path(self.corpus / "mels.txt")
        if self.place == TEMPORARY:  # of the next checkpoint but one
            path = self.run / f".checkpoint_{newest[0] // 3 * 3 + 6}.pt.{self.process.pid}.tmp"
            self.restored.enter_context(replaced(path, self.thing, self.outside))
        elif self.kind == REPLACED:
            self.replace_clip("same", "louder", "shorter")
        elif self.kind == CUT:
            os.truncate(table, self.draw.randrange(table.stat().st_size))
        elif self.ranks:
            one = self.draw.choice(self.ranks)
            os.kill(one, signal.SIGSTOP)
            if self.kind == STOPPED:
                wait_until(lambda: any(is_gone(rank) for rank in self.ranks if rank != one))
            else:
                time.sleep(self.draw.uniform(0, 0.5 * PROCESS_TIMEOUT))
            os.kill(one, signal.SIGCONT)
            wait_until(lambda: self.has_ended() or list_checkpoints(self.run)[-1] != newest)

    def launch(self, arguments: list[str]) -> None:
        """Start it; in several processes what torchrun itself prints is in no *.log."""
        several = self.kind in (PAUSED, STOPPED)
        if several:
            arguments = [*TORCHRUN.split(), str(self.log), *arguments]
        with open(self.log / ("torchrun.out" if several else "train.log"), "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], stdout=file, stderr=file, start_new_session=True
            )
        if self.kind == FULL_DISK:  # no file can grow beyond so many bytes
            limits = 2 * (self.draw.randrange(1, 420_000),)  # a checkpoint has 140,000
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)
        maps = Path(f"/proc/{self.process.pid}/maps")  # Python itself loses a Ctrl-C in its start
        wait_until(lambda: self.has_ended() or "torch" in maps.read_text())
        if several:
            wait_until(lambda: self.has_ended() or self.has_ranks())

    def has_ranks(self) -> bool:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.ranks = [int(pid) for pid in children.read_text().split()]
        return len(self.ranks) == 2

    def printed(self) -> str:
        return "".join(path.read_text() for path in sorted(self.log.rglob("*.log")))

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
        seen = contents(self.outside)
        self.launch(arguments)
        acts = self.ranks or self.kind in (REPLACED, CUT) or self.place == TEMPORARY
        in_set_up = self.draw.random() < 0.2 and (self.ranks or not (self.must_say or self.place))
        if not in_set_up or self.kind == EDITED:
            wait_until(self.is_ready)
        by_itself = wait_until(self.has_ended, self.draw.uniform(0, MAX_SECONDS))
        if acts and not by_itself:
            self.during()
            seen = contents(self.outside) if self.place == TEMPORARY else seen
            seconds = STUCK_SECONDS if self.must_say else self.draw.uniform(0, MAX_SECONDS)
            by_itself = wait_until(self.has_ended, seconds)
        groups = [self.process.pid, *self.ranks]
        if not by_itself:
            number = signal.Signals.__members__.get(self.kind, signal.SIGTERM)
            self.draw.choice((os.kill, os.killpg))(groups[-1], number)
        hangs = not wait_until(lambda: self.has_ended() and all(map(is_gone, groups)))
        for group in groups if hangs else []:
            is_gone(group, signal.SIGKILL)
        code, printed = self.process.wait(), self.printed()
        may_say = self.must_say or MAY_SAY.get(self.kind, "")
        fault = fault_of(by_itself, code, printed, may_say, bool(self.must_say))
        if contents(self.outside) != seen:
            fault = f"changed files in {self.outside}"
        fault = f"it did not end within {STUCK_SECONDS} s" if hangs else fault
        self.restored.close()
        phase = "training" if TRAINING in printed else "set-up"
        place = self.place and f"{self.thing}: {self.place}"
        return Stop(self.kind, phase, code, fault, place, bool(re.search(LOST, printed)))


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
    places = sorted(Counter(stop.place for stop in stops if stop.place).items())
    found = measured_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return f"""# Soak: one run stopped {len(stops)} times

{epochs} epochs; weights, optimizer, random states, loop and metrics against an uninterrupted run:
**{"NOT equal" if lost else "bitwise equal"}**. {len(faults)} faults.

{table}

In place of files: {", ".join(f"{place} {count}" for place, count in places) or "nothing"}.
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
    (out / "outside").mkdir()
    (out / "outside" / "precious").write_text("precious")
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
