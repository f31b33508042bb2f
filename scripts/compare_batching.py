"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt --recommend
    python scripts/compare_batching.py lengths.csv --clips 10480          # as Ge et al. count
    python scripts/compare_batching.py filelists/ljspeech/train.txt --cost COSTS.json --recommend
    python scripts/compare_batching.py --strategies                       # what there is to compare

Reads a filelist (path|text|seconds; the sound files are not opened), a CSV of lengths (header
id,samples or id,frames), or the table that preparing or training left beside a filelist
(NAME.clips, soonest read; its frames are those of training). Compares every strategy with fixed and
dynamic batch sizes: padding, steps, and how well it mixes the clips. Writes tables and pictures;
--recommend names the cheapest batching that mixes enough, as overrides for train.py.
benchmarks/step_cost.py makes COSTS.json.

Everything is computed from plans of the whole corpus, for padding does not scale with its size:
a sorted corpus of a million clips pads almost nothing. So time grows with the number of clips: on
two cores some 10 s for 10,000 clips, and less than 2 minutes for a million, with --recommend. From
100,000 clips on fewer epochs are planned, for one is a large sample by itself. The standard errors
of the means are printed.
"""

import project_root

import argparse
import csv
import datetime
import io
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis import figures, published
from analysis.arguments import at_least_one, make_parser, positive, positive_list, share
from analysis.lengths import ClipLengths, count_symbols, read_lengths
from analysis.ljspeech import SYMBOLS_PER_SECOND
from analysis.recommendation import (
    as_hparams,
    batching_overrides,
    described,
    extrapolation,
    overrides,
    reasons,
    recommend,
    what_is_not_met,
)
from analysis.step_costs import StepCosts, read_costs
from analysis.strategies import PARAMETERS, batching_name, strategy_table
from analysis.survey import (
    Survey,
    Surveyor,
    in_threads,
    match_zero_padding,
    mean_survey,
    parameter_values,
    survey_row,
)
from analysis.tables import markdown_table, text_table
from batching import REGISTRY, STRATEGIES, BatchingError
from errors import UserError
from files import refuse_no_folder, write_atomically
from hparams import HParams, create_hparams
from progress import progress_bar

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
BATCH_SIZES = range(1, 9)  # as in Gonzalez et al., Table 1
PLANS_OF_SMALL_CORPORA = 50_000  # clips to plan in all, so that their means are steady too
RELATIVE_ERRORS = ("average_batch_length", "decoder_steps")  # shown in % of the mean
LARGE_CORPUS = 100_000  # clips from which an epoch is steady enough for the sweeps
HOW_TO_MEASURE = "measure them with: python benchmarks/step_cost.py -o COSTS.json"


# ---------------------------------------------------------------------------- the corpus


def with_symbols(clips: ClipLengths, hparams: HParams) -> tuple[ClipLengths, str]:
    """The clips with their numbers of symbols, and a sentence where they are a guess."""
    if clips.symbols is not None:
        return clips, ""
    if clips.texts is not None:
        return replace(clips, symbols=count_symbols(clips.texts, hparams)), ""
    seconds = clips.frames * hparams.hop_length / hparams.sampling_rate
    note = (
        f"A CSV of lengths has no texts: {SYMBOLS_PER_SECOND} symbols a second are assumed, "
        "LJSpeech's mean."
    )
    return replace(clips, symbols=np.ceil(SYMBOLS_PER_SECOND * seconds).astype(int)), note


def capacities_in_frames(
    seconds: Sequence[float], clips: ClipLengths, hparams: HParams
) -> tuple[dict[float, int], list[str]]:
    """(seconds -> frames for those that hold the longest clip, sentences about the others)."""
    longest = int(clips.frames.argmax())
    per_frame = hparams.hop_length / hparams.sampling_rate
    frames = {value: int(value / per_frame) for value in seconds}
    refused = [f"{value:g} s" for value in seconds if frames[value] < clips.frames[longest]]
    notes = []
    if refused:
        notes.append(
            f"Refused: batches of {', '.join(refused)} ({clips.ids[longest]} alone has "
            f"{clips.frames[longest] * per_frame:.2f} s, and speech for synthesis cannot be cut)."
        )
    return {s: count for s, count in frames.items() if count >= clips.frames[longest]}, notes


def same_as_random(hparams: HParams, clips: int) -> list[str]:
    """Sentences about parameters that make a strategy the same as RAND on so few clips."""
    batches = -(-clips // hparams.batch_size)
    notes = []
    if hparams.bucket_size >= clips > 1:
        notes.append(f"bucket_size={hparams.bucket_size}: all clips in one bucket, so BKT is RAND")
    if clips >= hparams.num_bins >= batches > 1:
        notes.append(f"num_bins={hparams.num_bins} for {batches} batches, so ATS is RAND")
    hint = "; --match-zpr semi_sorted finds values that suit these clips"
    return [note + hint for note in notes]


# ---------------------------------------------------------------------------- surveying


def common_options(hparams: HParams, dynamic: bool) -> dict:
    """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
    options = {name: getattr(hparams, name) for name in set(PARAMETERS.values())}
    options["dynamic_batch_size"] = dynamic
    if dynamic:
        options["batch_capacity"] = hparams.batch_capacity
    return options


