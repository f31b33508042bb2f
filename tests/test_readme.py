"""README.md and docs/: every command and program in them runs, on a tiny corpus in a copy of the
project; links, names of files and hyper-parameters, and the list of strategies are right."""

import itertools
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
import torch
from helpers import run_program
from torch.distributed.run import get_args_parser

from analysis.survey import DEFAULTS
from batching import REGISTRY
from hparams import create_hparams
from model import Tacotron2
from scripts.compare_batching import strategy_table

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = DOCUMENTS["README.md"]
# Run by CI itself (make test), by test_demo.py (make demo), before any test (pip), or by
# test_decoder_kernels.py, which compiles the kernels once for all. The scripts are run by
# test_table2.py and test_gpu_report.py, tensorboard by a test of its own.
RUN_ELSEWHERE = {
    "make demo",
    "make test",
    "pip install -r requirements.txt",
    "python benchmarks/machine_code.py",
}
SCRIPT = re.compile(r"(?:\w+=(?:\"[^\"]*\"|\S*) )*((?:scripts/table2|benchmarks)/\w+\.sh)")
TINY = (
    "epochs=1,epochs_per_validation=1,batch_size=4,num_workers=0,symbols_embedding_dim=8,"
    "encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,prenet_dim=8,attention_dim=8,attention_location_n_filters=2,"
    "postnet_embedding_dim=8,max_decoder_steps=20"
)
# Added to the commands: the same work, less of it. {TINY} ends what --hparams has already.
SMALLER = {
    "train.py": f"--hparams {TINY}",
    "synthesize.py": f"--hparams {TINY}",
    "scripts/compare_batching.py": "--epochs 1",
    "benchmarks/decoder.py": (
        "--batch-size 1 --frames 2 --symbols 3 --repeats 1 --warm-ups 0 --no-memory "
        f"--hparams {TINY}"
    ),
    "benchmarks/epoch.py": f"--batches 2 --clips 10 --hparams {TINY},hop_time=200,num_bins=5",
    "benchmarks/synthesis.py": f"--texts 1 --symbols 3 --steps 2 --repeats 1 --hparams {TINY}",
}
# The folder may be taken out of the project; these programs only compare it with the reference.
HAS_FAST_DECODER = (ROOT / "fast_decoder" / "__init__.py").exists()
FAST_DECODER_ONLY = ("benchmarks/decoder.py", "benchmarks/epoch.py")
KEPT_AS_THEY_ARE = ("--resume", "--check")  # these take their settings from files


def fenced(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, flags=re.DOTALL)


def commands(document: str) -> list[str]:
    """In the order in which a reader meets them, comments taken off."""
    lines = [line.split("  #")[0].strip() for block in fenced(document, "bash") for line in
             block.split("\n")]  # fmt: skip
    return [line for line in lines if line] + re.findall(r"`(python [^`]+)`", document)


