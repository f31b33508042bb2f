"""Test speaker names in fields, columns and folders (corpus/speaker_names.py)."""

import re
import shutil
from pathlib import Path

import pytest
import soundfile
from corpora import RATE, prepare_with, refusal, write_tone
from helpers import LJSPEECH_CLIPS

from corpus.audio_search import audio_files
from corpus.clips import Clip
from corpus.convert import note_of_folders
from corpus.layouts import read_layout
from corpus.speaker_names import SpeakerSource
from corpus.table_rows import Table
from hparams import create_hparams
from scripts import prepare

pytestmark = pytest.mark.usefixtures("no_plots")

FOLDERS = SpeakerSource(folders=True)
REAL = sorted(LJSPEECH_CLIPS.glob("*.wav"))


def write_metadata(folder, *lines):
    (folder / "metadata.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def read_metadata(folder, column):
    """Read a metadata.csv with the empty audio files c0.wav to c41.wav."""
    (folder / "wavs").mkdir(exist_ok=True)
    for i in range(42):
        (folder / "wavs" / f"c{i}.wav").touch()
    return read_layout(folder, None, SpeakerSource(column))


@pytest.fixture
def readers(tmp_path):
    """Write real clips in one folder per speaker.

    Anna's folder has LJSpeech's layout. Zoë's folder has a text file next to each clip. Two of
    Zoë's clips have the same names as anna's clips.
    """
    corpus = tmp_path / "the readers"
    (corpus / "anna" / "wavs").mkdir(parents=True)
    (corpus / "Zoë" / "part 1").mkdir(parents=True)
    for i, path in enumerate(REAL[:3]):
        shutil.copy(path, corpus / "anna" / "wavs" / f"{i}.wav")
    write_metadata(corpus / "anna", *(f"{i}|raw|Anna reads {i}." for i in range(3)))
    for i, path in enumerate(REAL[3:] + REAL[:1], 1):
        samples, _ = soundfile.read(path)
        soundfile.write(corpus / "Zoë" / "part 1" / f"{i}.flac", 0.1 * samples, RATE)
        (corpus / "Zoë" / "part 1" / f"{i}.txt").write_text(f"Zoë reads {i}.")
    return corpus


def lists_of(out, name="{}"):
    """Return a dict from the id of each clip in both filelists to its speaker."""
    lines = "".join((out / f"{name.format(x)}.txt").read_text("utf-8") for x in ("train", "val"))
    rows = [line.split("|") for line in lines.splitlines()]
    return {re.sub(r".*/|\.\w+$", "", row[0]): row[3] for row in rows if len(row) == 4}


# ---------------------------------------------------------------------------- fields, columns


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        ("c{i}|{s}|Text {i}.", "2", "Text {i}."),
        ("c{i}|Text {i}.|{s}", "3", "Text {i}."),
        ("c{i}|Text No. {i}.| {s} |Text number {i}.", "3", "Text number {i}."),
    ],
)
def test_speaker_is_read_from_any_field_of_a_metadata_line(tmp_path, capsys, line, column, text):
    lines = [line.format(i=i, s="ab"[i % 2]) for i in range(8)]
    clips, problems = read_metadata(write_metadata(tmp_path, *lines), column)
    assert [(x.id, x.text, x.speaker) for x in clips] == [
        (f"c{i}", text.format(i=i), "ab"[i % 2]) for i in range(8)
    ]
    assert problems == []
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("1", "contains the paths"),
        ("4", "a number from 1 to 3"),
        ("speaker", "c0, a, text_0."),
        ("3", "8 different values in 8 lines, such as 'Text 0.'"),
    ],
)
def test_speaker_column_is_rejected_when_it_contains_no_speakers(tmp_path, column, message):
    write_metadata(tmp_path, *(f"c{i}|{'ab'[i % 2]}|Text {i}." for i in range(8)))
    error = refusal(read_metadata, tmp_path, column)
    assert str(tmp_path / "metadata.csv") in error
    assert message in error


