"""Which batching suits a corpus, from its lengths alone: no audio and no GPU.

    python scripts/compare_batching.py filelists/ljspeech/train.txt --recommend
    python scripts/compare_batching.py lengths.csv --clips 10480          # as Ge et al. count
    python scripts/compare_batching.py filelists/ljspeech/train.txt --cost COSTS.json --recommend
    python scripts/compare_batching.py --strategies                       # what there is to compare

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
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import figures, published
from analysis.arguments import at_least_one, make_parser, positive, positive_list, share
from analysis.lengths import CorpusLengths, read_lengths
from analysis.recommendation import (
    as_hparams,
    batching_overrides,
    described,
    overrides,
    reasons,
    recommend,
    what_is_not_met,
)
from analysis.step_costs import HOW_TO_MEASURE, StepCosts, read_costs
from analysis.survey import (
    DEFAULTS,
    PARAMETERS,
    Survey,
    Surveyor,
    batching_name,
    in_threads,
    match_zero_padding,
    mean_survey,
    parameter_values,
)
from analysis.tables import markdown_table, text_table
from batching import MOST_COUNTED, REGISTRY, STRATEGIES, BatchingError
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


class Effort(NamedTuple):
    """How much is planned: epochs a batching, and values of a parameter."""

    epochs: int  # of the comparison
    sweep_epochs: int  # of the tables and pictures with many batchings
    search_epochs: int  # of --recommend and --match-zpr
    per_octave: int  # values of a strategy's parameter a doubling


def effort_for(clips: int, epochs: int | None) -> Effort:
    """For so many clips, with the epochs asked for, if any."""
    usual = epochs or max(5, min(40, PLANS_OF_SMALL_CORPORA // clips))
    large = Effort(epochs or 3, 1, 1, 1)
    return large if clips >= LARGE_CORPUS else Effort(usual, (usual + 1) // 2, usual, 2)


# ---------------------------------------------------------------------------- surveying


class Job(NamedTuple):
    """A batching to survey, for one of the tables."""

    table: str
    strategy: str
    batch_size: int
    options: dict  # of plan_epoch
    draws: int = 1


def common_options(hparams: HParams, dynamic: bool) -> dict:
    """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
    options = {name: getattr(hparams, name) for name in set(PARAMETERS.values())}
    capacity = {"batch_capacity": hparams.batch_capacity} if dynamic else {}
    return options | {"dynamic_batch_size": dynamic} | capacity


def plan_jobs(
    clips: int, hparams: HParams, draws: int, capacities: Sequence[int], per_octave: int
) -> list[Job]:
    """Every batching that goes into the tables and pictures."""
    jobs, size = [], hparams.batch_size
    fixed, dynamic = common_options(hparams, False), common_options(hparams, True)
    for strategy in STRATEGIES:
        name = PARAMETERS.get(strategy)
        for options in (fixed, dynamic):
            jobs.append(Job("comparison", strategy, size, options, draws))
            include = [options[name]] if name else []
            for value in parameter_values(strategy, clips, size, per_octave, include):
                varied = options | ({name: value} if name else {})
                jobs.append(Job("parameter", strategy, size, varied))
        jobs += [Job("batch_size", strategy, few, fixed) for few in BATCH_SIZES]
        jobs += [
            Job("capacity", strategy, size, dynamic | {"batch_capacity": capacity})
            for capacity in capacities
        ]
    return jobs


def run_jobs(
    jobs: Sequence[Job], surveyors: Sequence[Surveyor], effort: Effort
) -> tuple[dict[str, list[Survey]], list[str]]:
    """The surveys of each table, and which batchings of the comparison are impossible, and why.

    `surveyors` are those of the draws of clips.
    """

    def survey(job: Job) -> Survey | BatchingError:
        options = dict(job.options)
        options["epochs"] = effort.epochs if job.table == "comparison" else effort.sweep_epochs
        try:
            used = surveyors[: job.draws]
            return mean_survey([s.survey(job.batch_size, job.strategy, **options) for s in used])
        except BatchingError as error:  # a corpus too small for the parameter
            return error

    found = in_threads(survey, jobs)
    tables: dict[str, list[Survey]] = {job.table: [] for job in jobs}
    impossible = []
    bar = progress_bar("surveying", len(jobs), " batchings", iterable=found)
    for job, result in zip(jobs, bar, strict=True):
        if isinstance(result, Survey):
            tables[job.table].append(result)
        elif job.table == "comparison":
            name = batching_name(job.strategy, job.options["dynamic_batch_size"], False)
            impossible.append(f"{name}: not possible ({result})")
    return tables, impossible


