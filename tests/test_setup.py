"""Test set-up: which clips a run opens, how processes share this work, and the batches."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import soundfile
import torch
from helpers import ROOT
from test_imports import FILES, GRAPH, name_of

from batching import describe_costs, few_updates, make_sampler
from corpus import filelist as filelists
from corpus.cache import ClipTable
from corpus.clips import Clip
from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from training import clips as clips_module
from training import distributed as processes_module
from training import start as start_module
from training.checkpoint import Checkpoint
from training.clips import read_clips
from training.distributed import AlreadyReported, Processes
from training.start import Start, check_processes_agree


@pytest.fixture
def lists(tmp_path):
    """Return settings with two filelists. Each filelist has two clips with old modification
    times."""
    for name in ("train", "val"):
        for clip in "ab":
            write_audio(tmp_path / f"{name}-{clip}.wav")
            os.utime(tmp_path / f"{name}-{clip}.wav", (1, 1))
        lines = [f"{tmp_path}/{name}-{clip}.wav|Text.\n" for clip in "ab"]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return replace(
        HParams(), training_files=f"{tmp_path}/train.txt", validation_files=f"{tmp_path}/val.txt"
    )


def write_audio(path, last=0.0, length=5000):
    samples = np.append(0.5 * np.sin(np.arange(length - 1) / 20), last)
    soundfile.write(path, samples, 22050, subtype="FLOAT")


def put_older_audio(path):
    """Replace a file, but keep its old modification time like cp -p, rsync -t and mv."""
    old = path.with_name("old.wav")
    write_audio(old, 0.1)
    os.utime(old, (1, 1))
    os.replace(old, path)


@pytest.fixture
def opened(monkeypatch):
    """Return the names of opened clips, and whether each clip was read to its end."""
    found = []

    def watch(name, to_its_end):
        original = getattr(filelists, name)

        def watched(path, hparams):
            found.append((Path(path).stem, to_its_end))
            return original(path, hparams)

        monkeypatch.setattr(filelists, name, watched)

    watch("read_header", False)
    watch("read_checked", True)
    return found


ALL = ["train-a", "train-b", "val-a", "val-b"]


def test_warning_is_printed_when_filelists_share_clips(lists, tmp_path, capsys):
    """The same clip can have different paths in the two filelists."""
    (tmp_path / "val.txt").write_text("val-a.wav|Text.\n./train-b.wav|Text.\n")
    read_clips(lists, new_run=True)
    printed = capsys.readouterr().out
    assert "warning: 1 of 2 validation clips" in printed
    assert f"{tmp_path}/train-b.wav" in printed


def test_validation_filelist_may_be_empty(lists, opened):
    """Training without a validation filelist is allowed."""
    training, validation = read_clips(replace(lists, validation_files=""), new_run=True)
    assert (len(training), len(validation)) == (2, 0)
    assert read_in_two(replace(lists, validation_files=""))[1][1].fingerprint
    with pytest.raises(UserError):
        read_clips(replace(lists, training_files="", validation_files=""), new_run=True)


def test_new_run_reads_every_clip_when_there_is_no_cache(lists, tmp_path, capsys):
    for name in ("train", "val"):
        write_audio(tmp_path / f"{name}-b.wav", np.nan)
    with pytest.raises(UserError) as found:
        read_clips(lists, new_run=True)
    printed = capsys.readouterr().out
    for filelist in (lists.training_files, lists.validation_files):
        # one message lists the errors of both filelists
        assert f"{filelist}:2: " in str(found.value)
        assert f"{filelist}:1: " not in str(found.value)
        name = Path(filelist).name
        assert f"{filelist}: the cache {name}.clips is missing" in printed
    assert str(found.value).count("is nan, expected a finite number") == 2
    assert not list(tmp_path.glob("*.clips"))


def test_new_run_reads_every_clip_when_the_cache_was_written_without_reading_whole_clips(
    lists, opened
):
    read_clips(lists, new_run=False)
    assert sorted(opened) == [(name, False) for name in ALL]
    opened.clear()
    read_clips(lists, new_run=True)
    assert sorted(opened) == [(name, True) for name in ALL]


@pytest.mark.parametrize("new_run", [True, False])
def test_second_start_of_a_run_opens_no_clips(lists, opened, capsys, new_run):
    first = read_clips(lists, new_run=new_run)
    assert sorted(opened) == [(name, new_run) for name in ALL]
    assert ("is missing, so all clips are read" in capsys.readouterr().out) == new_run
    opened.clear()
    again = read_clips(lists, new_run=new_run)
    assert opened == []
    assert [list(clips) for clips in again] == [list(clips) for clips in first]
    assert "all clips are read" not in capsys.readouterr().out


@pytest.mark.thorough
def test_filelist_is_read_again_when_a_clip_has_changed(lists, tmp_path, opened, capsys):
    read_clips(lists, new_run=True)
    opened.clear()
    write_audio(tmp_path / "val-b.wav", length=6000)
    _, validation = read_clips(lists, new_run=False)
    assert sorted(opened) == [("val-a", True), ("val-b", True)]
    assert validation[1].num_frames == 1 + 6000 // 256
    printed = capsys.readouterr().out
    assert "val.txt: 1 of 2 clips have changed" in printed
    assert "the cache val.txt.clips is out of date, so all clips are read" in printed
    put_older_audio(tmp_path / "val-b.wav")
    read_clips(lists, new_run=False)
    read_clips(lists, new_run=False)
    assert len(opened) == 4
    for name in ("train-a", "val-b"):
        (tmp_path / f"{name}.wav").unlink()
    with pytest.raises(UserError) as found:
        read_clips(lists, new_run=False)
    assert f"{lists.training_files}:1: " in str(found.value)
    assert f"{lists.validation_files}:2: " in str(found.value)


@pytest.mark.parametrize("changed", ["train.txt", "train-b.wav"])
def test_set_up_of_a_run_fails_when_a_file_changes_while_it_is_read(
    lists, tmp_path, monkeypatch, changed
):
    before, check = (tmp_path / "train.txt").read_text(), filelists.read_checked

    def check_and_change(path, hparams):
        found = check(path, hparams)
        if path.endswith("train-b.wav") and changed == "train.txt":
            (tmp_path / changed).write_text(before.splitlines()[0])
        elif path.endswith("train-b.wav"):
            put_older_audio(tmp_path / changed)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(filelists, "read_checked", check_and_change)
        with pytest.raises(UserError, match=rf"{changed}: changed during the check; start"):
            read_clips(lists, new_run=True)
    training, _ = read_clips(lists, new_run=True)
    assert len(training) == (1 if changed == "train.txt" else 2)


def test_processes_compare_all_training_code():
    """If the processes ran different code, they would compute incorrect results without an
    error."""
    compared = {name_of(path) for pattern in start_module.CODE for path in ROOT.glob(pattern)}
    left = {"train"}
    loaded = set()
    while left:
        name = left.pop()
        loaded.add(name)
        left |= (GRAPH[name] & FILES.keys()) - loaded
    assert len(loaded) > 40
    assert loaded <= compared


# ---------------------------------------------------------------------------- several processes


PROCESS_TIMEOUT = 2  # maximum number of seconds that processes wait for each other


class Pair(Processes):
    """A thread that stands in for one of two processes on a machine."""

    meeting = threading.Barrier(2, timeout=PROCESS_TIMEOUT)
    values: ClassVar[list] = [None, None]

    def gather(self, value):
        self.values[self.rank] = value
        self.meeting.wait()
        found = list(self.values)
        self.meeting.wait()
        return found


def in_two_processes(action) -> list:
    """Return the result or the UserError of `action(processes)` in both processes."""

    def act(rank):
        try:
            return action(Pair(rank, 2, local_rank=rank))
        except UserError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(act, range(2)))


def read_in_two(lists) -> list:
    return in_two_processes(lambda processes: read_clips(lists, processes, new_run=True))


@pytest.mark.thorough
@pytest.mark.parametrize("has_table", [True, False])
def test_only_one_process_per_machine_checks_clips(has_table, lists, tmp_path, opened):
    """If the cache cannot be written, every process checks the clips."""
    for name in () if has_table else ("train", "val"):
        (tmp_path / f"{name}.txt.clips").mkdir()
    first, second = read_in_two(lists)
    assert sorted(opened) == sorted([(name, True) for name in ALL] * (1 if has_table else 2))
    assert [list(clips) for clips in first] == [list(clips) for clips in second]


@pytest.mark.thorough
def test_processes_ignore_an_outdated_filelist_cache(lists, tmp_path, opened, monkeypatch):
    def refuse(*_):
        raise OSError("Read-only file system")

    read_clips(lists, new_run=True)
    opened.clear()
    write_audio(tmp_path / "val-b.wav", length=6000)
    monkeypatch.setattr(ClipTable, "write", refuse)
    for _, validation in read_in_two(lists):
        assert validation[1].num_frames == 1 + 6000 // 256
    assert sorted(opened) == [("val-a", True)] * 2 + [("val-b", True)] * 2


def test_processes_compare_the_contents_of_checkpoints(tmp_path):
    path, facts = tmp_path / "checkpoint_1.pt", []
    clips = SimpleNamespace(fingerprint="")
    processes = SimpleNamespace(check_same=facts.append)
    for content in (b"one", b"other"):
        path.write_bytes(content)
        start = Start(resumed=Checkpoint(path, {}))
        check_processes_agree(HParams(), clips, start, torch.device("cpu"), processes)
    one, other = facts
    assert [name for name in one if one[name] != other[name]] == ["the checkpoint"]


def test_processes_report_a_rejected_filelist_once(lists, tmp_path):
    write_audio(tmp_path / "val-b.wav", np.nan)
    first, second = read_in_two(lists)
    assert f"{lists.validation_files}:2: " in str(first)
    assert isinstance(second, AlreadyReported)


@pytest.mark.thorough
def test_processes_wait_beyond_the_timeout_when_one_process_is_still_working(monkeypatch, capsys):
    for name in ("SECONDS_BETWEEN_HEARTBEATS", "SECONDS_BETWEEN_LINES"):
        monkeypatch.setattr(processes_module, name, 0.1)

    def work(processes):
        time.sleep(1.2 * PROCESS_TIMEOUT * processes.rank)
        return processes.rank

    found = in_two_processes(
        lambda processes: processes.all_or_none_with_heartbeat(lambda: work(processes), "count")
    )
    assert found == [0, 1]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 5
    assert all(line.startswith("waiting for 1 other process to count: ") for line in printed)


# ---------------------------------------------------------------------------- batches


CLIPS = ClipTable.of(
    "list.txt", ((i, Clip(f"{i}.wav", "Ah.", (1, 2, 3), 10 + i, f"list.txt:{i}")) for i in range(5))
)
FRAMES = CLIPS.num_frames
HPARAMS = replace(HParams(), batch_size=2, batching_strategy="semi_sorted")


def test_batching_options_are_rejected_when_the_corpus_does_not_allow_them():
    assert len(make_sampler(FRAMES, HPARAMS)) == 3
    with pytest.raises(UserError, match=r"num_bins=6: .* 1 to 5"):
        make_sampler(FRAMES, replace(HPARAMS, batching_strategy="alternated_sort", num_bins=6))


def test_printed_batching_costs_exclude_random_epochs():
    hparams = replace(HPARAMS, random_epochs=2, batch_randomization=False)
    sampler = make_sampler(FRAMES, hparams)
    shown = describe_costs(sampler, hparams).splitlines()
    sampler.set_epoch(2)
    assert shown[1:] == describe_costs(sampler, replace(hparams, random_epochs=0)).splitlines()[1:]
    assert shown[0].startswith(
        "batching strategy: semi_sorted, dynamic batch sizes, from epoch 3 on: "
    )
    same = replace(hparams, batching_strategy="random", dynamic_batch_size=False)
    assert "from epoch" not in describe_costs(make_sampler(FRAMES, same), same)
    # A saving is printed next to the page about the loss.
    assert "choosing-a-strategy.md" in shown[-1]
    assert "choosing-a-strategy.md" not in describe_costs(make_sampler(FRAMES, same), same)


def test_warning_suggests_a_smaller_frame_budget_when_the_budget_limits_batches():
    """The warning must not suggest batch_size, because batch_size has no effect if batch_capacity
    limits the batches."""
    frames = np.full(380, 500)
    hparams = replace(HParams(), batch_capacity=60_000)
    warning = few_updates(make_sampler(frames, hparams), hparams)
    assert re.search(r"batch_capacity=\d+ for", warning)


def test_batching_warning_is_returned_only_when_an_epoch_has_few_optimizer_steps():
    frames = np.full(13_100, 500)
    assert few_updates(make_sampler(frames, HParams()), HParams()) is None
    warning = few_updates(make_sampler(frames[:320], HParams()), HParams())
    assert "an epoch has only 5 optimizer steps" in warning
    assert "batch_size=16 for about 20" in warning
    # With batches of 2 clips, the warning cannot suggest smaller batches.
    few = replace(HParams(), batch_size=2)
    assert "Add more clips" in few_updates(make_sampler(frames[:6], few), few)


def test_warning_is_returned_when_the_longest_clip_exceeds_the_limit_of_decoder_steps(lists):
    """The longest clip can be in either filelist. With the suggested limit of decoder steps, there
    is no warning."""
    path = lists.validation_files.replace(".txt", "-b.wav")
    write_audio(Path(path), length=30 * 256)
    h = replace(lists, n_frames_per_step=2, max_decoder_steps=15)
    clips = read_clips(h, new_run=True)
    warning = clips_module.short_limit_warning(clips, h)
    for value in ("max_decoder_steps=15 ", f"val.txt:2: {path}", "16 decoder steps", "=32"):
        assert value in warning
    assert clips_module.short_limit_warning(clips, replace(h, max_decoder_steps=32)) is None
    assert clips_module.short_limit_warning(clips, replace(h, max_decoder_steps=16)) is None
