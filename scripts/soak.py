"""Stop one training run 150 times at random, and compare it with a run never stopped.

    python scripts/soak.py                        # about 25 minutes on two CPU cores
    python scripts/soak.py --stops 20 --seed 1 --out soak_1
    python scripts/soak.py --stops 3 --only SIGKILL --cached-mels   # needs no package for sound

Makes a corpus of tones and trains a tiny model on it with `train.py --resume`. Each start has a
random number of workers and ends in a random way at a random moment: by SIGKILL, SIGTERM, SIGINT
or SIGHUP, sent to one process or to all of them; on a disk that is full; or before a checkpoint
that cannot be read. Then the run is finished, and another one is trained without a stop. Their
weights, optimizer, random states and metrics must be equal bit by bit, and no start may end in a
traceback. All of it is done on the GPU where there is one. What to do at each stop follows from
--seed; the exact moments do not.

Writes OUT/soak.md. Ends with 1 if anything was lost. OUT must be new: a soak is not gone on with.
"""

import project_root

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis.arguments import make_parser, whole_number
from analysis.tables import markdown_table
from audio import frame_count, mel_fingerprint, write_wav
from data_utils import MEL_SETTINGS_FILE
from errors import UserError
from files import METRICS_FILE, write_atomically, write_json
from hparams import create_hparams
from progress import duration, progress_bar
from training.checkpoint import BEST, list_checkpoints, load_checkpoint
from training.machine import machine, versions

