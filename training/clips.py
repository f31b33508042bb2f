"""Read a run's filelists, check the clips, and compare them with a checkpoint's clips.

    clips = resolve_clips(hparams, start.resumed, processes, new_clips=False)

Each process reads the filelists itself, because the filelists may differ between machines.
"""

import math
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from audio import unusual_frames
from corpus.cache import ClipTable, clip_id
from corpus.filelist import (
    FIELDS,
    LENGTHS_FILE,
    checked_clips,
    corpus_fingerprint,
    warn_of_long_clips,
    write_lengths,
)
from corpus.speaker_names import check_lookalikes
from data_utils import HOW_TO_CHANGE_CLIPS
from hparams import HParams
from tacotron2_voice.settings import check_text_settings
from tacotron2_voice.speakers import listed, speaker_index
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes, write_bytes
from training.checkpoint import Checkpoint
from training.distributed import ALONE, Processes

HOW_TO_NAME_MOVED_LISTS = (
    "If you moved the filelists of this run, pass their new paths: --resume --hparams "
    "@FOLDER/settings.txt, or --hparams training_files=...,validation_files=..."
)
# File in the run folder that lists the clips of the run. A resumed run compares its clips with this
# file.
CLIPS_FILE = "clips.csv"


@dataclass
class Clips:
    """The clips of a run, and their differences from the checkpoint's clips."""

    training: ClipTable
    validation: ClipTable
    fingerprint: str
    # Number of clips for each kind of change; None: the clips have not changed.
    change: dict[str, int] | None = None


def name_of(clips: ClipTable, index: int) -> str:
    """Return "filelist:line: path" of a clip."""
    return f"{clips[index].where}: {clips[index].path}"


def clip_names(clips: ClipTable, indices: Iterable[int]) -> str:
    return "\n".join(f"  {name_of(clips, int(index))}" for index in indices)


def resolve_clips(
    hparams: HParams, resumed: Checkpoint | None, processes: Processes, *, new_clips: bool
) -> Clips:
    """Read the clips in the filelists, and compare them with the checkpoint's clips.

    Raises:
        UserError: if a clip cannot be read, or if the clips differ from the checkpoint's clips and
            `new_clips` is False.
    """
    is_new = new_clips or resumed is None
    try:
        training, validation = read_clips(hparams, processes, new_run=is_new)
    except UserError as error:
        if resumed and "lines rejected" in str(error):
            error.args = (f"{error}\n{HOW_TO_CHANGE_CLIPS}",)
        if resumed and "no such filelist" in str(error):
            error.args = (f"{error}\n{HOW_TO_NAME_MOVED_LISTS}",)
        raise
    clips = Clips(training, validation, corpus_fingerprint(training, validation))
    if hparams.speaker_embedding_dim:
        # Check the names of the speakers before comparing clips, because --new-clips does not
        # accept unknown speakers.
        processes.all_or_none(lambda: check_speakers(hparams, clips, resumed))
    clips.change = processes.all_or_none(lambda: find_change(clips, resumed, new_clips))
    if new_clips and clips.change is None:
        print(
            "note: --new-clips has no effect, because the filelists contain the same clips as "
            "before"
        )
    return clips


# ---------------------------------------------------------------------------- read


def read_clips(hparams: HParams, processes: Processes = ALONE, *, new_run: bool) -> list[ClipTable]:
    """Read the training and the validation clips.

    If a filelist has a cache, this function opens only clips whose modification time has changed.
    Without a cache, one process per machine checks every clip and writes the cache. If the cache
    cannot be written, every process checks the clips itself. A new run reads every audio file to
    its end.

    Raises:
        UserError: if a filelist or a clip is invalid. The message lists the errors in both
            filelists.
    """
    lists = processes.all_or_none_with_heartbeat(
        lambda: _read_lists(hparams, new_run) if processes.local_rank == 0 else None,
        "check the filelists",
    )
    # If a process could not write the cache of a filelist, the existing cache file may be outdated.
    is_saved = lists is None or all(table.is_on_disk for table in lists if len(table))
    all_saved = all(processes.gather(is_saved))
    lists = processes.all_or_none_with_heartbeat(
        lambda: lists or _read_lists(hparams, new_run, just_checked=all_saved),
        "check their own filelists",
    )
    for warning in _warnings(lists, hparams):
        print(warning)
    return lists


