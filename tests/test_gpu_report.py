"""benchmarks/gpu_report: parts that are missing, broken or too slow leave a report that says so."""

import json
import os
import re
import shutil
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


def record(out: Path, name: str, *options: str, call: str = "2", **written) -> None:
    """A part begins and ends, having written these files."""
    about = [str(out), "--part", name, "--call", call, "--command", f"python {name}.py"]
    gpu_report.main(about)
    folder = out / "under_way"
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in written.items():
        end = "json" if file == "result" else "txt"
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{file}.{end}").write_text(text, encoding="utf-8")
    gpu_report.main([*about, "--seconds", "7", *options])
    assert list(folder.iterdir()) == []


MACHINE = {"date": "2026-11-21", "gpu": "NVIDIA H200", "versions": {"torch": "2.11"}}
LAUNCHES = [
    {"launch": "attention_step", "precision": "bf16", "measured_us": 8.04, "modelled_us": 7.0},
    {"launch": "attention_step", "precision": "fp32", "measured_us": 11.0, "modelled_us": None},
]


def record_all(out: Path, rehearsal: bool = False) -> None:
    """Parts of every kind, of two calls."""
    gpu_report.main([str(out), "--begin", *(["--rehearsal"] if rehearsal else [])])
    ok = ("--status", "ok")
    record(out, "environment", *ok, call="1", result=MACHINE, output="{}")
    record(out, "tests_gpu", "--status", "failed", call="1", output="1 failed, 3 passed\n")
    record(out, "launches", *ok, call="1", result={"launches": LAUNCHES}, output="some launches")
    gpu_report.main([str(out), "--begin", *(["--rehearsal"] if rehearsal else [])])
    record(out, "environment", *ok, result=MACHINE | {"date": "2026-11-22"}, output="{}")
    for precision, changed in (("bf16", {}), ("fp32", {"speedup": 5.9})):
        warned = "warm-up\nfast_decoder.py:115: UserWarning: plain operations\n  warnings.warn(\n"
        printed = f"printed by decoder_{precision}\n"
        result = decoder_result(precision, **changed)
        record(out, f"decoder_{precision}", *ok, result=result, output=printed, errors=warned)
    # Of another size than the row's, and broken.
    record(out, "decoder_bf16_64_clips", *ok, result=decoder_result("bf16"))
    record(out, "decoder_tf32", *ok, result='{"speedup": 12')
    record(out, "memory_bf16", *ok, result=decoder_result("bf16"))
    record(out, "memory_fp32", *ok, result=decoder_result("fp32", peak_memory_ratio=None))
    busy = {"profiled_steps": 200, "precision": "bf16", "busy": 0.98}
    record(out, "busy_bf16", *ok, result=busy)
    record(out, "loader", "--status", "stopped after 60 s", errors="reading\nstill reading\n")
    record(out, "epoch_fp32", "--status", "not run: the time was up")


