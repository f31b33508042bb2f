"""Test that corpus/cache.py reads back exactly the clips that it has written."""

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

from corpus import cache
from corpus.cache import CHUNK, ClipTable, cache_path, read_cache
from corpus.clips import Clip, clip_id
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity

# Texts with all characters that a filelist can contain, and paths that are not valid UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|\n"), max_size=8)
names = texts | st.binary(max_size=8).map(
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
    """Return a clip table with these clips, which are on lines 2, 4, 6, ... of the filelist."""
    numbered = zip(range(2, 2 * len(some) + 2, 2), some, strict=True)
    return ClipTable.of(filelist, numbered, made_from=KEY, **options)


def read(filelist, key=KEY):
    """Read a cache in the same way as a new process, or return None if the cache is outdated."""
    try:
        return read_cache(cache_path(filelist), key)
    except UserError:
        return None


@settings(max_examples=40)
@given(some=st.lists(clips, min_size=1, max_size=8))
def test_filelist_cache_returns_the_clips_that_were_written(tmp_path_factory, some):
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
        assert [tuple(x.tolist()) for x in either.symbols()] == [clip.symbols for clip in some]
        assert list(either.paths()) == [clip.path for clip in some]
        assert list(either.paths(2, 5)) == [clip.path for clip in some[2:5]]
        assert list(either.paths_and_texts()) == [(clip.path, clip.text) for clip in some]
        assert either.identities(1, 3) == [clip.identity for clip in some[1:3]]
        assert list(either.ids()) == [clip_id(clip.path) for clip in some]
        with pytest.raises(IndexError):
            either[len(some)]
    assert (found.fingerprint, found.complete) == (table.fingerprint, True)
    assert (found.is_on_disk, table.is_on_disk) == (True, False)


def test_clips_in_a_cache_keep_their_order_when_the_cache_has_several_chunks(filelist):
    some = [Clip(f"{i}.wav", f"Text {i}.", (1 + i % 9,) * (1 + i % 3), 5) for i in range(CHUNK + 3)]
    listed(filelist, some).write()
    table = read(filelist)
    assert list(table.paths()) == [clip.path for clip in some]
    assert [tuple(x.tolist()) for x in table.symbols()] == [clip.symbols for clip in some]
    assert table[CHUNK + 1].text == f"Text {CHUNK + 1}."
    assert table[-1].where == f"{filelist}:{2 * len(some)}"


def test_relative_paths_in_a_cache_stay_valid_when_the_filelist_is_moved(filelist, tmp_path):
    clip = Clip(str(tmp_path / "wavs" / "a.wav"), "A.", (1,), 5, is_relative=True)
    listed(filelist, [clip]).write()
    (tmp_path / "new").mkdir()
    for path in (Path(filelist), cache_path(filelist)):
        path.touch()
        path.rename(tmp_path / "new" / path.name)
    assert read(str(tmp_path / "new" / "list.txt"))[0].path == f"{tmp_path}/new/wavs/a.wav"


MILLION = """
import time, sys
import torch
import corpus.cache

def own():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1])

before, start = own(), time.monotonic()
table = corpus.cache.read_cache(sys.argv[1])
seconds = time.monotonic() - start
assert table.num_frames.sum() == 5_000_000 and table[999_999].text == "x" * 20
print(seconds, own() - before)
"""


@pytest.mark.thorough
def test_cache_of_a_million_clips_loads_fast_and_is_shared_by_processes(tmp_path):
    """The size of the cache file is 140 MB. The processes map the cache file, so they share most
    of its memory."""
    filelist = str(tmp_path / "list.txt")
    clip = Clip("corpus/clip.wav", "x" * 20, (3,) * 20, 5)
    ClipTable.of(filelist, ((i, clip) for i in range(1_000_000)), True, KEY).write()
    command = [sys.executable, "-c", MILLION, cache_path(filelist)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, kilobytes = map(float, run.stdout.split())
    assert seconds < 10  # loading usually takes 0.1 s on an idle machine
    assert kilobytes < 60_000


@pytest.mark.parametrize("change", [{"filelist": "abd"}, {"more": 1}])
def test_filelist_cache_is_ignored_when_its_key_or_version_differs(filelist, change, monkeypatch):
    assert read(filelist) is None
    listed(filelist, SMALL).write()
    assert read(filelist, KEY | change) is None
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert read(filelist) is None


@pytest.mark.parametrize("kept", [0, 0.5, 0.999])
def test_filelist_cache_is_ignored_when_it_is_truncated(filelist, kept):
    listed(filelist, SMALL).write()
    path = cache_path(filelist)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert read(filelist) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"id,frames\na,1\n", b'2a5b9c01\n[6, 2, ["anna"], true, "", {}]\na.wav|A.\n'],
    ids=["empty", "CSV", "cache of version 0.4"],
)
def test_filelist_cache_is_ignored_when_the_file_is_not_a_cache_of_this_version(filelist, content):
    cache_path(filelist).write_bytes(content)
    assert read(filelist) is None


def test_worker_maps_the_cache_file_when_it_receives_a_pickled_clip_table(filelist):
    some = [Clip(f"{i}.wav", "x" * 100, (7,) * 100, 5, "") for i in range(100)]
    table = listed(filelist, some)
    table.write()
    pickled = pickle.dumps(read(filelist))
    assert len(pickled) < 1000
    assert list(pickle.loads(pickled)) == list(table)
    # A clip table that was not read from a cache file is pickled together with its clips.
    assert list(pickle.loads(pickle.dumps(table))) == list(table)
    cache_path(filelist).unlink()
    with pytest.raises(UserError) as caught:
        pickle.loads(pickled)
    assert str(cache_path(filelist)) in str(caught.value)


def test_fingerprint_of_clips_depends_on_names_texts_and_lengths_but_not_on_folders(filelist):
    table = listed(filelist, SMALL)
    moved = [replace(clip, path=f"/elsewhere/{Path(clip.path).name}") for clip in SMALL]
    assert listed(filelist, moved).fingerprint == table.fingerprint
    for change in ({"path": "x/other.wav"}, {"text": "Grosse."}, {"num_frames": 10}):
        changed = [replace(SMALL[0], **change), SMALL[1]]
        assert listed(filelist, changed).fingerprint != table.fingerprint
    assert listed(filelist, SMALL[::-1]).fingerprint != table.fingerprint


def test_fingerprint_of_clips_is_the_same_as_in_version_0_4(filelist):
    """Checkpoints contain the fingerprint of the clips. If the fingerprint changed, old runs could
    not resume."""
    named = [replace(clip, speaker="anna") for clip in SMALL]
    for some, expected in ((SMALL, FINGERPRINT), (named, FINGERPRINT_OF_ANNA)):
        assert listed(filelist, some).fingerprint == expected


FINGERPRINT = "0c5222818890c2300b5606c537b2ee978443f21f93d5cd0e6e45153b6eeb576e"
FINGERPRINT_OF_ANNA = "2a15327c7dfe0db652ae5143b9df03a5f2d5a2013fc1cd9ee2bc9c1b58d05e53"


@given(
    st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1), min_size=1).map("/".join)
)
def test_clip_id_is_the_stem_of_its_path(path):
    # Exclude names that cannot be the name of an audio file.
    if path.rpartition("/")[2] not in (".", "..") and path[-1] != ".":
        assert clip_id(path) == Path(path).stem


def test_loaded_clip_table_does_not_change_when_its_file_is_replaced(filelist):
    listed(filelist, SMALL).write()
    table = read(filelist)
    listed(filelist, SMALL[::-1]).write()
    assert [clip.path for clip in table] == [clip.path for clip in SMALL]
