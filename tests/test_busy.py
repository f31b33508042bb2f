"""benchmarks/busy.py: the union of intervals, and a whole run on a CPU."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
from benchmarks import busy
from fast_decoder import graphs

TINY = (
    "batch_size=2,symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,"
    "decoder_rnn_dim=8,prenet_dim=8,attention_dim=8,postnet_embedding_dim=8,hop_time=400"
)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_busy_time_is_the_union_of_all_intervals(intervals):
    covered = np.zeros(100, dtype=bool)
    for start, length in intervals:
        covered[start : start + length] = True
    assert busy.busy_ns((start, start + length) for start, length in intervals) == covered.sum()


def test_on_a_cpu_it_claims_no_busy_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fast_decoder.graphs.EARLY_LAUNCHES", True)  # and as it was afterwards
    options = ["--device", "cpu", "--clips", "12", "--steps", "3", "--hparams", TINY]
    busy.main([*options, "--json", str(tmp_path / "busy.json")])
    result = json.loads((tmp_path / "busy.json").read_text(encoding="utf-8"))
    assert result["busy"] is None
    assert 0 < result["wall_seconds"] < 60
    assert "| GPU busy |" in " ".join(capsys.readouterr().out.split())
    assert not graphs.EARLY_LAUNCHES


def event(name: str, start: int, duration: int, device="CUDA", annotation=False) -> SimpleNamespace:
    """As torch's profiler gives them."""
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        duration_ns=lambda: duration,
        device_type=lambda: getattr(torch.autograd.DeviceType, device),
        is_user_annotation=lambda: annotation,
    )


@pytest.mark.parametrize(("end", "expected"), [(100, 0.45), (200, None)])
def test_kernels_and_copies_count_and_nothing_else(end, expected, monkeypatch):
    """Sessions whose last kernels are missing count for nothing."""
    events = [
        event("lstm_step", 5, 30),
        event("Memcpy HtoD", 20, 20),
        event("ProfilerStep#1", 0, 95, annotation=True),
        event("cudaGraphLaunch", 1, 90, "CPU"),
        event("lstm_step", 90, 20),  # to beyond the end
    ]
    clock = iter((0, end))
    monkeypatch.setattr(busy.time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(busy, "run", lambda *_: None)
    results = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))
    profiled = contextlib.nullcontext(SimpleNamespace(profiler=results))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profiled)
    trainer = SimpleNamespace(device=torch.device("cpu"))
    found = busy.profile(trainer, iter(()), steps=1)
    assert found["busy"] == expected
    if expected:
        assert found["top_kernels"][0] == {"name": "lstm_step", "share": 0.5}
        launches = {"name": "cudaGraphLaunch", "calls_a_step": 1, "share": 0.9}
        assert found["host_calls"] == [launches]
