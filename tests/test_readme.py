"""Every command and program in README.md is run, on a tiny corpus in a copy of the project."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Run by CI itself (make test), by test_demo.py (make demo), or before any test (pip).
RUN_ELSEWHERE = ("make demo", "make test", "pip install -r requirements.txt")
TINY = (
    "epochs=2,batch_size=4,symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,"
    "decoder_rnn_dim=8,prenet_dim=8,attention_dim=8,attention_location_n_filters=2,"
    "postnet_embedding_dim=8,max_decoder_steps=20,num_workers=0"
)


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    """In the order in which a reader meets them, comments taken off."""
    lines = [line.split("  #")[0].strip() for block in fenced("bash") for line in block.split("\n")]
    return [line for line in lines if line] + re.findall(r"`(python [^`]+)`", README)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the project, at a path with spaces, with a corpus where README has LJSpeech."""
    root = tmp_path_factory.mktemp("a place") / "the project"
    left_out = shutil.ignore_patterns(
        ".*", "demo", "runs", "out", "data", "tests", "results", "__pycache__"
    )
    shutil.copytree(ROOT, root, ignore=left_out)
    corpus = root / "data" / "LJSpeech-1.1"
    (corpus / "wavs").mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for i in range(10):
        samples = 0.1 * rng.standard_normal(8000 + 900 * i)
        soundfile.write(corpus / "wavs" / f"T-{i}.wav", samples, 22050)
        rows.append(f"T-{i}|Text {i}.|Text number {i}.\n")
    (corpus / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    return root


def run(command: str, clone: Path) -> subprocess.CompletedProcess:
    arguments = shlex.split(command)
    assert arguments[0] == "python"
    if arguments[1] == "train.py" and "--hparams" in arguments:
        at = arguments.index("--hparams") + 1
        arguments[at] += "," + TINY
        if "batch_size" in command:
            arguments[at] = re.sub(r"batch_size=16,", "", arguments[at])
    if arguments[1] == "benchmarks/planning.py":
        arguments.append("--quick")
    if arguments[1] == "benchmarks/decoder.py":
        arguments += "--batch-size 1 --frames 2 --symbols 3 --repeats 1 --warm-ups 0".split()
    if arguments[1] == "benchmarks/epoch.py":
        arguments += ["--batches", "2", "--hparams", f"{TINY},hop_time=200"]
        arguments += [] if len(arguments) > 6 else ["--clips", "40"]  # made up
    if arguments[1] == "benchmarks/loader.py":
        arguments += "--clips 10 --num-workers 0,1 --repeats 1 --rate 1e7".split()
    if arguments[1] == "benchmarks/loss_curves.py":
        arguments += "--steps 2".split()
    if arguments[1] == "benchmarks/step_cost.py" and "--hparams" in arguments:
        arguments[arguments.index("--hparams") + 1] += f",{TINY}"
        arguments += "--repeats 1 --frames 5,20 --symbols 3,9 --batch-sizes 1,2,4".split()
    return subprocess.run(
        [sys.executable, *arguments[1:]],
        cwd=clone,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_of_the_readme_runs_in_the_order_given(clone):
    ran = []
    for command in commands():
        if command in RUN_ELSEWHERE or command.startswith("tensorboard"):
            continue
        if script := re.search(r"(?:scripts/table2|benchmarks)/\w+\.sh", command):
            assert (clone / script[0]).is_file()  # test_table2.py and test_gpu_report.py run them
            continue
        result = run(command, clone)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        ran.append(command.split()[1])
    assert {"scripts/prepare_ljspeech.py", "train.py", "synthesize.py"} <= set(ran)
    assert {"scripts/compare_batching.py", "scripts/report.py"} <= set(ran)
    assert (clone / "out" / "0001.wav").is_file()
    assert (clone / "runs" / "ljspeech" / "best.pt").is_file()


def test_tensorboard_is_there_and_takes_the_options_the_readme_gives():
    (command,) = [c for c in commands() if c.startswith("tensorboard")]
    arguments = shlex.split(command)[1:]
    result = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", *arguments, "--version_tb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_batching_program_of_the_readme_runs_with_batching_py_alone(tmp_path):
    (program,) = fenced("python")
    shutil.copy(ROOT / "batching.py", tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["0", "1", "2"]


def test_every_file_of_the_file_map_exists_and_no_module_is_missing_from_it():
    named = set(re.findall(r"`([\w./]+(?:\.py|/))`", README[README.index("## File map") :]))
    assert all((ROOT / name).exists() for name in named)
    assert {path.name for path in ROOT.glob("*.py")} <= named


def test_every_hyper_parameter_the_readme_sets_exists():
    from hparams import create_hparams

    settings = re.findall(r"`((?:\w+=[^`,= ]+,?)+)`", README)
    assert {"bucket_size=1024", "loss=unpadded", "precision=fp16"} <= set(settings)
    for setting in settings:
        assert create_hparams(setting)  # refuses unknown names and values
