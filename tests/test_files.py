"""Atomic writes and the lock on a folder."""

import multiprocessing
import os

import pytest

from files import lock, remove_leftovers, write_atomically


def test_file_is_the_new_one_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("old", "new"):
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text))
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "new"


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_atomically(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"


def test_leftovers_of_killed_writes_are_removed_and_nothing_else(tmp_path):
    for name in (".best.pt.77.tmp", ".checkpoint_3.pt.123.tmp", "mine.tmp", ".hidden", "best.pt"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"mine.tmp", ".hidden", "best.pt"}


def _try(directory, answers) -> None:
    try:
        lock(directory)
        answers.put("got it")
    except BlockingIOError as error:
        answers.put(str(error))


def _ask(directory) -> str:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_try, args=(directory, answers))
    process.start()
    answer = answers.get()
    process.join()
    return answer


def test_folder_is_locked_for_other_processes_until_the_lock_is_closed(tmp_path):
    held = lock(tmp_path)
    assert "another process is training in this folder" in _ask(tmp_path)
    held.close()
    assert _ask(tmp_path) == "got it"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_lock_ends_with_its_process_though_a_forked_worker_lives_on(tmp_path):
    """As when a run is killed and its loader's processes need some seconds to notice."""
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        held = lock(tmp_path)
        if os.fork() == 0:  # the worker: lives until the test closes its pipe
            os.close(writer)
            os.read(reader, 1)
        assert not held.closed
        os._exit(0)
    os.close(reader)
    os.waitpid(holder, 0)
    assert _ask(tmp_path) == "got it"
    os.close(writer)
