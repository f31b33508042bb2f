"""Test the import graph: layers, no cycles, no imported programs, and no slow imports."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

# Layers from bottom to top. A module imports only from lower layers and from its own package.
LAYERS = [
    "tacotron2_voice length_batching",
    "hparams machine",
    "audio batching layers batch",
    "model",
    "fast_decoder loss",
    "export",
    "corpus",
    "data_utils",
    "training",
    "evaluation",
    "synthesize train",
    "benchmarks scripts",
]
PROGRAMS = {"synthesize", "train", "benchmarks", "scripts"}  # no module imports these programs
LIBRARIES = {"tacotron2_voice", "length_batching"}  # packages that must not import the recipe
# These packages are slow to import, or they may later be replaced by other packages.
# Only the listed files may import each package.
OWNERS = {
    "librosa": "audio.py",
    "inflect": "tacotron2_voice/text/english/numbers.py",
    "unidecode": "tacotron2_voice/text/cleaners.py",
    "py3langid": "tacotron2_voice/text/other_languages.py",
    "phonemizer": "tacotron2_voice/text/espeak.py",
    "triton": "fast_decoder/kernels.py",
    "srt": "corpus/subtitles.py",
    "webvtt": "corpus/subtitles.py",
    "praatio": "corpus/textgrids.py",
    "jinja2": "corpus/report_page.py",
}
REPORT_PACKAGES = {"pandas", "seaborn", "statsmodels"}
REPORTING = {"benchmarks", "evaluation", "scripts"}  # packages that may import REPORT_PACKAGES


def name_of(path: Path) -> str:
    """Return the dotted name of a module: training/trainer.py -> training.trainer."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def top(name: str) -> str:
    return name.partition(".")[0]


WITHOUT_LAYER = {"docs", "examples", "tests"}  # folders that no module imports
PACKAGES = {name for names in LAYERS for name in names.split() if (ROOT / name).is_dir()}
PATHS = sorted([*ROOT.glob("*.py"), *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))])
FILES = {name_of(path): path for path in PATHS}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imports(name: str) -> set[str]:
    """Return the dotted names of all imports in a file, including imports inside functions."""
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


def is_program(name: str) -> bool:
    return any(
        isinstance(node, ast.If) and "__name__ == '__main__'" in ast.unparse(node.test)
        for node in TREES[name].body
    )


def test_every_folder_with_code_belongs_to_an_import_layer():
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert folders - WITHOUT_LAYER <= PACKAGES


@pytest.mark.parametrize("name", sorted(FILES))
def test_module_imports_only_from_lower_layers(name):
    layer = {package: i for i, names in enumerate(LAYERS) for package in names.split()}
    project = {top(other) for other in GRAPH[name]} & layer.keys() - {top(name)}
    assert {other for other in project if layer[other] >= layer[top(name)]} == set()


def test_import_graph_has_no_cycle():
    graph = {name: found & FILES.keys() for name, found in GRAPH.items()}
    # a CycleError lists the modules of the cycle
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_no_module_imports_a_program():
    programs = {name for name in FILES if top(name) in PROGRAMS and is_program(name)}
    for name, found in GRAPH.items():
        assert found.isdisjoint(programs), name


def test_libraries_do_not_import_the_recipe():
    for name, found in GRAPH.items():
        if top(name) in LIBRARIES:
            others = {*map(top, FILES)} - {top(name)}
            assert {top(other) for other in found}.isdisjoint(others), name


def test_slow_or_replaceable_package_is_imported_only_by_the_listed_files():
    for name, path in FILES.items():
        file = path.relative_to(ROOT).as_posix()
        packages = {top(other) for other in GRAPH[name]}
        if top(name) not in REPORTING:
            assert {OWNERS[package] for package in packages & OWNERS.keys()} <= {file}
            assert packages.isdisjoint(REPORT_PACKAGES), file


@pytest.mark.thorough
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
        {"from tacotron2_voice.voice import Voice": {"torch", "matplotlib", "hparams", "onnx"}},
    ],
)
def test_imports_load_no_unwanted_packages(unwanted_after):
    """A new interpreter runs the import statements. After each statement, the test checks
    sys.modules."""
    script = "import sys\n" + "".join(f"{x}; print(*sys.modules)\n" for x in unwanted_after)
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    for loaded, unwanted in zip(lines, unwanted_after.values(), strict=True):
        assert {top(name) for name in loaded.split()}.isdisjoint(unwanted)
