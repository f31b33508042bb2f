"""Test README.md and docs/: commands run, links and names are valid, generated pages are current.

The commands run in a copy of the project, with a tiny corpus.
"""

import itertools
import os
import re
import runpy
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

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LIBRARY_README = ROOT / "length_batching" / "README.md"
DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
README = DOCUMENTS["README.md"]
# The commands in a group of pages run one after another in the same copy of the project.
# All commands on pages outside the groups also occur in a group.
GROUPS = (
    (
        "README.md",
        "docs/start/ljspeech.md",
        "docs/guides/training-runs.md",
        "docs/guides/synthesis.md",
        "docs/guides/deploy.md",
        "docs/background/end-of-speech.md",
    ),
    ("docs/guides/own-data.md", "docs/guides/small-corpus.md"),
    ("docs/background/reproducing-the-paper.md", "docs/batching/choosing-a-strategy.md"),
    ("docs/guides/languages.md",),
    ("docs/guides/performance.md", "docs/guides/several-gpus.md", "docs/guides/migration.md"),
    ("docs/guides/speakers.md",),
)
# Commands that this test does not run.
# CI runs make, test_wheel.py runs pip, and test_table2.py runs the Table 2 scripts.
RUN_ELSEWHERE = re.compile(
    r"make |git clone |pip install |tensorboard |"
    r"(\w+=(\"[^\"]*\"|\S*) )*(\S+\.sh)"
)
TINY = (
    "epochs=1,epochs_per_validation=1,batch_size=4,num_workers=0,symbols_embedding_dim=8,"
    "encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,prenet_dim=8,attention_dim=8,"
    "attention_location_n_filters=2,postnet_embedding_dim=8,max_decoder_steps=20"
)
# Options that make each command fast. {TINY} stands for the settings of a tiny model.
SMALLER = {
    "train.py": f"--hparams {TINY}",
    "synthesize.py": f"--hparams {TINY}",
    "scripts/compare_batching.py": "--epochs 1",
    "scripts/study.py": f"--settings one: --points 1 --hparams {TINY}",
    "benchmarks.decoder": (
        "--batch-size 1 --frames 2 --symbols 3 --repeats 1 --warm-ups 0 --only speed "
        f"--hparams {TINY}"
    ),
    "benchmarks.reliability": "--numbers 1-2 --audio 1",
    "benchmarks.speaking": f"--texts 1 --symbols 3 --steps 2 --repeats 1 --hparams {TINY}",
}


def fenced(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, flags=re.DOTALL)


def commands(document: str) -> list[str]:
    """Return the commands on a page in the order in which they appear, without comments."""
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", document, flags=re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).splitlines()
    shown = [line.split("  #")[0].strip() for line in lines]
    return [line for line in shown if line] + re.findall(r"`(python [^`]+)`", document)


@pytest.fixture
def clone(tmp_path):
    """Return a copy of the project with the data that the pages mention.

    The path contains spaces. The data consists of an imitation of LJSpeech with ten clips, a
    folder of recordings, a corpus with two speakers, and the weights of a small vocoder.
    """
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
    (root / "book.txt").write_text("Chapter one.\nIt was a quiet evening.\n", encoding="utf-8")
    (root / "RECORDINGS").mkdir()
    for i in range(40):
        path = root / "RECORDINGS" / f"R-{i}.wav"
        soundfile.write(path, 0.1 * rng.standard_normal(8000 + 300 * i), 22050)
        path.with_suffix(".txt").write_text(f"Text number {i}.", encoding="utf-8")
    for speaker in ("anna", "bert"):
        (root / "data" / "readers" / speaker).mkdir(parents=True)
        for path in wavs.glob("*.wav"):
            copy = shutil.copy(path, root / "data" / "readers" / speaker)
            Path(copy).with_suffix(".txt").write_text(f"Text of {path.stem}.", encoding="utf-8")
    return root


def prepare(clone: Path) -> None:
    """Create the files that earlier commands on the pages would have created."""
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
    # Checkpoints from NVIDIA contain their weights in the entry `state_dict`.
    torch.save({"state_dict": weights}, clone / "tacotron2_statedict.pt")


