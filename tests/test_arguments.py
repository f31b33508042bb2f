"""analysis/arguments.py: what programs refuse before they measure anything."""

import argparse
import os

import pytest
import torch

from analysis.arguments import available_device, make_parser, output_file
from benchmarks import epoch, synthesis


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


@pytest.mark.parametrize("program", [epoch, synthesis])
def test_results_that_could_not_be_written_are_not_measured(program, capsys):
    with pytest.raises(SystemExit):
        program.main(["--json", "none/x.json"])
    assert "--json: 'none/x.json': no such folder: none" in capsys.readouterr().err


def test_only_devices_that_are_there_are_taken(monkeypatch):
    assert available_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert available_device("cuda:1") == torch.device("cuda:1")
    for name, problem in [("cuda:2", "up to cuda:1"), ("foo", "expected cpu, cuda or cuda:1")]:
        with pytest.raises(argparse.ArgumentTypeError, match=problem):
            available_device(name)


def test_help_shows_the_programs_description_as_it_stands():
    assert "one\n    two  three" in make_parser("one\n    two  three").format_help()