def _read_lists(hparams: HParams, new_run: bool, just_checked: bool = False) -> list[ClipTable]:
    # Check the settings before the filelists, so that an invalid setting is not reported again for
    # every line.
    check_text_settings(hparams)
    lists = []
    problems = []
    filelists = [hparams.training_files]
    if hparams.validation_files:
        filelists.append(hparams.validation_files)
    for filelist in filelists:
        try:
            lists.append(checked_clips(filelist, hparams, new_run, just_checked))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    if not hparams.validation_files:
        lists.append(ClipTable.of("", []))
    return lists


def _warnings(lists: Sequence[ClipTable], hparams: HParams) -> Iterator[str]:
    """Yield warnings about clips that harm training or make the validation loss misleading."""
    training, validation = lists
    candidates = [shared_clips_warning(training, validation), unusual_frames(hparams)]
    for clips in lists:
        if len(clips):
            seconds = clips.num_frames * (hparams.hop_length / hparams.sampling_rate)
            candidates.append(warn_of_long_clips(seconds, partial(name_of, clips)))
    candidates.append(short_limit_warning(lists, hparams))
    yield from (warning for warning in candidates if warning)


def short_limit_warning(lists: Sequence[ClipTable], hparams: HParams) -> str | None:
    """Return a warning if `max_decoder_steps` is too small to synthesize the longest clip."""
    clips = max((table for table in lists if len(table)), key=lambda x: int(x.num_frames.max()))
    longest = int(clips.num_frames.argmax())
    frames = int(clips.num_frames[longest])
    limit = hparams.max_decoder_steps
    steps = math.ceil(frames / hparams.n_frames_per_step)
    if steps <= limit:
        return None
    return (
        f"warning: max_decoder_steps={limit} is too small for the longest clip, which needs "
        f"{steps:,} decoder steps: {name_of(clips, longest)}. Set max_decoder_steps={2 * steps}, "
        "or remove the clip from the filelist"
    )


def shared_clips_warning(training: ClipTable, validation: ClipTable) -> str | None:
    """Return a warning if any clip is in both the training and the validation filelist."""
    trained = {os.path.abspath(path) for path in training.paths()}
    validated = {os.path.abspath(path) for path in validation.paths()}
    shared = trained & validated
    if not shared:
        return None
    return (
        f"warning: {len(shared):,} of {len(validated):,} validation clips are also training clips, "
        f"for example {min(shared)}. Their validation loss does not show how well the model speaks "
        "new texts. Remove these clips from the training filelist, or train without validation: "
        "validation_files=none"
    )


# ---------------------------------------------------------------------------- speakers


def resolve_speakers(hparams: HParams, clips: Clips, resumed: Checkpoint | None) -> HParams:
    """Return a copy of the settings that contains the list of speaker names.

    A new run lists the speakers of its training clips in alphabetical order. A resumed run keeps
    the list of speakers from the checkpoint. Print a warning if the clips have several speakers but
    the model has only one speaker.
    """
    trained = tuple(sorted(clips.training.speakers))
    if hparams.speaker_embedding_dim:
        return replace(hparams, speakers=hparams.speakers or trained)
    if len(trained) > 1:
        other_run = f", in a new run with {from_weights(resumed)}" if resumed else ""
        print(
            f"warning: {hparams.training_files} has {len(trained):,} speakers ({listed(trained)}), "
            "but the model is trained as if they were one speaker. To keep them separate, add "
            f"--hparams speaker_embedding_dim=64{other_run}"
        )
    return hparams