class Effort(NamedTuple):
    """How much is planned: epochs a batching, and values of a parameter."""

    epochs: int  # of the comparison
    sweep_epochs: int  # of the tables and pictures with many batchings
    search_epochs: int  # of --recommend and --match-zpr
    per_octave: int  # values of a strategy's parameter a doubling

    @classmethod
    def fitting(cls, clips: int, epochs: int | None) -> "Effort":
        """For so many clips, with the epochs asked for, if any."""
        usual = epochs or max(5, min(40, PLANS_OF_SMALL_CORPORA // clips))
        if clips < LARGE_CORPUS:
            return cls(usual, (usual + 1) // 2, usual, 2)
        return cls(epochs or 3, 1, 1, 1)


def largest_errors(surveys: Sequence[Survey]) -> dict[str, float]:
    """How far the mean of any of these surveys may lie from that of very many epochs: four times
    the largest standard error, for few epochs know theirs but roughly. Relative where it says so
    in RELATIVE_ERRORS."""
    largest: dict[str, float] = {}
    for found in surveys:
        for name, error in found.standard_errors.items():
            scale = getattr(found, name) if name in RELATIVE_ERRORS else 1
            if not math.isnan(error):
                largest[name] = max(largest.get(name, 0.0), 4 * error / scale)
    return largest


def error_sentences(tables: dict[str, list[Survey]], effort: Effort) -> list[str]:
    """How far the figures lie from those of very many epochs."""

    def within(surveys: Sequence[Survey]) -> str:
        errors = {name: f"{100 * error:.2g}" for name, error in largest_errors(surveys).items()}
        shown = [
            f"ZPR {errors['zero_padding_rate']} points",
            f"ABL {errors['average_batch_length']} %",
            f"decoder steps {errors['decoder_steps']} %",
        ]
        if "novelty" in errors:
            shown.append(f"novelty {errors['novelty']} points")
        return ", ".join(shown)

    lines = [f"these means lie within 4 standard errors: {within(tables['comparison'])}"]
    if effort.per_octave == 1:
        sweeps = [found for name in tables if name != "comparison" for found in tables[name]]
        lines.append(
            f"{LARGE_CORPUS:,} clips or more: the sweeps, their pictures and --recommend plan "
            f"{effort.sweep_epochs} epoch a batching, at half as many values of a parameter; "
            f"within {within(sweeps)}"
        )
    return lines


class Job(NamedTuple):
    """A batching to survey, for one of the tables."""

    table: str
    strategy: str
    batch_size: int
    options: dict
    draws: int = 1


def plan_jobs(
    clips: int, hparams: HParams, draws: int, capacities: Sequence[int], per_octave: int
) -> list[Job]:
    """Every batching that goes into the tables and pictures."""
    jobs, size = [], hparams.batch_size
    for strategy in STRATEGIES:
        name = PARAMETERS.get(strategy)
        for dynamic in (False, True):
            options = common_options(hparams, dynamic)
            jobs.append(Job("comparison", strategy, size, options, draws))
            include = [options[name]] if name else []
            for value in parameter_values(strategy, clips, size, per_octave, include):
                varied = options | ({name: value} if name else {})
                jobs.append(Job("parameter", strategy, size, varied))
        options = common_options(hparams, dynamic=False)
        jobs += [Job("batch_size", strategy, few, options) for few in BATCH_SIZES]
        options = common_options(hparams, dynamic=True)
        jobs += [
            Job("capacity", strategy, size, options | {"batch_capacity": capacity})
            for capacity in capacities
        ]
    return jobs


def run_jobs(
    jobs: Sequence[Job], surveyors: Sequence[Surveyor], effort: Effort
) -> tuple[dict[str, list[Survey]], list[str]]:
    """The surveys of each table, and which batchings of the comparison are impossible, and why.

    `surveyors` are those of the draws of clips.
    """
    # One thread surveys all batchings that share the order of the clips, and finds it once.
    groups: dict[tuple, list[Job]] = {}
    for job in jobs:
        value = job.options.get(PARAMETERS.get(job.strategy))
        groups.setdefault((job.strategy, value), []).append(job)
    with progress_bar("surveying", len(jobs), " batchings") as bar:
        found = in_threads(lambda group: _run_group(group, surveyors, effort), groups.values())
        results = {}
        for group, surveys in zip(groups.values(), found, strict=True):
            results |= zip(map(id, group), surveys, strict=True)
            bar.update(len(group))
    tables: dict[str, list[Survey]] = {job.table: [] for job in jobs}
    impossible = []
    for job in jobs:
        result = results[id(job)]
        if isinstance(result, Survey):
            tables[job.table].append(result)
        elif job.table == "comparison":
            name = batching_name(job.strategy, job.options["dynamic_batch_size"], False)
            impossible.append(f"{name}: not possible ({result})")
    return tables, impossible


def _run_group(
    group: Sequence[Job], surveyors: Sequence[Surveyor], effort: Effort
) -> list[Survey | BatchingError]:
    orders = [{} for _ in surveyors]
    results = []
    for job in group:
        epochs = effort.epochs if job.table == "comparison" else effort.sweep_epochs
        try:
            draws = [
                surveyor.survey(
                    job.batch_size, job.strategy, epochs=epochs, known_orders=known, **job.options
                )
                for surveyor, known in zip(surveyors[: job.draws], orders, strict=False)
            ]
            results.append(mean_survey(draws))
        except BatchingError as error:  # a corpus too small for the parameter
            results.append(error)
    return results


# ---------------------------------------------------------------------------- tables


class TextTable(NamedTuple):
    titles: list[str]
    rows: list[list[str]]


def _fixed(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


COLUMNS: dict[str, Callable[[Survey], str]] = {
    "batching": lambda s: batching_name(s.strategy, s.dynamic_batch_size, False),
    "ZPR\n%": lambda s: _fixed(100 * s.zero_padding_rate, 2),
    "ABL": lambda s: _fixed(s.average_batch_length, 1),
    "batches": lambda s: _fixed(s.num_batches, 0),
    "decoder\nsteps": lambda s: _fixed(s.decoder_steps, 0),
    "pad.\n%": lambda s: _fixed(100 * s.padded_fraction, 2),
    "pad./\norig. %": lambda s: _fixed(100 * s.padded_to_original_rate, 2),
    "used\n%": lambda s: _fixed(100 * s.capacity_used, 1),
    "most\nclips": lambda s: f"{s.largest_batch_size:,}",
    "most\nframes": lambda s: f"{s.largest_batch_frames:,.0f}",
    "spread": lambda s: _fixed(s.spread, 3),
    "novelty": lambda s: _fixed(s.novelty, 4),
}
COST_COLUMNS: dict[str, Callable[[Survey], str]] = {
    "min/\nepoch": lambda s: _fixed(s.seconds_per_epoch / 60, 2),
    "peak\nGB": lambda s: _fixed(s.peak_bytes and s.peak_bytes / 1e9, 2),
}
LEGEND = """\
ZPR zero-padding rate; ABL average batch length in frames (both Ge et al.); decoder steps: those
that the decoder makes one by one, the sum of the batches' lengths over n_frames_per_step; pad.:
padding over all that is computed; pad./orig.: padding over the corpus (Gonzalez et al.); used: of
the capacity, batch size x longest clip or batch_capacity; most: in the largest batch; spread: how
far apart in length a batch's clips are, 0 as sorted, 1 as random; novelty: of the pairs of clips
that share a batch, the share that did not in the epoch before."""


def comparison_table(surveys: Sequence[Survey]) -> TextTable:
    columns = COLUMNS | (COST_COLUMNS if surveys[0].seconds_per_epoch is not None else {})
    return TextTable(list(columns), [[cell(s) for cell in columns.values()] for s in surveys])


def published_table(surveys: Sequence[Survey], hparams: HParams, clips: int) -> TextTable | None:
    """Ours beside the paper's, where clips and settings are the paper's; else None."""
    names = ["batch_size", "hop_time", "batch_capacity"]
    names += ["local_randomization_factor", "bucket_size", "num_bins"]
    as_published = all(getattr(hparams, name) == published.SETTINGS[name] for name in names)
    if clips != published.TRAINING_CLIPS or not as_published:
        return None
    rows = []
    for ours in surveys:
        name = batching_name(ours.strategy, ours.dynamic_batch_size, False)
        theirs = published.TABLE_2.get(name) or published.TABLE_2.get(f"{name}-BR")
        if theirs:
            rows.append([name])
            for wanted, found in (
                (theirs.zero_padding_rate, 100 * ours.zero_padding_rate),
                (theirs.average_batch_length, ours.average_batch_length),
            ):
                rows[-1] += [f"{wanted:.2f}", f"{found:.2f}", f"{found - wanted:+.2f}"]
    titles = ["batching", "ZPR %\npublished", "ours", "difference"]
    return TextTable([*titles, "ABL\npublished", "ours", "difference"], rows)


def padding_by_size(surveys: Sequence[Survey], size: Callable, labels: dict) -> TextTable:
    """Padded over original (Gonzalez et al.) of every strategy at every batch size or capacity."""
    found = {(s.strategy, size(s)): _fixed(100 * s.padded_to_original_rate, 2) for s in surveys}
    rows = [
        [batching_name(strategy, surveys[0].dynamic_batch_size, False)]
        + [found.get((strategy, label), "–") for label in labels]
        for strategy in STRATEGIES
    ]
    return TextTable(["batching", *labels.values()], rows)


# ---------------------------------------------------------------------------- recommending


def recommended(
    args, surveyor: Surveyor, surveys: Sequence[Survey], hparams: HParams, epochs: int
) -> list[str]:
    """The lines that --recommend prints; they say so where no batching keeps the limits."""
    size = hparams.batch_size
    min_novelty, limit = args.min_novelty, f"{args.min_novelty}, as asked"
    if min_novelty is None:
        paper = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=epochs)
        min_novelty = 0.0 if math.isnan(paper.novelty) else paper.novelty
        limit = f"{min_novelty:.4f}, that of the paper's SSB-DBS here (--min-novelty sets it)"
    result = recommend(
        surveyor,
        size,
        min_novelty=min_novelty,
        max_bytes=None if args.max_memory is None else args.max_memory * 1e9,
        batch_capacity=hparams.batch_capacity,
        epochs=epochs,
        progress=lambda found, n: progress_bar("searching", n, " batchings", iterable=found),
    )
    if not result.ranked:
        return [f"Nothing to recommend: {what_is_not_met(result)}"]
    best = result.ranked[0]
    lines = [f"Recommended: {described(best)}", *reasons(result, surveys, limit)]
    if surveyor.costs is not None:
        lines += extrapolation(best, surveyor.costs)
    usual = next(found for found in surveys if found.strategy == "random")
    if best.num_batches < 0.5 * usual.num_batches:
        lines.append(
            f"note: {best.num_batches:,.0f} training steps an epoch, where RAND makes "
            f"{usual.num_batches:,.0f}: an epoch is shorter, but may teach less"
        )
    chosen = as_hparams(best, hparams)
    return [
        *lines,
        f"to train with your own settings, add to them: {batching_overrides(chosen)}",
        f"to train with those compared here, batch_size={hparams.batch_size} and frames of "
        f"{1000 * hparams.hop_length / hparams.sampling_rate:.2f} ms, from sound files:",
        f"train.py --hparams {overrides(chosen)}",
    ]


def equal_padding(
    strategy: str,
    surveys: Sequence[Survey],
    draws: Sequence[ClipLengths],
    hparams: HParams,
    effort: Effort,
) -> list[str]:
    """Bucket size and bins with the ZPR nearest below the strategy's, as Ge et al. chose them."""
    wanted = next((s for s in surveys if s.strategy == strategy and not s.dynamic_batch_size), None)
    if wanted is None:
        return [f"--match-zpr {strategy}: not possible on this corpus"]
    target = wanted.zero_padding_rate
    lines = [f"Nearest ZPR below {batching_name(strategy, False, False)}'s, {100 * target:.2f} %:"]
    frames = [clips.frames for clips in draws]
    for other in ("bucket", "alternated_sort"):
        name = f"  {REGISTRY[other].short_name}, {PARAMETERS[other]}"
        found = match_zero_padding(
            frames, hparams.batch_size, other, target, epochs=effort.search_epochs
        )
        if found:
            lines.append(f"{name}={found[0]}: {100 * found[1]:.2f} %")
        else:
            lines.append(f"{name}: even the smallest value pads more")
    return lines


# ---------------------------------------------------------------------------- the program


class PrintStrategies(argparse.Action):
    """Prints the table of docs/batching.md, as --help prints the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_):
        print(strategy_table())
        parser.exit()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "lengths", type=Path, help="a filelist, its NAME.clips, or a CSV of id,samples or id,frames"
    )
    add("--strategies", action=PrintStrategies, nargs=0, help="print all strategies, and end")
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    add("--clips", type=at_least_one, help="take so many clips at random")
    add("--draws", type=at_least_one, default=5, help="with --clips: draws averaged (default: 5)")
    add("--epochs", type=at_least_one, help="plans averaged (default: 5; more for small corpora)")
    seconds = {"type": positive_list, "default": [], "metavar": "16,32,64,128"}
    add("--seconds", help="dynamic sizes with these capacities as well", **seconds)
    add("--match-zpr", choices=STRATEGIES, help="find BKT and ATS with the nearest ZPR below")
    add("--cost", type=Path, help="COSTS.json, for predicted minutes and memory")
    add("--recommend", action="store_true", help="name the cheapest batching that mixes enough")
    add("--min-novelty", type=share, help="--recommend: at least so much, from 0 to 1")
    add("--max-memory", type=positive, help="--recommend: at most so many GB (10^9 bytes)")
    args = parser.parse_args(arguments)
    if args.max_memory is not None and args.cost is None:
        parser.error(f"--max-memory needs --cost COSTS.json; {HOW_TO_MEASURE}")
    if (args.min_novelty is not None or args.max_memory is not None) and not args.recommend:
        parser.error("--min-novelty and --max-memory are limits of --recommend; add it")
    return args


def prepare(args) -> tuple[ClipLengths, HParams, StepCosts | None, list[str]]:
    """The whole corpus, settings, costs and notes on them; UserError for what is wrong."""
    hparams = create_hparams(args.hparams, base=create_hparams(PAPER_SETTING))
    costs = read_costs(args.cost) if args.cost else None
    clips = read_lengths(args.lengths, hparams)
    longest = int(clips.frames.argmax())
    if hparams.batch_capacity is not None and hparams.batch_capacity < clips.frames[longest]:
        raise UserError(
            f"batch_capacity={hparams.batch_capacity}: less than the longest clip, "
            f"{clips.ids[longest]}, {clips.frames[longest]} frames, which must fit into a batch"
        )
    if args.clips and args.clips > len(clips):
        raise UserError(f"--clips {args.clips}: {args.lengths} has {len(clips)} clips")
    if costs is None:
        return clips, hparams, None, []
    if args.max_memory is not None and costs.bytes_per_term is None:
        raise UserError(f"--max-memory: no memory was measured for {args.cost}")
    clips, note = with_symbols(clips, hparams)
    notes = [f"Costs: {costs.description}.", *([note] if note else [])]
    differing = costs.differing(asdict(hparams))
    if differing:
        notes.append("Warning: the costs are of other training steps: " + "; ".join(differing))
    return clips, hparams, costs, notes


def heading(args, frames: np.ndarray, hparams: HParams, epochs: int) -> list[str]:
    milliseconds = 1000 * hparams.hop_length / hparams.sampling_rate
    hours = frames.sum() * milliseconds / 3.6e6
    source = f"{args.lengths}"
    if args.clips:
        source += (
            f", {args.draws} random draws: their means in the first table, else the first draw"
        )
    capacity = hparams.batch_capacity or hparams.batch_size * int(frames.max())
    return [
        source,
        f"{len(frames):,} clip{'s' if len(frames) > 1 else ''}, {hours:.2f} hours, "
        f"{frames.min()} to {frames.max()} frames of {milliseconds:.2f} ms "
        f"(hop {hparams.hop_length} samples)",
        f"batch size {hparams.batch_size}; DBS: dynamic sizes, up to {capacity:,} frames a batch; "
        f"means over {epochs} epochs",
    ]


def make_sections(
    tables: dict[str, list[Survey]], hparams: HParams, frames: np.ndarray, capacities: dict
) -> list[tuple[str, TextTable, str]]:
    """(title, table, note) of everything that is shown as a table."""
    sections = [("", comparison_table(tables["comparison"]), LEGEND)]
    beside = published_table(tables["comparison"], hparams, len(frames))
    if beside:
        sections.append(("Beside the published figures (LJSpeech, Ge et al., Table 2)", beside, ""))
    unit = "padding in % of the corpus, as in Gonzalez et al., Table 1"
    labels = {size: f"{size}" for size in BATCH_SIZES}
    table = padding_by_size(tables["batch_size"], lambda s: s.batch_size, labels)
    sections.append((f"Fixed sizes of 1 to 8 clips: {unit}", table, ""))
    if capacities:
        default = hparams.batch_size * int(frames.max())
        labels = {count: f"{seconds:g} s" for seconds, count in capacities.items()}
        table = padding_by_size(tables["capacity"], lambda s: s.batch_capacity or default, labels)
        sections.append((f"Dynamic sizes of so many seconds: {unit}", table, ""))
    return sections


def draw_all(
    out: Path, surveyor: Surveyor, hparams: HParams, tables: dict, effort: Effort
) -> list[Path]:
    curves: dict[tuple[str, bool], list[Survey]] = {}
    marked = {}
    for found in tables["parameter"]:
        key = found.strategy, found.dynamic_batch_size
        curves.setdefault(key, []).append(found)
        if found.parameter and found.value == getattr(hparams, found.parameter):
            marked[key] = found
    size, frames = hparams.batch_size, surveyor.lengths
    sweeps = figures.draw_parameter_sweeps(
        surveyor,
        size,
        local_randomization_factor=hparams.local_randomization_factor,
        bucket_size=max(hparams.bucket_size, size),
        num_bins=min(hparams.num_bins, len(frames)),
        epochs=effort.sweep_epochs,
        per_octave=effort.per_octave,
    )
    options = common_options(hparams, dynamic=False)
    drawn = {
        "epoch_excerpt": figures.draw_epoch_excerpt(frames, size),
        "padding_against_randomness": figures.draw_padding_against_randomness(curves, marked),
        "parameter_sweeps": sweeps,
        "length_against_position": figures.draw_length_against_position(frames, size, **options),
    }
    return [p for name, figure in drawn.items() for p in figures.write_figure(figure, out / name)]


def show(lines, sections, closing) -> None:
    print(*lines, sep="\n")
    for title, table, note in sections:
        print(f"\n{title}\n" if title else "")
        print(text_table(*table))
        if note:
            print(f"\n{note}")
    if closing:
        print("", *closing, sep="\n")


def csv_text(surveys: Sequence[tuple[dict, Survey]]) -> str:
    """A CSV of the surveys, each row begun by the cells beside it."""
    file = io.StringIO()
    rows = [more | survey_row(found) for more, found in surveys]
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def write_all(out: Path, lines, sections, closing, tables, pictures: list[Path]) -> list[Path]:
    made = f"{datetime.date.today()}: python {shlex.join(sys.argv)}"
    parts = ["# Batchings compared", "\n".join(f"- {line}" for line in [made, *lines])]
    for title, table, note in sections:
        parts += [f"## {title or 'Every strategy, fixed and dynamic sizes'}"]
        parts += [markdown_table(*table), note]
    if closing:
        parts += ["## Found", "\n".join(f"- {line.strip()}" for line in closing)]
    parts += [
        f"## {path.stem.replace('_', ' ').capitalize()}\n\n![{path.stem}]({path.name})"
        for path in pictures
        if path.suffix == ".svg"
    ]
    sweeps = [({"varied": n}, s) for n in tables if n != "comparison" for s in tables[n]]
    texts = {
        "comparison.md": "\n\n".join(part for part in parts if part) + "\n",
        "comparison.csv": csv_text([({}, found) for found in tables["comparison"]]),
        "sweeps.csv": csv_text(sweeps),
    }
    for name, text in texts.items():
        write_atomically(out / name, lambda file, text=text: file.write_text(text, "utf-8"))
    return [out / name for name in texts] + pictures


def main(arguments: list[str] | None = None) -> None:
    began = time.monotonic()
    args = parse(arguments)
    try:
        refuse_no_folder(args.out, "-o")
        clips, hparams, costs, notes = prepare(args)
        args.out.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        sys.exit(f"compare_batching: {error}")
    draws = [clips]
    if args.clips:
        orders = (np.random.default_rng(seed).permutation(len(clips)) for seed in range(args.draws))
        draws = [clips.take(order[: args.clips]) for order in orders]
    clips = draws[0]
    effort = Effort.fitting(len(clips), args.epochs)
    known = {"frames_per_step": hparams.n_frames_per_step, "costs": costs}
    surveyors = [
        Surveyor(draw.frames, seed=seed, symbols=draw.symbols, **known)
        for seed, draw in enumerate(draws)
    ]
    capacities, refused = capacities_in_frames(args.seconds, clips, hparams)
    frames_held = list(capacities.values())
    jobs = plan_jobs(len(clips), hparams, len(draws), frames_held, effort.per_octave)
    tables, impossible = run_jobs(jobs, surveyors, effort)
    notes += [*refused, *same_as_random(hparams, len(clips)), *impossible]
    surveys = tables["comparison"]
    sections = make_sections(tables, hparams, clips.frames, capacities)
    lines = (
        heading(args, clips.frames, hparams, effort.epochs)
        + error_sentences(tables, effort)
        + notes
    )
    closing = []
    if args.match_zpr:
        closing += equal_padding(args.match_zpr, surveys, draws, hparams, effort)
    if args.recommend:
        closing += recommended(args, surveyors[0], surveys, hparams, effort.search_epochs)
    show(lines, sections, closing)
    try:
        pictures = draw_all(args.out, surveyors[0], hparams, tables, effort)
        written = write_all(args.out, lines, sections, closing, tables, pictures)
    except OSError as error:
        sys.exit(
            f"compare_batching: {args.out} cannot be written: {error}; make room, or choose "
            "another folder with -o"
        )
    print("\nwritten:", *written, sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
