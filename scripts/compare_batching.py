"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt
    python scripts/compare_batching.py --strategies                   # list all strategies

Compares every strategy with fixed and dynamic batch sizes: padding, steps, how well it mixes the
clips. Names the cheapest batching that mixes enough, as overrides for train.py, and writes all of
it with a picture. It follows from plans of the whole corpus, since padding does not scale with its
size: some 10 s for 10,000 clips on two cores, less than 2 minutes for a million.
"""

import project_root

import argparse
import datetime
import itertools
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import figures, published
from analysis.arguments import at_least_one, make_parser, share
from analysis.recommendation import advice, batching_overrides, ranked, recommend
from analysis.survey import DEFAULTS, Survey, Surveyor, in_threads
from batching import REGISTRY, STRATEGIES, BatchingError, batching_name, plan_epoch
from batching_costs import ENOUGH_NOVELTY, PaddingStats
from corpus.lengths import read_lengths
from files import refuse_no_folder, write_bytes
from hparams import create_hparams
from tables import markdown_table

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
PLANS_OF_SMALL_CORPORA = 50_000  # clips to plan in all, so that their means are steady too
LARGE_CORPUS = 100_000  # clips from which an epoch is a large sample by itself
# Of the table: the field of a survey, what it is multiplied by, and decimals.
COLUMNS = {
    "ZPR %": ("zero_padding_rate", 100, 2),
    "ABL": ("average_batch_length", 1, 1),
    "batches": ("num_batches", 1, 0),
    "steps": ("decoder_steps", 1, 0),
    "pad. %": ("padded_fraction", 100, 2),
    "/orig. %": ("padded_to_original_rate", 100, 2),
    "used %": ("capacity_used", 100, 1),
    "clips": ("largest_batch_size", 1, 0),
    "frames": ("largest_batch_frames", 1, 0),
    "novelty": ("novelty", 1, 4),
}
LEGEND = """\
ZPR zero-padding rate; ABL average batch length in frames (both Ge et al.); steps: of the decoder,
one after another, the sum of the batches' lengths over n_frames_per_step; pad.: padding over all
that is computed; /orig.: padding over the corpus (Gonzalez et al.); used: of the capacity, batch
size x longest clip or batch_capacity; clips, frames: in the largest batch; novelty: of the pairs of
clips that share a batch, the fraction that did not in the epoch before."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    shown = "path|text|seconds, the table NAME.clips beside it, or a CSV of id,samples or id,frames"
    add("lengths", type=Path, help=shown)
    shown = "print all strategies and exit"
    add("--strategies", action="version", version=strategy_table(), help=shown)
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    shown = "plans averaged (default: 5, more for few clips, 1 from 100,000 clips on)"
    add("--epochs", type=at_least_one, help=shown)
    add("--min-novelty", type=share, help="of the batching to be named, 0 to 1")
    return parser.parse_args(arguments)


