"""Test the command that synthesizes with checkpoints and exported voices."""

import argparse
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from corpora import refusal
from helpers import ROOT

import synthesize
from export.loading import load_synthesizer
from tacotron2_voice.command import output_path, print_report
from tacotron2_voice.texts import InputText
from tacotron2_voice.utils.arguments import processors
from tacotron2_voice.utterance import Utterance


def test_folder_is_rejected_when_it_contains_no_voice(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.pt").touch()
    message = refusal(load_synthesizer, tmp_path / "run")
    assert f"did you mean {tmp_path}/run/best.pt?" in message
    message = refusal(load_synthesizer, tmp_path)
    assert message == f"{tmp_path}: this folder contains no voice.json"
    missing = tmp_path / "nowhere"
    for option in ("--voice", "--checkpoint"):
        message = refusal(synthesize.main, [option, str(missing), "--text", "a"])
        assert message.startswith(f"{missing}: no such ")
        assert message.endswith("voice folder")


def test_voice_is_loaded_when_the_path_is_its_voice_json(voices):
    folder = voices.fp32[0]
    assert (
        load_synthesizer(folder / "voice.json").source == load_synthesizer(folder).source == folder
    )


def test_messages_report_the_line_number_when_texts_come_from_a_file():
    stream = SimpleNamespace(notes=["in 2 chunks"], warnings=["odd"])
    text = InputText("0012", "A dog.", Utterance([]))
    printed = []
    for numbered in (True, False):
        write = lambda line, file=sys.stdout: printed.append((line, file))  # noqa: E731
        print_report(text, "0012.wav" if numbered else "", stream, write, numbered=numbered)
    assert printed == [
        ("0012.wav  A dog.", sys.stdout),
        ("note: line 12, 'A dog.': in 2 chunks", sys.stderr),
        ("warning: line 12, 'A dog.': odd", sys.stderr),
        ("note: 'A dog.': in 2 chunks", sys.stderr),
        ("warning: 'A dog.': odd", sys.stderr),
    ]


@pytest.mark.parametrize("times", ["00:00:01,000 --> 00:00:02,000", "00:01.000 --> 00:02.500"])
def test_subtitles_are_rejected_when_they_are_passed_as_a_text(voices, tmp_path, times):
    subtitles = tmp_path / "a.srt"
    subtitles.write_text(f"1\n{times}\nGood morning.\n")
    arguments = ["--voice", str(voices.fp32[0]), "--text-file", str(subtitles)]
    message = refusal(synthesize.main, [*arguments, "-o", str(tmp_path / "a.wav")])
    assert message.startswith(f"{subtitles}:2: {times!r}")


@pytest.mark.parametrize("threads", ["0", "1000"])
def test_number_of_threads_is_rejected_when_it_exceeds_the_number_of_cores(threads, capsys):
    with pytest.raises(SystemExit):
        synthesize.main(["--voice", "voice", "--text", "a", "--threads", threads])
    expected = f"'{threads}' (expected a whole number from 1 to {processors()}"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "a.m4a", ".wav", "out/.MP3"])
def test_output_path_is_rejected_when_it_is_neither_a_folder_nor_an_audio_file(name):
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(name))):
        output_path(name)


def test_synthesis_command_writes_files_when_standard_output_is_closed(voices, tmp_path):
    words = [sys.executable, "-m", "tacotron2_voice", "speak", str(voices.fp32[0])]
    words += ["--text", "A dog.", "-o", str(tmp_path / "a.wav")]
    run = subprocess.run(f"{shlex.join(words)} >&-", shell=True, cwd=ROOT, capture_output=True)
    assert run.returncode == 0
    assert b"Traceback" not in run.stderr
    assert (tmp_path / "a.wav").exists()
