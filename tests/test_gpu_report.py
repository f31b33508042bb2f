"""benchmarks/gpu_report: parts that are missing, broken or too slow leave a report that says so."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audio import mel_fingerprint
from benchmarks import gpu_report
from hparams import HParams

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_report.sh"


def write_parts(out: Path, dry_run: bool = False) -> str:
    """A report of parts of every kind; returns its page, with single blanks."""
    lines = []

    def part(name: str, status: str, call: str = "2", **files) -> None:
        for state in ("running", status):
            lines.append(f"{call}\t{name}\t2026-11-22 10:00\t{state}\t7\tpython {name}.py\n")
        for end, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (out / f"{call}-{name}.{end}").write_text(text)

    part("tests_gpu", "failed", call="1", txt="1 failed, 3 passed\n")
    warned = "warm-up\ndecoder.py:115: UserWarning: plain operations\n  warnings.warn(\n"
    result = {"speedup": 12.0, "fast_frames_per_second": 300_000.0}
    part("decoder_bf16", "ok", json=result, txt="printed by decoder_bf16\n", err=warned)
    part("decoder_fp32", "ok", json={"speedup": 5.9, "fast_frames_per_second": 150_000.0})
    part("decoder_tf32", "failed")
    part("memory_bf16", "ok", json={"peak_memory_ratio": 0.7})
    part("memory_fp32", "ok", json={"peak_memory_ratio": None})
    part("busy", "stopped after 60 s", err="reading\nstill reading\n")
    part("epoch", "running")
    part("synthesis", "failed", err=f"{gpu_report.ROOT}/train.py:1: {Path.home()}/.cache/x.json")
    (out / "parts.tsv").write_text("".join(lines))
    if dry_run:
        (out / "dry_run").touch()
    gpu_report.main([str(out)])
    return re.sub(" +", " ", (out / "report.md").read_text(encoding="utf-8"))


def test_targets_say_what_was_measured_and_reached(tmp_path):
    page = write_parts(tmp_path)
    long = "16 clips x 774 frames"
    for row in (
        f"fast over reference, bf16, {long} | 12.00 | 10.00 | 20.00 | at least",
        f"fast over reference, fp32, {long} | 5.90 | 6.00 | 9.00 | no",
        f"padded frames/s, fp32, {long} | 150,000 | 120,000 | 150,000 | aim",
        f"fast over reference, tf32, {long} | – | 8.00 | 14.00 | not measured",
        "peak memory, fast over reference, bf16 | 0.70 | 1.00 | 0.60 | at least",
        "peak memory, fast over reference, fp32 | – | 1.00 | 0.60 | not measured",
    ):
        assert f"| {row} |" in page
    assert "| 1 | tests_gpu | failed | 7 |" in page
    assert "| 2 | busy | stopped after 60 s | 7 |" in page
    assert "| 2 | epoch | running | 7 |" in page
    assert "```\n1 failed, 3 passed\n```" in page
    assert "still reading" in page
    assert "./train.py:1: ~/.cache/x.json" in page
    assert "\nprinted by decoder_bf16\n" in page
    assert "```\ndecoder.py:115: UserWarning: plain operations\n```" in page


def test_a_dry_run_reaches_nothing_and_says_so(tmp_path):
    page = write_parts(tmp_path, dry_run=True)
    assert "A dry run on a CPU" in page
    assert "at least |\n" not in page.replace("| at least | aim | reached |", "")


# ---------------------------------------------------------------------------- the script

MISSING = (  # on GPU machines
    *("librosa", "soundfile", "inflect", "unidecode", "pandas", "pydantic", "statsmodels"),
    *("seaborn", "jinja2", "pocketsphinx", "jiwer", "xdist"),
)


READ_CACHED = """
from corpus.filelist import read_filelist
from data_utils import TextMelDataset, collate
from hparams import create_hparams
hparams = create_hparams("load_mel_from_disk=True")
dataset = TextMelDataset(read_filelist(sys.argv[1], hparams), hparams)
print(list(collate([dataset[0]]).mel.shape))
"""


@pytest.mark.thorough
def test_the_script_runs_where_packages_are_missing(tmp_path):
    """Sound and text, tables and settings: what GPU machines do not have. Cached mels are read:
    numbers would need inflect, other letters unidecode."""
    np.save(tmp_path / "x.npy", np.zeros((80, 40), np.float32))
    (tmp_path / "mel_settings.json").write_text(json.dumps(mel_fingerprint(HParams())))
    (tmp_path / "list.txt").write_text(f"{tmp_path}/x.npy|Mr. and Mrs. Co.\n")
    files = re.findall(r"(?:benchmarks|scripts|tests)/\w+\.py", SCRIPT.read_text(encoding="utf-8"))
    names = sorted({name.removesuffix(".py").replace("/", ".") for name in files})
    assert {"benchmarks.decoder", "benchmarks.epoch", "tests.test_decoder_kernels"} <= set(names)
    names += ["synthesize", "train", "conftest"]
    code = f"import sys; sys.modules |= dict.fromkeys({MISSING}); import {', '.join(names)}"
    path = f"{ROOT / 'scripts'}:{ROOT / 'tests'}:{ROOT}"
    command = [sys.executable, "-c", code + READ_CACHED, tmp_path / "list.txt"]
    environment = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.stdout == "[1, 80, 40]\n", run.stderr


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


def run_script(tmp_path, *arguments: str, fails: int = 0, **environment: str) -> str:
    """What it says on standard error."""
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN, encoding="utf-8")
    stand_in.chmod(0o755)
    environment = {"PYTHON": "./python", "REAL_PYTHON": sys.executable, **os.environ, **environment}
    run = subprocess.run(
        [str(SCRIPT), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == fails, run.stderr
    return run.stderr


def statuses_of(out: Path) -> dict[tuple[str, str], str]:
    return {(part.call, part.name): part.status for part in gpu_report.read_parts(out)}


def test_a_failure_stops_no_other_part(tmp_path):
    """And a later call, on another machine, adds to the report."""
    run_script(tmp_path, "1", "out", FAILS="benchmarks/kernels.py")
    assert "no memory" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    elsewhere = Path(shutil.copytree(tmp_path / "out", tmp_path / "elsewhere"))
    run_script(tmp_path, "training", "elsewhere")
    assert list(statuses_of(elsewhere).items()) == [
        (("1", "environment"), "ok"),
        (("1", "tests_gpu"), "ok"),
        (("1", "kernels"), "failed"),
        (("training", "environment"), "ok"),
        (("training", "epoch"), "ok"),
    ]
    refused = run_script(tmp_path, "--cpu-dry-run", "1", "elsewhere", fails=2)
    assert "has the report of a GPU, expected one of a dry run" in refused


def test_published_commands_name_no_folder_of_the_machine(tmp_path):
    run_script(tmp_path, "training", "out", LENGTHS="lists/lengths.csv")
    commands = (tmp_path / "out" / "parts.tsv").read_text(encoding="utf-8")
    assert " lengths.csv --json training-epoch.json" in commands
    assert str(tmp_path) not in commands


@pytest.mark.thorough
def test_what_takes_too_long_is_stopped(tmp_path):
    """And parts that no time is left for say so."""
    run_script(tmp_path, "2", "out", BUDGET="2", SLOW="benchmarks/decoder.py")
    statuses = statuses_of(tmp_path / "out")
    assert statuses.pop(("2", "environment")) == "ok"
    assert re.fullmatch(r"stopped after \d+ s", statuses.pop(("2", "decoder_bf16")))
    assert set(statuses.values()) == {"not run: the time was up"}
    commands = {part.name: part.command for part in gpu_report.read_parts(tmp_path / "out")}
    assert "--batch-size 16 --frames 774 --symbols 120" in commands["decoder_bf16"]
    assert str(tmp_path) not in "".join(commands.values())


def test_without_a_gpu_nothing_is_written(tmp_path):
    assert "no torch with a GPU" in run_script(tmp_path, "all", "out", fails=1, GPU_THERE="1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [(), ("4",), ("1", "--quick"), ("1", "out", "more")])
def test_wrong_arguments_get_the_usage(arguments, tmp_path):
    assert "gpu_report.sh 1 [OUT_DIR]" in run_script(tmp_path, *arguments, fails=2)
