"""prepare called again, or twice at once, with folders that an earlier call filled."""

import json
import shutil

import pytest
from corpora import contents, make_corpus, prepare_with, refusal

from corpus import preparation
from corpus.preparation import Preparation, prepare


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    """Drawing takes longer than all the rest."""
    for name in ("draw_lengths", "draw_faults"):
        monkeypatch.setattr(preparation, name, lambda *_: b"a picture")


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus")


def test_mels_of_two_corpora_do_not_mix(corpus, tmp_path, capsys):
    """Their clips may have the same names. The advice for a corpus that was moved is right."""
    mels, other = tmp_path / "mels", tmp_path / "other"
    prepare(Preparation(corpus, tmp_path / "lists", mels=mels))
    before = contents(mels)
    shutil.copytree(corpus, other)
    message = refusal(prepare_with, other, tmp_path / "others", mels=mels)
    expected = f"--cache-mels {mels}: holds files made of {corpus}, expected of {other}; name anoth"
    assert message.startswith(expected)
    assert contents(mels) == before
    settings = mels / "mel_settings.json"
    moved = message.partition("was moved, write ")[2].partition(" in ")[0]
    settings.write_text(settings.read_text().replace('"corpus": "../corpus"', moved))
    prepare(Preparation(other, tmp_path / "others", mels=mels))


def test_mels_may_move_with_their_corpus(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    prepare(Preparation(make_corpus(old / "data"), old / "lists", mels=old / "mels"))
    old.rename(new)
    prepare(Preparation(new / "data", new / "lists", mels=new / "mels"))
    assert "10 of 10 files were already in" in capsys.readouterr().out


def test_mels_without_a_corpus_are_accepted(corpus, tmp_path, capsys):
    """As 0.3.0 made them; from then on they have one."""
    mels = tmp_path / "mels"
    prepare(Preparation(corpus, tmp_path / "lists", mels=mels))
    after = json.loads((mels / "mel_settings.json").read_text())
    before = {name: value for name, value in after.items() if name != "corpus"}
    (mels / "mel_settings.json").write_text(json.dumps(before))
    prepare(Preparation(corpus, tmp_path / "lists", mels=mels))
    assert "10 of 10 files were already in" in capsys.readouterr().out
    assert json.loads((mels / "mel_settings.json").read_text()) == after
    assert after["corpus"] == "../corpus"
