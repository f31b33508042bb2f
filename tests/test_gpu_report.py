"""benchmarks/gpu_report: parts that are missing, broken or too slow leave a report that says so."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_report

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_report.sh"
LONG = {"batch_size": 16, "frames": 774, "symbols": 120}


def decoder_result(precision: str, **changed) -> dict:
    return {
        **LONG,
        "precision": precision,
        "speedup": 12.0,
        "fast_frames_per_second": 300_000.0,
        "peak_memory_ratio": 0.7,
    } | changed


@pytest.fixture
def parts(tmp_path):
    """A folder with parts of every kind."""
    folder = tmp_path / "parts"
    folder.mkdir()
    written = {
        "environment": {"date": "2026-11-21", "gpu": "NVIDIA H200", "versions": {"torch": "2.11"}},
        "decoder_bf16": decoder_result("bf16"),
        "decoder_fp32": decoder_result("fp32", speedup=5.9, peak_memory_ratio=None),
        "decoder_bf16_64_clips": decoder_result("bf16"),  # of another size than the row's
        "busy_bf16": {"profiled_steps": 200, "precision": "bf16", "busy": 0.98},
    }
    statuses = dict.fromkeys(written, "ok") | {
        "tests_gpu": "failed",
        "decoder_tf32": "ok",
        "loader": "stopped after 60 s",
        "epoch_fp32": "not run: the time was up",
    }
    for name, result in written.items():
        (folder / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
        (folder / f"{name}.out").write_text(f"printed by {name}\n", encoding="utf-8")
    (folder / "decoder_tf32.json").write_text('{"speedup": 12', encoding="utf-8")
    (folder / "tests_gpu.out").write_text("1 failed, 3 passed\n", encoding="utf-8")
    said = "warm-up\nfast_decoder.py:115: UserWarning: plain operations\n  warnings.warn(\n"
    (folder / "decoder_fp32.err").write_text(said, encoding="utf-8")
    (folder / "loader.err").write_text("reading\nstill reading\n", encoding="utf-8")
    lines = [f"{name}\t{status}\t7\tpython {name}.py\n" for name, status in statuses.items()]
    (folder / "parts.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def assembled(parts, tmp_path) -> tuple[dict, str]:
    gpu_report.main([str(parts), str(tmp_path)])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    return report, re.sub(" +", " ", page)


def test_each_row_says_what_was_measured_and_whether_it_is_enough(parts, tmp_path):
    report, page = assembled(parts, tmp_path)
    rows = {row["measure"]: (row["measured"], row["reached"]) for row in report["to_reach"]}
    assert len(rows) == len(report["to_reach"]) - 1  # frames/s in bf16 twice, of two sizes
    assert rows["fast over reference, bf16"] == (12.0, "at least")
    assert rows["fast over reference, fp32 with TF32 off"] == (5.9, "no")
    assert rows["padded mel frames/s, fp32 with TF32 off"] == (300_000.0, "aim")
    assert rows["peak memory, fast over reference, bf16"] == (0.7, "at least")
    assert rows["peak memory, fast over reference, fp32"] == (None, "not measured")
    assert rows["fast over reference, fp32 with TF32 on"] == (None, "not measured")
    assert rows["GPU busy over 200 consecutive steps, bf16"] == (0.98, "aim")
    short = [row for row in report["to_reach"] if row["where"].startswith("B=64")]
    assert [row["reached"] for row in short] == ["not measured"]
    assert "| 300,000 | 280,000 | 360,000 | at least |" in page
    assert "| 98.0% | 90.0% | 97.0% | aim |" in page


def test_parts_that_failed_say_how_and_the_others_are_kept(parts, tmp_path):
    report, page = assembled(parts, tmp_path)
    statuses = {part["name"]: part["status"] for part in report["parts"]}
    assert statuses["tests_gpu"] == "failed"
    assert statuses["decoder_tf32"].startswith("ended well, but decoder_tf32.json is broken")
    assert "| loader | stopped after 60 s | 7 |" in page
    assert "still reading" in page
    assert "1 failed, 3 passed" in page
    assert "| epoch_fp32 | not run: the time was up | 7 |" in page
    assert "printed by decoder_bf16" in page
    assert "- gpu: NVIDIA H200" in page
    assert "\n- fast_decoder.py:115: UserWarning: plain operations\n\n## " in page
    kept = {part["name"]: part["result"] for part in report["parts"]}
    assert kept["busy_bf16"]["busy"] == 0.98


def test_a_rehearsal_reaches_nothing_and_says_what_it_is(parts, tmp_path):
    (parts / "rehearsal").touch()
    report, page = assembled(parts, tmp_path)
    assert report["rehearsal"]
    assert {row["reached"] for row in report["to_reach"]} == {"not measured"}
    assert "rehearsal on a CPU" in page


def test_before_any_part_ended_there_is_a_report_too(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    report, _ = assembled(empty, tmp_path)
    assert report["parts"] == []


# ---------------------------------------------------------------------------- the script

MISSING = ("librosa", "soundfile", "inflect", "unidecode", "pocketsphinx")  # on GPU machines


def test_what_the_script_runs_can_be_imported_where_packages_for_sound_and_text_are_missing():
    files = re.findall(r"(?:benchmarks|tests)/\w+\.py", SCRIPT.read_text(encoding="utf-8"))
    names = sorted({name.removesuffix(".py").replace("/", ".") for name in files})
    assert {"benchmarks.decoder", "tests.test_decoder_kernels"} <= set(names)
    code = f"import sys; sys.modules |= dict.fromkeys({MISSING}); import {', '.join(names)}, train"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


STAND_IN = """#!/usr/bin/env bash
# Stands in for Python: the report is the real one, a benchmark writes a number or fails.
case "$1" in
  -c) exit "${GPU_THERE:-0}" ;;
  benchmarks/gpu_report.py) exec "$REAL_PYTHON" "$@" ;;
  benchmarks/busy.py) echo "no memory" >&2; exit 3 ;;
  benchmarks/epoch.py) sleep 7 ;;