def read_back(out: Path) -> tuple[dict, str]:
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report, re.sub(" +", " ", (out / "report.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[dict, str]:
    out = tmp_path_factory.mktemp("report")
    record_all(out)
    return read_back(out)


def test_each_row_says_what_was_measured_and_whether_it_is_enough(recorded):
    report, page = recorded
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


def test_parts_that_failed_say_how_and_the_others_are_kept(recorded):
    report, page = recorded
    statuses = {part["name"]: part["status"] for part in report["parts"]}
    assert statuses["tests_gpu"] == "failed"
    assert statuses["decoder_tf32"].startswith("ended well, but its result is broken: not readable")
    assert "| 2 | loader | stopped after 60 s | 7 |" in page
    assert "still reading" in page
    assert "```\n1 failed, 3 passed\n```" in page
    assert "| 2 | epoch_fp32 | not run: the time was up | 7 |" in page
    assert "printed by decoder_bf16" in page
    assert "\n- fast_decoder.py:115: UserWarning: plain operations\n\n## " in page
    kept = {part["name"]: part["result"] for part in report["parts"]}
    assert kept["busy_bf16"]["busy"] == 0.98


def test_launches_stand_beside_what_was_modelled_and_a_later_calls_machine_says_what_differs(
    recorded,
):
    _, page = recorded
    assert "| launch | bf16 | fp32 |" in page
    assert "| attention_step | 8.0 / 7.0 | 11.0 / – |" in page
    assert "- call 1, gpu: NVIDIA H200\n- call 1, versions: torch 2.11\n- call 2, date:" in page
    assert "call 2, gpu" not in page


def test_a_rehearsal_reaches_nothing_and_says_what_it_is(tmp_path):
    record_all(tmp_path, rehearsal=True)
    report, page = read_back(tmp_path)
    assert report["rehearsal"]
    assert {row["reached"] for row in report["to_reach"]} == {"not measured"}
    assert "rehearsal on a CPU" in page
    with pytest.raises(SystemExit, match=r"a report of a rehearsal, expected one of a GPU"):
        gpu_report.main([str(tmp_path), "--begin"])


def test_a_part_made_again_takes_its_old_place_and_one_cut_off_keeps_what_it_left(tmp_path):
    gpu_report.main([str(tmp_path), "--begin"])
    record(tmp_path, "kernels", "--status", "failed", call="1")
    record(tmp_path, "kernels", "--status", "ok", call="2", result={"number": 2})
    record(tmp_path, "kernels", "--status", "ok", call="1", result={"number": 1})
    found = [
        (p["call"], p["status"], p["result"]["number"]) for p in read_back(tmp_path)[0]["parts"]
    ]
    assert found == [("1", "ok", 1), ("2", "ok", 2)]
    busy = [str(tmp_path), "--part", "busy", "--call", "2", "--command", "python busy.py"]
    gpu_report.main(busy)
    assert "| 2 | busy | under way | 0 |" in read_back(tmp_path)[1]
    result = tmp_path / "under_way" / "result.json"
    result.write_text('{"rows": 3}', encoding="utf-8")
    gpu_report.main([str(tmp_path), "--begin"])
    cut_off = read_back(tmp_path)[0]["parts"][-1]
    assert (cut_off["status"], cut_off["result"]) == ("cut off with its call", {"rows": 3})
    assert not result.exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}'])
def test_a_file_that_is_no_report_is_refused_and_left_as_it_is(content, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"report\.json: .*expected a report of gpu_report\.sh"):
        gpu_report.main([str(tmp_path), "--begin"])
    assert path.read_text(encoding="utf-8") == content


def test_before_any_part_ended_there_is_a_report_too(tmp_path):
    gpu_report.main([str(tmp_path), "--begin"])
    report, _ = read_back(tmp_path)
    assert report["parts"] == []


# ---------------------------------------------------------------------------- the script

MISSING = ("librosa", "soundfile", "inflect", "unidecode", "pocketsphinx")  # on GPU machines


def test_what_the_script_runs_can_be_imported_where_packages_for_sound_and_text_are_missing():
    files = re.findall(r"(?:benchmarks|scripts|tests)/\w+\.py", SCRIPT.read_text(encoding="utf-8"))
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
  "$FAILS") echo "no memory" >&2; exit 3 ;;
  "$SLOW") sleep 60 ;;
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


def statuses_of(out: Path) -> dict[tuple[str, str], str]:
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {(part["call"], part["name"]): part["status"] for part in report["parts"]}


def test_the_script_goes_on_after_a_failure_and_a_later_call_joins_its_report(tmp_path):
    result = run_script(tmp_path, "1", "out", FAILS="benchmarks/kernels.py")
    assert result.returncode == 0, result.stderr
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    assert "no memory" in (out / "report.md").read_text(encoding="utf-8")
    elsewhere.mkdir()
    shutil.copy(out / "report.json", elsewhere)
    result = run_script(tmp_path, "training", "elsewhere")
    assert result.returncode == 0, result.stderr
    assert list(statuses_of(elsewhere).items()) == [
        (("1", "environment"), "ok"),
        (("1", "tests_gpu"), "ok"),
        (("1", "kernels"), "failed"),
        (("1", "launches"), "failed"),
        (("training", "environment"), "ok"),
        (("training", "train_epochs"), "ok"),
    ]
    assert sorted(path.name for path in elsewhere.iterdir()) == ["report.json", "report.md"]


def test_what_takes_too_long_is_stopped_and_what_no_time_is_left_for_says_so(tmp_path):
    result = run_script(tmp_path, "2", "out", BUDGET="2", SLOW="benchmarks/decoder.py")
    assert result.returncode == 0, result.stderr
    statuses = statuses_of(tmp_path / "out")
    assert statuses.pop(("2", "environment")) == "ok"
    assert re.fullmatch(r"stopped after \d+ s", statuses.pop(("2", "decoder_bf16")))
    assert set(statuses.values()) == {"not run: the time was up"}
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    commands = {part["name"]: part["command"] for part in report["parts"]}
    assert "--batch-size 16 --frames 774 --symbols 120" in commands["decoder_bf16"]
    assert "--batch-size 64 --frames 203 --symbols 32" in commands["decoder_bf16_64_clips"]
    assert str(tmp_path) not in "".join(commands.values())


def test_without_a_gpu_the_script_says_so_and_writes_nothing(tmp_path):
    result = run_script(tmp_path, "all", "out", GPU_THERE="1")
    assert result.returncode == 1
    assert "no torch with a GPU" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [(), ("4",), ("1", "--quick"), ("1", "out", "more")])
def test_wrong_arguments_get_the_usage(arguments, tmp_path):
    result = run_script(tmp_path, *arguments)
    assert result.returncode == 2
    assert "benchmarks/gpu_report.sh 1 [OUT_DIR]" in result.stderr
