"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt
    python scripts/compare_batching.py --strategies                   # list all strategies

Compares every strategy with fixed and dynamic batch sizes: padding, steps, how well it mixes the
clips. Names the cheapest batching that mixes enough, as overrides for train.py, and writes all of
it with a picture. The search is that of `python -m length_batching`, with the settings of
hparams.py.
"""

import project_root

import argparse
import datetime
import itertools
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd

from corpus.lengths import read_lengths
from evaluation import figures
from hparams import create_hparams
from length_batching import (
    REGISTRY,
    STRATEGIES,
    BatchingError,
    PaddingStats,
    batching_name,
    plan_epoch,
)
from length_batching.search import DEFAULTS, Advice, Survey, Surveyor, in_threads, search
from tacotron2_voice.utils.arguments import at_least_one, make_parser, share
from tacotron2_voice.utils.console import markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import refuse_no_folder, write_bytes
from tacotron2_voice.utils.program import run_program

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
# Lengths do not tell how a model learns. The figures are those of docs/learning.md.
LEARNING = """\
learning: the default, SSB-DBS-BR with random_epochs=2, had a loss 9% ± 4 below RAND's in
  equal time in the full-size model, 16% ± 2 in a small one; other batchings were measured in
  the small one, without random epochs: SSB-exp ended 5% above SSB-DBS-BR (docs/learning.md)"""
# Of the table: the field of a survey, what it is multiplied by, and decimals.
COLUMNS = {
    "ZPR %": ("zero_padding_rate", 100, 2),
    "ABL": ("average_batch_length", 1, 1),
    "batches": ("num_batches", 1, 0),
    "steps": ("decoder_steps", 1, 0),
    "pad. %": ("padded_fraction", 100, 2),
    "/orig. %": ("padded_to_original_rate", 100, 2),
    "clips": ("largest_batch_size", 1, 0),
    "frames": ("largest_batch_frames", 1, 0),
    "novelty": ("novelty", 1, 4),
}
LEGEND = """\
ZPR zero-padding rate; ABL average batch length in frames (both Ge et al.); steps: of the decoder,
one after another, the sum of the batches' lengths over n_frames_per_step; pad.: padding over all
that is computed; /orig.: padding over the corpus (Gonzalez et al.); clips, frames: in the largest
batch; novelty: of the pairs of clips that share a batch, the fraction that did not in the epoch
before."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    about = "path|text|seconds, the table NAME.clips beside it, or a CSV of id,samples or id,frames"
    add("lengths", type=Path, help=about)
    about = "print all strategies and exit"
    add("--strategies", action="version", version=strategy_table(), help=about)
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    about = "plans averaged (default: 5, more for few clips, 1 from 100,000 clips on)"
    add("--epochs", type=at_least_one, help=about)
    add("--min-novelty", type=share, help="of the batching to be named, 0 to 1")
    return parser.parse_args(arguments)


class Corpus:
    """The clips, settings, and how much is planned. UserError or BatchingError for what is
    wrong with files and options."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.hparams = args, create_hparams(args.hparams, create_hparams(PAPER_SETTING))
        h = self.hparams
        if h.speaker_balance:
            raise UserError(
                f"speaker_balance={h.speaker_balance}: lengths alone have no speakers to draw; "
                "leave it out. train.py prints what its epochs cost"
            )
        refuse_no_folder(args.out, "-o")
        frames = read_lengths(args.lengths, h).frames
        plan_epoch(frames, h.batch_size, "random", **self.options(dynamic=True))  # all fit
        steps = h.n_frames_per_step
        self.surveyor = Surveyor(frames, frames_per_step=steps, epochs=args.epochs)

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
            f"means over {self.surveyor.epochs} epochs",
        ]
        batches = -(-len(frames) // h.batch_size)
        if h.bucket_size >= len(frames) > 1:
            lines.append(f"bucket_size={h.bucket_size}: all clips in one bucket, so BKT is RAND")
        if len(frames) >= h.num_bins >= batches > 1:
            lines.append(f"num_bins={h.num_bins} for {batches} batches, so ATS is RAND")
        return lines


def survey_all(corpus: Corpus) -> tuple[dict[str, Survey], list[str]]:
    """The surveys by the batching's name, and which strategies are impossible, and why."""

    def survey(job: tuple[str, bool]) -> Survey | BatchingError:
        strategy, dynamic = job
        size, options = corpus.hparams.batch_size, corpus.options(dynamic)
        try:
            return corpus.surveyor.survey(size, strategy, **options)
        except BatchingError as error:  # a corpus too small for the parameter
            return error

    jobs = list(itertools.product(STRATEGIES, (False, True)))
    names = [batching_name(strategy, dynamic, False) for strategy, dynamic in jobs]
    results = dict(zip(names, in_threads(survey, jobs, progress("surveying")), strict=True))
    surveys = {name: one for name, one in results.items() if isinstance(one, Survey)}
    return surveys, [f"{n}: not possible ({results[n]})" for n in names if n not in surveys]


def progress(title: str) -> Callable[[Iterable], Iterable]:
    """Shows a bar while results for all strategies, with fixed and dynamic sizes, come in."""
    count = 2 * len(STRATEGIES)
    return lambda results: progress_bar(title, count, " batchings", iterable=results)


