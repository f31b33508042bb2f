"""field_order.py: lists whose text is not in the field where it is read."""

import re
import subprocess
from pathlib import Path

import pytest

from corpus.field_order import refuse_no_paths
from corpus.filelist import read_filelist
from corpus.metadata import read_metadata
from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines

TEXTS = [f"Text {'long ' * i}{i}." for i in range(10)]


def write(path: Path, line: str, end: str = "\n") -> Path:
    """Ten lines, of two speakers. In UTF-8 with a byte-order mark, as Excel writes it."""
    lines = [line.format(i=i, text=text, speaker=f"p{i % 2}") for i, text in enumerate(TEXTS)]
    path.write_text("".join(x + end for x in lines), encoding="utf-8-sig", newline="")
    return path


def follow(message: str, mark: str) -> None:
    """Run the command after these words."""
    command = re.search(f"{re.escape(mark)}.*?: (cp .*)", message)
    assert command, message
    subprocess.run(command[1], shell=True, check=True)


def refusal(read, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        read(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("c{i}|{text}|Anna", "or leave it out"),
        ("c{i}|{speaker}|{text}|{text}", "which goes last"),
        ("{speaker}|c{i}.mp3|{text}|2|0", "which goes last"),
    ],
)
def test_text_is_put_last(tmp_path, line, mark, end):
    """Otherwise the names of speakers would be trained as the texts."""
    write(tmp_path / "metadata.csv", line, end)
    message = refusal(read_metadata, tmp_path)
    assert message.count("\n") < 2
    follow(message, mark)
    lines = [line for _, line in numbered_lines(tmp_path / "metadata.csv")]
    assert [line.split("|")[-1] for line in lines] == TEXTS
    assert [line.split("|")[0].split(".")[0] for line in lines] == [f"c{i}" for i in range(10)]
    assert (tmp_path / "metadata.csv.old").exists()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_last_field_may_name_speakers(tmp_path, end):
    """By the new option, or in the lines of one speaker that a command keeps."""
    write(tmp_path / "metadata.csv", "c{i}|{text}|p.{i} ", end)
    path = tmp_path / "metadata.csv"
    path.write_text(re.sub(r"p\.(\d)", lambda x: f"p.{int(x[1]) % 2}", path.read_text()))
    message = refusal(read_metadata, tmp_path)
    assert "If it names speakers, add --speaker-column 3 (docs/speakers.md), or keep" in message
    clips, problems = read_metadata(tmp_path, "3")
    assert [(clip.text, clip.speaker) for clip in clips] == [
        (text, f"p.{i % 2}") for i, text in enumerate(TEXTS)
    ]
    assert problems == []
    follow(message, "keep the lines of one")
    assert [clip.text for clip in read_metadata(tmp_path)[0]] == TEXTS[::2]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("{speaker}|c{i}.mp3|{text}|2|0", ""),
        ("{speaker}|c{i}.mp3|{text}|2|0", "3"),  # the text's, by mistake
        ("c{i}|{text}|{speaker}|en", "3"),
        ("c{i}|en|{text}|x|{speaker}", "5"),
    ],
)
def test_advised_fields_are_read_with_speakers(tmp_path, line, column):
    write(tmp_path / "metadata.csv", line)
    message = refusal(read_metadata, tmp_path, column)
    follow(message, "which goes last")
    assert "\nThen --speaker-column 2 tells the speakers apart" in message
    clips, problems = read_metadata(tmp_path, "2")
    assert problems == []
    assert [(x.text, x.speaker) for x in clips] == [(t, f"p{i % 2}") for i, t in enumerate(TEXTS)]


def test_short_texts_may_be_the_last_field(tmp_path):
    (tmp_path / "metadata.csv").write_text("".join(f"c{i}|take {i}|one\n" for i in range(9)))
    follow(refusal(read_metadata, tmp_path), "leave out the field before it")
    assert [clip.text for clip in read_metadata(tmp_path)[0]] == ["one"] * 9


@pytest.mark.parametrize(
    "line", ["c{i}|{text}|{text}", "c{i}|{speaker}|{text}", "c{i}|No. {i}|{text}", "c{i}|{text}"]
)
def test_usual_lines_are_left_alone(tmp_path, line):
    write(tmp_path / "metadata.csv", line)
    assert [clip.text for clip in read_metadata(tmp_path)[0]] == TEXTS


def test_most_lines_say_how_many_fields(tmp_path):
    """One bar inside a text must not make all other lines bad."""
    lines = [f"c{i}|{text}" for i, text in enumerate(TEXTS)]
    lines[3] = "c3|He said | go on"
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    clips, problems = read_metadata(tmp_path)
    assert len(clips) == 9
    assert ["metadata.csv:4: 3 fields, expected id|text, as most" in x for x in problems] == [True]


def test_bar_at_every_end_is_ignored(tmp_path):
    write(tmp_path / "metadata.csv", "c{i}|{text}|")
    assert [clip.text for clip in read_metadata(tmp_path)[0]] == TEXTS


@pytest.mark.parametrize("line", ["a/{i}.wav|{speaker}|{text}", "a/{i}.wav|{text}|{speaker}"])
def test_filelist_with_speakers_is_one_message(tmp_path, line):
    path = write(tmp_path / "train.txt", line)
    message = refusal(read_filelist, path, HParams())
    assert "the third field is no number of seconds: 'a/0.wav|" in message
    follow(message, "keep path and text")
    expected = [f"a/{i}.wav|{text}" for i, text in enumerate(TEXTS)]
    assert [line for _, line in numbered_lines(path)] == expected


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("a/{i}.wav|{text}|anna|0.{i}", "0.{i}"),
        ("a/{i}.wav|anna|{text}|0.{i}", "0.{i}"),
        ("a/{i}.wav|{text}|7|0.{i}", None),  # may be seconds and a speaker
        ("a/{i}.wav|anna||{text}", ""),
        ("a/{i}.wav|7|0.{i}|{text}", "0.{i}"),
        ("a/{i}.wav|{text}|anna|english", None),
        ("a/{i}.wav|{text}|0.{i}|anna", None),
        ("a/{i}.wav|{text}||a name that is longer than any of these texts by far", None),
    ],
)
def test_four_fields_are_put_in_order(tmp_path, line, seconds):
    path = write(tmp_path / "train.txt", line)
    if seconds is None:
        refuse_no_paths(path, numbered_lines(path))
        return
    message = refusal(refuse_no_paths, path, numbered_lines(path))
    assert "in another order than path|text|seconds|speaker: 'a/0.wav|" in message
    follow(message, "reorder them")
    for i, (_, ordered) in enumerate(numbered_lines(path)):
        assert ordered.startswith(f"a/{i}.wav|{TEXTS[i]}|{seconds.format(i=i)}|")
    refuse_no_paths(path, numbered_lines(path))


@pytest.mark.parametrize("line", ["c{i}|{text}", "c{i}|{text}|{text}"])
def test_metadata_as_filelist_is_recognized(tmp_path, line):
    path = write(tmp_path / "metadata.csv", line)
    message = refusal(read_filelist, path, HParams())
    assert f"make lists of it: python scripts/prepare.py {tmp_path}" in message