def smaller(command: str) -> list[str]:
    """Return the command's arguments after `python`, with options that make it fast."""
    python, *arguments = shlex.split(command)
    # run torchrun commands in one process, because test_distributed.py covers several processes
    if python == "torchrun":
        options = get_args_parser().parse_args(arguments)
        given = [argument for argument in options.training_script_args if argument != "--resume"]
        module = ["-m"] if options.module else []
        arguments = [*module, options.training_script, *given]
    program = arguments[1] if arguments[0] == "-m" else arguments[0]
    added = shlex.split(SMALLER.get(program, ""))
    if "--resume" in arguments:  # a resumed run keeps its settings
        return arguments
    # Exported voices accept only a few settings.
    if program == "synthesize.py" and "--voice" in arguments:
        added = ["--hparams", "max_decoder_steps=20"]
    if "--hparams" in arguments and "--hparams" in added:
        place = added.index("--hparams")
        arguments[arguments.index("--hparams") + 1] += f",{added[place + 1]}"
        del added[place : place + 2]
    return [*arguments, *added]


def options_of_programs() -> dict[str, set[str]]:
    """Return the options of each program on the generated page of commands, which contains the
    help of argparse."""
    page = DOCUMENTS["docs/reference/commands.md"]
    sections = re.findall(r"^## (.+?)\n\n```text\n(.*?)```", page, flags=re.DOTALL | re.MULTILINE)
    return {
        program: set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)) for program, text in sections
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_of_commands_in_sh_blocks_exist(name):
    known = options_of_programs()
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", DOCUMENTS[name], flags=re.DOTALL | re.MULTILINE)
    for block in blocks:
        block = block.partition("cd hifi-gan\n")[0]  # later commands belong to another repository
        for line in block.replace("\\\n", " ").splitlines():
            command = re.split(r"  #| \| ", line)[0]
            command = command.replace("tacotron2-voice ", "python -m tacotron2_voice ")
            found = [program for program in known if f" {program} " in f" {command} "]
            if found:
                # The longest name is the name of a subcommand, such as "-m tacotron2_voice speak".
                program = max(found, key=len)
                arguments = shlex.split(command.partition(program)[2], comments=True)
                given = {word.split("=")[0] for word in arguments if re.match("--?[a-z]", word)}
                assert given <= known[program], f"{line}: {given - known[program]}"


