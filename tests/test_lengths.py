"""Test corpus/lengths.py: formats of lengths, bad files, and synthetic lengths like LJSpeech's."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import LJSPEECH_LENGTHS
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import lengths as module
from corpus.cache import ClipTable, cache_path
from corpus.clips import Clip
from corpus.filelist import read_filelist
from corpus.lengths import HEADERS, make_corpus, read_lengths, synthetic_lengths, with_symbols
from hparams import HParams, create_hparams
from tacotron2_voice.text import text_to_sequence
from tacotron2_voice.utils.errors import UserError

HPARAMS = create_hparams("win_time=50,hop_time=12.5")  # hop 276 samples


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "frames", "texts"),
    [
        ("\ufeffid,samples\r\na,22050\r\n\r\nb,276\r\nc,275\r\n", [80, 2, 1], None),
        ('id,frames\na,7\n"b",8\nc,9', [7, 8, 9], None),
        (
            "no/such/a.wav|Go on.|1.000000\nb.npy | A dog. | 0.012517\nc.wav|x|0.001\n",
            *([80, 2, 1], ["Go on.", "A dog.", "x"]),
        ),
    ],
)
def test_every_format_gives_frames(tmp_path, content, frames, texts):
    """A clip has 1 + samples // 276 frames. No audio file is opened."""
    clips = read_lengths(write(tmp_path / "list", content), HPARAMS)
    assert list(clips.ids) == ["a", "b", "c"]
    assert clips.frames.tolist() == frames
    assert (clips.texts and list(clips.texts)) == texts
    chosen = clips.take(np.array([2, 0]))
    assert (chosen.ids, chosen.frames.tolist()) == (["c", "a"], [frames[2], frames[0]])
    assert chosen.texts == (texts and [texts[2], texts[0]])
    assert len(chosen) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": empty; expected id,samples or id,frames"),
        ("a,22050\n", ": begins with 'a,22050' in 1 lines; expected id,samples or id,frames"),
        ("id,samples\na,5\nb,x\n", ":3: 'b,x': expected id,samples in whole numbers from 1"),
        ("id,frames\na,0\n", ":2: 'a,0'"),
        (f"id,frames\na,{'9' * 5000}\n", f":2: 'a,{'9' * 58}': expected id,frames in whole"),
        ("id,samples\na,1,2\n", ":2: 'a,1,2'"),
        ("a.wav|Go on.\n", ":1: 'a.wav|Go on.': no seconds; scripts/prepare.py"),
        ("a.wav|Go on.|1\nb.wav|A dog.|nan\n", ":2: 'b.wav|A dog.|nan': expected seconds above 0"),
        ("a.wav|Go on.|1|b|2\n", ":1: 'a.wav|Go on.|1|b|2': 5 fields, expected path|text|sec"),
    ],
)
def test_file_is_rejected_with_the_line_when_it_is_wrong(tmp_path, content, expected):
    path = write(tmp_path / "list", content)
    with pytest.raises(UserError) as refusal:
        read_lengths(path, HPARAMS)
    assert f"{path}{expected}" in str(refusal.value)


def test_clip_tables_give_lengths_and_symbols(tmp_path):
    made = [Clip("x/a.wav", "Ah!", (1, 2, 3), 80, ""), Clip("b.npy", "", (1,), 2, "")]
    filelist = tmp_path / "list.txt"
    ClipTable.of(filelist, enumerate(made, 1)).write()
    clips = read_lengths(cache_path(filelist), HPARAMS)
    assert list(clips.ids) == ["a", "b"]
    assert (clips.frames.tolist(), clips.symbols.tolist()) == ([80, 2], [3, 1])
    write(cache_path(filelist), "id,frames\na,1\n")
    with pytest.raises(UserError, match=r"list\.txt\.clips: "):
        read_lengths(cache_path(filelist), HPARAMS)


def test_file_is_rejected_when_it_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv: "):
        read_lengths(tmp_path / "none.csv", HPARAMS)
    (tmp_path / "latin").write_bytes("id,frames\né,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="latin:2: "):
        read_lengths(tmp_path / "latin", HPARAMS)


def test_symbols_are_counted_in_texts(tmp_path):
    listed = read_lengths(write(tmp_path / "list.txt", "a.wav|Go on.|1\nb.wav|%|1\n"), HPARAMS)
    assert with_symbols(listed, HPARAMS).symbols[0] == len("go on.")
    frames = read_lengths(write(tmp_path / "frames.csv", "id,frames\na,400\nb,5\n"), HPARAMS)
    first, second = with_symbols(frames, HPARAMS).symbols
    assert 5 * 5 < first < 5 * 25  # a second has about 15
    assert second >= 1


@pytest.mark.thorough
def test_synthetic_lengths_are_distributed_as_ljspeech(ljspeech_metadata):
    """The test compares quantiles with those of the real corpus."""
    samples = np.loadtxt(LJSPEECH_LENGTHS, delimiter=",", skiprows=1, usecols=1)
    quantiles = np.quantile(samples / 22_050, module.LJSPEECH_QUANTILES)
    differences = np.array(module.LJSPEECH_SECONDS) - quantiles
    assert np.abs(differences).max() <= 0.006  # written with two decimals
    texts = [line.split("|")[-1] for line in ljspeech_metadata.read_text("utf-8").splitlines()]
    real = with_symbols(replace(read_lengths(LJSPEECH_LENGTHS, HPARAMS), texts=texts), HPARAMS)
    synthetic = synthetic_lengths(13_100, HPARAMS)
    shares = np.linspace(0.01, 0.99, 50)
    for name in ("frames", "symbols"):
        ours, theirs = getattr(synthetic, name), getattr(real, name)
        assert np.quantile(ours, shares) == pytest.approx(np.quantile(theirs, shares), rel=0.1)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.02)


def test_synthetic_corpora_read_back(tmp_path):
    hparams = create_hparams("n_mel_channels=4,hop_time=400,load_mel_from_disk=True")
    wanted = synthetic_lengths(30, hparams)
    clips = read_filelist(make_corpus(tmp_path, wanted, hparams), hparams)
    assert [clip.num_frames for clip in clips] == wanted.frames.tolist()
    counts = [len(text_to_sequence(clip.text, hparams.text_cleaners)) for clip in clips]
    assert counts == wanted.symbols.tolist()


FIELDS = st.one_of(st.text(max_size=12), st.integers(-3, 10**40).map(str), st.just('"'))


@settings(max_examples=150, derandomize=True)
@given(header=st.sampled_from(HEADERS), parts=st.lists(FIELDS, min_size=1, max_size=4))
def test_any_csv_line_is_read_or_rejected(tmp_path_factory, header, parts):
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
