"""Set-up: which clips a start opens, what several processes do of it, and the batches."""

import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch.distributed as dist
from helpers import fork_server

import data_utils
from clip_table import Clip, ClipTable
from errors import UserError
from hparams import HParams
from training import distributed as processes_module
from training.distributed import Processes, SaidElsewhere
from training.setup import batching_costs, make_sampler, read_clips


@pytest.fixture
def lists(tmp_path):
    """Settings that name two lists, of two clips each, which were written long ago."""
    for name in ("train", "val"):
        for clip in "ab":
            write_sound(tmp_path / f"{name}-{clip}.wav")
            os.utime(tmp_path / f"{name}-{clip}.wav", (1, 1))
        lines = [f"{tmp_path}/{name}-{clip}.wav|Text.\n" for clip in "ab"]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return replace(
        HParams(), training_files=f"{tmp_path}/train.txt", validation_files=f"{tmp_path}/val.txt"
    )


def write_sound(path, last=0.0, length=5000):
    samples = np.append(0.5 * np.sin(np.arange(length - 1) / 20), last)
    soundfile.write(path, samples, 22050, subtype="FLOAT")


@pytest.fixture
def opened(monkeypatch):
    """Names of the clips that were opened, and True for those read to their end."""
    found = []

    def watch(name, to_its_end):
        original = getattr(data_utils, name)

        def watched(path, hparams):
            found.append((Path(path).stem, to_its_end))
            return original(path, hparams)

        monkeypatch.setattr(data_utils, name, watched)

    watch("read_header", False)
    watch("read_checked", True)
    return found


ALL = ["train-a", "train-b", "val-a", "val-b"]


def test_new_run_reads_every_clip_without_table(lists, tmp_path, capsys):
    for name in ("train", "val"):
        write_sound(tmp_path / f"{name}-b.wav", np.nan)
    with pytest.raises(UserError) as found:
        read_clips(lists, new_run=True)
    printed = capsys.readouterr().out
    for filelist in (lists.training_files, lists.validation_files):
        assert f"{filelist}:2: " in str(found.value)  # both in one message
        assert f"{filelist}:1: " not in str(found.value)
        name = Path(filelist).name
        assert f"{filelist}: no {name}.clips for this list: reading every clip once" in printed
    assert str(found.value).count("is nan, expected finite numbers") == 2
    assert not list(tmp_path.glob("*.clips"))


@pytest.mark.parametrize("new_run", [True, False])
def test_only_the_first_start_opens_clips(lists, opened, capsys, new_run):
    first = read_clips(lists, new_run=new_run)
    assert sorted(opened) == [(name, new_run) for name in ALL]
    assert ("reading every clip" in capsys.readouterr().out) == new_run
    opened.clear()
    again = read_clips(lists, new_run=new_run)
    assert opened == []
    assert [list(clips) for clips in again] == [list(clips) for clips in first]
    assert "reading every clip" not in capsys.readouterr().out


@pytest.mark.parametrize("new_run", [True, False])
def test_with_a_table_only_changed_clips_are_read(lists, tmp_path, opened, capsys, new_run):
    read_clips(lists, new_run=True)
    opened.clear()
    write_sound(tmp_path / "val-b.wav", length=6000)
    _, validation = read_clips(lists, new_run=new_run)
    assert opened == [("val-b", True)]
    assert validation[1].num_frames == 1 + 6000 // 256
    assert "val.txt: 1 clips changed since they were checked" in capsys.readouterr().out
    os.utime(tmp_path / "val-b.wav", (1, 1))
    read_clips(lists, new_run=new_run)
    assert len(opened) == 1
    for name in ("train-a", "val-b"):
        (tmp_path / f"{name}.wav").unlink()
    with pytest.raises(UserError) as found:
        read_clips(lists, new_run=new_run)
    assert f"{lists.training_files}:1: " in str(found.value)
    assert f"{lists.validation_files}:2: " in str(found.value)


# ---------------------------------------------------------------------------- several processes


PROCESS_TIMEOUT = 2  # seconds, for them to wait for each other


