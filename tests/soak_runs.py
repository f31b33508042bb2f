"""Stop a training run many times at random moments, then compare it with an uninterrupted run.

test_soak.py calls `soak`, which trains a tiny model on synthetic mel files with `train.py
--resume`. Each start uses a random number of workers. At a random moment, the run is interrupted by
a full disk, or by a signal to one or all processes. If a start reports lost metrics or a lost
validation, the output folder is restored to its state before that start.

At the end, the run must equal an uninterrupted run bit by bit. A start must not end with a
traceback. If a start ends without a signal, it must report a full disk.
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

import numpy as np
import torch
from helpers import ROOT
from same_run import compare_runs, read_metrics

from audio import mel_fingerprint
from corpus.filelist import MEL_SETTINGS_FILE
from hparams import HParams, create_hparams
from machine import measured_on
from tacotron2_voice.utils.console import duration, markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE, write_bytes, write_json

SETTINGS = (
    "batches_per_update=2,epochs_per_validation=2,iters_per_checkpoint=3,keep_checkpoints=2,"
    "log_interval=5,batch_size=4,load_mel_from_disk=True,hop_time=250,n_mel_channels=10,"
    "symbols_embedding_dim=8,encoder_embedding_dim=8,encoder_n_convolutions=1,attention_rnn_dim=8,"
    "decoder_rnn_dim=8,prenet_dim=8,attention_dim=6,postnet_embedding_dim=8,"
    "postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK = "full disk"
# Patterns for messages of train.py.
SAYS_FULL = "free some space|File too large: '/"  # messages of train.py about a full disk
# Messages about lost metrics.
LOST = r"starts a new file|the validation of epoch \d+ failed|metrics\.jsonl failed"
# train.py prints this text when set-up is complete.
TRAINING = "To plot the metrics, run: tensorboard"
KINDS = (*(number.name for number in SIGNALS), FULL_DISK)
WORKERS = (0, 0, 1, 2, 3)
MAX_SECONDS = 2.0  # maximum number of seconds between the start of a phase and the stop
STUCK_SECONDS = 90  # maximum number of seconds that a start may need to stop


class Stop(NamedTuple):
    """How one start of the run ended."""

    kind: str  # how the start was stopped: one of KINDS
    phase: str  # in which phase the program was stopped: "set-up" (including imports) or "training"
    exit_code: int
    failure: str | None
    lost: bool = False  # true if the start reported lost metrics or a lost validation


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    """Return the arguments for Python that start or resume the run."""
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    return [*map(str, (ROOT / "train.py", "-o", output, "--resume", "--hparams", settings))]


def wait_until(happened: Callable[[], bool], seconds: float = STUCK_SECONDS) -> bool:
    """Wait for at most `seconds` until `happened()` is true, and return whether it became true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.01)
    return happened()


def is_gone(group: int, number: int = 0) -> bool:
    """Send a signal to a process and its workers, and return whether all these processes have
    exited."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return False
    return True


def start_and_stop(kind: str, arguments: list[str], draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it at a random moment, and check its output and exit code."""
    # Imitate a full disk with a file size limit.
    # The limit does not affect the printed output, because a separate process writes that file.
    with open(log, "wb") as file:
        writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
    output = writer.stdin
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=output, stderr=output, start_new_session=True
    )
    assert output is not None
    output.close()
    if kind == FULL_DISK:
        max_bytes = draw.randrange(1, 420_000)  # a checkpoint file has 140,000 bytes
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

    def has_ended() -> bool:
        return process.poll() is not None

    # Python ignores Ctrl-C during its own start, so wait until the process has imported torch.
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: has_ended() or "torch" in maps.read_text())
    stops_in_training = draw.random() >= 0.2
    if stops_in_training:
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
    accepted_message = SAYS_FULL if kind == FULL_DISK else ""
    failure = failure_of(by_itself, code, printed, accepted_message)
    if hangs:
        failure = f"the start did not end within {STUCK_SECONDS} s"
    phase = "training" if TRAINING in printed else "set-up"
    return Stop(kind, phase, code, failure, bool(re.search(LOST, printed)))


