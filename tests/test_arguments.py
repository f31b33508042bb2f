"""tacotron2_voice/utils/arguments.py and benchmarks/options.py: what programs refuse before they do anything."""

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


def test_only_available_devices_are_accepted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert options.available_device("cuda:1") == torch.device("cuda:1")
    for name in ("cuda:2", "foo"):
        with pytest.raises(argparse.ArgumentTypeError, match="one of cpu, cuda, cuda:0, cuda:1"):
            options.available_device(name)


def test_every_program_shows_its_description_and_version(capsys):
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
        (options.precision_list, "bf16,fp32", ["bf16", "fp32"], "fp8"),
    ],
)
def test_values_out_of_range_are_refused(kind, good, value, bad):
    assert kind(good) == value
    for text in bad.split():
        with pytest.raises(argparse.ArgumentTypeError, match=r"^'.+': expected "):
            kind(text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_arguments_that_are_no_text_are_refused(program, capsys):
    """Python keeps the bytes of such an argument or path as lone surrogates."""
    main = importlib.import_module(program).main
    for arguments in (["caf\udce9"], ["--out", "caf\udce9"]):
        with pytest.raises(SystemExit):
            main(arguments)
        after = " (after --out)" * (len(arguments) - 1)
        message = rf"argument {len(arguments)}{after}: 'caf\xe9' is no UTF-8; write it in UTF-8"
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_values_that_begin_with_hyphens_are_advised(capsys):
    """As advised they are taken."""
    parser = make_parser("")
    parser.add_argument("--text", "-t")
    with pytest.raises(SystemExit):
        parser.parse_args(["--text", "-x"])
    assert "expected one argument; one that begins with a hyphen is written --text=-..." in (
        capsys.readouterr().err
    )
    assert parser.parse_args(["--text=-x"]).text == "-x"