esac
while (($# > 1)); do
  [[ $1 == --json ]] && echo '{"number": 1}' >"$2"
  shift
done
exit 0
"""


def run_script(tmp_path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN, encoding="utf-8")
    stand_in.chmod(0o755)
    environment = {"PYTHON": "./python", "REAL_PYTHON": sys.executable} | environment
    return subprocess.run(
        [str(SCRIPT), *arguments],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_goes_on_after_a_failure_and_ends_when_its_time_is_up(tmp_path):
    result = run_script(tmp_path, "out", BUDGET="16")
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    statuses = {part["name"]: part["status"] for part in report["parts"]}
    assert statuses["tests_gpu"] == statuses["decoder_bf16"] == statuses["epoch_bf16"] == "ok"
    assert statuses["busy_bf16"] == "failed"
    assert statuses["loader"] == statuses["tests_other"] == "not run: the time was up"
    names = list(statuses)
    assert names.index("tests_gpu") < names.index("decoder_bf16") < names.index("busy_bf16")
    assert "no memory" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    commands = {part["name"]: part["command"] for part in report["parts"]}
    assert "--batch-size 16 --frames 774 --symbols 120" in commands["decoder_bf16"]
    assert "--batch-size 64 --frames 203 --symbols 32" in commands["decoder_bf16_64_clips"]
    assert str(tmp_path) not in "".join(commands.values())
    assert len(list((tmp_path / "out").iterdir())) <= 8


def test_without_a_gpu_the_script_says_so_and_writes_nothing(tmp_path):
    result = run_script(tmp_path, "out", GPU_THERE="1")
    assert result.returncode == 1
    assert "no torch with a GPU" in result.stderr
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_get_the_usage(tmp_path):
    result = run_script(tmp_path, "--quick")
    assert result.returncode == 2
    assert "benchmarks/gpu_report.sh [OUT_DIR]" in result.stderr
