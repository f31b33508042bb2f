"""Write report.md from the results of gpu_report.sh's parts.

    python benchmarks/gpu_report.py OUT_DIR

parts.tsv has a line for each part that began, and another with its status when it ended. Output,
errors and results of a part are in CALL-NAME.txt, CALL-NAME.err and CALL-NAME.json.
"""

import project_root

from collections import namedtuple
from pathlib import Path

from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.files import numbered_lines, read_bytes, read_json, write_bytes

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 150  # of a part's output and of its errors
DRY_RUN = "dry_run"  # this file marks a dry run
# Rows of the table of targets: a part and an entry of its JSON, what it measures, the required
# value, the aim (a lower value is better if the aim is lower), and the format of a value.
Target = namedtuple("Target", "part entry measure at_least aim value_format")
LONG, SPEED, MEMORY = "16 clips x 774 frames", "fast_frames_per_second", "peak_memory_ratio"
TARGETS = [
    Target("decoder_fp32", "speedup", f"fast over reference, fp32, {LONG}", 6, 9, ".2f"),
    Target("decoder_tf32", "speedup", f"fast over reference, tf32, {LONG}", 8, 14, ".2f"),
    Target("decoder_bf16", "speedup", f"fast over reference, bf16, {LONG}", 10, 20, ".2f"),
    Target("decoder_fp32", SPEED, f"padded frames/s, fp32, {LONG}", 120_000, 150_000, ",.0f"),
    Target("decoder_tf32", SPEED, f"padded frames/s, tf32, {LONG}", 180_000, 260_000, ",.0f"),
    Target("decoder_bf16", SPEED, f"padded frames/s, bf16, {LONG}", 280_000, 360_000, ",.0f"),
    Target("decoder_64", SPEED, "padded frames/s, bf16, 64 clips x 203", 600_000, 1e6, ",.0f"),
    Target("memory_fp32", MEMORY, "peak memory, fast over reference, fp32", 1.0, 0.6, ".2f"),
    Target("memory_bf16", MEMORY, "peak memory, fast over reference, bf16", 1.0, 0.6, ".2f"),
    Target("busy", "busy", "GPU busy over 200 training steps, bf16", 0.90, 0.97, ".1%"),
]
Part = namedtuple("Part", "call name begun status seconds command")  # a line of parts.tsv


def read_parts(out: Path) -> list[Part]:
    """The parts in the order in which they first began, as their last lines say."""
    lines = numbered_lines(out / "parts.tsv", "no such file; gpu_report.sh writes it")
    rows = [line.split("\t") for _, line in lines]
    parts = [Part(*row) for row in rows if len(row) == len(Part._fields)]
    return list({(part.call, part.name): part for part in parts}.values())


def reached(target: Target, value: float | None) -> list[str]:
    """A row of the table of targets."""
    bounds = [format(bound, target.value_format) for bound in (target.at_least, target.aim)]
    if value is None:
        return [target.measure, "–", *bounds, "not measured"]
    sign = 1 if target.aim > target.at_least else -1
    named = {"aim": target.aim, "at least": target.at_least}
    best = next((name for name, bound in named.items() if sign * value >= sign * bound), "no")
    return [target.measure, format(value, target.value_format), *bounds, best]


def lines_of(out: Path, part: Part, end: str) -> list[str]:
    """The last lines of a file of the part; none if there is no such file."""
    path = out / f"{part.call}-{part.name}.{end}"
    text = read_bytes(path).decode(errors="replace") if path.exists() else ""
    for folder, name in ((ROOT, "."), (Path.home(), "~")):  # reports are published
        text = text.replace(str(folder), name)
    return text.strip().splitlines()[-MAX_LINES:]


def report(out: Path) -> str:
    """Markdown."""
    parts = read_parts(out)
    files = {part.name: out / f"{part.call}-{part.name}.json" for part in parts}
    results = {name: read_json(file) for name, file in files.items() if file.exists()}
    lines, measured = ["# Training on a GPU: every check and benchmark", ""], results
    if (out / DRY_RUN).is_file():
        lines += ["**A dry run on a CPU with tiny sizes: these numbers mean nothing.**", ""]
        measured = {}
    cells = [reached(t, measured.get(t.part, {}).get(t.entry)) for t in TARGETS]
    lines += [markdown_table(["target", "measured", "at least", "aim", "reached"], cells), ""]
    cells = [[p.call, p.name, p.status, p.seconds, p.begun] for p in parts]
    lines.append(markdown_table(["call", "part", "status", "s", "begun"], cells, 3))
    for part in parts:
        lines += ["", f"## {part.name}", "", f"    {part.command}", ""]
        output = lines_of(out, part, "txt")
        lines += output if results.get(part.name) else ["```", *output, "```"]
        errors = lines_of(out, part, "err")
        if part.status == "ok":
            errors = [line for line in errors if "Warning: " in line]
        lines += ["", "```", *errors, "```"] if errors else []
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT_DIR", help="with parts.tsv")
    folder = parser.parse_args(arguments).folder
    write_bytes(folder / "report.md", report(folder).encode())


if __name__ == "__main__":
    main()
