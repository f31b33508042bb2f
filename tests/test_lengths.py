"""Test files with clip lengths (corpus/lengths.py)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.cache import ClipTable, cache_path
from corpus.clips import Clip
from corpus.lengths import HEADERS, read_lengths
from hparams import HParams, create_hparams
from tacotron2_voice.utils.errors import UserError

HPARAMS = create_hparams("win_time=50,hop_time=12.5")  # the hop length is 276 samples


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "frames"),
    [
        ("\ufeffid,samples\r\na,22050\r\n\r\nb,276\r\nc,275\r\n", [80, 2, 1]),
        ('id,frames\na,7\n"b",8\nc,9', [7, 8, 9]),
        ("a.wav|Go on.|1.000000\nb.npy | A dog. | 0.012517\nc.wav|x|0.001\n", [80, 2, 1]),
    ],
)
def test_clip_lengths_are_read_from_every_file_format(tmp_path, content, frames):
    """No audio file is opened. A clip of n samples has 1 + n // 276 frames."""
    assert read_lengths(write(tmp_path / "list", content), HPARAMS).tolist() == frames


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": empty; expected id,samples or id,frames"),
        ("id,samples\n", ": no lines after the header 'id,samples'; expected id,samples or"),
        ("a,22050\n", ": unknown format, begins with 'a,22050'; expected id,samples or"),
        (
            "id,samples\na,5\nb,x\n",
            ":3: 'b,x': invalid line, expected id,samples, where the length is a whole",
        ),
        ("id,frames\na,0\n", ":2: 'a,0'"),
        (
            "id,frames\na,10000000000\n",
            ":2: 'a,10000000000': invalid line, expected id,frames, where the length is a whole number",
        ),
        ("id,samples\na,1,2\n", ":2: 'a,1,2'"),
        ("a.wav|Go on.\n", ":1: 'a.wav|Go on.': no length in seconds; scripts/prepare.py"),
        ("a.wav|Go on.|1\nb.wav|A dog.|nan\n", ":2: 'b.wav|A dog.|nan': seconds out of range"),
        ("a.wav|Go on.|x\n", ":1: 'a.wav|Go on.|x': seconds 'x', expected a number"),
    ],
)
def test_error_reports_the_line_number_when_a_length_is_invalid(tmp_path, content, expected):
    path = write(tmp_path / "list", content)
    with pytest.raises(UserError) as refusal:
        read_lengths(path, HPARAMS)
    assert f"{path}{expected}" in str(refusal.value)


def test_clip_lengths_are_read_from_the_filelist_cache(tmp_path):
    made = [Clip("x/a.wav", "Ah!", (1, 2, 3), 80, ""), Clip("b.npy", "", (1,), 2, "")]
    filelist = tmp_path / "list.txt"
    ClipTable.of(filelist, enumerate(made, 1)).write()
    assert read_lengths(cache_path(filelist), HPARAMS).tolist() == [80, 2]
    write(cache_path(filelist), "id,frames\na,1\n")
    with pytest.raises(UserError, match=r"list\.txt\.clips: "):
        read_lengths(cache_path(filelist), HPARAMS)


FIELDS = st.one_of(st.text(max_size=12), st.integers(-3, 10**40).map(str), st.just('"'))


@settings(max_examples=60, derandomize=True)
@given(header=st.sampled_from(HEADERS), parts=st.lists(FIELDS, min_size=1, max_size=4))
def test_arbitrary_csv_line_is_read_or_rejected_with_a_user_error(tmp_path_factory, header, parts):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    text = f"{header}\n{','.join(parts)}\n"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    frames = None
    message = ""
    try:
        frames = read_lengths(path, HParams())
    except UserError as refusal:
        message = str(refusal)
    assert frames is None or ((frames > 0).all() and frames.dtype == np.int64)
    assert frames is not None or str(path) in message