def failure_of(by_itself: bool, code: int, printed: str, accepted_message: str) -> str | None:
    """Return the reason why a start failed, or None.

    Args:
        by_itself: true if the start ended without a signal.
        accepted_message: pattern for an error message. A start that ends by itself with this
            message has not failed.
    """
    traceback = re.search("^(Traceback|At:$)", printed, re.MULTILINE)  # torch prints "At:"
    if traceback:
        return "a traceback:\n" + printed[traceback.start() :][-2000:]
    is_accepted = code == 1 and accepted_message and re.search(accepted_message, printed)
    if is_accepted or not by_itself:
        return None
    return f"the start ended by itself, with exit code {code}: {printed[-500:]}"


def summary(stops: list[Stop], lost: list[str], epochs: int, seconds: float, settings: str) -> str:
    """Return a Markdown report.

    Args:
        lost: differences between the stopped run and the uninterrupted run.
        settings: description of the options of the test.
    """
    counts = Counter((stop.kind, stop.phase, stop.exit_code) for stop in stops)
    rows = [[*key, count] for key, count in sorted(counts.items())]
    table = markdown_table(["stopped by", "phase", "exit code", "times"], rows, labels=2)
    failures = [f"stop {n}, {s.kind}: {s.failure}" for n, s in enumerate(stops, 1) if s.failure]
    result = "NOT equal" if lost else "bitwise equal"
    machine = measured_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return f"""# Soak: one run stopped {len(stops)} times

The run has {epochs} epochs. Its weights, optimizer, random states, loop and metrics compared with an
uninterrupted run: **{result}**. Failures: {len(failures)}.

{table}

Starts that reported lost metrics or a lost validation: {sum(stop.lost for stop in stops)}. The folder
was restored to its state before each of these starts.

{machine["device"]}; torch {machine["versions"]["torch"]}; {duration(seconds)}.
Settings: {settings}
""" + "".join(f"- {line}\n" for line in lost + failures)


def make_mels(folder: Path, hparams: HParams, seed: int) -> Path:
    """Write 32 log-mels of noise with 1 to 10 seconds each, and return their filelist."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(32):
        seconds = rng.uniform(1, 10)
        frames = round(seconds * hparams.sampling_rate / hparams.hop_length)
        mel = rng.standard_normal((hparams.n_mel_channels, frames), np.float32) - 5
        np.save(folder / f"{i:05d}.npy", mel)
        lines.append(f"{folder / f'{i:05d}.npy'}|{'aeiou ' * round(2.5 * seconds)}\n")
    write_json(folder / MEL_SETTINGS_FILE, mel_fingerprint(hparams))
    (folder / "mels.txt").write_text("".join(lines), encoding="utf-8")
    return folder / "mels.txt"


def soak(
    out: Path, *, stops: int, seed: int = 0, only: str = "", overrides: str = ""
) -> tuple[list[Stop], list[str]]:
    """Stop a run `stops` times, let it finish, and write `out`/soak.md.

    Args:
        out: a new folder for both runs and the output of each start.
        seed: seed for the corpus, the kinds and moments of the stops, and the numbers of workers.
        only: use only this kind of stop, from KINDS (default: all kinds equally often).
        overrides: settings for the tiny model.

    Returns:
        How each start ended, and the differences from an uninterrupted run.
    """
    if only and only not in KINDS:
        raise UserError(f"only={only!r} (expected one of {', '.join(KINDS)})")
    # With one thread, sums are always rounded in the same way.
    # Without buffering, the output of killed runs is complete.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    draw = random.Random(seed)
    run = out / "stopped"
    undisturbed = out / "undisturbed"
    ended: list[Stop] = []
    kinds = [only or KINDS[number % len(KINDS)] for number in range(stops)]
    draw.shuffle(kinds)
    settings = f"{SETTINGS},{overrides}".strip(",")
    (out / "corpus").mkdir(parents=True)
    hparams = create_hparams(settings)
    filelist = make_mels(out / "corpus", hparams, seed)
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
    records = []
    # metrics.jsonl does not exist if all starts were stopped during set-up.
    if (run / METRICS_FILE).exists():
        records = read_metrics(run)
    epochs = 2 + max((record["epoch"] for record in records), default=0)
    for output in (run, undisturbed):
        arguments = [sys.executable, *command(output, settings, epochs, workers=1)]
        if subprocess.run(arguments, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise UserError(f"{output}: this run failed when it was resumed without a stop")
    lost = compare_runs(run, undisturbed)
    given = f"{stops} stops, seed {seed}, only {only or 'all kinds'}, {overrides or 'tiny model'}"
    report = summary(ended, lost, epochs, time.monotonic() - start, given)
    write_bytes(out / "soak.md", report.encode())
    return ended, lost
