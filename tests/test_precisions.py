"""benchmarks/precisions.py: what it trains and compares, on a tiny model."""

import json

import numpy as np
import pytest
import torch
from test_loss_curves import TINY

from benchmarks import precisions
from hparams import create_hparams

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def test_it_prints_draws_and_writes_how_far_each_precision_is_from_fp32(tmp_path, capsys):
    options = ["--device", "cpu", "--hparams", TINY, "--steps", "6"]
    options += ["--json", str(tmp_path / "p.json"), "--picture", str(tmp_path / "p.svg")]
    precisions.main(options)
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    losses = {name: np.array(values) for name, values in result["losses"].items()}
    assert list(losses) == ["fp32", "bf16", "yardstick 1", "yardstick 2", "yardstick 3"]
    assert {len(values) for values in losses.values()} == {6}
    assert 0 < abs(losses["bf16"] / losses["fp32"] - 1).max() < 0.05  # bf16's rounding and no more
    apart = {name: abs(values[-1] - losses["fp32"][-1]) for name, values in losses.items()}
    furthest = max(distance for name, distance in apart.items() if name.startswith("yardstick"))
    assert furthest > 0
    assert result["bf16_over_yardsticks"] == pytest.approx(apart["bf16"] / furthest)
    assert f"{result['bf16_over_yardsticks']:.2f} x" in printed
    assert "fp32 with other dropout" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_a_precision_that_trains_worse_than_other_dropout_is_seen(monkeypatch):
    def train(hparams, device, batches, steps, dropout):
        ends = {"fp32": 1.0 + 0.01 * dropout, "tf32": 1.015, "bf16": 1.3}
        return [2.0] * (steps - 2) + [ends[hparams.precision]] * 2

    monkeypatch.setattr(precisions, "train", train)
    _, found = precisions.compare(create_hparams(TINY), CPU, ["tf32", "bf16"], 20)
    assert found == {
        "tf32_over_yardsticks": pytest.approx(0.5),
        "bf16_over_yardsticks": pytest.approx(10.0),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precisions", "fp32,bf16"], "fp32 is trained in any case"),
        (["--precisions", "half"], "expected some of fp32, tf32, bf16, fp16"),
        (["--hparams", "batchsize=3"], "did you mean batch_size?"),
    ],
)
def test_wrong_options_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        precisions.main(["--device", "cpu", *options])
    assert message in capsys.readouterr().err