def test_speaker_column_is_rejected_when_it_is_the_text_column_or_empty(tmp_path):
    write_metadata(tmp_path, *(f"c{i}|Text {i}." for i in range(8)))
    assert "--text-column" in refusal(read_metadata, tmp_path, "2")
    table = Table(tmp_path / "metadata.csv", text_column="2")
    assert "--speaker NAME" in refusal(read_layout, tmp_path, table, SpeakerSource("2"))
    write_metadata(tmp_path, *(f"c{i}||Text {i}." for i in range(8)))
    assert "column 2" in refusal(read_metadata, tmp_path, "2")


@pytest.mark.thorough
def test_filelists_have_a_fourth_field_when_there_are_speakers(tmp_path):
    """Filelists of cached mels also contain the speaker in the fourth field. settings.txt sets
    speaker_embedding_dim."""
    corpus, out = tmp_path / "corpus", tmp_path / "lists"
    (corpus / "wavs").mkdir(parents=True)
    for i in range(10):
        write_tone(corpus / "wavs" / f"c{i}.wav", 5000 + i)
    write_metadata(corpus, *(f"c{i}|{'ab'[i % 2]}|A short text." for i in range(10)))
    source = SpeakerSource("2")
    prepare_with(corpus, out, mels=tmp_path / "mels", speakers=source)
    expected = {f"c{i}": "ab"[i % 2] for i in range(10)}
    assert lists_of(out) == lists_of(out, "{}_mel") == expected
    assert create_hparams(f"@{out}/settings.txt").speaker_embedding_dim == 64
    prepare_with(corpus, out, f"@{out}/settings.txt,speaker_embedding_dim=8", speakers=source)
    assert create_hparams(f"@{out}/settings.txt").speaker_embedding_dim == 8


@pytest.mark.thorough
def test_filelists_differ_only_in_the_speaker_field_when_one_speaker_is_given_for_all_clips(
    tmp_path,
):
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    for i in range(10):
        write_tone(corpus / "wavs" / f"c{i}.wav", 5000 + i)
    write_metadata(corpus, *(f"c{i}|A short text." for i in range(10)))
    prepare_with(corpus, tmp_path / "plain")
    prepare_with(corpus, tmp_path / "named", speakers=SpeakerSource(name=" Zoe\u0308 "))
    for name in ("train.txt", "val.txt"):
        plain = (tmp_path / "plain" / name).read_text("utf-8")
        assert (tmp_path / "named" / name).read_text("utf-8") == plain.replace("\n", "|Zoë\n")
    for name in ("plain", "named"):
        assert "speaker" not in (tmp_path / name / "settings.txt").read_text()
    bad = SpeakerSource(name="a|b")
    assert "--speaker: speaker 'a|b'" in refusal(prepare_with, corpus, tmp_path, speakers=bad)


@pytest.mark.parametrize("column", ["Reader", "3"])
def test_speaker_column_of_a_table_contains_the_speaker(tmp_path, column):
    for i in range(4):
        write_tone(tmp_path / f"{i}.wav", 5000)
    rows = "".join(f"{i}.wav,Text {i}.,{'ab'[i % 2]}\n" for i in range(4))
    table = Table(tmp_path / "table.csv")
    table.path.write_text(f"path,text,reader\n{rows}")
    clips, problems = read_layout(tmp_path, table, SpeakerSource(column))
    assert ([clip.speaker for clip in clips], problems) == (["a", "b", "a", "b"], [])
    message = refusal(read_layout, tmp_path, table, SpeakerSource("who"))
    assert "--speaker-column who: " in message
    table.path.write_text(f"path,text,reader\n{rows.replace('1.,b', '1.,')}")
    _, [problem] = read_layout(tmp_path, table, SpeakerSource(column))
    assert problem.startswith(f"{table.path}:3: column {column}: ")


