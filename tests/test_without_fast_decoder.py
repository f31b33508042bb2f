"""Test a copy of the recipe without the folder fast_decoder: training, synthesis and tests."""

import shutil
from pathlib import Path

import pytest
from helpers import run_program

PROJECT = Path(__file__).parents[1]
ITS_TESTS = (
    "test_fast_decoder.py",
    "test_captured_steps.py",
    "test_decoder_kernels.py",
    "test_encoder_kernels.py",
    "test_kernel_accesses.py",
    "test_gpu_report.py",
    "test_self_check.py",
    "compile_kernels.py",
)
# File names and patterns to leave out of the copy of the project.
LEFT_BEHIND = (".*", "__pycache__", "runs", "results", "shared")
DECODER = "decoder: reference, step by step: the folder fast_decoder/ is missing"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """Return a copy of the project without the fast decoder and its tests."""
    if not (PROJECT / "fast_decoder" / "__init__.py").exists():
        pytest.skip("the folder fast_decoder is missing")
    folder = tmp_path_factory.mktemp("without") / "project"
    ignored = shutil.ignore_patterns("fast_decoder", *ITS_TESTS, *LEFT_BEHIND)
    return Path(shutil.copytree(PROJECT, folder, ignore=ignored))


@pytest.fixture(scope="module")
def trained(project, corpus) -> tuple[Path, str]:
    """Train one epoch in the copied project, and return the output folder and the printed text."""
    settings = corpus.hparams(epochs=1, epochs_per_validation=1, decoder="fast")
    printed = run(project, "train.py", "-o", "runs/tiny", "--hparams", settings)
    return project / "runs" / "tiny", printed


def run(project: Path, *command: str) -> str:
    ended = run_program(project, list(command))
    assert ended.code == 0, ended.output
    return ended.output


@pytest.mark.thorough
def test_training_uses_the_reference_decoder_when_the_folder_fast_decoder_is_missing(
    trained, project
):
    directory, printed = trained
    assert [line for line in printed.splitlines() if "decoder:" in line] == [DECODER]
    assert list(directory.glob("checkpoint_*.pt"))
    run(
        *(project, "synthesize.py", "--checkpoint", str(directory / "best.pt"), "--text", "A dog."),
        *("-o", "spoken", "--hparams", "max_decoder_steps=5"),
    )
    assert len(list((project / "spoken").glob("*.wav"))) == 1


def test_decoder_benchmark_is_rejected_when_the_folder_fast_decoder_is_missing(project):
    ended = run_program(project, ["-m", "benchmarks.decoder"])
    assert ended.code not in (0, None)
    assert "fast_decoder/" in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.thorough
def test_remaining_tests_pass_when_the_folder_fast_decoder_is_missing(project):
    """All test modules can be imported, and the model tests pass."""
    chosen = "test_trainer.py or test_model.py and (shapes or numpy)"
    naming = [path for path in (project / "tests").glob("test_*.py") if "fast_" in path.read_text()]
    (project / "tests" / "run_tests.py").write_text(
        "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    )
    options = "-p", "no:cacheprovider", "--assert=plain", "-k", chosen
    printed = run(project, "tests/run_tests.py", *options, "tests/test_model.py", *map(str, naming))
    assert " passed" in printed  # a failed import would make pytest fail


@pytest.mark.thorough
def test_fast_decoder_counts_as_missing_when_only_compiled_files_exist(trained, project, corpus):
    """Python treats a folder that contains only __pycache__ as an empty package."""
    directory, _ = trained
    (project / "fast_decoder" / "__pycache__").mkdir(parents=True)
    (project / "fast_decoder" / "__pycache__" / "graphs.cpython-311.pyc").write_bytes(b"")
    printed = run(
        *(project, "train.py", "-o", str(directory), "--resume"),
        *("--hparams", corpus.hparams(epochs=2, epochs_per_validation=1, decoder="fast")),
    )
    assert [line for line in printed.splitlines() if "decoder:" in line] == [DECODER]
