"""Test how programs exit, and that every program starts in any working folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

HELPERS = {"project_root.py", "commands.py"}  # modules that the programs import
SCRIPTS = sorted(path for path in ROOT.glob("scripts/*.py") if path.name not in HELPERS)
PROGRAMS = [ROOT / "train.py", ROOT / "synthesize.py", *SCRIPTS]
START = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.program import run_program
"""


def run(folder: Path, body: str, **options) -> subprocess.CompletedProcess:
    """Run a program with this body of its main function."""
    path = folder / "program.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"{START}\ndef main():\n{lines}\nrun_program(main)\n", encoding="utf-8")
    options = {"capture_output": True, "text": True, "timeout": 60} | options
    return subprocess.run([sys.executable, path], **options)


@pytest.mark.thorough
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_prints_help_when_started_in_another_folder(path, tmp_path):
    command = [sys.executable, path, "--help"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    assert "usage:" in found.stdout


NO_PROGRAMS = {"options", "timing"}
BENCHMARKS = sorted({path.stem for path in ROOT.glob("benchmarks/[a-z]*.py")} - NO_PROGRAMS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_error_suggests_the_correct_command_when_a_benchmark_is_run_as_a_script(name, tmp_path):
    path = ROOT / "benchmarks" / f"{name}.py"
    command = [sys.executable, path, "--help"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert found.stderr.startswith("error: ")
    assert f"python -m benchmarks.{name}" in found.stderr


CTRL_C = "os.kill(os.getpid(), signal.SIGINT)"
ENDS = {  # for each case: body of main, exit code, and pattern for standard error
    "no error": ("print('done')", 0, ""),
    "Ctrl-C": (f"{CTRL_C}\nprint('went on')", 130, r"program\.py: interrupted\n"),
    "Ctrl-C with a message": (
        "raise KeyboardInterrupt('2 of 3 are done')",
        130,
        r"program\.py: 2 of 3 are done\n",
    ),
    "a user's error": ("raise UserError('list.txt:3: no path')", 1, r".*error: list\.txt:3: .*\n"),
    "a missing file": ("open('missing')", 1, r"program\.py: error: .*'missing'\n"),
    "a control character": ("raise OSError('a\\x1b[31m')", 1, r"program\.py: error: a\\x1b\[31m\n"),
    "a bug": ("1 / 0", 1, r"Traceback.*ZeroDivisionError: division by zero\n"),
    "an unexpected ValueError": ("int('x')", 1, r"Traceback.*ValueError.*\n"),
    "a BrokenPipeError from another process": (
        "raise BrokenPipeError(32, 'of a process')",
        1,
        r"Traceback.*BrokenPipeError: \[Errno 32\] of a process\n",
    ),
    "a missing package that a requirements file lists": (
        "raise ModuleNotFoundError(name='faster_whisper')",
        1,
        r"program\.py: error: faster_whisper .*-r requirements/\w+\.txt\n",
    ),
    "a missing module that no requirements file lists": (
        "import no_such_module",
        1,
        r"Traceback.*ModuleNotFound.*\n",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_program_exits_with_the_expected_code_and_error(case, tmp_path):
    body, code, errors = ENDS[case]
    found = run(tmp_path, body)
    assert found.returncode == code
    assert re.fullmatch(errors, found.stderr, re.DOTALL)
    assert "went on" not in found.stdout


def test_program_ignores_ctrl_c_when_its_parent_process_ignored_it(tmp_path):
    body = f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n{CTRL_C}\nprint('went on')"
    assert run(tmp_path, body).stdout == "went on\n"


@pytest.mark.parametrize(("length", "code"), [(100_000, 141), (10, 141)])
def test_program_ends_quietly_when_the_reader_of_its_output_has_exited(length, code, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    options = {"stdout": writer, "stderr": subprocess.PIPE, "capture_output": False}
    found = run(tmp_path, f"print('x' * {length})", **options)
    os.close(writer)
    assert (found.returncode, found.stderr) == (code, "")


def test_program_prints_one_line_when_the_disk_is_full(tmp_path):
    run(tmp_path, "print('x' * 100_000)")
    command = f"exec {shlex.quote(sys.executable)} program.py > /dev/full"
    found = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 1
    assert re.fullmatch(r"program\.py: error: .*No space left on device.*\n", found.stderr)


def test_program_escapes_characters_that_the_terminal_cannot_print(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    assert run(tmp_path, "print('–')", env=environment).stdout == "\\u2013\n"
