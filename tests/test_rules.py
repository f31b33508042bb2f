"""Test the version of the text normalization rules, and the files that store this version."""

import json
import shutil
from dataclasses import replace

import pytest
from helpers import SMALL_MODEL, save_small_model
from test_retries import GOOD, TEXT, Scripted

import synthesize
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams
from tacotron2_voice.text import rules, rules_version, uses_english_rules
from tacotron2_voice.text.rules import code_of
from tacotron2_voice.voice import Voice

RULE = 'RULES = [(r"\\bDr\\.", "doctor")]\n'


def test_hash_of_text_normalization_rules_ignores_comments_docstrings_and_layout():
    documented = f'"""Rules."""\n\n# titles\n{RULE}\ndef f(x):\n    """Return x."""\n    return x\n'
    bare = 'RULES = [\n    (r"\\bDr\\.",\n     "doctor")\n]\ndef f(x): return x'
    assert code_of(documented) == code_of(bare)


@pytest.mark.parametrize("other", ["drive", "", "doctor "])
def test_hash_of_text_normalization_rules_changes_when_a_replacement_changes(other):
    assert code_of(RULE) != code_of(RULE.replace("doctor", other))


def test_version_of_text_normalization_rules_depends_on_every_rule_file(tmp_path, monkeypatch):
    shutil.copytree(rules.FOLDER, tmp_path / "text")
    monkeypatch.setattr(rules, "FOLDER", tmp_path / "text")
    monkeypatch.setattr(rules, "version_of", rules.version_of.__wrapped__)  # without the cache
    version = rules_version.__wrapped__
    versions = {version()}
    assert versions == {rules_version()}
    for name in ("english/words.py", "english/numbers.py", "cleaners.py", "sequences.py"):
        path = tmp_path / "text" / name
        path.write_text(path.read_text(encoding="utf-8") + "\nADDED = 1\n", encoding="utf-8")
        versions.add(version())
    assert len(versions) == 5
    path = tmp_path / "text" / "unspoken.py"
    path.write_text(path.read_text(encoding="utf-8") + "\nADDED = 1\n", encoding="utf-8")
    assert version() in versions


@pytest.mark.parametrize(
    ("trained", "cleaner", "has_note"),
    [
        # Checkpoints of release 0.4.0 do not contain the version of the text normalization rules.
        ("", "english_cleaners_corrected", False),
        (rules_version(), "english_cleaners_corrected", False),
        ("0123456789abcdef", "english_cleaners_corrected", True),
        ("0123456789abcdef", "english_cleaners", True),
        ("0123456789abcdef", "basic_cleaners", False),
    ],
)
def test_synthesizer_returns_a_note_when_its_text_normalization_rules_differ_from_training(
    trained, cleaner, has_note
):
    settings = replace(Scripted(GOOD).settings, text_cleaners=(cleaner,))
    synthesizer = Scripted(GOOD, settings=settings)
    synthesizer.training = replace(synthesizer.training, text_rules=trained)
    note = synthesizer.rules_note()
    assert bool(note) == has_note
    assert not note or trained in note
    assert synthesizer.synthesize(TEXT).notes == []
    assert uses_english_rules(settings.text_cleaners) == cleaner.startswith("english")


def test_note_about_text_normalization_rules_is_printed_once(tmp_path, capsys):
    path = save_small_model(
        tmp_path / "a.pt", create_hparams(SMALL_MODEL), text_rules="0123456789abcdef"
    )
    assert load_checkpoint_synthesizer(path).training.text_rules == "0123456789abcdef"
    texts = tmp_path / "texts.txt"
    texts.write_text("A dog.\nA cat.\n")
    options = ["--lines", "--text-file", str(texts), "-o", str(tmp_path / "a.wav")]
    synthesize.main(["--checkpoint", str(path), *options, "--hparams", "max_decoder_steps=3"])
    assert capsys.readouterr().err.count("note: ") == 1


def test_exported_voice_stores_the_version_of_text_normalization_used_in_training(voices, tmp_path):
    folder = shutil.copytree(voices.int8[0], tmp_path / "voice")
    assert Voice(folder).training.text_rules == ""
    path = folder / "voice.json"
    description = json.loads(path.read_text())
    path.write_text(json.dumps(description | {"text_rules": "0123456789abcdef"}))
    assert "0123456789abcdef" in Voice(folder).rules_note()
    del description["text_rules"]  # a voice that was exported with release 0.4.0 lacks text_rules
    path.write_text(json.dumps(description))
    assert Voice(folder).rules_note() == ""


def test_synthesizer_returns_a_note_when_an_expression_may_be_spoken_incorrectly():
    speech = Scripted(GOOD).synthesize("It was Windows 10/11.")
    assert "'10/11' as 'ten elevenths'" in speech.notes[0]