def largest_errors(surveys: Sequence[Survey]) -> dict:
    """How far the mean of any of these surveys may lie from that of very many epochs: four times
    the largest standard error, for few epochs know theirs but roughly. In %, of the mean where it
    is no rate."""
    errors = pd.DataFrame([found.standard_errors for found in surveys])
    for name in ("average_batch_length", "decoder_steps"):
        errors[name] /= [getattr(found, name) for found in surveys]
    return (400 * errors.max()).dropna().to_dict()


def error_sentences(tables: dict[str, list[Survey]], effort: Effort) -> list[str]:
    """How far the figures lie from those of very many epochs."""
    words = {"average_batch_length": "ABL {:.2g} %", "decoder_steps": "decoder steps {:.2g} %"}
    words |= {"zero_padding_rate": "ZPR {:.2g} points", "novelty": "novelty {:.2g} points"}
    sweeps = [found for name in tables if name != "comparison" for found in tables[name]]
    within = [
        ", ".join(words[name].format(e) for name, e in largest_errors(surveys).items())
        for surveys in (tables["comparison"], sweeps)
    ]
    lines = [f"these means lie within 4 standard errors: {within[0]}"]
    if effort.per_octave == 1:
        lines.append(
            f"{LARGE_CORPUS:,} clips or more: the sweeps, their pictures and --recommend plan "
            f"{effort.sweep_epochs} epoch a batching, at half as many values of a parameter; "
            f"within {within[1]}"
        )
    return lines


# ---------------------------------------------------------------------------- tables


def frame_of(surveys: Sequence[Survey]) -> pd.DataFrame:
    """A row for each survey, its fields as columns."""
    rows = pd.DataFrame([asdict(found) for found in surveys]).drop(columns="standard_errors")
    rows.insert(1, "parameter", [found.parameter or "" for found in surveys])
    return rows


def cells_of(table: pd.DataFrame) -> tuple[list[str], list]:
    return list(map(str, table.columns)), table.to_numpy().tolist()


def named(surveys: Sequence[Survey]) -> list[str]:
    return [batching_name(found.strategy, found.dynamic_batch_size, False) for found in surveys]


def numbers(column: pd.Series, digits: int, sign: str = "") -> pd.Series:
    return column.map(lambda v: "–" if pd.isna(v) else f"{v:{sign},.{digits}f}")


def comparison_table(surveys: Sequence[Survey]) -> pd.DataFrame:
    rows = frame_of(surveys)
    cells: dict[str, Any] = {"batching": named(surveys)}
    for title, (name, factor, digits) in COLUMNS.items():
        if name not in ("seconds_per_epoch", "peak_bytes") or rows[name].notna().any():
            cells[title] = numbers(rows[name].astype(float) * factor, digits)
    return pd.DataFrame(cells)


def published_table(surveys: Sequence[Survey], hparams: HParams, clips: int) -> pd.DataFrame | None:
    """Ours beside the paper's, where clips and settings are the paper's; else None."""
    names = ["batch_size", "hop_time", "batch_capacity"]
    names += ["local_randomization_factor", "bucket_size", "num_bins"]
    as_published = all(getattr(hparams, name) == published.SETTINGS[name] for name in names)
    if clips != published.TRAINING_CLIPS or not as_published:
        return None
    theirs = [published.TABLE_2.get(n) or published.TABLE_2.get(f"{n}-BR") for n in named(surveys)]
    cells = {"batching": pd.Series(named(surveys))}
    for title in ("ZPR %", "ABL"):
        name, factor, _ = COLUMNS[title]
        wanted = pd.Series([row and getattr(row, name) for row in theirs], dtype=float)
        ours = factor * frame_of(surveys)[name]
        cells[f"{title} published"], cells[f"{title} ours"] = numbers(wanted, 2), numbers(ours, 2)
        cells[f"{title} difference"] = numbers(ours - wanted, 2, "+")
    return pd.DataFrame(cells)[[row is not None for row in theirs]]