@pytest.fixture
def clone(tmp_path):
    """A copy of the project, at a path with spaces, with a corpus where README has LJSpeech."""
    root = tmp_path / "the project"
    left_out = shutil.ignore_patterns(
        ".*", "demo", "runs", "out", "data", "tests", "results", "docs", "__pycache__"
    )
    shutil.copytree(ROOT, root, ignore=left_out)
    wavs = root / "data" / "LJSpeech-1.1" / "wavs"
    wavs.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for i in range(10):
        soundfile.write(wavs / f"T-{i}.wav", 0.1 * rng.standard_normal(8000 + 900 * i), 22050)
        rows.append(f"T-{i}|Text {i}.|Text number {i}.\n")
    (wavs.parent / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    return root


def prepare(clone: Path) -> None:
    """What the commands of README leave behind, as far as those of docs/ need it."""
    lists = clone / "filelists" / "ljspeech"
    lists.mkdir()
    samples = [8000 + 900 * i for i in range(10)]
    lines = [f"data/LJSpeech-1.1/wavs/T-{i}.wav|Text number {i}.|{n / 22050:.6f}\n"
             for i, n in enumerate(samples)]  # fmt: skip
    (lists / "train.txt").write_text("".join(lines[:8]), encoding="utf-8")
    (lists / "val.txt").write_text("".join(lines[8:]), encoding="utf-8")
    (lists / "settings.txt").write_text(
        "training_files=filelists/ljspeech/train.txt\n"
        "validation_files=filelists/ljspeech/val.txt\n",
        encoding="utf-8",
    )
    weights = Tacotron2(create_hparams(TINY)).state_dict()
    torch.save({"state_dict": weights}, clone / "tacotron2_statedict.pt")  # as NVIDIA's is


def prepare_the_papers_run(clone: Path) -> None:
    """Of what the training of docs/paper.md leaves behind, the lengths, in frames of 12.5 ms."""
    run = clone / "runs" / "paper"
    run.mkdir(parents=True)
    frames = [f"T-{i},{1 + (8000 + 900 * i) // 276}\n" for i in range(10)]
    (run / "lengths.csv").write_text("id,frames\n" + "".join(frames), encoding="utf-8")


def smaller(command: str) -> list[str]:
    """The command's arguments after `python`, with what makes it quick."""
    python, program, *arguments = shlex.split(command)
    assert python == "python"
    if set(arguments) & set(KEPT_AS_THEY_ARE):
        return [program, *arguments]
    added = shlex.split(SMALLER.get(program, ""))
    if "--hparams" in arguments and "--hparams" in added:
        place = added.index("--hparams")
        arguments[arguments.index("--hparams") + 1] += f",{added[place + 1]}"
        del added[place : place + 2]
    return [program, *arguments, *added]


@pytest.mark.parametrize(
    "documents",
    [
        ("README.md", "docs/own-data.md", "docs/training.md"),
        ("docs/paper.md", "docs/batching.md"),
        ("docs/speed.md", "docs/several-gpus.md", "docs/migration.md"),
    ],
    ids=" and ".join,
)
def test_every_command_runs_in_the_order_given(documents, clone):
    if "README.md" not in documents:
        prepare(clone)
        if "docs/paper.md" not in documents:
            prepare_the_papers_run(clone)
    done = set(RUN_ELSEWHERE)
    for command in [command for name in documents for command in commands(DOCUMENTS[name])]:
        if command in done or command.startswith("tensorboard"):
            continue
        done.add(command)
        if not HAS_FAST_DECODER and any(program in command for program in FAST_DECODER_ONLY):
            continue
        if script := SCRIPT.match(command):
            assert os.access(clone / script[1], os.X_OK), command
            continue
        if command.startswith("torchrun "):  # in one process; test_distributed.py has several
            options = get_args_parser().parse_args(shlex.split(command)[1:])
            arguments = [a for a in options.training_script_args if a != "--resume"]
            command = shlex.join(["python", options.training_script, *arguments])
        ended = run_program(clone, smaller(command))
        assert ended.code == 0, f"{command}\n{ended.output}"
    if "README.md" in documents:
        assert (clone / "out" / "0001.wav").is_file()
        assert (clone / "runs" / "ljspeech" / "best.pt").is_file()


def test_the_commands_of_every_document_are_run():
    run = test_every_command_runs_in_the_order_given.pytestmark[0].args[1]
    assert sorted(name for names in run for name in names) == sorted(DOCUMENTS)
    programs = {program for document in DOCUMENTS.values() for command in commands(document)
                for program in re.findall(r"python (\S+)", command)}  # fmt: skip
    others = {"scripts/prepare_ljspeech.py", "scripts/report.py", "benchmarks/machine_code.py"}
    assert set(SMALLER) | others == programs


def test_tensorboard_is_there_and_takes_the_options_given():
    (command,) = [c for c in commands(README) if c.startswith("tensorboard")]
    result = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", *shlex.split(command)[1:], "--version_tb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_batching_program_runs_with_batching_py_alone(tmp_path):
    (program,) = fenced("".join(DOCUMENTS.values()), "python")
    shutil.copy(ROOT / "batching.py", tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["0", "1", "2"]


def test_the_readme_trains_within_its_first_100_lines():
    lines = README.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("|", "!", "-"))) <= 120
    assert next(i for i, line in enumerate(lines) if line.startswith("make demo")) < 50
    assert next(i for i, line in enumerate(lines) if line.startswith("python train.py")) < 100