def test_speaker_column_is_rejected_when_there_is_no_table(tmp_path):
    write_tone(tmp_path / "a.wav", 5000)
    (tmp_path / "a.txt").write_text("A.")
    message = refusal(read_layout, tmp_path, None, SpeakerSource("2"))
    assert "--speaker-column 2" in message
    assert "--csv" in message


# ---------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "no speaker"),
        ("..", "'..'"),
        ("x\x07y", "'x\\x07y'"),
        ("x" * 129, "129 characters"),
        ("x\u200b", "'x\\u200b'"),
    ],
)
def test_line_of_metadata_is_reported_when_its_speaker_name_is_not_valid(tmp_path, name, problem):
    lines = [f"c{i}|{name if i in (2, 5) else 'anna'}|Text {i}." for i in range(8)]
    clips, problems = read_metadata(write_metadata(tmp_path, *lines), "2")
    assert len(clips) == 6
    for line, text in zip((3, 6), problems, strict=True):
        assert text.startswith(f"{tmp_path}/metadata.csv:{line}: column 2: ")
        assert problem in text


@pytest.mark.parametrize("other", ["ANNA", "\uff41nna", "an  na"])
def test_speaker_names_are_rejected_when_they_look_alike(tmp_path, other):
    name = "an na" if " " in other else "anna"
    lines = [f"c{i}|{other if i == 6 else name}|Text {i}." for i in range(8)]
    message = refusal(read_metadata, write_metadata(tmp_path, *lines), "2")
    place = f"{tmp_path}/metadata.csv"
    assert f"{other!r} ({place}:7)" in message
    assert f"{name!r} ({place}:1)" in message


def test_speaker_names_count_as_equal_when_only_their_unicode_form_differs(tmp_path):
    lines = [f"c{i}|{'Zoë' if i % 2 else 'Zoe' + chr(0x308)}|Text {i}." for i in range(8)]
    clips, _ = read_metadata(write_metadata(tmp_path, *lines), "2")
    assert {clip.speaker for clip in clips} == {"Zoë"}


# ---------------------------------------------------------------------------- folders


@pytest.mark.thorough
def test_speaker_folders_work_with_any_layout(readers, tmp_path):
    """If two speakers have clips with the same file name, clip ids begin with the speaker."""
    out = tmp_path / "lists"
    command = [str(readers), "--speaker-folders", "--out", str(out), "--val-fraction", "0.34"]
    assert "--convert" in refusal(prepare.main, command)  # two clips have the same file name
    prepare.main([*command, "--convert", str(tmp_path / "new ones")])
    expected = {"0": "anna", "3": "Zoë"}
    expected |= {f"{name}-{i}": name for name in ("anna", "Zoë") for i in (1, 2)}
    assert lists_of(out) == expected
    lines = (tmp_path / "new ones" / "metadata.csv").read_text("utf-8").splitlines()
    assert lines[-1] == "anna-2|anna|Anna reads 2."
    before = (out / "train.txt").read_text("utf-8")
    prepare.main([str(tmp_path / "new ones"), "--speaker-column", "2", *command[2:]])
    assert (out / "train.txt").read_text("utf-8") == before


def test_speaker_folder_is_reported_when_it_contains_only_texts(readers):
    (readers / "Bo").mkdir()
    (readers / "Bo" / "1.txt").write_text("Bo reads.")
    clips, problems = read_layout(readers, None, FOLDERS)
    assert len(clips) == 6
    assert problems == [f"{readers / 'Bo'}: contains texts, but no audio files"]


def test_note_is_printed_when_all_speaker_folders_are_in_one_folder(readers, capsys):
    shutil.rmtree(readers / "anna")
    read_layout(readers, None, FOLDERS)
    assert "only one speaker" in capsys.readouterr().out


