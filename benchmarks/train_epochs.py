"""Minutes per epoch of whole training on a GPU, under several batchings and precisions.

    python benchmarks/train_epochs.py --json train_epochs.json   # lengths made up like LJSpeech's
    python benchmarks/train_epochs.py lengths.csv --symbols metadata.csv --budget 1200

Training as train.py does it: its loader with its processes, cached mels, its steps one after the
other; all but checkpoints, logs and validation. benchmarks/epoch.py samples batches and reads no
data; here consecutive steps of an epoch are made, and whole epochs where --budget allows.

The mels are noise, written to a temporary folder, as long as the clips of lengths.csv (which
benchmarks/epoch.py explains) or as LJSpeech's. The settings are the paper's (batch size 16, 12.5 ms
between frames) and the fast decoder's. Batchings: SSB-DBS-BR, RAND, SSB-exp-DBS-BR, and SSB-DBS-BR
with twice and four times the capacity; each in bf16, tf32 and fp32, in the order of the table.

Before a setting is measured, each graph that it needs is captured, and some steps show how fast it
is. Time is then shared out: every setting gets as much of what is left as --epochs epochs take, or
an equal part of it. Steps in a row are timed from an epoch's first batch on; its batches are in
random order, so the first ones stand for all. What follows +- is a standard error: of the mean of
whole epochs, or by the share of an epoch that was measured, from a regression on decoder steps
(Cochran, Sampling Techniques, chapter 7).

At the end the fast and the reference decoder are timed alone, on a sample of the same batches of
SSB-DBS-BR, and torch's profiler counts how busy a few steps of every setting keep the GPU. Where
kernels are launched early their times include their waiting for one another, so this is an upper
bound; benchmarks/busy.py tells more. Results are written anew after every part.
"""

from project_root import ROOT

import argparse
import itertools
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

# Room for more kernels in the profiler's buffers, which are full after 128 MB otherwise.
os.environ.setdefault("KINETO_CONFIG", str(ROOT / "benchmarks" / "kineto.conf"))

import numpy as np
import torch

from analysis import fast_path
from analysis.arguments import (
    add_device_option,
    add_json_option,
    add_picture_option,
    at_least_one,
    make_parser,
    positive,
    precision_list,
    whole_number,
)
from analysis.clips import Clips, clips_of_lengths_file, make_corpus, synthetic_clips
from analysis.epoch_minutes_figure import draw_epoch_minutes
from analysis.epoch_times import Plan, estimate, shapes_of, time_plans
from analysis.figures import write_picture
from analysis.strategies import batching_name
from analysis.tables import markdown_table
from analysis.training_steps import Training, busy_share, collect, profiled
from batching import LengthBatchSampler
from clip_table import ClipTable
from corpus.metadata import SPLIT_FILE
from data_utils import read_filelist, synthetic_batch
from errors import UserError
from files import write_json
from hparams import HParams, create_hparams
from training.setup import make_sampler, plan_stats
from training.machine import (
    is_out_of_memory,
    measured_on,
    peak_memory,
    reset_peak_memory,
    synchronize,
)
from training.trainer import Trainer

if fast_path.IS_HERE:
    from fast_decoder.graphs import bucket

PROGRAM = "train_epochs.py"
PAPER = "batch_size=16,win_time=50,hop_time=12.5,decoder=fast"
# Strategy, dynamic sizes and batches in random order, times the capacity; most telling first.
BATCHINGS = (
    ("semi_sorted", True, 1),
    ("random", False, 1),
    ("semi_sorted_exponential", True, 1),
    ("semi_sorted", True, 2),
    ("semi_sorted", True, 4),
)
# Of an epoch, over that of the precision before: for the first plan only, until it is measured.
NEXT_PRECISION_TAKES = 1.4
KEPT_FOR_THE_END = 0.2  # of the budget: the decoders alone, and the profiler
LEAST_FOR_A_PART = 0.01  # of the budget: a part at the end is begun with no less
SETTLING = 5  # steps after which the loader is ahead


@dataclass
class TrainingSetting:
    """What is measured: a precision and a batching; and what was found."""

    hparams: HParams
    name: str  # the batching's
    capacity: int  # padded frames a batch
    sampler: LengthBatchSampler  # of its first epoch
    shapes: np.ndarray  # [batches, 3] of that epoch: clips, padded frames, padded symbols
    row: dict = field(default_factory=dict)  # for the JSON

    @property
    def decoder_steps(self) -> np.ndarray:
        """[batches]"""
        return self.shapes[:, 1] // self.hparams.n_frames_per_step


