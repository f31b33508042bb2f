"""Test the types of options: tacotron2_voice/utils/arguments.py and benchmarks/options.py."""

import argparse
import importlib
from pathlib import Path

import pytest
import torch
from helpers import ROOT

from tacotron2_voice.utils.arguments import make_parser, output_file, positive, share, whole_numbers
from tacotron2_voice.version import __version__

PROGRAMS = ["train", "synthesize", "tacotron2_voice.__main__"]
PROGRAMS += [
    f"scripts.{x.stem}" for x in sorted(ROOT.glob("scripts/*.py")) if x.stem != "project_root"
]
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
    ("kind", "good", "value", "bad"),
    [
        (output_file, "new.json", Path("new.json"), "none/x.json . /dev/null"),
        (whole_numbers, "2, 4", [2, 4], "0 2.0 -3 two 2,x"),
        (positive, "3.2", 3.2, "0 -1 nan inf"),
        (share, "0", 0.0, "1.1 -1 nan"),
        (options.precision, "bf16", "bf16", "fp8"),
    ],
)
def test_value_is_rejected_when_it_is_out_of_range(kind, good, value, bad):
    assert kind(good) == value
    for text in bad.split():
        with pytest.raises(argparse.ArgumentTypeError) as caught:
            kind(text)
        found, expected = str(caught.value).split(" (expected ")
        assert found.strip("'") in text
        assert expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_rejects_an_argument_when_it_is_not_utf8(program, capsys):
    """Python keeps the bytes of such an argument as lone surrogates."""
    main = importlib.import_module(program).main
    for arguments in (["caf\udce9"], ["--out", "caf\udce9"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert f"argument {len(arguments)}" in message
        assert r"'caf\xe9'" in message
        assert ("--out" in message) == (len(arguments) == 2)


def test_parser_shows_the_accepted_form_when_a_value_starts_with_a_hyphen(capsys):
    parser = make_parser("")
    parser.add_argument("--text", "-t")
    with pytest.raises(SystemExit):
        parser.parse_args(["--text", "-x"])
    assert "--text=-..." in capsys.readouterr().err
    assert parser.parse_args(["--text=-x"]).text == "-x"
