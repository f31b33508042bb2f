"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt --recommend
    python scripts/compare_batching.py lengths.csv --clips 10480          # as Ge et al. count
    python scripts/compare_batching.py filelists/ljspeech/train.txt --cost COSTS.json --recommend
    python scripts/compare_batching.py --strategies                       # list all strategies

Compares every strategy with fixed and dynamic batch sizes: padding, steps, how well it mixes the
clips. Writes tables and pictures; --recommend names the cheapest batching that mixes enough, as
overrides for train.py. All of it follows from plans of the whole corpus, since padding does not
scale with its size: some 10 s for 10,000 clips on two cores, less than 2 minutes for a million.
"""

import project_root

import argparse
import datetime
import functools
import math
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import figures, published
from analysis.arguments import at_least_one, make_parser, positive, positive_list, share
from analysis.recommendation import Limits, advice, batching_overrides, overrides, recommend
from analysis.step_costs import HOW_TO_MEASURE, read_costs
from analysis.survey import (
    DEFAULTS,
    PARAMETERS,
    Survey,
    Surveyor,
    in_threads,
    match_zero_padding,
    mean_survey,
    parameter_values,
)
from batching import (
    MOST_COUNTED,
    REGISTRY,
    STRATEGIES,
    BatchingError,
    PaddingStats,
    batching_name,
    plan_epoch,
)
from corpus.lengths import read_lengths
from errors import UserError
from files import refuse_no_folder, write_atomically
from hparams import create_hparams
from tables import markdown_table

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
VARIED = ("comparison", "parameter", "batch_size", "capacity")  # what surveys are for
BATCH_SIZES = range(1, 9)  # as in Gonzalez et al., Table 1
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
    "spread": ("spread", 1, 3),
    "novelty": ("novelty", 1, 4),
    "min": ("seconds_per_epoch", 1 / 60, 2),
    "GB": ("peak_bytes", 1e-9, 2),
}
LEGEND = """\
ZPR zero-padding rate; ABL average batch length in frames (both Ge et al.); steps: of the decoder,
one after another, the sum of the batches' lengths over n_frames_per_step; pad.: padding over all
that is computed; /orig.: padding over the corpus (Gonzalez et al.); used: of the capacity, batch
size x longest clip or batch_capacity; clips, frames: in the largest batch; spread: how far apart in
length a batch's clips are, 0 as sorted, 1 as random; novelty: of the pairs of clips that share a
batch, the fraction that did not in the epoch before; min, GB: predicted minutes and peak memory."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    shown = "path|text|seconds, the table NAME.clips beside it, or a CSV of id,samples or id,frames"
    add("lengths", type=Path, help=shown)
    shown = "print all strategies and exit"
    add("--strategies", action="version", version=strategy_table(), help=shown)
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    add("--clips", type=at_least_one, help="use this many, drawn at random")
    add("--draws", type=at_least_one, default=5, help="with --clips: draws averaged (default: 5)")
    add("--epochs", type=at_least_one, help="plans averaged (default: 5; more for small corpora)")
    add("--seconds", type=positive_list, default=[], help="dynamic batches of, say, 16,32 seconds")
    add("--match-zpr", choices=STRATEGIES, help="find BKT and ATS with the nearest ZPR below")
    add("--cost", type=Path, help="of benchmarks/epoch.py --json, to predict minutes and memory")
    add("--recommend", action="store_true", help="name the cheapest batching that mixes enough")
    add("--min-novelty", type=share, help="--recommend: the least allowed, 0 to 1")
    shown = "--recommend: the most allowed, in 10^9 bytes"
    add("--max-memory", type=positive, default=math.inf, help=shown)
    args = parser.parse_args(arguments)
    if args.max_memory < math.inf and args.cost is None:
        parser.error(f"--max-memory needs --cost COSTS.json; {HOW_TO_MEASURE}")
    if (args.min_novelty is not None or args.max_memory < math.inf) and not args.recommend:
        parser.error("--min-novelty and --max-memory are limits of --recommend; add it")
    return args


