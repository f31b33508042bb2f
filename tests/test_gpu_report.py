"""Test that benchmarks/gpu_report.py reports which of its tests and benchmarks fail or take too
long."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.gpu_report import Part
from tacotron2_voice.utils.errors import UserError

STEPS = {
    "batch_size": 16,
    "frames": 774,
    "speedup": 12.0,
    "fast_frames_per_second": 150_000.0,
}


def script(source: str, seconds: int = 20) -> Part:
    return Part(seconds, ["-c", source], {})


def page(folder: Path) -> str:
    """Return the report with single spaces between words."""
    return re.sub(" +", " ", (folder / "report.md").read_text(encoding="utf-8"))


def test_gpu_report_contains_results_and_the_output_of_failed_parts(tmp_path):
    write = f"open({str(tmp_path / 'steps_bf16.json')!r}, 'w').write({json.dumps(STEPS)!r})"
    assert gpu_report.run_parts({"steps_bf16": script(write)}, tmp_path)
    failing = {
        "exactness": script(f"print({str(gpu_report.ROOT / 'x.py')!r}); raise SystemExit(3)"),
        "memory_bf16": script("import time; time.sleep(60)", seconds=1),
    }
    assert not gpu_report.run_parts(failing, tmp_path)
    report = page(tmp_path)
    assert re.search(r"\| steps_bf16 \| ok \| \d+ \| .*150,000 .*12\.00", report)
    assert "| exactness | failed with exit code 3 |" in report
    assert "## exactness\n\n```\n./x.py\n```" in report
    assert "| memory_bf16 | stopped after 1 s |" in report


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, "1.50 GB, 0.50 "), (None, "not measured")])
def test_gpu_report_contains_the_measured_memory_and_its_ratio(ratio, expected):
    peaks = {"fast": 1.5e9, "reference": 3e9}
    result = {"batch_size": 1, "frames": 2, "peak_memory_ratio": ratio, "peak_memory_bytes": peaks}
    assert expected in gpu_report.describe(result)


def test_error_names_the_option_when_a_part_of_the_gpu_report_is_unknown(tmp_path):
    with pytest.raises(UserError, match="--only nothing"):
        gpu_report.main([str(tmp_path), "--only", "nothing"])


def test_every_test_file_in_a_part_of_the_gpu_report_exists(tmp_path):
    for part in gpu_report.make_parts(tmp_path).values():
        for argument in part.command:
            assert not argument.startswith("tests/") or (gpu_report.ROOT / argument).is_file()


@pytest.mark.thorough
def test_dry_run_of_the_gpu_report_measures_tiny_batches_on_the_cpu(tmp_path):
    gpu_report.main([str(tmp_path), "--cpu-dry-run", "--only", "steps_bf16"])
    assert re.search(r"\| steps_bf16 \| ok \| .* 2 clips of 8 frames", page(tmp_path))
