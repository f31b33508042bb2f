"""Files and folders are the old ones or the whole new ones, whatever happens; lines are read."""

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers import OTHER_THAN_FILES, locked, make_other_than_file

from errors import UserError
from files import (
    folder_made_whole,
    lock,
    map_in_threads,
    numbered_lines,
    open_file,
    remove_leftovers,
    write_atomically,
)

PROJECT = Path(__file__).parents[1]


def test_a_file_is_written_and_nothing_else_left(tmp_path):
    for content in ("old", "new"):
        write_atomically(tmp_path / "a.txt", lambda p, content=content: p.write_text(content))
        assert (tmp_path / "a.txt").read_text() == content
        assert os.listdir(tmp_path) == ["a.txt"]
    write_atomically(str(tmp_path / "a.txt"), lambda p: p.write_text("a path as a str"))
    assert (tmp_path / "a.txt").read_text() == "a path as a str"


def test_nothing_is_seen_under_the_name_before_the_end(tmp_path):
    target = tmp_path / "a.txt"

    def write(path):
        assert path.parent == target.parent  # so that the last step is a rename on one disk
        path.write_text("half")
        assert not target.exists()

    write_atomically(target, write)
    assert target.read_text() == "half"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_the_old_file_stays_when_writing_fails(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write(path):
        path.write_text("half of the new")
        raise error

    with pytest.raises(type(error)):
        write_atomically(target, write)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]  # no temporary file either


def test_no_file_appears_when_the_first_writing_fails(tmp_path):
    def write(path):
        path.write_text("half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_atomically(tmp_path / "a.txt", write)
    assert os.listdir(tmp_path) == []


def test_the_old_file_stays_when_the_process_is_killed_in_the_middle(tmp_path):
    target = tmp_path / "a file.txt"
    target.write_text("old")
    script = (
        "import os, sys; from files import write_atomically\n"
        "def write(path):\n"
        "    path.write_text('half of the new'); os._exit(9)\n"
        "write_atomically(sys.argv[1], write)"
    )
    killed = subprocess.run([sys.executable, "-c", script, target], cwd=PROJECT, check=False)
    assert killed.returncode == 9
    assert target.read_text() == "old"
    (left,) = set(os.listdir(tmp_path)) - {"a file.txt"}
    assert left.startswith(".")
    assert left.endswith(".tmp")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a file.txt"]


def test_only_leftovers_are_removed(tmp_path):
    kept = ["a.tmp", ".hidden", "checkpoint_1", ".x.pt"]
    for name in [*kept, ".a.pt.123.tmp"]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "a.txt", lambda path: path.write_text("new"))
    assert os.listdir(tmp_path) == []


def test_a_writer_that_writes_elsewhere_does_not_harm_the_old_file(tmp_path):
    """`np.save(path)` adds a suffix of its own, for one."""
    target = tmp_path / "a.npy"
    target.write_text("old")
    with pytest.raises(FileNotFoundError):
        write_atomically(target, lambda path: (tmp_path / "other").write_text("new"))
    assert target.read_text() == "old"


def test_a_lock_keeps_other_processes_out_until_it_is_closed(tmp_path):
    script = "import sys; from pathlib import Path; from files import lock; lock(Path(sys.argv[1]))"

    def another_process():
        command = [sys.executable, "-c", script, tmp_path]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    held = lock(tmp_path)
    refused = another_process()
    assert refused.returncode == 1
    assert f"{tmp_path}: another process is training in this folder" in refused.stderr
    held.close()
    assert another_process().returncode == 0
    lock(tmp_path).close()  # the other one is gone, and its lock with it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_ends_with_its_process_though_a_forked_worker_lives_on(tmp_path):
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
    script = "import sys; from pathlib import Path; from files import lock; lock(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=PROJECT, check=True)
    os.close(writer)


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "new" / "out"

    def fail():
        with folder_made_whole(out) as folder:
            (folder / "a").write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert list((tmp_path / "new").iterdir()) == []
    out.mkdir()  # an empty folder may be filled
    with folder_made_whole(out) as folder:
        (folder / "a").write_text("whole")
        assert list(out.iterdir()) == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert (out / "a").read_text() == "whole"


def test_lines_are_numbered_stripped_and_empty_ones_left_out(tmp_path):
    path = tmp_path / "list"
    path.write_bytes("\ufeffa b \r\n\r\n c\u2028d\x0b".encode())
    assert numbered_lines(path, "") == [(1, "a b"), (3, "c\u2028d")]
    with pytest.raises(UserError, match=r"none: make it first$"):
        numbered_lines(tmp_path / "none", "make it first")
    path.write_bytes(b"a\nb\n\xe2")
    with pytest.raises(UserError, match=r"list: not readable as UTF-8 text .* in line 3\).*iconv"):
        numbered_lines(path, "")
    with pytest.raises(UserError, match=r"a folder, expected a file"):
        numbered_lines(tmp_path, "")


@pytest.mark.parametrize(
    ("encoding", "name", "mark"),
    [
        ("utf-16", "UTF-16", ""),  # python writes a byte-order mark
        ("utf-16-be", "UTF-16", "\ufeff"),
        ("utf-16-le", "UTF-16LE", ""),
        ("utf-16-be", "UTF-16BE", ""),
        ("utf-32", "UTF-32", ""),
    ],
)
def test_texts_of_wide_characters_are_named_with_the_command_that_converts_them(
    tmp_path, encoding, name, mark
):
    path = tmp_path / "a list.csv"
    path.write_bytes(f"{mark}id|Größe\nid2|b\n".encode(encoding))
    with pytest.raises(UserError, match=rf"a list.csv: {name} text, expected UTF-8; ") as caught:
        numbered_lines(path, "")
    command = re.search("iconv .*", str(caught.value))[0]
    assert f"-f {name} -t UTF-8 {shlex.quote(str(path))} >" in command
    subprocess.run(command, shell=True, check=True)
    converted = shlex.split(command)[-1]
    assert numbered_lines(converted, "") == [(1, "id|Größe"), (2, "id2|b")]


@pytest.mark.parametrize("kind", OTHER_THAN_FILES)
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path, kind):
    path = tmp_path / "list.txt"
    make_other_than_file(path, kind)
    with pytest.raises(UserError, match=f"^{kind}, expected a file"):
        open_file(path)
    with pytest.raises(UserError, match=f"list.txt: {kind}, expected a file"):
        numbered_lines(path, "no such file")


def test_a_file_that_may_not_be_read_is_a_matter_of_permission(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("a")
    with locked(path), pytest.raises(UserError, match=r"list.txt: permission denied; .*chmod"):
        numbered_lines(path, "no such file")


@pytest.mark.parametrize("name", ["none", "a\0b", "x" * 300])
def test_names_of_no_file_are_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"make it first|File name too long"):
        open_file(tmp_path / name, "make it first")


def test_results_of_threads_come_in_order_and_few_are_begun_ahead():
    begun, gate = [], threading.Event()

    def square(number):
        begun.append(number)
        if number == 0:
            gate.wait(10)
        return number * number

    squares = map_in_threads(square, range(1000), threads=2)
    threading.Timer(0.05, gate.set).start()
    assert [next(squares) for _ in range(3)] == [0, 1, 4]
    squares.close()  # waits for those begun
    assert len(begun) < 20
    assert list(map_in_threads(square, range(50), threads=2)) == [n * n for n in range(50)]
    assert list(map_in_threads(square, [], threads=2)) == []


def test_a_fault_in_a_thread_is_raised_where_the_results_are_read():
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(lambda number: 1 // number, [1, 0, 1]))
