"""corpus/clip_table.py: what is written is read again, and nothing else."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.clip_table import COLUMNS, Body, Clip, ClipTable, clip_id, read_table_file, table_path
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity

# Any characters of a filelist's line, and names that are not UTF-8, as Python shows them.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|\n"), max_size=8)
# No path holds a zero byte: the table marks those from the list's own folder by it.
names = texts.map(lambda name: name.replace("\0", "")) | st.binary(max_size=8).map(
    lambda name: name.translate(None, b"|\n\0").decode("utf-8", "surrogateescape")
)
identities = st.builds(Identity, *[st.integers(-(2**62), 2**62)] * 3)
clips = st.builds(
    Clip,
    names,
    texts,
    st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=5).map(tuple),
    st.integers(1, 2**40),
    st.just(""),
    identity=identities,
)
KEY = {"filelist": "abc", "text_cleaners": ["english_cleaners"]}
SMALL = [Clip("x/a.wav", "Größe.", (1, 2, 700), 7, ""), Clip("b.wav", "", (4,), 9, "")]


@pytest.fixture
def filelist(tmp_path):
    return str(tmp_path / "list.txt")


def listed(filelist, some, **options):
    """The table of these clips, in every other line."""
    numbered = zip(range(2, 2 * len(some) + 2, 2), some, strict=True)
    return ClipTable.of(filelist, numbered, made_from=KEY, **options)


def read(filelist, key=KEY):
    """As a start does: None where the table must be made again."""
    try:
        return read_table_file(table_path(filelist), key)
    except UserError:
        return None


@settings(max_examples=40)
@given(some=st.lists(clips, min_size=1, max_size=8))
def test_table_is_read_as_it_was_written(tmp_path_factory, some):
    filelist = str(tmp_path_factory.getbasetemp() / "table.txt")
    table = listed(filelist, some, complete=True)
    table.write()
    found = read(filelist)
    for either in (table, found):
        expected = [replace(clip, where=f"{filelist}:{2 * i}") for i, clip in enumerate(some, 1)]
        assert list(either) == expected
        assert [either[np.int64(-1)], either[0]] == [expected[-1], expected[0]]
        assert either.num_frames.tolist() == [clip.num_frames for clip in some]
        assert either.num_symbols.tolist() == [len(clip.symbols) for clip in some]
        assert list(either.paths()) == [clip.path for clip in some]
        assert list(either.paths(2, 5)) == [clip.path for clip in some[2:5]]
        assert list(either.ids()) == [clip_id(clip.path) for clip in some]
        with pytest.raises(IndexError):
            either[len(some)]
    assert (found.fingerprint, found.complete) == (table.fingerprint, True)
    assert (found.is_on_disk, table.is_on_disk) == (True, False)


MILLION = """
import time, sys
from corpus.clip_table import read_table_file

def own():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1])

