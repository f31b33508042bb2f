"""benchmarks/busy.py: the union of intervals, what is idle and why, and a whole run on a CPU."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_epoch import TINY

from analysis import training_steps
from benchmarks import busy


def session(*kernels, end=100, start=0, marks=((0, "working"),), calls=(), steps=1):
    named = [(f"kernel {i}", *times) for i, times in enumerate(kernels)]
    return training_steps.Session(steps, start, end, list(marks), named, list(calls))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_the_union_covers_the_same_points_as_the_intervals_and_is_apart(intervals):
    starts = np.array([start for start, _ in intervals], dtype=np.int64)
    ends = starts + np.array([length for _, length in intervals], dtype=np.int64)
    covered = np.zeros(100, dtype=bool)
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = True
    merged = np.zeros(100, dtype=int)
    union = training_steps.union(starts, ends)
    for start, end in zip(*union, strict=True):
        merged[start:end] += 1
    assert np.array_equal(merged, covered.astype(int))
    assert (union[0][1:] > union[1][:-1]).all()


@pytest.mark.parametrize(
    ("kernels", "gaps"),
    [
        ([(10, 20), (15, 30), (50, 60)], [[0, 10], [30, 50], [60, 100]]),
        ([(0, 100)], []),
        ([(-20, 5), (90, 130)], [[5, 90]]),  # what began before and ended after
        ([(20, 80), (30, 40)], [[0, 20], [80, 100]]),  # one inside another, on another stream
        ([], [[0, 100]]),
    ],
)
def test_idle_is_what_no_kernel_covers_inside_the_session(kernels, gaps):
    assert training_steps.idle_times(session(*kernels)).tolist() == gaps


def test_the_host_is_said_to_do_what_took_most_of_a_gap():
    marks = [(0, "waiting for data"), (40, "launching a step"), (90, "reading losses")]
    calls = [("cudaLaunchKernel", 41, 43), ("cudaEventSynchronize", 91, 100)]
    one = session(marks=marks, calls=calls)
    assert busy.host_activity(one, 10, 60) == "waiting for data"
    assert busy.host_activity(one, 35, 70) == "launching a step"
    assert busy.host_activity(one, 90, 100) == "reading losses, in cudaEventSynchronize"


def test_busy_share_launches_and_idle_times_of_two_sessions():
    ms = 1_000_000
    first = session((0, 4 * ms), (5 * ms, 10 * ms), end=10 * ms, steps=2)
    second = session((0, 9 * ms), (9 * ms + 5_000, 10 * ms), end=10 * ms, steps=2)
    second.calls.append(("cudaGraphLaunch", 0, 10))
    found = busy.analyse([first, second])
    assert found["busy"] == pytest.approx(1 - (1 * ms + 5_000) / (20 * ms))
    assert found["profiled_steps"] == 4
    assert found["kernels_per_step"] == 1
    assert found["host_calls_per_step"] == {"cudaGraphLaunch": 0.25}
    assert [(k["name"], k["count"]) for k in found["top_kernels"]] == [
        ("kernel 0", 2),
        ("kernel 1", 2),
    ]
    assert found["top_kernels"][0]["seconds"] == pytest.approx(0.013)
    assert [row["count"] for row in found["idle_by_length"]] == [0, 1, 0, 1]
    assert found["long_gaps"] == [{"us": 1000.0, "host": "working"}]
    assert sum(row["share"] for row in found["idle_by_length"]) == pytest.approx(1 - found["busy"])


def test_a_session_whose_kernels_were_lost_does_not_count():
    lost, empty = session((0, 50)), session()
    assert busy.analyse([lost, session((0, 100)), empty])["busy"] == 1
    assert busy.analyse([lost, empty]) == {"busy": None, "profiled_steps": 0}


class Event:
    """As torch's profiler hands them out."""

    def __init__(self, name: str, start: int, duration: int, device: str, annotation=False):
        self.values = name, start, duration, getattr(torch.autograd.DeviceType, device), annotation

    def name(self):
        return self.values[0]

    def start_ns(self):
        return self.values[1]

    def duration_ns(self):
        return self.values[2]

    def device_type(self):
        return self.values[3]

    def is_user_annotation(self):
        return self.values[4]


