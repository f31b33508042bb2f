"""Who may import whom, and how long a file may be."""

import ast
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from helpers import ROOT

# From bottom to top. A module imports from the layers below its own and from its own package.
LAYERS = [
    "common length_batching",
    "text",
    "hparams",
    "audio batching layers",
    "model",
    "fast_decoder loss",
    "synthesis",
    "corpus",
    "data_utils",
    "training",
    "paper",
    "synthesize train",
    "benchmarks scripts",
]
PROGRAMS = {"synthesize", "train", "benchmarks", "scripts"}  # which nobody imports
SHARED = {"fast_path", "options", "project_root", "timing"}  # by the programs of their folder
# Packages that are slow to load, or must stay replaceable, and the one file of the recipe that
# imports each.
OWNERS = {
    "librosa": "audio.py",
    "inflect": "tacotron2_voice/text/english/numbers.py",
    "unidecode": "tacotron2_voice/text/cleaners.py",
    "phonemizer": "tacotron2_voice/text/espeak.py",
    "triton": "fast_decoder/kernels.py",
}
REPORT_PACKAGES = {"jinja2", "pandas", "seaborn", "statsmodels"}
NOT_THE_RECIPE = {"benchmarks", "paper", "scripts"}


def name_of(path: Path) -> str:
    """`training/trainer.py` -> `training.trainer`, `tacotron2_voice/text/__init__.py` -> `text`"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PACKAGES = {name for names in LAYERS for name in names.split() if (ROOT / name).is_dir()}
PATHS = sorted([*ROOT.glob("*.py"), *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))])
FILES = {name_of(path): path for path in PATHS}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imports(name: str) -> set[str]:
    """Dotted names that a file imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= modules & FILES.keys() or {node.module or ""}
    return found


GRAPH = {name: imports(name) for name in FILES}


def top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_module_imports_only_from_lower_layers(name):
    layer = {package: i for i, names in enumerate(LAYERS) for package in names.split()}
    project = {top(other) for other in GRAPH[name]} & layer.keys() - {top(name)}
    assert {other for other in project if layer[other] >= layer[top(name)]} == set()


def test_no_circles_and_no_imported_programs():
    graph = {name: found & FILES.keys() for name, found in GRAPH.items()}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names a circle
    programs = {path.stem for path in PATHS if top(name_of(path)) in PROGRAMS}
    unwanted = PROGRAMS | programs - SHARED
    shared = {f"{folder}.{name}" for folder in PROGRAMS for name in SHARED}
    for name, found in GRAPH.items():
        assert {top(other) for other in found - shared}.isdisjoint(unwanted), name


def test_programs_of_folders_find_the_project_first():
    for name, path in FILES.items():
        is_program = path.stem not in SHARED
        if top(name) in PACKAGES & PROGRAMS and is_program:
            first = next(n for n in TREES[name].body if isinstance(n, ast.Import | ast.ImportFrom))
            assert "project_root" in ast.unparse(first), path


def test_packages_are_imported_where_they_belong():
    for name, path in FILES.items():
        file = path.relative_to(ROOT).as_posix()
        packages = {top(other) for other in GRAPH[name]}
        if top(name) not in NOT_THE_RECIPE:
            assert {OWNERS[package] for package in packages & OWNERS.keys()} <= {file}
            assert packages.isdisjoint(REPORT_PACKAGES), file
    recipe = {*map(top, FILES)} - {"length_batching"}
    for name in (name for name in FILES if top(name) == "length_batching"):
        assert {top(other) for other in GRAPH[name]}.isdisjoint(recipe), name


@pytest.mark.parametrize(
    "unwanted_after",
    [
        {"import hparams, tacotron2_voice.utils.files": {"torch", "numpy"}},
        {
            "import length_batching": {"torch", "hparams"},
            "import batching": {"torch", "librosa", "soundfile", "scipy", "matplotlib"},
            "import model": {*OWNERS, "scipy", "matplotlib", "tensorboard", "audio"} - {"triton"},
            "import train, synthesize": REPORT_PACKAGES,
        },
        {"import synthesize": {"torch", "librosa", "matplotlib", "tensorboard", "onnx"}},
    ],
)
def test_importing_stays_light(unwanted_after):
    """The packages in sys.modules after each statement, in a fresh interpreter."""
    script = "import sys\n" + "".join(f"{x}; print(*sys.modules)\n" for x in unwanted_after)
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    for loaded, unwanted in zip(lines, unwanted_after.values(), strict=True):
        assert {top(name) for name in loaded.split()}.isdisjoint(unwanted)


def test_no_two_classes_share_a_name():
    places = defaultdict(set)
    for name in FILES:
        if top(name) not in NOT_THE_RECIPE:
            for node in ast.walk(TREES[name]):
                if isinstance(node, ast.ClassDef):
                    places[node.name].add(name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_train_and_readme_are_read_in_one_sitting():
    assert lines(ROOT / "train.py") < 350
    assert lines(ROOT / "README.md") <= 150


def test_the_root_shows_what_the_product_is():
    files = {path.name for path in ROOT.glob("*.py")}
    assert len(files) <= 10, files


def test_no_file_is_too_long_to_read():
    files = [*PATHS, *(ROOT / "tests").glob("*.py")]
    long = {path.relative_to(ROOT).as_posix() for path in files if lines(path) > 600}
    assert long <= {"fast_decoder/kernels.py"}


def test_names_of_tests_have_eight_words():
    """The rest of the sentence is in the docstring."""
    for path in (ROOT / "tests").glob("*.py"):
        for name in re.findall(r"^ *def test_(\w+)", path.read_text(encoding="utf-8"), re.M):
            assert len(name.split("_")) <= 8, f"{path.name}: {name}"