def check_speakers(hparams: HParams, clips: Clips, resumed: Checkpoint | None = None) -> None:
    """Check that the model has an embedding for the speaker of every clip.

    Raises:
        UserError: if a filelist has no speakers; if a speaker is missing from the training filelist
            or the checkpoint; or if two speakers of a new run have names that look alike.
    """
    setting = f"speaker_embedding_dim={hparams.speaker_embedding_dim}"
    other_run = f", or start a new run with {from_weights(resumed)}" if resumed else ""
    if resumed and not hparams.speakers:
        raise UserError(
            f"{setting}: {resumed.path} was trained without speaker names. Leave this setting "
            f"out{other_run}"
        )
    for table in (clips.training, clips.validation):
        if len(table) and not table.speakers:
            raise UserError(
                f"{setting}: {table.filelist} has no speakers. Write its lines as {FIELDS}, or "
                "prepare the corpus again with --speaker NAME (docs/guides/speakers.md)"
            )
    if resumed:
        known = hparams.speakers
        where = f"the checkpoint {resumed.path}"
    else:
        known = clips.training.speakers
        where = hparams.training_files
        _, firsts = np.unique(clips.training.speaker_numbers, return_index=True)
        first_clips = [clips.training[i] for i in firsts.tolist()]
        check_lookalikes([(clip.speaker, clip.where) for clip in first_clips])
    for table in (clips.training, clips.validation):
        is_unknown = ~np.isin([*table.speakers], known)[table.speaker_numbers]
        if not is_unknown.any():
            continue
        first = table[int(is_unknown.argmax())]
        try:
            speaker_index(first.speaker, known, where)
        except UserError as error:
            raise UserError(
                f"{first.where}: {error}. {int(is_unknown.sum()):,} of {len(table):,} lines have "
                f"unknown speakers. Correct or remove these lines{other_run}"
            ) from None


def from_weights(source: Checkpoint) -> str:
    """Return the train.py options for starting a run from a checkpoint's weights."""
    return f"-c {shlex.quote(str(source.path))} --warm_start"


# ---------------------------------------------------------------------------- changed clips


def find_change(
    clips: Clips, resumed: Checkpoint | None, is_allowed: bool
) -> dict[str, int] | None:
    """Count the clips that differ from the checkpoint's clips; return None if no clip differs.

    A clip counts as "changed" if its text, speaker or length has changed. Clips that moved between
    the training and the validation filelist are counted separately.

    Raises:
        UserError: if any clip differs and `is_allowed` is False.
    """
    if resumed is None or resumed.state["corpus"] == clips.fingerprint:
        return None
    path = resumed.path.with_name(CLIPS_FILE)
    text = read_bytes(path).decode("utf-8", "surrogateescape") if path.exists() else ""
    before = _by_id(text.split("\n")[1:-1])
    now = _by_id(_rows(clips))
    both = before.keys() & now.keys()
    change = {"added": len(now.keys() - both), "gone": len(before.keys() - both), "changed": 0}
    for clip in both:
        if sorted(before[clip]) == sorted(now[clip]):
            continue
        new_lists = {name for name, *_ in now[clip]} - {name for name, *_ in before[clip]}
        kind = f"moved to {new_lists.pop()}" if new_lists else "changed"
        change[kind] = change.get(kind, 0) + 1
    if not is_allowed:
        raise UserError(
            f"{resumed.path}: training_files and validation_files contain clips that differ from "
            f"the checkpoint's clips: {describe_change(change)}. Use the checkpoint's filelists "
            "and audio settings, or accept the new clips with --resume --new-clips"
        )
    return change


def describe_change(change: dict[str, int]) -> str:
    """Return a phrase such as "3 added, 1 gone, 0 changed"."""
    if not any(change.values()):
        return "the same clips in a different order"
    return ", ".join(f"{count:,} {kind}" for kind, count in change.items())


def _rows(clips: Clips) -> Iterator[str]:
    for name, table in (("training", clips.training), ("validation", clips.validation)):
        columns = table.paths_and_texts(), table.num_frames.tolist(), table.labels()
        for (path, text), frames, labels in zip(*columns, strict=True):
            checksum = zlib.crc32(f"{text}{labels}".encode())
            yield f"{name},{frames},{checksum:08x},{clip_id(path)}"


def _by_id(rows: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return {clip id: rows of the clip}; each row is [filelist, frames, checksum].

    A clip has one row for each line of the filelists that contains this clip.
    """
    found: dict[str, list[list[str]]] = {}
    for row in rows:
        *facts, clip = row.split(",", 3)
        found.setdefault(clip, []).append(facts)
    return found


def write_clips(directory: Path, clips: Clips) -> None:
    """Write lengths.csv and clips.csv, which list the clips of the run."""
    content = "\n".join(["list,frames,text_crc32,id", *_rows(clips), ""])
    write_bytes(directory / CLIPS_FILE, content.encode("utf-8", "surrogateescape"))
    write_lengths(directory / LENGTHS_FILE, clips.training)
