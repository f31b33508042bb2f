"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt --recommend
    python scripts/compare_batching.py lengths.csv --clips 10480          # as Ge et al. count
    python scripts/compare_batching.py filelists/ljspeech/train.txt --cost COSTS.json --recommend
    python scripts/compare_batching.py --strategies                       # list all strategies

Reads a filelist (path|text|seconds), a CSV of lengths (header id,samples or id,frames), or the
table NAME.clips beside a filelist (fastest). Compares every strategy with fixed and dynamic batch
sizes: padding, steps, how well it mixes the clips. Writes tables and pictures; --recommend names
the cheapest batching that mixes enough, as overrides for train.py. benchmarks/epoch.py --json
measures COSTS.json.

Everything is computed from plans of the whole corpus: padding does not scale with its size. On two
cores 10,000 clips take some 10 s, a million less than 2 minutes, with --recommend. From 100,000
clips on fewer epochs are planned, since one is a large sample by itself.
"""

import project_root

import argparse
import datetime
import functools
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import figures, published
from analysis.arguments import at_least_one, make_parser, positive, positive_list, share
from analysis.lengths import read_lengths
from analysis.recommendation import (
    Limits,
    batching_overrides,
    described,
    overrides,
    reasons,
    recommend,
    unmet,
)
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
from analysis.tables import markdown_table
from batching import MOST_COUNTED, REGISTRY, STRATEGIES, BatchingError, batching_name, plan_epoch
from errors import UserError
from files import refuse_no_folder, write_atomically
from hparams import HParams, create_hparams
from progress import progress_bar

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
BATCH_SIZES = range(1, 9)  # as in Gonzalez et al., Table 1
PLANS_OF_SMALL_CORPORA = 50_000  # clips to plan in all, so that their means are steady too
LARGE_CORPUS = 100_000  # clips from which an epoch is steady enough for the sweeps
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


# ---------------------------------------------------------------------------- the input


class PrintStrategies(argparse.Action):
    """Prints the table of docs/batching.md, as --help prints the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_):
        print(strategy_table())
        parser.exit()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    shown = "a filelist, its NAME.clips, or a CSV of id,samples or id,frames"
    add("lengths", type=Path, help=shown)
    add("--strategies", action=PrintStrategies, nargs=0, help="print all strategies and exit")
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


