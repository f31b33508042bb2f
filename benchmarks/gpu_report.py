"""Run every check and benchmark on a GPU, and write one report.

    python -m benchmarks.gpu_report                          # into research/results/gpu-<date>
    python -m benchmarks.gpu_report out --minutes 9          # stop after 9 minutes
    python -m benchmarks.gpu_report out --minutes 9          # continue with what is left
    python -m benchmarks.gpu_report out --only decoder_bf16,busy
    python -m benchmarks.gpu_report --cpu-dry-run            # try the program with tiny sizes

The parts run one after another in processes of their own, each with a time limit. report.md is
written after every part, so a stopped program leaves the results so far. Another call with the same
folder runs the parts that have not succeeded.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.options import check_fast_decoder
from machine import describe_environment, measured_on
from tacotron2_voice.utils.arguments import at_least_one, make_parser
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes, read_json, write_bytes, write_json
from tacotron2_voice.utils.program import run_program

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 20  # of a failed part's output in the report
STATE_FILE = "state.json"  # status and seconds of every part
MEASUREMENTS = ("loops", "busy")  # parts that this program measures itself
LONG = ("--batch-size", "16", "--frames", "774", "--symbols", "120")
SHORT = ("--batch-size", "64", "--frames", "203", "--symbols", "32")
TINY = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8"
)
# Small, but large enough for the kernels.
SMALL = (
    "symbols_embedding_dim=64,encoder_embedding_dim=64,attention_rnn_dim=128,decoder_rnn_dim=128,"
    "prenet_dim=32,attention_dim=32,postnet_embedding_dim=64"
)
KERNEL_TESTS = (
    "tests/test_decoder_kernels.py",
    "tests/test_fast_decoder.py",
    "tests/test_self_check.py",
    "tests/test_captured_steps.py",
    "tests/test_encoder_kernels.py",
)


NO_ENVIRONMENT: Mapping[str, str] = {}


class Part(NamedTuple):
    """A check or benchmark."""

    name: str
    seconds: int  # time limit
    command: Sequence[str]  # Python's arguments
    environment: Mapping[str, str] = NO_ENVIRONMENT


class Target(NamedTuple):
    """A row of the report's table of targets."""

    part: str
    entry: str  # of the part's JSON file
    description: str
    at_least: float
    aim: float  # Below `at_least` if lower values are better.
    value_format: str


SPEED = "fast_frames_per_second"
MEMORY = "peak_memory_ratio"
TARGETS = (
    Target("decoder_fp32", "speedup", "speed-up over the reference, fp32, 16 x 774", 6, 9, ".2f"),
    Target("decoder_tf32", "speedup", "speed-up over the reference, tf32, 16 x 774", 8, 14, ".2f"),
    Target("decoder_bf16", "speedup", "speed-up over the reference, bf16, 16 x 774", 10, 20, ".2f"),
    Target("decoder_fp32", SPEED, "padded frames/s, fp32, 16 x 774", 120_000, 150_000, ",.0f"),
    Target("decoder_tf32", SPEED, "padded frames/s, tf32, 16 x 774", 180_000, 260_000, ",.0f"),
    Target("decoder_bf16", SPEED, "padded frames/s, bf16, 16 x 774", 280_000, 360_000, ",.0f"),
    Target("decoder_64", SPEED, "padded frames/s, bf16, 64 x 203", 600_000, 1_000_000, ",.0f"),
    Target("memory_fp32", MEMORY, "peak memory / the reference's, fp32", 1.0, 0.6, ".2f"),
    Target("memory_bf16", MEMORY, "peak memory / the reference's, bf16", 1.0, 0.6, ".2f"),
    Target("busy", "busy", "share of time in which the GPU is busy, bf16", 0.90, 0.97, ".1%"),
)


# ---------------------------------------------------------------------------- parts


