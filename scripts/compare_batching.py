"""Which batching suits a corpus, from its lengths alone: no audio, no GPU, under a minute.

    python scripts/compare_batching.py filelists/ljspeech/train.txt --recommend
    python scripts/compare_batching.py lengths.csv --clips 10480          # as Ge et al. count
    python scripts/compare_batching.py filelists/ljspeech/train.txt --cost COSTS.json --recommend

Reads a filelist (path|text|seconds; the sound files are not opened) or a CSV of lengths (header
id,samples or id,frames). Compares every strategy with fixed and dynamic batch sizes: padding,
steps, and how well it mixes the clips. Writes tables and pictures; --recommend names the cheapest
batching that mixes enough, as overrides for train.py. benchmarks/step_cost.py makes COSTS.json.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis import published
from analysis.figures import (
    PARAMETER_NOTES,
    batching_name,
    draw_epoch_excerpt,
    draw_length_against_position,
    draw_padding_against_randomness,
    draw_parameter_sweeps,
    write_figure,
)
from analysis.step_costs import StepCosts, read_costs
from analysis.survey import (
    PARAMETERS,
    Recommendation,
    Survey,
    cost,
    match_zero_padding,
    mean_survey,
    parameter_values,
    recommend,
    survey,
    survey_row,
)
from audio import frame_count
from batching import STRATEGIES
from data_utils import lines_refused
from files import write_atomically
from hparams import HParams, create_hparams
from progress import progress_bar
from text import text_to_sequence

PAPER_SETTING = "batch_size=16,win_time=50,hop_time=12.5"
BATCH_SIZES = range(1, 9)  # as in Gonzalez et al., Table 1
# Of LJSpeech: 1,309,270 symbols after english_cleaners in 86,117 s of speech.
SYMBOLS_PER_SECOND = 15.2
PLANS_OF_SMALL_CORPORA = 50_000  # clips to plan in all, so that their means are steady too
HOW_TO_MEASURE = "measure them with: python benchmarks/step_cost.py -o COSTS.json"


# ---------------------------------------------------------------------------- reading lengths


@dataclass(frozen=True)
class Corpus:
    """What is known of the clips; `symbols` only where costs are to be predicted."""

    ids: list[str]
    frames: np.ndarray
    texts: list[str] | None
    symbols: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, chosen: np.ndarray) -> "Corpus":
        return Corpus(
            [self.ids[i] for i in chosen],
            self.frames[chosen],
            self.texts and [self.texts[i] for i in chosen],
            self.symbols if self.symbols is None else self.symbols[chosen],
        )


def read_corpus(path: Path, hparams: HParams) -> Corpus:
    """A filelist or a CSV of lengths, told apart by the first line.

    Raises:
        ValueError: one message listing every bad line with its number.
    """
    if path.is_dir():
        raise ValueError(f"{path}: a folder; name a filelist or a lengths.csv in it")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ValueError(
            f"{path}: no such file; expected a filelist, as scripts/prepare_ljspeech.py makes, "
            "or a CSV of lengths with the header id,samples or id,frames"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not readable as UTF-8 text ({error})") from None
    numbered = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError(f"{path}: empty; expected lines of path|text|seconds, or a CSV of lengths")
    header = numbered[0][1].replace(" ", "").replace('"', "").lower()
    if header in ("id,samples", "id,frames"):
        return _parsed(path, numbered[1:], lambda line: _csv_clip(line, header, hparams))
    if "|" not in numbered[0][1]:
        raise ValueError(
            f"{path}:{numbered[0][0]}: {_shortened(numbered[0][1])!r} is neither a line of "
            "path|text|seconds nor one of the headers id,samples and id,frames"
        )
    return _parsed(path, numbered, lambda line: _filelist_clip(line, hparams))


def _parsed(path: Path, numbered: list[tuple[int, str]], parse: Callable) -> Corpus:
    clips, problems = [], []
    for number, line in numbered:
        try:
            clips.append(parse(line))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise lines_refused(path, problems, len(numbered))
    if not clips:
        raise ValueError(f"{path}: a header and no clip under it")
    ids, frames, texts = zip(*clips, strict=True)
    return Corpus(list(ids), np.array(frames), None if texts[0] is None else list(texts))


def _csv_clip(line: str, header: str, hparams: HParams) -> tuple[str, int, None]:
    fields = next(csv.reader([line]))
    if len(fields) != 2:
        raise ValueError(f"{len(fields)} fields, expected {header}: {_shortened(line)!r}")
    name, text = (field.strip() for field in fields)
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        unit = header.removeprefix("id,")
        raise ValueError(f"{unit} {_shortened(text)!r}, expected a whole number from 1")
    return name, count if header == "id,frames" else frame_count(count, hparams), None


def _filelist_clip(line: str, hparams: HParams) -> tuple[str, int, str]:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) == 2:
        raise ValueError(
            "path|text without seconds; scripts/prepare_ljspeech.py makes lists with them"
        )
    if len(parts) != 3:
        raise ValueError(f"{len(parts)} fields, expected path|text|seconds: {_shortened(line)!r}")
    try:
        seconds = float(parts[2])
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds {_shortened(parts[2])!r}, expected a number greater than 0")
    samples = round(seconds * hparams.sampling_rate)
    return Path(parts[0]).stem, frame_count(samples, hparams), parts[1]


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def with_symbols(corpus: Corpus, hparams: HParams) -> tuple[Corpus, str]:
    """The corpus with every clip's number of symbols, and a sentence where they are a guess."""
    if corpus.texts is not None:
        counts = [len(text_to_sequence(text, hparams.text_cleaners)) for text in corpus.texts]
        return replace(corpus, symbols=np.maximum(counts, 1)), ""
    seconds = corpus.frames * hparams.hop_length / hparams.sampling_rate
    note = (
        f"A CSV of lengths has no texts: {SYMBOLS_PER_SECOND} symbols a second are assumed, "
        "LJSpeech's mean."
    )
    return replace(corpus, symbols=np.ceil(SYMBOLS_PER_SECOND * seconds).astype(int)), note