before, start = own(), time.monotonic()
table = read_table_file(sys.argv[1])
seconds = time.monotonic() - start
assert table.num_frames.sum() == 5_000_000 and table[999_999].text == "x" * 20
print(seconds, own() - before)
"""


def test_million_clips_load_fast_and_shared(tmp_path):
    """Of 130 MB little is a process's own; the rest is the file, read by all."""
    count, content = 1_000_000, b"corpus/clip.wav|" + b"x" * 20 + b"\n" + b"s" * 40
    rows = np.full((count, len(COLUMNS)), 5)
    rows[:, 2] = 20
    rows[:, 3] = np.arange(1, count + 1) * len(content)
    rows[:, 4] = np.arange(count) % 2
    filelist = str(tmp_path / "list.txt")
    body = Body(content * count + rows.tobytes())
    ClipTable(filelist, body, count, [["anna", "bert"]], True, "known", KEY).write()
    command = [sys.executable, "-c", MILLION, table_path(filelist)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, kilobytes = map(float, run.stdout.split())
    assert seconds < 10  # 0.1 on a quiet machine
    assert kilobytes < 24_000


@pytest.mark.parametrize("change", [{"filelist": "abd"}, {"more": 1}])
def test_table_of_other_key_or_version_is_ignored(filelist, change, monkeypatch):
    assert read(filelist) is None
    listed(filelist, SMALL).write()
    assert read(filelist, KEY | change) is None
    monkeypatch.setattr("corpus.clip_table.VERSION", 7)
    assert read(filelist) is None


def test_damaged_table_is_ignored(filelist):
    """Wherever the damage is, unless it changes nothing that is read."""
    table = listed(filelist, SMALL)
    table.write()
    path = table_path(filelist)
    content = path.read_bytes()
    for place in {*range(0, len(content), 7), len(content) - 1}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        found = read(filelist)
        assert found is None or list(found) == list(table)
        if place % 5 == 0:
            path.write_bytes(content[:place])
            assert read(filelist) is None
    path.write_bytes(content)
    assert list(read(filelist)) == list(table)


@pytest.mark.parametrize("column", ["end", "num_frames", "num_symbols"])
@pytest.mark.parametrize("value", [-1, 0, 2**62])
def test_table_of_nonsense_is_refused(filelist, column, value):
    """Though its checksum is right; lengths that are too large show when the clip is read."""
    table = listed(filelist, SMALL)
    body, place = bytearray(table._body._content), COLUMNS.index(column)
    start = table._rows_at + 8 * place
    body[start : start + 8] = value.to_bytes(8, "little", signed=True)
    table._body._content = bytes(body)
    table.write()
    assert read(filelist) is None or (column, value) == ("num_frames", 2**62)


def test_times_of_any_century_are_kept(filelist, tmp_path):
    sound = tmp_path / "sound.wav"
    sound.touch()
    for seconds in (-(10**9), 10**10):
        os.utime(sound, (seconds, seconds))
        listed(filelist, [replace(SMALL[0], identity=Identity.of(sound))]).write()
        assert read(filelist)[0].identity == Identity.of(sound)


def test_workers_map_the_same_table(filelist):
    some = [Clip(f"{i}.wav", "x" * 100, (7,) * 100, 5, "") for i in range(100)]
    table = listed(filelist, some)
    table.write()
    pickled = pickle.dumps(read(filelist))
    assert len(pickled) < 1000
    assert list(pickle.loads(pickled)) == list(table)
    assert list(pickle.loads(pickle.dumps(table))) == list(table)  # in no file
    table_path(filelist).unlink()
    with pytest.raises(UserError, match="no such file"):
        pickle.loads(pickled)


def test_fingerprint_covers_names_texts_lengths_not_folders(filelist):
    table = listed(filelist, SMALL)
    other = table.with_clips({1: replace(SMALL[1], num_frames=10)})
    assert (other.num_frames.tolist(), table.num_frames.tolist()) == ([7, 10], [7, 9])
    assert other.fingerprint != table.fingerprint == other.with_clips({1: SMALL[1]}).fingerprint
    moved = [replace(clip, path=f"/elsewhere/{Path(clip.path).name}") for clip in SMALL]
    assert listed(filelist, moved).fingerprint == table.fingerprint
    for change in ({"path": "x/other.wav"}, {"text": "Grosse."}):
        changed = [replace(SMALL[0], **change), SMALL[1]]
        assert listed(filelist, changed).fingerprint != table.fingerprint
    assert listed(filelist, SMALL[::-1]).fingerprint != table.fingerprint


@given(
    st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1), min_size=1).map("/".join)
)
def test_clip_id_is_the_stem_of_a_path(path):
    if path.rpartition("/")[2] not in (".", "..") and path[-1] != ".":  # a file's name is neither
        assert clip_id(path) == Path(path).stem


@pytest.mark.parametrize("change", ["cut", "overwritten"])
def test_table_changed_under_a_run_is_named(filelist, change):
    """Cut short, it must not end the process by a signal, as a mapped file would."""
    listed(filelist, SMALL).write()
    table, path = read(filelist), table_path(filelist)
    content = path.read_bytes()
    path.write_bytes(b"" if change == "cut" else content.replace(b"Gr", b"gr"))
    with pytest.raises(UserError, match=r"list.txt.clips: changed while it was in use"):
        table[0]


def test_table_replaced_under_a_run_changes_nothing(filelist):
    listed(filelist, SMALL).write()
    table = read(filelist)
    listed(filelist, SMALL[::-1]).write()
    assert [clip.path for clip in table] == [clip.path for clip in SMALL]
