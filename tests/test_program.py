"""synthesis/program.py, loading.py: the same program speaks with a checkpoint and with a voice."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from helpers import ROOT

import synthesize
from common.errors import UserError
from synthesis.loading import load_speaker
from synthesis.program import report
from synthesis.texts import Text
from synthesis.utterance import Utterance

TEXT = "A dog came. It sat down."


def test_a_checkpoint_streams_what_it_writes(checkpoint_path, tmp_path):
    options = ["--checkpoint", str(checkpoint_path), "--text", TEXT, "--threads", "1"]
    synthesize.main([*options, "-o", str(tmp_path / "a.wav")])
    command = [sys.executable, "synthesize.py", *options, "--stream", "raw", "--time"]
    streamed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate == 22050
    np.testing.assert_array_equal(np.frombuffer(streamed.stdout, "<i2"), samples)
    assert b"first sound after" in streamed.stderr


def test_a_voice_writes_the_files_of_each_text(voices, tmp_path):
    """As a checkpoint does; the same command finds them, and says that they are there."""
    arguments = ["--voice", str(voices.fp32[0]), "--text", TEXT, "-o", str(tmp_path / "out")]
    synthesize.main([*arguments, "--save-mel"])
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["0001.npy", "0001.png", "0001.wav", "spoken.jsonl"]
    written = (tmp_path / "out" / "0001.wav").stat().st_mtime_ns
    synthesize.main(["--checkpoint", *arguments[1:], "--save-mel"])  # another name of the option
    assert (tmp_path / "out" / "0001.wav").stat().st_mtime_ns == written


def test_a_folder_without_a_voice_is_refused(tmp_path):
    message = rf"^{tmp_path}: no voice\.json in it; name the folder of a voice .*, or a checkpoint$"
    with pytest.raises(UserError, match=message):
        load_speaker(tmp_path)


def test_a_voice_is_found_by_its_settings_too(voices):
    folder = voices.fp32[0]
    assert load_speaker(folder / "voice.json").source == load_speaker(folder).source == folder


def test_messages_name_the_line_of_a_file():
    speaker = SimpleNamespace(notes=["in 2 parts"], warnings=["odd"])
    text, printed = Text("0012", "A dog.", Utterance([])), []
    for numbered in (True, False):
        write = lambda line, file=sys.stdout: printed.append((line, file))  # noqa: E731
        report(text, "0012.wav" if numbered else "", speaker, write, numbered=numbered)
    assert printed == [
        ("0012.wav  A dog.", sys.stdout),
        ("line 12, 'A dog.': in 2 parts", sys.stderr),
        ("warning: line 12, 'A dog.': odd", sys.stderr),
        ("'A dog.': in 2 parts", sys.stderr),
        ("warning: 'A dog.': odd", sys.stderr),
    ]