# ---------------------------------------------------------------------------- surveying


def common_options(hparams: HParams, dynamic: bool) -> dict:
    """Arguments of `plan_epoch` that are the same for all strategies, as train.py sets them."""
    options = {name: getattr(hparams, name) for name in set(PARAMETERS.values())}
    options["dynamic_batch_size"] = dynamic
    if dynamic:
        options["batch_capacity"] = hparams.batch_capacity
    return options


class Job(NamedTuple):
    """A batching to survey, for one of the tables."""

    table: str
    strategy: str
    batch_size: int
    options: dict
    draws: int = 1


def plan_jobs(corpus: Corpus, hparams: HParams, draws: int, capacities: dict[float, int]):
    """Every batching that goes into the tables and pictures."""
    jobs = []
    for strategy in STRATEGIES:
        for dynamic in (False, True):
            options = common_options(hparams, dynamic)
            jobs.append(Job("comparison", strategy, hparams.batch_size, options, draws))
            name = PARAMETERS.get(strategy)
            include = [options[name]] if name else []
            values = parameter_values(strategy, len(corpus), hparams.batch_size, include=include)
            for value in values:
                varied = options | ({name: value} if name else {})
                jobs.append(Job("parameter", strategy, hparams.batch_size, varied))
        options = common_options(hparams, dynamic=False)
        jobs += [Job("batch_size", strategy, size, options) for size in BATCH_SIZES]
        options = common_options(hparams, dynamic=True)
        for capacity in capacities.values():
            sizes = {"batch_capacity": capacity}
            jobs.append(Job("capacity", strategy, hparams.batch_size, options | sizes))
    return jobs


