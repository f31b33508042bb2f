"""benchmarks/gpu_report.py: parts that fail or take too long leave a report that says so."""

import contextlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
from benchmarks import gpu_measurements, gpu_report
from benchmarks.gpu_report import Part
from fast_decoder import graphs
from tacotron2_voice.utils.errors import UserError

MEASURED = {
    "device": "H100",
    "versions": {"torch": "2.11", "cuda": "13.0"},
    "date": "2026-11-27",
}


def script(name: str, source: str, seconds: int = 20) -> Part:
    return Part(name, seconds, [sys.executable, "-c", source])


def page(folder: Path) -> str:
    """Return the report with single blanks."""
    return re.sub(" +", " ", (folder / "report.md").read_text(encoding="utf-8"))


def test_report_has_values_statuses_and_output_of_failed_parts(tmp_path):
    values = {"speedup": 12.0, "fast_frames_per_second": 150_000.0} | MEASURED
    write = f"open({str(tmp_path / 'decoder_bf16.json')!r}, 'w').write({json.dumps(values)!r})"
    parts = [
        script("decoder_bf16", write),
        script("tests_gpu", f"print({str(gpu_report.ROOT / 'x.py')!r}); raise SystemExit(3)"),
        script("busy", "import time; time.sleep(60)", seconds=1),
    ]
    assert not gpu_report.run_parts(parts, tmp_path, dry_run=False, minutes=None)
    report = page(tmp_path)
    assert (
        "| speed-up over the reference, bf16, 16 x 774 | 12.00 | 10.00 | 20.00 | at least |"
        in report
    )
    assert "| padded frames/s, bf16, 16 x 774 | 150,000 | 280,000 | 360,000 | no |" in report
    assert (
        "| speed-up over the reference, fp32, 16 x 774 | – | 6.00 | 9.00 | not measured |" in report
    )
    assert "| decoder_bf16 | ok |" in report
    assert "| tests_gpu | failed with code 3 |" in report
    assert "## tests_gpu\n\n```\n./x.py\n```" in report
    assert "| busy | stopped after 1 s |" in report
    assert "Measured on H100, torch 2.11, CUDA 13.0, 2026-11-27, commit" in report


def test_lower_memory_is_better():
    target = next(x for x in gpu_report.TARGETS if x.part == "memory_bf16")
    reached = {}
    for ratio in (0.5, 0.7, 1.1):
        results = {"memory_bf16": {"peak_memory_ratio": ratio}}
        reached[ratio] = gpu_report.target_row(target, results)[-1]
    assert reached == {0.5: "aim", 0.7: "at least", 1.1: "no"}


def test_next_call_runs_only_parts_that_did_not_succeed(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(
        gpu_report,
        "run_part",
        lambda part, *_: ran.append(part.name) or ("ok" if len(ran) > 1 else "failed"),
    )
    arguments = [str(tmp_path), "--cpu-dry-run", "--only", "decoder_bf16,busy"]
    with pytest.raises(SystemExit) as stop:
        gpu_report.main(arguments)
    assert stop.value.code == 1
    assert ran == ["decoder_bf16", "busy"]
    names = [part.name for part in gpu_report.make_parts(tmp_path, True, None)]
    del ran[1:]
    gpu_report.main(arguments[:2])
    assert ran[1:] == [name for name in names if name != "busy"]


def test_no_part_starts_when_the_time_is_over(tmp_path, capsys):
    parts = [script("epoch", "raise SystemExit(1)", seconds=400)]
    assert not gpu_report.run_parts(parts, tmp_path, dry_run=False, minutes=1)
    assert "epoch: not run" in capsys.readouterr().out


def test_dry_run_does_not_write_into_a_report_of_a_gpu(tmp_path):
    gpu_report.run_parts([script("busy", "pass")], tmp_path, dry_run=False, minutes=None)
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        gpu_report.main([str(tmp_path), "--cpu-dry-run"])


def test_unknown_part_is_rejected(tmp_path):
    with pytest.raises(UserError, match="--only nothing"):
        gpu_report.main([str(tmp_path), "--cpu-dry-run", "--only", "nothing"])


@pytest.mark.thorough
def test_cpu_dry_run_runs_benchmarks(tmp_path):
    names = ["decoder_bf16", "busy", "memory_bf16", "synthesis", "epoch"]
    gpu_report.main([str(tmp_path), "--cpu-dry-run", "--only", ",".join(names)])
    report = page(tmp_path)
    assert "A dry run on a CPU" in report
    assert report.count("not measured") == len(gpu_report.TARGETS)
    for name in names:
        assert f"| {name} | ok |" in report


# ---------------------------------------------------------------------------- measurements


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_busy_time_is_the_union_of_all_intervals(intervals):
    covered = np.zeros(100, dtype=bool)
    for start, length in intervals:
        covered[start : start + length] = True
    busy = gpu_measurements.busy_ns((start, start + length) for start, length in intervals)
    assert busy == covered.sum()


def test_busy_is_none_on_a_cpu(monkeypatch, one_thread):
    monkeypatch.setattr(graphs, "DEPENDENT_LAUNCHES", True)  # restored afterwards
    settings = f"batch_size=2,hop_time=400,num_workers=0,{gpu_report.TINY}"
    result = gpu_measurements.measure_busy(torch.device("cpu"), "fp32", 12, 3, settings)
    assert result["busy"] is None
    assert 0 < result["wall_seconds"] < 60
    assert not graphs.DEPENDENT_LAUNCHES


def event(name: str, start: int, duration: int, device="CUDA", annotation=False) -> SimpleNamespace:
    """Return an event in the form of torch's profiler."""
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        duration_ns=lambda: duration,
        device_type=lambda: getattr(torch.autograd.DeviceType, device),
        is_user_annotation=lambda: annotation,
    )


@pytest.mark.parametrize(("end", "expected"), [(100, 0.45), (200, None)])
def test_profile_counts_kernels_and_copies_only(end, expected, monkeypatch):
    """A session whose last kernels are missing has no result."""
    events = [
        event("lstm_step", 5, 30),
        event("Memcpy HtoD", 20, 20),
        event("ProfilerStep#1", 0, 95, annotation=True),
        event("cudaGraphLaunch", 1, 90, "CPU"),
        event("lstm_step", 90, 20),  # to beyond the end
    ]
    clock = iter((0, end))
    monkeypatch.setattr(gpu_measurements.time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(gpu_measurements, "train_steps", lambda *_: None)
    results = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))
    profiled = contextlib.nullcontext(SimpleNamespace(profiler=results))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profiled)
    trainer = SimpleNamespace(device=torch.device("cpu"))
    found = gpu_measurements.profile(trainer, iter(()), steps=1)
    assert found["busy"] == expected
    if expected:
        assert found["top_kernels"][0] == {"name": "lstm_step", "share": 0.5}
