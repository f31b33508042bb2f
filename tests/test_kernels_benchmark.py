"""benchmarks/kernels.py: every launch of the four loops is timed, or said to be not measured."""

import json
from collections import defaultdict
from types import SimpleNamespace

import pytest
from test_decoder_kernels import (  # noqa: F401
    DEVICE,
    GPU,
    change,
    gpu_only,
    interpreted_only,
    kernels_run_anywhere,
    language_patched_once,
)

from benchmarks import kernels as benchmark
from fast_decoder import graphs
from hparams import HParams

pytest.importorskip("triton", reason="Triton is for x86-64 Linux")
pytestmark = pytest.mark.usefixtures("one_thread")


@interpreted_only
def test_the_benchmark_repeats_all_four_loops(monkeypatch):
    small = HParams(attention_rnn_dim=16, decoder_rnn_dim=16, encoder_embedding_dim=8)
    args = SimpleNamespace(device=DEVICE, batch_size=2, frames=2, symbols=5, hparams=small)
    recorded, ran = benchmark.record_loops(args, "fp32"), []
    run_loop = graphs._Loop.run
    monkeypatch.setattr(
        graphs._Loop, "run", lambda self, *steps: (ran.append(self), run_loop(self, *steps))
    )
    for name in benchmark.LOOPS:
        recorded.calls[name]()
    loops = recorded.loops
    backward = [loops._lstm_backward, loops._attention_backward]
    assert ran == [loops._attention, loops._lstm, *backward]


def test_launches_without_a_duration_are_not_measured(monkeypatch, capsys, tmp_path):
    calls = dict.fromkeys(benchmark.LOOPS, lambda: None)
    change(monkeypatch, {"EARLY_LAUNCHES": True}, problem=lambda *_: None)
    monkeypatch.setattr(benchmark, "record_loops", lambda *_: SimpleNamespace(calls=calls))
    times = defaultdict(lambda: [3.0, 9.0, 5.0], cell_gradient=[])
    monkeypatch.setattr(benchmark, "launch_durations", lambda *_: times)
    benchmark.main(["--device", "cpu", "--json", str(tmp_path / "kernels.json")])
    result = json.loads((tmp_path / "kernels.json").read_text())
    settings = [row["setting"] for row in result["loops"]]
    assert settings == ["bf16", "bf16, late", "tf32", "tf32, late", "fp32", "fp32, late"]
    assert {row["us"] for row in result["launches"]} == {5, None}
    last = capsys.readouterr().out.splitlines()[-2].replace(" ", "")
    assert last == "|attention_backward:cell_gradient|fp32|notmeasured|3.6|"


@gpu_only
def test_on_a_gpu_every_launch_has_a_duration(monkeypatch):
    monkeypatch.setattr(graphs, "EARLY_LAUNCHES", True)  # the benchmark changes it
    sizes = {"batch_size": 16, "frames": 40, "symbols": 60, "repeats": 1}
    args = SimpleNamespace(device=DEVICE, hparams=HParams(), **sizes)
    _, launches = benchmark.measure(args, "bf16")
    assert all(0.5 < row["us"] < 1000 for row in launches)


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_the_benchmark_refuses_a_cpu(capsys, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="2"):
        benchmark.main([])
    assert "--device cpu: the kernels do not run there: no CUDA device" in capsys.readouterr().err