def run_jobs(
    jobs: Sequence[Job], draws: Sequence[Corpus], epochs: int, costs: StepCosts | None
) -> tuple[dict[str, list[Survey]], dict[str, str]]:
    """The surveys of each table, and why some batchings of the comparison are impossible.

    The many points of the sweeps are means of about half as many epochs.
    """
    tables: dict[str, list[Survey]] = {job.table: [] for job in jobs}
    impossible = {}
    with progress_bar("surveying", len(jobs), " batchings") as bar:
        for job in jobs:
            try:
                surveys = [
                    survey(
                        corpus.frames,
                        job.batch_size,
                        job.strategy,
                        epochs=epochs if job.table == "comparison" else (epochs + 1) // 2,
                        seed=seed,
                        costs=costs,
                        symbols=corpus.symbols,
                        **job.options,
                    )
                    for seed, corpus in enumerate(draws[: job.draws])
                ]
                tables[job.table].append(mean_survey(surveys))
            except ValueError as error:  # a corpus too small for the parameter
                if job.table == "comparison":
                    dynamic = job.options["dynamic_batch_size"]
                    impossible[batching_name(job.strategy, dynamic, False)] = str(error)
            bar.update()
    return tables, impossible


def capacities_in_frames(seconds: list[float], corpus: Corpus, hparams: HParams):
    """(seconds -> frames for those that hold the longest clip, sentences about the others)."""
    allowed, refused = {}, []
    longest = int(corpus.frames.argmax())
    per_frame = hparams.hop_length / hparams.sampling_rate
    for value in seconds:
        capacity = int(value / per_frame)
        if capacity >= corpus.frames[longest]:
            allowed[value] = capacity
        else:
            refused.append(f"{value:g} s")
    notes = []
    if refused:
        notes.append(
            f"Refused: batches of {', '.join(refused)} ({corpus.ids[longest]} alone has "
            f"{corpus.frames[longest] * per_frame:.2f} s, and speech for synthesis cannot be cut)."
        )
    return allowed, notes


# ---------------------------------------------------------------------------- tables


class Column(NamedTuple):
    title: str  # two lines at most
    cell: Callable[[Survey], str]


