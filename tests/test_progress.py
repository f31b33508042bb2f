"""progress.py: programs whose output nobody reads any more."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from progress import ended_by_closed_pipe

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def closed_pipe():
    """A stdout whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        yield stdout


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_closed_pipe_ends_a_program_as_it_ends_unix_tools(closed_pipe, monkeypatch, length):
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    with pytest.raises(SystemExit) as stopped, ended_by_closed_pipe():
        print("x" * length)
    assert stopped.value.code == 141
    closed_pipe.flush()  # as Python does at its end: no complaint


@pytest.mark.parametrize(
    ("program", "arguments"), [("compare_batching.py", ["--strategies"]), ("report.py", ["--help"])]
)
def test_programs_that_are_read_by_others_end_quietly(closed_pipe, monkeypatch, program, arguments):
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPTS / program), run_name="__main__")
    assert stopped.value.code == 141


def test_other_ends_pass_through():
    with pytest.raises(SystemExit) as stopped, ended_by_closed_pipe():
        sys.exit(3)
    assert stopped.value.code == 3
    with pytest.raises(ValueError, match="a fault"), ended_by_closed_pipe():
        raise ValueError("a fault")
