"""Compare batching strategies for a corpus. The comparison needs the lengths of the clips, but no
audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt
    python scripts/compare_batching.py --strategies                   # list all strategies

The program prints the cost of every strategy with fixed and with dynamic batch sizes (DBS), and the
strategy that needs the fewest decoder steps and still mixes the clips well. At the end, the program
prints the settings for train.py that we recommend: two epochs with random batches, and then
SSB-DBS-BR. The folder `--out` will contain the printed report, the table of the report as a CSV,
and a plot of the first batches of an epoch. If the lengths come from another project, use
`python -m length_batching` instead.
"""

import project_root

import argparse
import datetime
import math
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.lengths import read_lengths
from evaluation import figures
from hparams import HParams, create_hparams, parse_row_costs
from length_batching import STRATEGIES, PaddingStats, PlanOptions
from length_batching.report import (
    LEGEND,
    cost_table,
    describe_result,
    recommend,
    recommended_options,
    strategy_table,
)
from length_batching.search import DEFAULTS, SearchResult, Survey, Surveyor, search, survey_all
from tacotron2_voice.utils.arguments import at_least_one, make_parser, share
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import check_is_folder, write_bytes
from tacotron2_voice.utils.program import run_program

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    formats = "a filelist that contains seconds, the cache of a filelist (NAME.clips), or a CSV file with the columns id,samples or id,frames"
    add("lengths", type=Path, help=f"read the lengths from this file: {formats}")
    add(
        "--strategies",
        action="version",
        version=strategy_table(),
        help="print all strategies and exit",
    )
    add(
        "-o",
        "--out",
        type=Path,
        default=Path("compare_batching"),
        help="write the report to this folder (default: %(default)s)",
    )
    add(
        "--hparams",
        default="",
        help="override these settings: name=value,..., as with train.py --hparams (default: "
        f"{PAPER_SETTING})",
    )
    epochs = "number of epochs to plan (default: 5 to 40, but 1 for 100,000 clips or more)"
    add("--epochs", type=at_least_one, help=epochs)
    novelty = (
        "required pair novelty, from 0 to 1 (default: the pair novelty of SSB-DBS-BR, at most 0.99)"
    )
    add("--min-pair-novelty", "--min-novelty", type=share, metavar="FRACTION", help=novelty)
    return parser.parse_args(arguments)


def plan_options(hparams: HParams) -> PlanOptions:
    """Return the frame budget and the parameters of all strategies."""
    parameters: Any = {name: getattr(hparams, name) for name in DEFAULTS}
    options: PlanOptions = {**parameters, "batch_capacity": hparams.batch_capacity}
    return options


def read_corpus(path: Path, hparams: HParams, epochs: int | None) -> Surveyor:
    """Read the lengths of the clips.

    Raises:
        UserError: if the file is invalid, or if a setting requires data other than lengths.
    """
    if hparams.speaker_balance:
        raise UserError(
            f"speaker_balance={hparams.speaker_balance}: this setting needs the speakers of the clips, "
            "but this program only reads lengths. Remove the setting. train.py prints the cost of "
            "batches that are balanced by speaker"
        )
    frames = read_lengths(path, hparams)
    costs, clip_cost = parse_row_costs(hparams.row_costs)
    # Convert microseconds to seconds.
    seconds = {size: cost / 1e6 for size, cost in costs.items()} if costs else None
    return Surveyor(
        frames,
        frames_per_step=hparams.n_frames_per_step,
        epochs=epochs,
        row_costs=seconds,
        clip_cost=clip_cost / 1e6,
    )


def describe_corpus(path: Path, hparams: HParams, surveyor: Surveyor) -> list[str]:
    """Return lines that describe the corpus, the batches, and the settings that have no effect."""
    frames = surveyor.lengths
    frame_seconds = hparams.hop_length / hparams.sampling_rate
    capacity = hparams.batch_capacity or hparams.batch_size * frames.max()
    lines = [
        f"{path}",
        f"{len(frames):,} clips, {frames.sum() * frame_seconds / 3600:.2f} hours, "
        f"{frames.min()} to {frames.max()} frames of {1000 * frame_seconds:.2f} ms",
        f"batch size {hparams.batch_size}, or up to {capacity:,} frames per batch with DBS; "
        f"{surveyor.epochs} planned epochs",
    ]
    if hparams.bucket_size >= len(frames) > 1:
        lines.append(
            f"bucket_size={hparams.bucket_size}: one bucket contains all clips, so BKT is the same as "
            "RAND"
        )
    num_batches = math.ceil(len(frames) / hparams.batch_size)
    if len(frames) >= hparams.num_bins >= num_batches > 1:
        lines.append(
            f"num_bins={hparams.num_bins}: a bin contains at most one batch, so ATS is the same as RAND"
        )
    return lines