def make_settings(base: HParams, precisions: list[str], table: ClipTable) -> list[TrainingSetting]:
    """Every precision with every batching, in the order in which they are measured."""
    settings = []
    lengths = Clips(table.num_frames, table.num_symbols, "")
    for precision in precisions:
        for strategy, dynamic, times in BATCHINGS:
            hparams = replace(
                base,
                precision=precision,
                batching_strategy=strategy,
                dynamic_batch_size=dynamic,
                batch_randomization=dynamic,
                batch_size=times * base.batch_size,
            )
            sampler = make_sampler(table, hparams)
            settings.append(
                TrainingSetting(
                    hparams,
                    batching_name(strategy, dynamic, dynamic),
                    hparams.batch_size * int(table.num_frames.max()),
                    sampler,
                    shapes_of(lengths, sampler.plan, hparams),
                )
            )
            settings[-1].row = describe(settings[-1])
    return settings


def describe(setting: TrainingSetting) -> dict:
    """What a setting's epoch is, whatever it takes."""
    return {
        "precision": setting.hparams.precision,
        "batching": setting.name,
        "strategy": setting.hparams.batching_strategy,
        "batch_size": setting.hparams.batch_size,
        "capacity": setting.capacity,
        "epoch": asdict(plan_stats(setting.sampler, setting.hparams)),
        "status": "not run: the time was up",
    }


# ---------------------------------------------------------------------------- the plan


def share_out(seconds: float, wanted: list[float]) -> list[float]:
    """Seconds for each job: what it wants, or, if that is too much, an equal part of what those
    that want less leave over."""
    shares, left = [0.0] * len(wanted), max(0.0, seconds)
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], left / (len(wanted) - place))
        left -= shares[index]
    return shares


def steps_for(seconds: float, epoch_seconds: float, batches: int, epochs: int, least: int) -> int:
    """Training steps that take so long: up to `epochs` whole epochs, or else a part of one, of
    `least` steps or more."""
    whole = min(epochs, int(seconds / epoch_seconds * (1 + 1e-9)))
    if whole:
        return whole * batches
    return min(batches, max(least, int(seconds / epoch_seconds * batches)))


def predict(settings: list[TrainingSetting], measured: dict[int, float]) -> list[float]:
    """Seconds of an epoch of each setting, from the measured seconds of a decoder step of some.

    Of the others, those of the last measured one of the same precision count; a precision that
    comes later takes NEXT_PRECISION_TAKES times as long as the one before.
    """
    predicted, last, precision = [], 0.0, settings[0].hparams.precision
    for index, setting in enumerate(settings):
        if setting.hparams.precision != precision:
            precision = setting.hparams.precision
            last *= NEXT_PRECISION_TAKES
        last = measured.get(index, last)
        predicted.append(last * float(setting.decoder_steps.sum()))
    return predicted


def plan_table(settings: list[TrainingSetting], predicted: list[float], shares: list[float]) -> str:
    """Markdown: what is to be measured in what time."""
    cells = [
        [
            s.hparams.precision,
            s.name,
            f"{s.capacity:,}",
            f"{len(s.shapes):,}",
            f"{epoch:.3g} s",
            f"{share:.3g} s",
        ]
        for s, epoch, share in zip(settings, predicted, shares, strict=True)
    ]
    titles = ["precision", "batching", "capacity", "batches an epoch", "an epoch may take", "gets"]
    return markdown_table(titles, cells, 2)


# ---------------------------------------------------------------------------- measuring