def make_parts(folder: Path, dry_run: bool, lengths: Path | None) -> list[Part]:
    """Return all parts, the most important first.

    Args:
        lengths: a file of clip lengths for benchmarks/epoch.py; None: synthetic lengths.
    """

    def decoder(name: str, precision: str, only: str, *sizes: str) -> Part:
        options = ["--precision", precision, "--only", only, *sizes]
        if dry_run:
            options = ["--only", only, *_tiny_sizes()]
        return benchmark(name, 90, "decoder", *options)

    def benchmark(name: str, seconds: int, module: str, *options: str) -> Part:
        json_file = str(folder / f"{name}.json")
        return Part(name, seconds, ["-m", f"benchmarks.{module}", *options, "--json", json_file])

    def measurement(name: str, seconds: int) -> Part:
        command = ["-m", "benchmarks.gpu_report", str(folder), "--measure", name]
        return Part(name, seconds, command + ["--cpu-dry-run"] * dry_run)

    speaking = ["--texts", "1,2", "--symbols", "4", "--steps", "5", "--repeats", "1"]
    training = ["--clips", "64", "--batches", "2", "--precision", "fp32"]
    if dry_run:
        speaking += ["--hparams", TINY]
        training += ["--hparams", f"batch_size=4,{TINY}"]
    else:
        speaking = []
        training = ["--capacities", "25824,51648", "--precision", "bf16,tf32,fp32"]
    if lengths is not None:
        training = [str(lengths), *training]
    rounds = ("--repeats", "3", "--steps", "5")
    parts = [
        tests("tests_gpu", 100, "(gpu or usual or more) and not compile", *KERNEL_TESTS),
        decoder("decoder_bf16", "bf16", "speed", *LONG, *rounds),
        decoder("decoder_64", "bf16", "speed", *SHORT, *rounds),
        decoder("decoder_tf32", "tf32", "speed", *LONG, *rounds),
        decoder("decoder_fp32", "fp32", "speed", *LONG, *rounds),
        measurement("busy", 150),
        # TF32 changes no tensor's size.
        decoder("memory_bf16", "bf16", "memory", *LONG),
        decoder("memory_fp32", "fp32", "memory", *LONG),
        Part(
            "kill_and_resume",
            220,
            ["-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", "tests/test_soak.py"],
            {"SOAK_ONLY": "SIGKILL", "SOAK_STOPS": "1"} if dry_run else _soak(),
        ),
        tests("out_of_memory", 120, "gpu or cuda", "tests/test_memory_check.py"),
        benchmark("synthesis", 60, "speaking", *speaking),
        benchmark("epoch", 380, "epoch", *training),
        tests("tests_other", 120, "not (gpu or usual or more)", *KERNEL_TESTS),
    ]
    if not dry_run:
        parts.insert(2, measurement("loops", 60))  # The kernels run only on a GPU.
        parts += sanitizer_parts()
    return parts


def tests(name: str, seconds: int, expression: str, *files: str) -> Part:
    """Return a part that runs tests, in several processes where pytest-xdist is installed.

    Most of the time is compiling. A test that breaks the GPU's state breaks only its own process.
    """
    command = ["-m", "pytest", "-q", *files, "-p", "no:cacheprovider", "-k", expression]
    if importlib.util.find_spec("xdist"):
        command += ["--numprocesses", "auto", "--dist", "worksteal"]
    return Part(name, seconds, command, {"OMP_NUM_THREADS": "1"})


def sanitizer_parts() -> list[Part]:
    """Return parts that run the kernels' usual case under compute-sanitizer, if it is installed."""
    candidates = [*Path("/usr/local").glob("cuda*/bin/compute-sanitizer")]
    program = shutil.which("compute-sanitizer") or (str(candidates[0]) if candidates else None)
    if program is None:
        return []
    test = ["-m", "pytest", "-q", "tests/test_decoder_kernels.py", "-p", "no:cacheprovider"]
    test += ["-k", "every_gradient and usual"]
    parts = []
    for tool in ("memcheck", "racecheck"):
        command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, *test]
        parts.append(Part(tool, 70, command, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))
    return parts


