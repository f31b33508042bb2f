"""Compare finished runs with the paper's Tables 1 to 4 and Figures 1 to 4.

    python -m scripts.table2.report RUN_DIR... -o report/

Each RUN_DIR is an output folder of train.py, or a folder that contains such folders. The program
writes report.md, report.csv (all values in the tables) and the plots. Runs that differ only in the
seed form one row, which contains the mean ± standard error. The tables omit damaged and unfinished
runs, which the report lists separately. The program does not need a GPU.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import jinja2

from evaluation.figures import write_figure
from scripts.table2 import published
from scripts.table2.figures import draw_all
from scripts.table2.findings import findings
from scripts.table2.runs import Runs, comparison_warnings, describe, deviations, read_runs
from scripts.table2.tables import Measured, Table, paper_tables, tidy
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.files import check_is_folder, write_bytes
from tacotron2_voice.utils.program import run_program

# Maps the heading of a column in report.csv to a longer title for report.md.
TITLES = {
    "ZPR (%)": "zero-padding rate (%)",
    "ABL (frames)": "average batch length (frames)",
    "saved (%)": "time saved (%)",
    "from": "first strategy",
    "to": "second strategy",
    "VL3, from": "VL3 of the first strategy",
    "VL3, to": "VL3 of the second strategy",
    "VL3 (ours: late third), from": "VL3 (ours: mean over the last third) of the first strategy",
    "VL3 (ours: late third), to": "VL3 (ours: mean over the last third) of the second strategy",
    "lower by (%)": "decrease (%)",
    "without BR": "strategy without BR",
    "with BR": "strategy with BR",
    "minutes without": "minutes per epoch without BR",
    "minutes with": "minutes per epoch with BR",
    "shorter by (%)": "decrease (%)",
    "batches": "batches per epoch",
    "decoder steps": "decoder steps per epoch",
    "real frames/s": "real frames per second",
    "padded frames/s": "padded frames per second",
    "clips/s": "clips per second",
    "waiting for data (s)": "waiting for data (s per epoch)",
    "preparation (ms)": "time to plan the batches (ms per epoch)",
}


def compose(runs: Runs, command: str) -> dict:
    """Return {name: value} for the variables in the template of the report."""
    measured = Measured(runs)
    unlike = deviations(runs)
    missing = [name for name in published.TABLE_2 if name not in runs.rows.index]
    left_out = runs.left_out + ["no finished runs of " + ", ".join(missing)] * bool(missing)
    return {
        "is_reproduction": not unlike,
        "as_published": measured.as_published,
        "notices": [
            ("This is not a reproduction of the paper:", unlike),
            ("The tables do not contain these runs:", left_out),
            ("The runs differ in more than their strategies:", comparison_warnings(runs)),
        ],
        "facts": {
            "date of the report": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
            "command": command,
            **describe(runs),
            "the paper": "Ge et al., Interspeech 2021; LJSpeech, one GeForce GTX 1080, fp32",
        },
        "findings": findings(measured),
        "tables": paper_tables(measured),
        "lengths_of": next(iter(runs.by_folder)),
        "figures": draw_all(measured),
    }


def escape_markdown(text: object) -> str:
    """Escape `text` so that Markdown displays the text unchanged on one line."""
    return re.sub(r"([\\`*<\[])", r"\\\1", " ".join(str(text).split()))


def table_in_markdown(table: Table) -> str:
    titles = [TITLES.get(heading, heading) for heading in table.headings]
    for column in table.columns:
        sides = [] if column.published is None else column.sides
        heading = TITLES.get(column.heading, column.heading)
        titles += [f"{heading}: {side}" for side in sides] or [heading]
    titles, *rows = [list(map(escape_markdown, line)) for line in (titles, *table.in_text()[0])]
    return markdown_table(titles, rows, len(table.headings))


def render(template: str, **content: object) -> str:
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"escape_markdown": escape_markdown, "table_in_markdown": table_in_markdown}
    return pages.get_template(template).render(content)


def write_report(runs: Runs, command: str, out: Path) -> None:
    """Write the report to the folder `out`, and print the paths of the files."""
    out.mkdir(parents=True, exist_ok=True)
    content = compose(runs, command)
    for name, figure in content["figures"].items():
        print(f"wrote {write_figure(figure, out / f'{name}.svg')}")
    for name, text in (
        ("report.md", render("report.md.jinja", **content)),
        ("report.csv", tidy(content["tables"]).to_csv(index=False)),
    ):
        write_bytes(out / name, text.encode())
        print(f"wrote {out / name}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="read the runs in these folders"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report"),
        help="write the report to this folder (default: report)",
    )
    args = parser.parse_args(arguments)
    check_is_folder(args.out, "-o")
    command = shlex.join(
        ["python", "-m", "scripts.table2.report", *map(str, arguments or sys.argv[1:])]
    )
    runs = read_runs(args.runs)
    for problem in runs.left_out:
        print(f"ignored run: {problem}", file=sys.stderr)
    print(f"Drawing plots of {len(runs.by_folder)} runs in {len(runs.rows)} rows", flush=True)
    write_report(runs, command, args.out)


if __name__ == "__main__":
    run_program(main)