def common_options(hparams: HParams, dynamic: bool) -> dict:
    """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
    options = {name: getattr(hparams, name) for name in DEFAULTS}
    capacity = {"batch_capacity": hparams.batch_capacity} if dynamic else {}
    return options | {"dynamic_batch_size": dynamic} | capacity


class Corpus:
    """The clips, or draws of them, with settings, costs, and how much of them is planned.

    Raises:
        UserError, BatchingError: for what is wrong with files and options.
    """

    def __init__(self, args: argparse.Namespace):
        self.hparams = h = create_hparams(args.hparams, base=create_hparams(PAPER_SETTING))
        refuse_no_folder(args.out, "-o")
        self.costs = read_costs(args.cost, h) if args.cost else None
        clips = read_lengths(args.lengths, h)
        plan_epoch(clips.frames, h.batch_size, "random", **common_options(h, True))  # all fit
        if args.max_memory < math.inf and self.costs and not self.costs.knows_memory:
            raise UserError(f"--max-memory: no memory was measured for {args.cost}")
        self.draws = [clips]
        if args.clips:
            if args.clips > len(clips):
                raise UserError(f"--clips {args.clips}: {args.lengths} has {len(clips)} clips")
            orders = (np.random.default_rng(n).permutation(len(clips)) for n in range(args.draws))
            self.draws = [clips.take(order[: args.clips]) for order in orders]
        self.clips = clips = self.draws[0]
        self.surveyors = [
            Surveyor(draw.frames, seed=n, frames_per_step=h.n_frames_per_step, costs=self.costs)
            for n, draw in enumerate(self.draws)
        ]
        self.is_large = len(clips) >= LARGE_CORPUS
        usual = max(5, min(40, PLANS_OF_SMALL_CORPORA // len(clips)))
        self.epochs = args.epochs or (3 if self.is_large else usual)
        # Epochs of the sweeps and the searches, and values of a parameter a doubling.
        self.sweep_epochs, self.search_epochs, self.per_octave = (
            (1, 1, 1) if self.is_large else ((self.epochs + 1) // 2, self.epochs, 2)
        )
        self.frame_seconds = h.hop_length / h.sampling_rate
        in_frames = {f"{s:g} s": s / self.frame_seconds for s in sorted(args.seconds)}
        longest = self.surveyors[0].longest
        self.capacities = {
            int(min(frames, MOST_COUNTED)): name
            for name, frames in in_frames.items()
            if frames >= longest
        }
        self.refused = [name for name, frames in in_frames.items() if frames < longest]

    def heading(self, args: argparse.Namespace) -> list[str]:
        """What is compared, and what its settings mean for it."""
        h, clips, frames = self.hparams, self.clips, self.clips.frames
        shown = f", {args.draws} random draws: their means in the first table, else the first draw"
        capacity = h.batch_capacity or h.batch_size * frames.max()
        lines = [
            f"{args.lengths}{shown if args.clips else ''}",
            f"{len(clips):,} clip{'s' if len(clips) > 1 else ''}, "
            f"{frames.sum() * self.frame_seconds / 3600:.2f} hours, {frames.min()} to "
            f"{frames.max()} frames of {1000 * self.frame_seconds:.2f} ms (hop {h.hop_length} "
            "samples)",
            f"batch size {h.batch_size}; DBS: dynamic sizes, up to {capacity:,} frames a batch; "
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


# ---------------------------------------------------------------------------- surveying


def batchings(corpus: Corpus) -> list[tuple[str, dict]]:
    """Every batching to survey: what it is for, and the arguments of `Surveyor.survey`."""
    h = corpus.hparams
    found: list[tuple[str, dict]] = []
    for strategy in STRATEGIES:
        named = {"strategy": strategy, "batch_size": h.batch_size}
        fixed, dynamic = (named | common_options(h, is_dynamic) for is_dynamic in (False, True))
        include = [getattr(h, PARAMETERS[strategy])] if strategy in PARAMETERS else []
        values = parameter_values(
            strategy, len(corpus.clips), h.batch_size, corpus.per_octave, include
        )
        for options in (fixed, dynamic):
            found.append(("comparison", options))
            found += [("parameter", options | {"value": value}) for value in values]
        found += [("batch_size", fixed | {"batch_size": size}) for size in BATCH_SIZES]
        found += [("capacity", dynamic | {"batch_capacity": c}) for c in corpus.capacities]
    return found


def survey_all(corpus: Corpus) -> tuple[dict[str, list[Survey]], list[str]]:
    """The surveys by what they are for, and which strategies are impossible, and why.

    The comparison is over all draws of clips; the sweeps take the first.
    """

    def survey(job: tuple[str, dict]) -> Survey | BatchingError:
        table, options = job
        try:
            if table != "comparison":
                return corpus.surveyors[0].survey(**options, epochs=corpus.sweep_epochs)
            draws = [s.survey(**options, epochs=corpus.epochs) for s in corpus.surveyors]
            return mean_survey(draws)
        except BatchingError as error:  # a corpus too small for the parameter
            return error

    jobs = batchings(corpus)
    tables: dict[str, list[Survey]] = {table: [] for table, _ in jobs}
    impossible = []
    found = in_threads(survey, jobs)
    bar = progress_bar("surveying", len(jobs), " batchings", iterable=found)
    for (table, options), result in zip(jobs, bar, strict=True):
        if isinstance(result, Survey):
            tables[table].append(result)
        elif table == "comparison":
            name = batching_name(options["strategy"], options["dynamic_batch_size"], False)
            impossible.append(f"{name}: not possible ({result})")
    return tables, impossible


def largest_errors(surveys: Sequence[Survey]) -> dict:
    """How far the mean of any of these surveys may lie from that of very many epochs, in %: four
    times the largest standard error, for few epochs know theirs but roughly."""
    return (400 * pd.DataFrame([s.standard_errors for s in surveys]).max()).dropna().to_dict()


def errors_in_words(surveys: Sequence[Survey]) -> str:
    words = {"average_batch_length": "ABL {:.2g} %", "decoder_steps": "decoder steps {:.2g} %"}
    words |= {"zero_padding_rate": "ZPR {:.2g} points", "novelty": "novelty {:.2g} points"}
    return ", ".join(words[name].format(e) for name, e in largest_errors(surveys).items())


# ---------------------------------------------------------------------------- tables


def frame_of(surveys: Sequence[Survey]) -> pd.DataFrame:
    """A row for each survey, with the batching's name as its index."""
    names = [batching_name(s.strategy, s.dynamic_batch_size, False) for s in surveys]
    rows = pd.DataFrame([asdict(s) for s in surveys], index=pd.Index(names, name="batching"))
    settings = ["strategy", "parameter", "value", "batch_size"]
    settings += ["dynamic_batch_size", "batch_capacity"]
    return rows[[*settings, *rows.columns.drop([*settings, "standard_errors"])]]