def padding_by_size(surveys: Sequence[Survey], sizes: Sequence, labels: Sequence) -> pd.DataFrame:
    """Padded over original (Gonzalez et al.) of every strategy at every batch size or capacity."""
    rates = pd.Series([100 * found.padded_to_original_rate for found in surveys])
    rows = pd.DataFrame({"batching": named(surveys), "size": sizes, "rate": numbers(rates, 2)})
    table = rows.pivot(index="batching", columns="size", values="rate").fillna("–")
    table = table.reindex(rows.batching.unique())
    return table.set_axis(list(map(str, labels)), axis=1).reset_index()


def strategy_table() -> str:
    """Markdown: every strategy, its parameter with the default, and what larger values do."""
    rows = []
    for s in REGISTRY.values():
        parameter = f"`{s.parameter.name}={DEFAULTS[s.parameter.name]}`" if s.parameter else ""
        rows.append([f"`{s.name}`", s.short_name, s.source, s.meaning, parameter, s.larger_values])
    titles = ["`batching_strategy`", "short", "source", "the clips' order", "parameter"]
    return markdown_table([*titles, "larger values"], rows, labels=6)


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
    if surveyor.costs and best.largest_batch_frames > 1.05 * surveyor.costs.largest_frames:
        lines.append(
            f"warning: steps were measured up to {surveyor.costs.largest_frames:,} frames a batch; "
            "the costs of larger ones are extrapolated"
        )
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
        f"{1000 * hparams.hop_length / hparams.sampling_rate:.2f} ms, from audio files:",
        f"train.py --hparams {overrides(chosen)}",
    ]


def equal_padding(
    strategy: str, surveys: Sequence[Survey], draws: Sequence[CorpusLengths], size: int, epochs: int
) -> list[str]:
    """Bucket size and bins with the ZPR nearest below the strategy's, as Ge et al. chose them."""
    wanted = [s for s in surveys if s.strategy == strategy and not s.dynamic_batch_size]
    if not wanted:
        return [f"--match-zpr {strategy}: not possible on this corpus"]
    target, frames = wanted[0].zero_padding_rate, [clips.frames for clips in draws]
    lines = [f"Nearest ZPR below {batching_name(strategy, False, False)}'s, {100 * target:.2f} %:"]
    for other in ("bucket", "alternated_sort"):
        name = f"  {REGISTRY[other].short_name}, {PARAMETERS[other]}"
        found = match_zero_padding(frames, size, other, target, epochs=epochs)
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
    shown = "a filelist, its NAME.clips, or a CSV of id,samples or id,frames"
    add("lengths", type=Path, help=shown)
    add("--strategies", action=PrintStrategies, nargs=0, help="print all strategies, and end")
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    add("--clips", type=at_least_one, help="take so many clips at random")
    add("--draws", type=at_least_one, default=5, help="with --clips: draws averaged (default: 5)")
    add("--epochs", type=at_least_one, help="plans averaged (default: 5; more for small corpora)")
    add("--seconds", type=positive_list, default=[], help="16,32: dynamic sizes that hold so many")
    add("--match-zpr", choices=STRATEGIES, help="find BKT and ATS with the nearest ZPR below")
    add("--cost", type=Path, help="of benchmarks/epoch.py --json, to predict minutes and memory")
    add("--recommend", action="store_true", help="name the cheapest batching that mixes enough")
    add("--min-novelty", type=share, help="--recommend: at least so much, from 0 to 1")
    add("--max-memory", type=positive, help="--recommend: at most so many GB (10^9 bytes)")
    args = parser.parse_args(arguments)
    if args.max_memory is not None and args.cost is None:
        parser.error(f"--max-memory needs --cost COSTS.json; {HOW_TO_MEASURE}")
    if (args.min_novelty is not None or args.max_memory is not None) and not args.recommend:
        parser.error("--min-novelty and --max-memory are limits of --recommend; add it")
    return args


