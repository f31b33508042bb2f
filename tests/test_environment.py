"""environment.py: Ctrl-C while a program imports, output that nobody reads, closed descriptors."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

PROGRAMS = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "train.py", ROOT / "synthesize.py", *sorted(ROOT.glob("scripts/*.py")))
    if path.name != "project_root.py"
]
# Python imports this at its start. Ctrl-C comes when the so-many-th module after `environment` is
# looked for.
INTERRUPTING = """
import os, signal, sys

class Interrupting:
    count = None
    def find_spec(self, name, path=None, target=None):
        if name == "tacotron2_voice.utils.environment":
            self.count = 0
        elif self.count is not None:
            self.count += 1
            if self.count == int(os.environ["MODULES_BEFORE_CTRL_C"]):
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
"""


def ended(arguments: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


@pytest.mark.parametrize(
    ("program", "moment"), [*((program, 12) for program in PROGRAMS), ("train.py", 500)]
)
def test_ctrl_c_during_imports_is_one_line(program, moment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "MODULES_BEFORE_CTRL_C": str(moment),
        "OMP_NUM_THREADS": "1",
    }
    stopped = ended([ROOT / program], env=environment)
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert stopped.stderr == f"{Path(program).name}: interrupted\n"


def program(folder: Path, body: str) -> Path:
    """A program of its own that begins as ours do, in a folder where it finds environment.py."""
    (folder / "common").mkdir()
    file = "tacotron2_voice/utils/environment.py"
    (folder / file).write_bytes((ROOT / file).read_bytes())
    path = folder / "program.py"
    ctrl_c = "def ctrl_c(): os.kill(os.getpid(), signal.SIGINT)\n"
    before = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    path.write_text(
        f"{before}import tacotron2_voice.utils.environment\nimport os\n{ctrl_c}{body}",
        encoding="utf-8",
    )
    return path


LIBRARIES = {
    "swallowing.py": """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
""",
    "raising.py": "import __main__; __main__.ctrl_c()",
    "requirements/report.txt": "other==1\nsome-package==2.0\n",
}
CLEANING_UP = """
try:
    ctrl_c()
finally:
    print("cleaned up")
"""
INTERRUPTED = "", 130, "program.py: interrupted\n"
ENDS = {
    "Ctrl-C in an import that swallows it": ("import swallowing", *INTERRUPTED),
    "Ctrl-C between two imports": ("ctrl_c()", *INTERRUPTED),
    "Ctrl-C in an import of its own": ("def main(): import raising\nmain()", *INTERRUPTED),
    "Ctrl-C where it may clean up": (CLEANING_UP, "cleaned up\n", *INTERRUPTED[1:]),
    "Ctrl-C with what is done": (
        "raise KeyboardInterrupt('2 of 3 are done')",
        *("", 130, "program.py: 2 of 3 are done\n"),
    ),
    "another error": ("1 / 0", "", 1, "Traceback.*ZeroDivisionError: division by zero\n"),
    "a broken pipe of a process": (
        "raise BrokenPipeError(32, 'of a process')",
        *("", 1, r"Traceback.*BrokenPipeError: \[Errno 32\] of a process\n"),
    ),
    "a file that colors the terminal": (
        "raise OSError('a\\x1b[31m')",
        *("", 1, r"program.py: a\\x1b\[31m\n"),
    ),
    "a path that is no UTF-8": (
        "open(b'caf\\xe9'.decode('utf-8', 'surrogateescape').encode())",
        *("", 1, r"program.py: 'caf\\xe9': a path that is no UTF-8; rename it, or work in .*"),
    ),
    "a missing package": (
        "import some_package.part",
        *(
            "",
            1,
            "program.py: some_package is not installed: pip install -r requirements/report.txt\n",
        ),
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_programs_end_in_one_line_or_traceback(how, tmp_path):
    body, printed, code, errors = ENDS[how]
    (tmp_path / "requirements").mkdir()
    for name, content in LIBRARIES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = ended([program(tmp_path, f"{body}\nprint('went on')")], cwd=tmp_path)
    assert (found.returncode, found.stdout) == (code, printed)
    assert re.fullmatch(errors, found.stderr, re.DOTALL)


def test_ignored_ctrl_c_stays_ignored(tmp_path):
    path = program(tmp_path, "ctrl_c()\nprint('went on')")
    path.write_text(path.read_text().replace("signal.default_int_handler", "signal.SIG_IGN"))
    finished = ended([path])
    assert (finished.returncode, finished.stdout) == (0, "went on\n")


PRINTING = "print('x' * {length})\nprint('went on', file=__import__('sys').stderr)"


@pytest.mark.parametrize(("length", "expected"), [(100_000, (141, "")), (10, (0, "went on\n"))])
def test_closed_pipes_end_programs_quietly(length, expected, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    path = program(tmp_path, PRINTING.format(length=length))
    options = {"env": os.environ | {"PYTHONUNBUFFERED": ""}, "text": True, "timeout": 60}
    stopped = subprocess.run(
        [sys.executable, path], stdout=writer, stderr=subprocess.PIPE, **options
    )
    os.close(writer)
    assert (stopped.returncode, stopped.stderr) == expected


def test_a_full_disk_is_one_line(tmp_path):
    path = program(tmp_path, PRINTING.format(length=100_000))
    failed = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} {path.name} > /dev/full"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert failed.returncode == 1
    assert failed.stderr == "program.py: [Errno 28] No space left on device; make room\n"


def test_odd_encoding_or_backend_ends_no_program(tmp_path):
    path = program(tmp_path, "print('–', os.environ['MPLBACKEND'])")
    odd = os.environ | {"PYTHONIOENCODING": "ascii", "MPLBACKEND": "nonsense"}
    ended = subprocess.run([sys.executable, path], env=odd, capture_output=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (b"\\u2013 agg\n", b"")


def test_output_to_closed_descriptors_is_dropped(tmp_path):
    body = """
import sys
with open("file", "w") as file:
    print("for the terminal", flush=True)
    print("for the terminal", file=sys.stderr, flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, b"for the terminal")
    file.write(f"{sys.stdin.read()!r} {file.fileno() > 2}")
"""
    path = program(tmp_path, body)
    finished = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} {path.name} <&- >&- 2>&-"],
        cwd=tmp_path,
        timeout=60,
    )
    assert finished.returncode == 0
    assert (tmp_path / "file").read_text() == "'' True"
