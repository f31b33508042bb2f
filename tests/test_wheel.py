"""The wheel length-batching: what it holds, planning without torch, `python -m length_batching`."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
from helpers import ROOT

from length_batching import STRATEGIES, __main__, padding_stats, pair_novelty, plan_epoch

LENGTHS = np.random.default_rng(0).integers(5, 80, 320)
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import length_batching
print(len(length_batching.plan_epoch([3, 1, 2], 2, "sorted")))
print(list(length_batching.LengthBatchSampler([3, 1, 2], 2, "sorted")))
"""


TYPED_USE = """
from length_batching import RankSampler, LengthBatches, LengthBatchSampler, padding_stats, plan_epoch

sampler = LengthBatchSampler([3, 1, 2], 2, "sorted", rank=0, world_size=2)
state: dict[str, int] = sampler.state_dict(0)
batches = LengthBatches([1, 2, 3], [3, 1, 2], 2, "sorted", world_size=1)
first: int = next(iter(RankSampler(batches, 0)))
rate: float = padding_stats([3, 1, 2], plan_epoch([3, 1, 2], 2, "sorted")).zero_padding_rate
sampler.set_epoch("1")
"""
WRONG_TYPE = (
    'error: Argument 1 to "set_epoch" of "LengthBatchSampler" has incompatible type "str"; '
    'expected "int"  [arg-type]'
)


def build(kind: str, folder, out) -> str:
    """The name of the wheel or sdist that the project in `folder` makes."""
    program = f"from hatchling import build; print(build.build_{kind}({str(out)!r}))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()[-1]


