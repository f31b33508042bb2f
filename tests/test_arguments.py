"""Test the argparse types in tacotron2_voice/utils/arguments.py and benchmarks/options.py."""

import argparse
import importlib
from pathlib import Path

import pytest
import torch
from helpers import ROOT

from tacotron2_voice import __main__ as voice_program
from tacotron2_voice.utils.arguments import make_parser, output_file, positive, share, whole_numbers
from tacotron2_voice.version import __version__

options = importlib.import_module("benchmarks.options")


def test_device_is_rejected_when_the_machine_does_not_have_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert options.available_device("cuda:1") == torch.device("cuda:1")
    for name in ("cuda:2", "foo"):
        with pytest.raises(argparse.ArgumentTypeError, match="cpu, cuda, cuda:0, cuda:1"):
            options.available_device(name)


def test_parser_shows_the_description_and_the_version(capsys):
    parser = make_parser("one\n    two  three")
    assert "one\n    two  three" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--version"])
    assert capsys.readouterr().out.split()[-1] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "unknown", "suggested"),
    [
        ("speak voice --text a --spede 1.2", "--spede 1.2", "--speed"),
        ("speak voice --text a --spede=1.2", "--spede=1.2", "--speed"),
        ("speak voice --txet a", "--text ", "--text"),
        ("speak voice --list-speaker --timing srt --quiet", "--quiet", ""),
        ("spek voice --text a", "'spek'", "speak"),
        ("speak voice --text a --timings str", "'str'", "srt"),
        ("speak voice --text a more", "more", ""),
    ],
)
def test_parser_suggests_a_name_when_an_option_or_command_is_unknown(
    arguments, unknown, suggested, capsys
):
    with pytest.raises(SystemExit) as stop:
        voice_program.main(arguments.split())
    assert stop.value.code == 2
    error, fix = capsys.readouterr().err.splitlines()
    program = "tacotron2-voice" if "spek" in arguments else "tacotron2-voice speak"
    assert error.startswith(f"{program}: error: ")
    assert unknown in error
    assert error.endswith(f"; did you mean {suggested}?") == bool(suggested)
    assert f"{program} --help" in fix


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        (output_file, "new.json", Path("new.json"), "none/x.json . /dev/null"),
        (whole_numbers, "2, 4", [2, 4], "0 2.0 -3 two 2,x"),
        (positive, "3.2", 3.2, "0 -1 nan inf"),
        (share, "0", 0.0, "1.1 -1 nan"),
        (options.precision, "bf16", "bf16", "fp8"),
    ],
)
def test_option_value_is_rejected_when_it_is_out_of_range(kind, good, value, bad):
    assert kind(good) == value
    for text in bad.split():
        with pytest.raises(argparse.ArgumentTypeError) as caught:
            kind(text)
        found, expected = str(caught.value).split(" (expected ")
        assert found.strip("'") in text
        assert expected