def _tiny_sizes() -> list[str]:
    sizes = ["--batch-size", "1", "--frames", "4", "--symbols", "4", "--repeats", "1"]
    return [*sizes, "--warm-ups", "0", "--hparams", f"{TINY},hop_time=400"]


def _soak() -> dict[str, str]:
    return {"SOAK_ONLY": "SIGKILL", "SOAK_STOPS": "3", "SOAK_SEED": "6", "SOAK_HPARAMS": SMALL}


def measure(name: str, folder: Path, dry_run: bool) -> None:
    """Run one of MEASUREMENTS in this process, and write its JSON file."""
    check_fast_decoder()
    # Imported here because it sets up torch's profiler and needs the fast decoder.
    from benchmarks import gpu_measurements

    device = torch.device("cpu" if dry_run else "cuda")
    if name == "loops":
        rows = [
            gpu_measurements.measure_loops(device, precision, 16, 774, 120, repeats=5)
            for precision in ("bf16", "tf32", "fp32")
        ]
        result: dict[str, Any] = {"rows": rows}
    elif dry_run:
        settings = f"batch_size=2,hop_time=400,{TINY}"
        result = gpu_measurements.measure_busy(device, "fp32", 24, 2, settings)
    else:
        result = gpu_measurements.measure_busy(device, "bf16", clips=2620, steps=200)
    write_json(folder / f"{name}.json", result | measured_on(device))


# ---------------------------------------------------------------------------- run


