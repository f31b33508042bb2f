"""Check training on a GPU, time optimizer steps, and write a report.

    python -m benchmarks.gpu_report                                  # default folder
    python -m benchmarks.gpu_report out --only exactness,steps_bf16  # run only these parts
    python -m benchmarks.gpu_report out --cpu-dry-run                # rehearse without a GPU

The report shows whether the kernels are exact, and how much time and memory an optimizer step
needs. The report also shows whether a run that was killed and resumed ends with the same weights.
Each part of the report runs in its own process with a time limit, and takes one to four minutes.
The program updates report.md after each part. If earlier runs of the program used the same folder,
the report also contains the parts that these runs completed.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.gpu_report")


import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.options import check_fast_decoder
from benchmarks.timing import run_for
from machine import describe_environment, measured_on
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes, read_json, write_bytes, write_json
from tacotron2_voice.utils.program import run_program

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 20  # maximum number of output lines that the report shows for a failed part
STATUS_FILE = "parts.json"  # file that stores the status and the duration in seconds of each part
KERNEL_TESTS = (
    "tests/test_decoder_kernels.py",
    "tests/test_fast_decoder.py",
    "tests/test_self_check.py",
    "tests/test_captured_steps.py",
    "tests/test_encoder_kernels.py",
    "tests/test_memory_check.py",
)
LONG = ("--batch-size", "16", "--frames", "774", "--symbols", "120")
SHORT = ("--batch-size", "64", "--frames", "203", "--symbols", "32")
STEPS = ("--only", "speed", "--repeats", "3", "--steps", "5")
MEMORY = ("--only", "memory")
# Batch size and clip lengths for --cpu-dry-run. On a CPU, an optimizer step with these sizes takes
# less than a second.
TINY = ("--batch-size", "2", "--frames", "8", "--symbols", "6", "--repeats", "1", "--steps", "1")
# Settings for the run that tests/test_soak.py kills. The model is small, but large enough for the
# kernels.
SMALL_MODEL = (
    "symbols_embedding_dim=64,encoder_embedding_dim=64,attention_rnn_dim=128,decoder_rnn_dim=128,"
    "prenet_dim=32,attention_dim=32,postnet_embedding_dim=64"
)


class Part(NamedTuple):
    """A part of the report: a check or a benchmark."""

    seconds: int  # time limit in seconds
    command: Sequence[str]  # arguments for the Python interpreter
    environment: Mapping[str, str]


def make_parts(folder: Path, dry_run: bool = False) -> dict[str, Part]:
    """Return {name: part} for all parts of the report, with the most important part first. With
    `dry_run`, all batches are tiny."""

    def tests(seconds: int, *options: str, **environment: str) -> Part:
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return Part(seconds, command, environment)

    def decoder(name: str, precision: str, *options: str) -> Part:
        json_file = str(folder / f"{name}.json")
        # argparse uses the last value of a repeated option, so the sizes of a dry run must come
        # after `options`.
        size = TINY if dry_run else ()
        options = ("--precision", precision, *options, *size, "--json", json_file)
        return Part(90, ["-m", "benchmarks.decoder", *options], {})

    # Run the tests in several processes, because compiling the kernels takes most of the time.
    processes = ("--numprocesses", "auto") if importlib.util.find_spec("xdist") else ()
    return {
        "exactness": tests(
            240, *KERNEL_TESTS, "-k", "(gpu or cuda or usual or more) and not compile", *processes
        ),
        "steps_bf16": decoder("steps_bf16", "bf16", *LONG, *STEPS),
        "steps_bf16_short": decoder("steps_bf16_short", "bf16", *SHORT, *STEPS),
        "steps_tf32": decoder("steps_tf32", "tf32", *LONG, *STEPS),
        "steps_fp32": decoder("steps_fp32", "fp32", *LONG, *STEPS),
        # Do not measure the memory for TF32, because TF32 needs as much memory as fp32.
        "memory_bf16": decoder("memory_bf16", "bf16", *LONG, *MEMORY),
        "memory_fp32": decoder("memory_fp32", "fp32", *LONG, *MEMORY),
        "kill_and_resume": tests(
            220,
            *("-m", "slow", "tests/test_soak.py"),
            SOAK_ONLY="SIGKILL",
            SOAK_STOPS="3",
            SOAK_SEED="6",
            SOAK_HPARAMS=SMALL_MODEL,
        ),
    }


def run_part(name: str, part: Part, folder: Path) -> str:
    """Run a part of the report, and write its output to NAME.txt in the folder. Return the status
    of the part."""
    (folder / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, *part.command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **part.environment}
    output = folder / f"{name}.txt"
    code = run_for(part.seconds, command, output, cwd=ROOT, env=environment)
    if code is None:
        return f"stopped after {part.seconds} s"
    return "ok" if code == 0 else f"failed with exit code {code}"


def run_parts(parts: Mapping[str, Part], folder: Path) -> bool:
    """Run all parts of the report, and update the report after each part. Return whether all parts
    succeeded."""
    file = folder / STATUS_FILE
    done = read_json(file) if file.exists() else {}
    for name, part in parts.items():
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        status = run_part(name, part, folder)
        done[name] = {"status": status, "seconds": round(time.monotonic() - began)}
        print(f"{name}: {status}, {done[name]['seconds']} s", flush=True)
        write_json(file, done)
        write_bytes(folder / "report.md", report(folder, done).encode())
    return all(done[name]["status"] == "ok" for name in parts)


def report(folder: Path, done: Mapping[str, dict[str, Any]]) -> str:
    """Return a Markdown report on all completed parts, which `done` lists."""
    commit = describe_environment(torch.device("cpu"))["commit"] or os.environ.get("COMMIT")
    machine = measured_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    versions = machine["versions"]
    lines = [
        "# Training on a GPU: checks and benchmarks\n",
        f"Measured on {machine['device']}, torch {versions['torch']}, CUDA {versions['cuda']}, "
        f"{machine['date']}, commit {commit}.\n",
    ]
    titles = ["part", "status", "seconds", "result"]
    rows = []
    outputs = []
    for name, part in done.items():
        file = folder / f"{name}.json"
        result = describe(read_json(file)) if file.exists() else ""
        rows.append([name, part["status"], part["seconds"], result])
        if part["status"] != "ok":
            outputs += ["", f"## {name}", "", "```", *last_lines(folder / f"{name}.txt"), "```"]
    return "\n".join([*lines, markdown_table(titles, rows), *outputs, ""])


def describe(result: dict[str, Any]) -> str:
    """Return one line that describes the results of benchmarks/decoder.py."""
    batch = "{batch_size} clips of {frames} frames: ".format(**result)
    if "speedup" in result:
        speed = "{fast_frames_per_second:,.0f} padded frames/s, {speedup:.2f} times as fast"
        return batch + speed.format(**result) + " as the reference"
    ratio = result["peak_memory_ratio"]
    if ratio is None:
        return batch + "memory was not measured"
    gigabytes = result["peak_memory_bytes"]["fast"] / 1e9
    return f"{batch}{gigabytes:.2f} GB, {ratio:.2f} times the memory of the reference"


def last_lines(path: Path) -> list[str]:
    """Return the last output lines of a part of the report."""
    text = read_bytes(path).decode(errors="replace") if path.exists() else ""
    # Reports are published, so remove private folder names.
    for private, name in ((ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(private), name)
    return text.strip().splitlines()[-MAX_LINES:]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=ROOT / "research" / "results" / f"gpu-{date.today().isoformat()}",
        metavar="FOLDER",
        help="folder for report.md (default: research/results/gpu-<date>)",
    )
    parser.add_argument("--only", metavar="NAME,NAME", help="run only these parts (default: all)")
    parser.add_argument(
        "--cpu-dry-run",
        action="store_true",
        help="run every part on the CPU with tiny batches to test this program; the times are "
        "meaningless",
    )
    args = parser.parse_args(arguments)
    args.folder = args.folder.absolute()
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    parts = make_parts(args.folder, args.cpu_dry_run)
    names = args.only.split(",") if args.only else list(parts)
    unknown = sorted(set(names) - set(parts))
    if unknown:
        raise UserError(
            f"--only {','.join(unknown)}: no such part (expected one of {', '.join(parts)})"
        )
    if not (args.cpu_dry_run or torch.cuda.is_available()):
        raise UserError("no GPU found. To test this program without a GPU, add --cpu-dry-run")
    check_fast_decoder()
    args.folder.mkdir(parents=True, exist_ok=True)
    succeeded = run_parts({name: parts[name] for name in names}, args.folder)
    print(f"Wrote {args.folder / 'report.md'}")
    if not succeeded:
        sys.exit(1)


if __name__ == "__main__":
    run_program(main)
