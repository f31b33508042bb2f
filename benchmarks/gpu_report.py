"""Keeps the report of gpu_report.sh: report.json with all that its parts found, and report.md.

    python benchmarks/gpu_report.py OUT_DIR --begin [--rehearsal]
    python benchmarks/gpu_report.py OUT_DIR --part NAME --call CALL --command TEXT
    python benchmarks/gpu_report.py OUT_DIR --part NAME --call CALL --command TEXT --status ok ...
    python benchmarks/gpu_report.py --environment environment.json

A call begins, and so does each of its parts. While a part runs, OUT_DIR/under_way holds what it
prints (output.txt, errors.txt) and measured so far (result.json). Its status at its end takes these
into report.json, from which report.md is made anew each time. A part that was cut off with its call
is taken in when the next call begins. The report names what is missing or broken; nothing is made
up for it.
"""

from project_root import ROOT

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.arguments import make_parser
from analysis.tables import markdown_table
from errors import UserError
from files import write_atomically, write_json

PACKAGES = ("torch", "triton", "numpy", "scipy", "matplotlib", "tensorboard", "pytest")
NVIDIA_SMI = "name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"
MOST_LINES = 150  # of a part's output
LAST_LINES = 40  # of the errors of a part that failed, and of the output of one that did not
MOST_WARNINGS = 5
UNDER_WAY = "under way"  # the status of a part that has not ended, and the folder of its files
CUT_OFF = "cut off with its call"


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
    decoder_target("peak_memory_ratio", "bf16", 1.0, 0.6, "memory_{}"),
    decoder_target("peak_memory_ratio", "tf32", 1.0, 0.6, "memory_{}"),
    decoder_target("peak_memory_ratio", "fp32", 1.0, 0.6, "memory_{}"),
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
    *(
        Target(
            "the same 300 steps in both",
            f"loss from fp32's, of that with other dropout, {precision}",
            "precisions",
            f"{precision}_over_yardsticks",
            2.0,
            1.0,
            ".2f",
            {"steps": 300},
            lower_is_better=True,
        )
        for precision in ("tf32", "bf16")
    ),
]


# ---------------------------------------------------------------------------- the parts


def read_report(out: Path) -> dict:
    """What report.json holds; a new report where there is none.

    Raises:
        UserError: if it is no report, so that nothing in it is lost.
    """
    path = out / "report.json"
    if not path.is_file():
        return {"rehearsal": False, "parts": []}
    report, problem = read_json(path)
    if report is not None and not isinstance(report.get("parts"), list):
        problem = "holds no parts"
    if problem:
        raise UserError(
            f"{path}: {problem}; expected a report of gpu_report.sh: move it away, or name "
            "another folder"
        )
    return report


def begin(out: Path, rehearsal: bool) -> None:
    """Make the report ready for the parts of a call.

    Raises:
        UserError: if it is no report, or a rehearsal's where this is none, or the other way round.
    """
    out.mkdir(parents=True, exist_ok=True)
    report = read_report(out)
    if report["parts"] and report["rehearsal"] != rehearsal:
        kinds = ("of a GPU", "of a rehearsal")
        raise UserError(
            f"{out / 'report.json'}: a report {kinds[not rehearsal]}, expected one "
            f"{kinds[rehearsal]}: name another folder"
        )
    report["rehearsal"] = rehearsal
    for part in report["parts"]:
        if part["status"] == UNDER_WAY:
            take_in(out, part | {"status": CUT_OFF}, report)
    write(out, report)


def take_in(out: Path, part: dict, report: dict) -> None:
    """Put a part into the report, in the place of the same part of an earlier call. One that has
    ended brings what it printed and measured."""
    folder = out / UNDER_WAY.replace(" ", "_")
    kept = {"result": None, "output": "", "errors": "", "warnings": []}
    if part["status"] != UNDER_WAY:
        output, errors = (text_of(folder / f"{name}.txt") for name in ("output", "errors"))
        kept["result"], problem = read_json(folder / "result.json")
        if problem and part["status"] == "ok":
            part["status"] = f"ended well, but its result is broken: {problem}"
        kept["output"] = shown_output(output, part["status"], kept["result"] is not None)
        kept["errors"] = "\n".join(errors.strip().splitlines()[-LAST_LINES:])
        warnings = [line.strip() for line in errors.splitlines() if "Warning: " in line]
        kept["warnings"] = warnings[:MOST_WARNINGS]
        for name in ("output.txt", "errors.txt", "result.json"):
            (folder / name).unlink(missing_ok=True)
    places = {(p["call"], p["name"]): place for place, p in enumerate(report["parts"])}
    place = places.get((part["call"], part["name"]), len(report["parts"]))
    report["parts"][place : place + 1] = [part | kept]


