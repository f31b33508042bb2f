"""Test text/other_languages.py, which recognizes texts that are not English."""

import pytest
from helpers import DATA

from tacotron2_voice.text.other_languages import language_of
from tacotron2_voice.text.uncertain import uncertain_note


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Guten Morgen, wie geht es Ihnen heute?", "German"),
        ("Der Hund läuft schnell durch den Wald.", "German"),
        ("Le chat dort sur le canapé.", "French"),
        ("J’ai mangé une pomme.", "French"),
        ("Buenos días, ¿cómo está usted?", "Spanish"),
        ("Il gatto dorme sul divano.", "Italian"),
        ("O gato está em casa.", "Portuguese"),
        ("Ik ga morgen naar de markt.", "Dutch"),
        ("Jag vill inte gå hem.", "Swedish"),
        ("Nie wiem, co to jest.", "Polish"),
        ("Доброе утро!", "a language with Cyrillic letters"),
        ("Καλημέρα", "a language with Greek letters"),
        ("He drove Das Auto to Vincent van Gogh.", ""),
        ("The storm of El Niño came after La Niña.", ""),
        ("The letter α is Greek.", ""),
        ("a@b.com", ""),
        ("1984", ""),
    ],
)
def test_language_is_recognized_in_short_texts(text, language):
    assert language_of(text) == language


def test_english_texts_are_not_recognized_as_other_languages():
    lines = (DATA / "english_texts.tsv").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if language_of(line.split("\t")[1])] == []


@pytest.mark.parametrize(
    ("cleaners", "is_noted"), [(["english_cleaners"], True), (["basic_cleaners"], False)]
)
def test_note_says_that_a_model_with_english_cleaners_reads_german_as_english(cleaners, is_noted):
    notes = uncertain_note("Das Auto ist rot.", cleaners)
    assert any("German" in note for note in notes) == is_noted
