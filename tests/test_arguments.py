"""analysis/arguments.py: what programs refuse before they measure anything."""

import argparse
import os

import pytest
import torch

from analysis.arguments import (
    available_device,
    make_parser,
    output_file,
    positive,
    positive_list,
    whole_number,
    whole_numbers,
)
from benchmarks import epoch
from version import __version__


def test_a_file_to_write_lies_in_a_folder_that_is_there(tmp_path, monkeypatch):
    assert output_file(str(tmp_path / "new.json")) == tmp_path / "new.json"
    monkeypatch.chdir(tmp_path)
    assert output_file("new.json").name == "new.json"
    for name, problem in [("none/x.json", "no such folder: none"), (".", "is a folder")]:
        with pytest.raises(argparse.ArgumentTypeError, match=problem):
            output_file(name)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written to"):
        output_file("new.json")


def test_results_that_could_not_be_written_are_not_measured(capsys):
    with pytest.raises(SystemExit):
        epoch.main(["--json", "none/x.json"])
    assert "--json: 'none/x.json': no such folder: none" in capsys.readouterr().err


def test_only_devices_that_are_there_are_taken(monkeypatch):
    assert available_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert available_device("cuda:1") == torch.device("cuda:1")
    for name, problem in [("cuda:2", "up to cuda:1"), ("foo", "expected cpu, cuda or cuda:1")]:
        with pytest.raises(argparse.ArgumentTypeError, match=problem):
            available_device(name)


def test_every_program_shows_its_description_and_version(capsys):
    parser = make_parser("one\n    two  three")
    assert "one\n    two  three" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--version"])
    assert capsys.readouterr().out.split()[-1] == __version__


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        (whole_number(2), "2", 2, "1 2.0 -3 two"),
        (whole_numbers(1), "1,4", [1, 4], "1,0 1,x"),
        (positive, "0.5", 0.5, "0 nan inf x"),
        (positive_list, "16,3.2", [16.0, 3.2], "16,0"),
    ],
)
def test_numbers_out_of_range_are_refused(kind, good, value, bad):
    assert kind(good) == value
    for text in bad.split():
        with pytest.raises(argparse.ArgumentTypeError, match=r"^'.+': expected "):
            kind(text)
