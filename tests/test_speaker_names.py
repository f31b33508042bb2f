"""speaker_names.py and what reads them: fields, columns and folders that name speakers."""

import re
import shlex
import shutil

import numpy as np
import pytest
import soundfile
from corpora import RATE, prepare_with, refusal, write_tone
from helpers import LJSPEECH_CLIPS

from corpus.conversion import convert
from corpus.layouts import Table, read_layout, sounds_of
from corpus.metadata import read_metadata
from corpus.speaker_names import SpeakerSource
from hparams import create_hparams
from scripts import prepare

pytestmark = pytest.mark.usefixtures("no_picture")

HPARAMS = create_hparams()
FOLDERS = SpeakerSource(folders=True)
REAL = sorted(LJSPEECH_CLIPS.glob("*.wav"))


def write_metadata(folder, *lines):
    (folder / "metadata.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def readers(tmp_path):
    """Real clips in a folder for each speaker: anna's in LJSpeech's layout, Zoë's with texts beside
    them, of which two have the names of anna's."""
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
    """The speaker of each id of both lists."""
    lines = "".join((out / f"{name.format(x)}.txt").read_text("utf-8") for x in ("train", "val"))
    rows = [line.split("|") for line in lines.splitlines()]
    return {re.sub(r".*/|\.\w+$", "", row[0]): row[3] for row in rows if len(row) == 4}


# ---------------------------------------------------------------------------- fields, columns


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        ("c{i}|{s}|Text {i}.", "2", "Text {i}."),
        ("c{i}|Text {i}.|{s}", "3", "Text {i}."),
        ("c{i}|{s}|Raw {i}.|Text {i}.", "2", "Text {i}."),
        ("c{i}|Raw {i}.|Text {i}.| {s} ", "4", "Text {i}."),
        ("c{i}|Raw {i}.|{s}|Text {i}.", "3", "Text {i}."),
    ],
)
def test_any_field_may_name_the_speaker(tmp_path, capsys, line, column, text):
    lines = [line.format(i=i, s="ab"[i % 2]) for i in range(8)]
    clips, problems = read_metadata(write_metadata(tmp_path, *lines), column)
    assert [(x.id, x.text, x.speaker) for x in clips] == [
        (f"c{i}", text.format(i=i), "ab"[i % 2]) for i in range(8)
    ]
    assert problems == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("1", "expected the number of the one that names speakers, 2 to 3"),
        ("4", "have 3 fields, expected the number"),
        ("speaker", "or its title if the first line has titles: 'c0|a|Text 0.'"),
        ("A", "expected the number"),
        ("3", "field 3 has 8 values in 8 lines, such as 'Text 0.'; expected names of speakers"),
    ],
)
def test_fields_without_speakers_are_refused(tmp_path, column, message):
    write_metadata(tmp_path, *(f"c{i}|{'ab'[i % 2]}|Text {i}." for i in range(8)))
    assert message in refusal(read_metadata, tmp_path, column)


@pytest.mark.parametrize("column", ["Reader", "reader"])
def test_titles_of_metadata_name_the_field(tmp_path, column):
    lines = [f"c{i}|Text {i}.|{'ab'[i % 2]}" for i in range(8)]
    write_metadata(tmp_path, "id|text|Reader", *lines)
    clips, problems = read_metadata(tmp_path, column)
    assert [(x.id, x.text, x.speaker) for x in clips[:2]] == [
        ("c0", "Text 0.", "a"),
        ("c1", "Text 1.", "b"),
    ]
    assert (len(clips), problems) == (8, [])
    assert "expected the number of the one" in refusal(read_metadata, tmp_path, "id")


def test_two_fields_have_none_for_speakers(tmp_path):
    """And a field that is empty everywhere is another one than was meant."""
    write_metadata(tmp_path, *(f"c{i}|Text {i}." for i in range(8)))
    assert "--speaker NAME names the one of all" in refusal(read_metadata, tmp_path, "2")
    write_metadata(tmp_path, *(f"c{i}||Text {i}." for i in range(8)))
    assert "field 2 is empty in all lines" in refusal(read_metadata, tmp_path, "2")


