"""May import whom: the layers of the project, held by reading every file's imports."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

# module: (project modules, packages) it may import beside the standard library
TABLE = {
    "environment": ("", ""),
    "hparams": ("batching errors", ""),  # inside its checks: importing it loads nothing
    "files": ("", ""),
    "progress": ("", "tqdm"),
    "batching": ("", "numpy torch"),
    "text": ("", "unidecode inflect"),
    "layers": ("", "torch"),
    "pictures": ("", "numpy matplotlib"),
    "audio": ("hparams", "torch numpy librosa soundfile"),
    "data_utils": ("text audio hparams files", "torch numpy"),
    "model": ("layers hparams", "torch"),
    "fast_decoder": ("", "torch"),
    "fast_decoder.kernels": ("", "triton"),
    "fast_decoder.graphs": ("", "torch"),
    "training.checkpoint": ("hparams files", "torch"),
    "training.logger": ("pictures hparams files", "torch numpy"),
    "training.rehearsal": ("data_utils hparams", "torch numpy"),
    "analysis": ("batching data_utils audio text hparams files", "numpy scipy matplotlib torch"),
    "train": (
        "environment hparams files batching text audio data_utils model fast_decoder training "
        "pictures progress",
        "torch numpy",
    ),
    "synthesize": (
        "environment hparams files text audio data_utils model training pictures",
        "torch numpy",
    ),
}
NOBODY_IMPORTS = {"train", "synthesize", "scripts", "benchmarks", "tests"}
FOLDERS = ("scripts", "benchmarks")  # programs: they may import the table's other modules


def imports(path):
    """Dotted names that a file imports anywhere, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            names |= {node.module}
    return names


def split(path):
    """(project modules, packages) that a file imports, top names without the standard library."""
    tops = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
    project = {name for name in tops if name in TABLE or (PROJECT / name).is_dir()}
    project |= {name for name in tops if (PROJECT / f"{name}.py").exists()}
    return project, tops - project


def files_of(module):
    folder = PROJECT / module
    return sorted(folder.glob("*.py")) if folder.is_dir() else [PROJECT / f"{module}.py"]


def test_every_module_has_a_row():
    modules = {path.stem for path in PROJECT.glob("*.py")}
    assert modules <= set(TABLE), "add the module to the table, and say whom it may import"
    packages = {path.parent.name for path in PROJECT.glob("*/__init__.py")} - {"tests", *FOLDERS}
    assert packages <= set(TABLE)
    assert {"hparams", "batching", "text", "audio", "layers", "data_utils", "model"} <= (
        modules | packages
    )


@pytest.mark.parametrize("module", TABLE)
def test_a_module_imports_only_what_its_row_allows(module):
    allowed_project, allowed_packages = (set(names.split()) for names in TABLE[module])
    for path in files_of(module):
        if not path.exists():
            pytest.skip(f"{path.name} is not written yet")
        project, packages = split(path)
        assert project - {module} <= allowed_project, path.name  # a package's files know another
        assert packages <= allowed_packages, path.name


def test_the_table_has_no_circle_and_nobody_imports_a_program():
    graph = {module: project.split() for module, (project, _) in TABLE.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(TABLE)
    assert NOBODY_IMPORTS.isdisjoint(name for names in graph.values() for name in names)


@pytest.mark.parametrize("folder", FOLDERS)
def test_programs_do_not_import_programs(folder):
    """A script may share a helper that lies beside it; nothing else may reach into scripts."""
    for path in sorted((PROJECT / folder).rglob("*.py")):
        project, _ = split(path)
        assert project - {folder} <= set(TABLE) - NOBODY_IMPORTS, path.name


def test_one_module_each_knows_sound_pictures_and_logs():
    """Who may import it follows from the table; this is what the table must keep true."""
    owners = {
        "librosa": {"audio"},
        "soundfile": {"audio"},
        "matplotlib": {"pictures"},
        "triton": {"decoder_kernels"},
        "inflect": {"text"},
    }
    for package, expected in owners.items():
        assert {m for m, (_, packages) in TABLE.items() if package in packages.split()} == expected


def loaded_by(statement):
    """Names in sys.modules after the statement, in a fresh interpreter."""
    script = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in run.stdout.split()}


def test_the_model_drags_in_no_sound_text_or_logging():
    loaded = loaded_by("import model")
    assert {"model", "layers", "hparams", "torch"} <= loaded
    unwanted = {"librosa", "soundfile", "numba", "scipy", "matplotlib", "tensorboard", "inflect"}
    assert loaded.isdisjoint(unwanted | (set(TABLE) - {"model", "layers", "hparams"}))


def test_settings_load_nothing_and_batching_loads_nothing_of_the_project():
    assert loaded_by("import hparams, files").isdisjoint({"torch", "numpy"})
    loaded = loaded_by("import batching")
    assert loaded.isdisjoint(set(TABLE) - {"batching"})
    assert loaded.isdisjoint({"librosa", "soundfile", "scipy", "matplotlib"})