def headings(document: str) -> set[str]:
    """Names of a document's headings as links have them: lower case, no dots or commas."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", document, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links(name: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", DOCUMENTS[name])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(name):
    for link in links(name):
        path, _, heading = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        if heading:
            assert heading in headings(target.read_text(encoding="utf-8")), link


def test_the_readme_links_to_every_document():
    assert set(DOCUMENTS) - {"README.md"} <= set(links("README.md"))


def taken_out(name: str) -> bool:
    """Whether a file is one of the fast decoder, which is not here."""
    return name.startswith("fast_decoder/") and not HAS_FAST_DECODER


def test_every_file_named_exists_and_the_file_map_leaves_no_module_out():
    for document in DOCUMENTS.values():
        for name in re.findall(r"`([\w./]+(?:\.py|\.sh|/))`", document):
            assert (ROOT / name).exists() or taken_out(name), name
    rows = README[README.index("## File map") : README.index("## More")]
    named = set(re.findall(r"`([\w./]+(?:\.py|/))`", rows))
    packages = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py")}
    folders = {"scripts/", "scripts/table2/", "benchmarks/", "tests/"}
    if not HAS_FAST_DECODER:
        folders.add("fast_decoder/")
    assert named == {path.name for path in ROOT.glob("*.py")} | packages | folders
    assert rows.count("\n| `") == 10


def test_every_hyper_parameter_set_in_the_documents_exists():
    settings = re.findall(r"`(?:--hparams )?((?:\w+=[^`,= ]+,?)+)`", "".join(DOCUMENTS.values()))
    assert {"bucket_size=1024", "loss=unpadded", "precision=fp16"} <= set(settings)
    for setting in settings:
        assert create_hparams(setting)  # refuses unknown names and values


def table_rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the rows of the first table under a heading, without its titles."""
    lines = document[document.index(f"\n## {heading}\n") :].splitlines()
    table = list(itertools.takewhile(is_row, itertools.dropwhile(lambda x: not is_row(x), lines)))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def is_row(line: str) -> bool:
    return line.startswith("|")


def test_the_tables_of_strategies_say_what_the_registry_says():
    written = table_rows(DOCUMENTS["docs/batching.md"], "The strategies")
    printed = table_rows(f"\n## Printed\n\n{strategy_table()}\n", "Printed")
    assert len(written) >= 9
    for row in written:  # a newer strategy may be missing: the command above the table prints all
        assert row in printed, "print it: python scripts/compare_batching.py --strategies"
    rows = table_rows(README, "Which batching")  # the main ones, in the order of the registry
    names = [name.strip("`") for name, *_ in rows]
    assert names == [name for name in REGISTRY if name in names]
    assert create_hparams().batching_strategy in names
    for name, short_name, _, parameter in rows:
        strategy = REGISTRY[name.strip("`")]
        assert short_name == strategy.short_name
        default = (
            strategy.parameter and f"{strategy.parameter.name}={DEFAULTS[strategy.parameter.name]}"
        )
        assert parameter == (f"`{default}`" if default else "")


def test_every_file_that_a_program_names_exists():
    """In docstrings and messages too: they outlive the files that they name."""
    folders = ("training", "analysis", "corpus", "fast_decoder", "scripts", "benchmarks", "text")
    written = list(ROOT.glob("*.py"))
    written += [path for name in folders for path in (ROOT / name).rglob("*.[ps][yh]")]
    known = {path.name for path in (*written, *(ROOT / "tests").glob("*.py"))}
    if not HAS_FAST_DECODER:  # programs go on naming its files
        known |= {"graphs.py", "kernels.py", "operations.py", "plain.py", "recurrences.py"}
        known |= {"parity.py", "self_check.py"}
        known |= {"test_fast_decoder.py", "test_decoder_kernels.py", "test_self_check.py"}
    for path in written:
        for name in re.findall(r"[\w./]*\w\.py\b", path.read_text(encoding="utf-8")):
            assert Path(name).name in known, f"{path.relative_to(ROOT)}: {name}"
            if name.startswith(tuple(f"{folder}/" for folder in folders)):
                assert (ROOT / name).exists() or taken_out(name), (
                    f"{path.relative_to(ROOT)}: {name}"
                )