def test_speaker_folders_can_be_links(readers, tmp_path):
    """The links in the corpus point to folders in different places. Each folder is read once."""
    linked = tmp_path / "linked"
    (linked / "bert").mkdir(parents=True)
    (linked / "anna").symlink_to(readers / "anna")
    (linked / "bert" / "wavs").symlink_to(readers / "Zoë" / "part 1")
    (linked / "bert" / "loop").symlink_to(linked / "bert")
    clips, problems = read_layout(linked, None, FOLDERS)
    assert [clip.speaker for clip in clips] == ["anna"] * 3 + ["bert"] * 3
    assert problems == []
    assert len(audio_files(linked / "bert")) == 3


def test_error_lists_every_invalid_speaker_folder(readers, tmp_path):
    write_tone(readers / "loose.wav", 5000)
    (readers / "notes").mkdir()
    _, [problem] = read_layout(readers, None, FOLDERS)
    assert problem.startswith(f"{readers}/loose.wav: ")
    for name in ("bert", "carl"):
        (readers / name).mkdir()
        write_tone(readers / name / "a.wav", 5000)
    message = refusal(read_layout, readers, None, FOLDERS)
    assert all(f"{readers}/{name}: " in message for name in ("bert", "carl"))
    (readers / "carl").rename(readers / "ANNA")
    message = refusal(read_layout, readers, None, FOLDERS)
    assert f"'ANNA' ({readers}/ANNA) and 'anna' ({readers}/anna) differ only" in message
    (readers / "ANNA").rename(readers / "a|b")
    (readers / "bert").rename(readers / "be\nrt")
    message = refusal(read_layout, readers, None, FOLDERS)
    assert f"{readers}: folder: speaker 'a|b'" in message
    assert f"{readers}: folder: speaker 'be\\nrt'" in message
    write_metadata(readers, "a|b")
    assert f"add --csv {readers}/metadata.csv" in refusal(read_layout, readers, None, FOLDERS)
    (tmp_path / "empty").mkdir()
    message = refusal(read_layout, tmp_path / "empty", None, FOLDERS)
    assert str(tmp_path / "empty") in message


def test_hidden_folder_does_not_become_a_speaker(readers):
    (readers / "anna").rename(readers / ".anna")
    clips, _ = read_layout(readers, None, FOLDERS)
    assert {clip.speaker for clip in clips} == {"Zoë"}


def test_note_suggests_speakers_when_recordings_are_in_several_folders():
    clips = [Clip(f"corpus/{name}/{i}.wav", "") for name in ("anna", "bert") for i in (1, 2)]
    note = note_of_folders(clips, Path("corpus"))
    assert note.startswith("note: ")
    assert all(word in note for word in ("'anna'", "'bert'", "--speaker-folders"))
    assert note_of_folders(clips[:2], Path("corpus")) is None
    assert note_of_folders([Clip("corpus/a.wav", ""), *clips[:2]], Path("corpus")) is None


def test_folders_in_clip_ids_become_speakers(readers, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(readers, corpus / "wavs")
    shutil.move(corpus / "wavs" / "anna" / "wavs", corpus / "wavs" / "bert")
    ids = [f"wavs/{folder}/{i}.wav" for folder in ("bert", "Zoë/part 1") for i in (1, 2)]
    write_metadata(corpus, *(f"{name}|Well, one, two, three." for name in ids))
    assert "--convert" in refusal(prepare_with, corpus, tmp_path / "lists")
    arguments = [str(corpus / "wavs"), "--speaker-folders", "--csv", str(corpus / "metadata.csv")]
    arguments += ["--convert", str(tmp_path / "new"), "--out", str(tmp_path / "lists")]
    prepare.main([*arguments, "--val-fraction", "0"])
    rows = [line.split("|") for line in (tmp_path / "new" / "metadata.csv").read_text().split("\n")]
    assert [row[:2] for row in rows[:-1]] == [
        [f"{name}-{i}", name] for name in ("bert", "Zoë") for i in (1, 2)
    ]
