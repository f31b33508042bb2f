"""Test the wheel length-batching: its files, its types, and its use in an empty environment."""

import os
import re
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT

import length_batching

README = (ROOT / "length_batching" / "README.md").read_text(encoding="utf-8")
LENGTHS = np.random.default_rng(0).integers(5, 80, 320)
PROJECT = ROOT / "length_batching"
CORRECT_USE = """
from length_batching import (
    LengthBatches, LengthBatchSampler, LengthBatchStream, PlanOptions, RankSampler, check_strategy,
    padding_stats, plan_epoch,
)

options: PlanOptions = {"dynamic_batch_size": True, "max_clips": 3}
strategy = check_strategy(input())
sampler = LengthBatchSampler([3, 1, 2], 2, strategy, rank=0, world_size=2, **options)
state: dict[str, int] = sampler.state_dict(0)
batches = LengthBatches([1, 2, 3], [3, 1, 2], 2, "sorted", world_size=1, size_multiple=2)
first: int = next(iter(RankSampler(batches, 0)))
stream = LengthBatchStream(lambda skip: iter([]), len, 2, "semi_sorted", seed=3)
plan = plan_epoch([3, 1, 2], 2, "semi_sorted", dynamic_batch_size=True, too_long="alone")
rate: float = padding_stats([3, 1, 2], plan).zero_padding_rate
"""
WRONG_USE = """
from collections.abc import Iterator

from length_batching import LengthBatches, LengthBatchSampler, LengthBatchStream, plan_epoch


def read(skip: int) -> Iterator[int]:
    yield skip

lengths = [3, 1, 2]
plan_epoch(lengths, 2, "semisorted")
plan_epoch(lengths, 2, "sorted", dynamic_batchsize=True)
LengthBatchSampler(lengths, 2, "semisorted")
LengthBatchSampler(lengths, 2, "sorted", dynamic_batchsize=True)
LengthBatches(lengths, lengths, 2, "semisorted")
LengthBatches(lengths, lengths, 2, "sorted", dynamic_batchsize=True)
LengthBatchStream(read, len, 2, "semisorted")
LengthBatchStream(read, len, 2, "sorted", dynamic_batchsize=True)
LengthBatchSampler(lengths, 2, "sorted", too_long="cut")
LengthBatchSampler(lengths, 2, "sorted", max_clips="3")
LengthBatchSampler(lengths, 2, "sorted").set_epoch("1")
"""


def build(kind, folder, out):
    """Build a wheel or an sdist of the project in `folder`, and return its path."""
    program = f"from hatchling import build; print(build.build_{kind}({str(out)!r}))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return out / run.stdout.split()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs requirements/dev.txt")
    return tmp_path_factory.mktemp("with a space")


@pytest.fixture(scope="module")
def sdist(folder):
    return build("sdist", PROJECT, folder)


@pytest.fixture(scope="module")
def wheel(folder, sdist):
    """Build the wheel from the sdist, like `python -m build`."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    [project] = (folder / "source").iterdir()
    return build("wheel", project, folder)


def test_wheel_contains_only_the_library(wheel):
    files = {path.name for path in PROJECT.iterdir() if path.suffix == ".py"} | {"py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
    in_package = {name for name in names if ".dist-info/" not in name}
    assert in_package == {f"length_batching/{name}" for name in files}
    assert f"\nVersion: {length_batching.__version__}\n" in metadata
    assert re.findall(r"^Requires-Dist: ([\w-]+)[^;]*$", metadata, re.M) == ["numpy"]
    assert "\n# " in metadata  # the README is the description of the package
    assert not re.findall(r"\]\((?!https?://|#)", metadata)  # relative links do not work on PyPI


@pytest.fixture(scope="module")
def environment(folder):
    """Return the Python interpreter of an empty environment, and a folder that contains only
    numpy."""
    venv.create(folder / "environment")
    packages = folder / "packages"
    packages.mkdir()
    installed = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return folder / "environment" / "bin" / "python", packages


def run_python(environment, folder, *arguments):
    """Run Python in the empty virtual environment, with numpy on PYTHONPATH. Return the output."""
    python, packages = environment
    run = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.thorough
def test_library_works_when_installed_in_an_empty_environment(environment, folder, wheel):
    """Plans, the sampler and the command need only numpy. The library does not import files of the
    user that have the names of the library's modules."""
    python, _ = environment
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    user = folder / "user"
    user.mkdir(exist_ok=True)
    for name in ("batching", "hparams", "plan", "search"):
        (user / f"{name}.py").write_text("raise ImportError('this is a file of the user')")
    np.savetxt(user / "lengths.csv", LENGTHS)
    printed = run_python(environment, user, "-m", "length_batching", "lengths.csv")
    assert printed.startswith("320 lengths")
    code = "import length_batching as x; list(x.LengthBatchSampler([3, 1, 2], 2, 'sorted')); "
    code += "print(x.__version__, x.__file__)"
    version, path = run_python(environment, user, "-c", code).strip().split(" ", 1)
    assert version == length_batching.__version__
    assert path.startswith(str(folder / "environment"))


def mypy_errors(folder, wheel, code):
    """Return the errors of mypy, as a dict from line to error."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (folder / "use.py").write_text(code)
    # mypy skips torch, because torch's types take ten seconds to read
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "use.py"],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(site)},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^use\.py:(\d+): error: (.*)", run.stdout, re.M)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return {code.splitlines()[int(line) - 1]: message for line, message in found}


@pytest.mark.thorough
def test_mypy_reports_exactly_the_incorrect_lines(folder, wheel):
    errors = mypy_errors(folder, wheel, WRONG_USE + CORRECT_USE)
    _, _, wrong_lines = WRONG_USE.partition("lengths = [3, 1, 2]\n")
    assert list(errors) == wrong_lines.splitlines()
    for line, message in errors.items():
        if "semisorted" in line:
            assert "Literal['random', " in message
        if "dynamic_batchsize" in line:
            assert 'did you mean "dynamic_batch_size"' in message


@pytest.mark.parametrize("example", re.findall(r"\n```python\n(.*?)```", README, re.DOTALL))
def test_readme_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(example)
    runpy.run_path("example.py", run_name="__main__")
    assert capsys.readouterr().out


def test_lightning_classes_in_the_readme_equal_the_classes_in_the_example():
    [classes] = re.findall(
        r"\n```py\nimport lightning\n.*?\n(class .*?)\n\n\ndevices = ", README, re.DOTALL
    )
    program = (ROOT / "examples" / "frameworks" / "lightning_trainer.py").read_text()
    for line in filter(None, classes.splitlines()):
        assert line in program


def test_licenses_of_the_packages_match_the_license_of_the_project():
    for library in ("length_batching", "tacotron2_voice"):
        assert (ROOT / library / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
