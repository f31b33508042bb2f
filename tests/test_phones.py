"""text/phones.py: phones by eSpeak NG 1.52."""

import sys
import unicodedata

import pytest
from corpora import refusal

from text import phones
from text.phones import check_language, espeak_version, to_phones


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en-us", "Hello  [world]", "həlˈoʊ [wˈɜːld]"),
        ("de", "„Guten Tag“ – Welt!", "„ɡˈuːtən tˈɑːk“ – vˈɛlt!"),
        ("ru", "сорок два", "sʌrˈok dvˈɑ"),
        ("cmn", "四十，二。", "sˈi̪5 s.ˈi.ɜ，ˈər5。"),
        ("hi", "बयालीस।", "bˌəjaːlˈiːs।"),
    ],
)
def test_phones_have_stress_and_the_text_punctuation(language, text, expected):
    [found] = to_phones([text], language)
    assert found == unicodedata.normalize("NFC", expected)


def test_empty_texts_take_nothing_from_others():
    texts = ["eins, zwei!", "", " ... ", "drei?"]
    assert to_phones(texts, "de") == ["ˈaɪns, tsvˈaɪ!", "", " ... ", "dɾˈaɪ?"]
    assert to_phones(texts, "de") == [to_phones([text], "de")[0] for text in texts]
    assert to_phones([], "de") == []


def test_marks_inside_words_and_numbers_are_read():
    numbers = to_phones(["4,072", "four thousand seventy two"], "en-us")
    assert numbers[0] == numbers[1]
    [dont, percent, words] = to_phones(["don't", "50%", "fifty percent"], "en-us")
    assert "'" not in dont
    assert percent == words


def test_words_of_other_languages_carry_no_flags():
    [found] = to_phones(["Ein Computer, le week-end (smiley)."], "fr")
    assert "(en)" not in found
    assert "(fr)" not in found
    assert found.endswith("(smˈaɪli).")


def test_unknown_languages_get_the_list_and_nearest():
    known = {"de": "de", "fr": "fr-fr", "en": "en-us", "pt_BR": "pt-br"}
    assert [check_language(name) for name in known] == [*known.values()]
    for wrong, right in (("german", "de (German)"), ("de-at", "de (German)"), ("", "")):
        message = refusal(check_language, wrong)
        assert message.startswith(f"language={wrong}: ")
        assert f"did you mean {right}" in message
        assert ", de, " in message
        assert "\n" not in message


def test_a_missing_package_is_named_with_its_file(monkeypatch):
    for cached in (phones._backends, phones._languages, phones._backend):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "phonemizer.backend", None)
    message = refusal(to_phones, ["eins"], "de")
    assert "phonemizer" in message
    assert message.endswith(
        "; pip install espeakng-loader phonemizer, or all of requirements/phones.txt"
    )


def test_the_version_is_that_of_the_library():
    found = espeak_version().split(".")
    assert len(found) == 3
    assert [int(number) for number in found] >= [1, 52, 0]