class Corpus:
    """The clips, or draws of them, with settings, costs, and how much of them is planned.

    Raises:
        UserError, BatchingError: for what is wrong with files and options.
    """

    def __init__(self, args: argparse.Namespace):
        self.args, self.hparams = args, create_hparams(args.hparams, create_hparams(PAPER_SETTING))
        h = self.hparams
        refuse_no_folder(args.out, "-o")
        self.costs = read_costs(args.cost, h) if args.cost else None
        self.clips = clips = read_lengths(args.lengths, h)
        plan_epoch(clips.frames, h.batch_size, "random", **self.options(dynamic=True))  # all fit
        if args.max_memory < math.inf and self.costs and not self.costs.knows_memory:
            raise UserError(f"--max-memory: no memory was measured for {args.cost}")
        draws = [clips]
        if args.clips:
            if args.clips > len(clips):
                raise UserError(f"--clips {args.clips}: {args.lengths} has {len(clips)} clips")
            orders = (np.random.default_rng(n).permutation(len(clips)) for n in range(args.draws))
            draws = [clips.take(order[: args.clips]) for order in orders]
            self.clips = clips = draws[0]
        self.surveyors = [
            Surveyor(draw.frames, seed=n, frames_per_step=h.n_frames_per_step, costs=self.costs)
            for n, draw in enumerate(draws)
        ]
        self.is_large = len(clips) >= LARGE_CORPUS
        usual = max(5, min(40, PLANS_OF_SMALL_CORPORA // len(clips)))
        self.epochs = args.epochs or (3 if self.is_large else usual)
        # Epochs of the sweeps and the searches, and values of a parameter a doubling.
        self.sweep_epochs, self.search_epochs, self.per_octave = (
            (1, 1, 1) if self.is_large else ((self.epochs + 1) // 2, self.epochs, 2)
        )
        self.frame_seconds = h.hop_length / h.sampling_rate
        frames = {f"{s:g} s": s / self.frame_seconds for s in sorted(args.seconds)}
        longest = self.surveyors[0].longest
        # By frames, the --seconds that hold the longest clip.
        self.capacities = {
            int(min(n, MOST_COUNTED)): name for name, n in frames.items() if n >= longest
        }
        self.refused = [name for name, n in frames.items() if n < longest]

    def options(self, dynamic: bool) -> dict:
        """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
        options = {name: getattr(self.hparams, name) for name in DEFAULTS}
        capacity = self.hparams.batch_capacity if dynamic else None
        return options | {"dynamic_batch_size": dynamic, "batch_capacity": capacity}

    def heading(self) -> list[str]:
        """What is compared, and what its settings mean for it."""
        h, clips, frames = self.hparams, self.clips, self.clips.frames
        draws = f", {self.args.draws} random draws: their means in the first table, else the first"
        lines = [
            f"{self.args.lengths}{draws if self.args.clips else ''}",
            f"{len(clips):,} clips, {frames.sum() * self.frame_seconds / 3600:.2f} hours, "
            f"{frames.min()} to {frames.max()} frames of {1000 * self.frame_seconds:.2f} ms "
            f"(hop {h.hop_length} samples)",
            f"batch size {h.batch_size}; DBS: dynamic sizes, up to "
            f"{h.batch_capacity or h.batch_size * frames.max():,} frames a batch; "
            f"means over {self.epochs} epochs",
        ]
        if self.costs is not None:
            lines.append(f"Costs: {self.costs.description}")
            if differing := self.costs.differing(h):
                lines.append("warning: measured with other settings: " + "; ".join(differing))
        if self.refused:
            longest = int(frames.argmax())
            lines.append(
                f"Refused: batches of {', '.join(self.refused)} ({clips.ids[longest]} alone has "
                f"{frames[longest] * self.frame_seconds:.2f} s, and speech for synthesis cannot be "
                "cut)."
            )
        batches = -(-len(clips) // h.batch_size)
        hint = "; --match-zpr semi_sorted finds values that suit these clips"
        if h.bucket_size >= len(clips) > 1:
            name = f"bucket_size={h.bucket_size}"
            lines.append(f"{name}: all clips in one bucket, so BKT is RAND{hint}")
        if len(clips) >= h.num_bins >= batches > 1:
            lines.append(f"num_bins={h.num_bins} for {batches} batches, so ATS is RAND{hint}")
        return lines


def survey_all(corpus: Corpus) -> tuple[pd.DataFrame, list[str]]:
    """The surveys, a row for each by the batching's name, with what it is for (`varied`); and which
    strategies are impossible, and why.

    The comparison is over all draws of clips; the sweeps take the first.
    """
    size = corpus.hparams.batch_size
    jobs: list[tuple[str, dict]] = []
    for strategy in STRATEGIES:
        named = {"strategy": strategy, "batch_size": size}
        fixed, dynamic = (named | corpus.options(is_dynamic) for is_dynamic in (False, True))
        in_use = [fixed.get(PARAMETERS.get(strategy, ""))]
        values = parameter_values(strategy, len(corpus.clips), size, corpus.per_octave, in_use)
        for options in (fixed, dynamic):
            jobs.append(("comparison", options))
            jobs += [("parameter", options | {"value": value}) for value in values]
        jobs += [("batch_size", fixed | {"batch_size": size}) for size in BATCH_SIZES]
        jobs += [("capacity", dynamic | {"batch_capacity": c}) for c in corpus.capacities]
    jobs.sort(key=lambda job: VARIED.index(job[0]))

    def survey(job: tuple[str, dict]) -> dict | str | None:
        varied, options = job
        surveyors, epochs = corpus.surveyors[:1], corpus.sweep_epochs
        if varied == "comparison":
            surveyors, epochs = corpus.surveyors, corpus.epochs
        name = batching_name(options["strategy"], options["dynamic_batch_size"], False)
        try:
            found = mean_survey([one.survey(**options, epochs=epochs) for one in surveyors])
        except BatchingError as error:  # a corpus too small for the parameter
            return f"{name}: not possible ({error})" if varied == "comparison" else None
        size = corpus.capacities.get(options["batch_capacity"], options["batch_size"])
        return {"batching": name, "varied": varied, "size": size, **asdict(found)}

    found = in_threads("surveying", survey, jobs)
    rows = pd.DataFrame([one for one in found if isinstance(one, dict)]).set_index("batching")
    return rows, [one for one in found if isinstance(one, str)]


def largest_errors(rows: pd.DataFrame) -> dict:
    """How far any of these means may lie from the true one, in %: four times the largest standard
    error, for few epochs know theirs but roughly."""
    return (400 * pd.DataFrame(list(rows.standard_errors)).max()).dropna().to_dict()


def errors_in_words(rows: pd.DataFrame) -> str:
    words = {"average_batch_length": "ABL {:.2g} %", "decoder_steps": "decoder steps {:.2g} %"}
    words |= {"zero_padding_rate": "ZPR {:.2g} points", "novelty": "novelty {:.2g} points"}
    return ", ".join(words[name].format(e) for name, e in largest_errors(rows).items())


def numbers(column: pd.Series, digits: int) -> pd.Series:
    return column.map(lambda v: "–" if pd.isna(v) else f"{v:,.{digits}f}")


def comparison_table(rows: pd.DataFrame, corpus: Corpus) -> pd.DataFrame:
    """One row per batching; beside the paper's figures where clips and settings are the paper's."""
    cells = {}
    for title, (name, factor, digits) in COLUMNS.items():
        if title not in ("min", "GB") or rows[name].notna().any():
            cells[title] = numbers(rows[name] * factor, digits)
    names = {"batch_size", "hop_time", "batch_capacity"} | DEFAULTS.keys() & published.SETTINGS
    as_published = all(getattr(corpus.hparams, n) == published.SETTINGS[n] for n in names)
    if as_published and len(corpus.clips) == published.TRAINING_CLIPS:
        table = {name.removesuffix("-BR"): row._asdict() for name, row in published.TABLE_2.items()}
        theirs = pd.DataFrame(table).T.reindex(rows.index)
        cells["ZPR % published"] = numbers(theirs.zero_padding_rate, 2)
        cells["ABL published"] = numbers(theirs.average_batch_length, 1)
    return pd.DataFrame(cells)


def make_sections(rows: pd.DataFrame, corpus: Corpus) -> list[str]:
    """Everything that is shown as a table, each under its title, as Markdown."""
    compared = comparison_table(rows[rows.varied == "comparison"], corpus)
    sections = {"Every strategy, fixed and dynamic sizes": compared}
    titles = {"batch_size": "Fixed sizes of 1 to 8 clips", "capacity": "Dynamic sizes in seconds"}
    rates = rows.assign(rate=numbers(100 * rows.padded_to_original_rate, 2))
    for varied, title in titles.items():
        shown = rates[rates.varied == varied].set_index("size", append=True).rate
        if len(shown):
            unit = "padding in % of the corpus, as in Gonzalez et al., Table 1"
            sections[f"{title}: {unit}"] = shown.unstack(sort=False).fillna("–")
    texts = []
    for title, table in sections.items():
        cells = table.reset_index()
        text = markdown_table(list(map(str, cells.columns)), cells.to_numpy().tolist())
        texts.append(f"## {title}\n\n{text}")
    return [f"{texts[0]}\n\n{LEGEND}", *texts[1:]]


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
    """The lines that --recommend prints; they say so where no batching keeps the limits."""
    args, h, surveyor = corpus.args, corpus.hparams, corpus.surveyors[0]
    size, epochs = h.batch_size, corpus.search_epochs
    novelty, least = args.min_novelty, f"{args.min_novelty}, as asked"
    if novelty is None:
        paper = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=epochs)
        novelty = float(np.nan_to_num(paper.novelty))
        least = f"{novelty:.4f}, that of the paper's SSB-DBS here (--min-novelty sets it)"
    limits = Limits(novelty, 1e9 * args.max_memory)
    tried = recommend(surveyor, size, limits, batch_capacity=h.batch_capacity, epochs=epochs)
    largest = corpus.costs.largest_frames if corpus.costs else math.inf
    lines = advice(tried, limits, least, largest)
    for best in limits.ranked(tried)[:1]:
        lines += [
            f"to train with your own settings, add to them: {batching_overrides(best)}",
            f"to train with those compared here, batch_size={size} and frames of "
            f"{1000 * corpus.frame_seconds:.2f} ms, from audio files:",
            f"train.py --hparams {overrides(f'{PAPER_SETTING},{args.hparams}', h, best)}",
        ]
    return lines


def equal_padding(strategy: str, corpus: Corpus, compared: pd.DataFrame) -> list[str]:
    """Bucket size and bins with the ZPR nearest below the strategy's, as Ge et al. chose them."""
    name = REGISTRY[strategy].short_name
    if name not in compared.index:
        return [f"--match-zpr {strategy}: not possible on this corpus"]
    size, target = corpus.hparams.batch_size, compared.zero_padding_rate[name]
    lines = [f"Nearest ZPR below {name}'s, {100 * target:.2f} %:"]
    for other in ("bucket", "alternated_sort"):
        found = match_zero_padding(corpus.surveyors, size, other, target, corpus.search_epochs)
        text = f"={found[0]}: {100 * found[1]:.2f} %" if found else ": none pads so little"
        lines.append(f"  {REGISTRY[other].short_name}, {PARAMETERS[other]}{text}")
    return lines


def write_all(report: str, rows: pd.DataFrame, corpus: Corpus) -> list[Path]:
    """The report with its pictures, and the surveys as CSV, into --out."""
    out, size, options = corpus.args.out, corpus.hparams.batch_size, corpus.options(dynamic=False)
    surveyor, sweep = corpus.surveyors[0], (corpus.sweep_epochs, corpus.per_octave)
    is_compared = rows.varied == "comparison"
    curves = rows[rows.varied == "parameter"].reset_index(drop=True)
    curves["in_use"] = curves.parameter.map(options, na_action="ignore") == curves.value
    frames = surveyor.lengths
    drawn = {
        "epoch_excerpt": figures.draw_epoch_excerpt(frames, size),
        "padding_against_randomness": figures.draw_padding_against_randomness(curves),
        "parameter_sweeps": figures.draw_parameter_sweeps(surveyor, size, options, *sweep),
        "length_against_position": figures.draw_length_against_position(frames, size, **options),
    }
    pictures = [
        p for name, figure in drawn.items() for p in figures.write_figure(figure, out / name)
    ]
    command = f"{datetime.date.today()}: `python {shlex.join(sys.argv)}`"
    shown = [f"![{path.stem}]({path.name})" for path in pictures if path.suffix == ".svg"]
    columns = [*Survey.__annotations__, *PaddingStats.__annotations__]
    columns.remove("standard_errors")
    texts = {
        "comparison.md": "\n\n".join(["# Batchings compared", command, report, *shown]) + "\n",
        "comparison.csv": rows[is_compared][columns].to_csv(index=False),
        "sweeps.csv": rows[~is_compared][["varied", *columns]].to_csv(index=False),
    }
    for name, text in texts.items():
        write = functools.partial(Path.write_text, data=text, encoding="utf-8")
        write_atomically(out / name, write)
    return [*(out / name for name in texts), *pictures]


def main(arguments: list[str] | None = None) -> None:
    began, args = time.monotonic(), parse(arguments)
    try:
        corpus = Corpus(args)
        args.out.mkdir(parents=True, exist_ok=True)
    except (UserError, BatchingError, OSError) as error:
        sys.exit(f"compare_batching: {error}")
    rows, impossible = survey_all(corpus)
    compared = rows[rows.varied == "comparison"]
    lines = [*corpus.heading(), *impossible]
    lines.append(f"these means lie within 4 standard errors: {errors_in_words(compared)}")
    if corpus.is_large:
        within = errors_in_words(rows[rows.varied.isin(["parameter", "batch_size"])])
        lines.append(
            f"{LARGE_CORPUS:,} clips or more: the sweeps, their pictures and --recommend plan 1 "
            f"epoch a batching, at half as many values of a parameter; within {within}"
        )
    closing = equal_padding(args.match_zpr, corpus, compared) if args.match_zpr else []
    closing += recommended(corpus) if args.recommend else []
    parts = ["\n".join(f"- {line}" for line in lines), *make_sections(rows, corpus)]
    if closing:
        parts.append("\n".join(["## Found", "", "```", *closing, "```"]))
    report = "\n\n".join(parts)
    print(report)
    try:
        written = write_all(report, rows, corpus)
    except OSError as error:
        sys.exit(
            f"compare_batching: {args.out} cannot be written: {error}; free some space, or choose "
            "another folder with -o"
        )
    print("\nwritten:", *written, sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
