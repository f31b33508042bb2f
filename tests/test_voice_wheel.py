"""The wheel tacotron2-voice: what it holds, and that it speaks where nothing else is installed."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from helpers import ROOT
from packaging.requirements import Requirement
from test_wheel import build

NEED_TORCH = {"checkpoint_file.py", "export.py", "hifi_gan.py", "torch_speaker.py"}
PROJECT = tomllib.loads((ROOT / "synthesis" / "pyproject.toml").read_text(encoding="utf-8"))
TEXT = "A dog came. It sat down, and it ate."
PROGRAM = f"""
import sys
from tacotron2_voice.voice import Voice
voice = Voice(sys.argv[1])
print(len(voice.speak({TEXT!r})), "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="pip install -r requirements/dev.txt")
    folder = tmp_path_factory.mktemp("wheel")
    return folder / build("wheel", ROOT / "synthesis", folder)


def needed_by(names: list[str]) -> dict[str, metadata.Distribution]:
    """Distributions by name: these, and what they need."""
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
    """The Python of an environment that has the wheel and its dependencies alone, as pip would
    install them; these are links to the packages of this environment."""
    folder = tmp_path_factory.mktemp("environment")
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
    environment["OMP_NUM_THREADS"] = "1"  # the last bits of products depend on it
    arguments = [str(argument) for argument in command]
    return subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_wheel_speaks_the_bytes_of_synthesize(python, voices, tmp_path):
    options = voices.int8[0], "--text", TEXT, "--seed", 3
    spoken = run(python, "-m", "synthesis", *options, "-o", "wheel.wav", folder=tmp_path)
    assert spoken.stdout.startswith("wrote wheel.wav"), spoken.stderr
    here = sys.executable, ROOT / "synthesize.py", "--voice"
    assert run(*here, *options, "-o", "recipe.wav", folder=tmp_path).returncode == 0
    assert (tmp_path / "wheel.wav").read_bytes() == (tmp_path / "recipe.wav").read_bytes()


def test_the_class_speaks_without_torch(python, voices, tmp_path):
    spoken = run(python, "-c", PROGRAM, voices.int8[0], folder=tmp_path)
    assert re.fullmatch(r"\d{4,} False\n", spoken.stdout), spoken.stderr


def test_what_the_wheel_lacks_is_said(python, voices, tmp_path):
    """One line for a checkpoint, and for pictures without matplotlib."""
    checkpoint, voice = voices.checkpoint[0], voices.int8[0]
    for path, out, message in (
        (checkpoint, "a.wav", f"{checkpoint}: no voice; name the folder of one; checkpoints need "),
        (voice, "folder", "-o folder: matplotlib is missing, which draws alignments; pip install "),
    ):
        options = path, "--text", TEXT, "-o", out
        refused = run(python, "-m", "synthesis", *options, folder=tmp_path)
        assert refused.stderr.startswith(f"synthesis: {message}")
        assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_holds_all_that_needs_no_torch(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder, left_out in (("synthesis", NEED_TORCH), ("text", set())):
        modules = {path.name for path in (ROOT / folder).glob("*.py")} - left_out
        held = {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}
        assert held - {"LICENSE"} == modules
    tops = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert tops == {"synthesis", "text", "common", "hparams.py"}


def test_dependencies_are_the_pinned_ones():
    pinned = (ROOT / "requirements" / "onnx.txt").read_text(encoding="utf-8")
    names = set(re.findall(r"^([\w-]+)==", pinned, re.M)) - {"onnx"}  # of the export
    dependencies = {Requirement(x).name for x in PROJECT["project"]["dependencies"]}
    assert dependencies == names