def test_the_wheel_is_batching_alone_and_typed(tmp_path):
    """Made of what an sdist holds, as `python -m build` does; and used where nothing else is."""
    pytest.importorskip("hatchling", reason="pip install -r requirements/dev.txt")
    with tarfile.open(tmp_path / build("sdist", ROOT, tmp_path)) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (project,) = (path for path in tmp_path.iterdir() if path.is_dir())
    site = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / build("wheel", project, tmp_path)) as wheel:
        wheel.extractall(site)
    (metadata,) = site.glob("*.dist-info/METADATA")
    files = {path.name for path in (ROOT / "length_batching").iterdir() if path.is_file()}
    assert {path.name for path in (site / "length_batching").iterdir()} == files >= {"py.typed"}
    assert {path.name for path in site.iterdir()} == {"length_batching", metadata.parent.name}
    assert re.findall(r"^Requires-Dist: (\w+)[^;]*$", metadata.read_text("utf-8"), re.M) == [
        "numpy"
    ]
    (site / "torch").mkdir()  # which plans and the command must not import
    (site / "torch" / "__init__.py").write_text("raise ImportError('no torch')")
    np.savetxt(tmp_path / "lengths.csv", LENGTHS)
    command = [sys.executable, "-m", "length_batching", "lengths.csv"]
    environment = os.environ | {"PYTHONPATH": str(site)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout.startswith("320 lengths"), run.stderr
    shutil.rmtree(site / "torch")
    (tmp_path / "use.py").write_text(TYPED_USE)
    # torch's own types take ten seconds to read.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "use.py"]
    environment |= {"MYPYPATH": str(site)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.findall(r"error: .*", run.stdout) == [WRONG_TYPE], run.stdout + run.stderr


def test_plans_and_the_sampler_need_no_torch():
    program = [sys.executable, "-c", WITHOUT_TORCH]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "2\n[[1, 2], [0]]\n", run.stderr


def test_the_command_prints_what_each_strategy_costs(tmp_path, capsys):
    rows = "".join(f"{i},{length},7\n" for i, length in enumerate(LENGTHS))
    (tmp_path / "lengths.csv").write_text(f"id,frames,text\n{rows}")
    options = "--column", "frames", "batch_size=8", "num_bins=5", "bucket_size=40"
    __main__.main([str(tmp_path / "lengths.csv"), *options])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {tuple(line[:2]): line[2:5] for line in lines if line and line[0] in STRATEGIES}
    assert found.keys() == {(name, sizes) for name in STRATEGIES for sizes in ("fixed", "dynamic")}
    options = {"bucket_size": 40, "dynamic_batch_size": True}
    plans = [plan_epoch(LENGTHS, 8, "bucket", **options, epoch=epoch) for epoch in range(1, 41)]
    stats = [padding_stats(LENGTHS, plan) for plan in plans]
    padded = 100 * np.mean([one.padded_fraction for one in stats])
    batches, steps = (
        np.mean([getattr(x, n) for x in stats]) for n in ("num_batches", "decoder_steps")
    )
    assert found["bucket", "dynamic"] == [f"{padded:.2f}", f"{batches:,.0f}", f"{steps:,.0f}"]


@pytest.mark.parametrize("few_long", [False, True])
def test_the_call_to_copy_costs_least(few_long, tmp_path, capsys):
    """Against the paper's noise, which wins where a few clips are far longer than the others."""
    rng = np.random.default_rng(0)
    lengths = 400 * rng.lognormal(0, 0.6, 1500) if few_long else rng.integers(50, 800, 1500)
    np.savetxt(tmp_path / "lengths", lengths)
    __main__.main([str(tmp_path / "lengths")])
    printed = capsys.readouterr().out
    call = printed.partition("LengthBatchSampler(\n    lengths,\n")[2].rpartition(")")[0]
    steps, novelties = [], []
    for options in (eval(f"dict({call})"), {"strategy": "semi_sorted", "batch_size": 16}):
        options |= {"dynamic_batch_size": True, "batch_randomization": False}
        before, plan = (plan_epoch(lengths, epoch=epoch, **options) for epoch in (0, 1))
        steps.append(padding_stats(lengths, plan).decoder_steps)
        novelties.append(pair_novelty(plan, before))
    assert novelties[0] >= novelties[1]
    assert steps[0] < 0.97 * steps[1] or few_long
    assert steps[0] <= steps[1]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("3\nfour\n", [], ":2: 'four': expected a length, a number above 0"),
        ("id,frames\na,3\nb,nan\n", [], ":3: 'b,nan': expected a length"),
        ("5x\n3\n", [], ":1: '5x': expected a length"),
        ("3\n-1\n", [], ":2: '-1': expected a length"),
        ("a,3\nb\n", [], ":2: 'b': expected a length, a number above 0; correct or delete it"),
        ("1x\n3\nb\n" + "4\nc\n" * 20, [], "; the same in 21 more lines: 3, 5, 7, 9, 11, 13"),
        ("3\n4\n", ["\udcff=3"], r"\xff=3: expected name=value"),
        ("id,frames\na,3\n", ["--column", "seconds"], "no column 'seconds'"),
        ("id,frames\n", [], "no lengths; expected one on each line"),
        ("\xff\n", [], "expected lines of text in UTF-8"),
        ("3\n4\n", ["bucket=3"], "expected name=value, a name of batch_size, "),
        ("3\n4\n", ["max_clips=x"], "max_clips=x: expected a number"),
        ("3\n4\n", ["batch_capacity=3"], "batch_capacity=3: expected 4, so that the longest"),
    ],
)
def test_the_command_refuses_what_is_wrong(text, arguments, message, tmp_path, capsys):
    (tmp_path / "lengths").write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as stop:
        __main__.main([str(tmp_path / "lengths"), *arguments])
    assert message in str(stop.value)
    assert "\n" not in str(stop.value) + capsys.readouterr().out


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_does_not_matter(closed, tmp_path):
    (tmp_path / "lengths").write_text("3\n4\n5\n")
    command = f"{sys.executable} -m length_batching {tmp_path / 'lengths'} {closed}"
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True)
    assert (run.returncode, run.stderr) == (0, b"")