def numbers(column: pd.Series, digits: int, sign: str = "") -> pd.Series:
    return column.map(lambda v: "–" if pd.isna(v) else f"{v:{sign},.{digits}f}")


def comparison_table(rows: pd.DataFrame) -> pd.DataFrame:
    cells = {}
    for title, (name, factor, digits) in COLUMNS.items():
        if title not in ("min", "GB") or rows[name].notna().any():
            cells[title] = numbers(rows[name] * factor, digits)
    return pd.DataFrame(cells)


def published_table(ours: pd.DataFrame, hparams: HParams, clips: int) -> pd.DataFrame | None:
    """Ours beside the paper's, where clips and settings are the paper's; else None."""
    names = ["batch_size", "hop_time", "batch_capacity"]
    names += ["local_randomization_factor", "bucket_size", "num_bins"]
    as_published = all(getattr(hparams, name) == published.SETTINGS[name] for name in names)
    if clips != published.TRAINING_CLIPS or not as_published:
        return None
    rows = {name.removesuffix("-BR"): row._asdict() for name, row in published.TABLE_2.items()}
    theirs = pd.DataFrame(rows).T
    ours, cells = ours[ours.index.isin(theirs.index)], {}
    for title in ("ZPR %", "ABL"):
        name, factor, _ = COLUMNS[title]
        found, wanted = factor * ours[name], theirs[name].reindex(ours.index)
        cells[f"{title} published"], cells[f"{title} ours"] = numbers(wanted, 2), numbers(found, 2)
        cells[f"{title} difference"] = numbers(found - wanted, 2, "+")
    return pd.DataFrame(cells)


def padding_by_size(rows: pd.DataFrame, sizes: pd.Series) -> pd.DataFrame:
    """Padded over original (Gonzalez et al.) of every strategy at every batch size or capacity."""
    rates = numbers(100 * rows.padded_to_original_rate, 2)
    table = pd.DataFrame({"size": sizes, "rate": rates}).set_index("size", append=True).rate
    return table.unstack(sort=False).fillna("–")


def as_markdown(table: pd.DataFrame) -> str:
    table = table.reset_index()
    return markdown_table(list(map(str, table.columns)), table.to_numpy().tolist())