def commands_of(documents: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(command for name in documents for command in commands(DOCUMENTS[name]))


@pytest.mark.thorough
@pytest.mark.parametrize("documents", [("README.md",), *GROUPS], ids=" and ".join)
def test_documented_commands_succeed_when_run_in_page_order(documents, clone):
    if "README.md" not in documents:
        prepare(clone)
    if "docs/background/reproducing-the-paper.md" in documents:
        shutil.rmtree(clone / "runs" / "paper")
    for command in commands_of(documents):
        if elsewhere := RUN_ELSEWHERE.match(command):
            assert not elsewhere[3] or os.access(clone / elsewhere[3], os.X_OK), command
            continue
        ended = run_program(clone, smaller(command))
        assert ended.code == 0, f"{command}\n{ended.output}"
    if "README.md" in documents:
        assert (clone / "evening.wav").is_file()
        assert (clone / "runs" / "ljspeech" / "best.pt").is_file()


def test_every_documentation_page_with_commands_is_in_a_tested_group():
    grouped = {command for group in GROUPS for command in commands_of(group)}
    without_generated = {name for name in DOCUMENTS if not name.startswith("docs/reference/")}
    for name in without_generated - set(itertools.chain(*GROUPS)):
        for command in commands(DOCUMENTS[name]):
            assert RUN_ELSEWHERE.match(command) or command in grouped, f"{name}: {command}"


# ---------------------------------------------------------------------------- pages of the library

LIBRARY_PROGRAMS = [
    *fenced(LIBRARY_README.read_text(encoding="utf-8"), "python"),
    *fenced(DOCUMENTS["docs/batching/length-batching.md"], "python"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("program", LIBRARY_PROGRAMS)
def test_library_examples_run_without_the_recipe(program, tmp_path):
    shutil.copytree(ROOT / "length_batching", tmp_path / "length_batching")
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("program", fenced(DOCUMENTS["docs/guides/deploy.md"], "python"))
def test_speech_examples_run_with_the_included_voice(program, tmp_path):
    (tmp_path / "voices").symlink_to(ROOT / "voices")
    (tmp_path / "tacotron2_voice").symlink_to(ROOT / "tacotron2_voice")
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout


# ---------------------------------------------------------------------------- links and names


def headings(document: str) -> set[str]:
    """Return the anchors of a document's headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", document, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


LINKED = [*PAGES, *sorted((ROOT / "research").glob("*.md"))]
LINKED += [ROOT / "CONTRIBUTING.md", ROOT / "voices" / "english" / "README.md"]


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_points_to_an_existing_file_and_heading(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert target.resolve().is_relative_to(ROOT), link
        if heading:
            assert heading in headings(target.read_text(encoding="utf-8")), link


def test_every_program_mentioned_in_the_docs_exists():
    for name in re.findall(
        r"`([\w./]+(?:\.py|\.sh|/))`(?!\s+of\s+commit)", "".join(DOCUMENTS.values())
    ):
        if not name.startswith(("demo", "data", "book", "site", "filelists/", "logs", "runs")):
            assert (ROOT / name).exists(), name


def test_every_documentation_page_is_in_the_index():
    index = DOCUMENTS["docs/README.md"]
    for name in set(DOCUMENTS) - {"README.md", "docs/README.md"}:
        assert f"({name.removeprefix('docs/')}" in index, name


def test_every_setting_mentioned_in_the_docs_exists():
    libraries = ("docs/batching/length-batching.md", "docs/reference/length-batching-api.md")
    documents = "".join(text for name, text in DOCUMENTS.items() if name not in libraries)
    settings = re.findall(r"`(?:--hparams )?((?:\w+=[^`,= ]+,?)+)`", documents)
    assert "bucket_size=1024" in settings
    for setting in settings:
        if setting.split("=")[0].islower() and not setting.startswith("name=value"):
            assert create_hparams(setting)  # this call fails if the name or the value is invalid


def table_rows(document: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without the header row."""
    lines = document[document.index(heading) :].splitlines()
    after = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    table = list(itertools.takewhile(lambda line: line.startswith("|"), after))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_table_of_strategies_matches_the_registry():
    page = DOCUMENTS["docs/batching/choosing-a-strategy.md"]
    rows = table_rows(page, "\n## All strategies\n")
    assert [row[0].strip("`") for row in rows] == list(REGISTRY)
    for name, short_name, _, parameter in rows:
        strategy = REGISTRY[name.strip("`")]
        assert short_name == strategy.short_name
        if strategy.parameter:
            default = getattr(create_hparams(), strategy.parameter.name)
            assert parameter == f"`{strategy.parameter.name}={default}`"


@pytest.mark.parametrize(
    "page",
    [
        "settings.md",
        "length-batching-api.md",
        "tacotron2-voice-api.md",
        # commands.md is slow to generate, because the generator starts every program.
        pytest.param("commands.md", marks=pytest.mark.thorough),
    ],
)
def test_generated_reference_page_is_up_to_date(page, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_reference.py", "--check", page])
    runpy.run_path(ROOT / "docs" / "make_reference.py", run_name="__main__")


def test_settings_page_contains_the_unit_of_the_value():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    units = {row[0].strip("| `"): row[3] for row in rows}
    assert units["row_costs"] == "microseconds"  # the meaning also contains "clips"
    assert units["win_time"] == "ms"
    assert units["batch_size"] == "clips"


def test_changelogs_agree_on_the_dates_of_versions():
    dates: dict[str, str] = {}
    for path in (ROOT, ROOT / "tacotron2_voice", ROOT / "length_batching"):
        text = (path / "CHANGELOG.md").read_text(encoding="utf-8")
        unreleased, *headings = re.findall("^## (.*)$", text, flags=re.MULTILINE)
        assert unreleased == "[Unreleased]"
        for heading in headings:
            found = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading)
            assert found, heading
            assert dates.setdefault(found[1], found[2]) == found[2]
