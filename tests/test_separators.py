"""separators.py: lists whose fields are separated by something else than a bar."""

import subprocess
import sys

import pytest

from corpus.filelist import read_filelist
from corpus.lengths import read_lengths
from corpus.metadata import read_metadata
from corpus.separators import refuse_other_separators
from evaluation.recordings import read_recordings
from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines

LINES = ["a1{0}It's five, she said.", 'a2{0}He said "no" again.', "a3{0}Well, go; then, go on."]
# As spreadsheets and pandas write fields in quotes
QUOTED_BY = {
    name: [
        f'"a1"{mark}"It\'s five, she said."',
        f'"a2"{mark}"He said ""no"" again."',
        f'"a3"{mark}"{LINES[2][5:]}"',
    ]
    for name, mark in {"commas": ",", "tabs": "\t", "quotes": "|"}.items()
}
BARS = [line.format("|") for line in LINES]


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        refuse_other_separators(path, numbered_lines(path), "id|text")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("tabs", [line.format("\t") for line in LINES]),
        ("semicolons", [line.format(";") for line in LINES]),
        ("commas", [line.format(",") for line in LINES]),
        (
            "commas",
            ['a1,"It\'s five, she said."', 'a2,"He said ""no"" again."', f'a3,"{LINES[2][5:]}"'],
        ),
        ("spaces", [line.format(" ") for line in LINES]),
        ("commas", QUOTED_BY["commas"]),
        ("tabs", QUOTED_BY["tabs"]),
        ("quotes", QUOTED_BY["quotes"]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_advised_command_makes_bars(tmp_path, name, lines, encoding):
    """With a byte-order mark, as Excel writes it, too."""
    path = tmp_path / "a list.csv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding=encoding)
    message = refusal(path)
    what = "in quotes" if name == "quotes" else f"separated by {name}"
    assert f"{path}: fields are {what}, expected id|text: " in message
    command = "cp -n " + message.partition("; convert it: cp -n ")[2]
    command = command.replace("python ", f"{sys.executable} ")
    subprocess.run(command, shell=True, check=True)
    assert [line for _, line in numbered_lines(path)] == BARS


def test_line_breaks_inside_fields_become_blanks(tmp_path):
    path = tmp_path / "a.csv"
    others = "".join(f'b{i},"He left, at noon."\n' for i in range(9))
    path.write_text(f'a1,"Go on,\nshe said."\n{others}')
    command = refusal(path).partition("; convert it: ")[2].replace("python ", f"{sys.executable} ")
    subprocess.run(command, shell=True, check=True)
    assert path.read_text().startswith("a1|Go on, she said.\nb0|He left, at noon.\n")


@pytest.mark.parametrize(
    "lines",
    [
        ['a1,"Go on, she said.', "a2,He left.", 'a3,"Well'],
        ['a1\t"Go on," she said.', "a2\tHe left.", 'a3\t"Well'],
    ],
)
def test_quotations_do_not_swallow_lines(tmp_path, lines):
    """A quotation mark that is not closed would take the lines after it into its text."""
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    subprocess.run(refusal(path).partition("; convert it: ")[2], shell=True, check=True)
    bars = [line.replace(",", "|", 1) if "\t" not in line else line for line in lines]
    assert [x for _, x in numbered_lines(path)] == [line.replace("\t", "|") for line in bars]


def test_lists_of_both_kinds_are_recognized(tmp_path):
    for name in ("metadata.csv", "train.txt"):
        (tmp_path / name).write_text("a.wav\tGo on.\nb.wav\tCome on.\n")
    for read in (
        lambda: read_metadata(tmp_path),
        lambda: read_filelist(tmp_path / "train.txt", HParams()),
        lambda: read_recordings(tmp_path / "train.txt"),
        lambda: read_lengths(tmp_path / "train.txt", HParams()),
    ):
        with pytest.raises(UserError, match=r"fields are separated by tabs, .*; convert it: cp -n"):
            read()


@pytest.mark.parametrize("separator", "\t;")
def test_tables_of_lengths_get_their_commas(separator, tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("".join(f"{x}{separator}{y}\n" for x, y in [("id", "frames"), ("a", 4)]))
    with pytest.raises(UserError, match="expected commas: cp -n") as caught:
        read_lengths(path, HParams())
    command = str(caught.value).partition("expected commas: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert read_lengths(path, HParams()).frames == [4]


@pytest.mark.parametrize("line", ["a|It is, she said.", "It is, she said.", "word"])
def test_other_lines_are_left_alone(tmp_path, line):
    path = tmp_path / "list"
    path.write_text(f"{line}\n" * 20)
    lines = numbered_lines(path)
    refuse_other_separators(path, lines, "id|text")  # raises nothing
    assert numbered_lines(path) == lines
