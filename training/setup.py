"""Set up a run before its first step: output folder, checkpoint, settings, clips and batches.

Each process checks the files itself, because they may differ between machines. Either all processes
continue or none does. Nothing is written before everything is checked.
"""

import math
import os
import shlex
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from audio import unusual_frames
from corpus.cache import ClipTable
from corpus.clips import clip_id
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
from export import checkpoint_file
from hparams import (
    HParams,
    check_text_settings,
    create_hparams,
    hparams_from_dict,
    read_symbols,
    symbols_path,
)
from machine import describe_environment, fingerprint_of_code, versions
from tacotron2_voice.settings import HAS_PYDANTIC, MAX_DECODER_STEPS
from tacotron2_voice.speakers import listed, speaker_index
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_bytes, remove_leftovers, write_bytes
from tacotron2_voice.version import __version__
from training import checkpoint, warm_start
from training.checkpoint import Checkpoint
from training.distributed import ALONE, Processes
from training.epoch import Clips, Run, name_of
from training.logging import OutputFolder, RunLogger
from training.speakers import speech_of_speakers
from training.trainer import choose_decoder

# All code that trains: it must be the same in every process
FOLDERS = ("corpus", "export", "fast_decoder", "length_batching", "tacotron2_voice", "training")
CODE = ("*.py", *(f"{folder}/**/*.py" for folder in FOLDERS))
WORKERS_PER_CPU = 4  # at most; workers also wait for the disk
HOW_TO_NAME_MOVED_LISTS = (
    "The run resumes with the same lists elsewhere: if they were moved, name them: --resume "
    "--hparams @FOLDER/settings.txt, or training_files=...,validation_files=..."
)
CLIPS_FILE = "clips.csv"  # in a run's folder: what it was trained on, to say what changed


# ---------------------------------------------------------------------------- checkpoint, settings


class Start(NamedTuple):
    """The checkpoint that a run starts from; with neither it starts from step 0."""

    resumed: Checkpoint | None = None
    weights: Checkpoint | None = None  # of another model (--warm_start)


def find_start(
    output: OutputFolder,
    processes: Processes,
    path: Path | None,
    *,
    resume: bool,
    warm_start: bool,
) -> Start:
    """Find the newest checkpoint of the folder (`resume`), or the one at `path`. Every process
    reads the one that the first process finds. UserError if it cannot be used, or if the output
    folder holds a run that no option says to resume."""

    def find() -> Checkpoint | None:
        holds_run = output.holds_run()
        if resume:
            return checkpoint.load_newest(output.path) if holds_run else None
        source = path if not warm_start else None
        if holds_run and not (source and lies_in(source, output.path)):
            other = f"{os.path.realpath(source)} is no checkpoint in it; " if source else ""
            raise UserError(
                f"{output.path} holds a run: {other}add --resume to resume it, or choose another -o"
            )
        return Checkpoint.read(source) if source else None

    resumed = processes.all_or_none(lambda: find() if processes.is_first else None)
    resumed_path = processes.gather(resumed and resumed.path)[0]

    def read() -> Start:
        if resumed_path is not None:
            return Start(resumed=checkpoint.complete(resumed or Checkpoint.read(resumed_path)))
        return Start(weights=Checkpoint.read(path)) if path is not None and warm_start else Start()

    return processes.all_or_none(read)


def lies_in(path: Path, directory: Path) -> bool:
    """Whether the file, or the link to it, lies in `directory`."""
    real = os.path.realpath
    return real(directory) in (os.path.dirname(real(path)), real(path.parent))