def test_lists_have_a_fourth_field(tmp_path):
    """Those of cached mels too; and training tells the speakers apart."""
    corpus, out = tmp_path / "corpus", tmp_path / "lists"
    (corpus / "wavs").mkdir(parents=True)
    for i in range(10):
        write_tone(corpus / "wavs" / f"c{i}.wav", 5000 + i)
    write_metadata(corpus, *(f"c{i}|{'ab'[i % 2]}|Text." for i in range(10)))
    source = SpeakerSource("2")
    prepare_with(corpus, out, mels=tmp_path / "mels", speakers=source)
    expected = {f"c{i}": "ab"[i % 2] for i in range(10)}
    assert lists_of(out) == lists_of(out, "{}_mel") == expected
    assert create_hparams(f"@{out}/settings.txt").speaker_embedding_dim == 64
    prepare_with(corpus, out, f"@{out}/settings.txt,speaker_embedding_dim=8", speakers=source)
    assert create_hparams(f"@{out}/settings.txt").speaker_embedding_dim == 8


def test_one_named_speaker_changes_nothing_else(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    for i in range(10):
        write_tone(corpus / "wavs" / f"c{i}.wav", 5000 + i)
    write_metadata(corpus, *(f"c{i}|Text." for i in range(10)))
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
def test_column_of_a_table_names_the_speaker(tmp_path, column):
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
    assert problem.startswith(f"{table.path}:3: column {column}: no speaker; name who speaks")


def test_column_without_table_is_refused(tmp_path):
    write_tone(tmp_path / "a.wav", 5000)
    (tmp_path / "a.txt").write_text("A.")
    message = refusal(read_layout, tmp_path, None, SpeakerSource("2"))
    assert "has no metadata.csv; name a table by --csv FILE, or add --speaker-folders" in message


# ---------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "no speaker; name who speaks, as the other lines do"),
        ("..", "speaker '..': expected a name without '|'"),
        ("x\x07y", "speaker 'x\\x07y': expected characters that can be printed; write"),
        ("x" * 129, "129 characters, expected at most 128; write another name"),
        ("x\u200b", "speaker 'x\\u200b': expected characters that can be printed"),
    ],
)
def test_bad_names_are_problems_of_lines(tmp_path, name, problem):
    lines = [f"c{i}|{name if i in (2, 5) else 'anna'}|Text {i}." for i in range(8)]
    clips, problems = read_metadata(write_metadata(tmp_path, *lines), "2")
    assert len(clips) == 6
    for line, text in zip((3, 6), problems, strict=True):
        assert text.startswith(f"{tmp_path}/metadata.csv:{line}: field 2: ")
        assert problem in text


def test_many_lines_without_speaker_are_counted(tmp_path):
    (tmp_path / "wavs").mkdir()
    for i in range(42):
        write_tone(tmp_path / "wavs" / f"c{i}.wav", 5000)
    write_metadata(tmp_path, *(f"c{i}|{'' if i % 2 else 'anna'}|Text {i}." for i in range(42)))
    source = SpeakerSource("2")
    message = refusal(prepare_with, tmp_path, tmp_path / "lists", speakers=source)
    assert "the same in 20 more: metadata.csv:4" in message
    prepare_with(tmp_path, tmp_path / "lists", speakers=source, skip_bad=True)
    assert len(lists_of(tmp_path / "lists")) == 21


@pytest.mark.parametrize("other", ["ANNA", "\uff41nna", "an  na"])
def test_names_that_look_alike_are_refused(tmp_path, other):
    name = "an na" if " " in other else "anna"
    lines = [f"c{i}|{other if i == 6 else name}|Text {i}." for i in range(8)]
    message = refusal(read_metadata, write_metadata(tmp_path, *lines), "2")
    place = f"{tmp_path}/metadata.csv"
    assert f"{other!r} ({place}:7)" in message
    assert f"{name!r} ({place}:1)" in message
    assert message.endswith("give one person one spelling, and two people names that differ more")