def comparison_table(surveys: Mapping[str, Survey]) -> str:
    """Markdown, a row for each batching."""

    def cell(value: float, digits: int) -> str:
        return "–" if math.isnan(value) else f"{value:,.{digits}f}"

    rows = [
        [name, *(cell(getattr(one, field) * by, digits) for field, by, digits in COLUMNS.values())]
        for name, one in surveys.items()
    ]
    return markdown_table(["batching", *COLUMNS], rows)


def strategy_table() -> str:
    """Markdown: every strategy, its parameter with the default, and what larger values do."""
    rows = []
    for s in REGISTRY.values():
        parameter = f"`{s.parameter.name}={DEFAULTS[s.parameter.name]}`" if s.parameter else ""
        larger = s.parameter.larger_values if s.parameter else ""
        rows.append([f"`{s.name}`", s.short_name, s.source, s.meaning, parameter, larger])
    titles = ["`batching_strategy`", "short", "source", "the clips' order", "parameter"]
    return markdown_table([*titles, "larger values"], rows, labels=6)


def overrides_of(survey: Survey) -> str:
    """A batching as overrides for train.py."""
    settings = {"batch_size": survey.batch_size, "batching_strategy": survey.strategy}
    settings |= survey.options()
    del settings["strategy"]
    return ",".join(f"{name}={value}" for name, value in settings.items())


def recommended(corpus: Corpus) -> list[str]:
    """The cheapest batching that mixes enough, or that there is none, in lines."""
    h, asked = corpus.hparams, corpus.args.min_novelty
    options = {"min_novelty": asked, "progress": progress("searching")}
    options["batch_capacity"] = h.batch_capacity
    advice = search(corpus.surveyor, h.batch_size, **options)
    if not (best := advice.best):
        most = max(advice.tried, key=lambda survey: survey.novelty)
        problem = f"reaches novelty {advice.min_novelty:g}: the most is {most.novelty:.4f}"
        return [f"Nothing to recommend: no batching {problem}, {most.described()}"]
    least = f"{asked}, as asked"
    if asked is None:
        least = f"{advice.min_novelty:.4f}, that of the paper's SSB-DBS here, or 0.99"
        least += " (--min-novelty sets it)"
    lines = [f"Recommended for speed: {best.described()}", f"cheapest: {costs_in_words(advice)}"]
    mixed = f"novelty {best.novelty:.4f}, the least allowed is {least}"
    lines.append(f"mixing: {'no two clips share a batch' if math.isnan(best.novelty) else mixed}")
    largest = f"{best.largest_batch_frames:,.0f} frames, {best.largest_batch_size} clips"
    lines.append(f"largest batch {largest}")
    for rival in [other for other in advice.ranked if other.strategy != best.strategy][:1]:
        more = rival.decoder_steps / best.decoder_steps - 1
        lines[-1] += f"; next best: {rival.described()}, {more:+.1%}"
    lines.append(LEARNING)
    if best.num_batches < 0.5 * advice.random.num_batches:
        steps = f"{best.num_batches:,.0f} training steps an epoch"
        steps += f", RAND {advice.random.num_batches:,.0f}"
        lines.append(f"note: {steps}: an epoch is shorter but may teach less")
    lines.append("to train with it, add this to your settings:")
    return [*lines, f"train.py --hparams {overrides_of(best)}"]


def costs_in_words(advice: Advice) -> str:
    """What the best costs, and how much less than RAND and the default."""
    best = advice.ranked[0]
    cost = f"{best.decoder_steps:,.0f} decoder steps an epoch"
    for word, other in ((", ", advice.random), (" and ", advice.default)):
        change = best.decoder_steps / other.decoder_steps - 1
        less = "more" if change > 0 else "less"
        cost += f"{word}{abs(change):.1%} {less} than {other.described()}"
    return cost


def write_all(report: str, surveys: Mapping[str, Survey], corpus: Corpus) -> list[Path]:
    """The report with its picture, and the surveys as CSV, into --out."""
    out = corpus.args.out
    figure = figures.draw_epoch_excerpt(corpus.surveyor.lengths, corpus.hparams.batch_size)
    picture = figures.write_figure(figure, out / "epoch_excerpt.svg")
    command = f"{datetime.date.today()}: `python {shlex.join(sys.argv)}`"
    image = f"![the first batches of an epoch]({picture.name})"
    columns = [*Survey.__annotations__, *PaddingStats.__annotations__]
    texts = {
        "comparison.md": "\n\n".join(["# Batchings compared", command, report, image]) + "\n",
        "comparison.csv": pd.DataFrame(list(surveys.values()))[columns].to_csv(index=False),
    }
    for name, text in texts.items():
        write_bytes(out / name, text.encode())
    return [*(out / name for name in texts), picture]


def main(arguments: list[str] | None = None) -> None:
    corpus = Corpus(parse(arguments))
    corpus.args.out.mkdir(parents=True, exist_ok=True)
    surveys, impossible = survey_all(corpus)
    lines = "\n".join(f"- {line}" for line in [*corpus.heading(), *impossible])
    title = "## Every strategy, fixed and dynamic sizes"
    recommendation = "\n".join(["## Found", "", "```", *recommended(corpus), "```"])
    report = "\n\n".join([lines, title, comparison_table(surveys), LEGEND, recommendation])
    print(report)
    print("\nwritten:", *write_all(report, surveys, corpus), sep="\n  ")


if __name__ == "__main__":
    run_program(main)
