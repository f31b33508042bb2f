"""Puts what the parts of gpu_report.sh left behind into one JSON file and one Markdown page.

    python benchmarks/gpu_report.py PARTS OUT_DIR
    python benchmarks/gpu_report.py --environment environment.json

PARTS holds parts.tsv (name, status, seconds, command of every part begun so far) and for each part
what it printed (NAME.out, NAME.err) and, if it got so far, what it measured (NAME.json). The report
names what is missing or broken; nothing is made up for it.
"""

from project_root import ROOT

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from analysis.arguments import make_parser
from analysis.tables import markdown_table
from files import write_atomically, write_json

PACKAGES = ("torch", "triton", "numpy", "scipy", "matplotlib", "tensorboard", "pytest")
NVIDIA_SMI = "name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"
MOST_LINES = 150  # of a part's output
LAST_LINES = 20  # of the errors of a part that failed
MOST_WARNINGS = 5


@dataclass(frozen=True)
class Target:
    """A row of the table of what is to be reached."""

    where: str
    measure: str
    part: str
    entry: str  # of the part's JSON
    at_least: float
    aim: float
    shown: str  # format of a value
    fits: dict  # what the part's JSON must say for the row to be this one
    lower_is_better: bool = False

    def reached(self, value: float) -> str:
        def good(bound: float) -> bool:
            return value <= bound if self.lower_is_better else value >= bound

        return "aim" if good(self.aim) else "at least" if good(self.at_least) else "no"


def decoder_target(
    entry: str, precision: str, at_least: float, aim: float, part: str = "decoder_{}"
) -> Target:
    sizes, where = (
        {"batch_size": 16, "frames": 774, "symbols": 120},
        "B=16, 774 frames, 120 symbols",
    )
    if "64" in part:
        sizes, where = (
            {"batch_size": 64, "frames": 203, "symbols": 32},
            "B=64, 203 frames, 32 symbols",
        )
    memory, name = entry == "peak_memory_ratio", precision
    if not memory:
        name = {"fp32": "fp32 with TF32 off", "tf32": "fp32 with TF32 on"}.get(precision, precision)
    measure, shown = {
        "speedup": ("fast over reference", ".2f"),
        "fast_frames_per_second": ("padded mel frames/s", ",.0f"),
        "peak_memory_ratio": ("peak memory, fast over reference", ".2f"),
    }[entry]
    fits = sizes | {"precision": precision}
    part = part.format(precision)
    return Target(where, f"{measure}, {name}", part, entry, at_least, aim, shown, fits, memory)