def make_sections(rows: dict[str, pd.DataFrame], corpus: Corpus) -> dict[str, str]:
    """By title, everything that is shown as a table, as Markdown."""
    compared, fixed = rows["comparison"], rows["batch_size"]
    first = f"{as_markdown(comparison_table(compared))}\n\n{LEGEND}"
    sections = {"Every strategy, fixed and dynamic sizes": first}
    beside = published_table(compared, corpus.hparams, len(corpus.clips))
    if beside is not None:
        title = "Beside the published figures (LJSpeech, Ge et al., Table 2)"
        sections[title] = as_markdown(beside)
    unit = "padding in % of the corpus, as in Gonzalez et al., Table 1"
    table = padding_by_size(fixed, fixed.batch_size)
    sections[f"Fixed sizes of 1 to 8 clips: {unit}"] = as_markdown(table)
    if corpus.capacities:
        default = corpus.hparams.batch_size * corpus.surveyors[0].longest
        sizes = rows["capacity"].batch_capacity.fillna(default).map(corpus.capacities)
        table = padding_by_size(rows["capacity"], sizes)
        sections[f"Dynamic sizes, capacity in seconds: {unit}"] = as_markdown(table)
    return sections


def strategy_table() -> str:
    """Markdown: every strategy, its parameter with the default, and what larger values do."""
    rows = []
    for s in REGISTRY.values():
        parameter = f"`{s.parameter.name}={DEFAULTS[s.parameter.name]}`" if s.parameter else ""
        larger = s.parameter.larger_values if s.parameter else ""
        rows.append([f"`{s.name}`", s.short_name, s.source, s.meaning, parameter, larger])
    titles = ["`batching_strategy`", "short", "source", "the clips' order", "parameter"]
    return markdown_table([*titles, "larger values"], rows, labels=6)


# ---------------------------------------------------------------------------- searches


def recommended(args: argparse.Namespace, corpus: Corpus, surveys: Sequence[Survey]) -> list[str]:
    """The lines that --recommend prints; they say so where no batching keeps the limits."""
    h, surveyor, epochs = corpus.hparams, corpus.surveyors[0], corpus.search_epochs
    size, limits = h.batch_size, Limits(args.min_novelty, 1e9 * args.max_memory)
    least = f"{args.min_novelty}, as asked"
    if args.min_novelty is None:
        paper = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=epochs)
        limits = limits._replace(min_novelty=float(np.nan_to_num(paper.novelty)))
        least = f"{paper.novelty:.4f}, that of the paper's SSB-DBS here (--min-novelty sets it)"
    tried = recommend(
        surveyor,
        size,
        limits,
        batch_capacity=h.batch_capacity,
        epochs=epochs,
        progress=lambda found, n: progress_bar("searching", n, " batchings", iterable=found),
    )
    order = limits.ranked(tried)
    if not order:
        return [f"Nothing to recommend: {unmet(tried, limits)}"]
    best, costs = order[0], corpus.costs
    lines = [f"Recommended: {described(best)}", *reasons(order, surveys, least)]
    if costs and best.largest_batch_frames > 1.05 * costs.largest_frames:
        lines.append(
            f"warning: steps were measured up to {costs.largest_frames:,} frames a batch; the "
            "costs of larger ones are extrapolated"
        )
    usual = next(found for found in surveys if found.strategy == "random")
    if best.num_batches < 0.5 * usual.num_batches:
        lines.append(
            f"note: {best.num_batches:,.0f} training steps an epoch, where RAND makes "
            f"{usual.num_batches:,.0f}: an epoch is shorter but may teach less"
        )
    compared = overrides(f"{PAPER_SETTING},{args.hparams}", h, best)
    return [
        *lines,
        f"to train with your own settings, add to them: {batching_overrides(best)}",
        f"to train with those compared here, batch_size={size} and frames of "
        f"{1000 * corpus.frame_seconds:.2f} ms, from audio files:",
        f"train.py --hparams {compared}",
    ]


def equal_padding(strategy: str, corpus: Corpus, surveys: Sequence[Survey]) -> list[str]:
    """Bucket size and bins with the ZPR nearest below the strategy's, as Ge et al. chose them."""
    wanted = [s for s in surveys if s.strategy == strategy and not s.dynamic_batch_size]
    if not wanted:
        return [f"--match-zpr {strategy}: not possible on this corpus"]
    size, target = wanted[0].batch_size, wanted[0].zero_padding_rate
    frames, epochs = [draw.frames for draw in corpus.draws], corpus.search_epochs
    lines = [f"Nearest ZPR below {batching_name(strategy, False, False)}'s, {100 * target:.2f} %:"]
    for other in ("bucket", "alternated_sort"):
        found = match_zero_padding(frames, size, other, target, epochs=epochs)
        text = f"={found[0]}: {100 * found[1]:.2f} %" if found else ": none pads so little"
        lines.append(f"  {REGISTRY[other].short_name}, {PARAMETERS[other]}{text}")
    return lines


