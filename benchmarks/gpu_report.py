"""Puts what the parts of gpu_report.sh left behind into one JSON file and one Markdown page.

    python benchmarks/gpu_report.py PARTS OUT_DIR
    python benchmarks/gpu_report.py --environment environment.json

PARTS holds parts.tsv (name, status, seconds, command of every part begun so far) and for each part
what it printed (NAME.out, NAME.err) and, if it got so far, what it measured (NAME.json). Whatever
is missing or broken is said to be; nothing is made up for it.
"""

from project_root import ROOT

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from files import write_atomically, write_json

PACKAGES = ("torch", "triton", "numpy", "scipy", "matplotlib", "tensorboard", "pytest")
NVIDIA_SMI = "name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"
MOST_LINES = 150  # of a part's output
LAST_LINES = 20  # of what a failed part said
MOST_WARNINGS = 5


@dataclass(frozen=True)
class Target:
    """A row of the table of what is to be reached."""

    where: str
    measure: str
    part: str
    value: Callable[[dict], float | None]
    at_least: float
    aim: float
    shown: str  # format of a value
    fits: dict  # what the part's JSON must say for the row to be this one
    lower_is_better: bool = False

    def reached(self, value: float) -> str:
        def good(bound: float) -> bool:
            return value <= bound if self.lower_is_better else value >= bound

        return "aim" if good(self.aim) else "at least" if good(self.at_least) else "no"


def _decoder_rows() -> list[Target]:
    long = {"batch_size": 16, "frames": 774, "symbols": 120}
    short = {"batch_size": 64, "frames": 203, "symbols": 32}
    where, short_where = "B=16, 774 frames, 120 symbols", "B=64, 203 frames, 32 symbols"

    def rate(result: dict) -> float:
        return result["fast_frames_per_second"]

    rows = [
        Target(
            where,
            f"fast over reference, {name}",
            f"decoder_{precision}",
            lambda result: result["speedup"],
            at_least,
            aim,
            ".2f",
            long | {"precision": precision},
        )
        for name, precision, at_least, aim in (
            ("fp32 with TF32 off", "fp32", 6, 9),
            ("fp32 with TF32 on", "tf32", 8, 14),
            ("bf16", "bf16", 10, 20),
        )
    ]
    for name, precision, at_least, aim in (
        ("fp32 with TF32 off", "fp32", 120_000, 150_000),
        ("fp32 with TF32 on", "tf32", 180_000, 260_000),
        ("bf16", "bf16", 280_000, 360_000),
    ):
        part, fits = f"decoder_{precision}", long | {"precision": precision}
        measure = f"padded mel frames/s, {name}"
        rows.append(Target(where, measure, part, rate, at_least, aim, ",.0f", fits))
    fits = short | {"precision": "bf16"}
    measure = "padded mel frames/s, bf16"
    part = "decoder_bf16_64_clips"
    rows.append(Target(short_where, measure, part, rate, 600_000, 1_000_000, ",.0f", fits))
    for precision in ("bf16", "tf32", "fp32"):
        rows.append(
            Target(
                where,
                f"peak memory, fast over reference, {precision}",
                f"decoder_{precision}",
                lambda result: result["peak_memory_ratio"],
                1.0,
                0.6,
                ".2f",
                long | {"precision": precision},
                lower_is_better=True,
            )
        )
    return rows


TARGETS = [
    *_decoder_rows(),
    Target(
        "look-alike LJSpeech training, data included",
        "GPU busy over 200 consecutive steps, bf16",
        "busy_bf16",
        lambda result: result["busy"],
        0.90,
        0.97,
        ".1%",
        {"profiled_steps": 200, "precision": "bf16"},
    ),
]


# ---------------------------------------------------------------------------- reading the parts


def read_parts(folder: Path) -> list[dict]:
    """The parts in the order in which they ran, with what they printed and measured."""
    parts = []
    table = folder / "parts.tsv"
    lines = table.read_text(encoding="utf-8").splitlines() if table.is_file() else []
    for line in lines:
        name, status, seconds, command = line.split("\t")
        part = {"name": name, "status": status, "seconds": int(seconds), "command": command}
        part |= {"output": text_of(folder / f"{name}.out"), "said": text_of(folder / f"{name}.err")}
        part["result"], problem = read_json(folder / f"{name}.json")
        if problem and status == "ok":
            part["status"] = problem
        parts.append(part)
    return parts


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def read_json(path: Path) -> tuple[dict | None, str]:
    """What the file holds, and what is wrong with it; tests and the like write none."""
    if not path.is_file():
        return None, ""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return None, f"ended well, but {path.name} is broken ({error})"
    if not isinstance(result, dict):
        return None, f"ended well, but {path.name} holds no object"
    return result, ""


