"""Test the wheel tacotron2-voice: its files, and synthesis in an environment with nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers import ROOT
from packaging.requirements import Requirement
from test_wheel import build

from tacotron2_voice.voice import Voice

FOLDER = ROOT / "tacotron2_voice"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
TEXT = "A dog came. It sat down, and it ate."
PROGRAM = f"""
import sys
import tacotron2_voice
assert "numpy" not in sys.modules
from tacotron2_voice import Voice
voice = Voice(sys.argv[1])
print(len(voice.synthesize({TEXT!r}).audio), "torch" in sys.modules)
"""
COLLIDING = ("common.py", "text.py", "hparams.py", "synthesis.py", "export.py", "settings.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="needs requirements/dev.txt")
    folder = tmp_path_factory.mktemp("a wheel")
    return folder / build("wheel", FOLDER, folder)


def needed_by(names: list[str]) -> dict[str, metadata.Distribution]:
    """Return the distributions of these packages and of all their requirements, as {name:
    distribution}."""
    needed: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        requirement = Requirement(waiting.pop())
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and requirement.name not in needed:
            needed[requirement.name] = metadata.distribution(requirement.name)
            waiting += needed[requirement.name].requires or []
    return needed


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Return the Python interpreter of an environment with only the wheel and its dependencies.

    The path contains a space. The dependencies are links into the test environment.
    """
    folder = tmp_path_factory.mktemp("an environment")
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    [site] = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for distribution in needed_by(PROJECT["project"]["dependencies"]).values():
        tops = {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin" / "python"


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    # The last bits of matrix products depend on the number of threads.
    environment["OMP_NUM_THREADS"] = "1"
    arguments = [str(argument) for argument in command]
    return subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.thorough
def test_console_command_writes_the_same_bytes_as_synthesize_py(python, voices, tmp_path):
    options = voices.int8[0], "--text", TEXT, "--seed", 3
    name, _, function = PROJECT["project"]["scripts"]["tacotron2-voice"].partition(":")
    program = f"from {name} import {function}; {function}()"
    spoken = run(python, "-c", program, "speak", *options, "-o", "wheel.wav", folder=tmp_path)
    assert spoken.stdout.startswith("wrote wheel.wav"), spoken.stderr
    here = sys.executable, ROOT / "synthesize.py", "--voice"
    assert run(*here, *options, "-o", "recipe.wav", folder=tmp_path).returncode == 0
    assert (tmp_path / "wheel.wav").read_bytes() == (tmp_path / "recipe.wav").read_bytes()


def test_console_command_prints_one_line_when_ctrl_c_arrives_during_imports(python, tmp_path):
    program = """
import sys
class Interrupter:
    def find_spec(self, name, *_):
        if name == "numpy":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupter())
from tacotron2_voice.__main__ import run
run()
"""
    stopped = run(python, "-c", program, "speak", "--help", folder=tmp_path)
    assert stopped.returncode == 130
    assert stopped.stderr == "-c: interrupted\n"


def test_wheel_works_when_user_files_have_the_names_of_its_modules(python, voices, tmp_path):
    """User files must not replace modules of the library, and torch must not be imported."""
    for name in COLLIDING:
        (tmp_path / name).write_text("raise ImportError('a file of the user')\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    spoken = run(python, "program.py", voices.int8[0], folder=tmp_path)
    assert re.fullmatch(r"\d{4,} False\n", spoken.stdout), spoken.stderr


def test_wheel_prints_a_one_line_error_when_the_path_is_a_checkpoint(python, voices, tmp_path):
    checkpoint = voices.checkpoint[0]
    options = checkpoint, "--text", TEXT, "-o", "a.wav"
    refused = run(python, "-m", "tacotron2_voice", "speak", *options, folder=tmp_path)
    assert refused.returncode == 1
    assert f"error: {checkpoint}" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_output_folder_contains_no_plots_when_matplotlib_is_missing(python, voices, tmp_path):
    """A single note contains the command that installs matplotlib."""
    options = voices.int8[0], "--text", TEXT
    for done in ("1 text", "0 texts"):
        spoken = run(python, "-m", "tacotron2_voice", "speak", *options, folder=tmp_path)
        assert spoken.returncode == 0, spoken.stderr
        assert f"wrote the files of {done} to out" in spoken.stdout
        notes = [line for line in spoken.stderr.splitlines() if "matplotlib" in line]
        assert len(notes) == 1
        assert notes[0].startswith("note: ")
        assert '"tacotron2-voice[plots]"' in notes[0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "0001.wav",
        "spoken.jsonl",
    ]


def test_wheel_error_names_the_pip_extra_when_a_plot_needs_matplotlib(python, voices, tmp_path):
    program = f"""
import sys
from pathlib import Path
from tacotron2_voice import UserError, Voice, write_speech
voice = Voice(sys.argv[1])
speech = voice.synthesize({TEXT!r})
try:
    write_speech(Path("a"), speech, voice.settings.table)
except UserError as error:
    print(error)
write_speech(Path("b"), speech, voice.settings.table, save_plot=False)
"""
    spoken = run(python, "-c", program, voices.int8[0], folder=tmp_path)
    assert '"tacotron2-voice[plots]"' in spoken.stdout, spoken.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["b.wav"]


def test_wheel_works_when_the_server_packages_are_missing(python, voices, tmp_path):
    """The error of `serve` names the pip extra that installs the server packages."""
    served = run(python, "-m", "tacotron2_voice", "serve", voices.int8[0], folder=tmp_path)
    assert served.returncode == 1
    assert '"tacotron2-voice[server,wyoming]"' in served.stderr
    assert served.stderr.count("\n") == 1


def test_packages_of_each_pip_extra_equal_the_pinned_packages():
    extras = PROJECT["project"]["optional-dependencies"]
    for names, file in ((("server", "wyoming"), "server.txt"), (("phones",), "phones.txt")):
        pinned = (ROOT / "requirements" / file).read_text(encoding="utf-8")
        expected = set(re.findall(r"^([\w-]+)==", pinned, re.M))
        found = {Requirement(x).name for name in names for x in extras[name]} - {"soundfile"}
        assert found == expected


def test_wheel_and_sdist_contain_exactly_the_files_of_the_package(wheel, tmp_path):
    paths = [path for pattern in ("*.py", "*.html") for path in FOLDER.rglob(pattern)]
    modules = {str(path.relative_to(FOLDER)) for path in paths} | {"py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if "dist-info" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert names == {f"tacotron2_voice/{name}" for name in modules}
    assert len(licenses) == 1
    with tarfile.open(tmp_path / build("sdist", FOLDER, tmp_path)) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()} - {".gitignore"}
    assert sdist == modules | {"LICENSE", "README.md", "CHANGELOG.md", "PKG-INFO", "pyproject.toml"}


def test_dependencies_equal_the_pinned_dependencies():
    pinned = (ROOT / "requirements" / "onnx.txt").read_text(encoding="utf-8")
    # Only the export of voices needs the package onnx.
    names = set(re.findall(r"^([\w-]+)==", pinned, re.M)) - {"onnx"}
    dependencies = {Requirement(x).name for x in PROJECT["project"]["dependencies"]}
    assert dependencies == names


def test_voice_can_be_shared_by_threads(voices):
    """Two interleaved streams return the same bytes as two consecutive streams."""
    voice = Voice(voices.int8[0])
    texts = [TEXT, "It sat down, and it ate. A dog came."]
    expected = [np.concatenate([*voice.stream(text, seed=1)]) for text in texts]
    streams = [voice.stream(text, seed=1) for text in texts]
    pieces: list[list[np.ndarray]] = [[], []]
    is_running = True
    while is_running:
        is_running = False
        for stream, found in zip(streams, pieces, strict=True):
            piece = next(stream, None)
            if piece is not None:
                found.append(piece)
                is_running = True
    for found, whole in zip(pieces, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), whole)


def test_wheel_writes_speech_with_the_outputs_module(voices, tmp_path):
    from tacotron2_voice import write_speech

    voice = Voice(voices.int8[0])
    speech = voice.synthesize(TEXT, seed=1)
    write_speech(tmp_path / "a", speech, voice.settings.table, save_mel=True)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate == speech.sampling_rate
    np.testing.assert_allclose(samples, speech.audio, atol=1e-4)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), speech.mel)
    assert (tmp_path / "a.png").stat().st_size > 0