def moment(device: torch.device) -> object:
    """Now, on a GPU when all work given to it so far is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(moments: list) -> np.ndarray:
    """[moments - 1] after `synchronize`."""
    if isinstance(moments[0], float):
        return np.diff(moments)
    pairs = itertools.pairwise(moments)
    return np.array([before.elapsed_time(after) / 1000 for before, after in pairs])


def capture(trainer: Trainer, setting: TrainingSetting) -> None:
    """Forward and backward of the costliest batch of every bucket, so that no graph is left to
    capture; on a GPU only."""
    if trainer.device.type != "cuda" or not fast_path.IS_HERE:
        return
    costliest = {}
    for shape in sorted(setting.shapes.tolist(), key=lambda shape: shape[0] * shape[1]):
        costliest[bucket(shape[0], shape[2])] = shape
    for clips, frames, symbols in costliest.values():
        batch = synthetic_batch([frames] * clips, [symbols] * clips, trainer.hparams)
        trainer.compute_gradients(batch.to(trainer.device))
        trainer.model.zero_grad(set_to_none=True)
    synchronize(trainer.device)


def time_steps(trainer: Trainer, table: ClipTable, steps: int) -> tuple[np.ndarray, dict]:
    """[steps] seconds of each, from the first batch of an epoch on, and what they needed."""
    training, device = Training(trainer, table), trainer.device
    training.fetch()  # the first batch waits for the loader's processes to start
    reset_peak_memory(device)
    moments = [moment(device)]
    for _ in range(steps):
        training.run(1)
        moments.append(moment(device))
    synchronize(device)
    seconds = seconds_between(moments)
    return seconds, {
        "waited_for_data": training.waited / float(seconds.sum()),
        "padded_frames_per_second": training.padded_frames / float(seconds.sum()),
        "real_frames_per_second": training.real_frames / float(seconds.sum()),
        "peak_memory_bytes": peak_memory(device),
    }


def epoch_time(
    seconds: np.ndarray, decoder_steps: np.ndarray
) -> tuple[float, float | None, float | None]:
    """(seconds of an epoch, standard error, share of it that was measured).

    Args:
        seconds: [steps] of whole epochs one after another, or of a part of one.
        decoder_steps: [batches] of an epoch's batches, in the order of training.

    The error is that of the mean of several epochs, or of a regression of the seconds of the
    measured part on decoder steps; None for one epoch.
    """
    measured, batches = len(seconds), len(decoder_steps)
    if measured >= batches:
        # Later epochs may have a few batches more or fewer; each counts by its part.
        epochs = [part.mean() * batches for part in np.array_split(seconds, measured // batches)]
        error = float(np.std(epochs, ddof=1)) / math.sqrt(len(epochs)) if len(epochs) > 1 else None
        return float(np.mean(epochs)), error, 1.0
    x = decoder_steps[:measured].astype(float)
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (seconds - seconds.mean())).sum()) / spread if spread else 0.0
    total = batches * (float(seconds.mean()) + slope * float(decoder_steps.mean() - x.mean()))
    error = None
    if measured > 2:
        rest = seconds - seconds.mean() - slope * (x - x.mean())
        variance = float((rest**2).sum()) / (measured - 2)
        error = batches * math.sqrt((1 - measured / batches) * variance / measured)
    return total, error, measured / batches


class Benchmark:
    """All settings one after another, within the budget."""

    def __init__(self, args: argparse.Namespace, clips: Clips, table: ClipTable, base: HParams):
        self.args, self.clips, self.table, self.base = args, clips, table, base
        self.settings = make_settings(base, args.precisions, table)
        self.decoder = "not chosen"

    def left(self) -> float:
        return self.args.budget - (time.perf_counter() - self.args.began)

    def save(self) -> None:
        if self.args.json:
            write_json(self.args.json, self.result())

    def result(self) -> dict:
        return {
            **measured_on(self.args.device),
            "clips": self.clips.source,
            "fast_decoder": self.decoder,
            "budget_seconds": self.args.budget,
            "hparams": asdict(self.base),
            "rows": [setting.row for setting in self.settings],
        }

    def run(self) -> None:
        speeds: dict[int, float] = {}
        for index, setting in enumerate(self.settings):
            if self.left() < KEPT_FOR_THE_END * self.args.budget and index:
                break
            try:
                self.measure(index, setting, speeds)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                setting.row["status"] = "does not fit into memory"
                torch.cuda.empty_cache()
            add_savings([setting.row for setting in self.settings])
            self.save()
            log(one_line(setting.row))
        measured = [setting for setting in self.settings if setting.row["status"] == "measured"]
        for setting in measured:
            if (setting.name, setting.hparams.batch_size) == ("SSB-DBS-BR", self.base.batch_size):
                self.compare_decoders(setting)
        for setting in measured:
            self.count_busy(setting)

    def measure(self, index: int, setting: TrainingSetting, speeds: dict[int, float]) -> None:
        """Capture, look how fast it is, plan, and time as many steps as that allows."""
        trainer = Trainer(setting.hparams, self.args.device)
        self.decoder = trainer.decoder_description
        capture(trainer, setting)
        first = min(SETTLING + self.args.warm_ups, len(setting.shapes))
        seconds, _ = time_steps(trainer, self.table, first)
        used = slice(min(SETTLING, first - 1), first)
        speeds[index] = float(seconds[used].sum() / setting.decoder_steps[used].sum())
        predicted = predict(self.settings, speeds)[index:]
        wanted = [self.args.epochs * epoch for epoch in predicted]
        shares = share_out(self.left() - KEPT_FOR_THE_END * self.args.budget, wanted)
        if index == 0:
            log(f"the plan, of {self.left():.0f} s that are left:\n")
            log(plan_table(self.settings, predicted, shares) + "\n")
        batches, least = len(setting.shapes), self.args.least_steps
        steps = steps_for(shares[0], predicted[0], batches, self.args.epochs, least)
        log(
            f"{setting.row['precision']} {setting.name} of {setting.capacity:,} frames: "
            f"{steps:,} steps, {batches:,} an epoch"
        )
        seconds, found = time_steps(trainer, self.table, steps)
        epoch, error, share = epoch_time(seconds, setting.decoder_steps)
        setting.row |= found | {
            "status": "measured",
            "steps": steps,
            "share_of_epoch": share,
            "epochs": steps // batches,
            "minutes_per_epoch": epoch / 60,
            "standard_error_minutes": None if error is None else error / 60,
        }

    def compare_decoders(self, setting: TrainingSetting) -> None:
        """Both decoders alone, without data, on a sample of the setting's batches."""
        if self.left() < LEAST_FOR_A_PART * self.args.budget:
            return
        trainer = Trainer(setting.hparams, self.args.device)
        batches = [setting.sampler.plan[number] for number in range(len(setting.shapes))]
        plan = Plan(setting.name, setting.capacity, batches, setting.shapes)
        options = {"batches": self.args.reference_batches, "repeats": 1}
        found = time_plans(trainer, ["fast", "reference"], self.clips, [plan], **options)
        (fast, _), (reference, error) = (
            estimate(timed["sizes"], timed["seconds"])
            for timed in (found["fast"][0], found["reference"][0])
        )
        setting.row["reference"] = {
            "batches": sum(map(len, found["reference"][0]["seconds"])),
            "minutes_per_epoch": reference / 60,
            "standard_error_minutes": error / 60,
            "fast_minutes_per_epoch": fast / 60,
            "fast_over_reference": reference / fast,
            "peak_memory_bytes": found["reference"][0]["peak_memory_bytes"],
        }
        self.save()

    def count_busy(self, setting: TrainingSetting) -> None:
        """How busy a few steps keep the GPU."""
        if self.args.device.type != "cuda" or self.left() < LEAST_FOR_A_PART * self.args.budget:
            return
        training = Training(Trainer(setting.hparams, self.args.device), self.table)
        training.run(SETTLING)
        session, profiler = profiled(training, self.args.session)
        collect(session, profiler.profiler.kineto_results.events())
        setting.row["busy_at_most"] = busy_share(session)
        self.save()


