"""clip_table.py: what is written is read again, and nothing else."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_table import (
    Clip,
    ClipTable,
    clip_id,
    read_table,
    read_table_file,
    table_path,
    write_table,
)
from errors import UserError

# Any characters of a UTF-8 file, and names that are not UTF-8, as Python shows them.
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.binary(
    min_size=1, max_size=8
).map(lambda name: name.decode("utf-8", "surrogateescape"))
clips = st.builds(Clip, names, names, st.binary(max_size=5), st.integers(1, 2**40), st.just(""))
KEY = {"filelist": "abc", "text_cleaners": ["english_cleaners"]}
SMALL = [Clip("x/a.wav", "Größe.", b"abc", 7, ""), Clip("b.wav", "", b"", 9, "")]


@pytest.fixture
def filelist(tmp_path):
    return str(tmp_path / "list.txt")


def listed(filelist, some, **options):
    """The table of these clips, in every other line."""
    return ClipTable.of(filelist, zip(range(2, 2 * len(some) + 2, 2), some, strict=True), **options)


@settings(deadline=None, max_examples=40)
@given(
    some=st.lists(clips, min_size=1, max_size=8),
    folders=st.lists(st.sampled_from(["/mels", "größe", "b\udcff"])),
)
def test_what_is_written_is_read_again(tmp_path_factory, some, folders):
    filelist = str(tmp_path_factory.getbasetemp() / "table.txt")
    table = listed(filelist, some, mel_folders=folders, complete=True)
    write_table(table, KEY)
    found = read_table(filelist, KEY)
    for either in (table, found):
        expected = [vars(clip) | {"where": f"{filelist}:{2 * i}"} for i, clip in enumerate(some, 1)]
        assert [vars(clip) for clip in either] == expected
        assert [vars(either[-1]), vars(either[0])] == [expected[-1], expected[0]]
        assert either.num_frames.tolist() == [clip.num_frames for clip in some]
        assert either.num_symbols.tolist() == [len(clip.symbols) for clip in some]
        assert list(either.ids()) == [clip_id(clip.path) for clip in some]
        assert [str(folder) for folder in either.mel_folders] == folders
    assert (found.fingerprint, found.complete) == (table.fingerprint, True)
    assert found.time == table_path(filelist).stat().st_mtime_ns
    assert table.time is None
    assert len(set(found.path_hashes.tolist())) == len({clip.path for clip in some})


def test_parts_that_are_gone_through_at_once_join_without_a_seam(filelist, monkeypatch):
    monkeypatch.setattr("clip_table.CHUNK", 3)
    some = [Clip(f"{i}.wav", "x" * i, b"", 1, "") for i in range(10)]
    table = listed(filelist, some)
    assert [text.decode() for text in table.texts] == ["x" * i for i in range(10)]
    assert list(table.ids()) == [str(i) for i in range(10)]


def test_indices_are_those_of_a_list(filelist):
    table = listed(filelist, SMALL)
    assert table[0:5] == list(table)
    assert table[np.int64(1)].path == "b.wav"
    for index in (2, -3):
        with pytest.raises(IndexError):
            table[index]


def test_arrays_lie_where_the_machine_reads_them_at_once(filelist):
    write_table(listed(filelist, SMALL), KEY)
    table = read_table(filelist, KEY)
    assert all(array.flags.aligned for array in table.arrays.values())
    with pytest.raises(ValueError, match="read-only"):
        table.num_frames[0] = 1


@pytest.mark.parametrize("change", [{"filelist": "abd"}, {"more": 1}])
def test_a_table_of_another_key_or_version_is_none(filelist, change, monkeypatch):
    assert read_table(filelist, KEY) is None
    write_table(listed(filelist, SMALL), KEY)
    assert read_table(filelist, KEY | change) is None
    monkeypatch.setattr("clip_table.VERSION", 2)
    assert read_table(filelist, KEY) is None


def test_a_damaged_file_is_none_wherever_the_damage_is(filelist):
    table = listed(filelist, SMALL)
    write_table(table, KEY)
    path = table_path(filelist)
    content = path.read_bytes()
    for place in {*range(0, len(content), 5), len(content) - 1}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        found = read_table(filelist, KEY)
        assert found is None or list(found) == list(table)
        if place % 7 == 0:  # cut off
            path.write_bytes(content[:place])
            assert read_table(filelist, KEY) is None
    path.write_bytes(content)
    assert list(read_table(filelist, KEY)) == list(table)


def test_a_file_that_is_read_by_its_name_is_refused_in_a_sentence(filelist, tmp_path):
    write_table(listed(filelist, SMALL), KEY)
    path = table_path(filelist)
    assert list(read_table_file(path)) == list(listed(filelist, SMALL))
    with pytest.raises(UserError, match=r"none\.clips: no such file"):
        read_table_file(tmp_path / "none.clips")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"list\.txt\.clips: no table of clips, or damaged"):
        read_table_file(path)


def test_a_mapped_table_goes_to_another_process_by_its_name(filelist):
    some = [Clip(f"{i}.wav", "x" * 100, b"x" * 100, 5, "") for i in range(100)]
    table = listed(filelist, some)
    write_table(table, KEY)
    pickled = pickle.dumps(read_table(filelist, KEY))
    assert len(pickled) < 1000
    assert list(pickle.loads(pickled)) == list(table)
    assert list(pickle.loads(pickle.dumps(table))) == list(table)  # in no file
    write_table(table.with_frames({3: 6}), KEY)
    with pytest.raises(UserError, match=r"list\.txt\.clips: changed underneath the run"):
        pickle.loads(pickled)
    table_path(filelist).unlink()
    with pytest.raises(UserError, match="no such file"):
        pickle.loads(pickled)


def test_other_lengths_make_another_fingerprint_and_other_folders_do_not(filelist):
    table = listed(filelist, SMALL)
    other = table.with_frames({1: 10})
    assert other.num_frames.tolist() == [7, 10]
    assert table.num_frames.tolist() == [7, 9]
    assert other.fingerprint != table.fingerprint == other.with_frames({1: 9}).fingerprint
    moved = [
        Clip(f"/elsewhere/{Path(c.path).name}", c.text, c.symbols, c.num_frames, "") for c in SMALL
    ]
    assert listed(filelist, moved).fingerprint == table.fingerprint
    assert listed(filelist, SMALL[::-1]).fingerprint != table.fingerprint


@given(
    st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1), min_size=1).map("/".join)
)
def test_an_id_is_the_stem_of_a_path(path):
    if path.rpartition("/")[2] not in (".", "..") and path[-1] != ".":  # a file's name is neither
        assert clip_id(path) == Path(path).stem
