"""Test examples/synthetic_corpus.py with a stand-in for the synthesizer."""

import sys
import types

import numpy as np
import pytest
import soundfile

from examples import synthetic_corpus
from tacotron2_voice.utils.errors import UserError


@pytest.fixture
def spoken(monkeypatch):
    """Return a list to which the stand-in for hibari-tts appends each text that it speaks."""
    texts = []

    class Synthesizer:
        def __init__(self, voice):
            pass

        def __call__(self, text, seed):
            texts.append(text)
            return np.full(100, 0.5, np.float32)

    module = types.ModuleType("hibari")
    module.Hibari = Synthesizer
    module.write_wav = lambda path, audio: soundfile.write(path, audio, 24000, format="WAV")
    monkeypatch.setitem(sys.modules, "hibari", module)
    return texts


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "metadata.csv"
    path.write_text("a|1|one\nb|2|two\nc|3|three\n")
    return path


def test_synthetic_corpus_contains_the_chosen_lines_with_their_last_columns(
    table, tmp_path, spoken
):
    synthetic_corpus.main([str(table), str(tmp_path / "out"), "--skip", "1", "--clips", "5"])
    assert spoken == ["two", "three"]
    assert (tmp_path / "out" / "metadata.csv").read_text() == "b|two\nc|three\n"
    audio, rate = soundfile.read(tmp_path / "out" / "wavs" / "c.wav")
    assert (len(audio), rate) == (100, 24000)


def test_synthetic_corpus_program_keeps_existing_files_when_it_runs_again(table, tmp_path, spoken):
    synthetic_corpus.main([str(table), str(tmp_path / "out"), "--clips", "1"])
    synthetic_corpus.main([str(table), str(tmp_path / "out"), "--clips", "2"])
    assert spoken == ["one", "two"]


def test_line_of_metadata_is_rejected_when_it_has_no_text(tmp_path, spoken):
    path = tmp_path / "metadata.csv"
    path.write_text("a|one\nb\n")
    with pytest.raises(UserError, match=r"metadata\.csv:2"):
        synthetic_corpus.main([str(path), str(tmp_path / "out")])