def add_savings(rows: list[dict]) -> None:
    """What each batching saves against random batches of the same precision, and the standard
    error of that where both have one."""
    for row in rows:
        random = next(
            (r for r in rows if r["precision"] == row["precision"] and r["batching"] == "RAND"), {}
        )
        if row is random or "minutes_per_epoch" not in row or "minutes_per_epoch" not in random:
            continue
        ratio = row["minutes_per_epoch"] / random["minutes_per_epoch"]
        errors = [
            r["standard_error_minutes"] and r["standard_error_minutes"] / r["minutes_per_epoch"]
            for r in (row, random)
        ]
        row["saved"] = 1 - ratio
        row["saved_standard_error"] = None if None in errors else ratio * math.hypot(*errors)


# ---------------------------------------------------------------------------- the report


def with_error(value: float, error: float | None, shown: str) -> str:
    return f"{value:{shown}}" + ("" if error is None else f" ± {error:{shown}}")


def measured_in_words(row: dict) -> str:
    if row["epochs"]:
        return "1 epoch" if row["epochs"] == 1 else f"{row['epochs']} epochs"
    return f"{row['steps']:,} steps, {row['share_of_epoch']:.0%} of an epoch"


def one_line(row: dict) -> str:
    """A measured setting, for those who watch."""
    if row["status"] != "measured":
        return row["status"]
    return (
        f"  {with_error(row['minutes_per_epoch'], row['standard_error_minutes'], '.3g')} min/epoch "
        f"({measured_in_words(row)}), {row['padded_frames_per_second']:,.0f} padded frames/s, "
        f"waited for data {row['waited_for_data']:.1%}"
    )