def run_part(part: Part, folder: Path, seconds: float) -> str:
    """Run a part for at most `seconds`, write its output to a text file, and return its status."""
    (folder / f"{part.name}.json").unlink(missing_ok=True)
    command = list(part.command)
    if command[0] == "-m":
        command.insert(0, sys.executable)
    with (folder / f"{part.name}.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            # Its own children may still run, for example the processes of pytest-xdist.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "ok" if code == 0 else f"failed with code {code}"


def run_parts(parts: Sequence[Part], folder: Path, dry_run: bool, minutes: int | None) -> bool:
    """Run parts, and write the report after each part. Return whether all succeeded."""
    state = read_state(folder, dry_run)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    for part in parts:
        seconds: float = part.seconds
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
        if seconds < part.seconds / 2:
            print(f"{part.name}: not run, because the time is over")
            continue
        print(f"{part.name} ...", flush=True)
        began = time.monotonic()
        status = run_part(part, folder, seconds)
        taken = round(time.monotonic() - began)
        print(f"{part.name}: {status}, {taken} s", flush=True)
        state["parts"][part.name] = {"status": status, "seconds": taken}
        write_json(folder / STATE_FILE, state)
        write_bytes(folder / "report.md", report(folder).encode())
    done = state["parts"]
    return all(done.get(part.name, {}).get("status") == "ok" for part in parts)


def read_state(folder: Path, dry_run: bool) -> dict[str, Any]:
    """Return the state of an earlier call, or a new state.

    Raises:
        UserError: if one of the calls is a dry run and the other is not.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return {"dry_run": dry_run, "parts": {}}
    state = read_json(path)
    if state.get("dry_run") != dry_run or not isinstance(state.get("parts"), dict):
        expected = "a dry run" if dry_run else "a GPU"
        raise UserError(f"{path}: expected the state of {expected}; name another folder")
    return state


# ---------------------------------------------------------------------------- report


def report(folder: Path) -> str:
    """Return the report of the parts so far, in Markdown."""
    state = read_json(folder / STATE_FILE)
    parts = state["parts"]
    files = {name: folder / f"{name}.json" for name in parts}
    results = {name: read_json(file) for name, file in files.items() if file.exists()}
    lines = ["# Training on a GPU: checks and benchmarks", ""]
    if state["dry_run"]:
        lines += ["**A dry run on a CPU with tiny sizes: nothing is measured.**", ""]
        results = {}
    lines += [measured_line(results), ""]
    rows = [target_row(target, results) for target in TARGETS]
    lines += [markdown_table(["target", "measured", "at least", "aim", "reached"], rows), ""]
    if "loops" in results:
        loops = results["loops"]["rows"]
        cells = [[row.pop("precision"), *(f"{us:.1f}" for us in row.values())] for row in loops]
        titles = ["µs per decoder step", *loops[0]]
        lines += [markdown_table(titles, cells), ""]
    rows = [[name, part["status"], part["seconds"]] for name, part in parts.items()]
    lines.append(markdown_table(["part", "status", "s"], rows))
    for name, part in parts.items():
        if part["status"] != "ok":
            lines += ["", f"## {name}", "", "```", *last_lines(folder / f"{name}.txt"), "```"]
    return "\n".join(lines) + "\n"


def measured_line(results: dict[str, Any]) -> str:
    """Return the line with machine, versions and commit."""
    commit = describe_environment(torch.device("cpu"))["commit"] or os.environ.get("COMMIT")
    measured = next(iter(results.values()), None)
    if measured is None:
        return f"Commit {commit}. Nothing is measured so far."
    versions = measured["versions"]
    return (
        f"Measured on {measured['device']}, torch {versions['torch']}, CUDA {versions['cuda']}, "
        f"{measured['date']}, commit {commit}."
    )


def target_row(target: Target, results: dict[str, Any]) -> list[str]:
    """Return a row of the table of targets."""
    at_least = format(target.at_least, target.value_format)
    aim = format(target.aim, target.value_format)
    value = results.get(target.part, {}).get(target.entry)
    if value is None:
        return [target.description, "–", at_least, aim, "not measured"]
    sign = 1 if target.aim > target.at_least else -1
    reached = "no"
    if sign * value >= sign * target.at_least:
        reached = "at least"
    if sign * value >= sign * target.aim:
        reached = "aim"
    return [target.description, format(value, target.value_format), at_least, aim, reached]


def last_lines(path: Path) -> list[str]:
    """Return the last lines of a part's output, without the names of private folders."""
    text = read_bytes(path).decode(errors="replace") if path.exists() else ""
    for private, name in ((ROOT, "."), (Path.home(), "~")):  # Reports are published.
        text = text.replace(str(private), name)
    return text.strip().splitlines()[-MAX_LINES:]


# ---------------------------------------------------------------------------- command line


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="write report.md here (default: research/results/gpu-<date>)",
    )
    add("--minutes", type=at_least_one, help="start no part after this time (default: no limit)")
    add("--only", metavar="NAME,NAME", help="run these parts, even if they succeeded before")
    add("--lengths", type=Path, help="clip lengths for the epoch part (default: synthetic)")
    add("--cpu-dry-run", action="store_true", help="try the program with tiny sizes on the CPU")
    add("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.folder is None:
        default = ROOT / "research" / "results" / f"gpu-{date.today().isoformat()}"
        args.folder = Path(tempfile.mkdtemp()) if args.cpu_dry_run else default
    args.folder = args.folder.absolute()
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if args.measure:
        measure(args.measure, args.folder, args.cpu_dry_run)
        return
    if args.cpu_dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    elif not torch.cuda.is_available():
        raise UserError("no GPU found. To try this program without a GPU, add --cpu-dry-run")
    args.folder.mkdir(parents=True, exist_ok=True)
    lengths = None if args.lengths is None else args.lengths.absolute()
    parts = make_parts(args.folder, args.cpu_dry_run, lengths)
    if args.only:
        names = args.only.split(",")
        known = [part.name for part in parts]
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise UserError(f"--only {','.join(unknown)}: expected names from {', '.join(known)}")
        parts = [part for part in parts if part.name in names]
    else:
        done = read_state(args.folder, args.cpu_dry_run)["parts"]
        parts = [part for part in parts if done.get(part.name, {}).get("status") != "ok"]
    succeeded = run_parts(parts, args.folder, args.cpu_dry_run, args.minutes)
    print(f"report: {args.folder / 'report.md'}")
    if not succeeded:
        sys.exit(1)


if __name__ == "__main__":
    run_program(main)
