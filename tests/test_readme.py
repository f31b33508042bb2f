"""README.md and docs/: every command runs, on a tiny corpus in a copy of the project; links, names
of files and hyper-parameters, and the tables of strategies are right."""

import itertools
import os
import random
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
from helpers import DATA, ROOT, run_program
from torch.distributed.run import get_args_parser

from hparams import create_hparams
from length_batching import REGISTRY
from model import Tacotron2

DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = DOCUMENTS["README.md"]
GROUPS = (  # documents whose commands run one after another in one copy
    ("README.md", "docs/own-data.md", "docs/training.md", "docs/voices.md", "docs/speaking.md"),
    ("docs/paper.md", "docs/batching.md", "docs/learning.md", "docs/research-log.md"),
    ("docs/languages.md",),
    ("docs/speed.md", "docs/several-gpus.md", "docs/migration.md"),
    ("docs/speakers.md",),
)
# Run by CI itself (make test), by test_demo.py (make demo) and test_wheel.py, or before any test
# (pip, tensorboard); and scripts, which test_table2.py and test_gpu_report.py run.
RUN_ELSEWHERE = re.compile(
    r"make |pip install |tensorboard |"
    r"(\w+=(\"[^\"]*\"|\S*) )*(\S+\.sh)"
)
TINY = (
    "epochs=1,epochs_per_validation=1,batch_size=4,num_workers=0,symbols_embedding_dim=8,"
    "encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,prenet_dim=8,attention_dim=8,"
    "attention_location_n_filters=2,postnet_embedding_dim=8,max_decoder_steps=20"
)
# Added to the commands: the same work, less of it. {TINY} ends what --hparams has already.
SMALLER = {
    "train.py": f"--hparams {TINY}",
    "synthesize.py": f"--hparams {TINY}",
    "scripts/compare_batching.py": "--epochs 1",
    "scripts/study.py": f"--settings one: --points 1 --hparams {TINY}",
    "benchmarks/decoder.py": (
        "--batch-size 1 --frames 2 --symbols 3 --repeats 1 --warm-ups 0 --only speed "
        f"--hparams {TINY}"
    ),
    "benchmarks/epoch.py": (
        f"--batches 2 --clips 10 --capacities= --hparams {TINY},hop_time=400,num_bins=5"
    ),
    "benchmarks/reliability.py": "--numbers 1-2 --sounds 1",
    "benchmarks/speaking.py": f"--texts 1 --symbols 3 --steps 2 --repeats 1 --hparams {TINY}",
}


def fenced(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, flags=re.DOTALL)


def commands(document: str) -> list[str]:
    """In the order in which a reader meets them, comments taken off."""
    lines = "".join(fenced(document, "bash")).splitlines()
    shown = [line.split("  #")[0].strip() for line in lines]
    return [line for line in shown if line] + re.findall(r"`(python [^`]+)`", document)


