"""May import whom: the layers of the project, held by reading every file's imports."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

# module, or package: (project modules, packages) it may import beside the standard library.
# Files of a package may import one another, but not in a circle.
TABLE = {
    "environment": ("", ""),
    "errors": ("", ""),
    "files": ("errors", ""),
    "progress": ("", "tqdm"),
    "batching": ("", "numpy torch"),
    "hparams": ("errors files batching text", ""),  # the last two when a setting is checked
    "text": ("errors", "unidecode inflect"),
    "layers": ("", "torch"),
    "clip_table": ("errors files", "numpy"),
    "alignment": ("layers", "torch"),
    "pictures": ("", "numpy matplotlib"),
    "audio": ("errors files hparams", "torch numpy librosa soundfile"),
    "data_utils": ("errors text audio clip_table hparams files", "torch numpy"),
    "corpus": (
        "errors files progress hparams text audio data_utils",
        "numpy torch tqdm matplotlib",
    ),
    "model": ("layers hparams", "torch"),
    "cuda_capture": ("", "torch"),
    "captured_steps": ("cuda_capture model", "torch"),
    "fast_decoder": ("cuda_capture", "torch triton"),
    "fast_decoder.parity": ("fast_decoder model", "torch"),
    "fast_decoder.self_check": (
        "fast_decoder fast_decoder.parity files hparams model",
        "torch",
    ),
    "training.loop_state": ("", ""),
    "training.checkpoint_schema": ("errors hparams training.loop_state", "torch"),
    "training.checkpoint": (
        "errors files training.checkpoint_schema training.machine",
        "torch",
    ),
    "training.distributed": ("errors progress", "torch"),
    "training.agreement": (
        "errors batching clip_table data_utils hparams training.batches training.checkpoint "
        "training.clips training.machine training.output training.distributed training.resume "
        "training.skipping training.trainer",
        "torch",
    ),
    "training.updates": (
        "batching data_utils training.resume training.run training.trainer",
        "numpy",
    ),
    "training.output": ("errors files training.checkpoint", ""),
    "training.machine": ("", "torch numpy"),
    "training.printing": ("progress", ""),
    "training.logging": ("errors files pictures training.loop_state", "torch numpy"),
    "training.trainer": (
        "alignment data_utils hparams model fast_decoder fast_decoder.self_check "
        "training.distributed",
        "torch",
    ),
    "training.memory_check": (
        "errors clip_table data_utils hparams training.machine training.trainer",
        "torch numpy",
    ),
    "training.batches": ("errors batching clip_table hparams training.distributed", ""),
    "training.clips": (
        "errors clip_table data_utils hparams progress training.distributed",
        "numpy",
    ),
    "training.run": (
        "errors batching clip_table hparams training.logging training.loop_state "
        "training.output training.trainer",
        "torch",
    ),
    "training.stopping": ("errors training.distributed training.run", "torch"),
    "training.skipping": (
        "errors batching clip_table data_utils hparams training.batches training.checkpoint "
        "training.clips training.distributed training.run",
        "numpy",
    ),
    "training.totals": (
        "errors batching progress training.run training.trainer training.updates",
        "torch numpy",
    ),
    "training.validation": (
        "errors alignment audio batching clip_table data_utils hparams progress "
        "training.machine training.distributed training.run training.skipping training.stopping "
        "training.totals",
        "torch numpy",
    ),
    "training.resume": (
        "errors batching data_utils files hparams training.checkpoint "
        "training.checkpoint_schema training.logging training.loop_state training.machine "
        "training.output training.run",
        "torch numpy",
    ),
    "analysis": (
        "errors files progress hparams batching text audio clip_table data_utils corpus pictures "
        "speaking training.batches training.machine training.trainer",
        "numpy scipy matplotlib torch tabulate pydantic jinja2 pocketsphinx jiwer",
    ),
    "train": (
        "environment errors files audio data_utils hparams progress training.agreement "
        "training.batches training.checkpoint training.clips training.machine training.output "
        "training.printing training.distributed training.memory_check training.resume training.run "
        "training.skipping training.trainer training.stopping training.totals training.updates "
        "training.validation",
        "torch numpy",
    ),
    "speaking": (
        "errors files text audio captured_steps hparams model pictures training.checkpoint",
        "torch numpy",
    ),
    "synthesize": ("environment errors files hparams speaking text training.printing", ""),
}
PROGRAMS = {"train", "synthesize"}  # and all files of the folders
FOLDERS = ("scripts", "benchmarks")
MOST_LINES = {"train.py": 350, "README.md": 150}
# Who alone may import what is slow to load, or must stay replaceable.
OWNERS = {
    "librosa": {"audio.py"},
    "soundfile": {"audio.py"},
    "triton": {"fast_decoder/kernels.py"},
    "inflect": {"text/numbers.py"},
    "unidecode": {"text/cleaners.py"},
    "tensorboard": set(),
}
if not (PROJECT / "fast_decoder" / "__init__.py").exists():  # it may be taken out
    TABLE = {name: row for name, row in TABLE.items() if not name.startswith("fast_decoder")}
    OWNERS["triton"] = set()


def module_of(path: Path) -> str:
    """`training/trainer.py` -> `training.trainer`, `text/__init__.py` -> `text`"""
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


PRODUCT = sorted(
    path
    for pattern in (
        "*.py",
        "text/*.py",
        "training/*.py",
        "fast_decoder/*.py",
        "analysis/*.py",
        "corpus/*.py",
    )
    for path in PROJECT.glob(pattern)
)
MODULES = {module_of(path): path for path in PRODUCT}


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere, inside functions too; of the project, modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found = {name for name in inside if name in MODULES}
            names |= found or {node.module}
    return names


def of_project(names: set[str]) -> set[str]:
    return {name for name in names if name in MODULES or name.split(".")[0] in FOLDERS}


def packages(names: set[str]) -> set[str]:
    tops = {name.split(".")[0] for name in names - of_project(names)}
    return tops - sys.stdlib_module_names - {"project_root", "fast_decoder"}


def row(module: str) -> str:
    """The key of TABLE that speaks for a module: its own, or that of its package."""
    return module if module in TABLE else module.split(".")[0]


def test_every_module_has_a_row_and_every_row_a_module():
    rows = {row(module) for module in MODULES if MODULES[module].stat().st_size > 0}
    assert rows == set(TABLE), "add the module to the table, and say whom it may import"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_its_row_allows(module):
    if row(module) not in TABLE:
        assert MODULES[module].stat().st_size == 0  # the door of a package
        return
    allowed_project, allowed_packages = (set(names.split()) for names in TABLE[row(module)])
    names = imports(MODULES[module])
    outside = {row(name) for name in of_project(names)} - {row(module)}
    assert outside <= allowed_project
    assert packages(names) <= allowed_packages


def test_no_file_imports_itself_by_way_of_others_and_nobody_imports_a_program():
    graph = {module: of_project(imports(path)) - {module} for module, path in MODULES.items()}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names a circle
    imported = set().union(*graph.values())
    assert imported.isdisjoint(PROGRAMS)
    assert not any(name.split(".")[0] in FOLDERS for name in imported)


@pytest.mark.parametrize("folder", FOLDERS)
def test_programs_do_not_import_programs(folder):
    programs = {path.stem for path in (PROJECT / folder).glob("*.py")} - {"project_root"}
    for path in (PROJECT / folder).rglob("*.py"):
        names = imports(path)
        assert of_project(names).isdisjoint(PROGRAMS), path.name
        assert not any(name.split(".")[0] in FOLDERS for name in names), path.name
        assert names.isdisjoint(programs), path.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_programs_find_the_project_first_and_have_names_of_their_own(folder):
    for path in (PROJECT / folder).glob("*.py"):
        assert path.stem == "project_root" or path.stem not in MODULES, (
            f"{path.name}: a module of the product has this name"
        )
        text = path.read_text(encoding="utf-8")
        if path.stem != "project_root":
            first = next(line for line in text.splitlines() if re.match("import|from", line))
            assert first in ("import project_root", "from project_root import ROOT"), path.name
            assert "sys.path" not in text, path.name


def test_one_file_each_knows_sound_kernels_and_numbers():
    found = {package: set() for package in OWNERS}
    for path in PRODUCT:
        for package in packages(imports(path)) & OWNERS.keys():
            found[package].add(path.relative_to(PROJECT).as_posix())
    assert found == OWNERS


@pytest.mark.parametrize("name", MOST_LINES)
def test_what_is_to_be_read_in_one_sitting_stays_short(name):
    assert len((PROJECT / name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES[name]


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
    assert loaded.isdisjoint(
        unwanted | (set(TABLE) - {"model", "layers", "hparams", "errors", "files"})
    )


def test_settings_load_nothing_and_batching_loads_nothing_of_the_project():
    assert loaded_by("import hparams, files").isdisjoint({"torch", "numpy"})
    loaded = loaded_by("import batching")
    assert loaded.isdisjoint(set(TABLE) - {"batching"})
    assert loaded.isdisjoint({"librosa", "soundfile", "scipy", "matplotlib"})


# ---------------------------------------------------------------------------- names

VAGUE_NAMES = {"told", "said", "likes", "of", "one"}


@functools.cache
def definitions() -> list[tuple[Path, ast.AST]]:
    """Every node of every file of the project but its tests."""
    files = [*PRODUCT, *(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))]
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in files]
    return [(path, node) for path, tree in trees for node in ast.walk(tree)]


def test_no_two_classes_share_a_name():
    places = defaultdict(set)
    for path, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].add(path.relative_to(PROJECT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_name_leaves_open_what_it_stands_for():
    found = []
    for path, node in definitions():
        name = getattr(node, "arg", None) if isinstance(node, ast.arg) else None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name in VAGUE_NAMES:
            found.append(f"{path.name}:{node.lineno}: {name}")
    assert found == []