def progress(results: Iterable[Any]) -> Iterable[Any]:
    """Show a progress bar while `results` are computed: two results per strategy, with and without
    DBS."""
    return progress_bar("planning epochs", 2 * len(STRATEGIES), " strategies", iterable=results)


def recommended_settings(result: SearchResult, hparams: HParams) -> str:
    """Return the settings of the recommended strategy in the format of train.py --hparams."""
    options = recommended_options(result)
    settings = {"batch_size": options.pop("batch_size")}
    settings["batching_strategy"] = options.pop("strategy")
    # Without `random_epochs`, train.py would use its default value.
    settings |= {"random_epochs": 0} | options
    if hparams.row_costs:
        settings["row_costs"] = hparams.row_costs
    return ",".join(f"{name}={value}" for name, value in settings.items())


def advice(result: SearchResult, hparams: HParams) -> list[str]:
    """Return lines with the result of the search and the recommended settings for train.py."""
    lines = [*describe_result(result), "", *recommend(result)]
    if result.default.num_batches < 0.5 * result.random.num_batches:
        lines.append(
            f"- {result.default.num_batches:,.0f} optimizer steps per epoch, compared with "
            f"{result.random.num_batches:,.0f} for RAND: the model may learn less per epoch"
        )
    settings = recommended_settings(result, hparams)
    return [*lines, "", f"    train.py --hparams {shlex.quote(settings)}"]


def write_all(report: str, surveys: list[Survey], out: Path, plot: figures.Figure) -> list[Path]:
    """Write the report, the table of the report as a CSV, and the plot. Return the paths of the
    three files."""
    plot_path = figures.write_figure(plot, out / "epoch_excerpt.svg")
    command = f"{datetime.date.today()}: `python {shlex.join(sys.argv)}`"
    image = f"![the first batches of an epoch]({plot_path.name})"
    report_path = out / "comparison.md"
    sections = ["# Batching strategies compared", command, report, image]
    write_bytes(report_path, ("\n\n".join(sections) + "\n").encode())
    table_path = out / "comparison.csv"
    # List the columns explicitly, so that the strategy becomes the first column.
    columns = [*Survey.__annotations__, *PaddingStats.__annotations__]
    table = pd.DataFrame([asdict(survey) for survey in surveys])[columns]
    write_bytes(table_path, table.to_csv(index=False).encode())
    return [report_path, table_path, plot_path]


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    check_is_folder(args.out, "-o")
    hparams = create_hparams(args.hparams, create_hparams(PAPER_SETTING))
    surveyor = read_corpus(args.lengths, hparams, args.epochs)
    surveys, impossible = survey_all(
        surveyor, hparams.batch_size, progress=progress, **plan_options(hparams)
    )
    result = search(
        surveyor,
        hparams.batch_size,
        min_pair_novelty=args.min_pair_novelty,
        progress=progress,
        batch_capacity=hparams.batch_capacity,
    )
    lines = [*describe_corpus(args.lengths, hparams, surveyor), *impossible]
    report = "\n\n".join(
        [
            "\n".join(f"- {line}" for line in lines),
            cost_table(surveys),
            f"```\n{LEGEND}\n```",
            "\n".join(advice(result, hparams)),
        ]
    )
    print(report)
    args.out.mkdir(parents=True, exist_ok=True)
    lengths = np.asarray(surveyor.lengths)
    plot = figures.draw_epoch_excerpt(lengths, hparams.batch_size)
    print("\nWrote:", *write_all(report, surveys, args.out, plot), sep="\n  ")


if __name__ == "__main__":
    run_program(main)