def report(result: dict) -> str:
    """Markdown."""
    cells, compared = [], []
    for row in result["rows"]:
        begin = [row["precision"], row["batching"], f"{row['capacity']:,}"]
        if row["status"] != "measured":
            cells.append([*begin, row["status"], *[""] * 7])
            continue
        busy, peak = row.get("busy_at_most"), row["peak_memory_bytes"]
        saved = "–"
        if "saved" in row:
            error = row["saved_standard_error"]
            saved = with_error(100 * row["saved"], error and 100 * error, ".1f") + " %"
        minutes = with_error(row["minutes_per_epoch"], row["standard_error_minutes"], ".3g")
        cells.append(
            [
                *begin,
                minutes,
                measured_in_words(row),
                saved,
                f"{row['padded_frames_per_second']:,.0f}",
                f"{row['real_frames_per_second']:,.0f}",
                f"{row['waited_for_data']:.1%}",
                "not measured" if busy is None else f"at most {busy:.1%}",
                "not measured" if peak is None else f"{peak / 1e9:.2f} GB",
            ]
        )
        if reference := row.get("reference"):
            shown = (reference["minutes_per_epoch"], reference["standard_error_minutes"], ".3g")
            compared.append(
                [
                    row["precision"],
                    row["batching"],
                    with_error(*shown),
                    f"{reference['fast_minutes_per_epoch']:.3g}",
                    f"{reference['fast_over_reference']:.2f} x",
                ]
            )
    titles = ["precision", "batching", "capacity", "min/epoch", "measured in", "saved"]
    titles += ["padded frames/s", "real frames/s", "waited for data", "GPU busy", "peak memory"]
    heading = (
        f"{result['device']}, torch {result['versions']['torch']}: {result['clips']}; "
        f"decoder: {result['fast_decoder']}"
    )
    tables = [markdown_table(titles, cells, 2)]
    if compared:
        titles = ["precision", "batching", "reference, min/epoch", "fast", "fast over reference"]
        count = next(r["reference"]["batches"] for r in result["rows"] if "reference" in r)
        tables.append(f"Both decoders alone, without data, on {count} of the same batches:")
        tables.append(markdown_table(titles, compared, 2))
    return "\n\n".join([heading, *tables])


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("lengths", nargs="?", type=Path, help="default: lengths like LJSpeech's, made up")
    add("--symbols", type=Path, metavar="METADATA.csv", help="lines of id|text, to count symbols")
    add("--clips", type=whole_number(2), default=10480, help="clips to make up; default 10480")
    add_device_option(parser)
    shown = "seconds for everything, the corpus too; default %(default)g"
    add("--budget", type=positive, default=520.0, metavar="SECONDS", help=shown)
    add("--precisions", type=precision_list, help="default: bf16,tf32,fp32, on a CPU fp32")
    add("--epochs", type=at_least_one, default=2, help="of a setting at most; default %(default)s")
    shown = "of a setting, whatever the budget; default %(default)s"
    add("--least-steps", type=whole_number(3), default=40, help=shown)
    shown = "steps that show how fast a setting is; default %(default)s"
    add("--warm-ups", type=at_least_one, default=15, help=shown)
    shown = "of a precision, for the reference decoder; default %(default)s"
    add("--reference-batches", type=whole_number(2), default=4, help=shown)
    add("--session", type=at_least_one, default=10, help="profiled steps; default %(default)s")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add_json_option(parser)
    add_picture_option(parser)
    args = parser.parse_args(arguments)
    args.began = time.perf_counter()
    if args.precisions is None:
        args.precisions = ["bf16", "tf32", "fp32"] if args.device.type == "cuda" else ["fp32"]
    if args.symbols and not args.lengths:
        parser.error("--symbols METADATA.csv: name the lengths of its clips too")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    with tempfile.TemporaryDirectory(prefix="train_epochs-") as folder:
        try:
            hparams = create_hparams(args.hparams, create_hparams(PAPER))
            hparams = replace(hparams, load_mel_from_disk=True)
            if args.lengths is None:
                clips = synthetic_clips(args.clips, hparams)
            else:
                clips = clips_of_lengths_file(args.lengths, hparams, args.symbols, SPLIT_FILE)
            log(f"{clips.source}: writing their mels")
            table = read_filelist(make_corpus(Path(folder), clips, hparams), hparams)
            log(f"written and read, {time.perf_counter() - args.began:.0f} s")
            benchmark = Benchmark(args, clips, table, hparams)
        except UserError as error:
            sys.exit(f"{PROGRAM}: {error}")
        benchmark.run()
    benchmark.save()
    print(report(benchmark.result()))
    if args.json:
        print(f"\nwrote {args.json}")
    figure = draw_epoch_minutes([setting.row for setting in benchmark.settings])
    if args.picture and figure is not None:
        write_picture(figure, args.picture)
        print(f"wrote {args.picture}")


if __name__ == "__main__":
    main()
