"""Letters or phones: what scripts/demo.py gives in other languages from either.

    python benchmarks/languages.py OUT --languages de,fr,ru,ko --seeds 1,2,3

    OUT/de-phones-seed-1/   a demo; two go side by side, with a thread each
    OUT/languages.csv       a line for each
    OUT/report.md           means over the seeds with their standard errors

What is finished in OUT is kept: the same command resumes, and a longer list adds to it.
"""

import project_root

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pandas as pd
from scipy.stats import sem

from analysis.arguments import list_of, make_parser, whole_numbers
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_findings
from errors import UserError
from files import METRICS_FILE, json_lines, lock, refuse_no_folder, write_bytes
from progress import progress_bar
from tables import markdown_table

ROOT = Path(project_root.__file__).parents[1]
SIDE_BY_SIDE = 2
COLUMNS = {  # heading and decimals of what a run gives
    "sharpness": ("sharpness after an epoch", 3),
    "coverage": ("coverage after an epoch", 3),
    "validation_loss": ("validation loss at the end", 3),
    "identification_rate": ("identification rate", 3),
}


def make_demo(folder: Path, language: str, texts: str, seed: int, epochs: int) -> None:
    """Run the demo, into `folder` and FOLDER.log; UserError if it fails."""
    command: list[str | Path] = [sys.executable, ROOT / "scripts" / "demo.py", "--out", folder]
    command += ["--language", language, "--seed", str(seed), "--epochs", str(epochs)]
    command += ["--phones"] if texts == "phones" else []
    log = folder.with_name(f"{folder.name}.log")
    with log.open("ab") as file:
        made = subprocess.run(
            command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    if made.returncode:
        raise UserError(f"{log}: its demo failed; the same command resumes")


def read_demo(folder: Path) -> dict[str, float]:
    """What a demo gave: COLUMNS, and the epochs that it was trained."""
    records = [r for r in json_lines(folder / "run" / METRICS_FILE) if r["kind"] == "validation"]
    found = read_findings(folder / INTELLIGIBILITY_FILE, Intelligibility)
    return {
        "epochs": len(records),
        "sharpness": records[0]["alignment_sharpness"],
        "coverage": records[0]["alignment_coverage"],
        "validation_loss": records[-1]["validation_loss_unpadded"],
        "identification_rate": found.identification_rate or float("nan"),
    }


def report(runs: pd.DataFrame) -> str:
    """A row for letters and one for phones of each language, and what phones change by seed."""

    def row(language: str, name: str, values: pd.DataFrame) -> list[str]:
        cells = [language, name, str(len(values))]
        for key, (_, digits) in COLUMNS.items():
            error = f" ± {sem(values[key]):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values[key].mean():.{digits}f}{error}")
        return cells

    rows = []
    for language, of_language in runs.groupby("language", sort=False):
        by_texts = {name: own.set_index("seed") for name, own in of_language.groupby("texts")}
        rows += [row(str(language), str(name), values) for name, values in by_texts.items()]
        if len(by_texts) == 2 and len(of_language) > 2:
            keys = list(COLUMNS)
            difference = by_texts["phones"][keys] - by_texts["letters"][keys]
            rows.append(row(str(language), "phones - letters", difference.dropna()))
    titles = ["language", "texts", "seeds", *(heading for heading, _ in COLUMNS.values())]
    return markdown_table(titles, rows, labels=2) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("out", metavar="OUT", type=Path)
    shown = "eSpeak's names of them (%(default)s)"
    parser.add_argument("--languages", type=list_of(str), default="de,fr,ru,ko", help=shown)
    parser.add_argument("--seeds", type=whole_numbers, default="1", help="1,2,3")
    parser.add_argument("--epochs", type=int, default=14)
    args = parser.parse_args(arguments)
    refuse_no_folder(args.out, "OUT")
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = list(product(args.seeds, args.languages, ("letters", "phones")))
    folders = [args.out / f"{language}-{texts}-seed-{seed}" for seed, language, texts in wanted]
    with lock(args.out), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        made = [
            pool.submit(make_demo, folder, language, texts, seed, args.epochs)
            for folder, (seed, language, texts) in zip(folders, wanted, strict=True)
        ]
        for future in progress_bar("Demos", len(made), " demos", iterable=made):
            future.result()
    runs = pd.DataFrame(
        {"language": language, "texts": texts, "seed": seed} | read_demo(folder)
        for folder, (seed, language, texts) in zip(folders, wanted, strict=True)
    )
    write_bytes(args.out / "languages.csv", runs.to_csv(index=False).encode())
    table = report(runs)
    write_bytes(args.out / "report.md", table.encode())
    print(f"{table}\nwrote {args.out / 'report.md'} and {args.out / 'languages.csv'}")


if __name__ == "__main__":
    main()