@pytest.fixture
def clone(tmp_path):
    """A copy of the project, at a path with spaces, with a corpus where README has LJSpeech and
    docs/speakers.md its readers, and a small vocoder's weights where docs/voices.md has LJ_V1."""
    root = tmp_path / "the project"
    left_out = shutil.ignore_patterns(
        ".*", "demo", "demo-*", "runs", "out", "data", "tests", "results", "docs", "__pycache__"
    )
    shutil.copytree(ROOT, root, ignore=left_out)
    vocoder = shutil.copytree(DATA / "hifi_gan" / "blocks_1", root / "LJ_V1")
    (vocoder / "generator").rename(vocoder / "generator_v1")
    wavs = root / "data" / "LJSpeech-1.1" / "wavs"
    wavs.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for i in range(10):
        soundfile.write(wavs / f"T-{i}.wav", 0.1 * rng.standard_normal(8000 + 900 * i), 22050)
        rows.append(f"T-{i}|Text {i}.|Text number {i}.\n")
    (wavs.parent / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    for speaker in ("anna", "bert"):
        (root / "data" / "readers" / speaker).mkdir(parents=True)
        for path in wavs.glob("*.wav"):
            copy = shutil.copy(path, root / "data" / "readers" / speaker)
            Path(copy).with_suffix(".txt").write_text(f"Text of {path.stem}.", encoding="utf-8")
    return root


def prepare(clone: Path) -> None:
    """What the commands of README and docs/paper.md leave behind, as far as others need it."""
    lists, run = clone / "filelists" / "ljspeech", clone / "runs" / "paper"
    lists.mkdir()
    run.mkdir(parents=True)
    clips = [
        f"data/LJSpeech-1.1/wavs/T-{i}.wav|Text number {i}.|{(8000 + 900 * i) / 22050:.6f}\n"
        for i in range(10)
    ]
    (lists / "train.txt").write_text("".join(clips[:8]), encoding="utf-8")
    (lists / "val.txt").write_text("".join(clips[8:]), encoding="utf-8")
    settings = "training_files={0}/train.txt\nvalidation_files={0}/val.txt\n"
    (lists / "settings.txt").write_text(settings.format("filelists/ljspeech"), encoding="utf-8")
    frames = [f"T-{i},{1 + (8000 + 900 * i) // 276}\n" for i in range(10)]
    for folder in (run, clone):
        (folder / "lengths.csv").write_text("id,frames\n" + "".join(frames), encoding="utf-8")
    weights = Tacotron2(create_hparams(TINY)).state_dict()
    torch.save({"state_dict": weights}, clone / "tacotron2_statedict.pt")  # as NVIDIA's is


def smaller(command: str) -> list[str]:
    """The command's arguments after `python`, with what makes it quick."""
    python, *arguments = shlex.split(command)
    if python == "torchrun":  # in one process, and a run of its own: test_distributed.py has more
        options = get_args_parser().parse_args(arguments)
        given = [argument for argument in options.training_script_args if argument != "--resume"]
        arguments = [options.training_script, *given]
    elif arguments[0] == "-m":
        return arguments
    added = shlex.split(SMALLER.get(arguments[0], ""))
    if "--resume" in arguments:  # which takes the settings of the run
        return arguments
    if "--hparams" in arguments and "--hparams" in added:
        place = added.index("--hparams")
        arguments[arguments.index("--hparams") + 1] += f",{added[place + 1]}"
        del added[place : place + 2]
    return [*arguments, *added]


def commands_of(documents: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(command for name in documents for command in commands(DOCUMENTS[name]))


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param(group, marks=() if group == ("README.md",) else pytest.mark.thorough)
        for group in (("README.md",), *GROUPS)
    ],
    ids=" and ".join,
)
def test_every_command_runs_in_the_order_given(documents, clone):
    if "README.md" not in documents:
        prepare(clone)
    if "docs/paper.md" in documents:
        shutil.rmtree(clone / "runs" / "paper")
    first = {command: names for names in GROUPS[::-1] for command in commands_of(names)}
    for command in commands_of(documents):
        if first[command] != documents and "compare_batching" in command:
            continue  # it leaves nothing behind, and ran before
        if elsewhere := RUN_ELSEWHERE.match(command):
            assert not elsewhere[3] or os.access(clone / elsewhere[3], os.X_OK), command
            continue
        ended = run_program(clone, smaller(command))
        assert ended.code == 0, f"{command}\n{ended.output}"
    if "README.md" in documents:
        assert (clone / "out" / "0001.wav").is_file()
        assert (clone / "runs" / "ljspeech" / "best.pt").is_file()


def test_folders_that_readme_makes_change_no_lint(tmp_path):
    """ruff takes a module of the tests for a package of the project's own if a folder at the root
    has its name, as runs/ once had."""
    root = tmp_path / "project"
    left_out = ".venv*", ".git", "demo", "demo-*", "results", "data", "__pycache__"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*left_out))
    ignored = re.findall(r"^/(\w+)", (ROOT / ".gitignore").read_text(encoding="utf-8"), re.M)
    made = {*ignored, *(word.split("/")[0] for line in commands(README) for word in line.split())}
    folders = {name for name in made if re.fullmatch(r"\w+", name)}
    assert {"runs", "out", "demo", "data"} <= folders
    for name in folders:
        (root / name).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_commands_of_every_document_are_run():
    assert sorted(itertools.chain(*GROUPS)) == sorted(DOCUMENTS)


BATCHING_PROGRAMS = fenced(DOCUMENTS["docs/batching.md"], "python")


def test_the_batching_programs_run_with_the_folder_alone(tmp_path):
    three_lines, loop, with_items, with_extra = BATCHING_PROGRAMS
    loop += "dataset, DataLoader = clips, torch.utils.data.DataLoader\n"
    loop += f"{three_lines}print(sum(batch.shape[1] for batch in loader))\n"
    shutil.copytree(ROOT / "length_batching", tmp_path / "length_batching")
    run = [sys.executable, "-c", loop + with_items + with_extra]
    printed = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["0", "1", "2", "1000", "0", "1"]
    assert any(line.startswith("1000 clips, 1500 segments: (0, 0, 500)") for line in lines)


