"""Test repeated and simultaneous calls of prepare with the same folders."""

import os
from dataclasses import replace

import pytest
from corpora import contents, make_corpus, prepare_with, refusal

from corpus import prepare as preparation
from corpus.clips import Clip
from corpus.prepare import Preparation, prepare, with_examples_first
from corpus.warnings import Finding
from tacotron2_voice.utils.files import folder_locked

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus")


@pytest.mark.thorough
def test_old_filelists_are_renamed_when_prepare_runs_again(corpus, tmp_path, monkeypatch, capsys):
    """Existing filelists are renamed after the new settings.txt is written. No other file
    changes."""
    lists, mels = tmp_path / "lists", tmp_path / "mels"
    cleaners = "text_cleaners=[basic_cleaners]"
    prepare(Preparation(corpus, lists, f"{cleaners},symbols=corpus", mels=mels))
    table = f"{cleaners},symbols={lists / 'symbols.json'}"
    (lists / "val.txt.old").write_text("mine")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "rename_earlier_lists", lambda *_: 1 / 0)
        refusal(prepare_with, corpus, lists, table, val_fraction=0, error=ZeroDivisionError)
    assert (lists / "val_mel.txt").exists()
    assert "\nvalidation_files=none\n" in (lists / "settings.txt").read_text()
    prepare(Preparation(corpus, lists, table, val_fraction=0))
    [note] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: ")]
    assert str(lists) in note
    assert note.endswith("NAME.earlier: val.txt, train_mel.txt, val_mel.txt")
    drawn = {"lengths.png", "corpus.png", "audio.png", "report.html"}
    names = {"train.txt", "train.txt.clips", "settings.txt", *drawn}
    earlier = {f"{name}.txt.earlier" for name in ("val", "train_mel", "val_mel")}
    assert contents(lists).keys() == {*names, *earlier, "val.txt.old", "symbols.json"}
    prepare(Preparation(corpus, lists, val_fraction=0))
    earlier |= {"symbols.json.earlier"}
    assert contents(lists).keys() == {*names, *earlier, "val.txt.old"}
    written = {path.name for path in prepare(Preparation(corpus, lists))}
    assert written == {"val.txt", "val.txt.clips", *names}


@pytest.mark.thorough
def test_note_lists_the_files_that_a_second_run_of_prepare_replaced(corpus, tmp_path, capsys):
    lists = tmp_path / "lists"
    prepare(Preparation(corpus, lists))
    prepare(Preparation(corpus, lists))  # a second call changes no file
    assert "note: " not in capsys.readouterr().out
    prepare(Preparation(corpus, lists, seed=5))
    [note] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: ")]
    assert str(lists) in note
    assert note.endswith("replaced train.txt, val.txt")


def test_settings_file_is_missing_when_prepare_was_killed(corpus, tmp_path, monkeypatch):
    """The test kills prepare while it moves files into place. settings.txt is the last file that
    prepare moves."""
    lists, replaced = tmp_path / "lists", []

    def replace_some(source, target):
        if len(replaced) == done:
            raise KeyboardInterrupt
        replaced.append(target)
        os.rename(source, target)

    monkeypatch.setattr(preparation.os, "replace", replace_some)
    for done in range(4):  # number of files that prepare moves before the test kills it
        replaced.clear()
        refusal(prepare_with, corpus, lists, error=KeyboardInterrupt)
        assert len(replaced) == done
        assert not (lists / "settings.txt").exists()


def test_prepare_fails_when_a_second_call_is_running(corpus, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    with folder_locked(lists, "busy"):
        message = refusal(prepare_with, corpus, lists, error=BlockingIOError)
    assert (
        message == f"{lists}: another process is writing to it; wait, or choose a different --out"
    )
    assert contents(lists) == {}
    prepare(Preparation(corpus, lists))


def test_first_validation_clip_has_the_median_length_and_no_problems():
    clips = [
        Clip(f"{i}.wav", "Yes.", num_frames=n, where=f"m:{i}") for i, n in enumerate([9, 5, 7])
    ]
    assert [x.num_frames for x in with_examples_first(clips, [])] == [7, 9, 5]
    findings = [Finding("noise", "Record again", [(clips[2], "5 dB"), (clips[0], "6 dB")])]
    assert [x.num_frames for x in with_examples_first(clips, findings)] == [5, 9, 7]
    named = [replace(clip, speaker=name) for clip, name in zip(clips, "bab", strict=True)]
    assert [x.num_frames for x in with_examples_first(named, [])] == [5, 9, 7]


def test_prepare_keeps_files_that_it_did_not_write(corpus, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text("the text of a clip named train")
    message = refusal(prepare_with, corpus, lists)
    assert "train.txt" in message
    assert contents(lists).keys() == {"train.txt"}
    assert (lists / "train.txt").read_text() == "the text of a clip named train"
