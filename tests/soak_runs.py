"""Stop one training run many times at random, then compare it with an uninterrupted run.

test_soak.py calls `soak`. It trains a tiny model on cached synthetic mels with
`train.py --resume`. Each start has a random number of workers and meets one fault at a random
moment: a signal to one process or to all, or a full disk. If a start says that it lost metrics or a
validation, the output folder is put back as it was before. At the end the run must equal one
without a stop bit by bit. No start may end in a traceback, or by itself without the message of a
full disk.
"""

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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from helpers import ROOT
from same_run import compare_runs, read_metrics

from corpus.lengths import make_corpus, synthetic_lengths
from hparams import create_hparams
from machine import measured_on
from tacotron2_voice.utils.console import duration, markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE, write_bytes

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


class Stop(NamedTuple):
    """How one start ended."""

    kind: str  # one of KINDS
    phase: str  # "set-up", which includes imports, or "training"
    exit_code: int
    fault: str | None  # what went wrong
    lost: bool = False  # it said that it lost metrics or a validation


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    return [*map(str, (ROOT / "train.py", "-o", output, "--resume", "--hparams", settings))]


def wait_until(happened: Callable[[], bool], seconds: float = STUCK_SECONDS) -> bool:
    """Whether it happens within so many seconds."""
    until = time.monotonic() + seconds
    while not (has_happened := happened()) and time.monotonic() < until:
        time.sleep(0.01)
    return has_happened


def is_gone(group: int, number: int = 0) -> bool:
    """Whether a process has ended, and its workers, which end a moment later; sends a signal."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return False
    return True


def start_and_stop(kind: str, arguments: list[str], draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it at a random moment, and check its last words and exit code."""
    with open(log, "wb") as file:  # by another process: a full disk would lose the last words
        writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
    output = writer.stdin
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=output, stderr=output, start_new_session=True
    )
    assert output is not None
    output.close()
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
    code = process.wait()
    writer.wait()
    printed = log.read_text()
    fault = fault_of(by_itself, code, printed, SAYS_FULL if kind == FULL_DISK else "")
    fault = f"it did not end within {STUCK_SECONDS} s" if hangs else fault
    phase = "training" if TRAINING in printed else "set-up"
    return Stop(kind, phase, code, fault, bool(re.search(LOST, printed)))


def fault_of(by_itself: bool, code: int, printed: str, may_say: str) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if traceback := re.search("^(Traceback|At:$)", printed, re.MULTILINE):  # torch's begins so
        return "a traceback:\n" + printed[traceback.start() :][-2000:]
    is_expected = code == 1 and may_say and re.search(may_say, printed)
    if is_expected or not by_itself:
        return None
    return f"it ended by itself, with code {code}: {printed[-500:]}"


def summary(stops: list[Stop], lost: list[str], epochs: int, seconds: float, settings: str) -> str:
    """A report in Markdown. `lost`: where the two runs differ."""
    counts = Counter((stop.kind, stop.phase, stop.exit_code) for stop in stops)
    rows = [[*key, count] for key, count in sorted(counts.items())]
    table = markdown_table(["stopped by", "in", "exit code", "times"], rows, labels=2)
    faults = [f"stop {n}, {s.kind}: {s.fault}" for n, s in enumerate(stops, 1) if s.fault]
    machine = measured_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return f"""# Soak: one run stopped {len(stops)} times

{epochs} epochs; weights, optimizer, random states, loop and metrics against an uninterrupted run:
**{"NOT equal" if lost else "bitwise equal"}**. {len(faults)} faults.

{table}

{sum(stop.lost for stop in stops)} starts said that they lost metrics or a validation: the folder
was put back as it was before them.

{machine["device"]}; torch {machine["versions"]["torch"]}; {duration(seconds)}.
Settings: {settings}
""" + "".join(f"- {line}\n" for line in lost + faults)


def soak(
    out: Path, *, stops: int, seed: int = 0, only: str = "", overrides: str = ""
) -> tuple[list[Stop], list[str]]:
    """Stop a run `stops` times and finish it. Writes `out`/soak.md.

    Args:
        out: a new folder, for both runs and the output of each start.
        seed: of the kinds and moments of the faults, the numbers of workers and the corpus.
        only: the one of KINDS to use; default: all of them in equal numbers.
        overrides: hyper-parameters that change the tiny model.

    Returns:
        How each start ended, and where the run differs from an uninterrupted one.
    """
    if only and only not in KINDS:
        raise UserError(f"only={only!r}: expected one of {', '.join(KINDS)}")
    # As torchrun sets threads: sums over more round differently. What a killed run said is read.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    began, draw = time.monotonic(), random.Random(seed)
    run, undisturbed, ended = out / "stopped", out / "undisturbed", list[Stop]()
    kinds = [only or KINDS[number % len(KINDS)] for number in range(stops)]
    draw.shuffle(kinds)
    settings = f"{SETTINGS},{overrides}".strip(",")
    (out / "corpus").mkdir(parents=True)
    hparams = create_hparams(settings)
    filelist = make_corpus(out / "corpus", synthetic_lengths(32, hparams, seed), hparams)
    settings += f",training_files={filelist},validation_files={filelist}"
    for number, kind in enumerate(progress_bar("Stopping", stops, " stops", iterable=kinds), 1):
        log = out / f"stop_{number:03d}"
        log.mkdir()
        if run.exists():
            shutil.copytree(run, log / "before")
        arguments = command(run, settings, 10**6, draw.choice(WORKERS))
        ended.append(start_and_stop(kind, arguments, draw, log / "train.log"))
        if ended[-1].lost:
            shutil.rmtree(run)
            shutil.copytree(log / "before", run)
        shutil.rmtree(log / "before", ignore_errors=True)
    begun = read_metrics(run) if (run / METRICS_FILE).exists() else []  # else only set up
    epochs = 2 + max((record["epoch"] for record in begun), default=0)
    for output in (run, undisturbed):
        arguments = [sys.executable, *command(output, settings, epochs, workers=1)]
        if subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise UserError(f"{output} could not be finished")
    lost = compare_runs(run, undisturbed)
    given = f"{stops} stops, seed {seed}, only {only or 'all kinds'}, {overrides or 'tiny model'}"
    page = summary(ended, lost, epochs, time.monotonic() - began, given)
    write_bytes(out / "soak.md", page.encode())
    return ended, lost