def _fixed(value: float | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


COLUMNS = [
    Column("\nbatching", lambda s: batching_name(s.strategy, s.dynamic_batch_size, False)),
    Column("ZPR\n%", lambda s: _fixed(100 * s.zero_padding_rate, 2)),
    Column("\nABL", lambda s: _fixed(s.average_batch_length, 1)),
    Column("\nbatches", lambda s: _fixed(s.num_batches, 0)),
    Column("decoder\nsteps", lambda s: _fixed(s.decoder_steps, 0)),
    Column("pad.\n%", lambda s: _fixed(100 * s.padded_fraction, 2)),
    Column("pad./\norig. %", lambda s: _fixed(100 * s.padded_to_original_rate, 2)),
    Column("used\n%", lambda s: _fixed(100 * s.capacity_used, 1)),
    Column("most\nclips", lambda s: f"{s.largest_batch_size:,}"),
    Column("most\nframes", lambda s: f"{s.largest_batch_frames:,.0f}"),
    Column("\nspread", lambda s: _fixed(s.spread, 3)),
    Column("\nnovelty", lambda s: _fixed(s.novelty, 4)),
]
COST_COLUMNS = [
    Column("min/\nepoch", lambda s: _fixed(s.seconds_per_epoch / 60, 2)),
    Column("peak\nGB", lambda s: _fixed(s.peak_bytes and s.peak_bytes / 1e9, 2)),
]
LEGEND = """\
ZPR zero-padding rate; ABL average batch length in frames (both Ge et al.); decoder steps: frames
that the decoder goes through one by one, the sum of the batches' lengths; pad.: padding over all
that is computed; pad./orig.: padding over the corpus (Gonzalez et al.); used: of the capacity,
batch size x longest clip or batch_capacity; most: in the largest batch; spread: how far apart in
length a batch's clips are, 0 as sorted, 1 as random; novelty: of the pairs of clips that share a
batch, the share that did not in the epoch before."""


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned for a terminal: the first column to the left, the others to the right."""
    split = [["", *title.split("\n")][-2:] for title in titles]
    lines = [[parts[0] for parts in split], [parts[1] for parts in split], *rows]
    if not any(lines[0]):
        del lines[0]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = [title.replace("\n", " ").strip() for title in titles]
    ruler = ["---"] + ["---:"] * (len(titles) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ruler, *rows))


class Table(NamedTuple):
    titles: list[str]
    rows: list[list[str]]


def comparison_table(surveys: Sequence[Survey]) -> Table:
    columns = COLUMNS + (COST_COLUMNS if surveys[0].seconds_per_epoch is not None else [])
    return Table(
        [column.title for column in columns],
        [[column.cell(one) for column in columns] for one in surveys],
    )


def published_table(surveys: Sequence[Survey], hparams: HParams, clips: int) -> Table | None:
    """Ours beside the paper's, where clips and settings are the paper's; else None."""
    names = ["batch_size", "hop_time", "batch_capacity"]
    names += ["local_randomization_factor", "bucket_size", "num_bins"]
    as_published = all(getattr(hparams, name) == published.SETTINGS[name] for name in names)
    if clips != published.TRAINING_CLIPS or not as_published:
        return None
    rows = []
    for one in surveys:
        name = batching_name(one.strategy, one.dynamic_batch_size, False)
        theirs = published.TABLE_2.get(name) or published.TABLE_2.get(f"{name}-BR")
        if theirs:
            zpr, abl = 100 * one.zero_padding_rate, one.average_batch_length
            rows.append(
                [
                    name,
                    f"{theirs.zero_padding_rate:.2f}",
                    f"{zpr:.2f}",
                    f"{zpr - theirs.zero_padding_rate:+.2f}",
                    f"{theirs.average_batch_length:.2f}",
                    f"{abl:.2f}",
                    f"{abl - theirs.average_batch_length:+.2f}",
                ]
            )
    titles = ["\nbatching", "ZPR %\npublished", "\nours", "\ndifference"]
    return Table([*titles, "ABL\npublished", "\nours", "\ndifference"], rows)


def padding_by_size(surveys: Sequence[Survey], key: Callable, labels: dict) -> Table | None:
    """Padded over original (Gonzalez et al.) of every strategy at every batch size or capacity."""
    found = {(one.strategy, key(one)): one for one in surveys}
    rows = []
    for strategy in STRATEGIES:
        cells = [
            _fixed(100 * found[strategy, size].padded_to_original_rate, 2)
            if (strategy, size) in found
            else "–"
            for size in labels
        ]
        rows.append([batching_name(strategy, surveys[0].dynamic_batch_size, False), *cells])
    return Table(["batching", *labels.values()], rows)


# ---------------------------------------------------------------------------- recommending


def overrides(hparams: HParams) -> str:
    """What `create_hparams` makes these settings of: all that differ from the defaults, and the
    batching even where it does not."""
    default = HParams()
    always = {"batch_size", "batching_strategy", "dynamic_batch_size", "batch_randomization"}
    always.add(PARAMETERS.get(hparams.batching_strategy))
    derived = set()  # lengths that follow from times in ms
    if hparams.hop_time is not None:
        derived.add("hop_length")
    if hparams.win_time is not None:
        derived.add("win_length")
        if hparams.filter_length == 1 << (hparams.win_length - 1).bit_length():
            derived.add("filter_length")
    return ",".join(
        f"{name}=[{','.join(value)}]" if isinstance(value, tuple) else f"{name}={value}"
        for name, value in asdict(hparams).items()
        if name not in derived and (name in always or value != getattr(default, name))
    )


def as_hparams(one: Survey, hparams: HParams) -> HParams:
    """The run's settings with this batching."""
    parameter = {one.parameter: one.value} if one.parameter else {}
    return replace(
        hparams,
        batch_size=one.batch_size,
        batching_strategy=one.strategy,
        dynamic_batch_size=one.dynamic_batch_size,
        batch_capacity=one.batch_capacity,
        batch_randomization=one.strategy != "random",
        **parameter,
    )


def described(one: Survey) -> str:
    """SSB-DBS-BR (factor 0.1)."""
    notes = [PARAMETER_NOTES[one.parameter].format(f"{one.value:g}")] if one.parameter else []
    if one.batch_capacity:
        notes.append(f"capacity {one.batch_capacity:,} frames")
    name = batching_name(one.strategy, one.dynamic_batch_size, True)
    return name + (f" ({', '.join(notes)})" if notes else "")


def _spent(one: Survey) -> str:
    if one.seconds_per_epoch is None:
        return f"{one.decoder_steps:,.0f} decoder steps an epoch"
    return f"{one.seconds_per_epoch / 60:.2f} predicted minutes an epoch"


def _against(one: Survey, other: Survey) -> str:
    change = cost(one) / cost(other) - 1
    return f"{abs(change):.1%} {'less' if change <= 0 else 'more'} than {described(other)}"


def reasons(result: Recommendation, surveys: Sequence[Survey], limit: str) -> list[str]:
    """Three lines: what it costs, how it mixes, what it fits and what comes next."""
    best, *others = result.ranked
    known = {(one.strategy, one.dynamic_batch_size): one for one in surveys}
    papers = [known[key] for key in (("random", False), ("semi_sorted", True)) if key in known]
    first = f"cheapest: {_spent(best)}, {' and '.join(_against(best, one) for one in papers)}"
    if math.isnan(best.novelty):
        second = "mixed: no two clips share a batch"
    else:
        second = f"mixed: novelty {best.novelty:.4f}, the least allowed is {limit}"
    third = (
        f"largest batch {best.largest_batch_frames:,.0f} frames, {best.largest_batch_size} clips"
    )
    if best.peak_bytes is not None:
        third += f", predicted peak {best.peak_bytes / 1e9:.2f} GB"
    rivals = [one for one in others if one.strategy != best.strategy]
    if rivals:
        more = cost(rivals[0]) / cost(best) - 1
        third += f"; next best: {described(rivals[0])}, {more:+.1%}"
    return [first, second, third]


def what_is_not_met(result: Recommendation) -> str:
    """What stands in the way, and the best that can be had."""
    fitting = [one for one in result.tried if result.fits(one)]
    if not fitting:
        best = min(result.tried, key=lambda one: one.peak_bytes)
        return (
            f"no batching fits into {result.max_bytes / 1e9:g} GB: the least is "
            f"{best.peak_bytes / 1e9:.2f} GB, {described(best)}"
        )
    best = max(fitting, key=lambda one: one.novelty)
    within = "" if result.max_bytes is None else f" within {result.max_bytes / 1e9:g} GB"
    return (
        f"no batching reaches novelty {result.min_novelty:g}{within}: the most is "
        f"{best.novelty:.4f}, {described(best)}"
    )


def recommended(args, corpus: Corpus, surveys, hparams: HParams, costs, epochs: int) -> list[str]:
    """The lines that --recommend prints; they say so where no batching keeps the limits."""
    limit = f"{args.min_novelty}, as asked"
    min_novelty = args.min_novelty
    if min_novelty is None:
        paper = survey(
            corpus.frames, hparams.batch_size, "semi_sorted", dynamic_batch_size=True, epochs=epochs
        )
        min_novelty = 0.0 if math.isnan(paper.novelty) else paper.novelty
        limit = f"{min_novelty:.4f}, that of the paper's SSB-DBS here (--min-novelty sets it)"
    with progress_bar("searching", 2 * len(STRATEGIES), " batchings") as bar:

        def progress(jobs):
            for job in jobs:
                yield job
                bar.update()

        result = recommend(
            corpus.frames,
            hparams.batch_size,
            min_novelty=min_novelty,
            max_bytes=None if args.max_memory is None else args.max_memory * 1e9,
            batch_capacity=hparams.batch_capacity,
            progress=progress,
            epochs=epochs,
            costs=costs,
            symbols=corpus.symbols,
        )
    if not result.ranked:
        return [f"Nothing to recommend: {what_is_not_met(result)}"]
    best = result.ranked[0]
    lines = [f"Recommended: {described(best)}", *reasons(result, surveys, limit)]
    if costs is not None:
        lines += extrapolation(best, costs)
    usual = next(one for one in surveys if one.strategy == "random")
    if best.num_batches < 0.5 * usual.num_batches:
        lines.append(
            f"note: {best.num_batches:,.0f} training steps an epoch, where RAND makes "
            f"{usual.num_batches:,.0f}: an epoch is shorter, but may teach less"
        )
    return [*lines, f"train.py --hparams {overrides(as_hparams(best, hparams))}"]


def extrapolation(one: Survey, costs: StepCosts) -> list[str]:
    """A warning where the largest batch lies beyond what was measured."""
    clips = max(m.clips for m in costs.measurements)
    frames = max(m.clips * m.frames for m in costs.measurements)
    if one.largest_batch_size <= clips and one.largest_batch_frames <= 1.05 * frames:
        return []
    return [
        f"warning: costs were measured up to {clips} clips and {frames:,} frames a batch; beyond "
        "that they are extrapolated"
    ]


# ---------------------------------------------------------------------------- all of it


def csv_text(surveys: Sequence[Survey], extra: Sequence[dict]) -> str:
    file = io.StringIO()
    rows = [more | survey_row(one) for more, one in zip(extra, surveys, strict=True)]
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def equal_padding(strategy: str, surveys, draws: Sequence[Corpus], hparams, epochs) -> list[str]:
    """Bucket size and bins with the ZPR nearest below the strategy's, as Ge et al. chose them."""
    wanted = next((s for s in surveys if s.strategy == strategy and not s.dynamic_batch_size), None)
    if wanted is None:
        return [f"--match-zpr {strategy}: not possible on this corpus"]
    name = batching_name(strategy, False, False)
    lines = [f"Nearest ZPR below {name}'s, {100 * wanted.zero_padding_rate:.2f} %:"]
    for other, note in (("bucket", "BKT, bucket_size"), ("alternated_sort", "ATS, num_bins")):
        found = match_zero_padding(
            [corpus.frames for corpus in draws],
            hparams.batch_size,
            other,
            wanted.zero_padding_rate,
            epochs=epochs,
        )
        if found:
            lines.append(f"  {note}={found[0]}: {100 * found[1]:.2f} %")
        else:
            lines.append(f"  {note}: even the smallest value pads more")
    return lines


def draw_all(out: Path, corpus: Corpus, hparams: HParams, tables: dict) -> list[Path]:
    curves: dict[tuple[str, bool], list[Survey]] = {}
    for one in tables["parameter"]:
        curves.setdefault((one.strategy, one.dynamic_batch_size), []).append(one)
    marked = {
        (one.strategy, one.dynamic_batch_size): one
        for one in tables["parameter"]
        if one.parameter and one.value == getattr(hparams, one.parameter)
    }
    options = common_options(hparams, dynamic=False)
    figures = {
        "epoch_excerpt": draw_epoch_excerpt(corpus.frames, hparams.batch_size),
        "padding_against_randomness": draw_padding_against_randomness(curves, marked),
        "parameter_sweeps": draw_parameter_sweeps(
            corpus.frames,
            hparams.batch_size,
            local_randomization_factor=hparams.local_randomization_factor,
            bucket_size=max(hparams.bucket_size, hparams.batch_size),
            num_bins=min(hparams.num_bins, len(corpus)),
        ),
        "length_against_position": draw_length_against_position(
            corpus.frames, hparams.batch_size, **options
        ),
    }
    return [path for name, figure in figures.items() for path in write_figure(figure, out / name)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("lengths", type=Path, help="a filelist, or a CSV with the header id,samples or id,frames")
    add("-o", "--out", type=Path, default=Path("compare_batching"), help="default: %(default)s")
    add("--hparams", default="", help=f"as train.py takes, over the paper's {PAPER_SETTING}")
    add("--clips", type=int, help="take so many clips at random")
    add("--draws", type=int, default=5, help="with --clips: draws averaged (default: %(default)s)")
    add("--epochs", type=int, help="plans averaged (default: 5; more for small corpora)")
    add("--seconds", help="dynamic sizes with these capacities as well: 16,32,64,128")
    add("--match-zpr", choices=STRATEGIES, help="find BKT and ATS with the nearest ZPR below")
    add("--cost", type=Path, help="COSTS.json, for predicted minutes and memory")
    add("--recommend", action="store_true", help="name the cheapest batching that mixes enough")
    add("--min-novelty", type=float, help="--recommend: at least so much, from 0 to 1")
    add("--max-memory", type=float, help="--recommend: at most so many GB (10^9 bytes)")
    args = parser.parse_args(arguments)
    for name in ("clips", "draws", "epochs"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: expected a whole number from 1")
    if args.min_novelty is not None and not 0 <= args.min_novelty <= 1:
        parser.error(f"--min-novelty {args.min_novelty}: expected a number from 0 to 1")
    if args.max_memory is not None and not 0 < args.max_memory < math.inf:
        parser.error(f"--max-memory {args.max_memory}: expected gigabytes, more than 0")
    if args.max_memory is not None and args.cost is None:
        parser.error(f"--max-memory needs --cost COSTS.json; {HOW_TO_MEASURE}")
    if (args.min_novelty is not None or args.max_memory is not None) and not args.recommend:
        parser.error("--min-novelty and --max-memory are limits of --recommend; add it")
    try:
        args.seconds = [float(value) for value in (args.seconds or "").split(",") if value.strip()]
    except ValueError:
        parser.error(f"--seconds {args.seconds}: expected numbers, as in 16,32,64,128")
    if any(not 0 < value < math.inf for value in args.seconds):
        parser.error("--seconds: expected numbers greater than 0")
    return args


def prepare(args) -> tuple[Corpus, HParams, StepCosts | None, list[str]]:
    """The whole corpus, settings, costs and notes on them; ValueError for what is wrong."""
    hparams = create_hparams(args.hparams, base=create_hparams(PAPER_SETTING))
    costs = read_costs(args.cost) if args.cost else None
    corpus = read_corpus(args.lengths, hparams)
    longest = int(corpus.frames.argmax())
    if hparams.batch_capacity is not None and hparams.batch_capacity < corpus.frames[longest]:
        raise ValueError(
            f"batch_capacity={hparams.batch_capacity}: less than the longest clip, "
            f"{corpus.ids[longest]}, {corpus.frames[longest]} frames, which must fit into a batch"
        )
    if args.clips and args.clips > len(corpus):
        raise ValueError(f"--clips {args.clips}: {args.lengths} has {len(corpus)} clips")
    notes = []
    if costs is not None:
        if args.max_memory is not None and costs.bytes_per_term is None:
            raise ValueError(f"--max-memory: no memory was measured for {args.cost}")
        corpus, note = with_symbols(corpus, hparams)
        notes.append(f"Costs: {costs.description}.")
        if note:
            notes.append(note)
        differing = costs.differing(asdict(hparams))
        if differing:
            notes.append("Warning: the costs are of other training steps: " + "; ".join(differing))
    return corpus, hparams, costs, notes


def too_small_for(hparams: HParams, clips: int) -> list[str]:
    """Sentences about parameters that make a strategy the same as RAND on so few clips."""
    batches = -(-clips // hparams.batch_size)
    notes = []
    if hparams.bucket_size >= clips > 1:
        notes.append(f"bucket_size={hparams.bucket_size}: all clips in one bucket, so BKT is RAND")
    if clips >= hparams.num_bins >= batches > 1:
        notes.append(f"num_bins={hparams.num_bins} for {batches} batches, so ATS is RAND")
    hint = "; --match-zpr semi_sorted finds values that suit these clips"
    return [note + hint for note in notes]


def heading(args, draws: Sequence[Corpus], hparams: HParams, epochs: int) -> list[str]:
    frames = draws[0].frames
    hours = frames.sum() * hparams.hop_length / hparams.sampling_rate / 3600
    source = f"{args.lengths}"
    if args.clips:
        source += (
            f", {len(draws)} random draws: their means in the first table, else the first draw"
        )
    milliseconds = 1000 * hparams.hop_length / hparams.sampling_rate
    capacity = hparams.batch_capacity or hparams.batch_size * int(frames.max())
    return [
        source,
        f"{len(frames):,} clip{'s' if len(frames) > 1 else ''}, {hours:.2f} hours, "
        f"{frames.min()} to {frames.max()} frames of {milliseconds:.2f} ms "
        f"(hop {hparams.hop_length} samples)",
        f"batch size {hparams.batch_size}; DBS: dynamic sizes, up to {capacity:,} frames a batch; "
        f"means over {epochs} epochs",
    ]


def main(arguments: list[str] | None = None) -> None:
    began = time.monotonic()
    args = parse(arguments)
    try:
        corpus, hparams, costs, notes = prepare(args)
        args.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        sys.exit(f"compare_batching: {error}")
    draws = [corpus]
    if args.clips:
        draws = [
            corpus.take(np.random.default_rng(seed).permutation(len(corpus))[: args.clips])
            for seed in range(args.draws)
        ]
    corpus = draws[0]
    epochs = args.epochs or max(5, min(40, PLANS_OF_SMALL_CORPORA // len(corpus)))
    capacities, refused = capacities_in_frames(args.seconds, corpus, hparams)
    notes += refused + too_small_for(hparams, len(corpus))
    tables, impossible = run_jobs(
        plan_jobs(corpus, hparams, len(draws), capacities), draws, epochs, costs
    )
    surveys = tables["comparison"]
    notes += [f"{name}: not possible ({reason})" for name, reason in impossible.items()]

    sections = [("", comparison_table(surveys), LEGEND)]
    beside = published_table(surveys, hparams, len(corpus))
    if beside:
        sections.append(("Beside the published figures (LJSpeech, Ge et al., Table 2)", beside, ""))
    sizes = padding_by_size(
        tables["batch_size"], lambda s: s.batch_size, {n: f"{n}" for n in BATCH_SIZES}
    )
    unit = "padding in % of the corpus, as in Gonzalez et al., Table 1"
    sections.append((f"Fixed sizes of 1 to 8 clips: {unit}", sizes, ""))
    if capacities:
        by_capacity = padding_by_size(
            tables["capacity"],
            lambda s: s.batch_capacity or hparams.batch_size * int(corpus.frames.max()),
            {frames: f"{seconds:g} s" for seconds, frames in capacities.items()},
        )
        sections.append((f"Dynamic sizes of so many seconds: {unit}", by_capacity, ""))
    lines = heading(args, draws, hparams, epochs) + notes
    closing = []
    if args.match_zpr:
        closing += equal_padding(args.match_zpr, surveys, draws, hparams, epochs)
    if args.recommend:
        closing += recommended(args, corpus, surveys, hparams, costs, epochs)
    show(lines, sections, closing)
    written = write_all(args.out, lines, sections, closing, tables, corpus, hparams)
    print("\nwritten:", *written, sep="\n  ")
    print(f"took {time.monotonic() - began:.1f} s")


def show(lines, sections, closing) -> None:
    print(*lines, sep="\n")
    for title, table, note in sections:
        print(f"\n{title}\n" if title else "")
        print(text_table(*table))
        if note:
            print(f"\n{note}")
    if closing:
        print("", *closing, sep="\n")


def write_all(out: Path, lines, sections, closing, tables, corpus, hparams) -> list[Path]:
    pictures = draw_all(out, corpus, hparams, tables)
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
    sweeps = [(name, one) for name in tables if name != "comparison" for one in tables[name]]
    texts = {
        "comparison.md": "\n\n".join(part for part in parts if part) + "\n",
        "comparison.csv": csv_text(tables["comparison"], [{}] * len(tables["comparison"])),
        "sweeps.csv": csv_text([s for _, s in sweeps], [{"varied": name} for name, _ in sweeps]),
    }
    for name, text in texts.items():
        write_atomically(out / name, lambda file, text=text: file.write_text(text, "utf-8"))
    return [out / name for name in texts] + pictures


if __name__ == "__main__":
    main()
