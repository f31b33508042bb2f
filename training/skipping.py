"""Going on without some clips: the epoch's plan stays, and they are left out of its batches."""

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from batching import PaddingStats, padding_stats
from clip_table import ClipTable
from data_utils import LENGTHS_FILE
from errors import UserError
from hparams import HParams
from training.batches import plan_stats
from training.checkpoint import Checkpoint
from training.clips import indices_of, read_clips
from training.distributed import Processes, SaidElsewhere
from training.run import Run


def clips_to_skip(named: str, found: Checkpoint | None) -> list[str]:
    """Ids of --skip-clips, a comma between two, after those that the checkpoint goes on without.

    Raises:
        UserError: if clips are named and there is no run to go on with.
    """
    ids = [item.strip() for item in named.split(",") if item.strip()]
    if found is None:
        if ids:
            raise UserError(
                "--skip-clips: there is no run to go on with; to start one without these clips, "
                "take their lines out of the filelists"
            )
        return []
    return list(dict.fromkeys([*found.state["loop"].get("skipped_clips", {}), *ids]))


def read_clips_but(
    ids: Sequence[str], directory: Path, hparams: HParams, processes: Processes, going_on: bool
) -> list[ClipTable]:
    """`read_clips`, which looks at no file of the clips with these `ids`; their lines stay.

    Their lengths are those in the run's lengths.csv, else in the filelists.

    Raises:
        UserError: on what `read_clips` refuses, on an id that no clip has, and if a list has no
            other clips.
    """
    lengths = _lengths_of_run(directory / LENGTHS_FILE) if ids else {}
    skipped = {name: lengths.get(name) for name in ids}
    try:
        lists = read_clips(hparams, processes, new_run=not going_on, skipped=skipped)
    except SaidElsewhere:
        raise
    except UserError as error:
        if not going_on:
            raise
        raise UserError(f"{error}\n{ADVICE} --skip-clips ID,...; {WHAT_AN_ID_IS}") from None
    if ids:
        processes.all_or_none(lambda: _check_ids(ids, lists))
    return lists


def _check_ids(ids: Sequence[str], lists: list[ClipTable]) -> None:
    found = [indices_of(clips, ids) for clips in lists]
    known = {name for indices in found for name in indices.values()}
    if unknown := [name for name in ids if name not in known]:
        raise UserError(
            f"--skip-clips: no clip is named {', '.join(unknown)}; {WHAT_AN_ID_IS}, "
            f"{lists[0][0].id} for one"
        )
    for clips, indices in zip(lists, found, strict=True):
        if len(indices) == len(clips):
            raise UserError(f"--skip-clips: leaves none of the {len(clips)} clips of a filelist")


ADVICE = "A run can go on without clips that cannot be mended: add --resume"
WHAT_AN_ID_IS = "an id is the name of a clip's file without folder and ending"


def _lengths_of_run(path: Path) -> dict[str, int]:
    """Frames by id; of a name that several clips share, none. Empty where there is no such file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [(row[0], int(row[1])) for row in list(csv.reader(file))[1:]]
    except (OSError, ValueError, IndexError, csv.Error):
        return {}
    lengths = dict(rows)
    return lengths if len(lengths) == len(rows) else {}


def without(batch: np.ndarray, skipped: Collection[int]) -> list[int]:
    return [i for i in batch.tolist() if i not in skipped] if skipped else batch.tolist()


def epoch_stats(run: Run) -> PaddingStats:
    """What the batches of the epoch cost in padding, as they were trained."""
    since = run.state.skipped_clips
    if not since:
        return plan_stats(run.sampler, run.hparams)
    first = {i: since[run.training_clips[i].id] for i in run.sampler.left_out}
    batches = [
        [i for i in batch.tolist() if position < first.get(i, len(run.sampler.plan))]
        for position, batch in enumerate(run.sampler.plan)
    ]
    return padding_stats(
        run.sampler.lengths,
        [batch for batch in batches if batch],
        frames_per_step=run.hparams.n_frames_per_step,
    )


def skip_from_here(run: Run, ids: Sequence[str]) -> None:
    """Note that the clips are left out from the next batch on, unless they were before."""
    new = dict.fromkeys(ids, run.state.batches_trained)
    run.state.skipped_clips = new | run.state.skipped_clips
    if ids:
        print(f"going on without {len(ids)} clips (--skip-clips): {', '.join(ids)}")


def how_to_skip(message: str, tables: Sequence[ClipTable]) -> str:
    """How to go on without the clip whose filelist line a message begins with; "" without one."""
    for clips in tables:
        line, colon, _ = message.removeprefix(f"{clips.filelist}:").partition(": ")
        if colon and line.isdecimal():
            index = int(np.searchsorted(clips.lines, int(line)))
            if index < len(clips) and message.startswith(f"{clips[index].where}: "):
                return f"\n{ADVICE} --skip-clips {clips[index].id}"
    return ""