def shown_output(text: str, status: str, measured: bool) -> str:
    """The first lines of what a benchmark printed, the last ones of another program, of which more
    are shown if it failed: tests print there what went wrong."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("wrote ")]
    if not measured:
        lines = lines[-LAST_LINES if status == "ok" else -MOST_LINES :]
    elif len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], "", f"... and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def read_json(path: Path) -> tuple[dict | None, str]:
    """What the file holds, and what is wrong with it; tests and the like write none."""
    if not path.is_file():
        return None, ""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return None, f"not readable as JSON ({error})"
    return (result, "") if isinstance(result, dict) else (None, "holds no object")


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
    lines = ["# Training on a GPU: every check and benchmark", ""]
    if rehearsal:
        lines += ["**A rehearsal on a CPU with tiny sizes: these numbers mean nothing.**", ""]
    lines += environments(parts)
    cells = []
    for row, target in zip(rows, TARGETS, strict=True):
        numbers = [row["measured"], row["at_least"], row["aim"]]
        numbers = ["–" if value is None else format(value, target.shown) for value in numbers]
        cells.append([row["where"], row["measure"], *numbers, row["reached"]])
    lines += [
        "",
        markdown_table(["where", "measure", "measured", "at least", "aim", "reached"], cells, 2),
    ]
    if table := launches_table(parts):
        lines += ["", "Microseconds of each launch, measured / modelled:", "", table]
    cells = [[p["call"], p["name"], p["status"], p["seconds"], p["begun"]] for p in parts]
    lines += ["", markdown_table(["call", "part", "how it ended", "s", "begun"], cells, 3)]
    for part in parts:
        if part["name"] != "environment":
            lines += details(part)
    return "\n".join(lines) + "\n"


def environments(parts: list[dict]) -> list[str]:
    """What each call was made on; of later calls, what differs from the first."""
    lines, first = [], {}
    for part in parts:
        if part["name"] != "environment" or not part["result"]:
            continue
        found = dict(part["result"])
        versions = found.pop("versions", {})
        found["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
        different = {name: value for name, value in found.items() if first.get(name) != value}
        lines += [f"- call {part['call']}, {name}: {value}" for name, value in different.items()]
        first = first or found
    return lines


def launches_table(parts: list[dict]) -> str:
    """Markdown: what kernels.py --launches measured beside what was modelled; empty without it."""
    times = {}
    for part in parts:
        for launch in (part["result"] or {}).get("launches", []):
            both = [launch.get("measured_us"), launch.get("modelled_us")]
            cell = " / ".join("–" if value is None else f"{value:.1f}" for value in both)
            times.setdefault(launch["launch"], {})[launch["precision"]] = cell
    precisions = list(dict.fromkeys(name for row in times.values() for name in row))
    cells = [[name, *(row.get(p, "–") for p in precisions)] for name, row in times.items()]
    return markdown_table(["launch", *precisions], cells) if cells else ""


def details(part: dict) -> list[str]:
    """A part's section: its command, what it printed, and the end of its errors if it failed."""
    lines = ["", f"## {part['name']}", "", f"    {part['command']}"]
    if part["output"]:
        fence = [] if part["result"] is not None else ["```"]
        lines += ["", *fence, part["output"], *fence]
    if part["warnings"]:
        lines += ["", *(f"- {line}" for line in part["warnings"])]
    if part["status"] not in ("ok", UNDER_WAY):
        lines += ["", f"{part['status']}; the end of its errors:", "", "```"]
        lines += [part["errors"], "```"]
    return lines


def write(out: Path, report: dict) -> None:
    """report.json and report.md, with what is reached so far."""
    report["parts"].sort(key=lambda part: part["call"])  # the parts of a call stay in their order
    report["to_reach"] = judge(report["parts"], report["rehearsal"])
    page = markdown(report["parts"], report["to_reach"], report["rehearsal"])
    write_json(out / "report.json", report)
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


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="OUT_DIR")
    add("--begin", action="store_true", help="a call")
    add("--rehearsal", action="store_true", help="the call is one on a CPU")
    add("--part", metavar="NAME", help="that begins, or has ended with --status")
    add("--call", metavar="CALL", help="that the part belongs to")
    add("--command", metavar="TEXT", help="of the part")
    add("--status", default=UNDER_WAY, metavar="TEXT", help="how the part ended")
    add("--seconds", type=int, default=0, help="that the part took")
    add("--environment", type=Path, metavar="FILE.json", help="write what this machine is, only")
    args = parser.parse_args(arguments)
    if not args.environment:
        if args.folder is None or args.begin == (args.part is not None):
            parser.error("expected OUT_DIR and one of --begin and --part NAME")
        if args.part and None in (args.call, args.command):
            parser.error(f"--part {args.part}: expected --call CALL and --command TEXT beside it")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if args.environment:
        found = environment()
        write_json(args.environment, found)
        print(json.dumps(found, indent=2))
        return
    try:
        if args.begin:
            begin(args.folder, args.rehearsal)
            return
        report = read_report(args.folder)
    except UserError as error:
        sys.exit(f"gpu_report.py: {error}")
    begun = datetime.datetime.now() - datetime.timedelta(seconds=args.seconds)
    part = {
        "call": args.call,
        "name": args.part,
        "begun": f"{begun:%Y-%m-%d %H:%M}",
        "status": args.status,
        "seconds": args.seconds,
        "command": args.command,
    }
    take_in(args.folder, part, report)
    write(args.folder, report)


if __name__ == "__main__":
    main()
