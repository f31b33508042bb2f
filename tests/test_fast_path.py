"""analysis/fast_path.py: no benchmark of the fast decoder measures another one in its stead."""

import runpy
from pathlib import Path

import pytest

from analysis import fast_path
from benchmarks import epoch, loss_curves

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def no_fast_decoder(monkeypatch):
    monkeypatch.setattr(fast_path, "IS_HERE", False)


@pytest.mark.parametrize("name", ["decoder", "kernels"])
def test_a_benchmark_of_the_fast_decoder_ends_in_a_message(name):
    with pytest.raises(SystemExit, match=rf"^{name}\.py: the folder fast_decoder/ is not here"):
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="program")


@pytest.mark.parametrize(
    ("program", "arguments"),
    [(loss_curves, []), (epoch, []), (epoch, ["--decoder", "both"])],
)
def test_the_reference_decoder_is_not_measured_under_the_name_of_the_fast_one(
    program, arguments, capsys
):
    with pytest.raises(SystemExit):
        program.main(arguments)
    assert fast_path.MISSING in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--decoder", "reference"], ["--shapes"]])
def test_what_needs_no_fast_decoder_is_measured(arguments):
    assert epoch.parse_arguments(arguments)