RATE = 22050
SETTINGS = (
    "epochs_per_validation=2,iters_per_checkpoint=7,keep_checkpoints=2,log_interval=5,batch_size=4,"
    "validation_batch_size=4,hop_length=800,n_mel_channels=10,symbols_embedding_dim=8,"
    "encoder_embedding_dim=8,encoder_n_convolutions=1,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=6,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "postnet_n_convolutions=2"
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FULL_DISK, UNREADABLE = "full disk", "unreadable checkpoint"
KINDS = (*(number.name for number in SIGNALS), FULL_DISK, UNREADABLE)
WORKERS = (0, 0, 1, 2, 3)
TRAINING = "watch: tensorboard"  # train.py prints it when set-up is done
MOST_SECONDS = 4.0  # of training, or of set-up, before a stop
STUCK_SECONDS = 60
# Parts of a checkpoint that two equal runs share, and what in `loop` they do not.
PARTS = (
    "iteration",
    "state_dict",
    "optimizer",
    "learning_rate",
    "scaler",
    "sampler",
    "corpus",
)
TIMES = (
    *("seconds", "prepare_seconds", "data_wait_seconds", "process_wait_seconds"),
    "peak_memory_bytes",
)
TIMES_LOGGED = (
    *("minutes", "prepare_seconds", "data_wait_seconds", "process_wait_seconds"),
    *("frames_per_second", "padded_frames_per_second", "clips_per_second", "peak_memory_bytes"),
)


@dataclass(frozen=True)
class Stop:
    """One start of the run and how it ended."""

    kind: str
    workers: int
    while_training: bool  # else in imports and set-up
    exit_code: int
    iteration: int  # of the newest checkpoint afterwards
    fault: str | None  # what went wrong


# ---------------------------------------------------------------------------- corpus and runs


def make_corpus(folder: Path, seed: int, settings: str, cached_mels: bool, clips: int = 40) -> str:
    """Tones of 0.3 to 1.5 s in a little noise, a fifth for validation; returns the overrides.

    With `cached_mels` they are log-mels of one loud band each, and nothing reads or writes sound.
    """
    if cached_mels:
        settings += ",load_mel_from_disk=True"
    hparams = create_hparams(settings)
    generator = np.random.default_rng(seed)
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for number, seconds in enumerate(generator.uniform(0.3, 1.5, clips)):
        count = round(seconds * RATE)
        path = folder / "wavs" / f"tone{number:02d}{'.npy' if cached_mels else '.wav'}"
        if cached_mels:
            shape = hparams.n_mel_channels, frame_count(count, hparams)
            mel = 0.1 * generator.standard_normal(shape, dtype=np.float32) - 8
            mel[number % hparams.n_mel_channels] += 7
            np.save(path, mel)
        else:
            samples = 0.4 * np.sin(2 * np.pi * (200 + 20 * number) * np.arange(count) / RATE)
            write_wav(path, samples + 0.01 * generator.standard_normal(count), RATE)
        words = " ".join(["tone"] * (1 + round(5 * seconds)))
        lines.append(f"{path}|{words}.|{count / RATE:.6f}\n")
    if cached_mels:
        write_json(folder / "wavs" / MEL_SETTINGS_FILE, mel_fingerprint(hparams))
    lists = {"training_files": lines[clips // 5 :], "validation_files": lines[: clips // 5]}
    overrides = [settings]
    for name, chosen in lists.items():
        path = folder / f"{name}.txt"
        path.write_text("".join(chosen), encoding="utf-8")
        overrides.append(f"{name}={path}")
    return ",".join(overrides)


def command(output: Path, overrides: str, epochs: int, workers: int) -> list[str]:
    settings = f"{overrides},epochs={epochs},num_workers={workers}"
    program = str(project_root.ROOT / "train.py")
    return [sys.executable, program, "-o", str(output), "--resume", "--hparams", settings]


def train_to_the_end(output: Path, overrides: str, epochs: int) -> None:
    """Train, or go on, until `epochs` are done."""
    ended = subprocess.run(
        command(output, overrides, epochs, workers=1), capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise UserError(f"{output} could not be finished:\n{ended.stdout}{ended.stderr}")


# ---------------------------------------------------------------------------- stops


def wait(process: subprocess.Popen, log: Path, *, for_training: bool, seconds: float) -> bool:
    """Let the run go until set-up is done, if asked to, and then for `seconds` more.

    Returns whether set-up was done. Ends early with the process.
    """
    began = time.monotonic()
    while for_training and process.poll() is None and TRAINING not in read(log):
        if time.monotonic() - began > STUCK_SECONDS:
            raise UserError(f"set-up takes more than {STUCK_SECONDS} s; see {log}")
        time.sleep(0.02)
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    return TRAINING in read(log)


def read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def start(arguments: list[str], log: Path, most_bytes: int | None = None) -> subprocess.Popen:
    """The program in a session of its own; no file that it writes grows beyond `most_bytes`.

    What it prints comes through a pipe, so that it still can be read when its disk is full.
    """

    def prepare() -> None:
        for number in SIGNALS[1:]:  # a shell may have had this program ignore some
            signal.signal(number, signal.SIG_DFL)
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    log.touch()
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
        preexec_fn=prepare,
    )

    def copy() -> None:
        with open(log, "wb", buffering=0) as file:
            while some := process.stdout.read(65536):
                file.write(some)

    process.copying = threading.Thread(target=copy)
    process.copying.start()
    return process


def stop_once(output: Path, overrides: str, kind: str, draw: random.Random, log: Path) -> Stop:
    """Start the run, stop it, and look at what it says."""
    workers, most_bytes = draw.choice(WORKERS), None
    while_training, seconds = draw.random() < 0.8, draw.uniform(0, MOST_SECONDS)
    whole_group = draw.random() < 0.5
    before, hidden = {}, None
    if kind == FULL_DISK:
        most_bytes = draw.randrange(1, 3 * newest_size(output))
    if kind == UNREADABLE:
        hidden = hide_newest(output)
        before = listing(output)
    process = start(command(output, overrides, 10**6, workers), log, most_bytes)
    if kind == UNREADABLE:
        reached = wait(process, log, for_training=True, seconds=MOST_SECONDS)
    else:
        reached = wait(process, log, for_training=while_training, seconds=seconds)
    by_itself = process.poll() is not None
    if not by_itself:
        number = signal.Signals[kind] if kind in signal.Signals.__members__ else signal.SIGTERM
        (os.killpg if whole_group else os.kill)(process.pid, number)
    try:
        code = process.wait(STUCK_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise UserError(f"{kind} did not end the run within {STUCK_SECONDS} s; see {log}") from None
    end_what_is_left(process.pid)
    process.copying.join()
    fault = fault_of(kind, by_itself, code, read(log))
    if hidden is not None:
        if listing(output) != before:
            fault = "an unreadable checkpoint: files of the run were touched"
        show_again(*hidden)
    return Stop(kind, workers, reached, code, newest_iteration(output), fault)


def fault_of(kind: str, by_itself: bool, code: int, printed: str) -> str | None:
    """What is wrong with how a start ended; None if nothing is."""
    if "Traceback" in printed:
        return "a traceback:\n" + printed[printed.index("Traceback") :][-2000:]
    refused = by_itself and code == 1 and "expected a checkpoint" in printed
    if kind == UNREADABLE and not refused:
        return f"an unreadable checkpoint did not stop it (exit code {code}): {printed[-500:]}"
    if kind in signal.Signals.__members__ and by_itself:
        return f"it ended by itself (exit code {code}): {printed[-500:]}"
    if kind == FULL_DISK and by_itself and not (code == 1 and "make room" in printed):
        return f"a full disk ended it with exit code {code}: {printed[-500:]}"
    return None


def end_what_is_left(group: int) -> None:
    """Workers of a process that was killed end by themselves, a moment later."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    raise UserError(f"processes of group {group} outlived the run by 20 s")


def hide_newest(output: Path) -> tuple[Path, Path] | None:
    """Put a folder in the place of the newest checkpoint: it is there, but cannot be read."""
    found = list_checkpoints(output)
    if not found:
        return None
    path = found[-1][1]
    aside = output.with_name("hidden.pt")
    path.rename(aside)
    path.mkdir()
    return path, aside


def show_again(path: Path, aside: Path) -> None:
    path.rmdir()
    aside.rename(path)


def listing(output: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file of the run."""
    files = [path for path in output.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


def newest_size(output: Path) -> int:
    found = list_checkpoints(output)
    return found[-1][1].stat().st_size if found else 100_000


def newest_iteration(output: Path) -> int:
    found = list_checkpoints(output)
    return found[-1][0] if found else 0


# ---------------------------------------------------------------------------- the comparison


def records(output: Path) -> list[dict]:
    """The lines of metrics.jsonl that two equal runs share."""
    lines = (output / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    return [
        {name: value for name, value in record.items() if name not in TIMES_LOGGED}
        for record in map(json.loads, lines)
        if record["kind"] != "run"
    ]


def checkpoint_parts(path: Path) -> dict:
    saved = load_checkpoint(path)
    loop = {name: value for name, value in saved["loop"].items() if name not in TIMES}
    return {name: saved[name] for name in PARTS} | {"loop": loop}


def differences(ours: object, theirs: object, place: str) -> list[str]:
    """Where two values, nested in dicts and lists, are not equal bit by bit."""
    if type(ours) is not type(theirs):
        return [f"{place}: {type(ours).__name__}, {type(theirs).__name__}"]
    if isinstance(ours, torch.Tensor):
        same = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        return [] if same else [place]
    if isinstance(ours, (dict, list, tuple)):
        pairs = dict(ours) if isinstance(ours, dict) else dict(enumerate(ours))
        others = dict(theirs) if isinstance(theirs, dict) else dict(enumerate(theirs))
        if pairs.keys() != others.keys():
            return [f"{place}: {len(pairs)} entries, {len(others)}"]
        found = [differences(pairs[name], others[name], f"{place}/{name}") for name in pairs]
        return [line for lines in found for line in lines]
    return [] if ours == theirs else [f"{place}: {ours}, {theirs}"]


def compare(stopped: Path, undisturbed: Path) -> list[str]:
    """Where the two runs differ."""
    found = differences(records(stopped), records(undisturbed), METRICS_FILE)
    names = (list_checkpoints(undisturbed)[-1][1].name, BEST)
    for name in names:
        if not (stopped / name).exists():
            found.append(f"{name}: missing")
            continue
        parts = checkpoint_parts(stopped / name), checkpoint_parts(undisturbed / name)
        found += differences(*parts, name)
    if (stopped / "lengths.csv").read_bytes() != (undisturbed / "lengths.csv").read_bytes():
        found.append("lengths.csv")
    return found


# ---------------------------------------------------------------------------- the summary


def summary(stops: list[Stop], lost: list[str], iterations: int, epochs: int, took: float) -> str:
    """A page: what was done to the run, how its starts ended, and what was lost."""
    rows = []
    for kind in KINDS:
        chosen = [stop for stop in stops if stop.kind == kind]
        codes = Counter(stop.exit_code for stop in chosen)
        ends = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
        training = sum(stop.while_training for stop in chosen)
        faults = sum(stop.fault is not None for stop in chosen)
        rows.append([kind, len(chosen), len(chosen) - training, training, ends, faults])
    titles = ["stopped by", "times", "in set-up", "in training", "exit codes", "faults"]
    workers = Counter(stop.workers for stop in stops)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    faults = [f"- stop {n}, {s.kind}: {s.fault}" for n, s in enumerate(stops, 1) if s.fault]
    verdict = "equal bit by bit" if not lost else "NOT equal"
    return "\n".join(
        [
            f"# Soak: one run stopped {len(stops)} times",
            "",
            f"{epochs} epochs, {iterations:,} steps; weights, optimizer, random states, loop and "
            f"metrics against a run never stopped: **{verdict}**. {len(faults)} faults.",
            "",
            markdown_table(titles, rows),
            "",
            "Starts by number of workers: "
            + ", ".join(f"{count} with {number}" for number, count in sorted(workers.items()))
            + ".",
            f"{machine(torch.device(device))}; torch {versions()['torch']}; {duration(took)}. "
            f"Command: python scripts/soak.py {' '.join(sys.argv[1:])}".rstrip(),
            "",
            *(["## Lost", "", *(f"- {line}" for line in lost), ""] if lost else []),
            *(["## Faults", "", *faults, ""] if faults else []),
        ]
    )


def soak(args: argparse.Namespace, report: Callable[[str], None]) -> list[str]:
    """All of it; returns what was lost or went wrong."""
    out, stops, began = args.out.absolute(), args.stops, time.monotonic()
    draw = random.Random(args.seed)
    settings = f"{SETTINGS},{args.hparams}" if args.hparams else SETTINGS
    overrides = make_corpus(out / "corpus", args.seed, settings, args.cached_mels)
    run, undisturbed = out / "stopped", out / "undisturbed"
    kinds = [args.only or KINDS[number % len(KINDS)] for number in range(stops)]
    draw.shuffle(kinds)
    found = []
    with progress_bar("Stopping", stops, " stops") as bar:
        for number, kind in enumerate(kinds, 1):
            if kind == UNREADABLE and not list_checkpoints(run):
                kind = "SIGKILL"  # nothing to be unreadable yet
            log = out / f"stop_{number:03d}.log"
            found.append(stop_once(run, overrides, kind, draw, log))
            bar.update()
    begun = records(run) if (run / METRICS_FILE).exists() else []  # else stopped in set-up only
    epochs = 2 + max((record["epoch"] for record in begun), default=0)
    print(f"finishing {run}: {epochs} epochs", flush=True)
    train_to_the_end(run, overrides, epochs)
    print(f"training {undisturbed} without a stop", flush=True)
    train_to_the_end(undisturbed, overrides, epochs)
    lost = compare(run, undisturbed)
    report(summary(found, lost, newest_iteration(run), epochs, time.monotonic() - began))
    return lost + [stop.fault for stop in found if stop.fault]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("soak"), help="default: soak")
    parser.add_argument(
        "--stops",
        type=whole_number(1),
        default=150,
        help="default: 150, of which 100 are signals",
    )
    parser.add_argument("--seed", type=whole_number(0), default=0)
    parser.add_argument("--only", choices=KINDS, help="stop in this way only")
    shown = "train on made-up cached mels, not on sound"
    parser.add_argument("--cached-mels", action="store_true", help=shown)
    shown = "change the tiny model"
    parser.add_argument("--hparams", default="", metavar="name=value,...", help=shown)
    args = parser.parse_args(arguments)
    if args.out.exists():
        parser.error(f"--out {args.out}: is there already; delete it or name another folder")
    page = args.out / "soak.md"

    def report(text: str) -> None:
        print(f"\n{text}")
        write_atomically(page, lambda file: file.write_text(text, encoding="utf-8"))
        print(f"summary: {page}")

    try:
        lost = soak(args, report)
    except UserError as error:
        sys.exit(f"soak.py: {error}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