def in_two_processes(action, *arguments) -> list:
    """What `action(processes, *arguments)` gives in each of two processes of one machine."""
    context = fork_server()
    queue, store = (
        context.Queue(),
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    )
    started = [
        context.Process(target=_join_and_act, args=(rank, store.port, queue, action, arguments))
        for rank in range(2)
    ]
    for process in started:
        process.start()
    found = dict(queue.get(timeout=60) for _ in started)
    for process in started:
        process.join(60)
    return [found[rank] for rank in range(2)]


def _join_and_act(rank, port, queue, action, arguments):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    timeout = timedelta(seconds=PROCESS_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    try:
        queue.put((rank, action(Processes(rank, 2, local_rank=rank), *arguments)))
    except UserError as error:
        queue.put((rank, (type(error), str(error))))
    dist.destroy_process_group()


def read_and_count(processes, hparams, new_run):
    opened, original = [], data_utils.read_checked

    def counted(path, hparams):
        opened.append(Path(path).stem)
        return original(path, hparams)

    data_utils.read_checked = counted
    lists = read_clips(hparams, processes, new_run=new_run)
    return sorted(opened), [list(clips) for clips in lists]


@pytest.mark.parametrize("has_table", [True, False])
def test_one_process_of_a_machine_checks_clips(has_table, lists, tmp_path):
    """Where no table can be written, each process does."""
    for name in () if has_table else ("train", "val"):
        (tmp_path / f"{name}.txt.clips").mkdir()
    (first, clips), (second, same_clips) = in_two_processes(read_and_count, lists, True)
    assert (first, second) == (ALL, [] if has_table else ALL)
    assert clips == same_clips


def read_and_not_write(processes, hparams, new_run):
    data_utils.write_table = refuse_to_write
    return read_and_count(processes, hparams, new_run)


def refuse_to_write(table, key):
    raise OSError("Read-only file system")


def test_outdated_table_is_used_by_no_process(lists, tmp_path):
    read_clips(lists, new_run=True)
    write_sound(tmp_path / "val-b.wav", length=6000)
    (first, clips), (second, same_clips) = in_two_processes(read_and_not_write, lists, True)
    assert (first, second) == (["val-b"], ["val-b"])
    assert clips == same_clips
    assert clips[1][1].num_frames == 1 + 6000 // 256


def test_refused_list_ends_all_processes_with_one_message(lists, tmp_path):
    write_sound(tmp_path / "val-b.wav", np.nan)
    first, second = in_two_processes(read_and_count, lists, True)
    assert first[0] is UserError
    assert f"{lists.validation_files}:2: " in first[1]
    assert second[0] is SaidElsewhere


def work_longer_than_the_timeout(processes):
    def work():
        time.sleep(1.2 * PROCESS_TIMEOUT * processes.rank)
        return processes.rank

    processes_module.SECONDS_BETWEEN_SIGNS = processes_module.SECONDS_BETWEEN_LINES = 0.1
    printed = []
    processes_module.print = lambda text, flush: printed.append(text)
    return processes.all_or_none_however_long(work, "count"), printed


def test_processes_wait_long_for_one_that_works():
    (rank, printed), (other_rank, nothing) = in_two_processes(work_longer_than_the_timeout)
    assert (rank, other_rank) == (0, 1)
    assert printed[0].startswith("waiting for 1 other processes, which count: ")
    assert nothing == []


# ---------------------------------------------------------------------------- batches


CLIPS = ClipTable.of(
    "list.txt", ((i, Clip(f"{i}.wav", "Ah.", b"ah.", 10 + i, f"list.txt:{i}")) for i in range(5))
)
HPARAMS = replace(HParams(), batch_size=2, batching_strategy="semi_sorted")


def test_options_the_corpus_does_not_allow_are_refused():
    assert len(make_sampler(CLIPS, HPARAMS)) == 3
    with pytest.raises(UserError, match=r"num_bins=6: .* 1 to 5"):
        make_sampler(CLIPS, replace(HPARAMS, batching_strategy="alternated_sort", num_bins=6))


def test_costs_leave_out_random_epochs():
    hparams = replace(HPARAMS, random_epochs=2, batch_randomization=False)
    sampler = make_sampler(CLIPS, hparams)
    shown = batching_costs(sampler, hparams).splitlines()
    sampler.set_epoch(2)
    assert shown[1:] == batching_costs(sampler, replace(hparams, random_epochs=0)).splitlines()[1:]
    assert "0.0 % fewer" not in shown[2]