def prepare(args) -> tuple[CorpusLengths, HParams, StepCosts | None, list[str]]:
    """The whole corpus, settings, costs and notes on them; UserError for what is wrong."""
    hparams = create_hparams(args.hparams, base=create_hparams(PAPER_SETTING))
    refuse_no_folder(args.out, "-o")
    costs = read_costs(args.cost, hparams) if args.cost else None
    clips = read_lengths(args.lengths, hparams)
    longest = int(clips.frames.argmax())
    if hparams.batch_capacity is not None and hparams.batch_capacity < clips.frames[longest]:
        raise UserError(
            f"batch_capacity={hparams.batch_capacity}: less than the longest clip, "
            f"{clips.ids[longest]}, {clips.frames[longest]} frames, which must fit into a batch"
        )
    if args.clips and args.clips > len(clips):
        raise UserError(f"--clips {args.clips}: {args.lengths} has {len(clips)} clips")
    notes = []
    if costs is not None:
        if args.max_memory is not None and costs.bytes_per_term is None:
            raise UserError(f"--max-memory: no memory was measured for {args.cost}")
        notes.append(f"Costs: {costs.description}")
        if differing := costs.differing(hparams):
            notes.append("Warning: they are of other training steps: " + "; ".join(differing))
    args.out.mkdir(parents=True, exist_ok=True)
    return clips, hparams, costs, notes


def capacities_in_frames(
    seconds: Sequence[float], clips: CorpusLengths, hparams: HParams
) -> tuple[dict[float, int], list[str]]:
    """(seconds -> frames for those that hold the longest clip, sentences about the others)."""
    longest, per_frame = int(clips.frames.argmax()), hparams.hop_length / hparams.sampling_rate
    frames = {value: int(min(value / per_frame, MOST_COUNTED)) for value in seconds}
    held = {s: count for s, count in frames.items() if count >= clips.frames[longest]}
    refused = ", ".join(f"{value:g} s" for value in seconds if value not in held)
    note = (
        f"Refused: batches of {refused} ({clips.ids[longest]} alone has "
        f"{clips.frames[longest] * per_frame:.2f} s, and speech for synthesis cannot be cut)."
    )
    return held, [note] if refused else []


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


def heading(args, frames: np.ndarray, hparams: HParams, epochs: int) -> list[str]:
    milliseconds = 1000 * hparams.hop_length / hparams.sampling_rate
    hours = frames.sum() * milliseconds / 3.6e6
    draws = f", {args.draws} random draws: their means in the first table, else the first draw"
    capacity = hparams.batch_capacity or hparams.batch_size * int(frames.max())
    return [
        f"{args.lengths}{draws if args.clips else ''}",
        f"{len(frames):,} clip{'s' if len(frames) > 1 else ''}, {hours:.2f} hours, "
        f"{frames.min()} to {frames.max()} frames of {milliseconds:.2f} ms "
        f"(hop {hparams.hop_length} samples)",
        f"batch size {hparams.batch_size}; DBS: dynamic sizes, up to {capacity:,} frames a batch; "
        f"means over {epochs} epochs",
    ]


def make_sections(
    tables: dict[str, list[Survey]], hparams: HParams, frames: np.ndarray, capacities: dict
) -> dict[str, pd.DataFrame]:
    """By title, everything that is shown as a table."""
    compared, fixed = tables["comparison"], tables["batch_size"]
    sections = {"Every strategy, fixed and dynamic sizes": comparison_table(compared)}
    beside = published_table(compared, hparams, len(frames))
    if beside is not None:
        sections["Beside the published figures (LJSpeech, Ge et al., Table 2)"] = beside
    unit = "padding in % of the corpus, as in Gonzalez et al., Table 1"
    table = padding_by_size(fixed, [found.batch_size for found in fixed], BATCH_SIZES)
    sections[f"Fixed sizes of 1 to 8 clips: {unit}"] = table
    if capacities:
        default = hparams.batch_size * int(frames.max())
        sizes = [found.batch_capacity or default for found in tables["capacity"]]
        labels = [f"{s:g} s" for s in sorted(capacities)]
        table = padding_by_size(tables["capacity"], sizes, labels)
        sections[f"Dynamic sizes of so many seconds: {unit}"] = table
    return sections


