"""Minutes of an epoch under the batchings of finished runs, timed in turns.

    python scripts/time_epochs.py runs/table2-small

What else a machine did while it trained is in the minutes that a run logged. Here whole training
steps on a sample of every batching's batches are timed in turns (analysis/epoch_times.py), with
nothing else running. Each run's folder gets epoch_minutes.json, and report.py then compares time by
these figures.
"""

import project_root

import sys
from dataclasses import asdict
from pathlib import Path

import torch

from analysis.arguments import at_least_one, make_parser
from analysis.clips import Clips, clips_of_lengths_file
from analysis.epoch_times import (
    EPOCH_MINUTES_FILE,
    EpochMinutes,
    Plan,
    estimate,
    shapes_of,
    time_plans,
)
from analysis.report_runs import FinishedRun, ReportRow, collect_rows
from analysis.step_costs import COST_SETTINGS
from analysis.tables import text_table
from batching import LengthBatchSampler
from errors import UserError
from files import write_json
from hparams import batching_options
from training.trainer import Trainer


def clips_of(rows: list[ReportRow]) -> Clips:
    """The clips that all rows trained on.

    Raises:
        UserError: if the runs differ in clips or model, or their list is not here any more.
    """
    first = rows[0].runs[0]
    for row in rows:
        run = row.runs[0]
        differing = [
            n for n in COST_SETTINGS if getattr(run.hparams, n) != getattr(first.hparams, n)
        ]
        if differing or run.record.corpus != first.record.corpus:
            what = ", ".join(differing) or "the corpus"
            raise UserError(
                f"{first.directory} and {run.directory} differ in {what}: time them apart"
            )
    clips = clips_of_lengths_file(Path(first.hparams.training_files), first.hparams)
    if clips.frames.tolist() != first.lengths.tolist():
        raise UserError(
            f"{first.hparams.training_files}: not the clips that {first.directory} trained on"
        )
    return clips


def plans_of(run: FinishedRun, clips: Clips) -> dict[bool, Plan]:
    """The plan of an epoch of the run; of one with random batches too if it began with such."""
    h = run.hparams
    sampler = LengthBatchSampler(clips.frames, random_epochs=h.random_epochs, **batching_options(h))
    plans = {}
    for is_random in {h.random_epochs > 0, False}:
        batches = sampler.plan_of(0 if is_random else h.random_epochs)
        plans[is_random] = Plan(run.name, 0, batches, shapes_of(clips, batches, h))
    return plans


def minutes_of(run: FinishedRun, timed: dict[bool, tuple[float, float]]) -> EpochMinutes:
    """From the seconds, and their standard errors, of an epoch's plan, by whether it is random."""
    epochs = len(run.metrics.epochs)
    each = [timed[epoch < run.hparams.random_epochs] for epoch in range(epochs)]
    return EpochMinutes(
        [seconds / 60 for seconds, _ in each], max(error / seconds for seconds, error in each)
    )


def time_rows(rows: list[ReportRow], batches: int, repeats: int) -> list[EpochMinutes]:
    """What an epoch of each row takes."""
    clips, first = clips_of(rows), rows[0].runs[0]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(first.record.machine.get("threads") or torch.get_num_threads())
    plans = [plans_of(row.runs[0], clips) for row in rows]
    flat = [plan for of_row in plans for plan in of_row.values()]
    decoder = first.hparams.decoder
    trainer = Trainer(first.hparams, device)
    found = time_plans(trainer, [decoder], clips, flat, batches=batches, repeats=repeats)[decoder]
    times = iter([estimate(timed["sizes"], timed["seconds"]) for timed in found])
    return [
        minutes_of(row.runs[0], {is_random: next(times) for is_random in of_row})
        for row, of_row in zip(rows, plans, strict=True)
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="holds runs")
    parser.add_argument(
        "--batches", type=at_least_one, default=20, help="timed of each batching (20)"
    )
    parser.add_argument("--repeats", type=at_least_one, default=3, help="steps on each (3)")
    args = parser.parse_args(arguments)
    try:
        rows, left_out = collect_rows(args.folders)
        for problem in left_out:
            print(f"left out: {problem}")
        if not rows:
            raise UserError("no finished run")
        times = time_rows(rows, args.batches, args.repeats)
        for row, found in zip(rows, times, strict=True):
            for run in row.runs:
                write_json(run.directory / EPOCH_MINUTES_FILE, asdict(found))
    except KeyboardInterrupt:
        sys.exit("time_epochs.py: stopped; nothing was written")
    except (UserError, OSError) as error:
        sys.exit(f"time_epochs.py: {error}")
    lines = [
        [row.label, f"{found.minutes[-1]:.3f}", f"{found.minutes[-1] * found.relative_error:.3f}"]
        for row, found in zip(rows, times, strict=True)
    ]
    print(text_table(["batching", "minutes an epoch", "standard error"], lines))
    print(f"wrote {EPOCH_MINUTES_FILE} to the folders of {sum(len(row.runs) for row in rows)} runs")


if __name__ == "__main__":
    main()