def test_composed_and_decomposed_names_are_one(tmp_path, capsys):
    lines = [f"c{i}|{'Zoë' if i % 2 else 'Zoe' + chr(0x308)}|Text {i}." for i in range(8)]
    clips, _ = read_metadata(write_metadata(tmp_path, *lines), "2")
    assert {clip.speaker for clip in clips} == {"Zoë"}
    assert "1 names of speakers, such as 'Zoë', have accents" in capsys.readouterr().out


# ---------------------------------------------------------------------------- folders


def test_folders_name_speakers_of_any_layout(readers, tmp_path, capsys):
    """The copies, whose ids of two speakers have the names in front, are prepared again by the
    printed command, to the same lists."""
    out = tmp_path / "lists"
    command = [str(readers), "--speaker-folders", "--out", str(out), "--val-fraction", "0.34"]
    with pytest.raises(SystemExit):
        prepare.main(command)
    assert "--speaker-folders: needs --convert DIR" in capsys.readouterr().err
    prepare.main([*command, "--convert", str(tmp_path / "new ones")])
    expected = {"0": "anna", "3": "Zoë"}
    expected |= {f"{name}-{i}": name for name in ("anna", "Zoë") for i in (1, 2)}
    assert lists_of(out) == expected
    lines = (tmp_path / "new ones" / "metadata.csv").read_text("utf-8").splitlines()
    assert lines[-1] == "anna-2|anna|Anna reads 2."
    printed = capsys.readouterr().out
    assert "--convert: of 2 speakers, whom field 2 of its metadata.csv names" in printed
    before = (out / "train.txt").read_text("utf-8")
    again = re.search(r"to prepare from there: python \S+ (.*)", printed)
    assert again
    prepare.main([*shlex.split(again[1]), *command[2:]])
    assert (out / "train.txt").read_text("utf-8") == before
    assert lists_of(out) == expected


def test_folders_may_be_links(readers, tmp_path):
    """To corpora elsewhere; each folder is read once."""
    linked = tmp_path / "linked"
    (linked / "bert").mkdir(parents=True)
    (linked / "anna").symlink_to(readers / "anna")
    (linked / "bert" / "wavs").symlink_to(readers / "Zoë" / "part 1")
    (linked / "bert" / "loop").symlink_to(linked / "bert")
    clips, problems = read_layout(linked, None, FOLDERS)
    assert [clip.speaker for clip in clips] == ["anna"] * 3 + ["bert"] * 3
    assert problems == []
    assert len(sounds_of(linked / "bert")) == 3


def test_every_bad_folder_is_named(readers, tmp_path):
    write_tone(readers / "loose.wav", 5000)
    (readers / "notes").mkdir()
    _, [problem] = read_layout(readers, None, FOLDERS)
    assert problem == f"{readers}/loose.wav: in no speaker's folder; move it into one"
    for name in ("bert", "carl"):
        (readers / name).mkdir()
        write_tone(readers / name / "a.wav", 5000)
    message = refusal(read_layout, readers, None, FOLDERS)
    assert all(f"{readers}/{name}: 1 sounds and no text" in message for name in ("bert", "carl"))
    (readers / "carl").rename(readers / "ANNA")
    message = refusal(read_layout, readers, None, FOLDERS)
    assert f"'ANNA' ({readers}/ANNA) and 'anna' ({readers}/anna) differ only" in message
    (readers / "ANNA").rename(readers / "a|b")
    (readers / "bert").rename(readers / "be\nrt")
    message = refusal(read_layout, readers, None, FOLDERS)
    assert f"{readers}: folder: speaker 'a|b': expected" in message
    assert f"{readers}: folder: speaker 'be\\nrt': expected" in message
    write_metadata(readers, "a|b")
    assert f"add --csv {readers}/metadata.csv" in refusal(read_layout, readers, None, FOLDERS)
    (tmp_path / "empty").mkdir()
    message = refusal(read_layout, tmp_path / "empty", None, FOLDERS)
    assert "no folder in it holds sounds" in message