def settle_hparams(
    overrides: str, start: Start, processes: Processes, folder: Path | None = None
) -> HParams:
    """Apply this command's overrides to the checkpoint's settings, or to the defaults. With the
    `folder` of a run that goes back, says which settings of its newest checkpoint are not kept.
    Raises UserError for settings that are wrong or that this run can't change."""

    def settle() -> HParams:
        resumed = start.resumed
        base = resumed and hparams_from_dict(resumed.state["hparams"])
        hparams = create_hparams(overrides, base) if base else create_hparams(overrides)
        for name, value in asdict(base).items() if base else ():
            if getattr(hparams, name) != value:
                print(
                    f"changed since the checkpoint: {name} = {getattr(hparams, name)}, was {value}"
                )
        if resumed and base and folder and (lost := later_settings(base, hparams, folder)):
            print(
                f"going back to {resumed.path} goes back to its settings too; to keep the "
                f"later ones: --hparams {lost}"
            )
        hparams = settle_symbols(check_text_settings(hparams), base)
        if hparams.batches_per_update == 1 and processes.world_size > 1:
            hparams = replace(hparams, batches_per_update=processes.world_size)
            print(
                f"batches_per_update = {hparams.batches_per_update}, one for each process: updates "
                "are larger and fewer than in one process, which is another training"
            )
        if hparams.sync_batch_norm and processes.device == torch.device("cpu"):
            raise UserError(
                "sync_batch_norm=True: torch shares batch norm's statistics only between GPUs, "
                "and these processes train on CPUs; leave it out"
            )
        return hparams

    return processes.all_or_none(settle)


def later_settings(base: HParams, hparams: HParams, folder: Path) -> str:
    """The settings of the folder's newest checkpoint that `hparams` has from the older `base`, as
    --hparams takes them; "" where no checkpoint there is good."""
    try:
        newest = hparams_from_dict(checkpoint.load_newest(folder).state["hparams"])
    except UserError:
        return ""
    later = {
        name: value
        for name, value in asdict(newest).items()
        if getattr(base, name) == getattr(hparams, name) != value
    }
    texts = {x: f"[{','.join(y)}]" if isinstance(y, tuple) else y for x, y in later.items()}
    return ",".join(f"{name}={text}" for name, text in texts.items())


def settle_symbols(hparams: HParams, resumed: HParams | None) -> HParams:
    """Add the table of symbols to the settings; a `resumed` run keeps the checkpoint's. UserError
    if `symbols` names a file with another table. The corpus's own table may have changed with its
    clips: symbols that the checkpoint lacks are then refused in the texts that have them."""
    path = symbols_path(hparams)
    if resumed is None:
        return read_symbols(hparams)
    if hparams.symbols == resumed.symbols == "corpus":
        return hparams
    changed = hparams.symbols != resumed.symbols or (hparams.symbol_table and path.exists())
    if changed and read_symbols(hparams).symbol_table != resumed.symbol_table:
        raise UserError(
            f"symbols={hparams.symbols}: {path} is another table than the checkpoint's, of "
            f"{len(resumed.table)} symbols: put that back, or start another run from the "
            "checkpoint's weights with -c and --warm_start"
        )
    return hparams


def is_finished(start: Start, hparams: HParams, output: OutputFolder, processes: Processes) -> bool:
    """Whether the checkpoint is the last of its run; if so, and it is the best, it is marked.
    UserError if only some processes find so because their settings differ."""
    resumed = start.resumed
    finished = resumed is not None and resumed.state["loop"]["epoch"] > hparams.epochs
    if resumed is None or not processes.any(finished):
        return False
    processes.refuse_differences(asdict(hparams) | {"finished already": finished})
    if lies_in(resumed.path, output.path) and output.is_used:
        checkpoint.mark_if_best(resumed)
    return True


def refuse_differences(
    hparams: HParams, clips: "Clips", start: Start, device: torch.device, processes: Processes
) -> None:
    """Raise UserError in all processes if settings, corpus, checkpoint or code differ."""
    resumed = start.resumed
    processes.refuse_differences(
        asdict(hparams)
        | {
            "the corpus": clips.fingerprint,
            "the checkpoint": resumed
            and f"CRC-32 {zlib.crc32(read_bytes(resumed.path, checkpoint_file.MAX_BYTES)):08x}",
            "the first weights": start.weights is not None,
            "the decoder": choose_decoder(hparams.decoder, device).description,
            "the kind of device": device.type,
            "torch": versions()["torch"],
            "this recipe's code": fingerprint_of_code(*CODE),
        }
    )


