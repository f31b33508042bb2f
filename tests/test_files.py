"""Test that files are read and written safely (tacotron2_voice/utils/files.py)."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers import ROOT

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    folder_locked,
    folder_made_whole,
    lock_path,
    map_in_threads,
    numbered_lines,
    open_file,
    remove_leftovers,
    write_atomically,
    write_bytes,
)

LOCK = """
import sys
from pathlib import Path
from tacotron2_voice.utils.files import folder_locked
with folder_locked(Path(sys.argv[1]), "busy"): pass
"""


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_old_file_is_kept_when_writing_fails(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write(path):
        path.write_text("half of the new")
        raise error

    with pytest.raises(type(error)) as caught:
        write_atomically(target, write)
    assert getattr(caught.value, "filename", str(target)) == str(target)
    assert os.listdir(tmp_path) == ["a.txt"]  # the temporary file is deleted
    assert target.read_text() == "old"


def test_error_names_the_file_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_bytes(tmp_path / "name", b"content")
    assert caught.value.filename == str(tmp_path / "name")


def test_content_is_synced_before_the_file_is_replaced(tmp_path, monkeypatch):
    """If a symbolic link has the name of the temporary file, the link is not followed."""
    target = tmp_path / "a.txt"
    synced = []
    (tmp_path / f".a.txt.{os.getpid()}.tmp").symlink_to("b.txt")

    def sync(file):
        synced.append((os.fstat(file).st_ino, target.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(target, lambda path: path.write_text("new"))
    assert synced == [(target.stat().st_ino, False)]
    assert not (tmp_path / "b.txt").exists()


def test_old_file_is_kept_when_the_process_is_killed(tmp_path):
    kept = {"a file.txt", "b.tmp", ".hidden"}
    for name in kept:
        (tmp_path / name).write_text("old")
    script = (
        "import os, sys; from tacotron2_voice.utils.files import write_atomically\n"
        "def write(path):\n"
        "    path.write_text('half of the new'); os._exit(9)\n"
        "write_atomically(sys.argv[1], write)"
    )
    command = [sys.executable, "-c", script, tmp_path / "a file.txt"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 9
    assert (tmp_path / "a file.txt").read_text() == "old"
    assert len(os.listdir(tmp_path)) == 4
    remove_leftovers(tmp_path)
    assert set(os.listdir(tmp_path)) == kept


def test_locking_a_folder_fails_when_another_process_has_locked_the_folder(tmp_path):
    def another_process():
        command = [sys.executable, "-c", LOCK, tmp_path]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    with folder_locked(tmp_path, "busy"):
        second = another_process()
    assert second.returncode == 1
    assert f"{tmp_path}: busy" in second.stderr
    assert another_process().returncode == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="this system has no folder /proc")
def test_error_contains_the_cause_when_the_lock_file_cannot_be_created():
    with pytest.raises(UserError, match="/proc: no file can be created in this folder"):
        lock_path(Path("/proc/.a.lock"), "busy")


def test_folder_lock_is_released_when_the_process_ends_before_its_workers(tmp_path):
    """After a run is killed, its workers stay alive for a few seconds."""
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        with folder_locked(tmp_path, "busy"):
            if os.fork() == 0:  # the worker waits until the test closes its pipe
                os.close(writer)
                os.read(reader, 1)
            os._exit(0)
    os.close(reader)
    os.waitpid(holder, 0)
    subprocess.run([sys.executable, "-c", LOCK, tmp_path], cwd=ROOT, check=True)
    os.close(writer)


def test_output_folder_is_not_created_when_filling_it_fails(tmp_path):
    out = tmp_path / "new" / "out"

    def fail():
        with folder_made_whole(out) as folder:
            (folder / "a").write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert list((tmp_path / "new").iterdir()) == []
    out.mkdir()  # an empty output folder is accepted
    with folder_made_whole(out) as folder:
        (folder / "a").write_text("whole")
        assert list(out.iterdir()) == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert (out / "a").read_text() == "whole"


def test_lines_of_a_text_file_are_numbered_and_stripped(tmp_path):
    path = tmp_path / "list"
    path.write_bytes("\ufeffa b \r\n\r\n c\u2028d\x0b".encode())
    assert numbered_lines(path, "") == [(1, "a b"), (3, "c\u2028d")]


def test_text_file_is_rejected_when_it_is_missing_or_not_utf8(tmp_path):
    path = tmp_path / "list"
    with pytest.raises(UserError, match=r"list: make it first$"):
        numbered_lines(path, "make it first")
    path.write_bytes(b"a\nb\n\xe2")
    with pytest.raises(UserError, match=r"list:3: "):
        numbered_lines(path, "")
    with pytest.raises(UserError, match="File name too long"):
        open_file(tmp_path / ("x" * 300))


def test_threads_return_results_in_order_and_compute_only_a_few_results_in_advance():
    begun = []
    gate = threading.Event()

    def square(number):
        begun.append(number)
        if number == 0:
            gate.wait(10)
        return number * number

    squares = map_in_threads(square, range(1000), threads=2)
    threading.Timer(0.05, gate.set).start()
    assert [next(squares) for _ in range(3)] == [0, 1, 4]
    squares.close()  # close() waits for the calls that have started
    assert len(begun) < 20
    assert list(map_in_threads(square, range(50), threads=2)) == [n * n for n in range(50)]
    assert list(map_in_threads(square, [], threads=2)) == []


def test_error_reports_the_limit_when_too_many_files_are_open(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    (tmp_path / "a").write_text("")
    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(UserError, match="Too many open files"):
        open_file(tmp_path / "a")
