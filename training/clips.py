"""A run's clips: from the tables beside its filelists, or checked anew by one process a machine."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from clip_table import CHUNK, ClipTable, table_path
from data_utils import (
    changed_clips,
    check_again,
    keep_table,
    kept_table,
    read_filelist,
    warn_of_long_clips,
)
from errors import UserError
from hparams import HParams, check_symbols
from progress import progress_bar
from training.distributed import ALONE, Processes


def read_clips(
    hparams: HParams,
    processes: Processes = ALONE,
    *,
    new_run: bool,
    skipped: Mapping[str, int | None] | None = None,
) -> list[ClipTable]:
    """The training and the validation clips; UserError names all that is wrong with either.

    With a table beside a list no clip is opened but those whose files have changed since, by their
    times. Without a table every clip is looked at, of a new run to its end, and the table is made.
    On each machine one process does this and the others wait for it; they look themselves only
    where no table could be written.

    Args:
        skipped: as `read_filelist` takes it. Lengths are then promises: no table is made of them.
    """
    lists = processes.all_or_none_however_long(
        lambda: _read_lists(hparams, new_run, skipped) if processes.is_first_of_machine else None,
        "check their filelists",
    )
    # A table that could not be written may be there as it was before clips changed.
    kept = all(processes.gather(lists is None or all(table.time for table in lists)))
    lists = processes.all_or_none_however_long(
        lambda: lists or _read_lists(hparams, new_run, skipped, looked_at=kept),
        "check their filelists themselves",
    )
    training, validation = lists
    validated = set(validation.paths())
    shared = sorted(path for path in training.paths() if path in validated)
    if shared:
        print(f"warning: {len(shared)} validation clips are trained on too, {shared[0]} for one")
    for clips in lists:
        seconds = clips.num_frames * (hparams.hop_length / hparams.sampling_rate)
        warning = warn_of_long_clips(
            seconds, lambda i, clips=clips: f"{clips[i].where}: {clips[i].path}"
        )
        if warning:
            print(warning)
    return lists


def _read_lists(
    hparams: HParams,
    new_run: bool,
    skipped: Mapping[str, int | None] | None,
    looked_at: bool = False,
) -> list[ClipTable]:
    check_symbols(hparams)
    lists, problems = [], []
    for filelist in (hparams.training_files, hparams.validation_files):
        try:
            lists.append(_read_list(filelist, hparams, new_run, skipped or {}, looked_at))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return lists


def _read_list(
    filelist: str,
    hparams: HParams,
    new_run: bool,
    skipped: Mapping[str, int | None],
    looked_at: bool,
) -> ClipTable:
    """`looked_at`: another process has just done so with the files of a table that is there."""
    table = kept_table(filelist, hparams)
    if table and (table.complete or not new_run) and _agrees(table, skipped):
        if looked_at:
            return table
        title = f"looking for clips of {filelist} that changed"
        changed = changed_clips(table, _shown(title, f" x {CHUNK:,} clips"))
        changed = np.setdiff1d(changed, list(indices_of(table, skipped)))
        if not len(changed):
            return table
        print(f"{filelist}: {len(changed):,} clips changed since they were checked: reading these")
        table = check_again(table, changed, hparams, _shown(f"checking {filelist}", " clips"))
        return table if skipped else keep_table(table, hparams)
    if new_run and Path(filelist).is_file():
        print(f"{filelist}: no {table_path(filelist).name} of this list: reading every clip once")
    progress = _shown(f"checking {filelist}", " lines")
    table = read_filelist(filelist, hparams, progress, new_run=new_run)
    return table if skipped else keep_table(table, hparams)


def _agrees(table: ClipTable, skipped: Mapping[str, int | None]) -> bool:
    """Whether the clips that are left out have the lengths in it that the run knows."""
    indices = indices_of(table, skipped)
    return all(skipped[id] in (None, table.num_frames[i]) for i, id in indices.items())


def indices_of(table: ClipTable, ids: Iterable[str]) -> dict[int, str]:
    """Index, and id, of every clip with one of these ids."""
    wanted = frozenset(ids)
    if not wanted:
        return {}
    return {i: found for i, found in enumerate(table.ids()) if found in wanted}


def _shown(title: str, unit: str) -> Callable[[list], Iterable]:
    return lambda items: progress_bar(title, len(items), unit, iterable=items)