def judge(parts: list[dict], rehearsal: bool) -> list[dict]:
    """The table of what is to be reached, with what was measured and whether that is enough."""
    results = {part["name"]: part["result"] for part in parts if part["result"]}
    rows = []
    for target in TARGETS:
        result, value = results.get(target.part), None
        if result and not rehearsal and target.fits.items() <= result.items():
            try:
                value = target.value(result)
            except KeyError:
                value = None
        rows.append(
            {
                "where": target.where,
                "measure": target.measure,
                "measured": value,
                "at_least": target.at_least,
                "aim": target.aim,
                "reached": "not measured" if value is None else target.reached(value),
                "shown": target.shown,
            }
        )
    return rows


# ---------------------------------------------------------------------------- writing the report


def markdown(parts: list[dict], rows: list[dict], rehearsal: bool) -> str:
    environment = next((p["result"] for p in parts if p["name"] == "environment"), None) or {}
    lines = ["# Training on a GPU: every check and benchmark", ""]
    if rehearsal:
        lines += ["**A rehearsal on a CPU with tiny sizes: nothing here says anything.**", ""]
    lines += [f"- {name}: {value}" for name, value in environment.items() if name != "versions"]
    versions = environment.get("versions", {})
    lines += [f"- versions: {', '.join(f'{name} {value}' for name, value in versions.items())}"]
    lines += ["", "| where | measure | measured | at least | aim | reached |"]
    lines += ["|---|---|---:|---:|---:|---|"]
    for row in rows:
        numbers = [row["measured"], row["at_least"], row["aim"]]
        cells = ["–" if value is None else format(value, row["shown"]) for value in numbers]
        lines.append(
            f"| {row['where']} | {row['measure']} | {' | '.join(cells)} | {row['reached']} |"
        )
    lines += ["", "| part | how it ended | s |", "|---|---|---:|"]
    lines += [f"| {p['name']} | {p['status']} | {p['seconds']} |" for p in parts]
    for part in parts:
        if part["name"] != "environment":
            lines += details(part)
    return "\n".join(lines) + "\n"


def details(part: dict) -> list[str]:
    """A part's section: its command, what it printed, and the end of what it said if it failed."""
    lines = ["", f"## {part['name']}", "", f"    {part['command']}"]
    printed = [ln for ln in part["output"].strip().splitlines() if not ln.startswith("wrote ")]
    if printed:
        if part["result"] is None:
            printed = ["```", *printed[-LAST_LINES:], "```"]
        elif len(printed) > MOST_LINES:
            printed = [*printed[:MOST_LINES], "", f"... and {len(printed) - MOST_LINES} lines more"]
        lines += ["", *printed]
    warnings = [line.strip() for line in part["said"].splitlines() if "Warning: " in line]
    if warnings:
        lines += ["", *(f"- {line}" for line in warnings[:MOST_WARNINGS])]
    if part["status"] != "ok":
        lines += ["", f"{part['status']}; the last it said:", "", "```"]
        lines += [*part["said"].strip().splitlines()[-LAST_LINES:], "```"]
    return lines


def assemble(folder: Path, out: Path) -> None:
    """Write report.json and report.md from the parts there are."""
    parts, rehearsal = read_parts(folder), (folder / "rehearsal").exists()
    rows = judge(parts, rehearsal)
    kept = ("name", "status", "seconds", "command", "result")
    report = {
        "date": datetime.date.today().isoformat(),
        "rehearsal": rehearsal,
        "to_reach": [{k: v for k, v in row.items() if k != "shown"} for row in rows],
        "parts": [
            {name: part[name] for name in kept}
            | {"last_lines": (part["output"] + part["said"]).splitlines()[-LAST_LINES:]}
            for part in parts
        ],
    }
    text, page = json.dumps(report, indent=1) + "\n", markdown(parts, rows, rehearsal)
    write_atomically(out / "report.json", lambda path: path.write_text(text, encoding="utf-8"))
    write_atomically(out / "report.md", lambda path: path.write_text(page, encoding="utf-8"))


# ---------------------------------------------------------------------------- the environment


def environment() -> dict:
    """What the report was measured on."""

    def said_by(*command: str) -> str:
        try:
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
        return run.stdout.strip()

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": said_by("nvidia-smi", f"--query-gpu={NVIDIA_SMI}", "--format=csv,noheader"),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "system": platform.platform(),
        # A copy of the working tree without .git is told by whoever sent it.
        "commit": os.environ.get("COMMIT")
        or said_by("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "versions": versions,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="PARTS OUT_DIR")
    parser.add_argument("--environment", type=Path, help="write what this machine is, only")
    args = parser.parse_args(arguments)
    if args.environment:
        said = environment()
        write_json(args.environment, said)
        print(json.dumps(said, indent=2))
    elif len(args.folders) != 2:
        parser.error("expected two folders: of the parts, and for the report")
    else:
        assemble(*args.folders)
        print(f"wrote {args.folders[1] / 'report.md'} and {args.folders[1] / 'report.json'}")


if __name__ == "__main__":
    main()
