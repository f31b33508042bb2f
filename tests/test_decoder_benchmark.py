"""benchmarks/decoder.py: what it counts, and that its JSON holds what is read from it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hparams import HParams

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "benchmarks" / "decoder.py"


@pytest.fixture(scope="module")
def decoder():
    path = sys.path.copy()
    sys.path.insert(0, str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("decoder_benchmark", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_operators_that_compute_are_counted_and_views_are_not(decoder):
    x = torch.ones(3, 4, requires_grad=True)

    def run():
        y = x.detach().view(2, 6).T.T[0].unsqueeze(0).expand(2, 6)  # views
        torch.empty(5)  # memory
        y = y + 1
        y.mul_(2)
        return (x.reshape(-1) * 3).sum() + y.sum()

    count, loss = decoder.operators_run(run)
    assert count == 6  # add, mul_, mul, sum, sum, add
    count, _ = decoder.operators_run(loss.backward)
    assert count == 2  # ones_like, mul; a gradient's first value is not added


def test_bytes_of_a_step_are_those_of_its_shapes(decoder):
    found = decoder.bytes_per_step(HParams(), batch_size=16, symbols=120, operand=4)
    # Per clip: gates 32,768, hidden states and cells 16,384, context and two alignments 3,008,
    # masks 2,048, and the tanh of 120 x 128.
    assert found["fast"]["forward"]["history"] == 16 * 54_208
    assert found["reference"]["forward"]["history"] == 16 * (54_208 + 61_440)
    assert found["fast"]["forward"]["memory"] == 16 * 120 * (512 + 128) * 4
    # the weights that recur: 4096 x 1536 and 4096 x 1024, query 1024 x 128, location 62 x 128
    recurring = 4 * (4096 * 1536 + 4096 * 1024 + 1024 * 128 + 62 * 128)
    assert found["fast"]["forward"]["weights"] == recurring
    # The two LSTMs have 17.8 million weights, 71 MB, the other layers of a step 0.27 million.
    weights = found["reference"]["forward"]["weights"]
    assert weights - 4 * 4096 * (768 + 1024 + 1536 + 1024) == 4 * (
        1024 * 128 + 32 * 128 + 2 * 32 * 31 + 1536 * 81
    )
    assert found["reference"]["backward"]["weight gradients"] == 4 * weights
    assert "weight gradients" not in found["fast"]["backward"]
    half = decoder.bytes_per_step(HParams(), batch_size=16, symbols=120, operand=2)
    assert 2 * half["reference"]["forward"]["weights"] == weights


def test_the_json_holds_ratios_medians_launches_and_bytes(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--json", "decoder.json"]
    command += "--batch-size 1 --frames 3 --symbols 4 --repeats 2 --warm-ups 0 --no-memory".split()
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads((tmp_path / "decoder.json").read_text(encoding="utf-8"))
    ratio = result["reference_seconds"] / result["fast_seconds"]
    assert result["speedup"] == pytest.approx(ratio)
    assert result["fast_frames_per_second"] == pytest.approx(3 / result["fast_seconds"])
    assert result["peak_memory_ratio"] is None
    launches = result["launches_per_step"]
    # The reference decoder's step as operators: two LSTM cells, dropout, attention, projections,
    # and backwards their gradients with an addition for each weight; a dozen either way.
    assert 36 <= launches["reference"]["forward"] <= 60
    assert 75 <= launches["reference"]["backward"] <= 100
    for way in ("forward", "backward"):
        assert launches["fast"][way] < launches["reference"][way]
        assert result["bytes_per_step"]["fast"][way] < result["bytes_per_step"]["reference"][way]
        parts = result["bytes_per_step_parts"]["fast"][way]
        assert result["bytes_per_step"]["fast"][way] == sum(parts.values())
    assert "| operators a decoder step, forward + backward | " in run.stdout
    assert {"device", "versions", "all_seconds", "date", "fast_decoder"} <= result.keys()