def test_hidden_folders_are_noticed(readers, capsys):
    (readers / "anna").rename(readers / ".anna")
    clips, _ = read_layout(readers, None, FOLDERS)
    assert {clip.speaker for clip in clips} == {"Zoë"}
    assert f"1 hidden folders of {readers} are left out, such as '.anna'" in capsys.readouterr().out


def test_advice_about_folders_is_right(readers, tmp_path, capsys):
    """From what a user types first to the lists."""
    shutil.rmtree(readers / "Zoë")
    shutil.copytree(readers / "anna", readers / "bert")
    options = ["--out", str(tmp_path / "lists"), "--val-fraction", "0.34"]
    advised = "add --speaker-folders --convert NEW_FOLDER (docs/speakers.md)"
    assert advised in refusal(prepare.main, [str(readers), *options])
    other = [str(readers), *options, "--convert", str(tmp_path / "new")]
    assert advised in refusal(prepare.main, other)
    prepare.main([*other, "--speaker-folders"])
    assert sorted({*lists_of(tmp_path / "lists").values()}) == ["anna", "bert"]
    capsys.readouterr()
    for name in ("anna", "bert"):
        (readers / name / "metadata.csv").unlink()
        for path in (readers / name / "wavs").glob("*.wav"):
            path.with_suffix(".txt").write_text("Text.")
    prepare.main([*other[:-1], str(tmp_path / "one voice")])
    printed = capsys.readouterr().out
    assert "in 2 folders of" in printed
    assert "'anna' and 'bert'; if these are speakers, add --speaker-folders" in printed


@pytest.mark.parametrize("listed", ["wavs/{0}/{1}.wav", "{0}/{1}"])
def test_ids_of_folders_become_speakers(readers, tmp_path, listed):
    """By the command in the refusal, whose new folder the user names."""
    corpus = tmp_path / "corpus"
    shutil.copytree(readers, corpus / "wavs")
    shutil.move(corpus / "wavs" / "anna" / "wavs", corpus / "wavs" / "bert")
    ids = [listed.format(folder, i) for folder in ("bert", "Zoë/part 1") for i in (1, 2)]
    write_metadata(corpus, *(f"{name}|Well, one, two, three." for name in ids))
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    command = message.partition("If the folders are speakers (docs/speakers.md): python ")[2]
    arguments = shlex.split(command.replace("NEW_FOLDER", shlex.quote(str(tmp_path / "new"))))
    prepare.main([*arguments[1:], "--out", str(tmp_path / "lists"), "--val-fraction", "0"])
    rows = [line.split("|") for line in (tmp_path / "new" / "metadata.csv").read_text().split("\n")]
    assert [row[:2] for row in rows[:-1]] == [
        [f"{name}-{i}", name] for name in ("bert", "Zoë") for i in (1, 2)
    ]


def test_copies_of_other_recordings_are_replaced(readers, tmp_path):
    """A speaker whose files have the names of one who is gone does not get that one's sounds."""
    (readers / "Zoë").rename(tmp_path / "Zoë")
    convert(readers, tmp_path / "new", None, HPARAMS, FOLDERS)
    (readers / "anna").rename(tmp_path / "anna")
    (tmp_path / "Zoë").rename(readers / "Zoë")
    convert(readers, tmp_path / "new", None, HPARAMS, FOLDERS)
    convert(readers, tmp_path / "anew", None, HPARAMS, FOLDERS)
    for name in "123":
        samples = [
            soundfile.read(tmp_path / x / "wavs" / f"{name}.wav")[0] for x in ("new", "anew")
        ]
        assert np.array_equal(*samples)