class Corpus:
    """The clips, settings, and how much is planned. UserError or BatchingError for what is
    wrong with files and options."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.hparams = args, create_hparams(args.hparams, create_hparams(PAPER_SETTING))
        h = self.hparams
        refuse_no_folder(args.out, "-o")
        frames = read_lengths(args.lengths, h).frames
        plan_epoch(frames, h.batch_size, "random", **self.options(dynamic=True))  # all fit
        self.surveyor = Surveyor(frames, frames_per_step=h.n_frames_per_step)
        usual = max(5, min(40, PLANS_OF_SMALL_CORPORA // len(frames)))
        self.epochs = args.epochs or (1 if len(frames) >= LARGE_CORPUS else usual)

    def options(self, dynamic: bool) -> dict:
        """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
        options = {name: getattr(self.hparams, name) for name in DEFAULTS}
        capacity = self.hparams.batch_capacity if dynamic else None
        return options | {"dynamic_batch_size": dynamic, "batch_capacity": capacity}

    def heading(self) -> list[str]:
        """What is compared, and what its settings mean for it."""
        h, frames = self.hparams, self.surveyor.lengths
        seconds = h.hop_length / h.sampling_rate  # of a frame
        lines = [
            f"{self.args.lengths}",
            f"{len(frames):,} clips, {frames.sum() * seconds / 3600:.2f} hours, "
            f"{frames.min()} to {frames.max()} frames of {1000 * seconds:.2f} ms "
            f"(hop {h.hop_length} samples)",
            f"batch size {h.batch_size}; DBS: dynamic sizes, up to "
            f"{h.batch_capacity or h.batch_size * frames.max():,} frames a batch; "
            f"means over {self.epochs} epochs",
        ]
        batches = -(-len(frames) // h.batch_size)
        if h.bucket_size >= len(frames) > 1:
            lines.append(f"bucket_size={h.bucket_size}: all clips in one bucket, so BKT is RAND")
        if len(frames) >= h.num_bins >= batches > 1:
            lines.append(f"num_bins={h.num_bins} for {batches} batches, so ATS is RAND")
        return lines


def survey_all(corpus: Corpus) -> tuple[pd.DataFrame, list[str]]:
    """The surveys by the batching's name, and which strategies are impossible, and why."""

    def survey(job: tuple[str, bool]) -> dict | str:
        strategy, dynamic = job
        name, options = batching_name(strategy, dynamic, False), corpus.options(dynamic)
        size, epochs = corpus.hparams.batch_size, corpus.epochs
        try:
            found = corpus.surveyor.survey(size, strategy, epochs=epochs, **options)
        except BatchingError as error:  # a corpus too small for the parameter
            return f"{name}: not possible ({error})"
        return {"batching": name, **asdict(found)}

    found = in_threads("surveying", survey, list(itertools.product(STRATEGIES, (False, True))))
    rows = pd.DataFrame([one for one in found if isinstance(one, dict)]).set_index("batching")
    return rows, [one for one in found if isinstance(one, str)]


def numbers(column: pd.Series, digits: int) -> pd.Series:
    return column.map(lambda v: "–" if pd.isna(v) else f"{v:,.{digits}f}")


def comparison_table(rows: pd.DataFrame, corpus: Corpus) -> pd.DataFrame:
    """One row per batching; beside the paper's figures where clips and settings are the paper's."""
    cells = {
        title: numbers(rows[name] * by, digits) for title, (name, by, digits) in COLUMNS.items()
    }
    names = {"batch_size", "hop_time", "batch_capacity"} | DEFAULTS.keys() & published.SETTINGS
    as_published = all(getattr(corpus.hparams, n) == published.SETTINGS[n] for n in names)
    if as_published and len(corpus.surveyor.lengths) == published.TRAINING_CLIPS:
        table = {name.removesuffix("-BR"): row._asdict() for name, row in published.TABLE_2.items()}
        theirs = pd.DataFrame(table).T.reindex(rows.index)
        cells["ZPR % published"] = numbers(theirs.zero_padding_rate, 2)
        cells["ABL published"] = numbers(theirs.average_batch_length, 1)
    return pd.DataFrame(cells)


def section(title: str, table: pd.DataFrame) -> str:
    cells = table.reset_index()
    text = markdown_table(list(map(str, cells.columns)), cells.to_numpy().tolist())
    return f"## {title}\n\n{text}"


def strategy_table() -> str:
    """Markdown: every strategy, its parameter with the default, and what larger values do."""
    rows = []
    for s in REGISTRY.values():
        parameter = f"`{s.parameter.name}={DEFAULTS[s.parameter.name]}`" if s.parameter else ""
        larger = s.parameter.larger_values if s.parameter else ""
        rows.append([f"`{s.name}`", s.short_name, s.source, s.meaning, parameter, larger])
    titles = ["`batching_strategy`", "short", "source", "the clips' order", "parameter"]
    return markdown_table([*titles, "larger values"], rows, labels=6)


def recommended(corpus: Corpus) -> list[str]:
    """The cheapest batching that mixes enough, or that there is none, in lines."""
    args, h, surveyor = corpus.args, corpus.hparams, corpus.surveyor
    size, epochs = h.batch_size, corpus.epochs
    novelty, least = args.min_novelty, f"{args.min_novelty}, as asked"
    if novelty is None:
        paper = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=epochs)
        novelty = min(float(np.nan_to_num(paper.novelty)), ENOUGH_NOVELTY / 100)
        least = f"{novelty:.4f}, that of the paper's SSB-DBS here, or 0.99 (--min-novelty sets it)"
    tried = recommend(surveyor, size, novelty, batch_capacity=h.batch_capacity, epochs=epochs)
    lines = advice(tried, novelty, least)
    for best in ranked(tried, novelty)[:1]:
        lines.append("to train with it, add this to your settings:")
        lines.append(f"train.py --hparams batch_size={size},{batching_overrides(best)}")
    return lines


def write_all(report: str, rows: pd.DataFrame, corpus: Corpus) -> list[Path]:
    """The report with its picture, and the surveys as CSV, into --out."""
    out = corpus.args.out
    pictures = figures.write_figure(
        figures.draw_epoch_excerpt(corpus.surveyor.lengths, corpus.hparams.batch_size),
        out / "epoch_excerpt",
    )
    command = f"{datetime.date.today()}: `python {shlex.join(sys.argv)}`"
    shown = [f"![{path.stem}]({path.name})" for path in pictures if path.suffix == ".svg"]
    columns = [*Survey.__annotations__, *PaddingStats.__annotations__]
    texts = {
        "comparison.md": "\n\n".join(["# Batchings compared", command, report, *shown]) + "\n",
        "comparison.csv": rows[columns].to_csv(index=False),
    }
    for name, text in texts.items():
        write_bytes(out / name, text.encode())
    return [*(out / name for name in texts), *pictures]


def main(arguments: list[str] | None = None) -> None:
    began, args = time.monotonic(), parse(arguments)
    corpus = Corpus(args)
    args.out.mkdir(parents=True, exist_ok=True)
    rows, impossible = survey_all(corpus)
    lines = [*corpus.heading(), *impossible]
    table = section("Every strategy, fixed and dynamic sizes", comparison_table(rows, corpus))
    parts = ["\n".join(f"- {line}" for line in lines), table, LEGEND]
    parts.append("\n".join(["## Found", "", "```", *recommended(corpus), "```"]))
    report = "\n\n".join(parts)
    print(report)
    print("\nwritten:", *write_all(report, rows, corpus), sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
