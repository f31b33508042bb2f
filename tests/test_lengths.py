"""analysis/lengths.py, ljspeech.py: every format of lengths read alike, and what is refused."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import ljspeech
from analysis.clips import clips_of_lengths_file, synthetic_clips
from analysis.lengths import (
    FILELIST,
    FORMATS,
    HEADERS,
    count_symbols,
    read_lengths,
    read_run_lengths,
)
from clip_table import Clip, ClipTable, table_path, write_table
from errors import UserError
from hparams import HParams, create_hparams

SHARED = Path(__file__).resolve().parents[2] / "shared" / "ljspeech"
HPARAMS = create_hparams("win_time=50,hop_time=12.5")  # hop 276 samples


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "frames", "symbols", "texts"),
    [
        ("\ufeffid,samples\r\na,22050\r\n\r\nb,276\r\nc,275\r\n", [80, 2, 1], None, None),
        ('"id", "frames"\na, 7\n "b" ,8\nc,9', [7, 8, 9], None, None),
        ("ID,Samples,Symbols\na,275,4\nb,276,5\nc,1,6\n", [1, 2, 1], [4, 5, 6], None),
        ("id,frames,symbols\na,3,4\nb,2,5\nc,1,6\n", [3, 2, 1], [4, 5, 6], None),
        (
            "no/such/a.wav|Go on.|1.000000\nb.npy | A dog. | 0.012517\nc.wav|x|0.001\n",
            *([80, 2, 1], None, ["Go on.", "A dog.", "x"]),
        ),
    ],
)
def test_every_format_gives_frames_without_opening_a_sound(
    tmp_path, content, frames, symbols, texts
):
    clips = read_lengths(write(tmp_path / "list", content), HPARAMS)
    assert clips.ids == ["a", "b", "c"]
    assert clips.frames.tolist() == frames  # 1 + samples // 276
    assert (clips.symbols if symbols is None else clips.symbols.tolist()) == symbols
    assert clips.texts == texts
    chosen = clips.take(np.array([2, 0]))
    assert (chosen.ids, chosen.frames.tolist()) == (["c", "a"], [frames[2], frames[0]])
    assert chosen.texts == (texts and [texts[2], texts[0]])
    assert len(chosen) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": empty; expected lines of id,samples or"),
        ("id,samples\n", ": a header and no clip under it"),
        ("hello\n", ":1: 'hello': expected id,samples or id,frames"),
        ("a,22050\n", ":1: 'a,22050': expected id,samples or id,frames"),
        ("id,seconds\na,1\n", ":1: 'id,seconds': expected id,samples or id,frames"),
        ("id,samples\na,5\nb,x\n", ":3: 'b,x', expected id,samples in whole numbers from 1"),
        ("id,frames\na,0\n", ":2: 'a,0'"),
        ("id,frames\na,1_0\n", ":2: 'a,1_0'"),
        ("id,frames\na,2.5\n", ":2: 'a,2.5'"),
        ("id,samples\na\n", ":2: 'a'"),
        ("id,samples\na,1,2\n", ":2: 'a,1,2'"),
        ("id,frames,symbols\na,1,0\n", ":2: 'a,1,0'"),
        ("a.wav|Go on.\n", ":1: path|text without seconds; scripts/prepare_ljspeech.py"),
        ("a.wav|Go on.|1\nb.wav|A dog.|nan\n", ":2: seconds 'nan', expected a number above 0"),
        ("a.wav|Go on.|x\n", ":1: seconds 'x', expected a number"),
        ("a.wav|Go on.|1|2\n", ":1: 4 fields, expected path|text|seconds"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_what_was_expected(tmp_path, content, expected):
    path = write(tmp_path / "list", content)
    with pytest.raises(UserError) as refusal:
        read_lengths(path, HPARAMS)
    assert f"{path}{expected}" in str(refusal.value)


def test_a_table_of_clips_gives_lengths_and_symbols_as_they_are(tmp_path):
    made = [Clip("x/a.wav", "Ah!", b"abc", 80, ""), Clip("b.npy", "", b"", 2, "")]
    filelist = tmp_path / "list.txt"
    write_table(ClipTable.of(filelist, enumerate(made, 1)), {})
    clips = read_lengths(table_path(filelist), HPARAMS)
    assert clips.ids == ["a", "b"]
    assert (clips.frames.tolist(), clips.symbols.tolist()) == ([80, 2], [3, 1])
    assert clips.take(np.array([1])).ids == ["b"]
    write(table_path(filelist), "id,frames\na,1\n")
    with pytest.raises(UserError, match=r"list\.txt\.clips: no table of clips"):
        read_lengths(table_path(filelist), HPARAMS)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv: no such file; expected lines of id,frames$"):
        read_lengths(tmp_path / "none.csv", HPARAMS, ["id,frames"])
    with pytest.raises(UserError, match="a folder, expected a file"):
        read_lengths(tmp_path, HPARAMS)
    (tmp_path / "latin").write_bytes("id,frames\né,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="latin: not readable as UTF-8 text"):
        read_lengths(tmp_path / "latin", HPARAMS)


@pytest.mark.parametrize("refused", [*HEADERS, FILELIST])
def test_a_format_that_the_caller_does_not_take_is_refused_by_name(tmp_path, refused):
    line = {FILELIST: "a.wav|Go on.|1"}.get(refused, refused)
    others = [name for name in FORMATS if name != refused]
    with pytest.raises(UserError) as refusal:
        read_lengths(write(tmp_path / "list", f"{line}\n"), HPARAMS, others)
    assert f":1: {line!r}: expected {' or '.join(others)};" in str(refusal.value)


def test_all_bad_lines_are_listed_up_to_twenty(tmp_path):
    path = write(tmp_path / "lengths.csv", "id,samples\n" + "a,-1\n" * 30)
    with pytest.raises(UserError, match="30 of 30 lines refused") as refusal:
        read_lengths(path, HPARAMS)
    assert ":21:" in str(refusal.value)
    assert ":22:" not in str(refusal.value)
    assert "and 10 more" in str(refusal.value)


def test_a_runs_lengths_come_with_the_texts_of_its_filelist(tmp_path):
    filelist = write(tmp_path / "train.txt", "\ufeffx/a.wav|Go on.|1.5\n\nb.npy|A dog.\n")
    hparams = replace(HPARAMS, training_files=str(filelist))
    write(tmp_path / "lengths.csv", "id,frames\na,120\nb,7\n")
    clips = read_run_lengths(tmp_path, hparams)
    assert clips.frames.tolist() == [120, 7]
    assert clips.texts == ["Go on.", "A dog."]
    assert clips.symbols.tolist() == [len("go on."), len("a dog.")]
    write(filelist, "b.npy|A dog.\nx/a.wav|Go on.|1.5\n")
    with pytest.raises(UserError, match=r"train\.txt: not the clips of .*lengths\.csv"):
        read_run_lengths(tmp_path, hparams)
    write(filelist, "b.npy\n")
    with pytest.raises(UserError, match=r"train\.txt:1: 1 fields, expected path\|text"):
        read_run_lengths(tmp_path, hparams)
    filelist.unlink()
    with pytest.raises(UserError, match=r"train\.txt: no such filelist; .* run was started"):
        read_run_lengths(tmp_path, hparams)


def test_symbols_of_a_filelist_are_counted_in_its_texts(tmp_path):
    assert count_symbols(["Go on.", "%"], HPARAMS).tolist()[0] == len("go on.")
    path = write(tmp_path / "list.txt", "a.wav|Go on.|1\n")
    clips = clips_of_lengths_file(path, HPARAMS)
    assert clips.symbols.tolist() == [len("go on.")]
    assert clips.source == "1 clips of list.txt, their symbols"


# ---------------------------------------------------------------------------- LJSpeech


@pytest.mark.skipif(not SHARED.is_dir(), reason="LJSpeech's lengths are not beside the project")
def test_made_up_lengths_and_symbols_are_those_of_ljspeech():
    real = clips_of_lengths_file(SHARED / "lengths.csv", HPARAMS, SHARED / "metadata.csv")
    with open(SHARED / "lengths.csv") as file:
        seconds = np.array([int(row["samples"]) for row in csv.DictReader(file)]) / 22_050
    found = ljspeech.seconds_at(np.array(ljspeech.SHARES))
    assert found == pytest.approx(np.quantile(seconds, ljspeech.SHARES), abs=0.006)
    assert ljspeech.SHORTEST <= seconds.min() < ljspeech.SHORTEST + 0.1
    assert ljspeech.LONGEST - 0.1 < seconds.max() <= ljspeech.LONGEST
    per_second = real.symbols.sum() / seconds.sum()
    assert per_second == pytest.approx(ljspeech.SYMBOLS_PER_SECOND, abs=0.05)
    made_up = synthetic_clips(13_100, HPARAMS)
    shares = np.linspace(0.01, 0.99, 50)
    for name in ("frames", "symbols"):
        ours, theirs = getattr(made_up, name), getattr(real, name)
        assert np.quantile(ours, shares) == pytest.approx(np.quantile(theirs, shares), rel=0.1)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.02)


# ---------------------------------------------------------------------------- absurd lengths


@pytest.mark.parametrize("count", ["100000000000000000", "1" + 30 * "0", 400 * "9", 5000 * "9"])
@pytest.mark.parametrize("header", ["id,frames", "id,samples"])
def test_lengths_that_no_clip_has_are_refused_with_their_line(tmp_path, header, count):
    path = tmp_path / "lengths.csv"
    path.write_text(f"{header}\na,100\nb,{count}\n")
    with pytest.raises(UserError, match=r":3: 'b,.*from 1 to 10,000,000,000") as refusal:
        read_lengths(path, HParams())
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("seconds", ["1e17", "1e30", "1e308", "inf", "nan", "-1"])
def test_seconds_that_no_clip_lasts_are_refused_with_their_line(tmp_path, seconds):
    path = tmp_path / "list.txt"
    path.write_text(f"a.wav|Go on.|1.5\nb.wav|Go on.|{seconds}\n")
    with pytest.raises(UserError, match=r":2: seconds .*expected a number above 0, at most"):
        read_lengths(path, HParams())


FIELDS = st.one_of(st.text(max_size=12), st.integers(-3, 10**40).map(str), st.just('"'))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(header=st.sampled_from(HEADERS), parts=st.lists(FIELDS, min_size=1, max_size=4))
def test_any_line_of_a_csv_is_read_or_refused_with_its_file(tmp_path_factory, header, parts):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    text = f"{header}\n{','.join(parts)}\n"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    clips, message = None, ""
    try:
        clips = read_lengths(path, HParams())
    except UserError as refusal:
        message = str(refusal)
    assert clips is None or ((clips.frames > 0).all() and clips.frames.dtype == np.int64)
    assert clips is not None or str(path) in message