def draw_all(
    out: Path, surveyor: Surveyor, hparams: HParams, found: Sequence[Survey], effort: Effort
) -> list[Path]:
    size, frames, options = hparams.batch_size, surveyor.lengths, common_options(hparams, False)
    in_use = [s.parameter is not None and s.value == getattr(hparams, s.parameter) for s in found]
    curves = frame_of(found).assign(in_use=in_use)
    sweeps: dict[str, Any] = {
        "local_randomization_factor": hparams.local_randomization_factor,
        "bucket_size": max(hparams.bucket_size, size),
        "num_bins": min(hparams.num_bins, len(frames)),
        "epochs": effort.sweep_epochs,
        "per_octave": effort.per_octave,
    }
    drawn = {
        "epoch_excerpt": figures.draw_epoch_excerpt(frames, size),
        "padding_against_randomness": figures.draw_padding_against_randomness(curves),
        "parameter_sweeps": figures.draw_parameter_sweeps(surveyor, size, **sweeps),
        "length_against_position": figures.draw_length_against_position(frames, size, **options),
    }
    return [p for name, figure in drawn.items() for p in figures.write_figure(figure, out / name)]


def _write(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")


def write_all(out: Path, lines, sections, closing, tables, pictures: list[Path]) -> list[Path]:
    made = f"{datetime.date.today()}: python {shlex.join(sys.argv)}"
    parts = ["# Batchings compared", "\n".join(f"- {line}" for line in [made, *lines])]
    for title, table in sections.items():
        parts += [f"## {title}", markdown_table(*cells_of(table))]
    parts.insert(4, LEGEND)
    if closing:
        parts += ["## Found", "\n".join(f"- {line.strip()}" for line in closing)]
    parts += [
        f"## {path.stem.replace('_', ' ').capitalize()}\n\n![{path.stem}]({path.name})"
        for path in pictures
        if path.suffix == ".svg"
    ]
    varied = {name: frame_of(t) for name, t in tables.items() if name != "comparison" and t}
    sweeps = pd.concat(varied, names=["varied"]).reset_index("varied")
    texts = {
        "comparison.md": "\n\n".join(parts) + "\n",
        "comparison.csv": frame_of(tables["comparison"]).to_csv(index=False),
        "sweeps.csv": sweeps.to_csv(index=False),
    }
    for name, text in texts.items():
        write_atomically(out / name, functools.partial(_write, text))
    return [out / name for name in texts] + pictures


def main(arguments: list[str] | None = None) -> None:
    began = time.monotonic()
    args = parse(arguments)
    try:
        clips, hparams, costs, notes = prepare(args)
    except (UserError, OSError) as error:
        sys.exit(f"compare_batching: {error}")
    draws = [clips]
    if args.clips:
        orders = (np.random.default_rng(seed).permutation(len(clips)) for seed in range(args.draws))
        draws = [clips.take(order[: args.clips]) for order in orders]
    clips = draws[0]
    effort = effort_for(len(clips), args.epochs)
    surveyors = [
        Surveyor(clips.frames, seed=n, frames_per_step=hparams.n_frames_per_step, costs=costs)
        for n, clips in enumerate(draws)
    ]
    capacities, refused = capacities_in_frames(args.seconds, clips, hparams)
    held = list(capacities.values())
    jobs = plan_jobs(len(clips), hparams, len(draws), held, effort.per_octave)
    tables, impossible = run_jobs(jobs, surveyors, effort)
    surveys = tables["comparison"]
    sections = make_sections(tables, hparams, clips.frames, capacities)
    lines = [*heading(args, clips.frames, hparams, effort.epochs), *error_sentences(tables, effort)]
    lines += [*notes, *refused, *same_as_random(hparams, len(clips)), *impossible]
    closing = []
    if args.match_zpr:
        closing += equal_padding(
            args.match_zpr, surveys, draws, hparams.batch_size, effort.search_epochs
        )
    if args.recommend:
        closing += recommended(args, surveyors[0], surveys, hparams, effort.search_epochs)
    print(*lines, sep="\n")
    for number, (title, table) in enumerate(sections.items()):
        print(f"\n{title}\n\n{text_table(*cells_of(table))}" + ("" if number else f"\n\n{LEGEND}"))
    print(*([""] if closing else []), *closing, sep="\n")
    try:
        pictures = draw_all(args.out, surveyors[0], hparams, tables["parameter"], effort)
        written = write_all(args.out, lines, sections, closing, tables, pictures)
    except OSError as error:
        sys.exit(
            f"compare_batching: {args.out} cannot be written: {error}; free some space, or choose "
            "another folder with -o"
        )
    print("\nwritten:", *written, sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