TARGETS = [
    decoder_target("speedup", "fp32", 6, 9),
    decoder_target("speedup", "tf32", 8, 14),
    decoder_target("speedup", "bf16", 10, 20),
    decoder_target("fast_frames_per_second", "fp32", 120_000, 150_000),
    decoder_target("fast_frames_per_second", "tf32", 180_000, 260_000),
    decoder_target("fast_frames_per_second", "bf16", 280_000, 360_000),
    decoder_target("fast_frames_per_second", "bf16", 600_000, 1_000_000, "decoder_{}_64_clips"),
    decoder_target("peak_memory_ratio", "bf16", 1.0, 0.6),
    decoder_target("peak_memory_ratio", "tf32", 1.0, 0.6),
    decoder_target("peak_memory_ratio", "fp32", 1.0, 0.6),
    Target(
        "look-alike LJSpeech training, data included",
        "GPU busy over 200 consecutive steps, bf16",
        "busy_bf16",
        "busy",
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
        part["output"], part["errors"] = (
            text_of(folder / f"{name}.{end}") for end in ("out", "err")
        )
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
            value = result.get(target.entry)
        rows.append(
            {
                "where": target.where,
                "measure": target.measure,
                "measured": value,
                "at_least": target.at_least,
                "aim": target.aim,
                "reached": "not measured" if value is None else target.reached(value),
            }
        )
    return rows


# ---------------------------------------------------------------------------- writing the report


def markdown(parts: list[dict], rows: list[dict], rehearsal: bool) -> str:
    environment = next((p["result"] for p in parts if p["name"] == "environment"), None) or {}
    lines = ["# Training on a GPU: every check and benchmark", ""]
    if rehearsal:
        lines += ["**A rehearsal on a CPU with tiny sizes: these numbers mean nothing.**", ""]
    lines += [f"- {name}: {value}" for name, value in environment.items() if name != "versions"]
    versions = environment.get("versions", {})
    lines += [f"- versions: {', '.join(f'{name} {value}' for name, value in versions.items())}"]
    cells = []
    for row, target in zip(rows, TARGETS, strict=True):
        numbers = [row["measured"], row["at_least"], row["aim"]]
        numbers = ["–" if value is None else format(value, target.shown) for value in numbers]
        cells.append([row["where"], row["measure"], *numbers, row["reached"]])
    lines += [
        "",
        markdown_table(["where", "measure", "measured", "at least", "aim", "reached"], cells, 2),
    ]
    cells = [[p["name"], p["status"], p["seconds"]] for p in parts]
    lines += ["", markdown_table(["part", "how it ended", "s"], cells, 2)]
    for part in parts:
        if part["name"] != "environment":
            lines += details(part)
    return "\n".join(lines) + "\n"


def details(part: dict) -> list[str]:
    """A part's section: its command, what it printed, and the end of its errors if it failed."""
    lines = ["", f"## {part['name']}", "", f"    {part['command']}"]
    printed = [ln for ln in part["output"].strip().splitlines() if not ln.startswith("wrote ")]
    if printed:
        if part["result"] is None:
            printed = ["```", *printed[-LAST_LINES:], "```"]
        elif len(printed) > MOST_LINES:
            printed = [*printed[:MOST_LINES], "", f"... and {len(printed) - MOST_LINES} lines more"]
        lines += ["", *printed]
    warnings = [line.strip() for line in part["errors"].splitlines() if "Warning: " in line]
    if warnings:
        lines += ["", *(f"- {line}" for line in warnings[:MOST_WARNINGS])]
    if part["status"] != "ok":
        lines += ["", f"{part['status']}; the end of its errors:", "", "```"]
        lines += [*part["errors"].strip().splitlines()[-LAST_LINES:], "```"]
    return lines


def assemble(folder: Path, out: Path) -> None:
    """Write report.json and report.md from the parts there are."""
    parts, rehearsal = read_parts(folder), (folder / "rehearsal").exists()
    rows = judge(parts, rehearsal)
    kept = ("name", "status", "seconds", "command", "result")
    report = {
        "date": datetime.date.today().isoformat(),
        "rehearsal": rehearsal,
        "to_reach": rows,
        "parts": [
            {name: part[name] for name in kept}
            | {"last_lines": (part["output"] + part["errors"]).splitlines()[-LAST_LINES:]}
            for part in parts
        ],
    }
    text, page = json.dumps(report, indent=1) + "\n", markdown(parts, rows, rehearsal)
    write_atomically(out / "report.json", lambda path: path.write_text(text, encoding="utf-8"))
    write_atomically(out / "report.md", lambda path: path.write_text(page, encoding="utf-8"))


# ---------------------------------------------------------------------------- the environment


def environment() -> dict:
    """What the report was measured on."""

    def output_of(*command: str) -> str:
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
        "gpu": output_of("nvidia-smi", f"--query-gpu={NVIDIA_SMI}", "--format=csv,noheader"),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "system": platform.platform(),
        # A copy of the working tree without .git knows its commit only from whoever sent it.
        "commit": os.environ.get("COMMIT")
        or output_of("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "versions": versions,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="PARTS OUT_DIR")
    parser.add_argument("--environment", type=Path, help="write what this machine is, only")
    args = parser.parse_args(arguments)
    if args.environment:
        found = environment()
        write_json(args.environment, found)
        print(json.dumps(found, indent=2))
    elif len(args.folders) != 2:
        parser.error("expected two folders: of the parts, and for the report")
    else:
        assemble(*args.folders)
        print(f"wrote {args.folders[1] / 'report.md'} and {args.folders[1] / 'report.json'}")


if __name__ == "__main__":
    main()