# ---------------------------------------------------------------------------- the program


def draw_all(out: Path, corpus: Corpus, curves: pd.DataFrame) -> list[Path]:
    h, surveyor = corpus.hparams, corpus.surveyors[0]
    frames, size, options = surveyor.lengths, h.batch_size, common_options(h, False)
    chosen = curves.parameter.map(lambda name: getattr(h, name), na_action="ignore")
    curves = curves.assign(in_use=chosen == curves.value)
    epochs, per_octave = corpus.sweep_epochs, corpus.per_octave
    drawn = {
        "epoch_excerpt": figures.draw_epoch_excerpt(frames, size),
        "padding_against_randomness": figures.draw_padding_against_randomness(curves),
        "parameter_sweeps": figures.draw_parameter_sweeps(
            surveyor, size, options, epochs=epochs, per_octave=per_octave
        ),
        "length_against_position": figures.draw_length_against_position(frames, size, **options),
    }
    return [p for name, figure in drawn.items() for p in figures.write_figure(figure, out / name)]


def main(arguments: list[str] | None = None) -> None:
    began = time.monotonic()
    args = parse(arguments)
    try:
        corpus = Corpus(args)
        args.out.mkdir(parents=True, exist_ok=True)
    except (UserError, BatchingError, OSError) as error:
        sys.exit(f"compare_batching: {error}")
    tables, impossible = survey_all(corpus)
    compared = tables["comparison"]
    lines = [*corpus.heading(args), *impossible]
    lines.append(f"these means lie within 4 standard errors: {errors_in_words(compared)}")
    if corpus.is_large:
        swept = [*tables["parameter"], *tables["batch_size"]]
        lines.append(
            f"{LARGE_CORPUS:,} clips or more: the sweeps, their pictures and --recommend plan 1 "
            "epoch a batching, at half as many values of a parameter; within "
            f"{errors_in_words(swept)}"
        )
    closing = []
    if args.match_zpr:
        closing += equal_padding(args.match_zpr, corpus, compared)
    if args.recommend:
        closing += recommended(args, corpus, compared)
    rows = {name: frame_of(found) for name, found in tables.items() if found}
    parts = ["\n".join(f"- {line}" for line in lines)]
    parts += [f"## {title}\n\n{table}" for title, table in make_sections(rows, corpus).items()]
    if closing:
        parts.append("\n".join(["## Found", "", "```", *closing, "```"]))
    report = "\n\n".join(parts)
    print(report)
    try:
        pictures = draw_all(args.out, corpus, rows["parameter"].reset_index(drop=True))
        shown = [f"![{path.stem}]({path.name})" for path in pictures if path.suffix == ".svg"]
        command = f"{datetime.date.today()}: `python {shlex.join(sys.argv)}`"
        sweeps = pd.concat(
            {name: rows[name] for name in rows if name != "comparison"}, names=["varied"]
        )
        texts = {
            "comparison.md": "\n\n".join(["# Batchings compared", command, report, *shown]) + "\n",
            "comparison.csv": rows["comparison"].to_csv(index=False),
            "sweeps.csv": sweeps.reset_index("varied").to_csv(index=False),
        }
        for name, text in texts.items():
            write = functools.partial(Path.write_text, data=text, encoding="utf-8")
            write_atomically(args.out / name, write)
    except OSError as error:
        sys.exit(
            f"compare_batching: {args.out} cannot be written: {error}; free some space, or choose "
            "another folder with -o"
        )
    print("\nwritten:", *(args.out / name for name in texts), *pictures, sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