@pytest.mark.parametrize("seed", range(4))
def test_the_loop_of_the_docs_loses_no_clip(seed, tmp_path, monkeypatch):
    """Killed at random places in any epochs, at most six times: what it trained up to its last
    checkpoint counts."""
    monkeypatch.chdir(tmp_path)
    draw, trained = random.Random(seed), {0: [], 1: [], 2: []}
    program = BATCHING_PROGRAMS[1].replace("    pass\n", "    note(batch)\n")
    stop, names = 0, {}

    def note(batch):
        nonlocal stop
        if stop == 0:
            raise KeyboardInterrupt
        stop -= 1
        trained[names["epoch"]].append(batch[0].int().tolist())

    for left in range(6, -1, -1):
        stop = draw.randint(1, 60) if left else -1
        names["note"] = note
        try:
            exec(program, names)
            break
        except KeyboardInterrupt:
            state = {"epoch": 0, "batches_trained": 0}
            if Path("checkpoint.pt").exists():
                state = torch.load("checkpoint.pt")
            del trained[state["epoch"]][state["batches_trained"] :]
            for epoch in range(state["epoch"] + 1, 3):
                trained[epoch].clear()
    for batches in trained.values():
        assert sorted(itertools.chain(*batches)) == list(range(1000))


def test_excerpts_are_lines_of_the_programs_they_name():
    """test_frameworks.py runs these programs, with the packages that they need."""
    for excerpt in fenced(DOCUMENTS["docs/batching.md"], "py"):
        first, *lines = excerpt.splitlines()
        program = (ROOT / first.removeprefix("# ")).read_text(encoding="utf-8")
        for line in lines:  # where lines break does not matter
            assert "".join(line.split()) in "".join(program.split()), first


def headings(document: str) -> set[str]:
    """Names of a document's headings as links have them: lower case, no dots or commas."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", document, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_to_a_file_and_heading(name):
    for link in re.findall(r"\]\(([^)]+)\)", DOCUMENTS[name]):
        path, _, heading = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        if heading:
            assert heading in headings(target.read_text(encoding="utf-8")), link


def test_every_file_named_in_the_documents_exists():
    """But for programs of an earlier commit, which made results that are kept."""
    named = r"`([\w./]+(?:\.py|\.sh|/))`(?!\s+of\s+commit)"
    for name in re.findall(named, "".join(DOCUMENTS.values())):
        assert (ROOT / name).exists(), name


def test_the_readme_names_every_module_and_document():
    modules = {path.name for path in ROOT.glob("*.py")}
    packages = {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py")}
    named = set(re.findall(r"`([\w./]+(?:\.py|/))`", README[README.index("## File map") :]))
    assert modules | packages | {"scripts/", "benchmarks/", "tests/"} <= named
    assert all(f"({name})" in README for name in set(DOCUMENTS) - {"README.md"})


def test_every_file_named_in_a_program_exists():
    """In docstrings and messages too: they outlive the files that they name."""
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - {"tests"}
    written = [*ROOT.glob("*.py"), *(p for f in folders for p in (ROOT / f).rglob("*.[ps][yh]"))]
    known = {path.name for path in (*written, *(ROOT / "tests").glob("*.py"))}
    for path in written:
        for name in re.findall(r"[\w./]*\w\.py\b", path.read_text(encoding="utf-8")):
            in_folder = name.partition("/")[0] in folders
            exists = (ROOT / name).exists() if in_folder else Path(name).name in known
            assert exists, f"{path.relative_to(ROOT)}: {name}"


def test_every_hyper_parameter_in_the_documents_exists():
    # docs/batching.md names the library's arguments.
    documents = "".join(text for name, text in DOCUMENTS.items() if name != "docs/batching.md")
    settings = re.findall(r"`(?:--hparams )?((?:\w+=[^`,= ]+,?)+)`", documents)
    assert "bucket_size=1024" in settings
    for setting in settings:
        assert create_hparams(setting)  # refuses unknown names and values


def table_rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the rows of the first table under a heading, without its titles."""
    lines = document[document.index(heading) :].splitlines()
    after = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    table = list(itertools.takewhile(lambda line: line.startswith("|"), after))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_tables_of_strategies_follow_the_registry(clone):
    printed = run_program(clone, ["scripts/compare_batching.py", "--strategies"]).output
    rows = table_rows(printed, "|")
    assert len(rows) == len(REGISTRY)
    for row in table_rows(DOCUMENTS["docs/batching.md"], "\n## The strategies\n"):
        assert row in rows, "print it: python scripts/compare_batching.py --strategies"
    for name, short_name, _, parameter in table_rows(README, "\n## Which batching\n"):
        strategy = REGISTRY[name.strip("`")]
        assert short_name == strategy.short_name
        if strategy.parameter:
            default = getattr(create_hparams(), strategy.parameter.name)
            assert parameter == f"`{strategy.parameter.name}={default}`"