def refuse_other_folders(output: OutputFolder, processes: Processes) -> None:
    """Make the output folder. UserError in all processes if any sees another folder than the first
    process, which leaves a file there under a name that only these processes know."""
    mark = output.path / processes.gather(f".{uuid.uuid4().hex}.tmp")[0]

    def look() -> None:
        if not mark.exists():
            where = f"{output.path.absolute()} is another folder than in the first process"
            raise UserError(f"{where}; give all the same -o, on a disk that all machines share")

    def make() -> None:
        if processes.is_first:
            output.make()
            with naming(output.path):
                mark.touch()

    processes.all_or_none(make)
    try:
        processes.all_or_none(look)
    finally:
        mark.unlink(missing_ok=True)


def limit_workers(hparams: HParams, processes: Processes) -> HParams:
    """The settings with `num_workers` limited by the machine's CPUs."""
    cpus = len(os.sched_getaffinity(0)) * processes.machines
    max_workers = max(1, WORKERS_PER_CPU * cpus // processes.world_size)
    if hparams.num_workers > max_workers:
        limit = f"this machine's CPUs allow for {max_workers}"
        print(f"warning: num_workers={hparams.num_workers}: {limit}")
    return replace(hparams, num_workers=min(hparams.num_workers, max_workers))


# ---------------------------------------------------------------------------- clips


def settle_clips(hparams: HParams, start: Start, processes: Processes, *, new_clips: bool) -> Clips:
    """Read the clips of the filelists. UserError if they cannot be read, or if they are not those
    of the checkpoint and `new_clips` does not allow that."""
    resumed = start.resumed
    try:
        training, validation = read_clips(hparams, processes, new_run=new_clips or resumed is None)
    except UserError as error:
        if resumed and "lines refused" in str(error):
            error.args = (f"{error}\n{HOW_TO_CHANGE_CLIPS}",)
        if resumed and "no such filelist" in str(error):
            error.args = (f"{error}\n{HOW_TO_NAME_MOVED_LISTS}",)
        raise
    clips = Clips(training, validation, corpus_fingerprint(training, validation))
    if hparams.speaker_embedding_dim:  # first: --new-clips does not help against these faults
        processes.all_or_none(lambda: refuse_names("speaker", hparams, clips, resumed))
    clips.change = processes.all_or_none(lambda: change_of(clips, resumed, new_clips))
    if new_clips and clips.change is None:
        with_mels = ", with --cache-mels" if hparams.load_mel_from_disk else ""
        print(
            "--new-clips: the lists name the same clips as before. If recordings have changed, "
            f"prepare them again{with_mels}"
        )
    return clips


def settle_labels(hparams: HParams, clips: Clips, start: Start) -> HParams:
    """Add the names of the clips' labels to the settings, which `refuse_names` has checked: those
    of the training clips in alphabetical order; a resumed run keeps the checkpoint's. A warning
    where several speakers are one voice."""
    trained = {label: tuple(sorted(names)) for label, names in clips.training.names.items()}
    if hparams.speaker_embedding_dim:
        hparams = replace(hparams, speakers=hparams.speakers or trained["speaker"])
    elif len(trained["speaker"]) > 1:
        print(several_as_one(hparams, trained["speaker"], start.resumed))
    return hparams


def refuse_names(
    label: str, hparams: HParams, clips: Clips, resumed: Checkpoint | None = None
) -> None:
    """Raise a UserError if the lists have no names for `label`, those for validation others than
    those for training, clips others than the checkpoint, or if names of a new run look alike."""
    dim, other_run = f"{label}_embedding_dim={getattr(hparams, f'{label}_embedding_dim')}", ""
    known, where = hparams.labels.get(label, ()), ""
    if resumed:
        other_run, where = f"start another run with {from_weights(resumed)}", str(resumed.path)
        if not known:
            raise UserError(f"{dim}: {where} has no {label}s; leave it out, or {other_run}")
        where = f"the checkpoint {where}"
    training, validation = clips.training, clips.validation
    if not training.names[label]:
        fix = f"write its lines as {FIELDS}"
        if label == "speaker":
            fix += ", or prepare them again with --speaker NAME"
        if not resumed:  # whose settings are the checkpoint's
            fix += f", or leave {label}_embedding_dim out"
        raise UserError(
            f"{dim}: {hparams.training_files} names no {label}s; {fix} (docs/speakers.md)"
        )
    if len(validation) and not validation.names[label]:
        fix = f"write its lines as {FIELDS}, as those of {hparams.training_files} are"
        raise UserError(f"{hparams.validation_files}: names no {label}s; {fix}")
    if not resumed:
        known, where = training.names[label], hparams.training_files
        _, firsts = np.unique(training.numbers[label], return_index=True)
        first_clips = [training[i] for i in firsts.tolist()]
        check_lookalikes([(getattr(clip, label), clip.where) for clip in first_clips])
    for table in (training, validation):
        is_other = ~np.isin([*table.names[label]], known)[table.numbers[label]]
        if not is_other.any():
            continue
        first, count = table[int(is_other.argmax())], int(is_other.sum())
        try:
            speaker_index(getattr(first, label), known, where, label)
        except UserError as error:
            fix = "correct them, or leave these lines out" + f", or {other_run}" * bool(other_run)
            lines = f"{count:,} of {len(table):,} lines have such names"
            raise UserError(f"{first.where}: {error}. {lines}: {fix}") from None


def several_as_one(
    hparams: HParams, speakers: Sequence[str], resumed: Checkpoint | None = None
) -> str:
    other_run = f", in another run with {from_weights(resumed)}" if resumed else ""
    return (
        f"warning: {hparams.training_files} names {len(speakers):,} speakers, {listed(speakers)}, "
        "and all are trained as one voice: --hparams speaker_embedding_dim=64 tells them apart"
        f"{other_run}"
    )


def from_weights(source: Checkpoint) -> str:
    """The options that start a run from a checkpoint's weights."""
    return f"-c {shlex.quote(str(source.path))} --warm_start"


def change_of(clips: Clips, resumed: Checkpoint | None, is_allowed: bool) -> dict[str, int] | None:
    """Count the clips that were added, are gone, have another text, speaker or length, or moved to
    the other list. None: the same."""
    if resumed is None or resumed.state["corpus"] == clips.fingerprint:
        return None
    path = resumed.path.with_name(CLIPS_FILE)
    text = read_bytes(path).decode("utf-8", "surrogateescape") if path.exists() else ""
    before, now = Counter(text.split("\n")[1:-1]), Counter(_rows(clips))
    gone, added = list((before - now).elements()), list((now - before).elements())
    ids = [Counter(tuple(row.split(",", 3)[::3]) for row in rows) for rows in (gone, added)]
    changed = ids[0] & ids[1]
    left, came = ids[0] - changed, ids[1] - changed  # of (list, id)
    moved = {
        f"moved to {to}": sum(min(left[other, clip], came[to, clip]) for _, clip in came)
        for to, other in (("training", "validation"), ("validation", "training"))
    }
    same = changed.total() + sum(moved.values())
    counts = {"added": len(added) - same, "gone": len(gone) - same, "changed": changed.total()}
    change = counts | {what: count for what, count in moved.items() if count}
    if not is_allowed:
        raise UserError(
            f"{resumed.path} was trained on other clips than training_files and validation_files "
            f"now name: {in_words(change)}. Give the filelists and audio settings that it was "
            "trained with, or resume with these clips by --resume --new-clips"
        )
    return change


def in_words(change: dict[str, int]) -> str:
    if not any(change.values()):
        return "the same clips in another order"
    return ", ".join(f"{count:,} {what}" for what, count in change.items())


def _rows(clips: Clips) -> Iterator[str]:
    for name, table in (("training", clips.training), ("validation", clips.validation)):
        columns = table.paths_and_texts(), table.num_frames.tolist(), table.labels()
        for (path, text), frames, labels in zip(*columns, strict=True):
            checksum = zlib.crc32(f"{text}{labels}".encode())
            yield f"{name},{frames},{checksum:08x},{clip_id(path)}"


def write_clips(directory: Path, clips: Clips) -> None:
    """Write `clips.csv`, by which a later run finds changed clips, and `lengths.csv`."""
    content = "\n".join(["list,frames,text_crc32,id", *_rows(clips), ""])
    write_bytes(directory / CLIPS_FILE, content.encode("utf-8", "surrogateescape"))
    write_lengths(directory / LENGTHS_FILE, clips.training)


def read_clips(hparams: HParams, processes: Processes = ALONE, *, new_run: bool) -> list[ClipTable]:
    """Read the training and the validation clips. UserError names every fault of either list.

    With a table beside a list, only those clips are opened whose files have changed since, by their
    times. Without a table every clip is checked (a new run reads it to its end) and the table is
    made: by one process of each machine, or by all if the table cannot be written.
    """
    lists = processes.all_or_none_with_heartbeat(
        lambda: _read_lists(hparams, new_run) if processes.local_rank == 0 else None,
        "check their filelists",
    )
    # If a table could not be written, an outdated one may still be there.
    all_saved = all(
        processes.gather(lists is None or all(table.is_on_disk for table in filter(len, lists)))
    )
    lists = processes.all_or_none_with_heartbeat(
        lambda: lists or _read_lists(hparams, new_run, just_checked=all_saved),
        "check their filelists themselves",
    )
    training, validation = lists
    if warning := warn_of_shared_clips(training, validation):
        print(warning)
    if warning := unusual_frames(hparams):
        print(warning)
    for clips in filter(len, lists):
        if warning := warn_of_other_texts(clips):
            print(warning)
        seconds = clips.num_frames * (hparams.hop_length / hparams.sampling_rate)
        if warning := warn_of_long_clips(seconds, partial(name_of, clips)):
            print(warning)
    if warning := warn_of_short_limit(lists, hparams):
        print(warning)
    return lists


def warn_of_short_limit(lists: Sequence[ClipTable], hparams: HParams) -> str | None:
    """A warning if max_decoder_steps would cut speech as long as the longest clip, or None."""
    clips = max(filter(len, lists), key=lambda table: int(table.num_frames.max()))
    longest = int(clips.num_frames.argmax())
    frames, limit = int(clips.num_frames[longest]), hparams.max_decoder_steps
    steps = math.ceil(frames / hparams.n_frames_per_step)
    if steps <= limit:
        return None
    frame_seconds = hparams.hop_length / hparams.sampling_rate
    fix = f"set max_decoder_steps={min(2 * steps, MAX_DECODER_STEPS)}"
    if steps > MAX_DECODER_STEPS:
        fix = "split the clip, or leave it out"
    return (
        f"warning: max_decoder_steps={limit} ends speech after "
        f"{limit * hparams.n_frames_per_step * frame_seconds:.1f} s, and {name_of(clips, longest)} "
        f"has {frames * frame_seconds:.1f} s, {steps:,} steps: {fix}"
    )


def warn_of_shared_clips(training: ClipTable, validation: ClipTable) -> str | None:
    """A warning about clips that are both trained on and validated on, or None."""
    trained, held_out = (set(map(os.path.abspath, x.paths())) for x in (training, validation))
    shared = trained & held_out
    if not shared:
        return None
    what = f"{len(shared):,} of {len(held_out):,} validation clips are trained on too"
    if trained == held_out:
        what = "training_files and validation_files name the same clips"
    return (
        f"warning: {what}, {min(shared)} for one: their validation loss does not tell how well "
        "other texts are spoken. Hold clips out of training, or validate not at all: "
        "validation_files=none"
    )


def warn_of_other_texts(clips: ClipTable) -> str | None:
    """A warning about sounds that a list names more than once, with different texts, or None."""
    first: dict[str, int] = {}  # hash of the first text, of each sound
    pairs = enumerate(clips.paths_and_texts())
    indices = [i for i, (path, text) in pairs if first.setdefault(path, hash(text)) != hash(text)]
    if not indices:
        return None
    example = clips[indices[0]]
    return (
        f"warning: {clips.filelist}: {len(indices):,} lines name a sound that another line names "
        f"with another text, {example.where} for one ({example.path}): only one text is spoken in "
        "it. Delete the lines with the wrong one"
    )


def _read_lists(hparams: HParams, new_run: bool, just_checked: bool = False) -> list[ClipTable]:
    check_text_settings(hparams)  # refuse a bad setting once, not in each line
    lists, problems = [], []
    named = [hparams.training_files, *filter(None, [hparams.validation_files])]
    for filelist in named:
        try:
            lists.append(checked_clips(filelist, hparams, new_run, just_checked))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return lists if len(named) == 2 else [*lists, ClipTable.of("", [])]


# ---------------------------------------------------------------------------- the run


def start_from(run: Run, start: Start) -> None:
    """Load a checkpoint's state, or another model's weights, into a newly built run."""
    if start.resumed is not None:
        change = run.clips.change
        run.state = state = checkpoint.restore(
            start.resumed, run.trainer, run.sampler, new_clips=change is not None
        )
        print(f"resuming from {start.resumed.path}: epoch {state.epoch}, step {state.iteration}")
        if not HAS_PYDANTIC:
            print("pydantic is not installed: the numbers in checkpoints are not checked here")
        if change is not None:
            print(f"new clips: {in_words(change)}; epoch {state.epoch} is replanned")
            if held_out := change.get("moved to validation"):
                print(
                    f"warning: of the clips for validation, {held_out:,} had been trained on; "
                    "their losses are too low"
                )
    if start.weights is not None:
        path, ignored = start.weights.path, run.hparams.ignore_layers
        saved, notes = warm_start.fitted(start.weights, run.hparams)
        print(*notes, sep="\n")
        checkpoint_file.load_weights(run.trainer.model, saved, path, ignored)
        print(f"weights from {path}; ignore_layers keep theirs: {', '.join(ignored) or 'none'}")


def open_logs(run: Run, start: Start) -> None:
    """Bring the output folder to the state of the checkpoint, if there is one. The logs of a run
    that is resumed in its own folder are truncated to it."""
    if not run.processes.is_first:
        return
    run.output.make()
    directory, state, resumed = run.output.path, run.state, start.resumed
    remove_leftovers(directory)
    remove_leftovers(directory / run.output.logs)  # TensorBoard would read them
    own = None
    if resumed is not None and lies_in(resumed.path, directory):
        own = checkpoint.put_in_place(resumed, directory)
    # Before the logs are truncated: if killed in between, the next --resume must truncate them.
    for moved in checkpoint.set_aside_newer(directory, state.iteration if resumed else -1):
        print(f"set aside a later or damaged checkpoint: {moved}")
    if own is not None:
        checkpoint.mark_if_best(own)
    if not (directory / checkpoint.BEST).exists() and state.best_iteration != state.iteration:
        state.best_validation_loss = float("inf")  # of a checkpoint that is not here any more
    run.logger = RunLogger(directory, directory / run.output.logs, own and own.state)
    if own is None or run.clips.change:
        write_clips(directory, run.clips)
    if own is None or run.clips.change or run.logger.has_lost_metrics:
        run.save()  # the next --resume then needs no other flag, and a full disk shows now
    run.logger.log_run(run_record(run, start))


def run_record(run: Run, start: Start) -> dict[str, Any]:
    """The `run` line of metrics.jsonl: settings, corpus, machine, versions, commit."""
    started_from, clips = start.resumed or start.weights, run.clips
    return {
        "version": __version__,
        "iteration": run.state.iteration,
        "epoch": run.state.epoch,
        "started_from": str(started_from.path) if started_from else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hparams": asdict(run.hparams),
        "corpus": {
            "fingerprint": clips.fingerprint,
            "training_clips": len(clips.training),
            "validation_clips": len(clips.validation),
            "training_frames": int(clips.training.num_frames.sum()),
        },
        **({"speakers": speech_of_speakers(clips, run.hparams)} if run.hparams.speakers else {}),
        "changed_clips": clips.change,
        "decoder": run.trainer.decoder_description,
        **describe_environment(run.trainer.device),
    }