def test_kernels_and_host_calls_are_told_apart_in_what_the_profiler_recorded():
    events = [
        Event("lstm_step", 5, 10, "CUDA"),
        Event("Memcpy HtoD (Pinned -> Device)", 20, 4, "CUDA"),
        Event("ProfilerStep#1", 0, 90, "CUDA", annotation=True),
        Event("cudaGraphLaunch", 1, 2, "CPU"),
        Event("Activity Buffer Request", 3, 2, "CPU"),
    ]
    seen = session()
    training_steps.collect(seen, events)
    assert seen.kernels == [("lstm_step", 5, 15), ("Memcpy HtoD (Pinned -> Device)", 20, 24)]
    assert seen.calls == [("cudaGraphLaunch", 1, 3)]


def test_on_a_cpu_it_measures_wall_time_and_shares_and_claims_no_busy_gpu(tmp_path, capsys):
    pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
    options = ["--device", "cpu", "--clips", "12", "--steps", "3", "--warm-ups", "1"]
    options += ["--session", "2", "--hparams", f"{TINY},decoder=fast,num_workers=1"]
    busy.main([*options, "--json", str(tmp_path / "busy.json")])
    printed = " ".join(capsys.readouterr().out.split())
    result = json.loads((tmp_path / "busy.json").read_text(encoding="utf-8"))
    assert result["busy"] is result["busy_upper_bound"] is None
    assert "| GPU busy | not measured without a GPU |" in printed
    assert 0 < result["wall_seconds"] < 60
    assert 0 <= result["waited_for_data"] < 1
    assert 0 < sum(operator["share"] for operator in result["operators"]) <= 1
    assert "AttentionRecurrence" in printed
    assert "made-up lengths of 12 clips" in printed


def test_what_was_seen_on_a_gpu_is_reported():
    ms = 1_000_000
    seen = session((0, 4 * ms), (5 * ms, 10 * ms), end=10 * ms, calls=[("cudaGraphLaunch", 0, 9)])
    result = busy.analyse([seen]) | {
        "device": "a GPU",
        "versions": {"torch": "2.13"},
        "precision": "bf16",
        "steps": 1,
        "clips": "12 clips",
        "fast_decoder": "fast",
        "busy_upper_bound": None,
        "wall_seconds": 0.02,
        "profiled_wall_seconds": 0.01,
        "waited_for_data": 0.0,
        "padded_frames_per_second": 1e5,
    }
    page = " ".join(busy.report(result).split())
    assert "| GPU busy, in 1 profiled steps | 90.0% |" in page
    assert "| the same busy time over the wall time without the profiler | 45.0% |" in page
    assert "| 100 µs to more | 1 | 10.00% |" in page
    assert "| kernel 1 | 50.0% | 0.005 | 1 |" in page
    assert "| 1,000 µs | working |" in page
    assert "at most" not in page
    page = " ".join(busy.report(result | {"busy_upper_bound": 0.97}).split())
    assert "| GPU busy, in 1 profiled steps, launched late | 90.0% |" in page
    assert "| GPU busy at most: launched early, with the waiting in it | 97.0% |" in page


@pytest.mark.parametrize("early", [True, False])
def test_where_kernels_wait_inside_the_busy_share_is_that_of_late_launches(monkeypatch, early):
    graphs = pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
    monkeypatch.setattr(graphs, "launches_early", lambda device: early)
    done = []

    def profile_steps(*_):
        done.append(("profiled", graphs.EARLY_LAUNCHES))
        return {"busy": 0.97 if graphs.EARLY_LAUNCHES else 0.85, "profiled_steps": 3}

    monkeypatch.setattr(busy, "profile_steps", profile_steps)
    monkeypatch.setattr(
        busy, "prepare", lambda *_: done.append(("prepared", graphs.EARLY_LAUNCHES))
    )
    monkeypatch.setattr(busy, "wall_time", lambda *_: {"wall_seconds": 1.0})
    monkeypatch.setattr(busy, "Training", lambda *_: SimpleNamespace(run=lambda steps: None))
    trainer = SimpleNamespace(device=None, hparams=SimpleNamespace(decoder="fast"))
    found = busy.measure_training(trainer, None, SimpleNamespace(steps=3, warm_ups=1))
    usual = [("prepared", True), ("profiled", True)]
    late = [("prepared", False), ("profiled", False)]
    assert done == (usual + late if early else usual)
    shares = found["busy"], found["busy_upper_bound"]
    assert shares == ((0.85, 0.97) if early else (0.97, None))
    assert graphs.EARLY_LAUNCHES
    trainer.hparams.decoder = "reference"
    assert not busy.launches_early(trainer)
