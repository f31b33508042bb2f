"""Test text/other_languages.py, which recognizes texts that are not English."""

import pytest
from helpers import DATA

from tacotron2_voice.text.other_languages import language_of
from tacotron2_voice.text.uncertain import uncertain_notes


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Guten Morgen, wie geht es Ihnen heute?", "German"),
        ("Er kommt aus Hamburg.", "German"),
        ("Le vieil homme regardait par la fenêtre.", "French"),
        ("J’ai mangé une pomme.", "French"),
        ("Buenos días, ¿cómo está usted?", "Spanish"),
        ("Il vecchio guardava dalla finestra.", "Italian"),
        ("O velho olhava pela janela.", "Portuguese"),
        ("De oude man keek uit het raam.", "Dutch"),
        ("La casa es grande.", "Spanish"),
        ("Stary człowiek patrzył przez okno.", "Polish"),
        ("Vanha mies katsoi ikkunasta.", "Finnish"),
        ("Az öreg ember kinézett az ablakon.", "Hungarian"),
        ("Доброе утро!", "a language with Cyrillic letters"),
        ("Καλημέρα", "a language with Greek letters"),
        ("He drove Das Auto to Vincent van Gogh.", ""),
        ("Uncle Les and Aunt Des left.", ""),
        ("NATO met in Brussels.", ""),
        ("Rte. 66 goes west.", ""),
        ("El Niño came after La Niña.", ""),
        ("The letter α is Greek.", ""),
        ("π", ""),
        ("ｆｕｌｌ ｗｉｄｔｈ", ""),
        ("on November twenty-four.", ""),
        ("Come on, Del Mar challenged.", ""),
        ("Reykjavik", ""),
        ("a@b.com", ""),
        ("1984", ""),
    ],
)
def test_language_is_recognized_in_short_texts(text, language):
    assert language_of(text) == language


def test_few_english_texts_are_taken_for_other_languages():
    lines = (DATA / "english_texts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[1] for line in lines]
    assert sum(bool(language_of(text)) for text in texts) <= 5


@pytest.mark.parametrize(
    ("cleaners", "is_noted"), [(["english_cleaners"], True), (["basic_cleaners"], False)]
)
def test_note_says_that_a_model_with_english_cleaners_reads_german_as_english(cleaners, is_noted):
    notes = uncertain_notes("Er kommt aus Hamburg.", cleaners)
    assert any("German" in note for note in notes) == is_noted


def test_uncertain_expressions_are_listed_in_texts_that_are_not_english():
    notes = uncertain_notes("Er kommt 10/11 aus Hamburg.", ["english_cleaners_corrected"])
    assert len(notes) == 2
    assert "10/11" in notes[1]
